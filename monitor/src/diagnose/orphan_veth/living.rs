//! Who lives behind a veth device of the host, by what the runtimes and the processes tell.

use std::collections::BTreeSet;

use super::Former;
use crate::node::containers::is_live;
use crate::node::view::{NodeView, RuntimeAvailability};
use crate::node::{cgroup, veth_names};
use crate::observation::{ContainerFacts, LinkFacts, NsInum};

/// What the model shows of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Somebody lives behind it, or it is no pod's.
    Lives,
    /// That cannot be told now.
    Unknown,
    /// It is a pod's, and nobody does.
    Orphan,
}

/// What is read of the containers once for all devices.
#[derive(Debug, Default)]
pub(super) struct Living {
    read: Option<Containers>,
}

#[derive(Debug, Default)]
struct Containers {
    /// Namespace and name of the pods of those that live.
    pods: BTreeSet<(String, String)>,
    /// The files on which their runtimes have mounted their network namespaces, by their names.
    files: BTreeSet<String>,
    /// Whether it is not known of one in which network namespace it is.
    is_unplaced: bool,
}

impl Living {
    pub(super) fn judge(&mut self, node: &NodeView<'_>, link: &LinkFacts, was_pods: bool) -> Judgement {
        if !was_pods && !veth_names::is_of_pod(&link.ifname) {
            return Judgement::Lives;
        }
        let Some(peer) = &link.peer else { return Judgement::Unknown };
        if peer.netns.is_some_and(|netns| is_inhabited(node, netns)) {
            return Judgement::Lives;
        }
        if node.runtimes != RuntimeAvailability::All {
            return Judgement::Unknown;
        }
        let containers = self.read.get_or_insert_with(|| Containers::read(node));
        let is_by_name = veth_names::is_by_pod(&link.ifname);
        if is_by_name
            && containers.pods.iter().any(|(namespace, pod)| veth_names::names(&link.ifname, namespace, pod))
        {
            return Judgement::Lives;
        }
        let namespace = peer.netns.and_then(|netns| node.namespaces.get(netns));
        let name = namespace.and_then(|namespace| namespace.name.as_ref());
        if name.is_some_and(|name| containers.files.contains(name)) {
            return Judgement::Lives;
        }
        // Whose device this is does not follow from its name, so it may be that one's.
        if containers.is_unplaced && !is_by_name { Judgement::Unknown } else { Judgement::Orphan }
    }
}

impl Containers {
    fn read(node: &NodeView<'_>) -> Self {
        let mut read = Self::default();
        for facts in node.containers.present().filter(|facts| is_live(facts.state)) {
            if let Some(pod) = &facts.pod {
                read.pods.insert((pod.namespace.clone(), pod.name.clone()));
            }
            let file = facts.own_mounts.netns.as_deref().and_then(|path| path.rsplit('/').next());
            read.files.extend(file.map(str::to_owned));
            read.is_unplaced |= facts.netns.is_none();
        }
        // A plugin has set up the network of one of which no runtime has told yet.
        let added = node.cni.sandboxes().filter(|(id, _)| node.is_sandbox_alive(id));
        let added = added.filter_map(|(_, sandbox)| sandbox.pod.as_ref());
        read.pods.extend(added.map(|pod| (pod.namespace.clone(), pod.name.clone())));
        read
    }
}

/// Whether a runtime has a container, in whatever state.
pub(super) fn is_present(node: &NodeView<'_>, facts: &ContainerFacts) -> bool {
    node.containers.is_present(&facts.id)
}

/// Whether a container lives in a network namespace.
fn is_inhabited(node: &NodeView<'_>, netns: NsInum) -> bool {
    if netns == node.host_netns {
        return false;
    }
    let of_runtime = node.containers.in_netns(netns);
    if of_runtime.is_some_and(|facts| is_live(facts.state) && is_present(node, facts)) {
        return true;
    }
    let by_plugin =
        node.cni.sandboxes().any(|(id, known)| known.netns == Some(netns) && node.is_sandbox_alive(id));
    let owner = node.namespaces.get(netns).and_then(|namespace| namespace.owner.as_ref());
    let group = owner.and_then(|owner| owner.cgroup.as_deref());
    // A container that its runtime knows to be over has no process any more, whatever was seen before.
    let of_process = group.and_then(|group| cgroup::identify(group).container_id);
    let is_over = |id: &str| node.containers.get(id).is_some_and(|facts| !is_live(facts.state));
    by_plugin || of_process.is_some_and(|id| !is_over(&id))
}

/// The pod after whose name a device is called, of those that were here.
pub(super) fn former_by_name(node: &NodeView<'_>, ifname: &str) -> Option<Former> {
    if !veth_names::is_by_pod(ifname) {
        return None;
    }
    let of_containers = node.containers.all().filter_map(|facts| facts.pod.as_ref());
    let confirmed = of_containers.filter(|pod| pod.is_confirmed());
    let of_containers = confirmed.map(|pod| (pod.uid.as_str(), pod.namespace.as_str(), pod.name.as_str()));
    let named: Vec<_> = of_containers
        .chain(node.pods.all())
        .filter(|(_, namespace, pod)| veth_names::names(ifname, namespace, pod))
        .collect();
    // Pods of one name have had it one after the other: which of them it was is not known.
    let (uid, namespace, name) = named.first()?;
    let is_one = named.iter().all(|(other, ..)| other == uid);
    is_one.then(|| Former {
        namespace: (*namespace).to_owned(),
        name: (*name).to_owned(),
        uid: (*uid).to_owned(),
    })
}
