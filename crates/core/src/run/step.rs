//! One instance of a step as it is stored: its task, what it waits for, what it did to the world.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contract::{Evidence, Failure, FailureClass, ReasonType, StepState};
use crate::definition::{AtDeadline, EffectKind, Join, OnCancel, RetryPolicy, SchemaFault, WaitMode};
use crate::ids::{Digest, Epoch, Handler, Path, PayloadName, Queue, RunId, TaskId, WorkerId};
use crate::time::{Span, Timestamp};

/// Where a payload is stored, and what its bytes must hash to. Events carry this, never the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ref {
    pub name: PayloadName,
    pub digest: Digest,
    pub size: u64,
}

/// What an instance is an instance of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Index of the declared step; none for the body of a coded workflow and the steps inside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// The step of which this is an item or a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Path>,
    /// Number of the item (from 0) or round (from 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    #[serde(default, skip_serializing_if = "Role::is_plain")]
    pub role: Role,
    /// The visit of the step that this instance belongs to, from 1.
    #[serde(default = "first_visit", skip_serializing_if = "is_first_visit")]
    pub visit: u32,
}

fn yes() -> bool {
    true
}

fn first_visit() -> u32 {
    1
}

fn is_first_visit(visit: &u32) -> bool {
    *visit == 1
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It does something itself.
    #[default]
    Plain,
    /// It stands for its items.
    Fan,
    /// It stands for its rounds.
    Loop,
    /// The body of a coded workflow.
    Body,
    /// A step that the body of a coded workflow executes.
    Coded,
}

impl Role {
    fn is_plain(&self) -> bool {
        *self == Role::Plain
    }
}

/// One instance of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub path: Path,
    pub place: Place,
    pub state: StepState,
    pub since: Timestamp,
    /// The attempt that is under way, or was the last.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub attempt: u32,
    /// Attempts that operators granted beyond the policy.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub granted: u32,
    /// Part of the idempotency key; it grows only when an operator says so.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub group: u32,
    /// The run and step under whose key it acts: its effect may have happened there already.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub key_of: Option<Box<KeyOf>>,
    /// Whether its effect happened in another run is looked for first: nothing was executed here yet.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub untried: bool,
    /// Leases before this one had another idempotency key.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub key_since: Epoch,
    pub started_at: Timestamp,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub deadline_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub input: Option<Ref>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub output: Option<Ref>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub task: Option<Task>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub block: Option<Block>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub failure: Option<Failure>,
    /// Its failure or absence does not fail the run.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub tolerated: bool,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub proof: Option<Proof>,
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub retry_safe: bool,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub resources: Vec<Resource>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub receipt: Option<Receipt>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub effects: Vec<NamedEffect>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub answers: Vec<Answer>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub callbacks: Vec<Callback>,
    /// Workers whose leases were lost on this input.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub losses: Vec<WorkerId>,
    /// The last worker, if it was lost across a stop of the engine: no fault of the input.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub lost_across_stop: Option<WorkerId>,
    /// Of a body: how many steps were stored when its worker was lost last.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub stored_at_loss: u32,
    /// Since when rate limits have kept it from an attempt.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub limited_since: Option<Timestamp>,
    /// The connection's generation for which it was last issued again.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub generation: u64,
    /// A worker from which its lease was taken away may act until then: nobody looks for the effect before.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub lease_until: Option<Timestamp>,
    /// Its result is not needed any more: a join was decided or a jump passed it.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub unneeded: bool,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub group_of: Option<Box<Group>>,
    /// The completed step that is undone after this one.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub undo_next: Option<Path>,
    /// It ended without anybody knowing whether its external effect happened.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub unknown: bool,
    /// The unknown step that a rollback looks at after this one.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub unknown_next: Option<Path>,
    /// Attempts of the probe that is under way: of the step's own, or of its undo's. A verdict ends the count.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub probe_attempt: u32,
    /// Attempts of the undo.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub undo_attempt: u32,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub decisions: Vec<Decision>,
    /// Who made links to this approval: where the requester may not decide, they may not either.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub link_makers: Vec<String>,
    /// The last answer a worker gave, so that its repetition is recognised.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub answered: Option<Answered>,
    /// How a step inside a coded body was declared.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub coded: Option<Box<CodedStep>>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub child: Option<ChildRef>,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub evidence: Vec<Evidence>,
    /// Liveness, beside the log: outside fold and hash, and stored apart.
    #[serde(skip)]
    pub live: Option<Live>,
}

