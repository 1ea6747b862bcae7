//! Recovery: what happens after a failed attempt or a lost lease, by failure class; reconcile before retry.

use crate::contract::{Failure, FailureClass, FailureKind, Policy, ReasonType, StepState};
use crate::definition::{Action, EffectKind, Performer, RetryPolicy, StepDef, SubTask};
use crate::ids::Path;
use crate::run::Phase;
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Fault, Json};
use crate::run::event::{Fact, Reset};
use crate::run::scope::{Here, json_text};
use crate::run::step::{Block, Connection, FieldFault, ProofBy, Receipt, Ref, Resource, Role, Step, TaskKind, Wait};
use crate::time::{Span, Timestamp};

use super::coded::BODY;

impl Draft<'_> {
    /// Decides what a failed attempt leads to. The task is over already.
    pub(super) fn recover(&mut self, path: &Path, failure: Failure, fault: Option<&Fault>) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        if self.should_stop(step) {
            return self.end_unwanted(path, failure, &def);
        }
        if self.take_case(path, &def, None, Some(&failure))? {
            return Ok(());
        }
        let uncertain = matches!(failure.class, FailureClass::OutcomeUnknown | FailureClass::Lost);
        let policy = def.policy(failure.class);
        let needs_somebody = matches!(policy, Policy::Ask | Policy::Hold)
            || (policy == Policy::Reconcile && def.reconcile.is_none())
            || (policy == Policy::WaitOnAuth && !matches!(self.run.head.phase, Phase::Forward));
        // Nobody is asked about a `finally` step: its failure is a warning.
        let policy = if def.finally && needs_somebody { Policy::Warn } else { policy };
        match policy {
            Policy::Retry if failure.class == FailureClass::Lost => self.retry_lost(path, failure, &def),
            Policy::Retry => self.retry_later(path, failure, fault.and_then(|fault| fault.retry_after)),
            Policy::Reconcile => self.reconcile(path, failure, &def),
            Policy::Hold if uncertain => self.hold(path, failure),
            Policy::Ask | Policy::Hold => self.ask(path, failure),
            Policy::Fail => self.fail_step(path, failure, false),
            Policy::Warn => self.fail_step(path, failure, true),
            Policy::Compensate => self.fail_for_good(path, failure, false),
            Policy::WaitOnAuth => self.wait_for_auth(path, &failure, fault, &def),
            Policy::ReEvaluate => self.re_evaluate(path, failure, &def),
        }
    }

    /// The run ends, or a join was decided: no recovery, only the truth about what happened.
    fn end_unwanted(&mut self, path: &Path, failure: Failure, def: &StepDef) -> Decided {
        if self.complete_from_receipt(path)? {
            return Ok(());
        }
        let unknown = def.effect == EffectKind::External
            && matches!(failure.class, FailureClass::OutcomeUnknown | FailureClass::Lost);
        let canceling = matches!(self.run.head.phase, Phase::Canceling(_));
        if canceling && def.policy(failure.class) == Policy::Fail {
            return self.fail_step(path, failure, false);
        }
        self.cancel_step(path, &failure.message, unknown)?;
        self.ended(path)
    }

    /// Attempts that the policy and the operators allow.
    fn attempts(&self, path: &Path, policy: &RetryPolicy) -> Decided<u32> {
        Ok(policy.max_attempts + self.must_row(path)?.granted)
    }

    /// Schedules the next attempt, or fails the step when there is none left.
    pub(super) fn retry_later(&mut self, path: &Path, failure: Failure, retry_after: Option<Span>) -> Decided {
        let step = self.must_row(path)?;
        let policy = self.spec(step).retry;
        let attempt = step.attempt.max(1);
        let patient = failure.class == FailureClass::RateLimited
            && step.limited_since.is_none_or(|since| self.now.since(since) < policy.give_up_after);
        let next_attempt = if patient { attempt } else { attempt + 1 };
        if !patient && attempt >= self.attempts(path, &policy)? {
            let kind = if failure.kind == FailureKind::TimedOut { FailureKind::TimedOut } else { failure.kind };
            return self.fail_step(path, Failure { kind, ..failure }, false);
        }
        let pause = retry_after.unwrap_or_else(|| back_off(&policy, attempt, self.jitter()));
        let until = self.now + pause;
        let of = self.attempts(path, &policy)?;
        let message = format!("{} Attempt {next_attempt} of {of} at {until}.", sentence(&failure.message));
        let wait = Wait::Retry { next_attempt, class: failure.class, code: failure.code.clone() };
        let block = Block::new(wait, message, self.now).until(Some(until));
        self.tell_of(path, Fact::StepBlocked { block: Box::new(block), failure: Some(Box::new(failure)) })
    }

    /// A worker was lost and repeating is safe: at once, unless the input kills workers.
    fn retry_lost(&mut self, path: &Path, failure: Failure, def: &StepDef) -> Decided {
        let step = self.must_row(path)?;
        let (attempt, losses) = (step.attempt.max(1), step.losses.len());
        if losses >= 2 {
            let message = format!("{losses} workers were lost on this input; it may be what kills them.");
            let block = Block::operator(ReasonType::PoisonInput, message, self.now);
            return self.tell_of(path, Fact::StepBlocked { block: Box::new(block), failure: Some(Box::new(failure)) });
        }
        if attempt >= self.attempts(path, &def.retry)? {
            return self.fail_step(path, Failure { kind: FailureKind::WorkerCrash, ..failure }, false);
        }
        self.issue_again(path, attempt + 1, None)
    }

    /// Rests in `stalled`: the row says already that its lease was lost.
    fn hold(&mut self, path: &Path, failure: Failure) -> Decided {
        let step = self.must_row(path)?;
        if step.block.as_ref().is_some_and(|block| matches!(block.wait, Wait::Lost { .. })) {
            return Ok(());
        }
        self.ask(path, failure)
    }

    /// Asks an operator, with everything that is known.
    pub(super) fn ask(&mut self, path: &Path, failure: Failure) -> Decided {
        let (reason, recommended) = match failure.class {
            FailureClass::Validation => (ReasonType::CorrectionRequired, "correct"),
            FailureClass::Permission => (ReasonType::PermissionDenied, "retry"),
            FailureClass::Conflict => (ReasonType::PreconditionFailed, "retry"),
            FailureClass::OutcomeUnknown | FailureClass::Lost => (ReasonType::OutcomeUnknown, "complete"),
            FailureClass::Transient | FailureClass::RateLimited | FailureClass::Auth | FailureClass::Fatal => {
                (ReasonType::OperatorAsked, "retry")
            }
        };
        let fields = match reason == ReasonType::CorrectionRequired {
            true => vec![FieldFault { pointer: String::new(), detail: failure.message.clone() }],
            false => Vec::new(),
        };
        let wait = Wait::Operator { reason, recommended: Some(recommended.into()), fields };
        let block = Block::new(wait, sentence(&failure.message), self.now);
        self.tell_of(path, Fact::StepBlocked { block: Box::new(block), failure: Some(Box::new(failure)) })
    }

    pub(super) fn ask_about_precondition(&mut self, path: &Path, requires: &str) -> Decided {
        let attempt = self.must_row(path)?.attempt;
        let message = format!("requires does not hold: {requires}");
        let failure = self.failure(path, FailureClass::Conflict, message, attempt).coded("requires");
        let def = self.spec(self.must_row(path)?);
        match def.policy(FailureClass::Conflict) == Policy::ReEvaluate {
            // Evaluated a moment ago: asking is all that is left.
            true => self.ask(path, failure),
            false => self.recover(path, failure, None),
        }
    }

    fn wait_for_auth(&mut self, path: &Path, failure: &Failure, fault: Option<&Fault>, def: &StepDef) -> Decided {
        let connection = self.connection_for(path, fault, def)?;
        self.block_on_auth(path, connection, &failure.message, TaskKind::Step)
    }

    /// The connection that a failure is about: what the worker named, what the document declares, or the handler itself.
    pub(super) fn connection_for(&self, path: &Path, fault: Option<&Fault>, def: &StepDef) -> Decided<Connection> {
        if let Some(tool) = fault.and_then(|fault| fault.tool.clone()) {
            let account = fault.and_then(|fault| fault.account.clone()).unwrap_or_else(|| "default".into());
            return Ok(Connection { tool, account });
        }
        let declared = self.declared_connection(def, &Here::of(self.must_row(path)?, def))?;
        let of_handler = || Connection { tool: handler_of(def, path), account: "default".into() };
        Ok(declared.and_then(Result::ok).unwrap_or_else(of_handler))
    }

    /// The world was not as required: look again, and retry with fresh input if it is now.
    fn re_evaluate(&mut self, path: &Path, failure: Failure, def: &StepDef) -> Decided {
        let step = self.must_row(path)?;
        let (attempt, here) = (step.attempt.max(1), Here::of(step, def));
        let Some(requires) = &def.requires else { return self.ask(path, failure) };
        if attempt >= self.attempts(path, &def.retry)? || !matches!(self.test(requires, &here)?, Ok(true)) {
            return self.ask(path, failure);
        }
        if let Action::Task { with: Some(with), .. } = &def.action {
            let json = match self.render(with, &here)? {
                Ok(json) => json,
                Err(error) => return self.ask(path, self.not_evaluated(path, &error, attempt)),
            };
            let input = self.store_input(path, json.into());
            self.tell_of(path, Fact::StepReset(Reset { input: Some(input), ..Reset::default() }))?;
        }
        self.issue_again(path, attempt + 1, None)
    }

    /// Finds out first whether the effect happened.
    pub(super) fn reconcile(&mut self, path: &Path, failure: Failure, def: &StepDef) -> Decided {
        if self.complete_from_late(path, def.reconcile.is_none())? {
            return Ok(());
        }
        if let Some(at) = self.late_denial(self.must_row(path)?) {
            return self.denied_late(path, failure, at, def);
        }
        if def.reconcile.is_none() {
            return self.ask(path, failure);
        }
        self.issue_probe(path)
    }

    /// Its worker said, too late, that it failed and that nothing happened: what a probe would find is known.
    fn denied_late(&mut self, path: &Path, failure: Failure, at: Timestamp, def: &StepDef) -> Decided {
        let why = format!("its worker said at {at}, after its lease was over, that it failed and nothing happened");
        self.tell_of(path, Fact::StepReconciled { verdict: "absent".into(), why, external_id: None })?;
        self.absent(path, failure, def)
    }

    /// The effect did not happen: the step is tried again while it may be.
    fn absent(&mut self, path: &Path, failure: Failure, def: &StepDef) -> Decided {
        let step = self.must_row(path)?;
        let attempt = step.attempt.max(1);
        if step.untried {
            return self.issue_again(path, attempt, None);
        }
        if attempt < self.attempts(path, &def.retry)? {
            return self.issue_again(path, attempt + 1, None);
        }
        // The failure is final, and nothing is unknown about it.
        self.fail_step(path, Failure { class: FailureClass::Transient, ..failure }, false)
    }

    /// Until when somebody whose lease was taken away may still cause the effect: an answer before that proves nothing.
    fn old_worker_may_act_until(&self, step: &Step) -> Decided<Option<Timestamp>> {
        // A step of a coded body is executed under the lease of the body.
        let of_body = match step.place.role {
            Role::Coded => self.row(&Path::from(BODY))?.and_then(|body| body.lease_until),
            Role::Plain | Role::Fan | Role::Loop | Role::Body => None,
        };
        Ok(step.lease_until.max(of_body).filter(|until| *until > self.now))
    }

    /// Looks whether the effect happened, as soon as that can be known.
    pub(super) fn issue_probe(&mut self, path: &Path) -> Decided {
        self.issue_probe_for(path, None)
    }

    pub(super) fn issue_probe_for(&mut self, path: &Path, generation: Option<u64>) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        let undo = step.state == StepState::Compensating;
        let Some(probe) = probe_of(step, &def).cloned() else { return Ok(()) };
        if let Some(until) = self.old_worker_may_act_until(step)? {
            let why = step.failure.as_ref().map(|failure| sentence(&failure.message) + " ").unwrap_or_default();
            let message = format!("{why}The probe waits until {until}, so that the old worker has stopped.");
            return self.rest(path, Block::new(Wait::Probe, message, self.now).until(Some(until)));
        }
        if self.run.head.is_held() {
            let message = "The probe waits for the run to be resumed.";
            return self.rest(path, Block::new(Wait::Probe, message, self.now).until(Some(self.now)));
        }
        let step = self.must_row(path)?;
        let here = Here { failure: step.failure.clone(), ..Here::of(step, &def) };
        let attempt = step.probe_attempt + 1;
        let task_path = if undo { path.undo().probe() } else { path.probe() };
        let with = match probe.with.as_ref().map(|with| self.render(with, &here)).transpose()? {
            Some(Err(error)) => {
                let why = json_text(&error.to_string());
                return self.probed(path, Some(&format!("{{\"found\":null,\"why\":{why}}}")));
            }
            Some(Ok(json)) => Some(json),
            None => None,
        };
        let input = self.side_input(path, &task_path, with)?;
        let task = self.task(TaskKind::Reconcile, probe.handler, probe.queue, input, probe.timeout, None);
        let issued = Fact::TaskIssued { task: Box::new(task), attempt, place: None, deadline_at: None, generation };
        self.offer(&task_path, issued)
    }

    /// What probes and undos get: the step's input, its receipts and resources, its failure and output.
    pub(super) fn side_input(&mut self, path: &Path, task_path: &Path, with: Option<String>) -> Decided<Ref> {
        let step = self.must_row(path)?;
        let named = |reference: &Option<Ref>| -> Decided<String> {
            match reference {
                Some(reference) => Ok(self.payload(&reference.name)?.to_owned()),
                None => Ok("null".to_owned()),
            }
        };
        let mut receipts = Vec::new();
        let all = step.receipt.iter().map(|receipt| (None, receipt));
        let all = all.chain(step.effects.iter().filter_map(|e| Some((Some(&e.name), e.receipt.as_ref()?))));
        for (name, receipt) in all {
            let external_id = receipt.external_id.as_deref().map(|id| self.revealed(id).into_owned());
            let receipt = Receipt { external_id, ..receipt.clone() };
            receipts.push(receipt_json(name, &receipt, &named(&receipt.result)?));
        }
        let revealed = |resource: &Resource| Resource {
            id: self.revealed(&resource.id).into_owned(),
            url: resource.url.as_deref().map(|url| self.revealed(url).into_owned()),
            kind: resource.kind.clone(),
        };
        let resources: Vec<Resource> = step.resources.iter().map(revealed).collect();
        let resources = serde_json::to_string(&resources).unwrap_or_else(|_| "[]".into());
        let failure = serde_json::to_string(&step.failure).unwrap_or_else(|_| "null".into());
        let json = format!(
            "{{\"input\":{},\"receipts\":[{}],\"resources\":{resources},\"failure\":{failure},\"output\":{}{}}}",
            named(&step.input)?,
            receipts.join(","),
            named(&step.output)?,
            with.map(|with| format!(",\"with\":{with}")).unwrap_or_default(),
        );
        let name = self.numbered(task_path, "input");
        Ok(self.store(name, json.into()))
    }

    /// What a probe found.
    pub(super) fn probed(&mut self, path: &Path, answer: Option<&str>) -> Decided {
        let verdict = self.verdict(answer);
        let (name, why) = verdict.told();
        let probe = self.path_of_task(path, TaskKind::Reconcile)?;
        let external_id = verdict.external_id().cloned();
        self.tell_of(&probe, Fact::StepReconciled { verdict: name.into(), why, external_id })?;
        self.keep_found_id(path, &verdict)?;
        let step = self.must_row(path)?;
        if step.state == StepState::Compensating {
            return self.undo_probed(path, verdict);
        }
        // What the worker itself said proves more than a probe that found nothing, or half.
        let nothing = matches!(verdict, Verdict::Absent | Verdict::Unclear { .. });
        if !matches!(verdict, Verdict::Found { .. }) && self.complete_from_late(path, nothing)? {
            return Ok(());
        }
        let step = self.must_row(path)?;
        if matches!(self.run.head.phase, Phase::Compensating { .. }) {
            return self.unknown_probed(path, verdict);
        }
        let (def, attempt) = (self.spec(step), step.attempt.max(1));
        let failure = step
            .failure
            .clone()
            .unwrap_or_else(|| self.failure(path, FailureClass::OutcomeUnknown, "its outcome was not known", attempt));
        if self.should_stop(step) {
            return match verdict {
                Verdict::Found { output, .. } => self.complete_step(path, output, ProofBy::Reconcile),
                Verdict::Absent | Verdict::Abort { .. } => {
                    self.end_unwanted(path, Failure { class: FailureClass::Transient, ..failure }, &def)
                }
                Verdict::Partial { .. } | Verdict::Unclear { .. } => self.end_unwanted(path, failure, &def),
            };
        }
        match verdict {
            Verdict::Found { output, .. } => self.complete_step(path, output, ProofBy::Reconcile),
            Verdict::Absent => self.absent(path, failure, &def),
            Verdict::Partial { .. } if step.untried => self.issue_again(path, attempt, None),
            Verdict::Partial { .. } if attempt >= self.attempts(path, &def.retry)? => self.ask(path, failure),
            Verdict::Partial { .. } => self.issue_again(path, attempt + 1, None),
            Verdict::Abort { reason } => {
                let failure = self.failure(path, FailureClass::Fatal, reason, attempt).coded("reconcile_abort");
                self.fail_step(path, failure, false)
            }
            Verdict::Unclear { why } => {
                let class = FailureClass::OutcomeUnknown;
                let message = format!("{} The probe could not tell: {why}", sentence(&failure.message));
                self.ask(path, Failure { class, message, ..failure })
            }
        }
    }

    /// The verdict of a probe, without sensitive values.
    fn verdict(&self, answer: Option<&str>) -> Verdict {
        let marked = |id: Option<String>| id.map(|id| self.marked(&id).into_owned());
        match Verdict::read(answer) {
            Verdict::Found { output, external_id } => Verdict::Found { output, external_id: marked(external_id) },
            Verdict::Partial { external_id } => Verdict::Partial { external_id: marked(external_id) },
            Verdict::Absent => Verdict::Absent,
            Verdict::Abort { reason } => Verdict::Abort { reason: self.masked(reason).into_owned() },
            Verdict::Unclear { why } => Verdict::Unclear { why: self.masked(why).into_owned() },
        }
    }

    /// The id under which the outside world knows the effect is a receipt: readers see it and the undo gets it.
    fn keep_found_id(&mut self, path: &Path, verdict: &Verdict) -> Decided {
        let Some(external_id) = verdict.external_id() else { return Ok(()) };
        let step = self.must_row(path)?;
        let undo = step.state == StepState::Compensating;
        // The ledger of an undo is kept under names of its own.
        let name = undo.then(|| String::from("undo:"));
        let known = match &name {
            Some(name) => step.effects.iter().find(|effect| effect.name == *name).and_then(|e| e.receipt.as_ref()),
            None => step.receipt.as_ref(),
        };
        if known.is_some_and(|receipt| receipt.external_id.as_ref() == Some(external_id)) {
            return Ok(());
        }
        let result = known.and_then(|receipt| receipt.result.clone());
        let receipt = Receipt { external_id: Some(external_id.clone()), result, at: self.now };
        self.tell_of(path, Fact::EffectReceived { name, receipt })
    }

    /// A probe that fails is tried again when that may help; otherwise nobody can tell.
    pub(super) fn probe_failed(&mut self, path: &Path, failure: Failure, fault: &Fault) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        if self.should_stop(step) {
            return self.probed(path, None);
        }
        let policy = probe_of(step, &def).map_or_else(RetryPolicy::default, |probe| probe.retry);
        let again = matches!(failure.class, FailureClass::Transient | FailureClass::RateLimited | FailureClass::Lost);
        if failure.class == FailureClass::Auth {
            let connection = self.connection_for(path, Some(fault), &def)?;
            return self.block_on_auth(path, connection, &failure.message, TaskKind::Reconcile);
        }
        if again && step.probe_attempt < policy.max_attempts {
            if failure.class == FailureClass::Lost {
                return self.issue_probe(path);
            }
            let pause = fault.retry_after.unwrap_or_else(|| back_off(&policy, step.probe_attempt, self.jitter()));
            let until = self.now + pause;
            let message = format!("{} The probe is tried again at {until}.", sentence(&failure.message));
            let block = Block::new(Wait::Probe, message, self.now).until(Some(until));
            return self.rest(path, block);
        }
        let why = json_text(&failure.message);
        self.probed(path, Some(&format!("{{\"found\":null,\"why\":{why}}}")))
    }
}

