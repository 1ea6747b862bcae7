//! Time has come: leases that ran out, retries, sleeps, deadlines, graces. Each due thing acts once.

use crate::contract::{Cause, Failure, FailureClass, FailureKind, StepState};
use crate::definition::{Action, AtDeadline, EffectKind};
use crate::ids::Path;
use crate::run::Phase;
use crate::run::advance::{Decided, Draft};
use crate::run::command::Reply;
use crate::run::event::{Fact, Reset};
use crate::run::lifecycle::{block_ends_at, due_at};
use crate::run::step::{Block, Lease, ProofBy, Role, Step, TaskKind, Wait};
use crate::time::Timestamp;

use super::flow::Opening;

/// A row can be due for a few reasons at once: its lease, its deadline, its wait.
const MOST_ROUNDS: usize = 4;

impl Draft<'_> {
    pub(super) fn wake(&mut self) -> Decided<Reply> {
        self.settle_late()?;
        self.handle_due()?;
        match self.run.head.phase {
            Phase::Forward if self.run.head.started.deadline_at.is_some_and(|at| at <= self.now) => {
                if self.run.head.body == Some(crate::contract::BodyState::Running) {
                    let message = "the run's deadline passed";
                    let failure = Failure::new(FailureKind::TimedOut, FailureClass::Fatal, message, self.now);
                    self.close(failure.coded("deadline"))?;
                } else if self.run.head.body.is_none() {
                    self.tell(Fact::WorkflowStarted)?;
                    let message = "the run's deadline passed before it began";
                    let failure = Failure::new(FailureKind::TimedOut, FailureClass::Fatal, message, self.now);
                    self.close(failure.coded("deadline"))?;
                }
            }
            Phase::Closing { grace_until, .. } if grace_until <= self.now => self.revoke_leases()?,
            Phase::Canceling(ref cancel) if cancel.grace_until <= self.now => {
                let cancel = cancel.clone();
                self.revoke_leases()?;
                self.give_up_finals(&cancel)?;
            }
            Phase::Forward
            | Phase::Closing { .. }
            | Phase::Canceling(_)
            | Phase::Compensating { .. }
            | Phase::Ended => {}
        }
        Ok(Reply::Done)
    }

    /// Handles every row whose instant has come, the earliest first, until nothing that can act is due: a row whose lease
    /// was lost may have passed its deadline as well.
    pub(super) fn handle_due(&mut self) -> Decided {
        for _ in 0..MOST_ROUNDS {
            let (held, before) = (self.run.head.is_held(), self.run.head.seq);
            for (_, path) in self.due_rows(held) {
                self.handle_due_row(&path, held)?;
            }
            if self.run.head.seq == before {
                return Ok(());
            }
        }
        // Whatever is still due is looked at by the next wake.
        Ok(())
    }

    fn due_rows(&self, held: bool) -> Vec<(Timestamp, Path)> {
        let (forward, since) = (matches!(self.run.head.phase, Phase::Forward), self.around.serving_since);
        let due = self.run.open().filter_map(|step| Some((due_at(step, held, forward, since)?, step.path.clone())));
        let mut due: Vec<_> = due.filter(|(at, _)| *at <= self.now).collect();
        due.sort();
        due
    }

    fn handle_due_row(&mut self, path: &Path, held: bool) -> Decided {
        let Some(step) = self.row(path)?.filter(|step| step.is_open()) else { return Ok(()) };
        let since = self.around.serving_since;
        // A report that came in time may still wait.
        if step.lease_expires_at(since).is_some_and(|at| at <= self.heard_until()) {
            return self.lease_lost(path);
        }
        if step.times_out_at(since).is_some_and(|at| at <= self.heard_until()) {
            return self.timed_out(path);
        }
        let forward = matches!(self.run.head.phase, Phase::Forward);
        if step.deadline_at.is_some_and(|at| at <= self.now) && forward && !step.state.is_ended() {
            return self.step_deadline(path);
        }
        if block_ends_at(step, held).is_some_and(|at| at <= self.now) {
            return self.block_ended(path);
        }
        Ok(())
    }

    /// The worker stopped proving that it lives.
    fn lease_lost(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let (Some(lease), Some(task)) = (step.lease().cloned(), step.task.as_ref()) else { return Ok(()) };
        let (kind, attempt) = (task.kind, step.attempt);
        let task_path = self.path_of_task(path, kind)?;
        let loss = self.loss_of(step, &lease);
        let cause = std::mem::replace(&mut self.cause, Cause::LeaseLost);
        self.tell_of(&task_path, loss)?;
        let step = self.must_row(path)?;
        if self.should_stop(step) {
            let message = format!("its worker {} was lost", lease.owner);
            let failure = self.failure(path, FailureClass::Lost, message, attempt).coded("lease_lost");
            self.recover(path, failure, None)?;
        } else {
            let message = format!(
                "No heartbeat from {} within {}; its lease {} was lost.",
                lease.owner, lease.window, lease.epoch
            );
            let lost = self.failure(path, FailureClass::Lost, message.clone(), attempt).coded("lease_lost");
            let lost = Failure { kind: FailureKind::WorkerCrash, ..lost };
            let wait = Wait::Lost { owner: lease.owner.clone(), epoch: lease.epoch };
            let block = Box::new(Block::new(wait, message, self.now));
            // A lost probe or undo says nothing about why the step itself is where it is.
            let failure = matches!(kind, TaskKind::Step | TaskKind::Body).then(|| Box::new(lost));
            self.tell_of(path, Fact::StepBlocked { block, failure })?;
            self.project()?;
            if !self.run.head.is_held() {
                self.recover_lost(path)?;
            }
        }
        self.cause = cause;
        Ok(())
    }

    /// Whose loss it was, and whether the input may be what killed the worker.
    fn loss_of(&self, step: &Step, lease: &Lease) -> Fact {
        let heard_at = step.live.as_ref().map_or(lease.granted_at, |live| live.last_heartbeat_at);
        let stored = (step.place.role == Role::Body).then_some(self.run.head.coded.stored);
        Fact::TaskLost {
            owner: lease.owner.clone(),
            epoch: lease.epoch,
            across_stop: heard_at < self.around.open_since,
            stored,
            progressed: stored.is_some_and(|stored| stored > step.stored_at_loss),
        }
    }

    /// What recovery does about a lost lease.
    pub(super) fn recover_lost(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let Some(Wait::Lost { owner, epoch }) = step.block.as_ref().map(|block| block.wait.clone()) else {
            return Ok(());
        };
        let message = format!("the worker {owner} was lost with lease {epoch}");
        // The issue of anything else than a probe ends the count of its attempts.
        let (attempt, probing) = (step.attempt, step.probe_attempt > 0);
        let external = self.spec(step).effect == EffectKind::External;
        let undoing = step.state == StepState::Compensating;
        let class = if external && !probing { FailureClass::OutcomeUnknown } else { FailureClass::Lost };
        let lost = Failure::new(FailureKind::WorkerCrash, class, message, self.now)
            .coded("lease_lost")
            .of(path.clone(), attempt);
        if probing {
            return self.probe_failed(path, Failure { class: FailureClass::Lost, ..lost }, &Default::default());
        }
        if undoing {
            return self.undo_lost(path, lost);
        }
        if self.complete_from_receipt(path)? {
            return Ok(());
        }
        if external && self.spec(self.must_row(path)?).policy(FailureClass::Lost) == crate::contract::Policy::Hold {
            return Ok(());
        }
        self.recover(path, lost, None)
    }

    pub(super) fn path_of_task(&self, path: &Path, kind: TaskKind) -> Decided<Path> {
        let undoing = self.must_row(path)?.state == StepState::Compensating;
        Ok(match kind {
            TaskKind::Step | TaskKind::Body => path.clone(),
            TaskKind::Reconcile if undoing => path.undo().probe(),
            TaskKind::Reconcile => path.probe(),
            TaskKind::Compensate => path.undo(),
        })
    }

    /// One attempt took longer than it may: its lease is revoked.
    fn timed_out(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let (Some(lease), Some(task)) = (step.lease().cloned(), step.task.as_ref()) else { return Ok(()) };
        let (kind, timeout) = (task.kind, task.timeout.unwrap_or_default());
        let attempt = step.attempt_of(kind);
        let until = self.may_act_until(step);
        let class = match self.effect_of(step, kind) {
            EffectKind::External => FailureClass::OutcomeUnknown,
            EffectKind::None | EffectKind::Idempotent => FailureClass::Transient,
        };
        let message = format!("attempt {attempt} took longer than {timeout}");
        let failure =
            Failure::new(FailureKind::TimedOut, class, message, self.now).coded("timeout").of(path.clone(), attempt);
        let task_path = self.path_of_task(path, kind)?;
        let failed = Fact::TaskFailed {
            epoch: lease.epoch,
            digest: None,
            failure: Box::new(failure.clone()),
            retry_after: None,
            until,
        };
        self.tell_of(&task_path, failed)?;
        match kind {
            TaskKind::Reconcile => self.probe_failed(path, failure, &Default::default()),
            TaskKind::Compensate => self.undo_failed(path, failure, &Default::default()),
            TaskKind::Step | TaskKind::Body => {
                if self.complete_from_receipt(path)? {
                    Ok(())
                } else {
                    self.recover(path, failure, None)
                }
            }
        }
    }

    /// The whole step took longer than it may.
    fn step_deadline(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        let in_flight = step.is_leased() || self.is_unknown(step);
        let class = if in_flight && def.effect == EffectKind::External {
            FailureClass::OutcomeUnknown
        } else {
            FailureClass::Fatal
        };
        let message = format!("its deadline of {} passed", def.deadline.unwrap_or_default());
        let failure = Failure::new(FailureKind::TimedOut, class, message, self.now)
            .coded("deadline")
            .of(path.clone(), step.attempt.max(1));
        let tolerated = def.at_deadline == Some(AtDeadline::Warn);
        if !tolerated && step.task.is_none() && self.take_case(path, &def, None, Some(&failure))? {
            return Ok(());
        }
        self.fail_step(path, failure, tolerated)
    }

    /// A retry, a sleep, a pause before a probe, or a wait's own deadline.
    fn block_ended(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let Some(block) = step.block.clone() else { return Ok(()) };
        let undoing = step.state == StepState::Compensating;
        match block.wait {
            Wait::Retry { .. } if undoing => self.issue_undo(path),
            Wait::Retry { next_attempt, .. } => self.issue_again(path, next_attempt, None),
            Wait::Probe => self.issue_probe(path),
            Wait::Timer => self.timer_ended(path),
            Wait::Approval(_) | Wait::Signal { .. } | Wait::Callback { .. } | Wait::Child { .. } => {
                self.wait_is_over(path)
            }
            Wait::Auth { .. } | Wait::Lost { .. } | Wait::Operator { .. } => Ok(()),
        }
    }

    fn timer_ended(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        let own = matches!(def.action, Action::Sleep(_)) || step.place.role == Role::Coded;
        if own {
            return self.complete_step(path, None, ProofBy::Engine);
        }
        if step.attempt == 0 {
            // The pause before a round is over: it begins now, or when the hold lets it.
            let opening = Opening { path: path.clone(), place: step.place.clone() };
            let may_issue = self.may_issue(self.is_finally(step), Some(step));
            self.tell_of(path, Fact::StepReset(Reset::default()))?;
            return if may_issue { self.open(opening, &def) } else { Ok(()) };
        }
        self.deliver(path, "timer", None, None, None)
    }
}
