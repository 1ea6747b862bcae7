//! Numbers for Prometheus: what the contract promises people, read from the same rows, and how requests are answered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use abide_api::Problem;
use abide_engine::Engine;
use abide_engine::insights::{Insights, Percentiles, ToolInsights};

use super::locked;

/// Upper bounds of the buckets of request times, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

#[derive(Debug, Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<(String, &'static str, u16), Times>>,
    csp_reports: AtomicU64,
}

#[derive(Debug, Default, Clone)]
struct Times {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    seconds: f64,
}

impl Metrics {
    pub fn request(&self, method: &str, route: &'static str, status: u16, took: Duration) {
        let mut all = locked(&self.requests);
        let times = all.entry((method.to_owned(), route, status)).or_default();
        let seconds = took.as_secs_f64();
        times.count += 1;
        times.seconds += seconds;
        for (bucket, bound) in times.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    /// A browser said that a page of ours broke its policy; how often that was said so far.
    pub fn csp_report(&self) -> u64 {
        self.csp_reports.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Everything of one namespace, as text.
    pub async fn render(&self, engine: &Engine) -> Result<String, Problem> {
        let mut text = Text::default();
        let namespace = engine.namespace().to_string();
        runs(&mut text, engine, &namespace).await?;
        queues(&mut text, engine, &namespace).await?;
        people(&mut text, engine, &namespace).await?;
        insights(&mut text, engine, &namespace).await?;
        self.requests(&mut text);
        Ok(text.0)
    }

    fn requests(&self, text: &mut Text) {
        text.about("abide_http_request_seconds", "histogram", "How long requests took.");
        for ((method, route, status), times) in locked(&self.requests).iter() {
            let status = status.to_string();
            let labels = [("method", method.as_str()), ("route", *route), ("status", status.as_str())];
            for (bucket, bound) in times.buckets.iter().zip(BOUNDS) {
                let bound = bound.to_string();
                let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
                text.value("abide_http_request_seconds_bucket", &labels, *bucket as f64);
            }
            let all: Vec<_> = labels.iter().copied().chain([("le", "+Inf")]).collect();
            text.value("abide_http_request_seconds_bucket", &all, times.count as f64);
            text.value("abide_http_request_seconds_sum", &labels, times.seconds);
            text.value("abide_http_request_seconds_count", &labels, times.count as f64);
        }
        text.about("abide_csp_reports_total", "counter", "What browsers held back on pages of the UI.");
        text.value("abide_csp_reports_total", &[], self.csp_reports.load(Ordering::Relaxed) as f64);
    }
}

async fn runs(text: &mut Text, engine: &Engine, namespace: &str) -> Result<(), Problem> {
    text.about("abide_runs", "gauge", "Runs by state.");
    let counts = engine.counts(None).await?;
    for state in abide_core::contract::RunState::ALL {
        let count = counts.get(state).copied().unwrap_or(0);
        text.value("abide_runs", &[("namespace", namespace), ("state", state.as_str())], count as f64);
    }
    text.about("abide_open_runs_by_cause", "gauge", "Open runs by what they wait for.");
    for (cause, count) in engine.counts_by_cause().await? {
        text.value("abide_open_runs_by_cause", &[("namespace", namespace), ("cause", &cause)], count as f64);
    }
    Ok(())
}

async fn queues(text: &mut Text, engine: &Engine, namespace: &str) -> Result<(), Problem> {
    let (queues, now) = (engine.queues().await?, engine.clock().now());
    text.about("abide_queue_depth", "gauge", "Tasks that wait for a worker.");
    for queue in &queues {
        text.value(
            "abide_queue_depth",
            &[("namespace", namespace), ("queue", queue.queue.as_str())],
            queue.depth as f64,
        );
    }
    text.about("abide_queue_age_seconds", "gauge", "How long the oldest task of a queue has waited.");
    for queue in &queues {
        let age = queue.oldest_at.map_or(0.0, |at| now.since(at).micros() as f64 / 1e6);
        text.value("abide_queue_age_seconds", &[("namespace", namespace), ("queue", queue.queue.as_str())], age);
    }
    text.about("abide_queue_listeners", "gauge", "Workers that have asked a queue for work lately.");
    for queue in &queues {
        let labels = [("namespace", namespace), ("queue", queue.queue.as_str())];
        text.value("abide_queue_listeners", &labels, queue.listeners.len() as f64);
    }
    type Read = fn(&abide_engine::reads::HandlerView) -> f64;
    let of_handlers: [(&str, &str, Read); 2] = [
        ("abide_handler_depth", "Tasks that wait for a worker, by handler.", |one| one.depth as f64),
        ("abide_handler_listeners", "Workers that have asked lately for a handler that tasks wait for.", |one| {
            one.listeners as f64
        }),
    ];
    for (name, about, read) in of_handlers {
        text.about(name, "gauge", about);
        for (queue, one) in queues.iter().flat_map(|queue| queue.handlers.iter().map(move |one| (queue, one))) {
            let labels = [("namespace", namespace), ("queue", queue.queue.as_str()), ("handler", one.handler.as_str())];
            text.value(name, &labels, read(one));
        }
    }
    Ok(())
}

async fn people(text: &mut Text, engine: &Engine, namespace: &str) -> Result<(), Problem> {
    let approvals = engine.approvals(10_000).await?;
    text.about("abide_approvals_open", "gauge", "Decisions that wait for people.");
    text.value("abide_approvals_open", &[("namespace", namespace)], approvals.len() as f64);
    text.about("abide_approvals_overdue", "gauge", "Decisions whose deadline has passed.");
    let overdue = approvals.iter().filter(|one| one.overdue).count();
    text.value("abide_approvals_overdue", &[("namespace", namespace)], overdue as f64);
    text.about("abide_connection_waiting_runs", "gauge", "Runs that wait for a connection.");
    for one in engine.connections().await? {
        let labels = [("namespace", namespace), ("tool", one.tool.as_str()), ("account", one.account.as_str())];
        text.value("abide_connection_waiting_runs", &labels, one.waiting_runs as f64);
    }
    Ok(())
}

/// Workflows, and tools, that get series of their own.
const MOST_SERIES: usize = 200;

async fn insights(text: &mut Text, engine: &Engine, namespace: &str) -> Result<(), Problem> {
    let mut of: Vec<Option<abide_core::ids::WorkflowId>> = vec![None];
    of.extend(engine.workflows().await?.into_iter().take(MOST_SERIES).map(|one| Some(one.workflow_id)));
    let mut numbers = Vec::new();
    for workflow in of {
        let label = workflow.as_ref().map_or_else(String::new, ToString::to_string);
        numbers.push((label, engine.insights(workflow).await?));
    }
    text.about("abide_time_in_state_seconds", "summary", "How long runs were in a state.");
    for (workflow, numbers) in &numbers {
        let labels = [("namespace", namespace), ("workflow", workflow)];
        text.times("abide_time_in_state_seconds", &labels, &numbers.time_in_state);
    }
    type Read = fn(&Insights) -> Option<f64>;
    let rates: [(&str, &str, Read); 5] = [
        ("abide_auth_blocked_rate", "Waits for a connection, per run started.", |n| Some(n.auth_blocked_rate)),
        ("abide_retry_rate", "Back-offs per run started.", |n| Some(n.retry_rate)),
        ("abide_retry_success_rate", "Of the steps that were tried again, how many were completed.", |n| {
            n.retry_success_rate
        }),
        ("abide_stalls_per_1000_runs", "Stalls per 1,000 runs started.", |n| Some(n.stalls_per_1000_runs)),
        ("abide_completed_with_warnings_rate", "Runs that ended with warnings, per run that ended.", |n| {
            Some(n.completed_with_warnings_rate)
        }),
    ];
    for (name, about, read) in rates {
        text.about(name, "gauge", about);
        for (workflow, numbers) in &numbers {
            // Of nothing there is no rate, and so no series.
            if let Some(value) = read(numbers) {
                text.value(name, &[("namespace", namespace), ("workflow", workflow)], value);
            }
        }
    }
    tools(text, namespace, &numbers[0].1);
    Ok(())
}

/// The same by tool, over all workflows.
fn tools(text: &mut Text, namespace: &str, numbers: &Insights) {
    let mut tools: Vec<_> = numbers.tools.iter().collect();
    tools.sort_by_key(|(_, one)| std::cmp::Reverse(one.issued.max(one.auth_blocked)));
    tools.truncate(MOST_SERIES);
    text.about("abide_tool_time_in_state_seconds", "summary", "How long runs were in a state because of a tool.");
    for (tool, one) in &tools {
        let labels = [("namespace", namespace), ("tool", tool.as_str())];
        text.times("abide_tool_time_in_state_seconds", &labels, &one.time_in_state);
    }
    type Read = fn(&ToolInsights) -> Option<f64>;
    let of_tools: [(&str, &str, &str, Read); 10] = [
        ("abide_tool_tasks_total", "counter", "Tasks that a tool was given.", |one| Some(one.issued as f64)),
        ("abide_tool_tasks_again_total", "counter", "Tasks after an attempt that had not succeeded.", |one| {
            Some(one.again as f64)
        }),
        ("abide_tool_auth_blocked_total", "counter", "Waits for a connection of a tool.", |one| {
            Some(one.auth_blocked as f64)
        }),
        ("abide_tool_stalls_total", "counter", "Stalls because of a tool.", |one| Some(one.stalls as f64)),
        ("abide_tool_warnings_total", "counter", "Warnings of steps that called a tool.", |one| {
            Some(one.warnings as f64)
        }),
        ("abide_tool_auth_blocked_rate", "gauge", "Waits for a connection of a tool, per run started.", |one| {
            Some(one.auth_blocked_rate)
        }),
        ("abide_tool_retry_rate", "gauge", "Back-offs because of a tool, per task.", |one| one.retry_rate),
        (
            "abide_tool_retry_success_rate",
            "gauge",
            "Of its steps that were tried again, how many were completed.",
            |one| one.retry_success_rate,
        ),
        ("abide_tool_stalls_per_1000_tasks", "gauge", "Stalls because of a tool, per 1,000 of its tasks.", |one| {
            one.stalls_per_1000_tasks
        }),
        ("abide_tool_warnings_rate", "gauge", "Warnings of steps that called a tool, per task.", |one| {
            one.warnings_rate
        }),
    ];
    for (name, kind, about, read) in of_tools {
        text.about(name, kind, about);
        for (tool, one) in &tools {
            if let Some(value) = read(one) {
                text.value(name, &[("namespace", namespace), ("tool", tool)], value);
            }
        }
    }
}

/// The exposition format.
#[derive(Default)]
struct Text(String);

impl Text {
    fn about(&mut self, name: &str, kind: &str, about: &str) {
        let _ = writeln!(self.0, "# HELP {name} {about}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", quoted(value))).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    fn times(&mut self, name: &str, labels: &[(&str, &str)], times: &BTreeMap<String, Percentiles>) {
        for (state, times) in times {
            for (quantile, ms) in [("0.5", times.p50_ms), ("0.95", times.p95_ms), ("0.99", times.p99_ms)] {
                let labels: Vec<_> =
                    labels.iter().copied().chain([("state", state.as_str()), ("quantile", quantile)]).collect();
                self.value(name, &labels, ms / 1e3);
            }
        }
    }
}
