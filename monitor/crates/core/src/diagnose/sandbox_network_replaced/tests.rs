//! Sandboxes that are restarted under their ids, and what becomes of their network.

use kevtmon_event::Incident;
use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

/// The namespace of the restarted sandbox.
const NEW: NsInum = 4_026_532_400;
const UID: &str = "3f0f6a0e-2f6a-4d4e-9d1f-1f2f3f4f5f6f";
const EMPTY: &str = "pod lijiaob/etcd1-0 lost its network: its sandbox 291716a39be9 was restarted, by whom is not known, and has a \
                     new network namespace that no CNI plugin set up";

/// A run of the sandbox, which began then.
fn run(tgid: u32, started: BootNs, netns: NsInum) -> ContainerFacts {
    ContainerFacts { tgid: Some(tgid), started_ns: Some(started), netns: Some(netns), ..etcd_sandbox() }
}

fn loopback(netns: NsInum) -> LinkFacts {
    let lo = veth(netns, 1, "lo", HOST, 0);
    LinkFacts { kind: None, peer: None, flags: lo.flags | iff::LOOPBACK, ..lo }
}

fn owner(tgid: u32) -> NetnsOwner {
    NetnsOwner { tgid, start_ns: 5, comm: "pause".into(), cgroup: None }
}

/// lijiaob/etcd1-0 runs with an interface, in a namespace with this cookie, if the kernel has them.
fn node_with(cookie: Option<u64>) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    let tables = node.tables.get_mut(&ETCD).unwrap();
    (tables.cookie, tables.owner) = (cookie, Some(owner(100)));
    tables.links.push(loopback(ETCD));
    node.start(vec![run(100, 0, ETCD)]);
    node.observe(Fact::Source(SourceStatus::up(SourceKind::Hook, "hook.exec")));
    node.run_for(5 * S);
    node.events.clear();
    node
}

fn node() -> TestNode {
    node_with(Some(1))
}

fn told(facts: ContainerFacts) -> Fact {
    Fact::Container(Box::new(facts))
}

/// The sandbox ends, and its namespace if nobody is left there.
fn stop(node: &mut TestNode, is_left: bool) {
    node.observe(told(ContainerFacts { state: ContainerState::Exited, tgid: None, ..run(100, 0, ETCD) }));
    if !is_left {
        node.end_network(ETCD);
        node.observe_netns(ETCD);
    }
}

/// It is started again, in a namespace that has nothing but the loopback.
fn start(node: &mut TestNode, netns: NsInum, cookie: Option<u64>) {
    let tables = NetnsSnapshot {
        cookie,
        owner: Some(owner(200)),
        links: vec![loopback(netns)],
        ..NetnsSnapshot::empty(netns)
    };
    node.tables.insert(netns, tables);
    node.observe(told(run(200, node.now, netns)));
    node.observe_netns(netns);
}

fn set_up(node: &mut TestNode, netns: NsInum) {
    let eth0 = veth(netns, 7, "eth0", HOST, 70);
    node.tables.get_mut(&netns).unwrap().links.push(eth0.clone());
    node.observe(Fact::Link(Box::new(eth0)));
}

fn found(node: &TestNode) -> Vec<Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

#[track_caller]
fn only(node: &TestNode) -> Incident {
    let [incident] = &found(node)[..] else { panic!("{:?}", node.kinds()) };
    incident.clone()
}

#[track_caller]
fn expect_closed(node: &TestNode, reason: CloseReason) {
    let of_it = |(_, incident): &&(Kind, &Incident)| incident.kind == KIND;
    let incidents = node.incidents();
    let last = incidents.iter().rfind(of_it).unwrap().1;
    assert_eq!(last.close_reason, Some(reason), "{last:?}");
}

#[test]
fn a_sandbox_that_is_restarted_has_lost_the_network_of_its_pod() {
    for (is_left, netns, cookie) in [
        (false, NEW, Some(2)),
        (true, NEW, Some(2)),
        (false, ETCD, Some(2)),
        (false, ETCD, None),
        (true, NEW, None),
    ] {
        let mut node = node_with(cookie.map(|_| 1));
        stop(&mut node, is_left);
        start(&mut node, netns, cookie);
        node.run_for(10 * S);
        assert!(found(&node).is_empty(), "another one may be made at once");
        node.run_for(2 * S);
        let incident = only(&node);
        assert_eq!(incident.summary, EMPTY, "{netns} {cookie:?}");
        assert_eq!((incident.severity, incident.confidence), (Severity::Critical, Confidence::Certain));
        assert_eq!(incident.evidence.len(), 2, "its end and its start");
        let [step] = &incident.advice[..] else { panic!("{:?}", incident.advice) };
        assert_eq!(step.command, "kubectl -n lijiaob delete pod etcd1-0");
        assert!(node.last_incident().actor.is_none());
    }
}

