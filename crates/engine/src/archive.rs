//! Retention: runs that ended long ago become one compressed row each, still readable by id. Pinned runs stay.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::ids::{Path, PayloadName};
use abide_core::run::command::Json;
use abide_core::run::event::Record;
use abide_core::run::invariant::broken_log;
use abide_core::run::step::Step;
use abide_core::run::{Head, Started, Working, replay};
use abide_core::time::{Span, Timestamp};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use rusqlite::Connection as Db;
use serde::{Deserialize, Serialize};

use crate::doctor::{Report, text};
use crate::store::sqlite::archive::{self, Archived, Old};
use crate::store::sqlite::{Readers, check};
use crate::store::{RunKey, RunNo, StoreError, Stored};

/// Runs that one transaction moves.
pub const RUNS_AT_ONCE: usize = 32;
/// No run is larger than this when it is unpacked.
const MOST_BYTES: u64 = 4 << 30;

/// How long runs stay where they are after their end, by state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention(BTreeMap<RunState, Span>);

impl Default for Retention {
    fn default() -> Retention {
        const DAY: u64 = 86_400;
        let days = |days: u64| Span::from_secs(days * DAY);
        Retention(BTreeMap::from([
            (RunState::Succeeded, days(7)),
            (RunState::CompletedWithWarnings, days(30)),
            (RunState::Canceled, days(30)),
            (RunState::Failed, days(90)),
        ]))
    }
}

impl Retention {
    /// Another time for one state. A state that does not end is ignored.
    pub fn with(mut self, state: RunState, stays: Span) -> Retention {
        if state.is_terminal() {
            self.0.insert(state, stays);
        }
        self
    }

    pub fn of(&self, state: RunState) -> Option<Span> {
        self.0.get(&state).copied()
    }
}

/// Everything of one run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bundle {
    pub v: u16,
    pub started: Started,
    pub head: Head,
    pub steps: Vec<Step>,
    pub events: Vec<Record>,
    pub payloads: Vec<(String, String)>,
}

impl Bundle {
    pub fn read(db: &Db, old: &Old) -> Stored<Option<Bundle>> {
        Bundle::of(db, old.no)
    }

    pub fn of(db: &Db, no: RunNo) -> Stored<Option<Bundle>> {
        let Some(whole) = check::whole(db, no)? else { return Ok(None) };
        Ok(Some(Bundle {
            v: 1,
            started: (*whole.head.started).clone(),
            head: whole.head,
            steps: whole.steps.iter().map(|step| (**step).clone()).collect(),
            events: whole.log,
            payloads: archive::payloads(db, no)?,
        }))
    }

    /// The bytes for the archive, and how many there were before.
    pub fn pack(&self) -> Stored<(Vec<u8>, usize)> {
        let failed = |error: &dyn std::fmt::Display| StoreError::Failed(format!("a run cannot be packed: {error}"));
        let json = serde_json::to_vec(self).map_err(|error| failed(&error))?;
        let mut packer = DeflateEncoder::new(Vec::new(), Compression::default());
        packer.write_all(&json).map_err(|error| failed(&error))?;
        Ok((packer.finish().map_err(|error| failed(&error))?, json.len()))
    }

    pub fn unpack(bytes: &[u8]) -> Stored<Bundle> {
        let corrupt = |error: &dyn std::fmt::Display| StoreError::Corrupt(format!("a row of the archive: {error}"));
        let mut json = Vec::new();
        let mut unpacker = DeflateDecoder::new(bytes).take(MOST_BYTES);
        unpacker.read_to_end(&mut json).map_err(|error| corrupt(&error))?;
        let mut bundle: Bundle = serde_json::from_slice(&json).map_err(|error| corrupt(&error))?;
        bundle.head.started = Arc::new(bundle.started.clone());
        Ok(bundle)
    }

    /// The run with all its rows.
    pub fn run(&self) -> Working {
        let steps = self.steps.iter().map(|step| (step.path.clone(), Some(Arc::new(step.clone())))).collect();
        Working { head: Box::new(self.head.clone()), steps, payloads: BTreeMap::new() }
    }

    pub fn payload(&self, name: &PayloadName) -> Option<Json> {
        let found = self.payloads.iter().find(|(known, _)| known == name.as_str())?;
        Some(found.1.as_str().into())
    }

    pub fn step(&self, path: &Path) -> Option<&Step> {
        self.steps.iter().find(|step| step.path == *path)
    }
}

/// Which runs are to be moved now.
pub fn old(db: &Db, retention: &Retention, now: Timestamp, limit: usize) -> Stored<Vec<Old>> {
    let mut found = Vec::new();
    for namespace in archive::namespaces(db)? {
        for (state, stays) in &retention.0 {
            let before = now - *stays;
            found.extend(archive::old(db, &namespace, state.as_str(), before, 0, limit - found.len())?);
            if found.len() >= limit {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

pub fn find(readers: &Readers, key: &RunKey) -> Stored<Option<Bundle>> {
    let archived = readers.read(|db| archive::find(db, key))?;
    archived.map(|archived| Bundle::unpack(&archived.bundle)).transpose()
}

/// Checks every run of the archive: its chain, and that its log still gives its rows.
pub fn examine(readers: &Readers, report: &mut Report) -> Stored {
    let mut after = 0;
    loop {
        let page = readers.read(|db| archive::after(db, after, 64))?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.no;
        for archived in &page {
            report.archived += 1;
            for (rule, what) in broken_bundle(archived) {
                report.add(Some(&archived.key), rule, what);
            }
        }
    }
}

fn broken_bundle(archived: &Archived) -> Vec<(&'static str, String)> {
    let bundle = match Bundle::unpack(&archived.bundle) {
        Ok(bundle) => bundle,
        Err(error) => return vec![("I7", error.to_string())],
    };
    let mut found: Vec<_> = broken_log(&bundle.events).into_iter().map(|broken| (broken.rule, broken.what)).collect();
    let unborn = Working::unborn(archived.key.run_id.clone(), archived.key.namespace.clone());
    match replay(unborn, &bundle.events) {
        Ok(folded) if text(&folded.head) == text(&bundle.head) => {}
        Ok(_) => found.push(("I1", "the archived head is not what its log says".into())),
        Err(error) => found.push(("I1", format!("the archived log cannot be folded: {error}"))),
    }
    found
}
