//! The current task, which every hook sends.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Header, SHARED};

/// `Header::kind` of a [`TaskRecord`].
pub const KIND_TASK: u32 = SHARED.kind(0);

/// What is counted about tasks.
pub mod counter {
    use super::SHARED;
    use crate::Counter;

    /// Records for which the ring had no room.
    pub const RING_FULL: Counter = SHARED.counter(0);
    /// The same of unprivileged users who act among themselves.
    pub const USERS_RING_FULL: Counter = SHARED.counter(6);
}

/// `TASK_COMM_LEN`.
pub const COMM_LEN: usize = 16;
/// Bytes of arguments that are captured.
pub const ARGV_CAPACITY: usize = 512;
/// Bytes of one component of a path, with its NUL: `cri-containerd-<64 hex>.scope` needs 86.
pub const NAME_CAPACITY: usize = 96;
/// Components of a path that are captured.
pub const NAMES_DEPTH: usize = 10;

/// The components of a path from the leaf to the root, each NUL-terminated; one that fills its slot goes on in the next.
/// Slots of fixed size, because packing them would take branches that multiply what the verifier has to walk.
pub type Names = [[u8; NAME_CAPACITY]; NAMES_DEPTH];

/// Who may make control groups in each directory of a path, slot by slot as the [`Names`] are.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Makers {
    /// Owner of the directory, in the initial user namespace.
    pub owners: [u32; NAMES_DEPTH],
    /// Its mode; 0 above the root.
    pub modes: [u16; NAMES_DEPTH],
}

/// Components of the path of an executable that are captured, and mounts that are crossed on its way.
pub const PATH_DEPTH: usize = 16;

/// The components of a path from the leaf to a root, each NUL-terminated; empty where a mount is crossed, and above
/// the end. Whether the root was reached is in the [`path_mark`](super::path_mark)s beside it.
pub type PathNames = [[u8; NAME_CAPACITY]; PATH_DEPTH];

/// Identity of the current task, and all of it that can change between two acts, in every record that has an actor.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TaskId {
    /// `start_boottime` of the group leader.
    pub start_ns: u64,
    /// Thread group id; 0 where there is no actor.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// `self_exec_id`, 0 where the kernel's type information does not have it.
    pub exec_id: u32,
    /// Real user id in the initial user namespace.
    pub uid: u32,
    /// Effective user id in the initial user namespace.
    pub euid: u32,
    /// User namespace.
    pub userns: u32,
    /// Network namespace; 0 while the task exits.
    pub netns: u32,
    /// Mount namespace; 0 while the task exits.
    pub mntns: u32,
    /// Low half of the kernfs id of the control group of a v1 controller, which is what counts up.
    pub cgroup_v1: u32,
    /// The same in the v2 hierarchy.
    pub cgroup_v2: u32,
    /// Name of the group leader, which is that of the program, NUL-terminated: any thread can have one of its own.
    pub comm: [u8; COMM_LEN],
}

/// Ancestors that are captured.
pub const ANCESTORS: usize = 5;

/// The details of a task are sent again after those of this many others, so that a reader which keeps the newest ones
/// never lacks them.
pub const RESEND_AFTER: u64 = 448;

/// What a process is for those below it.
pub mod process_flag {
    /// It adopts orphans as the init of its pid namespace, or ends.
    pub const INIT: u32 = 1;
    /// It adopts orphans (`PR_SET_CHILD_SUBREAPER`).
    pub const SUBREAPER: u32 = 2;
    /// One above it adopted orphans when it was started, or has done so since.
    pub const BELOW_SUBREAPER: u32 = 4;
    /// It is a thread of the kernel.
    pub const KERNEL: u32 = 8;
    /// Its first thread ends or has ended.
    pub const LEADER_EXITS: u32 = 16;
}

/// An ancestor.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct AncestorRecord {
    /// Thread group id; 0 ends the list.
    pub tgid: u32,
    /// Bits of [`process_flag`].
    pub flags: u32,
    /// `start_boottime`.
    pub start_ns: u64,
    /// Command name, NUL-terminated.
    pub comm: [u8; COMM_LEN],
    /// Programs that it has executed, with those before it was forked.
    pub exec_id: u32,
    /// The same of whoever forked the process below, at that moment.
    pub forked_at: u32,
    /// Not 0 if the parent of the process below is a thread of it other than the first.
    pub by_other_thread: u32,
    /// Real user id in the initial user namespace, when these details are sent.
    pub uid: u32,
    /// Control group as in [`TaskId::cgroup_v1`], when these details are sent.
    pub cgroup_v1: u32,
    /// The same in the v2 hierarchy.
    pub cgroup_v2: u32,
}

