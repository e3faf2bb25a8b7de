//! A busy volume and its busy mounts.

use kevtmon_event::{CloseReason, Mount, Severity};
use kevtmon_observation::{BootNs, MountIdentity, MountSyscall};
use serde::{Deserialize, Serialize};

use super::known::Known;
use super::left::StillMounted;
use super::seen::Said;
use crate::node::mounts::{BusyMount, BusyMounts, MountKey};

#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BusyVolume {
    pub(super) first: BootNs,
    pub(super) last: BootNs,
    pub(super) severity: Severity,
    pub(super) mounts: Vec<BusyPart>,
    /// Attempts that the model no longer counts, of mounts that ended.
    pub(super) former: u64,
    /// The unmounts among them.
    pub(super) former_unmounts: u64,
    /// Whether one of those was only likely the mount that was busy, or more were busy than are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_likely_gone: bool,
    /// As in the newest report.
    pub(super) summary: String,
    /// What that is made of, where it tells of a refused call.
    pub(super) said: Option<Said>,
    /// What its state shows.
    pub(super) left: Option<StillMounted>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct BusyPart {
    pub(super) place: MountKey,
    pub(super) identity: Option<MountIdentity>,
    /// Attempts that an earlier incident counted.
    pub(super) before: u64,
    /// The unmounts among them.
    pub(super) before_unmounts: u64,
    /// Who holds it, as the last scan that found out saw it.
    pub(super) known: Option<Known>,
}

impl BusyPart {
    /// `counted`: what the model counts of it.
    pub(super) fn new(place: MountKey, identity: Option<MountIdentity>, counted: Option<&BusyMount>) -> Self {
        let before = counted.map_or(0, |busy| busy.total - busy.recent_attempts());
        let before_unmounts = counted.map_or(0, BusyMount::former_unmounts);
        Self { place, identity, before, before_unmounts, known: None }
    }

    /// Whether it is the mount at this place, or what is known as it.
    pub(super) fn is(&self, place: &MountKey, identity: Option<&MountIdentity>) -> bool {
        match (&self.identity, identity) {
            (Some(known), Some(identity)) => self.place.mntns == place.mntns && known.is_same(identity),
            _ => self.place == *place,
        }
    }
}

impl BusyVolume {
    pub(super) fn new(first: BootNs, last: BootNs) -> Self {
        Self {
            first,
            last,
            severity: Severity::Info,
            mounts: Vec::new(),
            former: 0,
            former_unmounts: 0,
            is_likely_gone: false,
            summary: String::new(),
            said: None,
            left: None,
        }
    }

    /// Refused calls of all kinds.
    pub(super) fn attempts(&self, counted: &BusyMounts) -> u64 {
        self.sum(counted, |part, busy| busy.total.saturating_sub(part.before)) + self.former
    }

    /// The refused unmounts among them.
    pub(super) fn unmounts(&self, counted: &BusyMounts) -> u64 {
        let unmounts =
            |part: &BusyPart, busy: &BusyMount| busy.calls.unmounts().saturating_sub(part.before_unmounts);
        self.sum(counted, unmounts) + self.former_unmounts
    }

    fn sum(&self, counted: &BusyMounts, of: impl Fn(&BusyPart, &BusyMount) -> u64) -> u64 {
        let here = |part: &BusyPart| {
            counted.find(&part.place, part.identity.as_ref()).map_or(0, |(_, busy)| of(part, busy))
        };
        self.mounts.iter().map(here).sum()
    }
}

pub(super) struct End<'a> {
    pub(super) place: &'a MountKey,
    pub(super) identity: Option<&'a MountIdentity>,
    pub(super) attempts: u64,
    /// The unmounts among them.
    pub(super) unmounts: u64,
    /// Whether it is only likely the mount that was busy.
    pub(super) is_likely: bool,
    pub(super) reason: CloseReason,
}

/// How many of the refused calls on a mount that was unmounted were unmounts.
pub(super) fn unmounts(mount: &Mount, attempts: u64) -> u64 {
    if mount.refused.is_empty() {
        return attempts;
    }
    let umount = MountSyscall::Umount2.name();
    mount.refused.iter().filter(|call| call.syscall == umount).map(|call| call.attempts).sum()
}
