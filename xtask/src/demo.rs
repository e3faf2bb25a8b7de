//! `cargo xtask demo`: a daemon, two real faults, and the events that it emits.
//!
//! In: a daemon, built or given. Out: its events and metrics with a line of explanation before each step, and a
//! verdict: an event that does not come, or one too many, is an error. The scenario is here; `fixtures`
//! makes the faults, `daemon` runs the daemon and reads its output. What a demo that was killed leaves behind, the reaper of the
//! end-to-end tests removes.

mod daemon;
mod fixtures;
mod transcript;

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kevtmon_tests::mount::{Scratch, settle};

use self::daemon::Daemon;
use self::fixtures::{Fixtures, GATEWAY, Pod};
use crate::build;
use crate::packages::{self, Apt};
use crate::setup::{self, Privilege};
use crate::test::E2E;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// Show this daemon instead of building one
    #[arg(long, value_name = "FILE")]
    daemon: Option<PathBuf>,
    /// This is root, and all is built
    #[arg(long, hide = true, requires = "daemon")]
    built: bool,
}

/// Returns when everything was shown, and nothing of it is left.
pub(crate) fn demo(options: &Options) -> Result<()> {
    if options.built
        && let Some(daemon) = &options.daemon
    {
        return show(daemon);
    }
    let privilege = Privilege::for_root("the demo needs", "demo")?;
    ensure_needs(privilege)?;
    let daemon = match &options.daemon {
        Some(daemon) => daemon.canonicalize().with_context(|| format!("cannot find {}", daemon.display()))?,
        None => build::daemon()?,
    };
    workspace::check(workspace::cargo("build").args(["--package", E2E, "--bin", "reaper"]))?;
    if privilege == Privilege::Root {
        return show(&daemon);
    }
    eprintln!("xtask: the demo makes namespaces and watches the kernel; starting it through sudo");
    again_as_root(privilege, &daemon)
}

/// Programs that the demo starts besides the shell, and their packages: both are culprits that the daemon is to name.
const NEEDS: [(&str, &str); 2] = [("ip", "iproute2"), ("umount", "mount")];

fn ensure_needs(privilege: Privilege) -> Result<()> {
    let directories = setup::search_path();
    let (programs, wanted): (Vec<_>, Vec<_>) = NEEDS
        .into_iter()
        .filter(|(program, _package)| setup::find_program(&directories, program).is_none())
        .unzip();
    if programs.is_empty() {
        return Ok(());
    }
    let why = format!("the demo needs {}", programs.join(" and "));
    if Apt::of_this_machine().is_none() {
        bail!("{why}: install iproute2 and util-linux");
    }
    setup::carry_out(&why, &[packages::update(), packages::install(&wanted)], privilege)
}

/// Becomes the same command as root, with the daemon that this user built.
fn again_as_root(privilege: Privilege, daemon: &Path) -> Result<()> {
    let this = env::current_exe().context("cannot find the executable of this command")?;
    let (this, daemon) = (this.display().to_string(), daemon.display().to_string());
    let argv = [&this, "demo", "--built", "--daemon", &daemon].map(str::to_owned);
    // sudo drops the environment; this steers what is shown.
    let environment =
        env::var("NO_COLOR").map(|value| vec![("NO_COLOR".to_owned(), value)]).unwrap_or_default();
    let Some(mut command) = privilege.as_root(&argv, &environment) else {
        bail!("the demo needs root");
    };
    Err(command.exec()).with_context(|| format!("cannot start {}", workspace::written(&command)))
}

fn show(program: &Path) -> Result<()> {
    let narrator = Narrator::new();
    narrator.title(
        "kevtmon says who did it. Two faults are provoked on this machine, for real, in namespaces that end with\n\
         this demo. Only the programs are stand-ins: shell scripts named kubelet, calico, etcd, glusterfs and nginx.",
    )?;

    narrator.step("Start the daemon: kevtmon run --output pretty --runtime none")?;
    let mut daemon = Daemon::start(program);
    daemon.expect("daemon.ready", &[])?;
    // Dropped before the directory.
    let scratch = Scratch::without_mounts();
    let fixtures = Fixtures::create(scratch.path())?;
    let pod = gateway_is_lost(&narrator, &mut daemon, &fixtures)?;
    volume_is_busy(&narrator, &mut daemon, &fixtures)?;

    narrator.step("The same for Prometheus:")?;
    let metrics = daemon.metrics();
    for series in METRICS {
        let counted = |line: &&str| {
            line.strip_prefix(series).is_some_and(|value| value.starts_with(' ') && value != " 0")
        };
        let shown = metrics.lines().find(counted);
        print(shown.with_context(|| format!("the metrics show nothing of {series}"))?)?;
    }

    narrator.step("Stop the daemon:")?;
    daemon.stop()?;
    let emitted = daemon.count("neighbor.deleted", &in_netns(&pod));
    if emitted != 2 {
        bail!("two deletions were due, and the daemon emitted {emitted}");
    }
    drop((pod, fixtures, daemon));
    print("")?;
    narrator.title(
        "That was all: no event for the learned entries, and nothing of the demo is left on this machine.\n\
         Next: `cargo xtask run` watches this node until Ctrl-C, and names containers and pods where Docker runs.",
    )
}

