//! Records that the kernel programs write and the daemon reads.
#![no_std]
