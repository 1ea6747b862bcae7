//! Writing behind the lane: while one thread makes a batch durable, the lane decides the next. The store sees the same
//! calls in the same order as it would without this; only who reads has to wait for what was written before, unless it is
//! certain that nothing of it is on its way.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use abide_core::contract::RunState;
use abide_core::ids::{Digest, Epoch, Namespace, Path, Queue, RunId, WorkerId, WorkflowId};
use abide_core::run::step::{Connection, Step};
use abide_core::run::{ConnectionFacts, Need};
use abide_core::time::Timestamp;

use super::{
    Beside, Candidate, CommitError, Found, Kept, Loaded, RunKey, RunNo, Store, StoreError, Stored, StoredDefinition,
    Touched, Waiting, Wanted, Writes,
};
use crate::archive::Bundle;
use crate::request::Link;
use crate::testing::{Bug, is_planted};

/// Why a batch was not made durable.
#[derive(Debug)]
pub enum Failed {
    Statement(StoreError),
    Commit(CommitError),
}

/// Hears how a commit ended, on whatever thread that happened.
pub type Then = Box<dyn FnOnce(Result<(), Failed>) + Send>;

enum Job {
    Begin,
    Write(Box<Writes>),
    Commit { batch: i64, now: Timestamp, touched: Vec<Touched>, then: Then },
}

/// A store, and what it has been told to do.
#[derive(Debug)]
pub struct Behind<S: Store> {
    shared: Arc<Shared<S>>,
    /// Without one, what waits is done when somebody needs to know: a test sees the same order without a second thread.
    thread: Option<JoinHandle<()>>,
    /// What is written and committed is left to the thread, also when it has nothing else to do.
    leaves: bool,
    /// Sees what is committed while the store itself is away.
    beside: Arc<dyn Beside>,
    /// What it cannot see: of the open transaction, and of those that are being committed (or have just been).
    open: Hidden,
    last: Hidden,
}

/// What a transaction changes of that which is read beside it.
#[derive(Debug, Default)]
struct Hidden {
    runs: HashSet<RunNo>,
    kept: HashSet<(Namespace, String)>,
}

impl Hidden {
    fn add(&mut self, writes: &Writes) {
        self.runs.extend(writes.runs.iter().map(|write| write.no));
        self.runs.extend(writes.late.iter().map(|late| late.no));
        self.runs.extend(writes.postponed.iter().map(|(no, _)| *no));
        self.runs.extend(writes.archived.iter().map(|archived| archived.no));
        self.kept.extend(writes.kept.iter().map(|(namespace, key, _)| (namespace.clone(), key.clone())));
    }
}

#[derive(Debug)]
struct Shared<S> {
    state: Mutex<State<S>>,
    changed: Condvar,
}

struct State<S> {
    /// Away while the thread uses it.
    store: Option<S>,
    jobs: VecDeque<Job>,
    /// Commits that were asked for and have not ended.
    commits: usize,
    /// Nothing more is done until the lane has rolled back: it would build on what is not there.
    failed: Option<StoreError>,
    panicked: bool,
    closed: bool,
    /// Called by the thread after each commit, when everybody has heard of it.
    after: Arc<dyn Fn() + Send + Sync>,
}

impl<S> std::fmt::Debug for State<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("jobs", &self.jobs.len()).field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl<S> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<S>>) -> MutexGuard<'a, State<S>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> State<S> {
    fn is_quiet(&self) -> bool {
        self.jobs.is_empty() && self.store.is_some()
    }

    fn work(&mut self) {
        while let Some(job) = self.jobs.pop_front() {
            self.commits -= usize::from(matches!(job, Job::Commit { .. }));
            if let Some(store) = &mut self.store {
                perform(store, &mut self.failed, job);
            }
        }
    }
}

/// Nothing that the writer held can be trusted after a panic: whoever waits for it ends as it did.
fn check_alive<S>(state: &State<S>) {
    if state.panicked {
        resume_unwind(Box::new("the writer panicked"));
    }
}

