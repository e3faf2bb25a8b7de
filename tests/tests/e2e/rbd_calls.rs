//! Calls of `rbd`: which images are wanted on the node, and which locks are left. The program is a fake that only ends: a real one
//! needs a cluster. That the kernel has an image mapped is a tree in place of sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use kevtmon_tests::advice::{incident, is_understood, opened, resolved};
use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, POLL_EACH_SECOND, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::event::Event;
use kevtmon_tests::eventually;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::rbd_call::FakeRbd;
use kevtmon_tests::unique;
use nix::sys::signal::Signal;

const KIND: &str = "rbd-lock-left";
/// Stands in every secret, and nowhere else.
const SECRET: &str = "AQs3cr3t";
/// What the plugin in the kubelet adds to its calls.
const KUBELETS: &str = "--pool kube --id admin -m 10.47.136.2:6789,10.47.136.3:6789 --key=AQs3cr3t1==";

fn is_wanted(daemon: &Daemon, namespace: &str, image: &str) -> bool {
    let labels = [("pool", "kube"), ("rados_namespace", namespace), ("image", image)];
    daemon.metrics().sum("kevtmon_rbd_image_wanted", &labels) == Some(1.0)
}

fn malformed(daemon: &Daemon) -> f64 {
    daemon.metrics().sum("kevtmon_malformed_total", &[("source", "hook.exec")]).unwrap_or(0.0)
}

/// A call that is seen, so those before it were.
fn fence(daemon: &Daemon, rbd: &FakeRbd) {
    let image = unique::name("fence");
    let _ = rbd.call(&format!("map kube/{image}"));
    eventually!(is_wanted(daemon, "", &image), "a call is seen");
}

#[test]
fn an_image_is_wanted_on_the_node_on_which_it_is_asked_for_by_whatever_program() {
    let (script, binary) = (FakeRbd::script(), FakeRbd::binary());
    let daemon = launch().start();
    assert_eq!(daemon.metrics().sum("kevtmon_rbd_image_wanted", &[("image", "never")]), None);
    let [mapped, locked, driven, asked] = ["mapped", "locked", "driven", "asked"].map(unique::name);
    let _ = script.call(&format!("map {mapped} {KUBELETS}")).succeeded("rbd");
    let _ =
        script.call(&format!("lock add {locked} kubelet_lock_magic_slave-197 {KUBELETS}")).succeeded("rbd");
    let driver =
        format!("--id csi -m 10.1.1.1:6789 --keyfile=/tmp/key device map kube/team-a/{driven} -t krbd");
    let _ = binary.call(&driver).succeeded("rbd");
    eventually!(is_wanted(&daemon, "", &mapped), "what is to be mapped");
    eventually!(is_wanted(&daemon, "", &locked), "what is locked");
    eventually!(is_wanted(&daemon, "team-a", &driven), "what a driver asks for");
    let before = malformed(&daemon);
    let _ = binary.call(&format!("status kube/{asked}")).succeeded("rbd");
    let _ = binary.call(&format!("map kube/{asked}@nightly")).succeeded("rbd");
    let _ = binary.call(&format!("map --unheard-of kube/{asked}")).succeeded("rbd");
    eventually!(malformed(&daemon) > before, "what is not understood is counted");
    fence(&daemon, &script);
    assert!(!is_wanted(&daemon, "", &asked));
}

