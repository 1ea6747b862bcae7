//! What the checker finds in a store with which somebody tampered: each time what was done, and nothing before it was.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use abide_core::run::command::{Actor, Command};
use abide_core::time::Timestamp;
use abide_engine::clock::VirtualClock;
use abide_engine::doctor::{Report, examine, examine_directory};
use abide_engine::store::sqlite::check::commits::broken_commits;
use abide_engine::store::sqlite::{Files, Readers};
use abide_engine::{Engine, NewRun, Options};
use rusqlite::Connection;
use serde_json::json;

use crate::Directory;
use crate::runs::claim;

const PARENT: &str = "
workflow: parent
steps:
  - { id: ask, approval: { title: 'ok?', approvers: [ana] } }
  - { id: nap, after: [], sleep: 10m }
  - { id: child, after: [], child: small }
";
const SMALL: &str = "workflow: small\nsteps:\n  - { id: only, task: tiny }\n";

/// Two runs that were decided by links, their children (one under a lease), and a run that has ended.
async fn populate(engine: &Engine) {
    engine.register(SMALL).await.expect("a document");
    engine.register(PARENT).await.expect("a document");
    engine.start("small", json!({})).await.expect("a run");
    let task = engine.claim(claim("w1", &["tiny"], 1)).await.expect("a claim").remove(0);
    engine.complete(&task, "w1", None).await.expect("completed");
    for _ in 0..2 {
        let new = NewRun::of("parent", "{}", Actor::user("ben"));
        let run = engine.start_run(new).await.expect("a run").run_id;
        engine.decide(&run, "ana", true).await.expect("approved");
    }
    while engine.claim(claim("w1", &["tiny"], 1)).await.expect("a claim").is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// Looks at the files themselves: an engine would commit, and set some of it right.
fn report(directory: &Directory) -> Report {
    let files = Files::lock(directory.path()).expect("the lock");
    examine(&Readers::new(files).expect("readers")).expect("a report")
}

fn change(directory: &Directory, text: &str) {
    Connection::open(directory.path().join("abide.db")).and_then(|db| db.execute_batch(text)).expect(text);
}

/// Every file of a directory, with its bytes.
fn files_of(directory: &Directory) -> BTreeMap<OsString, Vec<u8>> {
    let entries = std::fs::read_dir(directory.path()).expect("a directory").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("a file"))).collect()
}

/// Checks a directory, and that the check changes no file of it and makes none.
fn checked(directory: &Directory) -> Report {
    let before = files_of(directory);
    let report = examine_directory(directory.path()).expect("a report");
    let after = files_of(directory);
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    assert!(after == before, "a file has other bytes than before");
    report
}

#[tokio::test]
async fn a_check_changes_no_byte_of_a_store_whose_timers_are_due_or_whose_rows_are_lost() {
    let (stopped, killed) = (Directory::new("doctor-stopped"), Directory::new("doctor-killed"));
    let long_ago = Arc::new(VirtualClock::at(Timestamp::from_micros(1_000_000_000_000_000)));
    let options = Options { clock: long_ago, ..Options::default() };
    let engine = Engine::open_with(stopped.path(), options).expect("an engine");
    populate(&engine).await;
    for file in ["abide.db", "abide.db-wal", "seal.key"] {
        std::fs::copy(stopped.path().join(file), killed.path().join(file)).expect(file);
    }
    engine.shutdown().await;
    drop(engine);
    let report = checked(&stopped);
    assert!(report.is_healthy() && report.runs == 5, "{report:#?}");
    // What a killed engine committed is in the WAL.
    let of_killed = checked(&killed);
    assert!(of_killed.is_healthy(), "{of_killed:#?}");
    assert_eq!((of_killed.runs, of_killed.events), (report.runs, report.events));
    change(&stopped, "delete from runs where workflow_id = 'parent'; delete from steps where path = 'nap'");
    let of_lost = checked(&stopped);
    assert!(of_lost.problems.iter().any(|problem| problem.what.contains("events of no run")), "{of_lost:#?}");
}

/// For root the mode of a directory means nothing; for everybody else nothing can be made in it.
#[cfg(unix)]
#[tokio::test]
async fn a_directory_that_cannot_be_written_is_checked() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = Directory::new("doctor-read only?#%");
    let engine = directory.engine();
    populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    let mode =
        |mode| std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).expect("a mode");
    mode(0o500);
    let report = checked(&directory);
    mode(0o700);
    assert!(report.is_healthy(), "{report:#?}");
}

