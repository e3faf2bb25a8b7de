//! Pods whose interface is no end of a veth pair: nothing is said of a host end that they do not have, nor expected of one that
//! works in another way. This kernel may not have these kinds; what the kernel tells of each is in the tests of netlink.

use super::*;

/// A name after the pod, as Calico and others give it.
const END: &str = "cali9118ebbb10b";
/// The device of the host below an interface of the pod.
const BELOW: u32 = 3;
const KINDS: [Option<&str>; 5] = [Some("netkit"), Some("ipvlan"), Some("macvlan"), Some("vlan"), None];
const OTHERS: [&str; 5] = [
    "orphan-veth", "pod-route-missing", "pod-neighbor-unreachable", "duplicate-pod-ip",
    "multi-pod-disruption",
];

/// A node on which lijiaob/etcd1-0 runs, with an interface of this kind; of none is one that was moved into the pod, such as
/// a virtual function of a network card.
fn node(kind: Option<&str>, state: NudState) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, END, state);
    let address: IpAddr = "192.168.252.66".parse().unwrap();
    let pod = node.tables.get_mut(&ETCD).unwrap();
    pod.addresses.push(AddressFacts { netns: ETCD, ifindex: 2, address, prefix_len: 24 });
    pod.links[0].kind = kind.map(str::to_owned);
    // The answer of the kernel would be an incident for any pod behind a veth pair.
    node.elsewhere.insert(address, FoundRoute::Nothing);
    let host = node.tables.get_mut(&HOST).unwrap();
    if kind == Some("netkit") {
        host.links[0].kind = kind.map(str::to_owned);
    } else {
        let below = LinkFacts { kind: None, peer: None, ..veth(HOST, BELOW, "eno1", 0, 0) };
        host.links = vec![below];
        let pod = node.tables.get_mut(&ETCD).unwrap();
        pod.links[0].peer = None;
        pod.links[0].lower = kind.map(|_| PeerLink { ifindex: BELOW, netns: Some(HOST) });
    }
    let off = |ifindex| InterfaceSysctls {
        ifindex,
        forwarding: Some(ifindex.is_none()),
        proxy: Some(false),
        ..InterfaceSysctls::default()
    };
    let ends = node.tables[&HOST].links.iter().map(|link| off(Some(link.ifindex)));
    let sysctls = [off(None)].into_iter().chain(ends).collect();
    node.start(vec![etcd_sandbox()]);
    node.observe(Fact::HostSysctls { sysctls, all: true });
    node.observe(calico());
    node.run_for(90 * S);
    node.events.clear();
    node
}

/// All that is said of an incident.
fn said(event: &Event) -> String {
    let incident = event.incident.as_ref().unwrap();
    let advice = incident.advice.iter().map(|step| format!("{} {}", step.text, step.command));
    let ruled_out = incident.ruled_out.iter().cloned();
    [event.message.clone()].into_iter().chain(ruled_out).chain(advice).collect::<Vec<_>>().join("; ")
}

#[track_caller]
fn expect_no_host_end(said: &str) {
    for words in ["host end", "veth", "proxy_arp", "is reached by", END, "eno1"] {
        assert!(!said.contains(words), "{words:?} in {said}");
    }
}

#[test]
fn whoever_deletes_a_static_entry_is_named_whatever_the_interface_is() {
    for kind in KINDS {
        let mut node = node(kind, NudState::PERMANENT);
        node.delete_entry(ETCD, NeighborCause::Admin);
        let opened = node.last_incident().clone();
        assert!(opened.message.contains("deleted by calico (pid 28997)"), "{}", opened.message);
        expect_no_host_end(&said(&opened));
        node.set_entry(ETCD, Some((NudState::PERMANENT, Some(host_mac()))));
        node.run_for(10 * S);
        assert!(node.open().is_empty(), "{kind:?}");
    }
}

#[test]
fn a_gateway_that_does_not_answer_is_told_without_anything_about_the_host() {
    for kind in KINDS {
        let mut node = node(kind, NudState(0x02));
        node.set_entry(ETCD, Some((NudState::FAILED, None)));
        node.observe(failure(ETCD));
        node.run_for(15 * S);
        let opened = node.last_incident().clone();
        assert!(opened.message.ends_with("nothing answers its ARP requests on eth0"), "{}", opened.message);
        expect_no_host_end(&said(&opened));
    }
}

#[test]
fn no_route_no_address_and_no_device_that_is_left_is_missed_on_the_host() {
    for kind in KINDS {
        let mut node = node(kind, NudState::PERMANENT);
        node.observe(etcd(ContainerState::Exited));
        node.observe(Fact::ContainerGone { id: SANDBOX.into(), source: "docker".into() });
        node.run_for(600 * S);
        let told = node.incidents();
        let of_others = told.iter().filter(|(_, incident)| OTHERS.contains(&incident.kind.as_str()));
        assert_eq!(of_others.count(), 0, "{kind:?}");
    }
}

#[test]
fn the_state_shows_where_the_interface_leads() {
    let below = |kind: &str| format!("the device below eth0, a {kind}: the routes of the node are not used");
    for (kind, ifname, fact, unrouted) in [
        (Some("netkit"), END, "forwarding 0".to_owned(), false),
        (Some("ipvlan"), "eno1", below("ipvlan"), true),
        (Some("macvlan"), "eno1", below("macvlan"), true),
        (None, "", "no pair: its connection is unknown".to_owned(), true),
    ] {
        let node = node(kind, NudState::PERMANENT);
        let state = node.core.state(node.now);
        let hop = state.pods[0].path.last().unwrap();
        assert_eq!((hop.netns, hop.ifname.as_str(), hop.unrouted), (HOST, ifname, unrouted), "{kind:?}");
        assert!(hop.facts.contains(&fact) && hop.broken.is_empty(), "{kind:?}: {hop:?}");
    }
    // Of a device below nothing but its number may be known.
    let mut node = node(Some("ipvlan"), NudState::PERMANENT);
    node.tables.get_mut(&ETCD).unwrap().links[0].lower = Some(PeerLink { ifindex: 99, netns: None });
    node.observe_netns(ETCD);
    let path = node.core.state(node.now).pods.remove(0).path;
    assert_eq!(path.last().unwrap().facts, ["the device below is unknown"]);
}
