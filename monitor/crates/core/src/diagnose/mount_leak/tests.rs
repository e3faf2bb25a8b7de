//! A pod's volume and a container's root directory that a node exporter still has.

use kevtmon_event::{CloseReason, Confidence, Incident, Kind, Severity};
use kevtmon_observation::*;

use crate::Resume;
use crate::diagnose::tests::harness::*;

mod refusals;
mod shared;

const EXPORTER: &str = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";
const WEB: &str = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789ab0123";
const EXPORTER_UID: &str = "7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84";
const LAYER: &str = "/var/lib/docker/overlay2/\
    353abb353abb353abb353abb353abb353abb353abb353abb353abb353abb353a/merged";

fn container(id: &str, name: &str, state: ContainerState) -> ContainerFacts {
    ContainerFacts { name: name.into(), state, ..crate::test_support::model::container(id) }
}

fn exporter() -> ContainerFacts {
    let pod = PodIdentity {
        namespace: "monitoring".into(),
        name: "node-exporter-x7".into(),
        uid: EXPORTER_UID.into(),
        ..crate::test_support::model::pod()
    };
    ContainerFacts { pod: Some(pod), ..container(EXPORTER, "exporter", ContainerState::Running) }
}

fn in_exporter() -> String {
    format!("/kubepods/besteffort/pod{EXPORTER_UID}/{EXPORTER}")
}

fn node() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.start(vec![exporter(), container(WEB, "web", ContainerState::Exited)]);
    node.events.clear();
    node
}

fn original(path: &str, is_certain: bool) -> Option<OriginalMount> {
    Some(OriginalMount {
        path: path.into(),
        mntns: 2,
        seen: 5,
        is_certain,
        root_of: None,
        volume_data: None,
        others: Vec::new(),
    })
}

/// The volume of cam at /mem of the exporter.
fn copy(unique: u64) -> MountCopy {
    MountCopy {
        mount: MountFacts {
            id: unique,
            parent: Some(1),
            unique: Some(unique),
            mountpoint: "/mem".into(),
            root: "/".into(),
            fstype: "fuse.glusterfs".into(),
            source: "10.47.136.60:cam".into(),
            device: format!("0:{unique}"),
            mntns: 4_026_532_777,
        },
        propagation: Propagation::Private,
        holder: CopyHolder {
            tgid: 4711,
            start_ns: 70,
            comm: "node_exporter".into(),
            exe: Some("/bin/node_exporter".into()),
            uid: Some(0),
            cgroup: Some(in_exporter()),
            in_userns: false,
            init: false,
        },
        original: original(&volume_path(), true),
        bind: Some(BindMount {
            source: volume_path(),
            destination: "/mem".into(),
            propagation: Some("rprivate".into()),
        }),
        without_process: false,
    }
}

/// The root directory of the container web, as whoever has all of Docker's directory has it.
fn root_of_web(unique: u64) -> MountCopy {
    let mut copy = copy(unique);
    (copy.mount.fstype, copy.mount.source) = ("overlay".into(), "overlay".into());
    copy.mount.mountpoint = LAYER.replace("/var/lib/docker", "/host");
    let original = copy.original.as_mut().unwrap();
    (original.path, original.root_of) = (LAYER.into(), Some(format!("/docker/{WEB}")));
    copy.bind = Some(BindMount {
        source: "/var/lib/docker".into(),
        destination: "/host".into(),
        propagation: Some("rprivate".into()),
    });
    copy
}

fn found(node: &mut TestNode, copies: &[MountCopy]) {
    found_on(node, copies, "6.18.5");
}

fn found_on(node: &mut TestNode, copies: &[MountCopy], release: &str) {
    let kernel = KernelMounts { release: release.into(), may_detach: None };
    let found = MountCopies { copies: copies.to_vec(), omitted: 0, is_partial: false, kernel };
    node.observe(Fact::MountCopies(Box::new(found)));
}

/// The incidents that such a look opens.
fn opened(copies: &[MountCopy]) -> Vec<Incident> {
    let mut node = node();
    found(&mut node, copies);
    node.run_for(11 * S);
    node.open()
}

fn commands(incident: &Incident) -> Vec<&str> {
    incident.advice.iter().map(|step| step.command.as_str()).collect()
}

fn closed(node: &TestNode) -> Option<CloseReason> {
    let (kind, incident) = *node.incidents().last().unwrap();
    assert_eq!(kind, Kind::IncidentClosed);
    incident.close_reason
}

