//! Exit codes: the one place that names them. Values above 63 follow `sysexits.h`.

pub const OK: u8 = 0;
/// Failed, or nothing was found.
pub const FAILED: u8 = 1;
/// A query is wrong or ambiguous, or could not be answered.
pub const QUERY: u8 = 2;
/// Wrong arguments or configuration (`EX_USAGE`).
pub const USAGE: u8 = 64;
/// The kernel lacks a required feature (`EX_UNAVAILABLE`).
pub const UNSUPPORTED: u8 = 69;
/// A capability is missing (`EX_NOPERM`).
pub const PRIVILEGE: u8 = 77;
