//! Mounts of containers and of pods' volumes that somebody else still has after the host has unmounted them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::actor::Actor;
use kevtmon_tests::advice::{carry_out, incident, is_understood, not_carried_out, offered, opened, resolved};
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, POLL_EACH_SECOND, kubelet_roots, launch, program};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::kernel;
use kevtmon_tests::loop_device::LoopDevice;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::podman::Podman;
use kevtmon_tests::process::{Running, apart, attempt, comm, first_of_pid_namespace, run};
use serde_json::Value;

const KIND: &str = "mount-leak";

/// A kubelet's root directory, and mounts are left soon.
fn config(root: &Path) -> String {
    format!("{}\n{POLL_EACH_SECOND}[incidents]\nmount_leak_seconds = 1\n", kubelet_roots(root))
}

/// Where a kubelet has a volume of a new pod.
fn volume_below(root: &Path) -> (PathBuf, String) {
    let uid = uuid();
    (root.join(format!("pods/{uid}/volumes/kubernetes.io~glusterfs/data")), uid)
}

fn of_process(daemon: &mut Daemon, pid: u32) -> String {
    opened(daemon, KIND, |event| event.number("/actor/pid") == Some(pid.into()))
}

fn of_container(daemon: &mut Daemon, container: &Container<'_>) -> String {
    opened(daemon, KIND, |event| event.text("/actor/container/id") == container.id())
}

fn closed(daemon: &mut Daemon, id: &str) -> Event {
    daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    })
}

/// What `holders --leaks` tells of the mounts that somebody has, by the process that does.
fn leaks_of(arguments: &[&str], pids: &[u32]) -> Vec<Value> {
    let mut words = vec![program().into_os_string(), "holders".into(), "--leaks".into(), "--json".into()];
    words.extend(arguments.iter().map(Into::into));
    let ran = attempt(&words);
    // Where not even root may read process 1, the answer is incomplete.
    assert!(matches!(ran.status.code(), Some(0 | 2)), "{}{}", ran.stdout, ran.stderr);
    let answer: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let leaks = answer["leaks"].as_array().expect("a list").clone();
    let is_of = |leak: &Value| pids.iter().any(|pid| leak["holder"]["pid"].as_u64() == Some((*pid).into()));
    leaks.into_iter().filter(is_of).collect()
}

#[test]
fn a_fuse_volume_that_three_containers_have_lives_on_and_each_of_them_is_named() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let (point, uid) = volume_below(&root);
    let mut daemon = launch().joining(dockerd.runtime()).config(&config(&root)).start();
    let mut server = Actor::start();
    server.act(&format!("serve {}", point.display()));
    let bind = format!("{}:/mem", point.display());
    let mut holders = [(); 3].map(|()| Container::idle(dockerd, &["-v", &bind]));
    daemon.wait_for_mount_inventory();
    run(&format!("umount {}", point.display()));
    let ids = holders.each_ref().map(|holder| of_container(&mut daemon, holder));
    for (id, holder) in ids.iter().zip(&holders) {
        let open = incident(&daemon, id);
        let summary = open.text("/summary");
        let words = [
            format!(
                "container {} still has volume data (kubernetes.io/glusterfs) of pod {uid}",
                holder.name()
            ),
            " mounted at /mem, though the host has unmounted it".to_owned(),
            format!("it came by {} (rprivate)", point.display()),
            "its file server is not asked to end".to_owned(),
        ];
        assert!(words.iter().all(|words| summary.contains(words)), "{words:?} in {summary}");
        assert_eq!((open.text("/severity"), open.text("/confidence")), ("info", "certain"), "{open}");
        assert_eq!(open.number("/count"), Some(1));
        assert_eq!(open.text("/leaks/0/path"), point.to_string_lossy());
        assert_eq!(open.text("/leaks/0/propagation"), "private");
    }
    assert_eq!(daemon.metrics().sum("kevtmon_self_pins", &[]), Some(0.0));

    // Without a daemon, and with the names and the certainty of one.
    let pids = holders.each_ref().map(Container::pid);
    let alone = ["--socket", "/nonexistent", "--state-dir", "/nonexistent"];
    let socket = daemon.socket().to_string_lossy().into_owned();
    for (arguments, confidence) in [(&alone[..], "likely"), (&["--socket", &socket], "certain")] {
        let found = leaks_of(arguments, &pids);
        assert_eq!(found.len(), 3, "{found:?}");
        for leak in &found {
            assert_eq!(leak["mount"]["bind"]["source"], point.to_string_lossy().as_ref(), "{leak}");
            assert_eq!(leak["mount"]["identity"]["mount_point"], "/mem");
            let is_known = leak["mount"]["confidence"] == confidence;
            assert!(
                is_known && leak["mount"]["volume"]["pod_uid"] == uid.as_str() || confidence == "likely",
                "{leak}"
            );
        }
    }
    // By state alone.
    let mut later = launch().joining(dockerd.runtime()).config(&config(&root)).start();
    let found = holders.each_ref().map(|holder| of_container(&mut later, holder));
    let open = incident(&later, &found[0]);
    assert_eq!(open.text("/confidence"), "likely");
    assert!(open.text("/summary").contains("still has what is likely volume data "), "{open}");

    let _ = carry_out(&daemon, &ids[0], "mount-leak/show-leaks");
    let _ = carry_out(&daemon, &ids[0], "mount-leak/restart-by-docker");
    resolved(&mut daemon, &ids[0]);
    for (id, holder) in ids.iter().zip(&mut holders).skip(1) {
        holder.end(&["rm", "-f"]);
        closed(&mut daemon, id).expect("/incident/close_reason", "subject-gone");
        closed(&mut later, &found[ids.iter().position(|known| known == id).expect("it is one")]);
    }
    assert_eq!(daemon.metrics().sum("kevtmon_self_pins", &[]), Some(0.0));
}

