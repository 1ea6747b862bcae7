//! JSON whose strings may hold `${{ expressions }}`: compiled once, rendered to JSON text for every task.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::error::{CompileError, EvalError};
use super::meter::{BYTES_SKIPPED_PER_UNIT, Exhausted, Meter};
use super::{Expression, MAX_DEPTH, MAX_FUEL, Scope, evaluate, json, lex};

/// The work that rendering one template may do: many expressions share it.
const MAX_TEMPLATE_FUEL: usize = 10 * MAX_FUEL;
/// The largest rendered text; a template that is one path may give more.
const MAX_RENDERED_BYTES: usize = 16 * 1024 * 1024;

/// A JSON value in which strings may hold `${{ expressions }}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    root: Part,
    /// Each expression with the JSON pointer of its string.
    expressions: Vec<(String, Expression)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// JSON text without expressions.
    Constant(String),
    /// A string that is one expression, which keeps its type.
    Whole(Expression),
    Text(Vec<Piece>),
    List(Vec<Part>),
    Map(Vec<(String, Part)>),
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Literal(String),
    Expression(Expression),
}

impl Template {
    /// Compiles every expression in `value`; all faults are returned, each with the JSON pointer of its string.
    pub fn compile(value: &Json) -> Result<Template, Vec<(String, CompileError)>> {
        let mut compiler = Compiler::default();
        let root = compiler.part(value, 0);
        if compiler.faults.is_empty() {
            Ok(Template { root, expressions: compiler.expressions })
        } else {
            Err(compiler.faults)
        }
    }

    /// Every expression, with the JSON pointer of the string it stands in.
    pub fn references(&self) -> impl Iterator<Item = (&str, &Expression)> {
        self.expressions.iter().map(|(pointer, expression)| (pointer.as_str(), expression))
    }

    pub fn is_constant(&self) -> bool {
        self.expressions.is_empty()
    }

    /// The JSON text. A string that is one path becomes the stored bytes, unchanged.
    pub fn render(&self, scope: &Scope<'_>) -> Result<String, EvalError> {
        match &self.root {
            Part::Constant(json) => Ok(json.clone()),
            Part::Whole(expression) => expression.evaluate_json(scope).map(Cow::into_owned),
            part @ (Part::Text(_) | Part::List(_) | Part::Map(_)) => {
                let mut json = String::new();
                Rendering::new(scope).part(part, 0, &mut json)?;
                Ok(json)
            }
        }
    }

    /// As `render`, but a missing key is null; which keys are missing is told too.
    pub fn render_tolerant(&self, scope: &Scope<'_>) -> Result<(String, Vec<EvalError>), EvalError> {
        let mut rendering = Rendering { absent: Absent::Null, ..Rendering::new(scope) };
        let mut json = String::new();
        rendering.part(&self.root, 0, &mut json)?;
        Ok((json, rendering.missing))
    }

    /// The text of a template that is one string, as JSON does not quote it; any other template as JSON.
    pub fn render_text(&self, scope: &Scope<'_>) -> Result<String, EvalError> {
        self.text_with(scope, Absent::Refused)
    }

    /// A text for people: `?` stands for what is missing.
    pub fn render_title(&self, scope: &Scope<'_>) -> Result<String, EvalError> {
        self.text_with(scope, Absent::Mark)
    }

    fn text_with(&self, scope: &Scope<'_>, absent: Absent) -> Result<String, EvalError> {
        let mut rendering = Rendering { absent, ..Rendering::new(scope) };
        match &self.root {
            Part::Constant(json) => Ok(json::decode(json).map_or_else(|| json.clone(), Cow::into_owned)),
            Part::Whole(expression) => rendering.interpolated(expression),
            Part::Text(pieces) => rendering.text(pieces),
            Part::List(_) | Part::Map(_) => self.render(scope),
        }
    }
}

#[derive(Default)]
struct Compiler {
    pointer: String,
    expressions: Vec<(String, Expression)>,
    faults: Vec<(String, CompileError)>,
}

