//! rmdir(2), unlink(2), rename(2) and what they are called with descriptors, mount(2) and fsconfig(2): refused because the name or
//! the device is busy.

use kevtmon_ebpf::MISSING;
use kevtmon_ebpf::remove::{KIND_REMOVE, RemoveOffsets, RemoveRecord, call, counter};
use kevtmon_ebpf::umount::{PATH_CAPACITY, call_mark};
use kevtmon_metrics::KernelMetric;
use kevtmon_observation::{
    CallStart, CallerDirectory, Fact, MountSyscall, PathOrigin, PathUncertainty, SecondPath, UmountAttempt,
};
use kevtmon_types::clock::realtime_offset_ns;
use kevtmon_types::namespace::NsInum;
use kevtmon_types::redact;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::umount::{self, directory, table};
use super::{Attach, AttachMode, Count, Decode, Hook, LossCount, Mechanism, Offsets, Program, Records};
use crate::btf::{Btf, BtfError};
use crate::decode::{DecodeError, lossy, short, text};
use crate::task::actor;

const EBUSY: u16 = 16;

pub(super) const HOOK: Hook = Hook {
    name: "remove",
    observes: "refused removals, renames and mounts",
    without: "refused removals, renames and mounts are not seen; what remains mounted is found by state",
    attach_modes: &[AttachMode {
        name: "tracepoint",
        note: Some("makes each of these calls a tenth to a quarter of a microsecond longer"),
        lost: None,
        mechanism: Mechanism::Programs(&[
            Program { name: "sys_enter_remove", attach: Attach::Starts(STARTS) },
            Program { name: "sys_enter_fsconfig", attach: Attach::Starts(FSCONFIG) },
            Program { name: "sys_exit_remove", attach: Attach::Returns(NAMES) },
        ]),
    }],
    offsets: Some(Offsets { global: "REMOVE_OFFSETS", resolve: offsets }),
    records: Records {
        kinds: &[(KIND_REMOVE, Decode::Fact(decode))],
        counts: &[
            busy(call::RMDIR, RMDIR),
            busy(call::UNLINK, UNLINK),
            busy(call::UNLINKAT, UNLINKAT),
            busy(call::RENAME, RENAME),
            busy(call::RENAMEAT, RENAMEAT),
            busy(call::RENAMEAT2, RENAMEAT2),
            busy(call::MOUNT, MOUNT),
            busy(call::FSCONFIG, FSCONFIG),
            unproven(call::RMDIR, RMDIR),
            unproven(call::UNLINK, UNLINK),
            unproven(call::UNLINKAT, UNLINKAT),
            unproven(call::RENAME, RENAME),
            unproven(call::RENAMEAT, RENAMEAT),
            unproven(call::RENAMEAT2, RENAMEAT2),
            unproven(call::MOUNT, MOUNT),
            unproven(call::FSCONFIG, FSCONFIG),
        ],
        losses: &[
            LossCount { counter: counter::RING_FULL, reason: "remove-ring-full" },
            LossCount { counter: counter::USERS_RING_FULL, reason: "remove-users-ring-full" },
        ],
    },
    skipped: "remove-run-skipped",
};

const fn busy(call: usize, labels: &'static [&'static str]) -> Count {
    Count { counter: counter::BUSY[call], metric: KernelMetric::MountBusy, labels }
}

const fn unproven(call: usize, labels: &'static [&'static str]) -> Count {
    Count { counter: counter::UNPROVEN[call], metric: KernelMetric::MountUnproven, labels }
}

const RMDIR: &[&str] = &[MountSyscall::Rmdir.name()];
const UNLINK: &[&str] = &[MountSyscall::Unlink.name()];
const UNLINKAT: &[&str] = &[MountSyscall::Unlinkat.name()];
const RENAME: &[&str] = &[MountSyscall::Rename.name()];
const RENAMEAT: &[&str] = &[MountSyscall::Renameat.name()];
const RENAMEAT2: &[&str] = &[MountSyscall::Renameat2.name()];
const MOUNT: &[&str] = &[MountSyscall::Mount.name()];
const FSCONFIG: &[&str] = &[MountSyscall::Fsconfig.name()];

/// Newer architectures have those with descriptors only.
const NAMES: &[&str] = &[
    #[cfg(target_arch = "x86_64")]
    "rmdir",
    #[cfg(target_arch = "x86_64")]
    "unlink",
    #[cfg(target_arch = "x86_64")]
    "rename",
    "unlinkat",
    "renameat",
    "renameat2",
    "mount",
    "fsconfig",
];