#[test]
fn a_volume_that_a_container_still_has_is_an_incident_until_it_is_gone() {
    let mut node = node();
    found(&mut node, &[copy(50)]);
    node.run_for(9 * S);
    assert_eq!(node.kinds(), [""; 0], "it may go at once");
    node.run_for(2 * S);
    let incident = &node.open()[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Info, Confidence::Certain));
    let path = volume_path();
    assert_eq!(
        incident.summary,
        format!(
            "container exporter of pod monitoring/node-exporter-x7 still has volume cam-pv-50g \
             (kubernetes.io/glusterfs) of pod {CAM_UID} mounted at /mem, though the host has unmounted it; it came by \
             {path} (rprivate); its file server is not asked to end"
        )
    );
    assert_eq!(incident.ruled_out, ["no unmount or removal is refused for it alone by Linux 6.18"]);
    let delete = "kubectl -n monitoring delete pod node-exporter-x7";
    assert_eq!(commands(incident), ["kevtmon holders --leaks", delete]);
    assert!(!incident.advice[1].text.contains("HostToContainer"), "of the directory itself that is not so");
    let event = node.last_incident();
    assert_eq!(event.actor.as_ref().unwrap().pid, 4711);
    assert_eq!(event.target.as_ref().unwrap().pod.as_ref().unwrap().uid, CAM_UID);
    let leak = &event.leaks.as_ref().unwrap()[0];
    assert_eq!((leak.path.as_deref(), leak.propagation), (Some(path.as_str()), Propagation::Private));

    found(&mut node, &[copy(50), root_of_web(51)]);
    node.run_for(11 * S);
    let incident = &node.open()[0];
    assert_eq!(incident.count, 2);
    assert!(
        incident
            .summary
            .contains("mounted at /mem, and 1 more such mount, though the host has unmounted them")
    );
    found(&mut node, &[]);
    assert_eq!(closed(&node), Some(CloseReason::Resolved));
    let event = node.last_incident();
    assert!(event.message.contains(" still has volume cam-pv-50g "), "{}", event.message);
    assert!(event.message.contains("its file server is not asked to end"), "{}", event.message);
}

#[test]
fn what_goes_at_once_or_comes_and_goes_is_no_incident() {
    let mut node = node();
    for unique in 50..56 {
        found(&mut node, &[copy(unique)]);
        node.run_for(8 * S);
    }
    found(&mut node, &[]);
    node.run_for(60 * S);
    assert_eq!(node.kinds(), [""; 0]);
}

#[test]
fn a_volume_that_a_container_of_its_pod_has_is_in_use() {
    let mut of_pod = copy(50);
    of_pod.mount.mountpoint = "/data".into();
    of_pod.holder.cgroup = Some(format!("/kubepods/besteffort/pod{CAM_UID}/{WEB}"));
    assert_eq!(opened(&[of_pod.clone()]), []);
    assert_eq!(opened(&[copy(50), of_pod.clone()]), []);
    // Another file system is another matter.
    of_pod.mount.device = "0:99".into();
    assert_eq!(opened(&[copy(50), of_pod]).len(), 1);
}

#[test]
fn the_root_directory_of_a_container_is_left_once_that_has_ended() {
    let incident = &opened(&[root_of_web(50)])[0];
    let words = "still has the root file system of container web mounted at /host/overlay2/353abb";
    assert!(incident.summary.contains(words), "{}", incident.summary);
    assert!(incident.summary.ends_with("; its file system stays mounted"), "{}", incident.summary);
    assert!(incident.advice[1].text.contains("HostToContainer"), "{:?}", incident.advice);
    let mut lives = node();
    lives.observe(Fact::Container(Box::new(container(WEB, "web", ContainerState::Running))));
    lives.events.clear();
    found(&mut lives, &[root_of_web(50)]);
    lives.run_for(11 * S);
    assert_eq!(lives.open(), [], "its runtime says that it lives");
    let mut own = root_of_web(50);
    (own.mount.mountpoint, own.holder.cgroup) = ("/".into(), Some(format!("/docker/{WEB}")));
    assert_eq!(opened(&[root_of_web(50), own]), [], "it has it as its root directory");
}

#[test]
fn the_incident_of_a_container_that_is_removed_has_no_subject_any_more() {
    let mut node = node();
    found(&mut node, &[copy(50)]);
    node.run_for(11 * S);
    node.observe(Fact::ContainerGone { id: EXPORTER.into(), source: "docker".into() });
    assert!(node.requests.contains(&Request::MountCopies));
    found(&mut node, &[]);
    assert_eq!(closed(&node), Some(CloseReason::SubjectGone));
}

