//! `cargo xtask test`: installs what the tests need, builds, and tests; every part runs, even after a failure.
//!
//! The gate, which CI runs, is what finds most in a quarter of an hour; `full` is everything. Each part is a process of its own
//! with a limit. What computes runs side by side; end-to-end tests, some of which count all that the kernel does, run by
//! themselves.

mod flaky;
mod full;
mod leftovers;
mod parts;
mod suite;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use self::suite::{Batch, Executable, Report, Width};
use crate::build;
use crate::cluster;
use crate::debian;
use crate::ebpf::ebpf;
use crate::kubernetes;
use crate::prerequisites::{self, Prerequisite, program};
use crate::runtimes;
use crate::setup::{self, Privilege};
use crate::vm;
use crate::workspace;

/// The package of the end-to-end tests, and their executable.
pub(crate) const E2E: &str = "kevtmon-tests";
pub(crate) const E2E_EXECUTABLE: &str = "e2e";
/// Of `cargo test`.
pub(crate) const E2E_ARGUMENTS: [&str; 4] = ["--package", E2E, "--test", E2E_EXECUTABLE];

/// Modules of the end-to-end tests that need a kubelet, and of those that need a whole cluster.
const WITH_KUBELET: [&str; 1] = ["kubelet_node"];
const WITH_CLUSTER: [&str; 2] = ["cluster", "cluster_daemon_set"];

#[derive(Args)]
pub(crate) struct Options {
    /// Which tests to run
    #[arg(value_enum, default_value_t)]
    part: Part,
    /// Only what the gate runs, and nothing where that is impossible on this machine
    #[arg(long, hide = true)]
    gate: bool,
    /// Skip what is impossible on this machine
    #[arg(long, hide = true)]
    if_possible: bool,
    /// For `vm`: the architecture of the machines; what runs in those for arm64 is compiled here
    #[arg(long, value_enum, value_name = "ARCH")]
    arch: Option<vm::Arch>,
    /// For `vm`: the kernels, as series separated by commas (6.1, 6.12 …); besides those of this Debian release 5.10, 6.17
    /// and newest; of arm64 5.10, 6.1 and 6.12
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    kernel: Vec<String>,
    /// Parts of the names of tests, such as `mount::`; all when none is given
    #[arg(last = true)]
    names: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Tests beside the code, without privileges
    Unit,
    /// The daemon against the real kernel and real runtimes, as root
    E2e,
    /// The same, where the probes are concerned, on other kernels in virtual machines
    Vm,
    /// The package in a Debian with systemd, in a virtual machine
    Systemd,
    /// Tests of container runtimes on those of newer Debian releases, as root; the first time these are downloaded
    Runtimes,
    /// The daemon on a node with a real kubelet, as root; the first time the kubelet is built
    Kubelet,
    /// The same on a whole cluster of one node, also as its DaemonSet; the first time the cluster is built
    Cluster,
    /// What the other parts need, built
    #[value(hide = true)]
    Build,
    /// What the gate needs, installed and downloaded
    #[value(hide = true)]
    Prepare,
    /// Lint, unit tests, end-to-end tests and one other kernel: what CI runs
    #[default]
    Gate,
    /// Everything: also slow tests, more kernels, newer container runtimes, kubelets, a cluster, arm64
    Full,
}

/// Runs the requested tests; an error names the parts that failed.
pub(crate) fn test(options: &Options) -> Result<()> {
    if (options.arch.is_some() || !options.kernel.is_empty()) && options.part != Part::Vm {
        bail!("--arch and --kernel are for `cargo xtask test vm`");
    }
    let is_required = !options.gate && !options.if_possible;
    match options.part {
        Part::Unit => unit(&options.names),
        Part::E2e => end_to_end(&options.names, options.gate),
        Part::Vm => {
            let scope = if options.gate { vm::Scope::Gate } else { vm::Scope::All };
            let arch = options.arch.unwrap_or_default();
            vm::test(&options.names, arch, &options.kernel, scope, is_required)
        }
        Part::Systemd => vm::systemd::test(is_required),
        Part::Runtimes => with_runtimes(&options.names, is_required),
        Part::Kubelet => with_kubelet(&options.names, is_required),
        Part::Cluster => with_cluster(&options.names, is_required),
        Part::Build => build_all(),
        Part::Prepare => prepare(),
        Part::Gate => parts::run(&parts::GATE, &options.names),
        Part::Full => parts::run(&parts::FULL, &options.names),
    }
}

/// Builds the daemon and all tests.
fn build_all() -> Result<()> {
    daemon()?;
    for (what, tests) in [("unit tests", unit_tests()?), ("end-to-end tests", e2e_tests()?)] {
        eprintln!("xtask: building the {what}, for about two minutes");
        suite::build(tests)?;
    }
    Ok(())
}

