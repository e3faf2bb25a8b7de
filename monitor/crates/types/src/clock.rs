//! The kernel's clocks.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_BOOTTIME`, the clock of every kernel record.
pub type BootNs = u64;

pub const SECOND: BootNs = 1_000_000_000;
pub const MS: BootNs = 1_000_000;
/// `/proc/PID/stat` times are in units of 1/100 s on every architecture that the kernel exports them
/// for (`USER_HZ`, `include/asm-generic/param.h`).
pub const NS_PER_TICK: BootNs = 10_000_000;

/// Current boot time; 0 if the clock cannot be read, which does not happen on Linux.
pub fn boot_now() -> BootNs {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| {
        u64::try_from(t.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec()).unwrap_or(0)
    })
}

/// Offset in nanoseconds from boot time to wall-clock time.
pub fn realtime_offset_ns() -> i64 {
    let read = |clock| {
        clock_gettime(clock).map_or(0, |t| i128::from(t.tv_sec()) * 1_000_000_000 + i128::from(t.tv_nsec()))
    };
    let offset = read(ClockId::CLOCK_REALTIME) - read(ClockId::CLOCK_BOOTTIME);
    i64::try_from(offset).unwrap_or(0)
}
