//! Who asks for work: kept in memory, written down now and then, so that a queue without a listener can be named.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abide_core::explain::{LISTENING, Listener};
use abide_core::ids::{Handler, Namespace, Queue, WorkerId};
use abide_core::run::step::{Step, TaskKind};
use abide_core::time::{Span, Timestamp};

use crate::request::Claim;
use crate::store::Heard;

/// A listener is written down again when what is written is older than this.
const WRITTEN_EVERY: Span = Span::from_secs(10);
/// More workers than this on one node are not remembered one by one.
const MOST: usize = 20_000;

/// Where an executor listens that serves every namespace; no tenant can have this name.
pub const EVERYWHERE: &str = "*";

#[derive(Debug, Default)]
pub struct Listeners(Mutex<BTreeMap<(Namespace, Queue, WorkerId), Ear>>);

#[derive(Debug)]
struct Ear {
    handlers: Option<Vec<Handler>>,
    heard_at: Timestamp,
    written_at: Timestamp,
}

impl Listeners {
    /// A worker has asked for work, in one namespace or in all.
    pub fn heard(&self, namespace: Option<&Namespace>, claim: &Claim, now: Timestamp) {
        let namespace = namespace.cloned().unwrap_or_else(|| Namespace::from(EVERYWHERE));
        let mut ears = self.lock();
        for queue in &claim.wanted.queues {
            let key = (namespace.clone(), queue.clone(), claim.worker.clone());
            if let Some(ear) = ears.get_mut(&key) {
                ear.heard_at = now;
                if ear.handlers != claim.wanted.handlers {
                    ear.handlers.clone_from(&claim.wanted.handlers);
                    ear.written_at = Timestamp::default();
                }
                continue;
            }
            if ears.len() >= MOST {
                ears.retain(|_, ear| now.since(ear.heard_at) <= LISTENING);
            }
            if ears.len() < MOST {
                let handlers = claim.wanted.handlers.clone();
                ears.insert(key, Ear { handlers, heard_at: now, written_at: Timestamp::default() });
            }
        }
    }

    /// What should be written down now.
    pub fn to_write(&self, now: Timestamp) -> Vec<Heard> {
        let mut ears = self.lock();
        let stale = ears
            .iter_mut()
            .filter(|(_, ear)| ear.heard_at > ear.written_at && now.since(ear.written_at) >= WRITTEN_EVERY);
        stale
            .map(|((namespace, queue, worker), ear)| {
                ear.written_at = now;
                Heard {
                    namespace: namespace.clone(),
                    queue: queue.clone(),
                    worker: worker.clone(),
                    handlers: ear.handlers.clone(),
                    at: ear.heard_at,
                }
            })
            .collect()
    }

    /// Who listens to a queue, as far as this process has heard.
    pub fn of(&self, namespace: &Namespace, queue: &Queue) -> Vec<Listener> {
        let ears = self.lock();
        let of_queue =
            ears.iter().filter(|((of, at, _), _)| (of == namespace || of.as_str() == EVERYWHERE) && at == queue);
        of_queue
            .map(|((_, _, worker), ear)| Listener {
                worker: worker.clone(),
                handlers: ear.handlers.clone(),
                last_poll_at: ear.heard_at,
            })
            .collect()
    }

    /// Whether a worker has asked for tasks like the one of this step.
    pub fn offers(&self, namespace: &Namespace, worker: &WorkerId, step: &Step) -> bool {
        let Some(task) = &step.task else { return false };
        match self.lock().get(&(namespace.clone(), task.queue.clone(), worker.clone())) {
            Some(Ear { handlers: Some(handlers), .. }) => handlers.contains(&task.handler),
            Some(Ear { handlers: None, .. }) => {
                task.kind != TaskKind::Body && !task.handler.as_str().starts_with("abide:")
            }
            None => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Namespace, Queue, WorkerId), Ear>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
