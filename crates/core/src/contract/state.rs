//! The states of the four layers that Abide keeps, by name alone; what a run's state must carry is in `run::lifecycle`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares a layer's states once: the enum, its names, all of them in order, and what each means.
macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $means:literal])+ $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[doc = $means])+ #[serde(rename = $text)] $variant),+ }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            /// One sentence on what it means, for people and for the reference page.
            pub const fn means(self) -> &'static str {
                match self { $($name::$variant => concat!($($means),+).trim_ascii()),+ }
            }

            pub fn parse(text: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|state| state.as_str() == text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use states;

states! {
    /// What a run is doing. The order is that of the contract's table.
    RunState {
        /// Accepted, work exists, nobody executes it.
        Queued = "queued",
        /// At least one task is executed under a live lease.
        Running = "running",
        /// Paused for an async tool's answer, a callback or a signal.
        WaitingOnTool = "waiting_on_tool",
        /// A connection must be reconnected.
        WaitingOnAuth = "waiting_on_auth",
        /// A person decides.
        WaitingOnApproval = "waiting_on_approval",
        /// One or more child runs are open.
        WaitingOnChild = "waiting_on_child",
        /// A durable sleep.
        WaitingOnTimer = "waiting_on_timer",
        /// Recovery cannot go on safely by itself: a person has to choose.
        WaitingOnOperator = "waiting_on_operator",
        /// Backing off before the next attempt.
        RetryScheduled = "retry_scheduled",
        /// Expected progress did not occur and liveness cannot be proven. Not a failure.
        Stalled = "stalled",
        /// An operator holds it: nothing new is issued.
        Paused = "paused",
        /// A saga undoes its completed steps, last first.
        Compensating = "compensating",
        /// Cancel was asked; a lease, a child or a `finally` step is still open.
        CancelRequested = "cancel_requested",
        /// Everything that was asked for is done.
        Succeeded = "succeeded",
        /// Done, with failures that the workflow tolerates.
        CompletedWithWarnings = "completed_with_warnings",
        /// Ended without doing what was asked; the failure says why and what was undone.
        Failed = "failed",
        /// Ended because somebody asked for it.
        Canceled = "canceled",
    }
}

impl RunState {
    pub const fn is_terminal(self) -> bool {
        match self {
            RunState::Succeeded | RunState::CompletedWithWarnings | RunState::Failed | RunState::Canceled => true,
            RunState::Queued
            | RunState::Running
            | RunState::WaitingOnTool
            | RunState::WaitingOnAuth
            | RunState::WaitingOnApproval
            | RunState::WaitingOnChild
            | RunState::WaitingOnTimer
            | RunState::WaitingOnOperator
            | RunState::RetryScheduled
            | RunState::Stalled
            | RunState::Paused
            | RunState::Compensating
            | RunState::CancelRequested => false,
        }
    }

    /// What the record must carry in this state.
    pub const fn requires(self) -> &'static [&'static str] {
        match self {
            RunState::Queued => &["since"],
            RunState::Running => &["since", "lease_owner", "lease_epoch"],
            RunState::WaitingOnTool => &["since", "blocking_reason"],
            RunState::WaitingOnAuth => &["since", "blocking_reason", "blocking_reason.connection"],
            RunState::WaitingOnApproval => {
                &["since", "blocking_reason", "blocking_reason.subject_digest", "blocking_reason.approvers"]
            }
            RunState::WaitingOnChild => &["since", "blocking_reason", "blocking_reason.children"],
            RunState::WaitingOnTimer => &["since", "blocking_reason", "blocking_reason.until"],
            RunState::WaitingOnOperator => &["since", "blocking_reason", "handoff"],
            RunState::RetryScheduled => &["since", "blocking_reason", "next_retry_at"],
            RunState::Stalled => &["since", "blocking_reason"],
            RunState::Paused => &["since", "blocking_reason"],
            RunState::Compensating => &["since", "undo"],
            RunState::CancelRequested => &["since", "blocking_reason"],
            RunState::Succeeded | RunState::Canceled => &["since", "ended_at"],
            RunState::CompletedWithWarnings => &["since", "ended_at", "warnings"],
            RunState::Failed => &["since", "ended_at", "failure"],
        }
    }
}

