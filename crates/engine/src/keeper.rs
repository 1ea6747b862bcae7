//! Housekeeping beside the lane: moves old runs to the archive, folds commits into the numbers, forgets what nobody asks
//! for. It asks the lane like everybody else, and a crash in the middle leaves nothing half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_core::ids::Namespace;
use abide_core::time::{Span, Timestamp};

use crate::archive::{self, Bundle, RUNS_AT_ONCE, Retention};
use crate::clock::Clock;
use crate::insights;
use crate::queue::Requests;
use crate::request::{Answer, Asked, Error, Packed, Request, Tidy, What};
use crate::store::sqlite::{Readers, insights as table};

/// Idempotency keys are kept this long.
pub const KEYS_STAY: Span = Span::from_secs(7 * 86_400);
/// Positions of followers are good for this long.
pub const POSITIONS_STAY: Span = Span::from_secs(86_400);
/// How often old runs are looked for.
const ARCHIVE_EVERY: Span = Span::from_secs(600);
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
        let mut archived_at = self.clock.now();
        let (mut position, mut calls) = (0, insights::Calls::default());
        while !self.stop.load(Ordering::SeqCst) {
            let more = self.fold(&mut position, &mut calls).unwrap_or_else(|error| {
                tracing::warn!(%error, "the numbers are not up to date");
                false
            });
            if self.clock.now().since(archived_at) >= ARCHIVE_EVERY {
                archived_at = self.clock.now();
                if let Err(error) = self.archive() {
                    tracing::warn!(%error, "old runs were not archived");
                }
            }
            std::thread::park_timeout(Duration::from_millis(if more { 20 } else { 1_000 }));
        }
    }

    /// Folds some commits after a position; tells whether there are more.
    fn fold(&self, position: &mut i64, calls: &mut insights::Calls) -> Result<bool, Error> {
        let after = *position;
        let fold =
            |db: &rusqlite::Connection| insights::fold::fold_after(db, calls, table::position(db)?.max(after), COMMITS);
        let Some((reached, added)) = self.readers.read(fold).map_err(unread)? else { return Ok(false) };
        // Commits that touched no run come from the clock alone; they are not worth a commit of their own.
        if !added.0.is_empty() {
            self.ask(Namespace::from("default"), What::Count(Box::new((reached, added))))?;
        }
        *position = reached;
        Ok(true)
    }

    /// Moves what is old enough; returns how many runs were moved.
    pub fn archive(&self) -> Result<u64, Error> {
        let mut moved = 0;
        loop {
            let now = self.clock.now();
            let packed = self.pack(now)?;
            let runs: u64 = packed.iter().map(|(_, runs)| runs.len() as u64).sum();
            let mut done = 0;
            for (namespace, runs) in packed {
                let tidy = Tidy { runs, keys_before: now - KEYS_STAY, batches_before: now - POSITIONS_STAY };
                if let Answer::Archived(count) = self.ask(namespace, What::Tidy(Box::new(tidy)))? {
                    done += count;
                }
            }
            moved += done;
            // When nothing could be moved, trying again would go on for ever.
            if runs == 0 || done == 0 {
                return Ok(moved);
            }
        }
    }

    fn pack(&self, now: Timestamp) -> Result<Vec<(Namespace, Vec<Packed>)>, Error> {
        let packed = self.readers.read(|db| {
            let mut packed: Vec<(Namespace, Vec<Packed>)> = Vec::new();
            for old in archive::old(db, &self.retention, now, RUNS_AT_ONCE)? {
                let Some(bundle) = Bundle::read(db, &old)? else { continue };
                let (bytes, size) = bundle.pack()?;
                let run = Packed { run_id: old.key.run_id, seq: bundle.head.seq, bundle: bytes, size };
                match packed.iter_mut().find(|(namespace, _)| *namespace == old.key.namespace) {
                    Some((_, runs)) => runs.push(run),
                    None => packed.push((old.key.namespace, vec![run])),
                }
            }
            Ok(packed)
        });
        packed.map_err(unread)
    }

    fn ask(&self, namespace: Namespace, what: What) -> Result<Answer, Error> {
        let (asked, answer) = Asked::new(Request { namespace, idempotency: None, what });
        self.requests.push(asked)?;
        answer.blocking_recv().unwrap_or(Err(Error::OutcomeUnknown))
    }
}

fn unread(error: crate::store::StoreError) -> Error {
    Error::StoreUnavailable(error.to_string())
}
