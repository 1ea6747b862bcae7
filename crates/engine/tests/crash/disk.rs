//! Disks that are full, slow, read-only or broken. Broken ones are played by a small library that is put before libc
//! (`shim.c`, compiled here with `cc`), full ones by a small file system in memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use abide_core::run::command::Actor;
use abide_engine::clock::Stopwatch;
use abide_engine::{Engine, Filter, NewRun};

use crate::child::options;
use crate::kills::{acknowledged, converges, healthy, keys, prepare};
use crate::{A_SECOND_ELSEWHERE, Directory, PATIENCE, Process, runtime, store};

/// The library with the faults.
pub fn shim() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/shim.c");
        let library = std::env::temp_dir().join(format!("abide-shim-{}.so", std::process::id()));
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
        assert!(built.expect("cc is needed for the faults of disks").success(), "shim.c does not compile");
        library.to_string_lossy().into_owned()
    })
}

fn start_on(fault: &str, data: &Path, more: &[(&str, &str)]) -> Process {
    let mut settings = vec![("LD_PRELOAD", shim()), ("ABIDE_SHIM", fault)];
    settings.extend(more);
    Process::start("start", data, &settings)
}

/// Listens until the child ends; returns what it said, how it ended, and how long after its first error.
fn ends(process: Process) -> (Vec<String>, Option<i32>, Duration) {
    let mut said = process.until("error", PATIENCE);
    let watch = Stopwatch::start();
    process.listen(PATIENCE, &mut said);
    let took = watch.elapsed();
    let (status, rest) = process.end();
    said.extend(rest);
    (said, status.code(), took)
}

/// F39: a sync that fails at a commit ends the process within a second. Nobody was told "failed" about something that is
/// found committed, everything acknowledged is there after a restart, and every key converges to one run.
#[test]
fn f39_a_failed_sync_at_a_commit_ends_the_process_and_everything_converges() {
    for nth in [1, 4, 15] {
        let directory = Directory::new("eio");
        prepare(&directory.data());
        let (said, code, took) = ends(start_on(&format!("wal-sync-eio:{nth}"), &directory.data(), &[]));
        assert_eq!(code, Some(70), "{said:?}");
        assert!(took < A_SECOND_ELSEWHERE, "it took {took:?}");
        if said.iter().any(|line| line.starts_with("try start")) {
            converges(&directory.data(), &said, &[]);
        }
    }
}

/// F39, F14: nobody hears why, and it ends all the same.
#[test]
fn f39_an_engine_that_cannot_say_why_it_ends_ends() {
    let (full, without_reader) = (std::fs::OpenOptions::new().write(true).open("/dev/full"), std::io::pipe());
    let (full, (reader, without_reader)) = (full.expect("Linux has one"), without_reader.expect("a pipe"));
    drop(reader);
    for stderr in [std::os::fd::OwnedFd::from(full), without_reader.into()] {
        let faults = [("ABIDE_SHIM", "wal-sync-eio:9"), ("ABIDE_FAILPOINT", "after_events:9:panic")];
        for (fault, value) in faults {
            let directory = Directory::new("mute");
            prepare(&directory.data());
            let settings = [("LD_PRELOAD", shim()), (fault, value)];
            let stderr = stderr.try_clone().expect("the same file");
            let (said, code, _) = ends(Process::start_saying("start", &directory.data(), &settings, stderr));
            assert_eq!(code, Some(70), "{fault}: {said:?}");
            converges(&directory.data(), &said, &[]);
        }
    }
}

/// F40: a sync that fails at a checkpoint ends the process too: what the disk says cannot be trusted any more.
#[test]
fn f40_a_failed_sync_at_a_checkpoint_ends_the_process_and_nothing_is_lost() {
    let directory = Directory::new("eio-checkpoint");
    prepare(&directory.data());
    let pad = [("ABIDE_CRASH_PAD", "200000")];
    let (said, code, took) = ends(start_on("db-sync-eio:1", &directory.data(), &pad));
    assert_eq!(code, Some(70), "{:?}", said.last());
    assert!(took < A_SECOND_ELSEWHERE, "it took {took:?}");
    assert!(acknowledged(&said).len() > 5);
    converges(&directory.data(), &said, &pad);
}

