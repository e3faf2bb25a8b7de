//! Pods of a whole cluster. Ignored by a plain `cargo test`: `cargo xtask test cluster` builds what it is made of and runs
//! these.

use std::fs;

use kevtmon_tests::cluster::Cluster;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::delivered::parse;
use kevtmon_tests::event::Event;
use kevtmon_tests::helm;
use kevtmon_tests::kubelet::NodePod;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::patience::wait_until;
use kevtmon_tests::pod::{GATEWAY, GATEWAY_LLADDR};
use serde_json::json;

/// Waits until the daemon knows a pod and its gateway; the namespace of its network.
fn wait_until_known(daemon: &mut Daemon, pod: &NodePod) -> u64 {
    daemon.wait_for("the pod's container", |event| {
        event.kind() == "container.started" && event.text("/target/container/id") == pod.app
    });
    let netns = NetnsPath::of_process(pod.pid).inum();
    daemon.wait_for_gateway(netns, GATEWAY);
    netns
}

/// The incidents that name a pod, by its namespace and name or its identity.
fn incidents_of<'a>(events: &'a [Event], pod: &'a NodePod) -> impl Iterator<Item = &'a Event> {
    let is_told = |event: &Event| {
        let told = event.to_string();
        told.contains(&pod.full_name()) || told.contains(&pod.uid) || told.contains(&pod.sandbox)
    };
    events.iter().filter(move |event| event.has("/incident") && is_told(event))
}

/// The calls for the sandbox of a pod that have ended.
fn is_end_of(event: &Event, command: &str, sandbox: &str) -> bool {
    event.kind() == "cni.finished"
        && event.text("/cni/command") == command
        && event.text("/cni/container_id") == sandbox
}

#[test]
#[ignore = "needs a cluster"]
fn a_forced_deletion_is_told_before_it_takes_the_gateway_of_the_next_pod_of_that_name() {
    let cluster = Cluster::start();
    let network = cluster.node().network();
    let mut daemon = launch().joining(cluster.node().dockerd().runtime()).start();
    cluster.run_stateful_set("etcd1", 2);
    let [old, graceful] = ["etcd1-0", "etcd1-1"].map(|name| cluster.wait_for_pod(name, &[]));
    for pod in [&old, &graceful] {
        wait_until_known(&mut daemon, pod);
    }

    // In good order, beside the other.
    let _ = cluster.kubectl(&["delete", "pod", "etcd1-1", "--wait=false"]);

    network.refuse_deletions("etcd1-0");
    let _ = cluster.kubectl(&["delete", "pod", "etcd1-0", "--force", "--grace-period=0"]);
    let new = cluster.wait_for_pod("etcd1-0", &[&old.sandbox, &old.app]);
    assert_ne!(new.uid, old.uid);
    let netns = wait_until_known(&mut daemon, &new);
    let opened = daemon.wait_for("the stale call", |event| {
        event.is_incident("incident.opened", "stale-cni-del")
            && event.text("/cni/container_id") == old.sandbox
    });
    assert_eq!((opened.severity(), opened.text("/incident/confidence")), ("warning", "certain"), "{opened}");
    opened.expect("/target/pod/uid", &*new.uid);
    opened.expect("/target/pod/sandbox_id", &*new.sandbox);
    opened.expect("/cni/pod", "etcd1-0");
    opened.expect("/cni/exit_code", 1);
    // The loopback's plugin, which the kubelet calls before it, has not failed.
    opened.expect("/actor/comm", "calico");
    opened.expect("/actor/ancestors/0/comm", "kubelet");
    assert!(opened.text("/incident/summary").contains(" by calico, "), "{opened}");
    let harm =
        |event: &Event| event.is_incident("incident.opened", "gateway-neighbor-lost") && event.is_in(netns);
    assert!(!daemon.events().iter().any(harm), "it is told before anything is lost");

    // The next of the retries succeeds, about a minute later.
    network.accept_deletions("etcd1-0");
    let deleted = daemon.wait_for_deletion(netns, GATEWAY);
    deleted.expect("/neighbor/gateway", true);
    deleted.expect("/neighbor/cause", "admin");
    deleted.expect("/actor/comm", "ip");
    deleted.expect("/actor/confidence", "certain");
    deleted.expect("/actor/ancestors/0/comm", "calico");
    deleted.expect("/actor/ancestors/1/comm", "kubelet");
    deleted.expect("/target/pod/uid", &*new.uid);
    let lost = daemon.wait_for("the lost gateway", harm);
    lost.expect("/target/pod/uid", &*new.uid);
    lost.expect("/actor/pid", deleted.number("/actor/pid").expect("the actor's"));
    assert!(lost.text("/incident/summary").contains("by calico"), "{lost}");
    let lost = lost.text("/incident/id").to_owned();
    let linked = daemon.wait_for("its cause", |event| {
        event.text("/incident/id") == lost && event.has("/incident/caused_by/0")
    });
    linked.expect("/incident/caused_by/0", opened.text("/incident/id"));
    let ended = daemon.wait_for("the end of the call that did it", |event| {
        is_end_of(event, "DEL", &old.sandbox) && event.number("/cni/exit_code") == Some(0)
    });
    ended.expect("/cni/stale", true);

    // The other pod has come and gone without a word.
    let next = cluster.wait_for_pod("etcd1-1", &[&graceful.sandbox, &graceful.app]);
    wait_until_known(&mut daemon, &next);
    daemon.wait_for("its DEL", |event| is_end_of(event, "DEL", &graceful.sandbox));
    daemon.mount_fence();
    let events = daemon.events();
    for pod in [&graceful, &next] {
        let told: Vec<&Event> = incidents_of(&events, pod).collect();
        assert!(told.is_empty(), "of a pod that was deleted in good order: {told:?}");
    }
}

