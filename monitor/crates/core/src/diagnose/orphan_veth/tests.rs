use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

mod nfs;
mod whose;

/// The host's end of the pair of lijiaob/etcd1-0, as the tables number it.
const END: u32 = 11;
const CALI: &str = "cali9118ebbb10b";

fn node(ifname: &str) -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    node.add_pod(ETCD, ifname, NudState::PERMANENT);
    node
}

fn started(mut node: TestNode, containers: Vec<ContainerFacts>) -> TestNode {
    node.start(containers);
    node.events.clear();
    node
}

fn exit(node: &mut TestNode) {
    node.observe(etcd(ContainerState::Exited));
    node.observe(Fact::ContainerGone { id: SANDBOX.into(), source: "docker".into() });
}

fn keeper(tgid: u32, comm: &str, access: Access) -> Holder {
    Holder {
        tgid,
        comm: comm.into(),
        path: None,
        cgroup: Some("/".into()),
        ..Holder::of_kernel(access, String::new())
    }
}

fn found(keepers: Vec<Holder>) -> VethPeer {
    VethPeer { ifindex: END, present: true, netns: Some(ETCD), keepers, ..VethPeer::default() }
}

fn of_kind(node: &TestNode) -> Vec<String> {
    let of_kind = node.incidents().into_iter().filter(|(_, incident)| incident.kind == KIND);
    of_kind.map(|(kind, _)| kind.name().to_owned()).collect()
}

fn open(node: &TestNode) -> Vec<kevtmon_event::Incident> {
    node.open().into_iter().filter(|incident| incident.kind == KIND).collect()
}

#[test]
fn a_device_that_remains_after_its_pod_names_what_keeps_its_other_end_until_it_is_gone() {
    // Named after the pod, or known because the pod was seen behind it.
    for ifname in [CALI, "veth1a2b3c4d"] {
        let mut node = started(node(ifname), vec![etcd_sandbox()]);
        node.peers.insert(END, found(vec![keeper(77, "tcpdump", Access::Fd)]));
        node.run_for(120 * S);
        assert_eq!(of_kind(&node), [""; 0], "its pod lives");
        exit(&mut node);
        node.run_for(59 * S);
        assert_eq!(of_kind(&node), [""; 0]);
        node.run_for(5 * S);
        let incident = &open(&node)[0];
        assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
        let expected = format!(
            "veth {ifname} of pod lijiaob/etcd1-0 is still on this node: its pod is gone, its other end is in network \
             namespace net:[4026532253], held by tcpdump (pid 77) with an open file"
        );
        assert_eq!(incident.summary, expected);
        assert_eq!(incident.ruled_out, ["no container of any runtime is in that network namespace"]);
        assert_eq!(incident.advice[0].command, format!("ip -details link show dev {ifname}"));
        let event = node.last_incident();
        assert_eq!(event.link.as_ref().map(|link| (link.ifindex, link.netns)), Some((END, HOST)));
        assert_eq!(event.holders.as_ref().map(|holders| holders[0].pid), Some(77));
        node.observe(Fact::LinkGone { netns: HOST, ifindex: END, moved_to: None });
        let (kind, incident) = *node.incidents().last().unwrap();
        assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    }
}

#[test]
fn it_is_found_after_the_fact_where_no_process_shows_the_namespace() {
    let mut hidden = node(CALI);
    hidden.tables.remove(&ETCD);
    hidden.tables.get_mut(&HOST).unwrap().links[0].peer = Some(PeerLink { ifindex: 2, netns: None });
    let mount = Holder { path: Some("/run/netns/cni-7".into()), tgid: 0, ..keeper(0, "", Access::Mount) };
    let foreign = Holder { path: Some("/host/cni-7".into()), ..keeper(78, "agent", Access::Mount) };
    let named = VethPeer {
        name: Some("cni-7".into()),
        ..found(vec![mount, foreign, keeper(9, "sh", Access::Netns)])
    };
    hidden.peers.insert(END, named);
    let mut node = started(hidden, Vec::new());
    node.run_for(70 * S);
    let incident = &open(&node)[0];
    assert!(incident.found_at_start);
    assert_eq!(
        incident.summary,
        "veth cali9118ebbb10b is still on this node: no pod that runs here has it, its other end is in network namespace \
         cni-7 net:[4026532253], held by the mount /run/netns/cni-7 and the mount /host/cni-7 in the mount namespace of \
         agent (pid 78) and 1 more"
    );
}

