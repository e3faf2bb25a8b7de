//! `cargo xtask test systemd`: the package in a Debian whose process 1 is systemd, in a virtual machine.
//!
//! In: the daemon, a kernel, and the archive of a fresh Debian. Out: a verdict per check, and a transcript of what was run. The
//! guest unpacks Debian into memory (`init.sh`); a service there runs the checks (`check.sh`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use kevtmon_packaging::{Architecture, Release, deb, reference};

use super::archive::Archive;
use super::kernels::Kernel;
use super::qemu::Qemu;
use super::{Arch, Scope, machine};
use crate::debian;
use crate::setup::{self, Privilege};
use crate::test::daemon;
use crate::workspace;

/// Where they are in the guest at first.
const SCRIPTS: [(&str, &str); 3] = [
    ("/init", include_str!("systemd/init.sh")),
    ("/check/check.sh", include_str!("systemd/check.sh")),
    ("/check/check.service", include_str!("systemd/check.service")),
];

/// Of all files in the packages, in seconds since 1970.
const TIME: u64 = 1_700_000_000;

/// Runs the checks. Where the machine cannot be made, that is an error if they are `required`.
pub(crate) fn test(required: bool) -> Result<()> {
    let privilege = Privilege::of_this_user();
    let Some((kernel, debian)) = parts(privilege)? else {
        let reason = "the machine is made of Debian's amd64 packages, which apt does not offer here";
        if required {
            bail!("{reason}");
        }
        eprintln!("xtask: skipped: {reason}");
        return Ok(());
    };
    let qemu = Qemu::of_this_machine(kernel.arch, privilege)?;
    let work = tempfile::tempdir().context("cannot create a directory")?;
    let packages = packages(&daemon()?, work.path())?;
    let initramfs = super::write("systemd.initramfs", &collect(&kernel, &debian, &packages)?)?;
    let passed = machine::run(&qemu, &kernel, &initramfs, &[], &mut io::stderr());
    eprintln!("xtask: the transcript is {}", workspace::shown(&initramfs.with_extension("log")));
    passed.map(drop)
}

/// A kernel, and the archive of a Debian; None where one of them cannot be had.
fn parts(privilege: Privilege) -> Result<Option<(Kernel, PathBuf)>> {
    let Some(kernel) = super::prepare(Arch::Amd64, &[], Scope::Gate, privilege)?.into_iter().next() else {
        return Ok(None);
    };
    Ok(debian::root(privilege)?.map(|debian| (kernel, debian)))
}

/// The package that is installed, and one of a higher version; each in a directory of its own in the guest.
fn packages(daemon: &Path, work: &Path) -> Result<[(&'static str, PathBuf); 2]> {
    let (stripped, reference) = (work.join("kevtmon"), work.join("reference"));
    // Symbols take long to pack.
    workspace::check(Command::new("strip").arg("-o").arg(&stripped).arg(daemon))?;
    reference::write(daemon, &reference, TIME)?;
    let architecture = Architecture::of_this_machine().context("this machine's architecture is not known")?;
    let pack = |version: String| {
        let release = Release {
            root: workspace::root(),
            version,
            architecture,
            time: TIME,
            daemon: stripped.clone(),
            reference: reference.clone(),
        };
        deb::pack(&release, work)
    };
    let version = env!("CARGO_PKG_VERSION");
    Ok([("first", pack(version.to_owned())?), ("second", pack(format!("{version}.1"))?)])
}

/// The initramfs.
fn collect(kernel: &Kernel, debian: &Path, packages: &[(&str, PathBuf)]) -> Result<Vec<u8>> {
    let busybox = setup::find_program(&setup::search_path(), "busybox");
    let busybox = busybox.context("busybox is not installed")?;
    let mut files = vec![("/bin/busybox".to_owned(), busybox), ("/debian.tar".to_owned(), debian.to_owned())];
    for (index, module) in kernel.modules.iter().enumerate() {
        files.push((format!("/modules/{index:02}.ko"), module.clone()));
    }
    for (directory, package) in packages {
        let name = package.file_name().context("a package has a name")?;
        files.push((format!("/packages/{directory}/{}", name.display()), package.clone()));
    }
    let mut archive = Archive::default();
    for (place, script) in SCRIPTS {
        archive.file(place, script.as_bytes())?;
    }
    for (place, path) in files {
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        archive.file(&place, &content)?;
    }
    archive.finish()
}
