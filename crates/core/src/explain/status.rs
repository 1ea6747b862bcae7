//! The small answer: where a run is in its life, and nothing inferred.

use serde::Serialize;

use super::view::first_path;
use crate::contract::{Lifecycle, RunState};
use crate::ids::{Path, RunId};
use crate::run::Working;
use crate::run::event::run_kind;
use crate::time::Timestamp;

/// What `GET /v1/runs/{id}/status` returns: no variables, no payload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    pub run_id: RunId,
    pub state: RunState,
    pub lifecycle: Lifecycle,
    pub current_step: Option<Path>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// The kind of the event that closed the run.
    pub terminal_event: Option<&'static str>,
    pub as_of_seq: u64,
}

pub fn status(run: &Working) -> Status {
    let head = &run.head;
    let state = head.state.unwrap_or(RunState::Queued);
    Status {
        run_id: head.run_id.clone(),
        state,
        lifecycle: lifecycle(state, head.started_at.is_some() || head.epoch.0 > 0),
        current_step: first_path(run).cloned(),
        started_at: head.started_at,
        ended_at: head.ended_at,
        terminal_event: state.is_terminal().then(|| run_kind(state)),
        as_of_seq: head.seq,
    }
}

/// Pending until the first claim or wait; the end is known from the state alone.
fn lifecycle(state: RunState, begun: bool) -> Lifecycle {
    match state {
        RunState::Succeeded | RunState::CompletedWithWarnings => Lifecycle::Completed,
        RunState::Failed => Lifecycle::Failed,
        RunState::Canceled => Lifecycle::Cancelled,
        RunState::Queued
        | RunState::Running
        | RunState::WaitingOnTool
        | RunState::WaitingOnAuth
        | RunState::WaitingOnApproval
        | RunState::WaitingOnChild
        | RunState::WaitingOnTimer
        | RunState::WaitingOnOperator
        | RunState::RetryScheduled
        | RunState::Stalled
        | RunState::Paused
        | RunState::Compensating
        | RunState::CancelRequested => {
            if begun {
                Lifecycle::Running
            } else {
                Lifecycle::Pending
            }
        }
    }
}
