//! Why there is no answer.

use abide_api::Problem;

/// What can go wrong between a question and its answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server understood and says no; the problem tells why and what helps.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// Nobody answered, or the answer was cut off.
    #[error("{server} cannot be reached: {cause}")]
    Unreachable { server: String, cause: String },
    /// Something answered that is not an Abide server, or is one of another time.
    #[error("the answer of {server} cannot be read: {cause}")]
    Unreadable { server: String, cause: String },
    /// What was to be sent cannot be written as JSON, or the address is none.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Whether asking the same again may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Refused(problem) => problem.retryable,
            Error::Unreachable { .. } => true,
            Error::Unreadable { .. } | Error::Invalid(_) => false,
        }
    }

    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// Whether it is this refusal.
    pub fn is(&self, code: abide_api::Code) -> bool {
        self.problem().is_some_and(|problem| problem.is(code))
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Error {
        Error::Refused(Box::new(problem))
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Error {
        Error::Invalid(format!("this cannot be written as JSON: {error}"))
    }
}
