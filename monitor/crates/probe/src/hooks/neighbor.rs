//! Neighbor entries: permanent ones that are deleted, replaced or removed with their interface, any that fails to
//! resolve, and what gives that of a gateway an address again. Netlink messages do not identify the actor.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kevtmon_ebpf::neighbor::{
    KIND_NEIGHBOR, NeighborOffsets, NeighborRecord, counter, device_mark, operation,
};
use kevtmon_metrics::KernelMetric;
use kevtmon_observation::{
    Fact, LlAddr, NeighborCause, NeighborChange, NeighborCreator, NeighborKey, NeighborOp, NudState, iff,
};
use kevtmon_types::namespace::NsInum;
use zerocopy::IntoBytes as _;

use super::{AttachMode, Count, Decode, Hook, LossCount, Mechanism, Offsets, Records, raw_tp, tp_btf};
use crate::btf::{Btf, BtfError};
use crate::decode::{DecodeError, cookie_half, layout, text};
use crate::task::actor;

pub(super) const HOOK: Hook = Hook {
    name: "neighbor",
    observes: "neighbor changes",
    without: "deletions and changes of neighbor entries are not seen; a missing gateway entry is found by state, \
              without an actor",
    attach_modes: &[
        AttachMode {
            name: "tp_btf",
            note: None,
            lost: None,
            mechanism: Mechanism::Programs(&[
                tp_btf("neigh_update"),
                tp_btf("neigh_cleanup_and_release"),
                tp_btf("neigh_timer_handler"),
                tp_btf("neigh_create"),
            ]),
        },
        AttachMode {
            name: "raw_tp",
            note: Some("for a kernel without BTF, with the file `btf`"),
            lost: Some("nothing: it reads the same, and takes longer"),
            mechanism: Mechanism::Programs(&[
                raw_tp("neigh_update_raw", "neigh_update"),
                raw_tp("neigh_cleanup_raw", "neigh_cleanup_and_release"),
                raw_tp("neigh_timer_raw", "neigh_timer_handler"),
                raw_tp("neigh_create_raw", "neigh_create"),
            ]),
        },
        AttachMode {
            name: "netlink",
            note: Some("no actor"),
            lost: Some(
                "deleted and changed neighbor entries have no actor; deletions are seen; who fills the neighbor table is not",
            ),
            mechanism: Mechanism::NeighborMessages,
        },
    ],
    offsets: Some(Offsets { global: "NEIGHBOR_OFFSETS", resolve: offsets }),
    records: Records {
        kinds: &[(KIND_NEIGHBOR, Decode::Fact(decode))],
        counts: &[
            deletions(counter::PERMANENT_ADMIN, &["permanent", "admin"]),
            deletions(counter::PERMANENT_COLLATERAL, &["permanent", "collateral"]),
            deletions(counter::LEARNED_ADMIN, &["learned", "admin"]),
            deletions(counter::LEARNED_COLLATERAL, &["learned", "collateral"]),
            deletions(counter::NOARP_ADMIN, &["noarp", "admin"]),
            deletions(counter::NOARP_COLLATERAL, &["noarp", "collateral"]),
            deletions(counter::UNKNOWN_COLLATERAL, &["unknown", "collateral"]),
            sets(counter::GATEWAY_SET, &["admin"]),
            sets(counter::GATEWAY_RESOLVED, &["protocol"]),
        ],
        losses: &[
            LossCount { counter: counter::RING_FULL, reason: "neighbor-ring-full" },
            LossCount { counter: counter::USERS_RING_FULL, reason: "neighbor-users-ring-full" },
            LossCount { counter: counter::GATEWAY_SET_RING_FULL, reason: "gateway-set-ring-full" },
        ],
    },
    skipped: "neighbor-run-skipped",
};

const fn deletions(counter: kevtmon_ebpf::Counter, labels: &'static [&'static str]) -> Count {
    Count { counter, metric: KernelMetric::NeighborDeletions, labels }
}

