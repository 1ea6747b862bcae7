//! Builds a value from JSON text, paying for every element before it is kept.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::json::first_inexact_number;
use super::meter::{Exhausted, Meter};
use super::value::{Map, Value};

/// How much of a number a message shows.
const SHOWN_DIGITS: usize = 32;

/// Why a text gives no value.
pub(super) enum Unreadable {
    Exhausted,
    /// Not JSON, nested too deeply, or a string that is not Unicode.
    Invalid,
    /// A number that would silently become another one; the text is cut to what a message can show.
    Number(String),
}

pub(super) fn materialise(json: &str, meter: &mut Meter) -> Result<Value, Unreadable> {
    meter.spend_bytes(json.len()).map_err(|Exhausted| Unreadable::Exhausted)?;
    if let Some(number) = first_inexact_number(json) {
        return Err(Unreadable::Number(number.chars().take(SHOWN_DIGITS).collect()));
    }
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let value = Seed(&mut *meter).deserialize(&mut deserializer);
    match value {
        Ok(value) => deserializer.end().map(|()| value).map_err(|_| Unreadable::Invalid),
        Err(_) if meter.is_exhausted() => Err(Unreadable::Exhausted),
        Err(_) => Err(Unreadable::Invalid),
    }
}

struct Seed<'m>(&'m mut Meter);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.spend(1).map_err(D::Error::custom)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Value, E> {
        Ok(Value::Bool(bool))
    }

    fn visit_i64<E>(self, int: i64) -> Result<Value, E> {
        Ok(Value::Int(int))
    }

    fn visit_u64<E>(self, int: u64) -> Result<Value, E> {
        Ok(i64::try_from(int).map_or(Value::Double(int as f64), Value::Int))
    }

    fn visit_f64<E: Error>(self, double: f64) -> Result<Value, E> {
        if double.is_finite() { Ok(Value::Double(double)) } else { Err(E::custom("out of range")) }
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::string(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Seed(&mut *self.0))? {
            list.push(item);
        }
        Ok(Value::List(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut entries: Vec<(Arc<str>, Value)> = Vec::new();
        while let Some(key) = members.next_key::<Arc<str>>()? {
            entries.push((key, members.next_value_seed(Seed(&mut *self.0))?));
        }
        Ok(Value::Map(Arc::new(Map::new(entries))))
    }
}
