//! A run: its head, its open steps, and the one way to change them: `advance` a command to events, `fold` events to rows.

pub mod command;
pub mod event;
pub mod intent;
pub mod invariant;
pub mod memory;
pub mod rerun;
pub mod step;

mod advance;
mod decide;
mod fold;
mod late;
mod lifecycle;
mod masked;
mod scope;
pub mod size;

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use advance::{Advanced, Need, Stop, advance, first_needs};
pub use fold::{Broken, fold, replay, row_of};
use intent::Intent;
pub use late::{LateAnswer, LateAnswers, LateReport};
pub use lifecycle::{Situation, held_up_by, project, wake_at};
use step::{Connection, Ref, Step};

use crate::contract::{BodyState, Evidence, Failure, RunState, StepState};
use crate::definition::OnCancel;
use crate::ids::{Digest, Epoch, Namespace, Path, PayloadName, Queue, RunId, WorkflowId};
use crate::time::{Span, Timestamp};

/// What a command is decided on: the run's head, every open step, and whatever else the command touches.
#[derive(Clone, Debug)]
pub struct Working {
    /// On the heap: whoever hands a run on would copy a kilobyte.
    pub head: Box<Head>,
    /// Loaded rows; `None` means that the store has no such row.
    pub steps: BTreeMap<Path, Option<Arc<Step>>>,
    /// Loaded payloads, as the JSON text that was stored.
    pub payloads: BTreeMap<PayloadName, Arc<str>>,
}

/// The row of the run itself, folded from its log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    #[serde(default, skip_serializing_if = "is_default")]
    pub run_id: RunId,
    #[serde(default, skip_serializing_if = "is_default")]
    pub namespace: Namespace,
    /// The run's version: the number of its last event.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seq: u64,
    /// Of the last event; it covers all before.
    pub hash: Digest,
    /// Nothing before the first event.
    #[serde(default, skip_serializing_if = "is_default")]
    pub state: Option<RunState>,
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "is_default")]
    pub updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub epoch: Epoch,
    pub phase: Phase,
    #[serde(default, skip_serializing_if = "is_default")]
    pub body: Option<BodyState>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub hold: Option<Hold>,
    /// Who asked for a cancel, and why; it stays known when the run has ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub canceled: Option<Cancel>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub finally: Finally,
    /// It never changes, so it is stored apart and shared.
    #[serde(skip_serializing, default = "nothing_said")]
    pub started: Arc<Started>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub output: Option<Ref>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub failure: Option<Failure>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub warnings: Newest<Warning>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub evidence: Newest<Evidence>,
    /// One entry for each declared step.
    pub plan: Vec<Brief>,
    /// The completed step that would be undone first; the rest hangs on it (`Step::undo_next`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub undo_first: Option<Path>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub undo_left: u32,
    /// External steps that ended without anybody knowing whether their effect happened (`Step::unknown`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub unknown: Newest<Path>,
    /// The one of them that a rollback looks at first; the rest hangs on it (`Step::unknown_next`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub unknown_first: Option<Path>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub unknown_left: u32,
    /// Signals that came before anybody waited for them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mailbox: BTreeMap<String, Vec<Mail>>,
    /// The approval that was decided last, and by whom: an answer that names no step may be a repetition of that one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub last_decided: Option<(Path, String)>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub children: u32,
    /// Children that are not waited for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub detached: BTreeMap<Path, Detached>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub coded: Coded,
    #[serde(default, skip_serializing_if = "is_default")]
    pub history_full: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub warned_of_length: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub pinned: bool,
}

/// Everything that was said when the run was started; it stands in the first event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    pub workflow_id: WorkflowId,
    pub workflow_version: u32,
    pub definition_hash: Digest,
    /// How many steps the definition declares.
    pub steps: usize,
    pub input: Ref,
    pub created_at: Timestamp,
    /// Who asked: an approval may not be given by them where the workflow says so.
    pub requester: String,
    /// Who asked for the runs that this one reruns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requested_before: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
    /// Wins over the queues of the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    #[serde(default)]
    pub priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_region: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// How many runs are above this one.
    #[serde(default)]
    pub depth: u32,
    /// Effects of the run that this one reruns of which nobody knows whether they happened, by step of this run. They are looked
    /// for before anything is issued.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub intents: BTreeMap<Path, Intent>,
    /// Its payloads are sealed where they are stored: its document, or its parent's, calls something sensitive.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sealed: bool,
    /// The trace of this run; made at the start if none came in.
    pub trace_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    pub run_id: RunId,
    pub step_id: Path,
}

/// The run that this one was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub kind: OriginKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The last event of that run when this one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_step: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginKind {
    Rerun,
    Retry,
    Schedule,
}

/// Where the run is between its start and its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Phase {
    Forward,
    /// The body failed or the deadline passed: nothing new is issued, work in progress may end until `grace_until`.
    Closing {
        grace_until: Timestamp,
        failure: Box<Failure>,
        undo: bool,
    },
    Canceling(Cancel),
    Compensating {
        because: Because,
        /// Undos that were given up.
        given_up: Newest<Path>,
    },
    Ended,
}