#[tokio::test]
async fn a_store_of_an_older_schema_is_refused_with_advice_and_not_migrated() {
    let directory = Directory::new("doctor-older");
    directory.engine().shutdown().await;
    change(&directory, "pragma user_version = 11");
    let before = files_of(&directory);
    let refused = examine_directory(directory.path()).expect_err("it is older").to_string();
    assert!(refused.contains("schema 11") && refused.contains("serve it once"), "{refused}");
    assert!(files_of(&directory) == before);
}

#[tokio::test]
async fn a_store_that_an_engine_has_open_is_not_checked_from_outside() {
    let directory = Directory::new("doctor-open");
    let engine = directory.engine();
    let refused = examine_directory(directory.path()).expect_err("it is open").to_string();
    assert!(refused.contains("another process uses") && refused.contains("stop it first"), "{refused}");
    engine.shutdown().await;
}

/// Who used a link has decided.
const LINKS: &str = "
    insert into approval_links (token_hash, namespace, run_id, path, whom, groups, expires_at, used_at)
    select randomblob(32), namespace, run_id, 'ask', 'ana', '[]', 7, 7 from runs where workflow_id = 'parent';";

#[tokio::test]
async fn what_was_done_to_a_store_is_named_with_its_rule() {
    let directory = Directory::new("doctor");
    let engine = directory.engine();
    populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    change(&directory, LINKS);
    let healthy = report(&directory);
    assert!(healthy.is_healthy(), "{:#?}", healthy.problems);
    let file = directory.path().join("abide.db");
    let bytes = std::fs::read(&file).expect("the file");
    for (rule, says, tamper) in TAMPERS {
        std::fs::write(&file, &bytes).expect("the healthy file");
        let _ = std::fs::remove_file(directory.path().join("abide.db-wal"));
        change(&directory, tamper);
        let found = report(&directory).problems;
        let named = found.iter().any(|problem| problem.rule == *rule && problem.what.contains(says));
        assert!(named, "{tamper}: {found:#?}");
        // A commit, a link or an engine's time can be wrong alone.
        let alone = ["I44", "I46", "I47"].contains(rule) && !tamper.contains("drop trigger");
        assert!(!alone || found.iter().all(|problem| problem.rule == *rule), "{tamper}: {found:#?}");
    }
}

const TAMPERS: &[(&str, &str, &str)] = &[
    (
        "I3",
        "to None",
        "drop trigger run_log_never_changes;
         update run_log set events = replace(events, '\"running\",\"succeeded\"', '\"running\",null')",
    ),
    ("I8", "at attempt 9, 5 are allowed", "update steps set row = json_set(row, '$.attempt', 9) where path = 'nap'"),
    (
        "I15",
        "the lease of only was over",
        "update serving set last_at = (select max(expires_at) + 33000000 from steps)",
    ),
    ("I34", "was due at", "update serving set last_at = (select min(wake_at) + 61000000 from runs)"),
    (
        "I33",
        "in a circle",
        "update steps
         set    row = json_set(row, '$.task', null, '$.state', 'waiting', '$.block', json_object(
                    'wait', json_object('on', 'child', 'run_id', (select parent_run from runs where run_no = steps.run_no)),
                    'message', 'waits', 'since', '2026-01-01T00:00:00Z'))
         where  path = 'only' and open = 1 and run_no in (select run_no from runs where parent_run is not null)",
    ),
    (
        "I39",
        "nap did not start",
        "update run_starts set started = json_set(started, '$.parent.step_id', 'nap')
         where  run_no in (select run_no from runs where parent_run is not null)",
    ),
    (
        "I39",
        "is at depth 7, its parent at 0",
        "update run_starts set started = json_set(started, '$.depth', 7)
         where  run_no in (select run_no from runs where parent_run is not null)",
    ),
    ("I44", "mallory has not decided", "update approval_links set whom = 'mallory'"),
    ("I44", "a link about nap was used", "update approval_links set path = 'nap'"),
    ("I46", "go back in time", "update batches set at = at + 1000000 where batch = (select min(batch) from batches)"),
    (
        "I47",
        "1 rows of the log that no commit speaks of",
        "update batches set touched = x'' where batch = (select max(batch) from batches where length(touched) = 3)",
    ),
    (
        "I47",
        "leave a gap",
        "delete from batches where batch = (select min(batch) from batches where length(touched) = 3)",
    ),
    ("I47", "and no commit", "delete from batches"),
    (
        "I47",
        "cannot be read",
        "update batches set touched = x'80' where batch = (select max(batch) from batches where length(touched) = 0)",
    ),
    (
        "I47",
        "its log has others",
        "update batches set touched = cast(substr(touched, 1, 2) || x'7f' as blob)
         where  batch = (select min(batch) from batches where length(touched) = 3)",
    ),
    (
        "I47",
        "speaks twice",
        "update batches set touched = cast(touched || touched as blob)
         where  batch = (select min(batch) from batches where length(touched) = 3)",
    ),
    (
        "I47",
        "later than another",
        "create temp table swapped as select batch, touched from batches where length(touched) > 0 limit 2;
         update batches set touched = (select touched from swapped where swapped.batch <> batches.batch)
         where  batch in (select batch from swapped)",
    ),
    (
        "I47",
        "which has no event",
        "drop trigger run_log_stays; delete from run_log where entry_no = (select max(entry_no) from run_log)",
    ),
];

