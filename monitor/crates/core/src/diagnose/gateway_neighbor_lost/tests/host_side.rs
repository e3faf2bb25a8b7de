//! Gateways that the pods learn, and what is done to the host's side: who did it is named.

use super::*;
use crate::state::Hop;

/// A node on which lijiaob/etcd1-0 runs, whose gateway was learned, and a second pod beside it.
fn learned() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState(0x02));
    node.add_pod(100, "cali0000000000a", NudState(0x02));
    node.start(vec![etcd_sandbox(), sandbox(&"b".repeat(64), 100, "lijiaob", "web-0", "uid-0")]);
    node.observe(calico());
    node.events.clear();
    node
}

/// The host's end of a pod's pair.
fn end(node: &TestNode, netns: NsInum) -> LinkFacts {
    let links = &node.tables[&HOST].links;
    links
        .iter()
        .find(|link| link.peer.as_ref().is_some_and(|peer| peer.netns == Some(netns)))
        .unwrap()
        .clone()
}

fn act(node: &mut TestNode, link: &LinkFacts, op: LinkOp) {
    let actor = TaskRef { key: task_key(28_997), tid: 28_997, comm: "calico".into(), context: None };
    let LinkFacts { netns, ifindex, .. } = *link;
    node.observe(Fact::LinkAct(Box::new(LinkAct {
        netns,
        ifindex,
        op,
        missing: 0,
        netns_cookie: None,
        actor,
    })));
}

fn put(node: &mut TestNode, link: LinkFacts) {
    let links = &mut node.tables.get_mut(&link.netns).unwrap().links;
    *links.iter_mut().find(|known| known.ifindex == link.ifindex).unwrap() = link.clone();
    node.observe(Fact::Link(Box::new(link)));
}

fn set_down(node: &mut TestNode, link: LinkFacts, by_somebody: bool) {
    if by_somebody {
        act(node, &link, LinkOp::Closed);
    }
    put(node, LinkFacts { flags: 0, ..link });
}

/// Nothing answers any more, for so long that it is told.
fn fail(node: &mut TestNode, netns: NsInum) {
    node.set_entry(netns, Some((NudState::FAILED, None)));
    node.observe(failure(netns));
    node.run_for(15 * S);
}

fn sysctls(ifindex: Option<u32>, forwarding: bool, proxy: bool) -> InterfaceSysctls {
    InterfaceSysctls {
        ifindex,
        ipv6: false,
        forwarding: Some(forwarding),
        proxy: Some(proxy),
        rp_filter: Some(RpFilter::Off),
    }
}

/// The sysctls as Calico sets them.
fn read_sysctls(node: &mut TestNode) {
    let ends = [ETCD, 100].map(|netns| sysctls(Some(end(node, netns).ifindex), true, true));
    let sysctls = [sysctls(None, true, false)].into_iter().chain(ends).collect();
    node.observe(Fact::HostSysctls { sysctls, all: true });
}

fn switch_proxy(node: &mut TestNode, netns: NsInum, on: bool) {
    let ifindex = Some(end(node, netns).ifindex);
    let told = InterfaceSysctls { ifindex, proxy: Some(on), ..InterfaceSysctls::default() };
    node.observe(Fact::HostSysctls { sysctls: vec![told], all: false });
}

#[track_caller]
fn opened(node: &TestNode) -> Event {
    let opened = node.events.iter().rfind(|event| event.kind == Kind::IncidentOpened);
    opened.unwrap_or_else(|| panic!("{:?}", node.kinds())).clone()
}

fn advised(event: &Event) -> Vec<String> {
    let incident = event.incident.as_ref().unwrap();
    incident.advice.iter().map(|step| step.command.clone()).collect()
}

#[test]
fn who_set_the_host_end_down_is_named_for_a_gateway_that_does_not_answer() {
    let mut node = learned();
    let link = end(&node, ETCD);
    set_down(&mut node, link, true);
    let down = node.events.iter().find(|event| event.kind == Kind::LinkChanged).unwrap().seq;
    fail(&mut node, ETCD);
    let opened = opened(&node);
    assert_eq!(
        opened.message,
        "pod lijiaob/etcd1-0 cannot reach its gateway 169.254.1.1: nothing answers its ARP requests on eth0, and its \
         host end cali9118ebbb10b was set down by calico (pid 28997)"
    );
    assert_eq!(opened.actor.as_ref().map(|actor| actor.pid), Some(28_997));
    let incident = opened.incident.as_ref().unwrap();
    assert!(incident.evidence.contains(&down) && incident.count == 1, "{incident:?}");
    assert!(advised(&opened).contains(&"ip link set cali9118ebbb10b up".to_owned()));
}

