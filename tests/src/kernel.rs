//! The kernel that runs.

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
