//! A result that cannot be taken is the truth about its attempt at once, where the lease is proven, and nothing else.

use serde_json::{Value, json};

use crate::stage::{Heard, Stage};

const WORK: &str = "workflow: work\nsteps:\n  - { id: a, task: work }\n";
const PAYS: &str = "workflow: pays\nsteps:\n  - { id: a, task: pay, effect: external }\n";
const PROBES: &str = "workflow: probes
steps:
  - { id: a, task: pay, effect: external, reconcile: { task: find } }
";

fn stage() -> Stage {
    let stage = Stage::new();
    for document in [WORK, PAYS, PROBES, "workflow: body\ncoded: { revision: '1' }\n"] {
        assert_eq!(stage.apply(document).status, 201);
    }
    stage
}

/// Sends a body about a task, with the epoch in a header or without.
fn say(stage: &Stage, task: &Value, what: &str, epoch: Option<u64>, body: &[u8]) -> Heard {
    let path = format!("/v1/tasks/{}/{what}", task["task_id"].as_str().expect("a task"));
    let epoch = epoch.map(|epoch| epoch.to_string()).unwrap_or_default();
    let headers = [("Content-Type", "application/json"), ("Abide-Epoch", epoch.as_str())];
    stage.send("POST", &path, &headers[..if epoch.is_empty() { 1 } else { 2 }], body)
}

fn large() -> Vec<u8> {
    format!("{{\"output\":\"{}\",\"epoch\":1}}", "x".repeat(3 << 20)).into_bytes()
}

fn failure(stage: &Stage, run: &str) -> (String, String, String) {
    let step = stage.get(&format!("/v1/runs/{run}/steps/a")).json();
    let of = |name: &str| step["failure"][name].as_str().unwrap_or_default().to_owned();
    (of("class"), of("code"), of("message"))
}

/// The call, its epoch in the header, its body, the refusal, and what the failure names.
type Row = (&'static str, Option<u64>, Vec<u8>, (u16, &'static str), &'static str);

#[test]
fn a_result_that_cannot_be_taken_ends_its_attempt_with_the_cause() {
    let stage = stage();
    let epoch_first = [b"{\"epoch\":1,\"output\":\"".as_slice(), "x".repeat(3 << 20).as_bytes(), b"\"}"].concat();
    let rows: [Row; 8] = [
        ("complete", Some(1), large(), (413, "payload-too-large"), "1048576 bytes"),
        ("complete", None, epoch_first, (413, "payload-too-large"), "1048576 bytes"),
        ("complete", None, b"{\"epoch\":1,\"outptu\":2}".to_vec(), (422, "validation-failed"), "outptu"),
        ("complete", None, b"{\"epoch\":1,\"output\":NaN}".to_vec(), (400, "malformed-json"), "not JSON"),
        ("complete", Some(1), b"{\"output\":".to_vec(), (400, "malformed-json"), "not JSON"),
        ("complete", None, b"{\"output\":\"\xff\",\"epoch\":1}".to_vec(), (400, "malformed-json"), "UTF-8"),
        ("fail", None, b"{\"epoch\":1,\"mesage\":\"x\"}".to_vec(), (422, "validation-failed"), "mesage"),
        (
            "fail",
            None,
            format!("{{\"epoch\":1,\"message\":\"{}\"}}", "x".repeat(70 << 10)).into(),
            (413, "payload-too-large"),
            "65536",
        ),
    ];
    for (what, epoch, body, (status, code), named) in rows {
        let run = stage.start("work", json!({}));
        let task = stage.claim("w");
        let heard = say(&stage, &task, what, epoch, &body);
        assert_eq!(heard.said(), (status, code.into()), "{}", heard.text());
        assert_eq!(heard.json()["attempt_ended"], true, "{}", heard.text());
        assert!(heard.json()["detail"].as_str().is_some_and(|detail| detail.contains("attempt was ended")));
        let record = stage.until(&run, "waiting_on_operator");
        assert_eq!(record["blocking_reason"]["type"], "correction_required", "{record}");
        let (class, of, message) = failure(&stage, &run);
        assert_eq!((class.as_str(), of.as_str()), ("validation", code), "{message}");
        assert!(message.contains(named), "{message}");
        // Said again it is refused alike; one that can be read is another answer than the one that counts.
        let again = say(&stage, &task, what, epoch, &body);
        let is_readable = named == "65536";
        assert_eq!(again.status, if is_readable { 409 } else { status }, "{}", again.text());
    }
}

