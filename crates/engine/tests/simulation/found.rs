//! What the simulation has found once, each as a test of its own: a lane, a virtual clock and no chance.

use std::sync::Arc;

use abide_core::definition::Definition;
use abide_core::ids::{Digest, Namespace, Queue};
use abide_core::run::command::{Actor, Ask, Command, Fault, Holding, Report};
use abide_core::time::{Span, Timestamp};
use abide_engine::carry::Lane;
use abide_engine::clock::VirtualClock;
use abide_engine::ids::Ids;
use abide_engine::request::{Answer, Asked, Claim, Error, Register, ToRun};
use abide_engine::store::Wanted;
use abide_engine::store::sqlite::{Files, Sqlite};
use abide_engine::{LeasedTask, NewRun, Request, Told, What};

const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);
const ONE: &str = "workflow: one\nsteps: [ { id: a, task: x.a, effect: external, reconcile: p.a } ]\n";

struct Bench {
    lane: Option<Lane<Sqlite>>,
    clock: VirtualClock,
    ids: Ids,
    files: Files,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let (clock, files) = (VirtualClock::at(START), Files::in_memory(name).expect("a place"));
        let mut bench = Bench { lane: None, clock, ids: Ids::seeded(1), files };
        bench.lane = Some(bench.lane_on(Sqlite::open(bench.files.clone()).expect("a store")));
        let parsed = Definition::parse(ONE).expect("a document");
        let register = Register { parsed, document: ONE.to_owned() };
        bench.ask(What::Register(Box::new(register))).expect("registered");
        bench
    }

    fn lane_on(&self, store: Sqlite) -> Lane<Sqlite> {
        Lane::new(store, Arc::new(self.clock.clone()), self.ids.clone(), Arc::default(), Arc::default())
            .expect("a lane")
    }

    fn lane(&mut self) -> &mut Lane<Sqlite> {
        self.lane.as_mut().expect("a lane")
    }

    /// So long after the start.
    fn at(&mut self, span: Span) {
        self.clock.set(START + span);
    }

    fn ask(&mut self, what: What) -> Result<Answer, Error> {
        let (asked, mut answer) =
            Asked::new(Request { namespace: Namespace::from("default"), idempotency: None, what });
        self.lane().carry(vec![asked]).expect("no commit fails");
        answer.try_recv().expect("an answer")
    }

    fn start(&mut self) {
        self.ask(What::Start(Box::new(NewRun::of("one", "{}", Actor::user("ana"))))).expect("started");
    }

    fn claim(&mut self, claim_id: &str) -> Vec<LeasedTask> {
        let wanted = Wanted { queues: vec![Queue::from("default")], handlers: None };
        let claim_id = Some(claim_id.to_owned());
        let claim = Claim { worker: "w".into(), wanted, max: 1, window: None, claim_id, until: None };
        match self.ask(What::Claim(claim)) {
            Ok(Answer::Tasks(tasks)) => tasks,
            other => panic!("{other:?}"),
        }
    }

    fn tell(&mut self, task: &LeasedTask, ask: impl FnOnce(Holding) -> Ask) -> Result<Told, Error> {
        let holding = Holding { path: task.step_id.clone(), task_id: task.task_id.clone(), epoch: task.epoch };
        let command = Command::new(Actor::worker("w"), ask(holding));
        let (run_id, groups) = (task.run_id.clone(), Vec::new());
        match self.ask(What::Run(Box::new(ToRun { groups, ..ToRun::new(run_id, command) })))? {
            Answer::Run(told) => Ok(*told),
            other => panic!("{other:?}"),
        }
    }

    fn number(&self, text: &str) -> i64 {
        self.files.reader().expect("a reader").query_row(text, [], |row| row.get(0)).expect("a number")
    }
}

#[test]
fn an_engine_that_slept_gives_every_lease_its_window_before_it_judges() {
    let mut bench = Bench::new("found-slept");
    bench.start();
    let task = bench.claim("c1").remove(0);
    bench.at(Span::from_secs(300));
    bench.lane().carry(Vec::new()).expect("carried");
    let report = Report { output: Some("1".into()), ..Report::default() };
    bench.tell(&task, |holding| Ask::Complete { holding, report }).expect("its lease lives");
}

