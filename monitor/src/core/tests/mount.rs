//! Refused unmounts as input, events as output.

use super::*;

fn attempt(errno: Option<u16>) -> Fact {
    Fact::Umount(Box::new(UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key: key(), tid: 1, comm: "umount".into(), context: None },
        mntns: 2,
        path: "/mnt/x/".into(),
        origin: None,
        flags: 0,
        errno,
    }))
}

fn report(id: u64) -> Fact {
    Fact::Holders(Box::new(HolderReport {
        holders: vec![Holder {
            tgid: 94_549,
            comm: "glusterfs".into(),
            cmdline: None,
            exe: None,
            access: Access::Cwd,
            path: Some("/mnt/x".into()),
            fd: None,
            cgroup: Some("/system.slice/run-r1.scope".into()),
            mntns: Some(2),
        }],
        complete: true,
        verdict: Verdict::Processes,
        ..HolderReport::skipped(id, "/mnt/x")
    }))
}

#[test]
fn refused_unmounts_are_emitted_at_attempts_1_2_4_8_with_one_scan_in_ten_seconds() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    let requested = requests(&mut core);
    assert!(
        matches!(&requested[..], [Request::Holders { id: 1, path, .. }] if path == "/mnt/x/"),
        "{requested:?}"
    );
    core.observe(at(11, report(1)));
    for now in 12..19 {
        core.observe(at(now, attempt(Some(16))));
    }
    let emitted: Vec<Event> = events(&mut core);
    let attempts: Vec<_> = emitted.iter().map(|event| event.mount.as_ref().unwrap().attempts).collect();
    assert_eq!(attempts, [Some(1), Some(2), Some(4), Some(8)]);
    assert!(emitted.iter().all(|event| event.holders.as_ref().unwrap().len() == 1));
    assert_eq!(
        emitted[0].message,
        "umount of /mnt/x refused: held by glusterfs (pid 94549) as its current directory"
    );
}

#[test]
fn the_unmount_that_succeeds_is_emitted_once() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, report(1)));
    events(&mut core);
    core.observe(at(20, attempt(None)));
    core.observe(at(21, attempt(None)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.kind, Kind::MountReleased);
    assert_eq!(event.mount.as_ref().unwrap().attempts, Some(1));
}

#[test]
fn a_mount_that_is_busy_again_after_its_release_is_scanned_again() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, report(1)));
    core.observe(at(12, attempt(None)));
    assert_eq!(events(&mut core).len(), 2);
    core.observe(at(13, attempt(Some(16))));
    let requested = requests(&mut core);
    assert!(matches!(&requested[..], [Request::Holders { id: 2, .. }]), "{requested:?}");
    core.observe(at(10_000 * MS, Fact::Tick));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.holders, Some(Vec::new()), "those of the mount before are no longer true");
}

#[test]
fn an_event_is_emitted_even_if_its_scan_never_finishes() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(10_000 * MS, Fact::Tick));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.holders_verdict, Some(Verdict::Skipped));
    assert_eq!(event.holders_complete, Some(false));
}

#[test]
fn after_a_restart_a_volume_still_has_the_name_of_a_pod_that_is_gone() {
    let uid = "5c948341-c030-4996-b888-f032577d97b0";
    let day = 24 * 3600 * 1_000 * MS;
    let mut pods = PodNames::default();
    pods.insert(uid.into(), "cam".into(), "cam1-0".into(), 2 * day);
    let core = Core::new(core().settings().clone(), Resume { pods, ..Resume::default() });
    // It is part of the saved state.
    let written = serde_json::to_string(&core.save().unwrap()).unwrap();
    let restored = Core::restore(core.settings().clone(), serde_json::from_str(&written).unwrap()).unwrap();
    for mut core in [core, restored] {
        let path = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~glusterfs/pv");
        let Fact::Umount(attempt) = attempt(None) else { unreachable!() };
        let attempt = Fact::Umount(Box::new(UmountAttempt { path, ..*attempt }));
        for (now, named) in [(3 * day - 1, "cam/cam1-0"), (3 * day + 2_000 * MS, uid)] {
            core.observe(at(now, Fact::Tick));
            core.observe(at(now, attempt.clone()));
            let event = events(&mut core).pop().unwrap();
            assert!(event.message.contains(&format!("of pod {named} unmounted")), "{}", event.message);
        }
    }
}

#[test]
fn a_busy_volume_names_its_pod_even_where_no_runtime_knows_it() {
    let mut core = core();
    let path = "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/cam-pv-50g";
    let Fact::Umount(attempt) = attempt(Some(16)) else { unreachable!() };
    core.observe(at(10, Fact::Umount(Box::new(UmountAttempt { path: path.into(), ..*attempt.clone() }))));
    core.observe(at(11, Fact::Holders(Box::new(HolderReport::skipped(1, path)))));
    core.observe(at(
        12,
        Fact::Umount(Box::new(UmountAttempt { path: path.into(), errno: None, ..*attempt })),
    ));
    let emitted = events(&mut core);
    assert_eq!(emitted[0].target.as_ref().unwrap().pod.as_ref().unwrap().uid, &path[22..58]);
    assert_eq!(emitted[0].mount.as_ref().unwrap().volume.as_ref().unwrap().plugin, "kubernetes.io/glusterfs");
    assert_eq!(
        emitted[1].message,
        "volume cam-pv-50g of pod 5c948341-c030-4996-b888-f032577d97b0 unmounted after one refused attempt by umount (pid 28997)"
    );
}
