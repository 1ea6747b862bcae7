//! What may be asked of a run, and how it is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::intent::CarriedIntent;
use super::rerun::Carried;
use super::step::{Connection, FieldFault, Progress, Receipt, Resource};
use super::{Origin, Parent};
use crate::contract::{Cause, Evidence, Failure, FailureClass, Refused, RunState};
use crate::definition::{AtDeadline, EffectKind, OnCancel, RetryPolicy, WaitMode};
use crate::ids::{Digest, Epoch, Handler, Path, Queue, RunId, TaskId, WorkerId, WorkflowId};
use crate::time::{Span, Timestamp};

/// One request to one run.
#[derive(Clone, Debug)]
pub struct Command {
    pub actor: Actor,
    pub ask: Ask,
    /// Pointers that came with the request; they go into its events.
    pub evidence: Vec<Evidence>,
}

impl Command {
    pub fn new(actor: Actor, ask: Ask) -> Command {
        Command { actor, ask, evidence: Vec::new() }
    }
}

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    #[serde(rename = "type")]
    pub kind: ActorKind,
    pub id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    Worker,
    System,
    User,
}

impl ActorKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            ActorKind::Worker => "worker",
            ActorKind::System => "system",
            ActorKind::User => "user",
        }
    }

    pub fn parse(text: &str) -> Option<ActorKind> {
        [ActorKind::Worker, ActorKind::System, ActorKind::User].into_iter().find(|kind| kind.as_str() == text)
    }
}

impl Actor {
    pub fn system() -> Actor {
        Actor { kind: ActorKind::System, id: "engine".into() }
    }

    pub fn user(id: impl Into<String>) -> Actor {
        Actor { kind: ActorKind::User, id: id.into() }
    }

    pub fn worker(id: impl Into<String>) -> Actor {
        Actor { kind: ActorKind::Worker, id: id.into() }
    }
}

/// JSON text as it came in. It is stored as it is.
pub type Json = Arc<str>;

/// Which lease a worker speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub path: Path,
    pub task_id: TaskId,
    pub epoch: Epoch,
}

#[derive(Clone, Debug)]
pub enum Ask {
    Start(Box<Start>),
    /// Executes a task under a lease.
    Claim {
        path: Path,
        task_id: TaskId,
        worker: WorkerId,
        window: Option<Span>,
        claim_id: Option<String>,
    },
    Heartbeat {
        holding: Holding,
        progress: Option<Progress>,
    },
    Complete {
        holding: Holding,
        report: Report,
    },
    Fail {
        holding: Holding,
        fault: Fault,
    },
    Block {
        holding: Holding,
        on: BlockOn,
        message: Option<String>,
    },
    /// An intent (without external id and result) or a receipt.
    Effect {
        holding: Holding,
        name: Option<String>,
        external_id: Option<String>,
        result: Option<Json>,
    },
    Callback {
        holding: Holding,
        name: String,
        token_hash: Digest,
        expires_in: Option<Span>,
    },
    /// The worker stopped because it was told to.
    Canceled {
        holding: Holding,
    },
    /// A report that cannot be taken, because it is too large or not as it must be: its worker is through with the task.
    Unacceptable {
        holding: Holding,
        /// The stable name of the refusal, as `payload-too-large`.
        code: String,
        /// Names the limit or the field.
        message: String,
    },
    /// The answer to a claim did not reach its worker: nobody executes the task.
    Undelivered {
        holding: Holding,
    },
    /// A coded body reports and begins steps.
    Steps {
        holding: Holding,
        done: Vec<StepDone>,
        begin: Vec<StepBegin>,
        wait: Vec<StepWait>,
        /// Other branches of the body execute steps meanwhile: the lease stays with it, whatever it has to wait for.
        busy: bool,
        /// The body runs branches, which come back in any order: new steps may begin before all stored ones were asked for.
        beside: bool,
    },
    Cancel {
        reason: String,
        undo: Option<bool>,
        grace: Option<Span>,
    },
    Pause {
        reason: String,
    },
    Resume {
        one_step: bool,
    },
    Decide {
        step_id: Option<Path>,
        by: String,
        approve: bool,
        comment: Option<String>,
        form: Option<Json>,
        subject_digest: Option<Digest>,
        via: Option<String>,
    },
    /// A one-time link with which `whom` may decide is made; its maker is the actor.
    MakeLink {
        step_id: Path,
        whom: String,
        /// The groups of `whom`, as far as they are known.
        groups: Vec<String>,
        expires_at: Timestamp,
    },
    /// Releases what waits for this connection; nothing given: for any.
    Reconnect {
        tool: Option<String>,
        account: Option<String>,
        /// The connection's generation, when the connection and not one run was reconnected.
        generation: Option<u64>,
    },
    Signal {
        name: String,
        payload: Json,
    },
    /// What a tool sent to a callback.
    CallbackAnswer {
        path: Path,
        token_hash: Digest,
        payload: Json,
    },
    Resolve {
        step_id: Path,
        action: Resolution,
        reason: String,
    },
    /// Issue now what is scheduled or stalled.
    RetryNow,
    ChildEnded {
        path: Path,
        run_id: RunId,
        outcome: ChildOutcome,
    },
    /// Time has come: the sweep hands the run over.
    Wake,
    Pin {
        pinned: bool,
    },
}

