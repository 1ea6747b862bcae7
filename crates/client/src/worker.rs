//! Takes tasks and executes them: leases, heartbeats, reports and stopping are taken care of.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use abide_api::tasks::{ClaimTasks, FailTask, Stopped, Task};
use abide_api::{Raw, raw_of};
use abide_core::contract::FailureClass;
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::body::{Ctx, drive};
use crate::error::Error;
use crate::failure::{Ending, Failure};
use crate::ids;
use crate::lease::{Held, Leases};
use crate::reports::Reports;
use crate::tasks::{Reply, Said, Tasks};
use crate::work::Work;

/// How long one claim waits for work before it asks again.
const WAIT_MS: u64 = 20_000;
/// Servers give no more at once.
const MOST_TASKS: usize = 1_000;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

type Running = Pin<Box<dyn Future<Output = Result<Raw, Failure>> + Send>>;
type Code = Arc<dyn Fn(Work) -> Running + Send + Sync>;

/// Tells a worker to take no more tasks.
#[derive(Clone, Debug, Default)]
pub struct Stop(CancellationToken);

impl Stop {
    pub fn now(&self) {
        self.0.cancel();
    }
}

/// Takes tasks of the handlers it offers and executes them.
pub struct Worker {
    tasks: Arc<dyn Tasks>,
    name: String,
    queues: Vec<String>,
    handlers: BTreeMap<String, Code>,
    at_once: usize,
    lease: Option<Duration>,
    stop: Stop,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("name", &self.name).field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl Worker {
    /// The name is for people; every start adds something of its own to it.
    pub fn new(tasks: impl Tasks, name: &str) -> Worker {
        Worker {
            tasks: Arc::new(tasks),
            name: format!("{name}-{}", &ids::fresh()[..8]),
            queues: Vec::new(),
            handlers: BTreeMap::new(),
            at_once: 16,
            lease: None,
            stop: Stop::default(),
        }
    }

    /// Listens to this queue; more than one may be named. None: `default`.
    pub fn queue(mut self, queue: impl Into<String>) -> Worker {
        self.queues.push(queue.into());
        self
    }

    /// How many tasks are executed at the same time.
    pub fn at_once(mut self, tasks: usize) -> Worker {
        self.at_once = tasks.clamp(1, 10_000);
        self
    }

    /// How long a lease lasts where the workflow does not say.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.lease = Some(lease);
        self
    }

    /// Offers a function under a name that steps ask for with `task: NAME`.
    pub fn handle<F, R, T>(mut self, name: &str, code: F) -> Worker
    where
        F: Fn(Work) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Serialize,
    {
        let code = Arc::new(code);
        self.handlers.insert(
            name.to_owned(),
            Arc::new(move |work| {
                let code = code.clone();
                // The call itself stands inside, so that a panic in it is caught too.
                Box::pin(async move { Ok(raw_of(&code(work).await?)?) })
            }),
        );
        self
    }

    /// Offers the body of a workflow that says `coded: { revision: … }`.
    pub fn workflow<F, R, I, T>(mut self, workflow: &str, revision: &str, body: F) -> Worker
    where
        F: Fn(Ctx, I) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, Failure>> + Send + 'static,
        I: DeserializeOwned + Send + 'static,
        T: Serialize + Send + 'static,
    {
        let body = Arc::new(body);
        self.handlers.insert(
            format!("{workflow}@{revision}"),
            Arc::new(move |work| {
                let body = body.clone();
                Box::pin(drive(work, move |ctx, input| body(ctx, input)))
            }),
        );
        self
    }

    /// With this the worker can be told to stop from elsewhere.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// The name under which it holds leases.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Works until it is told to stop, or is refused for good; tasks that were begun are finished.
    pub async fn run(self) -> Result<(), Error> {
        let at_once = self.at_once;
        let slots = Arc::new(Semaphore::new(at_once));
        let leases = Arc::new(Leases::new());
        let _keeper = AbortOnDrop(tokio::spawn(leases.clone().keep_alive(self.tasks.clone())));
        let bench = Arc::new(Bench {
            tasks: self.tasks.clone(),
            reports: Reports::begin(self.tasks.clone()),
            leases,
            handlers: self.handlers.clone(),
            stop: self.stop.clone(),
        });
        let outcome = self.take_tasks(&bench, &slots).await;
        // What was begun is finished: its slots come back.
        let _ = slots.acquire_many(u32::try_from(at_once).unwrap_or(u32::MAX)).await;
        outcome
    }

    async fn take_tasks(&self, bench: &Arc<Bench>, slots: &Arc<Semaphore>) -> Result<(), Error> {
        while !self.stop.0.is_cancelled() {
            let Some(free) = self.free_slots(slots).await else { break };
            let mut ask = self.claim(free.len());
            let (tasks, asked) = self.claimed(&mut ask).await?;
            for (task, slot) in tasks.into_iter().zip(free) {
                tokio::spawn(bench.clone().carry(task, asked, slot));
            }
        }
        Ok(())
    }

    /// One slot is waited for; the others are taken as they are free.
    async fn free_slots(&self, slots: &Arc<Semaphore>) -> Option<Vec<OwnedSemaphorePermit>> {
        let first = tokio::select! {
            slot = slots.clone().acquire_owned() => slot.ok()?,
            () = self.stop.0.cancelled() => return None,
        };
        let mut free = vec![first];
        while let Ok(slot) = slots.clone().try_acquire_owned() {
            free.push(slot);
        }
        Some(free)
    }

