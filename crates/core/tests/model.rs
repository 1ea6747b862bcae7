//! The races of lease, cancel and complete, checked in every order on the real rules; and a twin without fencing, which
//! the checker must refute, so that a green answer means something.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use abide_core::contract::{RunState, StepState};
use abide_core::definition::Definition;
use abide_core::ids::{Namespace, Path, RunId, WorkerId};
use abide_core::run::Around;
use abide_core::run::command::{Actor, Ask, Command, Holding, Reply, Report, Start};
use abide_core::run::memory::Memory;
use abide_core::time::{Span, Timestamp};
use stateright::{Checker, Model, Property};

const BEGIN: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);
/// A third of the lease.
const TICK: Span = Span::from_secs(10);
const MOST_TICKS: u8 = 14;
const MOST_CLAIMS: u64 = 5;

struct Race {
    definition: Definition,
    fenced: bool,
}

/// What a worker knows, and what it has sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Worker {
    holding: Option<(String, u64)>,
    /// Its answer is on its way: it may arrive now, later, twice, or never.
    sent: Option<(String, u64)>,
}

#[derive(Clone)]
struct World {
    run: Arc<Memory>,
    ticks: u8,
    workers: [Worker; 2],
    /// Who was accepted as having completed the step, and who held the lease then.
    accepted: Vec<(usize, Option<usize>)>,
    cancel_asked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Move {
    Tick,
    Sweep,
    Claim(usize),
    Heartbeat(usize),
    Send(usize),
    Arrive(usize),
    Drop(usize),
    Cancel,
}

impl World {
    fn now(&self) -> Timestamp {
        BEGIN + Span::from_micros(TICK.micros() * u64::from(self.ticks))
    }

    /// What matters of a state: not how it was reached.
    fn key(&self) -> impl Hash + PartialEq + std::fmt::Debug + use<> {
        let head = &self.run.working.head;
        let row = self.run.rows.get("a").map(|row| {
            let lease = row.lease().map(|lease| (lease.owner.to_string(), lease.epoch.0));
            let live = row.live.as_ref().map(|live| live.expires_at.micros());
            (row.state.as_str(), row.attempt, lease, live, row.losses.len())
        });
        let state = (head.state.map(RunState::as_str), head.epoch.0, self.run.wake_at.map(Timestamp::micros));
        (state, row, self.ticks, self.workers.clone(), self.accepted.clone(), self.cancel_asked)
    }

    fn holder(&self) -> Option<usize> {
        let owner = self.run.rows.get("a")?.lease()?.owner.clone();
        (0..2).find(|worker| owner == name(*worker))
    }

    fn completions(&self) -> usize {
        self.run.log.iter().filter(|record| record.kind == "step.completed").count()
    }

    fn is_over(&self) -> bool {
        self.run.working.is_terminal()
    }

    fn holding(&self, of: &(String, u64)) -> Holding {
        Holding { path: Path::from("a"), task_id: of.0.as_str().into(), epoch: abide_core::ids::Epoch(of.1) }
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        self.key() == other.key()
    }
}
impl Eq for World {}
impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}
impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.key())
    }
}

fn name(worker: usize) -> WorkerId {
    WorkerId::new(format!("w{worker}"))
}

impl Race {
    fn new(fenced: bool) -> Race {
        let document = "workflow: w\nsteps: [ { id: a, task: t.a, retry: { max_attempts: 9 } } ]";
        let definition = Definition::parse(document).expect("a workflow").definition;
        Race { definition, fenced }
    }

    fn ask(&self, world: &mut World, actor: Actor, ask: Ask) -> Option<Reply> {
        let around = Around { serving_since: BEGIN, ..Around::default() };
        let now = world.now();
        let run = Arc::make_mut(&mut world.run);
        run.apply(&self.definition, &Command::new(actor, ask), &around, now).ok().map(|advanced| advanced.reply)
    }

    fn arrive(&self, world: &mut World, worker: usize) -> Option<()> {
        let sent = world.workers[worker].sent.clone()?;
        let holder = world.holder();
        let mut holding = world.holding(&sent);
        if !self.fenced
            && let Some(task) = world.run.rows.get("a").and_then(|row| row.task.clone())
        {
            // The twin trusts whoever answers: it does not look at the epoch that the answer carries.
            holding.task_id = task.id.clone();
            holding.epoch = task.lease.as_ref().map_or(holding.epoch, |lease| lease.epoch);
        }
        let report = Report { output: Some(format!("\"by w{worker}\"").into()), ..Report::default() };
        let reply = self.ask(world, Actor::worker(name(worker).as_str()), Ask::Complete { holding, report });
        if reply == Some(Reply::Done) {
            world.accepted.push((worker, holder));
        }
        Some(())
    }
}

