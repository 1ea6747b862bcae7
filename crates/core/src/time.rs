//! Instants and spans: integers in UTC, because stores, hashes and tests compare them bit by bit.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant: microseconds since 1970 in UTC. It is written as RFC 3339 with microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// A span of time in microseconds, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// The last instant that RFC 3339 can write (9999-12-30T22:00:00Z as `jiff` counts it).
const LATEST_MICROS: i64 = 253_402_207_200_000_000;
const EARLIEST_MICROS: i64 = -62_135_596_800_000_000;

impl Timestamp {
    /// Clamped to what RFC 3339 can write, so that no arithmetic on deadlines can overflow or become unprintable.
    pub const fn from_micros(micros: i64) -> Timestamp {
        Timestamp(if micros > LATEST_MICROS {
            LATEST_MICROS
        } else if micros < EARLIEST_MICROS {
            EARLIEST_MICROS
        } else {
            micros
        })
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339 with a zone, as `2026-11-16T02:38:00Z` or `2026-11-16T03:38:00+01:00`.
    pub fn parse(text: &str) -> Option<Timestamp> {
        text.parse::<jiff::Timestamp>().ok().map(|at| Timestamp::from_micros(at.as_microsecond()))
    }

    /// How long ago `earlier` was; nothing when it is still to come.
    pub fn since(self, earlier: Timestamp) -> Span {
        Span(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Span {
    pub const ZERO: Span = Span(0);

    pub const fn from_micros(micros: u64) -> Span {
        Span(micros)
    }

    pub const fn from_millis(millis: u64) -> Span {
        Span(millis.saturating_mul(1_000))
    }

    pub const fn from_secs(secs: u64) -> Span {
        Span::from_millis(secs.saturating_mul(1_000))
    }

    pub const fn micros(self) -> u64 {
        self.0
    }

    pub const fn millis(self) -> u64 {
        self.0 / 1_000
    }

    /// This span times a finite, non-negative factor.
    pub fn scaled(self, factor: f64) -> Span {
        Span((self.0 as f64 * factor.max(0.0)) as u64)
    }
}

impl Add<Span> for Timestamp {
    type Output = Timestamp;
    fn add(self, span: Span) -> Timestamp {
        Timestamp::from_micros(self.0.saturating_add(i64::try_from(span.0).unwrap_or(i64::MAX)))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Timestamp;
    fn sub(self, span: Span) -> Timestamp {
        Timestamp::from_micros(self.0.saturating_sub(i64::try_from(span.0).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(at) => write!(f, "{at:.6}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.digits() {
            Some(text) => serializer.serialize_str(std::str::from_utf8(&text).unwrap_or_default()),
            None => serializer.collect_str(self),
        }
    }
}

impl Timestamp {
    /// As `Display` writes it, for the years people use: events are full of instants, and this is much quicker.
    fn digits(self) -> Option<[u8; 27]> {
        let at = jiff::Timestamp::from_microsecond(self.0).ok()?;
        let utc = jiff::tz::Offset::UTC.to_datetime(at);
        let year = u32::try_from(utc.year()).ok()?;
        let [month, day, hour, minute, second] =
            [utc.month(), utc.day(), utc.hour(), utc.minute(), utc.second()].map(|part| part.unsigned_abs().into());
        let micros = u32::try_from(self.0.rem_euclid(1_000_000)).ok()?;
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        let mut put = |end: usize, mut number: u32| {
            let mut place = end;
            while number > 0 {
                place -= 1;
                text[place] = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        for (end, number) in [(4, year), (7, month), (10, day), (13, hour), (16, minute), (19, second), (26, micros)] {
            put(end, number);
        }
        Some(text)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = String::deserialize(deserializer)?;
        Timestamp::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not an RFC 3339 time with a zone")))
    }
}

/// People read spans in the largest units that are exact enough: `1h30m`, `45s`, `250ms`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] =
            [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
        let mut rest = self.0;
        let mut written = 0;
        for (size, unit) in UNITS {
            let count = rest / size;
            if count > 0 && written < 2 {
                write!(f, "{count}{unit}")?;
                written += 1;
                rest %= size;
            }
        }
        if written == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Spans travel as whole microseconds: exact, and cheap to compare.
impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        u64::deserialize(deserializer).map(Span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_with_microseconds_and_read_back() {
        let at = Timestamp::from_micros(1_780_000_000_123_456);
        assert_eq!(at.to_string(), "2026-05-28T20:26:40.123456Z");
        assert_eq!(Timestamp::parse(&at.to_string()), Some(at));
        assert_eq!(Timestamp::parse("2026-05-28T20:26:40"), None, "a time without a zone is refused");
    }

    #[test]
    fn an_instant_is_stored_as_it_is_shown() {
        let instants =
            [0, 1, 999_999, 1_780_000_000_123_456, 253_402_200_000_000_000, -1, -62_000_000_000_000_000, i64::MIN];
        for at in instants.map(Timestamp::from_micros) {
            assert_eq!(serde_json::to_string(&at).ok(), Some(format!("\"{at}\"")));
        }
    }

    #[test]
    fn arithmetic_at_the_edges_of_time_stays_printable() {
        let late = Timestamp::from_micros(i64::MAX) + Span::from_micros(u64::MAX);
        assert_eq!(Timestamp::parse(&late.to_string()), Some(late));
        let early = Timestamp::from_micros(i64::MIN) - Span::from_micros(u64::MAX);
        assert_eq!(Timestamp::parse(&early.to_string()), Some(early));
    }

    #[test]
    fn a_span_reads_as_people_say_it() {
        assert_eq!(Span::from_secs(5_400).to_string(), "1h30m");
        assert_eq!(Span::from_millis(250).to_string(), "250ms");
        assert_eq!(Span::ZERO.to_string(), "0s");
    }
}