/// What is asked by somebody else than the holder of a lease, as a pattern: a match that names the others and ends with it
/// names everything that can be asked.
macro_rules! leaseless_asks {
    () => {
        Ask::Start(_)
            | Ask::Claim { .. }
            | Ask::Cancel { .. }
            | Ask::Pause { .. }
            | Ask::Resume { .. }
            | Ask::Decide { .. }
            | Ask::MakeLink { .. }
            | Ask::Reconnect { .. }
            | Ask::Signal { .. }
            | Ask::CallbackAnswer { .. }
            | Ask::Resolve { .. }
            | Ask::RetryNow
            | Ask::ChildEnded { .. }
            | Ask::Wake
            | Ask::Pin { .. }
    };
}

pub(super) use leaseless_asks;

#[derive(Clone, Debug)]
pub struct Start {
    pub workflow_version: u32,
    pub input: Json,
    pub labels: BTreeMap<String, String>,
    pub unique: Option<String>,
    pub queue: Option<Queue>,
    pub priority: i32,
    pub start_at: Option<Timestamp>,
    pub paused: bool,
    pub owner_id: Option<String>,
    pub data_region: Option<String>,
    pub parent: Option<Parent>,
    pub depth: u32,
    pub origin: Option<Origin>,
    pub trace_id: Option<String>,
    /// What it is given may be sensitive, whatever its own document says.
    pub sealed: bool,
    /// Sensitive values of its parent, or of the run that it reruns: a JSON list of texts.
    pub inherited: Option<Json>,
    /// Checkpoints of the run that this one reruns.
    pub carried: Vec<Carried>,
    /// Who asked for that run, and for those that it reran.
    pub requested_before: Vec<String>,
    /// Effects of that run of which nobody knows whether they happened.
    pub intents: Vec<CarriedIntent>,
}

impl Start {
    pub fn with_input(input: impl Into<Json>) -> Start {
        Start {
            workflow_version: 1,
            input: input.into(),
            labels: BTreeMap::new(),
            unique: None,
            queue: None,
            priority: 0,
            start_at: None,
            paused: false,
            owner_id: None,
            data_region: None,
            parent: None,
            depth: 0,
            origin: None,
            trace_id: None,
            sealed: false,
            inherited: None,
            carried: Vec::new(),
            requested_before: Vec::new(),
            intents: Vec::new(),
        }
    }
}

/// How a worker says that a task is done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub output: Option<Json>,
    pub outcome: Outcome,
    pub resources: Vec<Resource>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    #[default]
    Ok,
    /// Ends the loop around it.
    Break,
    /// There was nothing to do.
    Noop,
}

/// How a worker says that a task failed.
#[derive(Clone, Debug, Default)]
pub struct Fault {
    /// None: unknown if the step is `external`, else transient.
    pub class: Option<FailureClass>,
    pub message: String,
    pub code: Option<String>,
    pub retry_after: Option<Span>,
    pub details: Option<serde_json::Value>,
    pub tool: Option<String>,
    pub account: Option<String>,
}

/// What a worker waits for when it gives its lease back.
#[derive(Clone, Debug)]
pub enum BlockOn {
    Auth { tool: String, account: Option<String> },
    Callback { name: String, deadline: Option<Span> },
    Signal { name: String, deadline: Option<Span> },
    Approval(Box<ApprovalAsked>),
    Timer { until: Timestamp },
    Operator { reason: String, recommended: Option<String> },
    Child { workflow: WorkflowId, input: Json },
}

#[derive(Clone, Debug)]
pub struct ApprovalAsked {
    pub title: String,
    pub subject: Json,
    pub approvers: Vec<String>,
    pub quorum: u32,
    pub not_requester: bool,
    pub deadline: Option<Span>,
    pub at_deadline: Option<AtDeadline>,
    /// JSON Schema of what a decision carries.
    pub form: Option<Json>,
}

