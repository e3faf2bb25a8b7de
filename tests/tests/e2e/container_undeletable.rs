//! Containers that Docker cannot remove, since something is mounted in their directory that it does not find, or since a file of theirs
//! is immutable.

use std::path::{Path, PathBuf};

use kevtmon_tests::advice::{carry_out, look, opened, resolved};
use kevtmon_tests::daemon::{Daemon, Launch, POLL_EACH_SECOND, kubelet_roots, launch};
use kevtmon_tests::dockerd::{Dockerd, IMAGE};
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::{Mount, Scratch, is_about};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{Finished, apart, attempt, hold_by_cwd};

const KIND: &str = "container-undeletable";

/// A daemon whose data is mounted at another place, too, as where an administrator has moved it: what is mounted by that path
/// is no mount of the daemon's to be found, and is on the same directories.
struct Stage {
    dockerd: Dockerd,
    scratch: Scratch,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { scratch: Scratch::new(), dockerd: Dockerd::prepare() };
        for directory in [stage.data(), stage.alias()] {
            std::fs::create_dir(directory).expect("a directory can be made");
        }
        let (data, alias) = (stage.data(), stage.alias());
        mount(&["--bind".as_ref(), &data, &alias]);
        mount(&["--make-private".as_ref(), &alias]);
        stage.dockerd.launch();
        stage
    }

    fn data(&self) -> PathBuf {
        self.dockerd.directory().join("data")
    }

    fn alias(&self) -> PathBuf {
        self.dockerd.directory().join("alias")
    }

    fn container(&self) -> String {
        let words = ["run", "-d", "--network", "none", IMAGE, "sleep", "1000000"];
        self.dockerd.docker(&words).stdout.trim().to_owned()
    }

    fn kubelet_root(&self) -> PathBuf {
        self.scratch.path().join("kubelet")
    }

    fn launch(&self) -> Launch {
        let incidents = "[incidents]\ncontainer_undeletable_seconds = 8\nmount_leak_seconds = 1\n";
        let config = format!("{}\n{POLL_EACH_SECOND}{incidents}", kubelet_roots(&self.kubelet_root()));
        launch().joining(self.dockerd.runtime()).config(&config)
    }
}

fn mount(words: &[&Path]) {
    let all: Vec<&Path> = [Path::new("mount")].into_iter().chain(words.iter().copied()).collect();
    let _ = attempt(&all).succeeded("mount");
}

/// Panics unless the incident tells what is in the way, and who holds that.
#[track_caller]
fn expect_reason(event: &Event, id: &str, point: &Path, holder: u32) {
    event.expect("/target/container/id", id);
    event.expect("/mount/child_mounts/0", &*point.to_string_lossy());
    let holders = event.list("/holders");
    assert!(holders.iter().any(|held| held["pid"] == holder && held["access"] == "cwd"), "{event}");
    let words =
        format!("mounted on the same directory, at {}, held by sleep (pid {holder})", point.display());
    assert!(event.text("/message").contains(&words), "{event}");
}

fn is_of(event: &Event, id: &str) -> bool {
    event.has("/target/container") && event.text("/target/container/id") == id
}

fn removed(daemon: &mut Daemon, id: &str) {
    daemon.wait_for("container.removed", |event| event.kind() == "container.removed" && is_of(event, id));
}

