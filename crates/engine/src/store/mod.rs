//! The narrow waist: set-based, blocking verbs that carry a batch of decisions into a database. A store decides nothing;
//! it keeps rows, finds them and says truthfully whether a commit happened.

pub mod behind;
pub mod rows;
pub mod seal;
pub mod sqlite;

use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::ids::{Digest, Epoch, Handler, Namespace, Path, PayloadName, Queue, RunId, WorkerId, WorkflowId};
use abide_core::run::command::Json;
use abide_core::run::event::Record;
use abide_core::run::step::{Connection, Step};
use abide_core::run::{ConnectionFacts, LateAnswer, LateAnswers, Need, Started, Working};
use abide_core::time::Timestamp;

use crate::archive::Bundle;
use crate::message::Message;
use crate::request::{Access, Link};

/// A run's number inside the store: small, and in the order of the starts, so that its rows lie together.
pub type RunNo = i64;

/// How a run is named from outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    pub namespace: Namespace,
    pub run_id: RunId,
}

/// A run as a decision needs it: its head, its open rows, and what is kept beside the log.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub no: RunNo,
    pub run: Working,
    pub wake_at: Option<Timestamp>,
    pub late: LateAnswers,
}

/// Something that was asked for with [`Need`]. What the store does not have is said to be absent.
#[derive(Clone, Debug)]
pub enum Found {
    Step(Path, Option<Arc<Step>>),
    Payload(PayloadName, Json),
}

/// A task that somebody may claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub no: RunNo,
    pub run_id: RunId,
    pub path: Path,
    /// The higher the priority, the lower the rank.
    pub rank: i64,
    pub issued_at: Timestamp,
}

/// Which tasks a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub queues: Vec<Queue>,
    /// None: any handler, except bodies and what the engine executes itself.
    pub handlers: Option<Vec<Handler>>,
}

/// A message between runs that waits to be applied.
#[derive(Clone, Debug)]
pub struct Posted {
    pub key: PostKey,
    pub message: Message,
    /// It may carry sensitive values of the run that sent it.
    pub sealed: bool,
}

/// A message that waits in the store, if it can be read.
pub type Waiting = (PostKey, Stored<Message>);

/// What makes a message the same message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PostKey {
    pub target: RunKey,
    pub source: RunId,
    pub source_seq: u64,
    pub n: u32,
}

/// A document as it was uploaded.
#[derive(Clone, Debug)]
pub struct StoredDefinition {
    pub version: u32,
    pub hash: Digest,
    pub document: String,
    pub created_at: Timestamp,
}

/// An answer that was given for an idempotency key.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub digest: Digest,
    pub answer: String,
    pub at: Timestamp,
}

/// Everything that one transaction writes.
#[derive(Debug, Default)]
pub struct Writes {
    pub runs: Vec<RunWrite>,
    pub posted: Vec<Posted>,
    pub applied: Vec<PostKey>,
    pub kept: Vec<(Namespace, String, Kept)>,
    pub definitions: Vec<(Namespace, WorkflowId, StoredDefinition)>,
    pub connections: Vec<ConnectionWrite>,
    pub late: Vec<LateWrite>,
    /// Waits on a connection whose release was handed to their run.
    pub released: Vec<(RunNo, Connection)>,
    /// Runs that are looked at again only then, because their last look failed.
    pub postponed: Vec<(RunNo, Timestamp)>,
    /// Workers that have asked for work.
    pub heard: Vec<Heard>,
    /// That the engine serves: since when without a gap, and until now.
    pub served: Option<(Timestamp, Timestamp)>,
    /// Runs that leave for the archive.
    pub archived: Vec<ArchiveWrite>,
    /// What is older than this is forgotten.
    pub forgotten: Option<Before>,
    /// What the commits up to a position add to the numbers.
    pub counted: Option<(i64, crate::insights::Added)>,
    /// Who may come in.
    pub access: Vec<(Access, Timestamp)>,
    pub links_used: Vec<(Digest, Timestamp)>,
}

/// How such an error begins, also where a database hands it on as a text.
pub const UNREADABLE: &str = "the store holds something unreadable: ";

/// The age from which on nobody asks for a thing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Of idempotency keys.
    pub keys: Timestamp,
    /// Of rows of commits, and of workers that have not been heard of.
    pub commits: Timestamp,
}

