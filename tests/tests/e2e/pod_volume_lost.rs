//! Volumes of pods that run, which somebody unmounts behind the kubelet's back.

use std::path::{Path, PathBuf};

use kevtmon_tests::advice::{incident, is_understood, offered, opened, resolved};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{kubelet_roots, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::mount::{Mount, Scratch};
use kevtmon_tests::pod_sandbox::uuid;
use kevtmon_tests::process::{attempt, comm};

const KIND: &str = "pod-volume-lost";

/// A container that has a volume of its pod.
struct App<'d> {
    uid: String,
    volume: Mount,
    container: Container<'d>,
}

impl<'d> App<'d> {
    fn start(dockerd: &'d Dockerd, kubelet: &Path, pod: &str) -> Self {
        let uid = uuid();
        let point = kubelet.join("pods").join(&uid).join("volumes/kubernetes.io~local-volume/data");
        let volume = Mount::at(&point);
        let image = dockerd.labelled_image(&[
            ("io.kubernetes.pod.namespace", "lijiaob"),
            ("io.kubernetes.pod.name", pod),
            ("io.kubernetes.pod.uid", &uid),
            ("io.kubernetes.container.name", "etcd"),
            ("io.kubernetes.docker.type", "container"),
        ]);
        let bind = format!("{}:/data", point.display());
        let group = dockerd.pod_cgroup(&uid);
        let options = ["--network", "none", "--cgroup-parent", &group, "--volume", &bind];
        let container = Container::of_image(dockerd, &image, &options, &["sh", "-c", "exec sleep 1000000"]);
        Self { uid, volume, container }
    }

    fn is_its(&self, event: &Event) -> bool {
        event.text("/target/pod/uid") == self.uid
    }

    /// Mounts a file system where the volume is, or was.
    fn mount(&self, source: &str) {
        let point: PathBuf = self.volume.point().to_owned();
        let words = ["mount".as_ref(), "-t".as_ref(), "tmpfs".as_ref(), source.as_ref(), point.as_os_str()];
        let _ = attempt(&words).succeeded("mount");
    }

    /// Mounts it over itself.
    fn mount_again(&self) {
        let point = self.volume.point().as_os_str();
        let _ = attempt(&["mount".as_ref(), "--bind".as_ref(), point, point]).succeeded("mount");
    }

    fn umount(&self) {
        let _ = self.volume.umount().succeeded("umount");
    }
}

#[test]
fn a_volume_that_is_unmounted_under_a_running_pod_is_reported_until_it_is_mounted_again() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let kubelet = scratch.path().join("kubelet");
    let [lost, covered, completed] =
        ["etcd-0", "etcd-1", "job-7x"].map(|pod| App::start(dockerd, &kubelet, pod));
    let config = format!("{}[incidents]\npod_volume_lost_seconds = 1\n", kubelet_roots(&kubelet));
    let mut daemon = launch().config(&config).runtime(dockerd.runtime()).start();
    // A kubelet unmounts the volumes of a pod that has ended.
    let App { container: mut ended, volume, uid } = completed;
    ended.end(&["kill"]);
    let _ = daemon.wait_for("its end", |event| {
        event.kind() == "container.exited" && event.text("/target/pod/uid") == uid
    });
    let _ = volume.umount().succeeded("umount");
    // What was mounted on it is not the volume.
    covered.mount_again();
    covered.umount();
    lost.umount();
    let id = opened(&mut daemon, KIND, |event| lost.is_its(event));
    let found = incident(&daemon, &id);
    found.expect("/severity", "critical");
    found.expect("/confidence", "likely");
    found.expect("/actor/comm", "umount");
    let by = {
        let pid = std::process::id();
        format!("{} (pid {pid})", comm(pid).expect("it lives"))
    };
    let summary = format!(
        "{by}, by means of umount, has likely unmounted volume data (kubernetes.io/local-volume) of pod lijiaob/etcd-0, which runs: \
         containers that start in it now write to the disk of the node"
    );
    found.expect("/summary", summary.as_str());
    let file = lost.container.exec(&[], &["cat", "/data/file"]).succeeded("cat");
    assert_eq!(file.stdout, "held\n", "its container still has it");
    let delete = "kubectl -n lijiaob delete pod etcd-0".to_owned();
    assert_eq!(offered(&found, "pod-volume-lost/delete-pod"), Some(delete));
    let _ = is_understood(&daemon, &id, "pod-volume-lost/delete-pod", &["127.0.0.1:1 was refused"]);
    lost.mount("kevtmon");
    let _ = resolved(&mut daemon, &id);
    let of_others = |event: &&Event| event.is_incident("incident.opened", KIND) && !lost.is_its(event);
    assert_eq!(daemon.events().iter().find(of_others).map(ToString::to_string), None);
    covered.umount();
    let _ = opened(&mut daemon, KIND, |event| covered.is_its(event));
}

#[test]
fn a_volume_that_is_covered_under_a_running_pod_is_reported_until_the_cover_is_gone() {
    let dockerd = Dockerd::shared();
    let scratch = Scratch::new();
    let kubelet = scratch.path().join("kubelet");
    let [app, other] = ["etcd-2", "etcd-3"].map(|pod| App::start(dockerd, &kubelet, pod));
    let config = format!("{}[incidents]\npod_volume_lost_seconds = 1\n", kubelet_roots(&kubelet));
    let mut daemon = launch().config(&config).runtime(dockerd.runtime()).start();
    // What is mounted over itself is the volume.
    other.mount_again();
    app.mount("cover");
    let id = opened(&mut daemon, KIND, |event| app.is_its(event));
    let found = incident(&daemon, &id);
    found.expect("/severity", "critical");
    found.expect("/confidence", "likely");
    let summary = found.text("/summary");
    let what = "volume data (kubernetes.io/local-volume) of pod lijiaob/etcd-2, which runs, is covered by cover (tmpfs, ";
    let at = format!(") at {}: containers", app.volume.point().display());
    assert!(summary.starts_with(what) && summary.contains(&at), "{summary}");
    let file = app.container.exec(&[], &["cat", "/data/file"]).succeeded("cat");
    assert_eq!(file.stdout, "held\n", "its container still has the volume");
    app.umount();
    let _ = resolved(&mut daemon, &id);
    let of_others = |event: &&Event| event.is_incident("incident.opened", KIND) && !app.is_its(event);
    assert_eq!(daemon.events().iter().find(of_others).map(ToString::to_string), None);
}
