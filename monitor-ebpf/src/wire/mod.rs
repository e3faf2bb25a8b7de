//! The layouts: `task` for what every hook sends, `lanes` for how much of it, `syscall` for what tracepoints of system calls
//! give, then one file per hook, which holds the
//! hook's number, its records and its counters.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod counter;
pub mod exec;
pub mod iterators;
pub mod lanes;
pub mod link;
pub mod neighbor;
pub mod remove;
pub mod route;
pub mod syscall;
pub mod sysctl;
pub mod task;
pub mod umount;

pub use counter::{COUNTERS, Counter};

/// An offset of a member that this kernel does not have.
pub const MISSING: u32 = u32::MAX;

/// How many numbers there are for hooks.
const HOOKS: u32 = 14;

/// Stands for what all hooks share.
const SHARED: HookId = HookId::new(0);

/// Number of a hook. It keeps the kinds of its records and its counters apart from those of all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookId(u32);

impl HookId {
    /// For constants only: a number out of range does not compile.
    const fn new(number: u32) -> Self {
        assert!(number < HOOKS);
        Self(number)
    }

    /// `Header::kind` of the hook's `nth` layout. Never 0, so that zeroed memory is no record.
    const fn kind(self, nth: u32) -> u32 {
        assert!(nth < 256);
        ((self.0 + 1) << 8) | nth
    }

    /// The hook's `nth` counter.
    const fn counter(self, nth: u32) -> Counter {
        Counter::of(self.0, nth)
    }
}

/// What is known about the captured names of a path. Without one of `ROOT`, `OTHER_TREE` and `LOOSE` there are more
/// names than room for them.
pub mod path_mark {
    /// The root was reached: the names are the path as seen from there.
    pub const ROOT: u32 = 1;
    /// The top of a mount tree was reached that the root is not above of: another mount namespace, outside the root
    /// directory, or a mount that was detached.
    pub const OTHER_TREE: u32 = 2;
    /// No mount shows it: a memfd, or a file that was moved out of a bind mount.
    pub const LOOSE: u32 = 4;
    /// A name is longer than its slot.
    pub const CUT: u32 = 8;
    /// Unlinked.
    pub const DELETED: u32 = 16;
    /// The directory at the top of that other tree is the root, there mounted by another mount, and no mount lies
    /// between: a mount namespace and its copy, as `ip -n` makes one.
    pub const ROOT_COPY: u32 = 32;
}

/// First bytes of every record.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Header {
    /// One of the `KIND_*`.
    pub kind: u32,
    /// As the kind says; zero unless it does.
    pub detail: u32,
    /// `bpf_ktime_get_boot_ns` when the record was written.
    pub boot_ns: u64,
}

const _: () = assert!(size_of::<Header>() == 16);
