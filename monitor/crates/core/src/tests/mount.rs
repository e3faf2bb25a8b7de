//! Refused unmounts as input, events as output.

use super::*;
use crate::mount::SETTLE_NS;

mod counted;
mod staged;

pub(super) fn attempt(errno: Option<u16>) -> Fact {
    Fact::Umount(Box::new(UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: TaskRef { key: key(), tid: 1, comm: "umount".into(), context: None },
        mntns: 2,
        path: "/mnt/x/".into(),
        origin: None,
        flags: 0,
        errno,
        second: None,
    }))
}

pub(super) fn report(id: u64) -> Fact {
    found(id, 410)
}

/// The scan finds the mount with this id at the path.
pub(super) fn found(id: u64, mount: u64) -> Fact {
    Fact::Holders(Box::new(HolderReport {
        mount: Some(model::mount(mount)),
        holders: vec![Holder {
            tgid: 94_549,
            comm: "glusterfs".into(),
            cmdline: None,
            exe: None,
            access: Access::Cwd,
            path: Some("/mnt/x".into()),
            fd: None,
            tid: None,
            start_ns: None,
            uid: None,
            init: false,
            cgroup: Some("/system.slice/run-r1.scope".into()),
            mntns: Some(2),
            serves: None,
            serves_for_certain: false,
            possible: false,
            mount: None,
            loop_device: None,
            source: None,
        }],
        complete: true,
        verdict: Verdict::Processes,
        ..HolderReport::skipped(id, "/mnt/x")
    }))
}

/// Output that is no event of an incident.
pub(super) fn take(core: &mut Core) -> (Vec<Event>, Vec<Request>) {
    let (mut emitted, mut requested) = (Vec::new(), Vec::new());
    for output in core.take_output() {
        match output {
            Output::Event(event) => emitted.push(*event),
            Output::Request(request) => requested.push(request),
        }
    }
    emitted.iter().for_each(assert_valid);
    (emitted, requested)
}

/// A mount is seen to be gone, and no other unmount comes that may have taken it.
pub(super) fn gone(core: &mut Core, now: u64, id: u64) {
    core.observe(at(now, Fact::MountPresence(MountPresence::known(id, false))));
    core.observe(at(now + SETTLE_NS, Fact::Tick));
}

/// Answers the only request, which is whether a mount is still there.
pub(super) fn answer_presence(core: &mut Core, now: u64, present: Option<bool>) -> Vec<Event> {
    let (emitted, requested) = take(core);
    assert_eq!(emitted, []);
    let [Request::MountPresence { id, mntns: 2, identity, .. }] = &requested[..] else {
        panic!("{requested:?}")
    };
    assert_eq!(identity.mount_id, 410);
    let reason = present.is_none().then(|| "no process is left".to_owned());
    match present {
        Some(false) => gone(core, now, *id),
        _ => core.observe(at(
            now,
            Fact::MountPresence(MountPresence { id: *id, present, is_likely: false, reason }),
        )),
    }
    take(core).0
}

/// A mount that was refused once, with its holders.
pub(super) fn busy() -> Core {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, report(1)));
    events(&mut core);
    core
}

/// An attempt of umount, run by a process with this id and name.
pub(super) fn attempt_of(core: &mut Core, pid: u32, parent: (u32, &str)) -> Fact {
    let key = TaskKey { tgid: pid, start_ns: u64::from(pid), exec_id: 1 };
    let above = |(tgid, comm): (u32, &str)| Ancestor {
        tgid,
        start_ns: 1,
        comm: comm.into(),
        exe: None,
        started: Some(true),
        ..Ancestor::default()
    };
    let facts = TaskFacts {
        key,
        exe: Some("/usr/bin/umount".into()),
        netns: HOST,
        mntns: 2,
        cgroup: Some("/system.slice/kubelet.service".into()),
        ancestors: vec![above((pid - 1, "nsenter")), above(parent), above((1, "systemd"))],
        ..TaskFacts::default()
    };
    core.observe(at(9, Fact::Task(Box::new(facts))));
    let Fact::Umount(attempt) = attempt(Some(16)) else { unreachable!() };
    let actor = TaskRef { key, tid: pid, comm: "umount".into(), context: None };
    Fact::Umount(Box::new(UmountAttempt { actor, ..*attempt }))
}

