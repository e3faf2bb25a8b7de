//! Requests to rtnetlink that the kernel takes one after the other, without any pause between them: all in one message.

use std::io;
use std::net::IpAddr;

use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage,
};
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};

/// `struct nlmsghdr`, and the error code behind it.
const HEADER: usize = 16;

/// A default route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Index of its interface.
    pub ifindex: u32,
    /// Its gateway, whose family is the route's.
    pub via: IpAddr,
    /// Its metric.
    pub metric: u32,
}

impl DefaultRoute {
    fn message(self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(self.via),
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let via = match self.via {
            IpAddr::V4(address) => RouteAddress::Inet(address),
            IpAddr::V6(address) => RouteAddress::Inet6(address),
        };
        message.attributes = vec![
            RouteAttribute::Oif(self.ifindex),
            RouteAttribute::Gateway(via),
            RouteAttribute::Priority(self.metric),
        ];
        message
    }
}

/// Requests in the order in which they are done.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    bytes: Vec<u8>,
    count: usize,
}

impl Requests {
    /// Adds a default route, or replaces the one of this metric.
    pub fn replace_route(&mut self, route: DefaultRoute) {
        self.push(RouteNetlinkMessage::NewRoute(route.message()), NLM_F_CREATE | NLM_F_REPLACE);
    }

    /// Adds a default route.
    pub fn add_route(&mut self, route: DefaultRoute) {
        self.push(RouteNetlinkMessage::NewRoute(route.message()), NLM_F_CREATE);
    }

    /// Deletes a default route.
    pub fn delete_route(&mut self, route: DefaultRoute) {
        self.push(RouteNetlinkMessage::DelRoute(route.message()), 0);
    }

    /// Deletes a neighbor entry.
    pub fn delete_neighbor(&mut self, ifindex: u32, address: IpAddr) {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = ifindex;
        message.header.family = family(address);
        let destination = match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        };
        message.attributes.push(NeighbourAttribute::Destination(destination));
        self.push(RouteNetlinkMessage::DelNeighbour(message), 0);
    }

    /// Adds those of another list.
    pub fn append(&mut self, mut other: Self) {
        self.bytes.append(&mut other.bytes);
        self.count += other.count;
    }

    fn push(&mut self, request: RouteNetlinkMessage, flags: u16) {
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message.finalize();
        let start = self.bytes.len();
        self.bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut self.bytes[start..]);
        self.count += 1;
    }

    /// Has the kernel do them all, in the namespace of the calling thread.
    ///
    /// # Errors
    /// When there is no socket, or the first that the kernel refused.
    pub fn send(&self) -> io::Result<()> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.send_to(&self.bytes, &SocketAddr::new(0, 0), 0)?;
        let mut answered = 0;
        while answered < self.count {
            let (bytes, _) = socket.recv_from_full()?;
            let mut rest = &bytes[..];
            while rest.len() >= HEADER {
                let Ok(message) = NetlinkBuffer::new_checked(rest) else { break };
                if message.message_type() == NLMSG_ERROR {
                    let code = message.payload().first_chunk().copied().map_or(0, i32::from_ne_bytes);
                    if code != 0 {
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    answered += 1;
                }
                let length = usize::try_from(message.length()).unwrap_or(rest.len()).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
