//! The archive: what has left reads as it did before, and whatever cannot leave holds nobody up.

use std::sync::Arc;

use abide_core::contract::{FailureClass, RunState};
use abide_core::explain::At;
use abide_core::ids::{Path, RunId};
use abide_core::run::OriginKind;
use abide_core::run::command::{Actor, Ask, Fault};
use abide_core::time::{Span, Timestamp};
use abide_engine::archive::{Bundle, Retention};
use abide_engine::clock::VirtualClock;
use abide_engine::request::{Rerun, RerunVersion};
use abide_engine::{Answer, Engine, Filter, NewRun, Options, ReadError, What};
use rusqlite::Connection;
use serde_json::json;

use crate::Directory;
use crate::runs::claim;

const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// Something sensitive, a decision, a child, and a step that may fail.
const ORDER: &str = "
workflow: order
sensitive: [/card]
steps:
  - { id: charge, task: pay, effect: external, with: { card: '${{ input.card }}' } }
  - { id: ask, approval: { title: 'ok?', approvers: [ana], deadline: 1h } }
  - { id: bill, child: billing, with: { n: 1 } }
  - { id: ship, task: ship }
output: { shipped: '${{ steps.ship.output.at }}' }
";
const BILLING: &str = "workflow: billing\nsteps:\n  - { id: send, task: mail }\n";

/// An engine that archives whatever has ended, as soon as its clock moves.
fn engine(directory: &Directory, clock: &VirtualClock) -> Engine {
    let states = RunState::ALL.iter().copied().filter(|state| state.is_terminal());
    let retention = states.fold(Retention::default(), |kept, state| kept.with(state, Span::from_secs(0)));
    let options = Options { clock: Arc::new(clock.clone()), retention, ..Options::default() };
    Engine::open_with(directory.path(), options).expect("an engine")
}

async fn work(engine: &Engine, handler: &str, output: &str) {
    let task = engine.claim(claim("w1", &[handler], 1)).await.expect("a claim").pop().expect("a task");
    engine.complete(&task, "w1", Some(output.into())).await.expect("completed");
}

async fn start(engine: &Engine) -> RunId {
    let mut new = NewRun::of("order", json!({ "card": "4711", "name": "Ana" }).to_string(), Actor::user("ben"));
    new.start.labels.insert("team".into(), "blue".into());
    new.start.owner_id = Some("acme".into());
    engine.start_run(new).await.expect("a run").run_id
}

/// One run that succeeds, one that fails, one that is canceled.
async fn ended(engine: &Engine) -> [RunId; 3] {
    engine.register(BILLING).await.expect("a document");
    engine.register(ORDER).await.expect("a document");
    let well = start(engine).await;
    work(engine, "pay", "{\"id\":\"ch_1\"}").await;
    engine.decide(&well, "ana", true).await.expect("approved");
    work(engine, "mail", "{}").await;
    work(engine, "ship", "{\"at\":7}").await;
    let failed = start(engine).await;
    let task = engine.claim(claim("w1", &["pay"], 1)).await.expect("a claim").pop().expect("a task");
    let fault = Fault { class: Some(FailureClass::Fatal), message: "no funds".into(), ..Fault::default() };
    engine.report(&task, "w1", |holding| Ask::Fail { holding, fault }).await.expect("failed");
    let canceled = start(engine).await;
    work(engine, "pay", "{\"id\":\"ch_2\"}").await;
    engine.cancel(&canceled, "not wanted").await.expect("canceled");
    [well, failed, canceled]
}

