//! The advice on a lost gateway, carried out as it is printed: what only looks succeeds, what is said to help helps.

use kevtmon_tests::actor::Actor;
use kevtmon_tests::advice::{
    carry_out, incident, is_understood, look, not_carried_out, offered, opened, resolved,
};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::podman::Podman;
use kevtmon_tests::process::run;
use serde_json::Value;

const REPLACE: &str = "gateway-neighbor-lost/replace-entry";

fn ruled_out(incident: &Event) -> Vec<&str> {
    incident.list("/ruled_out").iter().filter_map(Value::as_str).collect()
}

/// Has a pod's namespace lose its gateway.
fn lose(daemon: &mut Daemon, pod: &Pod) -> String {
    pod.delete_gateway();
    opened(daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()))
}

fn expect_gone(daemon: &mut Daemon, id: &str) {
    let over = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    over.expect("/incident/close_reason", "subject-gone");
}

#[test]
fn a_lost_gateway_is_put_back_by_the_command_that_is_shown() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    let id = lose(&mut daemon, &pod);
    let open = incident(&daemon, &id);
    for healthy in ["eth0 is up".to_owned(), format!("its host end {} is up", pod.host_end())] {
        assert!(ruled_out(&open).contains(&healthy.as_str()), "{healthy} in {open}");
    }
    let shown = carry_out(&daemon, &id, "gateway-neighbor-lost/show-entry").stdout;
    assert!(!shown.contains("PERMANENT"), "the static entry is gone: {shown}");
    let cure = offered(&incident(&daemon, &id), REPLACE).expect("both ends are up");
    // As it is printed for people, broken to the width of a terminal.
    let text = daemon.ask(&["why", &id]).succeeded("why").stdout;
    let text = text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&cure), "{cure} in {text}");
    let _ = carry_out(&daemon, &id, "gateway-neighbor-lost/replace-entry");
    assert!(pod.has_gateway());
    resolved(&mut daemon, &id);
    drop(sandbox);
}

#[test]
fn a_namespace_is_entered_only_through_a_process_that_is_in_it() {
    const SHOW: &str = "gateway-neighbor-lost/show-entry";
    let pod = Pod::new();
    let mut actor = Actor::start();
    let own = format!("/proc/{}/ns/net", std::process::id());
    actor.act(&format!("netns {}", pod.netns().path().display()));
    let mut daemon = launch().start();
    daemon.wait_for_gateway(pod.inum(), GATEWAY);
    let id = lose(&mut daemon, &pod);
    let through = format!("nsenter -t {} -n ip neigh ", actor.pid());
    let is_through = |step: &str| {
        offered(&incident(&daemon, &id), step).is_some_and(|command| command.starts_with(&through))
    };
    assert!(is_through(SHOW) && is_through(REPLACE));
    // An agent goes in and comes back: by it, the entry would be made in the network of the host.
    actor.act(&format!("netns {own}"));
    for step in [SHOW, REPLACE] {
        assert_eq!(offered(&incident(&daemon, &id), step), None);
    }
    assert!(!daemon.ask(&["why", &id]).succeeded("why").stdout.contains(&through));
}

#[test]
fn an_interface_that_was_set_down_inside_a_pod_is_set_up_there_by_the_command_that_is_shown() {
    const SET_UP: &str = "gateway-neighbor-lost/set-up-inside";
    let pod = Pod::new();
    let _sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().config("[incidents]\ngateway_confirm_seconds = 1\n").start();
    let _ = pod.ip("link set eth0 down").succeeded("ip");
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let _ = carry_out(&daemon, &id, "gateway-neighbor-lost/set-up-inside");
    let shown = pod.ip("-oneline link show dev eth0").succeeded("ip").stdout;
    assert!(shown.contains(",UP"), "{shown}");
    eventually!(offered(&incident(&daemon, &id), SET_UP).is_none(), "it is up");
    // What went with it is put back by whoever made it.
    let gateway = GATEWAY.parse().expect("an address");
    pod.netns().network(|network| network.add_gateway("eth0", gateway));
    pod.set_gateway();
    resolved(&mut daemon, &id);
}

