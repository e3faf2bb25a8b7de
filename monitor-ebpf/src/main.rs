//! The object `core`: programs on tracepoints and BTF-typed tracepoints.
//!
//! One file per hook. `emit` is the only writer to the ring and counts what it cannot write, `lanes` decides who may
//! write how much, `task` captures the current task, `memory` reads kernel memory at the `OFFSETS` that the daemon
//! resolves and writes before load, `path` walks up a path, `syscall` reads what tracepoints of system calls give and `kprobe` what
//! kprobes do, `mount_table` tells whether mounts have changed, `iterators` who can hold a mount.
#![no_std]
#![no_main]
// For the one atomic operation of `emit`.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "registers hold narrower values of the kernel; a checked conversion is a branch that the verifier walks"
)]

mod emit;
mod exec;
mod iterators;
mod kprobe;
mod lanes;
mod link;
mod memory;
mod mount_table;
mod neighbor;
mod path;
mod remove;
mod route;
mod syscall;
mod sysctl;
mod task;
mod umount;
mod umount_untyped;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The verifier refuses a program in which this can be reached.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
