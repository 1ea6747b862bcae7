//! What a checker reads: a run with everything that the store has of it, and rows that belong to nothing.

pub mod commits;
pub mod others;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_core::ids::{Digest, Namespace, PayloadName, RunId, WorkflowId};
use abide_core::run::command::Json;
use abide_core::run::event::Record;
use abide_core::run::invariant::Served;
use abide_core::run::step::{Connection, Step};
use abide_core::run::{Head, LateAnswers};
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, OptionalExtension, params};

use super::super::{RunKey, RunNo, Stored};
use super::{load, log};
use crate::message::Message;

/// Everything that the store has of one run.
#[derive(Debug)]
pub struct Whole {
    pub no: RunNo,
    pub key: RunKey,
    pub head: Head,
    pub head_text: String,
    pub started_text: String,
    pub columns: Columns,
    pub wake_at: Option<Timestamp>,
    pub steps: Vec<Arc<Step>>,
    pub log: Vec<Record>,
}

/// What lists filter by, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    pub workflow: String,
    pub version: u32,
    pub bucket: String,
    pub state: String,
    pub seq: u64,
    pub step_id: Option<String>,
    pub reason: Option<String>,
    pub failure_kind: Option<String>,
    pub owner_id: Option<String>,
    pub data_region: Option<String>,
    pub parent: Option<String>,
    pub origin: Option<String>,
    pub unique: Option<String>,
    pub created_at: i64,
    pub updated_at: i64,
    pub ended_at: Option<i64>,
    pub pinned: bool,
}

/// The rows through which a run is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findable {
    /// Queue, handler, rank, issued at, path, body.
    pub ready: BTreeSet<(String, String, i64, i64, String, bool)>,
    /// Tool, account, path.
    pub connections: BTreeSet<(String, String, String)>,
    /// Path, since, until.
    pub approvals: BTreeSet<(String, i64, Option<i64>)>,
    pub callbacks: BTreeSet<(Vec<u8>, String)>,
    pub labels: BTreeMap<String, String>,
}

