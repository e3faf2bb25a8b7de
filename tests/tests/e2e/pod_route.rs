//! The node's route to a pod that is missing, on a node without any runtime.

use std::process;

use kevtmon_tests::advice::{carry_out, resolved};
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::own_node::OwnNode;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::run;

const KIND: &str = "pod-route-missing";

const IMPATIENT: &str = "[incidents]\npod_route_missing_seconds = 1\npod_route_young_pod_seconds = 1\n";

fn impatient() -> Launch {
    launch().config(IMPATIENT)
}

/// The network of a pod to which the host has a route.
struct Routed {
    pod: Pod,
    address: String,
}

impl Routed {
    /// One of eight; the host's routes are those of every test on this machine.
    fn new(number: u32) -> Self {
        let pod = Pod::new();
        let [_, high, middle, low] = ((process::id() << 3) | (number & 7)).to_be_bytes();
        let address = format!("10.{high}.{middle}.{low}");
        pod.ip(&format!("address add {address}/32 dev eth0"));
        pod.ip(&format!("address del {}/32 dev eth0", pod.address()));
        let routed = Self { pod, address };
        routed.route("add");
        routed
    }

    fn route(&self, what: &str) {
        run(&format!("ip route {what} {}/32 dev {} scope link", self.address, self.pod.host_end()));
    }
}

fn is_of(event: &Event, transition: &str, address: &str) -> bool {
    event.is_incident(transition, KIND) && event.text("/route/destination") == format!("{address}/32")
}

fn wait_for(daemon: &mut Daemon, transition: &str, address: &str) -> Event {
    daemon.wait_for(&format!("{transition} of {address}"), |event| is_of(event, transition, address))
}

fn wait_for_another(daemon: &mut Daemon, transition: &str, address: &str, id: &str) -> Event {
    daemon.wait_for(&format!("another {transition} of {address}"), |event| {
        is_of(event, transition, address)
            && event.text("/incident/id") == id
            && event.number("/incident/episode") == Some(2)
    })
}

/// Whether all packets take the same routes on this machine.
fn is_without_rules() -> bool {
    let rules = run("ip -4 rule show").stdout;
    rules.lines().all(|rule| rule.contains("from all lookup ") && rule.split(' ').count() <= 4)
}

#[test]
fn a_route_that_is_gone_is_told_until_the_advice_brings_it_back() {
    let (lost, kept) = (Routed::new(0), Routed::new(1));
    let sandboxes = [PodSandbox::of(&lost.pod), PodSandbox::of(&kept.pod)];
    let mut daemon = impatient().start();
    daemon.wait_for_netns(lost.pod.inum());
    // The other one keeps a route in a table that rules might lead to.
    run(&format!("ip route add {}/32 dev {} scope link table 7447", kept.address, kept.pod.host_end()));
    kept.route("del");
    lost.route("del");
    let found = wait_for(&mut daemon, "incident.opened", &lost.address);
    found.expect("/severity", "warning");
    found.expect("/target/pod/uid", sandboxes[0].uid());
    found.expect("/link/ifname", lost.pod.host_end());
    found.expect_none("/actor");
    if is_without_rules() {
        found.expect("/incident/confidence", "certain");
    }
    for words in [&*lost.address, lost.pod.host_end(), "this node has no route to"] {
        assert!(found.text("/message").contains(words), "{words:?} in {found}");
    }
    // Found as well by a daemon that starts now.
    let mut later = impatient().start();
    let again = wait_for(&mut later, "incident.opened", &lost.address);
    again.expect("/incident/found_at_start", true);
    drop(later);

    let id = found.text("/incident/id").to_owned();
    let told = carry_out(&daemon, &id, "pod-route-missing/tell-pod").stdout;
    assert!(told.contains(&id), "{told}");
    carry_out(&daemon, &id, "pod-route-missing/add-route");
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/message").contains("this node has no route to"), "{closed}");
    let shown = run(&format!("ip route get {}", lost.address)).stdout;
    assert!(shown.contains(lost.pod.host_end()), "{shown}");

    // Now it goes with the interface, and comes back with nothing.
    let host = NetnsPath::of_process(process::id());
    let culprit = host.ip_batch(&format!("link set {0} down\nlink set {0} up\n", lost.pod.host_end()));
    let second = wait_for_another(&mut daemon, "incident.opened", &lost.address, &id);
    second.expect("/actor/pid", culprit.pid);
    second.expect("/actor/confidence", "likely");
    assert!(second.text("/message").contains("was set down by"), "{second}");
    let shown = carry_out(&daemon, &id, "pod-route-missing/show-routes").stdout;
    assert!(!shown.contains(lost.pod.host_end()), "{shown}");

    let of_kept =
        daemon.events().iter().filter(|event| is_of(event, "incident.opened", &kept.address)).count();
    assert_eq!(of_kept, 0, "it has a route");
}

