//! Keeping: the checker, rebuilding, backups, the archive, and what the database itself refuses.

use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::ids::{Digest, RunId};
use abide_core::run::OriginKind;
use abide_core::run::command::{Actor, Ask, Command};
use abide_core::time::{Span, Timestamp};
use abide_engine::archive::Retention;
use abide_engine::clock::{Clock as _, VirtualClock};
use abide_engine::doctor;
use abide_engine::request::{Idempotency, Rerun, RerunVersion};
use abide_engine::store::sqlite::Files;
use abide_engine::store::sqlite::rebuild::{self, Rebuilt};
use abide_engine::{Answer, Engine, Filter, NewRun, Options, Request, What};
use rusqlite::types::Value;
use rusqlite::{Connection, params};
use serde_json::json;

use crate::Directory;
use crate::runs::claim;

const MIXED: &str = "
workflow: mixed
saga: true
steps:
  - { id: charge, task: pay, effect: external, compensate: refund, reconcile: find }
  - { id: reserve, task: stock, for_each: 'input.items', with: { sku: '${{ item }}' }, after: [] }
  - { id: login, task: drive, after: [] }
  - { id: ask, after: [], approval: { title: 'ok?', approvers: [ana], deadline: 1h } }
  - { id: nap, after: [], sleep: 10m }
  - { id: child, after: [], child: small, with: { n: 1 } }
";
const SMALL: &str = "workflow: small\nsteps:\n  - { id: only, task: tiny }\n";

/// Runs in all kinds of states.
pub async fn populate(engine: &Engine) -> Vec<RunId> {
    engine.register(SMALL).await.expect("a document");
    engine.register(MIXED).await.expect("a document");
    let mut runs = Vec::new();
    for n in 0..6 {
        let mut new = NewRun::of("mixed", json!({ "items": ["a", "b", "c"] }).to_string(), Actor::user("ben"));
        new.start.labels.insert("n".into(), n.to_string());
        new.start.owner_id = Some(format!("owner {n}"));
        new.start.data_region = Some("eu".into());
        new.start.unique = Some(format!("order {n}"));
        runs.push(engine.start_run(new).await.expect("a run").run_id);
    }
    for n in 0..40_u32 {
        let all = &["pay", "stock", "drive", "tiny", "refund", "find"];
        let Some(task) = engine.claim(claim("w1", all, 1)).await.expect("a claim").pop() else { break };
        let ask = |holding| match (task.handler.as_str(), n % 7) {
            ("drive", _) => Ask::Block {
                holding,
                on: abide_core::run::command::BlockOn::Auth { tool: "drive".into(), account: None },
                message: None,
            },
            ("pay", 3) => Ask::Fail {
                holding,
                fault: abide_core::run::command::Fault {
                    class: Some(abide_core::contract::FailureClass::Fatal),
                    message: "no funds".into(),
                    ..Default::default()
                },
            },
            _ => Ask::Complete {
                holding,
                report: abide_core::run::command::Report { output: Some("{\"ok\":1}".into()), ..Default::default() },
            },
        };
        engine.report(&task, "w1", ask).await.expect("reported");
    }
    engine.cancel(&runs[0], "not wanted").await.expect("canceled");
    engine.decide(&runs[1], "ana", true).await.expect("approved");
    let pause = Command::new(Actor::user("ops"), Ask::Pause { reason: "look".into() });
    engine.command(&runs[2], pause).await.expect("paused");
    runs
}

