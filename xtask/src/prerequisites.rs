//! Programs that a command starts: which are missing, and the packages that bring them.

use anyhow::{Result, bail};

use crate::packages::{self, Apt};
use crate::setup::{self, Privilege};
use crate::static_link::is_static;

/// A program that must be there.
pub(crate) struct Prerequisite {
    program: &'static str,
    package: &'static str,
    why: &'static str,
    /// Whether a dynamic executable will not do.
    is_static: bool,
}

/// A program, the package that brings it, and what it is for.
pub(crate) const fn program(program: &'static str, package: &'static str, why: &'static str) -> Prerequisite {
    Prerequisite { program, package, why, is_static: false }
}

impl Prerequisite {
    /// The same, as a static executable.
    pub(crate) const fn statically_linked(self) -> Self {
        Self { is_static: true, ..self }
    }
}

/// Installs what is missing of `programs`; `who` needs them, in the plural.
pub(crate) fn ensure(who: &str, programs: &[Prerequisite], privilege: Privilege) -> Result<()> {
    let directories = setup::search_path();
    let missing: Vec<&Prerequisite> = programs
        .iter()
        .filter(|wanted| {
            let found = setup::find_program(&directories, wanted.program);
            found.is_none_or(|path| wanted.is_static && !is_static(&path).unwrap_or(false))
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("xtask: {who} miss");
    for wanted in &missing {
        eprintln!("    {} (package {}): {}", wanted.program, wanted.package, wanted.why);
    }
    if Apt::of_this_machine().is_none() {
        bail!("install these programs: only Debian's and Ubuntu's packages are known here");
    }
    let mut wanted: Vec<&str> = missing.iter().map(|wanted| wanted.package).collect();
    wanted.dedup();
    let steps = [packages::update(), packages::install(&wanted)];
    setup::carry_out(&format!("{who} need more programs; their services are not started"), &steps, privilege)
}