/// What finds out whether the effect of a step happened, or that of the undo which is under way.
fn probe_of<'d>(step: &Step, def: &'d StepDef) -> Option<&'d SubTask> {
    match (step.state, &def.compensate) {
        (StepState::Compensating, Some(undo)) => undo.reconcile.as_deref(),
        _ => def.reconcile.as_ref(),
    }
}

/// What a probe can say.
pub(super) enum Verdict {
    Found { output: Option<Json>, external_id: Option<String> },
    Absent,
    Partial { external_id: Option<String> },
    Abort { reason: String },
    Unclear { why: String },
}

impl Verdict {
    fn read(answer: Option<&str>) -> Verdict {
        #[derive(serde::Deserialize)]
        struct Answer {
            found: Option<serde_json::Value>,
            #[serde(default)]
            output: Option<Box<serde_json::value::RawValue>>,
            #[serde(default)]
            external_id: Option<String>,
            #[serde(default)]
            abort: Option<String>,
            #[serde(default)]
            why: Option<String>,
        }
        let Some(answer) = answer.and_then(|answer| serde_json::from_str::<Answer>(answer).ok()) else {
            return Verdict::Unclear { why: "its answer was not {found: true|false|\"partial\"|null, …}".into() };
        };
        if let Some(reason) = answer.abort {
            return Verdict::Abort { reason };
        }
        match answer.found {
            Some(serde_json::Value::Bool(true)) => {
                let output = answer.output.map(|output| Json::from(output.get()));
                Verdict::Found { output, external_id: answer.external_id }
            }
            Some(serde_json::Value::Bool(false)) => Verdict::Absent,
            Some(serde_json::Value::String(text)) if text == "partial" => {
                Verdict::Partial { external_id: answer.external_id }
            }
            _ => Verdict::Unclear { why: answer.why.unwrap_or_else(|| "it does not know".into()) },
        }
    }