fn perform(store: &mut impl Store, failed: &mut Option<StoreError>, job: Job) {
    match (job, &failed) {
        (Job::Begin, None) => *failed = store.begin().err(),
        (Job::Write(writes), None) => *failed = store.write(*writes).err(),
        (Job::Begin | Job::Write(_), Some(_)) => {}
        (Job::Commit { then, .. }, Some(error)) => then(Err(Failed::Statement(error.clone()))),
        (Job::Commit { batch, now, touched, then }, None) => {
            let done = store.commit(batch, now, &touched).map_err(Failed::Commit);
            if done.is_err() {
                *failed = Some(StoreError::Failed("the batch before this one was not written".into()));
            }
            then(done);
        }
    }
}

impl<S: Store> Behind<S> {
    /// Does what it is told when somebody waits for it.
    pub fn lazy(store: S) -> Behind<S> {
        let beside = store.beside();
        let state = State {
            store: Some(store),
            jobs: VecDeque::new(),
            commits: 0,
            failed: None,
            panicked: false,
            closed: false,
            after: Arc::new(|| {}),
        };
        Behind {
            shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }),
            thread: None,
            leaves: false,
            beside,
            open: Hidden::default(),
            last: Hidden::default(),
        }
    }

    fn queue(&self, state: &mut State<S>, job: Job) {
        state.commits += usize::from(matches!(job, Job::Commit { .. }));
        state.jobs.push_back(job);
        self.shared.changed.notify_all();
    }

    /// The store, when everything it was told is done.
    fn quiet(&self) -> MutexGuard<'_, State<S>> {
        let mut state = self.shared.lock();
        if self.thread.is_none() {
            state.work();
        }
        while !state.is_quiet() && !state.panicked {
            state = self.shared.wait(state);
        }
        check_alive(&state);
        state
    }

    fn with<T>(&self, call: impl FnOnce(&mut S) -> Stored<T>) -> Stored<T> {
        let mut state = self.quiet();
        match &mut *state {
            State { failed: Some(error), .. } => Err(error.clone()),
            State { store: Some(store), .. } => call(store),
            State { store: None, .. } => Err(StoreError::Failed("the store is away".into())),
        }
    }

    /// What is committed, for whom the store itself would have to be waited for. What cannot be read so is asked of the store,
    /// which says why.
    fn aside<T>(&self, read: impl FnOnce(&dyn Beside) -> Stored<T>) -> Option<T> {
        let is_away = {
            let state = self.shared.lock();
            !state.is_quiet() && state.failed.is_none() && !state.panicked
        };
        is_away.then(|| read(&*self.beside).ok()).flatten()
    }

    /// The open transaction is being committed: what it changes is hidden until it is done.
    fn hide_open(&mut self) {
        let open = std::mem::take(&mut self.open);
        if !self.is_writing() {
            self.last = Hidden::default();
        }
        self.last.runs.extend(open.runs);
        self.last.kept.extend(open.kept);
    }

    fn hides(&self, no: RunNo) -> bool {
        (self.open.runs.contains(&no) || self.last.runs.contains(&no)) && !is_planted(Bug::StaleRead)
    }

    /// Waits until no commit is under way. What was written after it may still be.
    pub fn settled(&self) {
        let mut state = self.shared.lock();
        if self.thread.is_none() && state.commits > 0 {
            state.work();
        }
        while state.commits > 0 && !state.panicked {
            state = self.shared.wait(state);
        }
        check_alive(&state);
    }

    /// Whoever leaves commits to the thread is called after each, and finds that nothing is being written.
    pub fn call_after(&mut self, after: impl Fn() + Send + Sync + 'static) {
        self.shared.lock().after = Arc::new(after);
    }

    pub fn is_writing(&self) -> bool {
        self.shared.lock().commits > 0
    }

    /// Whether this transaction is left to the thread. For a small one that would take longer.
    pub fn leave(&mut self, to_thread: bool) {
        self.leaves = to_thread;
    }

    /// Makes the open transaction durable and tells `then`, perhaps only after this returned.
    pub fn commit_then(&mut self, batch: i64, now: Timestamp, touched: Vec<Touched>, then: Then) {
        let job = Job::Commit { batch, now, touched, then };
        self.hide_open();
        if std::mem::take(&mut self.leaves) {
            return self.queue(&mut self.shared.lock(), job);
        }
        let mut state = self.quiet();
        let State { store, failed, .. } = &mut *state;
        if let Some(store) = store {
            perform(store, failed, job);
        }
    }

    /// Whether a call that answers nothing is left to the thread.
    fn is_left(&self, state: &State<S>) -> bool {
        self.thread.is_none() || !state.is_quiet() || self.leaves
    }

    /// Takes the store back. What was not committed is gone.
    pub fn into_inner(mut self) -> Option<S> {
        self.shared.lock().jobs.clear();
        self.close();
        let mut store = self.shared.lock().store.take()?;
        store.rollback();
        Some(store)
    }

    fn close(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<S: Store + 'static> Behind<S> {
    /// Writes in a thread of its own.
    pub fn threaded(store: S, name: &str) -> Stored<Behind<S>> {
        let mut behind = Behind::lazy(store);
        let shared = behind.shared.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || serve(&shared));
        behind.thread = Some(thread.map_err(|error| StoreError::Failed(format!("cannot start a thread: {error}")))?);
        Ok(behind)
    }
}

