//! The transition tables hold exactly what the projection can make: random runs take every row, and nothing else.

mod explore;

use std::collections::BTreeSet;

use abide_core::contract::{BODY, RUN, RunState, STEP, StepState, TASK, TaskState};
use abide_core::run::event::Fact;
use explore::{Choice, Explorer, corpus, explore};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Pairs that runs took, by layer.
#[derive(Default)]
struct Taken {
    run: BTreeSet<(Option<RunState>, RunState)>,
    step: BTreeSet<(Option<StepState>, StepState)>,
    task: BTreeSet<(Option<TaskState>, TaskState)>,
}

impl Taken {
    fn add(&mut self, explorer: &Explorer<'_>) {
        let log = &explorer.memory.log;
        self.run.extend(log.iter().filter_map(|record| Some((record.from_state, record.to_state?))));
        self.replay(explorer);
    }

    /// Folds the log event by event and watches the rows move.
    fn replay(&mut self, explorer: &Explorer<'_>) {
        let head = &explorer.memory.working.head;
        let mut run = abide_core::run::Working::unborn(head.run_id.clone(), head.namespace.clone());
        for record in &explorer.memory.log {
            let event = record.event().expect("it was written a moment ago");
            let before = record.step_id.as_ref().and_then(|path| row(&run, path.as_str()));
            abide_core::run::fold(&mut run, &event).expect("it was folded a moment ago");
            let Some(path) = &record.step_id else { continue };
            let after = row(&run, path.as_str()).expect("every event about a step has its row");
            let (from, leased) = before.unwrap_or((StepState::Pending, None));
            if before.is_none() {
                self.step.insert((None, StepState::Pending));
            }
            if from != after.0 {
                self.step.insert((Some(from), after.0));
            }
            self.task.extend(task_move(&event.fact, leased));
        }
    }
}

fn row(run: &abide_core::run::Working, path: &str) -> Option<(StepState, Option<bool>)> {
    let path = path.trim_end_matches(".probe").trim_end_matches(".undo");
    let step = run.step(path)?;
    Some((step.state, step.task.as_ref().map(|task| task.lease.is_some())))
}

fn task_move(fact: &Fact, leased: Option<bool>) -> Option<(Option<TaskState>, TaskState)> {
    let from = leased.map(|leased| if leased { TaskState::Claimed } else { TaskState::Issued });
    let to = match fact {
        Fact::TaskIssued { .. } => return Some((None, TaskState::Issued)),
        Fact::TaskClaimed { .. } => TaskState::Claimed,
        Fact::TaskCompleted { .. } => TaskState::Completed,
        Fact::TaskFailed { .. } => TaskState::Failed,
        Fact::TaskBlocked { .. } => TaskState::Blocked,
        Fact::TaskLost { .. } => TaskState::Lost,
        Fact::TaskCanceled { .. } => TaskState::Canceled,
        _ => return None,
    };
    Some((from, to))
}

fn assert_exactly<S: Ord + Copy + std::fmt::Debug>(
    layer: &str,
    table: impl Iterator<Item = (Option<S>, S)>,
    taken: &BTreeSet<(Option<S>, S)>,
) {
    let rows: BTreeSet<(Option<S>, S)> = table.collect();
    let never: Vec<_> = rows.difference(taken).collect();
    let outside: Vec<_> = taken.difference(&rows).collect();
    assert!(outside.is_empty(), "{layer}: taken, but no row: {outside:?}");
    assert!(never.is_empty(), "{layer}: rows that nothing takes: {never:?}");
}

/// The seed is fixed: what is not found today is not found tomorrow, and a row that nothing takes is a failure.
#[test]
fn random_runs_take_exactly_the_rows_of_the_tables() {
    let definitions = corpus::definitions();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = (any::<Choice>(), prop::collection::vec(any::<Choice>(), 0..200));
    let mut taken = Taken::default();
    for n in 0..120_000 {
        let (first, choices) = strategy.new_tree(&mut runner).expect("nothing is filtered").current();
        taken.add(&explore(&definitions[n % definitions.len()].1, first, &choices));
    }
    assert_exactly("task", TASK.iter().map(|row| (row.from, row.to)), &taken.task);
    assert_exactly("step", STEP.iter().map(|row| (row.from, row.to)), &taken.step);
    assert_exactly("run", RUN.iter().map(|row| (row.from, row.to)), &taken.run);
    assert_eq!(BODY.len(), 3, "the body has one start and two ends");
}