impl Phase {
    /// Why the rollback was started that is under way.
    pub fn because(&self) -> Option<&Because> {
        if let Phase::Compensating { because, .. } = self { Some(because) } else { None }
    }
}

/// Why a rollback was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    Failed(Box<Failure>),
    Canceled(Cancel),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cancel {
    pub by: String,
    pub reason: String,
    pub grace_until: Timestamp,
    pub undo: bool,
}

/// An operator holds the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    pub by: String,
    pub reason: String,
    pub since: Timestamp,
    /// One step may pass.
    pub one_step: OneStep,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OneStep {
    #[default]
    No,
    /// The next step that can be issued may be.
    Allowed,
    /// This step is under way; when it ends the run is held again.
    UnderWay(Path),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finally {
    #[default]
    NotYet,
    UnderWay,
    Done,
}

/// What the head remembers of a declared step: enough to see what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brief {
    pub state: StepState,
    /// From 1; a jump back raises it.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub visit: u32,
    /// Its failure does not fail the run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tolerated: bool,
}

/// A signal that waits to be taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mail {
    /// The event with which it came.
    pub seq: u64,
    pub payload: Ref,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detached {
    pub run_id: RunId,
    pub on_cancel: OnCancel,
}

/// Counters of a coded body: whether it has asked again for everything that is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coded {
    /// Steps with a stored result.
    pub stored: u32,
    /// Of those, the ones that the present lease of the body has asked for.
    pub asked: u32,
    /// The lease that asked.
    pub epoch: Epoch,
}

/// Something went wrong that the run tolerates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<Path>,
    pub at: Timestamp,
}

/// The newest of many, and how many there were.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Newest<T> {
    pub count: u64,
    pub newest: Vec<T>,
}

/// The code of the warning that a log is getting long.
pub const LONG_HISTORY: &str = "long_history";

/// The code of the warning that nobody knows whether an effect happened.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// How many entries a list in the record holds.
pub const NEWEST: usize = 20;

impl<T> Newest<T> {
    pub fn push(&mut self, entry: T) {
        self.count += 1;
        if self.newest.len() == NEWEST {
            self.newest.remove(0);
        }
        self.newest.push(entry);
    }
}

impl<T: PartialEq> Newest<T> {
    /// Takes an entry back that was pushed once.
    pub fn remove(&mut self, entry: &T) {
        self.count = self.count.saturating_sub(1);
        self.newest.retain(|known| known != entry);
    }
}

impl<T> Default for Newest<T> {
    fn default() -> Newest<T> {
        Newest { count: 0, newest: Vec::new() }
    }
}

/// Facts of other rows that a decision may need.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// Since when an engine has served without a gap; leases get a full window after it.
    pub serving_since: Timestamp,
    /// Since when this engine is open: it stopped before, for however short a time.
    pub open_since: Timestamp,
    /// Until when was heard what workers say, if that is earlier than now: of a report, when it came; of a look at what is due,
    /// when the first report came that still waits. An engine that is slow takes no lease from anybody.
    pub heard_until: Option<Timestamp>,
    /// Connections that this command may meet.
    pub connections: BTreeMap<Connection, ConnectionFacts>,
    /// Groups of the person who decides (`role:X` names group X).
    pub groups: Vec<String>,
    /// What workers said after their leases were over, by step, oldest first: evidence beside the log.
    pub late: LateAnswers,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// Raised by every reconnect.
    pub generation: u64,
    pub reconnected_at: Option<Timestamp>,
    pub broken: bool,
}

/// Numbers that users meet; `GET /v1/contract` shows them.
pub mod limits {
    use super::Span;

    pub const PAYLOAD_BYTES: usize = 1 << 20;
    /// Messages, details and reasons of one request: they stand in events, and in rows that are written again.
    pub const WORDS_BYTES: usize = 64 << 10;
    pub const DEFINITION_BYTES: usize = 256 << 10;
    pub const WARN_EVENTS: u64 = 100_000;
    pub const MAX_EVENTS: u64 = 1_000_000;
    pub const DEPTH: u32 = 32;
    pub const MAILBOX: usize = 256;
    pub const NAMED_EFFECTS: usize = 1_000;
    /// The schema of a form that a task or a body asks for: it stands in events, so that its page needs no payload.
    pub const FORM_BYTES: usize = 16 << 10;
    pub const LEASE: Span = Span::from_secs(30);
    pub const GRACE: Span = Span::from_secs(30);
    /// Items of a list are stored in pieces of this many, so that issuing one reads one piece.
    pub const ITEMS_PER_PIECE: usize = 32;
    pub const LISTED_FAILURES: usize = 100;
    pub const LISTED_ANSWERS: usize = 100;
    /// Steps that one document can declare.
    pub const STEPS: usize = 1_000;
}

