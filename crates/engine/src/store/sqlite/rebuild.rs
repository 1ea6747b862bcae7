//! Making the rows again from the logs. What heartbeats moved is kept where it is known; it is in no log.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_core::ids::Namespace;
use abide_core::run::event::Fact;
use abide_core::run::step::{Live, Step};
use abide_core::run::{Started, Working, replay, wake_at};
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, params};

use super::super::{RunKey, RunNo, StepWrite, StoreError, Stored, rows};
use super::check::Standing;
use super::schema::{self, Part};
use super::{Files, check, corrupt, read, room, write};

/// What a rebuild made, and what it could not make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    pub runs: u64,
    /// Runs that keep the rows they have, if any, each with the reason.
    pub skipped: Vec<String>,
}

/// Folds every log and writes the rows that come out, also into tables that were lost. A run whose log cannot be folded is
/// skipped; all the others are written in one transaction.
pub fn rebuild(files: &Files) -> Stored<Rebuilt> {
    let mut db = files.writer()?;
    let tx = db.transaction()?;
    restore_schema(&tx)?;
    let mut done = Rebuilt { runs: 0, skipped: name_the_lost(&tx)? };
    let mut after = 0;
    loop {
        let numbers = check::run_numbers(&tx, after, 64)?;
        let Some(last) = numbers.last() else { break };
        after = *last;
        for no in numbers {
            match whole_or_not(&tx, || rebuild_run(&tx, no)) {
                Ok(()) => done.runs += 1,
                Err(StoreError::Corrupt(why)) => done.skipped.push(format!("run {no}: {why}")),
                Err(error) => return Err(error),
            }
        }
    }
    // No engine has served runs that were lost: what was due in them meanwhile was not left by it.
    tx.execute("update serving set since = last_at", [])?;
    tx.commit()?;
    Ok(done)
}

/// Makes what is missing of the schema, and empties the tables that are filled from the rows of steps.
fn restore_schema(db: &Db) -> Stored {
    let (tables, others): (Vec<_>, Vec<_>) = schema::missing(db)?.into_iter().partition(Part::is_table);
    if tables.iter().any(|table| table.name == "run_log") {
        return Err(StoreError::Damaged(
            "the logs of all runs are gone, and nothing can be made again without them: restore a backup".into(),
        ));
    }
    tables.iter().try_for_each(|table| table.make(db))?;
    for text in [
        "delete from ready_tasks",
        "delete from connection_waits",
        "delete from approvals",
        "delete from callbacks",
        "delete from run_labels",
        // No wrong value may be in the way of a right one.
        "update runs set unique_value = null",
    ] {
        db.execute(text, [])?;
    }
    others.iter().try_for_each(|other| other.make(db))
}

/// Runs a write that leaves nothing behind if it fails.
fn whole_or_not(db: &Db, write: impl FnOnce() -> Stored) -> Stored {
    db.execute_batch("savepoint one_run")?;
    let done = write();
    db.execute_batch(if done.is_ok() { "release one_run" } else { "rollback to one_run; release one_run" })?;
    done
}

/// Gives runs whose row is gone one with their name, which their first event says. Returns those for which that cannot be
/// done: logs that were begun by earlier builds do not say it, and another run may have taken the name meanwhile.
fn name_the_lost(db: &Db) -> Stored<Vec<String>> {
    let text = "select distinct run_no from run_log where run_no not in (select run_no from runs)";
    let mut statement = db.prepare(text)?;
    let lost: Vec<RunNo> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut skipped = Vec::new();
    for no in lost {
        let Some(key) = name_of(db, no)? else {
            skipped.push(format!("run {no}: its row is lost, and its log does not say its name"));
            continue;
        };
        if check::standing(db, &key)? != Standing::Absent {
            skipped.push(format!("run {no}: its row is lost, and {} is the name of another run now", key.run_id));
            continue;
        }
        let text = "
            insert into runs (run_no, namespace, run_id, workflow_id, workflow_version, bucket, state, seq, created_at,
                              updated_at, head)
            values (?1, ?2, ?3, '', 0, '', '', 0, 0, 0, '')";
        db.prepare_cached(text)?.execute(params![no, key.namespace.as_str(), key.run_id.as_str()])?;
    }
    Ok(skipped)
}

