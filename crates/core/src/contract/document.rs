//! The contract for readers, made from the tables: JSON for `GET /v1/contract`, a JSON Schema, a diagram, a reference page.

mod diagram;
mod reference;
mod schema;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::failure::{FailureClass, FailureKind, Policy};
use super::reason::ReasonType;
use super::state::{BodyState, Lifecycle, RunState, StepState, TaskState};
use super::table::{Cause, Layer, Owner, Tabled};
use crate::run::event::{Fact, run_kind};
use crate::run::{NEWEST, limits};

pub use diagram::mermaid;
pub use reference::reference_markdown;
pub use schema::json_schema;

/// The version of the contract. A state, a reason or a class that is added raises it; none is ever renamed.
pub const VERSION: u32 = 1;

/// The body of `GET /v1/contract`.
pub fn contract_json() -> Value {
    json!({
        "version": VERSION,
        "states": RunState::ALL.iter().map(|state| state_json(*state)).collect::<Vec<_>>(),
        "limits": limits_json(),
        "transitions": rows().iter().map(Row::to_json).collect::<Vec<_>>(),
        "layers": Layer::ALL.iter().map(|layer| layer_json(*layer)).collect::<Vec<_>>(),
        "reasons": ReasonType::ALL.iter().map(|reason| json!({
            "type": reason.as_str(), "means": reason.means(), "rests_in": reason.rests_in().as_str(),
        })).collect::<Vec<_>>(),
        "failure_classes": FailureClass::ALL.iter().map(|class| json!({
            "class": class.as_str(), "means": class.means(), "policy": class.default_policy().as_str(),
        })).collect::<Vec<_>>(),
        "failure_kinds": FailureKind::ALL.iter().map(|kind| json!({
            "kind": kind.as_str(), "means": kind.means(),
        })).collect::<Vec<_>>(),
        "policies": Policy::ALL.iter().map(|policy| json!({
            "policy": policy.as_str(), "means": policy.means(),
        })).collect::<Vec<_>>(),
        "causes": Cause::ALL.iter().map(|cause| json!({
            "cause": cause.as_str(), "means": cause.means(), "needs_worker": cause.needs_worker(), "actors": actors_of(*cause),
        })).collect::<Vec<_>>(),
        "owners": Owner::ALL.iter().map(|owner| json!({
            "owner": owner.as_str(), "means": owner.means(),
        })).collect::<Vec<_>>(),
        "event_kinds": event_kinds(),
    })
}

/// One row of any layer's table.
struct Row {
    layer: Layer,
    from: Option<&'static str>,
    to: &'static str,
    causes: Vec<Cause>,
    owner: Owner,
    requires: &'static [&'static str],
}

impl Row {
    fn actors(&self) -> Vec<&'static str> {
        ACTORS.into_iter().filter(|actor| self.causes.iter().any(|cause| actors_of(*cause).contains(actor))).collect()
    }

    fn to_json(&self) -> Value {
        json!({
            "layer": self.layer.as_str(),
            "from": self.from,
            "to": self.to,
            "causes": self.causes.iter().map(|cause| cause.as_str()).collect::<Vec<_>>(),
            "actors": self.actors(),
            "owner": self.owner.as_str(),
            "requires": self.requires,
        })
    }
}

/// The rows of all layers, the run's first.
fn rows() -> Vec<Row> {
    Layer::ALL.iter().flat_map(|layer| rows_of(*layer)).collect()
}

fn rows_of(layer: Layer) -> Vec<Row> {
    match layer {
        Layer::Run => table_rows(RunState::requires),
        Layer::Workflow => table_rows::<BodyState>(|_| &[]),
        Layer::Step => table_rows::<StepState>(|_| &[]),
        Layer::Task => table_rows::<TaskState>(|_| &[]),
    }
}

fn table_rows<S: Tabled>(requires: impl Fn(S) -> &'static [&'static str]) -> Vec<Row> {
    let row = |row: &super::Transition<S>| Row {
        layer: S::LAYER,
        from: row.from.map(S::name),
        to: row.to.name(),
        causes: row.causes.iter().collect(),
        owner: row.owner,
        requires: requires(row.to),
    };
    S::TABLE.iter().map(row).collect()
}

/// Every state of a layer with its meaning.
fn states_of(layer: Layer) -> Vec<(&'static str, &'static str)> {
    macro_rules! named {
        ($state:ident) => {
            $state::ALL.iter().map(|state| (state.as_str(), state.means())).collect()
        };
    }
    match layer {
        Layer::Run => named!(RunState),
        Layer::Workflow => named!(BodyState),
        Layer::Step => named!(StepState),
        Layer::Task => named!(TaskState),
    }
}