#[test]
fn only_who_may_administer_the_node_is_believed_and_the_container_of_a_driver() {
    let rbd = FakeRbd::script();
    let daemon = launch().start();
    let image = unique::name("none");
    let ways: [&[&str]; 4] = [
        &["setpriv", "--reuid=65534", "--clear-groups"],
        &["setpriv", "--reuid=65534", "--clear-groups", "unshare", "--user", "--map-root-user"],
        &["setpriv", "--ruid=65534"],
        &["setpriv", "--inh-caps=-sys_admin", "--bounding-set=-sys_admin"],
    ];
    for way in ways {
        let _ = rbd.call_by(way, &format!("map kube/{image}")).succeeded(&way.join(" "));
    }
    let volume = format!("{0}:{0}", rbd.directory().path().display());
    let (plain, driver) = (unique::name("plain"), unique::name("driver"));
    let in_container = |options: &[&str], image: &str| {
        let options = [&["--network", "none", "--volume", &volume], options].concat();
        let container = Container::idle(Dockerd::shared(), &options);
        let line = format!("{} map kube/{image}", rbd.path().display());
        let ran = container.exec(&[], &["sh", "-c", &line]);
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    };
    in_container(&[], &plain);
    in_container(&["--cap-add", "SYS_ADMIN"], &driver);
    eventually!(is_wanted(&daemon, "", &driver), "it can map images");
    fence(&daemon, &rbd);
    assert!(!is_wanted(&daemon, "", &plain));
    assert!(!is_wanted(&daemon, "", &image));
    // In a mount namespace of its own, as in the container of a driver.
    let _ = rbd.call_by(&["unshare", "--mount"], &format!("map kube/{image}")).succeeded("unshare");
    eventually!(is_wanted(&daemon, "", &image), "it can map images");
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory can be read");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn keys_of_the_cluster_stand_in_nothing_that_is_written() {
    let rbd = FakeRbd::script();
    // Its incident tells who has taken it, with the command line.
    let launch = launch().config(&format!("{}[incidents]\nrbd_lock_left_seconds = 1\n", no_images(&rbd)));
    let record = launch.directory().join("record.ndjson");
    let mut daemon = launch.argument("--record").argument(&record).start();
    let image = unique::name("secret");
    for line in [
        format!("lock add {image} lock {KUBELETS}"),
        format!("map {image} --pool kube --key {SECRET}2"),
        format!("map kube/{image} -o name=admin,secret={SECRET}3"),
        format!("map --unheard-of a --key {SECRET}4"),
    ] {
        let _ = rbd.call(&line);
    }
    let is_its = |event: &Event| event.text("/rbd/image") == image;
    let open = daemon.wait_for(KIND, |event| event.is_incident("incident.opened", KIND) && is_its(event));
    assert!(open.text("/actor/cmdline").contains("--key=***"), "masked, not dropped: {open}");
    fence(&daemon, &rbd);
    let state = daemon.state();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0), "{}", daemon.log());
    let mut looked = 0;
    for path in files(&state).into_iter().chain([record]).chain(files(daemon.directory())) {
        let bytes = fs::read(&path).unwrap_or_default();
        looked += bytes.len();
        assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "{}", path.display());
    }
    assert!(looked > 4096, "{looked} bytes");
    assert!(daemon.events().iter().all(|event| !event.to_string().contains(SECRET)));
}

/// The configuration of a daemon for which nothing is mapped.
fn no_images(rbd: &FakeRbd) -> String {
    let sysfs = rbd.directory().path().join("sys");
    fs::create_dir_all(sysfs.join("bus/rbd/devices")).expect("a directory can be made");
    polled(&sysfs)
}

/// The part of the configuration that tells where sysfs is, and to look there often.
fn polled(sysfs: &Path) -> String {
    format!("{POLL_EACH_SECOND}[rbd]\nsysfs = \"{}\"\n", sysfs.display())
}

/// As sysfs shows an image that is mapped.
fn map(sysfs: &Path, image: &str) -> PathBuf {
    let directory = sysfs.join("bus/rbd/devices/0");
    fs::create_dir_all(&directory).expect("a directory can be made");
    let files = [("pool", "kube"), ("name", image), ("current_snap", "-"), ("major", "252"), ("minor", "0")];
    for (name, text) in files {
        fs::write(directory.join(name), format!("{text}\n")).expect("a file can be written");
    }
    directory
}

/// The same for a daemon that looks meanwhile: no file of it is missing at any time.
fn map_at_once(sysfs: &Path, image: &str) -> PathBuf {
    let device = sysfs.join("bus/rbd/devices/0");
    fs::rename(map(&sysfs.join("new"), image), &device).expect("a directory can be moved");
    device
}