/// Installs and downloads what the gate's other parts need, while others build.
fn prepare() -> Result<()> {
    let privilege = Privilege::of_this_user();
    install_end_to_end_prerequisites(privilege)?;
    vm::prepare(vm::Arch::Amd64, &[], vm::Scope::Gate, privilege).map(drop)
}

/// The daemon that is tested: `KEVTMON_BIN`, else one that is built for that.
pub(crate) fn daemon() -> Result<PathBuf> {
    let given = std::env::var_os("KEVTMON_BIN").map(PathBuf::from);
    let given =
        given.map(|path| path.canonicalize().with_context(|| format!("cannot find {}", path.display())));
    given.unwrap_or_else(build::daemon)
}

/// `cargo test` of the tests beside the code.
fn unit_tests() -> Result<Command> {
    let mut cargo = workspace::cargo("test");
    cargo.args(["--workspace", "--lib", "--bin", "kevtmon", "--bin", "xtask"]);
    Ok(cargo)
}

/// `cargo test` of the end-to-end tests.
fn e2e_tests() -> Result<Command> {
    let mut cargo = workspace::cargo("test");
    cargo.args(E2E_ARGUMENTS);
    Ok(cargo)
}

fn unit(names: &[String]) -> Result<()> {
    ebpf()?;
    let mut batches = Vec::new();
    for (name, executable) in suite::build(unit_tests()?)? {
        let tests = selected(executable.tests()?, names);
        if !tests.is_empty() {
            batches.push(Batch { label: name, executable, tests });
        }
    }
    // What is slow waits for other threads or processes.
    let width = Width { batches: 2, threads: 3 };
    let mut out = io::stderr();
    suite::run(batches, width, &mut out).conclude(&mut out)
}

/// The tests of which a part of the name is given.
fn selected(mut tests: Vec<String>, names: &[String]) -> Vec<String> {
    tests.retain(|test| names.is_empty() || names.iter().any(|name| test.contains(name.as_str())));
    tests
}

fn end_to_end(names: &[String], gate: bool) -> Result<()> {
    let privilege = Privilege::for_root("the end-to-end tests need", "test")?;
    install_end_to_end_prerequisites(privilege)?;
    if !gate {
        prerequisites::ensure("the tests of the page", &BROWSER, privilege)?;
    }
    let daemon = daemon()?;
    let mut environment = vec![("KEVTMON_BIN", daemon.as_os_str())];
    let debian = if gate { None } else { debian::root(privilege)? };
    environment.extend(debian.as_ref().map(|debian| ("KEVTMON_DEBIAN_ROOT", debian.as_ref())));
    let executable = e2e_executable(privilege, &environment)?;
    if privilege == Privilege::Sudo {
        // So that it asks for a password once.
        workspace::check(Command::new("sudo").arg("true"))?;
    }
    let all = executable.tests()?;
    full::check(&all)?;
    let mut tests = selected(all, names);
    if gate {
        tests.retain(|test| !full::has(test));
    }
    let mut out = io::stderr();
    let concluded = run_all(&executable, tests, &mut out).conclude(&mut out);
    leftovers::check(&daemon, &executable.path).and(concluded)
}

fn run_all(executable: &Executable, tests: Vec<String>, out: &mut io::Stderr) -> Report {
    let (alone, together): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| is_alone(test));
    let mut report = suite::run(by_module(executable, together), TOGETHER, out);
    report.add(suite::run(by_module(executable, alone), Width::ALONE, out));
    report
}

/// More than there are processors: end-to-end tests wait for kernels and runtimes most of the time.
const TOGETHER: Width = Width { batches: 5, threads: 2 };

/// Whether a test counts what the whole kernel does, or needs a quiet machine: those lie in modules of this name.
fn is_alone(test: &str) -> bool {
    test.split("::").any(|part| part == "alone")
}

/// A process for a few tests of a module, which share a runtime and take turns with mounts; what takes a process down takes few
/// tests along.
fn by_module(executable: &Executable, tests: Vec<String>) -> Vec<Batch> {
    const MOST: usize = 6;
    let mut modules = BTreeMap::<String, Vec<String>>::new();
    for test in tests {
        let module = test.split("::").next().unwrap_or_default().to_owned();
        modules.entry(module).or_default().push(test);
    }
    let batch = |label: &String, tests: &[String]| Batch {
        label: label.clone(),
        executable: executable.clone(),
        tests: tests.to_vec(),
    };
    let mut batches: Vec<Batch> = modules
        .iter()
        .flat_map(|(module, tests)| tests.chunks(MOST).map(move |tests| batch(module, tests)))
        .collect();
    batches.sort_by_key(|batch| SLOW.iter().position(|slow| *slow == batch.label).unwrap_or(SLOW.len()));
    batches
}

