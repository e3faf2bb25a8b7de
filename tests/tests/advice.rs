//! The advice on an open incident, carried out as it is printed: what only looks succeeds, what is said to help helps.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use std::path::Path;
use std::process::{Command, Stdio};

use kevtmon_tests::cgroup::{Cgroup, Hierarchy};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch, program};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod::Pod;
use kevtmon_tests::pod_sandbox::{PodSandbox, uuid};
use kevtmon_tests::podman::Podman;
use kevtmon_tests::process::{Finished, comm, finish, hold_by_cwd, run, write_script};
use serde_json::Value;

/// A cluster that nobody serves.
const NO_CLUSTER: &str = "apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: none, context: {cluster: none}}]
current-context: none
";

/// Carries out a command as an operator does who pastes it into a shell. `kevtmon` is this one, with this daemon.
fn carry_out(command: &str, daemon: &Daemon) -> Finished {
    let tools = daemon.directory().join("tools");
    let kevtmon = tools.join("kevtmon");
    if !kevtmon.exists() {
        std::fs::create_dir(&tools).expect("a directory can be made");
        let script = format!(
            "#!/bin/sh\nexec {} \"$@\" --socket {} --state-dir {}\n",
            program().display(),
            daemon.socket().display(),
            daemon.state().display()
        );
        write_script(&kevtmon, &script);
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    // No cluster is at hand.
    let cluster = daemon.directory().join("kubeconfig");
    std::fs::write(&cluster, NO_CLUSTER).expect("a file can be written");
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).env("PATH", path).env("KUBECONFIG", cluster).stdin(Stdio::null());
    finish(&mut shell, "bash".as_ref())
}

/// The incident as `incidents` shows it now; the newest episode.
fn incident(daemon: &Daemon, id: &str) -> Event {
    let all = daemon.find(&["incidents", "--all"]);
    let found = all.into_iter().rfind(|incident| incident.text("/id") == id);
    found.unwrap_or_else(|| unreachable!("incident {id} is listed"))
}

fn advice(incident: &Event, risk: &str) -> Vec<String> {
    let steps = incident.list("/advice").iter().filter(|step| step["risk"] == risk);
    steps.filter_map(|step| step["command"].as_str().map(str::to_owned)).collect()
}

/// Carries out everything that only looks; there is something.
fn look(incident: &Event, daemon: &Daemon) {
    let commands = advice(incident, "read");
    assert!(!commands.is_empty(), "{incident}");
    for command in commands {
        let _ = carry_out(&command, daemon).succeeded(&command);
    }
}

fn closed(daemon: &mut Daemon, id: &str) -> Event {
    let closed = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/close_reason", "resolved");
    let is_past = |text: &&str| text.contains(" was ") || text.contains(" had ");
    let healthy: Vec<&str> = closed.list("/incident/ruled_out").iter().filter_map(Value::as_str).collect();
    assert!(healthy.iter().all(is_past), "{healthy:?}");
    // The store may take longer than who prints.
    eventually!(incident(daemon, id).list("/advice").is_empty(), "nothing is left to be done");
    closed
}

fn opened(daemon: &mut Daemon, kind: &str, fits: impl Fn(&Event) -> bool) -> String {
    let opened = daemon.wait_for(kind, |event| event.is_incident("incident.opened", kind) && fits(event));
    opened.text("/incident/id").to_owned()
}

#[test]
fn a_lost_gateway_is_put_back_by_the_command_that_is_shown() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let open = incident(&daemon, &id);
    let ruled_out = open.list("/ruled_out").iter().filter_map(Value::as_str).collect::<Vec<_>>();
    for healthy in ["eth0 is up".to_owned(), format!("its host end {} is up", pod.host_end())] {
        assert!(ruled_out.contains(&healthy.as_str()), "{healthy} in {open}");
    }
    look(&open, &daemon);
    let cure = advice(&open, "restart").into_iter().find(|command| command.contains("neigh replace"));
    let cure = cure.expect("both ends are up, so that the entry can be put back");
    // As it is printed for people, broken to the width of a terminal.
    let text = daemon.ask(&["why", &id]).succeeded("why").stdout;
    let text = text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&cure), "{cure} in {text}");
    let _ = carry_out(&cure, &daemon).succeeded(&cure);
    assert!(pod.has_gateway());
    closed(&mut daemon, &id);
    drop(sandbox);
}

