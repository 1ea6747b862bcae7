//! The log: everything that one commit says of a run is one row, an array of events. A row for each event would cost an
//! index entry for each; people read them one by one through the view `run_events`.

use abide_core::contract::{Cause, Evidence, Layer, RunState};
use abide_core::ids::{Digest, Epoch, Path, WorkerId};
use abide_core::run::command::{Actor, ActorKind};
use abide_core::run::event::Record;
use abide_core::time::Timestamp;
use rusqlite::{Connection as Db, params};
use serde_json::value::RawValue;

use super::super::{RunNo, StoreError, Stored};
use super::{corrupt, write};

/// An event by places, in the order of the columns of the view. Names would be half of its bytes.
type Line<'a> = (
    u64,
    u16,
    i64,
    ActorKind,
    &'a str,
    Cause,
    Layer,
    &'a str,
    Option<RunState>,
    Option<RunState>,
    Option<&'a Path>,
    Option<u32>,
    &'a RawValue,
    &'a [Evidence],
    Digest,
);

type Read = (
    u64,
    u16,
    i64,
    ActorKind,
    String,
    Cause,
    Layer,
    String,
    Option<RunState>,
    Option<RunState>,
    Option<Path>,
    Option<u32>,
    Box<RawValue>,
    Vec<Evidence>,
    Digest,
);

fn line(record: &Record) -> Line<'_> {
    (
        record.seq,
        record.v,
        record.at.micros(),
        record.actor.kind,
        &record.actor.id,
        record.cause,
        record.layer,
        &record.kind,
        record.from_state,
        record.to_state,
        record.step_id.as_ref(),
        record.attempt,
        &record.payload,
        &record.evidence,
        record.hash,
    )
}

fn record(read: Read) -> Record {
    let (seq, v, at, kind, id, cause, layer, of, from_state, to_state, step_id, attempt, payload, evidence, hash) =
        read;
    let (at, actor) = (Timestamp::from_micros(at), Actor { kind, id });
    Record {
        seq,
        v,
        at,
        actor,
        cause,
        layer,
        kind: of,
        from_state,
        to_state,
        step_id,
        attempt,
        payload,
        evidence,
        hash,
    }
}

pub(super) fn encode(records: &[Record]) -> Stored<String> {
    write::json(&records.iter().map(line).collect::<Vec<_>>())
}

fn decode(text: &str) -> Stored<Vec<Record>> {
    let read: Vec<Read> = serde_json::from_str(text).map_err(|error| corrupt(format!("a row of the log: {error}")))?;
    Ok(read.into_iter().map(record).collect())
}

/// Events of a run after one, in order.
pub(super) fn events(db: &Db, no: RunNo, after: u64, limit: usize) -> Stored<Vec<Record>> {
    let text = "
        select events from run_log
        where  run_no = ?1
               and seq >= coalesce((select max(seq) from run_log where run_no = ?1 and seq <= ?2), 0)
        order  by seq";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![no, after.saturating_add(1) as i64])?;
    let mut events = Vec::new();
    while events.len() < limit
        && let Some(row) = rows.next()?
    {
        let entry = decode(row.get_ref(0)?.as_str().map_err(corrupt)?)?;
        events.extend(entry.into_iter().filter(|record| record.seq > after));
    }
    events.truncate(limit);
    Ok(events)
}

/// The last event before one that is wanted, read backwards.
fn last_before<T>(db: &Db, no: RunNo, before: u64, wanted: impl Fn(&Record) -> Stored<Option<T>>) -> Stored<Option<T>> {
    let text = "select events from run_log where run_no = ?1 and seq < ?2 order by seq desc";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![no, i64::try_from(before).unwrap_or(i64::MAX)])?;
    while let Some(row) = rows.next()? {
        for record in decode(row.get_ref(0)?.as_str().map_err(corrupt)?)?.iter().rev() {
            if record.seq < before
                && let Some(found) = wanted(record)?
            {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// The event with which a run entered the state in which it was before another.
pub fn entered_before(db: &Db, no: RunNo, seq: u64) -> Stored<Option<Record>> {
    last_before(db, no, seq, |record| Ok(record.to_state.map(|_| record.clone())))
}

/// Asked only when somebody comes too late.
pub(super) fn last_claim(db: &Db, no: RunNo, path: &Path) -> Stored<Option<(Epoch, WorkerId)>> {
    #[derive(serde::Deserialize)]
    struct Claimed {
        owner: WorkerId,
        epoch: Epoch,
    }
    last_before(db, no, u64::MAX, |record| {
        if record.kind != "task.claimed" || record.step_id.as_ref() != Some(path) {
            return Ok(None);
        }
        let claimed = serde_json::from_str(record.payload.get());
        let Claimed { owner, epoch } = claimed.map_err(|error| StoreError::Corrupt(format!("a claim: {error}")))?;
        Ok(Some((epoch, owner)))
    })
}