/// Modules with batches of half a minute and more: they begin first and in this order, so that at the end no one of them is waited
/// for alone.
const SLOW: [&str; 12] = [
    "mount_leak", "mount_identity", "container_undeletable", "routes_random", "advice_volume", "disk",
    "orphan_container", "runtimes", "file_server_lost", "cri", "daemon_set", "orphan_veth",
];

/// Modules about what each container runtime reports.
const WITH_RUNTIME: [&str; 7] =
    ["container_undeletable", "cri", "daemon_set", "docker", "orphan_container", "pod_claims", "runtimes"];

/// Whether tests that take packages of Debian are left out: without apt, where they are not `required`.
fn is_left_out(what: &str, required: bool) -> bool {
    let is_left_out = !required && !kubernetes::is_possible();
    if is_left_out {
        eprintln!("xtask: skipped: the tests with {what} take packages of Debian, and there is no apt here");
    }
    is_left_out
}

/// Their tests on the runtimes of newer releases.
fn with_runtimes(names: &[String], required: bool) -> Result<()> {
    if is_left_out("newer container runtimes", required) {
        return Ok(());
    }
    let privilege = Privilege::for_root("container runtimes need", "test")?;
    install_end_to_end_prerequisites(privilege)?;
    let daemon = daemon()?;
    let mut concluded = Ok(());
    for suite in runtimes::SUITES {
        let of_suite = with_runtimes_of(suite, &daemon, names, privilege);
        concluded = concluded.and(of_suite.with_context(|| format!("with the runtimes of Debian {suite}")));
    }
    concluded
}

fn with_runtimes_of(suite: &str, daemon: &Path, names: &[String], privilege: Privilege) -> Result<()> {
    let unpacked = runtimes::of(suite, privilege)?;
    let environment = [("KEVTMON_BIN", daemon.as_os_str()), (RUNTIMES, unpacked.as_os_str())];
    let executable = e2e_executable(privilege, &environment)?;
    let module = |test: &str| test.split("::").next().unwrap_or_default().to_owned();
    let all = executable.tests()?;
    if let Some(missing) = WITH_RUNTIME.iter().find(|name| all.iter().all(|test| module(test) != **name)) {
        bail!("no end-to-end test is in {missing}");
    }
    let mut tests = selected(all, names);
    tests.retain(|test| WITH_RUNTIME.contains(&module(test).as_str()));
    eprintln!("xtask: with the container runtimes of Debian {suite}");
    let mut out = io::stderr();
    let concluded = run_all(&executable, tests, &mut out).conclude(&mut out);
    leftovers::check(daemon, &executable.path).and(concluded)
}

/// The tests on a node with a kubelet.
fn with_kubelet(names: &[String], required: bool) -> Result<()> {
    if is_left_out("a kubelet", required) {
        return Ok(());
    }
    let privilege = Privilege::for_root("the tests with a kubelet need", "test")?;
    install_end_to_end_prerequisites(privilege)?;
    let (kubelet, other) = (kubernetes::kubelet(privilege)?, kubernetes::other_kubelet(privilege)?);
    let environment = [("KEVTMON_KUBELET", kubelet.as_ref()), ("KEVTMON_OTHER_KUBELET", other.as_ref())];
    ignored(&WITH_KUBELET, &environment, names, privilege)
}

/// The tests on a whole cluster.
fn with_cluster(names: &[String], required: bool) -> Result<()> {
    if is_left_out("a cluster", required) {
        return Ok(());
    }
    let privilege = Privilege::for_root("the cluster needs", "test cluster")?;
    let [kubelet, control_plane] = cluster::programs(privilege)?;
    let environment = [
        (kubelet.0, kubelet.1.as_ref()),
        (control_plane.0, control_plane.1.as_ref()),
        ("KEVTMON_TEST_PATIENCE", cluster::PATIENCE.as_ref()),
    ];
    ignored(&WITH_CLUSTER, &environment, names, privilege)
}

/// Runs the tests of modules that are ignored otherwise, since they need what is built for them.
fn ignored(
    modules: &[&str],
    environment: &[(&str, &OsStr)],
    names: &[String],
    privilege: Privilege,
) -> Result<()> {
    let daemon = daemon()?;
    let environment = [&[("KEVTMON_BIN", daemon.as_os_str())], environment].concat();
    let executable = Executable { ignored: true, ..e2e_executable(privilege, &environment)? };
    let mut tests = selected(executable.tests()?, names);
    tests.retain(|test| test.split("::").next().is_some_and(|module| modules.contains(&module)));
    let mut out = io::stderr();
    let width = Width { batches: 1, threads: 2 };
    let report: Report = suite::run(by_module(&executable, tests), width, &mut out);
    report.conclude(&mut out)
}

