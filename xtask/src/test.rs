//! `cargo xtask test`: what the tests need, the build, and the tests; every part runs, whatever the ones before said.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::build;
use crate::ebpf::ebpf;
use crate::lint::{self, lint};
use crate::needs::{self, Need, need};
use crate::setup::{self, Privilege};
use crate::vm;
use crate::workspace;

/// The package of the end-to-end tests.
pub(crate) const E2E: &str = "kevtmon-tests";

#[derive(Args)]
pub(crate) struct Options {
    /// Which tests to run
    #[arg(value_enum, default_value_t)]
    part: Part,
    /// Arguments for `cargo test`, such as the name of a test
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Tests beside the code, without privileges
    Unit,
    /// The release daemon against the real kernel and real runtimes, as root
    E2e,
    /// The same, where the probes are concerned, on other kernels in virtual machines
    Vm,
    /// Lint and all of the above: what CI runs
    #[default]
    All,
}

/// Runs the tests as asked; an error names the parts that failed.
pub(crate) fn test(options: &Options) -> Result<()> {
    let includes = |part| options.part == part || options.part == Part::All;
    let mut failed = Vec::new();
    let mut part = |name: &'static str, run: &dyn Fn() -> Result<()>| {
        eprintln!("xtask: {name}");
        if let Err(error) = run() {
            eprintln!("xtask: {name}: {error:#}");
            failed.push(name);
        }
    };
    if options.part == Part::All {
        part("lint", &|| lint(&lint::Options::default()));
    }
    if includes(Part::Unit) {
        part("unit tests", &|| unit(&options.arguments));
    }
    if includes(Part::E2e) {
        part("end-to-end tests", &|| end_to_end(&options.arguments));
    }
    if includes(Part::Vm) {
        part("tests on other kernels", &|| vm::test(&options.arguments, options.part == Part::Vm));
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn unit(arguments: &[String]) -> Result<()> {
    ebpf()?;
    let mut cargo = workspace::cargo("test");
    cargo.args(["--workspace", "--exclude", E2E, "--no-fail-fast"]).args(arguments);
    workspace::check(&mut cargo)
}

fn end_to_end(arguments: &[String]) -> Result<()> {
    let privilege = Privilege::of_this_user();
    if privilege == Privilege::None {
        bail!("the end-to-end tests need root, and there is no sudo here: run `cargo xtask test` as root");
    }
    end_to_end_needs(privilege)?;
    let daemon = build::release()?;
    let mut cargo = workspace::cargo("test");
    cargo.args(["--package", E2E, "--no-fail-fast"]);
    run_as_root(&mut cargo, privilege, &daemon);
    workspace::check(cargo.args(arguments))
}

/// Installs what the harness of the end-to-end tests starts.
pub(crate) fn end_to_end_needs(privilege: Privilege) -> Result<()> {
    needs::ensure("the end-to-end tests", &NEEDS, privilege)
}

/// Has cargo compile as this user and start the test executables as root.
fn run_as_root(cargo: &mut Command, privilege: Privilege, daemon: &Path) {
    let mut runner = vec!["env".to_owned(), format!("KEVTMON_BIN={}", daemon.display())];
    // What was found for the tests must be found by them: a user's PATH often lacks the directories of root.
    runner.extend(std::env::join_paths(setup::search_path()).map(|path| format!("PATH={}", path.display())));
    if privilege == Privilege::Sudo {
        eprintln!("xtask: the end-to-end tests need root; starting them through sudo");
        runner.insert(0, "sudo".to_owned());
    }
    let runner: Vec<String> = runner.iter().map(|word| format!("{word:?}")).collect();
    cargo.args(["--config", &format!("target.'cfg(unix)'.runner = [{}]", runner.join(", "))]);
}

const NEEDS: [Need; 9] = [
    // The culprit of most tests; what the harness itself changes, it changes through rtnetlink.
    need("ip", "iproute2", "deletes and changes what the daemon then names it for"),
    need("iptables", "iptables", "dockerd sets up its bridge with it"),
    need("dockerd", "docker.io", "the tests start one of their own"),
    need("docker", "docker.io", "makes and starts the containers that the tests watch"),
    need("containerd", "containerd", "dockerd starts one of its own"),
    need("busybox", "busybox-static", "all that is in the containers' image").statically_linked(),
    need("fuser", "psmisc", "what the holders of a mount are compared with"),
    need("ps", "procps", "shows what a failed test left running"),
    need("promtool", "prometheus", "judges the exported metrics"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(cargo: &Command) -> Vec<String> {
        cargo.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn only_the_test_executables_become_root() {
        let mut cargo = Command::new("cargo");
        run_as_root(&mut cargo, Privilege::Sudo, Path::new("/x/kevtmon"));
        let arguments = arguments(&cargo);
        assert_eq!(arguments[0], "--config");
        let runner = "target.'cfg(unix)'.runner = [\"sudo\", \"env\", \"KEVTMON_BIN=/x/kevtmon\", \"PATH=";
        assert!(arguments[1].starts_with(runner), "{arguments:?}");
    }

    #[test]
    fn root_needs_no_sudo() {
        let mut cargo = Command::new("cargo");
        run_as_root(&mut cargo, Privilege::Root, Path::new("/x/kevtmon"));
        let runner = "target.'cfg(unix)'.runner = [\"env\", \"KEVTMON_BIN=/x/kevtmon\", \"PATH=";
        assert!(arguments(&cargo)[1].starts_with(runner), "{:?}", arguments(&cargo));
    }
}