#[test]
fn the_shared_memory_of_a_container_that_has_ended_is_left_in_one_that_has_the_runtimes_directory() {
    let dockerd = Dockerd::start();
    let scratch = Scratch::new();
    // Docker refuses this for its own directory by name.
    let alias = scratch.path().join("docker");
    std::os::unix::fs::symlink(dockerd.directory().join("data"), &alias).expect("a link can be made");
    // Its root directory goes everywhere: this Docker removes the directory that it was mounted on.
    let mut web = Container::idle(&dockerd, &["--ipc", "shareable"]);
    let bind = format!("{}:/host:rprivate", alias.display());
    let agent = Container::idle(&dockerd, &["-v", &bind]);
    let mut daemon = launch().joining(dockerd.runtime()).config(&config(scratch.path())).start();
    daemon.wait_for_mount_inventory();
    let is_of_agent = |event: &Event| event.text("/actor/container/id") == agent.id();
    assert!(!daemon.find(&["incidents", "--kind", KIND]).iter().any(is_of_agent));
    web.end(&["kill"]);
    let id = of_container(&mut daemon, &agent);
    let open = incident(&daemon, &id);
    let parts: Vec<(&str, &str)> = open
        .list("/leaks")
        .iter()
        .filter_map(|leak| Some((leak["part"].as_str()?, leak["container"]["id"].as_str()?)))
        .collect();
    assert_eq!(parts, [("shm", web.id())], "{open}");
    assert_eq!((open.text("/confidence"), open.number("/count")), ("certain", Some(1)), "{open}");
    let words = format!("the shared memory of container {} mounted at /host/", web.name());
    assert!(open.text("/summary").contains(&words), "{open}");
    // With the directory that it was mounted on, the copy goes.
    web.end(&["rm"]);
    resolved(&mut daemon, &id);
}

