//! Parses the pod volume from a path below the kubelet's root directory.
//!
//! Layouts (pkg/kubelet/kubelet_getters.go): `ROOT/pods/UID/volumes/PLUGIN/NAME`,
//! `…/volumeDevices/PLUGIN/NAME`, `…/volume-subpaths/NAME/CONTAINER/INDEX`, each with anything after it (CSI
//! adds `/mount`); `ROOT/plugins/kubernetes.io/csi/volumeDevices/publish/NAME/UID` of block volumes
//! (pkg/volume/csi/csi_block.go). ROOT can be any directory: which ones are a kubelet's is not known here, nor
//! whether the pod exists.

use crate::{StagedVolume, Volume};

/// Plugin name of a sub-path mount, whose path does not contain it.
pub const SUBPATH: &str = "subpath";
/// Plugins of `kubernetes.io` that stage a volume in directories of its zone or datastore.
const DEEP: [&str; 2] = ["aws-ebs", "vsphere-volume"];
/// Plugin name of CSI volumes.
const CSI: &str = "kubernetes.io/csi";

/// Parses the pod volume from an absolute path, whatever directory it is below: a claim of whoever made that path.
pub fn of_path(path: &str) -> Option<Volume> {
    parts(path).map(|(_, volume)| volume)
}

/// The directory that would be a kubelet's root directory if this absolute path were that of a pod volume.
pub fn root_of(path: &str) -> Option<&str> {
    parts(path).map(|(root, _)| root)
}

fn parts(path: &str) -> Option<(&str, Volume)> {
    // The root directory may contain a component of that name, too.
    path.match_indices("/pods/").find_map(|(at, marker)| {
        let volume = below_pods(names(&path[at + marker.len()..]))?;
        Some((&path[..at], volume))
    })
}

/// Parses the pod volume from an absolute path below this root directory of a kubelet.
pub fn below(root: &str, path: &str) -> Option<Volume> {
    let mut parts = names_below(root, path)?;
    match parts.next()? {
        "pods" => below_pods(parts),
        "plugins" => below_plugins(parts),
        _ => None,
    }
}

/// Where a block volume is published for a pod. What is staged on the node is for all pods that use it, and no pod's.
fn below_plugins<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<Volume> {
    const PUBLISHED: [&str; 4] = ["kubernetes.io", "csi", "volumeDevices", "publish"];
    if !PUBLISHED.into_iter().all(|name| parts.next() == Some(name)) {
        return None;
    }
    let (name, pod_uid) = (parts.next()?, parts.next().filter(|part| is_uid(part))?);
    Some(Volume { pod_uid: pod_uid.to_owned(), plugin: CSI.to_owned(), name: name.to_owned() })
}

/// The volume that would be staged at an absolute path below this root directory of a kubelet, as its path tells it:
/// `plugins/kubernetes.io/csi/DRIVER/HASH/globalmount`, before 1.24 `…/csi/pv/NAME/globalmount` (pkg/volume/csi/csi_attacher.go);
/// `plugins/PLUGIN/mounts/NAME` of other plugins, `…/rbd/rbd/NAME` before 1.9, `…/iscsi/iface-INTERFACE/NAME`, `…/fc/NAME`. PLUGIN has
/// more than two names for FlexVolume, and there are directories above NAME for some.
pub fn staged_below(root: &str, path: &str) -> Option<StagedVolume> {
    let mut parts = names_below(root, path)?;
    let below: Vec<&str> = parts.next().filter(|name| *name == "plugins").map(|_| parts.collect())?;
    let of = |plugin: String, name: Option<&str>| {
        Some(StagedVolume { plugin, name: name.map(str::to_owned), handle: None })
    };
    match below[..] {
        ["kubernetes.io", "csi", "pv", name, "globalmount"] => of(CSI.to_owned(), Some(name)),
        ["kubernetes.io", "csi", driver, _, "globalmount"] => of(driver.to_owned(), None),
        ["kubernetes.io", "rbd", "rbd", name] => of("kubernetes.io/rbd".to_owned(), Some(name)),
        ["kubernetes.io", "fc", name] => of("kubernetes.io/fc".to_owned(), Some(name)),
        ["kubernetes.io", "iscsi", interface, name] if interface.starts_with("iface-") => {
            of("kubernetes.io/iscsi".to_owned(), Some(name))
        }
        [_, _, .., name] => {
            let mounts = below.iter().position(|part| *part == "mounts").filter(|mounts| *mounts >= 2)?;
            let is_one = mounts + 2 == below.len() || DEEP.contains(&below[1]) && mounts + 2 < below.len();
            is_one.then(|| of(below[..mounts].join("/"), Some(name)))?
        }
        _ => None,
    }
}

