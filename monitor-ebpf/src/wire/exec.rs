//! The hook `exec`: a program in a CNI directory that root of the node executed, its environment, and how it ended; the same of
//! programs called `rbd`, with their arguments; the start of what may be a kubelet or runtime; and the signals and the end of
//! processes that the daemon names.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::task::{COMM_LEN, TaskId};
use super::{Counter, Header, HookId};

const HOOK: HookId = HookId::new(3);

/// `Header::kind` of an [`ExecRecord`].
pub const KIND_EXEC: u32 = HOOK.kind(0);
/// `Header::kind` of an [`EnvironmentRecord`].
pub const KIND_ENVIRONMENT: u32 = HOOK.kind(1);
/// `Header::kind` of an [`ExitRecord`].
pub const KIND_EXIT: u32 = HOOK.kind(2);
/// `Header::kind` of a [`ComponentRecord`].
pub const KIND_COMPONENT: u32 = HOOK.kind(3);
/// `Header::kind` of a [`CommandRecord`] of `rbd`.
pub const KIND_RBD: u32 = HOOK.kind(4);
/// `Header::kind` of a [`CommandRecord`] of a runtime's client.
pub const KIND_CLIENT: u32 = HOOK.kind(5);
/// `Header::kind` of a [`SignalRecord`].
pub const KIND_SIGNAL: u32 = HOOK.kind(6);

/// What the programs count.
pub mod counter {
    use super::{Counter, HOOK};

    /// Records for which the ring had no room.
    pub const RING_FULL: Counter = HOOK.counter(0);
    /// Programs in such a directory that others executed than root of the node, or anybody in another mount namespace than the
    /// host's or a runtime's; nothing of them was read.
    pub const OTHERS: Counter = HOOK.counter(1);
    /// Programs whose end will not be seen: there are more under way than [`RUNNING_MAX`](super::RUNNING_MAX).
    pub const RUNNING_FULL: Counter = HOOK.counter(2);
}

/// Bytes of a path that are compared with the directories, and of a directory at most.
pub const DIRECTORY_CAPACITY: usize = 128;
/// Directories at most.
pub const DIRECTORIES_MAX: u32 = 64;
/// Mount namespaces at most.
pub const MOUNT_NAMESPACES_MAX: u32 = 64;
/// Kubelets and runtimes at most.
pub const CALLERS_MAX: u32 = 64;
/// Processes at most whose signals and end are reported.
pub const FOLLOWED_MAX: u32 = 256;
/// The unit of the start of a process that the daemon can read (`USER_HZ`), in nanoseconds.
pub const TICK_NS: u64 = 10_000_000;
/// Programs under way at most.
pub const RUNNING_MAX: u32 = 4096;
/// Bytes of the path of a program that are captured, with its NUL.
pub const FILENAME_CAPACITY: usize = 256;
/// Bytes of the environment in one record.
pub const PART_CAPACITY: usize = 4096;
/// Records of one environment at most: what is beyond them is not read.
pub const PARTS_MAX: usize = 32;
/// Bytes of the arguments that are captured: those of `rbd` with a dozen monitors have some 600.
pub const ARGUMENTS_CAPACITY: usize = 2048;

/// A program that was executed. Its environment follows in order, in one record at least.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ExecRecord {
    /// `KIND_EXEC`.
    pub header: Header,
    /// The process, as the new program.
    pub task: TaskId,
    /// Bytes of its environment, also beyond what is read.
    pub environment_len: u64,
    /// `TaskRecord::root` of the process.
    pub task_root: u32,
    /// Zero.
    pub reserved: u32,
    /// The path that was executed (`linux_binprm.filename`), NUL-terminated, cut. Of a script it is the script's.
    pub filename: [u8; FILENAME_CAPACITY],
}

/// A part of the environment of the program that was executed last by this process.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct EnvironmentRecord {
    /// `KIND_ENVIRONMENT`.
    pub header: Header,
    /// `start_boottime` of the process.
    pub start_ns: u64,
    /// Its thread group id.
    pub tgid: u32,
    /// Where the part begins.
    pub offset: u32,
    /// Bytes that count; fewer than there are where they could not be read.
    pub len: u32,
    /// Not 0 if no other part follows.
    pub is_last: u32,
    /// Strings, each NUL-terminated; one may go on in the next part.
    pub bytes: [u8; PART_CAPACITY],
}

