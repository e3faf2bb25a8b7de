//! Kernels from Debian's packages, unpacked and not installed: an image and the modules that the tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::arch::Arch;
use super::suites;
use crate::packages::Apt;
use crate::setup::Privilege;
use crate::workspace;

/// Packages that depend on the newest kernel of a series: the release's own, and the backported one.
const SERIES: [&str; 2] = ["linux-image-amd64", "linux-image-6.12-amd64"];

/// Those for arm64, of this release and of the next one.
const SERIES_ARM64: [&str; 2] = ["6.1", "6.12"];

/// What the tests need and not every kernel of Debian has built in, each after those that it depends on. Client and server of NFS
/// need all from `sunrpc.ko` on; kernels have a part of it as one module or as several.
const MODULES: [&str; 14] = [
    "fuse.ko", "unix_diag.ko", "veth.ko", "vrf.ko", "sunrpc.ko", "grace.ko", "lockd.ko", "netfs.ko",
    "fscache.ko", "nfs.ko", "nfs_acl.ko", "nfsv3.ko", "auth_rpcgss.ko", "nfsd.ko",
];

/// A kernel that can be started.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The package's name.
    pub(crate) name: String,
    pub(super) arch: Arch,
    /// What a machine boots.
    pub(crate) image: PathBuf,
    /// Uncompressed modules, in the order in which they are loaded.
    pub(crate) modules: Vec<PathBuf>,
}

impl Kernel {
    /// Its column in the table: its series, such as `6.12`, or `6.12 arm64`.
    pub(crate) fn series(&self) -> String {
        let series =
            numbers(&self.name).iter().take(2).map(ToString::to_string).collect::<Vec<_>>().join(".");
        match self.arch {
            Arch::Amd64 => series,
            Arch::Arm64 => format!("{series} {}", self.arch.debian()),
        }
    }
}

/// A kernel's package, and the apt that has it.
pub(crate) struct Offer {
    apt: Apt,
    package: String,
}

impl Offer {
    /// The package `of` depends on that has a kernel.
    pub(super) fn dependency(apt: Apt, of: &str) -> Option<Self> {
        let package = apt.dependency(of, PREFIX)?;
        Some(Self { apt, package })
    }

    pub(super) fn newest(apt: Apt, series: &str, flavour: &str) -> Option<Self> {
        let names = apt.names(&format!("{PREFIX}{series}."));
        let package = names
            .into_iter()
            .filter(|name| is_flavour(name, series, flavour))
            .max_by_key(|name| numbers(name))?;
        Some(Self { apt, package })
    }

    /// Whether it is of a series of kernels, such as `6.12`.
    fn is_of(&self, series: &str) -> bool {
        self.package.strip_prefix(PREFIX).is_some_and(|version| version.starts_with(&format!("{series}.")))
    }

    /// What holds its files: since 6.19 a kernel's package has none, and depends on two that do.
    fn packages(&self) -> Vec<String> {
        let parts = ["linux-binary-", "linux-modules-"];
        let parts = parts.map(|prefix| self.apt.dependency(&self.package, prefix));
        match parts {
            [Some(binary), Some(modules)] => vec![binary, modules],
            _ => vec![self.package.clone()],
        }
    }
}

/// How the package of a kernel is called, before its version.
const PREFIX: &str = "linux-image-";

/// `linux-image-6.17.13+deb13-cloud-amd64`, and neither one that is signed elsewhere nor one with debugging symbols.
fn is_flavour(name: &str, series: &str, flavour: &str) -> bool {
    let version = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(flavour)?.strip_suffix('-'));
    let release = version.and_then(|version| version.strip_prefix(series)?.strip_prefix('.'));
    release.is_some_and(|release| !release.contains('-'))
}

/// The numbers in a name, which order versions and series.
pub(super) fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// The kernels that are chosen, or those that apt offers for this release; none where it has no kernels for this machine.
pub(crate) fn offered(arch: Arch, chosen: &[String], privilege: Privilege) -> Result<Vec<Offer>> {
    if std::env::consts::ARCH != "x86_64" || Apt::of_this_machine().is_none() {
        return Ok(Vec::new());
    }
    if arch == Arch::Arm64 {
        let all = SERIES_ARM64.map(str::to_owned);
        let wanted = if chosen.is_empty() { &all[..] } else { chosen };
        return wanted.iter().map(|series| suites::offer(arch, series, privilege)).collect();
    }
    let own = || SERIES.iter().filter_map(|series| Offer::dependency(Apt::of_this_machine()?, series));
    let mut offers: Vec<Offer> = own().collect();
    // A fresh image has no lists at all.
    if offers.is_empty()
        && privilege != Privilege::None
        && let Some(apt) = Apt::of_this_machine()
    {
        apt.update("apt knows no kernels yet", privilege)?;
        offers = own().collect();
    }
    offers.dedup_by(|one, other| one.package == other.package);
    if chosen.is_empty() {
        return Ok(offers);
    }
    let mut wanted = Vec::new();
    for series in chosen {
        match offers.iter().position(|offer| offer.is_of(series)) {
            Some(index) => wanted.push(offers.swap_remove(index)),
            None => wanted.push(suites::offer(arch, series, privilege)?),
        }
    }
    Ok(wanted)
}

