//! Whom a program names as a user of a mount, and how long that takes it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kevtmon_tests::daemon::program;
use kevtmon_tests::process::{finish, is_installed};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Kevtmon,
    /// Is content with those who see the mount, if they hold it.
    KevtmonNear,
    Fuser,
    Lsof,
    Lsfd,
}

impl Program {
    /// Ours come first.
    pub(crate) const ALL: [Self; 5] = [Self::Kevtmon, Self::KevtmonNear, Self::Fuser, Self::Lsof, Self::Lsfd];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kevtmon => "kevtmon holders",
            Self::KevtmonNear => "kevtmon holders --near",
            Self::Fuser => "fuser -vm",
            Self::Lsof => "lsof",
            Self::Lsfd => "lsfd",
        }
    }

    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Kevtmon | Self::KevtmonNear)
    }

    /// All that there are here; says which is missing.
    pub(crate) fn installed() -> Vec<Self> {
        // Debian before 12, and others of its time, have none.
        let has_lsfd = is_installed("lsfd");
        if !has_lsfd {
            println!(
                "lsfd is not installed: it is in util-linux since 2.38, on Debian 12 in util-linux-extra"
            );
        }
        Self::ALL.into_iter().filter(|program| has_lsfd || *program != Self::Lsfd).collect()
    }

    fn command(self, mount: &Path) -> Vec<String> {
        let own = program().to_string_lossy().into_owned();
        // Without a daemon: what there is of names is the same for all.
        let alone =
            [own.as_str(), "holders", "--json", "--socket", "/nonexistent", "--state-dir", "/nonexistent"];
        let words = match self {
            Self::Kevtmon => alone.to_vec(),
            Self::KevtmonNear => [&alone[..], &["--near"][..]].concat(),
            Self::Fuser => vec!["fuser", "-vm"],
            Self::Lsof => vec!["lsof", "-w", "--"],
            Self::Lsfd => {
                // It knows file systems by the numbers of their devices only.
                let filter = format!("DEV == {:?}", device(mount));
                let words = ["lsfd", "--noheadings", "--raw", "--output", "PID", "--filter"];
                return words.into_iter().map(str::to_owned).chain([filter]).collect();
            }
        };
        let path = mount.to_string_lossy().into_owned();
        words.into_iter().map(str::to_owned).chain([path]).collect()
    }

    fn pids(self, output: &str) -> BTreeSet<u32> {
        match self {
            Self::Kevtmon | Self::KevtmonNear => {
                let answer: Value = serde_json::from_str(output).unwrap_or_default();
                let holders = answer["holders"].as_array().cloned().unwrap_or_default();
                let pids = holders.iter().filter_map(|holder| holder["pid"].as_u64()?.try_into().ok());
                pids.collect()
            }
            Self::Fuser | Self::Lsfd => {
                output.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
            }
            Self::Lsof => {
                let pid = |line: &str| line.split_ascii_whitespace().nth(1)?.parse().ok();
                output.lines().skip(1).filter_map(pid).collect()
            }
        }
    }
}

/// `major:minor` of what is mounted there, without asking its file system.
fn device(mount: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let point = mount.to_string_lossy().replace(' ', "\\040");
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = fields.rev().find(|fields| fields.get(4) == Some(&point.as_str()));
    found.map_or_else(String::new, |fields| fields[2].to_owned())
}

pub(crate) struct Answer {
    pub(crate) pids: BTreeSet<u32>,
    pub(crate) seconds: f64,
    /// Whether it ended by itself.
    pub(crate) has_ended: bool,
}

/// Asks; within a time, after which it is killed.
pub(crate) fn ask(program: Program, mount: &Path, within: Option<Duration>) -> Answer {
    let limit = within.map(|within| ["timeout".into(), "--signal=KILL".into(), within.as_secs().to_string()]);
    let words: Vec<String> = limit.into_iter().flatten().chain(program.command(mount)).collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    let began = Instant::now();
    let ran = finish(&mut command, words[0].as_ref());
    let seconds = began.elapsed().as_secs_f64();
    // timeout(1) kills itself, too.
    let has_ended = ran.status.code().is_some_and(|code| code != 137);
    Answer { pids: program.pids(&ran.stdout), seconds, has_ended }
}
