//! Mounts that are detached though no unmount of them was refused: who uses them on is looked for.

use super::mount::{attempt, report};
use super::*;

/// Events, and what is requested about mounts.
fn take(core: &mut Core) -> (Vec<Event>, Vec<Request>) {
    let (emitted, mut requested) = mount::take(core);
    requested.retain(|request| !matches!(request, Request::Netns { .. }));
    (emitted, requested)
}

const UID: &str = "5c948341-c030-4996-b888-f032577d97b0";
const ID: &str = "593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37593d8a89ee37aaaa";

fn node() -> Core {
    let mut core = settled();
    let host =
        KubeletNamespace { mntns: 2, roots: vec!["/var/lib/kubelet".into()], of_kubelet: false, pid: None };
    core.observe(at(1, Fact::Kubelet(KubeletFacts { namespaces: vec![host] })));
    let source = "docker:/run/docker.sock".to_owned();
    let facts = ContainerFacts { source: source.clone(), ..model::container(ID) };
    core.observe(at(2, Fact::Container(Box::new(facts))));
    core.observe(at(3, Fact::RuntimeDirectories { source, directories: vec!["/var/lib/docker".into()] }));
    take(&mut core);
    core
}

/// Detached by a call of which the kernel showed the mount.
fn detached(path: &str, id: u64) -> Fact {
    let Fact::Umount(attempt) = attempt(None) else { unreachable!() };
    let target = Some(MeantMount { id, unique: Some(id + 1_000) });
    let root = Some(CallerDirectory { mount_id: 29, path: Some("/".into()) });
    let origin = PathOrigin { root, cwd: None, doubt: None, table: None, target, began: None };
    Fact::Umount(Box::new(UmountAttempt {
        path: path.into(),
        flags: 2,
        origin: Some(Box::new(origin)),
        ..*attempt
    }))
}

fn volume() -> String {
    format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~glusterfs/cam-pv-50g")
}

fn shm() -> String {
    format!("/var/lib/docker/containers/{ID}/mounts/shm")
}

/// The mounts whose users are looked for.
#[track_caller]
fn looked_for(requests: &[Request]) -> (u64, Vec<DetachedMount>) {
    let looks = requests.iter().filter_map(|request| match request {
        Request::DetachedUsers { id, mounts, .. } => Some((*id, mounts.clone())),
        _ => None,
    });
    let looks: Vec<_> = looks.collect();
    assert_eq!(looks.len(), 1, "{requests:?}");
    looks[0].clone()
}

fn used(index: u64) -> HolderReport {
    let Fact::Holders(found) = report(index) else { unreachable!() };
    HolderReport { mount: None, complete: false, ..*found }
}

fn unused(index: u64) -> HolderReport {
    HolderReport { verdict: Verdict::Incomplete, ..HolderReport::skipped(index, "/x") }
}

#[test]
fn who_uses_a_volume_or_a_mount_of_a_container_on_is_told() {
    let mut core = node();
    core.observe(at(10 * MS, detached(&volume(), 70)));
    let (emitted, _) = take(&mut core);
    let [first] = &emitted[..] else { panic!("{emitted:?}") };
    assert_eq!((first.kind, first.holders.as_ref()), (Kind::MountDetached, None));
    core.observe(at(11 * MS, detached(&shm(), 71)));
    core.observe(at(12 * MS, detached("/mnt/x", 72)));
    assert_eq!(take(&mut core).0, [], "what a runtime detaches for a container is no news");
    core.observe(at(1_010 * MS, Fact::Tick));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
    core.observe(at(1_011 * MS, Fact::Tick));
    let (id, mounts) = looked_for(&take(&mut core).1);
    let meant: Vec<(u64, &str)> = mounts.iter().map(|mount| (mount.meant.id, mount.path.as_str())).collect();
    assert_eq!(meant, [(70, volume().as_str()), (71, shm().as_str())], "another one is nobody's");

    let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
    let mut core = Core::restore(core.settings().clone(), serde_json::from_str(&saved).unwrap()).unwrap();
    core.observe(at(1_100 * MS, Fact::DetachedUsers { id, reports: vec![used(0), used(1)] }));
    let (emitted, _) = take(&mut core);
    let told: Vec<_> = emitted.iter().map(|event| (event.kind, event.severity, event.completes)).collect();
    let kind = (Kind::MountDetached, Severity::Notice);
    assert_eq!(told, [(kind.0, kind.1, Some(first.seq)), (kind.0, kind.1, None)]);
    let words = ", or what was mounted on it, detached by umount (pid 28997), and is still held by glusterfs (pid 94549)";
    for (event, subject) in emitted.iter().zip(["volume cam-pv-50g", &shm()]) {
        assert!(event.message.starts_with(subject) && event.message.contains(words), "{}", event.message);
    }
    let container = emitted[1].target.as_ref().and_then(|target| target.container.as_ref());
    assert_eq!(container.map(|container| container.id.as_str()), Some(ID));
}