/// The kernel of a package, downloaded unless it was before.
pub(crate) fn fetch(arch: Arch, offer: &Offer, privilege: Privilege) -> Result<Kernel> {
    let name = &offer.package;
    let (parent, _lock) = super::cache()?;
    let directory = parent.join(name);
    // One that was unpacked for fewer modules is unpacked again. What is built in is an empty file.
    let is_complete = MODULES.iter().all(|module| directory.join(module).is_file());
    if directory.is_dir() && !is_complete {
        fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    if !is_complete {
        let partial = tempfile::tempdir_in(&parent).context("cannot create a directory")?;
        let packages = offer.packages();
        let names: Vec<&str> = packages.iter().map(String::as_str).collect();
        offer.apt.download(&names, partial.path(), privilege)?;
        let unpacked = partial.path().join("kernel");
        unpack(partial.path(), &unpacked)?;
        fs::rename(&unpacked, &directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    Ok(Kernel {
        name: name.to_owned(),
        arch,
        image: directory.join("vmlinuz"),
        modules: MODULES
            .map(|module| directory.join(module))
            .into_iter()
            .filter(|module| fs::metadata(module).is_ok_and(|module| module.len() > 0))
            .collect(),
    })
}

/// Takes what is needed out of the packages in `from`.
fn unpack(from: &Path, into: &Path) -> Result<()> {
    fs::create_dir(into).with_context(|| format!("cannot create {}", into.display()))?;
    let packages = containing(from, ".deb")?;
    packages.iter().try_for_each(|package| unpack_one(package, into))?;
    let [image] = &containing(into, "vmlinuz")?[..] else {
        bail!("{} does not hold one image", into.display());
    };
    fs::rename(image, into.join("vmlinuz")).with_context(|| format!("cannot rename {}", image.display()))?;
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

fn unpack_one(package: &Path, into: &Path) -> Result<()> {
    let mut stream = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start dpkg-deb")?;
    let tar = stream.stdout.take().context("a pipe from dpkg-deb")?;
    let mut command = Command::new("tar");
    command.args(["--extract", "--wildcards", "--transform", "s,.*/,,", "--directory"]).arg(into);
    let modules = MODULES.map(|module| format!("*/{module}*"));
    let command =
        command.args(["./boot/vmlinuz-*", "*/vmlinuz"]).args(&modules).stdin(tar).stderr(Stdio::null());
    // It fails for what is not in this package, and for a module that is built in.
    command.status().context("cannot start tar")?;
    let read = stream.wait().context("cannot wait for dpkg-deb")?;
    if !read.success() {
        bail!("{} cannot be read ({read})", package.display());
    }
    Ok(())
}

/// The files in `directory` whose names contain `part`.
fn containing(directory: &Path, part: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_a_series_and_flavour_is_taken() {
        let names = [
            "linux-image-6.17.8+deb13-cloud-amd64",
            "linux-image-6.17.13+deb13-cloud-amd64",
            "linux-image-6.17.13+deb13-amd64",
            "linux-image-6.17.13+deb13-rt-amd64",
            "linux-image-6.17.13+deb13-cloud-amd64-dbg",
            "linux-image-6.17.14+deb13-cloud-amd64-unsigned",
            "linux-image-6.1.17-cloud-amd64",
        ];
        let of_series = names.iter().filter(|name| is_flavour(name, "6.17", "cloud-amd64"));
        assert_eq!(of_series.max_by_key(|name| numbers(name)), Some(&names[1]));
        let kernel =
            |arch| Kernel { name: names[1].to_owned(), arch, image: PathBuf::new(), modules: Vec::new() };
        assert_eq!(kernel(Arch::Amd64).series(), "6.17");
        assert_eq!(kernel(Arch::Arm64).series(), "6.17 arm64");
    }
}
