//! Files that were torn, damaged, copied or held by somebody else.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::time::Span;
use abide_engine::carry::Fatal;
use abide_engine::clock::Stopwatch;
use abide_engine::request::Claim;
use abide_engine::store::StoreError;
use abide_engine::store::sqlite::Readers;
use abide_engine::{Engine, Filter, Options};
use rusqlite::Connection;
use tokio::sync::Notify;

use crate::child::options;
use crate::disk::shim;
use crate::kills::{acknowledged, healthy, keys, prepare};
use crate::{Dice, Directory, PATIENCE, Process, runtime, store, work};

const WAL_HEADER: usize = 32;
const FRAME: usize = 24 + 4096;

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for name in ["abide.db", "abide.db-wal"] {
        if from.join(name).exists() {
            std::fs::copy(from.join(name), to.join(name)).expect("a copy");
        }
    }
}

/// What an engine left that was killed before its first checkpoint.
struct Killed {
    directory: Directory,
    /// Each acknowledgement, and how long the WAL was when it was heard: its commit lies before that.
    said: Vec<(String, String, usize)>,
    wal: Vec<u8>,
    /// All runs by their keys.
    whole: BTreeMap<String, Vec<String>>,
}

impl Killed {
    fn with_a_wal(name: &str) -> Killed {
        let directory = Directory::new(name);
        prepare(&directory.data());
        let process = Process::start("start", &directory.data(), &[]);
        let (mut said, watch) = (Vec::new(), Stopwatch::start());
        while watch.elapsed() < PATIENCE && said.len() < 400 {
            let Some(line) = process.next(PATIENCE) else { break };
            let length = std::fs::metadata(directory.data().join("abide.db-wal")).map_or(0, |file| file.len());
            said.extend(acknowledged(&[line]).into_iter().map(|(key, run)| (key, run, length as usize)));
        }
        process.kill();
        let mut wal = std::fs::read(directory.data().join("abide.db-wal")).expect("the WAL");
        // What lies behind the frames of this round is left from the round before.
        let current = |frame: &[u8]| frame[8..16] == wal[16..24];
        let frames = wal[WAL_HEADER..].chunks_exact(FRAME).take_while(|frame| current(frame)).count();
        assert!(frames > 40, "the WAL is too short: {frames} frames");
        wal.truncate(WAL_HEADER + frames * FRAME);
        let whole = {
            let place = directory.path().join("whole");
            copy(&directory.data(), &place);
            healthy(&place);
            keys(&place)
        };
        assert!(said.iter().all(|(key, run, _)| whole.get(key) == Some(&vec![run.clone()])));
        Killed { directory, said, wal, whole }
    }
}

/// Where the frames of the last commit begin: the frame that ends one says how large the database is then.
fn last_commit_in(wal: &[u8]) -> usize {
    let frames = wal[WAL_HEADER..].chunks_exact(FRAME).enumerate();
    let ends = frames.filter(|(_, frame)| frame[4..8] != [0; 4]).map(|(n, _)| WAL_HEADER + (n + 1) * FRAME);
    let ends: Vec<usize> = ends.collect();
    ends[ends.len() - 2]
}

/// F41: of a WAL whose last writes were cut or torn at 512 bytes, only what comes after the cut is missing: whatever was
/// acknowledged before the WAL had come so far is there, and all of it is a healthy prefix of what was committed.
#[test]
fn f41_a_torn_wal_loses_only_its_tail() {
    let Killed { directory, said, wal, whole } = Killed::with_a_wal("torn");
    let mut dice = Dice::new(41);
    let (mut fewest, mut promised) = (whole.len(), 0);
    for n in 0..12 {
        let place = directory.path().join(format!("torn-{n}"));
        copy(&directory.data(), &place);
        let mut torn = wal.clone();
        // Frames of the last commits; of the very last, which was not synced, the sectors reach the disk in any order.
        let back = 1 + dice.below(if n < 8 { 30 * FRAME } else { wal.len() / 2 } as u64) as usize;
        let mut tear = wal.len() - back;
        if n % 2 == 0 {
            torn.truncate(tear);
        } else {
            let last = last_commit_in(&wal);
            tear = (last + dice.below((wal.len() - last) as u64) as usize) / 512 * 512;
            torn[tear..(tear + 512).min(wal.len())].fill(0);
        }
        std::fs::write(place.join("abide.db-wal"), &torn).expect("a torn WAL");
        let left = keys(&place);
        healthy(&place);
        assert!(left.iter().all(|(key, runs)| whole.get(key) == Some(runs)), "something that never was");
        for (key, run, _) in said.iter().filter(|(_, _, length)| *length <= tear) {
            assert_eq!(left.get(key), Some(&vec![run.clone()]), "{key} was acknowledged before the tear at {tear}");
            promised += 1;
        }
        fewest = fewest.min(left.len());
    }
    assert!(fewest < whole.len(), "no cut reached a commit");
    assert!(promised > 100, "too few were acknowledged before a tear: {promised}");
}

