//! Finds or creates the file to write to: a state directory enters, an exclusive connection leaves.
//!
//! A file of another schema is left as it is, and is an error. A damaged file is quarantined under another name; only the last
//! one is kept.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use kevtmon_types::regular_file;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::schema::{self, APPLICATION, VERSION};
use super::{FILE, Limits, StoreError, failed, is_damage};

/// Holds the lock of the one writer.
const LOCK: &str = "events.lock";
/// In the name of a quarantined file.
const QUARANTINE_INFIX: &str = ".corrupt-";
/// Of the daemon's connections: others of this process share the index of the log, which is in memory, and those of other
/// processes are locked out.
pub(super) const VFS: &str = "unix-excl";
/// A connection of this process that opens the log at the same time is soon done.
pub(super) const BUSY: Duration = Duration::from_millis(250);
/// Prepared statements that are kept; there are fewer.
pub(super) const STATEMENTS: usize = 64;

/// A file that was not used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    pub path: PathBuf,
    /// Why it is not used, for the operator.
    pub reason: String,
}

/// What stays open with the connection.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    /// Locked while the log is copied, and shared by other processes that read.
    pub(super) directory: File,
    _lock: File,
}

pub(super) fn open(
    directory: &Path,
    limits: Limits,
) -> Result<(Connection, Opened, Vec<Quarantined>), StoreError> {
    let failed = |source| StoreError::File { path: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let lock = lock(directory)?;
    let path = directory.join(FILE);
    let mut quarantined = Vec::new();
    let connection = match connect(&path, limits) {
        Err(error) if error.is_damage() => {
            let files = [path.clone(), with_suffix(&path, "-wal")];
            quarantined.extend(quarantine(&path, &files, &error)?);
            connect(&path, limits)?
        }
        connected => connected?,
    };
    let directory = File::open(directory).map_err(failed)?;
    Ok((connection, Opened { path, directory, _lock: lock }, quarantined))
}

fn lock(directory: &Path) -> Result<File, StoreError> {
    let path = directory.join(LOCK);
    let file = open_file(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: directory.join(FILE) }),
        Err(TryLockError::Error(source)) => Err(StoreError::File { path, source }),
    }
}

/// Creates the file with mode 0600, as SQLite does with the one beside it.
fn open_file(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    regular_file::open_as(&mut options, path).map_err(failed)
}

fn connect(path: &Path, limits: Limits) -> Result<Connection, StoreError> {
    // Before SQLite, as the locks of a process on a file go when it closes it anywhere.
    drop(open_file(path)?);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags_and_vfs(path, flags, VFS).map_err(failed("open"))?;
    inspect(path, &connection)?;
    set_up(&mut connection, limits).map_err(failed("open"))?;
    Ok(connection)
}

/// Checks, without changing a byte, that it is an event store, and which schema it has.
fn inspect(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let look = || {
        connection.busy_timeout(BUSY)?;
        // Whoever closes it because something is wrong must not copy the log.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let empty = connection
            .query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get::<_, bool>(0))?;
        Ok((schema::version(connection)?, application, empty))
    };
    match look().map_err(failed("open"))? {
        (0, _, true) => Ok(()),
        (_, application, _) if application != APPLICATION => Err(damaged(path, "not an event store")),
        (found, ..) if found != VERSION => Err(StoreError::OtherVersion { path: path.to_owned(), found }),
        _ => Ok(()),
    }
}

pub(super) fn damaged(path: &Path, what: &str) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), what: format!("is damaged: {what}") }
}

fn set_up(connection: &mut Connection, limits: Limits) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Only before the first table is made does this take effect.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_row| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_row| Ok(()))?;
    let cache = i64::try_from(limits.cache_kib()).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -cache)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    schema::create(connection)?;
    // A checkpoint does not wait for readers.
    connection.busy_timeout(Duration::ZERO)
}

/// Renames these files of a store that is damaged; `None` if there are none.
pub(super) fn quarantine(
    path: &Path,
    files: &[PathBuf],
    why: &StoreError,
) -> Result<Option<Quarantined>, StoreError> {
    if files.is_empty() {
        return Ok(None);
    }
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    let stem = format!("{}{QUARANTINE_INFIX}", path.file_name().unwrap_or_default().to_string_lossy());
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    // Only one is kept, so that a disk that damages files again and again does not fill up.
    for entry in fs::read_dir(directory).map_err(failed)?.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(&stem) {
            fs::remove_file(entry.path()).map_err(failed)?;
        }
    }
    let to = directory.join(format!("{stem}{}", Timestamp::now().strftime("%Y%m%dT%H%M%SZ")));
    for file in files {
        let to = if file == path { to.clone() } else { with_suffix(&to, "-wal") };
        match fs::rename(file, to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let reason = match why {
        StoreError::Failed { source, .. } if is_damage(source) => source.to_string(),
        other => other.to_string(),
    };
    Ok(Some(Quarantined { path: to, reason }))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Bytes on disk: the file and its log.
pub(super) fn bytes(path: &Path) -> u64 {
    let length = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    length(path) + length(&with_suffix(path, "-wal"))
}
