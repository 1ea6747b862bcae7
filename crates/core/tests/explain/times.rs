//! The run's time as a picture: what was in line, executed, probed, undone and waited for, and how each stretch ended.

use abide_core::contract::{FailureClass, ReasonType, RunState, StepState};
use abide_core::explain::{Row, SegmentKind, Timeline, timeline};
use abide_core::ids::Path;
use serde_json::json;

use crate::stage::Stage;

fn picture(stage: &Stage) -> Timeline {
    let states = stage.memory.rows.iter().map(|(path, row)| (path.clone(), row.state)).collect();
    timeline(&stage.memory.log, &states, &stage.definition, stage.now)
}

fn row<'a>(timeline: &'a Timeline, step: &str) -> &'a Row {
    timeline.rows.iter().find(|row| row.step_id == Path::from(step)).unwrap_or_else(|| panic!("no row for {step}"))
}

/// Every stretch of a row as kind, from, to and how it ended.
fn stretches(row: &Row) -> Vec<(SegmentKind, u64, Option<u64>, Option<&str>)> {
    row.segments.iter().map(|one| (one.kind, one.from_ms, one.to_ms, one.outcome)).collect()
}

#[test]
fn attempts_are_segments_and_what_lies_between_them_says_why() {
    let document = "{workflow: w, defaults: {retry: {first: 10s, jitter: 0}}, steps: [{id: a, title: Fetch, task: t}]}";
    let mut stage = Stage::new(document, json!({}));
    stage.later("1s").claim("a", "ana").later("2s").fail("a", FailureClass::Transient, "no answer");
    stage.later("11s").claim("a", "ben").later("1s").complete("a", json!({}));
    let timeline = picture(&stage);
    let row = row(&timeline, "a");
    assert_eq!(
        stretches(row),
        [
            (SegmentKind::InLine, 0, Some(1_000), None),
            (SegmentKind::Executing, 1_000, Some(3_000), Some("failed")),
            (SegmentKind::Waiting, 3_000, Some(13_000), None),
            (SegmentKind::InLine, 13_000, Some(14_000), None),
            (SegmentKind::Executing, 14_000, Some(15_000), Some("completed")),
        ]
    );
    assert_eq!((row.title.as_deref(), row.state, row.to_ms), (Some("Fetch"), Some(StepState::Completed), Some(15_000)));
    assert_eq!(row.segments[2].reason, Some(ReasonType::TransientError));
    let attempts: Vec<_> =
        row.segments.iter().map(|one| (one.attempt, one.worker.as_ref().map(|who| who.as_str()))).collect();
    assert_eq!(attempts[1], (Some(1), Some("ana")));
    assert_eq!(attempts[4], (Some(2), Some("ben")));
    assert_eq!(timeline.states.last().map(|one| one.state), Some(RunState::Succeeded));
    assert!(timeline.ended_at.is_some());
}

#[test]
fn what_goes_on_has_no_end() {
    let mut stage = Stage::new("{workflow: w, steps: [{id: a, approval: {title: Go?, approvers: [ana]}}]}", json!({}));
    stage.later("1m");
    let timeline = picture(&stage);
    let row = row(&timeline, "a");
    assert_eq!(stretches(row), [(SegmentKind::Waiting, 0, None, None)]);
    assert_eq!(row.segments[0].reason, Some(ReasonType::ApprovalRequired));
    assert_eq!((row.to_ms, timeline.ended_at), (None, None));
}

#[test]
fn a_lost_lease_ends_an_attempt_and_the_hold_after_it_is_a_wait() {
    let document = "{workflow: w, defaults: {lease: 5s}, steps: [{id: a, task: t, recovery: {lost: hold}}]}";
    let mut stage = Stage::new(document, json!({}));
    stage.claim("a", "ana").later("1m");
    let timeline = picture(&stage);
    let found = stretches(row(&timeline, "a"));
    assert_eq!(found[0], (SegmentKind::Executing, 0, Some(5_000), Some("lost")));
    assert_eq!(found[1], (SegmentKind::Waiting, 5_000, None, None));
    assert_eq!(row(&timeline, "a").segments[1].reason, Some(ReasonType::LeaseLost));
}

#[test]
fn an_undo_stands_in_the_row_of_what_it_undoes() {
    let document = "{workflow: w, saga: true, steps: [{id: a, task: t, compensate: back}, {id: b, task: u, recovery: {fatal: compensate}}]}";
    let mut stage = Stage::new(document, json!({}));
    stage.claim("a", "ana").later("1s").complete("a", json!({}));
    stage.claim("b", "ana").later("1s").fail("b", FailureClass::Fatal, "no");
    stage.claim("a.undo", "ana").later("1s").complete("a.undo", json!({}));
    let timeline = picture(&stage);
    assert_eq!(timeline.rows.len(), 2, "{:?}", timeline.rows);
    let found = stretches(row(&timeline, "a"));
    assert_eq!(found.first(), Some(&(SegmentKind::Executing, 0, Some(1_000), Some("completed"))));
    assert_eq!(found.last(), Some(&(SegmentKind::Undoing, 2_000, Some(3_000), Some("completed"))));
}
