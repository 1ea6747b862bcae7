//! `abide apply` and `abide start`: documents become workflows, workflows become runs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use abide_api::runs::StartRun;
use abide_client::Method;
use abide_core::definition::Definition;
use abide_core::time::Timestamp;
use clap::Args;
use serde_json::Value;

use super::Exit;
use super::finding::{GOOD, ODD, write_refusal};
use super::print::{Shape, plain, print_json, print_one, word};
use super::remote::{Stopped, To, json_argument, print_run};
use super::source::Source;
use super::watch::follow;

#[derive(Debug, Args)]
pub struct Apply {
    /// Workflow documents, YAML or JSON; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    to: To,
}

impl Apply {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let mut worst = Exit::Done;
            for path in &self.files {
                worst = worst.max(self.apply(path).await?);
            }
            Ok(worst)
        })
    }

    async fn apply(&self, path: &std::path::Path) -> Result<Exit, Stopped> {
        let source = Source::read(path).map_err(|unreadable| Stopped::Usage(unreadable.to_string()))?;
        // Its id stands in the document; a document with faults is refused here as a server would.
        let parsed = match Definition::parse(&source.text) {
            Ok(parsed) => parsed,
            Err(refusal) => {
                write_refusal(&mut anstream::stderr().lock(), &source.name, &refusal)?;
                return Ok(Exit::Refused);
            }
        };
        let id = parsed.definition.workflow.as_str();
        let call = self.to.client()?.call(Method::PUT, &["v1", "workflows", id]);
        let answer = call.body("application/yaml", source.text.into_bytes()).send().await?;
        let is_new = answer.status == 201;
        print_one(&answer, self.to.output, "workflow_id", |out, applied| {
            let became = if is_new { "is now" } else { "is unchanged at" };
            writeln!(out, "{GOOD}{}{GOOD:#} {became} version {}", word(&applied["workflow_id"]), applied["version"])?;
            for warning in applied["warnings"].as_array().into_iter().flatten() {
                let line = warning["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
                let name = plain(&source.name);
                writeln!(out, "{name}{line}: {ODD}warning{ODD:#}: {}", word(&warning["message"]))?;
            }
            Ok(())
        })?;
        Ok(Exit::Done)
    }
}

#[derive(Debug, Args)]
pub struct Start {
    /// Which workflow
    workflow: String,
    /// Its input: JSON, @FILE, or - for standard input
    #[arg(short, long, value_name = "JSON|@FILE|-")]
    input: Option<String>,
    /// At most one open run of this workflow has this value
    #[arg(long, value_name = "VALUE")]
    unique: Option<String>,
    /// For finding it again; repeats
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Another version than the newest
    #[arg(long)]
    version: Option<u32>,
    /// The id of the run, so that starting it twice starts it once
    #[arg(long)]
    run_id: Option<String>,
    /// Where its tasks go, whatever the document says
    #[arg(long)]
    queue: Option<String>,
    /// Higher is sooner
    #[arg(long, allow_hyphen_values = true)]
    priority: Option<i32>,
    /// Not before this instant, as 2026-11-16T02:38:00Z
    #[arg(long, value_name = "TIME", value_parser = instant)]
    start_at: Option<Timestamp>,
    /// Paused from the beginning
    #[arg(long)]
    paused: bool,
    /// To whom it belongs
    #[arg(long, value_name = "WHO")]
    owner: Option<String>,
    /// Follow it until it ends; the exit code says how
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    to: To,
}

pub fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub fn instant(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).ok_or_else(|| "write it as 2026-11-16T02:38:00Z".to_owned())
}

impl Start {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(self.start())
    }

    async fn start(self) -> Result<Exit, Stopped> {
        let start = StartRun {
            workflow: self.workflow,
            version: self.version,
            input: self.input.as_deref().map(|input| json_argument("--input", input)).transpose()?,
            run_id: self.run_id,
            unique: self.unique,
            labels: self.labels.into_iter().collect::<BTreeMap<_, _>>(),
            queue: self.queue,
            priority: self.priority,
            start_at: self.start_at,
            paused: self.paused,
            owner_id: self.owner,
            data_region: None,
        };
        let answer = self.to.post(&["v1", "runs"])?.json(&start).send().await?;
        let run: Value = answer.json()?;
        if !self.watch {
            let done = if answer.status == 200 { "was there already" } else { "started" };
            print_run(&answer, self.to.output, done)?;
            return Ok(Exit::Done);
        }
        let run_id = run["run_id"].as_str().unwrap_or_default();
        match self.to.output {
            Shape::Table | Shape::Ids => writeln!(anstream::stdout(), "{}", plain(run_id))?,
            Shape::Json | Shape::Jsonl => print_json(&answer.text())?,
        }
        follow(&self.to, run_id).await
    }
}
