//! A copy of everything while the engine goes on: one snapshot, complete or not there at all.

use std::path::Path;

use rusqlite::Connection as Db;
use rusqlite::backup::{Backup, StepResult};

use super::super::{StoreError, Stored};
use super::Files;
use crate::testing::{Point, at_failpoint};

/// Copies the database into a directory that can be opened as a data directory.
pub fn backup(files: &Files, to: &Path) -> Stored {
    let failed = |what: &str, error: std::io::Error| StoreError::Failed(format!("{what} {}: {error}", to.display()));
    super::open::make_private(to).map_err(|error| failed("cannot make", error))?;
    let (target, unfinished) = (to.join("abide.db"), to.join("abide.db.unfinished"));
    if target.exists() {
        return Err(StoreError::Failed(format!("{} is there already", target.display())));
    }
    let _ = std::fs::remove_file(&unfinished);
    let from = files.reader()?;
    let mut copy = Db::open(&unfinished)?;
    // In one step: a writer between two steps would make it begin again, without end.
    let ended = Backup::new(&from, &mut copy)?.step(-1)?;
    if ended != StepResult::Done {
        return Err(StoreError::Busy(format!("the backup was kept from reading: {ended:?}")));
    }
    at_failpoint(Point::InBackup);
    // The copy is a file of its own, without a WAL beside it.
    copy.pragma_update(None, "journal_mode", "delete")?;
    copy.close().map_err(|(_, error)| error)?;
    std::fs::File::open(&unfinished).and_then(|file| file.sync_all()).map_err(|error| failed("cannot sync", error))?;
    std::fs::rename(&unfinished, &target).map_err(|error| failed("cannot finish", error))?;
    std::fs::File::open(to).and_then(|directory| directory.sync_all()).map_err(|error| failed("cannot sync", error))
}
