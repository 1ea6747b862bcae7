//! What may be asked of the engine, and what it answers.

use std::collections::BTreeMap;

use abide_core::contract::{Failure, RunState, StepState};
use abide_core::definition::{DefinitionError, Parsed};
use abide_core::ids::{Digest, Epoch, Handler, Namespace, Path, RunId, TaskId, WorkerId, WorkflowId};
use abide_core::run::OriginKind;
use abide_core::run::command::{Actor, Command, Holding, Json, Rejection, Reply, Start};
use abide_core::run::step::{Connection, TaskKind};
use abide_core::time::{Span, Timestamp};
use serde::{Deserialize, Serialize};

use crate::insights::Added;
use crate::reply::{self, Awaited, Caller};
use crate::store::{Before, Wanted};

/// One request of one caller.
#[derive(Debug)]
pub struct Request {
    pub namespace: Namespace,
    /// The same key with the same content is answered alike and done once.
    pub idempotency: Option<Idempotency>,
    pub what: What,
}

#[derive(Clone, Debug)]
pub struct Idempotency {
    pub key: String,
    /// Of everything that was asked.
    pub digest: Digest,
    /// Where earlier builds kept the answer to the same request. Another request there does not count.
    pub former_key: Option<String>,
}

impl Idempotency {
    pub fn new(key: impl Into<String>, digest: Digest) -> Idempotency {
        Idempotency { key: key.into(), digest, former_key: None }
    }

    /// The same for one part of a request that takes many.
    #[must_use]
    pub fn of_part(&self, part: &str) -> Idempotency {
        // No caller can send a key with a line feed in it.
        let of_part = |key: &String| format!("{key}\n{part}");
        let former_key = self.former_key.as_ref().map(of_part);
        Idempotency { key: of_part(&self.key), digest: self.digest, former_key }
    }
}

#[derive(Debug)]
pub enum What {
    /// Keeps a document as a new version, unless it says the same as the newest.
    Register(Box<Register>),
    Start(Box<NewRun>),
    Run(Box<ToRun>),
    Claim(Claim),
    /// For an executor that serves every namespace.
    ClaimAnywhere(Claim),
    /// A connection works again: everything that waits for it goes on.
    Reconnected(Connection),
    /// A connection is known to be broken: steps that need it wait without calling.
    Broken(Connection),
    Rerun(Box<Rerun>),
    /// Moves runs to the archive and forgets what nobody asks for any more.
    Tidy(Box<Tidy>),
    /// Adds to the numbers what the commits up to a position brought.
    Count(Box<(i64, Added)>),
    /// Who may come in: keys and one-time links.
    Access(Box<Access>),
    /// What was answered under this idempotency key before.
    Recall,
    /// Keeps the answer to something that took many requests, for its idempotency key.
    Keep(String),
}

/// A change of who may come in.
#[derive(Clone, Debug)]
pub enum Access {
    AddKey(Key),
    RevokeKey(String),
    KeyUsed(String),
    AddLink(Link),
}

impl Access {
    /// What is kept of it for an idempotency key: the name of what was made, never what opens the door.
    pub(crate) fn made(&self) -> Option<KeptAnswer> {
        let name = match self {
            Access::AddKey(key) => key.key_id.clone(),
            Access::AddLink(link) => link.token_hash.to_string(),
            Access::RevokeKey(_) | Access::KeyUsed(_) => return None,
        };
        Some(KeptAnswer::said(name))
    }
}

/// A key of the API, as it is stored: never the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub key_id: String,
    pub namespace: Namespace,
    pub hash: Digest,
    /// What it may do, as whoever checks it wrote it down.
    pub grant: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub last_used_at: Option<Timestamp>,
}

/// A one-time link to an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub token_hash: Digest,
    pub namespace: Namespace,
    pub run_id: RunId,
    pub path: Path,
    /// Who decides with it.
    pub whom: String,
    pub groups: Vec<String>,
    pub expires_at: Timestamp,
    pub used_at: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub struct Tidy {
    pub runs: Vec<Packed>,
    pub forget: Option<Before>,
}

/// A run that is to leave, as it was when it was packed.
#[derive(Debug)]
pub struct Packed {
    pub run_id: RunId,
    pub seq: u64,
    pub bundle: Vec<u8>,
    pub size: usize,
}

#[derive(Debug)]
pub struct Register {
    pub parsed: Parsed,
    pub document: String,
}

#[derive(Debug)]
pub struct NewRun {
    pub workflow: WorkflowId,
    /// None: the newest.
    pub version: Option<u32>,
    pub run_id: Option<RunId>,
    pub actor: Actor,
    pub start: Start,
}

