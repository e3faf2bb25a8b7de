//! Where the demo's faults happen: a pod's network, a kubelet's volume, and stand-ins for the programs.
//!
//! All of it hangs on a mount namespace of this thread: what is mounted there, the names of network namespaces
//! included, is visible to no other process and ends with it. The programs read from pipes of this process and end with them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use kevtmon_tests::netns;
use kevtmon_tests::network::{self, NeighbourState, Network};
use kevtmon_tests::process::{Finished, Running, finish};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::setup;
use crate::workspace;

/// The gateway of every pod of Calico.
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// Where network namespaces have their names.
const NAMES: &str = "/run/netns";

const LINK: &str = "eth0";

const LEARNED: [Ipv4Addr; 3] = [GATEWAY, Ipv4Addr::new(192, 168, 252, 67), Ipv4Addr::new(192, 168, 252, 68)];

/// Starts its arguments as a child and ends like it.
const RUN: &str = "\"$@\"\nexit";

/// Waits for the end of the demo.
const STAY: &str = "echo ready\nread -r line\nexit";

/// Deletes the gateway's entry in the network namespace that it is given.
const CALICO: &str = "#!/bin/sh\nip -n \"$1\" neigh del 169.254.1.1 dev eth0\nexit\n";

/// Opens the file that it is given, if any, and waits for the end of the demo.
const HOLDER: &str = "#!/bin/sh\n[ $# -eq 0 ] || exec 3>>\"$1\"\necho ready\nread -r line\n";

const SCRIPTS: [(&str, &str); 4] =
    [("calico", CALICO), ("etcd", HOLDER), ("glusterfs", HOLDER), ("nginx", HOLDER)];

/// Mounts and programs of the demo; unmounted when dropped.
pub(super) struct Fixtures {
    /// The kubelet's directory.
    root: PathBuf,
    /// PATH of the programs.
    path: String,
}

