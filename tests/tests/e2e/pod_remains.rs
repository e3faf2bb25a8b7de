//! What remains of pods, found by the state of the node: mounts below a kubelet's root directory, control groups, processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::advice::{carry_out, incident, opened};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, Launch, POLL_EACH_SECOND, kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::process::{Running, attempt, comm};
use kevtmon_tests::reaper::Cleanup;
use kevtmon_tests::unique;
use serde_json::Value;

/// Something may remain for a second only, and no unmount is observed.
const SOON: &str = "[incidents]\nvolume_busy_mounted_seconds = 1\npod_stuck_terminating_seconds = 1\n\
                    [hooks]\numount = \"off\"\nremove = \"off\"\n";
const STUCK: &str = "pod-stuck-terminating";
const BUSY: &str = "volume-busy";

/// The root directory of a kubelet.
struct Kubelet {
    scratch: Scratch,
}

impl Kubelet {
    fn new() -> Self {
        Self { scratch: Scratch::new() }
    }

    fn root(&self) -> PathBuf {
        self.scratch.path().join("kubelet")
    }

    /// Makes the directory of a pod whose containers were started.
    fn start(&self, uid: &str) -> PathBuf {
        let directory = self.root().join("pods").join(uid);
        std::fs::create_dir_all(directory.join("containers/etcd/0a1b2c3d")).expect("a directory can be made");
        directory
    }

    /// Mounts a volume of a pod.
    fn mount(&self, uid: &str) -> Mount {
        Mount::at(&self.root().join("pods").join(uid).join("volumes/kubernetes.io~rbd/data"))
    }

    fn launch(&self) -> Launch {
        launch().config(&format!("{}{POLL_EACH_SECOND}{SOON}", kubelet_roots(&self.root())))
    }
}

/// A process with its current directory in a mount.
fn holder(mount: &Mount) -> Running {
    let mut command = Command::new("sleep");
    Running::spawn(command.arg("1000000").current_dir(mount.point()).stdin(Stdio::null()))
}

fn is_of(event: &Event, uid: &str) -> bool {
    event.text("/target/pod/uid") == uid
}

/// Whether it was there before the daemon was.
fn was_there(event: &Event) -> bool {
    event.get("/incident/found_at_start") == Some(&Value::Bool(true))
}

fn closed(daemon: &mut Daemon, id: &str) -> Event {
    daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    })
}

/// Waits until an incident says so.
fn says(daemon: &Daemon, id: &str, words: &str) {
    eventually!(
        incident(daemon, id).text("/summary").contains(words),
        "{words:?} in {}",
        incident(daemon, id)
    );
}

#[test]
fn a_volume_that_stays_mounted_after_the_containers_of_its_pod_is_found_without_any_hook() {
    let dockerd = Dockerd::shared();
    let kubelet = Kubelet::new();
    let [uid, other, third] = [uuid(), uuid(), uuid()];
    for uid in [&uid, &other, &third] {
        let _ = kubelet.start(uid);
    }
    // Below what will be mounted there.
    let below = kubelet.root().join("pods").join(&uid).join("volumes/kubernetes.io~rbd/data/below");
    std::fs::create_dir_all(&below).expect("a directory can be made");
    let mount = kubelet.mount(&uid);
    let holder = holder(&mount);
    let script = "trap 'exit 0' TERM; while :; do sleep 1; done";
    let mut sandbox = Container::sandbox_of(dockerd, "etcd1-0", &uid, &[], script);
    // The other one completes, as that of a job: its directory stays.
    let mut completed = Container::sandbox_of(dockerd, "job-7x", &other, &[], script);
    // By a pod that runs, the runtime is known to be that of this kubelet.
    let _runs = Container::sandbox_of(dockerd, "web-0", &third, &[], script);
    let mut daemon = kubelet.launch().runtime(dockerd.runtime()).start();
    completed.end(&["kill"]);
    sandbox.end(&["kill"]);
    let busy = opened(&mut daemon, BUSY, |event| is_of(event, &uid));
    let stuck = opened(&mut daemon, STUCK, |event| is_of(event, &uid));
    let words = format!("held by sleep (pid {}) as its current directory", holder.pid());
    says(&daemon, &busy, &words);
    let found = incident(&daemon, &busy);
    let summary = "volume data (kubernetes.io/rbd) of pod lijiaob/etcd1-0 is still mounted, though no container of the pod \
                   has run for 1 s: ";
    assert!(found.text("/summary").starts_with(summary), "{found}");
    found.expect("/confidence", "likely");
    let found = incident(&daemon, &stuck);
    let summary = "pod lijiaob/etcd1-0 is still on this node, though no container of it has run for 1 s: volume data \
                   (kubernetes.io/rbd) is mounted";
    found.expect("/summary", summary);
    found.expect("/confidence", "likely");
    eventually!(
        incident(&daemon, &stuck).list("/caused_by").iter().any(|cause| *cause == *busy),
        "what is behind it is linked"
    );
    let shown = carry_out(&daemon, &stuck, "pod-stuck-terminating/show-users").stdout;
    assert!(shown.contains(&holder.pid().to_string()), "{shown}");
    let told = carry_out(&daemon, &stuck, "pod-stuck-terminating/tell-pod").stdout;
    assert!(told.contains("is still mounted"), "{told}");
    // A daemon that starts now finds both.
    let mut later = kubelet.launch().runtime(dockerd.runtime()).start();
    let _ = opened(&mut later, STUCK, |event| is_of(event, &uid) && was_there(event));
    let _ = opened(&mut later, BUSY, |event| is_of(event, &uid) && was_there(event));
    drop(later);
    drop(holder);
    let _ = mount.umount().succeeded("umount");
    assert!(closed(&mut daemon, &busy).text("/message").contains(" is still mounted, "));
    says(
        &daemon,
        &stuck,
        "the directory of volume data (kubernetes.io/rbd) is not empty, though nothing is mounted there",
    );
    std::fs::remove_dir(&below).expect("it is empty");
    closed(&mut daemon, &stuck).expect("/incident/close_reason", "resolved");
    let of_other = daemon
        .events()
        .into_iter()
        .filter(|event| event.kind().starts_with("incident.") && is_of(event, &other));
    assert_eq!(of_other.count(), 0, "a pod that has completed is none");
}