const ACTORS: [&str; 3] = ["worker", "system", "user"];

/// Who can be the actor of a move with this cause. The system starts and cancels child runs and frees what waits for a
/// connection; callers from outside count as users, tools included.
fn actors_of(cause: Cause) -> &'static [&'static str] {
    match cause {
        Cause::Claimed | Cause::Completed | Cause::Failed | Cause::Blocked | Cause::Acknowledged | Cause::Reported => {
            &["worker"]
        }
        Cause::LeaseLost | Cause::TimeCame | Cause::ChildEnded => &["system"],
        Cause::Started | Cause::CancelAsked | Cause::Reconnected => &["system", "user"],
        Cause::Decided
        | Cause::Answered
        | Cause::Resolved
        | Cause::RetryAsked
        | Cause::PauseAsked
        | Cause::ResumeAsked => &["user"],
    }
}

/// The life cycle that `/status` shows, where the state alone says it: before its first claim or wait a run is pending.
fn lifecycle_of(state: RunState) -> Option<Lifecycle> {
    match state {
        RunState::Queued | RunState::Paused | RunState::CancelRequested => None,
        RunState::Running
        | RunState::WaitingOnTool
        | RunState::WaitingOnAuth
        | RunState::WaitingOnApproval
        | RunState::WaitingOnChild
        | RunState::WaitingOnTimer
        | RunState::WaitingOnOperator
        | RunState::RetryScheduled
        | RunState::Stalled
        | RunState::Compensating => Some(Lifecycle::Running),
        RunState::Succeeded | RunState::CompletedWithWarnings => Some(Lifecycle::Completed),
        RunState::Failed => Some(Lifecycle::Failed),
        RunState::Canceled => Some(Lifecycle::Cancelled),
    }
}

fn state_json(state: RunState) -> Value {
    let mut object = Map::new();
    object.insert("state".into(), state.as_str().into());
    object.insert("terminal".into(), state.is_terminal().into());
    object.insert("means".into(), state.means().into());
    object.insert("requires".into(), state.requires().into());
    if let Some(lifecycle) = lifecycle_of(state) {
        object.insert("lifecycle".into(), lifecycle.as_str().into());
    }
    Value::Object(object)
}

fn layer_json(layer: Layer) -> Value {
    let states = states_of(layer).into_iter().map(|(state, means)| json!({ "state": state, "means": means }));
    json!({ "layer": layer.as_str(), "means": layer.means(), "states": states.collect::<Vec<_>>() })
}

/// A limit with its name, its number and what it bounds. A name ends in its unit where it has one.
fn all_limits() -> [(&'static str, u64, &'static str); 13] {
    [
        ("payload_bytes", limits::PAYLOAD_BYTES as u64, "One input, output, signal or request body."),
        ("words_bytes", limits::WORDS_BYTES as u64, "Messages, details and reasons of one request."),
        ("definition_bytes", limits::DEFINITION_BYTES as u64, "One workflow document."),
        ("warn_events", limits::WARN_EVENTS, "Events of one run before it carries a warning."),
        ("max_events", limits::MAX_EVENTS, "Events of one run before nothing new is issued."),
        ("depth", u64::from(limits::DEPTH), "Runs nested in one another."),
        ("mailbox", limits::MAILBOX as u64, "Signals of one run that nobody has taken yet."),
        ("named_effects", limits::NAMED_EFFECTS as u64, "Named effects of one step."),
        ("form_bytes", limits::FORM_BYTES as u64, "The schema of a form that a task or a coded body asks for."),
        ("lease_ms", limits::LEASE.millis(), "A lease, where neither document nor worker says otherwise."),
        ("grace_ms", limits::GRACE.millis(), "Time that work in progress gets to stop."),
        ("listed_failures", limits::LISTED_FAILURES as u64, "Failures that a step with items lists."),
        ("listed_entries", NEWEST as u64, "Entries of a list in the record: the newest."),
    ]
}

fn limits_json() -> Value {
    all_limits()
        .into_iter()
        .map(|(name, number, _)| (name.to_owned(), Value::from(number)))
        .collect::<Map<_, _>>()
        .into()
}

/// Every kind of event: `run.` with each state, then the kinds of facts.
fn event_kinds() -> Vec<&'static str> {
    let entered = RunState::ALL.iter().map(|state| run_kind(*state));
    entered.chain(Fact::KINDS.iter().copied().filter(|kind| *kind != "run.entered")).collect()
}
