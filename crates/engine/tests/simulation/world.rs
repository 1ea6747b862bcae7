//! The simulated world: one real engine on a virtual clock, its clients and workers, the network between them, and the
//! weather. Everything happens in the order of one agenda, so a seed tells the whole story.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use abide_core::definition::Definition;
use abide_core::ids::{Digest, Namespace, Path, RunId};
use abide_core::time::Timestamp;
use abide_engine::carry::{Lane, SERVING_GAP};
use abide_engine::clock::{Clock, VirtualClock};
use abide_engine::ids::Ids;
use abide_engine::reply::{Awaited, Missing};
use abide_engine::request::{Answer, Asked, Error, Register};
use abide_engine::store::sqlite::{Files, Readers, Sqlite};
use abide_engine::{Request, What};

use crate::documents::DOCUMENTS;
use crate::faulty::{Faults, Faulty, locked};
use crate::judge::{Broken, Judge, Judged, Moment, broken};
use crate::letter::{Asker, Heard, Letter, Wish};
use crate::outside::Outside;
use crate::random::Random;
use crate::worker::Worker;

pub const MILLI: i64 = 1_000;
pub const SECOND: i64 = 1_000 * MILLI;
pub const MINUTE: i64 = 60 * SECOND;
pub const HOUR: i64 = 60 * MINUTE;

/// 2026-01-01.
const EPOCH: i64 = 1_767_225_600_000_000;
/// Calls at one instant after which an engine is said never to rest.
const MOST_CALLS: u32 = 3_000;
/// Runs in one transaction: few, so that messages and releases have to wait for their turn.
const RUNS_A_BATCH: usize = 6;
/// How long everybody has to bring every run to its end after the storm.
const CALM: i64 = 3 * HOUR;

/// What is on the agenda.
#[derive(Debug)]
pub enum Event {
    Deliver(Box<Letter>),
    Carry,
    Hear(Box<Letter>, Box<Heard>),
    Poll(usize),
    Beat(usize, u64),
    Work(usize, u64),
    Say(usize, u64),
    Somebody,
    Everybody,
    Weather,
    Boot,
}

/// How a world is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub seed: u64,
    pub storm: i64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    pub hours: f64,
    pub steps: u64,
    pub runs: usize,
    pub events: u64,
    pub checks: u64,
    pub trace: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub kinds: std::collections::BTreeSet<String>,
    pub states: std::collections::BTreeSet<abide_core::contract::RunState>,
    pub refusals: std::collections::BTreeSet<&'static str>,
    pub deeds: u64,
}

/// Where and how a world went wrong.
#[derive(Debug)]
pub struct Wrong {
    pub seed: u64,
    pub step: u64,
    pub broken: Broken,
    pub lately: Vec<String>,
}

#[derive(Debug)]
pub struct World {
    setting: Setting,
    pub random: Random,
    /// True time; the engine's clock is off by `skew`.
    pub t: i64,
    skew: i64,
    last_jump: i64,
    clock: VirtualClock,
    ids: Ids,
    files: Files,
    lane: Option<Lane<Faulty>>,
    faults: Arc<Mutex<Faults>>,
    agenda: BTreeMap<(i64, u64), Event>,
    planned: u64,
    tick_at: i64,
    calls: (i64, u32),
    desk: Vec<Letter>,
    parked: Vec<(Letter, Awaited)>,
    pub workers: Vec<Worker>,
    pub outside: Outside,
    pub judge: Judge,
    pub callbacks: Vec<(RunId, Path, Digest)>,
    pub requests: u64,
    pub jobs_made: u64,
    /// The storm is over: nothing fails, everybody behaves.
    pub calm: bool,
    /// The longest pause between two acts of people.
    pub pace: i64,
    steps: u64,
    engine_now: Timestamp,
    gap_ended: Timestamp,
    counts: BTreeMap<&'static str, u64>,
    trace: u64,
    lately: VecDeque<String>,
}

