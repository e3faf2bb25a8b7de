use kevtmon_core::node::routing::gateways_in_use;
use kevtmon_observation::{NudState, RouteFacts};

use super::*;

fn default_route(netns: &Netns, snapshot: &NetnsSnapshot) -> RouteFacts {
    RouteFacts::default_via(netns.inode, address("10.9.0.1"), link(snapshot, "eth0").ifindex)
}

#[tokio::test]
async fn the_first_snapshots_show_links_addresses_routes_neighbors_and_both_ends_of_a_pair() {
    let netns = Netns::new();
    netns.connect();
    let mut source = Running::start(NetlinkConfig::default());
    let host_inode = source.host;
    let host = source.snapshot(host_inode).await;
    let inside = source.snapshot(netns.inode).await;
    let (outer, inner) = (link(&host, &netns.veth()), link(&inside, "eth0"));
    assert_eq!((host.owner.as_ref(), outer.kind.as_deref()), (None, Some("veth")));
    let peer = outer.peer.as_ref().unwrap();
    assert_eq!((peer.ifindex, peer.netns), (inner.ifindex, Some(netns.inode)));
    let peer = inner.peer.as_ref().unwrap();
    assert_eq!((peer.ifindex, peer.netns), (outer.ifindex, Some(host_inode)));
    assert_eq!(inside.name.as_deref(), Some(netns.name.as_str()));
    assert_eq!(inside.owner, None, "no process lives there");
    assert!(addresses(&inside).contains(&address("10.9.0.2")));
    assert!(inside.routes.contains(&default_route(&netns, &inside)));
    let gateway = inside.neighbors.iter().find(|entry| entry.address == address("10.9.0.1")).unwrap();
    assert_eq!(gateway.state, NudState::PERMANENT);
    assert_eq!(gateway.lladdr.as_ref().unwrap().to_string(), "ee:ee:ee:ee:ee:ee");
    source.up().await;
}

#[tokio::test]
async fn the_oldest_process_in_a_namespace_is_its_owner() {
    let netns = Netns::new();
    let mut sleeper =
        Command::new("ip").args(["netns", "exec", &netns.name, "sleep", "1000"]).spawn().unwrap();
    let proc = Proc::default();
    while proc.ns(sleeper.id(), "net") != Some(netns.inode) {
        tokio::task::yield_now().await;
    }
    let mut source = Running::start(NetlinkConfig::default());
    let owner = source.snapshot(netns.inode).await.owner;
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(owner.unwrap().tgid, sleeper.id());
}

#[tokio::test]
async fn changes_in_another_namespace_carry_its_inode() {
    let netns = Netns::new();
    netns.connect();
    let mut source = Running::start(NetlinkConfig::default());
    let snapshot = source.snapshot(netns.inode).await;
    source.up().await;
    netns.ip("route del default");
    netns.ip("addr add 10.9.0.3/24 dev eth0");
    let gone = Fact::RouteGone(default_route(&netns, &snapshot));
    source.find(|fact| (fact == gone).then_some(())).await;
    let added = source
        .find(|fact| match fact {
            Fact::Address(added) if added.netns == netns.inode => Some(added),
            _ => None,
        })
        .await;
    assert_eq!((added.address, added.prefix_len), (address("10.9.0.3"), 24));
}

#[tokio::test]
async fn a_namespace_without_a_link_to_the_host_is_listened_to_once_it_is_read() {
    let (netns, empty) = (Netns::new(), Netns::new());
    netns.ip(&format!("link add eth0 type veth peer name unused netns {}", empty.name));
    netns.ip("link set eth0 up");
    netns.ip("addr add 10.9.0.2/24 dev eth0");
    let mut source = Running::start(NetlinkConfig::default());
    let mut read = HashSet::new();
    while read.len() < 2 {
        match source.next().await {
            Fact::Netns(snapshot) if snapshot.netns == netns.inode => {
                assert!(!snapshot.unheard, "{snapshot:?}");
                read.insert(snapshot.netns);
            }
            Fact::Netns(snapshot) if snapshot.netns == empty.inode => {
                assert!(snapshot.unheard, "it has no need: {snapshot:?}");
                read.insert(snapshot.netns);
            }
            _ => {}
        }
    }
    netns.ip("route add default via 10.9.0.1");
    let route = |fact| match fact {
        Fact::Route(route) if route.netns == netns.inode => Some(route),
        _ => None,
    };
    assert_eq!(source.find(route).await.gateway, Some(address("10.9.0.1")));
    netns.delete();
    let gone = Fact::NetnsGone { netns: netns.inode };
    source.find(|fact| (fact == gone).then_some(())).await;
}

