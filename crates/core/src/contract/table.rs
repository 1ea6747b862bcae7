//! The transition tables: what each layer may do, as data. What is not a row cannot happen; the one lookup refuses it.
//! The contract's JSON, its schema, the reference page, the diagram and the tests are made from these rows.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::state::{BodyState, RunState, StepState, TaskState, states};

/// One allowed move of a layer. `from` is nothing for the first.
#[derive(Clone, Copy, Debug)]
pub struct Transition<S: 'static> {
    pub from: Option<S>,
    pub to: S,
    pub causes: Causes,
    pub owner: Owner,
}

/// A set of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes(u32);

impl Causes {
    const fn of(causes: &[Cause]) -> Causes {
        let mut bits = 0;
        let mut i = 0;
        while i < causes.len() {
            bits |= 1 << causes[i] as u32;
            i += 1;
        }
        Causes(bits)
    }

    const fn and(self, other: Causes) -> Causes {
        Causes(self.0 | other.0)
    }

    pub const fn contains(self, cause: Cause) -> bool {
        self.0 & (1 << cause as u32) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Cause> {
        Cause::ALL.iter().copied().filter(move |cause| self.contains(*cause))
    }
}

const START: Causes = Causes::of(&[Cause::Started]);
const CLAIM: Causes = Causes::of(&[Cause::Claimed]);
/// A worker said something about its task.
const WORK: Causes =
    Causes::of(&[Cause::Completed, Cause::Failed, Cause::Blocked, Cause::Acknowledged, Cause::Reported]);
const TIME: Causes = Causes::of(&[Cause::LeaseLost, Cause::TimeCame]);
/// Somebody or something answered a wait.
const ANSWERS: Causes = Causes::of(&[Cause::Decided, Cause::Answered, Cause::Reconnected, Cause::ChildEnded]);
const OPERATOR: Causes = Causes::of(&[Cause::Resolved, Cause::RetryAsked, Cause::ResumeAsked]);
/// Whatever moves a run on which no worker is at work.
const MOVED: Causes = TIME.and(ANSWERS).and(OPERATOR);
/// Whatever the engine decides on.
const ANY: Causes = START.and(WORK).and(MOVED).and(CANCEL);
const CANCEL: Causes = Causes::of(&[Cause::CancelAsked]);
const PAUSE: Causes = Causes::of(&[Cause::PauseAsked]);

/// A move that no row allows: a bug of the rules, or a log that was not written by them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{layer}: {} -> {to} by {cause} is not in the transition table; allowed from here: {}", from.as_deref().unwrap_or("nothing"), allowed.join(", "))]
pub struct Refused {
    pub layer: Layer,
    pub from: Option<String>,
    pub to: String,
    pub cause: Cause,
    pub allowed: Vec<&'static str>,
}

states! {
    /// The layers that keep a state.
    Layer {
        /// The run itself.
        Run = "run",
        /// The body of the workflow as a whole.
        Workflow = "workflow",
        /// One instance of a step.
        Step = "step",
        /// One unit of leased work.
        Task = "task",
    }
}

states! {
    /// Who alone may write a move.
    Owner {
        /// The lifecycle module: one projection decides a run's state.
        Lifecycle = "lifecycle",
        /// The engine's rules.
        Engine = "engine",
        /// A worker that holds the lease.
        Worker = "worker",
    }
}

states! {
    /// What makes a layer move.
    Cause {
        /// Somebody started the run.
        Started = "started",
        /// A worker claimed a task.
        Claimed = "claimed",
        /// A worker completed a task.
        Completed = "completed",
        /// A worker reported a failure.
        Failed = "failed",
        /// A worker gave its lease back until something happens.
        Blocked = "blocked",
        /// A worker stopped because it was told to.
        Acknowledged = "acknowledged",
        /// A worker reported steps of a coded body.
        Reported = "reported",
        /// A lease ran out.
        LeaseLost = "lease_lost",
        /// An instant came: a retry, a sleep, a timeout, a deadline, a grace.
        TimeCame = "time_came",
        /// A person approved or rejected.
        Decided = "decided",
        /// A signal or a callback arrived.
        Answered = "answered",
        /// A connection works again.
        Reconnected = "reconnected",
        /// A child run ended or could not be started.
        ChildEnded = "child_ended",
        /// An operator resolved a step.
        Resolved = "resolved",
        /// Somebody asked to retry now.
        RetryAsked = "retry_asked",
        /// Somebody asked to cancel.
        CancelAsked = "cancel_asked",
        /// Somebody paused the run.
        PauseAsked = "pause_asked",
        /// Somebody resumed the run.
        ResumeAsked = "resume_asked",
    }
}

impl Cause {
    /// Whether a worker must be alive for it to happen.
    pub const fn needs_worker(self) -> bool {
        match self {
            Cause::Claimed
            | Cause::Completed
            | Cause::Failed
            | Cause::Blocked
            | Cause::Acknowledged
            | Cause::Reported => true,
            Cause::Started
            | Cause::LeaseLost
            | Cause::TimeCame
            | Cause::Decided
            | Cause::Answered
            | Cause::Reconnected
            | Cause::ChildEnded
            | Cause::Resolved
            | Cause::RetryAsked
            | Cause::CancelAsked
            | Cause::PauseAsked
            | Cause::ResumeAsked => false,
        }
    }
}

/// A state that belongs to a layer with a table.
pub trait Tabled: Copy + PartialEq + fmt::Display + 'static {
    const LAYER: Layer;
    const TABLE: &'static [Transition<Self>];
    fn name(self) -> &'static str;
}