/// A run, packed.
#[derive(Clone, Debug)]
pub struct ArchiveWrite {
    pub no: RunNo,
    pub bundle: Vec<u8>,
    /// Before it was packed.
    pub size: usize,
    pub at: Timestamp,
}

/// A worker listens to a queue.
#[derive(Clone, Debug)]
pub struct Heard {
    pub namespace: Namespace,
    pub queue: Queue,
    pub worker: WorkerId,
    /// None: all of the queue.
    pub handlers: Option<Vec<Handler>>,
    pub at: Timestamp,
}

impl Writes {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.posted.is_empty()
            && self.applied.is_empty()
            && self.kept.is_empty()
            && self.definitions.is_empty()
            && self.connections.is_empty()
            && self.late.is_empty()
            && self.released.is_empty()
            && self.postponed.is_empty()
            && self.heard.is_empty()
            && self.served.is_none()
            && self.archived.is_empty()
            && self.forgotten.is_none()
            && self.counted.is_none()
            && self.access.is_empty()
            && self.links_used.is_empty()
    }
}

/// What changed of one run.
#[derive(Debug)]
pub struct RunWrite {
    pub no: RunNo,
    /// The version that the store must have; 0 for a run that begins.
    pub from_seq: u64,
    pub to_seq: u64,
    pub key: RunKey,
    pub started: Arc<Started>,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub pinned: bool,
    /// The whole head, as it is stored.
    pub head: String,
    /// What lists filter by.
    pub shown: rows::Shown,
    /// When the sweep looks at it.
    pub wake_at: Option<Timestamp>,
    pub moves: Moves,
    pub records: Vec<Record>,
    /// The records as the store keeps them, if that was worked out before; then they are gone.
    pub log: Option<String>,
    pub steps: Vec<StepWrite>,
    pub payloads: Vec<(PayloadName, Json)>,
}

/// What an index has of a run, and changes: each costs the index a page, so nothing else is written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    Nothing,
    /// The time at which the sweep looks at it.
    Wake,
    /// The bucket of its state, and perhaps that time.
    Bucket,
}

#[derive(Debug)]
pub struct StepWrite {
    /// As the store has it.
    pub before: Option<Arc<Step>>,
    pub after: Arc<Step>,
    /// Only what heartbeats move has changed.
    pub only_live: bool,
    /// The row as the store keeps it, if that was worked out before.
    pub row: Option<String>,
}

#[derive(Clone, Debug)]
pub struct ConnectionWrite {
    pub namespace: Namespace,
    pub connection: Connection,
    pub facts: ConnectionFacts,
    /// Raise the generation for every run that waits.
    pub release: bool,
}

#[derive(Clone, Debug)]
pub struct LateWrite {
    pub no: RunNo,
    pub path: Path,
    /// Its place among the late answers of this path.
    pub n: usize,
    pub worker: WorkerId,
    pub answer: LateAnswer,
    /// It may carry sensitive values of its run.
    pub sealed: bool,
}

/// A commit, as readers of everything see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    pub no: RunNo,
    pub from_seq: u64,
    pub to_seq: u64,
}

/// An accident, not an answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the disk is full")]
    Full,
    #[error("the store did not answer in time: {0}")]
    Busy(String),
    #[error("a run was changed by somebody else")]
    Conflict,
    /// What a row says; another row may be fine.
    #[error("{begins}{0}", begins = UNREADABLE)]
    Corrupt(String),
    /// The file itself, which is no matter of one row.
    #[error("the file of the store is damaged: {0}")]
    Damaged(String),
    #[error("{0}")]
    Failed(String),
}

/// How a commit ended when it did not say "done".
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Nothing was written; known for certain.
    #[error("nothing was written: {0}")]
    NotDone(StoreError),
    /// It may have happened or not. Nothing may be promised or denied any more.
    #[error("nobody knows whether it was written: {0}")]
    Unknown(StoreError),
}

pub type Stored<T = ()> = Result<T, StoreError>;

