//! The way of a pod's packets out of the node, interface by interface, with what is broken on it.

use std::net::IpAddr;

use kevtmon_event::Pod;
use kevtmon_observation::{BootNs, LinkFacts, NeighborKey, NsInum, RouteFacts, iff};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::{EntryStatus, RouteStatus};
use crate::Core;
use crate::diagnose::{Health, health};
use crate::node::namespaces::Namespace;
use crate::node::view::NodeView;

/// One step of the way: an interface, or a gateway.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    pub netns: NsInum,
    /// Interface, of a gateway that by which it is reached.
    pub ifname: String,
    /// The address of a gateway.
    pub gateway: Option<IpAddr>,
    /// What is known of it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub facts: Vec<String>,
    /// What keeps packets from going on.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub broken: Vec<String>,
    /// Packets do not go on by the routes of the node, as far as is known.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unrouted: bool,
}

/// The call of a CNI plugin that made a pod's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeBy {
    /// Path of the plugin.
    pub plugin: String,
    /// When the call began, RFC 3339.
    pub time: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIncident {
    pub id: String,
    pub kind: String,
    pub summary: String,
}

/// The neighbor entries of the default gateways that are in use.
pub(super) fn entries(namespace: &Namespace) -> Vec<EntryStatus> {
    let entry = |(ifindex, address): &(u32, IpAddr)| {
        let known = namespace.gateway(*ifindex, *address).and_then(|gateway| gateway.entry.clone());
        let (state, lladdr) = known.unzip();
        EntryStatus {
            address: *address,
            ifindex: *ifindex,
            state: state.map(|state| state.name().to_owned()),
            lladdr: lladdr.flatten().map(|lladdr| lladdr.to_string()),
        }
    };
    namespace.in_use.iter().map(entry).collect()
}

pub(super) fn routes(namespace: &Namespace) -> Vec<RouteStatus> {
    let route = |route: &RouteFacts| RouteStatus {
        destination: route
            .destination
            .map_or_else(|| "default".to_owned(), |(address, len)| format!("{address}/{len}")),
        gateway: route.gateway,
        ifindex: route.ifindex,
        table: route.table,
        metric: route.metric,
        ipv6: route.destination.map_or(route.ipv6, |(address, _)| address.is_ipv6()),
    };
    namespace.routes.iter().map(route).collect()
}

impl Core {
    /// The way out of a network namespace, beginning at each interface that has a default route, or at each that there is.
    pub(super) fn way_out(&self, netns: NsInum) -> Vec<Hop> {
        let node = self.node();
        let Some(namespace) = node.namespaces.get(netns) else { return Vec::new() };
        let gateways = &namespace.in_use;
        let is_on_link = |link: &LinkFacts| {
            namespace.routes.iter().any(|route| route.is_default() && route.ifindex == Some(link.ifindex))
        };
        let links = namespace.links.values().filter(|link| link.flags & iff::LOOPBACK == 0);
        let (mut leading, others): (Vec<&LinkFacts>, Vec<&LinkFacts>) = links.partition(|link| {
            is_on_link(link) || gateways.iter().any(|(ifindex, _)| *ifindex == link.ifindex)
        });
        let leads_nowhere = leading.is_empty();
        if leads_nowhere {
            leading = others;
        }
        let mut hops = Vec::new();
        for link in leading {
            let mut inner = hop(link, addresses(namespace, link.ifindex));
            if leads_nowhere {
                inner.broken.push("no default route".to_owned());
            }
            hops.push(inner);
            let of_it = gateways.iter().filter(|(ifindex, _)| *ifindex == link.ifindex);
            for (ifindex, address) in of_it {
                hops.push(gateway(&node, NeighborKey { netns, ifindex: *ifindex, address: *address }));
            }
            hops.extend(host_side(&node, netns, link));
        }
        if hops.is_empty() {
            let broken = vec!["no interface but the loopback".to_owned()];
            hops.push(Hop { netns, broken, ..Hop::default() });
        }
        hops
    }

    pub(super) fn uplinks(&self) -> Vec<Hop> {
        let host = self.settings.host_netns;
        let Some(namespace) = self.namespaces.get(host) else { return Vec::new() };
        let uplink = |(ifindex, address): &(u32, IpAddr)| {
            let link = namespace.links.get(ifindex)?;
            Some(Hop { gateway: Some(*address), ..hop(link, addresses(namespace, *ifindex)) })
        };
        let mut uplinks: Vec<Hop> = namespace.in_use.iter().filter_map(uplink).collect();
        if uplinks.is_empty() && !namespace.routes.iter().any(RouteFacts::is_default) {
            let broken = vec!["the node has no default route".to_owned()];
            uplinks.push(Hop { netns: host, broken, ..Hop::default() });
        }
        uplinks
    }

    pub(super) fn made_by(&self, pod: &Pod) -> Option<MadeBy> {
        let sandbox = self.cni.get(pod.sandbox_id.as_deref()?)?;
        let (plugin, added): (&String, BootNs) = (sandbox.plugin.as_ref()?, sandbox.added?);
        Some(MadeBy { plugin: plugin.clone(), time: self.wall_time(added) })
    }

    pub(super) fn open_incidents(&self, uid: &str) -> Vec<PodIncident> {
        let of_pod = self.incidents().filter(|(_, objects)| {
            let pod = objects.target.as_deref().and_then(|target| target.confirmed_pod());
            pod.is_some_and(|pod| pod.uid == uid)
        });
        let mut open: Vec<PodIncident> = of_pod
            .map(|(incident, _)| PodIncident {
                id: incident.id,
                kind: incident.kind,
                summary: incident.summary,
            })
            .collect();
        open.sort_unstable_by(|a, b| (&a.kind, &a.id).cmp(&(&b.kind, &b.id)));
        open
    }
}

