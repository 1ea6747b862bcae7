//! What people see as time: ages and waits. It decides nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use abide_core::time::Timestamp;

#[expect(clippy::disallowed_methods, reason = "ages are counted from the wall clock of whoever reads them")]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// `3m ago`, `in 2h`, as seen from `now`.
pub fn seen_from(now: Timestamp, at: Timestamp) -> String {
    match at > now {
        true => format!("in {}", rough(at.since(now).millis() / 1000)),
        false => match now.since(at).millis() / 1000 {
            0 => "just now".to_owned(),
            seconds => format!("{} ago", rough(seconds)),
        },
    }
}

/// Two units at most: nobody reads more.
pub fn rough(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) if minutes < 10 && !seconds.is_multiple_of(60) => format!("{minutes}m{}s", seconds % 60),
        (0, 0, _) => format!("{minutes}m"),
        (0, _, 0) => format!("{hours}h"),
        (0, _, _) => format!("{hours}h{minutes}m"),
        (_, 0, _) => format!("{days}d"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units_at_most() {
        let shown: Vec<String> = [0, 59, 60, 95, 3600, 5400, 86_400, 90_000].map(rough).into();
        assert_eq!(shown, ["0s", "59s", "1m", "1m35s", "1h", "1h30m", "1d", "1d1h"]);
    }

    #[test]
    fn what_is_to_come_is_told_from_what_was() {
        let now = Timestamp::from_micros(100_000_000);
        assert_eq!(seen_from(now, Timestamp::from_micros(40_000_000)), "1m ago");
        assert_eq!(seen_from(now, Timestamp::from_micros(130_000_000)), "in 30s");
        assert_eq!(seen_from(now, now), "just now");
    }
}
