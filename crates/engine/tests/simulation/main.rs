//! The real engine in a simulated world: virtual time, faults from a seed, a judge after every step.

mod documents;
mod faulty;
mod found;
mod judge;
mod letter;
mod outside;
mod people;
mod random;
mod worker;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use abide_core::run::event::Fact;
use abide_engine::clock::Stopwatch;
use abide_engine::testing::{Bug, plant};

use world::{HOUR, Report, Setting, World, Wrong};

/// What the normal run must come to. `ABIDE_SIM_HOURS` asks for more.
const HOURS: f64 = 200.0;
const FAULTS: u64 = 50_000;

/// Faults that must have happened, or the storm was none.
const WEATHER: &[&str] = &[
    "answer lost",
    "begin failed",
    "clock back",
    "clock forward",
    "commit full",
    "commit not done",
    "commit unknown, done",
    "commit unknown, not done",
    "crash",
    "crash after commit",
    "crash before commit",
    "delayed",
    "delayed by minutes",
    "engine away",
    "engine frozen",
    "request doubled",
    "request lost",
    "statement busy",
    "statement failed",
    "statement full",
    "worker died",
    "zombie",
];

/// A state is entered under its own name, and a million events are too many for a test.
const NEVER: [&str; 2] = ["run.entered", "history.filled"];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn play(seed: u64) -> Result<Report, Box<Wrong>> {
    World::new(Setting { seed, storm: 5 * HOUR }).play()
}

fn tell(wrong: &Wrong) -> String {
    format!(
        "seed {} broke {} at step {}: {}\nlately:\n{}\nreplay: ABIDE_SIM_SEED={} cargo test -p abide-engine --test simulation -- \
         one_seed --nocapture",
        wrong.seed,
        wrong.broken.rule,
        wrong.step,
        wrong.broken.what,
        wrong.lately.join("\n"),
        wrong.seed
    )
}

/// Sums of many worlds.
#[derive(Debug, Default)]
struct Sum {
    hours: f64,
    steps: u64,
    runs: usize,
    events: u64,
    checks: u64,
    deeds: u64,
    faults: BTreeMap<&'static str, u64>,
    kinds: BTreeSet<String>,
    states: BTreeSet<abide_core::contract::RunState>,
    refusals: BTreeSet<&'static str>,
}

impl Sum {
    fn add(&mut self, report: Report) {
        self.hours += report.hours;
        self.steps += report.steps;
        self.runs += report.runs;
        self.events += report.events;
        self.checks += report.checks;
        self.deeds += report.deeds;
        for (what, times) in report.faults {
            *self.faults.entry(what).or_default() += times;
        }
        self.kinds.extend(report.kinds);
        self.states.extend(report.states);
        self.refusals.extend(report.refusals);
    }

    fn faults(&self) -> u64 {
        self.faults.iter().filter(|(what, _)| **what != "retried").map(|(_, times)| times).sum()
    }
}

#[test]
fn hundreds_of_hours_of_storms_break_nothing() {
    let wanted = number("ABIDE_SIM_HOURS").map_or(HOURS, |hours| hours as f64);
    let first = number("ABIDE_SIM_SEED").unwrap_or(1);
    let watch = Stopwatch::start();
    let mut sum = Sum::default();
    for seed in first.. {
        match play(seed) {
            Ok(report) => sum.add(report),
            Err(wrong) => panic!("{}", tell(&wrong)),
        }
        if sum.hours >= wanted {
            println!("{} worlds", seed + 1 - first);
            break;
        }
    }
    let seconds = watch.elapsed().as_secs_f64();
    println!("{sum:#?}\n{:.0} hours, {} faults, {seconds:.1} s", sum.hours, sum.faults());
    if wanted < HOURS {
        return;
    }
    assert!(sum.faults() >= FAULTS, "{} faults are not many", sum.faults());
    let missing: Vec<_> = WEATHER.iter().filter(|what| !sum.faults.contains_key(*what)).collect();
    assert!(missing.is_empty(), "it never happened: {missing:?}");
    let unseen: Vec<_> =
        abide_core::contract::RunState::ALL.iter().filter(|state| !sum.states.contains(state)).collect();
    assert!(unseen.is_empty(), "no run ever was {unseen:?}");
    let kinds: Vec<_> =
        Fact::KINDS.iter().filter(|kind| !sum.kinds.contains(**kind) && !NEVER.contains(kind)).collect();
    assert!(kinds.is_empty(), "events that never happened: {kinds:?}");
}

#[test]
fn a_seed_tells_the_same_story_every_time() {
    for seed in [3, 17] {
        let traces = [(); 2].map(|()| play(seed).map_err(|wrong| tell(&wrong)).expect("a quiet end").trace);
        assert_eq!(traces[0], traces[1], "seed {seed} went two ways");
    }
}

#[test]
fn one_seed() {
    let report = play(number("ABIDE_SIM_SEED").unwrap_or(1)).unwrap_or_else(|wrong| panic!("{}", tell(&wrong)));
    println!("{report:#?}");
}

/// Worlds that are tried before a bug counts as hidden.
const TRIES: u64 = 40;

fn short(seed: u64) -> Result<Report, Box<Wrong>> {
    World::new(Setting { seed, storm: HOUR }).play()
}

#[test]
fn every_planted_bug_is_found() {
    // What is found must be the bug: the same worlds without it are sound.
    for seed in 1..=TRIES {
        short(seed).unwrap_or_else(|wrong| panic!("{}", tell(&wrong)));
    }
    let mut hidden = Vec::new();
    for bug in Bug::ALL {
        let watch = Stopwatch::start();
        plant(Some(bug));
        let found = (1..=TRIES).find_map(|seed| short(seed).err());
        plant(None);
        let seconds = watch.elapsed().as_secs_f64();
        match found {
            Some(wrong) => {
                let what: String = wrong.broken.what.lines().next().unwrap_or_default().chars().take(120).collect();
                println!("{bug:?}: {} by seed {} in {seconds:.1} s: {what}", wrong.broken.rule, wrong.seed);
            }
            None => hidden.push(bug),
        }
        assert!(seconds < 60.0, "{bug:?} took {seconds:.0} s");
    }
    assert!(hidden.is_empty(), "not found: {hidden:?}");
}
