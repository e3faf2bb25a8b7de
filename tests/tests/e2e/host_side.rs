//! Gateways that pods learn by ARP, as with Calico, and what is done to the host's side of them: who did it is named as far as
//! the kernel knows. On a node without any runtime.

use std::process::{self, Command, Stdio};

use kevtmon_tests::advice::{carry_out, incident, resolved};
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::own_node::OwnNode;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Finished, Running, run};

const KIND: &str = "gateway-neighbor-lost";

const IMPATIENT: &str = "[incidents]\nlearned_gateway_failed_seconds = 1\ngateway_teardown_seconds = 2\n";

fn impatient() -> Launch {
    launch().config(IMPATIENT)
}

/// One of sixteen addresses of this process: the routes of the host are those of every test on this machine.
fn own_address(number: u32) -> String {
    let [_, high, middle, low] = ((process::id() << 4) | (number & 15)).to_be_bytes();
    format!("10.{high}.{middle}.{low}")
}

/// Has a node answer by an interface for addresses that it reaches by others.
fn answer_for_others(node: &NetnsPath, end: &str) {
    for setting in
        ["conf/{}/forwarding=1", "conf/{}/proxy_arp=1", "conf/{}/rp_filter=0", "neigh/{}/proxy_delay=0"]
    {
        node.run(&format!("busybox sysctl -q -w net/ipv4/{}", setting.replace("{}", end)));
    }
}

/// Has a process of a pod send to its gateway all the time; returns once that is answered.
fn send_without_end(pod: &Pod, gateway: &str) -> Running {
    pod.netns().run("busybox sysctl -q -w net.ipv4.neigh.eth0.retrans_time_ms=50");
    let mut ping = Command::new("nsenter");
    ping.arg(format!("--net={}", pod.netns().path().display())).args(["busybox", "ping", gateway]);
    let sending = Running::spawn(ping.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    eventually!(is_answered(pod, gateway), "the host answers for {gateway}");
    sending
}

fn is_answered(pod: &Pod, gateway: &str) -> bool {
    let shown = pod.netns().attempt(&format!("ip neigh show {gateway} dev eth0")).stdout;
    shown.contains("lladdr") && !shown.contains("FAILED")
}

/// A pod whose gateway is an address that the host reaches by another interface, and for which it answers (`proxy_arp`).
struct Learned {
    pod: Pod,
    other: Pod,
    sandbox: PodSandbox,
    address: String,
    gateway: String,
    /// Sends to the gateway all the time.
    _sending: Running,
}

impl Learned {
    /// One of eight.
    fn new(number: u32) -> Self {
        let (pod, other) = (Pod::new(), Pod::new());
        let (address, gateway) = (own_address(2 * number), own_address(2 * number + 1));
        let end = pod.host_end().to_owned();
        run(&format!("ip route add {address}/32 dev {end} scope link"));
        run(&format!("ip route add {gateway}/32 dev {} scope link", other.host_end()));
        answer_for_others(&NetnsPath::of_process(process::id()), &end);
        pod.netns().ip_batch(&format!(
            "address add {address}/32 dev eth0\naddress del {}/32 dev eth0\nroute add {gateway}/32 dev eth0 scope link\n\
             route replace default via {gateway} dev eth0\n",
            pod.address()
        ));
        let sandbox = PodSandbox::of(&pod);
        let sending = send_without_end(&pod, &gateway);
        Self { pod, other, sandbox, address, gateway, _sending: sending }
    }

    fn daemon(&self) -> Daemon {
        let daemon = impatient().start();
        daemon.wait_for_gateway(self.pod.inum(), &self.gateway);
        daemon
    }

    fn is_of(&self, event: &Event, transition: &str) -> bool {
        event.is_incident(transition, KIND) && event.is_neighbor(self.pod.inum(), &self.gateway)
    }

    fn opened(&self, daemon: &mut Daemon) -> Event {
        daemon.wait_for("the loss", |event| self.is_of(event, "incident.opened"))
    }

    fn set_filter(&self, value: u32) -> Finished {
        let end = self.pod.host_end();
        NetnsPath::of_process(process::id())
            .run(&format!("busybox sysctl -q -w net/ipv4/conf/{end}/rp_filter={value}"))
    }

    /// Has the host route the pod's address by the end of the other pod; returns who did it, and the event.
    fn lead_astray(&self, daemon: &mut Daemon) -> (Finished, Event) {
        let destination = format!("{}/32", self.address);
        let culprit = NetnsPath::of_process(process::id())
            .run(&format!("ip route replace {destination} dev {} scope link", self.other.host_end()));
        let added = daemon.wait_for("the route", |event| {
            event.kind() == "route.added" && event.text("/route/destination") == destination
        });
        added.expect("/target/pod/uid", self.sandbox.uid());
        (culprit, added)
    }

    /// That the host drops what the pod sends; its route may be asked for after the incident has opened.
    fn dropped(&self, daemon: &mut Daemon) -> Event {
        let (end, other) = (self.pod.host_end(), self.other.host_end());
        let expected = format!(
            "and rp_filter 1 on its host end {end} likely drops them: the host routes {} by {other}",
            self.address
        );
        daemon.wait_for("why", |event| {
            ["incident.opened", "incident.updated"].iter().any(|transition| self.is_of(event, transition))
                && event.text("/incident/summary").contains(&expected)
        })
    }
}

#[test]
fn who_set_the_host_end_down_is_named_and_the_advice_sets_it_up() {
    let learned = Learned::new(0);
    let mut daemon = learned.daemon();
    let end = learned.pod.host_end();
    let host = NetnsPath::of_process(process::id());
    let culprit = host.run(&format!("ip link set {end} down"));
    let opened = learned.opened(&mut daemon);
    opened.expect_actor(culprit.pid, "ip");
    opened.expect("/neighbor/reason", "failed");
    opened.expect("/target/pod/uid", learned.sandbox.uid());
    assert!(opened.text("/message").contains(&format!("its host end {end} was set down by")), "{opened}");
    let down = daemon.wait_for("the change", |event| {
        event.kind() == "link.changed"
            && event.text("/link/ifname") == end
            && event.list("/link/change").iter().any(|change| change == "down")
    });
    let number = down.number("/seq").expect("it has a number");
    assert!(opened.list("/incident/evidence").iter().any(|seq| *seq == number), "{opened}");
    let id = opened.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "gateway-neighbor-lost/set-up");
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/message").contains("was set down by"), "{closed}");
}

