//! People and programs that start runs, decide, cancel, reconnect and repair; after the storm they answer everything.

use abide_core::contract::RunState;
use abide_core::ids::{Digest, Namespace, Path, RunId};
use abide_core::run::command::{Actor, Ask, Resolution, Start};
use abide_core::run::step::{Connection, Step, Wait};
use abide_core::run::{OriginKind, key_of_step, resolutions};
use abide_core::time::Span;
use abide_engine::request::{Rerun, RerunVersion};

use crate::documents::{DOCUMENTS, INPUT};
use crate::judge::Seen;
use crate::letter::{Asker, Heard, Letter, Wish};
use crate::world::{Event, SECOND, World};

/// Runs that may be open at once before nobody starts another.
const OPEN_RUNS: usize = 20;

impl World {
    /// Somebody does something.
    pub fn somebody_acts(&mut self) {
        let pause = self.random.between(SECOND / 5, self.pace);
        self.at(pause, Event::Somebody);
        let open: Vec<i64> =
            self.judge.runs.values().filter(|seen| !seen.run.is_terminal()).map(|seen| seen.no).collect();
        if open.len() < OPEN_RUNS && self.random.chance(350) {
            return self.start_something();
        }
        let no = match self.random.pick(&open) {
            Some(no) => *no,
            None => return,
        };
        match self.random.below(100) {
            0..=24 => self.decide_something(no),
            25..=39 => self.signal_something(no),
            40..=59 => self.repair(no, false),
            60..=63 => self.ask_run(no, Ask::Cancel { reason: "enough".into(), undo: None, grace: None }),
            64..=65 => self
                .ask_run(no, Ask::Cancel { reason: "back".into(), undo: Some(true), grace: Some(Span::from_secs(5)) }),
            66..=70 => self.ask_run(no, Ask::Pause { reason: "wait".into() }),
            71..=77 => {
                let one_step = self.random.chance(200);
                self.ask_run(no, Ask::Resume { one_step });
            }
            78..=81 => self.ask_run(no, Ask::Reconnect { tool: None, account: None, generation: None }),
            82..=86 => self.reconnected(),
            87..=89 => self.broken_connection(),
            90..=92 => self.ask_run(no, Ask::RetryNow),
            93..=96 => self.rerun_something(),
            97 => self.late_words(),
            _ => self.answer_callback(),
        }
    }

    pub fn client_heard(&mut self, letter: Letter, heard: Heard) {
        // Who has a key asks again until there is an answer.
        let again = match &heard {
            Heard::Nothing => true,
            Heard::Answer(Err(error)) => {
                matches!(error.code(), "outcome-unknown" | "overloaded" | "store-unavailable" | "storage-full")
            }
            Heard::Answer(Ok(_)) => letter.key.is_some() && letter.retries < 2 && self.random.chance(100),
        };
        if again && letter.key.is_some() && letter.retries < 10 {
            let pause = self.random.between(SECOND, 20 * SECOND);
            self.resend(letter, pause);
        }
    }

    fn namespace(&mut self) -> Namespace {
        Namespace::from(if self.random.chance(750) { "default" } else { "other" })
    }

    fn start_something(&mut self) {
        let weights: u64 = DOCUMENTS.iter().map(|(_, weight, _)| weight).sum();
        let mut at = self.random.below(weights);
        let found = DOCUMENTS.iter().find(|(_, weight, _)| match at.checked_sub(*weight) {
            Some(rest) => {
                at = rest;
                false
            }
            None => true,
        });
        let workflow = found.map_or("order", |(name, ..)| *name);
        let items: Vec<u64> = (0..self.random.below(22) + 2).collect();
        let input = if workflow == "crowd" { format!("{{\"items\":{items:?}}}") } else { INPUT.to_owned() };
        let mut start = Start::with_input(input);
        let number = self.requests + 1;
        let key = self.random.chance(600).then(|| format!("k{number}"));
        if let Some(key) = &key {
            start.labels.insert("key".into(), key.clone());
        }
        start.paused = self.random.chance(30);
        start.start_at = self.random.chance(60).then(|| self.engine_clock() + Span::from_secs(self.random.below(120)));
        let lasts = matches!(workflow, "people" | "waits" | "drive");
        start.unique = self.random.chance(if lasts { 700 } else { 100 }).then(|| format!("u{}", self.random.below(3)));
        start.priority = self.random.below(3) as i32;
        let namespace = self.namespace();
        let run_id = self.random.chance(100).then(|| RunId::new(format!("run_{namespace}{}", self.random.below(40))));
        self.send_new(Asker::Client, namespace, key, Wish::Start { workflow, start: Box::new(start), run_id });
    }

    pub fn ask_run(&mut self, no: i64, ask: Ask) {
        let by = format!("r{}", self.requests + 1);
        self.ask_run_as(no, &by, ask);
    }

