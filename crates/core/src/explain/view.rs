//! One run as it is looked at: the questions that every answer asks of it.

use super::Surroundings;
use crate::contract::{ReasonType, RunState, StepState};
use crate::definition::{Definition, EffectKind, StepDef};
use crate::ids::Path;
use crate::run::event::Carries;
use crate::run::step::{Block, Lease, Step, Task, TaskKind, Wait};
use crate::run::{Because, Cancel, Phase, Working, held_up_by, is_gate, project, resolutions};
use crate::time::Timestamp;

#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub run: &'a Working,
    pub definition: &'a Definition,
    pub around: &'a Surroundings,
    pub now: Timestamp,
}

impl<'a> View<'a> {
    pub fn state(&self) -> RunState {
        self.run.head.state.unwrap_or(RunState::Queued)
    }

    pub fn is_terminal(&self) -> bool {
        self.state().is_terminal()
    }

    /// Rows under a lease, in the order of their claims: the first names the run's worker.
    pub fn leased(&self) -> Vec<(&'a Step, &'a Lease)> {
        leased(self.run)
    }

    /// Whether a worker holds a lease that the end of a grace takes away; `finally` steps keep theirs.
    pub fn must_stop(&self) -> bool {
        self.leased().iter().any(|(step, _)| self.declared(step).is_none_or(|def| !def.finally))
    }

    /// Rows with a task that anybody may claim, the oldest first.
    pub fn ready(&self) -> Vec<(&'a Step, &'a Task)> {
        ready(self.run)
    }

    /// Rows that wait for something: the one that gives the run its state first, then the oldest.
    pub fn blocked(&self) -> Vec<(&'a Step, &'a Block)> {
        blocked(self.run)
    }

    /// The block that gives the run its state, or that keeps an undo from going on.
    pub fn foremost(&self) -> Option<(&'a Step, &'a Block)> {
        foremost(self.run)
    }

    /// Child runs that are waited for, each with the step that waits.
    pub fn waits_for_children(&self) -> Vec<(&'a Step, &'a Block)> {
        let blocked = self.run.open().filter_map(|step| Some((step, step.block.as_ref()?)));
        blocked.filter(|(_, block)| matches!(block.wait, Wait::Child { .. })).collect()
    }

    /// What an operator may do about a step as it is.
    pub fn resolutions(&self, step: &Step) -> Vec<&'static str> {
        resolutions(step, is_gate(self.definition, step), &self.run.head.phase, self.definition.saga)
    }

    /// Of a canceled run: the `finally` step that keeps it from its end, and what somebody must decide.
    pub fn held_up_by(&self) -> Option<(&'a Step, &'a Block)> {
        held_up_by(self.run)
    }

    /// Where the run is.
    pub fn at(&self) -> Option<&'a Path> {
        first_path(self.run)
    }

    pub fn declared(&self, step: &Step) -> Option<&'a StepDef> {
        self.definition.steps().get(step.place.index?)
    }

    /// How many attempts the step (or the undo that is under way) may make.
    pub fn attempts(&self, step: &Step) -> u32 {
        let declared = self.declared(step);
        let undo = declared.and_then(|def| def.compensate.as_ref()).filter(|_| step.state == StepState::Compensating);
        let coded = step.coded.as_ref().and_then(|coded| coded.retry);
        let policy = undo.map(|undo| undo.retry).or(declared.map(|def| def.retry)).or(coded);
        policy.unwrap_or(self.definition.defaults.retry).max_attempts + step.granted
    }

    pub fn is_external(&self, step: &Step) -> bool {
        let coded = step.coded.as_ref().map(|coded| coded.effect);
        self.declared(step).map(|def| def.effect).or(coded) == Some(EffectKind::External)
    }

    pub fn cancel(&self) -> Option<&'a Cancel> {
        match &self.run.head.phase {
            Phase::Canceling(cancel) | Phase::Compensating { because: Because::Canceled(cancel), .. } => Some(cancel),
            Phase::Forward | Phase::Closing { .. } | Phase::Compensating { .. } | Phase::Ended => None,
        }
    }

    pub fn href(&self, rest: &str) -> String {
        format!("/v1/runs/{}{rest}", self.run.head.run_id)
    }

    /// Nobody knows whether the effect of this step happened.
    pub fn is_unknown(&self, step: &Step) -> bool {
        let asked = step.block.as_ref().is_some_and(|block| match matches!(block.wait, Wait::Lost { .. }) {
            true => self.is_external(step),
            false => block.reason() == ReasonType::OutcomeUnknown,
        });
        let received = step.receipt.as_ref().is_some_and(|receipt| receipt.result.is_some());
        (asked || step.unknown || step.state == StepState::Reconciling) && !received
    }
}

/// The path under which a row's task is known: a probe and an undo have their own.
pub(super) fn task_path(step: &Step) -> Path {
    let undoing = step.state == StepState::Compensating;
    match step.task.as_ref().map(|task| task.kind) {
        None | Some(TaskKind::Step | TaskKind::Body) => step.path.clone(),
        Some(TaskKind::Compensate) => step.path.undo(),
        Some(TaskKind::Reconcile) if undoing => step.path.undo().probe(),
        Some(TaskKind::Reconcile) => step.path.probe(),
    }
}

/// Where a run is: the step that is executed, is next, holds it, or failed it.
pub(super) fn first_path(run: &Working) -> Option<&Path> {
    if run.is_terminal() {
        return run.head.failure.as_ref()?.step_id.as_ref();
    }
    let leased = leased(run).first().map(|(step, _)| &step.path);
    let ready = || ready(run).first().map(|(step, _)| &step.path);
    let blocked = || blocked(run).first().map(|(step, _)| &step.path);
    leased.or_else(ready).or_else(blocked)
}

fn leased(run: &Working) -> Vec<(&Step, &Lease)> {
    let mut leased: Vec<_> = run.open().filter_map(|step| Some((step, step.lease()?))).collect();
    leased.sort_by_key(|(_, lease)| lease.epoch);
    leased
}

fn ready(run: &Working) -> Vec<(&Step, &Task)> {
    let ready = run.open().filter(|step| step.is_ready());
    let mut ready: Vec<_> = ready.filter_map(|step| Some((step, step.task.as_ref()?))).collect();
    ready.sort_by_key(|(_, task)| task.issued_at);
    ready
}

fn blocked(run: &Working) -> Vec<(&Step, &Block)> {
    let foremost = foremost(run).map(|(step, _)| &step.path);
    let mut blocked: Vec<_> = run.open().filter_map(|step| Some((step, step.block.as_ref()?))).collect();
    blocked.sort_by_key(|(step, block)| (foremost != Some(&step.path), block.since, &step.path));
    blocked
}

fn foremost(run: &Working) -> Option<(&Step, &Block)> {
    if run.is_terminal() {
        return None;
    }
    let path = match project(run).carries()? {
        Carries::Block { step_id, .. } => step_id,
        Carries::Undo { step_id, .. } => step_id?,
        Carries::Lease { .. }
        | Carries::Hold(_)
        | Carries::Cancel(_)
        | Carries::StartAt { .. }
        | Carries::HistoryFull { .. } => return None,
    };
    let step = run.step(path.as_str())?;
    Some((step, step.block.as_ref()?))
}
