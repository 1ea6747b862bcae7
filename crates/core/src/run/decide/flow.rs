//! The way forward: entering a step, issuing its task or its wait, completing it, jumping.

use std::borrow::Cow;

use crate::contract::{Failure, FailureClass, FailureKind, StepState};
use crate::definition::{Action, Jump, OnCancel, SleepFor, StepDef};
use crate::expression::{EvalError, Expression};
use crate::ids::{Handler, Path, PayloadName, TaskId};
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Effect, Json, Rejection};
use crate::run::event::{Fact, Reset};
use crate::run::scope::Here;
use crate::run::step::{Block, Place, Proof, ProofBy, Ref, Resource, Role, Step, Task, TaskKind, Wait};
use crate::time::{Span, Timestamp};

/// An instance that is about to be opened.
#[derive(Clone)]
pub(super) struct Opening {
    pub path: Path,
    pub place: Place,
}

impl Draft<'_> {
    /// Enters a declared step whose time has come.
    pub(super) fn enter(&mut self, index: usize) -> Decided {
        let def = &self.def.steps()[index];
        let visit = self.run.head.plan[index].visit;
        let path = Path::of_visit(&def.id, visit);
        let place = Place { index: Some(index), parent: None, number: None, role: Role::Plain, visit };
        self.open_step(Opening { path, place }, def)
    }

    /// Opens a declared step from its beginning: its condition, then its items, its rounds or itself.
    pub(super) fn open_step(&mut self, opening: Opening, def: &StepDef) -> Decided {
        if let Some(when) = &def.when
            && !self.holds(&opening, def, when)?
        {
            return Ok(());
        }
        if def.for_each.is_some() {
            self.fan_out(opening, def)
        } else if def.repeat.is_some() {
            self.open_loop(opening, def)
        } else {
            self.open(opening, def)
        }
    }

    /// Checks `when`; a step whose condition does not hold is skipped, one that cannot be evaluated asks for help.
    fn holds(&mut self, opening: &Opening, def: &StepDef, when: &Expression) -> Decided<bool> {
        let here = Here::at(opening.place.parent.as_ref(), opening.place.number, def);
        match self.test(when, &here)? {
            Ok(true) => Ok(true),
            Ok(false) => {
                let reason = format!("when is false: {}", when.source());
                let place = Some(opening.place.clone());
                self.tell_of(&opening.path, Fact::StepSkipped { reason, place })?;
                self.ended(&opening.path)?;
                Ok(false)
            }
            Err(error) => {
                self.open_broken(opening, &error)?;
                Ok(false)
            }
        }
    }

    /// A row for an instance that cannot even begin.
    pub(super) fn open_broken(&mut self, opening: &Opening, error: &EvalError) -> Decided {
        let failure = self.not_evaluated(&opening.path, error, 0);
        self.row_for(opening)?;
        self.recover(&opening.path, failure, None)
    }

    /// The row of an instance that has no task to begin with.
    pub(super) fn row_for(&mut self, opening: &Opening) -> Decided {
        if self.run.step(opening.path.as_str()).is_some() {
            return Ok(());
        }
        let place = opening.place.clone();
        self.tell_of(&opening.path, Fact::StepEntered { place, group: None, coded: None, deadline_at: None })
    }

    /// Opens one instance: an item, a round, or the step itself.
    pub(super) fn open(&mut self, opening: Opening, def: &StepDef) -> Decided {
        let here = Here::at(opening.place.parent.as_ref(), opening.place.number, def);
        if let Some(requires) = &def.requires {
            match self.test(requires, &here)? {
                Ok(true) => {}
                Ok(false) => {
                    self.row_for(&opening)?;
                    return self.ask_about_precondition(&opening.path, requires.source());
                }
                Err(error) => return self.open_broken(&opening, &error),
            }
        }
        if self.waits_for_connection(&opening, def, &here)? {
            return Ok(());
        }
        self.begin(opening, def, &here)
    }

    /// Does what the step does: offers its task, or begins its wait.
    fn begin(&mut self, opening: Opening, def: &StepDef, here: &Here) -> Decided {
        let rendered = match &def.action {
            Action::Task { with: Some(with), .. } | Action::Child { with: Some(with), .. } => {
                Some(self.render(with, here)?)
            }
            Action::Http(http) => Some(self.http_request(http, here)?),
            Action::Task { with: None, .. } | Action::Child { with: None, .. } => None,
            Action::Approval(_) | Action::JoinChild { .. } | Action::Sleep(_) | Action::Signal(_) => None,
        };
        let input = match rendered {
            Some(Ok(json)) => self.store_input(&opening.path, json.into()),
            Some(Err(error)) => return self.open_broken(&opening, &error),
            None => self.run.head.started.input.clone(),
        };
        match &def.action {
            Action::Task { .. } | Action::Http(_) => {
                if let Some(intent) = self.intent_for(&opening.path) {
                    self.row_for(&opening)?;
                    return self.resume_effect(&opening.path, intent, Some(input));
                }
                let attempt = self.run.step(opening.path.as_str()).map_or(1, |step| step.attempt.max(1));
                self.issue_step(&opening.path, Some(opening.place.clone()), attempt, input, None)
            }
            Action::Approval(approval) => self.open_approval(&opening, def, approval, here),
            Action::Child { workflow, version, wait, on_cancel, .. } => {
                self.row_for(&opening)?;
                if *wait {
                    self.launch_child(&opening.path, workflow, *version, input, *on_cancel, def.deadline)
                } else {
                    self.detach_child(&opening.path, workflow, *version, input, *on_cancel)
                }
            }
            Action::JoinChild { step } => self.join_child(&opening, def, *step),
            Action::Sleep(sleep) => self.open_sleep(&opening, sleep, here),
            Action::Signal(signal) => {
                self.row_for(&opening)?;
                self.wait_for_signals(&opening.path, signal.names.clone(), signal.mode, def.deadline)
            }
        }
    }

    pub(super) fn store_input(&mut self, path: &Path, json: Json) -> Ref {
        let name = path.payload("input");
        // A corrected or fresh input is another payload: what was stored is never changed.
        let begun = |step: &Step| step.input.is_some() || step.attempt > 1;
        let name = if self.run.step(path.as_str()).is_some_and(begun) { self.numbered(path, "input") } else { name };
        self.store(name, json)
    }

    fn open_sleep(&mut self, opening: &Opening, sleep: &SleepFor, here: &Here) -> Decided {
        let until = match sleep {
            SleepFor::Span(span) => self.now + *span,
            SleepFor::Until(expression) => match self.evaluate(expression, here)? {
                Ok(json) => match serde_json::from_str::<Timestamp>(&json) {
                    Ok(until) => until,
                    Err(_) => return self.open_unusable(opening, "until must give an RFC 3339 time with a zone"),
                },
                Err(error) => return self.open_broken(opening, &error),
            },
        };
        self.row_for(opening)?;
        let block = Block::new(Wait::Timer, format!("Sleeps until {until}."), self.now).until(Some(until));
        if until <= self.now {
            return self.complete_step(&opening.path, None, ProofBy::Engine);
        }
        self.rest(&opening.path, block)
    }

    pub(super) fn open_unusable(&mut self, opening: &Opening, message: &str) -> Decided {
        self.row_for(opening)?;
        let failure = Failure::new(FailureKind::Invalid, FailureClass::Validation, message, self.now)
            .coded("expression_bad_value")
            .of(opening.path.clone(), 0);
        self.recover(&opening.path, failure, None)
    }

    /// The step does not move, and this is why.
    pub(super) fn rest(&mut self, path: &Path, block: Block) -> Decided {
        self.tell_of(path, Fact::StepBlocked { block: Box::new(block), failure: None })
    }

    /// Offers an attempt of a step to workers.
    pub(super) fn issue_step(
        &mut self,
        path: &Path,
        place: Option<Place>,
        attempt: u32,
        input: Ref,
        generation: Option<u64>,
    ) -> Decided {
        let index = place.as_ref().and_then(|place| place.index);
        let declared = self.def;
        let def = match (index, self.run.step(path.as_str())) {
            (_, Some(step)) => self.spec(step),
            (Some(index), None) => Cow::Borrowed(&declared.steps()[index]),
            (None, None) => return Ok(()),
        };
        let performer = def.action.performer();
        let Some(handler) = performer.handler() else {
            return Err(Rejection::Bug(format!("{path} is a wait: it has no task")).into());
        };
        let kind = match self.run.step(path.as_str()).map(|step| step.place.role) {
            Some(Role::Body) => TaskKind::Body,
            _ if place.as_ref().is_some_and(|place| place.role == Role::Body) => TaskKind::Body,
            _ => TaskKind::Step,
        };
        let of_run = || self.run.head.started.queue.clone().unwrap_or_else(|| def.queue.clone());
        let queue = performer.own_queue().unwrap_or_else(of_run);
        let is_member = match (&place, self.run.step(path.as_str())) {
            (_, Some(step)) => step.place.parent.is_some(),
            (place, None) => place.as_ref().is_some_and(|place| place.parent.is_some()),
        };
        let deadline_at = def.deadline.filter(|_| !def.is_wait() && !is_member).map(|deadline| self.now + deadline);
        let task = self.task(kind, handler, queue, input, def.timeout, def.lease);
        let place = place.filter(|_| self.run.step(path.as_str()).is_none());
        self.offer(path, Fact::TaskIssued { task: Box::new(task), attempt, place, deadline_at, generation })
    }

    pub(super) fn task(
        &mut self,
        kind: TaskKind,
        handler: Handler,
        queue: crate::ids::Queue,
        input: Ref,
        timeout: Option<Span>,
        window: Option<Span>,
    ) -> Task {
        // It is named when it is offered.
        let id = TaskId::from("");
        Task { id, kind, handler, queue, issued_at: self.now, input, timeout, window, lease: None }
    }

    pub(super) fn offer(&mut self, path: &Path, mut issued: Fact) -> Decided {
        if let Fact::TaskIssued { task, .. } = &mut issued {
            task.id = TaskId::of(&self.run.head.run_id, self.run.head.seq + 1, path);
            self.effects.push(Effect::TaskReady { queue: task.queue.clone(), handler: task.handler.clone() });
        }
        self.tell_of(path, issued)
    }

    /// Issues a step again, as far as that is possible now; otherwise it is kept for the resume.
    pub(super) fn issue_again(&mut self, path: &Path, attempt: u32, generation: Option<u64>) -> Decided {
        let step = self.must_row(path)?;
        if step.place.role == Role::Coded {
            self.tell_of(path, reset())?;
            return self.resume_body();
        }
        let (finally, input) = (self.is_finally(step), step.input.clone());
        if !self.may_issue(finally, Some(step)) {
            let kept = step.state == StepState::Pending && step.attempt == attempt;
            return if kept { Ok(()) } else { self.tell_of(path, reset_for(attempt)) };
        }
        let external = self.spec(step).effect == crate::definition::EffectKind::External;
        if external && attempt > 1 && self.complete_from_late(path, false)? {
            return Ok(());
        }
        let step = self.must_row(path)?;
        let def = self.spec(step);
        match input.filter(|_| def.action.performer().has_task()) {
            Some(input) => {
                if self.waits_for_connection_again(path, attempt.max(1))? {
                    return Ok(());
                }
                self.issue_step(path, None, attempt.max(1), input, generation)
            }
            // It never began: its input could not be made, or it waits for something else than a worker.
            None => {
                let is_member = step.place.parent.is_some();
                let place = Place { role: Role::Plain, ..step.place.clone() };
                let opening = Opening { path: path.clone(), place };
                self.tell_of(path, reset_for(attempt))?;
                if is_member { self.open(opening, &def) } else { self.open_step(opening, &def) }
            }
        }
    }

    /// Completes a step: its checkpoint. It is never executed again.
    pub(super) fn complete_step(&mut self, path: &Path, output: Option<Json>, by: ProofBy) -> Decided {
        self.complete_with(path, output, by, Vec::new())
    }

    pub(super) fn complete_with(
        &mut self,
        path: &Path,
        output: Option<Json>,
        by: ProofBy,
        resources: Vec<Resource>,
    ) -> Decided {
        let step = self.must_row(path)?;
        let def = self.spec(step);
        let retry_safe = def.effect != crate::definition::EffectKind::External;
        let undoable = self.is_undoable(step, &def);
        let output = output.map(|json| self.store(path.payload("output"), json));
        let proof = Proof { by, at: self.now };
        self.tell_of(path, Fact::StepCompleted { output, proof, retry_safe, resources, undoable, tolerated: false })?;
        self.ended(path)
    }

    pub(super) fn is_undoable(&self, step: &Step, def: &StepDef) -> bool {
        self.def.saga && def.compensate.is_some() && !crate::run::scope::is_group(step)
    }

    /// Something ended: its group has to look.
    pub(super) fn ended(&mut self, path: &Path) -> Decided {
        if let Some(parent) = self.run.step(path.as_str()).and_then(|step| step.place.parent.clone()) {
            self.groups.push(parent);
        }
        self.let_go_of_child(path);
        self.coded_step_ended(path)
    }

    /// A step that ended without its child tells the child, unless it shall be left alone.
    pub(super) fn let_go_of_child(&mut self, path: &Path) {
        let Some(step) = self.run.step(path.as_str()) else { return };
        let open = step.child.as_ref().filter(|child| child.ended.is_none() && child.on_cancel == OnCancel::Cancel);
        if let Some(child) = open.filter(|_| !self.run.head.detached.contains_key(path)) {
            let (run_id, reason) = (child.run_id.clone(), "its parent does not wait for it any more".to_owned());
            self.effects.push(Effect::CancelChild { run_id, reason });
        }
    }

    /// Goes on at another step: back to an earlier one with new paths, or forward past the ones between.
    pub(super) fn jump(&mut self, path: &Path, from: usize, jump: Jump) -> Decided {
        let plan = &self.run.head.plan;
        let steps = self.def.steps();
        let after_target = self.def.from_step_on(jump.step);
        if jump.max_visits.is_some() {
            let reset: Vec<usize> =
                (0..steps.len()).filter(|index| after_target[*index] && !steps[*index].finally).collect();
            self.cancel_passed(&reset, path)?;
            self.tell_of(path, Fact::StepJumped { to: jump.step, reset, skip: Vec::new() })?;
        } else {
            let after_here = self.def.from_step_on(from);
            let skip = (0..steps.len())
                .filter(|index| {
                    *index != from
                        && after_here[*index]
                        && !after_target[*index]
                        && plan[*index].state == StepState::Pending
                        && self.def.from_step_on(*index)[jump.step]
                })
                .collect();
            self.tell_of(path, Fact::StepJumped { to: jump.step, reset: Vec::new(), skip })?;
        }
        Ok(())
    }

    /// A jump back is possible only as often as `max_visits` says.
    pub(super) fn can_jump(&self, jump: Jump) -> bool {
        jump.max_visits.is_none_or(|max_visits| self.run.head.plan[jump.step].visit < max_visits)
    }

    pub(super) fn too_many_visits(&self, path: &Path, jump: Jump, attempt: u32) -> Failure {
        let message = format!("step {} was visited as often as max_visits allows", self.def.steps()[jump.step].id);
        self.failure(path, FailureClass::Fatal, message, attempt).coded("max_visits")
    }

    /// What is still open behind a jump back is not needed any more.
    fn cancel_passed(&mut self, reset: &[usize], except: &Path) -> Decided {
        let passed: Vec<(Path, bool)> = self
            .run
            .open()
            .filter(|step| step.path != *except && step.place.index.is_some_and(|index| reset.contains(&index)))
            .filter(|step| !step.state.is_ended())
            .map(|step| (step.path.clone(), step.is_leased()))
            .collect();
        for (path, leased) in passed {
            let unknown = leased && self.is_external(&path)? || self.is_unknown(self.must_row(&path)?);
            // Its worker is told to stop by its next heartbeat: a lease that is gone cannot write any more.
            self.take_away(&path, "a jump passed it")?;
            self.cancel_step(&path, "a jump passed it", unknown)?;
            self.let_go_of_child(&path);
        }
        Ok(())
    }

    /// An output of several parts, or nothing when it would be too large to store.
    pub(super) fn list_of(&self, names: impl Iterator<Item = PayloadName>) -> Decided<String> {
        let mut needs = Vec::new();
        let mut list = String::from("[");
        for (n, name) in names.enumerate() {
            if n > 0 {
                list.push(',');
            }
            match self.run.payloads.get(&name) {
                Some(json) => list.push_str(json),
                None => needs.push(crate::run::advance::Need::Payload(name)),
            }
        }
        list.push(']');
        if needs.is_empty() { Ok(list) } else { Err(crate::run::advance::Stop::Needs(needs)) }
    }
}

fn reset() -> Fact {
    Fact::StepReset(Reset::default())
}

fn reset_for(attempt: u32) -> Fact {
    Fact::StepReset(Reset { attempt: Some(attempt), ..Reset::default() })
}