#[test]
fn an_entry_is_not_to_be_put_back_while_the_host_end_is_down() {
    let pod = Pod::new();
    let _sandbox = PodSandbox::of(&pod);
    let mut daemon = launch().start();
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let repairs = |daemon: &Daemon| {
        advice(&incident(daemon, &id), "restart").iter().any(|command| command.contains("neigh replace"))
    };
    assert!(repairs(&daemon));
    run(&format!("ip link set {} down", pod.host_end()));
    eventually!(!repairs(&daemon), "the command is taken back");
    let down = incident(&daemon, &id);
    look(&down, &daemon);
    let cure = advice(&down, "restart").into_iter().find(|command| command.starts_with("ip link set "));
    let cure = cure.expect("it is said what keeps the entry from being put back");
    let _ = carry_out(&cure, &daemon).succeeded(&cure);
    eventually!(repairs(&daemon), "the command is shown again");
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
    let ruled_out = open.list("/ruled_out").iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let of_entry = ruled_out.iter().filter(|healthy| healthy.contains(" MAC address ")).collect::<Vec<_>>();
    assert_eq!(of_entry, [&format!("{bridge} still has the MAC address {lladdr} of the entry")], "{open}");
    let is_up =
        |healthy: &&str| Some(healthy.strip_prefix("its host end ")?.strip_suffix(" is up")?.to_owned());
    let end = ruled_out.iter().find_map(is_up).expect("the host end is up");
    let cure = advice(&open, "restart").into_iter().find(|command| command.contains("neigh replace"));
    let cure = cure.expect("the bridge and both ends are up");
    let _ = carry_out(&cure, &daemon).succeeded(&cure);
    closed(&mut daemon, &id);

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
fn a_process_that_holds_a_volume_is_named_only_while_it_runs() {
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let id = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    look(&incident(&daemon, &id), &daemon);
    let kill = format!("kill {}", holder.pid());
    assert!(advice(&incident(&daemon, &id), "destructive").contains(&kill));
    let _ = carry_out(&kill, &daemon).succeeded(&kill);
    eventually!(
        !advice(&incident(&daemon, &id), "destructive").contains(&kill),
        "no command names a process that has ended"
    );
    assert!(!daemon.ask(&["why", &id]).succeeded("why").stdout.contains(&kill));
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
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
fn a_container_that_holds_a_volume_lets_go_by_the_command_of_its_own_runtime() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let (root, volume) = shared_volume(&scratch);
    let (bind, inside) = (bind_of(&root), inside(&root, &volume));
    // It is in the volume until it is restarted.
    let script = format!("[ -e /left ] || {{ touch /left; cd {inside}; }}; exec sleep 1000000");
    let container = Container::start(dockerd, &["-v", &bind], &["sh", "-c", &script]);
    eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");
    let mut daemon = launch().joining(dockerd.runtime()).config(&kubelet_roots(root.point())).start();
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    let id = opened(&mut daemon, "volume-busy", |event| event.text("/mount/path") == path);
    let open = incident(&daemon, &id);
    look(&open, &daemon);
    let cure = advice(&open, "restart").into_iter().find(|command| command.contains(container.id()));
    let cure = cure.unwrap_or_else(|| unreachable!("a command for the container in {open}"));
    assert!(cure.starts_with("docker --host unix://"), "another daemon does not know it: {cure}");
    let _ = carry_out(&cure, &daemon).succeeded(&cure);
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
    assert!(!Path::new(&path).join("file").exists());
}

/// The incident of a busy volume.
fn volume_busy(daemon: &mut Daemon, volume: &Mount) -> String {
    volume.umount_refused();
    let path = volume.point().to_string_lossy().into_owned();
    opened(daemon, "volume-busy", |event| event.text("/mount/path") == path)
}

#[expect(clippy::print_stderr, reason = "the run says what was not carried out")]
fn not_carried_out(command: &str) {
    eprintln!("not carried out, for its tool is not installed: {command}");
}

/// The tool gets as far as looking for what it talks to: the words are right. What it talks to is not on this machine.
fn is_understood(command: &str, daemon: &Daemon, unreachable: &[&str]) {
    let tool = command.split(' ').next().unwrap_or_default();
    if kevtmon_tests::image::installed(tool).is_none() {
        return not_carried_out(command);
    }
    let ran = carry_out(command, daemon);
    let is_right = ran.status.success() || unreachable.iter().any(|words| ran.stderr.contains(words));
    assert!(is_right, "{command}: {}{}", ran.stdout, ran.stderr);
}

#[test]
fn what_is_mounted_below_a_volume_is_unmounted_first() {
    let volume = Mount::volume();
    let child = Mount::at(&volume.point().join("a child"));
    let mut daemon = launch().kubelet(&volume).start();
    let id = volume_busy(&mut daemon, &volume);
    let steps = advice(&incident(&daemon, &id), "destructive");
    let below = format!("umount '{}'", child.point().display());
    assert!(steps.contains(&below), "{below} in {steps:?}");
    let _ = carry_out(&below, &daemon).succeeded(&below);
    assert!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
}

#[test]
fn a_volume_is_detached_by_the_command_that_is_shown_and_whoever_uses_it_goes_on() {
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    let id = volume_busy(&mut daemon, &volume);
    let lazy = format!("umount --lazy {}", volume.point().display());
    let steps = advice(&incident(&daemon, &id), "destructive");
    assert!(steps.contains(&lazy), "{lazy} in {steps:?}");
    let _ = carry_out(&lazy, &daemon).succeeded(&lazy);
    let closed = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    closed.expect("/incident/close_reason", "detached");
    assert!(closed.text("/incident/summary").contains(&format!("(pid {})", holder.pid())), "{closed}");
    assert_eq!(incident(&daemon, &id).list("/advice"), [] as [Value; 0], "nothing is left to be done");
}

#[test]
fn a_service_that_holds_a_volume_is_restarted_as_systemd_knows_it() {
    let groups: Vec<Cgroup> = Hierarchy::all().into_iter().map(Cgroup::of_service).collect();
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    groups.iter().for_each(|group| group.take(holder.pid()));
    let id = volume_busy(&mut daemon, &volume);
    let steps = advice(&incident(&daemon, &id), "restart");
    let of_unit =
        |step: &&String| groups.iter().any(|group| **step == format!("systemctl restart {}", group.name()));
    let restart = steps.iter().find(of_unit).unwrap_or_else(|| unreachable!("of the unit: {steps:?}"));
    // No systemd runs here, or it has no such unit: a group alone is none.
    is_understood(restart, &daemon, &["Failed to connect to bus", "not found"]);
    drop(holder);
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
}

#[test]
fn a_container_behind_the_cri_that_holds_a_volume_is_stopped() {
    let pod = Pod::new();
    let sandbox = PodSandbox::of(&pod);
    let volume = Mount::volume();
    let mut daemon = launch().kubelet(&volume).start();
    let holder = hold_by_cwd(volume.point());
    sandbox.take(holder.pid());
    let id = volume_busy(&mut daemon, &volume);
    let stop = format!("crictl stop {}", sandbox.id());
    let steps = advice(&incident(&daemon, &id), "restart");
    assert!(steps.contains(&stop), "{stop} in {steps:?}");
    is_understood(&stop, &daemon, &["connect", "no such file"]);
    drop(holder);
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
}

/// Starts the sandbox of a pod of this name, as a kubelet does, with further options and another command than usual.
fn start_sandbox<'d>(dockerd: &'d Dockerd, name: &str, options: &[&str], script: &str) -> Container<'d> {
    let uid = uuid();
    let image = dockerd.labelled_image(&[
        ("io.kubernetes.pod.namespace", "lijiaob"),
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.uid", &uid),
        ("io.kubernetes.container.name", "POD"),
        ("io.kubernetes.docker.type", "podsandbox"),
    ]);
    let group = dockerd.pod_cgroup(&uid);
    let options = [&["--network", "none", "--cgroup-parent", &group][..], options].concat();
    Container::of_image(dockerd, &image, &options, &["sh", "-c", script])
}

