//! Answers for readers: the same rows, the same sentences for a list, a run and its explanation. Each answer is one
//! snapshot and says of which commit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use abide_core::contract::{Evidence, Failure, FailureKind, ReasonType, RunState, StepState};
use abide_core::definition::{Definition, redact};
use abide_core::explain::{
    self, At, ChildFacts, Explanation, Handoff, LateFacts, NotThen, ParentFacts, QueueFacts, Record, Status,
    Surroundings,
};
use abide_core::ids::{Digest, Namespace, Path, PayloadName, Queue, RunId, WorkerId, WorkflowId};
use abide_core::run::command::{Json, Rejection};
use abide_core::run::event::Record as EventRecord;
use abide_core::run::rerun::{RerunPlan, Source, plan_rerun};
use abide_core::run::step::{Connection, Decision, Progress, Proof, Ref, Resource, Step, TaskKind, Wait};
use abide_core::run::{ConnectionFacts, NEWEST, Working};
use abide_core::time::Timestamp;
use rusqlite::Connection as Db;
use serde::Serialize;

use crate::archive::{self, Bundle};
use crate::cache::Cache;
use crate::engine::Engine;
use crate::insights::Insights;
use crate::listeners::Listeners;
use crate::request::{Error, Key, Link, Rerun, RerunVersion};
use crate::store::sqlite::{Readers, access, insights, read};
use crate::store::{Loaded, RunKey, RunNo, StoreError, Stored, StoredDefinition};

/// How many children of one run are looked at for a root cause.
const CHILDREN: usize = 20;
/// How far down a root cause is followed.
const DEPTH: u32 = 8;
/// Leases that are looked at for the list of workers.
const LEASES: usize = 10_000;
/// Longest page of a list.
pub const PAGE: usize = 500;

/// Which runs a list shows. What is not said is not asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    pub states: Vec<RunState>,
    pub workflow: Option<WorkflowId>,
    pub labels: Vec<(String, String)>,
    pub reason: Option<ReasonType>,
    pub failure_kind: Option<FailureKind>,
    pub owner_id: Option<String>,
    pub data_region: Option<String>,
    pub parent: Option<RunId>,
    /// Waits for this tool, and account.
    pub connection: Option<(String, Option<String>)>,
    pub step: Option<Path>,
    pub created_after: Option<Timestamp>,
    pub updated_before: Option<Timestamp>,
}

impl Filter {
    pub fn open() -> Filter {
        Filter::in_states(RunState::ALL.iter().copied().filter(|state| !state.is_terminal()))
    }

    pub fn terminal() -> Filter {
        Filter::in_states(RunState::ALL.iter().copied().filter(|state| state.is_terminal()))
    }

    /// Whether a record is one that this filter finds.
    pub fn fits(&self, record: &Record) -> bool {
        let same = |wanted: &Option<String>, has: &Option<String>| wanted.is_none() || wanted == has;
        let connection = |(tool, account): &(String, Option<String>)| {
            record.blocks.iter().any(|block| block.is_on_connection(tool, account.as_deref()))
        };
        (self.states.is_empty() || self.states.contains(&record.state))
            && self.workflow.as_ref().is_none_or(|workflow| *workflow == record.workflow_id)
            && self.labels.iter().all(|(name, value)| record.labels.get(name) == Some(value))
            && self.reason.is_none_or(|reason| record.blocking_reason.as_ref().is_some_and(|has| has.kind == reason))
            && self.failure_kind.is_none_or(|kind| record.failure.as_ref().is_some_and(|has| has.kind == kind))
            && same(&self.owner_id, &record.owner_id)
            && same(&self.data_region, &record.data_region)
            && self.parent.as_ref().is_none_or(|run| record.parent.as_ref().is_some_and(|has| has.run_id == *run))
            && self.connection.as_ref().is_none_or(connection)
            && self.step.as_ref().is_none_or(|step| record.step_id.as_ref() == Some(step))
            && self.created_after.is_none_or(|at| record.created_at >= at)
            && self.updated_before.is_none_or(|at| record.updated_at < at)
    }

    pub fn in_states(states: impl IntoIterator<Item = RunState>) -> Filter {
        Filter { states: states.into_iter().collect(), ..Filter::default() }
    }
}

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page {
    pub runs: Vec<Record>,
    pub next_cursor: Option<String>,
    /// The commit that this page shows.
    pub as_of: i64,
}

/// One step as people see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepView {
    pub step_id: Path,
    pub title: Option<String>,
    pub state: StepState,
    pub attempt: u32,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Where its result is, and what it must hash to.
    pub output: Option<Ref>,
    pub resources: Vec<Resource>,
    pub receipts: Vec<ReceiptView>,
    pub retry_safe: bool,
    pub proof: Option<Proof>,
    pub failure: Option<Failure>,
    pub evidence: Vec<Evidence>,
}

