//! A pod's volume cannot be unmounted, so the pod cannot end.
//!
//! Opens with the first refused unmount below a kubelet's pod directory and closes when the unmount succeeds.
//! However often it is tried, it is one incident. Without a hook nothing here is seen: no source lists the
//! mounts of pods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::advice::advice;
use super::finding::{About, Count, Findings, Repeat, Report};
use super::timers::Timers;
use super::{CAPACITY, Change, Diagnosis, SCAN_ID, STARTING, Seen};
use crate::event::wording::{holders_phrase, owner_phrase};
use crate::event::{
    Advice, CloseReason, Confidence, Event, Kind, Mount, MountHolder, Pod, Risk, Severity, Volume,
};
use crate::node::mounts::{BusyMounts, MountKey};
use crate::observation::{BootNs, HolderReport, Request, Verdict};
use crate::settings::Thresholds;

/// As users filter and alert on it.
pub(super) const KIND: &str = "volume-busy";

const SECOND: BootNs = 1_000_000_000;
/// Mounts of one volume: one for each container with a sub-path of it.
const MOUNTS: usize = 64;
/// Scans asked for at once: as many as wait in the scanner's queue.
const SCANS: usize = 32;

/// A volume that is busy.
#[derive(Debug, Serialize, Deserialize)]
struct Busy {
    first: BootNs,
    last: BootNs,
    severity: Severity,
    /// Where it is mounted, and the attempts there that belong to an earlier incident.
    #[serde(with = "crate::pairs")]
    mounts: BTreeMap<MountKey, u64>,
    /// Attempts that the model does not count any more: it is unmounted there, or an earlier run counted them.
    former: u64,
}

impl Busy {
    fn attempts(&self, counted: &BusyMounts) -> u64 {
        let here = |(key, before): (&MountKey, &u64)| {
            counted.get(key).map_or(0, |busy| busy.attempts().saturating_sub(*before))
        };
        self.former + self.mounts.iter().map(here).sum::<u64>()
    }
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct VolumeBusy {
    #[serde(skip)]
    thresholds: Thresholds,
    busy: BTreeMap<String, Busy>,
    #[serde(with = "crate::pairs")]
    by_mount: BTreeMap<MountKey, String>,
    /// When it gets worse, or has not been heard of for too long.
    alarms: Timers<String>,
    scans: BTreeMap<u64, MountKey>,
    scanned: u64,
}

impl VolumeBusy {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self {
            thresholds: thresholds.clone(),
            busy: BTreeMap::new(),
            by_mount: BTreeMap::new(),
            alarms: Timers::default(),
            scans: BTreeMap::new(),
            scanned: 0,
        }
    }

    fn refused(&mut self, seen: &Seen<'_>, event: &Event, mount: &Mount, findings: &mut Findings) {
        let Some(volume) = &mount.volume else {
            return;
        };
        let subject = subject(volume);
        if !self.busy.contains_key(&subject) && self.busy.len() >= CAPACITY {
            return findings.no_room();
        }
        let busy = self.busy.entry(subject.clone()).or_insert_with(|| Busy {
            first: event.at,
            last: event.at,
            severity: Severity::Info,
            mounts: BTreeMap::new(),
            former: 0,
        });
        let key = MountKey::new(mount.mntns, &mount.path);
        let counted = seen.node.busy_mounts.get(&key);
        if !busy.mounts.contains_key(&key) && busy.mounts.len() < MOUNTS {
            let before = counted.map_or(0, |busy| busy.attempts() - busy.recent_attempts());
            busy.mounts.insert(key.clone(), before);
            self.by_mount.insert(key.clone(), subject.clone());
        }
        busy.last = busy.last.max(event.at);
        let severity = self.severity(seen, &subject);
        let Some(busy) = self.busy.get(&subject) else {
            return;
        };
        findings.report(Report {
            severity,
            confidence: Confidence::Certain,
            summary: summary(event, mount, volume),
            advice: Some(steps(event, mount)),
            about: About::of(event),
            first: busy.first,
            last: busy.last,
            evidence: vec![event.seq],
            // The model does not count it any more where the mount was released since.
            count: Count::Total(busy.attempts(seen.node.busy_mounts).max(mount.attempts.unwrap_or(1))),
            found_at_start: false,
            caused_by: Vec::new(),
            subject: subject.clone(),
        });
        self.set_alarm(&subject);
    }

