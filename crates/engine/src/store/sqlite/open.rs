//! Opening the files: the lock on the directory, the settings that make commits durable, the migrations, the readers. To check
//! a directory it is opened without changing it (decision 0018).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection as Db, ErrorCode, OpenFlags};

use super::super::seal::Keys;
use super::super::{StoreError, Stored};
use crate::clock::Stopwatch;
use crate::testing::{Point, at_failpoint};

/// Each is applied once, in order, in a transaction of its own. They only go forward.
const MIGRATIONS: &[(&str, &str)] = &[
    ("001_runs", include_str!("migrations/001_runs.sql")),
    ("002_access", include_str!("migrations/002_access.sql")),
    ("003_log", include_str!("migrations/003_log.sql")),
    ("004_sealed", include_str!("migrations/004_sealed.sql")),
    ("005_tools", include_str!("migrations/005_tools.sql")),
    ("006_reasons", include_str!("migrations/006_reasons.sql")),
    ("007_flat", include_str!("migrations/007_flat.sql")),
    ("008_columns", include_str!("migrations/008_columns.sql")),
    ("009_entries", include_str!("migrations/009_entries.sql")),
    ("010_ages", include_str!("migrations/010_ages.sql")),
    ("011_found", include_str!("migrations/011_found.sql")),
    ("012_late", include_str!("migrations/012_late.sql")),
];

/// How long a foreign process may hold the write lock before a batch is refused.
const WRITER_WAIT: Duration = Duration::from_secs(5);
/// A reader that takes longer is cut off: it would keep the WAL from being reused.
const READER_CAP: Duration = Duration::from_secs(10);
const READERS: usize = 4;
/// Pages of the WAL from which on they are copied into the database.
const CHECKPOINT_AT: i32 = 4_000;
/// Bytes of the WAL from which on readers are waited for: if they follow each other without a gap, it would grow without end.
const RESTART_AT: u64 = 256 << 20;
/// How long they are waited for at most, because whoever commits waits too.
const RESTART_WAIT: Duration = Duration::from_millis(200);
/// A reader that stayed longer, as a backup does, is waited for again only after so many bytes more.
const RESTART_AGAIN: u64 = 64 << 20;

/// What stays free on the disk: a commit that meets the end of it costs every connection, and a checkpoint must still fit.
/// Of a small disk it is a part.
const RESERVE: u64 = 64 << 20;
const RESERVE_PART: u64 = 32;

/// How often, and how long apart, the lock on a directory is tried.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

const DATABASE: &str = "abide.db";
/// The file in a data directory whose lock says that somebody uses it.
const LOCK: &str = "lock";

/// SQLite's files without its own locks: the lock on the directory stands in for them.
const WITHOUT_LOCKS: &str = if cfg!(windows) { "win32-none" } else { "unix-none" };

/// Where a store lives. Holding it holds the lock on the directory.
#[derive(Clone, Debug)]
pub struct Files {
    place: Place,
    keys: Arc<Keys>,
    _lock: Option<Arc<File>>,
}

#[derive(Clone, Debug)]
enum Place {
    Directory(PathBuf),
    /// The same, and nothing in it is changed or made.
    ReadOnly(PathBuf),
    /// A database of this name that lives as long as a connection to it.
    Memory(Arc<str>),
}