/// Some of a run's steps with their outputs, and how many it has.
#[derive(Clone, Debug, PartialEq)]
pub struct StepsPage {
    pub steps: Vec<(StepView, Option<Json>)>,
    pub count: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReceiptView {
    pub name: Option<String>,
    pub external_id: Option<String>,
    pub at: Timestamp,
}

/// Everything about a run but the bytes of its payloads.
#[derive(Debug, Serialize)]
pub struct SupportBundle {
    /// The version of this form.
    pub abide: u16,
    pub made_at: Timestamp,
    pub record: Record,
    pub explanation: Explanation,
    pub steps: Vec<StepView>,
    pub payloads: Vec<PayloadView>,
    pub events: Vec<EventRecord>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PayloadView {
    pub name: String,
    pub size: usize,
    pub digest: Digest,
}

/// A workflow as a list shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkflowView {
    pub workflow_id: WorkflowId,
    pub version: u32,
    pub title: Option<String>,
    pub definition_hash: Digest,
    pub created_at: Timestamp,
}

/// One version of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VersionView {
    pub version: u32,
    pub definition_hash: Digest,
    pub created_at: Timestamp,
    pub runs: u64,
}

/// A decision that waits for somebody.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ApprovalView {
    pub run_id: RunId,
    pub workflow_id: WorkflowId,
    pub step_id: Path,
    pub title: String,
    pub subject_digest: Digest,
    pub subject: Option<Json>,
    pub approvers: Vec<String>,
    pub quorum: u32,
    pub given: usize,
    pub since: Timestamp,
    pub deadline: Option<Timestamp>,
    pub overdue: bool,
    /// What happens when nobody decides in time, as a clause: `it fails`.
    pub at_deadline: Option<String>,
    /// JSON Schema of what a yes carries.
    pub form: Option<serde_json::Value>,
    /// Whoever started the run may not decide, when this is true; and that is who it was.
    pub not_requester: bool,
    pub requester: String,
    /// Who has decided so far, where more than one must.
    pub decisions: Vec<DecisionView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecisionView {
    pub by: String,
    pub approve: bool,
    pub at: Timestamp,
    pub comment: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueView {
    pub queue: Queue,
    pub depth: u64,
    pub oldest_at: Option<Timestamp>,
    /// Who has asked for work lately.
    pub listeners: Vec<WorkerId>,
    /// What waits, by handler: a queue that is listened to may still have tasks that nobody offers to do.
    pub handlers: Vec<HandlerView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HandlerView {
    pub handler: String,
    pub depth: u64,
    pub oldest_at: Option<Timestamp>,
    /// How many workers have asked for this handler lately.
    pub listeners: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerView {
    pub worker: WorkerId,
    pub queue: Queue,
    pub handlers: Option<Vec<String>>,
    pub last_poll_at: Timestamp,
    /// It has asked this queue for work lately.
    pub listening: bool,
    /// Tasks of this queue that it holds; the newest 20 of them.
    pub lease_count: usize,
    pub leases: Vec<LeaseView>,
}

/// A task that a worker holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeaseView {
    pub run_id: RunId,
    pub step_id: Path,
    pub handler: String,
    pub granted_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// The proof that it is alive.
    pub last_heartbeat_at: Option<Timestamp>,
    /// The proof that it gets anywhere, where it says so.
    pub progress: Option<Progress>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConnectionView {
    pub tool: String,
    pub account: String,
    pub broken: bool,
    pub generation: u64,
    pub reconnected_at: Option<Timestamp>,
    pub waiting_runs: u64,
}

/// Compiled documents for readers.
#[derive(Debug)]
pub struct Documents(Mutex<Cache<(Namespace, WorkflowId, u32), Arc<Definition>>>);

impl Default for Documents {
    fn default() -> Documents {
        Documents(Mutex::new(Cache::new(20_000)))
    }
}

impl Documents {
    fn get(&self, db: &Db, namespace: &Namespace, workflow: &WorkflowId, version: u32) -> Stored<Arc<Definition>> {
        let key = (namespace.clone(), workflow.clone(), version);
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().take(&key);
        if let Some(found) = known {
            lock().put(key, found.clone(), 1 + found.steps().len());
            return Ok(found);
        }
        let stored = read::definition(db, namespace, workflow, Some(version))?;
        let stored = stored.ok_or_else(|| StoreError::Corrupt(format!("version {version} of {workflow} is gone")))?;
        let parsed = Definition::parse(&stored.document).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        let found = Arc::new(parsed.definition);
        lock().put(key, found.clone(), 1 + found.steps().len());
        Ok(found)
    }
}

/// Reads of one snapshot, for one tenant.
struct Snapshot<'a> {
    db: &'a Db,
    namespace: &'a Namespace,
    documents: &'a Documents,
    listeners: &'a Listeners,
    now: Timestamp,
    serving_since: Timestamp,
}

impl Snapshot<'_> {
    fn key(&self, run_id: &RunId) -> RunKey {
        RunKey { namespace: self.namespace.clone(), run_id: run_id.clone() }
    }

    fn load(&self, run_id: &RunId) -> Stored<Option<Loaded>> {
        read::run(self.db, &self.key(run_id))
    }

    fn definition(&self, run: &Working) -> Stored<Arc<Definition>> {
        let started = &run.head.started;
        self.documents.get(self.db, self.namespace, &started.workflow_id, started.workflow_version)
    }

    fn record(&self, loaded: &Loaded) -> Stored<Record> {
        let definition = self.definition(&loaded.run)?;
        let around = self.surroundings(loaded, DEPTH)?;
        Ok(explain::record(&loaded.run, &definition, &around, self.now))
    }

    /// Facts about others that the answers need.
    fn surroundings(&self, loaded: &Loaded, depth: u32) -> Stored<Surroundings> {
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
        for (path, (answer, worker)) in read::late(self.db, loaded.no)? {
            let facts = LateFacts { at: answer.at, worker: Some(worker), output: None, shown: Some(answer.output) };
            around.late.insert(path, facts);
        }
        around.last_heartbeat_at = read::last_heartbeat(self.db, loaded.no)?;
        if depth == DEPTH
            && let Some(parent) = &run.head.started.parent
        {
            around.parent = self.parent(&parent.run_id)?;
        }
        Ok(around)
    }

    fn queue(&self, queue: &Queue) -> Stored<QueueFacts> {
        let mut listeners = read::listeners(self.db, self.namespace, queue)?;
        // What this process has heard is newer than what is written down.
        for heard in self.listeners.of(self.namespace, queue) {
            match listeners.iter_mut().find(|known| known.worker == heard.worker) {
                Some(known) => *known = heard,
                None => listeners.push(heard),
            }
        }
        let (depth, oldest_at) = read::depth(self.db, self.namespace, queue)?;
        Ok(QueueFacts { listeners, depth, oldest_at })
    }

    fn handlers(&self, queue: &Queue, facts: &QueueFacts) -> Stored<Vec<HandlerView>> {
        let waiting = read::depth_by_handler(self.db, self.namespace, queue)?;
        let view = |read::Waiting { handler, is_body, depth, oldest_at }| {
            let kind = if is_body { TaskKind::Body } else { TaskKind::Step };
            let listeners = facts.heard(&handler, kind, self.now);
            HandlerView { handler: handler.to_string(), depth, oldest_at, listeners }
        };
        Ok(waiting.into_iter().map(view).collect())
    }

    fn child(&self, run_id: &RunId, depth: u32) -> Stored<Option<ChildFacts>> {
        let Some(loaded) = self.load(run_id)? else { return Ok(None) };
        let definition = self.definition(&loaded.run)?;
        let around = self.surroundings(&loaded, depth)?;
        let explained = explain::explain(&loaded.run, &definition, &around, self.now);
        Ok(Some(ChildFacts::of(&loaded.run, explained)))
    }

    fn parent(&self, run_id: &RunId) -> Stored<Option<ParentFacts>> {
        let Some(loaded) = self.load(run_id)? else { return Ok(None) };
        let definition = self.definition(&loaded.run)?;
        let around = Surroundings { serving_since: self.serving_since, ..Surroundings::default() };
        let summary = explain::summary(&loaded.run, &definition, &around, self.now);
        Ok(Some(ParentFacts { state: loaded.run.head.state.unwrap_or(RunState::Queued), summary }))
    }

    fn page(&self, filter: &Filter, before: RunNo, limit: usize) -> Stored<Page> {
        let mut found = read::list(self.db, self.namespace, filter, before, limit + 1)?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|(no, _)| cursor_of(*no));
        let mut runs = Vec::with_capacity(found.len());
        for (_, run_id) in &found {
            if let Some(loaded) = self.load(run_id)? {
                runs.push(self.record(&loaded)?);
            }
        }
        Ok(Page { runs, next_cursor, as_of: read::position(self.db)? })
    }

    fn approvals(&self, limit: usize) -> Stored<Vec<ApprovalView>> {
        let mut views = Vec::new();
        for (key, path) in read::approvals(self.db, self.namespace, limit)? {
            let Some(loaded) = read::run(self.db, &key)? else { continue };
            let Some(step) = loaded.run.step(path.as_str()) else { continue };
            views.extend(self.approval(&loaded, step)?);
        }
        Ok(views)
    }

    fn approval(&self, loaded: &Loaded, step: &Step) -> Stored<Option<ApprovalView>> {
        let Some((approval, block)) = crate::store::rows::approval(step) else { return Ok(None) };
        let subject = read::payload(self.db, loaded.no, &approval.subject.name)?;
        let definition = self.definition(&loaded.run)?;
        let hidden = step.place.index.map(|index| definition.sensitive_inputs(index)).unwrap_or_default();
        let facts = explain::to_decide(&loaded.run, &definition, step, block, self.now);
        Ok(Some(ApprovalView {
            run_id: loaded.run.head.run_id.clone(),
            workflow_id: loaded.run.head.started.workflow_id.clone(),
            step_id: step.path.clone(),
            title: approval.title.clone(),
            subject_digest: approval.subject.digest,
            subject: subject.map(|subject| redact(&subject, &hidden).into()),
            approvers: approval.approvers.clone(),
            quorum: approval.quorum,
            given: step.decisions.iter().filter(|decision| decision.approve).count(),
            since: block.since,
            deadline: block.until,
            overdue: block.overdue,
            at_deadline: facts.at_deadline,
            form: facts.form,
            not_requester: approval.not_requester,
            requester: loaded.run.head.started.requester.clone(),
            decisions: step.decisions.iter().map(DecisionView::of).collect(),
        }))
    }
}

