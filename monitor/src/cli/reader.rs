//! Processes that only kevtmon starts: a reader of /proc, which serves jobs on its standard input, and the one that acts
//! in the self-test.

use std::ffi::OsString;

use kevtmon_sources::procfs::readers::{self, Entry};

use super::exit;
use crate::self_test;

/// Does the work of such a process if these are its arguments, the program's name first; then returns the exit code.
pub fn run_if_asked(mut args: impl Iterator<Item = OsString> + Clone) -> Option<u8> {
    if args.clone().nth(1)? == self_test::ARGUMENT {
        self_test::work();
        return Some(exit::OK);
    }
    let jobs: Vec<Entry> =
        kevtmon_sources::jobs().chain(kevtmon_probe::jobs()).chain(kevtmon_holders::jobs()).collect();
    // Nobody reads a message: the daemon says that a reader failed.
    let served = readers::serve_if_asked(&mut args, &jobs)?;
    Some(if served.is_ok() { exit::OK } else { exit::FAILED })
}
