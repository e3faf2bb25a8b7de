//! Events of unmounts. A refused one (EBUSY) is emitted at attempts 1, 2, 4, 8 … of each caller, with the holders of
//! the mount; a successful one if it was refused before or is a pod volume.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Core;
use super::pending::Pending;
use crate::diagnose::ModelChange;
use crate::event::wording::{actor_phrase, holders_phrase, owner_phrase};
use crate::event::{Event, Kind, Mount, MountHolder, Severity, Target, Unreadable, Volume};
use crate::node::mounts::MountKey;
use crate::observation::{BootNs, HolderReport, Request, Source, UmountAttempt, Verdict};

const EBUSY: u16 = 16;
/// `MNT_*` and `UMOUNT_*` of include/linux/fs.h.
const FLAGS: [(u32, &str); 4] =
    [(1, "MNT_FORCE"), (2, "MNT_DETACH"), (4, "MNT_EXPIRE"), (8, "UMOUNT_NOFOLLOW")];
const MNT_DETACH: u32 = 2;
const UMOUNT_NOFOLLOW: u32 = 8;
/// At most one scan of a mount in this time: a runtime retries 50 times in 5 s.
const SCAN_INTERVAL_NS: u64 = 10_000_000_000;
/// An event is held back this long for its scan; a scan has a shorter time budget of its own.
const SCAN_TIMEOUT_NS: u64 = 5_000_000_000;
/// Scans that are kept. Of an old one only the mount is needed; its holders, which take most of the memory, are dropped.
const SCANS_MAX: usize = 1024;
/// How long the mount found by a scan is kept.
const SCAN_RETENTION_NS: u64 = 15 * 60 * 1_000_000_000;

/// Holder scans of busy mounts: their results, and the attempts whose events await one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HolderScans {
    #[serde(with = "crate::pairs")]
    scans: HashMap<MountKey, Scan>,
    pending: Pending<u64, PendingUmount>,
    next_id: u64,
}

/// The newest scan of a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Scan {
    requested_at: BootNs,
    report: Option<HolderReport>,
}

/// An unmount whose event is held back until a scan is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PendingUmount {
    at: BootNs,
    #[serde(default, skip_serializing_if = "Source::is_daemon")]
    source: Source,
    key: MountKey,
    attempt: UmountAttempt,
    outcome: Outcome,
}

/// The outcome of an unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// Refused with EBUSY: number of refused attempts of this caller.
    Refused(u64),
    /// Unmounted or detached: number of refused attempts of all callers before, if any.
    Released(Option<u64>),
}

impl HolderScans {
    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.pending.deadline()
    }

    /// Holders are dropped later than they are reused: a pending event may still need them.
    fn expire(&mut self, now: BootNs) {
        self.scans.retain(|_, scan| scan.requested_at.saturating_add(SCAN_RETENTION_NS) > now);
        for scan in self.scans.values_mut() {
            let old = scan.requested_at.saturating_add(2 * SCAN_INTERVAL_NS) <= now;
            if let Some(report) = scan.report.as_mut().filter(|_| old) {
                report.holders = Vec::new();
            }
        }
    }

    fn make_room(&mut self) {
        if self.scans.len() >= SCANS_MAX {
            let mut times: Vec<BootNs> = self.scans.values().map(|scan| scan.requested_at).collect();
            times.sort_unstable();
            let median = times[times.len() / 2];
            self.scans.retain(|_, scan| scan.requested_at > median);
        }
    }
}

impl Core {
    pub(super) fn umount(&mut self, at: BootNs, attempt: UmountAttempt) {
        let key = MountKey::new(attempt.mntns, &attempt.place());
        match attempt.errno {
            Some(EBUSY) => self.refused(at, key, attempt),
            Some(_) => {}
            None => self.released(at, key, attempt),
        }
    }

    fn refused(&mut self, at: BootNs, key: MountKey, attempt: UmountAttempt) {
        let attempts = self.busy_mounts.refused(at, &key, &attempt.actor.comm);
        if attempts.is_power_of_two() {
            return self.emit_after_scan(at, key, attempt, Outcome::Refused(attempts));
        }
        self.diagnose(at, &ModelChange::Refused(&key));
    }

