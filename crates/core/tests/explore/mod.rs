//! Plays random commands against a run: sensible ones, stale ones and senseless ones, and watches what must always hold.

#![allow(dead_code, reason = "each test binary uses its own part of this module")]

pub mod corpus;

use std::collections::BTreeSet;
use std::sync::Arc;

use abide_core::contract::{FailureClass, RunState};
use abide_core::definition::{Definition, EffectKind, OnCancel, WaitMode};
use abide_core::ids::{Digest, Epoch, Handler, Namespace, Path, RunId, TaskId, WorkerId, WorkflowId};
use abide_core::run::command::*;
use abide_core::run::intent::{CarriedIntent, Intent};
use abide_core::run::invariant;
use abide_core::run::memory::Memory;
use abide_core::run::step::{Connection, KeyOf, Progress, Role, Step, TaskKind, Wait};
use abide_core::run::{Around, ConnectionFacts, LateAnswer, LateReport};
use abide_core::time::{Span, Timestamp};

/// One random choice: what to do, and with what.
pub type Choice = (u8, u8, u8);

/// A run under exploration.
pub struct Explorer<'d> {
    pub definition: &'d Definition,
    pub memory: Memory,
    pub now: Timestamp,
    pub around: Around,
    /// Leases that were given once; most of them are stale.
    holdings: Vec<Holding>,
    children: Vec<(Path, RunId)>,
    callbacks: Vec<(Path, Digest)>,
    pub commands: u64,
    pub rejections: BTreeSet<&'static str>,
}

const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// As if the run was a rerun of one of which nobody knows what it did.
fn intents(definition: &Definition, unknown: bool) -> Vec<CarriedIntent> {
    let from = RunId::from("run_01KDVZ3C000000000000000009");
    let of_step = |step: &abide_core::definition::StepDef| {
        let path = Path::from(step.id.as_str());
        let key_of = KeyOf { run_id: from.clone(), path: path.clone(), group: 0 };
        let intent = Intent {
            from: from.clone(),
            step_id: path.clone(),
            key_of,
            unknown: unknown && step.effect == EffectKind::External,
            found: None,
            lease_until: unknown.then_some(START + Span::from_secs(5)),
            receipt: None,
            effects: Vec::new(),
            resources: Vec::new(),
        };
        CarriedIntent { path, intent, payloads: Default::default() }
    };
    definition.steps().iter().map(of_step).collect()
}

