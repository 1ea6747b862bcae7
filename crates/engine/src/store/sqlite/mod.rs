//! The embedded store: one SQLite file in WAL mode with one writer and a pool of readers.

mod load;
mod open;
mod room;
mod wal;
mod write;

pub mod access;
pub mod archive;
pub mod backup;
pub mod check;
pub mod feed;
pub mod insights;
pub mod list;
pub mod log;
pub mod read;
pub mod rebuild;
pub mod schema;

use std::sync::Arc;

use abide_core::contract::RunState;
use abide_core::ids::{Epoch, Namespace, Path, Queue, RunId, WorkerId, WorkflowId};
use abide_core::run::step::{Connection, Step};
use abide_core::run::{ConnectionFacts, Need};
use abide_core::time::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection as Db, ErrorCode, OptionalExtension, params};

use super::{
    Beside, Candidate, CommitError, Found, Kept, Loaded, RunKey, RunNo, Store, StoreError, Stored, StoredDefinition,
    Touched, UNREADABLE, Waiting, Wanted, Writes,
};
use crate::archive::Bundle;
use crate::testing::{Bug, Point, at_failpoint, is_planted};

use open::Shortening;
pub use open::{Files, Readers};

/// The one writer of a data directory.
#[derive(Debug)]
pub struct Sqlite {
    db: Db,
    files: Files,
    readers: Arc<Readers>,
    shortening: Shortening,
    /// The last message that waits, so that new ones come after it.
    last_posted: i64,
    /// Nobody knows whether the last commit was written. Nothing is synced any more: a sync that works after one that failed
    /// says nothing about what that one lost.
    lost_touch: bool,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy(error.to_string()),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged(error.to_string()),
            _ => match error.to_string().split_once(UNREADABLE) {
                // A function of ours, which unseals, met it inside of a statement.
                Some((_, why)) => StoreError::Corrupt(why.to_owned()),
                None => StoreError::Failed(error.to_string()),
            },
        }
    }
}

fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(error.to_string())
}

impl Sqlite {
    /// Opens (and creates, and migrates) a data directory. Only one process can.
    pub fn open(files: Files) -> Stored<Sqlite> {
        let db = files.writer()?;
        let readers = Arc::new(Readers::new(files.clone())?);
        let last_posted = db.query_row("select coalesce(max(n), 0) from inbox", [], |row| row.get(0))?;
        let shortening = Shortening::of(&files);
        Ok(Sqlite { db, files, readers, shortening, last_posted, lost_touch: false })
    }

    pub fn readers(&self) -> Arc<Readers> {
        self.readers.clone()
    }

    /// After a full disk only a fresh look at the file tells what was written: no connection may stay open.
    fn reopen(&mut self) -> Stored {
        self.readers.close();
        // The old connection is closed before the new one is opened.
        self.db = Db::open_in_memory()?;
        let writer = self.files.writer();
        self.readers.reopen()?;
        self.db = writer?;
        Ok(())
    }

    /// Whether a commit that met the end of the disk happened.
    fn look_up(&mut self, batch: i64) -> Result<(), CommitError> {
        self.reopen().map_err(CommitError::Unknown)?;
        match self.has_batch(batch) {
            Ok(true) => Ok(()),
            Ok(false) => Err(CommitError::NotDone(StoreError::Full)),
            Err(error) => Err(CommitError::Unknown(error)),
        }
    }

    fn has_batch(&self, batch: i64) -> Stored<bool> {
        let found = self.db.query_row("select 1 from batches where batch = ?1", [batch], |_| Ok(())).optional()?;
        Ok(found.is_some())
    }

    fn try_commit(&mut self, batch: i64, now: Timestamp, touched: &[Touched]) -> Stored {
        let mut statement = self.db.prepare_cached("insert into batches (batch, at, touched) values (?1, ?2, ?3)")?;
        statement.execute(params![batch, now.micros(), feed::encode(touched)])?;
        drop(statement);
        at_failpoint(Point::BeforeCommit);
        self.db.execute_batch("commit")?;
        at_failpoint(Point::AfterCommit);
        self.shortening.after_commit(&self.db)
    }
}

