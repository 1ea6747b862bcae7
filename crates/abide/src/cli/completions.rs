//! `abide completions`: what a shell needs to complete our commands.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Exit;

#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> io::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::Arguments::command(), "abide", &mut script);
        io::stdout().write_all(&script)?;
        Ok(Exit::Done)
    }
}
