//! Unmounts that are refused: told once per caller at attempts 1, 2, 4, 8 …, with who holds the mount.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::Core;
use crate::diagnose::Change;
use crate::event::wording::{held_by, who, whose};
use crate::event::{Event, Kind, Mount, MountHolder, Severity, Target, Volume};
use crate::node::volume;
use crate::observation::{BootNs, HolderReport, NsInum, Request, UmountAttempt, Verdict};

const EBUSY: u16 = 16;
/// `MNT_*` and `UMOUNT_*` of include/linux/fs.h.
const FLAGS: [(u32, &str); 4] =
    [(1, "MNT_FORCE"), (2, "MNT_DETACH"), (4, "MNT_EXPIRE"), (8, "UMOUNT_NOFOLLOW")];
const MNT_DETACH: u32 = 2;
/// One scan per path in this time: a runtime retries 50 times in 5 s.
const SCAN_INTERVAL_NS: u64 = 10_000_000_000;
/// An event waits this long for its scan; a scan has a shorter budget of its own.
const SCAN_PATIENCE_NS: u64 = 5_000_000_000;
/// kubelet retries every two minutes at the slowest.
const FORGET_NS: u64 = 15 * 60 * 1_000_000_000;
const BUSY_MAX: usize = 1024;

/// Mounts that were refused and not yet released.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct BusyMounts {
    #[serde(with = "crate::pairs")]
    known: HashMap<Place, Busy>,
    waiting: Vec<Waiting>,
    next_id: u64,
}

/// Where a mount is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
struct Place {
    mntns: NsInum,
    path: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Busy {
    /// By the caller's command name: each retry of kubelet is another process.
    attempts: BTreeMap<String, u64>,
    last_seen: BootNs,
    last_scan: Option<BootNs>,
    report: Option<HolderReport>,
}

/// A refused attempt whose holders are being looked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    id: u64,
    at: BootNs,
    deadline: BootNs,
    place: Place,
    attempt: UmountAttempt,
    attempts: u64,
}

impl Busy {
    /// Of an old report only the mount is of use, and its holders are the most of it. An attempt that is told late
    /// may still want them a while after they are too old for others.
    fn forget_holders(&mut self, now: BootNs) {
        let old = self.last_scan.is_none_or(|scan| scan.saturating_add(2 * SCAN_INTERVAL_NS) <= now);
        if let Some(report) = self.report.as_mut().filter(|_| old) {
            report.holders = Vec::new();
        }
    }
}

impl BusyMounts {
    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }
}

impl Core {
    pub(super) fn umount(&mut self, at: BootNs, attempt: UmountAttempt) {
        let place = Place { mntns: attempt.mntns, path: trimmed(&attempt.path).to_owned() };
        match attempt.errno {
            Some(EBUSY) => self.busy(at, place, attempt),
            Some(_) => {}
            None => self.released(at, &place, &attempt),
        }
    }

    fn busy(&mut self, at: BootNs, place: Place, attempt: UmountAttempt) {
        self.make_room();
        let busy = self.mounts.known.entry(place.clone()).or_default();
        busy.last_seen = at;
        let attempts = busy.attempts.entry(attempt.actor.comm.clone()).or_default();
        *attempts += 1;
        let attempts = *attempts;
        let total = busy.attempts.values().sum();
        if attempts.is_power_of_two() {
            return self.tell_attempt(at, place, attempt, attempts);
        }
        self.diagnose(at, &Change::Refused { mntns: place.mntns, path: &place.path, attempts: total });
    }

    fn tell_attempt(&mut self, at: BootNs, place: Place, attempt: UmountAttempt, attempts: u64) {
        let busy = self.mounts.known.entry(place.clone()).or_default();
        let recent = busy.last_scan.is_some_and(|scan| at < scan.saturating_add(SCAN_INTERVAL_NS));
        if recent {
            // Its scan may still be under way: then both wait for the same answer.
            if let Some(report) = busy.report.clone() {
                return self.tell_busy(at, &place, &attempt, attempts, Some(report));
            }
            if let Some(id) = self.mounts.waiting.iter().find(|w| w.place == place).map(|w| w.id) {
                return self.wait(id, at, place, attempt, attempts);
            }
            return self.tell_busy(at, &place, &attempt, attempts, None);
        }
        busy.last_scan = Some(at);
        self.mounts.next_id += 1;
        let id = self.mounts.next_id;
        self.request(Request::Holders {
            id,
            mntns: attempt.mntns,
            tgid: attempt.actor.key.tgid,
            path: attempt.path.clone(),
        });
        self.wait(id, at, place, attempt, attempts);
    }

    fn wait(&mut self, id: u64, at: BootNs, place: Place, attempt: UmountAttempt, attempts: u64) {
        let deadline = at.saturating_add(SCAN_PATIENCE_NS);
        self.mounts.waiting.push(Waiting { id, at, deadline, place, attempt, attempts });
    }

    pub(super) fn holders(&mut self, report: HolderReport) {
        let answered: Vec<_> = self.mounts.waiting.extract_if(.., |w| w.id == report.id).collect();
        for waiting in answered {
            if let Some(busy) = self.mounts.known.get_mut(&waiting.place) {
                busy.report = Some(report.clone());
            }
            self.tell_busy(
                waiting.at,
                &waiting.place,
                &waiting.attempt,
                waiting.attempts,
                Some(report.clone()),
            );
        }
    }

