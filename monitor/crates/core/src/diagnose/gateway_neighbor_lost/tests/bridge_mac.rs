//! Bridges that get another MAC address, and pods that have the former one as their gateway's.

use super::*;

const BRIDGE: u32 = 90;
const OTHER: NsInum = 4_026_532_300;
const SHELL: u32 = 28_997;

fn lladdr(first: u8, last: u8) -> LlAddr {
    LlAddr(vec![first, 0, 0, 0, 0, last])
}

/// The addresses of the two ports: the bridge has the lower one.
fn low() -> LlAddr {
    lladdr(0x02, 0xbb)
}

fn high() -> LlAddr {
    lladdr(0x0a, 0xaa)
}

/// A node with the pods lijiaob/etcd1-0 and web/b on a bridge, which is their gateway and has the address of web/b's port.
fn bridged(state: NudState) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "va", state);
    node.add_pod(OTHER, "vb", state);
    for netns in [ETCD, OTHER] {
        node.set_entry(netns, Some((state, Some(low()))));
    }
    let host = node.tables.get_mut(&HOST).unwrap();
    for (link, mac) in host.links.iter_mut().zip([high(), low()]) {
        (link.master, link.mac) = (Some(BRIDGE), Some(mac));
    }
    let bridge = LinkFacts {
        kind: Some("bridge".into()),
        peer: None,
        mac: Some(low()),
        ..veth(HOST, BRIDGE, "cni9", 0, 0)
    };
    host.links.push(bridge);
    host.addresses.push(AddressFacts { netns: HOST, ifindex: BRIDGE, address: gateway(), prefix_len: 24 });
    node.start(vec![etcd_sandbox(), sandbox(&"b".repeat(64), OTHER, "web", "b", "uid-b")]);
    node.observe(calico());
    node.events.clear();
    node
}

fn link(node: &TestNode, ifname: &str) -> LinkFacts {
    node.tables[&HOST].links.iter().find(|link| link.ifname == ifname).unwrap().clone()
}

fn put(node: &mut TestNode, link: LinkFacts) {
    let links = &mut node.tables.get_mut(&HOST).unwrap().links;
    links.retain(|known| known.ifindex != link.ifindex);
    links.push(link.clone());
    node.observe(Fact::Link(Box::new(link)));
}

fn set_mac(node: &mut TestNode, ifname: &str, mac: LlAddr) {
    let link = LinkFacts { mac: Some(mac), ..link(node, ifname) };
    put(node, link);
}

fn act(node: &mut TestNode, ifindex: u32, op: LinkOp) {
    let actor = TaskRef { key: task_key(SHELL), tid: SHELL, comm: "calico".into(), context: None };
    let (netns, missing, netns_cookie) = (HOST, 0, None);
    node.observe(Fact::LinkAct(Box::new(LinkAct { netns, ifindex, op, missing, netns_cookie, actor })));
}

/// The port of web/b goes, in the order in which the kernel tells of it.
fn delete_port(node: &mut TestNode, by_somebody: bool) {
    if by_somebody {
        let port = link(node, "vb");
        act(node, port.ifindex, LinkOp::Deleted);
    }
    set_mac(node, "cni9", high());
    remove_port(node);
}

/// The same where the bridge keeps its address.
fn remove_port(node: &mut TestNode) {
    let LinkFacts { netns, ifindex, .. } = link(node, "vb");
    node.tables.get_mut(&HOST).unwrap().links.retain(|link| link.ifindex != ifindex);
    node.observe(Fact::LinkGone { netns, ifindex, moved_to: None });
}

#[track_caller]
fn opened(node: &TestNode) -> Event {
    let is_of_etcd = |event: &&Event| {
        event.kind == Kind::IncidentOpened && event.neighbor.as_ref().is_some_and(|entry| entry.netns == ETCD)
    };
    let opened = node.events.iter().rfind(is_of_etcd);
    opened.unwrap_or_else(|| panic!("{:?}", node.kinds())).clone()
}

fn commands(node: &TestNode) -> Vec<String> {
    node.open()[0].advice.iter().map(|step| step.command.clone()).collect()
}

const POINTS: &str = "pod lijiaob/etcd1-0 cannot reach its gateway 169.254.1.1: its ARP entry on eth0 points to \
                      02:00:00:00:00:bb, but the bridge cni9 has 0a:00:00:00:00:aa";

