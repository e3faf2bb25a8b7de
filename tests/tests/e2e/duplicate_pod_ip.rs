//! Two pods of the node with one address, on a node without any runtime: the addresses are those of their own namespaces.

use std::process::{Command, Stdio};

use kevtmon_tests::advice::{carry_out, incident};
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::PodSandbox;
use kevtmon_tests::process::{Running, comm, run};
use serde_json::Value;

const KIND: &str = "duplicate-pod-ip";

fn impatient() -> Launch {
    launch().config("[incidents]\nduplicate_pod_ip_seconds = 1\n")
}

fn wait_for(daemon: &mut Daemon, transition: &str, address: &str) -> Event {
    daemon.wait_for(&format!("{transition} of {address}"), |event| {
        event.is_incident(transition, KIND) && event.text("/address_conflict/address") == address
    })
}

/// Two pods, the second of which has the address of the first one besides its own.
struct Two {
    pods: [Pod; 2],
    sandboxes: Vec<PodSandbox>,
}

impl Two {
    fn new() -> Self {
        let pods = [Pod::new(), Pod::new()];
        let sandboxes = pods.iter().map(PodSandbox::of).collect();
        Self { pods, sandboxes }
    }

    fn address(&self) -> &str {
        self.pods[0].address()
    }

    fn change(&self, what: &str) {
        self.pods[1].ip(&format!("address {what} {}/32 dev eth0", self.address()));
    }
}

#[test]
fn two_pods_with_one_address_are_named_with_their_devices_until_one_gives_it_up() {
    let two = Two::new();
    let mut daemon = impatient().start();
    two.sandboxes.iter().zip(&two.pods).for_each(|(_, pod)| daemon.wait_for_netns(pod.inum()));
    two.change("add");
    let opened = wait_for(&mut daemon, "incident.opened", two.address());
    opened.expect("/severity", "warning");
    opened.expect("/incident/confidence", "certain");
    opened.expect("/incident/count", 2);
    let named = opened.list("/address_conflict/pods");
    for (pod, sandbox) in two.pods.iter().zip(&two.sandboxes) {
        let its = named.iter().find(|named| named["pod"]["uid"] == *sandbox.uid());
        let its = its.unwrap_or_else(|| unreachable!("{} in {opened}", sandbox.uid()));
        assert_eq!(its["netns"], pod.inum(), "{opened}");
        assert_eq!(its["host_end"]["ifname"], *pod.host_end(), "{opened}");
        for word in [pod.host_end(), sandbox.uid()] {
            assert!(opened.text("/message").contains(word), "{word} in {opened}");
        }
    }
    // Found as well by a daemon that starts now.
    let mut later = impatient().start();
    let found = wait_for(&mut later, "incident.opened", two.address());
    found.expect("/incident/found_at_start", true);
    drop(later);

    let id = opened.text("/incident/id").to_owned();
    run(&format!("ip route add {}/32 dev {}", two.address(), two.pods[0].host_end()));
    let shown = carry_out(&daemon, &id, "duplicate-pod-ip/show-route").stdout;
    assert!(shown.contains(two.pods[0].host_end()), "{shown}");
    let told = carry_out(&daemon, &id, "duplicate-pod-ip/tell-pod").stdout;
    assert!(told.contains(&id), "{told}");

    two.change("del");
    let closed = wait_for(&mut daemon, "incident.closed", two.address());
    closed.expect("/incident/close_reason", "resolved");
    assert!(incident(&daemon, &id).list("/advice").is_empty());
}

#[test]
fn it_is_over_with_one_of_the_pods() {
    let mut two = Two::new();
    two.change("add");
    let mut daemon = impatient().start();
    wait_for(&mut daemon, "incident.opened", two.address());
    drop(two.sandboxes.pop());
    two.pods[1].delete_netns();
    let closed = wait_for(&mut daemon, "incident.closed", two.address());
    closed.expect("/incident/close_reason", "subject-gone");
}

#[test]
fn a_namespace_that_is_no_pods_the_other_containers_of_a_pod_and_usual_addresses_are_no_conflict() {
    // Another container of the first pod; a namespace with a process that is in no pod; one in which nobody is.
    let first = Pod::new();
    let sandbox = PodSandbox::of(&first);
    let _another = sandbox.another(&first);
    let others = [Pod::new(), Pod::new()];
    others[0].ip(&format!("address add {}/32 dev eth0", first.address()));
    others[1].ip(&format!("address add {}/32 dev eth0", first.address()));
    let mut stranger = Command::new("nsenter");
    stranger.arg(format!("--net={}", others[0].netns().path().display())).args(["sleep", "1000000"]);
    let stranger = Running::spawn(stranger.stdin(Stdio::null()));
    eventually!(comm(stranger.pid()).as_deref() == Some("sleep"), "it is in the network");
    // Pods whose addresses are only those that every namespace has.
    let usual = [Pod::new(), Pod::new()];
    let _sandboxes: Vec<PodSandbox> = usual.iter().map(PodSandbox::of).collect();
    usual.iter().for_each(|pod| drop(pod.ip("address add 169.254.7.7/32 dev eth0")));
    let witness = Two::new();
    witness.change("add");
    let mut daemon = impatient().start();
    wait_for(&mut daemon, "incident.opened", witness.address());
    let ours = |event: &&Event| {
        let address = event.get("/address_conflict/address").and_then(Value::as_str);
        event.kind() == "incident.opened"
            && address.is_some_and(|address| address == first.address() || address == "169.254.7.7")
    };
    let all = daemon.events();
    let told: Vec<String> = all.iter().filter(ours).map(ToString::to_string).collect();
    assert_eq!(told, [""; 0]);
}
