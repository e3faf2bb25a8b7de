//! Volumes that are mounted though no container of their pod runs, by state alone: no refused unmount need have been seen.
//!
//! A kubelet mounts the volumes of a pod before its first container, and unmounts them within a second after the last. So
//! what counts is a pod whose containers ran and went, and no mount before a container.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::wording::{copies_phrase, holders_phrase, owner_phrase, users};
use kevtmon_event::{
    Advice, CloseReason, Confidence, Event, Mount, MountHolder, MountServer, Severity, Shared, Target, Volume,
};
use kevtmon_observation::{BootNs, MountFacts, MountIdentity, PodCgroup, Rank, Request, Share, Verdict};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::wording::told_at;
use super::{BusyVolume, LEFT_AFTER, VolumeBusy, release, subject};
use crate::diagnose::finding::{Count, Findings, IncidentObjects, Report};
use crate::diagnose::{CAPACITY, Context, SECOND, seconds};
use crate::node::pod_remains::PodOnNode;

/// Marks the ids of requests for who uses such a volume.
pub const LEFT_VOLUME: u64 = 1 << 50;
/// Who uses it is looked for again after this time.
const RESCAN: BootNs = 300 * SECOND;
/// After an unmount was seen the list of mounts may be older than that for a while.
const SETTLED: BootNs = 30 * SECOND;
const UNKNOWN: &str = "no refused unmount was seen; the reason is unknown";

/// What is followed of volumes by their state.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Mounted {
    /// When a volume will have been mounted for too long, or is to be looked at again.
    pub(super) next: Option<BootNs>,
    ended: BTreeMap<String, BootNs>,
    last_scan: u64,
}

impl Mounted {
    pub(super) fn is_due(&self, now: BootNs) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    pub(super) fn note_end(&mut self, subject: &str, at: BootNs) {
        self.ended.insert(subject.to_owned(), at);
    }

    fn expire(&mut self, now: BootNs) {
        self.ended.retain(|_, at| at.saturating_add(SETTLED) > now);
        self.next = None;
    }

    fn wake(&mut self, at: BootNs) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

/// What the state shows of an open one.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StillMounted {
    identity: Option<MountIdentity>,
    /// The newest request for who uses it, and when that was made.
    scan: u64,
    asked: BootNs,
}

impl VolumeBusy {
    /// Looks at the mounted volumes of all pods of which no container runs.
    pub(super) fn review_mounted(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let pods = context.node.pods_on_node;
        if context.ready.is_none() || !pods.is_read {
            // It is reviewed once that is told.
            self.mounted.next = None;
            return;
        }
        self.mounted.expire(context.now);
        let mut there = BTreeSet::new();
        let has_some = |pod: &PodOnNode| pod.over.is_some() && pod.volumes().next().is_some();
        for (_, pod) in pods.iter().filter(|(_, pod)| has_some(pod)) {
            let since = pod.over_since(context.node);
            for (volume, facts) in pod.volumes() {
                let subject = subject(&volume);
                // One volume may be mounted several times, for its sub-paths.
                if there.insert(subject.clone())
                    && let Some(since) = since
                {
                    self.mounted(context, subject, (&volume, facts), (pod, since), findings);
                }
            }
        }
        let is_over =
            |(subject, busy): &(&String, &BusyVolume)| busy.left.is_some() && !there.contains(*subject);
        let over: Vec<String> =
            self.busy.iter().filter(is_over).map(|(subject, _)| subject.clone()).collect();
        for subject in over {
            match self.busy.get_mut(&subject) {
                // The mount whose unmount was refused is followed by itself.
                Some(busy) if !busy.mounts.is_empty() => busy.left = None,
                _ => {
                    self.forget(&subject);
                    findings.close(subject, CloseReason::Resolved, None);
                }
            }
        }
    }

