//! Writing: every row that a batch of decisions changed, and nothing else.

use std::borrow::Cow;

use abide_core::ids::{Digest, Path};
use abide_core::run::step::{Callback, Step};
use abide_core::run::{LateAnswer, Started};
use abide_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection as Db, params};

use super::super::{Moves, RunKey, RunNo, RunWrite, StepWrite, StoreError, Stored, Writes, rows};
use super::{Sqlite, log, room};
use crate::testing::{Bug, Point, at_failpoint, is_planted};
pub(super) use rows::json;

const INSERT_RUN: &str = "
    insert into runs (run_no, namespace, run_id, workflow_id, workflow_version, bucket, state, seq, step_id, reason,
                      failure_kind, owner_id, data_region, parent_run, origin_run, unique_value, created_at, updated_at,
                      ended_at, wake_at, pinned, head)
    values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)";

/// Touches no index: what changes at every step.
const UPDATE_RUN: &str = "
    update runs
    set    state = ?3, seq = ?4, step_id = ?5, reason = ?6, updated_at = ?7, pinned = ?8, head = ?9
    where  run_no = ?1 and seq = ?2";

/// A column that is named is taken out of its index and put back, also when it stays the same: so there is a statement
/// for what happens at every lease.
const WAKE_RUN: &str = "
    update runs
    set    state = ?3, seq = ?4, step_id = ?5, reason = ?6, updated_at = ?7, pinned = ?8, head = ?9, wake_at = ?10
    where  run_no = ?1 and seq = ?2";

/// When a run parks or ends.
const MOVE_RUN: &str = "
    update runs
    set    state = ?3, seq = ?4, step_id = ?5, reason = ?6, updated_at = ?7, pinned = ?8, head = ?9, wake_at = ?10,
           bucket = ?11, failure_kind = ?12, ended_at = ?13
    where  run_no = ?1 and seq = ?2";

const INSERT_LOG: &str = "insert into run_log (run_no, seq, events) values (?1, ?2, ?3)";

const INSERT_STEP: &str = "
    insert into steps (run_no, path, state, open, row, expires_at, last_heartbeat_at, progress)
    values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    on conflict do update set state = excluded.state, open = excluded.open, row = excluded.row,
        expires_at = excluded.expires_at, last_heartbeat_at = excluded.last_heartbeat_at, progress = excluded.progress";

/// The last heartbeat stays known when the lease is over.
const UPDATE_STEP: &str = "
    update steps
    set    state = ?3, row = ?4, expires_at = ?5, last_heartbeat_at = coalesce(?6, last_heartbeat_at), progress = ?7
    where  run_no = ?1 and path = ?2";

const MOVE_STEP: &str = "
    update steps
    set    state = ?3, row = ?4, expires_at = ?5, last_heartbeat_at = coalesce(?6, last_heartbeat_at), progress = ?7,
           open = ?8
    where  run_no = ?1 and path = ?2";

const BEAT: &str = "
    update steps set expires_at = ?3, last_heartbeat_at = ?4, progress = ?5 where run_no = ?1 and path = ?2";

const DELETE_READY: &str = "
    delete from ready_tasks
    where  namespace = ?1 and queue = ?2 and handler = ?3 and rank = ?4 and issued_at = ?5 and run_no = ?6 and path = ?7";

const INSERT_READY: &str = "
    insert into ready_tasks (namespace, queue, handler, rank, issued_at, run_no, path, run_id, body)
    values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

const INSERT_PAYLOAD: &str = "insert into payloads (run_no, name, bytes) values (?1, ?2, ?3)";

/// Of a run that was given something sensitive.
const SEAL_PAYLOAD: &str = "insert into payloads (run_no, name, bytes) values (?1, ?2, seal(?3, ?1, ?2))";

const INSERT_START: &str = "insert into run_starts (run_no, started) values (?1, ?2)";

