//! The checker: folds every log again and compares it with the rows, verifies chains, payloads, indexes and what runs say
//! of each other. `rebuild` makes the rows again from the log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as FilePath;
use std::sync::Arc;

use abide_core::definition::Definition;
use abide_core::ids::Digest;
use abide_core::run::event::Record;
use abide_core::run::invariant::{Violation, broken, broken_log, disowned, overdue, too_many_attempts};
use abide_core::run::step::{Step, Wait};
use abide_core::run::{Head, Working, replay};
use abide_core::time::Timestamp;
use rusqlite::Connection as Db;
use serde_json::Value;

use crate::message::Message;
use crate::store::sqlite::check::commits::broken_commits;
use crate::store::sqlite::check::others;
use crate::store::sqlite::check::{self, Columns, Findable, Standing, Whole};
use crate::store::sqlite::schema::{self, Part};
use crate::store::sqlite::{Files, Readers, read};
use crate::store::{RunKey, RunNo, Stored, rows};

/// How many runs are read in one go.
const PAGE: usize = 64;
/// How many commits are read in one go.
const COMMITS: usize = 10_000;
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

/// Examines a data directory that no engine has open. Nothing in it changes.
pub fn examine_directory(directory: &FilePath) -> Stored<Report> {
    examine(&Readers::new(Files::read_only(directory)?)?)
}

/// Examines everything. Each question, and each run, is read in a snapshot of its own, so an engine may go on meanwhile.
pub fn examine(readers: &Readers) -> Stored<Report> {
    let mut report = Report::default();
    if !examine_schema(readers, &mut report)? {
        return Ok(report);
    }
    for (rule, what, text) in check::OF_ALL {
        match readers.read_at_length(|db| check::count(db, text)) {
            Ok(0) => {}
            Ok(count) => report.add(None, rule, format!("{count} {what}")),
            Err(error) => report.add(None, rule, format!("{what} cannot be counted: {error}")),
        }
    }
    if let Some(said) = readers.read_at_length(check::damage)? {
        report.add(None, "I1", format!("the file is damaged: {said}"));
    }
    examine_documents(readers, &mut report)?;
    examine_commits(readers, &mut report);
    examine_waits(readers, &mut report);
    examine_links(readers, &mut report);
    let (mut after, mut documents) = (0, Documents::default());
    loop {
        let numbers = readers.read(|db| check::run_numbers(db, after, PAGE))?;
        let Some(last) = numbers.last() else { break };
        after = *last;
        for no in numbers {
            if let Err(error) = readers.read_at_length(|db| examine_run(db, no, &mut documents, &mut report)) {
                report.add(None, "I1", format!("run {no} cannot be examined: {error}"));
            }
        }
    }
    crate::archive::examine(readers, &mut report)?;
    Ok(report)
}

/// I1: every table and index, and every guard of the log, is there. False: nothing can be asked of what is left.
fn examine_schema(readers: &Readers, report: &mut Report) -> Stored<bool> {
    let missing = readers.read(schema::missing)?;
    for part in &missing {
        report.add(None, "I1", format!("the {} {} is missing", part.kind, part.name));
    }
    let whole = !missing.iter().any(Part::is_table);
    if !whole {
        report.add(
            None,
            "I1",
            "nothing else was checked, because tables are missing: `--rebuild` makes them from the log",
        );
    }
    Ok(whole)
}

/// I12: every document still has the hash that runs know it by.
fn examine_documents(readers: &Readers, report: &mut Report) -> Stored {
    let mut after = Default::default();
    loop {
        let page = readers.read(|db| check::documents(db, &after, PAGE))?;
        for document in &page {
            let (namespace, workflow, version) = &document.place;
            let what = match Definition::parse_stored(&document.text) {
                Ok(definition) if definition.hash == document.hash => continue,
                Ok(_) => "does not have its hash".into(),
                Err(error) => format!("cannot be read: {error}"),
            };
            report.add(None, "I12", format!("version {version} of {workflow} in {namespace} {what}"));
        }
        let Some(last) = page.into_iter().last() else { return Ok(()) };
        after = last.place;
    }
}

