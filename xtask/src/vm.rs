//! `cargo xtask test vm`: the end-to-end tests of the probes on other kernels, each in a virtual machine.
//!
//! In: the daemon, the static test executable and the kernels of Debian's packages, of this machine's architecture or of arm64. Out:
//! a verdict per test, and a column of docs/kernels.md per kernel. The guest's files come in an initramfs; its process 1 is `guest`
//! of the tests' package, which prints the result on the console. A kernel may be in two machines: one for tests that compute, one
//! for those that wait. Nothing here needs root but the installation of missing programs.

mod arch;
mod archive;
mod files;
mod foreign;
mod kernels;
mod machine;
mod qemu;
mod suites;
pub(crate) mod systemd;
mod table;

use std::fs::{self, File};
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

pub(crate) use self::arch::Arch;
use self::kernels::Kernel;
use self::qemu::Qemu;
use crate::cross;
use crate::kubernetes;
use crate::prerequisites::{self, Prerequisite, program};
use crate::setup::{self, Privilege};
use crate::side_by_side::Transcript;
use crate::test::{E2E_ARGUMENTS, E2E_EXECUTABLE, daemon};
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

/// The modules of tests of what is attached in different ways on different kernels, each with what it leaves out: no runtime is in
/// the guest.
const TESTS: [Test; 7] = [
    ("hooks", &[]),
    ("hidden_types", &[]),
    ("iterators", &[]),
    // An entry must be used in the very moment in which another processor removes it, which emulation gives seldom.
    ("neighbor", &["--skip=used_at_that_moment"]),
    ("mount", &["--skip=container"]),
    ("neighbor_table", &[]),
    // The last: it locks the kernel down for good.
    ("locked_down", &["--ignored"]),
];

/// Those of what is read in the same way on all of them. Where all kernels are tested beside everything else, each of these is on
/// one of them, and on this machine's; neighbors in this list take about the same time.
const SHARED_TESTS: [Test; 10] = [
    ("identity", &[]),
    ("covers", &[]),
    ("remove", &[]),
    ("executable", &[]),
    // No plugins of others are in the guest.
    ("cni", &["--skip=real_plugin", "--skip=container_executes"]),
    // Thousands of processes take minutes here.
    ("lineage", &["--skip=thousands"]),
    // `tc` is not in the guest.
    ("link_actor", &["--skip=queues"]),
    ("route_actor", &[]),
    // Macvlan is a module that no other test needs.
    ("netns_exit", &["--skip=lower"]),
    ("vrf", &[]),
];

/// Such, too, but on no other machine: some of them hang what reads /proc. They wait most of the time, which is nobody's loss in a
/// machine of their own.
const PATIENT_TESTS: [Test; 3] =
    [("stuck", &["--skip=started_in_a_mount_namespace"]), ("nfs", &[]), ("exports", &[])];