    /// A volume is mounted, and no container of its pod has run since then.
    fn mounted(
        &mut self,
        context: &Context<'_>,
        subject: String,
        (volume, facts): (&Volume, &MountFacts),
        (pod, since): (&PodOnNode, BootNs),
        findings: &mut Findings,
    ) {
        let settled = self.mounted.ended.get(&subject).map_or(0, |ended| ended.saturating_add(SETTLED));
        let due = since.saturating_add(seconds(self.thresholds.get(&LEFT_AFTER))).max(settled);
        if due > context.now {
            return self.mounted.wake(due);
        }
        let identity = facts.identity();
        if let Some(busy) = self.busy.get_mut(&subject) {
            let left = busy.left.get_or_insert(StillMounted { identity: None, scan: 0, asked: 0 });
            left.identity = identity;
            let again = left.asked.saturating_add(RESCAN);
            if busy.mounts.is_empty() {
                if again <= context.now {
                    self.scan(context, &subject, facts, findings);
                    return self.mounted.wake(context.now.saturating_add(RESCAN));
                }
                self.mounted.wake(again);
            }
            return;
        }
        if self.busy.len() >= CAPACITY {
            return findings.discard();
        }
        let target = context.node.target_of_pod(&volume.pod_uid);
        let summary = self.sentence(volume, &target, UNKNOWN);
        let mount = mount_object(facts, volume.clone());
        let busy = BusyVolume {
            summary: summary.clone(),
            left: Some(StillMounted { identity, scan: 0, asked: 0 }),
            ..BusyVolume::new(since, context.now)
        };
        self.busy.insert(subject.clone(), busy);
        let severity = self.severity(context, &subject);
        findings.report(Report {
            ruled_out: Some(ruled_out(pod)),
            advice: Some(look(context, &mount, &[])),
            objects: IncidentObjects {
                target: Some(Shared::new(target)),
                mount: Some(Box::new(mount)),
                ..IncidentObjects::default()
            },
            first: since,
            count: Count::Total(0),
            found_at_start: !pod.ran,
            ..Report::new(subject.clone(), severity, Confidence::Likely, summary, context.now)
        });
        self.set_timer(&subject);
        self.scan(context, &subject, facts, findings);
        self.mounted.wake(context.now.saturating_add(RESCAN));
    }

    /// Has those looked for who use it.
    fn scan(&mut self, context: &Context<'_>, subject: &str, facts: &MountFacts, findings: &mut Findings) {
        let Some(left) = self.busy.get_mut(subject).and_then(|busy| busy.left.as_mut()) else { return };
        self.mounted.last_scan += 1;
        let id = LEFT_VOLUME | self.mounted.last_scan;
        (left.scan, left.asked) = (id, context.now);
        findings.request(Request::Holders {
            id,
            mntns: facts.mntns,
            tgid: 0,
            path: facts.mountpoint.clone(),
            origin: None,
            follow: false,
            mount_only: false,
            share: Share { rank: Rank::Volume, account: String::new() },
        });
    }

    /// Who uses a volume was looked for.
    pub(super) fn left_scanned(
        &mut self,
        context: &Context<'_>,
        id: u64,
        (mount, servers, unserved): (Option<&MountFacts>, &[MountServer], bool),
        found: &IncidentObjects,
        findings: &mut Findings,
    ) {
        let is_it = |busy: &BusyVolume| busy.left.as_ref().is_some_and(|left| left.scan == id);
        let Some((subject, busy)) = self.busy.iter().find(|(_, busy)| is_it(busy)) else { return };
        let (Some(left), Some(mount)) = (&busy.left, mount) else { return };
        let is_same =
            left.identity.as_ref().zip(mount.identity()).is_some_and(|(one, other)| one.is_same(&other));
        let volume = kevtmon_event::volume::of_path(&mount.mountpoint);
        // What refused unmounts tell is better known.
        let Some(volume) = volume.filter(|_| is_same && busy.mounts.is_empty()) else { return };
        let (subject, first) = (subject.clone(), busy.first);
        let holders = found.holders.as_deref().unwrap_or_default();
        let verdict = found.holders_verdict.unwrap_or(Verdict::Skipped);
        // Nobody has said that it is busy.
        let verdict = match verdict {
            Verdict::Kernel | Verdict::Transient => Verdict::None,
            verdict => verdict,
        };
        let target = context.node.target_of_pod(&volume.pod_uid);
        let mount = Mount { servers: servers.to_vec(), unserved, ..mount_object(mount, volume.clone()) };
        let mut reason = format!("{}{}", reason(holders, verdict), mount.server_phrase());
        if !holders.is_empty() || verdict == Verdict::ChildMount || !servers.is_empty() {
            reason = told_at(context.clock, context.now, &reason);
        }
        let summary = self.sentence(&volume, &target, &reason);
        let steps = look(context, &mount, holders);
        if let Some(busy) = self.busy.get_mut(&subject) {
            busy.summary.clone_from(&summary);
            busy.last = context.now;
        }
        let severity = self.severity(context, &subject);
        findings.report(Report {
            advice: Some(steps),
            objects: IncidentObjects {
                target: Some(Shared::new(target)),
                mount: Some(Box::new(mount)),
                holders_verdict: Some(verdict),
                ..found.clone()
            },
            first,
            count: Count::Total(0),
            ..Report::new(subject, severity, Confidence::Likely, summary, context.now)
        });
    }

