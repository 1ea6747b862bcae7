//! An engine that dies at a certain place, stops in order, or is not alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::run::event::Record;
use abide_engine::clock::Stopwatch;
use abide_engine::store::sqlite::{feed, read};
use abide_engine::testing::Point;
use abide_engine::{Engine, Filter};
use rusqlite::{Connection, params};

use crate::child::options;
use crate::ledger::Ledger;
use crate::{Dice, Directory, PATIENCE, Process, cycles, runtime, store, was_killed, work};

/// Makes the directory, with all workflows in it.
pub fn prepare(data: &Path) {
    let engine = Engine::open_with(data, options()).expect("an engine");
    runtime().block_on(async {
        work::register(&engine).await;
        engine.shutdown().await;
    });
}

/// Runs of the store by their keys.
pub fn keys(data: &Path) -> BTreeMap<String, Vec<String>> {
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, run) in store::runs(data) {
        keys.entry(run.key.expect("a key")).or_default().push(id);
    }
    keys
}

/// What a child acknowledged: its keys and their runs.
pub fn acknowledged(said: &[String]) -> BTreeMap<String, String> {
    let words = said.iter().map(|line| line.split(' ').collect::<Vec<_>>());
    words
        .filter(|words| words[..2.min(words.len())] == ["ack", "start"])
        .map(|words| (words[2].into(), words[3].into()))
        .collect()
}

/// The doctor finds nothing.
pub fn healthy(data: &Path) {
    let engine = Engine::open_with(data, options()).expect("an engine");
    let report = runtime().block_on(async {
        let report = engine.doctor().await.expect("a report");
        engine.shutdown().await;
        report
    });
    assert!(report.is_healthy(), "{:#?}", report.problems);
}

/// One start, by a child that dies at this point after it was asked and before it answered. Commits of the clock pass the
/// same points, so that the child may die too early or too late: then it is tried anew.
fn start_that_dies_at(point: Point, data: &Path, committed: bool) {
    let mut times = 1;
    for _ in 0..60 {
        let failpoint = format!("{}:{times}", point.name());
        let process = Process::start("start", data, &[("ABIDE_CRASH_KEYS", "1"), ("ABIDE_FAILPOINT", &failpoint)]);
        let (_, said) = process.end();
        let asked = said.iter().any(|line| line == "try start k0");
        let there = keys(data).contains_key("k0");
        if asked && acknowledged(&said).is_empty() && there == committed {
            return;
        }
        times = if there || times == 20 { 1 } else { times + 1 };
        if there {
            std::fs::remove_dir_all(data).expect("the old data goes");
            prepare(data);
        }
    }
    panic!("no start came to {point:?}");
}

/// Asks again with the same key.
fn start_again(data: &Path) -> Vec<String> {
    let (status, said) = Process::start("start", data, &[("ABIDE_CRASH_KEYS", "1")]).end();
    assert!(status.success(), "{said:?}");
    said
}

/// F1, F2: nothing of a start is visible before its commit, neither events nor rows, and its key then starts one run.
#[test]
fn f1_f2_a_start_that_dies_before_its_commit_leaves_nothing_and_its_key_starts_one_run() {
    for point in [Point::BeforeWrite, Point::AfterEvents, Point::AfterRows, Point::BeforeCommit] {
        let directory = Directory::new("before");
        prepare(&directory.data());
        start_that_dies_at(point, &directory.data(), false);
        assert!(keys(&directory.data()).is_empty(), "{point:?} left something");
        let said = start_again(&directory.data());
        assert!(!said.iter().any(|line| line == "replayed k0"), "{said:?}");
        assert_eq!(keys(&directory.data())["k0"].len(), 1);
        healthy(&directory.data());
    }
}