/// Statements that a batch uses many times. Finding one by its text costs as much as executing it, so each is looked up
/// once per batch.
macro_rules! hot {
    ($($name:ident = $text:ident),+ $(,)?) => {
        pub(super) struct Hot<'a> {
            db: &'a Db,
            $($name: Option<CachedStatement<'a>>),+
        }

        impl<'a> Hot<'a> {
            pub fn new(db: &'a Db) -> Hot<'a> {
                Hot { db, $($name: None),+ }
            }

            $(fn $name(&mut self) -> Stored<&mut CachedStatement<'a>> {
                match &mut self.$name {
                    Some(_) => {}
                    empty => *empty = Some(self.db.prepare_cached($text)?),
                }
                self.$name.as_mut().ok_or_else(|| StoreError::Failed("a statement is gone".into()))
            })+
        }
    };
}

hot! {
    insert_log = INSERT_LOG,
    insert_run = INSERT_RUN,
    insert_start = INSERT_START,
    update_run = UPDATE_RUN,
    wake_run = WAKE_RUN,
    move_run = MOVE_RUN,
    insert_step = INSERT_STEP,
    update_step = UPDATE_STEP,
    move_step = MOVE_STEP,
    beat = BEAT,
    insert_ready = INSERT_READY,
    delete_ready = DELETE_READY,
    insert_payload = INSERT_PAYLOAD,
    seal_payload = SEAL_PAYLOAD,
}

impl Sqlite {
    pub(super) fn write_all(&mut self, writes: &Writes) -> Stored {
        at_failpoint(Point::BeforeWrite);
        let mut hot = Hot::new(&self.db);
        for run in &writes.runs {
            write_run(&mut hot, run)?;
        }
        drop(hot);
        at_failpoint(Point::AfterRows);
        self.write_messages(writes)?;
        write_others(&self.db, writes)
    }

    fn write_messages(&mut self, writes: &Writes) -> Stored {
        for posted in &writes.posted {
            self.last_posted += 1;
            let text = "
                insert into inbox (n, namespace, target, source, source_seq, source_n, message)
                values (?1, ?2, ?3, ?4, ?5, ?6, case when ?8 then seal(?7, ?1, '#message') else ?7 end)";
            self.db.prepare_cached(text)?.execute(params![
                self.last_posted,
                posted.key.target.namespace.as_str(),
                posted.key.target.run_id.as_str(),
                posted.key.source.as_str(),
                posted.key.source_seq as i64,
                posted.key.n,
                json(&posted.message)?.into_bytes(),
                posted.sealed,
            ])?;
        }
        for key in &writes.applied {
            let text = "
                delete from inbox
                where  namespace = ?1 and target = ?2 and source = ?3 and source_seq = ?4 and source_n = ?5";
            self.db.prepare_cached(text)?.execute(params![
                key.target.namespace.as_str(),
                key.target.run_id.as_str(),
                key.source.as_str(),
                key.source_seq as i64,
                key.n
            ])?;
        }
        Ok(())
    }
}

/// The texts of rows are made before the turn of the writer comes.
pub(super) fn prepare(writes: &mut Writes) -> Stored {
    for run in &mut writes.runs {
        if !run.records.is_empty() {
            // They end here, where they were made: memory that another thread gives back costs more.
            run.log = Some(log::encode(&std::mem::take(&mut run.records))?);
        }
        if !run.head.is_empty() {
            let (wakes, ended) = (run.wake_at.is_some(), run.ended_at.is_some());
            room::keep_for_head(&mut run.head, &run.shown, run.to_seq, wakes, ended);
        }
        for step in run.steps.iter_mut().filter(|step| !step.only_live) {
            step.row = Some(row(&step.after)?);
        }
    }
    Ok(())
}

fn row(step: &Step) -> Stored<String> {
    let mut row = json(step)?;
    room::keep_for_step(&mut row, step);
    Ok(row)
}

fn text_of<'a>(made: Option<&'a str>, make: impl FnOnce() -> Stored<String>) -> Stored<Cow<'a, str>> {
    made.map_or_else(|| make().map(Cow::Owned), |made| Ok(Cow::Borrowed(made)))
}

fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::micros)
}

