//! Reading runs: `runs`, `show`, `events`, `steps`, `bundle`, `graph`.

use std::io::{self, Write};
use std::path::PathBuf;

use abide_client::Answer;
use clap::Args;
use serde_json::Value;

use super::Exit;
use super::print::{
    BOLD, DIM, List, Shape, age, next_cursor, plain, print_json, print_one, style_of, table, width, word,
};
use super::remote::{Stopped, To};
use super::start::pair;

#[derive(Debug, Args)]
pub struct Filters {
    /// A state, `open` or `terminal`; repeats
    #[arg(long, value_name = "STATE")]
    state: Vec<String>,
    #[arg(long)]
    workflow: Option<String>,
    /// Repeats; all must hold
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Why it does not move, as approval_required
    #[arg(long, value_name = "REASON")]
    blocking_reason: Option<String>,
    /// How it failed, as worker_crash
    #[arg(long, value_name = "KIND")]
    failure_kind: Option<String>,
    #[arg(long, value_name = "WHO")]
    owner: Option<String>,
    #[arg(long, value_name = "REGION")]
    data_region: Option<String>,
    /// Children of this run
    #[arg(long, value_name = "RUN")]
    parent: Option<String>,
    /// Waiting for this connection
    #[arg(long, value_name = "TOOL/ACCOUNT")]
    connection: Option<String>,
    /// Being at this step
    #[arg(long)]
    step: Option<String>,
    #[arg(long, value_name = "TIME")]
    created_after: Option<String>,
    #[arg(long, value_name = "TIME")]
    updated_before: Option<String>,
}

impl Filters {
    /// As the query of `GET /v1/runs`.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let one = |name: &str, value: &Option<String>| value.clone().map(|value| (name.to_owned(), value));
        let states = self.state.iter().map(|state| ("state".to_owned(), state.clone()));
        let labels = self.labels.iter().map(|(name, value)| (format!("label.{name}"), value.clone()));
        let others = [
            one("workflow", &self.workflow),
            one("blocking_reason", &self.blocking_reason),
            one("failure_kind", &self.failure_kind),
            one("owner_id", &self.owner),
            one("data_region", &self.data_region),
            one("parent", &self.parent),
            one("connection", &self.connection),
            one("step", &self.step),
            one("created_after", &self.created_after),
            one("updated_before", &self.updated_before),
        ];
        states.chain(labels).chain(others.into_iter().flatten()).collect()
    }
}

#[derive(Debug, Args)]
pub struct Runs {
    #[command(flatten)]
    filters: Filters,
    /// Runs that have left for the archive
    #[arg(long)]
    archived: bool,
    /// How many on one page
    #[arg(short = 'n', long, default_value_t = 50)]
    limit: u32,
    /// Go on after the page before
    #[arg(long)]
    cursor: Option<String>,
    /// All pages
    #[arg(long, conflicts_with = "cursor")]
    all: bool,
    #[command(flatten)]
    to: To,
}

const RUNS: List = List {
    field: "runs",
    id: "run_id",
    heads: &["run", "workflow", "state", "since", "summary"],
    row: &|run| {
        let row = [&run["run_id"], &run["workflow_id"], &run["state"]].map(word);
        row.into_iter().chain([age(&run["since"]), word(&run["summary"])]).collect()
    },
    nothing: "No runs.",
};

impl Runs {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(self.list())
    }

    async fn list(self) -> Result<Exit, Stopped> {
        let mut cursor = self.cursor.clone();
        loop {
            let answer = self.page(cursor.as_deref()).await?;
            let next = answer.json::<Value>()?["next_cursor"].as_str().map(str::to_owned);
            RUNS.print(&answer, self.to.output)?;
            match next {
                Some(next) if self.all => cursor = Some(next),
                Some(next) if self.to.output == Shape::Table => {
                    writeln!(anstream::stderr(), "{DIM}more: --cursor {next} (or --all){DIM:#}")?;
                    return Ok(Exit::Done);
                }
                _ => return Ok(Exit::Done),
            }
        }
    }

    async fn page(&self, cursor: Option<&str>) -> Result<Answer, Stopped> {
        let mut call = self.to.get(&["v1", "runs"])?.queries(&self.filters.pairs());
        call = call.query("limit", self.limit.to_string());
        if self.archived {
            call = call.query("archived", "true");
        }
        if let Some(cursor) = cursor {
            call = call.query("cursor", cursor);
        }
        Ok(call.send().await?)
    }
}