#[test]
fn nobody_is_named_where_nobody_was_seen_or_the_end_was_set_down_later_or_is_up_again() {
    for seen in [false, true] {
        let mut node = learned();
        let link = end(&node, ETCD);
        if seen {
            node.set_entry(ETCD, Some((NudState::FAILED, None)));
            node.observe(failure(ETCD));
        }
        set_down(&mut node, link, seen);
        fail(&mut node, ETCD);
        let opened = opened(&node);
        assert!(opened.message.contains("its host end cali9118ebbb10b is down"), "{}", opened.message);
        assert!(opened.actor.is_none(), "seen: {seen}");
    }
    let mut node = learned();
    let link = end(&node, ETCD);
    set_down(&mut node, link.clone(), true);
    put(&mut node, link);
    fail(&mut node, ETCD);
    let opened = opened(&node);
    assert!(opened.message.ends_with("nothing answers its ARP requests on eth0"), "{}", opened.message);
    assert!(opened.actor.is_none());
}

#[test]
fn a_bridge_that_is_down_is_why_none_of_its_pods_has_a_gateway() {
    let mut node = learned();
    let bridge = LinkFacts {
        netns: HOST,
        ifindex: 90,
        ifname: "cni0".into(),
        kind: Some("bridge".into()),
        flags: iff::UP | iff::LOWER_UP,
        ..LinkFacts::default()
    };
    node.tables.get_mut(&HOST).unwrap().links.push(bridge.clone());
    node.observe(Fact::Link(Box::new(bridge.clone())));
    let port = LinkFacts { master: Some(90), ..end(&node, ETCD) };
    put(&mut node, port);
    set_down(&mut node, bridge, true);
    fail(&mut node, ETCD);
    let opened = opened(&node);
    assert!(
        opened.message.ends_with("and the bridge cni0 was set down by calico (pid 28997)"),
        "{}",
        opened.message
    );
    assert!(advised(&opened).contains(&"ip link set cni0 up".to_owned()));
}

#[test]
fn a_host_that_no_longer_answers_for_others_is_why_nothing_answers() {
    let mut node = learned();
    read_sysctls(&mut node);
    switch_proxy(&mut node, ETCD, false);
    let off = node.events.last().unwrap();
    assert_eq!(off.link.as_ref().unwrap().change, ["proxy-arp-off"]);
    assert_eq!(off.kind, Kind::LinkProxyArp);
    assert!(
        off.message.contains("cali9118ebbb10b") && off.message.contains("lijiaob/etcd1-0"),
        "{}",
        off.message
    );
    assert!(off.actor.is_none());
    let off = off.seq;
    fail(&mut node, ETCD);
    let opened = opened(&node);
    let expected = "and proxy_arp is off on its host end cali9118ebbb10b; who switched it off was not seen";
    assert!(opened.message.ends_with(expected), "{}", opened.message);
    assert!(opened.incident.as_ref().unwrap().evidence.contains(&off) && opened.actor.is_none());
    let set = "sysctl -w net/ipv4/conf/cali9118ebbb10b/proxy_arp=1".to_owned();
    assert!(advised(&opened).contains(&set), "{:?}", advised(&opened));
}

fn write(node: &mut TestNode, tgid: u32, name: &str, new: &str) {
    node.observe(Fact::SysctlWrite(Box::new(SysctlWrite {
        netns: HOST,
        name: format!("net/ipv4/{name}"),
        old: if new == "0" { "1".into() } else { "0".into() },
        new: new.into(),
        missing: 0,
        netns_cookie: None,
        actor: TaskRef { key: task_key(tgid), tid: tgid, comm: "sysctl".into(), context: None },
    })));
}

#[test]
fn of_a_sysctl_that_was_switched_off_twice_the_last_one_is_to_blame() {
    let mut node = learned();
    read_sysctls(&mut node);
    let end = end(&node, ETCD);
    let switch = |node: &mut TestNode, tgid, ifindex: Option<u32>, on: bool| {
        let name = ifindex.map_or("all", |_| &end.ifname);
        write(node, tgid, &format!("conf/{name}/proxy_arp"), if on { "1" } else { "0" });
        let told = InterfaceSysctls { ifindex, proxy: Some(on), ..InterfaceSysctls::default() };
        node.observe(Fact::HostSysctls { sysctls: vec![told], all: false });
    };
    switch(&mut node, 1, None, true);
    switch(&mut node, 2, Some(end.ifindex), false);
    switch(&mut node, 3, None, false);
    fail(&mut node, ETCD);
    assert_eq!(opened(&node).actor.as_ref().unwrap().pid, 3, "{}", opened(&node).message);
}

