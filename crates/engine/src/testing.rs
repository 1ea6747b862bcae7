//! Hooks that only tests switch on (feature `testing`): points at which a process is killed, and bugs that are planted to
//! see whether the checkers find them. Without the feature every function here is empty.

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

#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn at_failpoint(_: Point) {}

#[cfg(feature = "testing")]
pub use switched_on::*;

#[cfg(feature = "testing")]
mod switched_on {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::Point;

    /// `ABIDE_FAILPOINT=after_events:7` kills this process, as `kill -9` would, the seventh time it comes there.
    pub fn at_failpoint(point: Point) {
        static ARMED: OnceLock<Option<(String, AtomicI64)>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| {
            let text = std::env::var("ABIDE_FAILPOINT").ok()?;
            let (name, times) = text.split_once(':')?;
            Some((name.to_owned(), AtomicI64::new(times.parse().ok()?)))
        });
        if let Some((name, left)) = armed
            && name == point.name()
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            // SIGKILL to oneself: nothing is flushed, nothing is unwound.
            let _ = std::process::Command::new("kill").arg("-9").arg(std::process::id().to_string()).status();
            std::process::abort();
        }
    }
}
