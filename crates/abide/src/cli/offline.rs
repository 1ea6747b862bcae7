//! Commands that work on the data directory itself: doctor and archive while no server has it open, backup at any time. A
//! doctor that does not rebuild changes nothing in it.

use std::io;
use std::path::PathBuf;

use abide_engine::doctor;
use abide_engine::store::seal::FILE as KEY;
use abide_engine::store::sqlite::Files;
use abide_engine::store::sqlite::backup::backup;
use abide_engine::store::sqlite::rebuild::rebuild;
use serde_json::json;

use super::server::{Store, block_on};
use super::{Exit, Output};

#[derive(Debug, clap::Args)]
pub struct Doctor {
    #[command(flatten)]
    store: Store,
    /// Make the rows again from the log and the payloads, then check
    #[arg(long)]
    rebuild: bool,
    /// How the answer is written
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Doctor {
    /// 0 only if everything holds.
    pub fn run(self) -> io::Result<Exit> {
        if !self.store.data.join("abide.db").exists() {
            anstream::eprintln!("there is no store in {}", self.store.data.display());
            return Ok(Exit::Usage);
        }
        if self.rebuild {
            let done = Files::lock(&self.store.data).and_then(|files| rebuild(&files)).map_err(io::Error::other)?;
            anstream::eprintln!("made the rows of {} runs again", done.runs);
            for skipped in &done.skipped {
                anstream::eprintln!("not made again: {skipped}");
            }
        }
        let report = doctor::examine_directory(&self.store.data).map_err(io::Error::other)?;
        match self.output {
            Output::Json => anstream::println!("{}", as_json(&report)),
            Output::Table => print(&report),
        }
        Ok(if report.is_healthy() { Exit::Done } else { Exit::Failed })
    }
}

fn as_json(report: &doctor::Report) -> serde_json::Value {
    let problem = |one: &doctor::Problem| json!({ "run_id": one.run.as_ref().map(|key| &key.run_id), "rule": one.rule, "what": one.what });
    json!({
        "healthy": report.is_healthy(), "runs": report.runs, "archived": report.archived, "events": report.events,
        "payloads": report.payloads, "problems": report.problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

fn print(report: &doctor::Report) {
    let doctor::Report { runs, archived, events, payloads, .. } = report;
    anstream::println!("checked {runs} runs, {archived} archived runs, {events} events, {payloads} payloads");
    for problem in &report.problems {
        let run = problem.run.as_ref().map(|key| format!("{}: ", key.run_id)).unwrap_or_default();
        anstream::println!("✗ {} {run}{}", problem.rule, problem.what);
    }
    match report.is_healthy() {
        true => anstream::println!("everything holds"),
        false => anstream::println!("docs/reference/invariants.md explains the numbers"),
    }
}

#[derive(Debug, clap::Args)]
pub struct Backup {
    #[command(flatten)]
    store: Store,
    /// Directory that is made
    #[arg(value_name = "DIR")]
    to: PathBuf,
}

impl Backup {
    /// Also while a server has the directory open: a copy is one snapshot of what is committed.
    pub fn run(self) -> io::Result<Exit> {
        if !self.store.data.join("abide.db").exists() {
            anstream::eprintln!("there is no store in {}", self.store.data.display());
            return Ok(Exit::Usage);
        }
        let files = Files::beside(&self.store.data).map_err(io::Error::other)?;
        backup(&files, &self.to).map_err(io::Error::other)?;
        anstream::println!("copied {} to {}", self.store.data.display(), self.to.display());
        anstream::println!(
            "the key of sealed payloads is not in it: keep {} elsewhere",
            self.store.data.join(KEY).display()
        );
        Ok(Exit::Done)
    }
}

#[derive(Debug, clap::Args)]
pub struct Archive {
    #[command(flatten)]
    store: Store,
}

impl Archive {
    pub fn run(self) -> io::Result<Exit> {
        block_on(async {
            let engine = self.store.open()?;
            let moved = engine.archive().await.map_err(io::Error::other)?;
            engine.shutdown().await;
            anstream::println!("moved {moved} runs to the archive");
            Ok(Exit::Done)
        })?
    }
}
