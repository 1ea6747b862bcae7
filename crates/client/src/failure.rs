//! What a handler returns when it has no result: a failure of some class, or something that it waits for.

use std::time::Duration;

use abide_api::tasks::{BlockTask, EvidenceTold, FailTask, StepFailure};
use abide_core::contract::{Failure as Stored, FailureClass};
use abide_core::run::size::cut_story;
use serde_json::Value;

/// Why a handler or a step has no result. Every error becomes one with `?`, without a class: then the outcome is unknown
/// if the step is `external`, and else it is tried again.
#[derive(Debug)]
pub struct Failure(Box<Ending>);

#[derive(Debug)]
pub(crate) enum Ending {
    Failed(FailTask),
    /// A step of a body has failed for good: trying the body again would only find that again.
    StepFailed {
        step_id: String,
        told: FailTask,
    },
    /// The lease goes back until something happens.
    Blocked(BlockTask),
    /// The body was released; it is issued again when there is something to do.
    Released,
    /// Whoever asked does not want the result any more.
    Canceled,
}

impl Failure {
    /// Without a class.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure::from_ending(Ending::Failed(FailTask { message: message.into(), ..FailTask::default() }))
    }

    pub fn of(class: FailureClass, message: impl Into<String>) -> Failure {
        Failure::new(message).told(|told| told.class = Some(class))
    }

    /// It may work another time.
    pub fn transient(message: impl Into<String>) -> Failure {
        Failure::of(FailureClass::Transient, message)
    }

    /// Try again after a while, at no cost.
    pub fn rate_limited(message: impl Into<String>, after: Duration) -> Failure {
        Failure::of(FailureClass::RateLimited, message).retry_after(after)
    }

    /// The input must be corrected by a person.
    pub fn validation(message: impl Into<String>) -> Failure {
        Failure::of(FailureClass::Validation, message)
    }

    /// A connection must be made anew.
    pub fn auth(tool: impl Into<String>, account: impl Into<String>, message: impl Into<String>) -> Failure {
        let (tool, account) = (Some(tool.into()), Some(account.into()));
        Failure::of(FailureClass::Auth, message).told(|told| (told.tool, told.account) = (tool, account))
    }

    pub fn permission(message: impl Into<String>) -> Failure {
        Failure::of(FailureClass::Permission, message)
    }

    /// The world is not as the step needs it.
    pub fn conflict(message: impl Into<String>) -> Failure {
        Failure::of(FailureClass::Conflict, message)
    }

    /// Nobody knows whether it happened: look before it is tried again.
    pub fn outcome_unknown(message: impl Into<String>) -> Failure {
        Failure::of(FailureClass::OutcomeUnknown, message)
    }

    /// It will never work.
    pub fn fatal(message: impl Into<String>) -> Failure {
        Failure::of(FailureClass::Fatal, message)
    }

    /// The handler has stopped because it was asked to.
    pub fn canceled() -> Failure {
        Failure::from_ending(Ending::Canceled)
    }

    /// What the outside world calls the failure; `on_result` can look at it.
    pub fn code(self, code: impl Into<String>) -> Failure {
        let code = Some(code.into());
        self.told(|told| told.code = code)
    }

    pub fn details(self, details: Value) -> Failure {
        self.told(|told| told.details = Some(details))
    }

    pub fn retry_after(self, after: Duration) -> Failure {
        let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self.told(|told| told.retry_after_ms = Some(after))
    }

    pub fn evidence(self, kind: impl Into<String>, reference: impl Into<String>) -> Failure {
        let evidence = EvidenceTold { kind: kind.into(), reference: reference.into() };
        self.told(|told| told.evidence.push(evidence))
    }

    /// The class, where there is one.
    pub fn class(&self) -> Option<FailureClass> {
        match &*self.0 {
            Ending::Failed(told) | Ending::StepFailed { told, .. } => told.class,
            Ending::Blocked(_) | Ending::Released | Ending::Canceled => None,
        }
    }

    pub fn message(&self) -> &str {
        match &*self.0 {
            Ending::Failed(told) | Ending::StepFailed { told, .. } => &told.message,
            Ending::Blocked(block) => block.message.as_deref().unwrap_or("it waits"),
            Ending::Released => "the lease was given back",
            Ending::Canceled => "it was asked to stop",
        }
    }

    /// Whether it is a failure, and not a wait or a stop: a body that catches failures must pass the others on.
    pub fn is_failure(&self) -> bool {
        matches!(&*self.0, Ending::Failed(_) | Ending::StepFailed { .. })
    }

    pub(crate) fn from_ending(ending: Ending) -> Failure {
        Failure(Box::new(ending))
    }

    pub(crate) fn into_ending(self) -> Ending {
        *self.short().0
    }

    /// What is told of it is stored whole, or its beginning.
    fn short(self) -> Failure {
        self.told(|told| cut_story(&mut told.message, &mut told.details))
    }

    pub(crate) fn from_step(step_id: &str, failure: Stored) -> Failure {
        let Stored { class, message, code, details, .. } = failure;
        let told = FailTask { class: Some(class), message, code, details, ..FailTask::default() };
        Failure::from_ending(Ending::StepFailed { step_id: step_id.to_owned(), told })
    }

    pub(crate) fn into_step(self) -> StepFailure {
        match *self.short().0 {
            Ending::Failed(told) | Ending::StepFailed { told, .. } => {
                let FailTask { class, message, code, retry_after_ms, details, tool, account, .. } = told;
                StepFailure { class, message, code, retry_after_ms, details, tool, account }
            }
            Ending::Blocked(_) | Ending::Released => StepFailure {
                class: Some(FailureClass::Fatal),
                message: "a step inside a body cannot wait; let the body wait with ctx.approve, ctx.signal, …".into(),
                ..StepFailure::default()
            },
            Ending::Canceled => StepFailure { message: "it was asked to stop".into(), ..StepFailure::default() },
        }
    }

    fn told(mut self, change: impl FnOnce(&mut FailTask)) -> Failure {
        if let Ending::Failed(told) | Ending::StepFailed { told, .. } = &mut *self.0 {
            change(told);
        }
        self
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.class() {
            Some(class) => write!(f, "{class}: {}", self.message()),
            None => f.write_str(self.message()),
        }
    }
}

/// `Failure` itself is no `Error`, so that every other error can become one with `?`.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            message.push_str(": ");
            message.push_str(&deeper.to_string());
            cause = deeper.source();
        }
        Failure::new(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_becomes_a_failure_without_a_class() {
        let failure: Failure = "x".parse::<u32>().map_err(Failure::from).expect_err("no number");
        assert!(failure.is_failure());
        assert_eq!(failure.class(), None);
        assert_eq!(failure.message(), "invalid digit found in string");
    }

    #[test]
    fn a_failure_keeps_what_was_said_about_it() {
        let failure = Failure::rate_limited("slow down", Duration::from_secs(2)).code("429");
        let Ending::Failed(told) = failure.into_ending() else { panic!("it is a failure") };
        assert_eq!((told.class, told.retry_after_ms), (Some(FailureClass::RateLimited), Some(2000)));
        assert_eq!(told.code.as_deref(), Some("429"));
    }
}
