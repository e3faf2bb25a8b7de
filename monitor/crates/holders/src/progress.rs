//! How far a scan came, and what it found until then: it goes on from there when its time ran out, or when it met a process
//! that hangs whoever reads it.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_observation::{HolderReport, NsInum};
use serde::{Deserialize, Serialize};

use super::orphans::Keeper;
use super::pins::Rest;
use super::propagation::PeerGroups;

/// What is looked at, in this order. What is quick is looked at of every process before what there may be very much of:
/// nobody hides behind the descriptors of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Stage {
    /// Links of processes in the namespace of the mount, before the mounts of others are read.
    #[default]
    Own,
    /// Their first files, where there is no time for the mounts of all others: whoever has very many keeps nobody else unread.
    OwnFiles,
    /// Links of processes whose namespace sees the mount, or a copy that the unmount would take along.
    Near,
    NearFiles,
    /// Links of all others: a directory can have been entered from another namespace.
    Far,
    /// Their first files: a descriptor can have come from another namespace.
    FarFiles,
    /// Threads of processes with very many of them.
    Crowds,
    /// What was left of the files.
    Rest,
    /// What no list of open files shows.
    Hidden,
    /// What nothing in /proc names.
    Unseen,
}

impl Stage {
    pub(super) const ALL: [Self; 10] = [
        Self::Own,
        Self::OwnFiles,
        Self::Near,
        Self::NearFiles,
        Self::Far,
        Self::FarFiles,
        Self::Crowds,
        Self::Rest,
        Self::Hidden,
        Self::Unseen,
    ];

    /// Whether it is about the namespace of the mount alone.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnFiles)
    }

    /// Whether it is about the processes that see neither the mount nor a copy.
    pub(super) fn is_far(self) -> bool {
        matches!(self, Self::Far | Self::FarFiles)
    }

    /// Whether it is for nothing once a holder was found.
    pub(super) fn is_last_resort(self) -> bool {
        self.is_far() || self >= Self::Hidden
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// What was found; none until the mount is found.
    pub(super) found: Option<Box<HolderReport>>,
    /// Mount namespaces that were read, and whether they have a copy of the mount, or what its unmount could propagate to.
    pub(super) namespaces: BTreeMap<NsInum, bool>,
    /// The peer groups that were seen in them.
    pub(super) groups: PeerGroups,
    /// Processes that may not be read, and were counted.
    pub(super) unreadable: BTreeSet<u32>,
    /// Processes that there were when it began.
    pub(super) listed: BTreeSet<u32>,
    pub(super) stage: Stage,
    /// Processes that this stage is done with.
    pub(super) done: BTreeSet<u32>,
    /// Of crowded processes, the last thread that was looked at.
    pub(super) crowds: BTreeMap<u32, u32>,
    /// What was left of the files of processes.
    pub(super) rest: BTreeMap<u32, Rest>,
    /// Whether what the kernel holds was looked at.
    pub(super) is_kernel_done: bool,
    /// By mount namespace without a process: who keeps it.
    pub(super) keepers: BTreeMap<NsInum, Keeper>,
}

impl Progress {
    pub(super) fn enter(&mut self, stage: Stage) {
        if self.stage != stage {
            self.stage = stage;
            self.done.clear();
        }
    }
}
