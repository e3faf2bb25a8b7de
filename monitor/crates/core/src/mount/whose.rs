//! Whose a mount is: a pod's volume, what a runtime mounts for a container, or a mount of whoever calls.

use kevtmon_event::{Actor, Mount, Target};
use kevtmon_observation::UmountAttempt;

use crate::Core;
use crate::node::components::is_one_of;

impl Core {
    /// The container for which a runtime mounts what one of these paths leads to. In a mount namespace in which others than
    /// root of the node mount, a path tells nothing.
    pub(super) fn container_at<'p>(
        &self,
        attempt: &UmountAttempt,
        paths: impl IntoIterator<Item = &'p str>,
    ) -> Option<String> {
        if !self.kubelets.mounts_in(attempt.mntns) && !self.is_runtime(attempt) {
            return None;
        }
        let owner = |path| self.runtime_directories.owner(&self.containers, path);
        paths.into_iter().find_map(owner).map(|facts| facts.id.clone())
    }

    /// Whether a kubelet or runtime of the node has called.
    pub(super) fn is_runtime(&self, attempt: &UmountAttempt) -> bool {
        let key = &attempt.actor.key;
        is_one_of(&self.components.running, key.tgid, key.start_ns)
    }

    /// That of the pod of its volume, else the container for which its runtime mounts it, else the one whose mount
    /// namespace it is in, or which the caller is of. A mount in the host's namespace that is neither is nobody's.
    pub(super) fn mount_target(&self, mount: &Mount, caller: &Actor) -> Option<Target> {
        if let Some(volume) = &mount.volume {
            return Some(self.node().target_of_pod(&volume.pod_uid));
        }
        let own = mount.container_id.as_ref().and_then(|id| self.containers.get(id));
        if let Some(facts) = own {
            return Some(self.target_of(facts));
        }
        if self.kubelets.mounts_in(mount.mntns) {
            return None;
        }
        let of_caller = || {
            let (container, pod) = (caller.container.clone()?, caller.pod.clone());
            Some(Target { container: Some(container), pod, ..Target::unknown(caller.join) })
        };
        self.containers.in_mntns(mount.mntns).map(|facts| self.target_of(facts)).or_else(of_caller)
    }
}
