//! Walks a compiled expression and pays for every step from a fixed amount of fuel.

use std::borrow::Cow;
use std::sync::Arc;

use super::ast::{Access, Base, Macro, Node, Operator, Path, Step};
use super::error::EvalError;
use super::json::{self, Key};
use super::materialise::{Unreadable, materialise};
use super::meter::{Exhausted, Meter};
use super::scope::{Found, Scope};
use super::value::{Map, Value};
use super::{MAX_FUEL, MAX_MACRO_ELEMENTS, MAX_VALUE_BYTES};

/// The most keys an error names.
const PRESENT_KEYS: usize = 20;

/// One evaluation of one expression.
pub(super) struct Evaluation<'e, 's> {
    pub(super) expression: &'e str,
    scope: &'e Scope<'s>,
    meter: &'e mut Meter,
    /// The paths that were read already: inside a macro they would be read for every element.
    read: Vec<Option<Operand>>,
    /// What the variable of the macro stands for.
    item: Value,
    /// Where a result is matched, a key below null is missing like any other.
    matching: bool,
}

/// A value on its way through an access.
#[derive(Clone, Debug)]
enum Operand {
    Plain(Value),
    /// A value behind `?`.
    Optional(Option<Value>),
}

/// The text that keys lead to, or the place of the first key that leads nowhere. `skipped` counts the bytes passed over.
pub(super) fn cut<'s>(scope: &Scope<'s>, keys: &[Key], skipped: &mut usize) -> Result<Cow<'s, str>, usize> {
    match scope.find(keys) {
        Found::Text { json: Cow::Borrowed(json), consumed } => {
            descend(json, keys, consumed, skipped).map(Cow::Borrowed)
        }
        Found::Text { json: Cow::Owned(json), consumed } => {
            descend(json, keys, consumed, skipped).map(|json| Cow::Owned(json.to_owned()))
        }
        Found::Branch => {
            let assembled = scope.assemble(keys);
            *skipped += assembled.len();
            Ok(Cow::Owned(assembled))
        }
        Found::Missing { at } => Err(at),
    }
}

/// The text that a path leads to. Null stands for what may be absent, and for everything below null.
pub(super) fn cut_path<'s>(
    expression: &str,
    scope: &Scope<'s>,
    path: &Path,
    skipped: &mut usize,
) -> Result<Cow<'s, str>, EvalError> {
    match cut(scope, &path.keys, skipped) {
        Ok(json) => Ok(json),
        Err(at) if path.optional_from.is_some_and(|from| from <= at) || is_below_null(scope, &path.keys, at) => {
            Ok(Cow::Borrowed("null"))
        }
        Err(at) => Err(lost(expression, scope, &path.keys, at)),
    }
}

/// Whether the key at `at` was looked for in null: what was skipped, or failed and was tolerated, has no keys.
fn is_below_null(scope: &Scope<'_>, keys: &[Key], at: usize) -> bool {
    at > 0 && cut(scope, &keys[..at], &mut 0).is_ok_and(|json| json::type_name(&json) == "null")
}

/// Says what stands where the key at `at` was looked for.
fn lost(expression: &str, scope: &Scope<'_>, keys: &[Key], at: usize) -> EvalError {
    let expression = expression.to_owned();
    let key = keys.get(at).map_or(String::new(), spelled);
    let container = match scope.find(&keys[..at]) {
        Found::Text { .. } => cut(scope, &keys[..at], &mut 0).unwrap_or_default(),
        Found::Branch | Found::Missing { .. } => {
            let present = scope.names_below(&keys[..at]).into_iter().take(PRESENT_KEYS).collect();
            return EvalError::MissingKey { expression, key, present };
        }
    };
    match (json::type_name(&container), keys.get(at)) {
        ("map", _) => {
            let present = json::first_keys(&container, PRESENT_KEYS);
            EvalError::MissingKey { expression, key, present }
        }
        ("null", _) | ("list", Some(Key::Index(_))) => EvalError::MissingKey { expression, key, present: Vec::new() },
        (given, _) => not_a_container(expression, given),
    }
}

