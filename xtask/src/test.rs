//! `cargo xtask test`: installs what the tests need, builds, and tests; every part runs, even after a failure.
//!
//! All parts run as CI runs them: what does not disturb each other side by side, each as a process of its own. The unit tests
//! and the end-to-end tests never meet, since both change mounts and neighbors, and some of the latter count all that
//! the kernel does; among themselves these have locks, and several of their executables run at a time. Virtual machines come
//! last: they are only load, but all that the processors can take.

mod lanes;

use std::ffi::OsStr;
use std::io::{self, PipeReader, Read as _, Write};
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::build;
use crate::cluster;
use crate::debian;
use crate::ebpf::ebpf;
use crate::kubernetes;
use crate::prerequisites::{self, Prerequisite, program};
use crate::setup::{self, Privilege};
use crate::side_by_side::{Output, Transcript};
use crate::vm;
use crate::workspace;

/// The package of the end-to-end tests.
pub(crate) const E2E: &str = "kevtmon-tests";

/// The end-to-end tests that need a kubelet.
const WITH_KUBELET: &str = "kubelet_node";
/// The end-to-end tests that need a whole cluster.
const WITH_CLUSTER: &str = "cluster";

#[derive(Args)]
pub(crate) struct Options {
    /// Which tests to run
    #[arg(value_enum, default_value_t)]
    part: Part,
    /// Skip the tests on other kernels, or with a kubelet, where there are none
    #[arg(long, hide = true)]
    if_possible: bool,
    /// For `vm`: the kernels, as series separated by commas (6.1, 6.12 …); besides those of this Debian release 5.10, 6.17
    /// and newest
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    kernel: Vec<String>,
    /// For `e2e`: how many test executables run at a time
    #[arg(long, hide = true, value_name = "N")]
    lanes: Option<NonZero<usize>>,
    /// Arguments for `cargo test`, such as the name of a test
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Tests beside the code, without privileges
    Unit,
    /// The daemon against the real kernel and real runtimes, as root
    E2e,
    /// The same, where the probes are concerned, on other kernels in virtual machines
    Vm,
    /// The daemon on a node with a real kubelet, as root; the first time the kubelet is built
    Kubelet,
    /// The same on a whole cluster of one node, which is built the first time; in no other part
    Cluster,
    /// What the first four need, and no test
    #[value(hide = true)]
    Prepare,
    /// Lint, and all of the above but `cluster`: what CI runs
    #[default]
    All,
}

/// Runs the requested tests; an error names the parts that failed.
pub(crate) fn test(options: &Options) -> Result<()> {
    if !options.kernel.is_empty() && options.part != Part::Vm {
        bail!("--kernel is for `cargo xtask test vm`");
    }
    if options.lanes.is_some() && options.part != Part::E2e {
        bail!("--lanes is for `cargo xtask test e2e`");
    }
    match options.part {
        Part::Unit => unit(&options.arguments),
        Part::E2e => end_to_end(&options.arguments, options.lanes),
        Part::Vm => vm::test(&options.arguments, &options.kernel, !options.if_possible),
        Part::Kubelet => with_kubelet(&options.arguments, !options.if_possible),
        Part::Cluster => with_cluster(&options.arguments),
        Part::Prepare => prepare(),
        Part::All => all(&options.arguments),
    }
}