/// Somebody executes a client of a runtime that is to start these.
fn ask(node: &mut TestNode, tgid: u32, containers: &[&str]) {
    let actor = TaskRef { key: task_key(tgid), tid: tgid, comm: "docker".into(), context: None };
    let containers = containers.iter().map(|&name| name.to_owned()).collect();
    node.observe(Fact::ContainerStart(Box::new(ContainerStart { actor, containers })));
}

#[test]
fn who_asked_for_the_restart_last_is_named() {
    let name = etcd_sandbox().name;
    for (asked, is_named) in
        [(&[&SANDBOX[..12]][..], true), (&["web", &name], true), (&["web", "2917x"], false)]
    {
        let mut node = node();
        ask(&mut node, 800, &[SANDBOX]);
        node.run_for(S);
        ask(&mut node, 812, asked);
        if !is_named {
            node.run_for(180 * S);
        }
        stop(&mut node, false);
        start(&mut node, NEW, Some(2));
        ask(&mut node, 900, &[SANDBOX]);
        node.run_for(90 * S);
        let incident = only(&node);
        let actor = node.last_incident().actor.clone();
        if !is_named {
            assert_eq!((incident.summary.as_str(), actor), (EMPTY, None), "the first was long ago");
            continue;
        }
        assert_eq!(
            incident.summary,
            "docker (pid 812) has likely restarted the sandbox 291716a39be9 of pod lijiaob/etcd1-0, which lost its network: it has \
             a new network namespace that no CNI plugin set up"
        );
        assert_eq!(actor.map(|actor| (actor.pid, actor.confidence)), Some((812, Confidence::Likely)));
        let mut next = TestNode::booted(node.resume_state());
        next.tables = node.tables.clone();
        next.start(vec![run(200, 0, NEW)]);
        next.run_for(12 * S);
        assert_eq!(only(&next).summary, incident.summary);
    }
}

#[test]
fn a_call_of_add_that_sets_the_new_namespace_up_ends_it() {
    let mut node = node();
    stop(&mut node, false);
    start(&mut node, NEW, Some(2));
    node.run_for(12 * S);
    only(&node);
    node.call(CniCommand::Add, SANDBOX, 1);
    node.run_for(2 * S);
    only(&node);
    node.call_with(CniCommand::Add, SANDBOX, 0, |node| set_up(node, NEW));
    node.run_for(2 * S);
    expect_closed(&node, CloseReason::Resolved);
    // What it has now is what it may lose next.
    node.observe(told(ContainerFacts { state: ContainerState::Exited, tgid: None, ..run(200, 0, NEW) }));
    let tables = NetnsSnapshot { cookie: Some(3), links: vec![loopback(ETCD)], ..NetnsSnapshot::empty(ETCD) };
    node.tables.insert(ETCD, tables);
    node.observe(told(run(300, node.now, ETCD)));
    node.observe_netns(ETCD);
    node.run_for(12 * S);
    assert_eq!(only(&node).episode, 2);
}

#[test]
fn one_that_is_set_up_again_in_time_is_none() {
    let mut node = node();
    stop(&mut node, true);
    start(&mut node, NEW, Some(2));
    node.call_with(CniCommand::Add, SANDBOX, 0, |node| set_up(node, NEW));
    node.run_for(60 * S);
    assert!(found(&node).is_empty());
}

#[test]
fn a_plugin_has_set_it_up_also_where_the_kernel_does_not_tell_what_it_made() {
    let mut node = node();
    stop(&mut node, true);
    start(&mut node, NEW, Some(2));
    node.call(CniCommand::Add, SANDBOX, 0);
    node.run_for(60 * S);
    assert!(found(&node).is_empty());
}

#[test]
fn an_interface_that_no_plugin_made_is_less_bad_where_all_plugins_are_seen() {
    for calls_are_seen in [true, false] {
        let mut node = node();
        if calls_are_seen {
            node.call(CniCommand::Add, "0".repeat(64).as_str(), 0);
        }
        stop(&mut node, false);
        start(&mut node, NEW, Some(2));
        set_up(&mut node, NEW);
        node.run_for(12 * S);
        if !calls_are_seen {
            assert!(found(&node).is_empty(), "a plugin may have made it");
            continue;
        }
        let incident = only(&node);
        assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Likely));
        let expected =
            EMPTY.replace("lost", "may have lost").replace("plugin set up", "plugin was seen to set up");
        assert_eq!(incident.summary, expected + ", with interface eth0");
    }
}

#[test]
fn containers_that_are_left_in_the_former_namespace_have_its_network_until_they_restart() {
    let mut node = node();
    let pod = PodIdentity { container_name: Some("etcd".into()), ..etcd_sandbox().pod.unwrap() };
    let member = ContainerFacts {
        id: "c".repeat(64),
        tgid: Some(101),
        joined_netns: true,
        sandbox: false,
        pod: Some(pod),
        ..run(101, 0, ETCD)
    };
    node.observe(told(member.clone()));
    stop(&mut node, true);
    start(&mut node, NEW, Some(2));
    node.run_for(12 * S);
    let incident = only(&node);
    assert_eq!(
        incident.summary,
        EMPTY.replace("lost its network", "loses its network once its containers restart")
    );
    assert_eq!(incident.confidence, Confidence::Likely);
    node.observe(told(ContainerFacts {
        tgid: Some(201),
        started_ns: Some(node.now),
        netns: Some(NEW),
        ..member
    }));
    node.run_for(2 * S);
    assert_eq!(only(&node).summary, EMPTY);
}

