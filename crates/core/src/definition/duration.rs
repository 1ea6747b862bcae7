//! Durations as people write them: `1h30m`, or ISO 8601.

use crate::time::Span;

/// Nothing that is declared lasts longer; further away every instant would be clamped.
const LONGEST_MICROS: u64 = 36_525 * DAY;

const MILLISECOND: u64 = 1_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const ALLOWED: &str = "write it as `500ms`, `30s`, `1h30m`, `7d` or in ISO 8601 as `PT1H30M`, `P7D`";

/// Units with their sizes, largest first: in this order they may follow each other.
const SHORT: &[(&str, u64)] =
    &[("w", 7 * DAY), ("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND)];
const ISO_DATE: &[(&str, u64)] = &[("W", 7 * DAY), ("D", DAY)];
const ISO_TIME: &[(&str, u64)] = &[("H", HOUR), ("M", MINUTE), ("S", SECOND)];

/// Reads `500ms`, `30s`, `1h30m`, `7d`, `PT1H30M` or `P7D`. `0s` is a duration; a bare number is not.
pub fn parse_duration(text: &str) -> Result<Span, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("a duration is missing; {ALLOWED}"));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("`{}` has no unit; did you mean `{0}s` or `{0}ms`?", clipped(text)));
    }
    let micros = match text.strip_prefix('P') {
        Some(iso) => iso_micros(iso),
        None => parts(text, SHORT),
    };
    match micros {
        Some(micros) if micros <= LONGEST_MICROS => Ok(Span::from_micros(micros)),
        Some(_) => Err(format!("`{}` is longer than 100 years", clipped(text))),
        None => Err(format!("`{}` is not a duration; {ALLOWED}", clipped(text))),
    }
}

/// What stands after the `P`. Years and months have no fixed length and are refused.
fn iso_micros(text: &str) -> Option<u64> {
    let (date, time) = match text.split_once('T') {
        Some((_, "")) => return None,
        Some((date, time)) => (date, time),
        None => (text, ""),
    };
    if date.is_empty() && time.is_empty() {
        return None;
    }
    let of = |part: &str, units| if part.is_empty() { Some(0) } else { parts(part, units) };
    Some(of(date, ISO_DATE)?.saturating_add(of(time, ISO_TIME)?))
}

/// Numbers with units, each unit at most once and from the largest down. Too much saturates.
fn parts(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let mut rest = text;
    let mut units = units;
    let mut sum = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (amount, after) = rest.split_at(digits);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let place = units.iter().position(|(name, _)| *name == unit)?;
        sum = sum.saturating_add(scaled(amount, units[place].1)?);
        units = &units[place + 1..];
        rest = after;
    }
    Some(sum)
}

/// `1.5` of a unit, to the microsecond.
fn scaled(amount: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole = whole.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(unit);
    let mut part = 0;
    let mut size = unit;
    for digit in fraction.bytes() {
        size /= 10;
        part += u64::from(digit - b'0') * size;
    }
    Some(whole.saturating_add(part))
}

fn clipped(text: &str) -> String {
    super::yaml::clip(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, micros) in [
            ("500ms", 500 * MILLISECOND),
            ("30s", 30 * SECOND),
            ("1h30m", 90 * MINUTE),
            ("7d", 7 * DAY),
            ("2w", 14 * DAY),
            ("1d2h3m4s5ms", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5 * MILLISECOND),
            ("1.5h", 90 * MINUTE),
            ("0.25s", 250 * MILLISECOND),
            ("PT1H30M", 90 * MINUTE),
            ("P7D", 7 * DAY),
            ("P1DT12H", 36 * HOUR),
            ("PT0.5S", 500 * MILLISECOND),
            ("P2W", 14 * DAY),
            (" 10m ", 10 * MINUTE),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Span::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_a_hint() {
        for (text, hint) in [
            ("30", "did you mean `30s`"),
            ("1.5", "has no unit"),
            ("", "missing"),
            ("soon", "not a duration"),
            ("30 s", "not a duration"),
            ("1m1h", "not a duration"),
            ("1h1h", "not a duration"),
            ("-5s", "not a duration"),
            ("P", "not a duration"),
            ("PT", "not a duration"),
            ("P1DT", "not a duration"),
            ("P1M", "not a duration"),
            ("P1Y", "not a duration"),
            ("1.2.3s", "not a duration"),
            (".5s", "not a duration"),
            ("5.s", "not a duration"),
            ("٣s", "not a duration"),
            ("99999999999999999999d", "longer than 100 years"),
            ("36526d", "longer than 100 years"),
            ("18446744073709551615ms", "longer than 100 years"),
        ] {
            let refusal = parse_duration(text).unwrap_err();
            assert!(refusal.contains(hint), "{text}: {refusal}");
        }
    }
}
