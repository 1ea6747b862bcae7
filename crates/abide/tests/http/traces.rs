//! Traces are evidence: they arrive at a collector with the ids of run and step, and a dead collector changes nothing.

use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, log_of};
use crate::streams::Stream;

const ONE: &str = "workflow: traced\nsteps:\n  - { id: only, task: work }\n";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A collector that hands on what it gets.
pub fn collector() -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a stream");
                let mut reader = BufReader::new(stream);
                while let Some(body) = request(&mut reader) {
                    let _ = sender.send(serde_json::from_slice(&body).expect("JSON"));
                    let _ = writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
                }
            });
        }
    });
    (url, received)
}

fn request(reader: &mut impl std::io::BufRead) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

fn play(stage: &Stage) -> (String, Value) {
    assert_eq!(stage.apply(ONE).status, 201);
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let made = stage.post_with("/v1/runs", &[("traceparent", traceparent.as_str())], json!({ "workflow": "traced" }));
    let run = made.json()["run_id"].as_str().expect("an id").to_owned();
    let task = stage.claim("w");
    assert_eq!(stage.report(&task, "complete", json!({})).json()["run_state"], "succeeded");
    (run, task)
}

#[test]
fn spans_carry_run_and_step_and_the_trace_that_came_in() {
    let (url, received) = collector();
    let stage = Stage::within(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())]);
    let (run, task) = play(&stage);
    let given = task["traceparent"].as_str().expect("a trace").to_owned();
    assert!(given.starts_with(&format!("00-{TRACE}-")), "traceparent goes out as it came in: {given}");
    let (mut step, mut whole) = (None, None);
    while step.is_none() || whole.is_none() {
        let body = received.recv_timeout(PATIENCE).expect("spans");
        for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans") {
            assert_eq!(span["traceId"], TRACE);
            let said = span["attributes"].to_string();
            assert!(said.contains(&run), "{span}");
            match said.contains("abide.step_id") {
                true => step = Some(span.clone()),
                false => whole = Some(span.clone()),
            }
        }
    }
    let (step, whole) = (step.expect("a step"), whole.expect("a run"));
    assert_eq!(step["parentSpanId"], whole["spanId"]);
    assert_eq!(step["spanId"].as_str(), given.split('-').nth(2), "a worker's spans hang below its task");
    assert_eq!((&step["name"], &whole["name"]), (&json!("only"), &json!("traced")));
}

#[test]
fn events_carry_trace_log_and_bundle_without_any_collector() {
    let stage = Stage::new();
    let (run, _) = play(&stage);
    let events = stage.get(&format!("/v1/runs/{run}/events")).json();
    for kind in ["task.claimed", "step.completed", "run.succeeded"] {
        let event = events["events"].as_array().expect("events").iter().find(|event| event["kind"] == kind);
        let evidence = event.unwrap_or_else(|| panic!("no {kind}: {events}"))["evidence"].to_string();
        for needed in [TRACE, "log://", "/bundle"] {
            assert!(evidence.contains(needed), "{kind}: {evidence}");
        }
    }
}

#[test]
fn a_dead_collector_changes_no_state_and_no_latency() {
    // Nobody answers there, and nobody refuses either.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let work = |stage: Stage| {
        assert_eq!(stage.apply(ONE).status, 201);
        let began = Instant::now();
        for _ in 0..30 {
            let run = stage.start("traced", json!({}));
            let task = stage.claim("w");
            stage.report(&task, "complete", json!({}));
            assert_eq!(stage.state(&run), "succeeded");
        }
        began.elapsed()
    };
    let (alone, beside) = (work(Stage::new()), work(Stage::within(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())])));
    // Thirty calls that wait for a collector take at least thirty times its second.
    assert!(beside < alone * 5 + Duration::from_secs(5), "{beside:?} with a dead collector, {alone:?} without");
}

/// I51, S22: a secret goes to its target and a sensitive value to its task; neither is in a log (of any level), a span, a
/// stream, a metric or a byte of the disk.
#[test]
fn secrets_and_sensitive_values_leave_no_trace() {
    const SECRET: &str = "canary-of-the-vault";
    const CARD: &str = "4111-canary-1111";
    let (url, received) = collector();
    let stage = Stage::within(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("ABIDE_LOG", "trace"),
        ("ABIDE_LOG_FORMAT", "json"),
        ("ABIDE_SECRET_VAULT", SECRET),
        ("ABIDE_ALLOW_TARGET", "127.0.0.1"),
    ]);
    let document = format!(
        "workflow: paid
sensitive: [/card]
steps:
  - {{ id: charge, task: pay, with: {{ card: '${{{{ input.card }}}}' }} }}
  - {{ id: tell, http: {{ method: PUT, url: '{url}/told', headers: {{ x-key: '${{{{ secrets.VAULT }}}}' }}, body: {{ key: '${{{{ secrets.VAULT }}}}' }} }} }}
"
    );
    assert_eq!(stage.apply(&document).status, 201);
    let mut stream = Stream::open(&stage, "/v1/stream", None);
    let run = stage.start("paid", json!({ "card": CARD }));
    let task = stage.claim("w");
    assert_eq!(task["input"]["card"], CARD);
    stage.report(&task, "fail", json!({ "class": "transient", "message": "busy" }));
    let task = stage.claim("w");
    stage.report(&task, "complete", json!({ "output": { "charged": CARD } }));
    stage.until(&run, "succeeded");
    let mut streamed = String::new();
    while !streamed.contains("succeeded") {
        streamed.push_str(&stream.next().expect("a record").2.to_string());
    }
    let (mut spans, mut told) = (String::new(), false);
    while !(told && spans.contains(&run) && spans.contains("charge")) {
        let body = received.recv_timeout(PATIENCE).expect("spans, and the request of the step");
        match body.get("resourceSpans") {
            Some(_) => spans.push_str(&body.to_string()),
            None => told = body["key"] == SECRET,
        }
    }
    let log = std::fs::read_to_string(log_of(&stage.data)).expect("a log");
    assert!(log.contains("/v1/tasks/claim"), "there is something to search: {log}");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&stage.data).expect("data") {
        files.extend(std::fs::read(entry.expect("an entry").path()).expect("a file"));
    }
    let metrics = stage.get("/metrics").text();
    for canary in [SECRET, CARD] {
        for (what, text) in [("log", &log), ("spans", &spans), ("stream", &streamed), ("metrics", &metrics)] {
            assert!(!text.contains(canary), "{canary} is in the {what}");
        }
        assert!(!files.windows(canary.len()).any(|window| window == canary.as_bytes()), "{canary} is on the disk");
    }
}
