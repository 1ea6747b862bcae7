//! What the whole program does on one machine: a server in its own process, and here its load and a worker over HTTP.
//! Runs of five steps that do nothing, declared and coded.
//!
//! `cargo bench -p abide-bench-server` (`ABIDE_SECONDS=N` for each figure, 5 unless said).
//! `cargo bench -p abide-bench-server -- compare OLD NEW [PAIRS]`: two programs in turns at 64 in flight, and the ratios of each
//! pair; what the machine does meanwhile, it does to both.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use abide_client::api::tasks::{ClaimTasks, Task};
use abide_client::{Asking, Client, Ctx, Error, Failure, Item, Method, Reply, Tasks, Work, Worker};
use serde_json::{Value, json};
use tokio::sync::oneshot;

const DECLARED: &str = "workflow: declared\nsteps:\n  - { id: a, task: nothing }\n  - { id: b, task: nothing }\n  - { id: c, task: nothing }\n  - { id: d, task: nothing }\n  - { id: e, task: nothing }\n";
const CODED: &str = "workflow: coded\ncoded: { revision: \"1\" }\n";
const STEPS: f64 = 5.0;
const OPEN_RUNS: usize = 10_000;
const PAIRS: usize = 20;

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["compare", old, new] => runtime.block_on(compare([old, new], PAIRS)),
        ["compare", old, new, pairs] => {
            runtime.block_on(compare([old, new], pairs.parse().expect("a number of pairs")))
        }
        _ => runtime.block_on(measure()),
    }
}

/// One of two programs, with its own data, worker and load.
struct Side {
    server: Child,
    client: Client,
    ends: Ends,
    directory: PathBuf,
}

impl Side {
    async fn of(program: &str, n: usize) -> Side {
        let directory = std::env::temp_dir().join(format!("abide-compare-{}-{n}", std::process::id()));
        let (server, url, _) = start(Path::new(program), &directory);
        let client = Client::new(&url).expect("a client");
        client.apply("declared", DECLARED).await.expect("a workflow");
        client.apply("coded", CODED).await.expect("a workflow");
        let ends = Ends::default();
        let worker = Worker::new(Watching { client: client.clone(), ends: ends.clone() }, "bench")
            .at_once(512)
            .handle("nothing", nothing)
            .workflow("coded", "1", body);
        tokio::spawn(worker.run());
        Side { server, client, ends, directory }
    }

    /// Runs a second, and processor seconds of the server for 1,000 steps.
    async fn rate(&self, workflow: &'static str) -> (f64, f64) {
        let (began, before) = (Instant::now(), cpu(&self.server));
        let runs = load(&self.client, &self.ends, workflow, 64, began + seconds()).await.len() as f64;
        (runs / began.elapsed().as_secs_f64(), (cpu(&self.server) - before) / (runs * STEPS) * 1_000.0)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

async fn compare(programs: [&str; 2], pairs: usize) {
    let sides = [Side::of(programs[0], 0).await, Side::of(programs[1], 1).await];
    for workflow in ["declared", "coded"] {
        let (mut rates, mut used, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..=pairs {
            let mut measured = [(0.0, 0.0); 2];
            for turn in [pair % 2, 1 - pair % 2] {
                measured[turn] = sides[turn].rate(workflow).await;
            }
            // The first pair warms both up.
            if pair > 0 {
                rates.push(measured[1].0 / measured[0].0);
                used.push(measured[1].1 / measured[0].1);
                firsts.push(measured[0].0);
            }
        }
        let (rate, low, high) = quartiles(rates);
        println!(
            "{workflow:<9} {pairs} pairs at 64: new/old runs/s {rate:.3} (quartiles {low:.3} to {high:.3}), \
             server CPU {:.3}; old {:.0} runs/s",
            quartiles(used).0,
            quartiles(firsts).0
        );
    }
}

/// The median, and the quartiles around it.
fn quartiles(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let at = |share: f64| figures[((figures.len() - 1) as f64 * share).round() as usize];
    (at(0.5), at(0.25), at(0.75))
}

async fn measure() {
    let directory = std::env::temp_dir().join(format!("abide-server-{}", std::process::id()));
    let program = program();
    let (server, url, ready) = start(&program, &directory);
    println!("ready {ready:.0?} after start; idle memory {:.1} MiB", memory(&server));
    let client = Client::new(&url).expect("a client");
    client.apply("declared", DECLARED).await.expect("a workflow");
    client.apply("coded", CODED).await.expect("a workflow");
    let ends = Ends::default();
    let worker = Worker::new(Watching { client: client.clone(), ends: ends.clone() }, "bench")
        .at_once(512)
        .handle("nothing", nothing)
        .workflow("coded", "1", body);
    let stop = worker.stopper();
    let working = tokio::spawn(worker.run());
    println!(
        "{:<9} {:>9} {:>8} {:>9} {:>9} {:>9} {:>16}",
        "", "in flight", "runs/s", "steps/s", "p50", "p99", "CPU s/1000 steps"
    );
    for workflow in ["declared", "coded"] {
        for in_flight in [1, 16, 64, 256] {
            figure(&client, &ends, &server, workflow, in_flight).await;
        }
    }
    println!("memory after the load: {:.1} MiB", memory(&server));
    stop.now();
    let _ = working.await;
    after_a_crash(&client, server, &program, &directory).await;
    let _ = std::fs::remove_dir_all(&directory);
}

async fn nothing(_: Work) -> Result<Value, Failure> {
    Ok(Value::Null)
}

async fn body(ctx: Ctx, _: Value) -> Result<Value, Failure> {
    for name in ["a", "b", "c", "d", "e"] {
        ctx.step(name, || async { Ok::<_, Failure>(Value::Null) }).await?;
    }
    Ok(Value::Null)
}

/// Keeps so many runs in flight for a while.
async fn figure(client: &Client, ends: &Ends, server: &Child, workflow: &'static str, in_flight: usize) {
    let until = Instant::now() + Duration::from_secs(1);
    load(client, ends, workflow, in_flight, until).await;
    let (began, before) = (Instant::now(), cpu(server));
    let mut times = load(client, ends, workflow, in_flight, began + seconds()).await;
    let (took, used) = (began.elapsed().as_secs_f64(), cpu(server) - before);
    times.sort();
    let runs = times.len() as f64;
    let at = |share: f64| times[((runs - 1.0) * share) as usize];
    println!(
        "{workflow:<9} {in_flight:>9} {:>8.0} {:>9.0} {:>9.2?} {:>9.2?} {:>16.3}",
        runs / took,
        runs * STEPS / took,
        at(0.5),
        at(0.99),
        used / (runs * STEPS) * 1_000.0
    );
}

async fn load(client: &Client, ends: &Ends, workflow: &'static str, in_flight: usize, until: Instant) -> Vec<Duration> {
    let mut loads = tokio::task::JoinSet::new();
    for _ in 0..in_flight {
        let (client, ends) = (client.clone(), ends.clone());
        loads.spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < until {
                let began = Instant::now();
                let run_id = begin(&client, workflow).await;
                let ended = ends.of(&run_id);
                let _ = ended.await;
                times.push(began.elapsed());
            }
            times
        });
    }
    loads.join_all().await.into_iter().flatten().collect()
}

async fn begin(client: &Client, workflow: &str) -> String {
    let call = client.call(Method::POST, &["v1", "runs"]).minimal();
    let started: Value = call.json(&json!({ "workflow": workflow })).answer().await.expect("a run");
    started["run_id"].as_str().expect("an id").to_owned()
}

/// Runs whose end somebody waits for. The end may be heard before it is waited for.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<HashMap<String, End>>>);

enum End {
    Awaited(oneshot::Sender<()>),
    Heard,
}

impl Ends {
    fn of(&self, run_id: &str) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut ends = self.0.lock().expect("a lock");
        match ends.remove(run_id) {
            Some(_) => drop(sender),
            None => {
                ends.insert(run_id.to_owned(), End::Awaited(sender));
            }
        }
        receiver
    }

