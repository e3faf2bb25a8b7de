//! Literal files of /proc and of root directories in, kubelets out. Real processes are in the tests of the package.

use std::os::unix::fs::symlink;

use super::*;

#[test]
fn a_program_is_known_by_its_file_name_alone() {
    for (exe, expected) in [
        ("/usr/bin/kubelet", Some("kubelet")),
        ("/opt/bin/kubelet (deleted)", Some("kubelet")),
        ("/hyperkube", Some("hyperkube")),
        ("/usr/bin/kubelet-helper", None),
        ("/usr/bin/dash", None),
    ] {
        assert_eq!(super::super::programs::named(exe, &PROGRAMS), expected, "{exe}");
    }
}

#[test]
fn the_root_directory_is_read_from_every_form_of_the_flag() {
    let of = |program: &str, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        root_dir(program, &words).map(|root| root.map(str::to_owned))
    };
    let root = |path: &str| Some(Some(path.to_owned()));
    assert_eq!(of("kubelet", "kubelet --v=2 --root-dir=/data/k --x"), root("/data/k"));
    assert_eq!(of("kubelet", "/usr/bin/kubelet --root-dir /data/k"), root("/data/k"));
    assert_eq!(of("kubelet", "kubelet --root-dir=/a --root-dir=/b"), root("/b"));
    assert_eq!(of("hyperkube", "hyperkube kubelet --root-dir=/h"), root("/h"));
    assert_eq!(of("kubelet", "kubelet --v=2"), Some(None));
    assert_eq!(of("kubelet", "kubelet --root-dir=../x"), Some(None));
    assert_eq!(of("kubelet", "kubelet --root-dir=/"), Some(None));
    assert_eq!(of("kubelet", "kubelet --root-dir-x=/x root-dir=/y"), Some(None));
    assert_eq!(of("hyperkube", "hyperkube apiserver --root-dir=/h"), None);
}

#[test]
fn a_runtime_other_than_dockershim_is_read_from_the_flags_of_a_kubelet() {
    let of = |words: &str| {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        remote_runtime(&words)
    };
    let remote = "kubelet --container-runtime=remote";
    let at = |path: &str| Some(path.to_owned());
    assert_eq!(of(&format!("{remote} --container-runtime-endpoint=unix:///run/x.sock")), at("/run/x.sock"));
    assert_eq!(of(&format!("{remote} --container-runtime-endpoint /run/x.sock --v=2")), at("/run/x.sock"));
    assert_eq!(of(&format!("{remote} --container-runtime-endpoint=tcp://u:p@h:1")), at(""));
    assert_eq!(of(remote), at(""));
    // dockershim serves that itself.
    assert_eq!(of("kubelet --container-runtime-endpoint=unix:///var/run/dockershim.sock"), None);
    assert_eq!(of(&format!("{remote} --container-runtime=docker")), None, "the last one counts");
    assert_eq!(
        of("kubelet --container-runtime-endpoint=unix:///run/x.sock --container-runtime docker"),
        None
    );
}

#[test]
fn a_root_directory_is_known_with_and_without_its_links() {
    let top = tempfile::tempdir().unwrap();
    fs::create_dir_all(top.path().join("data/kubelet")).unwrap();
    fs::create_dir_all(top.path().join("var/lib")).unwrap();
    symlink("../../srv/kubelet", top.path().join("var/lib/kubelet")).unwrap();
    symlink("/data", top.path().join("srv")).unwrap();
    symlink("knot", top.path().join("knot")).unwrap();
    let of = |root: &str| with_resolved(top.path(), [root.to_owned()].iter());
    assert_eq!(of("/var/lib/kubelet"), ["/var/lib/kubelet", "/data/kubelet"]);
    assert_eq!(of("/data/kubelet"), ["/data/kubelet"]);
    assert_eq!(of("/not/there"), ["/not/there"]);
    assert_eq!(of("/knot"), ["/knot"]);
}

#[test]
fn the_host_is_a_kubelets_namespace_and_this_process_is_no_kubelet() {
    let finder = KubeletFinder::new(&Roots(vec!["/data/k".into()]));
    let own = Proc::default().ns(std::process::id(), "mnt").unwrap();
    let look =
        Look { configured: finder.configured.clone(), former: VecDeque::new(), daemon: std::process::id() };
    for facts in [finder.configured(), look.run(&Proc::default()).facts] {
        let here = facts.namespaces.iter().find(|namespace| namespace.mntns == own).unwrap();
        assert_eq!(here.roots[..2], ["/data/k", "/var/lib/kubelet"]);
        assert!(!here.of_kubelet);
    }
    let me = std::process::id();
    assert_eq!(kubelet(&Proc::default(), me, &mut Buffers::default()), None);
}

#[test]
fn who_asks_during_a_look_is_answered_by_the_next_one() {
    let mut stage = Stage::default();
    assert!(stage.ask());
    assert!(!stage.ask() && !stage.ask(), "one look at a time");
    assert!(!stage.is_done(), "that look began before the last question");
    assert!(stage.is_done() && stage == Stage::Idle);
    assert!(stage.ask() && stage.is_done());
}
