//! Which mount a refused unmount meant, as far as the daemon and the kernel can tell.

use super::mount::{answer_presence, attempt, attempt_below, found, gone, report, take};
use super::*;

#[test]
fn holders_are_repeated_only_while_the_path_leads_to_their_mount() {
    for present in [Some(true), Some(false), None] {
        let mut core = settled();
        core.observe(at(10, attempt_below("/", "/mnt/x")));
        core.observe(at(11, report(1)));
        assert_eq!(take(&mut core).0.len(), 1);
        core.observe(at(12 * MS, attempt_below("/", "/mnt/x")));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        let [Request::MountAt { id, identity, .. }] = &requested[..] else { panic!("{requested:?}") };
        assert_eq!(identity.mount_id, 410);
        core.observe(at(
            13 * MS,
            Fact::MountPresence(MountPresence { id: *id, present, is_likely: false, reason: None }),
        ));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        if present == Some(true) {
            core.observe(at(14 * MS, still_held(&requested, &[94_549])));
        } else {
            assert!(matches!(&requested[..], [Request::Holders { id: 2, .. }]), "{requested:?}");
            core.observe(at(14 * MS, found(2, 411)));
        }
        let emitted = take(&mut core).0;
        let [event] = &emitted[..] else { panic!("{emitted:?}") };
        let id = event.mount.as_ref().unwrap().identity.as_ref().unwrap().mount_id;
        let expected = if present == Some(true) { (410, true) } else { (411, false) };
        assert_eq!((id, event.holders_age_ms.is_some()), expected);
    }
}

#[test]
fn of_a_call_that_was_not_seen_to_begin_the_answer_is_only_likely_the_kernels() {
    for (doubt, confidence) in
        [(PathUncertainty::StartUnseen, Confidence::Likely), (PathUncertainty::ReadLate, Confidence::Certain)]
    {
        let mut core = settled();
        let Fact::Umount(mut call) = attempt_below("/", "/mnt/x") else { unreachable!() };
        call.origin.as_mut().unwrap().doubt = Some(doubt);
        core.observe(at(10, Fact::Umount(call)));
        core.observe(at(11, report(1)));
        let emitted = take(&mut core).0;
        let [event] = &emitted[..] else { panic!("{emitted:?}") };
        assert_eq!(event.actor.as_ref().unwrap().confidence, confidence);
        let is_likely = event.message.contains("what is likely");
        assert_eq!(is_likely, confidence == Confidence::Likely, "{event:?}");
    }
}

/// Of the holders that were asked about, these still hold the mount.
pub(super) fn still_held(requested: &[Request], pids: &[u32]) -> Fact {
    let [Request::StillHeld { id, holders, .. }] = requested else { panic!("{requested:?}") };
    let holders: Vec<Holder> = holders.iter().filter(|holder| pids.contains(&holder.tgid)).cloned().collect();
    let verdict = if holders.is_empty() { Verdict::Incomplete } else { Verdict::Processes };
    let skipped = HolderReport::skipped(*id, "/mnt/x");
    Fact::Holders(Box::new(HolderReport { holders, complete: true, verdict, ..skipped }))
}

#[test]
fn of_holders_that_let_go_only_the_others_are_told_again() {
    for (left, expected) in [(vec![7, 94_549], vec![94_549, 7]), (vec![7], vec![7]), (vec![], vec![94_549])] {
        let mut core = settled();
        core.observe(at(10, attempt_below("/", "/mnt/x")));
        let Fact::Holders(mut found) = report(1) else { unreachable!() };
        found.holders.push(Holder { tgid: 7, ..found.holders[0].clone() });
        core.observe(at(11, Fact::Holders(found)));
        take(&mut core);
        core.observe(at(12 * MS, attempt_below("/", "/mnt/x")));
        let (_, requested) = take(&mut core);
        let [Request::MountAt { id, .. }] = requested[..] else { panic!("{requested:?}") };
        let same = MountPresence::known(id, true);
        core.observe(at(13 * MS, Fact::MountPresence(same)));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        assert!(matches!(&requested[..], [Request::StillHeld { is_attached: true, .. }]), "{requested:?}");
        core.observe(at(14 * MS, still_held(&requested, &left)));
        if left.is_empty() {
            // Somebody else holds it then.
            let (emitted, requested) = take(&mut core);
            assert_eq!(emitted, []);
            assert!(matches!(&requested[..], [Request::Holders { id: 2, .. }]), "{requested:?}");
            core.observe(at(15 * MS, report(2)));
        }
        let [event] = &take(&mut core).0[..] else { panic!("not one event") };
        let pids: Vec<u32> = event.holders.iter().flatten().map(|holder| holder.pid).collect();
        assert_eq!((pids, event.holders_age_ms.is_some()), (expected, !left.is_empty()));
    }
}