fn cursor_of(no: RunNo) -> String {
    format!("r{no:x}")
}

fn parse_cursor(text: &str) -> Option<RunNo> {
    RunNo::from_str_radix(text.strip_prefix('r')?, 16).ok().filter(|no| *no > 0)
}

impl LeaseView {
    /// The lease of a step, if this worker holds it and it is one of this queue.
    fn of(run_id: &RunId, step: &Step, worker: &WorkerId, queue: &Queue) -> Option<LeaseView> {
        let task = step.task.as_ref().filter(|task| task.queue == *queue)?;
        let lease = task.lease.as_ref().filter(|lease| lease.owner == *worker)?;
        let live = step.live.as_ref();
        Some(LeaseView {
            run_id: run_id.clone(),
            step_id: step.path.clone(),
            handler: task.handler.to_string(),
            granted_at: lease.granted_at,
            expires_at: live.map(|live| live.expires_at),
            last_heartbeat_at: live.map(|live| live.last_heartbeat_at),
            progress: live.and_then(|live| live.progress.clone()),
        })
    }
}

impl DecisionView {
    fn of(decision: &Decision) -> DecisionView {
        let Decision { by, approve, at, comment, .. } = decision.clone();
        DecisionView { by, approve, at, comment }
    }
}

impl StepView {
    fn of(step: &Step, definition: &Definition) -> StepView {
        let own = step.receipt.iter().map(|receipt| (None, receipt));
        let named =
            step.effects.iter().filter_map(|effect| Some((Some(effect.name.clone()), effect.receipt.as_ref()?)));
        let receipts = own
            .chain(named)
            .map(|(name, receipt)| ReceiptView { name, external_id: receipt.external_id.clone(), at: receipt.at })
            .collect();
        let declared = step.place.index.and_then(|index| definition.steps().get(index));
        StepView {
            step_id: step.path.clone(),
            title: declared.and_then(|declared| declared.title.clone()),
            state: step.state,
            attempt: step.attempt,
            started_at: step.started_at,
            ended_at: step.ended_at,
            output: step.output.clone(),
            resources: step.resources.clone(),
            receipts,
            retry_safe: step.retry_safe,
            proof: step.proof.clone(),
            failure: step.failure.clone(),
            evidence: step.evidence.clone(),
        }
    }
}