#[test]
fn who_switched_forwarding_off_is_to_blame_where_that_is_why_nothing_answers() {
    let mut node = learned();
    read_sysctls(&mut node);
    write(&mut node, 902, "ip_forward", "0");
    let off = InterfaceSysctls { forwarding: Some(false), ..InterfaceSysctls::default() };
    node.observe(Fact::HostSysctls { sysctls: vec![off], all: false });
    for netns in [ETCD, 100] {
        let ifindex = Some(end(&node, netns).ifindex);
        let off = InterfaceSysctls { ifindex, forwarding: Some(false), ..InterfaceSysctls::default() };
        node.observe(Fact::HostSysctls { sysctls: vec![off], all: false });
    }
    fail(&mut node, ETCD);
    let opened = opened(&node);
    let expected = "and the host forwards nothing (net.ipv4.ip_forward is 0); it was switched off, likely by sysctl (pid 902)";
    assert!(opened.message.ends_with(expected), "{}", opened.message);
    assert_eq!(opened.actor.as_ref().unwrap().pid, 902);
}

#[test]
fn a_sysctl_that_was_off_all_along_is_why_only_where_other_pods_need_it() {
    let mut node = learned();
    let ends = [ETCD, 100].map(|netns| end(&node, netns).ifindex);
    let all = |of_other| {
        vec![
            sysctls(None, true, false),
            sysctls(Some(ends[0]), true, false),
            sysctls(Some(ends[1]), true, of_other),
        ]
    };
    node.observe(Fact::HostSysctls { sysctls: all(true), all: true });
    fail(&mut node, ETCD);
    let message = opened(&node).message;
    assert!(message.ends_with("and proxy_arp is off on its host end cali9118ebbb10b"), "{message}");
    let mut node = learned();
    node.observe(Fact::HostSysctls { sysctls: all(false), all: true });
    fail(&mut node, ETCD);
    let opened = opened(&node);
    assert!(opened.message.ends_with("nothing answers its ARP requests on eth0"), "{}", opened.message);
    assert!(!advised(&opened).iter().any(|command| command.contains("sysctl")), "somebody else answers");
}

#[test]
fn a_host_that_forwards_nothing_answers_for_nobody() {
    let mut node = learned();
    read_sysctls(&mut node);
    let forwarding =
        |ifindex| InterfaceSysctls { ifindex, forwarding: Some(false), ..InterfaceSysctls::default() };
    let mut told = vec![forwarding(None)];
    told.extend([ETCD, 100].map(|netns| forwarding(Some(end(&node, netns).ifindex))));
    for one in told {
        node.observe(Fact::HostSysctls { sysctls: vec![one], all: false });
    }
    let [of_all] = &node.events[..] else { panic!("{:?}", node.events) };
    assert_eq!((of_all.severity, of_all.link.as_ref().unwrap().ifname.as_str()), (Severity::Notice, "all"));
    assert_eq!(of_all.message, "the sysctls of all interfaces of the host changed: forwarding-off");
    fail(&mut node, ETCD);
    let opened = opened(&node);
    let expected =
        "and the host forwards nothing (net.ipv4.ip_forward is 0); who switched it off was not seen";
    assert!(opened.message.ends_with(expected), "{}", opened.message);
    let sysctls: Vec<String> = advised(&opened).into_iter().filter(|one| one.starts_with("sysctl")).collect();
    assert_eq!(sysctls, ["sysctl -w net/ipv4/ip_forward=1"]);
}

#[test]
fn a_host_that_forwarded_nothing_all_along_answers_for_nobody() {
    let off = |node: &TestNode, proxy| {
        let mut all = vec![sysctls(None, false, false)];
        all.extend([ETCD, 100].map(|netns| sysctls(Some(end(node, netns).ifindex), false, proxy)));
        Fact::HostSysctls { sysctls: all, all: true }
    };
    let set = |event: &Event| {
        advised(event).into_iter().filter(|one| one.starts_with("sysctl")).collect::<Vec<String>>()
    };
    let mut node = learned();
    let fact = off(&node, true);
    node.observe(fact);
    fail(&mut node, ETCD);
    let event = opened(&node);
    let expected = "and the host forwards nothing (net.ipv4.ip_forward is 0)";
    assert!(event.message.ends_with(expected), "{}", event.message);
    assert_eq!(
        (set(&event), event.actor.is_none()),
        (vec!["sysctl -w net/ipv4/ip_forward=1".to_owned()], true)
    );
    // It is not known to answer for others at all.
    let mut node = learned();
    let fact = off(&node, false);
    node.observe(fact);
    fail(&mut node, ETCD);
    let event = opened(&node);
    assert!(event.message.ends_with("nothing answers its ARP requests on eth0"), "{}", event.message);
    assert_eq!(set(&event), [""; 0]);
}

