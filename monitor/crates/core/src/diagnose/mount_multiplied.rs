//! A volume of a pod is mounted over itself again and again, as by a driver that mounts all volumes each time that it starts. The
//! mounts below the topmost are hidden, the table of mounts grows with each, and an unmount of the volume takes away only one.
//!
//! That what is mounted there is the volume, the path alone shows: it is likely.

use kevtmon_event::volume;
use kevtmon_event::wording::target_label;
use kevtmon_event::{Advice, Confidence, Event, Mount, Severity, Shared, Volume, form};
use kevtmon_observation::{BootNs, MountStack};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::advice;
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::pod_volume_lost::is_mount_point;
use super::volume_busy::mount_object;
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch};

#[cfg(test)]
mod tests;

pub(super) const KIND: &str = "mount-multiplied";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A volume of a pod is mounted over itself again and again",
    symptom: "more mounts with each restart of a driver",
    names: "the volume and pod, and how many mounts within which time",
    opens: "A volume of a pod is mounted three or more times over itself for 10 s.",
    alert: Alert::ByHand,
    meaning: "The kernel's table has three or more mounts of the volume at one path, each on the one before. The pod sees the one \
             that was the topmost when its containers started, unless mounts are propagated to them. Unmounting the volume usually takes \
             away only one of them, so others may stay behind when the pod is deleted. Thousands of mounts slow down every process \
             that reads the table, systemd and the kubelet among them.",
    remedy: "Look in the log of the volume's driver on this node for what it mounts each time that it starts or retries. Once it no \
             longer does, delete the pod, and unmount what is left of the volume then.",
    severities: &[Severity::Warning, Severity::Info],
    counted: "changes",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: true,
    start: start::<MountMultiplied>,
};

/// So many are no accident of two that mount once each.
const MANY: u32 = 5;

thresholds! {
    /// A volume that is mounted over itself is reported after this time.
    AFTER = "mount_multiplied_seconds", default 10, Unit::Seconds;
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct MountMultiplied {}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Layers {
    at: BootNs,
    layers: u32,
}

/// When it was found first, and when it changed last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Growth {
    first: Layers,
    last: Layers,
}

impl Growth {
    fn next(before: Option<&Self>, now: Layers) -> Self {
        match before {
            Some(before) if before.last.layers == now.layers => *before,
            Some(before) if before.last.layers < now.layers && before.last.layers > 0 => {
                Self { last: now, ..*before }
            }
            _ => Self { first: now, last: now },
        }
    }

    /// How fast they become more, if they do; looks are up to 20 seconds apart.
    fn phrase(&self) -> String {
        let more = self.last.layers.saturating_sub(self.first.layers);
        let seconds = (self.last.at.saturating_sub(self.first.at) + SECOND / 2) / SECOND;
        if more > 0 { format!(", {more} of these times within about {seconds} s") } else { String::new() }
    }

    /// Some kubelets and drivers both mount a volume, and propagation multiplies that once.
    fn severity(&self) -> Severity {
        let is_more = self.last.layers > self.first.layers || self.last.layers >= MANY;
        if is_more { Severity::Warning } else { Severity::Info }
    }
}

fn report(context: &Context<'_>, volume: Volume, stack: &MountStack, growth: &Growth) -> Report {
    let target = context.node.target_of_pod(&volume.pod_uid);
    let pod = target_label(&target).unwrap_or_else(|| format!("pod {}", volume.pod_uid));
    let what = format!("volume {} ({}) of {pod}", name(&volume.name), name(&volume.plugin));
    let summary = format!("{what} is mounted {} times over itself{}", stack.layers, growth.phrase());
    let MountStack { mount: facts, .. } = stack;
    let mount = Mount { identity: None, ..mount_object(facts, volume) };
    Report {
        advice: Some(steps(&facts.mountpoint)),
        objects: IncidentObjects {
            target: Some(Shared::new(target)),
            mount: Some(Box::new(mount)),
            ..IncidentObjects::default()
        },
        ..Report::new(facts.mountpoint.clone(), growth.severity(), Confidence::Likely, summary, context.now)
    }
}

/// Which of the mounts the pod uses is not known, so that none is advised to be unmounted.
fn steps(path: &str) -> Vec<Advice> {
    vec![advice(form::TELL_VOLUME, "show what else happened to the volume", &["kevtmon", "why", path])]
}

impl Conditions for MountMultiplied {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = Growth;

    fn change(&mut self, _: &Seen<'_, Growth>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        Look::now_if(matches!(change, ModelChange::PodRemains | ModelChange::Ready))
    }

    fn conditions(&mut self, seen: &Seen<'_, Growth>, _: &mut Findings) -> Option<Vec<Condition<Growth>>> {
        let context = seen.context;
        let pods = context.node.pods_on_node;
        if !pods.is_read {
            return None;
        }
        let of_pod = |pod: &MountStack, uid: &str| {
            let path = &pod.mount.mountpoint;
            let volume = volume::of_path(path)
                .filter(|volume| volume.pod_uid == uid && is_mount_point(volume, path))?;
            let now = Layers { at: context.now, layers: pod.layers };
            let memory = Growth::next(seen.memory(path), now);
            Some(Condition { memory, ..Condition::new(report(context, volume, pod, &memory)) })
        };
        let stacks =
            pods.iter().flat_map(|(uid, pod)| pod.seen.stacked.iter().map(move |stack| (uid, stack)));
        Some(stacks.filter_map(|(uid, stack)| of_pod(stack, uid)).collect())
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, Growth)> {
        Some((event.mount.as_ref()?.path.clone(), Growth::default()))
    }
}
