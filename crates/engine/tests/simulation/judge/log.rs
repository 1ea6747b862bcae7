//! The log of a run, as it is stored, event by event.

use abide_core::contract::{Cause, Evidence, Layer, RunState};
use abide_core::ids::{Digest, Path};
use abide_core::run::command::{Actor, ActorKind};
use abide_core::run::event::{Event, Fact, Record};
use abide_core::run::{fold, row_of};
use abide_engine::store::RunNo;
use rusqlite::{Connection as Db, Row};
use serde_json::value::RawValue;

use super::{Judge, Judged, Leased, Moment, Seen, broken, is_person};

const EVENTS: &str = "
    select seq, v, at, actor_type, actor_id, cause, layer, kind, from_state, to_state, step_id, attempt, payload,
           evidence, hash
    from   run_events
    where  run_no = ?1 and entry > ?2
    order  by seq";

/// Those after one, whose hash is `previous`.
pub fn events(db: &Db, no: RunNo, after: u64, mut previous: Digest) -> Judged<Vec<Record>> {
    let mut read = || -> rusqlite::Result<Vec<Record>> {
        let mut statement = db.prepare_cached(EVENTS)?;
        let records = statement.query_map([no, after as i64], record)?.map(|read| {
            let (mut record, hash) = read?;
            // A row of the log has the hash of its last event only.
            record.hash = hash.unwrap_or_else(|| record.chained_to(previous));
            previous = record.hash;
            Ok(record)
        });
        records.collect()
    };
    read().or_else(|error| broken("I7", format!("the log of run {no} cannot be read: {error}")))
}

fn record(row: &Row<'_>) -> rusqlite::Result<(Record, Option<Digest>)> {
    let strange = |what: &str| rusqlite::Error::InvalidParameterName(what.to_owned());
    let text = |at: usize| row.get::<_, String>(at);
    let state = |at: usize| -> rusqlite::Result<Option<RunState>> {
        Ok(row.get::<_, Option<String>>(at)?.as_deref().and_then(RunState::parse))
    };
    let evidence: Option<String> = row.get(13)?;
    let evidence: Option<Vec<Evidence>> = evidence.and_then(|text| serde_json::from_str(&text).ok());
    let hash: Option<String> = row.get(14)?;
    let hash = hash.map(|hash| Digest::parse(&hash).ok_or_else(|| strange("hash"))).transpose()?;
    let record = Record {
        seq: row.get::<_, i64>(0)? as u64,
        v: row.get(1)?,
        at: abide_core::time::Timestamp::from_micros(row.get(2)?),
        actor: Actor { kind: ActorKind::parse(&text(3)?).ok_or_else(|| strange("actor"))?, id: text(4)? },
        cause: Cause::parse(&text(5)?).ok_or_else(|| strange("cause"))?,
        layer: Layer::parse(&text(6)?).ok_or_else(|| strange("layer"))?,
        kind: text(7)?,
        from_state: state(8)?,
        to_state: state(9)?,
        step_id: row.get::<_, Option<String>>(10)?.map(Path::new),
        attempt: row.get(11)?,
        payload: RawValue::from_string(text(12)?).map_err(|_| strange("payload"))?,
        evidence: evidence.unwrap_or_default(),
        hash: Digest::default(),
    };
    Ok((record, hash))
}

