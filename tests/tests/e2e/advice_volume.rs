//! The advice on a busy volume, carried out as it is printed: what is said to free it frees it, and no command waits for a
//! file server that is gone.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::advice::{carry_out, incident, is_understood, not_carried_out, offered, opened, resolved};
use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::fuse::mount_halting;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::podman::Podman;
use kevtmon_tests::process::{Running, attempt, comm, copy_program, hold_by_cwd, run};

/// Has an unmount of the volume refused.
fn refuse(daemon: &mut Daemon, volume: &Mount) -> String {
    volume.umount_refused();
    of_path(daemon, volume.point())
}

/// The incident of a volume at this path.
fn of_path(daemon: &mut Daemon, path: &Path) -> String {
    let path = path.to_string_lossy().into_owned();
    opened(daemon, "volume-busy", |event| event.text("/mount/path") == path)
}

/// A kubelet's root directory whose mounts reach containers, and the volume of a pod below it. The volume is unmounted
/// first.
fn shared_volume(scratch: &Scratch) -> (Mount, Mount) {
    let root = Mount::at(&scratch.path().join("kubelet"));
    run(&format!("mount --make-shared {}", root.point().display()));
    let volume = Mount::at(&root.point().join(format!("pods/{}/volumes/kubernetes.io~rbd/data", uuid())));
    (root, volume)
}

/// What gives a container the root directory.
fn bind_of(root: &Mount) -> String {
    format!("{}:/kubelet:rslave", root.point().display())
}

/// Where such a container has the volume.
fn inside(root: &Mount, volume: &Mount) -> String {
    let below = volume.point().strip_prefix(root.point()).expect("below the root directory");
    format!("/kubelet/{}", below.display())
}

#[test]
fn a_process_that_holds_a_volume_is_named_only_while_it_runs() {
    const END: &str = "volume-busy/end-process";
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    let id = refuse(&mut daemon, &volume);
    let users = carry_out(&daemon, &id, "volume-busy/show-users");
    assert!(users.stdout.contains(&holder.pid().to_string()), "{}{}", users.stdout, users.stderr);
    let kill = format!("kill {}", holder.pid());
    eventually!(offered(&incident(&daemon, &id), END).as_ref() == Some(&kill), "who holds it is known");
    let _ = carry_out(&daemon, &id, "volume-busy/end-process");
    eventually!(offered(&incident(&daemon, &id), END).is_none(), "no command names a process that has ended");
    assert!(!daemon.ask(&["why", &id]).succeeded("why").stdout.contains(&kill));
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
}

#[test]
fn each_of_two_containers_that_hold_a_volume_is_made_to_let_go() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let (root, volume) = shared_volume(&scratch);
    let (bind, inside) = (bind_of(&root), inside(&root, &volume));
    let script = format!("[ -e /left ] || {{ touch /left; cd {inside}; }}; exec sleep 1000000");
    let containers = [(); 2].map(|()| Container::start(dockerd, &["-v", &bind], &["sh", "-c", &script]));
    for container in &containers {
        eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");
    }
    let mut daemon = launch().joining(dockerd.runtime()).config(&kubelet_roots(root.point())).start();
    let id = refuse(&mut daemon, &volume);
    let restarts = |daemon: &Daemon| {
        let steps = incident(daemon, &id).list("/advice").to_vec();
        steps.into_iter().filter(|step| step["form"] == "restart-by-docker").collect::<Vec<_>>()
    };
    eventually!(restarts(&daemon).len() == 2, "both hold it: {}", incident(&daemon, &id));
    for step in restarts(&daemon) {
        assert!(
            step["text"].as_str().is_some_and(|text| text.contains("of 2 found: each of them")),
            "{step}"
        );
    }
    let _ = carry_out(&daemon, &id, "volume-busy/restart-by-docker");
    assert!(!volume.umount().status.success(), "the other one holds it still");
    eventually!(restarts(&daemon).len() == 1, "the first has let go: {}", incident(&daemon, &id));
    let _ = carry_out(&daemon, &id, "volume-busy/restart-by-docker");
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
}