/// Series that the scenario must have changed.
const METRICS: [&str; 5] = [
    r#"kevtmon_neighbor_deletions_total{cause="admin",gateway="true"}"#,
    r#"kevtmon_neighbor_deletions_total{cause="link-down",gateway="true"}"#,
    r#"kevtmon_kernel_neighbor_deletions_total{origin="admin",state="learned"}"#,
    r#"kevtmon_mount_busy_total{syscall="umount2"}"#,
    r#"kevtmon_events_total{kind="mount.released"}"#,
];

/// A pod loses its gateway twice through a process, and then learned entries are flushed, which is normal.
fn gateway_is_lost(narrator: &Narrator, daemon: &mut Daemon, fixtures: &Fixtures) -> Result<Pod> {
    narrator.step(&format!(
        "A pod's network as Calico makes it: everything goes via {GATEWAY}, whose MAC is a static ARP entry.\n  \
         kubelet has calico clean up after an older pod of the same name, and calico hits this one:"
    ))?;
    let pod = fixtures.pod()?;
    let netns = in_netns(&pod);
    let _ = fixtures.kubelet(&["calico", &pod.netns]).succeeded("calico");
    daemon.expect("neighbor.deleted", &["← calico(", "← kubelet(", "cause admin", &netns])?;

    narrator.step(
        "The entry is put back. Now somebody sets the link down, and the kernel drops the entry with it:",
    )?;
    pod.set_gateway()?;
    pod.take_link_down(fixtures);
    daemon.expect("neighbor.deleted", &["link set eth0 down", "cause link-down", &netns])?;

    narrator
        .step("Six learned entries come and are flushed, as happens all day: counted, without an event.")?;
    pod.flush_learned()?;
    Ok(pod)
}

/// How the daemon's lines name the pod's network.
fn in_netns(pod: &Pod) -> String {
    format!("in netns {}", pod.inode)
}

/// An unmount is refused until its holders are gone.
fn volume_is_busy(narrator: &Narrator, daemon: &mut Daemon, fixtures: &Fixtures) -> Result<()> {
    let _kubelet = fixtures.start_kubelet()?;
    let volume = fixtures.volume()?;
    let path = volume.display().to_string();
    let log = volume.join("access.log").display().to_string();
    let holders =
        (fixtures.start("glusterfs", &[], &volume)?, fixtures.start("nginx", &[&log], Path::new("/"))?);
    // Unlike a volume of a real pod it has just been made, and would only likely be the same one.
    settle(volume.parent().context("a volume is below a directory")?);
    narrator.step(
        "A pod hangs in Terminating, since its volume does not unmount. All that kubelet gets to log is",
    )?;
    let refused = fixtures.kubelet(&["umount", &path]);
    if refused.status.success() {
        bail!("umount of {path} should have been refused");
    }
    print(refused.stderr.trim())?;
    narrator.title("  and kevtmon says who holds it:")?;
    daemon.expect(
        "mount.busy",
        &[
            "volume cam-pv-50g of pod 5c948341", "← kubelet(", "glusterfs (pid ", "nginx (pid ",
            "…/access.log",
        ],
    )?;

    narrator.step("The two end, and kubelet tries again:")?;
    drop(holders);
    let _ = fixtures.kubelet(&["umount", &path]).succeeded("umount");
    daemon.expect("mount.released", &["← kubelet(", &path, "umount2"])
}

/// Prints what is about to happen, between the daemon's lines.
struct Narrator {
    bold: bool,
}

impl Narrator {
    fn new() -> Self {
        let colour = env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
        Self { bold: colour && io::stdout().is_terminal() }
    }

    fn step(&self, text: &str) -> Result<()> {
        print("")?;
        self.title(&format!("▶ {text}"))
    }

    fn title(&self, text: &str) -> Result<()> {
        if self.bold { print(&format!("\x1b[1m{text}\x1b[0m")) } else { print(text) }
    }
}

/// A line for the terminal; a closed output ends the demo.
fn print(line: &str) -> Result<()> {
    writeln!(io::stdout(), "{line}").context("cannot write to standard output")
}
