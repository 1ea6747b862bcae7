//! A worker in the same process: handlers are async functions; leases, heartbeats and stopping are taken care of.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_core::contract::FailureClass;
use abide_core::ids::{Handler, Queue, WorkerId};
use abide_core::run::command::{Ask, Fault, Holding, Json, Reply, Report};
use abide_core::run::size::cut_story;
use abide_core::run::step::{Progress, Receipt};
use abide_core::time::Span;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use crate::engine::Engine;
use crate::request::{Claim, Error, LeasedTask};
use crate::store::Wanted;

/// How long one claim waits for work before it asks again, and so how long a worker that was told to stop may still take some.
const WAIT: Span = Span::from_secs(1);
/// What the store cannot take now is offered again so often, after this time.
pub(crate) const AGAIN: Duration = Duration::from_millis(200);
const OFFERS: u32 = 50;

/// What a handler gives back.
pub type Done = Result<serde_json::Value, Fault>;
type Running = Pin<Box<dyn Future<Output = Done> + Send>>;
type Code = Arc<dyn Fn(Work) -> Running + Send + Sync>;

/// Tells a worker to take no more tasks.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn now(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Takes tasks of the handlers it offers and executes them.
pub struct Worker {
    engine: Engine,
    name: WorkerId,
    queue: Queue,
    handlers: BTreeMap<Handler, Code>,
    at_once: usize,
    stop: Stop,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("name", &self.name).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Worker {
    pub(crate) fn new(engine: Engine, name: &str) -> Worker {
        Worker {
            engine,
            name: WorkerId::from(name),
            queue: Queue::from("default"),
            handlers: BTreeMap::new(),
            at_once: 16,
            stop: Stop::default(),
        }
    }

    /// Listens to another queue than `default`.
    pub fn on_queue(mut self, queue: &str) -> Worker {
        self.queue = Queue::from(queue);
        self
    }

    /// How many tasks are executed at the same time.
    pub fn at_once(mut self, tasks: usize) -> Worker {
        self.at_once = tasks.max(1);
        self
    }

    /// Offers a function under a name that steps ask for with `task: NAME`.
    pub fn handle<F, R>(mut self, name: &str, code: F) -> Worker
    where
        F: Fn(Work) -> R + Send + Sync + 'static,
        R: Future<Output = Done> + Send + 'static,
    {
        let code: Code = Arc::new(move |work| Box::pin(code(work)));
        self.handlers.insert(Handler::from(name), code);
        self
    }

    /// With this the worker can be told to stop from elsewhere.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// Works until it is told to stop or the engine does; tasks that were begun are finished.
    pub async fn run(self) -> Result<(), Error> {
        let Worker { engine, name, queue, handlers, at_once, stop } = self;
        let wanted = Wanted { queues: vec![queue], handlers: Some(handlers.keys().cloned().collect()) };
        let (slots, handlers) = (Arc::new(Semaphore::new(at_once)), Arc::new(handlers));
        while !stop.is_set() {
            // One slot is waited for; the others are taken as they are free.
            let Ok(first) = slots.clone().acquire_owned().await else { break };
            let mut free = vec![first];
            while let Ok(slot) = slots.clone().try_acquire_owned() {
                free.push(slot);
            }
            let until = Some(engine.clock().now() + WAIT);
            let (worker, wanted, max) = (name.clone(), wanted.clone(), free.len());
            let claim = Claim { worker, wanted, max, window: None, claim_id: None, until };
            let tasks = match engine.claim(claim).await {
                Ok(tasks) => tasks,
                Err(Error::ShuttingDown) => break,
                Err(error) if passes(&error) => {
                    tracing::warn!(%error, "no tasks can be claimed");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (task, slot) in tasks.into_iter().zip(free) {
                let (engine, name, handlers) = (engine.clone(), name.clone(), handlers.clone());
                tokio::spawn(async move {
                    execute(engine, name, &handlers, task).await;
                    drop(slot);
                });
            }
        }
        // What was begun is finished: its slots come back.
        let _ = slots.acquire_many(u32::try_from(at_once).unwrap_or(u32::MAX)).await;
        Ok(())
    }
}

/// One task in the hands of a handler.
#[derive(Clone, Debug)]
pub struct Work {
    pub task: LeasedTask,
    engine: Engine,
    name: WorkerId,
    canceled: Arc<AtomicBool>,
}

impl Work {
    /// The task's input, as the type that the handler expects.
    #[expect(clippy::result_large_err, reason = "it is what a handler returns")]
    pub fn input<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        serde_json::from_str(&self.task.input).map_err(|error| fault(FailureClass::Validation, error.to_string()))
    }

    /// Whether the engine has asked to stop: the run cancels, or nobody needs the result any more.
    pub fn is_canceled(&self) -> bool {
        self.canceled.load(Ordering::SeqCst)
    }

    /// Says how far it is. It also proves that the worker lives.
    pub async fn progress(&self, done: u64, total: Option<u64>, message: Option<&str>) -> Result<(), Error> {
        let progress = Progress { done, total, message: message.map(Into::into), at: None };
        self.beat(Some(progress)).await
    }

    /// Writes down what the outside world gave back, as soon as it is known: from then on nothing is called again.
    pub async fn receipt(&self, external_id: Option<&str>, result: Option<&impl Serialize>) -> Result<(), Error> {
        let result = match result {
            Some(result) => Some(json(result)?),
            None => None,
        };
        let external_id = external_id.map(Into::into);
        let told = self.engine.report(&self.task, self.name.as_str(), |holding| Ask::Effect {
            holding,
            name: None,
            external_id,
            result,
        });
        told.await.map(drop)
    }

    /// Writes down that a named effect is about to be caused, and returns its receipt if it was caused before.
    pub async fn intend(&self, name: &str) -> Result<Option<Receipt>, Error> {
        let name = Some(name.to_owned());
        let told = self.engine.report(&self.task, self.name.as_str(), |holding| Ask::Effect {
            holding,
            name,
            external_id: None,
            result: None,
        });
        if let Reply::Effect { receipt, .. } = told.await?.reply { Ok(receipt) } else { Ok(None) }
    }

    async fn beat(&self, progress: Option<Progress>) -> Result<(), Error> {
        let told = self.engine.report(&self.task, self.name.as_str(), |holding| Ask::Heartbeat { holding, progress });
        if let Reply::Beat { stop: true, .. } = told.await?.reply {
            self.canceled.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}

fn json(value: &impl Serialize) -> Result<Json, Error> {
    serde_json::to_string(value).map(Into::into).map_err(|error| Error::Invalid(error.to_string()))
}

fn fault(class: FailureClass, message: String) -> Fault {
    Fault { class: Some(class), message, ..Fault::default() }
}

/// Runs the handler beside its heartbeats and reports what came out.
async fn execute(engine: Engine, name: WorkerId, handlers: &BTreeMap<Handler, Code>, task: LeasedTask) {
    let Some(code) = handlers.get(&task.handler).cloned() else { return };
    let every = Duration::from_millis(task.heartbeat_every_ms);
    let work = Work { task: task.clone(), engine: engine.clone(), name: name.clone(), canceled: Arc::default() };
    // What the function does before it gives back its future may panic too.
    let mut running = tokio::spawn({
        let work = work.clone();
        async move { code(work).await }
    });
    let done = loop {
        tokio::select! {
            done = &mut running => break done,
            () = tokio::time::sleep(every) => {
                if let Err(Error::Rejected { why, .. }) = work.beat(None).await {
                    // Somebody else has the task now: whatever comes out here is not wanted.
                    tracing::warn!(task = %task.task_id, %why, "the lease is gone");
                    running.abort();
                    return;
                }
            }
        }
    };
    let done: Done = match done {
        Ok(Err(mut fault)) => {
            cut_story(&mut fault.message, &mut fault.details);
            Err(fault)
        }
        Ok(done) => done,
        // No class: unknown if the step is `external`, else transient.
        Err(panicked) => Err(Fault { message: format!("the handler panicked: {panicked}"), ..Fault::default() }),
    };
    let ask = |holding| match &done {
        Ok(output) => {
            let report = Report { output: Some(output.to_string().into()), ..Report::default() };
            Ask::Complete { holding, report }
        }
        Err(fault) => Ask::Fail { holding, fault: fault.clone() },
    };
    if let Err(error) = say(&engine, &task, &name, ask).await {
        tracing::warn!(task = %task.task_id, %error, "what the handler gave back was not taken");
    }
}

/// Says it until it is written: saying it twice changes nothing, and what was done should not be forgotten because the disk
/// was busy.
pub(crate) async fn say(
    engine: &Engine,
    task: &LeasedTask,
    name: &WorkerId,
    ask: impl Fn(Holding) -> Ask,
) -> Result<Reply, Error> {
    for _ in 1..OFFERS {
        match engine.report(task, name.as_str(), &ask).await {
            Err(error) if passes(&error) => tokio::time::sleep(AGAIN).await,
            told => return told.map(|told| told.reply),
        }
    }
    engine.report(task, name.as_str(), &ask).await.map(|told| told.reply)
}

/// Nothing was done, and later it can be.
fn passes(error: &Error) -> bool {
    matches!(error, Error::Overloaded | Error::StorageFull | Error::StoreUnavailable(_))
}
