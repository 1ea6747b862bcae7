//! What workers ask and say, in any language.

use std::collections::BTreeMap;

use abide_core::contract::{FailureClass, RunState};
use abide_core::definition::EffectKind;
use abide_core::run::command::{Next, Outcome};
use abide_core::run::step::{Progress, TaskKind};
use abide_core::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Raw;

/// `POST /v1/tasks/claim`
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimTasks {
    /// The name of this process; a new one for every start.
    pub worker: String,
    pub queues: Vec<String>,
    /// None: any handler of these queues, except bodies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handlers: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// 0 to 60000; 20000 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// The same id again, because the answer was lost: the same tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Claimed {
    pub tasks: Vec<Task>,
}

/// A task under a lease, as a worker reads it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Task {
    pub task_id: String,
    pub run_id: String,
    pub step_id: String,
    #[schemars(with = "String")]
    pub kind: TaskKind,
    pub handler: String,
    pub input: Raw,
    pub attempt: u32,
    /// Every later call about this task carries it.
    pub epoch: u64,
    /// The same for every attempt; pass it on to whatever the step calls.
    pub idempotency_key: String,
    #[schemars(with = "String")]
    pub lease_expires_at: Timestamp,
    pub heartbeat_every_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deadline: Option<Timestamp>,
    pub receipts: Vec<Receipt>,
    pub answers: Vec<TaskAnswer>,
    pub workflow_id: String,
    pub workflow_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Of a body: what is stored already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<BTreeMap<String, BodyStep>>,
}

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct Receipt {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Raw>,
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// What a block of an earlier issue of this task was answered with.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct TaskAnswer {
    pub on: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[schemars(with = "String")]
    pub at: Timestamp,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressTold>,
}

/// How far a worker is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressTold {
    pub done: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl From<ProgressTold> for Progress {
    fn from(told: ProgressTold) -> Progress {
        Progress { done: told.done, total: told.total, message: told.message, at: None }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Beat {
    #[schemars(with = "String")]
    pub lease_expires_at: Timestamp,
    /// Stop: the run cancels or closes, or this item is not needed any more.
    pub cancel_requested: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteTask {
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Raw>,
    /// `ok` (unless said), `break` (ends the loop around it) or `noop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub outcome: Option<Outcome>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceTold>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<EvidenceTold>,
    /// Lease the run's next task to the same worker, in the same answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claim_next: bool,
}

/// Something that a step made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceTold {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A pointer to a trace, a log or a bundle.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvidenceTold {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "ref")]
    pub reference: String,
}

/// What became of the run.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct TaskDone {
    pub run_id: String,
    #[schemars(with = "String")]
    pub run_state: RunState,
    /// The run's next task, already leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<Task>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailTask {
    pub epoch: u64,
    /// None: `outcome_unknown` if the step is external, else `transient`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub class: Option<FailureClass>,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<EvidenceTold>,
    /// Of class `auth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    #[default]
    Auth,
    Tool,
    Approval,
    Timer,
    Operator,
    Child,
}

/// The lease is given back until something happens. Which fields count depends on `on`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlockTask {
    pub epoch: u64,
    pub on: BlockKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<EvidenceTold>,
    /// auth
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Where a person reconnects. It is handed to whoever may reconnect, and never stored in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_url: Option<String>,
    /// tool: the name of a callback that was asked for before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// tool: the name of a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// tool and approval: a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// approval
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Raw>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_requester: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadlineTold>,
    /// JSON Schema of what a decision carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Raw>,
    /// timer
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub until: Option<Timestamp>,
    /// operator
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommended: Option<String>,
    /// child
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Raw>,
}

/// What happens when nobody has answered in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtDeadlineTold {
    Fail,
    Warn,
    Approve,
    Escalate(Vec<String>),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeCallback {
    pub epoch: u64,
    pub name: String,
    /// A duration; without one the token lives as long as the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CallbackMade {
    /// Where the answer is sent by POST, once.
    pub url: String,
}

/// Without `external_id` and `result` the intent, with one of them the receipt.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TellEffect {
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Raw>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EffectKey {
    pub idempotency_key: String,
    /// It happened already; do not cause it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stopped {
    pub epoch: u64,
}

/// `POST /v1/tasks/batch`: each item is the body of one call, with `op` and `task_id` beside its fields.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    pub items: Vec<Raw>,
}

#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct BatchDone {
    pub results: Vec<BatchResult>,
}

/// The answer to one item, as its own call would have got it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct BatchResult {
    pub status: u16,
    pub body: Raw,
}

/// `POST /v1/tasks/{id}/steps`: a coded body reports steps, begins steps, waits.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TellSteps {
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<StepDone>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begin: Vec<StepBegin>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wait: Vec<StepWait>,
    /// Other branches of the body execute steps meanwhile: it is not released.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub busy: bool,
    /// The body runs branches beside each other, which come back in any order: new steps may begin before all stored ones were
    /// asked for. The body is compared with what is stored again when it rests, ends, or says nothing of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
}

/// A step that ended: with `output`, or with `failure`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepDone {
    pub step_id: String,
    /// As `begun_at` came with the step; it tells a late copy of this report from one about the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub begun_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<StepFailure>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceTold>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepFailure {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub class: Option<FailureClass>,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepBegin {
    pub step_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub effect: Option<EffectKind>,
    /// A handler that finds out whether the effect happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<String>,
    /// A handler that undoes the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryTold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_digest: Option<String>,
}

/// How often and when a step is tried again; what is not said is as the workflow's defaults say.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryTold {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_after: Option<String>,
}

/// Something a body waits for: exactly one of the fields beside `step_id`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepWait {
    pub step_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalTold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<SignalTold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepTold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ChildTold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthTold>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalTold {
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Raw>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_requester: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadlineTold>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Raw>,
}

/// `"document.signed"`, or a wait for any or all of several names.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SignalTold {
    Name(String),
    Wait(SignalWait),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalWait {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub any: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub all: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadlineTold>,
}

/// `"10m"`, or until an instant.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum SleepTold {
    For(String),
    Until {
        #[schemars(with = "String")]
        until: Timestamp,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChildTold {
    pub workflow: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Raw>,
    /// False: go on as soon as the child is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
    /// `cancel` (unless said) or `leave`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub on_cancel: Option<abide_core::definition::OnCancel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadlineTold>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthTold {
    pub tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_url: Option<String>,
}

/// What a body gets back.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct BodyState {
    pub steps: BTreeMap<String, BodyStep>,
    #[schemars(with = "String")]
    pub next: Next,
}

/// One step of a body, as it is stored.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct BodyStep {
    #[schemars(with = "String")]
    pub state: abide_core::contract::StepState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub failure: Option<abide_core::contract::Failure>,
    pub attempt: u32,
    pub idempotency_key: String,
    pub receipts: Vec<Receipt>,
    /// Try it again after this; the pause is part of the retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Goes back with the report of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub begun_at: Option<Timestamp>,
}
