//! Values that only tasks may see: where they go, and how they are hidden everywhere else.

use serde_json::value::RawValue;

use crate::expression::{Expression, Template};

use super::model::{Action, Definition, StepDef};
use super::scope::source_paths;
use super::yaml::push_segment;

const REDACTED: &str = "\"[redacted]\"";
/// Nothing deeper is looked into: it is hidden as a whole.
const DEEPEST: usize = 64;

/// One key of a path into the run's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment<'k> {
    Name(&'k str),
    /// Any item of a list.
    Any,
}

/// How a path that is read lies to a sensitive pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It has nothing to do with it.
    Apart,
    /// It is the sensitive value, or lies inside it.
    Within,
    /// It holds the sensitive value, at this pointer.
    Holds(String),
}

/// Both are looked at as far as the shorter one goes.
pub(super) fn reach(path: &[Segment<'_>], pointer: &str) -> Reach {
    let mut segments = pointer.split('/').skip(1);
    for segment in path {
        match (segment, segments.next()) {
            (_, None) => return Reach::Within,
            (Segment::Any, Some(_)) => {}
            (Segment::Name(name), Some(written)) if *name == written && !written.contains('~') => {}
            (Segment::Name(name), Some(written)) if written.contains('~') && *name == unescaped(written) => {}
            (Segment::Name(_), Some(_)) => return Reach::Apart,
        }
    }
    let rest: String = segments.map(|segment| format!("/{segment}")).collect();
    if rest.is_empty() { Reach::Within } else { Reach::Holds(rest) }
}

impl Definition {
    /// JSON pointers into a step's own input whose values are sensitive. The input of a task or a child is its
    /// `with` (or the run's input), that of a push is `{url, headers, body}`, that of an approval its subject.
    pub fn sensitive_inputs(&self, step: usize) -> Vec<String> {
        let Some(step) = self.steps().get(step).filter(|_| !self.sensitive.is_empty()) else { return Vec::new() };
        let mut found = match &step.action {
            Action::Task { with: None, .. } | Action::Child { with: None, .. } => self.sensitive.clone(),
            Action::Task { with: Some(with), .. } | Action::Child { with: Some(with), .. } => {
                self.sensitive_in(step, with, "")
            }
            Action::Http(http) => {
                let mut found = self.sensitive_in(step, &http.url, "/url");
                for (name, value) in &http.headers {
                    let mut under = String::from("/headers");
                    push_segment(&mut under, name);
                    found.extend(self.sensitive_in(step, value, &under));
                }
                found.extend(http.body.iter().flat_map(|body| self.sensitive_in(step, body, "/body")));
                found
            }
            Action::Approval(approval) if approval.subject.is_none() => self.sensitive.clone(),
            Action::Approval(_) | Action::JoinChild { .. } | Action::Sleep(_) | Action::Signal(_) => Vec::new(),
        };
        found.sort();
        found.dedup();
        found
    }

    fn sensitive_in(&self, step: &StepDef, template: &Template, under: &str) -> Vec<String> {
        let each = |(at, expression): (&str, &Expression)| self.sensitive_at(step, expression, &format!("{under}{at}"));
        template.references().flat_map(each).collect()
    }

    /// What of the value at `at` is sensitive: a path is copied whole, so that the rest of it stays readable.
    fn sensitive_at(&self, step: &StepDef, expression: &Expression, at: &str) -> Vec<String> {
        let mut found = Vec::new();
        for reference in expression.references() {
            let copied = expression.is_path() && is_copied(step, &reference.keys);
            for path in source_paths(Some(step), &reference.keys) {
                found.extend(self.sensitive.iter().filter_map(|pointer| match reach(&path, pointer) {
                    Reach::Apart => None,
                    Reach::Holds(rest) if copied => Some(format!("{at}{rest}")),
                    Reach::Within | Reach::Holds(_) => Some(at.to_owned()),
                }));
            }
        }
        found
    }
}

/// Whether a reference gives a part of the input as it is, also when it goes through an item.
fn is_copied(step: &StepDef, keys: &[String]) -> bool {
    let name = keys.first().map(String::as_str);
    name == Some("input") || step.for_each.as_ref().is_some_and(|each| each.list.is_path())
}

/// Replaces the values at these JSON pointers by `"[redacted]"` and leaves every other byte as it is. A text on the
/// way to a pointer is replaced too, since the value may be written into it. What is not JSON is hidden as a whole.
pub fn redact(json: &str, pointers: &[String]) -> String {
    if pointers.is_empty() {
        return json.to_owned();
    }
    if serde_json::from_str::<&RawValue>(json).is_err() {
        return REDACTED.to_owned();
    }
    let pointers: Vec<Vec<String>> =
        pointers.iter().map(|pointer| pointer.split('/').skip(1).map(unescaped).collect()).collect();
    let open: Vec<&[String]> = pointers.iter().map(Vec::as_slice).collect();
    let mut copy = Copy { json, at: 0, out: String::with_capacity(json.len()) };
    copy.value(&open, 0);
    copy.out.push_str(&json[copy.at..]);
    copy.out
}

/// The values at these JSON pointers, as they are written. What is not there is left out.
pub fn pieces_at<'j>(json: &'j str, pointers: &[String]) -> Vec<&'j str> {
    let keys = |pointer: &String| -> Vec<String> { pointer.split('/').skip(1).map(unescaped).collect() };
    pointers.iter().filter_map(|pointer| piece_at(json, &keys(pointer))).collect()
}