/// What an idempotency key is made of, beside the namespace and the name of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOf {
    pub run_id: RunId,
    pub path: Path,
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub group: u32,
}

/// One unit of leased work: an attempt, a probe, an undo, or a body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    pub id: TaskId,
    pub kind: TaskKind,
    pub handler: Handler,
    pub queue: Queue,
    pub issued_at: Timestamp,
    pub input: Ref,
    /// Of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// The lease window that the document demands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    Step,
    Reconcile,
    Compensate,
    Body,
}

/// Who executes a task. The expiry is in [`Live`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    pub owner: WorkerId,
    pub epoch: Epoch,
    pub granted_at: Timestamp,
    pub window: Span,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_id: Option<String>,
}

/// What heartbeats move. It is judged with the store's clock and never written to the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Live {
    pub expires_at: Timestamp,
    pub last_heartbeat_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub done: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// Why an instance does not move, since when, until when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    pub wait: Wait,
    pub message: String,
    pub since: Timestamp,
    /// When it changes by itself, or is overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Its deadline passed and nothing was declared for that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
}

/// What would make it move again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "on")]
pub enum Wait {
    Auth {
        connection: Connection,
        /// What is issued again when the connection works.
        during: TaskKind,
        /// This attempt was not issued: the connection was known to be broken.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        untried: bool,
    },
    Approval(Box<ApprovalWait>),
    Signal {
        names: Vec<String>,
        mode: WaitMode,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        got: BTreeMap<String, Ref>,
    },
    Callback {
        name: String,
    },
    Child {
        run_id: RunId,
    },
    /// A sleep, or the pause between two rounds.
    Timer,
    Retry {
        next_attempt: u32,
        class: FailureClass,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// A lease was lost and nothing happens by itself (`hold`, or the run is paused).
    Lost {
        owner: WorkerId,
        epoch: Epoch,
    },
    /// The probe may start at `until`, when the old lease is over.
    Probe,
    Operator {
        reason: ReasonType,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recommended: Option<String>,
        /// What a correction must correct.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fields: Vec<FieldFault>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldFault {
    pub pointer: String,
    pub detail: String,
}

impl From<SchemaFault> for FieldFault {
    fn from(fault: SchemaFault) -> FieldFault {
        FieldFault { pointer: fault.pointer, detail: fault.detail }
    }
}

/// A tool and whose account of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Connection {
    pub tool: String,
    pub account: String,
}

impl std::fmt::Display for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.tool, self.account)
    }
}

/// Who decides about what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalWait {
    pub title: String,
    pub subject: Ref,
    pub approvers: Vec<String>,
    pub quorum: u32,
    pub not_requester: bool,
    /// How long it may take, so that an escalation can renew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadline>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escalated: bool,
    /// An approval that a task asked for: the answer goes to the task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked_by_task: bool,
    /// JSON Schema of what a decision carries, if it was asked for; a declared approval has it in its document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<serde_json::Value>,
}

/// One person's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub by: String,
    pub approve: bool,
    pub at: Timestamp,
    pub subject_digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Ref>,
    /// From where: a key, a link, the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// What the outside world gave back for an effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Ref>,
    pub at: Timestamp,
}

/// An effect inside a step, written before its call. Without a receipt it is unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedEffect {
    pub name: String,
    pub intended_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// A later failure asserted that nothing without a receipt happened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub void: bool,
}

