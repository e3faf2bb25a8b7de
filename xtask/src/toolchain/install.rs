//! What to install where the compiler or the linker for kernel programs is missing.

use anyhow::{Result, anyhow, bail};

use super::{LINKER_VERSION, NIGHTLY, Probe, Toolchain};
use crate::packages::{self, Apt};
use crate::setup::{self, Privilege, Step};

/// Debian's compiler with its `core` for the kernel.
const COMPILER_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf"];
/// What building bpf-linker against the packaged LLVM needs: the library, and a C++ library to link.
const LINKER_PACKAGES: [&str; 2] = ["llvm-22-dev", "g++"];
const LLVM: &str = "/usr/lib/llvm-22";

pub(super) fn ensure() -> Result<Toolchain> {
    let probe = Probe::of_this_machine();
    let (compiler, linker) = match (probe.compiler(), probe.linker()) {
        (Ok(compiler), Ok(linker)) => return Ok(Toolchain { compiler, linker }),
        found => found,
    };
    let missing = Missing { compiler: compiler.is_err(), linker: linker.is_err() };
    let reasons: Vec<String> = compiler.err().into_iter().chain(linker.err()).collect();
    let why = format!("kernel programs cannot be compiled yet: {}", reasons.join("; "));

    let privilege = Privilege::of_this_user();
    let programs = setup::search_path();
    let apt = Apt::of_this_machine();
    let machine = Machine {
        privilege,
        absent: apt.and_then(|apt| absent_packages(&apt, missing, privilege)),
        rustup: setup::find_program(&programs, "rustup").is_some(),
        binstall: setup::find_program(&programs, "cargo-binstall").is_some(),
    };
    match machine.plan(missing) {
        Plan::Do(steps) => setup::carry_out(&why, &steps, privilege)?,
        Plan::Ask(steps) => {
            eprintln!("xtask: {why}. This user may not install what is missing. Run:");
            setup::print_commands(&steps);
            bail!("no compiler and linker for kernel programs");
        }
    }

    let unusable = |reason| anyhow!("installed, and still not usable: {reason}");
    Ok(Toolchain { compiler: probe.compiler().map_err(unusable)?, linker: probe.linker().map_err(unusable)? })
}

/// The packages still to be installed; None where apt does not offer them.
fn absent_packages(apt: &Apt, missing: Missing, privilege: Privilege) -> Option<Vec<&'static str>> {
    // The packaged cargo builds the linker too, whatever other cargo there is.
    let mut absent = COMPILER_PACKAGES.to_vec();
    if missing.linker {
        absent.extend(LINKER_PACKAGES);
    }
    absent.retain(|package| !apt.has(package));
    if apt.offers(&absent) {
        return Some(absent);
    }
    // A fresh image has no lists of packages: they are fetched once before the answer is no.
    let fetched = privilege != Privilege::None
        && setup::carry_out("the lists of packages may be old", &[packages::update()], privilege).is_ok();
    (fetched && apt.offers(&absent)).then_some(absent)
}

#[derive(Clone, Copy)]
struct Missing {
    compiler: bool,
    linker: bool,
}

/// What decides how to install.
struct Machine {
    privilege: Privilege,
    /// The packages of compiler and linker that are not installed; None where apt does not have them.
    absent: Option<Vec<&'static str>>,
    rustup: bool,
    binstall: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// To be done now.
    Do(Vec<Step>),
    /// To be done by the user, who can become root or install rustup.
    Ask(Vec<Step>),
}

impl Machine {
    fn plan(&self, missing: Missing) -> Plan {
        let by_apt = self.absent.as_ref().map(|absent| by_apt(missing, absent));
        if let Some(steps) = &by_apt
            && (self.privilege != Privilege::None || !steps.iter().any(Step::needs_root))
        {
            return Plan::Do(steps.clone());
        }
        if self.rustup {
            return Plan::Do(self.by_rustup(missing));
        }
        if let Some(steps) = by_apt {
            return Plan::Ask(steps);
        }
        let rustup = "curl --proto =https --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y";
        let mut steps = vec![Step::user(&[rustup])];
        steps.extend(self.by_rustup(missing));
        Plan::Ask(steps)
    }

