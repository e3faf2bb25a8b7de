//! The neighbor record of a pod's address on the node that stays unresolved, on a node without any runtime.

use std::net::IpAddr;

use kevtmon_tests::advice::{carry_out, resolved};
use kevtmon_tests::daemon::{Daemon, Launch, POLL_EACH_SECOND, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::network::{NeighbourState, lladdr, on_host};
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::run;

const KIND: &str = "pod-neighbor-unreachable";

/// Three looks are needed all the same.
fn impatient() -> Launch {
    launch().config(&format!("{POLL_EACH_SECOND}[incidents]\npod_neighbor_unreachable_seconds = 1\n"))
}

/// Sends something to a pod, as far as the node can tell.
fn send_to(pod: &Pod) {
    let address: IpAddr = pod.address().parse().unwrap_or_else(|error| unreachable!("{error}"));
    on_host(|network| network.probe_neighbor(pod.host_end(), address));
}

fn is_of(event: &Event, transition: &str, pod: &Pod) -> bool {
    event.is_incident(transition, KIND) && event.text("/neighbor/address") == pod.address()
}

/// Waits for the incident while something is sent to the pods.
fn opened(daemon: &Daemon, pods: &[&Pod]) -> Event {
    wait_until("the incident", || {
        pods.iter().for_each(|pod| send_to(pod));
        daemon.events().into_iter().find(|event| is_of(event, "incident.opened", pods[0]))
    })
}

#[test]
fn a_pod_that_does_not_answer_is_told_after_three_looks_until_it_answers() {
    let (pod, idle) = (Pod::new(), Pod::new());
    let sandboxes = [PodSandbox::of(&pod), PodSandbox::of(&idle)];
    let mut daemon = impatient().start();
    // Nobody sends anything to the other one, and it has no record.
    for one in [&pod, &idle] {
        one.ip("link set eth0 arp off");
    }
    let found = opened(&daemon, &[&pod]);
    found.expect("/severity", "warning");
    found.expect("/target/pod/uid", sandboxes[0].uid());
    found.expect("/neighbor/ifname", pod.host_end());
    for words in [pod.address(), pod.host_end(), "ARP is off on eth0 in the pod"] {
        assert!(found.text("/message").contains(words), "{words:?} in {found}");
    }
    assert!(found.number("/incident/count") >= Some(3), "{found}");
    let healthy = format!("its host end {} is up", pod.host_end());
    assert!(found.list("/incident/ruled_out").iter().any(|text| *text == *healthy), "{found}");

    let id = found.text("/incident/id").to_owned();
    let shown = carry_out(&daemon, &id, "pod-neighbor-unreachable/show-record").stdout;
    assert!(shown.contains(pod.address()), "{shown}");
    run(&format!("ip route add {}/32 dev {}", pod.address(), pod.host_end()));
    let shown = carry_out(&daemon, &id, "pod-neighbor-unreachable/show-route").stdout;
    assert!(shown.contains(pod.host_end()), "{shown}");
    let told = carry_out(&daemon, &id, "pod-neighbor-unreachable/tell-pod").stdout;
    assert!(told.contains(&id), "{told}");

    let own = pod.ip("-json link show eth0").stdout;
    let links: serde_json::Value = serde_json::from_str(&own).unwrap_or_default();
    let mac = links[0]["address"].as_str().and_then(lladdr).unwrap_or_else(|| unreachable!("{own}"));
    let address: IpAddr = pod.address().parse().unwrap_or_else(|error| unreachable!("{error}"));
    // As an answer has it.
    on_host(|network| network.set_neighbor(pod.host_end(), address, mac, NeighbourState::Reachable));
    resolved(&mut daemon, &id);
    let of_idle = daemon.events().iter().filter(|event| is_of(event, "incident.opened", &idle)).count();
    assert_eq!(of_idle, 0, "that there is no record is normal");
}

#[test]
fn it_is_found_by_a_daemon_that_starts_later_and_ends_with_the_pod_and_is_none_where_no_pod_is() {
    let (mut pod, empty) = (Pod::new(), Pod::new());
    let sandbox = PodSandbox::of(&pod);
    for one in [&pod, &empty] {
        one.ip("link set eth0 arp off");
        send_to(one);
    }
    let mut daemon = impatient().start();
    let found = opened(&daemon, &[&pod, &empty]);
    found.expect("/incident/found_at_start", true);
    let of_empty = daemon.events().iter().filter(|event| is_of(event, "incident.opened", &empty)).count();
    assert_eq!(of_empty, 0, "nobody lives there");
    drop(sandbox);
    pod.delete_netns();
    let closed = daemon.wait_for("the end", |event| is_of(event, "incident.closed", &pod));
    closed.expect("/incident/close_reason", "subject-gone");
}

#[test]
fn an_interface_that_is_down_in_the_pod_or_on_the_host_is_set_up_by_the_command_that_is_shown() {
    let (inside, host_side) = (Pod::new(), Pod::new());
    let _sandboxes = [PodSandbox::of(&inside), PodSandbox::of(&host_side)];
    let daemon = impatient().start();
    inside.set_up(false);
    run(&format!("ip link set {} down", host_side.host_end()));
    let id = |pod: &Pod| {
        let found = opened(&daemon, &[pod]);
        found.text("/incident/id").to_owned()
    };
    let _ = carry_out(&daemon, &id(&inside), "pod-neighbor-unreachable/set-up-inside");
    let shown = inside.ip("-oneline link show dev eth0").succeeded("ip").stdout;
    assert!(shown.contains(",UP"), "{shown}");
    let _ = carry_out(&daemon, &id(&host_side), "pod-neighbor-unreachable/set-up");
    let shown = run(&format!("ip -oneline link show dev {}", host_side.host_end())).stdout;
    assert!(shown.contains(",UP"), "{shown}");
}
