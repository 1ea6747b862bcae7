//! Workers that die, stand still and come back: processes of their own, in real time, with short leases.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::ids::RunId;
use abide_core::run::command::Ask;
use abide_core::time::Timestamp;
use abide_engine::clock::Stopwatch;
use abide_engine::{Engine, Error, Told};
use tokio::runtime::{Handle, Runtime};

use crate::{A_SECOND_ELSEWHERE, Directory, PATIENCE, Process, runtime, work};

/// Five heartbeats, one every 400 ms, take longer than it, and one may come a second late.
const LEASE: Duration = Duration::from_millis(1_600);
const DROPS: &str =
    "workflow: drops\nsteps:\n  - { id: only, task: drop, lease: 1600ms, retry: { max_attempts: 1000 } }\n";

/// An engine with one run, whose task is leased for 1.6 s, and a socket over which workers ask it.
struct Stage {
    directory: Directory,
    runtime: Runtime,
    engine: Engine,
    bridge: String,
    run: RunId,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let (directory, runtime) = (Directory::new(name), runtime());
        let engine = Engine::open(directory.data()).expect("an engine");
        let run = runtime.block_on(async {
            work::register(&engine).await;
            engine.register(DROPS).await.expect("a document");
            work::start_of(&engine, "k", "drops").await.expect("a run").run_id
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let bridge = listener.local_addr().expect("an address").to_string();
        let (serving, handle) = (engine.clone(), runtime.handle().clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (engine, handle) = (serving.clone(), handle.clone());
                std::thread::spawn(move || answer(stream, &engine, &handle));
            }
        });
        Stage { directory, runtime, engine, bridge, run }
    }

    /// A worker that beats so often, every 400 ms, before it completes.
    fn worker(&self, name: &str, beats: u32) -> Process {
        let beats = beats.to_string();
        let settings = [
            ("ABIDE_CRASH_BRIDGE", self.bridge.as_str()),
            ("ABIDE_CRASH_WORKER", name),
            ("ABIDE_CRASH_BEATS", beats.as_str()),
        ];
        Process::start("worker", &self.directory.data(), &settings)
    }

    /// One that lives by its heartbeats for longer than its lease.
    fn worker_at_work(&self, name: &str, beats: u32) -> Process {
        let worker = self.worker(name, beats);
        for _ in 0..5 {
            assert_eq!(worker.until("beat", PATIENCE).pop().as_deref(), Some("beat ok"));
        }
        worker
    }

    fn state(&self) -> (RunState, u64) {
        let record = self.runtime.block_on(self.engine.run(&self.run)).expect("a record");
        (record.state, record.as_of_seq)
    }

    fn expires_at(&self) -> Timestamp {
        let record = self.runtime.block_on(self.engine.run(&self.run)).expect("a record");
        record.lease_expires_at.expect("a lease")
    }

    /// Of the first lease that was found to be lost.
    fn lost_at(&self) -> Option<Timestamp> {
        let events = self.runtime.block_on(self.engine.events(&self.run, 0, 1_000)).expect("events");
        events.iter().find(|event| event.kind == "task.lost").map(|event| event.at)
    }

    fn output(&self) -> Option<String> {
        let bytes = self.runtime.block_on(self.engine.payload(&self.run, "only/output")).expect("bytes");
        bytes.map(|bytes| bytes.to_string())
    }
}

/// Asks the engine for one worker.
fn answer(stream: TcpStream, engine: &Engine, handle: &Handle) {
    let lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    let (mut stream, mut held) = (stream, None);
    for line in lines.map_while(Result::ok) {
        let (what, name) = line.split_once(' ').expect("a question");
        let said = |told: Result<Told, Error>| told.map_or_else(|error| error.code().to_owned(), |_| "ok".to_owned());
        let answer = match (what, &held) {
            ("beat", Some(task)) => {
                said(handle.block_on(engine.report(task, name, |holding| Ask::Heartbeat { holding, progress: None })))
            }
            ("complete", Some(task)) => {
                let output = Some(format!("{{\"by\":\"{name}\"}}").into());
                said(handle.block_on(engine.complete(task, name, output)))
            }
            _ => {
                let claim = work::claim(name, &["drop"], 1);
                held = handle.block_on(engine.claim(claim)).expect("a claim").pop();
                held.as_ref().map_or_else(|| "none".to_owned(), |task| task.epoch.0.to_string())
            }
        };
        if writeln!(stream, "{answer}").is_err() {
            return;
        }
    }
}