/// I47: the commits speak of what the log has.
fn examine_commits(readers: &Readers, report: &mut Report) {
    let mut next = Some(0);
    while let Some(from) = next {
        next = match readers.read_at_length(|db| broken_commits(db, from, COMMITS)) {
            Ok((found, next)) => {
                found.into_iter().for_each(|what| report.add(None, "I47", what));
                next
            }
            Err(error) => return report.add(None, "I47", format!("the commits cannot be read: {error}")),
        };
    }
}

/// I33: nobody waits for somebody who waits for them.
fn examine_waits(readers: &Readers, report: &mut Report) {
    match readers.read_at_length(others::waiting_in_a_circle) {
        Ok(runs) => runs.iter().for_each(|run| report.add(Some(run), "I33", "it waits in a circle of runs")),
        Err(error) => report.add(None, "I33", format!("who waits for whom cannot be read: {error}")),
    }
}

/// I44: with each link that was used, its owner has decided.
fn examine_links(readers: &Readers, report: &mut Report) {
    let mut after = Vec::new();
    let mut examine = |report: &mut Report| {
        readers.read_at_length(|db| {
            let page = others::used_links(db, &after, PAGE)?;
            for link in &page {
                if !others::has_decided(db, link.no, &link.path, &link.whom)? {
                    let what = format!("a link about {} was used, and {} has not decided", link.path, link.whom);
                    report.add(Some(&link.key), "I44", what);
                }
            }
            Ok(page.into_iter().last().map(|last| after = last.token_hash).is_some())
        })
    };
    loop {
        match examine(report) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return report.add(None, "I44", format!("the links cannot be read: {error}")),
        }
    }
}

/// Documents that were read, by their hashes: many runs have the same one.
#[derive(Debug, Default)]
struct Documents(BTreeMap<Digest, Option<Definition>>);

impl Documents {
    /// How many are kept at once.
    const MOST: usize = 256;

    /// The document of a run; nothing when it is not stored as it was, and nothing in it when it cannot be read.
    fn of(&mut self, db: &Db, whole: &Whole) -> Stored<Option<Option<&Definition>>> {
        let (namespace, started) = (&whole.key.namespace, &whole.head.started);
        let (workflow, version, hash) = (&started.workflow_id, started.workflow_version, started.definition_hash);
        let Some(text) = check::definition(db, namespace, workflow, version, hash)? else { return Ok(None) };
        if self.0.len() >= Documents::MOST && !self.0.contains_key(&hash) {
            self.0.clear();
        }
        let parsed = self.0.entry(hash).or_insert_with(|| Definition::parse_stored(&text).ok());
        Ok(Some(parsed.as_ref()))
    }
}

/// Examines one run with everything that belongs to it.
fn examine_run(db: &Db, no: RunNo, documents: &mut Documents, report: &mut Report) -> Stored {
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
    let served = check::served(db)?;
    let of_rows = broken(&run, whole.wake_at, served.since).into_iter().chain(overdue(&run, whole.wake_at, served));
    for Violation { rule, what } in of_rows {
        report.add(Some(&whole.key), rule, what);
    }
    match documents.of(db, &whole)? {
        Some(document) => {
            for Violation { rule, what } in
                document.map(|document| too_many_attempts(&run, document)).into_iter().flatten()
            {
                report.add(Some(&whole.key), rule, what);
            }
        }
        None => {
            let (workflow, version) = (&whole.head.started.workflow_id, whole.head.started.workflow_version);
            report.add(Some(&whole.key), "I12", format!("version {version} of {workflow} is not stored as it was"));
        }
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
    let mut folded = match replay(unborn, &whole.log) {
        Ok(folded) => folded,
        Err(error) => return report.add(key, "I1", format!("the log cannot be folded: {error}")),
    };
    let said = [rows::head(&mut folded.head).unwrap_or_default(), text(&*folded.head.started)];
    if *folded.head != whole.head || said != [whole.head_text.as_str(), whole.started_text.as_str()] {
        report.add(key, "I1", "the head is not what its log says");
    }
    for what in differing_steps(&folded, run.steps.values().flatten().map(|step| &**step)) {
        report.add(key, "I1", what);
    }
}

/// Steps that are not what a folded log says of them.
pub(crate) fn differing_steps<'a>(
    folded: &Working,
    rows: impl Iterator<Item = &'a Step>,
) -> impl Iterator<Item = String> {
    let rows: BTreeMap<_, _> = rows.map(|step| (step.path.clone(), text(step))).collect();
    let made = folded.steps.values().flatten().map(|step| (step.path.clone(), text(&**step)));
    let made: BTreeMap<_, _> = made.collect();
    let paths: BTreeSet<_> = rows.keys().chain(made.keys()).cloned().collect();
    let differing = paths.into_iter().filter(move |path| rows.get(path) != made.get(path));
    differing.map(|path| format!("step {path} is not what its log says"))
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
    let written = check::step_columns(db, whole.no)?;
    for step in run.steps.values().flatten() {
        let (state, open) = (step.state.as_str().to_owned(), step.is_open());
        if written.get(step.path.as_str()) != Some(&(state, open)) {
            report.add(key, "I1", format!("the columns of step {} are not what its row says", step.path));
        }
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
        owner_id: started.owner_id.clone(),
        data_region: started.data_region.clone(),
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
    }
    found
}

