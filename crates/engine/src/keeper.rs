//! Housekeeping beside the lane: moves old runs to the archive, folds commits into the numbers, forgets what nobody asks
//! for. It asks the lane like everybody else, and a crash in the middle leaves nothing half done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_core::contract::RunState;
use abide_core::ids::Namespace;
use abide_core::time::{Span, Timestamp};

use crate::archive::{self, BYTES_AT_ONCE, RUNS_AT_ONCE, Retention};
use crate::clock::Clock;
use crate::insights;
use crate::queue::Requests;
use crate::request::{Answer, Asked, Error, Packed, Request, Tidy, What};
use crate::store::Before;
use crate::store::sqlite::archive::{self as table, Ended};
use crate::store::sqlite::{Readers, insights as numbers};

/// Idempotency keys are kept this long.
pub const KEYS_STAY: Span = Span::from_secs(7 * 86_400);
/// Positions of followers are good for this long.
pub const POSITIONS_STAY: Span = Span::from_secs(86_400);
/// How often old runs, and what is to be forgotten, are looked for.
const TIDY_EVERY: Span = Span::from_secs(600);
/// Runs that are looked at in one read.
const PAGE: usize = 256;
/// Commits that are folded into the numbers at once.
const COMMITS: usize = 64;

/// Nobody waits for the keeper: under load the processors belong to those who are waited for. Linux gives each thread a
/// priority of its own.
fn step_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        tracing::debug!(%error, "the keeper works at the priority of the others");
    }
}

#[derive(Debug)]
pub(crate) struct Keeper {
    pub requests: Arc<Requests>,
    pub readers: Arc<Readers>,
    pub clock: Arc<dyn Clock>,
    pub stop: Arc<AtomicBool>,
    pub retention: Retention,
}

impl Keeper {
    /// The keeper's thread.
    pub fn work(self) {
        step_back();
        let mut tidied_at = self.clock.now();
        let (mut position, mut memory) = (0, insights::fold::Memory::default());
        while !self.stop.load(Ordering::SeqCst) {
            let tended = catch_unwind(AssertUnwindSafe(|| self.tend(&mut tidied_at, &mut position, &mut memory)));
            let more = tended.unwrap_or_else(|_| {
                tracing::error!("housekeeping panicked, and begins again");
                (position, memory) = Default::default();
                false
            });
            std::thread::park_timeout(Duration::from_millis(if more { 20 } else { 1_000 }));
        }
    }

    /// Does what there is to do, and tells whether there is more.
    fn tend(&self, tidied_at: &mut Timestamp, position: &mut i64, memory: &mut insights::fold::Memory) -> bool {
        let more = self.fold(position, memory).unwrap_or_else(|error| {
            tracing::warn!(%error, "the numbers are not up to date");
            false
        });
        if self.clock.now().since(*tidied_at) >= TIDY_EVERY {
            *tidied_at = self.clock.now();
            if let Err(error) = self.archive() {
                tracing::warn!(%error, "old runs were not archived");
            }
            if let Err(error) = self.forget() {
                tracing::warn!(%error, "old keys and commits were not forgotten");
            }
        }
        more
    }

    /// Folds some commits after a position; tells whether there are more.
    fn fold(&self, position: &mut i64, memory: &mut insights::fold::Memory) -> Result<bool, Error> {
        let after = *position;
        let fold = |db: &rusqlite::Connection| {
            insights::fold::fold_after(db, memory, numbers::position(db)?.max(after), COMMITS)
        };
        let Some((reached, added)) = self.readers.read(fold).map_err(unread)? else { return Ok(false) };
        // Commits that touched no run come from the clock alone; they are not worth a commit of their own.
        if !added.0.is_empty() {
            self.ask(Namespace::from("default"), What::Count(Box::new((reached, added))))?;
        }
        *position = reached;
        Ok(true)
    }

    /// Moves what is old enough; returns how many runs were moved. A run that cannot be packed stays where it is, and those
    /// behind it move.
    pub fn archive(&self) -> Result<u64, Error> {
        let now = self.clock.now();
        let mut moved = 0;
        for namespace in self.readers.read(table::namespaces).map_err(unread)? {
            for (state, stays) in self.retention.all() {
                moved += self.archive_ended(&namespace, state, now - stays)?;
            }
        }
        Ok(moved)
    }

