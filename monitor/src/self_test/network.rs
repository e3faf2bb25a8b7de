//! The few requests to rtnetlink that make a veth and a neighbor entry.

use std::io;
use std::net::Ipv4Addr;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

/// Longest wait for the kernel's answer, in seconds.
const PATIENCE_S: i64 = 5;
/// An address that no network card has: it is locally administered.
const LLADDR: [u8; 6] = [0xee; 6];

/// What it means that the kernel refused a request.
pub(super) fn refused(request: &str, source: io::Error) -> String {
    format!("cannot {request}: {source}")
}

/// A socket in the network namespace of the thread that opens it.
pub(super) struct Network(Socket);

impl Network {
    pub(super) fn open() -> Result<Self, String> {
        let failed = |source| refused("open a netlink socket", source);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind(&SocketAddr::new(0, 0)).map_err(failed)?;
        let patience = TimeVal::seconds(PATIENCE_S);
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience).map_err(|errno| failed(errno.into()))?;
        Ok(Self(socket))
    }

    /// A veth, whose other end is in the network namespace of a process.
    pub(super) fn add_veth(&mut self, name: &str, peer: &str, pid: u32) -> Result<(), String> {
        let mut other = LinkMessage::default();
        other.attributes = vec![LinkAttribute::IfName(peer.to_owned()), LinkAttribute::NetNsPid(pid)];
        let info =
            vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other)))];
        let mut link = LinkMessage::default();
        link.attributes = vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(info)];
        self.ask("add a veth", RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(super) fn set_up(&mut self, ifindex: u32) -> Result<(), String> {
        let mut link = LinkMessage::default();
        link.header.index = ifindex;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.ask("set the veth up", RouteNetlinkMessage::SetLink(link), 0)
    }

    pub(super) fn add_permanent_neighbor(&mut self, ifindex: u32, address: Ipv4Addr) -> Result<(), String> {
        let mut entry = neighbor(ifindex, address);
        entry.header.state = NeighbourState::Permanent;
        entry.attributes.push(NeighbourAttribute::LinkLayerAddress(LLADDR.to_vec()));
        let message = RouteNetlinkMessage::NewNeighbour(entry);
        self.ask("add a permanent neighbor entry", message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(super) fn delete_neighbor(&mut self, ifindex: u32, address: Ipv4Addr) -> Result<(), String> {
        let message = RouteNetlinkMessage::DelNeighbour(neighbor(ifindex, address));
        self.ask("delete the neighbor entry", message, 0)
    }

    /// Sends a request and waits for the kernel's answer.
    fn ask(&mut self, request: &'static str, message: RouteNetlinkMessage, flags: u16) -> Result<(), String> {
        self.exchange(message, flags).map_err(|source| refused(request, source))
    }

    fn exchange(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let (answer, _) = self.0.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
        match answer.payload {
            NetlinkPayload::Error(error) => match error.code {
                None => Ok(()),
                Some(_) => Err(error.to_io()),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn neighbor(ifindex: u32, address: Ipv4Addr) -> NeighbourMessage {
    let mut entry = NeighbourMessage::default();
    entry.header.family = AddressFamily::Inet;
    entry.header.ifindex = ifindex;
    entry.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    entry
}
