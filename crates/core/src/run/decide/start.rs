//! Starting a run: the input is checked, the first event holds everything that was said.

use crate::contract::RunState;
use crate::ids::{Path, PayloadName};
use crate::mask::{Mask, values_at};
use crate::run::advance::{Decided, Draft};
use crate::run::command::{Rejection, Reply, Start};
use crate::run::event::{Carries, Entered, Fact, Named};
use crate::run::intent::{CarriedIntent, Intent};
use crate::run::rerun::{Carried, CarriedEffect};
use crate::run::step::{NamedEffect, Place, Receipt, Role};
use crate::run::{Hold, OneStep, Started, limits};

use super::outcome::json_fault;

impl Draft<'_> {
    pub(super) fn start(&mut self, start: &Start) -> Decided<Reply> {
        if self.run.head.state.is_some() {
            return Err(Rejection::RunExists(self.run.head.run_id.clone()).into());
        }
        if start.depth > limits::DEPTH {
            return Err(Rejection::TooDeep { limit: limits::DEPTH }.into());
        }
        self.check_size("the input", &start.input)?;
        self.check_input(&start.input)?;
        let started = self.started(start);
        self.keep_sensitive(start);
        let (start_at, by) = (started.start_at, self.actor.id.clone());
        let hold =
            start.paused.then(|| Hold { by, reason: "started paused".into(), since: self.now, one_step: OneStep::No });
        let state = if hold.is_some() { RunState::Paused } else { RunState::Queued };
        let carries = match &hold {
            Some(hold) => Some(Carries::Hold(hold.clone())),
            None => start_at.map(|at| Carries::StartAt { at }),
        };
        let (namespace, run_id) = (self.run.head.namespace.clone(), self.run.head.run_id.clone());
        self.tell(Fact::Entered(Entered {
            state,
            started: Some(Box::new(started)),
            named: Some(Box::new(Named { namespace, run_id })),
            carries,
            failure: None,
            parent: None,
        }))?;
        if let Some(hold) = hold {
            self.tell(Fact::PauseSet(hold))?;
        }
        for carried in &start.carried {
            self.carry_over(carried)?;
        }
        self.settle()?;
        Ok(Reply::Done)
    }

    /// Keeps the sensitive values of the input and the inherited ones, to recognise them wherever they are repeated.
    fn keep_sensitive(&mut self, start: &Start) {
        let inherited = start.inherited.as_deref().and_then(|json| serde_json::from_str::<Vec<String>>(json).ok());
        // Identifiers that a rerun takes along name inherited values by their numbers, so these come first.
        let mut values = inherited.unwrap_or_default();
        for value in values_at(&start.input, &self.def.sensitive) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        let mask = Mask::of(values);
        if !mask.is_empty() {
            self.store(PayloadName::sensitive(), mask.to_json().into());
            self.recognise(mask);
        }
    }

    fn check_input(&self, input: &str) -> Decided {
        let fault = |detail: String| vec![crate::run::step::FieldFault { pointer: String::new(), detail }];
        if let Some(why) = json_fault(input) {
            return Err(Rejection::InputInvalid(fault(why)).into());
        }
        match self.def.input.as_ref().map(|schema| schema.check(input)) {
            Some(Err(faults)) => Err(Rejection::InputInvalid(faults.into_iter().map(Into::into).collect()).into()),
            Some(Ok(())) | None => Ok(()),
        }
    }

    fn started(&mut self, start: &Start) -> Started {
        let trace_id = start.trace_id.clone().unwrap_or_else(|| {
            let run = self.run.head.run_id.as_str().as_bytes();
            crate::ids::Digest::of_fields([b"trace".as_slice(), run]).to_string()[..32].to_owned()
        });
        Started {
            workflow_id: self.def.workflow.clone(),
            workflow_version: start.workflow_version,
            definition_hash: self.def.hash,
            steps: self.def.steps().len(),
            input: self.store(PayloadName::input(), start.input.clone()),
            created_at: self.now,
            requester: self.actor.id.clone(),
            requested_before: start.requested_before.clone(),
            start_at: start.start_at.filter(|at| *at > self.now),
            deadline_at: self.def.deadline.map(|deadline| start.start_at.unwrap_or(self.now).max(self.now) + deadline),
            labels: start.labels.clone(),
            unique: start.unique.clone(),
            queue: start.queue.clone(),
            priority: start.priority,
            owner_id: start.owner_id.clone(),
            data_region: start.data_region.clone(),
            parent: start.parent.clone(),
            origin: start.origin.clone(),
            depth: start.depth,
            intents: start.intents.iter().map(|carried| (carried.path.clone(), self.intent(carried))).collect(),
            sealed: start.sealed || !self.def.sensitive.is_empty(),
            trace_id,
        }
    }

    /// An intent of the run that this one reruns, with its payloads stored here.
    fn intent(&mut self, carried: &CarriedIntent) -> Intent {
        let mut intent = carried.intent.clone();
        for (n, reference) in intent.refs_mut().enumerate() {
            let json = carried.payloads.get(&reference.name).cloned().unwrap_or_else(|| "null".into());
            *reference = self.store(carried.path.payload(&format!("intent/{n}")), json);
        }
        intent
    }

    /// A checkpoint of the run that this one reruns.
    fn carry_over(&mut self, carried: &Carried) -> Decided {
        let index = self.def.step(&carried.step).map(|(index, _)| index);
        let role = if carried.coded.is_some() { Role::Coded } else { carried.role };
        let place = Place { index, parent: carried.parent.clone(), number: carried.number, role, visit: 1 };
        let path = Path::from(carried.path.as_str());
        let input = carried.input.as_ref().map(|json| self.store(path.payload("input"), json.clone()));
        let output = carried.output.as_ref().map(|json| self.store(path.payload("output"), json.clone()));
        let effects =
            carried.effects.iter().enumerate().map(|(n, effect)| self.carry_effect(&path, n, effect)).collect();
        let has_undo = match (index, &carried.coded) {
            (Some(index), _) => self.def.steps()[index].compensate.is_some() && role == Role::Plain,
            (None, coded) => coded.as_ref().is_some_and(|coded| coded.compensate.is_some()),
        };
        let undoable = self.def.saga && has_undo && carried.state == crate::contract::StepState::Completed;
        self.tell_of(
            &path,
            Fact::StepCarried {
                place,
                state: carried.state,
                input,
                output,
                resources: carried.resources.clone(),
                receipt: carried.receipt.clone(),
                effects,
                from: carried.from.clone(),
                undoable,
                decisions: carried.decisions.clone(),
                coded: carried.coded.clone(),
            },
        )
    }

    fn carry_effect(&mut self, path: &Path, n: usize, effect: &CarriedEffect) -> NamedEffect {
        let name = path.payload(&format!("carried/{n}"));
        let result = effect.result.as_ref().map(|json| self.store(name, json.clone()));
        let receipt = Some(Receipt { external_id: effect.external_id.clone(), result, at: effect.at });
        NamedEffect { name: effect.name.clone(), intended_at: effect.intended_at, receipt, void: false }
    }
}
