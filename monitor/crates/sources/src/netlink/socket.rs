//! Netlink sockets: the one that listens, and short-lived ones for requests.
//!
//! Datagrams come out with their namespace id and whether they were truncated; they are not decoded here. netlink-sys
//! reads with `recvfrom`, which drops the namespace id, so reading is done here; rtnetlink, which acts on the network
//! elsewhere, reads through netlink-sys and could not distinguish the namespaces of one stream.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
    NetlinkBuffer, NetlinkMessage, parse_i32,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, NetlinkAddr, UnknownCmsg, getsockopt, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::{getsockopt_impl, sockopt_impl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::message::{self, DecodeError};
use super::route::{NEXTHOP_HEADER, RTM_GETNEXTHOP};

/// Larger than any datagram of the kernel: it fills dumps up to 32 KiB.
pub(super) const DATAGRAM: usize = 64 * 1024;
/// `struct nlmsghdr`.
const NLMSG_HEADER: usize = 16;
/// Tables that a kernel may not have: rules without policy routing, nexthop objects before 5.3.
const OPTIONAL_TABLES: [u16; 2] = [libc::RTM_GETRULE, RTM_GETNEXTHOP];
/// Longest wait for one datagram of an answer.
const PATIENCE: Duration = Duration::from_millis(300);

sockopt_impl!(NetnsCookie, GetOnly, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) length: usize,
    /// Namespace id of the sender; `None` means the socket's own namespace.
    pub(super) nsid: Option<i32>,
    pub(super) truncated: bool,
    /// Sent by the kernel (port 0), not by a process.
    pub(super) from_kernel: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct SetupError {
    step: &'static str,
    source: io::Error,
}

fn setup(step: &'static str) -> impl FnOnce(io::Error) -> SetupError {
    move |source| SetupError { step, source }
}

#[derive(Debug)]
pub(super) struct Subscription {
    socket: Socket,
    /// Why other namespaces cannot be subscribed to, if so.
    pub(super) host_only: Option<io::Error>,
}

impl Subscription {
    /// Joins the groups, of all namespaces if the capability is there, else of its own.
    pub(super) fn open(receive_buffer: usize, groups: &[u32]) -> Result<Self, SetupError> {
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(setup("open a netlink socket"))?;
        enlarge(&socket, receive_buffer).map_err(setup("set the receive buffer"))?;
        socket.set_non_blocking(true).map_err(setup("make the socket non-blocking"))?;
        if let Err(error) = leave_out_promiscuity(&socket) {
            tracing::debug!(%error, "the netlink socket has no filter");
        }
        // Both before any group: a message that came earlier would lack its namespace.
        let mut host_only = socket.set_listen_all_namespaces(true).err();
        socket.bind(&SocketAddr::new(0, 0)).map_err(setup("bind the netlink socket"))?;
        for group in groups {
            socket.add_membership(*group).map_err(setup("join a netlink group"))?;
        }
        // Kernels before 5.3 have no nexthop objects.
        let _ = socket.add_membership(libc::RTNLGRP_NEXTHOP);
        if let Err(error) = socket.add_membership(libc::RTNLGRP_NSID) {
            host_only.get_or_insert(error);
        }
        Ok(Self { socket, host_only })
    }

    /// Joins the groups of its own namespace alone.
    pub(super) fn of_host(groups: &[u32]) -> Result<Self, SetupError> {
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(setup("open a netlink socket"))?;
        socket.set_non_blocking(true).map_err(setup("make the socket non-blocking"))?;
        socket.bind(&SocketAddr::new(0, 0)).map_err(setup("bind the netlink socket"))?;
        for group in groups {
            socket.add_membership(*group).map_err(setup("join a netlink group"))?;
        }
        Ok(Self { socket, host_only: None })
    }

    /// Makes the runtime of this thread watch the socket.
    pub(super) fn watch(self) -> Result<AsyncFd<Self>, SetupError> {
        // SAFETY: the descriptor is the one of the socket that is moved in, and stays open and the same
        // until both are dropped together.
        unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }
            .map_err(|error| setup("poll the netlink socket")(error.into()))
    }

    /// Has the kernel answer behind all that it has sent by now. Nothing is locked for that.
    pub(super) fn set_mark(&self, number: u32) -> io::Result<()> {
        let mut bytes = [0; NLMSG_HEADER];
        let mut message = NetlinkBuffer::new(&mut bytes[..]);
        message.set_length(u32::try_from(NLMSG_HEADER).unwrap_or(0));
        message.set_message_type(NLMSG_NOOP);
        message.set_flags(NLM_F_REQUEST | NLM_F_ACK);
        message.set_sequence_number(number);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// Reads one datagram; `WouldBlock` when there is none, `ENOBUFS` once after the kernel lost some.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        receive(self.socket.as_fd(), buffer)
    }
}

