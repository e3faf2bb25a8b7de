//! A fresh Debian, for the tests of the package: its essential packages, systemd and a few others, as an archive in the user's
//! cache. Made by mmdebstrap of the mirror from which this machine has its packages.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::kubernetes::{KEYRING, SUITE, cache, is_possible, mirror};
use crate::prerequisites::{self, Prerequisite, program};
use crate::setup::{self, Privilege};
use crate::workspace;

/// Changed with what is in it, so that it is made again.
const RECIPE: u32 = 2;

/// Systemd with services that nearly every Debian runs, and what the checks under systemd start. Without `procps`, which the
/// package does not depend on.
const PACKAGES: &str = "--include=systemd,udev,dbus,iproute2,curl,bpftool";

pub(crate) const PREREQUISITES: [Prerequisite; 2] = [
    program("mmdebstrap", "mmdebstrap", "makes it"),
    program(KEYRING, "debian-archive-keyring", "proves that it is Debian's"),
];

/// The archive; made, unless it was before. None where there is no apt to make it.
pub(crate) fn root(privilege: Privilege) -> Result<Option<PathBuf>> {
    let cache = cache()?;
    let archive = cache.join(format!("debian-{SUITE}-{}-{RECIPE}.tar", std::env::consts::ARCH));
    // Another checkout may make it now.
    let _lock = setup::lock(&cache, "debian.lock")?;
    if archive.is_file() {
        return Ok(Some(archive));
    }
    if !is_possible() {
        eprintln!("xtask: no Debian for the tests of the package: there is no apt here");
        return Ok(None);
    }
    prerequisites::ensure("the tests of the package", &PREREQUISITES, privilege)?;
    eprintln!("xtask: making a Debian {SUITE} for the tests of the package, once");
    let work = tempfile::tempdir_in(&cache).context("cannot create a directory")?;
    let made = work.path().join("root.tar");
    let made_shown = made.to_string_lossy();
    let words = ["mmdebstrap", "--quiet", "--variant=essential", PACKAGES, SUITE, &made_shown, &mirror()];
    let argv: Vec<String> = words.map(str::to_owned).into();
    let command = privilege.as_root(&argv, &[]).context("mmdebstrap needs root, and there is no sudo here");
    workspace::check(&mut command?)?;
    fs::rename(&made, &archive).with_context(|| format!("cannot create {}", archive.display()))?;
    Ok(Some(archive))
}
