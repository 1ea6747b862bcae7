//! How instants, spans and lists are said in a sentence.

use crate::time::{Span, Timestamp};

/// The longest sentence that still fits a line of a list.
pub const LONGEST: usize = 160;
/// How much of somebody else's text fits into ours.
pub const QUOTED: usize = 70;

/// An instant to the second: `2026-02-22T18:57:12Z`.
pub fn instant(at: Timestamp) -> String {
    let text = at.to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// A span as people say it: `2s`, `5m`, `1h30m`, `3d4h`. It is rounded down, so that it is never more than was.
pub fn span(span: Span) -> String {
    let seconds = span.millis() / 1_000;
    let pair = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match seconds {
        0 => "less than 1s".into(),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => pair(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// `2s ago`, or `just now`.
pub fn ago(now: Timestamp, at: Timestamp) -> String {
    match now.since(at) {
        short if short < Span::from_secs(1) => "just now".into(),
        long => format!("{} ago", span(long)),
    }
}

/// Somebody else's text on one line, cut where it gets long, without its last full stop.
pub fn quote(text: &str, longest: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.trim_end_matches('.');
    if line.chars().count() <= longest {
        return line.to_owned();
    }
    let cut: String = line.chars().take(longest.saturating_sub(1)).collect();
    format!("{}…", cut.trim_end())
}

/// `a`, `a or b`, `a, b or c`; with many, how many more.
pub fn one_of(names: &[String]) -> String {
    join(names, "or")
}

/// `a`, `a and b`, `a, b and c`; with many, how many more.
pub fn all_of(names: &[String]) -> String {
    join(names, "and")
}

fn join(names: &[String], word: &str) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first, second] => format!("{first} {word} {second}"),
        [first, second, third] => format!("{first}, {second} {word} {third}"),
        [first, second, rest @ ..] => format!("{first}, {second} {word} {} more", rest.len()),
    }
}

/// `1 step`, `3 steps`.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// The sentence as the rest of another one.
pub fn continued(sentence: &str) -> String {
    let mut letters = sentence.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Keeps a sentence to its longest. What was cut inside it needs no full stop after it.
pub fn fit(sentence: String) -> String {
    let sentence = sentence.replace("….", "…");
    if sentence.chars().count() <= LONGEST {
        return sentence;
    }
    let cut: String = sentence.chars().take(LONGEST - 1).collect();
    format!("{}…", cut.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_said_in_the_units_people_use() {
        let said: Vec<String> = [0, 2, 59, 300, 301, 5_400, 100_000].map(|s| span(Span::from_secs(s))).into();
        assert_eq!(said, ["less than 1s", "2s", "59s", "5m", "5m", "1h30m", "1d3h"]);
    }

    #[test]
    fn a_long_text_of_somebody_else_is_cut_and_stays_on_one_line() {
        assert_eq!(quote("one\ntwo  three.", 20), "one two three");
        assert_eq!(quote("ääääääää", 4), "äää…");
    }

    #[test]
    fn many_names_are_counted() {
        let names: Vec<String> = ["a", "b", "c", "d"].map(String::from).into();
        assert_eq!(one_of(&names[..3]), "a, b or c");
        assert_eq!(one_of(&names), "a, b or 2 more");
        assert_eq!(all_of(&names[..2]), "a and b");
    }
}
