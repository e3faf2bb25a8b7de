//! The lines that are known: their words, what they speak of, which incidents explain them, and what they mean.
//!
//! To know another line is to add it to the table, before those whose words it has, too, and to `lines.txt`.

use super::message::Message;
use super::subject::{self, Extract, Found};

const CALICO: &str = "calico";
const CNI: &str = "CNI plugin";
const CONTAINERD: &str = "containerd";
const DOCKERD: &str = "dockerd";
const IP: &str = "ip or arp";
const KERNEL: &str = "kernel";
const KUBELET: &str = "kubelet";
const MOUNT: &str = "mount or umount";
const RBD: &str = "kubelet or Ceph CSI";
const SYSTEMD: &str = "systemd";

/// What a line means where no incident explains it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Otherwise {
    /// Nothing is wrong.
    Harmless(&'static str),
    /// What the cause can be.
    Possible(&'static str),
}

/// A line that is known.
#[derive(Debug)]
pub struct Form {
    /// Its name in the JSON.
    pub name: &'static str,
    /// The program that writes it.
    pub program: &'static str,
    /// Any of these is in it; where there is `…`, something else is in between. A letter that some write large is left out.
    words: &'static [&'static str],
    /// What it can speak of, from what tells most.
    pub(super) subjects: &'static [Extract],
    /// Kinds of incidents that explain it, the most direct one first.
    pub kinds: &'static [&'static str],
    pub meaning: &'static str,
    pub(super) otherwise: Otherwise,
    /// Commands that only read; `{path}` stands for the subject of that kind.
    pub(super) commands: &'static [&'static str],
}

impl Form {
    pub(super) fn is_harmless(&self) -> bool {
        matches!(self.otherwise, Otherwise::Harmless(_))
    }
}

/// The form of a message, and where its words are.
pub(super) fn recognise(message: &Message) -> Option<(&'static Form, Found<'_>)> {
    let (text, searched) = (&message.text, &message.text[..message.searched]);
    let of_form = |form: &'static Form| {
        let found = form.words.iter().find_map(|words| find(searched, words))?;
        Some((form, Found { message: text, ..found }))
    };
    FORMS.iter().find_map(of_form)
}

fn find<'a>(message: &'a str, words: &str) -> Option<Found<'a>> {
    let mut parts = words.split('…');
    let first = parts.next()?;
    let begin = message.find(first)?;
    let mut found = Found { message, begin, end: begin + first.len(), between: "" };
    for part in parts {
        let at = message[found.end..].find(part)?;
        if found.between.is_empty() {
            found.between = &message[found.end..found.end + at];
        }
        found.end += at + part.len();
    }
    Some(found)
}

macro_rules! forms {
    ($($name:literal $program:ident says [$($words:literal),+] about [$($subject:ident),*] explained by [$($kind:literal),*]
        means $meaning:literal $otherwise:ident $text:literal look [$($command:literal),*];)+) => {
        /// Every form; where the words of two are in a line, the first one counts.
        pub(super) const FORMS: &[Form] = &[$(Form {
            name: $name,
            program: $program,
            words: &[$($words),+],
            subjects: &[$(subject::$subject),*],
            kinds: &[$($kind),*],
            meaning: $meaning,
            otherwise: Otherwise::$otherwise($text),
            commands: &[$($command),*],
        }),+];
    };
}

