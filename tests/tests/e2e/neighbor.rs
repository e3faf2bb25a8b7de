//! Deletions of neighbor entries, for every cause: the event, its actor, and when there must be no event.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::lock::Exclusive;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::network::{Neighbor, NeighbourState, enter, on_host};
use kevtmon_tests::patience::patience;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::{Finished, busy_loop, comm, poll_neighbors, run};
use kevtmon_tests::unique;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// A pod that the daemon finds at its start.
fn pod_and_daemon() -> (Pod, Daemon) {
    let ([pod], daemon) = pods_and_daemon();
    (pod, daemon)
}

fn pods_and_daemon<const PODS: usize>() -> ([Pod; PODS], Daemon) {
    let pods = [(); PODS].map(|()| Pod::new());
    let daemon = launch().start();
    // A slow machine may be ready before every namespace was read.
    pods.iter().for_each(|pod| daemon.wait_for_gateway(pod.inum(), GATEWAY));
    (pods, daemon)
}

/// A thread that asks for the entry of a pod's gateway all the time.
struct Inquiry {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Inquiry {
    fn start(pod: &Pod) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (path, end) = (pod.netns().path().to_owned(), Arc::clone(&ended));
        let index = pod.netns().network(|network| network.index("eth0"));
        let ask = move || enter(&path, || ask_for_gateway(index, &end)).expect("the pod is there");
        Self { ended, thread: Some(std::thread::spawn(ask)) }
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let asked = thread.join();
            assert!(std::thread::panicking() || asked.is_ok(), "it asked to the end");
        }
    }
}

fn ask_for_gateway(ifindex: u32, ended: &AtomicBool) {
    /// `RTM_GETNEIGH`, `NLM_F_REQUEST` and `NDA_DST` of the kernel's `uapi/linux`.
    const GET: [u8; 8] = [30, 0, 1, 0, 0, 0, 0, 0];
    const DESTINATION: [u8; 4] = [8, 0, 1, 0];
    let address = GATEWAY.parse::<Ipv4Addr>().expect("an address").octets();
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
        .expect("a socket can be made");
    let header = [&36_u32.to_ne_bytes()[..], &GET, &[0; 4]].concat();
    let entry = [&[2, 0, 0, 0], &ifindex.to_ne_bytes()[..], &[0; 4]].concat();
    let request = [header, entry, DESTINATION.to_vec(), address.to_vec()].concat();
    let mut answer = [0; 1024];
    while !ended.load(Ordering::Relaxed) {
        send(socket.as_raw_fd(), &request, MsgFlags::empty()).expect("a request can be sent");
        recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).expect("it is answered");
    }
}

/// How often the deletion of an entry was printed.
fn deletions(events: &[Event], netns: u64, address: &str) -> usize {
    events.iter().filter(|event| event.is_deletion(netns, address)).count()
}

/// Panics if any event of the namespace is a warning or has an actor.
#[track_caller]
fn expect_no_blame(events: &[Event], netns: u64) {
    for event in events.iter().filter(|event| event.kind().starts_with("neighbor.") && event.is_in(netns)) {
        event.expect_none("/actor");
        assert!(!event.alarms(), "an alarm for nothing: {event}");
    }
}

#[test]
fn a_deleted_gateway_entry_names_the_process_that_did_it() {
    let (pod, mut daemon) = pod_and_daemon();
    let ip = run(&format!("ip -n {} neigh del {GATEWAY} dev eth0", pod.netns_name()));
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);

    event.expect("/schema", 1);
    event.expect("/severity", "warning");
    event.expect("/neighbor/cause", "admin");
    event.expect("/neighbor/state", "permanent");
    event.expect("/neighbor/lladdr", GATEWAY_LLADDR);
    event.expect("/neighbor/ifname", "eth0");
    event.expect("/neighbor/gateway", true);
    event.expect_none("/neighbor/new_state");
    event.expect_actor(ip.pid, "ip");
    event.expect("/actor/tid", ip.pid);
    event.expect("/actor/uid", 0);
    assert!(event.text("/actor/exe").ends_with("/ip"), "{event}");
    let expected = format!("ip -n {} neigh del {GATEWAY} dev eth0", pod.netns_name());
    event.expect("/actor/cmdline", expected);
    assert!(event.text("/actor/start_time_ns").parse::<u64>().is_ok_and(|ns| ns > 0), "{event}");
    event.expect("/actor/ancestors/0/pid", std::process::id());
    assert!(event.list("/actor/ancestors").len() <= 5, "{event}");
    event.expect_none("/actor/container");
    // `ip` is a tool: this test is who used it.
    let user = std::process::id();
    let by = format!("deleted by {} (pid {user})", comm(user).unwrap_or_default());
    for word in [GATEWAY, "eth0", &by, ", by means of ip"] {
        assert!(event.text("/message").contains(word), "{word} in the message of {event}");
    }
}

