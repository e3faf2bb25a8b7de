//! veth devices of pods that are left after their pods: real namespaces and devices, behind a socket that tells which containers
//! there are.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use kevtmon_tests::advice::{carry_out, opened, resolved};
use kevtmon_tests::daemon::{Daemon, Launch, launch};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::fake_dockerd::FakeDockerd;
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::process::{Running, comm, finish_with_input, run};
use kevtmon_tests::reaper::Cleanup;
use kevtmon_tests::unique::container_id;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde_json::Value;

const KIND: &str = "orphan-veth";

fn impatient(docker: &FakeDockerd) -> Launch {
    launch().runtime(docker.runtime()).config("[incidents]\norphan_veth_seconds = 1\n")
}

/// A pod whose device on the host is called as Calico calls it.
struct CalicoPod {
    pod: Pod,
    sandbox: Option<PodSandbox>,
    name: String,
    device: String,
    _cleanup: Cleanup,
}

impl CalicoPod {
    fn new(docker: &FakeDockerd) -> Self {
        let pod = Self::unmanaged();
        let sandbox = PodSandbox::of(&pod.pod);
        docker.start_container_of_pod(&sandbox, "lijiaob", &pod.name);
        Self { sandbox: Some(sandbox), ..pod }
    }

    /// Its network alone.
    fn unmanaged() -> Self {
        let pod = Pod::new();
        let name = format!("etcd-{}", &uuid()[..8]);
        let hash = finish_with_input(&mut Command::new("sha1sum"), format!("lijiaob.{name}")).stdout;
        let device = format!("cali{}", &hash[..11]);
        let cleanup = Cleanup::link(&device);
        let host_end = pod.host_end();
        for change in
            [format!("{host_end} down"), format!("{host_end} name {device}"), format!("{device} up")]
        {
            run(&format!("ip link set {change}"));
        }
        Self { pod, sandbox: None, name, device, _cleanup: cleanup }
    }

    /// Its container ends and is removed, and so is the name of its network namespace.
    fn end(&mut self, docker: &FakeDockerd) {
        self.end_container(docker);
        self.pod.delete_netns();
    }

    fn end_container(&mut self, docker: &FakeDockerd) {
        let sandbox = self.sandbox.take().expect("it lives");
        let id = sandbox.id().to_owned();
        drop(sandbox);
        docker.remove_container(&id);
    }

    fn id(&self) -> &str {
        self.sandbox.as_ref().expect("it lives").id()
    }
}

fn wait_for_container(daemon: &Daemon, id: &str) {
    eventually!(daemon.ask(&["state", "--json"]).stdout.contains(id), "{id} is known");
}

/// A process that has a namespace open.
fn open_file(netns: &Path) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7<\"$1\"; exec sleep 1000000", "sh"]).arg(netns);
    spawn(&mut command)
}

/// A process with a socket that was made in a namespace, and that is not in it itself.
fn keep_socket(netns: &Path, make: fn() -> OwnedFd) -> Running {
    let netns = File::open(netns).expect("the namespace exists");
    let made = thread::spawn(move || {
        setns(netns, CloneFlags::CLONE_NEWNET).expect("it can be entered");
        make()
    });
    let socket = made.join().expect("it is made");
    // The command has the last copy of it here.
    let mut command = Command::new("sleep");
    let process = Running::spawn(command.arg("1000000").stdin(socket).stdout(Stdio::null()));
    drop(command);
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it runs");
    process
}

fn netlink_socket() -> OwnedFd {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).expect("it can be made")
}

fn tcp_socket() -> OwnedFd {
    TcpListener::bind("0.0.0.0:0").expect("it can be made").into()
}

/// A process in a mount namespace of its own, with a copy of all mounts.
fn copy_mounts() -> Running {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sleep", "1000000"]);
    spawn(&mut command)
}

fn spawn(command: &mut Command) -> Running {
    let process = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()));
    eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it runs");
    process
}

fn of_device(event: &Event, device: &str) -> bool {
    event.text("/link/ifname") == device
}

