//! Commands that ask a server: where it is, in whose name, and how its refusals are told.

use std::future::Future;
use std::io::{self, Write};

use abide_api::{Code, Problem};
use abide_client::{Answer, Call, Client, Error, Method};
use clap::Args;
use serde_json::Value;

use super::Exit;
use super::finding::BAD;
use super::print::{Shape, plain, word, write_json};

/// Which server, and what to print.
#[derive(Clone, Debug, Args)]
pub struct To {
    /// Where the server is
    #[arg(
        long,
        env = "ABIDE_SERVER",
        default_value = "http://127.0.0.1:7070",
        value_name = "URL",
        help_heading = "Server"
    )]
    pub server: String,
    /// In whose name to ask
    #[arg(long, env = "ABIDE_API_KEY", hide_env_values = true, value_name = "KEY", help_heading = "Server")]
    pub api_key: Option<String>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Shape,
}

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    #[error(transparent)]
    Asking(#[from] Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What was asked on the command line cannot be.
    #[error("{0}")]
    Usage(String),
}

impl To {
    pub fn client(&self) -> Result<Client, Stopped> {
        let client = Client::new(&self.server).map_err(|error| Stopped::Usage(error.to_string()))?.with_retries(2);
        Ok(match &self.api_key {
            Some(key) => client.with_key(key.trim()),
            None => client,
        })
    }

    pub fn get(&self, segments: &[&str]) -> Result<Call, Stopped> {
        Ok(self.client()?.call(Method::GET, segments))
    }

    pub fn post(&self, segments: &[&str]) -> Result<Call, Stopped> {
        Ok(self.client()?.call(Method::POST, segments))
    }

    /// Runs a command that asks, and says why when there is no answer. One thread is enough for a question.
    pub fn run<F>(&self, asking: F) -> io::Result<Exit>
    where
        F: Future<Output = Result<Exit, Stopped>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(asking);
        // A question that is still under way must not hold up the end.
        runtime.shutdown_background();
        self.ended(outcome)
    }

    pub fn ended(&self, outcome: Result<Exit, Stopped>) -> io::Result<Exit> {
        match outcome {
            Ok(exit) => Ok(exit),
            Err(Stopped::Io(error)) => Err(error),
            Err(Stopped::Usage(message)) => {
                anstream::eprintln!("{BAD}error{BAD:#}: {}", plain(&message));
                Ok(Exit::Usage)
            }
            Err(Stopped::Asking(error)) => self.told(&error),
        }
    }

    fn told(&self, error: &Error) -> io::Result<Exit> {
        let mut err = anstream::stderr().lock();
        match error {
            Error::Refused(problem) if self.output != Shape::Table => {
                write_json(&mut err, &serde_json::to_string(problem)?)?;
                Ok(Exit::Refused)
            }
            Error::Refused(problem) => {
                write_refusal(&mut err, problem)?;
                Ok(Exit::Refused)
            }
            Error::Unreachable { server, cause } => {
                writeln!(err, "{BAD}error{BAD:#}: {} cannot be reached: {}", plain(server), plain(cause))?;
                writeln!(err, "  Is it running? `abide dev` starts one here; --server or ABIDE_SERVER name another.")?;
                Ok(Exit::Unreachable)
            }
            Error::Unreadable { .. } => {
                writeln!(err, "{BAD}error{BAD:#}: {}", plain(&error.to_string()))?;
                writeln!(err, "  Something else may be listening there, or a server of another version.")?;
                Ok(Exit::Unreachable)
            }
            Error::Invalid(message) => {
                writeln!(err, "{BAD}error{BAD:#}: {}", plain(message))?;
                Ok(Exit::Usage)
            }
        }
    }
}

/// Title, detail, each field, what is possible instead, and what to do next.
fn write_refusal(err: &mut impl Write, problem: &Problem) -> io::Result<()> {
    writeln!(err, "{BAD}refused{BAD:#}: {} ({})", plain(&problem.title), plain(&problem.code))?;
    if !problem.detail.is_empty() {
        writeln!(err, "  {}", plain(&problem.detail))?;
    }
    for error in problem.errors.iter().filter(|error| error.detail != problem.detail) {
        writeln!(err, "  {}: {}", plain(&error.pointer), plain(&error.detail))?;
    }
    if let Some(state) = problem.more.get("current_state") {
        writeln!(err, "  The run is {}.", word(state))?;
    }
    match problem.more.get("allowed").and_then(Value::as_array) {
        Some(allowed) if !allowed.is_empty() => {
            let allowed: Vec<String> = allowed.iter().map(word).collect();
            writeln!(err, "  Possible now: {}", allowed.join(", "))?;
        }
        _ => {}
    }
    if let Some(code) = Code::parse(&problem.code) {
        writeln!(err, "  {}", code.means())?;
    }
    if !problem.request_id.is_empty() {
        writeln!(err, "  (request {})", plain(&problem.request_id))?;
    }
    Ok(())
}

/// JSON of an option: the text itself, `@FILE`, or `-` for standard input.
pub fn json_argument(name: &str, text: &str) -> Result<abide_api::Raw, Stopped> {
    let read = match (text, text.strip_prefix('@')) {
        ("-", _) => io::read_to_string(io::stdin().lock()),
        (_, Some(path)) => std::fs::read_to_string(path),
        _ => Ok(text.to_owned()),
    };
    let json = read.map_err(|error| Stopped::Usage(format!("{name} {text}: {error}")))?;
    abide_api::raw(json.trim()).map_err(|error| {
        let hint = match text.starts_with(['{', '[', '"', '@', '-']) {
            true => "",
            false => "; text needs quotes inside: '\"text\"', and a file an @ before it",
        };
        Stopped::Usage(format!("{name} is not JSON: {error}{hint}"))
    })
}

/// The record of a run, after something was done to it.
pub fn print_run(answer: &Answer, shape: Shape, done: &str) -> io::Result<()> {
    super::print::print_one(answer, shape, "run_id", |out, run| {
        let style = super::print::style_of(run["state"].as_str().unwrap_or_default());
        writeln!(out, "{} {done}: {style}{}{style:#}", word(&run["run_id"]), word(&run["state"]))?;
        match word(&run["summary"]) {
            summary if summary.is_empty() => Ok(()),
            summary => writeln!(out, "  {summary}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_is_possible_and_what_helps() {
        let problem = Problem::new(Code::RunTerminal, "The run has ended as failed.\u{1b}[2J")
            .with("current_state", "failed")
            .with("allowed", serde_json::json!(["retry", "rerun"]));
        let mut text = Vec::new();
        write_refusal(&mut text, &problem).expect("it is written");
        let text = String::from_utf8(text).expect("text");
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "refused: The run has ended (run-terminal)\n  The run has ended as failed.\n  The run is failed.\n  Possible \
             now: retry, rerun\n  A run that has ended never changes. `retry` or `rerun` make a new one from it.\n"
        );
    }

    #[test]
    fn json_on_the_command_line_is_kept_as_written() {
        assert_eq!(json_argument("--input", " {\"a\": 1.50} ").expect("JSON").get(), "{\"a\": 1.50}");
        let Err(Stopped::Usage(message)) = json_argument("--input", "hello") else { panic!("it is no JSON") };
        assert!(message.contains("quotes"), "{message}");
    }
}