/// Every answer that is given for a run's id.
async fn everything(engine: &Engine, run: &RunId) -> Vec<(&'static str, String)> {
    fn said(value: impl std::fmt::Debug) -> String {
        format!("{value:#?}")
    }
    let charge = Path::from("charge");
    let rerun = Rerun {
        run_id: run.clone(),
        kind: OriginKind::Rerun,
        from_step: None,
        version: RerunVersion::Same,
        input: None,
        actor: Actor::user("ben"),
    };
    let (definition, steps) = engine.graph(run, None).await.expect("a graph");
    vec![
        ("run", said(engine.run(run).await)),
        ("status", said(engine.status(run).await)),
        ("run_at", said(engine.run_at(run, At::Seq(3)).await)),
        ("events", said(engine.events(run, 0, 1_000).await)),
        ("a page of events", said(engine.events(run, 2, 3).await)),
        ("explain", said(engine.explain(run).await)),
        ("explain_at", said(engine.explain_at(run, At::Seq(3)).await)),
        ("handoff", said(engine.handoff(run).await)),
        ("steps", said(engine.steps(run).await)),
        ("steps_page", said(engine.steps_page(run, 0, 2, Some(1_000)).await)),
        ("step", said(engine.step(run, &charge).await)),
        ("no step", said(engine.step(run, &Path::from("nowhere")).await)),
        ("timeline", said(engine.timeline(run).await)),
        ("graph", said((definition.hash, steps))),
        ("past graph", said(engine.graph(run, Some(At::Seq(3))).await.map(|(_, steps)| steps))),
        ("input", said(engine.payload(run, "input").await)),
        ("output", said(engine.payload(run, "output").await)),
        ("output of a step", said(engine.payload(run, "charge/output").await)),
        ("shown input", said(engine.shown_input(run).await)),
        ("shown input of a step", said(engine.shown_step_input(run, &charge, 1_000).await)),
        ("approval", said(engine.approval(run, &Path::from("ask")).await)),
        ("approvals", said(engine.approvals_of(run).await)),
        ("decisions", said(engine.decisions(run, &Path::from("ask")).await)),
        ("worked on", said(engine.is_worked_on_by(run, "w1").await)),
        ("plan of a rerun", said(engine.plan_rerun(rerun).await)),
        ("reruns", said(engine.reruns_of(run).await)),
        ("bundle", said(engine.bundle(run).await)),
        ("support bundle", said(engine.support_bundle(run).await)),
    ]
}

#[tokio::test]
async fn an_archived_run_reads_as_it_did_before() {
    let (directory, clock) = (Directory::new("archive-reads"), VirtualClock::at(START));
    let engine = engine(&directory, &clock);
    let runs = ended(&engine).await;
    clock.set(START + Span::from_secs(1));
    let mut before = Vec::new();
    for run in &runs {
        before.push(everything(&engine, run).await);
    }
    assert_eq!(engine.archive().await.expect("archived"), 4, "with the child");
    for (run, before) in runs.iter().zip(before) {
        engine.archived(run).await.expect("it is in the archive");
        for (was, is) in before.into_iter().zip(everything(&engine, run).await) {
            assert_eq!(was, is);
        }
    }
    assert!(engine.doctor().await.expect("a report").is_healthy());
}

#[tokio::test]
async fn an_archived_run_can_be_made_anew() {
    let (directory, clock) = (Directory::new("archive-rerun"), VirtualClock::at(START));
    let engine = engine(&directory, &clock);
    let [_, _, canceled] = ended(&engine).await;
    clock.set(START + Span::from_secs(1));
    engine.archive().await.expect("archived");
    let rerun = Rerun {
        run_id: canceled.clone(),
        kind: OriginKind::Rerun,
        from_step: Some("ask".into()),
        version: RerunVersion::Same,
        input: None,
        actor: Actor::user("ben"),
    };
    let Answer::Run(told) = engine.asking(What::Rerun(Box::new(rerun))).await.expect("a run") else { panic!("a run") };
    assert_eq!(told.state, RunState::WaitingOnApproval, "what was paid is not paid again");
    assert_eq!(
        engine.payload(&told.run_id, "input").await.expect("a payload"),
        engine.payload(&canceled, "input").await.expect("the same")
    );
    let charged = engine.payload(&told.run_id, "charge/output").await.expect("a payload");
    assert_eq!(charged.as_deref(), Some("{\"id\":\"ch_2\"}"));
    assert_eq!(engine.reruns_of(&canceled).await.expect("runs"), [told.run_id]);
    assert!(engine.doctor().await.expect("a report").is_healthy());
}

