//! `abide worker`: any program is a worker. The task comes as JSON on standard input, the output goes to standard output,
//! the exit code tells how it went.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use abide_api::Raw;
use abide_client::{Failure, FailureClass, Work, Worker as Loop};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use super::Exit;
use super::print::plain;
use super::remote::{Stopped, To};
use super::server::StopSignals;

#[derive(Debug, Args)]
pub struct Worker {
    /// The program for a handler, run by sh; repeats
    #[arg(long = "handler", required = true, value_name = "NAME=CMD", value_parser = super::start::pair)]
    handlers: Vec<(String, String)>,
    /// Where to take tasks from; repeats
    #[arg(long = "queue", value_name = "QUEUE", default_value = "default")]
    queues: Vec<String>,
    /// How many programs run at the same time
    #[arg(long, default_value_t = 4, value_name = "N")]
    at_once: usize,
    /// What people call it
    #[arg(long, default_value = "cli")]
    name: String,
    /// How long a lease lasts where the workflow does not say, as 30s
    #[arg(long, value_name = "DURATION", value_parser = lease)]
    lease: Option<Duration>,
    #[command(flatten)]
    to: To,
}

fn lease(text: &str) -> Result<Duration, String> {
    abide_core::definition::parse_duration(text).map(|span| Duration::from_micros(span.micros()))
}

/// No output is larger; the server refuses it anyway.
const LARGEST_OUTPUT: u64 = 1024 * 1024;
/// How much of what a program complains about stands in the failure.
const TAIL: usize = 4 * 1024;
/// How long a program has to end after it was asked to.
const GRACE: Duration = Duration::from_secs(20);

impl Worker {
    pub fn run(self) -> io::Result<Exit> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let to = self.to.clone();
        let outcome = runtime.block_on(self.work());
        runtime.shutdown_background();
        to.ended(outcome)
    }

    async fn work(self) -> Result<Exit, Stopped> {
        let mut worker = Loop::new(self.to.client()?, &self.name).at_once(self.at_once);
        worker = self.queues.iter().fold(worker, |worker, queue| worker.queue(queue));
        if let Some(lease) = self.lease {
            worker = worker.lease(lease);
        }
        for (name, command) in self.handlers {
            let handler = name.clone();
            worker = worker.handle(&name, move |work| execute(handler.clone(), command.clone(), work));
        }
        let mut signals = StopSignals::listen()?;
        anstream::eprintln!("{} listens on {}", worker.name(), self.queues.join(", "));
        let stop = worker.stopper();
        tokio::spawn(async move {
            signals.asked().await;
            anstream::eprintln!("finishing what was begun; once more to leave at once");
            stop.now();
            signals.asked().await;
            std::process::exit(130);
        });
        worker.run().await?;
        Ok(Exit::Done)
    }
}

/// A program in a process group of its own, so that what it starts ends with it.
struct Group {
    child: Child,
    pid: Option<Pid>,
}

impl Group {
    fn begin(command: &str, work: &Work) -> io::Result<Group> {
        let task = work.task();
        let child = Command::new("sh")
            .args(["-c", command])
            .env("ABIDE_RUN_ID", &task.run_id)
            .env("ABIDE_STEP_ID", &task.step_id)
            .env("ABIDE_IDEMPOTENCY_KEY", &task.idempotency_key)
            .env("ABIDE_ATTEMPT", task.attempt.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Group { child, pid })
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, signal);
        }
    }

    async fn end(&mut self, work: &Work) -> io::Result<ExitStatus> {
        tokio::select! {
            status = self.child.wait() => return status,
            () = work.canceled() => self.signal(Signal::TERM),
        }
        match tokio::time::timeout(GRACE, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.signal(Signal::KILL);
                self.child.wait().await
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The lease is over, or the worker ends: nothing of it may go on.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::KILL);
        }
    }
}