/// F42: a byte that changed in the file is found, wherever in a run's events, rows or payloads it lies. (Idempotency keys
/// and the lists of listeners are in no chain; a change there is found only if it breaks the order of an index.)
#[test]
fn f42_a_flipped_bit_is_found() {
    let directory = Directory::new("flipped");
    let data = directory.data();
    let engine = Engine::open_with(&data, options()).expect("an engine");
    runtime().block_on(async {
        work::register(&engine).await;
        for n in 0..20 {
            work::start_of(&engine, &format!("needle-{n:04}"), "plain").await.expect("a run");
        }
        engine.shutdown().await;
    });
    drop(engine);
    let sound = std::fs::read(data.join("abide.db")).expect("the file");
    let found = |needle: &[u8]| -> Vec<usize> {
        let windows = sound.windows(needle.len()).enumerate();
        windows.filter(|(_, window)| *window == needle).map(|(at, _)| at).collect()
    };
    // In labels, payloads, heads and logs; and in what an event says of itself.
    let mut places = found(b"needle-0007");
    places.extend(found(b"needle-0013"));
    places.extend(found(b"task.issued").into_iter().step_by(5));
    places.extend(found(b"\"attempt\":1").into_iter().step_by(5));
    places.extend([16 + 2, 4096 * 3 + 1]);
    let (whole, mut changed) = (dump(&data.join("abide.db")).expect("rows"), 0);
    for at in places {
        let mut flipped = sound.clone();
        flipped[at + 3] ^= 0x04;
        let place = directory.path().join("flipped");
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("a directory");
        std::fs::write(place.join("abide.db"), &flipped).expect("a damaged file");
        // Bytes that no row uses mean nothing.
        if dump(&place.join("abide.db")).is_ok_and(|rows| rows == whole) {
            continue;
        }
        changed += 1;
        let found = doctor_says(&place).is_some();
        let around = String::from_utf8_lossy(&sound[at.saturating_sub(60)..(at + 60).min(sound.len())]).into_owned();
        assert!(found, "nobody saw the change at {at}: {around:?}");
    }
    assert!(changed > 6, "only {changed} changes reached a row");
}

/// F42: a store whose WAL has a byte that changed does not open when commits would be lost by it, and says what can be done.
/// When that was done, or the byte lies in the last commit, everything before that byte is there, and a healthy prefix of all
/// that was committed.
#[test]
fn f42_a_flipped_bit_in_the_wal_is_found_and_loses_only_what_comes_after_it() {
    let Killed { directory, said, wal, whole } = Killed::with_a_wal("flipped-wal");
    let (mut dice, mut fewest, mut promised, mut refused) = (Dice::new(42), whole.len(), 0, 0);
    let frames = (wal.len() - WAL_HEADER) / FRAME;
    for n in 0..24 {
        let place = directory.path().join(format!("flipped-{n}"));
        copy(&directory.data(), &place);
        // In the header, in a frame's header, in its page, and mostly somewhere.
        let frame = WAL_HEADER + dice.below(frames as u64) as usize * FRAME;
        let at = match n % 6 {
            0 => dice.below(WAL_HEADER as u64) as usize,
            1 => frame + dice.below(24) as usize,
            2 => frame + 24 + dice.below(100) as usize,
            _ => dice.below(wal.len() as u64) as usize,
        };
        let mut flipped = wal.clone();
        flipped[at] ^= 1 << dice.below(8);
        std::fs::write(place.join("abide.db-wal"), &flipped).expect("a damaged WAL");
        match Engine::open_with(&place, options()) {
            Ok(engine) => runtime().block_on(engine.shutdown()),
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged(_)), "at {at}: {error}");
                let advice = error.to_string();
                let cut = advice.split("truncate -s ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
                let wal = std::fs::OpenOptions::new().write(true).open(place.join("abide.db-wal")).expect("the WAL");
                wal.set_len(cut.unwrap_or_else(|| panic!("no advice: {advice}"))).expect("a cut");
                refused += 1;
            }
        }
        healthy(&place);
        let left = keys(&place);
        assert!(left.iter().all(|(key, runs)| whole.get(key) == Some(runs)), "at {at}: something that never was");
        for (key, run, _) in said.iter().filter(|(_, _, length)| *length <= at) {
            assert_eq!(left.get(key), Some(&vec![run.clone()]), "{key} was acknowledged before the damage at {at}");
            promised += 1;
        }
        fewest = fewest.min(left.len());
    }
    assert!(refused > 12 && fewest < whole.len(), "only {refused} were refused");
    assert!(promised > 100, "too few were acknowledged before the damage: {promised}");
}

