//! What a child process does: it opens an engine, works as hard as it can, and says what was acknowledged.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::ids::RunId;
use abide_core::run::command::{Actor, Ask, Command};
use abide_core::time::Span;
use abide_engine::archive::Retention;
use abide_engine::push::{Push, PushOptions};
use abide_engine::request::{Claim, ToRun};
use abide_engine::{Engine, Error, Filter, Options, What};

use crate::work::{self, Held};
use crate::{Dice, PATIENCE, runtime};

/// Says something to the parent. It counts when the parent has read it, so it leaves at once.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@ {text}").and_then(|()| out.flush());
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// So much is added to the input of every run.
fn pad() -> String {
    "x".repeat(setting("ABIDE_CRASH_PAD").and_then(|size| size.parse().ok()).unwrap_or(0))
}

pub fn play(role: &str) {
    // The name of the test stands on this line already.
    println!();
    let data = PathBuf::from(setting("ABIDE_CRASH_DATA").expect("a data directory"));
    match role {
        "load" => runtime().block_on(load(data)),
        "start" => runtime().block_on(start_runs(data)),
        "successor" => runtime().block_on(succeed(data)),
        "open" => runtime().block_on(only_open(data)),
        "push" => runtime().block_on(push(data)),
        "worker" => worker(),
        other => panic!("nobody plays {other}"),
    }
}

/// Everything is moved to the archive as soon as it has succeeded or was canceled.
pub fn options() -> Options {
    let soon = Span::from_millis(1);
    let retention = Retention::default().with(RunState::Succeeded, soon).with(RunState::Canceled, soon);
    Options { retention, ..Options::default() }
}

/// Opens, says so, and waits to be killed or told to stop.
async fn only_open(data: PathBuf) {
    match Engine::open_with(&data, options()) {
        Ok(_engine) => {
            say("open");
            tokio::time::sleep(PATIENCE).await;
        }
        Err(error) => {
            say(&format!("refused {error}"));
            std::process::exit(3);
        }
    }
}

