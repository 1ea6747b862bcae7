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
pub struct Listeners(Mutex<Ears>);

type Place = (Namespace, Queue, WorkerId);

#[derive(Debug, Default)]
struct Ears {
    by_place: BTreeMap<Place, Ear>,
    /// Of these nothing is written, or something else.
    new: Vec<Place>,
}

#[derive(Debug)]
struct Ear {
    handlers: Option<Vec<Handler>>,
    heard_at: Timestamp,
    written_at: Timestamp,
}

impl Ear {
    fn written(&mut self, (namespace, queue, worker): &Place, now: Timestamp) -> Heard {
        self.written_at = now;
        let (namespace, queue, worker) = (namespace.clone(), queue.clone(), worker.clone());
        Heard { namespace, queue, worker, handlers: self.handlers.clone(), at: self.heard_at }
    }
}

impl Listeners {
    /// A worker has asked for work, in one namespace or in all.
    pub fn heard(&self, namespace: Option<&Namespace>, claim: &Claim, now: Timestamp) {
        let namespace = namespace.cloned().unwrap_or_else(|| Namespace::from(EVERYWHERE));
        let mut ears = self.lock();
        for queue in &claim.wanted.queues {
            let key = (namespace.clone(), queue.clone(), claim.worker.clone());
            if let Some(ear) = ears.by_place.get_mut(&key) {
                ear.heard_at = now;
                if ear.handlers != claim.wanted.handlers {
                    ear.handlers.clone_from(&claim.wanted.handlers);
                    ears.new.push(key);
                }
                continue;
            }
            if ears.by_place.len() >= MOST {
                ears.by_place.retain(|_, ear| now.since(ear.heard_at) <= LISTENING);
            }
            if ears.by_place.len() < MOST {
                let handlers = claim.wanted.handlers.clone();
                ears.by_place.insert(key.clone(), Ear { handlers, heard_at: now, written_at: Timestamp::default() });
                ears.new.push(key);
            }
        }
    }

    /// What should be written down at once: who is new, or offers something else.
    pub fn new_ones(&self, now: Timestamp) -> Vec<Heard> {
        let mut ears = self.lock();
        let new = std::mem::take(&mut ears.new);
        let known = new.into_iter().filter_map(|place| Some(ears.by_place.get_mut(&place)?.written(&place, now)));
        known.collect()
    }

    /// What was written down too long ago.
    pub fn to_write(&self, now: Timestamp) -> Vec<Heard> {
        let mut ears = self.lock();
        let stale = ears
            .by_place
            .iter_mut()
            .filter(|(_, ear)| ear.heard_at > ear.written_at && now.since(ear.written_at) >= WRITTEN_EVERY);
        stale.map(|(place, ear)| ear.written(place, now)).collect()
    }

    /// Who listens to a queue, as far as this process has heard.
    pub fn of(&self, namespace: &Namespace, queue: &Queue) -> Vec<Listener> {
        let ears = self.lock();
        let of_queue = ears
            .by_place
            .iter()
            .filter(|((of, at, _), _)| (of == namespace || of.as_str() == EVERYWHERE) && at == queue);
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
        match self.lock().by_place.get(&(namespace.clone(), task.queue.clone(), worker.clone())) {
            Some(Ear { handlers: Some(handlers), .. }) => handlers.contains(&task.handler),
            Some(Ear { handlers: None, .. }) => {
                task.kind != TaskKind::Body && !task.handler.as_str().starts_with("abide:")
            }
            None => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ears> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Wanted;

    fn claim(worker: &str, handlers: &[&str]) -> Claim {
        let handlers = Some(handlers.iter().map(|handler| Handler::from(*handler)).collect());
        let wanted = Wanted { queues: vec![Queue::from("q")], handlers };
        Claim { worker: WorkerId::from(worker), wanted, max: 1, window: None, claim_id: None, until: None }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    #[test]
    fn who_is_new_or_offers_something_else_is_written_at_once_and_the_others_now_and_then() {
        let listeners = Listeners::default();
        listeners.heard(None, &claim("a", &["mail"]), at(100));
        listeners.heard(None, &claim("b", &["mail"]), at(100));
        assert_eq!(listeners.new_ones(at(100)).len(), 2);
        listeners.heard(None, &claim("a", &["mail"]), at(101));
        listeners.heard(None, &claim("b", &["mail", "pay"]), at(101));
        let changed = listeners.new_ones(at(101));
        assert_eq!((changed.len(), changed[0].worker.as_str()), (1, "b"));
        assert!(listeners.new_ones(at(102)).is_empty() && listeners.to_write(at(105)).is_empty());
        let again = listeners.to_write(at(110));
        assert_eq!((again.len(), again[0].worker.as_str(), again[0].at), (1, "a", at(101)));
        assert!(listeners.to_write(at(130)).is_empty(), "nobody was heard since");
    }
}
