//! Refused removals and renames as input, events as output.

use super::mount::{attempt, attempt_below, busy, found, take};
use super::*;
use crate::mount::Benign;

fn removal(syscall: MountSyscall, path: &str) -> UmountAttempt {
    let Fact::Umount(attempt) = attempt_below("/", path) else { unreachable!() };
    UmountAttempt { syscall, ..*attempt }
}

fn observe(core: &mut Core, now: BootNs, attempt: UmountAttempt) {
    core.observe(at(now, Fact::Umount(Box::new(attempt))));
}

/// Nothing is mounted at the path.
fn nothing(id: u64, path: &str) -> HolderReport {
    HolderReport { complete: true, verdict: Verdict::NotAMount, ..HolderReport::skipped(id, path) }
}

#[test]
fn what_is_mounted_there_is_the_reason_whoever_uses_it() {
    let mut core = settled();
    observe(&mut core, 10, removal(MountSyscall::Rmdir, "/mnt/x"));
    let (_, requested) = take(&mut core);
    assert!(matches!(&requested[..], [Request::Holders { follow: false, .. }]), "{requested:?}");
    core.observe(at(11, found(1, 410)));
    let event = events(&mut core).remove(0);
    assert_eq!(
        event.message,
        "rmdir of /mnt/x by umount (pid 28997) refused: a file system is mounted there, held by glusterfs (pid 94549) as \
         its current directory"
    );
    let mount = event.mount.as_ref().unwrap();
    assert_eq!((mount.syscall.as_str(), &mount.child_mounts[..]), ("rmdir", &["/mnt/x".to_owned()][..]));
    assert_eq!(event.holders_verdict, Some(Verdict::ChildMount));
}

#[test]
fn a_name_of_a_namespace_that_is_removed_before_it_is_unmounted_is_no_trouble_at_once() {
    for (fstype, severities) in
        [("nsfs", [Severity::Notice, Severity::Warning]), ("tmpfs", [Severity::Warning; 2])]
    {
        let mut core = settled();
        let Fact::Holders(report) = found(1, 410) else { unreachable!() };
        let mount = MountFacts { fstype: fstype.into(), ..report.mount.clone().unwrap() };
        let mut told = Vec::new();
        for second in [1, 20] {
            observe(&mut core, 1_000 * MS * second, removal(MountSyscall::Unlink, "/mnt/x"));
            let (mut emitted, requested) = take(&mut core);
            for request in requested {
                let Request::Holders { id, .. } = request else { continue };
                let report = HolderReport { id, mount: Some(mount.clone()), ..(*report).clone() };
                core.observe(at(1_000 * MS * second + 1, Fact::Holders(Box::new(report))));
                emitted.extend(events(&mut core));
            }
            told.extend(emitted.into_iter().map(|event| event.severity));
        }
        assert_eq!(told, severities, "{fstype}");
    }
}

#[test]
fn who_may_be_root_of_a_container_may_have_shown_the_kernel_another_name() {
    // The caller's namespace is 2.
    for (mntns, syscall, confidence) in [
        (1, MountSyscall::Rmdir, Confidence::Likely),
        (2, MountSyscall::Rmdir, Confidence::Certain),
        // Takes rights that few containers have.
        (1, MountSyscall::Umount2, Confidence::Certain),
    ] {
        let mut core = settled();
        let host = KubeletNamespace { mntns, roots: Vec::new(), of_kubelet: false, pid: None };
        core.observe(at(1, Fact::Kubelet(KubeletFacts { namespaces: vec![host] })));
        take(&mut core);
        observe(&mut core, 10, removal(syscall, "/mnt/x"));
        core.observe(at(11, found(1, 410)));
        let event = events(&mut core).remove(0);
        assert_eq!(event.actor.as_ref().unwrap().confidence, confidence, "{event:?}");
    }
}

#[test]
fn each_system_call_of_one_caller_is_counted_by_itself() {
    let mut core = busy();
    let mut counts = |now, fact| {
        core.observe(at(now, fact));
        let emitted = events(&mut core);
        emitted.iter().map(|event| event.mount.as_ref().unwrap().attempts.unwrap()).collect::<Vec<_>>()
    };
    let removal = || {
        let Fact::Umount(attempt) = attempt(Some(16)) else { unreachable!() };
        Fact::Umount(Box::new(UmountAttempt { syscall: MountSyscall::Unlinkat, ..*attempt }))
    };
    assert_eq!(counts(12, removal()), [1]);
    assert_eq!(counts(13, attempt(Some(16))), [2]);
    assert_eq!(counts(14, removal()), [2]);
    assert_eq!(counts(15, removal()), [0; 0]);
}

#[test]
fn of_a_rename_the_second_path_is_looked_at_if_nothing_is_mounted_at_the_first() {
    let mut core = settled();
    let first = removal(MountSyscall::Rename, "/mnt/new");
    let origin = *first.origin.clone().unwrap();
    let second = SecondPath { path: "/mnt/x".into(), origin, fstype: None };
    observe(&mut core, 10, UmountAttempt { second: Some(Box::new(second)), ..first });
    core.observe(at(11, Fact::Holders(Box::new(nothing(1, "/mnt/new")))));
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted, []);
    let asked =
        |request: &Request| matches!(request, Request::Holders { id: 2, path, .. } if path == "/mnt/x");
    assert!(requested.iter().any(asked), "{requested:?}");
    core.observe(at(12, found(2, 410)));
    let emitted = events(&mut core);
    let mount = emitted[0].mount.as_ref().unwrap();
    assert_eq!((emitted.len(), mount.path.as_str(), mount.attempts), (1, "/mnt/x", Some(1)));
    assert_eq!(core.busy_mounts.iter().count(), 1, "the first path is not busy");
}

#[test]
fn where_nothing_is_mounted_the_reason_is_not_known() {
    let mut core = settled();
    observe(&mut core, 10, removal(MountSyscall::Unlink, "/nfs/.nfs7"));
    core.observe(at(11, Fact::Holders(Box::new(nothing(1, "/nfs/.nfs7")))));
    let event = events(&mut core).remove(0);
    assert_eq!((event.severity, event.holders_complete), (Severity::Notice, Some(false)));
    assert_eq!(
        event.message,
        "unlink of /nfs/.nfs7 by umount (pid 28997) refused: nothing was mounted there at the time of the scan; the \
         reason is unknown"
    );
}

#[test]
fn control_groups_and_what_has_no_name_are_counted_only() {
    let mut core = settled();
    for (now, id) in [(10, 1), (20, 2), (30, 3)] {
        observe(&mut core, now, removal(MountSyscall::Rmdir, "/sys/fs/cgroup/a"));
        let report = HolderReport { inside: Some("cgroup2".into()), ..nothing(id, "/sys/fs/cgroup/a") };
        core.observe(at(now + 1, Fact::Holders(Box::new(report))));
    }
    for path in ["/", "//", "/mnt/.", "/mnt/x/..", ".", "./"] {
        observe(&mut core, 40, removal(MountSyscall::Rename, path));
    }
    let (emitted, requested) = take(&mut core);
    assert_eq!((emitted.len(), requested.len()), (0, 3));
    assert_eq!(core.benign_refusals(), Benign { cgroup: 3, nameless: 6 });
    assert_eq!(core.busy_mounts.iter().count(), 0);
}
