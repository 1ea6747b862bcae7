//! What readers ask: one run with its surroundings, lists by their indexes, queues, people's inbox. Nothing here writes.

use std::collections::BTreeMap;

use abide_core::contract::{RunState, StepState};
use abide_core::explain::Listener;
use abide_core::ids::{Digest, Handler, Namespace, Path, PayloadName, Queue, RunId, WorkerId, WorkflowId};
use abide_core::run::command::Json;
use abide_core::run::event::Record;
use abide_core::run::step::{Connection, Step};
use abide_core::run::{ConnectionFacts, LateAnswer};
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, OptionalExtension, Row, params};

use super::super::{Loaded, RunKey, RunNo, Stored, StoredDefinition};
use super::{feed, load, log};
use crate::hub::Position;
use crate::listeners::EVERYWHERE;
use crate::store::Touched;

/// The position of the last commit that this snapshot sees.
pub fn position(db: &Db) -> Stored<i64> {
    Ok(last_commit(db)?.batch)
}

pub fn last_commit(db: &Db) -> Stored<Position> {
    let text = "select batch, at from batches order by batch desc limit 1";
    Ok(db.prepare_cached(text)?.query_row([], position_of).optional()?.unwrap_or_default())
}

fn position_of(row: &Row<'_>) -> rusqlite::Result<Position> {
    Ok(Position { batch: row.get(0)?, at: Timestamp::from_micros(row.get(1)?) })
}

pub fn serving_since(db: &Db) -> Stored<Timestamp> {
    let since = db.prepare_cached("select since from serving")?.query_row([], |row| row.get(0)).optional()?;
    Ok(load::instant(since).unwrap_or_default())
}

/// When it was last committed that the engine serves.
pub fn served_at(db: &Db) -> Stored<Timestamp> {
    let last = db.prepare_cached("select last_at from serving")?.query_row([], |row| row.get(0)).optional()?;
    Ok(load::instant(last).unwrap_or_default())
}

pub fn run(db: &Db, key: &RunKey) -> Stored<Option<Loaded>> {
    load::run(db, key)
}

pub fn steps(db: &Db, no: RunNo) -> Stored<Vec<std::sync::Arc<Step>>> {
    load::steps(db, no, false)
}

/// Every step of a run: its path, state and beginning.
pub fn outlines(db: &Db, no: RunNo) -> Stored<Vec<(Path, StepState, Timestamp)>> {
    load::outlines(db, no)
}

pub fn step(db: &Db, no: RunNo, path: &Path) -> Stored<Option<std::sync::Arc<Step>>> {
    load::step(db, no, path)
}

pub fn events(db: &Db, no: RunNo, after: u64, limit: usize) -> Stored<Vec<Record>> {
    log::events(db, no, after, limit)
}

pub fn payload(db: &Db, no: RunNo, name: &PayloadName) -> Stored<Option<Json>> {
    load::payload(db, no, name)
}

pub fn definition(
    db: &Db,
    namespace: &Namespace,
    workflow: &WorkflowId,
    version: Option<u32>,
) -> Stored<Option<StoredDefinition>> {
    load::definition(db, namespace, workflow, version)
}

