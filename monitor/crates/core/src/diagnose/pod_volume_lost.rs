//! A pod runs, and a volume of it was unmounted: not by its kubelet, which waits until the containers have ended. Or something else is
//! mounted over the volume, which the kernel's table of mounts tells, and those of the containers.
//!
//! The event of an unmount raises the suspicion; whether the volume is gone, the kernel's table of mounts tells. What was unmounted
//! may have covered the volume, and a kubelet mounts some volumes again by itself.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::volume;
use kevtmon_event::wording::{actor_subject, target_label};
use kevtmon_event::{Actor, CloseReason, Confidence, Event, Kind, Mount, Severity, Shared, Volume};
use kevtmon_observation::{BootNs, ContainerFacts, CoveredVolume, PodCgroup, Request};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::delete_pod;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::{Alert, CAPACITY, Context, IncidentKind, ModelChange, SECOND, Watch};
use crate::node::containers::is_live;
use crate::node::view::RuntimeAvailability;

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "pod-volume-lost";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A volume of a running pod was unmounted or covered on the node",
    symptom: "data on the wrong disk",
    names: "the process that unmounted the volume of a running pod",
    opens: "A volume of a running pod was unmounted, and is not mounted 15 s later, or something else is mounted over it for \
            15 s.",
    alert: Alert::Open { severity: Severity::Critical, minutes: 0 },
    meaning: "The volume is no longer mounted where the kubelet put it, or something else is mounted over it, and containers of the \
             pod run. Those may still have it. Containers that start from now on get what is there instead: the directory on the disk of \
             the node, or the other file system.",
    remedy: "Unmount what covers it, if anything does. Else delete the pod, so that the kubelet mounts the volume again. Look at the \
             path of the volume on the node for data that was written there since.",
    severities: &[Severity::Critical],
    counted: "unmounts",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: true,
    start: start::<PodVolumeLost>,
};

thresholds! {
    /// A volume of a running pod that was unmounted or covered is reported after this time.
    AFTER = "pod_volume_lost_seconds", default 15, Unit::Seconds;
}

