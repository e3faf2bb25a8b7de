//! The executable of an actor: its path in the mount tree of the actor's own root, across mounts.

use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kevtmon_tests::actor::{self, Actor};
use kevtmon_tests::daemon::launch;
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::network::NeighbourState;
use kevtmon_tests::pod::{GATEWAY, Pod};
use kevtmon_tests::process::run;
use kevtmon_tests::reaper::Cleanup;
use kevtmon_tests::unique;

/// What is said of an actor that deletes the gateway's entry of a pod.
fn event_of(mut actor: Actor, prepare: &[String]) -> Event {
    let pod = Pod::new();
    let mut daemon = launch().start();
    actor.act(&format!("netns {}", pod.netns().path().display()));
    for command in prepare {
        actor.act(command);
    }
    actor.act(&format!("delete eth0 {GATEWAY}"));
    let event = daemon.wait_for_deletion_by(actor.pid(), pod.inum(), GATEWAY);
    event.expect("/actor/confidence", "certain");
    event
}

/// A copy of the actor's program on a tmpfs, where its path within the file system is that of a system component.
fn kubelet_on(mount: &Mount) -> PathBuf {
    let directory = mount.point().join("usr/bin");
    std::fs::create_dir_all(&directory).expect("a directory can be made");
    let program = directory.join("kubelet");
    run(&format!("cp {} {}", actor::program().display(), program.display()));
    program
}

fn tmpfs(scratch: &Scratch) -> Mount {
    Mount::at(&scratch.path().join("b"))
}

#[test]
fn a_program_has_its_path_in_the_mount_tree_of_its_root_or_is_said_to_be_unreachable() {
    let scratch = Scratch::new();
    let program = kubelet_on(&tmpfs(&scratch));
    let (bound, other) = (scratch.path().join("elsewhere"), scratch.path().join("other"));
    for directory in [&bound, &other] {
        std::fs::create_dir(directory).expect("a directory can be made");
    }
    let directory = program.parent().expect("a program lies in a directory");
    run(&format!("mount --bind {} {}", directory.display(), bound.display()));
    let bound = bound.join("kubelet");
    let below = Path::new("/").join(program.strip_prefix(scratch.path()).expect("it lies there"));
    let chroot = |root: &Path| Some(format!("chroot {}", root.display()));
    let text = |path: &Path| path.display().to_string();
    let unreachable = format!("(unreachable){}", program.display());
    let actors = [
        (&program, None, text(&program)),
        (&bound, None, text(&bound)),
        (&program, chroot(scratch.path()), text(&below)),
        (&program, chroot(&other), unreachable.clone()),
        // A copy of the mount namespace does not show what another mount had.
        (&program, Some("unshare mnt".to_owned()), unreachable),
    ]
    .map(|(program, change, exe)| (Actor::run(program), change, exe));
    let (pod, mut daemon) = (Pod::new(), launch().start());
    for (mut actor, change, exe) in actors {
        pod.set_gateway();
        actor.act(&format!("netns {}", pod.netns().path().display()));
        if let Some(change) = change {
            actor.act(&change);
        }
        actor.act(&format!("delete eth0 {GATEWAY}"));
        let event = daemon.wait_for_deletion_by(actor.pid(), pod.inum(), GATEWAY);
        event.expect("/actor/confidence", "certain");
        event.expect("/actor/comm", "kubelet");
        event.expect("/actor/exe", exe);
    }
}

#[test]
fn the_path_is_that_of_the_root_at_the_moment_of_each_act() {
    let scratch = Scratch::new();
    let program = kubelet_on(&tmpfs(&scratch));
    let below = Path::new("/").join(program.strip_prefix(scratch.path()).expect("it lies there"));
    let (pod, mut actor) = (Pod::new(), Actor::run(&program));
    let mut daemon = launch().start();
    actor.act(&format!("netns {}", pod.netns().path().display()));
    // Its current directory stays outside, and from there it finds the way back.
    let inside = format!("chroot {}", scratch.path().display());
    let outside = format!("chroot {}", "../".repeat(32));
    let acts =
        [(None, &program), (Some(&inside), &below), (Some(&outside), &program), (Some(&inside), &below)];
    for (change, exe) in acts {
        if let Some(change) = change {
            actor.act(change);
        }
        let address = unique::address(31);
        pod.set_neighbor(&address, "02:00:00:00:00:01", NeighbourState::Permanent);
        actor.act(&format!("delete eth0 {address}"));
        let event = daemon.wait_for_deletion_by(actor.pid(), pod.inum(), &address);
        event.expect("/actor/confidence", "certain");
        event.expect("/actor/exe", exe.to_string_lossy());
    }
}

#[test]
fn a_program_whose_mount_was_detached_is_said_to_be_unreachable() {
    let scratch = Scratch::new();
    let mount = tmpfs(&scratch);
    let actor = Actor::run(kubelet_on(&mount));
    run(&format!("umount -l {}", mount.point().display()));
    event_of(actor, &[]).expect("/actor/exe", "(unreachable)/usr/bin/kubelet");
}

#[test]
fn a_copy_of_the_mount_namespace_shows_what_is_on_the_root_file_system() {
    let program = actor::program();
    let on_root = |path: &Path| {
        let device = |path: &Path| std::fs::metadata(path).expect("it is there").dev();
        device(path) == device(Path::new("/"))
    };
    let copy = Path::new("/usr/bin").join(unique::name("kva"));
    std::fs::create_dir_all("/usr/bin").expect("a directory can be made");
    let _cleanup = Cleanup::script(&format!("rm -f '{}'", copy.display()));
    run(&format!("cp {} {}", program.display(), copy.display()));
    assert!(on_root(&copy), "/usr/bin is on another file system than the root");
    let event = event_of(Actor::run(&copy), &["unshare mnt".to_owned()]);
    event.expect("/actor/exe", copy.to_string_lossy());
}

#[test]
fn a_deleted_program_is_said_to_be_deleted() {
    let scratch = Scratch::new();
    let program = kubelet_on(&tmpfs(&scratch));
    let actor = Actor::run(&program);
    std::fs::remove_file(&program).expect("it can be deleted");
    event_of(actor, &[]).expect("/actor/exe", format!("{} (deleted)", program.display()));
}

#[test]
fn a_program_in_memory_has_no_path_of_a_file() {
    let name = CString::new("kubelet").expect("a name");
    // SAFETY: the name ends with a NUL; the descriptor is new and owned by nobody else.
    let memory = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), 0)) };
    let mut memory = std::fs::File::from(memory);
    memory.write_all(&std::fs::read(actor::program()).expect("a program")).expect("it fits");
    // Opened again for reading only, since what is open for writing cannot be executed.
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let reader = std::fs::File::open(path).expect("it can be opened");
    drop(memory);
    let path = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
    event_of(Actor::run(path), &[]).expect("/actor/exe", "/memfd:kubelet (deleted)");
}
