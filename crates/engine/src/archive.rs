//! Retention: runs that ended long ago become one compressed row each, still readable by id. Pinned runs stay.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::ids::{Epoch, Path, PayloadName, WorkerId};
use abide_core::run::command::Json;
use abide_core::run::event::Record;
use abide_core::run::invariant::{broken_log, disowned};
use abide_core::run::step::Step;
use abide_core::run::{Head, LateAnswer, LateAnswers, LateReport, Started, Working, replay};
use abide_core::time::{Span, Timestamp};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use rusqlite::Connection as Db;
use serde::{Deserialize, Serialize};

use crate::doctor::{Report, differing_steps, payloads_of, text};
use crate::request::Packed;
use crate::store::sqlite::archive::{self, Archived, Columns, Ended};
use crate::store::sqlite::check::others;
use crate::store::sqlite::{Readers, check, read};
use crate::store::{Loaded, RunKey, RunNo, StoreError, Stored};

/// What one transaction moves at most; a run that is larger moves alone.
pub const RUNS_AT_ONCE: usize = 32;
pub const BYTES_AT_ONCE: usize = 8 << 20;
/// A run with more is not packed: it would have to be in memory as a whole, and pass the line before the lane.
const MOST_TO_PACK: u64 = 256 << 20;
const MOST_PACKED: usize = 64 << 20;
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

    pub(crate) fn all(&self) -> impl Iterator<Item = (RunState, Span)> {
        self.0.iter().map(|(state, stays)| (*state, *stays))
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
    #[serde(default)]
    pub late: Vec<Late>,
}

/// What a worker said of a step after its lease was over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Late {
    pub path: Path,
    pub worker: WorkerId,
    pub at: Timestamp,
    #[serde(default)]
    pub epoch: Epoch,
    /// What it said. Bundles of earlier versions have `output` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<LateReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl Late {
    fn of(path: Path, answer: LateAnswer, worker: WorkerId) -> Late {
        let LateAnswer { epoch, said, at } = answer;
        Late { path, worker, at, epoch, said: Some(said), output: None }
    }

    fn answer(&self) -> LateAnswer {
        let output = || self.output.as_deref().unwrap_or("null").into();
        let said = self.said.clone().unwrap_or_else(|| LateReport::Result { output: output() });
        LateAnswer { epoch: self.epoch, said, at: self.at }
    }
}

