//! Debian and Ubuntu packages: which exist, and the steps that install them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::setup::{self, Step};

/// The package manager of Debian and its derivatives.
pub(crate) struct Apt {
    apt_cache: PathBuf,
    dpkg_query: PathBuf,
}

impl Apt {
    /// Apt, where this machine has it.
    pub(crate) fn of_this_machine() -> Option<Self> {
        let directories = setup::search_path();
        setup::find_program(&directories, "apt-get")?;
        let apt_cache = setup::find_program(&directories, "apt-cache")?;
        let dpkg_query = setup::find_program(&directories, "dpkg-query")?;
        Some(Self { apt_cache, dpkg_query })
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

/// Fetches the lists of packages.
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
}
