//! Observations as input, events as output.

use kevtmon_event::{ActorSource, Confidence, Join};
use kevtmon_observation::*;
use kevtmon_testing::same::assert_same;
use kevtmon_testing::schema::assert_valid;
use kevtmon_types::clock::MS;
use kevtmon_types::settings::{Cmdline, EventRate, Thresholds};

use super::*;
use crate::node::view::RuntimeAvailability;
use crate::test_support::model;

mod components;
mod detached;
mod ends;
mod flood;
mod kubelet;
mod late;
mod link;
mod mount;
mod names;
mod order;
mod rbd;
mod recreations;
mod refused_mount;
mod route;
mod rule;
mod runtimes;
mod saved;
mod status;
mod transient;
mod unheard;
mod which_mount;

const HOST: NsInum = 1;
const POD: NsInum = 7;
const ID: &str = "94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb94feeebc95fb9411";

fn core() -> Core {
    let settings = Settings {
        node: "slave-197".into(),
        boot_id: "b".into(),
        version: "0".into(),
        host_netns: HOST,
        cmdline: Cmdline::Host,
        incidents: Thresholds::default(),
        user_events: EventRate { rate: 4, burst: 64 },
        container_events: EventRate { rate: 16, burst: 512 },
        sources: BTreeMap::from([("netlink".into(), false), ("docker".into(), true)]),
    };
    let mut core = Core::new(settings, Resume::default());
    core.observe(at(0, Fact::Clock { realtime_offset_ns: 0 }));
    core
}

fn at(at: BootNs, fact: Fact) -> Observation {
    Observation { at, source: Source::Daemon, fact }
}

fn status(source: &str, up: bool) -> Fact {
    let kind = if source == "docker" { SourceKind::Runtime } else { SourceKind::Netlink };
    let down = || SourceStatus::down(kind, source, "gone");
    Fact::Source(if up { SourceStatus::up(kind, source) } else { down() })
}

fn snapshot(netns: NsInum) -> Fact {
    Fact::Netns(Box::new(NetnsSnapshot {
        routes: vec![RouteFacts::default_via(netns, "169.254.1.1".parse().unwrap(), 2)],
        ..NetnsSnapshot::empty(netns)
    }))
}

fn container(state: ContainerState) -> Fact {
    Fact::Container(Box::new(ContainerFacts {
        id: ID.into(),
        name: "k8s_POD_etcd1-0_lijiaob_5c94_0".into(),
        runtime: "docker".into(),
        source: "docker".into(),
        image: "pause".into(),
        state,
        tgid: Some(16_707),
        started_ns: Some(7_000),
        netns: Some(POD),
        mntns: Some(8),
        addresses: vec!["192.168.252.66".parse().unwrap()],
        pod: Some(PodIdentity {
            namespace: "lijiaob".into(),
            name: "etcd1-0".into(),
            uid: "5c948341-c030-4996-b888-f032577d97b0".into(),
            sandbox_id: Some(ID.into()),
            container_name: Some("POD".into()),
            proof: PodProof::Cgroup,
            labels: None,
        }),
        sandbox: true,
        ..ContainerFacts::default()
    }))
}

fn key() -> TaskKey {
    TaskKey { tgid: 28_997, start_ns: 5, exec_id: 2 }
}

fn task(cgroup: &str) -> Fact {
    Fact::Task(Box::new(TaskFacts {
        key: key(),
        place: TaskPlace::default(),
        uid: 0,
        exe: Some("/opt/cni/bin/calico".into()),
        cmdline: Some("calico".into()),
        netns: HOST,
        mntns: 2,
        cgroup: Some(cgroup.into()),
        ancestors: vec![Ancestor {
            tgid: 900,
            start_ns: 1,
            comm: "kubelet".into(),
            started: Some(true),
            ..Ancestor::default()
        }],
    }))
}

