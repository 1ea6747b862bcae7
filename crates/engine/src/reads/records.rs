//! One run as it is, as it was, and why: record, status, explanation, handoff, events.

use std::collections::BTreeMap;

use abide_core::contract::RunState;
use abide_core::explain::{
    self, At, ChildFacts, Explanation, Handoff, LateFacts, ParentFacts, Record, Status, Surroundings,
};
use abide_core::ids::{Path, RunId};
use abide_core::run::LateAnswer;
use abide_core::run::event::Record as EventRecord;
use abide_core::run::step::{Step, Wait};

use super::{Kept, Read, Snapshot};
use crate::engine::Engine;
use crate::store::sqlite::read;
use crate::store::{Loaded, StoreError, Stored};

/// How many children of one run are looked at for a root cause.
const CHILDREN: usize = 20;

/// How far down a root cause is followed.
const DEPTH: u32 = 8;

impl Snapshot<'_> {
    pub(super) fn record(&self, loaded: &Loaded) -> Stored<Record> {
        let definition = self.definition(&loaded.run)?;
        let around = self.surroundings(loaded, DEPTH)?;
        Ok(explain::record(&loaded.run, &definition, &around, self.now))
    }

    /// Facts about others that the answers need.
    pub(super) fn surroundings(&self, loaded: &Loaded, depth: u32) -> Stored<Surroundings> {
        let run = &loaded.run;
        let mut around = Surroundings { serving_since: self.serving_since, ..Surroundings::default() };
        if run.is_terminal() {
            return Ok(around);
        }
        for step in run.open() {
            if let Some(task) = step.task.as_ref().filter(|task| task.lease.is_none())
                && !around.queues.contains_key(&task.queue)
            {
                around.queues.insert(task.queue.clone(), self.queue(&task.queue)?);
            }
            match step.block.as_ref().map(|block| &block.wait) {
                Some(Wait::Auth { connection, .. }) => {
                    if let Some(facts) = read::connection(self.db, self.namespace, connection)? {
                        around.connections.insert(connection.clone(), facts);
                    }
                }
                Some(Wait::Child { run_id }) if depth > 0 && around.children.len() < CHILDREN => {
                    if let Some(facts) = self.child(run_id, depth - 1)? {
                        around.children.insert(run_id.clone(), facts);
                    }
                }
                // Whoever looks at a stall asks whether anybody could take the step again.
                Some(Wait::Lost { .. }) => {
                    let definition = self.definition(run)?;
                    let declared = step.place.index.and_then(|index| definition.steps().get(index));
                    let queue = declared.map_or(&definition.defaults.queue, |declared| &declared.queue);
                    let queue = run.head.started.queue.as_ref().unwrap_or(queue);
                    if !around.queues.contains_key(queue) {
                        around.queues.insert(queue.clone(), self.queue(queue)?);
                    }
                }
                _ => {}
            }
        }
        if !loaded.late.is_empty() {
            around.late = self.late(loaded)?;
        }
        around.last_heartbeat_at = read::last_heartbeat(self.db, loaded.no)?;
        if depth == DEPTH
            && let Some(parent) = &run.head.started.parent
        {
            around.parent = self.parent(&parent.run_id)?;
        }
        Ok(around)
    }

    /// What came too late, and from whom; the archive tells it without.
    fn late(&self, loaded: &Loaded) -> Stored<BTreeMap<Path, Vec<LateFacts>>> {
        let mut late: BTreeMap<Path, Vec<LateFacts>> = BTreeMap::new();
        let mask = self.mask(loaded)?;
        for (path, answer, worker) in read::late(self.db, loaded.no)? {
            late.entry(path).or_default().push(LateFacts::of(answer, Some(worker), &mask));
        }
        if late.is_empty() {
            let fact = |answer: LateAnswer| LateFacts::of(answer, None, &mask);
            let facts = |answers: &Vec<_>| answers.iter().cloned().map(fact).collect();
            late = loaded.late.iter().map(|(path, answers)| (path.clone(), facts(answers))).collect();
        }
        Ok(late)
    }

    pub(super) fn child(&self, run_id: &RunId, depth: u32) -> Stored<Option<ChildFacts>> {
        let Some(Kept { loaded, .. }) = self.load(run_id)? else { return Ok(None) };
        let definition = self.definition(&loaded.run)?;
        let around = self.surroundings(&loaded, depth)?;
        let explained = explain::explain(&loaded.run, &definition, &around, self.now);
        Ok(Some(ChildFacts::of(&loaded.run, explained)))
    }

    pub(super) fn parent(&self, run_id: &RunId) -> Stored<Option<ParentFacts>> {
        let Some(Kept { loaded, .. }) = self.load(run_id)? else { return Ok(None) };
        let definition = self.definition(&loaded.run)?;
        let around = Surroundings { serving_since: self.serving_since, ..Surroundings::default() };
        let summary = explain::summary(&loaded.run, &definition, &around, self.now);
        Ok(Some(ParentFacts { state: loaded.run.head.state.unwrap_or(RunState::Queued), summary }))
    }
}

