//! Kernels from Debian's packages, unpacked and not installed: an image and the modules that the tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::packages::{self, Apt};
use crate::setup::{self, Privilege};
use crate::workspace;

/// Packages that depend on the newest kernel of a series: the release's own, and the backported one.
const SERIES: [&str; 2] = ["linux-image-amd64", "linux-image-6.12-amd64"];

/// What the tests need and not every kernel of Debian has built in. They depend on no other module.
const MODULES: [&str; 4] = ["fuse.ko", "unix_diag.ko", "veth.ko", "vrf.ko"];

/// A kernel that can be started.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The package's name.
    pub(crate) name: String,
    /// What a machine boots.
    pub(crate) image: PathBuf,
    /// Uncompressed modules, in the order in which they are loaded.
    pub(crate) modules: Vec<PathBuf>,
}

/// The packages of the kernels that apt offers; none where it has no kernels for this machine.
pub(crate) fn offered(privilege: Privilege) -> Result<Vec<String>> {
    let Some(apt) = Apt::of_this_machine() else { return Ok(Vec::new()) };
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Vec::new());
    }
    let mut names = names(&apt);
    // A fresh image has no lists at all.
    if names.is_empty() && privilege != Privilege::None {
        setup::carry_out("apt knows no kernels yet", &[packages::update()], privilege)?;
        names = self::names(&apt);
    }
    Ok(names)
}

fn names(apt: &Apt) -> Vec<String> {
    let mut names: Vec<_> =
        SERIES.iter().filter_map(|series| apt.dependency(series, "linux-image-")).collect();
    names.dedup();
    names
}

/// The kernel of a package, downloaded unless it was before.
pub(crate) fn fetch(name: &str, privilege: Privilege) -> Result<Kernel> {
    let directory = workspace::target().join("vm").join(name);
    // One that was unpacked for fewer modules is unpacked anew. What is built in is an empty file.
    let is_complete = MODULES.iter().all(|module| directory.join(module).is_file());
    if directory.is_dir() && !is_complete {
        fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    if !is_complete {
        let parent = workspace::target().join("vm");
        fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let partial = tempfile::tempdir_in(&parent).context("cannot create a directory")?;
        download(&[name], partial.path(), privilege)?;
        let unpacked = partial.path().join("kernel");
        unpack(partial.path(), &unpacked)?;
        fs::rename(&unpacked, &directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    Ok(Kernel {
        name: name.to_owned(),
        image: directory.join("vmlinuz"),
        modules: MODULES
            .map(|module| directory.join(module))
            .into_iter()
            .filter(|module| fs::metadata(module).is_ok_and(|module| module.len() > 0))
            .collect(),
    })
}

/// Downloads packages, as files, into a directory.
pub(super) fn download(names: &[&str], directory: &Path, privilege: Privilege) -> Result<()> {
    eprintln!("xtask: downloading {}", names.join(", "));
    let mut get = Command::new("apt-get");
    get.args(["download", "-q"]).args(names).current_dir(directory);
    if workspace::check(&mut get).is_err() {
        // The version that the lists name may have left the archive.
        setup::carry_out("apt's lists may be too old", &[packages::update()], privilege)?;
        workspace::check(&mut get)?;
    }
    Ok(())
}

/// Takes what is needed out of the one package in `from`.
fn unpack(from: &Path, into: &Path) -> Result<()> {
    fs::create_dir(into).with_context(|| format!("cannot create {}", into.display()))?;
    let package = only(from, ".deb")?;
    let mut stream = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(&package)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start dpkg-deb")?;
    let tar = stream.stdout.take().context("a pipe from dpkg-deb")?;
    let mut command = Command::new("tar");
    command.args(["--extract", "--wildcards", "--transform", "s,.*/,,", "--directory"]).arg(into);
    let patterns = MODULES.map(|module| format!("*/{module}*"));
    let command = command.arg("./boot/vmlinuz-*").args(&patterns).stdin(tar).stderr(Stdio::null());
    // It fails for a module that is built in.
    command.status().context("cannot start tar")?;
    let read = stream.wait().context("cannot wait for dpkg-deb")?;
    if !read.success() {
        bail!("{} cannot be read ({read})", package.display());
    }
    let image = only(into, "vmlinuz-")?;
    fs::rename(&image, into.join("vmlinuz")).with_context(|| format!("cannot rename {}", image.display()))?;
    for module in MODULES {
        let (plain, packed) = (into.join(module), into.join(format!("{module}.xz")));
        if packed.is_file() {
            workspace::check(Command::new("xz").arg("--decompress").arg(packed))?;
        } else if !plain.is_file() {
            fs::write(&plain, "").with_context(|| format!("cannot write {}", plain.display()))?;
        }
    }
    Ok(())
}

/// The one file in `directory` whose name contains `part`.
fn only(directory: &Path, part: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut found = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part)));
    match (found.next(), found.next()) {
        (Some(path), None) => Ok(path),
        _ => bail!("{} does not hold one {part}", directory.display()),
    }
}