/// The host's end of a pod's interface, and the bridge that it is a port of; of one that is no end of a pair, the device below.
fn host_side(node: &NodeView<'_>, netns: NsInum, link: &LinkFacts) -> Vec<Hop> {
    let Some(end) = node.other_end(netns, link.ifindex) else { return vec![beyond(node, link)] };
    let Some(host) = node.namespaces.get(end.netns) else { return Vec::new() };
    let mut facts = addresses(host, end.ifindex);
    let is_of_host = end.netns == node.host_netns;
    let master = end.master.and_then(|master| host.links.get(&master));
    if master.is_none() && is_of_host {
        facts.extend(sysctls(node, end.ifindex));
    }
    let mut outer = hop(end, facts);
    if !is_of_host {
        outer.facts.push(format!("in network namespace {}", end.netns));
    }
    let mut hops = vec![outer];
    if let Some(master) = master {
        let kind = master.kind.clone().into_iter();
        let mut facts: Vec<String> = kind.chain(addresses(host, master.ifindex)).collect();
        if is_of_host {
            facts.extend(sysctls(node, master.ifindex));
        }
        hops.push(hop(master, facts));
    }
    hops
}

/// Where an interface leads whose other end is not known, or that has none.
fn beyond(node: &NodeView<'_>, link: &LinkFacts) -> Hop {
    let unknown = |what: &str, unrouted| Hop {
        netns: node.host_netns,
        facts: vec![what.to_owned()],
        unrouted,
        ..Hop::default()
    };
    if link.peer.is_some() || matches!(link.kind.as_deref(), Some("veth" | "netkit")) {
        return unknown("its peer is unknown", false);
    }
    let Some(lower) = &link.lower else { return unknown("no pair: its connection is unknown", true) };
    let known = lower.netns.and_then(|netns| node.namespaces.get(netns));
    let Some((namespace, below)) = known.and_then(|known| Some((known, known.links.get(&lower.ifindex)?)))
    else {
        return unknown("the device below is unknown", true);
    };
    let kind = link.kind.as_deref().unwrap_or_default();
    let mut facts = addresses(namespace, below.ifindex);
    facts.push(format!(
        "the device below {}, a {kind}: the routes of the node are not used",
        name(&link.ifname)
    ));
    if below.netns != node.host_netns {
        facts.push(format!("in network namespace {}", below.netns));
    }
    Hop { unrouted: true, ..hop(below, facts) }
}

/// What the host does with packets that come by an interface; nothing where that is not known.
fn sysctls(node: &NodeView<'_>, ifindex: u32) -> Vec<String> {
    let sysctls = node.host_sysctls;
    let on = |name: &str, on: bool| format!("{name} {}", u8::from(on));
    let forwarding = sysctls.forwards_ipv4(ifindex).map(|forwards| on("forwarding", forwards));
    let proxy = sysctls.answers_arp_for_others(ifindex).map(|answers| on("proxy_arp", answers));
    let rp_filter = sysctls.rp_filter(ifindex).map(|filter| format!("rp_filter {}", filter.number()));
    forwarding.into_iter().chain(proxy).chain(rp_filter).collect()
}

/// An interface; whether it is up goes before the rest.
fn hop(link: &LinkFacts, rest: Vec<String>) -> Hop {
    let (mut facts, mut broken) = (Vec::new(), Vec::new());
    match (link.flags & iff::UP != 0, link.flags & iff::LOWER_UP != 0) {
        (true, true) => facts.push("up".to_owned()),
        (true, false) => broken.push("up, but without carrier".to_owned()),
        (false, _) => broken.push("down".to_owned()),
    }
    facts.extend(rest);
    Hop { netns: link.netns, ifname: link.ifname.clone(), facts, broken, ..Hop::default() }
}

fn gateway(node: &NodeView<'_>, key: NeighborKey) -> Hop {
    let link = node.link_at(key.netns, key.ifindex);
    let entry = node.gateway(key);
    let lladdr = entry.and_then(|entry| entry.lladdr()).map(ToString::to_string).unwrap_or_default();
    let state = entry.and_then(|entry| entry.entry.as_ref()).map_or("", |(state, _)| state.name());
    let (mut facts, mut broken) = (Vec::new(), Vec::new());
    match health(node, key) {
        Health::Correct | Health::Usable if node.gateway_lladdr(key).is_some() => {
            facts.push(format!("{state} {lladdr}, by which the host is reached"));
        }
        // Nothing tells whether its address is right.
        Health::Correct | Health::Static | Health::Usable | Health::Learned => {
            facts.push(format!("{state} {lladdr}"));
        }
        Health::Wrong => broken.push(format!("{state} {lladdr}, by which the host is not reached")),
        Health::Unresolved => broken.push(format!("{state}: nothing answers")),
        Health::Absent if entry.is_some_and(|entry| entry.static_lladdr.is_some()) => {
            broken.push("its static neighbor entry is gone".to_owned());
        }
        Health::Absent => facts.push("no neighbor entry".to_owned()),
        Health::Unknown => facts.push("its neighbor entry is unknown".to_owned()),
    }
    Hop {
        netns: key.netns,
        ifname: link.map(|link| link.ifname.clone()).unwrap_or_default(),
        gateway: Some(key.address),
        facts,
        broken,
        ..Hop::default()
    }
}

fn addresses(namespace: &Namespace, ifindex: u32) -> Vec<String> {
    let on_it = namespace.addresses.iter().filter(|known| known.ifindex == ifindex);
    on_it.map(|known| format!("{}/{}", known.address, known.prefix_len)).collect()
}
