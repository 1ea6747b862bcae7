//! Leases that a worker holds, and the one timer that keeps them alive.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_api::Code;
use abide_api::tasks::{Heartbeat, ProgressTold, Task};
use abide_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::tasks::{Item, Reply, Said, Tasks};

/// A lease lasts three heartbeats.
const BEATS_IN_A_LEASE: u32 = 3;
const SLOWEST_TICK: Duration = Duration::from_millis(100);
const QUICKEST_TICK: Duration = Duration::from_millis(5);
/// People look at progress, and four times a second is enough for them.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Heartbeats of one call; servers take no more than 1,000 items.
const MOST_AT_ONCE: usize = 500;
/// How many finished tasks are remembered, so that one that is delivered twice is dropped.
const REMEMBERED: usize = 4096;

/// One task under a lease.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) task: Task,
    /// Set when the server asks to stop.
    pub(crate) cancel: CancellationToken,
    /// Set when the lease is gone, or may be: from then on no user code runs.
    pub(crate) over: CancellationToken,
    every: Duration,
    lease: Mutex<Lease>,
}

fn every(task: &Task) -> Duration {
    Duration::from_millis(task.heartbeat_every_ms.max(1))
}

#[derive(Debug)]
struct Lease {
    /// The send time of the last accepted sign of life, plus the window.
    ends_at: Instant,
    next_beat_at: Instant,
    progress: Option<ProgressTold>,
    progress_from: Instant,
    beating: bool,
    /// Whether it is known that the lease still lived when it came.
    is_proven: bool,
}

impl Held {
    /// `ends_at` is when the lease is over at the latest; nobody knows: the first heartbeat has to find out.
    fn new(task: Task, ends_at: Option<Instant>, now: Instant) -> Held {
        let every = every(&task);
        let window = every * BEATS_IN_A_LEASE;
        let lease = Lease {
            ends_at: ends_at.unwrap_or(now + window),
            next_beat_at: ends_at.map_or(now, |ends_at| ends_at - every * (BEATS_IN_A_LEASE - 1)),
            progress: None,
            progress_from: now,
            beating: false,
            is_proven: ends_at.is_some(),
        };
        let (cancel, over) = (CancellationToken::new(), CancellationToken::new());
        Held { task, cancel, over, every, lease: Mutex::new(lease) }
    }

    pub(crate) fn ends_at(&self) -> Instant {
        self.lease().ends_at
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.lease().is_proven
    }

    pub(crate) fn progress(&self, progress: ProgressTold) {
        self.lease().progress = Some(progress);
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The heartbeat that is due, if one is. A lease that is over is said to be.
    fn due(&self, now: Instant) -> Option<Item> {
        let mut lease = self.lease();
        if now >= lease.ends_at {
            self.over.cancel();
            return None;
        }
        // Whoever took the task asks first, and by itself.
        if !lease.is_proven {
            return None;
        }
        let shows = lease.progress.is_some() && now >= lease.progress_from;
        if lease.beating || self.over.is_cancelled() || !(shows || now >= lease.next_beat_at) {
            return None;
        }
        lease.beating = true;
        let progress = lease.progress.take();
        let said = Said::Heartbeat(Heartbeat { epoch: self.task.epoch, progress });
        Some(Item { task_id: self.task.task_id.clone(), said })
    }

    fn heard(&self, sent: Instant, answer: &Result<Reply, Error>, now: Instant) {
        let mut lease = self.lease();
        lease.beating = false;
        match answer {
            Ok(Reply::Beat(beat)) => {
                lease.ends_at = lease.ends_at.max(sent + self.every * BEATS_IN_A_LEASE);
                lease.next_beat_at = sent + self.every;
                lease.is_proven = true;
                lease.progress_from = sent + PROGRESS_EVERY;
                if beat.cancel_requested {
                    self.cancel.cancel();
                }
            }
            // Only a refusal says that the lease is gone. One lost heartbeat does not: the next may arrive.
            Err(Error::Refused(problem)) if !problem.retryable => {
                let lost = problem.is(Code::LeaseLost);
                tracing::warn!(task = %self.task.task_id, lost, code = %problem.code, "the lease is gone");
                self.over.cancel();
            }
            Ok(_) | Err(_) => lease.next_beat_at = now + self.every / 4,
        }
    }
}

/// All leases of a worker.
#[derive(Debug)]
pub(crate) struct Leases {
    book: Mutex<Book>,
    /// What instants of this process are counted from.
    zero: Instant,
    /// Wakes the timer when there is something to keep alive.
    grown: Notify,
}

#[derive(Debug, Default)]
struct Book {
    held: HashMap<String, Arc<Held>>,
    /// Task and epoch; the order says which to forget first.
    finished: HashMap<String, u64>,
    order: VecDeque<String>,
    /// How far the server's clock is ahead of `zero`, at most, in microseconds.
    ahead: Option<i64>,
}

impl Leases {
    pub(crate) fn new() -> Leases {
        Leases { book: Mutex::default(), zero: Instant::now(), grown: Notify::new() }
    }

