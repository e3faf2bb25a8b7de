//! What a scan finds after its event was emitted: because its time ran out and it went on, or because it had to wait. It is
//! told by another event, which names the one that it completes.

use kevtmon_observation::{Access, BootNs, HolderReport, Verdict};
use serde::{Deserialize, Serialize};

use super::{HolderScans, QueuedUmount, Scan};
use crate::Core;

/// Events that may be completed; of more, the oldest are not. As many as scans may wait.
const MAX: usize = 256;
/// For this long; no scan goes on for longer.
const RETENTION_NS: u64 = 6 * 60 * 1_000_000_000;

/// An event whose scan was not done when it was emitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Unfinished {
    pub(super) umount: QueuedUmount,
    seq: u64,
    attempts: u64,
    since: BootNs,
    told: ReportedScan,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ReportedScan {
    holders: Vec<(u32, Access)>,
    complete: bool,
    verdict: Verdict,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    goes_on: bool,
}

impl ReportedScan {
    fn of(report: &HolderReport) -> Self {
        let mut holders: Vec<(u32, Access)> =
            report.holders.iter().map(|holder| (holder.tgid, holder.access)).collect();
        holders.sort_unstable();
        Self { holders, complete: report.complete, verdict: report.verdict, goes_on: report.goes_on }
    }
}

/// The event that another one completes, and how often the caller was refused then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Earlier {
    pub(super) seq: u64,
    pub(super) attempts: u64,
    /// When the call was refused.
    pub(super) call: BootNs,
    /// Whether another look has found who holds it than the first one.
    pub(super) by_now: bool,
}

impl HolderScans {
    /// Whether a scan of the mount is under way whose event was emitted already.
    pub(super) fn is_going_on(&self, mount: u64) -> bool {
        self.unfinished.values().any(|unfinished| unfinished.umount.mount == mount)
    }

    pub(super) fn expire_unfinished(&mut self, now: BootNs) {
        self.unfinished.retain(|_, unfinished| unfinished.since.saturating_add(RETENTION_NS) > now);
    }
}

impl Core {
    /// A scan of this event is not done: what it finds later completes the event.
    pub(super) fn expect_more(&mut self, at: BootNs, umount: &QueuedUmount, seq: u64, report: &HolderReport) {
        let attempts = self.busy_mounts.attempts_of(umount.mount, umount.caller);
        let umount = QueuedUmount { awaits: None, ..umount.clone() };
        let unfinished = Unfinished { umount, seq, attempts, since: at, told: ReportedScan::of(report) };
        let all = &mut self.holder_scans.unfinished;
        all.insert(report.id, unfinished);
        while all.len() > MAX {
            all.pop_first();
        }
    }

    pub(super) fn went_on(&mut self, at: BootNs, mut report: HolderReport) {
        let Some(mut unfinished) = self.holder_scans.unfinished.remove(&report.id) else { return };
        let umount = &mut unfinished.umount;
        // What is not busy any more was told to be released.
        if self.busy_mounts.get(umount.mount).is_none() {
            return;
        }
        if umount.is_outlived_by(&report) {
            return;
        }
        self.take_up(umount.source, umount.task.as_deref());
        umount.mount = self.identified(umount, &report);
        self.holder_scans.judge(umount.mount, umount, &mut report);
        let reported = ReportedScan::of(&report);
        let (id, goes_on) = (report.id, report.goes_on);
        let scan = Scan::new(at, report);
        self.holder_scans.remember(umount.mount, scan.clone());
        let call = umount.at;
        let earlier = Earlier { seq: unfinished.seq, attempts: unfinished.attempts, call, by_now: false };
        if !goes_on {
            self.look_again_later(at, umount, earlier, &scan);
        }
        if reported != unfinished.told {
            let umount = QueuedUmount { at, ..umount.clone() };
            self.emit_busy(&umount, Some(&scan), Some(earlier));
        }
        if goes_on {
            unfinished.told = reported;
            self.holder_scans.unfinished.insert(id, unfinished);
        }
    }
}