fn change(op: NeighborOp, cause: NeighborCause) -> NeighborChange {
    NeighborChange {
        key: NeighborKey { netns: POD, ifindex: 2, address: "169.254.1.1".parse().unwrap() },
        ifname: "eth0".into(),
        op,
        cause,
        old_state: Some(NudState::PERMANENT),
        new_state: None,
        lladdr: Some(LlAddr(vec![0xee; 6])),
        new_lladdr: None,
        device_lladdr: None,
        actor: Some(TaskRef { key: key(), tid: 28_997, comm: "calico".into(), context: None }),
        netlink_port: None,
        netns_cookie: None,
        netns_of_user: false,
    }
}

fn deletion(cause: NeighborCause) -> Fact {
    Fact::Neighbor(Box::new(change(NeighborOp::Deleted, cause)))
}

fn events(core: &mut Core) -> Vec<Event> {
    core.take_output()
        .filter_map(|output| match output {
            // Incident events have tests of their own.
            Output::Event(event) => event.incident.is_none().then_some(*event),
            Output::Request(_) => None,
        })
        .inspect(assert_valid)
        .collect()
}

fn requests(core: &mut Core) -> Vec<Request> {
    core.take_output()
        .filter_map(|output| match output {
            Output::Event(_) => None,
            Output::Request(request) => Some(request),
        })
        .collect()
}

/// A pod's namespace and its sandbox are known, and so is the actor.
fn settled() -> Core {
    let mut core = core();
    for fact in [
        snapshot(HOST),
        snapshot(POD),
        container(ContainerState::Running),
        task("/system.slice/kubelet.service"),
    ] {
        core.observe(at(1, fact));
    }
    events(&mut core);
    core
}

