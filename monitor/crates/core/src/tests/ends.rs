//! Which of several unmounts has taken a busy mount.

use super::mount::{attempt, busy, gone, take};
use super::which_mount::still_held;
use super::*;
use crate::mount::SETTLE_NS;
use crate::node::mounts::MountKey;

#[test]
fn an_unmount_whose_record_comes_after_the_mount_was_seen_to_be_gone_may_have_taken_it() {
    for (later, pid) in [(21, 7), (22 + MS, 7), (22 + 200 * MS, 28_997)] {
        let mut core = busy();
        core.observe(at(20, attempt(None)));
        let (_, requested) = take(&mut core);
        let [Request::MountPresence { id, .. }] = requested[..] else { panic!("{requested:?}") };
        core.observe(at(22, Fact::MountPresence(MountPresence::known(id, false))));
        assert_eq!(take(&mut core), (Vec::new(), Vec::new()));
        let Fact::Umount(mut last) = attempt(None) else { unreachable!() };
        last.actor.key.tgid = 7;
        core.observe(at(later, Fact::Umount(last)));
        core.observe(at(22 + SETTLE_NS, Fact::Tick));
        let [event] = &take(&mut core).0[..] else { panic!("not one event") };
        let actor = event.actor.as_ref().unwrap();
        let confidence = if pid == 7 { Confidence::Likely } else { Confidence::Certain };
        assert_eq!(
            (event.kind, actor.pid, actor.confidence),
            (Kind::MountReleased, pid, confidence),
            "{later}"
        );
    }
}

#[test]
fn of_several_unmounts_one_that_detaches_has_taken_the_mount_if_it_is_in_use() {
    for lazy_first in [true, false] {
        for (held, kind, pid) in [
            (vec![94_549], Kind::MountDetached, 6),
            (
                vec![],
                if lazy_first { Kind::MountReleased } else { Kind::MountDetached },
                if lazy_first { 7 } else { 6 },
            ),
        ] {
            let mut core = busy();
            let by = |pid, flags| {
                let Fact::Umount(mut attempt) = attempt(None) else { unreachable!() };
                attempt.actor.key.tgid = pid;
                attempt.flags = flags;
                Fact::Umount(attempt)
            };
            let (lazy, other) = (by(6, 2), by(7, 0));
            let (first, last) = if lazy_first { (lazy, other) } else { (other, lazy) };
            core.observe(at(20, first));
            let (_, requested) = take(&mut core);
            let [Request::MountPresence { id, .. }] = requested[..] else { panic!("{requested:?}") };
            core.observe(at(21, last));
            gone(&mut core, 22, id);
            let (emitted, requested) = take(&mut core);
            assert_eq!(emitted, []);
            core.observe(at(23 + SETTLE_NS, still_held(&requested, &held)));
            let [event] = &take(&mut core).0[..] else { panic!("not one event") };
            let actor = event.actor.as_ref().unwrap();
            assert_eq!(
                (event.kind, actor.pid, actor.confidence),
                (kind, pid, Confidence::Likely),
                "{}",
                event.message
            );
        }
    }
}

/// Has as many unmounts of another mount wait as may; nothing of it is answered.
fn fill(core: &mut Core, now: u64) {
    for errno in [Some(16), None] {
        loop {
            let before = core.holder_scans.waiting();
            let Fact::Umount(mut other) = attempt(errno) else { unreachable!() };
            other.path = "/mnt/y".into();
            core.observe(at(now, Fact::Umount(other)));
            if core.holder_scans.waiting() == before {
                break;
            }
        }
    }
    take(core);
}

#[test]
fn an_unmount_that_has_no_room_to_wait_is_counted_and_the_mount_is_looked_up() {
    const LATER: u64 = 60_000 * MS;
    let mut core = busy();
    // It is not known whether those hold it still who did: what comes later waits.
    core.observe(at(LATER, attempt(Some(16))));
    assert_eq!(core.holder_scans.waiting(), 1);
    fill(&mut core, LATER);
    let before = core.umounts_missed();
    core.observe(at(LATER, attempt(None)));
    assert_eq!(core.umounts_missed() - before, 1);
    let (emitted, requested) = take(&mut core);
    let [Request::MountPresence { id, .. }] = requested[..] else { panic!("{requested:?}") };
    core.observe(at(LATER + 1, Fact::MountPresence(MountPresence::known(id, false))));
    assert_eq!(emitted, []);
    let key = MountKey::new(2, "/mnt/x");
    let known = core.busy_mounts.at(&key).and_then(|id| core.busy_mounts.get(id));
    assert!(known.is_none_or(|busy| busy.identity.is_none()), "{known:?}");
}

#[test]
fn nobody_is_certain_to_have_taken_a_mount_that_one_without_room_to_wait_may_have_taken() {
    let mut core = busy();
    core.observe(at(20, attempt(None)));
    let (_, requested) = take(&mut core);
    let [Request::MountPresence { id, .. }] = requested[..] else { panic!("{requested:?}") };
    fill(&mut core, 21);
    let Fact::Umount(mut last) = attempt(None) else { unreachable!() };
    last.actor.key.tgid = 7;
    core.observe(at(21, Fact::Umount(last)));
    gone(&mut core, 22, id);
    let (emitted, _) = take(&mut core);
    let ended = emitted.iter().find(|event| event.kind == Kind::MountReleased).unwrap();
    let actor = ended.actor.as_ref().unwrap();
    assert_eq!((actor.pid, actor.confidence), (28_997, Confidence::Likely), "{}", ended.message);
    assert!(ended.message.contains("one of several"), "{}", ended.message);
}
