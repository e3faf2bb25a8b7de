//! Links and routes: which changes become events.

use super::*;

#[test]
fn of_routes_only_default_ones_of_the_main_table_give_events() {
    let mut core = settled();
    let default = RouteFacts::default_via(POD, "10.8.0.1".parse().unwrap(), 9);
    let half = RouteFacts { destination: Some(("0.0.0.0".parse().unwrap(), 1)), ..default.clone() };
    let other = RouteFacts { table: 100, ..default.clone() };
    [half, other, default].into_iter().for_each(|route| core.observe(at(10, Fact::Route(route))));
    let kinds: Vec<Kind> = events(&mut core).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::RouteAdded]);
}

#[test]
fn a_snapshot_emits_changes_of_which_no_message_was_received() {
    let mut core = core();
    let link = |ifname: &str, flags| LinkFacts {
        netns: POD,
        ifindex: 2,
        ifname: ifname.into(),
        kind: Some("veth".into()),
        flags,
        mac: None,
        master: None,
        peer: Some(PeerLink { ifindex: 9, netns: Some(HOST) }),
        lower: None,
    };
    let with = |links: Vec<LinkFacts>| {
        let Fact::Netns(bare) = snapshot(POD) else { unreachable!() };
        Fact::Netns(Box::new(NetnsSnapshot { links, ..*bare }))
    };
    core.observe(at(1, with(vec![link("eth0", iff::UP)])));
    assert!(events(&mut core).is_empty(), "the first one is the initial state");
    core.observe(at(2, with(vec![LinkFacts { peer: None, ..link("eth0", 0) }])));
    let emitted = events(&mut core);
    assert_eq!(emitted[0].link.as_ref().unwrap().change, ["down"]);
    assert_eq!(
        emitted[0].link.as_ref().unwrap().peer.as_ref().unwrap().ifindex,
        9,
        "the other end stays known"
    );
    core.observe(at(3, with(Vec::new())));
    assert_eq!(events(&mut core)[0].kind, Kind::LinkDeleted);
    core.observe(at(4, Fact::LinkGone { netns: POD, ifindex: 2, moved_to: None }));
    assert!(events(&mut core).is_empty(), "the message that comes late is no second event");
}

#[test]
fn a_link_moved_to_another_namespace_is_a_move() {
    let mut core = core();
    let Fact::Netns(bare) = snapshot(HOST) else { unreachable!() };
    let link = LinkFacts {
        netns: HOST,
        ifindex: 2,
        ifname: "tmp0".into(),
        kind: Some("veth".into()),
        flags: 0,
        mac: None,
        master: None,
        peer: None,
        lower: None,
    };
    core.observe(at(1, Fact::Netns(Box::new(NetnsSnapshot { links: vec![link], ..*bare }))));
    let moved_to = Some(PeerLink { ifindex: 3, netns: Some(POD) });
    core.observe(at(2, Fact::LinkGone { netns: HOST, ifindex: 2, moved_to }));
    let emitted = events(&mut core);
    assert_eq!(emitted[0].kind, Kind::LinkMoved);
    assert_eq!(emitted[0].link.as_ref().unwrap().moved_to.as_ref().unwrap().netns, Some(POD));
}

#[test]
fn a_link_that_went_with_one_of_another_namespace_is_said_to_have_gone_with_it() {
    let link = |netns| LinkFacts {
        netns: POD,
        ifindex: 2,
        ifname: "eth0".into(),
        kind: Some("veth".into()),
        flags: iff::UP,
        mac: None,
        master: None,
        peer: Some(PeerLink { ifindex: 9, netns }),
        lower: None,
    };
    let said = |link: LinkFacts, actor: Option<TaskRef>| {
        let mut core = settled();
        core.observe(at(8, Fact::Link(Box::new(link.clone()))));
        // The kernel reports first that the peer is gone.
        core.observe(at(9, Fact::Link(Box::new(LinkFacts { peer: None, flags: 0, ..link }))));
        events(&mut core);
        let change = NeighborChange { actor, ..change(NeighborOp::Deleted, NeighborCause::LinkDeleted) };
        core.observe(at(10, Fact::Neighbor(Box::new(change))));
        // The link itself goes from the model meanwhile.
        core.observe(at(10, Fact::LinkGone { netns: POD, ifindex: 2, moved_to: None }));
        core.observe(at(11, Fact::ProcessState(ProcessState { tgid: 16_707, alive: true })));
        let mut events = events(&mut core).into_iter();
        let event = events.find(|event| event.kind == Kind::NeighborDeleted).unwrap();
        assert_eq!(event.severity, Severity::Warning);
        event.message.split_once("etcd1-0 deleted ").unwrap().1.to_owned()
    };
    assert_eq!(
        said(link(Some(99)), None),
        "because the link was deleted with its peer, whose network namespace 99 ended"
    );
    let plain = "because the link was deleted";
    assert_eq!(said(link(Some(HOST)), None), plain, "the host's namespace never ends");
    assert_eq!(said(link(None), None), plain);
    let by = deletion_actor();
    assert_eq!(said(link(Some(99)), by), "by calico (pid 28997), by deleting the link");
}