/// The details of a task, sent once per program, mount namespace, root directory and control groups.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct TaskRecord {
    /// `KIND_TASK`.
    pub header: Header,
    /// Identity.
    pub task: TaskId,
    /// Bytes of `argv` that count.
    pub argv_len: u32,
    /// Bits of [`path_mark`](super::path_mark) about `exe`.
    pub exe_marks: u32,
    /// Bits of [`process_flag`] about the task itself.
    pub flags: u32,
    /// Root directory of the group leader, folded; 0 once it has given up its file systems.
    pub root: u32,
    /// Parent first.
    pub ancestors: [AncestorRecord; ANCESTORS],
    /// Arguments, NUL-separated, cut.
    pub argv: [u8; ARGV_CAPACITY],
    /// Executable, as seen from the root directory of the task.
    pub exe: PathNames,
    /// Control group of a v1 controller.
    pub cgroup_v1: Names,
    /// Control group of the v2 hierarchy.
    pub cgroup_v2: Names,
    /// Who may make names in `cgroup_v1`.
    pub makers_v1: Makers,
    /// Who may make names in `cgroup_v2`.
    pub makers_v2: Makers,
}

const _: () = assert!(size_of::<TaskId>() == 64);
const _: () = assert!(size_of::<AncestorRecord>() == 56);
const _: () = assert!(size_of::<TaskRecord>() == 16 + 64 + 16 + 5 * 56 + 512 + 16 * 96 + 2 * 960 + 2 * 60);

/// Where the kernel keeps what is read of a task: byte offsets from the start of the structure named first. The
/// daemon resolves them from the running kernel's type information before it loads the programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct TaskOffsets {
    /// Not 0 if the kernel has the helper `bpf_get_current_task_btf`.
    pub helper_current_task_btf: u32,
    pub net_ns_inum: u32,
    pub task_flags: u32,
    pub task_group_leader: u32,
    pub task_real_parent: u32,
    pub task_tgid: u32,
    pub task_pid: u32,
    pub task_start_boottime: u32,
    pub task_self_exec_id: u32,
    pub task_parent_exec_id: u32,
    pub task_signal: u32,
    pub signal_flags: u32,
    /// The byte of a bit field, and the number of the bit.
    pub signal_is_subreaper: u32,
    pub signal_is_subreaper_bit: u32,
    pub signal_has_subreaper: u32,
    pub signal_has_subreaper_bit: u32,
    pub task_comm: u32,
    pub task_mm: u32,
    pub task_nsproxy: u32,
    pub task_cgroups: u32,
    pub task_cred: u32,
    pub task_real_cred: u32,
    pub cred_uid: u32,
    pub cred_euid: u32,
    pub cred_user_ns: u32,
    pub cred_cap_effective: u32,
    pub user_namespace_inum: u32,
    pub user_namespace_parent: u32,
    pub user_namespace_level: u32,
    pub user_namespace_owner: u32,
    pub mm_arg_start: u32,
    pub mm_arg_end: u32,
    pub mm_exe_file: u32,
    pub file_path: u32,
    pub task_fs: u32,
    pub fs_root: u32,
    pub path_mnt: u32,
    pub path_dentry: u32,
    pub dentry_parent: u32,
    pub dentry_name: u32,
    pub dentry_hashed: u32,
    pub vfsmount_root: u32,
    /// `struct mount` from the start of the structure around it.
    pub mount_vfsmount: u32,
    pub mount_parent: u32,
    pub mount_mountpoint: u32,
    pub nsproxy_net_ns: u32,
    pub nsproxy_mnt_ns: u32,
    pub mnt_namespace_inum: u32,
    /// `css_set.subsys[]` of the v1 controller that names containers.
    pub css_set_subsys: u32,
    pub css_set_dfl_cgrp: u32,
    pub css_cgroup: u32,
    pub cgroup_kn: u32,
    pub kernfs_parent: u32,
    pub kernfs_name: u32,
    pub kernfs_id: u32,
    pub kernfs_mode: u32,
    pub kernfs_iattr: u32,
    pub kernfs_iattrs_uid: u32,
}

impl TaskOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 58]);
}
