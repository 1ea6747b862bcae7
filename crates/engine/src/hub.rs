//! Wakes whoever watches, from what was committed. What it says is a hint: the truth is read from the store, where every
//! position can be taken up again.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abide_core::contract::RunState;
use abide_core::ids::WorkflowId;
use abide_core::time::Timestamp;
use tokio::sync::broadcast;

use crate::store::{RunKey, RunNo};

/// How many commits a watcher may lag behind before it is cut off.
const LAG: usize = 1_024;

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

/// A place between two commits: all up to this one were seen. Its instant tells a store from the one that was restored from
/// its backup: both go on counting from the same commit, but not at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub batch: i64,
    pub at: Timestamp,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{:x}.{:x}", self.batch, self.at.micros())
    }
}

/// The text is not one that [`Position`] was written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a position")]
pub struct NoPosition;

impl FromStr for Position {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Position, NoPosition> {
        let number = |hex: &str| i64::from_str_radix(hex, 16).ok().filter(|number| *number >= 0);
        let (batch, at) = text.strip_prefix('p').and_then(|text| text.split_once('.')).ok_or(NoPosition)?;
        let (batch, at) = number(batch).zip(number(at)).ok_or(NoPosition)?;
        Ok(Position { batch, at: Timestamp::from_micros(at) })
    }
}

/// One commit.
#[derive(Clone, Debug)]
pub struct Commit {
    pub position: Position,
    pub runs: Arc<[Committed]>,
}

#[derive(Debug)]
pub struct Hub(Mutex<State>);

#[derive(Debug)]
struct State {
    /// None: nothing more will come.
    commits: Option<broadcast::Sender<Commit>>,
    position: Position,
}

/// What a watcher gets next.
#[derive(Clone, Debug)]
pub enum Seen {
    Commit(Commit),
    /// It was too slow. Whatever came after this position must be read from the store.
    Gap {
        after: Position,
    },
    /// The engine has stopped.
    End,
}

/// Follows the commits from the moment it was made.
#[derive(Debug)]
pub struct Watcher {
    commits: broadcast::Receiver<Commit>,
    position: Position,
}

impl Default for Hub {
    fn default() -> Hub {
        Hub::after(Position::default())
    }
}

impl Hub {
    /// Tells what is committed after a position, which is the last one that the store has.
    pub fn after(position: Position) -> Hub {
        Hub(Mutex::new(State { commits: Some(broadcast::Sender::new(LAG)), position }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of a commit. One that touched no run moves the position alone.
    pub fn committed(&self, position: Position, runs: Vec<Committed>) {
        let mut state = self.lock();
        state.position = position;
        if let Some(commits) = state.commits.as_ref().filter(|_| !runs.is_empty()) {
            // Without watchers nobody hears it, which is fine.
            let _ = commits.send(Commit { position, runs: runs.into() });
        }
    }

    pub fn watch(&self) -> Watcher {
        let state = self.lock();
        let position = state.position;
        // Of an engine that has stopped there is only the end to hear.
        let commits = state.commits.as_ref().map_or_else(|| broadcast::Sender::new(1).subscribe(), |of| of.subscribe());
        Watcher { commits, position }
    }

    /// The engine stops: who watches hears what is left in line, and that it was the last.
    pub fn close(&self) {
        self.lock().commits = None;
    }
}

impl Watcher {
    /// The last commit that was handed out.
    pub fn position(&self) -> Position {
        self.position
    }

    pub async fn next(&mut self) -> Seen {
        loop {
            match self.commits.recv().await {
                Ok(commit) if commit.position.batch <= self.position.batch => {}
                Ok(commit) => {
                    self.position = commit.position;
                    return Seen::Commit(commit);
                }
                Err(broadcast::error::RecvError::Lagged(_)) => return Seen::Gap { after: self.position },
                Err(broadcast::error::RecvError::Closed) => return Seen::End,
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn position(batch: i64) -> Position {
        Position { batch, at: Timestamp::from_micros(batch * 10) }
    }

    pub(crate) fn changes() -> Vec<Committed> {
        let key = RunKey { namespace: "default".into(), run_id: "run_a".into() };
        let (workflow, state) = ("w".into(), RunState::Queued);
        vec![Committed { key, no: 1, workflow, state, from_seq: 1, to_seq: 1 }]
    }

    #[test]
    fn a_position_is_read_back_from_its_text() {
        let one = Position { batch: 1_000, at: Timestamp::from_micros(1_753_000_000_000_000) };
        assert_eq!(one.to_string().parse(), Ok(one));
        assert_eq!(Position::default().to_string(), "p0.0");
        for text in ["", "p", "p1", "p1.", "p.1", "p1.x", "p-1.1", "1.1", "p1.1.1", "p11111111111111111.1"] {
            assert_eq!(text.parse::<Position>(), Err(NoPosition), "{text}");
        }
    }

    #[tokio::test]
    async fn a_watcher_that_is_too_slow_is_told_after_which_commit() {
        let hub = Hub::after(position(7));
        let mut watcher = hub.watch();
        hub.committed(position(8), changes());
        assert!(matches!(watcher.next().await, Seen::Commit(commit) if commit.position == position(8)));
        for batch in 9..=9 + LAG as i64 {
            hub.committed(position(batch), changes());
        }
        assert!(matches!(watcher.next().await, Seen::Gap { after } if after == position(8)));
        hub.close();
        // What is left in line is handed out before the end.
        let mut last = position(8);
        while let Seen::Commit(commit) = watcher.next().await {
            last = commit.position;
        }
        assert_eq!(last, position(9 + LAG as i64));
        assert!(matches!(hub.watch().next().await, Seen::End));
    }

    #[tokio::test]
    async fn a_commit_that_touched_nothing_moves_the_position_and_wakes_nobody() {
        let hub = Hub::after(position(7));
        let mut watcher = hub.watch();
        hub.committed(position(8), Vec::new());
        assert_eq!(hub.watch().position(), position(8));
        hub.committed(position(9), changes());
        assert!(matches!(watcher.next().await, Seen::Commit(commit) if commit.position == position(9)));
    }
}