/// F43: a disk that turns read-only under an engine ends it; nothing that was acknowledged is missing.
#[test]
fn f43_a_disk_that_turns_read_only_ends_the_process_and_nothing_is_lost() {
    let directory = Directory::new("erofs");
    prepare(&directory.data());
    let (said, code, took) = ends(start_on("wal-write-erofs:60", &directory.data(), &[]));
    assert_eq!(code, Some(70), "{said:?}");
    assert!(took < A_SECOND_ELSEWHERE * 5, "it took {took:?}");
    converges(&directory.data(), &said, &[]);
}

/// F9: an engine that dies in the middle of a checkpoint leaves a sound file and loses nothing.
#[test]
fn f9_an_engine_that_dies_in_a_checkpoint_loses_nothing() {
    for nth in [1, 300, 2_000] {
        let directory = Directory::new("checkpoint");
        prepare(&directory.data());
        let pad = [("ABIDE_CRASH_PAD", "200000")];
        let process = start_on(&format!("db-write-kill:{nth}"), &directory.data(), &pad);
        let mut said = Vec::new();
        assert!(process.listen(PATIENCE * 2, &mut said), "no checkpoint came to write {nth}: {:?}", said.last());
        process.kill();
        converges(&directory.data(), &said, &pad);
    }
}

/// F47: on a disk that needs half a second for every sync, callers wait and share commits; no lease is lost to it.
#[test]
fn f47_a_slow_disk_makes_callers_wait_and_costs_no_lease() {
    let directory = Directory::new("slow");
    prepare(&directory.data());
    let process = start_on("sync-slow:500", &directory.data(), &[("ABIDE_CRASH_HOLD", "3")]);
    let mut said = process.until("held", PATIENCE);
    said.extend(process.kill());
    let beats = said.iter().filter(|line| *line == "beat").count();
    assert!(said.iter().any(|line| line == "held complete"), "{:?}", said.last());
    assert!(beats >= 3, "{beats} heartbeats");
    assert!(!said.iter().any(|line| line.starts_with("error")), "{said:?}");
    let (runs, said) = (store::runs(&directory.data()), acknowledged(&said));
    assert!(said.len() > 30, "many share one commit: {}", said.len());
    assert!(said.values().all(|run| runs.contains_key(run)));
    assert!(runs.values().all(|run| run.count("task.lost") == 0));
    healthy(&directory.data());
}

/// F47: when more want to wait for a slow disk than may, the rest are told at once that the engine is overloaded, and are not
/// in the store; whoever waits is answered, and the holder of a lease keeps it.
#[test]
fn f47_a_slow_disk_refuses_whom_it_cannot_let_wait_and_costs_no_lease() {
    let directory = Directory::new("slow-flood");
    prepare(&directory.data());
    let settings = [("ABIDE_CRASH_HOLD", "2"), ("ABIDE_CRASH_KEYS", "12000"), ("ABIDE_CRASH_LANES", "12000")];
    let process = start_on("sync-slow:500", &directory.data(), &settings);
    let mut said = process.until("held", PATIENCE);
    said.extend(process.kill());
    assert!(said.iter().any(|line| line == "held complete"), "the lease was lost: {:?}", said.last());
    assert_eq!(said.iter().filter(|line| *line == "beat").count(), 2);
    let errors: Vec<&str> = said.iter().filter_map(|line| line.strip_prefix("error ")).collect();
    assert!(errors.len() > 500, "too few were refused: {}", errors.len());
    let yes = acknowledged(&said);
    assert!(yes.len() > 2_000, "too few were answered: {}", yes.len());
    let (stored, runs) = (keys(&directory.data()), store::runs(&directory.data()));
    assert!(yes.iter().all(|(key, run)| stored.get(key) == Some(&vec![run.clone()])));
    for (key, code) in errors.iter().filter_map(|error| error.split_once(' ')) {
        assert_eq!(code, "overloaded");
        assert!(!stored.contains_key(key), "{key} was refused and is there");
    }
    assert!(runs.values().all(|run| run.count("task.lost") == 0));
}