/// F15: the loss of a worker that was killed is found within one second after its window, and another one gets the task,
/// with a higher epoch.
#[test]
fn f15_the_task_of_a_killed_worker_is_claimed_again() {
    let stage = Stage::new("dead");
    let first = stage.worker_at_work("w1", 200);
    let second = stage.worker("w2", 0);
    first.kill();
    let expires_at = stage.expires_at();
    assert_eq!(second.until("has", PATIENCE), ["has 2"], "the task comes back, under a higher epoch");
    let lost_at = stage.lost_at().expect("the loss is in the log");
    assert!(lost_at >= expires_at, "not before its window is over");
    let found = Duration::from_micros(lost_at.since(expires_at).micros());
    assert!(found <= A_SECOND_ELSEWHERE, "the loss was found after {found:?}");
    assert_eq!(second.until("complete", PATIENCE), ["complete ok"]);
    assert_eq!(stage.state().0, RunState::Succeeded);
}

/// Lets a worker that was stopped go on. It sends its heartbeats and completes, and is refused each time; only what it asked
/// before it was stopped may have been granted.
fn comes_back(worker: &Process) {
    let before: Vec<String> = std::iter::from_fn(|| worker.next(Duration::from_millis(50))).collect();
    assert!(before.iter().all(|line| line == "beat ok"), "{before:?}");
    worker.signal("-CONT");
    let said = worker.until("complete", PATIENCE);
    assert!(said.len() > 3, "{said:?}");
    let late = if said[0] == "beat ok" { &said[1..] } else { &said[..] };
    for line in late {
        assert!(["lease-lost", "run-terminal"].iter().any(|code| line.ends_with(code)), "{said:?}");
    }
}

/// F16: a worker that stood still past its lease, while another one finished, is refused and changes nothing.
#[test]
fn f16_a_zombie_is_refused_after_another_worker_completed() {
    let stage = Stage::new("zombie");
    let zombie = stage.worker_at_work("w1", 20);
    zombie.signal("-STOP");
    let second = stage.worker("w2", 0);
    assert_eq!(second.until("complete", PATIENCE), ["has 2", "complete ok"]);
    let done = stage.state();
    assert_eq!(done.0, RunState::Succeeded);
    comes_back(&zombie);
    assert_eq!(stage.state(), done, "nothing changed");
    assert_eq!(stage.output().as_deref(), Some("{\"by\":\"w2\"}"));
}

/// F17: expiry is strict: a worker that stood still past its lease is refused even when nobody else has taken its task,
/// which goes to the next claim.
#[test]
fn f17_a_late_worker_is_refused_before_anybody_took_its_task() {
    let stage = Stage::new("strict");
    let late = stage.worker_at_work("w1", 20);
    late.signal("-STOP");
    std::thread::sleep(LEASE + Duration::from_millis(100));
    comes_back(&late);
    assert_eq!(stage.state().0, RunState::Queued);
    let next = stage.worker("w2", 0);
    assert_eq!(next.until("complete", PATIENCE), ["has 2", "complete ok"]);
    assert_eq!(stage.state().0, RunState::Succeeded);
    assert_eq!(stage.output().as_deref(), Some("{\"by\":\"w2\"}"));
}

/// F14: a handler that panics, before or after it first waits for something, fails its task with a message, and the worker
/// goes on.
#[test]
fn f14_a_panic_in_a_handler_fails_its_task_and_the_worker_lives() {
    let directory = Directory::new("panics");
    let engine = Engine::open(directory.data()).expect("an engine");
    runtime().block_on(async {
        for name in ["early", "late", "fine"] {
            let step = format!("{{ id: only, task: {name}, lease: 10m, retry: {{ max_attempts: 1 }} }}");
            engine.register(&format!("workflow: {name}\nsteps:\n  - {step}\n")).await.expect("a document");
        }
        let worker = engine
            .worker("w")
            .at_once(1)
            .handle("early", |work| {
                assert!(work.is_canceled(), "a bug at once");
                async { Ok(serde_json::json!({})) }
            })
            .handle("late", |work| async move {
                tokio::task::yield_now().await;
                assert!(work.is_canceled(), "a bug later");
                Ok(serde_json::json!({}))
            })
            .handle("fine", |_| async { Ok(serde_json::json!({})) });
        let stop = worker.stopper();
        let working = tokio::spawn(worker.run());
        for (name, message) in [("early", Some("a bug at once")), ("late", Some("a bug later")), ("fine", None)] {
            let run = engine.start(name, ()).await.expect("a run").run_id;
            let watch = Stopwatch::start();
            let record = loop {
                let record = engine.run(&run).await.expect("a record");
                if record.state.is_terminal() {
                    break record;
                }
                assert!(watch.elapsed() < PATIENCE, "{name}: nobody says what became of it");
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            let state = if message.is_some() { RunState::Failed } else { RunState::Succeeded };
            assert_eq!(record.state, state, "{name}");
            let events = engine.events(&run, 0, 1_000).await.expect("events");
            let told = events.iter().find(|event| event.kind == "task.failed").map(|event| event.payload.to_string());
            let says = |message: &str| told.as_ref().is_some_and(|told| told.contains(message));
            assert!(message.is_none_or(says) && message.is_some() == told.is_some(), "{name}: {told:?}");
        }
        stop.now();
        working.await.expect("it lives").expect("an end in order");
        engine.shutdown().await;
    });
}