#[test]
fn a_deletion_by_ioctl_or_a_flush_and_one_of_an_ipv6_entry_or_no_gateway_names_the_process_too() {
    let (pod, mut daemon) = pod_and_daemon();
    let address = unique::address(90);
    pod.set_neighbor(&address, "02:00:00:00:00:07", NeighbourState::Permanent);
    let ip = pod.ip(&format!("neigh del {address} dev eth0"));
    let event = daemon.wait_for_deletion(pod.inum(), &address);
    event.expect_actor(ip.pid, "ip");
    event.expect("/neighbor/gateway", false);
    event.expect("/neighbor/lladdr", "02:00:00:00:00:07");

    pod.set_neighbor("fe80::1", "02:00:00:00:00:08", NeighbourState::Permanent);
    let ip = pod.ip("-6 neigh del fe80::1 dev eth0");
    let event = daemon.wait_for_deletion(pod.inum(), "fe80::1");
    event.expect_actor(ip.pid, "ip");
    event.expect("/neighbor/cause", "admin");

    let arp = pod.netns().run(&format!("busybox arp -i eth0 -d {GATEWAY}"));
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    event.expect_actor(arp.pid, "busybox");
    event.expect("/neighbor/cause", "admin");
    event.expect("/neighbor/gateway", true);

    pod.set_gateway();
    let ip = pod.ip("neigh flush dev eth0 nud permanent");
    let event = daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
    event.expect_actor(ip.pid, "ip");
    event.expect("/neighbor/cause", "admin");
}

#[test]
fn an_entry_that_is_used_at_that_moment_is_told_all_the_same() {
    let (pod, mut daemon) = pod_and_daemon();
    // Each request holds the entry while it is answered.
    let _users = [(); 3].map(|()| Inquiry::start(&pod));
    let mut unknown = 0;
    let deadline = Instant::now() + patience();
    for number in 0_u64.. {
        assert!(Instant::now() < deadline, "{unknown} of {number} entries were in use");
        let ip = pod.ip(&format!("link set eth0 address 02:00:00:00:01:{:02x}", number % 256));
        let event = daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
        event.expect("/neighbor/gateway", true);
        event.expect("/neighbor/lladdr", GATEWAY_LLADDR);
        event.expect("/severity", "warning");
        if event.has("/neighbor/state") {
            event.expect("/neighbor/state", "permanent");
        } else {
            unknown += 1;
        }
        if unknown == 3 {
            break;
        }
        pod.set_gateway();
    }
    let unknown = [("state", "unknown"), ("origin", "collateral")];
    assert!(daemon.metrics().count("kevtmon_kernel_neighbor_deletions_total", &unknown) >= 3.0);
}

/// Something that is done to the interface of a pod.
type Act = fn(&Pod) -> Finished;

