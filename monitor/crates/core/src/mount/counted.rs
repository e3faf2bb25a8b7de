//! Refused attempts that are only counted, since the events before and after say it all: that is so only while those hold the
//! mount still who were told. So from time to time it is looked again, first at them alone; if one of them has let go, at
//! everything, and an event tells who holds it by now. Nothing waits for that.

use std::collections::BTreeMap;

use kevtmon_observation::{Access, BootNs, Holder, HolderReport, MountFacts, Request};
use serde::{Deserialize, Serialize};

use super::late::Earlier;
use super::{ANSWER_TIMEOUT_NS, Answer, Awaited, OLD_HOLDERS_MAX, QueuedUmount, SCAN_INTERVAL_NS, Scan};
use crate::Core;
use crate::diagnose::ModelChange;
use crate::node::mounts::BusyId;

/// Marks the ids of these requests.
const COUNTED: u64 = 1 << 53;
/// Looks under way; of more mounts it is not known who holds them.
const MAX: usize = 64;

/// Looks that are under way, one of a mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Looks {
    of: BTreeMap<BusyId, QueuedUmount>,
    last: u64,
}

impl Looks {
    pub(super) fn due(&self) -> Option<BootNs> {
        self.of.values().filter_map(|umount| Some(umount.awaits?.deadline)).min()
    }

    pub(super) fn take_answered(&mut self, id: u64) -> Option<QueuedUmount> {
        self.take(|awaits| awaits.id == id)
    }

    pub(super) fn take_overdue(&mut self, now: BootNs) -> Option<QueuedUmount> {
        self.take(|awaits| awaits.deadline <= now)
    }

    fn take(&mut self, is_it: impl Fn(&Awaited) -> bool) -> Option<QueuedUmount> {
        let mut of = self.of.iter();
        let (mount, _) = of.find(|(_, umount)| umount.awaits.as_ref().is_some_and(&is_it))?;
        let mount = *mount;
        self.of.remove(&mount)
    }

    /// Whether there was one.
    pub(super) fn forget(&mut self, mount: BusyId) -> bool {
        self.of.remove(&mount).is_some()
    }
}

/// Whether it can let go at any time, and is named.
fn is_user(holder: &Holder) -> bool {
    (holder.explains() || holder.possible) && !matches!(holder.access, Access::Mount | Access::ChildMount)
}

impl Core {
    /// Has it looked at whether those still hold a mount who were told, if that was not done of late.
    pub(super) fn check_counted(&mut self, umount: QueuedUmount) {
        let QueuedUmount { at, mount, .. } = umount;
        let Some((facts, holders)) = self.to_be_checked(at, mount) else {
            return self.counted_ends(at, mount, None);
        };
        if self.holder_scans.counted.of.len() >= MAX || !self.may_scan(&umount) {
            return self.counted_ends(at, mount, Some(None));
        }
        let (awaits, share) = (self.counted_awaits(at, Answer::SameHolders), self.share(&umount));
        let (id, is_attached) = (awaits.id, true);
        self.request(Request::StillHeld { id, mount: Box::new(facts), holders, is_attached, share });
        self.holder_scans.counted.of.insert(mount, QueuedUmount { awaits: Some(awaits), ..umount });
    }

    /// The mount and those who were told to hold it, unless they were looked at of late or are being looked at.
    fn to_be_checked(&self, at: BootNs, mount: BusyId) -> Option<(MountFacts, Vec<Holder>)> {
        if self.holder_scans.is_going_on(mount) || self.holder_scans.counted.of.contains_key(&mount) {
            return None;
        }
        let scan = self.holder_scans.newest.get(&mount)?;
        let looked = scan.at.max(scan.checked.unwrap_or_default());
        let is_due = looked.saturating_add(SCAN_INTERVAL_NS) <= at && scan.report.holders.iter().any(is_user);
        Some((scan.report.mount.clone()?, scan.report.holders.clone())).filter(|_| is_due)
    }