#[test]
fn a_process_that_has_let_go_of_a_volume_is_not_to_be_ended() {
    const END: &str = "volume-busy/end-process";
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let mut command = Command::new("sh");
    command.args(["-c", "read -r word && cd / && read -r word"]).current_dir(volume.point());
    let mut holder = Running::spawn(command.stdin(Stdio::piped()));
    let id = refuse(&mut daemon, &volume);
    let kill = format!("kill {}", holder.pid());
    eventually!(offered(&incident(&daemon, &id), END).as_ref() == Some(&kill), "who holds it is known");
    assert!(daemon.ask(&["why", &id]).succeeded("why").stdout.contains(&kill));

    let mut input = holder.child().stdin.take().expect("standard input is a pipe");
    input.write_all(b"go\n").expect("it reads");
    let cwd = format!("/proc/{}/cwd", holder.pid());
    eventually!(std::fs::read_link(&cwd).is_ok_and(|at| at == Path::new("/")), "it has left");
    assert!(offered(&incident(&daemon, &id), END).is_none(), "it does not hold it any more");
    let why = daemon.ask(&["why", &id]).succeeded("why");
    assert!(!why.stdout.contains(&kill), "{}", why.stdout);
    let remark = format!("process {} has ended, or is no longer in what it was found in", holder.pid());
    assert!(why.stderr.contains(&remark), "{}", why.stderr);
    assert!(holder.ended().is_none());
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
}

#[test]
fn what_is_mounted_below_a_volume_is_unmounted_first() {
    let volume = Mount::volume();
    let child = Mount::at(&volume.point().join("a child"));
    let mut daemon = launch().kubelet(&volume).start();
    let id = refuse(&mut daemon, &volume);
    let below = format!("umount '{}'", child.point().display());
    eventually!(
        offered(&incident(&daemon, &id), "volume-busy/unmount").as_ref() == Some(&below),
        "it is found"
    );
    let _ = carry_out(&daemon, &id, "volume-busy/unmount");
    assert!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
}

/// Waits until the mount has been detached, and its end is told as that.
fn expect_detached(daemon: &mut Daemon, id: &str, holder: u32) {
    let closed = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/close_reason", "detached");
    assert!(closed.text("/incident/summary").contains(&format!("(pid {holder})")), "{closed}");
    eventually!(incident(daemon, id).list("/advice").is_empty(), "nothing is left to be done");
}

#[test]
fn no_command_waits_for_a_file_server_that_does_not_answer() {
    let other = Mount::volume();
    let path = other.kubelet_root().join(format!("pods/{}/volumes/kubernetes.io~glusterfs/web", uuid()));
    let server = mount_halting(&path);
    let mut daemon = launch().kubelet(&other).start();
    let holder = hold_by_cwd(&path);
    let refused = attempt(&["umount".as_ref(), path.as_os_str()]);
    assert!(!refused.status.success(), "it is held");
    let id = of_path(&mut daemon, &path);
    eventually!(
        incident(&daemon, &id).to_string().contains(&holder.pid().to_string()),
        "its holder is found"
    );
    server.halt();
    let users = carry_out(&daemon, &id, "volume-busy/show-users").stdout;
    assert!(users.contains(&holder.pid().to_string()), "{users}");
    let _ = carry_out(&daemon, &id, "volume-busy/detach");
    assert_eq!(server.asked_in_vain(), 0, "somebody waited for the server");
    expect_detached(&mut daemon, &id, holder.pid());
    server.resume();
}

