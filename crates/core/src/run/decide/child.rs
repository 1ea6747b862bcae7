//! Child runs: full runs of their own, started with the decision that needs them.

use crate::contract::{Failure, FailureClass, FailureKind, RunState};
use crate::definition::{OnCancel, StepDef};
use crate::ids::{Path, RunId, WorkflowId};
use crate::run::advance::{Decided, Draft};
use crate::run::command::{ChildOutcome, Effect, Json, Reply, StartChild};
use crate::run::event::Fact;
use crate::run::scope::json_text;
use crate::run::step::{Block, ChildEnd, ChildRef, ProofBy, Ref, Wait};
use crate::run::{Parent, Phase};
use crate::time::Span;

use super::flow::Opening;

impl Draft<'_> {
    /// Starts a child and goes on without waiting for it.
    pub(super) fn detach_child(
        &mut self,
        path: &Path,
        workflow: &WorkflowId,
        version: Option<u32>,
        input: Ref,
        on_cancel: OnCancel,
    ) -> Decided {
        let run_id = self.send_child(path, workflow, version, &input)?;
        let child = ChildRef { run_id: run_id.clone(), on_cancel, ended: None };
        let workflow = workflow.clone();
        self.tell_of(path, Fact::ChildStarted { child, workflow, input, detached: true })?;
        let output = format!("{{\"run_id\":{}}}", json_text(run_id.as_str()));
        self.complete_step(path, Some(output.into()), ProofBy::Engine)
    }

    /// Starts a child and waits for it.
    pub(super) fn launch_child(
        &mut self,
        path: &Path,
        workflow: &WorkflowId,
        version: Option<u32>,
        input: Ref,
        on_cancel: OnCancel,
        deadline: Option<Span>,
    ) -> Decided {
        let run_id = self.send_child(path, workflow, version, &input)?;
        let child = ChildRef { run_id: run_id.clone(), on_cancel, ended: None };
        let started = Fact::ChildStarted { child, workflow: workflow.clone(), input, detached: false };
        self.tell_of(path, started)?;
        self.wait_for_child(path, run_id, format!("Waits for the child run of {workflow}."), deadline)
    }

    fn wait_for_child(&mut self, path: &Path, run_id: RunId, message: String, deadline: Option<Span>) -> Decided {
        let until = deadline.map(|deadline| self.now + deadline);
        self.rest(path, Block::new(Wait::Child { run_id }, message, self.now).until(until))
    }

    fn send_child(&mut self, path: &Path, workflow: &WorkflowId, version: Option<u32>, input: &Ref) -> Decided<RunId> {
        let json = Json::from(self.payload(&input.name)?);
        let run_id = RunId::new(format!("run_{}", self.derived_id()));
        let inherited = self.sensitive_values();
        let head = &self.run.head;
        self.effects.push(Effect::StartChild(Box::new(StartChild {
            run_id: run_id.clone(),
            workflow: workflow.clone(),
            version,
            input: json,
            parent: Parent { run_id: head.run_id.clone(), step_id: path.clone() },
            depth: head.started.depth + 1,
            trace_id: head.started.trace_id.clone(),
            requester: head.started.requester.clone(),
            owner_id: head.started.owner_id.clone(),
            data_region: head.started.data_region.clone(),
            sealed: head.started.sealed,
            inherited,
        })));
        Ok(run_id)
    }

    /// Waits for a child that an earlier step started without waiting.
    pub(super) fn join_child(&mut self, opening: &Opening, def: &StepDef, step: usize) -> Decided {
        let starter = Path::of_visit(&self.def.steps()[step].id, self.run.head.plan[step].visit);
        let child = self.row(&starter)?.and_then(|row| row.child.clone());
        self.row_for(opening)?;
        match child {
            None => self.complete_step(&opening.path, None, ProofBy::Engine),
            Some(ChildRef { ended: Some(end), run_id, .. }) => self.child_result(&opening.path, &run_id, &end),
            Some(ChildRef { run_id, .. }) => {
                let message = format!("Waits for the child run that {starter} started.");
                self.wait_for_child(&opening.path, run_id, message, def.deadline)
            }
        }
    }

    pub(super) fn child_ended(&mut self, path: &Path, run_id: &RunId, outcome: &ChildOutcome) -> Decided<Reply> {
        let known = self.row(path)?.and_then(|step| step.child.as_ref());
        if known.is_none_or(|child| child.run_id != *run_id || child.ended.is_some()) {
            return Ok(Reply::Replayed);
        }
        let end = match outcome {
            ChildOutcome::Ended { state, output, failure, .. } => {
                let name = self.numbered(path, "child_output");
                let output = output.as_ref().map(|json| self.store(name, json.clone()));
                ChildEnd { state: Some(*state), output, failure: failure.clone() }
            }
            ChildOutcome::Refused { message } => {
                let failure = Failure::new(FailureKind::Invalid, FailureClass::Validation, message.as_str(), self.now);
                ChildEnd { state: None, output: None, failure: Some(Box::new(failure)) }
            }
        };
        self.tell_of(path, Fact::ChildEnded { run_id: run_id.clone(), end: end.clone() })?;
        if let ChildOutcome::Ended { warnings, state, .. } = outcome
            && (*warnings > 0 && *state == RunState::CompletedWithWarnings)
        {
            let message = format!("the child run {run_id} completed with {warnings} warnings");
            self.warn("child_warnings", message, Some(path.clone()))?;
        }
        let waiting: Vec<Path> = self
            .run
            .open()
            .filter(|step| {
                matches!(step.block.as_ref().map(|block| &block.wait), Some(Wait::Child { run_id: waited }) if waited == run_id)
            })
            .map(|step| step.path.clone())
            .collect();
        for waiting in waiting {
            self.child_result(&waiting, run_id, &end)?;
        }
        Ok(Reply::Done)
    }

    /// What a child's end means for the step that waits for it.
    fn child_result(&mut self, path: &Path, run_id: &RunId, end: &ChildEnd) -> Decided {
        let output = match &end.output {
            Some(output) => Some(Json::from(self.payload(&output.name)?)),
            None => None,
        };
        let good = matches!(end.state, Some(RunState::Succeeded | RunState::CompletedWithWarnings));
        if good && !self.is_own_wait(path)? {
            if self.must_row(path)?.unneeded {
                // Nobody needs what its task would make of it.
                self.cancel_step(path, "the join was decided", false)?;
                return self.ended(path);
            }
            let payload = end.output.clone();
            return self.deliver(path, "child", Some(run_id.as_str()), payload, None);
        }
        if good {
            return self.judge(path, output, crate::run::command::Outcome::Ok);
        }
        let step = self.must_row(path)?;
        let ending = matches!(self.run.head.phase, Phase::Canceling(_) | Phase::Closing { .. }) || step.unneeded;
        let attempt = step.attempt.max(1);
        let message = match (&end.failure, end.state) {
            (Some(failure), Some(_)) => format!("the child run {run_id} failed: {}", failure.message),
            (Some(failure), None) => format!("the child run could not be started: {}", failure.message),
            (None, state) => format!("the child run {run_id} ended as {}", state.map_or("nothing", RunState::as_str)),
        };
        let failure = Failure {
            child_run_id: Some(run_id.clone()),
            code: Some("child_failed".into()),
            cause: end.failure.clone(),
            ..Failure::new(FailureKind::ChildFailed, FailureClass::Fatal, message, self.now).of(path.clone(), attempt)
        };
        if ending {
            self.cancel_step(path, &failure.message, false)?;
            return self.ended(path);
        }
        if !self.is_own_wait(path)? {
            return self.fail_step(path, failure, false);
        }
        self.recover(path, failure, None)
    }
}