fn incidents_of(daemon: &Daemon, device: &str) -> Vec<String> {
    let all = daemon.events();
    let of_it =
        all.iter().filter(|event| event.is_incident("incident.opened", KIND) && of_device(event, device));
    of_it.map(ToString::to_string).collect()
}

fn told(daemon: &mut Daemon, device: &str) -> Event {
    daemon.wait_for(&format!("the incident of {device}"), |event| {
        event.is_incident("incident.opened", KIND) && of_device(event, device)
    })
}

/// The process that is said to keep the namespace, and how.
fn keeper(event: &Event, pid: u32) -> &Value {
    let found = event.list("/holders").iter().find(|holder| holder["pid"] == pid);
    found.unwrap_or_else(|| unreachable!("process {pid} in {event}"))
}

#[test]
fn a_device_that_remains_names_who_has_the_namespace_of_its_other_end_open_until_that_lets_go() {
    let docker = FakeDockerd::start();
    let mut pod = CalicoPod::new(&docker);
    let inum = pod.pod.inum();
    let mut daemon = impatient(&docker).start();
    wait_for_container(&daemon, pod.id());
    let holder = open_file(pod.pod.netns().path());
    pod.end(&docker);
    let event = told(&mut daemon, &pod.device);
    event.expect("/severity", "warning");
    event.expect("/link/peer/netns", inum);
    event.expect("/target/pod/name", pod.name.as_str());
    assert_eq!(keeper(&event, holder.pid())["access"], "fd", "{event}");
    let words = format!("held by sleep (pid {}) with an open file", holder.pid());
    for words in [words.as_str(), "its pod is gone", &pod.name] {
        assert!(event.text("/message").contains(words), "{words:?} in {event}");
    }
    let id = event.text("/incident/id").to_owned();
    let shown = carry_out(&daemon, &id, "orphan-veth/show-link").stdout;
    assert!(shown.contains(&pod.device) && shown.contains("link-netnsid"), "{shown}");

    // No process and no name shows the namespace to a daemon that starts now.
    let mut later = impatient(&docker).start();
    let event = told(&mut later, &pod.device);
    event.expect("/incident/found_at_start", true);
    event.expect("/link/peer/netns", inum);
    assert_eq!(keeper(&event, holder.pid())["access"], "fd", "{event}");
    let late = event.text("/incident/id").to_owned();

    drop(holder);
    resolved(&mut daemon, &id);
    resolved(&mut later, &late);
}

/// Nothing in /proc leads to the namespace. Who has only sockets of its own namespace has no part in it.
#[test]
fn a_device_that_remains_names_who_has_a_socket_of_the_namespace() {
    for (make, protocol) in [(netlink_socket as fn() -> OwnedFd, "NETLINK"), (tcp_socket, "TCP")] {
        let docker = FakeDockerd::start();
        let mut pod = CalicoPod::new(&docker);
        let inum = pod.pod.inum();
        let mut daemon = impatient(&docker).start();
        let ready = daemon.wait_for("daemon.ready", |event| event.kind() == "daemon.ready");
        if ready.text("/daemon/sources/hook.holders") != "iterators" {
            return eprintln!("skipped: the kernel does not list sockets");
        }
        wait_for_container(&daemon, pod.id());
        let holder = keep_socket(pod.pod.netns().path(), make);
        let other = keep_socket(Path::new("/proc/self/ns/net"), make);
        pod.end(&docker);
        let event = told(&mut daemon, &pod.device);
        event.expect("/link/peer/netns", inum);
        let keeper = keeper(&event, holder.pid());
        assert_eq!((&keeper["access"], &keeper["path"]), (&"socket".into(), &protocol.into()), "{event}");
        let has_other = |event: &Event| event.list("/holders").iter().any(|it| it["pid"] == other.pid());
        assert!(!has_other(&event), "{event}");
        let words = format!("held by sleep (pid {}) with a socket ({protocol})", holder.pid());
        assert!(event.text("/message").contains(&words), "{words:?} in {event}");

        // Who starts now has not seen the namespace: the socket itself tells it.
        let mut later = impatient(&docker).start();
        let late = told(&mut later, &pod.device);
        if may_ask_sockets() {
            late.expect("/link/peer/netns", inum);
            assert!(late.text("/message").contains(&format!(", {words}")), "{late}");
        } else {
            assert_eq!(late.list("/holders"), [Value::Null; 0], "{late}");
        }
        assert!(!has_other(&late), "{late}");
        let ids = [&event, &late].map(|event| event.text("/incident/id").to_owned());
        drop(holder);
        resolved(&mut daemon, &ids[0]);
        resolved(&mut later, &ids[1]);
    }
}