/// A commit that nobody keeps any more is no gap.
#[tokio::test]
async fn commits_that_were_forgotten_are_not_missed() {
    let directory = Directory::new("doctor-forgotten");
    let engine = directory.engine();
    populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    change(&directory, "delete from batches where batch < (select max(batch) from batches where length(touched) > 0)");
    assert!(report(&directory).is_healthy(), "{:#?}", report(&directory).problems);
    let text = "delete from batches where batch < (select max(batch) from batches)";
    change(&directory, text);
    assert!(report(&directory).is_healthy(), "{:#?}", report(&directory).problems);
}

/// Many commits are read in pieces.
#[tokio::test]
async fn nothing_is_missed_between_two_pieces_of_the_commits() {
    let directory = Directory::new("doctor-pieces");
    let engine = directory.engine();
    populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    let look = |about| {
        let (mut found, mut next, mut pieces) = (Vec::new(), Some(0), 0);
        while let Some(from) = next {
            let (more, after) = broken_commits(&db, from, about).expect("a piece");
            (found, next, pieces) = ([found, more].concat(), after, pieces + 1);
        }
        (found, pieces)
    };
    let text = "select batch from batches where length(touched) > 0 order by batch";
    let mut statement = db.prepare(text).expect("the commits");
    let touching: Vec<i64> = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).expect("numbers");
    for about in 1..6 {
        let (found, pieces) = look(about);
        assert!(found.is_empty() && pieces > 1, "{about}: {pieces} pieces, {found:?}");
        // The first one may have been forgotten.
        for batch in &touching[1..] {
            let forget = format!("begin; update batches set touched = x'' where batch = {batch}");
            db.execute_batch(&forget).expect("forgotten");
            let (found, _) = look(about);
            db.execute_batch("rollback").expect("as it was");
            assert_eq!(found.len(), 1, "{about}, {batch}: {found:?}");
            assert!(found[0].contains("that no commit speaks of"), "{found:?}");
        }
    }
}

