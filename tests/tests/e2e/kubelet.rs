//! Which paths are believed to be pod volumes: those below a root directory of a kubelet, in the host's or the
//! kubelet's mount namespace. What anybody can make or start is not believed.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Running, attempt, hold_by_cwd};
use nix::mount::{MsFlags, mount};

/// Runs what follows as nobody.
/// A user of these tests alone: each has a budget.
const AS_NOBODY: [&str; 4] = ["setpriv", "--reuid=54322", "--regid=54322", "--clear-groups"];
/// Makes a mount at `$1`, is in it, and is refused to unmount it; needs a mount namespace of its own.
const FORGE: &str = "mount -t tmpfs none /var/lib && mkdir -p \"$1\" && mount -t tmpfs none \"$1\" && cd \"$1\" && \
                     umount \"$1\"; echo refused; exec sleep 1000000";

/// The event of a refused unmount of this path, given as `umount` was.
fn busy(daemon: &mut Daemon, path: &Path) -> Event {
    let path = path.to_string_lossy();
    daemon.wait_for_holders(&format!("mount.busy of {path}"), |event| {
        event.kind() == "mount.busy" && event.text("/mount/path") == path
    })
}

fn expect_volume(event: &Event, volume: &Mount) {
    let uid = uid(volume);
    event.expect("/mount/volume/pod_uid", &*uid);
    event.expect("/target/pod/uid", &*uid);
}

/// Neither the event nor an incident says that it concerns a pod.
fn expect_no_pod(daemon: &mut Daemon, event: &Event) {
    event.expect_none("/mount/volume");
    event.expect_none("/target/pod");
    let path = event.text("/mount/path");
    let events = daemon.mount_fence();
    let incident = events.iter().find(|event| event.has("/incident") && event.text("/mount/path") == path);
    assert!(incident.is_none(), "{incident:?}");
}

fn uid(volume: &Mount) -> String {
    let below = volume.point().strip_prefix(volume.kubelet_root()).expect("below the root directory");
    below.iter().nth(1).expect("pods/UID").to_string_lossy().into_owned()
}

/// A copy of the shell that has this name.
fn program(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    // By another process: a file that a parallel test's child may write cannot be run.
    let copied =
        attempt(&["sh", "-c", "cp \"$(readlink -f /bin/sh)\" \"$1\"", "sh", &path.to_string_lossy()]);
    let _ = copied.succeeded("cp");
    path
}

/// Starts a program as a kubelet is, after `prefix`; it waits for the end of its standard input.
fn start(prefix: &[&str], program: &Path, root: &Path) -> Running {
    let program = program.to_string_lossy();
    let root = format!("--root-dir={}", root.display());
    let words = [prefix, &[&program, "-c", "read -r word; exit", "kubelet", &root]].concat();
    let mut command = Command::new(words[0]);
    let process = Running::spawn(command.args(&words[1..]).stdin(Stdio::piped()));
    let exe = format!("/proc/{}/exe", process.pid());
    eventually!(std::fs::read_link(&exe).is_ok_and(|exe| exe == Path::new(&*program)), "it runs {program}");
    process
}

/// A FUSE file system at the path of a pod's volume, of which no request is answered; the device, which ends it when it
/// is closed.
fn mount_fuse(volume: &Path) -> File {
    std::fs::create_dir_all(volume).expect("a directory can be made");
    let device = File::options().read(true).write(true).open("/dev/fuse").expect("there is FUSE");
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("kevtmon"), volume, Some("fuse"), MsFlags::empty(), Some(&*options))
        .expect("FUSE can be mounted");
    device
}

