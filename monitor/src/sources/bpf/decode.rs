//! Bytes from the ring become facts. Pure: what needs /proc is added by the reader of the ring.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kevtmon_ebpf::{
    Header, KIND_MOUNT, KIND_NEIGHBOR, KIND_TASK, MountRecord, Names, NeighborRecord, TaskId, TaskRecord,
    device_mark, operation,
};
use thiserror::Error;
use zerocopy::FromBytes as _;

use crate::node::cgroup::most_specific;
use crate::observation::{
    Ancestor, Fact, LlAddr, NeighborCause, NeighborChange, NeighborKey, NeighborOp, NsInum, NudState,
    Observation, Source, TaskFacts, TaskKey, TaskRef, UmountAttempt, iff,
};
use crate::redact;

/// A record that is none of ours.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Too few bytes for its kind.
    #[error("record of kind {kind} cut at {len} bytes")]
    Short {
        /// Kind in the header, 0 if there was no header.
        kind: u32,
        /// Bytes there were.
        len: usize,
    },
    /// A kind that this daemon does not know.
    #[error("record of unknown kind {0}")]
    Kind(u32),
    /// A value outside its range.
    #[error("record with {field} {value}")]
    Value {
        /// Which field.
        field: &'static str,
        /// What it held.
        value: u32,
    },
}

/// Turns one record into an observation.
///
/// # Errors
/// When the bytes are not a record that the programs write.
pub fn record(bytes: &[u8], host_netns: NsInum) -> Result<Observation, DecodeError> {
    let short = |kind| DecodeError::Short { kind, len: bytes.len() };
    let (header, _) = Header::ref_from_prefix(bytes).map_err(|_| short(0))?;
    let fact = match header.kind {
        KIND_TASK => {
            let (record, _) = TaskRecord::ref_from_prefix(bytes).map_err(|_| short(header.kind))?;
            Fact::Task(Box::new(task(record)))
        }
        KIND_NEIGHBOR => {
            let (record, _) = NeighborRecord::ref_from_prefix(bytes).map_err(|_| short(header.kind))?;
            Fact::Neighbor(Box::new(neighbor(record, host_netns)?))
        }
        KIND_MOUNT => Fact::Umount(Box::new(umount(bytes).ok_or_else(|| short(header.kind))?)),
        kind => return Err(DecodeError::Kind(kind)),
    };
    Ok(Observation { at: header.boot_ns, source: Source::Bpf, fact })
}

