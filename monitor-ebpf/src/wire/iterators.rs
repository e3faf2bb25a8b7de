//! What the iterators tell: who is there, and who can hold a mount at all. They are no hook: the daemon reads them when it looks
//! for holders, and what they write goes to that reader, not to the ring.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A task, as `iter_task` writes it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ListedTask {
    /// Process; [`END`] in the last record.
    pub tgid: u32,
    /// Thread.
    pub tid: u32,
    /// Mount namespace, inode number; 0 of a task that has ended.
    pub mntns: u32,
    /// Effective user.
    pub uid: u32,
    /// File system of its executable, by the kernel's number; 0 where it has none.
    pub exe: u32,
    /// The same of its current directory.
    pub cwd: u32,
    /// The same of its root directory.
    pub root: u32,
    /// Padding.
    pub reserved: u32,
}

const _: () = assert!(size_of::<ListedTask>() == 32);

/// A socket in another network namespace than its task, as `iter_task_file` writes it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ListedSocket {
    /// Process; [`END`] in the last record.
    pub tgid: u32,
    /// Thread in whose list of descriptors it is.
    pub tid: u32,
    /// Its descriptor.
    pub fd: u32,
    /// Its network namespace, inode number.
    pub netns: u32,
}

const _: () = assert!(size_of::<ListedSocket>() == 16);

/// In place of a process at the end of a list, which is not whole without it.
pub const END: u32 = u32::MAX;
/// In place of a process where it is not known what its reader is looking for.
pub const NOT_ASKED: u32 = 0;

/// What a reader is looking for, by its thread.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Wanted {
    /// File system, by the kernel's number; of [`sought::SOCKETS`] the network namespace that is left out.
    pub device: u32,
    /// One of [`sought`].
    pub sought: u32,
    /// The process that was written last: one that is involved is written once.
    pub last: u32,
    /// The network namespace of the socket that was.
    pub last_netns: u32,
}

const _: () = assert!(size_of::<Wanted>() == 16);

/// Readers at a time; there are far fewer.
pub const READERS: u32 = 256;

/// What of a process is looked for.
pub mod sought {
    /// Files on a file system: open, mapped, or bound to by a socket; and open namespaces.
    pub const FILES: u32 = 1;
    /// What can have files that no list of open files shows: sockets in which some wait, and rings.
    pub const HIDDEN: u32 = 2;
    /// Sockets in another network namespace than their task.
    pub const SOCKETS: u32 = 3;
}

/// Where the kernel keeps what the iterators read.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct IteratorOffsets {
    pub task_tgid: u32,
    pub task_pid: u32,
    pub task_nsproxy: u32,
    pub task_mm: u32,
    pub task_fs: u32,
    pub task_real_cred: u32,
    pub cred_euid: u32,
    pub nsproxy_mnt_ns: u32,
    pub nsproxy_net_ns: u32,
    pub mnt_namespace_inum: u32,
    pub mm_exe_file: u32,
    pub fs_root_mnt: u32,
    pub fs_pwd_mnt: u32,
    pub vfsmount_sb: u32,
    pub super_block_dev: u32,
    pub super_block_magic: u32,
    pub file_path_mnt: u32,
    pub file_path_dentry: u32,
    pub file_private_data: u32,
    pub dentry_name: u32,
    pub socket_sk: u32,
    pub sock_family: u32,
    pub sock_state: u32,
    pub sock_net: u32,
    pub net_ns_inum: u32,
    pub sock_queue_len: u32,
    pub unix_sock_path_mnt: u32,
    pub unix_sock_sent_files: u32,
    pub vma_file: u32,
}

impl IteratorOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 29]);
}
