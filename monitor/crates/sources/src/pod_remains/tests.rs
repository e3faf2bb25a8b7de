use std::fs;
use std::path::Path;

use kevtmon_observation::{KubeletNamespace, NsInum};

use super::*;
use crate::procfs::mountinfo::MountTable;

const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";
const STATIC_UID: &str = "0123456789abcdef0123456789abcdef";

fn own_mntns() -> NsInum {
    Proc::default().ns(std::process::id(), "mnt").unwrap()
}

fn look(root: &Path, wanted: &[&str]) -> Option<Vec<PodRemains>> {
    let namespace = KubeletNamespace {
        mntns: own_mntns(),
        roots: vec![root.to_str().unwrap().to_owned()],
        of_kubelet: false,
        pid: None,
    };
    let look = Look {
        kubelets: KubeletFacts { namespaces: vec![namespace] },
        daemon: std::process::id(),
        wanted: Lists { processes: wanted.iter().map(|uid| (*uid).to_owned()).collect(), mounts: Vec::new() },
    };
    look.run(&Proc::default())
}

#[test]
fn each_directory_of_a_pod_is_told_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(look(root.path(), &[]), Some(Vec::new()), "no pod yet");
    for name in [UID, STATIC_UID, "no-pod", ".hidden"] {
        fs::create_dir_all(root.path().join("pods").join(name)).unwrap();
    }
    let pods = look(root.path(), &[]).unwrap();
    assert_eq!(pods.iter().map(|pod| pod.uid.as_str()).collect::<Vec<_>>(), [STATIC_UID, UID]);
    let pod = &pods[1];
    assert_eq!(pod.directory, root.path().join("pods").join(UID).to_str().unwrap());
    assert_eq!((pod.started, &pod.mounts[..], &pod.processes[..]), (false, &[][..], &[][..]));
}

#[test]
fn a_volume_is_stacked_if_each_of_its_mounts_is_on_the_one_before() {
    let line = |id: u32, parent: u32, volume: &str| {
        let point = format!("/k/pods/{UID}/volumes/kubernetes.io~csi/{volume}/mount");
        let source = if id == 31 { "/dev/rbd1" } else { "/dev/rbd0" };
        format!("{id} {parent} 252:0 / {point} rw - ext4 {source} rw\n")
    };
    let root = "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
    let own = [line(10, 1, "a"), line(11, 10, "a"), line(12, 11, "a"), line(13, 12, "a")].concat();
    let elsewhere = [line(20, 1, "b"), line(21, 1, "b"), line(22, 21, "b")].concat();
    let other = [line(30, 1, "c"), line(31, 30, "c"), line(32, 31, "c")].concat();
    let hidden = [line(40, 1, "d"), line(41, 40, "d"), line(42, 41, "d"), line(43, 1, "d")].concat();
    let table = MountTable::parse(&[root, own, elsewhere, other, hidden].concat(), "/");
    let namespace = KubeletNamespace { mntns: 7, roots: vec!["/k".into()], of_kubelet: true, pid: None };
    let stacked = directories::stacked(&table, &namespace);
    let [stack] = &stacked[UID][..] else { panic!("{stacked:?}") };
    assert_eq!((stack.layers, stack.mount.id), (4, 13), "its topmost");
}

#[test]
fn a_volume_is_covered_by_what_its_path_leads_to_instead() {
    let at = |volume: &str| format!("/k/pods/{UID}/volumes/kubernetes.io~rbd/{volume}");
    let line = |id: u32, parent: u32, device: &str, path: &str, what: &str| {
        format!("{id} {parent} {device} / {path} rw - {what} rw\n")
    };
    let [plain, over, again, above, memory, shared, back] = ["a", "b", "c", "d/e", "f", "g", "h"].map(at);
    let text = [
        line(1, 1, "8:1", "/", "ext4 /dev/sda1"),
        line(10, 1, "252:0", &plain, "ext4 /dev/rbd0"),
        line(20, 1, "252:1", &over, "ext4 /dev/rbd1"),
        line(21, 20, "0:60", &over, "tmpfs none"),
        line(30, 1, "0:70", &again, "fuse.x bucket"),
        line(31, 30, "0:71", &again, "fuse.x bucket"),
        line(40, 1, "252:2", &above, "ext4 /dev/rbd2"),
        line(41, 1, "0:61", &at("d"), "tmpfs none"),
        line(50, 1, "0:80", &memory, "tmpfs tmpfs"),
        line(51, 50, "0:81", &memory, "tmpfs tmpfs"),
        line(60, 1, "0:82", &shared, "tmpfs tmpfs"),
        line(61, 60, "0:82", &shared, "tmpfs tmpfs").replace(" / /", " /part /"),
        line(70, 1, "0:83", &back, "fuse.x bucket"),
        line(71, 70, "0:84", &back, "tmpfs none"),
        line(72, 71, "0:85", &back, "fuse.x bucket"),
    ];
    let table = MountTable::parse(&text.concat(), "/");
    let namespace = KubeletNamespace { mntns: 7, roots: vec!["/k".into()], of_kubelet: true, pid: None };
    let found = directories::covered(&table, &namespace).remove(UID).unwrap();
    let covers: Vec<_> = found.iter().map(|volume| (volume.mount.id, volume.cover.id)).collect();
    assert_eq!(covers, [(20, 21), (40, 41), (50, 51)]);
    let inside = |text: &str| directories::is_held(&MountTable::parse(text, "/"), &found[0]);
    let volume = line(90, 80, "252:1", "/data", "ext4 /dev/rbd1");
    let cover = line(91, 90, "0:60", "/data", "tmpfs none");
    assert!(inside(&volume));
    assert!(!inside(&format!("{volume}{cover}")), "it was propagated");
    assert!(!inside(&cover), "it started later");
    let mut cut = MountTable::parse(&volume, "/");
    cut.cut();
    assert!(!directories::is_held(&cut, &found[0]), "the rest may have the cover");
}

