//! What gives a gateway an entry again: a request that sets one, and an answer by which one is learned.

use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::Netns;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::{Running, comm};
use serde_json::Value;

const ROUTER: &str = "10.98.0.2";

fn running_in(netns: &Netns, command: &[&str]) -> Running {
    let mut nsenter = Command::new("nsenter");
    nsenter.arg(format!("--net={}", netns.path().path().display())).args(command);
    Running::spawn(nsenter.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// A network whose default gateway answers ARP requests as long as it has its address, and a process in it.
struct Learned {
    netns: Netns,
    router: Netns,
    _process: Running,
}

impl Learned {
    fn new() -> Self {
        let (netns, router) = (Netns::new(), Netns::new());
        netns.path().ip_batch(&format!(
            "link add eth0 type veth peer name eth1 netns {}\naddress add 10.98.0.1/24 dev eth0\nlink set eth0 up\n\
             route add default via {ROUTER}\n",
            router.name()
        ));
        netns.path().run("busybox sysctl -q -w net.ipv4.neigh.eth0.retrans_time_ms=50");
        router.path().run("ip link set eth1 up");
        let process = running_in(&netns, &["sleep", "1000000"]);
        eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in the network");
        Self { netns, router, _process: process }
    }

    /// Lets the router answer from now on, or not.
    fn answer(&self, answers: bool) {
        let verb = if answers { "add" } else { "del" };
        self.router.path().run(&format!("ip address {verb} {ROUTER}/24 dev eth1"));
    }

    fn ping(&self) -> bool {
        self.netns.path().attempt(&format!("busybox ping -c 1 -w 2 {ROUTER}")).status.success()
    }

    fn inum(&self) -> u64 {
        self.netns.path().inum()
    }
}

/// The changes of an entry in a recording: operation, cause, and whether somebody is named.
fn recorded(recording: &Path, netns: u64, address: &str) -> Vec<(String, String, bool)> {
    let text = std::fs::read_to_string(recording).expect("the recording");
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let changes = lines.filter_map(|line| line.pointer("/fact/neighbor").cloned());
    let is_it = |change: &Value| change["key"]["netns"] == netns && change["key"]["address"] == address;
    let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let told = |change: Value| (name(&change["op"]), name(&change["cause"]), !change["actor"].is_null());
    changes.filter(is_it).map(told).collect()
}

#[test]
fn a_gateway_that_answers_again_is_told_by_the_kernel_and_nobody_is_named() {
    let learned = Learned::new();
    let launch = launch().config("[incidents]\nlearned_gateway_failed_seconds = 1\n");
    let recording = launch.directory().join("recording.ndjson");
    let mut daemon = launch.argument("--record").argument(&recording).start();
    daemon.wait_for_gateway(learned.inum(), ROUTER);
    assert!(!learned.ping(), "nobody has that address");
    // Where the kernel's table is full, it drops an entry that nobody asks for.
    let _asking = running_in(&learned.netns, &["busybox", "ping", ROUTER]);
    let of_router = |event: &Event, transition: &str| {
        event.is_incident(transition, "gateway-neighbor-lost") && event.is_neighbor(learned.inum(), ROUTER)
    };
    let opened = daemon.wait_for("the loss", |event| of_router(event, "incident.opened"));
    opened.expect("/neighbor/reason", "failed");
    learned.answer(true);
    eventually!(learned.ping(), "{ROUTER} answers");
    let closed = daemon.wait_for("the end", |event| of_router(event, "incident.closed"));
    closed.expect("/incident/close_reason", "resolved");
    daemon.stop();
    let is_addition =
        |event: &&Event| event.kind() == "neighbor.added" && event.is_neighbor(learned.inum(), ROUTER);
    assert!(
        !daemon.events().iter().any(|event| is_addition(&event)),
        "what is learned every day is no event"
    );
    let changes = recorded(&recording, learned.inum(), ROUTER);
    let resolved = ("added".to_owned(), "unknown".to_owned(), false);
    assert!(changes.contains(&resolved), "{changes:?}");
    assert!(changes.iter().all(|(.., has_actor)| !has_actor), "{changes:?}");
}

#[test]
fn an_entry_of_a_gateway_is_told_when_it_is_set_and_not_when_it_is_set_to_what_it_is() {
    let pod = Pod::new();
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    pod.delete_gateway();
    let other = "02:00:00:00:00:0c";
    let steps = [
        (GATEWAY_LLADDR, "reachable", true),
        (GATEWAY_LLADDR, "reachable", false),
        (GATEWAY_LLADDR, "stale", false),
        (other, "stale", true),
        (other, "noarp", true),
        (other, "noarp", false),
    ];
    let mut expected = Vec::new();
    for (lladdr, state, is_told) in steps {
        let ip = pod.ip(&format!("neigh replace {GATEWAY} lladdr {lladdr} dev eth0 nud {state}"));
        if is_told {
            expected.push((u64::from(ip.pid), state.to_owned()));
        }
    }
    let events = daemon.fence(&pod);
    let added = events
        .iter()
        .filter(|event| event.kind() == "neighbor.added" && event.is_neighbor(pod.inum(), GATEWAY));
    let told: Vec<(u64, String)> = added
        .map(|event| {
            event.expect("/neighbor/gateway", true);
            (event.number("/actor/pid").unwrap_or(0), event.text("/neighbor/new_state").to_owned())
        })
        .collect();
    assert_eq!(told, expected);
}
