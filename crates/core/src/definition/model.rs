//! What a workflow document means, after it was read, checked and compiled. A definition never changes.

use std::collections::BTreeMap;

use crate::contract::{FailureClass, Policy};
use crate::expression::{Expression, Template};
use crate::ids::{Digest, Handler, Queue, WorkflowId};
use crate::time::Span;

use super::schema::Schema;

/// A compiled workflow document.
#[derive(Clone, Debug)]
pub struct Definition {
    pub workflow: WorkflowId,
    pub title: Option<String>,
    /// Of the canonical document: two documents with the same meaning to a parser have the same hash.
    pub hash: Digest,
    /// Schema of the run's input.
    pub input: Option<Schema>,
    /// JSON pointers into the input whose values only tasks may see.
    pub sensitive: Vec<String>,
    /// Of the whole run.
    pub deadline: Option<Span>,
    pub saga: bool,
    pub body: Body,
    pub output: Option<Template>,
    /// The defaults of the document; coded steps that say nothing else use them.
    pub defaults: Defaults,
}

/// What executes the run: declared steps, or a function in a worker.
#[derive(Clone, Debug)]
pub enum Body {
    /// In document order; the `finally` steps stand at the end (`StepDef::finally`).
    Steps(Vec<StepDef>),
    Coded {
        revision: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    pub queue: Queue,
    pub timeout: Option<Span>,
    /// As written in the document; then it wins over what a worker asks for.
    pub lease: Option<Span>,
    pub retry: RetryPolicy,
    pub recovery: BTreeMap<FailureClass, Policy>,
}

/// One declared step.
#[derive(Clone, Debug)]
pub struct StepDef {
    pub id: String,
    pub title: Option<String>,
    /// Runs once before any terminal state; its failure is a warning.
    pub finally: bool,
    /// Indexes (into the body's steps) of what must have ended before.
    pub after: Vec<usize>,
    /// Indexes of the steps that name this one in their `after`.
    pub before: Vec<usize>,
    pub action: Action,
    pub when: Option<Expression>,
    pub requires: Option<Expression>,
    pub verify: Option<Expression>,
    pub output_schema: Option<Schema>,
    pub for_each: Option<ForEach>,
    pub repeat: Option<Repeat>,
    pub effect: EffectKind,
    pub reconcile: Option<SubTask>,
    pub compensate: Option<SubTask>,
    /// `tool/account`.
    pub connection: Option<Template>,
    pub queue: Queue,
    /// Of one attempt.
    pub timeout: Option<Span>,
    pub lease: Option<Span>,
    /// Of the whole step, or of its wait (approval, signal, child).
    pub deadline: Option<Span>,
    pub at_deadline: Option<AtDeadline>,
    pub retry: RetryPolicy,
    /// What the step or the document overrides; everything else has its class's default.
    pub recovery: BTreeMap<FailureClass, Policy>,
    pub on_failure: OnFailure,
    pub on_result: Vec<Case>,
}

/// What a step does.
#[derive(Clone, Debug)]
pub enum Action {
    Task {
        handler: Handler,
        with: Option<Template>,
    },
    Http(Box<Http>),
    Approval(Box<Approval>),
    Child {
        workflow: WorkflowId,
        version: Option<u32>,
        with: Option<Template>,
        wait: bool,
        on_cancel: OnCancel,
    },
    /// Waits for the child that the step with this index started without waiting.
    JoinChild {
        step: usize,
    },
    Sleep(SleepFor),
    Signal(SignalWait),
}

/// The handler and queue of steps that the engine itself sends out.
pub const PUSH: &str = "abide:http";

/// The party that carries out a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Performer<'a> {
    /// A worker that offers this handler.
    Worker(&'a Handler),
    /// The engine's sender of HTTP requests.
    Push,
    /// The clock: time passes.
    Clock,
    /// A person, a signal or another run.
    Answer,
}

impl Performer<'_> {
    /// The handler of the step's tasks; a wait has none.
    pub fn handler(self) -> Option<Handler> {
        match self {
            Performer::Worker(handler) => Some(handler.clone()),
            Performer::Push => Some(Handler::from(PUSH)),
            Performer::Clock | Performer::Answer => None,
        }
    }

    /// The queue of its tasks, whatever the step and the run say.
    pub fn own_queue(self) -> Option<Queue> {
        (self == Performer::Push).then(|| Queue::from(PUSH))
    }

    /// True when the step is carried out as a task; otherwise it is a wait.
    pub fn has_task(self) -> bool {
        match self {
            Performer::Worker(_) | Performer::Push => true,
            Performer::Clock | Performer::Answer => false,
        }
    }
}

