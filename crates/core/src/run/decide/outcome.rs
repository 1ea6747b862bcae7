//! What workers say of their tasks: done, failed.

use crate::contract::{Failure, FailureClass, FailureKind, StepState};
use crate::definition::{EffectKind, StepDef, Then};
use crate::expression::{EvalError, MAX_DEPTH, is_deeper_than};
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Ask, Fault, Holding, Json, Outcome, Reply, Report};
use crate::run::event::Fact;
use crate::run::fold::row_of;
use crate::run::scope::Here;
use crate::run::step::{FieldFault, ProofBy, TaskKind};

use super::said::digest_of;

/// Why a text cannot be a payload. What nests deeper could be stored, but no expression could pass it on.
pub(super) fn json_fault(json: &str) -> Option<String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(json) {
        Err(error) => Some(format!("not JSON: {error}")),
        Ok(_) if is_deeper_than(json, MAX_DEPTH) => Some(format!("it nests more than {MAX_DEPTH} deep")),
        Ok(_) => None,
    }
}

impl Draft<'_> {
    pub(super) fn complete(&mut self, holding: &Holding, report: &Report, ask: &Ask) -> Decided<Reply> {
        let path = row_of(&holding.path);
        if let Some(output) = &report.output {
            self.check_size("the output", output)?;
            self.check_json("output", output)?;
        }
        let kind = self.must_row(&path)?.task.as_ref().map_or(TaskKind::Step, |task| task.kind);
        if kind == TaskKind::Body && self.has_body_changed()? {
            return self.body_changed(&path, &holding.path, "it ended without asking for steps it once completed", ask);
        }
        let output = match (&report.output, kind) {
            // A step's own output is stored with its checkpoint, below.
            (Some(output), TaskKind::Reconcile | TaskKind::Compensate) => {
                let name = self.numbered(&holding.path, "output");
                Some(self.store(name, output.clone()))
            }
            _ => None,
        };
        self.tell_of(
            &holding.path,
            Fact::TaskCompleted {
                epoch: holding.epoch,
                digest: digest_of(ask).unwrap_or_default(),
                output,
                outcome: report.outcome,
                resources: report.resources.clone(),
            },
        )?;
        for warning in &report.warnings {
            self.warn("reported", warning.as_str(), Some(path.clone()))?;
        }
        match kind {
            TaskKind::Step => self.judge(&path, report.output.clone(), report.outcome)?,
            TaskKind::Reconcile => self.probed(&path, report.output.as_deref())?,
            TaskKind::Compensate => self.undone(&path, ProofBy::Worker)?,
            TaskKind::Body => self.complete_step(&path, report.output.clone(), ProofBy::Worker)?,
        }
        Ok(Reply::Done)
    }

    pub(super) fn check_json(&self, what: &'static str, json: &str) -> Decided {
        match json_fault(json) {
            None => Ok(()),
            Some(detail) => {
                let fault = FieldFault { pointer: format!("/{what}"), detail };
                Err(crate::run::command::Rejection::Invalid(vec![fault]).into())
            }
        }
    }

    /// Whether a result is what was declared; then the cases, then the checkpoint.
    pub(super) fn judge(&mut self, path: &Path, output: Option<Json>, outcome: Outcome) -> Decided {
        let step = self.must_row(path)?;
        let (def, attempt) = (self.spec(step), step.attempt);
        let json = output.clone().unwrap_or_else(|| "null".into());
        let here = Here { output: Some(json.clone()), ..Here::of(step, &def) };
        if let Some(Err(faults)) = def.output_schema.as_ref().map(|schema| schema.check(&json)) {
            let detail = faults.iter().map(|fault| format!("{} {}", fault.pointer, fault.detail)).collect::<Vec<_>>();
            let message = format!("the output is not as output_schema says: {}", detail.join("; "));
            let failure = self.failure(path, FailureClass::Validation, message, attempt).coded("output_schema");
            return self.recover(path, failure, None);
        }
        if let Some(verify) = &def.verify {
            let verdict = self.test(verify, &here)?;
            let failure = match verdict {
                Ok(true) => None,
                Ok(false) => {
                    let message = format!("verify does not hold: {}", verify.source());
                    Some(self.failure(path, FailureClass::Validation, message, attempt).coded("verify"))
                }
                Err(error) => Some(self.not_evaluated(path, &error, attempt)),
            };
            if let Some(failure) = failure {
                return self.recover(path, failure, None);
            }
        }
        if outcome == Outcome::Break {
            self.break_off(path)?;
        }
        if self.take_case(path, &def, Some(json), None)? {
            return Ok(());
        }
        let by = if def.verify.is_some() { ProofBy::Verify } else { ProofBy::Worker };
        self.complete_step(path, output, by)
    }

    /// A tool said `break`: the loop around it issues nothing more.
    fn break_off(&mut self, path: &Path) -> Decided {
        match self.must_row(path)?.place.parent.clone() {
            Some(parent) => self.tell_of(&parent, Fact::LoopBroken),
            None => Ok(()),
        }
    }

    pub(super) fn failure(
        &self,
        path: &Path,
        class: FailureClass,
        message: impl Into<String>,
        attempt: u32,
    ) -> Failure {
        let message = message.into();
        let message = self.masked(message);
        Failure::new(FailureKind::StepFailed, class, message, self.now).of(path.clone(), attempt)
    }

    /// An expression gave no value.
    pub(super) fn not_evaluated(&self, path: &Path, error: &EvalError, attempt: u32) -> Failure {
        Failure::new(FailureKind::Invalid, class_of(error), error.to_string(), self.now)
            .coded(error.code())
            .of(path.clone(), attempt)
    }

    pub(super) fn fail(&mut self, holding: &Holding, fault: &Fault, ask: &Ask) -> Decided<Reply> {
        let path = row_of(&holding.path);
        let step = self.must_row(&path)?;
        let kind = step.task.as_ref().map_or(TaskKind::Step, |task| task.kind);
        let effect = self.effect_of(step, kind);
        let class = fault.class.unwrap_or(if effect == EffectKind::External {
            FailureClass::OutcomeUnknown
        } else {
            FailureClass::Transient
        });
        let attempt = step.attempt_of(kind);
        let failure = Failure {
            code: fault.code.clone(),
            details: fault.details.clone(),
            ..self.failure(&path, class, fault.message.clone(), attempt)
        };
        self.tell_of(
            &holding.path,
            Fact::TaskFailed {
                epoch: holding.epoch,
                digest: digest_of(ask),
                failure: Box::new(failure.clone()),
                retry_after: fault.retry_after,
                until: None,
            },
        )?;
        match kind {
            TaskKind::Reconcile => self.probe_failed(&path, failure, fault)?,
            TaskKind::Compensate => self.undo_failed(&path, failure, fault)?,
            TaskKind::Step | TaskKind::Body => {
                if !self.complete_from_receipt(&path)? {
                    self.recover(&path, failure, Some(fault))?;
                }
            }
        }
        Ok(Reply::Done)
    }

    /// A report that cannot be taken ends the attempt: its worker has nothing else to say. What may have acted is of unknown
    /// outcome; all else failed because of what it was given or made.
    pub(super) fn unacceptable(&mut self, holding: &Holding, code: &str, message: &str, ask: &Ask) -> Decided<Reply> {
        let step = self.must_row(&row_of(&holding.path))?;
        let kind = step.task.as_ref().map_or(TaskKind::Step, |task| task.kind);
        let class = match self.effect_of(step, kind) {
            EffectKind::External => FailureClass::OutcomeUnknown,
            EffectKind::None | EffectKind::Idempotent => FailureClass::Validation,
        };
        let (message, code) = (format!("its report cannot be taken: {message}"), Some(code.to_owned()));
        self.fail(holding, &Fault { class: Some(class), message, code, ..Fault::default() }, ask)
    }

    pub(super) fn effect_of(&self, step: &crate::run::step::Step, kind: TaskKind) -> EffectKind {
        let def = self.spec(step);
        match kind {
            TaskKind::Step => def.effect,
            TaskKind::Compensate => def.compensate.as_ref().map_or(EffectKind::Idempotent, |undo| undo.effect),
            TaskKind::Reconcile | TaskKind::Body => EffectKind::None,
        }
    }

    /// Lets the first case of `on_result` that fits take the result. True when one did.
    pub(super) fn take_case(
        &mut self,
        path: &Path,
        def: &StepDef,
        output: Option<Json>,
        failure: Option<&Failure>,
    ) -> Decided<bool> {
        if def.on_result.is_empty() {
            return Ok(false);
        }
        let step = self.must_row(path)?;
        let (index, attempt) = (step.place.index, step.attempt);
        let here = Here { output: output.clone(), failure: failure.cloned(), ..Here::of(step, def) };
        for (number, case) in def.on_result.iter().enumerate() {
            let fits = match &case.when {
                None => Ok(true),
                Some(when) => self.matches(when, &here)?,
            };
            match fits {
                Ok(false) => continue,
                Ok(true) => return self.follow_case(path, number, case.then, output, failure, index),
                Err(error) => {
                    let failure = self.not_evaluated(path, &error, attempt);
                    self.fail_step(path, failure, false)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn follow_case(
        &mut self,
        path: &Path,
        case: usize,
        then: Then,
        output: Option<Json>,
        failure: Option<&Failure>,
        index: Option<usize>,
    ) -> Decided<bool> {
        let step = self.must_row(path)?;
        let attempt = step.attempt;
        let undoable = failure.is_none() && self.is_undoable(step, &self.spec(step));
        match then {
            Then::Fail => {
                let failure = failure.cloned().unwrap_or_else(|| {
                    self.failure(path, FailureClass::Fatal, "a case of on_result says fail", attempt).coded("case")
                });
                self.fail_step(path, failure, false)?;
            }
            // What is past its deadline cannot be tried again.
            Then::Retry if step.deadline_at.is_some_and(|at| at <= self.now) => {
                let failure = failure.cloned().unwrap_or_else(|| {
                    self.failure(path, FailureClass::Fatal, "its deadline passed", attempt).coded("deadline")
                });
                self.fail_step(path, failure, false)?;
            }
            Then::Retry => {
                let failure = failure.cloned().unwrap_or_else(|| {
                    self.failure(path, FailureClass::Transient, "a case of on_result says retry", attempt).coded("case")
                });
                self.retry_later(path, failure, None)?;
            }
            Then::GoTo(jump) if !self.can_jump(jump) => {
                let failure = self.too_many_visits(path, jump, attempt);
                self.fail_step(path, failure, false)?;
            }
            Then::Complete | Then::Skip | Then::GoTo(_) => {
                let output = output.filter(|_| then != Then::Skip);
                let output = output.map(|json| self.store(path.payload("output"), json));
                let failure_box = failure.cloned().map(Box::new);
                self.tell_of(path, Fact::StepCaseHandled { case, output, failure: failure_box, undoable })?;
                if let (Then::GoTo(jump), Some(index)) = (then, index) {
                    self.jump(path, index, jump)?;
                }
                self.ended(path)?;
            }
        }
        Ok(true)
    }

    /// Fails a step for good. Somebody may tolerate it.
    pub(super) fn fail_step(&mut self, path: &Path, failure: Failure, tolerated: bool) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        let warns = def.finally || def.on_failure == crate::definition::OnFailure::Warn;
        let tolerated = step.place.parent.is_none() && (tolerated || warns);
        self.fail_for_good(path, failure, tolerated)
    }

    /// Fails a step as it is said, whatever the document tolerates.
    pub(super) fn fail_for_good(&mut self, path: &Path, failure: Failure, tolerated: bool) -> Decided {
        self.take_away(path, "its step failed")?;
        if crate::run::scope::is_group(self.must_row(path)?) {
            self.abandon_members(path)?;
        }
        if self.must_row(path)?.state == StepState::Failed {
            return Ok(());
        }
        let message = failure.message.clone();
        self.tell_failed(path, failure, tolerated)?;
        if tolerated {
            self.warn("step_failed", message, Some(path.clone()))?;
        }
        self.ended(path)
    }

    pub(super) fn tell_failed(&mut self, path: &Path, failure: Failure, tolerated: bool) -> Decided {
        let step = self.must_row(path)?;
        let undoable = failure.class == FailureClass::OutcomeUnknown && self.is_undoable(step, &self.spec(step));
        self.tell_of(path, Fact::StepFailed { failure: Box::new(failure), tolerated, undoable })
    }

    /// The group failed as a whole: nothing in it goes on.
    fn abandon_members(&mut self, path: &Path) -> Decided {
        let members: Vec<(Path, bool)> = self
            .run
            .open()
            .filter(|step| step.place.parent.as_ref() == Some(path) && !step.state.is_ended())
            .map(|step| (step.path.clone(), step.is_leased()))
            .collect();
        for (member, leased) in members {
            let unknown = (leased && self.is_external(&member)?) || self.is_unknown(self.must_row(&member)?);
            self.take_away(&member, "its step failed")?;
            self.cancel_step(&member, "its step failed", unknown)?;
            self.let_go_of_child(&member);
        }
        Ok(())
    }
}

/// A person can correct a value; an expression that costs too much stays as it is written.
pub(super) fn class_of(error: &EvalError) -> FailureClass {
    match error {
        EvalError::CostExceeded { .. } => FailureClass::Fatal,
        EvalError::MissingKey { .. }
        | EvalError::Type { .. }
        | EvalError::Arithmetic { .. }
        | EvalError::BadValue { .. } => FailureClass::Validation,
    }
}
