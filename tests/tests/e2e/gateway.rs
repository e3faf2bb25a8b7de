//! Whose gateway is lost, and when it is not: on a node without any runtime.

use std::process::{Command, Stdio};

use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::{Netns, NetnsPath};
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::{Running, comm, run};
use nix::sys::signal::Signal;

const KIND: &str = "gateway-neighbor-lost";

/// A teardown is over after a second, so that what comes after it can be tested.
const IMPATIENT: &str = "[incidents]\ngateway_teardown_seconds = 2\ngateway_confirm_seconds = 1\n";

fn wait_for(daemon: &mut Daemon, transition: &str, netns: u64) -> Event {
    daemon.wait_for(&format!("{transition} in {netns}"), |event| is_of(event, transition, netns))
}

fn is_of(event: &Event, transition: &str, netns: u64) -> bool {
    event.is_incident(transition, KIND) && event.is_in(netns)
}

fn incidents(events: &[Event], netns: u64) -> Vec<String> {
    let of_it = events.iter().filter(|event| event.is_in(netns));
    of_it.filter(|event| event.has("/incident")).map(ToString::to_string).collect()
}

/// A process in the network of a pod, in no container.
fn live_in(pod: &Pod) -> Running {
    live_at(pod.netns())
}

fn live_at(netns: &NetnsPath) -> Running {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.path().display())).args(["sleep", "1000000"]);
    let process = Running::spawn(command.stdin(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in the network");
    process
}

#[test]
fn a_process_that_no_runtime_knows_loses_its_gateway_until_all_that_went_with_it_is_restored() {
    let (pod, down, unaddressed) = (Pod::new(), Pod::new(), Pod::new());
    let process = live_in(&pod);
    let _others = [&down, &unaddressed].map(live_in);
    let mut daemon = launch().start();
    let ip = pod.delete_gateway();
    let deleted = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    deleted.expect("/target/process/pid", process.pid());
    let opened = wait_for(&mut daemon, "incident.opened", pod.inum());
    opened.expect_actor(ip.pid, "ip");
    opened.expect("/severity", "warning");
    opened.expect("/target/netns_name", pod.netns_name());
    opened.expect("/neighbor/reason", "missing");
    assert!(opened.has("/target/netns_cookie"), "{opened}");
    assert_ne!(opened.text("/target/join"), "host");
    pod.set_gateway();
    let closed = wait_for(&mut daemon, "incident.closed", pod.inum());
    closed.expect("/incident/close_reason", "resolved");

    let restored = |pod: &Pod, daemon: &mut Daemon| {
        let gateway = GATEWAY.parse().expect("an address");
        pod.netns().network(|network| network.add_gateway("eth0", gateway));
        pod.set_gateway();
        let closed = wait_for(daemon, "incident.closed", pod.inum());
        closed.expect("/incident/close_reason", "resolved");
        assert!(pod.has_gateway());
    };
    // With the interface, which was down for a moment.
    let ip = down.netns().ip_batch("link set eth0 down\nlink set eth0 up\n");
    let opened = wait_for(&mut daemon, "incident.opened", down.inum());
    opened.expect_actor(ip.pid, "ip");
    opened.expect("/neighbor/cause", "link-down");
    // The interface is read several times, up and without its route.
    daemon.wait_for("a repetition", |event| event.is_in(down.inum()) && event.kind() == "link.changed");
    restored(&down, &mut daemon);

    // With the address.
    let ip = unaddressed.ip(&format!("address del {}/32 dev eth0", unaddressed.address()));
    let opened = wait_for(&mut daemon, "incident.opened", unaddressed.inum());
    opened.expect_actor(ip.pid, "ip");
    opened.expect("/neighbor/cause", "last-address-removed");
    opened.expect("/neighbor/reason", "missing");
    unaddressed.ip(&format!("address add {}/32 dev eth0", unaddressed.address()));
    restored(&unaddressed, &mut daemon);

    // Of one that entered after the namespace was read.
    let late = Pod::new();
    daemon.fence(&late);
    let process = live_in(&late);
    let ip = late.delete_gateway();
    // The number of the namespace may have been another one's before.
    let opened = daemon.wait_for("the late one", |event| {
        is_of(event, "incident.opened", late.inum()) && event.number("/actor/pid") == Some(ip.pid.into())
    });
    opened.expect_actor(ip.pid, "ip");
    opened.expect("/target/process/pid", process.pid());
}

/// Not by a later reading, of which each takes its time: what mends an entry is told, and its event is evidence.
#[test]
fn each_of_many_repairs_closes_its_incident_as_it_is_made() {
    const PODS: usize = 40;
    let pods: Vec<Pod> = (0..PODS).map(|_| Pod::new()).collect();
    let _processes: Vec<Running> = pods.iter().map(live_in).collect();
    let mut daemon = launch().start();
    let broken: Vec<u32> = pods.iter().map(|pod| pod.delete_gateway().pid).collect();
    for (pod, pid) in pods.iter().zip(broken) {
        wait_for(&mut daemon, "incident.opened", pod.inum()).expect_actor(pid, "ip");
    }
    let mended: Vec<u32> = pods
        .iter()
        .map(|pod| {
            pod.ip(&format!("neigh replace {GATEWAY} lladdr {GATEWAY_LLADDR} dev eth0 nud permanent")).pid
        })
        .collect();
    for (pod, pid) in pods.iter().zip(mended) {
        let closed = wait_for(&mut daemon, "incident.closed", pod.inum());
        closed.expect("/incident/close_reason", "resolved");
        let repair = daemon.wait_for("the repair", |event| {
            event.kind() == "neighbor.added" && event.is_neighbor(pod.inum(), GATEWAY)
        });
        repair.expect_actor(pid, "ip");
        let evidence = closed.list("/incident/evidence");
        assert!(evidence.iter().any(|seq| seq.as_u64() == repair.number("/seq")), "{closed}\n{repair}");
    }
}

/// A network without a link to the host, as a pod with a macvlan interface has it.
struct Apart {
    netns: Netns,
    _far: Netns,
    _process: Running,
}

impl Apart {
    const FORMER: &str = "10.78.0.8";
    const PRESENT: &str = "10.78.0.9";

    fn new() -> Self {
        let (netns, far) = (Netns::new(), Netns::new());
        netns.path().ip_batch(&format!(
            "link add eth0 type veth peer name far0 netns {}\naddress add 10.78.0.1/24 dev eth0\nlink set eth0 up\n\
             route add default via {}\n",
            far.name(),
            Self::FORMER
        ));
        let apart = Self { _process: live_at(netns.path()), netns, _far: far };
        [Self::FORMER, Self::PRESENT].into_iter().for_each(|router| apart.set(router));
        apart
    }

    fn set(&self, router: &str) {
        self.netns.path().set_neighbor("eth0", router, "02:00:00:00:00:0f", NeighbourState::Permanent);
    }

    /// Gives it another gateway.
    fn change(&self) {
        self.netns.path().run(&format!("ip route replace default via {}", Self::PRESENT));
    }

    /// Deletes both entries; what is said about the former and the present one.
    fn delete(&self, daemon: &mut Daemon) -> (Event, Event) {
        let inum = self.netns.path().inum();
        let mut delete = |router: &str| {
            let ip = self.netns.path().run(&format!("ip neigh del {router} dev eth0"));
            daemon.wait_for_deletion_by(ip.pid, inum, router)
        };
        (delete(Self::FORMER), delete(Self::PRESENT))
    }
}

#[test]
fn a_gateway_that_changed_in_a_network_without_a_link_to_the_host_is_known() {
    let apart = Apart::new();
    let mut daemon = launch().start();
    let inum = apart.netns.path().inum();
    apart.change();
    // A message is not read before what happens next.
    daemon.wait_for_gateway(inum, Apart::PRESENT);
    let (former, present) = apart.delete(&mut daemon);
    former.expect("/neighbor/gateway", false);
    present.expect("/neighbor/gateway", true);
    let opened = wait_for(&mut daemon, "incident.opened", inum);
    opened.expect("/neighbor/address", Apart::PRESENT);
    opened.expect_actor(present.number("/actor/pid").and_then(|pid| pid.try_into().ok()).unwrap_or(0), "ip");
    apart.set(Apart::PRESENT);
    wait_for(&mut daemon, "incident.closed", inum).expect("/incident/close_reason", "resolved");
}

#[test]
fn a_gateway_that_changed_where_no_messages_come_from_is_not_guessed() {
    let apart = Apart::new();
    // Without this capability a process hears of no other namespace.
    let drop = ["setpriv", "--bounding-set", "-net_broadcast", "--inh-caps", "-net_broadcast"];
    let mut daemon = launch().through(&drop).start();
    apart.change();
    let (former, present) = apart.delete(&mut daemon);
    former.expect_none("/neighbor/gateway");
    present.expect("/neighbor/gateway", true);
}

#[test]
fn a_private_network_of_a_service_or_a_control_group_is_named_by_that_too() {
    let groups = Hierarchy::all();
    let groups = groups.iter().flat_map(|&hierarchy| [Cgroup::of_service(hierarchy), Cgroup::new(hierarchy)]);
    let members = groups.map(|group| {
        let mut command = Command::new("unshare");
        let process = Running::spawn(command.args(["-n", "sleep", "1000000"]).stdin(Stdio::null()));
        eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it has a network of its own");
        group.take(process.pid());
        let pod = Pod::at(NetnsPath::of_process(process.pid()));
        (group, process, pod)
    });
    let members = members.collect::<Vec<_>>();
    let mut daemon = launch().start();
    for (group, process, pod) in &members {
        pod.delete_gateway();
        let opened = wait_for(&mut daemon, "incident.opened", pod.inum());
        opened.expect("/target/cgroup", group.path());
        let is_service = group.name().ends_with(".service");
        assert_eq!(opened.text("/target/unit"), if is_service { group.name() } else { "" });
        let named = if is_service { group.name().to_owned() } else { group.path() };
        let label = format!("the network namespace of sleep (pid {}, {named})", process.pid());
        assert!(opened.text("/message").starts_with(&label), "{opened}");
    }
}

#[test]
fn a_name_that_another_namespace_has_by_now_is_not_told_of_the_one_before() {
    let pod = Pod::new();
    let process = live_in(&pod);
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let before = NetnsPath::of_process(process.pid());
    let (inum, name) = (before.inum(), pod.netns_name().to_owned());
    run(&format!("ip netns del {name}"));
    run(&format!("ip netns add {name}"));
    let named = |inum: u64| daemon.model_of(inum).is_some_and(|model| model["name"] == *name);
    assert_ne!(pod.inum(), inum);
    // As a runtime makes it known.
    let _present = Pod::at(pod.netns().clone());
    eventually!(named(pod.inum()) && !named(inum), "{name} is the name of another one");
    before.run(&format!("ip neigh del {GATEWAY} dev eth0"));
    let opened = wait_for(&mut daemon, "incident.opened", inum);
    opened.expect_none("/target/netns_name");
    opened.expect("/target/process/pid", process.pid());
}

#[test]
fn a_namespace_in_which_nothing_lives_loses_nothing_and_a_process_its_gateway_with_the_host_end() {
    let (pod, witness) = (Pod::new(), Pod::new());
    let process = live_in(&witness);
    let mut daemon = launch().config(IMPATIENT).start();
    pod.delete_gateway();
    let deleted = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    deleted.expect("/neighbor/gateway", true);
    deleted.expect_none("/target/process");

    let ip = run(&format!("ip link del {}", witness.host_end()));
    let opened = wait_for(&mut daemon, "incident.opened", witness.inum());
    opened.expect_actor(ip.pid, "ip");
    opened.expect("/neighbor/reason", "missing");
    opened.expect("/neighbor/cause", "link-deleted");
    drop(process);
    let closed = wait_for(&mut daemon, "incident.closed", witness.inum());
    closed.expect("/incident/close_reason", "subject-gone");
    // The other one would have been confirmed by now.
    assert_eq!(incidents(&daemon.events(), pod.inum()), [""; 0]);
}

#[test]
fn an_interface_that_goes_while_another_one_takes_over_leaves_nothing_lost() {
    let pod = Pod::new();
    let _process = live_in(&pod);
    pod.netns().ip_batch(
        "link add net1 type veth peer name far1\nlink set far1 up\nlink set net1 up\n\
         address add 10.200.1.2/24 dev net1\n",
    );
    let mut daemon = launch().config("[incidents]\ngateway_confirm_seconds = 50\n").start();
    // As a runtime disconnects a container from a network: the other route comes a moment later.
    pod.netns().ip_batch("link set eth0 down\nlink del eth0\n");
    let deleted = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    deleted.expect("/neighbor/cause", "link-down");
    pod.netns().ip_batch("route add default via 10.200.1.1 dev net1\n");
    daemon.wait_for("the other route", |event| {
        event.kind() == "route.added" && event.text("/route/gateway") == "10.200.1.1"
    });
    let is_suspected = |daemon: &Daemon| {
        let state: serde_json::Value =
            serde_json::from_str(&daemon.ask(&["state", "--json"]).stdout).unwrap_or_default();
        state["suspected"].to_string().contains(&pod.inum().to_string())
    };
    eventually!(!is_suspected(&daemon), "nothing is suspected any more");
    assert_eq!(incidents(&daemon.events(), pod.inum()), [""; 0]);
}

#[test]
fn of_each_thing_that_is_wrong_its_own_actor_is_named() {
    let pod = Pod::new();
    let _process = live_in(&pod);
    let mut daemon = launch().start();
    let first = pod.delete_gateway();
    wait_for(&mut daemon, "incident.opened", pod.inum()).expect_actor(first.pid, "ip");
    // A wrong entry.
    pod.set_neighbor(GATEWAY, "02:00:00:00:00:0c", NeighbourState::Permanent);
    let other = daemon.wait_for("another reason", |event| {
        is_of(event, "incident.updated", pod.inum()) && event.text("/neighbor/reason") == "wrong-lladdr"
    });
    other.expect("/actor/pid", std::process::id());
    other.expect("/actor/confidence", "certain");
    other.expect("/incident/count", 1);
    assert!(!other.text("/message").contains(&first.pid.to_string()), "{other}");
    // Then another process takes that one, too.
    let second = pod.delete_gateway();
    let again = daemon.wait_for("the other process", |event| {
        is_of(event, "incident.updated", pod.inum()) && event.number("/actor/pid") == Some(second.pid.into())
    });
    again.expect("/neighbor/reason", "missing");
    again.expect("/incident/count", 1);
}

/// Where others make namespaces, a number is given to one of theirs.
mod alone {
    use super::*;

    #[test]
    fn what_was_lost_in_a_namespace_that_has_ended_is_not_missed_in_the_next_one_of_its_number() {
        let mut daemon = launch().start();
        // It hears of all this only when the one has taken the place of the other.
        daemon.signal(Signal::SIGSTOP);
        let mut former = Pod::new();
        let (number, ip) = (former.inum(), former.delete_gateway());
        former.delete_netns();
        let next = wait_until("the number is given to another one", || {
            Some(Pod::new()).filter(|pod| pod.inum() == number)
        });
        let _process = live_in(&next);
        daemon.signal(Signal::SIGCONT);
        daemon.wait_for_gateway(number, GATEWAY);
        let by_former = |event: &Event| event.number("/actor/pid") == Some(ip.pid.into());
        let deleted = daemon.wait_for("the deletion", by_former);
        deleted.expect("/kind", "neighbor.deleted");
        deleted.expect("/neighbor/other_netns", true);
        deleted.expect_none("/neighbor/gateway");
        deleted.expect_none("/target/process");
        // Whoever deletes it in this one is named.
        let ip = next.delete_gateway();
        wait_for(&mut daemon, "incident.opened", number).expect_actor(ip.pid, "ip");
        let opened = daemon.events().into_iter().filter(|event| event.kind() == "incident.opened");
        assert_eq!(opened.filter(|event| event.number("/neighbor/netns") == Some(number)).count(), 1);
    }
}