#[tokio::test]
async fn a_namespace_that_appears_is_found_and_one_that_dies_is_reported() {
    let mut source = Running::start(NetlinkConfig::default());
    source.up().await;
    let netns = Netns::new();
    netns.connect();
    let mut peer_reported = false;
    let mut snapshot = None;
    while !peer_reported || snapshot.is_none() {
        match source.next().await {
            Fact::Link(link) if link.ifname == netns.veth() => {
                peer_reported |= link.peer.is_some_and(|peer| peer.netns == Some(netns.inode));
            }
            Fact::Netns(read) if read.netns == netns.inode => snapshot = Some(read),
            _ => {}
        }
    }
    assert!(addresses(&snapshot.unwrap()).contains(&address("10.9.0.2")));
    netns.delete();
    let gone = Fact::NetnsGone { netns: netns.inode };
    source.find(|fact| (fact == gone).then_some(())).await;
}

#[tokio::test]
async fn a_request_is_answered_with_the_snapshot_or_with_the_absence() {
    let mut source = Running::start(NetlinkConfig::default());
    source.up().await;
    // Without a link to the host nothing announces it.
    let netns = Netns::new();
    source.requests.send(netns.inode).await.unwrap();
    assert_eq!(link(&source.snapshot(netns.inode).await, "lo").ifindex, 1);
    source.requests.send(1).await.unwrap();
    source.find(|fact| (fact == Fact::NetnsGone { netns: 1 }).then_some(())).await;
    let host = source.host;
    source.requests.send(host).await.unwrap();
    source.snapshot(host).await;
}

#[tokio::test]
async fn routes_that_vanish_without_a_message_are_noticed() {
    let netns = Netns::new();
    netns.connect();
    let mut source = Running::start(NetlinkConfig::default());
    let before = source.snapshot(netns.inode).await;
    let route = default_route(&netns, &before);
    assert!(before.routes.contains(&route));
    source.up().await;
    netns.ip("link set eth0 down");
    while source.snapshot(netns.inode).await.routes.contains(&route) {}
    netns.ip("link set eth0 up");
    netns.ip("route add default via 10.9.0.1");
    netns.ip("route replace default via 10.9.0.9");
    loop {
        let routes = source.snapshot(netns.inode).await.routes;
        if routes.iter().any(|route| route.gateway == Some(address("10.9.0.9"))) && !routes.contains(&route) {
            break;
        }
    }
}

#[tokio::test]
async fn a_pair_between_two_containers_is_reported_by_both() {
    let (one, two) = (Netns::new(), Netns::new());
    one.connect();
    two.connect();
    one.ip(&format!("link add left type veth peer name right netns {}", two.name));
    let mut source = Running::start(NetlinkConfig::default());
    let (mut left, mut right) = (None, None);
    while left.is_none() || right.is_none() {
        match source.next().await {
            Fact::Netns(snapshot) if snapshot.netns == one.inode => left = Some(snapshot),
            Fact::Netns(snapshot) if snapshot.netns == two.inode => right = Some(snapshot),
            _ => {}
        }
    }
    let (left, right) = (left.unwrap(), right.unwrap());
    assert_eq!(link(&left, "left").peer.as_ref().unwrap().netns, Some(two.inode));
    assert_eq!(link(&right, "right").peer.as_ref().unwrap().netns, Some(one.inode));
}

#[tokio::test]
async fn reading_a_namespace_keeps_nothing_of_it_alive() {
    let netns = Netns::new();
    netns.connect();
    let mut source = Running::start(NetlinkConfig::default());
    source.up().await;
    source.requests.send(netns.inode).await.unwrap();
    source.snapshot(netns.inode).await;
    // Other tests of this process may be reading theirs: only this namespace is looked for.
    let pinned = format!("net:[{}]", netns.inode);
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let held = fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    assert!(!held.into_iter().any(|target| target.to_string_lossy() == pinned));
    netns.delete();
    // The host's end goes with the last reference to the namespace.
    let veth = format!("/sys/class/net/{}", netns.veth());
    let vanished = async {
        while std::path::Path::new(&veth).exists() {
            tokio::task::yield_now().await;
        }
    };
    timeout(patience(), vanished).await.expect("something keeps the namespace alive");
}

