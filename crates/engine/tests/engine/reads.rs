//! What readers see: the same answer from every side, now and in the past.

use std::sync::Arc;

use abide_core::contract::{FailureClass, ReasonType, RunState};
use abide_core::explain::At;
use abide_core::ids::{Path, RunId, WorkflowId};
use abide_core::run::command::{Actor, Ask, BlockOn, Fault};
use abide_core::time::{Span, Timestamp};
use abide_engine::clock::VirtualClock;
use abide_engine::insights::fold::{Memory, fold_after};
use abide_engine::{Engine, Filter, NewRun, Options};
use serde_json::json;

use crate::Directory;
use crate::runs::claim;

const ORDER: &str = "
workflow: order
steps:
  - { id: charge, task: pay, effect: external }
  - id: manager
    approval: { title: 'Ship it?', approvers: [ana], deadline: 1h }
  - { id: ship, task: ship }
";

async fn order(engine: &Engine) -> RunId {
    engine.register(ORDER).await.expect("a document");
    engine.start("order", json!({ "amount": 3 })).await.expect("a run").run_id
}

async fn work(engine: &Engine, handler: &str) {
    let task = engine.claim(claim("w1", &[handler], 1)).await.expect("a claim").remove(0);
    engine.complete(&task, "w1", Some("{}".into())).await.expect("completed");
}

#[tokio::test]
async fn a_run_says_what_it_waits_for_and_people_find_it_in_their_inbox() {
    let directory = Directory::new("inbox");
    let engine = directory.engine();
    let run = order(&engine).await;
    let explained = engine.explain(&run).await.expect("an explanation");
    assert_eq!(explained.state, RunState::Queued);
    assert!(explained.why.contains("pay") || explained.summary.contains("pay"), "{explained:?}");

    work(&engine, "pay").await;
    let record = engine.run(&run).await.expect("a record");
    assert_eq!(record.state, RunState::WaitingOnApproval);
    assert_eq!(record.blocking_reason.expect("a reason").kind, ReasonType::ApprovalRequired);
    let inbox = engine.approvals(10).await.expect("the inbox");
    assert_eq!(inbox.len(), 1);
    assert_eq!((inbox[0].title.as_str(), inbox[0].run_id == run), ("Ship it?", true));

    engine.decide(&run, "ana", true).await.expect("approved");
    assert!(engine.approvals(10).await.expect("the inbox").is_empty());
    work(&engine, "ship").await;
    let record = engine.ended(&run).await.expect("a record");
    assert_eq!(record.state, RunState::Succeeded);
    // The past is still there.
    let then = engine.explain_at(&run, At::Seq(1)).await.expect("the past");
    assert_eq!(then.state, RunState::Queued);
    let events = engine.events(&run, 0, 1_000).await.expect("events");
    assert!(events.iter().enumerate().all(|(at, event)| event.seq == at as u64 + 1));
    let steps = engine.steps(&run).await.expect("steps");
    assert_eq!(steps.iter().map(|step| step.step_id.as_str()).collect::<Vec<_>>(), ["charge", "manager", "ship"]);
}

