//! What networks and careless clients do: lost answers, late and doubled requests, sockets that say nothing, readers that
//! do not read. Each is named by its number in the fault matrix.

use std::collections::BTreeSet;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::{Stage, hear};
use crate::streams::Stream;

const SHORT: &str = "workflow: short\ndefaults: { lease: 1s }\nsteps:\n  - { id: a, task: work }\n";

/// A request whose answer nobody hears: it is sent, and the line is cut when the server has surely acted on it.
fn unheard(stage: &Stage, path: &str, body: &Value) {
    let body = body.to_string();
    let mut stream = stage.connect();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    hear(&mut BufReader::new(stream), false).expect("the server has answered");
}

fn path(task: &Value, what: &str) -> String {
    format!("/v1/tasks/{}/{what}", task["task_id"].as_str().expect("a task"))
}

#[test]
fn f26_after_a_partition_the_old_worker_changes_nothing() {
    let stage = Stage::new();
    stage.apply(SHORT);
    let run = stage.start("short", json!({}));
    let old = stage.claim("behind the partition");
    // Nothing of it is heard for longer than its lease: another worker gets the task.
    let new = stage.claim("reachable");
    assert!(new["epoch"].as_u64() > old["epoch"].as_u64());
    let before = stage.get(&format!("/v1/runs/{run}")).json();
    for (what, said) in
        [("heartbeat", json!({})), ("complete", json!({ "output": 1 })), ("fail", json!({ "message": "x" }))]
    {
        assert_eq!(stage.report(&old, what, said).said(), (409, "lease-lost".into()), "{what}");
    }
    let after = stage.get(&format!("/v1/runs/{run}")).json();
    assert_eq!(before["as_of_seq"], after["as_of_seq"], "nothing was written");
    assert_eq!(stage.report(&new, "complete", json!({ "output": 2 })).json()["run_state"], "succeeded");
    assert_eq!(stage.get(&format!("/v1/runs/{run}/steps/a")).json()["output"], 2);
}

#[test]
fn f27_when_only_answers_are_lost_everything_can_be_asked_again() {
    let stage = Stage::new();
    stage.apply("workflow: one\nsteps:\n  - { id: a, task: work }\n");
    let run = stage.start("one", json!({}));
    let claim = json!({ "worker": "w", "queues": ["default"], "claim_id": "c1" });
    unheard(&stage, "/v1/tasks/claim", &claim);
    let task = stage.post("/v1/tasks/claim", claim).json()["tasks"][0].clone();
    assert_eq!(task["epoch"], 1, "the same lease");
    let done = json!({ "epoch": 1, "output": { "n": 1 } });
    unheard(&stage, &path(&task, "complete"), &done);
    let again = stage.post(&path(&task, "complete"), done);
    assert_eq!((again.status, &again.json()["run_state"]), (200, &json!("succeeded")));
    let events = stage.get(&format!("/v1/runs/{run}/events?limit=500")).json();
    let completed = events["events"].as_array().expect("events").iter().filter(|one| one["kind"] == "step.completed");
    assert_eq!(completed.count(), 1);
}

#[test]
fn f28_what_comes_twice_late_or_in_another_order_changes_nothing() {
    let stage = Stage::new();
    stage.apply("workflow: two\nsteps:\n  - { id: a, task: work }\n  - { id: b, task: work }\n");
    let run = stage.start("two", json!({}));
    let first = stage.claim("w");
    for _ in 0..3 {
        assert_eq!(stage.report(&first, "complete", json!({ "output": 1 })).status, 200);
    }
    let second = stage.claim("w");
    let before = stage.get(&format!("/v1/runs/{run}")).json()["as_of_seq"].clone();
    // The heartbeat of the first task was overtaken by its completion; another result never counts.
    assert_eq!(stage.report(&first, "heartbeat", json!({})).status, 409);
    assert_eq!(stage.report(&first, "complete", json!({ "output": 2 })).said(), (409, "already-completed".into()));
    assert_eq!(stage.get(&format!("/v1/runs/{run}")).json()["as_of_seq"], before);
    assert_eq!(stage.report(&second, "complete", json!({})).json()["run_state"], "succeeded");
    assert_eq!(stage.report(&second, "complete", json!({})).status, 200, "also when the run has ended");
}

#[test]
fn f29_a_task_that_was_given_to_a_silent_socket_comes_back() {
    let stage = Stage::new();
    stage.apply(SHORT);
    // It asks for work and never reads the answer; for the server it looks alive.
    let mut silent = stage.connect();
    let body = json!({ "worker": "silent", "queues": ["default"], "wait_ms": 30_000 }).to_string();
    write!(silent, "POST /v1/tasks/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .expect("sent");
    let run = stage.start("short", json!({}));
    stage.until_event(&run, "task.claimed");
    // The silent one still listens, as far as the server can see.
    let task = stage.claim("awake");
    assert_eq!(task["epoch"], 2);
    drop(silent);
}

/// How long the server keeps a connection that never says enough.
fn kept(stage: &Stage, said: &str) -> Duration {
    let mut stream = stage.connect();
    stream.write_all(said.as_bytes()).expect("sent");
    let began = Instant::now();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => began.elapsed(),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => began.elapsed(),
        Err(error) => panic!("it was kept for {:?}: {error}", began.elapsed()),
    }
}

/// How long the server takes to answer: usually, and at most.
fn answers(stage: &Stage) -> (Duration, Duration) {
    let answer = |_| {
        let began = Instant::now();
        assert_eq!(stage.get("/healthz").status, 200);
        began.elapsed()
    };
    let mut took: Vec<Duration> = (0..101).map(answer).collect();
    took.sort();
    (took[50], took[100])
}

