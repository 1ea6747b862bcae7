//! Workers that die, stand still and come back, in real time with short leases.

use std::time::Duration;

use abide_core::contract::RunState;
use abide_engine::clock::Stopwatch;
use abide_engine::{Engine, LeasedTask};

use crate::{Directory, work};

const LEASE: Duration = Duration::from_millis(300);

async fn claimed(engine: &Engine, worker: &str, wait: Duration) -> Option<LeasedTask> {
    let watch = Stopwatch::start();
    loop {
        let task = engine.claim(work::claim(worker, &["drop"], 1)).await.expect("a claim").pop();
        if task.is_some() || watch.elapsed() > wait {
            return task;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn begun(name: &str) -> (Directory, Engine) {
    let directory = Directory::new(name);
    let engine = Engine::open(directory.data()).expect("an engine");
    work::register(&engine).await;
    work::start_of(&engine, "k", "fragile").await.expect("a run");
    (directory, engine)
}

/// F15: the task of a worker that died is given to another one, with a higher epoch, within its lease and one second.
#[tokio::test(flavor = "multi_thread")]
async fn the_task_of_a_dead_worker_is_claimed_again() {
    let (_directory, engine) = begun("dead").await;
    let working = {
        let engine = engine.clone();
        tokio::spawn(async move {
            let task = claimed(&engine, "w1", Duration::ZERO).await.expect("a task");
            tokio::spawn(std::future::pending::<()>()).await.ok();
            drop(task);
        })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    working.abort();
    let watch = Stopwatch::start();
    let task = claimed(&engine, "w2", Duration::from_secs(10)).await.expect("the task comes back");
    assert!(watch.elapsed() < LEASE + Duration::from_secs(3), "it took {:?}", watch.elapsed());
    assert_eq!((task.attempt, task.epoch.0), (2, 2));
    assert_eq!(engine.complete(&task, "w2", None).await.expect("completed").state, RunState::Succeeded);
}

/// F16: a worker that stood still past its lease, while another one finished, is refused and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_is_refused_after_another_worker_completed() {
    let (_directory, engine) = begun("zombie").await;
    let zombie = claimed(&engine, "w1", Duration::ZERO).await.expect("a task");
    let task = claimed(&engine, "w2", Duration::from_secs(10)).await.expect("the task comes back");
    let done = engine.complete(&task, "w2", Some("{\"by\":2}".into())).await.expect("completed");
    let late = engine.complete(&zombie, "w1", Some("{\"by\":1}".into())).await.expect_err("too late");
    assert!(["lease-lost", "run-terminal"].contains(&late.code()), "{late:?}");
    let record = engine.run(&zombie.run_id).await.expect("a record");
    assert_eq!((record.state, record.as_of_seq), (RunState::Succeeded, done.seq));
    assert_eq!(engine.payload(&zombie.run_id, "only/output").await.expect("bytes").as_deref(), Some("{\"by\":2}"));
}

/// F17: expiry is strict: a worker that is late is refused even when nobody else has taken its task yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_worker_is_refused_before_anybody_took_its_task() {
    let (_directory, engine) = begun("strict").await;
    let late = claimed(&engine, "w1", Duration::ZERO).await.expect("a task");
    tokio::time::sleep(LEASE + Duration::from_millis(50)).await;
    let refused = engine.complete(&late, "w1", None).await.expect_err("too late");
    assert_eq!(refused.code(), "lease-lost");
    let task = claimed(&engine, "w2", Duration::from_secs(10)).await.expect("the task goes to the next claim");
    assert!(task.epoch > late.epoch);
    engine.complete(&task, "w2", None).await.expect("completed");
}