impl World {
    pub fn new(setting: Setting) -> World {
        let mut random = Random::new(setting.seed);
        let faults = Faults::new(Random::new(random.next()));
        let thread = std::thread::current().id();
        let files = Files::in_memory(&format!("sim-{}-{thread:?}-{}", setting.seed, unique())).expect("a place");
        let clock = VirtualClock::at(Timestamp::from_micros(EPOCH));
        let store = Sqlite::open(files.clone()).expect("a store in memory");
        let judge = Judge::new(files.reader().expect("a reader"));
        let ids = Ids::seeded(u128::from(setting.seed));
        let workers =
            (0..7).map(|number| Worker::new(number, Namespace::from(if number < 4 { "default" } else { "other" })));
        let mut world = World {
            setting,
            t: 0,
            skew: 0,
            last_jump: 0,
            clock,
            ids,
            files,
            lane: None,
            faults,
            agenda: BTreeMap::new(),
            planned: 0,
            tick_at: 0,
            calls: (0, 0),
            desk: Vec::new(),
            parked: Vec::new(),
            workers: workers.collect(),
            outside: Outside::default(),
            judge,
            callbacks: Vec::new(),
            requests: 0,
            jobs_made: 0,
            calm: false,
            pace: random.between(20, 160) * SECOND,
            random,
            steps: 0,
            engine_now: Timestamp::default(),
            gap_ended: Timestamp::default(),
            counts: BTreeMap::new(),
            trace: 0xcbf2_9ce4_8422_2325,
            lately: VecDeque::new(),
        };
        let faulty = Faulty::new(store, world.faults.clone());
        world.lane = Some(world.lane_on(faulty).expect("a first engine"));
        world
    }

    /// A storm, then calm, then the end: every run must have come to its own.
    pub fn play(mut self) -> Result<Report, Box<Wrong>> {
        let played = self.play_all();
        match played {
            Ok(()) => Ok(self.report()),
            Err(broken) => {
                let (seed, step, lately) = (self.setting.seed, self.steps, self.lately.into());
                Err(Box::new(Wrong { seed, step, broken, lately }))
            }
        }
    }

    fn play_all(&mut self) -> Judged {
        self.register_all()?;
        for worker in 0..self.workers.len() {
            self.at(worker as i64 * SECOND, Event::Poll(worker));
        }
        self.at(0, Event::Somebody);
        self.at(SECOND, Event::Weather);
        self.until(self.setting.storm, false)?;
        self.ask_the_doctor()?;
        self.calm_down();
        self.until(self.setting.storm + CALM, true)?;
        self.check_everything()?;
        self.ask_the_doctor()?;
        match self.judge.runs.values().find(|seen| !seen.run.is_terminal()) {
            Some(seen) => {
                let (no, state) = (seen.no, seen.run.head.state);
                broken("I35", format!("{} does not end, it is {state:?}\n{}", seen.key.run_id, self.judge.story(no)))
            }
            None => Ok(()),
        }
    }

    fn report(self) -> Report {
        let mut counts = self.counts;
        counts.extend(locked(&self.faults).counts.iter());
        Report {
            hours: self.t as f64 / HOUR as f64,
            steps: self.steps,
            runs: self.judge.runs.len(),
            events: self.judge.events,
            checks: self.judge.checks,
            trace: self.trace,
            faults: counts,
            kinds: self.judge.kinds,
            states: self.judge.states,
            refusals: self.judge.refusals,
            deeds: self.outside.external,
        }
    }

    fn lane_on(&self, store: Faulty) -> Result<Lane<Faulty>, abide_engine::store::StoreError> {
        let mut lane =
            Lane::new(store, Arc::new(self.clock.clone()), self.ids.clone(), Arc::default(), Arc::default())?;
        lane.limit_batches(RUNS_A_BATCH);
        Ok(lane)
    }

    fn register_all(&mut self) -> Judged {
        for namespace in ["default", "other"] {
            for (name, _, document) in DOCUMENTS {
                let parsed = Definition::parse(document).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                let register = Register { parsed, document: (*document).to_owned() };
                let what = What::Register(Box::new(register));
                let request = Request { namespace: Namespace::from(namespace), idempotency: None, what };
                let (asked, mut answer) = Asked::new(request);
                let carried = self.lane.as_mut().map(|lane| lane.carry(vec![asked]));
                if !matches!((carried, answer.try_recv()), (Some(Ok(())), Ok(Ok(_)))) {
                    return broken("store", format!("{name} cannot be registered"));
                }
            }
        }
        Ok(())
    }

    /// Puts something on the agenda, so much later.
    pub fn at(&mut self, later: i64, event: Event) {
        self.planned += 1;
        self.agenda.insert((self.t + later.max(0), self.planned), event);
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn engine_clock(&self) -> Timestamp {
        Timestamp::from_micros(EPOCH + self.t + self.skew)
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>12.3} {}", self.t as f64 / SECOND as f64, line());
        for byte in line.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.lately.len() == 60 {
            self.lately.pop_front();
        }
        self.lately.push_back(line);
    }