/// The same without fsconfig(2): whether that begins depends on its context.
const STARTS: &[&str] = NAMES.split_at(NAMES.len() - 1).0;

/// The numbers of the system calls on this architecture.
const CALLS: &[(libc::c_long, usize, MountSyscall)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rmdir, call::RMDIR, MountSyscall::Rmdir),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, call::UNLINK, MountSyscall::Unlink),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, call::RENAME, MountSyscall::Rename),
    (libc::SYS_unlinkat, call::UNLINKAT, MountSyscall::Unlinkat),
    (libc::SYS_renameat, call::RENAMEAT, MountSyscall::Renameat),
    (libc::SYS_renameat2, call::RENAMEAT2, MountSyscall::Renameat2),
    (libc::SYS_mount, call::MOUNT, MountSyscall::Mount),
    (libc::SYS_fsconfig, call::FSCONFIG, MountSyscall::Fsconfig),
];

/// The arguments of a system call, as the registers of the caller hold them when it returns.
#[cfg(target_arch = "x86_64")]
fn arguments(btf: &Btf<'_>) -> Result<[u32; 5], BtfError> {
    let need = |path| btf.need(path);
    Ok([
        need("pt_regs.di")?,
        need("pt_regs.si")?,
        need("pt_regs.dx")?,
        need("pt_regs.r10")?,
        need("pt_regs.r8")?,
    ])
}

/// The same. The first register holds the result by then, and the argument was put aside.
#[cfg(not(target_arch = "x86_64"))]
fn arguments(btf: &Btf<'_>) -> Result<[u32; 5], BtfError> {
    let registers = btf.need("pt_regs.regs")?;
    let register = |number: u32| registers + number * 8;
    Ok([btf.need("pt_regs.orig_x0")?, register(1), register(2), register(3), register(4)])
}

/// Number and result of the call, as the registers of the caller hold them when it returns.
#[cfg(target_arch = "x86_64")]
fn number_and_result(btf: &Btf<'_>) -> Result<[u32; 2], BtfError> {
    Ok([btf.need("pt_regs.orig_ax")?, btf.need("pt_regs.ax")?])
}

#[cfg(not(target_arch = "x86_64"))]
fn number_and_result(btf: &Btf<'_>) -> Result<[u32; 2], BtfError> {
    Ok([btf.need("pt_regs.syscallno")?, btf.need("pt_regs.regs")?])
}

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    // Its programs read what those of unmounts read.
    umount::offsets(btf)?;
    let mut calls = [MISSING; call::COUNT];
    for (number, index, _) in CALLS {
        calls[*index] = u32::try_from(*number).unwrap_or(MISSING);
    }
    let [registers_number, registers_result] = number_and_result(btf)?;
    let context_registers = match btf.has_helper("task_pt_regs") {
        true => MISSING,
        // Later kernels have it, and the pointer there is to other registers.
        false => btf.need("syscall_tp_t.regs")?,
    };
    let offsets = RemoveOffsets {
        task_files: btf.need("task_struct.files")?,
        files_fdt: btf.need("files_struct.fdt")?,
        fdtable_fd: btf.need("fdtable.fd")?,
        fdtable_max_fds: btf.need("fdtable.max_fds")?,
        file_private_data: btf.any_of(&["file.private_data"]),
        fs_context_fs_type: btf.any_of(&["fs_context.fs_type"]),
        fs_context_source: btf.any_of(&["fs_context.source"]),
        fs_context_sb_flags: btf.any_of(&["fs_context.sb_flags"]),
        fs_context_phase: btf.any_of(&["fs_context.phase"]),
        phase_failed: btf.enumerator("fs_context_phase", "FS_CONTEXT_FAILED").unwrap_or(MISSING),
        file_system_type_name: btf.any_of(&["file_system_type.name"]),
        context_registers,
        registers_number,
        registers_result,
        arguments: arguments(btf)?,
        calls,
    };
    Ok(offsets.as_bytes().to_vec())
}

fn decode(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    refused(bytes).map(|attempt| Fact::Umount(Box::new(attempt))).ok_or_else(|| short(bytes))
}