/// As many as may wait.
const MOST_PARKED: usize = 50_000;

#[test]
fn workers_that_wait_are_bounded_and_who_goes_away_makes_room() {
    let mut bench = Bench::new("found-parked");
    let wait = || {
        let wanted = Wanted { queues: vec![Queue::from("default")], handlers: None };
        let until = Some(START + Span::from_secs(60));
        let claim = Claim { worker: "w".into(), wanted, max: 1, window: None, claim_id: None, until };
        Asked::new(Request { namespace: Namespace::from("default"), idempotency: None, what: What::Claim(claim) })
    };
    let (asked, mut answers): (Vec<_>, Vec<_>) = (0..=MOST_PARKED).map(|_| wait()).unzip();
    bench.lane().carry(asked).expect("carried");
    assert!(matches!(answers[MOST_PARKED].try_recv(), Ok(Err(Error::Overloaded))), "one too many");
    assert!(answers[..MOST_PARKED].iter_mut().all(|answer| answer.try_recv().is_err()), "the others wait");
    // The first who waits is served first; whoever is gone is forgotten.
    bench.start();
    assert!(matches!(answers[0].try_recv(), Ok(Ok(Answer::Tasks(tasks))) if tasks.len() == 1));
    answers.truncate(1);
    bench.lane().carry(Vec::new()).expect("carried");
    let (asked, mut answer) = wait();
    bench.lane().carry(vec![asked]).expect("carried");
    bench.start();
    assert!(matches!(answer.try_recv(), Ok(Ok(Answer::Tasks(tasks))) if tasks.len() == 1));
}

#[test]
fn a_sweep_that_finds_nothing_rests() {
    let mut bench = Bench::new("found-sweep");
    bench.start();
    let task = bench.claim("c1").remove(0);
    let beat = |holding| Ask::Heartbeat { holding, progress: None };
    for second in (1..=40).step_by(2) {
        bench.at(Span::from_secs(second));
        bench.tell(&task, beat).expect("a heartbeat");
        bench.at(Span::from_millis(second * 1_000 + 100));
        bench.lane().carry(Vec::new()).expect("carried");
        let now = START + Span::from_millis(second * 1_000 + 100);
        assert!(bench.lane().due_at() > now, "the lane wants to be called again at once");
    }
}

#[test]
fn a_restart_never_begins_before_the_last_commit() {
    let mut bench = Bench::new("found-restart");
    bench.at(Span::from_millis(900));
    bench.start();
    let last = "select at from batches order by batch desc limit 1";
    let before = bench.number(last);
    bench.at(Span::ZERO);
    let store = bench.lane.take().expect("a lane").into_store().expect("a store");
    bench.lane = Some(bench.lane_on(store));
    bench.start();
    assert!(bench.number(last) >= before, "the second commit is before the first");
}

#[test]
fn a_repeated_claim_does_not_get_what_its_step_has_become() {
    let mut bench = Bench::new("found-claim");
    bench.start();
    let task = bench.claim("c1").remove(0);
    assert_eq!(bench.claim("c1").first(), Some(&task), "as long as it lives it is the same");
    let fault = Fault { class: None, message: "no answer".into(), ..Fault::default() };
    bench.tell(&task, |holding| Ask::Fail { holding, fault }).expect("failed");
    assert_eq!(bench.claim("c1"), [], "the probe is another task");
    let probe = bench.claim("c2").remove(0);
    assert_eq!(probe.step_id.as_str(), "a.probe");
}

#[test]
fn the_token_of_a_second_attempt_is_found() {
    let mut bench = Bench::new("found-token");
    bench.start();
    let task = bench.claim("c1").remove(0);
    for token in [b"first", b"again"] {
        let token_hash = Digest::of(token);
        let made = |holding| Ask::Callback { holding, name: "cb".into(), token_hash, expires_in: None };
        bench.tell(&task, made).expect("made");
    }
    let again = format!("select count(*) from callbacks where lower(hex(token_hash)) = '{}'", Digest::of(b"again"));
    assert_eq!(bench.number(&again), 1);
    assert_eq!(bench.number("select count(*) from callbacks"), 2, "the tool may still answer at the first");
}
