//! The engine as a program uses it: open a directory, register workflows, start runs, run workers. One thread carries all
//! writes; callers may go away at any time without harming what they asked for.

use std::io::Write as _;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abide_core::definition::Definition;
use abide_core::ids::{Digest, Namespace, RunId, WorkflowId};
use abide_core::run::command::{Actor, Ask, Command, Holding, Json, Report};
use abide_core::run::step::Connection;
use serde::Serialize;

use crate::archive::Retention;
use crate::carry::{Fatal, Lane};
use crate::clock::{Clock, SystemClock};
use crate::doctor;
use crate::drive::Driver;
use crate::hub::{Hub, Watcher};
use crate::ids::Ids;
use crate::keeper::Keeper;
use crate::listeners::Listeners;
use crate::queue::Requests;
use crate::reads::Documents;
use crate::reply::Untaken;
use crate::request::{Answer, Asked, Claim, Error, LeaseRef, LeasedTask, NewRun, Register, Request, ToRun, Told, What};
use crate::store::StoreError;
use crate::store::behind::Behind;
use crate::store::sqlite::{Files, Readers, Sqlite, read};
use crate::worker::Worker;

/// Expressions may nest as deep as documents allow, so the lane has room for them.
const LANE_STACK: usize = 32 << 20;

/// What happens when nobody knows whether a commit was written.
pub type OnFatal = Arc<dyn Fn(&Fatal) + Send + Sync>;

/// How an engine is opened.
#[derive(Clone)]
pub struct Options {
    pub clock: Arc<dyn Clock>,
    pub ids: Ids,
    /// Must not return control to anybody who would go on; the default ends the process, as a panic in here does.
    pub on_fatal: OnFatal,
    /// How long runs stay before they are archived.
    pub retention: Retention,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clock: Arc::new(SystemClock::default()),
            ids: Ids::random(),
            on_fatal: Arc::new(end_the_process),
            retention: Retention::default(),
        }
    }
}

/// How long an ending process tries to say why, and how long to end in order.
const LAST_WORDS: Duration = Duration::from_millis(500);
const ORDERLY_END: Duration = Duration::from_secs(5);

/// Ends the process with code 70. Whatever was acknowledged is safe; what was not is looked up after a restart. Standard error
/// may be on the disk that is full, or a pipe that is not read: neither may keep the process alive.
pub fn end_the_process(fatal: &Fatal) {
    let (line, (said, hears)) = (format!("{fatal}\n"), std::sync::mpsc::channel());
    let say = move || {
        let _ = std::io::stderr().write_all(line.as_bytes());
        let _ = said.send(());
    };
    if std::thread::Builder::new().spawn(say).is_ok() {
        let _ = hears.recv_timeout(LAST_WORDS);
    }
    // What other code does at the end of a process may wait, too, for standard output, say.
    let _ = std::thread::Builder::new().spawn(|| {
        std::thread::sleep(ORDERLY_END);
        std::process::abort();
    });
    std::process::exit(70);
}

/// A durable engine. Cheap to clone; the last clone stops it.
#[derive(Clone, Debug)]
pub struct Engine {
    namespace: Namespace,
    /// Callers carry what they ask themselves.
    here: bool,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: Arc<Driver>,
    requests: Arc<Requests>,
    hub: Arc<Hub>,
    listeners: Arc<Listeners>,
    readers: Arc<Readers>,
    documents: Documents,
    files: Files,
    clock: Arc<dyn Clock>,
    ids: Ids,
    retention: Retention,
    stop: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Opens a data directory, and makes it if it is not there. Only one process can have it open.
    pub fn open(directory: impl AsRef<FilePath>) -> Result<Engine, StoreError> {
        Engine::open_with(directory, Options::default())
    }

    pub fn open_with(directory: impl AsRef<FilePath>, options: Options) -> Result<Engine, StoreError> {
        Engine::on(Files::lock(directory.as_ref())?, options)
    }

    fn on(files: Files, options: Options) -> Result<Engine, StoreError> {
        let store = Sqlite::open(files.clone())?;
        let readers = store.readers();
        let hub = Arc::new(Hub::after(readers.read(read::last_commit)?));
        let (listeners, requests) = (Arc::<Listeners>::default(), Arc::<Requests>::default());
        let Options { clock, ids, on_fatal, retention } = options;
        let store = Behind::threaded(store, "abide-writer")?;
        let lane = Lane::over(store, clock.clone(), ids.clone(), hub.clone(), listeners.clone())?;
        let driver = Arc::new(Driver::new(lane, requests.clone(), clock.clone(), on_fatal));
        let driven = driver.clone();
        let thread = std::thread::Builder::new()
            .name("abide-lane".into())
            .stack_size(LANE_STACK)
            .spawn(move || driven.work())
            .map_err(|error| StoreError::Failed(format!("cannot start a thread: {error}")))?;
        let stop = Arc::<AtomicBool>::default();
        let keeper = Keeper {
            requests: requests.clone(),
            readers: readers.clone(),
            clock: clock.clone(),
            stop: stop.clone(),
            retention: retention.clone(),
        };
        let keeper = std::thread::Builder::new()
            .name("abide-keeper".into())
            .spawn(move || keeper.work())
            .map_err(|error| StoreError::Failed(format!("cannot start a thread: {error}")))?;
        let threads = Mutex::new(vec![keeper, thread]);
        let documents = Documents::default();
        let inner =
            Inner { driver, requests, hub, listeners, readers, documents, files, clock, ids, retention, stop, threads };
        Ok(Engine { namespace: Namespace::from("default"), here: false, inner: Arc::new(inner) })
    }

