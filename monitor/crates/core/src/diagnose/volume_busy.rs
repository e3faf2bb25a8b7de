//! A pod's volume cannot be unmounted, so the pod stays in Terminating.
//!
//! Opens with the first refused unmount or removal below a kubelet's pod directory and closes when that very mount is gone. All
//! attempts are one incident. So is what the state shows, of whatever reason: a volume that stays mounted once no container
//! of its pod runs.

use std::collections::BTreeMap;

use kevtmon_event::wording::copies_phrase;
use kevtmon_event::{CloseReason, Confidence, Event, Kind, Mount, Severity, Volume};
use kevtmon_observation::{BootNs, Verdict};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use known::Known;
pub(super) use known::confidence;
use left::Mounted;
use parts::{BusyPart, BusyVolume, End};
use seen::Said;
use serde::{Deserialize, Serialize};
use wording::sentence;

use super::finding::{Count, Findings, IncidentObjects, Repeat, Report};
use super::timers::Timers;
use super::{Alert, CAPACITY, Context, Diagnosis, IncidentKind, ModelChange, STARTUP_GRACE, Watch, start};
use crate::node::mounts::{BusyMount, MountKey};

mod known;
mod left;
mod parts;
pub(super) mod release;
mod seen;
mod severity;
mod wording;

pub use left::LEFT_VOLUME;
pub(super) use left::mount_object;

pub(super) const KIND: &str = "volume-busy";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A pod's volume cannot be unmounted",
    symptom: "`Terminating` without end",
    names: "the process, container or kernel object that holds the volume",
    opens: "The unmount of a pod's volume was refused, or a volume is mounted without a running container.",
    alert: Alert::ByHand,
    meaning: "The unmount is refused because a process, another mount or the kernel uses the volume, so the pod stays in \
             Terminating. Another copy of the mount in a container refuses nothing by itself.",
    remedy: "End or restart the holder: the incident names it, `kevtmon holders PATH` shows the present ones. A lazy \
             unmount only hides it.",
    severities: &[Severity::Info, Severity::Warning, Severity::Critical],
    counted: "refused attempts",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<VolumeBusy>,
};

/// Mounts of one volume: one for each container with a sub-path of it.
const MOUNTS_MAX: usize = 64;