/// F3: a start that was committed and not answered is answered when it is asked again.
#[test]
fn f3_a_start_that_dies_after_its_commit_is_found_by_its_key() {
    for point in [Point::AfterCommit, Point::BeforeAnswer] {
        let directory = Directory::new("after");
        prepare(&directory.data());
        start_that_dies_at(point, &directory.data(), true);
        let committed = keys(&directory.data());
        assert_eq!(committed["k0"].len(), 1, "{point:?}");
        let said = start_again(&directory.data());
        assert!(said.iter().any(|line| line == "replayed k0"), "{said:?}");
        assert_eq!(acknowledged(&said)["k0"], committed["k0"][0]);
        assert_eq!(keys(&directory.data()), committed);
        healthy(&directory.data());
    }
}

/// F6: of a group commit all requests are in the store or none, and nobody of a group that is not was acknowledged.
#[test]
fn f6_a_group_commit_is_whole_or_not_there() {
    let mut largest = 0;
    for (point, times) in
        [(Point::AfterRows, 6), (Point::BeforeCommit, 9), (Point::AfterCommit, 9), (Point::BeforeAnswer, 12)]
    {
        let directory = Directory::new("group");
        let data = directory.data();
        prepare(&data);
        let failpoint = format!("{}:{times}", point.name());
        let (_, said) = Process::start("start", &data, &[("ABIDE_FAILPOINT", &failpoint)]).end();
        let (stored, said) = (store::runs(&data), acknowledged(&said));
        let db = Connection::open(data.join("abide.db")).expect("the database");
        let mut statement = db.prepare("select touched from batches order by batch").expect("batches");
        let batches: Vec<Vec<u8>> =
            statement.query_map([], |row| row.get(0)).expect("rows").map(|row| row.expect("a batch")).collect();
        let mut touched = BTreeSet::new();
        for batch in batches {
            let group = feed::decode(&batch).expect("a batch");
            largest = largest.max(group.len());
            for one in group {
                let seq: i64 = db
                    .query_row("select seq from runs where run_no = ?1", [one.no], |row| row.get(0))
                    .expect("every run of a group that was committed is there");
                assert!(seq as u64 >= one.to_seq);
                touched.insert(one.no);
            }
        }
        assert_eq!(touched.len(), stored.len(), "{point:?}: a run without its group");
        for (key, run) in &said {
            assert_eq!(stored.get(run).and_then(|found| found.key.as_ref()), Some(key), "{point:?}");
        }
        healthy(&data);
    }
    assert!(largest > 4, "no group was large enough to prove anything: {largest}");
}

/// F7: an engine that dies while it makes its schema leaves no half of it.
#[test]
fn f7_a_schema_that_was_interrupted_is_made_again() {
    let directory = Directory::new("schema");
    let (_, said) = Process::start("open", &directory.data(), &[("ABIDE_FAILPOINT", "in_migration:1")]).end();
    assert!(said.is_empty(), "{said:?}");
    let tables = |data: &Path| -> i64 {
        let db = Connection::open(data.join("abide.db")).expect("the database");
        db.query_row("select count(*) from sqlite_master", [], |row| row.get(0)).expect("a count")
    };
    assert_eq!(tables(&directory.data()), 0, "half a schema");
    prepare(&directory.data());
    healthy(&directory.data());
    // And at any instant, also before the first page is written.
    let mut dice = Dice::new(7);
    for _ in 0..12 {
        let directory = Directory::new("schema-any");
        for _ in 0..2 {
            let process = Process::start("open", &directory.data(), &[]);
            process.listen(Duration::from_millis(2 + dice.below(25)), &mut Vec::new());
            process.kill();
        }
        prepare(&directory.data());
        healthy(&directory.data());
    }
}

