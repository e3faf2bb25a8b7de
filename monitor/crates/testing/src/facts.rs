//! Facts for tests: a pod, a container, a mount.

use kevtmon_observation::{ContainerFacts, ContainerState, MountFacts, PodIdentity, PodProof};

/// A pod as its container's control group confirms it.
pub fn pod() -> PodIdentity {
    PodIdentity {
        namespace: "lijiaob".into(),
        name: "etcd1-0".into(),
        uid: "u".into(),
        proof: PodProof::Cgroup,
        ..PodIdentity::default()
    }
}

/// A container of Docker that runs, of no pod.
pub fn container(id: &str) -> ContainerFacts {
    ContainerFacts {
        id: id.into(),
        name: "web".into(),
        runtime: "docker".into(),
        source: "docker".into(),
        image: "nginx".into(),
        state: ContainerState::Running,
        tgid: Some(7),
        ..ContainerFacts::default()
    }
}

/// A tmpfs at /mnt/x.
pub fn mount(id: u64) -> MountFacts {
    MountFacts {
        id,
        parent: Some(29),
        unique: None,
        mountpoint: "/mnt/x".into(),
        root: "/".into(),
        fstype: "tmpfs".into(),
        source: "tmpfs".into(),
        device: "0:77".into(),
        mntns: 2,
    }
}