    fn claim(&self, max: usize) -> ClaimTasks {
        let queues = if self.queues.is_empty() { vec!["default".to_owned()] } else { self.queues.clone() };
        ClaimTasks {
            worker: self.name.clone(),
            queues,
            handlers: Some(self.handlers.keys().cloned().collect()),
            max: u32::try_from(max.min(MOST_TASKS)).ok(),
            wait_ms: Some(WAIT_MS),
            lease_ms: self.lease.and_then(|lease| u64::try_from(lease.as_millis()).ok()),
            claim_id: Some(ids::fresh()),
        }
    }

    /// Asks until there is an answer. The claim keeps its id, so that tasks whose answer was lost come again.
    async fn claimed(&self, ask: &mut ClaimTasks) -> Result<(Vec<Task>, Instant), Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            let asked = Instant::now();
            let answer = tokio::select! {
                answer = self.tasks.claim(ask) => answer,
                () = self.stop.0.cancelled(), if ask.wait_ms != Some(0) => {
                    // Whatever was leased to the call that is given up is fetched and finished.
                    ask.wait_ms = Some(0);
                    continue;
                }
            };
            let error = match answer {
                Ok(tasks) => return Ok((tasks, asked)),
                Err(error) if !error.is_retryable() => return Err(error),
                Err(_) if ask.wait_ms == Some(0) => return Ok((Vec::new(), asked)),
                Err(error) => error,
            };
            tracing::warn!(%error, "no tasks; asking again");
            tokio::select! {
                () = tokio::time::sleep(ids::jittered(pause)) => {}
                () = self.stop.0.cancelled() => ask.wait_ms = Some(0),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where tasks are executed.
struct Bench {
    tasks: Arc<dyn Tasks>,
    reports: Reports,
    leases: Arc<Leases>,
    handlers: BTreeMap<String, Code>,
    stop: Stop,
}

impl Bench {
    /// Executes a task, and then the next one of its run, for as long as the server hands one on.
    async fn carry(self: Arc<Self>, first: Task, since: Instant, slot: OwnedSemaphorePermit) {
        let mut next = Some((first, since));
        while let Some((task, since)) = next.take() {
            let Some(held) = self.leases.hold(task, since) else { break };
            if !held.is_proven() && !self.leases.prove(&held, &*self.tasks).await {
                tracing::warn!(task = %held.task.task_id, "its lease was over before it came");
                self.leases.release(&held);
                break;
            }
            let work = Work::new(held.clone(), self.reports.clone());
            if let Some(said) = self.execute(&work).await {
                let asked = Instant::now();
                next = self.report(&work, said).await.map(|task| (task, asked));
            }
            self.leases.release(&held);
        }
        drop(slot);
    }

    /// Runs the handler for as long as the lease lives. `None`: there is nothing to say any more.
    async fn execute(&self, work: &Work) -> Option<Said> {
        let held: &Held = work.held();
        let Some(code) = self.handlers.get(&held.task.handler) else {
            tracing::error!(handler = %held.task.handler, "a task came for a handler that is not offered here");
            return None;
        };
        let running = AssertUnwindSafe(code(work.clone())).catch_unwind();
        let outcome = tokio::select! {
            outcome = running => outcome,
            () = held.over.cancelled() => {
                tracing::warn!(task = %held.task.task_id, "the lease is over; the handler was stopped");
                return None;
            }
        };
        let outcome = outcome.unwrap_or_else(|panic| Err(Failure::new(panicked(&*panic))));
        said(work, outcome, !self.stop.0.is_cancelled())
    }

    /// Hands in the result; the run's next task may come back.
    async fn report(&self, work: &Work, said: Said) -> Option<Task> {
        match work.say(said).await {
            Ok(Reply::Done(done)) => done.task.map(|task| *task),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(task = %work.task().task_id, %error, "what the handler gave back was not taken");
                None
            }
        }
    }
}

fn said(work: &Work, outcome: Result<Raw, Failure>, claim_next: bool) -> Option<Said> {
    let epoch = work.task().epoch;
    Some(match outcome {
        Ok(output) => Said::Complete(work.completion(output, claim_next)),
        Err(failure) => match failure.into_ending() {
            Ending::Failed(told) => Said::Fail(FailTask { epoch, ..told }),
            Ending::StepFailed { step_id, told } => Said::Fail(for_good(epoch, &step_id, told)),
            Ending::Blocked(block) => Said::Block(Box::new(block)),
            Ending::Canceled => Said::Canceled(Stopped { epoch }),
            Ending::Released => return None,
        },
    })
}

/// The step's own retries are used up; the body is not tried again only to find the same.
fn for_good(epoch: u64, step_id: &str, told: FailTask) -> FailTask {
    let details = serde_json::json!({ "step_id": step_id, "class": told.class, "details": told.details });
    let message = format!("step {step_id} failed: {}", told.message);
    FailTask { epoch, class: Some(FailureClass::Fatal), message, details: Some(details), ..told }
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", words.unwrap_or("without a word"))
}
