//! Walks a document by hand and collects every fault, where a derived reader would stop at the first.

use std::ops::{Bound, RangeBounds, RangeInclusive};

use serde_json::Value;

use crate::expression::{CompileError, Expression, Template};
use crate::time::Span;

use super::duration::parse_duration;
use super::fault::{Fault, FaultCode, MOST_FAULTS};
use super::graph::{JoinUse, JumpUse};
use super::marks;
use super::schema::{MOST_NODES, Schema, SchemaError};
use super::scope::{Place, Use};
use super::yaml::{At, Content, Key, Node, clip, push_segment};

/// Patterns in all expressions of a document.
const MOST_PATTERNS: usize = 200;

/// A place in the document, to be named by a fault.
#[derive(Clone, Debug, Default)]
pub(super) struct Where {
    pub(super) at: At,
    pub(super) path: String,
}

/// A node together with its path.
#[derive(Clone, Debug)]
pub(super) struct Spot<'n> {
    pub(super) node: &'n Node,
    pub(super) path: String,
}

impl<'n> Spot<'n> {
    pub(super) fn root(node: &'n Node) -> Spot<'n> {
        Spot { node, path: String::new() }
    }

    pub(super) fn place(&self) -> Where {
        Where { at: self.node.at, path: self.path.clone() }
    }

    fn below(&self, segment: &str, node: &'n Node) -> Spot<'n> {
        let mut path = self.path.clone();
        push_segment(&mut path, segment);
        Spot { node, path }
    }

    /// The place of what a JSON pointer from here names.
    fn inside(&self, pointer: &str) -> Where {
        Where { at: self.node.nearest(pointer).at, path: format!("{}{pointer}", self.path) }
    }

    pub(super) fn as_text(&self) -> Option<&'n str> {
        if let Content::Text(text) = &self.node.content { Some(text) } else { None }
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.node.content, Content::Map(_))
    }
}

/// Collects what is wrong, what is odd, and every use of an expression with the place that it stands in.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<Fault>,
    pub(super) uses: Vec<Use>,
    pub(super) jumps: Vec<JumpUse>,
    pub(super) joins: Vec<JoinUse>,
    /// Patterns in the expressions so far.
    patterns: usize,
    /// JSON values in the schemas so far, with references followed.
    schema_nodes: usize,
    /// The document was accepted before: limits on its cost that came later do not refuse it.
    is_stored: bool,
    /// The step being read; expressions are noted as its.
    pub(super) step: Option<usize>,
}

impl Reader {
    /// A reader for a tree that was read with these faults.
    pub(super) fn after(faults: Vec<Fault>, is_stored: bool) -> Reader {
        Reader { faults, is_stored, ..Reader::default() }
    }

    pub(super) fn fault(&mut self, code: FaultCode, place: &Where, message: impl Into<String>) {
        self.faults.push(fault(code, place, message.into(), None));
    }

    pub(super) fn fault_with_hint(
        &mut self,
        code: FaultCode,
        place: &Where,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.faults.push(fault(code, place, message.into(), Some(hint.into())));
    }

    pub(super) fn warn(&mut self, code: FaultCode, place: &Where, message: impl Into<String>, hint: impl Into<String>) {
        self.warnings.push(fault(code, place, message.into(), Some(hint.into())));
    }

    /// Whether more faults are known than will be told, so that nothing costly needs to be done for another.
    pub(super) fn is_full(&self) -> bool {
        self.faults.len() >= MOST_FAULTS
    }

    fn wrong_type(&mut self, spot: &Spot<'_>, wanted: &str) {
        let message = format!("this is {}, where {wanted} is expected", spot.node.kind());
        self.fault(FaultCode::WrongType, &spot.place(), message);
    }

