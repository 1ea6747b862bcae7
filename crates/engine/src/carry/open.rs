//! A run that takes part in a batch: what it was in the store, what it has become, and what must be written of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::ids::{Path, PayloadName};
use abide_core::run::command::{ChildOutcome, Command, Effect, Json, Rejection, Reply};
use abide_core::run::event::Record;
use abide_core::run::size::of_value;
use abide_core::run::step::Step;
use abide_core::run::{Advanced, LateAnswers, Need, Stop, Working, advance, first_needs};
use abide_core::time::Timestamp;

use super::front::Fronts;
use super::{Batch, Lane, pass_over};
use crate::hub::Committed;
use crate::message::Message;
use crate::request::Told;
use crate::store::rows;
use crate::store::{
    Found, Loaded, Moves, PostKey, Posted, RunKey, RunNo, RunWrite, StepWrite, Store, StoreError, Stored, Touched,
};
use crate::testing::{Bug, is_planted, tamper};

/// A payload up to this size stays in memory with its run when it is likely to be read next.
const SMALL: usize = 1_024;

/// How often one decision may ask for more rows; each time it gets at least one.
const MOST_LOADS: usize = 100_000;

/// A run between two batches.
#[derive(Debug)]
pub(super) struct Cached {
    no: RunNo,
    run: Working,
    wake_at: Option<Timestamp>,
    bucket: &'static str,
    late: LateAnswers,
}

#[derive(Debug)]
pub(super) struct Open {
    pub no: RunNo,
    pub run: Working,
    pub late: LateAnswers,
    /// The version that the store has.
    from_seq: u64,
    pub stored_wake: Option<Timestamp>,
    stored_bucket: &'static str,
    /// When the rules want to look at it again.
    wake_at: Option<Timestamp>,
    /// Rows that changed, as the store has them.
    stored: BTreeMap<Path, Option<Arc<Step>>>,
    /// Rows of which only liveness changed.
    beaten: BTreeSet<Path>,
    records: Vec<Record>,
    payloads: Vec<(PayloadName, Json)>,
}

impl Open {
    pub fn born(no: RunNo, run: Working) -> Open {
        Open {
            no,
            run,
            late: LateAnswers::new(),
            from_seq: 0,
            stored_wake: None,
            stored_bucket: "",
            wake_at: None,
            stored: BTreeMap::new(),
            beaten: BTreeSet::new(),
            records: Vec::new(),
            payloads: Vec::new(),
        }
    }

    fn of_cached(cached: Cached) -> Open {
        let Cached { no, run, wake_at, bucket, late } = cached;
        Open {
            late,
            from_seq: run.head.seq,
            stored_wake: wake_at,
            stored_bucket: bucket,
            wake_at,
            ..Open::born(no, run)
        }
    }

    fn of_loaded(mut loaded: Loaded) -> Open {
        if is_planted(Bug::TerminalReopened) && loaded.run.is_terminal() {
            loaded.run.head.state = Some(RunState::Queued);
        }
        let bucket = rows::shown(&loaded.run).bucket;
        Open::of_cached(Cached { no: loaded.no, run: loaded.run, wake_at: loaded.wake_at, bucket, late: loaded.late })
    }

    /// What stays in memory, and how much it weighs; a run that has ended is not expected back.
    pub fn into_cached(mut self) -> Option<(Cached, usize)> {
        if self.run.is_terminal() || self.run.head.state.is_none() {
            return None;
        }
        let mut payloads = std::mem::take(&mut self.run.payloads);
        self.run.release();
        payloads.retain(|name, json| json.len() <= SMALL && is_soon_read(&self.run, name));
        let failed = self.run.open().filter_map(|step| step.failure.as_ref());
        let told = failed.filter_map(|failure| Some(of_value(failure.details.as_ref()?)));
        let bytes: usize = payloads.values().map(|json| json.len()).chain(told).sum();
        let late: usize = self.late.values().flatten().map(|late| late.said.size()).sum();
        let weight = 1 + self.run.steps.len() + (bytes + late) / SMALL;
        self.run.payloads = payloads;
        let Open { no, run, stored_wake, stored_bucket, late, .. } = self;
        Some((Cached { no, run, wake_at: stored_wake, bucket: stored_bucket, late }, weight))
    }

