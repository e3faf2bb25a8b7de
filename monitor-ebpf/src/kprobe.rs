//! What a kprobe at the start of a function is given: the registers of its caller.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::programs::ProbeContext;

use crate::memory::{Kernel, Structure as _, volatile};

/// Written by the daemon before load: where the registers have each argument, in bytes.
#[unsafe(export_name = "KPROBE_ARGUMENTS")]
// Not zero: a constant of the same value, of which a reference is taken, may be made one with it.
static ARGUMENTS: [u32; 6] = [u32::MAX; 6];

/// The `index`th argument of the function.
#[inline(always)]
pub(crate) fn argument(ctx: &ProbeContext, index: usize) -> u64 {
    Kernel(ctx.as_ptr() as u64).get(volatile(&raw const ARGUMENTS[index]))
}
