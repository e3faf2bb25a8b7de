//! A state of a node for tests: two pods of one name.

use kevtmon_core::state::{ContainerStatus, KnownBy, NetnsStatus, NodeState, PodStatus};
use kevtmon_event::{Container, Join, Link, LinkPeer, Pod, Target};
use kevtmon_testing::numbered::time;
use kevtmon_testing::sample;

pub const HOST: u32 = 4_026_531_833;

pub fn link(netns: u32, ifindex: u32, ifname: &str, peer: (u32, u32)) -> Link {
    Link {
        ifindex,
        ifname: ifname.into(),
        kind: Some("veth".into()),
        netns,
        peer: Some(LinkPeer { ifindex: peer.1, netns: Some(peer.0), ifname: None }),
        up: Some(true),
        ..Link::default()
    }
}

pub fn pod(namespace: &str, name: &str, uid: &str, ip: &str, netns: u32) -> PodStatus {
    let pod = Pod {
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: uid.into(),
        ip: vec![ip.parse().unwrap()],
        ..Pod::default()
    };
    PodStatus { pod, known_by: KnownBy::Runtime, netns: Some(netns), ..PodStatus::default() }
}

pub fn namespace(netns: u32, owner: Option<Pod>, links: Vec<Link>) -> NetnsStatus {
    NetnsStatus {
        netns,
        name: None,
        cookie: None,
        since: None,
        pid: None,
        comm: None,
        owner: Target { pod: owner, ..Target::unknown(Join::Ok) },
        gateways: vec!["169.254.1.1".parse().unwrap()],
        neighbors: Vec::new(),
        routes: Vec::new(),
        addresses: Vec::new(),
        links,
        stale: false,
    }
}

/// Pods `a/web` and `b/web`, each with an `eth0` and a host interface.
pub fn state() -> NodeState {
    let pods = vec![pod("a", "web", "uid-a", "10.0.0.1", 71), pod("b", "web", "uid-b", "10.0.0.2", 72)];
    let inner = |index: usize, netns, host| {
        namespace(netns, Some(pods[index].pod.clone()), vec![link(netns, 2, "eth0", (HOST, host))])
    };
    NodeState {
        time: time(0),
        node: "slave-197".into(),
        boot_id: sample::deletion().boot_id,
        version: "0".into(),
        ready: true,
        host_netns: HOST,
        namespaces: vec![
            inner(0, 71, 8),
            inner(1, 72, 9),
            namespace(HOST, None, vec![link(HOST, 8, "cali-a", (71, 2)), link(HOST, 9, "cali-b", (72, 2))]),
        ],
        pods,
        ..NodeState::default()
    }
}

/// A container of which nothing else is known.
pub fn alone(container: Container) -> ContainerStatus {
    ContainerStatus { container, ..ContainerStatus::default() }
}
