//! Incidents of CNI calls for the sandboxes of a real Docker, by real plugins: a `DEL` that fails repeatedly, and one in
//! the network of others.

use std::path::Path;
use std::process::Command;

use kevtmon_tests::advice::carry_out;
use kevtmon_tests::cni_call::{
    NAMESPACE, PLUGINS, call, dockershim_args, finished, plugins_and, wait_for_end,
};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Finished, Running, attempt_with_input, idle, run};
use kevtmon_tests::unique;

const MISMATCH: &str = "cni-netns-mismatch";
const FAILING: &str = "cni-teardown-failing";

/// As Calico's: a `DEL` fails as long as there is no endpoint. Else it is Debian's `ptp`.
const WITHOUT_ENDPOINT: &str = r#"#!/bin/sh
if [ "$CNI_COMMAND" = DEL ] && [ -e "$(dirname "$0")/missing" ]; then
    echo '{"code":999,"msg":"resource does not exist: WorkloadEndpoint"}'
    exit 1
fi
exec /usr/lib/cni/ptp
"#;

/// A sandbox as a kubelet with dockershim makes it, without a network at first.
struct Sandbox<'d> {
    container: Container<'d>,
    pod: String,
    uid: String,
}

impl<'d> Sandbox<'d> {
    fn start(dockerd: &'d Dockerd) -> Self {
        let uid = uuid();
        let pod = format!("etcd-{}", &uid[..8]);
        let labels = [
            format!("--label=io.kubernetes.pod.namespace={NAMESPACE}"),
            format!("--label=io.kubernetes.pod.name={pod}"),
            format!("--label=io.kubernetes.pod.uid={uid}"),
            "--label=io.kubernetes.container.name=POD".to_owned(),
            "--label=io.kubernetes.docker.type=podsandbox".to_owned(),
            format!("--cgroup-parent={}", dockerd.pod_cgroup(&uid)),
            "--network=none".to_owned(),
        ];
        let container = Container::idle(dockerd, &labels.each_ref().map(String::as_str));
        Self { container, pod, uid }
    }

    fn id(&self) -> &str {
        self.container.id()
    }

    fn full_name(&self) -> String {
        format!("{NAMESPACE}/{}", self.pod)
    }

    /// As the kubelet names it: by the first process of the sandbox.
    fn netns(&self) -> String {
        format!("/proc/{}/ns/net", self.container.pid())
    }

    /// A call for it; `netns`: where.
    fn call(&self, plugin: &Path, command: &str, netns: &str) -> Command {
        let mut call = call(plugin, command, self.id());
        call.env("CNI_ARGS", dockershim_args(&self.pod, self.id())).env("CNI_NETNS", netns);
        call
    }
}

/// A network of links of their own, with addresses of a subnet of the test's.
struct PtpNetwork {
    config: String,
    _data: Scratch,
}

impl PtpNetwork {
    fn new() -> Self {
        let data = Scratch::without_mounts();
        let [a, b, c] = unique::subnet(64);
        let config = format!(
            r#"{{"cniVersion":"0.4.0","name":"{}","type":"ptp","ipam":{{"type":"host-local","subnet":"{a}.{b}.{c}.0/24",
                "routes":[{{"dst":"0.0.0.0/0"}}],"dataDir":"{}"}}}}"#,
            unique::name("net"),
            data.path().display()
        );
        Self { config, _data: data }
    }

    fn attempt(&self, mut call: Command) -> Finished {
        attempt_with_input(&mut call, &self.config)
    }

    /// Adds a sandbox to it, and waits until the daemon has seen that.
    fn add(&self, daemon: &mut Daemon, plugin: &Path, sandbox: &Sandbox<'_>) {
        let _ = self.attempt(sandbox.call(plugin, "ADD", &sandbox.netns())).succeeded("ADD");
        wait_for_end(daemon, sandbox.id(), "ADD")
            .expect("/cni/netns_inode", sandbox.container.netns().inum());
        assert!(has_network(&sandbox.container.netns()), "it has a network");
    }
}

fn has_network(netns: &NetnsPath) -> bool {
    netns.run("ip link show").stdout.contains("eth0")
}

fn is_opened(event: &Event, kind: &str, id: &str) -> bool {
    event.is_incident("incident.opened", kind) && event.text("/cni/container_id") == id
}

fn wait_for_incident(daemon: &mut Daemon, transition: &str, kind: &str, id: &str) -> Event {
    daemon.wait_for(&format!("{transition} of {kind}"), |event| {
        event.is_incident(transition, kind) && event.text("/cni/container_id") == id
    })
}

