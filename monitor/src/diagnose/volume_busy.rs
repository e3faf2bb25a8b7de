//! A pod's volume cannot be unmounted, so the pod stays in Terminating.
//!
//! Opens with the first refused unmount below a kubelet's pod directory and closes when the unmount succeeds. All
//! attempts are one incident. It needs the umount hook: no source lists the mounts of pods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::timers::Timers;
use super::{CAPACITY, Context, Diagnosis, ModelChange, SCAN_ID, STARTUP_GRACE};
use crate::event::wording::{holders_phrase, owner_phrase, pod_label, repeated_actor_phrase};
use crate::event::{CloseReason, Confidence, Event, Kind, Mount, Severity, Volume};
use crate::node::mounts::{BusyMount, BusyMounts, MountKey};
use crate::node::volume;
use crate::observation::{BootNs, HolderReport, Request, Verdict};
use crate::settings::{Thresholds, Unit, thresholds};

mod release;

/// As users filter and alert on it.
pub(super) const KIND: &str = "volume-busy";

const SECOND: BootNs = 1_000_000_000;
/// Mounts of one volume: one for each container with a sub-path of it.
const MOUNTS_MAX: usize = 64;
/// The directory of the pods' directories.
const PODS: &str = "/pods/";
/// Holder scans requested at once: as many as fit into the scanner's queue.
const SCANS_MAX: usize = 32;

thresholds! {
    /// A busy volume is a warning after this many refused attempts to unmount it.
    WARNING_ATTEMPTS = "volume_busy_warning_attempts", default 3, Unit::Count;
    /// A busy volume is a warning after this time.
    WARNING_AFTER = "volume_busy_warning_seconds", default 30, Unit::Seconds;
    /// A busy volume is critical after this time.
    CRITICAL_AFTER = "volume_busy_critical_seconds", default 15 * 60, Unit::Seconds;
    /// Without a further attempt to unmount it, the incident of a busy volume expires after this time.
    EXPIRE_AFTER = "volume_busy_expire_seconds", default 30 * 60, Unit::Seconds;
}

/// A busy volume.
#[derive(Debug, Serialize, Deserialize)]
struct BusyVolume {
    first: BootNs,
    last: BootNs,
    severity: Severity,
    /// Its busy mounts, with the number of attempts that an earlier incident counted.
    #[serde(with = "crate::pairs")]
    mounts: BTreeMap<MountKey, u64>,
    /// Attempts that the model no longer counts: of released mounts, or of the previous run.
    former: u64,
}

impl BusyVolume {
    fn attempts(&self, counted: &BusyMounts) -> u64 {
        let here = |(key, before): (&MountKey, &u64)| {
            counted_at(counted, key).map_or(0, |busy| busy.attempts().saturating_sub(*before))
        };
        self.former + self.mounts.iter().map(here).sum::<u64>()
    }
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct VolumeBusy {
    #[serde(skip)]
    thresholds: Thresholds,
    busy: BTreeMap<String, BusyVolume>,
    #[serde(with = "crate::pairs")]
    by_mount: BTreeMap<MountKey, String>,
    /// When an incident escalates or expires.
    timers: Timers<String>,
    scans: BTreeMap<u64, MountKey>,
    last_scan: u64,
}

impl VolumeBusy {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self {
            thresholds: thresholds.clone(),
            busy: BTreeMap::new(),
            by_mount: BTreeMap::new(),
            timers: Timers::default(),
            scans: BTreeMap::new(),
            last_scan: 0,
        }
    }

    fn refused(&mut self, context: &Context<'_>, event: &Event, mount: &Mount, findings: &mut Findings) {
        let Some(volume) = &mount.volume else {
            return;
        };
        let subject = subject(volume);
        if !self.busy.contains_key(&subject) && self.busy.len() >= CAPACITY {
            return findings.discard();
        }
        let key = MountKey::new(mount.mntns, &mount.path);
        let key = self.known_key(&key).unwrap_or(key);
        let busy = self.busy.entry(subject.clone()).or_insert_with(|| BusyVolume {
            first: event.at,
            last: event.at,
            severity: Severity::Info,
            mounts: BTreeMap::new(),
            former: 0,
        });
        let counted = counted_at(context.node.busy_mounts, &key);
        if !busy.mounts.contains_key(&key) && busy.mounts.len() < MOUNTS_MAX {
            let before = counted.map_or(0, |busy| busy.attempts() - busy.recent_attempts());
            busy.mounts.insert(key.clone(), before);
            self.by_mount.insert(key.clone(), subject.clone());
        }
        busy.last = busy.last.max(event.at);
        let severity = self.severity(context, &subject);
        let Some(busy) = self.busy.get(&subject) else {
            return;
        };
        findings.report(Report {
            severity,
            confidence: Confidence::Certain,
            summary: summary(event, mount, volume),
            ruled_out: Some(release::ruled_out(event, mount)),
            advice: Some(release::advice_for(context.node, event, mount)),
            objects: IncidentObjects::of(event),
            first: busy.first,
            last: busy.last,
            evidence: vec![event.seq],
            // The event may be older than the release of the mount, which resets the model's count.
            count: Count::Total(busy.attempts(context.node.busy_mounts).max(mount.attempts.unwrap_or(1))),
            found_at_start: false,
            caused_by: Vec::new(),
            subject: subject.clone(),
        });
        self.set_timer(&subject);
    }

