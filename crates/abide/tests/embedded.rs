//! The SDK's worker on an engine in the same process: the same handlers and durable functions, without a server.

mod doubtful;

use std::path::PathBuf;

use abide_api::{Raw, raw};
use abide_client::api::tasks::{ClaimTasks, CompleteTask, StepBegin, StepDone, Task, TellEffect, TellSteps};
use abide_client::{Ctx, Failure, Item, Said, Tasks, Work, Worker};
use abide_core::ids::{Epoch, RunId, TaskId};
use abide_core::run::command::{Actor, Ask, Command, Holding, Report};
use abide_engine::Engine;
use abide_engine::request::NewRun;
use doubtful::{broken, doubtful};
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("embedded-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_worker_works_on_an_engine_in_the_same_process() {
    let folder = folder("worker");
    let engine = Engine::open(&folder).expect("it opens");
    engine.register("workflow: sums\ncoded: { revision: '1' }\n").await.expect("a sound document");
    engine
        .register("workflow: adds\nsteps:\n  - { id: a, task: add }\n  - { id: b, task: add }\n")
        .await
        .expect("a sound document");
    let worker = Worker::new(engine.clone(), "inside")
        .handle("add", |work: Work| async move {
            let input: Value = work.input()?;
            work.receipt(Some("r"), None::<&()>).await?;
            Ok(input["n"].as_i64().unwrap_or(0) + 1)
        })
        .workflow("sums", "1", |ctx: Ctx, n: i64| async move {
            let one: i64 = ctx.step("one", || async { Ok(n + 1) }).await?;
            let child: Value = ctx.child("adds", "adds", &json!({ "n": one })).await?;
            let two: i64 = ctx.step("two", || async { Ok(one + 1) }).await?;
            Ok::<_, Failure>(json!({ "two": two, "child": child }))
        });
    let stop = worker.stopper();
    let working = tokio::spawn(worker.run());
    let run_id = engine.start("sums", json!(1)).await.expect("it starts").run_id;
    let record = engine.ended(&run_id).await.expect("it ends");
    assert_eq!(record.state.as_str(), "succeeded", "{}", record.summary);
    let output = engine.payload(&run_id, "output").await.expect("it is read").expect("there is one");
    assert_eq!(serde_json::from_str::<Value>(&output).expect("JSON")["two"], 3);
    stop.now();
    working.await.expect("no panic").expect("no error");
    engine.shutdown().await;
    std::fs::remove_dir_all(&folder).expect("it is gone");
}

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
const BODY: &str = "workflow: body\ncoded: { revision: '1' }\n";

async fn engine(name: &str) -> (Engine, PathBuf) {
    let folder = folder(name);
    let engine = Engine::open(&folder).expect("it opens");
    for document in [RELAY, WAITS, BODY] {
        engine.register(document).await.expect("a sound document");
    }
    (engine, folder)
}

async fn claim(engine: &Engine, handlers: Option<&str>) -> Task {
    let ask = ClaimTasks {
        worker: "w".into(),
        queues: vec!["default".into()],
        handlers: handlers.map(|handler| vec![handler.into()]),
        wait_ms: Some(10_000),
        ..ClaimTasks::default()
    };
    Tasks::claim(engine, &ask).await.expect("tasks").remove(0)
}

fn value(text: &str) -> Raw {
    raw(text).expect("JSON")
}

fn complete(task: &Task, output: &str, claim_next: bool) -> CompleteTask {
    CompleteTask { epoch: task.epoch, output: Some(value(output)), claim_next, ..CompleteTask::default() }
}

async fn payload(engine: &Engine, run_id: &RunId, name: &str) -> String {
    engine.payload(run_id, name).await.expect("it is read").expect("there is one").to_string()
}

