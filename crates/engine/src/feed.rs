//! Everything that is committed, in order, from any position: caught up from the store, then live. A reader that is too
//! slow is told so and takes up again where it was; nothing is skipped, also no run that was archived meanwhile. A position
//! that is not one of this store, because it is too old or the store was restored since, is said to be expired.

use std::collections::VecDeque;

use abide_core::ids::WorkflowId;

use crate::engine::Engine;
use crate::hub::{Position, Seen, Watcher};
use crate::reads::ReadError;
use crate::store::sqlite::read;
use crate::store::{RunKey, Stored};

/// Commits that are read from the store at once.
const PAGE: usize = 256;

/// One run changed: its events from one number to another are new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The commit in which it did. Others may have changed with it: [`Feed::position`] is where to take up again.
    pub position: Position,
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
        position: Position,
    },
    /// The position is older than what is kept, or of a store that this one was restored from: follow from now on, then read
    /// the runs anew.
    Expired,
    End,
}

#[derive(Debug)]
pub struct Feed {
    engine: Engine,
    watcher: Watcher,
    position: Position,
    ready: VecDeque<Change>,
    caught_up: bool,
}

impl Engine {
    /// Follows every change of this namespace: from now on, or after a position that was handed out before.
    pub fn follow(&self, after: Option<Position>) -> Feed {
        let watcher = self.watch();
        let (position, caught_up) = match after {
            Some(position) => (position, false),
            None => (watcher.position(), true),
        };
        Feed { engine: self.clone(), watcher, position, ready: VecDeque::new(), caught_up }
    }
}

impl Feed {
    /// Where to take up again: everything up to here was handed out.
    pub fn position(&self) -> Position {
        self.position
    }

    pub async fn next(&mut self) -> Result<Followed, ReadError> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                // A position is passed only when all of its commit was handed out.
                if self.ready.front().is_none_or(|next| next.position != change.position) {
                    self.position = change.position;
                }
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
                Seen::Commit(commit) if commit.position.batch <= self.position.batch => {}
                Seen::Commit(commit) => {
                    let own = commit.runs.iter().filter(|one| one.key.namespace == *self.engine.namespace());
                    self.ready.extend(own.map(|one| Change {
                        position: commit.position,
                        key: one.key.clone(),
                        workflow: one.workflow.clone(),
                        from_seq: one.from_seq,
                        to_seq: one.to_seq,
                    }));
                    if self.ready.is_empty() {
                        self.position = commit.position;
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
    fn changes_after(&self, after: Position) -> Stored<Option<(Position, usize, Vec<Change>)>> {
        self.readers().read(|db| {
            if !read::is_known(db, after)? {
                return Ok(None);
            }
            let Some(commits) = read::commits_after(db, after.batch, PAGE)? else { return Ok(None) };
            let last = commits.last().map_or(after, |(position, _)| *position);
            let count = commits.len();
            let mut changes = Vec::new();
            for (position, touched) in commits {
                for one in touched {
                    // Of a run that is not even in the archive there is nothing left to read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_follower_that_is_too_slow_is_told_and_then_sees_everything() {
        let directory = std::env::temp_dir().join(format!("abide-slow-follower-{}", std::process::id()));
        let engine = Engine::open(&directory).expect("an engine");
        engine.register("workflow: nap\nsteps:\n  - { id: nap, sleep: 1h }\n").await.expect("a document");
        let mut feed = engine.follow(None);
        let begin = feed.position();
        let mut started = Vec::new();
        for _ in 0..3 {
            started.push(engine.start("nap", "x").await.expect("a run").run_id);
        }
        // More than anybody may lag behind; of commits that are known already nothing is handed out.
        let last = engine.hub().watch().position();
        for _ in 0..5_000 {
            engine.hub().committed(last, crate::hub::tests::changes());
        }
        assert_eq!(feed.next().await.expect("it is told"), Followed::Gap { position: begin });
        for run in &started {
            let Followed::Change(change) = feed.next().await.expect("a change") else { panic!("a change") };
            assert_eq!(change.key.run_id, *run);
        }
        assert_eq!(feed.position(), last);
        let run = engine.start("nap", "x").await.expect("a run").run_id;
        let Followed::Change(change) = feed.next().await.expect("live again") else { panic!("a change") };
        assert_eq!(change.key.run_id, run);
        engine.shutdown().await;
        let _ = std::fs::remove_dir_all(directory);
    }
}
