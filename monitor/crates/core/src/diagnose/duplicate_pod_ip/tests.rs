use kevtmon_observation::*;

use super::*;
use crate::Resume;
use crate::diagnose::tests::harness::*;

const WEB: NsInum = 4_026_532_300;
const WEB_SANDBOX: &str = "5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e5b3c1f0e";
const IP: &str = "192.168.252.66";

fn web() -> ContainerFacts {
    sandbox(WEB_SANDBOX, WEB, "web", "web-0", WEB_UID)
}

fn address(netns: NsInum, address: &str) -> AddressFacts {
    AddressFacts { netns, ifindex: 2, address: address.parse().unwrap(), prefix_len: 32 }
}

/// Two pods, each with its own address; those of the runtime are the same.
fn node() -> TestNode {
    let mut node = TestNode::booted(Resume::default());
    for (netns, end, own) in [(ETCD, "cali9118ebbb10b", IP), (WEB, "calib7c1f2d3e4a", "192.168.252.67")] {
        node.add_pod(netns, end, NudState::PERMANENT);
        for own in [own, "127.0.0.1", "fe80::1"] {
            node.tables.get_mut(&netns).unwrap().addresses.push(address(netns, own));
        }
    }
    node
}

fn started(mut node: TestNode, containers: Vec<ContainerFacts>) -> TestNode {
    node.start(containers);
    node.events.clear();
    node
}

fn kinds(node: &TestNode) -> Vec<String> {
    let of_kind = node.incidents().into_iter().filter(|(_, incident)| incident.kind == KIND);
    of_kind.map(|(kind, _)| kind.name().to_owned()).collect()
}

#[test]
fn two_pods_with_one_address_are_named_with_their_devices_until_one_of_them_changes_it() {
    let mut node = started(node(), vec![etcd_sandbox(), web()]);
    node.run_for(60 * S);
    assert_eq!(kinds(&node), [""; 0], "what a runtime tells of addresses counts for nothing");
    node.observe(Fact::Address(address(WEB, IP)));
    node.run_for(4 * S);
    assert_eq!(kinds(&node), [""; 0], "an address may be on its way from one to the other");
    node.run_for(3 * S);
    let incident = &node.open()[0];
    assert_eq!((incident.severity, incident.confidence), (Severity::Warning, Confidence::Certain));
    assert_eq!(
        incident.summary,
        "pods web/web-0 (eth0, host end calib7c1f2d3e4a) and lijiaob/etcd1-0 (eth0, host end cali9118ebbb10b) of this \
         node both have the address 192.168.252.66"
    );
    assert_eq!((incident.count, incident.found_at_start), (2, false));
    let commands: Vec<&str> = incident.advice.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(
        commands,
        ["ip route get 192.168.252.66", "kevtmon why web/web-0", "kevtmon why lijiaob/etcd1-0"]
    );
    let conflict = node.last_incident().address_conflict.clone().unwrap();
    let ends: Vec<_> = conflict.pods.iter().map(|pod| pod.host_end.ifname.clone().unwrap()).collect();
    assert_eq!(ends, ["calib7c1f2d3e4a", "cali9118ebbb10b"]);
    node.observe(Fact::AddressGone(address(WEB, IP)));
    node.run_for(2 * S);
    let (kind, incident) = *node.incidents().last().unwrap();
    assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::Resolved)));
    assert!(incident.summary.ends_with(" of this node both have the address 192.168.252.66"));
    assert_eq!(incident.ruled_out, ["neither is in the network namespace of the other or of the host"]);
}

#[test]
fn it_is_found_after_the_fact_and_over_with_one_of_the_pods() {
    let mut node = node();
    node.tables.get_mut(&WEB).unwrap().addresses.push(address(WEB, IP));
    let mut node = started(node, vec![etcd_sandbox(), web()]);
    node.run_for(10 * S);
    assert!(node.open()[0].found_at_start);
    let mut next = TestNode::booted(node.resume_state());
    next.tables.clone_from(&node.tables);
    let mut next = started(next, vec![etcd_sandbox(), web()]);
    next.run_for(30 * S);
    assert_eq!((kinds(&next), next.open().len()), (Vec::new(), 1), "it goes on without another word");
    next.observe(Fact::Container(Box::new(ContainerFacts { state: ContainerState::Exited, ..web() })));
    next.run_for(2 * S);
    let (kind, incident) = *next.incidents().last().unwrap();
    assert_eq!((kind, incident.close_reason), (Kind::IncidentClosed, Some(CloseReason::SubjectGone)));
}

#[test]
fn a_pod_that_is_over_a_claim_or_the_sandbox_before_has_no_address_of_its_own() {
    let claim = web().pod.map(|pod| PodIdentity { proof: PodProof::Claimed, ..pod });
    let same_pod = etcd_sandbox().pod.map(|pod| PodIdentity { sandbox_id: Some(WEB_SANDBOX.into()), ..pod });
    for other in [
        ContainerFacts { state: ContainerState::Exited, ..web() },
        ContainerFacts { pod: claim, ..web() },
        ContainerFacts { pod: same_pod, ..web() },
        ContainerFacts { pod: None, ..web() },
    ] {
        let mut node = node();
        node.tables.get_mut(&WEB).unwrap().addresses.push(address(WEB, IP));
        let mut node = started(node, vec![etcd_sandbox(), other]);
        node.run_for(60 * S);
        assert_eq!(kinds(&node), [""; 0]);
    }
}

#[test]
fn networks_of_their_own_may_have_the_same_addresses() {
    // An interface by which no default route leads; a VRF of its own; an interface without an end on the host.
    for change in [0, 1, 2] {
        let mut node = node();
        let tables = node.tables.get_mut(&WEB).unwrap();
        tables.addresses.push(address(WEB, IP));
        let end = tables.links[0].peer.as_ref().unwrap().ifindex;
        match change {
            0 => tables.routes[0].ifindex = Some(3),
            1 => {
                let host = node.tables.get_mut(&HOST).unwrap();
                let vrf = LinkFacts { kind: Some("vrf".into()), peer: None, ..veth(HOST, 90, "red", 0, 0) };
                host.links.push(vrf);
                host.links.iter_mut().find(|link| link.ifindex == end).unwrap().master = Some(90);
            }
            _ => tables.links[0].kind = Some("macvlan".into()),
        }
        let mut node = started(node, vec![etcd_sandbox(), web()]);
        node.run_for(60 * S);
        assert_eq!(kinds(&node), [""; 0], "{change}");
    }
}