    fn ask_run_as(&mut self, no: i64, by: &str, ask: Ask) {
        let Some(seen) = self.judge.runs.get(&no) else { return };
        let (namespace, run_id, seq) = (seen.key.namespace.clone(), seen.key.run_id.clone(), seen.run.head.seq);
        let expected_seq = (!self.calm && self.random.chance(30)).then_some(seq);
        let groups = vec!["manager".to_owned()];
        let (actor, ask) = (Actor::user(by), Box::new(ask));
        let wish = Wish::Run { run_id, actor, ask, groups, expected_seq, claim_next: false };
        self.send_new(Asker::Client, namespace, None, wish);
    }

    fn decide_something(&mut self, no: i64) {
        let Some(seen) = self.judge.runs.get(&no) else { return };
        let open: Vec<Path> = seen.run.open().filter(|step| is_approval(step)).map(|step| step.path.clone()).collect();
        let Some(step_id) = self.random.pick(&open).cloned() else { return };
        let by = *self.random.pick(&["ana", "ana", "ben", "boss", "eve"]).unwrap_or(&"ana");
        if self.random.chance(100) {
            let expires_at = self.engine_clock() + Span::from_secs(600);
            let groups = vec!["manager".to_owned()];
            return self.ask_run(no, Ask::MakeLink { step_id, whom: by.into(), groups, expires_at });
        }
        let approve = !self.random.chance(250);
        let times = 1 + usize::from(self.random.chance(150));
        for n in 0..times {
            let approve = if n == 0 { approve } else { self.random.chance(500) };
            self.ask_run_as(no, by, decision(Some(step_id.clone()), by, approve));
        }
    }