#[test]
fn what_is_done_to_an_interface_or_its_host_end_takes_the_entry_with_it() {
    let acts: [(Act, &str); 6] = [
        (|pod| pod.ip("link set eth0 down"), "link-down"),
        (|pod| pod.ip("link set eth0 address 02:00:00:00:00:09"), "lladdr-changed"),
        (|pod| pod.ip(&format!("address del {}/32 dev eth0", pod.address())), "last-address-removed"),
        (|pod| pod.ip("link set eth0 arp off"), "noarp"),
        (|pod| pod.ip("link del eth0"), "link-deleted"),
        (|pod| run(&format!("ip link del {}", pod.host_end())), "link-deleted"),
    ];
    let (pods, mut daemon) = pods_and_daemon::<6>();
    for (pod, (act, cause)) in pods.iter().zip(acts) {
        let ip = act(pod);
        let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
        event.expect_actor(ip.pid, "ip");
        event.expect("/neighbor/cause", cause);
        event.expect("/neighbor/state", "permanent");
        event.expect("/neighbor/lladdr", GATEWAY_LLADDR);
        event.expect("/neighbor/ifname", "eth0");
        event.expect("/neighbor/gateway", true);
    }
}

#[test]
fn what_an_interface_was_all_along_is_not_what_takes_an_entry_with_it() {
    let address = unique::address(91);
    let pods = ["link set eth0 arp off", "link set eth0 down", "address flush dev eth0"].map(|long_before| {
        let pod = Pod::new();
        pod.ip(long_before);
        pod.set_neighbor(&address, "02:00:00:00:00:07", NeighbourState::Permanent);
        pod
    });
    let mut daemon = launch().start();
    for pod in &pods {
        daemon.wait_for_netns(pod.inum());
        let ip = pod.ip("link set eth0 address 02:00:00:00:00:09");
        let event = daemon.wait_for_deletion(pod.inum(), &address);
        event.expect_actor(ip.pid, "ip");
        event.expect("/neighbor/cause", "lladdr-changed");
    }
}

#[test]
fn multicast_entries_that_go_with_an_interface_are_noise() {
    let (pod, mut daemon) = pod_and_daemon();
    pod.set_up(false);
    pod.set_up(true);
    let events = daemon.fence(&pod);
    let deleted = events.iter().filter(|event| event.kind() == "neighbor.deleted" && event.is_in(pod.inum()));
    let addresses = deleted.map(|event| event.text("/neighbor/address")).collect::<Vec<_>>();
    assert_eq!(addresses, [GATEWAY]);
}

#[test]
fn a_flush_that_spares_permanent_entries_is_no_deletion() {
    let (pod, mut daemon) = pod_and_daemon();
    pod.set_neighbor("10.99.0.1", "02:00:00:00:00:0a", NeighbourState::Reachable);
    pod.ip("neigh flush dev eth0");
    assert!(pod.has_gateway());
    let events = daemon.fence(&pod);
    expect_no_blame(&events, pod.inum());
    assert_eq!(deletions(&events, pod.inum(), GATEWAY), 0);
}

#[test]
fn lost_carrier_is_no_deletion() {
    let (pod, mut daemon) = pod_and_daemon();
    pod.set_neighbor("10.99.0.2", "02:00:00:00:00:0b", NeighbourState::Reachable);
    on_host(|network| network.set_up(pod.host_end(), false));
    let events = daemon.fence(&pod);
    expect_no_blame(&events, pod.inum());
    assert_eq!(deletions(&events, pod.inum(), GATEWAY), 0);
}

#[test]
fn learned_entries_come_and_go_without_blame() {
    let pod = Pod::new();
    let peer = Netns::new();
    // A second link to a neighbor that answers.
    let link = unique::name("kvl");
    pod.netns().network(|network| {
        network.add_veth(&link, None, "eth1", peer.path().path())?;
        network.add_address(&link, [10, 98, 0, 1].into(), 24)?;
        network.set_up(&link, true)
    });
    peer.path().network(|network| {
        network.add_address("eth1", [10, 98, 0, 2].into(), 24)?;
        network.set_up("eth1", true)
    });
    let learned = IpAddr::from([10, 98, 0, 2]);
    let is_known = |entry: &Neighbor| entry.address == learned && entry.lladdr.is_some();
    let mut daemon = launch().start();

    for _ in 0..3 {
        pod.netns().run("busybox ping -c 1 -w 10 10.98.0.2");
        let entries = pod.netns().network(|network| network.neighbors(&link));
        assert!(entries.iter().any(is_known), "{entries:?}");
        pod.ip(&format!("neigh flush dev {link}"));
        pod.netns().run("busybox ping -c 1 -w 10 10.98.0.2");
        pod.netns().network(|network| network.delete_neighbor(&link, learned));
    }
    let events = daemon.fence(&pod);
    expect_no_blame(&events, pod.inum());
    expect_no_blame(&events, peer.path().inum());
    assert_eq!(deletions(&events, pod.inum(), "10.98.0.2"), 0);
}