#[test]
fn who_switched_proxy_arp_off_is_named_and_the_advice_has_the_host_answer() {
    let learned = Learned::new(1);
    let mut daemon = learned.daemon();
    let end = learned.pod.host_end();
    let culprit = NetnsPath::of_process(process::id())
        .run(&format!("busybox sysctl -q -w net/ipv4/conf/{end}/proxy_arp=0"));
    let written = daemon.wait_for("the write", |event| {
        event.kind() == "sysctl.changed"
            && event.text("/sysctl/name") == format!("net.ipv4.conf.{end}.proxy_arp")
            && event.text("/sysctl/new") == "0"
    });
    written.expect("/actor/pid", culprit.pid);
    written.expect("/actor/confidence", "likely");
    let changed = daemon.wait_for("the sysctl", |event| {
        event.kind() == "link.proxy_arp"
            && event.text("/link/ifname") == end
            && event.list("/link/change").iter().any(|change| change == "proxy-arp-off")
    });
    changed.expect("/actor/pid", culprit.pid);
    changed.expect("/target/pod/uid", learned.sandbox.uid());
    // What was learned lasts.
    learned.pod.ip("neigh flush dev eth0");
    let opened = learned.opened(&mut daemon);
    opened.expect("/actor/pid", culprit.pid);
    opened.expect("/actor/confidence", "likely");
    let expected = format!("and proxy_arp is off on its host end {end}; it was switched off, likely by ");
    assert!(opened.text("/incident/summary").contains(&expected), "{opened}");
    let id = opened.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "gateway-neighbor-lost/set-sysctl");
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/message").contains("proxy_arp is off on its host end"), "{closed}");
}

#[test]
fn who_deleted_the_host_end_of_a_pod_that_had_learned_its_gateway_is_named() {
    let learned = Learned::new(2);
    let mut daemon = learned.daemon();
    let host = NetnsPath::of_process(process::id());
    let culprit = host.run(&format!("ip link del {}", learned.pod.host_end()));
    let opened = learned.opened(&mut daemon);
    opened.expect_actor(culprit.pid, "ip");
    assert!(opened.text("/message").contains("is gone together with eth0, which was deleted by"), "{opened}");
}

#[test]
fn who_switched_rp_filter_on_is_named_where_the_host_routes_the_pod_elsewhere() {
    let learned = Learned::new(3);
    let mut daemon = learned.daemon();
    let end = learned.pod.host_end();
    // As long as the route leads back, nothing is dropped.
    learned.set_filter(1);
    learned.pod.ip("neigh flush dev eth0");
    eventually!(is_answered(&learned.pod, &learned.gateway), "the host answers");
    learned.set_filter(0);
    learned.lead_astray(&mut daemon);
    assert!(!daemon.events().iter().any(|event| learned.is_of(event, "incident.opened")), "it answers");
    let culprit = learned.set_filter(1);
    learned.pod.ip("neigh flush dev eth0");
    let dropped = learned.dropped(&mut daemon);
    dropped.expect("/actor/pid", culprit.pid);
    dropped.expect("/actor/confidence", "likely");
    dropped.expect("/neighbor/reason", "failed");
    assert!(dropped.text("/incident/summary").contains("; rp_filter was set, likely by "), "{dropped}");
    let id = dropped.text("/incident/id").to_owned();
    let shown = incident(&daemon, &id);
    let set = format!("sysctl -w net/ipv4/conf/{end}/rp_filter=0");
    assert!(shown.list("/advice").iter().any(|step| step["command"] == set.as_str()), "{shown}");
    carry_out(&daemon, &id, "gateway-neighbor-lost/set-sysctl");
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/message").contains("rp_filter 1 on its host end"), "{closed}");
}

