//! Looks that are repeated where a complete one found nobody: a process that holds a mount for a moment, again and again,
//! is not seen by each of them. Only after all of them nobody but the kernel is left; before that nothing is concluded.
//!
//! Each looks at the mount that was busy, by its identity: what covers it meanwhile is another one.

use std::collections::BTreeMap;

use kevtmon_observation::{Access, BootNs, Holder, HolderReport, Request, Verdict};
use serde::{Deserialize, Serialize};

use super::late::Earlier;
use super::{HolderScans, MS, QueuedUmount, Scan};
use crate::Core;
use crate::node::mounts::BusyId;

/// When it is looked again, after the first look that found nobody.
const DELAYS: [BootNs; 3] = [100 * MS, 1_000 * MS, 10_000 * MS];
/// Mounts that are looked at again; of more, nothing is concluded. Those of users take half of the places at most.
const MAX: usize = 64;
/// Marks the ids of these requests.
const RECHECK: u64 = 1 << 51;
/// What it does not show.
const NOT_AT_FIRST: &str = "its present holders were not found at first";

/// Mounts on which a complete look found nobody.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rechecks {
    of: BTreeMap<BusyId, Recheck>,
    last: u64,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Recheck {
    umount: QueuedUmount,
    /// The event that tells of it, and how often the caller had been refused then.
    seq: u64,
    attempts: u64,
    /// When nobody was found first.
    since: BootNs,
    /// Looks after that one which found nobody either.
    looks: usize,
    request: Option<u64>,
    /// Whether somebody held it before, and let go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    let_go: bool,
}

impl Recheck {
    fn due(&self) -> Option<BootNs> {
        let delay = DELAYS.get(self.looks).filter(|_| self.request.is_none())?;
        Some(self.since.saturating_add(*delay))
    }
}

impl Rechecks {
    pub(super) fn due(&self) -> Option<BootNs> {
        self.of.values().filter_map(Recheck::due).min()
    }

    pub(super) fn forget(&mut self, mount: BusyId) {
        self.of.remove(&mount);
    }

    pub(super) fn retain(&mut self, is_busy: impl Fn(BusyId) -> bool) {
        self.of.retain(|mount, _| is_busy(*mount));
    }

    fn is_over(&self, mount: BusyId) -> bool {
        self.of.get(&mount).is_some_and(|recheck| recheck.looks >= DELAYS.len())
    }
}

fn is_in_use(report: &HolderReport) -> bool {
    let is_process = |holder: &Holder| !holder.access.is_kernel() && holder.access != Access::ChildMount;
    report.holders.iter().any(|holder| holder.explains() && is_process(holder))
}

/// Whether a look at everything found nothing that holds it.
fn found_nobody(report: &HolderReport) -> bool {
    report.verdict == Verdict::Kernel && report.complete && !report.is_explained()
}

impl HolderScans {
    /// What one look may conclude of a mount. Of one on which it found nobody: that whoever held it has let go, if somebody was
    /// seen to; that the kernel holds it, after the last look; else nothing.
    pub(super) fn judge(&mut self, mount: BusyId, umount: &QueuedUmount, report: &mut HolderReport) {
        match report.verdict {
            // How it went is not known: it may have been detached while it was in use.
            Verdict::Transient => {
                report.blind_spot(None, "it went before every process was read");
                report.verdict = Verdict::Incomplete;
            }
            Verdict::Kernel if found_nobody(report) && !self.rechecks.is_over(mount) => {
                report.verdict = match self.have_let_go(mount, umount) {
                    true => Verdict::Transient,
                    false => Verdict::None,
                };
            }
            Verdict::Processes | Verdict::ChildMount | Verdict::Kernel if report.is_explained() => {
                self.rechecks.forget(mount);
            }
            _ => {}
        }
    }

    fn have_let_go(&self, mount: BusyId, umount: &QueuedUmount) -> bool {
        let before = self.newest.get(&mount).is_some_and(|scan| is_in_use(&scan.report));
        before || umount.let_go || self.rechecks.of.get(&mount).is_some_and(|recheck| recheck.let_go)
    }
}

