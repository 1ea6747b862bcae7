//! What is offered in each state, in the order of its use.

use abide_core::contract::FailureClass;
use abide_core::run::command::{Ask, BlockOn};
use abide_core::run::rerun::{Source, plan_rerun};
use abide_core::run::step::Step;
use serde_json::json;

use crate::stage::{RUN, Stage, tries};

const CHARGE: &str = "{workflow: pay, steps: [{id: charge, task: payments.charge}]}";

#[test]
fn a_run_in_line_can_be_held_or_ended() {
    assert_eq!(Stage::new(CHARGE, json!({})).offers(), ["pause", "cancel"]);
}

#[test]
fn an_approval_is_a_ready_call_bound_to_its_subject() {
    let document = "{workflow: ship, steps: [{id: manager, approval: {title: 'Ship it?', approvers: [tess, ana, 'role:boss'], not_requester: true}}]}";
    let stage = Stage::new(document, json!({ "order": 7 }));
    let approve = &stage.actions()[0];
    let record = stage.json();
    assert_eq!(
        json!(approve),
        json!({
            "id": "approve",
            "step_id": "manager",
            "title": "Approve \"Ship it?\"",
            // Whoever started the run may not decide.
            "who": ["ana", "role:boss"],
            "method": "POST",
            "href": format!("/v1/runs/{RUN}/approve"),
            "body": {
                "step_id": "manager",
                "subject_digest": record["blocking_reason"]["subject_digest"],
                "decision_by": "ana",
            },
            "danger": false,
        })
    );
    let offers = stage.offers();
    assert_eq!(offers[..2], ["approve manager", "reject manager"]);
    assert!(!offers.contains(&"resolve_skip manager".to_owned()), "a gate has one door: {offers:?}");
    assert_eq!(offers.last().unwrap(), "cancel");
}

#[test]
fn a_form_goes_with_the_decision_that_needs_it() {
    let form = "form: {type: object, required: [amount]}";
    let stage = Stage::new(
        &format!("{{workflow: ship, steps: [{{id: manager, approval: {{approvers: [ana], {form}}}}}]}}"),
        json!({}),
    );
    let approve = &stage.actions()[0];
    assert_eq!(approve.form, Some(json!({ "type": "object", "required": ["amount"] })));
    assert_eq!(approve.needs, ["form"]);
    assert!(tries(&stage, approve, &json!({ "form": {} })).is_err());
    assert!(tries(&stage, approve, &json!({ "form": { "amount": 3 } })).is_ok());
}

#[test]
fn an_approval_whose_deadline_passed_is_not_offered_even_before_the_sweep() {
    let document =
        "{workflow: ship, steps: [{id: manager, approval: {approvers: [ana], deadline: 1h, at_deadline: fail}}]}";
    let mut stage = Stage::new(document, json!({}));
    stage.look_later("61m");
    assert!(!stage.offers().contains(&"approve manager".to_owned()));
}

#[test]
fn a_broken_connection_is_reconnected_by_its_owner() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").block("charge", BlockOn::Auth { tool: "google_drive".into(), account: None });
    let reconnect = &stage.actions()[0];
    assert_eq!(reconnect.id, "reconnect");
    assert_eq!(reconnect.who, ["tess", "operator"]);
    assert_eq!(reconnect.body, json!({ "tool": "google_drive", "account": "default" }));
    assert!(tries(&stage, reconnect, &json!({})).is_ok());
}

#[test]
fn a_step_that_waits_for_a_broken_connection_offers_to_reconnect_before_anything_was_called() {
    let mut stage = Stage::new(
        "{workflow: w, steps: [{id: first, task: t}, {id: drive, task: t.drive, connection: drive/default}]}",
        json!({}),
    );
    stage.broken("drive").work("first");
    assert_eq!(stage.summary(), "Waiting on auth: reconnect drive to continue.");
    assert_eq!(stage.offers()[0], "reconnect drive");
}

#[test]
fn a_signal_is_sent_to_its_own_address() {
    let document = "{workflow: sign, steps: [{id: signed, signal: document/signed, schema: {type: object}}]}";
    let stage = Stage::new(document, json!({}));
    let signal = &stage.actions()[0];
    assert_eq!(signal.href, format!("/v1/runs/{RUN}/signals/document%2Fsigned"));
    assert_eq!(signal.needs, ["payload"]);
}

