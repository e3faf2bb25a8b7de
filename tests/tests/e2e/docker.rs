//! Containers: the owner of a neighbor entry, the container of the process that deleted it, and lifecycle events.

use kevtmon_tests::container::{Container, Sleeper};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::{Dockerd, IMAGE};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::listener::Listener;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR, Pod};
use kevtmon_tests::process::{Finished, run};

const LLADDR: &str = "02:00:00:00:00:01";

fn daemon_of(dockerd: &Dockerd) -> Daemon {
    launch().joining(dockerd.runtime()).start()
}

/// Panics unless the event is about a permanent entry of this container.
#[track_caller]
fn expect_target(event: &Event, container: &Container<'_>) {
    event.expect("/target/container/id", container.id());
    event.expect("/target/container/name", container.name());
    event.expect("/target/container/runtime", "docker");
    event.expect("/target/container/image", IMAGE);
    event.expect("/target/container/pid", container.pid());
    event.expect("/target/container/state", "running");
    assert!(matches!(event.text("/target/join"), "ok" | "late"), "{event}");
    event.expect("/neighbor/state", "permanent");
}

/// As [`expect_target`], and the entry was the gateway's.
#[track_caller]
fn expect_gateway_of(event: &Event, container: &Container<'_>) {
    expect_target(event, container);
    event.expect("/neighbor/gateway", true);
}

#[test]
fn a_process_on_the_host_deletes_the_gateway_of_a_container() {
    let dockerd = Dockerd::shared();
    let victim = Container::idle(dockerd, &[]);
    victim.set_gateway(LLADDR);
    let mut daemon = daemon_of(dockerd);
    let gateway = victim.gateway();
    let ip = victim.netns().run(&format!("ip neigh del {gateway} dev eth0"));

    let event = daemon.wait_for_deletion(victim.netns().inum(), &gateway);
    event.expect("/severity", "warning");
    event.expect("/neighbor/cause", "admin");
    event.expect("/neighbor/lladdr", LLADDR);
    event.expect_actor(ip.pid, "ip");
    event.expect("/actor/cmdline", format!("ip neigh del {gateway} dev eth0"));
    event.expect("/actor/join", "host");
    event.expect_none("/actor/container");
    expect_gateway_of(&event, &victim);
    assert!(event.text("/message").contains(victim.name()), "{event}");
}

#[test]
fn a_container_that_shares_the_network_deletes_the_gateway_of_another() {
    let dockerd = Dockerd::shared();
    let victim = Container::idle(dockerd, &[]);
    victim.set_gateway(LLADDR);
    let mut daemon = daemon_of(dockerd);
    let gateway = victim.gateway();
    let network = format!("container:{}", victim.id());
    let options = ["--network", &network, "--cap-add", "NET_ADMIN"];
    let mut culprit =
        Sleeper::start(dockerd, &options, &["/bin/ip", "neigh", "del", &gateway, "dev", "eth0"]);
    culprit.wake();

    let event = daemon.wait_for_deletion(victim.netns().inum(), &gateway);
    event.expect("/severity", "warning");
    event.expect("/neighbor/cause", "admin");
    event.expect_actor(culprit.pid, "ip");
    event.expect("/actor/exe", "/bin/ip");
    event.expect("/actor/container/id", culprit.id.as_str());
    assert!(event.text("/actor/cgroup").contains(&culprit.id), "{event}");
    // What a container was started with may be secret; it is shown only where the configuration allows it.
    event.expect_none("/actor/cmdline");
    assert!(!event.list("/actor/ancestors").is_empty(), "{event}");
    expect_gateway_of(&event, &victim);
}

#[test]
fn a_container_with_the_pids_of_the_host_enters_the_network_of_another() {
    let dockerd = Dockerd::shared();
    let victim = Container::idle(dockerd, &[]);
    victim.set_gateway(LLADDR);
    let mut daemon = daemon_of(dockerd);
    let (gateway, pid) = (victim.gateway(), victim.pid().to_string());
    let options =
        ["--pid", "host", "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--cap-add", "NET_ADMIN"];
    let mut culprit = Sleeper::start(
        dockerd,
        &options,
        &["nsenter", "-t", &pid, "-n", "/bin/ip", "neigh", "del", &gateway, "dev", "eth0"],
    );
    culprit.wake();

    let event = daemon.wait_for_deletion(victim.netns().inum(), &gateway);
    event.expect_actor(culprit.pid, "ip");
    event.expect("/actor/container/id", culprit.id.as_str());
    event.expect("/actor/netns", victim.netns().inum());
    expect_gateway_of(&event, &victim);
}