#[test]
fn a_learned_gateway_that_stops_answering_has_failed_and_nobody_is_named() {
    let pod = Pod::new();
    let _ = pod.delete_gateway();
    pod.netns().run("busybox sysctl -q -w net.ipv4.neigh.eth0.retrans_time_ms=50");
    let mut daemon = launch().start();
    // There is no reply: the host's end has no address and no proxy ARP.
    let _ = pod.netns().attempt("busybox ping -c 1 -w 1 10.97.0.1");
    let event = daemon.wait_for("neighbor.failed of the gateway", |event| {
        event.kind() == "neighbor.failed" && event.is_neighbor(pod.inum(), GATEWAY)
    });
    event.expect_none("/actor");
    event.expect("/neighbor/gateway", true);
}

#[test]
fn a_namespace_that_ends_takes_its_entries_quietly() {
    let (mut pod, mut daemon) = pod_and_daemon();
    let netns = pod.inum();
    pod.delete_netns();
    let event = daemon.wait_for_deletion(netns, GATEWAY);
    event.expect("/neighbor/cause", "netns-exit");
    event.expect("/severity", "debug");
    event.expect_none("/actor");
}

#[test]
fn a_replaced_entry_has_changed_and_names_who_replaced_it() {
    let (pod, mut daemon) = pod_and_daemon();
    let ip = pod.ip(&format!("neigh replace {GATEWAY} lladdr 02:00:00:00:00:0c dev eth0 nud permanent"));
    let event = daemon.wait_for("neighbor.changed", |event| {
        event.kind() == "neighbor.changed" && event.is_neighbor(pod.inum(), GATEWAY)
    });
    event.expect_actor(ip.pid, "ip");
    event.expect("/neighbor/cause", "replaced");
    event.expect("/neighbor/lladdr", GATEWAY_LLADDR);
    event.expect("/neighbor/new_lladdr", "02:00:00:00:00:0c");
    event.expect("/neighbor/gateway", true);
    let events = daemon.fence(&pod);
    assert_eq!(deletions(&events, pod.inum(), GATEWAY), 0);
}

#[test]
fn an_entry_that_loses_its_permanence_has_changed_and_is_not_lost() {
    let (pods, mut daemon) = pods_and_daemon::<2>();
    for (pod, state) in pods.iter().zip(["reachable", "noarp"]) {
        let ip = pod.ip(&format!("neigh replace {GATEWAY} lladdr {GATEWAY_LLADDR} dev eth0 nud {state}"));
        let event = daemon.wait_for("neighbor.changed", |event| {
            event.kind() == "neighbor.changed" && event.is_neighbor(pod.inum(), GATEWAY)
        });
        event.expect_actor(ip.pid, "ip");
        event.expect("/neighbor/cause", "replaced");
        event.expect("/neighbor/state", "permanent");
        event.expect("/neighbor/new_state", state);
        let events = daemon.fence(pod);
        let is_incident =
            |event: &&Event| event.kind() == "incident.opened" && event.is_neighbor(pod.inum(), GATEWAY);
        assert_eq!(events.iter().find(is_incident).map(ToString::to_string), None, "packets go there");
    }
}