async fn close(engine: Engine, folder: PathBuf) {
    engine.shutdown().await;
    std::fs::remove_dir_all(&folder).expect("it is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_and_outputs_come_out_of_the_embedded_engine_byte_for_byte() {
    let (engine, folder) = engine("outputs").await;
    for case in doubtful() {
        let input = value(&format!("{{\"v\":{case}}}"));
        let run_id = engine.start("relay", &input).await.expect("it starts").run_id;
        let a = claim(&engine, None).await;
        assert_eq!((a.run_id.as_str(), a.input.get()), (run_id.as_str(), case.as_str()), "claim");
        let done = Tasks::complete(&engine, &a.task_id, complete(&a, &case, true)).await.expect("it is taken");
        let b = done.task.expect("the next task");
        assert_eq!(b.input.get(), case, "claim_next");
        let receipt = TellEffect { epoch: b.epoch, result: Some(value(&case)), ..TellEffect::default() };
        let key = Tasks::effect(&engine, &b.task_id, receipt).await.expect("it is taken");
        let result = key.receipt.and_then(|receipt| receipt.result).expect("a receipt");
        assert_eq!(result.get(), case, "effect");
        let item = Item { task_id: b.task_id.clone(), said: Said::Complete(complete(&b, &case, false)) };
        for reply in Tasks::batch(&engine, &[item]).await.expect("a batch") {
            reply.expect("it is taken");
        }
        engine.ended(&run_id).await.expect("it ends");
        for name in ["output", "a/input", "a/output", "b/output"] {
            assert_eq!(payload(&engine, &run_id, name).await, case, "{name}");
        }
        assert_eq!(payload(&engine, &run_id, "input").await, input.get());
    }
    close(engine, folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_come_out_of_the_embedded_engine_byte_for_byte() {
    let (engine, folder) = engine("signals").await;
    for case in doubtful() {
        let run_id = engine.start("waits", json!({})).await.expect("it starts").run_id;
        engine.signal(&run_id, "news", value(&case)).await.expect("it is taken");
        let task = claim(&engine, None).await;
        assert!(task.input.get().contains(&case), "signal: {}", task.input);
        Tasks::complete(&engine, &task.task_id, complete(&task, "1", false)).await.expect("it is taken");
    }
    close(engine, folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_an_embedded_body_come_out_byte_for_byte() {
    let (engine, folder) = engine("steps").await;
    for case in doubtful() {
        let run_id = engine.start("body", json!({})).await.expect("it starts").run_id;
        let task = claim(&engine, Some("body@1")).await;
        let begin = || vec![StepBegin { step_id: "one".into(), ..StepBegin::default() }];
        let steps = TellSteps { epoch: task.epoch, begin: begin(), ..TellSteps::default() };
        Tasks::steps(&engine, &task.task_id, steps).await.expect("it begins");
        let done = StepDone { step_id: "one".into(), output: Some(value(&case)), ..StepDone::default() };
        let steps = TellSteps { epoch: task.epoch, done: vec![done], begin: begin(), ..TellSteps::default() };
        let body = Tasks::steps(&engine, &task.task_id, steps).await.expect("it is taken");
        assert_eq!(body.steps["one"].output.as_ref().map(|output| output.get()), Some(case.as_str()), "steps");
        Tasks::complete(&engine, &task.task_id, complete(&task, &case, false)).await.expect("it is taken");
        engine.ended(&run_id).await.expect("it ends");
        assert_eq!(payload(&engine, &run_id, "output").await, case);
    }
    close(engine, folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_is_refused_at_every_embedded_door_and_changes_nothing() {
    let (engine, folder) = engine("broken").await;
    let waits = engine.start("waits", json!({})).await.expect("it starts").run_id;
    let relay = engine.start("relay", json!({ "v": 1 })).await.expect("it starts").run_id;
    let task = claim(&engine, None).await;
    let task_id = TaskId::from(task.task_id.as_str());
    let (_, path) = task_id.place().expect("the id of a task names its place");
    let holding = Holding { path, task_id, epoch: Epoch(task.epoch) };
    let before = (engine.run(&waits).await.expect("a run"), engine.run(&relay).await.expect("a run"));
    for text in broken() {
        // A Rust string is UTF-8; what is only too deep for HTTP has a test of its own.
        let Some(text) = String::from_utf8(text).ok().filter(|text| raw(text).is_err()) else { continue };
        let signal = Ask::Signal { name: "news".into(), payload: text.clone().into() };
        let report = Report { output: Some(text.clone().into()), ..Report::default() };
        let done = Ask::Complete { holding: holding.clone(), report };
        let refused = [
            engine.start_run(NewRun::of("relay", text.clone(), Actor::user("ana"))).await,
            engine.start_run(NewRun::of("relay", format!("{{\"v\":{text}}}"), Actor::user("ana"))).await,
            engine.command(&waits, Command::new(Actor::user("ana"), signal)).await,
            engine.command(&relay, Command::new(Actor::worker("w"), done)).await,
        ];
        for (door, answer) in refused.into_iter().enumerate() {
            assert!(answer.is_err(), "door {door}: {text}: {answer:?}");
        }
    }
    let after = (engine.run(&waits).await.expect("a run"), engine.run(&relay).await.expect("a run"));
    assert_eq!((after.0.as_of_seq, after.1.as_of_seq), (before.0.as_of_seq, before.1.as_of_seq));
    close(engine, folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_nests_too_deep_for_expressions_is_refused_by_the_embedded_engine() {
    let (engine, folder) = engine("deep").await;
    let nested = |depth| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let begin = |v: &str| engine.start_run(NewRun::of("relay", format!("{{\"v\":{v}}}"), Actor::user("ana")));
    for depth in [64, 127, 128, 1_000, 100_000] {
        begin(&nested(depth)).await.expect_err("it is refused");
    }
    let (most, more) = (nested(63), nested(65));
    let run_id = begin(&most).await.expect("it starts").run_id;
    let a = claim(&engine, None).await;
    assert_eq!(a.input.get(), most);
    Tasks::complete(&engine, &a.task_id, complete(&a, &most, false)).await.expect("it is taken");
    let b = claim(&engine, None).await;
    assert_eq!(b.input.get(), most);
    Tasks::complete(&engine, &b.task_id, complete(&b, &more, false)).await.expect_err("it is refused");
    let record = engine.run(&run_id).await.expect("a run");
    assert_eq!(record.state.as_str(), "waiting_on_operator", "{}", record.summary);
    close(engine, folder).await;
}