#[test]
fn what_only_the_runtime_of_the_holder_tells_is_likely() {
    let mut by_bind = copy(50);
    by_bind.original = None;
    let incident = &opened(&[by_bind.clone()])[0];
    assert_eq!(incident.confidence, Confidence::Likely);
    assert_eq!(commands(incident), ["kevtmon holders --leaks"], "nothing is ended for that");
    assert!(incident.summary.contains("still has what is likely volume cam-pv-50g"), "{}", incident.summary);
    by_bind.bind = None;
    assert_eq!(opened(&[by_bind.clone()]), [], "nobody knows what it is");
    // Containers within a container have their mounts below a volume of that.
    let below = "/overlay2/353abb353abb353abb353abb353abb353abb353abb353abb353abb353abb353a/merged";
    by_bind.mount.mountpoint = format!("/var/lib/docker{below}");
    by_bind.bind = Some(BindMount {
        source: "/var/lib/docker/volumes/x/_data".into(),
        destination: "/var/lib/docker".into(),
        propagation: None,
    });
    assert_eq!(opened(&[by_bind]), []);
}

#[test]
fn what_was_mounted_for_no_container_and_no_pod_is_named_by_its_path() {
    let mut other = copy(50);
    (other.original, other.bind) = (original("/mnt/backup", true), None);
    (other.mount.device, other.mount.fstype) = ("7:3".into(), "ext4".into());
    other.mount.source = "/dev/loop3".into();
    let incident = &opened(&[other.clone()])[0];
    let words = "still has the file system of /mnt/backup mounted at /mem, though the host has unmounted it; its device \
                 /dev/loop3 (7:3) stays in use";
    assert!(incident.summary.ends_with(words), "{}", incident.summary);
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    let mut root = other.clone();
    (root.mount.mountpoint, root.mount.unique) = ("/".into(), Some(51));
    assert_eq!(opened(&[other.clone(), root]), [], "somebody has it as his root directory");
    let mut memory = other.clone();
    (memory.mount.fstype, memory.mount.device) = ("tmpfs".into(), "0:50".into());
    assert_eq!(opened(&[memory]), [], "nobody waits for memory");
    let (source, destination) = ("/mnt/backup".into(), "/mem".into());
    other.bind = Some(BindMount { source, destination, propagation: None });
    assert_eq!(opened(&[other.clone()]), [], "it is what the container was given");
    (other.bind, other.mount.fstype) = (None, "squashfs".into());
    assert_eq!(opened(&[other]), [], "an image that a newer one has replaced");
}

#[test]
fn what_was_mounted_elsewhere_than_on_the_host_is_none_of_it() {
    let mut node = node();
    let host = KubeletNamespace { mntns: 3, roots: Vec::new(), of_kubelet: false, pid: None };
    node.observe(Fact::Kubelet(KubeletFacts { namespaces: vec![host] }));
    found(&mut node, &[MountCopy { original: original("/mnt/backup", true), ..copy(50) }]);
    node.run_for(11 * S);
    assert_eq!(node.open(), [], "a runtime has mounts of its own");
}

#[test]
fn what_a_process_apart_has_where_a_kubelet_would_have_it_may_be_newer_than_the_look_at_the_host() {
    let mut apart = copy(50);
    (apart.original, apart.bind, apart.holder.cgroup) = (None, None, Some("/system.slice/x.service".into()));
    apart.mount.mountpoint = volume_path();
    assert_eq!(opened(&[apart]), []);
}

