//! Server-sent events: every change of one run, of many, taken up again after a break; and long polls.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::Stage;

pub struct Stream(BufReader<TcpStream>);

impl Stream {
    pub fn open(stage: &Stage, path: &str, last: Option<&str>) -> Stream {
        let mut stream = stage.connect();
        let last = last.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{last}\r\n")
            .expect("sent");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).expect("a line");
        }
        Stream(reader)
    }

    /// The next event: its name, its id, what it says. None at the end, also in the middle of an event. That the stream is
    /// alive is no news.
    pub fn next(&mut self) -> Option<(String, String, Value)> {
        let (mut name, mut id) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).ok()?;
            if !line.ends_with('\n') {
                return None;
            }
            if let Some(rest) = line.strip_prefix("event: ") {
                name = rest.trim().into();
            } else if let Some(rest) = line.strip_prefix("id: ") {
                id = rest.trim().into();
            } else if let Some(rest) = line.strip_prefix("data: ")
                && name != "here"
            {
                return Some((name, id, serde_json::from_str(rest.trim()).expect("JSON")));
            }
        }
    }

    pub fn until(&mut self, state: &str) -> (String, Value) {
        loop {
            let (name, id, value) = self.next().expect("another event");
            if name == "run" && value["state"] == state {
                return (id, value);
            }
        }
    }
}

const TWO: &str = "workflow: two\nsteps:\n  - { id: a, task: work }\n  - { id: b, task: work }\n";

#[test]
fn a_run_is_followed_to_its_end_and_taken_up_again() {
    let stage = Stage::new();
    stage.apply(TWO);
    let run = stage.start("two", json!({}));
    let path = format!("/v1/runs/{run}/stream");
    let mut stream = Stream::open(&stage, &path, None);
    assert_eq!(stream.until("queued").1["run_id"], run.as_str());
    let task = stage.claim("w");
    let (id, _) = stream.until("running");
    stage.report(&task, "heartbeat", json!({ "progress": { "done": 1, "total": 2 } }));
    let (name, no_id, progress) = stream.next().expect("progress");
    assert_eq!((name.as_str(), no_id.as_str(), &progress["done"]), ("progress", "", &json!(1)));
    drop(stream);
    stage.report(&task, "complete", json!({}));
    let mut stream = Stream::open(&stage, &path, Some(&id));
    let (_, seen, record) = stream.next().expect("what was missed");
    assert!(seen.parse::<u64>().expect("a number") > id.parse().expect("a number"));
    assert_eq!(record["as_of_seq"].to_string(), seen);
    let task = stage.claim("w");
    stage.report(&task, "complete", json!({}));
    stream.until("succeeded");
    assert_eq!(stream.next(), None, "a run that has ended has no more to say");
}

#[test]
fn all_runs_of_a_filter_are_followed_without_a_gap() {
    let stage = Stage::new();
    stage.apply(TWO);
    stage.apply("workflow: other\nsteps:\n  - { id: a, task: work }\n");
    let mut stream = Stream::open(&stage, "/v1/stream?workflow=two", None);
    stage.start("other", json!({}));
    let first = stage.start("two", json!({}));
    let (_, id, record) = stream.next().expect("a run");
    assert_eq!(record["run_id"], first.as_str());
    drop(stream);
    let second = stage.start("two", json!({}));
    let mut stream = Stream::open(&stage, "/v1/stream?workflow=two", Some(&id));
    assert_eq!(stream.next().expect("a run").2["run_id"], second.as_str());
    assert_eq!(stage.send("GET", "/v1/stream", &[("Last-Event-ID", "x")], b"").said(), (400, "invalid-cursor".into()));
}

#[test]
fn nobody_is_given_a_task_after_hanging_up() {
    let stage = Stage::new();
    stage.apply("workflow: one\nsteps:\n  - { id: a, task: work }\n");
    let mut gone = stage.connect();
    let body = json!({ "worker": "gone", "queues": ["default"], "wait_ms": 30_000 }).to_string();
    write!(gone, "POST /v1/tasks/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .expect("sent");
    std::thread::sleep(Duration::from_millis(200));
    drop(gone);
    std::thread::sleep(Duration::from_millis(200));
    let run = stage.start("one", json!({}));
    let asked = json!({ "worker": "here", "queues": ["default"], "wait_ms": 2_000 });
    let heard = stage.post("/v1/tasks/claim", asked);
    assert_eq!(heard.status, 200, "{run} was leased to somebody who is gone");
}

#[test]
fn an_idle_worker_gets_a_task_within_milliseconds_of_its_issue() {
    let stage = Stage::new();
    stage.apply("workflow: one\nsteps:\n  - { id: a, task: work }\n");
    let stage = &stage;
    // A task that is there already is the measure: what a machine needs for a claim, it needs for this, too.
    let mut claims: Vec<Duration> = (0..21)
        .map(|_| {
            stage.start("one", json!({}));
            let began = Instant::now();
            let task = stage.claim("w");
            let took = began.elapsed();
            stage.report(&task, "complete", json!({}));
            took
        })
        .collect();
    claims.sort();
    let mut waits: Vec<Duration> = (0..21)
        .map(|_| {
            std::thread::scope(|scope| {
                let claiming = scope.spawn(|| {
                    let task = stage.claim("w");
                    (Instant::now(), task)
                });
                std::thread::sleep(Duration::from_millis(40));
                let body = json!({ "workflow": "one" });
                assert_eq!(stage.post_with("/v1/runs", &[("Prefer", "return=minimal")], body).status, 201);
                let started = Instant::now();
                let (claimed, task) = claiming.join().expect("a task");
                stage.report(&task, "complete", json!({}));
                // The claim is usually answered before the start is: both share a commit.
                claimed.saturating_duration_since(started)
            })
        })
        .collect();
    waits.sort();
    assert!(waits[10] < claims[10] * 3 + Duration::from_millis(5), "{waits:?}, a claim takes {:?}", claims[10]);
}
