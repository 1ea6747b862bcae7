//! Reading JSON text without building it: values are found by skipping, so that stored bytes can be passed on unchanged.
//!
//! Nothing here recurses or trusts its input: text that is not JSON gives `None` or a wrong slice, never a panic.

use std::borrow::Cow;

/// One step into a JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Name(String),
    Index(usize),
}

impl From<&str> for Key {
    fn from(name: &str) -> Key {
        Key::Name(name.to_owned())
    }
}

impl From<usize> for Key {
    fn from(index: usize) -> Key {
        Key::Index(index)
    }
}

/// The text of the value that `keys` lead to, exactly as written. Of a repeated key the last one counts.
pub fn slice<'a>(json: &'a str, keys: &[Key]) -> Option<&'a str> {
    keys.iter().try_fold(json, |container, key| child(container, key)).and_then(value)
}

/// The texts of a JSON list's items, exactly as written.
pub fn split_list(json: &str) -> Option<Vec<&str>> {
    let mut items = Vec::new();
    let mut scan = Scan::open(json, b'[')?;
    while let Some(item) = scan.next_value() {
        items.push(item?);
    }
    scan.ended_well.then_some(items)
}

/// The members of a JSON object, exactly as written: each key with its quotes, and the text of its value.
pub fn split_object(json: &str) -> Option<Vec<(&str, &str)>> {
    members(json).map(Iterator::collect)
}

/// The same JSON with some of its strings (keys among them), numbers and words replaced; all else stays as written.
pub fn replace_scalars(json: &str, mut replacement: impl FnMut(&str) -> Option<String>) -> String {
    let bytes = json.as_bytes();
    let (mut out, mut at, mut copied) = (String::with_capacity(json.len()), 0, 0);
    while let Some(&byte) = bytes.get(at) {
        if is_space(byte) || matches!(byte, b'{' | b'}' | b'[' | b']' | b',' | b':') {
            at += 1;
            continue;
        }
        let end = value_end(bytes, at).unwrap_or(bytes.len());
        if let Some(new) = json.get(at..end).and_then(&mut replacement) {
            out.push_str(json.get(copied..at).unwrap_or_default());
            out.push_str(&new);
            copied = end;
        }
        at = end;
    }
    out.push_str(json.get(copied..).unwrap_or_default());
    out
}

/// The text of a JSON string, for people and searches: half of a surrogate pair, which is no character, becomes U+FFFD.
pub fn readable_text(quoted: &str) -> Option<Cow<'_, str>> {
    decode(quoted).or_else(|| decode(&without_lone_surrogates(quoted)).map(|text| Cow::Owned(text.into_owned())))
}

fn without_lone_surrogates(quoted: &str) -> String {
    let unit = |at: usize| {
        let hex = quoted.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(hex, 16).ok()
    };
    let (mut out, mut at) = (String::with_capacity(quoted.len()), 0);
    while let Some(rest) = quoted.get(at..).filter(|rest| !rest.is_empty()) {
        let length = match (unit(at), unit(at + 6)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
            (Some(0xd800..0xe000), _) => {
                out.push_str("\\ufffd");
                at += 6;
                continue;
            }
            (Some(_), _) => 6,
            (None, _) if rest.starts_with('\\') => 2,
            (None, _) => rest.chars().next().map_or(1, char::len_utf8),
        };
        out.push_str(quoted.get(at..at + length).unwrap_or(rest));
        at += length;
    }
    out
}

/// The first number in a JSON text that neither an integer of 64 bits nor a double can stand for.
pub(super) fn first_inexact_number(json: &str) -> Option<&str> {
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at = match byte {
            b'"' => string_end(bytes, at)?,
            b'-' | b'0'..=b'9' => {
                let end = value_end(bytes, at)?;
                let number = json.get(at..end)?;
                if !is_exact(number) {
                    return Some(number);
                }
                end
            }
            _ => at + 1,
        };
    }
    None
}