#[derive(Debug, Args)]
pub struct Show {
    run_id: String,
    /// As it was then: the number of an event, or an instant
    #[arg(long, value_name = "SEQ|TIME")]
    at: Option<String>,
    #[command(flatten)]
    to: To,
}

impl Show {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let mut call = self.to.get(&["v1", "runs", &self.run_id])?;
            if let Some(at) = &self.at {
                call = call.query("at", at);
            }
            let answer = call.send().await?;
            print_one(&answer, self.to.output, "run_id", |out, run| write_record(out, run))?;
            Ok(Exit::Done)
        })
    }
}

fn write_record(out: &mut dyn Write, run: &Value) -> io::Result<()> {
    let style = style_of(run["state"].as_str().unwrap_or_default());
    writeln!(out, "{BOLD}{}{BOLD:#}  {style}{}{style:#}", word(&run["run_id"]), word(&run["state"]))?;
    writeln!(out, "{}\n", word(&run["summary"]))?;
    let mut line = |name: &str, text: String| match text.is_empty() {
        true => Ok(()),
        false => writeln!(out, "{DIM}{name:<12}{DIM:#}{text}"),
    };
    line("workflow", format!("{} version {}", word(&run["workflow_id"]), run["workflow_version"]))?;
    line("since", times(&run["since"]))?;
    line("step", word(&run["step_id"]))?;
    line("attempt", word(&run["attempt"]))?;
    line("lease", lease(run))?;
    line("next retry", times(&run["next_retry_at"]))?;
    line("owner", word(&run["owner_id"]))?;
    line("labels", labels(&run["labels"]))?;
    line("parent", word(&run["parent"]["run_id"]))?;
    line("created", times(&run["created_at"]))?;
    line("ended", times(&run["ended_at"]))?;
    if let Some(failure) = run["failure"].as_object() {
        let class = failure.get("class").map(word).unwrap_or_default();
        line("failure", format!("{}, {class}: {}", word(&run["failure"]["kind"]), word(&run["failure"]["message"])))?;
    }
    for block in run["blocks"].as_array().into_iter().flatten() {
        line("blocked", format!("{}: {} ({})", word(&block["type"]), word(&block["message"]), age(&block["since"])))?;
    }
    for warning in run["warnings"].as_array().into_iter().flatten() {
        let message = if warning["message"].is_string() { &warning["message"] } else { warning };
        line("warning", word(message))?;
    }
    writeln!(out, "\n{DIM}why and what next: abide explain {}{DIM:#}", word(&run["run_id"]))
}

fn times(at: &Value) -> String {
    match at.as_str() {
        Some(text) => format!("{} ({})", plain(text), age(at)),
        None => String::new(),
    }
}

fn lease(run: &Value) -> String {
    match run["lease_owner"].as_str() {
        Some(owner) => format!(
            "{}, epoch {}, last heartbeat {}, ends {}",
            plain(owner),
            word(&run["lease_epoch"]),
            age(&run["last_heartbeat_at"]),
            age(&run["lease_expires_at"])
        ),
        None => String::new(),
    }
}

fn labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    pairs.map(|(name, value)| format!("{}={}", plain(name), word(value))).collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Args)]
pub struct Events {
    run_id: String,
    /// Only what came after this event
    #[arg(long, default_value_t = 0, value_name = "SEQ")]
    after: u64,
    /// How many at most
    #[arg(short = 'n', long)]
    limit: Option<usize>,
    #[command(flatten)]
    to: To,
}

const EVENTS: List = List {
    field: "events",
    id: "seq",
    heads: &["seq", "at", "actor", "kind", "step", "what"],
    row: &|event| {
        let at = word(&event["at"]);
        let moved = match (event["from_state"].as_str(), event["to_state"].as_str()) {
            (Some(from), Some(to)) if from != to => format!("{from} → {to}"),
            _ => String::new(),
        };
        let payload = match &event["payload"] {
            Value::Object(fields) if fields.is_empty() => String::new(),
            payload => word(payload),
        };
        vec![
            word(&event["seq"]),
            at.get(..23).unwrap_or(&at).replace('T', " "),
            word(&event["actor"]["id"]),
            word(&event["kind"]),
            word(&event["step_id"]),
            plain(format!("{moved} {payload}").trim()),
        ]
    },
    nothing: "No events.",
};

/// The server gives events in pages of this size.
const PAGE: usize = 500;

