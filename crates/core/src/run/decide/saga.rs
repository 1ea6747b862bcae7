//! The way back: a saga undoes its completed steps, last first, and says truly whether everything was undone.

use crate::contract::{Failure, FailureClass, FailureKind, ReasonType, RunState};
use crate::definition::EffectKind;
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::command::Fault;
use crate::run::event::Fact;
use crate::run::scope::Here;
use crate::run::step::{Block, Proof, ProofBy, TaskKind, Wait};
use crate::run::{Because, Phase};

use super::recover::{Verdict, back_off, sentence};

/// Unknown steps that a rollback looks at side by side.
const LOOKED_AT_ONCE: usize = 10;

impl Draft<'_> {
    pub(super) fn has_something_to_undo(&self) -> bool {
        self.run.head.undo_left > 0 || self.run.head.unknown_left > 0
    }

    /// Takes one step back: first everything unknown is looked at, then the last completed step is undone.
    pub(super) fn go_back(&mut self) -> Decided<bool> {
        if self.run.open().any(|step| step.task.is_some() || step.block.is_some()) {
            return Ok(false);
        }
        if self.run.head.unknown_first.is_some() {
            self.look_at_some()?;
            return Ok(true);
        }
        if let Some(path) = self.run.head.undo_first.clone() {
            self.must_row(&path)?;
            self.tell_of(&path, Fact::StepCompensating)?;
            self.issue_undo(&path)?;
            return Ok(true);
        }
        self.end_rollback()?;
        Ok(false)
    }

    /// Looks at a few of the unknown steps: all of them at once could be as many as a list has items.
    fn look_at_some(&mut self) -> Decided {
        for _ in 0..LOOKED_AT_ONCE {
            let Some(path) = self.run.head.unknown_first.clone() else { break };
            self.look_at_unknown(&path)?;
        }
        Ok(())
    }

    fn look_at_unknown(&mut self, path: &Path) -> Decided {
        let step = self.must_row(path)?;
        let has_probe = self.spec(step).reconcile.is_some();
        if self.complete_from_late(path, !has_probe)? {
            return Ok(());
        }
        if has_probe {
            return self.issue_probe(path);
        }
        let message = "It is not known whether its effect happened, and there is no probe to find out.";
        self.rest(path, Block::operator(ReasonType::OutcomeUnknown, message, self.now))
    }

    fn end_rollback(&mut self) -> Decided {
        let Phase::Compensating { because, given_up } = self.run.head.phase.clone() else { return Ok(()) };
        let unknown_effects = self.unknown_effects();
        if given_up.count > 0 {
            let names = given_up.newest.iter().map(Path::to_string).collect::<Vec<_>>().join(", ");
            let message = format!("{} steps were not undone: {names}", given_up.count);
            let failure = Failure {
                cause: cause_of(&because, self.now),
                unknown_effects,
                ..Failure::new(FailureKind::RollbackIncomplete, FailureClass::Fatal, message, self.now)
            };
            return self.end(RunState::Failed, Some(failure));
        }
        match because {
            Because::Canceled(_) => {
                self.warn_of_unknown()?;
                self.end(RunState::Canceled, None)
            }
            Because::Failed(cause) => {
                let message = format!("everything was undone after: {}", cause.message);
                let failure = Failure {
                    step_id: cause.step_id.clone(),
                    attempt: cause.attempt,
                    unknown_effects,
                    cause: Some(cause),
                    ..Failure::new(FailureKind::RolledBack, FailureClass::Fatal, message, self.now)
                };
                self.end(RunState::Failed, Some(failure))
            }
        }
    }

    pub(super) fn issue_undo(&mut self, path: &Path) -> Decided {
        self.issue_undo_for(path, None)
    }

    pub(super) fn issue_undo_for(&mut self, path: &Path, generation: Option<u64>) -> Decided {
        let step = self.must_row(path)?;
        let (def, attempt) = (self.spec(step), step.undo_attempt + 1);
        let Some(undo) = &def.compensate else { return Ok(()) };
        let output = match &step.output {
            Some(output) => Some(self.payload(&output.name)?.into()),
            None => None,
        };
        let here = Here { output, ..Here::of(step, &def) };
        let with = match undo.with.as_ref().map(|with| self.render(with, &here)).transpose()? {
            Some(Err(error)) => return self.give_up_undo(path, &self.not_evaluated(path, &error, step.attempt)),
            Some(Ok(json)) => Some(json),
            None => None,
        };
        let input = self.side_input(path, &path.undo(), with)?;
        let task = self.task(TaskKind::Compensate, undo.handler.clone(), undo.queue.clone(), input, undo.timeout, None);
        let issued = Fact::TaskIssued { task: Box::new(task), attempt, place: None, deadline_at: None, generation };
        self.offer(&path.undo(), issued)
    }

    pub(super) fn undone(&mut self, path: &Path, by: ProofBy) -> Decided {
        self.tell_of(path, Fact::StepCompensated { proof: Proof { by, at: self.now } })
    }

    pub(super) fn undo_failed(&mut self, path: &Path, failure: Failure, fault: &Fault) -> Decided {
        let step = self.must_row(path)?;
        let (def, attempt) = (self.spec(step), step.undo_attempt);
        let Some(undo) = &def.compensate else { return Ok(()) };
        match failure.class {
            FailureClass::Transient | FailureClass::RateLimited if attempt < undo.retry.max_attempts => {
                let pause = fault.retry_after.unwrap_or_else(|| back_off(&undo.retry, attempt, self.jitter()));
                let until = self.now + pause;
                let message = format!("{} The undo is tried again at {until}.", sentence(&failure.message));
                let wait = Wait::Retry { next_attempt: attempt + 1, class: failure.class, code: failure.code.clone() };
                let block = Block::new(wait, message, self.now).until(Some(until));
                self.rest(path, block)
            }
            FailureClass::Auth => {
                let connection = self.connection_for(path, Some(fault), &def)?;
                self.block_on_auth(path, connection, &failure.message, TaskKind::Compensate)
            }
            FailureClass::OutcomeUnknown if undo.reconcile.is_some() => self.issue_probe(path),
            FailureClass::Transient
            | FailureClass::RateLimited
            | FailureClass::OutcomeUnknown
            | FailureClass::Lost
            | FailureClass::Validation
            | FailureClass::Permission
            | FailureClass::Conflict
            | FailureClass::Fatal => self.give_up_undo(path, &failure),
        }
    }

    fn give_up_undo(&mut self, path: &Path, failure: &Failure) -> Decided {
        let wait =
            Wait::Operator { reason: ReasonType::UndoFailed, recommended: Some("retry".into()), fields: Vec::new() };
        let block = Block::new(wait, format!("Its undo cannot go on: {}", sentence(&failure.message)), self.now);
        let failure = Some(Box::new(failure.clone()));
        self.tell_of(path, Fact::StepBlocked { block: Box::new(block), failure })
    }

    /// The worker of an undo was lost: repeated when that is safe, looked at when it can be, asked about otherwise.
    pub(super) fn undo_lost(&mut self, path: &Path, failure: Failure) -> Decided {
        let step = self.must_row(path)?;
        let (def, attempt) = (self.spec(step), step.undo_attempt);
        let Some(undo) = &def.compensate else { return Ok(()) };
        if self.undone_late(path)? {
            return Ok(());
        }
        match undo.effect {
            EffectKind::External if undo.reconcile.is_some() => self.issue_probe(path),
            EffectKind::External => self.give_up_undo(path, &failure),
            EffectKind::None | EffectKind::Idempotent if attempt < undo.retry.max_attempts => self.issue_undo(path),
            EffectKind::None | EffectKind::Idempotent => self.give_up_undo(path, &failure),
        }
    }

    /// What the probe of an undo found.
    pub(super) fn undo_probed(&mut self, path: &Path, verdict: Verdict) -> Decided {
        if !matches!(verdict, Verdict::Found { .. }) && self.undone_late(path)? {
            return Ok(());
        }
        let step = self.must_row(path)?;
        let most = self.spec(step).compensate.as_ref().map_or(1, |undo| undo.retry.max_attempts);
        match verdict {
            Verdict::Found { .. } => self.undone(path, ProofBy::Reconcile),
            Verdict::Absent | Verdict::Partial { .. } if step.undo_attempt < most => self.issue_undo(path),
            Verdict::Absent | Verdict::Partial { .. } => {
                let message = format!("{most} attempts of its undo did not happen");
                let failure = self.failure(path, FailureClass::Transient, message, step.undo_attempt);
                self.give_up_undo(path, &failure)
            }
            Verdict::Abort { reason } | Verdict::Unclear { why: reason } => {
                let failure = self.failure(path, FailureClass::OutcomeUnknown, reason, 1);
                self.give_up_undo(path, &failure)
            }
        }
    }

    /// What the probe of a step found that nobody knew about when the rollback began.
    pub(super) fn unknown_probed(&mut self, path: &Path, verdict: Verdict) -> Decided {
        match verdict {
            Verdict::Found { output, .. } => self.complete_step(path, output, ProofBy::Reconcile),
            // Half of an effect has to be undone like a whole one.
            Verdict::Partial { .. } => self.complete_step(path, None, ProofBy::Reconcile),
            Verdict::Absent => self.cancel_step(path, "its effect did not happen", false),
            Verdict::Abort { reason } | Verdict::Unclear { why: reason } => {
                let message = format!("It is not known whether its effect happened: {}", sentence(&reason));
                self.rest(path, Block::operator(ReasonType::OutcomeUnknown, message, self.now))
            }
        }
    }
}

fn cause_of(because: &Because, now: crate::time::Timestamp) -> Option<Box<Failure>> {
    match because {
        Because::Failed(failure) => Some(failure.clone()),
        Because::Canceled(cancel) => {
            let message = format!("{} canceled it: {}", cancel.by, cancel.reason);
            Some(Box::new(Failure::new(FailureKind::StepFailed, FailureClass::Fatal, message, now).coded("canceled")))
        }
    }
}
