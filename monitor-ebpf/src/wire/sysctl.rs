//! The hook `sysctl`: who writes a sysctl of the network.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::TaskId;
use super::{Header, HookId};

const HOOK: HookId = HookId::new(6);

/// `Header::kind` of a [`SysctlRecord`].
pub const KIND_SYSCTL: u32 = HOOK.kind(0);

/// Bytes of a name: `net/ipv6/neigh/`, an interface and `/base_reachable_time_ms` take 53.
pub const NAME_CAPACITY: usize = 64;
/// Bytes of a value, the terminating NUL included. They are numbers.
pub const VALUE_CAPACITY: usize = 16;

/// A sysctl of `net.ipv4` or `net.ipv6` that the current task writes.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SysctlRecord {
    /// `KIND_SYSCTL`. Its detail is that of a `NeighborRecord`.
    pub header: Header,
    /// Current task. The sysctl is one of its network namespace, unless it was opened in another one.
    pub task: TaskId,
    /// `TaskRecord::root` of the current task.
    pub task_root: u32,
    /// Records about that namespace that were not written, as in a `LinkRecord`.
    pub missing: u32,
    /// Path below `/proc/sys`, up to the first NUL.
    pub name: [u8; NAME_CAPACITY],
    /// The value before, up to the first NUL; a line break may end it.
    pub old: [u8; VALUE_CAPACITY],
    /// What is written, likewise.
    pub new: [u8; VALUE_CAPACITY],
}

const _: () = assert!(size_of::<SysctlRecord>() == 184);

/// Where the kernel keeps what the program reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct SysctlOffsets {
    pub net_user_ns: u32,
    pub net_cookie: u32,
}

impl SysctlOffsets {
    /// What the program holds until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 2]);
}
