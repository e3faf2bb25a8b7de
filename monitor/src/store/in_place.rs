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
    file_identity: Identity,
    /// Not there before the first transaction.
    log_identity: Option<Identity>,
}

impl InPlace {
    /// The file that was opened at this path.
    pub(super) fn new(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::File { path: path.to_owned(), source };
        Ok(Self {
            path: path.to_owned(),
            log: with_suffix(path, "-wal"),
            file_identity: identity(path).map_err(failed)?,
            log_identity: None,
        })
    }

    pub(super) fn check(&mut self) -> Result<(), StoreError> {
        if truncation::happened() {
            return Err(StoreError::Truncated { path: with_suffix(&self.path, "-shm") });
        }
        expect(&self.path, self.file_identity)?;
        match self.log_identity {
            Some(known) => expect(&self.log, known)?,
            None => self.log_identity = identity(&self.log).ok(),
        }
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
