//! What people decide about a run: `approve`, `reject`, `reconnect`, `signal`, `resolve`, `cancel`, `pause`, `resume`,
//! `retry`, `rerun`, `pin`.

use std::io::{self, Write};

use abide_api::runs::{
    CancelRun, Decide as Decision, PauseRun, PinRun, ReconnectRun, RerunRun, ResolveAction, ResolveStep, ResumeRun,
    RetryRun, SendSignal, Version, VersionWord,
};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use super::Exit;
use super::print::{BOLD, plain, print_one, word};
use super::remote::{Stopped, To, json_argument, print_run};
use super::watch::follow;

/// Sends a decision and shows what the run is now.
async fn tell(to: &To, run_id: &str, verb: &[&str], body: &impl Serialize, done: &str) -> Result<Exit, Stopped> {
    let path = [&["v1", "runs", run_id], verb].concat();
    let answer = to.post(&path)?.json(body).send().await?;
    print_run(&answer, to.output, done)?;
    Ok(Exit::Done)
}

#[derive(Debug, Args)]
pub struct Decide {
    run_id: String,
    /// Which approval, when more than one is open
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Who decides; with a key it is the key's own principal
    #[arg(long, value_name = "WHO")]
    by: Option<String>,
    #[arg(long)]
    comment: Option<String>,
    /// What the approval's form asks for: JSON, @FILE or -
    #[arg(long, value_name = "JSON")]
    form: Option<String>,
    /// What was looked at; refused if it has changed since
    #[arg(long, value_name = "DIGEST")]
    subject_digest: Option<String>,
    #[command(flatten)]
    to: To,
}

impl Decide {
    pub fn run(self, approve: bool) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let decision = Decision {
                step_id: self.step,
                decision_by: self.by,
                comment: self.comment,
                form: self.form.as_deref().map(|form| json_argument("--form", form)).transpose()?,
                subject_digest: self.subject_digest,
            };
            let (verb, done) = if approve { ("approve", "approved") } else { ("reject", "rejected") };
            tell(&self.to, &self.run_id, &[verb], &decision, done).await
        })
    }
}

#[derive(Debug, Args)]
pub struct Reconnect {
    /// A run (run_…), or a connection as TOOL/ACCOUNT: then everything that waits for it goes on
    what: String,
    #[arg(long)]
    tool: Option<String>,
    #[arg(long)]
    account: Option<String>,
    /// The connection is broken instead: steps that need it wait without calling
    #[arg(long)]
    broken: bool,
    #[command(flatten)]
    to: To,
}

impl Reconnect {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let Some((tool, account)) = self.what.split_once('/') else {
                let body = ReconnectRun { tool: self.tool, account: self.account };
                return tell(&self.to, &self.what, &["reconnect"], &body, "reconnected").await;
            };
            let verb = if self.broken { "broken" } else { "reconnected" };
            let answer = self.to.post(&["v1", "connections", tool, account, verb])?.send().await?;
            print_one(&answer, self.to.output, "released", |out, released| match self.broken {
                true => writeln!(out, "{} is marked as broken", plain(&self.what)),
                false => writeln!(out, "{} works again; runs released: {}", plain(&self.what), released["released"]),
            })?;
            Ok(Exit::Done)
        })
    }
}

#[derive(Debug, Args)]
pub struct Signal {
    run_id: String,
    name: String,
    /// JSON, @FILE or -
    #[arg(short, long, value_name = "JSON")]
    payload: Option<String>,
    #[command(flatten)]
    to: To,
}

impl Signal {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let payload = self.payload.as_deref().map(|payload| json_argument("--payload", payload)).transpose()?;
            tell(&self.to, &self.run_id, &["signals", &self.name], &SendSignal { payload }, "was signaled").await
        })
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Resolution {
    /// Try it again
    Retry,
    /// It is done, with --result
    Complete,
    /// Try it with another --input
    Correct,
    /// Go on without it
    Skip,
    /// Fail it and undo the run
    Compensate,
    /// Fail it
    Fail,
}

impl Resolution {
    fn action(self) -> ResolveAction {
        match self {
            Resolution::Retry => ResolveAction::Retry,
            Resolution::Complete => ResolveAction::Complete,
            Resolution::Correct => ResolveAction::Correct,
            Resolution::Skip => ResolveAction::Skip,
            Resolution::Compensate => ResolveAction::Compensate,
            Resolution::Fail => ResolveAction::Fail,
        }
    }
}

#[derive(Debug, Args)]
pub struct Resolve {
    run_id: String,
    step_id: String,
    action: Resolution,
    /// Of complete: JSON, @FILE or -
    #[arg(long, value_name = "JSON")]
    result: Option<String>,
    /// Of correct: JSON, @FILE or -
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Of retry: with another idempotency key, because the effect is wanted again
    #[arg(long)]
    new_key: bool,
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    to: To,
}

