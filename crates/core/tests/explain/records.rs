//! The record and the status, as they are serialised.

use abide_core::contract::{Evidence, EvidenceKind, FailureClass};
use abide_core::explain::{evidence_of, status};
use abide_core::run::command::{Actor, Ask, BlockOn, Command, Fault, Report, Start};
use abide_core::time::Span;
use serde_json::{Value, json};

use crate::stage::{RUN, Stage};

const CHARGE: &str = "{workflow: pay, steps: [{id: charge, task: payments.charge}]}";

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_record_has_every_field_of_the_contract() {
    let record = Stage::new(CHARGE, json!({})).json();
    let fields = [
        "run_id",
        "namespace",
        "workflow_id",
        "workflow_version",
        "definition_hash",
        "state",
        "since",
        "summary",
        "attempt",
        "step_id",
        "blocking_reason",
        "blocks",
        "lease_owner",
        "lease_epoch",
        "lease_expires_at",
        "last_heartbeat_at",
        "leases",
        "next_retry_at",
        "closing",
        "failure",
        "warnings",
        "evidence_links",
        "next_actions",
        "progress",
        "parent",
        "children",
        "origin",
        "owner_id",
        "data_region",
        "labels",
        "created_at",
        "started_at",
        "updated_at",
        "ended_at",
        "as_of_seq",
    ];
    let found = keys(&record);
    for field in fields {
        assert!(found.contains(&field), "{field} is missing");
    }
}

#[test]
fn a_running_run_proves_it() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").later("2s").beat("charge", None);
    let record = stage.json();
    assert_eq!(record["state"], "running");
    assert_eq!(record["step_id"], "charge");
    assert_eq!(record["lease_owner"], "worker-3");
    assert_eq!(record["lease_epoch"], 1);
    assert_eq!(record["leases"], 1);
    assert_eq!(record["last_heartbeat_at"], "2026-01-01T00:00:02.000000Z");
    assert_eq!(record["lease_expires_at"], "2026-01-01T00:00:32.000000Z");
    assert_eq!(record["blocking_reason"], Value::Null);
}

#[test]
fn a_wait_on_auth_reads_as_the_essay_shows_it() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").block("charge", BlockOn::Auth { tool: "google_drive".into(), account: None });
    let record = stage.json();
    assert_eq!(
        record["blocking_reason"],
        json!({
            "type": "oauth_reconnect_required",
            "step_id": "charge",
            "message": "Reconnect google_drive to continue.",
            "since": "2026-01-01T00:00:00.000000Z",
            "tool": "google_drive",
            "account": "default",
            "connection": { "tool": "google_drive", "account": "default" },
        })
    );
    assert_eq!(record["lease_owner"], Value::Null);
    assert_eq!(record["blocks"], json!([record["blocking_reason"]]));
}

#[test]
fn a_back_off_carries_its_time_and_its_reason() {
    let mut stage = Stage::new(CHARGE, json!({}));
    let fault = Fault {
        class: Some(FailureClass::RateLimited),
        message: "slow down".into(),
        code: Some("429".into()),
        retry_after: Some(Span::from_secs(120)),
        ..Fault::default()
    };
    stage.claim("charge", "worker-3").fault("charge", fault);
    let record = stage.json();
    assert_eq!(record["next_retry_at"], "2026-01-01T00:02:00.000000Z");
    let reason = &record["blocking_reason"];
    assert_eq!((&reason["type"], &reason["code"], &reason["of"]), (&json!("rate_limited"), &json!("429"), &json!(5)));
}

#[test]
fn an_approval_can_be_given_while_a_sibling_runs() {
    let mut stage = Stage::new(
        "{workflow: both, steps: [{id: charge, after: [], task: t}, {id: manager, after: [], approval: {approvers: [ana]}}]}",
        json!({}),
    );
    stage.claim("charge", "worker-3");
    let record = stage.json();
    assert_eq!(record["state"], "running");
    assert_eq!(record["blocks"][0]["type"], "approval_required");
    assert!(stage.offers().contains(&"approve manager".to_owned()));
}

