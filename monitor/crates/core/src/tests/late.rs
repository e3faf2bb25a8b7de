//! Scans that fail, that come late, and that go on after their event.

use super::mount::{attempt, attempt_below, busy, found, gone, report, take};
use super::*;

/// A scan whose time ran out before it found anybody.
fn cut(id: u64) -> Fact {
    let Fact::Holders(found) = report(id) else { unreachable!() };
    let report =
        HolderReport { holders: Vec::new(), verdict: Verdict::Incomplete, complete: false, ..*found };
    Fact::Holders(Box::new(HolderReport { goes_on: true, ..report }))
}

fn skipped(id: u64) -> Fact {
    Fact::Holders(Box::new(HolderReport::skipped(id, "/mnt/x")))
}

#[track_caller]
fn one(core: &mut Core) -> Event {
    let mut events = take(core).0;
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn holders(event: &Event) -> Vec<u32> {
    event.holders.iter().flatten().map(|holder| holder.pid).collect()
}

/// Both a core and its copy, which was saved and restored.
fn twice(core: Core) -> [Core; 2] {
    let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
    let copy = Core::restore(core.settings().clone(), serde_json::from_str(&saved).unwrap()).unwrap();
    [core, copy]
}

#[test]
fn what_a_scan_finds_when_it_goes_on_completes_its_event() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, cut(1)));
    let first = take(&mut core).0.remove(0);
    assert_eq!((first.holders_verdict, first.completes), (Some(Verdict::Incomplete), None));
    for mut core in twice(core) {
        core.observe(at(20 * MS, cut(1)));
        assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "nothing new");
        core.observe(at(30 * MS, report(1)));
        let event = one(&mut core);
        assert_eq!((event.completes, event.holders_complete), (Some(first.seq), Some(true)));
        assert_eq!((holders(&event), event.holders_age_ms), (vec![94_549], None));
        assert_eq!(event.mount.unwrap().attempts, Some(1));
        assert!(event.message.ends_with("as its current directory (found later)"), "{}", event.message);
        core.observe(at(31 * MS, report(1)));
        assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "it was the last one");
    }
}

fn looked_up(fact: Fact, resolved: u64) -> Fact {
    let Fact::Holders(report) = fact else { unreachable!() };
    Fact::Holders(Box::new(HolderReport { resolved: Some(resolved), ..*report }))
}

#[test]
fn what_is_found_at_a_path_that_was_unmounted_meanwhile_may_be_another_mount() {
    for (resolved, found) in [(11, vec![94_549]), (21, vec![])] {
        let mut core = settled();
        core.observe(at(10, attempt(Some(16))));
        core.observe(at(20, attempt(None)));
        for mut core in twice(core) {
            core.observe(at(30, looked_up(report(1), resolved)));
            let event = take(&mut core).0.remove(0);
            assert_eq!((holders(&event), event.at), (found.clone(), 10));
            let complete = !found.is_empty();
            assert_eq!(
                (event.holders_complete, event.holders_unreadable.is_empty()),
                (Some(complete), complete)
            );
        }
    }
}

#[test]
fn what_goes_on_after_its_path_was_unmounted_completes_nothing_unless_it_began_before() {
    for (resolved, completes) in [(11, 1), (MS + 1, 0)] {
        let mut core = settled();
        core.observe(at(10, attempt(Some(16))));
        let Fact::Holders(skipped) = skipped(1) else { unreachable!() };
        core.observe(at(12, Fact::Holders(Box::new(HolderReport { goes_on: true, ..*skipped }))));
        core.observe(at(MS, attempt(None)));
        take(&mut core);
        for mut core in twice(core) {
            core.observe(at(2 * MS, looked_up(report(1), resolved)));
            assert_eq!(take(&mut core).0.len(), completes);
        }
    }
}

#[test]
fn that_a_scan_has_ended_is_told_though_it_found_no_more() {
    let mut core = settled();
    // Somebody may not be read, however long it takes.
    let incomplete = |goes_on| {
        let Fact::Holders(found) = report(1) else { unreachable!() };
        Fact::Holders(Box::new(HolderReport { complete: false, goes_on, ..*found }))
    };
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, incomplete(true)));
    let first = take(&mut core).0.remove(0);
    core.observe(at(20 * MS, incomplete(true)));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "nothing new");
    core.observe(at(30 * MS, incomplete(false)));
    let event = one(&mut core);
    assert_eq!((event.completes, event.holders_complete), (Some(first.seq), Some(false)));
}

#[test]
fn a_scan_that_comes_after_its_event_completes_it() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(6_000 * MS, Fact::Tick));
    let first = take(&mut core).0.remove(0);
    assert_eq!(first.holders_verdict, Some(Verdict::Skipped));
    core.observe(at(7_000 * MS, report(1)));
    let event = one(&mut core);
    assert_eq!((event.completes, holders(&event)), (Some(first.seq), vec![94_549]));
    assert_eq!(event.mount.unwrap().identity.unwrap().mount_id, 410);
}

