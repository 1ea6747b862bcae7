//! Wakes whoever watches, from what was committed. What it says is a hint: the truth is read from the store, where every
//! position can be taken up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use abide_core::contract::RunState;
use abide_core::ids::WorkflowId;
use tokio::sync::broadcast;

use crate::store::{RunKey, RunNo};

/// How many commits a watcher may lag behind before it is cut off.
const LAG: usize = 4_096;

/// A run changed, and this is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub key: RunKey,
    pub no: RunNo,
    pub workflow: WorkflowId,
    pub state: RunState,
    pub from_seq: u64,
    pub to_seq: u64,
}

/// One commit.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Its position; later ones are greater.
    pub batch: i64,
    pub runs: Arc<[Committed]>,
}

#[derive(Debug)]
pub struct Hub {
    commits: broadcast::Sender<Commit>,
    position: AtomicI64,
}

/// What a watcher gets next.
#[derive(Clone, Debug)]
pub enum Seen {
    Commit(Commit),
    /// It was too slow. Whatever came after this position must be read from the store.
    Gap {
        after: i64,
    },
    /// The engine has stopped.
    End,
}

/// Follows the commits from the moment it was made.
#[derive(Debug)]
pub struct Watcher {
    commits: broadcast::Receiver<Commit>,
    position: i64,
}

impl Default for Hub {
    fn default() -> Hub {
        Hub { commits: broadcast::Sender::new(LAG), position: AtomicI64::new(0) }
    }
}

impl Hub {
    pub fn committed(&self, batch: i64, runs: Vec<Committed>) {
        self.position.store(batch, Ordering::SeqCst);
        // Without watchers nobody hears it, which is fine.
        let _ = self.commits.send(Commit { batch, runs: runs.into() });
    }

    pub fn watch(&self) -> Watcher {
        // Subscribed first: what is committed in between is seen twice rather than never.
        let commits = self.commits.subscribe();
        Watcher { commits, position: self.position.load(Ordering::SeqCst) }
    }
}

impl Watcher {
    /// The last commit that was handed out.
    pub fn position(&self) -> i64 {
        self.position
    }

    pub async fn next(&mut self) -> Seen {
        loop {
            match self.commits.recv().await {
                Ok(commit) if commit.batch <= self.position => {}
                Ok(commit) => {
                    self.position = commit.batch;
                    return Seen::Commit(commit);
                }
                Err(broadcast::error::RecvError::Lagged(_)) => return Seen::Gap { after: self.position },
                Err(broadcast::error::RecvError::Closed) => return Seen::End,
            }
        }
    }
}
