//! Kernels of other suites of Debian's than this machine's: older and newer ones, tested on request, and those for arm64.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::arch::Arch;
use super::kernels::Offer;
use crate::packages::Apt;
use crate::setup::Privilege;

/// Where a kernel is found.
struct Suite {
    arch: Arch,
    /// What it is called on the command line.
    kernel: &'static str,
    name: &'static str,
    uri: &'static str,
    /// Whether a package depends on it there; else it is the newest one of its series, on which none depends any more.
    is_newest: bool,
}

pub(super) const DEBIAN: &str = "http://deb.debian.org/debian";
const SECURITY: &str = "http://deb.debian.org/debian-security";

const fn suite(arch: Arch, kernel: &'static str, name: &'static str, uri: &'static str) -> Suite {
    Suite { arch, kernel, name, uri, is_newest: true }
}

const SUITES: [Suite; 6] = [
    suite(Arch::Amd64, "5.10", "bullseye-security", SECURITY),
    Suite { is_newest: false, ..suite(Arch::Amd64, "6.17", "trixie-backports", DEBIAN) },
    suite(Arch::Amd64, "newest", "trixie-backports", DEBIAN),
    // The lists of bullseye-security name newer kernels for arm64 than there are files of.
    suite(Arch::Arm64, "5.10", "bullseye", DEBIAN),
    suite(Arch::Arm64, "6.1", "bookworm", DEBIAN),
    suite(Arch::Arm64, "6.12", "trixie", DEBIAN),
];

/// The kernel of that name.
pub(super) fn offer(arch: Arch, kernel: &str, privilege: Privilege) -> Result<Offer> {
    let of_arch = SUITES.iter().filter(|suite| suite.arch == arch);
    let Some(suite) = of_arch.clone().find(|suite| suite.kernel == kernel) else {
        let known = of_arch.map(|suite| suite.kernel).collect::<Vec<_>>().join(", ");
        let own = if arch == Arch::Amd64 { "a series that apt offers here, or " } else { "" };
        bail!("no kernel {kernel} for {}: expected {own}one of {known}", arch.debian());
    };
    let (cache, _lock) = super::cache()?;
    let apt = || apt(arch, suite.name, suite.uri, &cache);
    if let Some(offer) = suite.find(apt()?) {
        return Ok(offer);
    }
    apt()?.update(&format!("the kernel {kernel} is in Debian's {}", suite.name), privilege)?;
    suite.find(apt()?).with_context(|| format!("Debian's {} has no kernel {kernel}", suite.name))
}

/// Apt with the lists of a suite for an architecture, kept in the cache.
pub(super) fn apt(arch: Arch, suite: &str, uri: &str, cache: &Path) -> Result<Apt> {
    let directory = cache.join("apt").join(format!("{suite}-{}", arch.debian()));
    Apt::of_this_machine().context("apt is missing")?.of_suite(suite, uri, arch.debian(), &directory)
}

impl Suite {
    /// By the lists apt has now.
    fn find(&self, apt: Apt) -> Option<Offer> {
        // Built for virtual machines: small, with all that the tests need.
        let flavour = format!("cloud-{}", self.arch.debian());
        if self.is_newest {
            return Offer::dependency(apt, &format!("linux-image-{flavour}"));
        }
        Offer::newest(apt, self.kernel, &flavour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_not_known_is_answered_with_those_that_are() {
        let error = offer(Arch::Arm64, "4.19", Privilege::None).map(drop).unwrap_err().to_string();
        assert_eq!(error, "no kernel 4.19 for arm64: expected one of 5.10, 6.1, 6.12");
    }
}
