//! Notices that the file or its log was removed, replaced or truncated: SQLite would go on writing to one that has no name
//! any more, or take what is left for all there is.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::StoreError;
use super::open::with_suffix;

/// The file and its log, as the writer left them.
pub(super) struct InPlace([Known; 2]);

struct Known {
    path: PathBuf,
    /// Of the log, not there before the first transaction.
    left: Option<FileState>,
}

#[derive(Clone, Copy)]
struct FileState {
    identity: (u64, u64),
    bytes: u64,
}

impl InPlace {
    pub(super) fn new(path: &Path) -> Self {
        let mut known =
            Self([path.to_owned(), with_suffix(path, "-wal")].map(|path| Known { path, left: None }));
        known.note();
        known
    }

    /// Called after each write: nobody else makes them longer or shorter.
    pub(super) fn note(&mut self) {
        for known in &mut self.0 {
            match (look(&known.path), &mut known.left) {
                (Ok(left), None) => known.left = Some(left),
                // Another file is for the next check to find.
                (Ok(now), Some(left)) if now.identity == left.identity => *left = now,
                _ => {}
            }
        }
    }

    /// Checks that both are as they were left, or longer: a transaction may have begun.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        for Known { path, left } in &self.0 {
            let Some(left) = left else { continue };
            let what = match look(path) {
                Ok(now) if now.identity == left.identity && now.bytes >= left.bytes => continue,
                Ok(now) if now.identity == left.identity => "was truncated while it was in use",
                Err(source) if !is_absence(&source) => {
                    return Err(StoreError::File { path: path.clone(), source });
                }
                Ok(_) | Err(_) => "was removed or replaced while it was in use",
            };
            return Err(StoreError::Damaged { path: path.clone(), what: what.to_owned() });
        }
        Ok(())
    }

    /// Which of them are still what was opened.
    pub(super) fn left(&self) -> Vec<PathBuf> {
        let is_there = |known: &&Known| {
            known.left.is_some_and(|left| look(&known.path).is_ok_and(|now| now.identity == left.identity))
        };
        self.0.iter().filter(is_there).map(|known| known.path.clone()).collect()
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn look(path: &Path) -> io::Result<FileState> {
    fs::metadata(path).map(|file| FileState { identity: (file.dev(), file.ino()), bytes: file.len() })
}
