//! What the kernel tells of devices that come and go (`NETLINK_KOBJECT_UEVENT`, group 1). A filter in the kernel lets only that
//! of RBD devices and of network block devices through: containers that start make dozens of such messages each.
//!
//! The message is only a reason to look: nothing in it is taken for a fact. Processes can send such messages, too; the kernel's
//! come from port 0.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;
use netlink_sys::{Socket, SocketAddr};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::netlink::attach_filter;

/// The group of the kernel's own messages; in the other one udev repeats them.
const GROUP: u32 = 1;
const KERNEL: u32 = 0;
/// Larger than any message of the kernel (`UEVENT_BUFFER_SIZE` and the path).
const MESSAGE_MAX: usize = 8192;
/// Where RBD devices are in sysfs, as in `add@/devices/rbd/0` and `remove@/devices/rbd/0/block/rbd0`, and network block devices,
/// which change when they are connected and when they are no more: `change@/devices/virtual/block/nbd0`.
const BELOW: [&[u8]; 2] = [b"/devices/rbd/", b"/devices/virtual/block/nbd"];
/// Actions, with the sign behind them, of which the kernel tells.
const ACTIONS: [&[u8]; 7] = [b"add@", b"remove@", b"change@", b"move@", b"bind@", b"unbind@", b"online@"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Something of such a device.
    Rbd,
    Other,
    /// Not from the kernel.
    Refused,
    /// There was no room for some messages.
    Lost,
    /// The socket can no longer be read.
    Closed,
}

pub(super) fn judge(port: u32, message: &[u8]) -> Heard {
    if port != KERNEL {
        return Heard::Refused;
    }
    let is_below = |rest: &[u8]| BELOW.iter().any(|below| rest.starts_with(below));
    let is_of_rbd = |action: &&[u8]| message.strip_prefix(*action).is_some_and(is_below);
    if ACTIONS.iter().any(is_of_rbd) { Heard::Rbd } else { Heard::Other }
}

pub(super) struct Uevents {
    socket: AsyncFd<Readable>,
    buffer: Vec<u8>,
}

struct Readable(Socket);

impl AsRawFd for Readable {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Uevents {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_KOBJECT_UEVENT)?;
        socket.set_non_blocking(true)?;
        // Before the group, so that nothing else is queued. Without it there is only more to read.
        if let Err(error) = attach_filter(&socket, &filter()) {
            tracing::debug!(%error, "the socket for events of devices has no filter");
        }
        socket.bind(&SocketAddr::new(0, GROUP))?;
        // SAFETY: the descriptor is the one of the socket that is moved in, and stays open and the same until both are
        // dropped together.
        let socket = unsafe { AsyncFd::register_with_interest(Readable(socket), Interest::READABLE) }?;
        Ok(Self { socket, buffer: Vec::with_capacity(MESSAGE_MAX) })
    }

    pub(super) async fn next(&mut self) -> Heard {
        loop {
            let Ok(mut ready) = self.socket.readable().await else { return Heard::Closed };
            self.buffer.clear();
            let buffer = &mut self.buffer;
            let read = ready.try_io(|socket| socket.get_ref().0.recv_from(buffer, 0));
            match read {
                Ok(Ok((_, sender))) => return judge(sender.port_number(), &self.buffer),
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => return Heard::Lost,
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "the kernel's events of devices can no longer be read");
                    return Heard::Closed;
                }
                Err(_would_block) => {}
            }
        }
    }
}

/// Classic BPF: keeps a message that has `/devices/rbd` or `/devices/virtual/block/n` behind an action of one of the lengths: as
/// much of each as are whole words. A message that is too short for a load is left out by the kernel, so the short actions come first.
fn filter() -> Vec<libc::sock_filter> {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let words = |below: &[u8]| -> Vec<u32> {
        let word = |four: &[u8]| four.iter().fold(0, |word, byte| (word << 8) | u32::from(*byte));
        below.chunks_exact(4).map(word).collect()
    };
    let mut lengths: Vec<u32> = ACTIONS.iter().filter_map(|action| action.len().try_into().ok()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut program = Vec::new();
    let instruction = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    for (length, below) in lengths.iter().flat_map(|length| BELOW.map(|below| (*length, below))) {
        let words = words(below);
        let mut left: u8 = words.len().try_into().unwrap_or(0);
        for (word, at) in words.iter().zip((length..).step_by(4)) {
            program.push(instruction(LOAD, 0, at));
            // Past the other comparisons and the return of this one.
            left = left.saturating_sub(1);
            program.push(instruction(EQUAL, left * 2 + 1, *word));
        }
        program.push(instruction(RETURN, 0, u32::MAX));
    }
    program.push(instruction(RETURN, 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_tells_of_rbd_devices_counts() {
        for (port, message, expected) in [
            (0, &b"add@/devices/rbd/0\0ACTION=add\0"[..], Heard::Rbd),
            (0, b"remove@/devices/rbd/12/block/rbd12\0", Heard::Rbd),
            (0, b"change@/devices/rbd/0", Heard::Rbd),
            (0, b"change@/devices/virtual/block/nbd0\0ACTION=change\0", Heard::Rbd),
            (0, b"change@/devices/virtual/block/loop0\0", Heard::Other),
            (0, b"add@/devices/rbdx/0", Heard::Other),
            (0, b"add@/devices/virtual/net/veth1\0", Heard::Other),
            (0, b"libudev\0\xfe\xed\xca\xfe", Heard::Other),
            (0, b"add@", Heard::Other),
            (0, b"", Heard::Other),
            (4711, b"add@/devices/rbd/0\0", Heard::Refused),
            (4711, b"", Heard::Refused),
        ] {
            assert_eq!(judge(port, message), expected, "{}", String::from_utf8_lossy(message));
        }
    }

    /// The program as the kernel runs it (net/core/filter.c): a load beyond the message ends it with 0.
    fn keeps(message: &[u8]) -> bool {
        let program = filter();
        let (mut at, mut register) = (0, 0);
        loop {
            let libc::sock_filter { code, jf, k, .. } = program[at];
            at += 1;
            match code {
                0x20 => {
                    let from = usize::try_from(k).unwrap();
                    let Some(four) = message.get(from..from + 4) else { return false };
                    register = u32::from_be_bytes(four.try_into().unwrap());
                }
                0x15 if register != k => at += usize::from(jf),
                0x15 => {}
                0x06 => return k != 0,
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn the_filter_in_the_kernel_keeps_all_that_counts_and_little_else() {
        for action in ACTIONS {
            for path in [&b"/devices/rbd/0"[..], b"/devices/virtual/block/nbd12"] {
                let message = [action, path, b"\0ACTION=x\0"].concat();
                assert!(keeps(&message), "{}", String::from_utf8_lossy(&message));
                assert_eq!(judge(KERNEL, &message), Heard::Rbd);
            }
        }
        for message in [
            &b"add@/devices/virtual/net/veth1\0ACTION=add\0SUBSYSTEM=net\0"[..],
            b"remove@/devices/pci0000:00/0000:00:01.0\0",
            b"add@/devices/virtual/block/loop0\0ACTION=add\0",
            b"add@/devices",
            b"",
        ] {
            assert!(!keeps(message), "{}", String::from_utf8_lossy(message));
        }
    }

    #[tokio::test]
    async fn the_kernel_takes_the_filter_and_the_group() {
        let uevents = Uevents::open().unwrap();
        attach_filter(&uevents.socket.get_ref().0, &filter()).unwrap();
    }
}
