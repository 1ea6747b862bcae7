//! What will happen by itself, and when: retries, deadlines with their outcome, leases, graces, sleeps.

use serde::Serialize;

use super::view::{View, task_path};
use crate::contract::BodyState;
use crate::definition::AtDeadline;
use crate::run::step::{Block, Step, Wait};
use crate::run::{NEWEST, Phase};
use crate::time::Timestamp;

/// Something that happens unless something else happens first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Coming {
    pub what: String,
    pub at: Timestamp,
}

impl View<'_> {
    /// The earliest 20.
    pub fn will_happen(&self) -> Vec<Coming> {
        if self.is_terminal() {
            return Vec::new();
        }
        let mut coming = self.of_the_phase();
        for step in self.run.open() {
            coming.extend(self.lease_ends(step));
            coming.extend(self.step_deadline(step));
            coming.extend(step.block.as_ref().and_then(|block| self.block_ends(step, block)));
        }
        coming.sort_by(|a, b| (a.at, &a.what).cmp(&(b.at, &b.what)));
        coming.truncate(NEWEST);
        coming
    }

    fn of_the_phase(&self) -> Vec<Coming> {
        let head = &self.run.head;
        let leased = self.must_stop();
        let mut coming = Vec::new();
        let mut add = |what: &str, at| coming.push(Coming { what: what.into(), at });
        match &head.phase {
            Phase::Forward => {
                if let Some(at) = head.started.start_at.filter(|_| head.body.is_none() && !head.is_held()) {
                    add("the run starts", at);
                }
                if let Some(at) = head.started.deadline_at.filter(|_| head.body != Some(BodyState::Completed)) {
                    add("the run's deadline passes and it fails as timed_out", at);
                }
            }
            Phase::Closing { grace_until, .. } if leased => {
                add("workers that have not stopped lose their leases, and the run ends", *grace_until);
            }
            Phase::Canceling(cancel) if leased => {
                add("workers that have not stopped lose their leases, and the run is canceled", cancel.grace_until);
            }
            Phase::Closing { .. } | Phase::Canceling(_) | Phase::Compensating { .. } | Phase::Ended => {}
        }
        coming
    }

    /// The end of the lease and of the attempt. Without a heartbeat to go by, as in the past, the lease is left out.
    fn lease_ends(&self, step: &Step) -> Vec<Coming> {
        let Some((lease, path)) = step.lease().map(|lease| (lease, task_path(step))) else { return Vec::new() };
        let expires_at = step.live.as_ref().and(step.lease_expires_at(self.around.serving_since));
        let timeout = step.times_out_at(self.around.serving_since);
        let expiry = expires_at.map(|at| Coming {
            what: format!("the lease of {} on {path} is lost, unless a heartbeat comes", lease.owner),
            at,
        });
        let timeout = timeout.map(|at| Coming { what: format!("this attempt of {path} times out"), at });
        expiry.into_iter().chain(timeout).collect()
    }

    fn step_deadline(&self, step: &Step) -> Option<Coming> {
        let overdue = step.block.as_ref().is_some_and(|block| block.overdue);
        let acts = matches!(self.run.head.phase, Phase::Forward) && !step.state.is_ended() && !overdue;
        let at = step.deadline_at.filter(|_| acts)?;
        let warns = self.declared(step).is_some_and(|def| def.at_deadline == Some(AtDeadline::Warn));
        let outcome = if warns { "the run goes on with a warning" } else { "it fails as timed_out" };
        Some(Coming { what: format!("the deadline of {} passes and {outcome}", step.path), at })
    }

    /// When a block ends by itself. While the run is held, retries and sleeps are not coming.
    fn block_ends(&self, step: &Step, block: &Block) -> Option<Coming> {
        let at = block.until.filter(|_| !block.overdue)?;
        let (held, path) = (self.run.head.is_held(), &step.path);
        let what = match &block.wait {
            Wait::Retry { .. } | Wait::Timer | Wait::Probe if held => return None,
            Wait::Retry { next_attempt, .. } => format!("attempt {next_attempt} of {path} is issued"),
            Wait::Timer if step.place.number.is_some() && step.attempt == 0 => format!("{path} begins"),
            Wait::Timer => format!("{path} wakes"),
            Wait::Probe => format!("a probe finds out whether {path} happened"),
            Wait::Approval(_) | Wait::Signal { .. } | Wait::Callback { .. } | Wait::Child { .. } => {
                format!("the wait of {path} is over: {}", self.at_deadline(step, block))
            }
            Wait::Auth { .. } | Wait::Lost { .. } | Wait::Operator { .. } => return None,
        };
        Some(Coming { what, at })
    }
}
