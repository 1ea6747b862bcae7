//! The log: everything that one commit says of a run is one row, an array of events. A row for each event would cost an
//! index entry for each; people read them one by one through the view `run_events`.

use std::borrow::Cow;
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

/// An event by places, in the order of the columns of the view. Names would be half of its bytes. What says nothing is null:
/// when, who and why are then those of the first event of the row, and the hash follows from the event before.
type Read<'a> = (
    u64,
    Option<u16>,
    Option<i64>,
    Option<ActorKind>,
    Option<Cow<'a, str>>,
    Option<Cause>,
    Layer,
    String,
    Option<RunState>,
    Option<RunState>,
    Option<Path>,
    Option<u32>,
    Box<RawValue>,
    Vec<Evidence>,
    Option<Digest>,
);

/// Written by hand: every command does it for several events, and most of their words need no escapes.
pub(super) fn encode(records: &[Record]) -> Stored<String> {
    let size = records.iter().map(|record| USUAL_LINE + record.payload.get().len()).sum();
    let mut text = String::with_capacity(size);
    for (at, record) in records.iter().enumerate() {
        text.push_str(if at == 0 { "[" } else { "," });
        let first = records.first().filter(|_| at > 0);
        line(&mut text, record, first, at + 1 == records.len())?;
    }
    text.push(']');
    Ok(text)
}

/// What an event takes beside its payload.
const USUAL_LINE: usize = 128;

