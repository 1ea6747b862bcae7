//! The Rust SDK against a real server: workers, leases, waits, receipts, durable functions.

mod common;

use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide_client::api::runs::{CancelRun, Decide, ResolveAction, ResolveStep};
use abide_client::api::tasks::{ClaimTasks, CompleteTask};
use abide_client::api::views::{Run, Step};
use abide_client::{Approval, Client, Ctx, Error, Failure, RunState, StepOptions, Stop, Tasks, Work, Worker};
use common::{Server, signal};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Long enough for a slow machine; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server, and workers that stop when the test ends.
struct World {
    server: Server,
    client: Client,
    stops: Vec<Stop>,
}

impl World {
    async fn with(documents: &[(&str, &str)]) -> World {
        let server = Server::start();
        let client = server.client();
        for (id, document) in documents {
            client.apply(id, document).await.expect("the document is sound");
        }
        World { server, client, stops: Vec::new() }
    }

    fn worker(&self, name: &str) -> Worker {
        Worker::new(self.client.clone(), name)
    }

    fn works(&mut self, worker: Worker) {
        self.stops.push(worker.stopper());
        tokio::spawn(worker.run());
    }

    async fn start(&self, workflow: &str, input: Value) -> String {
        self.client.start(workflow, &input).await.expect("it starts").run_id
    }

    async fn ended(&self, run_id: &str) -> Run {
        in_time(self.client.ended(run_id)).await.expect("the run ends")
    }

