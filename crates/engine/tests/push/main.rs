//! The executor of `http` steps against a real target on this machine, with real files.

mod callbacks;
mod results;
mod robust;
mod secrets;
mod stub;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::explain::Record;
use abide_core::ids::RunId;
use abide_core::time::Span;
use abide_engine::Engine;
use abide_engine::push::{Push, PushOptions};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use stub::Stub;

/// An engine in a directory of its own, and a target.
#[derive(Debug)]
pub struct World {
    pub directory: PathBuf,
    pub engine: Engine,
    pub stub: Stub,
}

impl World {
    pub async fn new() -> World {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let directory = std::env::temp_dir().join(format!("abide-push-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the test");
        let engine = Engine::open(&directory).expect("an engine");
        World { directory, engine, stub: Stub::start().await }
    }

    pub fn options(&self) -> PushOptions {
        let public_url = Some("https://abide.example".to_owned());
        let (allow, lease) = (vec![format!("127.0.0.1:{}", self.stub.port)], Span::from_secs(2));
        PushOptions { allow, public_url, lease, ..PushOptions::default() }
    }

    /// An executor; it dies when it is aborted, and its requests with it.
    pub fn push(&self, options: PushOptions) -> JoinHandle<()> {
        let push = Push::new(self.engine.clone(), options).expect("options");
        tokio::spawn(push.run())
    }

    /// Starts a run of one `http` step, written as the document has it, where `{stub}` is the target's address.
    pub async fn start(&self, step: &str) -> RunId {
        self.start_in(&self.engine, step).await
    }

    pub async fn start_in(&self, engine: &Engine, step: &str) -> RunId {
        let step = step.replace("{stub}", &format!("http://127.0.0.1:{}", self.stub.port));
        engine.register(&format!("workflow: w\nsteps:\n  - {{ id: a, {step} }}\n")).await.expect("a document");
        engine.start("w", json!({ "n": 7 })).await.expect("a run").run_id
    }

    pub async fn state(&self, run: &RunId) -> RunState {
        self.engine.run(run).await.expect("a record").state
    }

    pub async fn until(&self, run: &RunId, state: RunState) -> Record {
        let mut record = self.engine.run(run).await.expect("a record");
        for _ in 0..12_000 {
            if record.state == state {
                return record;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            record = self.engine.run(run).await.expect("a record");
        }
        panic!("{run} is {} and not {state}: {}", record.state, record.summary);
    }

    pub async fn output(&self, run: &RunId) -> Value {
        let output = self.engine.payload(run, "a/output").await.expect("a read").expect("an output");
        serde_json::from_str(&output).expect("JSON")
    }

    pub async fn kinds(&self, run: &RunId) -> Vec<String> {
        let events = self.engine.events(run, 0, 500).await.expect("events");
        events.into_iter().map(|event| event.kind).collect()
    }

    /// The first failure of a task: its class and code.
    pub async fn failure(&self, run: &RunId) -> Value {
        for _ in 0..12_000 {
            let events = self.engine.events(run, 0, 500).await.expect("events");
            if let Some(failed) = events.iter().find(|event| event.kind == "task.failed") {
                let payload: Value = serde_json::from_str(failed.payload.get()).expect("JSON");
                return payload["failure"].clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{run} has no failure: {:?}", self.kinds(run).await);
    }

    pub async fn healthy(&self) {
        let report = self.engine.doctor().await.expect("a report");
        assert!(report.is_healthy(), "{:#?}", report.problems);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
