//! The only source of time. Everything else is given an instant.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use abide_core::time::Timestamp;

/// What the engine takes for now.
pub trait Clock: Send + Sync + std::fmt::Debug {
    fn now(&self) -> Timestamp;

    /// What was written down was written at this time: it is not earlier now.
    fn not_before(&self, _written: Timestamp) {}
}

/// The machine's clock, which never goes back: when somebody sets it back, time goes on from where it was, and leases and
/// timers with it, a little slower until the machine has caught up.
#[derive(Clone, Debug, Default)]
pub struct SystemClock(Arc<Mutex<Option<Read>>>);

/// By this part time goes slower while it is ahead of the machine: an hour is caught up in eight.
const SLOWER: i64 = 8;

/// What the clock said, and when that was.
#[derive(Clone, Copy, Debug)]
struct Read {
    said: Timestamp,
    since: Stopwatch,
}

impl Read {
    fn now(said: Timestamp) -> Read {
        Read { said, since: Stopwatch::start() }
    }

    /// What it says now, if the machine says `machine`.
    fn next(self, machine: Timestamp) -> Timestamp {
        let passed = i64::try_from(self.since.elapsed().as_micros()).unwrap_or(i64::MAX);
        machine.max(Timestamp::from_micros(self.said.micros().saturating_add(passed - passed / SLOWER)))
    }
}

impl SystemClock {
    fn read(&self, machine: Timestamp) -> Timestamp {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = last.map_or(machine, |last| last.next(machine));
        // While the machine is right there is nothing to remember but what it said.
        if last.is_none_or(|last| said > last.said) {
            *last = Some(Read::now(said));
        }
        said
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the place where time comes from")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.read(Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)))
    }

    fn not_before(&self, written: Timestamp) {
        self.read(written);
    }
}

/// A clock that stands still until somebody moves it.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicI64>);

impl VirtualClock {
    pub fn at(instant: Timestamp) -> VirtualClock {
        VirtualClock(Arc::new(AtomicI64::new(instant.micros())))
    }

    pub fn set(&self, instant: Timestamp) {
        self.0.store(instant.micros(), Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// How long something takes, for caps and reports. It never decides about a run.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "this is the place where time comes from")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use abide_core::time::Span;

    use super::*;

    #[test]
    fn a_clock_that_is_set_back_goes_on_from_where_it_was() {
        let clock = SystemClock::default();
        let noon = Timestamp::from_micros(1_700_000_000_000_000);
        let hour = Span::from_secs(3_600);
        assert_eq!(clock.read(noon), noon);
        std::thread::sleep(Duration::from_millis(2));
        let back = clock.read(Timestamp::from_micros(0));
        assert!(noon < back && back < noon + hour, "it goes on, at its own pace: {back}");
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.read(Timestamp::from_micros(0)) > back);
        assert_eq!(clock.read(noon + hour), noon + hour, "the machine has caught up");
    }

    #[test]
    fn it_is_never_earlier_than_what_was_written_down() {
        let (clock, tomorrow) = (SystemClock::default(), SystemClock::default().now() + Span::from_secs(86_400));
        clock.not_before(tomorrow);
        let now = clock.now();
        assert!(tomorrow <= now && now < tomorrow + Span::from_secs(60), "{now}");
    }
}
