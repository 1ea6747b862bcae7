//! Loading: what a decision needs, and who is due, ready or waiting.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_core::contract::{RunState, StepState};
use abide_core::ids::{Digest, Epoch, Namespace, Path, PayloadName, Queue, RunId, WorkerId, WorkflowId};
use abide_core::run::command::Json;
use abide_core::run::step::{Connection, Live, Progress, Step};
use abide_core::run::{Columns, ConnectionFacts, Head, LateAnswer, LateAnswers, LateReport, Need, Started, Working};
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, OptionalExtension, Row, params};

use super::super::{
    Candidate, Found, Kept, Loaded, PostKey, RunKey, RunNo, StoreError, Stored, StoredDefinition, Waiting, Wanted,
};
use super::corrupt;
use crate::message::Message;

fn parse<'a, T: serde::Deserialize<'a>>(text: &'a str, what: &str) -> Stored<T> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(format!("{what}: {error}")))
}

pub(super) fn instant(micros: Option<i64>) -> Option<Timestamp> {
    micros.map(Timestamp::from_micros)
}

pub(super) fn digest(bytes: &[u8]) -> Stored<Digest> {
    bytes.try_into().map(Digest).map_err(|_| corrupt("a digest has 32 bytes"))
}

/// A run's head, put together again from its columns and its two texts.
pub(super) fn head(head: &str, started: &str, mut columns: Columns) -> Stored<Box<Head>> {
    let mut head: Box<Head> = parse(head, "a head")?;
    head.swap_columns(&mut columns);
    head.started = Arc::new(parse::<Started>(started, "a start")?);
    Ok(head)
}

pub(super) fn state(name: &str) -> Stored<Option<RunState>> {
    RunState::parse(name).map(Some).ok_or_else(|| corrupt(format!("{name:?} is no state")))
}

pub(super) fn run(db: &Db, key: &RunKey) -> Stored<Option<Loaded>> {
    let text = "
        select run_no, head, started, wake_at, state, seq, updated_at, ended_at, pinned
        from   runs join run_starts using (run_no)
        where  run_id = ?1 and namespace = ?2";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![key.run_id.as_str(), key.namespace.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let text = |at: usize| row.get_ref(at)?.as_str().map_err(corrupt);
    let columns = Columns {
        run_id: key.run_id.clone(),
        namespace: key.namespace.clone(),
        state: state(text(4)?)?,
        seq: row.get::<_, i64>(5)? as u64,
        updated_at: Timestamp::from_micros(row.get(6)?),
        ended_at: instant(row.get(7)?),
        pinned: row.get(8)?,
    };
    let (no, head, wake_at) = (row.get(0)?, head(text(1)?, text(2)?, columns)?, instant(row.get(3)?));
    let open = steps(db, no, true)?;
    let steps = open.into_iter().map(|step| (step.path.clone(), Some(step))).collect();
    let run = Working { head, steps, payloads: BTreeMap::new() };
    Ok(Some(Loaded { no, run, wake_at, late: late(db, no)? }))
}

/// The rows of a run, or only those that may still act.
pub(super) fn steps(db: &Db, no: RunNo, only_open: bool) -> Stored<Vec<Arc<Step>>> {
    let text = match only_open {
        true => "select row, expires_at, last_heartbeat_at, progress from steps where run_no = ?1 and open = 1",
        false => "select row, expires_at, last_heartbeat_at, progress from steps where run_no = ?1",
    };
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query([no])?;
    let mut steps = Vec::new();
    while let Some(row) = rows.next()? {
        steps.push(step_of(row)?);
    }
    Ok(steps)
}

/// Every step of a run by its state and its beginning, without reading the rows in full.
pub(super) fn outlines(db: &Db, no: RunNo) -> Stored<Vec<(Path, StepState, Timestamp)>> {
    #[derive(serde::Deserialize)]
    struct Begun {
        path: Path,
        state: StepState,
        started_at: Timestamp,
    }
    let mut statement = db.prepare_cached("select row from steps where run_no = ?1")?;
    let mut rows = statement.query([no])?;
    let mut outlines = Vec::new();
    while let Some(row) = rows.next()? {
        let begun: Begun = parse(row.get_ref(0)?.as_str().map_err(corrupt)?, "a step")?;
        outlines.push((begun.path, begun.state, begun.started_at));
    }
    Ok(outlines)
}

pub(super) fn step(db: &Db, no: RunNo, path: &Path) -> Stored<Option<Arc<Step>>> {
    let text = "select row, expires_at, last_heartbeat_at, progress from steps where run_no = ?1 and path = ?2";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![no, path.as_str()])?;
    rows.next()?.map(step_of).transpose()
}

pub(super) fn step_of(row: &Row<'_>) -> Stored<Arc<Step>> {
    let mut step: Step = parse(row.get_ref(0)?.as_str().map_err(corrupt)?, "a step")?;
    if let (true, Some(expires_at), Some(beat_at)) = (step.is_leased(), instant(row.get(1)?), instant(row.get(2)?)) {
        let progress: Option<String> = row.get(3)?;
        let progress = progress.map(|text| parse::<Progress>(&text, "progress")).transpose()?;
        step.live = Some(Live { expires_at, last_heartbeat_at: beat_at, progress });
    }
    Ok(Arc::new(step))
}

