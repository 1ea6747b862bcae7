//! What comes after every decision: whatever can go on goes on, whatever is over ends, and the state is projected.

use crate::contract::{BodyState, Cause, Failure, FailureKind, RunState, StepState};
use crate::definition::Body;
use crate::ids::Path;
use crate::run::advance::{Decided, Draft};
use crate::run::event::Fact;
use crate::run::scope::Here;
use crate::run::step::{Role, Step, Wait};
use crate::run::{Because, Cancel, Finally, OUTCOME_UNKNOWN, Phase, limits};

use super::outcome::class_of;

impl Draft<'_> {
    /// Goes on until nothing moves by itself, then enters the state that this is.
    pub(super) fn settle(&mut self) -> Decided {
        self.watch_history()?;
        while self.go_on()? || !self.groups.is_empty() {}
        if matches!(self.run.head.phase, Phase::Ended) { Ok(()) } else { self.project() }
    }

    /// Does one thing that can be done; false when there is none.
    fn go_on(&mut self) -> Decided<bool> {
        if let Some(group) = self.groups.pop() {
            self.settle_group(&group)?;
            return Ok(true);
        }
        match self.run.head.phase.clone() {
            Phase::Ended => Ok(false),
            Phase::Forward => self.go_forward(),
            Phase::Closing { failure, undo, .. } => self.go_closing(*failure, undo),
            Phase::Canceling(cancel) => self.go_canceling(cancel),
            Phase::Compensating { .. } => self.go_back(),
        }
    }

    fn go_forward(&mut self) -> Decided<bool> {
        if self.run.head.is_held() {
            return Ok(false);
        }
        if let Some(failure) = self.failed_step()? {
            self.close(failure)?;
            return Ok(true);
        }
        match self.run.head.body {
            None if self.run.head.started.start_at.is_some_and(|at| at > self.now) => Ok(false),
            None => {
                self.tell(Fact::WorkflowStarted)?;
                if let Body::Coded { .. } = self.def.body {
                    self.open_body()?;
                }
                Ok(true)
            }
            Some(BodyState::Running) => {
                if self.enter_ready(false)? {
                    return Ok(true);
                }
                if self.is_body_done() { self.body_done() } else { Ok(false) }
            }
            Some(BodyState::Completed | BodyState::Failed) => {
                if self.run_finally()? {
                    self.end_well()?;
                }
                Ok(false)
            }
        }
    }

    fn end_well(&mut self) -> Decided {
        let warned = self.run.head.warnings.count > 0;
        self.end(if warned { RunState::CompletedWithWarnings } else { RunState::Succeeded }, None)
    }

    fn go_closing(&mut self, failure: Failure, undo: bool) -> Decided<bool> {
        if !self.drain()? || !self.run_finally()? {
            return Ok(false);
        }
        if undo && self.has_something_to_undo() {
            return self.start_rollback(Because::Failed(Box::new(failure)));
        }
        let unknown_effects = self.unknown_effects();
        self.end(RunState::Failed, Some(Failure { unknown_effects, ..failure }))?;
        Ok(false)
    }

    fn go_canceling(&mut self, cancel: Cancel) -> Decided<bool> {
        if !self.drain()? {
            return Ok(false);
        }
        // Work that was under way when the cancel came may have won the race.
        let running = self.run.head.body == Some(BodyState::Running) && self.run.head.finally == Finally::NotYet;
        if running && self.cause != Cause::CancelAsked && self.is_body_done() && self.ended_well() {
            return self.body_done();
        }
        if !self.run_finally()? {
            return Ok(false);
        }
        if self.run.head.body == Some(BodyState::Completed) {
            self.end_well()?;
            return Ok(false);
        }
        let failed = self.failed_step()?;
        if cancel.undo && self.has_something_to_undo() {
            let because = match failed {
                Some(failure) => Because::Failed(Box::new(failure)),
                None => Because::Canceled(cancel),
            };
            return self.start_rollback(because);
        }
        self.warn_of_unknown()?;
        match failed {
            Some(failure) => self.end(RunState::Failed, Some(failure))?,
            None => self.end(RunState::Canceled, None)?,
        }
        Ok(false)
    }

    /// The rollback is a state of its own before anything can hold it up.
    fn start_rollback(&mut self, because: Because) -> Decided<bool> {
        self.tell(Fact::CompensationStarted { because })?;
        self.project()?;
        Ok(true)
    }

    /// Effects of which nobody knows are warnings of a cancel.
    pub(super) fn warn_of_unknown(&mut self) -> Decided {
        let unknown = self.run.head.unknown.clone();
        for effect in &unknown.newest {
            let message = format!("it is not known whether the effect of {effect} happened");
            self.warn(OUTCOME_UNKNOWN, message, Some(effect.clone()))?;
        }
        match unknown.count - unknown.newest.len() as u64 {
            0 => Ok(()),
            more => {
                let message = format!("it is not known whether the effects of {more} more steps happened");
                self.warn(OUTCOME_UNKNOWN, message, None)
            }
        }
    }

    /// The newest of them; every one stands in its row and in the log.
    pub(super) fn unknown_effects(&self) -> Vec<String> {
        self.run.head.unknown.newest.iter().map(|path| path.to_string()).collect()
    }

    /// The failure that ends the body, if a step has one that nobody tolerates.
    fn failed_step(&self) -> Decided<Option<Failure>> {
        for (index, brief) in self.run.head.plan.iter().enumerate() {
            if brief.state == StepState::Failed && !brief.tolerated && !self.def.steps()[index].finally {
                let path = Path::of_visit(&self.def.steps()[index].id, brief.visit);
                return Ok(self.row(&path)?.and_then(|row| row.failure.clone()));
            }
        }
        match &self.def.body {
            Body::Coded { .. } => self.failed_body(),
            Body::Steps(_) => Ok(None),
        }
    }

    /// Ends the way forward: nothing new is issued, work in progress may end.
    pub(super) fn close(&mut self, failure: Failure) -> Decided {
        let grace_until = self.now + limits::GRACE;
        let undo = self.def.saga;
        self.tell(Fact::WorkflowFailed { failure: Box::new(failure), grace_until, undo })?;
        self.withdraw_all("the run is closing")
    }

    fn is_body_done(&self) -> bool {
        match &self.def.body {
            Body::Steps(steps) => {
                let declared = self.run.head.plan.iter().zip(steps);
                declared.filter(|(_, step)| !step.finally).all(|(brief, _)| brief.state.is_ended())
            }
            Body::Coded { .. } => self.is_coded_body_done(),
        }
    }

    fn ended_well(&self) -> bool {
        let declared = self.run.head.plan.iter().zip(self.def.steps()).filter(|(_, step)| !step.finally);
        declared
            .into_iter()
            .all(|(brief, _)| brief.state.is_done() || (brief.state == StepState::Failed && brief.tolerated))
    }

    /// All steps ended: the body has its output, or cannot have one.
    fn body_done(&mut self) -> Decided<bool> {
        let rendered = match &self.def.output {
            Some(template) => Some(self.render_tolerant(template, &Here::default())?),
            None => self.coded_output()?.map(|json| Ok((json, Vec::new()))),
        };
        match rendered {
            // The work won against a cancel; that its output cannot be made does not bring the cancel back.
            Some(Err(error)) if matches!(self.run.head.phase, Phase::Canceling(_)) => {
                self.warn("output_invalid", error.to_string(), None)?;
                self.tell(Fact::WorkflowCompleted { output: None })?;
            }
            Some(Err(error)) => {
                let failure = Failure::new(FailureKind::Invalid, class_of(&error), error.to_string(), self.now)
                    .coded(error.code());
                self.close(failure)?;
            }
            Some(Ok((json, missing))) => {
                // There is no step left that somebody could correct.
                for error in missing {
                    self.warn("output_missing_key", error.to_string(), None)?;
                }
                let output = self.store(crate::ids::PayloadName::output(), json.into());
                self.tell(Fact::WorkflowCompleted { output: Some(output) })?;
            }
            None => self.tell(Fact::WorkflowCompleted { output: None })?,
        }
        Ok(true)
    }

    /// Runs the `finally` steps; true when there is nothing of them left to do.
    fn run_finally(&mut self) -> Decided<bool> {
        let has_some = self.def.steps().iter().any(|step| step.finally);
        if !has_some || self.run.head.finally == Finally::Done {
            return Ok(true);
        }
        if self.run.head.finally == Finally::NotYet {
            self.tell(Fact::FinallyStarted)?;
        }
        if self.run.head.hold.is_none() && !std::mem::replace(&mut self.finals_offered, true) {
            let finals: Vec<Path> =
                self.run.open().filter(|step| self.is_finally(step)).map(|step| step.path.clone()).collect();
            self.offer_withheld(|step| finals.contains(&step.path))?;
        }
        while self.enter_ready(true)? {}
        let mut last = self.run.head.plan.iter().zip(self.def.steps()).filter(|(_, step)| step.finally);
        let done = last.all(|(brief, _)| brief.state.is_ended()) && self.groups.is_empty();
        if done {
            self.tell(Fact::FinallyEnded)?;
        }
        Ok(done)
    }

    /// Enters every declared step whose time has come; false when there is none.
    fn enter_ready(&mut self, finally: bool) -> Decided<bool> {
        let mut entered = false;
        for index in 0..self.def.steps().len() {
            if self.is_ready(index, finally) && self.may_issue(finally, None) {
                self.enter(index)?;
                entered = true;
            }
        }
        Ok(entered)
    }

    fn is_ready(&self, index: usize, finally: bool) -> bool {
        let step = &self.def.steps()[index];
        let plan = &self.run.head.plan;
        step.finally == finally
            && plan[index].state == StepState::Pending
            && step.after.iter().all(|before| plan[*before].state.is_ended())
            && self.run.step(Path::of_visit(&step.id, plan[index].visit).as_str()).is_none()
    }

    /// Whether something new may be issued: for a step inside a hold that lets one pass, only that one.
    pub(super) fn may_issue(&self, finally: bool, path: Option<&Step>) -> bool {
        let head = &self.run.head;
        // A log that is full may still end.
        if head.history_full && !finally {
            return false;
        }
        let phase = match head.phase {
            Phase::Forward => true,
            Phase::Closing { .. } | Phase::Canceling(_) => finally,
            Phase::Compensating { .. } | Phase::Ended => false,
        };
        let held = match head.hold.as_ref().map(|hold| &hold.one_step) {
            None | Some(crate::run::OneStep::Allowed) => false,
            Some(crate::run::OneStep::No) => true,
            Some(crate::run::OneStep::UnderWay(passing)) => {
                !path.is_some_and(|step| step.path == *passing || step.place.parent.as_ref() == Some(passing))
            }
        };
        phase && !held
    }

    /// Takes back everything that has no lease. Children that the end reaches are told, and waited for.
    pub(super) fn withdraw_all(&mut self, reason: &str) -> Decided {
        let open: Vec<Path> =
            self.run.open().filter(|step| !self.is_finally(step)).map(|step| step.path.clone()).collect();
        for path in open {
            self.withdraw(&path, reason)?;
        }
        Ok(())
    }

    pub(super) fn is_finally(&self, step: &Step) -> bool {
        step.place.index.and_then(|index| self.def.steps().get(index)).is_some_and(|def| def.finally)
    }

    /// Cancels one open row that has no lease and, if it waits for a child, tells the child.
    pub(super) fn withdraw(&mut self, path: &Path, reason: &str) -> Decided {
        let step = self.must_row(path)?;
        let under_way = step.place.role == Role::Coded && step.state == StepState::Running;
        if step.is_leased() || crate::run::scope::is_group(step) || step.state.is_ended() || under_way {
            return Ok(());
        }
        let waits_for_child = match step.block.as_ref().map(|block| &block.wait) {
            Some(Wait::Child { run_id }) => step
                .child
                .as_ref()
                .filter(|child| child.on_cancel == crate::definition::OnCancel::Cancel && child.ended.is_none())
                .map(|_| run_id.clone()),
            _ => None,
        };
        if let Some(run_id) = waits_for_child {
            self.effects.push(crate::run::command::Effect::CancelChild { run_id, reason: reason.into() });
            return Ok(());
        }
        let unknown = self.is_unknown(step);
        if self.complete_from_receipt(path)? {
            return Ok(());
        }
        self.take_away(path, reason)?;
        self.cancel_step(path, reason, unknown)?;
        self.ended(path)
    }

    /// Ends a step that is not needed, or whose time is over.
    pub(super) fn cancel_step(&mut self, path: &Path, reason: &str, unknown: bool) -> Decided {
        let step = self.must_row(path)?;
        let undoable = unknown && self.is_undoable(step, &self.spec(step));
        self.tell_of(path, Fact::StepCanceled { reason: reason.into(), unknown, undoable })
    }

    /// Whether nobody knows if this step's external effect happened.
    pub(super) fn is_unknown(&self, step: &Step) -> bool {
        let asked = matches!(
            step.block.as_ref().map(|block| block.reason()),
            Some(crate::contract::ReasonType::OutcomeUnknown)
        );
        let lost = matches!(step.block.as_ref().map(|block| &block.wait), Some(Wait::Lost { .. }))
            && self.spec(step).effect == crate::definition::EffectKind::External;
        let under_way = step.place.role == Role::Coded
            && step.state == StepState::Running
            && self.spec(step).effect == crate::definition::EffectKind::External;
        (step.state == StepState::Reconciling || asked || lost || under_way)
            && step.receipt.as_ref().is_none_or(|r| r.result.is_none())
    }

    /// True when no lease and no child that the end reaches is left; what stood for items ends then too.
    fn drain(&mut self) -> Decided<bool> {
        let waiting = self.run.open().any(|step| {
            !self.is_finally(step)
                && (step.is_leased()
                    || matches!(step.block.as_ref().map(|block| &block.wait), Some(Wait::Child { .. })))
        });
        if waiting || self.detached_to_cancel() {
            return Ok(false);
        }
        let left: Vec<Path> = self
            .run
            .open()
            .filter(|step| !self.is_finally(step) && !step.state.is_ended())
            .map(|step| step.path.clone())
            .collect();
        for path in left {
            let unknown = self.is_unknown(self.must_row(&path)?);
            self.cancel_step(&path, "the run is ending", unknown)?;
            self.let_go_of_child(&path);
        }
        Ok(true)
    }

    fn detached_to_cancel(&self) -> bool {
        let cancel = crate::definition::OnCancel::Cancel;
        matches!(self.run.head.phase, Phase::Canceling(_))
            && self.run.head.detached.values().any(|child| child.on_cancel == cancel)
    }

    /// A log may not grow without end: a warning first, then nothing new is issued.
    fn watch_history(&mut self) -> Decided {
        let seq = self.run.head.seq;
        if seq >= limits::MAX_EVENTS && !self.run.head.history_full {
            self.tell(Fact::HistoryFilled)?;
        } else if seq >= limits::WARN_EVENTS && !self.run.head.warned_of_length {
            let message = format!("the log of this run has {seq} events; at {} it stops", limits::MAX_EVENTS);
            self.warn(crate::run::LONG_HISTORY, message, None)?;
        }
        Ok(())
    }
}
