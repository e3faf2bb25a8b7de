//! Advice follows the state in which it is read, and never feeds the failure.

use kevtmon_event::Incident;

use super::*;

fn commands(node: &TestNode) -> Vec<String> {
    node.open()[0].advice.iter().map(|step| step.command.clone()).collect()
}

fn repairs(node: &TestNode) -> bool {
    commands(node).iter().any(|command| command.contains("neigh replace"))
}

/// The gateway's entry is deleted by a process that the kubelet did not start.
fn lost_by_hand(mut node: TestNode) -> TestNode {
    let Fact::Task(facts) = calico() else { panic!() };
    let by_hand = TaskFacts { cgroup: Some("/user.slice/x.scope".into()), ancestors: Vec::new(), ..*facts };
    node.observe(Fact::Task(Box::new(by_hand)));
    node.delete_entry(ETCD, NeighborCause::Admin);
    node
}

#[test]
fn a_pod_is_to_be_deleted_only_where_no_older_sandbox_of_its_name_is_left() {
    let deletes =
        |node: &TestNode| commands(node).contains(&"kubectl -n lijiaob delete pod etcd1-0".to_owned());
    assert!(deletes(&lost_by_hand(TestNode::with_running_pod())));

    let mut node = TestNode::with_running_pod();
    let older = sandbox(&"9".repeat(64), 77, "lijiaob", "etcd1-0", "another uid");
    let older = ContainerFacts { state: ContainerState::Exited, tgid: None, netns: None, ..older };
    node.observe(Fact::Container(Box::new(older)));
    let node = lost_by_hand(node);
    assert!(!deletes(&node), "{:?}", commands(&node));
    assert!(commands(&node)[2].starts_with("docker ps --all"), "{:?}", commands(&node));
}

#[test]
fn a_pod_is_not_to_be_deleted_while_its_own_removal_is_feared_to_fail() {
    const OLD: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94fe";
    let deletes = |open: &Incident| open.advice.iter().any(|step| step.command.contains("delete pod"));
    let lost = |node: &TestNode| node.open().into_iter().find(|open| open.kind == KIND).unwrap();
    for (failed, seconds) in [(0, 1), (3, 1), (3, 200)] {
        let mut node = TestNode::with_running_pod();
        node.call(CniCommand::Add, SANDBOX, 0);
        for _ in 0..failed {
            node.call(CniCommand::Del, OLD, 1);
        }
        node.call(CniCommand::Del, OLD, 0);
        node.run_for(seconds * S);
        let mut node = lost_by_hand(node);
        node.run_for(3 * S);
        let told = node.incidents().into_iter().filter(|(_, told)| told.kind == KIND);
        assert!(told.count() > 0 && node.open().iter().any(|open| open.kind == "stale-cni-del"), "{failed}");
        assert!(!node.incidents().iter().any(|(_, told)| deletes(told)), "{:?}", lost(&node).advice);
        if seconds > 100 {
            continue;
        }
        node.run_for(700 * S);
        assert!(node.open().iter().all(|open| open.kind != "stale-cni-del"));
        assert!(deletes(&lost(&node)), "{:?}", lost(&node).advice);
    }
}

#[test]
fn an_entry_is_put_back_only_where_both_ends_are_up() {
    let mut node = lost();
    assert!(repairs(&node));
    let end = node.tables[&HOST].links[0].clone();
    let down = LinkFacts { flags: 0, ..end.clone() };
    node.observe(Fact::Link(Box::new(down)));
    assert!(!repairs(&node), "{:?}", commands(&node));
    let set_up = "ip link set cali9118ebbb10b up".to_owned();
    assert!(commands(&node).contains(&set_up), "{:?}", commands(&node));
    let own = node.tables[&ETCD].links[0].clone();
    let without_carrier = LinkFacts { flags: iff::UP, ..own.clone() };
    let updates = node.kinds().len();
    node.observe(Fact::Link(Box::new(without_carrier)));
    assert_eq!(node.kinds()[updates..], ["incident.updated"], "what was ruled out is taken back at once");
    assert!(!node.open()[0].ruled_out.iter().any(|healthy| healthy.ends_with(" is up")), "no end is");
    node.observe(Fact::Link(Box::new(end)));
    assert!(!repairs(&node) && !commands(&node).contains(&set_up), "{:?}", commands(&node));
    node.observe(Fact::Link(Box::new(own)));
    assert!(repairs(&node));
    assert!(node.events.iter().all(|event| event.kind != Kind::IncidentClosed));
}

#[test]
fn an_interface_that_was_set_down_inside_is_to_be_set_up_there() {
    let mut node = lost();
    let set_up = "nsenter -t 16707 -n ip link set dev eth0 up";
    let step = |node: &TestNode| {
        let [open] = &node.open()[..] else { panic!("{:?}", node.kinds()) };
        open.advice.iter().find(|step| step.command == set_up).cloned()
    };
    assert_eq!(step(&node), None);
    let own = node.tables[&ETCD].links[0].clone();
    node.observe(Fact::Link(Box::new(LinkFacts { flags: 0, ..own.clone() })));
    let found = step(&node).unwrap();
    let process = found.process.unwrap();
    assert_eq!((process.pid, process.links.len()), (16_707, 1), "only while it is in that namespace");
    assert!(!repairs(&node), "before that it is of no use");
    node.observe(Fact::Link(Box::new(own)));
    assert_eq!(step(&node), None);
}

