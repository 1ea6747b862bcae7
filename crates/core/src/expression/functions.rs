//! Functions and methods. Each pays for what it reads and makes before it makes it.

use std::sync::Arc;

use super::ast::{Conversion, Method, Pattern};
use super::error::EvalError;
use super::evaluate::Evaluation;
use super::value::{Value, double_text};

impl Evaluation<'_, '_> {
    pub(super) fn convert(&mut self, conversion: Conversion, value: Value) -> Result<Value, EvalError> {
        match conversion {
            Conversion::Size => self.size(&value),
            Conversion::Int => self.int_of(&value),
            Conversion::Double => self.double_of(&value),
            Conversion::String => self.string_of(value),
            Conversion::Bool => self.bool_of(&value),
        }
    }

    pub(super) fn call(&mut self, method: Method, receiver: &Value, arguments: &[Value]) -> Result<Value, EvalError> {
        match (method, receiver) {
            (Method::Size, value) => return self.size(value),
            (Method::Join, Value::List(items)) => return self.join(items, arguments),
            (Method::Join, other) => return Err(self.type_error("join", "a list of strings", other.type_name())),
            _ => {}
        }
        let Value::String(text) = receiver else {
            return Err(self.type_error(method.name(), "a string before it", receiver.type_name()));
        };
        self.spend_bytes(text.len())?;
        match method {
            Method::LowerAscii => Ok(Value::string(text.to_ascii_lowercase())),
            Method::UpperAscii => Ok(Value::string(text.to_ascii_uppercase())),
            Method::Trim => Ok(Value::string(text.trim())),
            Method::Substring => self.substring(text, arguments),
            Method::Replace => {
                let (from, to) = (self.text_argument(method, arguments, 0)?, self.text_argument(method, arguments, 1)?);
                self.replace(text, &from, &to)
            }
            Method::Contains => Ok(Value::Bool(text.contains(&*self.part(method, arguments)?))),
            Method::StartsWith => Ok(Value::Bool(text.starts_with(&*self.part(method, arguments)?))),
            Method::EndsWith => Ok(Value::Bool(text.ends_with(&*self.part(method, arguments)?))),
            Method::Split => {
                let part = self.part(method, arguments)?;
                self.split(text, &part)
            }
            Method::Size | Method::Join => self.size(receiver),
        }
    }

    /// The texts that a search looks for.
    fn part(&mut self, method: Method, arguments: &[Value]) -> Result<Arc<str>, EvalError> {
        let part = self.text_argument(method, arguments, 0)?;
        self.spend_bytes(part.len())?;
        Ok(part)
    }

    pub(super) fn matches(&mut self, receiver: &Value, pattern: &Pattern) -> Result<Value, EvalError> {
        let Value::String(text) = receiver else {
            return Err(self.type_error("matches", "a string before it", receiver.type_name()));
        };
        self.spend(text.len().saturating_mul(pattern.fuel_per_byte))?;
        Ok(Value::Bool(pattern.regex.is_match(text)))
    }

    fn size(&mut self, value: &Value) -> Result<Value, EvalError> {
        let size = match value {
            Value::String(text) => {
                self.spend_bytes(text.len())?;
                text.chars().count()
            }
            Value::List(items) => items.len(),
            Value::Map(map) => map.entries().len(),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Double(_) => {
                return Err(self.type_error("size", "a string, list or map", value.type_name()));
            }
        };
        Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
    }

    /// A double loses its fraction; one beyond 64 bits is an error.
    fn int_of(&mut self, value: &Value) -> Result<Value, EvalError> {
        const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;
        match value {
            Value::Int(int) => Ok(Value::Int(*int)),
            Value::Double(double) if (-TWO_POW_63..TWO_POW_63).contains(double) => Ok(Value::Int(*double as i64)),
            Value::Double(_) => Err(self.overflow("int")),
            Value::String(text) => {
                self.spend_bytes(text.len())?;
                text.parse().map(Value::Int).map_err(|_| self.bad_value("int() is given a string that is no integer"))
            }
            Value::Null | Value::Bool(_) | Value::List(_) | Value::Map(_) => {
                Err(self.type_error("int", "a number or string", value.type_name()))
            }
        }
    }

