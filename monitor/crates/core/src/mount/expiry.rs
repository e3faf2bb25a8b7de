//! What happens to unmounts and scans because time passes: answers that are overdue, and what is kept no longer.

use kevtmon_observation::{BootNs, HolderReport};

use super::{
    Answer, EXPIRY_INTERVAL_NS, HolderScans, OLD_HOLDERS_MAX, SCAN_INTERVAL_NS, SCAN_RETENTION_NS, Scan,
};
use crate::Core;
use crate::node::mounts::BusyId;

impl HolderScans {
    fn expire(&mut self, now: BootNs, is_busy: impl Fn(BusyId) -> bool) {
        let is_current =
            |id: &BusyId, scan: &Scan| scan.at.saturating_add(SCAN_RETENTION_NS) > now && is_busy(*id);
        self.newest.retain(|id, scan| is_current(id, scan));
        self.failed.retain(|id, scan| is_current(id, scan));
        self.expire_unfinished(now);
        self.rechecks.retain(&is_busy);
        for scan in self.newest.values_mut() {
            // Holders are dropped later than they are reused: an event that waits may still need them.
            if scan.at.saturating_add(2 * SCAN_INTERVAL_NS) <= now {
                scan.report.holders.truncate(OLD_HOLDERS_MAX);
            }
        }
    }
}

impl Core {
    pub fn expire_mounts(&mut self, now: BootNs) {
        self.holder_scans.pass(now);
        while let Some(umount) = self.holder_scans.queue.take_overdue(now) {
            self.take_up(umount.source, umount.task.as_deref());
            let id = umount.awaits.map_or(0, |awaits| awaits.id);
            match umount.awaits.map(|awaits| awaits.answer) {
                Some(Answer::Holders) => {
                    let skipped = HolderReport::skipped(id, umount.key.path.clone());
                    // Its answer may still come.
                    self.scanned(now, umount, HolderReport { goes_on: true, ..skipped });
                }
                Some(Answer::StillHeld) => self.end(&umount, None),
                Some(Answer::Others) => self.gone(umount),
                Some(Answer::SameMount | Answer::SameHolders) => {
                    self.emit_busy(&umount, None, None);
                    self.advance(umount.mount);
                }
                _ => self.undetermined(&umount, "its mounts were not read in time"),
            }
        }
        while let Some(umount) = self.holder_scans.counted.take_overdue(now) {
            self.counted_ends(now, umount.mount, Some(None));
        }
        self.tell_overdue_refused_mounts(now);
        if self.holder_scans.next_lookup.is_some_and(|due| due <= now) {
            self.look_up_busy_mounts(now);
        }
        self.look_up_suspected(now);
        self.look_at_due(now);
        self.look_at_detached(now);
        if self.holder_scans.next_expiry > now {
            return;
        }
        self.holder_scans.next_expiry = now.saturating_add(EXPIRY_INTERVAL_NS);
        self.holder_scans.allowances.expire(now);
        self.busy_mounts.expire(now);
        let busy = &self.busy_mounts;
        self.holder_scans.expire(now, |id| busy.get(id).is_some());
    }
}
