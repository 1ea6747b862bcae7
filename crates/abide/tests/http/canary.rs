//! I51, S22: a sensitive value goes to tasks, probes and undos, and stands nowhere else, whatever a worker does with it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::stage::{Stage, log_of};
use crate::streams::Stream;
use crate::traces::collector;

const CARD: &str = "4111-canary-1111";
/// The same value as programs write it into URLs, tokens and dumps.
const WRITINGS: [&str; 4] = [CARD, "NDExMS1jYW5hcnktMTExM", "343131312d63616e6172792d31313131", "4111-CANARY-1111"];

const ORDER: &str = "
workflow: order
sensitive: [/card]
saga: true
steps:
  - id: pay
    task: pay
    effect: external
    lease: 1s
    reconcile: find
    compensate: refund
    with: { card: '${{ input.card }}' }
  - { id: kid, child: kid, on_failure: warn, with: { c: '${{ input.card }}' } }
  - { id: ok, approval: { title: 'Ship ${{ steps.pay.output.of }}?', approvers: [ana], deadline: 1h } }
  - { id: end, task: end }
output: { of: '${{ steps.pay.output.of }}' }
";
const KID: &str = "workflow: kid\nsteps:\n  - { id: look, task: look, with: { c: '${{ input.c }}' } }\n";

/// A sentence that holds the value in every writing.
fn said() -> String {
    format!("declined: {}", WRITINGS.join(" "))
}

fn fault(class: &str) -> Value {
    json!({ "class": class, "message": said(), "code": said(), "tool": said(), "details": { "stack": said() },
            "evidence": [{ "type": "log", "ref": format!("log://{}", said()) }] })
}

fn report() -> Value {
    json!({
        "output": { "of": CARD, "said": said() },
        "resources": [{ "type": "charge", "id": format!("ch-{CARD}"), "url": format!("https://pay.example/{CARD}") }],
        "warnings": [said()],
        "evidence": [{ "type": "log", "ref": said() }],
    })
}

/// One run through failure, loss, probe, child, approval and undo. Everything that readers may ask on the way is asked.
fn play(stage: &Stage, seen: &mut Vec<(String, String)>) -> String {
    let run = stage.start("order", json!({ "card": CARD, "name": "Ana" }));
    let task = stage.claim("w1");
    assert_eq!(task["input"]["card"], CARD);
    assert_eq!(stage.report(&task, "fail", fault("transient")).status, 200);
    look(stage, &run, seen);
    let task = stage.claim("w1");
    let progress = json!({ "progress": { "done": 1, "total": 2, "message": said() } });
    assert_eq!(stage.report(&task, "heartbeat", progress).status, 200);
    assert_eq!(stage.report(&task, "effects", json!({ "external_id": format!("ch-{CARD}") })).status, 200);
    look(stage, &run, seen);
    let probe = stage.claim("w2");
    assert_eq!(stage.report(&task, "complete", report()).said(), (409, "lease-lost".into()));
    look(stage, &run, seen);
    assert_eq!(probe["kind"], "reconcile");
    assert!(
        probe["input"].to_string().contains(&format!("ch-{CARD}")),
        "a probe gets identifiers as they were: {probe}"
    );
    let found = json!({ "output": { "found": true, "external_id": format!("ch-{CARD}"), "output": { "of": CARD } } });
    // The late result may have settled it already; either answer is fine.
    stage.report(&probe, "complete", found);
    let look_up = stage.claim("w1");
    assert_eq!(look_up["input"]["c"], CARD);
    look(stage, &run, seen);
    assert_eq!(stage.report(&look_up, "fail", fault("fatal")).status, 200);
    stage.until(&run, "waiting_on_approval");
    look(stage, &run, seen);
    let decided = json!({ "decision_by": "ana", "comment": said() });
    assert_eq!(stage.post(&format!("/v1/runs/{run}/approve"), decided).status, 200);
    let end = stage.claim("w1");
    assert_eq!(stage.report(&end, "block", json!({ "on": "operator", "reason": said() })).status, 200);
    stage.until(&run, "waiting_on_operator");
    look(stage, &run, seen);
    let failed = json!({ "step_id": "end", "action": "fail", "reason": said() });
    assert_eq!(stage.post(&format!("/v1/runs/{run}/resolve"), failed).status, 200);
    let undo = stage.claim("w1");
    assert_eq!(undo["kind"], "compensate");
    assert!(undo["input"].to_string().contains(CARD), "an undo gets the value: {undo}");
    assert_eq!(stage.report(&undo, "complete", json!({ "output": { "of": CARD } })).status, 200);
    stage.until(&run, "failed");
    look(stage, &run, seen);
    run
}

