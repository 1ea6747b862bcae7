//! Claims: many tasks at once, by priority and age. A worker that finds nothing waits here, and is served in the very
//! transaction that makes a task ready.

use std::collections::BTreeSet;

use abide_core::ids::{Digest, Handler, Namespace, Path, PayloadName, Queue, TaskId, WorkerId};
use abide_core::mask::Mask;
use abide_core::run::command::{Actor, Ask, Command, Holding, Json, Reply};
use abide_core::run::step::{Receipt, Ref, Step, Task, TaskKind};
use abide_core::run::{Need, PUSH, key_of_step, row_of};
use abide_core::time::{Span, Timestamp};

use super::front::{Fronts, MOST_LINES, Of};
use super::open::Open;
use super::waiting::{Parked, Turn};
use super::{Batch, Lane, pass_over};
use crate::request::{Asked, BodyStep, Claim, Error, LeasedTask, TaskAnswer, TaskReceipt, What};
use crate::store::{Candidate, Found, Kept, RunKey, Store, StoreError, Stored, Wanted};
use crate::testing::{Bug, is_planted};

/// What the waiting workers got.
pub(super) type Served = (Turn, Parked, Vec<LeasedTask>);

impl<S: Store> Lane<S> {
    /// Takes the claims out of a batch: they wait with the others.
    pub(super) fn park_claims(&mut self, asked: Vec<Asked>) -> Vec<Asked> {
        let mut others = Vec::with_capacity(asked.len());
        for one in asked {
            let (namespace, claim) = match one.request.what {
                What::Claim(claim) => (Some(one.request.namespace), claim),
                What::ClaimAnywhere(claim) => (None, claim),
                What::Register(_)
                | What::Start(_)
                | What::Run(_)
                | What::Reconnected(_)
                | What::Broken(_)
                | What::Rerun(_)
                | What::Tidy(_)
                | What::Count(_)
                | What::Access(_)
                | What::Recall
                | What::Keep(_) => {
                    others.push(one);
                    continue;
                }
            };
            if !self.waiting.has_room() {
                one.reply.send(Err(Error::Overloaded));
                continue;
            }
            self.listeners.heard(namespace.as_ref(), &claim, self.clock.now());
            self.waiting.add(Parked::new(namespace, claim, one.reply));
        }
        others
    }

    /// Serves the waiting claims from what is ready, first come first served. Those who are served leave the list only when
    /// the batch is decided.
    pub(super) fn claim_all(&mut self, batch: &mut Batch) -> Stored<Vec<(Turn, Vec<LeasedTask>)>> {
        let mut served = Vec::new();
        let again = std::mem::take(&mut self.claim_again);
        let turns = if again { self.waiting.all() } else { self.waiting.offered(&batch.ready) };
        // Whoever wants the same as somebody who found nothing finds nothing either.
        let mut in_vain: Option<(Option<Namespace>, Wanted)> = None;
        for turn in turns {
            let Some(one) = self.waiting.get(turn) else { continue };
            if one.is_gone() {
                drop(self.waiting.take(turn));
                continue;
            }
            let (namespace, claim) = (one.namespace.clone(), one.claim.clone());
            // A new one may be repeated, and get what it was given before.
            let may_be_repeated = claim.claim_id.is_some() && self.waiting.is_new(turn);
            let known = |(of, wanted): &(Option<Namespace>, Wanted)| *of == namespace && *wanted == claim.wanted;
            if !may_be_repeated && in_vain.as_ref().is_some_and(known) {
                continue;
            }
            match self.serve(batch, namespace.as_ref(), &claim)? {
                Some(tasks) => served.push((turn, tasks)),
                None => in_vain = Some((namespace, claim.wanted)),
            }
        }
        Ok(served)
    }

