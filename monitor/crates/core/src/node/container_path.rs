//! Which paths of the host are where runtimes mount what a container has: its root directory, its shared memory.
//!
//! Docker: `overlay2/LAYER/merged`, `containers/ID/mounts/shm`, `rootfs/SNAPSHOTTER/ID`; containerd:
//! `io.containerd.runtime.v2.task/NAMESPACE/ID/rootfs`, `io.containerd.grpc.v1.cri/sandboxes/ID/shm`,
//! `io.containerd.grpc.v1.cri/image-volumes/ID/DIGEST`; CRI-O and Podman: `overlay/LAYER/merged`,
//! `overlay-containers/ID/userdata/shm`. Below which directory is not looked at: whether a path is a runtime's,
//! the caller must know.

use kevtmon_event::ContainerPart;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerMount {
    pub part: ContainerPart,
    /// The container, where the path tells it: the layers of Docker and CRI-O have ids of their own.
    pub id: Option<String>,
}

/// Directories of layers that are mounted, and the name below the layer.
const LAYERS: [(&str, &str); 4] =
    [("overlay2", "merged"), ("overlay", "merged"), ("devicemapper/mnt", ""), ("aufs/mnt", "")];
const ID_DIGITS: usize = 64;

/// The mount of a container that would be at this path.
pub fn of_path(path: &str) -> Option<ContainerMount> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let index = parts.iter().rposition(|part| is_id(part))?;
    let (above, id, below) = (&parts[..index], parts[index], &parts[index + 1..]);
    let of = |part, id: Option<&str>| Some(ContainerMount { part, id: id.map(str::to_owned) });
    let parent = above.last().copied().unwrap_or_default();
    let grandparent = above.len().checked_sub(2).map(|index| above[index]).unwrap_or_default();
    let is_layer = |(directory, name): &(&str, &str)| {
        let above = above.join("/");
        let is_above = above == *directory || above.ends_with(&format!("/{directory}"));
        is_above && (below == [*name] || name.is_empty() && below.len() <= 1)
    };
    match below {
        ["rootfs"] if grandparent.starts_with("io.containerd.runtime.") => of(ContainerPart::Root, Some(id)),
        [] if grandparent == "rootfs" => of(ContainerPart::Root, Some(id)),
        // The last name is that of an image.
        [] if grandparent == "image-volumes" && is_id(parent) => of(ContainerPart::Other, Some(parent)),
        [.., "shm"] if matches!(parent, "containers" | "sandboxes" | "overlay-containers") => {
            of(ContainerPart::Shm, Some(id))
        }
        [_, ..] if matches!(parent, "containers" | "sandboxes" | "overlay-containers") => {
            of(ContainerPart::Other, Some(id))
        }
        _ if LAYERS.iter().any(is_layer) => of(ContainerPart::Root, None),
        _ => None,
    }
}

fn is_id(part: &str) -> bool {
    // Docker calls layers that it makes for the start of a container ID-init.
    part.len() == ID_DIGITS && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use ContainerPart::{Other, Root, Shm};

    use super::*;

    #[test]
    fn the_mounts_of_containers_are_told_by_their_paths() {
        let id = "ab".repeat(32);
        let known = |path: &str| of_path(&path.replace("ID", &id)).map(|it| (it.part, it.id.is_some()));
        for (path, expected) in [
            ("/var/lib/docker/overlay2/ID/merged", Some((Root, false))),
            ("/var/lib/docker/devicemapper/mnt/ID", Some((Root, false))),
            ("/var/lib/docker/containers/ID/mounts/shm", Some((Shm, true))),
            ("/var/lib/docker/containers/ID/shm", Some((Shm, true))),
            ("/var/lib/docker/containers/ID/mounts/secrets", Some((Other, true))),
            ("/var/lib/docker/rootfs/overlayfs/ID", Some((Root, true))),
            ("/run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/rootfs", Some((Root, true))),
            ("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/ID/shm", Some((Shm, true))),
            (
                "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/ID/pinned-namespaces/user",
                Some((Other, true)),
            ),
            ("/var/lib/containers/storage/overlay/ID/merged", Some((Root, false))),
            ("/var/lib/containers/storage/overlay-containers/ID/userdata/shm", Some((Shm, true))),
            ("/var/lib/docker/overlay2/ID/diff", None),
            ("/var/lib/docker/volumes/ID/_data", None),
            ("/home/ID/merged", None),
            ("/var/lib/kubelet", None),
        ] {
            assert_eq!(known(path), expected, "{path}");
        }
        let image = "cd".repeat(32);
        let volume = format!("/run/containerd/io.containerd.grpc.v1.cri/image-volumes/{id}/{image}");
        assert_eq!(of_path(&volume), Some(ContainerMount { part: Other, id: Some(id) }));
    }
}