#[test]
fn an_entry_that_is_to_be_resolved_from_now_on_is_lost_but_neither_deleted_nor_replaced() {
    // The kernel resolves what is `use`d itself, and takes no address for a state that has none.
    let requests = [
        ("use", "none"),
        ("nud failed", "failed"),
        ("lladdr 02:00:00:00:00:0c nud incomplete", "incomplete"),
    ];
    let (pods, mut daemon) = pods_and_daemon::<3>();
    for (pod, (request, state)) in pods.iter().zip(requests) {
        let ip = pod.ip(&format!("neigh replace {GATEWAY} dev eth0 {request}"));
        if request == "use" && pod.has_gateway() {
            // Before 5.16 such a request sends a packet at most, and changes nothing.
            let events = daemon.fence(pod);
            let about = events.iter().find(|event| event.is_neighbor(pod.inum(), GATEWAY));
            assert_eq!(about.map(ToString::to_string), None);
            continue;
        }
        let event = daemon.wait_for("neighbor.changed", |event| {
            event.kind() == "neighbor.changed" && event.is_neighbor(pod.inum(), GATEWAY)
        });
        event.expect_actor(ip.pid, "ip");
        event.expect("/neighbor/state", "permanent");
        event.expect("/neighbor/new_state", state);
        event.expect_none("/neighbor/new_lladdr");
        let events = daemon.fence(pod);
        assert_eq!(deletions(&events, pod.inum(), GATEWAY), 0, "{request}");
    }
}

#[test]
fn an_entry_set_again_to_what_it_was_has_not_changed() {
    let (pod, mut daemon) = pod_and_daemon();
    pod.set_gateway();
    let events = daemon.fence(&pod);
    let mut about = events.iter().filter(|event| event.is_neighbor(pod.inum(), GATEWAY));
    assert_eq!(about.next().map(ToString::to_string), None);
}

#[test]
fn a_delete_an_add_and_a_delete_in_one_breath_are_two_events() {
    let (pod, mut daemon) = pod_and_daemon();
    let ip = pod.netns().ip_batch(&format!(
        "neigh del {GATEWAY} dev eth0\n\
         neigh add {GATEWAY} lladdr {GATEWAY_LLADDR} dev eth0 nud permanent\n\
         neigh del {GATEWAY} dev eth0\n"
    ));
    let events = daemon.fence(&pod);
    let deleted = events.iter().filter(|event| event.is_deletion(pod.inum(), GATEWAY)).collect::<Vec<_>>();
    assert_eq!(deleted.len(), 2);
    for event in deleted {
        event.expect_actor(ip.pid, "ip");
        event.expect("/neighbor/cause", "admin");
        event.expect("/neighbor/lladdr", GATEWAY_LLADDR);
    }
}

/// What counts all that the kernel does, or needs a quiet machine.
mod alone {
    use super::*;

    #[test]
    fn a_process_that_only_keeps_the_cpu_busy_is_never_named() {
        // Interrupts hit the running task: alone on the machine that is a burner, almost always.
        let _exclusive = Exclusive::take();
        let pod = Pod::new();
        pod.netns().run("busybox sysctl -q -w net.ipv4.neigh.eth0.retrans_time_ms=10");
        let mut daemon = launch().start();
        let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let busy = (0..cpus).map(|_| busy_loop()).collect::<Vec<_>>();
        let poller = poll_neighbors(pod.netns().path());
        let mut actors = Vec::new();
        for round in 0..20 {
            // An entry that fails in a timer, and one that a process deletes.
            pod.netns().network(|network| network.probe_neighbor("eth0", [10, 96, 0, round + 1].into()));
            actors.push(pod.delete_gateway().pid);
            pod.set_gateway();
        }
        let events = daemon.fence(&pod);
        let deleted =
            events.iter().filter(|event| event.is_deletion(pod.inum(), GATEWAY)).collect::<Vec<_>>();
        assert_eq!(deleted.iter().filter_map(|event| event.number("/actor/pid")).collect::<Vec<_>>(), {
            actors.iter().map(|pid| u64::from(*pid)).collect::<Vec<_>>()
        });
        let idle = busy.iter().chain([&poller]).map(|process| u64::from(process.pid())).collect::<Vec<_>>();
        for event in &events {
            assert!(!event.number("/actor/pid").is_some_and(|pid| idle.contains(&pid)), "{event}");
        }
    }
}