    /// The same engine, speaking for another tenant.
    pub fn in_namespace(&self, namespace: impl Into<Namespace>) -> Engine {
        Engine { namespace: namespace.into(), here: self.here, inner: self.inner.clone() }
    }

    /// The same engine, for a caller who has nothing else to do meanwhile: what it asks is decided and made durable on its
    /// own thread when nobody else asks, so its futures are ready when they are polled first. The thread is blocked as long
    /// as the disk takes; a thread that serves others should not do this.
    #[must_use]
    pub fn here(&self) -> Engine {
        Engine { here: true, ..self.clone() }
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    pub(crate) fn ids(&self) -> &Ids {
        &self.inner.ids
    }

    pub(crate) fn readers(&self) -> &Arc<Readers> {
        &self.inner.readers
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.inner.documents
    }

    pub(crate) fn listeners(&self) -> &Arc<Listeners> {
        &self.inner.listeners
    }

    pub fn files(&self) -> &Files {
        &self.inner.files
    }

    /// Asks for anything. The answer comes when it is durable; dropping the future does not take the request back. Leases
    /// of an answer that nobody takes are given back.
    pub async fn ask(&self, request: Request) -> Result<Answer, Error> {
        let (asked, answer) = Asked::new(request);
        let answer = answer.when_untaken(self.inner.gives_back());
        let asked = asked.came_at(self.inner.clock.now());
        let left = if self.here { self.inner.driver.carry_here(asked) } else { Some(asked) };
        left.map_or(Ok(()), |asked| self.inner.requests.push(asked))?;
        answer.await
    }

    /// Gives leases back whose tasks did not reach a worker. They are issued again at once, which costs no attempt.
    pub fn give_back(&self, leases: Vec<LeaseRef>) {
        give_back(&self.inner.requests, &*self.inner.clock, leases);
    }

    pub async fn asking(&self, what: What) -> Result<Answer, Error> {
        self.ask(Request { namespace: self.namespace.clone(), idempotency: None, what }).await
    }

    /// Keeps a workflow document. The same document again changes nothing.
    pub async fn register(&self, document: &str) -> Result<Registered, Error> {
        let parsed = Definition::parse(document).map_err(Error::Definition)?;
        let register = Register { parsed, document: document.to_owned() };
        let answer = self.asking(What::Register(Box::new(register))).await?;
        let Answer::Registered { workflow, version, hash, new } = answer else { return Err(unexpected(&answer)) };
        Ok(Registered { workflow, version, hash, new })
    }

    /// Starts a run of the newest version of a workflow.
    pub async fn start(&self, workflow: &str, input: impl Serialize) -> Result<Told, Error> {
        let input = serde_json::to_string(&input).map_err(|error| Error::Invalid(error.to_string()))?;
        self.start_run(NewRun::of(workflow, input, Actor::user("embedded"))).await
    }

    pub async fn start_run(&self, new: NewRun) -> Result<Told, Error> {
        told(self.asking(What::Start(Box::new(new))).await?)
    }

    /// Sends one command to one run.
    pub async fn command(&self, run_id: &RunId, command: Command) -> Result<Told, Error> {
        told(self.asking(What::Run(Box::new(ToRun::new(run_id.clone(), command)))).await?)
    }

    /// Something that a run may wait for has happened.
    pub async fn signal(&self, run_id: &RunId, name: &str, payload: impl Serialize) -> Result<Told, Error> {
        let payload = serde_json::to_string(&payload).map_err(|error| Error::Invalid(error.to_string()))?;
        let ask = Ask::Signal { name: name.into(), payload: payload.into() };
        self.command(run_id, Command::new(Actor::user("embedded"), ask)).await
    }

    pub async fn cancel(&self, run_id: &RunId, reason: &str) -> Result<Told, Error> {
        let ask = Ask::Cancel { reason: reason.into(), undo: None, grace: None };
        self.command(run_id, Command::new(Actor::user("embedded"), ask)).await
    }

    /// A person says yes (or no) to the approval that a run waits for.
    pub async fn decide(&self, run_id: &RunId, by: &str, approve: bool) -> Result<Told, Error> {
        let ask = Ask::Decide {
            step_id: None,
            by: by.into(),
            approve,
            comment: None,
            form: None,
            subject_digest: None,
            via: Some("embedded".into()),
        };
        self.command(run_id, Command::new(Actor::user(by), ask)).await
    }

    /// A connection works again; tells how many runs this frees.
    pub async fn reconnected(&self, tool: &str, account: &str) -> Result<u64, Error> {
        let connection = Connection { tool: tool.into(), account: account.into() };
        let answer = self.asking(What::Reconnected(connection)).await?;
        if let Answer::Released(runs) = answer { Ok(runs) } else { Err(unexpected(&answer)) }
    }

    /// Asks for tasks, and waits for them if the claim says so.
    pub async fn claim(&self, claim: Claim) -> Result<Vec<LeasedTask>, Error> {
        tasks(self.asking(What::Claim(claim)).await?)
    }

    /// The same for an executor that serves every namespace; each task says whose it is.
    pub async fn claim_anywhere(&self, claim: Claim) -> Result<Vec<LeasedTask>, Error> {
        tasks(self.asking(What::ClaimAnywhere(claim)).await?)
    }

    /// What a worker says about its task.
    pub async fn report(
        &self,
        task: &LeasedTask,
        worker: &str,
        ask: impl FnOnce(Holding) -> Ask,
    ) -> Result<Told, Error> {
        let holding = Holding { path: task.step_id.clone(), task_id: task.task_id.clone(), epoch: task.epoch };
        self.command(&task.run_id, Command::new(Actor::worker(worker), ask(holding))).await
    }

    pub async fn complete(&self, task: &LeasedTask, worker: &str, output: Option<Json>) -> Result<Told, Error> {
        let report = Report { output, ..Report::default() };
        self.report(task, worker, |holding| Ask::Complete { holding, report }).await
    }

    /// A worker in this process.
    pub fn worker(&self, name: &str) -> Worker {
        Worker::new(self.clone(), name)
    }

    /// Follows everything that is committed from now on.
    pub fn watch(&self) -> Watcher {
        self.inner.hub.watch()
    }

    #[cfg(test)]
    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.inner.hub
    }

