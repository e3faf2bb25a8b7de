//! Pods that have a directory on the node: whether their containers run, and since when none does.
//!
//! A pod runs as long as a runtime or its control group says so. That it does not is known only where one of them could
//! tell: control groups name no pods where a kubelet does not make them, and a runtime knows only its own.

use std::collections::BTreeMap;

use kevtmon_event::Volume;
use kevtmon_event::volume;
use kevtmon_observation::{
    BootNs, ContainerFacts, MountFacts, PodCgroup, PodIdentity, PodProcess, PodRemains,
};
use kevtmon_types::clock::SECOND;
use serde::{Deserialize, Serialize};

use super::containers::{Containers, is_live};
use super::view::NodeView;

/// A kubelet waits so long at most before it starts a container again (`MaxContainerBackOff`), with some time to do it:
/// meanwhile a pod without a sandbox's process has none at all, and only its runtime knows that it is to run.
const LONGEST_PAUSE: BootNs = 360 * SECOND;
/// Once its runtime is back, a kubelet makes the containers again that ended with it: for so long, pods without any are not
/// at their end.
const RECOVERY: BootNs = 300 * SECOND;

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PodsOnNode {
    /// Whether they were looked at, and can be: else what is not there is only unknown, and what is may be over.
    pub is_read: bool,
    /// When that was last told.
    pub read: BootNs,
    /// When a runtime that did not answer came back last.
    pub recovered: Option<BootNs>,
    known: BTreeMap<String, PodOnNode>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodOnNode {
    pub seen: PodRemains,
    /// Whether it ran while the daemon looked.
    pub ran: bool,
    /// When it was first seen not to run, since it ran last.
    pub over: Option<BootNs>,
    /// When each of its processes was first seen that were killed and are still there.
    pub killed: Vec<(u32, BootNs, BootNs)>,
    /// How often its control group could not be removed since it does not run.
    pub refused: u64,
}

/// What shows that a pod does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witness {
    /// A runtime: it knows containers of this pod, or of others of its kubelet.
    pub runtime: bool,
    /// The control group of the pod.
    pub cgroup: bool,
}

impl PodsOnNode {
    pub fn replace(&mut self, at: BootNs, pods: Vec<PodRemains>, containers: &Containers) {
        (self.is_read, self.read) = (true, at);
        let mut before = std::mem::take(&mut self.known);
        for seen in pods {
            let uid = seen.uid.clone();
            let known = before.remove(&uid);
            let mut pod = known.unwrap_or_else(|| PodOnNode::new(seen.clone()));
            let of = |process: &PodProcess| {
                let first = pod.killed.iter().find(|(tgid, start, _)| (*tgid, *start) == process.key());
                (process.tgid, process.start_ns, first.map_or(at, |(_, _, first)| *first))
            };
            pod.killed = seen.processes.iter().filter(|process| process.killed).map(of).collect();
            pod.seen = seen;
            pod.review(at, containers);
            self.known.insert(uid, pod);
        }
    }

    /// A container of a pod was added, changed or removed.
    pub fn review(&mut self, at: BootNs, uid: &str, containers: &Containers) {
        if let Some(pod) = self.known.get_mut(uid) {
            pod.review(at, containers);
        }
    }

    /// All containers of a runtime were read.
    pub fn review_all(&mut self, at: BootNs, containers: &Containers) {
        self.known.values_mut().for_each(|pod| pod.review(at, containers));
    }

    /// The control group of a pod could not be removed.
    pub fn note_refused(&mut self, uid: &str) {
        if let Some(pod) = self.known.get_mut(uid).filter(|pod| pod.over.is_some()) {
            pod.refused += 1;
        }
    }

    /// Until when a kubelet may still make the containers again that ended with their runtime.
    fn recovery_end(&self) -> BootNs {
        self.recovered.map_or(0, |at| at.saturating_add(RECOVERY))
    }

    pub fn get(&self, uid: &str) -> Option<&PodOnNode> {
        self.known.get(uid)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &PodOnNode)> {
        self.known.iter().map(|(uid, pod)| (uid.as_str(), pod))
    }
}

impl PodOnNode {
    fn new(seen: PodRemains) -> Self {
        Self { seen, ran: false, over: None, killed: Vec::new(), refused: 0 }
    }

    fn review(&mut self, at: BootNs, containers: &Containers) {
        if self.runs(containers) {
            (self.ran, self.over, self.refused) = (true, None, 0);
        } else {
            self.over.get_or_insert(at);
        }
    }