#[test]
fn where_its_other_end_is_not_found_or_not_all_could_be_read_it_is_only_likely() {
    for peer in [
        VethPeer { netns: None, ..found(Vec::new()) },
        VethPeer {
            blind_spots: vec![BlindSpot { tgid: Some(1), comm: None, reason: "it cannot be read".into() }],
            ..found(Vec::new())
        },
    ] {
        let mut node = node(CALI);
        node.peers.insert(END, peer);
        let mut node = started(node, Vec::new());
        node.run_for(70 * S);
        let incident = &open(&node)[0];
        assert_eq!(incident.confidence, Confidence::Likely);
        assert_eq!(incident.ruled_out, [""; 0]);
    }
}

#[test]
fn a_pair_that_is_still_as_it_was_made_is_one_too() {
    let mut node = node(CALI);
    node.tables.get_mut(&HOST).unwrap().links[0].peer = Some(PeerLink { ifindex: 90, netns: Some(HOST) });
    let mut node = started(node, Vec::new());
    node.run_for(70 * S);
    assert_eq!(
        open(&node)[0].summary,
        "veth cali9118ebbb10b is still on this node: no pod that runs here has it, and both of its ends are in the network \
         namespace of the host"
    );
}

#[test]
fn a_namespace_that_nothing_seems_to_keep_is_possibly_kept_by_a_socket() {
    for (netns, confidence, words) in [
        (Some(ETCD), Confidence::Certain, "no holder found: possibly held by an open socket of it, or a"),
        (None, Confidence::Likely, "no holder found: possibly held by an open socket of it, or a"),
        (Some(HOST), Confidence::Certain, "and both of its ends are in the network namespace of the host"),
    ] {
        let mut node = started(node(CALI), vec![etcd_sandbox()]);
        node.peers.insert(END, VethPeer { netns, ..found(Vec::new()) });
        exit(&mut node);
        node.run_for(70 * S);
        let incident = &open(&node)[0];
        assert_eq!(incident.confidence, confidence, "{netns:?}");
        assert!(incident.summary.contains(words), "{}", incident.summary);
    }
}

/// It says that possibly they do where the kernel does not show that their namespace is the one of the device.
#[test]
fn a_socket_that_keeps_the_namespace_is_named_with_its_protocol() {
    let held = "net:[4026532253], held by dockerd (pid 77) with a socket (NETLINK)";
    let possibly = "net:[4026532253], possibly held by dockerd (pid 77) with a socket (NETLINK)";
    for (netns, confidence, words) in
        [(Some(ETCD), Confidence::Certain, held), (None, Confidence::Likely, possibly)]
    {
        let socket = Holder {
            path: Some("NETLINK".into()),
            possible: netns.is_none(),
            ..keeper(77, "dockerd", Access::Socket)
        };
        let mut node = started(node(CALI), vec![etcd_sandbox()]);
        node.peers.insert(END, VethPeer { netns, ..found(vec![socket]) });
        exit(&mut node);
        node.run_for(70 * S);
        let asked = node.requests.iter().find(|request| is_look(request));
        let link = VethLink { ifindex: END, netns: Some(ETCD), addresses: Vec::new() };
        assert_eq!(asked, Some(&Request::VethPeers { links: vec![link] }));
        let incident = &open(&node)[0];
        assert_eq!(incident.confidence, confidence);
        assert!(incident.summary.ends_with(words), "{}", incident.summary);
    }
}

