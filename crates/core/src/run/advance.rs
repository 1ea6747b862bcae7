//! `advance`: one command against one run gives events and changed rows, or a refusal, or the wish for more rows.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::command::{Actor, Ask, Command, Effect, Json, Rejection, Reply};
use super::event::{Entered, Event, Fact, Record};
use super::fold::{Broken, fold, row_of};
use super::lifecycle::{project, wake_at};
use super::step::{Connection, Ref, Step};
use super::{Around, Warning, Working, decide, limits};
use crate::contract::{Cause, Evidence, Failure, RunState};
use crate::definition::{Definition, StepDef};
use crate::ids::{Digest, Path, PayloadName, derived_fraction, derived_ulid};
use crate::mask::{Mask, values_at};
use crate::time::Timestamp;

/// What a command led to. The caller writes all of it in one transaction, or none.
#[derive(Clone, Debug)]
pub struct Advanced {
    /// The run afterwards.
    pub run: Working,
    /// New events, in order.
    pub records: Vec<Record>,
    /// Rows that changed.
    pub changed: BTreeSet<Path>,
    /// Payloads to store; a name is written once and never again.
    pub payloads: Vec<(PayloadName, Json)>,
    pub effects: Vec<Effect>,
    pub wake_at: Option<Timestamp>,
    pub reply: Reply,
}

/// Something that must be loaded before a decision can be made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A row; load `None` when the store has none.
    Step(Path),
    /// A payload; load `null` when the store has none.
    Payload(PayloadName),
}

/// Why no decision came out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Stop {
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error("{} more rows are needed", .0.len())]
    Needs(Vec<Need>),
}

impl Stop {
    pub(super) fn needs(need: Need) -> Stop {
        Stop::Needs(vec![need])
    }
}

impl From<Broken> for Stop {
    fn from(broken: Broken) -> Stop {
        let bug = broken.to_string();
        Stop::Rejected(match broken {
            Broken::Refused { refused, .. } => Rejection::Refused(refused),
            Broken::Gap { .. }
            | Broken::NoRow { .. }
            | Broken::NoTask { .. }
            | Broken::NoPath { .. }
            | Broken::Chain { .. }
            | Broken::Unreadable(_) => Rejection::Bug(bug),
        })
    }
}

/// Decides one command. Pure: the same arguments give the same answer, byte for byte.
pub fn advance(
    run: &Working,
    def: &Definition,
    command: &Command,
    around: &Around,
    now: Timestamp,
) -> Result<Advanced, Stop> {
    let head = &run.head;
    let fits = head.started.definition_hash == def.hash && head.plan.len() == def.steps().len();
    if head.state.is_some() && !fits {
        return Err(Rejection::Bug("the run was started with another definition".into()).into());
    }
    let mask = mask_of(run, def)?;
    let masked = mask.as_ref().map(|mask| super::masked::masked(command, mask));
    let command = masked.as_ref().unwrap_or(command);
    let mut draft = Draft {
        // Along a run's log time never goes back, whatever a clock does.
        now: now.max(run.head.updated_at),
        run: run.clone(),
        def,
        around,
        actor: &command.actor,
        evidence: &command.evidence,
        cause: command.ask.cause(),
        records: Vec::new(),
        changed: BTreeSet::new(),
        payloads: Vec::new(),
        effects: Vec::new(),
        groups: Vec::new(),
        finals_offered: false,
        claimed_at: None,
        works_again: Vec::new(),
        derived: 0,
        mask,
    };
    let reply = decide::decide(&mut draft, &command.ask)?;
    let wake_at = wake_at(&draft.run, around.serving_since);
    let Draft { run, records, changed, payloads, effects, .. } = draft;
    Ok(Advanced { run, records, changed, payloads, effects, wake_at, reply })
}

/// The sensitive values of a run that has any. One that an earlier version started did not keep them: they are in its input.
fn mask_of(run: &Working, def: &Definition) -> Result<Option<Mask>, Stop> {
    if !run.head.started.sealed || run.head.state.is_none() {
        return Ok(None);
    }
    let payload = |name: PayloadName| match run.payloads.get(&name) {
        Some(json) => Ok(json),
        None => Err(Stop::needs(Need::Payload(name))),
    };
    let mask = match Mask::read(payload(PayloadName::sensitive())?) {
        Some(mask) => mask,
        None if def.sensitive.is_empty() => Mask::default(),
        None => Mask::of(values_at(payload(PayloadName::input())?, &def.sensitive)),
    };
    Ok(Some(mask).filter(|mask| !mask.is_empty()))
}

