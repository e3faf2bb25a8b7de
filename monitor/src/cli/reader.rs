//! A reader of /proc, which only the daemon starts: it serves jobs on its standard input.

use std::ffi::OsString;

use super::exit;
use crate::holders;
use crate::sources;
use crate::sources::procfs::readers::{self, Entry};

/// Serves jobs if these are the arguments of a reader, the program's name first; then returns the exit code.
pub fn run_if_asked(mut args: impl Iterator<Item = OsString>) -> Option<u8> {
    args.nth(1).filter(|first| first == readers::ARGUMENT)?;
    let background = args.next().is_some_and(|second| second == readers::BACKGROUND);
    // Nobody reads a message: the daemon says that a reader failed.
    let served = readers::serve(&jobs(), background);
    Some(if served.is_ok() { exit::OK } else { exit::FAILED })
}

/// Every job.
fn jobs() -> Vec<Entry> {
    sources::jobs().chain(holders::jobs()).collect()
}
