//! Volumes of several pods that are of one file system.

use super::*;

const OTHER_UID: &str = "11111111-c030-4996-b888-f032577d97b1";

fn other_path() -> String {
    volume_path().replace(CAM_UID, OTHER_UID)
}

fn of(path: &str, root: &str, unique: u64) -> MountCopy {
    let mut copy = MountCopy { original: original(path, true), bind: None, ..copy(unique) };
    (copy.mount.device, copy.mount.root) = ("0:50".into(), root.into());
    copy
}

#[test]
fn each_directory_of_a_file_system_is_the_volume_of_its_own_pod() {
    let mut other = of(&other_path(), "/sub", 51);
    (other.holder.tgid, other.holder.cgroup) = (4712, Some("/x.service".into()));
    let incidents = opened(&[of(&volume_path(), "/", 50), other]);
    assert_eq!(incidents.len(), 2);
    for (holder, uid, foreign) in
        [("container exporter", CAM_UID, OTHER_UID), ("unit x.service", OTHER_UID, CAM_UID)]
    {
        let summary = &incidents.iter().find(|it| it.summary.starts_with(holder)).unwrap().summary;
        assert!(summary.contains(uid) && !summary.contains(foreign), "{summary}");
    }
}

#[test]
fn of_a_directory_that_volumes_of_two_pods_were_none_is_certain() {
    let mut both = of(&volume_path(), "/", 50);
    let also = |path: String| Some(HostPath { path, mntns: 2 });
    both.original.as_mut().unwrap().others.extend(also(other_path()));
    let incident = &opened(&[both.clone()])[0];
    assert_eq!(incident.confidence, Confidence::Likely);
    assert!(incident.summary.contains("what is likely volume"), "{}", incident.summary);
    // What is staged for the pods of a node is the volume, and a kubelet in a container has it at another path.
    for path in [
        "/var/lib/kubelet/plugins/kubernetes.io/csi/pv/globalmount".into(),
        format!("/rootfs{}", volume_path()),
    ] {
        let mut one = of(&volume_path(), "/", 50);
        one.original.as_mut().unwrap().others.extend(also(path));
        assert_eq!(opened(&[one])[0].confidence, Confidence::Certain);
    }
}

#[test]
fn a_volume_that_may_be_that_of_the_pod_which_has_it_is_in_use() {
    let mut own = of(&volume_path(), "/", 50);
    let path = volume_path().replace(CAM_UID, EXPORTER_UID);
    own.original.as_mut().unwrap().others.push(HostPath { path, mntns: 2 });
    assert_eq!(opened(&[own]), []);
}

#[test]
fn a_volume_that_was_staged_for_all_pods_is_named_as_one() {
    let path = "/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-1/globalmount";
    let staged = MountCopy { original: original(path, true), bind: None, ..copy(50) };
    let node = with_staged(staged);
    let incident = &node.open()[0];
    let words =
        "still has staged volume pvc-1 (kubernetes.io/csi) mounted at /mem, though the host has unmounted it";
    assert!(incident.summary.contains(words), "{}", incident.summary);
    assert_eq!(incident.confidence, Confidence::Certain);
    let event = node.last_incident();
    assert_eq!(event.leaks.as_ref().unwrap()[0].path.as_deref(), Some(path));
}

/// A node whose kubelet has this root directory, with an incident of a copy.
fn with_staged(copy: MountCopy) -> TestNode {
    let mut node = node();
    let host =
        KubeletNamespace { mntns: 2, roots: vec!["/var/lib/kubelet".into()], of_kubelet: false, pid: None };
    node.observe(Fact::Kubelet(KubeletFacts { namespaces: vec![host] }));
    found(&mut node, &[copy]);
    node.run_for(11 * S);
    node
}

#[test]
fn of_a_staged_volume_the_driver_and_its_name_for_it_are_told_and_that_the_device_stays_in_use() {
    let path = "/var/lib/kubelet/plugins/kubernetes.io/csi/rbd.csi.ceph.com/0a1b2c3d/globalmount";
    let mut staged = MountCopy { original: original(path, true), bind: None, ..copy(50) };
    (staged.mount.device, staged.mount.fstype) = ("251:0".into(), "ext4".into());
    (staged.mount.source, staged.mount.mountpoint) = ("/dev/rbd0".into(), path.into());
    let data = VolumeData { driver: "rbd.csi.ceph.com".into(), handle: "0001-0009-rook-ceph".into() };
    staged.original.as_mut().unwrap().volume_data = Some(data.clone());
    let incident = &with_staged(staged.clone()).open()[0];
    let words = format!(
        "still has staged volume 0001-0009-rook-ceph (rbd.csi.ceph.com) mounted at {path}, though the host has unmounted \
         it; its device /dev/rbd0 (251:0) stays in use"
    );
    assert!(incident.summary.ends_with(&words), "{}", incident.summary);
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    // What another driver has written there is none of it.
    let other = VolumeData { driver: "x".into(), ..data };
    staged.original.as_mut().unwrap().volume_data = Some(other);
    let incident = &with_staged(staged).open()[0];
    assert!(incident.summary.contains("still has a staged volume of rbd.csi.ceph.com mounted at "));
}