/// A key of digits is the place in a list, or a name.
fn piece_at<'j>(json: &'j str, keys: &[String]) -> Option<&'j str> {
    use crate::expression::{Key, slice};
    keys.iter().try_fold(json, |container, key| {
        let named = slice(container, &[Key::Name(key.clone())]);
        named.or_else(|| slice(container, &[Key::Index(key.parse().ok()?)]))
    })
}

/// Copies JSON that is known to be well formed.
struct Copy<'j> {
    json: &'j str,
    at: usize,
    out: String,
}

impl<'j> Copy<'j> {
    /// Copies one value, hiding what the pointers name.
    fn value(&mut self, pointers: &[&[String]], depth: usize) {
        self.copy_space();
        let first = self.peek();
        let hidden = pointers.iter().any(|rest| rest.is_empty()) || depth > DEEPEST || first == b'"';
        match first {
            _ if pointers.is_empty() => self.copy_skipped(),
            _ if hidden => {
                self.skip();
                self.out.push_str(REDACTED);
            }
            b'{' => self.object(pointers, depth),
            b'[' => self.list(pointers, depth),
            _ => self.copy_skipped(),
        }
    }

    fn object(&mut self, pointers: &[&[String]], depth: usize) {
        self.copy_byte();
        loop {
            self.copy_space();
            match self.peek() {
                b'"' => {
                    let key = self.skip();
                    self.out.push_str(key);
                    let name = serde_json::from_str::<String>(key).unwrap_or_default();
                    self.copy_space();
                    self.copy_byte();
                    self.value(&below(pointers, &name), depth + 1);
                }
                b',' => self.copy_byte(),
                _ => return self.copy_byte(),
            }
        }
    }

    fn list(&mut self, pointers: &[&[String]], depth: usize) {
        self.copy_byte();
        let mut index = 0;
        loop {
            self.copy_space();
            match self.peek() {
                b']' | 0 => return self.copy_byte(),
                b',' => self.copy_byte(),
                _ => {
                    self.value(&below(pointers, &index.to_string()), depth + 1);
                    index += 1;
                }
            }
        }
    }

    fn copy_space(&mut self) {
        let rest = &self.json[self.at..];
        let space = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        self.out.push_str(&rest[..space]);
        self.at += space;
    }

    fn copy_byte(&mut self) {
        let next = self.json[self.at..].chars().next();
        self.out.extend(next);
        self.at += next.map_or(0, char::len_utf8);
    }

    fn copy_skipped(&mut self) {
        let value = self.skip();
        self.out.push_str(value);
    }

    /// The end of the string; 0.
    fn peek(&self) -> u8 {
        self.json.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    /// Passes over one value, however deep it is.
    fn skip(&mut self) -> &'j str {
        let start = self.at;
        let bytes = self.json.as_bytes();
        let mut depth = 0usize;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' => self.at = string_end(bytes, self.at),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth == 0 => break,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => break,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            if depth == 0 {
                break;
            }
        }
        &self.json[start..self.at]
    }
}

/// The byte after a string that starts here.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// What is left of the pointers that go through this key.
fn below<'p>(pointers: &[&'p [String]], key: &str) -> Vec<&'p [String]> {
    pointers
        .iter()
        .filter_map(|rest| rest.split_first())
        .filter(|(first, _)| *first == key)
        .map(|(_, rest)| rest)
        .collect()
}

fn unescaped(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
}
