//! Which addresses of living pods host-local has freed, or reserved for another sandbox, by state alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_event::{CloseReason, Pod, Reservation, Target};
use kevtmon_observation::{AddressFacts, BootNs, NsInum};

use crate::diagnose::pod_network::{is_of_pod, living_pod, netns_now};
use crate::node::ipam::Freed;
use crate::node::view::NodeView;

/// An address that is no longer reserved for the pod that has it.
pub(super) struct Unreserved {
    pub(super) target: Target,
    pub(super) pod: Pod,
    pub(super) reservation: Reservation,
    /// Between which times its reservation went, if that was seen.
    pub(super) freed: Option<(BootNs, BootNs)>,
    /// Whether the kernel tells what changes in the pod's namespace.
    pub(super) is_heard: bool,
}

impl Unreserved {
    /// One address of one pod, in one network.
    pub(super) fn subject(&self) -> String {
        subject(&self.reservation, &self.pod)
    }
}

pub(super) fn subject(reservation: &Reservation, pod: &Pod) -> String {
    format!("{} {} {}", reservation.address, reservation.network, pod.uid)
}

/// All of them, by subject. `told`: reservations that were found to be gone before, of which the files may tell no more.
pub(super) fn unreserved(
    node: &NodeView<'_>,
    told: &BTreeMap<IpAddr, Vec<&Reservation>>,
) -> BTreeMap<String, Unreserved> {
    let mut found = BTreeMap::new();
    if node.ipam.is_empty() && told.is_empty() {
        return found;
    }
    let of_pods = sandboxes(node);
    for (netns, namespace) in node.namespaces.all().filter(|(netns, _)| *netns != node.host_netns) {
        let known = namespace.addresses.iter().filter(|known| is_of_pod(known.address));
        let managed =
            known.filter(|known| told.contains_key(&known.address) || is_managed(node, known.address));
        for known in managed {
            let Some((target, pod)) = living_pod(node, netns) else { break };
            let ids = own_ids(&of_pods, &target, &pod);
            let told = told.get(&known.address).map_or(&[][..], Vec::as_slice);
            let found_here = reservation(node, netns, known, (&ids, told), &pod);
            let Some((freed, reservation)) = found_here else { continue };
            let is_heard = !namespace.unheard;
            let unreserved =
                Unreserved { reservation, freed, is_heard, target: target.clone(), pod: pod.clone() };
            found.insert(unreserved.subject(), unreserved);
        }
    }
    found
}

/// The containers of each pod, by its uid.
fn sandboxes<'a>(node: &NodeView<'a>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut of_pods: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for facts in node.containers.all() {
        if let Some(pod) = facts.pod.as_ref().filter(|pod| pod.is_confirmed()) {
            let ids = of_pods.entry(pod.uid.as_str()).or_default();
            ids.insert(facts.id.as_str());
            ids.extend(pod.sandbox_id.as_deref());
        }
    }
    of_pods
}

fn own_ids<'a>(
    of_pods: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    target: &'a Target,
    pod: &'a Pod,
) -> BTreeSet<&'a str> {
    let mut ids = of_pods.get(pod.uid.as_str()).cloned().unwrap_or_default();
    ids.extend(pod.sandbox_id.as_deref());
    ids.extend(target.container.as_ref().map(|container| container.id.as_str()));
    ids
}

/// How a drift that is no longer found has ended, if that is known: that the files no longer tell of it is no end.
pub(super) fn outcome(node: &NodeView<'_>, known: &Reservation, uid: &str) -> Option<CloseReason> {
    let Some((netns, (target, pod))) =
        netns_now(node, known.netns, uid).and_then(|netns| Some((netns, living_pod(node, netns)?)))
    else {
        return Some(CloseReason::SubjectGone);
    };
    let has_address = node
        .namespaces
        .get(netns)
        .is_some_and(|namespace| namespace.addresses.iter().any(|one| one.address == known.address));
    if !has_address {
        let is_same = netns == known.netns;
        return Some(if is_same { CloseReason::Resolved } else { CloseReason::SubjectGone });
    }
    let of_pods = sandboxes(node);
    let ids = own_ids(&of_pods, &target, &pod);
    let is_its = |container: &str| {
        container == known.container_id || ids.contains(container) || is_of(node, container, &pod)
    };
    let mut reserved = node.ipam.reserved(known.address).filter_map(|(_, container)| container);
    reserved.any(is_its).then_some(CloseReason::Resolved)
}