/// The number of the mark that a datagram answers, if it is such an answer.
pub(super) fn mark(datagram: &[u8]) -> Option<u32> {
    let message = NetlinkBuffer::new_checked(datagram).ok()?;
    (message.message_type() == NLMSG_ERROR).then(|| message.sequence_number())
}

impl AsRawFd for Subscription {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Has the kernel leave out what only tells that a link became promiscuous or ceased to be: nothing is made of it, and any
/// container with a packet socket, which most may have, can cause more such messages than the socket has room for.
fn leave_out_promiscuity(socket: &Socket) -> io::Result<()> {
    /// Of `include/uapi/linux/if.h`.
    const IFF_PROMISC: u32 = 0x100;
    /// Of `include/uapi/linux/bpf_common.h`: `BPF_LD | BPF_ABS` with `BPF_H` or `BPF_W`, `BPF_JMP | BPF_JEQ`, `BPF_RET`.
    const LOAD_HALF: u16 = 0x28;
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // Loads of such a program are of network order, the message is not.
    let new_link = u32::from(u16::from_be_bytes(libc::RTM_NEWLINK.to_ne_bytes()));
    let promiscuity = u32::from_be_bytes(IFF_PROMISC.to_ne_bytes());
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    attach_filter(
        socket,
        &[
            // `nlmsg_type` of `struct nlmsghdr`.
            statement(LOAD_HALF, 4),
            libc::sock_filter { jf: 2, ..statement(JUMP_IF_EQUAL, new_link) },
            // `ifi_change` of `struct ifinfomsg` behind it.
            statement(LOAD_WORD, 16 + 12),
            libc::sock_filter { jt: 1, ..statement(JUMP_IF_EQUAL, promiscuity) },
            statement(RETURN, u32::MAX),
            statement(RETURN, 0),
        ],
    )
}

/// Has the kernel keep what this program of classic BPF does.
pub(crate) fn attach_filter(socket: &Socket, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let size = libc::socklen_t::try_from(size_of_val(&program)).map_err(|_| io::ErrorKind::InvalidInput)?;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the kernel copies the program, which lives until the call returns; it is `len` instructions long.
    Errno::result(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const program).cast(), size)
    })?;
    Ok(())
}

