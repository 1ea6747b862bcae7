//! `abide dev` as somebody meets it in the first minute.

#[allow(dead_code, reason = "each test file uses its part")]
mod serving;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use serving::{Server, eventually, folder};

/// Where each run comes to rest, or what it must have been seen in.
const EXPECTED: &[(&str, &[&str])] = &[
    ("run_demo-news", &["waiting_on_auth"]),
    ("run_demo-purchase", &["waiting_on_approval"]),
    ("run_demo-onboarding", &["waiting_on_child"]),
    ("run_demo-contract", &["waiting_on_tool"]),
    ("run_demo-customer", &["waiting_on_operator"]),
    ("run_demo-reminder", &["waiting_on_timer"]),
    ("run_demo-feed", &["retry_scheduled"]),
    ("run_demo-crawl", &["stalled"]),
    ("run_demo-hello", &["queued"]),
    ("run_demo-paused", &["paused"]),
    ("run_demo-album", &["running"]),
    ("run_demo-invoice", &["succeeded"]),
    ("run_demo-order", &["compensating", "failed"]),
    ("run_demo-raw-album", &["cancel_requested", "canceled"]),
];

#[test]
fn every_state_is_there_in_seconds_and_a_restart_starts_nothing_new() {
    let data = folder("dev");
    let server = Server::start("dev", &data);
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    eventually(Duration::from_secs(120), "every state is seen", || {
        for run in runs(&server) {
            let text = |name: &str| run[name].as_str().unwrap_or_default().to_owned();
            seen.entry(text("run_id")).or_default().insert(text("state"));
        }
        let missing = |(id, states): &&(&str, &[&str])| {
            !states.iter().all(|state| seen.get(*id).is_some_and(|seen| seen.contains(*state)))
        };
        let missing: Vec<_> =
            EXPECTED.iter().filter(missing).map(|(id, states)| (*id, *states, seen.get(*id).cloned())).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
    });

    let order = server.get("/v1/runs/run_demo-order");
    assert_eq!(order["failure"]["kind"], "rolled_back", "{order}");
    let paid = server.get("/v1/runs/run_demo-invoice/steps/pay");
    assert_eq!(paid["proof"]["by"], "reconcile", "{paid}");
    let onboarding = server.get("/v1/runs/run_demo-onboarding/explain").to_string();
    assert!(onboarding.contains("ana@example.com"), "the root cause is named: {onboarding}");
    let crawl = server.get("/v1/runs/run_demo-crawl/explain");
    let triage = crawl["triage"].as_array().expect("a stall is triaged");
    assert!(triage.iter().all(|one| one["answer"] != "unknown"), "{triage:?}");
    let hello = server.get("/v1/runs/run_demo-hello");
    assert_eq!(hello["blocking_reason"]["type"], "no_worker_listening", "{hello}");

    answer_everything(&server);
    let ends = [
        ("run_demo-news", "succeeded"),
        ("run_demo-purchase", "succeeded"),
        ("run_demo-contract", "succeeded"),
        ("run_demo-customer", "succeeded"),
        ("run_demo-crawl", "succeeded"),
        ("run_demo-album", "completed_with_warnings"),
    ];
    eventually(Duration::from_secs(120), "everything that was answered ends", || {
        let open = |(id, end): &&(&str, &str)| server.state(id) != *end;
        let open: Vec<_> = ends.iter().filter(open).map(|(id, _)| (*id, server.state(id))).collect();
        if open.is_empty() { Ok(()) } else { Err(open) }
    });

    let before = ids(&server);
    assert_eq!(server.stop(), Some(0));
    let again = Server::start("dev", &data);
    assert_eq!(ids(&again), before, "a restart goes on with what is there");
    assert_eq!(again.state("run_demo-reminder"), "waiting_on_timer");
    assert_eq!(again.stop(), Some(0));
}

/// What the greeting proposes.
fn answer_everything(server: &Server) {
    let customer = json!({ "customer": { "name": "Harbour Ltd", "postcode": "20095" } });
    for (path, body) in [
        ("/v1/runs/run_demo-purchase/approve", json!({ "decision_by": "ana@example.com" })),
        ("/v1/connections/drive/default/reconnected", json!({})),
        ("/v1/runs/run_demo-contract/signals/document.signed", json!({ "payload": { "by": "Dora" } })),
        (
            "/v1/runs/run_demo-customer/resolve",
            json!({ "step_id": "import", "action": "correct", "input": customer, "reason": "looked it up" }),
        ),
        ("/v1/runs/run_demo-crawl/retry", json!({})),
    ] {
        let (status, answer) = server.post(path, body);
        assert_eq!(status, 200, "{path}: {answer}");
    }
}

fn runs(server: &Server) -> Vec<Value> {
    server.get("/v1/runs?limit=100")["runs"].as_array().expect("a list").clone()
}

fn ids(server: &Server) -> BTreeSet<String> {
    runs(server).iter().map(|run| run["run_id"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn a_server_that_has_said_its_address_can_be_stopped_at_once() {
    let data = folder("stopped-at-once");
    for round in 0..20 {
        assert_eq!(Server::start("serve", &data).stop(), Some(0), "round {round}");
    }
}
