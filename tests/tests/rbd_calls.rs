//! Calls of `rbd`: which images are wanted on the node. The program is a fake that only ends: a real one
//! needs a cluster.

#![allow(clippy::expect_used, reason = "a test whose set-up fails must fail")]

use kevtmon_tests::container::Container;
use kevtmon_tests::daemon::{Daemon, launch};
use kevtmon_tests::dockerd::Dockerd;
use kevtmon_tests::eventually;
use kevtmon_tests::rbd_call::FakeRbd;
use kevtmon_tests::unique;

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
fn only_who_may_administer_the_node_is_believed() {
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
    fence(&daemon, &rbd);
    assert!(!is_wanted(&daemon, "", &image));
    // In a mount namespace of its own, as in the container of a driver.
    let _ = rbd.call_by(&["unshare", "--mount"], &format!("map kube/{image}")).succeeded("unshare");
    eventually!(is_wanted(&daemon, "", &image), "it can map images");
}

#[test]
fn the_container_of_a_driver_is_believed_and_no_other_container() {
    let rbd = FakeRbd::script();
    let daemon = launch().start();
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
}