fn is_managed(node: &NodeView<'_>, address: IpAddr) -> bool {
    node.ipam.given(address).next().is_some() || node.ipam.freed(address).next().is_some()
}

/// The reservation that one of these sandboxes, all of a pod, no longer has; and between which times it went, if that was seen.
fn reservation(
    node: &NodeView<'_>,
    netns: NsInum,
    known: &AddressFacts,
    (ids, told): (&BTreeSet<&str>, &[&Reservation]),
    pod: &Pod,
) -> Option<(Option<(BootNs, BootNs)>, Reservation)> {
    let address = known.address;
    let is_its = |container: Option<&str>| container.is_some_and(|id| ids.contains(id));
    // In whatever network: it is not given to another pod.
    if node.ipam.reserved(address).any(|(_, container)| is_its(container)) {
        return None;
    }
    let seen = node.ipam.freed(address).filter(|freed| ids.contains(freed.container.as_str()));
    let seen = seen.map(|Freed { network, container, from, until }| {
        (network.as_str(), container.as_str(), Some((*from, *until)))
    });
    let given = node.ipam.given(address).filter(|(_, container)| ids.contains(container));
    let given = given.map(|(network, container)| (network, container, None));
    let again = told.iter().filter(|one| ids.contains(one.container_id.as_str()));
    let again = again.map(|one| (one.network.as_str(), one.container_id.as_str(), None));
    let mut all: Vec<_> = seen.chain(given).chain(again).collect();
    // What was told goes on.
    all.sort_by_key(|(network, ..)| !told.iter().any(|one| one.network == *network));
    for (network, container, freed) in all {
        let now = node.ipam.reserved(address).find(|(of, _)| *of == network);
        let reserved_for = match now {
            // Whose it is could not be read: it is not free.
            Some((_, None)) => continue,
            Some((_, Some(other))) if is_of(node, other, pod) => continue,
            Some((_, Some(other))) => Some(other.to_owned()),
            None if !node.ipam.is_complete => continue,
            None => None,
        };
        let links = &node.namespaces.get(netns)?.links;
        let reservation = Reservation {
            address,
            network: network.to_owned(),
            container_id: container.to_owned(),
            netns,
            ifindex: known.ifindex,
            ifname: links.get(&known.ifindex)?.ifname.clone(),
            reserved_for_pod: reserved_for.as_deref().and_then(|id| pod_of(node, id)),
            reserved_for,
        };
        return Some((freed, reservation));
    }
    None
}

/// Whether a sandbox is of the pod of this name: it may be made again.
fn is_of(node: &NodeView<'_>, sandbox: &str, pod: &Pod) -> bool {
    let (Some(namespace), Some(name)) = (&pod.namespace, &pod.name) else { return false };
    pod_of(node, sandbox).is_some_and(|other| {
        (other.namespace.as_ref(), other.name.as_ref()) == (Some(namespace), Some(name))
            && (other.uid.is_empty() || other.uid == pod.uid)
    })
}

/// The pod of a sandbox, as its runtime or a CNI call names it.
fn pod_of(node: &NodeView<'_>, sandbox: &str) -> Option<Pod> {
    let of_runtime =
        node.containers.get(sandbox).and_then(|facts| node.target_of(facts).confirmed_pod().cloned());
    of_runtime.or_else(|| {
        let of_call = node.cni.get(sandbox)?.pod.as_ref()?;
        Some(Pod {
            namespace: Some(of_call.namespace.clone()),
            name: Some(of_call.name.clone()),
            uid: of_call.uid.clone().unwrap_or_default(),
            sandbox_id: Some(sandbox.to_owned()),
            ..Pod::default()
        })
    })
}
