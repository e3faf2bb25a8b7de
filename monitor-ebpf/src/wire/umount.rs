//! The hook `umount`: an umount(2) that was refused because the mount is busy, or that succeeded.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::{PathNames, TaskId};
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
}

/// What is not certain about the path of a call.
pub mod call_mark {
    /// The start of the call was not seen, so neither was its path.
    pub const START_UNSEEN: u32 = 1;
    /// The path could not be read when the call ended; there is none.
    pub const PATH_UNREAD: u32 = 2;
    /// The path was another one when the call began.
    pub const PATH_CHANGED: u32 = 4;
    /// The path could not be read when the call began.
    pub const PATH_READ_LATE: u32 = 8;
}

/// `PATH_MAX`.
pub const PATH_CAPACITY: usize = 4096;

/// A directory of the caller, from the topmost mount of its mount namespace.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct DirectoryRecord {
    /// Id of the mount that it is on; 0 where it was not captured.
    pub mount_id: u32,
    /// Bits of [`path_mark`](super::path_mark) about the names; `OTHER_TREE` if they are complete.
    pub marks: u32,
    /// From the leaf to the top.
    pub names: PathNames,
}

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
    /// Bits of [`call_mark`].
    pub marks: u32,
    /// Zero.
    pub reserved: u32,
    /// Not 0 if the root directory was replaced during the call.
    pub root_changed: u64,
    /// Not 0 if the current directory was.
    pub cwd_changed: u64,
    /// The caller's root directory.
    pub root: DirectoryRecord,
    /// The caller's current directory.
    pub cwd: DirectoryRecord,
    /// The path as the caller gave it.
    pub path: [u8; PATH_CAPACITY],
}

impl UmountRecord {
    /// Bytes before the path.
    pub const HEAD: usize = size_of::<Self>() - PATH_CAPACITY;
}

const _: () = assert!(size_of::<DirectoryRecord>() == 8 + 16 * 96);
const _: () = assert!(UmountRecord::HEAD == 120 + 2 * size_of::<DirectoryRecord>());

/// Where the kernel keeps what only this hook reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct UmountOffsets {
    pub task_fs: u32,
    pub fs_root: u32,
    pub fs_pwd: u32,
    pub mount_id: u32,
}

impl UmountOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 4]);
}