/// What a blocked task asked for and got.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub on: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Ref>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub at: Timestamp,
}

/// A single-use address at which a tool answers; only the hash of its token is known here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Callback {
    pub name: String,
    pub token_hash: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Ref>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// What proved that a step is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    pub by: ProofBy,
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofBy {
    Verify,
    Receipt,
    Reconcile,
    Operator,
    Worker,
    /// Carried over from the run that this one reruns.
    Carried,
    /// The engine itself saw it: a sleep, a join, a child, a decision.
    Engine,
}

/// The items of a `for_each` or the rounds of a `repeat`, counted. Costs the same for 10 and for 10,000.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub count: u32,
    /// The next number to issue.
    pub next: u32,
    pub open: u32,
    pub done: u32,
    pub failed: u32,
    pub parallel: u32,
    pub join: Join,
    /// Set once, when the join is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// A tool said `break`: nothing more is issued.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub broken_off: bool,
    /// Sizes of the outputs so far, so that the list is only made when it fits.
    pub bytes: u64,
    /// The first failures; all are rows of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<ItemFailure>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemFailure {
    pub index: u32,
    pub class: FailureClass,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    pub message: String,
}

/// The last answer of a worker for this step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    pub task_id: TaskId,
    pub epoch: Epoch,
    /// Of what was said, so that the same answer is recognised and another one refused.
    pub digest: Digest,
}

/// How a step inside a coded body was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodedStep {
    pub effect: EffectKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<Handler>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensate: Option<Handler>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_digest: Option<String>,
    /// `step`, or the kind of wait: asking for the same id with another kind means that the body changed.
    pub kind: String,
    /// What happens when its wait is overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadline>,
    /// The body's lease under which it was last begun.
    pub epoch: Epoch,
    /// The body's lease under which its stored result was last asked for.
    #[serde(default)]
    pub asked: Epoch,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildRef {
    pub run_id: RunId,
    pub on_cancel: OnCancel,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Box<ChildEnd>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildEnd {
    /// None: it could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<crate::contract::RunState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Ref>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
}

impl Step {
    pub fn new(path: Path, place: Place, at: Timestamp) -> Step {
        Step {
            path,
            place,
            state: StepState::Pending,
            since: at,
            attempt: 0,
            granted: 0,
            group: 0,
            key_of: None,
            untried: false,
            key_since: Epoch::default(),
            started_at: at,
            ended_at: None,
            deadline_at: None,
            input: None,
            output: None,
            task: None,
            block: None,
            failure: None,
            tolerated: false,
            proof: None,
            retry_safe: true,
            resources: Vec::new(),
            receipt: None,
            effects: Vec::new(),
            answers: Vec::new(),
            callbacks: Vec::new(),
            losses: Vec::new(),
            lost_across_stop: None,
            stored_at_loss: 0,
            limited_since: None,
            generation: 0,
            lease_until: None,
            unneeded: false,
            group_of: None,
            undo_next: None,
            unknown: false,
            unknown_next: None,
            probe_attempt: 0,
            undo_attempt: 0,
            decisions: Vec::new(),
            link_makers: Vec::new(),
            answered: None,
            coded: None,
            child: None,
            evidence: Vec::new(),
            live: None,
        }
    }

    /// Open rows are always loaded with their run: everything that may still act stands in one of them.
    pub fn is_open(&self) -> bool {
        !self.state.is_ended() || self.state == StepState::Compensating || self.task.is_some() || self.block.is_some()
    }

    pub fn lease(&self) -> Option<&Lease> {
        self.task.as_ref()?.lease.as_ref()
    }

    pub fn is_leased(&self) -> bool {
        self.lease().is_some()
    }

    /// Which attempt a task of this kind is: steps, probes and undos count for themselves.
    pub fn attempt_of(&self, kind: TaskKind) -> u32 {
        match kind {
            TaskKind::Step | TaskKind::Body => self.attempt,
            TaskKind::Reconcile => self.probe_attempt,
            TaskKind::Compensate => self.undo_attempt,
        }
    }

    /// A task that anybody may claim.
    pub fn is_ready(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.lease.is_none())
    }

    /// When the lease is over. Time in which no engine served does not count against the worker.
    pub fn lease_expires_at(&self, serving_since: Timestamp) -> Option<Timestamp> {
        let lease = self.lease()?;
        let expires_at = self.live.as_ref().map_or(lease.granted_at + lease.window, |live| live.expires_at);
        Some(expires_at.max(serving_since + lease.window))
    }

    /// When this attempt has taken too long. A worker that was done while no engine served gets a window to say so.
    pub fn times_out_at(&self, serving_since: Timestamp) -> Option<Timestamp> {
        let task = self.task.as_ref()?;
        let lease = task.lease.as_ref()?;
        let at = lease.granted_at + task.timeout?;
        let interrupted = lease.granted_at < serving_since;
        Some(if interrupted { at.max(serving_since + lease.window) } else { at })
    }

    /// Named effects of which nobody knows whether they happened.
    pub fn unknown_effects(&self) -> impl Iterator<Item = &NamedEffect> {
        self.effects.iter().filter(|effect| effect.receipt.is_none() && !effect.void)
    }
}

