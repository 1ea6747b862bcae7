//! New runs: asked for by somebody, by a parent, or made from a run that has ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_core::definition::Definition;
use abide_core::ids::{Namespace, Path, PayloadName, RunId};
use abide_core::run::command::{Actor, Ask, Command, Json, Rejection, Reply, Start, StartChild};
use abide_core::run::intent::{CarriedIntent, Intent};
use abide_core::run::rerun::{Carried, Source, origin, plan_rerun, requesters};
use abide_core::run::step::{Ref, Step};
use abide_core::run::{Need, Working};

use super::definitions::Compiled;
use super::open::Open;
use super::{Batch, Lane, no_run};
use crate::archive::Bundle;
use crate::request::{Error, NewRun, Rerun, RerunVersion, Told};
use crate::store::{Found, RunKey, RunNo, Store, Stored};
use crate::testing::{Bug, is_planted};

impl<S: Store> Lane<S> {
    pub(super) fn start(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        new: &NewRun,
    ) -> Stored<Result<Told, Error>> {
        let run_id = match &new.run_id {
            Some(given) if !is_run_id(given) => return Ok(Err(Error::BadRunId(given.to_string()))),
            Some(given) => given.clone(),
            None => self.ids.run(batch.now),
        };
        let key = RunKey { namespace: namespace.clone(), run_id };
        let taken = new.run_id.is_some() && (self.open(batch, &key)?.is_some() || self.store.is_archived(&key)?);
        if taken {
            let state = batch.runs.get(&key).and_then(|open| open.run.head.state);
            return Ok(Err(Error::Rejected { why: Rejection::RunExists(key.run_id), state }));
        }
        let found = self.definitions.get(&mut self.store, namespace, &new.workflow, new.version)?;
        let Some(definition) = found else { return Ok(Err(Error::NoWorkflow(new.workflow.to_string()))) };
        if let Some(unique) = new.start.unique.as_ref().filter(|_| !is_planted(Bug::UniqueUnchecked)) {
            // Runs that this batch has started must be found too.
            self.flush(batch)?;
            if let Some(open) = self.store.open_run(namespace, &new.workflow, unique)? {
                return Ok(Err(Error::NotUnique(open)));
            }
        }
        self.begin(batch, &key, &definition, &new.actor, new.start.clone())
    }

    /// Makes a run begin.
    pub(super) fn begin(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        definition: &Arc<Compiled>,
        actor: &Actor,
        start: Start,
    ) -> Stored<Result<Told, Error>> {
        let no = self.last_run + 1;
        let unborn = Working::unborn(key.run_id.clone(), key.namespace.clone());
        batch.runs.insert(key.clone(), Open::born(no, unborn));
        let start = Start { workflow_version: definition.version, ..start };
        let command = Command::new(actor.clone(), Ask::Start(Box::new(start)));
        match self.decide_with(batch, key, &definition.compiled, &command, &[])? {
            Ok(_) => {
                self.last_run = no;
                Ok(match batch.runs.get(key) {
                    Some(open) => Ok(open.told(Reply::Done, false)),
                    None => Err(no_run(&key.run_id)),
                })
            }
            Err(why) => {
                batch.runs.remove(key);
                Ok(Err(Error::Rejected { why, state: None }))
            }
        }
    }

    /// Makes a child begin, as its parent's step says.
    pub(super) fn begin_child(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        begin: &StartChild,
    ) -> Stored<Result<(), String>> {
        let found = self.definitions.get(&mut self.store, &key.namespace, &begin.workflow, begin.version)?;
        let Some(definition) = found else {
            return Ok(Err(match begin.version {
                Some(version) => format!("there is no version {version} of the workflow {}", begin.workflow),
                None => format!("there is no workflow {}", begin.workflow),
            }));
        };
        let start = Start {
            parent: Some(begin.parent.clone()),
            depth: begin.depth,
            trace_id: Some(begin.trace_id.clone()),
            owner_id: begin.owner_id.clone(),
            data_region: begin.data_region.clone(),
            sealed: begin.sealed,
            inherited: begin.inherited.clone(),
            ..Start::with_input(begin.input.clone())
        };
        let begun = self.begin(batch, key, &definition, &Actor::user(begin.requester.clone()), start)?;
        Ok(begun.map(drop).map_err(|error| error.to_string()))
    }

