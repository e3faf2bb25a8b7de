//! The daemon of the demo: started apart from everything on this machine, read line by line, ended with the demo.
//!
//! Its output goes to the terminal as it comes and into a transcript in which the events that are due are
//! looked for. Signals for the demo arrive on the same queue, so that every wait ends with them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use super::print;
use super::transcript::Transcript;

/// How long an event may take, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(15);

/// An event is written at once: after this silence it is complete.
const SILENCE: Duration = Duration::from_millis(50);

/// On a machine where much happens there may be no silence.
const NO_SILENCE: Duration = Duration::from_secs(1);

/// The daemon drains within 5 s of SIGTERM.
const DRAIN: Duration = Duration::from_secs(6);

/// Lines that wait to be shown.
const QUEUE: usize = 256;

/// What a terminal shows: less severe events are not of interest there either.
const CONFIG: &str = "[output]\nmin_severity = \"info\"\n";

/// What ends a wait.
enum Input {
    Line(String),
    /// The daemon closed its output.
    Ended,
    Interrupted(Signal),
}

pub(super) struct InputQueue {
    sender: SyncSender<Input>,
    receiver: Receiver<Input>,
}

impl InputQueue {
    fn new() -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        Self { sender, receiver }
    }

    /// From here on a signal ends a wait, not the process, which would leave its work behind. To be called before
    /// there is any other thread.
    pub(super) fn with_signals() -> Result<Self> {
        let queue = Self::new();
        let signals = signals();
        signals.thread_block().context("cannot block signals")?;
        let interrupted = queue.sender.clone();
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                while let Ok(signal) = signals.wait() {
                    if interrupted.send(Input::Interrupted(signal)).is_err() {
                        break;
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(queue)
    }
}

fn signals() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect()
}

pub(super) struct Daemon {
    child: Child,
    inputs: Receiver<Input>,
    address: SocketAddr,
    log: PathBuf,
    transcript: Transcript,
    /// Events before this one were expected and came.
    next: usize,
    ended: bool,
}

