//! What the screens of runs ask for: groups by root cause, times, pages of steps, a step's input, graphs of the past.

use serde_json::{Value, json};

use crate::stage::{Stage, eventually};

const COPY: &str = "workflow: copy
sensitive: [/card]
steps: [{ id: copy, task: drive.copy, connection: drive/ana, with: { file: '${{ input.file }}', card: '${{ input.card }}' } }]
";
const FAN: &str = "workflow: fan\nsteps: [{ id: item, for_each: input.items, task: item }]\n";

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn runs_that_wait_for_one_connection_are_one_group_whose_call_frees_them() {
    let stage = Stage::new();
    stage.apply(COPY);
    stage.post("/v1/connections/drive/ana/broken", json!({}));
    let runs: Vec<String> = (0..3).map(|_| stage.start("copy", json!({ "file": "a" }))).collect();
    for run in &runs {
        stage.until(run, "waiting_on_auth");
    }
    let counts = stage.get("/v1/runs/counts?by=root_cause").json();
    let group =
        list(&counts, "groups").iter().find(|one| one["cause"] == "connection drive/ana").expect("a group").clone();
    assert_eq!(group["count"], 3);
    assert_eq!(group["sentence"], "3 runs wait for drive/ana to be reconnected.");
    let found = stage.get(&format!("/v1/runs?{}", group["query"].as_str().expect("a query"))).json();
    assert_eq!(list(&found, "runs").len(), 3, "the query finds exactly them");
    let freed = stage.post(group["action"]["href"].as_str().expect("a call"), group["action"]["body"].clone());
    assert_eq!((freed.status, freed.json()["released"].as_u64()), (200, Some(3)));
}

#[test]
fn every_open_run_is_counted_once_where_it_waits() {
    let stage = Stage::new();
    stage.apply("workflow: gate\nsteps: [{ id: go, approval: { title: Go, approvers: [ana] } }]\n");
    stage.apply("workflow: outer\nsteps: [{ id: inner, child: gate }]\n");
    stage.apply("workflow: task\nsteps: [{ id: s, task: work }]\n");
    stage.apply("workflow: undone\nsaga: true\nsteps:\n  - { id: a, task: work, compensate: undo }\n  - { id: b, task: work, after: [a] }\n");
    let ended = stage.start("task", json!({}));
    stage.report(&stage.claim("w"), "complete", json!({}));
    stage.until(&ended, "succeeded");
    let undone = stage.start("undone", json!({}));
    stage.report(&stage.claim("w"), "complete", json!({}));
    stage.report(&stage.claim("w"), "fail", json!({ "class": "fatal", "message": "no" }));
    stage.until(&undone, "compensating");
    for workflow in ["gate", "outer", "task", "task"] {
        stage.start(workflow, json!({}));
    }
    let counts = || stage.get("/v1/runs/counts?by=root_cause").json()["counts"].clone();
    // The parent counts where its child waits; what has ended waits for nothing.
    let expected = json!({ "approval_required": 3, "queued": 2, "compensating": 1 });
    let reached = eventually(|| (counts() == expected).then_some(()));
    assert!(reached.is_some(), "{}", counts());
}

#[test]
fn an_output_that_is_too_large_for_its_step_is_read_by_itself() {
    let stage = Stage::new();
    stage.apply("workflow: a\nsteps: [{ id: s, task: work }]\n");
    let run = stage.start("a", json!({}));
    assert_eq!(stage.get(&format!("/v1/runs/{run}/steps/s/output")).said(), (404, "not-found".into()), "none yet");
    let output = json!({ "text": "x".repeat(100_000), "last": 1 });
    stage.report(&stage.claim("w"), "complete", json!({ "output": output }));
    stage.until(&run, "succeeded");
    let step = stage.get(&format!("/v1/runs/{run}/steps/s")).json();
    assert_eq!(step["output"], Value::Null);
    let whole = stage.get(&format!("/v1/runs/{run}/steps/s/output"));
    assert_eq!((whole.status, whole.json()), (200, output));
    assert_eq!(step["output_ref"]["size"].as_u64(), Some(whole.body.len() as u64));
}

#[test]
fn the_times_of_a_run_name_every_step() {
    let stage = Stage::new();
    stage.apply(FAN);
    let run = stage.start("fan", json!({ "items": [1, 2, 3] }));
    for _ in 0..3 {
        let task = stage.claim("w");
        stage.report(&task, "complete", json!({ "output": { "n": 1 } }));
    }
    stage.until(&run, "succeeded");
    let times = stage.get(&format!("/v1/runs/{run}/timeline")).json();
    let steps: Vec<&str> = list(&times, "rows").iter().filter_map(|row| row["step_id"].as_str()).collect();
    assert_eq!(steps, ["item", "item.0", "item.1", "item.2"]);
    assert!(
        list(&times, "rows")[1]["segments"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["kind"] == "executing"))
    );
    assert_eq!(
        times["states"].as_array().and_then(|all| all.last()).map(|one| one["state"].clone()),
        Some(json!("succeeded"))
    );
}

#[test]
fn pages_of_steps_hang_together_and_carry_outputs() {
    let stage = Stage::new();
    stage.apply(FAN);
    let run = stage.start("fan", json!({ "items": [1, 2, 3, 4, 5] }));
    for _ in 0..5 {
        let task = stage.claim("w");
        stage.report(&task, "complete", json!({ "output": { "of": task["step_id"] } }));
    }
    stage.until(&run, "succeeded");
    let whole = stage.get(&format!("/v1/runs/{run}/steps")).json();
    let (mut pages, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let from = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = stage.get(&format!("/v1/runs/{run}/steps?limit=2{from}")).json();
        assert!(list(&page, "steps").len() <= 2);
        pages.extend(list(&page, "steps").iter().cloned());
        cursor = page["next_cursor"].as_str().map(Into::into);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(&pages, list(&whole, "steps"));
    assert_eq!(pages.len(), 6);
    assert!(pages.iter().filter(|step| step["step_id"] != "item").all(|step| step["output"]["of"] == step["step_id"]));
}

#[test]
fn whoever_corrects_a_step_sees_its_input_without_what_is_sensitive() {
    let stage = Stage::new();
    stage.apply(COPY);
    let run = stage.start("copy", json!({ "file": "a", "card": "4111" }));
    let task = stage.claim("w");
    assert_eq!(task["input"]["card"], "4111", "the worker gets it");
    stage.report(&task, "fail", json!({ "class": "validation", "message": "no such file" }));
    stage.until(&run, "waiting_on_operator");
    let step = stage.get(&format!("/v1/runs/{run}/steps/copy"));
    assert_eq!(step.json()["input"]["file"], "a");
    assert!(!step.text().contains("4111"), "{}", step.text());
}

#[test]
fn a_graph_shows_the_past() {
    let stage = Stage::new();
    stage.apply(FAN);
    let run = stage.start("fan", json!({ "items": [1] }));
    let task = stage.claim("w");
    stage.report(&task, "complete", json!({}));
    stage.until(&run, "succeeded");
    let state = |at: &str| stage.get(&format!("/v1/runs/{run}/graph{at}")).json()["nodes"][0]["state"].clone();
    assert_eq!(state(""), "completed");
    assert_ne!(state("?at=4"), "completed");
    assert_eq!(
        stage.get(&format!("/v1/runs/{run}/graph?at=99999")).status,
        422,
        "as for every other answer about the past"
    );
}
