//! Debian and Ubuntu packages: which exist, and the steps that install them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::kubernetes::KEYRING;
use crate::setup::{self, Privilege, Step};
use crate::workspace;

/// The package manager of Debian and its derivatives.
pub(crate) struct Apt {
    apt_get: PathBuf,
    apt_cache: PathBuf,
    dpkg_query: PathBuf,
    /// Where its lists are, if not those of this machine.
    options: Vec<String>,
}

impl Apt {
    /// Apt, where this machine has it.
    pub(crate) fn of_this_machine() -> Option<Self> {
        let directories = setup::search_path();
        let apt_get = setup::find_program(&directories, "apt-get")?;
        let apt_cache = setup::find_program(&directories, "apt-cache")?;
        let dpkg_query = setup::find_program(&directories, "dpkg-query")?;
        Some(Self { apt_get, apt_cache, dpkg_query, options: Vec::new() })
    }

    /// The same with the lists of one suite of Debian's for one architecture and of no other, kept in `directory`: packages are only
    /// downloaded from there, and none counts as installed. This user may do it.
    pub(crate) fn of_suite(
        self,
        suite: &str,
        uri: &str,
        architecture: &str,
        directory: &Path,
    ) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial"] {
            let part = directory.join(part);
            fs::create_dir_all(&part).with_context(|| format!("cannot create {}", part.display()))?;
        }
        let sources = directory.join("sources.list");
        fs::write(&sources, format!("deb [signed-by={KEYRING}] {uri} {suite} main\n"))
            .with_context(|| format!("cannot write {}", sources.display()))?;
        let options = [
            format!("APT::Architecture={architecture}"),
            format!("APT::Architectures={architecture}"),
            "Dir::State::Status=/dev/null".to_owned(),
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", directory.join("lists").display()),
            format!("Dir::Cache={}", directory.join("cache").display()),
            "Acquire::Languages=none".to_owned(),
        ];
        let options = options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
        Ok(Self { options, ..self })
    }

    fn is_of_this_machine(&self) -> bool {
        self.options.is_empty()
    }

    pub(crate) fn update(&self, why: &str, privilege: Privilege) -> Result<()> {
        if self.is_of_this_machine() {
            return setup::carry_out(why, &[update()], privilege);
        }
        eprintln!("xtask: {why}: fetching its lists");
        workspace::check(Command::new(&self.apt_get).args(&self.options).args(["update", "-q"]))
    }

    /// Downloads packages, as files, into a directory.
    pub(crate) fn download(&self, names: &[&str], directory: &Path, privilege: Privilege) -> Result<()> {
        eprintln!("xtask: downloading {}", names.join(", "));
        let mut get = Command::new(&self.apt_get);
        get.args(&self.options).args(["download", "-q"]).args(names).current_dir(directory);
        if workspace::check(&mut get).is_err() {
            // The version that the lists name may have left the archive.
            self.update("apt's lists may be too old", privilege)?;
            workspace::check(&mut get)?;
        }
        Ok(())
    }

    /// Unpacks packages, and what they depend on and is not installed, into a new directory. They are not installed.
    pub(crate) fn unpack(&self, packages: &[&str], directory: &Path, privilege: Privilege) -> Result<()> {
        let parent = directory.parent().context("a directory in another one is meant")?;
        let partial = tempfile::tempdir_in(parent).context("cannot create a directory")?;
        let names = self.with_dependencies(packages)?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.download(&names, partial.path(), privilege)?;
        let unpacked = partial.path().join("root");
        unpack(partial.path(), &unpacked)?;
        fs::rename(&unpacked, directory).with_context(|| format!("cannot create {}", directory.display()))
    }

    /// The packages and those of their dependencies that are not installed.
    fn with_dependencies(&self, packages: &[&str]) -> Result<Vec<String>> {
        let simulated = Command::new(&self.apt_get)
            .args(&self.options)
            .args(["install", "--simulate", "-q", "--no-install-recommends"])
            .args(packages)
            .output()
            .context("cannot start apt-get")?;
        if !simulated.status.success() {
            let reason = String::from_utf8_lossy(&simulated.stderr).trim().to_owned();
            bail!("apt cannot tell what {} needs: {reason}", packages.join(", "));
        }
        Ok(to_install(&String::from_utf8_lossy(&simulated.stdout)))
    }

    /// Whether it knows any package by now.
    pub(crate) fn has_lists(&self) -> bool {
        !self.names("dpkg").is_empty()
    }

    /// The names of packages that begin so, by the lists apt has now.
    pub(crate) fn names(&self, prefix: &str) -> Vec<String> {
        let output = Command::new(&self.apt_cache).args(&self.options).args(["pkgnames", prefix]).output();
        let printed = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&printed).lines().map(str::to_owned).collect()
    }

    /// Whether apt could install all of `packages`, by the lists it has now.
    pub(crate) fn offers(&self, packages: &[&str]) -> bool {
        packages.iter().all(|package| {
            Command::new(&self.apt_cache)
                .args(["show", "--no-all-versions", package])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        })
    }

    /// The first package that `package` depends on and whose name begins with `prefix`, by the lists apt has now.
    pub(crate) fn dependency(&self, package: &str, prefix: &str) -> Option<String> {
        let output = Command::new(&self.apt_cache)
            .args(&self.options)
            .args(["depends", "--no-recommends", "--no-suggests", package])
            .stderr(Stdio::null())
            .output()
            .ok()?;
        dependency(&String::from_utf8_lossy(&output.stdout), prefix)
    }

    /// Whether `package` is installed, not merely known or half removed.
    pub(crate) fn has(&self, package: &str) -> bool {
        Command::new(&self.dpkg_query)
            .args(["--show", "--showformat=${db:Status-Status}", package])
            .stderr(Stdio::null())
            .output()
            .is_ok_and(|output| output.stdout == b"installed")
    }
}

/// In what `apt-cache depends` prints: `  Depends: NAME`, or `|Depends: NAME` for one of several.
fn dependency(printed: &str, prefix: &str) -> Option<String> {
    let names = printed.lines().filter_map(|line| line.split_once("Depends: "));
    names.map(|(_, name)| name.trim()).find(|name| name.starts_with(prefix)).map(str::to_owned)
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

pub(crate) fn update() -> Step {
    Step::root(&["apt-get", "update", "-q"])
}

/// Installs `packages`, removes nothing, starts no service.
pub(crate) fn install(packages: &[&str]) -> Step {
    let mut argv = vec!["apt-get", "install", "-q", "-y", "--no-remove", "--no-install-recommends"];
    argv.extend(packages);
    Step::root(&argv).with("DEBIAN_FRONTEND", "noninteractive").with_services_stopped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_is_the_first_of_its_alternatives() {
        let printed = "linux-image-amd64\n  PreDepends: dpkg\n |Depends: linux-image-6.1.0-9-amd64\n  \
                       Depends: linux-image-6.1.0-9-amd64-unsigned\n";
        assert_eq!(dependency(printed, "linux-image-").as_deref(), Some("linux-image-6.1.0-9-amd64"));
        assert_eq!(dependency("linux-image-amd64\n", "linux-image-"), None);
    }

    #[test]
    fn packages_to_install_are_named_and_those_to_remove_are_not() {
        let printed = "Reading package lists...\nRemv qemu-utils [1:10]\nInst libslirp0 (4.7 Debian [amd64])\n\
                       Inst qemu-system-x86 (1:7.2 Debian [amd64])\nConf libslirp0 (4.7 Debian [amd64])\n";
        assert_eq!(to_install(printed), ["libslirp0", "qemu-system-x86"]);
    }
}
