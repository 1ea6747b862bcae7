//! What the screens ask for: graphs with places, versions, queues by handler, workers with what they hold, numbers by
//! workflow, one decision.

use serde_json::{Value, json};

use crate::stage::{Stage, eventually};

const ORDER: &str = "workflow: order
steps:
  - { id: check, task: check }
  - { id: charge, task: charge, after: [check], on_result: [{ when: 'failure.code == \"again\"', then: { go_to: check, max_visits: 2 } }] }
  - { id: pack, task: pack, after: [check], for_each: input.items }
  - { id: ship, task: ship, after: [charge, pack] }
finally: [ { id: tell, task: tell } ]
";

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn a_graph_has_a_place_for_every_node_and_a_way_for_every_edge() {
    let stage = Stage::new();
    let applied = stage.apply(ORDER);
    assert_eq!(applied.status, 201, "{}", applied.text());
    let graph = stage.get("/v1/workflows/order/graph").json();
    let (nodes, edges) = (list(&graph, "nodes"), list(&graph, "edges"));
    let node = |id: &str| nodes.iter().find(|node| node["id"] == id).unwrap_or_else(|| panic!("no {id}"));
    let at = |id: &str, field: &str| node(id)[field].as_f64().expect("a number");
    assert_eq!(nodes.len(), 5);
    assert_eq!(at("charge", "y"), at("pack", "y"), "branches stand side by side");
    assert_ne!(at("charge", "x"), at("pack", "x"));
    for (above, below) in [("check", "charge"), ("charge", "ship"), ("pack", "ship"), ("ship", "tell")] {
        assert!(at(above, "y") + at(above, "height") < at(below, "y"), "{above} stands above {below}");
    }
    let kinds: Vec<_> =
        edges.iter().map(|edge| (edge["from"].as_str(), edge["to"].as_str(), edge["kind"].as_str())).collect();
    assert!(kinds.contains(&(Some("charge"), Some("check"), Some("go_to"))), "{kinds:?}");
    assert!(kinds.contains(&(Some("ship"), Some("tell"), Some("finally"))), "{kinds:?}");
    for edge in edges {
        assert!(list(edge, "points").len() >= 2, "{edge}");
    }
    assert_eq!(stage.get("/v1/workflows/order/graph?version=2").status, 404);
}

#[test]
fn a_fan_out_is_one_node_that_counts() {
    let stage = Stage::new();
    stage.apply(ORDER);
    let run = stage.start("order", json!({ "items": [1, 2, 3] }));
    let task = stage.claim("w");
    stage.report(&task, "complete", json!({}));
    for _ in 0..3 {
        let task = stage.claim("w");
        if task["handler"] == "pack" {
            stage.report(&task, "complete", json!({}));
        }
    }
    let graph = stage.get(&format!("/v1/runs/{run}/graph")).json();
    let pack = list(&graph, "nodes").iter().find(|node| node["id"] == "pack").expect("pack").clone();
    let counted: u64 = pack["counts"].as_object().expect("counts").values().filter_map(Value::as_u64).sum();
    assert_eq!((counted, &pack["instances"]), (3, &json!(3)), "{pack}");
    assert!(pack["counts"]["completed"].as_u64() >= Some(2), "{pack}");
}

#[test]
fn a_workflow_lists_its_versions_and_says_its_warnings_again() {
    let stage = Stage::new();
    stage.apply("workflow: w\nsteps:\n  - { id: a, task: work }\n");
    let applied = stage.apply("workflow: w\nsteps:\n  - { id: a, task: work, effect: external }\n").json();
    stage.start("w", json!({}));
    let versions = stage.get("/v1/workflows/w/versions").json();
    let told: Vec<_> =
        list(&versions, "versions").iter().map(|one| (one["version"].as_u64(), one["runs"].as_u64())).collect();
    assert_eq!(told, [(Some(2), Some(1)), (Some(1), Some(0))]);
    let newest = stage.get("/v1/workflows/w").json();
    assert!(!list(&newest, "warnings").is_empty());
    assert_eq!(newest["warnings"], applied["warnings"]);
    assert!(list(&stage.get("/v1/workflows/w/versions/1").json(), "warnings").is_empty());
    assert_eq!(stage.get("/v1/workflows/nothing/versions").said(), (404, "workflow-not-found".into()));
}

