//! Programs that a command starts: which are missing, and the packages that bring them.

use anyhow::{Result, bail};

use crate::packages::{self, Apt};
use crate::setup::{self, Privilege};
use crate::static_link::is_static;

/// A program that must be there.
pub(crate) struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
    /// Whether a dynamic executable will not do.
    is_static: bool,
}

/// A program, the package that brings it, and what it is for.
pub(crate) const fn need(program: &'static str, package: &'static str, why: &'static str) -> Need {
    Need { program, package, why, is_static: false }
}

impl Need {
    /// The same, as a static executable.
    pub(crate) const fn statically_linked(self) -> Self {
        Self { is_static: true, ..self }
    }
}

/// Installs what is missing of `needs`; `who` needs them, in the plural.
pub(crate) fn ensure(who: &str, needs: &[Need], privilege: Privilege) -> Result<()> {
    let directories = setup::search_path();
    let missing: Vec<&Need> = needs
        .iter()
        .filter(|need| {
            let found = setup::find_program(&directories, need.program);
            found.is_none_or(|path| need.is_static && !is_static(&path).unwrap_or(false))
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("xtask: {who} miss");
    for need in &missing {
        eprintln!("    {} (package {}): {}", need.program, need.package, need.why);
    }
    if Apt::of_this_machine().is_none() {
        bail!("install these programs: only Debian's and Ubuntu's packages are known here");
    }
    let mut wanted: Vec<&str> = missing.iter().map(|need| need.package).collect();
    wanted.dedup();
    let steps = [packages::update(), packages::install(&wanted)];
    setup::carry_out(&format!("{who} need more programs; their services are not started"), &steps, privilege)
}
