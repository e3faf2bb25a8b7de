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
use crate::event::wording::{held_by, whose};
use crate::event::{
    Advice, CloseReason, Confidence, Event, Kind, Mount, MountHolder, Pod, Risk, Severity, Volume,
};
use crate::node::volume;
use crate::observation::{BootNs, HolderReport, NsInum, Request, Verdict};
use crate::settings::Thresholds;

/// As users filter and alert on it.
pub(super) const KIND: &str = "volume-busy";

const SECOND: BootNs = 1_000_000_000;
/// Places where one volume is mounted: one for each container with a sub-path of it.
const PLACES: usize = 64;
/// Attempts that are counted before their event is told, which waits for a scan.
const PENDING: usize = 256;
/// Scans asked for at once: as many as wait in the scanner's queue.
const SCANS: usize = 32;

/// Where a volume is mounted.
type Place = (NsInum, String);

/// Attempts at one place. Whoever counts them forgets after a while, and begins anew.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
struct Attempts {
    before: u64,
    counted: u64,
}

impl Attempts {
    fn count(&mut self, counted: u64) {
        if counted < self.counted {
            self.before += self.counted;
        }
        self.counted = counted;
    }

    fn total(self) -> u64 {
        self.before + self.counted
    }
}

/// A volume that is busy.
#[derive(Debug, Serialize, Deserialize)]
struct Busy {
    first: BootNs,
    last: BootNs,
    severity: Severity,
    #[serde(with = "crate::pairs")]
    places: BTreeMap<Place, Attempts>,
    /// Attempts at places where it is unmounted by now.
    former: u64,
}

