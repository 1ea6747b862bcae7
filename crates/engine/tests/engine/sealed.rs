//! What a document calls sensitive reaches tasks, and stands in no byte of the database, its WAL, a backup or the archive.

use abide_core::contract::RunState;
use abide_core::ids::RunId;
use abide_core::time::Span;
use abide_engine::archive::Retention;
use abide_engine::request::Claim;
use abide_engine::store::seal::FILE;
use abide_engine::{Engine, Options};
use serde_json::json;

use crate::Directory;
use crate::runs::claim;

const CANARY: &str = "4111-1111-canary";
const ORDER: &str = "
workflow: order
sensitive: [/card]
steps:
  - { id: charge, task: pay, with: { card: '${{ input.card }}' } }
  - { id: bill, child: billing, with: { card: '${{ input.card }}' } }
";
// It does not know that what it is given is sensitive: its parent does.
const PLAIN: &str = "workflow: plain\nsteps:\n  - { id: bill, child: billing }\n";
const BILLING: &str = "workflow: billing\nsteps:\n  - { id: send, task: mail }\n";

/// Everything that lies in a directory but the key: what a thief of the database or of a backup has.
fn stolen(directory: &std::path::Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name != FILE) {
            bytes.extend(std::fs::read(path).expect("a file"));
        }
    }
    bytes
}

fn has_canary(bytes: &[u8]) -> bool {
    bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes())
}

async fn play(engine: &Engine) -> RunId {
    engine.register(BILLING).await.expect("a document");
    engine.register(ORDER).await.expect("a document");
    let run = engine.start("order", json!({ "card": CANARY, "name": "Ana" })).await.expect("a run");
    for handler in ["pay", "mail"] {
        let task = engine.claim(claim("w1", &[handler], 1)).await.expect("a claim").pop().expect("a task");
        assert!(task.input.contains(CANARY), "a task gets the value: {}", task.input);
        let output = json!({ "charged": CANARY }).to_string();
        engine.complete(&task, "w1", Some(output.as_str().into())).await.expect("completed");
    }
    run.run_id
}

#[tokio::test]
async fn a_sensitive_value_is_found_in_no_byte_that_is_stored() {
    let (directory, copy) = (Directory::new("sealed"), Directory::new("sealed-copy"));
    let engine = directory.engine();
    let run = play(&engine).await;
    assert_eq!(engine.run(&run).await.expect("a record").state, RunState::Succeeded);
    let stored = stolen(directory.path());
    assert!(stored.len() > 50_000, "there is something to search");
    assert!(!has_canary(&stored), "I51");
    assert!(engine.doctor().await.expect("a report").is_healthy(), "digests are of what was sealed");
    let backup = copy.path().join("backup");
    engine.backup(&backup).await.expect("a backup");
    engine.shutdown().await;
    assert!(!has_canary(&stolen(directory.path())) && !has_canary(&stolen(&backup)));

    // A backup without its key can be opened, says what is missing, and is whole again when the key is back.
    let engine = Engine::open(&backup).expect("it opens");
    let report = engine.doctor().await.expect("a report");
    assert!(report.problems.iter().any(|problem| problem.to_string().contains("not in seal.key")), "{report:?}");
    engine.shutdown().await;
    drop(engine);
    std::fs::copy(directory.path().join(FILE), backup.join(FILE)).expect("the key");
    let engine = Engine::open(&backup).expect("it opens");
    assert!(engine.doctor().await.expect("a report").is_healthy());
    engine.shutdown().await;
}

