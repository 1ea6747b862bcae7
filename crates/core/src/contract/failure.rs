//! Failure classes (what a worker can say), policies (what then happens) and kinds (how a run or step ended).

use serde::{Deserialize, Serialize};

use super::state::states;
use crate::ids::{Path, RunId};
use crate::time::Timestamp;
use std::fmt;

states! {
    /// What went wrong with one attempt; each class has a recovery policy.
    FailureClass {
        /// It may work the next time.
        Transient = "transient",
        /// The other side asked for patience.
        RateLimited = "rate_limited",
        /// The lease ran out and repeating is safe.
        Lost = "lost",
        /// Nobody knows whether the effect happened.
        OutcomeUnknown = "outcome_unknown",
        /// The input or the output is not what was declared.
        Validation = "validation",
        /// The connection's credentials are not accepted.
        Auth = "auth",
        /// The credentials are fine and do not allow this.
        Permission = "permission",
        /// The world is not as this step requires.
        Conflict = "conflict",
        /// Trying again cannot help.
        Fatal = "fatal",
    }
}

states! {
    /// What recovery does about a failure.
    Policy {
        /// Try again after a back-off, as long as attempts are left.
        Retry = "retry",
        /// Probe first, then decide.
        Reconcile = "reconcile",
        /// Ask an operator.
        Ask = "ask",
        /// Rest in `stalled` until somebody decides.
        Hold = "hold",
        /// Fail the step.
        Fail = "fail",
        /// Fail the step and let the run go on with a warning.
        Warn = "warn",
        /// Fail the run and undo what it did.
        Compensate = "compensate",
        /// Wait for the connection. Only class `auth` does this, by default.
        WaitOnAuth = "wait_on_auth",
        /// Check `requires` again. Only class `conflict` does this, by default.
        ReEvaluate = "re_evaluate",
    }
}

impl FailureClass {
    /// What happens unless the workflow says otherwise.
    pub const fn default_policy(self) -> Policy {
        match self {
            FailureClass::Transient | FailureClass::RateLimited | FailureClass::Lost => Policy::Retry,
            FailureClass::OutcomeUnknown => Policy::Reconcile,
            FailureClass::Validation | FailureClass::Permission => Policy::Ask,
            FailureClass::Auth => Policy::WaitOnAuth,
            FailureClass::Conflict => Policy::ReEvaluate,
            FailureClass::Fatal => Policy::Fail,
        }
    }
}

states! {
    /// How a step or a run ended in failure.
    FailureKind {
        /// A step failed for good.
        StepFailed = "step_failed",
        /// The last attempt's lease was lost.
        WorkerCrash = "worker_crash",
        /// A child run failed or was canceled.
        ChildFailed = "child_failed",
        /// The run's or a step's deadline, or a step's last timeout, passed.
        TimedOut = "timed_out",
        /// A person said no.
        Rejected = "rejected",
        /// A wait's own deadline passed.
        Expired = "expired",
        /// The saga undid everything, and that is proven.
        RolledBack = "rolled_back",
        /// The saga could not undo everything.
        RollbackIncomplete = "rollback_incomplete",
        /// Something cannot be executed as it is written or given.
        Invalid = "invalid",
        /// A budget is used up.
        BudgetExhausted = "budget_exhausted",
    }
}

/// Why a step or a run failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    pub class: FailureClass,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<Path>,
    pub attempt: u32,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_run_id: Option<RunId>,
    /// What started a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<Failure>>,
    /// Effects of which nobody knows whether they happened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_effects: Vec<String>,
}

impl Failure {
    pub fn new(kind: FailureKind, class: FailureClass, message: impl Into<String>, at: Timestamp) -> Failure {
        Failure {
            kind,
            class,
            code: None,
            message: message.into(),
            step_id: None,
            attempt: 0,
            at,
            details: None,
            child_run_id: None,
            cause: None,
            unknown_effects: Vec::new(),
        }
    }

    pub fn coded(self, code: impl Into<String>) -> Failure {
        Failure { code: Some(code.into()), ..self }
    }

    pub fn of(self, step_id: Path, attempt: u32) -> Failure {
        Failure { step_id: Some(step_id), attempt, ..self }
    }
}