fn write_run(hot: &mut Hot<'_>, write: &RunWrite) -> Stored {
    let says = write.to_seq > write.from_seq;
    if says && (write.from_seq == 0 || !is_planted(Bug::RowWithoutEvents)) {
        let text = text_of(write.log.as_deref(), || log::encode(&write.records))?;
        hot.insert_log()?.execute(params![write.no, write.from_seq as i64 + 1, text])?;
    }
    at_failpoint(Point::AfterEvents);
    if write.from_seq == 0 {
        insert_run(hot, write)?;
    } else if (says || write.moves != Moves::Nothing) && !is_planted(Bug::EventsWithoutRow) {
        update_run(hot, write)?;
    }
    for step in &write.steps {
        write_step(hot, write.no, &write.key, &write.started, step)?;
    }
    for (name, bytes) in &write.payloads {
        let statement = if write.started.sealed { hot.seal_payload()? } else { hot.insert_payload()? };
        statement.execute(params![write.no, name.as_str(), bytes.as_bytes()])?;
    }
    Ok(())
}

fn insert_run(hot: &mut Hot<'_>, write: &RunWrite) -> Stored {
    let started: &Started = &write.started;
    let (namespace, run_id) = (write.key.namespace.as_str(), write.key.run_id.as_str());
    hot.insert_run()?.execute(params![
        write.no,
        namespace,
        run_id,
        started.workflow_id.as_str(),
        started.workflow_version,
        write.shown.bucket,
        write.shown.state.as_str(),
        write.to_seq as i64,
        write.shown.step_id.as_ref().map(Path::as_str),
        write.shown.reason.map(|reason| reason.as_str()),
        write.shown.failure_kind.map(|kind| kind.as_str()),
        started.owner_id,
        started.data_region,
        started.parent.as_ref().map(|parent| parent.run_id.as_str()),
        started.origin.as_ref().and_then(|origin| origin.run_id.as_ref()).map(|run| run.as_str()),
        started.unique,
        started.created_at.micros(),
        write.updated_at.micros(),
        micros(write.ended_at),
        micros(write.wake_at),
        write.pinned,
        write.head,
    ])?;
    hot.insert_start()?.execute(params![write.no, json(started)?])?;
    for (name, value) in &started.labels {
        let text = "insert into run_labels (namespace, name, value, run_no) values (?1, ?2, ?3, ?4)";
        hot.db.prepare_cached(text)?.execute(params![namespace, name, value, write.no])?;
    }
    Ok(())
}

fn update_run(hot: &mut Hot<'_>, write: &RunWrite) -> Stored {
    let (head, shown) = (write.head.as_str(), &write.shown);
    let state = shown.state.as_str();
    let step_id = shown.step_id.as_ref().map(Path::as_str);
    let reason = shown.reason.map(|reason| reason.as_str());
    let (from, to, at) = (write.from_seq as i64, write.to_seq as i64, write.updated_at.micros());
    let (no, pinned, wake_at) = (write.no, write.pinned, micros(write.wake_at));
    let changed = match write.moves {
        Moves::Nothing => {
            let values = params![no, from, state, to, step_id, reason, at, pinned, head];
            hot.update_run()?.execute(values)?
        }
        Moves::Wake => {
            let values = params![no, from, state, to, step_id, reason, at, pinned, head, wake_at];
            hot.wake_run()?.execute(values)?
        }
        Moves::Bucket => {
            let (failure, ended_at) = (shown.failure_kind.map(|kind| kind.as_str()), micros(write.ended_at));
            let bucket = shown.bucket;
            let values =
                params![no, from, state, to, step_id, reason, at, pinned, head, wake_at, bucket, failure, ended_at];
            hot.move_run()?.execute(values)?
        }
    };
    // The version guards every write: nobody else may have written this run since it was loaded.
    if changed == 1 { Ok(()) } else { Err(StoreError::Conflict) }
}

pub(super) fn write_step(hot: &mut Hot<'_>, no: RunNo, key: &RunKey, started: &Started, write: &StepWrite) -> Stored {
    let StepWrite { before, after, only_live, row } = write;
    let path = after.path.as_str();
    let live = after.live.as_ref();
    let expires_at = live.map(|live| live.expires_at.micros());
    let beat_at = live.map(|live| live.last_heartbeat_at.micros());
    let progress = live.and_then(|live| live.progress.as_ref()).map(json).transpose()?;
    if *only_live {
        hot.beat()?.execute(params![no, path, expires_at, beat_at, progress])?;
        return Ok(());
    }
    let row = text_of(row.as_deref(), || self::row(after))?;
    let (state, open) = (after.state.as_str(), after.is_open());
    match before {
        None => {
            let values = params![no, path, state, open, row, expires_at, beat_at, progress];
            hot.insert_step()?.execute(values)?;
        }
        Some(before) if before.is_open() == open => {
            hot.update_step()?.execute(params![no, path, state, row, expires_at, beat_at, progress])?;
        }
        Some(_) => {
            hot.move_step()?.execute(params![no, path, state, row, expires_at, beat_at, progress, open])?;
        }
    }
    write_found(hot, no, key, started, before.as_deref(), after)
}