#[test]
fn what_is_in_use_or_goes_with_the_mount_of_the_host_is_no_incident() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let root = Mount::at(&scratch.path().join("kubelet"));
    run(&format!("mount --make-shared {}", root.point().display()));
    let volume = || {
        let (point, uid) = volume_below(root.point());
        (Mount::at(&point), uid)
    };
    let [(stays, _), (shared, _), (used, uid), (left, _)] = [(); 4].map(|()| volume());
    let bind = |volume: &Mount, options: &str| format!("{}:/mem{options}", volume.point().display());
    let of_host = Container::idle(dockerd, &["-v", &bind(&stays, "")]);
    let exporter = Container::idle(dockerd, &["-v", &format!("{}:/kubelet:rslave", root.point().display())]);
    let group = dockerd.pod_cgroup(&uid);
    let of_pod = Container::idle(dockerd, &["-v", &bind(&used, ""), "--cgroup-parent", &group]);
    let beside = Container::idle(dockerd, &["-v", &bind(&used, "")]);
    let holder = Container::idle(dockerd, &["-v", &bind(&left, "")]);
    let mut daemon = launch().joining(dockerd.runtime()).config(&config(root.point())).start();
    daemon.wait_for_mount_inventory();
    for volume in [&shared, &used] {
        assert!(volume.umount().status.success());
    }
    daemon.wait_for_mount_inventory();
    // What is left is told after what would have been told before.
    assert!(left.umount().status.success());
    let _ = of_container(&mut daemon, &holder);
    let quiet = [&of_host, &exporter, &of_pod, &beside];
    let of_quiet = |event: &&Event| {
        quiet.iter().any(|container| event.text("/actor/container/id") == container.id())
            && event.kind() == "incident.opened"
            && event.text("/incident/kind") == KIND
    };
    let told: Vec<Event> = daemon.events().iter().filter(of_quiet).cloned().collect();
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn a_process_with_mounts_of_its_own_is_named_and_by_its_end_they_are_gone() {
    let volume = Mount::volume();
    let mut daemon = launch().config(&config(volume.kubelet_root())).start();
    let holder = apart();
    daemon.wait_for_mount_inventory();
    assert!(volume.umount().status.success(), "a private copy refuses nothing");
    let id = of_process(&mut daemon, holder.pid());
    let open = incident(&daemon, &id);
    let begin = format!("sleep (pid {}) still has volume data (kubernetes.io/rbd) of pod ", holder.pid());
    assert!(open.text("/summary").starts_with(&begin), "{open}");
    assert_eq!(open.text("/confidence"), "certain");

    // The next run has not seen what the host had.
    daemon.stop();
    let mut next = launch().config(&config(volume.kubelet_root())).on_state_of(&daemon).start();
    next.wait_for_mount_inventory();
    let open = incident(&next, &id);
    assert!(!open.has("/closed") && open.text("/confidence") == "certain", "{open}");
    let kill = format!("kill {}", holder.pid());
    assert_eq!(offered(&open, "mount-leak/end-process"), Some(kill));
    let _ = carry_out(&next, &id, "mount-leak/end-process");
    resolved(&mut next, &id);
}