#[tokio::test]
async fn the_doctor_finds_nothing_in_a_healthy_store() {
    let directory = Directory::new("healthy");
    let engine = directory.engine();
    populate(&engine).await;
    let report = engine.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{:#?}", report.problems);
    assert!(report.runs >= 12 && report.events > 100 && report.payloads > 20, "{report:?}");
}

#[tokio::test]
async fn the_doctor_finds_what_was_tampered_with() {
    let directory = Directory::new("tampered");
    let engine = directory.engine();
    populate(&engine).await;
    rerun_of_a_canceled_run(&engine).await;
    engine.shutdown().await;
    drop(engine);
    let tampers = [
        ("I1", "update runs set head = replace(head, '\"attempt\":1', '\"attempt\":2') where run_no = 2"),
        ("I1", "update runs set state = 'running' where run_no = 3"),
        ("I1", "update runs set run_id = 'run_other' where run_no = 3"),
        ("I1", "update steps set row = json_set(row, '$.granted', 7) where path = 'nap'"),
        ("I1", "delete from steps where path = 'nap'"),
        ("I1", "update steps set state = 'failed' where path = 'nap'"),
        ("I1", "update steps set open = 0 where path = 'nap'"),
        ("I1", "update runs set owner_id = 'mallory' where run_no = 3"),
        ("I1", "update runs set data_region = 'moon' where run_no = 3"),
        ("I1", "update runs set unique_value = null where run_no = 3"),
        ("I1", "delete from run_starts where run_no = 3"),
        ("I1", "insert into run_labels (namespace, name, value, run_no) values ('default', 'n', '99', 3)"),
        ("I1", "update ready_tasks set run_id = 'run_other'"),
        (
            "I1",
            "insert into ready_tasks select namespace, 'other', handler, rank, issued_at, run_no, path, run_id, body from ready_tasks",
        ),
        ("I1", "drop trigger run_log_stays"),
        (
            "I1",
            "insert into late_answers (run_no, path, n, worker, epoch, v, output, at) values (999, 'nap', 0, 'w', 1, 1, x'31', 7)",
        ),
        (
            "I1",
            "insert into idempotency_keys (namespace, key, digest, answer, at)
             values ('default', 'k', zeroblob(32), '{\"run_id\":\"run_gone\"}', 7)",
        ),
        ("I32", "delete from run_labels"),
        ("I32", "insert into callbacks (token_hash, run_no, path) values (zeroblob(32), 3, 'nap')"),
        ("I32", "delete from approvals"),
        ("I32", "delete from connection_waits"),
        ("I34", "update runs set wake_at = null"),
        ("I10", "update payloads set bytes = x'6e756c6c20' where run_no = 2 and name = 'input'"),
        ("I10", "delete from payloads where run_no = 2 and name = 'input'"),
        ("I12", "update definitions set hash = zeroblob(32)"),
        ("I12", "update definitions set document = replace(document, 'tiny', 'huge')"),
        ("I12", "update definitions set document = 'no document' where workflow_id = 'small'"),
        ("I39", "delete from runs where run_id in (select parent_run from runs)"),
        ("I42", "delete from runs where run_id in (select origin_run from runs)"),
        (
            "I45",
            "insert into connections (namespace, tool, account, generation, reconnected_at, broken)
             select distinct namespace, tool, account, 1, 4102444800000000, 0 from connection_waits where true
             on conflict do update set reconnected_at = excluded.reconnected_at",
        ),
        (
            "I7",
            "drop trigger run_log_never_changes; update run_log set events = json_set(events, '$[0][4]', 'mallory') where run_no = 2 and seq = 1",
        ),
        (
            "I2",
            "drop trigger run_log_stays; delete from run_log where seq = (select min(seq) from run_log as next where next.run_no = run_log.run_no and next.seq > 1)",
        ),
        ("I1", "insert into archiving values (2)"),
    ];
    let healthy = std::fs::read(directory.path().join("abide.db")).expect("the file");
    for (rule, tamper) in tampers {
        std::fs::write(directory.path().join("abide.db"), &healthy).expect("the healthy file");
        let _ = std::fs::remove_file(directory.path().join("abide.db-wal"));
        Connection::open(directory.path().join("abide.db")).and_then(|db| db.execute_batch(tamper)).expect(tamper);
        let engine = directory.engine();
        let report = engine.doctor().await.expect("a report");
        let found = report.problems.iter().any(|problem| problem.rule == rule);
        assert!(found, "{tamper}: {:#?}", report.problems);
        engine.shutdown().await;
    }
}

#[tokio::test]
async fn rebuilt_rows_are_byte_for_byte_the_same() {
    let directory = Directory::new("rebuild");
    let engine = directory.engine();
    populate(&engine).await;
    // One that has just begun: nothing has been due in it before what is due next.
    let begun = engine.start("mixed", json!({ "items": [] })).await.expect("a run").run_id;
    engine.shutdown().await;
    drop(engine);
    let before = dump(&directory);
    let files = Files::lock(directory.path()).expect("the lock");
    let all = rebuild::rebuild(&files).expect("rebuilt").runs;
    assert!(all >= 12);
    drop(files);
    assert_eq!(before, dump(&directory));
    // Also runs whose row was lost, or has the name of another.
    let lost = format!(
        "delete from runs where ended_at is not null or run_id = '{begun}'; delete from run_starts where run_no % 2 = 0;
         delete from run_labels; update runs set run_id = 'run_other', namespace = 'other' where run_no = 1;"
    );
    Connection::open(directory.path().join("abide.db")).and_then(|db| db.execute_batch(&lost)).expect("lost");
    let files = Files::lock(directory.path()).expect("the lock");
    assert_eq!(rebuild::rebuild(&files).expect("rebuilt"), Rebuilt { runs: all, skipped: Vec::new() });
    drop(files);
    assert_eq!(before, dump(&directory));
    // Also when the rows were lost or wrong.
    let damage = "
        update runs set unique_value = null;
        update runs
        set    head = '{}', state = 'queued', bucket = 'active', seq = 1, step_id = 'x', reason = 'x', failure_kind = 'x',
               workflow_id = 'x', workflow_version = 7, owner_id = 'x', data_region = 'x', parent_run = 'x', origin_run = 'x',
               created_at = 7, updated_at = 7, ended_at = 7, pinned = 1;
        update runs set unique_value = 'order 5', ended_at = null where run_no = 1;
        update run_starts set started = '{}';
        update run_labels set value = 'x' where value = '3';
        update steps set state = 'x', open = 0, row = '{}' where path like 'reserve%';
        insert into callbacks (token_hash, run_no, path) values (zeroblob(32), 3, 'nap');
        delete from steps where path = 'nap'; delete from ready_tasks; delete from approvals; delete from connection_waits;";
    Connection::open(directory.path().join("abide.db")).and_then(|db| db.execute_batch(damage)).expect("damage");
    let files = Files::lock(directory.path()).expect("the lock");
    rebuild::rebuild(&files).expect("rebuilt");
    drop(files);
    assert_eq!(before, dump(&directory));
    let report = directory.engine().doctor().await.expect("a report");
    assert!(report.is_healthy(), "{:#?}", report.problems);
}

#[tokio::test]
async fn rows_are_made_again_when_whole_tables_are_gone() {
    let directory = Directory::new("rebuild-tables");
    let engine = directory.engine();
    populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    let healthy = std::fs::read(directory.path().join("abide.db")).expect("the file");
    let runs = doctor::examine_directory(directory.path()).expect("a report").runs;
    let rows =
        ["runs", "steps", "run_starts", "run_labels", "ready_tasks", "connection_waits", "approvals", "callbacks"];
    let each = rows.iter().map(std::slice::from_ref);
    for tables in each.chain([&rows[..]]) {
        std::fs::write(directory.path().join("abide.db"), &healthy).expect("the healthy file");
        let text: String = tables.iter().map(|table| format!("drop table {table};")).collect();
        Connection::open(directory.path().join("abide.db")).and_then(|db| db.execute_batch(&text)).expect(&text);
        let found = doctor::examine_directory(directory.path()).expect("a report").problems;
        let says = format!("the table {} is missing", tables[0]);
        assert!(found.iter().any(|problem| problem.what == says), "{text} {found:#?}");
        let files = Files::lock(directory.path()).expect("the lock");
        assert_eq!(rebuild::rebuild(&files).expect(&text), Rebuilt { runs, skipped: Vec::new() });
        drop(files);
        let report = doctor::examine_directory(directory.path()).expect("a report");
        assert!(report.is_healthy() && report.runs == runs, "{text} {report:#?}");
    }
    Connection::open(directory.path().join("abide.db"))
        .and_then(|db| db.execute_batch("drop table run_log"))
        .expect("dropped");
    let before = dump(&directory);
    let files = Files::lock(directory.path()).expect("the lock");
    let refused = rebuild::rebuild(&files).expect_err("there is nothing to make rows from").to_string();
    assert!(refused.contains("restore a backup"), "{refused}");
    drop(files);
    assert_eq!(before, dump(&directory), "and the rows that are left are left");
}

const BEGINNING: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// A store of which rows were lost, and a clock for engines on it.
async fn damaged(name: &str, lose: impl FnOnce(&[RunId]) -> String) -> (Directory, VirtualClock, Vec<RunId>) {
    let (directory, clock) = (Directory::new(name), VirtualClock::at(BEGINNING));
    let engine = engine_at(&directory, &clock);
    let runs = populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    let text = lose(&runs);
    Connection::open(directory.path().join("abide.db")).and_then(|db| db.execute_batch(&text)).expect(&text);
    (directory, clock, runs)
}

fn engine_at(directory: &Directory, clock: &VirtualClock) -> Engine {
    let options = Options { clock: Arc::new(clock.clone()), ..Options::default() };
    Engine::open_with(directory.path(), options).expect("an engine")
}

/// Two hours in which timers and deadlines pass, workers work and people decide.
async fn serve(engine: &Engine, clock: &VirtualClock, runs: &[RunId]) {
    let by_ben = |ask| Command::new(Actor::user("ben"), ask);
    for n in 0..60 {
        clock.set(clock.now() + Span::from_secs(120));
        let tasks = engine.claim(claim("w1", &["pay", "stock", "drive", "tiny"], 2)).await.unwrap_or_default();
        for task in tasks {
            let _ = engine.complete(&task, "w1", Some("{\"ok\":1}".into())).await;
        }
        // What is asked of a run that is lost is refused.
        if n == 20 {
            let _ = engine.command(&runs[2], by_ben(Ask::Resume { one_step: false })).await;
            let _ = engine.decide(&runs[3], "ana", true).await;
            let _ = engine.cancel(&runs[4], "not wanted").await;
        }
    }
}

fn rebuilt(directory: &Directory) -> (Rebuilt, doctor::Report) {
    let files = Files::lock(directory.path()).expect("the lock");
    let done = rebuild::rebuild(&files).expect("rebuilt");
    drop(files);
    (done, doctor::examine_directory(directory.path()).expect("a report"))
}

#[tokio::test]
async fn lost_runs_are_made_again_after_an_engine_served_without_them() {
    let lose = |runs: &[RunId]| {
        format!(
            "delete from runs where run_id in ('{}', '{}') or parent_run in ('{}', '{}');
             delete from steps where path = 'nap'; delete from ready_tasks;",
            runs[3], runs[4], runs[3], runs[4]
        )
    };
    let (directory, clock, runs) = damaged("rebuild-served", lose).await;
    let engine = engine_at(&directory, &clock);
    serve(&engine, &clock, &runs).await;
    assert!(engine.run(&runs[3]).await.is_err(), "it is not there");
    engine.shutdown().await;
    drop(engine);
    let (done, report) = rebuilt(&directory);
    assert_eq!(done.skipped, Vec::<String>::new());
    assert!(report.is_healthy() && report.runs == 12, "{report:#?}");
    // What was due meanwhile is done by the next engine.
    let engine = engine_at(&directory, &clock);
    serve(&engine, &clock, &runs).await;
    let report = engine.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{report:#?}");
    engine.shutdown().await;
}

/// What was decided without the rows stands in the logs, and logs never change: the checker names those runs.
#[tokio::test]
async fn rows_of_steps_are_made_again_after_an_engine_served_without_any() {
    let (directory, clock, runs) = damaged("rebuild-stepless", |_| "delete from steps".into()).await;
    let engine = engine_at(&directory, &clock);
    serve(&engine, &clock, &runs).await;
    engine.shutdown().await;
    drop(engine);
    let (done, report) = rebuilt(&directory);
    assert_eq!(done, Rebuilt { runs: 12, skipped: Vec::new() });
    let by_rules = report.problems.iter().all(|problem| ["I3", "I5"].contains(&problem.rule) && problem.run.is_some());
    assert!(by_rules && report.problems.len() < 12, "{report:#?}");
}

/// Who started a run while another one was lost may have given it the same name, or the same unique value.
#[tokio::test]
async fn a_lost_run_whose_name_was_taken_is_skipped_and_the_others_are_made_again() {
    let (directory, clock, runs) = damaged("rebuild-taken", |_| "delete from runs".into()).await;
    let engine = engine_at(&directory, &clock);
    let named = NewRun { run_id: Some(runs[4].clone()), ..NewRun::of("small", "{}", Actor::user("ben")) };
    engine.start_run(named).await.expect("the name is free");
    let mut unique = NewRun::of("mixed", json!({ "items": [] }).to_string(), Actor::user("ben"));
    unique.start.unique = Some("order 3".into());
    let second = engine.start_run(unique).await.expect("so is the value").run_id;
    engine.shutdown().await;
    drop(engine);
    let (done, report) = rebuilt(&directory);
    assert_eq!((done.runs, done.skipped.len()), (14, 1), "{done:#?}");
    assert!(done.skipped[0].contains(&format!("{} is the name of another run now", runs[4])), "{done:#?}");
    let of_both = report.problems.iter().filter(|problem| problem.run.as_ref().is_some_and(|run| run.run_id == second));
    assert!(of_both.count() == 1 && report.runs == 14, "the value is held by the older one: {report:#?}");
    let engine = engine_at(&directory, &clock);
    for run in &runs {
        engine.run(run).await.expect("it is there");
    }
    engine.shutdown().await;
}

/// What grew would push its neighbours off their page.
#[tokio::test]
async fn rows_keep_their_size_while_a_task_is_claimed_and_completed() {
    let directory = Directory::new("room");
    let engine = directory.engine();
    engine.register(SMALL).await.expect("a document");
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    let sizes = || {
        let of = |table: &str| {
            let text = "select sum(payload) from dbstat where name = ?1 and pagetype = 'leaf'";
            db.query_row(text, [table], |row| row.get::<_, i64>(0)).expect(table)
        };
        (of("runs"), of("steps"))
    };
    engine.start("small", json!({ "n": 1 })).await.expect("a run");
    let queued = sizes();
    let task = engine.claim(claim("w1", &["tiny"], 1)).await.expect("a claim").pop().expect("a task");
    assert_eq!(sizes(), queued, "claimed");
    let told = engine.complete(&task, "w1", Some("{\"ok\":true}".into())).await.expect("completed");
    assert_eq!(told.state, RunState::Succeeded);
    assert_eq!(sizes(), queued, "completed");
}

/// Every row that is folded from the log, with all its columns; where it lies does not count.
fn dump(directory: &Directory) -> Vec<String> {
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    let mut rows = Vec::new();
    for text in [
        "select * from runs",
        "select * from run_starts",
        "select * from run_labels",
        "select run_no, path, state, open, row, expires_at, last_heartbeat_at, progress from steps",
        "select * from ready_tasks",
        "select * from connection_waits",
        "select * from approvals",
        "select * from callbacks",
    ] {
        let mut statement = db.prepare(text).expect(text);
        let columns = statement.column_count();
        let found = statement.query_map([], |row| {
            (0..columns)
                .map(|at| row.get::<_, Value>(at).map(|value| format!("{value:?}")))
                .collect::<Result<Vec<_>, _>>()
        });
        let mut found: Vec<String> =
            found.expect(text).map(|row| format!("{text}: {}", row.expect(text).join(", "))).collect();
        found.sort();
        rows.extend(found);
    }
    rows
}

/// A reconnect marks those who wait for it, and tells them in its own time.
#[tokio::test]
async fn rebuilt_rows_know_who_has_not_heard_of_a_reconnect() {
    let directory = Directory::new("rebuild-released");
    let engine = directory.engine();
    populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    let reconnect = "
        insert into connections (namespace, tool, account, generation, reconnected_at, broken)
        select distinct namespace, tool, account, 1, (select max(updated_at) from runs) + 1, 0
        from   connection_waits where true
        on conflict do update set reconnected_at = excluded.reconnected_at;
        update connection_waits set released = 1;";
    Connection::open(directory.path().join("abide.db"))
        .and_then(|db| db.execute_batch(reconnect))
        .expect("reconnected");
    let before = dump(&directory);
    assert!(before.iter().any(|row| row.starts_with("select * from connection_waits")), "somebody waits");
    let files = Files::lock(directory.path()).expect("the lock");
    rebuild::rebuild(&files).expect("rebuilt");
    drop(files);
    assert_eq!(before, dump(&directory));
    let engine = directory.engine();
    let on_drive = Filter { connection: Some(("drive".into(), None)), ..Filter::default() };
    while !engine.list(on_drive.clone(), None, 100).await.expect("a page").runs.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let report = engine.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{:#?}", report.problems);
}

async fn rerun_of_a_canceled_run(engine: &Engine) {
    let run_id = engine.start("small", json!({})).await.expect("a run").run_id;
    engine.cancel(&run_id, "not wanted").await.expect("canceled");
    let rerun = Rerun {
        run_id,
        kind: OriginKind::Rerun,
        from_step: None,
        version: RerunVersion::Same,
        input: None,
        actor: Actor::user("ben"),
    };
    engine.asking(What::Rerun(Box::new(rerun))).await.expect("a run");
}

#[tokio::test]
async fn a_backup_under_load_is_a_healthy_store() {
    let directory = Directory::new("backup");
    let copy = Directory::new("backup-copy");
    let engine = directory.engine();
    let runs = populate(&engine).await;
    let load = {
        let engine = engine.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                engine.start("small", json!({})).await.expect("a run");
            }
        })
    };
    engine.backup(copy.path().join("data")).await.expect("a backup");
    assert!(engine.backup(copy.path().join("data")).await.is_err(), "a backup is never overwritten");
    load.await.expect("load");
    let restored = Engine::open(copy.path().join("data")).expect("the copy opens");
    let report = restored.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{:#?}", report.problems);
    assert_eq!(restored.run(&runs[3]).await.expect("a record").run_id, runs[3]);
}

#[tokio::test]
async fn events_cannot_be_changed_or_deleted_in_the_database() {
    let directory = Directory::new("append");
    let engine = directory.engine();
    populate(&engine).await;
    engine.shutdown().await;
    drop(engine);
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    for text in [
        "update run_log set events = '[]'",
        "delete from run_log",
        "delete from run_log where seq = 1",
        "delete from run_events",
    ] {
        let refused = db.execute(text, []).expect_err(text);
        assert!(refused.to_string().contains("events"), "{refused}");
    }
}

#[tokio::test]
async fn old_runs_move_to_the_archive_and_pinned_ones_stay() {
    let directory = Directory::new("archive");
    let clock = VirtualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let day = Span::from_secs(86_400);
    let options = Options {
        clock: Arc::new(clock.clone()),
        retention: Retention::default().with(RunState::Succeeded, day),
        ..Options::default()
    };
    let engine = Engine::open_with(directory.path(), options).expect("an engine");
    engine.register(SMALL).await.expect("a document");
    let mut runs = Vec::new();
    for _ in 0..3 {
        let run = engine.start("small", json!({ "n": 1 })).await.expect("a run").run_id;
        let task = engine.claim(claim("w1", &["tiny"], 1)).await.expect("a claim").remove(0);
        engine.complete(&task, "w1", Some("{\"n\":2}".into())).await.expect("completed");
        runs.push(run);
    }
    let open = engine.start("small", json!({})).await.expect("a run").run_id;
    let pin = Command::new(Actor::user("ops"), Ask::Pin { pinned: true });
    engine.command(&runs[1], pin).await.expect("pinned");
    let before = engine.run(&runs[0]).await.expect("a record");
    assert_eq!(engine.archive().await.expect("nothing is old"), 0);

    clock.set(Timestamp::from_micros(1_800_000_000_000_000) + day + day);
    assert_eq!(engine.archive().await.expect("two are"), 2);
    let after = engine.run(&runs[0]).await.expect("still readable by id");
    assert_eq!((after.state, after.as_of_seq, after.ended_at), (before.state, before.as_of_seq, before.ended_at));
    let bundle = engine.archived(&runs[0]).await.expect("a bundle");
    assert_eq!(bundle.payload(&"only/output".into()).as_deref(), Some("{\"n\":2}"));
    assert!(engine.archived(&runs[1]).await.is_err(), "a pinned run stays");
    assert!(engine.run(&open).await.is_ok());
    let report = engine.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{:#?}", report.problems);
    assert_eq!((report.runs, report.archived), (2, 2));
    // An archived run cannot be started again under its name, nor changed.
    let again = NewRun { run_id: Some(runs[0].clone()), ..NewRun::of("small", "{}", Actor::user("ben")) };
    assert!(engine.start_run(again).await.is_err());
}

#[tokio::test]
async fn the_key_of_an_archived_run_still_answers_with_it() {
    let directory = Directory::new("archived-key");
    let retention = Retention::default().with(RunState::Canceled, Span::from_millis(1));
    let engine = Engine::open_with(directory.path(), Options { retention, ..Options::default() }).expect("an engine");
    engine.register(SMALL).await.expect("a document");
    let ask = || {
        let idempotency = Some(Idempotency::new("k", Digest::of(b"the same")));
        let new = NewRun::of("small", "{}", Actor::user("ben"));
        engine.ask(Request { namespace: engine.namespace().clone(), idempotency, what: What::Start(Box::new(new)) })
    };
    let Answer::Run(first) = ask().await.expect("a run") else { panic!("a run") };
    let ended = engine.cancel(&first.run_id, "no").await.expect("canceled");
    while engine.archive().await.expect("archived") == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let Answer::Run(again) = ask().await.expect("the same run") else { panic!("a run") };
    assert_eq!((again.run_id, again.state, again.seq), (first.run_id.clone(), RunState::Canceled, ended.seq));
    assert!(again.replayed);
    let refused = engine.cancel(&first.run_id, "again").await.expect_err("it has ended");
    assert_eq!(refused.code(), "run-terminal");
}

#[tokio::test]
async fn a_second_engine_on_the_same_directory_is_refused() {
    let directory = Directory::new("lock");
    let engine = directory.engine();
    let refused = Engine::open(directory.path()).expect_err("only one");
    assert!(refused.to_string().contains("another process uses"), "{refused}");
    engine.shutdown().await;
    drop(engine);
    directory.engine();
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let directory = Directory::new("newer");
    drop(directory.engine());
    let db = Connection::open(directory.path().join("abide.db")).expect("the file");
    db.pragma_update(None, "user_version", 99).expect("a newer schema");
    drop(db);
    let refused = Engine::open(directory.path()).expect_err("too new");
    assert!(refused.to_string().contains("newer program"), "{refused}");
}

/// Takes the log back to what it was before its third migration: a row for each event.
const BEFORE_003: &str = "
    insert into run_events (run_no, seq, v, at, actor_type, actor_id, cause, layer, kind, from_state, to_state, step_id,
                            attempt, payload, evidence, hash)
    select run_no, seq, v, new_events.at, actor_type, actor_id, cause, layer, kind, from_state, to_state, step_id,
           attempt, payload, nullif(evidence, '[]'), unhex(hashes.hash)
    from   new_events join hashes using (run_no, seq)
           join (select run_no, seq as entry, entry_no from run_log) using (run_no, entry)
    order  by entry_no, seq;
    drop view new_events;
    drop table run_log;
    update runs set head = json_set(head, '$.run_id', run_id, '$.namespace', namespace, '$.seq', seq, '$.state', state,
                                    '$.updated_at', '2026-11-16T02:38:00.000000Z', '$.ended_at', null, '$.pinned', true);
    pragma user_version = 2;";

#[tokio::test]
async fn a_log_with_a_row_for_each_event_is_taken_over() {
    let directory = Directory::new("taken-over");
    let engine = directory.engine();
    let runs = populate(&engine).await;
    let before = engine.events(&runs[1], 0, 1_000).await.expect("events");
    let mut hashes = Vec::new();
    for run in engine.list(Filter::default(), None, 200).await.expect("runs").runs {
        let events = engine.events(&run.run_id, 0, 1_000).await.expect("events");
        hashes.extend(events.into_iter().map(|event| (run.run_id.clone(), event.seq, event.hash)));
    }
    engine.shutdown().await;
    drop(engine);
    let file = directory.path().join("abide.db");
    let old = Connection::open_in_memory().expect("a database");
    old.execute_batch(include_str!("../../src/store/sqlite/migrations/001_runs.sql")).expect("the first schema");
    let text = "
        select sql from sqlite_master where tbl_name in ('run_events', 'insights') and sql is not null
        order  by type = 'table' desc";
    let mut statement = old.prepare(text).expect("the old tables");
    let made: Vec<String> = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).expect("its text");
    let db = Connection::open(&file).expect("the file");
    let view: String = db
        .query_row("select sql from sqlite_master where name = 'run_events'", [], |row| row.get(0))
        .expect("the view");
    let renamed = view.replace("run_events", "new_events");
    db.execute_batch("create temp table hashes (run_no integer, seq integer, hash text)").expect("a table");
    for (run_id, seq, hash) in &hashes {
        let values = params![run_id.as_str(), *seq as i64, hash.to_string()];
        db.execute("insert into hashes select run_no, ?2, ?3 from runs where run_id = ?1", values).expect("a hash");
    }
    let script = format!(
        "{renamed}; drop view run_events; drop table insights; drop index runs_by_reason;
         drop index idempotency_keys_by_age; drop index workers_by_age; drop index runs_by_failure;
         drop index runs_by_region; drop index approvals_by_urgency; {}; {BEFORE_003}",
        made.join("; ")
    );
    db.execute_batch(&script).expect("the old schema");
    drop(db);
    let engine = directory.engine();
    let report = engine.doctor().await.expect("a report");
    assert!(report.is_healthy(), "{:#?}", report.problems);
    let after = engine.events(&runs[1], 0, 1_000).await.expect("events");
    assert_eq!(serde_json::to_string(&before).expect("json"), serde_json::to_string(&after).expect("json"));
    assert!(after.len() > 10, "{after:#?}");
}
