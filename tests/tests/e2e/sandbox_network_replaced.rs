//! Sandboxes in a real Docker that somebody restarts: the network of their pods is gone, and nothing else says so.

use std::process::Command;

use kevtmon_tests::advice::{incident, is_understood, offered, resolved};
use kevtmon_tests::cni_call::{OK, call, dockershim_args, finished, plugins_and};
use kevtmon_tests::container::Container;
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::netns::NetnsPath;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::pod_sandbox::uuid;

const KIND: &str = "sandbox-network-replaced";

/// The sandbox of a pod, with a network.
struct Sandbox<'d> {
    dockerd: &'d Dockerd,
    container: Container<'d>,
    pod: String,
    network: Pod,
}

impl<'d> Sandbox<'d> {
    fn start(dockerd: &'d Dockerd) -> Self {
        let pod = format!("etcd-{}", &uuid()[..8]);
        let container = Container::sandbox(dockerd, &pod, &[], "exec sleep 1000000");
        let network = Pod::at(container.netns());
        Self { dockerd, container, pod, network }
    }

    fn restart(&self) {
        self.dockerd.docker(&["restart", "--time", "0", self.container.id()]);
    }

    /// Sets its new namespace up, as a plugin that a kubelet calls.
    fn set_up(&self, scratch: &Scratch) -> Pod {
        let id = self.container.id();
        let shown = self.dockerd.docker(&["inspect", "-f", "{{.State.Pid}}", id]).stdout;
        let pid = shown.trim().parse().expect("it runs");
        let network = Pod::at(NetnsPath::of_process(pid));
        let mut call: Command = call(scratch.path().join("calico"), "ADD", id);
        call.env("CNI_ARGS", dockershim_args(&self.pod, id)).env("CNI_NETNS", format!("/proc/{pid}/ns/net"));
        let _ = finished(call).succeeded("ADD");
        network
    }
}

#[test]
fn a_sandbox_that_is_restarted_is_reported_until_a_plugin_has_set_it_up_again() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::without_mounts();
    let (mended, broken) = (Sandbox::start(dockerd), Sandbox::start(dockerd));
    let mut daemon = plugins_and(&scratch, &[("calico", OK)], "").joining(dockerd.runtime()).start();
    for sandbox in [&mended, &broken] {
        daemon.wait_for_gateway(sandbox.network.inum(), GATEWAY);
    }
    mended.restart();
    let _network = mended.set_up(&scratch);
    broken.restart();
    let is_its = |sandbox: &Sandbox<'_>, event: &Event| {
        event.is_incident("incident.opened", KIND)
            && event.text("/target/container/id") == sandbox.container.id()
    };
    let opened = daemon.wait_for("the incident", |event| is_its(&broken, event));
    opened.expect("/severity", "critical");
    // An empty namespace has no number by which the kernel tells what becomes of it.
    opened.expect("/incident/confidence", "likely");
    opened.expect("/target/pod/name", &*broken.pod);
    let (pod, id) = (&broken.pod, &broken.container.id()[..12]);
    opened.expect("/actor/comm", "docker");
    opened.expect("/actor/confidence", "likely");
    let client = opened.number("/actor/pid").unwrap_or_default();
    let expected = format!(
        "docker (pid {client}) has likely restarted the sandbox {id} of pod lijiaob/{pod}, which lost its network: it has a new \
         network namespace that no CNI plugin set up"
    );
    assert_eq!(opened.text("/message"), expected);
    assert_eq!(opened.list("/incident/evidence").len(), 2, "its end and its start: {opened}");
    let id = opened.text("/incident/id").to_owned();
    let delete = format!("kubectl -n lijiaob delete pod {pod}");
    assert_eq!(offered(&incident(&daemon, &id), "sandbox-network-replaced/delete-pod"), Some(delete));
    let _ = is_understood(&daemon, &id, "sandbox-network-replaced/delete-pod", &["127.0.0.1:1 was refused"]);
    let _network = broken.set_up(&scratch);
    resolved(&mut daemon, &id);
    assert!(!daemon.events().iter().any(|event| is_its(&mended, event)), "it was set up in time");
}
