//! Who drives the lane: a thread of its own, or a caller who would only wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abide_core::time::Timestamp;

use crate::carry::{Fatal, Lane};
use crate::clock::Clock;
use crate::engine::{OnFatal, end_the_process};
use crate::queue::{BATCH, BATCH_BYTES, Requests, Taken};
use crate::request::{Asked, Error};
use crate::store::sqlite::Sqlite;
use crate::store::{CommitError, StoreError};

/// Fewer requests than this are carried to the end at once: a second thread would only make them wait for each other.
const WORTH_HANDING_OVER: usize = 32;

#[derive(Debug)]
struct Driven {
    lane: Lane<Sqlite>,
    /// What was taken in and not handed over.
    bytes: usize,
    /// When the thread looks again, if nobody asks.
    looks_at: Timestamp,
}

pub(crate) struct Driver {
    /// None: it has ended.
    driven: Mutex<Option<Driven>>,
    /// The thread has requests and waits for its turn, so nobody goes before it.
    waits: AtomicBool,
    requests: Arc<Requests>,
    clock: Arc<dyn Clock>,
    on_fatal: OnFatal,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Driver {
    pub fn new(mut lane: Lane<Sqlite>, requests: Arc<Requests>, clock: Arc<dyn Clock>, on_fatal: OnFatal) -> Driver {
        let line = requests.clone();
        lane.call_after(move || line.call());
        let driven = Driven { lane, bytes: 0, looks_at: Timestamp::default() };
        Driver { driven: Mutex::new(Some(driven)), waits: AtomicBool::new(false), requests, clock, on_fatal }
    }

    /// The thread: while one batch is on its way to the disk, the next is decided and grows.
    pub fn work(&self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => self.end(&mut self.lock(), &panicked()),
            }
        }
        if let Some(mut driven) = self.lock().take() {
            driven.lane.dismiss();
            driven.lane.close();
        }
    }

    /// False when nothing more will come.
    fn turn(&self) -> bool {
        let Some(looks_at) = self.lock().as_mut().map(Driven::look_later) else { return false };
        let wait = Duration::from_micros(looks_at.since(self.clock.now()).micros());
        let taken = self.requests.take(wait);
        let more = taken.is_some();
        self.waits.store(true, Ordering::SeqCst);
        let mut driven = self.lock();
        self.waits.store(false, Ordering::SeqCst);
        self.guard(&mut driven, |driven| driven.turn(taken)) && more
    }

    /// Carries a request on this thread, which saves it two changes of threads; gives it back when somebody else uses the
    /// lane or waits for it, because together they share a commit.
    pub fn carry_here(&self, asked: Asked) -> Option<Asked> {
        if self.waits.load(Ordering::SeqCst) || !self.requests.is_idle() {
            return Some(asked);
        }
        let Ok(mut driven) = self.driven.try_lock() else { return Some(asked) };
        match &*driven {
            Some(Driven { lane, .. }) if !lane.is_writing() => {}
            _ => return Some(asked),
        }
        self.guard(&mut driven, |driven| driven.carry(vec![asked]));
        if driven.as_ref().is_some_and(|driven| driven.lane.due_at() < driven.looks_at) {
            self.requests.call();
        }
        None
    }

    /// Whatever ends the lane ends the engine.
    fn guard(&self, slot: &mut Option<Driven>, act: impl FnOnce(&mut Driven) -> Result<(), Fatal>) -> bool {
        let Some(driven) = slot else { return false };
        let fatal = match catch_unwind(AssertUnwindSafe(|| act(driven))) {
            Ok(Ok(())) => {
                if driven.lane.was_held_up() {
                    self.requests.refuse_all(&Error::Overloaded);
                }
                return true;
            }
            Ok(Err(fatal)) => fatal,
            Err(_) => panicked(),
        };
        self.end(slot, &fatal);
        false
    }

    /// Ends the engine, and the process unless `on_fatal` does something else. No panic on the way keeps it from that: an engine
    /// that is open without its lane would refuse everything for ever.
    fn end(&self, slot: &mut Option<Driven>, fatal: &Fatal) {
        self.requests.close();
        if let Some(driven) = slot {
            let _ = catch_unwind(AssertUnwindSafe(|| {
                driven.lane.wake_the_rest();
                driven.lane.close();
            }));
        }
        if catch_unwind(AssertUnwindSafe(|| (self.on_fatal)(fatal))).is_err() {
            end_the_process(fatal);
        }
        let _ = catch_unwind(AssertUnwindSafe(|| *slot = None));
        // Nobody heard them, so nothing was done for them.
        self.requests.refuse_all(&Error::ShuttingDown);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Driven>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bug in the one writer: nothing it holds can be trusted any more.
fn panicked() -> Fatal {
    Fatal(CommitError::Unknown(StoreError::Failed("the lane panicked".into())))
}

impl Driven {
    /// Nobody who has an answer is left asleep when the thread rests.
    fn look_later(&mut self) -> Timestamp {
        self.lane.wake_the_rest();
        self.looks_at = self.lane.due_at();
        self.looks_at
    }

    /// Takes in what came, and hands it over when the disk is free.
    fn turn(&mut self, taken: Option<Taken>) -> Result<(), Fatal> {
        // When nothing more will come, what is on its way is waited for.
        let Some(Taken { asked, bytes, left, reports_since }) = taken else { return self.carry(Vec::new()) };
        self.bytes += bytes;
        self.lane.reports_wait_since(reports_since);
        if !asked.is_empty() || self.lane.has_to_act() {
            self.lane.take_in(asked)?;
        }
        let waiting = self.lane.taken_in().unwrap_or(0);
        if self.lane.is_writing() && waiting < BATCH && self.bytes < BATCH_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        self.lane.hand_over(waiting + left >= WORTH_HANDING_OVER)
    }

    fn carry(&mut self, asked: Vec<Asked>) -> Result<(), Fatal> {
        self.bytes = 0;
        self.lane.carry(asked)
    }
}
