//! The command line: one file per command. Commands print and return how they ended; only `main` ends the process.

mod contract;
mod dev;
mod finding;
mod offline;
mod serve;
mod server;
mod source;
mod test;
mod validate;

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
    /// Copy a store into a directory that can be opened later
    Backup(offline::Backup),
    /// Move runs that ended long enough ago to the archive
    Archive(offline::Archive),
    /// Print the OpenAPI document
    Openapi(serve::Openapi),
    /// Play workflows with stubs in virtual time and compare with what is expected
    Test(test::Test),
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
        }
    }
}

/// How a command ended. The numbers are promises to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Done,
    Failed,
    Usage,
    Refused,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
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