#[test]
fn behind_a_bridge_it_is_the_bridge_that_has_the_address_of_the_entry() {
    let dockerd = Dockerd::shared();
    let container = Container::idle(dockerd, &[]);
    let bridge = dockerd.name();
    // As that of docker0, it does not follow those of the ports.
    let lladdr = "02:42:4f:f2:29:eb";
    run(&format!("ip link set {bridge} address {lladdr}"));
    container.set_gateway(lladdr);
    let netns = container.netns().inum();
    let mut daemon = launch().joining(dockerd.runtime()).start();
    container.netns().run(&format!("ip neigh del {} dev eth0", container.gateway()));
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(netns));
    let open = incident(&daemon, &id);
    let of_entry =
        ruled_out(&open).into_iter().filter(|healthy| healthy.contains(" MAC address ")).collect::<Vec<_>>();
    assert_eq!(of_entry, [&format!("{bridge} still has the MAC address {lladdr} of the entry")], "{open}");
    let is_up =
        |healthy: &&str| Some(healthy.strip_prefix("its host end ")?.strip_suffix(" is up")?.to_owned());
    let end = ruled_out(&open).iter().find_map(is_up).expect("the host end is up");
    let _ = carry_out(&daemon, &id, "gateway-neighbor-lost/replace-entry");
    resolved(&mut daemon, &id);

    run(&format!("ip link set {end} nomaster"));
    let left =
        format!("points to {lladdr}, but {end} is no port of {bridge}, which has the gateway's address");
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.text("/message").ends_with(&left));
    let open = incident(&daemon, &id);
    assert!(!open.to_string().contains("neigh replace"), "nothing comes back to the container: {open}");
    run(&format!("ip link set {end} master {bridge}"));
    daemon.wait_for("the end of the second episode", |event| {
        event.kind() == "incident.closed" && event.number("/incident/episode") == Some(2)
    });
}

#[test]
fn a_pod_is_deleted_only_while_it_has_no_older_sandbox() {
    const DELETE: &str = "gateway-neighbor-lost/delete-pod";
    let dockerd = Dockerd::shared();
    let name = format!("etcd-{}", &uuid()[..8]);
    let sandbox = Container::sandbox(dockerd, &name, &[], "exec sleep 1000000");
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let pod = Pod::at(sandbox.netns());
    daemon.wait_for_gateway(pod.inum(), "169.254.1.1");
    let id = lose(&mut daemon, &pod);
    let delete = format!("kubectl -n lijiaob delete pod {name}");
    assert_eq!(offered(&incident(&daemon, &id), DELETE), Some(delete));
    let _ = is_understood(&daemon, &id, "gateway-neighbor-lost/delete-pod", &["127.0.0.1:1 was refused"]);
    look(&daemon, &id);
    pod.set_gateway();
    resolved(&mut daemon, &id);

    // Another pod of that name, as its predecessor is until its sandbox is removed.
    let older = Container::sandbox(dockerd, &name, &[], "exec sleep 1000000");
    eventually!(daemon.ask(&["state", "--json"]).stdout.contains(older.id()), "it is known");
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| {
        event.is_in(pod.inum()) && event.number("/incident/episode") == Some(2)
    });
    let open = incident(&daemon, &id);
    assert_eq!(offered(&open, DELETE), None, "{open}");
    let listed = carry_out(&daemon, &id, "gateway-neighbor-lost/list-by-docker").stdout;
    for container in [&sandbox, &older] {
        assert!(listed.contains(&container.id()[..12]), "{} in {listed}", container.id());
    }
    look(&daemon, &id);
}

#[test]
fn a_container_that_lost_its_gateway_is_restarted_by_its_own_runtime() {
    let dockerd = Dockerd::shared();
    let container = Container::start(dockerd, &["--network", "none"], &["sleep", "1000000"]);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let pod = Pod::at(container.netns());
    daemon.wait_for_gateway(pod.inum(), "169.254.1.1");
    let id = lose(&mut daemon, &pod);
    look(&daemon, &id);
    let _ = carry_out(&daemon, &id, "gateway-neighbor-lost/restart-by-docker");
    expect_gone(&mut daemon, &id);
}

#[test]
fn a_container_of_podman_that_lost_its_gateway_is_restarted_by_podman() {
    let Some(podman) = Podman::start() else {
        return not_carried_out("podman restart");
    };
    let container = podman.start_container(&[], &["sleep", "1000000"]);
    let runtime = format!("docker={}", podman.socket().display());
    let mut daemon = launch().joining(runtime).start();
    let pod = Pod::at(NetnsPath::of_process(podman.pid(&container)));
    daemon.wait_for_gateway(pod.inum(), "169.254.1.1");
    let id = lose(&mut daemon, &pod);
    let _ = carry_out(&daemon, &id, "gateway-neighbor-lost/restart-by-podman");
    expect_gone(&mut daemon, &id);
}
