//! Logs, of which a few lines are of interest: the kernel's own messages, and what kubelets, runtimes and drivers write to files or to
//! the journal of systemd. Off unless the configuration names some.
//!
//! A thread of its own reads them once a second, as a disk may hang, and reads so much and no more. What it does not read is
//! counted and said.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use follow::Followed;
use journal::Journal;
use kevtmon_observation::{Fact, LogLine, Loss, SourceKind, SourceStatus};
use kevtmon_types::error_chain::chain;
use kevtmon_types::settings::{Values, settings};
use kmsg::Messages;
use pace::{Pace, Progress};
use recognise::Recognised;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::kubelet::{plain_path, plain_paths};
use super::{Sender, observed_now, spawn_until_closed};

mod follow;
mod journal;
mod kmsg;
mod pace;
mod recognise;

settings! { "logs":
    /// Whether the kernel's messages are read: /dev/kmsg, without what programs write there. Where kernel.dmesg_restrict is set,
    /// that takes CAP_SYSLOG when kevtmon starts, which the systemd unit does not have: a drop-in with
    /// CapabilityBoundingSet=CAP_SYSLOG adds it. A container that is not privileged has no /dev/kmsg.
    KMSG: bool = "kmsg", default false;
    /// Files that kubelets, runtimes and drivers log to, 8 at most. What they say is quoted, and never taken for a fact; still,
    /// nobody but root should be able to write there. /var/log/messages and /var/log/syslog are no such files: any user writes
    /// to them by syslog(3). Each is a regular file, and no link.
    FILES: Files = "files", default Files::default();
    /// Units of systemd of which the journal is read, 8 at most: those that kubelets, runtimes and drivers run as, such as
    /// kubelet.service, docker.service and containerd.service. What they say is quoted, and never taken for a fact. It is read
    /// by journalctl, which a container of kevtmon does not have: what is logged to the journal alone is not read there.
    JOURNAL: Units = "journal", default Units::default();
    /// The program that follows the journal, as journalctl of systemd does. Nobody but root may be able to write to it.
    JOURNALCTL: Program = "journalctl", default Program::default();
}

/// The source, as in [`SourceStatus::source`].
pub const NAME: &str = "logs";
/// What the log of a unit is called begins so.
const OF_JOURNAL: &str = "journal:";
const DEVICE: &str = "/dev/kmsg";
const INTERVAL: Duration = Duration::from_secs(1);
/// What is read in that time at most: of all files, of what the journal is printed as, and of the kernel's messages.
const BYTES: usize = 1 << 20;
const RECORDS: usize = 2000;
/// Lines of one log that are handed on in that time.
const LINES: usize = 20;
/// How often is said that something was left out.
const SAY: Duration = Duration::from_secs(60);
const FILES_MAX: usize = 8;
/// Units at most, and the longest name of one (`UNIT_NAME_MAX` of systemd's src/basic/unit-name.h, with the end of the text).
const UNITS_MAX: usize = 8;
const UNIT_MAX: usize = 255;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Files(pub Vec<PathBuf>);

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let paths = plain_paths(from, "/var/log/kubelet.log")?;
        if paths.len() > FILES_MAX {
            return Err(serde::de::Error::custom(format!("expected {FILES_MAX} files at most")));
        }
        Ok(Self(paths))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Units(pub Vec<String>);

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let units = Vec::<String>::deserialize(from)?;
        if let Some(unit) = units.iter().find(|unit| !is_unit(unit)) {
            return Err(serde::de::Error::custom(format!(
                "{unit:?} is not valid: expected the full name of a unit such as kubelet.service"
            )));
        }
        if units.len() > UNITS_MAX {
            return Err(serde::de::Error::custom(format!("expected {UNITS_MAX} units at most")));
        }
        Ok(Self(units))
    }
}

/// Whether processes can be in a unit of this name: a service or a scope, by the characters of systemd.unit(5).
fn is_unit(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    let stem = name.strip_suffix(".service").or_else(|| name.strip_suffix(".scope"));
    name.len() <= UNIT_MAX && stem.is_some_and(|stem| !stem.is_empty() && stem.bytes().all(is_of_name))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Program(pub PathBuf);

impl Default for Program {
    fn default() -> Self {
        Self("/usr/bin/journalctl".into())
    }
}

impl<'de> Deserialize<'de> for Program {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        plain_path(from, "/usr/bin/journalctl").map(Self)
    }
}