    /// What there is for one claim; nothing: it waits on.
    fn serve(
        &mut self,
        batch: &mut Batch,
        namespace: Option<&Namespace>,
        claim: &Claim,
    ) -> Stored<Option<Vec<LeasedTask>>> {
        let Some(namespace) = namespace else {
            let tasks = self.claim_anywhere(batch, claim)?;
            return Ok(Some(tasks).filter(|tasks| !tasks.is_empty()));
        };
        if let Some(tasks) = self.claimed_before(batch, namespace, claim)? {
            return Ok(Some(tasks));
        }
        let tasks = match &claim.wanted.handlers {
            Some(handlers) if handlers.len() * claim.wanted.queues.len() <= MOST_LINES => {
                self.claim_named(batch, namespace, claim, handlers)?
            }
            _ => {
                // What this batch made ready must be found too.
                self.flush(batch)?;
                self.claim_any(batch, namespace, claim, claim.max)?
            }
        };
        if tasks.is_empty() {
            return Ok(None);
        }
        self.remember_claim(batch, namespace, claim, &tasks)?;
        Ok(Some(tasks))
    }

    /// From the lines of the handlers that a worker offers.
    fn claim_named(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        claim: &Claim,
        handlers: &[Handler],
    ) -> Stored<Vec<LeasedTask>> {
        let line = |queue: &Queue, handler: &Handler| Of {
            namespace: namespace.clone(),
            queue: queue.clone(),
            handler: handler.clone(),
        };
        let queues = claim.wanted.queues.iter();
        let lines: Vec<Of> = queues.flat_map(|queue| handlers.iter().map(move |name| line(queue, name))).collect();
        let mut tasks = Vec::new();
        while tasks.len() < claim.max {
            // Reading one may make others be forgotten, once.
            while lines.iter().any(|of| self.fronts.must_read(of)) {
                for of in &lines {
                    self.read_front(batch, of, Fronts::page(lines.len()))?;
                }
            }
            let Some(candidate) = self.fronts.pop(&lines) else { break };
            tasks.extend(self.claim_from(batch, namespace, claim, 1, vec![candidate])?);
        }
        Ok(tasks)
    }

    fn read_front(&mut self, batch: &mut Batch, of: &Of, page: usize) -> Stored {
        if !self.fronts.must_read(of) {
            return Ok(());
        }
        // What this batch made ready must be found too.
        self.flush(batch)?;
        let wanted = Wanted { queues: vec![of.queue.clone()], handlers: Some(vec![of.handler.clone()]) };
        let read = self.store.ready(&of.namespace, &wanted, page)?;
        self.fronts.fill(of.clone(), read, page);
        Ok(())
    }

    /// Each namespace that has something gets an equal share, and another one is the first each time: no tenant can keep
    /// the others waiting.
    fn claim_anywhere(&mut self, batch: &mut Batch, claim: &Claim) -> Stored<Vec<LeasedTask>> {
        // What this batch made ready must be found too.
        self.flush(batch)?;
        let mut namespaces = BTreeSet::new();
        for queue in &claim.wanted.queues {
            namespaces.extend(self.store.namespaces_of(queue)?);
        }
        let mut namespaces: Vec<Namespace> = namespaces.into_iter().collect();
        if namespaces.is_empty() {
            return Ok(Vec::new());
        }
        let count = namespaces.len();
        self.turns = self.turns.wrapping_add(1);
        namespaces.rotate_left(self.turns % count);
        let mut tasks = Vec::new();
        for namespace in &namespaces {
            let max = claim.max.div_ceil(count).min(claim.max - tasks.len());
            tasks.extend(self.claim_any(batch, namespace, claim, max)?);
        }
        Ok(tasks)
    }