impl Busy {
    fn total(&self) -> u64 {
        self.former + self.places.values().map(|attempts| attempts.total()).sum::<u64>()
    }
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct VolumeBusy {
    #[serde(skip)]
    thresholds: Thresholds,
    busy: BTreeMap<String, Busy>,
    #[serde(with = "crate::pairs")]
    by_place: BTreeMap<Place, String>,
    #[serde(with = "crate::pairs")]
    pending: BTreeMap<Place, u64>,
    /// Unmounts that succeeded while the event of a refused one may wait for its scan.
    #[serde(with = "crate::pairs")]
    releases: BTreeMap<Place, BootNs>,
    /// When it gets worse, or has not been heard of for too long.
    alarms: Timers<String>,
    scans: BTreeMap<u64, Place>,
    scanned: u64,
}

impl VolumeBusy {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self {
            thresholds: thresholds.clone(),
            busy: BTreeMap::new(),
            by_place: BTreeMap::new(),
            pending: BTreeMap::new(),
            releases: BTreeMap::new(),
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
            places: BTreeMap::new(),
            former: 0,
        });
        let place = (mount.mntns, mount.path.clone());
        let counted = mount.attempts.unwrap_or(1).max(self.pending.remove(&place).unwrap_or(0));
        if busy.places.contains_key(&place) || busy.places.len() < PLACES {
            // More may have been counted since the event happened that is told now.
            let attempts = busy.places.entry(place.clone()).or_default();
            attempts.counted = attempts.counted.max(counted);
            self.by_place.insert(place.clone(), subject.clone());
        }
        busy.last = busy.last.max(event.at);
        let severity = self.severity(&subject, seen.now);
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
            count: Count::Total(busy.total()),
            found_at_start: false,
            caused_by: Vec::new(),
            subject: subject.clone(),
        });
        self.set_alarm(&subject);
        if self.releases.remove(&place).is_some_and(|released| released >= event.at) {
            self.released(&place, None, findings);
        }
    }

    /// One more attempt, of which no event tells.
    fn attempt(&mut self, seen: &Seen<'_>, place: Place, counted: u64, findings: &mut Findings) {
        let Some(subject) = self.by_place.get(&place).cloned() else {
            if volume::of_path(&place.1).is_some() {
                if self.pending.len() >= PENDING {
                    self.pending.clear();
                }
                self.pending.insert(place, counted);
            }
            return;
        };
        let Some(busy) = self.busy.get_mut(&subject) else {
            return;
        };
        busy.places.entry(place).or_default().count(counted);
        busy.last = seen.now;
        let count = Count::Total(busy.total());
        let severity = Some(self.severity(&subject, seen.now));
        self.set_alarm(&subject);
        findings.repeat(Repeat { subject, last: seen.now, evidence: None, count, severity });
    }

    /// It is mounted there no more.
    fn released(&mut self, place: &Place, evidence: Option<u64>, findings: &mut Findings) {
        self.pending.remove(place);
        let Some(subject) = self.by_place.remove(place) else {
            return;
        };
        let Some(busy) = self.busy.get_mut(&subject) else {
            return;
        };
        let attempts = busy.places.remove(place);
        busy.former += attempts.map_or(0, Attempts::total);
        if busy.places.is_empty() {
            self.forget(&subject);
            findings.close(subject, CloseReason::Resolved, evidence);
        }
    }

    fn forget(&mut self, subject: &str) {
        self.alarms.cancel(&subject.to_owned());
        if let Some(busy) = self.busy.remove(subject) {
            for place in busy.places.keys() {
                self.by_place.remove(place);
            }
        }
    }

    /// How bad it is by now; it never gets better while it lasts.
    fn severity(&mut self, subject: &str, now: BootNs) -> Severity {
        let Some(busy) = self.busy.get_mut(subject) else {
            return Severity::Info;
        };
        let age = now.saturating_sub(busy.first);
        let severity = if age >= seconds(self.thresholds.volume_busy_critical_seconds) {
            Severity::Critical
        } else if age >= seconds(self.thresholds.volume_busy_warning_seconds)
            || busy.total() >= u64::from(self.thresholds.volume_busy_warning_attempts)
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
        for (mntns, path) in self.by_place.keys().take(SCANS) {
            self.scanned += 1;
            let id = SCAN_ID | self.scanned;
            self.scans.insert(id, (*mntns, path.clone()));
            findings.ask(Request::Holders { id, mntns: *mntns, tgid: 0, path: path.clone() });
        }
    }

    fn scanned(&mut self, report: &HolderReport, findings: &mut Findings) {
        if let Some(place) = self.scans.remove(&report.id)
            && report.verdict == Verdict::NotAMount
        {
            self.released(&place, None, findings);
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
                let place = (mount.mntns, mount.path.clone());
                if mount.attempts.is_some() && !self.by_place.contains_key(&place) {
                    if self.releases.len() >= PENDING {
                        self.releases.clear();
                    }
                    self.releases.insert(place.clone(), event.at);
                }
                self.released(&place, Some(event.seq), findings);
            }
            (Kind::EventsLost, _) if event.lost.as_ref().is_some_and(|lost| lost.source == "bpf") => {
                self.scan_all(findings);
            }
            _ => {}
        }
    }

    fn change(&mut self, seen: &Seen<'_>, change: &Change<'_>, findings: &mut Findings) {
        match change {
            Change::Refused { mntns, path, attempts } => {
                // Most refused unmounts are of no volume.
                if self.by_place.is_empty() && !path.contains("/pods/") {
                    return;
                }
                self.attempt(seen, (*mntns, (*path).to_owned()), *attempts, findings);
            }
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
            let severity = self.severity(&subject, seen.now);
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
        let place = (mount.mntns, mount.path.clone());
        let busy = Busy {
            first: seen.clock.boot_ns(&incident.first_seen).unwrap_or(seen.now),
            last: seen.clock.boot_ns(&incident.last_seen).unwrap_or(seen.now),
            severity: incident.severity,
            places: BTreeMap::from([(place.clone(), Attempts::default())]),
            former: incident.count,
        };
        self.busy.insert(subject.clone(), busy);
        self.by_place.insert(place, subject.clone());
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
    let pod = match event.target.as_deref().map(whose) {
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
        held_by(holders, verdict)
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