#[test]
fn f31_slow_clients_are_closed_and_the_others_notice_nothing() {
    let stage = Stage::new();
    let (alone, _) = answers(&stage);
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = stage.connect();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").expect("sent");
            stream
        })
        .collect();
    std::thread::scope(|scope| {
        let header = scope.spawn(|| kept(&stage, "GET /healthz HTTP/1.1\r\nHost: local"));
        let body = scope.spawn(|| {
            kept(&stage, "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"work")
        });
        let (usual, slowest) = answers(&stage);
        assert!(usual < alone * 20, "an answer takes {usual:?} beside slow clients, {alone:?} without");
        let (header, body) = (header.join().expect("closed"), body.join().expect("closed"));
        assert!(slowest < header, "an answer waited for slow clients: {slowest:?}");
        assert!(
            header > Duration::from_secs(8) && body > Duration::from_secs(25),
            "headers {header:?}, a body {body:?}"
        );
        assert!(header < body, "a body has more time than headers: {header:?}, {body:?}");
    });
    drop(slow);
}

#[test]
fn f32_a_reader_that_does_not_read_is_cut_off_and_misses_nothing_when_it_comes_back() {
    let stage = Stage::new();
    stage.apply("workflow: wide\nsteps:\n  - { id: nap, sleep: 1h }\n");
    let mut slow = Stream::open(&stage, "/v1/stream?workflow=wide", None);
    let labels: serde_json::Map<String, Value> = (0..16).map(|n| (format!("l{n}"), "x".repeat(120).into())).collect();
    let start = |count: usize| -> BTreeSet<String> {
        let one = |_| {
            let heard = stage.post("/v1/runs", json!({ "workflow": "wide", "labels": labels }));
            assert_eq!(heard.status, 201, "{}", heard.text());
            heard.json()["run_id"].as_str().expect("an id").to_owned()
        };
        (0..count).map(one).collect()
    };
    // More than the sockets and the server's own buffer hold together, as fast as it goes.
    let began = Instant::now();
    let mut all: BTreeSet<String> = std::thread::scope(|scope| {
        let starters: Vec<_> = (0..8).map(|_| scope.spawn(|| start(300))).collect();
        starters.into_iter().flat_map(|starter| starter.join().expect("started")).collect()
    });
    std::thread::sleep(Duration::from_secs(12));
    all.extend(start(1));
    let rested = began.elapsed();
    let (mut seen, mut last, mut told) = (BTreeSet::new(), String::new(), None);
    while let Some((name, id, value)) = slow.next() {
        if name == "run" {
            seen.insert(value["run_id"].as_str().expect("an id").to_owned());
            last = id;
        } else {
            told = Some((name, id, value["position"].clone()));
        }
    }
    // A connection on which nothing moves for half a minute is closed in the middle of an event. Where starting the runs takes
    // that long, nothing more can be told on it.
    let closed = told.is_none() && rested > Duration::from_secs(25);
    let gap = Some(("gap".into(), last.clone(), last.clone().into()));
    assert!(closed || told == gap, "it was told so, and from where to go on: {told:?} after {rested:?}");
    assert!(seen.len() < all.len(), "it was cut off: {} of {}", seen.len(), all.len());
    let mut again = Stream::open(&stage, "/v1/stream?workflow=wide", Some(&last));
    while seen.len() < all.len() {
        let (name, _, value) = again.next().expect("another record");
        assert_eq!(name, "run");
        seen.insert(value["run_id"].as_str().expect("an id").to_owned());
    }
    assert_eq!(seen, all);
}

#[test]
fn f35_a_callback_that_is_replayed_a_hundred_times_counts_once_and_heartbeats_live() {
    let stage = Stage::new();
    stage.apply("workflow: call\nsteps:\n  - { id: a, task: work }\n");
    // A heartbeat may be two seconds late, and the lease ends in the middle if they do not count.
    stage.apply(&SHORT.replace("task: work", "task: beat").replace("lease: 1s", "lease: 3s"));
    let run = stage.start("call", json!({}));
    let task = stage.claim("w");
    let url =
        stage.report(&task, "callbacks", json!({ "name": "scan" })).json()["url"].as_str().expect("a url").to_owned();
    let callback = &url[url.find("/v1/callbacks").expect("its path")..];
    stage.report(&task, "block", json!({ "on": "tool", "callback": "scan" }));
    stage.start("short", json!({}));
    let asked = json!({ "worker": "beats", "queues": ["default"], "handlers": ["beat"] });
    let beating = stage.post("/v1/tasks/claim", asked).json()["tasks"][0].clone();
    let applied: usize = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| (0..10).filter(|_| stage.post(callback, json!({ "clean": true })).status == 200).count())
            })
            .collect();
        for _ in 0..6 {
            assert_eq!(stage.report(&beating, "heartbeat", json!({})).status, 200, "a storm costs no lease");
            std::thread::sleep(Duration::from_millis(800));
        }
        senders.into_iter().map(|sender| sender.join().expect("sent")).sum()
    });
    assert_eq!(applied, 1);
    let task = stage.claim("w");
    assert_eq!(task["answers"].as_array().map(Vec::len), Some(1));
    assert_eq!(stage.report(&task, "complete", json!({})).json()["run_state"], "succeeded");
    assert_eq!(stage.state(&run), "succeeded");
}
