//! Leases, time, messages between runs, connections, keys and watching, on real files with a clock that tests move.

use std::sync::Arc;
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::ids::{Digest, RunId};
use abide_core::run::command::{Actor, Ask, BlockOn, Command, Fault, Reply};
use abide_core::time::{Span, Timestamp};
use abide_engine::clock::{Clock, VirtualClock};
use abide_engine::feed::Followed;
use abide_engine::request::Idempotency;
use abide_engine::{Answer, Engine, Error, LeasedTask, NewRun, Options, Request, What};
use serde_json::json;

use crate::Directory;
use crate::runs::claim;

const BEGAN: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

struct World {
    directory: Directory,
    clock: VirtualClock,
    engine: Engine,
}

impl World {
    fn new(name: &str) -> World {
        let directory = Directory::new(name);
        let clock = VirtualClock::at(BEGAN);
        let options = Options { clock: Arc::new(clock.clone()), ..Options::default() };
        let engine = Engine::open_with(directory.path(), options).expect("an engine");
        World { directory, clock, engine }
    }

    /// Time passes as it does for an engine that serves: it notices every second.
    async fn pass(&self, span: Span) {
        let until = self.clock.now() + span;
        while self.clock.now() < until {
            self.clock.set((self.clock.now() + Span::from_secs(1)).min(until));
            self.nudge().await;
        }
    }

    /// Makes the lane look at the clock.
    async fn nudge(&self) {
        self.engine.claim(claim("nobody", &["nothing"], 1)).await.expect("nothing");
        self.engine.claim(claim("nobody", &["nothing"], 1)).await.expect("nothing");
    }

    async fn state(&self, run: &RunId) -> RunState {
        self.engine.run(run).await.expect("a record").state
    }

    async fn claim(&self, worker: &str, handler: &str) -> LeasedTask {
        self.engine.claim(claim(worker, &[handler], 1)).await.expect("a claim").pop().expect("a task")
    }

    async fn start(&self, document: &str) -> RunId {
        let registered = self.engine.register(document).await.expect("a document");
        self.engine.start(registered.workflow.as_str(), json!({ "n": 1 })).await.expect("a run").run_id
    }

    async fn healthy(&self) {
        let report = self.engine.doctor().await.expect("a report");
        assert!(report.is_healthy(), "{:#?}", report.problems);
    }
}

const IDEMPOTENT: &str = "workflow: safe\nsteps:\n  - { id: only, task: work, lease: 10s }\n";
const EXTERNAL: &str = "workflow: ext\nsteps:\n  - { id: only, task: work, lease: 10s, effect: external }\n";

#[tokio::test]
async fn a_lost_lease_is_found_and_the_zombie_is_refused() {
    let world = World::new("zombie");
    let run = world.start(IDEMPOTENT).await;
    let zombie = world.claim("w1", "work").await;
    world.pass(Span::from_secs(11)).await;
    assert_eq!(world.state(&run).await, RunState::Queued);
    let second = world.claim("w2", "work").await;
    assert!(second.epoch > zombie.epoch);
    let refused = world.engine.complete(&zombie, "w1", None).await.expect_err("too late");
    assert_eq!(refused.code(), "lease-lost");
    world.engine.complete(&second, "w2", None).await.expect("completed");
    assert_eq!(world.state(&run).await, RunState::Succeeded);
    world.healthy().await;
}

#[tokio::test]
async fn heartbeats_keep_a_lease_alive() {
    let world = World::new("beats");
    let run = world.start(IDEMPOTENT).await;
    let task = world.claim("w1", "work").await;
    for _ in 0..5 {
        world.pass(Span::from_secs(8)).await;
        let beat = world.engine.report(&task, "w1", |holding| Ask::Heartbeat { holding, progress: None }).await;
        assert!(matches!(beat.expect("alive").reply, Reply::Beat { stop: false, .. }));
    }
    world.engine.cancel(&run, "enough").await.expect("asked");
    let beat = world.engine.report(&task, "w1", |holding| Ask::Heartbeat { holding, progress: None }).await;
    assert!(matches!(beat.expect("alive").reply, Reply::Beat { stop: true, .. }));
    world.engine.report(&task, "w1", |holding| Ask::Canceled { holding }).await.expect("stopped");
    assert_eq!(world.state(&run).await, RunState::Canceled);
    world.healthy().await;
}