#[test]
fn a_staged_volume_and_a_mount_of_the_host_that_somebody_still_has_keep_their_devices() {
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let directory = root.join("plugins/kubernetes.io/csi/rbd.csi.ceph.com/0a1b2c3d");
    let (staged, other) = (directory.join("globalmount"), scratch.path().join("backup"));
    std::fs::create_dir_all(&directory).expect("a directory can be made");
    let devices = [&staged, &other].map(|point| {
        let device = LoopDevice::on(&point.with_extension("image"), 16);
        device.mount(point);
        device
    });
    // As a kubelet writes it, and removes it before anybody could look at what is left.
    let data = directory.join("vol_data.json");
    let text = r#"{"driverName":"rbd.csi.ceph.com","volumeHandle":"0001-0009-rook-ceph"}"#;
    std::fs::write(&data, text).expect("a file can be written");
    let mut daemon = launch().config(&config(&root)).start();
    let exporter = apart();
    daemon.wait_for_mount_inventory();
    run(&format!("umount {}", staged.display()));
    std::fs::remove_file(data).expect("a file can be removed");
    let id = of_process(&mut daemon, exporter.pid());
    let open = incident(&daemon, &id);
    let words = format!(
        "sleep (pid {}) still has staged volume 0001-0009-rook-ceph (rbd.csi.ceph.com) mounted at {}, though the host has \
         unmounted it; its device {} (",
        exporter.pid(),
        staged.display(),
        devices[0].name(),
    );
    assert!(open.text("/summary").starts_with(&words), "{words} in {open}");
    assert!(open.text("/summary").contains(") stays in use"), "{open}");
    assert_eq!((open.text("/severity"), open.text("/confidence")), ("warning", "certain"), "{open}");
    assert_eq!(open.text("/leaks/0/path"), staged.to_string_lossy());

    // Without a daemon, where it is alone tells what it is.
    let configuration = scratch.path().join("kevtmon.toml");
    std::fs::write(&configuration, kubelet_roots(&root)).expect("a file can be written");
    let configuration = configuration.to_string_lossy().into_owned();
    let alone = ["--socket", "/nonexistent", "--state-dir", "/nonexistent", "--config", &configuration];
    let [leak] = &leaks_of(&alone, &[exporter.pid()])[..] else { panic!("one is left") };
    assert_eq!(leak["mount"]["staged"]["plugin"], "rbd.csi.ceph.com", "{leak}");
    assert_eq!(leak["mount"]["confidence"], "likely", "{leak}");

    run(&format!("umount {}", other.display()));
    eventually!(incident(&daemon, &id).number("/count") == Some(2), "the other one is found");
    let socket = daemon.socket().to_string_lossy().into_owned();
    let known = leaks_of(&["--socket", &socket], &[exporter.pid()]);
    let of_host = known.iter().find(|leak| leak["mount"]["path"] == other.to_string_lossy().as_ref());
    let of_host = of_host.unwrap_or_else(|| panic!("{known:?}"));
    assert_eq!(of_host["mount"]["confidence"], "certain", "{of_host}");
    drop(exporter);
    resolved(&mut daemon, &id);
}

#[test]
fn the_first_process_of_a_pid_namespace_is_ended_by_a_signal_that_it_cannot_ignore() {
    let volume = Mount::volume();
    let mut daemon = launch().config(&config(volume.kubelet_root())).start();
    let script = "exec unshare --mount --propagation private sleep 1000000;";
    let (parent, first) = first_of_pid_namespace(script, volume.point());
    daemon.wait_for_mount_inventory();
    assert!(volume.umount().status.success(), "a private copy refuses nothing");
    let id = of_process(&mut daemon, first);
    let kill = format!("kill -KILL {first}");
    assert_eq!(offered(&incident(&daemon, &id), "mount-leak/end-container"), Some(kill));
    let _ = carry_out(&daemon, &id, "mount-leak/end-container");
    resolved(&mut daemon, &id);
    drop(parent);
}

#[test]
fn a_container_of_podman_is_restarted_by_podman() {
    let Some(podman) = Podman::start() else {
        return not_carried_out("podman restart");
    };
    let volume = Mount::volume();
    let bind = format!("{}:/mem", volume.point().display());
    let container = podman.start_container(&["-v", &bind], &["sleep", "1000000"]);
    let runtime = format!("docker={}", podman.socket().display());
    let mut daemon = launch().joining(runtime).config(&config(volume.kubelet_root())).start();
    daemon.wait_for_mount_inventory();
    assert!(volume.umount().status.success(), "a private copy refuses nothing");
    let id = opened(&mut daemon, KIND, |event| event.text("/actor/container/id") == container);
    incident(&daemon, &id).expect("/leaks/0/bind/destination", "/mem");
    let _ = carry_out(&daemon, &id, "mount-leak/restart-by-podman");
    resolved(&mut daemon, &id);
}

#[test]
fn what_a_user_has_in_namespaces_of_his_own_is_one_incident_of_his() {
    let volume = Mount::volume();
    let mut daemon = launch().config(&config(volume.kubelet_root())).start();
    let unshare = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=54321", "--regid=54321", "--clear-groups"]);
        command.args(["unshare", "--user", "--map-root-user", "--mount", "sleep", "1000000"]);
        let process = Running::spawn(command.stdin(Stdio::null()));
        eventually!(comm(process.pid()).as_deref() == Some("sleep"), "it is in its namespaces");
        process
    };
    let processes = [(); 3].map(|()| unshare());
    daemon.wait_for_mount_inventory();
    assert!(volume.umount().status.success());
    let id = opened(&mut daemon, KIND, |event| event.number("/actor/uid") == Some(54321));
    eventually!(incident(&daemon, &id).number("/count") == Some(3), "all of them are found");
    let open = incident(&daemon, &id);
    assert_eq!(open.text("/severity"), "info");
    let begin = "a process in another user namespace (uid 54321, pid ";
    assert!(open.text("/summary").starts_with(begin), "{open}");
    open.expect_none("/target");
    drop(processes);
    resolved(&mut daemon, &id);
}