const fn sets(counter: kevtmon_ebpf::Counter, labels: &'static [&'static str]) -> Count {
    Count { counter, metric: KernelMetric::GatewaySets, labels }
}

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    // The flags were renumbered together with the widening of neighbour.flags to 32 bits, 5.16.
    let (admin_flag, resolve_flags) = match btf.size("neighbour.flags") {
        Some(4) => (1 << 7, 1 << 3 | 1 << 4),
        _ => (1 << 31, 0),
    };
    let offsets = NeighborOffsets {
        neighbour_dev: btf.need("neighbour.dev")?,
        neighbour_tbl: btf.need("neighbour.tbl")?,
        neighbour_nud_state: btf.need("neighbour.nud_state")?,
        neighbour_dead: btf.need("neighbour.dead")?,
        neighbour_ha: btf.need("neighbour.ha")?,
        neighbour_primary_key: btf.need("neighbour.primary_key")?,
        neighbour_output: btf.need("neighbour.output")?,
        neighbour_ops: btf.need("neighbour.ops")?,
        neigh_ops_output: btf.need("neigh_ops.output")?,
        neigh_ops_connected_output: btf.need("neigh_ops.connected_output")?,
        neigh_table_family: btf.need("neigh_table.family")?,
        neigh_table_gc_entries: btf.need("neigh_table.gc_entries")?,
        neigh_table_gc_thresh2: btf.need("neigh_table.gc_thresh2")?,
        net_device_ifindex: btf.need("net_device.ifindex")?,
        net_device_flags: btf.need("net_device.flags")?,
        net_device_name: btf.need("net_device.name")?,
        // possible_net_t holds one pointer.
        net_device_nd_net: btf.need("net_device.nd_net.net")?,
        net_device_addr_len: btf.need("net_device.addr_len")?,
        net_device_dev_addr: btf.need("net_device.dev_addr")?,
        net_device_unreg_list: btf.need("net_device.unreg_list.next")?,
        net_device_ip_ptr: btf.need("net_device.ip_ptr")?,
        in_device_ifa_list: btf.need("in_device.ifa_list")?,
        net_ns_inum: btf.need("net.ns.inum")?,
        net_user_ns: btf.need("net.user_ns")?,
        // Since 5.12.
        net_cookie: btf.any_of(&["net.net_cookie"]),
        // Renamed in 6.18; a member of struct net itself before 5.11.
        net_references: btf.any_of(&["net.ns.__ns_ref", "net.ns.count", "net.count"]),
        admin_flag,
        resolve_flags,
    };
    Ok(offsets.as_bytes().to_vec())
}

fn decode(bytes: &[u8], host_netns: NsInum) -> Result<Fact, DecodeError> {
    let record: &NeighborRecord = layout(bytes)?;
    if record.operation == operation::CREATED {
        return creator(record);
    }
    Ok(Fact::Neighbor(Box::new(neighbor(record, host_netns)?)))
}

fn creator(record: &NeighborRecord) -> Result<Fact, DecodeError> {
    let actor = actor(&record.task, record.task_root);
    let actor = actor.ok_or(DecodeError::Value { field: "task", value: 0 })?;
    let (netns, entries, ipv6) = (record.netns, record.netlink_port, record.family == 10);
    let netns_of_user = record.device_marks & device_mark::NETNS_OF_USER != 0;
    Ok(Fact::NeighborCreator(Box::new(NeighborCreator { netns, netns_of_user, ipv6, entries, actor })))
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
    let actor = actor(&record.task, record.task_root);
    let op = match record.operation {
        operation::DELETED | operation::COLLATERAL => NeighborOp::Deleted,
        operation::CHANGED => NeighborOp::Changed,
        operation::FAILED => NeighborOp::Failed,
        operation::SET | operation::RESOLVED => NeighborOp::Added,
        other => return Err(DecodeError::Value { field: "operation", value: other.into() }),
    };
    let cause = match record.operation {
        operation::DELETED | operation::SET => NeighborCause::Admin,
        operation::CHANGED => NeighborCause::Replaced,
        operation::COLLATERAL => collateral(record, actor.is_some(), host_netns),
        _ => NeighborCause::Unknown,
    };
    let lladdr = |bytes: &[u8]| {
        let bytes = bytes.get(..usize::from(record.lladdr_len)).unwrap_or(bytes);
        (!bytes.is_empty()).then(|| LlAddr(bytes.to_vec()))
    };
    let was = NudState(record.old_state);
    let is_known = match op {
        // One that never was resolved has no address.
        NeighborOp::Failed => record.lladdr.iter().any(|byte| *byte != 0),
        NeighborOp::Added => was.is_permanent() || was.is_usable(),
        NeighborOp::Deleted | NeighborOp::Changed => true,
    };
    let before = if is_known { lladdr(&record.lladdr) } else { None };
    let after = if record.has_new_lladdr == 0 { None } else { lladdr(&record.new_lladdr) };
    Ok(NeighborChange {
        key: NeighborKey { netns: record.netns, ifindex: record.ifindex, address },
        ifname: text(&record.ifname),
        op,
        cause,
        old_state: match (op, record.old_state) {
            // Something used the entry when it went with its interface, which hides what it was.
            (NeighborOp::Failed, _) | (NeighborOp::Deleted | NeighborOp::Added, 0) => None,
            _ => Some(was),
        },
        new_state: (op != NeighborOp::Deleted).then_some(NudState(record.new_state)),
        new_lladdr: after.filter(|new| before.as_ref() != Some(new)),
        lladdr: before,
        device_lladdr: lladdr(&record.device_lladdr),
        actor,
        netlink_port: Some(record.netlink_port).filter(|port| *port != 0),
        netns_cookie: cookie_half(&record.header),
        netns_of_user: record.device_marks & device_mark::NETNS_OF_USER != 0,
    })
}

