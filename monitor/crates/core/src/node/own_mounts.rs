//! Which paths are a container's: those that its runtime mounts for it alone, as the runtime itself tells.
//!
//! Of a root file system and a network namespace the runtime tells the path. Below the directory in which it has its
//! containers, the name of a directory is the id of one (`container.Root` in moby, bundles and sandboxes of containerd,
//! `overlay-containers` of containers/storage). The text of a path proves nothing by itself: whether it was given in a
//! mount namespace in which only root of the node mounts, the caller knows.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kevtmon_observation::ContainerFacts;
use kevtmon_observation::own_mounts::is_plain;
use serde::{Deserialize, Serialize};

use super::containers::Containers;

/// Directories of one source; each runtime has a few.
const DIRECTORIES_MAX: usize = 8;

/// What is above the directory of a container, below a directory of its runtime; `*` stands for any name.
const LAYOUTS: [&[&str]; 7] = [
    &["containers"],
    // Docker with images in containerd.
    &["rootfs", "*"],
    &["io.containerd.runtime.v2.task", "*"],
    &["io.containerd.runtime.v1.linux", "*"],
    &["io.containerd.grpc.v1.cri", "sandboxes"],
    // Images as volumes, since 2.1: of the sandbox.
    &["io.containerd.grpc.v1.cri", "image-volumes"],
    &["overlay-containers"],
];

/// Where runtimes have what is of their containers, by source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuntimeDirectories {
    by_source: BTreeMap<String, Vec<String>>,
}

impl RuntimeDirectories {
    /// Replaces what a source told before.
    pub fn put(&mut self, source: String, mut directories: Vec<String>) {
        directories.truncate(DIRECTORIES_MAX);
        self.by_source.insert(source, directories);
    }

    pub fn owner<'c>(&self, containers: &'c Containers, path: &str) -> Option<&'c ContainerFacts> {
        if !is_plain(path) {
            return None;
        }
        let path = run(path);
        // What a container has in its root file system may have any name.
        let by_mount = || containers.all().find(|facts| is_mounted_at(facts, &path));
        let mut directories = self.by_source.values().flatten();
        let by_id = directories.find_map(|directory| containers.get(id_below(directory, &path)?));
        by_id.or_else(by_mount)
    }

    /// The id of the container whose directory a path leads to or through, whether anything else is known of it or not.
    pub fn id_at(&self, path: &str) -> Option<String> {
        if !is_plain(path) {
            return None;
        }
        let path = run(path);
        self.by_source.values().flatten().find_map(|directory| id_below(directory, &path)).map(str::to_owned)
    }

    /// Whether a path is below a directory of a runtime, which belongs to root of the node.
    pub fn contains(&self, path: &str) -> bool {
        let path = run(path);
        is_plain(&path) && self.by_source.values().flatten().any(|directory| is_below(&path, &run(directory)))
    }
}

/// The same path without the link that /var/run is.
fn run(path: &str) -> Cow<'_, str> {
    match path.strip_prefix("/var/run/") {
        Some(below) => format!("/run/{below}").into(),
        None => path.into(),
    }
}

fn is_mounted_at(facts: &ContainerFacts, path: &str) -> bool {
    let rootfs = facts.own_mounts.rootfs.as_deref();
    // The directory of a layer goes with it: `overlay2/LAYER/merged`.
    let layer = rootfs.and_then(|rootfs| rootfs.strip_suffix("/merged"));
    let netns = facts.own_mounts.netns.as_deref();
    netns.is_some_and(|netns| run(netns) == path)
        || rootfs.is_some_and(|rootfs| is_below(path, rootfs))
        || layer.is_some_and(|layer| is_below(path, layer))
}