#[test]
fn of_what_nobody_uses_there_is_no_more_to_tell_and_looks_are_ten_seconds_apart() {
    let mut core = node();
    core.observe(at(10 * MS, detached(&shm(), 71)));
    core.observe(at(2_000 * MS, Fact::Tick));
    let (id, _) = looked_for(&take(&mut core).1);
    core.observe(at(2_001 * MS, detached(&shm(), 73)));
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id: id + 7, reports: vec![used(0)] }));
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: vec![unused(0)] }));
    core.observe(at(12_099 * MS, Fact::Tick));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
    core.observe(at(12_100 * MS, Fact::Tick));
    let (_, mounts) = looked_for(&take(&mut core).1);
    assert_eq!(mounts[0].meant.id, 73);
}

#[test]
fn that_nobody_was_found_who_uses_a_volume_on_is_told_with_what_was_not_looked_at() {
    let mut core = node();
    core.observe(at(10 * MS, detached(&volume(), 70)));
    let first = take(&mut core).0[0].seq;
    core.observe(at(2_000 * MS, Fact::Tick));
    let (id, _) = looked_for(&take(&mut core).1);
    let mut found = unused(0);
    found.blind_spot(None, "x was not looked at");
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: vec![found] }));
    let (emitted, _) = take(&mut core);
    let [event] = &emitted[..] else { panic!("{emitted:?}") };
    assert_eq!((event.severity, event.completes), (Severity::Debug, Some(first)));
    assert_eq!((event.holders.as_deref(), event.holders_complete), (Some(&[][..]), Some(false)));
    assert_eq!(event.holders_unreadable[0].reason, "x was not looked at");
    let words = "; no user found; scan incomplete";
    assert!(event.message.ends_with(words), "{}", event.message);
}

#[test]
fn a_look_whose_time_ran_out_is_told_though_nothing_else_told_of_the_mount() {
    let mut core = node();
    core.observe(at(10 * MS, detached(&shm(), 71)));
    core.observe(at(2_000 * MS, Fact::Tick));
    let (id, _) = looked_for(&take(&mut core).1);
    let mut found = unused(0);
    found.cut();
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: vec![found] }));
    let (emitted, _) = take(&mut core);
    let [event] = &emitted[..] else { panic!("{emitted:?}") };
    assert_eq!((event.severity, event.completes), (Severity::Debug, None));
    let words = "; no user found; scan incomplete";
    assert!(event.message.ends_with(words), "{}", event.message);
}

#[test]
fn a_look_without_an_answer_is_told_as_one() {
    let asked = |end: fn(u64) -> (u64, Fact)| {
        let mut core = node();
        core.observe(at(10 * MS, detached(&volume(), 70)));
        core.observe(at(11 * MS, detached(&shm(), 71)));
        core.observe(at(2_000 * MS, Fact::Tick));
        let (id, _) = looked_for(&take(&mut core).1);
        let (time, fact) = end(id);
        core.observe(at(time, fact));
        let (emitted, _) = take(&mut core);
        let [event] = &emitted[..] else { panic!("{emitted:?}") };
        assert!(event.message.ends_with("; users not scanned"), "{}", event.message);
        assert_eq!(event.holders_complete, Some(false));
    };
    asked(|id| (2_100 * MS, Fact::DetachedUsers { id, reports: Vec::new() }));
    asked(|_| (200_000 * MS, Fact::Tick));
}

#[test]
fn where_the_kernel_does_not_show_the_mount_nobody_is_looked_for() {
    let mut core = node();
    let Fact::Umount(mut attempt) = detached(&volume(), 70) else { unreachable!() };
    attempt.origin.as_mut().unwrap().target = None;
    core.observe(at(10 * MS, Fact::Umount(attempt)));
    take(&mut core);
    core.observe(at(60_000 * MS, Fact::Tick));
    let (_, requests) = take(&mut core);
    assert!(!requests.iter().any(|request| matches!(request, Request::DetachedUsers { .. })), "{requests:?}");
}

/// What was found until the time ran out.
fn part(mut report: HolderReport) -> Vec<HolderReport> {
    report.cut();
    vec![HolderReport { goes_on: true, ..report }]
}

/// A look at one detached mount that is under way, and the event that told of it.
fn looking(path: &str) -> (Core, u64, Option<u64>) {
    let mut core = node();
    core.observe(at(10 * MS, detached(path, 70)));
    let first = take(&mut core).0.first().map(|event| event.seq);
    core.observe(at(2_000 * MS, Fact::Tick));
    let (id, _) = looked_for(&take(&mut core).1);
    (core, id, first)
}

/// Both a core and its copy, which was saved and restored.
fn twice(core: Core) -> [Core; 2] {
    let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
    let copy = Core::restore(core.settings().clone(), serde_json::from_str(&saved).unwrap()).unwrap();
    [core, copy]
}