async fn execute(handler: String, command: String, work: Work) -> Result<Raw, Failure> {
    let mut group = Group::begin(&command, &work)?;
    let task = serde_json::to_vec(work.task())?;
    let (stdin, stdout, stderr) = (group.child.stdin.take(), group.child.stdout.take(), group.child.stderr.take());
    let feeding = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its task is not at fault.
            let _ = stdin.write_all(&task).await;
        }
    };
    let reading = async {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(LARGEST_OUTPUT + 1).read_to_end(&mut output).await?;
        }
        io::Result::Ok(output)
    };
    let listening = async {
        let mut tail = String::new();
        if let Some(stderr) = stderr {
            let mut lines = BufReader::new(stderr).split(b'\n');
            while let Ok(Some(line)) = lines.next_segment().await {
                let line = plain(&String::from_utf8_lossy(&line));
                anstream::eprintln!("{handler}: {line}");
                remember(&mut tail, &line);
            }
        }
        tail
    };
    let ((), output, tail, status) = tokio::join!(feeding, reading, listening, group.end(&work));
    result(status?, output?, &tail, work.is_canceled())
}

fn remember(tail: &mut String, line: &str) {
    if !tail.is_empty() {
        tail.push('\n');
    }
    tail.push_str(line);
    if tail.len() > TAIL {
        let begin = tail.len() - TAIL;
        let begin = (begin..tail.len()).find(|at| tail.is_char_boundary(*at)).unwrap_or(tail.len());
        tail.drain(..begin);
    }
}

fn result(status: ExitStatus, output: Vec<u8>, tail: &str, canceled: bool) -> Result<Raw, Failure> {
    if status.success() && output.len() as u64 > LARGEST_OUTPUT {
        return Err(Failure::fatal("the output has more than 1 MiB; store it elsewhere and print a reference"));
    }
    if status.success() {
        return Ok(output_of(&output)?);
    }
    if canceled {
        return Err(Failure::canceled());
    }
    let message = if tail.is_empty() { status.to_string() } else { tail.to_owned() };
    Err(match status.code().and_then(class_of) {
        Some(class) => Failure::of(class, message),
        None => Failure::new(message),
    }
    .code(status.code().map_or_else(|| "signal".to_owned(), |code| code.to_string())))
}

/// JSON as it is, byte for byte; other text as text, nothing as null.
fn output_of(output: &[u8]) -> Result<Raw, serde_json::Error> {
    serde_json::from_slice(output).or_else(|_| match String::from_utf8_lossy(output).trim() {
        "" => abide_api::raw("null"),
        text => abide_api::raw_of(&text),
    })
}

/// The exit codes of sysexits.h that say what kind of failure it was.
fn class_of(code: i32) -> Option<FailureClass> {
    Some(match code {
        65 => FailureClass::Validation,
        69 => FailureClass::RateLimited,
        70 => FailureClass::Fatal,
        73 => FailureClass::OutcomeUnknown,
        75 => FailureClass::Transient,
        76 => FailureClass::Conflict,
        77 => FailureClass::Permission,
        78 => FailureClass::Auth,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_prints_is_json_or_text_or_nothing() {
        let output = |printed: &[u8]| output_of(printed).expect("JSON").get().to_owned();
        assert_eq!(output(b"{\"a\": 1.50}\n"), "{\"a\": 1.50}");
        assert_eq!(
            output(b"[\"half \\ud83d\", 1e400, 18446744073709551616]"),
            "[\"half \\ud83d\", 1e400, 18446744073709551616]"
        );
        assert_eq!(output(b"done\n"), "\"done\"");
        assert_eq!(output(b" \n"), "null");
    }

    #[test]
    fn only_the_end_of_what_a_program_says_is_kept() {
        let mut tail = String::new();
        (0..2000).for_each(|n| remember(&mut tail, &format!("line {n} é")));
        assert!(tail.len() <= TAIL && tail.ends_with("line 1999 é"), "{}", tail.len());
    }

    #[test]
    fn exit_codes_are_failure_classes() {
        assert_eq!(class_of(75), Some(FailureClass::Transient));
        assert_eq!(class_of(1), None);
    }
}
