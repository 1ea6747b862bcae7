//! Answers for readers: the same rows, the same sentences for a list, a run and its explanation. Each answer is one
//! snapshot and says of which commit.

mod approvals;
mod bundles;
mod kept;
mod lists;
mod numbers;
mod queues;
mod records;
mod steps;
mod workflows;

pub use approvals::{ApprovalView, DecisionView};
pub use bundles::{PayloadView, SupportBundle};
pub use lists::{Filter, PAGE, Page};
pub use queues::{ConnectionView, HandlerView, LeaseView, QueueView, WorkerView};
pub use steps::{ReceiptView, StepView, StepsPage};
pub use workflows::{VersionView, WorkflowView};

use std::sync::{Arc, Mutex, PoisonError};

use abide_core::contract::RunState;
use abide_core::definition::Definition;
use abide_core::explain::NotThen;
use abide_core::ids::{Namespace, Path, RunId, WorkflowId};
use abide_core::mask::Mask;
use abide_core::run::Working;
use abide_core::run::command::Rejection;
use abide_core::time::Timestamp;
use rusqlite::Connection as Db;

use self::kept::Kept;
use crate::cache::Cache;
use crate::engine::Engine;
use crate::listeners::Listeners;
use crate::request::Error;
use crate::store::sqlite::read;
use crate::store::{Loaded, RunKey, StoreError, Stored};

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
        let parsed = Definition::parse_stored(&stored.document);
        let found = Arc::new(parsed.map_err(|error| StoreError::Corrupt(error.to_string()))?);
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

    fn load(&self, run_id: &RunId) -> Stored<Option<Kept<'_>>> {
        Kept::find(self.db, &self.key(run_id))
    }

    /// The run that somebody names.
    fn find(&self, run_id: &RunId) -> Read<Kept<'_>> {
        self.load(run_id)?.ok_or_else(|| ReadError::NoRun(run_id.clone()))
    }

    /// Recognises the sensitive values of a run that is in its tables, or was loaded from the archive.
    fn mask(&self, loaded: &Loaded) -> Stored<Mask> {
        let head = &loaded.run.head;
        if !head.started.sealed {
            return Ok(Mask::default());
        }
        match self.load(&head.run_id)? {
            Some(kept) => kept.mask(&*self.definition(&loaded.run)?),
            None => Ok(Mask::default()),
        }
    }

    fn definition(&self, run: &Working) -> Stored<Arc<Definition>> {
        let started = &run.head.started;
        self.documents.get(self.db, self.namespace, &started.workflow_id, started.workflow_version)
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
    #[error("the archive is searched by state, workflow and created_after, not by {0}")]
    NotInArchive(&'static str),
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

    /// When the engine last committed that it serves.
    pub async fn served_at(&self) -> Read<Timestamp> {
        self.read(|snapshot| Ok(read::served_at(snapshot.db)?)).await
    }
}