#[test]
fn who_is_found_when_a_look_goes_on_is_told_at_once_and_that_it_has_ended() {
    let (mut core, id, first) = looking(&volume());
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: part(unused(0)) }));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "somebody may be found yet");
    for mut core in twice(core) {
        core.observe(at(12_100 * MS, Fact::DetachedUsers { id, reports: part(used(0)) }));
        let (emitted, _) = take(&mut core);
        let [event] = &emitted[..] else { panic!("{emitted:?}") };
        assert_eq!((event.severity, event.completes), (Severity::Notice, first));
        assert!(event.message.contains("and is still held by glusterfs (pid 94549)"), "{}", event.message);
        let reason = "time ran out before all processes were read";
        assert!(event.holders_unreadable.iter().any(|spot| spot.reason == reason), "{event:?}");
        for mut core in twice(core) {
            core.observe(at(22_100 * MS, Fact::DetachedUsers { id, reports: part(used(0)) }));
            assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "nothing new");
            core.observe(at(32_100 * MS, Fact::DetachedUsers { id, reports: vec![used(0)] }));
            let (emitted, _) = take(&mut core);
            let [event] = &emitted[..] else { panic!("{emitted:?}") };
            assert_eq!((event.completes, event.holders_complete), (first, Some(false)));
            assert!(event.message.ends_with(" (found later)"), "{}", event.message);
            assert!(!event.holders_unreadable.iter().any(|spot| spot.reason == reason), "{event:?}");
            core.observe(at(33_000 * MS, Fact::DetachedUsers { id, reports: vec![used(0)] }));
            assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "it was the last one");
        }
    }
}

#[test]
fn what_a_look_that_went_on_ends_with_completes_what_it_told_first() {
    let (mut core, id, first) = looking(&shm());
    assert_eq!(first, None);
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: part(used(0)) }));
    let told = take(&mut core).0.remove(0);
    assert_eq!((told.severity, told.completes), (Severity::Notice, None));
    core.observe(at(12_100 * MS, Fact::DetachedUsers { id, reports: vec![unused(0)] }));
    let (emitted, _) = take(&mut core);
    let [event] = &emitted[..] else { panic!("{emitted:?}") };
    assert_eq!((event.severity, event.completes), (Severity::Debug, Some(told.seq)));
    assert_eq!(event.holders_verdict, Some(Verdict::Incomplete));
    let words = "; no user found any more; scan incomplete";
    assert!(event.message.ends_with(words), "{}", event.message);
}

#[test]
fn a_look_that_ends_where_it_was_has_no_more_to_tell() {
    let (mut core, id, _) = looking(&volume());
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: part(used(0)) }));
    assert_eq!(take(&mut core).0.len(), 1);
    let mut last = used(0);
    last.cut();
    core.observe(at(302_100 * MS, Fact::DetachedUsers { id, reports: vec![last] }));
    assert_eq!(take(&mut core).0, []);
}

#[test]
fn nobody_waits_for_a_look_that_goes_on() {
    let (mut core, id, _) = looking(&shm());
    core.observe(at(2_001 * MS, detached(&volume(), 73)));
    take(&mut core);
    core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: part(unused(0)) }));
    core.observe(at(12_100 * MS, Fact::Tick));
    let (next, mounts) = looked_for(&take(&mut core).1);
    assert_eq!(mounts[0].meant.id, 73);
    core.observe(at(12_200 * MS, Fact::DetachedUsers { id: next, reports: vec![used(0)] }));
    core.observe(at(12_300 * MS, Fact::DetachedUsers { id, reports: vec![used(0)] }));
    let told: Vec<String> = take(&mut core).0.into_iter().map(|event| event.message).collect();
    assert!(told.len() == 2 && told[0].contains("cam-pv-50g") && told[1].starts_with(&shm()), "{told:?}");
}

#[test]
fn a_look_that_went_on_and_has_no_end_is_told_as_one_whose_time_ran_out() {
    for (found, is_told) in [(unused(0), true), (used(0), false)] {
        let (mut core, id, _) = looking(&shm());
        core.observe(at(2_100 * MS, Fact::DetachedUsers { id, reports: part(found) }));
        take(&mut core);
        for mut core in twice(core) {
            core.observe(at(722_099 * MS, Fact::Tick));
            assert_eq!(take(&mut core).0, []);
            core.observe(at(722_100 * MS, Fact::Tick));
            let (emitted, _) = take(&mut core);
            assert_eq!(emitted.len(), usize::from(is_told), "{emitted:?}");
            let words = "; no user found; scan incomplete";
            assert!(emitted.iter().all(|event| event.message.ends_with(words)), "{emitted:?}");
            core.observe(at(722_200 * MS, Fact::DetachedUsers { id, reports: vec![used(0)] }));
            assert_eq!(take(&mut core).0, []);
        }
    }
}
