//! The rows of a run, as they are stored, against what its log makes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_core::ids::{Namespace, Path, RunId};
use abide_core::run::invariant::LogReader;
use abide_core::run::step::{Live, Step};
use abide_core::run::{Columns, Working};
use abide_core::time::Timestamp;
use abide_engine::store::{RunKey, RunNo, rows};
use rusqlite::{Connection as Db, Row, params};

use super::{Judged, Seen, broken};

/// A run and its steps, as text.
pub struct StoredRun {
    pub key: RunKey,
    pub seq: u64,
    pub state: String,
    pub wake_at: Option<Timestamp>,
    bucket: String,
    step_id: Option<String>,
    reason: Option<String>,
    failure_kind: Option<String>,
    ended_at: Option<Timestamp>,
    updated_at: Option<Timestamp>,
    pinned: bool,
    head: String,
    started: String,
    steps: BTreeMap<Path, StoredStep>,
}

struct StoredStep {
    state: String,
    open: bool,
    row: String,
    expires_at: Option<Timestamp>,
    beat_at: Option<Timestamp>,
}

const RUN: &str = "
    select namespace, run_id, seq, state, wake_at, bucket, step_id, reason, failure_kind, ended_at, rtrim(head), started,
           updated_at, pinned
    from   runs join run_starts using (run_no)
    where  run_no = ?1";

const STEPS: &str = "select path, state, open, rtrim(row), expires_at, last_heartbeat_at from steps where run_no = ?1";

fn instant(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp::from_micros))
}

pub fn stored(db: &Db, no: RunNo) -> Judged<StoredRun> {
    read(db, no).or_else(|error| broken("I22", format!("run {no} was written and cannot be read: {error}")))
}

fn read(db: &Db, no: RunNo) -> rusqlite::Result<StoredRun> {
    let mut run = db.prepare_cached(RUN)?.query_row([no], |row| {
        let namespace = Namespace::new(row.get::<_, String>(0)?);
        Ok(StoredRun {
            key: RunKey { namespace, run_id: RunId::new(row.get::<_, String>(1)?) },
            seq: row.get::<_, i64>(2)? as u64,
            state: row.get(3)?,
            wake_at: instant(row, 4)?,
            bucket: row.get(5)?,
            step_id: row.get(6)?,
            reason: row.get(7)?,
            failure_kind: row.get(8)?,
            ended_at: instant(row, 9)?,
            head: row.get(10)?,
            started: row.get(11)?,
            updated_at: instant(row, 12)?,
            pinned: row.get(13)?,
            steps: BTreeMap::new(),
        })
    })?;
    let mut statement = db.prepare_cached(STEPS)?;
    let mut rows = statement.query([no])?;
    while let Some(row) = rows.next()? {
        let step = StoredStep {
            state: row.get(1)?,
            open: row.get(2)?,
            row: row.get(3)?,
            expires_at: instant(row, 4)?,
            beat_at: instant(row, 5)?,
        };
        run.steps.insert(Path::new(row.get::<_, String>(0)?), step);
    }
    Ok(run)
}

fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl Seen {
    pub fn new(no: RunNo, key: RunKey) -> Seen {
        Seen {
            no,
            run: Working::unborn(key.run_id.clone(), key.namespace.clone()),
            key,
            wake_at: None,
            reader: LogReader::default(),
            texts: BTreeMap::new(),
            fed: 0,
            leases: BTreeMap::new(),
            children_ended: BTreeSet::new(),
            completed: BTreeSet::new(),
            released: BTreeSet::new(),
        }
    }

    /// I1: folding the log gives exactly the rows.
    pub fn compare(&mut self, stored: &StoredRun) -> Judged {
        let head = &self.run.head;
        let differs = |what: &str, folded: &str, row: &str| {
            broken("I1", format!("{}: {what} is {row} and should be {folded}", stored.key.run_id))
        };
        if stored.seq != head.seq {
            return differs("the version", &head.seq.to_string(), &stored.seq.to_string());
        }
        let mut left_out = head.clone();
        left_out.swap_columns(&mut Columns::default());
        let folded = text(&left_out);
        if folded != stored.head {
            return differs("the head", &folded, &stored.head);
        }
        if text(&*head.started) != stored.started {
            return differs("the start", &text(&*head.started), &stored.started);
        }
        for (path, row) in &stored.steps {
            let Some(Some(step)) = self.run.steps.get(path) else {
                return differs("a row", "absent", &row.row);
            };
            let known = self.texts.get(path).is_some_and(|(of, _)| Arc::ptr_eq(of, step));
            if !known {
                self.texts.insert(path.clone(), (step.clone(), text(&**step)));
            }
            let folded = self.texts.get(path).map_or("", |(_, folded)| folded);
            if *folded != row.row {
                return differs("a row", folded, &row.row);
            }
            if row.state != step.state.as_str() || row.open != step.is_open() {
                return differs("what is found of a row", step.state.as_str(), &row.state);
            }
        }
        if self.run.steps.values().flatten().count() != stored.steps.len() {
            return differs("the number of rows", "another", &stored.steps.len().to_string());
        }
        self.compare_shown(stored)
    }

    /// What lists filter by is what the run shows.
    fn compare_shown(&self, stored: &StoredRun) -> Judged {
        let shown = rows::shown(&self.run);
        let same = stored.state == shown.state.as_str()
            && stored.bucket == shown.bucket
            && stored.step_id.as_deref() == shown.step_id.as_ref().map(Path::as_str)
            && stored.reason.as_deref() == shown.reason.map(|reason| reason.as_str())
            && stored.failure_kind.as_deref() == shown.failure_kind.map(|kind| kind.as_str())
            && stored.ended_at == self.run.head.ended_at
            && stored.updated_at == Some(self.run.head.updated_at)
            && stored.pinned == self.run.head.pinned;
        if !same {
            let of_row = (&stored.state, &stored.bucket, &stored.step_id, &stored.reason, &stored.failure_kind);
            return broken("I1", format!("{}: the row shows {of_row:?}, not {shown:?}", self.key.run_id));
        }
        match stored.wake_at.filter(|_| self.run.is_terminal()) {
            Some(wake_at) => broken("I5", format!("{} ended and wakes at {wake_at}", self.key.run_id)),
            None => Ok(()),
        }
    }

    /// The run with what heartbeats move, and the leases as long as they now are.
    pub fn with_liveness(&mut self, stored: &StoredRun) -> Working {
        let mut whole = self.run.clone();
        for step in whole.steps.values_mut().flatten().filter(|step| step.is_leased()) {
            let Some(row) = stored.steps.get(&step.path) else { continue };
            let (Some(expires_at), Some(last_heartbeat_at)) = (row.expires_at, row.beat_at) else { continue };
            let live = Live { expires_at, last_heartbeat_at, progress: None };
            if let Some(lease) = step.lease().and_then(|lease| self.leases.get_mut(&lease.epoch)) {
                lease.expires_at = lease.expires_at.max(expires_at);
            }
            *step = Arc::new(Step { live: Some(live), ..(**step).clone() });
        }
        whole
    }
}

/// Queues, connections and decisions find exactly the rows that they should.
pub fn check_found(db: &Db, seen: &Seen) -> Judged {
    let head = &seen.run.head;
    let open = || seen.run.open();
    let ready = open().filter_map(|step| {
        let ready = rows::ready(&head.started, step)?;
        Some(format!("{}|{}|{}|{}|{}", step.path, ready.queue, ready.handler, ready.rank, ready.issued_at.micros()))
    });
    let text = "
        select path || '|' || queue || '|' || handler || '|' || rank || '|' || issued_at
        from   ready_tasks
        where  run_no = ?1";
    check_table(db, seen, "ready_tasks", text, ready.collect())?;
    let waits = open().filter_map(|step| Some(format!("{}|{}", step.path, rows::connection(step)?)));
    let text = "select path || '|' || tool || '/' || account from connection_waits where run_no = ?1";
    check_table(db, seen, "connection_waits", text, waits.collect())?;
    let approvals = open().filter_map(|step| {
        let (_, block) = rows::approval(step)?;
        let until = block.until.map_or_else(String::new, |until| until.micros().to_string());
        Some(format!("{}|{}|{until}", step.path, block.since.micros()))
    });
    let text = "select path || '|' || since || '|' || coalesce(until, '') from approvals where run_no = ?1";
    check_table(db, seen, "approvals", text, approvals.collect())?;
    let rows = seen.run.steps.values().flatten();
    let callbacks =
        rows.flat_map(|step| step.callbacks.iter().map(|callback| format!("{}|{}", step.path, callback.token_hash)));
    let text = "select path || '|' || lower(hex(token_hash)) from callbacks where run_no = ?1";
    check_table(db, seen, "callbacks", text, callbacks.collect())
}

fn check_table(db: &Db, seen: &Seen, table: &str, text: &str, of_rows: BTreeSet<String>) -> Judged {
    let read = || -> rusqlite::Result<BTreeSet<String>> {
        db.prepare_cached(text)?.query_map(params![seen.no], |row| row.get(0))?.collect()
    };
    match read() {
        Ok(stored) if stored == of_rows => Ok(()),
        Ok(stored) => broken("rows", format!("{}: {table} has {stored:?}, the rows give {of_rows:?}", seen.key.run_id)),
        Err(error) => broken("store", error.to_string()),
    }
}
