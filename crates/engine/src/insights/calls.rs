//! Which handler each step of a workflow calls, as its document says: the tool of what happens to the step, unless a
//! connection is named. The document says it for every instance at once, so nothing is looked for in a run's history.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_core::definition::{Body, Definition};
use abide_core::ids::{Namespace, Path, WorkflowId};
use rusqlite::Connection as Db;

use crate::cache::Cache;
use crate::store::Stored;
use crate::store::sqlite::read;

/// Steps whose handlers are kept in memory.
const KEPT: usize = 20_000;

/// The handlers of the workflows that were counted lately.
#[derive(Debug)]
pub struct Calls {
    known: Cache<(Namespace, WorkflowId, u32), Arc<Handlers>>,
}

impl Default for Calls {
    fn default() -> Calls {
        Calls { known: Cache::new(KEPT) }
    }
}

impl Calls {
    pub(super) fn of(
        &mut self,
        db: &Db,
        namespace: &Namespace,
        workflow: &WorkflowId,
        version: u32,
    ) -> Stored<Arc<Handlers>> {
        let key = (namespace.clone(), workflow.clone(), version);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let stored = read::definition(db, namespace, workflow, Some(version))?;
        // A document that cannot be read is the doctor's business; counting goes on without its handlers.
        let definition = stored.and_then(|stored| Definition::parse_stored(&stored.document).ok());
        let handlers = Arc::new(definition.map(|definition| Handlers::of(&definition)).unwrap_or_default());
        self.known.put(key, handlers.clone(), 1 + handlers.steps.len());
        Ok(handlers)
    }
}

/// The handlers of one version of a workflow.
#[derive(Debug, Default)]
pub(super) struct Handlers {
    /// By the id of the step.
    steps: BTreeMap<String, String>,
    /// Of a coded workflow: its body executes every step.
    body: Option<String>,
}

impl Handlers {
    pub(super) fn of(definition: &Definition) -> Handlers {
        let body = match &definition.body {
            Body::Coded { revision } => Some(format!("{}@{revision}", definition.workflow)),
            Body::Steps(_) => None,
        };
        let steps = definition.steps().iter().filter_map(|step| {
            let handler = step.action.performer().handler()?.to_string();
            Some((step.id.clone(), handler))
        });
        Handlers { steps: steps.collect(), body }
    }

    /// What the step of this instance calls, if it calls anything.
    pub(super) fn called_by(&self, path: &Path) -> Option<String> {
        // Items, rounds, visits, probes and undos follow a dot, which no id contains.
        let id = path.as_str().split('.').next().unwrap_or_default();
        self.steps.get(id).or(self.body.as_ref()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handlers(document: &str) -> Handlers {
        Handlers::of(&Definition::parse(document).expect("a document").definition)
    }

    #[test]
    fn every_instance_of_a_step_calls_what_the_step_does() {
        let known = handlers(
            "workflow: w\nsteps:\n  - { id: pay, task: bank.pay }\n  - { id: tell, http: { method: POST, url: 'https://a.example/' } }\n  - { id: go, approval: { title: Go } }\n",
        );
        for path in ["pay", "pay.3", "pay.v2", "pay.probe"] {
            assert_eq!(known.called_by(&Path::from(path)).as_deref(), Some("bank.pay"), "{path}");
        }
        assert_eq!(known.called_by(&Path::from("tell")).as_deref(), Some("abide:http"));
        assert_eq!(known.called_by(&Path::from("go")), None);
    }

    #[test]
    fn the_steps_of_a_coded_workflow_are_its_body_s() {
        let known = handlers("workflow: w\ncoded: { revision: r1 }\n");
        assert_eq!(known.called_by(&Path::from("charge")).as_deref(), Some("w@r1"));
        assert_eq!(known.called_by(&Path::from("body")).as_deref(), Some("w@r1"));
    }
}
