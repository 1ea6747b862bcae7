//! Reruns: a new run from a run that has ended. The old log is untouched; what is carried over is said beforehand.

use std::collections::BTreeMap;

use serde::Serialize;

use super::command::{Json, Rejection};
use super::intent::is_unknown;
use super::step::{CodedStep, Decision, FieldFault, NamedEffect, Receipt, Ref, Resource, Role, Step};
use super::{Head, Origin, OriginKind};
use crate::contract::StepState;
use crate::definition::{Action, Definition, EffectKind, StepDef};
use crate::ids::{Epoch, Path, RunId};
use crate::time::Timestamp;

/// A checkpoint that a new run takes over.
#[derive(Clone, Debug)]
pub struct Carried {
    /// The declared step.
    pub step: String,
    pub path: String,
    pub parent: Option<Path>,
    pub number: Option<u32>,
    pub role: Role,
    pub state: StepState,
    pub input: Option<Json>,
    pub output: Option<Json>,
    pub resources: Vec<Resource>,
    pub receipt: Option<Receipt>,
    /// Named effects that happened.
    pub effects: Vec<CarriedEffect>,
    pub decisions: Vec<Decision>,
    pub coded: Option<Box<CodedStep>>,
    pub from: RunId,
}

/// An effect inside a carried step, with what the outside world gave back for it.
#[derive(Clone, Debug)]
pub struct CarriedEffect {
    pub name: String,
    pub intended_at: Timestamp,
    pub external_id: Option<String>,
    pub result: Option<Json>,
    pub at: Timestamp,
}

/// What a rerun would do. A dry run shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RerunPlan {
    pub from_step: Option<String>,
    /// Steps whose results are taken over.
    pub carried: Vec<String>,
    /// Steps that are executed, again or for the first time.
    pub executed: Vec<String>,
    /// Receipts that are taken over, by step.
    pub receipts_reused: Vec<String>,
    /// Steps whose effect on the world happened before and would happen again.
    pub effects_repeated: Vec<String>,
    /// Steps of which nobody knows whether their effect happened: a probe looks for it first, or a person is asked.
    pub effects_unknown: Vec<String>,
    /// Approvals that are needed again.
    pub approvals_needed: Vec<String>,
    /// Steps that are written differently in the version that would be used.
    pub changed: Vec<String>,
}

/// The run that is rerun, as far as a plan needs it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub head: &'a Head,
    /// All rows of the run.
    pub steps: &'a [Step],
    pub definition: &'a Definition,
}

/// What a rerun takes over, beside what it tells people.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    pub plan: RerunPlan,
    /// Rows whose checkpoints are carried.
    pub carried: Vec<Path>,
    /// Rows whose effects may have happened, with the step of the new run that looks for each.
    pub unknown: Vec<(Path, Path)>,
    /// Intents that the run had from an earlier one and did not get to.
    pub unresumed: Vec<Path>,
}

/// Plans a rerun from a step, or (`None`) a retry from where it failed. The rows tell what is carried over; the caller
/// adds their outputs.
pub fn plan_rerun(
    source: Source<'_>,
    target: &Definition,
    from_step: Option<&str>,
    new_input: bool,
) -> Result<Planned, Rejection> {
    let state = source.head.state.ok_or_else(|| Rejection::NoRun(source.head.run_id.clone()))?;
    if !state.is_terminal() {
        return Err(Rejection::RunNotTerminal(state));
    }
    if target.steps().is_empty() {
        return plan_coded(source, from_step);
    }
    let from = match from_step {
        Some(id) => Some(target.step(id).map(|(index, _)| index).ok_or_else(|| unknown_step(id))?),
        None => None,
    };
    let again = match from {
        Some(index) => target.from_step_on(index),
        None => vec![false; target.steps().len()],
    };
    let carried = carried_steps(source, target, &again, new_input);
    let mut plan = RerunPlan { from_step: from_step.map(Into::into), ..RerunPlan::default() };
    for (index, step) in target.steps().iter().enumerate() {
        describe(source, step, carried[index], &mut plan);
    }
    let mut rows: Vec<&Step> =
        source.steps.iter().filter(|row| is_newest(source, row) && row_is_carried(target, row, &carried)).collect();
    // In the order in which they were completed: what is undone later is undone last first.
    rows.sort_by_key(|row| (row.ended_at, &row.path));
    let carried_ids = |id: &str| target.step(id).is_some_and(|(index, _)| carried[index]);
    let paths = rows.into_iter().map(|row| row.path.clone()).collect();
    Ok(with_unknown(source, plan, paths, |path| carried_ids(path.as_str().split('.').next().unwrap_or_default())))
}