#[tokio::test]
async fn a_message_from_a_process_is_not_believed() {
    use std::os::fd::AsRawFd;

    use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

    use super::super::socket::Subscription;
    let subscription = Subscription::open(1 << 20, &[]).unwrap();
    let port: nix::sys::socket::NetlinkAddr =
        nix::sys::socket::getsockname(subscription.as_raw_fd()).unwrap();
    let liar = Socket::new(NETLINK_ROUTE).unwrap();
    liar.send_to(b"forged", &SocketAddr::new(port.pid(), 0), 0).unwrap();
    let datagram = subscription.receive(&mut [0; 64]).unwrap();
    assert!(!datagram.from_kernel);
}

#[tokio::test]
async fn a_snapshot_has_the_tables_rules_and_nexthop_objects_that_make_gateways() {
    let netns = Netns::new();
    netns.connect();
    netns.ip("nexthop add id 5 via 10.9.0.5 dev eth0");
    netns.ip("nexthop add id 6 via 10.9.0.6 dev eth0");
    netns.ip("nexthop add id 7 group 5/6");
    netns.ip("route add default table 100 nhid 7");
    netns.ip("route add default via 10.9.0.8 table 200");
    netns.ip("rule add fwmark 1 lookup 100");
    for compatible in [1, 0] {
        let set = format!("echo {compatible} > /proc/sys/net/ipv4/nexthop_compat_mode");
        let done =
            Command::new("ip").args(["netns", "exec", &netns.name, "sh", "-c", &set]).status().unwrap();
        assert!(done.success());
        let mut source = Running::start(NetlinkConfig::default());
        let snapshot = source.snapshot(netns.inode).await;
        let in_use = gateways_in_use(&snapshot.routes, &snapshot.rules);
        let eth0 = link(&snapshot, "eth0").ifindex;
        let expected = ["10.9.0.1", "10.9.0.5", "10.9.0.6"].map(|via| (eth0, address(via)));
        assert_eq!(in_use.into_keys().collect::<Vec<_>>(), expected, "{snapshot:?}");
    }
}

#[tokio::test]
async fn a_rule_that_comes_or_goes_leads_to_a_new_snapshot() {
    let netns = Netns::new();
    netns.connect();
    netns.ip("route add default via 10.9.0.8 table 200");
    let mut source = Running::start(NetlinkConfig::default());
    let selected = |snapshot: &NetnsSnapshot| snapshot.rules.iter().any(|rule| rule.table == 200);
    assert!(!selected(&source.snapshot(netns.inode).await));
    source.up().await;
    netns.ip("rule add fwmark 1 lookup 200");
    while !selected(&source.snapshot(netns.inode).await) {}
    netns.ip("rule del fwmark 1 lookup 200");
    while selected(&source.snapshot(netns.inode).await) {}
}

#[tokio::test]
async fn a_rule_by_an_address_is_told() {
    let netns = Netns::new();
    netns.connect();
    netns.ip("rule add from 10.9.7.1 lookup 200");
    let mut source = Running::start(NetlinkConfig::default());
    source.snapshot(netns.inode).await;
    source.up().await;
    netns.ip("rule add to 10.9.7.2 iif eth0 lookup 200");
    let rule = source
        .find(|fact| match fact {
            Fact::Rule(rule) if rule.netns == netns.inode => Some(rule),
            _ => None,
        })
        .await;
    let to = Some((address("10.9.7.2"), 32));
    assert_eq!((rule.to, rule.iif.as_deref(), rule.table), (to, Some("eth0"), 200));
    netns.ip("rule del from 10.9.7.1 lookup 200");
    let gone = source
        .find(|fact| match fact {
            Fact::RuleGone(rule) if rule.netns == netns.inode => Some(rule),
            _ => None,
        })
        .await;
    assert_eq!(gone.from, Some((address("10.9.7.1"), 32)));
}
