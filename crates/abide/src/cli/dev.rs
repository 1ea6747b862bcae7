//! `abide dev`: everything in one process: the server, the examples, workers that offer their handlers, and one run for
//! every state.

use std::io::{self, Write};

use abide_core::contract::RunState;
use anstyle::{AnsiColor, Style};

use super::Exit;
use super::finding::{BAD, GOOD};
use super::server::{Network, Store, block_on};
use crate::demo;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const WAITS: Style = AnsiColor::Yellow.on_default();

#[derive(Debug, clap::Args)]
pub struct Dev {
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    network: Network,
}

impl Dev {
    pub fn run(mut self) -> io::Result<Exit> {
        self.network.log("warn")?;
        // What is tried out on this machine is called on this machine.
        self.network.allow_target.extend(["127.0.0.1", "::1", "localhost"].map(Into::into));
        block_on(async {
            let engine = self.store.open()?;
            let prepared = self.network.prepare(engine.clone()).await?;
            let started = demo::begin(&engine).await.map_err(io::Error::other)?;
            demo::work(&engine);
            let url = format!("http://{}", prepared.server.address);
            self.greet(&url, started)?;
            prepared.run().await?;
            Ok(Exit::Done)
        })?
    }

    fn greet(&self, url: &str, started: bool) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        writeln!(out, "{BOLD}listening on {url}{BOLD:#}\n")?;
        if started {
            writeln!(out, "These runs were started. Within seconds each is where it says:\n")?;
            for one in demo::RUNS {
                let (style, state) = (style_of(one.state), one.state.as_str());
                writeln!(out, "  {:<19}  {style}{state:<19}{style:#}  {DIM}{}{DIM:#}", one.run_id, one.about)?;
            }
        } else {
            writeln!(out, "The runs in {} go on; no new ones were started.", self.store.data.display())?;
        }
        writeln!(out, "\nOpen {url} in a browser to see them.")?;
        writeln!(out, "\n{BOLD}Try{BOLD:#}")?;
        for line in setup(url) {
            writeln!(out, "  {line}")?;
        }
        for line in TRY {
            writeln!(out, "  {line}")?;
        }
        writeln!(out, "  curl {url}/v1/runs/run_demo-crawl/explain")?;
        writeln!(out, "\nctrl-c stops it. Everything is kept in {}.", self.store.data.display())?;
        out.flush()
    }
}

const TRY: &[&str] = &[
    "abide runs",
    "abide explain run_demo-onboarding",
    "abide approve run_demo-purchase --by ana@example.com",
    "abide reconnect drive/default",
    "abide signal run_demo-contract document.signed --payload '{\"by\": \"Dora\"}'",
    "abide resolve run_demo-customer import correct --input '{\"customer\": {\"postcode\": \"20095\"}}'",
    "abide retry run_demo-crawl --watch",
    "sh examples/worker.sh",
];

/// What the shell must know first, so that the commands below work as they are.
fn setup(url: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(program) = std::env::args().next().filter(|program| program.contains('/')) {
        lines.push(format!("alias abide='{program}'"));
    }
    if url != "http://127.0.0.1:7070" {
        lines.push(format!("export ABIDE_SERVER={url}"));
    }
    lines
}

fn style_of(state: RunState) -> Style {
    match state {
        RunState::Running | RunState::Succeeded | RunState::CompletedWithWarnings => GOOD,
        RunState::Stalled | RunState::Failed | RunState::Compensating => BAD,
        RunState::Queued
        | RunState::WaitingOnTool
        | RunState::WaitingOnAuth
        | RunState::WaitingOnApproval
        | RunState::WaitingOnChild
        | RunState::WaitingOnTimer
        | RunState::WaitingOnOperator
        | RunState::RetryScheduled
        | RunState::Paused
        | RunState::CancelRequested
        | RunState::Canceled => WAITS,
    }
}
