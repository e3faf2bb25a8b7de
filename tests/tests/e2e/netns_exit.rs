//! The end of a network namespace: what goes with its own is quiet, what goes with another's is a loss.

use std::process::Command;

use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::network::{NeighbourState, lladdr, on_host};
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR};
use kevtmon_tests::process::{Running, idle, run};
use kevtmon_tests::reaper::Cleanup;
use kevtmon_tests::unique;
use nix::sys::signal::Signal;

/// Gives `eth0` in a namespace, whatever it is, the address and the static gateway of a pod.
fn configure(pod: &Netns) {
    let (own, gateway) = (unique::address(60), GATEWAY.parse().expect("an address"));
    pod.path().network(|network| {
        network.add_address("eth0", own.parse().expect("an address"), 32)?;
        network.set_up("eth0", true)?;
        network.add_gateway("eth0", gateway)
    });
    pod.path().set_neighbor("eth0", GATEWAY, GATEWAY_LLADDR, NeighbourState::Permanent);
}

/// A pair of links between two namespaces, of which the host has neither.
fn connect(router: &Netns, pod: &Netns) -> String {
    let name = unique::name("kvr");
    router.path().network(|network| {
        network.add_veth(&name, lladdr(GATEWAY_LLADDR), "eth0", pod.path().path())?;
        network.set_up(&name, true)
    });
    configure(pod);
    name
}

/// A namespace that the host knows, and that knows the host: only so the kernel tells which one a link leads to.
fn namespace() -> (Netns, Cleanup) {
    let (netns, uplink) = (Netns::new(), unique::name("kvu"));
    let cleanup = Cleanup::link(&uplink);
    on_host(|network| network.add_veth(&uplink, None, "uplink", netns.path().path()));
    (netns, cleanup)
}

/// A process of a container in a namespace.
fn resident(netns: &Netns, container: &Cgroup) -> Running {
    let mut command = Command::new("nsenter");
    let sleep = idle();
    command
        .arg(format!("--net={}", netns.path().path().display()))
        .arg(sleep.get_program())
        .args(sleep.get_args());
    let process = Running::spawn(&mut command);
    container.take(process.pid());
    process
}

#[test]
fn a_pod_that_loses_its_link_with_anothers_namespace_has_lost_its_gateway() {
    let hierarchy = *Hierarchy::all().last().expect("a hierarchy");
    let container = Cgroup::of_container(hierarchy);
    let ((router, _uplink), (pod, _other)) = (namespace(), namespace());
    connect(&router, &pod);
    let _resident = resident(&pod, &container);
    let mut daemon = launch().config("[incidents]\ngateway_teardown_seconds = 1\n").start();
    let (router_inum, pod_inum) = (router.path().inum(), pod.path().inum());
    router.delete();

    let event = daemon.wait_for_deletion(pod_inum, GATEWAY);
    event.expect("/neighbor/cause", "link-deleted");
    event.expect("/neighbor/ended_netns", router_inum);
    event.expect("/severity", "warning");
    event.expect_none("/actor");
    let words = format!("with its peer, whose network namespace {router_inum} ended");
    assert!(event.text("/message").contains(&words), "{event}");
    let opened = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(pod_inum)
    });
    opened.expect("/target/container/id", container.name());
    assert!(opened.text("/incident/summary").contains(&words), "{opened}");
}

#[test]
fn a_namespace_that_ends_takes_only_its_own_entries_quietly() {
    let ((router, _uplink), (pod, _other)) = (namespace(), namespace());
    let link = connect(&router, &pod);
    let other = unique::address(61);
    router.path().set_neighbor(&link, &other, "02:00:00:00:00:01", NeighbourState::Permanent);
    let mut daemon = launch().start();
    let (router_inum, pod_inum) = (router.path().inum(), pod.path().inum());
    pod.delete();

    let event = daemon.wait_for_deletion(pod_inum, GATEWAY);
    event.expect("/neighbor/cause", "netns-exit");
    event.expect("/severity", "debug");
    event.expect_none("/actor");
    let event = daemon.wait_for_deletion(router_inum, &other);
    event.expect("/neighbor/cause", "link-deleted");
    event.expect("/neighbor/ended_netns", pod_inum);
    let is_of_these = |event: &Event| [router_inum, pod_inum].into_iter().any(|netns| event.is_in(netns));
    let incident =
        daemon.events().into_iter().find(|event| event.kind().starts_with("incident.") && is_of_these(event));
    assert_eq!(incident.map(|event| event.to_string()), None);
}

