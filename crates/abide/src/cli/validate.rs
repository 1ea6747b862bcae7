//! `abide validate`: reads workflow documents as a server would, and names every fault at once.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use abide_core::definition::{Body, Definition, DefinitionError, Parsed};
use clap::Args;
use serde_json::{Value, json};

use super::finding::{BAD, GOOD, write_refusal, write_warnings};
use super::source::{Source, Unreadable};
use super::{Exit, Output};

#[derive(Debug, Args)]
pub struct Validate {
    /// Workflow documents, YAML or JSON; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// One document and what came of it.
struct Checked {
    name: String,
    verdict: Result<Parsed, Refusal>,
}

enum Refusal {
    Unreadable(Unreadable),
    Definition(DefinitionError),
}

impl Validate {
    pub fn run(self) -> io::Result<Exit> {
        let checked: Vec<Checked> = self.files.iter().map(|path| check(path)).collect();
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Table => checked.iter().try_for_each(|checked| checked.write(&mut out))?,
            Output::Json => {
                let files: Vec<Value> = checked.iter().map(Checked::to_json).collect();
                writeln!(out, "{:#}", json!({ "files": files }))?;
            }
        }
        Ok(checked.iter().map(Checked::exit).max().unwrap_or(Exit::Done))
    }
}

fn check(path: &Path) -> Checked {
    let name = path.display().to_string();
    let verdict = match Source::read(path) {
        Ok(source) => Definition::parse(&source.text).map_err(Refusal::Definition),
        Err(unreadable) => Err(Refusal::Unreadable(unreadable)),
    };
    Checked { name, verdict }
}

impl Checked {
    fn exit(&self) -> Exit {
        match &self.verdict {
            Ok(_) => Exit::Done,
            Err(Refusal::Unreadable(Unreadable::Io { .. })) => Exit::Usage,
            Err(_) => Exit::Refused,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match &self.verdict {
            Ok(parsed) => {
                write_warnings(out, &self.name, &parsed.warnings)?;
                writeln!(out, "{}: {GOOD}ok{GOOD:#}: {}", self.name, outline(parsed))
            }
            Err(Refusal::Unreadable(unreadable)) => writeln!(out, "{BAD}error{BAD:#}: {unreadable}"),
            Err(Refusal::Definition(refusal)) => write_refusal(out, &self.name, refusal),
        }
    }

    fn to_json(&self) -> Value {
        match &self.verdict {
            Ok(Parsed { definition, warnings }) => json!({
                "file": self.name,
                "ok": true,
                "workflow_id": definition.workflow.as_str(),
                "definition_hash": definition.hash.to_string(),
                "errors": [],
                "warnings": warnings,
            }),
            Err(Refusal::Unreadable(unreadable)) => json!({
                "file": self.name,
                "ok": false,
                "code": "unreadable",
                "errors": [{ "path": "", "message": unreadable.to_string() }],
                "warnings": [],
            }),
            Err(Refusal::Definition(refusal)) => {
                let errors = match refusal.faults() {
                    [] => json!([{ "path": "", "message": refusal.to_string() }]),
                    faults => json!(faults),
                };
                json!({ "file": self.name, "ok": false, "code": refusal.code(), "errors": errors, "warnings": [] })
            }
        }
    }
}

/// `order-saga, 4 steps, 1 warning`
fn outline(parsed: &Parsed) -> String {
    let counted = |count: usize, word: &str| format!(", {count} {word}{}", if count == 1 { "" } else { "s" });
    let body = match &parsed.definition.body {
        Body::Steps(steps) => counted(steps.len(), "step"),
        Body::Coded { revision } => format!(", coded, revision {revision}"),
    };
    let warnings = match parsed.warnings.len() {
        0 => String::new(),
        count => counted(count, "warning"),
    };
    format!("{}{body}{warnings}", parsed.definition.workflow)
}