/// How a run is named by its first event.
fn name_of(db: &Db, no: RunNo) -> Stored<Option<RunKey>> {
    let Some(first) = super::log::events(db, no, 0, 1)?.pop() else { return Ok(None) };
    let Ok(Fact::Entered(entered)) = first.event().map(|event| event.fact) else { return Ok(None) };
    Ok(entered.named.map(|named| RunKey { namespace: named.namespace, run_id: named.run_id }))
}

fn rebuild_run(db: &Db, no: RunNo) -> Stored {
    let stored = check::identity(db, no)?;
    let log = super::log::events(db, no, 0, usize::MAX)?;
    if log.is_empty() {
        return Err(corrupt(format!("{}: its log is gone", stored.run_id)));
    }
    let unborn = Working::unborn(stored.run_id.clone(), stored.namespace);
    let mut run = replay(unborn, &log).map_err(|error| corrupt(format!("{}: {error}", stored.run_id)))?;
    let identity = RunKey { namespace: run.head.namespace.clone(), run_id: run.head.run_id.clone() };
    let lives = lives(db, no)?;
    for step in run.steps.values_mut().flatten() {
        let known = lives.get(step.path.as_str()).filter(|_| step.is_leased()).cloned().flatten();
        Arc::make_mut(step).live = known.or_else(|| step.live.clone());
    }
    db.prepare_cached("delete from steps where run_no = ?1")?.execute([no])?;
    let mut hot = write::Hot::new(db);
    for step in run.steps.values().flatten() {
        let row = StepWrite { before: None, after: step.clone(), only_live: false, row: None };
        write::write_step(&mut hot, no, &identity, &run.head.started, &row)?;
        restore_last_heartbeat(db, no, step, &lives)?;
        restore_release(db, no, &identity, step)?;
    }
    write_head(db, no, &identity, &mut run)?;
    for (name, value) in &run.head.started.labels {
        let text = "insert into run_labels (namespace, name, value, run_no) values (?1, ?2, ?3, ?4)";
        db.prepare_cached(text)?.execute(params![identity.namespace.as_str(), name, value, no])?;
    }
    Ok(())
}

fn write_head(db: &Db, no: RunNo, identity: &RunKey, run: &mut Working) -> Stored {
    let shown = rows::shown(run);
    let wakes = wake_at(run, Timestamp::default()).map(Timestamp::micros);
    let stored = "select wake_at from runs where run_no = ?1";
    let stored: Option<i64> = db.prepare_cached(stored)?.query_row([no], |row| row.get(0))?;
    // It may be earlier than needed, never later.
    let stored = stored.filter(|_| !run.is_terminal());
    let wakes = stored.into_iter().chain(wakes).min();
    let mut row = rows::head(&mut run.head)?;
    let (head, started) = (&run.head, &run.head.started);
    let unique = started.unique.as_deref().filter(|_| head.ended_at.is_none());
    let is_taken = unique.map_or(Ok(false), |unique| is_unique_taken(db, no, &identity.namespace, started, unique))?;
    room::keep_for_head(&mut row, &shown, head.seq, wakes.is_some(), head.ended_at.is_some());
    let text = "
        update runs
        set    state = ?2, bucket = ?3, seq = ?4, step_id = ?5, reason = ?6, failure_kind = ?7, updated_at = ?8,
               ended_at = ?9, pinned = ?10, head = ?11, wake_at = ?12, workflow_id = ?13, workflow_version = ?14,
               owner_id = ?15, data_region = ?16, parent_run = ?17, origin_run = ?18, unique_value = ?19, created_at = ?20,
               namespace = ?21, run_id = ?22
        where  run_no = ?1";
    db.prepare_cached(text)?.execute(params![
        no,
        shown.state.as_str(),
        shown.bucket,
        head.seq as i64,
        shown.step_id.as_ref().map(|path| path.as_str()),
        shown.reason.map(|reason| reason.as_str()),
        shown.failure_kind.map(|kind| kind.as_str()),
        head.updated_at.micros(),
        head.ended_at.map(Timestamp::micros),
        head.pinned,
        row,
        wakes,
        started.workflow_id.as_str(),
        started.workflow_version,
        started.owner_id,
        started.data_region,
        started.parent.as_ref().map(|parent| parent.run_id.as_str()),
        started.origin.as_ref().and_then(|origin| origin.run_id.as_ref()).map(|run| run.as_str()),
        started.unique.as_ref().filter(|_| !is_taken),
        started.created_at.micros(),
        identity.namespace.as_str(),
        identity.run_id.as_str(),
    ])?;
    let text = "
        insert into run_starts (run_no, started) values (?1, ?2) on conflict do update set started = excluded.started";
    db.prepare_cached(text)?.execute(params![no, write::json(&**started)?])?;
    Ok(())
}