/// The first line of a text that has all of these.
fn line_with(text: &str, words: &[&str]) -> Option<String> {
    text.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
}

#[test]
#[ignore = "needs a cluster"]
fn who_took_the_gateway_of_a_pod_and_holds_its_volume_is_in_its_description() {
    let cluster = Cluster::start();
    let rendered = helm::render(&json!({"kubernetesEvents": true})).succeeded("rendering").stdout;
    let objects = parse(&rendered, helm::CHART);
    let (bindings, others): (Vec<_>, Vec<_>) = objects
        .into_iter()
        .filter(|object| object["kind"] != "DaemonSet")
        .partition(|object| object["kind"] == "ClusterRoleBinding");
    let _ = cluster.kubectl(&["create", "namespace", helm::NAMESPACE]);
    others.iter().for_each(|object| cluster.apply(object));
    let scratch = Scratch::without_mounts();
    let token_file = scratch.path().join("token");
    fs::write(&token_file, cluster.token(helm::NAMESPACE, "kevtmon")).expect("a file can be written");
    let config = format!(
        "[kubernetes]\nevents = true\nserver = {:?}\ntoken_file = {token_file:?}\nca_file = {:?}\n",
        cluster.server(),
        cluster.authority(),
    );
    let node = cluster.node();
    let mut daemon = launch().joining(node.dockerd().runtime()).config(&config).start();
    cluster.run_stateful_set("etcd1", 1);
    let pod = cluster.wait_for_pod("etcd1-0", &[]);
    let netns = wait_until_known(&mut daemon, &pod);
    let network = NetnsPath::of_process(pod.pid);
    let delete_gateway = || network.run(&format!("ip neigh del {GATEWAY} dev eth0"));
    let set_gateway = || network.set_neighbor("eth0", GATEWAY, GATEWAY_LLADDR, NeighbourState::Permanent);
    let described = |words: &[&str]| {
        wait_until(&format!("{words:?} in the description"), || {
            line_with(&cluster.kubectl(&["describe", "pod", "etcd1-0"]).stdout, words)
        })
    };

    // Without the role it says what it lacks.
    let lost = |event: &Event, transition: &str| {
        event.is_incident(transition, "gateway-neighbor-lost") && event.is_in(netns)
    };
    let _ = delete_gateway();
    daemon.wait_for("the first loss", |event| lost(event, "incident.opened"));
    let degraded = daemon.wait_for("that it may not", |event| {
        event.kind() == "daemon.degraded" && event.to_string().contains("lacks the RBAC verb create")
    });
    assert!(degraded.to_string().contains("kubernetes"), "{degraded}");
    bindings.iter().for_each(|object| cluster.apply(object));
    set_gateway();
    let closed = daemon.wait_for("its end", |event| lost(event, "incident.closed"));
    let line = described(&["Normal", "GatewayNeighborLost", "resolved: "]);
    assert!(line.contains(closed.text("/incident/summary")), "{line}");

    let _ = delete_gateway();
    let first = closed.text("/incident/id");
    let opened = daemon.wait_for("the second loss", |event| {
        lost(event, "incident.opened") && event.text("/incident/id") != first
            || lost(event, "incident.opened") && event.number("/incident/episode") == Some(2)
    });
    let line = described(&["Warning", "GatewayNeighborLost"]);
    assert!(line.contains(opened.text("/incident/summary")), "{line}");

    let volume = node.memory_of(&pod);
    let holder = node.hold_by_cwd(&volume);
    let _ = cluster.kubectl(&["delete", "pod", "etcd1-0", "--wait=false"]);
    let line = described(&["Warning", "VolumeBusy", &format!("sleep (pid {})", holder.pid())]);
    assert!(line.contains(&pod.full_name()), "{line}");
    drop(holder);
    let line = wait_until("its end among the Events", || {
        line_with(&cluster.kubectl(&["get", "events"]).stdout, &["Normal", "VolumeBusy", "etcd1-0"])
    });
    assert!(line.contains("resolved: "), "{line}");
}