    pub(super) fn map<'n>(&mut self, spot: &Spot<'n>) -> Option<Fields<'n>> {
        if let Content::Map(entries) = &spot.node.content {
            return Some(Fields { spot: spot.clone(), entries, known: Vec::new(), unlisted: Vec::new() });
        }
        self.wrong_type(spot, "a mapping");
        None
    }

    pub(super) fn list<'n>(&mut self, spot: &Spot<'n>) -> Vec<Spot<'n>> {
        if let Content::List(items) = &spot.node.content {
            return items.iter().enumerate().map(|(n, item)| spot.below(&n.to_string(), item)).collect();
        }
        self.wrong_type(spot, "a list");
        Vec::new()
    }

    /// Any mapping, entry by entry.
    pub(super) fn entries<'n>(&mut self, spot: &Spot<'n>) -> Vec<(&'n Key, Spot<'n>)> {
        if let Content::Map(entries) = &spot.node.content {
            return entries.iter().map(|(key, value)| (key, spot.below(&key.text, value))).collect();
        }
        self.wrong_type(spot, "a mapping");
        Vec::new()
    }

    pub(super) fn text<'n>(&mut self, spot: &Spot<'n>) -> Option<&'n str> {
        let text = spot.as_text();
        match text {
            None => self.wrong_type(spot, "text"),
            Some("") => self.fault(FaultCode::BadValue, &spot.place(), "this is empty"),
            Some(_) => return text,
        }
        None
    }

    /// Text of limited length, counted in characters.
    pub(super) fn short_text(&mut self, spot: &Spot<'_>, longest: usize) -> Option<String> {
        let text = self.text(spot)?;
        let length = text.chars().count();
        if length > longest {
            let message = format!("this has {length} characters; at most {longest} are allowed");
            self.fault(FaultCode::TooLong, &spot.place(), message);
            return None;
        }
        Some(text.to_owned())
    }

    /// A name of something outside the document: a handler, a queue, a signal.
    pub(super) fn name(&mut self, spot: &Spot<'_>) -> Option<String> {
        let name = self.short_text(spot, 200)?;
        let shaped = name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '/' | '-'));
        if !shaped {
            let hint = if name.contains("${{") {
                "names are fixed: no expression may stand here"
            } else {
                "letters, digits and . _ : / -"
            };
            self.fault_with_hint(FaultCode::BadValue, &spot.place(), format!("`{}` is not a name", clip(&name)), hint);
            return None;
        }
        Some(name)
    }

    pub(super) fn boolean(&mut self, spot: &Spot<'_>) -> Option<bool> {
        match &spot.node.content {
            Content::Bool(value) => Some(*value),
            Content::Text(text) if matches!(text.as_str(), "yes" | "no" | "on" | "off") => {
                let message = format!("`{text}` is text to YAML 1.2");
                self.fault_with_hint(FaultCode::WrongType, &spot.place(), message, "write true or false");
                None
            }
            Content::Null | Content::Number(_) | Content::Text(_) | Content::List(_) | Content::Map(_) => {
                self.wrong_type(spot, "true or false");
                None
            }
        }
    }

    pub(super) fn whole(&mut self, spot: &Spot<'_>, range: RangeInclusive<u32>) -> Option<u32> {
        let (low, high) = (*range.start(), *range.end());
        let Content::Number(number) = &spot.node.content else {
            self.wrong_type(spot, "a whole number");
            return None;
        };
        let value = number.as_u64().and_then(|value| u32::try_from(value).ok()).filter(|value| range.contains(value));
        if value.is_none() {
            let message = format!("{number} is not allowed: this is a whole number from {low} to {high}");
            self.fault(FaultCode::OutOfRange, &spot.place(), message);
        }
        value
    }

    /// A number from `low`, or above it if `low` is excluded, up to `high`.
    pub(super) fn number(&mut self, spot: &Spot<'_>, low: Bound<f64>, high: f64) -> Option<f64> {
        let Content::Number(number) = &spot.node.content else {
            self.wrong_type(spot, "a number");
            return None;
        };
        let value = number.as_f64().filter(|value| (low, Bound::Included(high)).contains(value));
        if value.is_none() {
            let from = match low {
                Bound::Included(low) => format!("from {low} "),
                Bound::Excluded(low) => format!("above {low} "),
                Bound::Unbounded => String::new(),
            };
            let message = format!("{number} is not allowed: this is a number {from}up to {high}");
            self.fault(FaultCode::OutOfRange, &spot.place(), message);
        }
        value
    }

    /// A duration that may be nothing at all, as `0s`.
    pub(super) fn duration_or_zero(&mut self, spot: &Spot<'_>) -> Option<Span> {
        let place = spot.place();
        match &spot.node.content {
            Content::Text(text) => match parse_duration(text) {
                Ok(span) => return Some(span),
                Err(why) => self.fault(FaultCode::BadDuration, &place, why),
            },
            Content::Number(number) => {
                let message = format!("`{number}` has no unit");
                self.fault_with_hint(
                    FaultCode::BadDuration,
                    &place,
                    message,
                    format!("did you mean `{number}s` or `{number}ms`?"),
                );
            }
            Content::Null | Content::Bool(_) | Content::List(_) | Content::Map(_) => {
                self.wrong_type(spot, "a duration")
            }
        }
        None
    }

    pub(super) fn duration(&mut self, spot: &Spot<'_>) -> Option<Span> {
        let span = self.duration_or_zero(spot)?;
        if span == Span::ZERO {
            self.fault(FaultCode::BadDuration, &spot.place(), "this must be longer than nothing");
            return None;
        }
        Some(span)
    }

    /// One of several words.
    pub(super) fn choice<T: Clone>(&mut self, spot: &Spot<'_>, choices: &[(&str, T)]) -> Option<T> {
        let words = || choices.iter().map(|(word, _)| *word);
        let Some(text) = spot.as_text() else {
            self.wrong_type(spot, &format!("one of {}", listed(words())));
            return None;
        };
        let found = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| value.clone());
        if found.is_none() {
            let hint = format!("{}one of {}", did_you_mean(text, words()), listed(words()));
            self.fault_with_hint(
                FaultCode::BadValue,
                &spot.place(),
                format!("`{}` is not known here", clip(text)),
                hint,
            );
        }
        found
    }

    pub(super) fn schema(&mut self, spot: &Spot<'_>) -> Option<Schema> {
        if !matches!(spot.node.content, Content::Map(_) | Content::Bool(_)) {
            self.wrong_type(spot, "a JSON Schema");
            return None;
        }
        let document = spot.node.to_json();
        if self.is_stored {
            return self.usable_schema(Schema::of_stored(&document).map_err(SchemaError::Unusable), spot);
        }
        let schema = self.usable_schema(Schema::compile(&document), spot)?;
        self.schema_nodes += schema.nodes();
        if self.schema_nodes > MOST_NODES {
            let message =
                format!("the schemas of the document have more than {MOST_NODES} values, references followed");
            self.fault(FaultCode::TooComplex, &spot.place(), message);
            return None;
        }
        Some(schema)
    }

    fn usable_schema(&mut self, compiled: Result<Schema, SchemaError>, spot: &Spot<'_>) -> Option<Schema> {
        let why = match compiled {
            Ok(schema) => return Some(schema),
            Err(why) => why,
        };
        let (code, message) = match &why {
            SchemaError::TooComplex(why) => (FaultCode::TooComplex, format!("this JSON Schema is too complex: {why}")),
            SchemaError::Unusable(why) => {
                (FaultCode::BadSchema, format!("this is not a usable JSON Schema: {}", clip(why)))
            }
        };
        self.fault(code, &spot.place(), message);
        None
    }

    /// An expression with or without `${{ }}`.
    pub(super) fn expression(&mut self, spot: &Spot<'_>, place: Place) -> Option<Expression> {
        let source = match &spot.node.content {
            Content::Text(text) => text.clone(),
            Content::Bool(value) => value.to_string(),
            Content::Null | Content::Number(_) | Content::List(_) | Content::Map(_) => {
                let message = format!("this is {}, where an expression is expected", spot.node.kind());
                self.fault_with_hint(FaultCode::WrongType, &spot.place(), message, "quote it: \"…\"");
                return None;
            }
        };
        if source.trim().strip_prefix("${{").unwrap_or(&source).contains("${{") {
            let message = "an expression stands inside an expression";
            self.fault_with_hint(
                FaultCode::BadExpression,
                &spot.place(),
                message,
                "write it once, without the inner ${{ }}",
            );
            return None;
        }
        if !self.may_compile(&spot.place(), count_patterns(&source)) {
            return None;
        }
        match Expression::compile(&source) {
            Ok(expression) => {
                self.note(&expression, place, spot.place());
                Some(expression)
            }
            Err(error) => {
                self.bad_expression(&spot.place(), &error);
                None
            }
        }
    }

    /// A value in which `${{ }}` marks expressions.
    pub(super) fn template(&mut self, spot: &Spot<'_>, place: Place) -> Option<Template> {
        self.template_of(&spot.node.to_json(), spot, place)
    }

    /// Text in which `${{ }}` marks expressions.
    pub(super) fn text_template(&mut self, spot: &Spot<'_>, longest: usize, place: Place) -> Option<Template> {
        let text = self.short_text(spot, longest)?;
        self.template_of(&Value::String(text), spot, place)
    }

    pub(super) fn template_of(&mut self, value: &Value, spot: &Spot<'_>, place: Place) -> Option<Template> {
        if !self.may_compile(&spot.place(), count_patterns_in(value)) {
            return None;
        }
        for (pointer, marked) in marks::mistaken(value) {
            let message = format!("`{marked}` is no expression here and is passed on as text");
            self.warn(FaultCode::MistakenMarks, &spot.inside(&pointer), message, "expressions stand in ${{ … }}");
        }
        match Template::compile(value) {
            Ok(template) => {
                for (pointer, expression) in template.references() {
                    self.note(expression, place, spot.inside(pointer));
                }
                Some(template)
            }
            Err(errors) => {
                for (pointer, error) in &errors {
                    self.bad_expression(&spot.inside(pointer), error);
                }
                None
            }
        }
    }

    /// Patterns cost the most to compile, so there are only so many in a document.
    fn may_compile(&mut self, place: &Where, patterns: usize) -> bool {
        self.patterns += patterns;
        let fits = patterns == 0 || self.patterns <= MOST_PATTERNS;
        if !fits {
            let message = format!("the document has more than {MOST_PATTERNS} patterns (`matches`)");
            self.fault(FaultCode::ExpressionTooComplex, place, message);
        }
        fits
    }

    fn note(&mut self, expression: &Expression, place: Place, stands: Where) {
        let reads = expression.references().iter().map(|reference| reference.keys.clone()).collect();
        self.uses.push(Use { step: self.step, place, stands, reads });
    }

    fn bad_expression(&mut self, place: &Where, error: &CompileError) {
        let code = if error.is_too_complex() { FaultCode::ExpressionTooComplex } else { FaultCode::BadExpression };
        self.fault(code, place, error.to_string());
    }
}