fn neighbor(record: &NeighborRecord, host_netns: NsInum) -> Result<NeighborChange, DecodeError> {
    let address = match record.family {
        2 => {
            let [a, b, c, d, ..] = record.address;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        10 => IpAddr::V6(Ipv6Addr::from(record.address)),
        other => return Err(DecodeError::Value { field: "family", value: other.into() }),
    };
    let actor = actor(&record.task);
    let op = match record.operation {
        operation::DELETED | operation::COLLATERAL => NeighborOp::Deleted,
        operation::CHANGED => NeighborOp::Changed,
        operation::FAILED => NeighborOp::Failed,
        other => return Err(DecodeError::Value { field: "operation", value: other.into() }),
    };
    let cause = match record.operation {
        operation::DELETED => NeighborCause::Admin,
        operation::CHANGED => NeighborCause::Replaced,
        operation::COLLATERAL => collateral(record, actor.is_some(), host_netns),
        _ => NeighborCause::Unknown,
    };
    let lladdr = |bytes: &[u8]| {
        let bytes = bytes.get(..usize::from(record.lladdr_len)).unwrap_or(bytes);
        (!bytes.is_empty()).then(|| LlAddr(bytes.to_vec()))
    };
    let before = if op == NeighborOp::Failed { None } else { lladdr(&record.lladdr) };
    let after = if record.has_new_lladdr == 0 { None } else { lladdr(&record.new_lladdr) };
    Ok(NeighborChange {
        key: NeighborKey { netns: record.netns, ifindex: record.ifindex, address },
        ifname: text(&record.ifname),
        op,
        cause,
        old_state: (op != NeighborOp::Failed).then_some(NudState(record.old_state)),
        new_state: (op != NeighborOp::Deleted).then_some(NudState(record.new_state)),
        new_lladdr: after.filter(|new| before.as_ref() != Some(new)),
        lladdr: before,
        device_lladdr: lladdr(&record.device_lladdr),
        actor,
        netlink_port: Some(record.netlink_port).filter(|port| *port != 0),
    })
}

/// What took a permanent entry along, by the state its interface is in at that moment.
///
/// The kernel clears IFF_UP before it tells the neighbor code (`__dev_close_many`), queues an interface for
/// deletion before it closes it (`unregister_netdevice_queue`), and drops the last address before it disables
/// the interface's routing (`fib_inetaddr_event`). Namespaces are torn down by a kernel thread.
fn collateral(record: &NeighborRecord, by_process: bool, host_netns: NsInum) -> NeighborCause {
    let unregistering = record.device_marks & device_mark::UNREGISTERING != 0;
    if unregistering && !by_process && record.netns != host_netns {
        NeighborCause::NetnsExit
    } else if unregistering {
        NeighborCause::LinkDeleted
    } else if record.device_flags & iff::UP == 0 {
        NeighborCause::LinkDown
    } else if record.family == 2 && record.device_marks & device_mark::HAS_ADDRESS == 0 {
        NeighborCause::LastAddressRemoved
    } else if record.device_flags & iff::NOARP != 0 {
        NeighborCause::Noarp
    } else {
        NeighborCause::LladdrChanged
    }
}

fn umount(bytes: &[u8]) -> Option<UmountAttempt> {
    // Only as much of the path as there is was sent: read the head through a record of full size.
    let head = bytes.get(..MountRecord::HEAD)?;
    let mut whole = vec![0; size_of::<MountRecord>()];
    whole[..head.len()].copy_from_slice(head);
    let record = MountRecord::ref_from_bytes(&whole).ok()?;
    let path = bytes.get(MountRecord::HEAD..)?.get(..record.path_len as usize)?;
    Some(UmountAttempt {
        actor: actor(&record.task)?,
        mntns: record.mntns,
        path: String::from_utf8_lossy(path).into_owned(),
        flags: record.flags,
        errno: u16::try_from(-i64::from(record.result)).ok().filter(|errno| *errno != 0),
    })
}

fn task(record: &TaskRecord) -> TaskFacts {
    let v1 = path(&record.cgroup_v1);
    let v2 = path(&record.cgroup_v2);
    let argv = record.argv.get(..record.argv_len as usize).unwrap_or(&record.argv);
    TaskFacts {
        key: key(&record.task),
        uid: record.uid,
        exe: path(&record.exe),
        cmdline: redact::command_line(argv),
        netns: record.netns,
        mntns: record.mntns,
        // The root group has an empty name on either hierarchy.
        cgroup: Some(
            most_specific([&v1, &v2].into_iter().flatten().map(String::as_str)).unwrap_or("/").to_owned(),
        ),
        ancestors: record
            .ancestors
            .iter()
            .take_while(|ancestor| ancestor.tgid != 0)
            .map(|ancestor| Ancestor {
                tgid: ancestor.tgid,
                start_ns: ancestor.start_ns,
                comm: text(&ancestor.comm),
                exe: None,
            })
            .collect(),
    }
}

fn key(task: &TaskId) -> TaskKey {
    TaskKey { tgid: task.tgid, start_ns: task.start_ns, exec_id: task.exec_id }
}

fn actor(task: &TaskId) -> Option<TaskRef> {
    (task.tgid != 0).then(|| TaskRef { key: key(task), tid: task.tid, comm: text(&task.comm) })
}

/// Text up to the first NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Names from the leaf to the root become a path; the root's own name is `/` or empty. A path that is deeper
/// than the slots starts with an ellipsis.
fn path(names: &Names) -> Option<String> {
    let mut parts: Vec<String> =
        names.iter().map(|name| text(name)).take_while(|name| !name.is_empty() && name != "/").collect();
    if parts.is_empty() {
        return (names[0][0] == b'/').then(|| "/".to_owned());
    }
    parts.reverse();
    let start = if parts.len() == names.len() { "…/" } else { "/" };
    Some(format!("{start}{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kevtmon_ebpf::{NAME_CAPACITY, NAMES_DEPTH};
    use zerocopy::{FromZeros as _, IntoBytes as _};

    fn deletion() -> NeighborRecord {
        let mut record = NeighborRecord::new_zeroed();
        record.header.kind = KIND_NEIGHBOR;
        record.header.boot_ns = 77;
        record.family = 2;
        record.operation = operation::DELETED;
        record.old_state = 0x80;
        record.new_state = 0x20;
        record.lladdr_len = 6;
        record.address[..4].copy_from_slice(&[169, 254, 1, 1]);
        record.lladdr[..6].copy_from_slice(&[0xee; 6]);
        record.ifname[..4].copy_from_slice(b"eth0");
        record.task.tgid = 7;
        record.task.comm[..2].copy_from_slice(b"ip");
        record
    }

    fn change(record: &NeighborRecord) -> NeighborChange {
        match super::record(record.as_bytes(), 1).unwrap().fact {
            Fact::Neighbor(change) => *change,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_deletion_by_request_keeps_the_state_before_and_the_actor() {
        let change = change(&deletion());
        assert_eq!(change.key.address.to_string(), "169.254.1.1");
        assert_eq!(change.lladdr.unwrap().to_string(), "ee:ee:ee:ee:ee:ee");
        assert_eq!((change.op, change.cause), (NeighborOp::Deleted, NeighborCause::Admin));
        assert_eq!(change.old_state, Some(NudState::PERMANENT));
        assert_eq!(change.actor.unwrap().comm, "ip");
        assert_eq!(change.ifname, "eth0");
    }

    #[test]
    fn the_state_of_the_interface_tells_the_cause_of_collateral_loss() {
        let mut record = deletion();
        record.operation = operation::COLLATERAL;
        let mut cause = |flags: u32, marks: u8, tgid: u32| {
            record.device_flags = flags;
            record.device_marks = marks;
            record.task.tgid = tgid;
            record.netns = 2;
            change(&record).cause
        };
        let address = device_mark::HAS_ADDRESS;
        assert_eq!(cause(0, address, 7), NeighborCause::LinkDown);
        assert_eq!(cause(0, address | device_mark::UNREGISTERING, 7), NeighborCause::LinkDeleted);
        assert_eq!(cause(0, device_mark::UNREGISTERING, 0), NeighborCause::NetnsExit);
        assert_eq!(cause(iff::UP, 0, 7), NeighborCause::LastAddressRemoved);
        assert_eq!(cause(iff::UP | iff::NOARP, address, 7), NeighborCause::Noarp);
        assert_eq!(cause(iff::UP, address, 7), NeighborCause::LladdrChanged);
    }

    #[test]
    fn names_from_leaf_to_root_become_a_path() {
        let names = |list: &[&str]| {
            let mut slots: Names = [[0; NAME_CAPACITY]; NAMES_DEPTH];
            for (slot, name) in slots.iter_mut().zip(list) {
                slot[..name.len()].copy_from_slice(name.as_bytes());
            }
            path(&slots)
        };
        assert_eq!(names(&["ip", "sbin", "/", "/", "/"]).as_deref(), Some("/sbin/ip"));
        assert_eq!(names(&["abc", "docker", ""]).as_deref(), Some("/docker/abc"));
        assert_eq!(names(&["/", "/"]).as_deref(), Some("/"));
        assert_eq!(names(&[]), None);
        assert_eq!(names(&["x"; 12]).as_deref(), Some("…/x/x/x/x/x/x/x/x/x/x"));
    }

    #[test]
    fn a_cut_or_foreign_record_is_an_error() {
        assert_eq!(record(&[1, 2, 3], 1).unwrap_err(), DecodeError::Short { kind: 0, len: 3 });
        let mut bytes = deletion().as_bytes().to_vec();
        bytes.truncate(100);
        assert_eq!(record(&bytes, 1).unwrap_err(), DecodeError::Short { kind: KIND_NEIGHBOR, len: 100 });
        bytes[0] = 99;
        assert_eq!(record(&bytes, 1).unwrap_err(), DecodeError::Kind(99));
        let mut wrong = deletion();
        wrong.operation = 200;
        assert!(matches!(record(wrong.as_bytes(), 1), Err(DecodeError::Value { field: "operation", .. })));
    }

    #[test]
    fn an_unmount_record_carries_only_the_path_it_has() {
        let mut whole = MountRecord::new_zeroed();
        whole.header.kind = KIND_MOUNT;
        whole.task.tgid = 9;
        whole.result = -16;
        whole.path_len = 4;
        whole.path[..4].copy_from_slice(b"/mnt");
        let bytes = &whole.as_bytes()[..MountRecord::HEAD + 4];
        match record(bytes, 1).unwrap().fact {
            Fact::Umount(attempt) => {
                assert_eq!((attempt.path.as_str(), attempt.errno), ("/mnt", Some(16)));
            }
            other => panic!("{other:?}"),
        }
        assert!(record(&bytes[..bytes.len() - 1], 1).is_err());
    }
}
