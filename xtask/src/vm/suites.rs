//! Kernels of other suites of Debian's than this machine's: older and newer ones, tested on request.

use anyhow::{Context as _, Result, bail};

use super::kernels::Offer;
use crate::packages::Apt;
use crate::setup::Privilege;

/// Where a kernel is found.
struct Suite {
    /// What it is called on the command line.
    kernel: &'static str,
    name: &'static str,
    uri: &'static str,
    /// The package that depends on it there; else it is the newest one of its series, on which none depends any more.
    dependent: Option<&'static str>,
}

const DEBIAN: &str = "http://deb.debian.org/debian";
const SECURITY: &str = "http://deb.debian.org/debian-security";

/// Built for virtual machines: small, with all that the tests need.
const FLAVOUR: &str = "cloud-amd64";
const NEWEST: Option<&str> = Some("linux-image-cloud-amd64");

const SUITES: [Suite; 3] = [
    Suite { kernel: "5.10", name: "bullseye-security", uri: SECURITY, dependent: NEWEST },
    Suite { kernel: "6.17", name: "trixie-backports", uri: DEBIAN, dependent: None },
    Suite { kernel: "newest", name: "trixie-backports", uri: DEBIAN, dependent: NEWEST },
];

/// The kernel of that name.
pub(super) fn offer(kernel: &str, privilege: Privilege) -> Result<Offer> {
    let Some(suite) = SUITES.iter().find(|suite| suite.kernel == kernel) else {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.kernel).collect();
        bail!("no kernel {kernel}: expected a series that apt offers here, or one of {}", known.join(", "));
    };
    let (cache, _lock) = super::cache()?;
    let apt = || {
        let directory = cache.join("apt").join(suite.name);
        Apt::of_this_machine().context("apt is missing")?.of_suite(suite.name, suite.uri, &directory)
    };
    if let Some(offer) = suite.find(apt()?) {
        return Ok(offer);
    }
    apt()?.update(&format!("the kernel {kernel} is in Debian's {}", suite.name), privilege)?;
    suite.find(apt()?).with_context(|| format!("Debian's {} has no kernel {kernel}", suite.name))
}

impl Suite {
    /// By the lists apt has now.
    fn find(&self, apt: Apt) -> Option<Offer> {
        match self.dependent {
            Some(package) => Offer::dependency(apt, package),
            None => Offer::newest(apt, self.kernel, FLAVOUR),
        }
    }
}