/// The executable of the end-to-end tests, built, and started as root.
fn e2e_executable(privilege: Privilege, environment: &[(&str, &OsStr)]) -> Result<Executable> {
    let built = suite::build(e2e_tests()?)?;
    let found = built.into_iter().find(|(name, _)| name == E2E_EXECUTABLE);
    let (_, executable) = found.context("cargo built no end-to-end tests")?;
    Ok(Executable { runner: root_runner(privilege, environment), ..executable })
}

/// Installs what the harness of the end-to-end tests starts.
pub(crate) fn install_end_to_end_prerequisites(privilege: Privilege) -> Result<()> {
    prerequisites::ensure("the end-to-end tests", &PREREQUISITES, privilege)
}

/// How long the tests of one module may take.
const MODULE_PATIENCE: &str = "15m";

/// Names the directory of what is laid over `/usr` for the tests, if anything.
const RUNTIMES: &str = "KEVTMON_RUNTIMES";

/// Gives the tests of a process mounts of their own, which they tell the daemon are the node's: tests that mount something, or
/// name a network namespace, wait only for those of the same process. `sh` becomes the test executable.
const OWN_MOUNTS: &str = "mkdir -p /run/netns && mount -t tmpfs kevtmon-tests /run/netns \
    && { [ -z \"$KEVTMON_RUNTIMES\" ] \
        || mount -t overlay -o \"ro,lowerdir=$KEVTMON_RUNTIMES:/usr\" kevtmon-runtimes /usr; } \
    && KEVTMON_HOST_PID=$$ exec \"$@\"";

/// The words before those of a test executable.
fn root_runner(privilege: Privilege, environment: &[(&str, &OsStr)]) -> Vec<String> {
    let mut runner = vec!["env".to_owned()];
    runner.extend(environment.iter().map(|(name, value)| format!("{name}={}", value.display())));
    // What was found for the tests must be found by them: a user's PATH often lacks the directories of root.
    runner.extend(std::env::join_paths(setup::search_path()).map(|path| format!("PATH={}", path.display())));
    // One test that waits for ever must not take those of other modules along. Ctrl-C reaches what is in the foreground.
    runner.extend(
        ["timeout", "--foreground", "--verbose", "--kill-after=10", MODULE_PATIENCE].map(str::to_owned),
    );
    runner.extend(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", OWN_MOUNTS, "sh"].map(str::to_owned),
    );
    if privilege == Privilege::Sudo {
        eprintln!("xtask: the end-to-end tests need root; starting them through sudo");
        runner.insert(0, "sudo".to_owned());
    }
    runner
}

/// What only the full tests start.
const BROWSER: [Prerequisite; 1] = [program("chromium", "chromium", "shows the page of `kevtmon ui`")];

const PREREQUISITES: [Prerequisite; 22] = [
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
    program("mkfs.btrfs", "btrfs-progs", "the same, of several devices"),
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

    #[test]
    fn tests_are_chosen_by_parts_of_their_names_and_run_by_module() {
        let tests = ["a::one", "a::alone::two", "b::one"].map(str::to_owned).to_vec();
        assert_eq!(selected(tests.clone(), &[]), tests);
        assert_eq!(selected(tests.clone(), &["b::".to_owned(), "two".to_owned()]), tests[1..]);
        assert_eq!(tests.iter().filter(|test| is_alone(test)).collect::<Vec<_>>(), ["a::alone::two"]);
        let executable =
            Executable { path: "/x".into(), directory: "/".into(), runner: Vec::new(), ignored: false };
        let batches = by_module(&executable, tests);
        let shown: Vec<_> = batches.iter().map(|batch| (batch.label.as_str(), batch.tests.len())).collect();
        assert_eq!(shown, [("a", 2), ("b", 1)]);
        let slow_first =
            by_module(&executable, ["a::one", "cri::one", "disk::one"].map(str::to_owned).to_vec());
        let shown: Vec<_> = slow_first.iter().map(|batch| batch.label.as_str()).collect();
        assert_eq!(shown, ["disk", "cri", "a"]);
    }

    #[test]
    fn only_the_tests_become_root() {
        let runner = root_runner(Privilege::Sudo, &[("KEVTMON_BIN", OsStr::new("/x/kevtmon"))]);
        assert_eq!(runner[..3], ["sudo", "env", "KEVTMON_BIN=/x/kevtmon"]);
        let runner = root_runner(Privilege::Root, &[]);
        assert_eq!(runner[0], "env");
    }
}