/// Many starts at once, each under its key: `ABIDE_CRASH_KEYS` of them, or without end.
async fn start_runs(data: PathBuf) {
    let engine = match Engine::open_with(&data, options()) {
        Ok(engine) => engine,
        Err(error) => {
            say(&format!("refused {error}"));
            std::process::exit(3);
        }
    };
    work::register(&engine).await;
    say("open");
    let number = |name: &str| setting(name).and_then(|value| value.parse::<usize>().ok());
    let keys = number("ABIDE_CRASH_KEYS").unwrap_or(usize::MAX);
    let errors = number("ABIDE_CRASH_ERRORS").unwrap_or(1);
    let pad = pad();
    let prefix = setting("ABIDE_CRASH_PREFIX").unwrap_or_else(|| "k".into());
    if let Some(after) = number("ABIDE_CRASH_STOP_AFTER_MS") {
        let engine = engine.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after as u64)).await;
            engine.shutdown().await;
        });
    }
    if setting("ABIDE_CRASH_HOARD").is_some() {
        std::thread::spawn(hoard);
    }
    if let Some(beats) = number("ABIDE_CRASH_HOLD") {
        let (engine, held) = (engine.clone(), take_hold(&engine).await);
        tokio::spawn(async move { hold(&engine, held, beats as u64).await });
    }
    let lanes = number("ABIDE_CRASH_LANES").unwrap_or(16);
    let tasks: Vec<_> = (0..lanes)
        .map(|lane| {
            let (engine, prefix, pad) = (engine.clone(), prefix.clone(), pad.clone());
            tokio::spawn(async move {
                let mut failed = 0;
                for n in (lane..keys).step_by(lanes) {
                    let key = format!("{prefix}{n}");
                    say(&format!("try start {key}"));
                    match work::start_padded(&engine, &key, "plain", &pad).await {
                        Ok(told) => {
                            if told.replayed {
                                say(&format!("replayed {key}"));
                            }
                            say(&format!("ack start {key} {} {}", told.run_id, told.seq));
                        }
                        Err(error) => {
                            say(&format!("error {key} {}", error.code()));
                            failed += 1;
                        }
                    }
                    if failed >= errors {
                        break;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        let _ = task.await;
    }
    engine.shutdown().await;
    say("end");
}

/// Takes ever more memory, until the system has enough of it.
fn hoard() {
    let mut hoarded = Vec::new();
    loop {
        hoarded.push(vec![1_u8; 1 << 20]);
        std::hint::black_box(&hoarded);
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// Sends what `http` steps ask for, and says how each run ended.
async fn push(data: PathBuf) {
    let engine = Engine::open(&data).expect("an engine");
    let allow = vec![setting("ABIDE_CRASH_TARGET").expect("a target")];
    let options = PushOptions { allow, lease: Span::from_millis(600), ..PushOptions::default() };
    let push = Push::new(engine.clone(), options).expect("options");
    tokio::spawn(push.run());
    say("open");
    loop {
        for run in engine.list(Filter::terminal(), None, 100).await.expect("a list").runs {
            say(&format!("ended {} {}", run.run_id, run.state.as_str()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A worker that is a process of its own: it asks over a socket, one line for each question. It claims a task, sends
/// heartbeats for a while, completes it, and says what it heard.
fn worker() {
    let stream = TcpStream::connect(setting("ABIDE_CRASH_BRIDGE").expect("a bridge")).expect("a connection");
    let mut answers = BufReader::new(stream.try_clone().expect("a second handle")).lines();
    let name = setting("ABIDE_CRASH_WORKER").expect("a name");
    let mut ask = move |what: &str| {
        writeln!(&stream, "{what} {name}").expect("the bridge stands");
        answers.next().expect("an answer").expect("text")
    };
    let epoch = loop {
        match ask("claim").as_str() {
            "none" => std::thread::sleep(Duration::from_millis(10)),
            epoch => break epoch.to_owned(),
        }
    };
    say(&format!("has {epoch}"));
    let beats = setting("ABIDE_CRASH_BEATS").and_then(|beats| beats.parse().ok()).unwrap_or(0);
    for _ in 0..beats {
        std::thread::sleep(Duration::from_millis(400));
        say(&format!("beat {}", ask("beat")));
    }
    say(&format!("complete {}", ask("complete")));
}

/// A lease of six seconds.
async fn take_hold(engine: &Engine) -> Held {
    work::start_of(engine, "held", "plain").await.expect("a run");
    let claim = Claim { window: Some(Span::from_secs(6)), ..work::claim("holder", &["a"], 1) };
    Held::of(&engine.claim(claim).await.expect("a claim").pop().expect("a task"))
}

/// Holds it for so many heartbeats, one every two seconds, and completes it.
async fn hold(engine: &Engine, held: Held, beats: u64) {
    for _ in 0..beats {
        tokio::time::sleep(Duration::from_secs(2)).await;
        match held.beat(engine).await {
            Ok(_) => say("beat"),
            Err(error) => return say(&format!("held error {error}")),
        }
    }
    match held.report(engine).await {
        Ok(_) => say("held complete"),
        Err(error) => say(&format!("held error {error}")),
    }
}

/// Waits for its turn.
async fn succeed(data: PathBuf) {
    loop {
        match Engine::open_with(&data, options()) {
            Ok(engine) => {
                work::register(&engine).await;
                say("open");
                tokio::time::sleep(PATIENCE).await;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// What an earlier child left undone.
#[derive(Debug, Default)]
struct Plan {
    keys: Vec<String>,
    claims: Vec<String>,
    /// And whether their end was reported already, without an answer.
    leases: Vec<(Held, bool)>,
    runs: Vec<(String, RunId)>,
}

impl Plan {
    fn read() -> Plan {
        let mut plan = Plan::default();
        let text = setting("ABIDE_CRASH_PLAN").and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("key", key)) => plan.keys.push(key.into()),
                Some(("claim", id)) => plan.claims.push(id.into()),
                Some((said @ ("lease" | "again"), held)) => {
                    plan.leases.extend(Held::parse(held).map(|held| (held, said == "again")));
                }
                Some(("run", rest)) => {
                    plan.runs.extend(rest.split_once(' ').map(|(of, run)| (of.into(), RunId::from(run))));
                }
                _ => {}
            }
        }
        plan
    }
}

struct Load {
    engine: Engine,
    cycle: u64,
    /// What makes inputs large.
    pad: String,
    /// Runs that wait for people.
    runs: Mutex<BTreeSet<(String, RunId)>>,
}

/// Everything at once: starts, claims, heartbeats, reports, decisions, signals, cancels, reconnects, archive, backups.
async fn load(data: PathBuf) {
    let engine = Engine::open_with(&data, options()).expect("an engine");
    let cycle = setting("ABIDE_CRASH_CYCLE").and_then(|cycle| cycle.parse().ok()).unwrap_or(0);
    let plan = Plan::read();
    let load = Arc::new(Load { engine, cycle, pad: pad(), runs: Mutex::new(plan.runs.into_iter().collect()) });
    work::register(&load.engine).await;
    say("open");
    // Those who hold leases have survived the engine.
    for (held, again) in plan.leases {
        let load = load.clone();
        tokio::spawn(async move { load.end(held, again).await });
    }
    let (first, second) = plan.keys.split_at(plan.keys.len() / 2);
    for (lane, keys) in [first.to_vec(), second.to_vec()].into_iter().enumerate() {
        let load = load.clone();
        tokio::spawn(async move { load.start(lane, keys).await });
    }
    let mut claims = plan.claims.into_iter();
    for lane in 0..3 {
        let (load, again) = (load.clone(), claims.next());
        tokio::spawn(async move { load.take(lane, again).await });
    }
    for id in claims {
        let load = load.clone();
        tokio::spawn(async move { load.claim(id).await });
    }
    let people = load.clone();
    tokio::spawn(async move { people.decide().await });
    let tool = load.clone();
    tokio::spawn(async move { tool.reconnect().await });
    if setting("ABIDE_CRASH_BACKUP").is_some() {
        let load = load.clone();
        tokio::spawn(async move { load.back_up(data).await });
    }
    let Some(after) = setting("ABIDE_CRASH_STOP_AFTER_MS").and_then(|after| after.parse().ok()) else {
        return load.archive().await;
    };
    let archiving = load.clone();
    tokio::spawn(async move { archiving.archive().await });
    tokio::time::sleep(Duration::from_millis(after)).await;
    load.engine.shutdown().await;
    // Whoever was answered gets the time to say so.
    tokio::time::sleep(Duration::from_millis(100)).await;
    say("end");
}

/// The engine lets nobody in any more: nothing was done, and somebody else is asked later.
fn is_stopping(error: &Error) -> bool {
    error.code() == "shutting-down"
}

impl Load {
    async fn start(&self, lane: usize, again: Vec<String>) {
        let fresh = (0..).map(|n| format!("c{}-{lane}-{n}", self.cycle));
        for key in again.into_iter().chain(fresh) {
            say(&format!("try start {key}"));
            match work::start_padded(&self.engine, &key, work::workflow_of(&key), &self.pad).await {
                Ok(told) => {
                    say(&format!("ack start {key} {} {}", told.run_id, told.seq));
                    let of = work::workflow_of(&key);
                    if ["gate", "wait", "doomed"].contains(&of) {
                        self.runs.lock().expect("a lock").insert((of.into(), told.run_id));
                    }
                }
                Err(error) if is_stopping(&error) => return say(&format!("refused start {key}")),
                Err(error) => say(&format!("odd start {key} {}", error.code())),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A worker that claims under an id, so that an answer that was lost can be asked for again.
    async fn take(self: &Arc<Load>, lane: usize, again: Option<String>) {
        let fresh = (0..).map(|n| format!("c{}-{lane}-{n}", self.cycle));
        for id in again.into_iter().chain(fresh) {
            self.claim(id).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    async fn claim(self: &Arc<Load>, id: String) {
        let claim = Claim { claim_id: Some(id.clone()), ..work::claim(work::WORKER, work::HANDLERS, 4) };
        say(&format!("try claim {id}"));
        match self.engine.claim(claim).await {
            Ok(tasks) => {
                let held: Vec<Held> = tasks.iter().map(Held::of).collect();
                for held in &held {
                    say(&format!("ack lease {}", held.line()));
                }
                say(&format!("ack claim {id}"));
                for held in held {
                    let load = self.clone();
                    tokio::spawn(async move { load.end(held, false).await });
                }
            }
            Err(error) if is_stopping(&error) => std::future::pending().await,
            Err(error) => say(&format!("odd claim {id} {}", error.code())),
        }
    }

    /// What becomes of a lease.
    async fn end(&self, held: Held, again: bool) {
        let verb = held.verb();
        if verb == "forget" {
            return say(&format!("forgot {}", held.line()));
        }
        if held.epoch.0.is_multiple_of(4) && !again {
            match held.beat(&self.engine).await {
                Ok(_) => say("ack beat"),
                Err(error) if is_stopping(&error) => return say(&format!("refused beat {}", held.line())),
                Err(error) => say(&format!("late beat {} {}", error.code(), held.line())),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        say(&format!("try report {}", held.line()));
        match held.report(&self.engine).await {
            Ok(told) => say(&format!("ack report {} {verb} {}", told.seq, held.line())),
            // What it said before was heard, and its run has ended since.
            Err(error) if again && error.code() == "run-terminal" => {
                say(&format!("ack report {} {verb} {}", u64::MAX, held.line()));
            }
            Err(error) if is_stopping(&error) => say(&format!("refused report {}", held.line())),
            Err(error) => say(&format!("late report {} {}", error.code(), held.line())),
        }
    }

    /// People approve, signal and cancel.
    async fn decide(&self) {
        let mut dice = Dice::new(self.cycle + 77);
        loop {
            let chosen = {
                let runs = self.runs.lock().expect("a lock");
                let at = dice.below(runs.len() as u64) as usize;
                runs.iter().nth(at).cloned()
            };
            if let Some((of, run)) = chosen {
                let (verb, asked) = match of.as_str() {
                    "gate" => ("approve", self.engine.decide(&run, "ana", true).await),
                    "wait" => ("signal", self.signal(&run).await),
                    _ => {
                        say(&format!("try cancel {run}"));
                        ("cancel", self.engine.cancel(&run, "not wanted").await)
                    }
                };
                match asked {
                    Ok(told) => say(&format!("ack {verb} {run} {}", told.seq)),
                    Err(error) if is_stopping(&error) => return,
                    // It was said before, by a child that died before it could tell; the run has gone on since.
                    Err(error) => say(&format!("late {verb} {} {run}", error.code())),
                }
                self.runs.lock().expect("a lock").remove(&(of, run));
            }
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    }

    async fn signal(&self, run: &RunId) -> Result<abide_engine::Told, abide_engine::Error> {
        say(&format!("try signal {run}"));
        signal(&self.engine, run).await
    }

    async fn reconnect(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(40)).await;
            match self.engine.reconnected("drive", "ana").await {
                Ok(released) => say(&format!("ack reconnected {released}")),
                Err(error) if is_stopping(&error) => return,
                Err(error) => say(&format!("odd reconnect - {}", error.code())),
            }
        }
    }

    async fn archive(&self) {
        loop {
            match self.engine.archive().await {
                Ok(moved) => say(&format!("ack archived {moved}")),
                Err(error) if is_stopping(&error) => return,
                Err(error) => say(&format!("odd archive - {}", error.code())),
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    async fn back_up(&self, data: PathBuf) {
        for n in 0.. {
            let to = data.with_extension(format!("backup-{}-{n}", self.cycle));
            match self.engine.backup(&to).await {
                Ok(()) => say(&format!("ack backup {}", to.display())),
                Err(error) => say(&format!("odd backup - {error}")),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// One signal for one run, whoever sends it how often.
pub async fn signal(engine: &Engine, run: &RunId) -> Result<abide_engine::Told, abide_engine::Error> {
    let ask = Ask::Signal { name: "go".into(), payload: "{}".into() };
    let command = Command::new(Actor::user("ben"), ask);
    let to_run = ToRun::new(run.clone(), command);
    work::keyed(engine, &format!("go-{run}"), What::Run(Box::new(to_run))).await
}
