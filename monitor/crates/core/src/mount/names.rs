//! Names that could not be removed or renamed: which of the two of a rename is busy, and what is no matter of mounts.

use kevtmon_observation::{HolderReport, UmountAttempt, Verdict};
use serde::{Deserialize, Serialize};

use super::QueuedUmount;
use crate::Core;
use crate::node::mounts::MountKey;

/// Refused calls that no mount is the reason of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Benign {
    /// Control groups with processes, or with others below them.
    pub cgroup: u64,
    /// Paths that end in no name: `/`, `.` and `..`.
    pub nameless: u64,
}

impl Core {
    /// Refused removals and renames that no mount is the reason of.
    pub fn benign_refusals(&self) -> Benign {
        self.holder_scans.benign
    }

    /// Whether that is all that is to be said of a refused removal, since nothing is mounted at its path.
    pub(super) fn is_no_mount_point(&mut self, umount: &QueuedUmount, report: &HolderReport) -> bool {
        let attempt = &umount.attempt;
        if attempt.syscall.is_umount() || report.mount.is_some() {
            return false;
        }
        if report.inside.is_some() {
            self.forget_unidentified(umount);
            self.holder_scans.benign.cgroup += 1;
            // Its end has to wait for the group of a pod itself.
            if umount.account.host {
                self.cgroup_refused(&report.path);
            }
            return true;
        }
        let Some(second) = attempt.second.as_deref().filter(|_| report.verdict == Verdict::NotAMount) else {
            return false;
        };
        let attempt = UmountAttempt {
            path: second.path.clone(),
            origin: Some(Box::new(second.origin.clone())),
            second: None,
            ..attempt.clone()
        };
        let key = MountKey::new(attempt.mntns, &attempt.place());
        self.forget_unidentified(umount);
        self.submit(QueuedUmount { key, attempt, awaits: None, ..umount.clone() });
        true
    }

    /// Nothing is busy there.
    fn forget_unidentified(&mut self, umount: &QueuedUmount) {
        let is_known = self.busy_mounts.get(umount.mount).is_some_and(|busy| busy.identity.is_some());
        if !is_known {
            self.busy_mounts.remove(umount.mount);
            self.holder_scans.forget(umount.mount);
            self.stop_lookups_of_none();
        }
    }
}