    /// From all lines of its queues.
    fn claim_any(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        claim: &Claim,
        max: usize,
    ) -> Stored<Vec<LeasedTask>> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let mut looked_at = max;
        loop {
            let candidates = self.store.ready(namespace, &claim.wanted, looked_at)?;
            let there_are_more = candidates.len() == looked_at;
            let tasks = self.claim_from(batch, namespace, claim, max, candidates)?;
            if !tasks.is_empty() || !there_are_more {
                return Ok(tasks);
            }
            // None of them can be claimed: those behind them must not wait for that.
            looked_at *= 2;
        }
    }

    fn claim_from(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        claim: &Claim,
        max: usize,
        candidates: Vec<Candidate>,
    ) -> Stored<Vec<LeasedTask>> {
        let mut tasks = Vec::with_capacity(max.min(candidates.len()));
        for candidate in candidates {
            if tasks.len() == max {
                break;
            }
            let key = RunKey { namespace: namespace.clone(), run_id: candidate.run_id };
            let claimed = self.claim_candidate(batch, &key, &candidate.path, claim);
            match pass_over(&key.run_id, claimed)?.flatten() {
                Some(task) => tasks.push(task),
                // Looking again would find the same again.
                None => tracing::error!(run = %key.run_id, step = %candidate.path, "a ready task cannot be claimed"),
            }
        }
        Ok(tasks)
    }

    fn claim_candidate(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        row: &Path,
        claim: &Claim,
    ) -> Stored<Option<LeasedTask>> {
        match self.open(batch, key)? {
            Some(_) => self.claim_task(batch, key, row, &claim.worker, claim.window, claim.claim_id.as_ref()),
            None => Ok(None),
        }
    }

    fn claim_task(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        row: &Path,
        worker: &WorkerId,
        window: Option<Span>,
        claim_id: Option<&String>,
    ) -> Stored<Option<LeasedTask>> {
        let Some(open) = batch.runs.get_mut(key) else { return Ok(None) };
        let Some(step) = open.run.steps.get(row).cloned().flatten() else { return Ok(None) };
        let Some(task) = &step.task else { return Ok(None) };
        let path = path_of(task);
        let (task_id, worker) = (task.id.clone(), worker.clone());
        // Before anything is decided: what cannot be read is given to nobody.
        let given = Given {
            input: self.bytes(open, &task.input)?,
            receipts: self.receipts(open, &step)?,
            answers: self.answers(open, &step)?,
            steps: match task.kind {
                TaskKind::Body => Some(self.stored_steps(open)?),
                TaskKind::Step | TaskKind::Reconcile | TaskKind::Compensate => None,
            },
        };
        let actor = Actor::worker(worker.as_str());
        let ask = Ask::Claim { path: path.clone(), task_id, worker, window, claim_id: claim_id.cloned() };
        match self.decide(batch, key, &Command::new(actor, ask), &[])? {
            Ok(Reply::Leased { expires_at, .. }) => {
                let open = batch.runs.get_mut(key).ok_or_else(|| StoreError::Failed("a run left its batch".into()))?;
                leased_task(open, row, given, expires_at).map(Some)
            }
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// After a completion: the run's next task, for the same worker. When the completion is repeated because its answer
    /// was lost, the task that came with it is given again.
    pub(super) fn claim_next(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        after: &Holding,
        worker: Option<&WorkerId>,
    ) -> Stored<Option<LeasedTask>> {
        let Some(open) = batch.runs.get(key) else { return Ok(None) };
        let claim_id = format!("next:{}", after.task_id);
        let given = open.run.open().find_map(|step| {
            let lease = step.lease().filter(|lease| lease.claim_id.as_deref() == Some(claim_id.as_str()))?;
            Some((step.path.clone(), lease.owner.clone()))
        });
        let (path, worker) = match (given, worker) {
            (Some(given), _) => given,
            (None, Some(worker)) => {
                let offered = |step: &&Step| step.is_ready() && self.listeners.offers(&key.namespace, worker, step);
                let Some(ready) = open.run.open().find(offered) else { return Ok(None) };
                (ready.path.clone(), worker.clone())
            }
            (None, None) => return Ok(None),
        };
        self.claim_task(batch, key, &path, &worker, None, Some(&claim_id))
    }

    /// A claim that is repeated with the same id gets the same leases, as far as they live, and never others: whoever asks
    /// for more asks anew.
    fn claimed_before(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        claim: &Claim,
    ) -> Stored<Option<Vec<LeasedTask>>> {
        let planted = is_planted(Bug::ClaimNotReplayed);
        let Some(claim_id) = claim.claim_id.as_ref().filter(|_| !planted) else { return Ok(None) };
        let key = claim_key(&claim.worker, claim_id);
        // Callers choose their idempotency keys: one that looks like this was not kept by a claim.
        let is_of_claim = |kept: &Kept| kept.digest == Digest::of(key.as_bytes());
        let Some(kept) = self.kept(batch, namespace, &key)?.filter(is_of_claim) else { return Ok(None) };
        let Ok(ids) = serde_json::from_str::<Vec<TaskId>>(&kept.answer) else { return Ok(None) };
        let mut tasks = Vec::new();
        for (id, (run_id, path)) in ids.iter().filter_map(|id| Some((id, id.place()?))) {
            let key = RunKey { namespace: namespace.clone(), run_id };
            let claimed = self.claim_again(batch, &key, id, &row_of(&path), claim);
            tasks.extend(pass_over(&key.run_id, claimed)?.flatten());
        }
        Ok(Some(tasks))
    }

    /// The step may be further: its probe, or its next attempt, is not what was claimed.
    fn claim_again(
        &mut self,
        batch: &mut Batch,
        key: &RunKey,
        id: &TaskId,
        row: &Path,
        claim: &Claim,
    ) -> Stored<Option<LeasedTask>> {
        let Some(open) = self.open(batch, key)? else { return Ok(None) };
        let task = open.run.step(row.as_str()).and_then(|step| step.task.as_ref());
        match task.is_some_and(|task| task.id == *id && task.lease.is_some()) {
            true => self.claim_task(batch, key, row, &claim.worker, claim.window, claim.claim_id.as_ref()),
            false => Ok(None),
        }
    }

    fn remember_claim(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        claim: &Claim,
        tasks: &[LeasedTask],
    ) -> Stored {
        let Some(claim_id) = &claim.claim_id else { return Ok(()) };
        let key = claim_key(&claim.worker, claim_id);
        if self.kept(batch, namespace, &key)?.is_some() {
            return Ok(());
        }
        let ids: Vec<&TaskId> = tasks.iter().map(|task| &task.task_id).collect();
        let answer = serde_json::to_string(&ids).map_err(|error| StoreError::Failed(error.to_string()))?;
        let digest = Digest::of(key.as_bytes());
        batch.keep(namespace, &key, Kept { digest, answer, at: batch.now });
        Ok(())
    }

    /// Takes out who was served, and who has waited long enough; the others wait on.
    pub(super) fn take_served(&mut self, served: Vec<(Turn, Vec<LeasedTask>)>) -> Vec<Served> {
        let served = served.into_iter().filter_map(|(turn, tasks)| Some((turn, self.waiting.take(turn)?, tasks)));
        let mut answered: Vec<Served> = served.collect();
        answered.extend(self.waiting.give_up(self.now).into_iter().map(|(turn, parked)| (turn, parked, Vec::new())));
        answered
    }

    /// Who was served by a batch that failed waits again, in its turn.
    pub(super) fn park_again(&mut self, served: Vec<Served>) {
        served.into_iter().for_each(|(turn, parked, _)| self.waiting.put(turn, parked));
    }

    /// Who has just come, or has waited long enough, hears why there is nothing; the others wait on.
    pub(super) fn refuse_parked(&mut self, why: &Error) {
        self.waiting.give_up_with_new(self.now).into_iter().for_each(|parked| parked.answer(Err(why.clone())));
    }

    /// Everybody who waits is told that there is nothing, because the engine stops.
    pub fn dismiss(&mut self) {
        self.wake_the_rest();
        for parked in self.waiting.drain() {
            parked.answer(Err(Error::ShuttingDown));
        }
    }

    pub(super) fn receipts(&mut self, open: &mut Open, step: &Step) -> Stored<Vec<TaskReceipt>> {
        let own = step.receipt.iter().map(|receipt| (None, receipt));
        let named =
            step.effects.iter().filter_map(|effect| Some((Some(effect.name.clone()), effect.receipt.as_ref()?)));
        let mut receipts = Vec::new();
        for (name, receipt) in own.chain(named) {
            receipts.push(self.receipt(open, name, receipt)?);
        }
        Ok(receipts)
    }

    /// A receipt as its task needs it.
    pub(super) fn receipt(&mut self, open: &Open, name: Option<String>, receipt: &Receipt) -> Stored<TaskReceipt> {
        let result = match &receipt.result {
            Some(result) => Some(self.bytes(open, result)?),
            None => None,
        };
        let external_id = match &receipt.external_id {
            Some(id) => Some(self.mask(open)?.reveal(id).into_owned()),
            None => None,
        };
        Ok(TaskReceipt { name, external_id, result, at: receipt.at })
    }

    /// Recognises the sensitive values of a run.
    pub(super) fn mask(&mut self, open: &Open) -> Stored<Mask> {
        if !open.run.head.started.sealed {
            return Ok(Mask::default());
        }
        let values = match open.run.payloads.get(&PayloadName::sensitive()) {
            Some(values) => values.clone(),
            None => self.payload(open.no, &PayloadName::sensitive())?,
        };
        Ok(Mask::read(&values).unwrap_or_default())
    }

    fn answers(&mut self, open: &mut Open, step: &Step) -> Stored<Vec<TaskAnswer>> {
        let mut answers = Vec::new();
        for answer in &step.answers {
            let payload = match &answer.payload {
                Some(payload) => Some(self.bytes(open, payload)?),
                None => None,
            };
            let (on, name, by, at) = (answer.on.clone(), answer.name.clone(), answer.by.clone(), answer.at);
            answers.push(TaskAnswer { on, name, payload, by, at });
        }
        // What is sent out again after a crash may have been answered by now.
        let pushed = step.task.as_ref().is_some_and(|task| task.handler.as_str() == PUSH);
        for callback in step.callbacks.iter().filter(|_| pushed) {
            let Some(answer) = &callback.answer else { continue };
            let (name, payload) = (Some(callback.name.clone()), Some(self.bytes(open, answer)?));
            answers.push(TaskAnswer { on: "tool".into(), name, payload, by: None, at: self.now });
        }
        Ok(answers)
    }

    pub(super) fn bytes(&mut self, open: &Open, reference: &Ref) -> Stored<Json> {
        if let Some(json) = open.run.payloads.get(&reference.name) {
            return Ok(json.clone());
        }
        match self.store.load(open.no, &[Need::Payload(reference.name.clone())])?.pop() {
            Some(Found::Payload(_, json)) => Ok(json),
            _ => Ok("null".into()),
        }
    }
}

/// What a worker is given with a lease.
struct Given {
    input: Json,
    receipts: Vec<TaskReceipt>,
    answers: Vec<TaskAnswer>,
    steps: Option<Vec<BodyStep>>,
}

fn leased_task(open: &Open, row: &Path, given: Given, expires_at: Timestamp) -> Stored<LeasedTask> {
    let missing = || StoreError::Failed(format!("{row} was leased and is gone"));
    let step = open.run.step(row.as_str()).ok_or_else(missing)?;
    let (task, lease) = step.task.as_ref().and_then(|task| Some((task, task.lease.as_ref()?))).ok_or_else(missing)?;
    let head = &open.run.head;
    let path = path_of(task);
    // A probe looks for what the step (or the undo) did, so it carries that key.
    let keyed = Path::from(path.as_str().strip_suffix(".probe").unwrap_or(path.as_str()));
    let Given { input, receipts, answers, steps } = given;
    Ok(LeasedTask {
        task_id: task.id.clone(),
        namespace: head.namespace.clone(),
        run_id: head.run_id.clone(),
        kind: task.kind,
        handler: task.handler.clone(),
        input,
        attempt: step.attempt.max(1),
        epoch: lease.epoch,
        idempotency_key: key_of_step(head, step, &keyed, None),
        lease_expires_at: expires_at,
        heartbeat_every_ms: (lease.window.millis() / 3).max(1),
        deadline: task.timeout.map(|timeout| lease.granted_at + timeout),
        receipts,
        answers,
        workflow_id: head.started.workflow_id.clone(),
        workflow_version: head.started.workflow_version,
        traceparent: traceparent(&head.started.trace_id, task),
        steps,
        step_id: path,
    })
}

fn claim_key(worker: &WorkerId, claim_id: &str) -> String {
    format!("claim:{worker}:{claim_id}")
}

/// The path that a task was issued for: of a probe or an undo, their own.
fn path_of(task: &Task) -> Path {
    task.id.place().map_or_else(|| Path::from(""), |(_, path)| path)
}

/// The run's trace, with a span that is the task's own.
fn traceparent(trace_id: &str, task: &Task) -> Option<String> {
    let is_trace = trace_id.len() == 32 && trace_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let span = Digest::of(task.id.as_str().as_bytes()).to_string();
    is_trace.then(|| format!("00-{trace_id}-{}-01", &span[span.len() - 16..]))
}