#[test]
fn a_stall_offers_to_retry_first() {
    let document = "{workflow: pay, steps: [{id: charge, task: payments.charge, recovery: {lost: hold}}]}";
    let mut stage = Stage::new(document, json!({}));
    stage.claim("charge", "worker-3").later("5m");
    assert_eq!(
        stage.offers(),
        [
            "retry_now",
            "resolve_retry charge",
            "resolve_complete charge",
            "resolve_correct charge",
            "resolve_skip charge",
            "resolve_fail charge",
            "pause",
            "cancel"
        ]
    );
}

#[test]
fn a_correction_is_offered_first_and_says_what_it_needs() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").fail("charge", FailureClass::Validation, "amount must be positive");
    let correct = &stage.actions()[0];
    assert_eq!((correct.id, correct.needs.as_slice()), ("resolve_correct", ["input"].as_slice()));
    assert!(!correct.danger);
    assert!(tries(&stage, correct, &json!({ "input": { "amount": 3 } })).is_ok());
}

#[test]
fn repeating_an_effect_of_which_nobody_knows_is_dangerous() {
    let mut stage = Stage::new("{workflow: pay, steps: [{id: charge, task: t, effect: external}]}", json!({}));
    stage.claim("charge", "worker-3").later("1m");
    let actions = stage.actions();
    let retry = actions.iter().find(|action| action.id == "resolve_retry").unwrap();
    assert!(retry.danger);
}

#[test]
fn a_paused_run_is_resumed_whole_or_by_one_step() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.user(Ask::Pause { reason: "looking".into() });
    assert_eq!(stage.offers(), ["resume", "resume_one_step", "cancel"]);
}

#[test]
fn a_rollback_can_be_neither_paused_nor_canceled() {
    let mut stage = Stage::new(
        "{workflow: trip, saga: true, steps: [{id: hotel, task: t, compensate: t.undo}, {id: pay, task: t}]}",
        json!({}),
    );
    assert_eq!(stage.offers(), ["pause", "cancel", "cancel_without_undo"]);
    stage.work("hotel").claim("pay", "worker-3").fail("pay", FailureClass::Fatal, "declined");
    assert_eq!(stage.offers(), Vec::<String>::new());
    stage.claim("hotel.undo", "worker-3").fail("hotel.undo", FailureClass::Fatal, "no such booking");
    assert_eq!(stage.offers(), ["resolve_retry hotel", "resolve_complete hotel", "resolve_skip hotel"]);
}

#[test]
fn a_run_that_ended_can_be_made_anew_from_where_it_failed() {
    let mut stage = Stage::new("{workflow: pay, steps: [{id: check, task: t}, {id: charge, task: t}]}", json!({}));
    stage.work("check").claim("charge", "worker-3").fail("charge", FailureClass::Fatal, "declined");
    assert_eq!(stage.offers(), ["retry", "rerun"]);
    let rerun = &stage.actions()[1];
    assert_eq!(rerun.body, json!({ "from_step": "charge", "version": "same" }));
    let steps: Vec<Step> = stage.memory.rows.values().map(|row| (**row).clone()).collect();
    let source = Source { head: &stage.memory.working.head, steps: &steps, definition: &stage.definition };
    let plan = plan_rerun(source, &stage.definition, rerun.body["from_step"].as_str(), false).unwrap().plan;
    assert_eq!((plan.carried, plan.executed), (vec!["check".to_owned()], vec!["charge".to_owned()]));
}

#[test]
fn of_many_blocked_steps_the_record_shows_twenty_calls_and_how_many_there_are() {
    let document =
        "{workflow: many, steps: [{id: gates, for_each: input, parallel: 100, approval: {approvers: [ana]}}]}";
    let stage = Stage::new(document, json!((0..60).collect::<Vec<u32>>()));
    let record = stage.record();
    assert_eq!((record.blocks.len(), record.blocks_count), (20, 60));
    assert_eq!(record.next_actions.len(), 20);
    assert_eq!(record.next_actions_count, stage.actions().len());
    assert!(record.next_actions.iter().any(|action| action.id == "cancel"));
}