/// Brings a store back to its second schema, with everything that it holds.
fn taken_back(data: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    let db = Connection::open(to.join("abide.db")).expect("a database");
    db.execute_batch(include_str!("../../src/store/sqlite/migrations/001_runs.sql")).expect("the first schema");
    db.execute_batch(include_str!("../../src/store/sqlite/migrations/002_access.sql")).expect("the second schema");
    db.execute("attach ?1 as new", [data.join("abide.db").to_string_lossy()]).expect("the store");
    let names = |text: &str| -> Vec<String> {
        let mut statement = db.prepare(text).expect("a statement");
        statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).expect("names")
    };
    // A row of the log has the hash of its last event only.
    db.execute_batch("create temp table hashes (run_no integer, seq integer, hash blob, primary key (run_no, seq))")
        .expect("a table");
    for (no, event) in log(data) {
        let values = params![no, event.seq as i64, event.hash.0];
        db.execute("insert into hashes values (?1, ?2, ?3)", values).expect("a hash");
    }
    // Numbers are counted by tool since, and may begin anew.
    for table in names("select name from main.sqlite_master where type = 'table' and name not like 'insights%'") {
        let known = names(&format!("select name from pragma_table_info('{table}', 'new')"));
        let mut columns = names(&format!("select name from pragma_table_info('{table}', 'main')"));
        columns.retain(|column| known.contains(column));
        let values = columns.iter().map(|column| match (table.as_str(), column.as_str()) {
            ("run_events", "hash") => "(select hash from hashes \
                 where hashes.run_no = run_events.run_no and hashes.seq = run_events.seq)"
                .to_owned(),
            ("inbox", "message") | ("late_answers", "output") => format!("cast({column} as text)"),
            ("runs", "head") => {
                "json_set(head, '$.run_id', run_id, '$.namespace', namespace, '$.seq', seq, '$.state', \
                                 state, '$.updated_at', '2026-11-16T02:38:00.000000Z', '$.ended_at', null, '$.pinned', \
                                 true)"
                    .to_owned()
            }
            _ => column.clone(),
        });
        let values = values.collect::<Vec<_>>().join(", ");
        let copy = format!("insert into main.{table} ({}) select {values} from new.{table}", columns.join(", "));
        db.execute(&copy, []).unwrap_or_else(|error| panic!("{table}: {error}"));
    }
    db.execute_batch("pragma user_version = 2").expect("a number");
}

/// Every event of the store, with the number of its run.
fn log(data: &Path) -> Vec<(i64, Record)> {
    let db = Connection::open(data.join("abide.db")).expect("the database");
    let mut statement = db.prepare("select run_no from runs order by run_no").expect("runs");
    let runs: Vec<i64> = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).expect("numbers");
    let events = |no| read::events(&db, no, 0, usize::MAX).expect("a log").into_iter().map(move |event| (no, event));
    runs.into_iter().flat_map(events).collect()
}

/// What each event says, by its run and number.
fn events(data: &Path) -> BTreeMap<(i64, u64), String> {
    let said = |event: &Record| format!("{}{}{}", event.kind, event.payload, event.hash);
    log(data).iter().map(|(no, event)| ((*no, event.seq), said(event))).collect()
}

/// The next engine finishes what others began; the doctor finds nothing, and no event is missing or has changed.
fn migrates(data: &Path, before: &BTreeMap<(i64, u64), String>) {
    let engine = Engine::open(data).expect("an engine");
    runtime().block_on(async {
        let report = engine.doctor().await.expect("a report");
        assert!(report.is_healthy(), "{:#?}", report.problems);
        engine.shutdown().await;
    });
    drop(engine);
    let after = events(data);
    assert!(before.iter().all(|(key, event)| after.get(key) == Some(event)), "an event is not as it was");
}