#[test]
fn a_runtime_that_is_down_makes_no_pod_look_gone() {
    let mut node = started(node(CALI), vec![etcd_sandbox()]);
    let down = SourceStatus { up: false, ..SourceStatus::up(SourceKind::Runtime, "docker") };
    node.observe(Fact::Source(down));
    exit(&mut node);
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0]);
    node.observe(up("docker"));
    node.run_for(30 * S);
    assert_eq!(of_kind(&node), [""; 0], "the time begins when it is known again");
    node.run_for(40 * S);
    assert_eq!(open(&node).len(), 1);
}

#[test]
fn before_the_runtime_has_told_its_containers_nothing_is_said() {
    let mut node = node(CALI);
    for netns in [HOST, ETCD] {
        node.observe_netns(netns);
    }
    node.observe(up("netlink"));
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0]);
}

#[test]
fn a_pod_of_that_name_or_a_container_in_the_namespace_or_a_device_of_others_is_in_order() {
    // The pod lives, and in which namespace is not known; a container that no runtime tells of; devices that are none of pods.
    let unplaced = ContainerFacts { netns: None, tgid: None, ..etcd_sandbox() };
    let mut node = started(node(CALI), vec![unplaced.clone()]);
    node.run_for(120 * S);
    assert_eq!((of_kind(&node).len(), node.requests.iter().filter(|one| is_look(one)).count()), (0, 0));

    let mut unknown = self::node(CALI);
    let group = format!("/kubepods/besteffort/pod{CAM_UID}/{}", "a".repeat(64));
    let inside = Holder { cgroup: Some(group), ..keeper(80, "app", Access::Netns) };
    unknown.peers.insert(END, found(vec![inside]));
    let mut node = started(unknown, Vec::new());
    node.run_for(120 * S);
    assert_eq!(of_kind(&node), [""; 0]);
    assert!(node.requests.iter().any(is_look));

    for ifname in ["veth1a2b3c4", "veth1a2b3c4d", "lxc_health", "cali123", "tap0"] {
        let mut node = started(self::node(ifname), Vec::new());
        node.run_for(120 * S);
        assert_eq!(of_kind(&node), [""; 0], "{ifname}");
    }
    // Where a container is without a known namespace, a device may be its own that is not called after its pod.
    let mut node = started(self::node("veth1a2b3c4d"), vec![etcd_sandbox()]);
    node.run_for(5 * S);
    let other = ContainerFacts { id: "b".repeat(64), ..unplaced };
    node.observe(Fact::Container(Box::new(other)));
    exit(&mut node);
    node.run_for(120 * S);
    assert_eq!(of_kind(&node), [""; 0]);
}

fn is_look(request: &Request) -> bool {
    matches!(request, Request::VethPeers { .. })
}

#[test]
fn the_next_pod_of_the_name_has_a_device_of_its_own() {
    let mut node = started(node(CALI), vec![etcd_sandbox()]);
    exit(&mut node);
    node.run_for(70 * S);
    assert_eq!(open(&node).len(), 1);
    // Its plugin deletes the old device and makes one of the same name.
    node.observe(Fact::LinkGone { netns: HOST, ifindex: END, moved_to: None });
    assert_eq!(open(&node).len(), 0);
    node.observe(Fact::Link(Box::new(veth(HOST, 30, CALI, ETCD + 9, 2))));
    node.run_for(30 * S);
    let next = sandbox(&"c".repeat(64), ETCD + 9, "lijiaob", "etcd1-0", WEB_UID);
    node.observe(Fact::Container(Box::new(next)));
    node.run_for(600 * S);
    assert_eq!(open(&node).len(), 0);
}