#[test]
fn a_volume_in_the_mount_namespace_of_a_kubelet_is_unmounted_there() {
    let volume = Mount::volume();
    let scratch = Scratch::new();
    let program = scratch.path().join("kubelet");
    copy_program(&std::fs::canonicalize("/bin/sh").expect("a shell"), &program);
    let mut command = Command::new("unshare");
    command.args(["--mount".as_ref(), program.as_os_str()]);
    command.args(["-c", "read -r word; exit", "kubelet"]);
    command.arg(format!("--root-dir={}", volume.kubelet_root().display()));
    let kubelet = Running::spawn(command.stdin(Stdio::piped()));
    eventually!(comm(kubelet.pid()).as_deref() == Some("kubelet"), "the kubelet runs");
    let target = format!("--target={}", kubelet.pid());
    let in_it = |script: &str| {
        attempt(&["nsenter", &target, "--mount", "sh", "-c", script, "sh", &volume.point().to_string_lossy()])
    };
    // Only there.
    let _ = in_it("mkdir \"$1/below\" && mount -t tmpfs below \"$1/below\"").succeeded("a mount");
    let mut daemon = launch().start();
    assert!(!in_it("cd \"$1\" && umount \"$1\"").status.success(), "it is busy");
    let id = of_path(&mut daemon, volume.point());
    eventually!(incident(&daemon, &id).to_string().contains("/below"), "the other mount is found");
    let open = incident(&daemon, &id);
    for elsewhere in ["show-users", "unmount", "detach"] {
        assert_eq!(offered(&open, &format!("volume-busy/{elsewhere}")), None, "{open}");
    }
    let told = carry_out(&daemon, &id, "volume-busy/tell-volume").stdout;
    assert!(told.contains("/below"), "{told}");
    let _ = carry_out(&daemon, &id, "volume-busy/unmount-inside");
    let is_mounted =
        |path: &str| in_it(&format!("grep -q \" $1{path} \" /proc/self/mountinfo")).status.success();
    assert!(!is_mounted("/below") && is_mounted(""));
    let _ = carry_out(&daemon, &id, "volume-busy/detach-inside");
    assert!(!is_mounted(""));
    assert!(volume.file().exists(), "that of the host is another one");
}

#[test]
fn a_file_server_that_holds_the_volume_of_another_pod_is_ended() {
    let volume = Mount::volume();
    let scratch = Scratch::new();
    let program = scratch.path().join("glusterfs");
    copy_program(Path::new("/bin/bash"), &program);
    run(&format!("mkfifo {}/fifo", scratch.path().display()));
    let uid = uuid();
    let served = volume.kubelet_root().join(format!("pods/{uid}/volumes/kubernetes.io~glusterfs/web"));
    let device = kevtmon_tests::fuse::mount_unserved(&served);
    let mut daemon = launch().kubelet(&volume).start();
    let mut server = Command::new(&program);
    let script = format!("read -r word <>'{}/fifo'", scratch.path().display());
    server.args(["-c", &script, "glusterfs"]).arg(&served).current_dir(volume.point()).stdin(device);
    let server = Running::spawn(&mut server);
    eventually!(comm(server.pid()).as_deref() == Some("glusterfs"), "it runs");
    let id = refuse(&mut daemon, &volume);
    let end = format!("kill {}", server.pid());
    eventually!(
        offered(&incident(&daemon, &id), "volume-busy/end-server").as_ref() == Some(&end),
        "the server is known as one"
    );
    let open = incident(&daemon, &id);
    let told = open.list("/advice").iter().find(|step| step["form"] == "end-server").expect("it is there");
    assert!(told["text"].as_str().is_some_and(|text| text.contains(&uid)), "who loses what: {open}");
    let _ = carry_out(&daemon, &id, "volume-busy/end-server");
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
    nix::mount::umount2(&served, nix::mount::MntFlags::MNT_DETACH).expect("FUSE can be detached");
}

#[test]
fn a_service_that_holds_a_volume_is_restarted_as_systemd_knows_it() {
    let groups: Vec<Cgroup> = Hierarchy::all().into_iter().map(Cgroup::of_service).collect();
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    groups.iter().for_each(|group| group.take(holder.pid()));
    let id = refuse(&mut daemon, &volume);
    let restart = offered(&incident(&daemon, &id), "volume-busy/restart-unit").expect("of the unit");
    let of_unit = |group: &Cgroup| restart == format!("systemctl restart {}", group.name());
    assert!(groups.iter().any(of_unit), "{restart}");
    // No systemd runs here, or it has no such unit: a group alone is none.
    let unreachable = ["Failed to connect to bus", "not found"];
    let _ = is_understood(&daemon, &id, "volume-busy/restart-unit", &unreachable);
    drop(holder);
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
}