#[test]
fn where_both_sysctls_are_off_both_are_advised() {
    let mut node = learned();
    let ends = [ETCD, 100].map(|netns| Some(end(&node, netns).ifindex));
    let all = vec![sysctls(None, true, false), sysctls(ends[0], false, false), sysctls(ends[1], true, true)];
    node.observe(Fact::HostSysctls { sysctls: all, all: true });
    fail(&mut node, ETCD);
    let event = opened(&node);
    let set: Vec<String> = advised(&event).into_iter().filter(|one| one.starts_with("sysctl")).collect();
    assert_eq!(
        set,
        ["proxy_arp", "forwarding"]
            .map(|sysctl| format!("sysctl -w net/ipv4/conf/cali9118ebbb10b/{sysctl}=1"))
    );
}

#[test]
fn an_end_that_alone_forwards_nothing_is_mended_alone() {
    let mut node = learned();
    read_sysctls(&mut node);
    let ifindex = Some(end(&node, ETCD).ifindex);
    let off = InterfaceSysctls { ifindex, forwarding: Some(false), ..InterfaceSysctls::default() };
    node.observe(Fact::HostSysctls { sysctls: vec![off], all: false });
    fail(&mut node, ETCD);
    let opened = opened(&node);
    assert!(
        opened.message.contains(
            "and forwarding is off on its host end cali9118ebbb10b; who switched it off was not seen"
        ),
        "{}",
        opened.message
    );
    let set = "sysctl -w net/ipv4/conf/cali9118ebbb10b/forwarding=1".to_owned();
    assert!(advised(&opened).contains(&set), "{:?}", advised(&opened));
}

#[test]
fn what_was_mended_was_not_ruled_out() {
    type Step<'a> = &'a dyn Fn(&mut TestNode);
    let up = "its host end cali9118ebbb10b is up";
    let answers = "proxy_arp is on for its host end cali9118ebbb10b";
    let cases: [(Step<'_>, Step<'_>, &str, &str); 2] = [
        (&|node| switch_proxy(node, ETCD, false), &|node| switch_proxy(node, ETCD, true), answers, up),
        (
            &|node| set_down(node, end(node, ETCD), true),
            &|node| put(node, LinkFacts { flags: iff::UP | iff::LOWER_UP, ..end(node, ETCD) }),
            up,
            answers,
        ),
    ];
    for (break_it, mend, blamed, healthy) in cases {
        let mut node = learned();
        read_sysctls(&mut node);
        break_it(&mut node);
        fail(&mut node, ETCD);
        mend(&mut node);
        node.set_entry(ETCD, Some((NudState(0x02), Some(host_mac()))));
        node.run_for(3 * S);
        let incident = node.last_incident().incident.clone().unwrap();
        assert_eq!(incident.close_reason, Some(CloseReason::Resolved));
        let has = |text: &str| incident.ruled_out.iter().any(|one| one == text);
        assert!(!has(blamed) && has(healthy), "{incident:?}");
    }
}

#[test]
fn why_nothing_answers_is_said_as_it_is_by_now() {
    let mut node = learned();
    read_sysctls(&mut node);
    switch_proxy(&mut node, ETCD, false);
    fail(&mut node, ETCD);
    assert!(node.open()[0].summary.contains("proxy_arp is off on"));
    switch_proxy(&mut node, ETCD, true);
    node.run_for(5 * S);
    assert!(node.open()[0].summary.contains("proxy_arp is off on"), "an answer may still come");
    node.run_for(15 * S);
    let incident = &node.open()[0];
    assert!(incident.summary.ends_with("nothing answers its ARP requests on eth0"), "{}", incident.summary);
    assert!(incident.ruled_out.contains(&"proxy_arp is on for its host end cali9118ebbb10b".to_owned()));
    let link = end(&node, ETCD);
    set_down(&mut node, link, true);
    node.run_for(5 * S);
    let incident = &node.open()[0];
    assert!(incident.summary.ends_with("its host end cali9118ebbb10b is down"), "{}", incident.summary);
    assert!(incident.advice.iter().any(|step| step.command == "ip link set cali9118ebbb10b up"));
    assert!(node.last_incident().actor.is_none(), "it failed before");
}