/// Rows are written at every step, so that what says nothing is left out of them.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn first() -> u32 {
    1
}

fn is_first(visit: &u32) -> bool {
    *visit == 1
}

/// What a run was started with before it was.
fn nothing_said() -> Arc<Started> {
    Arc::new(Started {
        workflow_id: WorkflowId::from(""),
        workflow_version: 0,
        definition_hash: Digest::default(),
        steps: 0,
        input: Ref { name: PayloadName::input(), digest: Digest::default(), size: 0 },
        created_at: Timestamp::default(),
        requester: String::new(),
        requested_before: Vec::new(),
        start_at: None,
        deadline_at: None,
        labels: BTreeMap::new(),
        unique: None,
        queue: None,
        priority: 0,
        owner_id: None,
        data_region: None,
        parent: None,
        origin: None,
        depth: 0,
        intents: BTreeMap::new(),
        sealed: false,
        trace_id: String::new(),
    })
}

impl Working {
    /// Before the first event.
    pub fn unborn(run_id: RunId, namespace: Namespace) -> Working {
        let nothing = Timestamp::default();
        let head = Head {
            run_id,
            namespace,
            seq: 0,
            hash: Digest::default(),
            state: None,
            since: nothing,
            updated_at: nothing,
            attempt: 0,
            epoch: Epoch::default(),
            phase: Phase::Forward,
            body: None,
            hold: None,
            canceled: None,
            finally: Finally::NotYet,
            started: nothing_said(),
            started_at: None,
            ended_at: None,
            output: None,
            failure: None,
            warnings: Newest::default(),
            evidence: Newest::default(),
            plan: Vec::new(),
            undo_first: None,
            undo_left: 0,
            unknown: Newest::default(),
            unknown_first: None,
            unknown_left: 0,
            mailbox: BTreeMap::new(),
            last_decided: None,
            children: 0,
            detached: BTreeMap::new(),
            coded: Coded::default(),
            history_full: false,
            warned_of_length: false,
            pinned: false,
        };
        Working { head: Box::new(head), steps: BTreeMap::new(), payloads: BTreeMap::new() }
    }

    /// Loaded rows that may still act.
    pub fn open(&self) -> impl Iterator<Item = &Step> {
        self.steps.values().flatten().map(|step| &**step).filter(|step| step.is_open())
    }

    /// Forgets what only one command needed: rows that are closed, and all payloads.
    pub fn release(&mut self) {
        self.steps.retain(|_, step| step.as_ref().is_some_and(|step| step.is_open()));
        self.payloads.clear();
    }

    pub fn step(&self, path: &str) -> Option<&Step> {
        self.steps.get(path)?.as_deref()
    }

    pub fn is_terminal(&self) -> bool {
        self.head.state.is_some_and(RunState::is_terminal)
    }
}

/// What a store keeps of a head in columns, because lists ask for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    pub run_id: RunId,
    pub namespace: Namespace,
    pub seq: u64,
    pub state: Option<RunState>,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub pinned: bool,
}

impl Head {
    /// Exchanges what stands in columns: a head without it is written shorter.
    pub fn swap_columns(&mut self, columns: &mut Columns) {
        let Columns { run_id, namespace, seq, state, updated_at, ended_at, pinned } = columns;
        mem::swap(&mut self.run_id, run_id);
        mem::swap(&mut self.namespace, namespace);
        mem::swap(&mut self.seq, seq);
        mem::swap(&mut self.state, state);
        mem::swap(&mut self.updated_at, updated_at);
        mem::swap(&mut self.ended_at, ended_at);
        mem::swap(&mut self.pinned, pinned);
    }

    /// Whether an operator holds everything back right now.
    pub fn is_held(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.one_step == OneStep::No)
    }
}

pub use crate::definition::PUSH;
pub use decide::http::{CALLBACK_PLACEHOLDER, placeholder};
pub use decide::operator::{is_gate, resolutions};
pub(crate) use decide::sentence;

/// The key of a step: of its own run, or of the run in which its effect may have happened already.
pub fn key_of_step(head: &Head, step: &Step, path: &Path, name: Option<&str>) -> Digest {
    match &step.key_of {
        Some(of) if step.group == 0 && *path == step.path => key(&head.namespace, &of.run_id, &of.path, of.group, name),
        _ => idempotency_key(head, path, step.group, name),
    }
}

/// The key under which an effect may happen once: made from who asks and never from arguments.
pub fn idempotency_key(head: &Head, path: &Path, group: u32, name: Option<&str>) -> Digest {
    key(&head.namespace, &head.run_id, path, group, name)
}

fn key(namespace: &Namespace, run_id: &RunId, path: &Path, group: u32, name: Option<&str>) -> Digest {
    Digest::of_fields([
        b"effect".as_slice(),
        namespace.as_str().as_bytes(),
        run_id.as_str().as_bytes(),
        path.as_str().as_bytes(),
        &group.to_le_bytes(),
        name.unwrap_or("").as_bytes(),
    ])
}
