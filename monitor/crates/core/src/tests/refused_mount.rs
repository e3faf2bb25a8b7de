//! Refused mounts as input, events as output.

use super::mount::{attempt_below, take};
use super::*;

/// A mount of a device at `/mnt/x`.
fn refused(source: &str, flags: u32) -> Fact {
    let Fact::Umount(attempt) = attempt_below("/", "/mnt/x") else { unreachable!() };
    let (origin, fstype) = (*attempt.origin.clone().unwrap(), Some("ext4".to_owned()));
    let second = SecondPath { path: source.into(), origin, fstype };
    let syscall = MountSyscall::Mount;
    Fact::Umount(Box::new(UmountAttempt { syscall, flags, second: Some(Box::new(second)), ..*attempt }))
}

/// The only event, which does not wait for anything.
fn told(fact: Fact) -> Event {
    let mut core = settled();
    core.observe(at(10, fact));
    let (mut emitted, requested) = take(&mut core);
    assert_eq!((emitted.len(), requested.len()), (1, 0), "{requested:?}");
    emitted.remove(0)
}

/// The event of a mount of this device, of which a look finds this.
fn looked(device: Option<BlockDevice>, holders: Vec<Holder>) -> Event {
    let mut core = settled();
    core.observe(at(10, refused("/dev/sdb", 1)));
    let (emitted, requested) = take(&mut core);
    assert_eq!(emitted, []);
    let [Request::DeviceUsers { id, mntns: 2, path, fstype, .. }] = &requested[..] else {
        panic!("{requested:?}")
    };
    assert_eq!((path.as_str(), fstype.as_deref()), ("/dev/sdb", Some("ext4")));
    let device = device.map(Box::new);
    let report = HolderReport { device, holders, complete: true, ..HolderReport::skipped(*id, "/dev/sdb") };
    core.observe(at(11, Fact::Holders(Box::new(report))));
    let mut emitted = events(&mut core);
    assert_eq!(emitted.len(), 1);
    emitted.remove(0)
}

fn sdb() -> BlockDevice {
    BlockDevice { name: "/dev/sdb".into(), number: "8:16".into(), ..BlockDevice::default() }
}

fn user(name: &str, mapper: Option<(&str, &str)>) -> DeviceUser {
    DeviceUser {
        name: name.into(),
        mapping: mapper.map(|(name, _)| name.to_owned()),
        kind: mapper.map(|(_, kind)| kind.to_owned()),
    }
}

#[test]
fn what_uses_the_device_is_told_with_who_tried_to_mount_it() {
    let devices = vec![user("loop1", None), user("dm-0", Some(("mpatha", "multipath")))];
    let event = looked(Some(BlockDevice { devices, swap: true, ..sdb() }), Vec::new());
    assert_eq!(
        event.message,
        "mount of /dev/sdb at /mnt/x by umount (pid 28997) refused: /dev/sdb is used by dm-0 (mpatha, \
         multipath)"
    );
    assert_eq!((event.kind, event.severity), (Kind::MountRefused, Severity::Warning));
    let mount = event.mount.as_ref().unwrap();
    assert_eq!((mount.syscall.as_str(), mount.path.as_str()), ("mount", "/mnt/x"));
    assert_eq!((mount.source.as_deref(), mount.device.as_deref()), (Some("/dev/sdb"), Some("8:16")));
    assert_eq!((&mount.flags[..], mount.attempts), (&["MS_RDONLY".to_owned()][..], Some(1)));
    assert_eq!(event.holders_complete, Some(true));
    assert_eq!(event.actor.unwrap().confidence, Confidence::Certain);
}