/// An integer is kept as it is; a fraction or a power of ten is the nearest double, unless it is lost in zero or infinity.
fn is_exact(number: &str) -> bool {
    if !number.contains(['.', 'e', 'E']) {
        return number.parse::<i64>().is_ok();
    }
    let mantissa = number.split(['e', 'E']).next().unwrap_or(number);
    let is_zero = !mantissa.contains(|digit| matches!(digit, '1'..='9'));
    number.parse::<f64>().is_ok_and(|double| double.is_finite() && (is_zero || double != 0.0))
}

/// The text of the value one step below `container`.
pub(super) fn child<'a>(container: &'a str, key: &Key) -> Option<&'a str> {
    match key {
        Key::Name(name) => {
            members(container)?.filter(|(quoted, _)| is_key(quoted, name)).last().map(|(_, value)| value)
        }
        Key::Index(index) => {
            let mut scan = Scan::open(container, b'[')?;
            (0..*index).try_for_each(|_| scan.next_value()?.map(|_| ()))?;
            scan.next_value()?
        }
    }
}

/// The first keys of a JSON object, each shortened to what a message can show.
pub(super) fn first_keys(json: &str, limit: usize) -> Vec<String> {
    let keys = members(json).into_iter().flatten().filter_map(|(quoted, _)| decode(quoted));
    keys.take(limit).map(|key| key.chars().take(64).collect()).collect()
}

/// The type of a JSON text, as expressions name it.
pub(super) fn type_name(json: &str) -> &'static str {
    match json.trim_start().as_bytes().first() {
        Some(b'{') => "map",
        Some(b'[') => "list",
        Some(b'"') => "string",
        Some(b't' | b'f') => "bool",
        Some(b'n') => "null",
        _ => "number",
    }
}

/// The text of a JSON string, without quotes and escapes.
pub(super) fn decode(quoted: &str) -> Option<Cow<'_, str>> {
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') { serde_json::from_str(quoted).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(inner)) }
}

/// The same JSON without the space between tokens; numbers and strings stay as written.
pub(super) fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut at = 0;
    while let Some(&byte) = json.as_bytes().get(at) {
        let from = at;
        at = if byte == b'"' { string_end(json.as_bytes(), at).unwrap_or(json.len()) } else { at + 1 };
        if !is_space(byte) {
            // Outside strings JSON is ASCII; where it is not, the text was not JSON and the character is dropped.
            out.push_str(json.get(from..at).unwrap_or(""));
        }
    }
    out
}

/// Appends `text` as a JSON string.
pub(super) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    let mut plain_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escaped = match byte {
            b'"' => Some("\\\""),
            b'\\' => Some("\\\\"),
            b'\n' => Some("\\n"),
            b'\r' => Some("\\r"),
            b'\t' => Some("\\t"),
            0..0x20 => None,
            _ => continue,
        };
        out.push_str(&text[plain_from..at]);
        match escaped {
            Some(escape) => out.push_str(escape),
            None => out.push_str(&format!("\\u{byte:04x}")),
        }
        plain_from = at + 1;
    }
    out.push_str(&text[plain_from..]);
    out.push('"');
}

/// Whether lists and maps stand more than `limit` deep in each other.
pub fn is_deeper_than(json: &str, limit: usize) -> bool {
    let bytes = json.as_bytes();
    let (mut at, mut depth) = (0, 0usize);
    while let Some(&byte) = bytes.get(at) {
        at = if byte == b'"' { string_end(bytes, at).unwrap_or(bytes.len()) } else { at + 1 };
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limit {
            return true;
        }
    }
    false
}

/// The value a text begins with, without the space around it.
fn value(json: &str) -> Option<&str> {
    let from = space_end(json.as_bytes(), 0);
    json.get(from..value_end(json.as_bytes(), from)?)
}

/// The members of a JSON object: the key with its quotes, and the value's text.
fn members(json: &str) -> Option<impl Iterator<Item = (&str, &str)>> {
    let mut scan = Scan::open(json, b'{')?;
    Some(std::iter::from_fn(move || {
        let key = scan.next_value()??;
        scan.colon()?;
        Some((key, scan.value()?))
    }))
}