    /// One more attempt, of which no event tells.
    fn attempt(&mut self, seen: &Seen<'_>, key: &MountKey, findings: &mut Findings) {
        let Some(subject) = self.by_mount.get(key).cloned() else {
            return;
        };
        let Some(busy) = self.busy.get_mut(&subject) else {
            return;
        };
        busy.last = seen.now;
        let count = Count::Total(busy.attempts(seen.node.busy_mounts));
        let severity = Some(self.severity(seen, &subject));
        self.set_alarm(&subject);
        findings.repeat(Repeat { subject, last: seen.now, evidence: None, count, severity });
    }

    /// It is mounted there no more.
    fn released(&mut self, key: &MountKey, attempts: u64, evidence: Option<u64>, findings: &mut Findings) {
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
        self.alarms.cancel(&subject.to_owned());
        if let Some(busy) = self.busy.remove(subject) {
            for key in busy.mounts.keys() {
                self.by_mount.remove(key);
            }
        }
    }

    /// How bad it is by now; it never gets better while it lasts.
    fn severity(&mut self, seen: &Seen<'_>, subject: &str) -> Severity {
        let Some(busy) = self.busy.get_mut(subject) else {
            return Severity::Info;
        };
        let age = seen.now.saturating_sub(busy.first);
        let severity = if age >= seconds(self.thresholds.volume_busy_critical_seconds) {
            Severity::Critical
        } else if age >= seconds(self.thresholds.volume_busy_warning_seconds)
            || busy.attempts(seen.node.busy_mounts) >= u64::from(self.thresholds.volume_busy_warning_attempts)
        {
            Severity::Warning
        } else {
            Severity::Info
        };
        busy.severity = busy.severity.max(severity);
        busy.severity
    }

    fn set_alarm(&mut self, subject: &str) {
        let Some(busy) = self.busy.get(subject) else {
            return;
        };
        let worse = match busy.severity {
            Severity::Critical => None,
            Severity::Warning => Some(self.thresholds.volume_busy_critical_seconds),
            _ => Some(self.thresholds.volume_busy_warning_seconds),
        };
        let worse = worse.map(|after| busy.first.saturating_add(seconds(after)));
        let silent = busy.last.saturating_add(seconds(self.thresholds.volume_busy_expire_seconds));
        self.alarms.set(&subject.to_owned(), worse.map_or(silent, |worse| worse.min(silent)));
    }

    /// Asks who holds what was left open or may have been released unseen: the answer may be that nothing is
    /// mounted there.
    fn scan_all(&mut self, findings: &mut Findings) {
        self.scans.clear();
        for key in self.by_mount.keys().take(SCANS) {
            self.scanned += 1;
            let id = SCAN_ID | self.scanned;
            self.scans.insert(id, key.clone());
            findings.ask(Request::Holders { id, mntns: key.mntns, tgid: 0, path: key.path.clone() });
        }
    }

    fn scanned(&mut self, report: &HolderReport, findings: &mut Findings) {
        if let Some(key) = self.scans.remove(&report.id)
            && report.verdict == Verdict::NotAMount
        {
            self.released(&key, 0, None, findings);
        }
    }
}

