//! A run and its rows, wherever they are: in their tables, or packed in the archive. Readers are told the same of both.

use std::sync::Arc;

use abide_core::contract::StepState;
use abide_core::definition::Definition;
use abide_core::ids::{Path, PayloadName};
use abide_core::mask::{Mask, values_at};
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

    /// Recognises the sensitive values of the run.
    pub fn mask(&self, definition: &Definition) -> Stored<Mask> {
        if !self.loaded.run.head.started.sealed {
            return Ok(Mask::default());
        }
        let kept = self.payload(&PayloadName::sensitive())?.as_deref().and_then(Mask::read);
        if let Some(mask) = kept {
            return Ok(mask);
        }
        // An earlier version did not keep them: they are in its input.
        let input = self.payload(&PayloadName::input())?;
        Ok(Mask::of(input.map_or_else(Vec::new, |input| values_at(&input, &definition.sensitive))))
    }

    /// A payload as people and programs may see it: only tasks get sensitive values.
    pub fn shown(&self, name: &PayloadName, mask: &Mask) -> Stored<Option<Json>> {
        Ok(self.payload(name)?.map(|json| match mask.json(&json) {
            std::borrow::Cow::Borrowed(_) => json.clone(),
            std::borrow::Cow::Owned(masked) => masked.into(),
        }))
    }

    /// The bytes as they were given.
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