fn is_key(quoted: &str, name: &str) -> bool {
    decode(quoted).is_some_and(|key| key == name)
}

/// A walk over the values directly inside one list or object.
struct Scan<'a> {
    json: &'a str,
    at: usize,
    close: u8,
    first: bool,
    /// Set when the closing bracket was reached.
    ended_well: bool,
}

impl<'a> Scan<'a> {
    fn open(json: &'a str, bracket: u8) -> Option<Scan<'a>> {
        let at = space_end(json.as_bytes(), 0);
        let close = bracket + 2;
        (json.as_bytes().get(at) == Some(&bracket)).then(|| Scan {
            json,
            at: at + 1,
            close,
            first: true,
            ended_well: false,
        })
    }

    /// `None` at the closing bracket, `Some(None)` where the text is not JSON.
    fn next_value(&mut self) -> Option<Option<&'a str>> {
        let bytes = self.json.as_bytes();
        self.at = space_end(bytes, self.at);
        match bytes.get(self.at) {
            Some(&byte) if byte == self.close => {
                self.ended_well = true;
                return None;
            }
            Some(b',') if !self.first => self.at += 1,
            Some(_) if self.first => {}
            _ => return Some(None),
        }
        self.first = false;
        Some(self.value())
    }

    fn value(&mut self) -> Option<&'a str> {
        let from = space_end(self.json.as_bytes(), self.at);
        let to = value_end(self.json.as_bytes(), from)?;
        self.at = to;
        self.json.get(from..to)
    }

    fn colon(&mut self) -> Option<()> {
        self.at = space_end(self.json.as_bytes(), self.at);
        (self.json.as_bytes().get(self.at) == Some(&b':')).then(|| self.at += 1)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn space_end(bytes: &[u8], from: usize) -> usize {
    let space = bytes.get(from..).unwrap_or(&[]);
    from + space.iter().take_while(|byte| is_space(**byte)).count()
}

/// Where the value that begins at `from` ends.
fn value_end(bytes: &[u8], from: usize) -> Option<usize> {
    match bytes.get(from)? {
        b'"' => string_end(bytes, from),
        b'{' | b'[' => bracket_end(bytes, from),
        b',' | b':' | b'}' | b']' => None,
        _ => Some(bytes[from..].iter().position(|byte| ends_scalar(*byte)).map_or(bytes.len(), |length| from + length)),
    }
}

fn ends_scalar(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b':' | b'}' | b']' | b'"' | b'{' | b'[')
}

fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Counts brackets of both kinds alike: stored texts were checked when they came in, and a wrong slice harms nobody.
fn bracket_end(bytes: &[u8], from: usize) -> Option<usize> {
    let (mut at, mut depth) = (from, 0usize);
    loop {
        at += bytes.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))?;
        match bytes[at] {
            b'"' => {
                at = string_end(bytes, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            _ => depth -= 1,
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_surrogate_pair_is_read_as_a_replacement_character() {
        let rows = [
            (r#""plain""#, "plain"),
            (r#""half \ud83d""#, "half \u{fffd}"),
            (r#""\udc00 and \ud83d\ude00""#, "\u{fffd} and \u{1f600}"),
            (r#""\\ud83d \ud83d\n""#, "\\ud83d \u{fffd}\n"),
        ];
        for (json, text) in rows {
            assert_eq!(readable_text(json).as_deref(), Some(text), "{json}");
        }
    }

    #[test]
    fn replacing_a_scalar_leaves_all_else_as_it_is_written() {
        let json = " { \"a\" : [1.50 , \"x\"],\"b\":1e400}\n";
        assert_eq!(replace_scalars(json, |_| None), json);
        let replaced = replace_scalars(json, |scalar| (scalar == "\"x\"").then(|| "\"y\"".to_owned()));
        assert_eq!(replaced, json.replace("\"x\"", "\"y\""));
    }
}