#[test]
fn a_mount_that_is_known_to_be_gone_only_after_some_seconds_is_released() {
    let mut core = busy();
    core.observe(at(12, attempt(None)));
    let (_, requested) = take(&mut core);
    let [Request::MountPresence { id, .. }] = requested[..] else { panic!("{requested:?}") };
    core.observe(at(20_000 * MS, Fact::Tick));
    gone(&mut core, 20_001 * MS, id);
    let kinds: Vec<Kind> = events(&mut core).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::MountReleased]);
}

#[test]
fn what_rests_on_the_path_that_a_user_gives_is_only_likely() {
    let by = |context| {
        let mut core = settled();
        let attempt_by = |errno| {
            let Fact::Umount(attempt) = attempt(errno) else { unreachable!() };
            let actor = TaskRef { context, ..attempt.actor.clone() };
            Fact::Umount(Box::new(UmountAttempt { actor, ..*attempt }))
        };
        core.observe(at(10, attempt_by(Some(16))));
        core.observe(at(11, report(1)));
        let mut emitted = events(&mut core);
        core.observe(at(12, attempt_by(None)));
        emitted.extend(answer_presence(&mut core, 13, Some(false)));
        let [busy, released] = &emitted[..] else { panic!("{emitted:?}") };
        let confidence = |event: &Event| event.actor.as_ref().unwrap().confidence;
        assert_eq!(confidence(busy), confidence(released));
        let is_likely = (busy.message.contains("what is likely"), released.message.contains("likely by"));
        assert_eq!(is_likely.0, is_likely.1, "{} {}", busy.message, released.message);
        assert_eq!(is_likely.0, confidence(busy) == Confidence::Likely);
        confidence(busy)
    };
    let root = TaskContext::default();
    assert_eq!(by(Some(root)), Confidence::Certain);
    assert_eq!(by(Some(TaskContext { uid: 1000, ..root })), Confidence::Likely);
    assert_eq!(by(Some(TaskContext { userns: 4_026_533_000, ..root })), Confidence::Likely);
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
        core.observe(at(now * MS, attempt(Some(16))));
    }
    let emitted: Vec<Event> = events(&mut core);
    let attempts: Vec<_> = emitted.iter().map(|event| event.mount.as_ref().unwrap().attempts).collect();
    assert_eq!(attempts, [Some(1), Some(2), Some(4), Some(8)]);
    assert!(emitted.iter().all(|event| event.holders.as_ref().unwrap().len() == 1));
    let ages: Vec<_> = emitted.iter().map(|event| event.holders_age_ms).collect();
    assert_eq!(ages, [None, Some(11), Some(13), Some(17)]);
    assert_eq!(
        emitted[0].message,
        "umount of /mnt/x by umount (pid 28997) refused: held by glusterfs (pid 94549) as its current directory"
    );
    assert_eq!(core.umounts_ignored(), 4);
}

/// An attempt whose caller stood at the top of this root directory.
pub(super) fn attempt_below(root: &str, path: &str) -> Fact {
    let Fact::Umount(attempt) = attempt(Some(16)) else { unreachable!() };
    let root = CallerDirectory { mount_id: 29, path: Some(root.into()) };
    let origin = Some(Box::new(PathOrigin { root: Some(root), ..PathOrigin::default() }));
    Fact::Umount(Box::new(UmountAttempt { path: path.into(), origin, ..*attempt }))
}

#[test]
fn a_path_that_was_not_resolved_is_a_volume_only_from_the_root_of_the_namespace() {
    let path =
        "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/pv";
    for (root, is_volume) in [("/", true), ("/jail", false)] {
        let mut core = settled();
        let host = KubeletNamespace {
            mntns: 2,
            roots: vec!["/var/lib/kubelet".into()],
            of_kubelet: false,
            pid: None,
        };
        let kubelets = || Fact::Kubelet(KubeletFacts { namespaces: vec![host.clone()] });
        core.observe(at(9, kubelets()));
        core.observe(at(10, attempt_below(root, path)));
        // The kubelets are looked up again for what is like a volume's path.
        core.observe(at(10, kubelets()));
        core.observe(at(11, Fact::Holders(Box::new(HolderReport::skipped(1, path)))));
        let event = events(&mut core).remove(0);
        let mount = event.mount.as_ref().unwrap();
        assert_eq!((mount.volume.is_some(), event.target.is_some()), (is_volume, is_volume), "{root}");
        assert_eq!(mount.path, format!("{}{path}", root.trim_end_matches('/')));
    }
}