/// What runs as a process of its own: its name, and arguments of this program.
type Job = (&'static str, &'static [&'static str]);

/// Jobs that run one after the other.
type Lane = &'static [Job];

/// Lanes that run side by side, stage after stage.
const STAGES: [&[Lane]; 3] = [
    &[
        &[("lint", &["lint"]), ("unit tests", &["test", "unit"])],
        &[("preparation of the other tests", &["test", "prepare"])],
    ],
    // One after the other: some end-to-end tests count what the kernel does, and a kubelet never rests.
    &[&[
        ("end-to-end tests", &["test", "e2e"]),
        ("tests with a kubelet", &["test", "kubelet", "--if-possible"]),
    ]],
    // Emulated processors take all that there is, and the daemon under test waits half a second for what it asks for.
    &[&[("tests on other kernels", &["test", "vm", "--if-possible"])]],
];

fn all(arguments: &[String]) -> Result<()> {
    let this = std::env::current_exe().context("cannot find the executable of this command")?;
    let mut ended = Vec::new();
    for stage in STAGES {
        ended.extend(run_stage(&this, stage, arguments, io::stderr()));
    }
    for (name, took, outcome) in &ended {
        let verdict = outcome.as_ref().map_or_else(|error| format!("{error:#}"), |()| "passed".to_owned());
        eprintln!("xtask: {name}: {verdict} after {} s", took.as_secs());
    }
    let failed: Vec<&str> =
        ended.iter().filter(|(_, _, outcome)| outcome.is_err()).map(|(name, ..)| *name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs lanes side by side, each job as a process of `program`.
fn run_stage(program: &Path, lanes: &[Lane], arguments: &[String], out: impl Write + Send) -> Vec<Ended> {
    let transcript = Transcript::new(lanes.iter().map(|lane| lane.len()).sum(), out);
    let mut first = 0;
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for lane in lanes {
            let outputs: Vec<_> = (first..first + lane.len()).map(|index| transcript.piece(index)).collect();
            first += lane.len();
            running.push(scope.spawn(|| run_lane(program, lane, arguments, outputs)));
        }
        let ended = running.into_iter().map(|lane| lane.join());
        ended.flat_map(|lane| lane.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Name, time and outcome of a job.
type Ended = (&'static str, Duration, Result<()>);

fn run_lane<W: Write + Send>(
    program: &Path,
    lane: Lane,
    arguments: &[String],
    outputs: Vec<Output<'_, W>>,
) -> Vec<Ended> {
    let mut ended = Vec::new();
    for ((name, own), mut output) in lane.iter().zip(outputs) {
        let start = Instant::now();
        let mut command = Command::new(program);
        command.args(*own);
        if own.iter().any(|part| ["unit", "e2e", "kubelet", "vm"].contains(part)) && !arguments.is_empty() {
            command.arg("--").args(arguments);
        }
        let outcome = writeln!(output, "xtask: {name}").map_err(Into::into);
        let outcome = outcome.and_then(|()| run_into(&mut command, &mut output));
        ended.push((*name, start.elapsed(), outcome));
    }
    ended
}

/// Runs a command with all that it prints going to `output`.
fn run_into(command: &mut Command, output: &mut impl Write) -> Result<()> {
    let (mut printed, writer) = io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone().context("cannot share a pipe")?).stderr(writer);
    let mut child = command.spawn().context("cannot start a part")?;
    // What it was started with holds the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let status = copy_until_end(&mut child, &mut printed, output)?;
    if !status.success() {
        bail!("{status}");
    }
    Ok(())
}

/// Copies what a part prints until it has ended; a process that it leaves behind may hold the pipe open for ever.
fn copy_until_end(
    child: &mut Child,
    printed: &mut PipeReader,
    output: &mut impl Write,
) -> Result<ExitStatus> {
    let mut buffer = vec![0; 64 * 1024];
    let mut status = None;
    loop {
        let mut polled = [PollFd::new(printed.as_fd(), PollFlags::POLLIN)];
        let readable = match poll(&mut polled, PollTimeout::from(100_u8)) {
            Err(Errno::EINTR) => continue,
            ready => ready.context("cannot wait for what a part prints")? > 0,
        };
        if readable {
            let read = printed.read(&mut buffer).context("cannot read what a part prints")?;
            output.write_all(&buffer[..read]).context("cannot show what a part prints")?;
            if read > 0 {
                continue;
            }
        }
        match status {
            // All that was in the pipe at its end is read.
            Some(status) => return Ok(status),
            None if readable => return child.wait().context("cannot wait for a part"),
            None => status = child.try_wait().context("cannot wait for a part")?,
        }
    }
}

/// Installs, downloads and builds what the end-to-end tests and those on other kernels need, while others run.
fn prepare() -> Result<()> {
    install_end_to_end_prerequisites(Privilege::of_this_user())?;
    debian::root(Privilege::of_this_user())?;
    let prepared = vm::prepare(&[], Privilege::of_this_user());
    daemon()?;
    workspace::check(e2e_tests()?.arg("--no-run"))?;
    if kubernetes::is_possible() {
        kubernetes::kubelet(Privilege::of_this_user())?;
    }
    prepared.map(drop)
}

/// The daemon that is tested: `KEVTMON_BIN`, else one that is built for that.
pub(crate) fn daemon() -> Result<PathBuf> {
    let given = std::env::var_os("KEVTMON_BIN").map(PathBuf::from);
    let given =
        given.map(|path| path.canonicalize().with_context(|| format!("cannot find {}", path.display())));
    given.unwrap_or_else(build::for_tests)
}

fn unit(arguments: &[String]) -> Result<()> {
    ebpf()?;
    let mut cargo = workspace::cargo("test");
    // Static as what the other tests need: so what it depends on is compiled once.
    build::link_statically(&mut cargo, &build::host_triple()?);
    cargo.args(["--workspace", "--exclude", E2E, "--no-fail-fast"]).args(arguments);
    workspace::check(&mut cargo)
}

fn end_to_end(arguments: &[String], lanes: Option<NonZero<usize>>) -> Result<()> {
    let privilege = Privilege::of_this_user();
    if privilege == Privilege::None {
        bail!("the end-to-end tests need root, and there is no sudo here: run `cargo xtask test` as root");
    }
    install_end_to_end_prerequisites(privilege)?;
    let debian = debian::root(privilege)?;
    let daemon = daemon()?;
    let executables = lanes::executables(e2e_tests, arguments)?;
    let mut environment = vec![("KEVTMON_BIN", daemon.as_ref())];
    environment.extend(debian.as_ref().map(|debian| ("KEVTMON_DEBIAN_ROOT", debian.as_ref())));
    let runner = root_runner(privilege, &environment);
    if privilege == Privilege::Sudo {
        // So that it asks for a password once.
        workspace::check(Command::new("sudo").arg("true"))?;
    }
    let lanes = lanes.map_or_else(lanes::default_number, NonZero::get);
    let ended = lanes::run(&executables, lanes, &runner, io::stderr());
    lanes::summary(&ended, &mut io::stderr())
}

/// The tests on a node with a kubelet. Where it cannot be built, that is an error if they are `required`.
fn with_kubelet(arguments: &[String], required: bool) -> Result<()> {
    let privilege = Privilege::of_this_user();
    if !required && !kubernetes::is_possible() {
        eprintln!(
            "xtask: skipped: the kubelet is built from Debian's source package, and there is no apt here"
        );
        return Ok(());
    }
    if privilege == Privilege::None {
        bail!(
            "the tests with a kubelet need root, and there is no sudo here: run `cargo xtask test` as root"
        );
    }
    install_end_to_end_prerequisites(privilege)?;
    let (kubelet, other) = (kubernetes::kubelet(privilege)?, kubernetes::other_kubelet(privilege)?);
    let environment = [("KEVTMON_KUBELET", kubelet.as_ref()), ("KEVTMON_OTHER_KUBELET", other.as_ref())];
    ignored(WITH_KUBELET, &environment, arguments, privilege)
}

/// The tests on a cluster.
fn with_cluster(arguments: &[String]) -> Result<()> {
    let privilege = Privilege::of_this_user();
    if privilege == Privilege::None {
        bail!("the cluster needs root, and there is no sudo here: run `cargo xtask test cluster` as root");
    }
    let [kubelet, control_plane] = cluster::programs(privilege)?;
    let environment = [
        (kubelet.0, kubelet.1.as_ref()),
        (control_plane.0, control_plane.1.as_ref()),
        ("KEVTMON_TEST_PATIENCE", cluster::PATIENCE.as_ref()),
    ];
    ignored(WITH_CLUSTER, &environment, arguments, privilege)
}

/// Runs the tests of a file that a plain `cargo test` ignores, since they need what is built for them.
fn ignored(
    file: &str,
    environment: &[(&str, &OsStr)],
    arguments: &[String],
    privilege: Privilege,
) -> Result<()> {
    let daemon = daemon()?;
    let mut cargo = e2e_tests()?;
    cargo.args(["--test", file]);
    run_as_root(&mut cargo, privilege, &[&[("KEVTMON_BIN", daemon.as_ref())], environment].concat());
    cargo.args(arguments);
    if !arguments.iter().any(|argument| argument == "--") {
        cargo.arg("--");
    }
    workspace::check(cargo.arg("--ignored"))
}

/// `cargo test` of the end-to-end tests; static, so that one build is for this machine and for virtual ones.
pub(crate) fn e2e_tests() -> Result<Command> {
    let mut cargo = workspace::cargo("test");
    cargo.args(["--package", E2E]);
    build::link_statically(&mut cargo, &build::host_triple()?);
    Ok(cargo)
}

/// Installs what the harness of the end-to-end tests starts.
pub(crate) fn install_end_to_end_prerequisites(privilege: Privilege) -> Result<()> {
    prerequisites::ensure("the end-to-end tests", &PREREQUISITES, privilege)
}

/// How long the tests of one file may take; the slowest need a quarter of it by themselves, and wait for those of others.
const FILE_PATIENCE: &str = "30m";

/// Has cargo compile as this user and start the test executables as root.
fn run_as_root(cargo: &mut Command, privilege: Privilege, environment: &[(&str, &OsStr)]) {
    let runner = root_runner(privilege, environment);
    cargo.args(["--config", &format!("target.'cfg(unix)'.runner = {runner:?}")]);
}

/// The words before those of a test executable.
fn root_runner(privilege: Privilege, environment: &[(&str, &OsStr)]) -> Vec<String> {
    let mut runner = vec!["env".to_owned()];
    runner.extend(environment.iter().map(|(name, value)| format!("{name}={}", value.display())));
    // What was found for the tests must be found by them: a user's PATH often lacks the directories of root.
    runner.extend(std::env::join_paths(setup::search_path()).map(|path| format!("PATH={}", path.display())));
    // One test that waits for ever must not take those of other files along. Ctrl-C reaches what is in the foreground.
    runner.extend(
        ["timeout", "--foreground", "--verbose", "--kill-after=10", FILE_PATIENCE].map(str::to_owned),
    );
    if privilege == Privilege::Sudo {
        eprintln!("xtask: the end-to-end tests need root; starting them through sudo");
        runner.insert(0, "sudo".to_owned());
    }
    runner
}

const PREREQUISITES: [Prerequisite; 21] = [
    // The culprit of most tests; what the harness itself changes, it changes through rtnetlink.
    program("ip", "iproute2", "deletes and changes what the daemon then names it for"),
    program("iptables", "iptables", "dockerd sets up its bridge with it"),
    program("dockerd", "docker.io", "the tests start one of their own"),
    program("docker", "docker.io", "makes and starts the containers that the tests watch"),
    program("containerd", "containerd", "dockerd starts one of its own, and so do the tests of the CRI"),
    program("podman", "podman", "the tests start a service of their own, and pods of its kind"),
    program("/usr/lib/cni/ptp", "containernetworking-plugins", "gives pods behind the CRI their network"),
    program("busybox", "busybox-static", "all that is in the containers' image").statically_linked(),
    program("glusterfs", "glusterfs-client", "serves volumes whose unmount is refused"),
    program("mkfs.ext4", "e2fsprogs", "makes the file systems of loop devices"),
    program("fuser", "psmisc", "what the holders of a mount are compared with"),
    program("lsof", "lsof", "the same"),
    program("ps", "procps", "shows what a failed test left running"),
    program("promtool", "prometheus", "judges the exported metrics and the rules for alerts"),
    program("prometheus", "prometheus", "evaluates the rules and the queries of the dashboard"),
    program("curl", "curl", "reads metrics by TLS"),
    program("openssl", "openssl", "makes certificates"),
    program("systemd-analyze", "systemd", "judges the unit of the service; nothing is started by it"),
    program("mandoc", "mandoc", "judges the manual pages"),
    program("go", "golang-go", "renders the Helm chart"),
    program(
        "/usr/share/gocode/src/github.com/Masterminds/sprig/functions.go",
        "golang-github-masterminds-sprig-dev",
        "the functions of its templates",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(cargo: &Command) -> Vec<String> {
        cargo.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn jobs_run_with_their_arguments_and_each_ones_output_is_whole() {
        const LANES: [Lane; 2] = [&[("a", &["false"]), ("b", &["test", "unit"])], &[("c", &["test", "vm"])]];
        let directory = tempfile::tempdir().expect("temporary directory");
        let program = directory.path().join("part");
        std::fs::write(&program, "#!/bin/sh\necho \"$*\"\necho \"no $1\" >&2\n[ \"$1\" = test ]\n")
            .expect("write");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("make executable");
        let mut shown = Vec::new();
        let ended = run_stage(&program, &LANES, &["name".to_owned()], &mut shown);
        let outcomes: Vec<_> = ended.iter().map(|(name, _, outcome)| (*name, outcome.is_ok())).collect();
        assert_eq!(outcomes, [("a", false), ("b", true), ("c", true)]);
        let shown = String::from_utf8(shown).expect("text");
        assert_eq!(
            shown,
            "xtask: a\nfalse\nno false\nxtask: b\ntest unit -- name\nno test\nxtask: c\ntest vm -- name\nno test\n"
        );
    }

    #[test]
    fn only_the_test_executables_become_root() {
        let mut cargo = Command::new("cargo");
        run_as_root(&mut cargo, Privilege::Sudo, &[("KEVTMON_BIN", OsStr::new("/x/kevtmon"))]);
        let arguments = arguments(&cargo);
        assert_eq!(arguments[0], "--config");
        let runner = "target.'cfg(unix)'.runner = [\"sudo\", \"env\", \"KEVTMON_BIN=/x/kevtmon\", \"PATH=";
        assert!(arguments[1].starts_with(runner), "{arguments:?}");
    }

    #[test]
    fn root_needs_no_sudo() {
        let mut cargo = Command::new("cargo");
        run_as_root(&mut cargo, Privilege::Root, &[("KEVTMON_BIN", OsStr::new("/x/kevtmon"))]);
        let runner = "target.'cfg(unix)'.runner = [\"env\", \"KEVTMON_BIN=/x/kevtmon\", \"PATH=";
        assert!(arguments(&cargo)[1].starts_with(runner), "{:?}", arguments(&cargo));
    }
}
