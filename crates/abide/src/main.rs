//! The program `abide`.

mod cli;
mod demo;
mod http;
mod log;
mod trace;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;

/// Many small pieces of text are made and dropped for every request.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::Arguments::parse().run() {
        Ok(exit) => exit.into(),
        // Whoever read our output has seen enough, as in `abide contract | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => cli::Exit::Done.into(),
        Err(error) => {
            log::say(format_args!("abide: {error}"));
            log::flush();
            cli::Exit::Failed.into()
        }
    }
}