#[test]
fn pods_that_learned_the_former_address_of_a_bridge_are_told_with_who_deleted_the_port() {
    let mut node = bridged(NudState(0x02));
    delete_port(&mut node, true);
    let changed = node.events.iter().find(|event| event.kind == Kind::LinkChanged).unwrap();
    let link = changed.link.as_ref().unwrap();
    assert_eq!(
        (link.old_mac.as_deref(), link.mac.as_deref()),
        (Some("02:00:00:00:00:bb"), Some("0a:00:00:00:00:aa"))
    );
    let (seq, time) = (changed.seq, changed.time.clone());
    node.run_for(4 * S);
    assert_eq!(node.kinds(), [""; 0], "it may be learned anew at once");
    node.run_for(2 * S);
    let found = opened(&node);
    assert_eq!(
        found.message,
        format!("{POINTS} since veth vb of pod web/b was deleted by calico (pid 28997)")
    );
    let incident = found.incident.as_ref().unwrap();
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
    assert_eq!((incident.evidence.as_slice(), incident.count), (&[seq, seq + 1][..], 1));
    assert!(!incident.found_at_start);
    assert_eq!(incident.first_seen, time, "since when it is wrong");
    let actor = found.actor.as_ref().unwrap();
    assert_eq!((actor.pid, actor.confidence), (SHELL, Confidence::Likely));
    let entry = found.neighbor.as_ref().unwrap();
    assert_eq!((entry.reason.as_deref(), entry.state.as_deref()), (Some("wrong-lladdr"), Some("reachable")));
    let expected =
        ["nsenter -t 16707 -n ip neigh show dev eth0", "ip link set dev cni9 address 0a:00:00:00:00:aa"];
    assert_eq!(commands(&node), expected);

    // It is not critical, however long it takes, and over once the entry was learned anew.
    node.run_for(100 * S);
    assert_eq!(node.open()[0].severity, Severity::Warning);
    node.set_entry(ETCD, Some((NudState(0x02), Some(high()))));
    node.run_for(5 * S);
    assert_eq!(node.kinds().last(), Some(&"incident.closed"));
    assert_eq!(node.incidents().last().unwrap().1.close_reason, Some(CloseReason::Resolved));
}

#[test]
fn what_is_done_to_a_port_is_said_with_nobody_where_nobody_was_seen() {
    let silent = |change: fn(&mut TestNode)| {
        let mut node = bridged(NudState(0x04));
        change(&mut node);
        node.run_for(6 * S);
        let found = opened(&node);
        assert!(found.actor.is_none(), "{}", found.message);
        found.message
    };
    assert_eq!(
        silent(|node| delete_port(node, false)),
        format!("{POINTS} since veth vb of pod web/b was deleted")
    );
    // The port is told of first where it stays in the namespace.
    let left = silent(|node| {
        let port = LinkFacts { master: None, ..link(node, "vb") };
        put(node, port);
        set_mac(node, "cni9", high());
    });
    assert_eq!(left, format!("{POINTS} since veth vb of pod web/b left it"));
    let readdressed = silent(|node| {
        set_mac(node, "vb", lladdr(0x0b, 0xbb));
        set_mac(node, "cni9", high());
    });
    assert_eq!(readdressed, format!("{POINTS} since veth vb of pod web/b got another MAC address"));
    let set = silent(|node| set_mac(node, "cni9", high()));
    assert_eq!(set, POINTS);
    let lower = lladdr(0x00, 0xcc);
    let joined = silent(|node| {
        let lower = lladdr(0x00, 0xcc);
        let new = LinkFacts { mac: Some(lower.clone()), ..veth(HOST, 95, "vc", 7, 2) };
        put(node, new.clone());
        put(node, LinkFacts { master: Some(BRIDGE), ..new });
        set_mac(node, "cni9", lower);
    });
    let expected = format!("but the bridge cni9 has {lower} since veth vc became its port");
    assert!(joined.ends_with(&expected), "{joined}");
}

#[test]
fn a_port_that_cannot_have_changed_the_address_is_not_blamed() {
    // A higher one came at the same time.
    let mut node = bridged(NudState(0x02));
    let new = LinkFacts { mac: Some(lladdr(0x0b, 0xcc)), master: Some(BRIDGE), ..veth(HOST, 95, "vc", 7, 2) };
    put(&mut node, new);
    delete_port(&mut node, false);
    node.run_for(6 * S);
    assert!(
        opened(&node).message.ends_with("since veth vb of pod web/b was deleted"),
        "{}",
        opened(&node).message
    );

    // The one that had it went long after.
    let mut node = bridged(NudState(0x02));
    set_mac(&mut node, "cni9", high());
    node.run_for(3 * S);
    remove_port(&mut node);
    node.run_for(3 * S);
    assert_eq!(opened(&node).message, POINTS);
}