#[test]
fn a_scan_that_was_not_made_is_asked_for_again_with_the_next_event() {
    // Whether or not the mount was found before the scan lost its place.
    let Fact::Holders(found) = report(1) else { unreachable!() };
    let located = HolderReport { mount: found.mount, ..HolderReport::skipped(1, "/mnt/x") };
    for first in [skipped(1), Fact::Holders(Box::new(located))] {
        let mut core = settled();
        core.observe(at(10, attempt_below("/", "/mnt/x")));
        core.observe(at(11, first));
        assert_eq!(one(&mut core).holders_verdict, Some(Verdict::Skipped));
        core.observe(at(500 * MS, attempt_below("/", "/mnt/x")));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        assert!(matches!(&requested[..], [Request::Holders { id: 2, .. }]), "{requested:?}");
        core.observe(at(501 * MS, report(2)));
        let event = one(&mut core);
        assert_eq!((event.holders_verdict, holders(&event)), (Some(Verdict::Processes), vec![94_549]));
    }
}

#[test]
fn while_a_scan_goes_on_no_other_one_of_the_mount_is_begun() {
    let mut core = settled();
    core.observe(at(10, attempt_below("/", "/mnt/x")));
    core.observe(at(11, cut(1)));
    take(&mut core);
    core.observe(at(20_000 * MS, attempt_below("/", "/mnt/x")));
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted, []);
    assert!(matches!(&requested[..], [Request::MountAt { .. }]), "{requested:?}");
}

#[test]
fn what_a_scan_finds_of_a_mount_that_is_gone_is_not_told() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, cut(1)));
    core.observe(at(12, attempt(None)));
    let (_, requested) = take(&mut core);
    let Some(Request::MountPresence { id, .. }) = requested.last() else { panic!("{requested:?}") };
    gone(&mut core, 13, *id);
    assert_eq!(one(&mut core).kind, Kind::MountReleased);
    core.observe(at(14, report(1)));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
}

#[test]
fn a_scan_that_fails_takes_nothing_from_what_is_known() {
    for failed in [skipped, |id| {
        let skipped = HolderReport::skipped(id, "/mnt/x");
        Fact::Holders(Box::new(HolderReport { verdict: Verdict::NotAMount, complete: true, ..skipped }))
    }] {
        let mut core = busy();
        core.observe(at(11_000 * MS, attempt(Some(16))));
        core.observe(at(11_001 * MS, failed(2)));
        let event = one(&mut core);
        assert_eq!(event.holders, Some(Vec::new()), "which mount it was is not known");
        // It is detached: whoever held it is asked again.
        let Fact::Umount(lazy) = attempt(None) else { unreachable!() };
        core.observe(at(11_002 * MS, Fact::Umount(Box::new(UmountAttempt { flags: 2, ..*lazy }))));
        let (_, requested) = take(&mut core);
        let [Request::MountPresence { id, .. }] = requested[..] else { panic!("{requested:?}") };
        gone(&mut core, 11_003 * MS, id);
        let (_, requested) = take(&mut core);
        let Some(Request::StillHeld { holders, .. }) = requested.first() else { panic!("{requested:?}") };
        assert_eq!(holders[0].tgid, 94_549);
    }
}

#[test]
fn the_scan_of_another_mount_takes_nothing_from_what_is_known_of_the_first() {
    let mut core = busy();
    core.observe(at(11_000 * MS, attempt(Some(16))));
    core.observe(at(11_001 * MS, found(2, 411)));
    assert_eq!(one(&mut core).mount.unwrap().identity.unwrap().mount_id, 411);
}

/// On whose behalf a refused unmount of this user is looked into.
fn share(uid: u32, userns: NsInum, root: &str, path: &str) -> Share {
    let mut core = settled();
    let host =
        KubeletNamespace { mntns: 2, roots: vec!["/var/lib/kubelet".into()], of_kubelet: false, pid: None };
    core.observe(at(2, Fact::Kubelet(KubeletFacts { namespaces: vec![host] })));
    let Fact::Umount(mut attempt) = attempt_below(root, path) else { unreachable!() };
    attempt.actor.context = Some(TaskContext { uid, userns, ..TaskContext::default() });
    core.observe(at(3, Fact::Umount(attempt)));
    match requests(&mut core).pop() {
        Some(Request::Holders { share, .. }) => share,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_root_of_the_node_comes_first() {
    let volume =
        "/var/lib/kubelet/pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/pv";
    assert_eq!(share(0, 0, "/", volume).rank, Rank::Volume);
    assert_eq!(share(0, 0, "/", "/mnt/x").rank, Rank::Host);
    for (uid, userns) in [(1000, 0), (0, 7)] {
        let share = share(uid, userns, "/", volume);
        assert_eq!((share.rank, share.account.as_str()), (Rank::Other, "kubelet.service"));
    }
}
