//! The values of expressions: JSON with integers and doubles told apart, cheap to clone because a macro clones often.

use std::cmp::Ordering;
use std::sync::Arc;

use super::json;

/// A value. A double is always finite.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    String(Arc<str>),
    List(Arc<[Value]>),
    Map(Arc<Map>),
}

/// Entries in the order they were written, found by key through a sorted index.
#[derive(Clone, Debug)]
pub struct Map {
    entries: Vec<(Arc<str>, Value)>,
    sorted: Vec<usize>,
}

/// Why a value cannot be written down.
pub(super) enum Unwritable {
    TooLarge,
    TooDeep,
}

impl Value {
    /// The type's name as messages say it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::List(_) => "list",
            Value::Map(_) => "map",
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    /// A bool, or the name of the type that it is instead.
    pub(super) fn into_bool(self) -> Result<bool, &'static str> {
        if let Value::Bool(bool) = self { Ok(bool) } else { Err(self.type_name()) }
    }

    pub(super) fn string(text: impl Into<Arc<str>>) -> Value {
        Value::String(text.into())
    }

    /// Appends the value as compact JSON, unless that makes `out` longer than `max_bytes` or nests too deeply.
    pub(super) fn write(&self, out: &mut String, max_bytes: usize, max_depth: usize) -> Result<(), Unwritable> {
        match self {
            Value::Null => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(int) => out.push_str(&int.to_string()),
            Value::Double(double) => out.push_str(&double_text(*double)),
            Value::String(text) if text.len() > max_bytes => return Err(Unwritable::TooLarge),
            Value::String(text) => json::push_string(out, text),
            Value::List(_) | Value::Map(_) if max_depth == 0 => return Err(Unwritable::TooDeep),
            Value::List(items) => write_list(items, out, max_bytes, max_depth - 1)?,
            Value::Map(map) => write_map(map, out, max_bytes, max_depth - 1)?,
        }
        if out.len() > max_bytes { Err(Unwritable::TooLarge) } else { Ok(()) }
    }
}

fn write_list(items: &[Value], out: &mut String, max_bytes: usize, max_depth: usize) -> Result<(), Unwritable> {
    out.push('[');
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        item.write(out, max_bytes, max_depth)?;
    }
    out.push(']');
    Ok(())
}

fn write_map(map: &Map, out: &mut String, max_bytes: usize, max_depth: usize) -> Result<(), Unwritable> {
    out.push('{');
    for (position, (key, value)) in map.entries().iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        json::push_string(out, key);
        out.push(':');
        value.write(out, max_bytes, max_depth)?;
    }
    out.push('}');
    Ok(())
}

/// A double as JSON writes it, so that text and JSON agree: `1.0`, `0.1`, `1e300`.
pub(super) fn double_text(double: f64) -> String {
    serde_json::Number::from_f64(double).map_or_else(|| "null".to_owned(), |number| number.to_string())
}

impl Map {
    /// Of a repeated key the last value counts, at the place of the first.
    pub(super) fn new(mut entries: Vec<(Arc<str>, Value)>) -> Map {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by(|a, b| entries[*a].0.cmp(&entries[*b].0));
        let repeats = order.windows(2).any(|pair| entries[pair[0]].0 == entries[pair[1]].0);
        if repeats {
            entries = last_of_each_key(entries, &order);
            order = (0..entries.len()).collect();
            order.sort_by(|a, b| entries[*a].0.cmp(&entries[*b].0));
        }
        Map { entries, sorted: order }
    }

    pub fn entries(&self) -> &[(Arc<str>, Value)] {
        &self.entries
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.sorted.binary_search_by(|at| self.entries[*at].0.as_ref().cmp(key)).ok()?;
        Some(&self.entries[self.sorted[found]].1)
    }
}

fn last_of_each_key(mut entries: Vec<(Arc<str>, Value)>, order: &[usize]) -> Vec<(Arc<str>, Value)> {
    let mut kept = vec![true; entries.len()];
    let mut first = 0;
    // The sort is stable, so that equal keys stand in the order they were written.
    for run in order.chunk_by(|a, b| entries[*a].0 == entries[*b].0).map(<[usize]>::to_vec).collect::<Vec<_>>() {
        let last = run[run.len() - 1];
        entries[run[0]].1 = entries[last].1.clone();
        run[1..].iter().for_each(|at| kept[*at] = false);
    }
    entries.retain(|_| {
        first += 1;
        kept[first - 1]
    });
    entries
}

/// Compares exactly: turning the integer into a double would make 2^53 and 2^53 + 1 equal.
pub(super) fn compare_int_double(int: i64, double: f64) -> Ordering {
    const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;
    if double >= TWO_POW_63 {
        Ordering::Less
    } else if double < -TWO_POW_63 {
        Ordering::Greater
    } else {
        let whole = double.trunc();
        int.cmp(&(whole as i64)).then(0.0_f64.total_cmp(&(double - whole + 0.0)))
    }
}