    /// Takes a task into the book. `None` when it is there already, or was: then it was delivered twice.
    pub(crate) fn hold(&self, task: Task, since: Instant) -> Option<Arc<Held>> {
        let mut book = self.book();
        if book.finished.get(&task.task_id).is_some_and(|epoch| *epoch >= task.epoch) {
            return None;
        }
        if let Some(before) = book.held.get(&task.task_id) {
            if before.task.epoch >= task.epoch {
                return None;
            }
            // The older lease was lost without us noticing.
            before.over.cancel();
        }
        let now = Instant::now();
        let ends_at = self.ends_at(&mut book, &task, since, now);
        let held = Arc::new(Held::new(task, ends_at, now));
        book.held.insert(held.task.task_id.clone(), held.clone());
        self.grown.notify_one();
        Some(held)
    }

    /// When a lease is over at the latest, whatever the network did to the answer that brought it. A call that was quick
    /// tells it by itself, and how far the server's clock is ahead; one that waited for work is measured against that.
    fn ends_at(&self, book: &mut Book, task: &Task, asked: Instant, now: Instant) -> Option<Instant> {
        let (every, window) = (every(task), every(task) * BEATS_IN_A_LEASE);
        if now.duration_since(asked) < every {
            book.ahead = Some(self.ahead(task.lease_expires_at, window, asked));
            return Some(asked + window);
        }
        let left = task.lease_expires_at.micros() - book.ahead? - self.micros(now);
        let left = Duration::from_micros(u64::try_from(left).ok()?).min(window);
        (left > every).then(|| now + left)
    }

    /// The server said when a lease ends, after `sent`: its clock was at least as late as this process's then.
    fn ahead(&self, lease_expires_at: Timestamp, window: Duration, sent: Instant) -> i64 {
        let window = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
        lease_expires_at.micros() - window - self.micros(sent)
    }

    fn micros(&self, at: Instant) -> i64 {
        i64::try_from(at.duration_since(self.zero).as_micros()).unwrap_or(i64::MAX)
    }

    /// Asks whether a lease lives before any code runs under it.
    pub(crate) async fn prove(&self, held: &Arc<Held>, tasks: &dyn Tasks) -> bool {
        let given_up_at = Instant::now() + held.every * BEATS_IN_A_LEASE;
        let said = Said::Heartbeat(Heartbeat { epoch: held.task.epoch, progress: None });
        let item = Item { task_id: held.task.task_id.clone(), said };
        while Instant::now() < given_up_at && !held.over.is_cancelled() {
            let sent = Instant::now();
            let answer = tasks.tell(&item).await;
            self.heard(held, sent, &answer);
            if held.is_proven() {
                return true;
            }
            tokio::time::sleep(held.every / 8).await;
        }
        false
    }

    fn heard(&self, held: &Held, sent: Instant, answer: &Result<Reply, Error>) {
        held.heard(sent, answer, Instant::now());
        if let Ok(Reply::Beat(beat)) = answer {
            let ahead = self.ahead(beat.lease_expires_at, held.every * BEATS_IN_A_LEASE, sent);
            self.book().ahead = Some(ahead);
        }
    }

