//! Moving runs out of the way: everything of a run in one compressed row, still readable by id, its chain intact.

use abide_core::ids::{Namespace, RunId};
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, OptionalExtension, params};

use super::super::{RunKey, RunNo, Stored};
use crate::testing::{Point, at_failpoint};

/// A run that may be moved: it ended long enough ago and nobody pinned it.
#[derive(Clone, Debug)]
pub struct Old {
    pub no: RunNo,
    pub key: RunKey,
    pub ended_at: Timestamp,
}

/// A row of the archive.
#[derive(Clone, Debug)]
pub struct Archived {
    pub no: RunNo,
    pub key: RunKey,
    pub bundle: Vec<u8>,
}

/// Runs in a terminal state that ended before an instant, from the oldest on. Served by `runs_by_bucket`.
pub fn old(
    db: &Db,
    namespace: &str,
    state: &str,
    ended_before: Timestamp,
    after: RunNo,
    limit: usize,
) -> Stored<Vec<Old>> {
    let text = "
        select run_no, run_id, ended_at from runs
        where  namespace = ?1 and bucket = ?2 and run_no > ?3 and ended_at < ?4 and pinned = 0
        order  by run_no
        limit  ?5";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![namespace, state, after, ended_before.micros(), limit as i64], |row| {
        let key = RunKey { namespace: Namespace::from(namespace), run_id: RunId::new(row.get::<_, String>(1)?) };
        Ok(Old { no: row.get(0)?, key, ended_at: Timestamp::from_micros(row.get(2)?) })
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
    let text = "select run_no, unseal(bundle, run_no, '#run') from archived_runs where run_id = ?1 and namespace = ?2";
    let values = params![key.run_id.as_str(), key.namespace.as_str()];
    let found = db.prepare_cached(text)?.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(found.map(|(no, bundle)| Archived { no, key: key.clone(), bundle }))
}

pub fn after(db: &Db, no: RunNo, limit: usize) -> Stored<Vec<Archived>> {
    let text = "
        select run_no, namespace, run_id, unseal(bundle, run_no, '#run') from archived_runs where run_no > ?1 order by run_no limit ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![no, limit as i64], |row| {
        let key = RunKey {
            namespace: Namespace::new(row.get::<_, String>(1)?),
            run_id: RunId::new(row.get::<_, String>(2)?),
        };
        Ok(Archived { no: row.get(0)?, key, bundle: row.get(3)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Keys and commits that nobody asks for any more.
pub(super) fn prune(db: &Db, keys_before: Timestamp, batches_before: Timestamp) -> Stored {
    let keys = "delete from idempotency_keys where at < ?1";
    let batches = "delete from batches where at < ?1 and batch < (select max(batch) from batches)";
    let workers = "delete from workers where last_poll_at < ?1";
    db.prepare_cached(keys)?.execute([keys_before.micros()])?;
    db.prepare_cached(batches)?.execute([batches_before.micros()])?;
    db.prepare_cached(workers)?.execute([batches_before.micros()])?;
    Ok(())
}