    /// Plays until then, or until every run has ended.
    fn until(&mut self, end: i64, or_all_ended: bool) -> Judged {
        loop {
            let next = self.agenda.first_key_value().map_or(end, |((at, _), _)| *at);
            let tick = if self.lane.is_some() { self.tick_at } else { i64::MAX };
            if next.min(tick) >= end {
                self.t = end;
                return Ok(());
            }
            if tick <= next {
                self.t = self.t.max(tick);
                self.carry()?;
            } else if let Some(((at, _), event)) = self.agenda.pop_first() {
                self.t = self.t.max(at);
                self.happen(event)?;
            }
            let over = || {
                let ended = self.judge.runs.values().all(|seen| seen.run.is_terminal());
                ended && self.desk.is_empty() && self.workers.iter().all(Worker::is_idle)
            };
            if or_all_ended && self.steps.is_multiple_of(16) && over() {
                return Ok(());
            }
        }
    }

    fn happen(&mut self, event: Event) -> Judged {
        match event {
            Event::Deliver(letter) => self.deliver(*letter),
            Event::Carry if self.lane.is_some() && !self.desk.is_empty() => return self.carry(),
            Event::Carry => {}
            Event::Hear(letter, heard) => match letter.asker {
                Asker::Client => self.client_heard(*letter, *heard),
                Asker::Poll(w) => self.poll_heard(w, *letter, *heard),
                Asker::Job(w, id) => self.job_heard(w, id, *letter, *heard),
            },
            Event::Poll(w) => self.poll(w),
            Event::Beat(w, id) => self.beat(w, id),
            Event::Work(w, id) => return self.work(w, id),
            Event::Say(w, id) => self.body_says(w, id),
            Event::Somebody if !self.calm => self.somebody_acts(),
            Event::Somebody => {}
            Event::Everybody => self.everybody_answers(),
            Event::Weather if !self.calm => self.weather(),
            Event::Weather => {}
            Event::Boot => self.boot(),
        }
        Ok(())
    }

    /// A new request goes out.
    pub fn send_new(&mut self, asker: Asker, namespace: Namespace, key: Option<String>, wish: Wish) {
        self.requests += 1;
        let (request, sent_at) = (self.requests, self.t);
        self.send(Letter { request, asker, namespace, key, wish, retries: 0, echo: false, unheard: false, sent_at });
    }

    /// Somebody clicks twice.
    pub fn send_twice(&mut self, asker: Asker, namespace: Namespace, wish: Wish) {
        self.requests += 1;
        let (request, sent_at) = (self.requests, self.t);
        let letter =
            Letter { request, asker, namespace, key: None, wish, retries: 0, echo: false, unheard: false, sent_at };
        let delay = self.delay();
        self.count("request doubled");
        self.at(delay, Event::Deliver(Box::new(Letter { echo: true, ..letter.clone() })));
        self.at(delay, Event::Deliver(Box::new(letter)));
    }

    /// The same request once more.
    pub fn resend(&mut self, letter: Letter, later: i64) {
        let mut letter = Letter { retries: letter.retries + 1, unheard: false, ..letter };
        letter.sent_at = self.t + later;
        self.count("retried");
        self.send(letter);
    }

    fn send(&mut self, mut letter: Letter) {
        let wait = letter.sent_at - self.t;
        if self.calm {
            return self.at(wait + 5 * MILLI, Event::Deliver(Box::new(letter)));
        }
        if self.random.chance(15) {
            self.count("request lost");
            let patience = self.random.between(2 * SECOND, 30 * SECOND);
            return self.at(wait + patience, Event::Hear(Box::new(letter), Box::new(Heard::Nothing)));
        }
        if self.random.chance(20) {
            self.count("request doubled");
            let copy = Letter { echo: true, ..letter.clone() };
            let delay = self.delay();
            self.at(wait + delay, Event::Deliver(Box::new(copy)));
        }
        letter.unheard = self.random.chance(20);
        let delay = self.delay();
        self.at(wait + delay, Event::Deliver(Box::new(letter)));
    }

