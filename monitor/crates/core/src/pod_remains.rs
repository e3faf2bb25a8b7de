//! What there is of pods on the node.

use kevtmon_observation::cgroup;
use kevtmon_observation::{BootNs, HolderReport, KubeletPod, PodRemains};

use super::Core;
use super::held::unreadable;
use crate::diagnose::{IncidentObjects, ModelChange};

impl Core {
    pub(super) fn pod_remains(&mut self, at: BootNs, pods: Vec<PodRemains>) {
        for pod in &pods {
            // What a runtime has told is better known.
            if let Some((namespace, name)) = pod.name.as_ref().filter(|_| self.pods.get(&pod.uid).is_none()) {
                self.pods.insert(pod.uid.clone(), namespace.clone(), name.clone(), at);
            }
        }
        self.pods_on_node.replace(at, pods, &self.containers);
        self.diagnose(at, &ModelChange::PodRemains);
    }

    /// A kubelet tells what its pods are called, and which of them were deleted. `all`: it lists them, and some may have
    /// been deleted long ago.
    pub(super) fn kubelet_pods(&mut self, at: BootNs, pods: Vec<KubeletPod>, all: bool) {
        let mut any_deleted = false;
        for pod in pods {
            // The clock of the API server may be behind: what is told as it happens has not ended before, nor by a later list.
            let first = if all { 0 } else { at };
            let earliest = self.pods.ends(&pod.uid).map_or(first, |known| known.min(at));
            // One that was deleted before this boot is overdue since the boot.
            let ends = pod.ends_s.map(|seconds| self.boot_time(seconds).unwrap_or(0).max(earliest));
            any_deleted |= self.pods.put(at, pod, ends);
        }
        if any_deleted {
            self.diagnose(at, &ModelChange::PodsDeleted);
        }
    }

    /// A container was added, changed or removed.
    pub(super) fn review_pod(&mut self, at: BootNs, id: &str) {
        let pod = self.containers.get(id).and_then(|facts| facts.pod.as_ref());
        if let Some(uid) = pod.filter(|pod| pod.is_confirmed()).map(|pod| pod.uid.clone()) {
            self.pods_on_node.review(at, &uid, &self.containers);
        }
    }

    /// Who uses a volume whose pod is over.
    pub(super) fn left_volume(&mut self, at: BootNs, report: HolderReport) {
        let HolderReport { id, mount, complete, verdict, .. } = &report;
        let unreadable = unreadable(Some(&report), *complete, *verdict);
        let holders = report.holders.iter().cloned().map(|holder| self.mount_holder(at, holder));
        let found = IncidentObjects {
            holders: Some(holders.collect()),
            holders_complete: Some(*complete),
            holders_unreadable: unreadable,
            holders_verdict: Some(*verdict),
            ..IncidentObjects::default()
        };
        let servers = &self.mount_servers(&report.servers);
        let (id, mount, found, unserved) = (*id, mount.as_ref(), &found, report.unserved);
        self.diagnose(at, &ModelChange::LeftVolume { id, mount, found, servers, unserved });
    }

    /// A directory of a control group could not be removed, by this path: whose it is.
    pub(super) fn cgroup_refused(&mut self, path: &str) {
        let identity = cgroup::identify(path);
        if let Some(uid) = identity.pod_uid.filter(|_| identity.container_id.is_none()) {
            self.pods_on_node.note_refused(&uid);
        }
    }
}
