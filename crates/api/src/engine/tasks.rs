//! What workers say, as commands for the run that their task belongs to.

use abide_core::contract::Evidence;
use abide_core::definition::{AtDeadline, RetryPolicy, WaitMode};
use abide_core::ids::{Digest, Epoch, Handler, Path, Queue, RunId, TaskId, WorkerId, WorkflowId};
use abide_core::run::command::{
    Actor, ApprovalAsked, Ask, BlockOn, CodedWait, Command, Fault, Holding, Json, Next, Reply, Report,
    StepBegin as CoreBegin, StepDone as CoreDone, StepWait as CoreWait,
};
use abide_core::run::step::Resource;
use abide_core::time::{Span, Timestamp};
use abide_engine::Engine;
use abide_engine::request::{Answer, BodyStep, Claim, LeasedTask, ToRun, Told, What};
use abide_engine::store::Wanted;

use serde::Deserialize;
use serde::de::IntoDeserializer;

use super::problem::{at_field, duration, identifier};
use crate::tasks::*;
use crate::{Code, Problem, Raw};

/// The most tasks of one claim.
const MOST_TASKS: u32 = 1_000;
/// The longest wait of one claim.
const LONGEST_WAIT_MS: u64 = 60_000;
const USUAL_WAIT_MS: u64 = 20_000;
/// In a refusal: the attempt is over because of it.
const ATTEMPT_ENDED: &str = "attempt_ended";
/// How much of a refusal stands in the failure of an attempt.
const LONGEST_CAUSE: usize = 2_000;
/// A lease is at least long enough for one heartbeat, and at most a day.
const LEASES_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

/// Who speaks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller<'a> {
    /// In whose name, when keys are used. Leases belong to it.
    pub name: Option<&'a str>,
}

impl Caller<'_> {
    fn owner(&self, worker: &str) -> WorkerId {
        match self.name {
            Some(name) => WorkerId::new(format!("{name}/{worker}")),
            None => WorkerId::from(worker),
        }
    }
}

/// Asks for tasks, and waits for them.
pub async fn claim(engine: &Engine, caller: Caller<'_>, asked: ClaimTasks) -> Result<Vec<LeasedTask>, Problem> {
    let worker = caller.owner(identifier("/worker", &asked.worker)?);
    if asked.queues.is_empty() || asked.queues.len() > 100 {
        return Err(Problem::invalid("/queues", "Name 1 to 100 queues."));
    }
    for (n, queue) in asked.queues.iter().enumerate() {
        not_our_own(&format!("/queues/{n}"), queue)?;
    }
    for (n, handler) in asked.handlers.iter().flatten().enumerate() {
        not_our_own(&format!("/handlers/{n}"), handler)?;
    }
    if asked.handlers.as_ref().is_some_and(|handlers| handlers.is_empty() || handlers.len() > 1_000) {
        return Err(Problem::invalid("/handlers", "Name 1 to 1000 handlers, or leave the field out."));
    }
    let max = asked.max.unwrap_or(1);
    if max == 0 || max > MOST_TASKS {
        return Err(Problem::invalid("/max", format!("Ask for 1 to {MOST_TASKS} tasks.")));
    }
    let wait_ms = asked.wait_ms.unwrap_or(USUAL_WAIT_MS);
    if wait_ms > LONGEST_WAIT_MS {
        return Err(Problem::invalid("/wait_ms", format!("Wait at most {LONGEST_WAIT_MS} ms and ask again.")));
    }
    if asked.lease_ms.is_some_and(|ms| !LEASES_MS.contains(&ms)) {
        return Err(Problem::invalid("/lease_ms", "A lease has 100 ms to one day."));
    }
    if let Some(claim_id) = &asked.claim_id {
        identifier("/claim_id", claim_id)?;
    }
    let claim = Claim {
        worker,
        wanted: Wanted {
            queues: asked.queues.iter().map(|queue| Queue::from(queue.as_str())).collect(),
            handlers: asked.handlers.map(|names| names.iter().map(|name| Handler::from(name.as_str())).collect()),
        },
        max: max as usize,
        window: asked.lease_ms.map(Span::from_millis),
        claim_id: asked.claim_id,
        until: (wait_ms > 0).then(|| engine.clock().now() + Span::from_millis(wait_ms)),
    };
    Ok(engine.claim(claim).await?)
}