    fn delay(&mut self) -> i64 {
        match self.random.below(100) {
            0 => {
                self.count("delayed by minutes");
                self.random.between(MINUTE, 5 * MINUTE)
            }
            1..=4 => {
                self.count("delayed");
                self.random.between(2 * SECOND, 40 * SECOND)
            }
            5..=14 => self.random.between(100 * MILLI, 2 * SECOND),
            _ => self.random.between(MILLI, 60 * MILLI),
        }
    }

    fn deliver(&mut self, letter: Letter) {
        if self.lane.is_none() {
            return self.hear_nothing(letter);
        }
        self.desk.push(letter);
        let gather = if self.calm || self.random.chance(700) { 0 } else { self.random.between(0, 300 * MILLI) };
        self.at(gather, Event::Carry);
    }

    fn hear_nothing(&mut self, letter: Letter) {
        if !letter.echo {
            let patience = if self.calm { SECOND } else { self.random.between(SECOND, 20 * SECOND) };
            self.at(patience, Event::Hear(Box::new(letter), Box::new(Heard::Nothing)));
        }
    }

    fn answered(&mut self, letter: Letter, answer: Result<Answer, Error>) {
        if letter.echo {
            return;
        }
        if letter.unheard {
            self.count("answer lost");
            return self.hear_nothing(letter);
        }
        let delay = if self.calm { MILLI } else { self.delay() };
        self.at(delay, Event::Hear(Box::new(letter), Box::new(Heard::Answer(answer))));
    }

    /// One call of the engine, judged.
    fn carry(&mut self) -> Judged {
        let Some(mut lane) = self.lane.take() else { return Ok(()) };
        self.calls = if self.calls.0 == self.t { (self.t, self.calls.1 + 1) } else { (self.t, 0) };
        if self.calls.1 > MOST_CALLS {
            let why = self.judge.unrest();
            return broken(
                "rest",
                format!("the engine never rests: due at {}, now {}, {why}", lane.due_at(), self.engine_now),
            );
        }
        self.clock.set(self.engine_clock());
        self.engine_now = self.engine_now.max(self.clock.now());
        if self.judge.served().is_some_and(|served| self.engine_now.since(served) > SERVING_GAP) {
            self.gap_ended = self.engine_now;
        }
        self.steps += 1;
        locked(&self.faults).since = false;
        let letters = std::mem::take(&mut self.desk);
        let frees = self.would_free(&letters);
        let asked = letters.into_iter().map(|letter| {
            let (asked, answer) = Asked::new(letter.request());
            self.parked.push((letter, answer));
            asked
        });
        let mut asked: Vec<Asked> = asked.collect();
        let requests = asked.len();
        // Some are decided while the batch before them is not durable yet, some are added to one that is not closed.
        let later = asked.split_off(self.random.between(0, requests as i64) as usize);
        let handed_over = self.random.chance(500);
        let carry = || {
            lane.take_in(asked)?;
            if handed_over {
                lane.hand_over(true)?;
            }
            lane.carry(later)
        };
        let carried = carry();
        let answers = self.collect();
        let (dead, since) = {
            let faults = locked(&self.faults);
            (faults.dead, faults.since)
        };
        self.note(|| format!("carry {requests} → {} answers, {carried:?} {dead} {since}", answers.len()));
        for (letter, answer) in &answers {
            let told = match answer {
                Ok(Answer::Run(told)) => format!("{} {} {} {:?}", told.run_id, told.seq, told.state, told.reply),
                Ok(Answer::Tasks(tasks)) => {
                    format!("{:?}", tasks.iter().map(|task| (&task.task_id, task.epoch)).collect::<Vec<_>>())
                }
                Ok(other) => format!("{other:?}"),
                Err(error) => error.code().to_owned(),
            };
            self.note(|| format!("  {:?} {} → {told}", letter.asker, wished(&letter.wish)));
        }
        let step = Moment { frees, ..self.step(&lane, &answers, dead || carried.is_err(), since) };
        let written = std::mem::take(&mut locked(&self.faults).written);
        // Whoever is dead has told nobody anything.
        self.judge.judge(&step, written, if dead { &[] } else { &answers })?;
        if !dead && carried.is_ok() && !since {
            self.judge.check_rest(self.engine_now, lane.due_at())?;
        }
        if self.steps.is_multiple_of(2_048) {
            self.judge.check_all(&step)?;
        } else if self.steps.is_multiple_of(128) {
            self.judge.check_between()?;
        }
        if dead {
            let all = std::mem::take(&mut self.parked).into_iter().map(|(letter, _)| letter);
            let all: Vec<Letter> = all.chain(answers.into_iter().map(|(letter, _)| letter)).collect();
            for letter in all {
                self.hear_nothing(letter);
            }
            self.lane = Some(lane);
            self.stop();
            return Ok(());
        }
        for (letter, answer) in answers {
            self.answered(letter, answer);
        }
        let due = lane.due_at().micros() - EPOCH - self.skew;
        let lag = if due > self.t { self.random.between(0, 1_800 * MILLI) } else { 0 };
        self.tick_at = due.max(self.t) + lag;
        self.lane = Some(lane);
        if carried.is_err() {
            self.stop();
        }
        Ok(())
    }

