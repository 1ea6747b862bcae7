//! Sensitive values, recognised wherever they are repeated: inside longer text, and in the encodings that programs use.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::definition::pieces_at;
use crate::expression::replace_scalars;

/// The text that people and programs see instead.
pub const MASKED: &str = "[redacted]";
/// Shorter values would be found by accident: they are hidden where they were given, and nowhere else.
const SHORTEST: usize = 6;
/// Values that are recognised in one run; more than these are hidden where they were given.
const MOST: usize = 1_000;

/// Finds the sensitive values of one run.
#[derive(Clone, Default)]
pub struct Mask {
    values: Vec<String>,
    /// Every writing of a value, with its number; the longest first, so that none hides a part of another.
    writings: Vec<(String, usize)>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mask({} values)", self.values.len())
    }
}

impl Mask {
    pub fn of(values: Vec<String>) -> Mask {
        let mut writings: Vec<(String, usize)> = Vec::new();
        for (n, value) in values.iter().enumerate() {
            writings.extend(writings_of(value).into_iter().map(|writing| (writing, n)));
        }
        writings.sort_by(|(one, _), (other, _)| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        writings.dedup_by(|(one, _), (other, _)| one == other);
        Mask { values, writings }
    }

    /// Reads what a run keeps of its sensitive values: a JSON list of texts, or null.
    pub fn read(json: &str) -> Option<Mask> {
        serde_json::from_str::<Option<Vec<String>>>(json).ok()?.map(Mask::of)
    }

    /// As a run keeps them.
    pub fn to_json(&self) -> String {
        Value::from(self.values.clone()).to_string()
    }

    pub fn is_empty(&self) -> bool {
        self.writings.is_empty()
    }

    fn is_in(&self, text: &str) -> bool {
        self.writings.iter().any(|(writing, _)| text.contains(writing.as_str()))
    }

    fn replaced<'t>(&self, text: &'t str, shown: impl Fn(usize) -> String) -> Cow<'t, str> {
        if !self.is_in(text) {
            return Cow::Borrowed(text);
        }
        let hide = |text: String, (writing, n): &(String, usize)| text.replace(writing.as_str(), &shown(*n));
        Cow::Owned(self.writings.iter().fold(text.to_owned(), hide))
    }

    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.replaced(text, |_| MASKED.to_owned())
    }

    /// An identifier that a later task needs as it was: `reveal` undoes this.
    pub fn id<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.replaced(text, mark)
    }

    /// An identifier as the outside world knows it.
    pub fn reveal<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !text.contains("[redacted:") {
            return Cow::Borrowed(text);
        }
        let values = self.values.iter().enumerate();
        Cow::Owned(values.fold(text.to_owned(), |text, (n, value)| text.replace(&mark(n), value)))
    }

    /// JSON, in which every other byte stays as it is. What is not JSON is text.
    pub fn json<'t>(&self, json: &'t str) -> Cow<'t, str> {
        // An escape can hide a value from a plain search.
        if self.is_empty() || !(json.contains('\\') || self.is_in(json)) {
            return Cow::Borrowed(json);
        }
        if serde_json::from_str::<&RawValue>(json).is_err() {
            return self.text(json);
        }
        Cow::Owned(replace_scalars(json, |token| self.token(token)))
    }

    /// The replacement of a string or a number in which a value is written. None: it stays.
    fn token(&self, token: &str) -> Option<String> {
        let shown = || Value::from(MASKED).to_string();
        if !token.starts_with('"') {
            return self.is_in(token).then(shown);
        }
        match serde_json::from_str::<String>(token) {
            Ok(text) => match self.text(&text) {
                Cow::Borrowed(_) => None,
                Cow::Owned(masked) => Some(Value::from(masked).to_string()),
            },
            // Half of a surrogate pair: not a text that can be written again.
            Err(_) => self.is_in(token).then(shown),
        }
    }

    pub fn value(&self, value: &mut Value) {
        let json = value.to_string();
        if let Cow::Owned(masked) = self.json(&json)
            && let Ok(masked) = serde_json::from_str(&masked)
        {
            *value = masked;
        }
    }
}

fn mark(n: usize) -> String {
    format!("[redacted:{}]", n + 1)
}

/// The values at these JSON pointers that can be recognised: texts and long numbers, also inside lists and objects.
pub fn values_at(json: &str, pointers: &[String]) -> Vec<String> {
    let mut values = Vec::new();
    for piece in pieces_at(json, pointers) {
        replace_scalars(piece, |token| {
            let value = match token.starts_with('"') {
                true => serde_json::from_str(token).unwrap_or_default(),
                false => token.to_owned(),
            };
            if value.chars().count() >= SHORTEST && !values.contains(&value) && values.len() < MOST {
                values.push(value);
            }
            None
        });
    }
    values
}