#[test]
fn a_del_that_leads_into_the_network_of_another_sandbox_is_told_as_long_as_that_lacks_what_it_deleted() {
    let dockerd = Dockerd::shared();
    let [mut old, mut other, third] = [(); 3].map(|()| Sandbox::start(dockerd));
    let ptp = Path::new(PLUGINS).join("ptp");
    let network = PtpNetwork::new();
    let mut daemon = launch().joining(dockerd.runtime()).start();
    for sandbox in [&old, &other, &third] {
        network.add(&mut daemon, &ptp, sandbox);
    }
    // As at the end of any pod: first while its process lives, then again without.
    for netns in [third.netns(), String::new()] {
        let _ = network.attempt(third.call(&ptp, "DEL", &netns)).succeeded("DEL");
        wait_for_end(&mut daemon, third.id(), "DEL");
    }

    // Its process is gone, and the id of that is another one's now.
    old.container.end(&["kill"]);
    let del = network.attempt(old.call(&ptp, "DEL", &other.netns())).succeeded("DEL");
    let opened = wait_for_incident(&mut daemon, "incident.opened", MISMATCH, old.id());
    opened.expect("/incident/confidence", "likely");
    opened.expect("/incident/count", 1);
    opened.expect_actor(del.pid, "ptp");
    opened.expect("/cni/command", "DEL");
    opened.expect("/cni/netns", other.netns());
    opened.expect("/cni/netns_inode", other.container.netns().inum());
    opened.expect("/target/container/id", other.id());
    opened.expect("/target/pod/uid", &*other.uid);
    let summary = opened.text("/incident/summary");
    for words in [
        format!("CNI DEL of sandbox {} of pod {} by ptp", &old.id()[..12], old.full_name()),
        format!("ran in the network namespace of pod {}", other.full_name()),
        format!("{} led there", other.netns()),
    ] {
        assert!(summary.contains(&words), "{words} in {summary}");
    }
    assert!(!has_network(&other.container.netns()), "the other one has lost its network by it");
    let harm = daemon.wait_for("what it deleted there", |event| {
        event.text("/incident/kind") == MISMATCH
            && event.text("/cni/container_id") == old.id()
            && event.text("/incident/summary").ends_with("; it deleted eth0 there")
    });
    assert_eq!(harm.severity(), "critical", "{harm}");
    let ended = wait_for_end(&mut daemon, old.id(), "DEL");
    let loopback = Path::new(PLUGINS).join("loopback");
    let _ = network.attempt(old.call(&loopback, "DEL", &other.netns())).succeeded("DEL");
    daemon.wait_for("what it set down there", |event| {
        event.text("/incident/kind") == MISMATCH
            && event.text("/incident/summary").ends_with("; it deleted eth0 and set lo down there")
    });
    let id = opened.text("/incident/id");
    let calls = carry_out(&daemon, id, "cni-netns-mismatch/show-calls").stdout;
    assert!(calls.contains("DEL"), "{calls}");
    let _ = carry_out(&daemon, id, "cni-netns-mismatch/set-up-inside");
    let shown = other.container.netns().run("ip -oneline link show dev lo").succeeded("ip").stdout;
    assert!(shown.contains(",UP"), "{shown}");

    other.container.end(&["kill"]);
    let closed = wait_for_incident(&mut daemon, "incident.closed", MISMATCH, old.id());
    closed.expect("/incident/close_reason", "subject-gone");
    closed.expect("/incident/id", opened.text("/incident/id"));
    let evidence = closed.list("/incident/evidence");
    assert!(evidence.iter().any(|seq| seq.as_u64() == ended.number("/seq")), "{closed}");
    let all = daemon.events();
    assert!(!all.iter().any(|event| is_opened(event, MISMATCH, third.id())), "its own namespace, and none");
    assert!(!all.iter().any(|event| is_opened(event, MISMATCH, other.id())), "it was not called for");
}

