//! How many transitions a second the engine carries, beside what the same disk can do without it.
//!
//! `cargo bench -p abide-bench --bench throughput`: prints both figures and their ratio, and fails below the promise
//! when `ABIDE_BENCH_CHECK=1`. `-- carry`, `-- beside`, `-- single` or `-- history` leave everything else out, for a profile.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abide_core::ids::{Handler, Queue, WorkerId};
use abide_engine::Engine;
use abide_engine::request::Claim;
use abide_engine::store::Wanted;
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ONE_STEP: &str = "workflow: one\nsteps:\n  - { id: only, task: work }\n";
const CALLERS: usize = 256;
const ROUNDS: usize = 3;
const BACKLOG: usize = 100_000;
const WAITING: usize = 10_000;

fn main() {
    let runs = std::env::var("ABIDE_BENCH_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(20_000);
    let directory = std::env::temp_dir().join(format!("abide-throughput-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    match only.as_deref() {
        Some("carry") => {
            let rate = runtime.block_on(carried(&directory.join("carried"), runs));
            println!("through carry, {CALLERS} callers: {rate:.0} commands/s");
        }
        Some("beside") => print_beside(&runtime, &directory, runs),
        Some("single") => print_single(&runtime, &directory),
        Some("history") => print_history(&runtime, &directory),
        _ => everything(&runtime, &directory, runs),
    }
    let _ = std::fs::remove_dir_all(&directory);
}

fn everything(runtime: &Runtime, directory: &Path, runs: usize) {
    println!("bare: one event insert, one run update, one task update, with indexes, WAL, synchronous=FULL");
    for batch in [1, 10, 100, 1_000] {
        let rate = bare(&directory.join(format!("bare-{batch}.db")), batch);
        println!("  batches of {batch:>5}: {rate:>9.0} transitions/s");
    }
    // In turns: what the machine does meanwhile, it does to both.
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        rates[0].push(bare(&directory.join(format!("bare-at-callers-{round}.db")), CALLERS));
        println!("  batches of {CALLERS:>5}: {:>9.0} transitions/s", rates[0][round]);
        rates[1].push(runtime.block_on(carried(&directory.join(format!("carried-{round}")), runs)));
    }
    let [bare_at_callers, rate] = rates.map(middle);
    let ratio = rate / bare_at_callers;
    println!(
        "through carry, {CALLERS} callers: {rate:.0} commands/s, {:.0} % of the bare figure (the median of {ROUNDS} of each)",
        ratio * 100.0
    );
    // A claim moves the task and the run; a completion the task, the step, the body and the run. Each is an event.
    let moves = 3.0 * rate;
    println!("  that is {moves:.0} transitions/s in the log, {:.0} % of the bare figure", 300.0 * ratio);
    print_beside(runtime, directory, runs);
    let backlog = runtime.block_on(carried(&directory.join("backlog"), BACKLOG));
    println!("a backlog of {BACKLOG} runs, more than stay in memory: {backlog:.0} commands/s");
    print_single(runtime, directory);
    print_history(runtime, directory);
    if std::env::var_os("ABIDE_BENCH_CHECK").is_some() {
        assert!(rate >= 25_000.0_f64.max(0.6 * bare_at_callers), "slower than promised");
    }
}

fn print_beside(runtime: &Runtime, directory: &Path, runs: usize) {
    let [alone, beside] = [0, WAITING].map(|workers| {
        let place = directory.join(format!("beside-{workers}"));
        runtime.block_on(beside(&place, runs, workers))
    });
    println!(
        "beside {WAITING} workers that wait in another queue: {beside:.0} commands/s, without them {alone:.0}, ratio {:.2}",
        beside / alone
    );
}

fn print_single(runtime: &Runtime, directory: &Path) {
    let check = std::env::var_os("ABIDE_BENCH_CHECK").is_some();
    for (here, who) in [(true, "on its own thread"), (false, "through the lane's thread")] {
        let (bare, alone) = runtime.block_on(single(&directory.join(who), here));
        let ratio = alone.as_secs_f64() / bare.as_secs_f64();
        println!("a single caller, {who}: {alone:?} a command, one bare commit: {bare:?}, ratio {ratio:.2}");
        assert!(!check || !here || ratio <= 1.3, "a single caller waits longer than promised");
    }
}

fn print_history(runtime: &Runtime, directory: &Path) {
    let (short, long, events) = runtime.block_on(history(&directory.join("history")));
    println!(
        "one item (claim and complete): {short:.0} µs of the processor while the log is short, {long:.0} µs after {events} events, ratio {:.2}",
        long / short
    );
    let check = std::env::var_os("ABIDE_BENCH_CHECK").is_some();
    assert!(!check || long <= 1.1 * short, "a step costs more the longer its run has lasted");
}

fn bare_database(path: &PathBuf, runs: i64) -> Connection {
    let db = Connection::open(path).expect("a database");
    db.execute_batch(
        "pragma journal_mode = wal; pragma synchronous = full; pragma cache_size = -65536; pragma wal_autocheckpoint = 4000;
         create table events (run_no integer, seq integer, kind text, payload text, hash blob, primary key (run_no, seq)) without rowid;
         create table runs (run_no integer primary key, state text, seq integer, wake_at integer, head text);
         create index wakes on runs (wake_at) where wake_at is not null;
         create table tasks (run_no integer, path text, state text, row text, primary key (run_no, path)) without rowid;
         create index open_tasks on tasks (run_no) where state = 'open';",
    )
    .expect("a schema");
    let head = "h".repeat(600);
    db.execute_batch("begin").expect("begin");
    for run in 0..runs {
        db.prepare_cached("insert into runs values (?1, 'queued', 0, null, ?2)")
            .unwrap()
            .execute(params![run, head])
            .unwrap();
        db.prepare_cached("insert into tasks values (?1, 'only', 'open', ?2)")
            .unwrap()
            .execute(params![run, head])
            .unwrap();
    }
    db.execute_batch("commit").expect("commit");
    db
}

fn bare_transition(db: &Connection, run: i64, seq: i64) {
    let (payload, head) = ("p".repeat(120), "h".repeat(600));
    let hash = [7_u8; 32];
    db.prepare_cached("insert into events values (?1, ?2, 'task.claimed', ?3, ?4)")
        .unwrap()
        .execute(params![run, seq, payload, hash])
        .unwrap();
    db.prepare_cached("update runs set state = 'running', seq = ?2, wake_at = ?3, head = ?4 where run_no = ?1")
        .unwrap()
        .execute(params![run, seq, seq * 1_000 + run, head])
        .unwrap();
    db.prepare_cached("update tasks set state = 'open', row = ?2 where run_no = ?1")
        .unwrap()
        .execute(params![run, head])
        .unwrap();
}

fn bare(path: &PathBuf, batch: usize) -> f64 {
    let runs = 20_000;
    let db = bare_database(path, runs);
    let began = Instant::now();
    let (mut done, mut batches) = (0_i64, 0);
    while began.elapsed() < Duration::from_secs(2) && batches < 2_000 {
        db.execute_batch("begin immediate").unwrap();
        for _ in 0..batch {
            bare_transition(&db, done % runs, done / runs + 1);
            done += 1;
        }
        db.execute_batch("commit").unwrap();
        batches += 1;
    }
    done as f64 / began.elapsed().as_secs_f64()
}

fn bare_commit(db: &Connection, n: i64) -> Duration {
    let began = Instant::now();
    db.execute_batch("begin immediate").unwrap();
    bare_transition(db, n % 1_000, n / 1_000 + 1);
    db.execute_batch("commit").unwrap();
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn middle(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn claim(worker: usize) -> Claim {
    let wanted = Wanted { queues: vec![Queue::from("default")], handlers: Some(vec![Handler::from("work")]) };
    let worker = WorkerId::new(format!("worker-{worker}"));
    Claim { worker, wanted, max: 1, window: None, claim_id: None, until: None }
}

async fn start_all(engine: &Engine, runs: usize) {
    engine.register(ONE_STEP).await.expect("a document");
    let left = Arc::new(AtomicUsize::new(runs));
    let began = Instant::now();
    let starters = (0..CALLERS).map(|_| {
        let (engine, left) = (engine.clone(), left.clone());
        tokio::spawn(async move {
            while take(&left) {
                engine.start("one", serde_json::json!({ "order": 1 })).await.expect("a run");
            }
        })
    });
    for starter in starters.collect::<Vec<_>>() {
        starter.await.expect("a starter");
    }
    println!("started {runs} runs: {:.0} a second", runs as f64 / began.elapsed().as_secs_f64());
}

/// What a thread of this process has used of the processor, by its name; a busy machine does not change it.
fn processor_time(thread: &str) -> Duration {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        if stat.contains(&format!("({thread}")) {
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            ticks += fields[11].parse::<u64>().unwrap_or(0) + fields[12].parse::<u64>().unwrap_or(0);
        }
    }
    Duration::from_millis(ticks * 10)
}

fn take(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

async fn carried(directory: &Path, runs: usize) -> f64 {
    let engine = Engine::open(directory).expect("an engine");
    start_all(&engine, runs).await;
    let threads = ["abide-lane", "abide-writer", "throughput"];
    let used = threads.map(processor_time);
    let rate = work_off(&engine, runs).await;
    for (thread, used) in threads.into_iter().zip(used) {
        let used = processor_time(thread) - used;
        println!("  {thread}: {:.1} µs of the processor a command", used.as_secs_f64() * 1e6 / (2 * runs) as f64);
    }
    engine.shutdown().await;
    rate
}

/// Commands a second with which the callers claim and complete what was started.
async fn work_off(engine: &Engine, runs: usize) -> f64 {
    let left = Arc::new(AtomicUsize::new(runs));
    let began = Instant::now();
    let callers = (0..CALLERS).map(|worker| {
        let (engine, left) = (engine.clone(), left.clone());
        tokio::spawn(async move {
            while take(&left) {
                let task = engine.claim(claim(worker)).await.expect("a claim").pop().expect("a task");
                let name = format!("worker-{worker}");
                engine.complete(&task, &name, Some("{\"ok\":true}".into())).await.expect("completed");
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("a caller");
    }
    (2 * runs) as f64 / began.elapsed().as_secs_f64()
}

/// The rate beside workers that wait for tasks of another queue.
async fn beside(directory: &Path, runs: usize, workers: usize) -> f64 {
    let engine = Engine::open(directory).expect("an engine");
    start_all(&engine, runs).await;
    let until = engine.clock().now() + abide_core::time::Span::from_secs(3_600);
    let waiting = (0..workers).map(|worker| {
        let engine = engine.clone();
        let elsewhere = Wanted { queues: vec![Queue::from("elsewhere")], ..claim(worker).wanted };
        tokio::spawn(async move {
            let claim = Claim { wanted: elsewhere, until: Some(until), ..claim(worker) };
            drop(engine.claim(claim).await);
        })
    });
    let waiting: Vec<_> = waiting.collect();
    // Until they are known, and written down.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rate = work_off(&engine, runs).await;
    engine.shutdown().await;
    waiting.iter().for_each(|waiting| waiting.abort());
    rate
}

const LONG: &str = "workflow: long\nsteps:\n  - { id: items, for_each: input, parallel: 10, task: work, with: { n: '${{ item }}' } }\n";

/// What one item of a run costs the lane while its log is short, and when it has tens of thousands of events.
async fn history(directory: &Path) -> (f64, f64, u64) {
    let (items, window) = (6_000, 1_000);
    let engine = Engine::open(directory).expect("an engine");
    engine.register(LONG).await.expect("a document");
    engine.start("long", (0..items).collect::<Vec<u32>>()).await.expect("a run");
    let mut costs = Vec::new();
    let engine_time = || processor_time("abide-lane") + processor_time("abide-writer");
    let (mut used, mut events) = (engine_time(), 0);
    for n in 1..=items {
        let task = engine.claim(claim(0)).await.expect("a claim").pop().expect("a task");
        events = engine.complete(&task, "worker-0", Some("1".into())).await.expect("completed").seq;
        if n % window == 0 {
            let now = engine_time();
            costs.push((now - used).as_secs_f64() * 1e6 / f64::from(window));
            used = now;
        }
    }
    engine.shutdown().await;
    (costs[0], costs[costs.len() - 1], events)
}

/// What a bare commit and a command take, some of each in turns: what the machine does meanwhile, it does to both.
async fn single(directory: &Path, here: bool) -> (Duration, Duration) {
    let engine = Engine::open(directory).expect("an engine");
    start_all(&engine, 500).await;
    let engine = if here { engine.here() } else { engine };
    let db = bare_database(&directory.join("bare.db"), 1_000);
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for n in 0..10 {
        bare.extend((0..100).map(|m| bare_commit(&db, 100 * n + m)));
        for _ in 0..50 {
            let began = Instant::now();
            let task = engine.claim(claim(0)).await.expect("a claim").pop().expect("a task");
            let claimed = began.elapsed();
            engine.complete(&task, "worker-0", Some("{\"ok\":true}".into())).await.expect("completed");
            ours.extend([claimed, began.elapsed() - claimed]);
        }
    }
    engine.shutdown().await;
    (median(bare), median(ours))
}