    fn by_rustup(&self, missing: Missing) -> Vec<Step> {
        let mut steps = Vec::new();
        if missing.compiler {
            steps.push(Step::user(&[
                "rustup", "toolchain", "install", NIGHTLY, "--profile", "minimal", "--component", "rust-src",
            ]));
        }
        if missing.linker {
            // `cargo install bpf-linker` wants the headers of an LLVM that few distributions have; its authors
            // publish static executables, which cargo-binstall fetches.
            if !self.binstall {
                steps.push(Step::user(&["cargo", "install", "cargo-binstall", "--locked"]));
            }
            let linker = format!("bpf-linker@{LINKER_VERSION}");
            steps.push(Step::user(&["cargo", "binstall", "--no-confirm", &linker]));
        }
        steps
    }
}

fn by_apt(missing: Missing, absent: &[&str]) -> Vec<Step> {
    let mut steps = Vec::new();
    if !absent.is_empty() {
        steps.extend([packages::update(), packages::install(absent)]);
    }
    if missing.linker {
        steps.push(
            Step::user(&[
                "/usr/bin/cargo", "install", "bpf-linker", "--version", LINKER_VERSION, "--locked",
                "--no-default-features", "--features", "llvm-22",
            ])
            .with("RUSTC", "/usr/bin/rustc")
            .with("LLVM_SYS_221_PREFIX", LLVM)
            .with("LLVM_PREFIX", LLVM),
        );
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Missing = Missing { compiler: true, linker: true };
    const PACKAGES: [&str; 2] = ["a-compiler", "a-library"];

    fn debian() -> Machine {
        let absent = Some(PACKAGES.to_vec());
        Machine { privilege: Privilege::Root, absent, rustup: true, binstall: false }
    }

    fn lines(plan: &Plan) -> Vec<String> {
        let (Plan::Do(steps) | Plan::Ask(steps)) = plan;
        steps.iter().map(Step::to_string).collect()
    }

    #[test]
    fn packages_are_preferred_where_this_user_can_install_them() {
        let plan = debian().plan(ALL);
        assert!(matches!(plan, Plan::Do(_)));
        let lines = lines(&plan);
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert!(lines[0].ends_with("apt-get update -q"), "{lines:#?}");
        assert!(lines[1].ends_with("a-compiler a-library"), "{lines:#?}");
        assert!(lines[2].contains("cargo install bpf-linker --version 0.13.0 --locked"), "{lines:#?}");
    }

    #[test]
    fn a_linker_that_is_there_is_not_built_again() {
        let lines = lines(&debian().plan(Missing { compiler: true, linker: false }));
        assert_eq!(lines.len(), 2, "{lines:#?}");
    }

    #[test]
    fn with_all_packages_installed_the_linker_is_built_without_root() {
        let absent = Some(Vec::new());
        let plan = Machine { privilege: Privilege::None, absent, ..debian() }
            .plan(Missing { compiler: false, linker: true });
        assert!(matches!(plan, Plan::Do(_)), "{plan:?}");
        assert!(lines(&plan)[0].contains("/usr/bin/cargo install bpf-linker"), "{plan:?}");
    }

    #[test]
    fn without_root_rustup_does_it_all() {
        let plan = Machine { privilege: Privilege::None, ..debian() }.plan(ALL);
        let Plan::Do(steps) = &plan else { panic!("rustup needs no root: {plan:?}") };
        assert!(!steps.iter().any(Step::needs_root));
        let lines = lines(&plan);
        assert!(lines[0].starts_with("rustup toolchain install nightly-"), "{lines:#?}");
        assert!(lines[0].ends_with("--component rust-src"), "{lines:#?}");
        let linker =
            ["cargo install cargo-binstall --locked", "cargo binstall --no-confirm bpf-linker@0.13.0"];
        assert_eq!(lines[1..], linker);
    }

    #[test]
    fn an_installed_binstall_is_used_as_it_is() {
        let machine = Machine { absent: None, binstall: true, ..debian() };
        let lines = lines(&machine.plan(Missing { compiler: false, linker: true }));
        assert_eq!(lines, ["cargo binstall --no-confirm bpf-linker@0.13.0"]);
    }

    #[test]
    fn without_root_and_rustup_the_user_gets_the_commands() {
        let plan = Machine { privilege: Privilege::None, rustup: false, ..debian() }.plan(ALL);
        assert!(matches!(plan, Plan::Ask(_)), "{plan:?}");
        assert!(lines(&plan)[1].starts_with("sudo "), "{plan:?}");
        let plan = Machine { absent: None, rustup: false, ..debian() }.plan(ALL);
        assert!(matches!(plan, Plan::Ask(_)), "{plan:?}");
        assert!(lines(&plan)[0].contains("sh.rustup.rs"), "{plan:?}");
    }
}