#[test]
fn another_process_in_the_same_namespace_is_none() {
    let mut node = node();
    stop(&mut node, true);
    node.observe(told(run(200, node.now, ETCD)));
    node.observe_netns(ETCD);
    node.run_for(60 * S);
    assert!(found(&node).is_empty());
}

#[test]
fn a_pause_and_a_report_without_a_process_are_no_restart() {
    let mut node = node();
    for facts in [
        ContainerFacts { state: ContainerState::Paused, ..run(100, 0, ETCD) },
        ContainerFacts { tgid: None, netns: None, started_ns: None, ..run(100, 0, ETCD) },
        run(100, 0, ETCD),
    ] {
        node.observe(told(facts));
        node.run_for(20 * S);
    }
    assert!(found(&node).is_empty());
}

#[test]
fn what_had_no_network_cannot_lose_it_and_the_network_of_the_host_is_none_of_the_pod() {
    for netns in [NEW, HOST] {
        let mut node = TestNode::booted(Resume::default());
        let links = vec![loopback(NEW)];
        let tables = NetnsSnapshot { cookie: Some(1), links, ..NetnsSnapshot::empty(NEW) };
        node.tables.insert(NEW, tables);
        // The host has an interface.
        node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
        node.start(vec![run(100, 0, netns)]);
        node.run_for(5 * S);
        node.observe(told(ContainerFacts {
            state: ContainerState::Exited,
            tgid: None,
            ..run(100, 0, netns)
        }));
        start(&mut node, if netns == HOST { HOST } else { ETCD }, Some(2));
        node.run_for(20 * S);
        assert!(found(&node).is_empty(), "{netns}");
    }
}

#[test]
fn another_sandbox_that_takes_its_place_or_its_end_ends_it() {
    for is_replaced in [true, false] {
        let mut node = node();
        stop(&mut node, false);
        start(&mut node, NEW, Some(2));
        node.run_for(12 * S);
        only(&node);
        if is_replaced {
            let next = sandbox(&"d".repeat(64), ETCD, "lijiaob", "etcd1-0", UID);
            let incarnation = Incarnation { created_s: Some(1), ..Incarnation::default() };
            node.observe(told(ContainerFacts { tgid: Some(300), incarnation, ..next }));
        } else {
            node.observe(told(ContainerFacts {
                state: ContainerState::Exited,
                tgid: None,
                ..run(200, 0, NEW)
            }));
        }
        node.run_for(2 * S);
        expect_closed(&node, CloseReason::SubjectGone);
        assert!(found(&node).is_empty());
    }
}

#[test]
fn a_claim_is_followed_by_none() {
    let mut node = TestNode::booted(Resume::default());
    let claim = |facts: ContainerFacts| {
        let pod = facts.pod.map(|pod| PodIdentity { proof: PodProof::Claimed, ..pod });
        ContainerFacts { pod, ..facts }
    };
    node.add_pod(ETCD, "cali9118ebbb10b", NudState::PERMANENT);
    node.start(vec![claim(run(100, 0, ETCD))]);
    node.run_for(5 * S);
    node.tables.insert(NEW, NetnsSnapshot { links: vec![loopback(NEW)], ..NetnsSnapshot::empty(NEW) });
    node.observe(told(claim(run(200, node.now, NEW))));
    node.observe_netns(NEW);
    node.run_for(20 * S);
    assert!(found(&node).is_empty());
}

#[test]
fn it_goes_on_over_a_restart_of_the_daemon_and_what_is_seen_first_is_none() {
    let mut node = node();
    stop(&mut node, false);
    start(&mut node, NEW, Some(2));
    node.run_for(12 * S);
    let before = only(&node);
    for is_set_up in [false, true] {
        let mut next = TestNode::booted(node.resume_state());
        next.tables = node.tables.clone();
        if is_set_up {
            next.tables.get_mut(&NEW).unwrap().links.push(veth(NEW, 7, "eth0", HOST, 70));
        }
        next.start(vec![run(200, 0, NEW)]);
        next.run_for(12 * S);
        if is_set_up {
            expect_closed(&next, CloseReason::Resolved);
        } else {
            let now = only(&next);
            assert_eq!((now.id, now.summary), (before.id.clone(), before.summary.clone()));
        }
    }
    let mut other = TestNode::booted(Resume::default());
    other.tables = node.tables.clone();
    other.start(vec![run(200, 0, NEW)]);
    other.run_for(60 * S);
    assert!(found(&other).is_empty());
}
