//! `cargo xtask lint`: formatting, clippy for host and kernel code, words that are not used, and dependencies.

mod dependencies;
mod words;

use std::process::Stdio;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::cross;
use crate::ebpf;
use crate::setup::{self, Privilege, Step};
use crate::workspace;

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Which check; all of them but `dependencies` when not given
    check: Option<Check>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Formatting of all packages
    Format,
    /// Clippy on all packages
    Clippy,
    /// Clippy on the kernel programs
    Programs,
    /// That the daemon compiles for arm64
    Arm64,
    /// Words for which there is a standard term
    Words,
    /// Those of them that compile nothing
    Quick,
    /// Sources, licenses and known weaknesses of dependencies
    Dependencies,
}

impl Check {
    fn run(self) -> Result<()> {
        match self {
            Self::Format => formatting(),
            Self::Clippy => clippy(),
            Self::Programs => clippy_of_programs(),
            Self::Arm64 => cross::check(cross::CHECKED),
            Self::Words => words::check(),
            Self::Quick => all(&[Self::Format, Self::Words]),
            Self::Dependencies => dependencies::check(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Format => "formatting",
            Self::Clippy => "clippy",
            Self::Programs => "clippy of the kernel programs",
            Self::Arm64 => "the daemon for arm64",
            Self::Words => "words",
            Self::Quick => "what compiles nothing",
            Self::Dependencies => "dependencies",
        }
    }
}

/// What runs when no check is named.
const DEFAULT: [Check; 5] = [Check::Format, Check::Clippy, Check::Programs, Check::Arm64, Check::Words];

/// Runs the requested checks; an error names those that failed.
pub(crate) fn lint(options: &Options) -> Result<()> {
    match options.check {
        Some(check @ (Check::Words | Check::Dependencies)) => return check.run(),
        Some(check) => {
            ensure_components()?;
            return check.run();
        }
        None => ensure_components()?,
    }
    all(&DEFAULT)
}

fn all(checks: &[Check]) -> Result<()> {
    let mut failed = Vec::new();
    for check in checks {
        if let Err(error) = check.run() {
            eprintln!("xtask: {}: {error:#}", check.name());
            failed.push(check.name());
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn formatting() -> Result<()> {
    workspace::check(workspace::cargo("fmt").args(["--all", "--check"]))
}

fn clippy() -> Result<()> {
    workspace::check(
        workspace::cargo("clippy").args(["--workspace", "--all-targets", "--", "--deny", "warnings"]),
    )
}

/// For the host, since a clippy for the compiler of the kernel target is rarely installed; nothing is linked. The
/// profile aborts on panic, which code without std needs.
fn clippy_of_programs() -> Result<()> {
    let mut cargo = workspace::cargo("clippy");
    cargo.args([
        "--profile",
        ebpf::PROFILE,
        "--package",
        "kevtmon-ebpf",
        "--bin",
        "kevtmon-ebpf",
        "--features",
        "programs",
    ]);
    cargo.arg("--target-dir").arg(workspace::target().join("bpf-lint"));
    workspace::check(cargo.args(["--", "--deny", "warnings"]))
}

fn ensure_components() -> Result<()> {
    let missing: Vec<&str> = [("fmt", "rustfmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(subcommand, _component)| {
            let mut cargo = workspace::cargo(subcommand);
            cargo.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            !cargo.status().is_ok_and(|status| status.success())
        })
        .map(|(_subcommand, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let why = format!("lint needs {}", missing.join(" and "));
    if setup::find_program(&setup::search_path(), "rustup").is_none() {
        bail!(
            "{why}: install the packages of the Rust compiler in use that bring `cargo fmt` and `cargo clippy`"
        );
    }
    let mut argv = vec!["rustup", "component", "add"];
    let toolchain = std::env::var("RUSTUP_TOOLCHAIN").ok();
    if let Some(toolchain) = &toolchain {
        argv.extend(["--toolchain", toolchain]);
    }
    argv.extend(missing);
    setup::carry_out(&why, &[Step::user(&argv)], Privilege::of_this_user())
}
