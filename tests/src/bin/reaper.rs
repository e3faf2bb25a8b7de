//! Undoes what a test process left, once it has ended; its argument is the directory of its cleanups.

use std::io;
use std::path::PathBuf;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::setsid;

fn main() -> io::Result<()> {
    // An interrupt at the terminal ends the tests, and is when this is needed most.
    setsid()?;
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: ignoring a signal runs no handler.
        unsafe { signal(ignored, SigHandler::SigIgn) }?;
    }
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    kevtmon_tests::reaper::reap(&directory.ok_or(io::ErrorKind::InvalidInput)?)
}