fn enlarge(socket: &Socket, bytes: usize) -> io::Result<()> {
    if setsockopt(socket, sockopt::RcvBufForce, &bytes).is_ok() {
        return Ok(());
    }
    setsockopt(socket, sockopt::RcvBuf, &bytes)?;
    // The kernel doubles what it grants, for its own bookkeeping.
    let granted = socket.get_rx_buf_sz()? / 2;
    if granted < bytes {
        tracing::warn!(wanted = bytes, granted, "netlink receive buffer is limited by net.core.rmem_max");
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("cannot open a netlink socket")]
    Socket(#[source] io::Error),
    #[error("the kernel refused a request of type {request}")]
    Refused { request: u16, source: io::Error },
    #[error("no reply in time to a request of type {request}")]
    Timeout { request: u16 },
    #[error("the reply was truncated or cannot be decoded")]
    Answer(#[source] DecodeError),
}

impl RequestError {
    /// Whether a table was requested that this kernel does not have.
    fn is_missing_table(&self) -> bool {
        matches!(self, Self::Refused { request, source }
            if OPTIONAL_TABLES.contains(request) && source.raw_os_error() == Some(libc::EOPNOTSUPP))
    }
}

/// A blocking socket for requests, in the namespace of the thread that opens it.
pub(super) struct RequestSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    deadline: Instant,
}

impl RequestSocket {
    /// Opens the socket; all answers together must come within `budget`.
    pub(super) fn open(budget: Duration) -> Result<Self, RequestError> {
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(RequestError::Socket)?;
        socket.bind(&SocketAddr::new(0, 0)).map_err(RequestError::Socket)?;
        let patience = TimeVal::milliseconds(i64::try_from(PATIENCE.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience)
            .map_err(|errno| RequestError::Socket(errno.into()))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; DATAGRAM], deadline: Instant::now() + budget })
    }

    /// Has the kernel select by what a dump asks for, where it can (since 4.20).
    pub(super) fn check_strictly(&self) {
        if let Err(error) = self.socket.set_netlink_get_strict_chk(true) {
            tracing::debug!(%error, "the kernel does not select what it dumps");
        }
    }

    /// The cookie of the namespace that the socket is in; `None` before 5.14.
    pub(super) fn netns_cookie(&self) -> Option<u64> {
        getsockopt(&self.socket, NetnsCookie).ok().filter(|cookie| *cookie != 0)
    }

    /// Dumps a table, message by message; one that the kernel does not have is empty. Returns whether the kernel
    /// reports that it changed meanwhile.
    pub(super) fn dump(
        &mut self,
        request: RouteNetlinkMessage,
        each: impl FnMut(&NetlinkBuffer<&[u8]>),
    ) -> Result<bool, RequestError> {
        let kind = self.send(request, NLM_F_DUMP)?;
        self.read_dump(kind, each)
    }

    /// Dumps the nexthop objects, which the packet crate does not decode.
    pub(super) fn dump_nexthops(
        &mut self,
        each: impl FnMut(&NetlinkBuffer<&[u8]>),
    ) -> Result<bool, RequestError> {
        self.dump_by(RTM_GETNEXTHOP, &[0; NEXTHOP_HEADER], each)
    }

    /// Dumps the sysctls of interfaces of a family (`struct netconfmsg` of include/uapi/linux/netconf.h), which the packet crate
    /// does not know.
    pub(super) fn dump_netconf(
        &mut self,
        family: i32,
        each: impl FnMut(&NetlinkBuffer<&[u8]>),
    ) -> Result<bool, RequestError> {
        self.dump_by(libc::RTM_GETNETCONF, &[u8::try_from(family).unwrap_or(0), 0, 0, 0], each)
    }

    /// Dumps by a request without attributes.
    fn dump_by(
        &mut self,
        kind: u16,
        header: &[u8],
        each: impl FnMut(&NetlinkBuffer<&[u8]>),
    ) -> Result<bool, RequestError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = [&[0; NLMSG_HEADER], header].concat();
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        let mut message = NetlinkBuffer::new(&mut bytes[..]);
        message.set_length(length);
        message.set_message_type(kind);
        message.set_flags(NLM_F_REQUEST | NLM_F_DUMP);
        message.set_sequence_number(self.sequence);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(RequestError::Socket)?;
        self.read_dump(kind, each)
    }

    fn read_dump(
        &mut self,
        kind: u16,
        mut each: impl FnMut(&NetlinkBuffer<&[u8]>),
    ) -> Result<bool, RequestError> {
        let mut interrupted = false;
        loop {
            let datagram = self.read(kind)?;
            for message in message::messages(&self.buffer[..datagram.length]) {
                let message = message.map_err(RequestError::Answer)?;
                if message.sequence_number() != self.sequence {
                    continue;
                }
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match message.message_type() {
                    NLMSG_DONE | NLMSG_ERROR => {
                        return match refusal(kind, message.payload()) {
                            Err(error) if error.is_missing_table() => Ok(false),
                            result => result.map(|()| interrupted),
                        };
                    }
                    _ => each(&message),
                }
            }
        }
    }

    /// Sends a request and hands over the one message of the reply.
    pub(super) fn request<T>(
        &mut self,
        request: RouteNetlinkMessage,
        answer: impl FnOnce(&NetlinkBuffer<&[u8]>) -> T,
    ) -> Result<T, RequestError> {
        let kind = self.send(request, 0)?;
        self.read_reply(kind, answer)
    }

    fn read_reply<T>(
        &mut self,
        kind: u16,
        answer: impl FnOnce(&NetlinkBuffer<&[u8]>) -> T,
    ) -> Result<T, RequestError> {
        loop {
            let datagram = self.read(kind)?;
            for message in message::messages(&self.buffer[..datagram.length]) {
                let message = message.map_err(RequestError::Answer)?;
                if message.sequence_number() != self.sequence {
                    continue;
                }
                if message.message_type() == NLMSG_ERROR {
                    refusal(kind, message.payload())?;
                }
                return Ok(answer(&message));
            }
        }
    }

    /// Sends a request that changes something, and waits until it is done.
    pub(super) fn command(&mut self, request: RouteNetlinkMessage) -> Result<(), RequestError> {
        let kind = self.send(request, NLM_F_ACK)?;
        self.read_reply(kind, |_| ())
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> Result<u16, RequestError> {
        self.sequence = self.sequence.wrapping_add(1);
        let kind = request.message_type();
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(RequestError::Socket)?;
        Ok(kind)
    }

    fn read(&mut self, request: u16) -> Result<Datagram, RequestError> {
        loop {
            if Instant::now() >= self.deadline {
                return Err(RequestError::Timeout { request });
            }
            match receive(self.socket.as_fd(), &mut self.buffer) {
                Ok(datagram) if datagram.truncated => {
                    return Err(RequestError::Socket(io::Error::from_raw_os_error(libc::EMSGSIZE)));
                }
                Ok(datagram) if datagram.from_kernel => return Ok(datagram),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(RequestError::Timeout { request });
                }
                Err(error) => return Err(RequestError::Socket(error)),
            }
        }
    }
}

