//! The moments whose cost is measured: one command against a run, with everything it needs loaded.

use std::hint::black_box;

use abide_core::definition::Definition;
use abide_core::ids::{Namespace, Path, RunId, WorkerId};
use abide_core::run::command::{Actor, Ask, Command, Holding, Reply, Report, Start};
use abide_core::run::memory::Memory;
use abide_core::run::{Advanced, Around, Stop, Working, advance};
use abide_core::time::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// One command that is about to be decided.
#[derive(Debug)]
pub struct Moment {
    definition: Definition,
    working: Working,
    command: Command,
    around: Around,
}

impl Moment {
    /// Decides it once.
    pub fn decide(&self) -> Result<Advanced, Stop> {
        black_box(advance(&self.working, &self.definition, &self.command, &self.around, NOW))
    }
}

const FIVE_STEPS: &str = r#"
workflow: five
steps:
  - { id: one, task: t.one }
  - { id: two, task: t.two, with: { n: "${{ steps.one.output.n }}" } }
  - { id: three, task: t.three, with: { n: "${{ steps.two.output.n }}" } }
  - { id: four, task: t.four, with: { n: "${{ steps.three.output.n }}" } }
  - { id: five, task: t.five, with: { n: "${{ steps.four.output.n }}" } }
"#;

/// A run of five steps whose second is about to be completed, with about so many events behind it.
pub fn complete_with_history(events: u64) -> Moment {
    let mut run = Bench::start(FIVE_STEPS, "{}");
    run.execute("one");
    // Just below the length at which a log warns of itself: that warning is an event of its own.
    while run.memory.working.head.seq + 20 < events {
        run.ask(Ask::Pause { reason: "history".into() });
        run.ask(Ask::Resume { one_step: false });
        // Only the log grows; nothing that is loaded depends on it.
        run.memory.log.clear();
    }
    let holding = run.claim("two");
    run.moment(complete(holding))
}

/// The claim of a step.
pub fn claim() -> Moment {
    let mut run = Bench::start(FIVE_STEPS, "{}");
    run.execute("one");
    let ask = run.claim_of("two");
    run.moment(ask)
}

pub fn heartbeat() -> Moment {
    let mut run = Bench::start(FIVE_STEPS, "{}");
    let holding = run.claim("one");
    run.moment(Ask::Heartbeat { holding, progress: None })
}

pub fn start() -> Moment {
    let definition = Definition::parse(FIVE_STEPS).expect("a workflow").definition;
    let command = Command::new(Actor::user("u"), Ask::Start(Box::new(Start::with_input("{}"))));
    let working = Working::unborn(run_id(), Namespace::from("default"));
    Moment { definition, working, command, around: around() }
}

const ITEMS: &str = r#"
workflow: items
steps:
  - { id: each, for_each: input.items, as: it, task: t.item, with: { sku: "${{ it.sku }}" } }
"#;

/// One of so many items, in the middle of them, is about to be completed.
pub fn complete_one_of(items: usize) -> Moment {
    let mut run = Bench::start(ITEMS, &items_json(items));
    // Away from the edges: the same place within a piece of the list, whatever their number.
    for n in 0..40 {
        run.execute(&format!("each.{n}"));
    }
    let holding = run.claim("each.40");
    run.moment(complete(holding))
}

fn items_json(items: usize) -> String {
    let list: Vec<String> = (0..items).map(|n| format!("{{\"sku\":\"sku-{n:06}\"}}")).collect();
    format!("{{\"items\":[{}]}}", list.join(","))
}

struct Bench {
    definition: Definition,
    memory: Memory,
}

fn run_id() -> RunId {
    RunId::from("run_01KDVZ3C000000000000000000")
}

fn around() -> Around {
    Around { serving_since: NOW, ..Around::default() }
}

fn complete(holding: Holding) -> Ask {
    Ask::Complete { holding, report: Report { output: Some(r#"{"n":1}"#.into()), ..Report::default() } }
}

impl Bench {
    fn start(document: &str, input: &str) -> Bench {
        let definition = Definition::parse(document).expect("a workflow").definition;
        let mut bench = Bench { definition, memory: Memory::new(run_id(), Namespace::from("default")) };
        bench.ask(Ask::Start(Box::new(Start::with_input(input))));
        bench
    }

    fn ask(&mut self, ask: Ask) -> Reply {
        let command = Command::new(Actor::worker("w"), ask);
        let advanced = self.memory.apply(&self.definition, &command, &around(), NOW);
        advanced.expect("it is allowed").reply
    }

    fn claim_of(&self, path: &str) -> Ask {
        let task_id = self.memory.rows[path].task.as_ref().expect("a task").id.clone();
        let worker = WorkerId::from("w");
        Ask::Claim { path: Path::from(path), task_id, worker, window: None, claim_id: None }
    }

    fn claim(&mut self, path: &str) -> Holding {
        let ask = self.claim_of(path);
        let task_id = self.memory.rows[path].task.as_ref().expect("a task").id.clone();
        match self.ask(ask) {
            Reply::Leased { epoch, .. } => Holding { path: Path::from(path), task_id, epoch },
            other => panic!("not leased: {other:?}"),
        }
    }

    fn execute(&mut self, path: &str) {
        let holding = self.claim(path);
        self.ask(complete(holding));
    }

    fn moment(self, ask: Ask) -> Moment {
        let Bench { definition, mut memory } = self;
        let command = Command::new(Actor::worker("w"), ask);
        let working = memory.prepared(&definition, &command, &around(), NOW);
        // What the preparation leaves behind is tidied up by the allocator now, not while the command is measured.
        drop(memory);
        drop(black_box(vec![0u8; 100 << 10]));
        Moment { definition, working, command, around: around() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_is_decided() {
        for moment in [
            complete_with_history(10),
            complete_with_history(1_000),
            complete_one_of(100),
            claim(),
            heartbeat(),
            start(),
        ] {
            moment.decide().expect("it is allowed");
        }
    }
}
