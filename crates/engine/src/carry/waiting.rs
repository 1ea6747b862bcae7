//! Workers that wait for a task, found by the queue in which one becomes ready: who waits elsewhere costs nothing.

use std::collections::{BTreeMap, BTreeSet};

use abide_core::ids::{Namespace, Queue};
use abide_core::time::Timestamp;

use crate::cache::Map;
use crate::reply::Caller;
use crate::request::{Answer, Claim, Error};

/// A worker that waits for a task.
#[derive(Debug)]
pub(super) struct Parked {
    /// None: it serves them all.
    pub namespace: Option<Namespace>,
    pub claim: Claim,
    reply: Caller,
}

impl Parked {
    pub fn new(namespace: Option<Namespace>, claim: Claim, reply: Caller) -> Parked {
        Parked { namespace, claim, reply }
    }

    pub fn answer(self, answer: Result<Answer, Error>) {
        self.reply.send(answer);
    }

    pub fn into_caller(self) -> Caller {
        self.reply
    }

    /// Who went away gets nothing: the task would wait for a lease that nobody uses.
    pub fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    fn waits_on(&self, now: Timestamp) -> bool {
        self.claim.until.is_some_and(|until| until > now)
    }

    fn places(&self) -> impl Iterator<Item = (Option<Namespace>, Queue)> {
        self.claim.wanted.queues.iter().map(|queue| (self.namespace.clone(), queue.clone()))
    }
}

/// First come, first served.
pub(super) type Turn = u64;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    parked: BTreeMap<Turn, Parked>,
    last: Turn,
    by_queue: Map<(Option<Namespace>, Queue), BTreeSet<Turn>>,
    /// When those give up who wait at all.
    until: BTreeSet<(Timestamp, Turn)>,
    /// Were not looked at yet.
    new: BTreeSet<Turn>,
    refused: u64,
}

/// More workers than this do not wait at the same time: the rest is told to come back.
const MOST_PARKED: usize = 50_000;
/// Looking for who went away costs as much as there are, so not everybody who is refused does it.
const LOOK_EVERY: u64 = 1_024;

impl Waiting {
    /// Whether one more may wait.
    pub fn has_room(&mut self) -> bool {
        if self.parked.len() < MOST_PARKED {
            return true;
        }
        if self.refused.is_multiple_of(LOOK_EVERY) {
            self.forget_gone();
        }
        self.refused += 1;
        self.parked.len() < MOST_PARKED
    }

    /// Whether it was not looked at yet.
    pub fn is_new(&self, turn: Turn) -> bool {
        self.new.contains(&turn)
    }

    pub fn get(&self, turn: Turn) -> Option<&Parked> {
        self.parked.get(&turn)
    }

    pub fn add(&mut self, parked: Parked) {
        self.last += 1;
        self.new.insert(self.last);
        self.put(self.last, parked);
    }

    /// Puts somebody (back) where its turn is.
    pub fn put(&mut self, turn: Turn, parked: Parked) {
        for place in parked.places() {
            self.by_queue.entry(place).or_default().insert(turn);
        }
        self.until.extend(parked.claim.until.map(|until| (until, turn)));
        self.parked.insert(turn, parked);
    }

    pub fn take(&mut self, turn: Turn) -> Option<Parked> {
        let parked = self.parked.remove(&turn)?;
        for place in parked.places() {
            if let Some(turns) = self.by_queue.get_mut(&place) {
                turns.remove(&turn);
                if turns.is_empty() {
                    self.by_queue.remove(&place);
                }
            }
        }
        if let Some(until) = parked.claim.until {
            self.until.remove(&(until, turn));
        }
        self.new.remove(&turn);
        Some(parked)
    }

    /// Whose turn it may be: who is new, and who waits in a queue in which something became ready.
    pub fn offered(&self, ready: &BTreeSet<(Namespace, Queue)>) -> BTreeSet<Turn> {
        let mut turns = self.new.clone();
        for (namespace, queue) in ready {
            for namespace in [Some(namespace.clone()), None] {
                turns.extend(self.by_queue.get(&(namespace, queue.clone())).into_iter().flatten());
            }
        }
        turns
    }

    pub fn all(&self) -> BTreeSet<Turn> {
        self.parked.keys().copied().collect()
    }

    /// Takes out who does not wait, or has waited long enough. Whoever stays was looked at.
    pub fn give_up(&mut self, now: Timestamp) -> Vec<(Turn, Parked)> {
        let new = std::mem::take(&mut self.new);
        let impatient = new.into_iter().filter(|turn| self.get(*turn).is_some_and(|parked| !parked.waits_on(now)));
        let late = self.until.iter().take_while(|(until, _)| *until <= now).map(|(_, turn)| *turn);
        let turns: BTreeSet<Turn> = impatient.chain(late).collect();
        turns.into_iter().filter_map(|turn| Some((turn, self.take(turn)?))).collect()
    }

