//! Why an expression is refused at upload or fails at run time. No error carries a value, because values may be secret.

use thiserror::Error;

/// Why a text is not an expression this engine runs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// It is over a limit, and would be refused however it were spelled.
    #[error("the expression is too complex at byte {offset}: {limit}")]
    TooComplex { offset: usize, limit: String },
    #[error("{fault} at byte {offset}; {hint}")]
    Syntax { offset: usize, fault: String, hint: String },
}

impl CompileError {
    pub(super) fn too_complex(offset: usize, limit: impl Into<String>) -> CompileError {
        CompileError::TooComplex { offset, limit: limit.into() }
    }

    pub(super) fn syntax(offset: usize, fault: impl Into<String>, hint: impl Into<String>) -> CompileError {
        CompileError::Syntax { offset, fault: fault.into(), hint: hint.into() }
    }

    pub fn is_too_complex(&self) -> bool {
        matches!(self, CompileError::TooComplex { .. })
    }

    /// Where in the given text, in bytes.
    pub fn offset(&self) -> usize {
        match self {
            CompileError::TooComplex { offset, .. } | CompileError::Syntax { offset, .. } => *offset,
        }
    }

    /// The same fault, in a text that begins `by` bytes earlier.
    pub(super) fn moved(mut self, by: usize) -> CompileError {
        match &mut self {
            CompileError::TooComplex { offset, .. } | CompileError::Syntax { offset, .. } => *offset += by,
        }
        self
    }
}

/// Why an expression has no value here. It names the expression, keys and types, never values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EvalError {
    #[error("`{expression}` costs too much: {limit}")]
    CostExceeded { expression: String, limit: String },
    #[error("`{expression}` reads key `{key}`, which is missing; {}", present_keys(.present))]
    MissingKey {
        expression: String,
        key: String,
        /// The first keys that are there instead.
        present: Vec<String>,
    },
    #[error("`{expression}`: {operation} takes {takes}, but was given {given}")]
    Type { expression: String, operation: String, takes: String, given: String },
    #[error("`{expression}`: {operation} {fault}")]
    Arithmetic { expression: String, operation: String, fault: String },
    #[error("`{expression}`: {fault}")]
    BadValue { expression: String, fault: String },
}

impl EvalError {
    /// The stable name of the fault, as a step's failure carries it.
    pub fn code(&self) -> &'static str {
        match self {
            EvalError::CostExceeded { .. } => "expression_cost_exceeded",
            EvalError::MissingKey { .. } => "expression_missing_key",
            EvalError::Type { .. } => "expression_type",
            EvalError::Arithmetic { .. } => "expression_arithmetic",
            EvalError::BadValue { .. } => "expression_bad_value",
        }
    }

    pub fn expression(&self) -> &str {
        match self {
            EvalError::CostExceeded { expression, .. }
            | EvalError::MissingKey { expression, .. }
            | EvalError::Type { expression, .. }
            | EvalError::Arithmetic { expression, .. }
            | EvalError::BadValue { expression, .. } => expression,
        }
    }
}

fn present_keys(present: &[String]) -> String {
    match present {
        [] => "no keys are present there".to_owned(),
        keys => format!("present: {}", keys.join(", ")),
    }
}
