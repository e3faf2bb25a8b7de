//! Pods that a real kubelet runs. Ignored by a plain `cargo test`: `cargo xtask test kubelet` builds the kubelet and runs
//! these.

use std::collections::BTreeSet;

use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::kubelet::{KubeletNode, NodePod};
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::{NeighbourState, Network};
use kevtmon_tests::pod::GATEWAY_LLADDR;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::attempt;
use serde_json::json;

fn expect_pod(event: &Event, pod: &NodePod) {
    event.expect("/target/pod/namespace", &*pod.namespace);
    event.expect("/target/pod/name", &*pod.name);
    event.expect("/target/pod/uid", &*pod.uid);
    event.expect("/target/pod/sandbox_id", &*pod.sandbox);
    event.expect_none("/target/pod/claimed");
}

/// Waits until an event of a container is reported.
fn wait_for_life(daemon: &mut Daemon, kind: &str, id: &str) -> Event {
    daemon.wait_for(kind, |event| event.kind() == kind && event.text("/target/container/id") == id)
}

/// The incidents of a pod that ever opened.
fn incidents(daemon: &Daemon, pod: &NodePod) -> Vec<Event> {
    let is_opened = |event: &Event| event.kind() == "incident.opened";
    let events = daemon.events().into_iter().filter(is_opened);
    events.filter(|event| event.text("/target/pod/uid") == pod.uid).collect()
}

#[test]
#[ignore = "needs a kubelet"]
fn a_pod_is_known_from_its_start_to_its_end_and_its_lost_gateway_names_it() {
    let node = KubeletNode::start();
    let mut daemon = launch().joining(node.dockerd().runtime()).start();
    let pod = node.run_pod("web");
    expect_pod(&wait_for_life(&mut daemon, "container.started", &pod.sandbox), &pod);
    expect_pod(&wait_for_life(&mut daemon, "container.started", &pod.app), &pod);
    let other = node.run_pod("batch");
    wait_for_life(&mut daemon, "container.started", &other.app);

    // Debian's plugins leave the entry to be learned.
    let netns = NetnsPath::of_process(other.pid);
    let gateway = netns.network(Network::default_gateway).to_string();
    daemon.wait_for_gateway(netns.inum(), &gateway);
    netns.set_neighbor("eth0", &gateway, GATEWAY_LLADDR, NeighbourState::Permanent);
    let ip = netns.run(&format!("ip neigh del {gateway} dev eth0"));
    let deleted = daemon.wait_for_deletion_by(ip.pid, netns.inum(), &gateway);
    expect_pod(&deleted, &other);
    let opened = daemon.wait_for_incident(&other.sandbox);
    opened.expect("/incident/kind", "gateway-neighbor-lost");
    expect_pod(&opened, &other);
    let summary = opened.text("/incident/summary");
    assert!(summary.contains(&other.full_name()), "{opened}");

    node.remove_pod("web", &pod);
    wait_for_life(&mut daemon, "container.exited", &pod.app);
    wait_for_life(&mut daemon, "container.exited", &pod.sandbox);
    daemon.mount_fence();
    let opened = incidents(&daemon, &pod);
    assert!(opened.is_empty(), "a pod that ends in good order: {opened:?}");
}