impl Model for Race {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let run = Memory::new(RunId::from("run_01KDVZ3C000000000000000000"), Namespace::from("default"));
        let mut world = World {
            run: Arc::new(run),
            ticks: 0,
            workers: Default::default(),
            accepted: Vec::new(),
            cancel_asked: false,
        };
        self.ask(&mut world, Actor::user("u"), Ask::Start(Box::new(Start::with_input("{}"))));
        vec![world]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.ticks < MOST_TICKS {
            moves.push(Move::Tick);
        }
        moves.push(Move::Sweep);
        if !world.cancel_asked {
            moves.push(Move::Cancel);
        }
        for worker in 0..2 {
            if world.run.working.head.epoch.0 < MOST_CLAIMS {
                moves.push(Move::Claim(worker));
            }
            if world.workers[worker].holding.is_some() {
                moves.push(Move::Heartbeat(worker));
                moves.push(Move::Send(worker));
            }
            if world.workers[worker].sent.is_some() {
                moves.push(Move::Arrive(worker));
                moves.push(Move::Drop(worker));
            }
        }
    }

    fn next_state(&self, last: &World, step: Move) -> Option<World> {
        let mut world = last.clone();
        match step {
            Move::Tick => world.ticks += 1,
            Move::Sweep => drop(self.ask(&mut world, Actor::system(), Ask::Wake)?),
            Move::Cancel => {
                world.cancel_asked = true;
                self.ask(&mut world, Actor::user("u"), Ask::Cancel { reason: "stop".into(), undo: None, grace: None })?;
            }
            Move::Claim(worker) => {
                let task = world.run.rows.get("a")?.task.clone()?;
                let ask = Ask::Claim {
                    path: Path::from("a"),
                    task_id: task.id.clone(),
                    worker: name(worker),
                    window: None,
                    claim_id: None,
                };
                let Some(Reply::Leased { epoch, .. }) = self.ask(&mut world, Actor::worker("w"), ask) else {
                    return None;
                };
                world.workers[worker].holding = Some((task.id.to_string(), epoch.0));
            }
            Move::Heartbeat(worker) => {
                let holding = world.holding(world.workers[worker].holding.as_ref()?);
                self.ask(&mut world, Actor::worker("w"), Ask::Heartbeat { holding, progress: None })?;
            }
            Move::Send(worker) => {
                let worker = &mut world.workers[worker];
                if worker.sent == worker.holding {
                    return None;
                }
                worker.sent = worker.holding.clone();
            }
            Move::Arrive(worker) => self.arrive(&mut world, worker)?,
            Move::Drop(worker) => world.workers[worker].sent = None,
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Race>> {
        vec![
            Property::<Race>::always("a step completes at most once", |_, world| world.completions() <= 1),
            Property::<Race>::always("only the holder of the lease completes", |_, world| {
                world.accepted.iter().all(|(worker, holder)| Some(*worker) == *holder)
            }),
            Property::<Race>::always("running means a lease", |_, world| {
                let leased = world.run.working.open().any(|step| step.is_leased());
                world.run.working.head.state != Some(RunState::Running) || leased
            }),
            Property::<Race>::always("after the end nobody holds anything", |_, world| {
                !world.is_over() || !world.run.working.open().any(|step| step.task.is_some())
            }),
            Property::<Race>::always("a run that was never canceled is not canceled", |_, world| {
                world.cancel_asked || world.run.working.head.state != Some(RunState::Canceled)
            }),
            Property::<Race>::always("every open run has a way out", |_, world| {
                world.is_over() || world.run.working.open().any(|step| step.task.is_some() || step.block.is_some())
            }),
            Property::<Race>::sometimes("the work can win against a cancel", |_, world| {
                world.cancel_asked && world.run.working.head.state == Some(RunState::Succeeded)
            }),
            Property::<Race>::sometimes("a cancel can win against the work", |_, world| {
                world.run.working.head.state == Some(RunState::Canceled)
                    && world.workers.iter().any(|w| w.sent.is_some())
            }),
            Property::<Race>::sometimes("a lost step is taken over and completed", |_, world| {
                world.run.rows.get("a").is_some_and(|row| row.attempt > 1 && row.state == StepState::Completed)
            }),
        ]
    }
}

#[test]
fn in_every_order_the_fenced_rules_hold() {
    let checker = Race::new(true).checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them distinct", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 5_000, "the model explores too little to mean anything");
}

#[test]
fn the_checker_refutes_the_same_rules_without_fencing() {
    let checker = Race::new(false).checker().threads(2).spawn_bfs().join();
    assert!(
        checker.discovery("only the holder of the lease completes").is_some(),
        "the checker misses an unfenced write"
    );
}
