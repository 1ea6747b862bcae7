//! Executors that die, names that lie, runs that are canceled, and tenants that share one executor.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_engine::push::{Lookup, Push, PushOptions};
use serde_json::json;

use crate::World;
use crate::stub::{Answer, ok};

const PUT: &str = "http: { method: PUT, url: '{stub}/put' }";

/// Gives one list of addresses after the other, the last for ever; without any it never answers.
#[derive(Debug, Default)]
struct Names {
    asked: AtomicUsize,
    given: Vec<Vec<&'static str>>,
}

impl Lookup for Names {
    fn lookup(&self, _: String, port: u16) -> Pin<Box<dyn Future<Output = std::io::Result<Vec<SocketAddr>>> + Send>> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let Some(addresses) = self.given.get(asked).or(self.given.last()) else {
            return Box::pin(std::future::pending());
        };
        let address = |text: &&str| SocketAddr::new(text.parse::<IpAddr>().expect("an address"), port);
        let addresses = addresses.iter().map(address).collect();
        Box::pin(async move { Ok(addresses) })
    }
}

#[tokio::test]
async fn what_was_leased_and_not_sent_is_sent_by_the_next_executor() {
    let world = World::new().await;
    let dies = world.push(PushOptions { lookup: Arc::new(Names::default()), ..world.options() });
    let run = world.start(PUT).await;
    world.until(&run, RunState::Running).await;
    dies.abort();
    let _push = world.push(PushOptions { name: "second".into(), ..world.options() });
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(world.stub.seen().len(), 1);
    assert!(world.kinds(&run).await.contains(&"task.lost".to_owned()));
    world.healthy().await;
}

#[tokio::test]
async fn what_was_sent_and_not_recorded_is_sent_again_with_the_same_key_and_recorded_once() {
    let world = World::new().await;
    world.stub.answers([Answer::Hangs, ok()]);
    let dies = world.push(world.options());
    let run = world.start(PUT).await;
    world.stub.saw(1).await;
    dies.abort();
    let _push = world.push(PushOptions { name: "second".into(), ..world.options() });
    world.until(&run, RunState::Succeeded).await;
    let seen = world.stub.seen();
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    let kinds = world.kinds(&run).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "step.completed").count(), 1, "{kinds:?}");
    world.healthy().await;
}

#[tokio::test]
async fn an_external_request_of_a_dead_executor_is_not_sent_blindly_again() {
    let world = World::new().await;
    world.stub.answers([Answer::Hangs, ok()]);
    let dies = world.push(world.options());
    let run = world.start("http: { method: POST, url: '{stub}/' }").await;
    world.stub.saw(1).await;
    dies.abort();
    let _push = world.push(PushOptions { name: "second".into(), ..world.options() });
    world.until(&run, RunState::WaitingOnOperator).await;
    assert_eq!(world.stub.seen().len(), 1);
}

#[tokio::test]
async fn heartbeats_keep_a_slow_request_alive() {
    let world = World::new().await;
    world.stub.answers([Answer::Waits]);
    let _push = world.push(world.options());
    let run = world.start(PUT).await;
    world.stub.saw(1).await;
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    world.stub.go();
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(world.stub.seen().len(), 1);
}

#[tokio::test]
async fn a_canceled_run_stops_its_request() {
    let world = World::new().await;
    world.stub.answers([Answer::Hangs]);
    let _push = world.push(world.options());
    let run = world.start(PUT).await;
    world.stub.saw(1).await;
    world.engine.cancel(&run, "enough").await.expect("asked");
    world.until(&run, RunState::Canceled).await;
    world.healthy().await;
}

#[tokio::test]
async fn a_name_is_looked_up_once_and_the_checked_address_is_dialled() {
    let world = World::new().await;
    let names = Arc::new(Names { given: vec![vec!["127.0.0.1"], vec!["127.0.0.9"]], ..Names::default() });
    let allow = vec![format!("pinned.test:{}", world.stub.port)];
    let _push = world.push(PushOptions { allow, lookup: names.clone(), ..world.options() });
    let url = format!("http: {{ url: 'http://pinned.test:{}/' }}", world.stub.port);
    let run = world.start(&url).await;
    world.until(&run, RunState::Succeeded).await;
    assert_eq!(names.asked.load(Ordering::SeqCst), 1);
    assert_eq!(world.stub.seen()[0].header("host"), format!("pinned.test:{}", world.stub.port));
}

#[tokio::test]
async fn a_name_with_a_private_address_is_never_dialled() {
    let world = World::new().await;
    let given =
        vec![vec!["8.8.8.8", "127.0.0.1"], vec!["::ffff:10.0.0.1"], vec!["169.254.169.254"], vec!["64:ff9b::a00:1"]];
    let count = given.len();
    let _push = world.push(PushOptions { lookup: Arc::new(Names { given, ..Names::default() }), ..world.options() });
    for _ in 0..count {
        let run = world.start("http: { url: 'https://rebind.test:8443/' }, retry: { max_attempts: 1 }").await;
        world.until(&run, RunState::Failed).await;
        assert_eq!(world.failure(&run).await["code"], json!("target_not_allowed"));
    }
    assert!(world.stub.seen().is_empty());
}

#[tokio::test]
async fn one_executor_serves_every_namespace() {
    let world = World::new().await;
    let waiting = world.start_in(&world.engine.in_namespace("before"), PUT).await;
    let push = world.push(PushOptions { at_once: 2, ..world.options() });
    let mut runs = vec![("before", waiting)];
    for namespace in ["a", "b", "c", "d", "default"] {
        runs.push((namespace, world.start_in(&world.engine.in_namespace(namespace), PUT).await));
    }
    for (namespace, run) in &runs {
        let engine = world.engine.in_namespace(*namespace);
        engine.ended(run).await.expect("it ends");
        assert_eq!(engine.run(run).await.expect("a record").state, RunState::Succeeded, "{namespace}");
    }
    // Nobody is told that no worker listens.
    push.abort();
    // Until it is gone, it might still claim.
    let _ = push.await;
    let listening = world.start_in(&world.engine.in_namespace("late"), PUT).await;
    let record = world.engine.in_namespace("late").run(&listening).await.expect("a record");
    assert!(record.blocking_reason.is_none(), "{:?}", record.blocking_reason);
    world.healthy().await;
}

#[tokio::test]
async fn an_executor_that_is_told_to_stop_finishes_what_is_under_way() {
    let world = World::new().await;
    world.stub.answers([Answer::Waits]);
    let push = Push::new(world.engine.clone(), world.options()).expect("options");
    let stop = push.stopper();
    let running = tokio::spawn(push.run());
    let run = world.start(PUT).await;
    world.stub.saw(1).await;
    stop.now();
    world.stub.go();
    running.await.expect("it stops");
    assert_eq!(world.state(&run).await, RunState::Succeeded);
}