    /// The key of a known mount: callers may name it through symbolic links, its event has the path without them.
    fn known_key(&self, key: &MountKey) -> Option<MountKey> {
        if self.by_mount.contains_key(key) {
            return Some(key.clone());
        }
        let busy = self.busy.get(&subject(&volume::of_path(&key.path)?))?;
        busy.mounts.keys().find(|known| is_same_mount(known, key)).cloned()
    }

    /// Counts an attempt that has no event.
    fn attempt(&mut self, context: &Context<'_>, key: &MountKey, findings: &mut Findings) {
        let Some(subject) = self.known_key(key).and_then(|key| self.by_mount.get(&key).cloned()) else {
            return;
        };
        let Some(busy) = self.busy.get_mut(&subject) else {
            return;
        };
        busy.last = context.now;
        let count = Count::Total(busy.attempts(context.node.busy_mounts));
        let severity = Some(self.severity(context, &subject));
        self.set_timer(&subject);
        findings.repeat(Repeat { subject, last: context.now, evidence: None, count, severity });
    }

    /// Drops a mount that was unmounted, and closes the incident with the last one.
    fn released(&mut self, key: &MountKey, attempts: u64, evidence: Option<u64>, findings: &mut Findings) {
        let Some(key) = &self.known_key(key) else {
            return;
        };
        let Some(subject) = self.by_mount.remove(key) else {
            return;
        };
        let Some(busy) = self.busy.get_mut(&subject) else {
            return;
        };
        let before = busy.mounts.remove(key).unwrap_or(0);
        busy.former += attempts.saturating_sub(before);
        if busy.mounts.is_empty() {
            self.forget(&subject);
            findings.close(subject, CloseReason::Resolved, evidence);
        }
    }

    fn forget(&mut self, subject: &str) {
        self.timers.cancel(&subject.to_owned());
        if let Some(busy) = self.busy.remove(subject) {
            for key in busy.mounts.keys() {
                self.by_mount.remove(key);
            }
        }
    }

    /// The severity by now; it never falls while the incident is open.
    fn severity(&mut self, context: &Context<'_>, subject: &str) -> Severity {
        let Some(busy) = self.busy.get_mut(subject) else {
            return Severity::Info;
        };
        let age = context.now.saturating_sub(busy.first);
        let severity = if age >= seconds(self.thresholds.get(&CRITICAL_AFTER)) {
            Severity::Critical
        } else if age >= seconds(self.thresholds.get(&WARNING_AFTER))
            || busy.attempts(context.node.busy_mounts) >= u64::from(self.thresholds.get(&WARNING_ATTEMPTS))
        {
            Severity::Warning
        } else {
            Severity::Info
        };
        busy.severity = busy.severity.max(severity);
        busy.severity
    }

    fn set_timer(&mut self, subject: &str) {
        let Some(busy) = self.busy.get(subject) else {
            return;
        };
        let escalates_after = match busy.severity {
            Severity::Critical => None,
            Severity::Warning => Some(self.thresholds.get(&CRITICAL_AFTER)),
            _ => Some(self.thresholds.get(&WARNING_AFTER)),
        };
        let escalates = escalates_after.map(|after| busy.first.saturating_add(seconds(after)));
        let expires = busy.last.saturating_add(seconds(self.thresholds.get(&EXPIRE_AFTER)));
        self.timers.set(&subject.to_owned(), escalates.map_or(expires, |escalates| escalates.min(expires)));
    }

    /// Requests scans of all busy mounts, because the previous run left them open or records were lost. A scan shows if
    /// nothing is mounted there any more.
    fn scan_all(&mut self, findings: &mut Findings) {
        self.scans.clear();
        for key in self.by_mount.keys().take(SCANS_MAX) {
            self.last_scan += 1;
            let id = SCAN_ID | self.last_scan;
            self.scans.insert(id, key.clone());
            findings.request(Request::Holders {
                id,
                mntns: key.mntns,
                tgid: 0,
                path: key.path.clone(),
                origin: None,
                follow: false,
            });
        }
    }

    fn scan_done(&mut self, report: &HolderReport, findings: &mut Findings) {
        if let Some(key) = self.scans.remove(&report.id)
            && report.verdict == Verdict::NotAMount
            && report.complete
        {
            self.released(&key, 0, None, findings);
        }
    }
}