impl Events {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let (mut after, mut left) = (self.after, self.limit.unwrap_or(usize::MAX));
            loop {
                let call = self.to.get(&["v1", "runs", &self.run_id, "events"])?;
                let call = call.query("after", after.to_string()).query("limit", left.min(PAGE).to_string());
                let answer = call.send().await?;
                left -= EVENTS.print(&answer, self.to.output)?.min(left);
                let page: Value = answer.json()?;
                let last = page["events"].as_array().and_then(|events| events.last()?["seq"].as_u64());
                match last {
                    Some(last) if left > 0 && !page["next_cursor"].is_null() => after = last,
                    _ => return Ok(Exit::Done),
                }
            }
        })
    }
}

#[derive(Debug, Args)]
pub struct Steps {
    run_id: String,
    /// Only this one, with its output
    step_id: Option<String>,
    #[command(flatten)]
    to: To,
}

const STEPS: List = List {
    field: "steps",
    id: "step_id",
    heads: &["step", "state", "attempt", "started", "took", "what"],
    row: &|step| {
        let what = match (&step["failure"], &step["output"]) {
            (Value::Object(failure), _) => format!(
                "{}: {}",
                failure.get("class").map(word).unwrap_or_default(),
                failure.get("message").map(word).unwrap_or_default()
            ),
            (_, Value::Null) => word(&step["title"]),
            (_, output) => word(output),
        };
        vec![
            word(&step["step_id"]),
            word(&step["state"]),
            word(&step["attempt"]),
            age(&step["started_at"]),
            took(step),
            what,
        ]
    },
    nothing: "No steps yet.",
};

fn took(step: &Value) -> String {
    let at = |name: &str| step[name].as_str().and_then(abide_core::time::Timestamp::parse);
    match (at("started_at"), at("ended_at")) {
        (Some(start), Some(end)) if end.since(start).millis() < 1000 => format!("{}ms", end.since(start).millis()),
        (Some(start), Some(end)) => super::clock::rough(end.since(start).millis() / 1000),
        _ => String::new(),
    }
}

impl Steps {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let path = ["v1", "runs", &self.run_id, "steps"];
            let Some(step) = &self.step_id else {
                return self.all(&path).await;
            };
            let answer = self.to.get(&[&path[..], &[step]].concat())?.send().await?;
            print_one(&answer, self.to.output, "step_id", |out, step| {
                let rows: Vec<Vec<String>> = step
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(name, value)| vec![plain(name), word(value)])
                    .collect();
                out.write_all(table(&["field", "value"], &rows, width()).as_bytes())
            })?;
            Ok(Exit::Done)
        })
    }

    async fn all(&self, path: &[&str]) -> Result<Exit, Stopped> {
        let mut cursor: Option<String> = None;
        loop {
            let mut call = self.to.get(path)?;
            if let Some(cursor) = &cursor {
                call = call.query("cursor", cursor);
            }
            let answer = call.send().await?;
            STEPS.print(&answer, self.to.output)?;
            cursor = next_cursor(&answer);
            if cursor.is_none() {
                return Ok(Exit::Done);
            }
        }
    }
}

#[derive(Debug, Args)]
pub struct Bundle {
    run_id: String,
    /// Where to write it; without a name, to standard output
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    to: To,
}

impl Bundle {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let answer = self.to.get(&["v1", "runs", &self.run_id, "bundle"])?.send().await?;
            match &self.file {
                Some(file) => {
                    std::fs::write(file, &answer.body)?;
                    anstream::eprintln!("wrote {} bytes to {}", answer.body.len(), file.display());
                }
                None => print_json(&answer.text())?,
            }
            Ok(Exit::Done)
        })
    }
}

#[derive(Debug, Args)]
pub struct Graph {
    /// A run (run_…) or a workflow
    name: String,
    #[command(flatten)]
    to: To,
}

impl Graph {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let kind = if self.name.starts_with("run_") { "runs" } else { "workflows" };
            let answer = self.to.get(&["v1", kind, &self.name, "graph"])?.send().await?;
            print_one(&answer, self.to.output, "workflow_id", |out, graph| {
                // Line breaks belong to a diagram; everything else is made harmless.
                let diagram = graph["mermaid"].as_str().unwrap_or_default();
                diagram.lines().try_for_each(|line| writeln!(out, "{}", plain(line)))
            })?;
            Ok(Exit::Done)
        })
    }
}