/// The logs of the configuration, of which the kernel's is open: that may take what a running daemon has no more.
#[derive(Debug)]
pub struct Logs {
    messages: Option<Messages<File>>,
    files: Vec<Followed>,
    journal: Option<UnitLogs>,
    refused: Option<String>,
}

impl Logs {
    pub fn open(values: &Values) -> Option<Self> {
        let files = values.get(&FILES).0;
        let (wants_kernels, units) = (values.get(&KMSG), values.get(&JOURNAL).0);
        if !wants_kernels && files.is_empty() && units.is_empty() {
            return None;
        }
        let opened = wants_kernels.then(|| kmsg::open(Path::new(DEVICE)));
        let (file, refused) = match opened {
            Some(Ok(file)) => (Some(file), None),
            Some(Err(error)) => (None, Some(format!("cannot open {DEVICE}: {}", chain(&error)))),
            None => (None, None),
        };
        let files = files.into_iter().map(Followed::new).collect();
        let journal = (!units.is_empty()).then(|| UnitLogs::new(values.get(&JOURNALCTL).0, units));
        Some(Self { messages: file.map(Messages::new), files, journal, refused })
    }

    pub fn start(self, tx: Sender) {
        let (ticks, due) = mpsc::channel(1);
        let progress = Arc::new(Progress::default());
        let mut pace = Pace { ticks, tx: tx.clone(), progress: Arc::clone(&progress), missed: 0 };
        spawn_until_closed(tx.clone(), async move {
            loop {
                sleep(INTERVAL).await;
                if !pace.tick() {
                    return;
                }
            }
        });
        // It waits for no disk: the first look comes after it.
        let status = status(self.refused.iter());
        let _ = tx.try_send(observed_now(Fact::Source(status.clone())));
        let follower = Follower { logs: self, tx, told: status, left_out: LeftOut::default(), progress };
        let thread = thread::Builder::new().name(NAME.to_owned());
        if let Err(error) = thread.spawn(move || follower.run(due)) {
            tracing::warn!(%error, "logs are not read");
        }
    }
}

#[derive(Debug)]
struct UnitLogs {
    journal: Journal,
    names: Vec<String>,
}

impl UnitLogs {
    fn new(program: PathBuf, units: Vec<String>) -> Self {
        let names = units.iter().map(|unit| format!("{OF_JOURNAL}{unit}")).collect();
        Self { journal: Journal::new(program, units), names }
    }
}

/// With what cannot be read.
fn status<'a>(problems: impl Iterator<Item = &'a String>) -> SourceStatus {
    let problems: Vec<&str> = problems.map(String::as_str).collect();
    let reason = (!problems.is_empty()).then(|| problems.join("; "));
    SourceStatus { reason, ..SourceStatus::up(SourceKind::Logs, NAME) }
}

#[derive(Debug, Default)]
struct LeftOut {
    overrun: u64,
    /// Whether a part of a file was: how many lines that were is not known.
    behind: bool,
    torn: bool,
    interrupted: bool,
    /// Lines that were recognised, beyond those that are handed on.
    beyond: u64,
    malformed: u64,
    said: Option<Instant>,
    has_warned: BTreeSet<&'static str>,
}

impl LeftOut {
    fn facts(&mut self, now: Instant) -> Vec<Fact> {
        if self.said.is_some_and(|said| now.duration_since(said) < SAY) {
            return Vec::new();
        }
        let counts = [
            ("overrun", std::mem::take(&mut self.overrun)),
            ("too-many-lines", std::mem::take(&mut self.beyond)),
        ];
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let unknown = [
            ("too-fast", std::mem::take(&mut self.behind)),
            ("rotated", std::mem::take(&mut self.torn)),
            ("interrupted", std::mem::take(&mut self.interrupted)),
        ];
        let unknown = unknown.into_iter().filter(|(_, is_so)| *is_so);
        let losses = counts.map(|(reason, count)| (reason, Some(count)));
        let losses = losses.chain(unknown.map(|(reason, _)| (reason, None)));
        let mut facts: Vec<Fact> = losses
            .map(|(reason, count)| {
                Fact::Lost(Loss { source: NAME.to_owned(), reason: reason.to_owned(), count })
            })
            .collect();
        let count = std::mem::take(&mut self.malformed);
        if count > 0 {
            if self.has_warned.insert("malformed") {
                tracing::warn!(
                    "a log has lines that are too long or no text; what is not understood is left out"
                );
            }
            facts.push(Fact::Malformed { source: NAME.to_owned(), count });
        }
        if !facts.is_empty() {
            self.said = Some(now);
        }
        facts
    }
}