/// What the engine executes itself is nobody else's work.
fn not_our_own(pointer: &str, name: &str) -> Result<(), Problem> {
    match identifier(pointer, name)?.starts_with("abide:") {
        true => Err(Problem::invalid(pointer, "Names that begin with abide: are the engine's own.")),
        false => Ok(()),
    }
}

/// A report of a worker about one task.
pub trait Says: Sized {
    fn epoch(&self) -> u64;

    /// What the run is asked.
    fn ask(self, holding: Holding, now: Timestamp) -> Result<Ask, Problem>;

    fn evidence(&self) -> &[EvidenceTold] {
        &[]
    }

    /// The worker wants the run's next task, too.
    fn claims_next(&self) -> bool {
        false
    }

    /// It says how the task, or a step of a body, went: its worker does not say it otherwise.
    fn is_result(&self) -> bool {
        false
    }
}

/// Carries a report to the run. A result that cannot be taken ends the attempt, because its worker is through with the task.
pub async fn report(engine: &Engine, caller: Caller<'_>, task_id: &str, said: impl Says) -> Result<Told, Problem> {
    let (is_result, epoch) = (said.is_result(), said.epoch());
    match carry(engine, caller, task_id, said).await {
        Err(problem) if is_result => Err(end_attempt(engine, caller, task_id, epoch, problem).await),
        answer => answer,
    }
}

/// Ends the attempt whose result was refused for what it is, if the lease is its worker's. The refusal says so; it is
/// otherwise as it was.
pub async fn end_attempt(engine: &Engine, caller: Caller<'_>, task_id: &str, epoch: u64, problem: Problem) -> Problem {
    let ends =
        [Code::PayloadTooLarge, Code::ValidationFailed, Code::MalformedJson, Code::JsonTooDeep, Code::DuplicateKey];
    if !ends.iter().any(|code| problem.is(*code)) || problem.more.contains_key(ATTEMPT_ENDED) {
        return problem;
    }
    let Ok((run_id, holding)) = holding(task_id, epoch) else { return problem };
    let named: Vec<String> =
        problem.errors.iter().map(|error| format!(" {}: {}", error.pointer, error.detail)).collect();
    let message = format!("{}{}", problem.detail, named.concat()).chars().take(LONGEST_CAUSE).collect();
    let ask = Ask::Unacceptable { holding, code: problem.code.clone(), message };
    let to_run =
        ToRun { held_by: caller.name.map(Into::into), ..ToRun::new(run_id, Command::new(Actor::worker(""), ask)) };
    match engine.asking(What::Run(Box::new(to_run))).await {
        Ok(_) => {
            let detail = problem.detail.trim_end_matches('.');
            let detail = format!("{detail}. The attempt was ended with this as its failure.");
            Problem { detail, ..problem }.with(ATTEMPT_ENDED, true)
        }
        // Whoever does not hold the lease ends nothing.
        Err(_) => problem,
    }
}

async fn carry(engine: &Engine, caller: Caller<'_>, task_id: &str, said: impl Says) -> Result<Told, Problem> {
    let evidence = said.evidence().iter().enumerate().map(|(n, told)| evidence(n, told)).collect::<Result<_, _>>()?;
    let claim_next = said.claims_next();
    let (run_id, holding) = holding(task_id, said.epoch())?;
    let ask = said.ask(holding, engine.clock().now())?;
    // Who it is stands in the lease; the engine fills it in.
    let command = Command { evidence, ..Command::new(Actor::worker(""), ask) };
    let held_by = caller.name.map(Into::into);
    let to_run = ToRun { claim_next, held_by, ..ToRun::new(run_id, command) };
    match engine.asking(What::Run(Box::new(to_run))).await? {
        Answer::Run(told) => Ok(*told),
        other => Err(Problem::new(Code::Internal, format!("The engine answered something else: {other:?}"))),
    }
}

fn holding(task_id: &str, epoch: u64) -> Result<(RunId, Holding), Problem> {
    let task_id = TaskId::from(task_id);
    let place = task_id.place().ok_or_else(|| Problem::new(Code::NotFound, "There is no such task."))?;
    let (run_id, path) = place;
    Ok((run_id, Holding { path, task_id, epoch: Epoch(epoch) }))
}

/// Makes an address to which a tool sends its answer, once.
pub async fn make_callback(
    engine: &Engine,
    caller: Caller<'_>,
    task_id: &str,
    asked: MakeCallback,
    token: &str,
) -> Result<Told, Problem> {
    let token_hash = Digest::of(token.as_bytes());
    report(engine, caller, task_id, WithToken(asked, token_hash)).await
}

