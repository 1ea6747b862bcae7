//! `given(document).after([...]).when(...).then([...])`: a rule as a sentence, without clock, database or sleep.

use std::collections::BTreeMap;

use abide_core::contract::{FailureClass, RunState, StepState};
use abide_core::definition::{Definition, parse_duration};
use abide_core::ids::{Digest, Namespace, Path, RunId, WorkerId};
use abide_core::run::command::*;
use abide_core::run::invariant;
use abide_core::run::memory::Memory;
use abide_core::run::step::{Connection, Step, TaskKind};
use abide_core::run::{Around, ConnectionFacts};
use abide_core::time::{Span, Timestamp};

pub const BEGIN: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// Something that happens to a run.
#[derive(Clone, Debug)]
pub enum Act {
    Start(Box<Start>),
    /// A worker claims the task of this path (`charge`, `charge.probe`, `charge.undo`).
    Claim(&'static str, &'static str),
    Complete(&'static str, String, Outcome),
    Fail(&'static str, Box<Fault>),
    Block(&'static str, BlockOn),
    Heartbeat(&'static str),
    Effect(&'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>),
    Stopped(&'static str),
    /// A callback with a name, whose token is the name, or another.
    Callback(&'static str, &'static str),
    CallbackAt(&'static str, &'static str, &'static str),
    /// The worker of this path dies: time goes on until its lease is lost.
    Lose(&'static str),
    /// Time passes; the sweep wakes the run whenever it asked for it.
    Pass(Span),
    /// Time passes and nobody sweeps.
    Skip(Span),
    Decide(Option<&'static str>, &'static str, bool),
    Ask(Ask, &'static str),
}

pub fn started() -> Act {
    started_with("{}")
}
pub fn started_with(input: &str) -> Act {
    Act::Start(Box::new(Start::with_input(input)))
}
pub fn claimed(path: &'static str) -> Act {
    Act::Claim(path, "w1")
}
pub fn claimed_by(path: &'static str, worker: &'static str) -> Act {
    Act::Claim(path, worker)
}
pub fn completed(path: &'static str) -> Act {
    Act::Complete(path, "{}".into(), Outcome::Ok)
}
pub fn completed_with(path: &'static str, output: &str) -> Act {
    Act::Complete(path, output.into(), Outcome::Ok)
}
pub fn broke_off(path: &'static str) -> Act {
    Act::Complete(path, "{}".into(), Outcome::Break)
}
pub fn failed(path: &'static str, class: FailureClass) -> Act {
    Act::Fail(path, Box::new(Fault { class: Some(class), message: "it went wrong".into(), ..Fault::default() }))
}
pub fn failed_with(path: &'static str, fault: Fault) -> Act {
    Act::Fail(path, Box::new(fault))
}
pub fn blocked(path: &'static str, on: BlockOn) -> Act {
    Act::Block(path, on)
}
pub fn heartbeat(path: &'static str) -> Act {
    Act::Heartbeat(path)
}
pub fn intended(path: &'static str, name: &'static str) -> Act {
    Act::Effect(path, Some(name), None, None)
}
pub fn received(path: &'static str, name: Option<&'static str>, id: &'static str, result: Option<&'static str>) -> Act {
    Act::Effect(path, name, Some(id), result)
}
pub fn stopped(path: &'static str) -> Act {
    Act::Stopped(path)
}
pub fn lost(path: &'static str) -> Act {
    Act::Lose(path)
}
pub fn passed(span: &str) -> Act {
    Act::Pass(parse_duration(span).expect("a duration"))
}
pub fn skipped(span: &str) -> Act {
    Act::Skip(parse_duration(span).expect("a duration"))
}
pub fn approved_by(who: &'static str) -> Act {
    Act::Decide(None, who, true)
}
pub fn rejected_by(who: &'static str) -> Act {
    Act::Decide(None, who, false)
}
pub fn approved(step: &'static str, who: &'static str) -> Act {
    Act::Decide(Some(step), who, true)
}
pub fn asked(ask: Ask) -> Act {
    Act::Ask(ask, "op")
}
pub fn cancel() -> Act {
    asked(Ask::Cancel { reason: "enough".into(), undo: None, grace: None })
}
pub fn pause() -> Act {
    asked(Ask::Pause { reason: "hold on".into() })
}
pub fn resume() -> Act {
    asked(Ask::Resume { one_step: false })
}
pub fn resume_one() -> Act {
    asked(Ask::Resume { one_step: true })
}
pub fn signal(name: &str, payload: &str) -> Act {
    asked(Ask::Signal { name: name.into(), payload: payload.into() })
}
pub fn reconnect(tool: &str) -> Act {
    asked(Ask::Reconnect { tool: Some(tool.into()), account: None, generation: None })
}
pub fn retry_now() -> Act {
    asked(Ask::RetryNow)
}
pub fn resolve(step: &str, action: Resolution) -> Act {
    asked(Ask::Resolve { step_id: Path::from(step), action, reason: "because".into() })
}
pub fn child_ended(step: &'static str, state: RunState, output: Option<&str>) -> Act {
    let outcome = ChildOutcome::Ended { state, output: output.map(Into::into), failure: None, warnings: 0 };
    asked(Ask::ChildEnded { path: Path::from(step), run_id: RunId::from("the child"), outcome })
}

/// A run in the making.
#[derive(Clone)]
pub struct Given {
    pub definition: Definition,
    pub memory: Memory,
    pub now: Timestamp,
    pub around: Around,
    pub effects: Vec<Effect>,
    holdings: BTreeMap<String, (Holding, WorkerId)>,
    /// What the last act did.
    kinds: Vec<String>,
    reply: Result<Reply, Rejection>,
    children: BTreeMap<String, RunId>,
}

pub fn given(document: &str) -> Given {
    let definition = match Definition::parse(document) {
        Ok(parsed) => parsed.definition,
        Err(error) => panic!("{error}\n{:#?}", error.faults()),
    };
    Given {
        definition,
        memory: Memory::new(RunId::from("run_01KDVZ3C000000000000000000"), Namespace::from("default")),
        now: BEGIN,
        around: Around { serving_since: BEGIN, ..Around::default() },
        effects: Vec::new(),
        holdings: BTreeMap::new(),
        kinds: Vec::new(),
        reply: Ok(Reply::Done),
        children: BTreeMap::new(),
    }
}

/// A workflow of tasks one after the other, started.
pub fn steps(ids: &[&str]) -> Given {
    let steps: Vec<String> = ids.iter().map(|id| format!("  - {{ id: {id}, task: t.{id} }}")).collect();
    given(&format!("workflow: w\nsteps:\n{}\n", steps.join("\n"))).after([started()])
}

impl Given {
    pub fn groups(mut self, groups: &[&str]) -> Given {
        self.around.groups = groups.iter().map(ToString::to_string).collect();
        self
    }

    pub fn connection(mut self, tool: &str, account: &str, facts: ConnectionFacts) -> Given {
        self.around.connections.insert(Connection { tool: tool.into(), account: account.into() }, facts);
        self
    }

    /// All of this happened, and nothing of it was refused.
    pub fn after(mut self, acts: impl IntoIterator<Item = Act>) -> Given {
        for act in acts {
            let what = format!("{act:?}");
            self = self.when(act);
            if let Err(rejection) = &self.reply {
                panic!("{what} was refused: {rejection}\n{}", self.story());
            }
        }
        self
    }

    /// This happens.
    pub fn when(mut self, act: Act) -> Given {
        let log = self.memory.log.len();
        self.reply = self.act(act);
        self.kinds = self.memory.log[log..].iter().map(|record| record.kind.clone()).collect();
        let broken = invariant::broken(&self.memory.whole(), self.memory.wake_at, self.around.serving_since);
        assert!(broken.is_empty(), "{broken:?}\n{}", self.story());
        let attempts = invariant::too_many_attempts(&self.memory.whole(), &self.definition);
        assert!(attempts.is_empty(), "{attempts:?}\n{}", self.story());
        self
    }

    /// Exactly these events were written.
    #[track_caller]
    pub fn then<const N: usize>(self, kinds: [&str; N]) -> Given {
        if let Err(rejection) = &self.reply {
            panic!("refused: {rejection}\n{}", self.story());
        }
        assert_eq!(self.kinds, kinds, "\n{}", self.story());
        self
    }

    /// It was refused with this code, and nothing changed.
    #[track_caller]
    pub fn then_rejected(self, code: &str) -> Given {
        match &self.reply {
            Err(rejection) => assert_eq!(rejection.code(), code, "{rejection}"),
            Ok(reply) => panic!("accepted: {reply:?}\n{}", self.story()),
        }
        assert!(self.kinds.is_empty(), "{:?}", self.kinds);
        self
    }

    #[track_caller]
    pub fn then_reply(self, reply: Reply) -> Given {
        assert_eq!(self.reply.as_ref().ok(), Some(&reply), "{:?}\n{}", self.reply, self.story());
        self
    }

    #[track_caller]
    pub fn state(self, state: RunState) -> Given {
        assert_eq!(self.memory.working.head.state, Some(state), "\n{}", self.story());
        self
    }

    #[track_caller]
    pub fn step_is(self, path: &str, state: StepState) -> Given {
        assert_eq!(self.memory.rows.get(path).map(|row| row.state), Some(state), "{path}\n{}", self.story());
        self
    }

    #[track_caller]
    pub fn output(self, path: &str, json: &str) -> Given {
        assert_eq!(self.memory.output_of(path).map(|json| &**json), Some(json), "{path}\n{}", self.story());
        self
    }

    /// Every state in order.
    #[track_caller]
    pub fn states<const N: usize>(self, states: [RunState; N]) -> Given {
        let seen: Vec<RunState> = self.memory.log.iter().filter_map(|record| record.to_state).collect();
        assert_eq!(seen, states, "\n{}", self.story());
        self
    }

    pub fn check(self, check: impl FnOnce(&Given)) -> Given {
        check(&self);
        self
    }

    pub fn head(&self) -> &abide_core::run::Head {
        &self.memory.working.head
    }

    pub fn row(&self, path: &str) -> &Step {
        self.memory.rows.get(path).unwrap_or_else(|| panic!("no row {path}\n{}", self.story()))
    }

    /// The lease that was last given for a path, stale or not.
    pub fn holding(&self, path: &str) -> Holding {
        self.holdings.get(path).unwrap_or_else(|| panic!("{path} was never claimed")).0.clone()
    }

    pub fn reply(&self) -> Result<&Reply, &Rejection> {
        self.reply.as_ref()
    }

    /// The log can be folded again, byte for byte, and says nothing that cannot be.
    #[track_caller]
    pub fn log_holds(self) -> Given {
        assert_eq!(invariant::broken_log(&self.memory.log), []);
        let replayed = self.memory.replayed().expect("the log folds");
        assert_eq!(replayed.head, self.memory.working.head);
        self
    }

    pub fn story(&self) -> String {
        let line = |record: &abide_core::run::event::Record| {
            let step = record.step_id.as_ref().map_or("", Path::as_str);
            let payload: String = record.payload.get().chars().take(140).collect();
            format!("{:>3} {} {:<24} {step:<12} {payload}", record.seq, record.at, record.kind)
        };
        self.memory.log.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn act(&mut self, act: Act) -> Result<Reply, Rejection> {
        match act {
            Act::Start(start) => self.ask(Actor::user("starter"), Ask::Start(start)),
            Act::Claim(path, worker) => self.claim(path, worker),
            Act::Complete(path, output, outcome) => {
                let report = Report { output: Some(output.into()), outcome, ..Report::default() };
                self.as_worker(path, |holding| Ask::Complete { holding, report })
            }
            Act::Fail(path, fault) => self.as_worker(path, |holding| Ask::Fail { holding, fault: *fault }),
            Act::Block(path, on) => self.as_worker(path, |holding| Ask::Block { holding, on, message: None }),
            Act::Heartbeat(path) => self.as_worker(path, |holding| Ask::Heartbeat { holding, progress: None }),
            Act::Stopped(path) => self.as_worker(path, |holding| Ask::Canceled { holding }),
            Act::Callback(path, name) => self.act(Act::CallbackAt(path, name, name)),
            Act::CallbackAt(path, name, token) => {
                let (name, token_hash) = (name.to_owned(), Digest::of(token.as_bytes()));
                self.as_worker(path, |holding| Ask::Callback { holding, name, token_hash, expires_in: None })
            }
            Act::Effect(path, name, id, result) => self.as_worker(path, |holding| Ask::Effect {
                holding,
                name: name.map(Into::into),
                external_id: id.map(Into::into),
                result: result.map(Into::into),
            }),
            Act::Lose(path) => {
                let row = path.trim_end_matches(".probe").trim_end_matches(".undo");
                let step = self.memory.rows.get(row).expect("a row");
                self.now = step.lease_expires_at(self.around.serving_since).expect("a lease");
                self.ask(Actor::system(), Ask::Wake)
            }
            Act::Pass(span) => self.pass(span),
            Act::Skip(span) => {
                self.now = self.now + span;
                Ok(Reply::Done)
            }
            Act::Decide(step, by, approve) => {
                let ask = Ask::Decide {
                    step_id: step.map(Path::from),
                    by: by.into(),
                    approve,
                    comment: None,
                    form: None,
                    subject_digest: None,
                    via: None,
                };
                self.ask(Actor::user(by), ask)
            }
            Act::Ask(Ask::ChildEnded { path, outcome, .. }, by) => {
                let run_id = self.children.get(path.as_str()).cloned().unwrap_or_else(|| RunId::from("no child"));
                self.ask(Actor::user(by), Ask::ChildEnded { path, run_id, outcome })
            }
            Act::Ask(ask, by) => self.ask(Actor::user(by), ask),
        }
    }

    pub fn ask(&mut self, actor: Actor, ask: Ask) -> Result<Reply, Rejection> {
        let command = Command::new(actor, ask);
        let advanced = self.memory.apply(&self.definition, &command, &self.around, self.now)?;
        for effect in &advanced.effects {
            if let Effect::StartChild(child) = effect {
                self.children.insert(child.parent.step_id.to_string(), child.run_id.clone());
            }
        }
        self.effects.extend(advanced.effects);
        Ok(advanced.reply)
    }

    fn claim(&mut self, path: &'static str, worker: &'static str) -> Result<Reply, Rejection> {
        let row = path.trim_end_matches(".probe").trim_end_matches(".undo");
        let task = self.memory.rows.get(row).and_then(|row| row.task.clone());
        let task = task.unwrap_or_else(|| panic!("{path} has no task\n{}", self.story()));
        let suffix = match task.kind {
            TaskKind::Step | TaskKind::Body => "",
            TaskKind::Reconcile => ".probe",
            TaskKind::Compensate => ".undo",
        };
        assert!(path.ends_with(suffix), "{path} has a task of kind {:?}\n{}", task.kind, self.story());
        let worker = WorkerId::from(worker);
        let claim = Ask::Claim {
            path: Path::from(path),
            task_id: task.id.clone(),
            worker: worker.clone(),
            window: None,
            claim_id: None,
        };
        let reply = self.ask(Actor::worker(worker.as_str()), claim)?;
        if let Reply::Leased { epoch, .. } = reply {
            let holding = Holding { path: Path::from(path), task_id: task.id, epoch };
            self.holdings.insert(path.to_owned(), (holding, worker));
        }
        Ok(reply)
    }

    fn as_worker(&mut self, path: &str, ask: impl FnOnce(Holding) -> Ask) -> Result<Reply, Rejection> {
        let known = self.holdings.get(path).unwrap_or_else(|| panic!("{path} was never claimed\n{}", self.story()));
        let (holding, worker) = known.clone();
        self.ask(Actor::worker(worker.as_str()), ask(holding))
    }

    fn pass(&mut self, span: Span) -> Result<Reply, Rejection> {
        let until = self.now + span;
        while let Some(at) = self.memory.wake_at.filter(|at| *at <= until) {
            let before = (self.now, self.memory.wake_at);
            self.now = self.now.max(at);
            self.ask(Actor::system(), Ask::Wake)?;
            assert_ne!(before, (self.now, self.memory.wake_at), "a wake changed nothing\n{}", self.story());
        }
        self.now = until;
        self.ask(Actor::system(), Ask::Wake)
    }
}
