//! The command line: one file per command. Commands print and return how they ended; only `main` ends the process.

mod around;
mod clock;
mod completions;
mod contract;
mod decide;
mod dev;
mod explain;
mod finding;
mod key;
mod offline;
mod print;
#[cfg(test)]
mod reference;
mod remote;
mod runs;
mod serve;
mod server;
mod source;
mod start;
mod test;
mod top;
mod validate;
mod watch;
mod worker;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs workflows and says, at any time, what each is doing, why, and what happens next.
#[derive(Debug, Parser)]
#[command(name = "abide", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Try everything: a server with examples, workers and one run for every state
    Dev(Box<dev::Dev>),
    /// Show the states a run can be in and what may move it
    Contract(contract::Contract),
    /// Check workflow documents and name every fault at once
    Validate(validate::Validate),
    /// Serve runs over HTTP
    Serve(serve::Serve),
    /// Check everything that the store can show
    Doctor(offline::Doctor),
    /// Copy a store, also one that is in use, into a directory that can be opened later
    Backup(offline::Backup),
    /// Move runs that ended long enough ago to the archive
    Archive(offline::Archive),
    /// Print the OpenAPI document
    Openapi(serve::Openapi),
    /// Play workflows with stubs in virtual time and compare with what is expected
    Test(test::Test),
    /// Upload workflow documents
    Apply(start::Apply),
    /// Start a run
    Start(start::Start),
    /// List runs, newest first
    Runs(runs::Runs),
    /// Show the record of a run
    Show(runs::Show),
    /// Say what a run is doing, why, what comes next and what you can do
    Explain(explain::Explain),
    /// Follow a run until it ends; the exit code says how
    Watch(watch::Watch),
    /// Show the log of a run
    Events(runs::Events),
    /// Show the steps of a run
    Steps(runs::Steps),
    /// Say yes to an approval
    Approve(decide::Decide),
    /// Say no to an approval
    Reject(decide::Decide),
    /// Let a run, or everything that waits for a connection, go on
    Reconnect(decide::Reconnect),
    /// Send a signal to a run
    Signal(decide::Signal),
    /// Decide about a step that cannot go on by itself
    Resolve(decide::Resolve),
    /// Cancel a run
    Cancel(decide::Cancel),
    /// Hold a run: nothing new is issued
    Pause(decide::Pause),
    /// Let a held run go on
    Resume(decide::Resume),
    /// Try again now, or make a new run from the failed step
    Retry(decide::Retry),
    /// Make a new run from any step of one that has ended
    Rerun(decide::Rerun),
    /// Keep a run for good
    Pin(decide::Pin),
    /// Show what waits for a decision
    Inbox(around::Around),
    /// Show queues and who listens
    Queues(around::Around),
    /// Show workers
    Workers(around::Around),
    /// Show connections and who waits for them
    Connections(around::Around),
    /// Show everything live
    Top(top::Top),
    /// Make, list and revoke keys
    Key(key::Key),
    /// Write everything about a run into one file, payloads redacted
    Bundle(runs::Bundle),
    /// Draw a workflow or a run as a Mermaid diagram
    Graph(runs::Graph),
    /// Make any program a worker
    Worker(worker::Worker),
    /// Print what a shell needs to complete commands
    Completions(completions::Completions),
}

impl Arguments {
    pub fn run(self) -> io::Result<Exit> {
        match self.command {
            Command::Dev(dev) => dev.run(),
            Command::Contract(contract) => contract.run(),
            Command::Validate(validate) => validate.run(),
            Command::Serve(serve) => serve.run(),
            Command::Doctor(doctor) => doctor.run(),
            Command::Backup(backup) => backup.run(),
            Command::Archive(archive) => archive.run(),
            Command::Openapi(openapi) => openapi.run(),
            Command::Test(test) => test.run(),
            Command::Apply(apply) => apply.run(),
            Command::Start(start) => start.run(),
            Command::Runs(runs) => runs.run(),
            Command::Show(show) => show.run(),
            Command::Explain(explain) => explain.run(),
            Command::Watch(watch) => watch.run(),
            Command::Events(events) => events.run(),
            Command::Steps(steps) => steps.run(),
            Command::Approve(decide) => decide.run(true),
            Command::Reject(decide) => decide.run(false),
            Command::Reconnect(reconnect) => reconnect.run(),
            Command::Signal(signal) => signal.run(),
            Command::Resolve(resolve) => resolve.run(),
            Command::Cancel(cancel) => cancel.run(),
            Command::Pause(pause) => pause.run(),
            Command::Resume(resume) => resume.run(),
            Command::Retry(retry) => retry.run(),
            Command::Rerun(rerun) => rerun.run(),
            Command::Pin(pin) => pin.run(),
            Command::Inbox(around) => around.inbox(),
            Command::Queues(around) => around.queues(),
            Command::Workers(around) => around.workers(),
            Command::Connections(around) => around.connections(),
            Command::Top(top) => top.run(),
            Command::Key(key) => key.run(),
            Command::Bundle(bundle) => bundle.run(),
            Command::Graph(graph) => graph.run(),
            Command::Worker(worker) => worker.run(),
            Command::Completions(completions) => completions.run(),
        }
    }
}

/// How a command ended. The numbers are promises to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Done,
    Failed,
    Usage,
    Canceled,
    /// It has not ended yet.
    Waiting,
    Unreachable,
    Refused,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Canceled => 3,
            Exit::Waiting => 4,
            Exit::Unreachable => 5,
            Exit::Refused => 6,
        })
    }
}

/// What a command prints, where it has more than one way to say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}
