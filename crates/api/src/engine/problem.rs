//! Errors of the engine as problems: the one place where they get a status.

use abide_core::contract::{RUN, RunState};
use abide_core::definition::{DefinitionError, parse_duration};
use abide_core::run::command::Rejection;
use abide_core::run::step::FieldFault;
use abide_core::time::Span;
use abide_engine::store::StoreError;
use abide_engine::{Error, ReadError};

use crate::{Code, Problem};

/// Longest id or name.
const LONGEST_NAME: usize = 128;

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let code = Code::parse(error.code()).unwrap_or(Code::Internal);
        match error {
            Error::Rejected { why, state } => refused(code, &why, state),
            Error::Definition(faults) => of_document(code, &faults),
            Error::NotUnique(run_id) => Problem::new(code, format!("run {run_id} is open and has this unique value"))
                .with("run_id", run_id.as_str()),
            Error::VersionMismatch { current, expected } => {
                Problem::new(code, format!("the run has version {current}, not {expected}")).with("version", current)
            }
            Error::StoreUnavailable(why) => {
                tracing::error!(%why, "the store cannot be used");
                Problem::new(code, "The store cannot be used right now; nothing was written.")
            }
            other => Problem::new(code, sentence(&other.to_string())),
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Problem {
        let detail = sentence(&error.to_string());
        match error {
            ReadError::NoRun(_) | ReadError::NoStep(..) => not_found(),
            ReadError::NoWorkflow(_) => Problem::new(Code::WorkflowNotFound, detail),
            ReadError::Refused(why, state) => refused(Code::parse(why.code()).unwrap_or(Code::Internal), &why, state),
            ReadError::NotThen(_) => Problem::invalid("at", detail),
            ReadError::BadCursor => Problem::new(Code::InvalidCursor, detail),
            ReadError::BadLimit => Problem::invalid("limit", detail),
            ReadError::NotInArchive(name) => Problem::invalid(name, detail),
            ReadError::Store(StoreError::Busy(why)) => {
                tracing::warn!(%why, "a read took too long");
                Problem::new(Code::Overloaded, "The read took too long.")
            }
            ReadError::Store(cause) => {
                tracing::error!(%cause, "store");
                Problem::new(Code::StoreUnavailable, "The store cannot be read right now.")
            }
        }
    }
}

/// The same for an unknown id, a malformed one and one of another namespace.
fn not_found() -> Problem {
    Problem::new(Code::NotFound, "There is nothing with this id in this namespace.")
}

fn refused(code: Code, why: &Rejection, state: Option<RunState>) -> Problem {
    let problem = match why {
        Rejection::NoRun(_) | Rejection::NoCallback => return not_found(),
        Rejection::Bug(detail) => {
            tracing::error!(%detail, "the rules contradict themselves");
            return Problem::new(Code::Internal, "The rules contradict themselves; it is logged.");
        }
        Rejection::InputInvalid(faults) | Rejection::Invalid(faults) => {
            Problem { errors: faults.iter().map(field).collect(), ..Problem::new(code, sentence(&why.to_string())) }
        }
        Rejection::RunExists(run_id) => Problem::new(code, sentence(&why.to_string())).with("run_id", run_id.as_str()),
        Rejection::AlreadyDecided { by, at, .. } => Problem::new(code, sentence(&why.to_string()))
            .with("decided_by", by.as_str())
            .with("decided_at", at.to_string()),
        _ => Problem::new(code, sentence(&why.to_string())),
    };
    match state {
        Some(state) if problem.status == 409 => problem
            .with("current_state", state.as_str())
            .with("allowed", allowed(state).into_iter().map(serde_json::Value::from).collect::<Vec<_>>()),
        _ => problem,
    }
}

/// Where a run can go from a state, read off the table.
fn allowed(state: RunState) -> Vec<&'static str> {
    let mut to: Vec<_> = RUN.iter().filter(|row| row.from == Some(state)).map(|row| row.to.as_str()).collect();
    to.dedup();
    to
}

fn field(fault: &FieldFault) -> crate::FieldError {
    crate::FieldError { pointer: fault.pointer.clone(), detail: fault.detail.clone() }
}

fn of_document(code: Code, error: &DefinitionError) -> Problem {
    let mut problem = Problem::new(code, sentence(&error.to_string()));
    for fault in error.faults() {
        let line = fault.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let hint = fault.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        problem = problem.field(fault.path.clone(), format!("{line}{}{hint}", fault.message));
    }
    if !error.faults().is_empty() {
        problem = problem.with("faults", serde_json::to_value(error.faults()).unwrap_or_default());
    }
    problem
}

/// A refusal is a sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let mut said: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    if !said.ends_with(['.', '!', '?', ':']) {
        said.push('.');
    }
    said
}

/// A duration of the request, as `30s` or `7d`.
pub fn duration(pointer: &str, text: &str) -> Result<Span, Problem> {
    parse_duration(text).map_err(|why| Problem::invalid(pointer, format!("{text:?} is not a duration: {why}")))
}

/// A name that people and programs use: short, printable, without characters that only confuse.
pub fn identifier<'a>(pointer: &str, text: &'a str) -> Result<&'a str, Problem> {
    let confusing = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    if text.is_empty() {
        Err(Problem::invalid(pointer, "It must not be empty."))
    } else if text.len() > LONGEST_NAME {
        Err(Problem::invalid(pointer, format!("It has {} bytes; at most {LONGEST_NAME} are allowed.", text.len())))
    } else if text.chars().any(confusing) {
        Err(Problem::invalid(pointer, "It has a control character or an invisible one."))
    } else {
        Ok(text)
    }
}

/// Puts a pointer before the fields of a problem about a part of the request.
pub fn at_field(problem: Problem, prefix: &str) -> Problem {
    let errors = problem.errors.into_iter();
    let errors = errors.map(|error| crate::FieldError { pointer: format!("{prefix}{}", error.pointer), ..error });
    Problem { errors: errors.collect(), ..problem }
}