#[test]
fn without_a_claim_of_the_kernel_it_is_a_mount_and_no_process_that_has_it_open() {
    let reason = |device, holders| {
        let event = looked(device, holders);
        let (_, reason) = event.message.split_once(" refused: ").unwrap();
        (reason.to_owned(), event.severity)
    };
    let of = |access, tgid, path: &str| Holder {
        tgid,
        comm: "fsck".into(),
        mntns: Some(5),
        source: Some("/dev/sdb".into()),
        ..Holder::of_kernel(access, path.into())
    };
    let open = || of(Access::Fd, 7, "/dev/sdb");
    let warning = |text: &str| (text.to_owned(), Severity::Warning);
    let notice = |text: &str| (text.to_owned(), Severity::Notice);
    let swap = BlockDevice { swap: true, ..sdb() };
    assert_eq!(reason(Some(swap), vec![open()]), warning("the kernel swaps to /dev/sdb"));
    let suspended = || BlockDevice { suspended: true, ..sdb() };
    let state = "/dev/sdb is suspended by device-mapper now";
    assert_eq!(reason(Some(suspended()), vec![open()]), warning(state));
    let mounted = "/dev/sdb is mounted at /a in the mount namespace of fsck (pid 8)";
    assert_eq!(
        reason(Some(suspended()), vec![of(Access::Mount, 8, "/a")]),
        warning(&format!("{state}, and {mounted}"))
    );
    assert_eq!(
        reason(Some(sdb()), vec![open(), of(Access::Mount, 8, "/a b")]),
        warning("/dev/sdb is mounted at \"/a b\" in the mount namespace of fsck (pid 8)")
    );
    assert_eq!(
        reason(Some(sdb()), vec![open()]),
        notice("the kernel does not say what uses it; processes have it open, see holders")
    );
    let targets = vec!["iblock_0/disk".into()];
    let phrase =
        "/dev/sdb, a partition of it or its disk is used by the kernel's SCSI target, as iblock_0/disk";
    assert_eq!(reason(Some(BlockDevice { targets, ..sdb() }), vec![open()]), warning(phrase));
    let unlocated = || BlockDevice { unlocated: true, ..sdb() };
    let phrase = "/dev/sdb is a device of a file system in use, of which no mount was found";
    assert_eq!(reason(Some(unlocated()), vec![open()]), warning(phrase));
    let there = Holder { mntns: Some(2), ..of(Access::Mount, 8, "/mnt/x") };
    assert_eq!(reason(Some(unlocated()), vec![there.clone()]), warning("/dev/sdb is already mounted there"));
    assert_eq!(reason(Some(sdb()), vec![there]), warning("/dev/sdb is already mounted there"));
    assert_eq!(reason(Some(sdb()), Vec::new()), notice("the kernel does not say what uses it"));
    assert_eq!(reason(None, Vec::new()), notice("the kernel does not say why"), "it is no block device");
}

#[test]
fn a_partition_and_the_disk_are_told_from_the_device() {
    let reason = |device: BlockDevice, holders| {
        let message = looked(Some(device), holders).message;
        message.split_once(" refused: ").unwrap().1.to_owned()
    };
    let mounted = |source: &str| Holder {
        tgid: 8,
        comm: "sh".into(),
        mntns: Some(5),
        source: Some(source.into()),
        ..Holder::of_kernel(Access::Mount, "/v".into())
    };
    let part = || BlockDevice { name: "/dev/sdb1".into(), ..sdb() };
    let place = "is mounted at /v in the mount namespace of sh (pid 8)";
    assert_eq!(reason(sdb(), vec![mounted("/dev/sdb1")]), format!("partition sdb1 of it {place}"));
    assert_eq!(reason(part(), vec![mounted("/dev/sdb")]), format!("its disk sdb {place}"));
    let swap = |device, to: &str| BlockDevice { swap: true, swap_device: Some(to.into()), ..device };
    let to_part = reason(swap(sdb(), "/dev/sdb1"), Vec::new());
    assert_eq!(to_part, "the kernel swaps to partition sdb1 of it");
    assert_eq!(reason(swap(part(), "/dev/sdb"), Vec::new()), "the kernel swaps to its disk sdb");
}

#[test]
fn of_an_overlay_another_one_with_the_same_upper_directory_is_likely_the_reason() {
    let reason = |holders| {
        let mut core = settled();
        let Fact::Umount(mut attempt) = refused("/v/upper", 0) else { unreachable!() };
        attempt.second.as_mut().unwrap().fstype = Some("overlay".into());
        core.observe(at(10, Fact::Umount(attempt)));
        let (_, requested) = take(&mut core);
        let [Request::DeviceUsers { id, .. }] = &requested[..] else { panic!("{requested:?}") };
        let report = HolderReport { holders, ..HolderReport::skipped(*id, "/v/upper") };
        core.observe(at(11, Fact::Holders(Box::new(report))));
        let event = events(&mut core).remove(0);
        assert!(event.message.starts_with("mount of /v/upper at /mnt/x by "), "{}", event.message);
        let (_, reason) = event.message.split_once(" refused: ").unwrap();
        (reason.to_owned(), event.severity)
    };
    let there = Holder {
        tgid: 8,
        comm: "sh".into(),
        mntns: Some(5),
        ..Holder::of_kernel(Access::Mount, "/v/merged".into())
    };
    let place = "the overlay at /v/merged in the mount namespace of sh (pid 8)";
    let likely = format!("its upper directory is likely that of {place}");
    assert_eq!(reason(vec![there]), (likely, Severity::Warning));
    let unknown = "not everything could be read".to_owned();
    assert_eq!(reason(Vec::new()), (unknown, Severity::Notice));
}

