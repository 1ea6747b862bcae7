//! What a store keeps beside the rows themselves so that they can be found: pure functions of a run, the same for every
//! database, and made again from the rows by `doctor`.

use abide_core::contract::{FailureKind, ReasonType, RunState};
use abide_core::ids::{Digest, Handler, Path, Queue};
use abide_core::run::event::Carries;
use abide_core::run::step::{ApprovalWait, Block, Connection, Step, TaskKind, Wait};
use abide_core::run::{Columns, Head, Started, Working, held_up_by, project};
use abide_core::time::Timestamp;

use super::{StoreError, Stored};

/// What lists filter by.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub state: RunState,
    pub bucket: &'static str,
    pub step_id: Option<Path>,
    pub reason: Option<ReasonType>,
    pub failure_kind: Option<FailureKind>,
}

/// A task that waits for a worker, as the queue orders it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub queue: Queue,
    pub handler: Handler,
    pub rank: i64,
    pub issued_at: Timestamp,
    pub body: bool,
}

/// What most rows take, so that their texts do not grow by pieces.
const USUAL_ROW: usize = 1_024;

/// A row as text.
pub fn json(value: &(impl serde::Serialize + ?Sized)) -> Stored<String> {
    let failed = |error: &dyn std::fmt::Display| StoreError::Failed(format!("a row cannot be written: {error}"));
    let mut text = Vec::with_capacity(USUAL_ROW);
    serde_json::to_writer(&mut text, value).map_err(|error| failed(&error))?;
    String::from_utf8(text).map_err(|error| failed(&error))
}

/// A head as text, without what its columns say.
pub fn head(head: &mut Head) -> Stored<String> {
    let mut columns = Columns::default();
    head.swap_columns(&mut columns);
    let text = json(head);
    head.swap_columns(&mut columns);
    text
}

/// Reads off a run (whose open rows are loaded) what its row shows.
pub fn shown(run: &Working) -> Shown {
    let head = &run.head;
    let state = head.state.unwrap_or(RunState::Queued);
    let delayed = state == RunState::Queued && head.body.is_none() && head.started.start_at.is_some();
    let (step_id, reason) = if state.is_terminal() { (None, None) } else { place(run) };
    Shown {
        state,
        bucket: super::bucket(state, delayed),
        step_id,
        reason,
        failure_kind: head.failure.as_ref().map(|failure| failure.kind),
    }
}

fn place(run: &Working) -> (Option<Path>, Option<ReasonType>) {
    match project(run).carries() {
        Some(Carries::Block { step_id, reason }) => (Some(step_id), Some(reason.reason())),
        Some(Carries::Lease { step_id, .. }) => (Some(step_id), None),
        Some(Carries::Undo { step_id, .. }) => (step_id, None),
        Some(Carries::Hold(_)) => (None, Some(ReasonType::PausedByOperator)),
        Some(Carries::Cancel(_)) => match held_up_by(run) {
            Some((step, block)) => (Some(step.path.clone()), Some(block.reason())),
            None => (None, Some(ReasonType::CancelGrace)),
        },
        Some(Carries::StartAt { .. }) => (None, Some(ReasonType::StartDelayed)),
        Some(Carries::HistoryFull { .. }) => (None, Some(ReasonType::HistoryFull)),
        None => (run.open().find(|step| step.is_ready()).map(|step| step.path.clone()), None),
    }
}

pub fn ready(started: &Started, step: &Step) -> Option<Ready> {
    let task = step.task.as_ref().filter(|task| task.lease.is_none())?;
    Some(Ready {
        queue: task.queue.clone(),
        handler: task.handler.clone(),
        rank: -i64::from(started.priority),
        issued_at: task.issued_at,
        body: task.kind == TaskKind::Body,
    })
}

/// The connection that a step waits for.
pub fn connection(step: &Step) -> Option<&Connection> {
    match step.block.as_ref()? {
        Block { wait: Wait::Auth { connection, .. }, .. } => Some(connection),
        _ => None,
    }
}

/// Since when a step waits for its connection: whatever reconnects it later releases the step.
pub fn waits_since(step: &Step) -> Option<(&Connection, Timestamp)> {
    Some((connection(step)?, step.block.as_ref()?.since))
}

/// The decision that a step waits for.
pub fn approval(step: &Step) -> Option<(&ApprovalWait, &Block)> {
    match step.block.as_ref()? {
        block @ Block { wait: Wait::Approval(approval), .. } => Some((approval, block)),
        _ => None,
    }
}

/// Callbacks that nobody has answered.
pub fn callbacks(step: &Step) -> impl Iterator<Item = &Digest> {
    step.callbacks.iter().filter(|callback| callback.answer.is_none()).map(|callback| &callback.token_hash)
}
