//! What each kind of incident means and what to do, for people who meet it in a log and do not know kevtmon.

use super::{
    cni_netns_mismatch, cni_teardown_failing, container_undeletable, duplicate_pod_ip, gateway_neighbor_lost,
    ipam_drift, kubelet_crash_loop, mount_leak, multi_pod_disruption, orphan_container, orphan_veth,
    pod_neighbor_unreachable, pod_route_missing, pod_stuck_terminating, rbd_lock_left, rbd_locked_elsewhere,
    rbd_orphan_mapping, sandbox_crash_loop, spec_hash_storm, stale_cni_del, umount_hung, volume_busy,
};

/// A kind of incident in plain words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explained {
    /// What is wrong, in one line.
    pub title: &'static str,
    /// What it means, and how it comes.
    pub meaning: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// The words for a kind; `None` for one that is none.
#[must_use]
#[expect(clippy::too_many_lines, reason = "one entry for each kind")]
pub fn explained(kind: &str) -> Option<Explained> {
    let (title, meaning, remedy) = match kind {
        gateway_neighbor_lost::KIND => (
            "A pod or container has lost the neighbor entry of its gateway",
            "The default route leads to a gateway whose ARP or NDP entry was removed, replaced, points to a wrong hardware \
             address or does not resolve. Nothing that it sends outside arrives. Where the entry was static, as Calico sets \
             it, the kernel does not find it again by itself.",
            "Put the entry back, or restart the pod, as the advice of the incident says; then look at who removed it: \
             the actor of the incident.",
        ),
        orphan_container::KIND => (
            "A container is there whose pod sandbox is gone",
            "Kubelets of about 1.18 to 1.23 refuse to start while such a container exists and their runtime does not \
             remember the sandbox.",
            "Remove the container by the command of the advice, then see who removed the sandbox alone.",
        ),
        volume_busy::KIND => (
            "A pod's volume cannot be unmounted",
            "The unmount is refused because a process, another mount or the kernel uses the volume, so the pod stays in \
             Terminating. Another copy of the mount in a container refuses nothing by itself.",
            "End or restart who holds it: the incident names holders, `kevtmon holders PATH` shows who does now. A lazy \
             unmount only hides it.",
        ),
        stale_cni_del::KIND => (
            "A CNI DEL of an old sandbox may hit the newer pod of the same name",
            "Plugins that know endpoints by the pod's name take the network of the newer pod away when the older one is \
             cleaned up late.",
            "Restart the newer pod if its network is gone; remove the old sandbox so that the call is not repeated.",
        ),
        cni_teardown_failing::KIND => (
            "The CNI DEL of a sandbox fails again and again",
            "The network of a pod that has ended is not taken down: addresses and interfaces may leak, and the pod stays.",
            "Read the plugin's error in the log of the kubelet or the runtime; the incident names the plugin.",
        ),
        cni_netns_mismatch::KIND => (
            "A CNI DEL was sent into another network namespace than its sandbox's",
            "The process id in its path was given to another process meanwhile, so the plugin may take the network of the \
             host or of another pod down.",
            "Check the network of the namespace that was hit; update the kubelet or the runtime, which reuse the id.",
        ),
        kubelet_crash_loop::KIND => (
            "The kubelet ends again and again soon after its start",
            "No pod of this node is managed meanwhile: none starts, none is removed, and the node becomes NotReady.",
            "Read the last lines of its log; an orphan container or a wrong configuration are usual reasons.",
        ),
        spec_hash_storm::KIND => (
            "Containers of many pods were made anew because their hash differs",
            "A kubelet of another version computes other hashes of the same specifications and restarts all containers of \
             the node.",
            "Nothing is wrong with the pods. Drain nodes before the next update of the kubelet across such a version.",
        ),
        sandbox_crash_loop::KIND => (
            "A pod gets new sandboxes again and again",
            "The runtime or the CNI plugin cannot bring the pod's network up, and the kubelet tries without end.",
            "Read the error in the events of the pod and the log of the runtime and the plugin.",
        ),
        umount_hung::KIND => (
            "A process hangs in an unmount",
            "It waits in the kernel for a file system whose server does not answer, such as NFS or a stopped FUSE server, \
             and cannot be killed. What waits for it hangs, too.",
            "Let the server answer or end it; for FUSE, abort the connection, as the advice says.",
        ),
        container_undeletable::KIND => (
            "A container cannot be removed",
            "Something uses its directory or its mounts, often a copy of the mount in the namespace of a service or of \
             another container.",
            "End or restart who holds it, as the incident names it; the runtime removes the container then.",
        ),
        pod_stuck_terminating::KIND => (
            "A pod has ended and something of it is left on the node",
            "A volume is still mounted, a process still in its control group, a CNI DEL fails, or a process that was \
             killed waits in the kernel; so the pod stays in Terminating.",
            "The incident says which of these it is and by whom; begin there.",
        ),
        mount_leak::KIND => (
            "Somebody still has mounts that the host has unmounted",
            "The copies in another mount namespace keep file systems and devices in use: a device cannot be detached, a \
             FUSE server is not told to end.",
            "Restart the container or service that has them; mount host directories with the propagation HostToContainer \
             (rslave), and run services without a mount namespace of their own.",
        ),
        orphan_veth::KIND => (
            "A pod's veth device is left on the node though its pod is gone",
            "The network of the pod was not taken down, or something keeps its network namespace alive: a process, an open \
             file or a mount. Routes and addresses that belong to the device may be in the way of newer pods.",
            "End who keeps the namespace, as the incident names them; the device goes with it. Do not delete a device by its \
             name: the next pod of that name has one of the same name.",
        ),
        ipam_drift::KIND => (
            "host-local no longer reserves the address of a living pod for it",
            "host-local gives an address to nobody as long as there is a file of its name. That of a pod which lives and has the \
             address is gone, or is another sandbox's: a CNI DEL freed it, somebody removed the file, or its directory was \
             emptied. Two pods with one address come of it.",
            "Restart the pod, so that it gets another address; until then no pod should be started. Look who freed it: \
             scripts that clean up /var/lib/cni/networks by a list of containers often do.",
        ),
        duplicate_pod_ip::KIND => (
            "Two pods of this node have the same address",
            "Packets for one of them may reach the other, or neither. Either the address was given out while it was in use, \
             often after the records of the address management were lost or restored, or a pod has set it itself.",
            "Restart the pod that got the address last, and compare the records of the address management with the pods.",
        ),
        pod_neighbor_unreachable::KIND => (
            "This node cannot reach one of its pods",
            "The neighbor record of the pod's address stays unresolved while the pod runs: its interface is down or has lost \
             the address, or ARP is not answered there.",
            "Look at the interface and the address in the pod, as the advice says; restart the pod if its network is gone.",
        ),
        pod_route_missing::KIND => (
            "This node has no route to one of its pods",
            "The pod's own network looks right and its gateway may answer, but what the node or others send to the pod does \
             not arrive: answers to the pod are dropped or leave by another interface.",
            "Add the route as the advice says, then restart the agent of the network plugin on this node (calico-node), which \
             adds the routes of all pods; look in its log for why it lost this one.",
        ),
        multi_pod_disruption::KIND => (
            "One actor has disrupted the network of several pods",
            "A network service that was restarted, a script or an agent took away what the network of these pods needs; each \
             of them has an incident of its own, of which this one is the cause.",
            "Find out why the actor did it, and stop that first; then restore the pods as their incidents advise.",
        ),
        rbd_orphan_mapping::KIND => (
            "A Ceph RBD image is mapped on this node though no pod uses it",
            "Either the pod that used it has gone and something still has the image mounted or open, or it was never unmapped, \
             or somebody has mapped it by hand. A pod on another node may wait for it, if the image is locked.",
            "End who holds the device, as the incident names them, unmount it there, then unmap it; only then look at its lock.",
        ),
        rbd_lock_left::KIND => (
            "A lock is left on a Ceph RBD image that this node has not mapped",
            "A program on this node, such as a kubelet up to 1.7, has taken the lock, and none on this node has removed it. \
             Other nodes may be refused the image: \"image is locked by other nodes\". Whether somebody has removed the lock \
             from another node is not known.",
            "Make sure by rbd status that no client has the image open, see by rbd lock list whether the lock is still there, \
             and only then remove it.",
        ),
        rbd_locked_elsewhere::KIND => (
            "A log says that a Ceph RBD image is refused to this node",
            "According to a log of this node, another node has the image or a lock on it; then its pod stays in \
             ContainerCreating. Either the pod's node before has not given it back, or a lock was left when it did. The log may \
             also be wrong: it is quoted, and nothing else shows the refusal. Whether a program has the image without the \
             kernel (rbd-nbd, librbd) is not seen.",
            "See by rbd status which client has the image open and go on with kevtmon on the node of that address; if that tells \
             nothing, a pod there uses the image. A lock is removed only if there is no watcher.",
        ),
        _ => return None,
    };
    Some(Explained { title, meaning, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::KINDS;

    #[test]
    fn every_kind_is_explained_in_whole_sentences() {
        for kind in KINDS {
            let Explained { title, meaning, remedy } = explained(kind).unwrap();
            assert!(!title.ends_with('.') && title.len() < 80, "{kind}");
            assert!(meaning.ends_with('.') && remedy.ends_with('.'), "{kind}");
        }
        assert_eq!(explained("no-such-kind"), None);
    }
}
