//! The journal of systemd: what some units log there, as `journalctl` prints it, which follows it as a child process. Which unit
//! wrote an entry journald knows by itself: fields with an underscore before their name are none that a program can send
//! (systemd.journal-fields(7), "Trusted Journal Fields").

use std::path::PathBuf;

use child::Running;
use entry::{Entry, Lines};
use nix::time::{ClockId, clock_gettime};

use crate::procfs::Proc;

mod child;
mod entry;

/// An entry that is handed out so late is old, microseconds: what comes behind it is as well, and is left out.
const BEHIND: u64 = 60_000_000;
/// Looks, one a second, before the program is started again after its first end, and at most.
const PAUSE: (u32, u32) = (1, 64);
/// Looks after which it is taken to work.
const SETTLED: u32 = 10;

/// Takes each line of an entry, with the index of its unit.
pub(super) type OnLine<'a> = dyn FnMut(usize, &str) + 'a;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// Lines of the program that are no entry or too long, and messages that are too long or no text.
    pub(super) malformed: u64,
    /// Whether some entries were left out, as more was written than is read.
    pub(super) is_behind: bool,
    /// Whether the program ended, so that what is written until it runs again is not read.
    pub(super) was_interrupted: bool,
}

/// A moment on the clock of the journal's entries.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Moment {
    /// As entries have it, without dashes.
    boot: String,
    /// `CLOCK_MONOTONIC`, microseconds.
    monotonic: u64,
}

impl Moment {
    fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
            u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000
                + u64::try_from(now.tv_nsec()).unwrap_or(0) / 1000
        });
        Self { boot: Proc::default().boot_id().replace('-', ""), monotonic: now }
    }
}

#[derive(Debug)]
pub(super) struct Journal {
    program: PathBuf,
    units: Vec<String>,
    running: Option<Running>,
    ended: Vec<Running>,
    since: Moment,
    lines: Lines,
    /// How old an entry may be, microseconds.
    behind: u64,
    /// After how many looks it is taken to work.
    settled: u32,
    looks: u32,
    /// Looks until it is started, and how many there will be the next time.
    pause: (u32, u32),
    failure: Option<String>,
    /// Whether it is told which fields are wanted (since systemd 236).
    names_fields: bool,
}

impl Journal {
    pub(super) fn new(program: PathBuf, units: Vec<String>) -> Self {
        Self {
            program,
            units,
            running: None,
            ended: Vec::new(),
            since: Moment::now(),
            lines: Lines::default(),
            behind: BEHIND,
            settled: SETTLED,
            looks: 0,
            pause: (0, PAUSE.0),
            failure: None,
            names_fields: true,
        }
    }

    /// Reads what came since the last look, at most so many bytes of the program. It is started if it does not run.
    pub(super) fn look(&mut self, bytes: usize, on_line: &mut OnLine<'_>) -> Looked {
        let mut looked = Looked::default();
        self.ended.retain_mut(|ended| !ended.is_gone());
        if self.running.is_none() && !self.start() {
            return looked;
        }
        let Some(running) = &mut self.running else { return looked };
        let now = Moment::now();
        let (units, since, behind) = (&self.units, &self.since, self.behind);
        let mut is_behind = false;
        let lines = &mut self.lines;
        let is_over = running.read(bytes, &mut |part| {
            lines.take(part, &mut looked.malformed, |line| match Entry::parse(line) {
                Some(entry) if entry.is_before(since) => 0,
                Some(entry) => {
                    is_behind |= entry.is_late(&now, behind);
                    let unit = units.iter().position(|unit| entry.is_of(unit));
                    unit.map_or(0, |unit| entry.lines(&mut |line| on_line(unit, line)))
                }
                None => 1,
            });
        });
        self.looks = self.looks.saturating_add(1);
        if is_over {
            looked.was_interrupted = self.end();
        } else if is_behind {
            looked.is_behind = true;
            self.stop();
        } else if self.looks >= self.settled {
            self.pause = (0, PAUSE.0);
            self.failure = None;
        }
        looked
    }

    pub(super) fn problem(&self) -> Option<String> {
        let says = || {
            let says = self.running.as_ref()?.says()?;
            Some(format!("{} says \"{says}\"", self.program.display()))
        };
        self.failure.clone().or_else(says).map(|problem| format!("the journal: {problem}"))
    }

    fn start(&mut self) -> bool {
        if let Some(left) = self.pause.0.checked_sub(1) {
            self.pause.0 = left;
            return false;
        }
        self.since = Moment::now();
        self.lines = Lines::default();
        self.looks = 0;
        match Running::start(&self.program, &self.units, self.names_fields) {
            Ok(running) => self.running = Some(running),
            Err(problem) => self.fail(problem),
        }
        self.running.is_some()
    }

    /// It has ended by itself; whether anything was missed by that.
    fn end(&mut self) -> bool {
        let Some(mut running) = self.running.take() else { return false };
        let (how, says) = (running.end(), running.says().unwrap_or_default());
        self.ended.push(running);
        if self.names_fields && says.contains("output-fields") {
            self.names_fields = false;
            return false;
        }
        let program = self.program.display();
        let says = if says.is_empty() { says } else { format!(": {says}") };
        self.fail(format!("{program} {how}{says}"));
        true
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.end();
            self.ended.push(running);
        }
    }

    fn fail(&mut self, problem: String) {
        let (_, pause) = self.pause;
        self.pause = (pause, (pause * 2).min(PAUSE.1));
        self.failure = Some(problem);
    }
}

#[cfg(test)]
mod tests;
