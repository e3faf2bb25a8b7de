//! FUSE servers that end while pods and containers have their file systems. Real clients of GlusterFS.

use std::path::Path;
use std::process::Command;

use kevtmon_tests::actor::{self, Actor};
use kevtmon_tests::advice::{carry_out, incident, is_understood, offered, opened, resolved};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, POLL_EACH_SECOND, kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::glusterfs::GlusterVolume;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::attempt;

const KIND: &str = "file-server-lost";

const SOON: &str = "[incidents]\nfile_server_lost_seconds = 1\n";

/// Kills the server of a volume by a program of its own.
fn kill(signal: &str, volume: &GlusterVolume) {
    let _ = attempt(&["kill", signal, &volume.client().pid().to_string()]).succeeded("kill");
}

/// Waits until the daemon knows the server.
fn wait_until_followed(daemon: &Daemon, volume: &GlusterVolume) {
    daemon.wait_for_fuse_server(volume.point());
}

fn app<'d>(dockerd: &'d Dockerd, volume: &GlusterVolume, pod: Option<&str>) -> Container<'d> {
    let bind = format!("{}:/data", volume.point().display());
    let Some(pod) = pod else { return Container::idle(dockerd, &["-v", &bind]) };
    let image = dockerd.labelled_image(&[
        ("io.kubernetes.pod.namespace", "lijiaob"),
        ("io.kubernetes.pod.name", pod),
        ("io.kubernetes.pod.uid", volume.uid()),
        ("io.kubernetes.container.name", "etcd"),
        ("io.kubernetes.docker.type", "container"),
    ]);
    let group = dockerd.pod_cgroup(volume.uid());
    let options = ["--network", "none", "--cgroup-parent", &group, "-v", &bind];
    Container::of_image(dockerd, &image, &options, &["sh", "-c", "exec sleep 1000000"])
}

fn mount(root: &Path, scratch: &Scratch, name: &str) -> GlusterVolume {
    GlusterVolume::mount(root, name, scratch.path(), &scratch.path().join(format!("{name}.log")))
}

#[test]
fn who_kills_the_server_of_a_volume_is_named_until_its_containers_have_restarted() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let [mut killed, mut unmounted, other] =
        ["killed", "unmounted", "other"].map(|name| mount(&root, &scratch, name));
    let config = format!("{}{POLL_EACH_SECOND}{SOON}", kubelet_roots(&root));
    let mut daemon = launch().config(&config).runtime(dockerd.runtime()).start();
    let mut of_pod = app(dockerd, &killed, Some("etcd-0"));
    let _of_other = app(dockerd, &other, None);
    for volume in [&killed, &unmounted, &other] {
        wait_until_followed(&daemon, volume);
    }
    let is_certain = killed.is_shown();
    // A server ends with its last mount.
    let _ = unmounted.umount().succeeded("umount");
    eventually!(unmounted.has_ended(), "its server ends");
    kill("-KILL", &killed);
    let of_volume = |event: &Event, volume: &GlusterVolume| event.text("/target/pod/uid") == volume.uid();
    let id = opened(&mut daemon, KIND, |event| of_volume(event, &killed));
    let found = incident(&daemon, &id);
    found.expect("/severity", "critical");
    found.expect("/confidence", if is_certain { "certain" } else { "likely" });
    found.expect("/actor/comm", "kill");
    let is_it = |event: &&Event| event.text("/incident/id") == id;
    let told = daemon.events().into_iter().find(|event| is_it(&event)).expect("it was opened");
    told.expect("/mount/servers/0/pid", killed.client().pid());
    told.expect("/mount/servers/0/state", "ended");
    let summary = found.text("/summary");
    let served = format!("glusterfs (pid {}) (SIGKILL), which ", killed.client().pid());
    for words in [
        served.as_str(),
        "served volume killed (kubernetes.io/glusterfs) of pod lijiaob/etcd-0: every access fails",
    ] {
        assert!(summary.contains(words), "{words} in {summary}");
    }
    let failed = of_pod.exec(&[], &["sh", "-c", "cat /data/file 2>&1 || true"]);
    assert!(failed.stdout.contains("not connected"), "{failed:?}");
    let delete = "kubectl -n lijiaob delete pod etcd-0".to_owned();
    assert_eq!(offered(&found, "file-server-lost/delete-pod"), Some(delete));
    let _ = is_understood(&daemon, &id, "file-server-lost/delete-pod", &["127.0.0.1:1 was refused"]);
    // The host has it no more, and the container the old one.
    let _ = killed.umount().succeeded("umount");
    of_pod.end(&["rm", "-f"]);
    let _ = resolved(&mut daemon, &id);
    let of_others = |event: &&Event| event.is_incident("incident.opened", KIND) && !of_volume(event, &killed);
    assert_eq!(daemon.events().iter().find(of_others).map(ToString::to_string), None);
    assert!(killed.has_ended());
}