#[test]
fn a_container_deletes_its_own_gateway() {
    let dockerd = Dockerd::shared();
    let victim = Container::idle(dockerd, &["--cap-add", "NET_ADMIN"]);
    victim.set_gateway(LLADDR);
    let mut daemon = daemon_of(dockerd);
    let gateway = victim.gateway();
    victim.exec(&[], &["/bin/ip", "neigh", "del", &gateway, "dev", "eth0"]);
    let event = daemon.wait_for_deletion(victim.netns().inum(), &gateway);
    event.expect("/actor/comm", "ip");
    event.expect("/actor/container/id", victim.id());
    expect_gateway_of(&event, &victim);
}

/// Something that is done to the interface of a pod.
type Act = fn(&Pod) -> Finished;

#[test]
fn what_happens_to_either_end_of_the_link_of_a_container_is_reported_with_the_container() {
    let dockerd = Dockerd::shared();
    let acts: [(Act, &str); 4] = [
        (|pod| pod.ip("link set eth0 down"), "link-down"),
        (|pod| pod.ip("link set eth0 address 02:00:00:00:00:0e"), "lladdr-changed"),
        (|pod| pod.ip("link del eth0"), "link-deleted"),
        (|pod| run(&format!("ip link del {}", pod.host_end())), "link-deleted"),
    ];
    let victims = acts.map(|_| {
        let victim = Container::idle(dockerd, &["--network", "none"]);
        let pod = Pod::at(victim.netns());
        (victim, pod)
    });
    let mut daemon = daemon_of(dockerd);
    for ((victim, pod), (act, cause)) in victims.iter().zip(acts) {
        daemon.wait_for_gateway(pod.inum(), GATEWAY);
        let ip = act(pod);
        let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
        event.expect("/neighbor/cause", cause);
        event.expect_actor(ip.pid, "ip");
        expect_gateway_of(&event, victim);
    }
}

#[test]
fn a_container_that_starts_while_the_daemon_runs_is_known() {
    let dockerd = Dockerd::shared();
    let mut daemon = daemon_of(dockerd);
    let victim = Container::idle(dockerd, &["--network", "none"]);
    let pod = Pod::at(victim.netns());
    let netns = pod.inum();
    daemon.wait_for_gateway(netns, GATEWAY);
    let ip = pod.delete_gateway();
    let event = daemon.wait_for_deletion_by(ip.pid, netns, GATEWAY);
    expect_gateway_of(&event, &victim);
    event.expect("/severity", "warning");
    event.expect("/neighbor/lladdr", GATEWAY_LLADDR);
}

#[test]
fn a_gateway_set_a_moment_ago_is_not_said_to_be_none() {
    let dockerd = Dockerd::shared();
    let mut daemon = daemon_of(dockerd);
    let victim = Container::idle(dockerd, &["--network", "none"]);
    let pod = Pod::at(victim.netns());
    let ip = pod.delete_gateway();
    let event = daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY);
    expect_target(&event, &victim);
    assert_ne!(event.get("/neighbor/gateway"), Some(&false.into()), "{event}");
}

#[test]
fn a_container_that_ends_takes_its_entries_quietly() {
    let dockerd = Dockerd::shared();
    let ways: [(&[&str], &[&str]); 4] = [
        (&[], &["stop", "-t", "0"]),
        (&[], &["kill"]),
        (&[], &["rm", "-f"]),
        (&["--network", "none"], &["rm", "-f"]),
    ];
    let containers = ways.map(|(options, command)| {
        let container = Container::idle(dockerd, options);
        let pod = options.contains(&"none").then(|| Pod::at(container.netns()));
        let gateway = if pod.is_some() {
            GATEWAY.to_owned()
        } else {
            container.set_gateway(LLADDR);
            container.gateway()
        };
        (container, pod, gateway, command)
    });
    let witness = Container::idle(dockerd, &["--network", "none"]);
    let marker = Pod::at(witness.netns());
    let mut daemon = daemon_of(dockerd);
    for (mut container, pod, gateway, command) in containers {
        let netns = container.netns().inum();
        daemon.wait_for_gateway(netns, &gateway);
        container.end(command);

        // The kernel ends a namespace in its own time; its messages then come before the host's end is gone.
        if let Some(pod) = &pod {
            let link = format!("/sys/class/net/{}", pod.host_end());
            eventually!(!std::path::Path::new(&link).exists(), "the host's end is gone");
        }
        let id = container.id().to_owned();
        daemon.wait_for("container.exited", |event| {
            event.kind() == "container.exited" && event.text("/target/container/id") == id
        });
        let event = daemon.wait_for_deletion(netns, &gateway);
        event.expect_none("/actor");
        assert!(!event.alarms(), "an alarm for a container that ended: {event}");
        let events = daemon.fence(&marker);
        assert_eq!(events.iter().filter(|event| event.is_deletion(netns, &gateway)).count(), 1);
    }
}