/// A step of a coded body that ended.
#[derive(Clone, Debug)]
pub struct StepDone {
    pub step_id: Path,
    /// Since when the step that ended was running (`Step::since`). A late copy of an earlier report is told by it from
    /// one about the next attempt; a report without it is taken for one about the present attempt.
    pub begun_at: Option<Timestamp>,
    pub result: Result<Report, Fault>,
}

/// A step of a coded body that is about to begin, or whose stored result is asked for.
#[derive(Clone, Debug)]
pub struct StepBegin {
    pub step_id: Path,
    pub effect: EffectKind,
    pub reconcile: Option<Handler>,
    pub compensate: Option<Handler>,
    pub timeout: Option<Span>,
    pub retry: Option<RetryPolicy>,
    pub input_digest: Option<String>,
}

/// Something a coded body waits for.
#[derive(Clone, Debug)]
pub struct StepWait {
    pub step_id: Path,
    pub on: CodedWait,
}

#[derive(Clone, Debug)]
pub enum CodedWait {
    Approval(Box<ApprovalAsked>),
    Signal {
        names: Vec<String>,
        mode: WaitMode,
        deadline: Option<Span>,
        at_deadline: Option<AtDeadline>,
    },
    Sleep {
        until: Timestamp,
    },
    Child {
        workflow: WorkflowId,
        version: Option<u32>,
        input: Json,
        /// False: the step ends when the child is started; its output is `{run_id}`.
        wait: bool,
        on_cancel: OnCancel,
        deadline: Option<Span>,
        at_deadline: Option<AtDeadline>,
    },
    Auth {
        tool: String,
        account: Option<String>,
    },
}

impl CodedWait {
    pub fn kind(&self) -> &'static str {
        match self {
            CodedWait::Approval(_) => "approval",
            CodedWait::Signal { .. } => "signal",
            CodedWait::Sleep { .. } => "sleep",
            CodedWait::Child { .. } => "child",
            CodedWait::Auth { .. } => "auth",
        }
    }
}

/// What an operator decides about a step.
#[derive(Clone, Debug)]
pub enum Resolution {
    Retry { new_key: bool },
    Complete { output: Option<Json> },
    Correct { input: Json },
    Skip,
    Compensate,
    Fail,
}

impl Resolution {
    pub fn name(&self) -> &'static str {
        match self {
            Resolution::Retry { .. } => "retry",
            Resolution::Complete { .. } => "complete",
            Resolution::Correct { .. } => "correct",
            Resolution::Skip => "skip",
            Resolution::Compensate => "compensate",
            Resolution::Fail => "fail",
        }
    }
}

/// How a child run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum ChildOutcome {
    Ended {
        state: RunState,
        output: Option<Json>,
        failure: Option<Box<Failure>>,
        warnings: u64,
    },
    /// It could not be started: unknown workflow, wrong input.
    Refused {
        message: String,
    },
}

/// What the caller gets back, beside the run.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The run is as it should be.
    Done,
    /// The same was asked before; nothing changed.
    Replayed,
    /// The task is leased.
    Leased { epoch: Epoch, expires_at: Timestamp },
    /// The lease goes on; `stop` asks the worker to. `message` is what it said of its progress, as people may see it.
    Beat { expires_at: Timestamp, stop: bool, message: Option<String> },
    /// The key for an effect, and its receipt if it is known.
    Effect { key: Digest, receipt: Option<Receipt> },
    /// How many waits were released.
    Released { steps: u32 },
    /// The first half of a quorum, say.
    Recorded,
    /// What a coded body may do next.
    Body { next: Next, waits: Vec<(Path, Span)> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    Continue,
    /// The lease was given back; the body is issued again when there is something to do.
    Released,
    Canceled,
}

