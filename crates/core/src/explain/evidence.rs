//! Evidence of an event: from each transition that people ask about, a way to its trace, its log and the run's bundle.

use crate::contract::{Evidence, EvidenceKind};
use crate::ids::Path;
use crate::run::Head;
use crate::run::event::Record;
use crate::time::Timestamp;

/// Kinds of events that start, end, retry or hold a step.
const TOLD: &[&str] = &[
    "task.claimed",
    "task.failed",
    "task.lost",
    "step.blocked",
    "step.overdue",
    "step.completed",
    "step.failed",
    "step.skipped",
    "step.case_handled",
    "step.canceled",
    "step.compensated",
    "step.undo_failed",
];

/// What proves an event: what it carries itself, and for the start, end, retry and wait of a step and the end of the run
/// also the trace, the log and the bundle.
pub fn evidence_of(head: &Head, event: &Record) -> Vec<Evidence> {
    let ends_run = event.to_state.is_some_and(|state| state.is_terminal());
    let mut evidence = event.evidence.clone();
    if ends_run || TOLD.contains(&event.kind.as_str()) {
        for standing in standing(head, event.step_id.as_ref(), event.attempt, Some(event.at)) {
            let known = evidence.iter().any(|own| own.kind == standing.kind && own.reference == standing.reference);
            if !known {
                evidence.push(standing);
            }
        }
    }
    evidence
}

/// Where the trace, the log and the bundle are: of the run, or of one attempt of a step.
pub(super) fn standing(head: &Head, step: Option<&Path>, attempt: Option<u32>, at: Option<Timestamp>) -> Vec<Evidence> {
    let run_id = &head.run_id;
    let log = match (step, attempt.filter(|attempt| *attempt > 0)) {
        (Some(step), Some(attempt)) => format!("log://{run_id}/{step}/{attempt}"),
        (Some(step), None) => format!("log://{run_id}/{step}"),
        (None, _) => format!("log://{run_id}"),
    };
    let one = |kind, reference| Evidence { kind, reference, step_id: step.cloned(), at };
    let trace = Some(&head.started.trace_id).filter(|trace| !trace.is_empty());
    let trace = trace.map(|trace| one(EvidenceKind::Trace, trace.clone()));
    let rest = [one(EvidenceKind::Log, log), one(EvidenceKind::Bundle, format!("/v1/runs/{run_id}/bundle"))];
    trace.into_iter().chain(rest).collect()
}
