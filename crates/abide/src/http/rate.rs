//! How many requests one caller may make: a bucket for each that fills with time. Reports of workers are not counted, so
//! that a flood of anything else expires no lease.

use std::collections::HashMap;
use std::sync::Mutex;

use abide_api::{Code, Problem};
use abide_core::time::Timestamp;

use super::locked;

/// Callers that are remembered; beyond it full buckets are forgotten.
const MOST: usize = 20_000;

#[derive(Debug)]
pub struct Rates {
    /// Requests a second, and as many at once. None: no limit.
    rate: Option<u32>,
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Timestamp,
}

impl Rates {
    pub fn new(rate: Option<u32>) -> Rates {
        Rates { rate, buckets: Mutex::default() }
    }

    /// Takes one request out of the caller's bucket.
    pub fn take(&self, caller: &str, now: Timestamp) -> Result<(), Problem> {
        let Some(rate) = self.rate else { return Ok(()) };
        let most = f64::from(rate);
        let filled = |bucket: &Bucket| (bucket.left + now.since(bucket.at).micros() as f64 / 1e6 * most).min(most);
        let mut buckets = locked(&self.buckets);
        if buckets.len() >= MOST {
            buckets.retain(|_, bucket| filled(bucket) < most);
        }
        let bucket = buckets.entry(caller.to_owned()).or_insert(Bucket { left: most, at: now });
        let left = filled(bucket);
        *bucket = Bucket { left, at: now };
        if left < 1.0 {
            return Err(Problem::new(Code::RateLimited, format!("More than {rate} requests a second were made.")));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use abide_core::time::Span;

    use super::*;

    #[test]
    fn a_bucket_empties_and_fills_again_and_belongs_to_one_caller() {
        let (rates, now) = (Rates::new(Some(2)), Timestamp::from_micros(1_000_000));
        assert!(rates.take("a", now).is_ok() && rates.take("a", now).is_ok());
        assert!(rates.take("a", now).is_err_and(|problem| problem.is(Code::RateLimited)));
        assert!(rates.take("b", now).is_ok());
        assert!(rates.take("a", now + Span::from_millis(500)).is_ok());
        assert!(rates.take("a", now + Span::from_millis(500)).is_err());
        assert!(Rates::new(None).take("a", now).is_ok());
    }
}
