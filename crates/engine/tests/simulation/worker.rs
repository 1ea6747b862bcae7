//! Workers: most do what they should; some are slow, some die, some sleep past their lease and then answer.

use std::collections::BTreeMap;

use abide_core::contract::{FailureClass, StepState};
use abide_core::definition::{EffectKind, OnCancel};
use abide_core::ids::{Digest, Handler, Namespace, Path, Queue, WorkflowId};
use abide_core::run::command::{
    Actor, ApprovalAsked, Ask, BlockOn, CodedWait, Fault, Holding, Json, Next, Outcome, Reply, Report, StepBegin,
    StepDone, StepWait,
};
use abide_core::run::key_of_step;
use abide_core::run::step::{Progress, TaskKind};
use abide_core::time::Span;
use abide_engine::LeasedTask;
use abide_engine::request::{Answer, Claim, Error};
use abide_engine::store::Wanted;

use crate::judge::{Judged, broken};
use crate::letter::{Asker, Heard, Letter, Wish};
use crate::outside::Deed;
use crate::world::{Event, MILLI, SECOND, World};

#[derive(Debug)]
pub struct Worker {
    /// A new name for every process.
    pub name: String,
    incarnation: u32,
    pub namespace: Namespace,
    handlers: Option<Vec<Handler>>,
    slots: usize,
    jobs: BTreeMap<u64, Job>,
    claims: u64,
    down: bool,
}

/// What a worker does about one task.
#[derive(Debug)]
struct Job {
    task: LeasedTask,
    window: i64,
    /// It believes to hold its lease until then, by its own watch.
    believed_until: i64,
    plan: Plan,
    /// Acts even when it knows better.
    zombie: bool,
    performed: bool,
    ending: Option<Ask>,
    tries: u32,
    body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Good,
    WithReceipt,
    ReceiptThenDie,
    Fail(FailureClass),
    /// Says that nobody knows, after having done it or not.
    Unsure(bool),
    Die(bool),
    Block,
    GiveBack,
}

/// Where the body of a coded workflow is.
#[derive(Debug, Default)]
struct Body {
    at: usize,
    done: Vec<StepDone>,
    /// The call whose answer it waits for; it hears it once.
    call: Option<u64>,
    /// The engine let it begin the step at which it is, and it has not executed it yet.
    begun: bool,
}

const SCRIPT: [(&str, &str); 6] =
    [("s0", "step"), ("s1", "external"), ("nap", "sleep"), ("gate", "approval"), ("kid", "child"), ("s2", "step")];

