//! Pods of a runtime behind the CRI: containerd with CNI plugins, driven as a kubelet does it.

#![allow(clippy::expect_used, reason = "a test that cannot prepare its stage must fail")]

use kevtmon_tests::containerd::{Containerd, CriPod, NAMESPACE};
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::event::Event;

/// What was reported of the life of a container, in order.
fn life(events: &[Event], id: &str) -> Vec<String> {
    let of_it = events.iter().filter(|event| event.has("/target/container/id"));
    let of_it = of_it.filter(|event| event.text("/target/container/id") == id);
    of_it.map(|event| event.kind().to_owned()).filter(|kind| kind.starts_with("container.")).collect()
}

fn expect_pod(event: &Event, pod: &CriPod<'_>) {
    event.expect("/target/pod/namespace", NAMESPACE);
    event.expect("/target/pod/name", pod.name());
    event.expect("/target/pod/uid", pod.uid());
    event.expect("/target/pod/sandbox_id", pod.sandbox());
    event.expect_none("/target/pod/claimed");
    event.expect("/target/container/runtime", "containerd");
}

fn wait_for_life(daemon: &mut Daemon, kind: &str, id: &str) -> Event {
    daemon.wait_for(kind, |event| event.kind() == kind && event.text("/target/container/id") == id)
}

#[test]
fn the_life_of_a_pod_behind_the_cri_is_reported_as_it_happens() {
    let containerd = Containerd::start();
    let early = containerd.run_pod();
    let mut daemon = launch().runtime(containerd.runtime()).start();
    let metrics = daemon.metrics();
    assert_eq!(metrics.sum("kevtmon_source_up", &[("source", "cri")]), Some(1.0));
    assert_eq!(metrics.count("kevtmon_containers", &[("runtime", "containerd"), ("state", "running")]), 1.0);

    let pod = containerd.run_pod();
    let started = wait_for_life(&mut daemon, "container.started", pod.sandbox());
    expect_pod(&started, &pod);
    let (id, pid) = pod.start_container("etcd", &["/bin/sleep", "1000000"], &[]);
    let started = wait_for_life(&mut daemon, "container.started", &id);
    expect_pod(&started, &pod);
    started.expect("/target/container/name", "etcd");
    started.expect("/target/container/pid", pid);
    started.expect("/message", format!("container etcd of pod {} started", pod.full_name()));
    pod.remove_container(&id);
    wait_for_life(&mut daemon, "container.exited", &id);
    wait_for_life(&mut daemon, "container.removed", &id);
    let sandbox = pod.sandbox().to_owned();
    pod.remove();
    wait_for_life(&mut daemon, "container.removed", &sandbox);
    let events = daemon.events();
    let whole = ["container.created", "container.started", "container.exited", "container.removed"];
    let of_container = life(&events, &id);
    assert!(
        whole.ends_with(&of_container.iter().map(String::as_str).collect::<Vec<_>>()),
        "{of_container:?}"
    );
    assert_eq!(life(&events, early.sandbox()), [""; 0], "it ran all the time");
}