forms! {
    // Ceph RBD.
    "rbd-image-not-deleted" RBD says ["rbd image …is still being used, rbd output"] about [image]
        explained by []
        means "A provisioner does not delete a Ceph RBD image that a client has open. No pod waits for it."
        Possible "The image is still mapped on the node that `rbd status` names." look ["rbd status {image}"];
    "rbd-locked" RBD says ["rbd: image …is locked by other nodes", "rbd: failed to lock image …(maybe locked by other nodes)",
            "rbd image …is still being used"] about [image, uid, pod]
        explained by ["rbd-locked-elsewhere", "rbd-lock-left", "rbd-orphan-mapping"]
        means "This node is refused a Ceph RBD image, so a pod stays in ContainerCreating."
        Possible "Another node has the image mapped, or a lock on it is left there. kevtmon knows locks and mappings on the node \
                  where they were made: run `kevtmon incidents` on the node that `rbd status` names. Older kubelets also write it when the monitors or the \
                  key are wrong, and the lock can be this node's own."
        look ["rbd status {image}", "rbd lock list {image}"];
    "rbd-unmap-busy" RBD says ["rbd: unmap failed: (16)"] about [path]
        explained by ["rbd-orphan-mapping", "mount-leak", "volume-busy"]
        means "The kernel does not unmap a Ceph RBD image that is in use."
        Possible "A process, or a mount in another mount namespace, has the device open." look ["kevtmon holders {path}"];

    // Calico.
    "endpoint-missing" CALICO says ["resource does not exist: WorkloadEndpoint"] about [container, pod, uid]
        explained by ["cni-teardown-failing", "stale-cni-del", "gateway-neighbor-lost"]
        means "Calico's plugins of 1.5 and before 1.10 fail the CNI DEL of a sandbox without an endpoint; it is retried without end."
        Possible "Something deleted the endpoint first, often the DEL of another sandbox of the same pod name. While this fails, do not \
                  delete a newer pod of that name: the next one would be hit. Calico's plugin since 1.10 carries on."
        look ["kevtmon events --kind cni.finished --container {container}"];
    "endpoint-of-newer-sandbox" CALICO says ["does not match WorkloadEndpoint Con",
            "does not match WorkloadEndpoint ActiveInstanceID"] about [container, pod, uid]
        explained by ["stale-cni-del", "gateway-neighbor-lost"]
        means "A CNI DEL of an older sandbox came after a newer sandbox of the same pod was set up."
        Harmless "Calico keeps the endpoint of the newer sandbox. If that pod has no network all the same, something else took it." look [];
    "endpoint-gone" CALICO says ["WorkloadEndpoint does not exist in the datastore"] about [container, pod, uid]
        explained by ["stale-cni-del", "gateway-neighbor-lost"]
        means "A CNI DEL found no endpoint of the pod."
        Harmless "The plugin carries on. The endpoint was deleted before, or its ADD failed; if the pod was running until now, it had no \
                  network." look [];
    "address-not-allocated" CALICO says ["Asked to release address but it doesn't exist"] about [container, pod]
        explained by ["ipam-drift"]
        means "A CNI DEL found no address of the sandbox."
        Harmless "The address was released before, or never given, because the ADD failed." look [];
    "address-released" CALICO says ["Released address using handleID"] about [container, pod]
        explained by []
        means "A CNI DEL released the address of a sandbox."
        Harmless "It was reserved for that sandbox, and not for the name of the pod." look [];
    "address-released-by-name" CALICO says ["Released address using workloadID"] about [container, pod]
        explained by ["stale-cni-del", "ipam-drift", "duplicate-pod-ip", "gateway-neighbor-lost"]
        means "A CNI DEL released an address by the name of a pod, whichever sandbox has it."
        Possible "Usual when the pod has ended. If a newer sandbox of that name lives, it has lost its address, and soon its network."
        look ["kevtmon state {pod}"];
    "plugin-unauthorized" CALICO says ["connection is unauthorized"] about [container, pod, uid]
        explained by ["cni-teardown-failing", "sandbox-crash-loop", "pod-stuck-terminating"]
        means "The API server refuses the CNI plugin, so sandboxes of this node are neither set up nor taken down."
        Possible "The token in the plugin's kubeconfig (/etc/cni/net.d/calico-kubeconfig) has expired: calico-node no longer renews it, \
                  or the clock was set." look ["kevtmon incidents --kind cni-teardown-failing"];
    "route-of-other-interface" CALICO says ["already exists for an interface other than"] about [address, interface, container, pod]
        explained by ["orphan-veth", "duplicate-pod-ip", "sandbox-crash-loop"]
        means "The host has a route to the address of the new pod already, by another interface."
        Possible "The interface of an earlier pod is left, or another pod has the same address."
        look ["kevtmon incidents --kind orphan-veth"];

    // CNI plugins and the network namespaces of sandboxes.
    "foreign-netns" CNI says ["netns from CNI_NETNS should not be the same"] about [container, pod, netns]
        explained by ["cni-netns-mismatch", "cni-teardown-failing"]
        means "The path of the sandbox's network namespace leads to that of the host; the plugin refuses to touch it."
        Possible "The process of the sandbox has ended, and another process got its id."
        look ["kevtmon incidents --all --kind cni-netns-mismatch"];
    "netns-gone" CNI says ["failed to Statfs \"/proc/"] about [container, pod, netns]
        explained by ["cni-teardown-failing", "sandbox-crash-loop", "cni-netns-mismatch"]
        means "The process of the sandbox has ended, and its network namespace with it."
        Possible "A CNI DEL that fails so is tried again, and the address stays reserved until it succeeds. Of an ADD the sandbox ended too \
                  early."
        look ["kevtmon events --kind container.exited --container {container}"];
    "netns-busy" CONTAINERD says ["/run/netns/…evice or resource busy", "remove netns: unlinkat"] about [netns, container, pod, uid]
        explained by ["pod-stuck-terminating", "orphan-veth", "mount-leak"]
        means "The file of a sandbox's network namespace cannot be removed."
        Possible "Kernels before 3.18 refuse it while another mount namespace has a copy of the mount; CentOS 7 needs \
                  fs.may_detach_mounts=1."
        look ["kevtmon holders --leaks"];
    "no-address-left" CNI says ["no IP addresses available in range set", "o more free affine blocks"] about [container, pod, uid]
        explained by ["cni-teardown-failing", "sandbox-crash-loop", "ipam-drift", "orphan-veth"]
        means "All addresses of this node are reserved, so new pods get no network."
        Possible "The range is too small, or addresses of ended pods are still reserved because their CNI DEL fails."
        look ["kevtmon incidents --kind cni-teardown-failing"];
    "address-allocated-twice" CNI says ["duplicate allocation is not allowed"] about [container, address, pod]
        explained by ["sandbox-crash-loop", "ipam-drift"]
        means "A sandbox asks for an address though host-local has reserved one for it."
        Possible "An earlier ADD of the sandbox failed half-way and was not undone."
        look ["kevtmon events --kind cni.finished --container {container}"];

    // The start of the kubelet.
    "sandbox-missing" KUBELET says ["no PodsandBox found with Id"] about [container, node]
        explained by ["orphan-container", "kubelet-crash-loop"]
        means "Kubelets of about 1.18 to 1.23 do not start while a container exists whose sandbox is gone."
        Possible "A container on this node names that sandbox." look ["kevtmon incidents --kind orphan-container"];
    "sandbox-missing-logged" KUBELET says ["o PodSandBox found for the container"] about [container]
        explained by ["orphan-container"]
        means "A container exists whose sandbox is gone."
        Harmless "Kubelets since 1.24 only log it, and start." look [];
    "kubelet-fails" KUBELET says ["Failed to start ContainerManager"] about [node]
        explained by ["kubelet-crash-loop", "orphan-container"]
        means "The kubelet ends because a part of it cannot start."
        Possible "The rest of the line has the reason." look ["kevtmon incidents --all --kind kubelet-crash-loop"];
    "kubelet-restarted" SYSTEMD says ["kubelet.service: Scheduled restart job", "kubelet.service: Start request repeated too quickly",
            "kubelet.service holdoff time over",
            "kubelet.service: Service hold-off time over", "kubelet.service: Main process exited"] about [node]
        explained by ["kubelet-crash-loop"]
        means "The kubelet has ended, and systemd starts it again, or gives up."
        Possible "Once is usual after an update. Repeatedly, its last lines before it ends have the reason."
        look ["kevtmon incidents --all --kind kubelet-crash-loop", "kevtmon events --kind component.exited"];
    "spec-hash-changed" KUBELET says ["Container spec hash changed (", " definition changed, will be restarted"]
        about [pod, uid, container, node]
        explained by ["spec-hash-storm"]
        means "The kubelet recreates a container because the hash of its specification is another one than before."
        Possible "The pod's specification or image was edited, or a kubelet of another version computes other hashes: then it recreates \
                  all containers of the node once." look ["kevtmon incidents --all --kind spec-hash-storm", "kevtmon events --kind container.recreated"];
    "runtime-slow" KUBELET says ["kipping pod synchronization", "PLEG is not healthy"] about [node]
        explained by []
        means "The kubelet waits for the container runtime, and starts and ends no pods until then."
        Possible "The runtime restarts, or waits for a disk, a plugin or a file server. After a start of the kubelet it is usual for a \
                  moment."
        look ["kevtmon incidents", "kevtmon events --kind component."];

    // Volumes.
    "file-server-gone" KUBELET says ["stat /…ransport endpoint is not connected", "statfs /…ransport endpoint is not connected",
            "open /…ransport endpoint is not connected", "mkdir /…ransport endpoint is not connected",
            "cannot access …ransport endpoint is not connected", "/pods/…ransport endpoint is not connected"]
        about [path, uid, pod, container]
        explained by ["file-server-lost", "volume-busy"]
        means "A FUSE file system does not answer: its server has ended while it is mounted, or GlusterFS has lost its bricks."
        Possible "The server was killed or restarted, often with the container or unit that it ran in. Pods that have the mount need a \
                  restart."
        look ["kevtmon holders {path}"];
    "mount-point-busy" MOUNT says ["already mounted or mount point busy"] about [path, uid]
        explained by ["rbd-orphan-mapping", "mount-multiplied", "mount-leak"]
        means "The kernel refuses to mount a device or on a directory that is in use."
        Possible "The device is mounted in another way, or device-mapper (multipath, LVM) has claimed the disk."
        look ["kevtmon holders {path}"];
    "orphaned-pod" KUBELET says ["rphaned pod …found, but"] about [uid]
        explained by ["pod-stuck-terminating", "volume-busy", "mount-leak"]
        means "The pod is gone, and something is left in its directory on this node."
        Possible "A volume is still mounted there, or data is left. Never delete the directory: that deletes the data of a mounted volume."
        look ["kevtmon incidents --pod {uid}"];
    "device-still-mounted" KUBELET says ["GetDeviceMountRefs check failed", "is still mounted by other references"] about [path, uid]
        explained by ["mount-leak", "rbd-orphan-mapping", "volume-busy"]
        means "The kubelet does not detach a volume that has other mounts on the node."
        Possible "The rest of the line lists them; one that belongs to no pod was left or made by hand." look ["kevtmon holders {path}"];
    "unstage-failed" KUBELET says ["UnmountDevice failed"] about [path, uid]
        explained by ["volume-busy", "rbd-orphan-mapping", "mount-leak", "umount-hung"]
        means "The kubelet cannot unmount a volume where it is staged for all pods of the node, so it cannot be detached."
        Possible "A process, or a mount in another mount namespace, uses it, if the line says busy; else the error of its driver is in the \
                  line." look ["kevtmon holders {path}", "kevtmon holders --leaks"];
    "teardown-failed" KUBELET says ["UnmountVolume.TearDown failed"] about [path, uid, pod]
        explained by ["volume-busy", "umount-hung", "pod-stuck-terminating", "file-server-lost"]
        means "The kubelet cannot unmount a volume of a pod, so the pod stays in Terminating. It tries again, at last every 2 min."
        Possible "A process, a mount below it or a copy of the mount holds it, if the line says busy; else its driver's error is in the \
                  line."
        look ["kevtmon holders {path}"];
    "not-a-mount-point" KUBELET says ["is not a mountpoint, deleting"] about [path, uid]
        explained by ["pod-volume-lost"]
        means "The kubelet finds no mount there, and tries to remove the directory."
        Harmless "So it is when an unmount is repeated. If 'directory not empty' follows, look first what is in it: the volume may have \
                  gone while in use, and its data then went to the node's disk." look [];
    "mount-failed" KUBELET says ["MountVolume.SetUp failed", "MountVolume.MountDevice failed", "MountVolume.WaitForAttach failed",
            "nable to attach or mount volumes", "nable to mount volumes for pod"] about [path, uid, pod]
        explained by ["rbd-locked-elsewhere", "file-server-lost", "mount-multiplied", "umount-hung"]
        means "The kubelet cannot set up a volume: a new pod stays in ContainerCreating, a running one gets no new contents."
        Possible "This line or another one of the same volume has the error. 'not registered' of a secret or config map is usual when a pod \
                  ends or the kubelet starts. Whether another node has the volume, kevtmon knows there."
        look ["kevtmon incidents"];

    // Containers that cannot be removed.
    "cgroup-busy" KUBELET says ["rmdir /sys/fs/cgroup/…evice or resource busy", "unlinkat /sys/fs/cgroup/…evice or resource busy",
            "remove /sys/fs/cgroup/…evice or resource busy"] about [uid, container]
        explained by ["pod-stuck-terminating", "container-undeletable"]
        means "A control group cannot be removed while a process or another group is in it."
        Harmless "Runtimes and the kubelet try again. For longer than a minute it is not: then a process of the pod does not end." look [];
    "removal-not-permitted" DOCKERD says ["unlinkat …peration not permitted", "emove filesystem for …peration not permitted"]
        about [container, path]
        explained by ["container-undeletable"]
        means "A file cannot be removed, and nothing holds it."
        Possible "It or its directory is immutable or append-only (chattr), or it is an active swap file." look ["lsattr -d {path}"];
    "container-not-removed" DOCKERD says ["nable to remove filesystem for ", "nable to remove filesystem",
            "ailed to remove root filesystem for ", "ailed to remove root filesystem", "Error removing mounted layer "]
        about [container, path]
        explained by ["container-undeletable", "mount-leak"]
        means "The files of a container cannot be removed, so it stays as Dead."
        Possible "If the line says busy: another container or service has a copy of its mount in a mount namespace of its own, or a process uses it."
        look ["kevtmon holders --leaks", "kevtmon holders {path}"];
    "removal-in-progress" DOCKERD says ["emoval of container …is already in progress"] about [container]
        explained by ["container-undeletable", "mount-leak"]
        means "An earlier removal of the container has not ended."
        Possible "For a moment that is usual. For minutes: the removal hangs, or failed and left its mark, and the container stays as \
                  Removal In Progress or Dead."
        look ["kevtmon incidents --kind container-undeletable", "kevtmon holders --leaks"];
    "container-removal-failed" KUBELET says ["RemoveContainer …from runtime service failed", "RemoveContainer from runtime service failed"] about [container]
        explained by ["container-undeletable", "pod-stuck-terminating"]
        means "The runtime cannot remove a container; the kubelet tries again."
        Possible "The rest of the line has its error." look ["kevtmon incidents --kind container-undeletable"];
    "not-killed" DOCKERD says ["failed to exit within …of kill"] about [container]
        explained by ["pod-stuck-terminating", "container-undeletable"]
        means "A container does not end though it was killed (SIGKILL)."
        Possible "Mostly its process waits in the kernel, for a disk or a file server that does not answer."
        look ["kevtmon incidents --kind umount-hung"];
    "killed-after-grace" DOCKERD says ["failed to exit within …using the force"] about [container]
        explained by ["pod-stuck-terminating", "container-undeletable"]
        means "A container did not end on its stop signal in time, and dockerd kills it."
        Harmless "Its first process ignores the signal, or needs longer." look [];
    "shim-ended" CONTAINERD says ["shim disconnected", "shim reaped"] about [container]
        explained by ["container-undeletable", "pod-stuck-terminating"]
        means "The supervisor of a container has ended."
        Harmless "It does when its container has. If the supervisor itself was killed, its container is ended with it." look [];

    // Sandboxes.
    "teardown-of-network-failed" KUBELET says ["ailed to destroy network for sandbox", "ailed to teardown pod"]
        about [container, pod, uid]
        explained by ["cni-teardown-failing", "stale-cni-del", "pod-stuck-terminating"]
        means "The network of a sandbox cannot be taken down; it is retried without end, and the pod stays."
        Possible "The rest of the line has the error of the CNI plugin. Until it is solved, do not delete a newer pod of that name: \
                  its network may go with the old one."
        look ["kevtmon events --kind cni.finished --container {container}"];
    "sandbox-not-stopped" KUBELET says ["StopPodSandbox …failed"] about [container, pod, uid]
        explained by ["cni-teardown-failing", "stale-cni-del", "pod-stuck-terminating"]
        means "A sandbox cannot be stopped; it is tried again."
        Possible "The CNI plugin fails, the runtime does not answer, or a process does not end: the rest of the line has the error."
        look ["kevtmon events --kind cni.finished --container {container}"];
    "sandbox-not-created" KUBELET says ["ailed to set up pod", "ailed to setup network for sandbox", "ailed to create pod sandbox",
            "RunPodSandbox …failed"] about [container, pod, uid]
        explained by ["sandbox-crash-loop", "ipam-drift", "orphan-veth"]
        means "A pod gets no sandbox or no network, and stays in ContainerCreating."
        Possible "The rest of the line has the error of the runtime or of the CNI plugin."
        look ["kevtmon incidents --kind sandbox-crash-loop"];
    "pod-not-ended" KUBELET says ["rror killing pod", "KillPodSandboxError", "KillContainerError", "but some containers are still running"]
        about [uid, pod, container]
        explained by ["pod-stuck-terminating", "cni-teardown-failing", "volume-busy", "container-undeletable"]
        means "The kubelet cannot end a pod."
        Possible "A process does not die, or the CNI DEL of its sandbox fails." look ["kevtmon events --pod {uid}"];
    "probe-failed" KUBELET says ["Probe failed", "iveness probe failed", "eadiness probe failed", "tartup probe failed", "robe errored",
            "iveness probe for …failed", "eadiness probe for …failed", "tartup probe for …failed"]
        about [uid, pod, address, container]
        explained by ["gateway-neighbor-lost", "pod-route-missing", "pod-neighbor-unreachable", "duplicate-pod-ip",
            "sandbox-network-replaced", "neighbor-table-full"]
        means "The kubelet does not get the answer that it expects of a container."
        Possible "'no route to host' and 'invalid argument' tell of the pod's network; a timeout, of that or of a slow application; \
                  'connection refused' and a status code, of the application alone."
        look ["kevtmon state {pod}"];

    // The kernel, and what tools show of it.
    "neighbor-table-overflow" KERNEL says ["neighbor table overflow!", "eighbour table overflow"] about [node]
        explained by ["neighbor-table-full"]
        means "The kernel has no room for a neighbor entry, so addresses are not resolved."
        Possible "A scan or a large network fills the table that all pods share (gc_thresh3)."
        look ["kevtmon incidents --all --kind neighbor-table-full"];
    "task-blocked" KERNEL says ["INFO: task …blocked for more than", "INFO: task …blocked in I/O wait for"] about [task]
        explained by ["umount-hung"]
        means "A process waits in the kernel, and cannot be killed."
        Possible "A disk or a file server (NFS, FUSE, Ceph) does not answer. kevtmon reports those that unmount something."
        look ["kevtmon incidents --kind umount-hung"];
    "nfs-silent" KERNEL says ["nfs: server …not responding", "lockd: server …not responding"] about [server]
        explained by ["nfs-server-unresponsive"]
        means "An NFS server, or its lock manager (lockd), does not answer; processes that use its volumes wait, or get an error if the line \
               says timed out."
        Possible "It is down or cannot be reached from the network namespace in which the volume was mounted. kevtmon reports it if [logs] \
                  kmsg is on and no reply came for 30 s."
        look ["kevtmon incidents --kind nfs-server-unresponsive", "kevtmon incidents --kind umount-hung"];
    "ceph-server-lost" KERNEL says ["session lost, hunting for new mon", "libceph…: osd…down", "ceph…: mds…hung", "ceph…: mds…caps stale"]
        about []
        explained by ["umount-hung", "volume-busy"]
        means "The kernel's client of Ceph has lost a server; what uses CephFS or an RBD image may wait for it."
        Possible "The server is down, or this node does not reach it. The kernel also says that one is back: session established, osd up, \
                  mds came back."
        look ["kevtmon incidents --kind umount-hung"];
    "thin-deletion" KERNEL says ["device-mapper: thin: Deletion of thin device"] about []
        explained by ["container-undeletable", "mount-leak"]
        means "The device of a container's root file system cannot be deleted, as a rule while it is in use."
        Possible "Another mount namespace still has it mounted."
        look ["kevtmon holders --leaks", "kevtmon incidents --kind container-undeletable"];
    "device-not-freed" KERNEL says ["unregister_netdevice: waiting for"] about [interface, node]
        explained by ["netns-never-ends", "orphan-veth"]
        means "The kernel waits to free a network device that something still refers to."
        Possible "Often it goes by itself after some minutes. Else it is a defect of the kernel, and until a restart of the node no \
                  network namespace ends."
        look ["kevtmon incidents --kind netns-never-ends"];
    "no-persistent-mac" SYSTEMD says ["ould not generate persistent MAC"] about [interface]
        explained by ["gateway-neighbor-lost"]
        means "udev finds no fixed hardware address for a virtual interface."
        Harmless "It leaves the interface as it is." look [];
    "bridge-port" KERNEL says ["(veth…entered disabled state", "(veth…entered blocking state", "(veth…entered forwarding state",
            "veth…entered promiscuous mode", "veth…left promiscuous mode"] about [interface]
        explained by ["gateway-neighbor-lost", "orphan-veth"]
        means "The host's end of a container's interface was added to a bridge or removed from it."
        Harmless "The kernel says so at every start and end of a container." look [];
    "neighbor-unresolved" IP says ["at <incomplete>", "dev eth0 FAILED", "dev eth0  FAILED", "dev eth0 INCOMPLETE", "dev eth0  INCOMPLETE",
            "dev cali…FAILED", "dev cali…INCOMPLETE", "(incomplete)"]
        about [pod, interface, address]
        explained by ["gateway-neighbor-lost", "pod-neighbor-unreachable"]
        means "No host answers ARP for the address. If it is the gateway of a pod, the pod can send nothing."
        Possible "A static entry was deleted, or the host's side no longer answers. Name the pod to see which part is broken."
        look ["kevtmon incidents --kind gateway-neighbor-lost", "kevtmon state"];

    // Words that many programs use.
    "umount-busy" MOUNT says [": target is busy", "umount…: device is busy"] about [path, uid, container]
        explained by ["volume-busy", "container-undeletable", "mount-leak", "rbd-orphan-mapping"]
        means "An unmount is refused because something uses the mount."
        Possible "A process has a file or directory of it open, or something is mounted below it." look ["kevtmon holders {path}"];
    "removal-busy" MOUNT says ["evice or resource busy"] about [path, uid, container]
        explained by ["volume-busy", "container-undeletable", "pod-stuck-terminating", "mount-leak", "rbd-orphan-mapping"]
        means "The kernel refuses a step with EBUSY: what the line names is in use."
        Possible "Of an unmount or a removal: something is mounted there, in this mount namespace or another, or a process uses the mount. \
                  Of a device: it is mounted, or another device is on it."
        look ["kevtmon holders {path}"];
    "retried-later" KUBELET says ["No retries permitted until"] about [path, uid, pod]
        explained by ["volume-busy", "pod-stuck-terminating"]
        means "A step with a volume failed, and the kubelet waits before it tries again."
        Possible "The rest of the line has the error." look ["kevtmon incidents"];
}
