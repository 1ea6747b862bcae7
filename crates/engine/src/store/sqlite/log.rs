//! The log: everything that one commit says of a run is one row, an array of events. A row for each event would cost an
//! index entry for each; people read them one by one through the view `run_events`.

use std::fmt::Write as _;

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

/// Written by hand: every command does it for several events, and most of their words need no escapes.
pub(super) fn encode(records: &[Record]) -> Stored<String> {
    let size = records.iter().map(|record| USUAL_LINE + record.payload.get().len()).sum();
    let mut text = String::with_capacity(size);
    for record in records {
        text.push_str(if text.is_empty() { "[" } else { "," });
        line(&mut text, record)?;
    }
    text.push(']');
    Ok(text)
}

/// What an event takes beside its payload.
const USUAL_LINE: usize = 256;

fn line(text: &mut String, record: &Record) -> Stored {
    let failed = |error: std::fmt::Error| StoreError::Failed(error.to_string());
    write!(text, "[{},{},{},", record.seq, record.v, record.at.micros()).map_err(failed)?;
    quote(text, record.actor.kind.as_str());
    escape(text, &record.actor.id)?;
    quote(text, record.cause.as_str());
    quote(text, record.layer.as_str());
    escape(text, &record.kind)?;
    for state in [record.from_state, record.to_state] {
        match state {
            Some(state) => quote(text, state.as_str()),
            None => text.push_str("null,"),
        }
    }
    match &record.step_id {
        Some(path) => escape(text, path.as_str())?,
        None => text.push_str("null,"),
    }
    match record.attempt {
        Some(attempt) => write!(text, "{attempt},").map_err(failed)?,
        None => text.push_str("null,"),
    }
    text.push_str(record.payload.get());
    text.push(',');
    match record.evidence.as_slice() {
        [] => text.push_str("[]"),
        evidence => text.push_str(&write::json(&evidence)?),
    }
    write!(text, ",\"{}\"]", record.hash).map_err(failed)
}

/// A word of ours, which needs no escapes.
fn quote(text: &mut String, word: &str) {
    text.push('"');
    text.push_str(word);
    text.push_str("\",");
}

fn escape(text: &mut String, said: &str) -> Stored {
    match said.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        true => {
            text.push_str(&write::json(said)?);
            text.push(',');
        }
        false => quote(text, said),
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use abide_core::contract::EvidenceKind;

    use super::*;

    fn told(id: &str, step_id: Option<&str>, evidence: Vec<Evidence>) -> Record {
        Record {
            seq: 7,
            v: 1,
            at: Timestamp::from_micros(1_700_000_000_000_000),
            actor: Actor { kind: ActorKind::User, id: id.into() },
            cause: Cause::Started,
            layer: Layer::Run,
            kind: "run.queued".into(),
            from_state: None,
            to_state: Some(RunState::Queued),
            step_id: step_id.map(Path::from),
            attempt: step_id.map(|_| 2),
            payload: RawValue::from_string(r#"{"n": 1}"#.into()).expect("json"),
            evidence,
            hash: Digest::of(b"x"),
        }
    }

    #[test]
    fn whatever_is_written_is_read_back() {
        let seen = Evidence { kind: EvidenceKind::ALL[0], reference: "a \"b\"".into(), at: None, step_id: None };
        let records = [
            told("ben", None, Vec::new()),
            told("a \"quoted\" \\ name\n\u{1}", Some("ask.\u{e4}\u{2028}"), vec![seen]),
            told("", Some("a/\"b\""), Vec::new()),
        ];
        let text = encode(&records).expect("a text");
        let read: Vec<serde_json::Value> = serde_json::from_str(&text).expect("json");
        assert_eq!(read.len(), 3);
        assert_eq!(
            decode(&text).expect("records").iter().map(debug).collect::<Vec<_>>(),
            records.each_ref().map(debug)
        );
        assert!(text.contains(r#","run.queued",null,"queued",null,null,{"n": 1},[],"2d7"#), "{text}");
    }

    fn debug(record: &Record) -> String {
        format!("{record:?}")
    }
}