fn line(text: &mut String, record: &Record, first: Option<&Record>, last: bool) -> Stored {
    let failed = |error: std::fmt::Error| StoreError::Failed(error.to_string());
    let same = |is: fn(&Record, &Record) -> bool| first.is_some_and(|first| is(record, first));
    write!(text, "[{},", record.seq).map_err(failed)?;
    match same(|a, b| (a.v, a.at) == (b.v, b.at)) {
        true => text.push_str("null,null,"),
        false => write!(text, "{},{},", record.v, record.at.micros()).map_err(failed)?,
    }
    match same(|a, b| a.actor == b.actor) {
        true => text.push_str("null,null,"),
        false => {
            quote(text, record.actor.kind.as_str());
            escape(text, &record.actor.id)?;
        }
    }
    match same(|a, b| a.cause == b.cause) {
        true => text.push_str("null,"),
        false => quote(text, record.cause.as_str()),
    }
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
    // It covers those before it.
    match last {
        true => write!(text, ",\"{}\"]", record.hash).map_err(failed),
        false => {
            text.push_str(",null]");
            Ok(())
        }
    }
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

/// The events of a row; their hashes are worked out from the last one before it, or left out for those who need none.
fn decode(text: &str, before: Option<Digest>) -> Stored<Vec<Record>> {
    let read: Vec<Read<'_>> =
        serde_json::from_str(text).map_err(|error| corrupt(format!("a row of the log: {error}")))?;
    let mut records: Vec<Record> = Vec::with_capacity(read.len());
    let mut previous = before;
    for (seq, v, at, kind, id, cause, layer, of, from_state, to_state, step_id, attempt, payload, evidence, hash) in
        read
    {
        let first = records.first();
        let missing = || corrupt("the first event of a row of the log leaves something out");
        let actor = match (kind, id) {
            (Some(kind), Some(id)) => Actor { kind, id: id.into_owned() },
            _ => first.map(|first| first.actor.clone()).ok_or_else(missing)?,
        };
        let mut record = Record {
            seq,
            v: v.or(first.map(|first| first.v)).ok_or_else(missing)?,
            at: at.map(Timestamp::from_micros).or(first.map(|first| first.at)).ok_or_else(missing)?,
            actor,
            cause: cause.or(first.map(|first| first.cause)).ok_or_else(missing)?,
            layer,
            kind: of,
            from_state,
            to_state,
            step_id,
            attempt,
            payload,
            evidence,
            hash: hash.unwrap_or_default(),
        };
        if let (Some(previous), None) = (previous, hash) {
            record.hash = record.chained_to(previous);
        }
        previous = previous.map(|_| record.hash);
        records.push(record);
    }
    Ok(records)
}

/// Events of a run after one, in order, each with its hash.
pub(super) fn events(db: &Db, no: RunNo, after: u64, limit: usize) -> Stored<Vec<Record>> {
    let before = last_before(db, no, row_with(db, no, after.saturating_add(1))?, |record| Ok(Some(record.hash)))?;
    told(db, no, after, limit, Some(before.unwrap_or_default()))
}

/// The same without their hashes, for those who only count.
pub fn unhashed(db: &Db, no: RunNo, after: u64, limit: usize) -> Stored<Vec<Record>> {
    told(db, no, after, limit, None)
}

fn row_with(db: &Db, no: RunNo, seq: u64) -> Stored<u64> {
    let text = "select coalesce(max(seq), 0) from run_log where run_no = ?1 and seq <= ?2";
    let found: i64 = db.prepare_cached(text)?.query_row(params![no, whole(seq)], |row| row.get(0))?;
    Ok(found as u64)
}

/// SQLite knows no larger numbers.
fn whole(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

fn told(db: &Db, no: RunNo, after: u64, limit: usize, mut before: Option<Digest>) -> Stored<Vec<Record>> {
    let text = "
        select events from run_log
        where  run_no = ?1
               and seq >= coalesce((select max(seq) from run_log where run_no = ?1 and seq <= ?2), 0)
        order  by seq";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![no, whole(after.saturating_add(1))])?;
    let mut events = Vec::new();
    while events.len() < limit
        && let Some(row) = rows.next()?
    {
        let entry = decode(row.get_ref(0)?.as_str().map_err(corrupt)?, before)?;
        before = before.and(entry.last().map(|record| record.hash));
        events.extend(entry.into_iter().filter(|record| record.seq > after));
    }
    events.truncate(limit);
    Ok(events)
}

/// The last event before one that is wanted, read backwards. Only the last event of a row has its hash.
fn last_before<T>(db: &Db, no: RunNo, before: u64, wanted: impl Fn(&Record) -> Stored<Option<T>>) -> Stored<Option<T>> {
    let text = "select events from run_log where run_no = ?1 and seq < ?2 order by seq desc";
    let mut statement = db.prepare_cached(text)?;
    let mut rows = statement.query(params![no, whole(before)])?;
    while let Some(row) = rows.next()? {
        for record in decode(row.get_ref(0)?.as_str().map_err(corrupt)?, None)?.iter().rev() {
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
        let records = chained(&[
            told("ben", None, Vec::new()),
            told("a \"quoted\" \\ name\n\u{1}", Some("ask.\u{e4}\u{2028}"), vec![seen]),
            told("", Some("a/\"b\""), Vec::new()),
        ]);
        let text = encode(&records).expect("a text");
        let read: Vec<serde_json::Value> = serde_json::from_str(&text).expect("json");
        assert_eq!(read.len(), 3);
        assert_eq!(all(&decode(&text, Some(BEFORE)).expect("records")), all(&records));
        assert!(text.contains(r#","run.queued",null,"queued",null,null,{"n": 1},[],null],["#), "{text}");
    }

    #[test]
    fn what_stands_in_the_first_event_is_not_said_again() {
        let records = chained(&[told("ben", None, Vec::new()), told("ben", Some("a"), Vec::new())]);
        let text = encode(&records).expect("a text");
        let hash = records[1].hash;
        assert!(
            text.ends_with(&format!(
                r#",[7,null,null,null,null,null,"run","run.queued",null,"queued","a",2,{{"n": 1}},[],"{hash}"]]"#
            )),
            "{text}"
        );
        assert_eq!(all(&decode(&text, Some(BEFORE)).expect("records")), all(&records));
        let other = decode(&text, Some(Digest::of(b"another"))).expect("records");
        assert_ne!(other[0].hash, records[0].hash, "it follows from what was before");
        assert_eq!(other[1].chained_to(records[0].hash), other[1].hash, "the last is what was written");
    }

    #[test]
    fn rows_in_which_every_event_says_everything_are_read_too() {
        let records = chained(&[told("ben", None, Vec::new()), told("ben", Some("a"), Vec::new())]);
        let alone = records.iter().map(|record| encode(std::slice::from_ref(record)).expect("a text"));
        let text = alone.collect::<Vec<_>>().join("").replace("][", ",");
        assert_eq!(all(&decode(&text, None).expect("records")), all(&records));
        assert!(decode(&text.replacen("\"ben\"", "null", 1), None).is_err(), "the first has nobody before it");
    }

    const BEFORE: Digest = Digest([7; 32]);

    fn chained(records: &[Record]) -> Vec<Record> {
        let mut previous = BEFORE;
        let chain = |record: &Record| {
            previous = record.chained_to(previous);
            Record { hash: previous, ..record.clone() }
        };
        records.iter().map(chain).collect()
    }

    fn all(records: &[Record]) -> Vec<String> {
        records.iter().map(debug).collect()
    }

    fn debug(record: &Record) -> String {
        format!("{record:?}")
    }
}
