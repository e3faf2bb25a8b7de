//! A pod's volume whose unmount is refused, and who holds it.

use kevtmon_observation::*;

use super::harness::*;
use crate::Resume;

/// The mount namespace of the kubelet.
pub(in crate::diagnose) const MNTNS: NsInum = 4_026_531_840;
/// The kubelet's directory.
pub(in crate::diagnose) const KUBELET: &str = "/var/lib/kubelet/";
/// A symbolic link to it.
pub(in crate::diagnose) const LINK: &str = "/srv/link/";

pub(in crate::diagnose) fn volume_path() -> String {
    format!("{KUBELET}pods/{CAM_UID}/volumes/kubernetes.io~glusterfs/cam-pv-50g")
}

pub(in crate::diagnose) fn umount(errno: Option<u16>) -> Fact {
    Fact::Umount(Box::new(UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key: task_key(30_001), tid: 30_001, comm: "umount".into(), context: None },
        mntns: MNTNS,
        path: volume_path(),
        origin: None,
        flags: 0,
        errno,
        second: None,
    }))
}

/// A glusterfs that serves another pod's volume holds a file in it.
pub(in crate::diagnose) fn holders(id: u64, path: &str) -> HolderReport {
    let serves = format!("/var/lib/kubelet/pods/{WEB_UID}/volumes/kubernetes.io~glusterfs/web-pv");
    HolderReport {
        mount: Some(MountFacts {
            id: 410,
            parent: Some(29),
            unique: None,
            mountpoint: path.into(),
            root: "/".into(),
            fstype: "fuse.glusterfs".into(),
            source: "10.47.136.60:cam".into(),
            device: "0:77".into(),
            mntns: 4_026_531_840,
        }),
        holders: vec![Holder {
            tgid: 94_549,
            comm: "glusterfs".into(),
            cmdline: Some(format!(
                "/usr/sbin/glusterfs --volfile-server=10.47.136.60 --volfile-id=web {serves}"
            )),
            exe: Some("/usr/sbin/glusterfsd".into()),
            access: Access::Fd,
            path: Some(format!("{path}/.lock")),
            fd: Some(9),
            tid: None,
            start_ns: None,
            uid: Some(0),
            init: false,
            cgroup: Some("/system.slice/run-r77.scope".into()),
            mntns: Some(4_026_531_840),
            serves: Some(serves),
            serves_for_certain: true,
            possible: false,
            mount: None,
            loop_device: None,
            source: None,
        }],
        complete: true,
        verdict: Verdict::Processes,
        ..HolderReport::skipped(id, path)
    }
}

/// The pod of that volume, with no process any more; `is_mounted`: with its volume.
pub(in crate::diagnose) fn cam_remains(is_mounted: bool) -> PodRemains {
    PodRemains {
        uid: CAM_UID.into(),
        directory: format!("{KUBELET}pods/{CAM_UID}"),
        mntns: MNTNS,
        cgroup: PodCgroup::Empty,
        started: true,
        mounts: is_mounted.then(|| holders(0, &volume_path()).mount).flatten().into_iter().collect(),
        ..PodRemains::default()
    }
}

/// The same pod while it runs.
pub(in crate::diagnose) fn cam_running() -> PodRemains {
    PodRemains { cgroup: PodCgroup::Populated, ..cam_remains(false) }
}

/// A node with that pod, whose sandbox is in this state.
pub(in crate::diagnose) fn cam_node(resume: Resume, state: ContainerState) -> TestNode {
    let mut node = TestNode::booted(resume);
    node.start(vec![cam_sandbox(state)]);
    node.events.clear();
    node
}

pub(in crate::diagnose) fn cam_runs() -> TestNode {
    let mut node = cam_node(Resume::default(), ContainerState::Running);
    node.observe(pods_seen(vec![cam_running()]));
    node
}

/// Its last container ends.
pub(in crate::diagnose) fn end_cam(node: &mut TestNode) {
    node.observe(Fact::Container(Box::new(cam_sandbox(ContainerState::Exited))));
}

pub(in crate::diagnose) fn pods_seen(pods: Vec<PodRemains>) -> Fact {
    Fact::PodRemains { pods }
}

/// A sandbox of that pod.
pub(in crate::diagnose) fn cam_sandbox(state: ContainerState) -> ContainerFacts {
    let id = "c".repeat(64);
    ContainerFacts { state, ..sandbox(&id, 4_026_532_300, "cam", "cam1-78b6fc6bc8-cjsw5", CAM_UID) }
}

pub(in crate::diagnose) fn not_a_mount(id: u64, path: &str) -> HolderReport {
    HolderReport { verdict: Verdict::NotAMount, complete: true, ..HolderReport::skipped(id, path) }
}
