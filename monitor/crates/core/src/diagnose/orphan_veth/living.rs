//! Who lives behind a veth device of the host, by what the runtimes and the processes tell; where there is no runtime, by the
//! processes and the directories of pods alone.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_observation::cgroup;
use kevtmon_observation::{ContainerFacts, LinkFacts, NsInum};

use super::Former;
use super::whose::{Whose, known_digits};
use crate::node::containers::is_live;
use crate::node::veth_names;
use crate::node::view::{NodeView, RuntimeAvailability};

/// What the model shows of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Assessment {
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
    /// What the names of devices have in them of the pods that are known.
    known: Option<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Containers {
    /// What the names of devices have in them of the pods of those that live.
    digits: BTreeSet<String>,
    /// The files on which their runtimes have mounted their network namespaces, by their names, with the ids.
    files: BTreeMap<String, Vec<String>>,
    /// Whether it is not known of one in which network namespace it is.
    is_unplaced: bool,
}

impl Living {
    /// Whose a device is. `former`: the pod that was seen behind it.
    pub(super) fn whose<'a>(
        &mut self,
        node: &NodeView<'a>,
        link: &'a LinkFacts,
        former: Option<&'a Former>,
    ) -> Whose<'a> {
        Whose::of(node, self.known.get_or_insert_with(|| known_digits(node)), link, former)
    }

    /// `is_left`: it was a pod's and nobody's before, by what may be forgotten since.
    pub(super) fn judge(
        &mut self,
        node: &NodeView<'_>,
        link: &LinkFacts,
        former: Option<&Former>,
        is_left: bool,
    ) -> Assessment {
        let whose = self.whose(node, link, former);
        let is_pods = former.is_some() || is_left || whose.is_in_results();
        if !is_pods && !veth_names::is_of_pod(&link.ifname) {
            return Assessment::Lives;
        }
        let Some(peer) = &link.peer else { return Assessment::Unknown };
        if peer.netns.is_some_and(|netns| is_inhabited(node, netns, &whose)) {
            return Assessment::Lives;
        }
        match node.runtimes {
            RuntimeAvailability::All => {}
            RuntimeAvailability::Absent if has_known_pod(node, &link.ifname) => return Assessment::Lives,
            // Whether a process is in the namespace, which one of a pod always is, is looked for before anything is said.
            RuntimeAvailability::Absent => return Assessment::Orphan,
            RuntimeAvailability::Some | RuntimeAvailability::None => return Assessment::Unknown,
        }
        let containers = self.read.get_or_insert_with(|| Containers::read(node));
        let is_by_name = veth_names::is_by_pod(&link.ifname);
        let is_called_so = veth_names::pod_digits(&link.ifname);
        let is_called_so = is_called_so.is_some_and(|digits| containers.digits.contains(digits));
        if (is_called_so || whose.is_made_for_living(node))
            && !peer.netns.is_some_and(|netns| whose.is_elsewhere(node, netns))
        {
            return Assessment::Lives;
        }
        let namespace = peer.netns.and_then(|netns| node.namespaces.get(netns));
        let ids = namespace.and_then(|namespace| containers.files.get(namespace.name.as_ref()?));
        let mut owners = ids.into_iter().flatten().filter_map(|id| node.containers.get(id));
        if owners.any(|facts| !whose.is_anothers(facts)) {
            return Assessment::Lives;
        }
        // Whose device this is does not follow from its name, so it may be that one's.
        if containers.is_unplaced && !is_by_name { Assessment::Unknown } else { Assessment::Orphan }
    }
}

