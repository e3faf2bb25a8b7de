//! The hook `neighbor`: a change of a neighbor entry.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::TaskId;
use super::{Counter, Header, HookId};

const HOOK: HookId = HookId::new(1);

/// `Header::kind` of a [`NeighborRecord`].
pub const KIND_NEIGHBOR: u32 = HOOK.kind(0);

/// What the programs count.
pub mod counter {
    use super::{Counter, HOOK};

    /// Permanent entries deleted by request.
    pub const PERMANENT_ADMIN: Counter = HOOK.counter(0);
    /// Permanent entries removed with their interface, address or namespace.
    pub const PERMANENT_COLLATERAL: Counter = HOOK.counter(1);
    /// Resolved entries deleted by request.
    pub const LEARNED_ADMIN: Counter = HOOK.counter(2);
    /// Resolved entries removed with their interface, or garbage-collected.
    pub const LEARNED_COLLATERAL: Counter = HOOK.counter(3);
    /// Entries without resolution deleted by request.
    pub const NOARP_ADMIN: Counter = HOOK.counter(4);
    /// Entries without resolution removed with their interface.
    pub const NOARP_COLLATERAL: Counter = HOOK.counter(5);
    /// Records for which the ring had no room.
    pub const RING_FULL: Counter = HOOK.counter(6);
    /// The same of what unprivileged users do among themselves.
    pub const USERS_RING_FULL: Counter = HOOK.counter(7);
    /// Entries of known gateways removed with their interface, address or namespace while something used them: the kernel
    /// has put away what they were before.
    pub const UNKNOWN_COLLATERAL: Counter = HOOK.counter(8);
    /// Entries of known gateways, not permanent ones, that were set by request.
    pub const GATEWAY_SET: Counter = HOOK.counter(9);
    /// Entries of known gateways that were resolved.
    pub const GATEWAY_RESOLVED: Counter = HOOK.counter(10);
    /// Records of both for which the ring had no room.
    pub const GATEWAY_SET_RING_FULL: Counter = HOOK.counter(11);
}

/// Longest hardware address that is carried: InfiniBand's 20 bytes (the kernel's `MAX_ADDR_LEN` is 32).
pub const LLADDR_CAPACITY: usize = 20;

/// Values of [`NeighborRecord::operation`].
pub mod operation {
    /// A permanent entry was deleted by request.
    pub const DELETED: u8 = 1;
    /// A permanent entry got another link-layer address or lost its permanence.
    pub const CHANGED: u8 = 2;
    /// Resolution or probing gave up.
    pub const FAILED: u8 = 3;
    /// A permanent entry, or that of a known gateway, went together with its interface, address or namespace.
    pub const COLLATERAL: u8 = 4;
    /// The entry of a known gateway, which was not permanent, got an address or another state by request.
    pub const SET: u8 = 5;
    /// The entry of a known gateway, which had no address, was resolved.
    pub const RESOLVED: u8 = 6;
    /// A process has made so many entries within a minute while their table was nearly full: `netlink_port` has their number.
    pub const CREATED: u8 = 7;
}

/// Bits of [`NeighborRecord::device_marks`].
pub mod device_mark {
    /// The interface is queued for deletion (`net_device.unreg_list` is linked).
    pub const UNREGISTERING: u8 = 1;
    /// The interface still has an IPv4 address (`in_device.ifa_list`).
    pub const HAS_ADDRESS: u8 = 2;
    /// Nothing refers to its namespace any more: the namespace has ended, and is about to be cleaned up.
    pub const NETNS_ENDED: u8 = 4;
    /// Something does. Neither where this kernel's counter was not found.
    pub const NETNS_ALIVE: u8 = 8;
    /// A user made its namespace: another user namespace than the host's owns it, and no container that the daemon knows
    /// lives in it.
    pub const NETNS_OF_USER: u8 = 16;
}

/// A change of a neighbor entry; at most 200 bytes, the task's details come in a record of their own.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NeighborRecord {
    /// `KIND_NEIGHBOR`. Its detail is the lower half of the cookie of the namespace (`SO_NETNS_COOKIE`), which no other one
    /// gets: the number `netns` is another one's as soon as the namespace has ended. 0 where the kernel has none.
    pub header: Header,
    /// Current task; all zero where the current task has nothing to do with it.
    pub task: TaskId,
    /// Namespace of the interface.
    pub netns: u32,
    /// Interface index.
    pub ifindex: u32,
    /// `net_device.flags`.
    pub device_flags: u32,
    /// Netlink port id of the request, 0 for ioctl and kernel; see [`operation::CREATED`].
    pub netlink_port: u32,
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
    /// One of [`operation`].
    pub operation: u8,
    /// `neighbour.nud_state` before; 0 of one that went with its interface and may have been any.
    pub old_state: u8,
    /// State after.
    pub new_state: u8,
    /// Bytes of the hardware addresses that count.
    pub lladdr_len: u8,
    /// Bits of [`device_mark`].
    pub device_marks: u8,
    /// Whether `new_lladdr` is set.
    pub has_new_lladdr: u8,
    /// Protocol address, network order; IPv4 in the first four bytes.
    pub address: [u8; 16],
    /// Hardware address of the entry before.
    pub lladdr: [u8; LLADDR_CAPACITY],
    /// Hardware address of the request, where the kernel takes it.
    pub new_lladdr: [u8; LLADDR_CAPACITY],
    /// Hardware address of the interface now.
    pub device_lladdr: [u8; LLADDR_CAPACITY],
    /// `TaskRecord::root` of the current task.
    pub task_root: u32,
    /// Interface name, NUL-terminated.
    pub ifname: [u8; 16],
}

const _: () = assert!(size_of::<NeighborRecord>() == 200);

/// Where the kernel keeps what the programs read: byte offsets from the start of the structure named first. The
/// daemon resolves them from the running kernel's type information before it loads the programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct NeighborOffsets {
    pub neighbour_dev: u32,
    pub neighbour_tbl: u32,
    pub neighbour_nud_state: u32,
    pub neighbour_dead: u32,
    pub neighbour_ha: u32,
    pub neighbour_primary_key: u32,
    pub neighbour_output: u32,
    pub neighbour_ops: u32,
    pub neigh_ops_output: u32,
    pub neigh_ops_connected_output: u32,
    pub neigh_table_family: u32,
    pub neigh_table_gc_entries: u32,
    pub neigh_table_gc_thresh2: u32,
    pub net_device_ifindex: u32,
    pub net_device_flags: u32,
    pub net_device_name: u32,
    pub net_device_nd_net: u32,
    pub net_device_addr_len: u32,
    pub net_device_dev_addr: u32,
    pub net_device_unreg_list: u32,
    pub net_device_ip_ptr: u32,
    pub in_device_ifa_list: u32,
    pub net_ns_inum: u32,
    pub net_user_ns: u32,
    pub net_cookie: u32,
    /// The references that keep a namespace alive.
    pub net_references: u32,
    /// Not an offset: the bit `NEIGH_UPDATE_F_ADMIN`, 7 since 5.16, 31 before.
    pub admin_flag: u32,
    /// Not an offset: the bits of requests that make the kernel resolve an entry itself, which takes its permanence:
    /// `NEIGH_UPDATE_F_USE` and `NEIGH_UPDATE_F_MANAGED` since 5.16, none before.
    pub resolve_flags: u32,
}

impl NeighborOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 28]);
}
