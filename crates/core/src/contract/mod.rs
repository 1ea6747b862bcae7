//! The contract as types and data: states, the transition tables, layers, blocking reasons, failure classes.

mod failure;
mod reason;
mod state;
mod table;

pub mod document;

pub use failure::{Failure, FailureClass, FailureKind, Policy};
pub use reason::{Evidence, EvidenceKind, ReasonType};
pub use state::{BodyState, Lifecycle, RunState, StepState, TaskState};
pub use table::{BODY, Cause, Causes, Layer, Owner, RUN, Refused, STEP, TASK, Tabled, Transition, lookup};
