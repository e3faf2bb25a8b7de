//! QEMU: the one that is installed, or Debian's packages unpacked in the cache. They are not installed:
//! where a newer QEMU's tools are, apt would have to remove those.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::packages::Apt;
use crate::setup::{self, Privilege};
use crate::workspace;

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";

/// A QEMU that can be started.
#[derive(Debug)]
pub(crate) struct Qemu {
    program: PathBuf,
    /// Where it was unpacked.
    root: Option<PathBuf>,
}

impl Qemu {
    /// The installed one, else an unpacked one, downloaded unless it was before.
    pub(crate) fn of_this_machine(privilege: Privilege) -> Result<Self> {
        if let Some(program) = setup::find_program(&setup::search_path(), PROGRAM) {
            return Ok(Self { program, root: None });
        }
        let (parent, _lock) = super::cache()?;
        let root = parent.join("qemu");
        if !root.is_dir() {
            let partial = tempfile::tempdir_in(&parent).context("cannot create a directory")?;
            let packages = missing_packages()?;
            let names: Vec<&str> = packages.iter().map(String::as_str).collect();
            let apt = Apt::of_this_machine().context("QEMU is not installed, and there is no apt here")?;
            apt.download(&names, partial.path(), privilege)?;
            let unpacked = partial.path().join("root");
            unpack(partial.path(), &unpacked)?;
            fs::rename(&unpacked, &root).with_context(|| format!("cannot create {}", root.display()))?;
        }
        Ok(Self { program: root.join("usr/bin").join(PROGRAM), root: Some(root) })
    }

    /// Starts it, with its own libraries, modules and firmware.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(root) = &self.root {
            let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|path| root.join(path));
            command.env("QEMU_MODULE_DIR", libraries[0].join("qemu"));
            // No part of the path has a colon: cargo could not use such a target directory either.
            command.envs(std::env::join_paths(&libraries).map(|paths| ("LD_LIBRARY_PATH", paths)));
            for directory in ["usr/share/qemu", "usr/share/seabios"] {
                command.arg("-L").arg(root.join(directory));
            }
        }
        command
    }
}

/// The package and those of its dependencies that are not installed.
fn missing_packages() -> Result<Vec<String>> {
    let simulated = Command::new("apt-get")
        .args(["install", "--simulate", "-q", "--no-install-recommends", PACKAGE])
        .output()
        .context("cannot start apt-get")?;
    if !simulated.status.success() {
        let reason = String::from_utf8_lossy(&simulated.stderr).trim().to_owned();
        bail!("apt cannot tell what {PACKAGE} needs: {reason}");
    }
    Ok(to_install(&String::from_utf8_lossy(&simulated.stdout)))
}

/// In what a simulated `apt-get install` prints: `Inst NAME (VERSION …)`.
fn to_install(printed: &str) -> Vec<String> {
    let names = printed.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

fn unpack(packages: &Path, into: &Path) -> Result<()> {
    fs::create_dir(into).with_context(|| format!("cannot create {}", into.display()))?;
    let entries = fs::read_dir(packages).with_context(|| format!("cannot list {}", packages.display()))?;
    for package in entries.flatten().map(|entry| entry.path()) {
        if package.extension().is_some_and(|extension| extension == "deb") {
            workspace::check(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(into))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_to_install_are_named_and_those_to_remove_are_not() {
        let printed = "Reading package lists...\nRemv qemu-utils [1:10]\nInst libslirp0 (4.7 Debian [amd64])\n\
                       Inst qemu-system-x86 (1:7.2 Debian [amd64])\nConf libslirp0 (4.7 Debian [amd64])\n";
        assert_eq!(to_install(printed), ["libslirp0", "qemu-system-x86"]);
    }
}