#[test]
fn a_result_of_an_external_step_that_cannot_be_taken_is_of_unknown_outcome() {
    let stage = stage();
    let run = stage.start("pays", json!({}));
    assert_eq!(say(&stage, &stage.claim("w"), "complete", Some(1), &large()).status, 413);
    let record = stage.until(&run, "waiting_on_operator");
    assert_eq!(record["blocking_reason"]["type"], "outcome_unknown", "{record}");
    let (class, code, _) = failure(&stage, &run);
    assert_eq!((class.as_str(), code.as_str()), ("outcome_unknown", "payload-too-large"));

    stage.start("probes", json!({}));
    assert_eq!(say(&stage, &stage.claim("w"), "complete", Some(1), &large()).status, 413);
    assert_eq!(stage.claim("w")["kind"], "reconcile", "it is looked for at once");
}

#[test]
fn a_step_of_a_body_and_an_item_of_a_batch_that_cannot_be_taken_end_their_attempts() {
    let stage = stage();
    let run = stage.start("body", json!({}));
    let asked = json!({ "worker": "w", "queues": ["default"], "handlers": ["body@1"], "wait_ms": 10_000 });
    let task = stage.post("/v1/tasks/claim", asked).json()["tasks"][0].clone();
    let steps = b"{\"epoch\":1,\"done\":[{\"step_id\":\"one\",\"outptu\":1}]}";
    assert_eq!(say(&stage, &task, "steps", None, steps).json()["attempt_ended"], true);
    stage.until(&run, "waiting_on_operator");

    let runs = [stage.start("work", json!({})), stage.start("work", json!({}))];
    let tasks = [stage.claim("w"), stage.claim("w")];
    let item = |task: &Value, field: &str| json!({ "op": "complete", "task_id": task["task_id"], "epoch": task["epoch"], field: 1 });
    let batch =
        stage.post("/v1/tasks/batch", json!({ "items": [item(&tasks[0], "outptu"), item(&tasks[1], "output")] }));
    let results = batch.json()["results"].clone();
    assert_eq!((&results[0]["status"], &results[0]["body"]["attempt_ended"]), (&json!(422), &json!(true)));
    assert_eq!(results[1]["status"], 200);
    stage.until(tasks[0]["run_id"].as_str().expect("a run"), "waiting_on_operator");
    stage.until(tasks[1]["run_id"].as_str().expect("a run"), "succeeded");
    assert_eq!(runs.len(), 2);
}

#[test]
fn a_refused_result_without_a_proven_lease_changes_nothing() {
    let mut stage = stage();
    let run = stage.start("work", json!({}));
    let task = stage.claim("w");
    let unproven: [(Option<u64>, Vec<u8>); 5] = [
        // The epoch stands behind what is cut off.
        (None, large()),
        (Some(7), large()),
        (None, b"{\"epoch\":7,\"outptu\":1}".to_vec()),
        (Some(1), b"{\"epoch\":7,\"outptu\":1}".to_vec()),
        (None, b"{\"output\":{\"epoch\":1},\"x\":1}".to_vec()),
    ];
    for (epoch, body) in unproven {
        let heard = say(&stage, &task, "complete", epoch, &body);
        assert!(matches!(heard.status, 413 | 422), "{}", heard.text());
        assert_eq!(heard.json()["attempt_ended"], Value::Null);
        assert_eq!(stage.state(&run), "running");
    }
    // What is no result ends nothing.
    assert_eq!(say(&stage, &task, "heartbeat", Some(1), b"{\"epoch\":1,\"x\":1}").status, 422);
    assert_eq!(stage.report(&task, "complete", json!({ "output": 1 })).status, 200);

    let key = |stage: &Stage, name: &str, role: &str| {
        stage.post("/v1/keys", json!({ "name": name, "role": role })).json()["key"].as_str().expect("a key").to_owned()
    };
    stage.key = Some(key(&stage, "root", "admin"));
    let (own, foreign) = (key(&stage, "one", "worker"), key(&stage, "two", "worker"));
    let root = stage.key.clone();
    let run = stage.start("work", json!({}));
    stage.key = Some(own);
    let task = stage.claim("w");
    stage.key = Some(foreign);
    let heard = say(&stage, &task, "complete", Some(1), &large());
    assert_eq!((heard.status, &heard.json()["attempt_ended"]), (413, &Value::Null), "{}", heard.text());
    stage.key = root;
    assert_eq!(stage.state(&run), "running");
}