    pub fn told(&self, reply: Reply, replayed: bool) -> Told {
        let head = &self.run.head;
        Told {
            run_id: head.run_id.clone(),
            state: head.state.unwrap_or(RunState::Queued),
            seq: head.seq,
            reply,
            replayed,
            task: None,
            receipt: None,
            steps: Vec::new(),
        }
    }

    /// Takes over what a decision led to; tells the lines of ready tasks.
    fn take(&mut self, advanced: Advanced, fronts: &mut Fronts) -> (Reply, Vec<Effect>) {
        let Advanced { run, records, changed, payloads, effects, wake_at, reply } = advanced;
        for path in changed {
            let ready = |of: &Working| rows::ready(&run.head.started, of.step(path.as_str())?);
            let (was, is) = (ready(&self.run), ready(&run));
            if was != is {
                let namespace = &run.head.namespace;
                was.into_iter().for_each(|was| fronts.change(namespace, self.no, &path, was, None));
                is.into_iter()
                    .for_each(|is| fronts.change(namespace, self.no, &path, is, Some(run.head.run_id.clone())));
            }
            if records.is_empty() {
                self.beaten.insert(path);
            } else if !self.stored.contains_key(&path) {
                let before = self.run.steps.get(&path).cloned().flatten();
                self.stored.insert(path, before);
            }
        }
        self.run = run;
        self.records.extend(records);
        self.payloads.extend(payloads);
        self.wake_at = wake_at;
        (reply, effects)
    }

    /// When the sweep should look at this run, as the store will have it. Earlier than needed is allowed, so that a lease
    /// that comes and goes costs no index; a run that was just looked at, or has ended, gets the exact time.
    fn next_wake(&self, now: Timestamp) -> Option<Timestamp> {
        let may_stay = |stored: Timestamp| stored > now && !self.run.is_terminal();
        match (self.stored_wake, self.wake_at) {
            (Some(stored), Some(wanted)) if stored <= wanted && may_stay(stored) => Some(stored),
            (Some(stored), None) if may_stay(stored) => Some(stored),
            (_, wanted) => wanted,
        }
    }

    /// Everything that must be written, and nothing else.
    fn write(&mut self, key: &RunKey, now: Timestamp) -> Stored<Option<RunWrite>> {
        let wake_at = self.next_wake(now);
        let moved = wake_at != self.stored_wake;
        if self.records.is_empty() && self.beaten.is_empty() && !moved {
            return Ok(None);
        }
        let shown = rows::shown(&self.run);
        let moves = match moved {
            _ if shown.bucket != self.stored_bucket => Moves::Bucket,
            true => Moves::Wake,
            false => Moves::Nothing,
        };
        let mut steps = Vec::with_capacity(self.stored.len() + self.beaten.len());
        for (path, before) in std::mem::take(&mut self.stored) {
            self.beaten.remove(&path);
            if let Some(Some(after)) = self.run.steps.get(&path) {
                steps.push(StepWrite { before, after: after.clone(), only_live: false, row: None });
            }
        }
        for path in std::mem::take(&mut self.beaten) {
            if let Some(Some(after)) = self.run.steps.get(&path) {
                steps.push(StepWrite { before: None, after: after.clone(), only_live: true, row: None });
            }
        }
        // A heartbeat leaves the head as it is.
        let text = match self.records.is_empty() && moves == Moves::Nothing {
            true => String::new(),
            false => rows::head(&mut self.run.head)?,
        };
        let head = &self.run.head;
        let bucket = shown.bucket;
        let write = RunWrite {
            no: self.no,
            from_seq: self.from_seq,
            to_seq: head.seq,
            key: key.clone(),
            started: head.started.clone(),
            updated_at: head.updated_at,
            ended_at: head.ended_at,
            pinned: head.pinned,
            head: text,
            shown,
            wake_at: wake_at.filter(|_| !is_planted(Bug::TimerLost)),
            moves,
            records: std::mem::take(&mut self.records),
            log: None,
            steps,
            payloads: std::mem::take(&mut self.payloads),
        };
        self.from_seq = self.run.head.seq;
        self.stored_wake = wake_at;
        self.stored_bucket = bucket;
        Ok(Some(write))
    }

