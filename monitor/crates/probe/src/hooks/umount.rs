//! umount(2): calls refused because the mount is busy, and calls that succeed.

use std::ffi::CStr;

use kevtmon_ebpf::path_mark;
use kevtmon_ebpf::umount::{
    DirectoryRecord, KIND_UMOUNT, KIND_UMOUNT_UNTYPED, MountName, MountTableRecord, UmountOffsets,
    UmountRecord, call_mark, counter,
};
use kevtmon_metrics::KernelMetric;
use kevtmon_observation::{
    CallStart, CallerDirectory, Fact, MeantMount, MountSyscall, PathOrigin, PathUncertainty, TableMark,
    UmountAttempt,
};
use kevtmon_types::clock::realtime_offset_ns;
use kevtmon_types::namespace::NsInum;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Attach, AttachMode, Count, Decode, Hook, LossCount, Mechanism, Offsets, Program, Records};
use crate::btf::{Btf, BtfError};
use crate::decode::{DecodeError, lossy, short};
use crate::mount_table::MOUNT_TABLE_PROGRAM;
use crate::task::actor;

pub(super) const HOOK: Hook = Hook {
    name: "umount",
    observes: "unmount attempts",
    without: "refused unmounts are not seen; mounts and pods that remain are found by state, without an actor",
    attach_modes: &[
        AttachMode {
            name: "tracepoint",
            note: None,
            lost: None,
            mechanism: Mechanism::Programs(&[
                syscall("sys_enter_umount"),
                syscall("sys_exit_umount"),
                Program { name: "path_umount", attach: Attach::Function("path_umount") },
                Program { name: "kp_path_umount", attach: Attach::Kprobe("path_umount") },
                Program { name: MOUNT_TABLE_PROGRAM, attach: Attach::OnRequest },
            ]),
        },
        AttachMode {
            name: "helpers",
            note: Some("without BTF: no more than who called, and the path as it was given"),
            lost: Some(
                "of the caller only pid, name, user and the given path are known: neither its executable nor the \
                 mount, so the holders stay unknown",
            ),
            mechanism: Mechanism::Programs(&[
                untyped("umount_enter_untyped", "sys_enter_umount"),
                untyped("umount_exit_untyped", "sys_exit_umount"),
            ]),
        },
    ],
    offsets: Some(Offsets { global: "UMOUNT_OFFSETS", resolve: offsets }),
    records: Records {
        kinds: &[(KIND_UMOUNT, Decode::Fact(decode)), (KIND_UMOUNT_UNTYPED, Decode::Fact(decode_untyped))],
        counts: &[
            Count {
                counter: counter::BUSY,
                metric: KernelMetric::MountBusy,
                labels: &[MountSyscall::Umount2.name()],
            },
            Count {
                counter: counter::UNPROVEN,
                metric: KernelMetric::MountUnproven,
                labels: &[MountSyscall::Umount2.name()],
            },
        ],
        losses: &[
            LossCount { counter: counter::RING_FULL, reason: "mount-ring-full" },
            LossCount { counter: counter::USERS_RING_FULL, reason: "mount-users-ring-full" },
        ],
    },
    skipped: "mount-run-skipped",
};

const fn syscall(name: &'static str) -> Program {
    Program { name, attach: Attach::Tracepoint(name) }
}

const fn untyped(name: &'static str, event: &'static str) -> Program {
    Program { name, attach: Attach::UntypedTracepoint(event) }
}

pub(super) fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    let offsets = UmountOffsets {
        task_fs: btf.need("task_struct.fs")?,
        fs_root: btf.need("fs_struct.root")?,
        fs_pwd: btf.need("fs_struct.pwd")?,
        mount_id: btf.need("mount.mnt_id")?,
        task_nsproxy: btf.need("task_struct.nsproxy")?,
        nsproxy_mnt_ns: btf.need("nsproxy.mnt_ns")?,
        // All namespaces have such a number since 6.18.
        mnt_namespace_id: btf.any_of(&["mnt_namespace.ns.ns_id", "mnt_namespace.seq"]),
        mnt_namespace_event: btf.need("mnt_namespace.event")?,
        // Since 6.14.
        mnt_namespace_last_node: btf.any_of(&["mnt_namespace.mnt_last_node"]),
        // A tree since 6.8.
        mnt_namespace_root_node: btf.any_of(&["mnt_namespace.mounts.rb_node"]),
        rb_node_right: btf.any_of(&["rb_node.rb_right"]),
        mount_node: btf.any_of(&["mount.mnt_node"]),
        mount_id_unique: btf.any_of(&["mount.mnt_id_unique"]),
    };
    Ok(offsets.as_bytes().to_vec())
}