/// Why something is refused. It is an answer, not an accident: it changes nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    #[error("run {0} exists already")]
    RunExists(RunId),
    #[error("there is no run {0}")]
    NoRun(RunId),
    #[error("the run ended as {0}; a run that has ended never changes, but it can be rerun")]
    RunTerminal(RunState),
    #[error("the run is open ({0}); only a run that has ended can be rerun")]
    RunNotTerminal(RunState),
    #[error("this run has no step {0}")]
    NoStep(Path),
    #[error("lease {carried} of {path} is over{}; nothing was changed", held.map(|held| format!(": lease {held} holds it")).unwrap_or_default())]
    LeaseLost { path: Path, carried: Epoch, held: Option<Epoch> },
    #[error("task {0} cannot be claimed: it is not issued any more, or somebody holds it")]
    NotClaimable(TaskId),
    #[error("task {0} was answered already, and differently")]
    AlreadyCompleted(TaskId),
    #[error("nothing in this run waits for {what}; it is {state}")]
    NotWaiting { what: &'static str, state: RunState },
    #[error("{path} was decided already by {by} at {at}")]
    AlreadyDecided { path: Path, by: String, at: Timestamp },
    #[error("the subject of {path} is {current} now, not {given}")]
    SubjectChanged { path: Path, current: Digest, given: Digest },
    #[error("the approval {path} expired at {at}")]
    ApprovalExpired { path: Path, at: Timestamp },
    #[error("{by} is not an approver of {path}; it waits for {}", approvers.join(" or "))]
    NotAnApprover { path: Path, by: String, approvers: Vec<String> },
    #[error("{by} started this run and may not approve {path}")]
    SelfApproval { path: Path, by: String },
    #[error("say which approval is meant: {}", open.iter().map(Path::as_str).collect::<Vec<_>>().join(", "))]
    StepIdRequired { open: Vec<Path> },
    #[error("the run is undoing its steps; this cannot be paused or canceled")]
    Compensating,
    #[error("the run is {state} and cannot be {asked}")]
    NotNow { asked: &'static str, state: RunState },
    #[error("the run's input is not as the workflow says")]
    InputInvalid(Vec<FieldFault>),
    #[error("what was given is not as it must be")]
    Invalid(Vec<FieldFault>),
    #[error("{what} is {size} bytes; at most {limit} are stored: pass a reference to where it is")]
    TooLarge { what: &'static str, size: usize, limit: usize },
    #[error("{limit} signals wait in this run's mailbox already")]
    MailboxFull { limit: usize },
    #[error("a step can have {limit} named effects, and {path} has")]
    TooManyEffects { path: Path, limit: usize },
    #[error("step {action} does not fit {path}, which is {state}; possible: {}", allowed.join(", "))]
    CannotResolve { path: Path, action: &'static str, state: crate::contract::StepState, allowed: Vec<&'static str> },
    #[error("nothing in this run is scheduled or stalled; it is {0}")]
    NothingToRetry(RunState),
    #[error("this callback was answered already")]
    TokenUsed,
    #[error("this callback expired at {0}")]
    TokenExpired(Timestamp),
    #[error("there is no such callback")]
    NoCallback,
    #[error("two steps of the body have the id {0}")]
    DuplicateStep(Path),
    #[error("step {0} is not one that this body began")]
    NotBegun(Path),
    #[error("runs may be nested {limit} deep")]
    TooDeep { limit: u32 },
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the rules contradict themselves: {0}")]
    Bug(String),
}

impl Rejection {
    /// The stable name of the refusal; each has a page in the documentation.
    pub fn code(&self) -> &'static str {
        match self {
            Rejection::RunExists(_) => "run-exists",
            Rejection::NoRun(_) | Rejection::NoStep(_) | Rejection::NoCallback => "not-found",
            Rejection::RunTerminal(_) => "run-terminal",
            Rejection::RunNotTerminal(_) => "run-not-terminal",
            Rejection::LeaseLost { .. } => "lease-lost",
            Rejection::NotClaimable(_) => "not-claimable",
            Rejection::AlreadyCompleted(_) => "already-completed",
            Rejection::NotWaiting { .. } => "not-waiting",
            Rejection::AlreadyDecided { .. } => "already-decided",
            Rejection::SubjectChanged { .. } => "subject-changed",
            Rejection::ApprovalExpired { .. } => "approval-expired",
            Rejection::NotAnApprover { .. } => "not-an-approver",
            Rejection::SelfApproval { .. } => "self-approval-forbidden",
            Rejection::StepIdRequired { .. } => "step-id-required",
            Rejection::Compensating => "compensating",
            Rejection::NotNow { .. } => "not-now",
            Rejection::InputInvalid(_) => "input-invalid",
            Rejection::Invalid(_) => "validation-failed",
            Rejection::TooLarge { .. } => "payload-too-large",
            Rejection::MailboxFull { .. } => "mailbox-full",
            Rejection::TooManyEffects { .. } => "too-many-effects",
            Rejection::CannotResolve { .. } => "cannot-resolve",
            Rejection::NothingToRetry(_) => "nothing-to-retry",
            Rejection::TokenUsed => "token-used",
            Rejection::TokenExpired(_) => "token-expired",
            Rejection::DuplicateStep(_) => "duplicate-step",
            Rejection::NotBegun(_) => "not-begun",
            Rejection::TooDeep { .. } => "too-deep",
            Rejection::Refused(_) => "transition-refused",
            Rejection::Bug(_) => "internal",
        }
    }
}

impl Ask {
    /// What moves the layers when this is accepted.
    pub fn cause(&self) -> Cause {
        match self {
            Ask::Start(_) => Cause::Started,
            Ask::Claim { .. } => Cause::Claimed,
            Ask::Complete { .. } => Cause::Completed,
            Ask::Fail { .. } | Ask::Unacceptable { .. } => Cause::Failed,
            Ask::Block { .. } => Cause::Blocked,
            Ask::Canceled { .. } | Ask::Undelivered { .. } => Cause::Acknowledged,
            Ask::Heartbeat { .. } | Ask::Effect { .. } | Ask::Callback { .. } | Ask::Steps { .. } => Cause::Reported,
            Ask::Cancel { .. } => Cause::CancelAsked,
            Ask::Pause { .. } => Cause::PauseAsked,
            Ask::Resume { .. } => Cause::ResumeAsked,
            Ask::Decide { .. } | Ask::MakeLink { .. } => Cause::Decided,
            Ask::Reconnect { .. } => Cause::Reconnected,
            Ask::Signal { .. } | Ask::CallbackAnswer { .. } => Cause::Answered,
            Ask::Resolve { .. } | Ask::Pin { .. } => Cause::Resolved,
            Ask::RetryNow => Cause::RetryAsked,
            Ask::ChildEnded { .. } => Cause::ChildEnded,
            Ask::Wake => Cause::TimeCame,
        }
    }

    /// The lease that a worker speaks for.
    pub fn holding(&self) -> Option<&Holding> {
        match self {
            Ask::Heartbeat { holding, .. }
            | Ask::Complete { holding, .. }
            | Ask::Fail { holding, .. }
            | Ask::Block { holding, .. }
            | Ask::Effect { holding, .. }
            | Ask::Callback { holding, .. }
            | Ask::Canceled { holding }
            | Ask::Undelivered { holding }
            | Ask::Unacceptable { holding, .. }
            | Ask::Steps { holding, .. } => Some(holding),
            leaseless_asks!() => None,
        }
    }

    /// The step, probe or undo that it names.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Ask::Heartbeat { holding, .. }
            | Ask::Complete { holding, .. }
            | Ask::Fail { holding, .. }
            | Ask::Block { holding, .. }
            | Ask::Effect { holding, .. }
            | Ask::Callback { holding, .. }
            | Ask::Canceled { holding }
            | Ask::Undelivered { holding }
            | Ask::Unacceptable { holding, .. }
            | Ask::Steps { holding, .. } => Some(&holding.path),
            Ask::Claim { path, .. } | Ask::CallbackAnswer { path, .. } | Ask::ChildEnded { path, .. } => Some(path),
            Ask::Resolve { step_id, .. } | Ask::MakeLink { step_id, .. } => Some(step_id),
            Ask::Decide { step_id, .. } => step_id.as_ref(),
            Ask::Start(_)
            | Ask::Cancel { .. }
            | Ask::Pause { .. }
            | Ask::Resume { .. }
            | Ask::Reconnect { .. }
            | Ask::Signal { .. }
            | Ask::RetryNow
            | Ask::Wake
            | Ask::Pin { .. } => None,
        }
    }
}

/// What must happen outside because of a decision. Whatever may not be lost stands in a row as well.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// In the same transaction, as a message to the new run.
    StartChild(Box<StartChild>),
    CancelChild {
        run_id: RunId,
        reason: String,
    },
    /// Tell the parent how this run ended.
    TellParent {
        parent: Parent,
        state: RunState,
        failure: Option<Failure>,
        warnings: u64,
    },
    /// A task can be claimed.
    TaskReady {
        queue: Queue,
        handler: Handler,
    },
    /// A wait on a connection began, so that a reconnect can find the run.
    AwaitConnection {
        connection: Connection,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartChild {
    pub run_id: RunId,
    pub workflow: WorkflowId,
    pub version: Option<u32>,
    pub input: Json,
    pub parent: Parent,
    pub depth: u32,
    pub trace_id: String,
    pub requester: String,
    pub owner_id: Option<String>,
    pub data_region: Option<String>,
    #[serde(default)]
    pub sealed: bool,
    /// The sensitive values of the parent: a JSON list of texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Json>,
}
