//! The programs, loaded by the daemon into the kernel.
//!
//! One file per kernel subsystem. `emit` is the only writer to the ring and counts what it cannot write,
//! `task` knows who is current, `memory` reads the kernel's. What is read where is told by the daemon
//! through [`kevtmon_ebpf::Offsets`].
#![no_std]
#![no_main]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "registers hold narrower values of the kernel; a checked conversion is a branch that the verifier walks"
)]

mod emit;
mod memory;
mod mount;
mod neighbor;
mod task;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The verifier refuses a program in which this can be reached.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
