//! Holders that are told again: within ten seconds of a scan, and only where the path still leads to the mount that was
//! scanned. Another one may have been mounted there since.

use super::{Answer, QueuedUmount, SCAN_INTERVAL_NS, Scan, UMOUNT_NOFOLLOW};
use crate::core::Core;
use crate::observation::{BootNs, HolderReport, MountFacts, MountIdentity, Request, Verdict};

/// Whether the holders that a scan has found are told again.
pub(super) enum Repeat {
    /// There is nothing in them that could be another mount's.
    Yes,
    /// If the path leads to this mount still: another one may have been mounted there since.
    IfStill(MountIdentity),
    No,
}

impl Scan {
    fn is_recent(&self, at: BootNs) -> bool {
        at < self.at.saturating_add(SCAN_INTERVAL_NS)
    }

    /// `goes_on`: whether the scan is still under way; another one would find no more.
    pub(super) fn repeat(&self, umount: &QueuedUmount, goes_on: bool) -> Repeat {
        let HolderReport { mount, verdict, .. } = &self.report;
        if !goes_on && !self.is_recent(umount.at) {
            return Repeat::No;
        }
        // Recordings of before paths had an origin have no answer to this.
        if umount.attempt.origin.is_none() || mount.is_none() && *verdict != Verdict::NotAMount {
            return Repeat::Yes;
        }
        mount.as_ref().and_then(MountFacts::identity).map_or(Repeat::No, Repeat::IfStill)
    }
}

impl Core {
    /// Has it looked up whether the path leads to this mount.
    pub(super) fn check(&mut self, umount: QueuedUmount, identity: MountIdentity) -> QueuedUmount {
        let awaits = self.awaited(umount.at, Answer::SameMount);
        let attempt = &umount.attempt;
        let share = self.share(&umount);
        self.request(Request::MountAt {
            id: awaits.id,
            mntns: attempt.mntns,
            tgid: attempt.actor.key.tgid,
            path: attempt.path.clone(),
            origin: attempt.origin.clone(),
            follow: attempt.flags & UMOUNT_NOFOLLOW == 0,
            identity,
            share,
        });
        QueuedUmount { awaits: Some(awaits), ..umount }
    }

    /// Whether the path of a refused unmount leads to the mount whose holders are known.
    pub(super) fn checked(&mut self, umount: QueuedUmount, is_same: bool) {
        if is_same {
            let scan = self.holder_scans.last(umount.mount).cloned();
            self.emit_busy(&umount, scan.as_ref(), None);
            self.advance(umount.mount);
        } else {
            let waiting = self.scan(umount);
            self.holder_scans.queue.push_first(waiting);
        }
    }
}