#[test]
fn holders_of_what_is_likely_the_same_mount_are_repeated_as_likely_without_another_scan() {
    let mut core = settled();
    core.observe(at(10, attempt_below("/", "/mnt/x")));
    core.observe(at(11, report(1)));
    let (emitted, _) = take(&mut core);
    assert_eq!(emitted[0].mount.as_ref().unwrap().confidence, None);
    for (attempt, is_likely) in [(2, true), (4, false)] {
        core.observe(at((10 + attempt) * MS, attempt_below("/", "/mnt/x")));
        if attempt == 4 {
            core.observe(at((10 + attempt) * MS, attempt_below("/", "/mnt/x")));
        }
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        let [Request::MountAt { id, .. }] = requested[..] else { panic!("{requested:?}") };
        let reason = is_likely.then(|| "mounts have changed".to_owned());
        let same = MountPresence { id, present: Some(true), is_likely, reason };
        core.observe(at((20 + attempt) * MS, Fact::MountPresence(same)));
        let (_, requested) = take(&mut core);
        core.observe(at((21 + attempt) * MS, still_held(&requested, &[94_549])));
        let (emitted, requested) = take(&mut core);
        assert_eq!(requested, []);
        let [event] = &emitted[..] else { panic!("{emitted:?}") };
        let mount = event.mount.as_ref().unwrap();
        assert_eq!(mount.attempts, Some(attempt));
        assert_eq!(mount.confidence, is_likely.then_some(Confidence::Likely), "{event:?}");
        let is_told = event.holders_unreadable.iter().any(|spot| spot.reason == "mounts have changed");
        assert_eq!((event.holders_complete, is_told), (Some(!is_likely), is_likely), "{event:?}");
        assert_eq!(event.message.contains("what is likely /mnt/x"), is_likely, "{}", event.message);
    }
}

#[test]
fn the_kernels_word_for_the_mount_spares_the_look_and_a_doubtful_answer_stays_one() {
    for (target, likely, repeated) in [(77, false, true), (78, false, false), (77, true, true)] {
        let mut core = settled();
        let of_mount = |unique| {
            let Fact::Umount(mut attempt) = attempt_below("/", "/mnt/x") else { unreachable!() };
            attempt.origin.as_mut().unwrap().target = Some(MeantMount { id: 410, unique: Some(unique) });
            Fact::Umount(attempt)
        };
        core.observe(at(10, of_mount(77)));
        let Fact::Holders(mut report) = report(1) else { unreachable!() };
        report.mount.as_mut().unwrap().unique = Some(77);
        report.mount_is_likely = likely;
        core.observe(at(11, Fact::Holders(report)));
        let (emitted, _) = take(&mut core);
        let mount = emitted[0].mount.as_ref().unwrap();
        assert_eq!(mount.confidence, likely.then_some(Confidence::Likely));
        core.observe(at(12 * MS, of_mount(target)));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        if !repeated {
            assert!(matches!(&requested[..], [Request::Holders { .. }]), "{requested:?}");
            continue;
        }
        core.observe(at(13 * MS, still_held(&requested, &[94_549])));
        let [event] = &take(&mut core).0[..] else { panic!("not one event") };
        assert!(event.holders_age_ms.is_some(), "{event:?}");
        let confidence = event.mount.as_ref().unwrap().confidence;
        assert_eq!(confidence, likely.then_some(Confidence::Likely), "{event:?}");
    }
}

#[test]
fn what_was_mounted_below_is_not_told_again_unseen() {
    let mut core = settled();
    core.observe(at(10, attempt_below("/", "/mnt/x")));
    let Fact::Holders(mut found) = report(1) else { unreachable!() };
    (found.holders, found.verdict) = (Vec::new(), Verdict::ChildMount);
    found.child_mounts = vec!["/mnt/x/below".into()];
    core.observe(at(11, Fact::Holders(found)));
    take(&mut core);
    core.observe(at(12 * MS, attempt_below("/", "/mnt/x")));
    let (_, requested) = take(&mut core);
    let [Request::MountAt { id, .. }] = requested[..] else { panic!("{requested:?}") };
    core.observe(at(13 * MS, Fact::MountPresence(MountPresence::known(id, true))));
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted, []);
    assert!(matches!(&requested[..], [Request::Holders { id: 2, .. }]), "{requested:?}");
    core.observe(at(14 * MS, report(2)));
    let [event] = &take(&mut core).0[..] else { panic!("not one event") };
    assert_eq!(event.mount.as_ref().unwrap().child_mounts, [""; 0]);
    assert_eq!(event.holders_verdict, Some(Verdict::Processes));
}

