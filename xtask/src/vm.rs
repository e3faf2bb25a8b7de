//! `cargo xtask test vm`: the end-to-end tests of the probes on other kernels, each in a virtual machine.
//!
//! In: the daemon, the static test executables and the kernels of Debian's packages. Out: a verdict per test. The
//! guest's files come in an initramfs; its process 1 is `guest` of the tests' package, which prints the result
//! on the console. Nothing here needs root but the installation of missing programs.

mod archive;
mod files;
mod kernels;
mod machine;
mod qemu;
mod suites;

use std::fs;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use self::kernels::Kernel;
use self::qemu::Qemu;
use crate::build;
use crate::prerequisites::{self, Prerequisite, program};
use crate::setup::Privilege;
use crate::side_by_side::Transcript;
use crate::test::e2e_tests;
use crate::workspace;

/// Process 1 of the guest, an executable of the tests' package.
const GUEST: &str = "guest";

/// What cleans up after a test that was killed, an executable of the tests' package.
const REAPER: &str = "reaper";

/// What acts on command in some of the tests, an executable of the tests' package.
const ACTOR: &str = "actor";

/// What has a command executed by another one's child, an executable of the tests' package.
const FORKER: &str = "forker";

/// What hangs whoever reads it, an executable of the tests' package.
const WEDGE: &str = "wedge";

/// The test executables that depend on the kernel, each with what it leaves out: no runtime is in the guest.
const TESTS: [(&str, &[&str]); 13] = [
    ("hooks", &[]),
    // An entry must be used in the very moment in which another processor removes it, which emulation gives seldom.
    ("neighbor", &["--skip=used_at_that_moment"]),
    ("mount", &["--skip=container"]),
    ("remove", &[]),
    ("covers", &[]),
    ("identity", &[]),
    // No plugins of others are in the guest.
    ("cni", &["--skip=real_plugin", "--skip=container_executes"]),
    // Thousands of processes take minutes here.
    ("lineage", &["--skip=thousands"]),
    ("executable", &[]),
    // Macvlan is a module that no other test needs.
    ("netns_exit", &["--skip=lower"]),
    ("stuck", &["--skip=started_in_a_mount_namespace"]),
    ("vrf", &[]),
    // `tc` is not in the guest.
    ("link_actor", &["--skip=queues"]),
];

const PREREQUISITES: [Prerequisite; 3] = [
    program("xz", "xz-utils", "unpacks the kernels' modules"),
    // The culprit of most tests; what the harness itself changes, it changes through rtnetlink.
    program("ip", "iproute2", "deletes and changes what the daemon then names it for"),
    program("busybox", "busybox-static", "is started by the tests").statically_linked(),
];