#[test]
fn who_set_the_host_end_of_a_pod_with_a_static_gateway_down_is_named_and_the_advice_mends_it() {
    let cut = Routed::new(5);
    let sandbox = PodSandbox::of(&cut.pod);
    let mut daemon = impatient().start();
    daemon.wait_for_netns(cut.pod.inum());
    let end = cut.pod.host_end();
    let host = NetnsPath::of_process(process::id());
    let culprit = host.run(&format!("ip link set {end} down"));
    let found = wait_for(&mut daemon, "incident.opened", &cut.address);
    found.expect_actor(culprit.pid, "ip");
    found.expect("/target/pod/uid", sandbox.uid());
    assert!(found.text("/message").contains(&format!("its host end {end} was set down by")), "{found}");
    // Found as well by a daemon that starts now, without who did it.
    let mut later = impatient().start();
    let again = wait_for(&mut later, "incident.opened", &cut.address);
    again.expect("/incident/found_at_start", true);
    again.expect_none("/actor");
    assert!(again.text("/incident/summary").ends_with(&format!("its host end {end} is down")), "{again}");
    drop(later);

    let id = found.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "pod-route-missing/set-up");
    carry_out(&daemon, &id, "pod-route-missing/add-route");
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/message").contains("this node has no route to"), "{closed}");
}

#[test]
fn a_route_that_discards_is_replaced_by_the_advice_and_one_that_is_gone_ends_with_the_pod() {
    let (discarded, mut lost, empty) = (Routed::new(6), Routed::new(2), Routed::new(3));
    let _sandbox = PodSandbox::of(&discarded.pod);
    let sandbox = PodSandbox::of(&lost.pod);
    let mut daemon = impatient().start();
    daemon.wait_for_netns(discarded.pod.inum());
    discarded.route("del");
    run(&format!("ip route add blackhole {}/32", discarded.address));
    let found = wait_for(&mut daemon, "incident.opened", &discarded.address);
    assert!(found.text("/message").contains(": a blackhole route discards packets"), "{found}");
    let id = found.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "pod-route-missing/add-route");
    resolved(&mut daemon, &id);

    daemon.wait_for_netns(lost.pod.inum());
    empty.route("del");
    lost.route("del");
    wait_for(&mut daemon, "incident.opened", &lost.address);
    drop(sandbox);
    lost.pod.delete_netns();
    let closed = wait_for(&mut daemon, "incident.closed", &lost.address);
    closed.expect("/incident/close_reason", "subject-gone");
    let of_empty =
        daemon.events().iter().filter(|event| is_of(event, "incident.opened", &empty.address)).count();
    assert_eq!(of_empty, 0, "nobody lives there");
}

#[test]
fn a_route_of_ipv6_is_missed_like_any_other_and_its_deletion_is_an_event() {
    let routed = Routed::new(4);
    let pod = &routed.pod;
    let [_, high, middle, low] = process::id().to_be_bytes();
    let address = format!("fd00:7447:{high:x}:{middle:x}::{low:x}");
    pod.ip(&format!("-6 address add {address}/128 dev eth0 nodad"));
    pod.ip("-6 route add default via fe80::7447 dev eth0");
    run(&format!("ip -6 route add {address}/128 dev {}", pod.host_end()));
    let sandbox = PodSandbox::of(pod);
    let mut daemon = impatient().start();
    daemon.wait_for_gateway(pod.inum(), "fe80::7447");
    // Once that is found, the other one was found to be there.
    routed.route("del");
    wait_for(&mut daemon, "incident.opened", &routed.address);
    run(&format!("ip -6 route del {address}/128 dev {}", pod.host_end()));
    let destination = format!("{address}/128");
    let deleted = daemon.wait_for("the deletion", |event| {
        event.kind() == "route.deleted" && event.text("/route/destination") == destination
    });
    deleted.expect("/target/pod/uid", sandbox.uid());
    deleted.expect_none("/actor");
    let found = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", KIND) && event.text("/route/destination") == destination
    });
    found.expect("/target/pod/uid", sandbox.uid());
    let number = deleted.number("/seq").unwrap_or_default();
    assert!(found.list("/incident/evidence").iter().any(|seq| *seq == number), "{found}");
    let id = found.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "pod-route-missing/add-route");
    resolved(&mut daemon, &id);
}

/// The kernel refuses the request then, and tells no route that packets would take instead.
#[test]
fn where_the_node_has_no_default_route_no_route_matches_the_address_of_a_pod() {
    let (node, pod) = (OwnNode::new(), Pod::new());
    node.take(&pod);
    let [_, high, middle, low] = process::id().to_be_bytes();
    let ipv6 = format!("fd00:7448:{high:x}:{middle:x}::{low:x}");
    let route = |what: &str| node.ip(&format!("-6 route {what} {ipv6}/128 dev {}", pod.host_end()));
    pod.netns().ip_batch(&format!(
        "address add {ipv6}/128 dev eth0 nodad\nroute add default via fe80::7447 dev eth0\n"
    ));
    route("add");
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = node.launch().config(IMPATIENT).start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    daemon.wait_for_gateway(pod.inum(), "fe80::7447");
    node.route("del", &pod);
    route("del");
    for (destination, mend) in [
        (format!("{}/32", pod.address()), &(|| node.route("add", &pod)) as &dyn Fn()),
        (format!("{ipv6}/128"), &|| route("add")),
    ] {
        let found = daemon.wait_for(&format!("the incident of {destination}"), |event| {
            event.is_incident("incident.opened", KIND) && event.text("/route/destination") == destination
        });
        found.expect("/incident/confidence", "certain");
        found.expect("/target/pod/uid", sandbox.uid());
        assert!(found.text("/message").contains(": no route matches"), "{found}");
        mend();
        let closed = resolved(&mut daemon, found.text("/incident/id"));
        assert!(closed.text("/message").contains(": no route matches"), "{closed}");
    }
}