#[test]
fn a_runtime_that_does_not_answer_is_not_asked_to_restart_a_container() {
    let dockerd = Dockerd::start();
    let scratch = Scratch::new();
    let (root, volume) = shared_volume(&scratch);
    let (bind, inside) = (bind_of(&root), inside(&root, &volume));
    let script = format!("cd {inside} && exec sleep 1000000");
    let options = ["-v", &bind, "--network", "none"];
    let container = Container::start(&dockerd, &options, &["sh", "-c", &script]);
    eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");
    let mut daemon = launch().runtime(dockerd.runtime()).config(&kubelet_roots(root.point())).start();
    let pod = Pod::at(container.netns());
    daemon.wait_for_gateway(pod.inum(), "169.254.1.1");
    pod.delete_gateway();
    let gateway = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let busy = refuse(&mut daemon, &volume);
    let restarts = |daemon: &Daemon| {
        offered(&incident(daemon, &gateway), "gateway-neighbor-lost/restart-by-docker").is_some()
            && offered(&incident(daemon, &busy), "volume-busy/restart-by-docker").is_some()
    };
    let none = |daemon: &Daemon| {
        let both = [&gateway, &busy].map(|id| incident(daemon, id).to_string());
        !both.iter().any(|text| text.contains(" restart "))
    };
    assert!(restarts(&daemon));
    dockerd.kill();
    eventually!(none(&daemon), "nothing is asked of a daemon that is down");
    dockerd.launch();
    eventually!(restarts(&daemon), "it is up again");
    dockerd.kill();
    eventually!(none(&daemon), "it is down again");
    // Its first process, which ignores what it does not handle.
    let _ = carry_out(&daemon, &busy, "volume-busy/end-container");
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &busy);
    dockerd.launch();
}

#[test]
fn a_pod_that_holds_the_volume_of_another_is_to_be_deleted() {
    let dockerd = Dockerd::shared();
    let name = format!("etcd-{}", &uuid()[..8]);
    let scratch = Scratch::new();
    let (root, volume) = shared_volume(&scratch);
    let (bind, inside) = (bind_of(&root), inside(&root, &volume));
    let script = format!("cd {inside}; exec sleep 1000000");
    let container = Container::sandbox(dockerd, &name, &["-v", &bind], &script);
    eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");
    let mut daemon = launch().joining(dockerd.runtime()).config(&kubelet_roots(root.point())).start();
    let id = refuse(&mut daemon, &volume);
    let delete = format!("kubectl -n lijiaob delete pod {name}");
    assert_eq!(offered(&incident(&daemon, &id), "volume-busy/delete-pod"), Some(delete));
    let _ = is_understood(&daemon, &id, "volume-busy/delete-pod", &["127.0.0.1:1 was refused"]);
    drop(container);
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
}

#[test]
fn a_container_of_podman_that_holds_a_volume_lets_go_by_podman() {
    let Some(podman) = Podman::start() else {
        return not_carried_out("podman restart");
    };
    let scratch = Scratch::new();
    let (root, volume) = shared_volume(&scratch);
    let (bind, inside) = (bind_of(&root), inside(&root, &volume));
    let script = format!("[ -e /left ] || {{ echo >/left; cd {inside}; }}; exec sleep 1000000");
    let container = podman.start_container(&["-v", &bind], &["sh", "-c", &script]);
    let first = podman.pid(&container);
    eventually!(comm(first).as_deref() == Some("sleep"), "the container is in the volume");
    let runtime = format!("docker={}", podman.socket().display());
    let mut daemon = launch().joining(runtime).config(&kubelet_roots(root.point())).start();
    let id = refuse(&mut daemon, &volume);
    let restart = offered(&incident(&daemon, &id), "volume-busy/restart-by-podman");
    let restart = restart.expect("a command for the container");
    assert!(restart.starts_with("podman --url unix://"), "another service does not know it: {restart}");
    let _ = carry_out(&daemon, &id, "volume-busy/restart-by-podman");
    eventually!(volume.umount().status.success(), "the mount is free");
    resolved(&mut daemon, &id);
}