/// Adds what nobody knows about: a step that is executed again looks for its effect first.
fn with_unknown(
    source: Source<'_>,
    mut plan: RerunPlan,
    carried: Vec<Path>,
    is_carried: impl Fn(&Path) -> bool,
) -> Planned {
    let mut unknown: BTreeMap<Path, (u32, Path)> = BTreeMap::new();
    for row in source.steps.iter().filter(|row| is_unknown(row) && !is_carried(&row.path)) {
        let path = path_in_new_run(row, source.definition);
        // Of several visits the newest counts.
        let newest = unknown.get(&path).is_none_or(|(visit, _)| row.place.visit >= *visit);
        if newest {
            unknown.insert(path, (row.place.visit, row.path.clone()));
        }
    }
    let acted =
        |path: &Path| source.steps.iter().any(|row| row.path == *path && (row.key_of.is_some() || row.attempt > 0));
    let unresumed: Vec<Path> = source
        .head
        .started
        .intents
        .keys()
        .filter(|path| !unknown.contains_key(*path) && !is_carried(path) && !acted(path))
        .cloned()
        .collect();
    plan.effects_unknown = unknown.keys().chain(&unresumed).map(Path::to_string).collect();
    plan.effects_repeated.retain(|step| !plan.effects_unknown.contains(step));
    let unknown = unknown.into_iter().map(|(path, (_, row))| (row, path)).collect();
    Planned { plan, carried, unknown, unresumed }
}

/// The path of a row in a new run, in which paths begin anew with the first visit.
fn path_in_new_run(row: &Step, definition: &Definition) -> Path {
    let step = row.place.index.and_then(|index| definition.steps().get(index));
    match (step, row.place.parent.as_ref().and(row.place.number)) {
        (Some(step), Some(number)) => Path::from(format!("{}.{number}", step.id).as_str()),
        (Some(step), None) => Path::from(step.id.as_str()),
        (None, _) => row.path.clone(),
    }
}

/// Where a new run comes from.
pub fn origin(source: &Head, kind: OriginKind, from_step: Option<&str>) -> Origin {
    Origin { kind, run_id: Some(source.run_id.clone()), seq: Some(source.seq), from_step: from_step.map(Into::into) }
}

/// Who asked for a run or for those that it reran: to rerun it does not make them somebody else.
pub fn requesters(source: &Head) -> Vec<String> {
    let started = &source.started;
    let mut requesters = started.requested_before.clone();
    if !requesters.contains(&started.requester) {
        requesters.push(started.requester.clone());
    }
    requesters
}

impl Carried {
    /// A row of the old run as a checkpoint of the new one; paths begin anew with the first visit.
    /// `input` and `output` are the payloads that the row names.
    pub fn of(
        row: &Step,
        definition: &Definition,
        (input, output): (Option<Json>, Option<Json>),
        from: &RunId,
    ) -> Carried {
        let step = row.place.index.and_then(|index| definition.steps().get(index)).map(|step| step.id.clone());
        let id = step.unwrap_or_else(|| row.path.to_string());
        let member = row.place.parent.as_ref().and(row.place.number);
        let path = path_in_new_run(row, definition).to_string();
        Carried {
            parent: member.map(|_| Path::from(id.as_str())),
            step: id,
            path,
            number: row.place.number,
            role: row.place.role,
            state: row.state,
            input,
            output,
            resources: row.resources.clone(),
            // What the receipt's result said is in the output; its payload belongs to the old run.
            receipt: row.receipt.clone().map(|receipt| Receipt { result: None, ..receipt }),
            effects: row.effects.iter().filter_map(CarriedEffect::of).collect(),
            decisions: row.decisions.clone(),
            // The new body has asked for nothing yet.
            coded: row
                .coded
                .clone()
                .map(|coded| Box::new(CodedStep { epoch: Epoch::default(), asked: Epoch::default(), ..*coded })),
            from: from.clone(),
        }
    }
}

impl Carried {
    /// The payloads that `with_results` needs: what receipts of named effects said, by name.
    pub fn results_of(row: &Step) -> impl Iterator<Item = (&str, &Ref)> {
        row.effects.iter().filter_map(|effect| Some((effect.name.as_str(), effect.receipt.as_ref()?.result.as_ref()?)))
    }

    /// Adds what the receipts of named effects said: an undo of the new run gets it as that of the old one would have.
    pub fn with_results(mut self, row: &Step, read: impl Fn(&Ref) -> Option<Json>) -> Carried {
        for (name, result) in Carried::results_of(row) {
            if let Some(effect) = self.effects.iter_mut().find(|effect| effect.name == name) {
                effect.result = read(result);
            }
        }
        self
    }
}

impl CarriedEffect {
    /// Nothing is carried of an effect that did not happen, or of which nobody knows.
    fn of(effect: &NamedEffect) -> Option<CarriedEffect> {
        let receipt = effect.receipt.as_ref()?;
        Some(CarriedEffect {
            name: effect.name.clone(),
            intended_at: effect.intended_at,
            external_id: receipt.external_id.clone(),
            result: None,
            at: receipt.at,
        })
    }
}

/// Whether the outside world has answered for it, as a whole or for an effect inside it.
fn has_receipt(row: &Step) -> bool {
    row.receipt.is_some() || row.effects.iter().any(|effect| effect.receipt.is_some())
}

fn unknown_step(id: &str) -> Rejection {
    Rejection::Invalid(vec![FieldFault {
        pointer: "/from_step".into(),
        detail: format!("the workflow has no step {id}"),
    }])
}

