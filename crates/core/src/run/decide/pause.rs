//! Pause and resume: an operator holds everything that is new; what is under way may finish.

use crate::contract::StepState;
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Rejection, Reply};
use crate::run::event::{Fact, Reset};
use crate::run::step::{Block, Role, Step, TaskKind, Wait};
use crate::run::{Hold, OneStep, Phase};

impl Draft<'_> {
    pub(super) fn pause(&mut self, reason: &str) -> Decided<Reply> {
        match self.run.head.phase {
            Phase::Forward => {}
            Phase::Compensating { .. } => return Err(Rejection::Compensating.into()),
            Phase::Closing { .. } | Phase::Canceling(_) | Phase::Ended => {
                return Err(Rejection::NotNow { asked: "paused", state: self.state() }.into());
            }
        }
        if self.run.head.is_held() {
            return Ok(Reply::Replayed);
        }
        let hold = Hold { by: self.actor.id.clone(), reason: reason.into(), since: self.now, one_step: OneStep::No };
        self.tell(Fact::PauseSet(hold))?;
        let ready: Vec<(Path, TaskKind)> = self
            .run
            .open()
            .filter(|step| step.is_ready())
            .filter_map(|step| Some((step.path.clone(), step.task.as_ref()?.kind)))
            .collect();
        for (path, kind) in ready {
            self.withhold(&path, kind)?;
        }
        Ok(Reply::Done)
    }

    /// Takes a task back that nobody has claimed; the resume offers it again.
    fn withhold(&mut self, path: &Path, kind: TaskKind) -> Decided {
        self.take_away(path, "an operator paused the run")?;
        match kind {
            TaskKind::Reconcile => {
                let message = "The probe waits for the run to be resumed.";
                self.rest(path, Block::new(Wait::Probe, message, self.now).until(Some(self.now)))
            }
            TaskKind::Step | TaskKind::Body | TaskKind::Compensate => {
                self.tell_of(path, Fact::StepReset(Reset::default()))
            }
        }
    }

    pub(super) fn resume(&mut self, one_step: bool) -> Decided<Reply> {
        if self.run.head.hold.is_none() {
            return Err(Rejection::NotNow { asked: "resumed", state: self.state() }.into());
        }
        self.tell(Fact::PauseLifted { one_step })?;
        self.settle_late()?;
        self.handle_due()?;
        self.offer_withheld(|_| true)?;
        Ok(Reply::Done)
    }

    /// Offers again what a hold took back, as far as that may be issued now.
    pub(super) fn offer_withheld(&mut self, which: impl Fn(&Step) -> bool) -> Decided {
        let body_waits = self.run.open().any(|step| step.place.role == Role::Coded && step.block.is_some());
        let waiting: Vec<Path> = self
            .run
            .open()
            .filter(|step| (is_withheld(step) || is_lost(step)) && which(step))
            .filter(|step| step.place.role != Role::Body || !body_waits || is_lost(step))
            .map(|step| step.path.clone())
            .collect();
        for path in waiting {
            let step = self.must_row(&path)?;
            if is_lost(step) {
                self.recover_lost(&path)?;
            } else {
                let attempt = step.attempt;
                self.issue_again(&path, attempt, None)?;
            }
        }
        // Groups that could not open more while the run was held.
        let groups: Vec<Path> = self
            .run
            .open()
            .filter(|step| crate::run::scope::is_group(step) && !step.state.is_ended() && which(step))
            .map(|step| step.path.clone())
            .collect();
        self.groups.extend(groups);
        Ok(())
    }
}

fn is_withheld(step: &Step) -> bool {
    step.state == StepState::Pending && step.task.is_none() && step.block.is_none()
}

fn is_lost(step: &Step) -> bool {
    step.block.as_ref().is_some_and(|block| matches!(block.wait, Wait::Lost { .. }))
}
