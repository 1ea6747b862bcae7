//! What people and programs ask of runs.

use std::collections::BTreeMap;

use abide_core::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Raw;

/// `POST /v1/runs`
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRun {
    pub workflow: String,
    /// None: the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// At most one open run per workflow and value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Where its tasks go, whatever the document says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Higher is sooner; 0 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub start_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_region: Option<String>,
}

/// `POST /v1/runs/{id}/cancel`
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRun {
    #[serde(default)]
    pub reason: String,
    /// Undo completed steps. Without it, what the workflow's `saga` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensate: Option<bool>,
    /// A duration; 30s unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRun {
    #[serde(default)]
    pub reason: String,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRun {
    /// 1: one step, then paused again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendSignal {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Raw>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinRun {
    /// False takes the pin away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// `POST /v1/runs/{id}/retry` takes nothing.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRun {}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RerunRun {
    /// None: from the failed step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_step: Option<String>,
    /// `same` (unless said), `latest` or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Raw>,
    /// Only the plan: what would be executed again, reused, asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Version {
    Number(u32),
    Word(VersionWord),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VersionWord {
    Same,
    Latest,
}

/// `POST /v1/runs/{id}/approve` and `/reject`
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decide {
    /// Needed when more than one approval is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
    /// Who decides. With keys it is the key's own principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Raw>,
    /// What was looked at; a decision about anything else is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_digest: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeLink {
    /// Who decides with it.
    #[serde(rename = "for")]
    pub whom: String,
    /// A duration; 7d unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// A one-time page: opening it shows, only its button decides.
    pub url: String,
    #[schemars(with = "String")]
    pub expires_at: Timestamp,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReconnectRun {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

/// A request without fields.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResolveAction {
    Retry,
    Complete,
    Correct,
    Skip,
    Compensate,
    Fail,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveStep {
    pub step_id: String,
    pub action: ResolveAction,
    /// Of `complete`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Raw>,
    /// Of `correct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Raw>,
    /// Of `retry`: another idempotency key, because the effect is wanted again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new_key: bool,
    #[serde(default)]
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    Cancel,
    Retry,
    Pause,
    Resume,
}

/// `POST /v1/runs/bulk`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    pub action: BulkAction,
    /// The same names and values as the query of `GET /v1/runs`; `state` may be a list.
    #[serde(default)]
    pub filter: BTreeMap<String, OneOrMany>,
    #[serde(default)]
    pub dry_run: bool,
    #[serde(default)]
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub fn values(&self) -> &[String] {
        match self {
            OneOrMany::One(one) => std::slice::from_ref(one),
            OneOrMany::Many(many) => many,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct BulkDone {
    pub matched: u64,
    pub applied: u64,
    /// The first 100 that were refused, and why.
    pub refused: Vec<BulkRefused>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BulkRefused {
    pub run_id: String,
    pub code: String,
    pub detail: String,
}

/// What became of a reconnect.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Released {
    /// How many runs this is the first to free.
    pub released: u64,
}

/// `PUT /v1/workflows/{id}`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    pub workflow_id: String,
    pub version: u32,
    pub definition_hash: String,
    pub warnings: Vec<Fault>,
}

/// One fault or warning of a document.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    pub code: String,
    pub message: String,
    /// JSON pointer into the document.
    pub pointer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The answer to a delivered callback.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Delivered {
    /// False: it came too late or was there already; nothing changed.
    pub applied: bool,
}
