//! Volumes that a kubelet has staged on the node, for all pods that use them.

use super::*;

const STAGED: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi/rbd.csi.ceph.com/0a1b2c3d/globalmount";

/// The event of an unmount there that was refused, by a scan that found this.
fn refused(path: &str, data: Option<VolumeData>) -> Event {
    let mut core = settled();
    let host =
        KubeletNamespace { mntns: 2, roots: vec!["/var/lib/kubelet".into()], of_kubelet: false, pid: None };
    core.observe(at(1, Fact::Kubelet(KubeletFacts { namespaces: vec![host] })));
    let Fact::Umount(attempt) = attempt(Some(16)) else { unreachable!() };
    core.observe(at(10, Fact::Umount(Box::new(UmountAttempt { path: path.into(), ..*attempt }))));
    let Fact::Holders(found) = report(1) else { unreachable!() };
    let mount = found.mount.map(|mount| MountFacts { mountpoint: path.into(), ..mount });
    let volume_data = data.map(Box::new);
    core.observe(at(
        11,
        Fact::Holders(Box::new(HolderReport { path: path.into(), mount, volume_data, ..*found })),
    ));
    let mut emitted = take(&mut core).0;
    emitted.retain(|event| event.kind == Kind::MountBusy);
    emitted.remove(0)
}

fn data(driver: &str) -> Option<VolumeData> {
    Some(VolumeData { driver: driver.into(), handle: "0001-0009-rook-ceph".into() })
}

#[test]
fn a_staged_volume_is_named_by_what_its_kubelet_has_written_of_it() {
    let busy = refused(STAGED, data("rbd.csi.ceph.com"));
    let words =
        format!("umount of staged volume 0001-0009-rook-ceph (rbd.csi.ceph.com) at {STAGED} by umount");
    assert!(busy.message.starts_with(&words), "{}", busy.message);
    let staged = busy.mount.unwrap().staged.unwrap();
    assert_eq!((staged.plugin.as_str(), staged.name), ("rbd.csi.ceph.com", None));
    assert_eq!(staged.handle.as_deref(), Some("0001-0009-rook-ceph"));
}

#[test]
fn without_that_it_is_named_by_its_directory_as_far_as_that_tells() {
    for data in [None, data("another.csi.driver")] {
        let busy = refused(STAGED, data);
        let words = format!("umount of a staged volume of rbd.csi.ceph.com at {STAGED} by umount");
        assert!(busy.message.starts_with(&words), "{}", busy.message);
        assert_eq!(busy.mount.unwrap().staged.unwrap().handle, None);
    }
    let by_name = "/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-1/globalmount";
    let busy = refused(by_name, None);
    let words = format!("umount of staged volume pvc-1 (kubernetes.io/csi) at {by_name} by umount");
    assert!(busy.message.starts_with(&words), "{}", busy.message);
    let elsewhere = STAGED.replace("/var/lib", "/home/user");
    let busy = refused(&elsewhere, None);
    assert!(busy.message.starts_with(&format!("umount of {elsewhere} by umount")), "{}", busy.message);
}