    /// Takes out who has just come, and who gives up.
    pub fn give_up_with_new(&mut self, now: Timestamp) -> Vec<Parked> {
        let new: Vec<Turn> = self.new.iter().copied().collect();
        let new: Vec<Parked> = new.into_iter().filter_map(|turn| self.take(turn)).collect();
        new.into_iter().chain(self.give_up(now).into_iter().map(|(_, parked)| parked)).collect()
    }

    /// The first instant at which somebody gives up.
    pub fn first_until(&self) -> Option<Timestamp> {
        self.until.first().map(|(until, _)| *until)
    }

    fn forget_gone(&mut self) {
        let gone: Vec<Turn> =
            self.parked.iter().filter(|(_, parked)| parked.is_gone()).map(|(turn, _)| *turn).collect();
        gone.into_iter().for_each(|turn| drop(self.take(turn)));
    }

    pub fn drain(&mut self) -> impl Iterator<Item = Parked> {
        std::mem::take(self).parked.into_values()
    }
}

#[cfg(test)]
mod tests {
    use abide_core::ids::WorkerId;

    use super::*;
    use crate::reply::{self, Awaited};
    use crate::store::Wanted;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn parked(namespace: Option<&str>, queues: &[&str], until: Option<i64>) -> (Parked, Awaited) {
        let wanted = Wanted { queues: queues.iter().map(|queue| Queue::from(*queue)).collect(), handlers: None };
        let (worker, until) = (WorkerId::from("w"), until.map(at));
        let claim = Claim { worker, wanted, max: 1, window: None, claim_id: None, until };
        let (reply, awaited) = reply::channel();
        (Parked::new(namespace.map(Namespace::from), claim, reply), awaited)
    }

    fn ready(namespace: &str, queue: &str) -> BTreeSet<(Namespace, Queue)> {
        [(Namespace::from(namespace), Queue::from(queue))].into()
    }

    fn turns(found: BTreeSet<Turn>) -> Vec<Turn> {
        found.into_iter().collect()
    }

    #[test]
    fn who_waits_in_another_queue_is_not_looked_at() {
        let mut waiting = Waiting::default();
        let places: [(Option<&str>, &[&str]); 4] =
            [(Some("a"), &["mail"]), (Some("a"), &["mail", "pay"]), (Some("b"), &["pay"]), (None, &["pay"])];
        let _callers: Vec<Awaited> = places
            .map(|(namespace, queues)| {
                let (one, caller) = parked(namespace, queues, Some(10));
                waiting.add(one);
                caller
            })
            .into();
        assert_eq!(turns(waiting.offered(&BTreeSet::new())), [1, 2, 3, 4], "all are new");
        assert!(waiting.give_up(at(1)).is_empty());
        assert!(waiting.offered(&BTreeSet::new()).is_empty());
        assert_eq!(turns(waiting.offered(&ready("a", "pay"))), [2, 4]);
        assert!(waiting.offered(&ready("b", "mail")).is_empty());
        let second = waiting.take(2).expect("it waits");
        assert_eq!(turns(waiting.offered(&ready("a", "pay"))), [4]);
        waiting.put(2, second);
        assert_eq!(turns(waiting.offered(&ready("a", "pay"))), [2, 4], "its turn stays");
        assert_eq!(waiting.first_until(), Some(at(10)));
        assert_eq!(waiting.give_up(at(10)).len(), 4);
        assert_eq!((waiting.parked.len(), waiting.first_until(), waiting.by_queue.len()), (0, None, 0));
    }

    #[test]
    fn who_does_not_wait_gives_up_at_once_and_who_went_away_is_forgotten() {
        let mut waiting = Waiting::default();
        let (impatient, _first) = parked(Some("a"), &["mail"], None);
        let (patient, second) = parked(Some("a"), &["mail"], Some(10));
        waiting.add(impatient);
        waiting.add(patient);
        let gave_up: Vec<Turn> = waiting.give_up(at(1)).into_iter().map(|(turn, _)| turn).collect();
        assert_eq!(gave_up, [1]);
        drop(second);
        waiting.forget_gone();
        assert_eq!((waiting.parked.len(), waiting.by_queue.len()), (0, 0));
    }

    #[test]
    fn so_many_may_wait_and_those_who_went_away_make_room() {
        let mut waiting = Waiting::default();
        let callers: Vec<Awaited> = (0..MOST_PARKED)
            .map(|_| {
                assert!(waiting.has_room());
                let (one, caller) = parked(Some("a"), &["mail"], Some(10));
                waiting.add(one);
                caller
            })
            .collect();
        assert!(!waiting.has_room());
        drop(callers);
        assert!((0..LOOK_EVERY).any(|_| waiting.has_room()));
    }
}
