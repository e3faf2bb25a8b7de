//! A process that acts on command and changes itself between its acts: the program `actor`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::Signal;

use crate::eventually;
use crate::process::Running;
use crate::reaper;

/// The process.
#[derive(Debug)]
pub struct Actor {
    process: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts one.
    #[must_use]
    pub fn start() -> Self {
        Self::run(program())
    }

    /// Starts a copy of the program that lies elsewhere.
    #[must_use]
    pub fn run(program: impl AsRef<OsStr>) -> Self {
        Self::spawn(&mut Command::new(program))
    }

    /// Starts one by a command that becomes the program, or that passes standard input and output to it.
    #[must_use]
    pub fn spawn(command: &mut Command) -> Self {
        let mut process = Running::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let input = process.child().stdin.take().expect("standard input is a pipe");
        let output = BufReader::new(process.child().stdout.take().expect("standard output is a pipe"));
        Self { process, input, output }
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Has it execute one command of the program; panics unless it succeeds.
    #[track_caller]
    pub fn act(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the actor reads");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the actor answers");
        assert_eq!(answer, "done\n");
    }

    /// Has it end by itself, and does not wait for that.
    #[track_caller]
    pub fn leave(&mut self) {
        writeln!(self.input, "exit").expect("the actor reads");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops it, and waits until each of its threads is stopped: what it serves is answered by none of them from then on.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let are_stopped = || {
            let mut tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).ok()?;
            let is_stopped = |stat: String| Some(stat.rsplit_once(") ")?.1.starts_with('T'));
            let stat = |task: PathBuf| std::fs::read_to_string(task.join("stat")).ok();
            tasks.try_fold(true, |all, task| Some(all && is_stopped(stat(task.ok()?.path())?)?))
        };
        eventually!(are_stopped() == Some(true), "each thread of {} is stopped", self.pid());
    }

    /// Inode number of the namespace of this kind that it is in: `net`, `mnt`, `user`.
    #[must_use]
    pub fn namespace(&self, kind: &str) -> u64 {
        let path = format!("/proc/{}/ns/{kind}", self.pid());
        std::fs::metadata(path).expect("the actor lives").ino()
    }

    /// Its real and effective user id.
    #[must_use]
    pub fn uids(&self) -> (u64, u64) {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the actor lives");
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("it has a user");
        let mut ids = line.split_whitespace().map(|id| id.parse().expect("a number"));
        (ids.next().expect("a real id"), ids.next().expect("an effective id"))
    }
}

/// The program itself.
#[must_use]
pub fn program() -> PathBuf {
    reaper::built("actor")
}

/// The program `forker`, which has a command executed by a process that is not the child of who started it.
#[must_use]
pub fn forker() -> PathBuf {
    reaper::built("forker")
}

/// The program `restless`, which holds something and is never the same for long.
#[must_use]
pub fn restless() -> PathBuf {
    reaper::built("restless")
}