/// Whether no socket has a class by the control groups of its tasks, which would change if it was asked.
fn may_ask_sockets() -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").expect("it can be read");
    !groups.contains("net_cls") && !groups.contains("net_prio")
}

#[test]
fn a_device_that_remains_names_the_mount_of_the_namespace_in_another_mount_namespace() {
    let docker = FakeDockerd::start();
    let mut pod = CalicoPod::new(&docker);
    let (inum, path) = (pod.pod.inum(), pod.pod.netns().path().to_owned());
    let holder = copy_mounts();
    pod.end_container(&docker);
    // Its name stays: with the file that is a mount point, the kernel removes all mounts on it.
    run(&format!("umount {}", path.display()));
    let mut daemon = impatient(&docker).start();
    let event = told(&mut daemon, &pod.device);
    event.expect("/link/peer/netns", inum);
    let keeper = keeper(&event, holder.pid());
    assert_eq!(keeper["access"], "mount", "{event}");
    assert!(
        keeper["path"]
            .as_str()
            .is_some_and(|shown| path.ends_with(shown.rsplit('/').next().unwrap_or(shown))),
        "{event}"
    );
    let id = event.text("/incident/id").to_owned();
    drop(holder);
    resolved(&mut daemon, &id);
    std::fs::remove_file(&path).expect("its name is there");
}

#[test]
fn a_process_that_the_pod_left_in_its_network_is_named() {
    let docker = FakeDockerd::start();
    let mut pod = CalicoPod::new(&docker);
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", pod.pod.netns().path().display())).args(["sleep", "1000000"]);
    let left = spawn(&mut command);
    let mut daemon = impatient(&docker).start();
    wait_for_container(&daemon, pod.id());
    pod.end(&docker);
    let event = told(&mut daemon, &pod.device);
    assert_eq!(keeper(&event, left.pid())["access"], "netns", "{event}");
    let id = opened(&mut daemon, KIND, |event| of_device(event, &pod.device));
    drop(left);
    resolved(&mut daemon, &id);
}

#[test]
fn a_container_of_another_pod_that_entered_the_network_does_not_make_the_pod_look_alive() {
    let docker = FakeDockerd::start();
    let mut pod = CalicoPod::new(&docker);
    let (own_network, name) = (Pod::new(), format!("sniffer-{}", &uuid()[..8]));
    let other = PodSandbox::of(&own_network);
    docker.start_container_of_pod(&other, "tools", &name);
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", pod.pod.netns().path().display())).args(["sleep", "1000000"]);
    let entered = spawn(&mut command);
    other.take(entered.pid());
    let mut daemon = impatient(&docker).start();
    wait_for_container(&daemon, pod.id());
    wait_for_container(&daemon, other.id());
    assert_eq!(incidents_of(&daemon, &pod.device), [""; 0], "its pod lives");
    pod.end(&docker);
    let event = told(&mut daemon, &pod.device);
    event.expect("/target/pod/name", pod.name.as_str());
    assert_eq!(keeper(&event, entered.pid())["access"], "netns", "{event}");
    let words = format!("held by sleep (pid {}) of pod tools/{name} as its network namespace", entered.pid());
    for words in [words.as_str(), "its pod is gone"] {
        assert!(event.text("/message").contains(words), "{words:?} in {event}");
    }
    let ruled_out = event.list("/incident/ruled_out");
    assert!(!ruled_out.iter().any(|one| one.to_string().contains("any runtime")), "{event}");
    let id = event.text("/incident/id").to_owned();
    drop(entered);
    resolved(&mut daemon, &id);
}