#[test]
fn a_deleted_gateway_names_the_actor_and_the_pod() {
    let mut core = settled();
    core.observe(at(10, deletion(NeighborCause::Admin)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(
        event.message,
        "static gateway ARP 169.254.1.1 on eth0 of pod lijiaob/etcd1-0 deleted by calico (pid 28997)"
    );
    assert_eq!((event.kind, event.severity), (Kind::NeighborDeleted, Severity::Warning));
    let actor = event.actor.as_ref().unwrap();
    assert_eq!(actor.unit.as_deref(), Some("kubelet.service"));
    assert_eq!((actor.join, actor.cmdline.as_deref()), (Join::Host, Some("calico")));
    let target = event.target.as_ref().unwrap();
    assert_eq!(target.join, Join::Ok);
    assert_eq!(target.pod.as_ref().unwrap().ip[0].to_string(), "192.168.252.66");
    assert_eq!(event.neighbor.as_ref().unwrap().reason.as_deref(), Some("missing"));
    assert_eq!(event.time, "1970-01-01T00:00:00.000000010Z");
}

#[test]
fn an_event_in_an_unknown_namespace_is_held_back_until_its_snapshot() {
    let mut core = core();
    core.observe(at(10, deletion(NeighborCause::Admin)));
    assert_eq!(requests(&mut core), [Request::Netns { netns: POD }]);
    core.observe(at(11, container(ContainerState::Running)));
    events(&mut core);
    core.observe(at(12, snapshot(POD)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.target.as_ref().unwrap().join, Join::Late);
    assert_eq!(event.neighbor.as_ref().unwrap().gateway, Some(true));
}

#[test]
fn an_event_that_was_held_back_names_its_actor_whatever_else_came_meanwhile() {
    let mut core = core();
    core.observe(at(1, task("/system.slice/kubelet.service")));
    core.observe(at(2, deletion(NeighborCause::Admin)));
    assert_eq!(events(&mut core), []);
    let Fact::Task(facts) = task("/") else { unreachable!() };
    for tgid in 30_000..34_000 {
        let other = TaskFacts { key: TaskKey { tgid, ..key() }, ..*facts.clone() };
        core.observe(at(3, Fact::Task(Box::new(other))));
    }
    core.observe(at(4, snapshot(POD)));
    let emitted = events(&mut core);
    assert_eq!(emitted[0].actor.as_ref().unwrap().exe.as_deref(), Some("/opt/cni/bin/calico"));
}

#[test]
fn an_entry_of_a_namespace_in_setup_is_not_reported_as_no_gateway() {
    let mut core = core();
    core.observe(at(1, status("netlink", true)));
    core.observe(at(1, status("docker", false)));
    let Fact::Netns(bare) = snapshot(POD) else { unreachable!() };
    core.observe(at(2, Fact::Netns(Box::new(NetnsSnapshot { routes: Vec::new(), ..*bare }))));
    events(&mut core);
    core.observe(at(10, deletion(NeighborCause::Admin)));
    assert_eq!(requests(&mut core), [Request::Netns { netns: POD }]);
    core.observe(at(11, snapshot(POD)));
    let emitted: Vec<Event> =
        events(&mut core).into_iter().filter(|event| event.kind == Kind::NeighborDeleted).collect();
    assert_eq!(emitted.len(), 1);
    assert_eq!(emitted[0].neighbor.as_ref().unwrap().gateway, Some(true));
}

#[test]
fn an_event_is_not_held_back_for_ever() {
    let mut core = core();
    core.observe(at(10, deletion(NeighborCause::Admin)));
    let deadline = core.deadline().unwrap();
    core.observe(at(deadline - 1, Fact::Tick));
    assert!(events(&mut core).is_empty());
    core.observe(at(deadline, Fact::Tick));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.target.as_ref().unwrap().join, Join::Missed);
    assert_eq!(event.neighbor.as_ref().unwrap().gateway, None);
    assert_eq!(core.deadline(), None);
}

#[test]
fn the_first_snapshot_of_a_namespace_is_awaited_though_it_comes_late() {
    let mut core = core();
    core.observe(at(10, deletion(NeighborCause::Admin)));
    core.observe(at(2_000 * MS, Fact::Tick));
    assert!(events(&mut core).is_empty());
    core.observe(at(2_001 * MS, snapshot(POD)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.neighbor.as_ref().unwrap().gateway, Some(true));
}

#[test]
fn an_event_storm_in_unknown_namespaces_is_emitted_with_bounded_memory() {
    let mut core = core();
    for index in 0..3_000 {
        let mut one = change(NeighborOp::Deleted, NeighborCause::Admin);
        one.key.netns = 100 + index;
        core.observe(at(10, Fact::Neighbor(Box::new(one))));
    }
    let early = events(&mut core).len();
    assert!(core.pending_neighbors.len() <= 1024);
    core.observe(at(4_000 * MS, Fact::Tick));
    assert_eq!(early + events(&mut core).len(), 3_000);
}

#[test]
fn links_set_down_after_the_container_exited_are_no_fault_and_have_no_actor() {
    let mut core = settled();
    core.observe(at(10, deletion(NeighborCause::LinkDown)));
    assert_eq!(requests(&mut core), [Request::ProcessState { tgid: 16_707, started_ns: Some(7_000) }]);
    core.observe(at(11, Fact::ProcessState(ProcessState { tgid: 16_707, alive: false })));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.severity, Severity::Debug);
    assert_eq!(event.actor, None);
    let neighbor = event.neighbor.as_ref().unwrap();
    assert_eq!((neighbor.cause.as_str(), neighbor.after_exit), ("link-down", true));
    assert!(event.message.ends_with("deleted after its container had exited because the link was set down"));
}

#[test]
fn the_end_of_one_container_is_not_that_of_a_namespace_which_others_live_in() {
    let mut core = core();
    for (id, joined_netns) in [("a", false), ("b", true)] {
        let Fact::Container(mut facts) = container(ContainerState::Running) else { panic!() };
        (facts.id, facts.pod, facts.sandbox, facts.joined_netns) = (id.repeat(64), None, false, joined_netns);
        core.observe(at(1, Fact::Container(facts)));
    }
    core.observe(at(2, snapshot(POD)));
    events(&mut core);
    core.observe(at(10, deletion(NeighborCause::LinkDown)));
    core.observe(at(11, Fact::ProcessState(ProcessState { tgid: 16_707, alive: false })));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((event.severity, event.actor.is_some()), (Severity::Warning, true), "{}", event.message);
}

#[test]
fn who_deletes_an_entry_by_request_is_told_after_the_exit_too() {
    let mut core = settled();
    core.observe(at(9, container(ContainerState::Exited)));
    events(&mut core);
    core.observe(at(10, deletion(NeighborCause::Admin)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((event.severity, event.actor.is_some()), (Severity::Debug, true), "{}", event.message);
    let message = &event.message;
    assert!(message.ends_with("deleted by calico (pid 28997) after its container had exited"), "{message}");
}

fn deletion_actor() -> Option<TaskRef> {
    change(NeighborOp::Deleted, NeighborCause::LinkDeleted).actor
}

#[test]
fn links_set_down_under_a_running_container_have_an_actor() {
    let mut core = settled();
    core.observe(at(10, deletion(NeighborCause::LinkDown)));
    core.observe(at(11, Fact::ProcessState(ProcessState { tgid: 16_707, alive: true })));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.severity, Severity::Warning);
    assert_eq!(event.neighbor.as_ref().unwrap().cause, "link-down");
    assert!(event.message.ends_with("by calico (pid 28997), by setting the link down"), "{}", event.message);
}

#[test]
fn no_request_is_sent_for_a_container_that_has_exited() {
    let mut core = settled();
    core.observe(at(9, container(ContainerState::Exited)));
    events(&mut core);
    core.observe(at(10, deletion(NeighborCause::LinkDeleted)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((event.severity, &event.actor), (Severity::Debug, &None));
}

#[test]
fn delete_add_delete_gives_two_events_in_order() {
    let mut core = settled();
    let before = core.seq;
    let added = NeighborChange {
        old_state: None,
        new_state: Some(NudState::PERMANENT),
        ..change(NeighborOp::Added, NeighborCause::Admin)
    };
    core.observe(at(10, deletion(NeighborCause::Admin)));
    core.observe(at(11, Fact::Neighbor(Box::new(added))));
    core.observe(at(12, deletion(NeighborCause::Admin)));
    let emitted: Vec<Event> = core
        .take_output()
        .filter_map(|output| match output {
            Output::Event(event) => Some(*event),
            Output::Request(_) => None,
        })
        .collect();
    let of_entry: Vec<(Kind, BootNs)> =
        emitted.iter().filter(|event| event.incident.is_none()).map(|event| (event.kind, event.at)).collect();
    assert_eq!(
        of_entry,
        [(Kind::NeighborDeleted, 10), (Kind::NeighborAdded, 11), (Kind::NeighborDeleted, 12)]
    );
    let seqs: Vec<u64> = emitted.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (before + 1..=core.seq).collect::<Vec<_>>(), "no number is left out");
    assert!(emitted.len() > of_entry.len(), "the diagnoses see it, too");
}

#[test]
fn an_event_awaits_the_container_of_its_actor() {
    let mut core = settled();
    core.observe(at(2, status("docker", true)));
    let other = "a".repeat(64);
    core.observe(at(3, task(&format!("/docker/{other}"))));
    events(&mut core);
    core.observe(at(10, deletion(NeighborCause::Admin)));
    assert!(events(&mut core).is_empty());
    let Fact::Container(mut facts) = container(ContainerState::Running) else { unreachable!() };
    facts.id.clone_from(&other);
    facts.name = "culprit".into();
    facts.netns = Some(9);
    facts.pod = None;
    core.observe(at(11, Fact::Container(facts)));
    let event = events(&mut core).pop().unwrap();
    let actor = event.actor.unwrap().into_inner();
    assert_eq!(actor.container.unwrap().name.as_deref(), Some("culprit"));
    assert_eq!((actor.join, actor.cmdline), (Join::Late, None));
}

#[test]
fn an_exited_container_with_host_networking_owns_no_entry_of_the_host() {
    let mut core = core();
    let Fact::Container(mut facts) = container(ContainerState::Running) else { unreachable!() };
    facts.netns = Some(HOST);
    core.observe(at(1, Fact::Container(facts.clone())));
    facts.state = ContainerState::Exited;
    core.observe(at(2, Fact::Container(facts)));
    core.observe(at(3, task("/system.slice/x.service")));
    let mut change = change(NeighborOp::Deleted, NeighborCause::Admin);
    change.key.netns = HOST;
    core.observe(at(10, Fact::Neighbor(Box::new(change))));
    let event = events(&mut core).pop().unwrap();
    assert_eq!(event.neighbor.unwrap().cause, "admin");
    assert!(event.actor.is_some());
}

#[test]
fn without_a_runtime_the_cgroup_names_the_container() {
    let mut core = core();
    core.observe(at(1, snapshot(POD)));
    core.observe(at(1, task(&format!("/docker/{ID}"))));
    core.observe(at(10, deletion(NeighborCause::Admin)));
    let event = events(&mut core).pop().unwrap();
    let actor = event.actor.unwrap().into_inner();
    assert_eq!((actor.container.unwrap().id.as_str(), actor.join), (ID, Join::Ok));
}

#[test]
fn ready_is_emitted_when_every_source_has_reported_and_lists_degraded_ones() {
    let mut core = core();
    core.observe(at(1, status("netlink", true)));
    assert!(events(&mut core).is_empty());
    core.observe(at(2, status("docker", false)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!((event.kind, event.message.as_str()), (Kind::DaemonReady, "ready"));
    assert!(event.daemon.as_ref().unwrap().degraded.contains_key("docker"));
    core.observe(at(3, status("netlink", false)));
    assert_eq!(events(&mut core)[0].kind, Kind::DaemonDegraded);
    core.observe(at(4, status("netlink", true)));
    assert_eq!(events(&mut core)[0].kind, Kind::DaemonRecovered);
}

#[test]
fn the_first_list_of_a_runtime_emits_nothing_and_later_ones_emit_missed_changes() {
    let mut core = core();
    let Fact::Container(facts) = container(ContainerState::Running) else { unreachable!() };
    let list = |containers| Fact::RuntimeSnapshot {
        runtime: "docker".into(),
        source: "docker".into(),
        read: None,
        containers,
    };
    core.observe(at(1, list(vec![*facts])));
    assert!(events(&mut core).is_empty());
    core.observe(at(2, list(Vec::new())));
    assert_eq!(events(&mut core)[0].kind, Kind::ContainerRemoved);
}

#[test]
fn the_state_names_the_owner_of_each_namespace_and_deserializes_to_itself() {
    let mut core = settled();
    let link = |netns, ifindex, ifname: &str, peer| LinkFacts {
        netns,
        ifindex,
        ifname: ifname.into(),
        kind: Some("veth".into()),
        flags: iff::UP,
        peer: Some(peer),
        ..LinkFacts::default()
    };
    core.observe(at(2, status("netlink", true)));
    core.observe(at(
        2,
        Fact::Link(Box::new(link(HOST, 9, "cali0", PeerLink { ifindex: 2, netns: Some(POD) }))),
    ));
    core.observe(at(
        2,
        Fact::Link(Box::new(link(POD, 2, "eth0", PeerLink { ifindex: 9, netns: Some(HOST) }))),
    ));
    let state = core.state(3);
    assert_eq!(state.time, "1970-01-01T00:00:00.000000003Z");
    let [pod] = &state.pods[..] else { panic!("{:?}", state.pods) };
    assert_eq!(pod.pod.name.as_deref(), Some("etcd1-0"));
    assert_eq!((pod.netns, &pod.host_links[..]), (Some(POD), &["cali0".to_owned()][..]));
    assert_eq!(pod.gateways, ["169.254.1.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(state.counts.containers["running"], 1);
    let [host, inner] = &state.namespaces[..] else { panic!("{:?}", state.namespaces) };
    assert_eq!((host.owner.join, inner.owner.join), (Join::Host, Join::Ok));
    assert_eq!(host.links[0].peer.as_ref().unwrap().ifname.as_deref(), Some("eth0"));
    let back: state::NodeState = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    assert_eq!(back, state);
}