    fn signal_something(&mut self, no: i64) {
        let name = *self.random.pick(&["left", "right", "other", "signed", "go"]).unwrap_or(&"left");
        self.ask_run(no, Ask::Signal { name: name.into(), payload: r#"{"s":1}"#.into() });
    }

    fn connection(&mut self) -> Connection {
        let (tool, account) = *self.random.pick(&[("drive", "acme"), ("mail", "acme")]).unwrap_or(&("drive", "acme"));
        Connection { tool: tool.into(), account: account.into() }
    }

    fn reconnected(&mut self) {
        let (namespace, connection) = (self.namespace(), self.connection());
        if self.random.chance(400) {
            return self.send_twice(Asker::Client, namespace, Wish::Reconnected(connection));
        }
        let key = self.random.chance(300).then(|| format!("c{}", self.requests + 1));
        self.send_new(Asker::Client, namespace, key, Wish::Reconnected(connection));
    }

    fn broken_connection(&mut self) {
        let (namespace, connection) = (self.namespace(), self.connection());
        self.send_new(Asker::Client, namespace, None, Wish::Broken(connection));
    }

    fn rerun_something(&mut self) {
        let ended: Vec<i64> =
            self.judge.runs.values().filter(|seen| seen.run.is_terminal()).map(|seen| seen.no).collect();
        let Some(seen) = self.random.pick(&ended).and_then(|no| self.judge.runs.get(no)) else { return };
        let (run_id, namespace) = (seen.key.run_id.clone(), seen.key.namespace.clone());
        let actor = Actor::user(format!("r{}", self.requests + 1));
        let version = if self.random.chance(500) { RerunVersion::Same } else { RerunVersion::Latest };
        let rerun = Rerun { run_id, kind: OriginKind::Retry, from_step: None, version, input: None, actor };
        self.send_new(Asker::Client, namespace, None, Wish::Rerun(rerun));
    }

    /// Words for a run that has ended.
    fn late_words(&mut self) {
        let ended: Vec<i64> =
            self.judge.runs.values().filter(|seen| seen.run.is_terminal()).map(|seen| seen.no).collect();
        let Some(no) = self.random.pick(&ended).copied() else { return };
        let asks = [
            Ask::Signal { name: "left".into(), payload: "1".into() },
            Ask::Cancel { reason: "late".into(), undo: None, grace: None },
            Ask::Resume { one_step: false },
            Ask::Pin { pinned: self.random.chance(500) },
        ];
        if let Some(ask) = self.random.pick(&asks).cloned() {
            self.ask_run(no, ask);
        }
    }

    fn answer_callback(&mut self) {
        let Some((run_id, path, token_hash)) = self.random.pick(&self.callbacks).cloned() else { return };
        self.answer_that(run_id, path, token_hash);
    }

    fn answer_that(&mut self, run_id: RunId, path: Path, token_hash: Digest) {
        let Some(no) = self.judge.ids.get(&run_id).copied() else { return };
        self.ask_run(no, Ask::CallbackAnswer { path, token_hash, payload: r#"{"answer":1}"#.into() });
    }

    /// An operator looks at what cannot go on by itself and decides by what is true outside.
    fn repair(&mut self, no: i64, willing: bool) {
        let Some(seen) = self.judge.runs.get(&no) else { return };
        let stuck: Vec<&Step> = seen.run.open().filter(|step| needs_operator(step, willing)).collect();
        let Some(step) = self.random.pick(&stuck) else { return };
        let coded = seen.run.head.started.workflow_id.as_str() == "coded";
        let saga = coded || seen.run.head.started.workflow_id.as_str() == "saga";
        let gate = matches!(step.block.as_ref().map(|block| &block.wait), Some(Wait::Approval(_)));
        let allowed = resolutions(step, gate, &seen.run.head.phase, saga);
        let luck = self.random.below(4);
        let Some(action) = self.resolution(seen, step, &allowed, willing, luck) else { return };
        let (step_id, reason) = (step.path.clone(), "because".to_owned());
        self.ask_run(no, Ask::Resolve { step_id, action, reason });
    }

    fn resolution(&self, seen: &Seen, step: &Step, allowed: &[&str], willing: bool, luck: u64) -> Option<Resolution> {
        let complete = || Resolution::Complete { output: Some(r#"{"done":true,"x":1}"#.into()) };
        let undoing = step.state == abide_core::contract::StepState::Compensating;
        let path = if undoing { step.path.undo() } else { step.path.clone() };
        let happened = self.outside.happened(&key_of_step(&seen.run.head, step, &path, None));
        let told = match (happened, luck) {
            (true, _) => complete(),
            (false, 0) if undoing && !willing => Resolution::Skip,
            (false, _) if undoing && allowed.contains(&"retry") => Resolution::Retry { new_key: false },
            (false, _) if !allowed.contains(&"retry") => Resolution::Fail,
            (false, 0) if !willing => Resolution::Skip,
            (false, 1) if allowed.contains(&"correct") => Resolution::Correct { input: r#"{"corrected":true}"#.into() },
            (false, 2) if willing => complete(),
            (false, 2) if allowed.contains(&"compensate") => Resolution::Compensate,
            (false, 3) if !willing => Resolution::Fail,
            (false, _) => Resolution::Retry { new_key: false },
        };
        allowed.contains(&told.name()).then_some(told)
    }

    /// After the storm: everybody who is asked answers.
    pub fn everybody_answers(&mut self) {
        self.at(20 * SECOND, Event::Everybody);
        for namespace in ["default", "other"] {
            for (tool, account) in [("drive", "acme"), ("mail", "acme"), ("drive", "default")] {
                let connection = Connection { tool: tool.into(), account: account.into() };
                let waits = self.judge.runs.values().any(|seen| {
                    let waits = |step: &Step| abide_engine::store::rows::connection(step) == Some(&connection);
                    seen.key.namespace.as_str() == namespace && seen.run.open().any(waits)
                });
                if waits {
                    self.send_new(Asker::Client, Namespace::from(namespace), None, Wish::Reconnected(connection));
                }
            }
        }
        for (run_id, path, token_hash) in std::mem::take(&mut self.callbacks) {
            self.answer_that(run_id, path, token_hash);
        }
        let open: Vec<i64> =
            self.judge.runs.values().filter(|seen| !seen.run.is_terminal()).map(|seen| seen.no).collect();
        for no in open {
            self.answer_run(no);
        }
    }

    fn answer_run(&mut self, no: i64) {
        let Some(seen) = self.judge.runs.get(&no) else { return };
        if seen.run.head.state == Some(RunState::Paused) || seen.run.head.hold.is_some() {
            return self.ask_run(no, Ask::Resume { one_step: false });
        }
        let mut decisions = Vec::new();
        let mut signals = Vec::new();
        let (mut overdue, mut auth) = (false, false);
        for step in seen.run.open() {
            let Some(block) = &step.block else { continue };
            overdue |= block.overdue || matches!(block.wait, Wait::Lost { .. });
            match &block.wait {
                Wait::Approval(_) => decisions.push(step.path.clone()),
                Wait::Signal { names, .. } => signals.extend(names.clone()),
                Wait::Callback { .. } => overdue = true,
                Wait::Auth { .. } => auth = true,
                _ => {}
            }
        }
        for path in decisions {
            for by in ["ana", "ben", "boss"] {
                self.ask_run_as(no, by, decision(Some(path.clone()), by, true));
            }
        }
        for name in signals {
            self.ask_run(no, Ask::Signal { name, payload: "1".into() });
        }
        if auth {
            self.ask_run(no, Ask::Reconnect { tool: None, account: None, generation: None });
        }
        if overdue {
            self.ask_run(no, Ask::RetryNow);
        }
        self.repair(no, true);
    }
}

fn is_approval(step: &Step) -> bool {
    abide_engine::store::rows::approval(step).is_some()
}

fn needs_operator(step: &Step, willing: bool) -> bool {
    match step.block.as_ref().map(|block| (&block.wait, block.overdue)) {
        Some((Wait::Operator { .. } | Wait::Lost { .. }, _)) => true,
        Some((Wait::Callback { .. }, _)) => willing,
        Some((Wait::Signal { .. } | Wait::Child { .. }, true)) => willing,
        _ => false,
    }
}

fn decision(step_id: Option<Path>, by: &str, approve: bool) -> Ask {
    let by = by.to_owned();
    Ask::Decide { step_id, by, approve, comment: None, form: None, subject_digest: None, via: None }
}
