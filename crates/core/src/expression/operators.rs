//! What operators do to values: numbers mix, compare exactly and never overflow silently.

use std::cmp::Ordering;

use super::ast::Operator;
use super::error::EvalError;
use super::evaluate::Evaluation;
use super::value::{Map, Value, compare_int_double};

impl Evaluation<'_, '_> {
    pub(super) fn apply(&mut self, operator: Operator, left: &Value, right: &Value) -> Result<Value, EvalError> {
        match operator {
            Operator::Equal => self.equal(left, right).map(Value::Bool),
            Operator::Unequal => self.equal(left, right).map(|equal| Value::Bool(!equal)),
            Operator::Less => self.compare(operator, left, right, Ordering::is_lt),
            Operator::LessOrEqual => self.compare(operator, left, right, Ordering::is_le),
            Operator::Greater => self.compare(operator, left, right, Ordering::is_gt),
            Operator::GreaterOrEqual => self.compare(operator, left, right, Ordering::is_ge),
            Operator::In => self.contains_value(left, right).map(Value::Bool),
            Operator::Add => self.add(left, right),
            Operator::Subtract => self.calculate(operator, left, right, |left, right| left - right, i64::checked_sub),
            Operator::Multiply => self.calculate(operator, left, right, |left, right| left * right, i64::checked_mul),
            Operator::Divide => self.calculate(operator, left, right, |left, right| left / right, i64::checked_div),
            Operator::Remainder => self.calculate(operator, left, right, |left, right| left % right, i64::checked_rem),
        }
    }

    /// Values of different types are unequal; an int and a double are equal when they are the same number.
    fn equal(&mut self, left: &Value, right: &Value) -> Result<bool, EvalError> {
        self.spend(1)?;
        match (left, right) {
            (Value::Null, Value::Null) => Ok(true),
            (Value::Bool(left), Value::Bool(right)) => Ok(left == right),
            (Value::Int(left), Value::Int(right)) => Ok(left == right),
            (Value::Double(left), Value::Double(right)) => Ok(left == right),
            (Value::Int(int), Value::Double(double)) | (Value::Double(double), Value::Int(int)) => {
                Ok(compare_int_double(*int, *double).is_eq())
            }
            (Value::String(left), Value::String(right)) => {
                self.spend_bytes(left.len().min(right.len()))?;
                Ok(left == right)
            }
            (Value::List(left), Value::List(right)) => self.equal_lists(left, right),
            (Value::Map(left), Value::Map(right)) => self.equal_maps(left, right),
            _ => Ok(false),
        }
    }

    fn equal_lists(&mut self, left: &[Value], right: &[Value]) -> Result<bool, EvalError> {
        if left.len() != right.len() {
            return Ok(false);
        }
        for (left, right) in left.iter().zip(right) {
            if !self.equal(left, right)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn equal_maps(&mut self, left: &Map, right: &Map) -> Result<bool, EvalError> {
        if left.entries().len() != right.entries().len() {
            return Ok(false);
        }
        for (key, value) in left.entries() {
            self.spend_bytes(key.len())?;
            match right.get(key) {
                Some(other) if self.equal(value, other)? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn compare(
        &mut self,
        operator: Operator,
        left: &Value,
        right: &Value,
        holds: fn(Ordering) -> bool,
    ) -> Result<Value, EvalError> {
        let ordering = match (left, right) {
            (Value::Int(left), Value::Int(right)) => left.cmp(right),
            (Value::Int(int), Value::Double(double)) => compare_int_double(*int, *double),
            (Value::Double(double), Value::Int(int)) => compare_int_double(*int, *double).reverse(),
            (Value::Double(left), Value::Double(right)) => left.partial_cmp(right).unwrap_or(Ordering::Equal),
            (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
            (Value::String(left), Value::String(right)) => {
                self.spend_bytes(left.len().min(right.len()))?;
                left.cmp(right)
            }
            _ => return Err(self.pair_error(operator, "two numbers, two strings or two bools", left, right)),
        };
        Ok(Value::Bool(holds(ordering)))
    }

    fn contains_value(&mut self, item: &Value, container: &Value) -> Result<bool, EvalError> {
        match (item, container) {
            (item, Value::List(items)) => {
                for candidate in items.iter() {
                    if self.equal(item, candidate)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Value::String(key), Value::Map(map)) => Ok(map.get(key).is_some()),
            (_, Value::Map(_)) => Ok(false),
            _ => Err(self.pair_error(Operator::In, "a value and a list, or a key and a map", item, container)),
        }
    }

    fn add(&mut self, left: &Value, right: &Value) -> Result<Value, EvalError> {
        match (left, right) {
            (Value::String(left), Value::String(right)) => {
                self.spend_text(left.len() + right.len())?;
                Ok(Value::string([&**left, &**right].concat()))
            }
            (Value::List(left), Value::List(right)) => {
                self.spend(left.len() + right.len())?;
                Ok(Value::List(left.iter().chain(right.iter()).cloned().collect()))
            }
            _ => self.calculate(Operator::Add, left, right, |left, right| left + right, i64::checked_add),
        }
    }

    fn calculate(
        &mut self,
        operator: Operator,
        left: &Value,
        right: &Value,
        doubles: fn(f64, f64) -> f64,
        ints: fn(i64, i64) -> Option<i64>,
    ) -> Result<Value, EvalError> {
        let divides = matches!(operator, Operator::Divide | Operator::Remainder);
        let (left, right) = match (left, right) {
            (Value::Int(_), Value::Int(0)) if divides => return Err(self.by_zero(operator.sign())),
            (Value::Int(left), Value::Int(right)) => {
                return ints(*left, *right).map(Value::Int).ok_or_else(|| self.overflow(operator.sign()));
            }
            (Value::Int(left), Value::Double(right)) => (*left as f64, *right),
            (Value::Double(left), Value::Int(right)) => (*left, *right as f64),
            (Value::Double(left), Value::Double(right)) => (*left, *right),
            _ if operator == Operator::Add => {
                return Err(self.pair_error(
                    operator,
                    "two numbers, two strings (see string()) or two lists",
                    left,
                    right,
                ));
            }
            _ => return Err(self.pair_error(operator, "two numbers", left, right)),
        };
        if divides && right == 0.0 {
            return Err(self.by_zero(operator.sign()));
        }
        let result = doubles(left, right);
        if result.is_finite() { Ok(Value::Double(result)) } else { Err(self.overflow(operator.sign())) }
    }

    pub(super) fn negate(&mut self, value: Value) -> Result<Value, EvalError> {
        match value {
            Value::Int(int) => int.checked_neg().map(Value::Int).ok_or_else(|| self.overflow("-")),
            Value::Double(double) => Ok(Value::Double(-double)),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::List(_) | Value::Map(_) => {
                Err(self.type_error("-", "a number", value.type_name()))
            }
        }
    }

    pub(super) fn overflow(&self, operation: &str) -> EvalError {
        self.arithmetic(operation, "overflows: ints are 64 bits, doubles finite")
    }

    fn by_zero(&self, operation: &str) -> EvalError {
        self.arithmetic(operation, "divides by zero")
    }

    fn arithmetic(&self, operation: &str, fault: &str) -> EvalError {
        EvalError::Arithmetic {
            expression: self.expression.to_owned(),
            operation: operation.to_owned(),
            fault: fault.to_owned(),
        }
    }

    fn pair_error(&self, operator: Operator, takes: &str, left: &Value, right: &Value) -> EvalError {
        self.type_error(operator.sign(), takes, &format!("{} and {}", left.type_name(), right.type_name()))
    }
}