    pub(super) fn expire_mounts(&mut self, now: BootNs) {
        let overdue: Vec<_> = self.mounts.waiting.extract_if(.., |w| w.deadline <= now).collect();
        for waiting in overdue {
            self.tell_busy(waiting.at, &waiting.place, &waiting.attempt, waiting.attempts, None);
        }
        self.mounts.known.retain(|_, busy| busy.last_seen.saturating_add(FORGET_NS) > now);
        for busy in self.mounts.known.values_mut() {
            busy.forget_holders(now);
        }
    }

    fn released(&mut self, at: BootNs, place: &Place, attempt: &UmountAttempt) {
        let busy = self.mounts.known.remove(place);
        let volume = volume::of_path(&place.path);
        if busy.is_none() && volume.is_none() {
            return;
        }
        let detached = attempt.flags & MNT_DETACH != 0;
        let (kind, verb) = match detached {
            true => (Kind::MountDetached, "detached"),
            false => (Kind::MountReleased, "unmounted"),
        };
        let attempts = busy.as_ref().map(|busy| busy.attempts.values().sum::<u64>());
        let severity = match (detached, &busy) {
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
        let target = volume.as_ref().map(|volume| self.node().target_of_pod(&volume.pod_uid));
        let what = named(&place.path, volume.as_ref(), target.as_ref());
        let message = format!("{what} {verb}{refused} by {}", who(&actor));
        let mount = self.mount(place, attempt, attempts, busy.and_then(|busy| busy.report).as_ref(), volume);
        let event = Event {
            actor: Some(Box::new(actor)),
            target: target.map(Box::new),
            mount: Some(Box::new(mount)),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event);
    }

    fn tell_busy(
        &mut self,
        at: BootNs,
        place: &Place,
        attempt: &UmountAttempt,
        attempts: u64,
        report: Option<HolderReport>,
    ) {
        let path = report.as_ref().map_or(place.path.as_str(), |report| report.path.as_str());
        let volume = volume::of_path(path);
        let mount = self.mount(place, attempt, Some(attempts), report.as_ref(), volume);
        let (complete, verdict) = match &report {
            // The kernel refused to unmount it, so it was a mount until a moment ago.
            Some(HolderReport { verdict: Verdict::NotAMount, .. }) => (true, Verdict::Transient),
            Some(report) => (report.complete, report.verdict),
            None => (false, Verdict::Skipped),
        };
        let holders: Vec<MountHolder> = report
            .map(|report| report.holders)
            .unwrap_or_default()
            .into_iter()
            .map(|holder| self.mount_holder(holder))
            .collect();
        let actor = self.actor(&attempt.actor, false);
        let target = mount.volume.as_ref().map(|volume| self.node().target_of_pod(&volume.pod_uid));
        let what = named(&mount.path, mount.volume.as_ref(), target.as_ref());
        let message = format!("umount of {what} refused: {}", held_by(&holders, verdict));
        let event = Event {
            actor: Some(Box::new(actor)),
            target: target.map(Box::new),
            mount: Some(Box::new(mount)),
            holders: Some(holders),
            holders_complete: Some(complete),
            holders_verdict: Some(verdict),
            ..self.event(at, Kind::MountBusy, Severity::Warning, message)
        };
        self.emit(event);
    }

    fn mount(
        &self,
        place: &Place,
        attempt: &UmountAttempt,
        attempts: Option<u64>,
        report: Option<&HolderReport>,
        volume: Option<Volume>,
    ) -> Mount {
        let facts = report.and_then(|report| report.mount.as_ref());
        Mount {
            syscall: "umount2".into(),
            path: report.map_or_else(|| place.path.clone(), |report| report.path.clone()),
            errno: attempt.errno.map(|_| "EBUSY".to_owned()),
            flags: FLAGS
                .iter()
                .filter(|(bit, _)| attempt.flags & bit != 0)
                .map(|(_, name)| (*name).to_owned())
                .collect(),
            fstype: facts.map(|facts| facts.fstype.clone()),
            source: facts.map(|facts| facts.source.clone()),
            device: facts.map(|facts| facts.device.clone()),
            mntns: place.mntns,
            attempts,
            volume,
            child_mounts: report.map_or_else(Vec::new, |report| report.child_mounts.clone()),
        }
    }

    fn make_room(&mut self) {
        if self.mounts.known.len() >= BUSY_MAX {
            let mut seen: Vec<BootNs> = self.mounts.known.values().map(|busy| busy.last_seen).collect();
            seen.sort_unstable();
            let median = seen[seen.len() / 2];
            self.mounts.known.retain(|_, busy| busy.last_seen > median);
        }
    }
}

/// `/mnt/` and `/mnt` are the same mount.
fn trimmed(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" if path.starts_with('/') => "/",
        trimmed => trimmed,
    }
}

/// A pod's volume by its name, anything else by its path.
fn named(path: &str, volume: Option<&Volume>, target: Option<&Target>) -> String {
    match (volume, target) {
        (Some(volume), Some(target)) => format!("volume {}{}", volume.name, whose(target)),
        _ => path.to_owned(),
    }
}
