//! Unmounts, removals and renames that are refused are three things.

use super::*;

fn refused(syscall: MountSyscall) -> Fact {
    let Fact::Umount(attempt) = umount(Some(16)) else { unreachable!() };
    Fact::Umount(Box::new(UmountAttempt { syscall, ..*attempt }))
}

#[test]
fn each_call_is_told_as_what_it_is() {
    for (syscall, expected) in [
        (MountSyscall::Umount2, " cannot be unmounted by umount"),
        (MountSyscall::Rmdir, " cannot be removed by umount"),
        (MountSyscall::Unlinkat, " cannot be removed by umount"),
        (MountSyscall::Renameat2, " cannot be renamed by umount"),
    ] {
        let mut node = terminating();
        node.observe(refused(syscall));
        let summary = &node.open()[0].summary;
        assert!(summary.contains(expected), "{summary}");
    }
}

#[test]
fn only_unmounts_count_towards_a_warning_for_many_of_them() {
    let mut node = terminating();
    for _ in 0..10 {
        node.observe(refused(MountSyscall::Rmdir));
    }
    let open = &node.open()[0];
    assert_eq!((open.severity, open.count, open.counted.as_str()), (Severity::Info, 10, "refused attempts"));
    node.observe(umount(Some(16)));
    node.observe(umount(Some(16)));
    assert_eq!(node.open()[0].severity, Severity::Info);
    node.observe(umount(Some(16)));
    assert_eq!((node.open()[0].severity, node.open()[0].count), (Severity::Warning, 13));
}

#[test]
fn whoever_asks_learns_of_attempts_that_no_event_tells() {
    let mut node = terminating();
    assert_eq!(node.core.state(node.now).recounts, []);
    for _ in 0..7 {
        node.observe(umount(Some(16)));
    }
    let told = node.last_incident().incident.clone().unwrap();
    let [recount] = &node.core.state(node.now).recounts[..] else { panic!("one is open") };
    assert_eq!((told.count, recount.count), (4, 7));
    assert_eq!(recount.id, told.id);
}

#[test]
fn what_was_refused_is_counted_by_system_call() {
    let mut node = terminating();
    node.observe(umount(Some(16)));
    assert_eq!(node.last_incident().mount.as_ref().unwrap().refused, [], "by this one alone");
    node.observe(refused(MountSyscall::Rmdir));
    node.observe(refused(MountSyscall::Rename));
    let told = |event: &Event| {
        let refused = event.mount.as_ref().unwrap().refused.clone();
        refused.into_iter().map(|call| (call.syscall, call.attempts)).collect::<Vec<_>>()
    };
    let expected =
        [("umount2", 1), ("rmdir", 1), ("rename", 1)].map(|(name, calls)| (name.to_owned(), calls));
    assert_eq!(told(node.last_incident()), expected);
    node.observe(umount(None));
    node.run_for(S);
    let released = node.events.iter().find(|event| event.kind == Kind::MountReleased).unwrap();
    assert_eq!(told(released), expected);
    let after = ", after 1 refused unmount, 1 refused removal, 1 refused rename";
    assert!(released.message.contains(after), "{}", released.message);
    assert_eq!(node.open().len(), 0);
}
