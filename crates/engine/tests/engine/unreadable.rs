//! What cannot be read concerns its own run alone: everybody else goes on.

use std::sync::Arc;
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::ids::{Digest, RunId};
use abide_core::run::command::{Actor, Ask, BlockOn};
use abide_core::time::{Span, Timestamp};
use abide_engine::clock::{Clock, VirtualClock};
use abide_engine::request::{Claim, Idempotency};
use abide_engine::{Engine, NewRun, Options, Request, What};
use rusqlite::{Connection, params};

use crate::Directory;
use crate::runs::claim;

const WORK: &str = "workflow: work\nsteps:\n  - { id: only, task: work }\n";
const SEALED: &str = "workflow: sealed\nsensitive: [/card]\nsteps:\n  - { id: only, task: work }\n";
const NAP: &str = "workflow: nap\nsteps:\n  - { id: nap, sleep: 10s }\n";
const PARENT: &str = "workflow: parent\nsteps:\n  - { id: kid, child: kid }\n";
const KID: &str = "workflow: kid\nsteps:\n  - { id: only, task: play }\n";

struct Damaged {
    directory: Directory,
    clock: VirtualClock,
}

impl Damaged {
    fn new(name: &str) -> Damaged {
        let clock = VirtualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        Damaged { directory: Directory::new(name), clock }
    }

    fn open(&self) -> Engine {
        let options = Options { clock: Arc::new(self.clock.clone()), ..Options::default() };
        Engine::open_with(self.directory.path(), options).expect("an engine")
    }

    /// Writes another text over the head of a run; tells what stood there.
    fn overwrite(&self, run: &RunId, head: &str) -> String {
        let db = Connection::open(self.directory.path().join("abide.db")).expect("the file");
        let before = db.query_row("select head from runs where run_id = ?1", [run.as_str()], |row| row.get(0));
        db.execute("update runs set head = ?2 where run_id = ?1", params![run.as_str(), head]).expect("damage");
        before.expect("a head")
    }