/// The end of a process that had executed such a program, or that the daemon has followed.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ExitRecord {
    /// `KIND_EXIT`.
    pub header: Header,
    /// `start_boottime` of the process.
    pub start_ns: u64,
    /// Its thread group id.
    pub tgid: u32,
    /// As wait(2) has it: the signal in the lowest seven bits, the exit code in the second byte.
    pub status: u32,
}

/// The task sends a signal.
pub const SENT_BY_TASK: u32 = 0;
/// The kernel sends it, and the task is only the one that runs.
pub const SENT_BY_KERNEL: u32 = 1;
/// Who sends it is not known: a timer that the process has set itself, its parent that ends, or itself.
pub const SENT_BY_UNKNOWN: u32 = 2;

/// A signal to a process that the daemon has followed.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SignalRecord {
    /// `KIND_SIGNAL`.
    pub header: Header,
    /// Who sends it.
    pub task: TaskId,
    /// `start_boottime` of the process that gets it.
    pub start_ns: u64,
    /// Its thread group id.
    pub tgid: u32,
    /// Number of the signal.
    pub signal: u32,
    /// `TaskRecord::root` of the sender.
    pub task_root: u32,
    /// Who sends it: [`SENT_BY_TASK`], or another of these.
    pub sent_by: u32,
}

/// Root executed a program with the name of a kubelet or runtime in the initial pid namespace. What it really is, is to be
/// looked at.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ComponentRecord {
    /// `KIND_COMPONENT`.
    pub header: Header,
    /// Its thread group id.
    pub tgid: u32,
    /// 0.
    pub reserved: u32,
}

/// A program with the name `rbd`, or of a runtime's client, that root executed with the right to administer the node.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CommandRecord {
    /// `KIND_RBD` or `KIND_CLIENT`.
    pub header: Header,
    /// The process, as the new program.
    pub task: TaskId,
    /// Bytes of its arguments, also beyond what is captured.
    pub arguments_len: u64,
    /// `TaskRecord::root` of the process.
    pub task_root: u32,
    /// Bytes of `arguments` that count; 0 where they could not be read.
    pub len: u32,
    /// Arguments, each NUL-terminated, cut. Of a script those of its interpreter.
    pub arguments: [u8; ARGUMENTS_CAPACITY],
}

/// Its name, as the kernel keeps it.
pub const RBD_COMM: [u64; 2] = comm(b"rbd");

/// The names of programs by which people start and stop containers.
pub const CLIENT_COMMS: [[u64; 2]; 4] = [comm(b"docker"), comm(b"nerdctl"), comm(b"crictl"), comm(b"ctr")];

/// The names of kubelets and runtimes, as far as the kernel keeps them (`TASK_COMM_LEN`), as the two words that it keeps them in.
pub const COMPONENT_COMMS: [[u64; 2]; 9] = [
    comm(b"kubelet"),
    comm(b"hyperkube"),
    comm(b"dockerd"),
    comm(b"containerd"),
    comm(b"docker-containerd"),
    comm(b"k3s"),
    comm(b"crio"),
    comm(b"cri-dockerd"),
    comm(b"podman"),
];

const fn comm(name: &[u8]) -> [u64; 2] {
    let mut comm = [0; COMM_LEN];
    let mut index = 0;
    while index < name.len() && index < COMM_LEN - 1 {
        comm[index] = name[index];
        index += 1;
    }
    zerocopy::transmute!(comm)
}

const _: () = assert!(size_of::<ComponentRecord>() == 16 + 8);
const _: () = assert!(size_of::<ExecRecord>() == 16 + 64 + 16 + 256);
const _: () = assert!(size_of::<EnvironmentRecord>() == 16 + 24 + 4096);
const _: () = assert!(size_of::<ExitRecord>() == 32);
const _: () = assert!(size_of::<SignalRecord>() == 16 + 64 + 24);
const _: () = assert!(size_of::<CommandRecord>() == 16 + 64 + 16 + 2048);

/// Where the kernel keeps what only this hook reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs, reason = "each field is named STRUCT_MEMBER after the kernel")]
pub struct ExecOffsets {
    pub binprm_filename: u32,
    pub task_mm: u32,
    pub mm_env_start: u32,
    pub mm_env_end: u32,
    pub task_group_leader: u32,
    pub task_exit_code: u32,
    pub task_signal: u32,
    pub signal_flags: u32,
    pub signal_live: u32,
    pub signal_group_exit_code: u32,
    pub task_thread_pid: u32,
    pub pid_level: u32,
}

impl ExecOffsets {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 12]);
}