/// The names of an absolute path below a directory.
fn names_below<'a>(directory: &str, path: &'a str) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
    let mut parts = names(path);
    // What is above such a component is not known without looking.
    let is_known = path.starts_with('/') && !parts.clone().any(|part| matches!(part, "." | ".."));
    (is_known && names(directory).all(|name| parts.next() == Some(name))).then_some(parts)
}

fn names(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|part| !part.is_empty())
}

fn below_pods<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<Volume> {
    let pod_uid = parts.next().filter(|part| is_uid(part))?.to_owned();
    let (plugin, name) = match parts.next()? {
        "volumes" | "volumeDevices" => (parts.next()?.replace('~', "/"), parts.next()?),
        "volume-subpaths" => (SUBPATH.to_owned(), parts.next()?),
        _ => return None,
    };
    Some(Volume { pod_uid, plugin, name: name.to_owned() })
}

/// Whether it is a UUID, or the 32 hex digits of a static pod: the name of a pod's directory.
pub fn is_uid(text: &str) -> bool {
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    matches!(groups[..], [8, 4, 4, 4, 12] | [32])
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";

    fn volume(pod_uid: &str, plugin: &str, name: &str) -> Option<Volume> {
        Some(Volume { pod_uid: pod_uid.to_owned(), plugin: plugin.to_owned(), name: name.to_owned() })
    }

    #[test]
    fn a_volume_is_named_with_the_slash_of_its_plugin() {
        let path = format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~glusterfs/cam-pv-50g");
        assert_eq!(of_path(&path), volume(UID, "kubernetes.io/glusterfs", "cam-pv-50g"));
    }

    #[test]
    fn a_csi_mount_is_its_volume() {
        let path = format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(of_path(&path), volume(UID, "kubernetes.io/csi", "pvc-1"));
    }

    #[test]
    fn the_root_directory_may_be_any() {
        for root in ["", "/data/pods/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/pods/x"] {
            let path = format!("{root}/pods/{UID}/volumes/kubernetes.io~secret/token//");
            assert_eq!(of_path(&path), volume(UID, "kubernetes.io/secret", "token"), "{path}");
        }
    }

    #[test]
    fn a_path_is_below_a_root_by_whole_names() {
        let of = |root: &str, path: &str| below(root, &format!("{path}/pods/{UID}/volumes/a~b/c"));
        assert_eq!(of("/var/lib/kubelet", "/var/lib/kubelet"), volume(UID, "a/b", "c"));
        assert_eq!(of("/var/lib/kubelet/", "//var/lib//kubelet"), volume(UID, "a/b", "c"));
        for path in ["/var/lib/kubelet/pods", "/var/lib", "/x/var/lib/kubelet", "var/lib/kubelet", ""] {
            assert_eq!(of("/var/lib/kubelet", path), None, "{path}");
        }
        let escape = format!("/k/pods/{UID}/volumes/a~b/c/../../../../../home/m");
        assert_eq!(below("/k", &escape), None);
    }

    #[test]
    fn a_static_pod_has_a_uid_without_dashes() {
        let uid = "0123456789abcdef0123456789abcdef";
        let path = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~host-path/etc");
        assert_eq!(of_path(&path), volume(uid, "kubernetes.io/host-path", "etc"));
    }

    #[test]
    fn a_subpath_mount_is_the_volume_that_contains_it() {
        let path = format!("/var/lib/kubelet/pods/{UID}/volume-subpaths/cam-pv-50g/web/0");
        assert_eq!(of_path(&path), volume(UID, SUBPATH, "cam-pv-50g"));
    }

    #[test]
    fn a_block_volume_is_a_volume() {
        let path = format!("/var/lib/kubelet/pods/{UID}/volumeDevices/kubernetes.io~csi/pvc-2");
        assert_eq!(of_path(&path), volume(UID, "kubernetes.io/csi", "pvc-2"));
    }

    #[test]
    fn a_block_volume_is_published_for_a_pod_and_staged_for_all() {
        let csi = "/var/lib/kubelet/plugins/kubernetes.io/csi";
        let of = |path: &str| below("/var/lib/kubelet", &format!("{csi}/{path}"));
        let published = of(&format!("volumeDevices/publish/pvc-2/{UID}"));
        assert_eq!(published, volume(UID, "kubernetes.io/csi", "pvc-2"));
        for path in [
            "volumeDevices/publish/pvc-2".to_owned(),
            "volumeDevices/publish/pvc-2/x".to_owned(),
            format!("volumeDevices/staging/pvc-2/{UID}"),
            "driver/0123/globalmount".to_owned(),
        ] {
            assert_eq!(of(&path), None, "{path}");
        }
    }

    #[test]
    fn a_staged_volume_is_named_by_its_directory() {
        let of = |path: &str| {
            let found = staged_below("/var/lib/kubelet", &format!("/var/lib/kubelet/plugins/{path}"));
            found.map(|staged| (staged.plugin, staged.name))
        };
        let named = |plugin: &str, name: &str| Some((plugin.to_owned(), Some(name.to_owned())));
        assert_eq!(of("kubernetes.io/csi/pv/pvc-1/globalmount"), named("kubernetes.io/csi", "pvc-1"));
        let hashed = of("kubernetes.io/csi/rbd.csi.ceph.com/0a1b/globalmount");
        assert_eq!(hashed, Some(("rbd.csi.ceph.com".to_owned(), None)));
        assert_eq!(of("kubernetes.io/rbd/mounts/kube-image-a"), named("kubernetes.io/rbd", "kube-image-a"));
        assert_eq!(of("kubernetes.io/rbd/rbd/kube-image-a"), named("kubernetes.io/rbd", "kube-image-a"));
        let of_zone = of("kubernetes.io/aws-ebs/mounts/aws/us-west-2b/vol-1");
        assert_eq!(of_zone, named("kubernetes.io/aws-ebs", "vol-1"));
        let flex = of("kubernetes.io/flexvolume/example/cifs/mounts/share");
        assert_eq!(flex, named("kubernetes.io/flexvolume/example/cifs", "share"));
        let iscsi = of("kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.2026-01.x:a-lun-0");
        assert_eq!(iscsi, named("kubernetes.io/iscsi", "10.0.0.1:3260-iqn.2026-01.x:a-lun-0"));
        assert_eq!(of("kubernetes.io/fc/50060e80-lun-0"), named("kubernetes.io/fc", "50060e80-lun-0"));
        for other in [
            "kubernetes.io/csi/rbd/0a1b",
            "kubernetes.io/mounts/a",
            "kubernetes.io/rbd/mounts",
            "kubernetes.io/csi/pv/../../../../../etc/globalmount",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(staged_below("/k", "/x/plugins/kubernetes.io/csi/pv/pvc-1/globalmount"), None);
    }

    #[test]
    fn other_paths_are_no_volume() {
        for path in [
            "",
            "/pods/",
            "/var/lib/kubelet/pods/nginx/volumes/kubernetes.io~secret/token",
            "/var/lib/kubelet/pods/5c948341-c030-4996-b888/volumes/a/b",
            "/var/lib/docker/overlay2/abc/merged",
        ] {
            assert_eq!(of_path(path), None, "{path}");
        }
        assert_eq!(of_path(&format!("/k/pods/{UID}")), None);
        assert_eq!(of_path(&format!("/k/pods/{UID}/volumes/kubernetes.io~secret")), None);
        assert_eq!(of_path(&format!("/k/pods/{UID}/etc-hosts")), None);
    }
}