/// Ends the lease of a task and answers for it afterwards; leaves the end of a child in the inbox of a parent that waits.
async fn leave_a_late_answer_and_a_message(directory: &Directory) -> [RunId; 2] {
    let engine = directory.engine();
    for document in [BILLING, PLAIN] {
        engine.register(document).await.expect("a document");
    }
    let late = engine.start("billing", json!({})).await.expect("a run").run_id;
    let brief = Claim { window: Some(Span::from_millis(20)), ..claim("w1", &["mail"], 1) };
    let task = engine.claim(brief).await.expect("a claim").pop().expect("a task");
    while engine.run(&late).await.expect("a record").state == RunState::Running {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    engine.complete(&task, "w1", None).await.expect_err("it comes too late");
    let parent = engine.start("plain", json!({})).await.expect("a run").run_id;
    engine.shutdown().await;
    drop(engine);
    let head = overwrite(directory, &parent, "x");
    let engine = directory.engine();
    let task = loop {
        let mut tasks = engine.claim(claim("w1", &["mail"], 2)).await.expect("a claim");
        tasks.retain(|task| task.run_id != late);
        if let Some(task) = tasks.pop() {
            break task;
        }
    };
    engine.complete(&task, "w1", None).await.expect("a child ends although its parent cannot hear of it");
    engine.shutdown().await;
    drop(engine);
    overwrite(directory, &parent, &head);
    [late, parent]
}

/// Writes another text over the head of a run; tells what stood there.
fn overwrite(directory: &Directory, run: &RunId, head: &str) -> String {
    let db = rusqlite::Connection::open(directory.path().join("abide.db")).expect("the file");
    let before = db.query_row("select head from runs where run_id = ?1", [run.as_str()], |row| row.get(0));
    db.execute("update runs set head = ?2 where run_id = ?1", [run.as_str(), head]).expect("another head");
    before.expect("a head")
}

#[tokio::test]
async fn a_run_with_nothing_sensitive_goes_on_without_the_key() {
    let directory = Directory::new("sealed-nothing");
    let [late, parent] = leave_a_late_answer_and_a_message(&directory).await;
    std::fs::remove_file(directory.path().join(FILE)).expect("the key is lost");
    let engine = directory.engine();
    // Whoever asks drives a batch, and with it what waits in the inbox.
    engine.cancel(&late, "not wanted").await.expect("a run with a late answer is read");
    assert_eq!(engine.run(&parent).await.expect("a record").state, RunState::Succeeded, "it heard of its child");
    let report = engine.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{report:?}");
    engine.shutdown().await;
}

#[tokio::test]
async fn the_archive_and_a_late_answer_are_sealed_too() {
    let directory = Directory::new("sealed-archive");
    let retention = [RunState::Succeeded, RunState::Canceled]
        .into_iter()
        .fold(Retention::default(), |all, state| all.with(state, Span::from_secs(0)));
    let engine = Engine::open_with(directory.path(), Options { retention, ..Options::default() }).expect("an engine");
    let run = play(&engine).await;
    let second = engine.start("order", json!({ "card": CANARY })).await.expect("a run");
    let brief = Claim { window: Some(Span::from_millis(20)), ..claim("w1", &["pay"], 1) };
    let task = engine.claim(brief).await.expect("a claim").pop().expect("a task");
    while engine.run(&second.run_id).await.expect("a record").state == RunState::Running {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let late = engine.complete(&task, "w1", Some(format!("\"{CANARY}\"").as_str().into())).await;
    assert!(late.is_err(), "it came too late");
    engine.cancel(&second.run_id, "not wanted").await.expect("canceled");
    while engine.archived(&run).await.is_err() || engine.archived(&second.run_id).await.is_err() {
        engine.archive().await.expect("archived");
    }
    let bundle = engine.archived(&run).await.expect("a bundle");
    assert!(bundle.payloads.iter().any(|(_, payload)| payload.contains(CANARY)), "it is still all there");
    let late = engine.archived(&second.run_id).await.expect("a bundle").late;
    assert_eq!((late.len(), late[0].worker.as_str()), (1, "w1"), "also what came too late");
    assert!(engine.doctor().await.expect("a report").is_healthy());
    engine.shutdown().await;
    assert!(!has_canary(&stolen(directory.path())), "I51");
}
