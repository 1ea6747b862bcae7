//! What always holds, whatever is asked, in whatever order: no invariant is ever broken, the log makes the run again byte
//! for byte, the end absorbs, epochs and attempts only grow, a stale epoch changes nothing, and every run can be ended.
//!
//! `ABIDE_SEQUENCES=2000000 cargo test --release -p abide-core --test properties` is the long version for nights.

mod explore;

use std::sync::LazyLock;

use abide_core::definition::Definition;
use explore::{Choice, corpus, explore};
use proptest::prelude::*;

static DEFINITIONS: LazyLock<Vec<(String, Definition)>> = LazyLock::new(corpus::definitions);

/// Half of the sequences each test plays.
fn sequences() -> u32 {
    std::env::var("ABIDE_SEQUENCES").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000) / 2
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: sequences(), max_shrink_iters: 5_000, ..ProptestConfig::with_source_file(file!()) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn short_ways_through_any_workflow(
        which in any::<usize>(), first in any::<Choice>(), choices in prop::collection::vec(any::<Choice>(), 0..40),
    ) {
        explore(&DEFINITIONS[which % DEFINITIONS.len()].1, first, &choices);
    }

    #[test]
    fn long_ways_through_any_workflow(
        which in any::<usize>(), first in any::<Choice>(), choices in prop::collection::vec(any::<Choice>(), 40..100),
    ) {
        explore(&DEFINITIONS[which % DEFINITIONS.len()].1, first, &choices);
    }
}

#[test]
fn between_them_the_ways_meet_every_kind_of_refusal() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = (any::<Choice>(), prop::collection::vec(any::<Choice>(), 0..100));
    let mut met = std::collections::BTreeSet::new();
    for n in 0..8_000 {
        let (first, choices) = strategy.new_tree(&mut runner).expect("nothing is filtered").current();
        met.extend(explore(&DEFINITIONS[n % DEFINITIONS.len()].1, first, &choices).rejections);
    }
    for code in [
        "run-exists",
        "not-found",
        "run-terminal",
        "lease-lost",
        "not-claimable",
        "already-completed",
        "not-waiting",
        "already-decided",
        "subject-changed",
        "not-an-approver",
        "self-approval-forbidden",
        "step-id-required",
        "compensating",
        "not-now",
        "validation-failed",
        "cannot-resolve",
        "nothing-to-retry",
        "token-used",
        "token-expired",
    ] {
        assert!(met.contains(code), "{code} was never met; {met:?}");
    }
}