impl Action {
    /// Who carries it out: everything else that depends on the kind of a step is asked of this.
    pub fn performer(&self) -> Performer<'_> {
        match self {
            Action::Task { handler, .. } => Performer::Worker(handler),
            Action::Http(_) => Performer::Push,
            Action::Sleep(_) => Performer::Clock,
            Action::Approval(_) | Action::Child { .. } | Action::JoinChild { .. } | Action::Signal(_) => {
                Performer::Answer
            }
        }
    }

    /// What the step is, in one word of the document.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Task { .. } => "task",
            Action::Http(_) => "http",
            Action::Approval(_) => "approval",
            Action::Child { .. } => "child",
            Action::JoinChild { .. } => "join_child",
            Action::Sleep(_) => "sleep",
            Action::Signal(_) => "signal",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Http {
    pub method: String,
    pub url: Template,
    /// Names in lower case, with their values.
    pub headers: Vec<(String, Template)>,
    pub body: Option<Template>,
    pub answer: HttpAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpAnswer {
    Response,
    Callback,
}

/// Who decides what, until when, and what happens then. The deadline and its outcome are the step's.
#[derive(Clone, Debug)]
pub struct Approval {
    pub title: Option<Template>,
    /// What is approved; without it the run's input. Its digest binds the decision.
    pub subject: Option<Template>,
    /// People by id, groups as `role:NAME`; empty: everybody who may approve at all.
    pub approvers: Vec<String>,
    pub quorum: u32,
    pub not_requester: bool,
    pub on_reject: OnReject,
    pub form: Option<Schema>,
}

#[derive(Clone, Debug)]
pub enum SleepFor {
    Span(Span),
    /// An expression that gives an RFC 3339 time.
    Until(Expression),
}

#[derive(Clone, Debug)]
pub struct SignalWait {
    pub names: Vec<String>,
    pub mode: WaitMode,
    pub schema: Option<Schema>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitMode {
    /// `signal: NAME`; the output is the payload.
    One,
    /// `any: [..]`; the output is `{name, payload}`.
    Any,
    /// `all: [..]`; the output is `{NAME: payload}`.
    All,
}

#[derive(Clone, Debug)]
pub struct ForEach {
    pub list: Expression,
    /// The name of the item in expressions.
    pub name: String,
    pub parallel: u32,
    pub join: Join,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    All,
    Any,
    AtLeast(u32),
    /// A share of all items, above 0 and up to 1.
    MinSuccess(f64),
}

#[derive(Clone, Debug)]
pub struct Repeat {
    pub until: Option<Expression>,
    pub every: Span,
    pub max: u32,
    pub collect: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// Pure: safe to repeat.
    #[default]
    None,
    /// Safe to repeat with its key.
    Idempotent,
    /// Unsafe to repeat blindly.
    External,
}

/// A probe or an undo.
#[derive(Clone, Debug)]
pub struct SubTask {
    pub handler: Handler,
    /// Added to what probes and undos always get, as `with`.
    pub with: Option<Template>,
    pub timeout: Option<Span>,
    pub retry: RetryPolicy,
    pub queue: Queue,
    /// Of an undo; a probe is always `none`.
    pub effect: EffectKind,
    /// Of an undo that is `external`.
    pub reconcile: Option<Box<SubTask>>,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RetryPolicy {
    pub max_attempts: u32,
    pub first: Span,
    pub factor: f64,
    pub max: Span,
    /// Share of the pause that is random, 0 to 1.
    pub jitter: f64,
    /// How long rate limits may go on before they cost attempts.
    pub give_up_after: Span,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            max_attempts: 5,
            first: Span::from_secs(1),
            factor: 2.0,
            max: Span::from_secs(60),
            jitter: 0.2,
            give_up_after: Span::from_secs(2 * 3_600),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtDeadline {
    Fail,
    Warn,
    /// Only of approvals.
    Approve,
    /// Only of approvals: renews the deadline once for these approvers, then fails.
    Escalate(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    #[default]
    Fail,
    Warn,
    Compensate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReject {
    Fail,
    Warn,
    Continue,
    GoTo(Jump),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCancel {
    #[default]
    Cancel,
    Leave,
}

/// A case of `on_result`; the first whose condition holds takes the result.
#[derive(Clone, Debug)]
pub struct Case {
    /// None: always (the `else`).
    pub when: Option<Expression>,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Complete,
    Fail,
    Retry,
    Skip,
    GoTo(Jump),
}

/// Where to go on. Back to an earlier step only as often as `max_visits` allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    pub step: usize,
    /// Present exactly when the target comes before this step.
    pub max_visits: Option<u32>,
}

impl Definition {
    /// The declared steps; none when the body is coded.
    pub fn steps(&self) -> &[StepDef] {
        match &self.body {
            Body::Steps(steps) => steps,
            Body::Coded { .. } => &[],
        }
    }

    pub fn step(&self, id: &str) -> Option<(usize, &StepDef)> {
        self.steps().iter().enumerate().find(|(_, step)| step.id == id)
    }

    /// This step and everything after it: what a jump back or a rerun from it executes again.
    pub fn from_step_on(&self, start: usize) -> Vec<bool> {
        let steps = self.steps();
        let mut reached = vec![false; steps.len()];
        let mut open = vec![start];
        while let Some(step) = open.pop() {
            if step < steps.len() && !std::mem::replace(&mut reached[step], true) {
                open.extend(&steps[step].before);
            }
        }
        reached
    }
}

impl StepDef {
    pub fn policy(&self, class: FailureClass) -> Policy {
        self.recovery.get(&class).copied().unwrap_or(class.default_policy())
    }

    /// Waits are answered by somebody else, so without a declared outcome an overdue one rests in `stalled`.
    pub fn is_wait(&self) -> bool {
        self.action.performer() == Performer::Answer
    }
}
