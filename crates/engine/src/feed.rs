//! Everything that is committed, in order, from any position: caught up from the store, then live. A reader that is too
//! slow is told so and takes up again where it was; nothing is skipped.

use std::collections::VecDeque;

use abide_core::ids::WorkflowId;

use crate::engine::Engine;
use crate::hub::{Seen, Watcher};
use crate::reads::ReadError;
use crate::store::sqlite::read;
use crate::store::{RunKey, Stored};

/// Commits that are read from the store at once.
const PAGE: usize = 256;

/// One run changed: its events from one number to another are new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where to take up again after this one.
    pub position: i64,
    pub key: RunKey,
    pub workflow: WorkflowId,
    pub from_seq: u64,
    pub to_seq: u64,
}

/// What a reader of everything gets next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    Change(Change),
    /// The reader was too slow. It goes on from its position, or reads the runs anew.
    Gap {
        position: i64,
    },
    /// The position is older than what is kept: lists must be read anew.
    Expired,
    End,
}

#[derive(Debug)]
pub struct Feed {
    engine: Engine,
    watcher: Watcher,
    position: i64,
    ready: VecDeque<Change>,
    caught_up: bool,
}

impl Engine {
    /// Follows every change of this namespace: from now on, or after a position that was handed out before.
    pub fn follow(&self, after: Option<i64>) -> Feed {
        let watcher = self.watch();
        let (position, caught_up) = match after {
            Some(position) => (position, false),
            None => (watcher.position(), true),
        };
        Feed { engine: self.clone(), watcher, position, ready: VecDeque::new(), caught_up }
    }
}

impl Feed {
    pub fn position(&self) -> i64 {
        self.position
    }

    pub async fn next(&mut self) -> Result<Followed, ReadError> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                // A position is passed only when all of its commit was handed out.
                let unfinished = self.ready.front().is_some_and(|next| next.position == change.position);
                self.position = if unfinished { change.position - 1 } else { change.position };
                return Ok(Followed::Change(change));
            }
            if !self.caught_up {
                match self.read_page().await? {
                    Some(0) => self.caught_up = true,
                    Some(_) => {}
                    None => return Ok(Followed::Expired),
                }
                continue;
            }
            match self.watcher.next().await {
                Seen::Commit(commit) if commit.batch <= self.position => {}
                Seen::Commit(commit) => {
                    let own = commit.runs.iter().filter(|one| one.key.namespace == *self.engine.namespace());
                    self.ready.extend(own.map(|one| Change {
                        position: commit.batch,
                        key: one.key.clone(),
                        workflow: one.workflow.clone(),
                        from_seq: one.from_seq,
                        to_seq: one.to_seq,
                    }));
                    if self.ready.is_empty() {
                        self.position = commit.batch;
                    }
                }
                Seen::Gap { .. } => {
                    self.watcher = self.engine.watch();
                    self.caught_up = false;
                    return Ok(Followed::Gap { position: self.position });
                }
                Seen::End => return Ok(Followed::End),
            }
        }
    }

    /// Reads what was committed after the position; tells how many commits there were.
    async fn read_page(&mut self) -> Result<Option<usize>, ReadError> {
        let (engine, after) = (self.engine.clone(), self.position);
        let reading = tokio::task::spawn_blocking(move || engine.changes_after(after));
        let page = reading.await.map_err(|error| crate::store::StoreError::Failed(error.to_string()))??;
        let Some((last, commits, changes)) = page else { return Ok(None) };
        if changes.is_empty() {
            self.position = last;
        }
        self.ready.extend(changes);
        Ok(Some(commits))
    }
}

impl Engine {
    /// The last commit of a page after a position, how many commits it has, and their changes in this namespace.
    fn changes_after(&self, after: i64) -> Stored<Option<(i64, usize, Vec<Change>)>> {
        self.readers().read(|db| {
            let Some(commits) = read::commits_after(db, after, PAGE)? else { return Ok(None) };
            let last = commits.last().map_or(after, |(batch, _)| *batch);
            let count = commits.len();
            let mut changes = Vec::new();
            for (position, touched) in commits {
                for one in touched {
                    // A run that has been archived since is read from the archive, not followed.
                    let Some((key, workflow)) = read::key_of(db, one.no)? else { continue };
                    if key.namespace == *self.namespace() {
                        let (from_seq, to_seq) = (one.from_seq, one.to_seq);
                        changes.push(Change { position, key, workflow, from_seq, to_seq });
                    }
                }
            }
            Ok(Some((last, count, changes)))
        })
    }
}