#[tokio::test]
async fn lists_are_filtered_and_paged_without_missing_a_run() {
    let directory = Directory::new("lists");
    let engine = directory.engine();
    engine.register(ORDER).await.expect("a document");
    let mut runs = Vec::new();
    for n in 0..25 {
        let mut new = NewRun::of("order", "{}", abide_core::run::command::Actor::user("ben"));
        new.start.labels.insert("parity".into(), if n % 2 == 0 { "even".into() } else { "odd".into() });
        new.start.owner_id = Some(format!("team-{}", n % 5));
        runs.push(engine.start_run(new).await.expect("a run").run_id);
    }
    for _ in 0..10 {
        work(&engine, "pay").await;
    }
    let mut listed = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = engine.list(Filter::default(), cursor.as_deref(), 7).await.expect("a page");
        listed.extend(page.runs.iter().map(|run| run.run_id.clone()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    runs.reverse();
    assert_eq!(listed, runs);
    let count = async |filter: Filter| engine.list(filter, None, 100).await.expect("a page").runs.len();
    assert_eq!(count(Filter::in_states([RunState::WaitingOnApproval])).await, 10);
    assert_eq!(count(Filter::in_states([RunState::Queued])).await, 15);
    assert_eq!(count(Filter::open()).await, 25);
    assert_eq!(count(Filter::terminal()).await, 0);
    assert_eq!(count(Filter { labels: vec![("parity".into(), "odd".into())], ..Filter::default() }).await, 12);
    assert_eq!(count(Filter { owner_id: Some("team-1".into()), ..Filter::default() }).await, 5);
    assert_eq!(count(Filter { reason: Some(ReasonType::ApprovalRequired), ..Filter::default() }).await, 10);
    assert_eq!(count(Filter { workflow: Some(WorkflowId::from("other")), ..Filter::default() }).await, 0);
    let counts = engine.counts(None).await.expect("counts");
    assert_eq!((counts[&RunState::Queued], counts[&RunState::WaitingOnApproval]), (15, 10));
    assert!(engine.list(Filter::default(), Some("nonsense"), 10).await.is_err());
    // Another tenant sees nothing of it.
    let other = engine.in_namespace("other");
    assert!(other.run(&runs[0]).await.is_err());
    assert!(other.list(Filter::default(), None, 10).await.expect("a page").runs.is_empty());
}

const TRIP: &str = "
workflow: trip
steps:
  - { id: book, task: book }
  - { id: tell, task: tell }
";
const FAMILY: &str = "workflow: family\nsteps:\n  - { id: kid, child: trip }\n";

#[tokio::test]
async fn every_filter_finds_its_runs_and_no_others_and_agrees_with_what_a_stream_shows() {
    let directory = Directory::new("filters");
    let begin = Timestamp::from_micros(1_800_000_000_000_000);
    let clock = VirtualClock::at(begin);
    let options = Options { clock: Arc::new(clock.clone()), ..Options::default() };
    let engine = Engine::open_with(directory.path(), options).expect("an engine");
    engine.register(TRIP).await.expect("a document");
    engine.register(FAMILY).await.expect("a document");
    let start = async |workflow: &str, region: &str| {
        let mut new = NewRun::of(workflow, "{}", Actor::user("ben"));
        new.start.data_region = Some(region.into());
        engine.start_run(new).await.expect("a run").run_id
    };
    let next = async || engine.claim(claim("w1", &["book"], 1)).await.expect("a claim").remove(0);
    let blocked = start("trip", "eu").await;
    let on = |account: &str| BlockOn::Auth { tool: "drive".into(), account: Some(account.into()) };
    let task = next().await;
    engine.report(&task, "w1", |holding| Ask::Block { holding, on: on("ana"), message: None }).await.expect("blocked");
    let of_ben = start("trip", "us").await;
    let task = next().await;
    engine.report(&task, "w1", |holding| Ask::Block { holding, on: on("ben"), message: None }).await.expect("blocked");
    let failed = start("trip", "us").await;
    let task = next().await;
    let fault = Fault { class: Some(FailureClass::Fatal), message: "no".into(), ..Fault::default() };
    engine.report(&task, "w1", |holding| Ask::Fail { holding, fault }).await.expect("failed");
    let further = start("trip", "us").await;
    engine.complete(&next().await, "w1", None).await.expect("completed");
    clock.set(begin + Span::from_secs(100));
    let parent = start("family", "us").await;
    let all = engine.list(Filter::default(), None, 100).await.expect("a page").runs;
    let child = all.iter().find(|run| run.parent.is_some()).expect("a child").run_id.clone();
    let kind = all.iter().find_map(|run| run.failure.as_ref()).expect("a failure").kind;
    let any = Filter::default;
    let at = Some(begin + Span::from_secs(50));
    let drive = |account: Option<&str>| Some(("drive".to_owned(), account.map(ToOwned::to_owned)));
    for (filter, expected) in [
        (Filter { data_region: Some("eu".into()), ..any() }, vec![&blocked]),
        (Filter { data_region: Some("nowhere".into()), ..any() }, vec![]),
        (Filter { failure_kind: Some(kind), ..any() }, vec![&failed]),
        (Filter { parent: Some(parent.clone()), ..any() }, vec![&child]),
        (Filter { parent: Some(child.clone()), ..any() }, vec![]),
        (Filter { connection: drive(None), ..any() }, vec![&of_ben, &blocked]),
        (Filter { connection: drive(Some("ana")), ..any() }, vec![&blocked]),
        (Filter { connection: drive(Some("eve")), ..any() }, vec![]),
        (Filter { step: Some(Path::from("tell")), ..any() }, vec![&further]),
        (Filter { step: Some(Path::from("kid")), ..any() }, vec![&parent]),
        (Filter { created_after: at, ..any() }, vec![&child, &parent]),
        (Filter { updated_before: at, ..any() }, vec![&further, &failed, &of_ben, &blocked]),
        (Filter { created_after: at, updated_before: at, ..any() }, vec![]),
        (Filter { connection: drive(None), data_region: Some("eu".into()), ..any() }, vec![&blocked]),
    ] {
        let page = engine.list(filter.clone(), None, 100).await.expect("a page").runs;
        assert_eq!(page.iter().map(|run| &run.run_id).collect::<Vec<_>>(), expected, "{filter:?}");
        let shown = all.iter().filter(|run| filter.fits(run)).map(|run| &run.run_id);
        assert_eq!(shown.collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

#[tokio::test]
async fn a_list_and_a_run_of_the_same_commit_never_differ() {
    let directory = Directory::new("agree");
    let engine = directory.engine();
    engine.register(ORDER).await.expect("a document");
    let writer = {
        let engine = engine.clone();
        tokio::spawn(async move {
            for _ in 0..40 {
                engine.start("order", json!({})).await.expect("a run");
                work(&engine, "pay").await;
            }
        })
    };
    let mut compared = 0;
    while !writer.is_finished() {
        let page = engine.list(Filter::default(), None, 5).await.expect("a page");
        for listed in &page.runs {
            let alone = engine.run(&listed.run_id).await.expect("a record");
            if alone.as_of_seq == listed.as_of_seq {
                compared += 1;
                let same = |record: &abide_core::explain::Record| {
                    (record.state, record.step_id.clone(), record.lease_epoch, record.updated_at, record.leases)
                };
                assert_eq!(same(&alone), same(listed));
            }
        }
    }
    writer.await.expect("the writer");
    assert!(compared > 10, "{compared}");
}

#[tokio::test]
async fn a_queue_without_a_listener_is_named_and_a_listener_is_seen() {
    let directory = Directory::new("queues");
    let engine = directory.engine();
    let run = order(&engine).await;
    let record = engine.run(&run).await.expect("a record");
    assert_eq!(record.blocking_reason.expect("a reason").kind, ReasonType::NoWorkerListening);
    engine.claim(claim("w1", &["other"], 1)).await.expect("nothing");
    let queues = engine.queues().await.expect("queues");
    assert_eq!((queues[0].queue.as_str(), queues[0].depth, queues[0].listeners.len()), ("default", 1, 1));
    let workers = engine.workers().await.expect("workers");
    assert!(workers[0].listening && workers[0].worker.as_str() == "w1");
}

#[tokio::test]
async fn the_numbers_are_folded_in_the_background() {
    let directory = Directory::new("insights");
    let engine = directory.engine();
    let run = order(&engine).await;
    work(&engine, "pay").await;
    engine.decide(&run, "ana", true).await.expect("approved");
    work(&engine, "ship").await;
    let mut insights = engine.insights(None).await.expect("numbers");
    for _ in 0..2_400 {
        if insights.time_in_state.get("waiting_on_approval").is_some_and(|times| times.count == 1) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        insights = engine.insights(None).await.expect("numbers");
    }
    assert_eq!(insights.runs, 1);
    assert_eq!(insights.time_in_state["waiting_on_approval"].count, 1);
    assert_eq!(insights.time_in_state["running"].count, 2);
}

#[tokio::test]
async fn commits_that_are_folded_again_add_the_same() {
    let directory = Directory::new("folded-again");
    let engine = directory.engine();
    let run = order(&engine).await;
    work(&engine, "pay").await;
    let db = engine.files().reader().expect("a reader");
    // Only what they add: the engine's own counting commits meanwhile.
    let fold = |memory: &mut Memory, after| fold_after(&db, memory, after, 1_000).expect("a fold").expect("commits");
    let mut memory = Memory::default();
    let (position, _) = fold(&mut memory, 0);
    engine.decide(&run, "ana", true).await.expect("approved");
    let fresh = fold(&mut Memory::default(), position).1;
    assert!(!fresh.0.is_empty());
    assert_eq!(fold(&mut memory, position).1, fresh, "what is remembered is what would be read");
    // It could not be written down, so what is remembered is ahead.
    assert_eq!(fold(&mut memory, position).1, fresh);
}

/// Commits are forgotten after a day, also while nobody counts them because the engine is down.
#[tokio::test]
async fn counting_goes_on_with_the_first_commit_that_is_kept() {
    let directory = Directory::new("counted-late");
    let engine = directory.engine();
    order(&engine).await;
    order(&engine).await;
    engine.shutdown().await;
    let db = rusqlite::Connection::open(directory.path().join("abide.db")).expect("the database");
    db.execute_batch("delete from batches where batch <= (select min(batch) from batches where length(touched) > 0)")
        .expect("the first start is forgotten");
    let mut memory = Memory::default();
    let (position, nothing) = fold_after(&db, &mut memory, 1, 1_000).expect("a fold").expect("commits");
    assert!(nothing.0.is_empty());
    let (_, added) = fold_after(&db, &mut memory, position, 1_000).expect("a fold").expect("commits");
    let started = added.0.iter().filter(|(measure, _)| measure.metric == "started").map(|(_, (count, _))| count);
    assert_eq!(started.sum::<u64>(), 1, "the second start is counted");
}
