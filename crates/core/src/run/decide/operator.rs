//! What operators decide: resolving a step, retrying now.

use crate::contract::{Failure, FailureClass, StepState};
use crate::definition::{Action, Definition};
use crate::ids::Path;
use crate::run::Phase;
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Rejection, Reply, Resolution};
use crate::run::event::{Fact, Reset};
use crate::run::fold::row_of;
use crate::run::step::{Block, ProofBy, Role, Step, Wait};

use super::coded::APPROVAL;

impl Draft<'_> {
    pub(super) fn resolve(&mut self, step_id: &Path, action: &Resolution, reason: &str) -> Decided<Reply> {
        let path = row_of(step_id);
        let step = self.row(&path)?.ok_or_else(|| Rejection::NoStep(step_id.clone()))?;
        let allowed = self.resolutions(step);
        if !allowed.contains(&action.name()) {
            let state = step.state;
            return Err(Rejection::CannotResolve { path, action: action.name(), state, allowed }.into());
        }
        if let Resolution::Complete { output: Some(json) } | Resolution::Correct { input: json } = action {
            self.check_size("the payload", json)?;
            self.check_json("payload", json)?;
        }
        let told = Fact::OperatorResolved { action: action.name().into(), reason: reason.into() };
        if self.must_row(&path)?.state == StepState::Compensating {
            self.tell_of(&path, told)?;
            self.resolve_undo(&path, action)?;
        } else if matches!(self.run.head.phase, Phase::Compensating { .. }) {
            self.tell_of(&path, told)?;
            self.resolve_unknown(&path, action)?;
        } else {
            self.tell_of(&path, told)?;
            self.resolve_step(&path, action, reason)?;
        }
        Ok(Reply::Done)
    }

    fn resolutions(&self, step: &Step) -> Vec<&'static str> {
        resolutions(step, is_gate(self.def, step), &self.run.head.phase, self.def.saga)
    }

    fn resolve_step(&mut self, path: &Path, action: &Resolution, reason: &str) -> Decided {
        let step = self.must_row(path)?;
        let attempt = step.attempt;
        let untried = matches!(&step.block, Some(Block { wait: Wait::Auth { untried: true, .. }, .. }));
        match action {
            Resolution::Retry { new_key } => {
                let attempt = if untried { attempt.max(1) } else { attempt + 1 };
                self.tell_of(path, Fact::StepReset(Reset { granted: true, ..self.reset_key(*new_key) }))?;
                self.issue_again(path, attempt, None)
            }
            Resolution::Complete { output } => self.complete_step(path, output.clone(), ProofBy::Operator),
            Resolution::Correct { input } => {
                let name = self.numbered(path, "input");
                let input = Some(self.store(name, input.clone()));
                self.tell_of(path, Fact::StepReset(Reset { input, ..self.reset_key(true) }))?;
                self.issue_again(path, attempt, None)
            }
            Resolution::Skip => {
                self.tell_of(path, Fact::StepSkipped { reason: reason.into(), place: None })?;
                self.ended(path)
            }
            Resolution::Compensate => {
                let failure = self.given_up(path, format!("an operator undoes the run: {reason}"))?;
                self.fail_for_good(path, failure, false)
            }
            Resolution::Fail => {
                let failure = self.given_up(path, format!("an operator failed it: {reason}"))?;
                self.fail_step(path, failure, false)
            }
        }
    }

    /// The failure of a step that an operator gives up. What nobody knew before, nobody knows now.
    fn given_up(&self, path: &Path, message: String) -> Decided<Failure> {
        let step = self.must_row(path)?;
        let failure = step.failure.clone();
        let failure = failure.unwrap_or_else(|| self.failure(path, FailureClass::Fatal, message, step.attempt));
        let class = if self.is_unknown(step) { FailureClass::OutcomeUnknown } else { failure.class };
        Ok(Failure { class, ..failure })
    }

    /// A return to the beginning, with a new idempotency key where that is wanted.
    fn reset_key(&self, new_key: bool) -> Reset {
        let key_since = new_key.then(|| self.run.head.epoch.next());
        Reset { new_key, key_since, ..Reset::default() }
    }

    fn resolve_undo(&mut self, path: &Path, action: &Resolution) -> Decided {
        match action {
            Resolution::Complete { .. } => self.undone(path, ProofBy::Operator),
            Resolution::Skip => {
                let step = self.must_row(path)?;
                let failure = step.failure.clone().unwrap_or_else(|| {
                    self.failure(path, FailureClass::Fatal, "an operator gave its undo up", step.undo_attempt)
                });
                self.tell_of(path, Fact::StepUndoFailed { failure: Box::new(failure) })
            }
            Resolution::Retry { .. } | Resolution::Correct { .. } | Resolution::Compensate | Resolution::Fail => {
                self.tell_of(path, Fact::StepReset(Reset { granted: true, ..Reset::default() }))?;
                self.issue_undo(path)
            }
        }
    }

    /// A step of which nobody knew whether it happened, before the rollback goes on.
    fn resolve_unknown(&mut self, path: &Path, action: &Resolution) -> Decided {
        match action {
            Resolution::Complete { output } => self.complete_step(path, output.clone(), ProofBy::Operator),
            Resolution::Fail => self.cancel_step(path, "an operator says that its effect did not happen", false),
            Resolution::Skip => {
                let failure = self.failure(path, FailureClass::Fatal, "it is not known whether it happened", 1);
                self.tell_of(path, Fact::StepUndoFailed { failure: Box::new(failure) })
            }
            Resolution::Retry { .. } | Resolution::Correct { .. } | Resolution::Compensate => self.issue_probe(path),
        }
    }

    /// Issues now what is scheduled or stalled; an external step is reconciled first.
    pub(super) fn retry_now(&mut self) -> Decided<Reply> {
        let waiting: Vec<(Path, Block, u32)> = self
            .run
            .open()
            .filter_map(|step| Some((step.path.clone(), step.block.clone()?, step.attempt)))
            .filter(|(_, block, _)| block.overdue || matches!(block.wait, Wait::Retry { .. } | Wait::Lost { .. }))
            .collect();
        if waiting.is_empty() || self.run.head.is_held() {
            return Err(Rejection::NothingToRetry(self.state()).into());
        }
        for (path, block, attempt) in waiting {
            let step = self.must_row(&path)?;
            let undoing = step.state == StepState::Compensating;
            match block.wait {
                _ if undoing => self.issue_undo(&path)?,
                Wait::Retry { next_attempt, .. } => self.issue_again(&path, next_attempt, None)?,
                Wait::Lost { .. } if self.is_external(&path)? => {
                    let failure = step.failure.clone().unwrap_or_else(|| {
                        self.failure(&path, FailureClass::OutcomeUnknown, "its worker was lost", attempt)
                    });
                    let def = self.spec(step);
                    self.reconcile(&path, failure, &def)?;
                }
                Wait::Lost { .. } => {
                    self.tell_of(&path, Fact::StepReset(Reset { granted: true, ..Reset::default() }))?;
                    self.issue_again(&path, attempt + 1, None)?;
                }
                Wait::Auth { .. }
                | Wait::Approval(_)
                | Wait::Signal { .. }
                | Wait::Callback { .. }
                | Wait::Child { .. }
                | Wait::Timer
                | Wait::Probe
                | Wait::Operator { .. } => self.wait_again(&path, block)?,
            }
        }
        Ok(Reply::Done)
    }

    /// An overdue wait is given its time once more.
    fn wait_again(&mut self, path: &Path, block: Block) -> Decided {
        let span = block.until.map_or(crate::time::Span::ZERO, |until| until.since(block.since));
        let until = Some(self.now + span);
        self.rest(path, Block { until, since: self.now, overdue: false, ..block })
    }
}