impl Compiler {
    fn part(&mut self, value: &Json, depth: usize) -> Part {
        match value {
            Json::Array(_) | Json::Object(_) if depth == MAX_DEPTH => {
                let fault = CompileError::too_complex(0, format!("the value nests more than {MAX_DEPTH} deep"));
                self.faults.push((self.pointer.clone(), fault));
                Part::Constant("null".to_owned())
            }
            Json::String(text) => self.string(text),
            Json::Array(items) => {
                let items = items.iter().enumerate();
                list(items.map(|(at, item)| self.below(&at.to_string(), item, depth)).collect())
            }
            Json::Object(members) => {
                let members = members.iter();
                map(members.map(|(key, member)| (key.clone(), self.below(key, member, depth))).collect())
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => Part::Constant(value.to_string()),
        }
    }

    fn below(&mut self, key: &str, value: &Json, depth: usize) -> Part {
        let length = self.pointer.len();
        self.pointer.push('/');
        self.pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        let part = self.part(value, depth + 1);
        self.pointer.truncate(length);
        part
    }

    fn string(&mut self, text: &str) -> Part {
        match pieces(text) {
            Ok(pieces) => {
                for piece in &pieces {
                    if let Piece::Expression(expression) = piece {
                        self.expressions.push((self.pointer.clone(), expression.clone()));
                    }
                }
                string_part(text, pieces)
            }
            Err(faults) => {
                self.faults.extend(faults.into_iter().map(|fault| (self.pointer.clone(), fault)));
                Part::Constant("null".to_owned())
            }
        }
    }
}

fn string_part(text: &str, mut pieces: Vec<Piece>) -> Part {
    match pieces.as_slice() {
        [] | [Piece::Literal(_)] => {
            let mut json = String::new();
            json::push_string(&mut json, text);
            Part::Constant(json)
        }
        [Piece::Expression(_)] => match pieces.remove(0) {
            Piece::Expression(expression) => Part::Whole(expression),
            literal @ Piece::Literal(_) => Part::Text(vec![literal]),
        },
        _ => Part::Text(pieces),
    }
}

/// Cuts a string at its expressions.
fn pieces(text: &str) -> Result<Vec<Piece>, Vec<CompileError>> {
    let mut pieces = Vec::new();
    let mut faults = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find("${{") {
        let inner_from = at + found + 3;
        if found > 0 {
            pieces.push(Piece::Literal(text[at..at + found].to_owned()));
        }
        let (inner_to, compiled) = match expression_at(text, inner_from) {
            Ok(found) => found,
            // Where an expression does not end, nothing behind it can be read.
            Err(fault) => {
                faults.push(fault);
                return Err(faults);
            }
        };
        match compiled {
            Ok(expression) => pieces.push(Piece::Expression(expression)),
            Err(fault) => faults.push(fault),
        }
        at = inner_to + 2;
    }
    if at < text.len() {
        pieces.push(Piece::Literal(text[at..].to_owned()));
    }
    if faults.is_empty() { Ok(pieces) } else { Err(faults) }
}

/// The expression behind a `${{`, and where its `}}` stands.
type Found = (usize, Result<Expression, CompileError>);

fn expression_at(text: &str, from: usize) -> Result<Found, CompileError> {
    let inner = &text[from..];
    match lex::closing_braces(inner) {
        Ok(Some(length)) => {
            let compiled = Expression::compile(&inner[..length]).map_err(|fault| fault.moved(from));
            Ok((from + length, compiled))
        }
        Ok(None) => Err(CompileError::syntax(from - 3, "an expression is not closed", "end it with `}}`")),
        Err(fault) => Err(fault.moved(from)),
    }
}

fn list(parts: Vec<Part>) -> Part {
    let mut json = String::from("[");
    for (position, part) in parts.iter().enumerate() {
        let Part::Constant(text) = part else { return Part::List(parts) };
        separate(&mut json, position);
        json.push_str(text);
    }
    json.push(']');
    Part::Constant(json)
}

fn map(parts: Vec<(String, Part)>) -> Part {
    let mut json = String::from("{");
    for (position, (key, part)) in parts.iter().enumerate() {
        let Part::Constant(text) = part else { return Part::Map(parts) };
        separate(&mut json, position);
        json::push_string(&mut json, key);
        json.push(':');
        json.push_str(text);
    }
    json.push('}');
    Part::Constant(json)
}

fn separate(out: &mut String, position: usize) {
    if position > 0 {
        out.push(',');
    }
}

/// One rendering: what its expressions may still cost and how much they have made.
struct Rendering<'r, 's> {
    scope: &'r Scope<'s>,
    meter: Meter,
    bytes: usize,
    absent: Absent,
    missing: Vec<EvalError>,
}

/// What a missing key gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Refused,
    Null,
    /// A question mark.
    Mark,
}