impl<'d> Explorer<'d> {
    pub fn start(definition: &'d Definition, choice: Choice) -> Explorer<'d> {
        let memory = Memory::new(RunId::from("run_01KDVZ3C000000000000000000"), Namespace::from("default"));
        let mut around = Around { serving_since: START, groups: vec!["manager".into()], ..Around::default() };
        let drive = Connection { tool: "drive".into(), account: "acme".into() };
        around.connections.insert(drive, ConnectionFacts { broken: choice.1.is_multiple_of(2), ..Default::default() });
        let default = Connection { tool: "drive".into(), account: "default".into() };
        around.connections.insert(default, ConnectionFacts::default());
        let mut explorer = Explorer {
            definition,
            memory,
            now: START,
            around,
            holdings: Vec::new(),
            children: Vec::new(),
            callbacks: Vec::new(),
            commands: 0,
            rejections: BTreeSet::new(),
        };
        let mut start = Start::with_input(corpus::INPUT);
        start.paused = choice.0 % 8 == 1;
        start.start_at = (choice.0 % 8 == 2).then_some(START + Span::from_secs(60));
        if choice.2.is_multiple_of(8) {
            start.intents = intents(definition, choice.2.is_multiple_of(16));
        }
        explorer.ask(Actor::user("starter"), Ask::Start(Box::new(start)));
        explorer
    }

    pub fn state(&self) -> RunState {
        self.memory.working.head.state.expect("it was started")
    }

    pub fn is_over(&self) -> bool {
        self.state().is_terminal()
    }

    /// Asks one thing; a refusal must change nothing.
    pub fn ask(&mut self, actor: Actor, ask: Ask) -> Option<Reply> {
        self.commands += 1;
        let before = (self.memory.working.head.clone(), self.memory.log.len());
        let command = Command::new(actor, ask);
        match self.memory.apply(self.definition, &command, &self.around, self.now) {
            Ok(advanced) => {
                for effect in &advanced.effects {
                    if let Effect::StartChild(child) = effect {
                        self.children.push((child.parent.step_id.clone(), child.run_id.clone()));
                    }
                }
                Some(advanced.reply)
            }
            Err(rejection) => {
                assert_ne!(rejection.code(), "internal", "{rejection} after {command:?}");
                assert_ne!(rejection.code(), "transition-refused", "{rejection} after {command:?}\n{}", self.story());
                self.rejections.insert(rejection.code());
                assert_eq!(before.0, self.memory.working.head, "a refusal changed the run: {command:?}");
                assert_eq!(before.1, self.memory.log.len());
                None
            }
        }
    }

    /// What must hold after every command.
    pub fn check(&self) {
        let whole = self.memory.whole();
        let broken = invariant::broken(&whole, self.memory.wake_at, self.around.serving_since);
        assert!(broken.is_empty(), "{broken:?}\n{}", self.story());
        let attempts = invariant::too_many_attempts(&whole, self.definition);
        assert!(attempts.is_empty(), "{attempts:?}\n{}", self.story());
    }

    /// What must hold of the log, and that it makes the run again.
    pub fn check_log(&self) {
        let broken = invariant::broken_log(&self.memory.log);
        assert!(broken.is_empty(), "{broken:?}\n{}", self.story());
        let replayed = self.memory.replayed().unwrap_or_else(|broken| panic!("{broken}\n{}", self.story()));
        let bytes = |run: &abide_core::run::Working| {
            let rows: Vec<Step> =
                run.steps.values().flatten().map(|row| Step { live: None, ..(**row).clone() }).collect();
            (serde_json::to_string(&run.head).unwrap(), serde_json::to_string(&rows).unwrap())
        };
        assert_eq!(bytes(&replayed), bytes(&self.memory.whole()), "{}", self.story());
    }

    pub fn story(&self) -> String {
        let mut story = String::new();
        for record in &self.memory.log {
            story += &format!(
                "{:>3} {} {:<26} {:<14} {}\n",
                record.seq,
                record.at,
                record.kind,
                record.step_id.as_ref().map_or("", Path::as_str),
                record.payload.get().chars().take(160).collect::<String>()
            );
        }
        story
    }

    /// One random move.
    pub fn step(&mut self, (what, a, b): Choice) {
        if what % 4 == 1 && self.leased().iter().any(|(_, kind, _)| *kind == TaskKind::Body) {
            return self.body(a, b);
        }
        match what % 32 {
            0..=5 => self.claim(a, b),
            6..=11 => self.finish(a, b),
            12..=13 => self.fail(a, b),
            14 => self.block(a, b),
            15 => self.other_worker_word(a, b),
            16..=19 => self.wake(a),
            20 => self.stale(a, b),
            21 => self.decide(a, b),
            22 => self.signal(a, b),
            23 => self.reconnect(a),
            24 => self.resolve(a, b),
            25 => self.child(a, b),
            26 => self.callback(a, b),
            27 => self.hold(a),
            28 => self.cancel(a, b),
            29 => drop(self.ask(Actor::user("op"), Ask::RetryNow)),
            30 => self.body(a, b),
            _ => self.senseless(a, b),
        }
    }

    fn pick<T: Clone>(list: &[T], at: u8) -> Option<T> {
        (!list.is_empty()).then(|| list[at as usize % list.len()].clone())
    }

    fn task_path(step: &Step) -> Path {
        let undoing = step.state == abide_core::contract::StepState::Compensating;
        match step.task.as_ref().map(|task| task.kind) {
            Some(TaskKind::Compensate) => step.path.undo(),
            Some(TaskKind::Reconcile) if undoing => step.path.undo().probe(),
            Some(TaskKind::Reconcile) => step.path.probe(),
            Some(TaskKind::Step | TaskKind::Body) | None => step.path.clone(),
        }
    }

    fn claim(&mut self, a: u8, b: u8) {
        let ready: Vec<(Path, TaskId)> = self
            .memory
            .working
            .open()
            .filter(|step| step.is_ready())
            .map(|step| (Self::task_path(step), step.task.as_ref().unwrap().id.clone()))
            .collect();
        let Some((path, task_id)) = Self::pick(&ready, a) else { return };
        let worker = WorkerId::new(format!("w{}", b % 3));
        let window = (b.is_multiple_of(2)).then(|| Span::from_secs(u64::from(b % 60) + 5));
        let claim_id = (b.is_multiple_of(5)).then(|| format!("claim-{b}"));
        let ask = Ask::Claim {
            path: path.clone(),
            task_id: task_id.clone(),
            worker: worker.clone(),
            window,
            claim_id: claim_id.clone(),
        };
        let first = self.ask(Actor::worker(worker.as_str()), ask.clone());
        if let Some(Reply::Leased { epoch, .. }) = first {
            self.holdings.push(Holding { path, task_id, epoch });
            if claim_id.is_some() {
                assert_eq!(
                    self.ask(Actor::worker(worker.as_str()), ask),
                    first,
                    "a repeated claim gets the same lease"
                );
            }
        }
    }

    fn leased(&self) -> Vec<(Holding, TaskKind, WorkerId)> {
        self.memory
            .working
            .open()
            .filter_map(|step| {
                let task = step.task.as_ref()?;
                let lease = task.lease.as_ref()?;
                let holding = Holding { path: Self::task_path(step), task_id: task.id.clone(), epoch: lease.epoch };
                Some((holding, task.kind, lease.owner.clone()))
            })
            .collect()
    }

    fn finish(&mut self, a: u8, b: u8) {
        let Some((holding, kind, worker)) = Self::pick(&self.leased(), a) else { return };
        let outputs: &[&str] = match kind {
            TaskKind::Reconcile => &[
                r#"{"found":true,"output":{"id":1}}"#,
                r#"{"found":false}"#,
                r#"{"found":"partial","external_id":"x"}"#,
                r#"{"found":null}"#,
                r#"{"abort":"no"}"#,
                "7",
            ],
            TaskKind::Step | TaskKind::Compensate | TaskKind::Body => &[
                r#"{"done":true,"x":1}"#,
                r#"{"done":false}"#,
                "null",
                "3",
                r#"{"again":true}"#,
                r#"{"retry":true}"#,
                r#"{"ahead":true}"#,
                r#"{"bad":true}"#,
                r#""text""#,
            ],
        };
        let outcome = match b % 16 {
            15 => Outcome::Break,
            14 => Outcome::Noop,
            _ => Outcome::Ok,
        };
        let output = (!b.is_multiple_of(7)).then(|| Json::from(outputs[b as usize % outputs.len()]));
        let warnings = if b == 255 { vec!["careful".to_owned()] } else { Vec::new() };
        let report = Report { output, outcome, resources: Vec::new(), warnings };
        let ask = Ask::Complete { holding, report };
        if self.ask(Actor::worker(worker.as_str()), ask.clone()).is_some() && b.is_multiple_of(3) {
            let log = self.memory.log.len();
            let again = self.ask(Actor::worker(worker.as_str()), ask);
            assert!(matches!(again, Some(Reply::Replayed | Reply::Body { .. })), "{again:?}");
            assert_eq!(self.memory.log.len(), log, "a repeated answer changes nothing");
        }
    }

    fn fail(&mut self, a: u8, b: u8) {
        let Some((holding, _, worker)) = Self::pick(&self.leased(), a) else { return };
        let class = (b % 10 != 9).then(|| FailureClass::ALL[b as usize % FailureClass::ALL.len()]);
        let fault = Fault {
            class,
            message: "it went wrong".into(),
            code: (b.is_multiple_of(4)).then(|| "409".into()),
            retry_after: (b.is_multiple_of(8)).then_some(Span::from_secs(7)),
            tool: (b.is_multiple_of(2)).then(|| "drive".into()),
            ..Fault::default()
        };
        self.ask_twice(&worker, Ask::Fail { holding, fault });
    }

    /// A worker that did not hear the reply says the same again: it is told the same, and nothing changes.
    fn ask_twice(&mut self, worker: &WorkerId, ask: Ask) {
        let released = match self.ask(Actor::worker(worker.as_str()), ask.clone()) {
            Some(Reply::Body { next: Next::Continue | Next::Canceled, .. }) | None => return,
            Some(reply) => matches!(reply, Reply::Body { .. }),
        };
        let log = self.memory.log.len();
        match self.ask(Actor::worker(worker.as_str()), ask) {
            Some(Reply::Body { next: Next::Released, .. }) if released => {}
            Some(Reply::Replayed) if !released => {}
            other => panic!("a repeated answer is answered {other:?}\n{}", self.story()),
        }
        assert_eq!(self.memory.log.len(), log, "a repeated answer changes something");
    }

    fn block(&mut self, a: u8, b: u8) {
        let Some((holding, kind, worker)) = Self::pick(&self.leased(), a) else { return };
        if kind != TaskKind::Step {
            return;
        }
        let on = match b % 8 {
            0 => BlockOn::Auth { tool: "drive".into(), account: Some("acme".into()) },
            1 | 2 => {
                let token_hash = Digest::of(&[b, a, self.commands as u8]);
                let expires_in = (b.is_multiple_of(3)).then_some(Span::from_secs(100));
                let made = Ask::Callback { holding: holding.clone(), name: "cb".into(), token_hash, expires_in };
                if self.ask(Actor::worker(worker.as_str()), made).is_some() {
                    self.callbacks.push((holding.path.clone(), token_hash));
                }
                BlockOn::Callback { name: "cb".into(), deadline: (b.is_multiple_of(2)).then_some(Span::from_secs(50)) }
            }
            3 => BlockOn::Signal { name: "left".into(), deadline: Some(Span::from_secs(90)) },
            4 => BlockOn::Approval(Box::new(approval(b))),
            5 => BlockOn::Timer { until: self.now + Span::from_secs(u64::from(b)) },
            6 => BlockOn::Operator { reason: "look at this".into(), recommended: None },
            _ => BlockOn::Child { workflow: WorkflowId::from("sequence"), input: "{}".into() },
        };
        self.ask_twice(&worker, Ask::Block { holding, on, message: None });
    }

    fn other_worker_word(&mut self, a: u8, b: u8) {
        let Some((holding, _, worker)) = Self::pick(&self.leased(), a) else { return };
        let actor = Actor::worker(worker.as_str());
        let name = (b.is_multiple_of(2)).then(|| format!("effect{}", b % 3));
        let ask = match b % 6 {
            0 => Ask::Heartbeat { holding, progress: Some(Progress { done: 1, total: None, message: None, at: None }) },
            1 => Ask::Effect { holding, name, external_id: None, result: None },
            2 => Ask::Effect { holding, name, external_id: Some("ext".into()), result: None },
            3 => Ask::Effect { holding, name, external_id: None, result: Some(r#"{"r":1}"#.into()) },
            4 => Ask::Canceled { holding },
            _ => Ask::Undelivered { holding },
        };
        self.ask(actor, ask);
    }

    pub fn wake(&mut self, a: u8) {
        match self.memory.wake_at {
            Some(at) if !a.is_multiple_of(4) => self.now = self.now.max(at),
            _ => self.now = self.now + Span::from_secs(u64::from(a)),
        }
        if a == 200 {
            // The engine was away: leases get a full window.
            self.now = self.now + Span::from_secs(500);
            self.around.serving_since = self.now;
        }
        self.ask(Actor::system(), Ask::Wake);
        // Otherwise a sweep would come back at once, for ever.
        let again = self.memory.wake_at.filter(|at| *at <= self.now);
        assert_eq!(again, None, "a wake left something due\n{}", self.story());
    }

    fn stale(&mut self, a: u8, b: u8) {
        let Some(holding) = Self::pick(&self.holdings, a) else { return };
        let live = self.leased().iter().any(|(held, ..)| *held == holding);
        let holding =
            if b.is_multiple_of(4) { Holding { epoch: Epoch(holding.epoch.0 + 1), ..holding } } else { holding };
        if live {
            return;
        }
        let log = self.memory.log.len();
        let report = Report { output: Some(r#"{"stale":true}"#.into()), ..Report::default() };
        let said = self.ask(Actor::worker("zombie"), Ask::Complete { holding: holding.clone(), report });
        assert!(!matches!(said, Some(Reply::Done)), "a stale lease completed something: {holding:?}\n{}", self.story());
        let beat = self.ask(Actor::worker("zombie"), Ask::Heartbeat { holding: holding.clone(), progress: None });
        assert_eq!(beat, None, "a stale lease was extended: {holding:?}");
        assert_eq!(self.memory.log.len(), log, "a stale epoch changed something");
        if b.is_multiple_of(2) {
            let said = self.late_report(b);
            let known = self.around.late.entry(holding.path).or_default();
            if !known.iter().any(|late| said.repeats(&late.said)) {
                known.push(LateAnswer { epoch: holding.epoch, said, at: self.now });
            }
        }
    }

    fn late_report(&self, b: u8) -> LateReport {
        let external_id = Some("late_1".to_owned());
        match b % 10 {
            0 => LateReport::Receipt { name: None, external_id, result: None },
            2 => LateReport::Receipt { name: Some("part".into()), external_id, result: Some(Arc::from("1")) },
            4 => {
                let class = Some(abide_core::contract::FailureClass::Transient);
                LateReport::Failure { class, code: None, message: "it could not".into() }
            }
            _ => LateReport::Result { output: Arc::from(r#"{"late":true}"#) },
        }
    }

    fn decide(&mut self, a: u8, b: u8) {
        let by = ["ana", "boss", "starter", "eve"][b as usize % 4];
        let open: Vec<Path> = self
            .memory
            .rows
            .values()
            .filter(|step| step.block.as_ref().is_some_and(|block| matches!(block.wait, Wait::Approval(_))))
            .map(|step| step.path.clone())
            .collect();
        let step_id = if b.is_multiple_of(8) { None } else { Self::pick(&open, a) };
        let ask = Ask::Decide {
            step_id,
            by: by.into(),
            approve: !b.is_multiple_of(3),
            comment: None,
            form: None,
            subject_digest: (b % 16 == 1).then(|| Digest::of(b"other")),
            via: None,
        };
        if let Some(Reply::Done | Reply::Recorded) = self.ask(Actor::user(by), ask.clone()) {
            let log = self.memory.log.len();
            self.ask(Actor::user(by), ask);
            assert_eq!(self.memory.log.len(), log, "a decision was taken twice");
        }
    }

    fn signal(&mut self, a: u8, _b: u8) {
        let name = ["left", "right", "other", "document.signed", "go"][a as usize % 5];
        self.ask(Actor::user("op"), Ask::Signal { name: name.into(), payload: r#"{"s":1}"#.into() });
    }

    fn reconnect(&mut self, a: u8) {
        let generation = (a.is_multiple_of(2)).then(|| {
            for facts in self.around.connections.values_mut() {
                *facts =
                    ConnectionFacts { generation: facts.generation + 1, reconnected_at: Some(self.now), broken: false };
            }
            self.around.connections.values().map(|facts| facts.generation).max().unwrap_or(0)
        });
        self.ask(Actor::user("op"), Ask::Reconnect { tool: None, account: None, generation });
    }

    fn resolve(&mut self, a: u8, b: u8) {
        let blocked: Vec<Path> =
            self.memory.working.open().filter(|step| step.block.is_some()).map(|step| step.path.clone()).collect();
        let Some(step_id) = Self::pick(&blocked, a) else { return };
        let action = match b % 6 {
            0 => Resolution::Retry { new_key: b.is_multiple_of(4) },
            1 => Resolution::Complete { output: Some(r#"{"by":"operator"}"#.into()) },
            2 => Resolution::Correct { input: r#"{"corrected":true}"#.into() },
            3 => Resolution::Skip,
            4 => Resolution::Compensate,
            _ => Resolution::Fail,
        };
        self.ask(Actor::user("op"), Ask::Resolve { step_id, action, reason: "because".into() });
    }

    fn child(&mut self, a: u8, b: u8) {
        let Some((path, run_id)) = Self::pick(&self.children, a) else { return };
        let state = [RunState::Succeeded, RunState::Failed, RunState::Canceled, RunState::CompletedWithWarnings]
            [b as usize % 4];
        let outcome = if b.is_multiple_of(9) {
            ChildOutcome::Refused { message: "no such workflow".into() }
        } else {
            ChildOutcome::Ended {
                state,
                output: Some(r#"{"child":1}"#.into()),
                failure: None,
                warnings: u64::from(b % 3),
            }
        };
        self.ask(Actor::system(), Ask::ChildEnded { path, run_id, outcome });
    }

    fn callback(&mut self, a: u8, _b: u8) {
        let Some((path, token_hash)) = Self::pick(&self.callbacks, a) else { return };
        let ask = Ask::CallbackAnswer { path, token_hash, payload: r#"{"answer":1}"#.into() };
        if self.ask(Actor::user("tool"), ask.clone()).is_some() {
            let log = self.memory.log.len();
            assert_eq!(self.ask(Actor::user("tool"), ask), None, "a callback was answered twice");
            assert_eq!(self.memory.log.len(), log);
        }
    }

    fn hold(&mut self, a: u8) {
        let ask = match a % 4 {
            0 => Ask::Pause { reason: "wait".into() },
            1 | 2 => Ask::Resume { one_step: false },
            _ => Ask::Resume { one_step: true },
        };
        self.ask(Actor::user("op"), ask);
    }

    fn cancel(&mut self, a: u8, b: u8) {
        if !a.is_multiple_of(3) {
            return;
        }
        let undo = match b % 3 {
            0 => None,
            1 => Some(true),
            _ => Some(false),
        };
        let grace = (b.is_multiple_of(2)).then_some(Span::from_secs(2));
        self.ask(Actor::user("op"), Ask::Cancel { reason: "enough".into(), undo, grace });
    }

    /// What the body of a coded workflow says.
    fn body(&mut self, a: u8, b: u8) {
        let body = self.leased().into_iter().find(|(_, kind, _)| *kind == TaskKind::Body);
        let Some((holding, _, worker)) = body else { return };
        let begun: Vec<Path> = self
            .memory
            .working
            .open()
            .filter(|step| {
                step.place.role == Role::Coded
                    && step.state == abide_core::contract::StepState::Running
                    && step.coded.as_ref().is_some_and(|coded| coded.epoch == holding.epoch)
            })
            .map(|step| step.path.clone())
            .collect();
        let done = begun
            .iter()
            .filter(|_| !a.is_multiple_of(3))
            .map(|path| StepDone {
                step_id: path.clone(),
                begun_at: None,
                result: if b.is_multiple_of(4) {
                    let class = Some(FailureClass::ALL[a as usize % FailureClass::ALL.len()]);
                    Err(Fault { class, message: "no".into(), ..Fault::default() })
                } else {
                    Ok(Report { output: Some("1".into()), ..Report::default() })
                },
            })
            .collect();
        let stored: Vec<Path> = self
            .memory
            .rows
            .values()
            .filter(|step| step.place.role == Role::Coded && step.state.is_ended())
            .filter(|step| step.coded.as_ref().is_some_and(|coded| coded.kind == "step"))
            .map(|step| step.path.clone())
            .collect();
        let recalled = if b.is_multiple_of(13) { Vec::new() } else { stored };
        let new = Path::from(["s0", "s1", "s2", "s3"][a as usize % 4]);
        let mut names: Vec<Path> = recalled;
        if !a.is_multiple_of(5) && !names.contains(&new) {
            names.push(new);
        }
        let begin = names
            .into_iter()
            .map(|step_id| StepBegin {
                effect: if step_id.as_str() == "s1" { EffectKind::External } else { EffectKind::None },
                reconcile: (step_id.as_str() == "s1" && b.is_multiple_of(2)).then(|| Handler::from("t.find")),
                compensate: (step_id.as_str() != "s0").then(|| Handler::from("t.undo")),
                step_id,
                timeout: None,
                retry: None,
                input_digest: None,
            })
            .collect();
        let wait = match b % 12 {
            0 => vec![StepWait { step_id: Path::from("gate"), on: CodedWait::Approval(Box::new(approval(b))) }],
            1 => vec![StepWait {
                step_id: Path::from("nap"),
                on: CodedWait::Sleep { until: self.now + Span::from_secs(9) },
            }],
            2 => vec![StepWait {
                step_id: Path::from("sig"),
                on: CodedWait::Signal {
                    names: vec!["left".into()],
                    mode: WaitMode::One,
                    deadline: None,
                    at_deadline: None,
                },
            }],
            3 => vec![StepWait { step_id: Path::from("kid"), on: child(!a.is_multiple_of(4), a) }],
            4 => vec![StepWait {
                step_id: Path::from("auth"),
                on: CodedWait::Auth { tool: "drive".into(), account: None },
            }],
            _ => Vec::new(),
        };
        self.ask_twice(&worker, Ask::Steps { holding, done, begin, wait, busy: false, beside: false });
    }

    fn senseless(&mut self, a: u8, b: u8) {
        let holding =
            Holding { path: Path::from("nowhere.7"), task_id: TaskId::from("task_x"), epoch: Epoch(u64::from(b)) };
        let ask = match a % 7 {
            0 => Ask::Complete { holding, report: Report::default() },
            1 => Ask::Claim {
                path: Path::from("nowhere"),
                task_id: TaskId::from("task_x"),
                worker: WorkerId::from("w"),
                window: None,
                claim_id: None,
            },
            2 => Ask::Resolve { step_id: Path::from("nowhere"), action: Resolution::Skip, reason: String::new() },
            3 => Ask::ChildEnded {
                path: Path::from("nowhere"),
                run_id: RunId::from("run_x"),
                outcome: ChildOutcome::Refused { message: String::new() },
            },
            4 => Ask::Signal { name: "left".into(), payload: "{not json".into() },
            5 => Ask::Pin { pinned: b.is_multiple_of(2) },
            _ => Ask::Start(Box::new(Start::with_input("{}"))),
        };
        self.ask(Actor::user("op"), ask);
    }

    /// After the storm: cooperative people and workers bring every run to its end.
    pub fn drive_to_end(&mut self) {
        for round in 0..2_000u32 {
            if self.is_over() {
                return;
            }
            self.cooperate(round);
        }
        panic!("the run does not end: {:?}\n{}", self.state(), self.story());
    }

    fn cooperate(&mut self, round: u32) {
        let commands = self.memory.log.len();
        if let Some((holding, kind, worker)) = self.leased().into_iter().next() {
            let output = if kind == TaskKind::Reconcile { r#"{"found":true}"# } else { r#"{"done":true,"x":1}"# };
            if kind == TaskKind::Body {
                self.recall_all(&holding, &worker);
            }
            let report = Report { output: Some(output.into()), ..Report::default() };
            self.ask(Actor::worker(worker.as_str()), Ask::Complete { holding, report });
        }
        self.claim(0, 1);
        for (path, run_id) in self.children.clone() {
            let outcome = ChildOutcome::Ended {
                state: RunState::Succeeded,
                output: Some("{}".into()),
                failure: None,
                warnings: 0,
            };
            self.ask(Actor::system(), Ask::ChildEnded { path, run_id, outcome });
        }
        if self.memory.log.len() != commands {
            return;
        }
        self.ask(Actor::user("op"), Ask::Resume { one_step: false });
        self.ask(Actor::user("op"), Ask::Reconnect { tool: None, account: None, generation: None });
        let blocked: Vec<Path> =
            self.memory.working.open().filter(|step| step.block.is_some()).map(|step| step.path.clone()).collect();
        if round.is_multiple_of(2) {
            for step_id in blocked {
                self.decide_as_approver(&step_id);
                let action = Resolution::Complete { output: Some(r#"{"done":true,"x":1}"#.into()) };
                self.ask(Actor::user("op"), Ask::Resolve { step_id: step_id.clone(), action, reason: "go on".into() });
                // An approval that nobody can pass may only be failed.
                if round % 16 == 14 {
                    let action = Resolution::Fail;
                    self.ask(Actor::user("op"), Ask::Resolve { step_id, action, reason: "nobody can decide".into() });
                }
            }
        }
        if let Some(at) = self.memory.wake_at {
            self.now = self.now.max(at);
            self.ask(Actor::system(), Ask::Wake);
        }
    }

    /// Every approver that a waiting approval names says yes.
    fn decide_as_approver(&mut self, path: &Path) {
        let wait = self.memory.rows.get(path).and_then(|step| step.block.as_ref()).map(|block| &block.wait);
        let Some(Wait::Approval(wait)) = wait else { return };
        for by in wait.approvers.clone() {
            let (step_id, approve, via) = (Some(path.clone()), true, None);
            let ask =
                Ask::Decide { step_id, by: by.clone(), approve, comment: None, form: None, subject_digest: None, via };
            self.ask(Actor::user(by), ask);
        }
    }

    fn recall_all(&mut self, holding: &Holding, worker: &WorkerId) {
        let stored: Vec<(Path, String)> = self
            .memory
            .rows
            .values()
            .filter_map(|step| Some((step.path.clone(), step.coded.as_ref()?.kind.clone())))
            .collect();
        let begin = stored
            .iter()
            .filter(|(_, kind)| kind == "step")
            .map(|(step_id, _)| StepBegin {
                step_id: step_id.clone(),
                effect: EffectKind::None,
                reconcile: None,
                compensate: None,
                timeout: None,
                retry: None,
                input_digest: None,
            })
            .collect();
        let wait = stored
            .iter()
            .filter(|(_, kind)| kind != "step")
            .map(|(step_id, kind)| StepWait {
                step_id: step_id.clone(),
                on: match kind.as_str() {
                    "approval" => CodedWait::Approval(Box::new(approval(0))),
                    "sleep" => CodedWait::Sleep { until: self.now },
                    "child" => child(true, 0),
                    "auth" => CodedWait::Auth { tool: "drive".into(), account: None },
                    _ => CodedWait::Signal {
                        names: vec!["left".into()],
                        mode: WaitMode::One,
                        deadline: None,
                        at_deadline: None,
                    },
                },
            })
            .collect();
        self.ask(
            Actor::worker(worker.as_str()),
            Ask::Steps { holding: holding.clone(), done: Vec::new(), begin, wait, busy: false, beside: false },
        );
    }
}

fn child(wait: bool, a: u8) -> CodedWait {
    CodedWait::Child {
        workflow: WorkflowId::from("sequence"),
        version: None,
        input: "{}".into(),
        wait,
        on_cancel: if a.is_multiple_of(3) { OnCancel::Leave } else { OnCancel::Cancel },
        deadline: None,
        at_deadline: None,
    }
}

fn approval(b: u8) -> ApprovalAsked {
    ApprovalAsked {
        title: "May I?".into(),
        subject: r#"{"what":1}"#.into(),
        approvers: vec!["ana".into()],
        quorum: 1,
        not_requester: false,
        deadline: (b.is_multiple_of(2)).then_some(Span::from_secs(60)),
        at_deadline: None,
        form: None,
    }
}

/// Explores one run with these choices, then brings it to its end.
pub fn explore<'d>(definition: &'d Definition, first: Choice, choices: &[Choice]) -> Explorer<'d> {
    let mut explorer = Explorer::start(definition, first);
    explorer.check();
    for choice in choices {
        explorer.step(*choice);
        explorer.check();
        if explorer.is_over() && choice.0.is_multiple_of(2) {
            break;
        }
    }
    explorer.drive_to_end();
    explorer.check();
    explorer.check_log();
    explorer
}
