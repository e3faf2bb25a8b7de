//! The hook `link`, too: who had a route, an address or a routing rule added or deleted.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Header;
use super::link::HOOK;
use super::task::TaskId;

/// `Header::kind` of a [`RouteRecord`].
pub const KIND_ROUTE: u32 = HOOK.kind(1);

/// Bytes of a message at most: a route of IPv6 with one next hop has 136, a rule by all addresses and interfaces 156. Nobody is
/// named for a longer one.
pub const MESSAGE_CAPACITY: usize = 192;

/// A message of rtnetlink about a route, an address or a rule, and the task that had it sent.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RouteRecord {
    /// `KIND_ROUTE`. Its detail is that of a `NeighborRecord`.
    pub header: Header,
    /// Current task.
    pub task: TaskId,
    /// Namespace of the route, address or rule.
    pub netns: u32,
    /// `TaskRecord::root` of the current task.
    pub task_root: u32,
    /// Records about that namespace that were not written, for want of room or of a budget, as far as the program still
    /// counts them: another number than before tells that some are missing.
    pub missing: u32,
    /// Bytes of the message.
    pub message_len: u32,
    /// The message as it is sent (`struct nlmsghdr` and what follows), then zeros.
    pub message: [u8; MESSAGE_CAPACITY],
}

const _: () = assert!(size_of::<RouteRecord>() == 288);