/// F7: an engine that dies in any later migration, on a store with runs in all states, leaves the schema before it; the
/// next one goes on from there.
#[test]
fn f7_a_migration_that_was_interrupted_is_made_again_and_every_event_stays() {
    let directory = Directory::new("migrations");
    let process = Process::start("load", &directory.data(), &[]);
    for _ in 0..200 {
        process.until("ack start", PATIENCE);
    }
    process.kill();
    // Of that load nobody knows how much is archived by now; these stay, because nobody works.
    let (status, _) = Process::start("start", &directory.data(), &[("ABIDE_CRASH_KEYS", "100")]).end();
    assert!(status.success());
    let old = directory.path().join("old");
    taken_back(&directory.data(), &old);
    let before = events(&directory.data());
    assert!(before.len() >= 200, "too few events to prove anything: {}", before.len());
    let mut interrupted = 0;
    for n in 1.. {
        let place = directory.path().join(format!("dies-{n}"));
        crate::files::copy(&old, &place);
        let failpoint = format!("in_migration:{n}");
        let process = Process::start("open", &place, &[("ABIDE_FAILPOINT", &failpoint)]);
        let said = process.until("open", PATIENCE);
        process.kill();
        if said.iter().any(|line| line == "open") {
            // There are no more of them.
            break;
        }
        let version: i64 = Connection::open(place.join("abide.db"))
            .and_then(|db| db.pragma_query_value(None, "user_version", |row| row.get(0)))
            .expect("a number");
        assert_eq!(version, 1 + n, "half a migration, or one too many");
        migrates(&place, &before);
        interrupted += 1;
    }
    assert!(interrupted >= 6, "only {interrupted} migrations were interrupted");
    // And at any instant, again and again.
    let (place, mut dice) = (directory.path().join("dies-any"), Dice::new(70));
    crate::files::copy(&old, &place);
    for _ in 0..8 {
        let process = Process::start("open", &place, &[]);
        let opened = process.listen(Duration::from_millis(5 + dice.below(60)), &mut Vec::new());
        assert!(!opened, "it ended by itself");
        process.kill();
    }
    migrates(&place, &before);
}

