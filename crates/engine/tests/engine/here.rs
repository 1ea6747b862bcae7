//! Callers who carry what they ask on their own thread.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_engine::Engine;
use abide_engine::clock::Stopwatch;
use serde_json::json;

use crate::Directory;
use crate::runs::claim;

const ONE: &str = "workflow: one\nsteps:\n  - { id: only, task: work }\n";

/// Without a runtime, and without anybody who would wake us. None: the lane's thread carries it.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// The thread of the lane may be about to look: then it carries.
fn soon<T>(make: impl AsyncFn() -> T) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(make())
}

#[test]
fn what_is_asked_here_is_ready_when_it_is_polled_first() {
    let all = |_| {
        let directory = Directory::new("here");
        let engine = directory.engine().here();
        soon(async || engine.register(ONE).await.expect("a document"));
        let run = at_once(engine.start("one", json!({})))?.expect("a run");
        let task = at_once(engine.claim(claim("w1", &["work"], 1)))?.expect("a claim").pop().expect("a task");
        assert_eq!(task.run_id, run.run_id);
        let told = at_once(engine.complete(&task, "w1", None))?.expect("completed");
        assert_eq!(told.state, RunState::Succeeded);
        let refused = at_once(engine.complete(&task, "somebody else", Some("2".into())))?;
        assert!(refused.is_err(), "{refused:?}");
        Some(())
    };
    // The lane's thread looks from time to time, and then it carries what came meanwhile.
    (0..200).find_map(all).expect("once it looks at another time");
}

/// The lane's thread has a large stack; a caller's has what a thread usually has.
#[test]
fn the_deepest_expression_is_worked_out_on_an_ordinary_stack() {
    let directory = Directory::new("here-deep");
    let engine = directory.engine().here();
    let deep = format!("{}input.n{}", "(".repeat(60), ")".repeat(60));
    let nested = format!("{}'${{{{ {deep} }}}}'{}", "[".repeat(50), "]".repeat(50));
    let document = format!("workflow: deep\nsteps:\n  - {{ id: only, task: work, with: {{ n: {nested} }} }}\n");
    let work = move || {
        soon(async || {
            engine.register(&document).await.expect("a document");
            let run = engine.start("deep", json!({ "n": 1 })).await.expect("a run");
            let task = engine.claim(claim("w1", &["work"], 1)).await.expect("a claim").pop().expect("a task");
            assert_eq!(task.run_id, run.run_id);
            assert!(task.input.contains("[[1]]"), "{}", task.input);
        });
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).expect("a thread").join().expect("it fits");
}

#[tokio::test]
async fn a_time_that_is_set_here_comes() {
    let directory = Directory::new("here-time");
    let engine = directory.engine().here();
    engine.register("workflow: nap\nsteps:\n  - { id: nap, sleep: 100ms }\n").await.expect("a document");
    let mut late = Vec::new();
    for _ in 0..9 {
        let run = engine.start("nap", json!({})).await.expect("a run").run_id;
        let watch = Stopwatch::start();
        // A timer of this machine, at this moment, is the measure.
        let nap = async { engine.ended(&run).await.map(|_| watch.elapsed()).expect("it ends") };
        let timer = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            watch.elapsed()
        };
        let (nap, timer) = tokio::join!(nap, timer);
        late.push(nap.saturating_sub(timer));
    }
    late.sort();
    assert!(late[4] < Duration::from_millis(400), "untold, the thread looks once a second: {late:?}");
}

async fn work(engine: Engine, worker: String) -> usize {
    let mut done = 0;
    while let Some(task) = engine.claim(claim(&worker, &["work"], 1)).await.expect("a claim").pop() {
        engine.complete(&task, &worker, Some("1".into())).await.expect("completed");
        done += 1;
    }
    done
}

#[tokio::test]
async fn callers_here_and_elsewhere_share_the_work() {
    let directory = Directory::new("here-there");
    let engine = directory.engine();
    engine.register(ONE).await.expect("a document");
    for _ in 0..400 {
        engine.here().start("one", json!({})).await.expect("a run");
    }
    let threads = (0..3).map(|n| {
        let engine = engine.here();
        std::thread::spawn(move || soon(async || work(engine.clone(), format!("here-{n}")).await))
    });
    let threads: Vec<_> = threads.collect();
    let tasks: Vec<_> = (0..3).map(|n| tokio::spawn(work(engine.clone(), format!("there-{n}")))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("a worker");
    }
    for thread in threads {
        done += tokio::task::spawn_blocking(|| thread.join().expect("a worker")).await.expect("joined");
    }
    assert_eq!(done, 400);
    let report = engine.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{:#?}", report.problems);
    engine.shutdown().await;
    let late = engine.here().start("one", json!({})).await;
    assert!(matches!(late, Err(abide_engine::Error::ShuttingDown)), "{late:?}");
}
