//! What parked runs cost: memory, disk, the time to be ready after `kill -9`, and the latency of those that work.
//!
//! `cargo bench -p abide-bench --bench parked` (a million; `ABIDE_PARKED=N` for another number).

#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abide_core::ids::{Handler, Queue, WorkerId};
use abide_engine::Engine;
use abide_engine::request::Claim;
use abide_engine::store::Wanted;

const ASLEEP: &str = "workflow: asleep\nsteps:\n  - { id: nap, sleep: 30d }\n";
const ASKED: &str =
    "workflow: asked\nsteps:\n  - { id: ok, approval: { title: 'ok?', approvers: [ana], deadline: 60d } }\n";
const WORKS: &str = "workflow: works\nsteps:\n  - { id: only, task: work }\n";

fn main() {
    let directory = std::env::var_os("ABIDE_PARKED_DIRECTORY").map(PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match (directory, std::env::var("ABIDE_PARKED_ROLE").as_deref()) {
        (Some(directory), Ok("fill")) => runtime.block_on(fill(&directory, count())),
        (Some(directory), Ok("serve")) => runtime.block_on(serve(&directory)),
        _ => measure(),
    }
}

fn count() -> usize {
    std::env::var("ABIDE_PARKED").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000_000)
}

/// Runs the parts in processes of their own, so that one of them can be killed.
fn measure() {
    let directory = std::env::temp_dir().join(format!("abide-parked-{}", std::process::id()));
    let (empty, full) = (directory.join("empty"), directory.join("full"));
    std::fs::create_dir_all(&directory).expect("a directory");
    let baseline = served(&empty);
    let began = Instant::now();
    let (mut child, said) = part(&full, "fill", "filled");
    println!("{} parked runs started in {:.0?} {said}", count(), began.elapsed());
    child.kill().expect("kill -9");
    let _ = child.wait();
    let disk: u64 = std::fs::read_dir(&full)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.metadata().map_or(0, |data| data.len()))
        .sum();
    let report = served(&full);
    println!("disk: {} bytes a parked run", disk / count() as u64);
    println!("ready {:.2?} after kill -9 (empty store: {:.2?})", report.ready, baseline.ready);
    println!("memory of the process: {} MiB (empty store: {} MiB)", report.memory >> 20, baseline.memory >> 20);
    println!(
        "claim, median of 500: {:.2?} (empty store: {:.2?}, ratio {:.2})",
        report.claim,
        baseline.claim,
        report.claim.as_secs_f64() / baseline.claim.as_secs_f64()
    );
    let _ = std::fs::remove_dir_all(&directory);
    if std::env::var_os("ABIDE_BENCH_CHECK").is_some() {
        assert!(report.memory < 300 << 20, "more memory than promised");
        assert!(report.ready < Duration::from_secs(5), "slower to be ready than promised");
    }
}

struct Report {
    ready: Duration,
    memory: u64,
    claim: Duration,
}

fn served(directory: &Path) -> Report {
    let began = Instant::now();
    let (child, _) = part(directory, "serve", "ready");
    let ready = began.elapsed();
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("text");
    let field = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
        line.trim().parse().expect("a number")
    };
    Report { ready, memory: field("memory"), claim: Duration::from_nanos(field("claim")) }
}

/// Starts a part and waits for a line that begins with a word.
fn part(directory: &Path, role: &str, word: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env("ABIDE_PARKED_DIRECTORY", directory)
        .env("ABIDE_PARKED_ROLE", role)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut reader = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    while !line.starts_with(word) {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "{role} ended early");
    }
    child.stdout = Some(reader.into_inner());
    (child, line.trim().trim_start_matches(word).to_owned())
}

async fn fill(directory: &Path, count: usize) {
    let engine = Engine::open(directory).expect("an engine");
    engine.register(ASLEEP).await.expect("a document");
    engine.register(ASKED).await.expect("a document");
    let next = Arc::new(AtomicUsize::new(0));
    let starters = (0..512).map(|_| {
        let (engine, next) = (engine.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return;
                }
                let workflow = if n.is_multiple_of(2) { "asleep" } else { "asked" };
                engine.start(workflow, serde_json::json!({ "order": n })).await.expect("a run");
            }
        })
    });
    for starter in starters.collect::<Vec<_>>() {
        starter.await.expect("a starter");
    }
    println!("filled, {} MiB of memory", memory() >> 20);
    // It waits to be killed.
    std::thread::sleep(Duration::from_secs(3_600));
}

async fn serve(directory: &Path) {
    let engine = Engine::open(directory).expect("an engine");
    engine.register(WORKS).await.expect("a document");
    // Ready is who can commit.
    engine.start("works", serde_json::json!({})).await.expect("a run");
    println!("ready");
    std::io::stdout().flush().expect("said");
    let mut times = Vec::new();
    for _ in 0..500 {
        engine.start("works", serde_json::json!({})).await.expect("a run");
        let wanted = Wanted { queues: vec![Queue::from("default")], handlers: Some(vec![Handler::from("work")]) };
        let claim = Claim { worker: WorkerId::from("w"), wanted, max: 1, window: None, claim_id: None, until: None };
        let began = Instant::now();
        let task = engine.claim(claim).await.expect("a claim").pop().expect("a task");
        times.push(began.elapsed());
        engine.complete(&task, "w", None).await.expect("completed");
    }
    times.sort();
    println!("memory {}", memory());
    println!("claim {}", times[times.len() / 2].as_nanos());
}

/// What this process holds in memory, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) * 1_024
}