/// What took a permanent entry along, by the state its interface is in at that moment.
///
/// The kernel clears IFF_UP before it notifies the neighbor code (`__dev_close_many`), queues an interface for
/// deletion before it closes it (`unregister_netdevice_queue`), and drops the last address before it disables
/// the interface's routing (`fib_inetaddr_event`). A kernel thread tears a namespace down, but also what is in other
/// namespaces and goes with it: the other end of a veth pair, and what is stacked on one of its interfaces.
fn collateral(record: &NeighborRecord, by_process: bool, host_netns: NsInum) -> NeighborCause {
    let has = |mark| record.device_marks & mark != 0;
    if has(device_mark::NETNS_ENDED) {
        NeighborCause::NetnsExit
    } else if has(device_mark::UNREGISTERING) {
        match by_process || has(device_mark::NETNS_ALIVE) || record.netns == host_netns {
            true => NeighborCause::LinkDeleted,
            false => NeighborCause::Unknown,
        }
    } else if record.device_flags & iff::UP == 0 {
        NeighborCause::LinkDown
    } else if record.family == 2 && !has(device_mark::HAS_ADDRESS) {
        NeighborCause::LastAddressRemoved
    } else if record.device_flags & iff::NOARP != 0 {
        NeighborCause::Noarp
    } else if record.lladdr_len == 0 {
        NeighborCause::Unknown
    } else {
        NeighborCause::LladdrChanged
    }
}

#[cfg(test)]
mod tests {
    use kevtmon_ebpf::neighbor::KIND_NEIGHBOR;
    use zerocopy::FromZeros as _;

    use super::*;

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
        match crate::record(record.as_bytes(), 1).unwrap().fact {
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
        // A kernel thread deletes what was in a namespace that ended, and what goes with that in others.
        let ended = device_mark::NETNS_ENDED;
        assert_eq!(cause(0, device_mark::UNREGISTERING | ended, 0), NeighborCause::NetnsExit);
        assert_eq!(cause(0, device_mark::UNREGISTERING | ended, 7), NeighborCause::NetnsExit);
        let alive = device_mark::NETNS_ALIVE;
        assert_eq!(cause(0, device_mark::UNREGISTERING | alive, 0), NeighborCause::LinkDeleted);
        assert_eq!(cause(0, device_mark::UNREGISTERING, 0), NeighborCause::Unknown);
        assert_eq!(cause(iff::UP, 0, 7), NeighborCause::LastAddressRemoved);
        assert_eq!(cause(iff::UP | iff::NOARP, address, 7), NeighborCause::Noarp);
        assert_eq!(cause(iff::UP, address, 7), NeighborCause::LladdrChanged);
        record.lladdr_len = 0;
        assert_eq!(change(&record).cause, NeighborCause::Unknown, "there is none to change");
    }

    #[test]
    fn the_state_before_is_unknown_of_an_entry_that_was_used_when_it_went_with_its_interface() {
        let mut record = deletion();
        (record.operation, record.old_state) = (operation::COLLATERAL, 0);
        let change = change(&record);
        assert_eq!((change.op, change.old_state), (NeighborOp::Deleted, None));
        assert_eq!(change.cause, NeighborCause::LinkDown);
        assert!(change.lladdr.is_some() && change.actor.is_some());
    }

    #[test]
    fn who_makes_many_entries_is_no_change_of_one() {
        let mut record = NeighborRecord { operation: operation::CREATED, netlink_port: 256, ..deletion() };
        let Ok(Fact::NeighborCreator(creator)) = decode(record.as_bytes(), 1) else { panic!("it is one") };
        assert_eq!((creator.entries, creator.ipv6, creator.netns), (256, false, record.netns));
        assert_eq!(creator.actor.key.tgid, record.task.tgid);
        record.task.tgid = 0;
        assert!(decode(record.as_bytes(), 1).is_err(), "nobody has made them");
    }

    #[test]
    fn an_unknown_operation_or_family_is_an_error() {
        let error = |wrong: NeighborRecord| crate::record(wrong.as_bytes(), 1).unwrap_err();
        let wrong = NeighborRecord { operation: 200, ..deletion() };
        assert_eq!(error(wrong), DecodeError::Value { field: "operation", value: 200 });
        let wrong = NeighborRecord { family: 7, ..deletion() };
        assert_eq!(error(wrong), DecodeError::Value { field: "family", value: 7 });
    }
}