fn refused(bytes: &[u8]) -> Option<UmountAttempt> {
    // Only the used part of the paths is sent: read what precedes them through a record of full size.
    let head = bytes.get(..RemoveRecord::HEAD)?;
    let mut whole = vec![0; size_of::<RemoveRecord>()];
    whole[..head.len()].copy_from_slice(head);
    let record = RemoveRecord::ref_from_bytes(&whole).ok()?;
    let (path, rest) = bytes.get(RemoveRecord::HEAD..)?.split_at_checked(record.path_len as usize)?;
    let second = rest.get(..record.second_len as usize)?;
    let (_, _, syscall) = CALLS.iter().find(|(number, ..)| *number == libc::c_long::from(record.number))?;
    let fstype = Some(text(&record.fstype)).filter(|fstype| !fstype.is_empty());
    let second = match (syscall, fstype.as_deref()) {
        (MountSyscall::Mount, Some("overlay")) => upper_directory(second),
        _ => second,
    };
    let second_text = match syscall {
        MountSyscall::Rename | MountSyscall::Renameat | MountSyscall::Renameat2 => Some(lossy(second)),
        // Of a share on the network it may have a password.
        MountSyscall::Mount | MountSyscall::Fsconfig => Some(redact::mount_source(&lossy(second))),
        _ => None,
    };
    let from = |path: &[u8], start| origin(record, path, directory(start));
    let second = |path| SecondPath { path, origin: from(second, &record.second_start), fstype };
    let mut start = from(path, &record.start);
    if *syscall == MountSyscall::Fsconfig {
        // It is given no path: where this is mounted is decided later.
        start.doubt = start.doubt.filter(|doubt| *doubt != PathUncertainty::Unread);
    }
    Some(UmountAttempt {
        syscall: *syscall,
        actor: actor(&record.task, record.task_root)?,
        mntns: record.mntns,
        path: lossy(path),
        origin: Some(Box::new(start)),
        flags: record.flags,
        second: second_text.map(second).map(Box::new),
        errno: Some(EBUSY),
    })
}

/// The upper directory by the options of an overlay; empty if there is none, and if they may be cut or have escapes.
fn upper_directory(options: &[u8]) -> &[u8] {
    if options.len() + 1 >= PATH_CAPACITY || options.contains(&b'\\') {
        return b"";
    }
    let mut last_first = options.rsplit(|byte| *byte == b',');
    last_first.find_map(|option| option.strip_prefix(b"upperdir=")).unwrap_or_default()
}

fn origin(record: &RemoveRecord, path: &[u8], start: Option<CallerDirectory>) -> PathOrigin {
    PathOrigin {
        root: directory(&record.root),
        cwd: if path.first() == Some(&b'/') { None } else { start },
        doubt: doubt(record, path),
        table: table(&record.table),
        target: None,
        // Its start was not seen; how long before that directories must have been in place allows for more than a call takes.
        began: Some(CallStart { at: record.header.boot_ns, realtime_offset_ns: realtime_offset_ns() }),
    }
}