/// The name of a module, and arguments of its own.
type Test = (&'static str, &'static [&'static str]);

const PREREQUISITES: [Prerequisite; 4] = [
    program("xz", "xz-utils", "unpacks the kernels' modules"),
    // The culprit of most tests; what the harness itself changes, it changes through rtnetlink.
    program("ip", "iproute2", "deletes and changes what the daemon then names it for"),
    program("sysctl", "procps", "changes what the daemon advises to change"),
    program("busybox", "busybox-static", "is started by the tests").statically_linked(),
];

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What the gate has time for: the probes, on the oldest kernel of this release.
    Gate,
    /// All tests that a guest can run.
    All,
}

/// What the gate runs, by parts of names: each hook attaches, sees and names. What is derived from that is the same on all kernels,
/// and tested on this machine's and in `full`; without hardware virtualisation a guest takes ten times as long.
const GATE: [Test; 3] = [
    ("hooks", &[]),
    (
        "neighbor",
        &[
            "names_the_process", "one_breath", "flush", "replaced_entry", "namespace_that_ends", "host_end",
            "ipv6", "learned_entries",
        ],
    ),
    (
        "mount",
        &[
            "refused_unmount", "goes_at_last", "is_detached", "root_directory", "succeeds_at_once",
            "which_mount_a_user",
        ],
    ),
];

/// Runs the tests on the `chosen` kernels, or on those of this release, side by side; all of them on each, or a share if they are
/// not `required`. Then no kernel is no error.
pub(crate) fn test(
    arguments: &[String],
    arch: Arch,
    chosen: &[String],
    scope: Scope,
    required: bool,
) -> Result<()> {
    check(arguments)?;
    let privilege = Privilege::of_this_user();
    let lack = match arch.target() {
        Some(target) => cross::lack(target)?,
        None => None,
    };
    let kernels = if lack.is_none() { prepare(arch, chosen, scope, privilege)? } else { Vec::new() };
    if kernels.is_empty() {
        let debian = arch.debian();
        let reason = lack.unwrap_or_else(|| {
            format!("the kernels are those of Debian's {debian} packages, which apt does not offer here")
        });
        if required {
            bail!("{reason}");
        }
        eprintln!("xtask: skipped: {reason}");
        return Ok(());
    }
    let qemu = Qemu::of_this_machine(arch, privilege)?;
    let guest = Guest::build(arch, privilege)?;
    let share = |index| (!required && chosen.is_empty()).then_some(Share { index, of: kernels.len() });
    let machines: Vec<_> = kernels
        .iter()
        .enumerate()
        .flat_map(|(index, kernel)| {
            plans(arguments, scope, share(index)).into_iter().map(move |plan| (kernel, plan))
        })
        .collect();
    let transcript = Transcript::new(machines.len(), io::stderr());
    let ended = std::thread::scope(|scope| {
        let (qemu, guest) = (&qemu, &guest);
        let machines: Vec<_> = machines
            .into_iter()
            .enumerate()
            .map(|(index, (kernel, plan))| {
                let mut output = transcript.piece(index);
                scope.spawn(move || {
                    let passed = run(qemu, kernel, guest, &plan, &mut output);
                    passed.map(|attached| (kernel.series(), attached)).map_err(|error| {
                        // The output is closed; the exit code has the result, too.
                        let _ = writeln!(output, "xtask: {}: {error:#}", kernel.name);
                        kernel.name.as_str()
                    })
                })
            })
            .collect();
        let ended = machines.into_iter().map(|machine| machine.join());
        ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    });
    let failed: Vec<&str> = ended.iter().filter_map(|ended| ended.as_ref().err().copied()).collect();
    if !failed.is_empty() {
        bail!("failed on {}", failed.join(", "));
    }
    table::check(&ended.into_iter().flatten().collect::<Vec<_>>())
}

/// What outlives a checkout: kernels, QEMU and lists of packages. Until the lock is dropped, no other checkout fills it.
fn cache() -> Result<(PathBuf, File)> {
    let directory = kubernetes::cache()?.join("vm");
    let lock = setup::lock(&directory, "lock")?;
    Ok((directory, lock))
}

/// Installs what the machines need, and downloads the kernels; none where there are none for this machine.
pub(crate) fn prepare(
    arch: Arch,
    chosen: &[String],
    scope: Scope,
    privilege: Privilege,
) -> Result<Vec<Kernel>> {
    let mut offers = kernels::offered(arch, chosen, privilege)?;
    if scope == Scope::Gate {
        offers.truncate(1);
    }
    if offers.is_empty() {
        return Ok(Vec::new());
    }
    prerequisites::ensure("the tests on other kernels", &PREREQUISITES, privilege)?;
    Qemu::of_this_machine(arch, privilege)?;
    offers.iter().map(|offer| kernels::fetch(arch, offer, privilege)).collect()
}

fn run(
    qemu: &Qemu,
    kernel: &Kernel,
    guest: &Guest,
    plan: &Plan,
    output: &mut impl Write,
) -> Result<Vec<String>> {
    writeln!(output, "xtask: {}", kernel.name)?;
    let name = format!("{}{}.initramfs", kernel.name, plan.suffix);
    let initramfs = write(&name, &files::collect(guest, kernel)?)?;
    machine::run(qemu, kernel, &initramfs, &plan.words, output)
}

/// Writes an initramfs, beside which the log of its machine will be.
fn write(name: &str, content: &[u8]) -> Result<PathBuf> {
    let directory = workspace::target().join("vm");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let path = directory.join(name);
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// What is in all guests of an architecture.
struct Guest {
    daemon: PathBuf,
    /// What else is compiled, by name.
    executables: Vec<(String, PathBuf)>,
    /// Where the programs that the tests start are, if not those of this machine.
    programs: Option<PathBuf>,
}

impl Guest {
    fn build(arch: Arch, privilege: Privilege) -> Result<Self> {
        let (programs, daemon, tests) = match arch.target() {
            None => (None, daemon()?, workspace::cargo("test")),
            // What `KEVTMON_BIN` names is for this machine.
            Some(target) => {
                let programs = foreign::root(arch, privilege)?;
                (Some(programs), cross::build(target, false)?, cross::cargo(target, "test")?)
            }
        };
        Ok(Self { daemon, executables: executables(tests)?, programs })
    }
}

/// What one machine does.
struct Plan {
    /// Of its files.
    suffix: &'static str,
    /// One per module of tests, as `guest` takes them: its name and its arguments, with commas between.
    words: Vec<String>,
}

/// Which of the shared tests are one kernel's.
#[derive(Clone, Copy)]
struct Share {
    index: usize,
    of: usize,
}

fn check(arguments: &[String]) -> Result<()> {
    if let Some(bad) = arguments.iter().find(|argument| argument.contains([',', ' ', '"'])) {
        bail!("{bad:?} cannot be handed to a kernel's command line");
    }
    Ok(())
}

/// One for each machine of a kernel; for tests that the user has chosen one is enough.
fn plans(arguments: &[String], scope: Scope, share: Option<Share>) -> Vec<Plan> {
    let word = |(name, own): &Test| {
        let words = std::iter::once(*name).chain(own.iter().copied());
        words.chain(arguments.iter().map(String::as_str)).collect::<Vec<_>>().join(",")
    };
    if scope == Scope::Gate {
        return vec![Plan { suffix: "-gate", words: GATE.iter().map(word).collect() }];
    }
    let shared = |tests: &[Test]| {
        let is_its = |place: usize| share.is_none_or(|share| place % share.of == share.index);
        let its = tests.iter().enumerate().filter(|(place, _)| !arguments.is_empty() || is_its(*place));
        its.map(|(_, test)| word(test)).collect::<Vec<_>>()
    };
    // The last one locks the kernel down.
    let first = [shared(&SHARED_TESTS), TESTS.iter().map(word).collect()].concat();
    let patient = shared(&PATIENT_TESTS);
    if !arguments.is_empty() {
        return vec![Plan { suffix: "", words: [patient, first].concat() }];
    }
    let plans = [Plan { suffix: "", words: first }, Plan { suffix: "-patient", words: patient }];
    plans.into_iter().filter(|plan| !plan.words.is_empty()).collect()
}

/// Builds the tests' package by `cargo test`; the executables that the guest starts, by name.
fn executables(mut cargo: Command) -> Result<Vec<(String, PathBuf)>> {
    cargo.args(E2E_ARGUMENTS).args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{} failed ({})", workspace::written(&cargo), output.status);
    }
    let built = built(&String::from_utf8_lossy(&output.stdout));
    [GUEST, E2E_EXECUTABLE, REAPER, ACTOR, FORKER, WEDGE]
        .into_iter()
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
        let plans = plans(&["one_deletion".to_owned()], Scope::All, Some(Share { index: 1, of: 2 }));
        let [Plan { words, .. }] = &plans[..] else { panic!("one machine") };
        assert_eq!(words.len(), TESTS.len() + SHARED_TESTS.len() + PATIENT_TESTS.len());
        assert!(words.contains(&"hooks,one_deletion".to_owned()), "{words:?}");
        assert!(words.contains(&"mount,--skip=container,one_deletion".to_owned()), "{words:?}");
        assert!(words.iter().all(|word| word.ends_with(",one_deletion")), "{words:?}");
    }

    #[test]
    fn what_a_kernel_would_split_is_refused() {
        for bad in ["a b", "a,b", "a\"b"] {
            assert!(check(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_tests_are_done_on_one_kernel_or_together_on_several() {
        let all = TESTS.len() + SHARED_TESTS.len();
        let size =
            |plans: Vec<Plan>| plans.iter().map(|plan| (plan.suffix, plan.words.len())).collect::<Vec<_>>();
        assert_eq!(size(plans(&[], Scope::All, None)), [("", all), ("-patient", PATIENT_TESTS.len())]);
        let shares = [0, 1].map(|index| plans(&[], Scope::All, Some(Share { index, of: 2 })));
        let words = |plans: &[Plan]| plans.iter().flat_map(|plan| plan.words.clone()).collect::<Vec<_>>();
        for plans in &shares {
            assert!(
                plans[0].words.last().is_some_and(|word| word.starts_with("locked_down")),
                "it is for good"
            );
        }
        let mut together = shares.map(|plans| words(&plans)).concat();
        together.sort_unstable();
        assert_eq!(together.len(), all + PATIENT_TESTS.len() + TESTS.len());
        together.dedup();
        assert_eq!(together.len(), all + PATIENT_TESTS.len());
    }

    #[test]
    fn executables_are_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"libc"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"mount"},"executable":"/t/mount-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(built(messages), [("mount".to_owned(), PathBuf::from("/t/mount-1"))]);
    }
}
