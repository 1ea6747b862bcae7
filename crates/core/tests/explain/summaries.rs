//! The sentence of every state.

use abide_core::contract::{FailureClass, RunState};
use abide_core::explain::{LimitFacts, Listener, QueueFacts};
use abide_core::ids::{Digest, Handler, WorkerId};
use abide_core::run::command::{Actor, Ask, BlockOn, Fault, Start};
use abide_core::run::step::Progress;
use abide_core::time::Span;
use serde_json::json;

use crate::stage::Stage;

pub const CHARGE: &str = "
workflow: pay
steps:
  - { id: charge, task: payments.charge }
";

pub fn says(stage: &Stage, state: RunState, summary: &str) {
    assert_eq!((stage.state(), stage.summary().as_str()), (state, summary));
    assert!(summary.chars().count() <= 160, "{summary}");
}

#[test]
fn queued_names_the_queue() {
    let stage = Stage::new(CHARGE, json!({}));
    says(&stage, RunState::Queued, "Queued: charge waits for a worker on queue default.");
}

#[test]
fn queued_says_how_long_the_line_is() {
    let mut stage = Stage::new(CHARGE, json!({}));
    let listener = Listener { worker: WorkerId::from("worker-1"), handlers: None, last_poll_at: stage.now };
    stage.queue("default", QueueFacts { listeners: vec![listener], depth: 12, oldest_at: None });
    says(&stage, RunState::Queued, "Queued: charge waits for a worker on queue default, with 12 tasks in line.");
}

#[test]
fn queued_with_no_listener_says_so_at_once() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.queue("default", QueueFacts::default());
    says(&stage, RunState::Queued, "Queued: no worker listens on queue default for payments.charge.");
}

#[test]
fn queued_says_when_somebody_last_listened() {
    let mut stage = Stage::new(CHARGE, json!({}));
    let handlers = Some(vec![Handler::from("payments.charge")]);
    let listener = Listener { worker: WorkerId::from("worker-1"), handlers, last_poll_at: stage.now };
    stage.queue("default", QueueFacts { listeners: vec![listener], ..QueueFacts::default() }).later("5m");
    says(
        &stage,
        RunState::Queued,
        "Queued: no worker listens on queue default for payments.charge; last asked for 5m ago.",
    );
}

#[test]
fn queued_behind_a_full_limit_names_it() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.surroundings.limits_full.push(LimitFacts { name: "per-account".into(), used: 10, of: 10 });
    says(&stage, RunState::Queued, "Queued: limit per-account is full: 10 of 10 in use.");
}

#[test]
fn queued_until_its_start_says_when() {
    let start_at = Some(abide_core::play::BEGINNING + Span::from_secs(3_600));
    let stage = Stage::start(CHARGE, Start { start_at, ..Start::with_input("{}") });
    says(&stage, RunState::Queued, "Queued: starts at 2026-01-01T01:00:00Z.");
}

#[test]
fn queued_for_a_revision_that_nobody_offers() {
    let mut stage = Stage::new("{workflow: research, coded: {revision: \"3\"}}", json!({}));
    let handlers = Some(vec![Handler::from("research@2")]);
    let listener = Listener { worker: WorkerId::from("worker-1"), handlers, last_poll_at: stage.now };
    stage.queue("default", QueueFacts { listeners: vec![listener], ..QueueFacts::default() });
    says(&stage, RunState::Queued, "Queued: workers offer research, but not its revision 3.");
}

#[test]
fn running_names_the_worker_and_how_fresh_the_proof_is() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3");
    says(&stage, RunState::Running, "Running charge: leased to worker-3, heartbeat just now.");
    stage.later("2s");
    says(&stage, RunState::Running, "Running charge: leased to worker-3, heartbeat 2s ago.");
    let progress = Progress { done: 40, total: Some(100), message: None, at: None };
    stage.beat("charge", Some(progress)).later("1s");
    says(&stage, RunState::Running, "Running charge: 40 of 100 done, leased to worker-3, heartbeat 1s ago.");
    stage.look_later("40s");
    says(&stage, RunState::Running, "Running charge: 40 of 100 done, the lease of worker-3 ran out 11s ago.");
}

#[test]
fn running_while_closing_says_why_and_until_when() {
    let mut stage = Stage::new(
        "
workflow: pair
steps:
  - { id: charge, after: [], task: payments.charge }
  - { id: label, after: [], task: ship.label }
",
        json!({}),
    );
    stage.claim("charge", "worker-3").claim("label", "worker-4").fail("charge", FailureClass::Fatal, "card declined");
    says(
        &stage,
        RunState::Running,
        "Running label while closing, because charge failed: worker-4 has until 2026-01-01T00:00:30Z to stop.",
    );
}

