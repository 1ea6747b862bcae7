//! The log of a server. A thread of its own writes it to standard error, so that nothing else waits for a full disk or for a pipe
//! that is not read, and nothing panics because of them. Lines that cannot be written are dropped and counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Lines that may wait to be written.
const LINES: usize = 4_096;
/// How long an ending process waits until its last lines are written, and how often it looks.
const LAST_LINES: Duration = Duration::from_millis(500);
const LOOKS: u32 = 100;

static LOG: OnceLock<Log> = OnceLock::new();

/// The queue of lines for the log's thread. A clone writes to the same queue.
#[derive(Clone, Debug)]
pub struct Log {
    lines: SyncSender<Vec<u8>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicU64,
    handled: AtomicU64,
    lost: AtomicU64,
}

/// Begins the log of this process on standard error. Panics are told in it, too.
pub fn start() -> io::Result<Log> {
    let log = Log::to(io::stderr())?;
    std::panic::set_hook(Box::new(tell_panic));
    Ok(LOG.get_or_init(|| log).clone())
}

/// Writes a line to standard error, in the order of the log if there is one. A line that cannot be written is dropped.
pub fn say(line: impl Display) {
    match LOG.get() {
        Some(log) => log.leave(format!("{line}\n").into_bytes()),
        None => drop(writeln!(anstream::stderr(), "{line}")),
    }
}

/// Waits a moment until what was said is written.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.settle();
    }
}

impl Log {
    fn to(out: impl Write + Send + 'static) -> io::Result<Log> {
        let (lines, left) = sync_channel(LINES);
        let log = Log { lines, counts: Arc::default() };
        let counts = log.counts.clone();
        std::thread::Builder::new().name("abide-log".into()).spawn(move || write_lines(&left, out, &counts))?;
        Ok(log)
    }

    fn leave(&self, line: Vec<u8>) {
        let count = match self.lines.try_send(line) {
            Ok(()) => &self.counts.taken,
            Err(_) => &self.counts.lost,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }

    fn settle(&self) {
        let taken = self.counts.taken.load(Ordering::SeqCst);
        for _ in 0..LOOKS {
            if self.counts.handled.load(Ordering::SeqCst) >= taken {
                return;
            }
            std::thread::park_timeout(LAST_LINES / LOOKS);
        }
    }
}

/// Each line comes as one piece. Never waits, and never fails.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.leave(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(lines: &Receiver<Vec<u8>>, mut out: impl Write, counts: &Counts) {
    for line in lines {
        if out.write_all(&line).is_err() {
            counts.lost.fetch_add(1, Ordering::SeqCst);
        } else {
            let lost = counts.lost.swap(0, Ordering::SeqCst);
            if lost > 0 {
                tracing::warn!("{lost} lines of the log are missing here, because they could not be written");
            }
        }
        counts.handled.fetch_add(1, Ordering::SeqCst);
    }
}

/// Rust's own panic hook would wait for standard error.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let (thread, message) = (thread.name().unwrap_or("unnamed"), panic.payload_as_str().unwrap_or("no message"));
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(thread, at, "panicked: {message}");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!("{trace}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Takes a line when it is told to.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Waits until so many lines have come to nothing, and no longer than a hang would last.
    fn lost(log: &Log, lines: u64) -> bool {
        let looks = |_| {
            std::thread::sleep(Duration::from_millis(10));
            (log.counts.lost.load(Ordering::SeqCst) == lines).then_some(())
        };
        (0..6_000).find_map(looks).is_some()
    }

    #[test]
    fn whoever_writes_to_a_log_that_takes_nothing_goes_on_and_the_dropped_lines_are_counted() {
        let ((take, may), (wrote, written)) = (channel(), channel());
        let mut log = Log::to(Slow(may, wrote)).expect("a thread");
        let many = 2 * LINES;
        for n in 0..many {
            log.write_all(format!("line {n}\n").as_bytes()).expect("it never fails");
        }
        log.settle();
        let dropped = log.counts.lost.load(Ordering::SeqCst) as usize;
        assert!((LINES - 2..=LINES).contains(&dropped), "{dropped} of {many} lines were dropped");
        take.send(()).expect("it waits");
        assert_eq!(written.recv().expect("it goes on"), b"line 0\n");
        for _ in 1..many - dropped {
            take.send(()).expect("it waits");
            written.recv().expect("it goes on");
        }
        assert!(lost(&log, 0), "they were told");
    }

    #[test]
    fn a_line_that_cannot_be_written_costs_nobody_but_itself() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has one");
        let log = Log::to(full).expect("a thread");
        for _ in 0..10 {
            log.leave(b"a line\n".to_vec());
        }
        assert!(lost(&log, 10));
    }

    /// Not a test of its own: a process in which handlers panic, more often than a pipe can hold.
    #[test]
    fn process_that_panics() {
        if std::env::var("ABIDE_LOG_PANICS").is_err() {
            return;
        }
        let log = start().expect("a log");
        let _ = tracing_subscriber::fmt().with_writer(move || log.clone()).try_init();
        for _ in 0..3_000 {
            let handler = std::thread::Builder::new().name("handler".into()).spawn(|| panic!("in a handler"));
            assert!(handler.expect("a thread").join().is_err());
        }
        flush();
        std::process::exit(7);
    }

    #[test]
    fn a_panic_does_not_wait_for_whoever_reads_the_log() {
        let (reader, stderr) = io::pipe().expect("a pipe");
        let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["log::tests::process_that_panics", "--exact", "--nocapture"])
            .envs([("ABIDE_LOG_PANICS", "1"), ("RUST_BACKTRACE", "0")])
            .stdout(std::process::Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("a child");
        let ended = (0..6_000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            child.try_wait().expect("a child")
        });
        let _ = child.kill();
        drop(reader);
        assert_eq!(ended.and_then(|status| status.code()), Some(7), "it waits for its log");
    }
}