/// F42: when a WAL is damaged of which a part was copied into the database already, old pages are laid over newer ones. Then
/// the store does not open, or the doctor says what does not fit; what is taken for sound is a prefix of what was committed.
#[test]
fn f42_a_flipped_bit_in_a_wal_that_was_half_copied_is_found() {
    let directory = Directory::new("flipped-copied");
    prepare(&directory.data());
    let small = [("ABIDE_CRASH_KEYS", "400"), ("ABIDE_CRASH_PREFIX", "old")];
    assert!(Process::start("start", &directory.data(), &small).end().0.success());
    // Pages that are there already change again and again, and a part of them has been copied.
    let settings = [("LD_PRELOAD", shim()), ("ABIDE_SHIM", "db-write-kill:700"), ("ABIDE_CRASH_PAD", "5000")];
    let process = Process::start("start", &directory.data(), &settings);
    assert!(process.listen(PATIENCE, &mut Vec::new()), "no checkpoint came");
    process.kill();
    let wal = std::fs::read(directory.data().join("abide.db-wal")).expect("the WAL");
    let whole = {
        let place = directory.path().join("whole");
        copy(&directory.data(), &place);
        store::runs(&place)
    };
    let (mut dice, mut found, mut sound) = (Dice::new(43), 0, 0);
    for n in 0..24 {
        let place = directory.path().join(format!("flipped-{n}"));
        copy(&directory.data(), &place);
        let (at, mut flipped) = (dice.below(wal.len() as u64) as usize, wal.clone());
        flipped[at] ^= 1 << dice.below(8);
        std::fs::write(place.join("abide.db-wal"), &flipped).expect("a damaged WAL");
        if doctor_says(&place).is_some() {
            found += 1;
            continue;
        }
        sound += 1;
        for (id, run) in store::runs(&place) {
            let is_prefix = whole.get(&id).is_some_and(|whole| whole.events.starts_with(&run.events));
            assert!(is_prefix, "nobody saw the flip at {at}, and {id} is not as it was");
        }
    }
    println!("of the damaged ones {found} were found and {sound} are sound");
    assert!(found > 0, "no damage mixed old pages with new ones; {sound} were sound");
}

/// Why a store does not open, why its engine stops, or what the doctor finds in it; nothing when it is sound.
fn doctor_says(data: &Path) -> Option<String> {
    let stopped = Arc::new(Mutex::new(None));
    let on_fatal = {
        let stopped = stopped.clone();
        Arc::new(move |fatal: &Fatal| *stopped.lock().expect("a lock") = Some(fatal.to_string()))
    };
    let engine = match Engine::open_with(data, Options { on_fatal, ..options() }) {
        Ok(engine) => engine,
        Err(error) => return Some(error.to_string()),
    };
    let found = runtime().block_on(async {
        let report = engine.doctor().await;
        engine.shutdown().await;
        match report {
            Ok(report) => report.problems.first().map(ToString::to_string),
            Err(error) => Some(error.to_string()),
        }
    });
    let stopped = stopped.lock().expect("a lock").take();
    found.or(stopped)
}

/// Every row that belongs to a run.
fn dump(database: &Path) -> rusqlite::Result<Vec<String>> {
    let db = Connection::open(database)?;
    let mut tables = db.prepare("select name from sqlite_master where type = 'table' order by name")?;
    let tables: Vec<String> = tables.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for table in tables.iter().filter(|table| !["idempotency_keys", "workers"].contains(&table.as_str())) {
        let mut statement = db.prepare(&format!("select * from {table}"))?;
        let columns = statement.column_count();
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let values = (0..columns).map(|n| row.get::<_, rusqlite::types::Value>(n));
            rows.push(format!("{table} {:?}", values.collect::<Result<Vec<_>, _>>()?));
        }
    }
    Ok(rows)
}

