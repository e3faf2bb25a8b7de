//! Keeps a file open, or stays in a directory, and is never the same for long; says when it does, and ends with its standard
//! input.
//!
//! `restless exec fd|cwd PATH PROGRAM …` executes each of these copies of this program by turns. `restless fork fd|cwd PATH` has
//! a child that hands it to a child of its own and ends, and so on; it reaps them, and holds nothing itself.
#![expect(clippy::print_stdout, reason = "its standard output is read by the test that started it")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::wait;
use nix::unistd::{ForkResult, fork};

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["exec", how, path, ref programs @ ..] => {
            hold(how, path)?;
            println!("ready");
            go_on(programs)
        }
        ["again", ref programs @ ..] => go_on(programs),
        ["fork", how, path] => hand_on(how, path),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn hold(how: &str, path: &str) -> io::Result<()> {
    if how == "cwd" {
        return std::env::set_current_dir(path);
    }
    let file = File::open(path)?;
    fcntl(file.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
    let _ = file.into_raw_fd();
    Ok(())
}

/// Whether standard input has ended; waits a moment for that, so that ids of processes are not used up.
fn is_over() -> bool {
    let input = io::stdin();
    let mut wanted = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    poll(&mut wanted, PollTimeout::from(1_u8)).is_ok_and(|ready| ready > 0)
}

fn go_on(programs: &[&str]) -> io::Result<()> {
    let Some((next, others)) = programs.split_first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    if is_over() {
        return Ok(());
    }
    let name = Path::new(next).file_name().unwrap_or_default();
    Err(Command::new(next).arg0(name).arg("again").args(others).arg(next).exec())
}

fn hand_on(how: &str, path: &str) -> io::Result<()> {
    // SAFETY: takes no pointer.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this process has one thread.
    if let ForkResult::Parent { .. } = unsafe { fork() }? {
        while wait().is_ok() {}
        return Ok(());
    }
    hold(how, path)?;
    println!("ready");
    while !is_over() {
        // SAFETY: as above.
        if let ForkResult::Parent { .. } = unsafe { fork() }? {
            exit(0);
        }
    }
    Ok(())
}