#[test]
fn a_cause_that_was_there_long_before_is_none() {
    let lladdr = |last| Some(LlAddr(vec![2, 0, 0, 0, 0, last]));
    let cause_of = |flags: u32, claimed: NeighborCause, now: u8, since: u64| {
        let mut core = settled();
        let link = LinkFacts {
            netns: POD,
            ifindex: 2,
            ifname: "eth0".into(),
            kind: Some("veth".into()),
            flags,
            mac: lladdr(1),
            master: None,
            peer: None,
            lower: None,
        };
        core.observe(at(2, Fact::Link(Box::new(link))));
        events(&mut core);
        let change = NeighborChange { device_lladdr: lladdr(now), ..change(NeighborOp::Deleted, claimed) };
        core.observe(at(2 + since, Fact::Neighbor(Box::new(change))));
        core.observe(at(2_000 * MS + since, Fact::Tick));
        events(&mut core)[0].neighbor.as_ref().unwrap().cause.clone()
    };
    use NeighborCause::{LastAddressRemoved, LinkDown, Noarp};
    let long = 3_000 * MS;
    for (flags, claimed, name) in [
        (0, LinkDown, "link-down"),
        (iff::UP | iff::NOARP, Noarp, "noarp"),
        (iff::UP, LastAddressRemoved, "last-address-removed"),
    ] {
        assert_eq!(cause_of(flags, claimed, 1, MS), name, "the message about it may come first");
        assert_eq!(cause_of(flags, claimed, 9, long), "lladdr-changed");
        assert_eq!(cause_of(flags, claimed, 1, long), "unknown");
    }
    assert_eq!(cause_of(iff::UP, LinkDown, 1, long), "link-down");
    assert_eq!(cause_of(iff::UP, Noarp, 1, long), "noarp");
}

#[test]
fn the_hardware_address_of_a_link_that_is_not_known_is_not_said_to_have_changed() {
    let lladdr = |last| Some(LlAddr(vec![2, 0, 0, 0, 0, last]));
    for (known, expected) in [(None, "unknown"), (lladdr(1), "unknown"), (lladdr(9), "lladdr-changed")] {
        let mut core = settled();
        if let Some(mac) = known {
            let link = LinkFacts {
                netns: POD,
                ifindex: 2,
                ifname: "eth0".into(),
                kind: Some("veth".into()),
                flags: iff::UP,
                mac: Some(mac),
                master: None,
                peer: None,
                lower: None,
            };
            core.observe(at(2, Fact::Link(Box::new(link))));
        }
        events(&mut core);
        // Also where it became a port, or its MTU too small for IPv6.
        let change = change(NeighborOp::Deleted, NeighborCause::LladdrChanged);
        let change = NeighborChange { device_lladdr: lladdr(1), ..change };
        core.observe(at(3_000 * MS, Fact::Neighbor(Box::new(change))));
        core.observe(at(9_000 * MS, Fact::Tick));
        let cause = events(&mut core).remove(0).neighbor.unwrap().cause;
        assert_eq!(cause, expected);
    }
}

#[test]
fn an_unchanged_link_emits_nothing_and_a_changed_one_lists_the_changes() {
    let mut core = settled();
    let link = |flags| {
        Fact::Link(Box::new(LinkFacts {
            netns: POD,
            ifindex: 2,
            ifname: "eth0".into(),
            kind: Some("veth".into()),
            flags,
            mac: None,
            master: None,
            peer: None,
            lower: None,
        }))
    };
    core.observe(at(1, link(iff::UP)));
    assert_eq!(events(&mut core)[0].kind, Kind::LinkCreated);
    core.observe(at(2, link(iff::UP)));
    assert!(events(&mut core).is_empty());
    core.observe(at(3, link(0)));
    let emitted = events(&mut core);
    assert_eq!(emitted[0].link.as_ref().unwrap().change, ["down"]);
    assert_eq!(emitted[0].message, "veth eth0 of pod lijiaob/etcd1-0 changed: down");
    core.observe(at(4, Fact::LinkGone { netns: POD, ifindex: 2, moved_to: None }));
    assert_eq!(events(&mut core)[0].kind, Kind::LinkDeleted);
}

#[test]
fn what_leads_by_an_interface_that_becomes_ready_is_read_where_some_did_not() {
    let link =
        |flags| LinkFacts { netns: POD, ifindex: 2, ifname: "eth0".into(), flags, ..LinkFacts::default() };
    let gateway = "10.8.0.2".parse().unwrap();
    for (dead_gateways, is_read) in
        [(vec![(2, gateway)], true), (vec![(3, gateway)], false), (Vec::new(), false)]
    {
        let mut core = core();
        let Fact::Netns(bare) = snapshot(POD) else { unreachable!() };
        let tables = NetnsSnapshot { links: vec![link(iff::UP)], dead_gateways, ..*bare };
        core.observe(at(1, Fact::Netns(Box::new(tables))));
        requests(&mut core);
        core.observe(at(2, Fact::Link(Box::new(link(iff::UP | iff::RUNNING)))));
        assert_eq!(requests(&mut core).contains(&Request::Netns { netns: POD }), is_read);
    }
}
