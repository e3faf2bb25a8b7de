//! QEMU: the one that is installed, or Debian's packages unpacked in the cache. They are not installed:
//! where a newer QEMU's tools are, apt would have to remove those.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::arch::{Arch, Emulator};
use crate::packages::Apt;
use crate::setup::{self, Privilege};

/// A QEMU that can be started.
#[derive(Debug)]
pub(crate) struct Qemu {
    program: PathBuf,
    /// Where it was unpacked.
    root: Option<PathBuf>,
}

impl Qemu {
    /// The installed one for an architecture, else an unpacked one, downloaded unless it was before.
    pub(crate) fn of_this_machine(arch: Arch, privilege: Privilege) -> Result<Self> {
        let Emulator { program: name, package, directory } = arch.emulator();
        if let Some(program) = setup::find_program(&setup::search_path(), name) {
            return Ok(Self { program, root: None });
        }
        let (parent, _lock) = super::cache()?;
        let root = parent.join(directory);
        if !root.is_dir() {
            let apt = Apt::of_this_machine().context("QEMU is not installed, and there is no apt here")?;
            apt.unpack(&[package], &root, privilege)?;
        }
        Ok(Self { program: root.join("usr/bin").join(name), root: Some(root) })
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