    fn runs(&self, containers: &Containers) -> bool {
        if containers.of_pod(&self.seen.uid).is_some_and(|facts| is_live(facts.state)) {
            return true;
        }
        // What is left of containers that have ended, by their runtime, is no container.
        let has_ended = |short: &String| {
            containers.all().any(|facts| facts.id.starts_with(short.as_str()) && !is_live(facts.state))
        };
        let are_left = !self.seen.containers.is_empty() && self.seen.containers.iter().all(has_ended);
        self.seen.cgroup == PodCgroup::Populated && !are_left
    }

    /// Whether there are processes in its control group though no container of it runs.
    pub fn has_left_processes(&self) -> bool {
        self.over.is_some() && self.seen.cgroup == PodCgroup::Populated
    }

    /// Since when no container of it has run, nor was one about to be made; `None` as long as one does, where none ever did,
    /// and where nothing could tell.
    pub fn over_since(&self, node: &NodeView<'_>) -> Option<BootNs> {
        let over = self.over?;
        // The volumes of a new pod are mounted before its first container is made.
        let had_containers = self.ran || self.seen.started;
        let witness = self.witness(node);
        if !had_containers || !witness.runtime && !witness.cgroup || is_runtime_down(node) {
            return None;
        }
        let pause = if witness.runtime { 0 } else { LONGEST_PAUSE };
        Some(over.max(self.last_add(node)).saturating_add(pause).max(node.pods_on_node.recovery_end()))
    }

    /// Since when nothing of it should be left, as it was deleted and its grace period has ended; `None` of one that was not,
    /// and as far as for [`Self::over_since`]. Its kubelet starts no container of it again, whether it had any or not.
    #[must_use]
    pub fn overdue_since(&self, node: &NodeView<'_>) -> Option<BootNs> {
        let (over, ends) = (self.over?, node.pods.ends(&self.seen.uid)?);
        let Witness { runtime, cgroup } = self.witness(node);
        if !runtime && !cgroup || is_runtime_down(node) {
            return None;
        }
        // One that was not seen to run may have been over long before it was first looked at.
        let since = if self.ran { over.max(ends) } else { ends };
        Some(since.max(self.last_add(node)).max(node.pods_on_node.recovery_end()))
    }

    pub fn volumes(&self) -> impl Iterator<Item = (Volume, &MountFacts)> {
        // The source tells only what is below a root directory of a kubelet.
        let volume = |mount: &MountFacts| {
            volume::of_path(&mount.mountpoint).filter(|volume| volume.pod_uid == self.seen.uid)
        };
        self.seen.mounts.iter().filter_map(move |mount| Some((volume(mount)?, mount)))
    }

    /// Its volumes whose directories are not empty, though nothing is mounted there.
    pub fn filled(&self) -> impl Iterator<Item = Volume> {
        let volumes = self.seen.filled.iter().filter_map(|path| volume::of_path(path));
        volumes.filter(|volume| volume.pod_uid == self.seen.uid)
    }

    /// What tells that it does not run.
    pub fn witness(&self, node: &NodeView<'_>) -> Witness {
        let is_heard = |facts: &&ContainerFacts| !node.is_down(&facts.source);
        // One that knows pods of this kubelet.
        let is_of_pod_here = |facts: &ContainerFacts| {
            let pod = facts.pod.as_ref().filter(|pod| pod.is_confirmed());
            is_live(facts.state) && pod.is_some_and(|pod| node.pods_on_node.known.contains_key(&pod.uid))
        };
        let own = node.containers.of_pod(&self.seen.uid).filter(is_heard);
        let runtime = own.is_some() || node.containers.all().filter(is_heard).any(is_of_pod_here);
        let has_group = |pod: &Self| matches!(pod.seen.cgroup, PodCgroup::Empty | PodCgroup::Populated);
        let cgroup = match self.seen.cgroup {
            PodCgroup::Empty => true,
            // Where others have one, its own was removed.
            PodCgroup::Absent => node.pods_on_node.known.values().any(has_group),
            PodCgroup::Unknown | PodCgroup::Populated => false,
        };
        Witness { runtime, cgroup }
    }

    /// When a network was last made for a sandbox of it, which its kubelet does for a pod that is to run.
    fn last_add(&self, node: &NodeView<'_>) -> BootNs {
        let Some((namespace, name)) = node.pods.get(&self.seen.uid) else { return 0 };
        node.cni.of_pod(namespace, name).filter_map(|(_, sandbox)| sandbox.added).max().unwrap_or(0)
    }
}

/// Whether a runtime that makes pods does not answer: then a kubelet can neither end nor start any.
fn is_runtime_down(node: &NodeView<'_>) -> bool {
    let is_of_pod = |facts: &ContainerFacts| facts.pod.as_ref().is_some_and(PodIdentity::is_confirmed);
    node.containers
        .all()
        .any(|facts| is_of_pod(facts) && node.containers.is_present(&facts.id) && node.is_down(&facts.source))
}
