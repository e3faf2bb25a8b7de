//! Names that no other test on this machine uses at the same time.

use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A number that this process has not used yet.
#[must_use]
pub fn number() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A name of at most 15 characters, so that it can be an interface: prefix, process, number.
#[must_use]
pub fn name(prefix: &str) -> String {
    let name = format!("{prefix}{:x}x{:x}", std::process::id(), number());
    assert!(name.len() <= 15, "{name} is too long for an interface");
    name
}

/// An address in 10.0.0.0/8 below `first`, that this process has not used yet.
#[must_use]
pub fn address(first: u8) -> String {
    let [_, high, middle, low] = (number() + 1).to_be_bytes();
    format!("10.{}.{middle}.{low}", first.wrapping_add(high))
}

/// The id of a container.
#[must_use]
pub fn container_id() -> String {
    format!("{:064x}", u64::from(std::process::id()) << 32 | u64::from(number()))
}
