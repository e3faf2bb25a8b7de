//! Processes that only kevtmon starts: a reader of /proc, which serves jobs on its standard input, and the one that acts
//! in the self-test.

use std::ffi::OsString;

use super::exit;
use crate::holders;
use crate::self_test;
use crate::sources;
use crate::sources::procfs::readers::{self, Entry};

/// Does the work of such a process if these are its arguments, the program's name first; then returns the exit code.
pub fn run_if_asked(mut args: impl Iterator<Item = OsString>) -> Option<u8> {
    let first = args.nth(1)?;
    if first == self_test::ARGUMENT {
        self_test::work();
        return Some(exit::OK);
    }
    if first != readers::ARGUMENT {
        return None;
    }
    let background = args.next().is_some_and(|second| second == readers::BACKGROUND);
    // Nobody reads a message: the daemon says that a reader failed.
    let served = readers::serve(&jobs(), background);
    Some(if served.is_ok() { exit::OK } else { exit::FAILED })
}

/// Every job.
fn jobs() -> Vec<Entry> {
    sources::jobs().chain(holders::jobs()).collect()
}
