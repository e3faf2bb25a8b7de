//! The pods that the host routes to, and by which of its interfaces a route leads to each.
//!
//! Nothing is said of a pod to which packets may come without a route: one on the host's network, behind a device that is no
//! veth pair or that does not lead to the host, whose gateway is not the host, below a VRF, or of which it is not known which of
//! several addresses is its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_event::{Pod, Target};
use kevtmon_observation::{LinkFacts, NsInum, RouteFacts, iff};

use crate::diagnose::pod_network::{is_of_pod, living_pod, vrf};
use crate::node::namespaces::Namespace;
use crate::node::view::NodeView;

/// The host's ends of pods of Cilium: its programs hand packets over by tables of their own.
const CILIUM: &str = "lxc";

/// An address of a pod to which a route has to lead.
#[derive(Debug, Clone)]
pub(super) struct RoutedPod {
    pub(super) address: IpAddr,
    pub(super) netns: NsInum,
    pub(super) target: Target,
    pub(super) pod: Pod,
    /// The host's end of its veth pair.
    pub(super) end: LinkFacts,
    /// The interface in the pod.
    pub(super) inner: LinkFacts,
    /// The end, or the bridge that it is a port of.
    pub(super) device: LinkFacts,
    /// Interfaces of the host by which a route leads there.
    pub(super) interfaces: Vec<u32>,
    /// The gateway that the pod sends to, if it has one of that family.
    pub(super) gateway: Option<IpAddr>,
    /// Whether no rule tells packets apart, and what changes in the pod is told.
    pub(super) is_certain: bool,
}

impl RoutedPod {
    pub(super) fn subject(&self) -> String {
        subject(&self.pod.uid, self.address)
    }

    pub(super) fn is_up(&self) -> bool {
        [&self.end, &self.inner].iter().all(|link| link.flags & iff::UP != 0)
    }
}

pub(super) fn subject(uid: &str, address: IpAddr) -> String {
    format!("{uid}/{address}")
}

pub(super) fn pods(node: &NodeView<'_>) -> Vec<RoutedPod> {
    let Some(host) = node.host() else { return Vec::new() };
    let others = || node.namespaces.all().filter(|(netns, _)| *netns != node.host_netns);
    // Of an address that several have, the route leads to one of them.
    let mut places: BTreeMap<IpAddr, BTreeSet<NsInum>> = BTreeMap::new();
    for (netns, namespace) in others() {
        for known in namespace.addresses.iter().filter(|known| is_of_pod(known.address)) {
            places.entry(known.address).or_default().insert(netns);
        }
    }
    let is_alone = |pod: &RoutedPod| places.get(&pod.address).is_some_and(|places| places.len() == 1);
    let mut pods = Vec::new();
    for (netns, namespace) in others() {
        let Some((target, pod)) = living_pod(node, netns) else { continue };
        for inner in namespace.links.values() {
            let Some(end) = host_end(node, netns, inner) else { continue };
            for address in own_addresses(node, netns, namespace, inner.ifindex) {
                let Some((device, interfaces, gateway)) = way(host, namespace, inner, end, address) else {
                    continue;
                };
                let is_certain = !namespace.unheard && !host.has_selective_rules(address.is_ipv6());
                pods.push(RoutedPod {
                    address,
                    netns,
                    target: target.clone(),
                    pod: pod.clone(),
                    end: end.clone(),
                    inner: inner.clone(),
                    device: device.clone(),
                    interfaces,
                    gateway,
                    is_certain,
                });
            }
        }
    }
    pods.retain(is_alone);
    pods
}

/// The host's end of a pair, if the host's network routes there itself.
fn host_end<'a>(node: &NodeView<'a>, netns: NsInum, inner: &LinkFacts) -> Option<&'a LinkFacts> {
    let end = node.host_end(netns, inner.ifindex).filter(|end| end.netns == node.host_netns)?;
    let leads_back = end.peer.as_ref().is_some_and(|peer| peer.netns == Some(netns));
    (leads_back && !end.ifname.starts_with(CILIUM) && vrf(node, end).is_none()).then_some(end)
}

/// The addresses on an interface that are the pod's: those that its runtime tells, or else the only one of a family. Others
/// it may have set itself.
fn own_addresses(node: &NodeView<'_>, netns: NsInum, namespace: &Namespace, ifindex: u32) -> Vec<IpAddr> {
    let told = node.containers.in_netns(netns).map_or(&[][..], |facts| facts.addresses.as_slice());
    let on_it = namespace.addresses.iter().filter(|known| known.ifindex == ifindex);
    let all: Vec<IpAddr> = on_it.map(|known| known.address).filter(|address| is_of_pod(*address)).collect();
    let is_own = |address: &IpAddr| {
        let alike = |other: &&IpAddr| other.is_ipv4() == address.is_ipv4();
        match told.iter().filter(alike).count() {
            0 => all.iter().filter(alike).count() == 1,
            _ => told.contains(address),
        }
    };
    all.iter().copied().filter(is_own).collect()
}

/// The device by which the host reaches the pod, the interfaces of the host that lead there, and the pod's gateway; `None` if
/// the pod sends by another way.
fn way<'a>(
    host: &'a Namespace,
    namespace: &Namespace,
    inner: &LinkFacts,
    end: &'a LinkFacts,
    address: IpAddr,
) -> Option<(&'a LinkFacts, Vec<u32>, Option<IpAddr>)> {
    let is_ipv6 = |route: &RouteFacts| match route.destination {
        Some((prefix, _)) => prefix.is_ipv6(),
        None => route.ipv6,
    };
    let is_out = |route: &&RouteFacts| {
        route.is_default() && is_ipv6(route) == address.is_ipv6() && route.ifindex == Some(inner.ifindex)
    };
    let mut out = namespace.routes.iter().filter(is_out).peekable();
    let first = out.peek()?.gateway;
    let Some(master) = end.master else { return Some((end, vec![end.ifindex], first)) };
    let bridge = host.links.get(&master).filter(|link| link.kind.as_deref() == Some("bridge"))?;
    let is_above = |link: &&LinkFacts| {
        let lower = link.lower.as_ref();
        lower.is_some_and(|lower| {
            lower.ifindex == bridge.ifindex && lower.netns.is_none_or(|netns| netns == bridge.netns)
        })
    };
    let above = host.links.values().filter(is_above).map(|link| link.ifindex);
    let interfaces: Vec<u32> = [bridge.ifindex].into_iter().chain(above).collect();
    // Else the host only passes frames on, and another router answers.
    let is_hosts = |gateway: IpAddr| interfaces.iter().any(|ifindex| host.has_address(*ifindex, gateway));
    let gateway = out.filter_map(|route| route.gateway).find(|gateway| is_hosts(*gateway))?;
    Some((bridge, interfaces, Some(gateway)))
}
