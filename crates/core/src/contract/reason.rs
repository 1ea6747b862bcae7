//! Why a run does not move, as a closed list of types, and evidence: pointers to what proves it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::state::{RunState, states};
use crate::ids::Path;
use crate::time::Timestamp;

states! {
    /// The types of `blocking_reason`.
    ReasonType {
        /// Work is queued and no worker has asked for it lately.
        NoWorkerListening = "no_worker_listening",
        /// Workers offer the workflow, but not the revision of this run's body.
        NoWorkerForRevision = "no_worker_for_revision",
        /// A concurrency limit is used up.
        LimitFull = "limit_full",
        /// The run has a start time that has not come.
        StartDelayed = "start_delayed",
        /// A connection must be reconnected.
        OauthReconnectRequired = "oauth_reconnect_required",
        /// A person decides.
        ApprovalRequired = "approval_required",
        /// A tool answers through a callback.
        CallbackPending = "callback_pending",
        /// A signal is awaited.
        SignalPending = "signal_pending",
        /// A child run is open.
        ChildOpen = "child_open",
        /// A durable sleep.
        Sleeping = "sleeping",
        /// The other side asked for patience.
        RateLimited = "rate_limited",
        /// The last attempt failed and the next has an instant.
        TransientError = "transient_error",
        /// A worker stopped proving that it lives.
        LeaseLost = "lease_lost",
        /// A wait passed its deadline and nothing was declared for that.
        Overdue = "overdue",
        /// Nobody knows whether an effect happened.
        OutcomeUnknown = "outcome_unknown",
        /// The input must be corrected.
        CorrectionRequired = "correction_required",
        /// The credentials do not allow it.
        PermissionDenied = "permission_denied",
        /// The world is not as the step requires.
        PreconditionFailed = "precondition_failed",
        /// The body of a coded workflow does not match what it did before.
        BodyChanged = "body_changed",
        /// Two workers were lost on the same input.
        PoisonInput = "poison_input",
        /// A step could not be undone.
        UndoFailed = "undo_failed",
        /// The step itself asked for a person.
        OperatorAsked = "operator_asked",
        /// The run's log is as long as a log may be.
        HistoryFull = "history_full",
        /// An operator holds the run.
        PausedByOperator = "paused_by_operator",
        /// A cancel gives work in progress time to stop.
        CancelGrace = "cancel_grace",
        /// A budget is used up.
        BudgetExhausted = "budget_exhausted",
    }
}

impl ReasonType {
    /// The state in which a run rests when this is its only reason.
    pub const fn rests_in(self) -> RunState {
        match self {
            ReasonType::NoWorkerListening
            | ReasonType::NoWorkerForRevision
            | ReasonType::LimitFull
            | ReasonType::StartDelayed => RunState::Queued,
            ReasonType::OauthReconnectRequired => RunState::WaitingOnAuth,
            ReasonType::ApprovalRequired => RunState::WaitingOnApproval,
            ReasonType::CallbackPending | ReasonType::SignalPending => RunState::WaitingOnTool,
            ReasonType::ChildOpen => RunState::WaitingOnChild,
            ReasonType::Sleeping => RunState::WaitingOnTimer,
            ReasonType::RateLimited | ReasonType::TransientError => RunState::RetryScheduled,
            ReasonType::LeaseLost | ReasonType::Overdue => RunState::Stalled,
            ReasonType::OutcomeUnknown
            | ReasonType::CorrectionRequired
            | ReasonType::PermissionDenied
            | ReasonType::PreconditionFailed
            | ReasonType::BodyChanged
            | ReasonType::PoisonInput
            | ReasonType::UndoFailed
            | ReasonType::OperatorAsked
            | ReasonType::HistoryFull
            | ReasonType::BudgetExhausted => RunState::WaitingOnOperator,
            ReasonType::PausedByOperator => RunState::Paused,
            ReasonType::CancelGrace => RunState::CancelRequested,
        }
    }
}

states! {
    /// What a piece of evidence points to.
    EvidenceKind {
        /// A trace.
        Trace = "trace",
        /// A log.
        Log = "log",
        /// A support bundle.
        Bundle = "bundle",
        /// Anything else with an address.
        Link = "link",
    }
}

/// A pointer to a trace, log or bundle. It proves; it never decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    #[serde(rename = "type")]
    pub kind: EvidenceKind,
    #[serde(rename = "ref")]
    pub reference: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<Path>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}
