//! Holders that are told again: within ten seconds of a scan, and only where the path still leads to the mount that was
//! scanned. Another one may have been mounted there since.

use kevtmon_observation::{
    Access, BootNs, Holder, HolderReport, MountFacts, MountIdentity, MountPresence, Request, Verdict,
};
use serde::{Deserialize, Serialize};

use super::{Answer, QueuedUmount, SCAN_INTERVAL_NS};
use crate::Core;

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Scan {
    pub(super) at: BootNs,
    pub(super) report: HolderReport,
    /// When it was looked last whether those still hold the mount, for a refused attempt that is only counted.
    pub(super) checked: Option<BootNs>,
}

impl Scan {
    pub(super) fn new(at: BootNs, report: HolderReport) -> Self {
        Self { at, report, checked: None }
    }
}

/// Whether the holders that a scan has found are told again.
pub(super) enum Repeat {
    /// There is nothing in them that could be another mount's.
    Yes,
    /// As far as they still hold it: the kernel says that it is the same mount.
    IfHeld,
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
        let HolderReport { mount, verdict, resolved, .. } = &self.report;
        // One that was not made has nothing to tell again.
        if !goes_on && (*verdict == Verdict::Skipped || !self.is_recent(umount.at)) {
            return Repeat::No;
        }
        // Recordings that do not tell where the path starts from have no answer to this.
        if umount.attempt.origin.is_none() {
            return Repeat::Yes;
        }
        // What was found at the path was newer than that call, but not than this one.
        let is_of_another = resolved.is_some() || *verdict == Verdict::NotAMount;
        if mount.is_none() && !is_of_another {
            return Repeat::Yes;
        }
        // The kernel's own word spares the look.
        let meant = umount.attempt.origin.as_ref().and_then(|origin| origin.target?.unique);
        match (meant, mount.as_ref().and_then(|mount| mount.unique)) {
            (Some(meant), Some(scanned)) if meant == scanned => return Repeat::IfHeld,
            (Some(_), Some(_)) => return Repeat::No,
            _ => {}
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
            follow: attempt.follows(),
            identity,
            share,
        });
        QueuedUmount { awaits: Some(awaits), ..umount }
    }

    /// Whether the path of a refused unmount leads to the mount whose holders are known.
    pub(super) fn checked(&mut self, umount: QueuedUmount, presence: &MountPresence) {
        if presence.present != Some(true) || umount.outlived.is_some() {
            let waiting = self.scan(umount);
            return self.holder_scans.queue.push_first(waiting);
        }
        let mount = umount.mount;
        let doubt = presence.reason.clone().filter(|_| presence.is_likely);
        match self.look_again(QueuedUmount { doubt, ..umount }) {
            Some(waiting) => self.holder_scans.queue.push_first(waiting),
            None => self.advance(mount),
        }
    }

    /// Has those looked at again who held the mount before; returns the unmount if it awaits that.
    pub(super) fn look_again(&mut self, umount: QueuedUmount) -> Option<QueuedUmount> {
        let scan = self.holder_scans.last(umount.mount);
        // What was mounted below it may be gone, as the advice on it says.
        let had_children = scan.is_some_and(|scan| !scan.report.child_mounts.is_empty());
        if had_children && !self.holder_scans.is_going_on(umount.mount) {
            return Some(self.scan(umount));
        }
        let looks = scan.filter(|scan| scan.at < umount.at && !scan.report.holders.is_empty());
        let Some((mount, holders)) =
            looks.and_then(|scan| Some((scan.report.mount.clone()?, scan.report.holders.clone())))
        else {
            self.repeat(&umount);
            return None;
        };
        let awaits = self.awaited(umount.at, Answer::SameHolders);
        let (id, share) = (awaits.id, self.share(&umount));
        self.request(Request::StillHeld { id, mount: Box::new(mount), holders, is_attached: true, share });
        Some(QueuedUmount { awaits: Some(awaits), ..umount })
    }

    /// Those of the known holders were looked at again that still may be. Where all have let go, somebody else refused.
    pub(super) fn looked_again(&mut self, umount: QueuedUmount, again: HolderReport) {
        let is_user = |holder: &Holder| holder.explains() && holder.access != Access::ChildMount;
        // Of more than these the report does not tell.
        let is_doubted = |known: &Holder| {
            again.blind_spots.len() >= HolderReport::BLIND_SPOTS
                || again.blind_spots.iter().any(|spot| spot.tgid.is_none_or(|tgid| tgid == known.tgid))
        };
        let is_seen = |known: &Holder| again.holders.iter().any(|holder| holder.is_same_hold(known));
        let is_still =
            |known: &Holder| known.access == Access::ChildMount || is_doubted(known) || is_seen(known);
        let goes_on = self.holder_scans.is_going_on(umount.mount);
        let Some(known) = self.holder_scans.last_mut(umount.mount) else {
            self.repeat(&umount);
            return self.advance(umount.mount);
        };
        let all = std::mem::take(&mut known.report.holders);
        let had_users = all.iter().any(is_user);
        let own = known.report.mount.as_ref().map(|mount| mount.mntns);
        // A name in another mount namespace may be that of another file by now.
        let is_unknown_copy = |known: &Holder| {
            let is_foreign = own.zip(known.mntns).is_some_and(|(own, mntns)| own != mntns);
            is_user(known) && is_foreign && is_doubted(known) && !is_seen(known)
        };
        let is_unknown = all.iter().any(is_unknown_copy);
        known.report.holders = all.into_iter().filter(is_still).collect();
        let holders = &known.report.holders;
        let is_over = had_users && !holders.iter().any(is_user)
            || known.report.verdict == Verdict::MountNamespace && holders.is_empty();
        if (is_over || is_unknown) && !goes_on {
            let let_go = had_users && !is_unknown;
            let waiting = self.scan(QueuedUmount { let_go, ..umount });
            return self.holder_scans.queue.push_first(waiting);
        }
        self.repeat(&umount);
        self.advance(umount.mount);
    }

    fn repeat(&mut self, umount: &QueuedUmount) {
        let mut scan = self.holder_scans.last(umount.mount).cloned();
        if let Some((Scan { report, .. }, doubt)) = scan.as_mut().zip(umount.doubt.as_ref()) {
            report.mount_is_likely = true;
            report.blind_spot(None, doubt);
        }
        self.emit_busy(umount, scan.as_ref(), None);
    }
}