/// What makes the row findable: queues, connections, decisions, callbacks.
fn write_found(
    hot: &mut Hot<'_>,
    no: RunNo,
    key: &RunKey,
    started: &Started,
    before: Option<&Step>,
    after: &Step,
) -> Stored {
    let namespace = key.namespace.as_str();
    let path = after.path.as_str();
    let (was, is) = (before.and_then(|before| rows::ready(started, before)), rows::ready(started, after));
    if was != is {
        if let Some(was) = was.filter(|_| !is_planted(Bug::ReadyRowStays)) {
            hot.delete_ready()?.execute(params![
                namespace,
                was.queue.as_str(),
                was.handler.as_str(),
                was.rank,
                was.issued_at.micros(),
                no,
                path
            ])?;
        }
        if let Some(is) = is {
            hot.insert_ready()?.execute(params![
                namespace,
                is.queue.as_str(),
                is.handler.as_str(),
                is.rank,
                is.issued_at.micros(),
                no,
                path,
                key.run_id.as_str(),
                is.body
            ])?;
        }
    }
    let (was, is) = (before.and_then(rows::connection), rows::connection(after));
    if was != is {
        if let Some(was) = was {
            let text = "
                delete from connection_waits
                where  namespace = ?1 and tool = ?2 and account = ?3 and run_no = ?4 and path = ?5";
            hot.db.prepare_cached(text)?.execute(params![namespace, was.tool, was.account, no, path])?;
        }
        if let Some(is) = is {
            let text = "
                insert into connection_waits (namespace, tool, account, run_no, path) values (?1, ?2, ?3, ?4, ?5)";
            hot.db.prepare_cached(text)?.execute(params![namespace, is.tool, is.account, no, path])?;
        }
    }
    let span =
        |approval: Option<(_, &abide_core::run::step::Block)>| approval.map(|(_, block)| (block.since, block.until));
    let (was, is) = (span(before.and_then(rows::approval)), span(rows::approval(after)));
    if was != is {
        let text = "delete from approvals where namespace = ?1 and run_no = ?2 and path = ?3";
        hot.db.prepare_cached(text)?.execute(params![namespace, no, path])?;
        if let Some((since, until)) = is {
            let text = "insert into approvals (namespace, run_no, path, since, until) values (?1, ?2, ?3, ?4, ?5)";
            hot.db.prepare_cached(text)?.execute(params![namespace, no, path, since.micros(), micros(until)])?;
        }
    }
    write_callbacks(hot.db, no, before, after)
}

/// A token stays known when it was used: who uses it again is told so. It goes when its answer was
/// delivered and another one takes its name.
fn write_callbacks(db: &Db, no: RunNo, before: Option<&Step>, after: &Step) -> Stored {
    let known = before.map_or(&[][..], |before| before.callbacks.as_slice());
    let lacks = |list: &[Callback], token: &Digest| !list.iter().any(|callback| callback.token_hash == *token);
    for gone in known.iter().filter(|callback| lacks(&after.callbacks, &callback.token_hash)) {
        let text = "delete from callbacks where token_hash = ?1 and run_no = ?2";
        db.prepare_cached(text)?.execute(params![gone.token_hash.0.as_slice(), no])?;
    }
    for new in after.callbacks.iter().filter(|callback| lacks(known, &callback.token_hash)) {
        let text = "insert or ignore into callbacks (token_hash, run_no, path) values (?1, ?2, ?3)";
        db.prepare_cached(text)?.execute(params![new.token_hash.0.as_slice(), no, after.path.as_str()])?;
    }
    Ok(())
}

