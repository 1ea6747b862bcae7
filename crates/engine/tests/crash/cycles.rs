//! The harness: an engine under load is killed at random instants and at every failpoint, again and again, on the same
//! directory. `ABIDE_CRASH_CYCLES=5000` makes it long, `ABIDE_CRASH_SEED` another.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_engine::clock::Stopwatch;
use abide_engine::testing::Point;
use abide_engine::{Engine, Filter};

use crate::child::{self, options};
use crate::ledger::Ledger;
use crate::work::{self, Held};
use crate::{Dice, Directory, PATIENCE, Process, runtime, store, was_killed};

pub fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[derive(Debug, Default)]
struct Figures {
    cycles: u64,
    at_points: BTreeMap<&'static str, u64>,
    at_random: u64,
    opens: u64,
    checks: u64,
}

/// F1–F3, F6, F7, F9, F10 at every failpoint, and kills at any instant: nothing that was acknowledged is lost, nothing is
/// done twice, no crash costs an attempt, and in the end everything drains.
#[test]
fn f1_f2_f3_f6_f7_f9_f10_an_engine_that_is_killed_again_and_again_loses_nothing_and_repeats_nothing() {
    let (cycles, seed) = (setting("ABIDE_CRASH_CYCLES", 200), setting("ABIDE_CRASH_SEED", 1));
    let directory = Directory::new("cycles");
    let (mut ledger, mut figures, mut dice) = (Ledger::default(), Figures::default(), Dice::new(seed));
    let watch = Stopwatch::start();
    // Some die before they serve, in a migration or while they open: more of them on a busy machine. Those do not count.
    for cycle in 0.. {
        if figures.opens >= cycles {
            break;
        }
        assert!(cycle < 3 * cycles, "only {} of {cycle} came to serve", figures.opens);
        figures.cycles += 1;
        let armed = (cycle % 2 == 0).then(|| Point::ALL[(cycle / 2) as usize % Point::ALL.len()]);
        match armed {
            Some(Point::InMigration) => killed_in_migration(&directory, cycle, &mut figures),
            armed => one_cycle(&directory, cycle, armed, &mut dice, &mut ledger, &mut figures),
        }
        assert!(
            ledger.odd.is_empty(),
            "seed {seed}, cycle {cycle}: {:#?}\n{}",
            ledger.odd,
            store::stories(&directory.data(), &ledger.odd)
        );
        if cycle % 60 == 59 {
            figures.checks += 1;
            judge(&directory.data(), &ledger, &format!("seed {seed}, cycle {cycle}"));
        }
    }
    let killing = watch.elapsed();
    let stranded = drain(&directory.data(), &mut ledger);
    let (lost, duplicated) = judge(&directory.data(), &ledger, &format!("seed {seed}, the end"));
    let runs = store::runs(&directory.data());
    println!(
        "{} cycles in {:.0} s, {} opens, {} kills at random, kills at failpoints {:?}, {} acknowledged, {} runs, {} checks: \
         lost {lost}, duplicated {duplicated}, stranded {}",
        figures.cycles,
        killing.as_secs_f64(),
        figures.opens,
        figures.at_random,
        figures.at_points,
        ledger.acknowledged,
        runs.len(),
        figures.checks + 1,
        stranded.len(),
    );
    assert!(stranded.is_empty(), "seed {seed}: stranded {stranded:#?}");
    if cycles >= 200 {
        for point in Point::ALL {
            assert!(figures.at_points.contains_key(point.name()), "nothing was killed at {}", point.name());
        }
        assert!(ledger.acknowledged > cycles * 10, "the load was too small to prove anything");
    }
}