/// A command for one run.
#[derive(Debug)]
pub struct ToRun {
    pub run_id: RunId,
    pub command: Command,
    /// Groups of the person who asks.
    pub groups: Vec<String>,
    /// Refuse when the run has another version.
    pub expected_seq: Option<u64>,
    /// When this completes a task, lease the run's next one to the same worker.
    pub claim_next: bool,
    /// In whose name a worker reports: only leases whose owner is `NAME/…` are its own.
    pub held_by: Option<String>,
    /// The one-time link through which a person decides; it is used up with the decision.
    pub link: Option<Digest>,
}

impl ToRun {
    pub fn new(run_id: RunId, command: Command) -> ToRun {
        ToRun { run_id, command, groups: Vec::new(), expected_seq: None, claim_next: false, held_by: None, link: None }
    }
}

/// A worker asks for tasks.
#[derive(Clone, Debug)]
pub struct Claim {
    pub worker: WorkerId,
    pub wanted: Wanted,
    pub max: usize,
    pub window: Option<Span>,
    pub claim_id: Option<String>,
    /// Until when the worker waits when there is nothing.
    pub until: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub struct Rerun {
    pub run_id: RunId,
    pub kind: OriginKind,
    pub from_step: Option<String>,
    pub version: RerunVersion,
    pub input: Option<Json>,
    pub actor: Actor,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RerunVersion {
    #[default]
    Same,
    Latest,
    Number(u32),
}

/// What a caller gets when its request was durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Registered {
        workflow: WorkflowId,
        version: u32,
        hash: Digest,
        new: bool,
    },
    Run(Box<Told>),
    Tasks(Vec<LeasedTask>),
    /// How many runs this reconnect is the first to free.
    Released(u64),
    /// How many runs were moved to the archive.
    Archived(u64),
    Counted,
    /// Who may come in has changed.
    Admitted,
    /// What is kept for an idempotency key: an answer, or the name of what was made.
    Said(String),
    /// Nothing was answered under this key yet.
    Unsaid,
}

/// Which lease is meant, and of which run.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRef {
    pub namespace: Namespace,
    pub run_id: RunId,
    pub holding: Holding,
}

impl Answer {
    /// The leases that come with it.
    pub fn leases(&self) -> Vec<LeaseRef> {
        match self {
            Answer::Tasks(tasks) => tasks.iter().map(LeasedTask::lease).collect(),
            Answer::Run(told) => told.task.iter().map(LeasedTask::lease).collect(),
            Answer::Registered { .. }
            | Answer::Released(_)
            | Answer::Archived(_)
            | Answer::Counted
            | Answer::Admitted
            | Answer::Said(_)
            | Answer::Unsaid => Vec::new(),
        }
    }
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub run_id: RunId,
    pub state: RunState,
    pub seq: u64,
    pub reply: Reply,
    /// The same was asked before, and this is what was answered.
    pub replayed: bool,
    /// The run's next task, already leased.
    pub task: Option<LeasedTask>,
    /// What an effect that was asked about has led to already.
    pub receipt: Option<TaskReceipt>,
    /// Steps of a coded body that were spoken of, as they are now.
    pub steps: Vec<BodyStep>,
}

/// A step of a coded body, as its worker needs it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BodyStep {
    #[serde(skip)]
    pub step_id: Path,
    pub state: StepState,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "maybe_raw")]
    pub output: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub attempt: u32,
    pub idempotency_key: Digest,
    pub receipts: Vec<TaskReceipt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    pub begun_at: Timestamp,
}

fn by_id<S: serde::Serializer>(steps: &Option<Vec<BodyStep>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(steps.iter().flatten().map(|step| (&step.step_id, step)))
}

/// A task under a lease, with everything a worker needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeasedTask {
    pub task_id: TaskId,
    #[serde(skip)]
    pub namespace: Namespace,
    pub run_id: RunId,
    pub step_id: Path,
    pub kind: TaskKind,
    pub handler: Handler,
    #[serde(serialize_with = "raw")]
    pub input: Json,
    pub attempt: u32,
    pub epoch: Epoch,
    pub idempotency_key: Digest,
    pub lease_expires_at: Timestamp,
    pub heartbeat_every_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    pub receipts: Vec<TaskReceipt>,
    pub answers: Vec<TaskAnswer>,
    pub workflow_id: WorkflowId,
    pub workflow_version: u32,
    /// W3C trace context, so that what the worker does is found under the run's trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Of a body: what is stored already.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "by_id")]
    pub steps: Option<Vec<BodyStep>>,
}

