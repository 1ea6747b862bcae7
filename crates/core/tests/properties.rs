//! What always holds, whatever is asked, in whatever order.

mod explore;

use explore::{Choice, corpus, explore};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn choices() -> impl Strategy<Value = (usize, Choice, Vec<Choice>)> {
    (any::<usize>(), any::<Choice>(), prop::collection::vec(any::<Choice>(), 0..60))
}

#[test]
fn whatever_is_asked_the_invariants_hold_and_the_log_makes_the_run_again() {
    let definitions = corpus::definitions();
    let cases = std::env::var("ABIDE_SEQUENCES").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000);
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    runner
        .run(&choices(), |(which, first, choices)| {
            explore(&definitions[which % definitions.len()].1, first, &choices);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
