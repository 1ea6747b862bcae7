//! The front of every line of ready tasks, in memory: whoever claims is served without asking the store, and without
//! waiting for what is being written.

use std::collections::BTreeMap;

use abide_core::ids::{Handler, Namespace, Path, Queue, RunId};
use abide_core::time::Timestamp;

use crate::cache::Map;
use crate::store::rows::Ready;
use crate::store::{Candidate, RunNo};

/// What is known of one line at most.
const LONGEST: usize = 4_096;
/// Whoever asks for more lines at once is served by the store.
pub(super) const MOST_LINES: usize = 1_024;
/// What is known altogether, tasks and lines; with more, all are read anew.
const MOST_KNOWN: usize = 65_536;

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
pub(super) struct Fronts {
    lines: Map<Of, Front>,
    /// Tasks in all of them.
    tasks: usize,
}

impl Fronts {
    pub fn clear(&mut self) {
        self.lines.clear();
        self.tasks = 0;
    }

    /// Whether the store must be asked before the first of this line is known.
    pub fn must_read(&self, of: &Of) -> bool {
        self.lines.get(of).is_none_or(|front| front.tasks.is_empty() && front.horizon.is_some())
    }

    /// How many are read at once for somebody who asks for so many lines: all of these fit.
    pub fn page(lines: usize) -> usize {
        (MOST_KNOWN / 2 / lines.max(1)).clamp(1, LONGEST / 4)
    }

    /// The beginning of a line, as the store has it; with more behind it if a page was full.
    pub fn fill(&mut self, of: Of, read: Vec<Candidate>, page: usize) {
        if self.lines.len() + self.tasks + read.len() >= MOST_KNOWN {
            self.clear();
        }
        let more = read.len() >= page;
        let tasks: BTreeMap<Place, RunId> =
            read.into_iter().map(|one| ((one.rank, one.issued_at, one.no, one.path), one.run_id)).collect();
        let horizon = tasks.last_key_value().filter(|_| more).map(|(place, _)| place.clone());
        self.tasks += tasks.len();
        let before = self.lines.insert(of, Front { tasks, horizon });
        self.tasks -= before.map_or(0, |before| before.tasks.len());
    }

    /// A task became ready, or is so no longer.
    pub fn change(&mut self, namespace: &Namespace, no: RunNo, path: &Path, ready: Ready, run_id: Option<RunId>) {
        let of = Of { namespace: namespace.clone(), queue: ready.queue, handler: ready.handler };
        let Some(front) = self.lines.get_mut(&of) else { return };
        let place = (ready.rank, ready.issued_at, no, path.clone());
        let before = front.tasks.len();
        match run_id {
            None => drop(front.tasks.remove(&place)),
            Some(_) if front.horizon.as_ref().is_some_and(|horizon| place > *horizon) => {}
            Some(run_id) => drop(front.tasks.insert(place, run_id)),
        }
        if front.tasks.len() > LONGEST {
            front.tasks.pop_last();
            front.horizon = front.tasks.last_key_value().map(|(place, _)| place.clone());
        }
        self.tasks = self.tasks + front.tasks.len() - before;
        if self.tasks > MOST_KNOWN {
            self.clear();
        }
    }

    /// Takes the first task of several lines.
    pub fn pop(&mut self, lines: &[Of]) -> Option<Candidate> {
        let first = |of: &&Of| self.lines.get(*of)?.tasks.first_key_value().map(|(place, _)| place);
        let of = lines.iter().filter(|of| first(of).is_some()).min_by_key(|of| first(of))?;
        let ((rank, issued_at, no, path), run_id) = self.lines.get_mut(of)?.tasks.pop_first()?;
        self.tasks -= 1;
        Some(Candidate { no, run_id, path, rank, issued_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 100;

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
        fronts.fill(of("a"), vec![candidate(3), candidate(1)], PAGE);
        fronts.fill(of("b"), vec![candidate(2)], PAGE);
        change(&mut fronts, 9, ready("b", -5, 9), true);
        assert_eq!(popped(&mut fronts, &[of("a"), of("b"), of("never read")]), [9, 1, 2, 3]);
    }

    #[test]
    fn a_line_that_was_never_read_or_is_used_up_is_read() {
        let mut fronts = Fronts::default();
        change(&mut fronts, 1, ready("a", 0, 1), true);
        assert!(fronts.must_read(&of("a")), "the store may have others before it");
        fronts.fill(of("a"), Vec::new(), PAGE);
        assert!(!fronts.must_read(&of("a")), "there is nothing, and that is known");
        fronts.fill(of("a"), (1..=PAGE as i64).map(candidate).collect(), PAGE);
        assert!(!fronts.must_read(&of("a")));
        assert_eq!(popped(&mut fronts, &[of("a")]).len(), PAGE);
        assert!(fronts.must_read(&of("a")), "the store may have more behind them");
    }

    #[test]
    fn what_stands_behind_the_known_part_is_left_to_the_store() {
        let mut fronts = Fronts::default();
        fronts.fill(of("a"), (1..=PAGE as i64).map(candidate).collect(), PAGE);
        let last = PAGE as i64;
        change(&mut fronts, last + 1, ready("a", 0, last + 1), true);
        assert_eq!(popped(&mut fronts, &[of("a")]).last(), Some(&last));
    }

    #[test]
    fn what_was_taken_back_is_not_given_out_and_a_long_line_is_cut() {
        let mut fronts = Fronts::default();
        fronts.fill(of("a"), Vec::new(), PAGE);
        for no in 0..LONGEST as i64 + 10 {
            change(&mut fronts, no, ready("a", 0, no), true);
        }
        change(&mut fronts, 0, ready("a", 0, 0), false);
        let given = popped(&mut fronts, &[of("a")]);
        assert_eq!((given[0], given.len()), (1, LONGEST - 1));
        assert!(fronts.must_read(&of("a")));
        assert_eq!(fronts.tasks, 0);
    }

    #[test]
    fn many_long_lines_are_forgotten_together() {
        let mut fronts = Fronts::default();
        for line in 0..2 * MOST_KNOWN / PAGE {
            fronts.fill(of(&line.to_string()), (1..=PAGE as i64).map(candidate).collect(), PAGE);
            assert!(fronts.tasks <= MOST_KNOWN);
            assert_eq!(fronts.tasks, fronts.lines.values().map(|front| front.tasks.len()).sum::<usize>());
        }
        let last = (2 * MOST_KNOWN / PAGE - 1).to_string();
        assert!(fronts.must_read(&of("0")) && !fronts.must_read(&of(&last)));
    }
}