impl Wait {
    pub fn approval(&self) -> Option<&ApprovalWait> {
        if let Wait::Approval(wait) = self { Some(wait) } else { None }
    }

    /// The run whose end it waits for.
    pub fn child(&self) -> Option<&RunId> {
        if let Wait::Child { run_id } = self { Some(run_id) } else { None }
    }
}

impl Block {
    pub fn new(wait: Wait, message: impl Into<String>, since: Timestamp) -> Block {
        Block { wait, message: message.into(), since, until: None, overdue: false }
    }

    pub fn until(self, until: Option<Timestamp>) -> Block {
        Block { until, ..self }
    }

    pub fn operator(reason: ReasonType, message: impl Into<String>, since: Timestamp) -> Block {
        Block::new(Wait::Operator { reason, recommended: None, fields: Vec::new() }, message, since)
    }

    pub fn reason(&self) -> ReasonType {
        if self.overdue {
            return ReasonType::Overdue;
        }
        match &self.wait {
            Wait::Auth { .. } => ReasonType::OauthReconnectRequired,
            Wait::Approval(_) => ReasonType::ApprovalRequired,
            Wait::Signal { .. } => ReasonType::SignalPending,
            Wait::Callback { .. } => ReasonType::CallbackPending,
            Wait::Child { .. } => ReasonType::ChildOpen,
            Wait::Timer => ReasonType::Sleeping,
            Wait::Retry { class: FailureClass::RateLimited, .. } => ReasonType::RateLimited,
            Wait::Retry { .. } => ReasonType::TransientError,
            Wait::Lost { .. } => ReasonType::LeaseLost,
            Wait::Probe => ReasonType::OutcomeUnknown,
            Wait::Operator { reason, .. } => *reason,
        }
    }

    /// The state that this block alone puts the run in.
    pub fn rests_in(&self) -> crate::contract::RunState {
        // Nothing is to be done by a person yet: the pause before a probe is a back-off.
        if matches!(self.wait, Wait::Probe) && !self.overdue {
            return crate::contract::RunState::RetryScheduled;
        }
        self.reason().rests_in()
    }

    /// The step state that goes with it.
    pub fn step_state(&self) -> StepState {
        match self.wait {
            _ if self.overdue => StepState::Stalled,
            Wait::Lost { .. } => StepState::Stalled,
            Wait::Retry { .. } => StepState::RetryScheduled,
            Wait::Probe => StepState::Reconciling,
            Wait::Auth { .. }
            | Wait::Approval(_)
            | Wait::Signal { .. }
            | Wait::Callback { .. }
            | Wait::Child { .. }
            | Wait::Timer
            | Wait::Operator { .. } => StepState::Waiting,
        }
    }
}
