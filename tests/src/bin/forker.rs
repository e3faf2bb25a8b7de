//! Has a command executed by a process that is not the child of who started it: `forker orphan COMMAND` by one that
//! somebody has adopted, `forker sibling COMMAND` by one that is given to the parent of this program.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, ExitCode, id};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let how = arguments.next().unwrap_or_default();
    match fork(&how, arguments.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns in this process only, or where the command does not start.
fn fork(how: &OsString, command: Vec<OsString>) -> io::Result<()> {
    let flags = match how.to_str() {
        Some("orphan") => 0,
        Some("sibling") => libc::CLONE_PARENT,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let own = id();
    // SAFETY: without memory in common this is fork(2), of a process that has one thread.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    match child {
        0 => {
            while flags == 0 && parent_id() == own {
                std::thread::yield_now();
            }
            Err(Command::new(program).args(arguments).exec())
        }
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
