//! An unmount that was refused because the mount is busy, or that succeeded.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Header, TaskId};

/// `PATH_MAX`.
pub const PATH_CAPACITY: usize = 4096;

/// An umount(2); only the first `path_len` bytes of the path are sent.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct MountRecord {
    /// `KIND_MOUNT`.
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

impl MountRecord {
    /// Bytes before the path.
    pub const HEAD: usize = size_of::<Self>() - PATH_CAPACITY;
}

const _: () = assert!(MountRecord::HEAD == 72);