#[test]
fn nothing_is_to_be_done_on_an_interface_that_is_gone() {
    let mut node = lost();
    assert!(commands(&node).iter().any(|command| command.contains("dev eth0")));
    node.tables.get_mut(&ETCD).unwrap().links.clear();
    node.tables.get_mut(&ETCD).unwrap().routes.clear();
    node.tables.get_mut(&HOST).unwrap().links.clear();
    node.observe(Fact::LinkGone { netns: ETCD, ifindex: 2, moved_to: None });
    node.run_for(S);
    assert!(!commands(&node).iter().any(|command| command.contains("dev eth0")), "{:?}", commands(&node));
    assert_eq!(node.open()[0].ruled_out, [""; 0]);
}

/// The bridge of the host that has the gateway's address; the host end of the pair is a port of it.
fn bridged() -> TestNode {
    let mut node = TestNode::with_running_pod();
    let host = node.tables.get_mut(&HOST).unwrap();
    let bridge = LinkFacts {
        ifindex: 900,
        ifname: "docker0".into(),
        kind: Some("bridge".into()),
        peer: None,
        ..host.links[0].clone()
    };
    host.links[0].mac = Some(LlAddr(vec![2, 0, 0, 0, 0, 9]));
    host.links[0].master = Some(900);
    host.links.push(bridge);
    host.addresses.push(AddressFacts { netns: HOST, ifindex: 900, address: gateway(), prefix_len: 24 });
    node.observe_netns(HOST);
    node.run_for(S);
    node.events.clear();
    node
}

#[test]
fn the_address_of_the_entry_is_said_of_the_bridge_that_has_it() {
    let mut node = bridged();
    node.delete_entry(ETCD, NeighborCause::Admin);
    assert_eq!(
        node.open()[0].ruled_out,
        [
            "eth0 is up",
            "the default route via 169.254.1.1 is in place",
            "its host end cali9118ebbb10b is up",
            "the bridge docker0 is up",
            "docker0 still has the MAC address ee:ee:ee:ee:ee:ee of the entry",
        ]
    );
    assert!(repairs(&node));
    let bridge = LinkFacts { flags: 0, ..node.tables[&HOST].links[1].clone() };
    node.tables.get_mut(&HOST).unwrap().links[1] = bridge.clone();
    node.observe(Fact::Link(Box::new(bridge)));
    // The pod's namespace is read again.
    node.run_for(2 * S);
    assert!(!repairs(&node), "nothing passes the bridge: {:?}", commands(&node));
}

#[test]
fn an_entry_is_not_to_be_replaced_where_the_host_end_has_left_the_bridge() {
    let mut node = bridged();
    let end = LinkFacts { master: None, ..node.tables[&HOST].links[0].clone() };
    node.tables.get_mut(&HOST).unwrap().links[0] = end.clone();
    node.observe(Fact::Link(Box::new(end)));
    node.run_for(20 * S);
    let open = &node.open()[0];
    assert!(
        open.summary.ends_with(
            "its static ARP entry on eth0 points to ee:ee:ee:ee:ee:ee, but cali9118ebbb10b is no port of docker0, \
             which has the gateway's address"
        ),
        "{}",
        open.summary
    );
    assert!(!repairs(&node), "the answers would not come back: {:?}", commands(&node));
    // That it has the address of the host end changes nothing.
    node.set_entry(ETCD, Some((NudState::PERMANENT, Some(mac(8)))));
    let end = LinkFacts { mac: Some(mac(8)), ..node.tables[&HOST].links[0].clone() };
    node.tables.get_mut(&HOST).unwrap().links[0] = end.clone();
    node.observe(Fact::Link(Box::new(end)));
    node.run_for(20 * S);
    assert_eq!(node.open().len(), 1);
    // But it does where the pod's address is not one of the bridge's subnet: something else leads to it.
    let address = AddressFacts { netns: ETCD, ifindex: 2, address: [192, 168, 1, 1].into(), prefix_len: 32 };
    node.tables.get_mut(&ETCD).unwrap().addresses.push(address);
    node.run_for(20 * S);
    assert!(node.open().is_empty());
}

#[test]
fn a_route_that_is_gone_is_not_said_to_be_in_place() {
    let mut node = lost();
    let in_place = format!("the default route via {} is in place", gateway());
    assert!(node.open()[0].ruled_out.contains(&in_place));
    let route = node.tables[&ETCD].routes[0].clone();
    node.observe(Fact::RouteGone(route.clone()));
    assert!(!node.open()[0].ruled_out.contains(&in_place), "{:?}", node.open()[0].ruled_out);
    node.observe(Fact::Route(route));
    assert!(node.open()[0].ruled_out.contains(&in_place));
}
