//! A run on a stage: workers and people do exactly what a test says, at the time it says.

use std::collections::BTreeMap;

use abide_core::contract::StepState;
use abide_core::contract::{FailureClass, RunState};
use abide_core::definition::{Definition, parse_duration};
use abide_core::explain::{
    Explanation, Handoff, NextAction, QueueFacts, Record, Surroundings, Triage, explain, handoff, next_actions, record,
    triage,
};
use abide_core::ids::{Namespace, Path, RunId, WorkerId};
use abide_core::play::BEGINNING;
use abide_core::run::command::{
    Actor, Ask, BlockOn, Command, Effect, Fault, Holding, Rejection, Reply, Report, Resolution, Start,
};
use abide_core::run::memory::Memory;
use abide_core::run::step::{Connection, Progress, Step, TaskKind};
use abide_core::run::{Around, ConnectionFacts};
use abide_core::time::Timestamp;
use serde_json::{Value, json};

pub const RUN: &str = "run_01KDVZ3C00000000000000PLAY";

#[derive(Clone)]
pub struct Stage {
    pub definition: Definition,
    pub memory: Memory,
    pub now: Timestamp,
    pub around: Around,
    pub surroundings: Surroundings,
    pub held: BTreeMap<Path, Holding>,
    /// What the rules asked to be done outside, in order.
    pub effects: Vec<Effect>,
}

impl Stage {
    pub fn new(document: &str, input: Value) -> Stage {
        Stage::start(document, Start::with_input(input.to_string()))
    }

    pub fn start(document: &str, start: Start) -> Stage {
        let definition = match Definition::parse(document) {
            Ok(parsed) => parsed.definition,
            Err(error) => panic!("{error:?}"),
        };
        let mut stage = Stage {
            definition,
            memory: Memory::new(RunId::from(RUN), Namespace::from("default")),
            now: BEGINNING,
            around: Around { serving_since: BEGINNING, ..Around::default() },
            surroundings: Surroundings { serving_since: BEGINNING, ..Surroundings::default() },
            held: BTreeMap::new(),
            effects: Vec::new(),
        };
        let start = Start { trace_id: start.trace_id.or(Some("trace-1".into())), ..start };
        stage.must(Actor::user("tess"), Ask::Start(Box::new(start)));
        stage
    }

    pub fn ask(&mut self, actor: Actor, ask: Ask) -> Result<Reply, Rejection> {
        let command = Command::new(actor, ask);
        let advanced = self.memory.apply(&self.definition, &command, &self.around, self.now)?;
        self.effects.extend(advanced.effects);
        Ok(advanced.reply)
    }

    pub fn must(&mut self, actor: Actor, ask: Ask) -> Reply {
        match self.ask(actor, ask.clone()) {
            Ok(reply) => reply,
            Err(rejection) => panic!("{ask:?} is refused: {rejection}"),
        }
    }

    pub fn user(&mut self, ask: Ask) -> &mut Stage {
        self.must(Actor::user("olga"), ask);
        self
    }

    /// Paths under which tasks can be claimed.
    pub fn ready(&self) -> Vec<Path> {
        self.memory.working.open().filter(|step| step.is_ready()).map(task_path).collect()
    }

    pub fn claim(&mut self, path: &str, worker: &str) -> &mut Stage {
        let step = self.memory.working.open().find(|step| step.is_ready() && task_path(step).as_str() == path);
        let task = step.and_then(|step| step.task.clone());
        let task = task.unwrap_or_else(|| panic!("{path} is not ready; ready are {:?}", self.ready()));
        let (path, task_id, worker) = (Path::from(path), task.id, WorkerId::from(worker));
        let ask = Ask::Claim {
            path: path.clone(),
            task_id: task_id.clone(),
            worker: worker.clone(),
            window: None,
            claim_id: None,
        };
        match self.must(Actor::worker(worker.as_str()), ask) {
            Reply::Leased { epoch, .. } => self.held.insert(path.clone(), Holding { path, task_id, epoch }),
            other => panic!("{other:?}"),
        };
        self
    }

    fn holding(&self, path: &str) -> Holding {
        self.held.get(path).cloned().unwrap_or_else(|| panic!("nobody holds {path}"))
    }

    pub fn complete(&mut self, path: &str, output: Value) -> &mut Stage {
        let report = Report { output: Some(output.to_string().into()), ..Report::default() };
        self.report(path, report)
    }

    pub fn report(&mut self, path: &str, report: Report) -> &mut Stage {
        let holding = self.holding(path);
        self.must(Actor::worker("worker"), Ask::Complete { holding, report });
        self
    }

    /// Claims and completes.
    pub fn work(&mut self, path: &str) -> &mut Stage {
        self.claim(path, "worker-1").complete(path, json!({ "done": path }))
    }

    pub fn fail(&mut self, path: &str, class: FailureClass, message: &str) -> &mut Stage {
        self.fault(path, Fault { class: Some(class), message: message.into(), ..Fault::default() })
    }

    pub fn fault(&mut self, path: &str, fault: Fault) -> &mut Stage {
        let holding = self.holding(path);
        self.must(Actor::worker("worker"), Ask::Fail { holding, fault });
        self
    }

    pub fn block(&mut self, path: &str, on: BlockOn) -> &mut Stage {
        let holding = self.holding(path);
        self.must(Actor::worker("worker"), Ask::Block { holding, on, message: None });
        self
    }

    pub fn beat(&mut self, path: &str, progress: Option<Progress>) -> &mut Stage {
        let holding = self.holding(path);
        self.must(Actor::worker("worker"), Ask::Heartbeat { holding, progress });
        self
    }

