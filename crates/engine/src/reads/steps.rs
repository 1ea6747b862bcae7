//! The steps of a run, their times and their payloads.

use abide_core::contract::{Evidence, Failure, StepState};
use abide_core::definition::{Definition, redact};
use abide_core::explain;
use abide_core::ids::{Path, PayloadName, RunId};
use abide_core::run::command::Json;
use abide_core::run::step::{Proof, Ref, Resource, Step};
use abide_core::time::Timestamp;
use serde::Serialize;

use super::{Read, ReadError};
use crate::engine::Engine;

/// One step as people see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepView {
    pub step_id: Path,
    pub title: Option<String>,
    pub state: StepState,
    pub attempt: u32,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Where its result is, and what it must hash to.
    pub output: Option<Ref>,
    pub resources: Vec<Resource>,
    pub receipts: Vec<ReceiptView>,
    pub retry_safe: bool,
    pub proof: Option<Proof>,
    pub failure: Option<Failure>,
    pub evidence: Vec<Evidence>,
}

/// Some of a run's steps with their outputs, and how many it has.
#[derive(Clone, Debug, PartialEq)]
pub struct StepsPage {
    pub steps: Vec<(StepView, Option<Json>)>,
    pub count: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReceiptView {
    pub name: Option<String>,
    pub external_id: Option<String>,
    pub at: Timestamp,
}

impl StepView {
    pub(super) fn of(step: &Step, definition: &Definition) -> StepView {
        let own = step.receipt.iter().map(|receipt| (None, receipt));
        let named =
            step.effects.iter().filter_map(|effect| Some((Some(effect.name.clone()), effect.receipt.as_ref()?)));
        let receipts = own
            .chain(named)
            .map(|(name, receipt)| ReceiptView { name, external_id: receipt.external_id.clone(), at: receipt.at })
            .collect();
        let declared = step.place.index.and_then(|index| definition.steps().get(index));
        StepView {
            step_id: step.path.clone(),
            title: declared.and_then(|declared| declared.title.clone()),
            state: step.state,
            attempt: step.attempt,
            started_at: step.started_at,
            ended_at: step.ended_at,
            output: step.output.clone(),
            resources: step.resources.clone(),
            receipts,
            retry_safe: step.retry_safe,
            proof: step.proof.clone(),
            failure: step.failure.clone(),
            evidence: step.evidence.clone(),
        }
    }
}

impl Engine {
    /// A page of steps in the order in which they began, each with its output where that is not larger than `shown`; and
    /// how many there are.
    pub async fn steps_page(&self, run_id: &RunId, from: usize, limit: usize, shown: Option<u64>) -> Read<StepsPage> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let mut outlines = kept.outlines()?;
            outlines.sort_by(|one, other| (one.2, &one.0).cmp(&(other.2, &other.0)));
            let mask = kept.mask(&definition)?;
            let mut steps = Vec::new();
            for (path, ..) in outlines.iter().skip(from).take(limit) {
                let Some(step) = kept.step(path)? else { continue };
                let view = StepView::of(&step, &definition);
                let small = view.output.as_ref().filter(|output| shown.is_some_and(|most| output.size <= most));
                let output = match small {
                    Some(output) => kept.shown(&output.name, &mask)?,
                    None => None,
                };
                steps.push((view, output));
            }
            Ok(StepsPage { steps, count: outlines.len() })
        })
        .await
    }

    /// When each step was in line, executed and waiting.
    pub async fn timeline(&self, run_id: &RunId) -> Read<explain::Timeline> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let log = kept.log()?;
            let outlines = kept.outlines()?;
            let states = outlines.into_iter().map(|(path, state, _)| (path, state)).collect();
            Ok(explain::timeline(&log, &states, &definition, snapshot.now))
        })
        .await
    }

    pub async fn steps(&self, run_id: &RunId) -> Read<Vec<StepView>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let mut steps = kept.steps()?;
            steps.sort_by(|one, other| (one.started_at, &one.path).cmp(&(other.started_at, &other.path)));
            Ok(steps.iter().map(|step| StepView::of(step, &definition)).collect())
        })
        .await
    }

    /// One step of a run.
    pub async fn step(&self, run_id: &RunId, path: &Path) -> Read<StepView> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let found = kept.step(&path)?.ok_or(ReadError::NoStep(run_id, path))?;
            Ok(StepView::of(&found, &definition))
        })
        .await
    }

    /// Whether a worker in somebody's name holds a lease of a run.
    pub async fn is_worked_on_by(&self, run_id: &RunId, name: &str) -> Read<bool> {
        let (run_id, prefix) = (run_id.clone(), format!("{name}/"));
        self.read(move |snapshot| {
            let Some(kept) = snapshot.load(&run_id)? else { return Ok(false) };
            let mut leases = kept.loaded.run.open().filter_map(Step::lease);
            Ok(leases.any(|lease| lease.owner.as_str().starts_with(&prefix)))
        })
        .await
    }

    /// The input that a step was last issued with, as people may see it; nothing where it is larger than `most`.
    pub async fn shown_step_input(&self, run_id: &RunId, path: &Path, most: u64) -> Read<Option<Json>> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let step = kept.step(&path)?.ok_or(ReadError::NoStep(run_id, path))?;
            let issued = step.input.as_ref().or(step.task.as_ref().map(|task| &task.input));
            let Some(input) = issued.filter(|input| input.size <= most) else { return Ok(None) };
            let hidden = step.place.index.map(|index| definition.sensitive_inputs(index)).unwrap_or_default();
            let bytes = kept.shown(&input.name, &kept.mask(&definition)?)?;
            Ok(bytes.map(|bytes| redact(&bytes, &hidden).into()))
        })
        .await
    }

    /// The run's input as people may see it: without the values that the document calls sensitive. Only tasks get those.
    pub async fn shown_input(&self, run_id: &RunId) -> Read<Option<Json>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let input = kept.shown(&PayloadName::input(), &kept.mask(&definition)?)?;
            Ok(input.map(|input| redact(&input, &definition.sensitive).into()))
        })
        .await
    }

    /// The bytes of a payload, as they were given but for sensitive values: `input`, `output`, `STEP/output`.
    pub async fn payload(&self, run_id: &RunId, name: &str) -> Read<Option<Json>> {
        let (run_id, name) = (run_id.clone(), PayloadName::from(name));
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let mask = kept.mask(&*snapshot.definition(&kept.loaded.run)?)?;
            Ok(kept.shown(&name, &mask)?)
        })
        .await
    }
}
