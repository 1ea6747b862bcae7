//! Coded workflows: the body is a function in a worker; its steps are memoised by name, never by position.

use std::collections::BTreeMap;

use crate::contract::{Failure, FailureClass, Policy, ReasonType, StepState};
use crate::definition::{Action, Body, Definition, EffectKind, OnFailure, StepDef, SubTask};
use crate::ids::{Handler, Path};
use crate::run::Phase;
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Ask, CodedWait, Fault, Holding, Next, Rejection, Reply, StepBegin, StepDone, StepWait};
use crate::run::event::{Fact, Reset};
use crate::run::step::{Block, CodedStep, Connection, Place, ProofBy, Role, Step, TaskKind, Wait};
use crate::time::Span;

use super::said::digest_of;

/// The path of the body itself; no step may have this name.
pub const BODY: &str = "body";
/// The kind of a coded step that executes code.
pub const STEP: &str = "step";

/// The kind of a coded step that asks for an approval.
pub(super) const APPROVAL: &str = "approval";

/// What stands for the declared step where there is none.
pub(in crate::run) fn spec_of(def: &Definition, step: &Step) -> StepDef {
    let coded = step.coded.as_deref();
    let side = |handler: &Handler| SubTask {
        handler: handler.clone(),
        with: None,
        timeout: None,
        retry: def.defaults.retry,
        queue: def.defaults.queue.clone(),
        effect: EffectKind::Idempotent,
        reconcile: None,
    };
    let revision = match &def.body {
        Body::Coded { revision } => revision.as_str(),
        Body::Steps(_) => "",
    };
    StepDef {
        id: step.path.to_string(),
        title: None,
        finally: false,
        after: Vec::new(),
        before: Vec::new(),
        action: Action::Task { handler: Handler::new(format!("{}@{revision}", def.workflow)), with: None },
        when: None,
        requires: None,
        verify: None,
        output_schema: None,
        for_each: None,
        repeat: None,
        effect: coded.map_or(EffectKind::None, |coded| coded.effect),
        reconcile: coded.and_then(|coded| coded.reconcile.as_ref()).map(side),
        compensate: coded.and_then(|coded| coded.compensate.as_ref()).map(side),
        connection: None,
        queue: def.defaults.queue.clone(),
        timeout: None,
        lease: def.defaults.lease,
        deadline: None,
        at_deadline: coded.and_then(|coded| coded.at_deadline.clone()),
        retry: coded.and_then(|coded| coded.retry).unwrap_or(def.defaults.retry),
        recovery: if coded.is_some() { def.defaults.recovery.clone() } else { BTreeMap::new() },
        on_failure: OnFailure::Fail,
        on_result: Vec::new(),
    }
}