#[test]
fn each_retry_is_another_process_and_the_caller_is_the_same() {
    let mut core = busy();
    let mut attempts = Vec::new();
    for pid in 1..=50 {
        let fact = attempt_of(&mut core, 40_000 + 2 * pid, (1893, "kubelet"));
        core.observe(at(u64::from(pid) * MS, fact));
    }
    let fact = attempt_of(&mut core, 50_000, (77, "backup"));
    core.observe(at(60 * MS, fact));
    for event in events(&mut core) {
        attempts.push((event.actor.as_ref().unwrap().pid, event.mount.as_ref().unwrap().attempts.unwrap()));
    }
    assert_eq!(
        attempts,
        [(40_002, 1), (40_004, 2), (40_008, 4), (40_016, 8), (40_032, 16), (40_064, 32), (50_000, 1)]
    );
}

#[test]
fn one_relative_path_in_two_directories_is_two_mounts() {
    let mut core = settled();
    let from = |cwd: &str| {
        let Fact::Umount(attempt) = attempt(Some(16)) else { unreachable!() };
        let cwd = CallerDirectory { mount_id: 29, path: Some(cwd.into()) };
        let origin = Some(Box::new(PathOrigin { cwd: Some(cwd), ..PathOrigin::default() }));
        Fact::Umount(Box::new(UmountAttempt { path: "x".into(), origin, ..*attempt }))
    };
    core.observe(at(10, from("/mnt")));
    core.observe(at(11, report(1)));
    events(&mut core);
    core.observe(at(12, from("/srv/")));
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted, [], "the holders of the other mount are not its own");
    assert!(matches!(&requested[..], [Request::Holders { id: 2, .. }]), "{requested:?}");
    core.observe(at(10_000 * MS, Fact::Tick));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    let mount = event.mount.as_ref().unwrap();
    assert_eq!((mount.path.as_str(), mount.attempts), ("/srv/x", Some(1)));
}

#[test]
fn the_unmount_that_succeeds_is_emitted_once() {
    let mut core = busy();
    core.observe(at(20, attempt(None)));
    let emitted = answer_presence(&mut core, 21, Some(false));
    let [event] = &emitted[..] else { panic!("not one event: {emitted:?}") };
    assert_eq!(event.kind, Kind::MountReleased);
    let mount = event.mount.as_ref().unwrap();
    assert_eq!((mount.attempts, mount.identity.as_ref().unwrap().mount_id), (Some(1), 410));
    core.observe(at(22, attempt(None)));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
}

#[test]
fn what_was_mounted_on_top_is_not_the_busy_mount() {
    for present in [Some(true), None] {
        let mut core = busy();
        core.observe(at(20, attempt(None)));
        assert_eq!(answer_presence(&mut core, 21, present), []);
        core.observe(at(22, attempt(Some(16))));
        let [event] = &events(&mut core)[..] else { panic!("not one event") };
        assert_eq!(event.mount.as_ref().unwrap().attempts, Some(2));
    }
}

#[test]
fn of_two_unmounts_that_succeed_the_last_one_is_only_likely_to_have_taken_the_busy_mount() {
    let mut core = busy();
    core.observe(at(20, attempt(None)));
    let Fact::Umount(mut last) = attempt(None) else { unreachable!() };
    last.actor.key.tgid = 7;
    core.observe(at(21, Fact::Umount(last)));
    let emitted = answer_presence(&mut core, 22, Some(false));
    let [event] = &emitted[..] else { panic!("not one event: {emitted:?}") };
    let actor = event.actor.as_ref().unwrap();
    // The first one may have taken it, and the last one what was mounted there in between.
    assert_eq!((actor.pid, actor.confidence), (7, Confidence::Likely));
    let expected = "/mnt/x unmounted likely by umount (pid 7), the last of several that unmounted something there, after \
                    one refused attempt";
    assert_eq!(event.message, expected);
}

/// A successful unmount of this path by this process.
pub(super) fn unmounted(path: &str, pid: u32) -> Fact {
    let Fact::Umount(mut attempt) = attempt(None) else { unreachable!() };
    attempt.path = path.into();
    attempt.actor.key.tgid = pid;
    Fact::Umount(attempt)
}

#[test]
fn who_unmounts_another_mount_of_the_same_last_name_is_not_credited() {
    let mut core = busy();
    core.observe(at(20, unmounted("/mnt/x", 7)));
    core.observe(at(21, unmounted("/srv/x", 8)));
    let emitted = answer_presence(&mut core, 22, Some(false));
    let actors: Vec<u32> = emitted.iter().map(|event| event.actor.as_ref().unwrap().pid).collect();
    assert_eq!(actors, [7]);
}