    /// Whether it is mounted still, by its state; then it was heard of now.
    pub(super) fn renew_mounted(&mut self, context: &Context<'_>, subject: &str) -> bool {
        let is_seen = context.node.pods_on_node.is_read;
        let Some(busy) = self.busy.get_mut(subject).filter(|busy| is_seen && busy.left.is_some()) else {
            return false;
        };
        busy.last = context.now;
        self.set_timer(subject);
        true
    }

    /// Goes on with one that an earlier run found by its state; returns its subject.
    pub(super) fn resume_mounted(&mut self, context: &Context<'_>, event: &Event, subject: String) -> String {
        let incident = event.incident.as_deref();
        let time =
            |text: Option<&String>| text.and_then(|text| context.clock.boot_ns(text)).unwrap_or(context.now);
        let first = time(incident.map(|incident| &incident.first_seen));
        let busy = BusyVolume {
            severity: incident.map_or(Severity::Info, |incident| incident.severity),
            summary: incident.map(|incident| incident.summary.clone()).unwrap_or_default(),
            left: Some(StillMounted { identity: None, scan: 0, asked: 0 }),
            ..BusyVolume::new(first, time(incident.map(|incident| &incident.last_seen)))
        };
        self.busy.insert(subject.clone(), busy);
        self.set_timer(&subject);
        subject
    }

    fn sentence(&self, volume: &Volume, target: &Target, reason: &str) -> String {
        let of_pod = match owner_phrase(target) {
            pod if pod.is_empty() => format!(" of pod {}", name(&volume.pod_uid)),
            pod => pod,
        };
        let (volume, plugin) = (name(&volume.name), name(&volume.plugin));
        let after = self.thresholds.get(&LEFT_AFTER);
        format!(
            "volume {volume} ({plugin}){of_pod} is still mounted, though no container of the pod has run for {after} s: \
             {reason}"
        )
    }
}

/// Nobody was refused anything: nothing is ended or detached for it. A server that is stopped answers nobody, whoever stopped it.
fn look(context: &Context<'_>, mount: &Mount, holders: &[MountHolder]) -> Vec<Advice> {
    let look = release::look(mount, holders, context.node.kubelets.way(mount.mntns));
    [look].into_iter().chain(release::continue_stopped(mount, context.now)).collect()
}

fn reason(holders: &[MountHolder], verdict: Verdict) -> String {
    let first = users(holders).next();
    if first.is_some() || verdict == Verdict::ChildMount {
        let serves = first.and_then(|holder| holder.serves.as_ref());
        let serves = serves.map_or_else(String::new, super::wording::serves_phrase);
        return format!("{}{serves}", holders_phrase(holders, verdict));
    }
    let copies = copies_phrase(holders)
        .map_or_else(String::new, |copies| format!("; a copy is also mounted in {copies}"));
    match verdict {
        Verdict::None => {
            format!("no user found; no refused unmount was seen{copies}")
        }
        _ => format!("{UNKNOWN}{copies}"),
    }
}

/// What the end of the pod does not wait for.
fn ruled_out(pod: &PodOnNode) -> Vec<String> {
    let is_empty = matches!(pod.seen.cgroup, PodCgroup::Empty | PodCgroup::Absent);
    is_empty.then(|| "no process is in the control group of the pod".to_owned()).into_iter().collect()
}

/// A volume that is mounted; nobody was seen to call anything about it.
pub(in crate::diagnose) fn mount_object(facts: &MountFacts, volume: Volume) -> Mount {
    Mount {
        path: facts.mountpoint.clone(),
        fstype: Some(facts.fstype.clone()),
        source: Some(facts.source.clone()),
        device: Some(facts.device.clone()),
        mntns: facts.mntns,
        identity: facts.identity(),
        volume: Some(volume),
        ..Mount::default()
    }
}