/// What a command will most likely touch, so that one load is enough. `advance` asks when it needs more.
pub fn first_needs(run: &Working, def: &Definition, ask: &Ask) -> Vec<Need> {
    let Some(path) = ask.path().map(row_of) else { return Vec::new() };
    let mut needs = BTreeSet::from([Need::Step(path.clone())]);
    let ends = matches!(ask, Ask::Complete { .. } | Ask::ChildEnded { .. } | Ask::Resolve { .. });
    if let Some(step) = run.step(path.as_str()).filter(|_| ends) {
        reads_when_ended(run, def, step, &mut needs);
    }
    needs.into_iter().filter(|need| !is_loaded(run, need)).collect()
}

fn is_loaded(run: &Working, need: &Need) -> bool {
    match need {
        Need::Step(path) => run.steps.contains_key(path),
        Need::Payload(name) => run.payloads.contains_key(name),
    }
}

/// What the end of a step makes somebody read: the next item, or the steps that come after it.
fn reads_when_ended(run: &Working, def: &Definition, step: &Step, needs: &mut BTreeSet<Need>) {
    let Some(own) = step.place.index.and_then(|index| def.steps().get(index)) else { return };
    if let Some(parent) = &step.place.parent {
        let next = run.step(parent.as_str()).and_then(|row| row.group_of.as_ref()).map_or(0, |group| group.next);
        needs.insert(Need::Payload(super::scope::piece_name(parent, next)));
        reads_of(run, def, own, needs);
    } else {
        for next in own.before.iter().filter_map(|index| def.steps().get(*index)) {
            reads_of(run, def, next, needs);
        }
    }
}

fn reads_of(run: &Working, def: &Definition, step: &StepDef, needs: &mut BTreeSet<Need>) {
    for reference in super::scope::reads(step) {
        match reference.keys.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["input", ..] => drop(needs.insert(Need::Payload(PayloadName::input()))),
            ["steps", id, "output", ..] => {
                let visit = def.step(id).and_then(|(index, _)| run.head.plan.get(index)).map_or(1, |brief| brief.visit);
                needs.insert(Need::Payload(Path::of_visit(id, visit).payload("output")));
            }
            _ => {}
        }
    }
}

/// A decision in the making: events are folded as they are written, so that what follows sees them.
pub(super) struct Draft<'a> {
    pub run: Working,
    pub def: &'a Definition,
    pub around: &'a Around,
    pub now: Timestamp,
    pub actor: &'a Actor,
    pub cause: Cause,
    evidence: &'a [Evidence],
    records: Vec<Record>,
    changed: BTreeSet<Path>,
    payloads: Vec<(PayloadName, Json)>,
    pub effects: Vec<Effect>,
    /// Groups of which an item or round ended.
    pub groups: Vec<Path>,
    /// What a hold took back of the `finally` steps was offered again.
    pub finals_offered: bool,
    /// When the lease began for which the worker speaks.
    pub claimed_at: Option<Timestamp>,
    /// Connections of which the command says that they work, whatever is known of them.
    pub works_again: Vec<Connection>,
    derived: u32,
    /// Recognises the sensitive values of the run in what is written down.
    mask: Option<Mask>,
}

pub(super) type Decided<T = ()> = Result<T, Stop>;

impl<'a> Draft<'a> {
    /// Writes an event about the run itself.
    pub fn tell(&mut self, fact: Fact) -> Decided {
        self.emit(None, None, fact)
    }

    /// Writes an event about a step.
    pub fn tell_of(&mut self, path: &Path, fact: Fact) -> Decided {
        let attempt = self.run.step(row_of(path).as_str()).map(|step| step.attempt).filter(|attempt| *attempt > 0);
        self.emit(Some(path), attempt, fact)
    }

    fn emit(&mut self, path: Option<&Path>, attempt: Option<u32>, fact: Fact) -> Decided {
        let attempt = if let Fact::TaskIssued { attempt, .. } = &fact { Some(*attempt) } else { attempt };
        let event = Event {
            seq: self.run.head.seq + 1,
            at: self.now,
            actor: self.actor.clone(),
            cause: self.cause,
            step_id: path.cloned(),
            attempt,
            // What came with the request belongs to the first thing it did.
            evidence: if self.records.is_empty() { self.evidence.to_vec() } else { Vec::new() },
            fact,
        };
        let from = self.run.head.state;
        fold(&mut self.run, &event)?;
        let record = Record::seal(event, from, self.run.head.hash)
            .map_err(|error| Rejection::Bug(format!("an event cannot be written: {error}")))?;
        self.run.head.hash = record.hash;
        if let Some(path) = path {
            let row = row_of(path);
            if let Some(parent) = self.run.step(row.as_str()).and_then(|step| step.place.parent.clone()) {
                self.changed.insert(parent);
            }
            self.changed.insert(row);
        }
        self.records.push(record);
        Ok(())
    }

    pub fn mark_changed(&mut self, path: &Path) {
        self.changed.insert(path.clone());
    }

