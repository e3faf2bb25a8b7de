//! umount(2): calls refused because the mount is busy, and calls that succeed.

use kevtmon_ebpf::umount::{KIND_UMOUNT, UmountRecord, counter};
use zerocopy::FromBytes as _;

use super::{Attach, Count, Hook, LossCount, Mechanism, Program, Records, Rung};
use crate::metrics::KernelMetric;
use crate::namespace::NsInum;
use crate::observation::{Fact, MountSyscall, UmountAttempt};
use crate::sources::bpf::decode::{DecodeError, short};
use crate::sources::bpf::objects;
use crate::sources::bpf::task::actor;

pub(super) const HOOK: Hook = Hook {
    name: "umount",
    observes: "unmount attempts",
    rungs: &[Rung {
        name: "tracepoint",
        note: None,
        mechanism: Mechanism::Programs(&[syscall("sys_enter_umount"), syscall("sys_exit_umount")]),
    }],
    offsets: None,
    records: Records {
        kinds: &[(KIND_UMOUNT, decode)],
        counts: &[Count {
            counter: counter::BUSY,
            metric: KernelMetric::MountBusy,
            labels: &[MountSyscall::Umount2.name()],
        }],
        losses: &[
            LossCount { counter: counter::RING_FULL, reason: "mount-ring-full" },
            LossCount { counter: counter::PENDING_FULL, reason: "mount-pending-full" },
            LossCount { counter: counter::PATH_UNREADABLE, reason: "mount-path-unreadable" },
        ],
    },
};

const fn syscall(name: &'static str) -> Program {
    Program { object: &objects::CORE, name, attach: Attach::Tracepoint { category: "syscalls", name } }
}

fn decode(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    umount(bytes).map(|attempt| Fact::Umount(Box::new(attempt))).ok_or_else(|| short(bytes))
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
        actor: actor(&record.task)?,
        mntns: record.mntns,
        path: String::from_utf8_lossy(path).into_owned(),
        flags: record.flags,
        errno: u16::try_from(-i64::from(record.result)).ok().filter(|errno| *errno != 0),
    })
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::*;
    use crate::sources::bpf::record;

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
}