#[test]
fn who_has_the_connection_serves_the_volume_and_where_that_is_not_shown_root_whose_arguments_name_it() {
    let held = Mount::volume();
    let scratch = Scratch::new();
    let uid = uuid();
    let served = held.kubelet_root().join(format!("pods/{uid}/volumes/kubernetes.io~glusterfs/web"));
    let device = mount_fuse(&served);
    let mut daemon = launch().kubelet(&held).start();
    let program = program(scratch.path(), "glusterfs").to_string_lossy().into_owned();
    // Of another file system, which is served by whoever has this one.
    let elsewhere = scratch.path().join("elsewhere");
    let other = mount_fuse(&elsewhere);
    let of = |device: &File| Stdio::from(device.try_clone().expect("a descriptor"));
    let info = format!("/proc/self/fdinfo/{}", device.as_raw_fd());
    let is_shown = std::fs::read_to_string(info).expect("a descriptor").contains("fuse_connection");
    let sure = if is_shown { "certain" } else { "likely" };
    let shown = Some((&*uid, "certain")).filter(|_| is_shown);
    for (prefix, input, arguments, expected) in [
        (&AS_NOBODY[..], of(&device), &[&*served][..], shown),
        (&[], Stdio::null(), &[&served], None),
        (&[], of(&other), &[&served], Some((&*uid, "likely")).filter(|_| !is_shown)),
        (&[], of(&device), &[&served], Some((&*uid, sure))),
        // What it is called with proves nothing.
        (&[], of(&device), &[], shown),
        (&[], of(&device), &[&elsewhere], shown),
    ] {
        let words = [prefix, &[&*program, "-c", "kill -STOP $$; exit", "glusterfs"]].concat();
        let mut server = Command::new(words[0]);
        server.args(&words[1..]).args(arguments).current_dir(held.point()).stdin(input);
        let server = Running::spawn(&mut server);
        let state = format!("/proc/{}/stat", server.pid());
        eventually!(
            std::fs::read_to_string(&state).is_ok_and(|stat| stat.contains("(glusterfs) T")),
            "it has stopped"
        );
        let umount = held.umount_refused();
        let event = daemon.wait_for_holders("mount.busy", |event| {
            event.kind() == "mount.busy" && event.number("/actor/pid") == Some(umount.pid.into())
        });
        let found = event.list("/holders").iter().find(|holder| holder["pid"] == server.pid());
        let found = found.expect("the server holds the mount");
        let serves = &found["serves"];
        let told = serves["pod"]["uid"].as_str().zip(serves["confidence"].as_str());
        assert_eq!(told, expected, "{event}");
        drop(server);
        let _ = held.umount().succeeded("umount");
        let again = Mount::at(held.point());
        drop(again);
    }
    for mounted in [&served, &elsewhere] {
        nix::mount::umount2(mounted, nix::mount::MntFlags::MNT_DETACH).expect("FUSE can be detached");
    }
}

#[test]
fn the_root_directory_of_a_kubelet_is_known_through_symbolic_links() {
    let volume = Mount::volume();
    let scratch = Scratch::new();
    let link = scratch.path().join("kubelet");
    symlink(volume.kubelet_root(), &link).expect("a link can be made");
    let mut daemon = launch().config(&kubelet_roots(&link)).start();
    let holder = hold_by_cwd(volume.point());
    let below = volume.point().strip_prefix(volume.kubelet_root()).expect("below the root directory");
    for path in [link.join(below), volume.point().to_owned()] {
        let refused = attempt(&["umount", &path.to_string_lossy()]);
        assert!(!refused.status.success(), "{} was not busy", path.display());
        let event =
            daemon.wait_for("mount.busy", |event| event.number("/actor/pid") == Some(refused.pid.into()));
        expect_volume(&event, &volume);
    }
    let uid = uid(&volume);
    daemon.wait_for("the incident", |event| {
        event.kind() == "incident.opened" && event.text("/target/pod/uid") == uid
    });
    drop(holder);
    let released = kevtmon_tests::patience::wait_until("the volume is free", || {
        let ran = attempt(&["umount", &link.join(below).to_string_lossy()]);
        ran.status.success().then_some(ran)
    });
    let event = daemon.wait_for("mount.released", |event| {
        event.kind() == "mount.released" && event.number("/actor/pid") == Some(released.pid.into())
    });
    expect_volume(&event, &volume);
}

#[test]
fn a_kubelet_that_starts_later_tells_its_root_directory() {
    let volume = Mount::volume();
    let mut daemon = launch().start();
    let scratch = Scratch::new();
    let _kubelet = start(&["env"], &program(scratch.path(), "kubelet"), volume.kubelet_root());
    let _holder = hold_by_cwd(volume.point());
    volume.umount_refused();
    expect_volume(&busy(&mut daemon, volume.point()), &volume);
}

