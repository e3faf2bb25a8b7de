//! Bundles of the runtimes behind the CRI: the specification that an OCI runtime is given, with what the CRI's plug-in
//! notes in it about the pod, and the id of the process.
//!
//! containerd: `io.containerd.runtime.v2.task/k8s.io/ID/` (pkg/cri/annotations), and before 2.0 `io.containerd.runtime.v1.linux`
//! instead for those whose shim is of that version. CRI-O: `overlay-containers/ID/userdata/` (internal/annotations).

use std::collections::HashMap;
use std::path::Path;

use kevtmon_observation::{ContainerFacts, ContainerState, PodIdentity, PodProof};
use serde::Deserialize;

use super::{ENTRIES_MAX, Entry, Found, Written, file_of_root, in_directories};
use crate::kubelet::below;
use crate::runtime::{is_container_id, kubelet};

/// Where containerd's shims have their bundles, by their version, below its state directory.
const TASKS: &[&str] = &["io.containerd.runtime.v2.task/k8s.io", "io.containerd.runtime.v1.linux/k8s.io"];

/// What the kubelet calls the container of a sandbox.
const SANDBOX: &str = "POD";

/// The names under which a runtime notes what a container is.
struct Annotations {
    kind: &'static str,
    sandbox_id: &'static str,
    namespace: &'static str,
    name: &'static str,
    uid: &'static str,
    container: &'static str,
    image: &'static str,
}

const CONTAINERD: Annotations = Annotations {
    kind: "io.kubernetes.cri.container-type",
    sandbox_id: "io.kubernetes.cri.sandbox-id",
    namespace: "io.kubernetes.cri.sandbox-namespace",
    name: "io.kubernetes.cri.sandbox-name",
    uid: "io.kubernetes.cri.sandbox-uid",
    container: "io.kubernetes.cri.container-name",
    image: "io.kubernetes.cri.image-name",
};

const CRIO: Annotations = Annotations {
    kind: "io.kubernetes.cri-o.ContainerType",
    sandbox_id: "io.kubernetes.cri-o.SandboxID",
    namespace: "io.kubernetes.pod.namespace",
    name: "io.kubernetes.pod.name",
    uid: "io.kubernetes.pod.uid",
    container: "io.kubernetes.container.name",
    image: "io.kubernetes.cri-o.ImageName",
};

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    annotations: HashMap<String, String>,
}

pub(super) fn read_containerd(root: &Path, state: &Path) -> Option<Found> {
    let read = |id: &str, bundle: &Path| container(id, bundle, "init.pid", &CONTAINERD);
    let all = TASKS.iter().filter_map(|tasks| {
        let directory = state.join(tasks);
        let found = in_directories(&below(root, directory.to_str()?), ENTRIES_MAX, read)?;
        Some(Found { runtime: "containerd".to_owned(), directory, complete: false, ..found })
    });
    all.reduce(|mut one, other| {
        if one.containers.is_empty() {
            one.directory = other.directory;
        }
        one.containers.extend(other.containers);
        one.unread.extend(other.unread);
        one
    })
}

pub(super) fn read_crio(root: &Path, run_root: &Path) -> Option<Found> {
    let directory = run_root.join("overlay-containers");
    let read = |id: &str, bundle: &Path| container(id, &bundle.join("userdata"), "pidfile", &CRIO);
    let found = in_directories(&below(root, directory.to_str()?), ENTRIES_MAX, read)?;
    Some(Found { runtime: "crio".to_owned(), directory, complete: false, ..found })
}

fn container(id: &str, bundle: &Path, pid_file: &str, names: &Annotations) -> Entry {
    let spec = file_of_root(&bundle.join("config.json"))
        .and_then(|(text, _)| serde_json::from_slice::<Spec>(&text).ok());
    let Some(Spec { mut annotations }) = spec else { return Entry::Unread };
    // Podman has its containers beside CRI-O's, and clients of containerd may use the CRI's namespace.
    let sandbox = match annotations.remove(names.kind).as_deref() {
        Some("sandbox") => true,
        Some("container") => false,
        _ => return Entry::Other,
    };
    let process = file_of_root(&bundle.join(pid_file));
    let tgid = process.as_ref().and_then(|(pid, _)| std::str::from_utf8(pid).ok()?.trim().parse().ok());
    let mut note = |name: &str| annotations.remove(name).filter(|value| kubelet::is_name(value));
    let sandbox_id = if sandbox { Some(id.to_owned()) } else { note(names.sandbox_id) };
    let container_name = if sandbox { Some(SANDBOX.to_owned()) } else { note(names.container) };
    let identity = note(names.namespace).zip(note(names.name)).zip(note(names.uid));
    let pod = identity.map(|((namespace, name), uid)| PodIdentity {
        namespace,
        name,
        uid,
        sandbox_id: sandbox_id.filter(|id| is_container_id(id)),
        container_name: container_name.clone(),
        // What a pod asks to be passed on may be noted there too.
        proof: PodProof::Claimed,
        labels: None,
    });
    let facts = ContainerFacts {
        id: id.to_owned(),
        name: container_name.unwrap_or_default(),
        image: note(names.image).unwrap_or_default(),
        // A bundle without a process is being made, or removed.
        state: if tgid.is_some() { ContainerState::Running } else { ContainerState::Unknown },
        tgid,
        pod,
        sandbox,
        joined_netns: !sandbox,
        ..ContainerFacts::default()
    };
    Entry::Container(Box::new(Written { facts, since: process.map(|(_, written)| written) }))
}
