//! Refused attempts that are only counted: who holds the mount is looked at again.

use super::*;

const S: u64 = 1_000 * MS;

/// Events, and what is requested about mounts.
fn take(core: &mut Core) -> (Vec<Event>, Vec<Request>) {
    let (emitted, mut requested) = super::take(core);
    requested.retain(|request| !matches!(request, Request::Netns { .. }));
    (emitted, requested)
}

/// A mount that was refused twice, with its holder, and a third time 20 s later; the request that follows.
fn refused_again() -> (Core, u64) {
    let mut core = settled();
    core.observe(at(10, attempt(Some(16))));
    core.observe(at(11, report(1)));
    core.observe(at(12, attempt(Some(16))));
    assert_eq!(take(&mut core).0.len(), 2);
    core.observe(at(20 * S, attempt(Some(16))));
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted, [], "the third one is counted");
    let [Request::StillHeld { id, is_attached: true, holders, .. }] = &requested[..] else {
        panic!("{requested:?}")
    };
    assert_eq!(holders[0].tgid, 94_549);
    (core, *id)
}

/// Which of the known holders hold on.
fn still(id: u64, holders: Vec<Holder>, blind: bool) -> Fact {
    let mut report = HolderReport {
        holders,
        complete: true,
        verdict: Verdict::Processes,
        ..HolderReport::skipped(id, "/mnt/x")
    };
    if blind {
        report.blind_spot(Some((94_549, None)), "it cannot be seen");
    }
    Fact::Holders(Box::new(report))
}

fn known() -> Vec<Holder> {
    let Fact::Holders(found) = report(1) else { unreachable!() };
    found.holders
}

#[test]
fn those_who_hold_on_make_no_event_and_are_not_looked_at_again_for_ten_seconds() {
    let (mut core, id) = refused_again();
    core.observe(at(20 * S + 1, still(id, known(), false)));
    core.observe(at(21 * S, attempt(Some(16))));
    let (emitted, requested) = take(&mut core);
    // The fourth attempt has an event, and a scan of its own.
    assert_eq!(emitted, []);
    let [Request::Holders { id, .. }] = &requested[..] else { panic!("{requested:?}") };
    core.observe(at(21 * S + 1, report(*id)));
    assert_eq!(take(&mut core).0[0].mount.as_ref().unwrap().attempts, Some(4));
    core.observe(at(25 * S, attempt(Some(16))));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "the scan is new");
    core.observe(at(32 * S, attempt(Some(16))));
    let (_, requested) = take(&mut core);
    let [Request::StillHeld { id, .. }] = &requested[..] else { panic!("{requested:?}") };
    core.observe(at(32 * S + 1, still(*id, known(), false)));
    core.observe(at(41 * S, attempt(Some(16))));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "so is the look");
}

#[test]
fn who_holds_it_by_now_is_told_at_once_where_one_has_let_go() {
    for restores in [false, true] {
        let (mut core, id) = refused_again();
        core.observe(at(20 * S + 1, still(id, Vec::new(), false)));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        let [Request::Holders { id, mount_only: false, .. }] = &requested[..] else {
            panic!("{requested:?}")
        };
        if restores {
            let saved = serde_json::to_string(&core.save().unwrap()).unwrap();
            core = Core::restore(core.settings().clone(), serde_json::from_str(&saved).unwrap()).unwrap();
        }
        let Fact::Holders(mut other) = found(*id, 410) else { unreachable!() };
        (other.holders[0].tgid, other.holders[0].comm) = (7, "bash".into());
        core.observe(at(20 * S + 2, Fact::Holders(other)));
        let (emitted, _) = take(&mut core);
        let [event] = &emitted[..] else { panic!("{emitted:?}") };
        assert!(event.message.contains("refused: held by bash (pid 7)"), "{}", event.message);
        assert_eq!(event.mount.as_ref().unwrap().attempts, Some(3));
    }
}

#[test]
fn a_look_that_is_not_answered_or_shows_nothing_makes_no_event_and_holds_nothing_up() {
    for answer in [None, Some(true)] {
        let (mut core, looked) = refused_again();
        core.observe(at(20 * S + 1, attempt(Some(16))));
        let (emitted, requested) = take(&mut core);
        assert_eq!(emitted, []);
        let [Request::Holders { id, .. }] = &requested[..] else { panic!("{requested:?}") };
        match answer {
            Some(blind) => core.observe(at(20 * S + 2, still(looked, Vec::new(), blind))),
            None => core.observe(at(24 * S, Fact::Tick)),
        }
        assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
        core.observe(at(24 * S + 1, report(*id)));
        assert_eq!(take(&mut core).0[0].mount.as_ref().unwrap().attempts, Some(4), "the next one goes on");
        core.observe(at(26 * S, Fact::Tick));
        core.observe(at(27 * S, still(looked, Vec::new(), false)));
        assert_eq!(take(&mut core), (Vec::new(), Vec::new()), "that is too late");
        assert_eq!(core.umounts_ignored(), 1);
    }
}

#[test]
fn what_was_told_since_is_not_told_again_by_an_older_look() {
    let (mut core, looked) = refused_again();
    core.observe(at(20 * S + 1, attempt(Some(16))));
    let requested = take(&mut core).1;
    let [Request::Holders { id, .. }] = &requested[..] else { panic!("{requested:?}") };
    core.observe(at(20 * S + 2, report(*id)));
    assert_eq!(take(&mut core).0.len(), 1);
    core.observe(at(20 * S + 3, still(looked, Vec::new(), false)));
    assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
    assert_eq!(core.umounts_ignored(), 1);
}
