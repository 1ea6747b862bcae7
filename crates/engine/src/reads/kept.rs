//! A run and its rows, wherever they are: in their tables, or packed in the archive. Readers are told the same of both.

use std::sync::Arc;

use abide_core::contract::StepState;
use abide_core::ids::{Path, PayloadName};
use abide_core::run::command::Json;
use abide_core::run::event::Record;
use abide_core::run::step::Step;
use abide_core::time::Timestamp;
use rusqlite::Connection as Db;

use crate::archive::{self, Bundle};
use crate::store::sqlite::read;
use crate::store::{Loaded, RunKey, Stored};

pub(super) struct Kept<'a> {
    pub loaded: Loaded,
    rows: Rows<'a>,
}

enum Rows<'a> {
    Tables(&'a Db),
    Archive(Box<Bundle>),
}

impl Kept<'_> {
    pub fn find<'a>(db: &'a Db, key: &RunKey) -> Stored<Option<Kept<'a>>> {
        if let Some(loaded) = read::run(db, key)? {
            return Ok(Some(Kept { loaded, rows: Rows::Tables(db) }));
        }
        let Some((no, bundle)) = archive::find(db, key)? else { return Ok(None) };
        Ok(Some(Kept { loaded: bundle.loaded(no), rows: Rows::Archive(Box::new(bundle)) }))
    }

    pub fn steps(&self) -> Stored<Vec<Arc<Step>>> {
        match &self.rows {
            Rows::Tables(db) => read::steps(db, self.loaded.no),
            Rows::Archive(bundle) => Ok(bundle.steps.iter().cloned().map(Arc::new).collect()),
        }
    }

    pub fn step(&self, path: &Path) -> Stored<Option<Arc<Step>>> {
        match &self.rows {
            Rows::Tables(db) => read::step(db, self.loaded.no, path),
            Rows::Archive(bundle) => Ok(bundle.step(path).cloned().map(Arc::new)),
        }
    }

    /// Every step: its path, state and beginning.
    pub fn outlines(&self) -> Stored<Vec<(Path, StepState, Timestamp)>> {
        match &self.rows {
            Rows::Tables(db) => read::outlines(db, self.loaded.no),
            Rows::Archive(bundle) => {
                Ok(bundle.steps.iter().map(|step| (step.path.clone(), step.state, step.started_at)).collect())
            }
        }
    }

    pub fn events(&self, after: u64, limit: usize) -> Stored<Vec<Record>> {
        match &self.rows {
            Rows::Tables(db) => read::events(db, self.loaded.no, after, limit),
            Rows::Archive(bundle) => {
                Ok(bundle.events.iter().filter(|event| event.seq > after).take(limit).cloned().collect())
            }
        }
    }

    /// The whole log.
    pub fn log(&self) -> Stored<Vec<Record>> {
        self.events(0, usize::MAX)
    }

    pub fn payload(&self, name: &PayloadName) -> Stored<Option<Json>> {
        match &self.rows {
            Rows::Tables(db) => read::payload(db, self.loaded.no, name),
            Rows::Archive(bundle) => Ok(bundle.payload(name)),
        }
    }

    /// Everything in one piece. Nothing: it left between two looks.
    pub fn bundle(self) -> Stored<Option<Bundle>> {
        match self.rows {
            Rows::Tables(db) => Bundle::of(db, self.loaded.no),
            Rows::Archive(bundle) => Ok(Some(*bundle)),
        }
    }
}