struct Follower {
    logs: Logs,
    tx: Sender,
    told: SourceStatus,
    left_out: LeftOut,
    progress: Arc<Progress>,
}

impl Follower {
    fn run(mut self, mut due: mpsc::Receiver<()>) {
        while due.blocking_recv().is_some() {
            for fact in self.look() {
                if self.tx.blocking_send(observed_now(fact)).is_err() {
                    return;
                }
            }
        }
    }

    fn look(&mut self) -> Vec<Fact> {
        self.progress.at(DEVICE);
        let mut facts = self.messages();
        // Each file has its share, whatever the others grow by, and what those before it leave over.
        let share = BYTES / self.logs.files.len().max(1);
        let mut room = 0_usize;
        let mut problems = Vec::new();
        for file in &mut self.logs.files {
            let log = file.path.display().to_string();
            self.progress.at(&log);
            room += share;
            let mut hits = Hits::of(&log);
            let looked = file.look(room, &mut |line| hits.take(recognise::of_program(line)));
            facts.append(&mut hits.facts);
            self.left_out.beyond += hits.beyond;
            match looked {
                Ok(looked) => {
                    room = room.saturating_sub(looked.bytes);
                    if looked.skipped > 0 {
                        tracing::warn!(log, bytes = looked.skipped, "a log grows faster than it is read");
                    }
                    self.left_out.behind |= looked.skipped > 0;
                    self.left_out.torn |= looked.is_torn;
                    self.left_out.malformed += looked.malformed;
                    if looked.is_missing {
                        problems.push(format!("{log} is not there"));
                    }
                }
                Err(error) => {
                    room = room.saturating_sub(share);
                    problems.push(format!("cannot read {log}: {}", chain(&error)));
                }
            }
        }
        // The one that was last gets most; another one is last then.
        if !self.logs.files.is_empty() {
            self.logs.files.rotate_left(1);
        }
        facts.append(&mut self.journal(&mut problems));
        problems.sort();
        let status = status(self.logs.refused.iter().chain(&problems));
        if self.progress.was_overruled() || status != self.told {
            self.told = status.clone();
            facts.push(Fact::Source(status));
        }
        facts.extend(self.left_out.facts(Instant::now()));
        facts
    }

    fn journal(&mut self, problems: &mut Vec<String>) -> Vec<Fact> {
        let Some(UnitLogs { journal, names }) = &mut self.logs.journal else { return Vec::new() };
        self.progress.at("the journal");
        let mut hits: Vec<Hits<'_>> = names.iter().map(|name| Hits::of(name)).collect();
        let looked = journal.look(BYTES, &mut |unit, line| {
            if let Some(hits) = hits.get_mut(unit) {
                hits.take(recognise::of_program(line));
            }
        });
        if looked.is_behind {
            tracing::warn!("the journal grows faster than it is read");
        }
        self.left_out.behind |= looked.is_behind;
        self.left_out.interrupted |= looked.was_interrupted;
        self.left_out.malformed += looked.malformed;
        self.left_out.beyond += hits.iter().map(|hits| hits.beyond).sum::<u64>();
        problems.extend(journal.problem());
        hits.into_iter().flat_map(|hits| hits.facts).collect()
    }

    fn messages(&mut self) -> Vec<Fact> {
        let Some(messages) = &mut self.logs.messages else { return Vec::new() };
        let looked = messages.look(RECORDS);
        if looked.is_over {
            self.logs.messages = None;
            self.logs.refused = Some(format!("{DEVICE} cannot be read any more"));
        }
        self.left_out.overrun += looked.lost;
        self.left_out.malformed += looked.malformed;
        let mut hits = Hits::of(DEVICE);
        looked.lines.iter().for_each(|line| hits.take(recognise::of_kernel(line)));
        self.left_out.beyond += hits.beyond;
        hits.facts
    }
}

/// What was recognised in one log, as far as there is room for it.
struct Hits<'a> {
    log: &'a str,
    facts: Vec<Fact>,
    beyond: u64,
}

impl<'a> Hits<'a> {
    fn of(log: &'a str) -> Self {
        Self { log, facts: Vec::new(), beyond: 0 }
    }

    fn take(&mut self, line: Option<Recognised>) {
        let Some(Recognised { says, text }) = line else { return };
        if self.facts.len() < LINES {
            self.facts.push(Fact::Log(Box::new(LogLine { log: self.log.to_owned(), text, says })));
        } else {
            self.beyond += 1;
        }
    }
}

#[cfg(test)]
mod tests;
