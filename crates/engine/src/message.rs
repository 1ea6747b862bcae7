//! What runs say to each other. A message is written with its cause and applied by its target exactly once.

use abide_core::contract::{Failure, RunState};
use abide_core::ids::{Path, RunId, WorkflowId};
use abide_core::run::Parent;
use abide_core::run::command::{ChildOutcome, Json, StartChild};
use serde::{Deserialize, Serialize};

/// One message, as it is stored while it waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "message")]
pub enum Message {
    /// Begin to exist: the parent's step has issued you.
    Start(Box<Begin>),
    /// Your parent was canceled.
    Cancel { reason: String },
    /// Your child has ended, or could not be started.
    ChildEnded { path: Path, child: RunId, end: End },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    pub workflow: WorkflowId,
    pub version: Option<u32>,
    pub input: Json,
    pub parent: Parent,
    pub depth: u32,
    pub trace_id: String,
    pub requester: String,
    pub owner_id: Option<String>,
    pub data_region: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum End {
    Ended { state: RunState, output: Option<Json>, failure: Option<Box<Failure>>, warnings: u64 },
    Refused { message: String },
}

impl From<StartChild> for Begin {
    fn from(child: StartChild) -> Begin {
        Begin {
            workflow: child.workflow,
            version: child.version,
            input: child.input,
            parent: child.parent,
            depth: child.depth,
            trace_id: child.trace_id,
            requester: child.requester,
            owner_id: child.owner_id,
            data_region: child.data_region,
        }
    }
}

impl From<End> for ChildOutcome {
    fn from(end: End) -> ChildOutcome {
        match end {
            End::Ended { state, output, failure, warnings } => ChildOutcome::Ended { state, output, failure, warnings },
            End::Refused { message } => ChildOutcome::Refused { message },
        }
    }
}
