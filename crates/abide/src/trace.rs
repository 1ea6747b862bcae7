//! Traces: what was committed, as spans of OpenTelemetry. They are evidence, never truth: made after the fact from the log,
//! sent in the background, and dropped when the collector does not take them.

use std::collections::HashMap;
use std::time::Duration;

use abide_core::ids::{Digest, Path, TaskId};
use abide_core::run::event::Record;
use abide_core::time::Timestamp;
use abide_engine::Engine;
use abide_engine::hub::{Committed, Seen};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Spans that may wait for the collector; beyond it they are dropped.
const QUEUE: usize = 8_192;
const AT_ONCE: usize = 512;
const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);
/// Tasks whose claim is remembered, so that their span has a beginning.
const REMEMBERED: usize = 50_000;

/// Where spans go, by OpenTelemetry's own variables.
pub fn endpoint() -> Option<String> {
    let traces = std::env::var("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").ok();
    let all = || std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok();
    traces
        .or_else(|| all().map(|base| format!("{}/v1/traces", base.trim_end_matches('/'))))
        .filter(|url| !url.is_empty())
}

/// Follows what is committed until the engine stops: a line of the log for each event that people ask about, and spans
/// where there is a collector.
pub fn follow(engine: &Engine, endpoint: Option<String>) -> JoinHandle<()> {
    let (sender, spans) = mpsc::channel(QUEUE);
    let wanted = endpoint.is_some() || tracing::enabled!(target: "abide::events", tracing::Level::DEBUG);
    if let Some(url) = endpoint {
        tokio::spawn(export(url, spans));
    }
    if !wanted {
        return tokio::spawn(async {});
    }
    let (engine, mut watcher) = (engine.clone(), engine.watch());
    tokio::spawn(async move {
        let mut tracer = Tracer { engine, sender, begun: HashMap::new() };
        loop {
            match watcher.next().await {
                Seen::Commit(commit) => {
                    for run in commit.runs.iter() {
                        tracer.saw(run).await;
                    }
                }
                // What was missed is in the log; only its spans are not made.
                Seen::Gap { .. } => watcher = tracer.engine.watch(),
                Seen::End => break,
            }
        }
    })
}

struct Tracer {
    engine: Engine,
    sender: mpsc::Sender<Value>,
    /// By run and path: the span that a worker's traceparent names, and since when.
    begun: HashMap<(String, String), (String, Timestamp)>,
}

impl Tracer {
    async fn saw(&mut self, run: &Committed) {
        let engine = self.engine.in_namespace(run.key.namespace.clone());
        let limit = (run.to_seq + 1).saturating_sub(run.from_seq).min(1_000) as usize;
        let Ok(events) = engine.events(&run.key.run_id, run.from_seq.saturating_sub(1), limit).await else { return };
        // What moved together is of one run, and of one trace; not every event names it.
        let trace_id = events.iter().find_map(trace_of);
        for event in &events {
            self.tell(run, event, trace_id.as_deref());
        }
        if run.state.is_terminal()
            && let Ok(record) = engine.run(&run.key.run_id).await
            && let Some(trace_id) = &trace_id
        {
            let (ended, failed) = (record.ended_at.unwrap_or(record.updated_at), record.failure.is_some());
            let times = (record.created_at, ended);
            self.send(
                run,
                trace_id,
                root(run),
                None,
                run.workflow.as_str(),
                times,
                failed,
                json!({ "state": run.state }),
            );
        }
    }

    fn tell(&mut self, run: &Committed, event: &Record, trace_id: Option<&str>) {
        let path = event.step_id.as_ref().map(Path::to_string).unwrap_or_default();
        let place = (run.key.run_id.to_string(), path.clone());
        if let Some(trace_id) = trace_id.filter(|_| !event.evidence.is_empty()) {
            tracing::debug!(
                target: "abide::events", run_id = %run.key.run_id, step_id = path, kind = event.kind, seq = event.seq,
                attempt = event.attempt, trace_id, workflow = %run.workflow, "event"
            );
        }
        match event.kind.as_str() {
            "task.issued" => {
                if self.begun.len() >= REMEMBERED {
                    self.begun.clear();
                }
                let task = TaskId::of(&run.key.run_id, event.seq, &Path::from(path.as_str()));
                let digest = Digest::of(task.as_str().as_bytes()).to_string();
                self.begun.insert(place, (digest[digest.len() - 16..].to_owned(), event.at));
            }
            "task.claimed" => {
                if let Some(begun) = self.begun.get_mut(&place) {
                    begun.1 = event.at;
                }
            }
            "task.completed" | "task.failed" | "task.lost" | "task.blocked" | "task.canceled" => {
                let (span, since) = self.begun.remove(&place).unwrap_or_else(|| (span_of(run, event.seq), event.at));
                self.of_step(run, event, trace_id, span, since);
            }
            "step.blocked" | "step.overdue" => self.of_step(run, event, trace_id, span_of(run, event.seq), event.at),
            _ => {}
        }
    }

