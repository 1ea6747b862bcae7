//! The one projection that decides a run's state, and the one instant at which it must be looked at again.

use super::event::Carries;
use super::step::{Block, Role, Step, Wait};
use super::{Cancel, Finally, Phase, Working, limits};
use crate::contract::{BodyState, RunState, StepState};
use crate::time::Timestamp;

/// A state with what it must carry: a running run without a lease cannot be written down.
#[derive(Clone, Debug, PartialEq)]
pub enum Situation {
    Queued {
        start_at: Option<Timestamp>,
    },
    Running {
        lease: Carries,
    },
    /// One of the waits, a back-off or a stall, by what the foremost block rests in.
    Resting {
        state: RunState,
        block: Carries,
    },
    Paused {
        hold: Carries,
    },
    Compensating {
        undo: Carries,
    },
    CancelRequested {
        cancel: Carries,
    },
    HistoryFull {
        events: Carries,
    },
}

impl Situation {
    pub fn state(&self) -> RunState {
        match self {
            Situation::Queued { .. } => RunState::Queued,
            Situation::Running { .. } => RunState::Running,
            Situation::Resting { state, .. } => *state,
            Situation::Paused { .. } => RunState::Paused,
            Situation::Compensating { .. } => RunState::Compensating,
            Situation::CancelRequested { .. } => RunState::CancelRequested,
            Situation::HistoryFull { .. } => RunState::WaitingOnOperator,
        }
    }

    pub fn carries(self) -> Option<Carries> {
        match self {
            Situation::Queued { start_at } => start_at.map(|at| Carries::StartAt { at }),
            Situation::Running { lease: carries }
            | Situation::Resting { block: carries, .. }
            | Situation::Paused { hold: carries }
            | Situation::Compensating { undo: carries }
            | Situation::CancelRequested { cancel: carries }
            | Situation::HistoryFull { events: carries } => Some(carries),
        }
    }
}

/// What an open run is doing. Ending is an event of its own and not decided here.
///
/// Precedence: cancel_requested, paused, compensating (with its exceptions), running, queued, then the foremost block.
pub fn project(run: &Working) -> Situation {
    let head = &run.head;
    match &head.phase {
        Phase::Canceling(cancel) => return Situation::CancelRequested { cancel: Carries::Cancel(cancel.clone()) },
        Phase::Compensating { .. } => return project_compensating(run),
        Phase::Forward | Phase::Closing { .. } | Phase::Ended => {}
    }
    if let Some(hold) = head.hold.as_ref().filter(|_| head.is_held()) {
        return Situation::Paused { hold: Carries::Hold(hold.clone()) };
    }
    let leased = run.open().filter_map(|step| Some((step, step.lease()?))).min_by_key(|(_, lease)| lease.epoch);
    if let Some((step, lease)) = leased {
        let lease = Carries::Lease { step_id: step.path.clone(), owner: lease.owner.clone(), epoch: lease.epoch };
        return Situation::Running { lease };
    }
    if run.open().any(Step::is_ready) {
        return Situation::Queued { start_at: None };
    }
    match foremost_block(run) {
        // With nothing else left, a full history is the reason.
        _ if head.history_full => Situation::HistoryFull { events: Carries::HistoryFull { events: head.seq } },
        Some(resting) => resting,
        None => Situation::Queued { start_at: head.started.start_at.filter(|_| head.body.is_none()) },
    }
}

/// A rollback shows itself, unless a worker was lost on an undo or it cannot go on without a person.
fn project_compensating(run: &Working) -> Situation {
    match foremost_block(run) {
        Some(Situation::Resting { state: state @ (RunState::Stalled | RunState::WaitingOnOperator), block }) => {
            Situation::Resting { state, block }
        }
        _ => {
            let step_id =
                run.open().find(|step| step.task.is_some() || step.block.is_some()).map(|step| step.path.clone());
            Situation::Compensating { undo: Carries::Undo { step_id, left: run.head.undo_left } }
        }
    }
}

/// The block that gives the run its state: by precedence, then the oldest.
fn foremost_block(run: &Working) -> Option<Situation> {
    let blocked = run.open().filter_map(|step| Some((step, step.block.as_ref()?)));
    let (step, block) = blocked.min_by_key(|(step, block)| (precedence(block.rests_in()), block.since, &step.path))?;
    let carries = Carries::Block { step_id: step.path.clone(), reason: Box::new(block.clone()) };
    Some(Situation::Resting { state: block.rests_in(), block: carries })
}