impl Core {
    /// A look found nobody on a mount, as this event tells: it is looked again.
    pub(super) fn look_again_later(
        &mut self,
        at: BootNs,
        umount: &QueuedUmount,
        earlier: Earlier,
        scan: &Scan,
    ) {
        let let_go = match scan.report.verdict {
            Verdict::None => false,
            Verdict::Transient => true,
            _ => return,
        };
        let is_known = self.busy_mounts.get(umount.mount).is_some_and(|busy| busy.identity.is_some());
        let Rechecks { of, .. } = &mut self.holder_scans.rechecks;
        let most = if umount.account.host { MAX } else { MAX / 2 };
        if !is_known || !umount.attempt.syscall.is_umount() || of.len() >= most {
            return;
        }
        let Earlier { seq, attempts, .. } = earlier;
        of.entry(umount.mount).or_insert_with(|| Recheck {
            umount: QueuedUmount { awaits: None, ..umount.clone() },
            seq,
            attempts,
            since: at,
            looks: 0,
            request: None,
            let_go,
        });
    }

    pub(super) fn look_at_due(&mut self, now: BootNs) {
        let of = &self.holder_scans.rechecks.of;
        let is_due = |recheck: &Recheck| recheck.due().is_some_and(|due| due <= now);
        let due: Vec<BusyId> =
            of.iter().filter(|(_, recheck)| is_due(recheck)).map(|(mount, _)| *mount).collect();
        for mount in due {
            let request = self.request_recheck(now, mount);
            match self.holder_scans.rechecks.of.get_mut(&mount) {
                Some(recheck) if request.is_some() => recheck.request = request,
                _ => self.holder_scans.rechecks.forget(mount),
            }
        }
    }

    /// `None` where the mount is gone, or its account has had its share.
    fn request_recheck(&mut self, now: BootNs, mount: BusyId) -> Option<u64> {
        let umount = self.holder_scans.rechecks.of.get(&mount)?.umount.clone();
        let path = self.busy_mounts.get(mount)?.identity.as_ref()?.mount_point.clone();
        self.take_up(umount.source, umount.task.as_deref());
        let QueuedUmount { account, .. } = &umount;
        if !account.host && !self.holder_scans.allowances.take_scan(now, account) {
            return None;
        }
        self.holder_scans.rechecks.last += 1;
        let id = RECHECK | self.holder_scans.rechecks.last;
        let (mntns, share) = (umount.attempt.mntns, self.share(&umount));
        let (tgid, origin, follow, mount_only) = (0, None, false, false);
        self.request(Request::Holders { id, mntns, tgid, path, origin, follow, mount_only, share });
        Some(id)
    }

    /// Whether a report is the answer to such a look; then what follows from it.
    pub(super) fn rechecked(&mut self, at: BootNs, report: &HolderReport) -> bool {
        let of = &mut self.holder_scans.rechecks.of;
        let Some((&mount, _)) = of.iter().find(|(_, recheck)| recheck.request == Some(report.id)) else {
            return report.id & RECHECK != 0;
        };
        if report.goes_on {
            return true;
        }
        let known = self.busy_mounts.get(mount).and_then(|busy| busy.identity.as_ref());
        let found = report.mount.as_ref().and_then(|mount| mount.identity());
        let is_it = known.zip(found).is_some_and(|(known, found)| known.is_same(&found));
        let has_nobody = found_nobody(report);
        if !is_it || !has_nobody && !report.is_explained() && report.child_mounts.is_empty() {
            // Whatever that may be, it is no look at all that could hold this mount.
            self.holder_scans.rechecks.forget(mount);
            return true;
        }
        let Some(recheck) = of.get_mut(&mount) else { return true };
        (recheck.request, recheck.looks) = (None, recheck.looks + 1);
        let Recheck { umount, seq, attempts, .. } = recheck.clone();
        self.take_up(umount.source, umount.task.as_deref());
        let mut report = report.clone();
        self.holder_scans.judge(mount, &umount, &mut report);
        if !has_nobody {
            self.holder_scans.rechecks.forget(mount);
            report.blind_spot(None, NOT_AT_FIRST);
        }
        let is_last = has_nobody && report.verdict == Verdict::Kernel;
        let scan = Scan::new(at, report);
        self.holder_scans.remember(mount, scan.clone());
        if is_last || !has_nobody {
            let earlier = Earlier { seq, attempts, call: umount.at, by_now: !has_nobody };
            self.emit_busy(&QueuedUmount { at, mount, ..umount }, Some(&scan), Some(earlier));
        }
        true
    }
}