impl<S: Store> Drop for Behind<S> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread: does what it is told, in order, until it is closed and nothing is left.
fn serve<S: Store>(shared: &Shared<S>) {
    let mut state = shared.lock();
    loop {
        while state.jobs.is_empty() && !state.closed {
            state = shared.wait(state);
        }
        let Some(job) = state.jobs.pop_front() else { return };
        let (Some(mut store), mut failed) = (state.store.take(), state.failed.take()) else { return };
        drop(state);
        let commits = usize::from(matches!(job, Job::Commit { .. }));
        let done = catch_unwind(AssertUnwindSafe(|| perform(&mut store, &mut failed, job)));
        state = shared.lock();
        (state.store, state.failed, state.panicked) = (Some(store), failed, done.is_err());
        state.commits -= commits;
        shared.changed.notify_all();
        if commits > 0 || state.panicked {
            let (after, panicked) = (state.after.clone(), state.panicked);
            drop(state);
            after();
            if panicked {
                return;
            }
            state = shared.lock();
        }
    }
}

impl<S: Store> Store for Behind<S> {
    fn beside(&self) -> Arc<dyn Beside> {
        self.beside.clone()
    }

    fn begin(&mut self) -> Stored {
        let mut state = self.shared.lock();
        if self.is_left(&state) {
            self.queue(&mut state, Job::Begin);
            return Ok(());
        }
        drop(state);
        self.with(S::begin)
    }

    fn prepare(writes: &mut Writes) -> Stored {
        S::prepare(writes)
    }

    fn write(&mut self, mut writes: Writes) -> Stored {
        S::prepare(&mut writes)?;
        self.open.add(&writes);
        let left = self.is_left(&self.shared.lock());
        if !left {
            return self.with(|store| store.write(writes));
        }
        self.queue(&mut self.shared.lock(), Job::Write(Box::new(writes)));
        Ok(())
    }

    fn commit(&mut self, batch: i64, now: Timestamp, touched: &[Touched]) -> Result<(), CommitError> {
        self.hide_open();
        let mut state = self.quiet();
        match &mut *state {
            State { failed: None, store: Some(store), .. } => store.commit(batch, now, touched),
            State { failed, .. } => {
                let error = failed.clone().unwrap_or_else(|| StoreError::Failed("the store is away".into()));
                Err(CommitError::NotDone(error))
            }
        }
    }

    fn rollback(&mut self) {
        self.leaves = false;
        self.open = Hidden::default();
        let mut state = self.quiet();
        state.failed = None;
        if let Some(store) = &mut state.store {
            store.rollback();
        }
    }

    fn last_numbers(&mut self) -> Stored<(i64, RunNo)> {
        self.with(S::last_numbers)
    }