states! {
    /// What one instance of a step is doing.
    StepState {
        /// Not reached yet, or held back.
        Pending = "pending",
        /// A task exists that nobody has claimed.
        Issued = "issued",
        /// Its task is executed under a lease, or its items are.
        Running = "running",
        /// It waits for a person, a signal, a child, a time or a connection.
        Waiting = "waiting",
        /// The next attempt has an instant.
        RetryScheduled = "retry_scheduled",
        /// A probe finds out whether its effect happened.
        Reconciling = "reconciling",
        /// Its lease was lost or its wait is overdue, and nothing happens by itself.
        Stalled = "stalled",
        /// Done, with a checkpoint: it is never executed again.
        Completed = "completed",
        /// Ended without its result.
        Failed = "failed",
        /// Its condition did not hold, or somebody skipped it.
        Skipped = "skipped",
        /// A case of `on_result` took its result.
        CaseHandled = "case_handled",
        /// Not needed any more.
        Canceled = "canceled",
        /// Its undo is under way.
        Compensating = "compensating",
        /// Its undo is proven done.
        Compensated = "compensated",
        /// Its undo was given up.
        UndoFailed = "undo_failed",
    }
}

impl StepState {
    /// Ended as far as the way forward is concerned.
    pub const fn is_ended(self) -> bool {
        match self {
            StepState::Completed
            | StepState::Failed
            | StepState::Skipped
            | StepState::CaseHandled
            | StepState::Canceled
            | StepState::Compensating
            | StepState::Compensated
            | StepState::UndoFailed => true,
            StepState::Pending
            | StepState::Issued
            | StepState::Running
            | StepState::Waiting
            | StepState::RetryScheduled
            | StepState::Reconciling
            | StepState::Stalled => false,
        }
    }

    /// Ended so that what comes after it may begin.
    pub const fn is_done(self) -> bool {
        match self {
            StepState::Completed | StepState::Skipped | StepState::CaseHandled => true,
            StepState::Pending
            | StepState::Issued
            | StepState::Running
            | StepState::Waiting
            | StepState::RetryScheduled
            | StepState::Reconciling
            | StepState::Stalled
            | StepState::Failed
            | StepState::Canceled
            | StepState::Compensating
            | StepState::Compensated
            | StepState::UndoFailed => false,
        }
    }
}

states! {
    /// What one task is doing.
    TaskState {
        /// Offered to workers.
        Issued = "issued",
        /// Executed under a lease.
        Claimed = "claimed",
        /// Its worker reported success.
        Completed = "completed",
        /// Its worker reported failure, or its time ran out.
        Failed = "failed",
        /// Its worker gave the lease back until something happens.
        Blocked = "blocked",
        /// Its lease ran out without an answer.
        Lost = "lost",
        /// Withdrawn, or its worker stopped when told to.
        Canceled = "canceled",
    }
}

states! {
    /// What the body of the workflow (its steps as a whole) is doing; it informs the run and never closes it.
    BodyState {
        /// Steps are left to do.
        Running = "running",
        /// All steps ended well.
        Completed = "completed",
        /// A step's failure, or a deadline, ended it.
        Failed = "failed",
    }
}

states! {
    /// The normalised life cycle that `/status` reports.
    Lifecycle {
        /// Accepted; nothing was claimed and nothing waits yet.
        Pending = "PENDING",
        /// Open.
        Running = "RUNNING",
        /// Ended well, with or without warnings.
        Completed = "COMPLETED",
        /// Ended in failure.
        Failed = "FAILED",
        /// Ended by a cancel.
        Cancelled = "CANCELLED",
    }
}