    pub(crate) fn release(&self, held: &Held) {
        let mut book = self.book();
        let id = &held.task.task_id;
        if book.held.get(id).is_some_and(|now| now.task.epoch == held.task.epoch) {
            book.held.remove(id);
        }
        if book.finished.insert(id.clone(), held.task.epoch).is_none() {
            book.order.push_back(id.clone());
        }
        if book.order.len() > REMEMBERED
            && let Some(oldest) = book.order.pop_front()
        {
            book.finished.remove(&oldest);
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.book().held.len()
    }

    /// Keeps every lease alive until it is dropped. Heartbeats of many tasks go in one call.
    pub(crate) async fn keep_alive(self: Arc<Self>, tasks: Arc<dyn Tasks>) {
        loop {
            let held: Vec<Arc<Held>> = self.book().held.values().cloned().collect();
            let Some(every) = held.iter().map(|held| held.every).min() else {
                self.grown.notified().await;
                continue;
            };
            let now = Instant::now();
            let due: Due = held.into_iter().filter_map(|held| held.due(now).map(|item| (held, item))).collect();
            if !due.is_empty() {
                tokio::spawn(self.clone().beat(tasks.clone(), due, now, every));
            }
            tokio::time::sleep((every / 4).clamp(QUICKEST_TICK, SLOWEST_TICK)).await;
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn beat(self: Arc<Self>, tasks: Arc<dyn Tasks>, due: Due, sent: Instant, patience: Duration) {
        let (held, items): (Vec<Arc<Held>>, Vec<Item>) = due.into_iter().unzip();
        // A heartbeat that hangs must not keep the next one from being sent.
        let answers = tokio::time::timeout(patience, say_all(&*tasks, &items)).await.unwrap_or_else(|_| {
            let late = Error::Unreachable { server: "the server".into(), cause: "no answer in time".into() };
            held.iter().map(|_| Err(late.clone())).collect()
        });
        for (held, answer) in held.iter().zip(&answers) {
            self.heard(held, sent, answer);
        }
    }
}

type Due = Vec<(Arc<Held>, Item)>;

async fn say_all(tasks: &dyn Tasks, items: &[Item]) -> Vec<Result<Reply, Error>> {
    if let [one] = items {
        return vec![tasks.tell(one).await];
    }
    let mut answers = Vec::with_capacity(items.len());
    for some in items.chunks(MOST_AT_ONCE) {
        answers.extend(match tasks.batch(some).await {
            Ok(replies) => replies,
            Err(error) => some.iter().map(|_| Err(error.clone())).collect(),
        });
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use abide_api::Problem;
    use abide_api::tasks::Beat;

    pub(crate) fn task(id: &str, epoch: u64) -> Task {
        serde_json::from_value(serde_json::json!({
            "task_id": id, "run_id": "run_1", "step_id": "a", "kind": "step", "handler": "h", "input": null,
            "attempt": 1, "epoch": epoch, "idempotency_key": "k", "lease_expires_at": Timestamp::default(),
            "heartbeat_every_ms": 100, "receipts": [], "answers": [], "workflow_id": "w", "workflow_version": 1,
        }))
        .expect("a task")
    }

    fn accepted() -> Result<Reply, Error> {
        Ok(Reply::Beat(Beat { lease_expires_at: Timestamp::default(), cancel_requested: false }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_is_delivered_twice_is_dropped() {
        let leases = Leases::new();
        let now = Instant::now();
        let first = leases.hold(task("t", 1), now).expect("it is new");
        assert!(leases.hold(task("t", 1), now).is_none(), "while it is held");
        leases.release(&first);
        assert!(leases.hold(task("t", 1), now).is_none(), "after it was finished");
        assert_eq!(leases.count(), 0, "no heartbeat is left behind");
        assert!(leases.hold(task("t", 2), now).is_some(), "another lease is other work");
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_lease_of_the_same_task_ends_the_older_one() {
        let leases = Leases::new();
        let older = leases.hold(task("t", 1), Instant::now()).expect("it is new");
        let newer = leases.hold(task("t", 2), Instant::now()).expect("it is newer");
        assert!(older.over.is_cancelled() && !newer.over.is_cancelled());
        leases.release(&older);
        assert_eq!(leases.count(), 1, "the newer one is kept alive");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_heartbeat_does_not_end_a_lease_but_its_window_does() {
        let now = Instant::now();
        let held = Held::new(task("t", 1), Some(now + Duration::from_millis(300)), now);
        assert!(held.due(now + Duration::from_millis(99)).is_none());
        assert!(held.due(now + Duration::from_millis(100)).is_some());
        let lost = Err(Error::Unreachable { server: "s".into(), cause: "cut".into() });
        held.heard(now + Duration::from_millis(100), &lost, now + Duration::from_millis(150));
        assert!(held.due(now + Duration::from_millis(299)).is_some() && !held.over.is_cancelled());
        held.heard(now + Duration::from_millis(299), &lost, now + Duration::from_millis(299));
        assert!(held.due(now + Duration::from_millis(300)).is_none() && held.over.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn an_accepted_heartbeat_counts_from_when_it_was_sent() {
        let now = Instant::now();
        let held = Held::new(task("t", 1), Some(now + Duration::from_millis(300)), now);
        let sent = now + Duration::from_millis(100);
        held.due(sent).expect("it is due");
        held.heard(sent, &accepted(), now + Duration::from_millis(190));
        assert_eq!(held.ends_at(), sent + Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_heartbeat_ends_a_lease_at_once() {
        let now = Instant::now();
        let held = Held::new(task("t", 1), Some(now + Duration::from_millis(300)), now);
        held.heard(now, &Err(Problem::new(Code::LeaseLost, "over").into()), now);
        assert!(held.over.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_long_for_a_task_measures_its_lease_by_the_servers_clock() {
        let leases = Leases::new();
        let leased = |epoch, at_ms: i64| Task {
            lease_expires_at: Timestamp::from_micros(at_ms * 1_000),
            ..task(&format!("t{epoch}"), epoch)
        };
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(1000)).await;
        let first = leases.hold(leased(1, 5_000_300), asked).expect("new");
        assert!(!first.is_proven(), "nothing is known about the server's clock yet");
        // The server's clock is 5,000,000 ms when ours is 1,000 ms.
        let quick = leases.hold(leased(2, 5_000_300), Instant::now()).expect("new");
        assert!(quick.is_proven());
        tokio::time::advance(Duration::from_millis(1000)).await;
        let fresh = leases.hold(leased(3, 5_001_290), asked).expect("new");
        assert!(fresh.is_proven());
        assert_eq!(fresh.ends_at(), Instant::now() + Duration::from_millis(290));
        let stale = leases.hold(leased(4, 5_000_900), asked).expect("new");
        assert!(!stale.is_proven(), "its answer was under way for longer than the lease lasts");
    }
}
