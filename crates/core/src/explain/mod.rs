//! Answers for people: what a run is doing, why, since when, what comes next and what can be done about it.
//! Everything here reads; nothing decides. Facts about others come in as [`Surroundings`].

mod actions;
mod advice;
mod cause;
mod evidence;
mod explanation;
mod future;
mod handoff;
mod past;
mod reason;
mod record;
mod status;
mod summary;
mod timeline;
mod triage;
mod view;
mod words;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use actions::{NextAction, ToDecide, next_actions, to_decide};
pub use cause::{Link, LinkKind};
pub use evidence::evidence_of;
pub use explanation::{Above, Explanation, Proof, explain};
pub use future::Coming;
pub use handoff::{Failed, Handoff, Late, Reached, Recommended, Succeeded, Unknown, handoff};
pub use past::{At, NotThen, explain_at, record_at, run_at};
pub use reason::{Detail, Reason};
pub use record::{Closing, Record, Settled, StepProgress, ToldWarning, Undo, record};
pub use status::{Status, status};
pub use summary::summary;
pub use timeline::{Entered, MOST_ROWS, Row, Segment, SegmentKind, Timeline, timeline};
pub use triage::{Answer, Triage, triage};

use serde::Serialize;

use crate::contract::{FailureClass, RunState};
use crate::ids::{Handler, Path, Queue, RunId, WorkerId, WorkflowId};
use crate::mask::Mask;
use crate::run::step::{Connection, TaskKind};
use crate::run::{ConnectionFacts, LateAnswer, LateReport, NEWEST, Working};
use crate::time::{Span, Timestamp};

/// How long after its last claim call a worker counts as listening: the longest call, and time to make the next one.
pub const LISTENING: Span = Span::from_secs(90);

/// Facts about others that are read when somebody asks and never stored with the run. What is absent is not known.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Since when an engine has served without a gap; leases get a full window after it.
    pub serving_since: Timestamp,
    pub queues: BTreeMap<Queue, QueueFacts>,
    /// Limits that are used up and keep this run's tasks from being claimed.
    pub limits_full: Vec<LimitFacts>,
    pub children: BTreeMap<RunId, ChildFacts>,
    pub connections: BTreeMap<Connection, ConnectionFacts>,
    /// Late answers of tasks, by step, oldest first.
    pub late: BTreeMap<Path, Vec<LateFacts>>,
    pub parent: Option<ParentFacts>,
    /// The last proof of life of any worker on this run, also when its lease is over.
    pub last_heartbeat_at: Option<Timestamp>,
}