impl Containers {
    fn read(node: &NodeView<'_>) -> Self {
        let mut read = Self::default();
        for facts in node.containers.present().filter(|facts| is_live(facts.state)) {
            if let Some(pod) = &facts.pod {
                read.digits.insert(veth_names::digits_of(&pod.namespace, &pod.name));
            }
            let file = facts.own_mounts.netns.as_deref().and_then(|path| path.rsplit('/').next());
            if let Some(file) = file {
                read.files.entry(file.to_owned()).or_default().push(facts.id.clone());
            }
            read.is_unplaced |= facts.netns.is_none();
        }
        // A plugin has set up the network of one of which no runtime has told yet.
        let added = node.cni.sandboxes().filter(|(id, _)| node.is_sandbox_alive(id));
        let added = added.filter_map(|(_, sandbox)| sandbox.pod.as_ref());
        read.digits.extend(added.map(|pod| veth_names::digits_of(&pod.namespace, &pod.name)));
        read
    }
}

/// Whether a runtime has a container, in whatever state.
pub(super) fn is_present(node: &NodeView<'_>, facts: &ContainerFacts) -> bool {
    node.containers.is_present(&facts.id)
}

/// Whether a container lives in a network namespace that may be the one whose the device is.
fn is_inhabited(node: &NodeView<'_>, netns: NsInum, whose: &Whose<'_>) -> bool {
    if netns == node.host_netns {
        return false;
    }
    if node.containers.living_in(netns).any(|facts| !whose.is_anothers(facts)) {
        return true;
    }
    let is_others = |id: &str| node.containers.get(id).is_some_and(|facts| whose.is_anothers(facts));
    let by_plugin = node.cni.sandboxes().any(|(id, known)| {
        // A runtime knows better where it is than whoever called the plugin.
        let told = node.containers.get(id).and_then(|facts| facts.netns);
        let is_here = told.or(known.netns) == Some(netns);
        is_here && node.is_sandbox_alive(id) && !is_others(id)
    });
    let owner = node.namespaces.get(netns).and_then(|namespace| namespace.owner.as_ref());
    let group = owner.and_then(|owner| owner.cgroup.as_deref());
    // Who lived there once may be gone, which only a runtime tells at once.
    let group = group.filter(|_| node.runtimes != RuntimeAvailability::Absent);
    // A container that its runtime knows to be over has no process any more, whatever was seen before.
    let of_process = group.and_then(|group| cgroup::identify(group).container_id);
    let is_over = |id: &str| node.containers.get(id).is_some_and(|facts| !is_live(facts.state));
    by_plugin || of_process.is_some_and(|id| !is_over(&id) && !is_others(&id))
}

/// Whether a device is called after a pod that the node still has, as far as that can be told without a runtime: one that has a
/// directory of a kubelet.
fn has_known_pod(node: &NodeView<'_>, ifname: &str) -> bool {
    let has_directory =
        |uid: &str| !node.pods_on_node.is_read || node.pods_on_node.iter().any(|(other, _)| other == uid);
    let mut named = node.pods.all().filter(|(_, namespace, pod)| veth_names::names(ifname, namespace, pod));
    named.any(|(uid, ..)| has_directory(uid))
}

/// The pod for whose sandbox a plugin says to have made a device, of those that were here.
pub(super) fn former_by_result(node: &NodeView<'_>, ifname: &str) -> Option<Former> {
    let mut made_for = node.ipam.made_for(ifname);
    let device = made_for.next().filter(|_| made_for.next().is_none())?;
    let told = node.containers.get(&device.container).and_then(|facts| facts.pod.as_ref());
    let told = told.filter(|pod| pod.is_confirmed()).map(|pod| pod.uid.as_str());
    let name = (device.namespace.as_str(), device.pod.as_str());
    let mut kept = node.pods.all().filter(|(_, namespace, pod)| (*namespace, *pod) == name);
    // Which of several pods of one name it was, the sandbox alone would tell.
    let only = kept.next().filter(|_| kept.next().is_none()).map(|(uid, ..)| uid);
    told.or(only).map(|uid| Former {
        namespace: device.namespace.clone(),
        name: device.pod.clone(),
        uid: uid.to_owned(),
        netns: 0,
    })
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
        netns: 0,
    })
}