impl Engine {
    /// The record of a run; also of one in the archive, like everything that is read by a run's id.
    pub async fn run(&self, run_id: &RunId) -> Read<Record> {
        let run_id = run_id.clone();
        self.read(move |snapshot| Ok(snapshot.record(&snapshot.find(&run_id)?.loaded)?)).await
    }

    pub async fn status(&self, run_id: &RunId) -> Read<Status> {
        let run_id = run_id.clone();
        self.read(move |snapshot| Ok(explain::status(&snapshot.find(&run_id)?.loaded.run))).await
    }

    /// The record as it was at any past instant, from the log.
    pub async fn run_at(&self, run_id: &RunId, at: At) -> Read<Record> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let head = &kept.loaded.run.head;
            let log = kept.log()?;
            Ok(explain::record_at(&head.run_id, &head.namespace, &log, &definition, &Surroundings::default(), at)?)
        })
        .await
    }

    /// Events of a run after one, in order, each with everything that proves it.
    pub async fn events(&self, run_id: &RunId, after: u64, limit: usize) -> Read<Vec<EventRecord>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let mut events = kept.events(after, limit)?;
            for event in &mut events {
                event.evidence = explain::evidence_of(&kept.loaded.run.head, event);
            }
            Ok(events)
        })
        .await
    }

    /// What a run is doing, why, since when, and what can be done.
    pub async fn explain(&self, run_id: &RunId) -> Read<Explanation> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let around = snapshot.surroundings(&kept.loaded, DEPTH)?;
            Ok(explain::explain(&kept.loaded.run, &definition, &around, snapshot.now))
        })
        .await
    }

    /// The same for any past instant, from the log.
    pub async fn explain_at(&self, run_id: &RunId, at: At) -> Read<Explanation> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let head = &kept.loaded.run.head;
            let log = kept.log()?;
            let around = Surroundings::default();
            Ok(explain::explain_at(&head.run_id, &head.namespace, &log, &definition, &around, at)?)
        })
        .await
    }

    /// Everything that an operator needs to decide.
    pub async fn handoff(&self, run_id: &RunId) -> Read<Handoff> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let kept = snapshot.find(&run_id)?;
            let definition = snapshot.definition(&kept.loaded.run)?;
            let around = snapshot.surroundings(&kept.loaded, DEPTH)?;
            let steps: Vec<Step> = kept.steps()?.iter().map(|step| (**step).clone()).collect();
            Ok(explain::handoff(&kept.loaded.run, &steps, &definition, &around, snapshot.now))
        })
        .await
    }

    /// Waits until a run has ended, and returns its record.
    pub async fn ended(&self, run_id: &RunId) -> Read<Record> {
        let mut watcher = self.watch();
        loop {
            let record = self.run(run_id).await?;
            if record.state.is_terminal() {
                return Ok(record);
            }
            loop {
                match watcher.next().await {
                    crate::hub::Seen::Commit(commit) if !commit.runs.iter().any(|one| one.key.run_id == *run_id) => {}
                    crate::hub::Seen::Gap { .. } => {
                        watcher = self.watch();
                        break;
                    }
                    crate::hub::Seen::End => return Err(StoreError::Failed("the engine stopped".into()).into()),
                    crate::hub::Seen::Commit(_) => break,
                }
            }
        }
    }
}
