//! The hook `umount`: an umount(2) that was refused because the mount is busy, or that succeeded.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::{PathNames, TaskId};
use super::{Counter, Header, HookId};

const HOOK: HookId = HookId::new(2);

/// `Header::kind` of an [`UmountRecord`].
pub const KIND_UMOUNT: u32 = HOOK.kind(0);
/// The same of one that was written without the kernel's types. Of its task only the ids, the real user and the name are known,
/// the last being that of the thread; of the rest the call's own, its time and its path.
pub const KIND_UMOUNT_UNTYPED: u32 = HOOK.kind(1);

/// What the programs count.
pub mod counter {
    use super::{Counter, HOOK};

    /// umount(2) refused with EBUSY by the kernel.
    pub const BUSY: Counter = HOOK.counter(0);
    /// Records for which the ring had no room.
    pub const RING_FULL: Counter = HOOK.counter(1);
    /// The same of attempts of unprivileged users.
    pub const USERS_RING_FULL: Counter = HOOK.counter(2);
    /// Calls that returned as if a mount were busy or gone, of which it is not known that the kernel said so: their start was not
    /// seen, or their caller may not unmount.
    pub const UNPROVEN: Counter = HOOK.counter(3);
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

/// What the map `MOUNT_TABLE` holds of the table that was asked for.
pub mod table_state {
    /// With which it changed last.
    pub const EVENT: u32 = 0;
    /// 1 if its namespace still exists and it does not change just now, else 0.
    pub const IS_KNOWN: u32 = 1;
}

/// Entries of that map.
pub const TABLE_STATE: u32 = 2;

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

/// The mount table of the caller's namespace, so that it can be told later whether it still is the one that refused.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct MountTableRecord {
    /// Stands for the namespace: its address, made unreadable by a key of the daemon's.
    pub handle: u64,
    /// Number of the namespace that is never reused.
    pub id: u64,
    /// The event with which the table changed last (`mnt_namespace::event`).
    pub event: u64,
    /// Highest unique id of a mount in it; 0 before 6.8.
    pub newest: u64,
    /// Not 0 if it changed during the call: it is not known which of its states refused.
    pub changed: u32,
    /// Padding.
    pub reserved: u32,
}

/// A mount, as the kernel numbers it.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct MountName {
    /// Never reused; 0 before 6.8.
    pub unique: u64,
    /// Reused as soon as the mount is gone; 0 where none was captured.
    pub mount_id: u32,
    /// Padding.
    pub reserved: u32,
}

impl MountName {
    /// None was captured.
    pub const NONE: Self = zerocopy::transmute!([0u64; 2]);
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
    /// `TaskRecord::root` of the caller.
    pub task_root: u32,
    /// Not 0 if the root directory was replaced during the call.
    pub root_changed: u64,
    /// Not 0 if the current directory was.
    pub cwd_changed: u64,
    /// What the kernel found at the path.
    pub target: MountName,
    /// When the call began, `CLOCK_BOOTTIME`; 0 if its start was not seen.
    pub began: u64,
    /// The mounts that the caller sees.
    pub table: MountTableRecord,
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
const _: () = assert!(UmountRecord::HEAD == 120 + 16 + 8 + 40 + 2 * size_of::<DirectoryRecord>());

/// Where the kernel keeps what only this hook reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct UmountOffsets {
    pub task_fs: u32,
    pub fs_root: u32,
    pub fs_pwd: u32,
    pub mount_id: u32,
    pub task_nsproxy: u32,
    pub nsproxy_mnt_ns: u32,
    pub mnt_namespace_id: u32,
    pub mnt_namespace_event: u32,
    pub mnt_namespace_last_node: u32,
    pub mnt_namespace_root_node: u32,
    pub rb_node_right: u32,
    pub mount_node: u32,
    pub mount_id_unique: u32,
}

impl UmountOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 13]);
}
