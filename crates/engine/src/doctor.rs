//! The checker: folds every log again and compares it with the rows, verifies chains, payloads, indexes and what runs say
//! of each other. `rebuild` makes the rows again from the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_core::ids::Digest;
use abide_core::run::invariant::{Violation, broken, broken_log};
use abide_core::run::step::{Step, Wait};
use abide_core::run::{Head, Working, replay};
use abide_core::time::Timestamp;
use rusqlite::Connection as Db;
use serde_json::Value;

use crate::message::Message;
use crate::store::sqlite::Readers;
use crate::store::sqlite::check::{self, Columns, Findable, Standing, Whole};
use crate::store::{RunKey, RunNo, Stored, rows};

/// How many runs are read in one go.
const PAGE: usize = 64;
/// A report that lists more says the same many times.
const MOST_PROBLEMS: usize = 1_000;

/// What was looked at, and what does not hold.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub runs: u64,
    pub archived: u64,
    pub events: u64,
    pub payloads: u64,
    pub problems: Vec<Problem>,
}

/// Something that should not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// None: of the store as a whole.
    pub run: Option<RunKey>,
    /// `I1`, say.
    pub rule: &'static str,
    pub what: String,
}

impl Report {
    pub fn is_healthy(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn add(&mut self, run: Option<&RunKey>, rule: &'static str, what: impl Into<String>) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(Problem { run: run.cloned(), rule, what: what.into() });
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.run {
            Some(run) => write!(f, "{} {}: {}", self.rule, run.run_id, self.what),
            None => write!(f, "{}: {}", self.rule, self.what),
        }
    }
}

/// Examines everything. Each run is read in one snapshot, so an engine may go on meanwhile.
pub fn examine(readers: &Readers) -> Stored<Report> {
    let mut report = Report::default();
    for what in readers.read(check::orphans)? {
        report.add(None, "I1", what);
    }
    let mut after = 0;
    loop {
        let numbers = readers.read(|db| check::run_numbers(db, after, PAGE))?;
        let Some(last) = numbers.last() else { break };
        after = *last;
        for no in numbers {
            readers.read(|db| examine_run(db, no, &mut report))?;
        }
    }
    crate::archive::examine(readers, &mut report)?;
    Ok(report)
}

/// Examines one run with everything that belongs to it.
pub fn examine_run(db: &Db, no: RunNo, report: &mut Report) -> Stored {
    let whole = match check::whole(db, no) {
        Ok(Some(whole)) => whole,
        // It was archived meanwhile.
        Ok(None) => return Ok(()),
        Err(error) => {
            report.add(None, "I1", format!("run {no} cannot be read: {error}"));
            return Ok(());
        }
    };
    report.runs += 1;
    report.events += whole.log.len() as u64;
    let run = working(&whole.head, &whole.steps);
    compare_fold(&whole, &run, report);
    for Violation { rule, what } in broken_log(&whole.log) {
        report.add(Some(&whole.key), rule, what);
    }
    for Violation { rule, what } in broken(&run, whole.wake_at, check::serving_since(db)?) {
        report.add(Some(&whole.key), rule, what);
    }
    compare_rows(db, &whole, &run, report)?;
    check_payloads(db, &whole, report)?;
    check_others(db, &whole, &run, report)
}

fn working(head: &Head, steps: &[Arc<Step>]) -> Working {
    let steps = steps.iter().map(|step| (step.path.clone(), Some(step.clone()))).collect();
    Working { head: Box::new(head.clone()), steps, payloads: BTreeMap::new() }
}

/// I1, I2: the log folded again is exactly the rows.
fn compare_fold(whole: &Whole, run: &Working, report: &mut Report) {
    let key = Some(&whole.key);
    let unborn = Working::unborn(whole.key.run_id.clone(), whole.key.namespace.clone());
    let folded = match replay(unborn, &whole.log) {
        Ok(folded) => folded,
        Err(error) => return report.add(key, "I1", format!("the log cannot be folded: {error}")),
    };
    if text(&folded.head) != whole.head_text || text(&*folded.head.started) != whole.started_text {
        report.add(key, "I1", "the head is not what its log says");
    }
    let rows: BTreeMap<_, _> = run.steps.values().flatten().map(|step| (&step.path, text(&**step))).collect();
    let made: BTreeMap<_, _> = folded.steps.values().flatten().map(|step| (&step.path, text(&**step))).collect();
    for path in rows.keys().chain(made.keys()).collect::<BTreeSet<_>>() {
        if rows.get(path) != made.get(path) {
            report.add(key, "I1", format!("step {path} is not what its log says"));
        }
    }
}

pub(crate) fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What lists and queues show is what the rows say.
fn compare_rows(db: &Db, whole: &Whole, run: &Working, report: &mut Report) -> Stored {
    let key = Some(&whole.key);
    let columns = columns_of(run);
    if columns != whole.columns {
        report.add(key, "I1", format!("the columns say {:?}, the head {columns:?}", whole.columns));
    }
    let expected = findable_of(run);
    let found = check::findable(db, whole, &expected)?;
    if found != expected {
        report.add(key, "I32", format!("it is found as {found:?}, its rows say {expected:?}"));
    }
    Ok(())
}

pub(crate) fn columns_of(run: &Working) -> Columns {
    let (head, shown) = (&run.head, rows::shown(run));
    let started = &head.started;
    Columns {
        workflow: started.workflow_id.to_string(),
        version: started.workflow_version,
        bucket: shown.bucket.into(),
        state: shown.state.as_str().into(),
        seq: head.seq,
        step_id: shown.step_id.map(|path| path.to_string()),
        reason: shown.reason.map(|reason| reason.as_str().into()),
        failure_kind: shown.failure_kind.map(|kind| kind.as_str().into()),
        parent: started.parent.as_ref().map(|parent| parent.run_id.to_string()),
        origin: started.origin.as_ref().and_then(|origin| origin.run_id.as_ref()).map(|run| run.to_string()),
        unique: started.unique.clone(),
        created_at: started.created_at.micros(),
        updated_at: head.updated_at.micros(),
        ended_at: head.ended_at.map(Timestamp::micros),
        pinned: head.pinned,
    }
}

fn findable_of(run: &Working) -> Findable {
    let mut found = Findable { labels: run.head.started.labels.clone(), ..Findable::default() };
    for step in run.steps.values().flatten() {
        let path = step.path.to_string();
        if let Some(ready) = rows::ready(&run.head.started, step) {
            let (queue, handler) = (ready.queue.to_string(), ready.handler.to_string());
            found.ready.insert((queue, handler, ready.rank, ready.issued_at.micros(), path.clone(), ready.body));
        }
        if let Some(connection) = rows::connection(step) {
            found.connections.insert((connection.tool.clone(), connection.account.clone(), path.clone()));
        }
        if let Some((_, block)) = rows::approval(step) {
            found.approvals.insert((path.clone(), block.since.micros(), block.until.map(Timestamp::micros)));
        }
        for callback in &step.callbacks {
            found.callbacks.insert((callback.token_hash.0.to_vec(), path.clone()));
        }
        if step.is_open() {
            found.open.insert(path);
        }
    }
    found
}

/// I10: every payload that an event speaks of is there, with the bytes that were said.
fn check_payloads(db: &Db, whole: &Whole, report: &mut Report) -> Stored {
    let mut refs = BTreeMap::new();
    for record in &whole.log {
        if let Ok(value) = serde_json::from_str::<Value>(record.payload.get()) {
            collect_refs(&value, &mut refs);
        }
    }
    for (name, (digest, size)) in refs {
        report.payloads += 1;
        match check::payload(db, whole.no, &name) {
            Err(error) => report.add(Some(&whole.key), "I10", format!("the payload {name} cannot be read: {error}")),
            Ok(None) => report.add(Some(&whole.key), "I10", format!("the payload {name} is not there")),
            Ok(Some(json)) if json.len() as u64 != size || Digest::of(json.as_bytes()).to_string() != digest => {
                report.add(Some(&whole.key), "I10", format!("the payload {name} has other bytes than were stored"));
            }
            Ok(Some(_)) => {}
        }
    }
    Ok(())
}

/// Everything of the shape `{name, digest, size}`.
fn collect_refs(value: &Value, refs: &mut BTreeMap<String, (String, u64)>) {
    match value {
        Value::Object(fields) => {
            let found = (fields.get("name"), fields.get("digest"), fields.get("size"));
            if let (Some(Value::String(name)), Some(Value::String(digest)), Some(Value::Number(size))) = found {
                refs.insert(name.clone(), (digest.clone(), size.as_u64().unwrap_or(0)));
            }
            fields.values().for_each(|value| collect_refs(value, refs));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_refs(value, refs)),
        _ => {}
    }
}

/// I12, I39: what it was started with exists, and parents and children agree about each other.
fn check_others(db: &Db, whole: &Whole, run: &Working, report: &mut Report) -> Stored {
    let key = Some(&whole.key);
    let started = &whole.head.started;
    let (workflow, version) = (&started.workflow_id, started.workflow_version);
    if !check::has_definition(db, &whole.key.namespace, workflow, version, started.definition_hash)? {
        report.add(key, "I12", format!("version {version} of {workflow} is not stored as it was"));
    }
    for step in run.open() {
        let Some(Wait::Child { run_id }) = step.block.as_ref().map(|block| &block.wait) else { continue };
        let child = RunKey { namespace: whole.key.namespace.clone(), run_id: run_id.clone() };
        let fine = match check::standing(db, &child)? {
            Standing::Open(_) => true,
            // Its end is on the way.
            Standing::Ended => check::messages_for(db, &whole.key)?
                .iter()
                .any(|message| matches!(message, Message::ChildEnded { child, .. } if child == run_id)),
            Standing::Absent => {
                check::messages_for(db, &child)?.iter().any(|message| matches!(message, Message::Start(_)))
                    || check::messages_for(db, &whole.key)?
                        .iter()
                        .any(|message| matches!(message, Message::ChildEnded { child, .. } if child == run_id))
            }
        };
        if !fine {
            report.add(key, "I39", format!("{} waits for {run_id}, which will not answer", step.path));
        }
    }
    if let Some(parent) = started.parent.as_ref() {
        let parent = RunKey { namespace: whole.key.namespace.clone(), run_id: parent.run_id.clone() };
        if check::standing(db, &parent)? == Standing::Absent {
            report.add(key, "I39", format!("its parent {} is not there", parent.run_id));
        }
    }
    Ok(())
}
