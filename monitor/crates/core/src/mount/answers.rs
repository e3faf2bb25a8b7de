//! What follows from the answers that unmounts await: who holds the mount, whether it is still there.

use kevtmon_observation::{Access, BootNs, Holder, HolderReport, MountPresence, Request, TaskRef, Verdict};

use super::late::Earlier;
use super::refused_mount::REFUSED_MOUNT;
use super::{Answer, QueuedUmount, RETURN_NS, SETTLE_NS, Scan};
use crate::Core;
use crate::diagnose::{LEFT_VOLUME, ModelChange};
use crate::node::mounts::BusyId;

impl QueuedUmount {
    /// Which of several unmounts has taken a mount, now that those who used it were looked at again: if nobody uses it on,
    /// it need not have been the one that detached.
    fn unless_held_by(mut self, report: &HolderReport) -> Self {
        let is_user = |holder: &Holder| !matches!(holder.access, Access::Mount | Access::ChildMount);
        // That others than these may use it is always one.
        let is_doubted = report.verdict == Verdict::Skipped || report.blind_spots.len() > 1;
        match self.unless_held.take() {
            Some(last) if !is_doubted && !report.holders.iter().any(is_user) => {
                Self { is_one_of_several: true, ..*last }
            }
            last => Self { unless_held: last, ..self },
        }
    }
}

impl Core {
    /// Whose unmount an answer is for, while that waits.
    pub fn asked_for(&self, id: u64) -> Option<&TaskRef> {
        self.holder_scans.queue.awaiting(id).map(|umount| &umount.attempt.actor)
    }

    pub fn holders(&mut self, at: BootNs, report: HolderReport) {
        self.holder_scans.pass(at);
        if report.id & LEFT_VOLUME != 0 {
            return self.left_volume(at, report);
        }
        if report.id & REFUSED_MOUNT != 0 {
            return self.refused_mount_looked(report);
        }
        if let Some(mount) = self.holder_scans.lookups.remove(&report.id) {
            if report.verdict == Verdict::NotAMount && report.complete {
                self.vanished(at, mount);
            }
            return;
        }
        if let Some(umount) = self.holder_scans.counted.take_answered(report.id) {
            return self.counted_answered(at, umount, report);
        }
        let asked = [Answer::Holders, Answer::Path, Answer::StillHeld, Answer::SameHolders];
        let Some(umount) = self.holder_scans.queue.take_answered(report.id, &asked) else {
            if !self.rechecked(at, &report) {
                self.went_on(at, report);
            }
            return;
        };
        self.take_up(umount.source, umount.task.as_deref());
        match umount.awaits.map(|awaits| awaits.answer) {
            Some(Answer::Holders) => self.scanned(at, umount, report),
            Some(Answer::StillHeld) => self.end(&umount.unless_held_by(&report), Some(report)),
            Some(Answer::SameHolders) => self.looked_again(umount, report),
            _ => {
                // What the path leads to may be something else by now.
                let is_believed = umount.attempt.origin.is_none();
                let is_none_there = report.verdict == Verdict::NotAMount;
                if is_none_there && report.complete && is_believed {
                    self.end(&umount, None);
                } else {
                    let reason = match report.blind_spots.first() {
                        Some(spot) => spot.reason.clone(),
                        None if is_none_there => "nothing is mounted at the path any more".to_owned(),
                        None => "something is mounted there; the busy mount is unknown".to_owned(),
                    };
                    self.undetermined(&umount, &reason);
                }
            }
        }
    }

    pub(super) fn scanned(&mut self, at: BootNs, umount: QueuedUmount, mut report: HolderReport) {
        let (before, caller) = (umount.mount, umount.caller);
        if self.is_no_mount_point(&umount, &report) {
            return self.advance(before);
        }
        if umount.is_outlived_by(&report) {
            self.emit_outlived(&umount, &report);
            return self.advance(before);
        }
        let found = report.mount.as_ref().and_then(|mount| mount.identity());
        let known = found.as_ref().and_then(|found| self.busy_mounts.identified(umount.key.mntns, found));
        let counted = known.map_or(0, |known| self.busy_mounts.attempts_of(known, caller));
        let mount = self.identified(&umount, &report);
        self.holder_scans.judge(mount, &umount, &mut report);
        let scan = Scan::new(at, report);
        self.holder_scans.remember(mount, scan.clone());
        let umount = QueuedUmount { mount, ..umount };
        // Another name of a mount that was told already is no news.
        let attempts = self.busy_mounts.attempts_of(mount, caller);
        if mount != before && attempts.checked_ilog2() == counted.checked_ilog2() {
            self.count_only(umount.at, mount);
        } else {
            let seq = self.emit_busy(&umount, Some(&scan), None);
            // What completes an event that nobody got has nothing to refer to.
            match seq {
                Some(seq) if scan.report.goes_on => self.expect_more(at, &umount, seq, &scan.report),
                Some(seq) => {
                    let earlier = Earlier { seq, attempts, call: umount.at, by_now: false };
                    self.look_again_later(at, &umount, earlier, &scan);
                }
                None => {}
            }
        }
        self.advance(before);
        self.advance(mount);
    }

