//! Leases that a worker holds, and the one timer that keeps them alive.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_api::Code;
use abide_api::tasks::{Heartbeat, ProgressTold, Task};
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

#[derive(Debug)]
struct Lease {
    /// The send time of the last accepted sign of life, plus the window.
    ends_at: Instant,
    next_beat_at: Instant,
    progress: Option<ProgressTold>,
    progress_from: Instant,
    beating: bool,
}

impl Held {
    fn new(task: Task, since: Instant, now: Instant) -> Held {
        let every = Duration::from_millis(task.heartbeat_every_ms.max(1));
        let window = every * BEATS_IN_A_LEASE;
        // Whoever waited long for a task cannot know when it was leased: it says at once that it lives.
        let (ends_at, next_beat_at) = match now.duration_since(since) < every {
            true => (since + window, since + every),
            false => (now + window, now),
        };
        let lease = Lease { ends_at, next_beat_at, progress: None, progress_from: now, beating: false };
        let (cancel, over) = (CancellationToken::new(), CancellationToken::new());
        Held { task, cancel, over, every, lease: Mutex::new(lease) }
    }

    pub(crate) fn ends_at(&self) -> Instant {
        self.lease().ends_at
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
#[derive(Debug, Default)]
pub(crate) struct Leases {
    book: Mutex<Book>,
    /// Wakes the timer when there is something to keep alive.
    grown: Notify,
}

#[derive(Debug, Default)]
struct Book {
    held: HashMap<String, Arc<Held>>,
    /// Task and epoch; the order says which to forget first.
    finished: HashMap<String, u64>,
    order: VecDeque<String>,
}

impl Leases {
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
        let held = Arc::new(Held::new(task, since, Instant::now()));
        book.held.insert(held.task.task_id.clone(), held.clone());
        self.grown.notify_one();
        Some(held)
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
            let due: Vec<(Arc<Held>, Item)> =
                held.into_iter().filter_map(|held| held.due(now).map(|item| (held, item))).collect();
            if !due.is_empty() {
                tokio::spawn(beat(tasks.clone(), due, now, every));
            }
            tokio::time::sleep((every / 4).clamp(QUICKEST_TICK, SLOWEST_TICK)).await;
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn beat(tasks: Arc<dyn Tasks>, due: Vec<(Arc<Held>, Item)>, sent: Instant, patience: Duration) {
    let (held, items): (Vec<Arc<Held>>, Vec<Item>) = due.into_iter().unzip();
    let saying = async {
        match &items[..] {
            [one] => vec![tasks.tell(one).await],
            many => match tasks.batch(many).await {
                Ok(replies) => replies,
                Err(error) => many.iter().map(|_| Err(error.clone())).collect(),
            },
        }
    };
    // A heartbeat that hangs must not keep the next one from being sent.
    let answers = tokio::time::timeout(patience, saying).await.unwrap_or_else(|_| {
        let cause = "no answer in time".to_owned();
        held.iter().map(|_| Err(Error::Unreachable { server: "the server".into(), cause: cause.clone() })).collect()
    });
    for (held, answer) in held.iter().zip(&answers) {
        held.heard(sent, answer, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use abide_api::Problem;
    use abide_api::tasks::Beat;
    use abide_core::time::Timestamp;

    use super::*;

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
        let leases = Leases::default();
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
        let leases = Leases::default();
        let older = leases.hold(task("t", 1), Instant::now()).expect("it is new");
        let newer = leases.hold(task("t", 2), Instant::now()).expect("it is newer");
        assert!(older.over.is_cancelled() && !newer.over.is_cancelled());
        leases.release(&older);
        assert_eq!(leases.count(), 1, "the newer one is kept alive");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_heartbeat_does_not_end_a_lease_but_its_window_does() {
        let now = Instant::now();
        let held = Held::new(task("t", 1), now, now);
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
        let held = Held::new(task("t", 1), now, now);
        let sent = now + Duration::from_millis(100);
        held.due(sent).expect("it is due");
        held.heard(sent, &accepted(), now + Duration::from_millis(190));
        assert_eq!(held.ends_at(), sent + Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_heartbeat_ends_a_lease_at_once() {
        let now = Instant::now();
        let held = Held::new(task("t", 1), now, now);
        held.heard(now, &Err(Problem::new(Code::LeaseLost, "over").into()), now);
        assert!(held.over.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_long_for_a_task_says_at_once_that_it_lives() {
        let asked = Instant::now();
        let now = asked + Duration::from_secs(20);
        let held = Held::new(task("t", 1), asked, now);
        assert!(held.due(now).is_some());
        assert_eq!(held.ends_at(), now + Duration::from_millis(300));
    }
}