/// Reads what is committed, also while a batch is being written.
pub trait Beside: Send + Sync + std::fmt::Debug {
    fn load_run(&self, key: &RunKey) -> Stored<Option<Loaded>>;
    fn load(&self, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>>;
    fn kept(&self, namespace: &Namespace, key: &str) -> Stored<Option<Kept>>;
}

/// One writer. Between `begin` and `commit` everything is one transaction.
pub trait Store: Send {
    fn beside(&self) -> Arc<dyn Beside>;
    fn begin(&mut self) -> Stored;
    /// Works out what can be without the database, before its turn.
    fn prepare(writes: &mut Writes) -> Stored;
    fn write(&mut self, writes: Writes) -> Stored;
    /// Writes the batch's own row, by which an unknown outcome can be looked up, and makes everything durable.
    fn commit(&mut self, batch: i64, now: Timestamp, touched: &[Touched]) -> Result<(), CommitError>;
    fn rollback(&mut self);

    /// The number of the last batch, and of the last run.
    fn last_numbers(&mut self) -> Stored<(i64, RunNo)>;
    fn load_run(&mut self, key: &RunKey) -> Stored<Option<Loaded>>;
    fn is_archived(&mut self, key: &RunKey) -> Stored<bool>;
    /// How a run of the archive ended.
    fn archived_as(&mut self, key: &RunKey) -> Stored<Option<RunState>>;
    /// A run of the archive, unpacked.
    fn bundle(&mut self, key: &RunKey) -> Stored<Option<Bundle>>;
    /// How a run of the archive ended, and its version.
    fn archived(&mut self, key: &RunKey) -> Stored<Option<(RunState, u64)>> {
        let head = self.bundle(key)?.map(|bundle| bundle.head);
        Ok(head.and_then(|head| Some((head.state?, head.seq))))
    }
    fn load(&mut self, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>>;
    /// All rows of a run.
    fn load_steps(&mut self, no: RunNo) -> Stored<Vec<Arc<Step>>>;
    /// Runs whose `wake_at` has come, the most overdue first.
    fn due(&mut self, now: Timestamp, limit: usize) -> Stored<Vec<(RunNo, RunKey)>>;
    fn next_wake(&mut self) -> Stored<Option<Timestamp>>;
    /// By priority, then by age.
    fn ready(&mut self, namespace: &Namespace, wanted: &Wanted, limit: usize) -> Stored<Vec<Candidate>>;
    /// The namespaces that have tasks in a queue.
    fn namespaces_of(&mut self, queue: &Queue) -> Stored<Vec<Namespace>>;
    /// Messages that wait, in the order in which they were written.
    fn posted(&mut self, limit: usize) -> Stored<Vec<Waiting>>;
    /// Waits that a reconnect released and whose runs have not heard of it.
    fn to_release(&mut self, limit: usize) -> Stored<Vec<(RunKey, RunNo, Connection)>>;
    fn kept(&mut self, namespace: &Namespace, key: &str) -> Stored<Option<Kept>>;
    /// The newest version when none is named.
    fn definition(
        &mut self,
        namespace: &Namespace,
        workflow: &WorkflowId,
        version: Option<u32>,
    ) -> Stored<Option<StoredDefinition>>;
    /// The open run that has this `unique` value.
    fn open_run(&mut self, namespace: &Namespace, workflow: &WorkflowId, unique: &str) -> Stored<Option<RunId>>;
    fn connections(&mut self) -> Stored<Vec<(Namespace, Connection, ConnectionFacts)>>;
    /// How many runs wait for a connection and were not released yet.
    fn waiting_for(&mut self, namespace: &Namespace, connection: &Connection) -> Stored<u64>;
    /// The last lease that was given for a path, and to whom.
    fn last_claim(&mut self, no: RunNo, path: &Path) -> Stored<Option<(Epoch, WorkerId)>>;
    /// A one-time link to an approval.
    fn link(&mut self, token_hash: &Digest) -> Stored<Option<Link>>;
    /// Since when an engine has served without a gap, and when it last did.
    fn serving(&mut self) -> Stored<Option<(Timestamp, Timestamp)>>;
}

/// The bucket of the index on states: what moves at every step shares one, so that moving costs no index.
pub fn bucket(state: RunState, delayed: bool) -> &'static str {
    let moves = matches!(state, RunState::Queued | RunState::Running) && !delayed;
    if moves { "active" } else { state.as_str() }
}