/// F44: a reader that stays too long is cut off, and the WAL is used again afterwards.
#[test]
fn f44_a_reader_that_stays_is_cut_off_and_the_wal_stays_small() {
    let directory = Directory::new("pinned");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    let readers = Readers::new(engine.files().clone()).expect("readers");
    let reading = std::thread::spawn(move || {
        let watch = Stopwatch::start();
        let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n";
        let read = readers.read(|db| {
            db.query_row("select count(*) from runs", [], |_| Ok(()))?;
            Ok(db.query_row(endless, [], |row| row.get::<_, i64>(0))?)
        });
        (read.is_err(), watch.elapsed())
    });
    let size = |directory: &Directory| {
        std::fs::metadata(directory.data().join("abide.db-wal")).map(|file| file.len()).unwrap_or(0)
    };
    let largest = runtime().block_on(async {
        work::register(&engine).await;
        let pad = "x".repeat(100_000);
        let start = async |n: usize| {
            let input = format!("{{\"pad\":\"{pad}\"}}");
            let new = abide_engine::NewRun::of("plain", input, abide_core::run::command::Actor::user("ben"));
            engine.start_run(new).await.unwrap_or_else(|error| panic!("{n}: {error}"));
        };
        let watch = Stopwatch::start();
        let mut largest = 0;
        while !reading.is_finished() {
            assert!(watch.elapsed() < PATIENCE, "the reader is never cut");
            start(0).await;
            largest = largest.max(size(&directory));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Two rounds more: the first copies everything, the next begins the WAL anew.
        for n in 0..400 {
            start(n).await;
        }
        largest
    });
    let (cut, after) = reading.join().expect("a reader");
    assert!(cut && after < PATIENCE, "cut {cut} after {after:?}");
    let limit = 64 << 20;
    assert!(size(&directory) <= limit + (8 << 20), "{} after {largest}", size(&directory));
    runtime().block_on(engine.shutdown());
}

/// F44: readers that follow each other without a gap do not let the WAL grow without end either.
#[test]
fn f44_readers_without_a_gap_do_not_make_the_wal_grow_for_ever() {
    let directory = Directory::new("gapless");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    let runtime = runtime();
    let largest = runtime.block_on(async {
        work::register(&engine).await;
        for n in 0..40 {
            work::start_of(&engine, &format!("k{n}"), "plain").await.expect("a run");
        }
        // Each holds its snapshot for a while and takes the next one at once; there is always another one.
        let (readers, stop) = (Readers::new(engine.files().clone()).expect("readers"), AtomicBool::new(false));
        let (readers, stop) = (Arc::new(readers), Arc::new(stop));
        let reading: Vec<_> = (0..3)
            .map(|n| {
                let (readers, stop) = (readers.clone(), stop.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20 * n));
                    while !stop.load(Ordering::SeqCst) {
                        let read = readers.read(|db| {
                            db.query_row("select count(*) from runs", [], |_| Ok(()))?;
                            std::thread::sleep(Duration::from_millis(60));
                            Ok(())
                        });
                        read.expect("a read");
                    }
                })
            })
            .collect();
        let pad = format!("{{\"pad\":\"{}\"}}", "x".repeat(1_000_000));
        let mut largest = 0;
        for _ in 0..600 {
            let new = abide_engine::NewRun::of("wait", pad.clone(), abide_core::run::command::Actor::user("ben"));
            engine.start_run(new).await.expect("a run");
            let wal = directory.data().join("abide.db-wal");
            largest = largest.max(std::fs::metadata(wal).map(|file| file.len()).unwrap_or(0));
        }
        stop.store(true, Ordering::SeqCst);
        reading.into_iter().for_each(|reader| reader.join().expect("a reader"));
        engine.shutdown().await;
        largest
    });
    // Readers are waited for at 256 MiB, and again every 64 MiB if a busy machine did not let them finish in time. All that
    // was written is half as much again.
    assert!(largest < 400 << 20, "the WAL grew to {largest} bytes");
}

