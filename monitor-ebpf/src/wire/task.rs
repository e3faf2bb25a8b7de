//! Who is current.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Header;

/// `TASK_COMM_LEN`.
pub const COMM_LEN: usize = 16;
/// Bytes of arguments that are captured.
pub const ARGV_CAPACITY: usize = 512;
/// Bytes of one component of a path, with its NUL: `cri-containerd-<64 hex>.scope` needs 86.
pub const NAME_CAPACITY: usize = 96;
/// Components of a path that are captured.
pub const NAMES_DEPTH: usize = 10;

/// The components of a path from the leaf to the root, each NUL-terminated. Slots of fixed size, because
/// packing them would take branches that multiply what the verifier has to walk.
pub type Names = [[u8; NAME_CAPACITY]; NAMES_DEPTH];

/// Identity of the current task, in every record that has an actor.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TaskId {
    /// Thread group id; 0 where there is no actor.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// `start_boottime` of the group leader.
    pub start_ns: u64,
    /// `self_exec_id`, 0 where the kernel's type information does not have it.
    pub exec_id: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of the thread, NUL-terminated.
    pub comm: [u8; COMM_LEN],
}

/// An ancestor.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct AncestorRecord {
    /// Thread group id; 0 ends the list.
    pub tgid: u32,
    /// Zero.
    pub reserved: u32,
    /// `start_boottime`.
    pub start_ns: u64,
    /// Command name, NUL-terminated.
    pub comm: [u8; COMM_LEN],
}

/// The details of a task, sent once per identity.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TaskRecord {
    /// `KIND_TASK`.
    pub header: Header,
    /// Identity.
    pub task: TaskId,
    /// User id in the initial user namespace.
    pub uid: u32,
    /// Network namespace.
    pub netns: u32,
    /// Mount namespace.
    pub mntns: u32,
    /// Bytes of `argv` that count.
    pub argv_len: u32,
    /// Parent first.
    pub ancestors: [AncestorRecord; 3],
    /// Arguments, NUL-separated, cut.
    pub argv: [u8; ARGV_CAPACITY],
    /// Executable.
    pub exe: Names,
    /// Control group of a v1 controller.
    pub cgroup_v1: Names,
    /// Control group of the v2 hierarchy.
    pub cgroup_v2: Names,
}

const _: () = assert!(size_of::<TaskId>() == 40);
const _: () = assert!(size_of::<AncestorRecord>() == 32);
const _: () = assert!(size_of::<TaskRecord>() == 16 + 40 + 16 + 96 + 512 + 3 * 960);
