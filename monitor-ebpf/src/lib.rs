//! Records that the kernel programs write and the daemon reads: each layout is defined here once.
//!
//! Native byte order, no implicit padding, sizes asserted. A record starts with a [`Header`] whose `kind`
//! identifies its layout. Values are the kernel's own; the daemon interprets them.
#![no_std]

mod wire;

pub use wire::*;