#[test]
fn waiting_on_auth_names_the_connection() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").block("charge", BlockOn::Auth { tool: "google_drive".into(), account: None });
    says(&stage, RunState::WaitingOnAuth, "Waiting on auth: reconnect google_drive to continue.");
}

#[test]
fn waiting_on_approval_says_who_decides_what_until_when_and_what_then() {
    let stage = Stage::new(
        "
workflow: ship
steps:
  - id: manager
    approval: { title: 'Ship it?', approvers: [ana@example.com, 'role:manager'], deadline: 2h, at_deadline: fail }
",
        json!({}),
    );
    says(
        &stage,
        RunState::WaitingOnApproval,
        "Waiting on approval: ana@example.com or role:manager decides \"Ship it?\" until 2026-01-01T02:00:00Z; then it fails.",
    );
}

#[test]
fn waiting_on_approval_counts_a_quorum_and_says_that_there_is_no_deadline() {
    let mut stage = Stage::new(
        "{workflow: ship, steps: [{id: manager, approval: {title: 'Ship it?', approvers: [ana, bo, cy], quorum: 2}}]}",
        json!({}),
    );
    stage.user(Ask::Decide {
        step_id: None,
        by: "ana".into(),
        approve: true,
        comment: None,
        form: None,
        subject_digest: None,
        via: None,
    });
    says(
        &stage,
        RunState::WaitingOnApproval,
        "Waiting on approval: 2 of ana, bo or cy decide \"Ship it?\" (1 so far); there is no deadline.",
    );
}

#[test]
fn waiting_on_tool_names_the_signals_that_are_missing() {
    let mut stage = Stage::new(
        "{workflow: sign, steps: [{id: signed, all: [left, right], deadline: 1h, at_deadline: warn}]}",
        json!({}),
    );
    says(
        &stage,
        RunState::WaitingOnTool,
        "Waiting on tool: signals left and right are expected until 2026-01-01T01:00:00Z; then it goes on with a warning.",
    );
    stage.user(Ask::Signal { name: "left".into(), payload: "1".into() });
    says(
        &stage,
        RunState::WaitingOnTool,
        "Waiting on tool: signal right is expected until 2026-01-01T01:00:00Z; then it goes on with a warning.",
    );
}

#[test]
fn waiting_on_tool_names_the_callback() {
    let mut stage = Stage::new(CHARGE, json!({}));
    let name = "render.done".to_owned();
    stage.claim("charge", "worker-3");
    let holding = stage.held["charge"].clone();
    let token_hash = Digest::of(b"token");
    stage.must(Actor::worker("worker-3"), Ask::Callback { holding, name: name.clone(), token_hash, expires_in: None });
    stage.block("charge", BlockOn::Callback { name, deadline: Some(Span::from_secs(60)) });
    says(
        &stage,
        RunState::WaitingOnTool,
        "Waiting on tool: the answer to render.done of charge is expected until 2026-01-01T00:01:00Z; then it is overdue.",
    );
    assert!(!stage.json().to_string().contains(&token_hash.to_string()), "a token's hash shows");
}

#[test]
fn waiting_on_timer_says_when_it_wakes() {
    let stage = Stage::new("{workflow: rest, steps: [{id: cool_off, sleep: 10m}]}", json!({}));
    says(&stage, RunState::WaitingOnTimer, "Waiting on timer: cool_off wakes at 2026-01-01T00:10:00Z.");
}

#[test]
fn retry_scheduled_says_which_attempt_when_and_after_what() {
    let mut stage = Stage::new(CHARGE, json!({}));
    let fault = Fault {
        class: Some(FailureClass::RateLimited),
        message: "slow down".into(),
        code: Some("429".into()),
        retry_after: Some(Span::from_secs(120)),
        ..Fault::default()
    };
    stage.claim("charge", "worker-3").fault("charge", fault);
    says(&stage, RunState::RetryScheduled, "Retry scheduled: attempt 1 of 5 at 2026-01-01T00:02:00Z after 429.");
}

#[test]
fn a_pause_before_a_probe_says_what_it_is_for() {
    let mut stage = Stage::new(
        "{workflow: pay, steps: [{id: charge, task: t, effect: external, reconcile: t.find, timeout: 10s}]}",
        json!({}),
    );
    stage.claim("charge", "worker-3").later("11s");
    says(
        &stage,
        RunState::RetryScheduled,
        "Retry scheduled: a probe finds out at 2026-01-01T00:00:30Z whether charge happened.",
    );
    stage.later("20s").claim("charge.probe", "worker-4");
    says(&stage, RunState::Running, "Running charge.probe: leased to worker-4, heartbeat just now.");
}

