//! Where requests wait for the lane: bounded, and what workers say comes before what is new.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::time::Timestamp;

use crate::request::{Asked, Error, What};

/// Requests that may wait in each of the two lines.
const MOST_WAITING: usize = 8_192;
/// What may wait in each of them, in bytes of payload: large starts take no room from those who hold leases.
const MOST_BYTES: usize = 64 << 20;
/// What one transaction takes at most.
pub const BATCH: usize = 1_024;
pub const BATCH_BYTES: usize = 32 << 20;
/// What is taken at once: the writer gets its next batch as soon as it is free, and waits for the piece that is decided.
const PIECE: usize = 16;
/// Of every piece, new work gets at least this share, so that it never starves.
const SHARE_OF_NEW: usize = PIECE / 8;

/// What was taken out of the line.
#[derive(Debug)]
pub struct Taken {
    pub asked: Vec<Asked>,
    pub bytes: usize,
    /// How many still wait.
    pub left: usize,
    /// When the first report came that still waits.
    pub reports_since: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub struct Requests {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    /// What holders of leases say: heartbeats, completions, and the like.
    reports: Line,
    others: Line,
    closed: bool,
    called: bool,
    /// The lane waits for requests. It costs a call of the system to wake somebody, also when nobody sleeps.
    awaited: bool,
}

#[derive(Debug, Default)]
struct Line {
    asked: VecDeque<(Asked, usize)>,
    bytes: usize,
}

impl Requests {
    /// Puts a request in line, or says why not.
    pub fn push(&self, asked: Asked) -> Result<(), Error> {
        let (report, bytes) = (asked.is_report(), bytes_of(&asked));
        let mut lines = self.lock();
        if lines.closed {
            return Err(Error::ShuttingDown);
        }
        let line = if report { &mut lines.reports } else { &mut lines.others };
        // One that is larger than all of it passes alone.
        let too_large = line.bytes + bytes > MOST_BYTES && !line.asked.is_empty();
        if line.asked.len() >= MOST_WAITING || too_large {
            return Err(Error::Overloaded);
        }
        line.bytes += bytes;
        line.asked.push_back((asked, bytes));
        let awaited = std::mem::take(&mut lines.awaited);
        drop(lines);
        if awaited {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Waits for requests, at most so long, and takes some. `None`: closed and empty.
    pub fn take(&self, wait: Duration) -> Option<Taken> {
        let mut lines = self.lock();
        if lines.is_empty() && !lines.closed && !lines.called {
            lines.awaited = true;
            (lines, _) = self.changed.wait_timeout(lines, wait).unwrap_or_else(PoisonError::into_inner);
            lines.awaited = false;
        }
        if lines.is_empty() && lines.closed {
            return None;
        }
        lines.called = false;
        let (asked, bytes) = lines.piece();
        let reports_since = lines.reports.asked.front().and_then(|(asked, _)| asked.at);
        Some(Taken { asked, bytes, left: lines.len(), reports_since })
    }

    /// Whoever waits is told why nothing is done.
    pub fn refuse_all(&self, why: &Error) {
        let refused = {
            let mut lines = self.lock();
            let reports = std::mem::take(&mut lines.reports);
            reports.asked.into_iter().chain(std::mem::take(&mut lines.others).asked)
        };
        for (asked, _) in refused {
            asked.reply.send(Err(why.clone()));
        }
    }

    /// Nobody waits, and whoever comes is let in.
    pub fn is_idle(&self) -> bool {
        let lines = self.lock();
        lines.is_empty() && !lines.closed
    }

    /// Whoever waits for requests gets what there is, even if it is nothing.
    pub fn call(&self) {
        self.lock().called = true;
        self.changed.notify_all();
    }

    /// Nothing more is let in; what waits is still carried.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn len(&self) -> usize {
        self.reports.asked.len() + self.others.asked.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of both lines, and how many bytes that is.
    fn piece(&mut self) -> (Vec<Asked>, usize) {
        let for_new = SHARE_OF_NEW.min(self.others.asked.len());
        let mut piece = Vec::with_capacity(self.len().min(PIECE));
        let reported = self.reports.take(PIECE - for_new, BATCH_BYTES, &mut piece);
        let left = PIECE - piece.len();
        let others = self.others.take(left, BATCH_BYTES.saturating_sub(reported), &mut piece);
        (piece, reported + others)
    }
}

impl Line {
    /// Takes at least one, so that a large request passes too; tells how many bytes left the line.
    fn take(&mut self, most: usize, room: usize, piece: &mut Vec<Asked>) -> usize {
        let mut taken = 0;
        for _ in 0..most {
            match self.asked.front() {
                Some((_, bytes)) if taken + bytes <= room || piece.is_empty() => {}
                _ => break,
            }
            if let Some((asked, bytes)) = self.asked.pop_front() {
                taken += bytes;
                piece.push(asked);
            }
        }
        self.bytes -= taken;
        taken
    }
}

fn bytes_of(asked: &Asked) -> usize {
    let of_payload = match &asked.request.what {
        What::Start(new) => new.start.input.len(),
        What::Register(register) => register.document.len(),
        What::Rerun(rerun) => rerun.input.as_ref().map_or(0, |input| input.len()),
        What::Run(to_run) => {
            let size = to_run.command.ask.size();
            size.payloads + size.words
        }
        What::Keep(said) => said.len(),
        What::Tidy(tidy) => tidy.runs.iter().map(|run| run.bundle.len()).sum(),
        What::Claim(_)
        | What::ClaimAnywhere(_)
        | What::Reconnected(_)
        | What::Broken(_)
        | What::Count(_)
        | What::Access(_)
        | What::Recall => 0,
    };
    // A request is not free even when it carries nothing.
    of_payload + 512
}

#[cfg(test)]
mod tests {
    use abide_core::ids::{Epoch, Namespace, Path, RunId, TaskId};
    use abide_core::run::command::{Actor, Ask, Command, Fault, Holding, Report};

    use super::*;
    use crate::request::{NewRun, Request, ToRun};

    fn asked(what: What) -> Asked {
        Asked::new(Request { namespace: Namespace::from("default"), idempotency: None, what }).0
    }

    fn start(input: usize) -> Asked {
        asked(What::Start(Box::new(NewRun::of("w", "x".repeat(input), Actor::user("ben")))))
    }

    fn report(ask: impl FnOnce(Holding) -> Ask) -> Asked {
        let holding = Holding { path: Path::from("a"), task_id: TaskId::from("task_r.1.a"), epoch: Epoch(1) };
        let command = Command::new(Actor::worker("w"), ask(holding));
        asked(What::Run(Box::new(ToRun::new(RunId::from("run_r"), command))))
    }

    fn beat() -> Asked {
        report(|holding| Ask::Heartbeat { holding, progress: None })
    }

    fn completion(output: usize) -> Asked {
        let said = Report { output: Some("x".repeat(output).into()), ..Report::default() };
        report(|holding| Ask::Complete { holding, report: said })
    }

    fn taken(requests: &Requests) -> Vec<Asked> {
        requests.take(Duration::ZERO).expect("it is open").asked
    }

    #[test]
    fn a_flood_of_starts_is_refused_and_heartbeats_still_come_through() {
        let requests = Requests::default();
        let refused = (0..MOST_WAITING + 10).filter(|_| requests.push(start(2)).is_err()).count();
        assert_eq!(refused, 10);
        assert!(matches!(requests.push(start(2)), Err(Error::Overloaded)));
        requests.push(beat()).expect("reports have a line of their own");
        assert!(taken(&requests)[0].is_report(), "and come first");
    }

    #[test]
    fn a_flood_of_large_starts_takes_no_room_from_heartbeats_and_completions() {
        let requests = Requests::default();
        let large = 1 << 20;
        while requests.push(start(large)).is_ok() {}
        requests.push(beat()).expect("a heartbeat is not new work");
        for _ in 0..PIECE {
            requests.push(completion(large)).expect("completions have room of their own");
        }
        // They come first, and new work still gets its share.
        let piece = taken(&requests);
        assert_eq!(piece.iter().filter(|asked| asked.is_report()).count(), PIECE - SHARE_OF_NEW);
        // The other way round it is the same.
        while requests.push(completion(large)).is_ok() {}
        requests.push(start(large)).expect("what was taken left room for new work");
    }

    #[test]
    fn what_a_failure_tells_counts_as_an_output_does() {
        let requests = Requests::default();
        let details = Some(serde_json::json!({ "stack": ["x".repeat(1 << 20)] }));
        let fault = Fault {
            class: None,
            message: "broken".into(),
            code: None,
            retry_after: None,
            details,
            tool: None,
            account: None,
        };
        let failure = || report(|holding| Ask::Fail { holding, fault: fault.clone() });
        let accepted = (0..1_000).take_while(|_| requests.push(failure()).is_ok()).count();
        assert!((50..=64).contains(&accepted), "{accepted}");
    }

    #[test]
    fn new_work_gets_its_share_beside_reports() {
        let requests = Requests::default();
        for _ in 0..PIECE * 2 {
            requests.push(beat()).expect("room");
            requests.push(start(2)).expect("room");
        }
        let piece = taken(&requests);
        assert_eq!(piece.len(), PIECE);
        assert_eq!(piece.iter().filter(|asked| !asked.is_report()).count(), SHARE_OF_NEW);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_a_large_request_passes_alone() {
        let requests = Requests::default();
        let large = 1 << 20;
        let accepted = (0..1_000).take_while(|_| requests.push(start(large)).is_ok()).count();
        assert!((50..=64).contains(&accepted), "{accepted}");
        let mut carried = 0;
        while carried < accepted {
            let batch = taken(&requests);
            assert!(!batch.is_empty() && batch.len() <= 1 + BATCH_BYTES / large);
            carried += batch.len();
        }
        requests.push(start(large)).expect("there is room again");
        // Also after one that is larger than a batch.
        taken(&requests);
        requests.push(start(MOST_BYTES + large)).expect("nobody waits before it");
        assert!(matches!(requests.push(start(2)), Err(Error::Overloaded)));
        assert_eq!(taken(&requests).len(), 1);
        assert_eq!(requests.lock().others.bytes, 0);
    }

    #[test]
    fn a_closed_line_lets_nobody_in_and_still_carries_what_waits() {
        let requests = Requests::default();
        requests.push(start(2)).expect("open");
        requests.close();
        assert!(matches!(requests.push(start(2)), Err(Error::ShuttingDown)));
        assert_eq!(taken(&requests).len(), 1);
        assert!(requests.take(Duration::ZERO).is_none());
    }

    #[tokio::test]
    async fn who_waits_can_be_refused_together() {
        let requests = Requests::default();
        let what = What::Recall;
        let (asked, answer) = Asked::new(Request { namespace: Namespace::from("default"), idempotency: None, what });
        requests.push(asked).expect("room");
        requests.push(beat()).expect("room");
        requests.refuse_all(&Error::Overloaded);
        assert!(matches!(answer.await, Err(Error::Overloaded)));
        assert!(requests.is_idle());
        let lines = requests.lock();
        assert_eq!((lines.reports.bytes, lines.others.bytes), (0, 0));
    }

    #[test]
    fn who_waits_is_woken_by_a_request() {
        let requests = Requests::default();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| requests.take(Duration::from_secs(3_600)).expect("it is open").asked.len());
            while !requests.lock().awaited {
                std::thread::yield_now();
            }
            requests.push(start(2)).expect("room");
            assert_eq!(taker.join().expect("no panic"), 1);
        });
        assert!(!requests.lock().awaited);
    }

    #[test]
    fn who_is_called_does_not_wait() {
        let requests = Requests::default();
        requests.call();
        assert!(requests.take(Duration::from_secs(3_600)).expect("it is open").asked.is_empty());
    }
}
