//! The front of every line of ready tasks, in memory: whoever claims is served without asking the store, and without
//! waiting for what is being written.

use std::collections::{BTreeMap, HashMap};

use abide_core::ids::{Handler, Namespace, Path, Queue, RunId};
use abide_core::time::Timestamp;

use crate::store::rows::Ready;
use crate::store::{Candidate, RunNo};

/// What is known of one line at most.
const LONGEST: usize = 4_096;
/// So many lines are kept; with more, all are read anew.
const MOST_LINES: usize = 1_024;

/// Where a task stands in its line: by priority, then by age. The last two make it unique.
type Place = (i64, Timestamp, RunNo, Path);

/// A line: the tasks of one handler in one queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Of {
    pub namespace: Namespace,
    pub queue: Queue,
    pub handler: Handler,
}

#[derive(Debug, Default)]
struct Front {
    tasks: BTreeMap<Place, RunId>,
    /// Tasks behind this place may stand in the store without being known here. None: all are known.
    horizon: Option<Place>,
}

#[derive(Debug, Default)]
pub(super) struct Fronts(HashMap<Of, Front>);

impl Fronts {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether the store must be asked before the first of this line is known.
    pub fn must_read(&self, of: &Of) -> bool {
        self.0.get(of).is_none_or(|front| front.tasks.is_empty() && front.horizon.is_some())
    }

    /// How many are read at once.
    pub const fn page() -> usize {
        LONGEST / 4
    }

    /// The beginning of a line, as the store has it.
    pub fn fill(&mut self, of: Of, read: Vec<Candidate>) {
        if self.0.len() >= MOST_LINES {
            self.clear();
        }
        let more = read.len() >= Fronts::page();
        let tasks: BTreeMap<Place, RunId> =
            read.into_iter().map(|one| ((one.rank, one.issued_at, one.no, one.path), one.run_id)).collect();
        let horizon = tasks.last_key_value().filter(|_| more).map(|(place, _)| place.clone());
        self.0.insert(of, Front { tasks, horizon });
    }

    /// A task became ready, or is so no longer.
    pub fn change(&mut self, namespace: &Namespace, no: RunNo, path: &Path, ready: Ready, run_id: Option<RunId>) {
        let of = Of { namespace: namespace.clone(), queue: ready.queue, handler: ready.handler };
        let Some(front) = self.0.get_mut(&of) else { return };
        let place = (ready.rank, ready.issued_at, no, path.clone());
        let Some(run_id) = run_id else { return drop(front.tasks.remove(&place)) };
        if front.horizon.as_ref().is_some_and(|horizon| place > *horizon) {
            return;
        }
        front.tasks.insert(place, run_id);
        if front.tasks.len() > LONGEST {
            front.tasks.pop_last();
            front.horizon = front.tasks.last_key_value().map(|(place, _)| place.clone());
        }
    }

    /// Takes the first task of several lines.
    pub fn pop(&mut self, lines: &[Of]) -> Option<Candidate> {
        let first = |of: &&Of| self.0.get(*of)?.tasks.first_key_value().map(|(place, _)| place);
        let of = lines.iter().filter(|of| first(of).is_some()).min_by_key(|of| first(of))?;
        let ((rank, issued_at, no, path), run_id) = self.0.get_mut(of)?.tasks.pop_first()?;
        Some(Candidate { no, run_id, path, rank, issued_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(handler: &str) -> Of {
        Of { namespace: Namespace::from("default"), queue: Queue::from("q"), handler: Handler::from(handler) }
    }

    fn ready(handler: &str, rank: i64, second: i64) -> Ready {
        let issued_at = Timestamp::from_micros(second * 1_000_000);
        Ready { queue: Queue::from("q"), handler: Handler::from(handler), rank, issued_at, body: false }
    }

    fn candidate(no: RunNo) -> Candidate {
        let issued_at = Timestamp::from_micros(no * 1_000_000);
        Candidate { no, run_id: RunId::new(format!("run_{no}")), path: Path::from("a"), rank: 0, issued_at }
    }

    fn change(fronts: &mut Fronts, no: RunNo, ready: Ready, is: bool) {
        let run_id = is.then(|| RunId::new(format!("run_{no}")));
        fronts.change(&Namespace::from("default"), no, &Path::from("a"), ready, run_id);
    }

    fn popped(fronts: &mut Fronts, lines: &[Of]) -> Vec<RunNo> {
        std::iter::from_fn(|| fronts.pop(lines)).map(|one| one.no).collect()
    }

    #[test]
    fn priority_comes_before_age_over_all_lines_that_are_asked_for() {
        let mut fronts = Fronts::default();
        fronts.fill(of("a"), vec![candidate(3), candidate(1)]);
        fronts.fill(of("b"), vec![candidate(2)]);
        change(&mut fronts, 9, ready("b", -5, 9), true);
        assert_eq!(popped(&mut fronts, &[of("a"), of("b"), of("never read")]), [9, 1, 2, 3]);
    }

    #[test]
    fn a_line_that_was_never_read_or_is_used_up_is_read() {
        let mut fronts = Fronts::default();
        change(&mut fronts, 1, ready("a", 0, 1), true);
        assert!(fronts.must_read(&of("a")), "the store may have others before it");
        fronts.fill(of("a"), Vec::new());
        assert!(!fronts.must_read(&of("a")), "there is nothing, and that is known");
        fronts.fill(of("a"), (1..=Fronts::page() as i64).map(candidate).collect());
        assert!(!fronts.must_read(&of("a")));
        assert_eq!(popped(&mut fronts, &[of("a")]).len(), Fronts::page());
        assert!(fronts.must_read(&of("a")), "the store may have more behind them");
    }

    #[test]
    fn what_stands_behind_the_known_part_is_left_to_the_store() {
        let mut fronts = Fronts::default();
        fronts.fill(of("a"), (1..=Fronts::page() as i64).map(candidate).collect());
        let last = Fronts::page() as i64;
        change(&mut fronts, last + 1, ready("a", 0, last + 1), true);
        assert_eq!(popped(&mut fronts, &[of("a")]).last(), Some(&last));
    }

    #[test]
    fn what_was_taken_back_is_not_given_out_and_a_long_line_is_cut() {
        let mut fronts = Fronts::default();
        fronts.fill(of("a"), Vec::new());
        for no in 0..LONGEST as i64 + 10 {
            change(&mut fronts, no, ready("a", 0, no), true);
        }
        change(&mut fronts, 0, ready("a", 0, 0), false);
        let given = popped(&mut fronts, &[of("a")]);
        assert_eq!((given[0], given.len()), (1, LONGEST - 1));
        assert!(fronts.must_read(&of("a")));
    }
}
