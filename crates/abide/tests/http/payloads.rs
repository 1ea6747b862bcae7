//! Payloads are bytes: the doubtful cases of JSON at every door, for every reader. Each comes out as it went in, or is refused
//! at the door.

use abide_core::ids::Digest;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::doubtful::{broken, doubtful};
use crate::stage::{Heard, Stage};
use crate::streams::Stream;

const RELAY: &str = "workflow: relay
steps:
  - { id: a, task: echo, with: '${{ input.v }}' }
  - { id: b, task: echo, with: '${{ steps.a.output }}' }
output: ${{ steps.b.output }}
";
const WAITS: &str = "workflow: waits
steps:
  - { id: s, signal: news }
  - { id: a, task: echo, with: '${{ steps.s.output }}' }
";
const ASKS: &str = "workflow: asks
steps:
  - { id: g, approval: { title: Go, subject: '${{ input.v }}', approvers: [ana] } }
  - { id: a, task: echo, with: '${{ steps.g.output }}' }
";
const COMPUTES: &str = "workflow: computes
steps:
  - { id: a, task: echo, with: { x: '${{ [input.v] }}' } }
";

#[derive(Deserialize)]
struct Task {
    task_id: String,
    run_id: String,
    epoch: u64,
    input: Box<RawValue>,
    answers: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    payload: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Claimed {
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Done {
    task: Option<Task>,
}

fn post(stage: &Stage, path: &str, body: impl AsRef<[u8]>) -> Heard {
    stage.send("POST", path, &[("Content-Type", "application/json")], body.as_ref())
}

fn accepted(heard: Heard) -> Heard {
    assert!((200..300).contains(&heard.status), "{}", heard.text());
    heard
}

fn claim(stage: &Stage) -> Task {
    let asked = json!({ "worker": "w", "queues": ["default"], "wait_ms": 10_000 });
    let heard = accepted(stage.post("/v1/tasks/claim", asked));
    serde_json::from_slice::<Claimed>(&heard.body).expect("tasks").tasks.remove(0)
}

fn start(stage: &Stage, workflow: &str, input: &str) -> String {
    let heard = accepted(post(stage, "/v1/runs", format!("{{\"workflow\":\"{workflow}\",\"input\":{input}}}")));
    heard.json()["run_id"].as_str().expect("an id").to_owned()
}

fn report(task: &Task, what: &str) -> String {
    format!("/v1/tasks/{}/{what}", task.task_id)
}

/// The bundle has no payload in it; it names each with its size and digest.
fn check_bundle(stage: &Stage, run: &str, payloads: &[(&str, &str)]) {
    let bundle = stage.get(&format!("/v1/runs/{run}/bundle")).json();
    let named = bundle["payloads"].as_array().expect("payloads");
    for (name, text) in payloads {
        let one = named.iter().find(|one| one["name"] == *name).unwrap_or_else(|| panic!("no {name}: {named:?}"));
        let digest = Digest::of(text.as_bytes()).to_string();
        assert_eq!((&one["size"], &one["digest"]), (&json!(text.len()), &json!(digest)), "{name}");
    }
}

/// Every answer about a run is one; those with payloads have these.
fn check_readers(stage: &Stage, run: &str, payloads: &[(&str, &str)]) {
    for path in ["", "/explain", "/handoff", "/timeline", "/graph", "/bundle", "/status", "/events", "/steps", "/input"]
    {
        let heard = stage.get(&format!("/v1/runs/{run}{path}"));
        assert_eq!(heard.status, 200, "{path}: {}", heard.text());
        let text = std::str::from_utf8(&heard.body).expect("UTF-8");
        serde_json::from_str::<&RawValue>(text).expect("JSON");
    }
    for (path, holds) in payloads {
        let text = stage.get(&format!("/v1/runs/{run}/{path}")).text();
        assert!(text.contains(holds), "{path}: {text:.300} lacks {holds:.100}");
    }
}

#[test]
fn inputs_and_outputs_come_out_byte_for_byte() {
    let stage = Stage::new();
    stage.apply(RELAY);
    for case in doubtful() {
        let run = start(&stage, "relay", &format!("{{\"v\":{case}}}"));
        let a = claim(&stage);
        assert_eq!((a.run_id.as_str(), a.input.get()), (run.as_str(), case.as_str()), "claim");
        let body = format!("{{\"epoch\":{},\"output\":{case},\"claim_next\":true}}", a.epoch);
        let done = accepted(post(&stage, &report(&a, "complete"), body));
        let b = serde_json::from_slice::<Done>(&done.body).expect("an answer").task.expect("the next task");
        assert_eq!(b.input.get(), case, "claim_next");
        let result = format!("{{\"epoch\":{},\"external_id\":\"x\",\"result\":{case}}}", b.epoch);
        let receipt = accepted(post(&stage, &report(&b, "effects"), result));
        assert!(receipt.text().contains(&format!("\"result\":{case}")), "effects");
        let item =
            format!("{{\"op\":\"complete\",\"task_id\":\"{}\",\"epoch\":{},\"output\":{case}}}", b.task_id, b.epoch);
        let batch = accepted(post(&stage, "/v1/tasks/batch", format!("{{\"items\":[{item}]}}")));
        assert!(batch.text().contains("\"status\":200"), "{}", batch.text());
        stage.until(&run, "succeeded");
        let shown = format!("\"output\":{case}");
        let input = format!("{{\"v\":{case}}}");
        let step_input = format!("\"input\":{case}");
        let small = case.len() < 60_000;
        check_readers(&stage, &run, &[("input", &input), ("output", &case), ("steps/a/output", &case)]);
        if small {
            check_readers(&stage, &run, &[("steps", &shown), ("steps/a", &shown), ("steps/a", &step_input)]);
        }
        check_bundle(&stage, &run, &[("input", &input), ("output", &case), ("a/input", &case), ("a/output", &case)]);
    }
}

#[test]
fn streams_go_on_while_runs_hold_doubtful_payloads() {
    let stage = Stage::new();
    for document in [RELAY, ASKS, WAITS] {
        stage.apply(document);
    }
    let mut everything = Stream::open(&stage, "/v1/stream", None);
    for case in doubtful() {
        let run = start(&stage, "asks", &format!("{{\"v\":{case}}}"));
        let mut stream = Stream::open(&stage, &format!("/v1/runs/{run}/stream"), None);
        stream.until("waiting_on_approval");
        let form = format!("{{\"decision_by\":\"ana\",\"form\":{{\"v\":{case}}}}}");
        accepted(post(&stage, &format!("/v1/runs/{run}/approve"), form));
        let task = claim(&stage);
        stream.until("running");
        accepted(post(&stage, &report(&task, "complete"), format!("{{\"epoch\":{},\"output\":{case}}}", task.epoch)));
        stream.until("succeeded");

        let waits = start(&stage, "waits", &case);
        let mut stream = Stream::open(&stage, &format!("/v1/runs/{waits}/stream"), None);
        stream.until("waiting_on_tool");
        accepted(post(&stage, &format!("/v1/runs/{waits}/signals/news"), format!("{{\"payload\":{case}}}")));
        let task = claim(&stage);
        stream.until("running");
        let details = format!("{{\"epoch\":{},\"class\":\"validation\",\"message\":\"no\"}}", task.epoch);
        accepted(post(&stage, &report(&task, "fail"), details));
        stream.until("waiting_on_operator");
        let fixed = format!("{{\"step_id\":\"a\",\"action\":\"correct\",\"input\":{case}}}");
        accepted(post(&stage, &format!("/v1/runs/{waits}/resolve"), fixed));
        let task = claim(&stage);
        assert_eq!(task.input.get(), case, "the corrected input");
        accepted(post(&stage, &report(&task, "complete"), format!("{{\"epoch\":{}}}", task.epoch)));
        stream.until("succeeded");
        for run in [&run, &waits] {
            while !everything
                .next()
                .is_some_and(|(_, _, record)| record["run_id"] == run.as_str() && record["state"] == "succeeded")
            {
            }
        }
    }
}

#[test]
fn signals_forms_and_callbacks_come_out_byte_for_byte() {
    let stage = Stage::new();
    for document in [WAITS, ASKS, RELAY] {
        stage.apply(document);
    }
    for case in doubtful() {
        let run = start(&stage, "waits", "{}");
        accepted(post(&stage, &format!("/v1/runs/{run}/signals/news"), format!("{{\"payload\":{case}}}")));
        let task = claim(&stage);
        assert!(task.input.get().contains(&case), "signal: {}", task.input);
        accepted(post(&stage, &report(&task, "complete"), format!("{{\"epoch\":{}}}", task.epoch)));
        check_readers(&stage, &run, &[("steps/s/output", &case)]);

        let run = start(&stage, "asks", &format!("{{\"v\":{case}}}"));
        let inbox = accepted(stage.get("/v1/approvals"));
        assert!(inbox.text().contains(&format!("\"subject\":{case}")), "inbox: {}", inbox.text());
        let form = format!("{{\"decision_by\":\"ana\",\"form\":{{\"v\":{case}}}}}");
        accepted(post(&stage, &format!("/v1/runs/{run}/approve"), form));
        let task = claim(&stage);
        assert!(task.input.get().contains(&case), "form: {}", task.input);
        accepted(post(&stage, &report(&task, "complete"), format!("{{\"epoch\":{}}}", task.epoch)));
        check_readers(&stage, &run, &[]);

        let run = start(&stage, "relay", "{\"v\":1}");
        let task = claim(&stage);
        let made = stage.post(&report(&task, "callbacks"), json!({ "epoch": task.epoch, "name": "tool" })).json();
        let url = made["url"].as_str().expect("a url");
        accepted(stage.post(&report(&task, "block"), json!({ "epoch": task.epoch, "on": "tool", "callback": "tool" })));
        accepted(post(&stage, &url[url.find("/v1/callbacks").expect("its path")..], format!(" {case}\n")));
        let task = claim(&stage);
        assert_eq!(task.answers[0].payload.as_ref().map_or("null", |payload| payload.get()), case, "callback");
        check_readers(&stage, &run, &[]);
        accepted(stage.post(&format!("/v1/runs/{run}/cancel"), json!({ "reason": "seen" })));
        accepted(stage.post(&report(&task, "canceled"), json!({ "epoch": task.epoch })));
    }
}

#[test]
fn steps_of_a_body_come_out_byte_for_byte() {
    let stage = Stage::new();
    stage.apply("workflow: body\ncoded: { revision: '1' }\n");
    for case in doubtful() {
        let run = start(&stage, "body", "{}");
        let asked = json!({ "worker": "w", "queues": ["default"], "handlers": ["body@1"], "wait_ms": 10_000 });
        let heard = accepted(stage.post("/v1/tasks/claim", asked));
        let task = serde_json::from_slice::<Claimed>(&heard.body).expect("tasks").tasks.remove(0);
        let steps = |body: &str| post(&stage, &report(&task, "steps"), format!("{{\"epoch\":{},{body}}}", task.epoch));
        accepted(steps("\"begin\":[{\"step_id\":\"one\"}]"));
        let done = format!("\"done\":[{{\"step_id\":\"one\",\"output\":{case}}}],\"begin\":[{{\"step_id\":\"one\"}}]");
        let told = accepted(steps(&done));
        assert!(told.text().contains(&format!("\"output\":{case}")), "steps: {}", told.text());
        accepted(post(&stage, &report(&task, "complete"), format!("{{\"epoch\":{},\"output\":{case}}}", task.epoch)));
        stage.until(&run, "succeeded");
        check_readers(&stage, &run, &[("output", &case), ("steps/one/output", &case)]);
    }
}

#[test]
fn what_is_no_json_is_refused_at_every_door_and_changes_nothing() {
    let stage = Stage::new();
    for document in [WAITS, ASKS, RELAY] {
        stage.apply(document);
    }
    let (waits, asks) = (start(&stage, "waits", "{}"), start(&stage, "asks", "{\"v\":1}"));
    let seq = |run: &str| stage.get(&format!("/v1/runs/{run}")).json()["as_of_seq"].clone();
    let before = (seq(&waits), seq(&asks));
    start(&stage, "relay", "{\"v\":1}");
    let task = claim(&stage);
    let made = stage.post(&report(&task, "callbacks"), json!({ "epoch": task.epoch, "name": "tool" })).json();
    let url = made["url"].as_str().expect("a url").to_owned();
    let around = |before: &str, value: &[u8], after: &str| [before.as_bytes(), value, after.as_bytes()].concat();
    for value in broken() {
        let heard = [
            post(&stage, "/v1/runs", around("{\"workflow\":\"relay\",\"input\":", &value, "}")),
            post(&stage, &format!("/v1/runs/{waits}/signals/news"), around("{\"payload\":", &value, "}")),
            post(
                &stage,
                &format!("/v1/runs/{asks}/approve"),
                around("{\"decision_by\":\"ana\",\"form\":", &value, "}"),
            ),
            post(&stage, &url[url.find("/v1/callbacks").expect("its path")..], value.clone()),
            // Of a lease that is over: what such a report does to a lease that lives is told elsewhere.
            post(&stage, &report(&task, "complete"), around("{\"epoch\":99,\"output\":", &value, "}")),
            post(
                &stage,
                &report(&task, "steps"),
                around("{\"epoch\":99,\"done\":[{\"step_id\":\"x\",\"output\":", &value, "}]}"),
            ),
            post(&stage, "/v1/tasks/batch", around("{\"items\":[", &value, "]}")),
        ];
        for (door, heard) in heard.iter().enumerate() {
            let refused = (400..500).contains(&heard.status) && heard.json()["outcome"] == "none";
            assert!(refused, "door {door}, {:?}: {}", String::from_utf8_lossy(&value), heard.text());
        }
    }
    assert_eq!((seq(&waits), seq(&asks)), before);
    assert_eq!(stage.get("/v1/runs").json()["runs"].as_array().map(Vec::len), Some(3), "nothing was started");
    accepted(stage.post(&report(&task, "heartbeat"), json!({ "epoch": task.epoch })));
}

#[test]
fn a_value_that_no_expression_can_compute_with_asks_for_a_correction() {
    let stage = Stage::new();
    stage.apply(COMPUTES);
    for case in [r#""half \ud83d""#, "1e400", "18446744073709551616", r#"{"a\ud83d":1}"#] {
        let run = start(&stage, "computes", &format!("{{\"v\":{case}}}"));
        let record = stage.until(&run, "waiting_on_operator");
        assert_eq!(record["blocking_reason"]["type"], "correction_required", "{record}");
        let step = stage.get(&format!("/v1/runs/{run}/steps/a")).json();
        assert_eq!(
            (&step["failure"]["class"], &step["failure"]["code"]),
            (&json!("validation"), &json!("expression_bad_value"))
        );
    }
}
