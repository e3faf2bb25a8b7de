//! What of a container could not be removed or unmounted, and what is in the way.

use kevtmon_event::{Actor, Confidence, Event, Mount};
use kevtmon_observation::BootNs;
use serde::{Deserialize, Serialize};

use crate::diagnose::finding::IncidentObjects;
use crate::diagnose::volume_busy::confidence;
use crate::node::components::is_one_of;
use crate::node::mounts::MountKey;
use crate::node::view::NodeView;

const EVIDENCE_MAX: usize = 8;
/// What runtimes execute to remove what is of a container. They themselves are known as processes.
const TOOLS: [&str; 8] = [
    "dockerd", "containerd", "containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2", "crio",
    "podman", "conmon",
];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Refusal {
    first: BootNs,
    pub(super) last: BootNs,
    pub(super) attempts: u64,
    pub(super) confidence: Confidence,
    pub(super) objects: IncidentObjects,
    pub(super) evidence: Vec<u64>,
}

impl Refusal {
    pub(super) fn of(event: &Event) -> Self {
        let mount = event.mount.as_deref();
        let is_likely = mount.is_some_and(|mount| mount.confidence.is_some());
        Self {
            first: event.at,
            last: event.at,
            attempts: mount.and_then(|mount| mount.attempts).unwrap_or(1),
            confidence: if is_likely { Confidence::Likely } else { confidence(event) },
            objects: IncidentObjects::of(event),
            evidence: vec![event.seq],
        }
    }

    pub(super) fn resume(event: &Event, last: Option<BootNs>) -> Option<Self> {
        event.mount.as_ref()?;
        Some(Self { last: last.unwrap_or(event.at), evidence: Vec::new(), ..Self::of(event) })
    }

    /// Another attempt. The newest tells, since the runtime goes on to the next thing once one is out of the way.
    pub(super) fn repeat(&mut self, event: &Event) {
        let newer = Self::of(event);
        let is_same = newer.path() == self.path();
        let mut evidence = std::mem::take(&mut self.evidence);
        let room = EVIDENCE_MAX.saturating_sub(evidence.len());
        evidence.extend(newer.evidence.iter().copied().take(room));
        let attempts = if is_same { self.attempts.max(newer.attempts) } else { newer.attempts };
        *self = Self { first: self.first.min(newer.first), attempts, evidence, ..newer };
    }

    pub(super) fn path(&self) -> Option<&str> {
        self.objects.mount.as_ref().map(|mount| mount.path.as_str())
    }

    /// Whether it was refused at this path: in another mount namespace that is another place.
    pub(super) fn is_of(&self, key: &MountKey) -> bool {
        self.objects.mount.as_ref().is_some_and(|mount| mount.path == key.path && mount.mntns == key.mntns)
    }

    pub(super) fn is_about(&self, mount: &Mount) -> bool {
        let Some(own) = self.objects.mount.as_deref() else { return false };
        match (&own.identity, &mount.identity) {
            (Some(own), Some(other)) => own == other,
            _ => own.path == mount.path && own.mntns == mount.mntns,
        }
    }

    /// Whether this shows that the container cannot be removed: runtimes clean up at its end, too, and what was refused once
    /// succeeds a moment later. Nobody tries again after this time but to remove it.
    pub(super) fn shows_removal(&self, after: BootNs) -> bool {
        self.last.saturating_sub(self.first) >= after
    }
}

/// Whether who called is a runtime, as root of the node: others refuse no removal to it.
pub(super) fn is_runtime(node: &NodeView<'_>, actor: &Actor) -> bool {
    if actor.userns.is_some() || actor.uid.is_some_and(|uid| uid != 0) || actor.container.is_some() {
        return false;
    }
    let start = actor.start_time_ns.parse().unwrap_or_default();
    let exe = actor.exe.as_deref().and_then(|exe| exe.rsplit('/').next());
    is_one_of(&node.components.running, actor.pid, start) || exe.is_some_and(|exe| TOOLS.contains(&exe))
}