/// The fields of one mapping: every field that is asked for is known, and the rest is a fault.
pub(super) struct Fields<'n> {
    pub(super) spot: Spot<'n>,
    entries: &'n [(Key, Node)],
    known: Vec<&'static str>,
    /// Known, but not to be recommended.
    unlisted: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    pub(super) fn take(&mut self, name: &'static str) -> Option<Spot<'n>> {
        self.known.push(name);
        self.find(name)
    }

    /// Takes a field that no hint names.
    pub(super) fn take_unlisted(&mut self, name: &'static str) -> Option<Spot<'n>> {
        self.unlisted.push(name);
        self.find(name)
    }

    fn find(&self, name: &str) -> Option<Spot<'n>> {
        let (_, node) = self.entries.iter().find(|(key, _)| key.text == name)?;
        Some(self.spot.below(name, node))
    }

    pub(super) fn require(&mut self, reader: &mut Reader, name: &'static str) -> Option<Spot<'n>> {
        let found = self.take(name);
        if found.is_none() {
            let mut place = self.spot.place();
            push_segment(&mut place.path, name);
            reader.fault(FaultCode::MissingField, &place, format!("`{name}` is missing"));
        }
        found
    }

    pub(super) fn place(&self) -> Where {
        self.spot.place()
    }

    /// Faults for the fields that nobody asked for.
    pub(super) fn finish(self, reader: &mut Reader) {
        let is_known = |key: &Key| [&self.known, &self.unlisted].iter().any(|names| names.contains(&key.text.as_str()));
        for (key, _) in self.entries.iter().filter(|(key, _)| !is_known(key)) {
            if reader.is_full() {
                break;
            }
            let mut place = Where { at: key.at, path: self.spot.path.clone() };
            push_segment(&mut place.path, &key.text);
            let known = self.known.iter().copied();
            let hint = format!("{}known here: {}", did_you_mean(&key.text, known.clone()), listed(known));
            reader.fault_with_hint(
                FaultCode::UnknownField,
                &place,
                format!("`{}` is not a field here", clip(&key.text)),
                hint,
            );
        }
    }
}

fn fault(code: FaultCode, place: &Where, message: String, hint: Option<String>) -> Fault {
    let known = |n: u32| (n > 0).then_some(n);
    Fault { code, line: known(place.at.line), column: known(place.at.column), path: place.path.clone(), message, hint }
}

fn count_patterns(source: &str) -> usize {
    source.matches("matches").count()
}

fn count_patterns_in(value: &Value) -> usize {
    match value {
        Value::String(text) if text.contains("${{") => count_patterns(text),
        Value::Array(items) => items.iter().map(count_patterns_in).sum(),
        Value::Object(entries) => entries.values().map(count_patterns_in).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

/// `did you mean …? `, if one of the words is near.
pub(super) fn did_you_mean<'a>(text: &str, words: impl Iterator<Item = &'a str>) -> String {
    let near = words.map(|word| (distance(text, word), word)).min();
    match near {
        Some((distance, word)) if distance <= 2 && distance < word.chars().count() => {
            format!("did you mean `{word}`? ")
        }
        _ => String::new(),
    }
}

/// How many characters must change, be added, removed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}
