//! Links: which changes become events.

use super::*;

#[test]
fn a_snapshot_emits_changes_of_which_no_message_was_received() {
    let mut core = core();
    let link = |ifname: &str, flags| LinkFacts {
        netns: POD,
        ifindex: 2,
        ifname: ifname.into(),
        kind: Some("veth".into()),
        flags,
        peer: Some(PeerLink { ifindex: 9, netns: Some(HOST) }),
        ..LinkFacts::default()
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
    assert!(emitted[0].resync && emitted[0].actor.is_none(), "it is marked as found later");
    assert_eq!(
        emitted[0].link.as_ref().unwrap().peer.as_ref().unwrap().ifindex,
        9,
        "the other end stays known"
    );
    core.observe(at(3, with(Vec::new())));
    assert_eq!(events(&mut core)[0].kind, Kind::LinkDeleted);
    core.observe(at(4, Fact::LinkGone { netns: POD, ifindex: 2, moved_to: None }));
    assert!(events(&mut core).is_empty(), "the message that comes late is no second event");
    core.observe(at(5, Fact::Link(Box::new(link("eth1", iff::UP)))));
    assert!(!events(&mut core)[0].resync, "of this one the kernel told");
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
        ..LinkFacts::default()
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
        peer: Some(PeerLink { ifindex: 9, netns }),
        ..LinkFacts::default()
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
            ..LinkFacts::default()
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
                ..LinkFacts::default()
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
            ..LinkFacts::default()
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
fn a_physical_link_that_comes_is_not_said_to_have_been_created() {
    for (kind, expected) in [
        (Some("macvlan"), "macvlan net1 of pod lijiaob/etcd1-0 created"),
        (None, "link net1 of pod lijiaob/etcd1-0 appeared"),
    ] {
        let mut core = settled();
        let link = LinkFacts {
            netns: POD,
            ifindex: 3,
            ifname: "net1".into(),
            kind: kind.map(str::to_owned),
            ..LinkFacts::default()
        };
        core.observe(at(5, Fact::Link(Box::new(link))));
        assert_eq!(events(&mut core)[0].message, expected);
    }
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

/// The host's end of the pod's pair.
pub(super) fn end(flags: u32) -> LinkFacts {
    LinkFacts {
        netns: HOST,
        ifindex: 9,
        ifname: "cali91".into(),
        kind: Some("veth".into()),
        flags,
        peer: Some(PeerLink { ifindex: 2, netns: Some(POD) }),
        ..LinkFacts::default()
    }
}

fn write(tgid: u32, name: &str, old: &str, new: &str) -> Fact {
    let key = TaskKey { tgid, start_ns: 5, exec_id: 2 };
    let actor = TaskRef { key, tid: tgid, comm: "sysctl".into(), context: None };
    let (name, old, new) = (name.to_owned(), old.to_owned(), new.to_owned());
    Fact::SysctlWrite(Box::new(SysctlWrite {
        netns: HOST,
        name,
        old,
        new,
        missing: 0,
        netns_cookie: None,
        actor,
    }))
}

#[test]
fn who_wrote_a_sysctl_is_named_for_what_the_kernel_tells_to_have_changed() {
    let mut core = settled();
    core.observe(at(2, Fact::Link(Box::new(end(iff::UP)))));
    let told = |ifindex, forwarding| InterfaceSysctls { ifindex, forwarding, ..InterfaceSysctls::default() };
    let all = [None, Some(9)].map(|ifindex| told(ifindex, Some(true)));
    core.observe(at(3, Fact::HostSysctls { sysctls: all.to_vec(), all: true }));
    events(&mut core);
    core.observe(at(4, write(7, "net/ipv4/ip_forward", "1", "0")));
    let [written] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(
        written.message,
        "sysctl net.ipv4.ip_forward of the host: 0 written (before: 1), likely by sysctl (pid 7)"
    );
    assert_eq!((written.kind, written.severity), (Kind::SysctlChanged, Severity::Info));
    let mut change = |when, sysctls| {
        core.observe(at(when, Fact::HostSysctls { sysctls: vec![sysctls], all: false }));
        let actor = |event: Event| event.actor.map(|actor| (actor.pid, actor.confidence));
        events(&mut core).into_iter().map(actor).collect::<Vec<_>>()
    };
    assert_eq!(change(5, told(None, Some(false))), [Some((7, Confidence::Likely))]);
    assert_eq!(change(6, told(None, Some(true))), [None], "it was seen to write something else");
    core.observe(at(7, write(8, "net/ipv4/conf/cali91/forwarding", "1", "0")));
    core.observe(at(8, write(9, "net/ipv4/conf/all/forwarding", "1", "0")));
    core.observe(at(8, write(9, "net/ipv4/conf/cali91/accept_local", "1", "0")));
    core.observe(at(8, write(9, "net/ipv4/conf/all/rp_filter", "0", "0")));
    assert_eq!(events(&mut core).len(), 2, "of interest, and another value");
    let mut change = |sysctls| {
        core.observe(at(9, Fact::HostSysctls { sysctls: vec![sysctls], all: false }));
        events(&mut core).remove(0).actor.map(|actor| actor.pid)
    };
    assert_eq!(change(told(Some(9), Some(false))), Some(8));
    assert_eq!(change(told(None, Some(false))), Some(9));
}

#[test]
fn a_sysctl_of_a_link_that_changes_is_a_change_of_the_link_by_nobody() {
    let mut core = settled();
    core.observe(at(2, Fact::Link(Box::new(end(iff::UP)))));
    let told = |ifindex, proxy, rp_filter| InterfaceSysctls {
        ifindex,
        proxy,
        rp_filter,
        ..InterfaceSysctls::default()
    };
    let all = [None, Some(9), Some(5)].map(|ifindex| told(ifindex, Some(false), Some(RpFilter::Off)));
    core.observe(at(3, Fact::HostSysctls { sysctls: all.to_vec(), all: true }));
    events(&mut core);
    let mut change = |sysctls| {
        core.observe(at(4, Fact::HostSysctls { sysctls: vec![sysctls], all: false }));
        events(&mut core)
    };
    let on = change(told(Some(9), Some(true), None)).remove(0);
    assert_eq!(on.message, "veth cali91 of pod lijiaob/etcd1-0 changed: proxy-arp-on");
    assert!(on.actor.is_none() && on.link.unwrap().up == Some(true));
    assert_eq!(on.kind, Kind::LinkProxyArp);
    let strict = change(told(None, None, Some(RpFilter::Strict))).remove(0);
    assert_eq!(strict.kind, Kind::LinkChanged);
    assert_eq!(strict.link.as_ref().unwrap().change, ["rp-filter-strict"]);
    assert_eq!((strict.link.unwrap().up, strict.severity), (None, Severity::Notice));
    assert!(change(told(Some(5), Some(true), None)).is_empty(), "the link is not known");
    assert!(change(told(Some(9), Some(true), None)).is_empty(), "it was so");
    let ndp = InterfaceSysctls { ipv6: true, ..told(Some(9), Some(true), None) };
    assert!(change(ndp.clone()).is_empty(), "it was not known");
    let off = InterfaceSysctls { proxy: Some(false), ..ndp };
    assert_eq!(change(off).remove(0).link.unwrap().change, ["proxy-ndp-off"]);
    let both = change(told(None, Some(true), Some(RpFilter::Loose)));
    let both: Vec<_> = both.into_iter().map(|one| (one.kind, one.link.unwrap().change.remove(0))).collect();
    let expected = [(Kind::LinkProxyArp, "proxy-arp-on"), (Kind::LinkChanged, "rp-filter-loose")];
    assert_eq!(both, expected.map(|(kind, change)| (kind, change.to_owned())));
}

#[test]
fn where_the_hook_does_not_work_the_call_of_a_plugin_that_is_under_way_has_likely_changed_the_link() {
    let told = || Fact::Link(Box::new(end(0)));
    let seen_by = |hook_is_up, calls: &[&str], netns, fact: Fact| {
        let mut core = settled();
        let hook = match hook_is_up {
            true => SourceStatus::up(SourceKind::Hook, "hook.link"),
            false => SourceStatus::down(SourceKind::Hook, "hook.link", "off"),
        };
        core.observe(at(2, Fact::Source(hook)));
        core.observe(at(2, Fact::Link(Box::new(end(iff::UP)))));
        for (index, id) in calls.iter().enumerate() {
            let tgid = 31_000 + u32::try_from(index).unwrap();
            let actor = TaskRef {
                key: TaskKey { tgid, start_ns: 9, exec_id: 1 },
                tid: tgid,
                comm: "calico".into(),
                context: None,
            };
            let exec = CniExec { actor, container_id: Some((*id).to_owned()), ..call() };
            core.observe(at(3 * MS, Fact::CniExec(Box::new(exec))));
        }
        let asked = requests(&mut core);
        for request in asked {
            if let Request::CniNetns { id, .. } = request {
                core.observe(at(
                    4 * MS,
                    Fact::CniNetns(CniNetns { id, netns: Some(netns), started_ns: None }),
                ));
            }
        }
        core.observe(at(5 * MS, fact));
        let changed = events(&mut core).into_iter().find(|event| event.kind == Kind::LinkChanged).unwrap();
        changed.actor.map(|actor| (actor.pid, actor.source, actor.confidence))
    };
    let seen = |hook_is_up, calls: &[&str], netns| seen_by(hook_is_up, calls, netns, told());
    assert_eq!(seen(false, &[ID], POD), Some((31_000, ActorSource::CniWindow, Confidence::Likely)));
    let Fact::Netns(bare) = snapshot(HOST) else { unreachable!() };
    let read = Fact::Netns(Box::new(NetnsSnapshot { links: vec![end(0)], ..*bare }));
    assert_eq!(seen_by(false, &[ID], POD, read), None, "a snapshot does not tell when it was done");
    assert_eq!(seen(true, &[ID], POD), None, "the hook would have seen it");
    assert_eq!(seen(false, &[], POD), None);
    assert_eq!(seen(false, &[ID], POD + 1), None, "it is for another pod");
    assert_eq!(seen(false, &[ID, &ID.replace('9', "8")], POD), None, "of two nobody knows which");
}

fn call() -> CniExec {
    CniExec {
        actor: TaskRef {
            key: TaskKey { tgid: 31_000, start_ns: 9, exec_id: 1 },
            tid: 31_000,
            comm: "calico".into(),
            context: None,
        },
        plugin: "/opt/cni/bin/calico".into(),
        command: CniCommand::Del,
        container_id: Some(ID.into()),
        netns: Some("/proc/16707/ns/net".into()),
        ifname: Some("eth0".into()),
        pod: None,
        truncated: false,
    }
}

#[test]
fn a_peer_that_is_found_late_is_not_of_the_pod_that_had_the_number_of_the_namespace_before() {
    let mut core = core();
    core.observe(at(1, snapshot(HOST)));
    core.observe(at(2, container(ContainerState::Running)));
    core.observe(at(3, container(ContainerState::Exited)));
    let peer = Some(PeerLink { ifindex: 2, netns: None });
    core.observe(at(4, Fact::Link(Box::new(LinkFacts { peer, ..end(iff::UP) }))));
    events(&mut core);
    core.observe(at(5, Fact::Link(Box::new(end(iff::UP)))));
    let change = events(&mut core).remove(0);
    assert_eq!(change.link.as_ref().unwrap().change, ["peer"]);
    let target = change.target.unwrap();
    assert!(target.container.is_none() && target.pod.is_none(), "{target:?}");
}