#[test]
fn a_restart_keeps_why_nothing_answers_until_that_is_mended() {
    let mut before = learned();
    let link = end(&before, ETCD);
    set_down(&mut before, link.clone(), true);
    fail(&mut before, ETCD);
    let summary = before.open()[0].summary.clone();
    assert!(summary.ends_with("was set down by calico (pid 28997)"), "{summary}");
    let mut node = TestNode::booted(before.resume_state());
    node.now = before.now;
    node.tables.clone_from(&before.tables);
    node.start(vec![etcd_sandbox()]);
    node.run_for(20 * S);
    assert_eq!(node.open()[0].summary, summary);
    put(&mut node, link);
    node.run_for(20 * S);
    let summary = &node.open()[0].summary;
    assert!(summary.ends_with("nothing answers its ARP requests on eth0"), "{summary}");
    assert!(node.last_incident().actor.is_none());
}

#[test]
fn what_the_host_answers_is_ruled_out() {
    let mut node = learned();
    read_sysctls(&mut node);
    switch_proxy(&mut node, ETCD, false);
    switch_proxy(&mut node, ETCD, true);
    fail(&mut node, ETCD);
    let opened = opened(&node);
    assert!(opened.message.ends_with("nothing answers its ARP requests on eth0"), "{}", opened.message);
    let healthy = &opened.incident.as_ref().unwrap().ruled_out;
    let expected = "proxy_arp is on for its host end cali9118ebbb10b".to_owned();
    assert!(healthy.contains(&expected), "{healthy:?}");
}

#[test]
fn who_deleted_the_interface_of_a_learned_gateway_is_named() {
    let mut node = learned();
    let (host_end, inner) = (end(&node, ETCD), node.tables[&ETCD].links[0].clone());
    for link in [&host_end, &inner] {
        act(&mut node, link, LinkOp::Deleted);
        node.tables.get_mut(&link.netns).unwrap().links.retain(|known| known.ifindex != link.ifindex);
    }
    let tables = node.tables.get_mut(&ETCD).unwrap();
    (tables.routes, tables.neighbors) = (Vec::new(), Vec::new());
    for link in [&host_end, &inner] {
        node.observe(Fact::LinkGone { netns: link.netns, ifindex: link.ifindex, moved_to: None });
    }
    node.observe_netns(ETCD);
    node.run_for(90 * S);
    let opened = opened(&node);
    assert_eq!(
        opened.message,
        "pod lijiaob/etcd1-0 has lost its gateway 169.254.1.1: its ARP entry on eth0 is gone together with eth0, which was \
         deleted by calico (pid 28997)"
    );
    assert_eq!(opened.actor.as_ref().map(|actor| actor.pid), Some(28_997));
}

/// What is broken on the way of lijiaob/etcd1-0, and where.
fn broken(node: &TestNode) -> Vec<String> {
    let state = node.core.state(node.now);
    let pod = state.pods.iter().find(|pod| pod.pod.name.as_deref() == Some("etcd1-0")).unwrap();
    let place = |hop: &Hop| hop.gateway.map_or_else(|| hop.ifname.clone(), |gateway| gateway.to_string());
    pod.path
        .iter()
        .flat_map(|hop| hop.broken.iter().map(move |broken| format!("{}: {broken}", place(hop))))
        .collect()
}

#[test]
fn the_state_shows_where_the_way_of_a_pod_is_broken_and_its_incidents() {
    let mut node = learned();
    read_sysctls(&mut node);
    assert_eq!(broken(&node), [""; 0]);
    let state = node.core.state(node.now);
    let shown: Vec<(&str, &str)> =
        state.pods[0].path.iter().map(|hop| (&*hop.ifname, &*hop.facts[0])).collect();
    let reached = "reachable ee:ee:ee:ee:ee:ee, by which the host is reached";
    assert_eq!(shown, [("eth0", "up"), ("eth0", reached), ("cali9118ebbb10b", "up")]);
    assert_eq!(state.pods[0].path[2].facts, ["up", "forwarding 1", "proxy_arp 1", "rp_filter 0"]);
    assert_eq!(state.uplinks[0].broken, ["the node has no default route"]);
    let link = end(&node, ETCD);
    set_down(&mut node, link, true);
    fail(&mut node, ETCD);
    assert_eq!(broken(&node), ["169.254.1.1: failed: nothing answers", "cali9118ebbb10b: down"]);
    let state = node.core.state(node.now);
    let incident = &state.pods[0].incidents[0];
    assert_eq!((&*incident.kind, state.pods[0].incidents.len()), (KIND, 1));
    assert!(state.pods[1].incidents.is_empty(), "the other pod has none");
}

#[test]
fn a_pod_without_a_route_or_an_interface_is_shown_as_that() {
    let mut node = learned();
    node.tables.get_mut(&ETCD).unwrap().routes.clear();
    node.observe_netns(ETCD);
    assert_eq!(broken(&node), ["eth0: no default route"]);
    node.tables.get_mut(&ETCD).unwrap().links.clear();
    node.observe_netns(ETCD);
    assert_eq!(broken(&node), [": no interface but the loopback"]);
}

