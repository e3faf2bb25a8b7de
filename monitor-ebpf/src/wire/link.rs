//! The hook `link`: who opened, closed, deleted or moved an interface.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::TaskId;
use super::{Counter, Header, HookId};

pub(super) const HOOK: HookId = HookId::new(5);

/// `Header::kind` of a [`LinkRecord`].
pub const KIND_LINK: u32 = HOOK.kind(0);

/// What the programs count.
pub mod counter {
    use super::{Counter, HOOK};

    /// Records for which the ring had no room: of interfaces, routes, addresses and sysctls.
    pub const RING_FULL: Counter = HOOK.counter(0);
}

/// Values of [`LinkRecord::operation`].
pub mod operation {
    /// It was set up for the first time since it is in its namespace.
    pub const OPENED: u8 = 1;
    /// It was up, and is set down: by request, or to be deleted or moved.
    pub const CLOSED: u8 = 2;
    /// It is deleted.
    pub const DELETED: u8 = 3;
    /// It is moved to another namespace.
    pub const MOVED: u8 = 4;
}

/// An act of the current task on an interface.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LinkRecord {
    /// `KIND_LINK`. Its detail is that of a `NeighborRecord`.
    pub header: Header,
    /// Current task.
    pub task: TaskId,
    /// Namespace that the interface is in, or leaves.
    pub netns: u32,
    /// Interface index there.
    pub ifindex: u32,
    /// `TaskRecord::root` of the current task.
    pub task_root: u32,
    /// Records about that namespace that were not written, for want of room or of a budget, as far as the program still
    /// counts them: another number than before tells that some are missing.
    pub missing: u32,
    /// One of [`operation`].
    pub operation: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

const _: () = assert!(size_of::<LinkRecord>() == 104);

/// Where the kernel keeps what the programs read.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct LinkOffsets {
    pub qdisc_dev_queue: u32,
    pub qdisc_flags: u32,
    pub netdev_queue_dev: u32,
    /// `qdisc_sleeping`: what is attached to the queue, even while the interface is down.
    pub netdev_queue_qdisc: u32,
    pub net_device_tx: u32,
    pub net_device_qdisc: u32,
    pub net_device_state: u32,
    pub net_device_flags: u32,
    /// `dev_list.prev`.
    pub net_device_listed: u32,
    pub net_device_unreg_list: u32,
    pub net_device_ifindex: u32,
    pub net_device_nd_net: u32,
    pub net_ns_inum: u32,
    pub net_user_ns: u32,
    pub net_cookie: u32,
    /// Of a message that is sent, for [`super::route`].
    pub sk_buff_data: u32,
}

impl LinkOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 16]);
}
