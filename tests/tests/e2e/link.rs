//! Links of pods: the events when one is created, changed, moved and deleted.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::{Netns, NetnsPath};
use kevtmon_tests::network::on_host;
use kevtmon_tests::pod::{GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::{Running, comm};
use nix::sys::signal::Signal;

/// The namespace of these tests, which is the host's.
fn host() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |file| file.ino())
}

fn wait_for_link(daemon: &mut Daemon, kind: &str, netns: u64, ifname: &str) -> Event {
    daemon.wait_for(&format!("{kind} of {ifname}"), |event| {
        event.kind() == kind && event.is_in(netns) && event.text("/link/ifname") == ifname
    })
}

fn wait_for_change(daemon: &mut Daemon, netns: u64, ifname: &str, change: &str) -> Event {
    daemon.wait_for(&format!("{change} of {ifname}"), |event| {
        let changes = event.list("/link/change");
        event.kind() == "link.changed"
            && event.is_in(netns)
            && event.text("/link/ifname") == ifname
            && changes.iter().any(|item| item == change)
    })
}

#[test]
fn a_new_pair_is_reported_with_its_other_end() {
    let mut daemon = launch().start();
    let pod = Pod::new();
    let event = wait_for_link(&mut daemon, "link.created", host(), pod.host_end());
    event.expect("/link/kind", "veth");
    event.expect("/link/mac", GATEWAY_LLADDR);
    assert!(event.number("/link/peer/ifindex").is_some(), "{event}");
    // The owner of the namespace may take a moment to find out.
    let (name, netns) = (pod.host_end().to_owned(), pod.inum());
    daemon.wait_for("the namespace of the other end", |event| {
        event.text("/link/ifname") == name && event.number("/link/peer/netns") == Some(netns)
    });
}

#[test]
fn what_changes_at_either_end_of_a_pair_is_reported_with_the_other_end() {
    let (pod, other) = (Pod::new(), Pod::new());
    let mut daemon = launch().start();
    pod.set_up(false);
    wait_for_change(&mut daemon, pod.inum(), "eth0", "down").expect("/link/up", false);
    pod.set_up(true);
    wait_for_change(&mut daemon, pod.inum(), "eth0", "up").expect("/link/up", true);
    pod.netns().network(|network| network.set_lladdr("eth0", [2, 0, 0, 0, 0, 0x0d]));
    let event = wait_for_change(&mut daemon, pod.inum(), "eth0", "mac");
    event.expect("/link/mac", "02:00:00:00:00:0d");

    on_host(|network| network.set_up(other.host_end(), false));
    let event = wait_for_change(&mut daemon, host(), other.host_end(), "down");
    event.expect("/link/peer/netns", other.inum());
    // It is not in that namespace itself.
    let link = format!("veth {} with its other end in namespace {} ", other.host_end(), other.netns_name());
    assert!(event.text("/message").starts_with(&link), "{event}");
    wait_for_change(&mut daemon, other.inum(), "eth0", "carrier-down");
    on_host(|network| network.delete_link(other.host_end()));
    let event = wait_for_link(&mut daemon, "link.deleted", host(), other.host_end());
    event.expect("/link/peer/netns", other.inum());
}

#[test]
fn every_link_that_comes_and_goes_is_reported_once() {
    let witness = Pod::new();
    let mut daemon = launch().start();
    let mut names = Vec::new();
    for _ in 0..15 {
        let pods = [Pod::new(), Pod::new()];
        names.extend(pods.iter().map(|pod| pod.host_end().to_owned()));
        for pod in &pods {
            on_host(|network| network.delete_link(pod.host_end()));
        }
    }
    daemon.fence(&witness);
    for name in &names {
        wait_for_link(&mut daemon, "link.deleted", host(), name);
    }
    let events = daemon.events();
    for kind in ["link.created", "link.deleted"] {
        let emitted = events.iter().filter(|event| event.kind() == kind && event.is_in(host()));
        let mut emitted = emitted.map(|event| event.text("/link/ifname").to_owned()).collect::<Vec<_>>();
        emitted.retain(|name| names.contains(name));
        emitted.sort();
        let mut expected = names.clone();
        expected.sort();
        assert_eq!(emitted, expected, "{kind}");
    }
}

#[test]
fn a_link_that_goes_to_another_namespace_has_moved_and_is_not_deleted() {
    let pod = Pod::new();
    let other = Netns::new();
    let mut daemon = launch().start();
    let name = pod.host_end().to_owned();
    on_host(|network| network.move_link(&name, other.path().path()));
    let event = daemon
        .wait_for("link.moved", |event| event.kind() == "link.moved" && event.text("/link/ifname") == name);
    assert!(event.is_in(host()) || event.is_in(other.path().inum()), "{event}");
    let events = daemon.fence(&pod);
    let deleted =
        events.iter().find(|event| event.kind() == "link.deleted" && event.text("/link/ifname") == name);
    assert_eq!(deleted.map(ToString::to_string), None);
}

/// Two links that are each other's peer in a network without a link to the host.
fn pair_apart(unshare: &[&str]) -> (Running, NetnsPath) {
    let mut command = Command::new(unshare[0]);
    let process = Running::spawn(command.args(&unshare[1..]).args(["sleep", "1000000"]).stdin(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it has a network of its own");
    let netns = NetnsPath::of_process(process.pid());
    netns.run("ip link add kv0 type veth peer name kv1");
    netns.run("ip link set kv0 up");
    netns.run("ip link set kv1 up");
    (process, netns)
}

#[test]
fn what_users_do_to_links_of_their_own_is_not_listened_to() {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urn"];
    let (_process, of_user) = pair_apart(&nobody);
    let (_other, of_root) = pair_apart(&["unshare", "-n"]);
    let mut daemon = launch().start();
    for netns in [&of_user, &of_root] {
        daemon.wait_for_netns(netns.inum());
        netns.run("ip link set kv0 down");
    }
    wait_for_change(&mut daemon, of_root.inum(), "kv0", "down");
    // Messages of all namespaces come in order.
    let events = daemon.events();
    let heard: Vec<_> = events.iter().filter(|event| event.is_in(of_user.inum())).collect();
    assert!(heard.is_empty(), "{heard:?}");
}

#[test]
fn a_container_that_listens_to_all_packets_again_and_again_hides_nothing() {
    /// More messages than the socket has room for.
    const TOGGLES: usize = 10_000;
    let noisy = Pod::new();
    let mut daemon = launch().start();
    daemon.wait_for_netns(noisy.inum());
    daemon.signal(Signal::SIGSTOP);
    let lines = "link set eth0 promisc on\nlink set eth0 promisc off\n".repeat(TOGGLES / 2);
    noisy.netns().ip_batch(&lines);
    let pod = Pod::new();
    daemon.signal(Signal::SIGCONT);
    wait_for_link(&mut daemon, "link.created", host(), pod.host_end());
    let lost = daemon.events().into_iter().find(|event| event.text("/lost/source") == "netlink");
    assert!(lost.is_none(), "{lost:?}");
}