impl Resolve {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let given =
                |name: &str, text: &Option<String>| text.as_deref().map(|text| json_argument(name, text)).transpose();
            let body = ResolveStep {
                step_id: self.step_id,
                action: self.action.action(),
                output: given("--result", &self.result)?,
                input: given("--input", &self.input)?,
                new_key: self.new_key,
                reason: self.reason,
            };
            tell(&self.to, &self.run_id, &["resolve"], &body, "resolved").await
        })
    }
}

#[derive(Debug, Args)]
pub struct Cancel {
    run_id: String,
    #[arg(long, default_value = "")]
    reason: String,
    /// Undo what was done, whatever the workflow says
    #[arg(long)]
    compensate: bool,
    /// Undo nothing, whatever the workflow says
    #[arg(long, conflicts_with = "compensate")]
    no_compensate: bool,
    /// How long workers have to stop, as 30s
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    #[command(flatten)]
    to: To,
}

impl Cancel {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let compensate = match (self.compensate, self.no_compensate) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            };
            let body = CancelRun { reason: self.reason, compensate, grace: self.grace };
            tell(&self.to, &self.run_id, &["cancel"], &body, "was asked to cancel").await
        })
    }
}

#[derive(Debug, Args)]
pub struct Pause {
    run_id: String,
    #[arg(long, default_value = "")]
    reason: String,
    #[command(flatten)]
    to: To,
}

impl Pause {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async { tell(&self.to, &self.run_id, &["pause"], &PauseRun { reason: self.reason }, "is held").await })
    }
}

#[derive(Debug, Args)]
pub struct Resume {
    run_id: String,
    /// One step, then paused again
    #[arg(long)]
    one_step: bool,
    #[command(flatten)]
    to: To,
}

impl Resume {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let body = ResumeRun { steps: self.one_step.then_some(1) };
            tell(&self.to, &self.run_id, &["resume"], &body, "goes on").await
        })
    }
}

#[derive(Debug, Args)]
pub struct Retry {
    run_id: String,
    /// Follow it until it ends; the exit code says how
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    to: To,
}

impl Retry {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let answer = self.to.post(&["v1", "runs", &self.run_id, "retry"])?.json(&RetryRun {}).send().await?;
            let done = if answer.status == 201 { "started from the failed step" } else { "is tried again now" };
            print_run(&answer, self.to.output, done)?;
            match self.watch {
                true => follow(&self.to, answer.json::<Value>()?["run_id"].as_str().unwrap_or_default()).await,
                false => Ok(Exit::Done),
            }
        })
    }
}

#[derive(Debug, Args)]
pub struct Rerun {
    run_id: String,
    /// From this step; without one, from the one that failed
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// same, latest or a number
    #[arg(long, value_parser = version)]
    version: Option<Version>,
    /// Another input: JSON, @FILE or -
    #[arg(short, long, value_name = "JSON")]
    input: Option<String>,
    /// Only say what would be executed again, reused and asked
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    to: To,
}

fn version(text: &str) -> Result<Version, String> {
    match (text, text.parse()) {
        ("same", _) => Ok(Version::Word(VersionWord::Same)),
        ("latest", _) => Ok(Version::Word(VersionWord::Latest)),
        (_, Ok(number)) => Ok(Version::Number(number)),
        _ => Err("say same, latest or a number".into()),
    }
}

impl Rerun {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let input = self.input.as_deref().map(|input| json_argument("--input", input)).transpose()?;
            let body = RerunRun { from_step: self.from, version: self.version, input, dry_run: self.dry_run };
            let answer = self.to.post(&["v1", "runs", &self.run_id, "rerun"])?.json(&body).send().await?;
            match self.dry_run {
                true => print_one(&answer, self.to.output, "run_id", |out, plan| write_plan(out, plan))?,
                false => print_run(&answer, self.to.output, "started")?,
            }
            Ok(Exit::Done)
        })
    }
}

/// Every part of the plan under its own name, so that none is forgotten when a server adds one.
fn write_plan(out: &mut dyn Write, plan: &Value) -> io::Result<()> {
    for (name, value) in plan.as_object().into_iter().flatten() {
        match value.as_array() {
            Some(entries) if entries.is_empty() => {}
            Some(entries) => {
                writeln!(out, "{BOLD}{}{BOLD:#}", plain(&name.replace('_', " ")))?;
                entries.iter().try_for_each(|entry| writeln!(out, "  {}", word(entry)))?;
            }
            None if value.is_null() => {}
            None => writeln!(out, "{BOLD}{}{BOLD:#} {}", plain(&name.replace('_', " ")), word(value))?,
        }
    }
    Ok(())
}

#[derive(Debug, Args)]
pub struct Pin {
    run_id: String,
    /// Take the pin away
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    to: To,
}

impl Pin {
    pub fn run(self) -> io::Result<Exit> {
        let to = self.to.clone();
        to.run(async {
            let done = if self.remove { "is kept as long as others" } else { "is kept for good" };
            tell(&self.to, &self.run_id, &["pin"], &PinRun { pinned: Some(!self.remove) }, done).await
        })
    }
}