#[test]
fn a_block_device_that_stays_in_use_is_a_warning() {
    let mut of_device = copy(50);
    (of_device.mount.device, of_device.mount.fstype) = ("251:0".into(), "ext4".into());
    of_device.mount.source = "/dev/rbd0".into();
    let incident = &opened(&[of_device.clone()])[0];
    assert_eq!(incident.severity, Severity::Warning);
    let words = "; its device /dev/rbd0 (251:0) stays in use";
    assert!(incident.summary.ends_with(words), "{}", incident.summary);
    of_device.original = None;
    let incident = &opened(&[of_device.clone()])[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    let incident =
        &opened(&[copy(52), MountCopy { original: original(&volume_path(), true), ..of_device }])[0];
    assert!(incident.summary.ends_with(words), "the reason of the warning is told: {}", incident.summary);
}

#[test]
fn in_a_namespace_that_only_a_file_keeps_it_is_still_mounted_and_nobody_is_to_be_ended() {
    let incident = &opened(&[MountCopy { without_process: true, ..copy(50) }])[0];
    let words = "; no process is left in that mount namespace: an open file or a mount keeps it; ";
    assert!(incident.summary.contains(words), "{}", incident.summary);
    assert_eq!(commands(incident), ["kevtmon holders --leaks"]);
}

/// A process of a user in a user namespace of his own, which has all mounts of the host.
fn of_user(unique: u64, uid: u32) -> MountCopy {
    let mut copy = copy(unique);
    copy.bind = None;
    copy.mount.mountpoint = volume_path();
    copy.holder = CopyHolder {
        tgid: 9000 + uid,
        comm: "kubelet".into(),
        uid: Some(uid),
        cgroup: None,
        in_userns: true,
        ..copy.holder
    };
    copy
}

#[test]
fn the_namespaces_of_a_user_are_one_incident_that_blames_no_pod() {
    let mut node = node();
    let copies: Vec<MountCopy> = (0..40).map(|n| of_user(100 + n, 1000)).collect();
    found(&mut node, &copies);
    node.run_for(11 * S);
    let open = node.open();
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].count, open[0].severity), (40, Severity::Info));
    let begin = "a process in another user namespace (uid 1000, pid 10000) still has volume cam-pv-50g";
    assert!(open[0].summary.starts_with(begin), "{}", open[0].summary);
    assert_eq!(node.last_incident().target, None);
    assert_eq!(node.last_incident().leaks.as_ref().unwrap().len(), 32, "not all are listed");
}

#[test]
fn user_ids_of_namespaces_have_few_incidents() {
    let copies: Vec<MountCopy> =
        (0..40).map(|n| of_user(100 + n, 100_000 + u32::try_from(n).unwrap())).collect();
    assert_eq!(opened(&copies).len(), 16);
}

#[test]
fn a_unit_with_mounts_of_its_own_is_restarted() {
    let mut of_unit = copy(50);
    of_unit.bind = None;
    of_unit.mount.mountpoint = volume_path();
    of_unit.holder.cgroup = Some("/system.slice/ntpd.service".into());
    let incident = &opened(&[of_unit.clone()])[0];
    assert!(incident.summary.starts_with("unit ntpd.service still has "), "{}", incident.summary);
    assert_eq!(incident.advice[1].command, "systemctl restart ntpd.service");
    let mut second = of_unit;
    (second.mount.unique, second.mount.mntns, second.holder.tgid) = (Some(51), 9, 4712);
    assert_eq!(opened(&[copy(52), second]).len(), 2, "one for each holder");
}

#[test]
fn a_process_of_root_is_one_by_itself() {
    let mut of_shell = copy(50);
    (of_shell.bind, of_shell.holder.cgroup) = (None, Some("/".into()));
    let incident = &opened(&[of_shell])[0];
    assert!(incident.summary.starts_with("node_exporter (pid 4711) still has "), "{}", incident.summary);
    assert_eq!(incident.advice[1].command, "kill 4711");
    assert!(incident.advice[1].text.contains("with the last process of its mount namespace"));
}

#[test]
fn the_first_process_of_a_pid_namespace_is_ended_by_the_one_signal_that_it_cannot_ignore() {
    let mut of_shell = copy(50);
    (of_shell.bind, of_shell.holder.cgroup, of_shell.holder.init) = (None, Some("/".into()), true);
    let step = &opened(&[of_shell.clone()])[0].advice[1];
    assert_eq!((step.form.as_str(), step.command.as_str()), ("end-container", "kill -KILL 4711"));
    (of_shell.holder.tgid, of_shell.holder.init) = (1, false);
    assert_eq!(opened(&[of_shell])[0].advice.len(), 1, "nobody ends process 1 of the node");
}

#[test]
fn what_the_run_before_has_told_is_closed_only_once_it_is_known_to_be_gone() {
    let mut first = node();
    found(&mut first, &[copy(50)]);
    first.run_for(11 * S);
    let id = first.open()[0].id.clone();
    let mut next = TestNode::booted(first.resume_state());
    found(&mut next, &[]);
    assert_eq!(next.open().len(), 1, "whose mounts they are is not known yet");
    next.start(vec![exporter()]);
    assert!(next.requests.contains(&Request::MountCopies));
    found(&mut next, &[copy(50)]);
    next.run_for(11 * S);
    assert_eq!(next.open()[0].id, id);
    assert!(!next.kinds().contains(&"incident.opened"), "{:?}", next.kinds());
    found(&mut next, &[]);
    assert_eq!(closed(&next), Some(CloseReason::Resolved));
}

/// The shared memory of the container web, which the host had at this path.
fn shm_at(unique: u64, path: &str) -> MountCopy {
    let mut copy = copy(unique);
    (copy.mount.fstype, copy.mount.source) = ("tmpfs".into(), "shm".into());
    copy.mount.mountpoint = format!("/host{path}");
    copy.original = original(path, true);
    copy.bind = Some(BindMount {
        source: "/".into(),
        destination: "/host".into(),
        propagation: Some("rslave".into()),
    });
    copy
}