#[test]
#[ignore = "needs a kubelet"]
fn a_pod_whose_volume_is_held_from_outside_stays_until_that_one_lets_go() {
    let node = KubeletNode::start();
    let mut daemon = launch().joining(node.dockerd().runtime()).start();
    daemon.wait_for_component(node.kubelet_pid());
    let (pod, volume) = node.run_pod_with_memory("web");
    wait_for_life(&mut daemon, "container.started", &pod.app);
    let holder = node.hold_by_cwd(&volume);
    node.remove_pod("web", &pod);
    let opened = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "volume-busy") && event.text("/target/pod/uid") == pod.uid
    });
    opened.expect("/target/pod/namespace", &*pod.namespace);
    opened.expect("/target/pod/name", &*pod.name);
    opened.expect("/mount/volume/plugin", "kubernetes.io/empty-dir");
    opened.expect("/mount/volume/name", "data");
    opened.expect("/mount/path", &*volume.to_string_lossy());
    let id = opened.text("/incident/id").to_owned();
    // The kubelet retries, so that its holder is told by one event at the latest.
    let told = daemon.wait_for("who holds it", |event| {
        let is_it = |held: &serde_json::Value| held["pid"] == holder.pid() && held["access"] == "cwd";
        event.text("/incident/id") == id && event.list("/holders").iter().any(is_it)
    });
    let summary = told.text("/incident/summary");
    let by = format!("held by sleep (pid {}) as its current directory", holder.pid());
    assert!(summary.contains(&by) && summary.contains(&pod.full_name()), "{told}");
    assert!(summary.contains(&format!("kubelet (pid {})", node.kubelet_pid())), "{told}");
    assert!(node.log().contains("target is busy"), "{}", node.log());

    drop(holder);
    let closed = daemon
        .wait_for("its end", |event| event.kind() == "incident.closed" && event.text("/incident/id") == id);
    closed.expect("/incident/close_reason", "resolved");
    let all = daemon.events();
    let opened = all.iter().filter(|event| event.is_incident("incident.opened", "volume-busy"));
    assert_eq!(
        opened.filter(|event| event.text("/target/pod/uid") == pod.uid).count(),
        1,
        "retries are no incidents"
    );
}

/// The part of the configuration that lets a container be without its sandbox for a second only.
const SOON: &str = "[incidents]\norphan_container_seconds = 1\n";
/// How a kubelet of this generation ends that finds a container without its sandbox.
const REFUSES: &str = "no PodsandBox found with Id";