impl Drop for Sqlite {
    /// Readers may close after the writer and cannot do it: without this a stopped engine would leave its WAL behind.
    fn drop(&mut self) {
        let _ = match self.lost_touch {
            false => self.db.execute_batch("pragma wal_checkpoint(truncate)"),
            true => self.db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop),
        };
    }
}

impl Beside for Readers {
    fn load_run(&self, key: &RunKey) -> Stored<Option<Loaded>> {
        self.beside(|db| load::run(db, key))
    }

    fn load(&self, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>> {
        self.beside(|db| load::needs(db, no, needs))
    }

    fn kept(&self, namespace: &Namespace, key: &str) -> Stored<Option<Kept>> {
        self.beside(|db| load::kept(db, namespace, key))
    }
}

impl Store for Sqlite {
    fn beside(&self) -> Arc<dyn Beside> {
        self.readers.clone()
    }

    fn begin(&mut self) -> Stored {
        if self.files.is_short_of_room() {
            return Err(StoreError::Full);
        }
        Ok(self.db.prepare_cached("begin immediate")?.raw_execute().map(drop)?)
    }

    fn prepare(writes: &mut Writes) -> Stored {
        write::prepare(writes)
    }

    fn write(&mut self, writes: Writes) -> Stored {
        self.write_all(&writes)
    }

    fn commit(&mut self, batch: i64, now: Timestamp, touched: &[Touched]) -> Result<(), CommitError> {
        let done = match self.try_commit(batch, now, touched) {
            Ok(()) => Ok(()),
            Err(StoreError::Full) => self.look_up(batch),
            // Measured: a commit that reports an I/O error may be found committed after a restart.
            Err(error) => Err(CommitError::Unknown(error)),
        };
        self.lost_touch |= matches!(done, Err(CommitError::Unknown(_)));
        done
    }

    fn rollback(&mut self) {
        if !self.db.is_autocommit() {
            // SQLite may have rolled back by itself; then there is nothing left to do.
            let _ = self.db.execute_batch("rollback");
        }
    }

    fn last_numbers(&mut self) -> Stored<(i64, RunNo)> {
        // The log also knows runs whose row was lost: their numbers are not given again.
        let text = "
            select coalesce((select max(batch) from batches), 0),
                   max(coalesce((select max(run_no) from runs), 0), coalesce((select max(run_no) from archived_runs), 0),
                       coalesce((select max(run_no) from run_log), 0))";
        Ok(self.db.query_row(text, [], |row| Ok((row.get(0)?, row.get(1)?)))?)
    }

    fn load_run(&mut self, key: &RunKey) -> Stored<Option<Loaded>> {
        load::run(&self.db, key)
    }

    fn is_archived(&mut self, key: &RunKey) -> Stored<bool> {
        let text = "select 1 from archived_runs where run_id = ?1 and namespace = ?2";
        Ok(self.db.prepare_cached(text)?.exists(params![key.run_id.as_str(), key.namespace.as_str()])?)
    }

    fn archived_as(&mut self, key: &RunKey) -> Stored<Option<RunState>> {
        let text = "select state from archived_runs where run_id = ?1 and namespace = ?2";
        let key = params![key.run_id.as_str(), key.namespace.as_str()];
        let state: Option<String> = self.db.prepare_cached(text)?.query_row(key, |row| row.get(0)).optional()?;
        state.map(|state| RunState::parse(&state).ok_or_else(|| corrupt("the state of an archived run"))).transpose()
    }

    fn bundle(&mut self, key: &RunKey) -> Stored<Option<Bundle>> {
        Ok(crate::archive::find(&self.db, key)?.map(|(_, bundle)| bundle))
    }

