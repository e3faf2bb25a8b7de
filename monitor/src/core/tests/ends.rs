//! Which of several unmounts has taken a busy mount.

use super::mount::{attempt, busy, gone, take};
use super::which_mount::still_held;
use super::*;
use crate::core::mount::SETTLE_NS;

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