    /// The busy mount that an unmount meant, now that a scan has looked.
    pub(super) fn identified(&mut self, umount: &QueuedUmount, report: &HolderReport) -> BusyId {
        let (before, caller) = (umount.mount, umount.caller);
        let Some(found) = report.mount.as_ref().and_then(|mount| mount.identity()) else { return before };
        let mount = self.busy_mounts.identify(before, &umount.key, caller, &found);
        self.busy_mounts.set_likely(mount, report.mount_is_likely);
        if mount != before {
            self.holder_scans.queue.move_path(before, &umount.key, mount);
        }
        mount
    }

    pub fn mount_presence(&mut self, at: BootNs, presence: &MountPresence) {
        self.holder_scans.pass(at);
        if let Some(mount) = self.holder_scans.lookups.remove(&presence.id) {
            if presence.present == Some(false) {
                self.vanished(at, mount);
            }
            return;
        }
        let asked = [Answer::Presence, Answer::SameMount];
        let Some(umount) = self.holder_scans.queue.take_answered(presence.id, &asked) else { return };
        if umount.is_refused() {
            self.take_up(umount.source, umount.task.as_deref());
            return self.checked(umount, presence);
        }
        match presence.present {
            Some(true) => self.advance(umount.mount),
            Some(false) => {
                let awaits = Some(self.awaited(at, Answer::Others));
                self.holder_scans.queue.push_first(QueuedUmount { awaits, ..umount });
            }
            None => {
                let reason = presence.reason.as_deref().unwrap_or("the mounts cannot be read");
                self.undetermined(&umount, reason);
            }
        }
    }

    /// The busy mount is gone. Of several unmounts of its paths that succeeded before that was seen, or returned just after,
    /// the last one is likely to have taken it, those before what was mounted on top; unless something was mounted there in
    /// between. If one of them detached whatever it found, the mount may have been in use, and only that one took it then.
    pub(super) fn gone(&mut self, mut umount: QueuedUmount) {
        let at = self.holder_scans.now;
        let seen = umount.awaits.map_or(at, |awaits| awaits.deadline.saturating_sub(SETTLE_NS));
        let identity = self.busy_mounts.get(umount.mount).and_then(|busy| busy.identity.clone());
        let took_another =
            |other: &QueuedUmount| identity.as_ref().is_some_and(|identity| other.took_another(identity));
        let is_other = |other: &QueuedUmount| {
            !other.is_refused() && other.at <= seen.saturating_add(RETURN_NS) && !took_another(other)
        };
        let queue = &mut self.holder_scans.queue;
        if let Some(last) = queue.take_last(umount.mount, is_other) {
            let lazy = match last.is_lazy() {
                true => None,
                false => queue
                    .take_last(umount.mount, |other| is_other(other) && other.is_lazy())
                    .or_else(|| umount.is_lazy().then_some(umount)),
            };
            umount = match lazy {
                Some(lazy) => QueuedUmount { unless_held: Some(Box::new(last)), ..lazy },
                None => last,
            };
            umount = QueuedUmount { is_one_of_several: true, awaits: None, ..umount };
        }
        self.take_up(umount.source, umount.task.as_deref());
        let scan = self.holder_scans.newest.get(&umount.mount).filter(|scan| !scan.report.holders.is_empty());
        // A copy keeps the file system alive, and its server or its device, also where the mount itself is gone for good.
        let is_wanted = |holder: &&Holder| umount.is_lazy() || holder.access == Access::Mount;
        let wanted = scan.filter(|scan| scan.report.holders.iter().any(|holder| is_wanted(&holder)));
        let Some(scan) = wanted else { return self.end(&umount, None) };
        if let Some(mount) = scan.report.mount.clone() {
            let holders = scan.report.holders.iter().filter(is_wanted).cloned().collect();
            let awaits = self.awaited(at, Answer::StillHeld);
            let (id, share) = (awaits.id, self.share(&umount));
            let is_attached = false;
            self.request(Request::StillHeld { id, mount: Box::new(mount), holders, is_attached, share });
            let waiting = QueuedUmount { awaits: Some(awaits), ..umount };
            self.holder_scans.queue.push_first(waiting);
        } else {
            self.end(&umount, None);
        }
    }

    /// A busy mount has ended: whatever else was tried on its paths is about another one.
    pub(super) fn end(&mut self, umount: &QueuedUmount, still_held: Option<HolderReport>) {
        let scan = self.holder_scans.forget(umount.mount);
        if let Some(busy) = self.busy_mounts.remove(umount.mount) {
            self.emit_ended(umount, &busy, scan.map(|scan| scan.report), still_held);
        }
        self.stop_lookups_of_none();
        self.submit_all_of(umount.mount);
    }

    /// An unmount of the path of a busy mount succeeded, and whether that mount is gone is not known.
    pub(super) fn undetermined(&mut self, umount: &QueuedUmount, reason: &str) {
        if let Some(busy) = self.busy_mounts.get(umount.mount).cloned() {
            self.diagnose(umount.at, &ModelChange::UmountUndetermined { mount: &busy, reason });
        }
        self.advance(umount.mount);
    }
}
