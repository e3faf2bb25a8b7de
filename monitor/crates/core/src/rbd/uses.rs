//! Whose uses of mapped images are: a pod's by its directory on the host, which the kubelet mounts there; the node's own; or
//! nobody's who is to have it.

use std::collections::BTreeSet;

use kevtmon_event::{MountHolder, Pod, Rbd, Shared};
use kevtmon_observation::{Access, BootNs, Holder, NsInum, RbdImage, RbdNumber, RbdUse, RbdUses};

use crate::Core;
use crate::diagnose::{ImageUse, ModelChange, Usage};
use crate::node::view::RuntimeAvailability;

#[derive(Debug, Default)]
struct Found {
    pods: BTreeSet<String>,
    /// Whether the node uses it for itself.
    of_node: bool,
    /// Where a kubelet has it mounted for pods, and no pod's.
    staged: Vec<(NsInum, String)>,
    holders: Vec<MountHolder>,
}

impl Core {
    pub fn rbd_uses(&mut self, at: BootNs, found: &RbdUses) {
        let mut uses = Vec::new();
        for used in &found.uses {
            let Some(image) = self.rbd.get(used.number).cloned() else { continue };
            let who = self.who_uses(at, used);
            if let Some(uid) = who.pods.first() {
                self.rbd.note_pod(used.number, uid);
            }
            uses.push(self.image_use(&image, who, used, found));
        }
        self.diagnose(at, &ModelChange::RbdUses(&uses));
    }

    fn who_uses(&self, at: BootNs, used: &RbdUse) -> Found {
        let mut found = Found { of_node: used.swap || !used.devices.is_empty(), ..Found::default() };
        for holder in &used.holders {
            match (holder.access, holder.mntns, &holder.path) {
                (Access::Mount, Some(mntns), Some(path)) if self.kubelets.mounts_in(mntns) => {
                    if let Some(volume) = self.kubelets.volume(at, mntns, path) {
                        found.pods.insert(volume.pod_uid);
                    } else if self.kubelets.has_below_root(mntns, path) {
                        found.staged.push((mntns, path.clone()));
                    } else {
                        found.of_node = true;
                    }
                }
                _ => match self.pod_that_uses(holder, used.number) {
                    Some(uid) => {
                        found.pods.insert(uid);
                    }
                    None => found.holders.push(self.mount_holder(at, holder.clone())),
                },
            }
        }
        found
    }

    /// The pod of a holder, if it has the device open, as those do that have it as a block volume. What a container has mounted
    /// is its pod's use only where that pod had the image before: others have copies of mounts that are not theirs.
    fn pod_that_uses(&self, holder: &Holder, number: RbdNumber) -> Option<String> {
        let owner = self.node().owner(holder.cgroup.as_deref());
        let uid = Pod::confirmed(owner.pod.as_ref())?.uid.clone();
        let is_open = holder.access == Access::Fd;
        (is_open || self.rbd.last_pod(number) == Some(&uid)).then_some(uid)
    }

    fn image_use(&self, image: &RbdImage, who: Found, used: &RbdUse, found: &RbdUses) -> ImageUse {
        let runtimes = self.runtimes();
        // What was not looked at may be a pod's use.
        let is_read = found.host.is_some()
            && used.omitted == 0
            && !used.unlocated
            && (runtimes.is_any() || runtimes == RuntimeAvailability::Absent)
            && !self.kubelets.namespaces().any(|mntns| found.unread.contains(&mntns));
        let usage = match (who.pods.is_empty() && !who.of_node, is_read) {
            (false, _) => Usage::Used,
            (true, false) => Usage::Unknown,
            (true, true) => Usage::Unused,
        };
        let mounted_at = who.staged.iter().map(|(_, path)| path.clone()).collect();
        let last = self.rbd.last_pod(image.number);
        ImageUse {
            usage,
            rbd: Rbd { mounted_at, ..Rbd::from(image) },
            staged: who.staged,
            holders: who.holders,
            complete: found.complete
                && matches!(runtimes, RuntimeAvailability::All | RuntimeAvailability::Absent),
            is_told: runtimes == RuntimeAvailability::All,
            last_pod: last.map(|uid| Shared::new(self.node().target_of_pod(uid))),
        }
    }
}