/// Of two things that hold a run, which one names its state.
pub fn precedence(state: RunState) -> u8 {
    match state {
        RunState::Succeeded | RunState::CompletedWithWarnings | RunState::Failed | RunState::Canceled => 0,
        RunState::CancelRequested => 1,
        RunState::Paused => 2,
        RunState::Compensating => 3,
        RunState::Running => 4,
        RunState::Queued => 5,
        RunState::Stalled => 6,
        RunState::WaitingOnOperator => 7,
        RunState::WaitingOnAuth => 8,
        RunState::WaitingOnApproval => 9,
        RunState::WaitingOnTool => 10,
        RunState::WaitingOnChild => 11,
        RunState::RetryScheduled => 12,
        RunState::WaitingOnTimer => 13,
    }
}

/// The earliest instant at which the rules may want to act, or nothing when only others can.
pub fn wake_at(run: &Working, serving_since: Timestamp) -> Option<Timestamp> {
    let head = &run.head;
    let held = head.is_held();
    let of_phase = match &head.phase {
        Phase::Ended => return None,
        Phase::Forward => {
            let start = head.started.start_at.filter(|_| head.body.is_none() && !held);
            // With the body done only the `finally` steps are left, and the run has kept its deadline.
            let deadline = head.started.deadline_at.filter(|_| head.body.is_none_or(|body| body == BodyState::Running));
            [start, deadline].into_iter().flatten().min()
        }
        // `finally` steps begin when everything else has ended; a cancel waits a grace for whoever they wait for.
        Phase::Canceling(cancel) if head.finally != Finally::NotYet => {
            run.open().filter_map(|step| given_up_at(cancel, step)).min()
        }
        Phase::Closing { .. } if head.finally != Finally::NotYet => None,
        Phase::Closing { grace_until, .. } => run.open().any(Step::is_leased).then_some(*grace_until),
        Phase::Canceling(cancel) => run.open().any(Step::is_leased).then_some(cancel.grace_until),
        Phase::Compensating { .. } => None,
    };
    let forward = matches!(head.phase, Phase::Forward);
    run.open().filter_map(|step| due_at(step, held, forward, serving_since)).chain(of_phase).min()
}

/// When a canceled run does not wait any longer for somebody to act on one of its `finally` steps.
pub(super) fn given_up_at(cancel: &Cancel, step: &Step) -> Option<Timestamp> {
    let block = step.block.as_ref().filter(|block| needs_somebody(block))?;
    Some(cancel.grace_until.max(block.since + limits::GRACE))
}

/// Of a canceled run: the step that keeps it from its end, and what somebody must decide. The oldest counts.
pub fn held_up_by(run: &Working) -> Option<(&Step, &Block)> {
    if !matches!(run.head.phase, Phase::Canceling(_)) || run.open().any(Step::is_leased) {
        return None;
    }
    let blocked = run.open().filter_map(|step| Some((step, step.block.as_ref()?)));
    let waiting = blocked.filter(|(_, block)| needs_somebody(block));
    waiting.min_by_key(|(step, block)| (block.since, &step.path))
}

/// Whether this ends only when somebody acts: nothing happens by itself, and no child does either.
fn needs_somebody(block: &Block) -> bool {
    match block.wait {
        Wait::Operator { .. } | Wait::Auth { .. } | Wait::Lost { .. } => true,
        Wait::Approval(_) | Wait::Signal { .. } | Wait::Callback { .. } => block.until.is_none() || block.overdue,
        Wait::Timer | Wait::Probe | Wait::Retry { .. } => block.overdue,
        Wait::Child { .. } => false,
    }
}

/// When this row wants to be looked at.
pub(super) fn due_at(step: &Step, held: bool, forward: bool, serving_since: Timestamp) -> Option<Timestamp> {
    let deadline = step.deadline_at.filter(|_| forward && !step.state.is_ended());
    [deadline, lease_ends_at(step, serving_since), block_ends_at(step, held)].into_iter().flatten().min()
}

/// When the lease or the attempt's timeout is over.
pub(super) fn lease_ends_at(step: &Step, serving_since: Timestamp) -> Option<Timestamp> {
    let expires_at = step.lease_expires_at(serving_since)?;
    Some(step.times_out_at(serving_since).map_or(expires_at, |timeout| timeout.min(expires_at)))
}

/// When a block ends by itself. A hold keeps retries and sleeps back; deadlines of waits still act.
pub(super) fn block_ends_at(step: &Step, held: bool) -> Option<Timestamp> {
    let block = step.block.as_ref().filter(|block| !block.overdue)?;
    match block.wait {
        Wait::Retry { .. } | Wait::Timer | Wait::Probe if held => None,
        // The body of a coded workflow holds its lease and begins the step again itself.
        Wait::Retry { .. } if step.place.role == Role::Coded && step.state != StepState::Compensating => None,
        Wait::Retry { .. } | Wait::Timer | Wait::Probe => block.until,
        Wait::Approval(_) | Wait::Signal { .. } | Wait::Callback { .. } | Wait::Child { .. } => block.until,
        Wait::Auth { .. } | Wait::Lost { .. } | Wait::Operator { .. } => None,
    }
}
