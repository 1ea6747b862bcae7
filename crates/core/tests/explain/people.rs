//! The four who read a run's state, each with their own question, answered without reading code or traces.

use abide_core::contract::FailureClass;
use abide_core::explain::Answer;
use abide_core::run::command::{BlockOn, Start};
use serde_json::json;

use crate::stage::{RUN, Stage};

const SCAN: &str = "
workflow: news-scan
steps:
  - { id: fetch, task: news.fetch }
  - { id: list, task: drive.list }
";

#[test]
fn the_user_asks_what_to_do_next() {
    let mut stage = Stage::new(SCAN, json!({}));
    stage.work("fetch").claim("list", "worker-3");
    stage.block("list", BlockOn::Auth { tool: "google_drive".into(), account: None });
    let record = stage.record();
    assert_eq!(record.summary, "Waiting on auth: reconnect google_drive to continue.");
    let button = &record.next_actions[0];
    assert_eq!(
        (button.title.as_str(), button.href.as_str()),
        ("Reconnect google_drive/default", format!("/v1/runs/{RUN}/reconnect").as_str())
    );
    assert!(button.who.contains(&"tess".to_owned()));
}

#[test]
fn the_one_on_call_asks_whether_it_is_stuck_and_safe_to_retry() {
    let document =
        "{workflow: pay, steps: [{id: charge, task: payments.charge, effect: external, recovery: {lost: hold}}]}";
    let mut stage = Stage::new(document, json!({}));
    stage.claim("charge", "worker-3").later("5m30s");
    let explained = stage.explain();
    assert_eq!(explained.summary, "Stalled: no heartbeat from worker-3 for 5m. Retry now?");
    assert_eq!(explained.triage.unwrap()[0].answer, Answer::Yes);
    let why = stage.handoff().recommended.unwrap().why;
    assert_eq!(why, "worker-3 was lost; a retry first finds out whether charge happened");
}

#[test]
fn the_engineer_asks_which_step_failed_and_where_its_trace_is() {
    let mut stage = Stage::new(SCAN, json!({}));
    stage.work("fetch").claim("list", "worker-3").fail("list", FailureClass::Fatal, "no such folder");
    let record = stage.json();
    assert_eq!(record["failure"]["step_id"], "list");
    assert_eq!(record["failure"]["message"], "no such folder");
    assert_eq!(record["evidence_links"][0]["ref"], "trace-1");
    let steps = stage.handoff();
    assert_eq!(steps.succeeded[0].step_id.as_str(), "fetch");
    assert_eq!(stage.offers(), ["retry", "rerun"]);
}

#[test]
fn the_owner_asks_how_long_and_on_whom_it_waits() {
    let start = Start { owner_id: Some("acme".into()), ..Start::with_input("{}") };
    let mut stage = Stage::start(SCAN, start);
    stage.work("fetch").claim("list", "worker-3");
    stage.block("list", BlockOn::Auth { tool: "google_drive".into(), account: None }).later("3h");
    let record = stage.json();
    assert_eq!(record["owner_id"], "acme");
    assert_eq!(record["state"], "waiting_on_auth");
    assert_eq!(record["since"], "2026-01-01T00:00:00.000000Z");
    assert_eq!(record["blocking_reason"]["tool"], "google_drive");
}
