//! The numbers people need, by workflow and by tool: how long runs stay in each state, how often they retry, stall, warn or
//! wait for a connection. Folded from the events in the background, each commit exactly once.

pub mod fold;

mod calls;

use calls::Calls;

use std::collections::BTreeMap;

use abide_core::contract::RunState;
use abide_core::ids::{Namespace, WorkflowId};
use abide_core::time::Span;
use serde::{Deserialize, Serialize};

/// Tools of one workflow that are told apart. Workers name them, so there could be any number.
pub const TOOLS: usize = 200;
/// What the tools beyond these are counted as.
pub const OTHER: &str = "other";

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
    /// Empty: of the whole workflow.
    pub tool: String,
    /// `started`, `entered`, `time_in`, `retried_steps`, `retried_steps_completed`; of a tool also `issued`,
    /// `issued_again` and `warned`.
    pub metric: &'static str,
    /// The state, where there is one.
    pub of: &'static str,
}

/// What a page of commits adds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Added(pub BTreeMap<Measure, (u64, Histogram)>);

/// A number that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    pub tool: String,
    pub metric: String,
    pub of: String,
    pub count: u64,
    pub times: Histogram,
}

/// What is known of one workflow (or of all).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Insights {
    pub runs: u64,
    pub time_in_state: BTreeMap<String, Percentiles>,
    /// How often a run waited for a connection, per run started.
    pub auth_blocked_rate: f64,
    /// How often a run went into back-off, per run started.
    pub retry_rate: f64,
    /// Of the steps that needed another attempt, how many were completed; none when no step did.
    pub retry_success_rate: Option<f64>,
    pub stalls_per_1000_runs: f64,
    pub completed_with_warnings_rate: f64,
    pub tools: BTreeMap<String, ToolInsights>,
}

/// What is known of one tool: of what happened to steps because of it, or while they called it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ToolInsights {
    /// Tasks it was given, and how many of these because an attempt before had not succeeded.
    pub issued: u64,
    pub again: u64,
    pub time_in_state: BTreeMap<String, Percentiles>,
    /// How often a run waited until it was connected again; the rate is per run started, as a connection has no tasks.
    pub auth_blocked: u64,
    pub auth_blocked_rate: f64,
    /// How often a run went into back-off because of it. This rate and those below are per task; none without tasks.
    pub retries: u64,
    pub retry_rate: Option<f64>,
    /// Of its steps that needed another attempt, how many were completed; none when no step did.
    pub retry_success_rate: Option<f64>,
    pub stalls: u64,
    pub stalls_per_1000_tasks: Option<f64>,
    pub warnings: u64,
    pub warnings_rate: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
}

impl Insights {
    pub fn of(rows: &[Counted]) -> Insights {
        let mut tallies: BTreeMap<&str, Tally<'_>> = BTreeMap::new();
        for row in rows {
            tallies.entry(&row.tool).or_default().add(row);
        }
        let whole = tallies.remove("").unwrap_or_default();
        let started = whole.counted("started");
        let per_run = |count: u64| count as f64 / started.max(1) as f64;
        let ended: u64 = RunState::ALL.iter().filter(|one| one.is_terminal()).map(|one| whole.entered(*one)).sum();
        let tool = |(name, tally): (&str, Tally<'_>)| (name.to_owned(), ToolInsights::of(&tally, started));
        Insights {
            runs: started,
            time_in_state: whole.time_in_state(),
            auth_blocked_rate: per_run(whole.entered(RunState::WaitingOnAuth)),
            retry_rate: per_run(whole.entered(RunState::RetryScheduled)),
            retry_success_rate: whole.retry_success_rate(),
            stalls_per_1000_runs: 1_000.0 * per_run(whole.entered(RunState::Stalled)),
            completed_with_warnings_rate: whole.entered(RunState::CompletedWithWarnings) as f64 / ended.max(1) as f64,
            tools: tallies.into_iter().map(tool).collect(),
        }
    }
}

impl ToolInsights {
    fn of(tally: &Tally<'_>, started: u64) -> ToolInsights {
        let issued = tally.counted("issued");
        let (auth_blocked, retries) = (tally.entered(RunState::WaitingOnAuth), tally.entered(RunState::RetryScheduled));
        let (stalls, warnings) = (tally.entered(RunState::Stalled), tally.counted("warned"));
        ToolInsights {
            issued,
            again: tally.counted("issued_again"),
            time_in_state: tally.time_in_state(),
            auth_blocked,
            auth_blocked_rate: auth_blocked as f64 / started.max(1) as f64,
            retries,
            retry_rate: share(retries, issued),
            retry_success_rate: tally.retry_success_rate(),
            stalls,
            stalls_per_1000_tasks: share(1_000 * stalls, issued),
            warnings,
            warnings_rate: share(warnings, issued),
        }
    }
}

impl Percentiles {
    fn of(times: &Histogram) -> Percentiles {
        let at = |share| times.percentile(share).map_or(0.0, |span| span.micros() as f64 / 1_000.0);
        Percentiles { count: times.count(), p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) }
    }
}