#[test]
fn for_a_user_nothing_is_looked_for() {
    let Fact::Umount(mut attempt) = refused("/dev/sdb", 0) else { unreachable!() };
    attempt.actor.context = Some(TaskContext { uid: 1000, ..TaskContext::default() });
    let event = told(Fact::Umount(attempt.clone()));
    assert!(event.message.ends_with(" refused (EBUSY)"), "{}", event.message);
    assert_eq!((event.severity, event.holders), (Severity::Notice, None));
    attempt.actor.context = Some(TaskContext { userns: 7, ..TaskContext::default() });
    let message = told(Fact::Umount(attempt)).message;
    assert!(message.ends_with(" refused (EBUSY)"), "root of a user namespace: {message}");
}

#[test]
fn what_is_no_path_is_not_looked_for_and_neither_is_who_writes() {
    let event = told(refused("proc", 0));
    assert_eq!(
        event.message,
        "mount of proc at /mnt/x by umount (pid 28997) refused: the kernel does not say why"
    );
    assert_eq!((event.severity, event.holders), (Severity::Notice, None));
    let event = told(refused("/dev/sdb", 0x21));
    assert_eq!(
        event.message,
        "remount of /mnt/x by umount (pid 28997) refused: files there are likely open for writing"
    );
    assert_eq!(event.mount.unwrap().flags, ["MS_RDONLY", "MS_REMOUNT"]);
    let message = told(refused("/dev/sdb", 0x20)).message;
    assert!(message.ends_with(" refused: the kernel does not say why"), "{message}");
}

#[test]
fn attempts_on_one_mount_point_are_told_at_powers_of_two_even_without_an_answer() {
    let mut core = settled();
    for now in 10..15 {
        core.observe(at(now, refused("/dev/sdb", 0)));
    }
    assert_eq!(core.umounts_ignored(), 2);
    core.observe(at(10_000 * MS, Fact::Tick));
    let emitted = events(&mut core);
    let attempts: Vec<_> = emitted.iter().map(|event| event.mount.as_ref().unwrap().attempts).collect();
    assert_eq!(attempts, [Some(1), Some(2), Some(4)]);
    assert_eq!(emitted[0].holders_verdict, Some(Verdict::Skipped));
    assert!(!emitted[0].holders_unreadable.is_empty(), "it says why");
    let message = &emitted[0].message;
    assert!(message.ends_with(" refused: kevtmon did not look what uses it"), "{message}");
}

#[test]
fn attempts_to_mount_something_else_count_apart() {
    let mut core = settled();
    for fact in [refused("proc", 0), refused("mqueue", 0), refused("proc", 0x20), refused("proc", 0)] {
        core.observe(at(10, fact));
    }
    let emitted = events(&mut core);
    let attempts: Vec<_> = emitted.iter().map(|event| event.mount.as_ref().unwrap().attempts).collect();
    assert_eq!(attempts, [Some(1), Some(1), Some(1), Some(2)]);
}

/// The same by fsconfig(2), from this directory.
fn refused_to_create(source: &str, flags: u32) -> UmountAttempt {
    let Fact::Umount(attempt) = refused(source, flags) else { unreachable!() };
    let mut attempt = UmountAttempt { syscall: MountSyscall::Fsconfig, path: String::new(), ..*attempt };
    let cwd = CallerDirectory { mount_id: 29, path: Some("/mnt/x".into()) };
    attempt.origin.as_mut().unwrap().cwd = Some(cwd);
    attempt
}

#[test]
fn of_fsconfig_what_uses_the_device_is_told_without_a_mount_point() {
    let mut core = settled();
    core.observe(at(10, Fact::Umount(Box::new(refused_to_create("/dev/sdb", 9)))));
    let (_, requested) = take(&mut core);
    let [Request::DeviceUsers { id, .. }] = &requested[..] else { panic!("{requested:?}") };
    let there = Holder {
        tgid: 8,
        comm: "sh".into(),
        mntns: Some(2),
        source: Some("/dev/sdb".into()),
        ..Holder::of_kernel(Access::Mount, "/v".into())
    };
    let (device, holders) = (Some(Box::new(sdb())), vec![there]);
    let report = HolderReport { device, holders, complete: true, ..HolderReport::skipped(*id, "/dev/sdb") };
    core.observe(at(11, Fact::Holders(Box::new(report))));
    let event = events(&mut core).remove(0);
    let place = "/dev/sdb is mounted at /v in the mount namespace of sh (pid 8)";
    assert_eq!(event.message, format!("mount of /dev/sdb by umount (pid 28997) refused: {place}"));
    let mount = event.mount.as_ref().unwrap();
    assert_eq!((mount.syscall.as_str(), mount.path.as_str()), ("fsconfig", ""));
    assert_eq!((mount.fstype.as_deref(), mount.source.as_deref()), (Some("ext4"), Some("/dev/sdb")));
    assert_eq!(mount.flags, ["MS_RDONLY", "FSCONFIG_CMD_CREATE_EXCL"]);
    assert_eq!(event.actor.as_ref().unwrap().confidence, Confidence::Certain);
    assert!(serde_json::to_value(&event).unwrap().pointer("/mount/path").is_none());
}