fn decode(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    umount(bytes).map(|attempt| Fact::Umount(Box::new(attempt))).ok_or_else(|| short(bytes))
}

/// Where the kernel's types are not known: what was not captured is not 0, but unknown.
fn decode_untyped(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    let mut attempt = umount(bytes).ok_or_else(|| short(bytes))?;
    if let Some(origin) = &mut attempt.origin {
        origin.table = None;
        // A path that was read late is known as well as it can be; where it starts is not.
        let of_path = origin.doubt.filter(|doubt| *doubt != PathUncertainty::ReadLate);
        origin.doubt = of_path.or(Some(PathUncertainty::CallerUnread));
    }
    if let Some(context) = &mut attempt.actor.context {
        context.euid = context.uid;
    }
    Ok(Fact::Umount(Box::new(attempt)))
}

fn umount(bytes: &[u8]) -> Option<UmountAttempt> {
    // Only the used part of the path is sent: read what precedes it through a record of full size.
    let head = bytes.get(..UmountRecord::HEAD)?;
    let mut whole = vec![0; size_of::<UmountRecord>()];
    whole[..head.len()].copy_from_slice(head);
    let record = UmountRecord::ref_from_bytes(&whole).ok()?;
    let path = bytes.get(UmountRecord::HEAD..)?.get(..record.path_len as usize)?;
    Some(UmountAttempt {
        syscall: MountSyscall::Umount2,
        actor: actor(&record.task, record.task_root)?,
        mntns: record.mntns,
        path: lossy(path),
        origin: Some(Box::new(PathOrigin {
            root: directory(&record.root),
            cwd: if path.first() == Some(&b'/') { None } else { directory(&record.cwd) },
            doubt: doubt(record, path),
            table: table(&record.table),
            target: target(record.target),
            began: began(record),
        })),
        flags: record.flags,
        errno: u16::try_from(-i64::from(record.result)).ok().filter(|errno| *errno != 0),
        second: None,
    })
}

fn began(record: &UmountRecord) -> Option<CallStart> {
    (record.began != 0).then(|| CallStart { at: record.began, realtime_offset_ns: realtime_offset_ns() })
}

/// The one that leaves the least to rely on.
fn doubt(record: &UmountRecord, path: &[u8]) -> Option<PathUncertainty> {
    let doubts = [
        (call_mark::START_UNSEEN, PathUncertainty::StartUnseen),
        (call_mark::PATH_UNREAD, PathUncertainty::Unread),
        (call_mark::PATH_CHANGED, PathUncertainty::Changed),
        (call_mark::PATH_READ_LATE, PathUncertainty::ReadLate),
    ];
    let of_path = doubts.into_iter().find(|(mark, _)| record.marks & mark != 0).map(|(_, doubt)| doubt);
    let is_relative = path.first() != Some(&b'/');
    let moved = record.root_changed != 0 || is_relative && record.cwd_changed != 0;
    match of_path {
        None | Some(PathUncertainty::ReadLate) if moved => Some(PathUncertainty::DirectoryChanged),
        of_path => of_path,
    }
}

/// `None` where it is not known which state of the table the call has seen.
pub(super) fn table(record: &MountTableRecord) -> Option<TableMark> {
    let MountTableRecord { handle, id, event, newest, changed, .. } = *record;
    let newest = Some(newest).filter(|newest| *newest != 0);
    (changed == 0).then_some(TableMark { handle, id, event, newest })
}

/// `None` where the kernel did not show it.
fn target(MountName { unique, mount_id, .. }: MountName) -> Option<MeantMount> {
    let unique = Some(unique).filter(|unique| *unique != 0);
    (mount_id != 0).then_some(MeantMount { id: mount_id.into(), unique })
}

pub(super) fn directory(record: &DirectoryRecord) -> Option<CallerDirectory> {
    (record.mount_id != 0).then(|| CallerDirectory { mount_id: record.mount_id, path: full_path(record) })
}