fn not_a_container(expression: String, given: &str) -> EvalError {
    let (operation, takes) = ("reading a key or index".to_owned(), "a map or list".to_owned());
    EvalError::Type { expression, operation, takes, given: given.to_owned() }
}

fn descend<'t>(json: &'t str, keys: &[Key], consumed: usize, skipped: &mut usize) -> Result<&'t str, usize> {
    let mut text = json.trim_ascii();
    for (at, key) in keys.iter().enumerate().skip(consumed) {
        *skipped += text.len();
        text = json::child(text, key).ok_or(at)?;
    }
    Ok(text)
}

impl<'e, 's> Evaluation<'e, 's> {
    pub(super) fn new(expression: &'e str, paths: usize, scope: &'e Scope<'s>, meter: &'e mut Meter) -> Self {
        Evaluation { expression, scope, meter, read: vec![None; paths], item: Value::Null, matching: false }
    }

    /// For what waits or chooses.
    pub(super) fn matching(self) -> Self {
        Evaluation { matching: true, ..self }
    }

    /// The value of the whole expression, which is null where it may be absent and is.
    pub(super) fn value_or_null(&mut self, root: &Node) -> Result<Value, EvalError> {
        let Node::Access(access) = root else { return self.value(root) };
        match self.access(access, false)? {
            Operand::Plain(value) => Ok(value),
            Operand::Optional(value) => Ok(value.unwrap_or(Value::Null)),
        }
    }

    pub(super) fn value(&mut self, node: &Node) -> Result<Value, EvalError> {
        self.spend(1)?;
        match node {
            Node::Literal(value) => Ok(value.clone()),
            Node::List(items) => self.values(items).map(|items| Value::List(items.into())),
            Node::Map(entries) => self.map(entries),
            Node::Access(access) => self.accessed(access),
            Node::Has(access) => self.has(access),
            Node::Not(inner) => Ok(Value::Bool(!self.condition("!", inner)?)),
            Node::Negate(inner) => {
                let value = self.value(inner)?;
                self.negate(value)
            }
            Node::Or(operands) => self.any_is(true, "||", operands).map(Value::Bool),
            Node::And(operands) => self.any_is(false, "&&", operands).map(|found| Value::Bool(!found)),
            Node::Chain(first, rest) => self.chain(first, rest),
            Node::Choice(parts) => {
                let chosen = if self.condition("? :", &parts[0])? { &parts[1] } else { &parts[2] };
                self.value(chosen)
            }
            Node::Convert(conversion, inner) => {
                let value = self.value(inner)?;
                self.convert(*conversion, value)
            }
        }
    }

    fn values(&mut self, nodes: &[Node]) -> Result<Vec<Value>, EvalError> {
        nodes.iter().map(|node| self.value(node)).collect()
    }

    fn map(&mut self, entries: &[(Node, Node)]) -> Result<Value, EvalError> {
        let mut map: Vec<(Arc<str>, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.value(key)?;
            let Value::String(key) = key else {
                return Err(self.type_error("a map", "strings as keys", key.type_name()));
            };
            map.push((key, self.value(value)?));
        }
        Ok(Value::Map(Arc::new(Map::new(map))))
    }

    fn has(&mut self, access: &Access) -> Result<Value, EvalError> {
        if let Some(path) = access.as_path() {
            return self.has_path(path);
        }
        Ok(Value::Bool(matches!(self.access(access, true)?, Operand::Plain(_) | Operand::Optional(Some(_)))))
    }

    /// Needs no value, so that none is built.
    fn has_path(&mut self, path: &Path) -> Result<Value, EvalError> {
        if let Some(Some(Operand::Plain(known))) = self.read.get(path.slot) {
            return Ok(known.clone());
        }
        let found = Value::Bool(self.cut(&path.keys)?.is_ok());
        self.remember(path, Operand::Plain(found.clone()));
        Ok(found)
    }

    fn condition(&mut self, operation: &str, node: &Node) -> Result<bool, EvalError> {
        self.value(node)?.into_bool().map_err(|given| self.type_error(operation, "a bool", given))
    }