    /// Takes the answers that are there; the rest waits on.
    fn collect(&mut self) -> Vec<(Letter, Result<Answer, Error>)> {
        let mut answers = Vec::new();
        let mut waiting = Vec::new();
        for (letter, mut answer) in std::mem::take(&mut self.parked) {
            match answer.try_recv() {
                Ok(answer) => answers.push((letter, answer)),
                Err(Missing::NotYet) => waiting.push((letter, answer)),
                Err(Missing::Never) => answers.push((letter, Err(Error::OutcomeUnknown))),
            }
        }
        self.parked = waiting;
        answers
    }

    fn step(
        &self,
        lane: &Lane<Faulty>,
        answers: &[(Letter, Result<Answer, Error>)],
        died: bool,
        since: bool,
    ) -> Moment {
        let accepted =
            answers.iter().filter(|(_, answer)| died || matches!(answer, Ok(_) | Err(Error::OutcomeUnknown)));
        let accepted: Vec<&Letter> = accepted.map(|(letter, _)| letter).collect();
        let mut starts = BTreeMap::new();
        for letter in &accepted {
            if matches!(letter.wish, Wish::Start { .. } | Wish::Rerun(_)) {
                *starts.entry(letter.actor().id).or_default() += 1;
            }
        }
        let accepted = accepted.into_iter().map(Letter::actor);
        let parked = self.parked.iter().filter(|_| died).map(|(letter, _)| letter.actor());
        Moment {
            number: self.steps,
            starts,
            serving_since: lane.serving_since(),
            gap_ended: self.gap_ended,
            accepted: accepted.chain(parked).map(|actor| (actor.kind.as_str().to_owned(), actor.id)).collect(),
            frees: None,
            died,
            clean: !since,
        }
    }

    /// What users run finds nothing either.
    fn ask_the_doctor(&self) -> Judged {
        let readers = Readers::new(self.files.clone()).expect("readers");
        match abide_engine::doctor::examine(&readers) {
            Ok(report) => match report.problems.first() {
                Some(problem) => broken(problem.rule, format!("the doctor says: {problem}")),
                None => Ok(()),
            },
            Err(error) => broken("store", error.to_string()),
        }
    }

    /// How many runs reconnects of one connection will free, when nothing else is asked.
    fn would_free(&self, letters: &[Letter]) -> Option<u64> {
        let of = |letter: &Letter| match &letter.wish {
            Wish::Reconnected(connection) if letter.key.is_none() => {
                Some((letter.namespace.clone(), connection.clone()))
            }
            _ => None,
        };
        let others: Vec<&Letter> = letters.iter().filter(|letter| !matches!(letter.wish, Wish::Claim(_))).collect();
        let first = of(others.first()?)?;
        let same = others.iter().all(|letter| of(letter).as_ref() == Some(&first));
        if same { self.judge.waiting_for(first.0.as_str(), &first.1) } else { None }
    }

    fn check_everything(&mut self) -> Judged {
        let Some(lane) = &self.lane else { return Ok(()) };
        let step = self.step(lane, &[], false, false);
        self.judge.check_all(&step)
    }

    /// The process ends; another one is started after a while.
    fn stop(&mut self) {
        self.stop_for(self.calm);
    }

    fn stop_for(&mut self, briefly: bool) {
        let Some(lane) = self.lane.take() else { return };
        drop(lane.into_store());
        let lost: Vec<Letter> = std::mem::take(&mut self.parked)
            .into_iter()
            .map(|(letter, _)| letter)
            .chain(std::mem::take(&mut self.desk))
            .collect();
        for letter in lost {
            self.hear_nothing(letter);
        }
        let away = match self.random.below(10) {
            _ if briefly => 100 * MILLI,
            0 => self.random.between(MINUTE, 6 * MINUTE),
            1..=4 => self.random.between(3 * SECOND, MINUTE),
            _ => self.random.between(50 * MILLI, 2 * SECOND),
        };
        self.note(|| format!("the engine is away for {} s", away as f64 / SECOND as f64));
        self.count("engine away");
        self.at(away, Event::Boot);
    }