    /// Under which id the outside world knows what was found.
    fn external_id(&self) -> Option<&String> {
        match self {
            Verdict::Found { external_id, .. } | Verdict::Partial { external_id } => external_id.as_ref(),
            Verdict::Absent | Verdict::Abort { .. } | Verdict::Unclear { .. } => None,
        }
    }

    fn told(&self) -> (&'static str, String) {
        match self {
            Verdict::Found { .. } => ("found", "the effect happened; nothing is called again".into()),
            Verdict::Absent => ("absent", "the effect did not happen; the step may be tried again".into()),
            Verdict::Partial { external_id } => {
                ("partial", format!("half of it happened ({})", external_id.as_deref().unwrap_or("without an id")))
            }
            Verdict::Abort { reason } => ("abort", reason.clone()),
            Verdict::Unclear { why } => ("unclear", why.clone()),
        }
    }
}

/// Grows by its factor up to its maximum; jitter only shortens it, so that the maximum holds.
pub(super) fn back_off(policy: &RetryPolicy, attempt: u32, jitter: f64) -> Span {
    let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = policy.first.scaled(policy.factor.powi(exponent).min(1e12)).min(policy.max);
    grown.scaled(1.0 - policy.jitter * jitter)
}

pub(super) fn connection_of(text: &str) -> Connection {
    let (tool, account) = text.split_once('/').unwrap_or((text, "default"));
    Connection { tool: tool.into(), account: if account.is_empty() { "default" } else { account }.into() }
}