pub(super) fn late(db: &Db, no: RunNo) -> Stored<LateAnswers> {
    let mut late = LateAnswers::new();
    for (path, answer, _) in late_from(db, no)? {
        late.entry(path).or_default().push(answer);
    }
    Ok(late)
}

/// What workers said too late, with who they were, oldest first.
pub(super) fn late_from(db: &Db, no: RunNo) -> Stored<Vec<(Path, LateAnswer, WorkerId)>> {
    let text = "
        select path, unseal(output, run_no, '#late/' || path), at, worker, epoch, v
        from   late_answers
        where  run_no = ?1
        order  by path, n";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query([no])?;
    let mut late = Vec::new();
    while let Some(row) = rows.next()? {
        let text = std::str::from_utf8(row.get_ref(1)?.as_blob().map_err(corrupt)?).map_err(corrupt)?;
        let said = match row.get::<_, i64>(5)? {
            1 => LateReport::Result { output: text.into() },
            _ => parse(text, "a late answer")?,
        };
        let (epoch, at) = (Epoch(row.get::<_, i64>(4)? as u64), Timestamp::from_micros(row.get(2)?));
        let worker = WorkerId::new(row.get::<_, String>(3)?);
        late.push((Path::new(row.get::<_, String>(0)?), LateAnswer { epoch, said, at }, worker));
    }
    Ok(late)
}

