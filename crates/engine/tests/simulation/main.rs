//! The real engine in a simulated world: virtual time, faults from a seed, a judge after every step.

mod documents;
mod faulty;
mod judge;
mod letter;
mod outside;
mod people;
mod random;
mod worker;
mod world;

use world::{HOUR, Report, Setting, World, Wrong};

fn tell(wrong: &Wrong) -> String {
    format!(
        "seed {} broke {} at step {}: {}\nlately:\n{}\nreplay: ABIDE_SIM_SEED={} cargo test -p abide-engine --test simulation -- one_seed --nocapture",
        wrong.seed,
        wrong.broken.rule,
        wrong.step,
        wrong.broken.what,
        wrong.lately.join("\n"),
        wrong.seed
    )
}

fn play(seed: u64) -> Report {
    let setting = Setting { seed, storm: 2 * HOUR };
    World::new(setting).play().unwrap_or_else(|wrong| panic!("{}", tell(&wrong)))
}

#[test]
fn one_seed() {
    let seed = std::env::var("ABIDE_SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let report = play(seed);
    println!("{report:#?}");
}