/// Everything that can be read of a run and around it.
fn look(stage: &Stage, run: &str, seen: &mut Vec<(String, String)>) {
    let mut paths: Vec<String> =
        ["", "?at=9", "/status", "/events", "/steps", "/input", "/output", "/explain", "/handoff", "/bundle"]
            .into_iter()
            .chain([
                "/graph",
                "/timeline",
                "/explain?at=12",
                "/steps/pay",
                "/steps/pay/output",
                "/steps/ok",
                "/steps/end",
            ])
            .map(|below| format!("/v1/runs/{run}{below}"))
            .collect();
    let around = ["runs", "approvals", "queues", "workers", "connections", "insights", "insights?by=workflow"];
    paths.extend(around.map(|name| format!("/v1/{name}")));
    paths.extend(["runs?workflow=kid", "runs/counts?by=root_cause"].map(|name| format!("/v1/{name}")));
    paths.push("/metrics".into());
    seen.extend(paths.into_iter().map(|path| (stage.get(&path).text(), path)).map(|(text, path)| (path, text)));
}

fn files(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files(&path, found),
            false => {
                let bytes = std::fs::read(&path).expect("a file");
                found.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
            }
        }
    }
}

#[test]
fn a_sensitive_value_is_shown_nowhere_whatever_a_worker_does_with_it() {
    let (url, received) = collector();
    let environment =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("ABIDE_LOG", "trace"), ("ABIDE_LOG_FORMAT", "json")];
    let mut stage = Stage::within(&environment);
    for document in [KID, ORDER] {
        assert_eq!(stage.apply(document).status, 201);
    }
    let mut stream = Stream::open(&stage, "/v1/stream", None);
    let mut seen = Vec::new();
    let run = play(&stage, &mut seen);

    let mut streamed = String::new();
    while !(streamed.contains("\"failed\"") && streamed.contains("rolled_back")) {
        streamed.push_str(&stream.next().expect("a record").2.to_string());
    }
    seen.push(("the stream".into(), streamed));
    let mut spans = String::new();
    while !(spans.contains(&run) && spans.contains("pay.undo")) {
        spans.push_str(&received.recv_timeout(Duration::from_secs(60)).expect("spans").to_string());
    }
    seen.push(("the spans".into(), spans));
    stage.stop();
    seen.push(("the log".into(), std::fs::read_to_string(log_of(&stage.data)).expect("a log")));
    let beside = stage.data.with_extension("backup");
    let offline = |arguments: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_abide")).args(arguments).arg("--data").arg(&stage.data).output();
        let done = done.expect("the program runs");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    files(&stage.data, &mut seen);
    offline(&["backup", beside.to_str().expect("a path")]);
    offline(&["archive", "--retain", "failed=0s"]);
    files(&stage.data, &mut seen);
    files(&beside, &mut seen);
    let _ = std::fs::remove_dir_all(&beside);

    assert!(seen.len() > 150, "there is something to search");
    let told: usize = seen.iter().filter(|(_, text)| text.contains("[redacted]")).count();
    assert!(told > 30, "what is hidden is shown as hidden: {told}");
    for (place, text) in &seen {
        for writing in WRITINGS {
            let at = text.find(writing);
            let around = at.map(|at| &text[text.floor_char_boundary(at.saturating_sub(200))..at]);
            assert!(at.is_none(), "{writing} is in {place}, behind {around:?}");
        }
    }
}
