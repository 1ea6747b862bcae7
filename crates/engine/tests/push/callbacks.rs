//! Targets that answer later, at an address of their own.

use abide_core::contract::{ReasonType, RunState};
use abide_engine::push::PushOptions;
use abide_engine::{Delivered, Taken};
use serde_json::json;

use crate::World;
use crate::stub::{Answer, ok};

const ASK: &str = "http: { method: POST, url: '{stub}/ask', body: { to: '${{ callback.url }}' }, answer: callback }";
const ASK_AGAIN: &str = "http: { method: PUT, url: '{stub}/ask', answer: callback }";

async fn answer(world: &World, token: &str) -> Result<Delivered, &'static str> {
    world.engine.deliver_callback(token, r#"{"late":1}"#.into()).await.map_err(|error| error.code())
}

#[tokio::test]
async fn a_step_rests_until_its_target_calls_back() {
    let world = World::new().await;
    world.stub.answers([Answer::Bytes(b"HTTP/1.1 202 Accepted\r\ncontent-length: 9\r\n\r\nhalf".to_vec())]);
    let _push = world.push(world.options());
    let run = world.start(ASK).await;
    let record = world.until(&run, RunState::WaitingOnTool).await;
    assert_eq!(record.blocking_reason.map(|reason| reason.kind), Some(ReasonType::CallbackPending));
    let seen = world.stub.saw(1).await.remove(0);
    let url = seen.header("abide-callback-url");
    assert_eq!((url.strip_suffix(seen.token()), seen.token().len()), (Some("https://abide.example/v1/callbacks/"), 64));
    assert_eq!(seen.body, json!({ "to": url }).to_string().into_bytes());

    assert_eq!(answer(&world, "unknown").await, Err("not-found"));
    let delivered = answer(&world, seen.token()).await.expect("delivered");
    assert!(delivered.is_applied() && delivered.run_id == run, "{delivered:?}");
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(world.output(&run).await, json!({ "late": 1 }));
    for _ in 0..100 {
        assert_eq!(answer(&world, seen.token()).await.expect("heard").taken, Taken::TooLate);
    }
    assert_eq!(world.output(&run).await, json!({ "late": 1 }));
    assert_eq!(world.stub.seen().len(), 1, "nothing is sent again");
    world.healthy().await;
}

#[tokio::test]
async fn a_callback_that_comes_before_the_targets_own_answer_counts() {
    let world = World::new().await;
    world.stub.answers([Answer::Waits]);
    let _push = world.push(world.options());
    let run = world.start(ASK).await;
    let seen = world.stub.saw(1).await.remove(0);
    assert_eq!(answer(&world, seen.token()).await.expect("delivered").taken, Taken::Kept);
    assert_eq!(answer(&world, seen.token()).await, Err("token-used"));
    assert_eq!(world.state(&run).await, RunState::Running);
    world.stub.go();
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(world.output(&run).await, json!({ "late": 1 }));
    world.healthy().await;
}

#[tokio::test]
async fn a_late_callback_of_an_old_attempt_is_kept_and_spares_the_next_sending() {
    let world = World::new().await;
    world.stub.answers([Answer::Hangs, ok()]);
    let _push = world.push(world.options());
    let run = world.start(&format!("{ASK_AGAIN}, timeout: 300ms, retry: {{ first: 1s, jitter: 0 }}")).await;
    world.until(&run, RunState::RetryScheduled).await;
    let seen = world.stub.seen().remove(0);
    let delivered = answer(&world, seen.token()).await.expect("delivered");
    assert!(!delivered.is_applied());
    assert_eq!(world.state(&run).await, RunState::RetryScheduled);
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(world.output(&run).await, json!({ "late": 1 }));
    assert_eq!(world.stub.seen().len(), 1);
    world.healthy().await;
}

#[tokio::test]
async fn a_target_that_knows_the_key_may_answer_at_the_first_address() {
    let world = World::new().await;
    world.stub.answers([Answer::Hangs, ok()]);
    let _push = world.push(world.options());
    let run = world.start(&format!("{ASK_AGAIN}, timeout: 300ms, retry: {{ first: 10ms }}")).await;
    world.until(&run, RunState::WaitingOnTool).await;
    let seen = world.stub.seen();
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    assert_ne!(seen[0].token(), seen[1].token());
    assert!(answer(&world, seen[0].token()).await.expect("delivered").is_applied());
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(answer(&world, seen[1].token()).await.expect("heard").taken, Taken::TooLate);
    world.healthy().await;
}

#[tokio::test]
async fn without_a_public_address_nothing_is_sent_and_a_person_is_told() {
    let world = World::new().await;
    let _push = world.push(PushOptions { public_url: None, ..world.options() });
    let run = world.start(ASK).await;
    world.until(&run, RunState::WaitingOnOperator).await;
    assert_eq!(world.failure(&run).await["code"], json!("no_public_url"));
    assert!(world.stub.seen().is_empty());
}