impl<'r, 's> Rendering<'r, 's> {
    fn new(scope: &'r Scope<'s>) -> Self {
        let meter = Meter::new(MAX_TEMPLATE_FUEL);
        Rendering { scope, meter, bytes: 0, absent: Absent::Refused, missing: Vec::new() }
    }

    fn part(&mut self, part: &Part, depth: usize, out: &mut String) -> Result<(), EvalError> {
        match part {
            Part::Constant(json) => out.push_str(json),
            Part::Whole(expression) => out.push_str(&self.nested(expression, depth)?),
            Part::Text(pieces) => json::push_string(out, &self.text(pieces)?),
            Part::List(parts) => {
                out.push('[');
                for (position, part) in parts.iter().enumerate() {
                    separate(out, position);
                    self.part(part, depth + 1, out)?;
                }
                out.push(']');
            }
            Part::Map(parts) => {
                out.push('{');
                for (position, (key, part)) in parts.iter().enumerate() {
                    separate(out, position);
                    json::push_string(out, key);
                    out.push(':');
                    self.part(part, depth + 1, out)?;
                }
                out.push('}');
            }
        }
        Ok(())
    }

    fn text(&mut self, pieces: &[Piece]) -> Result<String, EvalError> {
        let mut text = String::new();
        for piece in pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Expression(expression) => text.push_str(&self.interpolated(expression)?),
            }
        }
        Ok(text)
    }

    /// Strings as they are, null as nothing, the rest as compact JSON.
    fn interpolated(&mut self, expression: &Expression) -> Result<String, EvalError> {
        let json = self.json(expression)?;
        match json::type_name(&json) {
            "null" => Ok(String::new()),
            "string" => {
                let text = json::decode(&json).map(Cow::into_owned);
                text.ok_or_else(|| bad_value(expression, "it reads a string that is not Unicode"))
            }
            _ => Ok(json::compact(&json)),
        }
    }

    /// A value below `depth` levels of the template; together they must stay readable.
    fn nested(&mut self, expression: &Expression, depth: usize) -> Result<Cow<'s, str>, EvalError> {
        let json = self.json(expression)?;
        if json::is_deeper_than(&json, MAX_DEPTH.saturating_sub(depth)) {
            return Err(bad_value(expression, &format!("with it the value nests more than {MAX_DEPTH} deep")));
        }
        Ok(json)
    }

    /// The value of one expression. Each has its own fuel, and all share the fuel of the template.
    fn json(&mut self, expression: &Expression) -> Result<Cow<'s, str>, EvalError> {
        let json = match self.own_json(expression) {
            Err(missing @ EvalError::MissingKey { .. }) if self.absent != Absent::Refused => {
                self.missing.push(missing);
                Cow::Borrowed(if self.absent == Absent::Null { "null" } else { "\"?\"" })
            }
            json => json?,
        };
        self.bytes += json.len();
        if self.bytes > MAX_RENDERED_BYTES {
            let limit = format!("with it the template makes more than {} MiB", MAX_RENDERED_BYTES / 1024 / 1024);
            return Err(too_costly(expression, limit));
        }
        Ok(json)
    }

    fn own_json(&mut self, expression: &Expression) -> Result<Cow<'s, str>, EvalError> {
        match expression.path() {
            Some(path) => {
                let mut skipped = 0;
                let json = evaluate::cut_path(expression.source(), self.scope, path, &mut skipped);
                self.spend(expression, 1 + skipped / BYTES_SKIPPED_PER_UNIT)?;
                json
            }
            None => {
                let mut own = Meter::new(self.meter.left().min(MAX_FUEL));
                let before = own.left();
                let json = expression.computed_json(self.scope, &mut own);
                self.spend(expression, before - own.left())?;
                json.map(Cow::Owned)
            }
        }
    }

    fn spend(&mut self, expression: &Expression, units: usize) -> Result<(), EvalError> {
        let limit = || format!("one template may do {MAX_TEMPLATE_FUEL} units of work");
        self.meter.spend(units).map_err(|Exhausted| too_costly(expression, limit()))
    }
}

fn too_costly(expression: &Expression, limit: String) -> EvalError {
    EvalError::CostExceeded { expression: expression.source().to_owned(), limit }
}

fn bad_value(expression: &Expression, fault: &str) -> EvalError {
    EvalError::BadValue { expression: expression.source().to_owned(), fault: fault.to_owned() }
}
