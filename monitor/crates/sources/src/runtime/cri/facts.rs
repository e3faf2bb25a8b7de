//! Containers and sandboxes of the CRI as facts.
//!
//! The pod is what the runtime keeps of the request that made the sandbox, which only root can send, and not what labels
//! tell. Where the runtime is Docker behind an adapter, that is read from names and labels of Docker's containers again,
//! which whoever makes them chooses: a claim.

use std::net::IpAddr;

use kevtmon_observation::own_mounts;
use kevtmon_observation::{
    ContainerExit, ContainerFacts, ContainerState, Incarnation, OwnMounts, PodIdentity, PodProof,
};
use serde::Deserialize;

use super::api;
use crate::kubelet::PodLabels;
use crate::runtime::client::Inspection;
use crate::runtime::{is_container_id, kubelet};

/// What the kubelet calls the container of a sandbox.
const SANDBOX: &str = "POD";

/// The reason of a container that the kernel ended for want of memory.
const OOM_KILLED: &str = "OOMKilled";

/// A sandbox, from a list; `None` without a proper id.
pub(super) fn sandbox(
    sandbox: api::PodSandbox,
    proof: PodProof,
    wanted: &PodLabels,
) -> Option<ContainerFacts> {
    if !is_container_id(&sandbox.id) {
        return None;
    }
    let attempt = sandbox.metadata.as_ref().map(|pod| pod.attempt);
    let incarnation =
        Incarnation { attempt, created_s: seconds(sandbox.created_at), ..Incarnation::default() };
    let labels = wanted.of(&sandbox.labels);
    let pod = sandbox.metadata.and_then(|pod| identity(pod, &sandbox.id, Some(SANDBOX.to_owned()), proof));
    let pod = pod.map(|pod| PodIdentity { labels, ..pod });
    Some(ContainerFacts {
        name: SANDBOX.to_owned(),
        state: sandbox_state(sandbox.state),
        pod,
        incarnation,
        sandbox: true,
        ..unnamed(sandbox.id)
    })
}

/// A container, from a list. `sandbox`: its sandbox, if that is there.
pub(super) fn container(
    container: api::Container,
    sandbox: Option<&ContainerFacts>,
) -> Option<ContainerFacts> {
    if !is_container_id(&container.id) {
        return None;
    }
    let incarnation = Incarnation {
        attempt: container.metadata.as_ref().map(|metadata| metadata.attempt),
        spec_hash: kubelet::spec_hash(&container.annotations),
        image_id: Some(container.image_ref).filter(|id| kubelet::is_name(id)),
        created_s: seconds(container.created_at),
        error: None,
    };
    let name = container.metadata.map(|metadata| metadata.name).unwrap_or_default();
    let pod = match sandbox {
        Some(sandbox) => sandbox.pod.clone().map(|pod| PodIdentity {
            container_name: Some(name.clone()).filter(|name| kubelet::is_name(name)),
            // Its sandbox has them.
            labels: None,
            ..pod
        }),
        None => {
            let of = Some(container.pod_sandbox_id.as_str());
            kubelet::pod_member(&container.id, &name, &container.labels, of, &PodLabels::default())
                .map(|member| member.pod)
        }
    };
    Some(ContainerFacts {
        name,
        image: container.image.map(|image| image.image).unwrap_or_default(),
        state: state(container.state),
        pod,
        incarnation,
        joined_netns: true,
        ..unnamed(container.id)
    })
}

/// Adds what the status of a container has beyond the list.
pub(super) fn with_status(facts: ContainerFacts, answer: api::ContainerStatusResponse) -> Inspection {
    let status = answer.status.unwrap_or_default();
    let image = status.image.map(|image| image.image).filter(|image| !image.is_empty());
    let state = state(status.state);
    let since = match state {
        ContainerState::Running => status.started_at,
        ContainerState::Exited => status.finished_at,
        _ => 0,
    };
    let facts = ContainerFacts {
        image: image.unwrap_or(facts.image),
        tgid: pid(&answer.info).filter(|_| state == ContainerState::Running),
        own_mounts: OwnMounts { netns: None, ..own_mounts(&answer.info) },
        started_ns: None,
        state,
        exit: (state == ContainerState::Exited).then(|| ContainerExit {
            code: Some(status.exit_code),
            oom_killed: Some(status.reason == OOM_KILLED),
        }),
        ..facts
    };
    Inspection { facts, since: Some(since).filter(|since| *since > 0) }
}

