//! A model of a node, empty until a test fills it.

use std::collections::BTreeMap;

use kevtmon_observation::SourceStatus;

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

#[derive(Debug, Default)]
pub struct Model {
    pub containers: Containers,
    pub components: Components,
    pub namespaces: Namespaces,
    pub pods: PodNames,
    pub busy_mounts: BusyMounts,
    pub kubelets: Kubelets,
    pub pods_on_node: PodsOnNode,
    pub ipam: Ipam,
    pub cni: CniCalls,
    pub rbd: MappedImages,
    pub rbd_asked: AskedImages,
    pub host_sysctls: HostSysctls,
    pub statuses: BTreeMap<String, SourceStatus>,
}

impl Model {
    /// A view of it, with all runtimes there are.
    pub fn view(&self) -> NodeView<'_> {
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

pub use kevtmon_testing::facts::{container, mount, pod};