/// Why there is nothing to read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("there is no run {0}")]
    NoRun(RunId),
    #[error("run {0} has no step {1}")]
    NoStep(RunId, Path),
    #[error("there is no workflow {0}")]
    NoWorkflow(WorkflowId),
    #[error("{0}")]
    Refused(Rejection, Option<RunState>),
    #[error(transparent)]
    NotThen(#[from] NotThen),
    #[error("this cursor is not one that a list gave")]
    BadCursor,
    #[error("a page has 1 to {PAGE} runs")]
    BadLimit,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> ReadError {
        ReadError::Store(StoreError::Failed(error.to_string()))
    }
}

type Read<T> = Result<T, ReadError>;

impl Engine {
    /// Runs a read on a thread where it may take its time.
    async fn read<T: Send + 'static>(&self, read: impl FnOnce(&Snapshot<'_>) -> Read<T> + Send + 'static) -> Read<T> {
        let engine = self.clone();
        let reading = tokio::task::spawn_blocking(move || engine.read_now(read));
        reading.await.map_err(|error| StoreError::Failed(error.to_string()))?
    }

    fn read_now<T>(&self, read: impl FnOnce(&Snapshot<'_>) -> Read<T>) -> Read<T> {
        let mut answer = None;
        self.readers().read(|db| {
            let snapshot = Snapshot {
                db,
                namespace: self.namespace(),
                documents: self.documents(),
                listeners: self.listeners(),
                now: self.clock().now(),
                serving_since: read::serving_since(db)?,
            };
            answer = Some(read(&snapshot));
            Ok(())
        })?;
        answer.unwrap_or_else(|| Err(StoreError::Failed("nothing was read".into()).into()))
    }

    /// The record of a run; also of one in the archive.
    pub async fn run(&self, run_id: &RunId) -> Read<Record> {
        let run_id = run_id.clone();
        let found = {
            let run_id = run_id.clone();
            self.read(move |snapshot| match snapshot.load(&run_id)? {
                Some(loaded) => Ok(Some(snapshot.record(&loaded)?)),
                None => Ok(None),
            })
        };
        match found.await? {
            Some(record) => Ok(record),
            None => {
                let (bundle, engine) = (self.archived(&run_id).await?, self.clone());
                let now = self.clock().now();
                engine
                    .read(move |snapshot| {
                        let run = bundle.run();
                        let definition = snapshot.definition(&run)?;
                        Ok(explain::record(&run, &definition, &Surroundings::default(), now))
                    })
                    .await
            }
        }
    }

    /// A run of the archive, with everything that was kept of it.
    pub async fn archived(&self, run_id: &RunId) -> Read<Bundle> {
        let key = RunKey { namespace: self.namespace().clone(), run_id: run_id.clone() };
        let readers: Arc<Readers> = self.readers().clone();
        let reading = tokio::task::spawn_blocking(move || archive::find(&readers, &key));
        let found = reading.await.map_err(|error| StoreError::Failed(error.to_string()))??;
        found.ok_or_else(|| ReadError::NoRun(run_id.clone()))
    }

    pub async fn status(&self, run_id: &RunId) -> Read<Status> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            Ok(explain::status(&loaded.run))
        })
        .await
    }

    /// The record as it was at any past instant, from the log.
    pub async fn run_at(&self, run_id: &RunId, at: At) -> Read<Record> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let head = &loaded.run.head;
            let log = read::events(snapshot.db, loaded.no, 0, usize::MAX)?;
            Ok(explain::record_at(&head.run_id, &head.namespace, &log, &definition, &Surroundings::default(), at)?)
        })
        .await
    }

    /// A page of runs, newest first.
    pub async fn list(&self, filter: Filter, cursor: Option<&str>, limit: usize) -> Read<Page> {
        if limit == 0 || limit > PAGE {
            return Err(ReadError::BadLimit);
        }
        let before = match cursor {
            Some(text) => parse_cursor(text).ok_or(ReadError::BadCursor)?,
            None => RunNo::MAX,
        };
        self.read(move |snapshot| Ok(snapshot.page(&filter, before, limit)?)).await
    }

    pub async fn counts(&self, workflow: Option<WorkflowId>) -> Read<BTreeMap<RunState, u64>> {
        self.read(move |snapshot| Ok(read::counts(snapshot.db, snapshot.namespace, workflow.as_ref())?)).await
    }

    /// Events of a run after one, in order, each with everything that proves it.
    pub async fn events(&self, run_id: &RunId, after: u64, limit: usize) -> Read<Vec<EventRecord>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let mut events = read::events(snapshot.db, loaded.no, after, limit)?;
            for event in &mut events {
                event.evidence = explain::evidence_of(&loaded.run.head, event);
            }
            Ok(events)
        })
        .await
    }

    /// A page of steps in the order in which they began, each with its output where that is not larger than `shown`; and
    /// how many there are.
    pub async fn steps_page(&self, run_id: &RunId, from: usize, limit: usize, shown: Option<u64>) -> Read<StepsPage> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let mut outlines = read::outlines(snapshot.db, loaded.no)?;
            outlines.sort_by(|one, other| (one.2, &one.0).cmp(&(other.2, &other.0)));
            let mut steps = Vec::new();
            for (path, ..) in outlines.iter().skip(from).take(limit) {
                let Some(step) = read::step(snapshot.db, loaded.no, path)? else { continue };
                let view = StepView::of(&step, &definition);
                let small = view.output.as_ref().filter(|output| shown.is_some_and(|most| output.size <= most));
                let output = match small {
                    Some(output) => read::payload(snapshot.db, loaded.no, &output.name)?,
                    None => None,
                };
                steps.push((view, output));
            }
            Ok(StepsPage { steps, count: outlines.len() })
        })
        .await
    }

    /// When each step was in line, executed and waiting.
    pub async fn timeline(&self, run_id: &RunId) -> Read<explain::Timeline> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let log = read::events(snapshot.db, loaded.no, 0, usize::MAX)?;
            let outlines = read::outlines(snapshot.db, loaded.no)?;
            let states = outlines.into_iter().map(|(path, state, _)| (path, state)).collect();
            Ok(explain::timeline(&log, &states, &definition, snapshot.now))
        })
        .await
    }

    pub async fn steps(&self, run_id: &RunId) -> Read<Vec<StepView>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let mut steps = read::steps(snapshot.db, loaded.no)?;
            steps.sort_by(|one, other| (one.started_at, &one.path).cmp(&(other.started_at, &other.path)));
            Ok(steps.iter().map(|step| StepView::of(step, &definition)).collect())
        })
        .await
    }

    /// One step of a run.
    pub async fn step(&self, run_id: &RunId, path: &Path) -> Read<StepView> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or_else(|| ReadError::NoRun(run_id.clone()))?;
            let definition = snapshot.definition(&loaded.run)?;
            let found = read::step(snapshot.db, loaded.no, &path)?.ok_or(ReadError::NoStep(run_id, path))?;
            Ok(StepView::of(&found, &definition))
        })
        .await
    }

    /// Whether a worker in somebody's name holds a lease of a run.
    pub async fn is_worked_on_by(&self, run_id: &RunId, name: &str) -> Read<bool> {
        let (run_id, prefix) = (run_id.clone(), format!("{name}/"));
        self.read(move |snapshot| {
            let Some(loaded) = snapshot.load(&run_id)? else { return Ok(false) };
            let mut leases = loaded.run.open().filter_map(Step::lease);
            Ok(leases.any(|lease| lease.owner.as_str().starts_with(&prefix)))
        })
        .await
    }

    /// What a rerun would do; nothing is changed.
    pub async fn plan_rerun(&self, rerun: Rerun) -> Read<RerunPlan> {
        self.read(move |snapshot| {
            let run_id = rerun.run_id.clone();
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let started = &loaded.run.head.started;
            let version = match rerun.version {
                RerunVersion::Same => Some(started.workflow_version),
                RerunVersion::Latest => None,
                RerunVersion::Number(number) => Some(number),
            };
            let stored = read::definition(snapshot.db, snapshot.namespace, &started.workflow_id, version)?;
            let version = stored.ok_or_else(|| ReadError::NoWorkflow(started.workflow_id.clone()))?.version;
            let target = snapshot.documents.get(snapshot.db, snapshot.namespace, &started.workflow_id, version)?;
            let own = snapshot.definition(&loaded.run)?;
            let steps: Vec<Step> = read::steps(snapshot.db, loaded.no)?.iter().map(|step| (**step).clone()).collect();
            let source = Source { head: &loaded.run.head, steps: &steps, definition: &own };
            let planned = plan_rerun(source, &target, rerun.from_step.as_deref(), rerun.input.is_some());
            planned.map(|(plan, _)| plan).map_err(|why| ReadError::Refused(why, loaded.run.head.state))
        })
        .await
    }

    /// The newest version of every workflow.
    pub async fn workflows(&self) -> Read<Vec<WorkflowView>> {
        self.read(|snapshot| {
            let mut views = Vec::new();
            for (workflow_id, version, created_at) in read::workflows(snapshot.db, snapshot.namespace)? {
                let definition = snapshot.documents.get(snapshot.db, snapshot.namespace, &workflow_id, version)?;
                let (title, definition_hash) = (definition.title.clone(), definition.hash);
                views.push(WorkflowView { workflow_id, version, title, definition_hash, created_at });
            }
            Ok(views)
        })
        .await
    }

    /// A document as it was uploaded: one version, or the newest; and what it says.
    pub async fn workflow(
        &self,
        workflow: &WorkflowId,
        version: Option<u32>,
    ) -> Read<(StoredDefinition, Arc<Definition>)> {
        let workflow = workflow.clone();
        self.read(move |snapshot| {
            let stored = read::definition(snapshot.db, snapshot.namespace, &workflow, version)?;
            let stored = stored.ok_or_else(|| ReadError::NoWorkflow(workflow.clone()))?;
            let definition = snapshot.documents.get(snapshot.db, snapshot.namespace, &workflow, stored.version)?;
            Ok((stored, definition))
        })
        .await
    }

    /// All versions of a workflow, the newest first, with how many runs each has.
    pub async fn versions(&self, workflow: &WorkflowId) -> Read<Vec<VersionView>> {
        let workflow = workflow.clone();
        self.read(move |snapshot| {
            let counts = read::counts_by_version(snapshot.db, snapshot.namespace, &workflow)?;
            let versions = read::versions(snapshot.db, snapshot.namespace, &workflow)?;
            if versions.is_empty() {
                return Err(ReadError::NoWorkflow(workflow));
            }
            let view = |(version, definition_hash, created_at)| {
                let runs = counts.get(&version).copied().unwrap_or(0);
                VersionView { version, definition_hash, created_at, runs }
            };
            Ok(versions.into_iter().map(view).collect())
        })
        .await
    }

    /// The document of a run, and all its rows, now or at a past instant: what a picture of it needs.
    pub async fn graph(&self, run_id: &RunId, at: Option<At>) -> Read<(Arc<Definition>, Vec<StepView>)> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let view = |step: &Arc<Step>| StepView::of(step, &definition);
            let steps: Vec<StepView> = match at {
                None => read::steps(snapshot.db, loaded.no)?.iter().map(view).collect(),
                Some(at) => {
                    let head = &loaded.run.head;
                    let log = read::events(snapshot.db, loaded.no, 0, usize::MAX)?;
                    let (then, _) = explain::run_at(&head.run_id, &head.namespace, &log, at)?;
                    then.steps.values().flatten().map(view).collect()
                }
            };
            Ok((definition.clone(), steps))
        })
        .await
    }

    /// The input that a step was last issued with, as people may see it; nothing where it is larger than `most`.
    pub async fn shown_step_input(&self, run_id: &RunId, path: &Path, most: u64) -> Read<Option<Json>> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or_else(|| ReadError::NoRun(run_id.clone()))?;
            let definition = snapshot.definition(&loaded.run)?;
            let step = read::step(snapshot.db, loaded.no, &path)?.ok_or(ReadError::NoStep(run_id, path))?;
            let issued = step.input.as_ref().or(step.task.as_ref().map(|task| &task.input));
            let Some(input) = issued.filter(|input| input.size <= most) else { return Ok(None) };
            let hidden = step.place.index.map(|index| definition.sensitive_inputs(index)).unwrap_or_default();
            let bytes = read::payload(snapshot.db, loaded.no, &input.name)?;
            Ok(bytes.map(|bytes| redact(&bytes, &hidden).into()))
        })
        .await
    }

    /// Everything that is stored of a run.
    pub async fn bundle(&self, run_id: &RunId) -> Read<Bundle> {
        let wanted = run_id.clone();
        let found = self.read(move |snapshot| {
            let Some(loaded) = snapshot.load(&wanted)? else { return Ok(None) };
            Ok(Bundle::of(snapshot.db, loaded.no)?)
        });
        match found.await? {
            Some(bundle) => Ok(bundle),
            None => self.archived(run_id).await,
        }
    }

    /// All keys of the API, of every namespace.
    pub async fn keys(&self) -> Read<Vec<Key>> {
        self.read(|snapshot| Ok(access::keys(snapshot.db)?)).await
    }

    /// What a one-time link is for.
    pub async fn link(&self, token_hash: Digest) -> Read<Option<Link>> {
        self.read(move |snapshot| Ok(access::link(snapshot.db, &token_hash)?)).await
    }

    /// The approval that a step waits for.
    pub async fn approval(&self, run_id: &RunId, path: &Path) -> Read<Option<ApprovalView>> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            match loaded.run.step(path.as_str()) {
                Some(step) => Ok(snapshot.approval(&loaded, step)?),
                None => Ok(None),
            }
        })
        .await
    }

    /// What people have answered to a step, also when it is over.
    pub async fn decisions(&self, run_id: &RunId, path: &Path) -> Read<Vec<DecisionView>> {
        let (run_id, path) = (run_id.clone(), path.clone());
        self.read(move |snapshot| {
            let Some(loaded) = snapshot.load(&run_id)? else { return Ok(Vec::new()) };
            let step = read::step(snapshot.db, loaded.no, &path)?;
            Ok(step.map(|step| step.decisions.iter().map(DecisionView::of).collect()).unwrap_or_default())
        })
        .await
    }

    /// How many runs of each workflow are kept.
    pub async fn counts_by_workflow(&self) -> Read<BTreeMap<WorkflowId, u64>> {
        self.read(|snapshot| Ok(read::counts_by_workflow(snapshot.db, snapshot.namespace)?)).await
    }

    /// How many open runs wait for the same thing, named by the run that is at the end of the chain.
    pub async fn counts_by_cause(&self) -> Read<BTreeMap<String, u64>> {
        self.read(|snapshot| Ok(read::counts_by_cause(snapshot.db, snapshot.namespace)?)).await
    }

    /// When the engine last committed that it serves.
    pub async fn served_at(&self) -> Read<Timestamp> {
        self.read(|snapshot| Ok(read::served_at(snapshot.db)?)).await
    }

    /// Decisions that one run waits for.
    pub async fn approvals_of(&self, run_id: &RunId) -> Read<Vec<ApprovalView>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let Some(loaded) = snapshot.load(&run_id)? else { return Ok(Vec::new()) };
            let mut views = Vec::new();
            for step in loaded.run.open() {
                views.extend(snapshot.approval(&loaded, step)?);
            }
            Ok(views)
        })
        .await
    }

    /// A page of the archive, newest first. Of the filters, those count that the archive's rows have: state and workflow.
    pub async fn list_archived(&self, filter: Filter, cursor: Option<&str>, limit: usize) -> Read<Page> {
        if limit == 0 || limit > PAGE {
            return Err(ReadError::BadLimit);
        }
        let before = match cursor {
            Some(text) => parse_cursor(text).ok_or(ReadError::BadCursor)?,
            None => RunNo::MAX,
        };
        let found = self
            .read(move |snapshot| {
                let found = read::list_archived(snapshot.db, snapshot.namespace, &filter, before, limit + 1)?;
                Ok((found, read::position(snapshot.db)?))
            })
            .await?;
        let (mut found, as_of) = found;
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|(no, _)| cursor_of(*no));
        let mut runs = Vec::with_capacity(found.len());
        for (_, run_id) in &found {
            runs.push(self.run(run_id).await?);
        }
        Ok(Page { runs, next_cursor, as_of })
    }

    /// One file about a run for whoever helps: record, explanation, steps, log; payloads as digests and sizes alone.
    pub async fn support_bundle(&self, run_id: &RunId) -> Read<SupportBundle> {
        let record = self.run(run_id).await?;
        let bundle = self.bundle(run_id).await?;
        let now = self.clock().now();
        let wanted = bundle.run();
        let definition = self.read(move |snapshot| Ok(snapshot.definition(&wanted)?)).await?;
        let run = bundle.run();
        let explanation = explain::explain(&run, &definition, &Surroundings::default(), now);
        let stored = |(name, bytes): &(String, String)| PayloadView {
            name: name.clone(),
            size: bytes.len(),
            digest: Digest::of(bytes.as_bytes()),
        };
        Ok(SupportBundle {
            abide: 1,
            made_at: now,
            record,
            explanation,
            steps: bundle.steps.iter().map(|step| StepView::of(step, &definition)).collect(),
            payloads: bundle.payloads.iter().map(stored).collect(),
            events: bundle.events,
        })
    }

    /// The run's input as people may see it: without the values that the document calls sensitive. Only tasks get those.
    pub async fn shown_input(&self, run_id: &RunId) -> Read<Option<Json>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let input = read::payload(snapshot.db, loaded.no, &PayloadName::input())?;
            Ok(input.map(|input| redact(&input, &definition.sensitive).into()))
        })
        .await
    }

    /// The bytes of a payload, as they were given: `input`, `output`, `STEP/output`.
    pub async fn payload(&self, run_id: &RunId, name: &str) -> Read<Option<Json>> {
        let (run_id, name) = (run_id.clone(), PayloadName::from(name));
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            Ok(read::payload(snapshot.db, loaded.no, &name)?)
        })
        .await
    }

    /// What a run is doing, why, since when, and what can be done.
    pub async fn explain(&self, run_id: &RunId) -> Read<Explanation> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let around = snapshot.surroundings(&loaded, DEPTH)?;
            Ok(explain::explain(&loaded.run, &definition, &around, snapshot.now))
        })
        .await
    }

    /// The same for any past instant, from the log.
    pub async fn explain_at(&self, run_id: &RunId, at: At) -> Read<Explanation> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let head = &loaded.run.head;
            let log = read::events(snapshot.db, loaded.no, 0, usize::MAX)?;
            let around = Surroundings::default();
            Ok(explain::explain_at(&head.run_id, &head.namespace, &log, &definition, &around, at)?)
        })
        .await
    }

    /// Everything that an operator needs to decide.
    pub async fn handoff(&self, run_id: &RunId) -> Read<Handoff> {
        let run_id = run_id.clone();
        self.read(move |snapshot| {
            let loaded = snapshot.load(&run_id)?.ok_or(ReadError::NoRun(run_id))?;
            let definition = snapshot.definition(&loaded.run)?;
            let around = snapshot.surroundings(&loaded, DEPTH)?;
            let steps: Vec<Step> = read::steps(snapshot.db, loaded.no)?.iter().map(|step| (**step).clone()).collect();
            Ok(explain::handoff(&loaded.run, &steps, &definition, &around, snapshot.now))
        })
        .await
    }

    /// Decisions that wait for people, the most urgent first.
    pub async fn approvals(&self, limit: usize) -> Read<Vec<ApprovalView>> {
        self.read(move |snapshot| Ok(snapshot.approvals(limit)?)).await
    }

    pub async fn queues(&self) -> Read<Vec<QueueView>> {
        self.read(|snapshot| {
            let mut views = Vec::new();
            for queue in read::queues(snapshot.db, snapshot.namespace)? {
                let facts = snapshot.queue(&queue)?;
                let lately = |at: Timestamp| snapshot.now.since(at) <= explain::LISTENING;
                let listening = facts.listeners.iter().filter(|listener| lately(listener.last_poll_at));
                let listeners = listening.map(|listener| listener.worker.clone()).collect();
                let handlers = snapshot.handlers(&queue, &facts)?;
                views.push(QueueView { queue, depth: facts.depth, oldest_at: facts.oldest_at, listeners, handlers });
            }
            Ok(views)
        })
        .await
    }

    pub async fn workers(&self) -> Read<Vec<WorkerView>> {
        self.read(|snapshot| {
            let mut views = Vec::new();
            let leased = read::leased(snapshot.db, snapshot.namespace, LEASES)?;
            for queue in read::queues(snapshot.db, snapshot.namespace)? {
                for listener in snapshot.queue(&queue)?.listeners {
                    let handlers = listener.handlers.map(|names| names.iter().map(ToString::to_string).collect());
                    let mut leases: Vec<LeaseView> = leased
                        .iter()
                        .filter_map(|(run_id, step)| LeaseView::of(run_id, step, &listener.worker, &queue))
                        .collect();
                    leases.sort_by_key(|lease| std::cmp::Reverse(lease.granted_at));
                    let lease_count = leases.len();
                    leases.truncate(NEWEST);
                    views.push(WorkerView {
                        lease_count,
                        leases,
                        worker: listener.worker,
                        queue: queue.clone(),
                        handlers,
                        last_poll_at: listener.last_poll_at,
                        listening: snapshot.now.since(listener.last_poll_at) <= explain::LISTENING,
                    });
                }
            }
            Ok(views)
        })
        .await
    }

    pub async fn connections(&self) -> Read<Vec<ConnectionView>> {
        self.read(|snapshot| {
            let known = read::connections(snapshot.db, snapshot.namespace)?;
            let view = |(Connection { tool, account }, facts, waiting_runs): (Connection, ConnectionFacts, u64)| {
                let ConnectionFacts { generation, reconnected_at, broken } = facts;
                ConnectionView { tool, account, broken, generation, reconnected_at, waiting_runs }
            };
            Ok(known.into_iter().map(view).collect())
        })
        .await
    }

    /// The numbers of every workflow that has any.
    pub async fn insights_by_workflow(&self) -> Read<BTreeMap<WorkflowId, Insights>> {
        self.read(move |snapshot| {
            let mut rows: BTreeMap<WorkflowId, Vec<_>> = BTreeMap::new();
            for (workflow, row) in insights::rows_of(snapshot.db, snapshot.namespace, None)? {
                rows.entry(workflow).or_default().push(row);
            }
            Ok(rows.into_iter().map(|(workflow, rows)| (workflow, Insights::of(&rows))).collect())
        })
        .await
    }

    /// Time in states, retries, stalls and the like, of one workflow or of all.
    pub async fn insights(&self, workflow: Option<WorkflowId>) -> Read<Insights> {
        self.read(move |snapshot| {
            Ok(Insights::of(&insights::rows(snapshot.db, snapshot.namespace, workflow.as_ref())?))
        })
        .await
    }

    /// Runs that were made from a run.
    pub async fn reruns_of(&self, run_id: &RunId) -> Read<Vec<RunId>> {
        let run_id = run_id.clone();
        self.read(move |snapshot| Ok(read::made_from(snapshot.db, &snapshot.key(&run_id))?)).await
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