#[test]
fn a_deletion_just_before_the_end_of_a_container_is_reported_all_the_same() {
    let dockerd = Dockerd::shared();
    let mut victim = Container::idle(dockerd, &[]);
    victim.set_gateway(LLADDR);
    let mut daemon = daemon_of(dockerd);
    let (gateway, netns) = (victim.gateway(), victim.netns().inum());
    let ip = victim.netns().run(&format!("ip neigh del {gateway} dev eth0"));
    victim.end(&["rm", "-f"]);
    let event = daemon.wait_for_deletion_by(ip.pid, netns, &gateway);
    event.expect("/severity", "warning");
    event.expect("/neighbor/cause", "admin");
    event.expect("/target/container/id", victim.id());
}

#[test]
fn the_pod_of_a_container_is_read_from_its_labels_and_confirmed_by_its_control_group() {
    let dockerd = Dockerd::shared();
    let group = dockerd.pod_cgroup("5c948341-c030-4996-b888-f032577d97b0");
    let sandbox = Container::idle(
        dockerd,
        &[
            "--network",
            "none",
            "--cgroup-parent",
            &group,
            "--label",
            "io.kubernetes.pod.namespace=lijiaob",
            "--label",
            "io.kubernetes.pod.name=etcd1-0",
            "--label",
            "io.kubernetes.pod.uid=5c948341-c030-4996-b888-f032577d97b0",
            "--label",
            "io.kubernetes.container.name=POD",
            "--label",
            "io.kubernetes.docker.type=podsandbox",
        ],
    );
    let pod = Pod::at(sandbox.netns());
    let mut daemon = daemon_of(dockerd);
    pod.delete_gateway();
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    event.expect("/target/pod/namespace", "lijiaob");
    event.expect("/target/pod/name", "etcd1-0");
    event.expect("/target/pod/uid", "5c948341-c030-4996-b888-f032577d97b0");
    event.expect("/target/pod/sandbox_id", sandbox.id());
    event.expect_none("/target/pod/claimed");
    event.expect("/target/container/id", sandbox.id());
    assert!(event.text("/message").contains("lijiaob/etcd1-0"), "{event}");
}

#[test]
fn the_life_of_a_container_is_reported() {
    let dockerd = Dockerd::shared();
    let mut daemon = daemon_of(dockerd);
    let mut container = Container::idle(dockerd, &["--network", "none"]);
    let (id, name) = (container.id().to_owned(), container.name().to_owned());
    container.end(&["rm", "-f"]);
    for kind in ["container.started", "container.exited", "container.removed"] {
        let event = daemon.wait_for(kind, |event| {
            event.kind() == kind && event.text("/target/container/id") == id.as_str()
        });
        event.expect("/target/container/name", name.as_str());
    }
}

#[test]
fn a_docker_daemon_that_is_killed_and_comes_back_is_joined_again() {
    let dockerd = Dockerd::start();
    let old = Container::idle(&dockerd, &["--network", "none"]);
    let old_pod = Pod::at(old.netns());
    let mut daemon = daemon_of(&dockerd);
    let up = |daemon: &Daemon| daemon.metrics().count("kevtmon_source_up", &[("source", "docker")]);
    dockerd.kill();
    eventually!(up(&daemon) == 0.0, "the loss of docker is counted");

    // What is known of a container outlives the connection.
    old_pod.delete_gateway();
    expect_gateway_of(&daemon.wait_for_deletion(old_pod.inum(), GATEWAY), &old);

    dockerd.launch();
    let new = Container::idle(&dockerd, &["--network", "none"]);
    let new_pod = Pod::at(new.netns());
    eventually!(up(&daemon) == 1.0, "docker is back");
    daemon.wait_for_gateway(new_pod.inum(), GATEWAY);
    let ip = new_pod.delete_gateway();
    expect_target(&daemon.wait_for_deletion_by(ip.pid, new_pod.inum(), GATEWAY), &new);
    old_pod.set_gateway();
    let ip = old_pod.delete_gateway();
    expect_gateway_of(&daemon.wait_for_deletion_by(ip.pid, old_pod.inum(), GATEWAY), &old);
}

