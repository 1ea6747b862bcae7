//! Secrets reach the target and nothing else.

use std::path::Path;

use abide_core::contract::RunState;
use abide_core::run::command::{Actor, Ask, Command, Resolution};
use abide_engine::push::{PushOptions, Secrets};
use serde_json::json;

use crate::World;
use crate::stub::Answer;

const CANARY: &str = "canary-\"4711\"-ümlaut";
const STEP: &str = "http: { method: PUT, url: '{stub}/x?key=${{ secrets.KEY }}', headers: { x-key: 'Bearer ${{ secrets.KEY }}' }, body: { key: '${{ secrets.KEY }}', n: '${{ input.n }}' } }, retry: { max_attempts: 1 }";

fn files(directory: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![std::fs::read(path).expect("a file")] })
        .collect()
}

#[tokio::test]
async fn a_canary_is_found_in_no_byte_that_is_stored() {
    let world = World::new().await;
    let secrets = Secrets::of([("KEY", CANARY)]);
    let options = PushOptions { secrets, ..world.options() };
    assert!(!format!("{options:?}").contains("canary"));
    let _push = world.push(options);
    for status in [200, 201, 400, 401, 404, 500] {
        world.stub.answers([Answer::Echo(status)]);
        let step = STEP.replace("n: '${{ input.n }}' }", "to: '${{ callback.url }}' }, answer: callback");
        let run = world.start(if status < 400 { STEP } else { &step }).await;
        let state = match status {
            200 | 201 => RunState::Succeeded,
            400 => RunState::WaitingOnOperator,
            401 => RunState::WaitingOnAuth,
            _ => RunState::Failed,
        };
        world.until(&run, state).await;
    }
    let seen = world.stub.seen();
    assert_eq!(seen.len(), 6);
    assert!(seen.iter().all(|one| String::from_utf8_lossy(&one.body).contains(r#"canary-\"4711\"-ümlaut"#)));
    world.engine.shutdown().await;
    let stored = files(&world.directory);
    assert!(stored.iter().map(Vec::len).sum::<usize>() > 100_000, "there is something to search");
    let has = |text: &str| stored.iter().any(|file| file.windows(text.len()).any(|window| window == text.as_bytes()));
    assert!(has("[secret KEY]"), "what was repeated is marked");
    for text in ["canary", "4711", "mlaut", seen[2].token(), seen[5].token()] {
        assert!(!has(text), "{text} is stored");
    }
}

#[tokio::test]
async fn a_missing_secret_is_named_and_nothing_is_sent() {
    let world = World::new().await;
    let push = world.push(world.options());
    let run = world.start(STEP).await;
    let record = world.until(&run, RunState::WaitingOnOperator).await;
    let failure = world.failure(&run).await;
    assert_eq!((&failure["class"], &failure["code"]), (&json!("validation"), &json!("secret_missing")));
    assert!(record.blocking_reason.expect("a reason").message.contains("KEY"));
    assert!(world.stub.seen().is_empty());
    // Given the secret, the same step goes on.
    push.abort();
    // Until it is gone, it might still claim.
    let _ = push.await;
    let _push = world.push(PushOptions { secrets: Secrets::of([("KEY", CANARY)]), ..world.options() });
    let ask =
        Ask::Resolve { step_id: "a".into(), action: Resolution::Retry { new_key: false }, reason: "given".into() };
    world.engine.command(&run, Command::new(Actor::user("ana"), ask)).await.expect("resolved");
    world.until(&run, RunState::Succeeded).await;
}

#[tokio::test]
async fn a_header_with_a_line_break_is_not_sent() {
    let world = World::new().await;
    let secrets = Secrets::of([("KEY", "a\r\nhost: evil")]);
    let _push = world.push(PushOptions { secrets, ..world.options() });
    let run = world.start("http: { url: '{stub}/', headers: { x-key: '${{ secrets.KEY }}' } }").await;
    world.until(&run, RunState::WaitingOnOperator).await;
    assert_eq!(world.failure(&run).await["code"], json!("header_not_allowed"));
    assert!(world.stub.seen().is_empty());
}