#[test]
fn a_route_to_a_pod_by_another_interface_is_told_where_rp_filter_is_on_and_the_advice_leads_it_back() {
    let learned = Learned::new(4);
    learned.set_filter(1);
    let mut daemon = learned.daemon();
    let (culprit, added) = learned.lead_astray(&mut daemon);
    learned.pod.ip("neigh flush dev eth0");
    let dropped = learned.dropped(&mut daemon);
    // As far as this kernel tells who changes routes.
    if added.has("/actor") {
        added.expect("/actor/pid", culprit.pid);
        dropped.expect("/actor/pid", culprit.pid);
        dropped.expect("/actor/confidence", "likely");
    } else {
        dropped.expect_none("/actor");
    }
    let number = added.number("/seq").expect("it has a number");
    assert!(dropped.list("/incident/evidence").iter().any(|seq| *seq == number), "{dropped}");
    let id = dropped.text("/incident/id").to_owned();
    carry_out(&daemon, &id, "gateway-neighbor-lost/add-route");
    let shown = run(&format!("ip route get {}", learned.address)).stdout;
    assert!(shown.contains(learned.pod.host_end()), "{shown}");
    resolved(&mut daemon, &id);
}

/// It answers for what it reaches by another interface: an address of nobody's, as all of Calico's pods have it, by its default
/// route alone.
#[test]
fn a_host_that_lost_its_default_route_is_told_for_the_gateway_that_it_no_longer_answers_for() {
    let (node, pods) = (OwnNode::new(), [Pod::new(), Pod::new(), Pod::new()]);
    node.netns().ip_batch(
        "link add up0 type veth peer name up1\nlink set up0 up\nlink set up1 up\n\
         address add 10.61.0.1/30 dev up0\nroute add default via 10.61.0.2 dev up0\n",
    );
    for pod in &pods {
        node.take(pod);
        answer_for_others(node.netns(), pod.host_end());
        // It is learned.
        pod.ip(&format!("neigh del {GATEWAY} dev eth0"));
    }
    let sandboxes: Vec<PodSandbox> = pods.iter().map(PodSandbox::of).collect();
    let _sending: Vec<Running> = pods.iter().map(|pod| send_without_end(pod, GATEWAY)).collect();
    let config = format!("{IMPATIENT}multi_pod_disruption_seconds = 600\n");
    let mut daemon = node.launch().config(&config).start();
    pods.iter().for_each(|pod| daemon.wait_for_gateway(pod.inum(), GATEWAY));
    node.ip("route del default");
    let lost = daemon.wait_for("the route", |event| {
        event.kind() == "route.deleted"
            && event.text("/route/destination") == "default"
            && event.number("/route/netns") == Some(node.netns().inum())
    });
    // What was learned lasts.
    for pod in &pods {
        pod.ip("neigh flush dev eth0");
    }
    let number = lost.number("/seq").expect("it has a number");
    let mut ids = Vec::new();
    for (pod, sandbox) in pods.iter().zip(&sandboxes) {
        let opened = daemon.wait_for("the loss", |event| {
            event.is_incident("incident.opened", KIND) && event.is_neighbor(pod.inum(), GATEWAY)
        });
        opened.expect_none("/actor");
        opened.expect("/neighbor/reason", "failed");
        opened.expect("/target/pod/uid", sandbox.uid());
        opened.expect("/incident/host_cause/change", "default-route-deleted");
        let expected = "and the host has lost its default route, which is likely why";
        assert!(opened.text("/incident/summary").ends_with(expected), "{opened}");
        assert!(opened.list("/incident/evidence").iter().any(|seq| *seq == number), "{opened}");
        ids.push(opened.text("/incident/id").to_owned());
    }
    // Nobody is known who did it, and still it is one cause.
    let cause = daemon.wait_for("the cause", |event| {
        event.is_incident("incident.opened", "multi-pod-disruption")
            && event.text("/incident/host_cause/change") == "default-route-deleted"
    });
    cause.expect_none("/actor");
    cause.expect("/incident/count", 3);
    cause.expect("/incident/confidence", "likely");
    let expected = "the default route of the node was deleted: 3 pods lost their gateway within ";
    assert!(cause.text("/message").starts_with(expected), "{cause}");
    let cause = cause.text("/incident/id").to_owned();
    let is_linked =
        |id: &String| incident(&daemon, id).list("/caused_by").iter().any(|known| *known == *cause);
    eventually!(ids.iter().all(is_linked), "each incident of a pod names its cause");
    node.ip("route add default via 10.61.0.2 dev up0");
    let closed = resolved(&mut daemon, &ids[0]);
    assert!(closed.text("/message").contains("the host has lost its default route"), "{closed}");
    resolved(&mut daemon, &cause);
}