#[test]
fn a_restart_of_docker_is_nothing_to_ten_containers() {
    /// More than are inspected at a time.
    const NUMBER: u8 = 10;
    let dockerd = Dockerd::start();
    let all: Vec<Container<'_>> =
        (0..NUMBER).map(|_| Container::idle(&dockerd, &["--network", "none"])).collect();
    let daemon = daemon_of(&dockerd);
    let running = || daemon.metrics().count("kevtmon_containers", &[("state", "running")]);
    let up = || daemon.metrics().count("kevtmon_source_up", &[("source", "docker")]);
    eventually!(running() == f64::from(NUMBER), "all are known");
    for _ in 0..2 {
        dockerd.kill();
        eventually!(up() == 0.0, "the loss of docker is counted");
        assert_eq!(running(), f64::from(NUMBER), "what is known stays");
        dockerd.launch();
        eventually!(up() == 1.0, "docker is back");
    }
    assert_eq!(running(), f64::from(NUMBER));
    let is_told = |event: &&Event| event.kind().starts_with("container.") || event.alarms();
    let events = daemon.events();
    let told: Vec<&Event> = events
        .iter()
        .filter(is_told)
        .filter(|event| all.iter().any(|one| event.text("/target/container/id") == one.id()))
        .collect();
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn a_docker_daemon_that_comes_later_is_found() {
    let dockerd = Dockerd::prepare();
    let mut daemon = launch().runtime(dockerd.runtime()).start();
    dockerd.launch();
    let container = Container::idle(&dockerd, &["--network", "none"]);
    let pod = Pod::at(container.netns());
    eventually!(
        daemon.metrics().count("kevtmon_source_up", &[("source", "docker")]) == 1.0,
        "docker is found"
    );
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let ip = pod.delete_gateway();
    expect_target(&daemon.wait_for_deletion_by(ip.pid, pod.inum(), GATEWAY), &container);
}

#[test]
fn without_a_runtime_the_control_group_still_tells_the_container() {
    let dockerd = Dockerd::shared();
    let victim = Container::idle(dockerd, &["--network", "none", "--cap-add", "NET_ADMIN"]);
    let pod = Pod::at(victim.netns());
    let mut daemon = launch().runtime("none").start();
    victim.exec(&[], &["/bin/ip", "neigh", "del", GATEWAY, "dev", "eth0"]);
    let event = daemon.wait_for_deletion(pod.inum(), GATEWAY);
    event.expect("/actor/comm", "ip");
    assert!(event.text("/actor/cgroup").contains(victim.id()), "{event}");
    event.expect("/neighbor/gateway", true);
}

#[test]
fn a_removed_container_is_really_gone_while_the_daemon_watches() {
    let dockerd = Dockerd::shared();
    let mut container = Container::idle(dockerd, &["--network", "none"]);
    let pod = Pod::at(container.netns());
    let daemon = daemon_of(dockerd);
    let link = format!("/sys/class/net/{}", pod.host_end());
    let files =
        dockerd.docker(&["inspect", "-f", "{{.GraphDriver.Data.MergedDir}}", container.name()]).stdout;
    container.end(&["rm", "-f"]);
    eventually!(!std::path::Path::new(&link).exists(), "the host's end goes with the container");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(!mounts.contains(files.trim()), "the file system of the container is still mounted");
    assert_eq!(daemon.metrics().count("kevtmon_self_pins", &[]), 0.0);
}

#[test]
fn the_socket_of_docker_is_sent_nothing_but_what_reads() {
    let dockerd = Dockerd::shared();
    let listener = Listener::before(&dockerd.socket());
    let runtime = format!("docker={}", listener.socket().display());
    let mut daemon = launch().joining(runtime).start();
    let mut container = Container::idle(dockerd, &[]);
    let (id, gateway) = (container.id().to_owned(), container.gateway());
    let is_of = |event: &Event, kind: &str| event.kind() == kind && event.text("/target/container/id") == id;
    daemon.wait_for("container.started", |event| is_of(event, "container.started"));
    container.set_gateway(LLADDR);
    let _ = container.netns().run(&format!("ip neigh del {gateway} dev eth0"));
    daemon.wait_for_deletion(container.netns().inum(), &gateway);
    container.end(&["rm", "-f"]);
    daemon.wait_for("container.removed", |event| is_of(event, "container.removed"));
    daemon.stop();

    let requests = listener.requests();
    for what in ["/containers/json", "/events", &format!("/containers/{id}/json")] {
        assert!(requests.iter().any(|line| line.contains(what)), "{what}: {requests:#?}");
    }
    let others: Vec<_> = requests.iter().filter(|line| !is_read(line)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// Whether the first line of a request is that of one which changes nothing. There are requests by GET that do: an attached
/// WebSocket writes to a container.
fn is_read(line: &str) -> bool {
    let Some(target) = line.strip_prefix("GET ").and_then(|rest| rest.strip_suffix(" HTTP/1.1")) else {
        return false;
    };
    let path = target.split('?').next().unwrap_or_default();
    let is_inspect = || path.strip_prefix("/containers/").and_then(|rest| rest.strip_suffix("/json"));
    ["/version", "/info", "/events", "/containers/json"].contains(&path)
        || is_inspect().is_some_and(|id| !id.contains('/'))
}
