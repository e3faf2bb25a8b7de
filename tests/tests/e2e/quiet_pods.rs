//! Containers and pods of which no event has told anything, and those that have no network of their own.

use kevtmon_tests::balance::stop_and_account;
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::pod::{GATEWAY_LLADDR, Pod};
use kevtmon_tests::pod_sandbox::uuid;
use serde_json::json;

/// A daemon that knows the container since its start.
fn daemon_that_knows(container: &Container<'_>) -> Daemon {
    let daemon = launch().joining(Dockerd::shared().runtime()).start();
    eventually!(
        daemon.ask(&["state", "--json"]).stdout.contains(container.id()),
        "{} is known",
        container.name()
    );
    daemon
}

#[test]
fn the_story_of_a_container_and_its_pod_is_there_before_any_event() {
    let (name, uid) = (format!("web-{}", &uuid()[..8]), uuid());
    let sandbox = Container::sandbox_of(Dockerd::shared(), &name, &uid, &[], "sleep 1000000");
    let daemon = daemon_that_knows(&sandbox);
    let of_pod = format!("lijiaob/{name}");
    let (id, short, netns) = (sandbox.id(), &sandbox.id()[..12], sandbox.netns().inum());
    let state =
        format!("running, as docker says; image {}, pid {}, net:[{netns}]", sandbox.image(), sandbox.pid());
    for word in [id, short, sandbox.name()] {
        let story = daemon.find(&["why", word]).remove(0);
        story.expect("/subject/kind", "container");
        assert_eq!(
            story.list("/now"),
            [json!(state), json!(format!("sandbox of pod {of_pod}"))],
            "{word}: {story}"
        );
        expect_nothing_wrong(&story);
    }
    let container = format!("container {} ({short}), its sandbox: {state}", sandbox.name());
    for word in [&*of_pod, &*name, &*uid] {
        let story = daemon.find(&["why", word]).remove(0);
        story.expect("/subject/label", format!("pod {of_pod}"));
        assert_eq!(
            story.list("/now"),
            [json!(format!("net:[{netns}]")), json!(container)],
            "{word}: {story}"
        );
        expect_nothing_wrong(&story);
    }
    let told = daemon.ask(&["why", short]).stdout;
    let lines =
        format!("\n\nKnown now\n  {state}\n  sandbox of pod {of_pod}\n\nVerdict\n  nothing was recorded");
    assert!(squeezed(&told).contains(&squeezed(&lines)), "{told}");

    let id = id.to_owned();
    drop(sandbox);
    let is_gone = || daemon.find(&["why", &id]).first().is_none_or(|story| story.list("/now").is_empty());
    eventually!(is_gone(), "what was known is not told once it is gone");
    stop_and_account(daemon);
}

fn expect_nothing_wrong(story: &Event) {
    assert!(story.list("/incidents").is_empty() && story.list("/steps").is_empty(), "{story}");
    story.expect("/verdict/sentence", "nothing was recorded about it");
    story.expect("/verdict/open", false);
}

/// However its lines are broken.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_kubelets_pod_in_the_network_of_the_host_acts_there_and_owns_nothing() {
    let dockerd = Dockerd::shared();
    let (name, uid) = (format!("proxy-{}", &uuid()[..8]), uuid());
    let group = dockerd.pod_cgroup(&uid);
    let labels = |container, kind| {
        dockerd.labelled_image(&[
            ("io.kubernetes.pod.namespace", "lijiaob"),
            ("io.kubernetes.pod.name", &name),
            ("io.kubernetes.pod.uid", &uid),
            ("io.kubernetes.container.name", container),
            ("io.kubernetes.docker.type", kind),
        ])
    };
    let options = ["--network", "host", "--cap-add", "NET_ADMIN", "--cgroup-parent", &group];
    let start = |image: &str, more: &[&str]| {
        Container::of_image(dockerd, image, &[&options, more].concat(), &["sleep", "1000000"])
    };
    let sandbox = start(&labels("POD", "podsandbox"), &[]);
    let of_sandbox = format!("io.kubernetes.sandbox.id={}", sandbox.id());
    let proxy = start(&labels("proxy", "container"), &["--label", &of_sandbox]);
    let host = NetnsPath::of_process(std::process::id());
    assert_eq!(sandbox.netns().inum(), host.inum(), "it has no network of its own");
    let mut daemon = daemon_that_knows(&proxy);

    let other = Pod::new();
    let entry = || {
        host.set_neighbor(other.host_end(), "192.0.2.9", GATEWAY_LLADDR, NeighbourState::Permanent);
        ["neigh", "del", "192.0.2.9", "dev", other.host_end()]
    };
    // What happens on the host is nothing that happens to the pod, whoever did it.
    let expect_hosts = |event: &Event| {
        event.expect_none("/neighbor/gateway");
        event.expect_none("/target/pod");
        event.expect_none("/target/container");
    };
    let by_host = host.run(&format!("ip {}", entry().join(" ")));
    expect_hosts(&daemon.wait_for_deletion_by(by_host.pid, host.inum(), "192.0.2.9"));
    let by_pod = proxy.exec(&[], &[&["ip"], &entry()[..]].concat());
    assert!(by_pod.status.success(), "{by_pod:?}");
    let event = daemon.wait_for("what the pod did", |event| {
        event.kind() == "neighbor.deleted" && event.text("/actor/container/id") == proxy.id()
    });
    expect_hosts(&event);
    event.expect("/actor/pod/name", &*name);
    event.expect("/actor/pod/uid", &*uid);
    event.expect_none("/actor/pod/claimed");

    let story = daemon.find(&["why", &format!("lijiaob/{name}")]).remove(0);
    let now = story.list("/now");
    assert!(
        now.iter().any(|line| line.as_str().is_some_and(|line| line.contains(", its sandbox: running"))),
        "{story}"
    );
    daemon.mount_fence();
    let is_its = |event: &&Event| {
        event.kind() == "incident.opened"
            && [&sandbox, &proxy].iter().any(|own| event.text("/target/container/id") == own.id())
    };
    assert_eq!(daemon.events().iter().filter(is_its).count(), 0, "nothing is wrong with it");
    stop_and_account(daemon);
}