/// The bridge plugin gives a device a random name, and no pod was ever seen behind this one.
#[test]
fn the_result_that_libcni_keeps_tells_whose_a_device_is() {
    let docker = FakeDockerd::start();
    let (mut made, mut other) = (Pod::new(), Pod::new());
    let (launch, id) = (launch().runtime(docker.runtime()), container_id());
    let results = launch.directory().join("cni/results");
    std::fs::create_dir_all(&results).expect("a directory can be made");
    let result = format!(
        r#"{{"kind":"cniCacheV1","containerId":"{id}","config":"{{}}","ifName":"eth0","networkName":"cbr0","cniArgs":[["K8S_POD_NAMESPACE","lijiaob"],["K8S_POD_NAME","etcd1-0"]],"result":{{"cniVersion":"1.0.0","interfaces":[{{"name":"cni0"}},{{"name":"{}"}},{{"name":"eth0","sandbox":"/run/netns/x"}}]}}}}"#,
        made.host_end()
    );
    std::fs::write(results.join(format!("cbr0-{id}-eth0")), result).expect("a file can be written");
    let holders = [&made, &other].map(|pod| open_file(pod.netns().path()));
    [&mut made, &mut other].into_iter().for_each(Pod::delete_netns);
    let directory = launch.directory().join("cni");
    let config = format!("[incidents]\norphan_veth_seconds = 1\n[ipam]\ndirectory = {directory:?}\n");
    let mut daemon = launch.config(&config).start();
    let event = told(&mut daemon, made.host_end());
    assert_eq!(keeper(&event, holders[0].pid())["access"], "fd", "{event}");
    // Both were looked at together.
    assert_eq!(incidents_of(&daemon, other.host_end()), [""; 0], "nothing tells that it was a pod's");
    let id = event.text("/incident/id").to_owned();
    drop(holders);
    resolved(&mut daemon, &id);
}

#[test]
fn the_device_of_a_pod_that_lives_and_those_of_others_are_none_nor_is_any_where_no_runtime_answers() {
    let docker = FakeDockerd::start();
    let lives = CalicoPod::new(&docker);
    let mut gone = CalicoPod::new(&docker);
    // A network that no pod was ever seen in.
    let other = Pod::new();
    let nowhere = "docker=/nonexistent/kevtmon-test.sock";
    let silent = launch().runtime(nowhere).config("[incidents]\norphan_veth_seconds = 1\n").start();
    let _holder = open_file(gone.pod.netns().path());
    gone.end(&docker);
    let mut daemon = impatient(&docker).start();
    told(&mut daemon, &gone.device);
    for device in [lives.device.as_str(), other.host_end()] {
        assert_eq!(incidents_of(&daemon, device), [""; 0], "{device}");
    }
    for device in [lives.device.as_str(), gone.device.as_str(), other.host_end()] {
        assert_eq!(incidents_of(&silent, device), [""; 0], "{device}");
    }
}

#[test]
fn where_there_is_no_runtime_a_device_without_a_process_behind_it_is_likely_left() {
    let (left, lives) = (CalicoPod::unmanaged(), CalicoPod::unmanaged());
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", lives.pod.netns().path().display())).args(["sleep", "1000000"]);
    let _lives_there = spawn(&mut command);
    let mut daemon = launch().config("[incidents]\norphan_veth_seconds = 1\n").start();
    let event = told(&mut daemon, &left.device);
    event.expect("/incident/confidence", "likely");
    assert!(event.text("/message").contains("no process is behind it"), "{event}");
    // Both were looked at together.
    assert_eq!(incidents_of(&daemon, &lives.device), [""; 0]);
    let id = event.text("/incident/id").to_owned();
    drop(left);
    resolved(&mut daemon, &id);
}