    /// A new run from one that has ended; the old one is only read.
    pub(super) fn rerun(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        rerun: &Rerun,
    ) -> Stored<Result<Told, Error>> {
        let source = RunKey { namespace: namespace.clone(), run_id: rerun.run_id.clone() };
        let (head, rows, late) = match self.open(batch, &source)? {
            Some(open) => (open.run.head.clone(), Rows::Of(open.no), open.late.clone()),
            None => match self.store.bundle(&source)? {
                Some(bundle) => {
                    let late = bundle.late_answers();
                    (Box::new(bundle.head.clone()), Rows::Archived(Box::new(bundle)), late)
                }
                None => return Ok(Err(no_run(&rerun.run_id))),
            },
        };
        let workflow = &head.started.workflow_id;
        let own = Some(head.started.workflow_version);
        let version = match rerun.version {
            RerunVersion::Same => own,
            RerunVersion::Latest => None,
            RerunVersion::Number(number) => Some(number),
        };
        let before = self.definitions.get(&mut self.store, namespace, workflow, own)?;
        let target = self.definitions.get(&mut self.store, namespace, workflow, version)?;
        let (Some(before), Some(target)) = (before, target) else {
            return Ok(Err(Error::NoWorkflow(workflow.to_string())));
        };
        let steps: Vec<Step> = match &rows {
            Rows::Of(no) => self.store.load_steps(*no)?.iter().map(|step| (**step).clone()).collect(),
            Rows::Archived(bundle) => bundle.steps.clone(),
        };
        let from = Source { head: &head, steps: &steps, definition: &before.compiled };
        let planned = plan_rerun(from, &target.compiled, rerun.from_step.as_deref(), rerun.input.is_some());
        let planned = match planned {
            Ok(planned) => planned,
            Err(why) => return Ok(Err(Error::Rejected { why, state: head.state })),
        };
        let row_of = |path: &Path| steps.iter().find(|step| step.path == *path);
        let mut carried = Vec::with_capacity(planned.carried.len());
        for row in planned.carried.iter().filter_map(row_of) {
            carried.push(self.carry_over(&rows, row, &before.compiled, &head.run_id)?);
        }
        let mut intents = Vec::new();
        for (row, path) in planned.unknown.iter().filter_map(|(row, path)| Some((row_of(row)?, path))) {
            let answers = late.get(&row.path).map_or(&[][..], Vec::as_slice);
            let (intent, payloads) = Intent::of(&head, row, answers);
            intents.push(self.carry_intent(&rows, path, intent, payloads)?);
        }
        for (path, intent) in planned.unresumed.iter().filter_map(|path| head.started.intents.get_key_value(path)) {
            intents.push(self.carry_intent(&rows, path, intent.clone(), BTreeMap::new())?);
        }
        let input = match &rerun.input {
            Some(input) => input.clone(),
            None => self.payload_in(&rows, &PayloadName::input())?,
        };
        let started = &head.started;
        let inherited = match started.sealed {
            true => Some(self.payload_in(&rows, &PayloadName::sensitive())?),
            false => None,
        };
        let start = Start {
            labels: started.labels.clone(),
            queue: started.queue.clone(),
            priority: started.priority,
            owner_id: started.owner_id.clone(),
            data_region: started.data_region.clone(),
            sealed: started.sealed,
            inherited,
            origin: Some(origin(&head, rerun.kind, rerun.from_step.as_deref())),
            requested_before: requesters(&head),
            carried,
            intents,
            ..Start::with_input(input)
        };
        let key = RunKey { namespace: namespace.clone(), run_id: self.ids.run(batch.now) };
        self.begin(batch, &key, &target, &rerun.actor, start)
    }

    fn carry_over(&mut self, rows: &Rows, row: &Step, definition: &Definition, from: &RunId) -> Stored<Carried> {
        let mut bytes = |reference: &Option<Ref>| match reference {
            Some(reference) => self.payload_in(rows, &reference.name).map(Some),
            None => Ok(None),
        };
        let payloads = (bytes(&row.input)?, bytes(&row.output)?);
        let mut results = BTreeMap::new();
        for (name, result) in Carried::results_of(row) {
            results.insert(name.to_owned(), self.payload_in(rows, &result.name)?);
        }
        let said = |result: &Ref| {
            let effect = Carried::results_of(row).find(|(_, known)| *known == result)?;
            results.get(effect.0).cloned()
        };
        Ok(Carried::of(row, definition, payloads, from).with_results(row, said))
    }

    /// An intent with every payload that it names.
    fn carry_intent(
        &mut self,
        rows: &Rows,
        path: &Path,
        intent: Intent,
        mut payloads: BTreeMap<PayloadName, Json>,
    ) -> Stored<CarriedIntent> {
        for reference in intent.refs() {
            if !payloads.contains_key(&reference.name) {
                payloads.insert(reference.name.clone(), self.payload_in(rows, &reference.name)?);
            }
        }
        Ok(CarriedIntent { path: path.clone(), intent, payloads })
    }

    fn payload_in(&mut self, rows: &Rows, name: &PayloadName) -> Stored<Json> {
        match rows {
            Rows::Of(no) => self.payload(*no, name),
            Rows::Archived(bundle) => Ok(bundle.payload(name).unwrap_or_else(|| "null".into())),
        }
    }

    pub(super) fn payload(&mut self, no: RunNo, name: &PayloadName) -> Stored<Json> {
        match self.store.load(no, &[Need::Payload(name.clone())])?.pop() {
            Some(Found::Payload(_, json)) => Ok(json),
            _ => Ok("null".into()),
        }
    }
}

/// Where the rows of a run are that is made anew: in their tables, or in the archive.
enum Rows {
    Of(RunNo),
    Archived(Box<Bundle>),
}

/// `run_` and something that can stand in a URL and in a task's id.
fn is_run_id(run_id: &RunId) -> bool {
    let fits = |rest: &str| {
        (1..=64).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    run_id.as_str().strip_prefix("run_").is_some_and(fits)
}