/// Which declared steps are carried: completed, not executed again, and only after steps that are carried too.
fn carried_steps(source: Source<'_>, target: &Definition, again: &[bool], new_input: bool) -> Vec<bool> {
    let steps = target.steps();
    let mut carried = vec![false; steps.len()];
    loop {
        let mut more = false;
        for (index, step) in steps.iter().enumerate() {
            let fits = !carried[index]
                && !again[index]
                && !step.finally
                && is_checkpointed(source, step)
                && !needs_new_approval(source, step, new_input)
                && step.after.iter().all(|before| carried[*before] || was_tolerated(source, &steps[*before]));
            more |= fits;
            carried[index] |= fits;
        }
        if !more {
            return carried;
        }
    }
}

/// A failure that the run tolerated did not keep what comes after it from being done.
fn was_tolerated(source: Source<'_>, step: &StepDef) -> bool {
    newest(source, &step.id).is_some_and(|row| row.state == StepState::Failed && row.tolerated)
}

fn is_checkpointed(source: Source<'_>, step: &StepDef) -> bool {
    newest(source, &step.id).is_some_and(|row| row.state.is_done())
}

/// A decision holds only for the subject it was given for: an approval is carried when nothing it shows can differ.
fn needs_new_approval(source: Source<'_>, step: &StepDef, new_input: bool) -> bool {
    matches!(step.action, Action::Approval(_)) && (new_input || is_changed(source, step))
}

fn is_changed(source: Source<'_>, step: &StepDef) -> bool {
    match source.definition.step(&step.id) {
        Some((_, before)) => {
            // Where a step stands in the document is not what it does.
            let alone = |step: &StepDef| StepDef { after: Vec::new(), before: Vec::new(), ..step.clone() };
            format!("{:?}", alone(before)) != format!("{:?}", alone(step))
        }
        None => true,
    }
}

fn newest<'a>(source: Source<'a>, id: &str) -> Option<&'a Step> {
    let (index, _) = source.definition.step(id)?;
    let visit = source.head.plan.get(index)?.visit;
    let path = Path::of_visit(id, visit);
    source.steps.iter().find(|row| row.path == path)
}

fn is_newest(source: Source<'_>, row: &Step) -> bool {
    let brief = row.place.index.and_then(|index| source.head.plan.get(index));
    brief.is_none_or(|brief| brief.visit == row.place.visit)
}

/// Rows of a carried step: itself, and those of its items that could be undone.
fn row_is_carried(target: &Definition, row: &Step, carried: &[bool]) -> bool {
    let id = row.path.as_str().split('.').next().unwrap_or_default();
    let Some((index, step)) = target.step(id) else { return false };
    let done = row.state.is_done();
    carried[index] && done && (row.place.parent.is_none() || step.compensate.is_some())
}

fn describe(source: Source<'_>, step: &StepDef, carried: bool, plan: &mut RerunPlan) {
    let before = newest(source, &step.id);
    if is_changed(source, step) {
        plan.changed.push(step.id.clone());
    }
    if carried {
        plan.carried.push(step.id.clone());
        if before.is_some_and(has_receipt) {
            plan.receipts_reused.push(step.id.clone());
        }
        return;
    }
    plan.executed.push(step.id.clone());
    let happened = before.is_some_and(|row| {
        let done = matches!(row.state, StepState::Completed | StepState::Compensated | StepState::UndoFailed);
        done || has_receipt(row) || row.unknown
    });
    let named = before.is_some_and(|row| row.effects.iter().any(|effect| effect.receipt.is_some()));
    if named || happened && step.effect != EffectKind::None {
        plan.effects_repeated.push(step.id.clone());
    }
    if matches!(step.action, Action::Approval(_)) {
        plan.approvals_needed.push(step.id.clone());
    }
}

/// The steps of a coded body are carried up to the one from which it goes on.
fn plan_coded(source: Source<'_>, from_step: Option<&str>) -> Result<Planned, Rejection> {
    let start = match from_step {
        Some(id) => Some(source.steps.iter().find(|row| row.path.as_str() == id).ok_or_else(|| unknown_step(id))?),
        None => None,
    };
    let mut plan = RerunPlan { from_step: from_step.map(Into::into), ..RerunPlan::default() };
    let mut paths = Vec::new();
    for row in source.steps.iter().filter(|row| row.place.role == Role::Coded) {
        let before = start.is_none_or(|start| row.path != start.path && row.started_at <= start.started_at);
        if row.state == StepState::Completed && before {
            plan.carried.push(row.path.to_string());
            if has_receipt(row) {
                plan.receipts_reused.push(row.path.to_string());
            }
            paths.push(row.path.clone());
        } else {
            plan.executed.push(row.path.to_string());
            let external = row.coded.as_ref().is_some_and(|coded| coded.effect != EffectKind::None);
            if external && row.state == StepState::Completed {
                plan.effects_repeated.push(row.path.to_string());
            }
        }
    }
    let kept = paths.clone();
    Ok(with_unknown(source, plan, paths, |path| kept.contains(path)))
}
