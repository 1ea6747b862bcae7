//! A machine that loses its power. A library put before libc writes down what a process tells its disk; from that, any
//! disk can be made that a power cut at any instant may leave behind: what was synced, and of the rest whatever chance
//! leaves, sector by sector.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use abide_engine::clock::Stopwatch;

use crate::cycles::{self, setting};
use crate::disk::shim;
use crate::kills::prepare;
use crate::ledger::Ledger;
use crate::{Dice, Directory, PATIENCE, Process};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;
const FILES: [&str; 2] = ["abide.db", "abide.db-wal"];
const DATABASE: usize = 0;
const WAL: usize = 1;
/// So much is written by a load that comes to a few checkpoints.
const LOG_BYTES: u64 = 64 << 20;

/// One thing that the process told its disk, or said aloud.
#[derive(Clone, Debug)]
enum Told {
    Wrote { file: usize, at: usize, bytes: Range<usize> },
    Truncated { file: usize, size: usize },
    SyncBegan { file: usize },
    SyncEnded { file: usize },
    Said { bytes: Range<usize> },
}

/// Everything that it told, in order.
struct Log {
    bytes: Vec<u8>,
    told: Vec<Told>,
}

impl Log {
    fn read(path: &Path) -> Log {
        let (bytes, mut told, mut next) = (std::fs::read(path).expect("a log"), Vec::new(), 0);
        while let Some(head) = bytes.get(next..next + 32) {
            let word = |n: usize| u64::from_ne_bytes(head[8 * n..8 * n + 8].try_into().expect("eight bytes")) as usize;
            let (kind, file, at, size) = (word(0), word(1).wrapping_sub(1), word(2), word(3));
            let carried = next + 32..next + 32 + if [0, 4].contains(&kind) { size } else { 0 };
            // The kill tore the last one.
            if carried.end > bytes.len() {
                break;
            }
            next = carried.end;
            told.push(match kind {
                0 => Told::Wrote { file, at, bytes: carried },
                1 => Told::Truncated { file, size },
                2 => Told::SyncBegan { file },
                3 => Told::SyncEnded { file },
                _ => Told::Said { bytes: carried },
            });
        }
        Log { bytes, told }
    }

    /// Whether the files are as the log says. Of the last thing that was told nobody knows.
    fn is_all_that_happened(&self, before: &Disk, after: &Disk) {
        let mut disk = before.clone();
        let last = self.told.iter().rposition(|told| matches!(told, Told::Wrote { .. } | Told::Truncated { .. }));
        let last = last.expect("the process wrote something");
        for file in [DATABASE, WAL] {
            disk.obey(self, 0..last, file);
        }
        let without = disk.0 == after.0;
        for file in [DATABASE, WAL] {
            disk.obey(self, last..self.told.len(), file);
        }
        assert!(without || disk.0 == after.0, "something was written that is not in the log");
    }

    /// What was said aloud before the cut: whoever heard it relies on it.
    fn said(&self, cut: usize) -> Vec<String> {
        let said = self.told[..cut].iter().filter_map(|told| match told {
            Told::Said { bytes } => Some(&self.bytes[bytes.clone()]),
            _ => None,
        });
        let text = String::from_utf8_lossy(&said.flatten().copied().collect::<Vec<_>>()).into_owned();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(|line| line.strip_prefix("@ ").map(Into::into)).collect()
    }

    /// Instants at which pages that a checkpoint copied are on their way to the disk.
    fn in_checkpoints(&self) -> Vec<usize> {
        let mut under_way = false;
        let mut instants = Vec::new();
        for (n, told) in self.told.iter().enumerate() {
            match told {
                Told::Wrote { file: DATABASE, .. } => under_way = true,
                Told::SyncEnded { file: DATABASE } => under_way = false,
                _ => {}
            }
            if under_way {
                instants.push(n + 1);
            }
        }
        instants
    }
}

/// Both files, as they would be found.
#[derive(Clone)]
struct Disk([Vec<u8>; 2]);

impl Disk {
    fn of(data: &Path) -> Disk {
        Disk(FILES.map(|name| std::fs::read(data.join(name)).unwrap_or_default()))
    }

    fn put(&self, data: &Path) {
        for (name, bytes) in FILES.iter().zip(&self.0) {
            std::fs::write(data.join(name), bytes).expect("a file");
        }
    }