    fn released(&mut self, at: BootNs, key: MountKey, attempt: UmountAttempt) {
        let attempts = self.busy_mounts.released(&key).map(|busy| busy.attempts());
        if attempts.is_none() && self.kubelets.volume(at, key.mntns, &key.path).is_none() {
            return;
        }
        self.emit_after_scan(at, key, attempt, Outcome::Released(attempts));
    }

    /// Events of one mount are emitted in the order of the unmounts, so later ones await the scan of the first, too.
    fn emit_after_scan(&mut self, at: BootNs, key: MountKey, attempt: UmountAttempt, outcome: Outcome) {
        let umount = PendingUmount { at, source: self.source, key, attempt, outcome };
        let scans = &mut self.holder_scans;
        if let Some((id, deadline)) = scans.pending.last_matching(|pending| pending.key == umount.key) {
            let id = *id;
            return scans.pending.push(deadline, id, umount);
        }
        let recent = |scan: &&Scan| at < scan.requested_at.saturating_add(SCAN_INTERVAL_NS);
        let is_scanned = scans.scans.get(&umount.key).is_some_and(|scan| recent(&scan));
        if is_scanned || matches!(outcome, Outcome::Released(_)) {
            return self.emit_umount(umount);
        }
        scans.make_room();
        scans.scans.insert(umount.key.clone(), Scan { requested_at: at, report: None });
        scans.next_id += 1;
        let id = scans.next_id;
        self.request(Request::Holders {
            id,
            mntns: umount.attempt.mntns,
            tgid: umount.attempt.actor.key.tgid,
            path: umount.attempt.path.clone(),
            origin: umount.attempt.origin.clone(),
            follow: umount.attempt.flags & UMOUNT_NOFOLLOW == 0,
        });
        self.holder_scans.pending.push(at.saturating_add(SCAN_TIMEOUT_NS), id, umount);
    }

    pub(super) fn holders(&mut self, report: HolderReport) {
        let answered = self.holder_scans.pending.take_answered(&report.id);
        let Some(first) = answered.first() else { return };
        if let Some(scan) = self.holder_scans.scans.get_mut(&first.key) {
            scan.report = Some(report);
        }
        answered.into_iter().for_each(|umount| self.emit_umount(umount));
    }

    pub(super) fn expire_mounts(&mut self, now: BootNs) {
        for umount in self.holder_scans.pending.take_overdue(now) {
            self.emit_umount(umount);
        }
        self.busy_mounts.expire(now);
        self.holder_scans.expire(now);
    }

    fn emit_umount(&mut self, PendingUmount { at, source, key, attempt, outcome }: PendingUmount) {
        self.source = source;
        let report = self.holder_scans.scans.get(&key).and_then(|scan| scan.report.clone());
        match outcome {
            Outcome::Refused(attempts) => self.emit_busy(at, &key, &attempt, attempts, report),
            Outcome::Released(attempts) => {
                self.emit_released(at, &key, &attempt, attempts, report.as_ref());
                // What is mounted there next has other holders.
                self.holder_scans.scans.remove(&key);
            }
        }
    }