/// A small file system in memory; gone when the test is over.
struct Small(PathBuf);

impl Small {
    /// None: this user may not mount.
    fn mounted(directory: &Directory, size: &str) -> Option<Small> {
        let place = directory.path().join("small");
        std::fs::create_dir_all(&place).expect("a directory");
        let size = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&place).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Small(place)),
            other => {
                let user = Command::new("id").arg("-u").output().map(|output| output.stdout).unwrap_or_default();
                assert_ne!(user.trim_ascii(), b"0", "root cannot mount a tmpfs for this test: {other:?}");
                eprintln!("not tested, because only root may mount: {other:?}");
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn large(n: usize) -> NewRun {
    let mut new = NewRun::of("plain", format!("{{\"pad\":\"{}\"}}", "x".repeat(60_000)), Actor::user("ben"));
    new.start.labels.insert("key".into(), format!("k{n}"));
    new
}

/// F38: on a full disk writes are refused as `storage-full`, reads go on, the store is sound, and when there is room again
/// so is everything else. Whoever was refused is not in the store.
#[test]
fn f38_a_full_disk_refuses_writes_serves_reads_and_recovers() {
    let directory = Directory::new("full");
    let Some(small) = Small::mounted(&directory, "12m") else { return };
    let (data, ballast) = (small.0.join("data"), small.0.join("ballast"));
    std::fs::write(&ballast, vec![1; 4 << 20]).expect("a ballast");
    let stopped = std::sync::Arc::new(std::sync::Mutex::new(None));
    let on_fatal = {
        let stopped = stopped.clone();
        std::sync::Arc::new(move |fatal: &abide_engine::carry::Fatal| {
            *stopped.lock().expect("a lock") = Some(fatal.to_string());
        })
    };
    let engine = Engine::open_with(&data, abide_engine::Options { on_fatal, ..options() }).expect("an engine");
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    runtime().block_on(async {
        crate::work::register(&engine).await;
        for n in 0..400 {
            match engine.start_run(large(n)).await {
                Ok(told) => kept.push((format!("k{n}"), told.run_id)),
                Err(error) => {
                    let stopped = stopped.lock().expect("a lock").clone();
                    assert_eq!(error.code(), "storage-full", "{error}, {stopped:?}");
                    refused.push(format!("k{n}"));
                }
            }
            if refused.len() >= 30 {
                break;
            }
        }
        assert!(kept.len() > 10 && refused.len() >= 30, "{} kept, {} refused", kept.len(), refused.len());
        assert_eq!(engine.list(Filter::open(), None, 5).await.expect("reads go on").runs.len(), 5);
        let report = engine.doctor().await.expect("a report");
        assert!(report.is_healthy(), "{:#?}", report.problems);
        std::fs::remove_file(&ballast).expect("room");
        for n in 1_000..1_010 {
            let told = engine.start_run(large(n)).await.expect("there is room again");
            kept.push((format!("k{n}"), told.run_id));
        }
        engine.shutdown().await;
    });
    drop(engine);
    assert_eq!(*stopped.lock().expect("a lock"), None);
    let stored = keys(&data);
    assert!(kept.iter().all(|(key, run)| stored.get(key) == Some(&vec![run.to_string()])));
    assert!(refused.iter().all(|key| !stored.contains_key(key)), "refused, and there");
    healthy(&data);
}

/// D1b: a commit that meets the end of the disk although there was room when it began. The files are opened anew and the
/// batch is looked for: whoever is refused is not in the store, and everybody else goes on.
#[test]
fn f38_a_commit_that_meets_the_end_of_the_disk_is_refused_and_work_goes_on() {
    for nth in [60, 400, 1_500] {
        let directory = Directory::new("enospc");
        prepare(&directory.data());
        let settings = [("ABIDE_CRASH_KEYS", "300"), ("ABIDE_CRASH_ERRORS", "1000")];
        let (status, said) = start_on(&format!("wal-write-enospc:{nth}:5"), &directory.data(), &settings).end();
        assert!(status.success() && said.last().is_some_and(|line| line == "end"), "{:?}", said.last());
        let errors: Vec<&String> = said.iter().filter(|line| line.starts_with("error")).collect();
        assert!(!errors.is_empty() && errors.iter().all(|line| line.ends_with("storage-full")), "{nth}: {errors:?}");
        let (stored, acknowledged) = (keys(&directory.data()), acknowledged(&said));
        assert!(acknowledged.len() > 100, "{nth}: only {} got through", acknowledged.len());
        assert!(acknowledged.iter().all(|(key, run)| stored.get(key) == Some(&vec![run.clone()])));
        let refused = errors.iter().filter_map(|line| line.split(' ').nth(1));
        refused.for_each(|key| assert!(!stored.contains_key(key), "{key} was refused and is there"));
        healthy(&directory.data());
    }
}

/// F38: a disk that is full for whoever copies the WAL into the database keeps nobody from committing: the WAL holds
/// everything, and the copy is made when there is room.
#[test]
fn f38_a_full_disk_at_a_checkpoint_costs_no_commit_and_the_checkpoint_comes_later() {
    let pad = ("ABIDE_CRASH_PAD", "200000");
    // In the middle of it, too: then some pages of the database are newer than others.
    for nth in [1, 700] {
        let directory = Directory::new("full-checkpoint");
        prepare(&directory.data());
        let process = start_on(&format!("db-write-enospc:{nth}:40"), &directory.data(), &[pad]);
        let database = directory.data().join("abide.db");
        let (mut said, watch, mut refused_at) = (Vec::new(), Stopwatch::start(), 0);
        let size = || std::fs::metadata(&database).expect("the database").len();
        while watch.elapsed() < PATIENCE && size() < 12 << 20 {
            let Some(line) = process.next(PATIENCE) else { break };
            refused_at = if line == "fault" { size() } else { refused_at };
            said.push(line);
        }
        said.extend(process.kill());
        assert_eq!(said.iter().filter(|line| *line == "fault").count(), 40, "{nth}: {:?}", said.last());
        assert!(refused_at < 8 << 20 && size() >= 12 << 20, "{nth}: from {refused_at} to {} bytes", size());
        assert!(!said.iter().any(|line| line.starts_with("error")), "{nth}: {said:?}");
        converges(&directory.data(), &said, &[pad]);
    }
    // And when there is never room again.
    let directory = Directory::new("full-for-ever");
    prepare(&directory.data());
    let small = std::fs::metadata(directory.data().join("abide.db")).expect("the database").len();
    let settings = [pad, ("ABIDE_CRASH_KEYS", "160")];
    let (status, said) = start_on("db-write-enospc:1", &directory.data(), &settings).end();
    assert!(status.success() && said.last().is_some_and(|line| line == "end"), "{:?}", said.last());
    let length = |name: &str| std::fs::metadata(directory.data().join(name)).map_or(0, |file| file.len());
    assert!(said.iter().any(|line| line == "fault"), "no checkpoint came");
    assert_eq!(length("abide.db"), small, "nothing was copied");
    assert!(length("abide.db-wal") > 24 << 20, "the WAL holds only {}", length("abide.db-wal"));
    assert_eq!(acknowledged(&said).len(), 160);
    converges(&directory.data(), &said, &[pad]);
    assert!(length("abide.db-wal") < 1 << 20 && length("abide.db") > 24 << 20, "the checkpoint came later");
}

/// D1b: before the disk is full nothing more is begun, so that no commit meets its end; what is there can still be read.
#[test]
fn f38_a_reserve_of_the_disk_is_never_written() {
    let directory = Directory::new("reserve");
    let Some(small) = Small::mounted(&directory, "64m") else { return };
    let (data, ballast) = (small.0.join("data"), small.0.join("ballast"));
    let engine = Engine::open_with(&data, options()).expect("an engine");
    runtime().block_on(async {
        crate::work::register(&engine).await;
        let told = engine.start_run(large(1)).await.expect("there is room");
        // One megabyte is left, which would be enough for this start; the reserve is a 32nd of the disk.
        let free =
            64 - 1 - std::fs::metadata(data.join("abide.db-wal")).expect("a WAL").len().div_ceil(1 << 20) as usize;
        std::fs::write(&ballast, vec![1; free << 20]).expect("a ballast");
        assert_eq!(engine.start_run(large(2)).await.expect_err("the reserve is kept").code(), "storage-full");
        engine.run(&told.run_id).await.expect("reads go on");
        std::fs::remove_file(&ballast).expect("room");
        engine.start_run(large(3)).await.expect("there is room again");
        engine.shutdown().await;
    });
    drop(engine);
    healthy(&data);
}

/// F38: the same under load and again and again: a child on a full disk, killed and started anew.
#[test]
fn f38_a_full_disk_under_load_loses_nothing_over_restarts() {
    let directory = Directory::new("full-load");
    let Some(small) = Small::mounted(&directory, "16m") else { return };
    let data = small.0.join("data");
    prepare(&data);
    let mut said = Vec::new();
    for prefix in ["a", "b", "c"] {
        let settings = [("ABIDE_CRASH_PAD", "30000"), ("ABIDE_CRASH_PREFIX", prefix), ("ABIDE_CRASH_ERRORS", "40")];
        let process = Process::start("start", &data, &settings);
        let mut heard = Vec::new();
        // Four seconds, and in the end until somebody has met the end of the disk.
        process.listen(Duration::from_secs(4), &mut heard);
        if prefix == "c" && !said.iter().chain(&heard).any(|line: &String| line.starts_with("error")) {
            heard.extend(process.until("error", PATIENCE));
        }
        heard.extend(process.kill());
        said.extend(heard);
    }
    let errors: Vec<&String> = said.iter().filter(|line| line.starts_with("error")).collect();
    assert!(!errors.is_empty() && errors.iter().all(|line| line.ends_with("storage-full")), "{errors:?}");
    let (copy, acknowledged) = (directory.path().join("copy"), acknowledged(&said));
    std::fs::create_dir_all(&copy).expect("a directory");
    for name in ["abide.db", "abide.db-wal"] {
        std::fs::copy(data.join(name), copy.join(name)).expect("a copy");
    }
    let stored = keys(&copy);
    assert!(acknowledged.len() > 20);
    assert!(acknowledged.iter().all(|(key, run)| stored.get(key) == Some(&vec![run.clone()])));
    for line in errors {
        let key = line.split(' ').nth(1).expect("a key");
        assert!(!stored.contains_key(key), "{key} was refused and is there");
    }
    healthy(&copy);
}

/// F43: a directory that cannot be written is refused at the start, with a reason.
#[test]
fn f43_a_read_only_directory_is_refused_with_a_reason() {
    let directory = Directory::new("read-only");
    let Some(small) = Small::mounted(&directory, "4m") else { return };
    prepare(&small.0.join("data"));
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&small.0).status().expect("mount");
    assert!(remounted.success());
    let refused = Engine::open(small.0.join("data")).expect_err("it cannot be written");
    assert!(refused.to_string().contains("Read-only"), "{refused}");
}