fn one_cycle(
    directory: &Directory,
    cycle: u64,
    armed: Option<Point>,
    dice: &mut Dice,
    ledger: &mut Ledger,
    figures: &mut Figures,
) {
    let plan = directory.path().join("plan");
    std::fs::write(&plan, ledger.plan()).expect("a plan");
    let (number, plan) = (cycle.to_string(), plan.to_string_lossy().into_owned());
    let mut settings = vec![("ABIDE_CRASH_CYCLE", number.as_str()), ("ABIDE_CRASH_PLAN", plan.as_str())];
    let most = [1, 4, 12, 40][dice.below(4) as usize];
    let times = 1 + dice.below(most);
    // There are few of these in a short life.
    let times = match armed {
        Some(Point::InArchive | Point::AfterArchive | Point::InBackup) => 1 + times % 3,
        _ => times,
    };
    let failpoint = armed.map(|point| format!("{}:{times}", point.name()));
    if let Some(failpoint) = &failpoint {
        settings.push(("ABIDE_FAILPOINT", failpoint));
    }
    if armed == Some(Point::InBackup) || cycle % 16 == 1 {
        settings.push(("ABIDE_CRASH_BACKUP", "1"));
    }
    let process = Process::start("load", &directory.data(), &settings);
    // Some are killed while they open, before anybody is served.
    let mut heard = Vec::new();
    let mut killed_itself = false;
    let early = armed.is_none() && dice.below(8) == 0;
    if early {
        process.listen(Duration::from_millis(dice.below(60)), &mut heard);
    } else {
        heard = process.until("open", PATIENCE);
        let lives = if armed.is_some() { 1_500 } else { 20 + dice.below(230) };
        killed_itself = process.listen(Duration::from_millis(lives), &mut heard);
    }
    heard.extend(process.kill());
    figures.opens += u64::from(heard.iter().any(|line| line == "open"));
    ledger.hear(&heard);
    match armed.filter(|_| killed_itself) {
        Some(point) => *figures.at_points.entry(point.name()).or_default() += 1,
        None => figures.at_random += 1,
    }
    check_backups(ledger);
}

/// A directory of its own, because a schema is made once.
fn killed_in_migration(directory: &Directory, cycle: u64, figures: &mut Figures) {
    let data = directory.path().join(format!("fresh-{cycle}"));
    let process = Process::start("open", &data, &[("ABIDE_FAILPOINT", "in_migration:1")]);
    let (status, said) = process.end();
    assert!(was_killed(status) && said.is_empty(), "it should have been killed before it opened: {status} {said:?}");
    *figures.at_points.entry(Point::InMigration.name()).or_default() += 1;
    let engine = Engine::open(&data).expect("the schema is made from the beginning");
    runtime().block_on(async {
        work::register(&engine).await;
        work::start(&engine, "first").await.expect("a run");
        assert!(engine.doctor().await.expect("a report").is_healthy());
        engine.shutdown().await;
    });
    drop(engine);
    let _ = std::fs::remove_dir_all(data);
}

/// I30: a backup that was acknowledged is a healthy store, whatever became of the engine.
fn check_backups(ledger: &mut Ledger) {
    let backups = std::mem::take(&mut ledger.backups);
    for (n, backup) in backups.iter().enumerate() {
        if n == 0 {
            let engine = Engine::open(backup).expect("a backup opens");
            let report = runtime().block_on(engine.doctor()).expect("a report");
            assert!(report.is_healthy(), "{backup}: {:#?}", report.problems);
        }
        let _ = std::fs::remove_dir_all(backup);
    }
}

/// Compares the ledger with the store, and lets the doctor look.
pub fn judge(data: &Path, ledger: &Ledger, when: &str) -> (usize, usize) {
    let runs = store::runs(data);
    let (lost, duplicated, inflated) = (ledger.lost(&runs), ledger.duplicated(&runs), ledger.inflated(&runs));
    assert!(lost.is_empty(), "{when}: lost {lost:#?}");
    assert!(duplicated.is_empty(), "{when}: duplicated {duplicated:#?}");
    assert!(inflated.is_empty(), "{when}: attempts {inflated:#?}");
    let engine = Engine::open_with(data, options()).expect("an engine");
    let report = runtime().block_on(async {
        let report = engine.doctor().await.expect("a report");
        engine.shutdown().await;
        report
    });
    assert!(report.is_healthy(), "{when}: {:#?}", report.problems);
    (lost.len(), duplicated.len())
}