    fn emit_released(
        &mut self,
        at: BootNs,
        key: &MountKey,
        attempt: &UmountAttempt,
        attempts: Option<u64>,
        report: Option<&HolderReport>,
    ) {
        let volume = self.kubelets.volume(at, key.mntns, &key.path);
        let detached = attempt.flags & MNT_DETACH != 0;
        let (kind, verb) = match detached {
            true => (Kind::MountDetached, "detached"),
            false => (Kind::MountReleased, "unmounted"),
        };
        let severity = match (detached, attempts) {
            (true, Some(_)) => Severity::Notice,
            (false, Some(_)) => Severity::Info,
            (_, None) => Severity::Debug,
        };
        let actor = self.actor(&attempt.actor, false);
        let refused = match attempts {
            None => String::new(),
            Some(1) => " after one refused attempt".to_owned(),
            Some(attempts) => format!(" after {attempts} refused attempts"),
        };
        let target = self.mount_target(volume.as_ref(), key.mntns, &actor);
        let subject = mount_phrase(&key.path, volume.as_ref(), target.as_ref());
        let message = format!("{subject} {verb}{refused} by {}", actor_phrase(&actor));
        let mount = self.mount(key, attempt, attempts, report, volume);
        let event = Event {
            actor: Some(Box::new(actor)),
            target: target.map(Box::new),
            mount: Some(Box::new(mount)),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }

    fn emit_busy(
        &mut self,
        at: BootNs,
        key: &MountKey,
        attempt: &UmountAttempt,
        attempts: u64,
        report: Option<HolderReport>,
    ) {
        let path = report.as_ref().map_or(key.path.as_str(), |report| report.path.as_str());
        let volume = self.kubelets.volume(at, key.mntns, path);
        let mount = self.mount(key, attempt, Some(attempts), report.as_ref(), volume);
        let (complete, verdict) = match &report {
            // EBUSY shows that it was a mount: that none is found now explains nothing.
            Some(HolderReport { verdict: Verdict::NotAMount, .. }) => (false, Verdict::NotAMount),
            Some(report) => (report.complete, report.verdict),
            None => (false, Verdict::Skipped),
        };
        let (holders, blind_spots) =
            report.map(|report| (report.holders, report.blind_spots)).unwrap_or_default();
        let unreadable = blind_spots.into_iter().map(|spot| Unreadable {
            pid: spot.tgid,
            comm: spot.comm,
            reason: spot.reason,
        });
        let holders: Vec<MountHolder> =
            holders.into_iter().map(|holder| self.mount_holder(at, holder)).collect();
        let actor = self.actor(&attempt.actor, false);
        let target = self.mount_target(mount.volume.as_ref(), key.mntns, &actor);
        let subject = mount_phrase(&mount.path, mount.volume.as_ref(), target.as_ref());
        let message = format!("umount of {subject} refused: {}", holders_phrase(&holders, verdict));
        let event = Event {
            actor: Some(Box::new(actor)),
            target: target.map(Box::new),
            mount: Some(Box::new(mount)),
            holders: Some(holders),
            holders_complete: Some(complete),
            holders_unreadable: unreadable.collect(),
            holders_verdict: Some(verdict),
            ..self.event(at, Kind::MountBusy, Severity::Warning, message)
        };
        self.emit(event);
    }

    fn mount(
        &self,
        key: &MountKey,
        attempt: &UmountAttempt,
        attempts: Option<u64>,
        report: Option<&HolderReport>,
        volume: Option<Volume>,
    ) -> Mount {
        let facts = report.and_then(|report| report.mount.as_ref());
        Mount {
            syscall: attempt.syscall.name().into(),
            path: report.map_or_else(|| key.path.clone(), |report| report.path.clone()),
            errno: attempt.errno.map(|_| "EBUSY".to_owned()),
            flags: FLAGS
                .iter()
                .filter(|(bit, _)| attempt.flags & bit != 0)
                .map(|(_, name)| (*name).to_owned())
                .collect(),
            fstype: facts.map(|facts| facts.fstype.clone()),
            source: facts.map(|facts| facts.source.clone()),
            device: facts.map(|facts| facts.device.clone()),
            mntns: key.mntns,
            attempts,
            volume,
            child_mounts: report.map_or_else(Vec::new, |report| report.child_mounts.clone()),
        }
    }
}

/// A pod volume by its name, any other mount by its path.
fn mount_phrase(path: &str, volume: Option<&Volume>, target: Option<&Target>) -> String {
    match (volume, target) {
        (Some(volume), Some(target)) => format!("volume {}{}", volume.name, owner_phrase(target)),
        // In a namespace of somebody else, where any path may be made.
        (None, Some(target)) => format!("{path}{}", owner_phrase(target)),
        (_, None) => path.to_owned(),
    }
}