fn pod_name() -> String {
    format!("etcd-{}", &uuid()[..8])
}

#[test]
fn a_pod_is_deleted_only_while_it_has_no_older_sandbox() {
    let dockerd = Dockerd::shared();
    let name = pod_name();
    let sandbox = start_sandbox(dockerd, &name, &[], "exec sleep 1000000");
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let pod = Pod::at(sandbox.netns());
    daemon.wait_for_gateway(pod.inum(), "169.254.1.1");
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let open = incident(&daemon, &id);
    let delete = format!("kubectl -n lijiaob delete pod {name}");
    assert!(advice(&open, "restart").contains(&delete), "{delete} in {open}");
    is_understood(&delete, &daemon, &["127.0.0.1:1 was refused", "connection refused"]);
    look(&open, &daemon);
    pod.set_gateway();
    closed(&mut daemon, &id);

    // Another pod of that name, as its predecessor is until its sandbox is removed.
    let older = start_sandbox(dockerd, &name, &[], "exec sleep 1000000");
    eventually!(daemon.ask(&["state", "--json"]).stdout.contains(older.id()), "it is known");
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| {
        event.is_in(pod.inum()) && event.number("/incident/episode") == Some(2)
    });
    let open = incident(&daemon, &id);
    assert!(!advice(&open, "restart").iter().any(|command| command.contains("kubectl")), "{open}");
    let list = advice(&open, "read").into_iter().find(|command| command.contains(" ps --all "));
    let list = list.unwrap_or_else(|| unreachable!("its sandboxes are listed: {open}"));
    let listed = carry_out(&list, &daemon).succeeded(&list).stdout;
    for container in [&sandbox, &older] {
        assert!(listed.contains(&container.id()[..12]), "{} in {listed}", container.id());
    }
    look(&open, &daemon);
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
    let busy = volume_busy(&mut daemon, &volume);
    let restarts = |daemon: &Daemon, id: &str| {
        advice(&incident(daemon, id), "restart").iter().any(|command| command.starts_with("docker "))
    };
    assert!(restarts(&daemon, &gateway) && restarts(&daemon, &busy));
    dockerd.kill();
    eventually!(
        !restarts(&daemon, &gateway) && !restarts(&daemon, &busy),
        "nothing is asked of a daemon that is down"
    );
    let end = advice(&incident(&daemon, &busy), "destructive");
    let end = end.into_iter().find(|command| command.starts_with("kill "));
    dockerd.launch();
    eventually!(restarts(&daemon, &gateway) && restarts(&daemon, &busy), "it is up again");
    let end = end.unwrap_or_else(|| unreachable!("who holds it can be ended without it"));
    let _ = carry_out(&end, &daemon).succeeded(&end);
    eventually!(volume.umount().status.success(), "the mount is free");
}