/// I10: every payload that an event speaks of is there, with the bytes that were said.
fn check_payloads(db: &Db, whole: &Whole, report: &mut Report) -> Stored {
    for (name, said) in payloads_of(&whole.log) {
        report.payloads += 1;
        let broken = match check::payload(db, whole.no, &name) {
            Ok(stored) => said.broken(&name, stored.as_deref()),
            Err(error) => Some(format!("the payload {name} cannot be read: {error}")),
        };
        if let Some(what) = broken {
            report.add(Some(&whole.key), "I10", what);
        }
    }
    if let Err(error) = check::late_answers(db, whole.no) {
        report.add(Some(&whole.key), "I10", format!("a late answer cannot be read: {error}"));
    }
    Ok(())
}

/// What an event says of a payload.
pub(crate) struct Said {
    digest: String,
    size: u64,
}

impl Said {
    pub fn broken(&self, name: &str, stored: Option<&str>) -> Option<String> {
        match stored {
            None => Some(format!("the payload {name} is not there")),
            Some(json) if json.len() as u64 != self.size || Digest::of(json.as_bytes()).to_string() != self.digest => {
                Some(format!("the payload {name} has other bytes than were stored"))
            }
            Some(_) => None,
        }
    }
}

/// Every payload that a log speaks of, by name.
pub(crate) fn payloads_of(log: &[Record]) -> BTreeMap<String, Said> {
    let mut found = BTreeMap::new();
    for record in log {
        if let Ok(value) = serde_json::from_str::<Value>(record.payload.get()) {
            collect_refs(&value, &mut found);
        }
    }
    found
}

/// Everything of the shape `{name, digest, size}`.
fn collect_refs(value: &Value, refs: &mut BTreeMap<String, Said>) {
    match value {
        Value::Object(fields) => {
            let found = (fields.get("name"), fields.get("digest"), fields.get("size"));
            if let (Some(Value::String(name)), Some(Value::String(digest)), Some(Value::Number(size))) = found {
                let said = Said { digest: digest.clone(), size: size.as_u64().unwrap_or(0) };
                refs.insert(name.clone(), said);
            }
            fields.values().for_each(|value| collect_refs(value, refs));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_refs(value, refs)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// I39, I42, I45: what it was made from exists, parents and children agree about each other, and
/// whoever waits for a connection hears of its reconnect.
fn check_others(db: &Db, whole: &Whole, run: &Working, report: &mut Report) -> Stored {
    let key = Some(&whole.key);
    let started = &whole.head.started;
    let children = others::children_of(db, &whole.key)?;
    for Violation { rule, what } in disowned(started.depth, &whole.log, &children) {
        report.add(key, rule, what);
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
    if let Some(origin) = started.origin.as_ref().and_then(|origin| origin.run_id.clone()) {
        let origin = RunKey { namespace: whole.key.namespace.clone(), run_id: origin };
        if check::standing(db, &origin)? == Standing::Absent {
            report.add(key, "I42", format!("{}, which it was made from, is not there", origin.run_id));
        }
    }
    for step in run.open() {
        let Some((connection, since)) = rows::waits_since(step) else { continue };
        let facts = read::connection(db, &whole.key.namespace, connection)?;
        // At the same instant either may have come first.
        let passed = facts.and_then(|facts| facts.reconnected_at).is_some_and(|at| since < at);
        if passed && !check::is_released(db, &whole.key, whole.no, connection, step.path.as_str())? {
            report.add(key, "I45", format!("{} was not told that {connection} was reconnected", step.path));
        }
    }
    Ok(())
}