#[test]
fn a_link_whose_lower_device_goes_with_a_namespace_is_deleted() {
    let ((router, _uplink), (pod, _other)) = (namespace(), namespace());
    let lower = unique::name("kvl");
    let nested =
        format!("ip -n {} link add link {lower} name eth0 netns {} type macvlan", router.name(), pod.name());
    router.path().network(|network| network.add_veth(&lower, None, "other", router.path().path()));
    run(&nested);
    configure(&pod);
    let mut daemon = launch().start();
    let (router_inum, pod_inum) = (router.path().inum(), pod.path().inum());
    router.delete();

    let event = daemon.wait_for_deletion(pod_inum, GATEWAY);
    event.expect("/neighbor/cause", "link-deleted");
    event.expect("/neighbor/ended_netns", router_inum);
    event.expect("/neighbor/ended_lower", true);
    event.expect("/severity", "warning");
    event.expect_none("/actor");
    let words = format!("with its lower device, whose network namespace {router_inum} ended");
    assert!(event.text("/message").contains(&words), "{event}");
}

/// The kernel sets a link down before it moves it: who moves a link did not mean to set it down.
#[test]
fn a_link_that_is_moved_away_is_not_said_to_be_set_down_alone() {
    let ((router, _uplink), (pod, _other)) = (namespace(), namespace());
    connect(&router, &pod);
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.path().inum(), GATEWAY);
    // Both before the daemon can look: else it may tell the first one before there is the second.
    daemon.signal(Signal::SIGSTOP);
    let ip = run(&format!("ip -n {} link set eth0 netns {}", pod.name(), router.name()));
    daemon.signal(Signal::SIGCONT);

    let event = daemon.wait_for_deletion(pod.path().inum(), GATEWAY);
    event.expect_actor(ip.pid, "ip");
    event.expect("/neighbor/cause", "link-down");
    event.expect("/neighbor/link_moved", true);
    let words = "as the link was set down and moved to another namespace";
    assert!(event.text("/message").ends_with(words), "{event}");
}

/// Netlink tells nothing of a namespace that ends, and of a link in another one what it tells of any that is deleted.
#[test]
fn without_programs_the_end_of_a_namespace_is_taken_for_no_other_change_of_a_link() {
    for of_pod in [true, false] {
        let ((router, _uplink), (pod, _other)) = (namespace(), namespace());
        let link = connect(&router, &pod);
        let other = unique::address(62);
        router.path().set_neighbor(&link, &other, "02:00:00:00:00:01", NeighbourState::Permanent);
        let mut daemon = launch().config("[hooks]\nneighbor = \"netlink\"\nlink = \"off\"\n").start();
        let [router_inum, pod_inum] = [&router, &pod].map(|netns| netns.path().inum());
        daemon.wait_for_gateway(pod_inum, GATEWAY);
        daemon.wait_for_netns(router_inum);
        let (ending, ended, left, address) = match of_pod {
            true => (pod, pod_inum, router_inum, &*other),
            false => (router, router_inum, pod_inum, GATEWAY),
        };
        ending.delete();
        let event = daemon.wait_for_deletion(left, address);
        event.expect("/neighbor/cause", "link-deleted");
        event.expect_none("/actor");
        daemon.stop();
        let told = daemon.wait_for_end_of_output();
        let of_ended = told.iter().filter(|event| event.is_in(ended) && event.has("/neighbor/cause"));
        for event in of_ended {
            event.expect("/neighbor/cause", "netns-exit");
        }
    }
}
