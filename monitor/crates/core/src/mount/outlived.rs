//! Scans that came too late: an unmount of the path has succeeded since the refused one, so that the mount which the scan
//! finds there may be another one. Its holders refused nothing.

use kevtmon_observation::{BootNs, HolderReport, Verdict};

use super::{HolderScans, QueuedUmount};
use crate::Core;
use crate::node::mounts::BusyId;

impl QueuedUmount {
    /// Whether a scan found something at the path after its mount may have gone.
    pub(super) fn is_outlived_by(&self, report: &HolderReport) -> bool {
        let is_later = |(ended, resolved)| ended <= resolved;
        report.mount.is_some() && self.outlived.zip(report.resolved).is_some_and(is_later)
    }
}

impl HolderScans {
    /// An unmount of the path of this mount has succeeded.
    pub(super) fn note_end(&mut self, at: BootNs, mount: BusyId) {
        let Self { queue, unfinished, .. } = self;
        let unfinished = unfinished.values_mut().map(|unfinished| &mut unfinished.umount);
        let unfinished = unfinished.filter(|umount| umount.mount == mount);
        for umount in queue.of_mut(mount).chain(unfinished) {
            umount.outlived.get_or_insert(at);
        }
    }
}

impl Core {
    /// The event of a refused unmount of which nothing more will be known.
    pub(super) fn emit_outlived(&mut self, umount: &QueuedUmount, report: &HolderReport) {
        let mut nothing = HolderReport::skipped(report.id, umount.key.path.clone());
        nothing.verdict = Verdict::Incomplete;
        nothing.blind_spot(None, "something was unmounted there before the scan");
        let scan = super::Scan::new(umount.at, nothing);
        self.emit_busy(umount, Some(&scan), None);
    }
}
