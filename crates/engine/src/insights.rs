//! The numbers people need: how long runs stay in each state, how often they retry, stall or wait for a connection. Folded
//! from the events in the background, each commit exactly once.

use std::collections::BTreeMap;

use abide_core::contract::RunState;
use abide_core::ids::{Namespace, WorkflowId};
use abide_core::run::event::Record;
use abide_core::time::{Span, Timestamp};
use rusqlite::Connection as Db;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::store::sqlite::{log, read};
use crate::store::{RunNo, Stored};

/// Durations in buckets that grow by a fifth: a percentile is right within that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram(BTreeMap<u16, u64>);

/// Buckets per doubling.
const FINE: f64 = 4.0;

impl Histogram {
    pub fn add(&mut self, span: Span) {
        let bucket = ((span.micros() + 1) as f64).log2() * FINE;
        *self.0.entry(bucket as u16).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in &other.0 {
            *self.0.entry(*bucket).or_default() += count;
        }
    }

    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The span that this share of all stayed below.
    pub fn percentile(&self, share: f64) -> Option<Span> {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.0.iter().find_map(|(bucket, count)| {
            seen += count;
            (seen >= wanted).then(|| Span::from_micros(((f64::from(*bucket) + 1.0) / FINE).exp2() as u64))
        })
    }
}

/// What is counted, of what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Measure {
    pub namespace: Namespace,
    pub workflow: WorkflowId,
    /// `started`, `entered`, `time_in`, `retried_steps`, `retried_steps_completed`, `auth_blocked`, `issued`,
    /// `issued_again`.
    pub metric: &'static str,
    /// The state, the tool or the handler.
    pub of: String,
}

/// What a page of commits adds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Added(pub BTreeMap<Measure, (u64, Histogram)>);

impl Added {
    fn count(&mut self, run: &Place, metric: &'static str, of: impl Into<String>) {
        self.0.entry(run.measure(metric, of)).or_default().0 += 1;
    }

    fn time(&mut self, run: &Place, state: RunState, span: Span) {
        let (count, histogram) = self.0.entry(run.measure("time_in", state.as_str())).or_default();
        *count += 1;
        histogram.add(span);
    }
}

/// Where a run belongs.
struct Place {
    namespace: Namespace,
    workflow: WorkflowId,
}

impl Place {
    fn measure(&self, metric: &'static str, of: impl Into<String>) -> Measure {
        Measure { namespace: self.namespace.clone(), workflow: self.workflow.clone(), metric, of: of.into() }
    }
}

/// Folds what was committed after a position: the new position, and what it adds. Nothing new: `None`.
pub fn fold_after(db: &Db, position: i64, commits: usize) -> Stored<Option<(i64, Added)>> {
    let Some(page) = read::commits_after(db, position, commits)? else {
        // So old that it is not kept: counting goes on from what is.
        return Ok(Some((read::position(db)?, Added::default())));
    };
    let Some(last) = page.last().map(|(batch, _)| *batch) else { return Ok(None) };
    let mut added = Added::default();
    for (_, touched) in &page {
        for one in touched {
            let Some((key, workflow)) = read::key_of(db, one.no)? else { continue };
            let place = Place { namespace: key.namespace, workflow };
            let count = usize::try_from(one.to_seq + 1 - one.from_seq).unwrap_or(usize::MAX);
            let events = read::events(db, one.no, one.from_seq - 1, count)?;
            fold_events(db, one.no, &place, &events, &mut added)?;
        }
    }
    Ok(Some((last, added)))
}

fn fold_events(db: &Db, no: RunNo, place: &Place, events: &[Record], added: &mut Added) -> Stored {
    let mut since: Option<Timestamp> = None;
    for event in events {
        match (event.kind.as_str(), event.attempt) {
            ("step.completed", Some(attempt)) if attempt > 1 => {
                added.count(place, "retried_steps", "");
                added.count(place, "retried_steps_completed", "");
            }
            ("step.failed", Some(attempt)) if attempt > 1 => added.count(place, "retried_steps", ""),
            ("task.issued", attempt) => {
                let handler = handler_of(event);
                if attempt.is_some_and(|attempt| attempt > 1) {
                    added.count(place, "issued_again", handler.clone());
                }
                added.count(place, "issued", handler);
            }
            _ => {}
        }
        let Some(to) = event.to_state else { continue };
        added.count(place, "entered", to.as_str());
        if event.from_state.is_none() {
            added.count(place, "started", "");
        }
        if let Some(from) = event.from_state {
            let began = match since {
                Some(began) => Some(began),
                None => log::entered_before(db, no, event.seq)?,
            };
            if let Some(began) = began {
                added.time(place, from, event.at.since(began));
            }
        }
        if to == RunState::WaitingOnAuth {
            added.count(place, "auth_blocked", tool_of(event));
        }
        since = Some(event.at);
    }
    Ok(())
}