/// How often is looked at an open one.
const LOOK: BootNs = 10 * SECOND;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Suspect {
    volume: Volume,
    path: String,
    /// When it was unmounted last.
    at: BootNs,
    seq: u64,
    actor: Option<Shared<Actor>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PodVolumeLost {
    suspects: BTreeMap<String, Suspect>,
    listed: BTreeSet<String>,
}

impl PodVolumeLost {
    /// Has the volumes of the pods looked for.
    fn request(&mut self, findings: &mut Findings) {
        let pods: BTreeSet<String> =
            self.suspects.values().map(|suspect| suspect.volume.pod_uid.clone()).collect();
        if pods != self.listed {
            self.listed.clone_from(&pods);
            findings.request(Request::PodMounts { pods: pods.into_iter().collect() });
        }
    }
}

/// What a kubelet mounts again by itself while the pod runs (`RequiresRemount` of pkg/volume).
const MOUNTED_AGAIN: [&str; 4] = [
    "kubernetes.io/secret", "kubernetes.io/configmap", "kubernetes.io/projected",
    "kubernetes.io/downward-api",
];

/// Whether a path is where a volume is mounted, and not below it: of a directory on the disk of the node nothing is mounted there.
/// What is mounted for a `subPath`, a kubelet mounts again whenever a container starts, and a block device is no directory.
pub(super) fn is_mount_point(volume: &Volume, path: &str) -> bool {
    let directory =
        format!("/pods/{}/volumes/{}/{}", volume.pod_uid, volume.plugin.replace('/', "~"), volume.name);
    let path = path.trim_end_matches('/');
    path.strip_suffix("/mount").unwrap_or(path).ends_with(&directory)
}

/// Whether a container of a pod runs, other than its sandbox.
pub(super) fn runs(context: &Context<'_>, uid: &str) -> bool {
    let is_its = |facts: &&ContainerFacts| {
        let pod = facts.pod.as_ref().filter(|pod| pod.is_confirmed());
        is_live(facts.state) && !facts.sandbox && pod.is_some_and(|pod| pod.uid == uid)
    };
    let has_ended = context.node.pods_on_node.get(uid).is_some_and(|pod| pod.seen.cgroup == PodCgroup::Empty);
    !has_ended && context.node.containers.present().any(|facts| is_its(&facts))
}

/// Whether a volume is mounted; `None` where that was not looked at since.
fn is_mounted(context: &Context<'_>, suspect: &Suspect) -> Option<bool> {
    let pods = context.node.pods_on_node;
    let pod = pods.get(&suspect.volume.pod_uid)?;
    let is_current = pods.is_read && pods.read > suspect.at && pod.seen.listed;
    let is_whole = pod.seen.mounts_omitted == 0;
    let is_there = pod.volumes().any(|(volume, _)| volume == suspect.volume);
    (is_current && (is_there || is_whole)).then_some(is_there)
}

fn subject(volume: &Volume) -> String {
    format!("{}/{}/{}", volume.pod_uid, volume.plugin, volume.name)
}

fn pod_of(subject: &str) -> &str {
    subject.split('/').next().unwrap_or_default()
}

fn unmounted(context: &Context<'_>, suspect: &Suspect) -> Report {
    let Suspect { volume, path, actor, .. } = suspect;
    let is_next = "containers that start in it now write to the disk of the node";
    let summary = |what: &str| match actor {
        Some(actor) => {
            format!("{} has likely unmounted {what}, which runs: {is_next}", actor_subject(actor))
        }
        None => format!("{what}, which runs, was unmounted: {is_next}"),
    };
    let mut found = report(context, volume, path, summary);
    found.objects.actor = actor.clone().map(Actor::at_most_likely);
    found.evidence = Some(suspect.seq).filter(|seq| *seq != 0).into_iter().collect();
    found
}

/// Who mounted the cover was not seen.
fn covered(context: &Context<'_>, volume: &Volume, found: &CoveredVolume) -> Report {
    let cover = &found.cover;
    let (fstype, source, path) = (name(&cover.fstype), name(&cover.source), name(&cover.mountpoint));
    let summary = |what: &str| {
        let cover = format!("{source} ({fstype}, {}) at {path}", cover.device);
        format!("{what}, which runs, is covered by {cover}: containers that start in it now get that instead")
    };
    let mut lost = report(context, volume, &found.mount.mountpoint, summary);
    if cover.mountpoint != found.mount.mountpoint {
        // The path does not lead there, so a kubelet that unmounts it leaves the volume mounted.
        lost.advice = Some(Vec::new());
    }
    lost
}

/// `summary`: of the words for the volume.
fn report(
    context: &Context<'_>,
    volume: &Volume,
    path: &str,
    summary: impl FnOnce(&str) -> String,
) -> Report {
    let target = context.node.target_of_pod(&volume.pod_uid);
    let pod = target_label(&target).unwrap_or_else(|| format!("pod {}", volume.pod_uid));
    let summary = summary(&format!("volume {} ({}) of {pod}", name(&volume.name), name(&volume.plugin)));
    let text =
        "delete the pod; its controller makes a new one, for which the kubelet mounts the volume again";
    let mount = Mount { path: path.to_owned(), volume: Some(volume.clone()), ..Mount::default() };
    Report {
        advice: target.confirmed_pod().map(|pod| delete_pod(context, pod, text)),
        objects: IncidentObjects {
            target: Some(Shared::new(target)),
            mount: Some(Box::new(mount)),
            ..IncidentObjects::default()
        },
        ..Report::new(subject(volume), Severity::Critical, Confidence::Likely, summary, context.now)
    }
}

/// The volumes of running pods that are covered. Some drivers mount a volume over something of their own before a container starts: it
/// counts where a container was seen that has what is covered.
fn conditions_of_covers(seen: &Seen<'_, ()>) -> Vec<Condition<()>> {
    let context = seen.context;
    let pods = context.node.pods_on_node;
    if !pods.is_read {
        let unknown = |subject: &str| Condition::unknown(subject.to_owned());
        return seen.open().filter(|subject| runs(context, pod_of(subject))).map(unknown).collect();
    }
    let of = |found: &CoveredVolume| {
        let path = &found.mount.mountpoint;
        let volume = volume::of_path(path).filter(|volume| is_followed(context, volume, path))?;
        let counts = found.held || seen.is_open(&subject(&volume));
        counts.then(|| Condition::new(covered(context, &volume, found)))
    };
    pods.iter().flat_map(|(_, pod)| &pod.seen.covered).filter_map(of).collect()
}

/// Whether a path is where a volume of a running pod is mounted that its kubelet does not mount again.
fn is_followed(context: &Context<'_>, volume: &Volume, path: &str) -> bool {
    is_mount_point(volume, path)
        && !MOUNTED_AGAIN.contains(&volume.plugin.as_str())
        && runs(context, &volume.pod_uid)
}

impl Conditions for PodVolumeLost {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn event(&mut self, seen: &Seen<'_, ()>, event: &Event, findings: &mut Findings) -> Look {
        let is_unmount = matches!(event.kind, Kind::MountReleased | Kind::MountDetached);
        let Some(mount) = event.mount.as_deref().filter(|_| is_unmount) else { return Look::No };
        let is_followed = |volume: &Volume| is_followed(seen.context, volume, &mount.path);
        let Some(volume) = mount.volume.clone().filter(is_followed) else { return Look::No };
        let subject = subject(&volume);
        // Once it is lost, what is unmounted is no volume. Of one that is covered it may be the cover.
        if seen.is_open(&subject) && self.suspects.contains_key(&subject) {
            return Look::No;
        }
        if self.suspects.len() >= CAPACITY && !self.suspects.contains_key(&subject) {
            findings.discard();
            return Look::No;
        }
        let (path, actor) = (mount.path.clone(), event.actor.clone());
        self.suspects.insert(subject, Suspect { volume, path, at: event.at, seq: event.seq, actor });
        Look::Now
    }

    fn change(&mut self, seen: &Seen<'_, ()>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        let matters = matches!(
            change,
            ModelChange::PodRemains | ModelChange::Container(_) | ModelChange::Runtime | ModelChange::Ready
        );
        let mut pods = seen.context.node.pods_on_node.iter();
        let mut has_cover = || pods.any(|(_, pod)| !pod.seen.covered.is_empty());
        let has_any = !self.suspects.is_empty() || seen.open().next().is_some();
        Look::soon_if(matters && (has_any || has_cover()))
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, findings: &mut Findings) -> Option<Vec<Condition<()>>> {
        let context = seen.context;
        // Of a runtime that does not answer, what runs is not known.
        context.ready.filter(|_| context.node.runtimes == RuntimeAvailability::All)?;
        // A look that was under way may have been before it.
        let is_young = |suspect: &Suspect| context.now < suspect.at.saturating_add(seen.hold);
        self.suspects.retain(|_, suspect| {
            runs(context, &suspect.volume.pod_uid)
                && (is_young(suspect) || is_mounted(context, suspect) != Some(true))
        });
        self.request(findings);
        let of = |(subject, suspect): (&String, &Suspect)| match is_mounted(context, suspect) {
            None => Some(Condition::unknown(subject.clone())),
            Some(true) => None,
            Some(false) => {
                let report = unmounted(context, suspect);
                Some(Condition { since: Some(suspect.at), ..Condition::new(report) })
            }
        };
        // Of two of one volume the last counts.
        Some(self.suspects.iter().filter_map(of).chain(conditions_of_covers(seen)).collect())
    }

    fn settle(&self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<BootNs> {
        (!self.suspects.is_empty()).then(|| seen.context.now.saturating_add(LOOK))
    }

    fn ended(&self, context: &Context<'_>, subject: &str, _: &()) -> Option<CloseReason> {
        Some(if runs(context, pod_of(subject)) { CloseReason::Resolved } else { CloseReason::SubjectGone })
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let mount = event.mount.as_deref()?;
        let volume = mount.volume.clone()?;
        let subject = subject(&volume);
        let seq = event.incident.as_ref()?.evidence.first().copied().unwrap_or_default();
        let (path, actor) = (mount.path.clone(), event.actor.clone());
        self.suspects.entry(subject.clone()).or_insert(Suspect { volume, path, at: 0, seq, actor });
        Some((subject, ()))
    }
}