/// Whoever started a run may be in the archive before it.
#[tokio::test]
async fn children_are_known_to_a_parent_in_the_archive() {
    let directory = Directory::new("doctor-archived-parent");
    let retention = abide_engine::archive::Retention::default()
        .with(abide_core::contract::RunState::Canceled, abide_core::time::Span::from_millis(1));
    let options = abide_engine::Options { retention, ..abide_engine::Options::default() };
    let engine = Engine::open_with(directory.path(), options).expect("an engine");
    engine.register(SMALL).await.expect("a document");
    engine.register(PARENT).await.expect("a document");
    let parent = engine.start("parent", json!({})).await.expect("a run").run_id;
    let task = loop {
        if let Some(task) = engine.claim(claim("w1", &["tiny"], 1)).await.expect("a claim").pop() {
            break task;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    };
    engine.complete(&task, "w1", None).await.expect("completed");
    let cancel = abide_core::run::command::Ask::Cancel { reason: "no".into(), undo: None, grace: None };
    engine.command(&parent, Command::new(Actor::user("ben"), cancel)).await.expect("canceled");
    while engine.archive().await.expect("archived") == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    engine.shutdown().await;
    drop(engine);
    let healthy = report(&directory);
    assert!(healthy.is_healthy(), "{:#?}", healthy.problems);
    assert_eq!((healthy.runs, healthy.archived), (1, 1));
    change(&directory, "update run_starts set started = json_set(started, '$.parent.step_id', 'nap')");
    let found = report(&directory).problems;
    let named = |rule, says| {
        found.iter().any(|problem| {
            problem.rule == rule
                && problem.run.as_ref().is_some_and(|run| run.run_id == parent)
                && problem.what.contains(says)
        })
    };
    assert!(named("I39", "nap did not start"), "{found:#?}");
}

#[tokio::test]
async fn a_child_in_the_archive_has_a_parent_that_knows_it() {
    let directory = Directory::new("doctor-archived-child");
    let retention = abide_engine::archive::Retention::default()
        .with(abide_core::contract::RunState::Succeeded, abide_core::time::Span::from_millis(1));
    let options = abide_engine::Options { retention, ..abide_engine::Options::default() };
    let engine = Engine::open_with(directory.path(), options).expect("an engine");
    populate(&engine).await;
    let task = loop {
        if let Some(task) = engine.claim(claim("w1", &["tiny"], 1)).await.expect("a claim").pop() {
            break task;
        }
        engine.start("parent", json!({})).await.expect("a run");
    };
    engine.complete(&task, "w1", None).await.expect("completed");
    let mut archived = 0;
    while archived < 2 {
        archived += engine.archive().await.expect("archived");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    engine.shutdown().await;
    drop(engine);
    let healthy = report(&directory);
    assert!(healthy.is_healthy(), "{:#?}", healthy.problems);
    assert_eq!(healthy.archived, 2);
    let file = directory.path().join("abide.db");
    let bytes = std::fs::read(&file).expect("the file");
    for (says, tamper) in [
        ("is not there", "update runs set run_id = 'run_other' || run_no"),
        ("its parent at 3", "update run_starts set started = json_set(started, '$.depth', 3)"),
        (
            "child did not start",
            "drop trigger run_log_stays; delete from run_log; update steps set row = json_remove(row, '$.child')",
        ),
    ] {
        std::fs::write(&file, &bytes).expect("the healthy file");
        let _ = std::fs::remove_file(directory.path().join("abide.db-wal"));
        change(&directory, tamper);
        let report = report(&directory);
        let of_child = |run: &abide_engine::store::RunKey| run.run_id == task.run_id;
        let named = report.problems.iter().any(|problem| {
            problem.rule == "I39" && problem.what.contains(says) && problem.run.as_ref().is_some_and(of_child)
        });
        assert!(named, "{tamper}: {:#?}", report.problems);
    }
}

/// Each question is read in a snapshot of its own, and runs start, end and leave for the archive between any two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_found_beside_an_engine_that_works() {
    let directory = Directory::new("doctor-beside");
    let soon = abide_core::time::Span::from_millis(1);
    let retention = abide_engine::archive::Retention::default()
        .with(abide_core::contract::RunState::Succeeded, soon)
        .with(abide_core::contract::RunState::Canceled, soon);
    let options = abide_engine::Options { retention, ..abide_engine::Options::default() };
    let engine = Engine::open_with(directory.path(), options).expect("an engine");
    populate(&engine).await;
    let load = {
        let engine = engine.clone();
        tokio::spawn(async move {
            for n in 0..150 {
                let run = engine.start("parent", json!({})).await.expect("a run").run_id;
                for task in engine.claim(claim("w1", &["tiny"], 4)).await.expect("a claim") {
                    engine.complete(&task, "w1", None).await.expect("completed");
                }
                if n % 2 == 0 {
                    engine.cancel(&run, "no").await.expect("canceled");
                }
                engine.archive().await.expect("archived");
            }
        })
    };
    let (mut looked, mut archived) = (0, 0);
    while !load.is_finished() || looked < 3 {
        let report = engine.doctor().await.expect("a report");
        assert!(report.is_healthy(), "{:#?}", report.problems);
        (looked, archived) = (looked + 1, report.archived);
    }
    load.await.expect("load");
    assert!(archived > 50, "{archived} archived, {looked} times looked at");
}