pub fn run_numbers(db: &Db, after: RunNo, limit: usize) -> Stored<Vec<RunNo>> {
    let mut statement = db.prepare_cached("select run_no from runs where run_no > ?1 order by run_no limit ?2")?;
    let rows = statement.query_map(params![after, limit as i64], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// When an engine served without a gap: no lease is over before a full window after its beginning.
pub fn served(db: &Db) -> Stored<Served> {
    let text = "select since, last_at from serving";
    let row = db.prepare_cached(text)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (since, until) = row.unwrap_or_default();
    Ok(Served { since: Timestamp::from_micros(since), until: Timestamp::from_micros(until) })
}

/// How a run is named.
pub fn identity(db: &Db, no: RunNo) -> Stored<RunKey> {
    let text = "select namespace, run_id from runs where run_no = ?1";
    let (namespace, run_id): (String, String) =
        db.prepare_cached(text)?.query_row([no], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(RunKey { namespace: Namespace::new(namespace), run_id: RunId::new(run_id) })
}

pub fn whole(db: &Db, no: RunNo) -> Stored<Option<Whole>> {
    let text = "
        select namespace, run_id, rtrim(head), started, wake_at, workflow_id, workflow_version, bucket, state, seq, step_id,
               reason, failure_kind, parent_run, origin_run, unique_value, created_at, updated_at, ended_at, pinned,
               owner_id, data_region
        from   runs join run_starts using (run_no)
        where  run_no = ?1";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query([no])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let key =
        RunKey { namespace: Namespace::new(row.get::<_, String>(0)?), run_id: RunId::new(row.get::<_, String>(1)?) };
    let (head_text, started_text): (String, String) = (row.get(2)?, row.get(3)?);
    let columns = Columns {
        workflow: row.get(5)?,
        version: row.get(6)?,
        bucket: row.get(7)?,
        state: row.get(8)?,
        seq: row.get::<_, i64>(9)? as u64,
        step_id: row.get(10)?,
        reason: row.get(11)?,
        failure_kind: row.get(12)?,
        parent: row.get(13)?,
        origin: row.get(14)?,
        unique: row.get(15)?,
        created_at: row.get(16)?,
        updated_at: row.get(17)?,
        ended_at: row.get(18)?,
        pinned: row.get(19)?,
        owner_id: row.get(20)?,
        data_region: row.get(21)?,
    };
    let wake_at = load::instant(row.get(4)?);
    let apart = abide_core::run::Columns {
        run_id: key.run_id.clone(),
        namespace: key.namespace.clone(),
        seq: columns.seq,
        state: load::state(&columns.state)?,
        updated_at: Timestamp::from_micros(columns.updated_at),
        ended_at: load::instant(columns.ended_at),
        pinned: columns.pinned,
    };
    let head = *load::head(&head_text, &started_text, apart)?;
    let (steps, log) = (load::steps(db, no, false)?, log::events(db, no, 0, usize::MAX)?);
    Ok(Some(Whole { no, key, head, head_text, started_text, columns, wake_at, steps, log }))
}

/// Of the rows through which a run should be found, those that are there. (That there are no others is one question to
/// the store as a whole: `OF_ALL`.)
pub fn findable(db: &Db, whole: &Whole, expected: &Findable) -> Stored<Findable> {
    let (no, namespace) = (whole.no, whole.key.namespace.as_str());
    let mut found = Findable::default();
    let text = "
        select 1 from ready_tasks
        where  namespace = ?1 and queue = ?2 and handler = ?3 and rank = ?4 and issued_at = ?5 and run_no = ?6 and path = ?7
               and body = ?8";
    for ready @ (queue, handler, rank, issued_at, path, body) in &expected.ready {
        let values = params![namespace, queue, handler, rank, issued_at, no, path, body];
        if db.prepare_cached(text)?.exists(values)? {
            found.ready.insert(ready.clone());
        }
    }
    let text = "
        select 1 from connection_waits
        where  namespace = ?1 and tool = ?2 and account = ?3 and run_no = ?4 and path = ?5";
    for wait @ (tool, account, path) in &expected.connections {
        if db.prepare_cached(text)?.exists(params![namespace, tool, account, no, path])? {
            found.connections.insert(wait.clone());
        }
    }
    let text = "select 1 from run_labels where namespace = ?1 and name = ?2 and value = ?3 and run_no = ?4";
    for (name, value) in &expected.labels {
        if db.prepare_cached(text)?.exists(params![namespace, name, value, no])? {
            found.labels.insert(name.clone(), value.clone());
        }
    }
    let text = "select path, since, until from approvals where namespace = ?1 and run_no = ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![namespace, no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    found.approvals = rows.collect::<Result<_, _>>()?;
    let mut statement = db.prepare_cached("select token_hash, path from callbacks where run_no = ?1")?;
    let rows = statement.query_map([no], |row| Ok((row.get(0)?, row.get(1)?)))?;
    found.callbacks = rows.collect::<Result<_, _>>()?;
    Ok(found)
}

/// The state of each step, and whether it is open, as they are written beside its row.
pub fn step_columns(db: &Db, no: RunNo) -> Stored<BTreeMap<String, (String, bool)>> {
    let mut statement = db.prepare_cached("select path, state, open from steps where run_no = ?1")?;
    let rows = statement.query_map([no], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Whether a wait for a connection is marked, so that its run is told of the reconnect.
pub fn is_released(db: &Db, key: &RunKey, no: RunNo, connection: &Connection, path: &str) -> Stored<bool> {
    let text = "
        select 1 from connection_waits
        where  namespace = ?1 and tool = ?2 and account = ?3 and run_no = ?4 and path = ?5 and released = 1";
    let values = params![key.namespace.as_str(), connection.tool, connection.account, no, path];
    Ok(db.prepare_cached(text)?.exists(values)?)
}

pub fn late_answers(db: &Db, no: RunNo) -> Stored<LateAnswers> {
    load::late(db, no)
}

pub fn payload(db: &Db, no: RunNo, name: &str) -> Stored<Option<Json>> {
    load::payload(db, no, &PayloadName::from(name))
}

/// A document as it is stored, and under which name.
#[derive(Debug)]
pub struct Document {
    pub place: (String, String, u32),
    pub hash: Digest,
    pub text: String,
}

/// Documents after one, in the order of their names.
pub fn documents(db: &Db, after: &(String, String, u32), limit: usize) -> Stored<Vec<Document>> {
    let text = "
        select namespace, workflow_id, version, hash, document from definitions
        where  (namespace, workflow_id, version) > (?1, ?2, ?3)
        order  by namespace, workflow_id, version
        limit  ?4";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![after.0, after.1, after.2, limit as i64])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let place = (row.get(0)?, row.get(1)?, row.get(2)?);
        let hash = load::digest(row.get_ref(3)?.as_blob().map_err(super::corrupt)?)?;
        found.push(Document { place, hash, text: row.get(4)? });
    }
    Ok(found)
}

/// The document of a version of a workflow, if it is stored with this hash.
pub fn definition(
    db: &Db,
    namespace: &Namespace,
    workflow: &WorkflowId,
    version: u32,
    hash: Digest,
) -> Stored<Option<String>> {
    let stored = load::definition(db, namespace, workflow, Some(version))?;
    Ok(stored.filter(|stored| stored.hash == hash).map(|stored| stored.document))
}

/// How a run that others speak of stands: open, ended (also in the archive), or not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Open(RunNo),
    Ended,
    Absent,
}

pub fn standing(db: &Db, key: &RunKey) -> Stored<Standing> {
    let values = params![key.run_id.as_str(), key.namespace.as_str()];
    let text = "select run_no, ended_at is null from runs where run_id = ?1 and namespace = ?2";
    let found =
        db.prepare_cached(text)?.query_row(values, |row| Ok((row.get(0)?, row.get::<_, bool>(1)?))).optional()?;
    if let Some((no, open)) = found {
        return Ok(if open { Standing::Open(no) } else { Standing::Ended });
    }
    let text = "select 1 from archived_runs where run_id = ?1 and namespace = ?2";
    let archived = db.prepare_cached(text)?.query_row(values, |_| Ok(())).optional()?;
    Ok(if archived.is_some() { Standing::Ended } else { Standing::Absent })
}

/// Messages that wait for a run.
pub fn messages_for(db: &Db, key: &RunKey) -> Stored<Vec<Message>> {
    let text = "select n from inbox where namespace = ?1 and target = ?2 order by n";
    let mut statement = db.prepare_cached(text)?;
    let waiting = statement.query_map(params![key.namespace.as_str(), key.run_id.as_str()], |row| row.get(0))?;
    waiting.map(|n| load::message(db, n?)).collect()
}

/// Questions to the store as a whole: rows that belong to no run, runs that are in two places. Each says which
/// invariant it asks for, and counts what should not be there.
pub const OF_ALL: &[(&str, &str, &str)] = &[
    (
        "I1",
        "events of no run",
        "select count(*) from (select distinct run_no from run_log) where run_no not in (select run_no from runs)",
    ),
    (
        "I1",
        "steps of no run",
        "select count(*) from (select distinct run_no from steps) where run_no not in (select run_no from runs)",
    ),
    (
        "I1",
        "payloads of no run",
        "select count(*) from (select distinct run_no from payloads) where run_no not in (select run_no from runs)",
    ),
    (
        "I1",
        "ready tasks that nobody can claim",
        "
        select count(*) from ready_tasks left join steps using (run_no, path)
        where  row is null or row ->> '$.task.id' is null or row ->> '$.task.lease.epoch' is not null",
    ),
    (
        "I1",
        "ready tasks that name another run",
        "
        select count(*) from ready_tasks join runs using (run_no)
        where  ready_tasks.run_id <> runs.run_id or ready_tasks.namespace <> runs.namespace",
    ),
    (
        "I1",
        "tasks that are ready twice",
        "select count(*) from (select 1 from ready_tasks group by run_no, path having count(*) > 1)",
    ),
    (
        "I1",
        "waits for a connection that nothing waits for",
        "
        select count(*) from connection_waits left join steps using (run_no, path)
        where  row is null or row ->> '$.block.wait.on' is not 'auth'",
    ),
    (
        "I1",
        "labels that no start says",
        "
        select count(*) from run_labels left join run_starts using (run_no)
        where  value is not (select said.value from json_each(started, '$.labels') as said where said.key = name)",
    ),
    (
        "I1",
        "idempotency keys of no run",
        "
        select count(*) from idempotency_keys as kept
        where  answer ->> '$.run_id' is not null
               and not exists (select 1 from runs where run_id = kept.answer ->> '$.run_id' and namespace = kept.namespace)
               and not exists (select 1 from archived_runs
                               where run_id = kept.answer ->> '$.run_id' and namespace = kept.namespace)",
    ),
    (
        "I1",
        "guards of the log that are missing",
        "
        select 2 - count(*) from sqlite_master
        where  type = 'trigger' and name in ('run_log_never_changes', 'run_log_stays')",
    ),
    ("I1", "late answers of no run", "select count(*) from late_answers where run_no not in (select run_no from runs)"),
    ("I1", "approvals of no run", "select count(*) from approvals where run_no not in (select run_no from runs)"),
    ("I1", "callbacks of no run", "select count(*) from callbacks where run_no not in (select run_no from runs)"),
    ("I1", "starts of no run", "select count(*) from run_starts where run_no not in (select run_no from runs)"),
    ("I1", "runs without a start", "select count(*) from runs where run_no not in (select run_no from run_starts)"),
    ("I1", "runs both here and in the archive", "select count(*) from runs join archived_runs using (run_id, namespace)"),
    ("I1", "runs that are being archived", "select count(*) from archiving"),
    (
        "I47",
        "commits that leave a gap",
        "
        select count(*) from (select batch - lag(batch) over w as step from batches window w as (order by batch))
        where  step <> 1",
    ),
    (
        "I46",
        "commits that go back in time",
        "select count(*) from (select at - lag(at) over (order by batch) as step from batches) where step < 0",
    ),
    (
        "I47",
        "rows of the log, and no commit",
        "select count(*) from run_log where not exists (select 1 from batches)",
    ),
];

pub fn count(db: &Db, text: &str) -> Stored<i64> {
    Ok(db.query_row(text, [], |row| row.get(0))?)
}

/// What SQLite itself says of its file, if that is not good: whether every index has what its table has, too.
pub fn damage(db: &Db) -> Stored<Option<String>> {
    let said: String = db.query_row("pragma integrity_check(1)", [], |row| row.get(0))?;
    Ok(Some(said).filter(|said| said != "ok"))
}
