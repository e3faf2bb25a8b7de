//! Unmounts that are refused for nobody who is seen: it is looked again.

use super::mount::{answer_presence, attempt, busy, report};
use super::*;

/// Events, and what is requested about mounts.
fn take(core: &mut Core) -> (Vec<Event>, Vec<Request>) {
    let (emitted, mut requested) = mount::take(core);
    requested.retain(|request| !matches!(request, Request::Netns { .. }));
    (emitted, requested)
}

/// A complete look that found nobody.
fn nobody(id: u64) -> Fact {
    let Fact::Holders(found) = report(id) else { unreachable!() };
    Fact::Holders(Box::new(HolderReport { holders: Vec::new(), verdict: Verdict::Kernel, ..*found }))
}

/// A mount that was refused once, with nobody found; the number of its event.
fn unexplained() -> (Core, u64) {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(20, nobody(1)));
    let event = take(&mut core).0.remove(0);
    assert_eq!((event.holders_verdict, event.holders_complete), (Some(Verdict::None), Some(true)));
    assert!(event.message.ends_with("refused: no holder found yet"), "{}", event.message);
    (core, event.seq)
}

/// The look that is requested at this time.
#[track_caller]
fn look(core: &mut Core, now: u64) -> u64 {
    core.observe(at(now - 1, Fact::Tick));
    assert_eq!(take(core), (Vec::new(), Vec::new()), "it is not time");
    assert!(core.deadline().is_some_and(|due| due <= now));
    core.observe(at(now, Fact::Tick));
    let (emitted, requested) = take(core);
    assert_eq!(emitted, []);
    let [Request::Holders { id, path, origin: None, mount_only: false, .. }] = &requested[..] else {
        panic!("{requested:?}")
    };
    assert_eq!(path, "/mnt/x");
    *id
}

fn restored(core: &Core) -> Core {
    let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
    Core::restore(core.settings().clone(), serde_json::from_str(&saved).unwrap()).unwrap()
}

#[test]
fn the_kernel_is_said_to_hold_a_mount_only_after_three_more_looks_that_found_nobody() {
    let (mut core, seq) = unexplained();
    for due in [100 * MS, 1_000 * MS] {
        let id = look(&mut core, 20 + due);
        core.observe(at(21 + due, nobody(id)));
        assert_eq!(take(&mut core).0, [], "nothing is known yet");
    }
    let mut core = restored(&core);
    let id = look(&mut core, 20 + 10_000 * MS);
    core.observe(at(10_001 * MS, nobody(id)));
    let event = take(&mut core).0.remove(0);
    assert_eq!((event.completes, event.holders_verdict), (Some(seq), Some(Verdict::Kernel)));
    let expected = "refused: no holder found in 10 s: held by the kernel, by a pending call, or by a process that uses \
                    it intermittently (found later)";
    assert!(event.message.ends_with(expected), "{}", event.message);
    // Another attempt begins no new row of looks.
    core.observe(at(60_000 * MS, attempt(Some(16))));
    let (_, requested) = take(&mut core);
    let id = requested.iter().find_map(|request| match request {
        Request::Holders { id, mount_only: false, .. } => Some(*id),
        _ => None,
    });
    core.observe(at(60_001 * MS, nobody(id.unwrap())));
    assert_eq!(take(&mut core).0[0].holders_verdict, Some(Verdict::Kernel));
}

#[test]
fn who_is_found_by_another_look_holds_it_by_now() {
    let (mut core, seq) = unexplained();
    let id = look(&mut core, 20 + 100 * MS);
    core.observe(at(101 * MS, report(id)));
    let (emitted, requested) = take(&mut core);
    let [event] = &emitted[..] else { panic!("{emitted:?}") };
    assert_eq!((event.completes, event.holders_verdict), (Some(seq), Some(Verdict::Processes)));
    assert_eq!(event.holders_complete, Some(false), "it need not be who refused");
    assert!(event.message.contains("refused: by now held by glusterfs (pid 94549)"), "{}", event.message);
    assert_eq!(requested, []);
    core.observe(at(20_000 * MS, Fact::Tick));
    assert_eq!(take(&mut core).1, [], "no more looks");
}