struct WithToken(MakeCallback, Digest);

impl Says for WithToken {
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    fn ask(self, holding: Holding, _: Timestamp) -> Result<Ask, Problem> {
        let WithToken(asked, token_hash) = self;
        let name = identifier("/name", &asked.name)?.to_owned();
        Ok(Ask::Callback { holding, name, token_hash, expires_in: span("/expires_in", asked.expires_in.as_deref())? })
    }
}

impl Says for Heartbeat {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn ask(self, holding: Holding, _: Timestamp) -> Result<Ask, Problem> {
        Ok(Ask::Heartbeat { holding, progress: self.progress.map(Into::into) })
    }
}

impl Says for CompleteTask {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn is_result(&self) -> bool {
        true
    }

    fn ask(self, holding: Holding, _: Timestamp) -> Result<Ask, Problem> {
        let report = Report {
            output: self.output.map(json),
            outcome: self.outcome.unwrap_or_default(),
            resources: self.resources.into_iter().map(resource).collect(),
            warnings: self.warnings,
        };
        Ok(Ask::Complete { holding, report })
    }

    fn evidence(&self) -> &[EvidenceTold] {
        &self.evidence
    }

    fn claims_next(&self) -> bool {
        self.claim_next
    }
}

impl Says for FailTask {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn is_result(&self) -> bool {
        true
    }

    fn ask(self, holding: Holding, _: Timestamp) -> Result<Ask, Problem> {
        let fault = Fault {
            class: self.class,
            message: self.message,
            code: self.code,
            retry_after: self.retry_after_ms.map(Span::from_millis),
            details: self.details,
            tool: self.tool,
            account: self.account,
        };
        Ok(Ask::Fail { holding, fault })
    }

    fn evidence(&self) -> &[EvidenceTold] {
        &self.evidence
    }
}

impl Says for BlockTask {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn ask(self, holding: Holding, now: Timestamp) -> Result<Ask, Problem> {
        let message = self.message.clone();
        Ok(Ask::Block { holding, on: self.on(now)?, message })
    }

    fn evidence(&self) -> &[EvidenceTold] {
        &self.evidence
    }
}

impl BlockTask {
    fn on(self, now: Timestamp) -> Result<BlockOn, Problem> {
        Ok(match self.on {
            BlockKind::Auth => BlockOn::Auth { tool: needed("/tool", self.tool)?, account: self.account },
            BlockKind::Tool => {
                let deadline = span("/deadline", self.deadline.as_deref())?;
                match (self.callback, self.signal) {
                    (Some(name), None) => BlockOn::Callback { name, deadline },
                    (None, Some(name)) => BlockOn::Signal { name, deadline },
                    _ => return Err(Problem::invalid("/on", "Name either a `callback` or a `signal`.")),
                }
            }
            BlockKind::Approval => BlockOn::Approval(Box::new(approval(ApprovalTold {
                title: needed("/title", self.title)?,
                subject: self.subject,
                approvers: self.approvers,
                quorum: self.quorum,
                not_requester: self.not_requester,
                deadline: self.deadline,
                at_deadline: self.at_deadline,
                form: self.form,
            })?)),
            BlockKind::Timer => {
                let until = self.until.ok_or_else(|| Problem::invalid("/until", "A timer needs an instant."))?;
                if until <= now {
                    return Err(Problem::invalid("/until", "The instant has passed."));
                }
                BlockOn::Timer { until }
            }
            BlockKind::Operator => {
                BlockOn::Operator { reason: needed("/reason", self.reason)?, recommended: self.recommended }
            }
            BlockKind::Child => BlockOn::Child {
                workflow: WorkflowId::new(needed("/workflow", self.workflow)?),
                input: self.input.map_or_else(|| "null".into(), json),
            },
        })
    }
}

impl Says for TellEffect {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn ask(self, holding: Holding, _: Timestamp) -> Result<Ask, Problem> {
        let TellEffect { name, external_id, result, .. } = self;
        Ok(Ask::Effect { holding, name, external_id, result: result.map(json) })
    }
}

impl Says for Stopped {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn ask(self, holding: Holding, _: Timestamp) -> Result<Ask, Problem> {
        Ok(Ask::Canceled { holding })
    }
}

impl Says for TellSteps {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn is_result(&self) -> bool {
        true
    }

