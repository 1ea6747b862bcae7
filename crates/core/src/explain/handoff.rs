//! The handoff packet: everything a person needs to decide how a run goes on, without reading its log.

use serde::Serialize;
use serde_json::Value;

use super::actions::NextAction;
use super::record::Settled;
use super::view::View;
use super::words::{self, QUOTED, quote};
use super::{LateSaid, Surroundings};
use crate::contract::{Failure, RunState, StepState};
use crate::definition::Definition;
use crate::expression::replace_scalars;
use crate::ids::{Path, RunId, WorkerId};
use crate::run::Working;
use crate::run::step::{Proof, Receipt, Ref, Resource, Step};
use crate::time::Timestamp;

/// How many steps a list of the packet holds; all are rows of their own.
const LISTED: usize = 100;

/// What `GET /v1/runs/{id}/handoff` returns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Handoff {
    pub run_id: RunId,
    pub state: RunState,
    pub summary: String,
    pub reached: Reached,
    pub succeeded: Vec<Succeeded>,
    pub succeeded_count: usize,
    pub failed: Vec<Failed>,
    pub failed_count: usize,
    /// Effects of which nobody knows whether they happened.
    pub unknown: Vec<Unknown>,
    pub late_answers: Vec<Late>,
    pub recommended: Option<Recommended>,
    /// Every possible action as a ready call.
    pub actions: Vec<NextAction>,
    pub as_of_seq: u64,
}

