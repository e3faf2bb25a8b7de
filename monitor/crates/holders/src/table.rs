//! Whether the mount that a look finds is the one that refused: what the mounts were like during the call, and what they are
//! like now.
//!
//! The kernel numbers each change of a mount table. If its number is that of the call, nothing was mounted on top of the
//! mount since, and nothing unmounted or moved.

use std::sync::OnceLock;

use kevtmon_observation::{HolderReport, TableMark};
use kevtmon_probe::MountTables;
use kevtmon_probe::iterators::{IteratorHandle, Iterators};
use serde::{Deserialize, Serialize};

/// What reads the state of mount tables, and what lists tasks and their files, once the programs are loaded.
#[derive(Default)]
pub(super) struct Tables(OnceLock<MountTables>, OnceLock<Iterators>);

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tables").field(&self.0.get().is_some()).finish()
    }
}

/// Why a mount is only likely the one that was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Uncertainty {
    /// Mounts have changed since: it may have gone or been moved, and another one be seen in its place.
    Changed,
    /// What is seen there is newer.
    Covered,
    /// The mount that the kernel found is not there any more.
    Gone,
    /// It cannot be seen whether they changed.
    NotSeen,
    /// The path may have led elsewhere during the call.
    Path,
    /// A directory or link in the path may have been put there since.
    Replaced,
}

impl Uncertainty {
    /// As a reason for an answer that is not complete.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Changed => "the mounts of its namespace changed between the call and the scan",
            Self::Gone => "the busy mount had gone before the scan",
            Self::Covered => "what is mounted at the path was mounted there after the call",
            Self::NotSeen => "it is unknown whether the mounts of its namespace changed since the call",
            Self::Replaced => "a directory or link in its path may have been replaced after the call",
            Self::Path => "its path may have led elsewhere during the call",
        }
    }

    pub(super) fn tell(self, report: &mut HolderReport) {
        if report.mount.is_some() {
            report.mount_is_likely = true;
            report.blind_spot(None, self.reason());
        }
    }
}

impl Tables {
    pub(super) fn set(&self, tables: MountTables) {
        // There is one set of programs.
        let _ = self.0.set(tables);
    }

    pub(super) fn set_iterators(&self, iterators: Iterators) {
        // As above.
        let _ = self.1.set(iterators);
    }

    /// What lists who can hold a mount, for a reader.
    pub(super) fn iterators(&self) -> Option<IteratorHandle> {
        self.1.get().map(Iterators::handle)
    }

    /// Number of the last change of the table; `None` where it cannot be had.
    pub(super) fn event(&self, of: &TableMark) -> Option<u64> {
        self.0.get()?.event(of)
    }
}