    fn archive_ended(&self, namespace: &str, state: RunState, before: Timestamp) -> Result<u64, Error> {
        let (mut moved, mut after) = (0, 0);
        let mut load = Load::default();
        loop {
            let page = self.readers.read(|db| table::ended(db, namespace, state, after, PAGE)).map_err(unread)?;
            // They are in the order of their starts: what began later has not ended before either.
            let is_last = page.last().is_none_or(|last| last.created_at >= before);
            for run in page {
                after = run.no;
                if run.pinned || run.ended_at >= before {
                    continue;
                }
                let Some(packed) = self.pack(&run) else { continue };
                if !load.has_room_for(&packed) {
                    moved += self.unload(namespace, &mut load)?;
                }
                load.add(packed);
            }
            if is_last {
                return Ok(moved + self.unload(namespace, &mut load)?);
            }
        }
    }

    /// Each run is packed in a snapshot of its own: the larger it is, the longer that takes.
    fn pack(&self, run: &Ended) -> Option<Packed> {
        match self.readers.read_at_length(|db| archive::pack(db, run)) {
            Ok(packed) => packed,
            Err(error) => {
                tracing::warn!(run = %run.key.run_id, %error, "a run stays where it is");
                None
            }
        }
    }

    fn unload(&self, namespace: &str, load: &mut Load) -> Result<u64, Error> {
        let runs = std::mem::take(load).runs;
        if runs.is_empty() {
            return Ok(0);
        }
        let tidy = Tidy { runs, forget: None };
        let answer = self.ask(Namespace::from(namespace), What::Tidy(Box::new(tidy)))?;
        if let Answer::Archived(moved) = answer { Ok(moved) } else { Ok(0) }
    }

    /// Forgets keys, commits and workers that nobody asks for any more, some in each transaction.
    pub fn forget(&self) -> Result<(), Error> {
        let now = self.clock.now();
        let before = Before { keys: now - KEYS_STAY, commits: now - POSITIONS_STAY };
        while self.readers.read(|db| table::has_before(db, before)).map_err(unread)? {
            let tidy = Tidy { runs: Vec::new(), forget: Some(before) };
            self.ask(Namespace::from("default"), What::Tidy(Box::new(tidy)))?;
        }
        Ok(())
    }

    fn ask(&self, namespace: Namespace, what: What) -> Result<Answer, Error> {
        let (asked, answer) = Asked::new(Request { namespace, idempotency: None, what });
        self.requests.push(asked)?;
        answer.wait()
    }
}

/// Runs that leave in one transaction.
#[derive(Default)]
struct Load {
    runs: Vec<Packed>,
    bytes: usize,
}

impl Load {
    fn has_room_for(&self, packed: &Packed) -> bool {
        self.runs.is_empty() || (self.runs.len() < RUNS_AT_ONCE && self.bytes + packed.bundle.len() <= BYTES_AT_ONCE)
    }

    fn add(&mut self, packed: Packed) {
        self.bytes += packed.bundle.len();
        self.runs.push(packed);
    }
}

fn unread(error: crate::store::StoreError) -> Error {
    Error::StoreUnavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use abide_core::ids::RunId;

    use super::*;

    fn packed(bytes: usize) -> Packed {
        Packed { run_id: RunId::from("run_a"), seq: 1, bundle: vec![0; bytes], size: bytes }
    }

    #[test]
    fn what_leaves_together_is_bounded_and_a_large_run_leaves_alone() {
        let mut load = Load::default();
        assert!(load.has_room_for(&packed(BYTES_AT_ONCE * 2)));
        load.add(packed(BYTES_AT_ONCE - 1));
        assert!(load.has_room_for(&packed(1)) && !load.has_room_for(&packed(2)));
        let mut load = Load::default();
        for _ in 0..RUNS_AT_ONCE {
            assert!(load.has_room_for(&packed(1)));
            load.add(packed(1));
        }
        assert!(!load.has_room_for(&packed(1)));
    }
}