/// Only if every name up to the topmost mount was captured as it is.
fn full_path(record: &DirectoryRecord) -> Option<String> {
    if record.marks != path_mark::OTHER_TREE {
        return None;
    }
    let names = record.names.iter().map(|name| CStr::from_bytes_until_nul(name).ok()?.to_str().ok());
    let mut names = names.collect::<Option<Vec<&str>>>()?;
    // Where a mount is crossed there is no name.
    names.retain(|name| !name.is_empty());
    names.reverse();
    Some(format!("/{}", names.join("/")))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;
    use crate::record;

    #[test]
    fn an_unmount_record_carries_only_the_path_it_has() {
        let mut whole = UmountRecord::new_zeroed();
        whole.header.kind = KIND_UMOUNT;
        whole.task.tgid = 9;
        whole.result = -16;
        whole.path_len = 4;
        whole.path[..4].copy_from_slice(b"/mnt");
        let bytes = &whole.as_bytes()[..UmountRecord::HEAD + 4];
        match record(bytes, 1).unwrap().fact {
            Fact::Umount(attempt) => {
                assert_eq!((attempt.path.as_str(), attempt.errno), ("/mnt", Some(16)));
            }
            other => panic!("{other:?}"),
        }
        assert!(record(&bytes[..bytes.len() - 1], 1).is_err());
    }

    #[test]
    fn of_a_record_without_types_only_the_call_and_its_caller_are_known() {
        let mut whole = UmountRecord::new_zeroed();
        whole.header.kind = KIND_UMOUNT_UNTYPED;
        (whole.task.tgid, whole.task.tid, whole.task.uid) = (9, 10, 1000);
        whole.task.comm[..6].copy_from_slice(b"umount");
        (whole.result, whole.began, whole.path_len) = (-16, 5, 4);
        whole.path[..4].copy_from_slice(b"/mnt");
        let bytes = &whole.as_bytes()[..UmountRecord::HEAD + 4];
        let Fact::Umount(attempt) = record(bytes, 1).unwrap().fact else { panic!("no unmount") };
        let actor = &attempt.actor;
        assert_eq!((actor.key.tgid, actor.tid, actor.comm.as_str()), (9, 10, "umount"));
        let context = actor.context.unwrap();
        assert_eq!((context.uid, context.euid), (1000, 1000), "nothing says that they differ");
        assert_eq!((attempt.mntns, attempt.errno, &*attempt.place()), (0, Some(16), "…/mnt"));
        let origin = *attempt.origin.unwrap();
        assert_eq!(
            (origin.root, origin.table, origin.target, origin.doubt),
            (None, None, None, Some(PathUncertainty::CallerUnread))
        );
        assert_eq!(origin.began.unwrap().at, 5);
    }

    #[test]
    fn a_directory_that_was_replaced_matters_if_the_path_starts_there() {
        let mut record = UmountRecord::new_zeroed();
        record.cwd_changed = 1;
        assert_eq!(doubt(&record, b"/vol"), None);
        assert_eq!(doubt(&record, b"vol"), Some(PathUncertainty::DirectoryChanged));
        record.marks = call_mark::PATH_CHANGED;
        assert_eq!(doubt(&record, b"vol"), Some(PathUncertainty::Changed));
        (record.marks, record.root_changed) = (call_mark::PATH_READ_LATE, 1);
        assert_eq!(doubt(&record, b"/vol"), Some(PathUncertainty::DirectoryChanged));
    }

    #[test]
    fn a_directory_is_given_only_if_all_its_names_were_captured() {
        let captured = |names: &[&str], marks| {
            let mut record = DirectoryRecord::new_zeroed();
            (record.mount_id, record.marks) = (7, marks);
            for (slot, name) in record.names.iter_mut().zip(names) {
                slot[..name.len()].copy_from_slice(name.as_bytes());
            }
            directory(&record).unwrap().path
        };
        let top = path_mark::OTHER_TREE;
        assert_eq!(captured(&["b", "", "a"], top).as_deref(), Some("/a/b"));
        assert_eq!(captured(&[], top).as_deref(), Some("/"));
        for marks in [0, path_mark::LOOSE, top | path_mark::CUT, top | path_mark::DELETED] {
            assert_eq!(captured(&["b", "a"], marks), None, "{marks}");
        }
        assert_eq!(directory(&DirectoryRecord::new_zeroed()), None);
    }
}