impl Files {
    /// Locks a data directory, which is made if it is not there.
    pub fn lock(directory: &Path) -> Stored<Files> {
        make_private(directory).map_err(|error| failed("cannot make", directory, error))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join(LOCK))
            .map_err(|error| failed("cannot open the lock of", directory, error))?;
        let advice = "only one engine can open a data directory";
        insist(|| lock.try_lock()).map_err(|error| not_locked(directory, error, advice))?;
        let keys = Arc::new(Keys::of_or_new(directory)?);
        Ok(Files { place: Place::Directory(directory.to_owned()), keys, _lock: Some(Arc::new(lock)) })
    }

    /// A data directory that is only read, and that no engine opens meanwhile: nothing in it changes, and nothing is made. Its
    /// schema must be the one of this program, because it is not migrated.
    pub fn read_only(directory: &Path) -> Stored<Files> {
        let lock = lock_to_read(directory)?;
        let keys = Arc::new(Keys::of(directory)?);
        super::wal::check(&wal_of(&directory.join(DATABASE)))?;
        let files = Files { place: Place::ReadOnly(directory.to_owned()), keys, _lock: lock.map(Arc::new) };
        refuse_older(&files.reader()?)?;
        Ok(files)
    }

    /// A data directory that another process may have open: to read it, never to write.
    pub fn beside(directory: &Path) -> Stored<Files> {
        let keys = Arc::new(Keys::of(directory)?);
        Ok(Files { place: Place::Directory(directory.to_owned()), keys, _lock: None })
    }

    /// A store that is gone when it is dropped, for tests and trials.
    pub fn in_memory(name: &str) -> Stored<Files> {
        Ok(Files { place: Place::Memory(name.into()), keys: Arc::new(Keys::fleeting()?), _lock: None })
    }

    /// The file that holds everything; its WAL lies beside it.
    pub fn database(&self) -> Option<PathBuf> {
        match &self.place {
            Place::Directory(directory) | Place::ReadOnly(directory) => Some(directory.join(DATABASE)),
            Place::Memory(_) => None,
        }
    }

    /// Whether nothing more should be written, so that what is there stays usable.
    pub(super) fn is_short_of_room(&self) -> bool {
        let Place::Directory(directory) = &self.place else { return false };
        let Some((free, all)) = room(directory) else { return false };
        free < RESERVE.min(all / RESERVE_PART)
    }

    fn connect(&self, flags: OpenFlags) -> Stored<Db> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = match &self.place {
            Place::Directory(directory) => Db::open_with_flags(directory.join(DATABASE), flags)?,
            Place::ReadOnly(directory) => open_unchanged(&directory.join(DATABASE), flags)?,
            Place::Memory(name) => {
                let address = format!("file:{name}?mode=memory&cache=shared");
                Db::open_with_flags(address, flags | OpenFlags::SQLITE_OPEN_URI)?
            }
        };
        db.busy_timeout(WRITER_WAIT)?;
        db.set_prepared_statement_cache_capacity(128);
        // Without it a statement over a table with a partial index is compiled again whenever its values change.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        seal_and_unseal(&db, &self.keys)?;
        Ok(db)
    }

    /// A connection that writes: durable at every commit, and migrated.
    pub fn writer(&self) -> Stored<Db> {
        if let Some(database) = self.database() {
            super::wal::check(&wal_of(&database))?;
        }
        let mut db = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "full")?;
        // No larger: a commit that has split pages walks all of the cache, and what is not in it is in the system's.
        db.pragma_update(None, "cache_size", -4 * 1024)?;
        db.wal_hook(Some(checkpoint))?;
        db.pragma_update(None, "journal_size_limit", 64 << 20)?;
        db.pragma_update(None, "mmap_size", 0)?;
        db.pragma_update(None, "temp_store", "memory")?;
        migrate(&mut db)?;
        Ok(db)
    }

    /// A connection that only reads, with a cap on how long one statement may take.
    pub fn reader(&self) -> Stored<Db> {
        let db = match &self.place {
            Place::Directory(_) | Place::ReadOnly(_) => self.connect(OpenFlags::SQLITE_OPEN_READ_ONLY)?,
            // A shared memory database knows no read-only connections beside a writer; the pragma stands in for them.
            Place::Memory(_) => {
                let db = self.connect(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
                db.pragma_update(None, "read_uncommitted", true)?;
                db
            }
        };
        db.pragma_update(None, "query_only", true)?;
        db.pragma_update(None, "cache_size", -8 * 1024)?;
        Ok(db)
    }
}

fn failed(what: &str, directory: &Path, error: std::io::Error) -> StoreError {
    StoreError::Failed(format!("{what} {}: {error}", directory.display()))
}

fn not_locked(directory: &Path, error: TryLockError, advice: &str) -> StoreError {
    match error {
        TryLockError::WouldBlock => {
            StoreError::Failed(format!("another process uses {}: {advice}", directory.display()))
        }
        TryLockError::Error(error) => failed("cannot lock", directory, error),
    }
}

/// A process that is just being started by this one still holds what this one had open; and one that was killed may need a
/// moment to be gone.
fn insist(lock: impl Fn() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match lock() {
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(LOCK_PAUSE),
            other => return other,
        }
    }
    lock()
}

