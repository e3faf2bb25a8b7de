//! Events and incidents in a file: they are written, searched and bounded; what the previous run left is read.
//!
//! One SQLite file in the state directory, its write-ahead log beside it. One [`Writer`] at a time, any
//! number of [`Reader`]s, with or without a daemon. Sinks, threads and retries are the caller's: it
//! decides when to commit and what to do when the disk fails.
//!
//! The log is synchronous only when it is copied into the file (`synchronous = NORMAL`). What was committed
//! is in the page cache, so it survives the end of this process, however it ends; a power failure may cost the
//! last commits, but never the file. In exchange a commit does not wait for the disk, and a database on the same
//! disk is not slowed down.
//!
//! The index of the log is in the memory of the daemon, shared by its connections (the VFS `unix-excl`): as a file it would be
//! mapped, and whoever truncates that ends the process. Another process reads the log itself, and the directory is
//! locked for as long as that takes: then nothing is copied.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

mod accounts;
mod archive;
mod in_place;
mod incidents;
mod lookup;
mod open;
mod pods;
mod reader;
mod retention;
mod runs;
mod schema;
pub mod settings;
mod time;
mod writer;

pub use archive::Archive;
pub use open::Quarantined;
pub use reader::Reader;
pub use runs::{PreviousRun, RESERVE};
pub use schema::VERSION;
pub use writer::{Log, Writer};

/// Name of the file in the state directory.
pub const FILE: &str = "events.db";

/// How much is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Older events are removed.
    pub max_age: Duration,
    /// Most bytes on disk, the log included; the oldest events of those who have most of it are removed first.
    pub max_bytes: u64,
}

impl Limits {
    /// What the file itself may take; the rest is for the log, which holds a second's worth in a storm.
    fn data_bytes(self) -> u64 {
        self.max_bytes / 16 * 9
    }

    /// The log is copied into the file from this size on.
    fn checkpoint_bytes(self) -> u64 {
        (self.max_bytes / 16).min(4 << 20)
    }

    /// Most that events take in one transaction: in the log it is more, as each page that changes is there.
    fn transaction_bytes(self) -> u64 {
        self.max_bytes / 8
    }

    /// So much is written before the size is checked.
    fn trim_bytes(self) -> u64 {
        (self.max_bytes / 32).min(512 << 10)
    }

    /// Pages kept in memory.
    fn cache_kib(self) -> u64 {
        (self.max_bytes / 16 / 1024).clamp(256, 2048)
    }
}

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file or directory cannot be created, locked or renamed.
    #[error("cannot use {}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is in use by another kevtmon", .path.display())]
    InUse { path: PathBuf },
    #[error("{} has schema {found} of another version of kevtmon; this one supports schema {VERSION}", .path.display())]
    OtherVersion { path: PathBuf, found: u32 },
    #[error("there is no event store in {}", .directory.display())]
    Missing { directory: PathBuf },
    /// The content is invalid, or somebody took it away.
    #[error("{} {what}", .path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("the event store cannot {op}")]
    Failed {
        /// What was tried: `open`, `write`, `commit`, …
        op: &'static str,
        source: rusqlite::Error,
    },
}

impl StoreError {
    /// What was tried, as a metric label.
    pub fn op(&self) -> &'static str {
        match self {
            Self::Failed { op, .. } => op,
            Self::Damaged { .. } => "check",
            _ => "open",
        }
    }

    /// Whether the file itself is broken, so that another one has to take its place.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Failed { source, .. } => is_damage(source),
            _ => false,
        }
    }
}

/// SQLite reports broken pages; these errors report broken content, such as text that is not UTF-8.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error;
    match error {
        Error::Utf8Error(..)
        | Error::FromSqlConversionFailure(..)
        | Error::InvalidColumnType(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::QueryReturnedNoRows => true,
        other => matches!(
            other.sqlite_error_code(),
            Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase)
        ),
    }
}

fn failed(op: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |source| StoreError::Failed { op, source }
}

#[cfg(test)]
mod tests;
