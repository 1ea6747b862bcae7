//! The handoff packet, for each reason that needs a person.

use abide_core::contract::FailureClass;
use abide_core::explain::{Handoff, LateFacts, LateSaid};
use abide_core::ids::{Path, WorkerId};
use abide_core::run::command::{BlockOn, Report};
use abide_core::run::step::Resource;
use serde_json::json;

use crate::stage::{Stage, tries};

const ORDER: &str = "
workflow: order
saga: true
steps:
  - { id: reserve, task: stock.reserve, effect: idempotent, compensate: stock.release }
  - { id: charge, task: payments.charge, effect: external, compensate: payments.refund }
  - { id: ship, task: ship.label }
";

/// The first step is done, with a resource of its own.
fn ordered() -> Stage {
    let mut stage = Stage::new(ORDER, json!({}));
    let resources = vec![Resource { kind: "reservation".into(), id: "res-7".into(), url: None }];
    let report = Report { output: Some("{\"ok\":true}".into()), resources, ..Report::default() };
    stage.claim("reserve", "worker-1").report("reserve", report);
    stage
}

fn recommended(handoff: &Handoff) -> (&str, Option<&str>) {
    let recommended = handoff.recommended.as_ref().unwrap();
    (recommended.action, recommended.step_id.as_ref().map(Path::as_str))
}

#[test]
fn a_lost_charge_is_handed_over_with_everything_that_is_known() {
    let mut stage = ordered();
    stage.claim("charge", "worker-3").later("1m");
    let handoff = stage.handoff();
    assert_eq!(
        json!(handoff.reached),
        json!({ "step_id": "charge", "last_completed": "reserve", "completed": 1, "of": 3 })
    );
    let succeeded = &handoff.succeeded[0];
    assert_eq!(succeeded.step_id.as_str(), "reserve");
    assert_eq!(succeeded.resources[0].id, "res-7");
    assert_eq!(json!(succeeded.proof)["by"], "worker");
    assert_eq!(succeeded.output.as_ref().unwrap().size, 11);
    assert_eq!(json!(handoff.failed[0].failure)["class"], "outcome_unknown");
    assert_eq!(
        json!(handoff.unknown),
        json!([{ "step_id": "charge", "effect": null, "attempt": 1, "external_id": null, "since": "2026-01-01T00:00:30.000000Z" }])
    );
    assert_eq!(recommended(&handoff), ("resolve_complete", Some("charge")));
    let offered: Vec<&str> = handoff.actions.iter().map(|action| action.id).collect();
    for id in ["resolve_retry", "resolve_complete", "resolve_correct", "resolve_skip", "resolve_compensate", "cancel"] {
        assert!(offered.contains(&id), "{id} is not offered: {offered:?}");
    }
}

#[test]
fn a_late_answer_is_offered_as_the_result() {
    let mut stage = ordered();
    stage.claim("charge", "worker-3").later("1m");
    let late = LateFacts {
        at: stage.now,
        worker: Some(WorkerId::from("worker-3")),
        said: LateSaid::Result,
        shown: Some("{\"charge\":\"ch_1\"}".into()),
    };
    stage.surroundings.late.insert(Path::from("charge"), vec![late]);
    stage.later("2m");
    assert_eq!(
        stage.summary(),
        "Waiting on operator: the worker of charge answered late, 2m ago; mark it done with that result."
    );
    let handoff = stage.handoff();
    assert_eq!(handoff.late_answers[0].step_id.as_str(), "charge");
    let done = &handoff.actions[0];
    assert_eq!(done.title, "Mark charge done with the result that came 2m ago");
    assert_eq!(done.body["output"], json!({ "charge": "ch_1" }));
    assert_eq!(
        handoff.recommended.as_ref().unwrap().why,
        "its worker answered 2m ago, after its lease was over: mark it done with this result"
    );
    assert!(tries(&stage, done, &json!({})).is_ok());
    // The record shows the call, but not the result.
    assert!(!stage.json().to_string().contains("ch_1"));
}

#[test]
fn a_reader_without_the_right_to_payloads_sees_that_a_result_exists() {
    let mut stage = ordered();
    stage.claim("charge", "worker-3").later("1m");
    let late = LateFacts { at: stage.now, worker: None, said: LateSaid::Result, shown: None };
    stage.surroundings.late.insert(Path::from("charge"), vec![late]);
    assert_eq!(stage.handoff().actions[0].needs, ["output"]);
}

#[test]
fn each_reason_has_its_own_recommendation() {
    let after = |class, message: &str| {
        let mut stage = ordered();
        stage.claim("charge", "worker-3").fail("charge", class, message);
        let handoff = stage.handoff();
        (recommended(&handoff).0.to_owned(), handoff.recommended.unwrap().why)
    };
    assert_eq!(
        after(FailureClass::Validation, "amount must be positive"),
        ("resolve_correct".into(), "a corrected input resumes charge: amount must be positive".into())
    );
    assert_eq!(
        after(FailureClass::Permission, "scope is missing"),
        ("resolve_retry".into(), "grant the permission, then retry charge: scope is missing".into())
    );
    assert_eq!(
        after(FailureClass::Conflict, "the order changed"),
        ("resolve_retry".into(), "make it hold, then retry charge: the order changed".into())
    );
}

#[test]
fn a_step_that_asks_for_a_person_has_its_own_words() {
    let mut stage = ordered();
    let on = BlockOn::Operator { reason: "two customers match".into(), recommended: Some("pick the older one".into()) };
    stage.claim("charge", "worker-3").block("charge", on);
    let handoff = stage.handoff();
    assert_eq!(handoff.recommended.unwrap().why, "charge asks: two customers match; it recommends: pick the older one");
}

#[test]
fn an_undo_that_failed_is_tried_again() {
    let mut stage = ordered();
    stage.work("charge").claim("ship", "worker-3").fail("ship", FailureClass::Fatal, "no address");
    stage.claim("charge.undo", "worker-3").fail("charge.undo", FailureClass::Fatal, "already settled");
    let handoff = stage.handoff();
    assert_eq!(recommended(&handoff), ("resolve_retry", Some("charge")));
    assert_eq!(handoff.actions[0].title, "Undo charge again");
}

#[test]
fn a_run_that_needs_nobody_recommends_nothing() {
    assert_eq!(ordered().handoff().recommended, None);
}