/// Runs the tests on the `chosen` kernels, or on those of this release, side by side. None is an error if they are `required`.
pub(crate) fn test(arguments: &[String], chosen: &[String], required: bool) -> Result<()> {
    let plan = plan(arguments)?;
    let kernels = prepare(chosen, Privilege::of_this_user())?;
    if kernels.is_empty() {
        let reason = "the kernels are those of Debian's amd64 packages, which apt does not offer here";
        if required {
            bail!("{reason}");
        }
        eprintln!("xtask: skipped: {reason}");
        return Ok(());
    }
    let qemu = Qemu::of_this_machine(Privilege::of_this_user())?;
    let daemon = build::release()?;
    let executables = executables()?;
    let transcript = Transcript::new(kernels.len(), io::stderr());
    let failed = std::thread::scope(|scope| {
        let (plan, qemu, daemon, executables) = (&plan, &qemu, &daemon, &executables);
        let machines: Vec<_> = kernels
            .iter()
            .enumerate()
            .map(|(index, kernel)| {
                let mut output = transcript.piece(index);
                scope.spawn(move || {
                    let passed = run(qemu, kernel, daemon, executables, plan, &mut output);
                    let passed = passed.inspect_err(|error| {
                        // The output is closed; the exit code has the result, too.
                        let _ = writeln!(output, "xtask: {}: {error:#}", kernel.name);
                    });
                    passed.is_err().then_some(kernel.name.as_str())
                })
            })
            .collect();
        let ended = machines.into_iter().map(|machine| machine.join());
        ended.filter_map(|failed| failed.unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    });
    if !failed.is_empty() {
        bail!("failed on {}", failed.join(", "));
    }
    Ok(())
}

/// Installs what the machines need, and downloads the kernels; none where there are none for this machine.
pub(crate) fn prepare(chosen: &[String], privilege: Privilege) -> Result<Vec<Kernel>> {
    let offers = kernels::offered(chosen, privilege)?;
    if offers.is_empty() {
        return Ok(Vec::new());
    }
    prerequisites::ensure("the tests on other kernels", &PREREQUISITES, privilege)?;
    Qemu::of_this_machine(privilege)?;
    offers.iter().map(|offer| kernels::fetch(offer, privilege)).collect()
}

fn run(
    qemu: &Qemu,
    kernel: &Kernel,
    daemon: &Path,
    executables: &[(String, PathBuf)],
    plan: &[String],
    output: &mut impl Write,
) -> Result<()> {
    writeln!(output, "xtask: {}", kernel.name)?;
    let initramfs = workspace::target().join("vm").join(format!("{}.initramfs", kernel.name));
    let content = files::collect(daemon, executables, kernel)?;
    fs::write(&initramfs, content).with_context(|| format!("cannot write {}", initramfs.display()))?;
    machine::run(qemu, kernel, &initramfs, plan, output)
}

/// A word per test executable, as `guest` takes them: its name and its arguments, with commas between.
fn plan(arguments: &[String]) -> Result<Vec<String>> {
    if let Some(bad) = arguments.iter().find(|argument| argument.contains([',', ' ', '"'])) {
        bail!("{bad:?} cannot be handed to a kernel's command line");
    }
    let word = |(name, own): &(&str, &[&str])| {
        let words = std::iter::once(*name).chain(own.iter().copied());
        words.chain(arguments.iter().map(String::as_str)).collect::<Vec<_>>().join(",")
    };
    Ok(TESTS.iter().map(word).collect())
}

/// Builds the tests' package as static executables; those that the guest starts, by name.
fn executables() -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = e2e_tests()?;
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{} failed ({})", workspace::written(&cargo), output.status);
    }
    let built = built(&String::from_utf8_lossy(&output.stdout));
    let wanted = [GUEST, REAPER, ACTOR, FORKER, WEDGE].into_iter().chain(TESTS.iter().map(|(name, _)| *name));
    wanted
        .map(|name| {
            let found = built.iter().find(|(built, _)| built == name);
            found.cloned().with_context(|| format!("cargo built no {name}"))
        })
        .collect()
}

/// The executables in cargo's JSON messages.
fn built(messages: &str) -> Vec<(String, PathBuf)> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    artifacts
        .filter_map(|message| {
            let name = message.pointer("/target/name")?.as_str()?.to_owned();
            Some((name, Path::new(message.get("executable")?.as_str()?).to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_given_by_the_user_selects_in_every_executable() {
        let words = plan(&["one_deletion".to_owned()]).expect("a name");
        assert_eq!(words.len(), TESTS.len());
        assert_eq!(words[0], "hooks,one_deletion");
        assert!(words.contains(&"mount,--skip=container,one_deletion".to_owned()), "{words:?}");
        assert!(words.iter().all(|word| word.ends_with(",one_deletion")), "{words:?}");
    }

    #[test]
    fn what_a_kernel_would_split_is_refused() {
        for bad in ["a b", "a,b", "a\"b"] {
            assert!(plan(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn executables_are_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"libc"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"mount"},"executable":"/t/mount-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(built(messages), [("mount".to_owned(), PathBuf::from("/t/mount-1"))]);
    }
}