/// The newest version of every workflow of a namespace.
pub fn workflows(db: &Db, namespace: &Namespace) -> Stored<Vec<(WorkflowId, u32, Timestamp)>> {
    let text = "
        select workflow_id, max(version), created_at from definitions where namespace = ?1 group by workflow_id";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([namespace.as_str()], |row| {
        Ok((WorkflowId::new(row.get::<_, String>(0)?), row.get(1)?, Timestamp::from_micros(row.get(2)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// All versions of a workflow, the newest first.
pub fn versions(db: &Db, namespace: &Namespace, workflow: &WorkflowId) -> Stored<Vec<(u32, Digest, Timestamp)>> {
    let text = "
        select version, hash, created_at from definitions
        where  namespace = ?1 and workflow_id = ?2
        order  by version desc";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([namespace.as_str(), workflow.as_str()], |row| {
        Ok((row.get(0)?, Digest(row.get(1)?), Timestamp::from_micros(row.get(2)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// How many runs there are of each version of a workflow.
pub fn counts_by_version(db: &Db, namespace: &Namespace, workflow: &WorkflowId) -> Stored<BTreeMap<u32, u64>> {
    let text = "
        select workflow_version, count(*) from runs indexed by runs_by_workflow
        where  namespace = ?1 and workflow_id = ?2 group by workflow_version";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement
        .query_map([namespace.as_str(), workflow.as_str()], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Who has asked this queue for work, as it was last written down.
pub fn listeners(db: &Db, namespace: &Namespace, queue: &Queue) -> Stored<Vec<Listener>> {
    let text = "select worker, handlers, last_poll_at from workers where namespace in (?1, ?3) and queue = ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([namespace.as_str(), queue.as_str(), EVERYWHERE], |row| {
        let handlers: Option<String> = row.get(1)?;
        Ok(Listener {
            worker: WorkerId::new(row.get::<_, String>(0)?),
            handlers: handlers.and_then(|text| serde_json::from_str::<Vec<Handler>>(&text).ok()),
            last_poll_at: Timestamp::from_micros(row.get(2)?),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// How many tasks wait in a queue (counted up to a limit), and since when the oldest does.
pub fn depth(db: &Db, namespace: &Namespace, queue: &Queue) -> Stored<(u64, Option<Timestamp>)> {
    let text = "
        select count(*), min(issued_at)
        from   (select issued_at from ready_tasks where namespace = ?1 and queue = ?2 limit 10000)";
    let (count, oldest): (i64, Option<i64>) = db
        .prepare_cached(text)?
        .query_row([namespace.as_str(), queue.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok((count as u64, load::instant(oldest)))
}

/// What waits in a queue for one handler.
#[derive(Debug)]
pub struct Waiting {
    pub handler: Handler,
    /// Of a coded body: only who names the handler is offered it.
    pub is_body: bool,
    pub depth: u64,
    pub oldest_at: Option<Timestamp>,
}

/// The same for each handler of a queue.
pub fn depth_by_handler(db: &Db, namespace: &Namespace, queue: &Queue) -> Stored<Vec<Waiting>> {
    let text = "
        select handler, max(body), count(*), min(issued_at)
        from   (select handler, body, issued_at from ready_tasks where namespace = ?1 and queue = ?2 limit 10000)
        group  by handler";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([namespace.as_str(), queue.as_str()], |row| {
        Ok(Waiting {
            handler: Handler::new(row.get::<_, String>(0)?),
            is_body: row.get(1)?,
            depth: row.get::<_, i64>(2)? as u64,
            oldest_at: load::instant(row.get(3)?),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Steps whose task is leased, with their runs. Only active runs have leases.
pub fn leased(db: &Db, namespace: &Namespace, limit: usize) -> Stored<Vec<(RunId, std::sync::Arc<Step>)>> {
    let text = "
        select row, expires_at, last_heartbeat_at, progress, run_id
        from   runs indexed by runs_by_bucket join steps using (run_no)
        where  namespace = ?1 and bucket in ('active', 'cancel_requested', 'paused', 'compensating')
               and open = 1 and expires_at is not null
        limit  ?2";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![namespace.as_str(), limit as i64])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let step = load::step_of(row)?;
        if step.is_leased() {
            found.push((RunId::new(row.get::<_, String>(4)?), step));
        }
    }
    Ok(found)
}

/// Queues that have tasks or listeners.
pub fn queues(db: &Db, namespace: &Namespace) -> Stored<Vec<Queue>> {
    let text = "
        with recursive busy(queue) as (
            select min(queue) from ready_tasks where namespace = ?1
            union all
            select (select min(queue) from ready_tasks where namespace = ?1 and queue > busy.queue)
            from   busy where queue is not null
        )
        select queue from busy where queue is not null
        union
        select queue from workers where namespace = ?1";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([namespace.as_str()], |row| Ok(Queue::new(row.get::<_, String>(0)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub fn connection(db: &Db, namespace: &Namespace, connection: &Connection) -> Stored<Option<ConnectionFacts>> {
    let text = "
        select generation, reconnected_at, broken from connections where namespace = ?1 and tool = ?2 and account = ?3";
    let values = params![namespace.as_str(), connection.tool, connection.account];
    let found = db.prepare_cached(text)?.query_row(values, |row| {
        let generation = row.get::<_, i64>(0)? as u64;
        Ok(ConnectionFacts { generation, reconnected_at: load::instant(row.get(1)?), broken: row.get(2)? })
    });
    Ok(found.optional()?)
}

/// Every connection that is known or waited for, and how many runs wait.
pub fn connections(db: &Db, namespace: &Namespace) -> Stored<Vec<(Connection, ConnectionFacts, u64)>> {
    let text = "
        select tool, account, coalesce(generation, 0), reconnected_at, coalesce(broken, 0), coalesce(waiting, 0)
        from   (select tool, account from connections where namespace = ?1
                union select tool, account from connection_waits where namespace = ?1)
               left join connections using (tool, account)
               left join (select tool, account, count(distinct run_no) as waiting from connection_waits
                          where namespace = ?1 group by tool, account) using (tool, account)
        where  connections.namespace is null or connections.namespace = ?1";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([namespace.as_str()], |row| {
        let facts = ConnectionFacts {
            generation: row.get::<_, i64>(2)? as u64,
            reconnected_at: load::instant(row.get(3)?),
            broken: row.get(4)?,
        };
        Ok((Connection { tool: row.get(0)?, account: row.get(1)? }, facts, row.get::<_, i64>(5)? as u64))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// What workers said too late, with who they were.
pub fn late(db: &Db, no: RunNo) -> Stored<Vec<(Path, LateAnswer, WorkerId)>> {
    load::late_from(db, no)
}

/// The last proof of life of any worker on this run, also of one that is gone.
pub fn last_heartbeat(db: &Db, no: RunNo) -> Stored<Option<Timestamp>> {
    let text = "select max(last_heartbeat_at) from steps where run_no = ?1";
    Ok(load::instant(db.prepare_cached(text)?.query_row([no], |row| row.get(0))?))
}

/// Decisions that wait, the most urgent first.
pub fn approvals(db: &Db, namespace: &Namespace, limit: usize) -> Stored<Vec<(RunKey, Path)>> {
    let text = "
        select run_id, path from approvals indexed by approvals_by_urgency cross join runs using (run_no)
        where  approvals.namespace = ?1
        order  by until is null, until, since
        limit  ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![namespace.as_str(), limit as i64], |row| {
        let key = RunKey { namespace: namespace.clone(), run_id: RunId::new(row.get::<_, String>(0)?) };
        Ok((key, Path::new(row.get::<_, String>(1)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Runs that were made from a run.
pub fn made_from(db: &Db, key: &RunKey) -> Stored<Vec<RunId>> {
    let text = "select run_id from runs where origin_run = ?1 and namespace = ?2 order by run_no";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement
        .query_map([key.run_id.as_str(), key.namespace.as_str()], |row| Ok(RunId::new(row.get::<_, String>(0)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The run and the step that a callback belongs to.
pub fn callback(db: &Db, token_hash: &[u8]) -> Stored<Option<(RunKey, Path)>> {
    let text = "
        select namespace, run_id, path from callbacks join runs using (run_no) where token_hash = ?1";
    let found = db.prepare_cached(text)?.query_row([token_hash], |row| {
        let key = RunKey {
            namespace: Namespace::new(row.get::<_, String>(0)?),
            run_id: RunId::new(row.get::<_, String>(1)?),
        };
        Ok((key, Path::new(row.get::<_, String>(2)?)))
    });
    Ok(found.optional()?)
}

/// How many runs are in each state.
pub fn counts(db: &Db, namespace: &Namespace, workflow: Option<&WorkflowId>) -> Stored<BTreeMap<RunState, u64>> {
    // Parked and ended runs are counted off the index; only what is active is looked at one by one.
    let text = match workflow {
        None => "
            select bucket, count(*) from runs indexed by runs_by_bucket
            where  namespace = ?1 and bucket <> 'active' and ?2 is null group by bucket
            union all
            select state, count(*) from runs indexed by runs_by_bucket where namespace = ?1 and bucket = 'active' group by state",
        Some(_) => "
            select state, count(*) from runs indexed by runs_by_workflow
            where  namespace = ?1 and workflow_id = ?2 group by state",
    };
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![namespace.as_str(), workflow.map(WorkflowId::as_str)])?;
    let mut counts = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let state: String = row.get(0)?;
        if let Some(state) = RunState::parse(&state) {
            *counts.entry(state).or_default() += row.get::<_, i64>(1)? as u64;
        }
    }
    Ok(counts)
}

/// Runs by workflow.
pub fn counts_by_workflow(db: &Db, namespace: &Namespace) -> Stored<BTreeMap<WorkflowId, u64>> {
    let text = "
        select workflow_id, count(*) from runs indexed by runs_by_workflow where namespace = ?1 group by workflow_id";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([namespace.as_str()], |row| {
        Ok((WorkflowId::new(row.get::<_, String>(0)?), row.get::<_, i64>(1)? as u64))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// How deep children are followed for a root cause.
const CHILD_DEPTH: u32 = 8;

/// What waits is counted off an index, which has a row for each run that waits and none for others; without a reason are
/// only runs that are queued, running or being undone.
const CAUSES: &str = "
    select reason, count(*) from runs indexed by runs_by_reason
    where  namespace = ?1 and ended_at is null and reason is not null and reason <> 'child_open'
    group  by reason
    union all
    select state, count(*) from runs indexed by runs_by_bucket
    where  namespace = ?1 and bucket in ('active', 'compensating') and reason is null
    group  by state";

/// Open runs by what they wait for. A run that waits for a child counts where the deepest open child does.
pub fn counts_by_cause(db: &Db, namespace: &Namespace) -> Stored<BTreeMap<String, u64>> {
    let through_children = "
        with recursive down (root, run_id, cause, depth) as (
            select run_no, run_id, reason, 0 from runs indexed by runs_by_reason
            where  namespace = ?1 and ended_at is null and reason is not null and reason = 'child_open'
            union all
            select down.root, child.run_id, coalesce(child.reason, child.state), depth + 1
            from   down join runs child on child.parent_run = down.run_id
            where  child.namespace = ?1 and child.ended_at is null and depth < ?2
        )
        select cause, count(*) from (select root, cause, max(depth) from down group by root) group by cause";
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut statement = db.prepare_cached(CAUSES)?;
    let rows = statement.query_map([namespace.as_str()], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
    let mut children = db.prepare_cached(through_children)?;
    let deeper =
        children.query_map(params![namespace.as_str(), CHILD_DEPTH], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
    for row in rows.chain(deeper) {
        let (cause, count): (String, i64) = row?;
        *counts.entry(cause).or_default() += count as u64;
    }
    Ok(counts)
}

/// A commit, and what it touched.
pub type Commit = (Position, Vec<Touched>);

/// The position before the first commit that is kept.
pub fn before_first(db: &Db) -> Stored<i64> {
    let first: Option<i64> = db.prepare_cached("select min(batch) from batches")?.query_row([], |row| row.get(0))?;
    Ok(first.map_or(0, |first| first - 1))
}

/// Runs of which one page of commits speaks, if it is not one commit alone: whoever reads a page reads them in one snapshot, and
/// a longer one would keep the log of writes from being reused.
const RUNS_A_PAGE: usize = 1_024;

/// What the commits after a number touched, in order; `None` when it is no longer known.
pub fn commits_after(db: &Db, after: i64, limit: usize) -> Stored<Option<Vec<Commit>>> {
    if after < before_first(db)? {
        return Ok(None);
    }
    let text = "select batch, at, touched from batches where batch > ?1 order by batch limit ?2";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![after, limit as i64])?;
    let (mut commits, mut runs) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let bytes: Vec<u8> = row.get(2)?;
        let touched = feed::decode(&bytes).ok_or_else(|| super::corrupt("a batch row"))?;
        runs += touched.len();
        if runs > RUNS_A_PAGE && !commits.is_empty() {
            break;
        }
        commits.push((position_of(row)?, touched));
    }
    Ok(Some(commits))
}

/// Whether a position is one of this store, and its commit is still kept. One that was handed out by a store of which only
/// an older copy is left is not: other commits have its number, or none has.
pub fn is_known(db: &Db, position: Position) -> Stored<bool> {
    if position == Position::default() {
        return Ok(true);
    }
    let text = "select 1 from batches where batch = ?1 and at = ?2";
    Ok(db.prepare_cached(text)?.exists([position.batch, position.at.micros()])?)
}

/// How a run is named, also when it is in the archive.
pub fn key_of(db: &Db, no: RunNo) -> Stored<Option<(RunKey, WorkflowId)>> {
    let text = "
        select namespace, run_id, workflow_id from runs where run_no = ?1
        union all
        select namespace, run_id, workflow_id from archived_runs where run_no = ?1";
    let found = db.prepare_cached(text)?.query_row([no], |row| {
        let key = RunKey {
            namespace: Namespace::new(row.get::<_, String>(0)?),
            run_id: RunId::new(row.get::<_, String>(1)?),
        };
        Ok((key, WorkflowId::new(row.get::<_, String>(2)?)))
    });
    Ok(found.optional()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_wait_for_is_counted_without_reading_them() {
        let db = Db::open_in_memory().expect("a database");
        db.execute_batch(include_str!("migrations/001_runs.sql")).expect("the first schema");
        db.execute_batch(include_str!("migrations/006_reasons.sql")).expect("the index");
        let mut statement = db.prepare(&format!("explain query plan {CAUSES}")).expect("a plan");
        let plan: Vec<String> =
            statement.query_map(["default"], |row| row.get(3)).and_then(Iterator::collect).expect("its steps");
        assert!(plan.iter().any(|step| step.contains("USING COVERING INDEX runs_by_reason")), "{plan:#?}");
    }
}
