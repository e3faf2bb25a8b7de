//! Records that the kernel programs write and the daemon reads: each layout is defined here once.
//!
//! Native byte order, no implicit padding, sizes asserted. A record starts with a [`Header`] whose `kind`
//! says which one it is. The kernel's values are carried as they are; the daemon gives them meaning.
#![no_std]

mod wire;

pub use wire::*;
