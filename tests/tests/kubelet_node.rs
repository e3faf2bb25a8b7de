//! Pods that a real kubelet runs. Ignored by a plain `cargo test`: `cargo xtask test kubelet` builds the kubelet and runs
//! these.

#![allow(clippy::expect_used, reason = "a test that cannot prepare its stage must fail")]

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::kubelet::{KubeletNode, StaticPod};
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::{NeighbourState, Network};
use kevtmon_tests::pod::GATEWAY_LLADDR;

fn expect_pod(event: &Event, pod: &StaticPod) {
    event.expect("/target/pod/namespace", &*pod.namespace);
    event.expect("/target/pod/name", &*pod.name);
    event.expect("/target/pod/uid", &*pod.uid);
    event.expect("/target/pod/sandbox_id", &*pod.sandbox);
    event.expect_none("/target/pod/claimed");
}

/// Waits until an event of a container is reported.
fn wait_for_life(daemon: &mut Daemon, kind: &str, id: &str) -> Event {
    daemon.wait_for(kind, |event| event.kind() == kind && event.text("/target/container/id") == id)
}

/// The incidents of a pod that ever opened.
fn incidents(daemon: &Daemon, pod: &StaticPod) -> Vec<Event> {
    let is_opened = |event: &Event| event.kind() == "incident.opened";
    let events = daemon.events().into_iter().filter(is_opened);
    events.filter(|event| event.text("/target/pod/uid") == pod.uid).collect()
}

#[test]
#[ignore = "needs a kubelet"]
fn a_pod_is_known_from_its_start_to_its_end_and_its_lost_gateway_names_it() {
    let node = KubeletNode::start();
    let mut daemon = launch().joining(node.dockerd().runtime()).start();
    let pod = node.run_pod("web");
    expect_pod(&wait_for_life(&mut daemon, "container.started", &pod.sandbox), &pod);
    expect_pod(&wait_for_life(&mut daemon, "container.started", &pod.app), &pod);
    let other = node.run_pod("batch");
    wait_for_life(&mut daemon, "container.started", &other.app);

    // Debian's plugins leave the entry to be learned.
    let netns = NetnsPath::of_process(other.pid);
    let gateway = netns.network(Network::default_gateway).to_string();
    daemon.wait_for_gateway(netns.inum(), &gateway);
    netns.set_neighbor("eth0", &gateway, GATEWAY_LLADDR, NeighbourState::Permanent);
    let ip = netns.run(&format!("ip neigh del {gateway} dev eth0"));
    let deleted = daemon.wait_for_deletion_by(ip.pid, netns.inum(), &gateway);
    expect_pod(&deleted, &other);
    let opened = daemon.wait_for_incident(&other.sandbox);
    opened.expect("/incident/kind", "gateway-neighbor-lost");
    expect_pod(&opened, &other);
    let summary = opened.text("/incident/summary");
    assert!(summary.contains(&other.full_name()), "{opened}");

    node.remove_pod("web", &pod);
    wait_for_life(&mut daemon, "container.exited", &pod.app);
    wait_for_life(&mut daemon, "container.exited", &pod.sandbox);
    daemon.mount_fence();
    let opened = incidents(&daemon, &pod);
    assert!(opened.is_empty(), "a pod that ends in good order: {opened:?}");
}
