//! What is recommended for a step that does not go on by itself, and why.

use super::view::View;
use super::words::{self, QUOTED, quote};
use crate::contract::ReasonType;
use crate::run::step::{Block, Step, Wait};

/// A recommendation.
pub(super) struct Advice {
    /// The id of the action.
    pub action: &'static str,
    /// The resolution, when the action is one.
    pub resolution: Option<&'static str>,
    pub why: String,
}

impl View<'_> {
    /// What to do about a blocked step. A resolution is only recommended where the rules allow it.
    pub fn advice(&self, step: &Step, block: &Block) -> Advice {
        let (action, why) = self.wanted(step, block);
        let Some(name) = action.strip_prefix("resolve_") else { return Advice { action, resolution: None, why } };
        let allowed = self.resolutions(step);
        match allowed.iter().find(|allowed| **allowed == name).or(allowed.first()) {
            Some(name) => Advice { action: id_of(name), resolution: Some(name), why },
            None => Advice { action: "cancel", resolution: None, why: "nothing else can be done about it".into() },
        }
    }

    fn wanted(&self, step: &Step, block: &Block) -> (&'static str, String) {
        let path = &step.path;
        let asked = match &block.wait {
            Wait::Auth { connection, .. } => {
                return ("reconnect", format!("{path} goes on when {connection} works again"));
            }
            Wait::Approval(_) => return ("approve", format!("{path} goes on when it is decided")),
            Wait::Signal { names, .. } => {
                return ("signal", format!("{path} goes on when {} comes", words::one_of(names)));
            }
            Wait::Retry { .. } => {
                return ("retry_now", format!("{path} is tried again by itself; retrying now saves the wait"));
            }
            Wait::Lost { owner, .. } if self.is_external(step) => {
                return ("retry_now", format!("{owner} was lost; a retry first finds out whether {path} happened"));
            }
            Wait::Lost { owner, .. } => return ("retry_now", format!("{owner} was lost and repeating {path} is safe")),
            Wait::Callback { .. } | Wait::Child { .. } | Wait::Timer | Wait::Probe if block.overdue => {
                return ("retry_now", format!("{path} is given its time once more"));
            }
            Wait::Callback { .. } | Wait::Child { .. } | Wait::Timer | Wait::Probe => {
                return ("resolve_complete", format!("{path} goes on by itself; mark it done only if it is"));
            }
            Wait::Operator { recommended, .. } => recommended.as_deref(),
        };
        let message = quote(&block.message, QUOTED);
        match block.reason() {
            ReasonType::OutcomeUnknown => match self.around.late_proof(path) {
                Some(late) => (
                    "resolve_complete",
                    format!(
                        "its worker answered {}, after its lease was over: mark it done with this result",
                        words::ago(self.now, late.at)
                    ),
                ),
                None => (
                    "resolve_complete",
                    format!(
                        "look at the other side first: mark {path} done with what is there, or retry it if nothing is"
                    ),
                ),
            },
            ReasonType::CorrectionRequired => {
                ("resolve_correct", format!("a corrected input resumes {path}: {message}"))
            }
            ReasonType::PermissionDenied => {
                ("resolve_retry", format!("grant the permission, then retry {path}: {message}"))
            }
            ReasonType::PreconditionFailed => ("resolve_retry", format!("make it hold, then retry {path}: {message}")),
            ReasonType::BodyChanged => {
                ("resolve_retry", "deploy the revision that began this run, then retry; or cancel it and rerun".into())
            }
            ReasonType::PoisonInput => {
                ("resolve_correct", format!("{path} killed its workers: correct its input, or skip it"))
            }
            ReasonType::UndoFailed => ("resolve_retry", format!("retry the undo of {path}: {message}")),
            ReasonType::NoWorkerListening
            | ReasonType::NoWorkerForRevision
            | ReasonType::LimitFull
            | ReasonType::StartDelayed
            | ReasonType::OauthReconnectRequired
            | ReasonType::ApprovalRequired
            | ReasonType::CallbackPending
            | ReasonType::SignalPending
            | ReasonType::ChildOpen
            | ReasonType::Sleeping
            | ReasonType::RateLimited
            | ReasonType::TransientError
            | ReasonType::LeaseLost
            | ReasonType::Overdue
            | ReasonType::HistoryFull
            | ReasonType::PausedByOperator
            | ReasonType::CancelGrace
            | ReasonType::BudgetExhausted
            | ReasonType::OperatorAsked => {
                (asked.and_then(known).unwrap_or("resolve_retry"), self.asked(path.as_str(), asked, &message))
            }
        }
    }

    fn asked(&self, path: &str, recommended: Option<&str>, message: &str) -> String {
        match recommended.filter(|text| known(text).is_none()) {
            Some(text) => format!("{path} asks: {message}; it recommends: {}", quote(text, QUOTED)),
            None => format!("{path} asks: {message}"),
        }
    }
}

fn known(name: &str) -> Option<&'static str> {
    ["retry", "complete", "correct", "skip", "fail", "compensate"]
        .iter()
        .find(|known| **known == name)
        .map(|name| id_of(name))
}

fn id_of(resolution: &str) -> &'static str {
    match resolution {
        "complete" => "resolve_complete",
        "correct" => "resolve_correct",
        "skip" => "resolve_skip",
        "fail" => "resolve_fail",
        "compensate" => "resolve_compensate",
        _ => "resolve_retry",
    }
}
