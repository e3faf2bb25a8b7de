//! The only writer to the ring and to the counters.
//!
//! Waking the reader costs the task that runs the program more than all the rest of it, so a record is submitted
//! without a wake-up unless the reader has set `ARMED`, which it does before it sleeps.

use core::arch::asm;

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_PROD_POS};
use aya_ebpf::helpers::generated::{bpf_ringbuf_output, bpf_ringbuf_query};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray, RingBuf};
use kevtmon_ebpf::{COUNTERS, Counter};

use crate::lanes::LIMITS;
use crate::memory::volatile;

/// Size is set by the daemon at load.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Set by the reader before its last look at the ring, cleared by the record that wakes it.
#[map]
static ARMED: Array<u32> = Array::with_max_entries(1, 0);

#[map]
static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// Counts one.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    if let Some(value) = COUNTS.get_ptr_mut(counter.index()) {
        // SAFETY: a slot of the map.
        unsafe { add_one(value) };
    }
}

/// Counts exactly, whatever other CPUs do, or a program that interrupts this one. `core` has no such operation for this
/// target, which has no other ones.
///
/// # Safety
/// `counter` must be valid for reads and writes.
#[inline(always)]
pub(crate) unsafe fn add_one(counter: *mut u64) {
    // SAFETY: by the caller's promise.
    unsafe { add(counter, 1) };
}

/// The same with any number; one that wraps takes away.
///
/// # Safety
/// As [`add_one`].
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u64, number: u64) {
    // SAFETY: by the caller's promise.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) number, options(nostack)) };
}

/// Bytes that were ever written to the ring.
#[inline(always)]
pub(crate) fn position() -> u64 {
    query(BPF_RB_PROD_POS)
}

#[inline(always)]
fn query(what: u32) -> u64 {
    // SAFETY: the helper only reads the ring's own positions.
    unsafe { bpf_ringbuf_query((&raw const EVENTS).cast_mut().cast(), u64::from(what)) }
}

/// How much of the ring may be filled when a record is written, in eighths: what others can cause in any number must
/// leave room for what they cannot. One ring for all keeps the order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingReserve {
    /// What unprivileged users do among themselves.
    Unprivileged = 4,
    /// The beginning of CNI calls, with large environments.
    Exec = 5,
    /// Neighbor entries of the host and of containers, names that root could not remove, and the end of CNI calls: what was
    /// begun is not left open.
    Namespace = 6,
    /// Those of known gateways.
    Gateway = 7,
    /// Unmount attempts by root that the kernel has answered.
    Mount = 8,
}

impl RingReserve {
    /// What counts a record for which there was none left: what users fill among themselves loses nothing of others.
    #[inline(always)]
    pub(crate) fn loss(self, counter: Counter, of_users: Counter) -> Counter {
        if self == Self::Unprivileged { of_users } else { counter }
    }

    #[inline(always)]
    fn is_left(self) -> bool {
        let full = volatile(&raw const LIMITS.ring_bytes);
        query(BPF_RB_AVAIL_DATA) <= full / 8 * self as u64
    }
}

/// Reserves room for a `T`, lets `fill` write every byte of it, and submits it.
#[inline(always)]
pub(crate) fn record<T: 'static>(room: RingReserve, lost: Counter, fill: impl FnOnce(*mut T)) -> bool {
    if !room.is_left() {
        count(lost);
        return false;
    }
    let Some(mut entry) = EVENTS.reserve::<T>(0) else {
        count(lost);
        return false;
    };
    fill(entry.as_mut_ptr());
    entry.submit(wakeup());
    true
}

/// Copies the first `len` bytes of a record that is too large to reserve.
#[inline(always)]
pub(crate) fn copied<T: 'static>(room: RingReserve, lost: Counter, record: *mut T, len: u64) {
    if !room.is_left() {
        return count(lost);
    }
    // SAFETY: the caller's buffer holds a `T`, and `len` does not pass its size.
    let result =
        unsafe { bpf_ringbuf_output((&raw const EVENTS).cast_mut().cast(), record.cast(), len, wakeup()) };
    if result != 0 {
        count(lost);
    }
}

#[inline(always)]
fn wakeup() -> u64 {
    if let Some(armed) = ARMED.get_ptr_mut(0) {
        // SAFETY: a map slot; two programs that both see it set both wake the reader, which is harmless.
        unsafe {
            if core::ptr::read_volatile(armed) != 0 {
                core::ptr::write_volatile(armed, 0);
                return u64::from(BPF_RB_FORCE_WAKEUP);
            }
        }
    }
    u64::from(BPF_RB_NO_WAKEUP)
}
