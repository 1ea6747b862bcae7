//! Starting, working and ending runs.

use abide_core::contract::RunState;
use abide_core::ids::{Handler, Queue, WorkerId};
use abide_engine::request::Claim;
use abide_engine::store::Wanted;
use serde_json::json;

use crate::Directory;

pub fn claim(worker: &str, handlers: &[&str], max: usize) -> Claim {
    let handlers = Some(handlers.iter().map(|handler| Handler::from(*handler)).collect());
    let wanted = Wanted { queues: vec![Queue::from("default")], handlers };
    Claim { worker: WorkerId::from(worker), wanted, max, window: None, claim_id: None, until: None }
}

const TWO_STEPS: &str = "
workflow: two
steps:
  - { id: one, task: a, with: { n: '${{ input.n }}' } }
  - { id: two, task: b, with: { n: '${{ steps.one.output.n }}' } }
output: { n: '${{ steps.two.output.n }}' }
";

#[tokio::test]
async fn a_run_is_started_worked_on_and_ends() {
    let directory = Directory::new("runs");
    let engine = directory.engine();
    let registered = engine.register(TWO_STEPS).await.expect("a document");
    assert!(registered.new && registered.version == 1);
    assert!(!engine.register(TWO_STEPS).await.expect("the same").new);

    let run = engine.start("two", json!({ "n": 1 })).await.expect("a run");
    assert_eq!(run.state, RunState::Queued);
    let task = engine.claim(claim("w1", &["a", "b"], 10)).await.expect("a claim").remove(0);
    assert_eq!(&*task.input, r#"{"n":1}"#);
    let told = engine.complete(&task, "w1", Some(r#"{"n":2}"#.into())).await.expect("completed");
    assert_eq!(told.state, RunState::Queued);
    // The same answer again is the same answer.
    assert!(engine.complete(&task, "w1", Some(r#"{"n":2}"#.into())).await.expect("replayed").replayed);

    let task = engine.claim(claim("w1", &["a", "b"], 10)).await.expect("a claim").remove(0);
    assert_eq!(&*task.input, r#"{"n":2}"#);
    let told = engine.complete(&task, "w1", Some(r#"{"n":3}"#.into())).await.expect("completed");
    assert_eq!(told.state, RunState::Succeeded);
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let directory = Directory::new("restart");
    let run = {
        let engine = directory.engine();
        engine.register(TWO_STEPS).await.expect("a document");
        let run = engine.start("two", json!({ "n": 1 })).await.expect("a run");
        engine.shutdown().await;
        run
    };
    let engine = directory.engine();
    let task = engine.claim(claim("w1", &["a"], 1)).await.expect("a claim").remove(0);
    assert_eq!(task.run_id, run.run_id);
}

#[tokio::test]
async fn a_worker_in_the_process_runs_everything() {
    let directory = Directory::new("worker");
    let engine = directory.engine();
    engine.register(TWO_STEPS).await.expect("a document");
    let add = |work: abide_engine::Work| async move {
        let input: serde_json::Value = work.input()?;
        Ok(json!({ "n": input["n"].as_i64().unwrap_or(0) + 1 }))
    };
    let worker = engine.worker("w1").handle("a", add).handle("b", add);
    let stop = worker.stopper();
    let working = tokio::spawn(worker.run());
    let mut watcher = engine.watch();
    let run = engine.start("two", json!({ "n": 1 })).await.expect("a run");
    loop {
        let abide_engine::hub::Seen::Commit(commit) = watcher.next().await else { panic!("the hub ended") };
        let ended = commit.runs.iter().any(|one| one.key.run_id == run.run_id && one.state == RunState::Succeeded);
        if ended {
            break;
        }
    }
    stop.now();
    engine.shutdown().await;
    working.await.expect("the worker ends").expect("without an error");
}