impl Bundle {
    pub fn of(db: &Db, no: RunNo) -> Stored<Option<Bundle>> {
        let Some(whole) = check::whole(db, no)? else { return Ok(None) };
        let late = read::late(db, no)?.into_iter();
        let late = late.map(|(path, answer, worker)| Late::of(path, answer, worker));
        Ok(Some(Bundle {
            v: 1,
            started: (*whole.head.started).clone(),
            head: whole.head,
            steps: whole.steps.iter().map(|step| (**step).clone()).collect(),
            events: whole.log,
            payloads: archive::payloads(db, no)?,
            late: late.collect(),
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

    /// The run as its tables had it.
    pub(crate) fn loaded(&self, no: RunNo) -> Loaded {
        let open = self.steps.iter().filter(|step| step.is_open());
        let steps = open.map(|step| (step.path.clone(), Some(Arc::new(step.clone())))).collect();
        let late = self.late_answers();
        let run = Working { head: Box::new(self.head.clone()), steps, payloads: BTreeMap::new() };
        Loaded { no, run, wake_at: None, late }
    }

    pub(crate) fn late_answers(&self) -> LateAnswers {
        let mut late = LateAnswers::new();
        for one in &self.late {
            late.entry(one.path.clone()).or_default().push(one.answer());
        }
        late
    }

    pub fn payload(&self, name: &PayloadName) -> Option<Json> {
        let found = self.payloads.iter().find(|(known, _)| known == name.as_str())?;
        Some(found.1.as_str().into())
    }

    pub fn step(&self, path: &Path) -> Option<&Step> {
        self.steps.iter().find(|step| step.path == *path)
    }
}

/// A run as it leaves; nothing when it has left already.
pub(crate) fn pack(db: &Db, run: &Ended) -> Stored<Option<Packed>> {
    let size = archive::size(db, run.no)?;
    if size > MOST_TO_PACK {
        return Err(StoreError::Failed(format!("it has {size} bytes, and at most {MOST_TO_PACK} are packed")));
    }
    let Some(bundle) = Bundle::of(db, run.no)? else { return Ok(None) };
    let (bytes, size) = bundle.pack()?;
    if bytes.len() > MOST_PACKED {
        return Err(StoreError::Failed(format!("it packs to {} bytes, and {MOST_PACKED} can be moved", bytes.len())));
    }
    Ok(Some(Packed { run_id: run.key.run_id.clone(), seq: bundle.head.seq, bundle: bytes, size }))
}

/// A run of the archive, and the number that it had.
pub fn find(db: &Db, key: &RunKey) -> Stored<Option<(RunNo, Bundle)>> {
    let Some(archived) = archive::find(db, key)? else { return Ok(None) };
    Ok(Some((archived.no, Bundle::unpack(&archived.bundle)?)))
}

/// Checks every run of the archive: its chain, its payloads, and that its log still gives its rows.
pub fn examine(readers: &Readers, report: &mut Report) -> Stored {
    let mut after = 0;
    loop {
        let page = readers.read(|db| archive::after(db, after, 64))?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = *last;
        for (_, key) in &page {
            report.archived += 1;
            let read = |db: &Db| match archive::find(db, key)? {
                Some(archived) => broken_bundle(db, key, &archived),
                None => Ok(Vec::new()),
            };
            let broken = match readers.read_at_length(read) {
                Ok(broken) => broken,
                Err(error) => vec![("I7", format!("the archived run cannot be read: {error}"))],
            };
            for (rule, what) in broken {
                report.add(Some(key), rule, what);
            }
        }
    }
}

fn broken_bundle(db: &Db, key: &RunKey, archived: &Archived) -> Stored<Vec<(&'static str, String)>> {
    let bundle = match Bundle::unpack(&archived.bundle) {
        Ok(bundle) => bundle,
        Err(error) => return Ok(vec![("I7", error.to_string())]),
    };
    // Children that are here still have their parent in the archive.
    let disowned = disowned(bundle.started.depth, &bundle.events, &others::children_of(db, key)?);
    let broken = broken_log(&bundle.events).into_iter().chain(disowned);
    let mut found: Vec<_> = broken.map(|broken| (broken.rule, broken.what)).collect();
    if let Some(parent) = &bundle.started.parent
        && let Some(what) = others::broken_parent(db, key, parent, bundle.started.depth)?
    {
        found.push(("I39", what));
    }
    match replay(Working::unborn(key.run_id.clone(), key.namespace.clone()), &bundle.events) {
        Ok(folded) => {
            let said = [text(&folded.head), text(&*folded.head.started)];
            if said != [text(&bundle.head), text(&bundle.started)] {
                found.push(("I1", "the archived head is not what its log says".into()));
            }
            found.extend(differing_steps(&folded, bundle.steps.iter()).map(|what| ("I1", what)));
        }
        Err(error) => found.push(("I1", format!("the archived log cannot be folded: {error}"))),
    }
    for (name, said) in payloads_of(&bundle.events) {
        let stored = bundle.payload(&PayloadName::from(name.as_str()));
        found.extend(said.broken(&name, stored.as_deref()).map(|what| ("I10", what)));
    }
    let columns = Columns {
        workflow: bundle.started.workflow_id.to_string(),
        state: bundle.head.state.map_or_else(String::new, |state| state.as_str().into()),
        created_at: bundle.started.created_at.micros(),
        ended_at: bundle.head.ended_at.map_or(0, Timestamp::micros),
    };
    if columns != archived.columns {
        found.push(("I1", format!("the archive's columns say {:?}, its head {columns:?}", archived.columns)));
    }
    Ok(found)
}
