//! The daemon of the demo: its output goes to the terminal as it comes, and into a transcript in which the events that are due are
//! looked for.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use kevtmon_tests::daemon::{self, launch_of};

use super::print;
use super::transcript::Transcript;

/// How long an event may take, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(15);

/// An event is written at once: after this silence it is complete.
const SILENCE: Duration = Duration::from_millis(50);

/// On a machine where much happens there may be no silence.
const NO_SILENCE: Duration = Duration::from_secs(1);

/// What a terminal shows: less severe events are not of interest there either.
const CONFIG: &str = "[output]\nmin_severity = \"info\"\n";

pub(super) struct Daemon {
    daemon: daemon::Daemon,
    lines: Receiver<(String, SystemTime)>,
    transcript: Transcript,
    /// Events before this one were expected and came.
    next: usize,
}

impl Daemon {
    pub(super) fn start(program: &Path) -> Self {
        let launch = launch_of(program.to_owned()).output("pretty").config(CONFIG);
        let mut daemon = launch.read_later().spawn();
        let lines = daemon.unparsed();
        Self { daemon, lines, transcript: Transcript::default(), next: 0 }
    }

    /// Its metrics, as it writes them.
    pub(super) fn metrics(&self) -> String {
        self.daemon.metrics().text
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
                    "the daemon reported no {kind}{words} within {} s; it says at its start what this kernel lacks. \
                     Its log:\n{}",
                    PATIENCE.as_secs(),
                    self.daemon.log()
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
        self.daemon.stop();
        while let Ok((line, _)) = self.lines.recv() {
            self.show(&line)?;
        }
        Ok(())
    }

    /// Shows the next line; false when none came in time.
    fn receive(&mut self, deadline: Instant) -> Result<bool> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((line, _)) => self.show(&line).map(|()| true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the daemon ended. Its log:\n{}", self.daemon.log())
            }
        }
    }

    fn show(&mut self, line: &str) -> Result<()> {
        self.transcript.push(line);
        print(line)
    }
}