#[test]
fn without_an_answer_which_mount_it_is_nothing_of_an_earlier_one_is_told() {
    let mut core = settled();
    core.observe(at(10, attempt_below("/", "/mnt/x")));
    core.observe(at(11, report(1)));
    core.observe(at(12 * MS, attempt_below("/", "/mnt/x")));
    take(&mut core);
    core.observe(at(6_000 * MS, Fact::Tick));
    let [event] = &events(&mut core)[..] else { panic!("not one event") };
    let mount = event.mount.as_ref().unwrap();
    assert_eq!((mount.identity.as_ref(), mount.device.as_ref()), (None, None));
    assert_eq!(event.holders_verdict, Some(Verdict::Skipped));
    assert_eq!(event.holders, Some(Vec::new()));
}

/// With what the kernel says that a call meant.
fn meaning(unique: u64, attempt: Fact) -> Fact {
    let Fact::Umount(mut attempt) = attempt else { unreachable!() };
    let target = Some(MeantMount { id: 410, unique: Some(unique) });
    attempt.origin =
        Some(Box::new(PathOrigin { root: None, cwd: None, doubt: None, table: None, target, began: None }));
    Fact::Umount(attempt)
}

/// What a scan found, of a mount with this unique id.
fn with_unique(unique: u64, report: Fact) -> Box<HolderReport> {
    let Fact::Holders(mut report) = report else { unreachable!() };
    report.mount.as_mut().unwrap().unique = Some(unique);
    report
}

#[test]
fn a_scan_that_finds_no_mount_takes_no_doubt_away() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    let likely = HolderReport { mount_is_likely: true, ..*with_unique(77, report(1)) };
    core.observe(at(11, Fact::Holders(Box::new(likely))));
    let later = 30_000 * MS;
    core.observe(at(later, attempt(Some(16))));
    core.observe(at(later + 1, Fact::Holders(Box::new(HolderReport::skipped(2, "/mnt/x")))));
    take(&mut core);
    core.observe(at(later + 2, attempt(None)));
    let released = answer_presence(&mut core, later + 3, Some(false));
    let [released] = &released[..] else { panic!("{released:?}") };
    assert_eq!(released.mount.as_ref().unwrap().confidence, Some(Confidence::Likely), "{released:?}");
}

#[test]
fn who_took_another_mount_by_the_kernels_word_is_not_credited() {
    for (first, second, by) in [(78, 77, Some("12Z")), (77, 78, Some("11Z")), (78, 78, None)] {
        let mut core = settled();
        core.observe(at(10, meaning(77, attempt(Some(16)))));
        core.observe(at(10, Fact::Holders(with_unique(77, report(1)))));
        take(&mut core);
        core.observe(at(11, meaning(first, attempt(None))));
        core.observe(at(12, meaning(second, attempt(None))));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        let id = requested.iter().find_map(|request| match request {
            Request::MountPresence { id, .. } => Some(*id),
            _ => None,
        });
        assert_eq!(id.is_some(), by.is_some(), "{requested:?}");
        let Some(id) = id else { continue };
        gone(&mut core, 13, id);
        let released = take(&mut core).0;
        let [released] = &released[..] else { panic!("{released:?}") };
        assert_eq!(released.kind, Kind::MountReleased);
        assert!(released.time.ends_with(by.unwrap()), "{}", released.time);
        assert!(!released.message.contains("likely"), "{}", released.message);
    }
}

#[test]
fn a_process_that_was_started_after_the_call_has_not_refused_it() {
    for (starts, first, is_gone) in
        [([Some(5), Some(20)], 0, false), ([Some(20), Some(5)], 1, false), ([Some(20), Some(21)], 0, true)]
    {
        let mut core = settled();
        core.observe(at(10, attempt(Some(16))));
        let Fact::Holders(mut report) = report(1) else { unreachable!() };
        let one = report.holders.remove(0);
        report.holders =
            (0..2).zip(starts).map(|(tgid, start_ns)| Holder { tgid, start_ns, ..one.clone() }).collect();
        core.observe(at(30, Fact::Holders(report)));
        let (emitted, _) = take(&mut core);
        let [event] = &emitted[..] else { panic!("{emitted:?}") };
        assert_eq!(event.holders.as_ref().unwrap()[0].pid, first);
        assert_eq!(event.holders_complete, Some(!is_gone));
        assert_eq!(event.message.contains("refused: by now held by "), is_gone, "{}", event.message);
    }
}
