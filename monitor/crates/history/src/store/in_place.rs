//! Notices that the file was removed, replaced or truncated: SQLite would go on writing to one that has no name any
//! more.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::open::with_suffix;
use super::{StoreError, truncation};

/// Device and inode of a file.
type Identity = (u64, u64);

/// The file and its log, as they were opened.
pub(super) struct InPlace {
    path: PathBuf,
    log: PathBuf,
    index: PathBuf,
    file_identity: Identity,
    /// Not there before the first transaction.
    log_identity: Option<Identity>,
    /// Bytes of the index; it only grows.
    index_bytes: u64,
    /// Pages of it that were lost before.
    replaced: u64,
}

impl InPlace {
    /// The file that was opened at this path; `replaced`: pages that were lost before.
    pub(super) fn new(path: &Path, replaced: u64) -> Result<Self, StoreError> {
        let failed = |source| StoreError::File { path: path.to_owned(), source };
        Ok(Self {
            path: path.to_owned(),
            log: with_suffix(path, "-wal"),
            index: with_suffix(path, "-shm"),
            file_identity: identity(path).map_err(failed)?,
            log_identity: None,
            index_bytes: 0,
            replaced,
        })
    }

    pub(super) fn check(&mut self) -> Result<(), StoreError> {
        self.check_index()?;
        expect(&self.path, self.file_identity)?;
        match self.log_identity {
            Some(known) => expect(&self.log, known)?,
            None => self.log_identity = identity(&self.log).ok(),
        }
        Ok(())
    }

    /// Checks that the index of the log has lost nothing. SQLite would take empty pages of it for what is in the log, and
    /// copy that into the file.
    ///
    /// It is looked at by its path: SQLite's locks on it would go with any descriptor of it that this process closes.
    pub(super) fn check_index(&mut self) -> Result<(), StoreError> {
        let bytes = fs::metadata(&self.index).map_or(self.index_bytes, |metadata| metadata.len());
        if bytes < self.index_bytes || truncation::replaced() != self.replaced {
            truncation::note();
            return Err(StoreError::Truncated { path: self.index.clone() });
        }
        self.index_bytes = bytes;
        Ok(())
    }
}

fn expect(path: &Path, known: Identity) -> Result<(), StoreError> {
    match identity(path) {
        Ok(found) if found == known => Ok(()),
        Err(error) if !is_absence(&error) => Err(StoreError::File { path: path.to_owned(), source: error }),
        Ok(_) | Err(_) => Err(StoreError::Gone { path: path.to_owned() }),
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}
