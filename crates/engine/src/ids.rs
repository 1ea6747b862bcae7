//! The only source of randomness: ids of runs that nobody named, of this process, and tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_core::ids::{Digest, RunId, derived_ulid};
use abide_core::time::Timestamp;

/// Makes ids that sort by time and are never made twice.
#[derive(Clone, Debug)]
pub struct Ids {
    seed: Arc<str>,
    made: Arc<AtomicU64>,
    repeatable: bool,
}

impl Ids {
    /// Seeded by the operating system.
    pub fn random() -> Ids {
        Ids { repeatable: false, ..Ids::seeded(u128::from_le_bytes(random())) }
    }

    /// The same ids for the same seed, for tests that must be repeatable.
    pub fn seeded(seed: u128) -> Ids {
        Ids { seed: format!("{seed:032x}").into(), made: Arc::default(), repeatable: true }
    }

    pub fn run(&self, now: Timestamp) -> RunId {
        RunId::new(format!("run_{}", self.ulid(now)))
    }

    /// 256 bits that nobody can guess, in hexadecimal digits: for addresses that only one party may know.
    pub fn token(&self) -> String {
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        if self.repeatable {
            return Digest::of_fields([self.seed.as_bytes(), &n.to_le_bytes()]).to_string();
        }
        Digest(random()).to_string()
    }

    fn ulid(&self, now: Timestamp) -> String {
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        derived_ulid(now, &RunId::from(&*self.seed), n, 0)
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_repeatable_by_seed() {
        let now = Timestamp::from_micros(1_000_000);
        let (one, other) = (Ids::seeded(1), Ids::seeded(1));
        let first = one.run(now);
        assert_eq!(first, other.run(now));
        assert_ne!(first, one.run(now));
        assert_ne!(Ids::random().run(now), Ids::random().run(now));
        assert_eq!(one.token(), Ids { made: Arc::new(AtomicU64::new(2)), ..other }.token());
        let random = Ids::random();
        assert_ne!(random.token(), random.token());
    }
}