#[test]
fn nothing_is_wrong_where_the_bridge_keeps_its_address_or_has_it_again_or_the_pod_has_another() {
    type Change = fn(&mut TestNode);
    let cases: [(&str, Change); 7] = [
        ("one was set", remove_port),
        ("it comes back at once", |node| {
            set_mac(node, "cni9", high());
            node.run_for(2 * S);
            set_mac(node, "cni9", low());
        }),
        ("it was learned anew at once, of which no event tells", |node| {
            set_mac(node, "cni9", high());
            [ETCD, OTHER]
                .iter()
                .for_each(|netns| node.set_entry(*netns, Some((NudState(0x02), Some(high())))));
        }),
        ("the entry has to be resolved again", |node| {
            set_mac(node, "cni9", high());
            [ETCD, OTHER].iter().for_each(|netns| node.set_entry(*netns, None));
        }),
        ("another machine answers", |node| {
            for netns in [ETCD, OTHER] {
                node.set_entry(netns, Some((NudState(0x02), Some(mac(7)))));
                node.observe_netns(netns);
            }
            set_mac(node, "cni9", high());
        }),
        ("the gateway is elsewhere", |node| {
            let facts = AddressFacts { netns: HOST, ifindex: BRIDGE, address: gateway(), prefix_len: 24 };
            node.tables.get_mut(&HOST).unwrap().addresses.clear();
            node.observe(Fact::AddressGone(facts));
            set_mac(node, "cni9", high());
        }),
        ("the ports are of another bridge within it", |node| {
            let inner = LinkFacts { ifindex: 91, ifname: "br1".into(), ..link(node, "cni9") };
            put(node, inner);
            for port in ["va", "vb"] {
                let port = LinkFacts { master: Some(91), ..link(node, port) };
                put(node, port);
            }
            set_mac(node, "cni9", high());
        }),
    ];
    for (why, change) in cases {
        let mut node = bridged(NudState(0x02));
        change(&mut node);
        node.run_for(100 * S);
        assert_eq!(node.kinds(), [""; 0], "{why}");
    }
}

#[test]
fn an_entry_that_was_learned_anew_unseen_before_is_read_before_it_is_judged() {
    let mut node = bridged(NudState(0x02));
    let between = lladdr(0x03, 0xdd);
    set_mac(&mut node, "cni9", between.clone());
    [ETCD, OTHER]
        .iter()
        .for_each(|netns| node.set_entry(*netns, Some((NudState(0x02), Some(between.clone())))));
    node.run_for(2 * S);
    set_mac(&mut node, "cni9", high());
    node.run_for(10 * S);
    let found = opened(&node);
    assert!(
        found.message.contains("points to 03:00:00:00:00:dd, but the bridge cni9 has 0a:"),
        "{}",
        found.message
    );
    assert_eq!(node.open().len(), 2);
}

#[test]
fn a_static_entry_with_the_former_address_stays_wrong_and_becomes_critical() {
    let mut node = bridged(NudState::PERMANENT);
    delete_port(&mut node, true);
    node.run_for(8 * S);
    let found = opened(&node);
    let expected = "its static ARP entry on eth0 points to 02:00:00:00:00:bb, but the bridge cni9 has 0a:00:00:00:00:aa \
                    since veth vb of pod web/b was deleted by calico (pid 28997)";
    assert!(found.message.ends_with(expected), "{}", found.message);
    assert_eq!(node.open()[0].confidence, Confidence::Likely);
    let commands = commands(&node);
    let has = |words: &str| commands.iter().any(|command| command.contains(words));
    assert!(
        has("ip neigh replace 169.254.1.1 lladdr 0a:00:00:00:00:aa nud permanent dev eth0"),
        "{commands:?}"
    );
    assert!(has("ip link set dev cni9 address 0a:00:00:00:00:aa"), "{commands:?}");
    node.run_for(70 * S);
    assert_eq!(node.open()[0].severity, Severity::Critical);
}

#[test]
fn a_pod_that_sends_nothing_keeps_it_and_that_is_over_after_a_while() {
    let mut node = bridged(NudState(0x04));
    delete_port(&mut node, true);
    node.run_for(290 * S);
    assert_eq!(node.kinds(), ["incident.opened"]);
    node.run_for(1000 * S);
    assert_eq!(node.kinds(), ["incident.opened", "incident.closed"]);
    assert_eq!(node.incidents()[1].1.close_reason, Some(CloseReason::Expired));
}

#[test]
fn an_entry_that_is_resolved_again_is_no_longer_wrong_and_may_fail_by_itself() {
    let mut node = bridged(NudState(0x02));
    delete_port(&mut node, true);
    node.run_for(6 * S);
    node.set_entry(ETCD, Some((NudState::FAILED, None)));
    node.observe(failure(ETCD));
    node.run_for(5 * S);
    assert_eq!(node.kinds().last(), Some(&"incident.closed"));
    node.run_for(15 * S);
    assert!(opened(&node).message.contains("nothing answers"), "{}", opened(&node).message);
}

#[test]
fn it_goes_on_over_a_restart_of_the_daemon_and_is_over_when_the_entry_is_right() {
    let mut before = bridged(NudState(0x04));
    delete_port(&mut before, true);
    before.run_for(6 * S);
    let id = before.open()[0].id.clone();
    let mut next = TestNode::booted(before.resume_state());
    next.tables.clone_from(&before.tables);
    next.start(vec![etcd_sandbox(), sandbox(&"b".repeat(64), OTHER, "web", "b", "uid-b")]);
    next.run_for(20 * S);
    assert_eq!(next.open().iter().map(|incident| incident.id.clone()).collect::<Vec<_>>(), [id]);
    next.set_entry(ETCD, Some((NudState(0x02), Some(high()))));
    next.run_for(5 * S);
    assert_eq!(next.open(), []);
}