    async fn until(&self, run_id: &str, state: RunState) -> Run {
        in_time(async {
            loop {
                let run = self.client.run(run_id).await.expect("the run is there");
                if run.state == state {
                    return run;
                }
                assert!(!run.state.is_terminal(), "it ended as {}: {}", run.state.as_str(), run.summary);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }

    async fn kinds(&self, run_id: &str) -> Vec<String> {
        let events = self.client.events(run_id, 0, 500).await.expect("the log is there");
        events.events.into_iter().map(|event| event.kind).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stops.iter().for_each(Stop::now);
    }
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

fn decide(by: &str) -> Decide {
    Decide { decision_by: Some(by.into()), ..Decide::default() }
}

const THREE: &str = "
workflow: three
steps:
  - { id: one, task: add }
  - { id: two, task: add, with: { n: '${{ steps.one.output.n }}' } }
  - { id: three, task: add, with: { n: '${{ steps.two.output.n }}' } }
output: ${{ steps.three.output }}
";

async fn add(work: Work) -> Result<Value, Failure> {
    let input: Value = work.input()?;
    Ok(json!({ "n": input["n"].as_i64().unwrap_or(0) + 1 }))
}

fn output(step: &Step) -> Value {
    step.output_as().expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_run_goes_through_its_steps_in_one_hand() {
    let mut world = World::with(&[("three", THREE)]).await;
    world.works(world.worker("adder").handle("add", add));
    let run_id = world.start("three", json!({ "n": 1 })).await;
    let run = world.ended(&run_id).await;
    assert_eq!(run.state, RunState::Succeeded, "{}", run.summary);
    assert_eq!(world.client.output::<Value>(&run_id).await.expect("an output"), json!({ "n": 4 }));
    let steps = world.client.steps(&run_id).await.expect("steps").steps;
    assert_eq!(steps.iter().map(|step| step.step_id.as_str()).collect::<Vec<_>>(), ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runs_are_worked_on_beside_each_other() {
    let mut world = World::with(&[("three", THREE)]).await;
    world.works(world.worker("adder").at_once(32).handle("add", add));
    let runs = futures_util::future::join_all((0..100).map(|n| world.start("three", json!({ "n": n })))).await;
    for (n, run_id) in runs.iter().enumerate() {
        assert_eq!(world.ended(run_id).await.state, RunState::Succeeded);
        assert_eq!(world.client.output::<Value>(run_id).await.expect("an output"), json!({ "n": n + 3 }));
    }
}

const FLAKY: &str = "
workflow: flaky
steps:
  - { id: try, task: flaky, retry: { max_attempts: 3, first: 10ms, jitter: 0 } }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_transient_failure_and_a_panic_are_tried_again() {
    let mut world = World::with(&[("flaky", FLAKY)]).await;
    world.works(world.worker("w").handle("flaky", |work: Work| async move {
        match work.task().attempt {
            1 => Err(Failure::transient("not yet").code("E1")),
            2 => panic!("a bug"),
            n => Ok(n),
        }
    }));
    let run_id = world.start("flaky", json!({})).await;
    assert_eq!(world.ended(&run_id).await.state, RunState::Succeeded);
    let step = world.client.step(&run_id, "try").await.expect("the step");
    assert_eq!((step.attempt, output(&step)), (3, json!(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_over_the_limit_asks_a_person_at_once_and_names_the_limit() {
    let mut world = World::with(&[("flaky", FLAKY)]).await;
    world.works(world.worker("w").handle("flaky", |_: Work| async move { Ok("x".repeat(3 << 20)) }));
    let run_id = world.start("flaky", json!({})).await;
    let run = world.until(&run_id, RunState::WaitingOnOperator).await;
    assert!(run.summary.contains("1048576 bytes"), "{}", run.summary);
    let failure = world.client.step(&run_id, "try").await.expect("the step").failure.expect("a failure");
    assert_eq!(failure.code.as_deref(), Some("payload-too-large"));
    assert_eq!(world.client.step(&run_id, "try").await.expect("the step").attempt, 1, "nobody was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fatal_failure_ends_the_run_and_an_unknown_input_asks_a_person() {
    let mut world = World::with(&[("flaky", FLAKY)]).await;
    world.works(world.worker("w").handle("flaky", |work: Work| async move {
        let kind: String = work.input()?;
        Err::<(), _>(Failure::fatal(format!("never {kind}")).code("E9").details(json!({ "a": 1 })))
    }));
    let run_id = world.start("flaky", json!("this")).await;
    let run = world.ended(&run_id).await;
    let failure = run.failure.expect("it failed");
    assert_eq!((failure.message.as_str(), failure.code.as_deref()), ("never this", Some("E9")));
    let run_id = world.start("flaky", json!(7)).await;
    world.until(&run_id, RunState::WaitingOnOperator).await;
    let correct = ResolveStep {
        step_id: "try".into(),
        action: ResolveAction::Correct,
        input: Some(abide_client::api::raw("\"that\"").expect("JSON")),
        output: None,
        new_key: false,
        reason: "typo".into(),
    };
    world.client.resolve(&run_id, &correct).await.expect("it is resolved");
    assert_eq!(world.ended(&run_id).await.failure.expect("it failed").message, "never that");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_hears_a_cancel_and_may_stop() {
    let document = "workflow: slow\nsteps:\n  - { id: wait, task: slow, lease: 2s }\n";
    let mut world = World::with(&[("slow", document)]).await;
    world.works(world.worker("w").handle("slow", |work: Work| async move {
        work.progress(1, Some(2), Some("half"));
        work.canceled().await;
        work.check()
    }));
    let run_id = world.start("slow", json!({})).await;
    world.until(&run_id, RunState::Running).await;
    let cancel = CancelRun { reason: "not needed".into(), ..CancelRun::default() };
    let asked = world.client.cancel(&run_id, &cancel).await.expect("it is asked");
    assert_eq!(asked.state, RunState::CancelRequested);
    assert_eq!(world.ended(&run_id).await.state, RunState::Canceled);
    assert!(world.kinds(&run_id).await.contains(&"task.canceled".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_can_wait_for_an_approval_a_signal_and_a_callback() {
    let document = "workflow: asks\nsteps:\n  - { id: ask, task: ask }\n";
    let mut world = World::with(&[("asks", document)]).await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    world.works(world.worker("w").handle("ask", move |work: Work| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let approval = Approval::new("Go on?").subject(&json!({ "amount": 7 })).approver("ana");
            let decision = work.wait_for_approval(approval)?;
            let signed: Value = work.wait_for_signal("signed")?;
            // Asked for again it is another address; what was posted to the first is found by its name.
            let url = match work.task().answers.iter().any(|answer| answer.name.as_deref() == Some("ready")) {
                true => String::new(),
                false => work.callback("ready", None).await?,
            };
            if !url.is_empty() {
                work.evidence("callback", "sent");
                Client::new("http://127.0.0.1:1")?.deliver(&url, &json!({ "ready": true })).await?;
            }
            let ready: Value = work.wait_for_callback("ready")?;
            Ok(json!({ "by": decision.by, "approved": decision.is_approved(), "signed": signed, "ready": ready }))
        }
    }));
    let run_id = world.start("asks", json!({})).await;
    world.until(&run_id, RunState::WaitingOnApproval).await;
    let refused = world.client.approve(&run_id, &decide("bob")).await.expect_err("he may not");
    assert_eq!(refused.problem().map(|problem| problem.code.as_str()), Some("not-an-approver"));
    world.client.approve(&run_id, &decide("ana")).await.expect("she may");
    world.until(&run_id, RunState::WaitingOnTool).await;
    world.client.signal(&run_id, "signed", &json!("yes")).await.expect("it is taken");
    let run = world.ended(&run_id).await;
    assert_eq!(run.state, RunState::Succeeded, "{}", run.summary);
    assert_eq!(
        output(&world.client.step(&run_id, "ask").await.expect("the step")),
        json!({ "by": "ana", "approved": true, "signed": "yes", "ready": { "ready": true } })
    );
    assert_eq!(calls.load(Ordering::SeqCst), 4, "once, and once after each answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_effect_is_caused_once_over_all_attempts() {
    let document = "workflow: mails\nsteps:\n  - { id: mail, task: mail, retry: { max_attempts: 3, first: 10ms } }\n";
    let mut world = World::with(&[("mails", document)]).await;
    let sent = Arc::new(AtomicU32::new(0));
    let counted = sent.clone();
    world.works(world.worker("w").handle("mail", move |work: Work| {
        let sent = counted.clone();
        async move {
            let create = |key: String| async move {
                sent.fetch_add(1, Ordering::SeqCst);
                Ok(format!("mail-{}", &key[..8]))
            };
            let id: String = work.effect("mail").find(|_| async { Ok(None) }).create(create).await?;
            match work.task().attempt {
                1 => Err(Failure::transient("after the mail")),
                _ => Ok(id),
            }
        }
    }));
    let run_id = world.start("mails", json!({})).await;
    let run = world.ended(&run_id).await;
    assert_eq!(run.state, RunState::Succeeded, "{}", run.summary);
    assert_eq!(sent.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_completes_a_step_whose_worker_says_nothing_more() {
    let document = "workflow: pays\nsteps:\n  - { id: pay, task: pay, effect: external, lease: 300ms }\n";
    let mut world = World::with(&[("pays", document)]).await;
    world.works(world.worker("w").handle("pay", |work: Work| async move {
        work.receipt(Some("ch_1"), Some(&json!({ "charge": "ch_1" }))).await?;
        Err::<(), _>(Failure::outcome_unknown("the answer was lost"))
    }));
    let run_id = world.start("pays", json!({})).await;
    let run = world.ended(&run_id).await;
    assert_eq!(run.state, RunState::Succeeded, "{}", run.summary);
    assert_eq!(output(&world.client.step(&run_id, "pay").await.expect("the step")), json!({ "charge": "ch_1" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_claim_answer_gives_the_same_tasks_again() {
    let world = World::with(&[("three", THREE)]).await;
    world.start("three", json!({ "n": 1 })).await;
    let ask = ClaimTasks {
        worker: "w-1".into(),
        queues: vec!["default".into()],
        handlers: Some(vec!["add".into()]),
        max: Some(1),
        wait_ms: Some(5000),
        claim_id: Some("claim-1".into()),
        ..ClaimTasks::default()
    };
    let first = world.client.claim(&ask).await.expect("a task");
    let again = world.client.claim(&ask).await.expect("the same task");
    assert_eq!((&first[0].task_id, first[0].epoch), (&again[0].task_id, again[0].epoch));
    let done = CompleteTask { epoch: first[0].epoch, claim_next: true, ..CompleteTask::default() };
    let one = world.client.complete(&first[0].task_id, done.clone()).await.expect("it is taken");
    assert_eq!(one.task.map(|task| task.step_id).as_deref(), Some("two"), "the next task came with the answer");
    world.client.complete(&first[0].task_id, done).await.expect("the same answer again changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_finishes_what_it_has_begun() {
    let mut world = World::with(&[("three", THREE)]).await;
    let (begun, go_on) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (begins, goes_on) = (begun.clone(), go_on.clone());
    let worker = world.worker("w").at_once(1).handle("add", move |work: Work| {
        let (begins, goes_on) = (begins.clone(), goes_on.clone());
        async move {
            begins.notify_one();
            goes_on.notified().await;
            add(work).await
        }
    });
    let stop = worker.stopper();
    world.stops.push(stop.clone());
    let working = tokio::spawn(worker.run());
    let run_id = world.start("three", json!({ "n": 1 })).await;
    in_time(begun.notified()).await;
    stop.now();
    go_on.notify_one();
    in_time(working).await.expect("no panic").expect("no error");
    let steps = world.client.steps(&run_id).await.expect("steps").steps;
    assert_eq!(output(&steps[0]), json!({ "n": 2 }), "the step it had begun is done");
    assert_eq!(world.client.run(&run_id).await.expect("the run").state, RunState::Queued);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_may_not_claim_says_so() {
    let world = World::with(&[]).await;
    let refused = in_time(world.worker("w").queue("").handle("x", add).run()).await.expect_err("no such queue");
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_carries_its_problem_and_nobody_there_is_another_error() {
    let world = World::with(&[]).await;
    let missing = world.client.run("run_missing").await.expect_err("there is none");
    assert_eq!(missing.problem().map(|problem| problem.status), Some(404));
    let nobody = Client::new("http://127.0.0.1:1").expect("an address").with_retries(0);
    assert!(matches!(nobody.run("run_1").await, Err(Error::Unreachable { .. })));
}

const CODED: &str = "workflow: coded\ncoded: { revision: '1' }\n";

/// Every method of a context, and how often each step is really executed.
async fn every_method(ctx: Ctx, executed: Arc<AtomicU32>) -> Result<Value, Failure> {
    let count = |value: Value| {
        let executed = executed.clone();
        async move {
            executed.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Failure>(value)
        }
    };
    let one: Value = ctx.step("one", || count(json!(1))).await?;
    let again: Value = ctx.step("one", || count(json!(2))).await?;
    let both = ctx
        .all(["eu", "us"].map(|place| {
            let (ctx, count) = (ctx.keyed(place), &count);
            async move { ctx.step("search", || count(json!(place))).await }
        }))
        .await?;
    let decision = ctx.approve("editor", Approval::new("Publish?").approver("ana")).await?;
    let word: String = ctx.signal("word", "word").await?;
    ctx.sleep("rest", Duration::from_millis(50)).await?;
    let child: Value = ctx.child("sum", "three", &json!({ "n": 10 })).await?;
    let mut tries = 0;
    let options = StepOptions::new().max_attempts(3).retry(abide_client::api::tasks::RetryTold {
        max_attempts: Some(3),
        first: Some("10ms".into()),
        ..Default::default()
    });
    let flaky: Value = ctx
        .step_with("flaky", options, |attempt| {
            tries += 1;
            async move { if attempt.number < 2 { Err(Failure::transient("not yet")) } else { Ok(json!(attempt.number)) } }
        })
        .await?;
    let page: String =
        ctx.effect("page").find(|_| async { Ok(None) }).create(|_| async { Ok("page".to_owned()) }).await?;
    ctx.progress(1, Some(1), None);
    Ok(json!({
        "one": one, "again": again, "both": both, "by": decision.by, "word": word, "child": child, "flaky": flaky,
        "page": page,
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_function_goes_through_every_kind_of_step_and_executes_each_once() {
    let mut world = World::with(&[("coded", CODED), ("three", THREE)]).await;
    let executed = Arc::new(AtomicU32::new(0));
    let counted = executed.clone();
    world.works(
        world
            .worker("w")
            .handle("add", add)
            .workflow("coded", "1", move |ctx, _: Value| every_method(ctx, counted.clone())),
    );
    let run_id = world.start("coded", json!({})).await;
    world.until(&run_id, RunState::WaitingOnApproval).await;
    world.client.approve(&run_id, &decide("ana")).await.expect("she may");
    world.until(&run_id, RunState::WaitingOnTool).await;
    world.client.signal(&run_id, "word", &json!("go")).await.expect("it is taken");
    let run = world.ended(&run_id).await;
    assert_eq!(run.state, RunState::Succeeded, "{}", run.summary);
    assert_eq!(
        world.client.output::<Value>(&run_id).await.expect("an output"),
        json!({ "one": 1, "again": 2, "both": ["eu", "us"], "by": "ana", "word": "go", "child": { "n": 13 },
            "flaky": 2, "page": "page" })
    );
    assert_eq!(executed.load(Ordering::SeqCst), 4, "one, one.2 and two searches");
    let steps = world.client.steps(&run_id).await.expect("steps").steps;
    let ids: Vec<&str> = steps.iter().map(|step| step.step_id.as_str()).collect();
    for id in ["one", "one.2", "search:eu", "search:us", "editor", "word", "rest", "sum", "flaky", "page"] {
        assert!(ids.contains(&id), "{id} in {ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_catch_a_failed_step_fails_with_it_once() {
    let mut world = World::with(&[("coded", CODED)]).await;
    world.works(world.worker("w").workflow("coded", "1", |ctx: Ctx, _: Value| async move {
        ctx.step::<(), _>("bad", || async { Err(Failure::fatal("never").code("E7")) }).await
    }));
    let run_id = world.start("coded", json!({})).await;
    let failure = world.ended(&run_id).await.failure.expect("it failed");
    assert_eq!((failure.message.as_str(), failure.code.as_deref()), ("step bad failed: never", Some("E7")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_can_catch_a_failed_step_and_go_another_way() {
    let mut world = World::with(&[("coded", CODED)]).await;
    world.works(world.worker("w").workflow("coded", "1", |ctx: Ctx, _: Value| async move {
        let bad = ctx.step::<(), _>("bad", || async { Err(Failure::fatal("never")) }).await;
        match bad {
            Err(failure) if failure.is_failure() => ctx.step("good", || async { Ok("instead".to_owned()) }).await,
            Err(stopped) => Err(stopped),
            Ok(()) => Ok("unreachable".to_owned()),
        }
    }));
    let run_id = world.start("coded", json!({})).await;
    assert_eq!(world.ended(&run_id).await.state, RunState::Succeeded);
    assert_eq!(world.client.output::<Value>(&run_id).await.expect("an output"), json!("instead"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_repeated_beside_itself_is_refused() {
    let mut world = World::with(&[("coded", CODED)]).await;
    world.works(world.worker("w").workflow("coded", "1", |ctx: Ctx, _: Value| async move {
        ctx.all([1, 2].map(|n| {
            let ctx = ctx.clone();
            async move { ctx.step("same", || async { Ok(n) }).await }
        }))
        .await
    }));
    let run_id = world.start("coded", json!({})).await;
    assert_eq!(world.ended(&run_id).await.failure.expect("it failed").code.as_deref(), Some("duplicate-step"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_body_stops_where_it_stands() {
    let document = "workflow: coded\ncoded: { revision: '1' }\ndefaults: { lease: 2s }\n";
    let mut world = World::with(&[("coded", document)]).await;
    world.works(world.worker("w").workflow("coded", "1", |ctx: Ctx, _: Value| async move {
        for _ in 0..1000 {
            ctx.step("tick", || async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok(())
            })
            .await?;
        }
        Ok(())
    }));
    let run_id = world.start("coded", json!({})).await;
    world.until(&run_id, RunState::Running).await;
    world.client.cancel(&run_id, &CancelRun::default()).await.expect("it is asked");
    assert_eq!(world.ended(&run_id).await.state, RunState::Canceled);
}

/// Passes everything on to a server, except heartbeats: those are never answered.
async fn proxy_without_heartbeats(server: &Server) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let target = server.url.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let target = target.clone();
            tokio::spawn(async move {
                let mut far = tokio::net::TcpStream::connect(target).await.expect("the server is there");
                let (mut asks, mut answered) = near.split();
                let (mut answers, mut asked) = far.split();
                let there = async {
                    let mut bytes = vec![0; 64 * 1024];
                    while let Ok(read @ 1..) = asks.read(&mut bytes).await {
                        if String::from_utf8_lossy(&bytes[..read]).contains("/heartbeat ") {
                            std::future::pending::<()>().await;
                        }
                        if asked.write_all(&bytes[..read]).await.is_err() {
                            return;
                        }
                    }
                };
                let back = tokio::io::copy(&mut answers, &mut answered);
                tokio::select! { () = there => {}, _ = back => {} }
            });
        }
    });
    url
}

/// Says when a handler was dropped before it was done.
struct Dropped(Arc<std::sync::Mutex<Option<Duration>>>, tokio::time::Instant);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.lock().expect("a place").get_or_insert(self.1.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_heartbeats_are_lost_stops_before_another_may_begin() {
    let document = "workflow: slow\nsteps:\n  - { id: one, task: slow, lease: 900ms }\n";
    let mut world = World::with(&[("slow", document)]).await;
    let mute = Client::new(&proxy_without_heartbeats(&world.server).await).expect("an address");
    let stopped = Arc::new(std::sync::Mutex::new(None));
    let noted = stopped.clone();
    // How late a timer of so long comes on this machine, at this moment.
    let (tell, mut control) = tokio::sync::mpsc::unbounded_channel();
    world.works(Worker::new(mute, "mute").at_once(1).handle("slow", move |work: Work| {
        let (dropped, tell) = (Dropped(noted.clone(), tokio::time::Instant::now()), tell.clone());
        tokio::spawn(async move {
            let began = tokio::time::Instant::now();
            tokio::time::sleep(Duration::from_millis(900)).await;
            let _ = tell.send(began.elapsed());
        });
        async move {
            if work.task().attempt == 1 {
                tokio::time::sleep(PATIENCE).await;
            }
            drop(dropped);
            Ok(work.task().attempt)
        }
    }));
    let run_id = world.start("slow", json!({})).await;
    let run = world.ended(&run_id).await;
    assert_eq!(run.state, RunState::Succeeded, "{}", run.summary);
    let ran = stopped.lock().expect("a place").expect("it was dropped");
    let control = in_time(control.recv()).await.expect("a measure");
    assert!(ran <= control + Duration::from_millis(100), "it ran for {ran:?}, its lease for 900ms ({control:?})");
    let kinds = world.kinds(&run_id).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "task.lost").count(), 1, "{kinds:?}");
}

/// This very test binary as a worker process of its own, so that it can be killed.
/// What a proxy saw: how often tasks were given out, and each heartbeat.
#[derive(Clone, Debug, Default)]
struct Seen {
    delivered: Arc<AtomicU32>,
    heartbeats: Arc<AtomicU32>,
}

/// Passes everything on to a server, one call for each connection; every task that it brings back comes twice, and once more
/// with the answer to the next claim.
async fn proxy_that_repeats(server: &Server) -> (String, Seen) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let target = server.url.trim_start_matches("http://").to_owned();
    let (seen, before) = (Seen::default(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let sees = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (target, seen, before) = (target.clone(), seen.clone(), before.clone());
            tokio::spawn(async move {
                let Some((head, body)) = one_message(&mut near).await else { return };
                let is_claim = head.starts_with("POST /v1/tasks/claim ");
                let beats = head.contains("/heartbeat ") || String::from_utf8_lossy(&body).contains("\"heartbeat\"");
                seen.heartbeats.fetch_add(u32::from(beats), Ordering::SeqCst);
                let mut far = tokio::net::TcpStream::connect(target).await.expect("the server is there");
                let asked = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
                far.write_all(&[asked.as_bytes(), &body].concat()).await.expect("it is asked");
                let Some((head, mut body)) = one_message(&mut far).await else { return };
                if is_claim && head.starts_with("HTTP/1.1 200 ") {
                    body = repeated(&body, &mut before.lock().expect("a place"));
                    seen.delivered.fetch_add(1, Ordering::SeqCst);
                }
                let status = head.lines().next().expect("a status");
                let head = format!(
                    "{status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                let _ = near.write_all(&[head.as_bytes(), &body].concat()).await;
            });
        }
    });
    (url, sees)
}

/// The head of a request or an answer, and its body.
async fn one_message(stream: &mut tokio::net::TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end + 4]).into_owned();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if bytes.len() >= end + 4 + length.unwrap_or(0) {
                return Some((head, bytes[end + 4..].to_vec()));
            }
        }
        match stream.read(&mut part).await {
            Ok(read @ 1..) => bytes.extend_from_slice(&part[..read]),
            _ => return None,
        }
    }
}

/// The tasks of a claim's answer twice, and those of the answer before it.
fn repeated(body: &[u8], before: &mut Vec<Value>) -> Vec<u8> {
    let mut answer: Value = serde_json::from_slice(body).expect("tasks");
    let tasks = answer["tasks"].as_array().expect("tasks").clone();
    let again = std::mem::replace(before, tasks.clone());
    answer["tasks"] = tasks.iter().chain(&tasks).chain(&again).cloned().collect();
    answer.to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn f20_a_task_that_is_delivered_twice_is_executed_once_and_leaves_no_heartbeat_behind() {
    let document = "workflow: slow\nsteps:\n  - { id: one, task: slow, lease: 2400ms }\n";
    let mut world = World::with(&[("slow", document)]).await;
    let began = tokio::time::Instant::now();
    let (url, seen) = proxy_that_repeats(&world.server).await;
    let executed = Arc::new(AtomicU32::new(0));
    let counts = executed.clone();
    let worker = Worker::new(Client::new(&url).expect("an address"), "echo").at_once(8);
    world.works(worker.handle("slow", move |_: Work| {
        counts.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_millis(3_000)).await;
            Ok(1)
        }
    }));
    for round in 1..=2 {
        let run_id = world.start("slow", json!({})).await;
        assert_eq!(world.ended(&run_id).await.state, RunState::Succeeded);
        assert_eq!(executed.load(Ordering::SeqCst), round, "each task is executed once");
        let kinds = world.kinds(&run_id).await;
        assert_eq!(kinds.iter().filter(|kind| *kind == "task.claimed").count(), 1, "{kinds:?}");
    }
    assert!(seen.delivered.load(Ordering::SeqCst) >= 2, "{seen:?}");
    // Every 800 ms: one loop beats no more often than that, and one that leaked would go on.
    let beats = seen.heartbeats.load(Ordering::SeqCst);
    let most = began.elapsed().as_millis() as u32 / 800 + 2;
    assert!((2..=most).contains(&beats), "{beats} heartbeats, at most {most}");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(seen.heartbeats.load(Ordering::SeqCst), beats, "nothing beats when nothing is held");
}

fn worker_process(server: &Server, role: &str, notes: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "as_a_worker_process", "--nocapture"])
        .envs([("SDK_ROLE", role), ("SDK_SERVER", &server.url), ("SDK_NOTES", &notes.display().to_string())])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts")
}

fn notes(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

async fn until_noted(path: &Path, line: &str) {
    in_time(async {
        while !lines(path).iter().any(|noted| noted == line) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn note(line: &str) {
    let path = std::env::var("SDK_NOTES").expect("a path");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("a file");
    writeln!(file, "{line}").expect("it is written");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_a_worker_process() {
    let Ok(role) = std::env::var("SDK_ROLE") else { return };
    let client = Client::new(&std::env::var("SDK_SERVER").expect("a server")).expect("an address");
    let worker = Worker::new(client, &role);
    let worker = match role.as_str() {
        "body" => worker.workflow("coded", "1", |ctx: Ctx, _: Value| async move {
            for name in ["a", "b", "c"] {
                ctx.step(name, || async move {
                    note(name);
                    Ok(())
                })
                .await?;
            }
            ctx.step_with("slow", StepOptions::new(), |attempt| async move {
                note("slow");
                if attempt.number == 1 {
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
            .await?;
            ctx.step("end", || async {
                note("end");
                Ok("done".to_owned())
            })
            .await
        }),
        _ => worker.handle("slow", |work: Work| async move {
            note("begun");
            let begun = std::fs::read_to_string(std::env::var("SDK_NOTES")?)?;
            if begun.lines().count() == 1 {
                tokio::time::sleep(Duration::from_millis(400)).await;
                note("still here");
            }
            Ok(json!({ "by": work.task().epoch }))
        }),
    };
    worker.run().await.expect("it works until it is killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_body_goes_on_from_its_stored_steps_and_executes_none_twice() {
    let document = "workflow: coded\ncoded: { revision: '1' }\ndefaults: { lease: 2s }\n";
    let world = World::with(&[("coded", document)]).await;
    let notes = notes("killed");
    let mut first = worker_process(&world.server, "body", &notes);
    let run_id = world.start("coded", json!({})).await;
    until_noted(&notes, "slow").await;
    first.kill().expect("it is killed");
    first.wait().expect("it is dead");
    let mut second = worker_process(&world.server, "body", &notes);
    let run = world.ended(&run_id).await;
    second.kill().expect("it is killed");
    second.wait().expect("it is dead");
    assert_eq!(run.state, RunState::Succeeded, "{}", run.summary);
    assert_eq!(lines(&notes), ["a", "b", "c", "slow", "slow", "end"], "only what was under way is begun again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_says_after_its_lease_was_lost_changes_nothing() {
    let document = "workflow: slow\nsteps:\n  - { id: one, task: slow, lease: 2s }\n";
    let world = World::with(&[("slow", document)]).await;
    let notes = notes("zombie");
    let mut zombie = worker_process(&world.server, "zombie", &notes);
    let run_id = world.start("slow", json!({})).await;
    until_noted(&notes, "begun").await;
    signal(zombie.id(), "STOP");
    world.until(&run_id, RunState::Queued).await;
    let mut other = worker_process(&world.server, "other", &notes);
    let run = world.ended(&run_id).await;
    let seq = run.as_of_seq;
    signal(zombie.id(), "CONT");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    for worker in [&mut zombie, &mut other] {
        worker.kill().expect("it is killed");
        worker.wait().expect("it is dead");
    }
    let after = world.client.run(&run_id).await.expect("the run");
    assert_eq!((after.state, after.as_of_seq), (RunState::Succeeded, seq));
    assert_eq!(lines(&notes).iter().filter(|line| *line == "begun").count(), 2);
}
