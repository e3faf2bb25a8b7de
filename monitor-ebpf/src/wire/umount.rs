//! The hook `umount`: an umount(2) that was refused because the mount is busy, or that succeeded.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::TaskId;
use super::{Counter, Header, HookId};

const HOOK: HookId = HookId::new(2);

/// `Header::kind` of an [`UmountRecord`].
pub const KIND_UMOUNT: u32 = HOOK.kind(0);

/// What the programs count.
pub mod counter {
    use super::{Counter, HOOK};

    /// umount(2) refused with EBUSY.
    pub const BUSY: Counter = HOOK.counter(0);
    /// Records for which the ring had no room.
    pub const RING_FULL: Counter = HOOK.counter(1);
    /// Calls that could not be remembered from their start to their end.
    pub const PENDING_FULL: Counter = HOOK.counter(2);
    /// Calls whose path could not be read.
    pub const PATH_UNREADABLE: Counter = HOOK.counter(3);
}

/// `PATH_MAX`.
pub const PATH_CAPACITY: usize = 4096;

/// An umount(2); only the first `path_len` bytes of the path are sent.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct UmountRecord {
    /// `KIND_UMOUNT`.
    pub header: Header,
    /// The caller.
    pub task: TaskId,
    /// The caller's mount namespace.
    pub mntns: u32,
    /// Flags of the call.
    pub flags: u32,
    /// What the call returned: 0 or a negative errno.
    pub result: i32,
    /// Bytes of the path, without the NUL.
    pub path_len: u32,
    /// The path as the caller gave it.
    pub path: [u8; PATH_CAPACITY],
}

impl UmountRecord {
    /// Bytes before the path.
    pub const HEAD: usize = size_of::<Self>() - PATH_CAPACITY;
}

const _: () = assert!(UmountRecord::HEAD == 96);
