//! Exact counters, kept per CPU in the kernel: they count what the ring could not carry, too.

/// Index into the counter map.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Permanent entries deleted by request.
    PermanentAdmin = 0,
    /// Permanent entries gone with their interface, address or namespace.
    PermanentCollateral = 1,
    /// Resolved entries deleted by request.
    LearnedAdmin = 2,
    /// Resolved entries gone with their interface, or collected.
    LearnedCollateral = 3,
    /// Entries without resolution deleted by request.
    NoarpAdmin = 4,
    /// Entries without resolution gone with their interface.
    NoarpCollateral = 5,
    /// umount(2) refused with EBUSY.
    UmountBusy = 6,
    /// Neighbor records that found the ring full.
    NeighborRingFull = 7,
    /// Task records that found the ring full.
    TaskRingFull = 8,
    /// Mount records that found the ring full.
    MountRingFull = 9,
    /// Unmounts whose start could not be remembered.
    MountPendingFull = 10,
    /// Unmounts whose path could not be read.
    MountPathUnreadable = 11,
}

/// How many counters there are.
pub const COUNTERS: u32 = 12;
