//! What can be wrong with a workflow document, said so that its author can put it right.

use std::fmt;

use serde::Serialize;

use super::model::Definition;

/// The largest document that is read.
pub const LARGEST_DOCUMENT_BYTES: usize = 256 * 1024;

/// Faults reported at most; a hostile document must not make a huge answer.
pub(super) const MOST_FAULTS: usize = 200;

/// A document that was read, and what is odd about it without being wrong.
#[derive(Clone, Debug)]
pub struct Parsed {
    pub definition: Definition,
    pub warnings: Vec<Fault>,
}

/// Why a document is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DefinitionError {
    #[error("the document has {size} bytes; at most {limit} are read")]
    TooLarge { size: usize, limit: usize },
    /// Aliases, nesting or sheer number of values beyond any use.
    #[error("the document is too complex: {}", first(.0))]
    TooComplex(Vec<Fault>),
    /// At least one expression is beyond its limits; the other faults are listed too.
    #[error("an expression of the document is too complex: {}", first(.0))]
    ExpressionTooComplex(Vec<Fault>),
    #[error("the document has {} fault(s): {}", .0.len(), first(.0))]
    Invalid(Vec<Fault>),
}

impl DefinitionError {
    /// The code of the problem that a caller sees.
    pub fn code(&self) -> &'static str {
        match self {
            DefinitionError::TooLarge { .. } => "payload-too-large",
            DefinitionError::TooComplex(_) => "definition-too-complex",
            DefinitionError::ExpressionTooComplex(_) => "expression-too-complex",
            DefinitionError::Invalid(_) => "definition-invalid",
        }
    }

    /// In the order of the document.
    pub fn faults(&self) -> &[Fault] {
        match self {
            DefinitionError::TooLarge { .. } => &[],
            DefinitionError::TooComplex(faults)
            | DefinitionError::ExpressionTooComplex(faults)
            | DefinitionError::Invalid(faults) => faults,
        }
    }
}

/// One thing that is wrong: where, what is true, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub code: FaultCode,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// From 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// A JSON pointer into the document, as `/steps/2/retry/first`.
    pub path: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "line {line}, column {column}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

macro_rules! fault_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// The kind of a fault or warning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum FaultCode {
            $($(#[$doc])* $name,)+
        }

        impl FaultCode {
            pub const ALL: &'static [FaultCode] = &[$(FaultCode::$name,)+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(FaultCode::$name => $text,)+
                }
            }
        }
    };
}

fault_codes! {
    /// The text is not YAML (and so not JSON either).
    YamlSyntax = "yaml_syntax",
    /// YAML reads a character of an expression as its own.
    UnquotedExpression = "unquoted_expression",
    /// Aliases, nesting or number of values beyond any use.
    TooComplex = "too_complex",
    DuplicateKey = "duplicate_key",
    UnknownField = "unknown_field",
    MissingField = "missing_field",
    WrongType = "wrong_type",
    /// Text that is not one of the words allowed here, or not of the form asked for.
    BadValue = "bad_value",
    OutOfRange = "out_of_range",
    TooLong = "too_long",
    BadDuration = "bad_duration",
    BadId = "bad_id",
    DuplicateId = "duplicate_id",
    UnknownStep = "unknown_step",
    Cycle = "cycle",
    NoSteps = "no_steps",
    TooManySteps = "too_many_steps",
    NoAction = "no_action",
    TwoActions = "two_actions",
    /// A field that means nothing beside the others, or at this place.
    DoesNotFit = "does_not_fit",
    BadExpression = "bad_expression",
    ExpressionTooComplex = "expression_too_complex",
    /// A name that exists elsewhere, or nowhere.
    NameNotAllowed = "name_not_allowed",
    /// A step that need not have ended when this is read.
    StepNotBefore = "step_not_before",
    BadReference = "bad_reference",
    NeedsMaxVisits = "needs_max_visits",
    BadJump = "bad_jump",
    BadJoin = "bad_join",
    NeedsSaga = "needs_saga",
    BadHeader = "bad_header",
    BadSchema = "bad_schema",
    BadPointer = "bad_pointer",
    SensitiveExposed = "sensitive_exposed",
    NotSupported = "not_supported",
    /// Warning: nobody can find out whether the effect happened.
    ExternalWithoutReconcile = "external_without_reconcile",
    /// Warning: this may wait for ever.
    WaitWithoutDeadline = "wait_without_deadline",
    /// Warning: another branch is still open when this step starts, and nothing waits for it.
    PartialJoin = "partial_join",
    /// Warning: this looks like an expression of another language and is passed on as text.
    MistakenMarks = "mistaken_marks",
    /// Warning: expressions read this step as `steps['ID']`.
    IdNeedsBrackets = "id_needs_brackets",
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for FaultCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

fn first(faults: &[Fault]) -> String {
    faults.first().map(Fault::to_string).unwrap_or_default()
}