/// Keeps engines away, not other readers. None: no engine has ever had the directory open, it is a copy.
fn lock_to_read(directory: &Path) -> Stored<Option<File>> {
    let lock = match File::open(directory.join(LOCK)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| failed("cannot open the lock of", directory, error))?,
    };
    let advice = "stop it first, or check a copy that `backup` made";
    insist(|| lock.try_lock_shared()).map_err(|error| not_locked(directory, error, advice))?;
    Ok(Some(lock))
}

fn wal_of(database: &Path) -> PathBuf {
    database.with_extension("db-wal")
}

/// Opens a database so that not even SQLite changes a file or makes one. It would make the file `-shm`, and on closing it would
/// copy the WAL into the database. In exclusive mode its index of the WAL is in memory.
fn open_unchanged(database: &Path, flags: OpenFlags) -> Stored<Db> {
    let length = |file: &Path| std::fs::metadata(file).map(|file| file.len());
    match length(database) {
        // SQLite would remove the WAL beside it.
        Ok(0) => return Err(StoreError::Damaged(format!("{} is empty", database.display()))),
        Ok(_) => {}
        Err(error) => return Err(failed("cannot read", database, error)),
    }
    if length(&wal_of(database)).unwrap_or(0) == 0 {
        // The file is all there is; without a WAL, SQLite would make one.
        let address = format!("file:{}?immutable=1", percent_encoded(database));
        return Ok(Db::open_with_flags(address, flags | OpenFlags::SQLITE_OPEN_URI)?);
    }
    let db = Db::open_with_flags_and_vfs(database, flags, WITHOUT_LOCKS)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    db.pragma_update(None, "locking_mode", "exclusive")?;
    Ok(db)
}

/// A path as it stands in an address.
fn percent_encoded(path: &Path) -> String {
    let encoded = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => char::from(*byte).to_string(),
        other => format!("%{other:02X}"),
    };
    path.as_os_str().as_encoded_bytes().iter().map(encoded).collect()
}

/// `seal(bytes, row, name)` and `unseal(bytes, row, name)`: statements say what is sealed, and no other code needs to know.
fn seal_and_unseal(db: &Db, keys: &Arc<Keys>) -> rusqlite::Result<()> {
    fn about(context: &Context<'_>) -> rusqlite::Result<String> {
        Ok(format!("{}/{}", context.get::<i64>(1)?, context.get_raw(2).as_str()?))
    }
    fn failed(error: StoreError) -> rusqlite::Error {
        rusqlite::Error::UserFunctionError(error.to_string().into())
    }
    let (sealing, opening) = (keys.clone(), keys.clone());
    db.create_scalar_function("seal", 3, FunctionFlags::SQLITE_UTF8, move |context| {
        sealing.seal(context.get_raw(0).as_bytes()?, &about(context)?).map_err(failed)
    })?;
    db.create_scalar_function("unseal", 3, FunctionFlags::SQLITE_UTF8, move |context| {
        opening.open(context.get_raw(0).as_bytes()?, &about(context)?).map_err(failed)
    })
}

/// Bytes of the disk that are free for us, and all of them.
#[cfg(unix)]
fn room(directory: &Path) -> Option<(u64, u64)> {
    let disk = rustix::fs::statvfs(directory).ok()?;
    Some((disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize)))
}

#[cfg(not(unix))]
fn room(_: &Path) -> Option<(u64, u64)> {
    None
}

/// Copies the WAL into the database when it is long enough. SQLite would do so by itself, but keep it to itself when that
/// fails: after a failed sync nothing more may be trusted to this disk, so the commit reports it and the engine ends.
fn checkpoint(wal: &mut Wal, pages: i32) -> rusqlite::Result<()> {
    if pages < CHECKPOINT_AT {
        return Ok(());
    }
    unless_it_must_wait(wal.checkpoint_v2(CheckpointMode::PASSIVE))
}

/// Somebody reads, or the disk is full: the WAL keeps everything until the next time.
fn unless_it_must_wait(done: rusqlite::Result<(i32, i32)>) -> rusqlite::Result<()> {
    match done.map_err(|error| (error.sqlite_error_code(), error)) {
        Ok(_) | Err((Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull), _)) => Ok(()),
        Err((_, error)) => Err(error),
    }
}