#[test]
fn who_was_seen_and_is_gone_has_let_go() {
    let mut core = busy();
    // The next attempt is refused, too; and after ten seconds all are looked for again.
    core.observe(at(20_000 * MS, attempt(Some(16))));
    core.observe(at(20_001 * MS, nobody(2)));
    let event = take(&mut core).0.remove(0);
    assert_eq!(event.holders_verdict, Some(Verdict::Transient));
    assert!(event.message.ends_with("refused: its holder has released it"), "{}", event.message);
}

#[test]
fn those_that_are_looked_at_again_and_have_gone_have_let_go() {
    let mut core = busy();
    let Fact::Umount(again) = attempt(Some(16)) else { unreachable!() };
    let target = Some(MeantMount { id: 410, unique: Some(410) });
    let origin = PathOrigin { root: None, cwd: None, doubt: None, table: None, target, began: None };
    let mut first = report(2);
    let Fact::Holders(known) = &mut first else { unreachable!() };
    known.mount.as_mut().unwrap().unique = Some(410);
    core.observe(at(
        20_000 * MS,
        Fact::Umount(Box::new(UmountAttempt { origin: Some(Box::new(origin.clone())), ..*again.clone() })),
    ));
    core.observe(at(20_001 * MS, first));
    take(&mut core);
    for _ in 0..2 {
        core.observe(at(
            20_100 * MS,
            Fact::Umount(Box::new(UmountAttempt {
                origin: Some(Box::new(origin.clone())),
                ..*again.clone()
            })),
        ));
    }
    let (_, requested) = take(&mut core);
    let Some(Request::StillHeld { id, .. }) = requested.first() else { panic!("{requested:?}") };
    let gone =
        HolderReport { complete: true, verdict: Verdict::Incomplete, ..HolderReport::skipped(*id, "/mnt/x") };
    core.observe(at(20_101 * MS, Fact::Holders(Box::new(gone))));
    let (_, requested) = take(&mut core);
    let Some(Request::Holders { id, .. }) = requested.first() else { panic!("{requested:?}") };
    let Fact::Holders(mut found) = nobody(*id) else { unreachable!() };
    found.mount.as_mut().unwrap().unique = Some(410);
    core.observe(at(20_102 * MS, Fact::Holders(found)));
    assert_eq!(take(&mut core).0[0].holders_verdict, Some(Verdict::Transient));
}

#[test]
fn what_is_unmounted_later_though_nobody_was_found_was_held_for_a_moment() {
    let (mut core, _) = unexplained();
    core.observe(at(50 * MS, attempt(None)));
    let event = answer_presence(&mut core, 51 * MS, Some(false)).remove(0);
    assert_eq!((event.kind, event.holders_verdict), (Kind::MountReleased, Some(Verdict::Transient)));
    assert!(
        event.message.ends_with("no holder was found before: its holder had released it"),
        "{}",
        event.message
    );
    core.observe(at(20_000 * MS, Fact::Tick));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "nobody looks again at what is gone");
}

#[test]
fn a_look_that_misses_something_proves_nothing() {
    let (mut core, _) = unexplained();
    let id = look(&mut core, 20 + 100 * MS);
    let Fact::Holders(found) = nobody(id) else { unreachable!() };
    let cut = HolderReport { complete: false, verdict: Verdict::Incomplete, ..*found };
    core.observe(at(101 * MS, Fact::Holders(Box::new(cut))));
    core.observe(at(20_000 * MS, Fact::Tick));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
}

#[test]
fn a_mount_that_went_while_it_was_looked_at_was_not_seen_to_be_let_go() {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    let Fact::Holders(found) = nobody(1) else { unreachable!() };
    core.observe(at(20, Fact::Holders(Box::new(HolderReport { verdict: Verdict::Transient, ..*found }))));
    let event = take(&mut core).0.remove(0);
    assert_eq!((event.holders_verdict, event.holders_complete), (Some(Verdict::Incomplete), Some(false)));
}
