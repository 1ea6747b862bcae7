//! `abide test`: plays workflows with stubs in virtual time, without a server, and compares with what is expected.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use abide_core::contract::{Failure, RunState};
use abide_core::definition::DefinitionError;
use abide_core::play::{BEGINNING, Expect, Played, Said, SaidWhat, Script, Stub, Unplayable, play, stubs};
use abide_core::time::Span;
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use super::finding::{BAD, GOOD, write_refusal};
use super::source::{Source, Unreadable};
use super::{Exit, Output};

#[derive(Debug, Args)]
pub struct Test {
    /// Test files, YAML or JSON; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// A test file: a workflow and what should become of it. A single case may stand in it without `cases`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TestFile {
    workflow: Document,
    #[serde(default)]
    cases: Option<Vec<Case>>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    input: Option<Value>,
    #[serde(default, deserialize_with = "stubs")]
    handlers: BTreeMap<String, Vec<Stub>>,
    #[serde(default)]
    answers: Vec<Said>,
    #[serde(default)]
    workflows: Vec<Document>,
    #[serde(default)]
    expect: Option<Expect>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    input: Option<Value>,
    #[serde(default, deserialize_with = "stubs")]
    handlers: BTreeMap<String, Vec<Stub>>,
    #[serde(default)]
    answers: Vec<Said>,
    /// Child workflows.
    #[serde(default)]
    workflows: Vec<Document>,
    expect: Expect,
}

/// Text with more than one line is a document, other text the path of one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Inline(serde_json::Map<String, Value>),
}

/// One case and what came of it.
struct Outcome {
    file: String,
    name: String,
    verdict: Verdict,
}

enum Verdict {
    Played {
        unmet: Vec<String>,
        states: Vec<RunState>,
        failure: Option<Failure>,
        took: Span,
    },
    /// A document is refused; the name says which.
    Refused {
        document: String,
        refusal: DefinitionError,
    },
    NotPlayed(String),
    Unreadable(Unreadable),
}

impl Test {
    pub fn run(self) -> io::Result<Exit> {
        let outcomes: Vec<Outcome> = self.files.iter().flat_map(|file| outcomes_of(file)).collect();
        let mut out = anstream::stdout().lock();
        match self.output {
            Output::Table => {
                outcomes.iter().try_for_each(|outcome| outcome.write(&mut out))?;
                writeln!(out, "\n{}", tally(&outcomes))?;
            }
            Output::Json => {
                let cases: Vec<Value> = outcomes.iter().map(Outcome::to_json).collect();
                writeln!(out, "{:#}", json!({ "cases": cases }))?;
            }
        }
        Ok(outcomes.iter().map(Outcome::exit).max().unwrap_or(Exit::Failed))
    }
}

/// Plays every case of a file. A file that cannot be read is one failed case.
fn outcomes_of(path: &Path) -> Vec<Outcome> {
    let file = path.display().to_string();
    let alone = |verdict| vec![Outcome { file: file.clone(), name: String::new(), verdict }];
    let source = match Source::read(path) {
        Ok(source) => source,
        Err(unreadable) => return alone(Verdict::Unreadable(unreadable)),
    };
    let (workflow, cases) = match serde_saphyr::from_str::<TestFile>(&source.text)
        .map_err(|fault| fault.without_snippet().to_string())
        .and_then(TestFile::into_cases)
    {
        Ok(read) => read,
        Err(why) => return alone(Verdict::NotPlayed(why)),
    };
    let beside = path.parent().unwrap_or(Path::new(""));
    let played = |(number, case): (usize, Case)| {
        let name = case.name.clone().unwrap_or_else(|| format!("case {}", number + 1));
        Outcome { file: source.name.clone(), name, verdict: case.play(&workflow, beside) }
    };
    cases.into_iter().enumerate().map(played).collect()
}

impl TestFile {
    fn into_cases(self) -> Result<(Document, Vec<Case>), String> {
        let TestFile { workflow, cases, name, input, handlers, answers, workflows, expect } = self;
        let said_here = name.is_some()
            || input.is_some()
            || expect.is_some()
            || !(handlers.is_empty() && answers.is_empty() && workflows.is_empty());
        match (cases, expect) {
            (Some(_), _) if said_here => Err("`cases` stands alone: what belongs to a case is written in it".into()),
            (Some(cases), _) if cases.is_empty() => Err("`cases` is empty".into()),
            (Some(cases), _) => Ok((workflow, cases)),
            (None, Some(expect)) => Ok((workflow, vec![Case { name, input, handlers, answers, workflows, expect }])),
            (None, None) => Err("`expect` is missing: say what should become of the run".into()),
        }
    }
}