    fn double_of(&mut self, value: &Value) -> Result<Value, EvalError> {
        match value {
            Value::Int(int) => Ok(Value::Double(*int as f64)),
            Value::Double(double) => Ok(Value::Double(*double)),
            Value::String(text) => {
                self.spend_bytes(text.len())?;
                let double = text.parse().ok().filter(|double: &f64| double.is_finite());
                double
                    .map(Value::Double)
                    .ok_or_else(|| self.bad_value("double() is given a string that is no finite number"))
            }
            Value::Null | Value::Bool(_) | Value::List(_) | Value::Map(_) => {
                Err(self.type_error("double", "a number or string", value.type_name()))
            }
        }
    }

    fn string_of(&mut self, value: Value) -> Result<Value, EvalError> {
        match value {
            Value::String(_) => Ok(value),
            Value::Int(int) => Ok(Value::string(int.to_string())),
            Value::Double(double) => Ok(Value::string(double_text(double))),
            Value::Bool(bool) => Ok(Value::string(bool.to_string())),
            Value::Null | Value::List(_) | Value::Map(_) => {
                Err(self.type_error("string", "a string, number or bool", value.type_name()))
            }
        }
    }

    fn bool_of(&mut self, value: &Value) -> Result<Value, EvalError> {
        match value {
            Value::Bool(bool) => Ok(Value::Bool(*bool)),
            Value::String(text) => match &**text {
                "true" | "True" | "TRUE" | "t" | "1" => Ok(Value::Bool(true)),
                "false" | "False" | "FALSE" | "f" | "0" => Ok(Value::Bool(false)),
                _ => Err(self.bad_value("bool() is given a string that is neither true nor false")),
            },
            Value::Null | Value::Int(_) | Value::Double(_) | Value::List(_) | Value::Map(_) => {
                Err(self.type_error("bool", "a bool or string", value.type_name()))
            }
        }
    }

    fn text_argument(&mut self, method: Method, arguments: &[Value], at: usize) -> Result<Arc<str>, EvalError> {
        match arguments.get(at) {
            Some(Value::String(text)) => Ok(Arc::clone(text)),
            Some(other) => Err(self.type_error(method.name(), "strings", other.type_name())),
            None => Err(self.type_error(method.name(), "strings", "nothing")),
        }
    }

    /// An empty separator splits into characters.
    fn split(&mut self, text: &str, separator: &str) -> Result<Value, EvalError> {
        if separator.is_empty() {
            self.spend(text.chars().count())?;
            let mut buffer = [0; 4];
            return Ok(Value::List(text.chars().map(|char| Value::string(&*char.encode_utf8(&mut buffer))).collect()));
        }
        self.spend(text.matches(separator).count() + 1)?;
        Ok(Value::List(text.split(separator).map(Value::string).collect()))
    }

    fn join(&mut self, items: &[Value], arguments: &[Value]) -> Result<Value, EvalError> {
        let separator =
            if arguments.is_empty() { Arc::from("") } else { self.text_argument(Method::Join, arguments, 0)? };
        self.spend(items.len())?;
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            let text = item.as_str();
            texts.push(text.ok_or_else(|| self.type_error("join", "a list of strings", item.type_name()))?);
        }
        let separators = separator.len().saturating_mul(items.len().saturating_sub(1));
        self.spend_text(texts.iter().map(|text| text.len()).sum::<usize>().saturating_add(separators))?;
        Ok(Value::string(texts.join(&separator)))
    }

    fn replace(&mut self, text: &str, from: &str, to: &str) -> Result<Value, EvalError> {
        let count = text.matches(from).count();
        self.spend(count)?;
        self.spend_text((text.len() - count * from.len()).saturating_add(count.saturating_mul(to.len())))?;
        Ok(Value::string(text.replace(from, to)))
    }

    /// Counts characters, from `start` up to but without `end`.
    fn substring(&mut self, text: &str, arguments: &[Value]) -> Result<Value, EvalError> {
        let length = text.chars().count();
        let mut bounds = [0, length];
        for (bound, argument) in bounds.iter_mut().zip(arguments) {
            let Value::Int(int) = argument else {
                return Err(self.type_error("substring", "ints", argument.type_name()));
            };
            *bound = usize::try_from(*int).unwrap_or(usize::MAX);
        }
        let [start, end] = bounds;
        if start > end || end > length {
            return Err(self.bad_value("substring() is given places beyond the string"));
        }
        Ok(Value::string(text.chars().skip(start).take(end - start).collect::<String>()))
    }
}