/// How a value is written where it is repeated.
fn writings_of(value: &str) -> Vec<String> {
    let quoted = Value::from(value).to_string();
    let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut all = vec![
        value.to_owned(),
        value.to_lowercase(),
        value.to_uppercase(),
        quoted[1..quoted.len() - 1].to_owned(),
        percent_encoded(value, true),
        percent_encoded(value, false),
        percent_encoded(value, true).replace("%20", "+"),
        html_escaped(value),
        hex.to_uppercase(),
        hex,
    ];
    for offset in 0..3 {
        let piece = base64_inside(value.as_bytes(), offset);
        all.push(piece.replace('+', "-").replace('/', "_"));
        all.push(piece);
    }
    all.retain(|writing| writing.chars().count() >= SHORTEST);
    all.sort();
    all.dedup();
    all
}

/// As a URL holds a value, with its hexadecimal digits in upper or lower case.
pub fn percent_encoded(value: &str, upper: bool) -> String {
    let encoded = value.bytes().map(|byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if upper => format!("%{byte:02X}"),
        _ => format!("%{byte:02x}"),
    });
    encoded.collect()
}

fn html_escaped(value: &str) -> String {
    let escaped = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&quot;").replace('\'', "&#39;")
}

/// The letters of Base64 that stand for this value alone, where so many bytes stand before it in its group of three.
fn base64_inside(value: &[u8], offset: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| at.checked_sub(offset * 8).and_then(|at| Some(value.get(at / 8)? >> (7 - at % 8) & 1));
    let from = (offset * 8).div_ceil(6);
    let to = (offset + value.len()) * 8 / 6;
    let letter = |group: usize| {
        let bits = (0..6).map(|n| bit(group * 6 + n).unwrap_or(0));
        char::from(LETTERS[usize::from(bits.fold(0, |sum, bit| sum << 1 | bit))])
    };
    (from..to).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: &str = "4111-1111/Ünï \"x\"";

    fn mask() -> Mask {
        Mask::of(vec![CARD.into(), "81726354".into()])
    }

    #[test]
    fn a_value_is_found_in_longer_text_and_in_every_common_encoding() {
        let mask = mask();
        for writing in [
            CARD,
            &CARD.to_uppercase(),
            "4111-1111%2F%C3%9Cn%C3%AF%20%22x%22",
            "4111-1111%2f%c3%9cn%c3%af%20%22x%22",
            "4111-1111/Ünï &quot;x&quot;",
            "343131312d313131312fc39c6ec3af202278 22".replace(' ', "").as_str(),
        ] {
            assert_eq!(mask.text(&format!("charging <{writing}> failed")), "charging <[redacted]> failed");
        }
        assert_eq!(mask.text("nothing of the kind"), "nothing of the kind");
    }

    #[test]
    fn a_value_inside_base64_is_found_wherever_it_begins() {
        // `openssl base64` of `4111-1111`, of `a:4111-1111` and of `ab:4111-1111`.
        let mask = Mask::of(vec!["4111-1111".into()]);
        for text in ["NDExMS0xMTEx", "YTo0MTExLTExMTE=", "YWI6NDExMS0xMTEx"] {
            assert!(mask.text(text).contains(MASKED), "{text}: {}", mask.text(text));
        }
    }

    #[test]
    fn json_keeps_every_other_byte() {
        let mask = mask();
        let json = r#"{ "a" : 1.50,"card":"4111-1111/\u00dcnï \"x\"", "n": 81726354, "m": [1e5, "of 81726354!"] }"#;
        let shown = r#"{ "a" : 1.50,"card":"[redacted]", "n": "[redacted]", "m": [1e5, "of [redacted]!"] }"#;
        assert_eq!(mask.json(json), shown);
        assert_eq!(mask.json(r#"{"a": "half \ud83d"}"#), r#"{"a": "half \ud83d"}"#);
        assert_eq!(mask.json("81726354 is no JSON"), "[redacted] is no JSON");
    }

    #[test]
    fn an_identifier_can_be_revealed_for_a_task() {
        let mask = mask();
        let shown = mask.id("charge-81726354").into_owned();
        assert_eq!(shown, "charge-[redacted:2]");
        assert_eq!(mask.reveal(&shown), "charge-81726354");
        assert_eq!(mask.reveal("[redacted:9]"), "[redacted:9]");
    }

    #[test]
    fn short_values_booleans_and_small_numbers_are_not_recognised() {
        let input = r#"{"card":{"n":"4111-1111","cvv":"123","ok":true,"pin":4711,"id":81726354},"x":"123"}"#;
        assert_eq!(values_at(input, &["/card".into()]), ["4111-1111", "81726354"]);
        assert_eq!(values_at(input, &["/card/n".into(), "/nowhere".into()]), ["4111-1111"]);
        assert!(values_at("no JSON", &["/card".into()]).is_empty());
    }
}
