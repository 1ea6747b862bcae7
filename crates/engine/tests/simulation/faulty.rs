//! A store that fails as real ones do: a statement, the beginning, the commit (done, not done, or nobody knows), or the
//! whole process between any two calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_core::contract::RunState;
use abide_core::ids::{Epoch, Namespace, Path, Queue, RunId, WorkerId, WorkflowId};
use abide_core::run::step::{Connection, Step};
use abide_core::run::{ConnectionFacts, Need};
use abide_core::time::Timestamp;
use abide_engine::archive::Bundle;
use abide_engine::store::sqlite::Sqlite;
use abide_engine::store::{
    Beside, Candidate, CommitError, Found, Kept, Loaded, RunKey, RunNo, Store, StoreError, Stored, StoredDefinition,
    Touched, Waiting, Wanted, Writes,
};

use crate::random::Random;

/// What goes wrong, how often, and what did.
#[derive(Debug)]
pub struct Faults {
    random: Random,
    /// Of a million store calls, so many fail, and so many are the last of their process.
    pub statements: u64,
    pub crashes: u64,
    /// Of a million commits, so many end strangely.
    pub commits: u64,
    /// The process is gone: nothing is answered, nothing is written.
    pub dead: bool,
    /// Something was made to fail since this was last cleared.
    pub since: bool,
    /// A commit was answered with "nobody knows".
    pub unknown: bool,
    pub counts: BTreeMap<&'static str, u64>,
    /// Runs that the open transaction has written, and those that were committed and not judged yet.
    writing: BTreeSet<RunNo>,
    pub written: BTreeSet<RunNo>,
}

impl Faults {
    pub fn new(random: Random) -> Arc<Mutex<Faults>> {
        Arc::new(Mutex::new(Faults {
            random,
            statements: 0,
            crashes: 0,
            commits: 0,
            dead: false,
            since: false,
            unknown: false,
            counts: BTreeMap::new(),
            writing: BTreeSet::new(),
            written: BTreeSet::new(),
        }))
    }

    fn count(&mut self, what: &'static str) {
        self.since = true;
        *self.counts.entry(what).or_default() += 1;
    }

    fn crash(&mut self) -> StoreError {
        self.count("crash");
        self.dead = true;
        gone()
    }

    /// Before a call: may it happen?
    fn strike(&mut self) -> Stored {
        if self.dead {
            return Err(gone());
        }
        if self.crashes > 0 && self.random.rarely(self.crashes) {
            return Err(self.crash());
        }
        if self.statements > 0 && self.random.rarely(self.statements) {
            let (what, error) = match self.random.below(8) {
                0 => ("statement full", StoreError::Full),
                1..=3 => ("statement busy", StoreError::Busy("injected".into())),
                _ => ("statement failed", StoreError::Failed("injected".into())),
            };
            self.count(what);
            return Err(error);
        }
        Ok(())
    }
}

fn gone() -> StoreError {
    StoreError::Failed("the process is gone".into())
}

pub fn locked(faults: &Mutex<Faults>) -> MutexGuard<'_, Faults> {
    faults.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub struct Faulty {
    inner: Sqlite,
    faults: Arc<Mutex<Faults>>,
}

impl Faulty {
    pub fn new(inner: Sqlite, faults: Arc<Mutex<Faults>>) -> Faulty {
        Faulty { inner, faults }
    }

    fn strike(&self) -> Stored {
        locked(&self.faults).strike()
    }

    fn really_commit(&mut self, batch: i64, now: Timestamp, touched: &[Touched]) -> Result<(), CommitError> {
        let done = self.inner.commit(batch, now, touched);
        let mut faults = locked(&self.faults);
        let writing = std::mem::take(&mut faults.writing);
        if done.is_ok() {
            faults.written.extend(writing);
        }
        done
    }

    fn undo(&mut self) {
        self.inner.rollback();
        locked(&self.faults).writing.clear();
    }
}

/// What is read beside fails as often as the rest; the store is then asked itself.
#[derive(Debug)]
struct FaultyBeside {
    inner: Arc<dyn Beside>,
    faults: Arc<Mutex<Faults>>,
}

impl FaultyBeside {
    fn strike(&self) -> Stored {
        locked(&self.faults).strike()
    }
}

impl Beside for FaultyBeside {
    fn load_run(&self, key: &RunKey) -> Stored<Option<Loaded>> {
        self.strike()?;
        self.inner.load_run(key)
    }

    fn load(&self, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>> {
        self.strike()?;
        self.inner.load(no, needs)
    }

    fn kept(&self, namespace: &Namespace, key: &str) -> Stored<Option<Kept>> {
        self.strike()?;
        self.inner.kept(namespace, key)
    }
}

/// How a commit ends when it does not simply happen.
enum Strange {
    NotDone,
    Full,
    UnknownAndDone,
    UnknownAndNot,
    CrashBefore,
    CrashAfter,
}

impl Store for Faulty {
    fn beside(&self) -> Arc<dyn Beside> {
        Arc::new(FaultyBeside { inner: self.inner.beside(), faults: self.faults.clone() })
    }

    fn begin(&mut self) -> Stored {
        self.strike().inspect_err(|_| locked(&self.faults).count("begin failed"))?;
        self.inner.begin()
    }

    fn prepare(writes: &mut Writes) -> Stored {
        Sqlite::prepare(writes)
    }

    fn write(&mut self, writes: Writes) -> Stored {
        self.strike()?;
        locked(&self.faults).writing.extend(writes.runs.iter().map(|run| run.no));
        self.inner.write(writes)?;
        self.strike()
    }

