//! The SDK's worker on an engine in the same process: the same handlers and durable functions, without a server.

use std::path::PathBuf;

use abide_client::{Ctx, Failure, Work, Worker};
use abide_engine::Engine;
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
