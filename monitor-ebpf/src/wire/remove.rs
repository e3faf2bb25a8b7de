//! The hook `remove`: a name that could not be removed or renamed because it is busy, most often because something is mounted
//! there; a mount that was refused because something else uses the device.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::TaskId;
use super::umount::{DirectoryRecord, MountTableRecord, PATH_CAPACITY};
use super::{Counter, Header, HookId};

const HOOK: HookId = HookId::new(4);

/// `Header::kind` of a [`RemoveRecord`].
pub const KIND_REMOVE: u32 = HOOK.kind(0);

/// System calls that are observed: index into [`RemoveOffsets::calls`], and into [`counter::BUSY`].
pub mod call {
    /// rmdir(2), which not every architecture has.
    pub const RMDIR: usize = 0;
    /// unlink(2), as well.
    pub const UNLINK: usize = 1;
    /// unlinkat(2).
    pub const UNLINKAT: usize = 2;
    /// rename(2), which not every architecture has.
    pub const RENAME: usize = 3;
    /// renameat(2), as well.
    pub const RENAMEAT: usize = 4;
    /// renameat2(2).
    pub const RENAMEAT2: usize = 5;
    /// mount(2).
    pub const MOUNT: usize = 6;
    /// fsconfig(2), since 5.2: its commands that make a file system to be mounted, and no other one.
    pub const FSCONFIG: usize = 7;
    /// How many there are.
    pub const COUNT: usize = 8;
}

/// What the programs count.
pub mod counter {
    use super::{Counter, HOOK, call};

    /// Refused with EBUSY by the kernel, by [`call`].
    pub const BUSY: [Counter; call::COUNT] = [
        HOOK.counter(0),
        HOOK.counter(1),
        HOOK.counter(2),
        HOOK.counter(3),
        HOOK.counter(4),
        HOOK.counter(5),
        HOOK.counter(14),
        HOOK.counter(16),
    ];
    /// Records for which the ring had no room.
    pub const RING_FULL: Counter = HOOK.counter(6);
    /// The same of attempts of unprivileged users.
    pub const USERS_RING_FULL: Counter = HOOK.counter(7);
    /// Those that returned EBUSY without having been seen to begin: it is not known that the kernel refused them. Of fsconfig(2) also
    /// those of which the context had failed before.
    pub const UNPROVEN: [Counter; call::COUNT] = [
        HOOK.counter(8),
        HOOK.counter(9),
        HOOK.counter(10),
        HOOK.counter(11),
        HOOK.counter(12),
        HOOK.counter(13),
        HOOK.counter(15),
        HOOK.counter(17),
    ];
}

/// Of the type of a file system, with a NUL.
pub const FSTYPE_CAPACITY: usize = 16;

/// A refused call; only the used bytes of the paths are sent.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RemoveRecord {
    /// `KIND_REMOVE`.
    pub header: Header,
    /// The caller.
    pub task: TaskId,
    /// The caller's mount namespace.
    pub mntns: u32,
    /// `TaskRecord::root` of the caller.
    pub task_root: u32,
    /// Number of the system call on this architecture.
    pub number: u32,
    /// Flags of the call; 0 where it has none. Of fsconfig(2) `MS_RDONLY`, and its command where that is
    /// `FSCONFIG_CMD_CREATE_EXCL`.
    pub flags: u32,
    /// `umount::call_mark::START_UNSEEN`, or 0.
    pub marks: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes of the path, without a NUL; 0 where it could not be read, and of fsconfig(2), which is given none.
    pub path_len: u32,
    /// Bytes of the second path of a rename, of what was to be mounted, or of the options of mount(2) for an overlay, which follow the
    /// first.
    pub second_len: u32,
    /// The type of what was to be mounted, up to a NUL; it may be cut.
    pub fstype: [u8; FSTYPE_CAPACITY],
    /// The mounts that the caller sees.
    pub table: MountTableRecord,
    /// The caller's root directory.
    pub root: DirectoryRecord,
    /// Where the path starts from if it is relative: the current directory, or that of the descriptor that was given.
    pub start: DirectoryRecord,
    /// The same of the second path.
    pub second_start: DirectoryRecord,
    /// Both as the caller gave them.
    pub paths: [u8; 2 * PATH_CAPACITY],
}

impl RemoveRecord {
    /// Bytes before the paths.
    pub const HEAD: usize = size_of::<Self>() - 2 * PATH_CAPACITY;
}

const _: () = assert!(RemoveRecord::HEAD == 112 + FSTYPE_CAPACITY + 40 + 3 * size_of::<DirectoryRecord>());

/// Where the kernel keeps what only this hook reads, and the numbers of the system calls.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct RemoveOffsets {
    pub task_files: u32,
    pub files_fdt: u32,
    pub fdtable_fd: u32,
    pub fdtable_max_fds: u32,
    pub file_private_data: u32,
    /// Those of `struct fs_context` are `MISSING` before 5.2.
    pub fs_context_fs_type: u32,
    pub fs_context_source: u32,
    pub fs_context_sb_flags: u32,
    pub fs_context_phase: u32,
    /// The phase `FS_CONTEXT_FAILED`.
    pub phase_failed: u32,
    pub file_system_type_name: u32,
    /// The pointer to `struct pt_regs` in the context of a tracepoint of system calls (`syscall_tp_t`), which only kernels
    /// before 6.7 have; `MISSING` where the helper `bpf_task_pt_regs` gives it.
    pub context_registers: u32,
    /// Number and result of the call in `struct pt_regs`.
    pub registers_number: u32,
    pub registers_result: u32,
    /// The first five arguments in `struct pt_regs`, as they are when the call returns.
    pub arguments: [u32; 5],
    /// By [`call`]; `MISSING` for what this architecture does not have.
    pub calls: [u32; call::COUNT],
}

impl RemoveOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 27]);
}