    fn hear(&self, run_id: String) {
        let mut ends = self.0.lock().expect("a lock");
        match ends.remove(&run_id) {
            Some(End::Awaited(sender)) => drop(sender),
            Some(End::Heard) | None => {
                ends.insert(run_id, End::Heard);
            }
        }
    }
}

/// The client, watched: which runs its reports have ended.
struct Watching {
    client: Client,
    ends: Ends,
}

impl Watching {
    fn saw(&self, reply: &Reply) {
        if let Reply::Done(done) = reply
            && done.run_state.is_terminal()
        {
            self.ends.hear(done.run_id.clone());
        }
    }
}

impl Tasks for Watching {
    fn claim<'a>(&'a self, ask: &'a ClaimTasks) -> Asking<'a, Vec<Task>> {
        self.client.claim(ask)
    }

    fn tell<'a>(&'a self, item: &'a Item) -> Asking<'a, Reply> {
        Box::pin(async move { self.client.tell(item).await.inspect(|reply| self.saw(reply)) })
    }

    fn batch<'a>(&'a self, items: &'a [Item]) -> Asking<'a, Vec<Result<Reply, Error>>> {
        Box::pin(async move {
            let replies = self.client.batch(items).await?;
            replies.iter().flatten().for_each(|reply| self.saw(reply));
            Ok(replies)
        })
    }
}

/// Ready again after `kill -9` with many open runs.
async fn after_a_crash(client: &Client, mut server: Child, program: &Path, directory: &Path) {
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        starts.spawn(async move {
            for _ in 0..OPEN_RUNS / 100 {
                begin(&client, "declared").await;
            }
        });
    }
    starts.join_all().await;
    server.kill().expect("kill -9");
    let _ = server.wait();
    let (mut server, url, ready) = start(program, directory);
    let client = Client::new(&url).expect("a client");
    let began = Instant::now();
    let ask = ClaimTasks { worker: "after".into(), queues: vec!["default".into()], ..ClaimTasks::default() };
    let tasks = client.claim(&ask).await.expect("a claim");
    println!(
        "after kill -9 with {OPEN_RUNS} open runs: ready in {ready:.0?}, first of {} tasks {:.0?} later",
        tasks.len(),
        began.elapsed()
    );
    let _ = server.kill();
    let _ = server.wait();
}

/// The program, built like this benchmark.
fn program() -> PathBuf {
    let built = Command::new(env!("CARGO")).args(["build", "--profile", "dist", "--quiet", "-p", "abide"]).status();
    assert!(built.is_ok_and(|status| status.success()), "the program builds");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    target.join("dist/abide")
}

/// Until it answers that it is ready.
fn start(program: &Path, directory: &Path) -> (Child, String, Duration) {
    let began = Instant::now();
    let mut server = Command::new(program)
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server starts");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let url = line.trim().strip_prefix("listening on ").expect("its address").to_owned();
    (server, url, began.elapsed())
}

fn seconds() -> Duration {
    Duration::from_secs(std::env::var("ABIDE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5))
}

/// Processor seconds of a process; the kernel counts in hundredths.
fn cpu(process: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("a process");
    let rest = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<f64> = rest.split_whitespace().skip(11).take(2).filter_map(|text| text.parse().ok()).collect();
    fields.iter().sum::<f64>() / 100.0
}

/// Resident, in MiB.
fn memory(process: &Child) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
