//! The kernel that runs, and what cannot be tested on it.

use std::io::Write as _;

/// Whether it is of this release or a later one.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn is_since(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("it has a release");
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or_default());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Whether this is a virtual machine of the kernel matrix.
#[must_use]
pub fn is_guest() -> bool {
    std::env::var_os("KEVTMON_TEST_GUEST").is_some()
}

/// Tells why a test cannot run here. The guests are there to run it: there it is a failure, unless this is `permitted`, since it
/// does not exist on this kernel.
///
/// # Panics
/// In a guest, unless it is permitted.
#[track_caller]
pub fn skip(reason: &str, permitted: bool) {
    assert!(permitted || !is_guest(), "skipped in a guest: {reason}");
    // Past the test runner, which shows what a test prints only if it fails; at once, since tests run side by side.
    let _ = std::io::stderr().write_all(format!("skipped: {reason}\n").as_bytes());
}
