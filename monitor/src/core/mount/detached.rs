//! Mounts of pods and containers that were detached (`umount --lazy`) though no unmount of them had been refused: the call
//! succeeds whoever uses them, so it is looked who does. All that were detached within some seconds are looked for at once,
//! since runtimes detach mounts of each container that ends.

use serde::{Deserialize, Serialize};

use super::events::mount_phrase;
use super::{HolderScans, MS, QueuedUmount};
use crate::core::Core;
use crate::core::held::unreadable;
use crate::event::wording::{actor_phrase, holders_phrase, users};
use crate::event::{Confidence, Event, Kind, MountHolder, Severity};
use crate::observation::{BootNs, DetachedMount, HolderReport, MeantMount, Rank, Request, Share};

/// So long after a mount was detached: who only was about to let go has.
const SETTLE: BootNs = 1_000 * MS;
/// Between two looks, each of which reads all processes.
const INTERVAL: BootNs = 10_000 * MS;
/// An answer is not waited for any longer.
const TIMEOUT: BootNs = 120_000 * MS;
/// Mounts that wait for a look; of more, it is not found out who uses them.
const MAX: usize = 64;
/// Marks the ids of these requests.
const DETACHED: u64 = 1 << 52;

/// Mounts that were detached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Detached {
    waiting: Vec<Waiting>,
    /// Of which it is looked who uses them: the request, and until when it is waited for.
    asked: Vec<Waiting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<(u64, BootNs)>,
    /// When the next look is due, if one is.
    next: Option<BootNs>,
    last: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    umount: QueuedUmount,
    /// The event that tells of it, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
}

impl Waiting {
    fn meant(&self) -> Option<MeantMount> {
        self.umount.attempt.origin.as_ref()?.target
    }
}

impl Detached {
    pub(super) fn due(&self) -> Option<BootNs> {
        match self.request {
            Some((_, deadline)) => Some(deadline),
            None => self.next.filter(|_| !self.waiting.is_empty()),
        }
    }
}

impl HolderScans {
    fn detached_due(&self, now: BootNs) -> bool {
        self.detached.due().is_some_and(|due| due <= now)
    }
}

impl Core {
    /// A mount of the host was detached that nobody was looked for on. `seq`: of the event that tells of it.
    pub(super) fn look_for_users(&mut self, umount: &QueuedUmount, seq: Option<u64>) {
        let is_of_host = umount.account.host && self.kubelets.mounts_in(umount.key.mntns);
        let waiting = Waiting { umount: umount.clone(), seq };
        let detached = &mut self.holder_scans.detached;
        if !is_of_host || !umount.is_lazy() || waiting.meant().is_none() || detached.waiting.len() >= MAX {
            return;
        }
        detached.waiting.push(waiting);
        let settled = umount.at.saturating_add(SETTLE);
        detached.next = Some(detached.next.map_or(settled, |next| next.max(settled)));
    }

    pub(super) fn look_at_detached(&mut self, now: BootNs) {
        if !self.holder_scans.detached_due(now) {
            return;
        }
        let detached = &mut self.holder_scans.detached;
        if detached.request.take().is_some() {
            detached.asked.clear();
            return detached.next = Some(now.saturating_add(INTERVAL));
        }
        detached.asked = std::mem::take(&mut detached.waiting);
        detached.last += 1;
        let id = DETACHED | detached.last;
        detached.request = Some((id, now.saturating_add(TIMEOUT)));
        let mount = |waiting: &Waiting| {
            Some(DetachedMount { meant: waiting.meant()?, path: waiting.umount.key.path.clone() })
        };
        let mounts = detached.asked.iter().filter_map(mount).collect();
        let mntns = detached.asked.first().map_or(0, |waiting| waiting.umount.key.mntns);
        let share = Share { rank: Rank::Host, account: String::new(), uid: 0, mntns };
        self.request(Request::DetachedUsers { id, mounts, share });
    }

    /// Who uses detached mounts was looked for.
    pub(in crate::core) fn detached_users(&mut self, at: BootNs, id: u64, reports: Vec<HolderReport>) {
        let detached = &mut self.holder_scans.detached;
        if detached.request.is_none_or(|(asked, _)| asked != id) {
            return;
        }
        detached.request = None;
        detached.next = Some(at.saturating_add(INTERVAL));
        let asked = std::mem::take(&mut detached.asked);
        for report in reports {
            let place = usize::try_from(report.id).unwrap_or(usize::MAX);
            if let Some(waiting) = asked.get(place).filter(|_| !report.holders.is_empty()) {
                self.emit_used(at, waiting, report);
            }
        }
    }

    /// A mount that was detached is used on.
    fn emit_used(&mut self, at: BootNs, Waiting { umount, seq }: &Waiting, report: HolderReport) {
        self.take_up(umount);
        let mount = self.mount_object(umount, super::events::Known::default());
        let actor = self.unmounting_actor(&umount.attempt);
        let target = self.mount_target(&mount, &actor);
        let subject = mount_phrase(&mount.path, mount.volume.as_ref(), target.as_ref());
        let likely = if actor.confidence == Confidence::Certain { "" } else { "likely " };
        let (verdict, complete) = (report.verdict, report.complete);
        let unreadable = unreadable(Some(&report), complete, verdict);
        let holders: Vec<MountHolder> =
            report.holders.into_iter().map(|holder| self.mount_holder(umount.at, holder)).collect();
        let phrase = holders_phrase(&holders, verdict);
        let used = match users(&holders).next() {
            Some(_) => format!(", and is still {phrase}"),
            None => format!("; {phrase}"),
        };
        let by = actor_phrase(&actor);
        let message = format!("{subject}, or what was mounted on it, detached {likely}by {by}{used}");
        let event = Event {
            mount: Some(Box::new(mount)),
            actor: Some(Box::new(actor)),
            target: target.map(Box::new),
            holders: Some(holders),
            holders_complete: Some(complete),
            holders_unreadable: unreadable,
            holders_verdict: Some(verdict),
            completes: *seq,
            ..self.event(at, Kind::MountDetached, Severity::Notice, message)
        };
        self.emit(event);
    }
}