    fn of_step(&self, run: &Committed, event: &Record, trace_id: Option<&str>, span: String, since: Timestamp) {
        let Some(trace_id) = trace_id else { return };
        let failed = matches!(event.kind.as_str(), "task.failed" | "task.lost" | "step.overdue");
        let name = event.step_id.as_ref().map_or("step", |path| path.as_str());
        let more = json!({ "step_id": name, "attempt": event.attempt, "kind": event.kind });
        self.send(run, trace_id, span, Some(root(run)), name, (since, event.at), failed, more);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a span")]
    fn send(
        &self,
        run: &Committed,
        trace_id: &str,
        span: String,
        parent: Option<String>,
        name: &str,
        (start, end): (Timestamp, Timestamp),
        failed: bool,
        more: Value,
    ) {
        let nanos = |at: Timestamp| (at.micros() * 1_000).to_string();
        let mut attributes = vec![
            attribute("abide.run_id", &json!(run.key.run_id)),
            attribute("abide.namespace", &json!(run.key.namespace)),
            attribute("abide.workflow_id", &json!(run.workflow)),
        ];
        attributes.extend(
            more.as_object().into_iter().flatten().map(|(key, value)| attribute(&format!("abide.{key}"), value)),
        );
        let span = json!({
            "traceId": trace_id, "spanId": span, "parentSpanId": parent.unwrap_or_default(), "name": name, "kind": 1,
            "startTimeUnixNano": nanos(start), "endTimeUnixNano": nanos(end), "attributes": attributes,
            "status": { "code": if failed { 2 } else { 1 } },
        });
        // A collector that does not keep up loses spans, not runs.
        let _ = self.sender.try_send(span);
    }
}

fn trace_of(event: &Record) -> Option<String> {
    event.evidence.iter().find_map(trace_in)
}

fn trace_in(evidence: &abide_core::contract::Evidence) -> Option<String> {
    let is_trace = evidence.kind == abide_core::contract::EvidenceKind::Trace && evidence.reference.len() == 32;
    is_trace.then(|| evidence.reference.clone())
}

fn root(run: &Committed) -> String {
    span_of(run, 0)
}

fn span_of(run: &Committed, seq: u64) -> String {
    Digest::of(format!("{}/{seq}", run.key.run_id).as_bytes()).to_string()[..16].to_owned()
}

fn attribute(key: &str, value: &Value) -> Value {
    let value = match value {
        Value::Number(number) => json!({ "intValue": number.to_string() }),
        Value::String(text) => json!({ "stringValue": text }),
        other => json!({ "stringValue": other.to_string() }),
    };
    json!({ "key": key, "value": value })
}

/// Sends what has gathered, once a second; what a collector refuses is gone.
async fn export(url: String, mut spans: mpsc::Receiver<Value>) {
    // One TLS stack for the process; a provider that is there already is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = match reqwest::Client::builder().timeout(PATIENCE).no_proxy().build() {
        Ok(client) => client,
        Err(error) => return tracing::error!(%error, "spans cannot be sent"),
    };
    let mut gathered = Vec::with_capacity(AT_ONCE);
    let mut was_refused = false;
    while spans.recv_many(&mut gathered, AT_ONCE).await > 0 {
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": [attribute("service.name", &json!("abide"))] },
            "scopeSpans": [{ "scope": { "name": "abide", "version": env!("CARGO_PKG_VERSION") }, "spans": gathered }],
        }] });
        let sending = client.post(&url).header("content-type", "application/json").body(body.to_string()).send().await;
        let refused = match sending {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.without_url().to_string()),
        };
        // Said when it begins, not every second.
        if let Some(why) = refused.as_ref().filter(|_| !was_refused) {
            tracing::warn!(why, "the collector takes no spans; they are dropped");
        }
        was_refused = refused.is_some();
        gathered.clear();
        tokio::time::sleep(EVERY).await;
    }
}