/// F44: a reader that stays, as the backup of a large store does, costs no commit more than a moment, also when the WAL has
/// grown so long that readers are waited for.
#[test]
fn f44_no_commit_waits_long_for_a_reader_however_long_the_wal_is() {
    let directory = Directory::new("patient");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    let readers = Readers::new(engine.files().clone()).expect("readers");
    let (let_go, told) = std::sync::mpsc::channel::<()>();
    let (began, begins) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        readers.read(|db| {
            db.query_row("select count(*) from runs", [], |_| Ok(()))?;
            began.send(()).expect("somebody listens");
            let _ = told.recv();
            Ok(())
        })
    });
    begins.recv().expect("it reads");
    let (before, slowest, length) = runtime().block_on(async {
        work::register(&engine).await;
        let pad = format!("{{\"pad\":\"{}\"}}", "x".repeat(1_000_000));
        let (mut before, mut slowest) = (Duration::ZERO, Duration::ZERO);
        for n in 0..320 {
            let new = abide_engine::NewRun::of("wait", pad.clone(), abide_core::run::command::Actor::user("ben"));
            let watch = Stopwatch::start();
            engine.start_run(new).await.expect("a run");
            // Up to 256 MiB no reader is waited for: these commits tell how slow the disk is.
            let slow = if n < 200 { &mut before } else { &mut slowest };
            *slow = watch.elapsed().max(*slow);
        }
        let length = std::fs::metadata(directory.data().join("abide.db-wal")).expect("a WAL").len();
        let_go.send(()).expect("it still reads");
        (before, slowest, length)
    });
    reading.join().expect("no panic").expect("it was read to the end");
    assert!(length > 300 << 20, "the WAL did not grow: {length}");
    // A reader would be waited for as long as a foreign writer, for five seconds, were there no shorter time for it.
    let most = before + Duration::from_secs(4);
    assert!(slowest < most, "a commit took {slowest:?}, and {before:?} while no reader was waited for");
    runtime().block_on(engine.shutdown());
}

/// F45: a foreign process that holds the write lock makes requests wait for a bounded time, then they are told that the
/// engine is overloaded, all of them together; when it lets go, work goes on.
#[test]
fn f45_a_foreign_writer_makes_requests_wait_and_then_fail() {
    let directory = Directory::new("foreign");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    runtime().block_on(async {
        work::register(&engine).await;
        work::start_of(&engine, "before", "plain").await.expect("a run");
        let foreign = Connection::open(directory.data().join("abide.db")).expect("the database");
        foreign.execute_batch("begin immediate").expect("the write lock");
        let watch = Stopwatch::start();
        let asks: Vec<_> = (0..50)
            .map(|n| {
                let engine = engine.clone();
                tokio::spawn(async move { work::start_of(&engine, &format!("k{n}"), "plain").await })
            })
            .collect();
        assert_eq!(engine.list(Filter::open(), None, 10).await.expect("reads go on").runs.len(), 1);
        let waits = Claim { until: Some(engine.clock().now() + Span::from_secs(600)), ..work::claim("w", &["x"], 1) };
        assert_eq!(engine.claim(waits).await.expect_err("nothing can be leased").code(), "overloaded");
        for asked in asks {
            assert_eq!(asked.await.expect("a task").expect_err("nobody can write").code(), "overloaded");
        }
        // Together: one after the other they would take 250 seconds.
        assert!(watch.elapsed() < PATIENCE, "it took {:?}", watch.elapsed());
        foreign.execute_batch("rollback").expect("let go");
        let told = work::start_of(&engine, "k0", "plain").await.expect("work goes on");
        assert!(!told.replayed, "it was refused before, so nothing was written");
        let report = engine.doctor().await.expect("a report");
        assert!(report.is_healthy(), "{:#?}", report.problems);
        engine.shutdown().await;
    });
}

/// F45, for a worker in the same process: what its handler gave back while nobody could write is offered until it is taken.
#[test]
fn f45_a_worker_does_not_forget_what_it_has_done_while_nobody_can_write() {
    let directory = Directory::new("offered-again");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    runtime().block_on(async {
        engine.register("workflow: once\nsteps:\n  - { id: pay, task: pay, effect: external }\n").await.expect("known");
        let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (entered, held) = (begun.clone(), go_on.clone());
        let worker = engine.worker("w").handle("pay", move |_| {
            let (entered, held) = (entered.clone(), held.clone());
            async move {
                entered.notify_one();
                held.notified().await;
                Ok(serde_json::json!({ "paid": true }))
            }
        });
        let stop = worker.stopper();
        let working = tokio::spawn(worker.run());
        let run = engine.start("once", ()).await.expect("a run").run_id;
        begun.notified().await;
        let foreign = Connection::open(directory.data().join("abide.db")).expect("the database");
        foreign.execute_batch("begin immediate").expect("the write lock");
        go_on.notify_one();
        // As long as the engine waits for the lock, and a little more.
        tokio::time::sleep(Duration::from_secs(6)).await;
        foreign.execute_batch("rollback").expect("let go");
        stop.now();
        working.await.expect("no panic").expect("it ended in order");
        let record = engine.run(&run).await.expect("a record");
        assert_eq!((record.state, record.attempt), (RunState::Succeeded, 1));
        engine.shutdown().await;
    });
}