#[test]
fn a_container_keeps_the_dead_mount_of_a_server_that_was_started_again() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let root = scratch.path().join("kubelet");
    let config = format!("{POLL_EACH_SECOND}{SOON}");
    let before = mount(&root, &scratch, "data");
    let mut daemon = launch().config(&config).runtime(dockerd.runtime()).start();
    let app = app(dockerd, &before, None);
    wait_until_followed(&daemon, &before);
    kill("-TERM", &before);
    let is_its = |event: &Event| event.text("/target/container/id") == app.id();
    let id = opened(&mut daemon, KIND, is_its);
    let found = incident(&daemon, &id);
    found.expect("/actor/comm", "kill");
    found.expect("/actor/confidence", "likely");
    assert!(found.text("/summary").contains("(SIGTERM)"), "{found}");
    // Its client unmounts it on the host when it is asked to end.
    let after = before.mount_again(scratch.path(), &scratch.path().join("again.log"));
    daemon.wait_for("that it is mounted again", |event| {
        event.text("/incident/id") == id
            && event.text("/incident/summary").ends_with("though the node has mounted it again")
    });
    // The next run of the daemon has not seen the end, and keeps what was told.
    daemon.stop();
    let mut daemon = launch().on_state_of(&daemon).config(&config).runtime(dockerd.runtime()).start();
    let found = incident(&daemon, &id);
    found.expect("/actor/comm", "kill");
    let _ = carry_out(&daemon, &id, "file-server-lost/restart-by-docker");
    let _ = resolved(&mut daemon, &id);
    let _ = app.exec(&[], &["sh", "-c", "cd /data"]).succeeded("its mount is served");
    drop(after);
}

#[test]
fn a_server_that_runs_on_after_its_connection_was_aborted_is_named() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let point = scratch.path().join("cut");
    // Older kernels show no connections: there an argument tells what is served.
    let mut server = Actor::spawn(Command::new(actor::program()).arg(&point));
    server.act(&format!("serve {}", point.display()));
    let config = format!("{POLL_EACH_SECOND}{SOON}");
    let mut daemon = launch().config(&config).runtime(dockerd.runtime()).start();
    let bind = format!("{}:/data", point.display());
    let mut app = Container::idle(dockerd, &["-v", &bind]);
    daemon.wait_for_fuse_server(&point);
    // The container still has it, and the server closes what was aborted.
    let _ = attempt(&["umount".as_ref(), "-f".as_ref(), point.as_os_str()]).succeeded("umount");
    let id = opened(&mut daemon, KIND, |event| event.text("/target/container/id") == app.id());
    let found = incident(&daemon, &id);
    found.expect("/severity", "critical");
    found.expect("/confidence", "likely");
    let summary = found.text("/summary");
    let words = format!("(pid {}) was aborted or closed while it ran, which ", server.pid());
    assert!(summary.contains(&words), "{words} in {summary}");
    let failed = app.exec(&[], &["sh", "-c", "ls /data 2>&1 || true"]);
    assert!(failed.stdout.contains("not connected"), "{failed:?}");
    app.end(&["rm", "-f"]);
    let _ = resolved(&mut daemon, &id);
}