/// Whether another open run has the same unique value: it may have been started while this one was lost.
fn is_unique_taken(db: &Db, no: RunNo, namespace: &Namespace, started: &Started, unique: &str) -> Stored<bool> {
    let text = "
        select 1 from runs
        where  namespace = ?1 and workflow_id = ?2 and unique_value = ?3 and ended_at is null and run_no <> ?4";
    let values = params![namespace.as_str(), started.workflow_id.as_str(), unique, no];
    Ok(db.prepare_cached(text)?.exists(values)?)
}

/// What is known of each row's liveness: while it is leased all of it, else the last heartbeat.
fn lives(db: &Db, no: RunNo) -> Stored<BTreeMap<String, Option<Live>>> {
    let text = "select path, expires_at, last_heartbeat_at, progress from steps where run_no = ?1";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query([no])?;
    let mut lives = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (expires_at, beat_at): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
        let progress: Option<String> = row.get(3)?;
        let live = beat_at.map(|beat_at| Live {
            expires_at: Timestamp::from_micros(expires_at.unwrap_or(beat_at)),
            last_heartbeat_at: Timestamp::from_micros(beat_at),
            progress: progress.and_then(|text| serde_json::from_str(&text).ok()),
        });
        lives.insert(row.get(0)?, live);
    }
    Ok(lives)
}

fn restore_last_heartbeat(db: &Db, no: RunNo, step: &Step, lives: &BTreeMap<String, Option<Live>>) -> Stored {
    let Some(Some(live)) = lives.get(step.path.as_str()).filter(|_| !step.is_leased()) else { return Ok(()) };
    let text = "update steps set last_heartbeat_at = ?3 where run_no = ?1 and path = ?2";
    let at = live.last_heartbeat_at.micros();
    db.prepare_cached(text)?.execute(params![no, step.path.as_str(), at])?;
    Ok(())
}

/// A run that waits for a connection which was reconnected has not heard of it, or it would not wait. At the same instant
/// either may have come first; to be told once too often is better than never.
fn restore_release(db: &Db, no: RunNo, identity: &RunKey, step: &Step) -> Stored {
    let Some((connection, since)) = rows::waits_since(step) else { return Ok(()) };
    let facts = read::connection(db, &identity.namespace, connection)?;
    if facts.and_then(|facts| facts.reconnected_at).is_some_and(|at| since <= at) {
        let text = "
            update connection_waits set released = 1
            where  namespace = ?1 and tool = ?2 and account = ?3 and run_no = ?4 and path = ?5";
        let (namespace, path) = (identity.namespace.as_str(), step.path.as_str());
        db.prepare_cached(text)?.execute(params![namespace, connection.tool, connection.account, no, path])?;
    }
    Ok(())
}