    fn commit(&mut self, batch: i64, now: Timestamp, touched: &[Touched]) -> Result<(), CommitError> {
        let strange = {
            let mut faults = locked(&self.faults);
            if faults.dead {
                return Err(CommitError::Unknown(gone()));
            }
            let odds = faults.commits;
            if odds == 0 || !faults.random.rarely(odds) {
                None
            } else {
                let (what, strange) = match faults.random.below(8) {
                    0 | 1 => ("commit not done", Strange::NotDone),
                    2 => ("commit full", Strange::Full),
                    3 => ("commit unknown, done", Strange::UnknownAndDone),
                    4 => ("commit unknown, not done", Strange::UnknownAndNot),
                    5 => ("crash before commit", Strange::CrashBefore),
                    _ => ("crash after commit", Strange::CrashAfter),
                };
                faults.count(what);
                Some(strange)
            }
        };
        let injected = || StoreError::Failed("injected".into());
        match strange {
            None => self.really_commit(batch, now, touched),
            Some(Strange::NotDone) => {
                self.undo();
                Err(CommitError::NotDone(StoreError::Busy("injected".into())))
            }
            Some(Strange::Full) => {
                self.undo();
                Err(CommitError::NotDone(StoreError::Full))
            }
            Some(Strange::UnknownAndDone) => {
                self.really_commit(batch, now, touched)?;
                locked(&self.faults).unknown = true;
                Err(CommitError::Unknown(injected()))
            }
            Some(Strange::UnknownAndNot) => {
                self.undo();
                locked(&self.faults).unknown = true;
                Err(CommitError::Unknown(injected()))
            }
            Some(Strange::CrashBefore) => {
                self.undo();
                locked(&self.faults).dead = true;
                Err(CommitError::Unknown(gone()))
            }
            Some(Strange::CrashAfter) => {
                self.really_commit(batch, now, touched)?;
                locked(&self.faults).dead = true;
                Ok(())
            }
        }
    }

    fn rollback(&mut self) {
        self.undo();
    }

    fn last_numbers(&mut self) -> Stored<(i64, RunNo)> {
        self.strike()?;
        self.inner.last_numbers()
    }

    fn load_run(&mut self, key: &RunKey) -> Stored<Option<Loaded>> {
        self.strike()?;
        self.inner.load_run(key)
    }

    fn is_archived(&mut self, key: &RunKey) -> Stored<bool> {
        self.strike()?;
        self.inner.is_archived(key)
    }

    fn archived_as(&mut self, key: &RunKey) -> Stored<Option<RunState>> {
        self.strike()?;
        self.inner.archived_as(key)
    }

    fn bundle(&mut self, key: &RunKey) -> Stored<Option<Bundle>> {
        self.strike()?;
        self.inner.bundle(key)
    }

    fn load(&mut self, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>> {
        self.strike()?;
        self.inner.load(no, needs)
    }

    fn load_steps(&mut self, no: RunNo) -> Stored<Vec<Arc<Step>>> {
        self.strike()?;
        self.inner.load_steps(no)
    }

    fn due(&mut self, now: Timestamp, limit: usize) -> Stored<Vec<(RunNo, RunKey)>> {
        self.strike()?;
        self.inner.due(now, limit)
    }

    fn next_wake(&mut self) -> Stored<Option<Timestamp>> {
        self.strike()?;
        self.inner.next_wake()
    }

    fn ready(&mut self, namespace: &Namespace, wanted: &Wanted, limit: usize) -> Stored<Vec<Candidate>> {
        self.strike()?;
        self.inner.ready(namespace, wanted, limit)
    }

    fn namespaces_of(&mut self, queue: &Queue) -> Stored<Vec<Namespace>> {
        self.strike()?;
        self.inner.namespaces_of(queue)
    }

    fn posted(&mut self, limit: usize) -> Stored<Vec<Waiting>> {
        self.strike()?;
        self.inner.posted(limit)
    }

    fn to_release(&mut self, limit: usize) -> Stored<Vec<(RunKey, RunNo, Connection)>> {
        self.strike()?;
        self.inner.to_release(limit)
    }

    fn kept(&mut self, namespace: &Namespace, key: &str) -> Stored<Option<Kept>> {
        self.strike()?;
        self.inner.kept(namespace, key)
    }

    fn definition(
        &mut self,
        namespace: &Namespace,
        workflow: &WorkflowId,
        version: Option<u32>,
    ) -> Stored<Option<StoredDefinition>> {
        self.strike()?;
        self.inner.definition(namespace, workflow, version)
    }

    fn open_run(&mut self, namespace: &Namespace, workflow: &WorkflowId, unique: &str) -> Stored<Option<RunId>> {
        self.strike()?;
        self.inner.open_run(namespace, workflow, unique)
    }

    fn connections(&mut self) -> Stored<Vec<(Namespace, Connection, ConnectionFacts)>> {
        self.strike()?;
        self.inner.connections()
    }

    fn waiting_for(&mut self, namespace: &Namespace, connection: &Connection) -> Stored<u64> {
        self.strike()?;
        self.inner.waiting_for(namespace, connection)
    }

    fn last_claim(&mut self, no: RunNo, path: &Path) -> Stored<Option<(Epoch, WorkerId)>> {
        self.strike()?;
        self.inner.last_claim(no, path)
    }

    fn link(&mut self, token_hash: &abide_core::ids::Digest) -> Stored<Option<abide_engine::request::Link>> {
        self.strike()?;
        self.inner.link(token_hash)
    }

    fn serving(&mut self) -> Stored<Option<(Timestamp, Timestamp)>> {
        self.strike()?;
        self.inner.serving()
    }
}