#[test]
fn the_status_says_where_the_run_is_in_its_life_and_nothing_else() {
    let mut stage = Stage::new(CHARGE, json!({ "card": "4111" }));
    let shown = |stage: &Stage| json!(status(&stage.memory.working));
    let fields =
        ["run_id", "state", "lifecycle", "current_step", "started_at", "ended_at", "terminal_event", "as_of_seq"];
    assert_eq!(keys(&shown(&stage)), fields);
    assert_eq!(shown(&stage)["lifecycle"], "PENDING");
    stage.later("5s").claim("charge", "worker-3");
    assert_eq!(
        shown(&stage),
        json!({
            "run_id": RUN,
            "state": "running",
            "lifecycle": "RUNNING",
            "current_step": "charge",
            "started_at": "2026-01-01T00:00:05.000000Z",
            "ended_at": null,
            "terminal_event": null,
            "as_of_seq": stage.memory.working.head.seq,
        })
    );
    stage.complete("charge", json!(1));
    let ended = shown(&stage);
    assert_eq!((&ended["lifecycle"], &ended["terminal_event"]), (&json!("COMPLETED"), &json!("run.succeeded")));
}

#[test]
fn a_wait_before_any_claim_is_not_pending() {
    let stage = Stage::new("{workflow: rest, steps: [{id: nap, sleep: 10m}]}", json!({}));
    assert_eq!(json!(status(&stage.memory.working))["lifecycle"], "RUNNING");
}

#[test]
fn every_record_has_a_way_to_its_trace_log_and_bundle() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3");
    let links = stage.json()["evidence_links"].clone();
    assert_eq!(
        links,
        json!([
            { "type": "trace", "ref": "trace-1", "step_id": "charge" },
            { "type": "log", "ref": format!("log://{RUN}/charge/1"), "step_id": "charge" },
            { "type": "bundle", "ref": format!("/v1/runs/{RUN}/bundle"), "step_id": "charge" },
        ])
    );
}

#[test]
fn starts_ends_retries_waits_and_the_end_of_the_run_carry_evidence() {
    let mut stage = Stage::new(CHARGE, json!({}));
    stage.claim("charge", "worker-3").fail("charge", FailureClass::Transient, "timeout").later("10s");
    stage.claim("charge", "worker-4");
    let holding = stage.held["charge"].clone();
    let report = Report { output: Some("1".into()), ..Report::default() };
    let own =
        Evidence { kind: EvidenceKind::Link, reference: "https://example.com/span".into(), step_id: None, at: None };
    let command = Command {
        evidence: vec![own.clone()],
        ..Command::new(Actor::worker("worker-4"), Ask::Complete { holding, report })
    };
    stage.memory.apply(&stage.definition, &command, &stage.around, stage.now).unwrap();
    let head = &stage.memory.working.head;
    let kinds: Vec<&str> = stage
        .memory
        .log
        .iter()
        .filter(|event| evidence_of(head, event).len() >= 3)
        .map(|event| event.kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        ["task.claimed", "task.failed", "step.blocked", "task.claimed", "step.completed", "run.succeeded"]
    );
    let evidence = |kind: &str| evidence_of(head, stage.memory.log.iter().rfind(|event| event.kind == kind).unwrap());
    assert_eq!(evidence("task.completed"), [own]);
    let completed = evidence("step.completed");
    let references: Vec<&str> = completed.iter().map(|evidence| evidence.reference.as_str()).collect();
    assert_eq!(references, ["trace-1", &format!("log://{RUN}/charge/2"), &format!("/v1/runs/{RUN}/bundle")]);
}

#[test]
fn what_was_said_at_the_start_is_in_the_record() {
    let start = Start {
        labels: [("team".to_owned(), "payments".to_owned())].into(),
        owner_id: Some("acme".into()),
        data_region: Some("eu".into()),
        ..Start::with_input("{}")
    };
    let record = Stage::start(CHARGE, start).json();
    assert_eq!(record["labels"], json!({ "team": "payments" }));
    assert_eq!((&record["owner_id"], &record["data_region"]), (&json!("acme"), &json!("eu")));
    assert_eq!(record["created_at"], "2026-01-01T00:00:00.000000Z");
}