#[tokio::test]
async fn a_list_of_the_archive_refuses_what_its_rows_do_not_say() {
    let (directory, clock) = (Directory::new("archive-list"), VirtualClock::at(START));
    let engine = engine(&directory, &clock);
    let [_, failed, _] = ended(&engine).await;
    clock.set(START + Span::from_secs(1));
    engine.archive().await.expect("archived");
    let filter =
        Filter { workflow: Some("order".into()), created_after: Some(START), ..Filter::in_states([RunState::Failed]) };
    let page = engine.list_archived(filter, None, 10).await.expect("a page");
    assert_eq!(page.runs.iter().map(|run| &run.run_id).collect::<Vec<_>>(), [&failed]);
    let refused = [
        Filter { labels: vec![("team".into(), "blue".into())], ..Filter::default() },
        Filter { owner_id: Some("acme".into()), ..Filter::default() },
        Filter { parent: Some(failed), ..Filter::default() },
        Filter { updated_before: Some(START), ..Filter::default() },
    ];
    for filter in refused {
        let refused = engine.list_archived(filter, None, 10).await;
        assert!(matches!(refused, Err(ReadError::NotInArchive(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_run_that_cannot_be_packed_holds_nobody_up() {
    let (directory, clock) = (Directory::new("archive-stuck"), VirtualClock::at(START));
    let engine = engine(&directory, &clock);
    engine.register(BILLING).await.expect("a document");
    let mut runs = Vec::new();
    for _ in 0..40 {
        runs.push(engine.start("billing", json!({})).await.expect("a run").run_id);
        work(&engine, "mail", "{}").await;
    }
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    db.execute("update steps set row = '{' where run_no = 1", []).expect("damage");
    clock.set(START + Span::from_secs(1));
    assert_eq!(engine.archive().await.expect("archived"), 39);
    assert!(engine.archived(&runs[0]).await.is_err(), "it stays where it is");
    assert_eq!(engine.archive().await.expect("nothing is left to move"), 0);
}

#[tokio::test]
async fn what_nobody_asks_for_is_forgotten_also_when_nothing_is_archived() {
    let (directory, clock) = (Directory::new("forgotten"), VirtualClock::at(START));
    let engine = engine(&directory, &clock);
    engine.register(BILLING).await.expect("a document");
    engine.start("billing", json!({})).await.expect("a run that stays open");
    assert!(engine.claim(claim("w1", &["nothing"], 1)).await.expect("a claim").is_empty());
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    let old = "
        with recursive n(n) as (select 1 union all select n + 1 from n where n < 2500)
        insert into idempotency_keys (namespace, key, digest, at, answer)
        select 'default', 'key ' || n, zeroblob(32), ?1, '{}' from n";
    db.execute(old, [START.micros()]).expect("more keys than one transaction forgets");
    let now = START + Span::from_secs(8 * 86_400);
    clock.set(now);
    let left = "
        select (select count(*) from idempotency_keys where at < ?1) + (select count(*) from batches where at < ?1)
             + (select count(*) from workers where last_poll_at < ?1)";
    let left = || db.query_row(left, [now.micros()], |row| row.get::<_, i64>(0)).expect("a number");
    assert!(left() > 2_500);
    for _ in 0..12_000 {
        if left() == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(left(), 0);
    assert!(engine.doctor().await.expect("a report").is_healthy());
}

#[tokio::test]
async fn the_doctor_looks_into_the_archive() {
    let (directory, clock) = (Directory::new("archive-doctor"), VirtualClock::at(START));
    let engine = engine(&directory, &clock);
    engine.register(BILLING).await.expect("a document");
    let run = engine.start("billing", json!({ "n": 1 })).await.expect("a run").run_id;
    work(&engine, "mail", "{\"sent\":true}").await;
    clock.set(START + Span::from_secs(1));
    assert_eq!(engine.archive().await.expect("archived"), 1);
    assert!(engine.doctor().await.expect("a report").is_healthy());
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    let store = |bundle: &Bundle| {
        let (bytes, _) = bundle.pack().expect("packed");
        db.execute("update archived_runs set bundle = ?1", [bytes]).expect("stored");
    };
    type Tamper = fn(&mut Bundle);
    let tampers: [(&str, Tamper); 7] = [
        ("I1", |bundle| bundle.head.attempt += 1),
        ("I1", |bundle| bundle.started.priority += 1),
        ("I1", |bundle| bundle.steps[0].attempt += 1),
        ("I1", |bundle| bundle.steps.clear()),
        ("I7", |bundle| bundle.events[0].actor.id = "mallory".into()),
        ("I10", |bundle| bundle.payloads[0].1.push(' ')),
        ("I10", |bundle| bundle.payloads.clear()),
    ];
    for (at, (rule, tamper)) in tampers.into_iter().enumerate() {
        let healthy = engine.archived(&run).await.expect("a bundle");
        let mut tampered = engine.archived(&run).await.expect("a bundle");
        tamper(&mut tampered);
        store(&tampered);
        let report = engine.doctor().await.expect("a report");
        assert!(report.problems.iter().any(|problem| problem.rule == rule), "{at}: {:#?}", report.problems);
        store(&healthy);
    }
    for tamper in [
        "update archived_runs set state = 'failed'",
        "update archived_runs set workflow_id = 'another'",
        "update archived_runs set bundle = zeroblob(9)",
    ] {
        db.execute(tamper, []).expect(tamper);
        assert!(!engine.doctor().await.expect("a report").is_healthy(), "{tamper}");
        db.execute("update archived_runs set state = 'succeeded', workflow_id = 'billing'", []).expect("as it was");
    }
}
