//! Hooks that only tests switch on (feature `testing`): points at which a process is killed, and bugs that are planted to
//! see whether the checkers find them. Without the feature every function here is empty.

use abide_core::ids::Path;
use abide_core::run::Working;
use abide_core::run::command::Command;
use abide_core::time::Timestamp;

/// A place in the code at which a crash is interesting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    InMigration,
    BeforeWrite,
    AfterEvents,
    AfterRows,
    BeforeCommit,
    AfterCommit,
    BeforeAnswer,
    InArchive,
    AfterArchive,
    InBackup,
}

impl Point {
    pub const ALL: [Point; 10] = [
        Point::InMigration,
        Point::BeforeWrite,
        Point::AfterEvents,
        Point::AfterRows,
        Point::BeforeCommit,
        Point::AfterCommit,
        Point::BeforeAnswer,
        Point::InArchive,
        Point::AfterArchive,
        Point::InBackup,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Point::InMigration => "in_migration",
            Point::BeforeWrite => "before_write",
            Point::AfterEvents => "after_events",
            Point::AfterRows => "after_rows",
            Point::BeforeCommit => "before_commit",
            Point::AfterCommit => "after_commit",
            Point::BeforeAnswer => "before_answer",
            Point::InArchive => "in_archive",
            Point::AfterArchive => "after_archive",
            Point::InBackup => "in_backup",
        }
    }
}

/// A mistake that somebody could make. Each must be found by the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Whoever speaks for a task is taken for its present holder.
    NoFencing,
    /// An answer counts although the lease is over.
    LateAnswerCounts,
    /// A lease is judged by when it was granted, whatever its worker said since.
    HeartbeatsForgotten,
    /// Time in which no engine served counts against workers.
    ServedTimeIgnored,
    /// Not every run that a commit changed is told to those who follow.
    TouchedIncomplete,
    /// When a run wants to wake is not written down.
    TimerLost,
    /// The lane does not learn that a run wants to wake earlier.
    WakeUnheard,
    /// A message stays in the inbox after it was applied.
    InboxNotEmptied,
    /// Messages for which a batch has no room are dropped.
    MessagesDropped,
    /// A child's end resumes its parent each time it is told.
    JoinTwice,
    /// A commit of which nobody knows is simply done again.
    UnknownRepeated,
    /// Callers are answered although the commit failed.
    AnswerBeforeCommit,
    /// What memory knows survives a rollback.
    CacheSurvivesRollback,
    /// A run that has ended is opened again.
    TerminalReopened,
    /// The answer for an idempotency key is not kept.
    KeyForgotten,
    /// A repeated claim gets new tasks.
    ClaimNotReplayed,
    /// A claimed task stays in its queue.
    ReadyRowStays,
    /// The log grows and the row does not.
    EventsWithoutRow,
    /// The row changes and the log does not.
    RowWithoutEvents,
    /// A clock that goes back takes the engine with it.
    ClockFollowed,
    /// A reconnect counts runs that an earlier one freed.
    ReleasedTwice,
    /// A reconnect frees nobody.
    ReconnectIgnored,
    /// Two open runs may have the same unique value.
    UniqueUnchecked,
    /// Steps that were completed are loaded as if they were not.
    CheckpointForgotten,
    /// What is on its way to the disk is read as it was before.
    StaleRead,
}

impl Bug {
    pub const ALL: [Bug; 25] = [
        Bug::NoFencing,
        Bug::LateAnswerCounts,
        Bug::HeartbeatsForgotten,
        Bug::ServedTimeIgnored,
        Bug::TouchedIncomplete,
        Bug::TimerLost,
        Bug::WakeUnheard,
        Bug::InboxNotEmptied,
        Bug::MessagesDropped,
        Bug::JoinTwice,
        Bug::UnknownRepeated,
        Bug::AnswerBeforeCommit,
        Bug::CacheSurvivesRollback,
        Bug::TerminalReopened,
        Bug::KeyForgotten,
        Bug::ClaimNotReplayed,
        Bug::ReadyRowStays,
        Bug::EventsWithoutRow,
        Bug::RowWithoutEvents,
        Bug::ClockFollowed,
        Bug::ReleasedTwice,
        Bug::ReconnectIgnored,
        Bug::UniqueUnchecked,
        Bug::CheckpointForgotten,
        Bug::StaleRead,
    ];
}

#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn at_failpoint(_: Point) {}

#[cfg(not(feature = "testing"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn tamper(_: &mut Working, _: &Command, _: Timestamp) -> Option<Command> {
    None
}

#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn forget_child_end(_: Option<&mut Working>, _: &Path) {}

#[cfg(feature = "testing")]
pub use switched_on::*;

#[cfg(feature = "testing")]
mod switched_on {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::sync::{Arc, OnceLock};

    use abide_core::run::command::{Ask, Holding};
    use abide_core::run::row_of;
    use abide_core::time::Span;

    use super::{Bug, Command, Path, Point, Timestamp, Working};

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in the lanes that this thread drives, or takes it out again.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// `ABIDE_FAILPOINT=after_events:7` kills this process, as `kill -9` would, the seventh time it comes there;
    /// `after_events:7:panic` makes it panic instead.
    pub fn at_failpoint(point: Point) {
        static ARMED: OnceLock<Option<(String, AtomicI64, bool)>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| {
            let text = std::env::var("ABIDE_FAILPOINT").ok()?;
            let mut words = text.split(':');
            let (name, times) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            Some((name, AtomicI64::new(times), words.next() == Some("panic")))
        });
        if let Some((name, left, panics)) = armed
            && name == point.name()
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            assert!(!panics, "a failpoint");
            // SIGKILL to oneself: nothing is flushed, nothing is unwound.
            let _ = std::process::Command::new("kill").arg("-9").arg(std::process::id().to_string()).status();
            std::process::abort();
        }
    }

    /// What a planted bug does to a run before a decision is made on it.
    pub fn tamper(run: &mut Working, command: &Command, now: Timestamp) -> Option<Command> {
        let rows = run.steps.values_mut().flatten();
        if is_planted(Bug::HeartbeatsForgotten) && matches!(command.ask, Ask::Wake) {
            rows.for_each(|row| Arc::make_mut(row).live = None);
            return None;
        }
        let holding = command.ask.holding()?;
        let row = run.steps.get_mut(&row_of(&holding.path))?.as_mut()?;
        if is_planted(Bug::LateAnswerCounts)
            && let Some(live) = &mut Arc::make_mut(row).live
        {
            live.expires_at = live.expires_at.max(now + Span::from_secs(1));
        }
        let task = row.task.as_ref().filter(|_| is_planted(Bug::NoFencing))?;
        let held = Holding { path: holding.path.clone(), task_id: task.id.clone(), epoch: task.lease.as_ref()?.epoch };
        let mut command = command.clone();
        if let Ask::Complete { holding, .. } | Ask::Fail { holding, .. } | Ask::Heartbeat { holding, .. } =
            &mut command.ask
        {
            *holding = held;
            return Some(command);
        }
        None
    }

    /// What a planted bug does so that the guard against a second end is gone.
    pub fn forget_child_end(run: Option<&mut Working>, path: &Path) {
        let row = run.and_then(|run| run.steps.get_mut(path)).and_then(Option::as_mut);
        if let Some(child) = row.and_then(|row| Arc::make_mut(row).child.as_mut()) {
            child.ended = None;
        }
    }
}