    /// Stops at the first operand that decides.
    fn any_is(&mut self, deciding: bool, operation: &str, operands: &[Node]) -> Result<bool, EvalError> {
        for operand in operands {
            if self.condition(operation, operand)? == deciding {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn chain(&mut self, first: &Node, rest: &[(Operator, Node)]) -> Result<Value, EvalError> {
        let mut left = self.value(first)?;
        for (operator, operand) in rest {
            let right = self.value(operand)?;
            self.spend(1)?;
            left = self.apply(*operator, &left, &right)?;
        }
        Ok(left)
    }
}

/// Accesses: paths, keys, indexes, methods and macros.
impl<'s> Evaluation<'_, 's> {
    fn accessed(&mut self, access: &Access) -> Result<Value, EvalError> {
        match self.access(access, false)? {
            Operand::Plain(value) => Ok(value),
            Operand::Optional(Some(value)) => Ok(value),
            // Only the top of an expression may be absent, and only a condition asks for its value here.
            Operand::Optional(None) => Err(self.absent(access)),
        }
    }

    fn absent(&self, access: &Access) -> EvalError {
        let lost = access.as_path().and_then(|path| Some((path, cut(self.scope, &path.keys, &mut 0).err()?)));
        match lost {
            Some((path, at)) => self.lost(&path.keys, at),
            None => self.missing("(optional)".to_owned(), Vec::new()),
        }
    }

    /// With `lenient`, every key may be missing.
    fn access(&mut self, access: &Access, lenient: bool) -> Result<Operand, EvalError> {
        let mut operand = match &access.base {
            Base::Path(path) => self.path(path, lenient)?,
            Base::Variable => Operand::Plain(self.item.clone()),
            Base::Node(node) => Operand::Plain(self.value(node)?),
        };
        for step in &access.steps {
            self.spend(1)?;
            operand = self.step(operand, step, lenient)?;
        }
        Ok(operand)
    }

    fn path(&mut self, path: &Path, lenient: bool) -> Result<Operand, EvalError> {
        if let Some(Some(operand)) = self.read.get(path.slot) {
            return Ok(operand.clone());
        }
        let optional_from = if lenient { Some(0) } else { path.optional_from };
        let operand = match self.cut(&path.keys)? {
            Ok(json) if optional_from.is_some() => Operand::Optional(Some(self.materialise(&json)?)),
            Ok(json) => Operand::Plain(self.materialise(&json)?),
            Err(at) if optional_from.is_some_and(|from| from <= at) => Operand::Optional(None),
            Err(at) if !self.matching && is_below_null(self.scope, &path.keys, at) => Operand::Plain(Value::Null),
            Err(at) => return Err(self.lost(&path.keys, at)),
        };
        self.remember(path, operand.clone());
        Ok(operand)
    }

    fn remember(&mut self, path: &Path, operand: Operand) {
        if let Some(slot) = self.read.get_mut(path.slot) {
            *slot = Some(operand);
        }
    }

    fn cut(&mut self, keys: &[Key]) -> Result<Result<Cow<'s, str>, usize>, EvalError> {
        let mut skipped = 0;
        let found = cut(self.scope, keys, &mut skipped);
        self.meter.spend_skipped(skipped).map_err(|Exhausted| out_of_fuel(self.expression))?;
        Ok(found)
    }

    fn materialise(&mut self, json: &str) -> Result<Value, EvalError> {
        materialise(json, self.meter).map_err(|fault| match fault {
            Unreadable::Exhausted => out_of_fuel(self.expression),
            Unreadable::Invalid => {
                self.bad_value("it reads JSON that has no value here: a string that is not Unicode, or no JSON")
            }
            Unreadable::Number(number) => {
                self.bad_value(&format!("it computes with {number}, which fits neither 64 bits nor a double"))
            }
        })
    }

    fn lost(&self, keys: &[Key], at: usize) -> EvalError {
        lost(self.expression, self.scope, keys, at)
    }

    fn step(&mut self, operand: Operand, step: &Step, lenient: bool) -> Result<Operand, EvalError> {
        match step {
            Step::Key { key, optional } => self.key(operand, key, *optional || lenient, spelled(key)),
            Step::Index { index, optional } => {
                let index = self.value(index)?;
                let key = self.computed_key(&index)?;
                self.key(operand, &key, *optional || lenient, "(computed)".to_owned())
            }
            Step::OrValue(otherwise) => match operand {
                Operand::Plain(value) | Operand::Optional(Some(value)) => Ok(Operand::Plain(value)),
                Operand::Optional(None) => self.value(otherwise).map(Operand::Plain),
            },
            Step::HasValue => Ok(Operand::Plain(Value::Bool(!matches!(operand, Operand::Optional(None))))),
            Step::Method(method, arguments) => {
                let arguments = self.values(arguments)?;
                let receiver = self.present(operand)?;
                self.call(*method, &receiver, &arguments).map(Operand::Plain)
            }
            Step::Matches(pattern) => {
                let receiver = self.present(operand)?;
                self.matches(&receiver, pattern).map(Operand::Plain)
            }
            Step::Macro(kind, body) => {
                let range = self.present(operand)?;
                self.run_macro(*kind, &range, body).map(Operand::Plain)
            }
        }
    }

    /// The compiler lets no method stand behind `?`.
    fn present(&mut self, operand: Operand) -> Result<Value, EvalError> {
        match operand {
            Operand::Plain(value) | Operand::Optional(Some(value)) => Ok(value),
            Operand::Optional(None) => Err(self.missing("(optional)".to_owned(), Vec::new())),
        }
    }

    /// What errors call a computed key is not the key, which may be secret.
    fn key(&mut self, operand: Operand, key: &Key, optional: bool, spelled: String) -> Result<Operand, EvalError> {
        let (container, optional) = match operand {
            Operand::Optional(None) => return Ok(operand),
            Operand::Optional(Some(container)) => (container, true),
            Operand::Plain(container) => (container, optional),
        };
        let found = match (&container, key) {
            (Value::Map(map), Key::Name(name)) => map.get(name).cloned(),
            (Value::List(items), Key::Index(index)) => items.get(*index).cloned(),
            _ => None,
        };
        match found {
            _ if optional => Ok(Operand::Optional(found)),
            Some(value) => Ok(Operand::Plain(value)),
            None if !self.matching && matches!(container, Value::Null) => Ok(Operand::Plain(Value::Null)),
            None => Err(self.not_found(&container, key, spelled)),
        }
    }

    fn not_found(&self, container: &Value, key: &Key, spelled: String) -> EvalError {
        match (container, key) {
            (Value::Map(map), _) => {
                let keys = map.entries().iter().take(PRESENT_KEYS);
                self.missing(spelled, keys.map(|(key, _)| key.chars().take(64).collect()).collect())
            }
            (Value::Null, _) | (Value::List(_), Key::Index(_)) => self.missing(spelled, Vec::new()),
            (other, _) => not_a_container(self.expression.to_owned(), other.type_name()),
        }
    }

    fn computed_key(&mut self, index: &Value) -> Result<Key, EvalError> {
        match index {
            Value::String(name) => Ok(Key::from(&**name)),
            // A negative index is beyond every list.
            Value::Int(int) => Ok(Key::Index(usize::try_from(*int).unwrap_or(usize::MAX))),
            Value::Double(double) if double.fract() == 0.0 && *double >= 0.0 => Ok(Key::Index(*double as usize)),
            Value::Null | Value::Bool(_) | Value::Double(_) | Value::List(_) | Value::Map(_) => {
                Err(self.type_error("[ ]", "a string or an int", index.type_name()))
            }
        }
    }

    fn run_macro(&mut self, kind: Macro, range: &Value, body: &Node) -> Result<Value, EvalError> {
        let items: Arc<[Value]> = match range {
            Value::List(items) => Arc::clone(items),
            Value::Map(map) => map.entries().iter().map(|(key, _)| Value::String(Arc::clone(key))).collect(),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Double(_) | Value::String(_) => {
                return Err(self.type_error(kind.name(), "a list or a map", range.type_name()));
            }
        };
        if items.len() > MAX_MACRO_ELEMENTS {
            return Err(self.too_costly(format!("{}() walks at most {MAX_MACRO_ELEMENTS} elements", kind.name())));
        }
        match kind {
            Macro::All => Ok(Value::Bool(self.count_where(kind, &items, body, false, 1)? == 0)),
            Macro::Exists => Ok(Value::Bool(self.count_where(kind, &items, body, true, 1)? == 1)),
            Macro::ExistsOne => Ok(Value::Bool(self.count_where(kind, &items, body, true, 2)? == 1)),
            Macro::Map => {
                let mapped: Result<Vec<Value>, EvalError> =
                    items.iter().map(|item| self.for_item(item, body)).collect();
                Ok(Value::List(mapped?.into()))
            }
            Macro::Filter => self.filter(&items, body),
        }
    }

    /// How many items make the body `sought`, counting no further than `enough`.
    fn count_where(
        &mut self,
        kind: Macro,
        items: &[Value],
        body: &Node,
        sought: bool,
        enough: usize,
    ) -> Result<usize, EvalError> {
        let mut count = 0;
        for item in items {
            count += usize::from(self.holds_for(kind, item, body)? == sought);
            if count == enough {
                break;
            }
        }
        Ok(count)
    }

    fn filter(&mut self, items: &[Value], body: &Node) -> Result<Value, EvalError> {
        let mut kept = Vec::new();
        for item in items {
            if self.holds_for(Macro::Filter, item, body)? {
                kept.push(item.clone());
            }
        }
        Ok(Value::List(kept.into()))
    }

    fn holds_for(&mut self, kind: Macro, item: &Value, body: &Node) -> Result<bool, EvalError> {
        let held = self.for_item(item, body)?.into_bool();
        held.map_err(|given| self.type_error(kind.name(), "a body that is a bool", given))
    }

    fn for_item(&mut self, item: &Value, body: &Node) -> Result<Value, EvalError> {
        self.spend(1)?;
        self.item = item.clone();
        self.value(body)
    }
}

/// Fuel and faults.
impl Evaluation<'_, '_> {
    pub(super) fn spend(&mut self, units: usize) -> Result<(), EvalError> {
        self.meter.spend(units).map_err(|Exhausted| out_of_fuel(self.expression))
    }

    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Result<(), EvalError> {
        self.meter.spend_bytes(bytes).map_err(|Exhausted| out_of_fuel(self.expression))
    }

