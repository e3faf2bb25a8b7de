//! What the unprivileged user runs: this program again, in namespaces of its own.

use std::ffi::CString;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io};

use kevtmon_tests::mount::Scratch;
use kevtmon_tests::network::{NeighbourState, Network, NetworkError};
use kevtmon_tests::process::Running;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::prctl::set_name;

/// An unprivileged user.
pub(crate) const USER: u32 = 64_124;
/// Entries that come and go in one breath.
const ENTRIES: u32 = 1000;
/// Mounts that are busy.
const MOUNTS: usize = 200;

/// The processes, until this is dropped. Each is the first one of a process namespace: nothing survives it.
pub(crate) struct Hostile {
    _processes: Vec<Running>,
    _scratch: Scratch,
}

impl Hostile {
    pub(crate) fn start() -> Self {
        let scratch = Scratch::new();
        // The build directory may be closed to him.
        let program = scratch.path().join("hostile");
        fs::copy(env::current_exe().expect("a program has a path"), &program).expect("it can be copied");
        let processes = ["neighbors", "processes", "umounts"].map(|what| {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={USER}")).arg(format!("--regid={USER}")).arg("--clear-groups");
            command.args(["unshare", "-Urnmp", "--fork", "--kill-child=KILL"]).arg(&program);
            command.args(["hostile", what]).current_dir("/");
            Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()))
        });
        Self { _processes: processes.into(), _scratch: scratch }
    }
}

/// Does one of the three until it is killed.
pub(crate) fn act(what: &str) -> io::Result<()> {
    match what {
        "neighbors" => with_link(|network| {
            loop {
                network.churn_neighbors("eth0", (0..ENTRIES).map(entry))?;
            }
        }),
        "processes" => with_link(|network| {
            loop {
                network.set_neighbor(
                    "eth0",
                    entry(0).into(),
                    [2, 0, 0, 0, 0, 1],
                    NeighbourState::Permanent,
                )?;
                let mut ip = Command::new("ip");
                // It fails if the entry is gone, and goes on.
                drop(ip.args(["neigh", "del", &entry(0).to_string(), "dev", "eth0"]).status());
            }
        }),
        "umounts" => umounts(),
        other => Err(io::Error::other(format!("no such act: {other}"))),
    }
}

fn entry(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a4c_0100 + index)
}

fn with_link(act: impl FnOnce(&Network) -> Result<(), NetworkError>) -> io::Result<()> {
    let network = Network::here().map_err(io::Error::other)?;
    let run = || {
        network.add_bridge("eth0")?;
        network.add_address("eth0", Ipv4Addr::new(10, 76, 0, 1), 16)?;
        network.set_up("eth0", true)?;
        act(&network)
    };
    run().map_err(io::Error::other)
}

/// One mount again and again, and another one of the many in between, each time under another name.
fn umounts() -> io::Result<()> {
    let base = Path::new("/mnt");
    tmpfs(base)?;
    let made = (0..MOUNTS).map(|index| {
        let point = base.join(format!("m{index}"));
        fs::create_dir(&point)?;
        tmpfs(&point)?;
        Ok((File::create(point.join("file"))?, point))
    });
    let mounts: Vec<(File, PathBuf)> = made.collect::<io::Result<_>>()?;
    for turn in 0_usize.. {
        set_name(&CString::new(format!("name-{turn}"))?)?;
        let (_, point) = &mounts[if turn % 2 == 0 { 0 } else { turn / 2 % MOUNTS }];
        // Refused: its file is open.
        let _ = umount2(point, MntFlags::empty());
    }
    Ok(())
}

fn tmpfs(point: &Path) -> io::Result<()> {
    Ok(mount(Some("none"), point, Some("tmpfs"), MsFlags::empty(), None::<&str>)?)
}