#[test]
fn thousands_of_layers_and_of_volumes_are_looked_through_once() {
    let line = |id: u32, parent: u32, volume: &str| {
        let path = format!("/k/pods/{UID}/volumes/kubernetes.io~empty-dir/{volume}");
        format!("{id} {parent} 0:{id} / {path} rw - tmpfs tmpfs rw\n")
    };
    let root = "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
    let layers = (2..20_000).map(|id| line(id, id - 1, "a"));
    let volumes = (20_000..40_000).map(|id| line(id, 1, &format!("b{id}")));
    let text: String = std::iter::once(root).chain(layers).chain(volumes).collect();
    let table = MountTable::parse(&text, "/");
    let namespace = KubeletNamespace { mntns: 7, roots: vec!["/k".into()], of_kubelet: true, pid: None };
    let found = directories::covered(&table, &namespace).remove(UID).unwrap();
    assert!(found.iter().all(|volume| volume.cover.id == 19_999), "the topmost");
    assert_eq!(found.len(), 32);
}

#[test]
fn a_pod_was_started_once_a_container_has_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("pods").join(UID);
    let started = || look(root.path(), &[]).unwrap()[0].started;
    fs::create_dir_all(directory.join("volumes/kubernetes.io~secret/token")).unwrap();
    assert!(!started(), "its volumes come before");
    fs::create_dir(directory.join("containers")).unwrap();
    assert!(!started());
    fs::create_dir_all(directory.join("containers/web")).unwrap();
    assert!(started());
    fs::remove_dir_all(directory.join("containers")).unwrap();
    let elsewhere = root.path().join("elsewhere/web");
    fs::create_dir_all(&elsewhere).unwrap();
    std::os::unix::fs::symlink(elsewhere.parent().unwrap(), directory.join("containers")).unwrap();
    assert!(!started(), "no link is followed");
}

#[test]
fn the_directory_of_a_volume_that_is_not_empty_is_told_of_a_pod_that_has_run() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("pods").join(UID);
    let filled = || look(root.path(), &[]).unwrap()[0].filled.clone();
    let volumes = directory.join("volumes");
    for (volume, file) in [("kubernetes.io~rbd/data", "left"), ("kubernetes.io~csi/pvc-1", "mount/left")] {
        let file = volumes.join(volume).join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    fs::create_dir_all(volumes.join("kubernetes.io~rbd/empty")).unwrap();
    std::os::unix::fs::symlink(&volumes, volumes.join("kubernetes.io~rbd/link")).unwrap();
    assert_eq!(filled(), [""; 0], "what it is to have is made before it runs");
    fs::create_dir_all(directory.join("containers/web")).unwrap();
    let path = |volume: &str| format!("{}/{volume}", volumes.to_str().unwrap());
    assert_eq!(filled(), [path("kubernetes.io~csi/pvc-1"), path("kubernetes.io~rbd/data")]);
    fs::remove_dir_all(volumes.join("kubernetes.io~csi")).unwrap();
    fs::remove_file(volumes.join("kubernetes.io~rbd/data/left")).unwrap();
    assert_eq!(filled(), [""; 0]);
}

#[test]
fn a_directory_that_cannot_be_listed_is_no_news() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("pods"), "").unwrap();
    assert_eq!(look(root.path(), &[]), Some(Vec::new()), "no directory");
    let loops = root.path().join("loop");
    std::os::unix::fs::symlink(&loops, &loops).unwrap();
    assert_eq!(look(&loops, &[]), None);
}

#[test]
fn a_kubelet_whose_namespace_is_gone_is_looked_for_again() {
    let namespace = KubeletNamespace { mntns: 1, roots: Vec::new(), of_kubelet: true, pid: Some(u32::MAX) };
    let of = |of_kubelet| {
        let namespaces = vec![KubeletNamespace { of_kubelet, ..namespace.clone() }];
        let look = Look {
            kubelets: KubeletFacts { namespaces },
            daemon: std::process::id(),
            wanted: Lists::default(),
        };
        look.run(&Proc::default())
    };
    assert_eq!(of(true), None);
    assert_eq!(of(false), Some(Vec::new()));
}