    /// Pays for a text before it is made.
    pub(super) fn spend_text(&mut self, bytes: usize) -> Result<(), EvalError> {
        if bytes > MAX_VALUE_BYTES {
            return Err(self.too_costly(format!("it makes a text of more than {} KiB", MAX_VALUE_BYTES / 1024)));
        }
        self.spend_bytes(bytes)
    }

    pub(super) fn type_error(&self, operation: &str, takes: &str, given: &str) -> EvalError {
        EvalError::Type {
            expression: self.expression.to_owned(),
            operation: operation.to_owned(),
            takes: takes.to_owned(),
            given: given.to_owned(),
        }
    }

    pub(super) fn bad_value(&self, fault: &str) -> EvalError {
        EvalError::BadValue { expression: self.expression.to_owned(), fault: fault.to_owned() }
    }

    fn missing(&self, key: String, present: Vec<String>) -> EvalError {
        EvalError::MissingKey { expression: self.expression.to_owned(), key, present }
    }

    fn too_costly(&self, limit: String) -> EvalError {
        EvalError::CostExceeded { expression: self.expression.to_owned(), limit }
    }
}

fn out_of_fuel(expression: &str) -> EvalError {
    let limit = format!("one evaluation may do {MAX_FUEL} units of work");
    EvalError::CostExceeded { expression: expression.to_owned(), limit }
}

fn spelled(key: &Key) -> String {
    match key {
        Key::Name(name) => name.clone(),
        Key::Index(index) => index.to_string(),
    }
}