    fn load(&mut self, found: Vec<Found>) {
        for one in found {
            match one {
                Found::Step(path, row) => {
                    let row = row.filter(|row| row.is_open() || !is_planted(Bug::CheckpointForgotten));
                    self.run.steps.insert(path, row);
                }
                Found::Payload(name, json) => drop(self.run.payloads.insert(name, json)),
            }
        }
    }
}

impl<S: Store> Lane<S> {
    /// The run, loaded once per batch.
    pub(super) fn open<'b>(&mut self, batch: &'b mut Batch, key: &RunKey) -> Stored<Option<&'b mut Open>> {
        if !batch.runs.contains_key(key) {
            let open = match self.runs.take(key) {
                Some(cached) => Open::of_cached(cached),
                None => match self.store.load_run(key)? {
                    Some(loaded) => Open::of_loaded(loaded),
                    None => return Ok(None),
                },
            };
            batch.runs.insert(key.clone(), open);
        }
        Ok(batch.runs.get_mut(key))
    }

    /// Decides one command about a run that is open in this batch.
    pub(super) fn decide(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        command: &Command,
        groups: &[String],
    ) -> Stored<Result<Reply, Rejection>> {
        let Some(open) = batch.runs.get_mut(key) else {
            return Ok(Err(Rejection::NoRun(key.run_id.clone())));
        };
        let started = open.run.head.started.clone();
        let (workflow, version) = (&started.workflow_id, started.workflow_version);
        let Some(definition) = self.definitions.get(&mut self.store, &key.namespace, workflow, Some(version))? else {
            return Ok(Err(Rejection::Bug(format!("version {version} of {workflow} is not stored"))));
        };
        self.decide_with(batch, key, &definition.compiled, command, groups)
    }

    /// Opens a run that nobody asked about and decides about it. `None`: it is gone, or cannot be read, which must not keep the
    /// others from going on.
    pub(super) fn decide_alone(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        command: &Command,
    ) -> Stored<Option<Result<Reply, Rejection>>> {
        match pass_over(&key.run_id, self.open(batch, key).map(|open| open.is_some()))? {
            Some(true) => {}
            Some(false) | None => return Ok(None),
        }
        let decided = self.decide(batch, key, command, &[]);
        pass_over(&key.run_id, decided)
    }

    pub(super) fn decide_with(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        definition: &abide_core::definition::Definition,
        command: &Command,
        groups: &[String],
    ) -> Stored<Result<Reply, Rejection>> {
        let Some(open) = batch.runs.get_mut(key) else {
            return Ok(Err(Rejection::NoRun(key.run_id.clone())));
        };
        let now = batch.now;
        let tampered = tamper(&mut open.run, command, now);
        let command = tampered.as_ref().unwrap_or(command);
        let (late, heard_until) = (open.late.clone(), self.heard_until);
        let mut around = std::mem::take(self.around_of(&key.namespace));
        around.groups = groups.to_vec();
        around.late = late;
        around.heard_until = heard_until;
        let decided = decide(&mut self.store, open, definition, command, &around, now);
        around.groups.clear();
        around.late.clear();
        *self.around_of(&key.namespace) = around;
        let advanced = match decided? {
            Ok(advanced) => advanced,
            Err(rejection) => return Ok(Err(rejection)),
        };
        let (reply, effects) = open.take(advanced, &mut self.fronts);
        // The run has moved already, so it cannot be passed over any more.
        let gathered = self.gather(batch, key, effects);
        gathered.map_err(|error| if let StoreError::Corrupt(why) = error { StoreError::Failed(why) } else { error })?;
        Ok(Ok(reply))
    }

    /// Effects become messages, which are applied in this transaction or wait in the store.
    fn gather(&mut self, batch: &mut Batch, key: &RunKey, effects: Vec<Effect>) -> Stored {
        let mut n = 0;
        for effect in effects {
            let open = batch.runs.get(key).ok_or_else(|| StoreError::Failed("a run left its batch".into()))?;
            let (target, message) = match effect {
                Effect::StartChild(child) => (child.run_id.clone(), Message::Start(child)),
                Effect::CancelChild { run_id, reason } => (run_id, Message::Cancel { reason }),
                Effect::TellParent { parent, state, failure, warnings } => {
                    let output = self.output_of(open)?;
                    let outcome = ChildOutcome::Ended { state, output, failure: failure.map(Box::new), warnings };
                    let child = key.run_id.clone();
                    (parent.run_id, Message::ChildEnded { path: parent.step_id, child, outcome })
                }
                Effect::TaskReady { queue, .. } => {
                    batch.ready.insert((key.namespace.clone(), queue));
                    continue;
                }
                // The row of the wait makes the run findable.
                Effect::AwaitConnection { .. } => continue,
            };
            let target = RunKey { namespace: key.namespace.clone(), run_id: target };
            let (source_seq, sealed) = (open.run.head.seq, open.run.head.started.sealed);
            let key = PostKey { target, source: key.run_id.clone(), source_seq, n };
            batch.messages.push_back(Posted { key, message, sealed });
            n += 1;
        }
        Ok(())
    }

    fn output_of(&mut self, open: &Open) -> Stored<Option<Json>> {
        let Some(output) = &open.run.head.output else { return Ok(None) };
        if let Some(json) = open.run.payloads.get(&output.name) {
            return Ok(Some(json.clone()));
        }
        match self.store.load(open.no, &[Need::Payload(output.name.clone())])?.pop() {
            Some(Found::Payload(_, json)) => Ok(Some(json)),
            _ => Ok(None),
        }
    }

    /// Writes what has changed so far. What comes after it in the same batch sees it.
    pub(super) fn flush(&mut self, batch: &mut Batch) -> Stored {
        // In the order of the starts, which is how they lie on the disk.
        let mut runs: Vec<(&RunKey, &mut Open)> = batch.runs.iter_mut().collect();
        runs.sort_unstable_by_key(|(_, open)| open.no);
        for (key, open) in runs {
            let from_seq = open.from_seq;
            let Some(write) = open.write(key, batch.now)? else { continue };
            if write.to_seq > from_seq {
                let to_seq = write.to_seq;
                if batch.touched.is_empty() || !is_planted(Bug::TouchedIncomplete) {
                    batch.touched.push(Touched { no: write.no, from_seq: from_seq + 1, to_seq });
                }
                batch.committed.push(Committed {
                    key: key.clone(),
                    no: write.no,
                    workflow: write.started.workflow_id.clone(),
                    state: write.shown.state,
                    from_seq: from_seq + 1,
                    to_seq,
                });
            }
            if let Some(wake_at) = write.wake_at.filter(|_| write.moves != Moves::Nothing)
                && !is_planted(Bug::WakeUnheard)
            {
                self.next_wake = Some(self.next_wake.map_or(wake_at, |next| next.min(wake_at)));
            }
            batch.writes.runs.push(write);
        }
        if batch.writes.is_empty() {
            return Ok(());
        }
        batch.dirty = true;
        self.store.write(std::mem::take(&mut batch.writes))
    }
}

/// What a worker gets with its task, and what most steps refer to.
fn is_soon_read(run: &Working, name: &PayloadName) -> bool {
    *name == PayloadName::input()
        || *name == PayloadName::sensitive()
        || run.open().any(|step| step.task.as_ref().is_some_and(|task| task.input.name == *name))
}

/// Decides, and loads until nothing is missing.
fn decide<S: Store>(
    store: &mut S,
    open: &mut Open,
    definition: &abide_core::definition::Definition,
    command: &Command,
    around: &abide_core::run::Around,
    now: Timestamp,
) -> Stored<Result<Advanced, Rejection>> {
    let needs = first_needs(&open.run, definition, &command.ask);
    if !needs.is_empty() && open.from_seq > 0 {
        let found = store.load(open.no, &needs)?;
        open.load(found);
    }
    for _ in 0..MOST_LOADS {
        match advance(&open.run, definition, command, around, now) {
            Ok(advanced) => return Ok(Ok(advanced)),
            Err(Stop::Rejected(rejection)) => return Ok(Err(rejection)),
            Err(Stop::Needs(needs)) => {
                let found = store.load(open.no, &needs)?;
                open.load(found);
            }
        }
    }
    Ok(Err(Rejection::Bug("a decision asks for rows without end".into())))
}