#[test]
fn a_kubelet_in_a_mount_namespace_of_its_own_is_believed_there() {
    let volume = Mount::volume();
    let scratch = Scratch::new();
    // The namespace has a copy of the volume.
    let kubelet = start(&["unshare", "--mount"], &program(scratch.path(), "kubelet"), volume.kubelet_root());
    let mut daemon = launch().start();
    let path = volume.point().to_string_lossy();
    let script = "cd \"$1\" && umount \"$1\"";
    let target = format!("--target={}", kubelet.pid());
    let refused = attempt(&["nsenter", &target, "--mount", "sh", "-c", script, "sh", &path]);
    assert!(!refused.status.success(), "{path} was not busy");
    expect_volume(&busy(&mut daemon, volume.point()), &volume);
}

#[test]
fn who_only_calls_himself_a_kubelet_is_not_believed() {
    let volume = Mount::volume();
    let scratch = Scratch::new();
    let kubelet = program(scratch.path(), "kubelet");
    let shell = std::fs::canonicalize("/bin/sh").expect("a shell");
    let root = volume.kubelet_root();
    let userns = [&AS_NOBODY[..], &["unshare", "--user", "--map-root-user"]].concat();
    let pidns = ["unshare", "--pid", "--fork", "--kill-child"];
    let writable = scratch.path().join("writable");
    std::fs::create_dir(&writable).expect("a directory can be made");
    let writable = program(&writable, "kubelet");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&writable, mode).expect("a mode can be set");
    let _fakes = [
        start(&AS_NOBODY, &kubelet, root),
        start(&userns, &kubelet, root),
        start(&["setpriv", "--bounding-set=-sys_admin"], &kubelet, root),
        start(&["env"], &writable, root),
        start(&["env"], &shell, root),
        forked(&pidns, &kubelet, root),
        {
            let mut command = Command::new(&shell);
            command.arg0("kubelet").args(["-c", "read -r word; exit", "kubelet"]);
            command.arg(format!("--root-dir={}", root.display()));
            Running::spawn(command.stdin(Stdio::piped()))
        },
    ];
    let mut daemon = launch().start();
    let _holder = hold_by_cwd(volume.point());
    volume.umount_refused();
    let event = busy(&mut daemon, volume.point());
    expect_no_pod(&mut daemon, &event);
}

/// As [`start`], where the prefix forks and stays.
fn forked(prefix: &[&str], program: &Path, root: &Path) -> Running {
    let mut command = Command::new(prefix[0]);
    command.args(&prefix[1..]).arg(program).args(["-c", "read -r word; exit", "kubelet"]);
    command.arg(format!("--root-dir={}", root.display()));
    let process = Running::spawn(command.stdin(Stdio::piped()));
    let children = format!("/proc/{0}/task/{0}/children", process.pid());
    let runs = |child: &str| std::fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe == program);
    eventually!(
        std::fs::read_to_string(&children).unwrap_or_default().split_whitespace().any(runs),
        "it runs {}",
        program.display()
    );
    process
}

#[test]
fn a_path_in_a_container_is_the_containers() {
    let dockerd = Dockerd::shared();
    let path = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~secret/token", uuid());
    let mut daemon = launch().joining(dockerd.runtime()).start();
    let script = format!(
        "cd /bin && for name in mkdir mount umount; do busybox ln -s busybox $name; done; cd /; \
         mkdir -p /var/lib && {FORGE}"
    );
    let options = ["--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined"];
    let container = Container::start(dockerd, &options, &["sh", "-c", &script, "sh", &path]);
    let event = busy(&mut daemon, Path::new(&path));
    event.expect("/target/container/id", container.id());
    event.expect("/actor/container/id", container.id());
    expect_no_pod(&mut daemon, &event);
}

/// Looks for strangers are of low priority, and those of other tests would come before.
mod alone {
    use super::*;

    #[test]
    fn a_path_in_the_namespaces_of_an_unprivileged_user_means_no_pod() {
        let path = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~secret/token", uuid());
        let mut daemon = launch().start();
        let unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FORGE, "sh", &path];
        let mut command = Command::new(AS_NOBODY[0]);
        command.args([&AS_NOBODY[1..], &unshare].concat()).stdin(Stdio::null()).stdout(Stdio::null());
        let _forger = Running::spawn(command.process_group(0));
        let event = busy(&mut daemon, Path::new(&path));
        event.expect("/actor/uid", 54322);
        event.expect_none("/target");
        expect_no_pod(&mut daemon, &event);
    }
}