impl Diagnosis for VolumeBusy {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        match (event.kind, &event.mount) {
            (Kind::MountBusy, Some(mount)) => self.refused(context, event, mount, findings),
            (Kind::MountReleased | Kind::MountDetached, Some(mount)) => {
                let key = MountKey::new(mount.mntns, &mount.path);
                self.released(&key, mount.attempts.unwrap_or(0), Some(event.seq), findings);
            }
            (Kind::EventsLost, _) if event.lost.as_ref().is_some_and(|lost| lost.source == "bpf") => {
                self.scan_all(findings);
            }
            _ => {}
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::Refused(key) => self.attempt(context, key, findings),
            ModelChange::Holders(report) => self.scan_done(report, findings),
            ModelChange::Ready => self.scan_all(findings),
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        while let Some(subject) = self.timers.take_due(context.now) {
            let Some(busy) = self.busy.get(&subject) else { continue };
            if context.ready.is_none() {
                self.timers.set(&subject, context.now + STARTUP_GRACE);
                continue;
            }
            let (before, last) = (busy.severity, busy.last);
            let expires = last.saturating_add(seconds(self.thresholds.get(&EXPIRE_AFTER)));
            if expires <= context.now {
                self.forget(&subject);
                findings.close(subject, CloseReason::Expired, None);
                continue;
            }
            let severity = self.severity(context, &subject);
            self.set_timer(&subject);
            if severity > before {
                let (evidence, count, severity) = (None, Count::More(0), Some(severity));
                findings.repeat(Repeat { subject, last, evidence, count, severity });
            }
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.timers.next()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (mount, incident) = (event.mount.as_ref()?, event.incident.as_ref()?);
        let subject = subject(mount.volume.as_ref()?);
        let key = MountKey::new(mount.mntns, &mount.path);
        let busy = BusyVolume {
            first: context.clock.boot_ns(&incident.first_seen).unwrap_or(context.now),
            last: context.clock.boot_ns(&incident.last_seen).unwrap_or(context.now),
            severity: incident.severity,
            mounts: BTreeMap::from([(key.clone(), 0)]),
            former: incident.count,
        };
        self.busy.insert(subject.clone(), busy);
        self.by_mount.insert(key, subject.clone());
        self.set_timer(&subject);
        Some(subject)
    }

    fn save(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn restore(&mut self, saved: Value) -> Result<(), serde_json::Error> {
        let thresholds = self.thresholds.clone();
        *self = Self { thresholds, ..serde_json::from_value(saved)? };
        Ok(())
    }
}

/// Whether two paths lead to the same mount of a volume. The directory of the pods may be reached through symbolic
/// links, and what is below it has none.
fn is_same_mount(one: &MountKey, other: &MountKey) -> bool {
    let below_pods = |key: &MountKey| key.path.rfind(PODS).map(|at| key.path[at..].to_owned());
    one == other
        || (one.mntns == other.mntns && below_pods(one).is_some_and(|path| Some(path) == below_pods(other)))
}

/// The attempts that the model counts for a mount, under the path that its callers use.
fn counted_at<'a>(counted: &'a BusyMounts, key: &MountKey) -> Option<&'a BusyMount> {
    counted.get(key).or_else(|| {
        let mut others = counted.iter().filter(|(other, _)| is_same_mount(other, key));
        others.next().map(|(_, busy)| busy)
    })
}

fn subject(volume: &Volume) -> String {
    format!("{}/{}/{}", volume.pod_uid, volume.plugin, volume.name)
}

fn seconds(seconds: u32) -> BootNs {
    BootNs::from(seconds) * SECOND
}

fn summary(event: &Event, mount: &Mount, volume: &Volume) -> String {
    let caller = event.actor.as_deref().map(repeated_actor_phrase);
    let caller = caller.map_or_else(String::new, |caller| format!(" by {caller}"));
    let pod = match event.target.as_deref().map(owner_phrase) {
        Some(pod) if !pod.is_empty() => pod,
        _ => format!(" of pod {}", volume.pod_uid),
    };
    let holders = event.holders.as_deref().unwrap_or_default();
    let verdict = event.holders_verdict.unwrap_or(Verdict::Skipped);
    let serves = holders.first().and_then(|holder| holder.serves.as_ref());
    let serves = serves.filter(|serves| serves.mountpoint != mount.path).map_or_else(String::new, |serves| {
        format!(", which serves a volume of pod {}", pod_label(&serves.pod))
    });
    format!(
        "volume {} ({}){pod} cannot be unmounted{caller}: {}{serves}",
        volume.name,
        volume.plugin,
        holders_phrase(holders, verdict)
    )
}

#[cfg(test)]
mod tests;