impl Case {
    fn play(self, workflow: &Document, beside: &Path) -> Verdict {
        if says_nothing(&self.expect) {
            return Verdict::NotPlayed("`expect` is empty: say what should become of the run".into());
        }
        let main = match workflow.read(beside) {
            Ok(source) => source,
            Err(unreadable) => return Verdict::Unreadable(unreadable),
        };
        let mut children = Vec::new();
        for child in &self.workflows {
            match child.read(beside) {
                Ok(source) => children.push(source),
                Err(unreadable) => return Verdict::Unreadable(unreadable),
            }
        }
        for source in [&main].into_iter().chain(&children) {
            if let Err(refusal) = abide_core::definition::Definition::parse(&source.text) {
                return Verdict::Refused { document: source.name.clone(), refusal };
            }
        }
        let workflows = children.into_iter().map(|source| source.text).collect();
        let Case { input, handlers, answers, expect, .. } = self;
        match play(&main.text, Script { input, handlers, answers, workflows, expect: Expect::default() }) {
            Ok(played) => Verdict::Played {
                unmet: unmet(&played, &expect),
                states: played.states(),
                failure: played.run().working.head.failure.clone(),
                took: played.at.since(BEGINNING),
            },
            Err(Unplayable::Definition(refusal)) => Verdict::Refused { document: main.name, refusal },
            Err(why @ (Unplayable::Start(_) | Unplayable::Endless)) => Verdict::NotPlayed(why.to_string()),
        }
    }
}

fn says_nothing(expect: &Expect) -> bool {
    expect.state.is_none() && expect.steps.is_empty() && expect.output.is_none() && expect.states.is_none()
}

/// What differs. An answer that nobody took is a difference too: the play was not the one that the script describes.
fn unmet(played: &Played, expect: &Expect) -> Vec<String> {
    let mut unmet = played.unmet(expect);
    for (said, refused) in &played.not_taken {
        let why = refused.as_ref().map_or_else(|| "the answer before it was not taken".to_owned(), ToString::to_string);
        unmet.push(format!("nobody took the answer `{}`: {why}", word(&said.what)));
    }
    unmet
}

fn word(said: &SaidWhat) -> &'static str {
    match said {
        SaidWhat::Approve(_) => "approve",
        SaidWhat::Reject(_) => "reject",
        SaidWhat::Signal { .. } => "signal",
        SaidWhat::Callback { .. } => "callback",
        SaidWhat::Reconnect { .. } => "reconnect",
        SaidWhat::Resolve { .. } => "resolve",
        SaidWhat::Cancel { .. } => "cancel",
        SaidWhat::Pause {} => "pause",
        SaidWhat::Resume { .. } => "resume",
        SaidWhat::Retry {} => "retry",
    }
}

impl Document {
    fn read(&self, beside: &Path) -> Result<Source, Unreadable> {
        match self {
            Document::Text(text) if text.contains('\n') => {
                Ok(Source { name: "the inline workflow".into(), text: text.clone() })
            }
            Document::Text(path) => Source::read(&beside.join(path)),
            Document::Inline(document) => {
                let text = Value::Object(document.clone()).to_string();
                Ok(Source { name: "the inline workflow".into(), text })
            }
        }
    }
}

impl Outcome {
    fn is_ok(&self) -> bool {
        matches!(&self.verdict, Verdict::Played { unmet, .. } if unmet.is_empty())
    }

    fn exit(&self) -> Exit {
        match &self.verdict {
            Verdict::Unreadable(Unreadable::Io { .. }) => Exit::Usage,
            _ if self.is_ok() => Exit::Done,
            _ => Exit::Failed,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let title = match self.name.is_empty() {
            true => self.file.clone(),
            false => format!("{}: {}", self.file, self.name),
        };
        match &self.verdict {
            Verdict::Played { unmet, took, .. } if unmet.is_empty() => {
                writeln!(out, "{GOOD}ok{GOOD:#}      {title} ({took})")
            }
            Verdict::Played { unmet, states, failure, .. } => {
                writeln!(out, "{BAD}FAILED{BAD:#}  {title}")?;
                unmet.iter().try_for_each(|difference| writeln!(out, "        {difference}"))?;
                if let Some(Failure { kind, class, message, .. }) = failure {
                    writeln!(out, "        failure: {kind}, {class}: {message}")?;
                }
                writeln!(out, "        states: {}", arrows(states))
            }
            Verdict::Refused { document, refusal } => {
                writeln!(out, "{BAD}FAILED{BAD:#}  {title}")?;
                write_refusal(out, document, refusal)
            }
            Verdict::NotPlayed(why) => writeln!(out, "{BAD}FAILED{BAD:#}  {title}\n{}", indented(why)),
            Verdict::Unreadable(unreadable) => {
                writeln!(out, "{BAD}FAILED{BAD:#}  {title}\n{}", indented(&unreadable.to_string()))
            }
        }
    }

    fn to_json(&self) -> Value {
        let mut case = json!({ "file": self.file, "name": self.name, "ok": self.is_ok() });
        match &self.verdict {
            Verdict::Played { unmet, states, failure, took } => {
                case["unmet"] = json!(unmet);
                case["states"] = json!(states);
                case["failure"] = json!(failure);
                case["took_ms"] = json!(took.millis());
            }
            Verdict::Refused { document, refusal } => {
                case["unmet"] = json!([format!("{document}: {refusal}")]);
                case["errors"] = json!(refusal.faults());
            }
            Verdict::NotPlayed(why) => case["unmet"] = json!([why]),
            Verdict::Unreadable(unreadable) => case["unmet"] = json!([unreadable.to_string()]),
        }
        case
    }
}

fn tally(outcomes: &[Outcome]) -> String {
    let failed = outcomes.iter().filter(|outcome| !outcome.is_ok()).count();
    match failed {
        0 => format!("{} passed", outcomes.len()),
        _ => format!("{} passed, {failed} failed", outcomes.len() - failed),
    }
}

fn arrows(states: &[RunState]) -> String {
    states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(" → ")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("        {line}")).collect::<Vec<_>>().join("\n")
}