#[tokio::test]
async fn an_engine_that_was_down_does_not_make_its_workers_dead() {
    let world = World::new("served");
    let run = world.start(EXTERNAL).await;
    let task = world.claim("w1", "work").await;
    world.engine.shutdown().await;
    let World { directory, clock, engine } = world;
    drop(engine);
    // Forty seconds of downtime, four times the lease.
    clock.set(clock.now() + Span::from_secs(40));
    let options = Options { clock: Arc::new(clock.clone()), ..Options::default() };
    let engine = Engine::open_with(directory.path(), options).expect("an engine");
    let world = World { directory, clock, engine };
    world.pass(Span::from_secs(8)).await;
    assert_eq!(world.state(&run).await, RunState::Running);
    world.engine.complete(&task, "w1", Some("{}".into())).await.expect("its window is not over");
    assert_eq!(world.state(&run).await, RunState::Succeeded);
}

/// The disk is held by another process for a while that is longer than a lease: the heartbeat was there in time.
#[tokio::test]
async fn a_worker_loses_no_lease_because_the_engine_was_slow() {
    let world = World::new("slow");
    let run = world.start("workflow: short\nsteps:\n  - { id: only, task: work, lease: 1s }\n").await;
    let task = world.claim("w1", "work").await;
    let other = rusqlite::Connection::open(world.directory.path().join("abide.db")).expect("the database");
    other.execute_batch("begin immediate").expect("the write lock");
    let stuck = tokio::spawn({
        let engine = world.engine.clone();
        async move { engine.start("short", "x").await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.clock.set(BEGAN + Span::from_millis(900));
    let beat = tokio::spawn({
        let (engine, task) = (world.engine.clone(), task.clone());
        async move { engine.report(&task, "w1", |holding| Ask::Heartbeat { holding, progress: None }).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.clock.set(BEGAN + Span::from_millis(2_500));
    let late = tokio::spawn({
        let (engine, task) = (world.engine.clone(), LeasedTask { epoch: task.epoch, ..task.clone() });
        async move { engine.complete(&task, "w1", None).await }
    });
    other.execute_batch("rollback").expect("rolled back");
    stuck.await.expect("no panic").expect("started");
    beat.await.expect("no panic").expect("it came in time");
    late.await.expect("no panic").expect("and kept the lease for what came after it");
    assert_eq!(world.state(&run).await, RunState::Succeeded);
    world.healthy().await;
}

#[tokio::test]
async fn whoever_follows_hears_that_the_engine_stops() {
    let world = World::new("ends");
    let run = world.start(IDEMPOTENT).await;
    let mut feed = world.engine.follow(None);
    let waiting = tokio::spawn({
        let (engine, run) = (world.engine.clone(), run.clone());
        async move { engine.ended(&run).await }
    });
    let following = tokio::spawn(async move { feed.next().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.engine.shutdown().await;
    assert_eq!(following.await.expect("no panic").expect("told"), Followed::End);
    assert!(waiting.await.expect("no panic").is_err());
    // Also who comes later.
    assert_eq!(world.engine.follow(None).next().await.expect("told"), Followed::End);
}

#[tokio::test]
async fn a_late_answer_is_refused_and_counts_as_found() {
    let world = World::new("late");
    let run = world.start(EXTERNAL).await;
    let zombie = world.claim("w1", "work").await;
    world.pass(Span::from_secs(11)).await;
    assert_eq!(world.state(&run).await, RunState::WaitingOnOperator);
    let refused = world.engine.complete(&zombie, "w1", Some("{\"id\":7}".into())).await.expect_err("too late");
    assert_eq!(refused.code(), "lease-lost");
    assert_eq!(world.state(&run).await, RunState::Succeeded, "nobody needs to be asked any more");
    let output = world.engine.payload(&run, "only/output").await.expect("a payload");
    assert_eq!(output.as_deref(), Some("{\"id\":7}"));
    world.healthy().await;
}

#[tokio::test]
async fn a_claim_that_is_repeated_gets_the_same_lease() {
    let world = World::new("claim-id");
    world.start(IDEMPOTENT).await;
    let asked = || abide_engine::request::Claim { claim_id: Some("c1".into()), ..claim("w1", &["work"], 1) };
    let first = world.engine.claim(asked()).await.expect("a claim");
    let again = world.engine.claim(asked()).await.expect("a claim");
    assert_eq!((first.len(), &first[0].task_id, first[0].epoch), (1, &again[0].task_id, again[0].epoch));
    // What it was for is over: it is answered at once, although it would wait and there is work.
    world.engine.complete(&first[0], "w1", None).await.expect("completed");
    world.start(IDEMPOTENT).await;
    let waiting = abide_engine::request::Claim { until: Some(BEGAN + Span::from_secs(3_600)), ..asked() };
    let answer = tokio::time::timeout(Duration::from_secs(120), world.engine.claim(waiting)).await;
    assert!(answer.expect("an answer").expect("a claim").is_empty(), "never others");
}

#[tokio::test]
async fn a_waiting_worker_gets_a_task_when_it_is_issued() {
    let directory = Directory::new("parked");
    let engine = directory.engine();
    engine.register(IDEMPOTENT).await.expect("a document");
    let until = Some(engine.clock().now() + Span::from_secs(20));
    let waiting = {
        let engine = engine.clone();
        let claim = abide_engine::request::Claim { until, ..claim("w1", &["work"], 1) };
        tokio::spawn(async move { engine.claim(claim).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    engine.start("safe", json!({})).await.expect("a run");
    let tasks = tokio::time::timeout(Duration::from_secs(120), waiting).await.expect("an answer").expect("a claimer");
    assert_eq!(tasks.expect("tasks").len(), 1);
}

#[tokio::test]
async fn one_key_starts_one_run() {
    let world = World::new("keys");
    world.engine.register(IDEMPOTENT).await.expect("a document");
    let ask = |content: &'static [u8]| {
        let new = NewRun::of("safe", "{}", Actor::user("ben"));
        let idempotency = Some(Idempotency::new("k1", Digest::of(content)));
        Request { namespace: world.engine.namespace().clone(), idempotency, what: What::Start(Box::new(new)) }
    };
    let run_of = |answer: Answer| match answer {
        Answer::Run(told) => (told.run_id, told.replayed),
        other => panic!("{other:?}"),
    };
    let (first, replayed) = run_of(world.engine.ask(ask(b"one")).await.expect("a run"));
    assert!(!replayed);
    let (second, replayed) = run_of(world.engine.ask(ask(b"one")).await.expect("the same"));
    assert!(replayed && first == second);
    assert!(matches!(world.engine.ask(ask(b"other")).await, Err(Error::KeyReused)));
    // Many at once are still one.
    let asks = (0..20).map(|_| {
        let engine = world.engine.clone();
        let mut request = ask(b"many");
        request.idempotency = Some(Idempotency::new("k2", Digest::of(b"many")));
        tokio::spawn(async move { engine.ask(request).await })
    });
    let mut runs = std::collections::BTreeSet::new();
    for asked in asks.collect::<Vec<_>>() {
        runs.insert(run_of(asked.await.expect("asked").expect("a run")).0);
    }
    assert_eq!(runs.len(), 1);
}

#[tokio::test]
async fn an_answer_under_a_former_key_counts_for_the_same_request_alone() {
    let world = World::new("former-keys");
    world.engine.register(IDEMPOTENT).await.expect("a document");
    let ask = async |key: &str, former_key: Option<&str>, content: &[u8]| {
        let new = NewRun::of("safe", "{}", Actor::user("ben"));
        let idempotency =
            Some(Idempotency { former_key: former_key.map(Into::into), ..Idempotency::new(key, Digest::of(content)) });
        let namespace = world.engine.namespace().clone();
        match world.engine.ask(Request { namespace, idempotency, what: What::Start(Box::new(new)) }).await {
            Ok(Answer::Run(told)) => (told.run_id, told.replayed),
            other => panic!("{other:?}"),
        }
    };
    let (first, _) = ask("k", None, b"one").await;
    assert_eq!(ask("ana\nk", Some("k"), b"one").await, (first.clone(), true), "the same request");
    let (other, replayed) = ask("ana\nk", Some("k"), b"other").await;
    assert!(!replayed && other != first, "another request is not refused because of the former key");
    assert_eq!(ask("ana\nk", Some("k"), b"other").await, (other, true), "its own key counts from now on");
}

#[tokio::test]
async fn a_unique_value_has_one_open_run() {
    let world = World::new("unique");
    world.engine.register(IDEMPOTENT).await.expect("a document");
    let new = || {
        let mut new = NewRun::of("safe", "{}", Actor::user("ben"));
        new.start.unique = Some("order-7".into());
        new
    };
    let first = world.engine.start_run(new()).await.expect("a run").run_id;
    assert!(matches!(world.engine.start_run(new()).await, Err(Error::NotUnique(open)) if open == first));
    let task = world.claim("w1", "work").await;
    world.engine.complete(&task, "w1", None).await.expect("completed");
    world.engine.start_run(new()).await.expect("the first has ended");
}

#[tokio::test]
async fn a_reconnect_frees_each_waiting_run_once() {
    let world = World::new("reconnect");
    let document = "workflow: scan\nsteps:\n  - { id: only, task: read }\n";
    world.engine.register(document).await.expect("a document");
    let mut runs = Vec::new();
    for _ in 0..600 {
        runs.push(world.engine.start("scan", json!({})).await.expect("a run").run_id);
    }
    for task in world.engine.claim(claim("w1", &["read"], 600)).await.expect("tasks") {
        let on = BlockOn::Auth { tool: "drive".into(), account: Some("ana".into()) };
        let ask = |holding| Ask::Block { holding, on, message: None };
        world.engine.report(&task, "w1", ask).await.expect("blocked");
    }
    assert_eq!(world.state(&runs[599]).await, RunState::WaitingOnAuth);
    assert_eq!(world.engine.reconnected("drive", "ana").await.expect("released"), 600);
    assert_eq!(world.engine.reconnected("drive", "ana").await.expect("released"), 0);
    for _ in 0..20 {
        world.nudge().await;
    }
    let queued = world.engine.counts(None).await.expect("counts")[&RunState::Queued];
    assert_eq!(queued, 600);
    for run in &runs[..5] {
        let events = world.engine.events(run, 0, 100).await.expect("events");
        let freed = events.iter().filter(|event| event.kind == "connection.reconnected").count();
        assert_eq!(freed, 1, "each once");
    }
    world.healthy().await;
}

#[tokio::test]
async fn children_begin_with_their_parent_and_wake_it_when_they_end() {
    let world = World::new("children");
    world.engine.register(IDEMPOTENT).await.expect("a document");
    let parent = world
        .start("workflow: family\nsteps:\n  - { id: kids, for_each: '[1, 2, 3]', child: safe, with: { n: '${{ item }}' } }\n  - { id: orphan, after: [], child: nobody, on_failure: warn }\n")
        .await;
    assert_eq!(world.state(&parent).await, RunState::WaitingOnChild);
    let explained = world.engine.explain(&parent).await.expect("an explanation");
    assert!(explained.chain.len() > 2, "the chain goes down to the child's queue: {explained:?}");
    for _ in 0..3 {
        let task = world.claim("w1", "work").await;
        world.engine.complete(&task, "w1", Some("1".into())).await.expect("completed");
    }
    assert_eq!(world.state(&parent).await, RunState::CompletedWithWarnings);
    world.healthy().await;

    let parent = world.start("workflow: family\nsteps:\n  - { id: kids, for_each: '[1, 2, 3]', child: safe, with: { n: '${{ item }}' } }\n").await;
    world.engine.cancel(&parent, "no").await.expect("canceled");
    assert_eq!(world.state(&parent).await, RunState::Canceled);
    assert!(world.engine.claim(claim("w1", &["work"], 10)).await.expect("nothing").is_empty());
    world.healthy().await;
}

#[tokio::test]
async fn a_large_family_is_started_in_batches() {
    let world = World::new("large");
    world.engine.register(IDEMPOTENT).await.expect("a document");
    let document = "workflow: large\nsteps:\n  - { id: kids, for_each: input, parallel: 700, child: safe, with: { n: '${{ item }}' } }\n";
    world.engine.register(document).await.expect("a document");
    let items: Vec<u32> = (0..700).collect();
    let parent = world.engine.start("large", items).await.expect("a run").run_id;
    for _ in 0..10 {
        world.nudge().await;
    }
    let mut done = 0;
    loop {
        let tasks = world.engine.claim(claim("w1", &["work"], 100)).await.expect("tasks");
        if tasks.is_empty() {
            break;
        }
        for task in tasks {
            world.engine.complete(&task, "w1", Some("1".into())).await.expect("completed");
            done += 1;
        }
    }
    for _ in 0..10 {
        world.nudge().await;
    }
    assert_eq!((done, world.state(&parent).await), (700, RunState::Succeeded));
    world.healthy().await;
}

#[tokio::test]
async fn sleeps_retries_and_deadlines_come_by_the_clock() {
    let world = World::new("time");
    let document = "
workflow: slow
steps:
  - { id: nap, sleep: 10m }
  - { id: flaky, task: work, retry: { first: 30s, jitter: 0 } }
  - { id: ask, approval: { title: 'ok?', approvers: [ana], deadline: 1h, at_deadline: fail } }
";
    let run = world.start(document).await;
    assert_eq!(world.state(&run).await, RunState::WaitingOnTimer);
    world.pass(Span::from_secs(601)).await;
    let task = world.claim("w1", "work").await;
    let fault = Fault { message: "busy".into(), ..Fault::default() };
    world.engine.report(&task, "w1", |holding| Ask::Fail { holding, fault }).await.expect("failed");
    assert_eq!(world.state(&run).await, RunState::RetryScheduled);
    world.pass(Span::from_secs(31)).await;
    let task = world.claim("w1", "work").await;
    assert_eq!(task.attempt, 2);
    world.engine.complete(&task, "w1", None).await.expect("completed");
    assert_eq!(world.state(&run).await, RunState::WaitingOnApproval);
    world.pass(Span::from_secs(3_601)).await;
    assert_eq!(world.state(&run).await, RunState::Failed);
    world.healthy().await;
}

#[tokio::test]
async fn a_clock_that_goes_back_changes_nothing_that_happened() {
    let world = World::new("back");
    let run = world.start(IDEMPOTENT).await;
    world.clock.set(BEGAN - Span::from_secs(30 * 86_400));
    let task = world.claim("w1", "work").await;
    world.engine.complete(&task, "w1", None).await.expect("completed");
    assert_eq!(world.state(&run).await, RunState::Succeeded);
    world.healthy().await;
}

#[tokio::test]
async fn followers_see_every_change_once_from_any_position() {
    let world = World::new("feed");
    world.engine.register(IDEMPOTENT).await.expect("a document");
    let begin = world.engine.follow(None).position();
    let mut expected = std::collections::BTreeMap::new();
    for _ in 0..30 {
        let run = world.engine.start("safe", json!({})).await.expect("a run").run_id;
        let task = world.claim("w1", "work").await;
        let told = world.engine.complete(&task, "w1", None).await.expect("completed");
        expected.insert(run, told.seq);
    }
    // Two followers, one of which takes up again after every third change.
    for resumes in [false, true] {
        let mut feed = world.engine.follow(Some(begin));
        let mut seen: std::collections::BTreeMap<RunId, u64> = std::collections::BTreeMap::new();
        let mut count = 0;
        while seen != expected {
            let Followed::Change(change) = feed.next().await.expect("a change") else { panic!("no gap is due") };
            let next = seen.entry(change.key.run_id.clone()).or_default();
            assert_eq!(change.from_seq, *next + 1, "in order, and none is missing");
            *next = change.to_seq;
            count += 1;
            if resumes && count % 3 == 0 {
                feed = world.engine.follow(Some(feed.position()));
            }
        }
    }
    // And live.
    let mut feed = world.engine.follow(None);
    let run = world.engine.start("safe", json!({})).await.expect("a run").run_id;
    let Followed::Change(change) = feed.next().await.expect("a change") else { panic!("live") };
    assert_eq!((change.key.run_id, change.from_seq), (run, 1));
}

#[tokio::test]
async fn a_rerun_is_a_new_run_that_takes_over_what_was_done() {
    let world = World::new("rerun");
    let run = world.start("workflow: again\nsteps:\n  - { id: one, task: work }\n  - { id: two, task: break }\n").await;
    let task = world.claim("w1", "work").await;
    world.engine.complete(&task, "w1", Some("{\"n\":1}".into())).await.expect("completed");
    let task = world.claim("w1", "break").await;
    let fault =
        Fault { class: Some(abide_core::contract::FailureClass::Fatal), message: "broken".into(), ..Fault::default() };
    world.engine.report(&task, "w1", |holding| Ask::Fail { holding, fault }).await.expect("failed");
    let before = world.engine.events(&run, 0, 1_000).await.expect("events");
    let rerun = abide_engine::request::Rerun {
        run_id: run.clone(),
        kind: abide_core::run::OriginKind::Retry,
        from_step: None,
        version: abide_engine::request::RerunVersion::Same,
        input: None,
        actor: Actor::user("ops"),
    };
    let Answer::Run(told) = world.engine.asking(What::Rerun(Box::new(rerun))).await.expect("a rerun") else {
        panic!("a run")
    };
    let task = world.claim("w1", "break").await;
    assert_eq!(task.run_id, told.run_id);
    world.engine.complete(&task, "w1", None).await.expect("completed");
    assert_eq!(world.state(&told.run_id).await, RunState::Succeeded);
    assert_eq!(world.engine.reruns_of(&run).await.expect("reruns"), vec![told.run_id]);
    let after = world.engine.events(&run, 0, 1_000).await.expect("events");
    assert_eq!(before.last().map(|event| event.hash), after.last().map(|event| event.hash));
    world.healthy().await;
}

#[tokio::test]
async fn a_refusal_harms_nobody_else_and_a_caller_that_goes_away_neither() {
    let world = World::new("neighbours");
    world.engine.register(IDEMPOTENT).await.expect("a document");
    let asks = (0..50).map(|n| {
        let engine = world.engine.clone();
        tokio::spawn(async move {
            match n % 3 {
                0 => engine.start("safe", json!({})).await.map(drop),
                1 => engine.start("nobody", json!({})).await.map(drop),
                _ => engine
                    .command(&RunId::from("run_none"), Command::new(Actor::user("x"), Ask::RetryNow))
                    .await
                    .map(drop),
            }
        })
    });
    let mut accepted = 0;
    for asked in asks.collect::<Vec<_>>() {
        accepted += u32::from(asked.await.expect("asked").is_ok());
    }
    assert_eq!(accepted, 17);
    // A caller that drops its future has still started its run.
    let engine = world.engine.clone();
    let going = tokio::time::timeout(Duration::ZERO, engine.start("safe", json!({}))).await;
    assert!(going.is_err() || going.is_ok_and(|told| told.is_ok()));
    world.nudge().await;
    assert_eq!(world.engine.counts(None).await.expect("counts")[&RunState::Queued], 18);
    world.healthy().await;
}

#[tokio::test]
async fn a_claim_whose_caller_goes_away_gives_its_lease_back_at_once() {
    use std::future::Future as _;
    use std::task::{Context, Waker};

    let directory = Directory::new("gone");
    let engine = directory.engine();
    engine.register(IDEMPOTENT).await.expect("a document");
    engine.start("safe", json!({})).await.expect("a run");
    for n in 0..100u64 {
        let mut asking = Box::pin(engine.claim(claim("w1", &["work"], 1)));
        let _ = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // Some go away before they are served, some while their answer is on its way to the disk or back.
        tokio::time::sleep(Duration::from_micros(n * 20)).await;
        drop(asking);
    }
    let until = Some(engine.clock().now() + Span::from_secs(20));
    let asked = abide_engine::request::Claim { until, ..claim("w1", &["work"], 1) };
    let tasks = engine.claim(asked).await.expect("the task");
    assert_eq!((tasks.len(), tasks[0].attempt), (1, 1), "no attempt was lost");
    assert!(tasks[0].epoch.0 > 1, "somebody was served and had gone");
    engine.complete(&tasks[0], "w1", None).await.expect("done");
}