/// The rows of one tool, or of everything, added up.
#[derive(Default)]
struct Tally<'a> {
    counts: BTreeMap<(&'a str, &'a str), u64>,
    times: BTreeMap<&'a str, Histogram>,
}

impl<'a> Tally<'a> {
    fn add(&mut self, row: &'a Counted) {
        *self.counts.entry((&row.metric, &row.of)).or_default() += row.count;
        if row.metric == "time_in" {
            self.times.entry(&row.of).or_default().merge(&row.times);
        }
    }

    fn counted(&self, metric: &str) -> u64 {
        self.counts.get(&(metric, "")).copied().unwrap_or(0)
    }

    fn entered(&self, state: RunState) -> u64 {
        self.counts.get(&("entered", state.as_str())).copied().unwrap_or(0)
    }

    fn retry_success_rate(&self) -> Option<f64> {
        share(self.counted("retried_steps_completed"), self.counted("retried_steps"))
    }

    fn time_in_state(&self) -> BTreeMap<String, Percentiles> {
        self.times.iter().map(|(state, times)| ((*state).to_owned(), Percentiles::of(times))).collect()
    }
}

/// Of nothing there is no share.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
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

    fn counted(tool: &str, metric: &str, of: &str, count: u64) -> Counted {
        Counted { tool: tool.into(), metric: metric.into(), of: of.into(), count, times: Histogram::default() }
    }

    #[test]
    fn of_nothing_there_is_no_rate() {
        assert_eq!(Insights::of(&[]).retry_success_rate, None);
        let known = Insights::of(&[counted("", "started", "", 4), counted("mail", "entered", "waiting_on_auth", 1)]);
        let mail = &known.tools["mail"];
        assert_eq!((mail.auth_blocked, mail.auth_blocked_rate), (1, 0.25));
        assert_eq!((mail.retry_rate, mail.retry_success_rate), (None, None));
        assert_eq!((mail.stalls_per_1000_tasks, mail.warnings_rate), (None, None));
    }

    #[test]
    fn the_same_tool_of_several_workflows_is_added_up() {
        let rows = [
            counted("mail", "issued", "", 3),
            counted("mail", "issued", "", 1),
            counted("mail", "entered", "stalled", 1),
            counted("mail", "warned", "", 2),
            counted("mail", "retried_steps", "", 2),
            counted("mail", "retried_steps_completed", "", 1),
        ];
        let mail = &Insights::of(&rows).tools["mail"];
        assert_eq!((mail.issued, mail.stalls_per_1000_tasks, mail.warnings_rate), (4, Some(250.0), Some(0.5)));
        assert_eq!(mail.retry_success_rate, Some(0.5));
    }
}
