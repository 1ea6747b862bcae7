//! Moving runs out of the way: everything of a run in one compressed row, still readable by id, its chain intact.

use abide_core::contract::RunState;
use abide_core::ids::{Namespace, RunId};
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, OptionalExtension, params};

use super::super::{Before, RunKey, RunNo, Stored};
use crate::testing::{Point, at_failpoint};

/// A run that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub no: RunNo,
    pub key: RunKey,
    pub created_at: Timestamp,
    pub ended_at: Timestamp,
    pub pinned: bool,
}

/// A row of the archive.
#[derive(Clone, Debug)]
pub struct Archived {
    pub no: RunNo,
    pub bundle: Vec<u8>,
    pub columns: Columns,
}

/// What lists of the archive filter by, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    pub workflow: String,
    pub state: String,
    pub created_at: i64,
    pub ended_at: i64,
}

/// Runs in a terminal state after one, in the order of their starts. Served by `runs_by_bucket`.
pub fn ended(db: &Db, namespace: &str, state: RunState, after: RunNo, limit: usize) -> Stored<Vec<Ended>> {
    let text = "
        select run_no, run_id, created_at, ended_at, pinned from runs indexed by runs_by_bucket
        where  namespace = ?1 and bucket = ?2 and run_no > ?3 and ended_at is not null
        order  by run_no
        limit  ?4";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![namespace, state.as_str(), after, limit as i64], |row| {
        Ok(Ended {
            no: row.get(0)?,
            key: RunKey { namespace: Namespace::from(namespace), run_id: RunId::new(row.get::<_, String>(1)?) },
            created_at: Timestamp::from_micros(row.get(2)?),
            ended_at: Timestamp::from_micros(row.get(3)?),
            pinned: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub fn namespaces(db: &Db) -> Stored<Vec<String>> {
    let text = "
        with recursive known(namespace) as (
            select min(namespace) from runs
            union all
            select (select min(namespace) from runs where namespace > known.namespace) from known where namespace is not null
        )
        select namespace from known where namespace is not null";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The payloads of a run, by name.
pub fn payloads(db: &Db, no: RunNo) -> Stored<Vec<(String, String)>> {
    let mut statement =
        db.prepare_cached("select name, unseal(bytes, run_no, name) from payloads where run_no = ?1 order by name")?;
    let mut rows = statement.query([no])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let bytes: Vec<u8> = row.get(1)?;
        found.push((row.get(0)?, String::from_utf8(bytes).map_err(super::corrupt)?));
    }
    Ok(found)
}

/// Puts the bundle in and takes the run out, inside the transaction that is open.
pub(super) fn store(db: &Db, no: RunNo, bundle: &[u8], size: usize, now: Timestamp) -> Stored {
    let text = "
        insert into archived_runs (run_no, namespace, run_id, workflow_id, state, created_at, ended_at, archived_at, size, bundle)
        select run_no, namespace, run_id, workflow_id, state, created_at, ended_at, ?2, ?3,
               case when started ->> '$.sealed' then seal(?4, run_no, '#run') else ?4 end
        from   runs join run_starts using (run_no) where run_no = ?1";
    db.prepare_cached(text)?.execute(params![no, now.micros(), size as i64, bundle])?;
    at_failpoint(Point::InArchive);
    remove(db, no)
}

fn remove(db: &Db, no: RunNo) -> Stored {
    let labels = "
        delete from run_labels where run_no = ?1 and (namespace, name, value) in (
            select runs.namespace, label.key, label.value
            from   runs join run_starts using (run_no), json_each(started -> '$.labels') as label where run_no = ?1)";
    for text in [
        "insert into archiving (run_no) values (?1)",
        "delete from run_log where run_no = ?1",
        "delete from steps where run_no = ?1",
        "delete from payloads where run_no = ?1",
        "delete from callbacks where run_no = ?1",
        "delete from late_answers where run_no = ?1",
        labels,
        "delete from run_starts where run_no = ?1",
        "delete from runs where run_no = ?1",
        "delete from archiving where run_no = ?1",
    ] {
        db.prepare_cached(text)?.execute([no])?;
    }
    Ok(())
}

pub fn find(db: &Db, key: &RunKey) -> Stored<Option<Archived>> {
    let text = "
        select run_no, unseal(bundle, run_no, '#run'), workflow_id, state, created_at, ended_at
        from   archived_runs where run_id = ?1 and namespace = ?2";
    let values = params![key.run_id.as_str(), key.namespace.as_str()];
    let found = db.prepare_cached(text)?.query_row(values, |row| {
        let columns =
            Columns { workflow: row.get(2)?, state: row.get(3)?, created_at: row.get(4)?, ended_at: row.get(5)? };
        Ok(Archived { no: row.get(0)?, bundle: row.get(1)?, columns })
    });
    Ok(found.optional()?)
}

/// Runs of the archive after one, by their numbers.
pub fn after(db: &Db, no: RunNo, limit: usize) -> Stored<Vec<(RunNo, RunKey)>> {
    let text = "select run_no, namespace, run_id from archived_runs where run_no > ?1 order by run_no limit ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![no, limit as i64], |row| {
        let (namespace, run_id): (String, String) = (row.get(1)?, row.get(2)?);
        Ok((row.get(0)?, RunKey { namespace: Namespace::new(namespace), run_id: RunId::new(run_id) }))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Rows of each table that one transaction forgets, so that nobody waits for it.
const FORGOTTEN_AT_ONCE: i64 = 1_000;

/// Whether there is something to forget. Served by `idempotency_keys_by_age` and `workers_by_age`; commits are in order.
pub fn has_before(db: &Db, before: Before) -> Stored<bool> {
    let text = "
        select exists (select 1 from idempotency_keys where at < ?1)
            or exists (select 1 from workers where last_poll_at < ?2)
            or (select at < ?2 and batch < (select max(batch) from batches) from batches order by batch limit 1)";
    let values = [before.keys.micros(), before.commits.micros()];
    Ok(db.prepare_cached(text)?.query_row(values, |row| row.get::<_, Option<bool>>(0))?.unwrap_or_default())
}

/// Forgets some keys, commits and workers that nobody asks for any more, from the oldest on. The last commit stays: by it
/// the next one is numbered.
pub(super) fn forget(db: &Db, before: Before) -> Stored {
    let keys = "
        delete from idempotency_keys where (namespace, key) in (
            select namespace, key from idempotency_keys where at < ?1 order by at limit ?2)";
    let workers = "
        delete from workers where (namespace, queue, worker) in (
            select namespace, queue, worker from workers where last_poll_at < ?1 order by last_poll_at limit ?2)";
    let commits = "
        delete from batches where batch < (
            select coalesce(min(batch) filter (where at >= ?1), max(batch))
            from   (select batch, at from batches order by batch limit ?2 + 1))";
    for (text, before) in [(keys, before.keys), (workers, before.commits), (commits, before.commits)] {
        db.prepare_cached(text)?.execute([before.micros(), FORGOTTEN_AT_ONCE])?;
    }
    Ok(())
}

/// How many bytes the rows of a run have, without reading them.
pub fn size(db: &Db, no: RunNo) -> Stored<u64> {
    let text = "
        select (select coalesce(sum(octet_length(events)), 0) from run_log where run_no = ?1)
             + (select coalesce(sum(octet_length(row)), 0) from steps where run_no = ?1)
             + (select coalesce(sum(octet_length(bytes)), 0) from payloads where run_no = ?1)";
    Ok(db.prepare_cached(text)?.query_row([no], |row| row.get::<_, i64>(0))? as u64)
}