    fn write(&mut self, file: usize, at: usize, bytes: &[u8]) {
        let file = &mut self.0[file];
        if file.len() < at + bytes.len() {
            file.resize(at + bytes.len(), 0);
        }
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Everything of one file that it was told within a stretch of the log.
    fn obey(&mut self, log: &Log, stretch: Range<usize>, only: usize) {
        for told in &log.told[stretch] {
            match told {
                Told::Wrote { file, at, bytes } if *file == only => self.write(*file, *at, &log.bytes[bytes.clone()]),
                Told::Truncated { file, size } if *file == only => self.0[*file].resize(*size, 0),
                _ => {}
            }
        }
    }

    /// The same, as a disk without power did it: each sector of it perhaps. A sector that was written twice may hold either
    /// version, as if the writes had come in any order.
    fn obey_in_part(&mut self, log: &Log, stretch: Range<usize>, only: usize, dice: &mut Dice) {
        // Of four: how much of it reached the disk. Sometimes nothing did, sometimes everything.
        let share = dice.below(5);
        for told in &log.told[stretch] {
            match told {
                Told::Wrote { file, at, bytes } if *file == only => {
                    let bytes = &log.bytes[bytes.clone()];
                    let mut from = 0;
                    while from < bytes.len() {
                        let to = bytes.len().min((at + from) / SECTOR * SECTOR + SECTOR - at);
                        if dice.below(4) < share {
                            self.write(*file, at + from, &bytes[from..to]);
                        }
                        from = to;
                    }
                }
                Told::Truncated { file, size } if *file == only && dice.below(4) < share => {
                    self.0[*file].resize(*size, 0);
                }
                _ => {}
            }
        }
    }
}

/// The disk as of the last syncs, while cuts move forward through the log.
struct Synced {
    disk: Disk,
    /// Up to where the log is durable, for each file.
    upto: [usize; 2],
    seen: usize,
    began: [usize; 2],
}

impl Synced {
    fn new(disk: Disk) -> Synced {
        Synced { disk, upto: [0; 2], seen: 0, began: [0; 2] }
    }

    /// A sync keeps what was written before it began, once it has ended.
    fn advance(&mut self, log: &Log, cut: usize) {
        for n in self.seen..cut {
            match log.told[n] {
                Told::SyncBegan { file } => self.began[file] = n,
                Told::SyncEnded { file } => {
                    self.disk.obey(log, self.upto[file]..self.began[file], file);
                    self.upto[file] = self.began[file];
                }
                _ => {}
            }
        }
        self.seen = cut;
    }

    /// What somebody finds who looks after the power came back.
    fn after_cut(&self, log: &Log, cut: usize, dice: &mut Dice) -> Disk {
        let mut disk = self.disk.clone();
        for file in [DATABASE, WAL] {
            disk.obey_in_part(log, self.upto[file]..cut, file, dice);
        }
        disk
    }
}

/// F41: a power cut at any instant, also inside of a checkpoint, leaves a healthy store with everything that was said
/// before it. `ABIDE_CRASH_SEED` chooses other cuts, `ABIDE_CRASH_CUTS` more of them.
#[test]
fn f41_a_power_cut_at_any_instant_loses_nothing_that_was_acknowledged() {
    let (seed, cuts) = (setting("ABIDE_CRASH_SEED", 1), setting("ABIDE_CRASH_CUTS", 32));
    let directory = Directory::new("power");
    let (data, path) = (directory.data(), directory.path().join("log"));
    prepare(&data);
    let whole = Disk::of(&data);
    let log = {
        let path = path.to_string_lossy();
        let settings = [("LD_PRELOAD", shim()), ("ABIDE_SHIM_LOG", &*path), ("ABIDE_CRASH_PAD", "50000")];
        let process = Process::start("load", &data, &settings);
        let (watch, long) = (Stopwatch::start(), || std::fs::metadata(&*path).map_or(0, |log| log.len()) >= LOG_BYTES);
        while !long() && watch.elapsed() < PATIENCE {
            assert!(!process.listen(Duration::from_millis(20), &mut Vec::new()), "it ended by itself");
        }
        process.kill();
        Log::read(Path::new(&*path))
    };
    log.is_all_that_happened(&whole, &Disk::of(&data));
    let in_checkpoints = log.in_checkpoints();
    let checkpoints = 1 + in_checkpoints.windows(2).filter(|two| two[0] + 1 < two[1]).count();
    assert!(in_checkpoints.len() > 1_000 && checkpoints >= 2, "{checkpoints} checkpoints are too few");
    let mut dice = Dice::new(seed);
    let mut chosen: Vec<usize> = (0..cuts)
        .map(|n| match n % 2 {
            0 => in_checkpoints[dice.below(in_checkpoints.len() as u64) as usize],
            _ => dice.below(log.told.len() as u64) as usize,
        })
        .collect();
    chosen.push(log.told.len());
    chosen.sort_unstable();
    let (mut synced, mut relied, mut unsynced) = (Synced::new(whole), 0, 0);
    for cut in chosen {
        synced.advance(&log, cut);
        let place = directory.path().join("found");
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("a directory");
        let found = synced.after_cut(&log, cut, &mut dice);
        unsynced += usize::from(found.0 != synced.disk.0);
        found.put(&place);
        std::fs::copy(data.join("seal.key"), place.join("seal.key")).expect("the key");
        let mut ledger = Ledger::default();
        ledger.hear(&log.said(cut));
        relied += ledger.acknowledged;
        cycles::judge(&place, &ledger, &format!("seed {seed}, a cut at {cut} of {}", log.told.len()));
    }
    println!("{checkpoints} checkpoints, {cuts} cuts, {unsynced} with unsynced sectors, {relied} answers relied on");
    assert!(unsynced * 3 > cuts as usize, "too few cuts left anything that was not synced: {unsynced}");
    assert!(relied > 100 * cuts, "too few answers to prove anything: {relied}");
}