#[test]
fn it_goes_on_over_a_restart_of_the_daemon_and_is_over_if_the_device_went_meanwhile() {
    let mut node = started(node(CALI), vec![etcd_sandbox()]);
    exit(&mut node);
    node.run_for(70 * S);
    let resume = node.resume_state();
    let mut next = TestNode::booted(resume.clone());
    next.tables.clone_from(&node.tables);
    let mut next = started(next, Vec::new());
    next.run_for(60 * S);
    assert_eq!(open(&next).len(), 1);
    assert!(!of_kind(&next).contains(&"incident.opened".to_owned()));
    assert!(open(&next)[0].summary.contains(" of pod lijiaob/etcd1-0 "));
    let mut later = started(TestNode::booted(resume), Vec::new());
    later.run_for(5 * S);
    assert_eq!(open(&later).len(), 0);
}

/// A node without a runtime, whose device has these behind it.
fn alone(keepers: Vec<Holder>) -> TestNode {
    let mut node = node(CALI);
    node.peers.insert(END, found(keepers));
    node.start_without_runtime();
    node.events.clear();
    node
}

#[test]
fn where_there_is_no_runtime_a_device_without_a_process_behind_it_is_likely_left() {
    let mut node = alone(vec![keeper(77, "tcpdump", Access::Fd)]);
    node.run_for(70 * S);
    let incident = &open(&node)[0];
    assert_eq!(incident.confidence, Confidence::Likely);
    assert_eq!(
        incident.summary,
        "veth cali9118ebbb10b is still on this node: no process is behind it, its other end is in network namespace \
         net:[4026532253], held by tcpdump (pid 77) with an open file"
    );
    assert_eq!(incident.ruled_out, ["no process is in that network namespace"]);

    let mut node = alone(vec![keeper(80, "sleep", Access::Netns)]);
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0], "a process is in the namespace");
    assert!(node.requests.iter().any(is_look));
}

#[test]
fn without_a_runtime_a_pod_lives_as_long_as_it_has_a_directory() {
    let etcd = PodRemains {
        uid: CAM_UID.into(),
        directory: format!("/var/lib/kubelet/pods/{CAM_UID}"),
        mntns: MNTNS,
        cgroup: PodCgroup::Empty,
        started: true,
        name: Some(("lijiaob".into(), "etcd1-0".into())),
        ..PodRemains::default()
    };
    let mut node = alone(Vec::new());
    node.observe(Fact::PodRemains { pods: vec![etcd] });
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0]);
    node.observe(Fact::PodRemains { pods: Vec::new() });
    node.run_for(70 * S);
    let summary = &open(&node)[0].summary;
    assert!(summary.contains(" of pod lijiaob/etcd1-0 is still on this node: its pod is gone"), "{summary}");
}

#[test]
fn a_runtime_that_was_named_and_is_not_there_may_have_the_pod() {
    let mut node = alone(Vec::new());
    node.observe(no_runtime(false));
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0]);
}

#[test]
fn that_a_runtime_turns_out_to_be_none_counts_at_once() {
    let mut node = node(CALI);
    node.peers.insert(END, found(Vec::new()));
    for netns in [HOST, ETCD] {
        node.observe_netns(netns);
    }
    node.observe(no_runtime(false));
    node.observe(up("netlink"));
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), [""; 0], "it may have the pod");
    node.observe(no_runtime(true));
    node.run_for(70 * S);
    assert_eq!(open(&node).len(), 1);
    // The other way about it is not known any more, and what was said is kept.
    node.observe(no_runtime(false));
    node.run_for(600 * S);
    assert_eq!(of_kind(&node), ["incident.opened"]);
}

#[test]
fn the_removal_of_its_network_that_fails_is_its_cause() {
    let mut node = started(node(CALI), vec![etcd_sandbox()]);
    node.run_for(S);
    for _ in 0..3 {
        node.call(CniCommand::Del, SANDBOX, 1);
        node.run_for(10 * S);
    }
    exit(&mut node);
    node.run_for(70 * S);
    let failing = node.open().into_iter().find(|incident| incident.kind == "cni-teardown-failing").unwrap();
    assert_eq!(open(&node)[0].caused_by, [failing.id.as_str()]);
}