impl Fixtures {
    /// Makes them below `directory`, seen by this thread and what it starts.
    pub(super) fn create(directory: &Path) -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
            .context("cannot make the mount namespace private")?;
        let root = directory.join("kubelet");
        let bin = root.join("bin");
        let path = std::env::join_paths([bin.clone()].into_iter().chain(setup::search_path()))?;
        let path = path.into_string().ok().context("PATH is not UTF-8")?;
        let fixtures = Self { root, path };
        // A file system of its own: that of temporary directories often refuses to execute.
        mount_tmpfs("kevtmon-demo", &fixtures.root)?;
        mount_tmpfs("kevtmon-demo", Path::new(NAMES))?;
        fs::create_dir(&bin)?;
        // A script would run as the shell, and kevtmon believes no name that a process gives itself.
        fs::copy("/bin/sh", bin.join("kubelet")).context("cannot copy the shell")?;
        for (name, script) in SCRIPTS {
            let file = bin.join(name);
            fs::write(&file, script)
                .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o755)))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(fixtures)
    }

    /// A pod's network as Calico makes it, with a process in it.
    pub(super) fn pod(&self) -> Result<Pod> {
        const HOST_END: &str = "cali9118ebbb10b";
        let netns = format!("kevtmon-demo-{}", std::process::id());
        let path = Path::new(NAMES).join(&netns);
        let node = Path::new(NAMES).join(format!("{netns}-node"));
        for path in [&path, &node] {
            netns::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        // The other end is not in the host's namespace, where a network manager might take an interest in it.
        Network::within(&node, |network| {
            network.add_veth(HOST_END, None, LINK, &path)?;
            network.set_up(HOST_END, true)
        })?;
        let address = Ipv4Addr::new(192, 168, 252, 66);
        Network::within(&path, |network| network.add_address(LINK, address, 32))?;
        let inode = fs::metadata(&path)?.ino();
        let process = network::enter(&path, || self.start("etcd", &[], Path::new("/")))??;
        let pod = Pod { netns, path, inode, _process: process };
        pod.bring_link_up()?;
        pod.set_gateway()?;
        Ok(pod)
    }

    /// Mounts a pod's volume where a kubelet does, and returns the place.
    pub(super) fn volume(&self) -> Result<PathBuf> {
        const BELOW: &str =
            "pods/5c948341-c030-4996-b888-f032577d97b0/volumes/kubernetes.io~glusterfs/cam-pv-50g";
        let path = self.root.join(BELOW);
        mount_tmpfs("cam-pv-50g", &path)?;
        Ok(path)
    }

    /// Starts the kubelet, which tells where its directory is.
    pub(super) fn start_kubelet(&self) -> Result<Running> {
        let root = format!("--root-dir={}", self.root.display());
        self.start("kubelet", &["-c", STAY, "kubelet", &root], Path::new("/"))
    }

    /// Has a child of a kubelet run `argv` to its end.
    pub(super) fn kubelet(&self, argv: &[&str]) -> Finished {
        self.run("kubelet", &[&["-c", RUN, "kubelet"], argv].concat())
    }

    /// Starts one of the programs in `directory`; it stays until dropped.
    pub(super) fn start(&self, program: &str, arguments: &[&str], directory: &Path) -> Result<Running> {
        let mut command = self.command(program, arguments);
        let mut process =
            Running::spawn(command.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut line = String::new();
        if let Some(output) = process.child().stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        ensure!(line == "ready\n", "{} did not get ready", workspace::written(&command));
        Ok(process)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        finish(self.command(program, arguments).stdin(Stdio::null()), program.as_ref())
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("PATH", &self.path).env("LC_ALL", "C");
        command
    }
}

impl Drop for Fixtures {
    fn drop(&mut self) {
        // In a mount namespace of its own; what cannot be unmounted now ends with that.
        for place in [self.root.as_path(), Path::new(NAMES)] {
            let _ = umount2(place, MntFlags::MNT_DETACH);
        }
    }
}

pub(super) struct Pod {
    /// Its name for `ip`.
    pub(super) netns: String,
    path: PathBuf,
    /// Its number, which is how the daemon calls it.
    pub(super) inode: u64,
    _process: Running,
}

impl Pod {
    /// Sets the static entry without which the gateway is not reached.
    pub(super) fn set_gateway(&self) -> Result<()> {
        let set = |network: &Network| {
            network.set_neighbor(LINK, GATEWAY.into(), [0xee; 6], NeighbourState::Permanent)
        };
        Ok(Network::within(&self.path, set)?)
    }

    /// Takes the link down, by a process that is to be named.
    pub(super) fn take_link_down(&self, fixtures: &Fixtures) {
        let _ = fixtures.run("ip", &["-n", &self.netns, "link", "set", LINK, "down"]).succeeded("ip");
    }

    /// Lets learned entries come and go, that of the gateway among them.
    pub(super) fn flush_learned(&self) -> Result<()> {
        self.bring_link_up()?;
        let flush = |network: &Network| {
            for state in [NeighbourState::Reachable, NeighbourState::Stale] {
                for address in LEARNED {
                    let lladdr = [0x32, 0x76, 0xe6, 0x6f, 0xff, 0x22];
                    network.set_neighbor(LINK, address.into(), lladdr, state)?;
                }
                network.delete_neighbors(LINK, LEARNED)?;
            }
            Ok(())
        };
        Ok(Network::within(&self.path, flush)?)
    }

    /// The routes go whenever the link goes down.
    fn bring_link_up(&self) -> Result<()> {
        let set_up = |network: &Network| {
            network.set_up(LINK, true)?;
            network.add_gateway(LINK, GATEWAY)
        };
        Ok(Network::within(&self.path, set_up)?)
    }
}

fn mount_tmpfs(source: &str, target: &Path) -> Result<()> {
    let context = || format!("cannot mount a file system at {}", target.display());
    fs::create_dir_all(target).with_context(context)?;
    mount(Some(source), target, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).with_context(context)
}
