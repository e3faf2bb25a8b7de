//! Finds or creates the file to write to: a state directory enters, an exclusive connection leaves.
//!
//! A file of another schema is left as it is, and another one is used beside it. A damaged file is
//! quarantined under another name; only the last one is kept.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::schema::{self, APPLICATION, VERSION};
use super::{FILE, Limits, StoreError, failed, is_damage};

/// Holds the lock of the one writer.
const LOCK: &str = "events.lock";
/// In the name of a quarantined file.
const QUARANTINE_INFIX: &str = ".corrupt-";
/// Suffixes of the files that SQLite keeps beside the database.
const BESIDE: [&str; 2] = ["-wal", "-shm"];
/// A reader never holds the lock of the writer for long.
const BUSY: Duration = Duration::from_millis(250);
/// Prepared statements that are kept; there are fewer.
pub(super) const STATEMENTS: usize = 64;

/// A file that was not used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its present path.
    pub path: PathBuf,
    /// Why it is not used, for the operator.
    pub reason: String,
}

pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) lock: File,
    pub(super) quarantined: Vec<Quarantined>,
}

/// The file used where another version of the program has its own.
pub(super) fn beside_other() -> String {
    format!("events-v{VERSION}.db")
}

/// Whether a path relative to the state directory is that of a file which is written here. What was quarantined is only removed.
#[must_use]
pub fn is_own(name: &Path) -> bool {
    let files = [FILE.to_owned(), beside_other()];
    let beside = files.iter().flat_map(|file| BESIDE.map(|suffix| file.clone() + suffix));
    files.iter().cloned().chain(beside).chain([LOCK.to_owned()]).any(|own| name == Path::new(&own))
}

pub(super) fn open(directory: &Path, limits: Limits) -> Result<Opened, StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
    let lock = lock(directory)?;
    let mut quarantined = Vec::new();
    let mut other = None;
    for name in [FILE.to_owned(), beside_other()] {
        let path = directory.join(name);
        touch(&path)?;
        match connect(&path, limits) {
            Ok(connection) => return Ok(Opened { connection, path, lock, quarantined }),
            Err(error @ StoreError::OtherVersion { .. }) => {
                quarantined.push(Quarantined { path, reason: error.to_string() });
                other = Some(error);
            }
            Err(error) if error.is_damage() => {
                quarantined.push(quarantine(&path, &error)?);
                touch(&path)?;
                let connection = connect(&path, limits)?;
                return Ok(Opened { connection, path, lock, quarantined });
            }
            Err(error) => return Err(error),
        }
    }
    Err(other.unwrap_or_else(|| StoreError::Missing { directory: directory.to_owned() }))
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

/// Creates the file with mode 0600; SQLite creates those beside it with the same mode.
fn touch(path: &Path) -> Result<(), StoreError> {
    open_file(path).map(drop)
}

/// Refuses symbolic links and does not block on a FIFO: another user may have put them there.
fn open_file(path: &Path) -> Result<File, StoreError> {
    let failed = |source| StoreError::File { path: path.to_owned(), source };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    Ok(file)
}

fn connect(path: &Path, limits: Limits) -> Result<Connection, StoreError> {
    inspect(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed("open"))?;
    set_up(&mut connection, limits).map_err(failed("open"))?;
    Ok(connection)
}

/// Checks, without changing a byte, that it is an event store, and which schema it has.
fn inspect(path: &Path) -> Result<(), StoreError> {
    let looked = (|| {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let found = schema::version(&connection)?;
        let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let empty = connection
            .query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get::<_, bool>(0))?;
        Ok((found, application, empty))
    })();
    match looked.map_err(failed("open"))? {
        (0, _, true) => Ok(()),
        (_, application, _) if application != APPLICATION => {
            Err(StoreError::Damaged { path: path.to_owned(), what: "not an event store".to_owned() })
        }
        (found, ..) if found != VERSION => {
            Err(StoreError::OtherVersion { path: path.to_owned(), found, known: VERSION })
        }
        _ => Ok(()),
    }
}

fn set_up(connection: &mut Connection, limits: Limits) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    // Whoever closes it because something is wrong must not copy the log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Only before the first table is made does this take effect.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_row| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_row| Ok(()))?;
    connection.pragma_update_and_check(
        None,
        "journal_size_limit",
        i64::try_from(limits.checkpoint_bytes()).unwrap_or(i64::MAX),
        |_row| Ok(()),
    )?;
    let cache = i64::try_from(limits.cache_kib()).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -cache)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    schema::create(connection)
}

/// Renames a damaged file, with what SQLite keeps beside it.
pub(super) fn quarantine(path: &Path, why: &StoreError) -> Result<Quarantined, StoreError> {
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
    fs::rename(path, &to).map_err(failed)?;
    for suffix in BESIDE {
        match fs::rename(with_suffix(path, suffix), with_suffix(&to, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let reason = match why {
        StoreError::Failed { source, .. } if is_damage(source) => source.to_string(),
        other => other.to_string(),
    };
    Ok(Quarantined { path: to, reason })
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Bytes on disk: the file and what lies beside it.
pub(super) fn bytes(path: &Path) -> u64 {
    let length = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    length(path) + BESIDE.iter().map(|suffix| length(&with_suffix(path, suffix))).sum::<u64>()
}