#[test]
fn a_del_that_leads_into_the_network_of_the_host_is_told_at_once() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::without_mounts();
    // Debian's would take down an interface of the host that others need.
    let [plugin, harmful] = ["plugin", "harmful"].map(|name| scratch.path().join(name));
    let pod = Pod::new();
    let harm = format!("#!/bin/sh\nip link set {} down\nexit 0\n", pod.host_end());
    let mut old = Sandbox::start(dockerd);
    let scripts = [("plugin", kevtmon_tests::cni_call::OK), ("harmful", &harm)];
    let mut daemon = plugins_and(&scratch, &scripts, "").joining(dockerd.runtime()).start();
    old.container.end(&["kill"]);
    let of_host = Running::spawn(&mut idle());
    let netns = format!("/proc/{}/ns/net", of_host.pid());
    for count in 1..=2 {
        let _ = finished(old.call(&plugin, "DEL", &netns)).succeeded("DEL");
        let told = daemon.wait_for("the call in the host's namespace", |event| {
            event.text("/incident/kind") == MISMATCH
                && event.text("/cni/container_id") == old.id()
                && event.number("/incident/count") == Some(count)
        });
        assert_eq!(told.severity(), "warning", "{told}");
        let summary = told.text("/incident/summary");
        let expected = format!("ran in the network namespace of the host: {netns} led there");
        assert!(summary.ends_with(&expected), "{summary}");
    }
    let id = old.id().to_owned();
    let opened: Vec<Event> =
        daemon.events().into_iter().filter(|event| is_opened(event, MISMATCH, &id)).collect();
    assert_eq!(opened.len(), 1, "the second call is of the same incident");

    // Another plugin soon after would be one more of the same call.
    let ended = |daemon: &Daemon| {
        let of_it = |event: &&Event| event.kind() == "cni.finished" && event.text("/cni/container_id") == id;
        daemon.events().iter().filter(of_it).count()
    };
    eventually!(ended(&daemon) == 2, "both calls have ended");
    let _ = finished(old.call(&harmful, "DEL", &netns)).succeeded("DEL");
    let _ = carry_out(&daemon, opened[0].text("/incident/id"), "cni-netns-mismatch/set-up");
    let shown = run(&format!("ip -oneline link show dev {}", pod.host_end())).stdout;
    assert!(shown.contains(",UP"), "{shown}");
    wait_for_incident(&mut daemon, "incident.closed", MISMATCH, &id)
        .expect("/incident/close_reason", "resolved");
}

#[test]
fn a_del_that_goes_on_failing_is_told_before_it_has_a_victim_and_until_it_succeeds() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::without_mounts();
    let (mut old, network) = (Sandbox::start(dockerd), PtpNetwork::new());
    let calico = scratch.path().join("calico");
    let config = "[incidents]\ncni_teardown_failing_seconds = 1\n";
    let launch = plugins_and(&scratch, &[("calico", WITHOUT_ENDPOINT)], config);
    let mut daemon = launch.joining(dockerd.runtime()).start();
    network.add(&mut daemon, &calico, &old);
    let missing = scratch.path().join("missing");
    std::fs::write(&missing, "").expect("a file can be written");
    old.container.end(&["kill"]);
    // The kubelet calls again and again, without a namespace since its process is gone.
    let mut calls = 0;
    let opened = wait_until("the incident opens", || {
        let ended = network.attempt(old.call(&calico, "DEL", ""));
        assert!(!ended.status.success(), "{}", ended.stdout);
        calls += 1;
        daemon.events().into_iter().find(|event| is_opened(event, FAILING, old.id()))
    });
    assert_eq!((opened.severity(), opened.text("/incident/confidence")), ("warning", "certain"), "{opened}");
    let count = opened.number("/incident/count").expect("a count");
    assert!((2..=calls).contains(&count), "{count} of {calls}");
    opened.expect("/cni/exit_code", 1);
    opened.expect("/actor/comm", "calico");
    opened.expect("/target/container/id", old.id());
    opened.expect("/target/pod/name", &*old.pod);
    let expected = [
        format!("CNI DEL of sandbox {} of pod {} by", &old.id()[..12], old.full_name()),
        "fails repeatedly: plugin calico exited with code 1".to_owned(),
        "a later one could hit a newer pod of that name".to_owned(),
    ];
    for words in expected {
        assert!(opened.text("/incident/summary").contains(&words), "{words} in {opened}");
    }
    let others = |event: &Event| {
        event.kind() == "incident.opened"
            && !event.is_incident("incident.opened", FAILING)
            && event.has("/cni/container_id")
            && event.text("/cni/container_id") == old.id()
    };
    assert!(!daemon.events().iter().any(others), "there is no victim yet");

    std::fs::remove_file(&missing).expect("the endpoint is there again");
    let _ = network.attempt(old.call(&calico, "DEL", "")).succeeded("DEL");
    let closed = wait_for_incident(&mut daemon, "incident.closed", FAILING, old.id());
    closed.expect("/incident/close_reason", "resolved");
    closed.expect("/incident/id", opened.text("/incident/id"));
    assert!(!daemon.events().iter().any(others), "and there was none");
}
