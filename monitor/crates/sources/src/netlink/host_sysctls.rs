//! Follows the sysctls of the host's interfaces that decide whether pods reach anything: `forwarding`, `proxy_arp`,
//! `rp_filter`. The kernel tells each change of them (`RTM_NEWNETCONF`), and not who made it.
//!
//! By a socket of its own that listens to the host's namespace alone: what containers set in theirs displaces nothing.

use std::time::Duration;

use kevtmon_observation::{Fact, InterfaceSysctls, RpFilter, Source};
use netlink_packet_core::{NetlinkBuffer, parse_i32};
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use super::dump::{self, BUDGET};
use super::message::{self, Decoded, attributes};
use super::socket::{DATAGRAM, RequestError, RequestSocket, Subscription};
use crate::{Sender, observed_now_by, spawn_until_closed};

/// `struct netconfmsg` with its padding, and attributes of include/uapi/linux/netconf.h.
const NETCONF_HEADER: usize = 4;
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_RP_FILTER: u16 = 3;
const NETCONFA_PROXY_NEIGH: u16 = 5;
/// What holds for all interfaces, and what new ones begin with.
const NETCONFA_IFINDEX_ALL: i32 = -1;
const NETCONFA_IFINDEX_DEFAULT: i32 = -2;

/// What cannot be read is tried again so late.
const RETRY: Duration = Duration::from_secs(10);

/// Follows them until the receiver of observations is gone. To be called where the host's network namespace is that of the
/// process.
pub fn follow_host_sysctls(tx: Sender) {
    let groups = [libc::RTNLGRP_IPV4_NETCONF, libc::RTNLGRP_IPV6_NETCONF];
    match Subscription::of_host(&groups).and_then(Subscription::watch) {
        Ok(socket) => spawn_until_closed(tx.clone(), follow(socket, tx)),
        Err(error) => tracing::debug!(
            error = &error as &dyn std::error::Error,
            "the sysctls of interfaces are not followed"
        ),
    }
}

async fn follow(socket: AsyncFd<Subscription>, tx: Sender) {
    let mut buffer = vec![0; DATAGRAM];
    let mut is_read = false;
    loop {
        if !is_read {
            // What changes meanwhile waits in the socket.
            let Some(sysctls) = dump::read_on_thread("cannot read the sysctls of interfaces", read).await
            else {
                sleep(RETRY).await;
                continue;
            };
            let fact = Fact::HostSysctls { sysctls, all: true };
            let _ = tx.send(observed_now_by(Source::Netlink, fact)).await;
            is_read = true;
        }
        let Ok(mut ready) = socket.readable().await else { return };
        let length = match ready.try_io(|socket| socket.get_ref().receive(&mut buffer)) {
            Ok(Ok(datagram)) if datagram.from_kernel && !datagram.truncated => datagram.length,
            // Messages were lost.
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                is_read = false;
                continue;
            }
            _ => continue,
        };
        let messages = message::messages(&buffer[..length]).filter_map(Result::ok);
        for told in messages.filter_map(|message| told(&message)) {
            let fact = Fact::HostSysctls { sysctls: vec![told], all: false };
            let _ = tx.send(observed_now_by(Source::Netlink, fact)).await;
        }
    }
}

fn read() -> Result<Vec<InterfaceSysctls>, RequestError> {
    let mut all = Vec::new();
    let mut requests = RequestSocket::open(BUDGET)?;
    requests.dump_netconf(libc::AF_INET, |message| all.extend(told(message)))?;
    // The kernel may have no IPv6.
    if let Err(error) = requests.dump_netconf(libc::AF_INET6, |message| all.extend(told(message))) {
        tracing::debug!(%error, "cannot read the sysctls of IPv6");
    }
    Ok(all)
}

/// What a message tells, if it is about an interface or all of them.
fn told(message: &NetlinkBuffer<&[u8]>) -> Option<InterfaceSysctls> {
    (message.message_type() == libc::RTM_NEWNETCONF).then(|| sysctls(message.payload()))?.ok()?
}

fn sysctls(payload: &[u8]) -> Decoded<Option<InterfaceSysctls>> {
    let family = payload.first().copied().map(i32::from);
    let ipv6 = match family {
        Some(libc::AF_INET) => false,
        Some(libc::AF_INET6) => true,
        // MPLS has such messages too.
        _ => return Ok(None),
    };
    let (mut told, mut index) = (InterfaceSysctls { ipv6, ..InterfaceSysctls::default() }, None);
    for attribute in attributes(payload, NETCONF_HEADER) {
        match attribute? {
            (NETCONFA_IFINDEX, value) => index = Some(parse_i32(value)?),
            (NETCONFA_FORWARDING, value) => told.forwarding = Some(parse_i32(value)? != 0),
            (NETCONFA_RP_FILTER, value) if !ipv6 => told.rp_filter = Some(RpFilter::of(parse_i32(value)?)),
            (NETCONFA_PROXY_NEIGH, value) => told.proxy = Some(parse_i32(value)? != 0),
            _ => {}
        }
    }
    told.ifindex = match index {
        Some(NETCONFA_IFINDEX_ALL) => None,
        None | Some(NETCONFA_IFINDEX_DEFAULT) => return Ok(None),
        Some(index) => match u32::try_from(index) {
            Ok(index) => Some(index),
            Err(_) => return Ok(None),
        },
    };
    // Of one interface that of IPv6 only decides whether routers are listened to.
    told.forwarding = told.forwarding.filter(|_| !ipv6 || told.ifindex.is_none());
    Ok(Some(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of a family about an interface, with attributes of one number each.
    fn payload(family: i32, index: i32, attributes: &[(u16, i32)]) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(family).unwrap(), 0, 0, 0];
        for (kind, value) in [(NETCONFA_IFINDEX, index)].iter().chain(attributes) {
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_message_tells_of_one_interface_or_of_all_and_nothing_of_those_to_come() {
        let told =
            |index, attributes: &[(u16, i32)]| sysctls(&payload(libc::AF_INET, index, attributes)).unwrap();
        let proxy = told(7, &[(NETCONFA_PROXY_NEIGH, 1), (8, 1)]).unwrap();
        assert_eq!(
            proxy,
            InterfaceSysctls { ifindex: Some(7), proxy: Some(true), ..InterfaceSysctls::default() }
        );
        let all = told(-1, &[(NETCONFA_FORWARDING, 0), (NETCONFA_RP_FILTER, 1)]).unwrap();
        assert_eq!((all.ifindex, all.forwarding, all.rp_filter), (None, Some(false), Some(RpFilter::Strict)));
        assert_eq!(told(-2, &[(NETCONFA_FORWARDING, 0)]), None);
        assert_eq!(sysctls(&payload(28, 7, &[])).unwrap(), None, "MPLS");
        let ipv6 = sysctls(&payload(libc::AF_INET6, 7, &[(NETCONFA_RP_FILTER, 1)])).unwrap().unwrap();
        assert_eq!((ipv6.ipv6, ipv6.rp_filter), (true, None));
        assert!(sysctls(&[2, 0, 0, 0, 8, 0, 1, 0, 7]).is_err(), "cut off");
        assert_eq!(sysctls(&[]).unwrap(), None);
    }

    #[test]
    fn the_kernel_of_this_machine_tells_its_own() {
        let all = read().unwrap();
        let of = |ifindex| all.iter().find(|known| !known.ipv6 && known.ifindex == ifindex).unwrap();
        for known in [of(None), of(Some(1))] {
            assert!(
                known.forwarding.is_some() && known.proxy.is_some() && known.rp_filter.is_some(),
                "{known:?}"
            );
        }
    }
}
