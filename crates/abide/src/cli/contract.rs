//! `abide contract`: the contract from the tables of this very program.

use std::io::{self, Write};

use abide_core::contract::{RUN, RunState, document};
use clap::{Args, ValueEnum};

use super::Exit;

#[derive(Debug, Args)]
pub struct Contract {
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Shape {
    /// The states of a run and what they mean
    #[default]
    Table,
    /// Everything, as `GET /v1/contract` answers it
    Json,
    /// A diagram for Mermaid
    Mermaid,
    /// JSON Schema of a run's record
    Schema,
}

/// Lines are no longer than this.
const WIDTH: usize = 100;

impl Contract {
    pub fn run(self) -> io::Result<Exit> {
        let mut out = anstream::stdout().lock();
        match self.output {
            Shape::Table => out.write_all(table().as_bytes())?,
            Shape::Json => writeln!(out, "{:#}", document::contract_json())?,
            Shape::Mermaid => out.write_all(document::mermaid().as_bytes())?,
            Shape::Schema => writeln!(out, "{:#}", document::json_schema())?,
        }
        Ok(Exit::Done)
    }
}

fn table() -> String {
    let widest = RunState::ALL.iter().map(|state| state.as_str().len()).max().unwrap_or_default();
    let mut table = String::new();
    for state in RunState::ALL {
        let mut name = state.as_str();
        for line in wrapped(&meaning(*state), WIDTH - widest - 2) {
            table.push_str(&format!("{name:widest$}  {line}\n"));
            name = "";
        }
    }
    table.push_str(&format!(
        "\n{} states, {} transitions between them; all of it: abide contract -o json\n",
        RunState::ALL.len(),
        RUN.len()
    ));
    table
}

fn meaning(state: RunState) -> String {
    let end = if state.is_terminal() { " Terminal." } else { "" };
    format!("{}{end}", state.means())
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