/// Keeps the WAL from growing without end.
#[derive(Debug)]
pub(super) struct Shortening {
    wal: Option<PathBuf>,
    /// The length at which readers are waited for next.
    at: u64,
}

impl Shortening {
    pub fn of(files: &Files) -> Shortening {
        Shortening { wal: files.database().as_deref().map(wal_of), at: RESTART_AT }
    }

    /// After a commit: waits a moment for readers if the WAL is too long, so that the next commit writes it from its
    /// beginning.
    pub fn after_commit(&mut self, db: &Db) -> Stored {
        let Some(wal) = &self.wal else { return Ok(()) };
        let length = std::fs::metadata(wal).map_or(0, |file| file.len());
        if length < RESTART_AT {
            self.at = RESTART_AT;
        }
        if length < self.at {
            return Ok(());
        }
        self.at = length + RESTART_AGAIN;
        db.busy_timeout(RESTART_WAIT)?;
        let done = db.wal_checkpoint_v2(Some(rusqlite::MAIN_DB), CheckpointMode::RESTART);
        db.busy_timeout(WRITER_WAIT)?;
        Ok(unless_it_must_wait(done)?)
    }
}

/// Only the owner may look inside.
pub(super) fn make_private(directory: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Brings the schema up to date.
pub(super) fn migrate(db: &mut Db) -> Stored {
    let applied = applied(db)?;
    for (number, (name, text)) in MIGRATIONS.iter().enumerate().skip(applied) {
        let failed = |error: rusqlite::Error| StoreError::Failed(format!("migration {name} failed: {error}"));
        let tx = db.transaction().map_err(failed)?;
        tx.execute_batch(text).map_err(failed)?;
        at_failpoint(Point::InMigration);
        tx.pragma_update(None, "user_version", number as i64 + 1).map_err(failed)?;
        tx.commit().map_err(failed)?;
    }
    Ok(())
}

/// How many migrations a database has. A newer schema than this program knows is refused.
fn applied(db: &Db) -> Stored<usize> {
    let (applied, known): (u32, _) = (db.pragma_query_value(None, "user_version", |row| row.get(0))?, MIGRATIONS.len());
    match applied as usize {
        newer if newer > known => Err(StoreError::Failed(format!(
            "the data has schema {applied} and this program knows {known}: use the newer program"
        ))),
        applied => Ok(applied),
    }
}

fn refuse_older(db: &Db) -> Stored {
    let (applied, known) = (applied(db)?, MIGRATIONS.len());
    if applied == known {
        return Ok(());
    }
    Err(StoreError::Failed(format!(
        "the data has schema {applied} and this program works with {known}: serve it once with this program, which brings it up \
         to date, or serve a copy"
    )))
}

/// Connections that only read. Each answer is one snapshot.
#[derive(Debug)]
pub struct Readers {
    files: Files,
    idle: Mutex<Idle>,
    returned: Condvar,
    /// The lane's own: it waits for nobody who reads much.
    beside: Mutex<Option<Db>>,
    /// Whoever reads at length is cut off: the writer waits for them.
    closing: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Idle {
    connections: Vec<Db>,
    lent: usize,
    closed: bool,
}

impl Readers {
    pub fn new(files: Files) -> Stored<Readers> {
        let first = files.reader()?;
        let idle = Idle { connections: vec![first], lent: 0, closed: false };
        let (idle, returned, beside) = (Mutex::new(idle), Condvar::new(), Mutex::new(None));
        Ok(Readers { files, idle, returned, beside, closing: Arc::default() })
    }

    /// Reads in one snapshot.
    pub fn read<T>(&self, read: impl FnOnce(&Db) -> Stored<T>) -> Stored<T> {
        self.read_for(Some(READER_CAP), read)
    }

    /// The same for whoever must come to an end however long it takes: a checker, and what packs a run. The WAL is not reused
    /// meanwhile, so each of their reads is one piece of the work.
    pub fn read_at_length<T>(&self, read: impl FnOnce(&Db) -> Stored<T>) -> Stored<T> {
        self.read_for(None, read)
    }

    fn read_for<T>(&self, cap: Option<Duration>, read: impl FnOnce(&Db) -> Stored<T>) -> Stored<T> {
        let mut lent = Lent { readers: self, db: Some(self.borrow()?) };
        let Some(db) = &mut lent.db else { return Err(StoreError::Failed("a connection that is not there".into())) };
        let (watch, closing) = (Stopwatch::start(), self.closing.clone());
        let is_over = move || cap.map_or_else(|| closing.load(Ordering::Relaxed), |cap| watch.elapsed() > cap);
        db.progress_handler(10_000, Some(is_over))?;
        read(&*db.transaction()?)
    }

    /// Reads a few rows in one snapshot, for the lane.
    pub(super) fn beside<T>(&self, read: impl FnOnce(&Db) -> Stored<T>) -> Stored<T> {
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        if beside.is_none() && !self.lock().closed {
            *beside = Some(self.files.reader()?);
        }
        let Some(db) = &*beside else { return Err(StoreError::Busy("the files are being opened again".into())) };
        let found = in_one_snapshot(db, read);
        if found.is_err() {
            // It may still be in a transaction, which would keep the WAL from being reused.
            beside.take();
        }
        found
    }

    fn borrow(&self) -> Stored<Db> {
        let mut idle = self.lock();
        while idle.closed || (idle.connections.is_empty() && idle.lent >= READERS) {
            idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
        idle.lent += 1;
        if let Some(db) = idle.connections.pop() {
            return Ok(db);
        }
        drop(idle);
        self.files.reader().inspect_err(|_| self.give_back(None))
    }

    fn give_back(&self, db: Option<Db>) {
        let mut idle = self.lock();
        idle.lent -= 1;
        idle.connections.extend(db);
        self.returned.notify_all();
    }

    /// Waits for the readers that are out and closes all of them.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        let mut idle = self.lock();
        idle.closed = true;
        while idle.lent > 0 {
            idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
        idle.connections.clear();
        drop(idle);
        self.beside.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn reopen(&self) -> Stored {
        self.closing.store(false, Ordering::Relaxed);
        self.lock().closed = false;
        self.returned.notify_all();
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn in_one_snapshot<T>(db: &Db, read: impl FnOnce(&Db) -> Stored<T>) -> Stored<T> {
    db.prepare_cached("begin")?.raw_execute()?;
    let found = read(db)?;
    db.prepare_cached("commit")?.raw_execute()?;
    Ok(found)
}

/// A connection that comes back whatever happens to its borrower.
struct Lent<'a> {
    readers: &'a Readers,
    db: Option<Db>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.readers.give_back(self.db.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_at_length_ends_when_the_files_are_opened_again() {
        let files = Files::in_memory("at-length").expect("a place");
        let _writer = files.writer().expect("a writer");
        let readers = Readers::new(files).expect("readers");
        let endless = "with recursive n(n) as (select 1 union all select n + 1 from n) select count(*) from n";
        std::thread::scope(|scope| {
            let reader =
                scope.spawn(|| readers.read_at_length(|db| Ok(db.query_row(endless, [], |row| row.get::<_, i64>(0))?)));
            while readers.lock().lent == 0 {
                std::thread::yield_now();
            }
            readers.close();
            assert!(reader.join().expect("no panic").is_err());
        });
    }

    #[test]
    fn a_read_that_panics_gives_its_connection_back() {
        let files = Files::in_memory("panics").expect("a place");
        let _writer = files.writer().expect("a writer");
        let readers = Readers::new(files).expect("readers");
        for _ in 0..2 * READERS {
            let read = std::panic::AssertUnwindSafe(|| readers.read::<()>(|_| panic!("in a read")));
            assert!(std::panic::catch_unwind(read).is_err());
        }
        readers.read(|db| Ok(db.query_row("select 1", [], |_| Ok(()))?)).expect("others still read");
    }

    #[test]
    fn the_lane_reads_on_after_a_failure_and_not_while_the_files_are_closed() {
        let files = Files::in_memory("beside").expect("a place");
        let _writer = files.writer().expect("a writer");
        let readers = Readers::new(files).expect("readers");
        let read = || readers.beside(|db| Ok(db.query_row("select 1", [], |row| row.get::<_, i64>(0))?));
        assert!(readers.beside::<()>(|_| Err(StoreError::Full)).is_err());
        assert!(matches!(read(), Ok(1)), "nothing was left open");
        readers.close();
        assert!(matches!(read(), Err(StoreError::Busy(_))));
        readers.reopen().expect("open again");
        assert!(matches!(read(), Ok(1)));
    }
}