    fn boot(&mut self) {
        locked(&self.faults).dead = false;
        self.clock.set(self.engine_clock());
        // A process that died knew perhaps a later time, and told nobody.
        self.engine_now = self.clock.now().max(self.judge.served().unwrap_or_default());
        if self.gap_ended > self.engine_now {
            self.gap_ended = Timestamp::default();
        }
        let store = Sqlite::open(self.files.clone()).expect("the store opens again");
        match self.lane_on(Faulty::new(store, self.faults.clone())) {
            Ok(lane) => {
                self.lane = Some(lane);
                self.tick_at = self.t;
            }
            Err(_) => {
                locked(&self.faults).dead = false;
                self.at(SECOND, Event::Boot);
            }
        }
    }

    /// What changes for everybody: how often things fail, what the clock says, whether the engine is there.
    fn weather(&mut self) {
        let pause = self.random.between(10 * SECOND, 3 * MINUTE);
        self.at(pause, Event::Weather);
        {
            let mut faults = locked(&self.faults);
            let bad = self.random.below(4);
            faults.statements = [0, 2_000, 8_000, 30_000][bad as usize];
            faults.commits = [0, 4_000, 20_000, 60_000][bad as usize];
            faults.crashes = [0, 100, 300, 1_000][bad as usize];
        }
        match self.random.below(12) {
            0 => self.jump(),
            1 if self.lane.is_some() => self.stop_for(false),
            2 if self.lane.is_some() => {
                // The process is there and does nothing, as if the machine had slept.
                let frozen = self.random.between(2 * SECOND, 90 * SECOND);
                self.count("engine frozen");
                self.note(|| format!("the engine is frozen for {} s", frozen / SECOND));
                self.freeze(frozen);
            }
            _ => {}
        }
    }

    fn freeze(&mut self, span: i64) {
        let until = self.t + span;
        let soon: Vec<(i64, u64)> = self.agenda.range(..(until, 0)).map(|(at, _)| *at).collect();
        for at in soon {
            if matches!(self.agenda.get(&at), Some(Event::Deliver(_) | Event::Carry))
                && let Some(event) = self.agenda.remove(&at)
            {
                self.agenda.insert((until, at.1), event);
            }
        }
        self.tick_at = self.tick_at.max(until);
    }

    /// The engine's clock is set: a little, so that nobody notices, or by much.
    fn jump(&mut self) {
        let by = match self.random.below(4) {
            0 if self.t - self.last_jump > 2 * MINUTE => self.random.between(-500, 500) * MILLI,
            0 => 0,
            1 => self.random.between(5 * SECOND, 4 * MINUTE),
            _ => -self.random.between(SECOND, 2 * MINUTE),
        };
        self.last_jump = self.t;
        self.skew += by;
        self.count(if by < 0 { "clock back" } else { "clock forward" });
        self.note(|| format!("the clock jumps by {} s", by as f64 / SECOND as f64));
        self.tick_at = (self.tick_at - by).max(self.t);
    }

    /// The storm is over.
    fn calm_down(&mut self) {
        self.calm = true;
        {
            let mut faults = locked(&self.faults);
            (faults.statements, faults.commits, faults.crashes) = (0, 0, 0);
        }
        self.note(|| "calm".to_owned());
        self.at(0, Event::Everybody);
    }
}

fn wished(wish: &Wish) -> String {
    match wish {
        Wish::Start { workflow, .. } => format!("start {workflow}"),
        Wish::Run { run_id, ask, actor, .. } => {
            let ask: String = format!("{ask:?}").chars().take(120).collect();
            format!("{} {run_id} {ask}", actor.id)
        }
        Wish::Claim(claim) => format!("claim {:?} by {}", claim.claim_id, claim.worker),
        Wish::Reconnected(connection) => format!("reconnected {connection}"),
        Wish::Broken(connection) => format!("broken {connection}"),
        Wish::Rerun(rerun) => format!("rerun {}", rerun.run_id),
    }
}

/// Worlds of one process do not share a database.
fn unique() -> u64 {
    static MADE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    MADE.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
}