    /// Moves runs that ended long enough ago to the archive; tells how many.
    pub async fn archive(&self) -> Result<u64, Error> {
        let inner = self.inner.clone();
        let keeper = Keeper {
            requests: inner.requests.clone(),
            readers: inner.readers.clone(),
            clock: inner.clock.clone(),
            stop: inner.stop.clone(),
            retention: inner.retention.clone(),
        };
        let archiving = tokio::task::spawn_blocking(move || keeper.archive());
        archiving.await.unwrap_or_else(|error| Err(Error::StoreUnavailable(error.to_string())))
    }

    /// Copies everything, as of one commit, into a directory that can be opened later.
    pub async fn backup(&self, to: impl Into<std::path::PathBuf>) -> Result<(), StoreError> {
        let (files, to) = (self.inner.files.clone(), to.into());
        let copying = tokio::task::spawn_blocking(move || crate::store::sqlite::backup::backup(&files, &to));
        copying.await.unwrap_or_else(|error| Err(StoreError::Failed(error.to_string())))
    }

    /// Checks everything that the store can show.
    pub async fn doctor(&self) -> Result<doctor::Report, StoreError> {
        let readers = self.inner.readers.clone();
        let checking = tokio::task::spawn_blocking(move || doctor::examine(&readers));
        checking.await.unwrap_or_else(|error| Err(StoreError::Failed(error.to_string())))
    }

    /// Lets nothing more in, carries what waits, and stops.
    pub async fn shutdown(&self) {
        let inner = self.inner.clone();
        let stop = move || inner.stop();
        if tokio::task::spawn_blocking(stop).await.is_err() {
            tracing::error!("the engine did not stop in order");
        }
    }
}

impl Inner {
    fn gives_back(&self) -> Untaken {
        let (requests, clock) = (self.requests.clone(), self.clock.clone());
        Box::new(move |answer| give_back(&requests, &*clock, answer.leases()))
    }

    fn stop(&self) {
        self.requests.close();
        self.stop.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What became of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    pub workflow: WorkflowId,
    pub version: u32,
    pub hash: Digest,
    /// False: it says the same as the newest version.
    pub new: bool,
}

fn give_back(requests: &Requests, clock: &dyn Clock, leases: Vec<LeaseRef>) {
    for LeaseRef { namespace, run_id, holding } in leases {
        let task_id = holding.task_id.clone();
        // Its worker is unknown here; the engine names the owner of the lease.
        let command = Command::new(Actor::worker(""), Ask::Undelivered { holding });
        let what = What::Run(Box::new(ToRun::new(run_id, command)));
        let (asked, _) = Asked::new(Request { namespace, idempotency: None, what });
        if let Err(error) = requests.push(asked.came_at(clock.now())) {
            tracing::warn!(task = %task_id, %error, "a lease that nobody got could not be given back; it runs out");
        }
    }
}

fn told(answer: Answer) -> Result<Told, Error> {
    if let Answer::Run(told) = answer { Ok(*told) } else { Err(unexpected(&answer)) }
}

fn tasks(answer: Answer) -> Result<Vec<LeasedTask>, Error> {
    if let Answer::Tasks(tasks) = answer { Ok(tasks) } else { Err(unexpected(&answer)) }
}

fn unexpected(answer: &Answer) -> Error {
    Error::Invalid(format!("the engine answered something else: {answer:?}"))
}
