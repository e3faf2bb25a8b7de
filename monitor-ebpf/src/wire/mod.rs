//! The layouts, one file per kernel subsystem.

mod counter;
mod mount;
mod neighbor;
mod offsets;
mod task;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use counter::{COUNTERS, Counter};
pub use mount::{MountRecord, PATH_CAPACITY};
pub use neighbor::{LLADDR_CAPACITY, NeighborRecord, device_mark, operation};
pub use offsets::{MISSING, Offsets};
pub use task::{
    ARGV_CAPACITY, AncestorRecord, COMM_LEN, NAME_CAPACITY, NAMES_DEPTH, Names, TaskId, TaskRecord,
};

/// `Header::kind` of a [`TaskRecord`].
pub const KIND_TASK: u32 = 1;
/// `Header::kind` of a [`NeighborRecord`].
pub const KIND_NEIGHBOR: u32 = 2;
/// `Header::kind` of a [`MountRecord`].
pub const KIND_MOUNT: u32 = 3;

/// First bytes of every record.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Header {
    /// One of the `KIND_*`.
    pub kind: u32,
    /// Zero; keeps the stamp aligned.
    pub reserved: u32,
    /// `bpf_ktime_get_boot_ns` at the moment of the record.
    pub boot_ns: u64,
}

const _: () = assert!(size_of::<Header>() == 16);
