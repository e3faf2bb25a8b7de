//! Calls that are refused for a mount that is left.

use super::*;

#[test]
fn a_refused_unmount_of_it_is_a_warning_and_evidence() {
    let mut node = node();
    node.observe(task(30_001, "/usr/bin/umount"));
    node.observe(umount(Some(16)));
    node.run_for(2 * S);
    node.observe(umount(None));
    node.run_for(2 * S);
    let busy = node.events.iter().find(|event| event.kind == Kind::MountBusy).unwrap();
    let mut left = copy(50);
    left.mount.device.clone_from(&busy.mount.as_ref().unwrap().identity.as_ref().unwrap().device);
    let busy = busy.seq;
    found(&mut node, &[left]);
    node.run_for(11 * S);
    let open = node.open();
    let incident = open.iter().find(|incident| incident.kind == super::super::KIND).unwrap();
    assert_eq!(incident.severity, Severity::Warning);
    assert!(incident.evidence.contains(&busy), "{:?}", incident.evidence);
    assert!(incident.summary.contains("was refused (EBUSY)"), "{}", incident.summary);
}

#[test]
fn a_refusal_in_another_mount_namespace_is_of_another_mount() {
    let mut node = node();
    node.observe(task(30_001, "/usr/bin/umount"));
    let kubelets = || {
        let roots = vec![KUBELET.trim_end_matches('/').to_owned()];
        let host = KubeletNamespace { mntns: 2, roots, of_kubelet: false, pid: None };
        Fact::Kubelet(KubeletFacts { namespaces: vec![host] })
    };
    node.observe(kubelets());
    let Fact::Umount(mut elsewhere) = umount(Some(16)) else { unreachable!() };
    elsewhere.mntns = 4_026_532_999;
    node.observe(Fact::Umount(elsewhere));
    // They are looked up again for what is like a volume's path.
    node.observe(kubelets());
    node.run_for(2 * S);
    found(&mut node, &[copy(50)]);
    node.run_for(11 * S);
    let open = node.open();
    let incident = open.iter().find(|incident| incident.kind == super::super::KIND).unwrap();
    assert_eq!((incident.severity, &incident.evidence[..]), (Severity::Info, &[][..]));
    assert!(!incident.summary.contains("EBUSY"), "{}", incident.summary);
}

#[test]
fn a_refusal_of_another_one_is_not_said_of_the_first() {
    let mut node = node();
    node.observe(task(30_001, "/usr/bin/umount"));
    node.observe(umount(Some(16)));
    node.run_for(2 * S);
    let other = volume_path().replace("cam-pv-50g", "a");
    let first = MountCopy { original: original(&other, true), bind: None, ..copy(49) };
    let refused = MountCopy { original: None, ..copy(50) };
    found(&mut node, &[first, refused]);
    node.run_for(11 * S);
    let open = node.open();
    let incident = open.iter().find(|incident| incident.kind == super::super::KIND).unwrap();
    assert!(incident.summary.contains("volume a ("), "{}", incident.summary);
    assert!(!incident.summary.contains("EBUSY"), "{}", incident.summary);
}

#[test]
fn an_old_kernel_refuses_to_remove_the_directory() {
    let mut node = node();
    found_on(&mut node, &[copy(50)], "3.10.0-957.el7.x86_64");
    node.run_for(11 * S);
    let incident = &node.open()[0];
    let words = "; Linux 3.10 refuses to remove its directory (EBUSY)";
    assert!(incident.summary.ends_with(words), "{}", incident.summary);
    assert_eq!(incident.ruled_out, [""; 0]);
}

#[test]
fn what_the_runtime_was_refused_of_a_container_is_one_of_the_mount_at_that_path() {
    let dead = |error: String| {
        let facts = container(WEB, "web", ContainerState::Dead);
        Fact::Container(Box::new(ContainerFacts { removal_error: Some(error.into()), ..facts }))
    };
    let removal =
        |path: &str| format!("unable to remove filesystem: unlinkat {path}: device or resource busy");
    let words = "; the runtime says that the removal of its directory was refused (EBUSY)";
    let only =
        |node: &TestNode| node.open().into_iter().find(|open| open.kind == super::super::KIND).unwrap();
    let mut node = node();
    found(&mut node, &[root_of_web(50)]);
    node.run_for(11 * S);
    assert_eq!(only(&node).severity, Severity::Info);
    for other in [format!("/mnt{LAYER}"), format!("{LAYER}/etc"), LAYER.replace("/merged", "")] {
        node.observe(dead(removal(&other)));
        assert_eq!(only(&node).severity, Severity::Info, "{other}");
    }
    node.observe(dead(removal(LAYER)));
    let incident = only(&node);
    assert_eq!(incident.severity, Severity::Warning);
    assert!(incident.summary.contains(words), "{}", incident.summary);
}

#[test]
fn a_refusal_of_what_was_mounted_at_its_path_later_is_none_of_it() {
    let mut node = node();
    found(&mut node, &[copy(50)]);
    node.run_for(11 * S);
    let leak = node.events.iter().find_map(|event| event.leaks.as_ref()).unwrap()[0].clone();
    let of = |device: &str, root: &str| super::super::Call {
        path: leak.path.clone().unwrap(),
        at: 1,
        seq: 1,
        refused: true,
        of: Some((device.to_owned(), root.to_owned())),
    };
    assert!(of(&leak.identity.device, &leak.identity.root).is_about(&leak));
    assert!(!of("0:9999", &leak.identity.root).is_about(&leak));
    assert!(!of(&leak.identity.device, "/elsewhere").is_about(&leak));
    let mut part = leak.clone();
    part.identity.root = "/part".to_owned();
    assert!(of(&leak.identity.device, &leak.identity.root).is_about(&part));
    assert!(super::super::Call { of: None, ..of("", "") }.is_about(&leak), "what it was is not known");
}
