//! What a daemon would find here, by trying: programs are loaded and attached, sockets opened, and all is let go of again.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kevtmon_history::query::doctor::{Condition, Part};
use kevtmon_history::store::{FILE, Limits};
use kevtmon_observation::{SourceKind, SourceStatus};
use kevtmon_probe::BpfConfig;
use kevtmon_sources::kubelet::{KubeletFinder, PODS_API, ROOTS};
use kevtmon_sources::kubelet_pods;
use kevtmon_sources::netlink::{NetlinkConfig, NetlinkSource};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::readers::Readers;
use kevtmon_sources::runtime::{Options, RuntimeSocket, default_sockets};
use kevtmon_types::error_chain::chain;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::judge::{self, NETLINK, Node};
use crate::cli::block_on;
use crate::config::{Config, Runtimes, SOCKETS, STATE_DIR};

/// Longest look at all processes.
const LOOK: Duration = Duration::from_secs(5);
/// Longest wait for the answer of a runtime.
const ANSWER: Duration = Duration::from_secs(2);
/// A disk with less free space, in MiB, may fill up.
const FREE_MIB: u64 = 64;

/// What was found by trying.
pub(super) struct Tried {
    pub(super) parts: Vec<Part>,
    /// Whether a hook that is to have programs has none.
    pub(super) lacks_programs: bool,
}

pub(super) fn trial(config: &Config, node: &Node) -> Tried {
    let (mut parts, lacks_programs) = hooks(config, node);
    match block_on(sources(config, node)) {
        Ok(found) => parts.extend(found),
        Err(error) => parts.push(Part::new(NETLINK, Condition::Failed).required().because(
            format!("cannot start: {error}"),
            "",
            "",
        )),
    }
    parts.push(store(config, node));
    Tried { parts, lacks_programs }
}

fn hooks(config: &Config, node: &Node) -> (Vec<Part>, bool) {
    let wanted = BpfConfig::from_values(config.values(), false);
    let is_mounted = node.kernel.tracefs.is_ok();
    let loaded = thread::scope(|scope| {
        let load = || {
            if !is_mounted {
                // Loading mounts tracefs, which is to be gone with this thread.
                let private = unshare(CloneFlags::CLONE_NEWNS).and_then(|()| {
                    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
                });
                if let Err(errno) = private {
                    tracing::debug!(%errno, "tracefs may stay mounted");
                }
            }
            let loaded = kevtmon_probe::load(&wanted);
            let lacks_programs =
                loaded.failure.is_some() || loaded.statuses.iter().any(|it| it.lacks_programs());
            let statuses = loaded.statuses.iter().map(|it| it.source_status());
            let statuses = statuses.chain([kevtmon_probe::iterators::status(&loaded.iterators)]);
            (statuses.collect::<Vec<_>>(), lacks_programs)
        };
        scope.spawn(load).join()
    });
    match loaded {
        Ok((statuses, lacks)) => (statuses.iter().map(|status| judge::source(status, node)).collect(), lacks),
        Err(_) => (vec![Part::new("hooks", Condition::Unknown).because("loading failed", "", "")], true),
    }
}

async fn sources(config: &Config, node: &Node) -> Vec<Part> {
    let readers = Readers::from(Proc::default());
    let mut parts = vec![netlink(&readers, node)];
    // It reads every process.
    let looked = KubeletFinder::new(&config.get(&ROOTS)).look_once(&readers, LOOK).await;
    let mut status = readers.status();
    if looked.is_none() && status.reason.is_none() {
        status.reason = Some("not all processes could be read in time".to_owned());
    }
    parts.push(match judge::source(&status, node) {
        part if part.state == Condition::Ok => {
            Part { found: Some("no process hangs its readers".to_owned()), ..part }
        }
        part => part,
    });
    let node_root = Proc::default().without_node_root(std::process::id());
    parts.extend(node_root.map(|status| judge::source(&status, node)));
    let sockets = match config.get(&SOCKETS) {
        Runtimes::Auto => default_sockets().0,
        Runtimes::Sockets(sockets) => sockets,
    };
    for socket in sockets {
        parts.push(runtime(&socket, node).await);
    }
    parts.extend(kubelet(&config.get(&PODS_API), &readers, node).await);
    parts
}

fn netlink(readers: &Readers, node: &Node) -> Part {
    let status = match NetlinkSource::open(NetlinkConfig::default(), readers.clone()) {
        Ok(source) => SourceStatus {
            reason: source.host_only().map(|why| format!("cannot subscribe to other namespaces: {why}")),
            ..SourceStatus::up(SourceKind::Netlink, NETLINK)
        },
        Err(error) => SourceStatus::down(SourceKind::Netlink, NETLINK, chain(&error)),
    };
    judge::source(&status, node)
}

async fn runtime(socket: &RuntimeSocket, node: &Node) -> Part {
    let options = Options { timeout: ANSWER, ..Options::default() };
    match socket.probe(&Proc::default(), &options).await {
        Ok(name) => Part::ok(socket.source(), format!("{name} answers")),
        Err(error) => {
            let down = SourceStatus::down(SourceKind::Runtime, socket.source(), error.reason());
            judge::source(&down, node)
        }
    }
}

/// A kubelet with a Pods API; most have none.
async fn kubelet(socket: &str, readers: &Readers, node: &Node) -> Option<Part> {
    let socket = Path::new(socket);
    let name = kubelet_pods::source(socket);
    match kubelet_pods::probe(socket, readers, ANSWER).await? {
        Ok(pods) => Some(Part::ok(name, format!("tells {pods} pods"))),
        Err(error) => {
            let down = SourceStatus::down(SourceKind::Kubelet, name, error.reason());
            Some(judge::source(&down, node))
        }
    }
}

fn store(config: &Config, node: &Node) -> Part {
    const NAME: &str = "store";
    if Limits::from_values(config.values()).is_none() {
        return Part::new(NAME, Condition::Absent).because(
            "switched off",
            "events and incidents are gone when the daemon ends",
            "enabled = true in [store] of the configuration",
        );
    }
    let directory = config.get(&STATE_DIR);
    // A daemon makes it; until then, what it is made in counts.
    let there = directory.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let failed = |errno: Errno| {
        let down = format!("{}: {}", there.display(), errno.desc());
        judge::source(&SourceStatus::down(SourceKind::Sink, NAME, down), node)
    };
    let free = match statvfs(there) {
        Ok(found) if found.flags().contains(FsFlags::ST_RDONLY) => return failed(Errno::EROFS),
        Ok(found) => found.blocks_available().saturating_mul(found.fragment_size()) >> 20,
        Err(errno) => return failed(errno),
    };
    let size = fs::metadata(directory.join(FILE)).map(|file| file.len() >> 20);
    let found = match size {
        Ok(mib) => format!("{mib} MiB in {}, {free} MiB free", directory.display()),
        Err(_) => format!("none yet in {}, {free} MiB free", directory.display()),
    };
    if free < FREE_MIB {
        return Part { found: Some(found), ..Part::new(NAME, Condition::Degraded) }.because(
            "little space is left",
            "events are discarded once the disk is full",
            "make room, or another directory: --state-dir",
        );
    }
    Part::ok(NAME, found)
}
