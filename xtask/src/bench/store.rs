//! The event store: a storm through it, a week of a million events, and how fast the commands answer from that,
//! as whole processes.

mod commands;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build;
use crate::ebpf::ebpf;
use crate::setup::{find_program, search_path};
use crate::workspace;

const EVENTS: u64 = 1_000_000;

pub(super) fn store() -> Result<()> {
    ebpf()?;
    let daemon = build::release()?;
    workspace::check(load()?.arg("--no-run"))?;
    let directory = tempfile::tempdir()?;
    sustained(&directory.path().join("sustained"))?;
    let state = directory.path().join("filled");
    let words = fill(&state)?;
    commands::measure(&daemon, &state, &words)
}

/// The benchmark of the daemon's package that loads a store, built as the daemon is.
fn load() -> Result<Command> {
    let mut cargo = workspace::cargo("bench");
    cargo.args(["--quiet", "--package", "kevtmon-server", "--bench", "store"]);
    Ok(cargo)
}

/// A storm for twenty seconds; with strace the calls that wait for the disk are counted.
fn sustained(state: &Path) -> Result<()> {
    let mut cargo = load()?;
    let calls = state.with_extension("calls");
    let counts = find_program(&search_path(), "strace").is_some();
    if counts {
        let host = build::host_triple()?.to_uppercase().replace('-', "_");
        let strace =
            format!("strace --follow-forks --seccomp-bpf -c -e trace=fsync,fdatasync -o {}", calls.display());
        cargo.env(format!("CARGO_TARGET_{host}_RUNNER"), strace);
    }
    workspace::check(cargo.args(["--", "sustained"]).arg(state))?;
    match counts {
        true => eprintln!("           waited for the disk: {}", syncs(&fs::read_to_string(&calls)?)),
        false => eprintln!("           waits for the disk are not counted: there is no strace"),
    }
    Ok(())
}

/// Of a summary of strace: the calls, in words.
fn syncs(summary: &str) -> String {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.last().filter(|name| ["fsync", "fdatasync"].contains(name))?;
        Some(format!("{} times {name}", words.get(3)?))
    };
    let rows: Vec<String> = summary.lines().filter_map(row).collect();
    if rows.is_empty() { "never".to_owned() } else { rows.join(", ") }
}

/// Fills a store; returns what can be queried, by name.
fn fill(state: &Path) -> Result<serde_json::Value> {
    let output = load()?
        .args(["--", "fill"])
        .arg(state)
        .arg(EVENTS.to_string())
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "the store cannot be filled");
    serde_json::from_slice(&output.stdout).context("the words to ask for")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_are_read_from_the_summary_of_strace() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.052113         226       230           fdatasync\n\
              0.00    0.000000           0         1         1 fsync\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.052113         225       231         1 total\n";
        assert_eq!(syncs(summary), "230 times fdatasync, 1 times fsync");
        assert_eq!(syncs(""), "never");
    }
}