    fn load_run(&mut self, key: &RunKey) -> Stored<Option<Loaded>> {
        match self.aside(|beside| beside.load_run(key)).flatten() {
            Some(loaded) if !self.hides(loaded.no) => Ok(Some(loaded)),
            // Also when there is none: it may be about to begin.
            _ => self.with(|store| store.load_run(key)),
        }
    }

    fn is_archived(&mut self, key: &RunKey) -> Stored<bool> {
        self.with(|store| store.is_archived(key))
    }

    fn archived_as(&mut self, key: &RunKey) -> Stored<Option<RunState>> {
        self.with(|store| store.archived_as(key))
    }

    fn bundle(&mut self, key: &RunKey) -> Stored<Option<Bundle>> {
        self.with(|store| store.bundle(key))
    }

    fn load(&mut self, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>> {
        let found = if self.hides(no) { None } else { self.aside(|beside| beside.load(no, needs)) };
        found.map_or_else(|| self.with(|store| store.load(no, needs)), Ok)
    }

    fn load_steps(&mut self, no: RunNo) -> Stored<Vec<Arc<Step>>> {
        self.with(|store| store.load_steps(no))
    }

    fn due(&mut self, now: Timestamp, limit: usize) -> Stored<Vec<(RunNo, RunKey)>> {
        self.with(|store| store.due(now, limit))
    }

    fn next_wake(&mut self) -> Stored<Option<Timestamp>> {
        self.with(S::next_wake)
    }

    fn ready(&mut self, namespace: &Namespace, wanted: &Wanted, limit: usize) -> Stored<Vec<Candidate>> {
        self.with(|store| store.ready(namespace, wanted, limit))
    }

    fn namespaces_of(&mut self, queue: &Queue) -> Stored<Vec<Namespace>> {
        self.with(|store| store.namespaces_of(queue))
    }

    fn posted(&mut self, limit: usize) -> Stored<Vec<Waiting>> {
        self.with(|store| store.posted(limit))
    }

    fn to_release(&mut self, limit: usize) -> Stored<Vec<(RunKey, RunNo, Connection)>> {
        self.with(|store| store.to_release(limit))
    }

    fn kept(&mut self, namespace: &Namespace, key: &str) -> Stored<Option<Kept>> {
        let place = (namespace.clone(), key.to_owned());
        let hidden = self.open.kept.contains(&place) || self.last.kept.contains(&place);
        let found = if hidden { None } else { self.aside(|beside| beside.kept(namespace, key)) };
        found.map_or_else(|| self.with(|store| store.kept(namespace, key)), Ok)
    }

    fn definition(
        &mut self,
        namespace: &Namespace,
        workflow: &WorkflowId,
        version: Option<u32>,
    ) -> Stored<Option<StoredDefinition>> {
        self.with(|store| store.definition(namespace, workflow, version))
    }

    fn open_run(&mut self, namespace: &Namespace, workflow: &WorkflowId, unique: &str) -> Stored<Option<RunId>> {
        self.with(|store| store.open_run(namespace, workflow, unique))
    }

    fn connections(&mut self) -> Stored<Vec<(Namespace, Connection, ConnectionFacts)>> {
        self.with(S::connections)
    }

    fn waiting_for(&mut self, namespace: &Namespace, connection: &Connection) -> Stored<u64> {
        self.with(|store| store.waiting_for(namespace, connection))
    }

    fn last_claim(&mut self, no: RunNo, path: &Path) -> Stored<Option<(Epoch, WorkerId)>> {
        self.with(|store| store.last_claim(no, path))
    }

    fn link(&mut self, token_hash: &Digest) -> Stored<Option<Link>> {
        self.with(|store| store.link(token_hash))
    }

    fn serving(&mut self) -> Stored<Option<(Timestamp, Timestamp)>> {
        self.with(S::serving)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::store::sqlite::{Files, Sqlite};

    fn store(name: &str) -> Sqlite {
        Sqlite::open(Files::in_memory(name).expect("a place")).expect("a store")
    }

    /// Keeps an answer under a key; the same key twice is refused by the store.
    fn keep(key: &str) -> Writes {
        let kept = Kept { digest: Digest::of(key.as_bytes()), answer: "1".into(), at: Timestamp::default() };
        Writes { kept: vec![(Namespace::from("default"), key.into(), kept)], ..Writes::default() }
    }

    fn commit(behind: &mut Behind<Sqlite>, batch: i64, key: &str) -> Receiver<Result<(), Failed>> {
        let (tell, hear) = channel();
        // Before it begins, as the lane does: a thread that is done with the batch before would leave the writing to us.
        behind.leave(true);
        behind.begin().expect("begun");
        behind.write(keep(key)).expect("written");
        let then = Box::new(move |done| drop(tell.send(done)));
        behind.commit_then(batch, Timestamp::default(), Vec::new(), then);
        hear
    }

    fn has(behind: &mut Behind<Sqlite>, key: &str) -> bool {
        behind.kept(&Namespace::from("default"), key).expect("a read").is_some()
    }

    fn both(name: &str, test: impl Fn(Behind<Sqlite>)) {
        test(Behind::lazy(store(&format!("{name}-lazy"))));
        test(Behind::threaded(store(&format!("{name}-threaded")), "writer").expect("a thread"));
    }

    #[test]
    fn who_reads_sees_everything_that_was_written_before() {
        both("reads", |mut behind| {
            let heard: Vec<_> = (1..=50).map(|n| commit(&mut behind, n, &format!("key-{n}"))).collect();
            assert!(has(&mut behind, "key-25") && has(&mut behind, "key-50"));
            assert!(heard.iter().all(|heard| matches!(heard.try_recv(), Ok(Ok(())))));
            assert_eq!(behind.last_numbers().expect("numbers").0, 50);
        });
    }

    #[test]
    fn who_reads_something_else_does_not_wait() {
        let mut behind = Behind::lazy(store("beside"));
        let heard = commit(&mut behind, 1, "a");
        assert!(!has(&mut behind, "b"));
        assert!(heard.try_recv().is_err(), "nothing was done for it");
        assert!(has(&mut behind, "a"), "this one is on its way");
        assert!(matches!(heard.try_recv(), Ok(Ok(()))));
    }

    #[test]
    fn nothing_is_built_on_a_batch_that_failed() {
        both("fails", |mut behind| {
            let heard = [(1, "a"), (2, "a"), (3, "b")].map(|(batch, key)| commit(&mut behind, batch, key));
            behind.settled();
            let [first, second, third] = heard.map(|heard| heard.recv().expect("told"));
            assert!(first.is_ok());
            assert!(matches!(second, Err(Failed::Statement(_))), "{second:?}");
            assert!(matches!(third, Err(Failed::Statement(_))), "it was decided on the second: {third:?}");
            assert!(behind.kept(&Namespace::from("default"), "b").is_err(), "until the lane has rolled back");
            behind.rollback();
            assert!(has(&mut behind, "a") && !has(&mut behind, "b"));
            drop(commit(&mut behind, 2, "b"));
            assert!(has(&mut behind, "b"), "then it goes on");
        });
    }

    #[test]
    fn what_was_not_committed_is_gone_when_the_store_is_taken_back() {
        both("taken", |mut behind| {
            drop(commit(&mut behind, 1, "a"));
            behind.settled();
            behind.begin().expect("begun");
            behind.write(keep("b")).expect("written");
            let mut store = behind.into_inner().expect("the store");
            let namespace = Namespace::from("default");
            assert!(store.kept(&namespace, "b").expect("a read").is_none());
        });
    }

    #[test]
    fn a_panic_of_the_writer_is_a_panic_of_whoever_waits_for_it() {
        let mut behind = Behind::threaded(store("panics"), "writer").expect("a thread");
        behind.begin().expect("begun");
        let then = Box::new(|_| panic!("in the writer"));
        behind.leave(true);
        behind.commit_then(1, Timestamp::default(), Vec::new(), then);
        assert!(catch_unwind(AssertUnwindSafe(|| behind.last_numbers())).is_err());
    }
}
