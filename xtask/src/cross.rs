//! The daemon and its tests for another architecture, compiled here: `cargo xtask build --target aarch64-unknown-linux-gnu`.
//!
//! The kernel programs are the same for all little-endian ones. What is missing is installed: the standard library by
//! rustup, the C compiler and library by apt.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::build::{DAEMON, host_triple};
use crate::ebpf::ebpf;
use crate::prerequisites::{self, Prerequisite, program};
use crate::setup::{self, Privilege, Step};
use crate::static_link::is_static;
use crate::workspace;

struct Architecture {
    target: &'static str,
    compiler: &'static str,
    needs: [Prerequisite; 2],
}

static ARCHITECTURES: [Architecture; 1] = [Architecture {
    target: CHECKED,
    compiler: "aarch64-linux-gnu-gcc",
    needs: [
        program("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu", "compiles SQLite, and links"),
        program("/usr/aarch64-linux-gnu/lib/libc.a", "libc6-dev-arm64-cross", "is linked into the daemon"),
    ],
}];

/// What lint compiles, and virtual machines run.
pub(crate) const CHECKED: &str = "aarch64-unknown-linux-gnu";

pub(crate) fn build(target: &str, release: bool) -> Result<PathBuf> {
    if target == host_triple()? {
        bail!("{target} is this machine's own: leave --target out");
    }
    let mut cargo = cargo(target, "build")?;
    ebpf()?;
    cargo.args(["--package", DAEMON]);
    if release {
        cargo.arg("--release");
    }
    workspace::check(&mut cargo)?;
    let profile = if release { "release" } else { "debug" };
    let daemon = workspace::target().join(target).join(profile).join(DAEMON);
    if !is_static(&daemon)? {
        bail!("{} is not static", workspace::shown(&daemon));
    }
    eprintln!("xtask: {} is static", workspace::shown(&daemon));
    Ok(daemon)
}

/// Has the compiler look at the daemon for a target, and link nothing. Skipped where what that takes cannot be installed.
pub(crate) fn check(target: &str) -> Result<()> {
    if let Some(lack) = lack(target)? {
        eprintln!("xtask: skipped: {lack}");
        return Ok(());
    }
    workspace::check(cargo(target, "check")?.args(["--package", DAEMON]))
}

/// What cannot be installed here of what compiling for a target takes; None if all can.
pub(crate) fn lack(target: &str) -> Result<Option<String>> {
    let architecture = find(target)?;
    let directories = setup::search_path();
    let has = |program| setup::find_program(&directories, program).is_some();
    let is_possible = has("rustup") && (has("apt-get") || has(architecture.compiler));
    let lack = || format!("compiling for {target} takes rustup, and Debian's cross compiler");
    Ok((!is_possible).then(lack))
}

/// Cargo for a target, with what that takes installed.
pub(crate) fn cargo(target: &str, subcommand: &str) -> Result<Command> {
    let architecture = find(target)?;
    architecture.prepare(Privilege::of_this_user())?;
    let mut cargo = architecture.cargo(subcommand);
    cargo.args(["--target", target]);
    Ok(cargo)
}

/// Why it cannot be built for a target without more being installed than a library of Rust's or of C; None if it can.
pub(crate) fn obstacle(target: &str) -> Option<String> {
    let Ok(architecture) = find(target) else {
        return Some("no cross compiler for it is known here".to_owned());
    };
    let directories = setup::search_path();
    let has = |program| setup::find_program(&directories, program).is_some();
    if !has(architecture.compiler) {
        let install = format!("`cargo xtask build --target {target}` installs it");
        return Some(format!("{} is not installed; {install}", architecture.compiler));
    }
    (!has("rustup")).then(|| "rustup, which has Rust's library for it, is not installed".to_owned())
}

fn find(target: &str) -> Result<&'static Architecture> {
    let known = ARCHITECTURES.iter().map(|known| known.target).collect::<Vec<_>>().join(", ");
    let found = ARCHITECTURES.iter().find(|known| known.target == target);
    found.with_context(|| format!("{target} is not known: expected {known}"))
}

impl Architecture {
    fn prepare(&self, privilege: Privilege) -> Result<()> {
        prerequisites::ensure(&format!("programs for {}", self.target), &self.needs, privilege)?;
        let mut sysroot = Command::new("rustc");
        let printed = sysroot.args(["--print", "sysroot"]).current_dir(workspace::root()).output();
        let printed = printed.context("cannot start rustc")?.stdout;
        let library =
            PathBuf::from(String::from_utf8_lossy(&printed).trim()).join("lib/rustlib").join(self.target);
        if !library.is_dir() {
            let step = Step::user(&["rustup", "target", "add", self.target]);
            setup::carry_out(&format!("Rust has no library for {}", self.target), &[step], privilege)?;
        }
        Ok(())
    }

    /// With the compiler and linker of the architecture, for libraries in C as well.
    fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = workspace::cargo(subcommand);
        let name = self.target.to_uppercase().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{name}_LINKER"), self.compiler);
        cargo.env(format!("CC_{}", self.target.replace('-', "_")), self.compiler);
        cargo
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_is_answered_with_the_known_ones() {
        assert!(obstacle("sparc64-unknown-linux-gnu").is_some());
        let error = find("sparc64-unknown-linux-gnu").map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "sparc64-unknown-linux-gnu is not known: expected aarch64-unknown-linux-gnu");
    }
}