#[test]
fn a_service_with_mounts_of_its_own_is_restarted() {
    let groups: Vec<Cgroup> = Hierarchy::all().into_iter().map(Cgroup::of_service).collect();
    let volume = Mount::volume();
    let mut daemon = launch().config(&config(volume.kubelet_root())).start();
    let holder = apart();
    groups.iter().for_each(|group| group.take(holder.pid()));
    daemon.wait_for_mount_inventory();
    assert!(volume.umount().status.success());
    let id = of_process(&mut daemon, holder.pid());
    let restart = offered(&incident(&daemon, &id), "mount-leak/restart-unit").expect("of the unit");
    let of_unit = |group: &Cgroup| restart == format!("systemctl restart {}", group.name());
    assert!(groups.iter().any(of_unit), "{restart}");
    let unreachable = ["Failed to connect to bus", "not found"];
    let _ = is_understood(&daemon, &id, "mount-leak/restart-unit", &unreachable);
    drop(holder);
    resolved(&mut daemon, &id);
}

#[test]
fn a_container_of_the_cri_is_stopped_and_a_pod_deleted() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let dockerd = Dockerd::shared();
    let name = format!("exporter-{}", &uuid()[..8]);
    let volume = Mount::volume();
    let bind = format!("{}:/mem", volume.point().display());
    let container = Container::sandbox(dockerd, &name, &["-v", &bind], "exec sleep 1000000");
    let runtime = dockerd.runtime();
    let mut daemon = launch().joining(runtime).config(&config(volume.kubelet_root())).start();
    let holder = apart();
    sandbox.take(holder.pid());
    daemon.wait_for_mount_inventory();
    assert!(volume.umount().status.success());
    let id = of_process(&mut daemon, holder.pid());
    let stop = format!("crictl stop {}", sandbox.id());
    assert_eq!(offered(&incident(&daemon, &id), "mount-leak/stop-by-crictl"), Some(stop));
    let _ = is_understood(&daemon, &id, "mount-leak/stop-by-crictl", &["connect"]);
    drop(holder);
    resolved(&mut daemon, &id);

    let id = of_container(&mut daemon, &container);
    let delete = format!("kubectl -n lijiaob delete pod {name}");
    assert_eq!(offered(&incident(&daemon, &id), "mount-leak/delete-pod"), Some(delete));
    let _ = is_understood(&daemon, &id, "mount-leak/delete-pod", &["127.0.0.1:1 was refused"]);
}

#[test]
fn a_namespace_that_only_an_open_file_keeps_is_not_taken_to_be_gone_with_its_last_process() {
    if !kernel::is_since(6, 12) {
        return kernel::skip("the kernel lists no namespaces without a process before Linux 6.12", true);
    }
    let volume = Mount::volume();
    let mut daemon = launch().config(&config(volume.kubelet_root())).start();
    let holder = apart();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7<\"$1\"; exec sleep 1000000", "sh"]);
    command.arg(format!("/proc/{}/ns/mnt", holder.pid())).stdin(Stdio::null());
    let keeper = Running::spawn(&mut command);
    eventually!(comm(keeper.pid()).as_deref() == Some("sleep"), "it has the namespace open");
    daemon.wait_for_mount_inventory();
    assert!(volume.umount().status.success());
    let id = of_process(&mut daemon, holder.pid());
    drop(holder);
    let words = "no process is left in that mount namespace: an open file or a mount keeps it";
    eventually!(incident(&daemon, &id).text("/summary").contains(words), "it is there still");
    let open = incident(&daemon, &id);
    assert!(!open.has("/closed") && offered(&open, "mount-leak/end-process").is_none(), "{open}");
    drop(keeper);
    resolved(&mut daemon, &id);
}