#[test]
fn a_queue_tells_which_handler_nobody_offers_and_a_worker_what_it_holds() {
    let stage = Stage::new();
    stage.apply("workflow: a\nsteps:\n  - { id: s, task: known }\n");
    stage.apply("workflow: b\nsteps:\n  - { id: s, task: unknown }\n");
    let asked = json!({ "worker": "w1", "queues": ["default"], "handlers": ["known"], "wait_ms": 0 });
    assert_eq!(stage.post("/v1/tasks/claim", asked.clone()).status, 204);
    let run = stage.start("a", json!({}));
    stage.start("a", json!({}));
    stage.start("b", json!({}));
    let task = stage.post("/v1/tasks/claim", asked).json()["tasks"][0].clone();
    stage.report(&task, "heartbeat", json!({ "progress": { "done": 1, "total": 4, "message": "half way" } }));

    let queue = stage.get("/v1/queues").json()["queues"][0].clone();
    let handlers: Vec<_> = list(&queue, "handlers")
        .iter()
        .map(|one| (one["handler"].as_str(), one["depth"].as_u64(), one["listeners"].as_u64()))
        .collect();
    assert_eq!(handlers, [(Some("known"), Some(1), Some(1)), (Some("unknown"), Some(1), Some(0))]);
    let metrics = stage.get("/metrics").text();
    assert!(
        metrics.contains(r#"abide_handler_listeners{namespace="default",queue="default",handler="unknown"} 0"#),
        "{metrics}"
    );

    let worker = stage.get("/v1/workers").json()["workers"][0].clone();
    assert_eq!(
        (&worker["worker"], &worker["listening"], &worker["lease_count"]),
        (&json!("w1"), &json!(true), &json!(1))
    );
    let lease = &worker["leases"][0];
    assert!(lease["run_id"] == run.as_str() || lease["step_id"] == "s", "{lease}");
    assert_eq!(lease["progress"]["message"], "half way");
    assert!(lease["last_heartbeat_at"].is_string() && lease["expires_at"].is_string());
}

/// The numbers of one workflow as soon as they are `so`: they are folded from the log in the background.
fn numbers(stage: &Stage, workflow: &str, so: impl Fn(&Value) -> bool) -> Value {
    let told = || Some(stage.get("/v1/insights?by=workflow").json()["workflows"][workflow].clone()).filter(&so);
    eventually(told).expect("the numbers come")
}

#[test]
fn numbers_are_told_by_workflow_and_by_tool() {
    let stage = Stage::new();
    stage.apply("workflow: a\nsteps:\n  - { id: s, task: known, retry: { max_attempts: 2, first: 1ms } }\n");
    let run = stage.start("a", json!({}));
    stage.report(&stage.claim("w"), "fail", json!({ "class": "transient", "message": "no" }));
    let warned = json!({ "warnings": ["nearly"] });
    stage.report(&stage.claim("w"), "complete", warned);
    stage.until(&run, "completed_with_warnings");
    let told = numbers(&stage, "a", |told| told["retry_success_rate"] == 1.0);
    assert_eq!((&told["runs"], &told["completed_with_warnings_rate"]), (&json!(1), &json!(1.0)));
    let known = &told["tools"]["known"];
    let counted = ["issued", "again", "retries", "stalls", "warnings", "auth_blocked"].map(|name| known[name].as_u64());
    assert_eq!(counted, [2, 1, 1, 0, 1, 0].map(Some), "{known}");
    let rates = ["retry_rate", "retry_success_rate", "stalls_per_1000_tasks", "warnings_rate", "auth_blocked_rate"];
    assert_eq!(rates.map(|name| known[name].as_f64()), [0.5, 1.0, 0.0, 0.5, 0.0].map(Some), "{known}");
    assert_eq!(known["time_in_state"]["running"]["count"], 2);
    assert_eq!(known["time_in_state"]["retry_scheduled"]["count"], 1);
    assert_eq!(stage.get("/v1/insights?workflow=a").json()["tools"], told["tools"]);

    let metrics = stage.get("/metrics").text();
    for line in [
        r#"abide_tool_tasks_total{namespace="default",tool="known"} 2"#,
        r#"abide_tool_retry_success_rate{namespace="default",tool="known"} 1"#,
        r#"abide_tool_warnings_rate{namespace="default",tool="known"} 0.5"#,
        r#"abide_tool_time_in_state_seconds{namespace="default",tool="known",state="running",quantile="0.99"}"#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(stage.get("/v1/insights?by=tool").status, 422);
    assert_eq!(stage.get("/v1/insights?by=workflow&workflow=a").status, 422);
}

#[test]
fn a_connection_is_a_tool_of_its_own_and_what_was_never_retried_has_no_rate() {
    let stage = Stage::new();
    stage.apply("workflow: a\nsteps:\n  - { id: s, task: known }\n");
    let run = stage.start("a", json!({}));
    stage.report(&stage.claim("w"), "fail", json!({ "class": "auth", "message": "expired", "tool": "gmail" }));
    stage.until(&run, "waiting_on_auth");
    stage.post("/v1/connections/gmail/default/reconnected", json!({}));
    stage.report(&stage.claim("w"), "complete", json!({}));
    stage.until(&run, "succeeded");
    let told = numbers(&stage, "a", |told| told["time_in_state"]["waiting_on_auth"]["count"] == 1);
    let gmail = &told["tools"]["gmail"];
    assert_eq!(
        (&gmail["auth_blocked"], &gmail["auth_blocked_rate"], &gmail["issued"]),
        (&json!(1), &json!(1.0), &json!(0))
    );
    assert_eq!(gmail["time_in_state"]["waiting_on_auth"]["count"], 1);
    assert_eq!((&gmail["retry_rate"], &gmail["stalls_per_1000_tasks"]), (&Value::Null, &Value::Null));
    assert_eq!((&told["tools"]["known"]["auth_blocked"], &told["tools"]["known"]["issued"]), (&json!(0), &json!(2)));

    stage.apply("workflow: b\nsteps:\n  - { id: s, task: calm }\n");
    let run = stage.start("b", json!({}));
    stage.report(&stage.claim("w"), "complete", json!({}));
    stage.until(&run, "succeeded");
    let told = numbers(&stage, "b", |told| told["time_in_state"]["running"]["count"] == 1);
    assert_eq!(
        (&told["retry_success_rate"], &told["tools"]["calm"]["retry_success_rate"]),
        (&Value::Null, &Value::Null)
    );
    let metrics = stage.get("/metrics").text();
    for absent in [
        r#"abide_retry_success_rate{namespace="default",workflow="b"}"#,
        r#"abide_tool_retry_success_rate{namespace="default",tool="calm"}"#,
    ] {
        assert!(!metrics.contains(absent), "{metrics}");
    }
    assert!(metrics.contains(r#"abide_tool_auth_blocked_total{namespace="default",tool="gmail"} 1"#), "{metrics}");
}

#[test]
fn a_decision_is_told_while_it_waits_and_after() {
    let stage = Stage::new();
    stage.apply("workflow: g\nsteps:\n  - { id: g, approval: { title: Go?, approvers: [ana], deadline: 1h, at_deadline: { escalate: [ben] } } }\n");
    let run = stage.start("g", json!({ "n": 1 }));
    let path = format!("/v1/runs/{run}/approvals/g");
    let open = stage.get(&path).json();
    assert_eq!((&open["open"]["at_deadline"], &open["open"]["subject"]), (&json!("ben is asked"), &json!({ "n": 1 })));
    stage.post(&format!("/v1/runs/{run}/reject"), json!({ "decision_by": "ana", "comment": "no" }));
    let over = stage.get(&path).json();
    assert_eq!((&over["open"], &over["run_state"]), (&Value::Null, &json!("failed")));
    let said = &over["decisions"][0];
    assert_eq!((&said["by"], &said["approve"], &said["comment"]), (&json!("ana"), &json!(false), &json!("no")));
    assert_eq!(stage.get(&format!("/v1/runs/{run}/approvals/x")).status, 404);
}