impl Diagnosis for VolumeBusy {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, seen: &Seen<'_>, event: &Event, findings: &mut Findings) {
        match (event.kind, &event.mount) {
            (Kind::MountBusy, Some(mount)) => self.refused(seen, event, mount, findings),
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

    fn change(&mut self, seen: &Seen<'_>, change: &Change<'_>, findings: &mut Findings) {
        match change {
            Change::Refused(key) => self.attempt(seen, key, findings),
            Change::Holders(report) => self.scanned(report, findings),
            Change::Ready => self.scan_all(findings),
            _ => {}
        }
    }

    fn tick(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        while let Some(subject) = self.alarms.take_due(seen.now) {
            let Some(busy) = self.busy.get(&subject) else { continue };
            if seen.ready.is_none() {
                self.alarms.set(&subject, seen.now + STARTING);
                continue;
            }
            let (before, last) = (busy.severity, busy.last);
            let silent = last.saturating_add(seconds(self.thresholds.volume_busy_expire_seconds));
            if silent <= seen.now {
                self.forget(&subject);
                findings.close(subject, CloseReason::Expired, None);
                continue;
            }
            let severity = self.severity(seen, &subject);
            self.set_alarm(&subject);
            if severity > before {
                let (evidence, count, severity) = (None, Count::More(0), Some(severity));
                findings.repeat(Repeat { subject, last, evidence, count, severity });
            }
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.alarms.next()
    }

    fn resume(&mut self, seen: &Seen<'_>, event: &Event) -> Option<String> {
        let (mount, incident) = (event.mount.as_ref()?, event.incident.as_ref()?);
        let subject = subject(mount.volume.as_ref()?);
        let key = MountKey::new(mount.mntns, &mount.path);
        let busy = Busy {
            first: seen.clock.boot_ns(&incident.first_seen).unwrap_or(seen.now),
            last: seen.clock.boot_ns(&incident.last_seen).unwrap_or(seen.now),
            severity: incident.severity,
            mounts: BTreeMap::from([(key.clone(), 0)]),
            former: incident.count,
        };
        self.busy.insert(subject.clone(), busy);
        self.by_mount.insert(key, subject.clone());
        self.set_alarm(&subject);
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

fn subject(volume: &Volume) -> String {
    format!("{}/{}/{}", volume.pod_uid, volume.plugin, volume.name)
}

fn seconds(seconds: u32) -> BootNs {
    BootNs::from(seconds) * SECOND
}

fn summary(event: &Event, mount: &Mount, volume: &Volume) -> String {
    let caller = event.actor.as_ref().map_or_else(String::new, |actor| match &actor.unit {
        Some(unit) => format!(" by {} of {unit}", actor.comm),
        None => format!(" by {}", actor.comm),
    });
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

fn pod_label(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        _ => pod.uid.clone(),
    }
}

fn steps(event: &Event, mount: &Mount) -> Vec<Advice> {
    let mut steps = vec![advice("see who holds it now", Risk::Read, &["fuser", "-vm", &mount.path])];
    for child in mount.child_mounts.iter().take(1) {
        steps.push(advice("unmount what is mounted below it", Risk::Destructive, &["umount", child]));
    }
    if let Some(holder) = event.holders.as_deref().unwrap_or_default().first() {
        steps.push(let_go(holder));
    }
    steps.push(advice(
        "detach it though it is in use; what holds it goes on using it unseen",
        Risk::Destructive,
        &["umount", "--lazy", &mount.path],
    ));
    steps
}

/// Makes a holder let go, by the gentlest way there is.
fn let_go(holder: &MountHolder) -> Advice {
    if let Some(Pod { namespace: Some(namespace), name: Some(name), .. }) = &holder.pod {
        let command = ["kubectl", "-n", namespace, "delete", "pod", name];
        return advice("delete the pod that holds it", Risk::Restart, &command);
    }
    if let Some(container) = &holder.container {
        let command = ["docker", "restart", &container.id];
        return advice("restart the container that holds it", Risk::Restart, &command);
    }
    if let Some(serves) = &holder.serves {
        let text = format!(
            "end the file server that holds it; pod {} loses the volume at {}",
            pod_label(&serves.pod),
            serves.mountpoint
        );
        return advice(&text, Risk::Destructive, &["kill", &holder.pid.to_string()]);
    }
    match holder.unit.as_deref().filter(|unit| unit.ends_with(".service")) {
        Some(unit) => {
            advice("restart the service that holds it", Risk::Restart, &["systemctl", "restart", unit])
        }
        None => {
            advice("end the process that holds it", Risk::Destructive, &["kill", &holder.pid.to_string()])
        }
    }
}

#[cfg(test)]
mod tests;
