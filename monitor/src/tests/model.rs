//! A model of a node, empty until a test fills it, and a container for it.

use std::collections::BTreeMap;

use crate::node::cni::CniCalls;
use crate::node::components::Components;
use crate::node::containers::Containers;
use crate::node::host_sysctls::HostSysctls;
use crate::node::ipam::Ipam;
use crate::node::kubelet::Kubelets;
use crate::node::mounts::BusyMounts;
use crate::node::namespaces::Namespaces;
use crate::node::pod_remains::PodsOnNode;
use crate::node::pods::PodNames;
use crate::node::rbd::MappedImages;
use crate::node::rbd_asked::AskedImages;
use crate::node::view::{NodeView, RuntimeAvailability};
use crate::observation::{
    ContainerFacts, ContainerState, Incarnation, MountFacts, PodIdentity, PodProof, SourceStatus,
};

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) containers: Containers,
    pub(crate) components: Components,
    pub(crate) namespaces: Namespaces,
    pub(crate) pods: PodNames,
    pub(crate) busy_mounts: BusyMounts,
    pub(crate) kubelets: Kubelets,
    pub(crate) pods_on_node: PodsOnNode,
    pub(crate) ipam: Ipam,
    pub(crate) cni: CniCalls,
    pub(crate) rbd: MappedImages,
    pub(crate) rbd_asked: AskedImages,
    pub(crate) host_sysctls: HostSysctls,
    pub(crate) statuses: BTreeMap<String, SourceStatus>,
}

impl Model {
    /// A view of it, with all runtimes there are.
    pub(crate) fn view(&self) -> NodeView<'_> {
        NodeView {
            containers: &self.containers,
            components: &self.components,
            namespaces: &self.namespaces,
            pods: &self.pods,
            busy_mounts: &self.busy_mounts,
            kubelets: &self.kubelets,
            pods_on_node: &self.pods_on_node,
            ipam: &self.ipam,
            cni: &self.cni,
            rbd: &self.rbd,
            rbd_asked: &self.rbd_asked,
            host_sysctls: &self.host_sysctls,
            host_netns: 1,
            runtimes: RuntimeAvailability::All,
            statuses: &self.statuses,
        }
    }
}

/// A pod as its container's control group confirms it.
pub(crate) fn pod() -> PodIdentity {
    PodIdentity {
        namespace: "lijiaob".into(),
        name: "etcd1-0".into(),
        uid: "u".into(),
        sandbox_id: None,
        container_name: None,
        proof: PodProof::Cgroup,
        labels: None,
    }
}

/// A container of Docker that runs, of no pod.
pub(crate) fn container(id: &str) -> ContainerFacts {
    ContainerFacts {
        id: id.into(),
        name: "web".into(),
        runtime: "docker".into(),
        source: "docker".into(),
        image: "nginx".into(),
        state: ContainerState::Running,
        tgid: Some(7),
        started_ns: None,
        netns: None,
        mntns: None,
        addresses: Vec::new(),
        pod: None,
        sandbox: false,
        joined_netns: false,
        exit: None,
        incarnation: Incarnation::default(),
        own_mounts: Default::default(),
        removal_error: None,
    }
}

/// A tmpfs at /mnt/x.
pub(crate) fn mount(id: u64) -> MountFacts {
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