pub(super) fn needs(db: &Db, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>> {
    needs.iter().map(|one| need(db, no, one)).collect()
}

fn need(db: &Db, no: RunNo, need: &Need) -> Stored<Found> {
    match need {
        Need::Step(path) => Ok(Found::Step(path.clone(), step(db, no, path)?)),
        Need::Payload(name) => {
            let json = payload(db, no, name)?.unwrap_or_else(|| "null".into());
            Ok(Found::Payload(name.clone(), json))
        }
    }
}

pub(super) fn payload(db: &Db, no: RunNo, name: &PayloadName) -> Stored<Option<Json>> {
    let text = "select unseal(bytes, run_no, name) from payloads where run_no = ?1 and name = ?2";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![no, name.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let bytes = row.get_ref(0)?.as_blob().map_err(corrupt)?;
    Ok(Some(std::str::from_utf8(bytes).map_err(corrupt)?.into()))
}

pub(super) fn due(db: &Db, now: Timestamp, limit: usize) -> Stored<Vec<(RunNo, RunKey)>> {
    let text = "
        select run_no, namespace, run_id from runs
        where  wake_at is not null and wake_at <= ?1
        order  by wake_at
        limit  ?2";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map(params![now.micros(), limit as i64], |row| Ok((row.get(0)?, key(row, 1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn key(row: &Row<'_>, at: usize) -> rusqlite::Result<RunKey> {
    let (namespace, run_id): (String, String) = (row.get(at)?, row.get(at + 1)?);
    Ok(RunKey { namespace: Namespace::new(namespace), run_id: RunId::new(run_id) })
}

/// Tasks of one handler in the order in which they are due. The primary key serves it.
const READY: &str = "
    select run_no, run_id, path, rank, issued_at, body
    from   ready_tasks
    where  namespace = ?1 and queue = ?2 and handler = ?3
    order  by rank, issued_at, run_no, path
    limit  ?4";

pub(super) fn ready(db: &Db, namespace: &Namespace, wanted: &Wanted, limit: usize) -> Stored<Vec<Candidate>> {
    let mut found = Vec::new();
    for queue in &wanted.queues {
        let handlers = match &wanted.handlers {
            Some(handlers) => handlers.iter().map(|handler| handler.to_string()).collect(),
            None => handlers_in(db, namespace, queue.as_str())?,
        };
        for handler in handlers {
            let mut statement = db.prepare_cached(READY)?;
            let mut rows = statement.query(params![namespace.as_str(), queue.as_str(), handler, limit as i64])?;
            while let Some(row) = rows.next()? {
                // A body goes only to a worker that offers its revision by name.
                if wanted.handlers.is_none() && row.get::<_, bool>(5)? {
                    break;
                }
                found.push(Candidate {
                    no: row.get(0)?,
                    run_id: RunId::new(row.get::<_, String>(1)?),
                    path: Path::new(row.get::<_, String>(2)?),
                    rank: row.get(3)?,
                    issued_at: Timestamp::from_micros(row.get(4)?),
                });
            }
        }
    }
    let place = |one: &Candidate| (one.rank, one.issued_at, one.no);
    found.sort_by(|one, other| place(one).cmp(&place(other)).then_with(|| one.path.cmp(&other.path)));
    found.truncate(limit);
    Ok(found)
}

/// The handlers that have tasks in a queue, by jumping from one to the next; what the engine executes itself is left out.
fn handlers_in(db: &Db, namespace: &Namespace, queue: &str) -> Stored<Vec<String>> {
    let text = "
        select handler from ready_tasks
        where  namespace = ?1 and queue = ?2 and handler > ?3
        order  by handler
        limit  1";
    let mut statement = db.prepare_cached(text)?;
    let mut handlers: Vec<String> = Vec::new();
    let mut last = String::new();
    loop {
        let next = statement.query_row(params![namespace.as_str(), queue, last], |row| row.get::<_, String>(0));
        let Some(handler) = next.optional()? else { return Ok(handlers) };
        last.clone_from(&handler);
        if !handler.starts_with("abide:") {
            handlers.push(handler);
        }
    }
}

/// The namespaces that have tasks in a queue, by jumping from one to the next.
pub(super) fn namespaces_of(db: &Db, queue: &Queue) -> Stored<Vec<Namespace>> {
    let next = "select namespace from ready_tasks where namespace > ?1 order by namespace limit 1";
    let has = "select exists (select 1 from ready_tasks where namespace = ?1 and queue = ?2)";
    let (mut next, mut has) = (db.prepare_cached(next)?, db.prepare_cached(has)?);
    let mut namespaces = Vec::new();
    let mut last = String::new();
    while let Some(namespace) = next.query_row([&last], |row| row.get::<_, String>(0)).optional()? {
        if has.query_row([namespace.as_str(), queue.as_str()], |row| row.get::<_, bool>(0))? {
            namespaces.push(Namespace::from(namespace.as_str()));
        }
        last = namespace;
    }
    Ok(namespaces)
}

/// Each message apart: one that cannot be read keeps no other from being read.
pub(super) fn posted(db: &Db, limit: usize) -> Stored<Vec<Waiting>> {
    let text = "select namespace, target, source, source_seq, source_n, n from inbox order by n limit ?1";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query([limit as i64])?;
    let mut posted = Vec::new();
    while let Some(row) = rows.next()? {
        let source = RunId::new(row.get::<_, String>(2)?);
        let key = PostKey { target: key(row, 0)?, source, source_seq: row.get::<_, i64>(3)? as u64, n: row.get(4)? };
        posted.push((key, message(db, row.get(5)?)));
    }
    Ok(posted)
}

pub(super) fn message(db: &Db, n: i64) -> Stored<Message> {
    let text = "select unseal(message, n, '#message') from inbox where n = ?1";
    let bytes: Vec<u8> = db.prepare_cached(text)?.query_row([n], |row| row.get(0))?;
    parse(std::str::from_utf8(&bytes).map_err(corrupt)?, "a message")
}

pub(super) fn to_release(db: &Db, limit: usize) -> Stored<Vec<(RunKey, RunNo, Connection)>> {
    let text = "
        select distinct runs.namespace, runs.run_id, run_no, tool, account
        from   connection_waits join runs using (run_no)
        where  released = 1
        order  by run_no
        limit  ?1";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([limit as i64], |row| {
        Ok((key(row, 0)?, row.get(2)?, Connection { tool: row.get(3)?, account: row.get(4)? }))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn kept(db: &Db, namespace: &Namespace, key: &str) -> Stored<Option<Kept>> {
    let text = "select digest, answer, at from idempotency_keys where namespace = ?1 and key = ?2";
    let found = db
        .prepare_cached(text)?
        .query_row(params![namespace.as_str(), key], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?))
        })
        .optional()?;
    found
        .map(|(bytes, answer, at)| Ok(Kept { digest: digest(&bytes)?, answer, at: Timestamp::from_micros(at) }))
        .transpose()
}

pub(super) fn definition(
    db: &Db,
    namespace: &Namespace,
    workflow: &WorkflowId,
    version: Option<u32>,
) -> Stored<Option<StoredDefinition>> {
    let text = "
        select version, hash, document, created_at from definitions
        where  namespace = ?1 and workflow_id = ?2 and version = coalesce(?3, version)
        order  by version desc
        limit  1";
    let found = db
        .prepare_cached(text)?
        .query_row(params![namespace.as_str(), workflow.as_str(), version], |row| {
            Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let Some((version, hash, document, at)) = found else { return Ok(None) };
    let created_at = Timestamp::from_micros(at);
    Ok(Some(StoredDefinition { version, hash: digest(&hash)?, document, created_at }))
}

pub(super) fn connections(db: &Db) -> Stored<Vec<(Namespace, Connection, ConnectionFacts)>> {
    let text = "select namespace, tool, account, generation, reconnected_at, broken from connections";
    let mut statement = db.prepare_cached(text)?;
    let rows = statement.query_map([], |row| {
        let facts = ConnectionFacts {
            generation: row.get::<_, i64>(3)? as u64,
            reconnected_at: instant(row.get(4)?),
            broken: row.get(5)?,
        };
        let connection = Connection { tool: row.get(1)?, account: row.get(2)? };
        Ok((Namespace::new(row.get::<_, String>(0)?), connection, facts))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