#[test]
fn a_host_that_has_lost_its_default_route_likely_answers_for_nobody() {
    let uplink = || RouteFacts::default_via(HOST, "10.47.136.1".parse().unwrap(), 2);
    let lost = |is_lost: bool, is_back: bool, has_subnet: bool, by: Option<TaskRef>| {
        let mut node = learned();
        let ends = [ETCD, 100].map(|netns| end(&node, netns).ifindex);
        let of_ends = ends.map(|ifindex| sysctls(Some(ifindex), true, true));
        let all = [vec![sysctls(None, true, false)], of_ends.to_vec()].concat();
        node.observe(Fact::HostSysctls { sysctls: all, all: true });
        if has_subnet {
            let address = "169.254.7.7".parse().unwrap();
            node.observe(Fact::Address(AddressFacts { netns: HOST, ifindex: 2, address, prefix_len: 16 }));
        }
        if is_lost {
            node.observe(Fact::Route(uplink()));
            if let Some(actor) = by {
                let ops = vec![RouteOp::RouteDeleted(uplink())];
                let act = RouteAct { netns: HOST, ops, missing: 0, netns_cookie: None, actor };
                node.observe(Fact::RouteAct(Box::new(act)));
            }
            node.observe(Fact::RouteGone(uplink()));
        }
        if is_back {
            node.observe(Fact::Route(uplink()));
        }
        fail(&mut node, ETCD);
        opened(&node)
    };
    let opened = lost(true, false, false, None);
    let expected = "and the host has lost its default route, which is likely why";
    assert!(opened.message.ends_with(expected), "{}", opened.message);
    assert!(opened.actor.is_none());
    assert!(opened.incident.as_ref().unwrap().evidence.len() > 1, "its event is evidence");
    let key = TaskKey { tgid: 28_997, start_ns: 5, exec_id: 2 };
    let by = TaskRef { key, tid: 28_997, comm: "calico".into(), context: None };
    let opened = lost(true, false, false, Some(by));
    let named = format!("{expected}; the route was deleted by calico (pid 28997)");
    assert!(opened.message.ends_with(&named), "{}", opened.message);
    assert_eq!(
        opened.actor.as_ref().map(|actor| (actor.pid, actor.confidence)),
        Some((28_997, Confidence::Likely))
    );
    for other in
        [lost(false, false, false, None), lost(true, true, false, None), lost(true, false, true, None)]
    {
        assert!(!other.message.contains("default route, which"), "{}", other.message);
    }
}

const ADDRESS: &str = "192.168.252.66";
const UPLINK: u32 = 2;

/// The same node with an uplink, and with the address of lijiaob/etcd1-0, to which the host has a route.
fn routed() -> TestNode {
    let mut node = learned();
    let address = AddressFacts { netns: ETCD, ifindex: 2, address: ADDRESS.parse().unwrap(), prefix_len: 32 };
    node.tables.get_mut(&ETCD).unwrap().addresses.push(address);
    let uplink = LinkFacts { kind: None, peer: None, ..veth(HOST, UPLINK, "eth1", 0, 0) };
    node.tables.get_mut(&HOST).unwrap().links.push(uplink.clone());
    node.observe(Fact::Link(Box::new(uplink)));
    read_sysctls(&mut node);
    node.observe_netns(ETCD);
    node.run_for(2 * S);
    node.events.clear();
    node
}

/// Calico has the host route the pod's address by an interface, which the kernel answers from then on.
fn route_by(node: &mut TestNode, ifindex: u32) {
    let found = Some(FoundRoute::By { ifindex }).filter(|_| ifindex == UPLINK);
    change_route(node, ifindex, true, found);
}

/// Calico adds or deletes a route to the pod's address, and this is what the kernel answers from then on.
fn change_route(node: &mut TestNode, ifindex: u32, is_added: bool, found: Option<FoundRoute>) {
    let address = ADDRESS.parse().unwrap();
    let route = RouteFacts {
        destination: Some((address, 32)),
        gateway: None,
        ..RouteFacts::default_via(HOST, address, ifindex)
    };
    node.elsewhere.remove(&address);
    node.elsewhere.extend(found.map(|found| (address, found)));
    let actor = TaskRef { key: task_key(28_997), tid: 28_997, comm: "calico".into(), context: None };
    let (op, told) = match is_added {
        true => (RouteOp::RouteAdded(route.clone()), Fact::Route(route)),
        false => (RouteOp::RouteDeleted(route.clone()), Fact::RouteGone(route)),
    };
    node.observe(Fact::RouteAct(Box::new(RouteAct {
        netns: HOST,
        ops: vec![op],
        missing: 0,
        netns_cookie: None,
        actor,
    })));
    node.observe(told);
    node.run_for(2 * S);
}

