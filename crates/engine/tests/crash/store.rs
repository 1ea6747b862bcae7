//! The store as the judge reads it: straight from the file, without the engine.

use std::collections::BTreeMap;
use std::path::Path;

use abide_engine::archive::Bundle;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

#[derive(Debug, PartialEq)]
pub struct Event {
    pub seq: u64,
    pub kind: String,
    pub step: String,
    pub attempt: u32,
    pub payload: Value,
}

#[derive(Debug)]
pub struct Run {
    pub workflow: String,
    pub key: Option<String>,
    pub events: Vec<Event>,
}

impl Run {
    pub fn count(&self, kind: &str) -> usize {
        self.events.iter().filter(|event| event.kind == kind).count()
    }

    /// Whether up to a version the log says so; of a lease when one is given.
    pub fn says(&self, kind: &str, step: Option<&str>, epoch: Option<u64>, seq: u64) -> bool {
        self.events.iter().filter(|event| event.seq <= seq && event.kind == kind).any(|event| {
            step.is_none_or(|step| event.step == step)
                && epoch.is_none_or(|epoch| event.payload["epoch"].as_u64() == Some(epoch))
        })
    }
}

/// All runs, also those of the archive. A run that is in two places, or twice in one, is found by its name.
pub fn runs(data: &Path) -> BTreeMap<String, Run> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let db = Connection::open_with_flags(data.join("abide.db"), flags).expect("the database");
    let sound: String = db.query_row("pragma integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(sound, "ok");
    let mut runs = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut statement = db
        .prepare("select run_no, run_id, workflow_id, started from runs join run_starts using (run_no)")
        .expect("runs");
    let mut rows = statement.query([]).expect("runs");
    while let Some(row) = rows.next().expect("a run") {
        let (no, id): (i64, String) = (row.get(0).expect("no"), row.get(1).expect("id"));
        let started: Value = serde_json::from_str(&row.get::<_, String>(3).expect("text")).expect("json");
        let key = started["labels"]["key"].as_str().map(Into::into);
        let workflow = row.get(2).expect("workflow");
        runs.insert(id.clone(), Run { workflow, key, events: Vec::new() });
        names.insert(no, id);
    }
    let mut statement = db
        .prepare("select run_no, seq, kind, step_id, attempt, payload from run_events order by run_no, seq")
        .expect("events");
    let mut rows = statement.query([]).expect("events");
    while let Some(row) = rows.next().expect("an event") {
        let no: i64 = row.get(0).expect("no");
        let run = runs.get_mut(&names[&no]).expect("events have a run");
        run.events.push(Event {
            seq: row.get::<_, i64>(1).expect("seq") as u64,
            kind: row.get(2).expect("kind"),
            step: row.get::<_, Option<String>>(3).expect("step").unwrap_or_default(),
            attempt: row.get::<_, Option<u32>>(4).expect("attempt").unwrap_or(0),
            payload: serde_json::from_str(&row.get::<_, String>(5).expect("payload")).expect("json"),
        });
    }
    let mut statement = db.prepare("select run_id, bundle from archived_runs").expect("archive");
    let mut rows = statement.query([]).expect("archive");
    while let Some(row) = rows.next().expect("a bundle") {
        let (id, bundle): (String, Vec<u8>) = (row.get(0).expect("id"), row.get(1).expect("bundle"));
        let bundle = Bundle::unpack(&bundle).expect("a bundle that can be read");
        let events = bundle.events.iter().map(|record| Event {
            seq: record.seq,
            kind: record.kind.clone(),
            step: record.step_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            attempt: record.attempt.unwrap_or(0),
            payload: serde_json::from_str(record.payload.get()).expect("json"),
        });
        let run = Run {
            workflow: bundle.started.workflow_id.to_string(),
            key: bundle.started.labels.get("key").cloned(),
            events: events.collect(),
        };
        assert!(runs.insert(id.clone(), run).is_none(), "{id} is both here and in the archive");
    }
    runs
}

/// What happened to the runs that are named in some lines, for people.
pub fn stories(data: &Path, lines: &[String]) -> String {
    let db = Connection::open(data.join("abide.db")).expect("the database");
    let text = "
        select run_id || ' ' || events.seq || ' ' || events.at || ' ' || kind || ' ' || actor_id || ' ' || payload
        from   run_events as events join runs using (run_no)
        where  instr(?1, run_id) > 0
        order  by run_no, events.seq";
    let mut statement = db.prepare(text).expect("a statement");
    let told = statement.query_map([lines.join(" ")], |row| row.get::<_, String>(0)).and_then(Iterator::collect);
    told.map_or_else(|error| error.to_string(), |told: Vec<String>| told.join("\n"))
}
