//! What runs say to each other. A message is written with its cause and applied by its target exactly once.

use abide_core::ids::{Path, RunId};
use abide_core::run::command::{ChildOutcome, StartChild};
use serde::{Deserialize, Serialize};

/// One message, as it is stored while it waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "message")]
pub enum Message {
    /// Begin to exist: the parent's step has issued you.
    Start(Box<StartChild>),
    /// Your parent was canceled.
    Cancel { reason: String },
    /// Your child has ended, or could not be started.
    ChildEnded { path: Path, child: RunId, outcome: ChildOutcome },
}