/// What happened to a run, for people.
pub fn story(db: &Db, no: RunNo) -> String {
    let records = events(db, no, 0, Digest::default()).unwrap_or_default();
    let lines = records.iter().map(|record| {
        let payload: String = record.payload.get().chars().take(200).collect();
        let (step, actor) = (record.step_id.as_ref().map_or("", Path::as_str), &record.actor.id);
        format!("{:>4} {} {:<24} {step:<14} {actor:<8} {payload}", record.seq, record.at, record.kind)
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Judge {
    pub(super) fn check_event(&mut self, seen: &mut Seen, record: &Record, step: &Moment, first: bool) -> Judged {
        let told = |seen: &Seen, what: String| format!("{}: event {}: {what}", seen.key.run_id, record.seq);
        if let Some(violation) = seen.reader.read(record).first() {
            return broken(violation.rule, told(seen, violation.what.clone()));
        }
        let event = match record.event() {
            Ok(event) => event,
            Err(unreadable) => return broken("I7", told(seen, unreadable.to_string())),
        };
        if let Err(wrong) = fold(&mut seen.run, &event) {
            return broken("I1", told(seen, wrong.to_string()));
        }
        seen.run.head.hash = record.hash;
        self.kinds.insert(record.kind.clone());
        self.check_actor(seen, &event, step, first)?;
        self.check_fact(seen, &event, step)
    }

    /// I23, I25: every event traces to a request that was not refused, or to the engine itself.
    fn check_actor(&mut self, seen: &Seen, event: &Event, step: &Moment, first: bool) -> Judged {
        let actor = (event.actor.kind.as_str().to_owned(), event.actor.id.clone());
        let by_parent = first && seen.run.head.started.parent.is_some();
        if is_person(&event.actor) && !by_parent && !step.accepted.contains(&actor) {
            return broken("I25", format!("{}: {:?} by {actor:?}, who asked for nothing", seen.key.run_id, event.fact));
        }
        let Fact::Entered(entered) = &event.fact else { return Ok(()) };
        if entered.started.is_none() || by_parent {
            return Ok(());
        }
        let (when, runs) = self.started.entry(event.actor.id.clone()).or_default();
        *runs = if *when == step.number { *runs + 1 } else { 1 };
        *when = step.number;
        match step.starts.get(&event.actor.id) {
            Some(allowed) if *runs <= *allowed => Ok(()),
            allowed => broken("I26", format!("{} started {runs} runs, allowed are {allowed:?}", event.actor.id)),
        }
    }

    fn check_fact(&mut self, seen: &mut Seen, event: &Event, step: &Moment) -> Judged {
        match &event.fact {
            Fact::TaskIssued { .. } => {
                let again = event.step_id.as_ref().filter(|path| seen.completed.contains(*path));
                match again {
                    Some(path) => broken("I27", format!("{}: {path} is done and issued again", seen.key.run_id)),
                    None => Ok(()),
                }
            }
            Fact::StepCompleted { .. } => {
                seen.completed.extend(event.step_id.clone());
                Ok(())
            }
            Fact::TaskClaimed { owner, epoch, window, claim_id, .. } => {
                let (owner, expires_at) = (owner.to_string(), event.at + *window);
                let row = event.step_id.as_ref().map_or_else(|| Path::from(""), row_of);
                let lease = Leased { row, owner, window: *window, expires_at, ended: None };
                seen.leases.insert(*epoch, lease);
                match claim_id {
                    Some(claim_id) => self.check_claim(seen, claim_id, *epoch, event, step),
                    None => Ok(()),
                }
            }
            Fact::TaskCompleted { epoch, .. }
            | Fact::TaskBlocked { epoch, .. }
            | Fact::TaskFailed { epoch, digest: Some(_), .. }
            | Fact::TaskCanceled { epoch: Some(epoch), digest: Some(_), .. } => {
                let Some(lease) = seen.leases.get_mut(epoch) else { return Ok(()) };
                lease.ended = Some(step.number);
                if event.actor.id != lease.owner {
                    return broken("I14", format!("{} ended a task of {lease:?}", event.actor.id));
                }
                let expires_at = lease.expires_at.max(step.serving_since + lease.window);
                if event.at >= expires_at && !step.died {
                    return broken(
                        "I14",
                        format!("{:?} at {}, its lease was over at {expires_at}", event.fact, event.at),
                    );
                }
                Ok(())
            }
            Fact::TaskLost { epoch, .. } => {
                let Some(lease) = seen.leases.get_mut(epoch) else { return Ok(()) };
                lease.ended = Some(step.number);
                let until = lease.expires_at.max(step.gap_ended + lease.window);
                if event.at < until {
                    let what =
                        format!("{}: {lease:?} was taken away at {}, it had until {until}", seen.key.run_id, event.at);
                    return broken("D4b", what);
                }
                Ok(())
            }
            Fact::TaskFailed { epoch, .. } | Fact::TaskCanceled { epoch: Some(epoch), .. } => {
                if let Some(lease) = seen.leases.get_mut(epoch) {
                    lease.ended = Some(step.number);
                }
                Ok(())
            }
            Fact::TaskCanceled { epoch: None, .. } => {
                let row = event.step_id.as_ref().map(row_of);
                for lease in seen.leases.values_mut().filter(|lease| Some(&lease.row) == row.as_ref()) {
                    lease.ended = lease.ended.or(Some(step.number));
                }
                Ok(())
            }
            Fact::ChildEnded { run_id, .. } if !seen.children_ended.insert(run_id.clone()) => {
                broken("I39", format!("{}: the child {run_id} ended twice", seen.key.run_id))
            }
            Fact::ConnectionReconnected { connection: Some(connection), generation: Some(generation) } => {
                match seen.released.insert((connection.to_string(), *generation)) {
                    true => Ok(()),
                    false => broken("I45", format!("{}: released twice by {generation}", seen.key.run_id)),
                }
            }
            _ => Ok(()),
        }
    }

    /// I16: a repeated claim gets what it got, as long as that lives.
    fn check_claim(
        &mut self,
        seen: &Seen,
        claim_id: &str,
        epoch: abide_core::ids::Epoch,
        event: &Event,
        step: &Moment,
    ) -> Judged {
        let leases = match self.claims.get_mut(claim_id) {
            Some((number, leases)) if *number == step.number => {
                leases.push((seen.no, epoch));
                return Ok(());
            }
            Some((_, leases)) => std::mem::take(leases),
            None => Vec::new(),
        };
        let lives = |no: RunNo, epoch: abide_core::ids::Epoch| {
            let of = if no == seen.no { Some(seen) } else { self.runs.get(&no) };
            of.and_then(|seen| seen.leases.get(&epoch))
                .is_some_and(|lease| lease.ended.is_none() && lease.expires_at > event.at)
        };
        let live = leases.into_iter().find(|(no, epoch)| lives(*no, *epoch));
        self.claims.insert(claim_id.to_owned(), (step.number, vec![(seen.no, epoch)]));
        match live {
            Some((no, lives)) => {
                let what = format!(
                    "claim {claim_id} got lease {epoch} of {}, lease {lives} of run {no} lives",
                    seen.key.run_id
                );
                broken("I16", what)
            }
            None => Ok(()),
        }
    }
}