fn tool_of(event: &Record) -> String {
    let payload: Value = serde_json::from_str(event.payload.get()).unwrap_or_default();
    let tool = payload.pointer("/carries/reason/wait/connection/tool").and_then(Value::as_str);
    tool.unwrap_or("unknown").to_owned()
}

fn handler_of(event: &Record) -> String {
    #[derive(Deserialize)]
    struct Issued {
        task: Task,
    }
    #[derive(Deserialize)]
    struct Task {
        handler: String,
    }
    serde_json::from_str::<Issued>(event.payload.get()).map(|issued| issued.task.handler).unwrap_or_default()
}

/// What is known of one workflow (or of all).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Insights {
    pub runs: u64,
    pub time_in_state: BTreeMap<String, Percentiles>,
    /// Runs that waited for a connection at least once, per run started; by tool.
    pub auth_blocked: BTreeMap<String, u64>,
    pub auth_blocked_rate: f64,
    /// How often a run went into back-off, per run started.
    pub retry_rate: f64,
    /// Of the steps that needed another attempt, how many were completed.
    pub retry_success_rate: f64,
    pub stalls_per_1000_runs: f64,
    pub completed_with_warnings_rate: f64,
    /// How many tasks each handler was given, and how many of these because an attempt before had not succeeded.
    pub handlers: BTreeMap<String, Issues>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Issues {
    pub issued: u64,
    pub again: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
}

impl Insights {
    pub fn of(rows: &[(String, String, u64, Histogram)]) -> Insights {
        let mut entered: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut retried, mut retried_completed) = (0, 0);
        let mut insights = Insights::default();
        let mut times: BTreeMap<String, Histogram> = BTreeMap::new();
        for (metric, of, count, histogram) in rows {
            match metric.as_str() {
                "entered" => *entered.entry(of).or_default() += count,
                "time_in" => times.entry(of.clone()).or_default().merge(histogram),
                "retried_steps" => retried += count,
                "retried_steps_completed" => retried_completed += count,
                "issued" => insights.handlers.entry(of.clone()).or_default().issued += count,
                "issued_again" => insights.handlers.entry(of.clone()).or_default().again += count,
                "auth_blocked" => *insights.auth_blocked.entry(of.clone()).or_default() += count,
                _ => {}
            }
        }
        let of = |state: RunState| entered.get(state.as_str()).copied().unwrap_or(0) as f64;
        let ended = RunState::ALL.iter().filter(|state| state.is_terminal()).map(|state| of(*state)).sum::<f64>();
        insights.runs = rows.iter().filter(|row| row.0 == "started").map(|row| row.2).sum();
        let runs = (insights.runs as f64).max(1.0);
        insights.time_in_state = times.into_iter().map(|(state, times)| (state, Percentiles::of(&times))).collect();
        insights.auth_blocked_rate = of(RunState::WaitingOnAuth) / runs;
        insights.retry_rate = of(RunState::RetryScheduled) / runs;
        insights.retry_success_rate = if retried == 0 { 0.0 } else { retried_completed as f64 / retried as f64 };
        insights.stalls_per_1000_runs = 1_000.0 * of(RunState::Stalled) / runs;
        insights.completed_with_warnings_rate = of(RunState::CompletedWithWarnings) / ended.max(1.0);
        insights
    }
}

impl Percentiles {
    fn of(times: &Histogram) -> Percentiles {
        let at = |share| times.percentile(share).map_or(0.0, |span| span.micros() as f64 / 1_000.0);
        Percentiles { count: times.count(), p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_within_a_fifth() {
        let mut histogram = Histogram::default();
        for millis in 1..=1_000 {
            histogram.add(Span::from_millis(millis));
        }
        for (share, exact) in [(0.5, 500.0), (0.95, 950.0), (0.99, 990.0)] {
            let found = histogram.percentile(share).expect("a percentile").micros() as f64 / 1_000.0;
            assert!((exact..=exact * 1.2).contains(&found), "{share}: {found}");
        }
        assert_eq!(Histogram::default().percentile(0.5), None);
    }
}
