//! What happened, and how it is written: versioned, serialisable, chained by hashes.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::command::{Actor, Outcome};
use super::intent::Intent;
use super::step::{
    Answer, Block, Callback, ChildEnd, ChildRef, CodedStep, Connection, Decision, Group, NamedEffect, Place, Proof,
    Receipt, Ref, Resource, Task,
};
use super::{Because, Cancel, Hold, Parent, Started, Warning};
use crate::contract::{Cause, Evidence, Failure, Layer, RunState, StepState};
use crate::ids::{Digest, Epoch, Namespace, Path, RunId, WorkerId, WorkflowId};
use crate::time::{Span, Timestamp};

/// The version of the facts below. A change of shape raises it and adds an upcast to [`Record::event`].
///
/// 1: the hash left out the state that an event leads to, and when and where its evidence is from. 2: it covers all.
pub const VERSION: u16 = 2;

/// One thing that happened to a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Contiguous per run, from 1.
    pub seq: u64,
    pub at: Timestamp,
    pub actor: Actor,
    pub cause: Cause,
    /// The step it is about; of a probe or an undo, their own path.
    pub step_id: Option<Path>,
    pub attempt: Option<u32>,
    pub evidence: Vec<Evidence>,
    pub fact: Fact,
}

macro_rules! facts {
    ($($(#[$doc:meta])* $variant:ident $(($inner:ty))? $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })? = $kind:literal in $layer:ident),+ $(,)?) => {
        /// What an event says. Its kind is dotted and in the past tense.
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(tag = "kind", content = "payload")]
        pub enum Fact {
            $($(#[$doc])* #[serde(rename = $kind)] $variant $(($inner))? $({ $($(#[$field_doc])* $field: $type),* })?),+
        }

        impl Fact {
            /// The kinds that are not `run.STATE`.
            pub const KINDS: &[&str] = &[$($kind),+];

            fn kind_of_variant(&self) -> &'static str {
                match self { $(facts!(@pattern $variant $(($inner))? $({ $($field),* })?) => $kind),+ }
            }

            pub fn layer(&self) -> Layer {
                match self { $(facts!(@pattern $variant $(($inner))? $({ $($field),* })?) => Layer::$layer),+ }
            }

            /// What is stored as the payload of the event: its kind stands beside it.
            fn content(&self) -> Result<Box<RawValue>, serde_json::Error> {
                match self {
                    $(facts!(@parts content $variant $(($inner))? $({ $($field),* })?) =>
                        facts!(@write content $(($inner))? $({ $($(#[$field_doc])* $field: $type),* })?)),+
                }
            }
        }
    };
    (@parts $content:ident $variant:ident) => { Fact::$variant };
    (@parts $content:ident $variant:ident ($inner:ty)) => { Fact::$variant($content) };
    (@parts $content:ident $variant:ident { $($field:ident),* }) => { Fact::$variant { $($field),* } };
    (@write $content:ident) => { to_raw_value(&Nothing {}) };
    (@write $content:ident ($inner:ty)) => { to_raw_value($content) };
    (@write $content:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* }) => {{
        #[derive(Serialize)]
        struct Content<'a> { $($(#[$field_doc])* $field: &'a $type),* }
        to_raw_value(&Content { $($field),* })
    }};
    (@pattern $variant:ident) => { Fact::$variant };
    (@pattern $variant:ident ($inner:ty)) => { Fact::$variant(_) };
    (@pattern $variant:ident { $($field:ident),* }) => { Fact::$variant { .. } };
}

facts! {
    /// The run entered a state. Written as `run.` and the state.
    Entered(Entered) = "run.entered" in Run,
    CancelAsked(Cancel) = "cancel.asked" in Run,
    PauseSet(Hold) = "pause.set" in Run,
    PauseLifted { one_step: bool } = "pause.lifted" in Run,
    WarningAdded(Warning) = "warning.added" in Run,
    SignalReceived { name: String, payload: Ref } = "signal.received" in Run,
    ConnectionReconnected {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connection: Option<Connection>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
    } = "connection.reconnected" in Run,
    OperatorResolved { action: String, reason: String } = "operator.resolved" in Run,
    CompensationStarted { because: Because } = "compensation.started" in Run,
    HistoryFilled = "history.filled" in Run,
    PinSet { pinned: bool } = "pin.set" in Run,
    FinallyStarted = "finally.started" in Run,
    FinallyEnded = "finally.ended" in Run,

    WorkflowStarted = "workflow.started" in Workflow,
    WorkflowCompleted {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Ref>,
    } = "workflow.completed" in Workflow,
    WorkflowFailed { failure: Box<Failure>, grace_until: Timestamp, undo: bool } = "workflow.failed" in Workflow,

    TaskIssued {
        task: Box<Task>,
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<Place>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_at: Option<Timestamp>,
        /// The connection's generation that made it worth another try.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
    } = "task.issued" in Task,
    TaskClaimed {
        owner: WorkerId,
        epoch: Epoch,
        window: Span,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous_owner: Option<WorkerId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        claim_id: Option<String>,
    } = "task.claimed" in Task,
    TaskCompleted {
        epoch: Epoch,
        digest: Digest,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Ref>,
        #[serde(default, skip_serializing_if = "is_ok")]
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        resources: Vec<Resource>,
    } = "task.completed" in Task,
    TaskFailed {
        epoch: Epoch,
        /// None when its time ran out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
        failure: Box<Failure>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<Span>,
        /// How long its lease would have lasted, if it was taken away.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    } = "task.failed" in Task,
    TaskBlocked { epoch: Epoch, digest: Digest } = "task.blocked" in Task,
    TaskLost {
        owner: WorkerId,
        epoch: Epoch,
        /// The engine had stopped since the worker was last heard of: the answer to its claim may never have arrived, so this
        /// says nothing about the input.
        #[serde(default, skip_serializing_if = "is_false")]
        across_stop: bool,
        /// Of a body: how many steps it had stored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stored: Option<u32>,
        /// It got further than at the loss before: earlier losses were not due to its input.
        #[serde(default, skip_serializing_if = "is_false")]
        progressed: bool,
    } = "task.lost" in Task,
    TaskCanceled {
        /// The lease that ended with it, if it had one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<Epoch>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Digest>,
        reason: String,
        /// How long its lease would have lasted, if it was taken away.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    } = "task.canceled" in Task,

    /// A row for something that has no task of its own yet.
    StepEntered {
        place: Place,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<Box<Group>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        coded: Option<Box<CodedStep>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_at: Option<Timestamp>,
    } = "step.entered" in Step,
    /// It does not move, and this is why.
    StepBlocked {
        block: Box<Block>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Box<Failure>>,
    } = "step.blocked" in Step,
    /// Its deadline passed and nothing was declared for that.
    StepOverdue = "step.overdue" in Step,
    StepCompleted {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Ref>,
        proof: Proof,
        retry_safe: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        resources: Vec<Resource>,
        /// It can be undone.
        #[serde(default, skip_serializing_if = "is_false")]
        undoable: bool,
        #[serde(default, skip_serializing_if = "is_false")]
        tolerated: bool,
    } = "step.completed" in Step,
    StepFailed {
        failure: Box<Failure>,
        tolerated: bool,
        /// Its effect may have happened and could be undone: a rollback looks at it.
        #[serde(default, skip_serializing_if = "is_false")]
        undoable: bool,
    } = "step.failed" in Step,
    StepSkipped {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<Place>,
    } = "step.skipped" in Step,
    StepCaseHandled {
        case: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Ref>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Box<Failure>>,
        #[serde(default, skip_serializing_if = "is_false")]
        undoable: bool,
    } = "step.case_handled" in Step,
    StepCanceled {
        reason: String,
        /// Its external effect may have happened.
        #[serde(default, skip_serializing_if = "is_false")]
        unknown: bool,
        /// And could be undone: a rollback looks at it.
        #[serde(default, skip_serializing_if = "is_false")]
        undoable: bool,
    } = "step.canceled" in Step,
    /// Back to the beginning of its attempt: withdrawn by a pause, corrected, or about to be issued again.
    StepReset(Reset) = "step.reset" in Step,
    /// What a probe found, and what was concluded.
    StepReconciled {
        verdict: String,
        why: String,
        /// Under which id the outside world knows what was found.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        external_id: Option<String>,
    } = "step.reconciled" in Step,
    /// Its result is not needed any more; its worker is told to stop.
    StepUnneeded = "step.unneeded" in Step,
    StepJumped { to: usize, reset: Vec<usize>, skip: Vec<usize> } = "step.jumped" in Step,
    JoinDecided { met: bool } = "join.decided" in Step,
    LoopBroken = "loop.broken" in Step,
    StepCompensating = "step.compensating" in Step,
    StepCompensated { proof: Proof } = "step.compensated" in Step,
    StepUndoFailed { failure: Box<Failure> } = "step.undo_failed" in Step,
    StepCarried {
        place: Place,
        state: StepState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Ref>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Ref>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        resources: Vec<Resource>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Receipt>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        effects: Vec<NamedEffect>,
        from: RunId,
        #[serde(default, skip_serializing_if = "is_false")]
        undoable: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        decisions: Vec<Decision>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        coded: Option<Box<CodedStep>>,
    } = "step.carried" in Step,

    EffectIntended { name: String, key: Digest } = "effect.intended" in Step,
    EffectReceived {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        receipt: Receipt,
    } = "effect.received" in Step,
    /// The effect of an earlier run is looked for, or done, under its key.
    EffectResumed {
        intent: Box<Intent>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Ref>,
    } = "effect.resumed" in Step,
    CallbackMade(Callback) = "callback.made" in Step,
    CallbackAnswered { token_hash: Digest, payload: Ref } = "callback.answered" in Step,
    /// Something that a task or a wait asked for arrived.
    AnswerDelivered(Answer) = "answer.delivered" in Step,
    /// A wait took a signal out of the mailbox.
    SignalTaken { name: String, seq: u64, payload: Ref } = "signal.taken" in Step,
    /// A one-time link was made, by the actor of the event, with which somebody may decide.
    LinkMade {
        #[serde(rename = "for")]
        whom: String,
        expires_at: Timestamp,
    } = "approval.link_made" in Step,
    ApprovalGiven(Decision) = "approval.given" in Step,
    ApprovalRejected(Decision) = "approval.rejected" in Step,
    ApprovalEscalated { approvers: Vec<String>, until: Timestamp } = "approval.escalated" in Step,
    ApprovalExpired = "approval.expired" in Step,
    ChildStarted { child: ChildRef, workflow: WorkflowId, input: Ref, detached: bool } = "child.started" in Step,
    ChildEnded { run_id: RunId, end: ChildEnd } = "child.ended" in Step,
    /// A coded body asked again for results that are stored.
    BodyRecalled { steps: Vec<Path>, epoch: Epoch } = "body.recalled" in Step,
}

/// The facts about a run as a whole, as a pattern. A match that ends with it and its siblings names every kind of fact, so that
/// a new one stops the build.
macro_rules! run_facts {
    () => {
        Fact::Entered(_)
            | Fact::CancelAsked(_)
            | Fact::PauseSet(_)
            | Fact::PauseLifted { .. }
            | Fact::WarningAdded(_)
            | Fact::SignalReceived { .. }
            | Fact::ConnectionReconnected { .. }
            | Fact::OperatorResolved { .. }
            | Fact::CompensationStarted { .. }
            | Fact::HistoryFilled
            | Fact::PinSet { .. }
            | Fact::FinallyStarted
            | Fact::FinallyEnded
            | Fact::WorkflowStarted
            | Fact::WorkflowCompleted { .. }
            | Fact::WorkflowFailed { .. }
    };
}

/// The facts about a step that change its own row alone.
macro_rules! row_facts {
    () => {
        Fact::TaskCompleted { .. }
            | Fact::TaskFailed { .. }
            | Fact::TaskBlocked { .. }
            | Fact::TaskLost { .. }
            | Fact::TaskCanceled { .. }
            | Fact::StepEntered { .. }
            | Fact::StepBlocked { .. }
            | Fact::StepOverdue
            | Fact::StepCompleted { .. }
            | Fact::StepFailed { .. }
            | Fact::StepSkipped { .. }
            | Fact::StepCaseHandled { .. }
            | Fact::StepCanceled { .. }
            | Fact::StepReset(_)
            | Fact::StepReconciled { .. }
            | Fact::StepUnneeded
            | Fact::JoinDecided { .. }
            | Fact::LoopBroken
            | Fact::StepCompensated { .. }
            | Fact::StepCarried { .. }
            | Fact::EffectIntended { .. }
            | Fact::EffectReceived { .. }
            | Fact::EffectResumed { .. }
            | Fact::CallbackMade(_)
            | Fact::CallbackAnswered { .. }
            | Fact::AnswerDelivered(_)
            | Fact::LinkMade { .. }
            | Fact::ApprovalEscalated { .. }
            | Fact::ApprovalExpired
    };
}

/// The facts about a step that also change what its run keeps count of.
macro_rules! counted_facts {
    () => {
        Fact::TaskIssued { .. }
            | Fact::TaskClaimed { .. }
            | Fact::StepJumped { .. }
            | Fact::StepCompensating
            | Fact::StepUndoFailed { .. }
            | Fact::SignalTaken { .. }
            | Fact::ApprovalGiven(_)
            | Fact::ApprovalRejected(_)
            | Fact::ChildStarted { .. }
            | Fact::ChildEnded { .. }
            | Fact::BodyRecalled { .. }
    };
}

pub(super) use {counted_facts, row_facts, run_facts};

/// What a return to the beginning of an attempt changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reset {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Ref>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub new_key: bool,
    /// With a new key: the first lease that can have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_since: Option<Epoch>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub granted: bool,
    /// The attempt that comes next, when this return costs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// The run entered a state; the first time with everything that was said at the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entered {
    pub state: RunState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Box<Started>>,
    /// With its start: which run this is, so that its row can be made again from nothing but the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<Box<Named>>,
    /// What the state must carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carries: Option<Carries>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<Failure>>,
    /// To whom the end is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
}

/// How a run is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub namespace: Namespace,
    pub run_id: RunId,
}

/// The facts without which a state may not be entered (`RunState::requires`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "of")]
pub enum Carries {
    Lease { step_id: Path, owner: WorkerId, epoch: Epoch },
    Block { step_id: Path, reason: Box<Block> },
    Hold(Hold),
    Cancel(Cancel),
    Undo { step_id: Option<Path>, left: u32 },
    StartAt { at: Timestamp },
    HistoryFull { events: u64 },
}

/// The content of a fact that says nothing but its kind.
#[derive(Serialize)]
struct Nothing {}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_ok(outcome: &Outcome) -> bool {
    *outcome == Outcome::Ok
}

impl Fact {
    /// `run.queued`, `step.completed`, `task.claimed`.
    pub fn kind(&self) -> &'static str {
        self.entered().map_or_else(|| self.kind_of_variant(), |entered| run_kind(entered.state))
    }

    /// The state of the run that it tells.
    pub fn entered(&self) -> Option<&Entered> {
        if let Fact::Entered(entered) = self { Some(entered) } else { None }
    }
}

/// The kind of the event with which a run enters a state.
pub fn run_kind(state: RunState) -> &'static str {
    match state {
        RunState::Queued => "run.queued",
        RunState::Running => "run.running",
        RunState::WaitingOnTool => "run.waiting_on_tool",
        RunState::WaitingOnAuth => "run.waiting_on_auth",
        RunState::WaitingOnApproval => "run.waiting_on_approval",
        RunState::WaitingOnChild => "run.waiting_on_child",
        RunState::WaitingOnTimer => "run.waiting_on_timer",
        RunState::WaitingOnOperator => "run.waiting_on_operator",
        RunState::RetryScheduled => "run.retry_scheduled",
        RunState::Stalled => "run.stalled",
        RunState::Paused => "run.paused",
        RunState::Compensating => "run.compensating",
        RunState::CancelRequested => "run.cancel_requested",
        RunState::Succeeded => "run.succeeded",
        RunState::CompletedWithWarnings => "run.completed_with_warnings",
        RunState::Failed => "run.failed",
        RunState::Canceled => "run.canceled",
    }
}

/// Bytes that most envelopes fit into.
const USUAL_ENVELOPE: usize = 384;

/// An event as it is stored and shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub seq: u64,
    pub v: u16,
    pub at: Timestamp,
    pub actor: Actor,
    pub cause: Cause,
    pub layer: Layer,
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_state: Option<RunState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_state: Option<RunState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<Path>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    pub payload: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
    pub hash: Digest,
}

/// A stored event that cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unreadable {
    #[error("event {seq} has version {found}; this program knows versions up to {VERSION}")]
    Version { seq: u64, found: u16 },
    #[error("event {seq} ({kind}) cannot be read: {why}")]
    Payload { seq: u64, kind: String, why: String },
}

impl Record {
    /// Writes an event down, chained to the one before it.
    pub fn seal(event: Event, from_state: Option<RunState>, previous: Digest) -> Result<Record, serde_json::Error> {
        let to_state = event.fact.entered().map(|entered| entered.state);
        let mut record = Record {
            seq: event.seq,
            v: VERSION,
            at: event.at,
            actor: event.actor,
            cause: event.cause,
            layer: event.fact.layer(),
            kind: event.fact.kind().to_owned(),
            from_state: if to_state.is_some() { from_state } else { None },
            to_state,
            step_id: event.step_id,
            attempt: event.attempt,
            payload: event.fact.content()?,
            evidence: event.evidence,
            hash: Digest::default(),
        };
        record.hash = record.chained_to(previous);
        Ok(record)
    }

    /// The hash this event must have after `previous`: over everything that is stored of it.
    pub fn chained_to(&self, previous: Digest) -> Digest {
        // Gathered first: hashing many small pieces costs more than hashing them at once.
        let mut envelope = Vec::with_capacity(USUAL_ENVELOPE);
        envelope.extend_from_slice(&previous.0);
        let mut field = |bytes: &[u8]| {
            envelope.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            envelope.extend_from_slice(bytes);
        };
        field(&self.seq.to_le_bytes());
        field(&self.v.to_le_bytes());
        field(&self.at.micros().to_le_bytes());
        field(&[self.actor.kind as u8]);
        field(self.actor.id.as_bytes());
        field(self.cause.as_str().as_bytes());
        field(self.kind.as_bytes());
        field(self.from_state.map_or("", RunState::as_str).as_bytes());
        field(self.step_id.as_ref().map_or("", Path::as_str).as_bytes());
        field(&self.attempt.unwrap_or(0).to_le_bytes());
        let whole = self.v > 1;
        if whole {
            field(self.to_state.map_or("", RunState::as_str).as_bytes());
        }
        for evidence in &self.evidence {
            field(evidence.kind.as_str().as_bytes());
            field(evidence.reference.as_bytes());
            if whole {
                field(&evidence.at.map_or(0, Timestamp::micros).to_le_bytes());
                field(evidence.step_id.as_ref().map_or("", Path::as_str).as_bytes());
            }
        }
        // The payload's own digest, not its bytes: a payload that must be erased leaves a chain that can be checked.
        field(&Digest::of(self.payload.get().as_bytes()).0);
        Digest::of(&envelope)
    }

    /// Reads it back. Nothing that a store can hold makes this panic.
    pub fn event(&self) -> Result<Event, Unreadable> {
        if !(1..=VERSION).contains(&self.v) {
            return Err(Unreadable::Version { seq: self.seq, found: self.v });
        }
        let unreadable = |why: String| Unreadable::Payload { seq: self.seq, kind: self.kind.clone(), why };
        let kind = if self.layer == Layer::Run && self.kind.starts_with("run.") { "run.entered" } else { &self.kind };
        let fact = fact_of(kind, self.payload.get()).map_err(|error| unreadable(error.to_string()))?;
        if fact.kind() != self.kind || fact.layer() != self.layer {
            return Err(unreadable(format!("its payload is that of {}", fact.kind())));
        }
        Ok(Event {
            seq: self.seq,
            at: self.at,
            actor: self.actor.clone(),
            cause: self.cause,
            step_id: self.step_id.clone(),
            attempt: self.attempt,
            evidence: self.evidence.clone(),
            fact,
        })
    }
}

fn fact_of(kind: &str, payload: &str) -> Result<Fact, serde_json::Error> {
    if payload == "{}"
        && let Ok(fact) = serde_json::from_str(&format!("{{\"kind\":{}}}", serde_json::to_string(kind)?))
    {
        return Ok(fact);
    }
    serde_json::from_str(&format!("{{\"kind\":{},\"payload\":{payload}}}", serde_json::to_string(kind)?))
}