fn docker_shm() -> String {
    format!("/var/lib/docker/containers/{WEB}/mounts/shm")
}

fn with_directories() -> TestNode {
    let mut node = node();
    let directories = vec!["/var/lib/docker".into()];
    node.observe(Fact::RuntimeDirectories { source: "docker".into(), directories });
    node
}

#[test]
fn a_path_names_a_container_only_below_the_directory_of_its_runtime() {
    for (path, is_proven) in [(docker_shm(), true), (format!("/home/u/containers/{WEB}/x/shm"), false)] {
        let mut node = with_directories();
        found(&mut node, &[shm_at(50, &path)]);
        node.run_for(11 * S);
        let incident = &node.open()[0];
        let expected = if is_proven { Confidence::Certain } else { Confidence::Likely };
        assert_eq!(incident.confidence, expected, "{path}");
        let event = node.last_incident();
        let leak = &event.leaks.as_ref().unwrap()[0];
        assert_eq!((leak.container.is_some(), event.target.is_some()), (is_proven, is_proven), "{path}");
        assert_eq!(incident.summary.contains("container web"), is_proven, "{}", incident.summary);
        assert_eq!(incident.summary.contains("what is likely "), !is_proven, "{}", incident.summary);
    }
}

#[test]
fn a_layer_is_one_of_a_runtime_only_below_its_directory() {
    for (path, expected) in [
        (LAYER.to_owned(), Confidence::Certain),
        (LAYER.replace("/var/lib/docker", "/home/u"), Confidence::Likely),
    ] {
        let mut node = with_directories();
        let mut layer = root_of_web(50);
        layer.original = original(&path, true);
        found(&mut node, &[layer]);
        node.run_for(11 * S);
        assert_eq!(node.open()[0].confidence, expected, "{path}");
    }
}

#[test]
fn what_is_certain_of_one_mount_is_not_said_of_others() {
    let by_bind = |unique| MountCopy { original: None, ..copy(unique) };
    let second = MountCopy { original: original(&volume_path(), true), ..copy(51) };
    let incident = &opened(&[by_bind(52), copy(50), by_bind(53), second])[0];
    let words = ", and 1 more such mount, though the host has unmounted them, and 2 more mounts that are likely leaked; ";
    assert!(incident.summary.contains(words), "{}", incident.summary);
    let incident = &opened(&[by_bind(52), copy(50)])[0];
    let words =
        " mounted at /mem, though the host has unmounted it, and 1 more mount that is likely leaked; ";
    assert!(incident.summary.contains(words), "{}", incident.summary);
    let incident = &opened(&[by_bind(52), by_bind(53)])[0];
    assert!(incident.summary.contains("more such mount, with nothing of them mounted on the host;"));
}

#[test]
fn without_a_word_of_the_runtime_the_kernel_tells_the_propagation() {
    let mut silent = copy(50);
    silent.propagation = Propagation::Slave;
    silent.bind.as_mut().unwrap().propagation = None;
    let incident = &opened(&[silent])[0];
    assert!(
        incident.summary.contains(&format!("; it came by {} (slave); ", volume_path())),
        "{}",
        incident.summary
    );
}

#[test]
fn the_containers_of_a_pod_share_the_memory_of_its_sandbox() {
    let mut node = with_directories();
    let pod = exporter().pod;
    let sandbox = ContainerFacts { pod, ..container(WEB, "web", ContainerState::Exited) };
    node.observe(Fact::Container(Box::new(sandbox)));
    node.events.clear();
    let mut shared = shm_at(50, &docker_shm());
    shared.mount.mountpoint = "/dev/shm".into();
    found(&mut node, &[shared]);
    node.run_for(11 * S);
    assert_eq!(node.open(), []);
}

#[test]
fn nothing_is_ended_for_memory_that_containers_were_told_to_share() {
    let mut node = with_directories();
    let mut shared = shm_at(50, &docker_shm());
    shared.mount.mountpoint = "/dev/shm".into();
    let (source, destination) = (docker_shm(), "/dev/shm".into());
    shared.bind = Some(BindMount { source, destination, propagation: Some("rprivate".into()) });
    found(&mut node, &[shared]);
    node.run_for(11 * S);
    let incident = &node.open()[0];
    assert_eq!(incident.confidence, Confidence::Certain);
    assert_eq!(commands(incident), ["kevtmon holders --leaks"]);
}
