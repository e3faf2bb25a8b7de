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

    /// Whether `package` is installed, not merely known or half removed.
    pub(crate) fn has(&self, package: &str) -> bool {
        Command::new(&self.dpkg_query)
            .args(["--show", "--showformat=${db:Status-Status}", package])
            .stderr(Stdio::null())
            .output()
            .is_ok_and(|output| output.stdout == b"installed")
    }
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