impl LeasedTask {
    pub fn lease(&self) -> LeaseRef {
        let holding = Holding { path: self.step_id.clone(), task_id: self.task_id.clone(), epoch: self.epoch };
        LeaseRef { namespace: self.namespace.clone(), run_id: self.run_id.clone(), holding }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskReceipt {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "maybe_raw")]
    pub result: Option<Json>,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskAnswer {
    pub on: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "maybe_raw")]
    pub payload: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub at: Timestamp,
}

fn raw<S: serde::Serializer>(json: &Json, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::Error as _;
    let value: &serde_json::value::RawValue = serde_json::from_str(json).map_err(S::Error::custom)?;
    value.serialize(serializer)
}

/// A payload as it is stored.
pub(crate) fn maybe_raw<S: serde::Serializer>(json: &Option<Json>, serializer: S) -> Result<S::Ok, S::Error> {
    match json {
        Some(json) => raw(json, serializer),
        None => serializer.serialize_none(),
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("{why}")]
    Rejected {
        why: Rejection,
        /// What the run is, when the refusal is about a run.
        state: Option<RunState>,
    },
    #[error("there is no workflow {0}")]
    NoWorkflow(String),
    #[error("{0}")]
    Definition(DefinitionError),
    #[error("an open run of this workflow has this unique value already: {0}")]
    NotUnique(RunId),
    #[error("{owner} holds this lease; only the key that claimed a task may report on it")]
    NotLeaseOwner { owner: WorkerId },
    #[error("a run id is `run_` and up to 64 letters, digits, `_` or `-`; {0:?} is not")]
    BadRunId(String),
    #[error("this idempotency key was used for another request")]
    KeyReused,
    #[error("the run has version {current}, not {expected}")]
    VersionMismatch { current: u64, expected: u64 },
    #[error("too much waits to be written already; try again")]
    Overloaded,
    #[error("the engine is stopping")]
    ShuttingDown,
    #[error("the disk is full; nothing was written")]
    StorageFull,
    #[error("the store cannot be used right now; nothing was written: {0}")]
    StoreUnavailable(String),
    #[error("nobody knows whether this was written; ask again with the same idempotency key")]
    OutcomeUnknown,
    #[error("what was asked took too long to read")]
    TooSlow,
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// The stable name of the error; each has a page in the documentation.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Rejected { why, .. } => why.code(),
            Error::NoWorkflow(_) => "workflow-not-found",
            Error::Definition(error) => error.code(),
            Error::NotUnique(_) => "run-exists",
            Error::NotLeaseOwner { .. } => "not-lease-owner",
            Error::BadRunId(_) | Error::Invalid(_) => "validation-failed",
            Error::KeyReused => "idempotency-key-reused",
            Error::VersionMismatch { .. } => "version-mismatch",
            Error::Overloaded | Error::TooSlow => "overloaded",
            Error::ShuttingDown => "shutting-down",
            Error::StorageFull => "storage-full",
            Error::StoreUnavailable(_) => "store-unavailable",
            Error::OutcomeUnknown => "outcome-unknown",
        }
    }
}

/// A request on its way, with the place where its answer goes.
#[derive(Debug)]
pub struct Asked {
    pub request: Request,
    pub reply: Caller,
    /// When it came, if it may have waited: what workers say is judged by that.
    pub at: Option<Timestamp>,
}

impl Asked {
    pub fn new(request: Request) -> (Asked, Awaited) {
        let (reply, awaited) = reply::channel();
        (Asked { request, reply, at: None }, awaited)
    }

    #[must_use]
    pub fn came_at(self, at: Timestamp) -> Asked {
        Asked { at: Some(at), ..self }
    }

    /// Whether the holder of a lease says something.
    pub fn is_report(&self) -> bool {
        matches!(&self.request.what, What::Run(to_run) if to_run.command.ask.holding().is_some())
    }
}

/// What is kept of an answer for its idempotency key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeptAnswer {
    pub run_id: Option<RunId>,
    pub released: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

impl KeptAnswer {
    pub(crate) fn said(said: String) -> KeptAnswer {
        KeptAnswer { said: Some(said), ..KeptAnswer::default() }
    }
}

/// Labels and the like of a start that only names a workflow and an input.
impl NewRun {
    pub fn of(workflow: impl Into<WorkflowId>, input: impl Into<Json>, actor: Actor) -> NewRun {
        NewRun { workflow: workflow.into(), version: None, run_id: None, actor, start: Start::with_input(input) }
    }

    pub fn with_labels(mut self, labels: BTreeMap<String, String>) -> NewRun {
        self.start.labels = labels;
        self
    }
}