/// The one place where a move is refused.
pub fn lookup<S: Tabled>(from: Option<S>, to: S, cause: Cause) -> Result<&'static Transition<S>, Refused> {
    S::TABLE.iter().find(|row| row.from == from && row.to == to && row.causes.contains(cause)).ok_or_else(|| Refused {
        layer: S::LAYER,
        from: from.map(|from| from.to_string()),
        to: to.to_string(),
        cause,
        allowed: S::TABLE.iter().filter(|row| row.from == from).map(|row| row.to.name()).collect(),
    })
}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident: $state:ident of $layer:ident by $owner:ident {
        start { $($first:ident: $($first_causes:ident)|+),+ $(,)? }
        $($from:ident { $($to:ident: $($causes:ident)|+ $(=> $row_owner:ident)?),* $(,)? })*
    }) => {
        $(#[$doc])*
        pub const $name: &[Transition<$state>] = &[
            $(Transition { from: None, to: $state::$first, causes: Causes(0)$(.and($first_causes))+, owner: Owner::$owner },)+
            $($(Transition {
                from: Some($state::$from),
                to: $state::$to,
                causes: Causes(0)$(.and($causes))+,
                owner: table!(@owner $owner $($row_owner)?),
            },)*)*
        ];

        impl Tabled for $state {
            const LAYER: Layer = Layer::$layer;
            const TABLE: &'static [Transition<$state>] = $name;
            fn name(self) -> &'static str {
                self.as_str()
            }
        }

        const _: () = {
            let mut i = 0;
            while i < $name.len() {
                let mut j = i + 1;
                while j < $name.len() {
                    assert!(!same($name[i].from, $name[i].to, $name[j].from, $name[j].to), "two rows share a pair");
                    j += 1;
                }
                i += 1;
            }
            const fn same(a: Option<$state>, b: $state, c: Option<$state>, d: $state) -> bool {
                let from = match (a, c) {
                    (None, None) => true,
                    (Some(a), Some(c)) => a as u8 == c as u8,
                    (None, Some(_)) | (Some(_), None) => false,
                };
                from && b as u8 == d as u8
            }
        };
    };
    (@owner $default:ident) => { Owner::$default };
    (@owner $default:ident $row:ident) => { Owner::$row };
}

include!("rows.rs");

const _: () = assert!(terminal_states_have_no_exit(), "a terminal state has an exit");
const _: () = assert!(leavable_without_a_worker(), "a dead worker would strand a run");

const fn terminal_states_have_no_exit() -> bool {
    let mut i = 0;
    while i < RUN.len() {
        if let Some(from) = RUN[i].from
            && from.is_terminal()
        {
            return false;
        }
        i += 1;
    }
    true
}

const fn leavable_without_a_worker() -> bool {
    let mut state = 0;
    while state < RunState::ALL.len() {
        let from = RunState::ALL[state];
        if !from.is_terminal() && !has_exit_without_worker(from) {
            return false;
        }
        state += 1;
    }
    true
}

const fn has_exit_without_worker(state: RunState) -> bool {
    let mut i = 0;
    while i < RUN.len() {
        if let Some(from) = RUN[i].from
            && from as u8 == state as u8
        {
            let mut c = 0;
            while c < Cause::ALL.len() {
                if RUN[i].causes.contains(Cause::ALL[c]) && !Cause::ALL[c].needs_worker() {
                    return true;
                }
                c += 1;
            }
        }
        i += 1;
    }
    false
}
