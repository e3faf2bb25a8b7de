//! What the tracepoints of system calls hand to a program.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::programs::TracePointContext;
use kevtmon_ebpf::syscall::SyscallContext;

use crate::memory::{Kernel, Structure as _, offset};

/// Written by the daemon before load.
#[unsafe(export_name = "SYSCALL_CONTEXT")]
static OFFSETS: SyscallContext = SyscallContext::ZERO;

/// Of `sys_exit_*`: which call it is.
#[inline(always)]
pub(crate) fn number(ctx: &TracePointContext) -> u32 {
    context(ctx).get(offset!(number))
}

/// Of `sys_exit_*`: a negative errno, or what the call returned.
#[inline(always)]
pub(crate) fn result(ctx: &TracePointContext) -> i64 {
    context(ctx).get(offset!(result))
}

/// Of `sys_enter_*`: the `index`th argument.
#[inline(always)]
pub(crate) fn argument(ctx: &TracePointContext, index: u32) -> u64 {
    context(ctx).get(offset!(arguments) + index * 8)
}

/// It begins with the registers that the tracepoint was called with, before 6.7.
#[inline(always)]
pub(crate) fn context(ctx: &TracePointContext) -> Kernel {
    Kernel(ctx.as_ptr() as u64)
}