    /// Enters the state that the projection gives, if it is another one.
    pub fn project(&mut self) -> Decided {
        let situation = project(&self.run);
        if self.run.head.state == Some(situation.state()) {
            return Ok(());
        }
        let state = situation.state();
        let carries = situation.carries();
        let entered = Entered { state, started: None, named: None, carries, failure: None, parent: None };
        self.tell(Fact::Entered(entered))
    }

    /// A row: absent only if the store said so.
    pub fn row(&self, path: &Path) -> Decided<Option<&Step>> {
        match self.run.steps.get(path) {
            Some(row) => Ok(row.as_deref()),
            None => Err(Stop::needs(Need::Step(path.clone()))),
        }
    }

    pub fn must_row(&self, path: &Path) -> Decided<&Step> {
        self.row(path)?.ok_or_else(|| Rejection::NoStep(path.clone()).into())
    }

    pub fn edit_live(&mut self, path: &Path, edit: impl FnOnce(&mut Step)) {
        if let Some(Some(row)) = self.run.steps.get_mut(path) {
            edit(Arc::make_mut(row));
            self.changed.insert(path.clone());
        }
    }

    /// The declared step of an instance, or what stands for it in a coded workflow.
    pub fn spec(&self, step: &Step) -> Cow<'a, StepDef> {
        match step.place.index.and_then(|index| self.def.steps().get(index)) {
            Some(def) => Cow::Borrowed(def),
            None => Cow::Owned(super::decide::coded::spec_of(self.def, step)),
        }
    }

    /// Stores a payload under a new name.
    pub fn store(&mut self, name: PayloadName, json: Json) -> Ref {
        let reference = Ref { name: name.clone(), digest: Digest::of(json.as_bytes()), size: json.len() as u64 };
        self.run.payloads.insert(name.clone(), json.clone());
        self.payloads.push((name, json));
        reference
    }

    /// A name for a payload that no later one can have.
    pub fn numbered(&self, path: &Path, what: &str) -> PayloadName {
        path.payload(&format!("{what}/{}", self.run.head.seq + 1))
    }

    /// These values are sensitive from now on.
    pub fn recognise(&mut self, mask: Mask) {
        self.mask = Some(mask).filter(|mask| !mask.is_empty());
    }

    /// The sensitive values that a child inherits.
    pub fn sensitive_values(&self) -> Option<Json> {
        self.mask.as_ref().map(|mask| mask.to_json().into())
    }

    /// A text that is made from payloads, as it may be written down.
    pub fn masked<'t>(&self, text: impl Into<Cow<'t, str>>) -> Cow<'t, str> {
        let text = text.into();
        match &self.mask {
            Some(mask) => Cow::Owned(mask.text(&text).into_owned()),
            None => text,
        }
    }

    /// An identifier as it may be written down: `revealed` undoes this.
    pub fn marked<'t>(&self, id: &'t str) -> Cow<'t, str> {
        self.mask.as_ref().map_or(Cow::Borrowed(id), |mask| mask.id(id))
    }

    /// An identifier as the outside world knows it: only for tasks.
    pub fn revealed<'t>(&self, id: &'t str) -> Cow<'t, str> {
        self.mask.as_ref().map_or(Cow::Borrowed(id), |mask| mask.reveal(id))
    }

    pub fn warn(&mut self, code: &str, message: impl Into<String>, step_id: Option<Path>) -> Decided {
        self.tell(Fact::WarningAdded(Warning { code: code.into(), message: message.into(), step_id, at: self.now }))
    }

    pub fn derived_id(&mut self) -> String {
        self.derived += 1;
        derived_ulid(self.now, &self.run.head.run_id, self.run.head.seq + 1, self.derived)
    }

    pub fn jitter(&self) -> f64 {
        derived_fraction(&self.run.head.run_id, self.run.head.seq + 1, 0)
    }

    pub fn state(&self) -> RunState {
        self.run.head.state.unwrap_or(RunState::Queued)
    }

    /// Ends the run: an event of its own, written exactly once.
    pub fn end(&mut self, state: RunState, failure: Option<Failure>) -> Decided {
        let parent = self.run.head.started.parent.clone();
        if let Some(parent) = &parent {
            self.effects.push(Effect::TellParent {
                parent: parent.clone(),
                state,
                failure: failure.clone(),
                warnings: self.run.head.warnings.count,
            });
        }
        self.tell(Fact::Entered(Entered {
            state,
            started: None,
            named: None,
            carries: None,
            failure: failure.map(Box::new),
            parent,
        }))
    }

    pub fn check_size(&self, what: &'static str, json: &str) -> Decided {
        if json.len() > limits::PAYLOAD_BYTES {
            let size = json.len();
            return Err(Rejection::TooLarge { what, size, limit: limits::PAYLOAD_BYTES }.into());
        }
        Ok(())
    }
}