#[test]
fn of_fsconfig_attempts_count_by_source() {
    let mut core = settled();
    for source in ["proc", "mqueue", "proc", ""] {
        core.observe(at(10, Fact::Umount(Box::new(refused_to_create(source, 0)))));
    }
    let emitted = events(&mut core);
    let attempts: Vec<_> = emitted.iter().map(|event| event.mount.as_ref().unwrap().attempts).collect();
    assert_eq!(attempts, [Some(1), Some(1), Some(2), Some(1)]);
    let message = &emitted[3].message;
    assert!(message.starts_with("mount of a file system by "), "{message}");
}

#[test]
fn another_thread_may_have_made_the_context_fail_so_rights_make_nothing_certain() {
    // The caller's namespace is 2.
    for (mntns, syscall, confidence) in [
        (1, MountSyscall::Fsconfig, Confidence::Likely),
        (2, MountSyscall::Fsconfig, Confidence::Certain),
        (1, MountSyscall::Mount, Confidence::Certain),
    ] {
        let mut core = settled();
        let host = KubeletNamespace { mntns, roots: Vec::new(), of_kubelet: false, pid: None };
        core.observe(at(1, Fact::Kubelet(KubeletFacts { namespaces: vec![host] })));
        take(&mut core);
        let attempt = UmountAttempt { syscall, ..refused_to_create("proc", 0) };
        core.observe(at(10, Fact::Umount(Box::new(attempt))));
        let event = events(&mut core).remove(0);
        assert_eq!(event.actor.as_ref().unwrap().confidence, confidence, "{event:?}");
        let is_likely = event.message.starts_with("mount of what is likely proc by ");
        assert_eq!(is_likely, confidence == Confidence::Likely, "{}", event.message);
    }
}

#[test]
fn users_and_containers_use_up_no_attempt_of_the_host() {
    let mut core = settled();
    let attempt = |uid: u32| {
        let mut attempt = refused_to_create("proc", 0);
        attempt.actor.context = (uid != 0).then(|| TaskContext { uid, ..TaskContext::default() });
        Fact::Umount(Box::new(attempt))
    };
    core.observe(at(9, attempt(1000)));
    core.observe(at(9, task(&format!("/docker/{ID}"))));
    core.observe(at(9, attempt(0)));
    core.observe(at(9, task("/system.slice/kubelet.service")));
    core.observe(at(9, attempt(0)));
    let emitted = events(&mut core);
    let attempts: Vec<_> = emitted.iter().map(|event| event.mount.as_ref().unwrap().attempts).collect();
    assert_eq!(attempts, [Some(1), Some(2), Some(1)]);
}

/// How many events and looks follow at once from many mounts.
fn at_once(core: &mut Core) -> (usize, usize) {
    for number in 0..100 {
        let Fact::Umount(attempt) = refused("/dev/sdb", 0) else { unreachable!() };
        let attempt = UmountAttempt { path: format!("/mnt/{number}"), ..*attempt };
        core.observe(at(10, Fact::Umount(Box::new(attempt))));
    }
    let (emitted, requested) = take(core);
    (emitted.len(), requested.len())
}

#[test]
fn root_of_a_container_in_the_mount_namespace_of_the_host_takes_no_look_from_that() {
    let mut core = settled();
    core.observe(at(9, task(&format!("/docker/{ID}"))));
    assert_eq!(at_once(&mut core), (7, 2), "events at powers of two");
    core.observe(at(9, task("/system.slice/kubelet.service")));
    assert_eq!(at_once(&mut core), (94, 6));
}

#[test]
fn of_many_mounts_at_once_only_some_are_looked_at() {
    let mut core = settled();
    assert_eq!(at_once(&mut core), (92, 8));
    core.observe(at(10_000 * MS, Fact::Tick));
    assert_eq!(events(&mut core).len(), 8);
}