#[test]
fn stalled_says_who_was_lost_and_for_how_long() {
    let mut stage =
        Stage::new("{workflow: pay, steps: [{id: charge, task: payments.charge, recovery: {lost: hold}}]}", json!({}));
    stage.claim("charge", "worker-3").later("5m30s");
    says(&stage, RunState::Stalled, "Stalled: no heartbeat from worker-3 for 5m. Retry now?");
}

#[test]
fn stalled_because_nobody_answered_says_what_was_expected() {
    let mut stage =
        Stage::new("{workflow: sign, steps: [{id: signed, signal: document.signed, deadline: 1h}]}", json!({}));
    stage.later("2h");
    says(
        &stage,
        RunState::Stalled,
        "Stalled: signal document.signed was expected by 2026-01-01T01:00:00Z and has not come. Wait again?",
    );
}

#[test]
fn paused_says_by_whom_why_and_what_still_finishes() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").user(Ask::Pause { reason: "looking into it".into() });
    says(&stage, RunState::Paused, "Paused by olga: looking into it; worker-3 may finish charge.");
    stage.complete("charge", json!(1));
    says(&stage, RunState::Paused, "Paused by olga: looking into it.");
}

#[test]
fn cancel_requested_says_who_asked_and_what_is_waited_for() {
    let mut stage = Stage::new(CHARGE, json!({}));
    let cancel = Ask::Cancel { reason: "wrong order".into(), undo: None, grace: None };
    stage.claim("charge", "worker-3").user(cancel);
    says(
        &stage,
        RunState::CancelRequested,
        "Cancel requested by olga: wrong order; worker-3 has until 2026-01-01T00:00:30Z to stop.",
    );
}

const SAGA: &str = "
workflow: trip
saga: true
steps:
  - { id: hotel, task: t.hotel, compensate: t.cancel_hotel }
  - { id: flight, task: t.flight, compensate: t.cancel_flight }
  - { id: pay, task: t.pay }
";

#[test]
fn compensating_says_what_is_undone_and_why() {
    let mut stage = Stage::new(SAGA, json!({}));
    stage.work("hotel").work("flight").claim("pay", "worker-3").fail("pay", FailureClass::Fatal, "card declined");
    says(&stage, RunState::Compensating, "Compensating: undoing flight, 1 more to undo, because pay failed.");
    stage.claim("flight.undo", "worker-4").fail("flight.undo", FailureClass::Transient, "timeout");
    let summary = stage.summary();
    assert!(summary.starts_with("Compensating: undoing flight again at 2026-01-01T00:00:0"), "{summary}");
    stage.later("10s").work("flight.undo");
    says(&stage, RunState::Compensating, "Compensating: undoing hotel, the last one, because pay failed.");
    stage.claim("hotel.undo", "worker-4").fail("hotel.undo", FailureClass::Fatal, "no such booking");
    says(&stage, RunState::WaitingOnOperator, "Waiting on operator: hotel could not be undone: no such booking.");
}

#[test]
fn the_end_says_how_it_ended() {
    let mut stage = Stage::new(SAGA, json!({}));
    stage.work("hotel").work("flight").later("5m").work("pay");
    says(&stage, RunState::Succeeded, "Succeeded after 5m.");

    let mut stage = Stage::new(SAGA, json!({}));
    stage.work("hotel").claim("flight", "worker-3").fail("flight", FailureClass::Fatal, "sold out");
    stage.work("hotel.undo");
    says(&stage, RunState::Failed, "Failed at flight and undone: sold out.");

    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").fail("charge", FailureClass::Fatal, "card declined");
    says(&stage, RunState::Failed, "Failed at charge: card declined.");

    let mut stage = Stage::new(CHARGE, json!({}));
    stage.later("90s").user(Ask::Cancel { reason: "wrong order".into(), undo: None, grace: None });
    says(&stage, RunState::Canceled, "Canceled by olga after 1m: wrong order.");

    let mut stage =
        Stage::new("{workflow: pay, steps: [{id: charge, task: payments.charge, on_failure: warn}]}", json!({}));
    stage.claim("charge", "worker-3").fail("charge", FailureClass::Fatal, "card declined");
    says(&stage, RunState::CompletedWithWarnings, "Completed with 1 warning: card declined.");
}