fn handler_of(def: &StepDef, path: &Path) -> String {
    match def.action.performer() {
        Performer::Worker(handler) => handler.to_string(),
        Performer::Push | Performer::Clock | Performer::Answer => path.to_string(),
    }
}

/// A message as a sentence, so that another can follow it.
pub(crate) fn sentence(message: &str) -> String {
    let message = message.trim_end();
    if message.ends_with(['.', '!', '?']) { message.to_owned() } else { format!("{message}.") }
}

fn receipt_json(name: Option<&String>, receipt: &Receipt, result: &str) -> String {
    let text = |text: Option<&String>| text.map_or_else(|| "null".to_owned(), |text| json_text(text));
    format!(
        "{{\"name\":{},\"external_id\":{},\"result\":{result},\"at\":\"{}\"}}",
        text(name),
        text(receipt.external_id.as_ref()),
        receipt.at
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_grows_to_its_maximum_and_jitter_only_shortens_it() {
        let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
        let pauses: Vec<u64> = (1..=8).map(|attempt| back_off(&policy, attempt, 0.9).millis()).collect();
        assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        let jittered = back_off(&RetryPolicy::default(), 7, 0.5);
        assert_eq!(jittered.millis(), 54_000);
        assert_eq!(back_off(&policy, u32::MAX, 1.0), policy.max);
    }
}