/// F8: twenty engines die while they take away leases that were lost; each lease costs one attempt, not one per engine.
#[test]
fn f8_engines_that_die_during_recovery_do_not_cost_attempts() {
    const RUNS: usize = 600;
    let directory = Directory::new("recovery");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    runtime().block_on(async {
        work::register(&engine).await;
        let starts: Vec<_> = (0..RUNS)
            .map(|n| {
                let engine = engine.clone();
                tokio::spawn(async move { work::start_of(&engine, &format!("k{n}"), "fragile").await })
            })
            .collect();
        for start in starts {
            start.await.expect("a task").expect("a run");
        }
        assert_eq!(engine.claim(work::claim("w", &["drop"], RUNS)).await.expect("tasks").len(), RUNS);
        engine.shutdown().await;
    });
    drop(engine);
    std::thread::sleep(Duration::from_millis(400));
    let mut dice = Dice::new(8);
    let points = [Point::AfterEvents, Point::AfterRows, Point::BeforeCommit, Point::AfterCommit, Point::BeforeAnswer];
    let mut killed = 0;
    for n in 0..200 {
        if n >= 20 && killed >= 10 {
            break;
        }
        let point = points[n % points.len()];
        let times = 1 + if point == Point::AfterEvents { dice.below(200) } else { dice.below(2) };
        let failpoint = format!("{}:{times}", point.name());
        let process = Process::start("open", &directory.data(), &[("ABIDE_FAILPOINT", &failpoint)]);
        // The sweep comes with the opening.
        process.until("open", PATIENCE);
        killed += u32::from(process.listen(Duration::from_millis(700), &mut Vec::new()));
        process.kill();
    }
    assert!(killed >= 10, "only {killed} died in the sweep");
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    runtime().block_on(async {
        let watch = Stopwatch::start();
        while engine.counts(None).await.expect("counts").get(&RunState::Queued) != Some(&(RUNS as u64)) {
            assert!(watch.elapsed() < PATIENCE, "{:?}", engine.counts(None).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        engine.shutdown().await;
    });
    drop(engine);
    for (id, run) in store::runs(&directory.data()) {
        assert_eq!(run.count("task.lost"), 1, "{id}");
        let attempts: Vec<u32> =
            run.events.iter().filter(|event| event.kind == "task.issued").map(|event| event.attempt).collect();
        assert_eq!(attempts, [1, 2], "{id}");
    }
    healthy(&directory.data());
}

/// F10: an engine that dies while it archives leaves each run in exactly one place, with its chain.
#[test]
fn f10_a_run_is_archived_or_not_whenever_the_engine_dies() {
    let directory = Directory::new("archive");
    let archived = || -> i64 {
        let db = Connection::open(directory.data().join("abide.db")).expect("the database");
        db.query_row("select count(*) from archived_runs", [], |row| row.get(0)).expect("a count")
    };
    for (cycle, failpoint) in
        ["in_archive:1", "after_archive:1", "in_archive:5", "after_archive:4", "in_archive:20"].iter().enumerate()
    {
        let cycle = cycle.to_string();
        let settings = [("ABIDE_FAILPOINT", *failpoint), ("ABIDE_CRASH_CYCLE", &cycle)];
        let process = Process::start("load", &directory.data(), &settings);
        let mut said = Vec::new();
        assert!(process.listen(PATIENCE, &mut said), "{failpoint} was not reached");
        process.kill();
        let runs = store::runs(&directory.data());
        for run in acknowledged(&said).values() {
            assert!(runs.contains_key(run), "{run} is nowhere");
        }
        healthy(&directory.data());
    }
    // What they died of did not come in the way of who lives.
    let process = Process::start("load", &directory.data(), &[("ABIDE_CRASH_CYCLE", "9")]);
    let watch = Stopwatch::start();
    while archived() == 0 && watch.elapsed() < PATIENCE {
        process.listen(Duration::from_millis(100), &mut Vec::new());
    }
    process.kill();
    assert!(archived() > 0);
    healthy(&directory.data());
}

/// F11: an engine that stops under load carries what it accepted, refuses the rest, and its successor takes over at once.
#[test]
fn f11_a_graceful_stop_loses_nothing_and_lets_its_successor_in() {
    let directory = Directory::new("stop");
    prepare(&directory.data());
    let first = Process::start("start", &directory.data(), &[("ABIDE_CRASH_STOP_AFTER_MS", "400")]);
    first.until("open", PATIENCE);
    let successor = Process::start("successor", &directory.data(), &[]);
    let (status, said) = first.end();
    assert!(status.success(), "{said:?}");
    let said_in_time = successor.until("open", PATIENCE);
    assert!(said_in_time.iter().any(|line| line == "open"), "the successor is not served: {said_in_time:?}");
    successor.kill();
    let (stored, said_yes) = (keys(&directory.data()), acknowledged(&said));
    assert!(said_yes.len() > 20, "{said_yes:?}");
    for (key, run) in &said_yes {
        assert_eq!(stored.get(key), Some(&vec![run.clone()]));
    }
    for line in said.iter().filter_map(|line| line.strip_prefix("error ")) {
        let (key, code) = line.split_once(' ').expect("a key and a code");
        assert_eq!(code, "shutting-down");
        assert!(!stored.contains_key(key), "{key} was refused and is there");
    }
    healthy(&directory.data());
}

/// F11: the same with everything at once: whoever was refused while the engine stopped was not heard, and whoever holds a
/// lease or has no answer goes on with the next engine. No lease is lost, nothing is done twice, and in the end all drains.
#[test]
fn f11_a_graceful_stop_under_all_kinds_of_work_loses_no_lease_no_report_and_no_run() {
    let directory = Directory::new("stop-all");
    let (mut ledger, mut refused) = (Ledger::default(), 0);
    for cycle in 0..4 {
        let plan = directory.path().join("plan");
        std::fs::write(&plan, ledger.plan()).expect("a plan");
        let (cycle, plan) = (cycle.to_string(), plan.to_string_lossy().into_owned());
        let settings = [
            ("ABIDE_CRASH_CYCLE", cycle.as_str()),
            ("ABIDE_CRASH_PLAN", plan.as_str()),
            ("ABIDE_CRASH_STOP_AFTER_MS", "500"),
        ];
        let (status, said) = Process::start("load", &directory.data(), &settings).end();
        assert!(status.success() && said.last().is_some_and(|line| line == "end"), "{:?}", said.last());
        ledger.hear(&said);
        assert!(ledger.odd.is_empty(), "{:#?}", ledger.odd);
        let stored: BTreeSet<String> = store::runs(&directory.data()).into_values().filter_map(|run| run.key).collect();
        for line in said.iter().filter_map(|line| line.strip_prefix("refused ")) {
            refused += 1;
            let key = line.strip_prefix("start ").unwrap_or_default();
            assert!(!stored.contains(key), "{key} was refused and is there");
        }
        cycles::judge(&directory.data(), &ledger, &format!("stop {cycle}"));
    }
    assert!(refused > 0, "nobody was refused");
    assert!(ledger.reports.len() > 20 && ledger.leased.len() > 20, "the load was too small to prove anything");
    let stranded = cycles::drain(&directory.data(), &mut ledger);
    assert!(stranded.is_empty(), "{stranded:#?}");
    cycles::judge(&directory.data(), &ledger, "the end");
}

/// F12: a second engine on the same directory ends with a reason, and the first is not disturbed.
#[test]
fn f12_a_second_engine_ends_with_a_reason() {
    let directory = Directory::new("second");
    prepare(&directory.data());
    let first = Process::start("start", &directory.data(), &[]);
    first.until("ack", PATIENCE);
    let (status, said) = Process::start("open", &directory.data(), &[]).end();
    assert!(!status.success());
    assert!(said[0].starts_with("refused another process uses"), "{said:?}");
    assert!(first.next(PATIENCE).is_some());
    let said = acknowledged(&first.kill());
    let stored = keys(&directory.data());
    assert!(said.keys().all(|key| stored.contains_key(key)));
}

/// A group of processes that may use only so much memory; gone when the test is over.
struct Memory(PathBuf);

impl Memory {
    /// Below the root, or below the group that this process is in; of either kind of group. Otherwise why not.
    fn limited(bytes: u64) -> Result<Memory, String> {
        let (name, mut tried) = (format!("abide-crash-{}", std::process::id()), Vec::new());
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own_of = |controller: &str| {
            let line = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            let mut paths = line.filter(|(known, _)| known.split(',').any(|one| one == controller));
            paths.next().map_or("", |(_, path)| path.trim_start_matches('/')).to_owned()
        };
        let (first, second) = (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes");
        let mut places = vec![(first.to_owned(), second), (first.join(own_of("memory")), second)];
        for root in [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")] {
            let groups = [root.to_owned(), root.join(own_of(""))];
            // Groups within a group have limits of memory only when it says so.
            groups.iter().for_each(|group| drop(std::fs::write(group.join("cgroup.subtree_control"), "+memory")));
            places.extend(groups.map(|group| (group, "memory.max")));
        }
        for (place, limit) in places {
            let group = place.join(&name);
            let made = std::fs::create_dir(&group)
                .and_then(|()| OpenOptions::new().write(true).open(group.join(limit)))
                .and_then(|mut limit| limit.write_all(bytes.to_string().as_bytes()));
            let Err(error) = made else {
                // Memory that is swapped out counts too, where there is such a thing.
                let _ = std::fs::write(group.join("memory.memsw.limit_in_bytes"), bytes.to_string());
                let _ = std::fs::write(group.join("memory.swap.max"), "0");
                return Ok(Memory(group));
            };
            let _ = std::fs::remove_dir(&group);
            tried.push(format!("{}: {error}", group.display()));
        }
        Err(tried.join("; "))
    }

    fn take_in(&self, process: u32) {
        std::fs::write(self.0.join("cgroup.procs"), process.to_string()).expect("a process moves into the group");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// F13: an engine that the system kills because it has no memory left is as one that was killed. Where no group with little
/// memory can be made, it is killed by hand while it takes ever more.
#[test]
fn f13_an_engine_that_runs_out_of_memory_loses_nothing() {
    let memory = Memory::limited(64 << 20);
    let directory = Directory::new("memory");
    prepare(&directory.data());
    let process = Process::start("start", &directory.data(), &[("ABIDE_CRASH_HOARD", "1")]);
    let mut said = Vec::new();
    match &memory {
        Ok(memory) => {
            memory.take_in(process.id());
            assert!(process.listen(PATIENCE, &mut said), "nobody killed it");
        }
        Err(why) => {
            let seed = u64::from(process.id());
            eprintln!("killed by hand (seed {seed}), because no group with little memory can be made: {why}");
            said = process.until("ack", PATIENCE);
            let lives = Duration::from_millis(200 + Dice::new(seed).below(1_000));
            assert!(!process.listen(lives, &mut said), "it ended by itself");
            process.signal("-KILL");
        }
    }
    let (status, rest) = process.end();
    said.extend(rest);
    assert!(was_killed(status), "{status}: {:?}", said.last());
    assert!(acknowledged(&said).len() > 5, "{:?}", said.last());
    converges(&directory.data(), &said, &[]);
}

/// F14: a panic in the one writer ends the process; whatever it had not answered converges.
#[test]
fn f14_a_panic_in_the_lane_ends_the_process() {
    let directory = Directory::new("panic");
    prepare(&directory.data());
    let settings = [("ABIDE_FAILPOINT", "after_events:40:panic")];
    let process = Process::start("start", &directory.data(), &settings);
    let mut said = Vec::new();
    assert!(process.listen(PATIENCE, &mut said), "it lives on after a panic");
    let (status, _) = process.end();
    assert_eq!(status.code(), Some(70), "{said:?}");
    converges(&directory.data(), &said, &[]);
}

/// After a restart everything acknowledged is there, and every key that was tried has one run.
pub fn converges(data: &Path, said: &[String], settings: &[(&str, &str)]) {
    let before = keys(data);
    for (key, run) in acknowledged(said) {
        assert_eq!(before.get(&key), Some(&vec![run]), "{key} was acknowledged");
    }
    for line in said.iter().filter_map(|line| line.strip_prefix("error ")) {
        let (key, code) = line.split_once(' ').expect("a key and a code");
        assert!(code == "outcome-unknown" || !before.contains_key(key), "{key} was refused ({code}) and is there");
    }
    let tried = said.iter().filter_map(|line| line.strip_prefix("try start k")).filter_map(|n| n.parse::<usize>().ok());
    let most = (tried.max().expect("something was tried") + 1).to_string();
    let mut settings = settings.to_vec();
    settings.push(("ABIDE_CRASH_KEYS", &most));
    let (status, again) = Process::start("start", data, &settings).end();
    assert!(status.success(), "{again:?}");
    let after = keys(data);
    assert!(after.values().all(|runs| runs.len() == 1), "a key with two runs");
    let again = acknowledged(&again);
    for line in said.iter().filter_map(|line| line.strip_prefix("try start ")) {
        assert_eq!(after.get(line), Some(&vec![again[line].clone()]));
    }
    assert!(before.iter().all(|(key, runs)| after[key] == *runs), "a key has another run than before");
    healthy(data);
}

/// What was asked for in several lanes is drained by one worker after any number of crashes.
#[test]
fn a_worker_drains_what_crashed_engines_left() {
    let directory = Directory::new("drain");
    for prefix in ["a", "b", "c"] {
        let process = Process::start("start", &directory.data(), &[("ABIDE_CRASH_PREFIX", prefix)]);
        process.until("ack", PATIENCE);
        process.listen(Duration::from_millis(150), &mut Vec::new());
        process.kill();
    }
    let engine = Engine::open_with(directory.data(), options()).expect("an engine");
    runtime().block_on(async {
        let done = |_| async { Ok(serde_json::json!({ "n": 1 })) };
        let worker = engine.worker("w").handle("a", done).handle("b", done);
        let stop = worker.stopper();
        let working = tokio::spawn(worker.run());
        let watch = Stopwatch::start();
        while !engine.list(Filter::open(), None, 1).await.expect("a list").runs.is_empty() {
            assert!(watch.elapsed() < PATIENCE, "stranded");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.now();
        engine.shutdown().await;
        working.await.expect("a worker").expect("an end");
    });
}