impl Daemon {
    /// Starts `program` with all its files in `directory`.
    pub(super) fn start(program: &Path, directory: &Path, queue: InputQueue) -> Result<Self> {
        let address = free_address()?;
        let config = directory.join("kevtmon.toml");
        fs::write(&config, CONFIG).with_context(|| format!("cannot write {}", config.display()))?;
        let log = directory.join("kevtmon.log");
        let stderr = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(&config);
        command.args(["--output", "pretty", "--runtime", "none", "--listen", &address.to_string()]);
        command.arg("--state-dir").arg(directory.join("state"));
        command.arg("--socket").arg(directory.join("kevtmon.sock"));
        // Ctrl-C is for the demo, which ends the daemon itself.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let unblocked = signals();
        // SAFETY: between fork and exec the closure makes two system calls, both async-signal-safe, and
        // allocates nothing.
        unsafe {
            command.pre_exec(move || {
                // Even SIGKILL for the demo leaves no daemon behind.
                prctl::set_pdeathsig(Signal::SIGTERM)?;
                unblocked.thread_unblock()?;
                Ok(())
            });
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let output = child.stdout.take();
        let InputQueue { sender, receiver } = queue;
        let daemon = Self {
            child,
            inputs: receiver,
            address,
            log,
            transcript: Transcript::default(),
            next: 0,
            ended: false,
        };
        let output = output.context("the daemon has no output")?;
        thread::Builder::new()
            .name("daemon".to_owned())
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(Input::Line(line)).is_err() {
                        return;
                    }
                }
                // The demo may be over already.
                let _ = sender.send(Input::Ended);
            })
            .context("cannot start a thread")?;
        Ok(daemon)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows the output of the daemon until an event of `kind` came whose text holds all `words`.
    pub(super) fn expect(&mut self, kind: &str, words: &[&str]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let found = loop {
            if let Some(found) = self.transcript.find(self.next, kind, words) {
                break found;
            }
            if Instant::now() > deadline || !self.receive(deadline)? {
                let words = if words.is_empty() { String::new() } else { format!(" with {words:?}") };
                bail!(
                    "the daemon reported no {kind}{words} within {} s; it says at its start what this kernel lacks{}",
                    PATIENCE.as_secs(),
                    self.logged()
                );
            }
        };
        let found_at = Instant::now();
        while found_at.elapsed() < NO_SILENCE && self.receive(Instant::now() + SILENCE)? {}
        self.next = found + 1;
        Ok(())
    }

    /// How many events of kinds that start with `kind` hold `word`.
    pub(super) fn count(&self, kind: &str, word: &str) -> usize {
        self.transcript.count(kind, word)
    }

    /// Stops the daemon and shows its last output.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.terminate();
        let deadline = Instant::now() + DRAIN;
        while !self.ended {
            match self.next_input(deadline) {
                Some(Input::Line(line)) => self.show(&line)?,
                Some(Input::Ended) => {}
                Some(Input::Interrupted(signal)) => bail!("ended by {signal}"),
                None => bail!("the daemon did not end within {} s{}", DRAIN.as_secs(), self.logged()),
            }
        }
        let status = self.child.wait().context("cannot wait for the daemon")?;
        if !status.success() {
            bail!("the daemon ended with {status}{}", self.logged());
        }
        Ok(())
    }

    /// Shows the next line; false when none came in time.
    fn receive(&mut self, deadline: Instant) -> Result<bool> {
        match self.next_input(deadline) {
            Some(Input::Line(line)) => self.show(&line).map(|()| true),
            Some(Input::Ended) => bail!("the daemon ended{}", self.logged()),
            Some(Input::Interrupted(signal)) => bail!("ended by {signal}"),
            None => Ok(false),
        }
    }

    fn next_input(&mut self, deadline: Instant) -> Option<Input> {
        let input = self.inputs.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        self.ended |= matches!(input, Some(Input::Ended));
        input
    }

    fn show(&mut self, line: &str) -> Result<()> {
        self.transcript.push(line);
        print(line)
    }

    /// The daemon's own log, to be appended to an error.
    fn logged(&self) -> String {
        match fs::read_to_string(&self.log) {
            Ok(log) if !log.trim().is_empty() => format!(". Its log:\n{}", log.trim_end()),
            _ => String::new(),
        }
    }

    fn terminate(&self) {
        if let Ok(id) = i32::try_from(self.child.id()) {
            // It may have ended by itself; it was not waited for, so the id is still its own.
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Not waited for yet, unless it stopped on request.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
            let deadline = Instant::now() + DRAIN;
            while !self.ended && self.next_input(deadline).is_some() {}
            // Nothing more can be done for a process that even this does not end.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A port of this machine that was free just now.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    listener.local_addr().context("no port is free")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use nix::errno::Errno;
    use tempfile::TempDir;

    use super::*;

    /// A daemon that is a script.
    fn daemon(script: &str) -> (TempDir, Daemon) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let program = directory.path().join("kevtmon");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("write");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make executable");
        let daemon = Daemon::start(&program, directory.path(), InputQueue::new()).expect("start");
        (directory, daemon)
    }

    #[test]
    fn events_are_awaited_in_their_order_and_counted() {
        let (_directory, mut daemon) = daemon(
            "echo '1 info a.b x'; echo '  y in netns 7'; echo '2 info a.c z in netns 7'; echo '3 info a.b w'
             exec sleep 600",
        );
        daemon.expect("a.b", &["x", "in netns 7"]).expect("first");
        daemon.expect("a.b", &["w"]).expect("last");
        assert_eq!(daemon.count("a.", "in netns 7"), 2);
    }

    #[test]
    fn a_daemon_that_ends_is_an_error_with_its_log() {
        let (_directory, mut daemon) = daemon("echo 'no such kernel' >&2; exit 69");
        let error = daemon.expect("a.b", &[]).unwrap_err().to_string();
        assert!(error.starts_with("the daemon ended") && error.ends_with("no such kernel"), "{error}");
    }

    #[test]
    fn a_daemon_that_fails_when_it_is_stopped_is_an_error() {
        let (_directory, mut daemon) = daemon(
            "sleep 600 >/dev/null &
             trap \"kill $!; wait; exit 3\" TERM
             echo '1 info a.b'
             wait",
        );
        daemon.expect("a.b", &[]).expect("started");
        let error = daemon.stop().unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_signal_ends_a_wait() {
        let (_directory, mut daemon) = daemon("exec sleep 600");
        let (sender, receiver) = sync_channel(1);
        daemon.inputs = receiver;
        sender.send(Input::Interrupted(Signal::SIGINT)).expect("room for one");
        let error = daemon.expect("a.b", &[]).unwrap_err().to_string();
        assert_eq!(error, "ended by SIGINT");
    }

    #[test]
    fn a_dropped_daemon_is_gone() {
        let (_directory, daemon) = daemon("exec sleep 600");
        let id = Pid::from_raw(i32::try_from(daemon.child.id()).expect("a process id"));
        kill(id, None).expect("it lives");
        drop(daemon);
        assert_eq!(kill(id, None), Err(Errno::ESRCH));
    }
}