impl Worker {
    pub fn new(number: usize, namespace: Namespace) -> Worker {
        let named: Vec<Handler> = ["coded@3", "p.find", "u.undo", "t.one", "t.two", "x.charge", "t.leaf"]
            .iter()
            .map(|name| Handler::from(*name))
            .collect();
        Worker {
            name: format!("w{number}.0"),
            incarnation: 0,
            namespace,
            handlers: number.is_multiple_of(2).then_some(named),
            slots: 1 + number % 4,
            jobs: BTreeMap::new(),
            claims: 0,
            down: false,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl Job {
    fn holding(&self) -> Holding {
        let task = &self.task;
        Holding { path: task.step_id.clone(), task_id: task.task_id.clone(), epoch: task.epoch }
    }

    fn acts_outside(&self) -> bool {
        self.task.handler.as_str().starts_with("x.") && matches!(self.task.kind, TaskKind::Step | TaskKind::Compensate)
    }
}

impl World {
    /// A worker asks for work.
    pub fn poll(&mut self, w: usize) {
        let calm = self.calm;
        let pause = if calm { SECOND } else { self.random.between(500 * MILLI, 30 * SECOND) };
        let worker = &mut self.workers[w];
        if worker.down || worker.jobs.len() >= worker.slots {
            return self.at(pause, Event::Poll(w));
        }
        worker.claims += 1;
        let claim_id = Some(format!("{}-{}", worker.name, worker.claims)).filter(|_| !worker.claims.is_multiple_of(8));
        let wanted = Wanted { queues: vec![Queue::from("default")], handlers: worker.handlers.clone() };
        let (name, max, namespace) =
            (worker.name.as_str().into(), worker.slots - worker.jobs.len(), worker.namespace.clone());
        let window = (!self.random.chance(300)).then(|| Span::from_secs(self.random.between(10, 40) as u64));
        let until = self.random.chance(500).then(|| self.engine_clock() + Span::from_secs(self.random.below(5)));
        let claim = Claim { worker: name, wanted, max, window, claim_id, until };
        self.send_new(Asker::Poll(w), namespace, None, Wish::Claim(claim));
    }

    pub fn poll_heard(&mut self, w: usize, letter: Letter, heard: Heard) {
        let Wish::Claim(claim) = &letter.wish else { return };
        if self.workers[w].name != claim.worker.as_str() {
            return;
        }
        let pause = self.random.between(50 * MILLI, if self.calm { 3 } else { 70 } * SECOND);
        match heard {
            Heard::Answer(Ok(Answer::Tasks(tasks))) => {
                for task in tasks {
                    self.take_job(w, task, letter.sent_at);
                }
            }
            Heard::Nothing if claim.claim_id.is_some() && letter.retries < 8 => return self.resend(letter, pause),
            _ => {}
        }
        self.at(pause, Event::Poll(w));
    }

    fn take_job(&mut self, w: usize, task: LeasedTask, sent_at: i64) {
        let window = task.heartbeat_every_ms as i64 * 3 * MILLI;
        let (plan, zombie) = self.plan(&task);
        let believed_until = sent_at + window;
        let job = Job {
            task,
            window,
            believed_until,
            plan,
            zombie,
            performed: false,
            ending: None,
            tries: 0,
            body: Body::default(),
        };
        self.jobs_made += 1;
        let id = self.jobs_made;
        let is_body = job.task.kind == TaskKind::Body;
        self.workers[w].jobs.insert(id, job);
        let work = self.work_time();
        if zombie {
            self.count("zombie");
            // Some are late by much, some by so little that nobody has noticed yet.
            let by = if self.random.chance(500) { 2 * SECOND } else { 90 * SECOND };
            let late = (believed_until - self.t).max(0) + self.random.between(0, by);
            return self.at(late, Event::Work(w, id));
        }
        self.at(0, Event::Beat(w, id));
        if is_body {
            self.at(100 * MILLI, Event::Say(w, id));
        } else {
            self.at(work, Event::Work(w, id));
        }
    }

    fn work_time(&mut self) -> i64 {
        match self.random.below(20) {
            _ if self.calm => self.random.between(50 * MILLI, 2 * SECOND),
            0 => self.random.between(30 * SECOND, 150 * SECOND),
            1..=4 => self.random.between(5 * SECOND, 30 * SECOND),
            _ => self.random.between(20 * MILLI, 4 * SECOND),
        }
    }

    fn plan(&mut self, task: &LeasedTask) -> (Plan, bool) {
        if self.calm {
            return (Plan::Good, false);
        }
        let zombie = self.random.chance(60) && task.kind != TaskKind::Body;
        let external = task.handler.as_str().starts_with("x.");
        let plan = match (task.kind, self.random.below(100)) {
            (_, 0..=4) => Plan::Die(self.random.chance(500)),
            (TaskKind::Body, _) => Plan::Good,
            (TaskKind::Reconcile, 5..=12) => Plan::Fail(FailureClass::Transient),
            (TaskKind::Reconcile, _) => Plan::Good,
            (TaskKind::Compensate, 5..=24) => Plan::Fail(self.some_class()),
            (_, 5..=9) if external => Plan::Unsure(self.random.chance(500)),
            (_, 10..=24) if external => Plan::WithReceipt,
            (_, 25..=27) if external => Plan::ReceiptThenDie,
            (TaskKind::Compensate, _) => Plan::Good,
            (TaskKind::Step, 28..=40) => Plan::Fail(self.some_class()),
            (TaskKind::Step, 41..=48) => Plan::Block,
            (TaskKind::Step, 49..=50) => Plan::GiveBack,
            (TaskKind::Step, _) => Plan::Good,
        };
        (plan, zombie)
    }

    fn some_class(&mut self) -> FailureClass {
        let classes = [
            FailureClass::Transient,
            FailureClass::Transient,
            FailureClass::Transient,
            FailureClass::RateLimited,
            FailureClass::Validation,
            FailureClass::Auth,
            FailureClass::Auth,
            FailureClass::Permission,
            FailureClass::Conflict,
            FailureClass::Fatal,
        ];
        *self.random.pick(&classes).unwrap_or(&FailureClass::Transient)
    }

    fn job(&mut self, w: usize, id: u64) -> Option<&mut Job> {
        self.workers.get_mut(w)?.jobs.get_mut(&id)
    }

    fn drop_job(&mut self, w: usize, id: u64) {
        self.workers[w].jobs.remove(&id);
    }

    /// The process is gone with everything it had in hand; another one comes.
    fn worker_dies(&mut self, w: usize) {
        self.count("worker died");
        let worker = &mut self.workers[w];
        worker.jobs.clear();
        worker.incarnation += 1;
        worker.name = format!("w{w}.{}", worker.incarnation);
        let pause = self.random.between(2 * SECOND, 60 * SECOND);
        self.at(pause, Event::Poll(w));
    }

    pub fn beat(&mut self, w: usize, id: u64) {
        let Some(job) = self.job(w, id) else { return };
        let (holding, every) = (job.holding(), job.window / 3);
        let progress = Some(Progress { done: 1, total: None, message: None, at: None });
        self.say(w, id, Ask::Heartbeat { holding, progress });
        self.at(every, Event::Beat(w, id));
    }

    fn say(&mut self, w: usize, id: u64, ask: Ask) {
        let worker = &self.workers[w];
        let Some(job) = worker.jobs.get(&id) else { return };
        let (namespace, actor) = (worker.namespace.clone(), Actor::worker(worker.name.as_str()));
        let claim_next = matches!(ask, Ask::Complete { .. }) && self.random.chance(300);
        let (run_id, ask) = (job.task.run_id.clone(), Box::new(ask));
        let wish = Wish::Run { run_id, actor, ask, groups: Vec::new(), expected_seq: None, claim_next };
        self.send_new(Asker::Job(w, id), namespace, None, wish);
    }

    /// Does what the task asks for, and tells the engine.
    pub fn work(&mut self, w: usize, id: u64) -> Judged {
        let t = self.t;
        let Some(job) = self.job(w, id) else { return Ok(()) };
        if job.ending.is_some() {
            return Ok(());
        }
        // A margin for what a clock may jump unseen.
        if !job.zombie && t + SECOND >= job.believed_until {
            job.tries += 1;
            if job.tries > 20 {
                self.drop_job(w, id);
            } else {
                self.at(2 * SECOND, Event::Work(w, id));
            }
            return Ok(());
        }
        let (plan, kind) = (job.plan, job.task.kind);
        if kind == TaskKind::Body {
            return self.body_step(w, id);
        }
        match plan {
            Plan::Good | Plan::WithReceipt | Plan::ReceiptThenDie | Plan::Unsure(true) | Plan::Die(true) => {
                self.perform(w, id)?;
            }
            Plan::Fail(_) | Plan::Unsure(false) | Plan::Die(false) | Plan::Block | Plan::GiveBack => {}
        }
        if matches!(plan, Plan::Die(_)) {
            if self.random.chance(500) {
                self.worker_dies(w);
            } else {
                self.drop_job(w, id);
            }
            return Ok(());
        }
        if matches!(plan, Plan::WithReceipt | Plan::ReceiptThenDie) {
            self.receipt(w, id);
        }
        if plan == Plan::ReceiptThenDie {
            self.drop_job(w, id);
            return Ok(());
        }
        let Some(ask) = self.ending(w, id, plan) else { return Ok(()) };
        if let Some(job) = self.job(w, id) {
            job.ending = Some(ask.clone());
        }
        self.say(w, id, ask);
        Ok(())
    }

    fn receipt(&mut self, w: usize, id: u64) {
        let Some(job) = self.job(w, id) else { return };
        let holding = job.holding();
        let result = Some(Json::from(r#"{"done":true,"x":1}"#));
        if self.random.chance(300) {
            let intent =
                Ask::Effect { holding: holding.clone(), name: Some("call".into()), external_id: None, result: None };
            self.say(w, id, intent);
        }
        self.say(w, id, Ask::Effect { holding, name: None, external_id: Some(format!("ext{id}")), result });
    }

    fn perform(&mut self, w: usize, id: u64) -> Judged {
        let (t, name) = (self.t, self.workers[w].name.clone());
        let Some(job) = self.job(w, id) else { return Ok(()) };
        if !job.acts_outside() {
            return Ok(());
        }
        job.performed = true;
        let place = format!("{}/{} lease {}", job.task.run_id, job.task.step_id, job.task.epoch);
        let late = t + SECOND >= job.believed_until;
        let key = job.task.idempotency_key;
        self.do_outside(key, Deed { at: t, worker: name, place, late })
    }

    fn do_outside(&mut self, key: Digest, deed: Deed) -> Judged {
        match self.outside.perform(key, deed, true) {
            Some(twice) => broken("effect", format!("an effect happened twice: {twice}")),
            None => Ok(()),
        }
    }

    /// How the task ends for this worker.
    fn ending(&mut self, w: usize, id: u64, plan: Plan) -> Option<Ask> {
        let job = self.workers[w].jobs.get(&id)?;
        let (holding, kind, key) = (job.holding(), job.task.kind, job.task.idempotency_key);
        let fault = |class| Fault {
            class: Some(class),
            message: "it went wrong".into(),
            retry_after: (class == FailureClass::RateLimited).then_some(Span::from_secs(7)),
            tool: (class == FailureClass::Auth).then(|| "drive".into()),
            account: (class == FailureClass::Auth).then(|| "acme".into()),
            ..Fault::default()
        };
        Some(match plan {
            Plan::Fail(class) => Ask::Fail { holding, fault: fault(class) },
            Plan::Unsure(_) => Ask::Fail { holding, fault: fault(FailureClass::OutcomeUnknown) },
            Plan::GiveBack => Ask::Canceled { holding },
            Plan::Block => Ask::Block { holding: holding.clone(), on: self.block_on(w, id, holding)?, message: None },
            Plan::Good | Plan::WithReceipt | Plan::ReceiptThenDie | Plan::Die(_) => {
                let output = match kind {
                    TaskKind::Reconcile if self.outside.happened(&key) => {
                        r#"{"found":true,"output":{"done":true,"x":1}}"#
                    }
                    TaskKind::Reconcile => r#"{"found":false}"#,
                    _ if !self.calm && self.random.chance(100) => r#"{"done":false,"again":true}"#,
                    _ if !self.calm && self.random.chance(20) => "null",
                    _ => r#"{"done":true,"x":1}"#,
                };
                let outcome = match self.random.below(100) {
                    _ if self.calm => Outcome::Ok,
                    0 => Outcome::Noop,
                    1..=4 => Outcome::Break,
                    _ => Outcome::Ok,
                };
                Ask::Complete { holding, report: Report { output: Some(output.into()), outcome, ..Report::default() } }
            }
        })
    }

    fn block_on(&mut self, w: usize, id: u64, holding: Holding) -> Option<BlockOn> {
        let until = self.engine_clock() + Span::from_secs(30);
        Some(match self.random.below(7) {
            0 | 1 => BlockOn::Auth { tool: "drive".into(), account: Some("acme".into()) },
            2 => {
                let token_hash = Digest::of(format!("{w}/{id}").as_bytes());
                let path = holding.path.clone();
                let run_id = self.workers[w].jobs.get(&id)?.task.run_id.clone();
                self.say(w, id, Ask::Callback { holding, name: "cb".into(), token_hash, expires_in: None });
                self.callbacks.push((run_id, path, token_hash));
                BlockOn::Callback { name: "cb".into(), deadline: Some(Span::from_secs(300)) }
            }
            3 => BlockOn::Signal { name: "left".into(), deadline: Some(Span::from_secs(400)) },
            4 => BlockOn::Approval(Box::new(approval())),
            5 => BlockOn::Timer { until },
            _ => BlockOn::Child { workflow: WorkflowId::from("leaf"), input: "{}".into() },
        })
    }

    pub fn job_heard(&mut self, w: usize, id: u64, letter: Letter, heard: Heard) {
        let Wish::Run { ask, .. } = &letter.wish else { return };
        let told = match &heard {
            Heard::Answer(Ok(Answer::Run(told))) => Some(told),
            _ => None,
        };
        // What was leased along with an answer is the worker's, whatever became of the job.
        if let Some(task) = told.and_then(|told| told.task.clone())
            && self.workers[w].name == letter.actor().id
        {
            self.take_job(w, task, letter.sent_at);
        }
        let Some(job) = self.job(w, id) else { return };
        match (&**ask, &heard) {
            (Ask::Heartbeat { .. }, Heard::Answer(Ok(_))) => {
                let Some(Reply::Beat { stop, .. }) = told.map(|told| &told.reply) else { return };
                job.believed_until = job.believed_until.max(letter.sent_at + job.window);
                if *stop && job.ending.is_none() && !job.performed {
                    let ask = Ask::Canceled { holding: job.holding() };
                    job.ending = Some(ask.clone());
                    self.say(w, id, ask);
                }
            }
            (Ask::Heartbeat { .. }, Heard::Answer(Err(Error::Rejected { .. }))) if job.ending.is_none() => {
                if !job.zombie {
                    self.drop_job(w, id);
                }
            }
            (Ask::Heartbeat { .. } | Ask::Effect { .. } | Ask::Callback { .. }, _) => {}
            (_, Heard::Answer(Err(Error::Rejected { .. }))) => self.drop_job(w, id),
            (_, Heard::Answer(Err(_)) | Heard::Nothing) => {
                if letter.retries < 6 {
                    let pause = self.random.between(SECOND, 5 * SECOND);
                    self.resend(letter, pause);
                } else {
                    self.drop_job(w, id);
                }
            }
            (Ask::Steps { .. }, Heard::Answer(Ok(_))) if job.body.call.take() != Some(letter.request) => {}
            (Ask::Steps { .. }, Heard::Answer(Ok(_))) => self.body_heard(w, id, told.map(|told| told.reply.clone())),
            (_, Heard::Answer(Ok(_))) => self.drop_job(w, id),
        }
    }

    /// The body asks for its next step, and says what the last one gave.
    pub fn body_says(&mut self, w: usize, id: u64) {
        let until = self.engine_clock() + Span::from_secs(20);
        let Some(job) = self.job(w, id) else { return };
        let (holding, done) = (job.holding(), std::mem::take(&mut job.body.done));
        let (mut begin, mut wait) = (Vec::new(), Vec::new());
        match SCRIPT.get(job.body.at) {
            Some((name, "step" | "external")) => begin.push(step_begin(name)),
            Some((name, "sleep")) => wait.push(StepWait { step_id: Path::from(*name), on: CodedWait::Sleep { until } }),
            Some((name, "approval")) => {
                wait.push(StepWait { step_id: Path::from(*name), on: CodedWait::Approval(Box::new(approval())) });
            }
            Some((name, _)) => wait.push(StepWait {
                step_id: Path::from(*name),
                on: CodedWait::Child {
                    workflow: WorkflowId::from("leaf"),
                    version: None,
                    input: "{}".into(),
                    wait: true,
                    on_cancel: OnCancel::Cancel,
                    deadline: None,
                    at_deadline: None,
                },
            }),
            None if done.is_empty() => {
                let report = Report { output: Some("1".into()), ..Report::default() };
                let ask = Ask::Complete { holding, report };
                job.ending = Some(ask.clone());
                return self.say(w, id, ask);
            }
            None => {}
        }
        self.say(w, id, Ask::Steps { holding, done, begin, wait, busy: false, beside: false });
        let call = Some(self.requests);
        if let Some(job) = self.job(w, id) {
            job.body.call = call;
        }
    }

    fn body_heard(&mut self, w: usize, id: u64, reply: Option<Reply>) {
        let Some(Reply::Body { next, waits }) = reply else { return self.drop_job(w, id) };
        let Some(job) = self.workers[w].jobs.get(&id) else { return };
        match next {
            Next::Released => return self.drop_job(w, id),
            Next::Canceled => {
                let ask = Ask::Canceled { holding: job.holding() };
                return self.say(w, id, ask);
            }
            Next::Continue => {}
        }
        let Some((name, _)) = SCRIPT.get(job.body.at) else { return self.at(50 * MILLI, Event::Say(w, id)) };
        let state = self.judge.of(&job.task.run_id).and_then(|seen| Some(seen.run.step(name)?.state));
        let pause = waits.iter().map(|(_, pause)| pause.micros() as i64).max();
        if let Some(pause) = pause {
            if let Some(job) = self.job(w, id) {
                job.body.at = waits.iter().filter_map(|(path, _)| place_of(path)).min().unwrap_or(job.body.at);
            }
            return self.at(pause, Event::Say(w, id));
        }
        match state {
            Some(StepState::Running) => {
                let work = self.work_time();
                if let Some(job) = self.job(w, id) {
                    job.body.begun = true;
                }
                self.at(work, Event::Work(w, id));
            }
            Some(state) if state.is_ended() => {
                if let Some(job) = self.job(w, id) {
                    job.body.at += 1;
                }
                self.at(20 * MILLI, Event::Say(w, id));
            }
            _ => self.at(3 * SECOND, Event::Say(w, id)),
        }
    }

    /// The body executes one of its steps.
    fn body_step(&mut self, w: usize, id: u64) -> Judged {
        if !self.job(w, id).is_some_and(|job| std::mem::take(&mut job.body.begun)) {
            return Ok(());
        }
        if !self.calm && self.random.chance(50) {
            self.worker_dies(w);
            return Ok(());
        }
        let fails = !self.calm && self.random.chance(120);
        let (t, worker) = (self.t, self.workers[w].name.clone());
        let Some(job) = self.workers[w].jobs.get(&id) else { return Ok(()) };
        let Some((name, kind)) = SCRIPT.get(job.body.at) else { return Ok(()) };
        let path = Path::from(*name);
        let key = self
            .judge
            .of(&job.task.run_id)
            .and_then(|seen| Some(key_of_step(&seen.run.head, seen.run.step(name)?, &path, None)));
        let begun_at = self.judge.of(&job.task.run_id).and_then(|seen| Some(seen.run.step(name)?.since));
        let result = if fails {
            Err(Fault { class: Some(FailureClass::Transient), message: "no".into(), ..Fault::default() })
        } else {
            if let (Some(key), "external") = (key, *kind) {
                let place = format!("{}/{path} lease {}", job.task.run_id, job.task.epoch);
                self.do_outside(key, Deed { at: t, worker, place, late: false })?;
            }
            Ok(Report { output: Some("1".into()), ..Report::default() })
        };
        let Some(job) = self.job(w, id) else { return Ok(()) };
        job.body.done.push(StepDone { step_id: path, begun_at, result });
        job.body.at += 1;
        self.body_says(w, id);
        Ok(())
    }
}

fn place_of(path: &Path) -> Option<usize> {
    SCRIPT.iter().position(|(name, _)| *name == path.as_str())
}

fn step_begin(name: &str) -> StepBegin {
    let external = name == "s1";
    StepBegin {
        step_id: Path::from(name),
        effect: if external { EffectKind::External } else { EffectKind::None },
        reconcile: external.then(|| Handler::from("p.find")),
        compensate: external.then(|| Handler::from("u.undo")),
        timeout: None,
        retry: None,
        input_digest: None,
    }
}

pub fn approval() -> ApprovalAsked {
    ApprovalAsked {
        title: "May I?".into(),
        subject: r#"{"what":1}"#.into(),
        approvers: vec!["ana".into()],
        quorum: 1,
        not_requester: false,
        deadline: None,
        at_deadline: None,
        form: None,
    }
}