/// Whether a path is this directory, or below it.
fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// The name of the directory of a container that a path leads to or through.
fn id_below<'p>(directory: &str, path: &'p str) -> Option<&'p str> {
    let below = path.strip_prefix(&*run(directory))?.strip_prefix('/')?;
    LAYOUTS.iter().find_map(|layout| {
        let mut names = below.split('/');
        let fits =
            layout.iter().all(|above| names.next().is_some_and(|name| *above == "*" || *above == name));
        names.next().filter(|_| fits)
    })
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::OwnMounts;
    use kevtmon_testing::facts::container;

    use super::*;

    const ID: &str = "593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37aaaa";
    const OTHER: &str = "6c93d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37bbb";

    fn owner(path: &str) -> Option<String> {
        let mut containers = Containers::default();
        let own_mounts = OwnMounts {
            rootfs: Some("/data/docker/overlay2/353abb/merged".into()),
            netns: Some("/var/run/docker/netns/d1ec8a063318".into()),
        };
        containers.put(1, ContainerFacts { own_mounts, ..container(ID) });
        containers.put(1, container(OTHER));
        let mut directories = RuntimeDirectories::default();
        directories.put("docker:/run/docker.sock".into(), vec!["/data/docker".into()]);
        directories.put("cri:/c".into(), vec!["/run/containerd".into()]);
        directories.put("cri:/o".into(), vec!["/var/lib/containers/storage".into()]);
        directories.owner(&containers, path).map(|facts| facts.id.clone())
    }

    #[test]
    fn what_a_runtime_mounts_for_a_container_is_its() {
        for path in [
            format!("/data/docker/containers/{ID}"),
            format!("/data/docker/containers/{ID}/mounts/shm"),
            format!("/data/docker/rootfs/overlayfs/{ID}"),
            "/data/docker/overlay2/353abb/merged".into(),
            "/data/docker/overlay2/353abb".into(),
            "/run/docker/netns/d1ec8a063318".into(),
            "/var/run/docker/netns/d1ec8a063318".into(),
            format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/rootfs"),
            format!("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/shm"),
            format!("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/pinned-namespaces/user"),
            format!("/run/containerd/io.containerd.grpc.v1.cri/image-volumes/{ID}/{OTHER}"),
            format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/shm"),
        ] {
            assert_eq!(owner(&path).as_deref(), Some(ID), "{path}");
        }
    }

    #[test]
    fn the_text_of_a_path_that_no_runtime_tells_is_nobodys() {
        for path in [
            format!("/tmp/x/containers/{ID}/mounts/shm"),
            format!("/data/docker2/containers/{ID}/shm"),
            format!("/data/docker/volumes/containers/{ID}"),
            format!("/data/docker/containers/{}/shm", "f".repeat(64)),
            format!("/data/docker/containers/../containers/{ID}"),
            format!("data/docker/containers/{ID}"),
            "/data/docker/overlay2/353abbc/merged".into(),
            "/data/docker/overlay2".into(),
            "/run/docker/netns".into(),
            "/".into(),
            String::new(),
        ] {
            assert_eq!(owner(&path), None, "{path}");
        }
    }

    #[test]
    fn the_directories_of_a_runtime_tell_of_containers_that_are_not_known() {
        let mut directories = RuntimeDirectories::default();
        directories.put("docker".into(), vec!["/data/docker".into()]);
        let shm = |above: &str| directories.id_at(&format!("{above}/containers/{OTHER}/mounts/shm"));
        assert_eq!(shm("/data/docker").as_deref(), Some(OTHER));
        assert_eq!(shm("/home/u"), None);
        assert_eq!(shm("/data/docker/../docker"), None);
        assert!(directories.contains("/data/docker/overlay2/x/merged"));
        assert!(!directories.contains("/data/docker2/overlay2/x/merged"));
        assert!(!directories.contains("/data/docker/../x"));
    }

    #[test]
    fn names_in_the_root_file_system_of_a_container_name_no_other() {
        let path = format!("/data/docker/overlay2/353abb/merged/containers/{OTHER}");
        assert_eq!(owner(&path).as_deref(), Some(ID));
    }
}
