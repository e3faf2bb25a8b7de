//! Routes, addresses and routing rules, for the hook `link`: who had one added or deleted. What happened, netlink tells.

use kevtmon_ebpf::route::RouteRecord;
use kevtmon_observation::{Fact, RouteAct};
use kevtmon_sources::netlink::{Malformed, ops};
use kevtmon_types::namespace::NsInum;

use crate::decode::{DecodeError, cookie_half, layout, short};
use crate::task::actor;

pub(super) fn decode(bytes: &[u8], _host_netns: NsInum) -> Result<Fact, DecodeError> {
    let record: &RouteRecord = layout(bytes)?;
    let RouteRecord { netns, missing, message_len, ref message, .. } = *record;
    let invalid = |field, value| DecodeError::Value { field, value };
    let len = usize::try_from(message_len).unwrap_or(usize::MAX);
    let message = message.get(..len).ok_or(invalid("message_len", message_len))?;
    let ops = ops(netns, message).map_err(|Malformed(kind)| invalid("message", kind.into()))?;
    let actor = actor(&record.task, record.task_root).ok_or_else(|| short(bytes))?;
    let netns_cookie = cookie_half(&record.header);
    Ok(Fact::RouteAct(Box::new(RouteAct { netns, ops, missing, netns_cookie, actor })))
}

#[cfg(test)]
mod tests {
    use kevtmon_ebpf::route::{KIND_ROUTE, MESSAGE_CAPACITY};
    use kevtmon_observation::{AddressFacts, RouteOp};
    use zerocopy::{FromZeros as _, IntoBytes as _};

    use super::*;
    use crate::record;

    /// `struct nlmsghdr` and `struct ifaddrmsg` of 10.0.0.1/24 at interface 2, with `IFA_LOCAL`.
    const ADDRESS: [u8; 32] =
        [32, 0, 0, 0, 21, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 2, 24, 0, 0, 2, 0, 0, 0, 8, 0, 2, 0, 10, 0, 0, 1];

    fn sent(message: &[u8]) -> RouteRecord {
        let mut record = RouteRecord::new_zeroed();
        record.header.kind = KIND_ROUTE;
        record.netns = 3;
        (record.task.tgid, record.header.detail) = (7, 5);
        record.message_len = message.len().try_into().unwrap();
        record.message[..message.len()].copy_from_slice(message);
        record
    }

    #[test]
    fn an_act_has_what_its_message_tells_and_its_actor() {
        let fact = |sent: RouteRecord| record(sent.as_bytes(), 1).map(|seen| seen.fact);
        let Ok(Fact::RouteAct(act)) = fact(sent(&ADDRESS)) else { panic!("it is one") };
        let address =
            AddressFacts { netns: 3, ifindex: 2, address: "10.0.0.1".parse().unwrap(), prefix_len: 24 };
        assert_eq!((act.netns, act.netns_cookie, act.actor.key.tgid), (3, Some(5), 7));
        assert_eq!(act.ops, [RouteOp::AddressDeleted(address)]);
    }

    #[test]
    fn what_is_no_message_or_has_no_actor_is_an_error() {
        let error = |sent: RouteRecord| record(sent.as_bytes(), 1).unwrap_err();
        assert_eq!(error(sent(&ADDRESS[..20])), DecodeError::Value { field: "message", value: 0 });
        let long = u32::try_from(MESSAGE_CAPACITY).unwrap() + 1;
        let too_long = RouteRecord { message_len: long, ..sent(&ADDRESS) };
        assert_eq!(error(too_long), DecodeError::Value { field: "message_len", value: long });
        let nobody = RouteRecord { task: kevtmon_ebpf::task::TaskId::new_zeroed(), ..sent(&ADDRESS) };
        assert!(matches!(error(nobody), DecodeError::Short { .. }), "nobody is named");
    }
}
