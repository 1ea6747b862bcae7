//! Real processes, real files, real kills: what was acknowledged survives, nothing is done twice, nothing is stranded.
//!
//! Tests here start this very program again as a child that works on a data directory. The child says on its standard
//! output what it tried and what was acknowledged; what the parent has read from there is the ledger it judges by.

mod child;
mod cycles;
mod disk;
mod files;
mod kills;
mod leases;
mod ledger;
mod power;
mod push;
mod store;
mod work;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use abide_engine::clock::Stopwatch;

/// Longer than anything takes on a busy machine: what takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// What takes a second on an idle machine may take so long on one that is ten times slower.
pub const A_SECOND_ELSEWHERE: Duration = Duration::from_secs(10);

/// Not a test of its own: this is what a child process executes.
#[test]
fn child_process() {
    if let Ok(role) = std::env::var("ABIDE_CRASH_ROLE") {
        child::play(&role);
    }
}

/// A directory of its own for one test, gone when the test is over.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("abide-crash-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Directory(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory that engines open.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process and what it has said so far.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    pub fn start(role: &str, data: &Path, settings: &[(&str, &str)]) -> Process {
        Process::start_saying(role, data, settings, Stdio::null())
    }

    /// The same with a standard error of its own.
    pub fn start_saying(role: &str, data: &Path, settings: &[(&str, &str)], stderr: impl Into<Stdio>) -> Process {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env("ABIDE_CRASH_ROLE", role)
            .env("ABIDE_CRASH_DATA", data)
            .env("RUST_BACKTRACE", "0")
            .env_remove("ABIDE_FAILPOINT")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr);
        for (name, value) in settings {
            command.env(name, value);
        }
        let mut child = command.spawn().expect("a child process");
        let mut said = BufReader::new(child.stdout.take().expect("its output"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            // A line without its end was torn by the kill: it was never said.
            while said.read_line(&mut line).is_ok_and(|read| read > 0) && line.ends_with('\n') {
                if let Some(line) = line.trim_end().strip_prefix("@ ") {
                    let _ = sender.send(line.to_owned());
                }
                line.clear();
            }
        });
        Process { child, lines }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next thing it says; `None` when it ended (or said nothing for so long).
    pub fn next(&self, wait: Duration) -> Option<String> {
        self.lines.recv_timeout(wait).ok()
    }

    /// Reads until a line begins so; returns all that was read.
    pub fn until(&self, begins: &str, wait: Duration) -> Vec<String> {
        let (watch, mut read) = (Stopwatch::start(), Vec::new());
        while let Some(left) = wait.checked_sub(watch.elapsed()) {
            let Some(line) = self.next(left) else { break };
            let found = line.starts_with(begins);
            read.push(line);
            if found {
                break;
            }
        }
        read
    }

    /// Everything it says until it ends or the time is over; true: it ended by itself.
    pub fn listen(&self, wait: Duration, read: &mut Vec<String>) -> bool {
        let watch = Stopwatch::start();
        loop {
            match self.lines.recv_timeout(wait.saturating_sub(watch.elapsed())) {
                Ok(line) => read.push(line),
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }

    /// `kill -9`, if it has not ended already, and what it had said before.
    pub fn kill(mut self) -> Vec<String> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.lines.iter().collect()
    }

    /// Waits for its end.
    pub fn end(mut self) -> (ExitStatus, Vec<String>) {
        let said = self.lines.iter().collect();
        (self.child.wait().expect("a child that ends"), said)
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.id().to_string()]).status().expect("kill(1)");
        assert!(sent.success());
    }
}

/// Chance that can be repeated.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most.max(1)
    }
}

/// `kill -9` ended it: it did not end itself, in order or not.
#[cfg(unix)]
pub fn was_killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
}

#[cfg(not(unix))]
pub fn was_killed(status: ExitStatus) -> bool {
    !status.success()
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
