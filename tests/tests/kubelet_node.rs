//! Pods that a real kubelet runs. Ignored by a plain `cargo test`: `cargo xtask test kubelet` builds the kubelet and runs
//! these.

#![allow(clippy::expect_used, reason = "a test that cannot prepare its stage must fail")]

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::kubelet::{KubeletNode, NodePod};
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::{NeighbourState, Network};
use kevtmon_tests::pod::GATEWAY_LLADDR;
use kevtmon_tests::process::attempt;

fn expect_pod(event: &Event, pod: &NodePod) {
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
fn incidents(daemon: &Daemon, pod: &NodePod) -> Vec<Event> {
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

/// The part of the configuration that lets a container be without its sandbox for a second only.
const SOON: &str = "[incidents]\norphan_container_seconds = 1\n";
/// How a kubelet of this generation ends that finds a container without its sandbox.
const REFUSES: &str = "no PodsandBox found with Id";

#[test]
#[ignore = "needs a kubelet"]
fn a_container_without_its_sandbox_keeps_the_kubelet_from_starting_until_the_advice_is_followed() {
    let mut node = KubeletNode::start();
    let pod = node.run_pod("etcd");
    let mut daemon = launch().joining(node.dockerd().runtime()).config(SOON).start();
    node.stop();
    node.dockerd().docker(&["rm", "--force", &pod.sandbox]);
    let opened = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "orphan-container")
            && event.text("/target/container/id") == pod.app
    });
    opened.expect("/sandbox/id", &*pod.sandbox);
    opened.expect("/target/pod/name", &*pod.name);
    opened.expect("/incident/confidence", "certain");
    let told = daemon.wait_for("that there is a checkpoint", |event| {
        event.text("/incident/id") == opened.text("/incident/id") && event.has("/sandbox/checkpoint")
    });
    told.expect("/sandbox/checkpoint", true);
    told.expect("/severity", "info");

    // With the checkpoint a kubelet starts, ends what is left of the pod and makes a new sandbox. The dead container stays.
    node.launch();
    let again = node.wait_for_static_pod("etcd", &[&pod.sandbox, &pod.app]);
    assert_eq!(again.uid, pod.uid);
    node.stop();
    assert!(!node.log().contains(REFUSES), "{}", node.log());

    // Without it, it does not.
    node.dockerd().docker(&["rm", "--force", &again.sandbox, &pod.app]);
    std::fs::remove_file(again.checkpoint()).expect("there is a checkpoint");
    let id = daemon
        .wait_for("the incident", |event| {
            event.is_incident("incident.opened", "orphan-container")
                && event.text("/target/container/id") == again.app
        })
        .text("/incident/id")
        .to_owned();
    let worse = daemon.wait_for("that there is no checkpoint", |event| {
        event.text("/incident/id") == id && event.get("/sandbox/checkpoint") == Some(&false.into())
    });
    worse.expect("/sandbox/kubelet_version", KubeletNode::VERSION);
    worse.expect("/severity", "critical");
    let phrase = format!("kubelet {} cannot start while it is there", KubeletNode::VERSION);
    assert!(worse.text("/incident/summary").contains(&phrase), "{worse}");
    node.launch();
    let status = node.wait_for_end();
    assert!(!status.success(), "{status}");
    let log = node.log();
    assert!(log.contains(REFUSES) && log.contains(&again.sandbox), "{log}");

    // The command as it is offered; the client of the tests' own dockerd comes first on the path.
    let command = worse.text("/incident/advice/0/command").to_owned();
    worse.expect("/incident/advice/0/risk", "destructive");
    assert!(command.ends_with(&format!(" rm --force {}", again.app)), "{command}");
    let _ = attempt(&["sh", "-c", &command]).succeeded(&command);
    let closed = daemon.wait_for("the end of the incident", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/close_reason", "resolved");
    node.launch();
    let last = node.wait_for_static_pod("etcd", &[&again.sandbox, &again.app]);
    wait_for_life(&mut daemon, "container.started", &last.app);
}