/// Whether a step is an approval, whatever keeps it right now: it may not be passed by anybody but who decides.
pub fn is_gate(definition: &Definition, step: &Step) -> bool {
    let declared = step.place.index.and_then(|index| definition.steps().get(index));
    let coded = step.coded.as_ref().is_some_and(|coded| coded.kind == APPROVAL);
    coded || declared.is_some_and(|declared| matches!(declared.action, Action::Approval(_)))
}

/// What an operator may do about a step as it is.
pub fn resolutions(step: &Step, gate: bool, phase: &Phase, saga: bool) -> Vec<&'static str> {
    let allowed = resolutions_of(step, phase, saga);
    let deciding = matches!(step.block.as_ref().map(|block| &block.wait), Some(Wait::Approval(_)));
    // An approval has one door: it is failed here, or what kept it from being asked is tried again.
    let passes = |name: &&'static str| matches!(*name, "complete" | "correct" | "skip") || deciding && *name == "retry";
    allowed.into_iter().filter(|name| !((gate || deciding) && passes(name))).collect()
}

fn resolutions_of(step: &Step, phase: &Phase, saga: bool) -> Vec<&'static str> {
    let Some(block) = &step.block else { return Vec::new() };
    match phase {
        Phase::Ended => return Vec::new(),
        // What is still blocked while a run ends is a child, which answers for itself, or a `finally` step.
        Phase::Closing { .. } | Phase::Canceling(_) => {
            return match block.wait.child() {
                Some(_) => Vec::new(),
                None => vec!["retry", "complete", "skip", "fail"],
            };
        }
        Phase::Compensating { .. } if step.state == StepState::Compensating => {
            return vec!["retry", "complete", "skip"];
        }
        Phase::Compensating { .. } => {
            return match matches!(block.wait, Wait::Operator { .. }) {
                true => vec!["complete", "fail", "skip"],
                false => Vec::new(),
            };
        }
        Phase::Forward => {}
    }
    let mut allowed = match &block.wait {
        // Without its body a coded workflow is nothing: it cannot be skipped, and its input is the run's.
        _ if step.place.role == Role::Body => vec!["retry", "complete", "fail"],
        // A loop whose items or condition could not be read has no input to correct.
        _ if matches!(step.place.role, Role::Fan | Role::Loop) => vec!["retry", "complete", "skip", "fail"],
        Wait::Operator { .. } | Wait::Lost { .. } | Wait::Retry { .. } | Wait::Auth { .. } | Wait::Probe => {
            vec!["retry", "complete", "correct", "skip", "fail"]
        }
        Wait::Callback { .. } => vec!["retry", "complete", "skip", "fail"],
        Wait::Timer | Wait::Approval(_) | Wait::Signal { .. } | Wait::Child { .. } => vec!["complete", "skip", "fail"],
    };
    if saga {
        allowed.push("compensate");
    }
    allowed
}