    /// Flips the last bit of something that is stored.
    fn flip(&self, table: &str, column: &str, which: &str) {
        let db = Connection::open(self.directory.path().join("abide.db")).expect("the file");
        let text = format!("select rowid, {column} from {table} where {which}");
        let (row, mut bytes): (i64, Vec<u8>) =
            db.query_row(&text, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("a row");
        *bytes.last_mut().expect("bytes") ^= 1;
        db.execute(&format!("update {table} set {column} = ?2 where rowid = ?1"), params![row, bytes]).expect("damage");
    }

    async fn pass(&self, engine: &Engine, span: Span) {
        self.clock.set(self.clock.now() + span);
        for _ in 0..2 {
            engine.claim(claim("nobody", &["nothing"], 1)).await.expect("nothing");
        }
    }
}

async fn start(engine: &Engine, workflow: &str) -> RunId {
    engine.start(workflow, serde_json::Value::Null).await.expect("a run").run_id
}

#[tokio::test]
async fn a_run_that_cannot_be_read_keeps_nobody_from_a_task() {
    let damaged = Damaged::new("unclaimable");
    let engine = damaged.open();
    engine.register(WORK).await.expect("a document");
    let (first, second, third) =
        (start(&engine, "work").await, start(&engine, "work").await, start(&engine, "work").await);
    engine.shutdown().await;
    drop(engine);
    damaged.overwrite(&first, "x");
    let engine = damaged.open();
    let named = engine.claim(claim("w", &["work"], 1)).await.expect("a claim");
    assert_eq!(named.iter().map(|task| &task.run_id).collect::<Vec<_>>(), [&second]);
    let mut any = claim("w", &["work"], 1);
    any.wanted.handlers = None;
    let any = engine.claim(any).await.expect("a claim");
    assert_eq!(any.iter().map(|task| &task.run_id).collect::<Vec<_>>(), [&third]);
    start(&engine, "work").await;
}

#[tokio::test]
async fn a_run_that_cannot_be_read_lets_the_others_wake() {
    let damaged = Damaged::new("unwakeable");
    let engine = damaged.open();
    engine.register(NAP).await.expect("a document");
    let (first, second) = (start(&engine, "nap").await, start(&engine, "nap").await);
    engine.shutdown().await;
    drop(engine);
    let head = damaged.overwrite(&first, "x");
    let engine = damaged.open();
    damaged.pass(&engine, Span::from_secs(11)).await;
    assert_eq!(engine.run(&second).await.expect("a record").state, RunState::Succeeded);
    engine.shutdown().await;
    drop(engine);
    damaged.overwrite(&first, &head);
    let engine = damaged.open();
    damaged.pass(&engine, Span::from_secs(61)).await;
    assert_eq!(engine.run(&first).await.expect("a record").state, RunState::Succeeded, "it is looked at again");
}

#[tokio::test]
async fn a_message_waits_until_its_run_can_be_read() {
    let damaged = Damaged::new("undeliverable");
    let engine = damaged.open();
    for document in [KID, PARENT] {
        engine.register(document).await.expect("a document");
    }
    let (first, second) = (start(&engine, "parent").await, start(&engine, "parent").await);
    engine.shutdown().await;
    drop(engine);
    let head = damaged.overwrite(&first, "x");
    let engine = damaged.open();
    for _ in 0..2 {
        let task = engine.claim(claim("w", &["play"], 1)).await.expect("a claim").pop().expect("a task");
        engine.complete(&task, "w", None).await.expect("a child ends although its parent cannot hear of it");
    }
    assert_eq!(engine.run(&second).await.expect("a record").state, RunState::Succeeded);
    engine.shutdown().await;
    drop(engine);
    damaged.overwrite(&first, &head);
    let engine = damaged.open();
    damaged.pass(&engine, Span::from_secs(1)).await;
    assert_eq!(engine.run(&first).await.expect("a record").state, RunState::Succeeded, "nothing was lost");
}

#[tokio::test]
async fn a_claim_that_is_repeated_for_a_run_that_cannot_be_read_stops_nobody() {
    let damaged = Damaged::new("claimed-again");
    let engine = damaged.open();
    engine.register(WORK).await.expect("a document");
    let (first, second) = (start(&engine, "work").await, start(&engine, "work").await);
    let asked = || Claim { claim_id: Some("c1".into()), ..claim("w", &["work"], 1) };
    assert_eq!(engine.claim(asked()).await.expect("a claim")[0].run_id, first);
    engine.shutdown().await;
    drop(engine);
    damaged.overwrite(&first, "x");
    let engine = damaged.open();
    assert!(engine.claim(asked()).await.expect("a claim").is_empty());
    assert_eq!(engine.claim(claim("w", &["work"], 1)).await.expect("a claim")[0].run_id, second);
    start(&engine, "work").await;
}

#[tokio::test]
async fn what_cannot_be_unsealed_keeps_nobody_from_a_task() {
    let damaged = Damaged::new("unsealable");
    let engine = damaged.open();
    engine.register(SEALED).await.expect("a document");
    let new = || engine.start("sealed", serde_json::json!({ "card": "4111" }));
    let (first, second) = (new().await.expect("a run").run_id, new().await.expect("a run").run_id);
    engine.shutdown().await;
    drop(engine);
    damaged.flip("payloads", "bytes", &format!("run_no = (select run_no from runs where run_id = '{first}')"));
    let engine = damaged.open();
    let tasks = engine.claim(claim("w", &["work"], 2)).await.expect("a claim");
    assert_eq!(tasks.iter().map(|task| &task.run_id).collect::<Vec<_>>(), [&second]);
    engine.complete(&tasks[0], "w", None).await.expect("completed");
    let report = engine.doctor().await.expect("a report");
    assert!(report.problems.iter().any(|problem| problem.to_string().contains("was changed")), "{report:?}");
}

#[tokio::test]
async fn a_message_that_cannot_be_read_keeps_no_other_from_its_run() {
    let damaged = Damaged::new("unreadable-message");
    let engine = damaged.open();
    for document in [KID, PARENT] {
        engine.register(document).await.expect("a document");
    }
    let parents = [start(&engine, "parent").await, start(&engine, "parent").await];
    engine.shutdown().await;
    drop(engine);
    let heads = parents.each_ref().map(|parent| damaged.overwrite(parent, "x"));
    let engine = damaged.open();
    for task in engine.claim(claim("w", &["play"], 2)).await.expect("a claim") {
        engine.complete(&task, "w", None).await.expect("a child ends although its parent cannot hear of it");
    }
    engine.shutdown().await;
    drop(engine);
    parents.iter().zip(&heads).for_each(|(parent, head)| drop(damaged.overwrite(parent, head)));
    damaged.flip("inbox", "message", "n = (select min(n) from inbox)");
    let engine = damaged.open();
    damaged.pass(&engine, Span::from_secs(1)).await;
    let mut ended = 0;
    for parent in &parents {
        ended += u32::from(engine.run(parent).await.expect("a record").state == RunState::Succeeded);
    }
    assert_eq!(ended, 1, "one of them heard of its child");
    start(&engine, "parent").await;
    let report = engine.doctor().await.expect("a report, whatever it met");
    assert!(!report.is_healthy());
}

#[tokio::test]
async fn a_task_whose_receipt_cannot_be_read_is_given_to_nobody() {
    let damaged = Damaged::new("unreadable-receipt");
    let engine = damaged.open();
    engine.register(WORK).await.expect("a document");
    let run = start(&engine, "work").await;
    let task = engine.claim(claim("w", &["work"], 1)).await.expect("a claim").remove(0);
    let (id, result) = (Some("ch_1".to_owned()), Some("{\"paid\":true}".into()));
    let receipt = |holding| Ask::Effect { holding, name: Some("charge".into()), external_id: id, result };
    engine.report(&task, "w", receipt).await.expect("a receipt");
    let until = damaged.clock.now() + Span::from_secs(1);
    let on = BlockOn::Timer { until };
    engine.report(&task, "w", |holding| Ask::Block { holding, on, message: None }).await.expect("blocked");
    engine.shutdown().await;
    drop(engine);
    let db = Connection::open(damaged.directory.path().join("abide.db")).expect("the file");
    let changed = db.execute("update payloads set bytes = x'ff' where name not like '%input'", []).expect("damage");
    assert_eq!(changed, 1, "the receipt");
    let engine = damaged.open();
    damaged.pass(&engine, Span::from_secs(2)).await;
    assert!(engine.claim(claim("w", &["work"], 1)).await.expect("a claim").is_empty());
    assert_eq!(engine.run(&run).await.expect("a record").state, RunState::Queued, "nobody has it");
}

#[tokio::test]
async fn an_idempotency_key_that_looks_like_a_claim_stops_nobody() {
    let directory = Directory::new("claim-like-key");
    let engine = directory.engine();
    engine.register(WORK).await.expect("a document");
    let new = NewRun::of("work", "null", Actor::user("ben"));
    let request = Request {
        namespace: "default".into(),
        idempotency: Some(Idempotency::new("claim:w:c1", Digest::of(b"the request"))),
        what: What::Start(Box::new(new)),
    };
    engine.ask(request).await.expect("a run");
    let mut named = claim("w", &["work"], 1);
    named.claim_id = Some("c1".into());
    let claimed = tokio::time::timeout(Duration::from_secs(120), engine.claim(named)).await.expect("it is answered");
    assert_eq!(claimed.expect("a claim").len(), 1);
    start(&engine, "work").await;
}