    fn ask(self, holding: Holding, now: Timestamp) -> Result<Ask, Problem> {
        let done = self.done.into_iter().enumerate();
        let done = done.map(|(n, one)| step_done(one).map_err(|why| at_field(why, &format!("/done/{n}"))));
        let begin = self.begin.into_iter().enumerate();
        let begin = begin.map(|(n, one)| step_begin(one).map_err(|why| at_field(why, &format!("/begin/{n}"))));
        let wait = self.wait.into_iter().enumerate();
        let wait = wait.map(|(n, one)| step_wait(one, now).map_err(|why| at_field(why, &format!("/wait/{n}"))));
        Ok(Ask::Steps {
            holding,
            done: done.collect::<Result<_, _>>()?,
            begin: begin.collect::<Result<_, _>>()?,
            wait: wait.collect::<Result<_, _>>()?,
            busy: self.busy,
            beside: self.beside,
        })
    }
}

fn step_done(told: StepDone) -> Result<CoreDone, Problem> {
    let result = match told.failure {
        Some(_) if told.output.is_some() => {
            return Err(Problem::invalid("/failure", "A step ends with an output or with a failure, not with both."));
        }
        Some(failure) => Err(Fault {
            class: failure.class,
            message: failure.message,
            code: failure.code,
            retry_after: failure.retry_after_ms.map(Span::from_millis),
            details: failure.details,
            tool: failure.tool,
            account: failure.account,
        }),
        None => Ok(Report {
            output: told.output.map(json),
            resources: told.resources.into_iter().map(resource).collect(),
            warnings: told.warnings,
            ..Report::default()
        }),
    };
    Ok(CoreDone { step_id: step_path(&told.step_id)?, begun_at: told.begun_at, result })
}

fn step_begin(told: StepBegin) -> Result<CoreBegin, Problem> {
    Ok(CoreBegin {
        step_id: step_path(&told.step_id)?,
        effect: told.effect.unwrap_or_default(),
        reconcile: told.reconcile.as_deref().map(Handler::from),
        compensate: told.compensate.as_deref().map(Handler::from),
        timeout: span("/timeout", told.timeout.as_deref())?,
        retry: told.retry.map(retry).transpose()?,
        input_digest: told.input_digest,
    })
}

fn retry(told: RetryTold) -> Result<RetryPolicy, Problem> {
    let usual = RetryPolicy::default();
    let number = |pointer: &str, given: Option<f64>, usual: f64, most: f64| match given {
        Some(given) if !(0.0..=most).contains(&given) => {
            Err(Problem::invalid(pointer, format!("It must be between 0 and {most}.")))
        }
        given => Ok(given.unwrap_or(usual)),
    };
    Ok(RetryPolicy {
        max_attempts: match told.max_attempts {
            Some(0) => return Err(Problem::invalid("/retry/max_attempts", "At least one attempt is made.")),
            given => given.unwrap_or(usual.max_attempts),
        },
        first: span("/retry/first", told.first.as_deref())?.unwrap_or(usual.first),
        factor: number("/retry/factor", told.factor, usual.factor, 100.0)?,
        max: span("/retry/max", told.max.as_deref())?.unwrap_or(usual.max),
        jitter: number("/retry/jitter", told.jitter, usual.jitter, 1.0)?,
        give_up_after: span("/retry/give_up_after", told.give_up_after.as_deref())?.unwrap_or(usual.give_up_after),
    })
}

fn step_wait(told: StepWait, now: Timestamp) -> Result<CoreWait, Problem> {
    let StepWait { step_id, approval: asked, signal, sleep, child, auth } = told;
    let on = match (asked, signal, sleep, child, auth) {
        (Some(asked), None, None, None, None) => CodedWait::Approval(Box::new(approval(asked)?)),
        (None, Some(signal), None, None, None) => signals(signal)?,
        (None, None, Some(sleep), None, None) => CodedWait::Sleep {
            until: match sleep {
                SleepTold::For(text) => now + duration("/sleep", &text)?,
                SleepTold::Until { until } => until,
            },
        },
        (None, None, None, Some(child), None) => CodedWait::Child {
            workflow: WorkflowId::new(child.workflow),
            version: child.version,
            input: child.input.map_or_else(|| "null".into(), json),
            wait: child.wait.unwrap_or(true),
            on_cancel: child.on_cancel.unwrap_or_default(),
            deadline: span("/child/deadline", child.deadline.as_deref())?,
            at_deadline: child.at_deadline.map(at_deadline),
        },
        (None, None, None, None, Some(auth)) => CodedWait::Auth { tool: auth.tool, account: auth.account },
        _ => return Err(Problem::invalid("", "Wait for exactly one of approval, signal, sleep, child and auth.")),
    };
    Ok(CoreWait { step_id: step_path(&step_id)?, on })
}

