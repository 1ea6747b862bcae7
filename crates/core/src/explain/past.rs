//! The same answers for any past instant, made again from the log.

use super::Surroundings;
use super::explanation::Explanation;
use super::record::Record;
use super::view::View;
use crate::definition::Definition;
use crate::ids::{Namespace, RunId};
use crate::run::event::Record as EventRecord;
use crate::run::{Broken, Working, replay};
use crate::time::Timestamp;

/// Which past: after an event, or at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Seq(u64),
    Time(Timestamp),
}

/// Why there is no answer for that instant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotThen {
    #[error("the run did not exist yet; its first event was at {first}")]
    TooEarly { first: Timestamp },
    #[error("the run has {last} events, and event {asked} is not one of them")]
    NoSuchEvent { asked: u64, last: u64 },
    #[error("the run has no events")]
    Empty,
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The run as it was, and the instant it is looked at. Heartbeats are not in the log, so that none are claimed.
pub fn run_at(
    run_id: &RunId,
    namespace: &Namespace,
    log: &[EventRecord],
    at: At,
) -> Result<(Working, Timestamp), NotThen> {
    let (first, last) = log.first().zip(log.last()).ok_or(NotThen::Empty)?;
    let length = match at {
        At::Seq(asked) if asked == 0 || asked > last.seq => return Err(NotThen::NoSuchEvent { asked, last: last.seq }),
        At::Seq(asked) => log.partition_point(|event| event.seq <= asked),
        At::Time(time) if time < first.at => return Err(NotThen::TooEarly { first: first.at }),
        At::Time(time) => log.partition_point(|event| event.at <= time),
    };
    let prefix = &log[..length];
    let mut run = replay(Working::unborn(run_id.clone(), namespace.clone()), prefix)?;
    for step in run.steps.values_mut().flatten() {
        if step.live.is_some() {
            std::sync::Arc::make_mut(step).live = None;
        }
    }
    let now = match at {
        At::Seq(_) => prefix.last().map_or(first.at, |event| event.at),
        At::Time(time) => time,
    };
    Ok((run, now))
}

/// Explains the run as it was. Surroundings of the past are rarely known: the default says so.
pub fn explain_at(
    run_id: &RunId,
    namespace: &Namespace,
    log: &[EventRecord],
    definition: &Definition,
    around: &Surroundings,
    at: At,
) -> Result<Explanation, NotThen> {
    let (run, now) = run_at(run_id, namespace, log, at)?;
    // What could be done then cannot be done now.
    Ok(Explanation { can_be_done: Vec::new(), ..View { run: &run, definition, around, now }.explain() })
}

/// The record of the run as it was.
pub fn record_at(
    run_id: &RunId,
    namespace: &Namespace,
    log: &[EventRecord],
    definition: &Definition,
    around: &Surroundings,
    at: At,
) -> Result<Record, NotThen> {
    let (run, now) = run_at(run_id, namespace, log, at)?;
    let record = View { run: &run, definition, around, now }.record();
    Ok(Record { next_actions: Vec::new(), next_actions_count: 0, ..record })
}