#[test]
fn a_container_that_lost_its_gateway_is_restarted_by_its_own_runtime() {
    let dockerd = Dockerd::shared();
    let container = Container::start(dockerd, &["--network", "none"], &["sleep", "1000000"]);
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let pod = Pod::at(container.netns());
    daemon.wait_for_gateway(pod.inum(), "169.254.1.1");
    pod.delete_gateway();
    let id = opened(&mut daemon, "gateway-neighbor-lost", |event| event.is_in(pod.inum()));
    let open = incident(&daemon, &id);
    look(&open, &daemon);
    let restart = advice(&open, "restart").into_iter().find(|command| command.ends_with(container.id()));
    let restart = restart.unwrap_or_else(|| unreachable!("a restart in {open}"));
    let _ = carry_out(&restart, &daemon).succeeded(&restart);
    let over = daemon.wait_for("incident.closed", |event| {
        event.kind() == "incident.closed" && event.text("/incident/id") == id
    });
    over.expect("/incident/close_reason", "subject-gone");
}

#[test]
fn a_pod_that_holds_the_volume_of_another_is_to_be_deleted() {
    let dockerd = Dockerd::shared();
    let name = pod_name();
    let scratch = Scratch::new();
    let (root, volume) = shared_volume(&scratch);
    let (bind, inside) = (bind_of(&root), inside(&root, &volume));
    let script = format!("cd {inside}; exec sleep 1000000");
    let container = start_sandbox(dockerd, &name, &["-v", &bind], &script);
    eventually!(comm(container.pid()).as_deref() == Some("sleep"), "the container is in the volume");
    let mut daemon = launch().joining(dockerd.runtime()).config(&kubelet_roots(root.point())).start();
    let id = volume_busy(&mut daemon, &volume);
    let delete = format!("kubectl -n lijiaob delete pod {name}");
    let steps = advice(&incident(&daemon, &id), "restart");
    assert!(steps.contains(&delete), "{delete} in {steps:?}");
    is_understood(&delete, &daemon, &["127.0.0.1:1 was refused", "connection refused"]);
    drop(container);
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
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
    let id = volume_busy(&mut daemon, &volume);
    let open = incident(&daemon, &id);
    let restart = advice(&open, "restart").into_iter().find(|command| command.contains(&container));
    let restart = restart.unwrap_or_else(|| unreachable!("a command for the container in {open}"));
    assert!(restart.starts_with("podman --url unix://"), "another service does not know it: {restart}");
    let _ = carry_out(&restart, &daemon).succeeded(&restart);
    eventually!(volume.umount().status.success(), "the mount is free");
    closed(&mut daemon, &id);
}