#[test]
fn of_a_mount_that_went_while_only_a_similar_path_was_unmounted_nobody_is_named() {
    let mut core = busy();
    core.observe(at(20, unmounted("/srv/x", 8)));
    assert_eq!(answer_presence(&mut core, 22, Some(false)), []);
    assert!(core.busy_mounts.is_empty());
}

#[test]
fn later_events_of_a_mount_wait_for_the_earlier_ones() {
    let mut core = busy();
    core.observe(at(20, attempt(None)));
    core.observe(at(21, attempt(Some(16))));
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted, []);
    let [Request::MountPresence { id, .. }] = requested[..] else { panic!("{requested:?}") };
    gone(&mut core, 22, id);
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted.iter().map(|event| event.kind).collect::<Vec<_>>(), [Kind::MountReleased]);
    assert!(matches!(&requested[..], [Request::Holders { id: 2, .. }]), "{requested:?}");
    core.observe(at(23, found(2, 411)));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    let mount = event.mount.as_ref().unwrap();
    assert_eq!((mount.attempts, mount.identity.as_ref().unwrap().mount_id), (Some(1), 411));
}

#[test]
fn a_mount_that_was_never_found_is_released_only_if_nothing_is_mounted_there() {
    let nothing = |id| HolderReport {
        verdict: Verdict::NotAMount,
        complete: true,
        ..HolderReport::skipped(id, "/mnt/x")
    };
    for (complete, expected) in [(true, vec![Kind::MountReleased]), (false, vec![])] {
        let mut core = settled();
        core.observe(at(10, attempt(Some(16))));
        core.observe(at(11, Fact::Holders(Box::new(HolderReport::skipped(1, "/mnt/x")))));
        let (emitted, _) = take(&mut core);
        let reason = &emitted[0].holders_unreadable[0].reason;
        assert_eq!(reason, "its holders were not scanned in time");
        core.observe(at(12, attempt(None)));
        let (_, requested) = take(&mut core);
        let [Request::Holders { id, .. }] = requested[..] else { panic!("{requested:?}") };
        core.observe(at(13, Fact::Holders(Box::new(HolderReport { complete, ..nothing(id) }))));
        let kinds: Vec<Kind> = events(&mut core).iter().map(|event| event.kind).collect();
        assert_eq!(kinds, expected);
    }
}

#[test]
fn a_mount_that_was_never_found_is_looked_for_through_a_link_at_the_end_of_its_path() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, Fact::Holders(Box::new(HolderReport::skipped(1, "/mnt/x")))));
    take(&mut core);
    core.observe(at(70_000 * MS, Fact::Tick));
    let (_, requested) = take(&mut core);
    let [Request::Holders { path, follow: true, .. }, ..] = &requested[..] else { panic!("{requested:?}") };
    assert_eq!(path, "/mnt/x");
}

#[test]
fn a_mount_that_was_never_found_is_looked_for_from_where_its_caller_stood() {
    let mut core = settled();
    core.observe(at(10, attempt_below("/jail", "/data/x")));
    core.observe(at(11, Fact::Holders(Box::new(HolderReport::skipped(1, "/jail/data/x")))));
    take(&mut core);
    core.observe(at(70_000 * MS, Fact::Tick));
    let (_, requested) = take(&mut core);
    // An absolute link in it leads below the root directory of the caller.
    let [Request::Holders { id, path, origin: Some(origin), mount_only: true, .. }, ..] = &requested[..]
    else {
        panic!("{requested:?}")
    };
    let root = origin.root.as_ref().and_then(|root| root.path.as_deref());
    assert_eq!((path.as_str(), root), ("/data/x", Some("/jail")));
    let gone = HolderReport {
        verdict: Verdict::NotAMount,
        complete: true,
        ..HolderReport::skipped(*id, "/jail/vol")
    };
    core.observe(at(70_001 * MS, Fact::Holders(Box::new(gone))));
    core.observe(at(140_000 * MS, Fact::Tick));
    let (_, requested) = take(&mut core);
    assert!(requested.is_empty(), "it is gone: {requested:?}");
}

#[test]
fn an_event_is_emitted_even_if_its_scan_never_finishes() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(10_000 * MS, Fact::Tick));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    assert_eq!(event.holders_verdict, Some(Verdict::Skipped));
    assert_eq!(event.holders_complete, Some(false));
    assert_eq!(event.holders_unreadable.len(), 1, "it says why");
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