fn write_others(db: &Db, writes: &Writes) -> Stored {
    for (namespace, key, kept) in &writes.kept {
        let text = "insert into idempotency_keys (namespace, key, digest, at, answer) values (?1, ?2, ?3, ?4, ?5)";
        let values = params![namespace.as_str(), key, kept.digest.0.as_slice(), kept.at.micros(), kept.answer];
        db.prepare_cached(text)?.execute(values)?;
    }
    for (namespace, workflow, definition) in &writes.definitions {
        let text = "
            insert into definitions (namespace, workflow_id, version, hash, created_at, document)
            values (?1, ?2, ?3, ?4, ?5, ?6)";
        db.prepare_cached(text)?.execute(params![
            namespace.as_str(),
            workflow.as_str(),
            definition.version,
            definition.hash.0.as_slice(),
            definition.created_at.micros(),
            definition.document
        ])?;
    }
    for write in &writes.connections {
        let (namespace, connection, facts) = (write.namespace.as_str(), &write.connection, &write.facts);
        let text = "
            insert into connections (namespace, tool, account, generation, reconnected_at, broken)
            values (?1, ?2, ?3, ?4, ?5, ?6)
            on conflict do update set generation = excluded.generation, reconnected_at = excluded.reconnected_at,
                broken = excluded.broken";
        db.prepare_cached(text)?.execute(params![
            namespace,
            connection.tool,
            connection.account,
            facts.generation as i64,
            micros(facts.reconnected_at),
            facts.broken
        ])?;
        if write.release {
            let text = "
                update connection_waits set released = 1
                where  namespace = ?1 and tool = ?2 and account = ?3 and released = 0";
            db.prepare_cached(text)?.execute(params![namespace, connection.tool, connection.account])?;
        }
    }
    for late in &writes.late {
        let text = "
            insert or ignore into late_answers (run_no, path, n, worker, epoch, v, output, at)
            values (?1, ?2, ?3, ?4, ?5, 2, case when ?8 then seal(?6, ?1, '#late/' || ?2) else ?6 end, ?7)";
        let LateAnswer { epoch, said, at } = &late.answer;
        let said = json(said)?.into_bytes();
        let (path, worker) = (late.path.as_str(), late.worker.as_str());
        db.prepare_cached(text)?.execute(params![
            late.no,
            path,
            late.n as i64,
            worker,
            epoch.0 as i64,
            said,
            at.micros(),
            late.sealed
        ])?;
    }
    for (no, connection) in &writes.released {
        let text = "update connection_waits set released = 0 where run_no = ?1 and tool = ?2 and account = ?3";
        db.prepare_cached(text)?.execute(params![no, connection.tool, connection.account])?;
    }
    for (no, until) in &writes.postponed {
        db.prepare_cached("update runs set wake_at = ?2 where run_no = ?1")?.execute(params![no, until.micros()])?;
    }
    for archived in &writes.archived {
        super::archive::store(db, archived.no, &archived.bundle, archived.size, archived.at)?;
        at_failpoint(Point::AfterArchive);
    }
    if let Some(before) = writes.forgotten {
        super::archive::forget(db, before)?;
    }
    if let Some((position, added)) = &writes.counted {
        super::insights::add(db, *position, added)?;
    }
    for (access, at) in &writes.access {
        super::access::write(db, access, *at)?;
    }
    for (link, at) in &writes.links_used {
        super::access::use_link(db, link, *at)?;
    }
    if let Some((since, now)) = writes.served {
        let text = "
            insert into serving (one, since, last_at) values (1, ?1, ?2)
            on conflict do update set since = excluded.since, last_at = excluded.last_at";
        db.prepare_cached(text)?.execute([since.micros(), now.micros()])?;
    }
    for heard in &writes.heard {
        let text = "
            insert into workers (namespace, queue, worker, handlers, last_poll_at) values (?1, ?2, ?3, ?4, ?5)
            on conflict do update set handlers = excluded.handlers, last_poll_at = excluded.last_poll_at";
        let (namespace, queue, worker) = (heard.namespace.as_str(), heard.queue.as_str(), heard.worker.as_str());
        let handlers = heard.handlers.as_ref().map(json).transpose()?;
        db.prepare_cached(text)?.execute(params![namespace, queue, worker, handlers, heard.at.micros()])?;
    }
    Ok(())
}