thresholds! {
    /// A busy volume is a warning after this many refused attempts to unmount it.
    WARNING_ATTEMPTS = "volume_busy_warning_attempts", default 3, Unit::Count;
    /// A busy volume is a warning after this time.
    WARNING_AFTER = "volume_busy_warning_seconds", default 30, Unit::Seconds;
    /// A busy volume is critical after this time.
    CRITICAL_AFTER = "volume_busy_critical_seconds", default 15 * 60, Unit::Seconds;
    /// Without a further attempt to unmount it, the incident of a busy volume expires after this time.
    EXPIRE_AFTER = "volume_busy_expire_seconds", default 30 * 60, Unit::Seconds;
    /// A volume that is mounted though no container of its pod has run for this time is reported, whether a refused attempt to
    /// unmount it was seen or not.
    LEFT_AFTER = "volume_busy_mounted_seconds", default 180, Unit::Seconds;
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct VolumeBusy {
    #[serde(skip)]
    thresholds: Thresholds,
    busy: BTreeMap<String, BusyVolume>,
    #[serde(with = "kevtmon_types::pairs")]
    by_mount: BTreeMap<MountKey, String>,
    /// When an incident escalates or expires.
    timers: Timers<String>,
    /// Volumes that are mounted by their state.
    mounted: Mounted,
}

impl VolumeBusy {
    fn refused(&mut self, context: &Context<'_>, event: &Event, mount: &Mount, findings: &mut Findings) {
        let Some(volume) = &mount.volume else { return self.moved(context, event, mount, findings) };
        let subject = subject(volume);
        if !self.busy.contains_key(&subject) && self.busy.len() >= CAPACITY {
            return findings.discard();
        }
        let place = MountKey::new(mount.mntns, &mount.path);
        let identity = mount.identity.as_ref();
        let busy = self.busy.entry(subject.clone()).or_insert_with(|| BusyVolume::new(event.at, event.at));
        let counted = context.node.busy_mounts.find(&place, identity).map(|(_, counted)| counted);
        if let Some(part) = busy.mounts.iter_mut().find(|part| part.is(&place, identity)) {
            part.identity = identity.cloned().or(part.identity.take());
        } else if busy.mounts.len() < MOUNTS_MAX {
            busy.mounts.push(BusyPart::new(place.clone(), identity.cloned(), counted));
        } else {
            busy.is_likely_gone = true;
        }
        let part = busy.mounts.iter_mut().find(|part| part.is(&place, identity));
        let known = part.and_then(|part| Known::update(&mut part.known, event));
        let sure = confidence(event);
        // Of the caller, too, whose path tells which volume it is.
        let confidence = event.actor.as_ref().map_or(sure, |actor| actor.confidence.min(sure));
        let sentence = sentence(context.clock, (event, mount, volume), known.as_ref());
        let summary = sentence.text(context.clock);
        busy.summary.clone_from(&summary);
        busy.said = Some(Said { sentence, place: place.clone(), confidence });
        // Somebody was named before, and nobody is found any more: of that it is no longer certain.
        let is_less = known.is_none() && confidence == Confidence::Likely;
        let renewed = is_less.then(|| summary.clone());
        // Attempts between two events are known by the path of the caller, if no scan found the mount.
        for place in counted.map(|counted| counted.key.clone()).into_iter().chain([place]) {
            self.by_mount.insert(place, subject.clone());
        }
        if event.completes.is_none() {
            busy.last = busy.last.max(event.at);
        }
        let severity = self.severity(context, &subject);
        let Some(busy) = self.busy.get(&subject) else { return };
        // What is known stays, with what follows from it.
        let is_new = known.is_none();
        findings.report(Report {
            ruled_out: is_new.then(|| release::ruled_out(event, mount)),
            advice: is_new.then(|| release::advice_for(context, event, mount)),
            objects: known.map_or_else(|| IncidentObjects::of(event), |known| known.objects(event)),
            first: busy.first,
            evidence: vec![event.seq],
            // The event may be older than the release of the mount, which resets the model's count.
            count: Count::Total(busy.attempts(context.node.busy_mounts).max(mount.attempts.unwrap_or(1))),
            ..Report::new(subject.clone(), severity, confidence, summary, busy.last)
        });
        if let Some(summary) = renewed {
            findings.renew(subject.clone(), summary, confidence);
        }
        self.set_timer(&subject);
    }

    /// A mount of a volume that was moved away and is busy where it is now: the incident ends with that very mount.
    fn moved(&mut self, context: &Context<'_>, event: &Event, mount: &Mount, findings: &mut Findings) {
        let place = MountKey::new(mount.mntns, &mount.path);
        let Some(identity) = &mount.identity else { return };
        let Some((_, counted)) = context.node.busy_mounts.find(&place, Some(identity)) else { return };
        let Some(subject) = self.by_mount.get(&counted.key).cloned() else { return };
        let Some(busy) = self.busy.get_mut(&subject) else { return };
        let is_it =
            |part: &&mut BusyPart| part.identity.as_ref().is_some_and(|known| known.is_same(identity));
        let Some(part) = busy.mounts.iter_mut().find(is_it) else { return };
        let is_moved = part.place != place;
        let from = std::mem::replace(&mut part.place, place.clone());
        if is_moved {
            part.identity = Some(identity.clone());
            // What was known is of where it was, and so is the advice.
            part.known = None;
            busy.said = None;
        }
        let is_new = Known::update(&mut part.known, event).is_none();
        if is_moved || is_new {
            findings.advise(subject.clone(), None, release::advice_for(context, event, mount));
        }
        if is_moved {
            let likely = if mount.confidence.is_some() { "likely " } else { "" };
            let summary = format!("{}; it was {likely}moved to {} since", busy.summary, name(&mount.path));
            // By where it was seen first the model may still know it.
            let is_needed = from == counted.key || busy.mounts.iter().any(|part| part.place == from);
            if !is_needed && self.by_mount.get(&from) == Some(&subject) {
                self.by_mount.remove(&from);
            }
            self.by_mount.insert(place, subject.clone());
            findings.restate(subject.clone(), summary);
        }
        self.count(context, subject, Some(event), findings);
    }

    fn subject_of(&self, mount: &BusyMount) -> Option<String> {
        let place = MountKey::new(mount.key.mntns, mount.path());
        self.by_mount.get(&place).or_else(|| self.by_mount.get(&mount.key)).cloned()
    }

    fn attempt(&mut self, context: &Context<'_>, mount: &BusyMount, findings: &mut Findings) {
        let Some(subject) = self.subject_of(mount) else { return };
        self.count(context, subject, None, findings);
    }

    fn count(
        &mut self,
        context: &Context<'_>,
        subject: String,
        event: Option<&Event>,
        findings: &mut Findings,
    ) {
        let Some(busy) = self.busy.get_mut(&subject) else { return };
        let last = event.map_or(context.now, |event| event.at);
        busy.last = busy.last.max(last);
        let count = Count::Total(busy.attempts(context.node.busy_mounts));
        let severity = Some(self.severity(context, &subject));
        self.set_timer(&subject);
        let evidence = event.map(|event| event.seq);
        findings.repeat(Repeat { subject, last, evidence, count, severity });
    }

    /// Drops a mount that has ended, and closes the incident with the last one.
    fn ended(&mut self, end: &End<'_>, event: Option<&Event>, findings: &mut Findings) {
        // Where it was moved between two events, it is known by its identity alone.
        let is_it = |part: &BusyPart| part.identity.is_some() && part.is(end.place, end.identity);
        let by_identity = || self.busy.iter().find(|(_, busy)| busy.mounts.iter().any(is_it));
        let subject = self.by_mount.get(end.place).or_else(|| by_identity().map(|(subject, _)| subject));
        let Some(subject) = subject.cloned() else { return };
        let Some(busy) = self.busy.get_mut(&subject) else { return };
        let Some(index) = busy.mounts.iter().position(|part| part.is(end.place, end.identity)) else {
            return;
        };
        let part = busy.mounts.remove(index);
        busy.former += end.attempts.saturating_sub(part.before);
        busy.former_unmounts += end.unmounts.saturating_sub(part.before_unmounts);
        busy.is_likely_gone |= end.is_likely;
        if !busy.mounts.is_empty() {
            return;
        }
        // That another one has gone resolves nothing; that a detached one is still used is said as it is.
        let reason = match end.reason {
            CloseReason::Resolved | CloseReason::SubjectGone if busy.is_likely_gone => {
                CloseReason::LikelyGone
            }
            reason => reason,
        };
        let summary = std::mem::take(&mut busy.summary);
        self.forget(&subject);
        self.mounted.note_end(&subject, event.map_or(0, |event| event.at));
        let Some(event) = event else { return findings.close(subject, reason, None) };
        let copies = copies_phrase(event.holders.as_deref().unwrap_or_default());
        let summary = match (reason, copies) {
            (CloseReason::Detached, _) => event.message.clone(),
            (_, Some(copies)) => format!("{summary}; its file system stayed mounted in {copies}"),
            _ if event.holders_verdict == Some(Verdict::Transient) => {
                format!("{summary}; it was unmounted after its holder released it")
            }
            (_, None) => return findings.close(subject, reason, Some(event.seq)),
        };
        findings.close_with(subject, reason, Some(event.seq), summary, IncidentObjects::of(event));
    }

    /// Something was unmounted at the place of a busy mount, and whether it was that mount is not known.
    fn undetermined(&mut self, mount: &BusyMount, reason: &str, findings: &mut Findings) {
        let Some(subject) = self.subject_of(mount) else { return };
        if let Some(busy) = self.busy.get(&subject) {
            let unknown = "a later unmount there succeeded; it is unknown whether this mount is gone";
            let summary = format!("{}; {unknown}: {reason}", busy.summary);
            findings.restate(subject, summary);
        }
    }

    /// Brings the advice up to date with the runtimes: the tool of one that does not answer restarts nothing.
    fn advise(&self, context: &Context<'_>, findings: &mut Findings) {
        for (subject, busy) in &self.busy {
            let known =
                busy.mounts.iter().filter_map(|part| part.known.as_ref()).max_by_key(|known| known.at);
            if let Some(Known { at, mount, holders, verdict }) = known {
                let steps = release::steps(context, mount, holders, Some(*verdict), *at);
                findings.advise(subject.clone(), None, steps);
            }
        }
    }

    fn forget(&mut self, subject: &str) {
        self.timers.cancel(&subject.to_owned());
        self.busy.remove(subject);
        self.by_mount.retain(|_, of| of != subject);
    }
}

impl Diagnosis for VolumeBusy {
    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        match (event.kind, &event.mount) {
            // No mount is the reason of that one.
            (Kind::MountBusy, Some(mount)) if !mount.is_umount() && mount.identity.is_none() => {}
            (Kind::MountBusy, Some(mount)) => self.refused(context, event, mount, findings),
            (Kind::MountReleased | Kind::MountDetached, Some(mount)) => {
                // Without a refused attempt before, it is not known which mount was unmounted.
                let Some(attempts) = mount.attempts else { return };
                let reason = match event.kind {
                    Kind::MountDetached => CloseReason::Detached,
                    _ => CloseReason::Resolved,
                };
                let place = MountKey::new(mount.mntns, &mount.path);
                let (identity, is_likely) = (mount.identity.as_ref(), mount.confidence.is_some());
                let unmounts = parts::unmounts(mount, attempts);
                let end = End { place: &place, identity, attempts, unmounts, is_likely, reason };
                self.ended(&end, Some(event), findings);
            }
            _ => {}
        }
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::PodRemains
            | ModelChange::Container(_)
            | ModelChange::Runtime
            | ModelChange::Ready => {
                self.review_mounted(context, findings);
            }
            ModelChange::LeftVolume { id, mount, found, servers, unserved } => {
                let scanned = (*mount, *servers, *unserved);
                self.left_scanned(context, *id, scanned, found, findings);
            }
            ModelChange::Refused(mount) => self.attempt(context, mount, findings),
            ModelChange::HoldersChecked { mount, seen } => self.checked(context, mount, *seen, findings),
            ModelChange::RuntimeAvailability | ModelChange::Kubelets => {
                self.advise(context, findings);
                self.review_mounted(context, findings);
            }
            ModelChange::UmountUndetermined { mount, reason } => self.undetermined(mount, reason, findings),
            ModelChange::MountGone(mount) => {
                let place = MountKey::new(mount.key.mntns, mount.path());
                let (identity, attempts) = (mount.identity.as_ref(), mount.total);
                let unmounts = mount.calls.unmounts();
                let (is_likely, reason) = (mount.is_likely, CloseReason::SubjectGone);
                let end = End { place: &place, identity, attempts, unmounts, is_likely, reason };
                self.ended(&end, None, findings);
            }
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.mounted.is_due(context.now) {
            self.review_mounted(context, findings);
        }
        // Of each its timer may be due again at once.
        let due: Vec<String> = std::iter::from_fn(|| self.timers.take_due(context.now)).collect();
        for subject in due {
            let Some(busy) = self.busy.get(&subject) else { continue };
            if context.ready.is_none() {
                self.timers.set(&subject, context.now + STARTUP_GRACE);
                continue;
            }
            let (before, last) = (busy.severity, busy.last);
            let expires = last.saturating_add(self.expires_after());
            if expires <= context.now && !self.renew_mounted(context, &subject) {
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
        self.timers.next().into_iter().chain(self.mounted.next).min()
    }

    fn resume(&mut self, context: &Context<'_>, event: &Event) -> Option<String> {
        let (mount, incident) = (event.mount.as_ref()?, event.incident.as_ref()?);
        let subject = subject(mount.volume.as_ref()?);
        if mount.syscall.is_empty() {
            return Some(self.resume_mounted(context, event, subject));
        }
        let key = MountKey::new(mount.mntns, &mount.path);
        let time = |text: &str| context.clock.boot_ns(text).unwrap_or(context.now);
        let busy = BusyVolume {
            severity: incident.severity,
            // The model counts on from the attempts of the incident.
            mounts: vec![BusyPart {
                known: Known::of(event, time(&event.time)),
                ..BusyPart::new(key.clone(), mount.identity.clone(), None)
            }],
            summary: incident.summary.clone(),
            ..BusyVolume::new(time(&incident.first_seen), time(&incident.last_seen))
        };
        self.busy.insert(subject.clone(), busy);
        self.by_mount.insert(key, subject.clone());
        self.set_timer(&subject);
        Some(subject)
    }

    with_thresholds!();
}

fn subject(volume: &Volume) -> String {
    format!("{}/{}/{}", volume.pod_uid, volume.plugin, volume.name)
}

#[cfg(test)]
mod tests;