    /// Moves the clock; whatever is due on the way happens at its time.
    pub fn later(&mut self, span: &str) -> &mut Stage {
        let end = self.now + parse_duration(span).unwrap();
        while let Some(at) = self.memory.wake_at.filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.must(Actor::system(), Ask::Wake);
        }
        self.now = end;
        self
    }

    /// Moves the clock although something is due: the sweep has not come yet.
    pub fn look_later(&mut self, span: &str) -> &mut Stage {
        self.now = self.now + parse_duration(span).unwrap();
        self
    }

    pub fn broken(&mut self, tool: &str) -> &mut Stage {
        let connection = Connection { tool: tool.into(), account: "default".into() };
        self.around.connections.insert(connection, ConnectionFacts { broken: true, ..ConnectionFacts::default() });
        self
    }

    pub fn queue(&mut self, queue: &str, facts: QueueFacts) -> &mut Stage {
        self.surroundings.queues.insert(abide_core::ids::Queue::from(queue), facts);
        self
    }

    pub fn state(&self) -> RunState {
        self.memory.working.head.state.unwrap_or(RunState::Queued)
    }

    pub fn summary(&self) -> String {
        self.record().summary
    }

    pub fn record(&self) -> Record {
        record(&self.memory.working, &self.definition, &self.surroundings, self.now)
    }

    pub fn json(&self) -> Value {
        serde_json::to_value(self.record()).unwrap()
    }

    pub fn explain(&self) -> Explanation {
        explain(&self.memory.working, &self.definition, &self.surroundings, self.now)
    }

    pub fn triage(&self) -> Vec<Triage> {
        triage(&self.memory.working, &self.definition, &self.surroundings, self.now)
    }

    pub fn actions(&self) -> Vec<NextAction> {
        next_actions(&self.memory.working, &self.definition, &self.surroundings, self.now)
    }

    /// What is offered, as `id` or `id step`.
    pub fn offers(&self) -> Vec<String> {
        let name = |action: &NextAction| match &action.step_id {
            Some(step) => format!("{} {step}", action.id),
            None => action.id.to_owned(),
        };
        self.actions().iter().map(name).collect()
    }

    pub fn handoff(&self) -> Handoff {
        let rows: Vec<Step> = self.memory.rows.values().map(|row| (**row).clone()).collect();
        handoff(&self.memory.working, &rows, &self.definition, &self.surroundings, self.now)
    }
}

pub fn task_path(step: &Step) -> Path {
    let undoing = step.state == StepState::Compensating;
    match step.task.as_ref().map(|task| task.kind) {
        Some(TaskKind::Compensate) => step.path.undo(),
        Some(TaskKind::Reconcile) if undoing => step.path.undo().probe(),
        Some(TaskKind::Reconcile) => step.path.probe(),
        _ => step.path.clone(),
    }
}

/// The call that an action makes, read from its own body as a server would.
pub fn ask_of(action: &NextAction, fill: &Value) -> (Vec<String>, Ask) {
    let body = &action.body;
    let text = |name: &str| body[name].as_str().map(str::to_owned);
    let step_id = text("step_id").map(|path| Path::from(path.as_str()));
    let by = text("decision_by").unwrap_or_else(|| "bo".into());
    let groups = action.who.iter().filter_map(|who| who.strip_prefix("role:")).map(str::to_owned).collect();
    let decide = |approve| Ask::Decide {
        step_id: step_id.clone(),
        by,
        approve,
        comment: None,
        form: action.needs.contains(&"form").then(|| fill["form"].to_string().into()),
        subject_digest: serde_json::from_value(body["subject_digest"].clone()).ok(),
        via: None,
    };
    let last = action.href.rsplit('/').next().unwrap_or_default();
    assert!(action.href.starts_with(&format!("/v1/runs/{RUN}/")), "{}", action.href);
    let ask = match action.href.trim_start_matches(&format!("/v1/runs/{RUN}/")) {
        "approve" => decide(true),
        "reject" => decide(false),
        "reconnect" => Ask::Reconnect { tool: text("tool"), account: text("account"), generation: None },
        "resolve" => Ask::Resolve {
            step_id: step_id.expect("resolve names its step"),
            action: match body["action"].as_str().unwrap() {
                "retry" => Resolution::Retry { new_key: false },
                "complete" => Resolution::Complete { output: Some(body["output"].to_string().into()) },
                "correct" => Resolution::Correct { input: fill["input"].to_string().into() },
                "skip" => Resolution::Skip,
                "compensate" => Resolution::Compensate,
                "fail" => Resolution::Fail,
                other => panic!("{other}"),
            },
            reason: text("reason").expect("resolve gives a reason"),
        },
        "retry" => Ask::RetryNow,
        "resume" => Ask::Resume { one_step: body["steps"] == 1 },
        "pause" => Ask::Pause { reason: text("reason").expect("pause gives a reason") },
        "cancel" => Ask::Cancel {
            reason: text("reason").expect("cancel gives a reason"),
            undo: body["compensate"].as_bool(),
            grace: None,
        },
        rest if rest.starts_with("signals/") => {
            let payload = if action.needs.contains(&"payload") { &fill["payload"] } else { &body["payload"] };
            Ask::Signal { name: last.into(), payload: payload.to_string().into() }
        }
        other => panic!("no such call: {other}"),
    };
    (groups, ask)
}

/// Tries an action on a copy of the stage.
pub fn tries(stage: &Stage, action: &NextAction, fill: &Value) -> Result<Reply, Rejection> {
    let (groups, ask) = ask_of(action, fill);
    let mut copy = stage.clone();
    copy.around.groups = groups;
    copy.ask(Actor::user("olga"), ask)
}
