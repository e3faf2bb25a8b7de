//! Network namespaces that a test makes, or that belong to a container.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::lock;
use crate::network::{self, NeighbourState, Network, NetworkError};
use crate::process::{Finished, attempt_with_input, finish, finish_with_input};
use crate::reaper::Cleanup;
use crate::unique;

/// Where namespaces have names, as for `ip`.
const NAMES: &str = "/run/netns";

/// The file of a network namespace.
#[derive(Debug, Clone)]
pub struct NetnsPath(PathBuf);

impl NetnsPath {
    /// The namespace of a process.
    #[must_use]
    pub fn of_process(pid: u32) -> Self {
        Self(format!("/proc/{pid}/ns/net").into())
    }

    /// The file itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Inode number, by which the daemon names it.
    #[must_use]
    pub fn inum(&self) -> u64 {
        fs::metadata(&self.0).expect("the namespace exists").ino()
    }

    /// Queries or changes something in it, by this process; panics unless that succeeds.
    pub fn network<T: Send>(&self, act: impl FnOnce(&Network) -> Result<T, NetworkError> + Send) -> T {
        Network::within(&self.0, act).unwrap_or_else(|error| panic!("in {}: {error:?}", self.0.display()))
    }

    /// Adds a neighbor entry of a link, or replaces the one of this address.
    pub fn set_neighbor(&self, link: &str, address: &str, lladdr: &str, state: NeighbourState) {
        let address = address.parse().expect("an address");
        let lladdr = network::lladdr(lladdr).expect("a link-layer address");
        self.network(|network| network.set_neighbor(link, address, lladdr, state));
    }

    /// Lets permanent neighbor entries of `eth0` come and go, in this order.
    pub fn churn(&self, addresses: impl IntoIterator<Item = Ipv4Addr> + Send) {
        self.network(|network| network.churn_neighbors("eth0", addresses));
    }

    /// Runs a command in it; panics unless it succeeds. The process is a child of this one.
    pub fn run(&self, line: &str) -> Finished {
        self.attempt(line).succeeded(line)
    }

    /// Runs a command in it, whatever comes of it.
    pub fn attempt(&self, line: &str) -> Finished {
        let mut command = self.command(line);
        let name = command.get_program().to_owned();
        finish(command.stdin(Stdio::null()), &name)
    }

    /// Runs one `ip` process in it that executes several lines, as a culprit.
    pub fn ip_batch(&self, lines: &str) -> Finished {
        finish_with_input(&mut self.command("ip -batch -"), lines)
    }

    /// Runs one `ip` process with these arguments and this input, whatever comes of it.
    pub fn ip(&self, arguments: &[&str], input: &str) -> Finished {
        attempt_with_input(self.command("ip").args(arguments), input)
    }

    /// A command line without quoting rules. `nsenter` would be a program between this one and the command, and nobody
    /// could tell what it was.
    fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a command has a name"));
        let namespace = File::open(&self.0).expect("the namespace exists");
        // SAFETY: between fork and exec only setns is called, which is async-signal-safe.
        unsafe {
            command.args(words).pre_exec(move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?));
        }
        command
    }
}

thread_local! {
    /// Those that this test made, by number, and the time before. Another one may make the next of a number.
    static MADE: RefCell<Vec<(u64, SystemTime)>> = const { RefCell::new(Vec::new()) };
}

/// Since when the number stands for the namespace that has it now, in seconds since the beginning of 1970: the kernel gives the
/// number of one that has ended, maybe of another test, to the next one. 0 when this thread has not made it.
#[must_use]
pub fn made_at(inum: u64) -> f64 {
    let made =
        MADE.with_borrow(|made| made.iter().rev().find(|(number, _)| *number == inum).map(|(_, at)| *at));
    made.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |time| time.as_secs_f64())
}

/// A named network namespace of a test.
#[derive(Debug)]
pub struct Netns {
    name: String,
    path: NetnsPath,
    cleanup: Option<Cleanup>,
    _shared: lock::Shared,
}

impl Netns {
    /// Makes one, with its loopback up.
    #[must_use]
    pub fn new() -> Self {
        let shared = lock::Shared::take();
        let name = unique::name("kvn");
        let path = Path::new(NAMES).join(&name);
        let cleanup = Cleanup::netns(&path);
        let before = SystemTime::now();
        create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = NetnsPath(path);
        MADE.with_borrow_mut(|made| made.push((path.inum(), before)));
        path.network(|network| network.set_up("lo", true));
        Self { name, path, cleanup: Some(cleanup), _shared: shared }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &NetnsPath {
        &self.path
    }

    /// Deletes it now.
    pub fn delete(mut self) {
        delete(self.path.path()).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        if let Some(cleanup) = self.cleanup.take() {
            cleanup.revoke();
        }
    }
}

impl Default for Netns {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes a network namespace with the name `path`, on a thread that leaves its own for it.
///
/// rtnetlink's own way forks this process, which has many threads, and runs its exit handlers in the child.
///
/// # Errors
/// When the name is taken, or this is not root.
pub fn create(path: &Path) -> Result<(), Errno> {
    share_names(path.parent().ok_or(Errno::EINVAL)?)?;
    drop(File::create_new(path).map_err(errno)?);
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
    };
    let made = std::thread::scope(|scope| scope.spawn(make).join());
    made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Deletes the name of a network namespace, and the namespace with it when nothing else is in it.
///
/// # Errors
/// When there is none.
pub fn delete(path: &Path) -> Result<(), Errno> {
    umount2(path, MntFlags::MNT_DETACH)?;
    fs::remove_file(path).map_err(errno)
}

/// Makes the directory of the names a shared mount, as `ip netns add` does: a mount namespace that is copied from this
/// one then loses a name when it is deleted here, and does not keep the namespace alive.
fn share_names(names: &Path) -> Result<(), Errno> {
    fs::create_dir_all(names).map_err(errno)?;
    // The lock that `ip` takes, too: two that come at once would mount the directory onto itself twice.
    let directory = File::open(names).map_err(errno)?;
    directory.lock().map_err(errno)?;
    let none = None::<&str>;
    let share = || mount(none, names, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    match share() {
        // No mount yet.
        Err(Errno::EINVAL) => {
            mount(Some(names), names, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
            share()
        }
        done => done,
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}