/// How far the run came.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reached {
    pub step_id: Option<Path>,
    /// The last checkpoint.
    pub last_completed: Option<Path>,
    pub completed: usize,
    /// How many steps the workflow declares.
    pub of: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Succeeded {
    pub step_id: Path,
    pub state: StepState,
    pub output: Option<Ref>,
    pub resources: Vec<Resource>,
    pub external_ids: Vec<String>,
    pub retry_safe: bool,
    pub proof: Option<Proof>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failed {
    pub step_id: Path,
    pub state: StepState,
    pub attempt: u32,
    pub failure: Failure,
    pub resources: Vec<Resource>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unknown {
    pub step_id: Path,
    /// The effect inside the step; none: the step's own.
    pub effect: Option<String>,
    pub attempt: u32,
    /// What is known of it so far.
    pub external_id: Option<String>,
    pub since: Timestamp,
    /// Its worker answered after all, when the run could not take the answer any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<Settled>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Late {
    pub step_id: Path,
    pub worker: Option<WorkerId>,
    pub at: Timestamp,
    #[serde(flatten)]
    pub said: LateSaid,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommended {
    /// The id of one of the actions.
    pub action: &'static str,
    pub step_id: Option<Path>,
    pub why: String,
}

/// The packet for a run with all its rows.
pub fn handoff(
    run: &Working,
    all_steps: &[Step],
    definition: &Definition,
    around: &Surroundings,
    now: Timestamp,
) -> Handoff {
    let view = View { run, definition, around, now };
    let succeeded = newest(all_steps, is_success);
    let failed = newest(all_steps, is_failure);
    let actions = with_late_results(&view, view.next_actions());
    Handoff {
        run_id: run.head.run_id.clone(),
        state: view.state(),
        summary: view.summary(),
        reached: reached(&view, &succeeded),
        succeeded: succeeded.iter().take(LISTED).map(|step| succeeded_step(step)).collect(),
        succeeded_count: succeeded.len(),
        failed: failed.iter().take(LISTED).filter_map(|step| failed_step(step)).collect(),
        failed_count: failed.len(),
        unknown: all_steps.iter().flat_map(|step| unknown_effects(&view, step)).take(LISTED).collect(),
        late_answers: late_answers(around),
        recommended: view.recommended(&actions),
        actions,
        as_of_seq: run.head.seq,
    }
}

impl View<'_> {
    /// What to do first, and why. It is always one of the actions.
    fn recommended(&self, actions: &[NextAction]) -> Option<Recommended> {
        let blocked = self.blocked();
        if let Some((step, block)) = blocked.first().filter(|_| !self.run.head.is_held()) {
            let advice = self.advice(step, block);
            let offered = |action: &&NextAction| {
                action.id == advice.action && action.step_id.as_ref().is_none_or(|path| *path == step.path)
            };
            if let Some(action) = actions.iter().find(offered) {
                return Some(Recommended { action: action.id, step_id: action.step_id.clone(), why: advice.why });
            }
        }
        let first = actions.first()?;
        let why = match self.state() {
            RunState::Paused => "somebody holds the run; it goes on when it is resumed".to_owned(),
            RunState::Failed | RunState::Canceled | RunState::CompletedWithWarnings => {
                "what was completed is taken over; only the rest is executed".to_owned()
            }
            RunState::Running | RunState::Queued | RunState::CancelRequested | RunState::Compensating => return None,
            RunState::WaitingOnTool
            | RunState::WaitingOnAuth
            | RunState::WaitingOnApproval
            | RunState::WaitingOnChild
            | RunState::WaitingOnTimer
            | RunState::WaitingOnOperator
            | RunState::RetryScheduled
            | RunState::Stalled
            | RunState::Succeeded => match self.run.head.history_full {
                true => "the log takes nothing new; what was completed can be rerun from".to_owned(),
                false => self.summary(),
            },
        };
        Some(Recommended { action: first.id, step_id: first.step_id.clone(), why })
    }
}

/// Rows of one kind, the newest first.
fn newest(steps: &[Step], wanted: fn(&Step) -> bool) -> Vec<&Step> {
    let mut rows: Vec<&Step> = steps.iter().filter(|step| wanted(step)).collect();
    rows.sort_by_key(|step| std::cmp::Reverse((step.ended_at.unwrap_or(step.since), step.path.clone())));
    rows
}

fn is_success(step: &Step) -> bool {
    match step.state {
        StepState::Completed | StepState::CaseHandled | StepState::Compensating => true,
        StepState::Pending
        | StepState::Issued
        | StepState::Running
        | StepState::Waiting
        | StepState::RetryScheduled
        | StepState::Reconciling
        | StepState::Stalled
        | StepState::Failed
        | StepState::Skipped
        | StepState::Canceled
        | StepState::Compensated
        | StepState::UndoFailed => false,
    }
}

/// Ended in failure, or not moving because of one.
fn is_failure(step: &Step) -> bool {
    let held = step.block.is_some() && step.failure.is_some();
    matches!(step.state, StepState::Failed | StepState::UndoFailed) && step.failure.is_some() || held
}

fn reached(view: &View<'_>, succeeded: &[&Step]) -> Reached {
    let last = succeeded.iter().find(|step| step.place.parent.is_none());
    let declared = |step: &&&Step| step.place.parent.is_none() && step.state != StepState::Compensating;
    Reached {
        step_id: view.at().cloned(),
        last_completed: last.map(|step| step.path.clone()),
        completed: succeeded.iter().filter(declared).count(),
        of: view.definition.steps().len(),
    }
}

fn succeeded_step(step: &Step) -> Succeeded {
    let receipts = step.receipt.iter().chain(step.effects.iter().filter_map(|effect| effect.receipt.as_ref()));
    let id = |receipt: &Receipt| receipt.external_id.clone();
    Succeeded {
        step_id: step.path.clone(),
        state: step.state,
        output: step.output.clone(),
        resources: step.resources.clone(),
        external_ids: receipts.filter_map(id).collect(),
        retry_safe: step.retry_safe,
        proof: step.proof.clone(),
    }
}

fn failed_step(step: &Step) -> Option<Failed> {
    Some(Failed {
        step_id: step.path.clone(),
        state: step.state,
        attempt: step.attempt,
        failure: step.failure.clone()?,
        resources: step.resources.clone(),
    })
}

/// The step's own effect, and the named ones inside it, of which no receipt is known.
fn unknown_effects(view: &View<'_>, step: &Step) -> Vec<Unknown> {
    let external_id = step.receipt.as_ref().and_then(|receipt| receipt.external_id.clone());
    let own = view.is_unknown(step).then(|| Unknown {
        step_id: step.path.clone(),
        effect: None,
        attempt: step.attempt,
        external_id,
        since: step.since,
        settled: view.settled(&step.path),
    });
    let done = matches!(step.state, StepState::Completed | StepState::CaseHandled);
    let named = step.unknown_effects().filter(|_| !done).map(|effect| Unknown {
        step_id: step.path.clone(),
        effect: Some(effect.name.clone()),
        attempt: step.attempt,
        external_id: None,
        since: effect.intended_at,
        settled: view.settled_effect(&step.path, &effect.name),
    });
    own.into_iter().chain(named).collect()
}

fn late_answers(around: &Surroundings) -> Vec<Late> {
    let all = around.late.iter().flat_map(|(path, late)| late.iter().map(move |late| (path, late)));
    let late = all.map(|(path, late)| Late {
        step_id: path.clone(),
        worker: late.worker.clone(),
        at: late.at,
        said: late.said.clone(),
    });
    late.collect()
}

/// "Mark done" becomes "mark done with this result" where a worker answered late. The result itself stands in the call
/// only where the reader may see payloads.
fn with_late_results(view: &View<'_>, mut actions: Vec<NextAction>) -> Vec<NextAction> {
    for action in actions.iter_mut().filter(|action| action.id == "resolve_complete") {
        let Some(late) = action.step_id.as_ref().and_then(|path| view.around.late_proof(path)) else { continue };
        let when = words::ago(view.now, late.at);
        action.title = format!("{} with the result that came {when}", quote(&action.title, QUOTED));
        match late.shown.as_ref().and_then(|json| unchanged(json)) {
            Some(output) => action.body["output"] = output,
            None => action.needs.push("output"),
        }
    }
    actions
}

/// The value, if writing it again says the same. One that would lose digits or a repeated key is not put into a ready call:
/// the operator gives it.
fn unchanged(json: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(json).ok()?;
    let (mut scalars, mut exact) = (0usize, true);
    replace_scalars(json, |scalar| {
        scalars += 1;
        let kept = |one: Value| one.to_string().as_str() == scalar;
        exact &= scalar.starts_with('"') || serde_json::from_str(scalar).is_ok_and(kept);
        None
    });
    let mut written = 0usize;
    replace_scalars(&value.to_string(), |_| {
        written += 1;
        None
    });
    (exact && written == scalars).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_would_change_is_not_put_into_a_ready_call() {
        for same in ["null", "{\"n\": 1, \"t\": \"caf\\u00e9\", \"x\": [1.5, true]}", "18446744073709551615"] {
            assert!(unchanged(same).is_some(), "{same}");
        }
        for other in ["18446744073709551616", "{\"n\": 1, \"n\": 2}", "1e400", "\"half \\ud83d\"", "[1.50]", "no"] {
            assert!(unchanged(other).is_none(), "{other}");
        }
    }
}
