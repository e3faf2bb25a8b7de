//! Holds a directory by being in it, until it is dropped, or the thread that has started it ends.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;

use crate::process::idle;

/// The process.
#[derive(Debug)]
pub(crate) struct Holder(Child);

impl Holder {
    pub(crate) fn at(directory: &Path) -> Self {
        let mut command = idle();
        let end_with_parent = || {
            // SAFETY: takes no pointer.
            match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: the child makes a system call only.
        let command = unsafe { command.current_dir(directory).pre_exec(end_with_parent) };
        Self(command.spawn().expect("a process starts"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