fn signals(told: SignalTold) -> Result<CodedWait, Problem> {
    let wait = match told {
        SignalTold::Name(name) => SignalWait { name: Some(name), ..SignalWait::default() },
        SignalTold::Wait(wait) => wait,
    };
    let (names, mode) = match (wait.name, wait.any.is_empty(), wait.all.is_empty()) {
        (Some(name), true, true) => (vec![name], WaitMode::One),
        (None, false, true) => (wait.any, WaitMode::Any),
        (None, true, false) => (wait.all, WaitMode::All),
        _ => return Err(Problem::invalid("/signal", "Give one of `name`, `any` and `all`.")),
    };
    let deadline = span("/signal/deadline", wait.deadline.as_deref())?;
    Ok(CodedWait::Signal { names, mode, deadline, at_deadline: wait.at_deadline.map(at_deadline) })
}

fn approval(told: ApprovalTold) -> Result<ApprovalAsked, Problem> {
    Ok(ApprovalAsked {
        title: told.title,
        subject: told.subject.map_or_else(|| "null".into(), json),
        approvers: told.approvers,
        quorum: told.quorum.unwrap_or(1),
        not_requester: told.not_requester,
        deadline: span("/deadline", told.deadline.as_deref())?,
        at_deadline: told.at_deadline.map(at_deadline),
        form: told.form.map(json),
    })
}

fn at_deadline(told: AtDeadlineTold) -> AtDeadline {
    match told {
        AtDeadlineTold::Fail => AtDeadline::Fail,
        AtDeadlineTold::Warn => AtDeadline::Warn,
        AtDeadlineTold::Approve => AtDeadline::Approve,
        AtDeadlineTold::Escalate(to) => AtDeadline::Escalate(to),
    }
}

fn step_path(text: &str) -> Result<Path, Problem> {
    identifier("/step_id", text).map(Path::from)
}

fn resource(told: ResourceTold) -> Resource {
    Resource { kind: told.kind, id: told.id, url: told.url }
}

fn evidence(n: usize, told: &EvidenceTold) -> Result<Evidence, Problem> {
    let kind =
        Deserialize::deserialize(IntoDeserializer::<serde::de::value::Error>::into_deserializer(told.kind.as_str()));
    let kind = kind
        .map_err(|error: serde::de::value::Error| Problem::invalid(format!("/evidence/{n}/type"), error.to_string()))?;
    Ok(Evidence { kind, reference: told.reference.clone(), step_id: None, at: None })
}

fn json(raw: Raw) -> Json {
    Box::<str>::from(raw).into()
}

fn span(pointer: &str, text: Option<&str>) -> Result<Option<Span>, Problem> {
    text.map(|text| duration(pointer, text)).transpose()
}

fn needed(pointer: &str, text: Option<String>) -> Result<String, Problem> {
    text.filter(|text| !text.is_empty()).ok_or_else(|| Problem::invalid(pointer, "This block needs it."))
}

/// The key of an effect, as a worker gets it.
pub fn effect_key(told: &Told) -> Option<EffectKey> {
    let Reply::Effect { key, .. } = &told.reply else { return None };
    let receipt = told.receipt.as_ref().map(|receipt| Receipt {
        name: receipt.name.clone(),
        external_id: receipt.external_id.clone(),
        result: receipt.result.as_deref().and_then(|result| crate::raw(result).ok()),
        at: receipt.at,
    });
    Some(EffectKey { idempotency_key: key.to_string(), receipt })
}

/// What a coded body gets back.
pub fn body_state(told: &Told) -> impl serde::Serialize + '_ {
    #[derive(serde::Serialize)]
    struct State<'a> {
        steps: std::collections::BTreeMap<&'a Path, &'a BodyStep>,
        next: Next,
    }
    let next = match &told.reply {
        Reply::Body { next, .. } => *next,
        _ => Next::Continue,
    };
    State { steps: told.steps.iter().map(|step| (&step.step_id, step)).collect(), next }
}

/// What became of the run, as a worker gets it.
pub fn task_done(told: &Told) -> impl serde::Serialize + '_ {
    #[derive(serde::Serialize)]
    struct Done<'a> {
        run_id: &'a RunId,
        run_state: abide_core::contract::RunState,
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<&'a LeasedTask>,
    }
    Done { run_id: &told.run_id, run_state: told.state, task: told.task.as_ref() }
}