    fn counted_awaits(&mut self, at: BootNs, answer: Answer) -> Awaited {
        self.holder_scans.counted.last += 1;
        let deadline = at.max(self.holder_scans.now).saturating_add(ANSWER_TIMEOUT_NS);
        Awaited { id: COUNTED | self.holder_scans.counted.last, deadline, answer }
    }

    pub(super) fn counted_answered(&mut self, at: BootNs, umount: QueuedUmount, report: HolderReport) {
        self.take_up(umount.source, umount.task.as_deref());
        // Others have been looked for since, and were told.
        let newest = self.holder_scans.newest.get(&umount.mount);
        if newest.is_none_or(|scan| scan.at > umount.at) {
            return self.counted_ends(at, umount.mount, None);
        }
        match umount.awaits.map(|awaits| awaits.answer) {
            Some(Answer::SameHolders) => self.counted_looked_again(at, umount, &report),
            _ => self.counted_scanned(at, umount, report),
        }
    }

    /// Those were looked at who were told.
    fn counted_looked_again(&mut self, at: BootNs, umount: QueuedUmount, again: &HolderReport) {
        let mount = umount.mount;
        let Some(known) = self.holder_scans.newest.get_mut(&mount) else { return };
        known.checked = Some(at);
        let is_seen = |known: &Holder| again.holders.iter().any(|holder| holder.is_same_hold(known));
        let mut users = known.report.holders.iter().filter(|holder| is_user(holder));
        if users.clone().all(is_seen) {
            // Of more than these nobody was looked at.
            let is_whole = known.report.holders.len() < OLD_HOLDERS_MAX;
            return self.counted_ends(at, mount, is_whole.then_some(Some(at)));
        }
        if !again.blind_spots.is_empty() {
            // What cannot be seen may be so.
            return self.counted_ends(at, mount, Some(None));
        }
        let let_go = !users.any(is_seen);
        let awaits = self.counted_awaits(at, Answer::Holders);
        self.request_scan(awaits.id, &umount, false);
        let waiting = QueuedUmount { let_go, awaits: Some(awaits), ..umount };
        self.holder_scans.counted.of.insert(mount, waiting);
    }

    /// Everything was looked at, since somebody has let go.
    fn counted_scanned(&mut self, at: BootNs, umount: QueuedUmount, mut report: HolderReport) {
        let mount = umount.mount;
        let known = self.busy_mounts.get(mount).and_then(|busy| busy.identity.as_ref());
        let found = report.mount.as_ref().and_then(MountFacts::identity);
        let is_it = known.zip(found).is_some_and(|(known, found)| known.is_same(&found));
        let tells = report.complete || report.is_explained();
        if !is_it || !tells || umount.is_outlived_by(&report) {
            // Of those who were told one is gone for certain.
            return self.counted_ends(at, mount, Some(None));
        }
        self.holder_scans.judge(mount, &umount, &mut report);
        let scan = Scan::new(at, report);
        self.holder_scans.remember(mount, scan.clone());
        let attempts = self.busy_mounts.attempts_of(mount, umount.caller);
        let seq = self.emit_busy(&umount, Some(&scan), None);
        if let Some(seq) = seq.filter(|_| !scan.report.goes_on) {
            let earlier = Earlier { seq, attempts, call: umount.at, by_now: false };
            self.look_again_later(at, &umount, earlier, &scan);
        }
    }

    /// The attempt has no event of its own. `checked`: where it was looked whether those still hold the mount who were told, when
    /// all of them were seen.
    pub(super) fn counted_ends(&mut self, at: BootNs, mount: BusyId, checked: Option<Option<BootNs>>) {
        self.holder_scans.ignored += 1;
        if let Some((seen, busy)) = checked.zip(self.busy_mounts.get(mount).cloned()) {
            self.diagnose(at, &ModelChange::HoldersChecked { mount: &busy, seen });
        }
    }
}
