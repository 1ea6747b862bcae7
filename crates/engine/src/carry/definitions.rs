//! Compiled workflow documents, and how a new version is kept.

use std::sync::Arc;

use abide_core::definition::Definition;
use abide_core::ids::{Namespace, WorkflowId};

use super::{Batch, Lane};
use crate::cache::Cache;
use crate::request::{Answer, Error, Register};
use crate::store::{Store, StoreError, Stored, StoredDefinition};

/// Steps of compiled documents that are kept in memory.
const CACHED_STEPS: usize = 20_000;

#[derive(Debug)]
pub(super) struct Definitions {
    compiled: Cache<(Namespace, WorkflowId, u32), Arc<Compiled>>,
    /// The newest version of each workflow that was asked for.
    newest: Cache<(Namespace, WorkflowId), u32>,
}

#[derive(Debug)]
pub(super) struct Compiled {
    pub version: u32,
    pub compiled: Definition,
}

impl Default for Definitions {
    fn default() -> Definitions {
        Definitions { compiled: Cache::new(CACHED_STEPS), newest: Cache::new(CACHED_STEPS) }
    }
}

impl Definitions {
    /// A version, or the newest.
    pub fn get<S: Store>(
        &mut self,
        store: &mut S,
        namespace: &Namespace,
        workflow: &WorkflowId,
        version: Option<u32>,
    ) -> Stored<Option<Arc<Compiled>>> {
        let place = (namespace.clone(), workflow.clone());
        let known = version.or_else(|| self.newest.get(&place).copied());
        if let Some(known) = known
            && let Some(compiled) = self.compiled.get(&(namespace.clone(), workflow.clone(), known))
        {
            return Ok(Some(compiled.clone()));
        }
        let Some(stored) = store.definition(namespace, workflow, version)? else { return Ok(None) };
        let unreadable = |error| StoreError::Corrupt(format!("version {} of {workflow}: {error}", stored.version));
        let definition = Definition::parse_stored(&stored.document).map_err(unreadable)?;
        let compiled = Arc::new(Compiled { version: stored.version, compiled: definition });
        self.put(namespace, workflow, compiled.clone());
        if version.is_none() {
            self.newest.put(place, stored.version, 1);
        }
        Ok(Some(compiled))
    }

    fn put(&mut self, namespace: &Namespace, workflow: &WorkflowId, compiled: Arc<Compiled>) {
        let weight = 1 + compiled.compiled.steps().len();
        self.compiled.put((namespace.clone(), workflow.clone(), compiled.version), compiled, weight);
    }

    pub fn clear(&mut self) {
        self.compiled.clear();
        self.newest.clear();
    }
}

impl<S: Store> Lane<S> {
    /// Keeps a document as a new version, unless it says the same as the newest one.
    pub(super) fn register(
        &mut self,
        batch: &mut Batch,
        namespace: &Namespace,
        register: &Register,
    ) -> Stored<Result<Answer, Error>> {
        let definition = &register.parsed.definition;
        let (workflow, hash) = (definition.workflow.clone(), definition.hash);
        let newest = self.definitions.get(&mut self.store, namespace, &workflow, None)?;
        if let Some(newest) = newest.as_ref().filter(|newest| newest.compiled.hash == hash) {
            return Ok(Ok(Answer::Registered { workflow, version: newest.version, hash, new: false }));
        }
        let version = newest.map_or(1, |newest| newest.version + 1);
        let stored = StoredDefinition { version, hash, document: register.document.clone(), created_at: batch.now };
        batch.writes.definitions.push((namespace.clone(), workflow.clone(), stored));
        // The next request of this batch must see it.
        self.flush(batch)?;
        self.definitions.newest.take(&(namespace.clone(), workflow.clone()));
        Ok(Ok(Answer::Registered { workflow, version, hash, new: true }))
    }
}