#[test]
fn a_container_that_docker_leaves_dead_is_told_with_who_holds_what_until_it_is_removed() {
    let stage = Stage::new();
    let volume = format!("pods/{}/volumes/kubernetes.io~rbd/data", uuid());
    let left = Mount::at(&stage.kubelet_root().join(volume));
    let mut daemon = stage.launch().start();
    let (in_order, id) = (stage.container(), stage.container());
    stage.dockerd.docker(&["rm", "--force", &in_order]);
    removed(&mut daemon, &in_order);

    let below = Path::new("containers").join(&id).join("checkpoints");
    let (path, point) = (stage.data().join(&below), stage.alias().join(&below));
    mount(&["-t".as_ref(), "tmpfs".as_ref(), "x".as_ref(), &point]);
    let mut holder = hold_by_cwd(&point);
    let refused = stage.dockerd.attempt(&["rm", "--force", &id]);
    assert!(refused.stderr.contains("device or resource busy"), "{}", refused.stderr);

    let busy = daemon.wait_for_holders("the refused removal", |event| is_about(event, "mount.busy", &path));
    busy.expect("/mount/container_id", id.as_str());
    busy.expect("/holders_verdict", "child-mount");
    expect_reason(&busy, &id, &point, holder.pid());
    let told = daemon.wait_for("the incident", |event| event.is_incident("incident.opened", KIND));
    expect_reason(&told, &id, &point, holder.pid());
    told.expect("/severity", "warning");
    told.expect("/target/container/state", "dead");
    for words in ["could not be removed, and is dead: unlinkat of ", "; the runtime says \"unable to remove"]
    {
        assert!(told.text("/message").contains(words), "{told}");
    }
    assert!(!told.text("/message").contains(&in_order), "{told}");
    let story = daemon.ask(&["why", &id]);
    assert!(story.stdout.contains(KIND) && story.stdout.contains("held by sleep"), "{}", story.stdout);

    // One that starts later has seen nothing of that.
    let mut later = stage.launch().start();
    let found = later.wait_for("the incident", |event| event.is_incident("incident.opened", KIND));
    found.expect("/target/container/id", id.as_str());
    found.expect("/incident/found_at_start", true);
    assert!(found.text("/message").contains("the refused call was not seen; the runtime says"), "{found}");

    // It may be what another namespace still has, as this one has another mount.
    let apart = apart();
    later.wait_for_mount_inventory();
    assert!(left.umount().status.success(), "a private copy refuses nothing");
    let leak =
        opened(&mut later, "mount-leak", |event| event.number("/actor/pid") == Some(apart.pid().into()));
    let _ = carry_out(&later, found.text("/incident/id"), "container-undeletable/show-leaks");
    drop(apart);
    let _ = resolved(&mut later, &leak);

    let incident = opened(&mut daemon, KIND, |event| is_of(event, &id));
    look(&daemon, &incident);
    let _ = carry_out(&daemon, &incident, "container-undeletable/show-users");
    let _ = carry_out(&daemon, &incident, "container-undeletable/end-process");
    eventually!(holder.ended().is_some(), "the holder ends");
    let _ = carry_out(&daemon, &incident, "container-undeletable/unmount");
    let _ = carry_out(&daemon, &incident, "container-undeletable/remove-by-docker");
    removed(&mut daemon, &id);
    let _ = resolved(&mut daemon, &incident);
    removed(&mut later, &id);
    let all = daemon.events();
    let of_kind = all.iter().filter(|event| event.is_incident("incident.opened", KIND));
    assert_eq!(of_kind.count(), 1, "the one that was removed in order had none");
}

/// A file that cannot be removed before this is dropped, or somebody clears the flag.
struct Immutable(PathBuf);

impl Immutable {
    fn new(file: PathBuf) -> Self {
        std::fs::write(&file, "").expect("a file can be written");
        let file = Self(file);
        let _ = file.chattr("+i").succeeded("chattr +i");
        file
    }

    fn chattr(&self, change: &str) -> Finished {
        attempt(&[Path::new("chattr"), Path::new(change), &self.0])
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        drop(self.chattr("-i"));
    }
}

#[test]
fn an_immutable_file_of_a_container_is_told_and_no_holder() {
    let stage = Stage::new();
    let mut daemon = stage.launch().start();
    let id = stage.container();
    let format = "{{.GraphDriver.Data.UpperDir}}";
    let upper = stage.dockerd.docker(&["inspect", "--format", format, &id]).stdout;
    let file = Immutable::new(Path::new(upper.trim()).join("a key"));
    let refused = stage.dockerd.attempt(&["rm", "--force", &id]);
    assert!(refused.stderr.contains("operation not permitted"), "{}", refused.stderr);

    let told = daemon.wait_for("the incident", |event| event.is_incident("incident.opened", KIND));
    told.expect("/target/container/id", id.as_str());
    told.expect("/incident/confidence", "likely");
    let words = format!(": no holder: file \"{}\" is immutable; the runtime says ", file.0.display());
    assert!(told.text("/message").contains(&words), "{told}");
    assert!(!told.has("/mount") && !told.has("/holders"), "{told}");

    let incident = opened(&mut daemon, KIND, |event| is_of(event, &id));
    let _ = carry_out(&daemon, &incident, "container-undeletable/clear-flag");
    let _ = carry_out(&daemon, &incident, "container-undeletable/remove-by-docker");
    removed(&mut daemon, &id);
    let _ = resolved(&mut daemon, &incident);
    assert!(!file.0.exists(), "it went with its container");
}