/// F46: a backup of a live engine is a healthy store, and all that was committed up to an instant after it began. A plain
/// copy of the files is not: while it reads, a checkpoint comes, and the doctor tells so; or it lacks what was acknowledged.
#[test]
fn f46_a_backup_is_whole_where_a_copy_of_the_files_is_not() {
    let directory = Directory::new("copied");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    let (mut backups, mut copies) = (Vec::new(), Vec::new());
    runtime().block_on(async {
        work::register(&engine).await;
        let (pad, started) = ("x".repeat(100_000), Arc::new(AtomicUsize::new(0)));
        // One after another, so that a prefix of the keys is a prefix of the commits.
        let load = {
            let (engine, started) = (engine.clone(), started.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    work::start_padded(&engine, &format!("k{n}"), "plain", &pad).await.expect("a run");
                    started.store(n + 1, Ordering::SeqCst);
                }
            })
        };
        let comes_to = async |runs: usize| {
            while started.load(Ordering::SeqCst) < runs {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        comes_to(200).await;
        for n in 0..3 {
            let (backup, copied) =
                (directory.path().join(format!("backup-{n}")), directory.path().join(format!("cp-{n}")));
            let acknowledged = started.load(Ordering::SeqCst);
            engine.backup(&backup).await.expect("a backup");
            backups.push((backup, acknowledged));
            // As `cp` does with files so large that a checkpoint comes while it reads; there is one every 130 runs.
            std::fs::create_dir_all(&copied).expect("a directory");
            let acknowledged = started.load(Ordering::SeqCst);
            let half = std::fs::metadata(directory.data().join("abide.db")).expect("the database").len() / 2;
            let database = directory.data().join("abide.db");
            let mut bytes = std::fs::read(&database).expect("the database")[..half as usize].to_vec();
            comes_to(acknowledged + 200).await;
            bytes.extend(&std::fs::read(&database).expect("the database")[half as usize..]);
            std::fs::write(copied.join("abide.db"), bytes).expect("a copy");
            std::fs::copy(directory.data().join("abide.db-wal"), copied.join("abide.db-wal")).expect("a copy");
            copies.push((copied, acknowledged));
        }
        load.abort();
        let _ = load.await;
        engine.shutdown().await;
    });
    drop(engine);
    let whole = store::runs(&directory.data());
    for (backup, acknowledged) in &backups {
        healthy(backup);
        let (saved, runs) = (keys(backup), store::runs(backup));
        assert!(saved.len() >= *acknowledged, "{acknowledged} were acknowledged, {} are there", saved.len());
        assert!((0..saved.len()).all(|n| saved.contains_key(&format!("k{n}"))), "no prefix of what was committed");
        for (id, run) in &runs {
            assert!(whole[id].events.starts_with(&run.events), "{id} is not as it was");
        }
    }
    let says: Vec<Option<String>> = copies.iter().map(|(copied, _)| doctor_says(copied)).collect();
    println!("of copies the doctor says {says:#?}");
    assert!(says.iter().any(Option::is_some), "nobody sees that a copy is broken");
    for ((copied, acknowledged), says) in copies.iter().zip(&says) {
        assert!(says.is_some() || keys(copied).len() < *acknowledged, "a copy is whole by chance");
    }
}

/// A store that is not one is refused with a reason, and left as it is.
#[test]
fn a_file_that_is_no_database_is_refused() {
    let directory = Directory::new("foreign-file");
    std::fs::create_dir_all(directory.data()).expect("a directory");
    let text = b"this is not a database, but somebody may still want it".repeat(200);
    std::fs::write(directory.data().join("abide.db"), &text).expect("a file");
    let refused = Engine::open(directory.data()).expect_err("not a database");
    assert!(matches!(refused, StoreError::Damaged(_)), "{refused}");
    assert_eq!(std::fs::read(directory.data().join("abide.db")).expect("the file"), text);
}