/// Who asks a queue for work, and how much waits there.
#[derive(Clone, Debug, Default)]
pub struct QueueFacts {
    pub listeners: Vec<Listener>,
    pub depth: u64,
    pub oldest_at: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub struct Listener {
    pub worker: WorkerId,
    /// None: every handler of the queue, except bodies.
    pub handlers: Option<Vec<Handler>>,
    pub last_poll_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct LimitFacts {
    pub name: String,
    pub used: u64,
    pub of: u64,
}

/// What a child run says of itself.
#[derive(Clone, Debug)]
pub struct ChildFacts {
    pub workflow_id: WorkflowId,
    pub state: RunState,
    pub since: Timestamp,
    pub summary: String,
    /// Its own way to the root cause, beginning with itself.
    pub chain: Vec<Link>,
    /// What would move it.
    pub actions: Vec<NextAction>,
}

impl ChildFacts {
    /// Of a child and how it explains itself.
    pub fn of(run: &Working, explained: Explanation) -> ChildFacts {
        let head = &run.head;
        // What is about the whole child, as to cancel it, is nobody's way to move its parent.
        let mut actions: Vec<NextAction> =
            explained.can_be_done.into_iter().filter(|action| action.step_id.is_some()).take(NEWEST).collect();
        for action in &mut actions {
            action.of_run.get_or_insert_with(|| head.run_id.clone());
        }
        ChildFacts {
            workflow_id: head.started.workflow_id.clone(),
            state: explained.state,
            since: head.since,
            summary: explained.summary,
            chain: explained.chain,
            actions,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ParentFacts {
    pub state: RunState,
    pub summary: String,
}

/// What a worker said after its lease was over.
#[derive(Clone, Debug)]
pub struct LateFacts {
    pub at: Timestamp,
    pub worker: Option<WorkerId>,
    pub said: LateSaid,
    /// The bytes of a result, only where the reader may see payloads.
    pub shown: Option<Arc<str>>,
}

/// What a late answer says, without its payload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "said")]
pub enum LateSaid {
    Result,
    Receipt {
        /// The named effect; none: the step's own.
        #[serde(skip_serializing_if = "Option::is_none")]
        effect: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        external_id: Option<String>,
    },
    Failure {
        #[serde(skip_serializing_if = "Option::is_none")]
        class: Option<FailureClass>,
        message: String,
    },
}

impl LateFacts {
    /// As people may see it: a result that repeats something sensitive is not shown at all.
    pub fn of(answer: LateAnswer, worker: Option<WorkerId>, mask: &Mask) -> LateFacts {
        let whole = |json: Arc<str>| matches!(mask.json(&json), Cow::Borrowed(_)).then_some(json);
        let (said, shown) = match answer.said {
            LateReport::Result { output } => (LateSaid::Result, whole(output)),
            LateReport::Receipt { name: effect, external_id, result } => {
                let external_id = external_id.map(|id| mask.id(&id).into_owned());
                (LateSaid::Receipt { effect, external_id }, result.and_then(whole))
            }
            LateReport::Failure { class, message, .. } => {
                (LateSaid::Failure { class, message: mask.text(&message).into_owned() }, None)
            }
        };
        LateFacts { at: answer.at, worker, said, shown }
    }

    /// Whether it proves that the effect of the whole step happened.
    fn is_proof(&self) -> bool {
        match &self.said {
            LateSaid::Result => true,
            LateSaid::Receipt { effect, .. } => effect.is_none(),
            LateSaid::Failure { .. } => false,
        }
    }
}

impl Surroundings {
    /// The first late answer that proves the effect of a step.
    fn late_proof(&self, path: &Path) -> Option<&LateFacts> {
        self.late.get(path)?.iter().find(|late| late.is_proof())
    }
}

impl QueueFacts {
    /// Whether somebody has asked for this handler lately.
    fn is_heard(&self, handler: &Handler, kind: TaskKind, now: Timestamp) -> bool {
        self.last_poll_at(handler, kind).is_some_and(|at| now.since(at) <= LISTENING)
    }

    /// How many have asked for this handler lately.
    pub fn heard(&self, handler: &Handler, kind: TaskKind, now: Timestamp) -> usize {
        let lately = |listener: &&Listener| now.since(listener.last_poll_at) <= LISTENING;
        self.listeners.iter().filter(lately).filter(|listener| listener.offers(handler, kind)).count()
    }

    /// When this handler was last asked for.
    fn last_poll_at(&self, handler: &Handler, kind: TaskKind) -> Option<Timestamp> {
        let offering = self.listeners.iter().filter(|listener| listener.offers(handler, kind));
        offering.map(|listener| listener.last_poll_at).max()
    }

    /// Whether workers offer other revisions of a coded body.
    fn has_other_revision(&self, workflow: &str, now: Timestamp) -> bool {
        let listening = self.listeners.iter().filter(|listener| now.since(listener.last_poll_at) <= LISTENING);
        let mut offered = listening.flat_map(|listener| listener.handlers.iter().flatten());
        offered.any(|name| name.as_str().split_once('@').is_some_and(|(name, _)| name == workflow))
    }
}

impl Listener {
    fn offers(&self, handler: &Handler, kind: TaskKind) -> bool {
        match &self.handlers {
            Some(handlers) => handlers.contains(handler),
            None => kind != TaskKind::Body,
        }
    }
}
