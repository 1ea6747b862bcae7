//! The expression language: a subset of CEL that counts its work, needs a bounded stack and never panics.
//!
//! Why it is our own: `docs/decisions/0001-own-expression-evaluator.md`.

mod ast;
mod error;
mod evaluate;
mod functions;
mod json;
mod lex;
mod materialise;
mod meter;
mod operators;
mod parse;
mod pattern;
mod scope;
mod survey;
mod template;
mod value;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

pub use error::{CompileError, EvalError};
pub use json::{Key, is_deeper_than, readable_text, replace_scalars, slice, split_list, split_object};
pub use scope::Scope;
pub use template::Template;
pub use value::{Map, Value};

use ast::{Node, Path};
use evaluate::Evaluation;
use meter::Meter;

/// The longest expression.
pub const MAX_SOURCE_BYTES: usize = 2 * 1024;
/// The most parts an expression may have.
pub const MAX_NODES: usize = 256;
/// How deep the parts of an expression, and the values it makes, may nest.
pub const MAX_DEPTH: usize = 64;
/// The most different patterns in one expression.
pub const MAX_PATTERNS: usize = 8;
/// The work one evaluation may do: a unit is a part evaluated, an element visited or 64 bytes made.
pub const MAX_FUEL: usize = 100_000;
/// The longest list a macro walks.
pub const MAX_MACRO_ELEMENTS: usize = 1_000;
/// The largest value an expression may make, as JSON.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;

/// An expression, compiled once when a document is uploaded. Clones share the compiled form.
#[derive(Clone)]
pub struct Expression {
    compiled: Arc<Compiled>,
}

struct Compiled {
    source: String,
    root: Node,
    references: Vec<Reference>,
    paths: usize,
}

/// A name that an expression reads, with the constant keys that follow it: `steps.charge.output` is three keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub keys: Vec<String>,
    /// Whether it is read only inside `has()` or with a `?`, so that it may be missing.
    pub tested: bool,
}

impl Expression {
    /// Compiles a text, with or without `${{ }}` and space around it.
    pub fn compile(source: &str) -> Result<Expression, CompileError> {
        let (inner, offset) = without_marks(source);
        if inner.len() > MAX_SOURCE_BYTES {
            let limit = format!("it is {} bytes long; at most {MAX_SOURCE_BYTES} are allowed", inner.len());
            return Err(CompileError::too_complex(offset, limit));
        }
        let mut root = parse::parse(inner).map_err(|fault| fault.moved(offset))?;
        let survey = survey::survey(&mut root).map_err(|fault| fault.moved(offset))?;
        let compiled = Compiled { source: inner.to_owned(), root, references: survey.references, paths: survey.paths };
        Ok(Expression { compiled: Arc::new(compiled) })
    }

    /// The text without `${{ }}` and the space around it.
    pub fn source(&self) -> &str {
        &self.compiled.source
    }

    /// Every name it reads. Variables of macros are not names; a computed index ends a name.
    pub fn references(&self) -> &[Reference] {
        &self.compiled.references
    }

    /// Whether it is only a name and constant keys.
    pub fn is_path(&self) -> bool {
        self.path().is_some()
    }

    /// The value. A key that is absent from an object is an error, and so is an index beyond a list, unless a `?` says that it
    /// may be: then, and below null, the value is null.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, EvalError> {
        let mut meter = Meter::new(MAX_FUEL);
        let value = self.evaluation(scope, &mut meter).value_or_null(&self.compiled.root)?;
        if matches!(value, Value::String(_) | Value::List(_) | Value::Map(_)) && !self.is_path() {
            self.json_of(&value)?;
        }
        Ok(value)
    }

    /// The value as JSON text. A path is cut out of the stored text, unchanged and of any size.
    pub fn evaluate_json<'s>(&self, scope: &Scope<'s>) -> Result<Cow<'s, str>, EvalError> {
        match self.path() {
            Some(path) => evaluate::cut_path(self.source(), scope, path, &mut 0),
            None => self.computed_json(scope, &mut Meter::new(MAX_FUEL)).map(Cow::Owned),
        }
    }

    /// For conditions: anything but a bool is an error that says what it was, and so is a missing key.
    pub fn evaluate_bool(&self, scope: &Scope<'_>) -> Result<bool, EvalError> {
        let mut meter = Meter::new(MAX_FUEL);
        self.condition(&mut self.evaluation(scope, &mut meter))
    }

    /// For what waits or chooses: as `evaluate_bool`, but a missing key means no.
    pub fn matches(&self, scope: &Scope<'_>) -> Result<bool, EvalError> {
        let mut meter = Meter::new(MAX_FUEL);
        match self.condition(&mut self.evaluation(scope, &mut meter).matching()) {
            Err(EvalError::MissingKey { .. }) => Ok(false),
            answer => answer,
        }
    }

    fn condition(&self, evaluation: &mut Evaluation<'_, '_>) -> Result<bool, EvalError> {
        let holds = evaluation.value(&self.compiled.root)?.into_bool();
        holds.map_err(|given| evaluation.type_error("a condition", "a bool", given))
    }

    fn computed_json(&self, scope: &Scope<'_>, meter: &mut Meter) -> Result<String, EvalError> {
        let value = self.evaluation(scope, meter).value_or_null(&self.compiled.root)?;
        self.json_of(&value)
    }

    fn evaluation<'e, 's>(&'e self, scope: &'e Scope<'s>, meter: &'e mut Meter) -> Evaluation<'e, 's> {
        Evaluation::new(&self.compiled.source, self.compiled.paths, scope, meter)
    }

    fn json_of(&self, value: &Value) -> Result<String, EvalError> {
        let mut out = String::new();
        let expression = self.source().to_owned();
        match value.write(&mut out, MAX_VALUE_BYTES, MAX_DEPTH) {
            Ok(()) => Ok(out),
            Err(value::Unwritable::TooLarge) => {
                let limit = format!("its value is more than {} KiB of JSON", MAX_VALUE_BYTES / 1024);
                Err(EvalError::CostExceeded { expression, limit })
            }
            Err(value::Unwritable::TooDeep) => {
                Err(EvalError::BadValue { expression, fault: format!("its value nests more than {MAX_DEPTH} deep") })
            }
        }
    }

    fn path(&self) -> Option<&Path> {
        if let Node::Access(access) = &self.compiled.root { access.as_path() } else { None }
    }
}

/// Two expressions are equal when they are written alike.
impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.source() == other.source()
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source()).finish()
    }
}

/// The expression inside the marks, and where it begins.
fn without_marks(source: &str) -> (&str, usize) {
    let trimmed = source.trim();
    let inner = trimmed.strip_prefix("${{").and_then(|rest| rest.strip_suffix("}}")).unwrap_or(trimmed);
    let from = source.len() - source.trim_start().len() + if inner.len() < trimmed.len() { 3 } else { 0 };
    (inner.trim(), from + inner.len() - inner.trim_start().len())
}