impl Draft<'_> {
    pub(super) fn open_body(&mut self) -> Decided {
        let place = Place { index: None, parent: None, number: None, role: Role::Body, visit: 1 };
        let input = self.run.head.started.input.clone();
        let def = spec_of(self.def, &Step::new(Path::from(BODY), place.clone(), self.now));
        let Some(handler) = def.action.performer().handler() else { return Ok(()) };
        let queue = self.run.head.started.queue.clone().unwrap_or(def.queue);
        let task = self.task(TaskKind::Body, handler, queue, input, None, def.lease);
        let place = Some(place);
        self.offer(
            &Path::from(BODY),
            Fact::TaskIssued { task: Box::new(task), attempt: 1, place, deadline_at: None, generation: None },
        )
    }

    pub(super) fn failed_body(&self) -> Decided<Option<Failure>> {
        if self.run.head.body.is_none() {
            return Ok(None);
        }
        let body = self.row(&Path::from(BODY))?;
        Ok(body.filter(|body| body.state == StepState::Failed).and_then(|body| body.failure.clone()))
    }

    pub(super) fn is_coded_body_done(&self) -> bool {
        self.run.step(BODY).is_some_and(|body| body.state == StepState::Completed)
    }

    pub(super) fn coded_output(&self) -> Decided<Option<String>> {
        match (&self.def.body, self.run.step(BODY).and_then(|body| body.output.as_ref())) {
            (Body::Coded { .. }, Some(output)) => Ok(Some(self.payload(&output.name)?.to_owned())),
            _ => Ok(None),
        }
    }

    /// The body waited for something that has happened: it is issued again.
    pub(super) fn resume_body(&mut self) -> Decided {
        let path = Path::from(BODY);
        match self.run.step(BODY) {
            Some(body) if body.state == StepState::Pending && body.task.is_none() => {
                let attempt = body.attempt;
                self.issue_again(&path, attempt, None)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn coded_step_ended(&mut self, path: &Path) -> Decided {
        match self.run.step(path.as_str()).map(|step| step.place.role) {
            Some(Role::Coded) if matches!(self.run.head.phase, Phase::Forward) => self.resume_body(),
            // While the run ends, what is still leased may end by itself first.
            Some(Role::Body) if matches!(self.run.head.phase, Phase::Forward) => self.end_open_coded_steps(),
            _ => Ok(()),
        }
    }

    fn end_open_coded_steps(&mut self) -> Decided {
        let open: Vec<Path> = self
            .run
            .open()
            .filter(|step| step.place.role == Role::Coded && !step.state.is_ended())
            .map(|step| step.path.clone())
            .collect();
        for path in open {
            let unknown = self.is_unknown(self.must_row(&path)?);
            self.take_away(&path, "its body ended")?;
            self.cancel_step(&path, "its body ended", unknown)?;
            self.let_go_of_child(&path);
        }
        Ok(())
    }

    /// Whether steps with a stored result were not asked for by this lease of the body.
    pub(super) fn has_body_changed(&self) -> Decided<bool> {
        let coded = &self.run.head.coded;
        let parallel = self.run.open().any(|step| {
            step.place.role == Role::Coded
                && step.state == StepState::Running
                && step.coded.as_ref().is_some_and(|c| c.epoch == coded.epoch)
        });
        Ok(coded.asked < coded.stored && !parallel)
    }

    /// The body does not match what it did before: a person has to look.
    pub(super) fn body_changed(
        &mut self,
        path: &Path,
        task_path: &Path,
        difference: &str,
        ask: &Ask,
    ) -> Decided<Reply> {
        let epoch = self.run.head.coded.epoch;
        let digest = digest_of(ask).unwrap_or_default();
        self.tell_of(task_path, Fact::TaskBlocked { epoch, digest })?;
        let message = format!("The body changed: {difference}.");
        self.rest(path, Block::operator(ReasonType::BodyChanged, message, self.now))?;
        Ok(Reply::Body { next: Next::Released, waits: Vec::new() })
    }

    /// One round trip of a body: what is done, what begins, what it waits for.
    pub(super) fn steps(&mut self, holding: &Holding, ask: &Ask) -> Decided<Reply> {
        let Ask::Steps { done, begin, wait, busy, beside, .. } = ask else { return Ok(Reply::Replayed) };
        self.check_names(begin, wait)?;
        let mut waits = Vec::new();
        for done in done {
            if let Some(pause) = self.coded_done(done, holding)? {
                waits.push((done.step_id.clone(), pause));
            }
        }
        if self.should_stop(self.must_row(&holding.path)?) {
            return Ok(Reply::Body { next: Next::Canceled, waits });
        }
        if let Some(difference) = self.recall_all(holding, begin, wait)? {
            return self.body_changed(&holding.path.clone(), &holding.path, &difference, ask);
        }
        // Branches come back in any order, until all of them wait.
        let in_any_order = *beside && (*busy || !begin.is_empty());
        let new = begin.iter().map(|begin| &begin.step_id).chain(wait.iter().map(|wait| &wait.step_id));
        let new = new.into_iter().find(|path| self.run.step(path.as_str()).is_none());
        if let Some(new) = new.filter(|_| !in_any_order)
            && self.has_body_changed()?
        {
            let missing = self.run.head.coded.stored.saturating_sub(self.run.head.coded.asked);
            let difference = format!("it begins {new} without asking for {missing} of the steps it once completed");
            return self.body_changed(&holding.path.clone(), &holding.path, &difference, ask);
        }
        let mut goes_on = *busy || done.iter().any(|done| done.result.is_err()) && !waits.is_empty();
        // While the run is held nothing begins, but what executes may end.
        if !self.run.head.is_held() && !self.run.head.history_full {
            for begin in begin {
                goes_on |= self.coded_begin(begin, holding)?;
            }
            for wait in wait {
                self.coded_wait(wait, holding)?;
            }
            goes_on |= match (begin.as_slice(), wait.as_slice()) {
                ([], []) => !self.has_open_block(done, &waits),
                _ => self.has_news(holding, begin, wait)?,
            };
        }
        if goes_on {
            return Ok(Reply::Body { next: Next::Continue, waits });
        }
        self.release_body(holding, ask)?;
        Ok(Reply::Body { next: Next::Released, waits })
    }

    /// Whether a step that was reported waits for something that takes longer than a pause.
    fn has_open_block(&self, done: &[StepDone], waits: &[(Path, Span)]) -> bool {
        self.run.open().any(|step| {
            step.place.role == Role::Coded
                && step.block.is_some()
                && done.iter().any(|done| done.step_id == step.path)
                && !waits.iter().any(|(path, _)| *path == step.path)
        })
    }

    /// Whether the body can go on with what it asks for: all of it has ended, or some of it since the body was claimed.
    /// What had ended before came with the claim, and an open wait does not hold an answered one back.
    fn has_news(&self, holding: &Holding, begin: &[StepBegin], wait: &[StepWait]) -> Decided<bool> {
        let claimed_at = self.must_row(&holding.path)?.lease().map(|lease| lease.granted_at);
        let asked = begin.iter().map(|begin| &begin.step_id).chain(wait.iter().map(|wait| &wait.step_id));
        let ended = |path: &Path| self.run.step(path.as_str()).filter(|step| step.state.is_ended());
        let is_new = |path: &Path| ended(path).is_some_and(|step| step.ended_at >= claimed_at);
        Ok(asked.clone().all(|path| ended(path).is_some()) || asked.clone().any(is_new))
    }

    fn check_names(&self, begin: &[StepBegin], wait: &[StepWait]) -> Decided {
        let mut names: Vec<&Path> =
            begin.iter().map(|begin| &begin.step_id).chain(wait.iter().map(|wait| &wait.step_id)).collect();
        names.sort();
        for pair in names.windows(2) {
            if pair[0] == pair[1] {
                return Err(Rejection::DuplicateStep(pair[0].clone()).into());
            }
        }
        match names.iter().find(|name| name.as_str() == BODY || !is_coded_name(name.as_str())) {
            Some(name) => Err(Rejection::Invalid(vec![crate::run::step::FieldFault {
                pointer: "/step_id".into(),
                detail: format!("{name} cannot be the id of a step"),
            }])
            .into()),
            None => Ok(()),
        }
    }

    /// The lease goes back; the body is issued again when one of its waits is over.
    fn release_body(&mut self, holding: &Holding, ask: &Ask) -> Decided {
        let digest = digest_of(ask).unwrap_or_default();
        self.tell_of(&holding.path, Fact::TaskBlocked { epoch: holding.epoch, digest })?;
        self.tell_of(&holding.path, Fact::StepReset(Reset::default()))
    }

    /// Asks for everything that is stored; a difference means that the body is another one.
    fn recall_all(&mut self, holding: &Holding, begin: &[StepBegin], wait: &[StepWait]) -> Decided<Option<String>> {
        let mut recalled = Vec::new();
        let asked = begin.iter().map(|begin| (&begin.step_id, STEP, begin.input_digest.as_ref()));
        let asked = asked.chain(wait.iter().map(|wait| (&wait.step_id, wait.on.kind(), None)));
        for (path, kind, digest) in asked {
            let Some(step) = self.row(path)? else { continue };
            let Some(coded) = &step.coded else { continue };
            if coded.kind != kind {
                return Ok(Some(format!("{path} was a {} and is a {kind} now", coded.kind)));
            }
            if let (Some(before), Some(now)) = (&coded.input_digest, digest)
                && before != now
            {
                return Ok(Some(format!("{path} had another input before")));
            }
            if step.state == StepState::Completed && coded.asked != holding.epoch {
                recalled.push(path.clone());
            }
        }
        if !recalled.is_empty() {
            self.tell_of(&holding.path, Fact::BodyRecalled { steps: recalled.clone(), epoch: holding.epoch })?;
            for path in &recalled {
                self.mark_changed(path);
            }
        }
        Ok(None)
    }

    /// A step of the body ended. When it should be tried again, the body is told when.
    fn coded_done(&mut self, done: &StepDone, holding: &Holding) -> Decided<Option<Span>> {
        let path = &done.step_id;
        let step = self.row(path)?.ok_or_else(|| Rejection::NotBegun(path.clone()))?;
        let mine = step.coded.as_ref().is_some_and(|coded| coded.epoch == holding.epoch && coded.kind == STEP);
        if step.state.is_ended() && mine {
            return Ok(None);
        }
        let stale = done.begun_at.is_some_and(|at| at != step.since);
        if mine && (stale || step.state != StepState::Running) {
            // It was reported before and is not begun again yet: the answer to that was lost.
            return self.pause_left(path);
        }
        if !mine {
            return Err(Rejection::NotBegun(path.clone()).into());
        }
        match &done.result {
            Ok(report) => {
                if let Some(output) = &report.output {
                    self.check_size("the output", output)?;
                    self.check_json("output", output)?;
                }
                for warning in &report.warnings {
                    self.warn("reported", warning.as_str(), Some(path.clone()))?;
                }
                self.complete_with(path, report.output.clone(), ProofBy::Worker, report.resources.clone())?;
                Ok(None)
            }
            Err(fault) => self.coded_failed(path, fault),
        }
    }

    /// How long a body has to wait before it begins a step again.
    pub(super) fn pause_left(&self, path: &Path) -> Decided<Option<Span>> {
        let block = self.row(path)?.and_then(|step| step.block.as_ref());
        let retry = block.filter(|block| matches!(block.wait, Wait::Retry { .. }));
        Ok(retry.map(|block| block.until.unwrap_or(self.now).since(self.now)))
    }

    fn coded_failed(&mut self, path: &Path, fault: &Fault) -> Decided<Option<Span>> {
        let step = self.must_row(path)?;
        let (def, attempt) = (self.spec(step), step.attempt);
        let unknown = def.effect == EffectKind::External;
        let class = fault.class.unwrap_or(if unknown { FailureClass::OutcomeUnknown } else { FailureClass::Transient });
        let failure = Failure {
            code: fault.code.clone(),
            details: fault.details.clone(),
            ..self.failure(path, class, fault.message.clone(), attempt)
        };
        let retries = def.policy(class) == Policy::Retry && attempt < def.retry.max_attempts + step.granted;
        match def.policy(class) {
            Policy::Retry if retries => {
                self.retry_later(path, failure, fault.retry_after)?;
                self.pause_left(path)
            }
            // The body catches it, or fails with it.
            Policy::Retry | Policy::Fail | Policy::Warn | Policy::Compensate => {
                self.tell_failed(path, failure, true)?;
                Ok(None)
            }
            Policy::Reconcile | Policy::Ask | Policy::Hold | Policy::WaitOnAuth | Policy::ReEvaluate => {
                self.recover(path, failure, Some(fault))?;
                Ok(None)
            }
        }
    }

    /// Begins a step, or says that it cannot begin now. True when the body has something to execute.
    fn coded_begin(&mut self, begin: &StepBegin, holding: &Holding) -> Decided<bool> {
        let path = &begin.step_id;
        let declared = CodedStep {
            effect: begin.effect,
            reconcile: begin.reconcile.clone(),
            compensate: begin.compensate.clone(),
            timeout: begin.timeout,
            retry: begin.retry,
            input_digest: begin.input_digest.clone(),
            kind: STEP.into(),
            at_deadline: None,
            epoch: holding.epoch,
            asked: holding.epoch,
        };
        let Some(step) = self.row(path)? else {
            self.enter_coded(path, declared)?;
            let Some(intent) = self.intent_for(path) else { return Ok(true) };
            let unknown = intent.unknown;
            self.resume_effect(path, intent, None)?;
            return Ok(!unknown);
        };
        let mine = step.coded.as_ref().is_some_and(|coded| coded.epoch == holding.epoch);
        match step.state {
            StepState::Running if mine => Ok(true),
            // An earlier lease of the body began it and was lost: look first where repeating is not safe.
            StepState::Running if self.is_unknown(step) => {
                let attempt = step.attempt;
                let message = "its body was lost while it was under way";
                let failure = self.failure(path, FailureClass::OutcomeUnknown, message, attempt).coded("lease_lost");
                self.recover(path, failure, None)?;
                Ok(false)
            }
            StepState::Running | StepState::Pending | StepState::RetryScheduled => {
                self.enter_coded(path, declared)?;
                Ok(true)
            }
            StepState::Issued
            | StepState::Waiting
            | StepState::Reconciling
            | StepState::Stalled
            | StepState::Completed
            | StepState::Failed
            | StepState::Skipped
            | StepState::CaseHandled
            | StepState::Canceled
            | StepState::Compensating
            | StepState::Compensated
            | StepState::UndoFailed => Ok(false),
        }
    }

    fn enter_coded(&mut self, path: &Path, coded: CodedStep) -> Decided {
        let place = Place { index: None, parent: None, number: None, role: Role::Coded, visit: 1 };
        let coded = Some(Box::new(coded));
        self.tell_of(path, Fact::StepEntered { place, group: None, coded, deadline_at: None })
    }

    fn coded_wait(&mut self, wait: &StepWait, holding: &Holding) -> Decided {
        let path = &wait.step_id;
        if self.row(path)?.is_some_and(|step| step.state != StepState::Pending) {
            return Ok(());
        }
        let coded = CodedStep {
            effect: EffectKind::None,
            reconcile: None,
            compensate: None,
            timeout: None,
            retry: None,
            input_digest: None,
            kind: wait.on.kind().into(),
            at_deadline: match &wait.on {
                CodedWait::Signal { at_deadline, .. } | CodedWait::Child { at_deadline, .. } => at_deadline.clone(),
                CodedWait::Approval(_) | CodedWait::Sleep { .. } | CodedWait::Auth { .. } => None,
            },
            epoch: holding.epoch,
            asked: holding.epoch,
        };
        self.enter_coded(path, coded)?;
        match &wait.on {
            CodedWait::Approval(asked) => self.ask_for_approval(path, asked, false),
            CodedWait::Signal { names, mode, deadline, .. } => {
                self.wait_for_signals(path, names.clone(), *mode, *deadline)
            }
            CodedWait::Sleep { until } => {
                let block = Block::new(Wait::Timer, format!("Sleeps until {until}."), self.now).until(Some(*until));
                self.rest(path, block)
            }
            CodedWait::Child { workflow, version, input, wait, on_cancel, deadline, .. } => {
                self.check_size("the input", input)?;
                self.check_json("input", input)?;
                let name = self.numbered(path, "child_input");
                let input = self.store(name, input.clone());
                if *wait {
                    self.launch_child(path, workflow, *version, input, *on_cancel, *deadline)
                } else {
                    self.detach_child(path, workflow, *version, input, *on_cancel)
                }
            }
            CodedWait::Auth { tool, account } => {
                let account = account.clone().unwrap_or_else(|| "default".into());
                let connection = Connection { tool: tool.clone(), account };
                let message = format!("Reconnect {tool} to continue.");
                self.block_on_auth(path, connection, &message, TaskKind::Step)
            }
        }
    }
}

/// Ids of steps, and of repeated ones (`search.2`).
fn is_coded_name(name: &str) -> bool {
    let (base, number) = name.split_once('.').unwrap_or((name, "1"));
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:-".contains(c);
    base.starts_with(|c: char| c.is_ascii_lowercase())
        && base.chars().all(letters)
        && name.len() <= 128
        && number.parse::<u32>().is_ok()
}
