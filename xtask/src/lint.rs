//! `cargo xtask lint`: formatting, clippy for host and kernel code, and the house rules that no compiler checks.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::conformance;
use crate::setup::{self, Privilege, Step};
use crate::workspace;

type Check = fn() -> Result<()>;

/// Runs every check; an error names those that failed.
pub(crate) fn lint() -> Result<()> {
    ensure_components()?;
    let checks: [(&str, Check); 4] = [
        ("formatting", formatting),
        ("clippy", clippy),
        ("clippy of the kernel programs", clippy_of_programs),
        ("house rules", house_rules),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        if let Err(error) = check() {
            eprintln!("xtask: {name}: {error:#}");
            failed.push(name);
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
    workspace::check(workspace::cargo("clippy").args([
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))
}

/// For the host, since a clippy for the compiler of the kernel target is rarely installed; nothing is linked. The
/// release profile aborts on panic, which code without std needs.
fn clippy_of_programs() -> Result<()> {
    let mut cargo = workspace::cargo("clippy");
    cargo.args(["--release", "--package", "kevtmon-ebpf", "--bin", "kevtmon-ebpf", "--features", "programs"]);
    cargo.arg("--target-dir").arg(workspace::target().join("bpf-lint"));
    workspace::check(cargo.args(["--", "--deny", "warnings"]))
}

fn house_rules() -> Result<()> {
    let root = workspace::root();
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.rs"])
        .current_dir(&root)
        .output()
        .context("cannot start git")?;
    if !listed.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    let mut findings = Vec::new();
    let mut files = 0_u32;
    for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        // Git still lists a file that was deleted in the work tree only.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        files += 1;
        findings.extend(conformance::check(path, &text));
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} broken", findings.len());
    }
    eprintln!("xtask: {files} files keep the house rules");
    Ok(())
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