fn set_filter(node: &mut TestNode, ifindex: Option<u32>, filter: RpFilter) {
    set_filter_by(node, 902, ifindex, filter);
}

fn set_filter_by(node: &mut TestNode, tgid: u32, ifindex: Option<u32>, filter: RpFilter) {
    let of = ifindex.map_or("all", |_| "cali9118ebbb10b");
    write(node, tgid, &format!("conf/{of}/rp_filter"), &filter.number().to_string());
    let told = InterfaceSysctls { ifindex, rp_filter: Some(filter), ..InterfaceSysctls::default() };
    node.observe(Fact::HostSysctls { sysctls: vec![told], all: false });
}

/// The end of what is said of the gateway that does not answer.
fn why(node: &TestNode) -> String {
    let open = node.open();
    let summary = &open.iter().find(|incident| incident.kind == KIND).unwrap().summary;
    summary.split_once("its ARP requests on eth0").unwrap().1.to_owned()
}

const STRICT: &str = ", and rp_filter 1 on its host end cali9118ebbb10b likely drops them: the host routes 192.168.252.66 by eth1";

#[test]
fn who_set_rp_filter_is_to_blame_where_the_host_routed_the_pod_elsewhere_before() {
    for of_all in [false, true] {
        let mut node = routed();
        let ifindex = Some(end(&node, ETCD).ifindex).filter(|_| !of_all);
        route_by(&mut node, UPLINK);
        set_filter(&mut node, ifindex, RpFilter::Strict);
        let set = node.events.last().unwrap();
        assert_eq!(set.link.as_ref().unwrap().change, ["rp-filter-strict"]);
        let set = set.seq;
        fail(&mut node, ETCD);
        assert_eq!(why(&node), format!("{STRICT}; rp_filter was set, likely by sysctl (pid 902)"));
        let opened = opened(&node);
        assert_eq!(opened.actor.as_ref().unwrap().pid, 902);
        assert!(opened.incident.as_ref().unwrap().evidence.contains(&set));
        let of = if of_all { "all" } else { "cali9118ebbb10b" };
        let mended: Vec<String> = advised(&opened)
            .into_iter()
            .filter(|one| one.contains("sysctl") || one.contains("route"))
            .collect();
        assert_eq!(mended, [format!("sysctl -w net/ipv4/conf/{of}/rp_filter=0")]);
        set_filter(&mut node, ifindex, RpFilter::Off);
        node.set_entry(ETCD, Some((NudState(0x02), Some(host_mac()))));
        node.run_for(3 * S);
        let incident = node.last_incident().incident.clone().unwrap();
        assert_eq!(incident.close_reason, Some(CloseReason::Resolved));
        assert!(!incident.ruled_out.iter().any(|one| one.contains("rp_filter")), "{incident:?}");
    }
}

#[test]
fn who_routed_the_pod_elsewhere_is_to_blame_where_rp_filter_was_on_before() {
    let mut node = routed();
    let own = end(&node, ETCD).ifindex;
    set_filter(&mut node, Some(own), RpFilter::Strict);
    node.run_for(40 * S);
    route_by(&mut node, UPLINK);
    // That changes nothing of it.
    set_filter(&mut node, None, RpFilter::Strict);
    fail(&mut node, ETCD);
    assert_eq!(why(&node), format!("{STRICT}; the route was changed by calico (pid 28997)"));
    let opened = opened(&node);
    let actor = opened.actor.as_ref().unwrap();
    assert_eq!((actor.pid, actor.confidence), (28_997, Confidence::Likely));
    let again = "ip route replace 192.168.252.66 dev cali9118ebbb10b scope link".to_owned();
    assert!(advised(&opened).contains(&again), "{:?}", advised(&opened));
    assert!(!advised(&opened).iter().any(|command| command.contains("sysctl")));
    // The gateway does not answer yet, for whatever reason.
    route_by(&mut node, own);
    node.run_for(20 * S);
    assert_eq!(why(&node), "");
}

#[test]
fn nobody_is_blamed_for_rp_filter_where_what_led_the_route_elsewhere_was_not_seen() {
    let mut node = routed();
    let ifindex = Some(end(&node, ETCD).ifindex);
    set_filter(&mut node, ifindex, RpFilter::Strict);
    // A rule does.
    node.elsewhere.insert(ADDRESS.parse().unwrap(), FoundRoute::By { ifindex: UPLINK });
    node.run_for(40 * S);
    fail(&mut node, ETCD);
    assert_eq!((why(&node), opened(&node).actor.is_none()), (STRICT.to_owned(), true));
}