/// Faults are over: every key converges, and whatever can end does. Returns what did not.
pub fn drain(data: &Path, ledger: &mut Ledger) -> Vec<String> {
    let engine = Engine::open_with(data, options()).expect("an engine");
    runtime().block_on(async {
        let keys: Vec<(String, Option<(String, u64)>)> =
            ledger.keys.iter().map(|(key, run)| (key.clone(), run.clone())).collect();
        // Not more at once than may wait in line.
        for some in keys.chunks(2_000) {
            let asks = some.iter().cloned().map(|(key, known)| {
                let engine = engine.clone();
                tokio::spawn(async move {
                    let told = work::start(&engine, &key).await.unwrap_or_else(|error| panic!("{key}: {error}"));
                    if let Some((run, _)) = &known {
                        assert!(told.replayed && told.run_id.as_str() == run, "{key} was {run} and is {told:?}");
                    }
                    (known.is_none(), format!("ack start {key} {} {}", told.run_id, told.seq))
                })
            });
            for asked in asks.collect::<Vec<_>>() {
                let (new, line) = asked.await.expect("a key converges");
                if new {
                    ledger.hear(&[line]);
                }
            }
        }
        let held: Arc<Vec<Held>> = Arc::new(ledger.leases.iter().cloned().collect());
        for held in held.iter().filter(|held| held.verb() != "forget") {
            if let Err(error) = held.report(&engine).await {
                if held.handler == "drop" || ledger.canceled.contains(held.run.as_str()) {
                    continue;
                }
                let passed = ["run-terminal", "lease-lost"].contains(&error.code());
                assert!(passed && ledger.tried.contains_key(held), "{error}: {held:?}");
                ledger.heard(held);
            }
        }
        for id in &ledger.claims {
            let claim = abide_engine::request::Claim {
                claim_id: Some(id.clone()),
                ..work::claim(work::WORKER, work::HANDLERS, 4)
            };
            for task in engine.claim(claim).await.expect("a claim") {
                finish(&engine, &Held::of(&task), ledger).await;
            }
        }
        let watch = Stopwatch::start();
        loop {
            let mut open = engine.list(Filter::open(), None, 200).await.expect("a list").runs;
            if open.is_empty() || watch.elapsed() > PATIENCE {
                engine.shutdown().await;
                return open
                    .drain(..)
                    .map(|run| format!("{} {} {}", run.run_id, run.workflow_id, run.summary))
                    .collect();
            }
            engine.reconnected("drive", "ana").await.expect("reconnected");
            for run in open {
                // Who was asked already says no to being asked again, which is fine.
                let _ = match run.workflow_id.as_str() {
                    "gate" => engine.decide(&run.run_id, "ana", true).await,
                    "wait" => child::signal(&engine, &run.run_id).await,
                    "doomed" => engine.cancel(&run.run_id, "not wanted").await,
                    _ => continue,
                };
                if run.workflow_id.as_str() == "doomed" {
                    ledger.canceled.insert(run.run_id.to_string());
                }
            }
            loop {
                let tasks = engine.claim(work::claim(work::WORKER, work::HANDLERS, 200)).await.expect("tasks");
                if tasks.is_empty() {
                    break;
                }
                let reports = tasks.iter().map(|task| {
                    let (engine, held) = (engine.clone(), Held::of(task));
                    tokio::spawn(async move { (held.clone(), report(&engine, &held).await) })
                });
                for reported in reports.collect::<Vec<_>>() {
                    let (held, odd) = reported.await.expect("a report");
                    let excused = held.handler == "drop" || ledger.canceled.contains(held.run.as_str());
                    assert!(excused || odd.is_none(), "{odd:?}: {held:?}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

async fn report(engine: &Engine, held: &Held) -> Option<String> {
    if held.verb() == "forget" {
        return None;
    }
    held.report(engine).await.err().map(|error| error.to_string())
}

async fn finish(engine: &Engine, held: &Held, ledger: &Ledger) {
    let odd = report(engine, held).await;
    let excused = held.handler == "drop" || ledger.canceled.contains(held.run.as_str());
    assert!(excused || odd.is_none(), "{odd:?}: {held:?}");
}
