//! When each step of a run was in line, executed and waiting, and for what: the run's time as a picture shows it, read off
//! the log in one pass.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contract::{ReasonType, RunState, StepState};
use crate::definition::Definition;
use crate::ids::{Path, WorkerId};
use crate::run::event::Record as EventRecord;
use crate::run::row_of;
use crate::run::step::Block;
use crate::time::Timestamp;

/// A picture with more rows helps nobody; the list of steps has them all.
pub const MOST_ROWS: usize = 20_000;

/// What `GET /v1/runs/{id}/timeline` returns. Times are milliseconds after `began_at`: ten thousand rows stay small.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    pub began_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// The instant of this answer.
    pub now: Timestamp,
    pub states: Vec<Entered>,
    pub rows: Vec<Row>,
    /// Rows beyond what a picture holds.
    pub left_out: usize,
    pub as_of_seq: u64,
}

/// The run entered a state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entered {
    pub seq: u64,
    pub at_ms: u64,
    pub state: RunState,
}

/// One step. Its probes and undos are among its segments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub step_id: Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub state: Option<StepState>,
    pub from_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ms: Option<u64>,
    pub segments: Vec<Segment>,
}

/// A stretch of a step's time. One that goes on has no end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    pub kind: SegmentKind,
    pub from_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Who executed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Why it waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How it ended: `completed`, `failed`, `lost`, `blocked`, `canceled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// A task is offered and nobody has taken it.
    InLine,
    Executing,
    Probing,
    Undoing,
    Waiting,
}

/// Reads the log of a run. `states` are the steps as they are now.
pub fn timeline(
    log: &[EventRecord],
    states: &BTreeMap<Path, StepState>,
    definition: &Definition,
    now: Timestamp,
) -> Timeline {
    let began_at = log.first().map_or(now, |event| event.at);
    let mut reading = Reading { began_at, definition, states, rows: Vec::new(), places: BTreeMap::new(), left_out: 0 };
    let mut entered = Vec::new();
    let mut ended_at = None;
    for event in log {
        if let Some(state) = event.to_state {
            entered.push(Entered { seq: event.seq, at_ms: reading.ms(event.at), state });
            ended_at = state.is_terminal().then_some(event.at);
        }
        if let Some(path) = &event.step_id {
            reading.read(event, path);
        }
    }
    let Reading { rows, left_out, .. } = reading;
    Timeline {
        began_at,
        ended_at,
        now,
        states: entered,
        rows,
        left_out,
        as_of_seq: log.last().map_or(0, |one| one.seq),
    }
}

struct Reading<'a> {
    began_at: Timestamp,
    definition: &'a Definition,
    states: &'a BTreeMap<Path, StepState>,
    rows: Vec<Row>,
    /// Nothing for a row that is left out.
    places: BTreeMap<Path, Option<usize>>,
    left_out: usize,
}

#[derive(Deserialize)]
struct Claimed {
    owner: WorkerId,
}

#[derive(Deserialize)]
struct Blocked {
    block: Block,
}

impl Reading<'_> {
    fn ms(&self, at: Timestamp) -> u64 {
        at.since(self.began_at).millis()
    }

    fn read(&mut self, event: &EventRecord, path: &Path) {
        let Some(row) = self.row(&row_of(path), event.at) else { return };
        let at = self.ms(event.at);
        let row = &mut self.rows[row];
        let plain = |kind| Segment {
            kind,
            from_ms: at,
            to_ms: None,
            attempt: event.attempt,
            worker: None,
            reason: None,
            message: None,
            outcome: None,
        };
        match event.kind.as_str() {
            "task.issued" => row.begin(plain(SegmentKind::InLine)),
            "task.claimed" => {
                let worker = serde_json::from_str::<Claimed>(event.payload.get()).ok().map(|claimed| claimed.owner);
                row.begin(Segment { worker, ..plain(executing(path)) });
            }
            "task.completed" => row.end(at, Some("completed")),
            "task.failed" => row.end(at, Some("failed")),
            "task.lost" => row.end(at, Some("lost")),
            "task.blocked" => row.end(at, Some("blocked")),
            "task.canceled" => row.end(at, Some("canceled")),
            "step.blocked" => {
                let block = serde_json::from_str::<Blocked>(event.payload.get()).ok().map(|blocked| blocked.block);
                let reason = block.as_ref().map(Block::reason);
                let message = block.map(|block| block.message).filter(|message| !message.is_empty());
                row.begin(Segment { reason, message, ..plain(SegmentKind::Waiting) });
            }
            "step.overdue" => row.begin(Segment { reason: Some(ReasonType::Overdue), ..plain(SegmentKind::Waiting) }),
            // A body's own step is executed as soon as it is begun.
            "step.entered" if is_coded(event) => row.begin(plain(SegmentKind::Executing)),
            "step.reset" => row.end(at, None),
            "step.completed" | "step.case_handled" | "step.compensated" => row.close(at, Some("completed")),
            "step.failed" | "step.undo_failed" => row.close(at, Some("failed")),
            "step.skipped" | "step.canceled" => row.close(at, Some("canceled")),
            "step.compensating" => row.to_ms = None,
            _ => {}
        }
    }

    /// Where the row of a step is; it begins with its first event.
    fn row(&mut self, step: &Path, at: Timestamp) -> Option<usize> {
        if let Some(known) = self.places.get(step) {
            return *known;
        }
        let place = (self.rows.len() < MOST_ROWS).then_some(self.rows.len());
        self.places.insert(step.clone(), place);
        if place.is_none() {
            self.left_out += 1;
            return None;
        }
        let name = step.as_str().split('.').next().unwrap_or_default();
        let title = self.definition.step(name).and_then(|(_, declared)| declared.title.clone());
        let from_ms = self.ms(at);
        let state = self.states.get(step).copied();
        self.rows.push(Row { step_id: step.clone(), title, state, from_ms, to_ms: None, segments: Vec::new() });
        place
    }
}

impl Row {
    fn begin(&mut self, segment: Segment) {
        self.end(segment.from_ms, None);
        self.to_ms = None;
        self.segments.push(segment);
    }

    fn end(&mut self, at: u64, outcome: Option<&'static str>) {
        let Some(last) = self.segments.last_mut().filter(|last| last.to_ms.is_none()) else { return };
        last.to_ms = Some(at);
        last.outcome = outcome;
        // Taken the moment it was offered: nothing to see.
        if last.kind == SegmentKind::InLine && last.from_ms == at {
            self.segments.pop();
        }
    }

    fn close(&mut self, at: u64, outcome: Option<&'static str>) {
        self.end(at, outcome);
        self.to_ms = Some(at);
    }
}

/// What executing means for the task at a path.
fn executing(path: &Path) -> SegmentKind {
    match path.as_str().rsplit('.').next() {
        Some("probe") => SegmentKind::Probing,
        Some("undo") => SegmentKind::Undoing,
        _ => SegmentKind::Executing,
    }
}

fn is_coded(event: &EventRecord) -> bool {
    #[derive(Deserialize)]
    struct Begun {
        coded: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<Begun>(event.payload.get()).is_ok_and(|begun| begun.coded.is_some())
}