#[test]
fn who_changed_a_route_is_to_blame_only_where_packets_go_so_because_of_it() {
    let by = |ifindex| Some(FoundRoute::By { ifindex });
    let own = end(&routed(), ETCD).ifindex;
    for (ifindex, is_added, found, is_blamed) in [
        (UPLINK, true, by(UPLINK), true),
        // One that has a worse metric, while another one leads elsewhere.
        (UPLINK, true, by(99), false),
        (UPLINK, true, Some(FoundRoute::Nothing), false),
        (own, false, by(UPLINK), true),
        (own, false, Some(FoundRoute::Default { ifindex: UPLINK }), true),
        (own, false, Some(FoundRoute::Nothing), true),
        (own, false, Some(FoundRoute::Discards), false),
        (own, true, by(UPLINK), false),
    ] {
        let mut node = routed();
        set_filter(&mut node, Some(own), RpFilter::Strict);
        change_route(&mut node, ifindex, is_added, found);
        node.run_for(40 * S);
        fail(&mut node, ETCD);
        let named = opened(&node).actor.is_some_and(|actor| actor.pid == 28_997);
        assert_eq!((named, why(&node).contains("; ")), (is_blamed, is_blamed), "{found:?}");
    }
}

#[test]
fn who_changed_a_route_is_not_to_blame_where_a_rule_was_changed_since() {
    for (to, is_blamed) in [(None, false), (Some(ADDRESS), false), (Some("192.168.252.67"), true)] {
        let mut node = routed();
        let ifindex = end(&node, ETCD).ifindex;
        set_filter(&mut node, Some(ifindex), RpFilter::Strict);
        route_by(&mut node, UPLINK);
        let to = to.map(|to| (to.parse().unwrap(), 32));
        let rule = PolicyRule { netns: HOST, priority: 100, to, table: 100, ..PolicyRule::default() };
        node.observe(Fact::Rule(Box::new(rule)));
        node.run_for(40 * S);
        fail(&mut node, ETCD);
        assert!(why(&node).starts_with(STRICT), "{}", why(&node));
        assert_eq!(opened(&node).actor.is_some(), is_blamed, "{to:?}");
    }
}

#[test]
fn who_set_rp_filter_where_packets_were_dropped_already_is_not_to_blame() {
    use RpFilter::{Loose, Strict};
    let own = Some(end(&routed(), ETCD).ifindex);
    for (sets, blamed) in [
        ([(902, own, Strict), (903, None, Strict)], Some(902)),
        ([(902, None, Strict), (903, own, Strict)], Some(902)),
        // Who made it loose first is not known any more: but it was not who had changed the route before.
        ([(902, own, Loose), (903, own, Strict)], None),
    ] {
        let mut node = routed();
        route_by(&mut node, UPLINK);
        for (tgid, ifindex, filter) in sets {
            set_filter_by(&mut node, tgid, ifindex, filter);
        }
        fail(&mut node, ETCD);
        assert!(why(&node).starts_with(STRICT), "{}", why(&node));
        assert_eq!(opened(&node).actor.map(|actor| actor.pid), blamed, "{sets:?}");
    }
}

#[test]
fn rp_filter_is_why_only_where_it_drops_what_the_pod_sends() {
    let said = |filter: RpFilter, found: Option<FoundRoute>, has_address: bool| {
        let mut node = routed();
        let ifindex = end(&node, ETCD).ifindex;
        if has_address {
            let address = "10.77.0.1".parse().unwrap();
            node.observe(Fact::Address(AddressFacts { netns: HOST, ifindex, address, prefix_len: 32 }));
        }
        set_filter(&mut node, Some(ifindex), filter);
        node.elsewhere.extend(found.map(|found| (ADDRESS.parse::<IpAddr>().unwrap(), found)));
        node.run_for(40 * S);
        fail(&mut node, ETCD);
        why(&node)
    };
    let by = Some(FoundRoute::By { ifindex: UPLINK });
    for (filter, found, has_address) in [
        (RpFilter::Off, by, false),
        (RpFilter::Strict, None, false),
        (RpFilter::Strict, Some(FoundRoute::Other), false),
        (RpFilter::Loose, by, true),
    ] {
        assert_eq!(said(filter, found, has_address), "", "{filter:?} {found:?}");
    }
    assert_eq!(said(RpFilter::Strict, by, true), STRICT);
    assert_eq!(said(RpFilter::Loose, by, false), STRICT.replace("rp_filter 1", "rp_filter 2"));
    let nothing = said(RpFilter::Loose, Some(FoundRoute::Nothing), true);
    assert!(
        nothing.ends_with("likely drops them: the host has no usable route to 192.168.252.66"),
        "{nothing}"
    );
}
