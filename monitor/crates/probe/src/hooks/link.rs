//! Interfaces: who set one up or down, deleted or moved it; and who had a route or an address added or deleted, where the kernel
//! allows it. What happened, netlink tells.

use kevtmon_ebpf::link::{KIND_LINK, LinkOffsets, LinkRecord, counter, operation};
use kevtmon_ebpf::route::KIND_ROUTE;
use kevtmon_observation::{Fact, LinkAct, LinkOp};
use kevtmon_types::namespace::NsInum;
use zerocopy::IntoBytes as _;

use super::{
    Attach, AttachMode, Decode, Hook, LossCount, Mechanism, Offsets, Program, Records, route, tp_btf,
};
use crate::btf::{Btf, BtfError};
use crate::decode::{DecodeError, cookie_half, layout, short};
use crate::task::actor;

pub(super) const HOOK: Hook = Hook {
    name: "link",
    observes: "changes of interfaces, routes and addresses",
    without: "links that are set down, moved or deleted have no actor, except a CNI call at that time",
    attach_modes: &[AttachMode {
        name: "tp_btf",
        note: None,
        lost: None,
        mechanism: Mechanism::Programs(&[
            tp_btf("qdisc_reset"),
            tp_btf("qdisc_destroy"),
            tp_btf("qdisc_create"),
            Program { name: "rtnl_notify", attach: Attach::Function("rtnl_notify") },
            Program { name: "kp_rtnl_notify", attach: Attach::Kprobe("rtnl_notify") },
        ]),
    }],
    offsets: Some(Offsets { global: "LINK_OFFSETS", resolve: offsets }),
    records: Records {
        kinds: &[(KIND_LINK, Decode::Fact(decode)), (KIND_ROUTE, Decode::Fact(route::decode))],
        counts: &[],
        losses: &[LossCount { counter: counter::RING_FULL, reason: "link-ring-full" }],
    },
    skipped: "link-run-skipped",
};

fn offsets(btf: &Btf<'_>) -> Result<Vec<u8>, BtfError> {
    let offsets = LinkOffsets {
        qdisc_dev_queue: btf.need("Qdisc.dev_queue")?,
        qdisc_flags: btf.need("Qdisc.flags")?,
        netdev_queue_dev: btf.need("netdev_queue.dev")?,
        netdev_queue_qdisc: btf.need("netdev_queue.qdisc_sleeping")?,
        net_device_tx: btf.need("net_device._tx")?,
        net_device_qdisc: btf.need("net_device.qdisc")?,
        net_device_state: btf.need("net_device.state")?,
        net_device_flags: btf.need("net_device.flags")?,
        net_device_listed: btf.need("net_device.dev_list.prev")?,
        net_device_unreg_list: btf.need("net_device.unreg_list.next")?,
        net_device_ifindex: btf.need("net_device.ifindex")?,
        net_device_nd_net: btf.need("net_device.nd_net.net")?,
        net_ns_inum: btf.need("net.ns.inum")?,
        net_user_ns: btf.need("net.user_ns")?,
        // Since 5.12.
        net_cookie: btf.any_of(&["net.net_cookie"]),
        // Only for what the attach mode can do without.
        sk_buff_data: btf.any_of(&["sk_buff.data"]),
    };
    Ok(offsets.as_bytes().to_vec())
}

fn decode(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    let record: &LinkRecord = layout(bytes)?;
    let op = match record.operation {
        operation::OPENED => LinkOp::Opened,
        operation::CLOSED => LinkOp::Closed,
        operation::DELETED => LinkOp::Deleted,
        operation::MOVED => LinkOp::Moved,
        other => return Err(DecodeError::Value { field: "operation", value: other.into() }),
    };
    let actor = actor(&record.task, record.task_root).ok_or_else(|| short(bytes))?;
    let LinkRecord { netns, ifindex, missing, .. } = *record;
    let netns_cookie = cookie_half(&record.header);
    Ok(Fact::LinkAct(Box::new(LinkAct { netns, ifindex, op, missing, netns_cookie, actor })))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;
    use crate::record;

    fn sent(operation: u8) -> LinkRecord {
        let mut record = LinkRecord::new_zeroed();
        record.header.kind = KIND_LINK;
        (record.netns, record.ifindex, record.operation) = (3, 2, operation);
        (record.task.tgid, record.header.detail) = (7, 5);
        record
    }

    #[test]
    fn an_act_has_its_interface_and_its_actor() {
        let fact = |operation| record(sent(operation).as_bytes(), 1).map(|seen| seen.fact);
        let Ok(Fact::LinkAct(act)) = fact(operation::CLOSED) else { panic!("it is one") };
        assert_eq!((act.netns, act.ifindex, act.op, act.actor.key.tgid), (3, 2, LinkOp::Closed, 7));
        assert_eq!(act.netns_cookie, Some(5));
        assert_eq!(fact(9), Err(DecodeError::Value { field: "operation", value: 9 }));
        let nobody = LinkRecord { task: kevtmon_ebpf::task::TaskId::new_zeroed(), ..sent(operation::MOVED) };
        assert!(record(nobody.as_bytes(), 1).is_err(), "nobody is named");
    }
}