/// Adds what the status of a sandbox has beyond the list.
pub(super) fn with_sandbox_status(
    facts: ContainerFacts,
    answer: api::PodSandboxStatusResponse,
) -> Inspection {
    let status = answer.status.unwrap_or_default();
    let state = sandbox_state(status.state);
    let network = status.network.unwrap_or_default();
    let all = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|other| other.ip));
    let mut addresses: Vec<IpAddr> = all.filter_map(|address| address.parse().ok()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let tgid = pid(&answer.info).filter(|_| state == ContainerState::Running);
    let own_mounts = own_mounts(&answer.info);
    Inspection { facts: ContainerFacts { tgid, state, addresses, own_mounts, ..facts }, since: None }
}

/// Whole seconds of a time on the wall clock; 0 is none.
fn seconds(ns: i64) -> Option<i64> {
    Some(ns / 1_000_000_000).filter(|seconds| *seconds > 0)
}

fn unnamed(id: String) -> ContainerFacts {
    ContainerFacts { id, state: ContainerState::Unknown, ..ContainerFacts::default() }
}

fn identity(
    pod: api::PodSandboxMetadata,
    sandbox: &str,
    container_name: Option<String>,
    proof: PodProof,
) -> Option<PodIdentity> {
    let is_pod = [&pod.namespace, &pod.name, &pod.uid].into_iter().all(|name| kubelet::is_name(name));
    is_pod.then(|| PodIdentity {
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
        sandbox_id: Some(sandbox.to_owned()),
        container_name,
        proof,
        labels: None,
    })
}

fn state(state: i32) -> ContainerState {
    match api::ContainerState::try_from(state) {
        Ok(api::ContainerState::Created) => ContainerState::Created,
        Ok(api::ContainerState::Running) => ContainerState::Running,
        Ok(api::ContainerState::Exited) => ContainerState::Exited,
        Ok(api::ContainerState::Unknown) | Err(_) => ContainerState::Unknown,
    }
}

fn sandbox_state(state: i32) -> ContainerState {
    match api::SandboxState::try_from(state) {
        Ok(api::SandboxState::Ready) => ContainerState::Running,
        Ok(api::SandboxState::NotReady) => ContainerState::Exited,
        Err(_) => ContainerState::Unknown,
    }
}

/// The part that is read of what a runtime adds for debugging, as containerd and CRI-O write it.
#[derive(Deserialize)]
struct Info {
    pid: Option<u32>,
}

fn pid(info: &std::collections::HashMap<String, String>) -> Option<u32> {
    let info: Info = serde_json::from_str(info.get("info")?).ok()?;
    info.pid.filter(|pid| *pid > 0)
}

/// What is read of the specification that the OCI runtime got.
#[derive(Deserialize)]
struct SpecInfo {
    #[serde(rename = "runtimeSpec")]
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    root: Option<SpecRoot>,
    linux: Option<SpecLinux>,
}

#[derive(Deserialize)]
struct SpecRoot {
    /// Of containerd relative to the bundle, whose path has the id of the container in it.
    path: String,
}

#[derive(Deserialize)]
struct SpecLinux {
    #[serde(default)]
    namespaces: Vec<SpecNamespace>,
}

#[derive(Deserialize)]
struct SpecNamespace {
    r#type: String,
    #[serde(default)]
    path: String,
}

/// What is mounted for it; a namespace by its path, which of a container leads to that of its sandbox.
fn own_mounts(info: &std::collections::HashMap<String, String>) -> OwnMounts {
    let spec = info.get("info").and_then(|info| serde_json::from_str::<SpecInfo>(info).ok());
    let Some(SpecInfo { spec: Spec { root, linux } }) = spec else { return OwnMounts::default() };
    let namespaces = linux.map(|linux| linux.namespaces).unwrap_or_default();
    let netns = namespaces.into_iter().find(|namespace| namespace.r#type == "network");
    let netns = netns.map(|namespace| namespace.path).filter(|path| !path.starts_with("/proc/"));
    OwnMounts {
        rootfs: root.and_then(|root| own_mounts::kept(root.path)),
        netns: netns.and_then(own_mounts::kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_for_it_is_told_by_its_specification() {
        let mounts = |info: &str| own_mounts(&[("info".to_owned(), info.to_owned())].into());
        let found = mounts(
            r#"{"pid": 7, "runtimeSpec": {"root": {"path": "/var/lib/containers/storage/overlay/a/merged"},
                "linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": "/var/run/netns/cni-1"}]}}}"#,
        );
        assert_eq!(found.rootfs.as_deref(), Some("/var/lib/containers/storage/overlay/a/merged"));
        assert_eq!(found.netns.as_deref(), Some("/var/run/netns/cni-1"));
        for nothing in [
            r#"{"pid": 7}"#,
            r#"{"runtimeSpec": 7}"#,
            r#"{"runtimeSpec": {"root": {"path": "rootfs"},
                "linux": {"namespaces": [{"type": "network", "path": "/proc/7/ns/net"}]}}}"#,
        ] {
            assert_eq!(mounts(nothing), OwnMounts::default(), "{nothing}");
        }
    }
}