#[test]
#[ignore = "needs a kubelet"]
fn a_container_without_its_sandbox_keeps_the_kubelet_from_starting_until_the_advice_is_followed() {
    let mut node = KubeletNode::start();
    let pod = node.run_pod("etcd");
    let mut daemon = launch().joining(node.dockerd().runtime()).config(SOON).start();
    node.stop();
    node.dockerd().docker(&["rm", "--force", &pod.sandbox]);
    let opened = daemon.wait_for("the incident", |event| {
        event.is_incident("incident.opened", "orphan-container")
            && event.text("/target/container/id") == pod.app
    });
    opened.expect("/sandbox/id", &*pod.sandbox);
    opened.expect("/target/pod/name", &*pod.name);
    opened.expect("/incident/confidence", "certain");
    let told = daemon.wait_for("that there is a checkpoint", |event| {
        event.text("/incident/id") == opened.text("/incident/id") && event.has("/sandbox/checkpoint")
    });
    told.expect("/sandbox/checkpoint", true);
    told.expect("/severity", "info");

    // With the checkpoint a kubelet starts, ends what is left of the pod and makes a new sandbox. The dead container stays.
    node.launch();
    let again = node.wait_for_static_pod("etcd", &[&pod.sandbox, &pod.app]);
    assert_eq!(again.uid, pod.uid);
    node.stop();
    assert!(!node.log().contains(REFUSES), "{}", node.log());

    // Without it, it does not.
    node.dockerd().docker(&["rm", "--force", &again.sandbox, &pod.app]);
    std::fs::remove_file(again.checkpoint()).expect("there is a checkpoint");
    let id = daemon
        .wait_for("the incident", |event| {
            event.is_incident("incident.opened", "orphan-container")
                && event.text("/target/container/id") == again.app
        })
        .text("/incident/id")
        .to_owned();
    let worse = daemon.wait_for("that there is no checkpoint", |event| {
        event.text("/incident/id") == id && event.get("/sandbox/checkpoint") == Some(&false.into())
    });
    worse.expect("/sandbox/kubelet_version", KubeletNode::VERSION);
    worse.expect("/severity", "critical");
    let phrase = format!("kubelet {} cannot start while it is there", KubeletNode::VERSION);
    assert!(worse.text("/incident/summary").contains(&phrase), "{worse}");
    node.launch();
    let status = node.wait_for_end();
    assert!(!status.success(), "{status}");
    let log = node.log();
    assert!(log.contains(REFUSES) && log.contains(&again.sandbox), "{log}");
    // It is started again as a service is. That it was ended twice before, as asked for, does not count.
    for _ in 0..2 {
        node.launch();
        node.wait_for_end();
    }
    let in_loop = daemon.wait_for("the crash loop", |event| {
        event.is_incident("incident.opened", "kubelet-crash-loop")
            && event.text("/component/version") == KubeletNode::VERSION
    });
    in_loop.expect("/incident/count", 3);
    in_loop.expect("/incident/caused_by", json!([id]));

    // The command as it is offered; the client of the tests' own dockerd comes first on the path.
    let command = worse.text("/incident/advice/0/command").to_owned();
    worse.expect("/incident/advice/0/risk", "destructive");
    assert!(command.ends_with(&format!(" rm --force {}", again.app)), "{command}");
    let _ = attempt(&["sh", "-c", &command]).succeeded(&command);
    let closed = daemon.wait_for("the end of the incident", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/close_reason", "resolved");
    node.launch();
    let last = node.wait_for_static_pod("etcd", &[&again.sandbox, &again.app]);
    wait_for_life(&mut daemon, "container.started", &last.app);
}

#[test]
#[ignore = "needs a kubelet"]
fn the_version_of_a_kubelet_is_known_that_an_older_go_has_built() {
    let mut node = KubeletNode::start();
    let mut daemon = launch().joining(node.dockerd().runtime()).start();
    daemon.wait_for_component(node.kubelet_pid());
    node.stop();
    node.launch_with_old_build_information();
    let pid = u64::from(node.kubelet_pid());
    let started = daemon.wait_for("the start of the kubelet", |event| {
        event.kind() == "component.started" && event.number("/component/pid") == Some(pid)
    });
    started.expect("/component/version", KubeletNode::VERSION);
}

/// The hash of its specification, by the label that the kubelet gave a container.
fn spec_hash(node: &KubeletNode, id: &str) -> String {
    let label = r#"{{index .Config.Labels "annotation.io.kubernetes.container.hash"}}"#;
    node.dockerd().docker(&["inspect", "-f", label, id]).stdout.trim().to_owned()
}

fn is_recreation_of(event: &Event, pod: &NodePod) -> bool {
    event.kind() == "container.recreated" && event.text("/target/pod/uid") == pod.uid
}

#[test]
#[ignore = "needs a kubelet"]
fn a_kubelet_with_other_hashes_makes_a_storm_and_restarts_of_the_same_one_and_of_dockerd_nothing() {
    let mut node = KubeletNode::start();
    let mut pods: Vec<NodePod> = ["web", "batch", "etcd"].map(|name| node.run_pod(name)).into();
    let mut daemon = launch().joining(node.dockerd().runtime()).start();
    daemon.wait_for_component(node.kubelet_pid());

    // The same kubelet again, and dockerd too: nothing is made again. The pod that is run last shows that the kubelet is at work.
    node.stop();
    node.dockerd().kill();
    node.dockerd().launch();
    node.launch();
    daemon.wait_for_component(node.kubelet_pid());
    pods.push(node.run_pod("last"));
    wait_for_life(&mut daemon, "container.started", &pods[3].app);
    daemon.mount_fence();
    for pod in &pods {
        let same = node.wait_for_pod(&pod.name, &[]);
        assert_eq!((&same.sandbox, &same.app), (&pod.sandbox, &pod.app), "{}", pod.name);
        assert!(!daemon.events().iter().any(|event| is_recreation_of(event, pod)), "{}", pod.name);
        let opened = incidents(&daemon, pod);
        assert!(opened.is_empty(), "restarts of the same programs: {opened:?}");
    }
    let is_storm = |event: &Event| event.text("/incident/kind") == "spec-hash-storm";

    // A kubelet that computes another hash of the same specification: what an upgrade across versions does.
    node.stop();
    node.launch_other();
    let kubelet = node.kubelet_pid();
    daemon.wait_for_component(kubelet);
    let of_it = |event: &Event| is_storm(event) && event.number("/component/pid") == Some(u64::from(kubelet));
    for pod in &pods {
        let told =
            daemon.wait_for(&format!("what becomes of {}", pod.name), |event| is_recreation_of(event, pod));
        let new = node.wait_for_pod(&pod.name, &[&pod.app]);
        assert_eq!((&new.sandbox, &new.uid), (&pod.sandbox, &pod.uid), "the kubelet keeps the sandboxes");
        expect_pod(&told, &new);
        told.expect("/target/container/id", &*new.app);
        told.expect("/recreation/previous/id", &*pod.app);
        told.expect("/recreation/reason", "spec-hash-changed");
        told.expect("/recreation/same_sandbox", true);
        told.expect("/recreation/previous_attempt", 0);
        told.expect("/recreation/attempt", 1);
        let (before, after) = (spec_hash(&node, &pod.app), spec_hash(&node, &new.app));
        assert_ne!(before, after);
        told.expect("/recreation/previous_spec_hash/hex", &*before);
        told.expect("/recreation/spec_hash/hex", &*after);
        let decimal = |hex: &str| u64::from_str_radix(hex, 16).expect("a hash").to_string();
        let hashes = format!("from {} to {}", decimal(&before), decimal(&after));
        assert!(told.text("/message").ends_with(&hashes), "{told}");
    }
    let opened = daemon.wait_for("the storm", |event| of_it(event) && event.kind() == "incident.opened");
    opened.expect("/severity", "warning");
    opened.expect("/incident/confidence", "certain");
    let count = opened.number("/incident/count").expect("a count");
    assert!((3..=4).contains(&count), "{opened}");
    opened.expect("/component/version", KubeletNode::OTHER_VERSION);
    opened.expect("/component/previous_version", KubeletNode::VERSION);
    let summary = opened.text("/incident/summary");
    let told = format!(
        "{count} containers of {count} pods were re-created with other spec hashes, in unchanged sandboxes"
    );
    assert!(summary.starts_with(&told), "{opened}");
    assert!(summary.ends_with(&format!("in place of version {}", KubeletNode::VERSION)), "{opened}");
    let advice = opened.get("/incident/advice").map(ToString::to_string).unwrap_or_default();
    assert!(advice.contains("do not go back") && advice.contains("drain the node"), "{advice}");
    let all = daemon
        .wait_for("the last of them", |event| of_it(event) && event.number("/incident/count") == Some(4));
    all.expect("/incident/id", opened.text("/incident/id"));
    let storms = daemon.events().into_iter().filter(is_storm);
    let ids: BTreeSet<String> = storms.map(|event| event.text("/incident/id").to_owned()).collect();
    assert_eq!(ids.len(), 1, "one incident: {ids:?}");
    for pod in &pods {
        let opened = incidents(&daemon, pod);
        assert!(opened.is_empty(), "the pods themselves have no trouble: {opened:?}");
    }
}

#[test]
#[ignore = "needs a kubelet"]
fn what_ends_one_container_of_each_of_three_pods_is_told_as_that_and_is_no_incident() {
    let node = KubeletNode::start();
    let mut daemon = launch().joining(node.dockerd().runtime()).start();
    daemon.wait_for_component(node.kubelet_pid());
    let run = |name: &str, uid: &str, container: &serde_json::Value| {
        node.write_manifest(name, Some(uid), container);
        node.wait_for_static_pod(name, &[])
    };
    let probe = ["/bin/sh", "-c", "[ ! -e /data/end ]"];
    let probed = run(
        "probed",
        &uuid(),
        &json!({"livenessProbe": {
            "exec": {"command": probe}, "periodSeconds": 1, "failureThreshold": 1,
        }}),
    );
    let greedy = "until [ -e /data/end ]; do sleep 1; done; exec busybox tail /dev/zero";
    let greedy = run(
        "greedy",
        &uuid(),
        &json!({
            "command": ["/bin/sh", "-c", greedy],
            "resources": {"limits": {"memory": "16Mi"}},
        }),
    );
    let uid = uuid();
    let renewed = run("renewed", &uid, &json!({}));
    for pod in [&probed, &greedy, &renewed] {
        wait_for_life(&mut daemon, "container.started", &pod.app);
    }
    for pod in [&probed, &greedy] {
        node.dockerd().docker(&["exec", &pod.app, "/bin/sh", "-c", "echo >/data/end"]);
    }
    let image = node.dockerd().labelled_image(&[("version", "2")]);
    node.write_manifest("renewed", Some(&uid), &json!({"image": image}));

    for (pod, reason) in [(&probed, "exited"), (&greedy, "exited"), (&renewed, "image-changed")] {
        let told = daemon.wait_for(&pod.name, |event| is_recreation_of(event, pod));
        let new = node.wait_for_pod(&pod.name, &[&pod.app]);
        assert_eq!((&new.sandbox, &new.uid), (&pod.sandbox, &pod.uid));
        expect_pod(&told, &new);
        told.expect("/recreation/reason", reason);
        told.expect("/recreation/previous/id", &*pod.app);
        told.expect("/recreation/same_sandbox", true);
    }
    let ended = wait_for_life(&mut daemon, "container.exited", &greedy.app);
    ended.expect("/target/container/oom_killed", true);
    daemon.mount_fence();
    for pod in [&probed, &greedy, &renewed] {
        let opened = incidents(&daemon, pod);
        assert!(opened.is_empty(), "{opened:?}");
    }
    let of_it = |event: &Event| event.number("/component/pid") == Some(node.kubelet_pid().into());
    let opened: Vec<Event> = daemon
        .events()
        .into_iter()
        .filter(|event| event.kind() == "incident.opened" && of_it(event))
        .collect();
    assert!(opened.is_empty(), "{opened:?}");
}

#[test]
#[ignore = "needs a kubelet"]
fn sandboxes_that_the_runtime_of_a_kubelet_cannot_start_are_one_incident() {
    let node = KubeletNode::start();
    let mut daemon = launch().joining(node.dockerd().runtime()).start();
    let broken = node.break_runtime();
    node.write_manifest("loop", None, &json!({}));
    let is_it = |event: &Event| event.text("/incident/kind") == "sandbox-crash-loop";
    let opened = daemon.wait_for("the crash loop", |event| is_it(event) && event.kind() == "incident.opened");
    opened.expect("/severity", "warning");
    opened.expect("/target/pod/namespace", node.namespace());
    let name = opened.text("/target/pod/name").to_owned();
    assert!(name.starts_with("loop-"), "{opened}");
    let grown = daemon.wait_for("the kubelet goes on", |event| {
        is_it(event) && event.number("/incident/count").is_some_and(|count| count >= 8)
    });
    assert_eq!(grown.text("/incident/id"), opened.text("/incident/id"));
    let summary = grown.text("/incident/summary");
    assert!(summary.contains("OCI runtime create failed") && summary.contains("exit status 1"), "{grown}");

    drop(broken);
    let pod = node.wait_for_static_pod("loop", &[]);
    assert_eq!(pod.name, name);
    wait_for_life(&mut daemon, "container.started", &pod.app);
    let events = daemon.events();
    let of_pod = events.iter().filter(|event| event.text("/target/pod/uid") == pod.uid);
    let made = of_pod.clone().filter(|event| event.kind() == "container.created").count();
    let counted = grown.number("/incident/count").expect("a number");
    assert!((made as u64) < counted, "{made} events of {counted} sandboxes and more");
    let incidents = of_pod.filter(|event| event.kind() == "incident.opened");
    assert_eq!(
        incidents.map(|event| event.text("/incident/kind")).collect::<Vec<_>>(),
        ["sandbox-crash-loop"]
    );
}
