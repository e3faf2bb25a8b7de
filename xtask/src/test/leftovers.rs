//! What tests leave behind: nothing. What a part has started ends with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What cleans up after a test process that is killed: it ends by itself.
const REAPER: &str = "reaper";

/// Kills a process and all that descends from it.
pub(super) fn end(root: u32) {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(pid) = doomed.get(next) {
        doomed.extend(children.get(pid).into_iter().flatten().filter(|pid| name(**pid) != REAPER));
        next += 1;
    }
    for pid in doomed {
        let Ok(raw) = i32::try_from(pid) else { continue };
        if kill(Pid::from_raw(raw), Signal::SIGKILL) == Err(nix::errno::Errno::EPERM) {
            // Started through sudo. If it cannot be killed it is reported as left.
            let _ = Command::new("sudo")
                .args(["-n", "kill", "-9", &pid.to_string()])
                .stdin(Stdio::null())
                .status();
        }
    }
}

/// The id of each process, and of its parent.
fn processes() -> Vec<(u32, u32)> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
    })
    .collect()
}

fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// How the harness begins the names of what it makes.
const PREFIX: &str = "kv";

/// An error that names what is left of end-to-end tests: processes, mounts, network namespaces, links.
pub(super) fn check(daemon: &Path, tests: &Path) -> Result<()> {
    let mut left = Vec::new();
    for (pid, _) in processes() {
        let executable = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        if executable == daemon || executable == tests {
            left.push(format!("process {pid} ({})", name(pid)));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let scratch = format!("{}/{PREFIX}", std::env::temp_dir().display());
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    left.extend(points.filter(|point| point.starts_with(&scratch)).map(|point| format!("mount {point}")));
    for (directory, what) in [("/run/netns", "network namespace"), ("/sys/class/net", "link")] {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        left.extend(names.filter(|name| name.starts_with(PREFIX)).map(|name| format!("{what} {name}")));
    }
    if !left.is_empty() {
        bail!("left behind: {}", left.join(", "));
    }
    Ok(())
}