/// The result code in `NLMSG_ERROR` and `NLMSG_DONE`: zero, or a negative errno.
fn refusal(request: u16, payload: &[u8]) -> Result<(), RequestError> {
    match payload.get(..4).and_then(|code| parse_i32(code).ok()).unwrap_or(0) {
        code if code < 0 => {
            let source = io::Error::from_raw_os_error(code.saturating_neg());
            Err(RequestError::Refused { request, source })
        }
        _ => Ok(()),
    }
}

/// `recvmsg` with the sender's port and namespace id.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut control = nix::cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(buffer)];
    let message =
        recvmsg::<NetlinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let nsid = |control| match control {
        ControlMessageOwned::Unknown(UnknownCmsg { cmsg_header: header, data_bytes })
            if (header.cmsg_level, header.cmsg_type)
                == (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID) =>
        {
            parse_i32(&data_bytes).ok()
        }
        _ => None,
    };
    Ok(Datagram {
        length: message.bytes,
        nsid: message.cmsgs().ok().and_then(|mut all| all.find_map(nsid)),
        truncated: message.flags.contains(MsgFlags::MSG_TRUNC),
        from_kernel: message.address.is_none_or(|sender| sender.pid() == 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_and_nexthop_objects_may_be_missing_in_a_kernel() {
        let is_missing =
            |request, errno: i32| refusal(request, &(-errno).to_ne_bytes()).unwrap_err().is_missing_table();
        assert!(
            is_missing(libc::RTM_GETRULE, libc::EOPNOTSUPP) && is_missing(RTM_GETNEXTHOP, libc::EOPNOTSUPP)
        );
        assert!(!is_missing(libc::RTM_GETRULE, libc::EPERM));
        assert!(!is_missing(libc::RTM_GETLINK, libc::EOPNOTSUPP));
    }
}
