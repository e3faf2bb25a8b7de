//! The context of the tracepoints of system calls, which is not the same on all kernels.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where a program finds what it is given: byte offsets in `struct syscall_tp_t`, of which the kernel has one for the start of
/// a call and one for its return. The daemon resolves them before it loads the programs.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SyscallContext {
    /// Number of the call, 32 bits.
    pub number: u32,
    /// Its arguments, 64 bits each.
    pub arguments: u32,
    /// What it returns, 64 bits.
    pub result: u32,
}

impl SyscallContext {
    /// What the programs hold until the daemon fills it in.
    pub const ZERO: Self = zerocopy::transmute!([0u32; 3]);
}
