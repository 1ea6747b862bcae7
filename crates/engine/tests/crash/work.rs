//! The workflows of the load, and what a worker does with a task: always the same for the same lease, so that whoever
//! takes a lease over after a crash repeats exactly what was said before it.

use abide_core::ids::{Digest, Epoch, Handler, Path, Queue, RunId, TaskId, WorkerId};
use abide_core::run::command::{Actor, Ask, BlockOn, Command, Fault, Holding, Report};
use abide_engine::request::{Claim, Idempotency};
use abide_engine::store::Wanted;
use abide_engine::{Answer, Engine, Error, LeasedTask, NewRun, Request, Told, What};

/// Leases that outlive every test, except those of `fragile`.
pub const DOCUMENTS: &[(&str, &str)] = &[
    (
        "plain",
        "workflow: plain\nsteps:\n  - { id: one, task: a, lease: 10m }\n  - { id: two, task: b, lease: 10m, with: { n: '${{ steps.one.output.n }}' } }\n",
    ),
    (
        "flaky",
        "workflow: flaky\nsteps:\n  - { id: only, task: flaky, lease: 10m, retry: { max_attempts: 1000, first: 10ms, max: 20ms, jitter: 0 } }\n",
    ),
    (
        "gate",
        "workflow: gate\nsteps:\n  - { id: ask, approval: { title: 'ok?', approvers: [ana], deadline: 1h } }\n  - { id: then, task: a, lease: 10m }\n",
    ),
    ("wait", "workflow: wait\nsteps:\n  - { id: hear, signal: go }\n  - { id: then, task: b, lease: 10m }\n"),
    ("login", "workflow: login\nsteps:\n  - { id: only, task: drive, lease: 10m }\n"),
    (
        "family",
        "workflow: family\nsteps:\n  - { id: kids, for_each: '[1, 2]', child: plain, with: { n: '${{ item }}' } }\n",
    ),
    (
        "fragile",
        "workflow: fragile\nsteps:\n  - { id: only, task: drop, lease: 300ms, retry: { max_attempts: 1000 } }\n",
    ),
    ("doomed", "workflow: doomed\nsteps:\n  - { id: one, task: a, lease: 10m }\n  - { id: nap, sleep: 1h }\n"),
];

pub const HANDLERS: &[&str] = &["a", "b", "flaky", "drive", "drop"];
/// One name: two different workers that are lost on the same input would be a reason to ask a person.
pub const WORKER: &str = "w";

pub fn workflow_of(key: &str) -> &'static str {
    DOCUMENTS[(chance(key) % DOCUMENTS.len() as u64) as usize].0
}

fn chance(text: &str) -> u64 {
    u64::from_le_bytes(Digest::of(text.as_bytes()).0[..8].try_into().expect("eight bytes"))
}

/// A lease that somebody holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    pub run: RunId,
    pub path: Path,
    pub task: TaskId,
    pub epoch: Epoch,
    pub handler: String,
}

impl Held {
    pub fn of(task: &LeasedTask) -> Held {
        Held {
            run: task.run_id.clone(),
            path: task.step_id.clone(),
            task: task.task_id.clone(),
            epoch: task.epoch,
            handler: task.handler.to_string(),
        }
    }

    pub fn line(&self) -> String {
        format!("{} {} {} {} {}", self.run, self.path, self.task, self.epoch.0, self.handler)
    }

    pub fn parse(text: &str) -> Option<Held> {
        let mut words = text.split(' ');
        Some(Held {
            run: RunId::from(words.next()?),
            path: Path::from(words.next()?),
            task: TaskId::from(words.next()?),
            epoch: Epoch(words.next()?.parse().ok()?),
            handler: words.next()?.to_owned(),
        })
    }

    /// What this lease leads to.
    pub fn verb(&self) -> &'static str {
        let chance = chance(&format!("{}{}", self.task, self.epoch.0));
        match (self.handler.as_str(), chance % 3) {
            ("flaky", 0) => "fail",
            ("drive", 0 | 1) => "block",
            ("drop", 0) => "forget",
            _ => "complete",
        }
    }

    fn holding(&self) -> Holding {
        Holding { path: self.path.clone(), task_id: self.task.clone(), epoch: self.epoch }
    }

    pub async fn beat(&self, engine: &Engine) -> Result<Told, Error> {
        let ask = Ask::Heartbeat { holding: self.holding(), progress: None };
        engine.command(&self.run, Command::new(Actor::worker(WORKER), ask)).await
    }

    /// Says what it leads to. The same lease always says the same.
    pub async fn report(&self, engine: &Engine) -> Result<Told, Error> {
        let holding = self.holding();
        let ask = match self.verb() {
            "fail" => {
                let fault = Fault { message: "not now".into(), ..Fault::default() };
                Ask::Fail { holding, fault }
            }
            "block" => {
                let on = BlockOn::Auth { tool: "drive".into(), account: Some("ana".into()) };
                Ask::Block { holding, on, message: None }
            }
            _ => {
                let output = Some(format!("{{\"n\":{}}}", self.epoch.0).into());
                Ask::Complete { holding, report: Report { output, ..Report::default() } }
            }
        };
        engine.command(&self.run, Command::new(Actor::worker(WORKER), ask)).await
    }
}

pub async fn register(engine: &Engine) {
    for (name, document) in DOCUMENTS {
        if let Err(error) = engine.register(document).await {
            panic!("{name}: {error}");
        }
    }
}

/// Starts a run with a key, which is also its label.
pub async fn start(engine: &Engine, key: &str) -> Result<Told, Error> {
    start_of(engine, key, workflow_of(key)).await
}

pub async fn start_of(engine: &Engine, key: &str, workflow: &str) -> Result<Told, Error> {
    start_padded(engine, key, workflow, "").await
}

/// With an input as large as one wants.
pub async fn start_padded(engine: &Engine, key: &str, workflow: &str, pad: &str) -> Result<Told, Error> {
    let mut new = NewRun::of(workflow, format!("{{\"key\":\"{key}\",\"pad\":\"{pad}\"}}"), Actor::user("ben"));
    new.start.labels.insert("key".into(), key.into());
    keyed(engine, key, What::Start(Box::new(new))).await
}

/// Asks under an idempotency key.
pub async fn keyed(engine: &Engine, key: &str, what: What) -> Result<Told, Error> {
    let idempotency = Some(Idempotency::new(key, Digest::of(key.as_bytes())));
    match engine.ask(Request { namespace: engine.namespace().clone(), idempotency, what }).await? {
        Answer::Run(told) => Ok(*told),
        other => panic!("{other:?} is no answer to this"),
    }
}

pub fn claim(worker: &str, handlers: &[&str], max: usize) -> Claim {
    let handlers = Some(handlers.iter().map(|handler| Handler::from(*handler)).collect());
    let wanted = Wanted { queues: vec![Queue::from("default")], handlers };
    Claim { worker: WorkerId::from(worker), wanted, max, window: None, claim_id: None, until: None }
}