#[test]
fn the_volumes_of_pods_that_run_or_are_about_to_start_raise_nothing() {
    let dockerd = Dockerd::shared();
    let kubelet = Kubelet::new();
    let [runs, new, over] = [uuid(), uuid(), uuid()];
    for uid in [&runs, &over] {
        let _ = kubelet.start(uid);
    }
    let mounts = [&runs, &new, &over].map(|uid| kubelet.mount(uid));
    let _sandbox = Container::sandbox_of(dockerd, "etcd1-0", &runs, &[], "sleep 1000000");
    let mut daemon = kubelet.launch().runtime(dockerd.runtime()).start();
    // The one that is over is found, and with it the others were looked at.
    let id = opened(&mut daemon, BUSY, |event| is_of(event, &over));
    let _ = mounts[2].umount().succeeded("umount");
    let _ = closed(&mut daemon, &id);
    let of_others = daemon
        .events()
        .into_iter()
        .filter(|event| event.kind().starts_with("incident.") && (is_of(event, &runs) || is_of(event, &new)));
    assert_eq!(of_others.count(), 0);
}

/// Freezes a process by the control group of v1, in which no signal reaches it until it is thawed.
struct Frozen {
    directory: PathBuf,
    _cleanup: Cleanup,
}

impl Frozen {
    /// None where v1 is not mounted.
    fn new(pid: u32) -> Option<Self> {
        let hierarchy = Path::new("/sys/fs/cgroup/freezer");
        hierarchy.join("cgroup.procs").exists().then_some(())?;
        let directory = hierarchy.join(unique::name("kvz"));
        std::fs::create_dir(&directory).expect("a control group can be made");
        let shown = directory.display().to_string();
        let cleanup = Cleanup::script(&format!(
            "echo THAWED >'{shown}/freezer.state'; for i in 1 2 3 4 5 6 7 8 9; do rmdir '{shown}' && break; sleep 0.2; \
             done 2>/dev/null\n"
        ));
        let frozen = Self { directory, _cleanup: cleanup };
        std::fs::write(frozen.directory.join("cgroup.procs"), pid.to_string()).expect("it can be moved");
        frozen.set("FROZEN");
        eventually!(frozen.state() == "FROZEN", "it is frozen");
        Some(frozen)
    }

    fn state(&self) -> String {
        let state = std::fs::read_to_string(self.directory.join("freezer.state")).unwrap_or_default();
        state.trim_end().to_owned()
    }

    fn set(&self, state: &str) {
        std::fs::write(self.directory.join("freezer.state"), state).expect("it can be set");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.set("THAWED");
    }
}

#[test]
fn a_process_of_a_pod_that_was_killed_and_waits_in_the_kernel_is_named_until_it_ends() {
    let kubelet = Kubelet::new();
    let network = Pod::new();
    let sandbox = PodSandbox::of(&network);
    let _ = kubelet.start(sandbox.uid());
    let mut daemon = kubelet.launch().start();
    let mut first = Command::new("unshare");
    first.args(["--pid", "--fork", "--kill-child", "sleep", "1000000"]);
    let first = Running::spawn(first.stdin(Stdio::null()));
    let child = || {
        let children =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", first.pid())).unwrap_or_default();
        children.trim().parse::<u32>().ok().filter(|pid| comm(*pid).as_deref() == Some("sleep"))
    };
    eventually!(child().is_some(), "the first process of a namespace is there");
    let pid = child().expect("it is there");
    sandbox.take(pid);
    let Some(frozen) = Frozen::new(pid) else {
        return eprintln!("not tested: without control groups of v1 no process can be kept from its end");
    };
    let _ = attempt(&["kill", "-KILL", &pid.to_string()]).succeeded("kill");
    let id = opened(&mut daemon, STUCK, |event| is_of(event, sandbox.uid()));
    let found = incident(&daemon, &id);
    let summary = format!(
        "a container of pod {} does not end: process sleep (pid {pid}) is to end (SIGKILL) and does not, as it waits in the kernel",
        sandbox.uid()
    );
    found.expect("/summary", summary);
    found.expect("/confidence", "certain");
    drop(frozen);
    closed(&mut daemon, &id).expect("/incident/close_reason", "resolved");
}
