//! A mount whose server is stopped: whoever asks the file system waits until it goes on.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kevtmon_tests::eventually;
use kevtmon_tests::fuse::mount_served;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::{Running, hold_by_cwd};
use nix::sys::signal::Signal;

use crate::answer::{Program, ask};

/// After that the others are killed.
const LIMIT: Duration = Duration::from_secs(5);

pub(crate) fn measure() {
    let scratch = Scratch::new();
    let point = scratch.path().join("stopped");
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.arg("serve").arg(&point).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Running::spawn(&mut command);
    let mut output = server.child().stdout.take().expect("a pipe");
    output.read_exact(&mut [0]).expect("it is mounted");
    let holder = hold_by_cwd(&point);
    server.signal(Signal::SIGSTOP);
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap_or_default();
    eventually!(state().contains(") T "), "the server is stopped");
    println!("a mount whose FUSE server is stopped");
    for program in Program::installed() {
        let answer = ask(program, &point, Some(LIMIT));
        let names = match answer.pids.contains(&holder.pid()) {
            true => "names the holder",
            false => "does not name the holder",
        };
        let end = if answer.has_ended { "" } else { ", killed" };
        println!("  {:8} {:.3} s{end}: {names}", program.name(), answer.seconds);
    }
    server.signal(Signal::SIGCONT);
    drop(holder);
}

/// Mounts a file system and serves it, until it is killed.
pub(crate) fn serve(arguments: &[String]) -> io::Result<()> {
    let point = arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
    mount_served(Path::new(point));
    io::stdout().write_all(b".")?;
    io::stdout().flush()?;
    loop {
        nix::unistd::pause();
    }
}
