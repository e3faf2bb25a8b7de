//! Paths of what a runtime mounts for a container alone.

/// Longest path of a mount that is kept, in bytes; those of runtimes are shorter.
const PATH_MAX: usize = 512;

/// A path as a runtime tells it, if it can be compared.
pub fn kept(path: String) -> Option<Box<str>> {
    (path.len() <= PATH_MAX && is_plain(&path)).then(|| path.into_boxed_str())
}

/// Whether it is an absolute path without names that lead nowhere or upwards: others are not compared.
pub fn is_plain(path: &str) -> bool {
    let is_name = |name: &str| !matches!(name, "" | "." | "..");
    path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_name))
}
