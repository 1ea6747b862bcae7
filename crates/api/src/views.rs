//! What readers get. The server writes these from the rules' own answers; a test keeps both alike.

use std::collections::BTreeMap;

use abide_core::contract::{Evidence, Failure, RunState, StepState};
use abide_core::time::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Raw;
use crate::tasks::ResourceTold;

/// The record of a run (contract, section 4). What this reader does not name is in `more`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub run_id: String,
    pub namespace: String,
    pub workflow_id: String,
    pub workflow_version: u32,
    pub state: RunState,
    pub since: Timestamp,
    /// One sentence.
    pub summary: String,
    pub attempt: u32,
    pub step_id: Option<String>,
    pub blocking_reason: Option<Reason>,
    pub blocks: Vec<Reason>,
    pub lease_owner: Option<String>,
    pub lease_epoch: Option<u64>,
    pub lease_expires_at: Option<Timestamp>,
    pub last_heartbeat_at: Option<Timestamp>,
    pub next_retry_at: Option<Timestamp>,
    pub failure: Option<Failure>,
    pub warnings: Vec<Value>,
    pub next_actions: Vec<NextAction>,
    pub progress: Option<Progress>,
    pub children: u32,
    pub owner_id: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub as_of_seq: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Why a run does not move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    pub since: Timestamp,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A call that would be accepted now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextAction {
    pub id: String,
    pub title: String,
    pub who: Vec<String>,
    pub method: String,
    pub href: String,
    pub body: Value,
    pub danger: bool,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub step_id: String,
    pub done: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    pub runs: Vec<Run>,
    pub next_cursor: Option<String>,
    pub as_of: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub seq: u64,
    pub at: Timestamp,
    pub actor: Value,
    pub layer: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_state: Option<RunState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_state: Option<RunState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    pub payload: Value,
    #[serde(default)]
    pub evidence: Vec<Evidence>,
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Events {
    pub events: Vec<Event>,
    pub next_cursor: Option<String>,
}

/// A step. Its payloads are the bytes that are stored; `output_as` reads the output as what the code expects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub step_id: String,
    pub title: Option<String>,
    pub state: StepState,
    pub attempt: u32,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    #[serde(default)]
    pub output: Option<Raw>,
    /// Of one step that is read alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Raw>,
    #[serde(default)]
    pub resources: Vec<ResourceTold>,
    pub retry_safe: bool,
    pub failure: Option<Failure>,
    #[serde(default)]
    pub evidence: Vec<Evidence>,
}

impl Step {
    /// No output is null.
    pub fn output_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.output.as_ref().map_or("null", |output| output.get()))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Steps {
    pub steps: Vec<Step>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}