    fn load(&mut self, no: RunNo, needs: &[Need]) -> Stored<Vec<Found>> {
        load::needs(&self.db, no, needs)
    }

    fn load_steps(&mut self, no: RunNo) -> Stored<Vec<Arc<Step>>> {
        load::steps(&self.db, no, false)
    }

    fn due(&mut self, now: Timestamp, limit: usize) -> Stored<Vec<(RunNo, RunKey)>> {
        load::due(&self.db, now, limit)
    }

    fn next_wake(&mut self) -> Stored<Option<Timestamp>> {
        let text = "select min(wake_at) from runs where wake_at is not null";
        let at: Option<i64> = self.db.prepare_cached(text)?.query_row([], |row| row.get(0))?;
        Ok(at.map(Timestamp::from_micros))
    }

    fn ready(&mut self, namespace: &Namespace, wanted: &Wanted, limit: usize) -> Stored<Vec<Candidate>> {
        load::ready(&self.db, namespace, wanted, limit)
    }

    fn namespaces_of(&mut self, queue: &Queue) -> Stored<Vec<Namespace>> {
        load::namespaces_of(&self.db, queue)
    }

    fn posted(&mut self, limit: usize) -> Stored<Vec<Waiting>> {
        load::posted(&self.db, limit)
    }

    fn to_release(&mut self, limit: usize) -> Stored<Vec<(RunKey, RunNo, Connection)>> {
        load::to_release(&self.db, limit)
    }

    fn kept(&mut self, namespace: &Namespace, key: &str) -> Stored<Option<Kept>> {
        load::kept(&self.db, namespace, key)
    }

    fn definition(
        &mut self,
        namespace: &Namespace,
        workflow: &WorkflowId,
        version: Option<u32>,
    ) -> Stored<Option<StoredDefinition>> {
        load::definition(&self.db, namespace, workflow, version)
    }

    fn open_run(&mut self, namespace: &Namespace, workflow: &WorkflowId, unique: &str) -> Stored<Option<RunId>> {
        let text = "
            select run_id from runs
            where  namespace = ?1 and workflow_id = ?2 and unique_value = ?3 and ended_at is null";
        let found = self
            .db
            .prepare_cached(text)?
            .query_row(params![namespace.as_str(), workflow.as_str(), unique], |row| row.get::<_, String>(0))
            .optional()?;
        Ok(found.map(RunId::new))
    }

    fn connections(&mut self) -> Stored<Vec<(Namespace, Connection, ConnectionFacts)>> {
        load::connections(&self.db)
    }

    fn waiting_for(&mut self, namespace: &Namespace, connection: &Connection) -> Stored<u64> {
        let text = "
            select count(distinct run_no) from connection_waits
            where  namespace = ?1 and tool = ?2 and account = ?3 and released <= ?4";
        let released = i64::from(is_planted(Bug::ReleasedTwice));
        let count: i64 = self
            .db
            .prepare_cached(text)?
            .query_row(params![namespace.as_str(), connection.tool, connection.account, released], |row| row.get(0))?;
        Ok(count as u64)
    }

    fn last_claim(&mut self, no: RunNo, path: &Path) -> Stored<Option<(Epoch, WorkerId)>> {
        log::last_claim(&self.db, no, path)
    }

    fn link(&mut self, token_hash: &abide_core::ids::Digest) -> Stored<Option<crate::request::Link>> {
        access::link(&self.db, token_hash)
    }

    fn serving(&mut self) -> Stored<Option<(Timestamp, Timestamp)>> {
        // Every commit proves that an engine served, also those between two that say so.
        let text = "select since, max(last_at, coalesce((select at from batches order by batch desc limit 1), 0)) from serving";
        let row = self.db.query_row(text, [], |row| Ok((row.get(0)?, row.get(1)?)));
        Ok(row.optional()?.map(|(since, last)| (Timestamp::from_micros(since), Timestamp::from_micros(last))))
    }
}