#[test]
fn a_lock_that_is_left_when_its_image_was_unmapped_is_an_incident_until_it_is_removed() {
    let (rbd, scratch) = (FakeRbd::script(), Scratch::without_mounts());
    let image = unique::name("locked");
    let device = map(scratch.path(), &image);
    let config = format!("{}[incidents]\nrbd_lock_left_seconds = 1\n", polled(scratch.path()));
    let mut daemon = launch().config(&config).start();
    let lock = "kubelet_lock_magic_slave-197";
    let _ = rbd.call(&format!("lock add {image} {lock} {KUBELETS}")).succeeded("rbd");
    // What fails takes no lock.
    let failed = unique::name("failed");
    assert_eq!(rbd.fail(&format!("lock add {failed} {lock} {KUBELETS}"), 16).status.code(), Some(16));
    fence(&daemon, &rbd);
    fs::remove_dir_all(device).expect("the tree is the test's");
    let is_its = |event: &Event| event.text("/rbd/image") == image;
    let unmapped = daemon.wait_for("rbd.unmapped", |event| event.kind() == "rbd.unmapped" && is_its(event));
    let id = opened(&mut daemon, KIND, is_its);
    let open = incident(&daemon, &id);
    let summary = open.text("/summary");
    let begin = format!(
        "RBD image kube/{image} is not mapped on this node, though lock {lock} on it was taken here by "
    );
    assert!(summary.starts_with(&begin) && summary.contains("rbd (pid "), "{summary}");
    assert!(summary.ends_with(" and has not been removed here for 1 s"), "{summary}");
    assert_eq!(open.text("/confidence"), "likely");
    assert!(open.to_string().contains(&format!("rbd lock remove kube/{image} {lock} LOCKER")), "{open}");
    let event = daemon.wait_for("its event", |event| event.text("/incident/id") == id);
    event.expect("/rbd/lock", lock);
    event.expect("/actor/comm", "rbd");
    event.expect_none("/rbd/device");
    assert!(event.number("/seq") > unmapped.number("/seq"), "not while it was mapped: {event}");
    let unreachable = ["ceph.conf", "connect to the cluster", "No such", "unable to get monitor"];
    let _ = is_understood(&daemon, &id, "rbd-lock-left/list-watchers", &unreachable);
    let _ = is_understood(&daemon, &id, "rbd-lock-left/list-locks", &unreachable);

    let remove = format!("lock remove {image} {lock} client.24128 {KUBELETS}");
    let _ = rbd.fail(&remove, 2);
    fence(&daemon, &rbd);
    assert!(!incident(&daemon, &id).list("/advice").is_empty(), "it is still open");
    let _ = rbd.call(&remove).succeeded("rbd");
    let closed = resolved(&mut daemon, &id);
    assert!(closed.text("/incident/summary").contains(" is not mapped on this node"), "{closed}");
    let of_other =
        |event: &Event| event.is_incident("incident.opened", KIND) && event.text("/rbd/image") == failed;
    assert!(!daemon.events().iter().any(of_other));
}

#[test]
fn who_called_rbd_has_likely_mapped_or_unmapped_the_image_unless_another_one_did_so_too() {
    let (rbd, scratch) = (FakeRbd::script(), Scratch::without_mounts());
    fs::create_dir_all(scratch.path().join("bus/rbd/devices")).expect("a directory can be made");
    let mut daemon = launch().config(&polled(scratch.path())).start();
    let [one, wrapped_image, both] = ["one", "wrapped", "both"].map(unique::name);
    let of = |kind: &'static str, image: &str| {
        let image = image.to_owned();
        move |event: &Event| event.kind() == kind && event.text("/rbd/image") == image
    };
    let mapper = rbd.call(&format!("map kube/{one} {KUBELETS}")).succeeded("rbd");
    // What fails maps nothing.
    let _ = rbd.fail(&format!("map kube/{one}"), 16);
    fence(&daemon, &rbd);
    let device = map_at_once(scratch.path(), &one);
    let mapped = daemon.wait_for("it is mapped", of("rbd.mapped", &one));
    mapped.expect("/actor/pid", mapper.pid);
    mapped.expect("/actor/confidence", "likely");
    assert!(mapped.text("/message").contains("mapped as /dev/rbd0, likely by "), "{mapped}");
    let unmapper = rbd.call("unmap /dev/rbd0").succeeded("rbd");
    fence(&daemon, &rbd);
    fs::remove_dir_all(device).expect("the tree is the test's");
    let unmapped = daemon.wait_for("it is unmapped", of("rbd.unmapped", &one));
    unmapped.expect("/actor/pid", unmapper.pid);

    // A script around it is no other call.
    let wrapper = FakeRbd::around(&rbd);
    let wrapped = wrapper.call(&format!("map kube/{wrapped_image} {KUBELETS}")).succeeded("rbd");
    fence(&daemon, &rbd);
    let device = map_at_once(scratch.path(), &wrapped_image);
    let mapped = daemon.wait_for("it is mapped", of("rbd.mapped", &wrapped_image));
    assert_ne!(mapped.number("/actor/pid"), Some(u64::from(wrapped.pid)), "{mapped}");
    mapped.expect("/actor/ancestors/0/pid", wrapped.pid);
    fs::remove_dir_all(device).expect("the tree is the test's");

    for _ in 0..2 {
        let _ = rbd.call(&format!("map kube/{both}")).succeeded("rbd");
    }
    fence(&daemon, &rbd);
    let _ = map_at_once(scratch.path(), &both);
    daemon.wait_for("it is mapped", of("rbd.mapped", &both)).expect_none("/actor");
}