/// The one that leaves the least to rely on.
fn doubt(record: &RemoveRecord, path: &[u8]) -> Option<PathUncertainty> {
    match record.marks & call_mark::START_UNSEEN {
        0 => path.is_empty().then_some(PathUncertainty::Unread),
        _ => Some(PathUncertainty::StartUnseen),
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_ebpf::path_mark;
    use zerocopy::FromZeros as _;

    use super::*;
    use crate::record;

    fn sent(number: libc::c_long, path: &str, second: &str) -> Vec<u8> {
        let mut whole = RemoveRecord::new_zeroed();
        whole.header.kind = KIND_REMOVE;
        whole.header.boot_ns = 5;
        whole.task.tgid = 9;
        whole.number = u32::try_from(number).unwrap();
        (whole.path_len, whole.second_len) =
            (u32::try_from(path.len()).unwrap(), u32::try_from(second.len()).unwrap());
        (whole.root.mount_id, whole.root.marks) = (1, path_mark::OTHER_TREE);
        if [libc::SYS_mount, libc::SYS_fsconfig].contains(&number) {
            whole.fstype[..5].copy_from_slice(b"ext4\0");
        }
        for (directory, name) in [(&mut whole.start, b"from"), (&mut whole.second_start, b"onto")] {
            (directory.mount_id, directory.marks) = (1, path_mark::OTHER_TREE);
            directory.names[0][..name.len()].copy_from_slice(name);
        }
        let text = format!("{path}{second}");
        whole.paths[..text.len()].copy_from_slice(text.as_bytes());
        whole.as_bytes()[..RemoveRecord::HEAD + text.len()].to_vec()
    }

    fn attempt(number: libc::c_long, path: &str, second: &str) -> UmountAttempt {
        match record(&sent(number, path, second), 1).unwrap().fact {
            Fact::Umount(attempt) => *attempt,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_name_starts_from_the_directory_of_its_descriptor() {
        let removed = attempt(libc::SYS_unlinkat, "name", "");
        assert_eq!(
            (removed.syscall, removed.errno, &removed.second),
            (MountSyscall::Unlinkat, Some(16), &None)
        );
        assert_eq!(removed.place(), "/from/name");
        assert_eq!(attempt(libc::SYS_unlinkat, "/name", "").place(), "/name");
        let began = removed.origin.unwrap().began.unwrap();
        assert_eq!(began.at, 5, "the time of its return, since nothing sees its start");
    }

    #[test]
    fn a_rename_has_two_paths_with_a_start_each() {
        let renamed = attempt(libc::SYS_renameat2, "a", "b");
        assert_eq!((renamed.syscall, &*renamed.place()), (MountSyscall::Renameat2, "/from/a"));
        let second = renamed.second.clone().unwrap();
        assert_eq!(second.fstype, None);
        let onto = UmountAttempt { path: second.path, origin: Some(Box::new(second.origin)), ..renamed };
        assert_eq!(onto.place(), "/onto/b");
    }

    #[test]
    fn of_a_mount_what_was_to_be_mounted_is_known_too() {
        let refused = attempt(libc::SYS_mount, "a", "/dev/sdb");
        assert_eq!((refused.syscall, &*refused.place()), (MountSyscall::Mount, "/from/a"));
        let second = refused.second.unwrap();
        assert_eq!((second.path.as_str(), second.origin.cwd), ("/dev/sdb", None));
        assert_eq!(second.fstype.as_deref(), Some("ext4"));
    }

    #[test]
    fn of_an_overlay_its_upper_directory_is_what_was_to_be_mounted() {
        let upper = |options: &str| {
            let mut bytes = sent(libc::SYS_mount, "a", options);
            let fstype = std::mem::offset_of!(RemoveRecord, fstype);
            bytes[fstype..fstype + 8].copy_from_slice(b"overlay\0");
            let Fact::Umount(attempt) = record(&bytes, 1).unwrap().fact else { panic!("no attempt") };
            let second = attempt.second.unwrap();
            assert_eq!(second.fstype.as_deref(), Some("overlay"));
            second.path
        };
        assert_eq!(upper("lowerdir=/l:/m,upperdir=/v/u,workdir=/v/w,index=on"), "/v/u");
        assert_eq!(upper("upperdir=/v/u,upperdir=/v/x"), "/v/x", "the last counts");
        assert_eq!(upper("lowerdir=/a\\,upperdir=/v/u"), "", "that is one directory");
        assert_eq!(upper("lowerdir=/l"), "");
        let longest = format!("lowerdir=/{},upperdir=/v", "l".repeat(PATH_CAPACITY - 23));
        assert_eq!((longest.len(), upper(&longest)), (PATH_CAPACITY - 1, String::new()), "it may be cut");
    }

    #[test]
    fn fsconfig_is_given_no_path_and_that_is_no_doubt() {
        let refused = attempt(libc::SYS_fsconfig, "", "user:secret@host:/share");
        assert_eq!((refused.syscall, &*refused.place()), (MountSyscall::Fsconfig, ""));
        assert_eq!(refused.origin.unwrap().doubt, None);
        let second = refused.second.unwrap();
        assert!(!second.path.contains("secret"), "{}", second.path);
        assert_eq!((second.origin.doubt, second.fstype.as_deref()), (None, Some("ext4")));
    }

    #[test]
    fn what_is_cut_or_no_such_call_is_no_record() {
        let bytes = sent(libc::SYS_renameat, "a", "b");
        assert!(record(&bytes, 1).is_ok());
        assert!(record(&bytes[..bytes.len() - 1], 1).is_err());
        assert!(record(&sent(libc::SYS_getppid, "a", ""), 1).is_err());
    }

    #[test]
    fn a_path_that_could_not_be_read_is_in_doubt() {
        let doubt = |path| attempt(libc::SYS_unlinkat, path, "").origin.unwrap().doubt;
        assert_eq!((doubt(""), doubt("a")), (Some(PathUncertainty::Unread), None));
    }

    #[test]
    fn what_was_not_seen_to_begin_is_in_doubt() {
        let mut bytes = sent(libc::SYS_unlinkat, "a", "");
        let marks = std::mem::offset_of!(RemoveRecord, marks);
        bytes[marks..marks + 4].copy_from_slice(&call_mark::START_UNSEEN.to_ne_bytes());
        let Fact::Umount(attempt) = record(&bytes, 1).unwrap().fact else { panic!("no attempt") };
        assert_eq!(attempt.place(), "…a", "it is like no path that is known");
        assert_eq!(attempt.origin.unwrap().doubt, Some(PathUncertainty::StartUnseen));
    }
}
