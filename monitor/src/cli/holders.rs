//! `holders`: who holds a mount, or uses what lies below a path. Looks itself; a daemon only gives names.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Args;
use kevtmon_core::held::{Held, Known, View};
use kevtmon_core::state::NodeState;
use kevtmon_holders::{Caller, ScanRequest, Whose};
use kevtmon_observation::{HolderReport, KubeletFacts};
use kevtmon_probe::BpfConfig;
use kevtmon_probe::iterators::Iterators;
use kevtmon_sources::kubelet::{KubeletFinder, ROOTS};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::own::Own;
use kevtmon_sources::procfs::readers::{Readers, Unread};
use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::{name, to_json};
use kevtmon_types::regular_file;
use kevtmon_types::settings::Cmdline;
use serde::Serialize;

use super::client::ClientArgs;
use super::{block_on, exit, fail, remark};
use crate::config::{Config, Overrides};
use crate::privilege;

mod leaks;

/// Longest time for a scan.
const SCAN: Duration = Duration::from_secs(8);
/// Longest wait for the mount namespace of process 1.
const NAMESPACE: Duration = Duration::from_secs(1);
/// Longest look for kubelets.
const KUBELETS: Duration = Duration::from_secs(1);
/// Longest look for users of a block device.
const DEVICE: Duration = Duration::from_secs(4);
/// Longest wait for names after the scan.
const NAMES: Duration = Duration::from_millis(500);
/// Processes that take as long to read as programs take to load.
const MANY: usize = 1000;
/// The programs that are loaded for this write to no ring.
const RING: u32 = 64 << 10;
/// What is read of the list of users, in bytes.
const USERS: u64 = 1 << 20;

/// Arguments of `holders`.
#[derive(Debug, Args)]
pub struct HoldersArgs {
    /// The mount point, a block device, or another path; as process 1 sees it
    #[arg(value_name = "PATH", required_unless_present = "leaks")]
    pub path: Option<PathBuf>,
    /// Show the mounts of containers, volumes and the host that others still have after the host has unmounted them
    #[arg(long, conflicts_with_all = ["path", "here"])]
    pub leaks: bool,
    /// Stop after the processes that see the mount, if they hold it. Processes in other mount namespaces are then not read
    #[arg(long, conflicts_with = "leaks")]
    pub near: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// PATH is as this process sees it, in its own mount namespace
    #[arg(long)]
    pub here: bool,
    /// Configuration file of the daemon [default: /etc/kevtmon/kevtmon.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the path is not UTF-8")]
    NotText,
    #[error("cannot read the links of this process; is /proc mounted?")]
    NoProc(#[source] io::Error),
    #[error(
        "{path} is relative, and this process is in another mount namespace than process 1: give an absolute path, or --here"
    )]
    Relative { path: String },
    #[error("cannot read the mounts of other processes")]
    Look(#[source] Unread),
    #[error("cannot start")]
    Start(#[source] io::Error),
    #[error("cannot write JSON")]
    Json(#[source] serde_json::Error),
    #[error("cannot write")]
    Write(#[source] io::Error),
}

struct Scanned {
    report: HolderReport,
    view: View,
    /// The kubelets of the node, if volumes of pods may be concerned.
    kubelets: Option<KubeletFacts>,
}

impl HoldersArgs {
    /// Prints the holders; returns the exit code.
    pub fn run(&self) -> u8 {
        match self.answer() {
            Ok(code) => code,
            // The reader closed the pipe, as head does.
            Err(Failure::Write(error)) if error.kind() == ErrorKind::BrokenPipe => exit::OK,
            Err(error) => fail(&error, exit::QUERY),
        }
    }

    fn answer(&self) -> Result<u8, Failure> {
        let Some(path) = &self.path else { return self.answer_leaks() };
        let node = self.node();
        let config = self.load_config();
        let cmdline = config.as_ref().map_or(Cmdline::Host, |config| config.policy().cmdline);
        let lister = config.as_ref().and_then(lister);
        let roots = config.map_or_else(ROOTS.default, |config| config.get(&ROOTS));
        let finder = KubeletFinder::new(&roots);
        let Scanned { report, view, kubelets } = self.scan(path, &finder, lister)?;
        let known = Known { node: None, kubelets: kubelets.as_ref() };
        let mut held = Held::new(report.clone(), view, known, cmdline);
        if held.lacks_names() {
            let reason = match node.recv_timeout(NAMES) {
                Ok(Ok(node)) => {
                    held = Held::new(report, view, Known { node: Some(&node), ..known }, cmdline);
                    held.lacks_names().then(|| "the daemon does not know all of them".to_owned())
                }
                Ok(Err(reason)) => Some(reason),
                Err(_) => Some("the daemon does not respond".to_owned()),
            };
            if let Some(reason) = reason {
                remark(&format!("containers and pods have no names here: {reason}"));
            }
        }
        let text = |held: &Held| kevtmon_render::holders::text(held, &users(Path::new("/etc/passwd")));
        self.print(&held, text)?;
        Ok(self.conclude(&held))
    }

    /// What is configured; a file that was named and cannot be used is told.
    fn load_config(&self) -> Option<Config> {
        let node_name = Some("holders".into());
        let overrides = Overrides { file: self.config.clone(), node_name, ..Overrides::default() };
        let config = Config::load(&overrides);
        if let (Err(error), Some(_)) = (&config, &self.config) {
            remark(&format!("the configuration is left aside: {}", chain(error)));
        }
        config.ok()
    }

    /// The model of the node, by a thread: neither the daemon nor its files are waited for.
    fn node(&self) -> Receiver<Result<NodeState, String>> {
        let (send, receive) = sync_channel(1);
        let client = self.client.clone();
        thread::spawn(move || {
            let mut remarks = Vec::new();
            let node = match client.connect(&mut remarks) {
                Ok(source) => source.state().map_err(|error| chain(&error)),
                Err(_) => Ok(None),
            };
            let remarks = String::from_utf8_lossy(&remarks);
            let reason = || remarks.trim().trim_start_matches("kevtmon: ").to_owned();
            // The receiver is gone if all have names.
            let _ = send.send(node.and_then(|node| node.ok_or_else(reason)));
        });
        receive
    }

    fn scan(
        &self,
        path: &Path,
        finder: &KubeletFinder,
        lister: Option<JoinHandle<Option<Iterators>>>,
    ) -> Result<Scanned, Failure> {
        let is_relative = path.is_relative();
        let path = path.to_str().ok_or(Failure::NotText)?.to_owned();
        let caller = Caller::this_process().map_err(Failure::NoProc)?;
        let readers = Readers::from(Proc::default());
        let scanned = block_on(async {
            let initial = match self.here {
                true => Ok(Some((caller.mntns, Whose::Caller))),
                false => kevtmon_holders::initial_namespace(&readers, NAMESPACE).await,
            };
            let known = initial.as_ref().ok().copied().flatten();
            let (mntns, whose) = known.unwrap_or((caller.mntns, Whose::Caller));
            let (tgid, view) = match whose {
                Whose::Caller => (caller.tgid, View::Caller),
                // In its own namespace, it is this process that gives the path.
                Whose::Init if mntns == caller.mntns => (caller.tgid, View::Init),
                Whose::Kernel if mntns == caller.mntns => (caller.tgid, View::Kernel),
                Whose::Init => (1, View::Init),
                Whose::Kernel => (2, View::Kernel),
            };
            if tgid != caller.tgid && is_relative {
                return Err(Failure::Relative { path: name(&path).into_owned() });
            }
            let request = ScanRequest {
                mntns,
                tgid,
                path,
                follow: true,
                on_demand: true,
                near_suffices: self.near,
                ..ScanRequest::default()
            };
            let iterators = lister.and_then(|lister| lister.join().ok().flatten());
            let mut report = kevtmon_holders::ask((&readers, iterators.as_ref()), request, SCAN).await;
            kevtmon_holders::add_uses(&readers, tgid, &mut report, DEVICE).await;
            if known.is_none() {
                let why = initial.err().map_or_else(
                    || "the mount namespace of process 1 may not be read".to_owned(),
                    |error| format!("the mount namespace of process 1 is unknown: {}", chain(&error)),
                );
                report.blind_spot(None, &format!("{why}; this is that of this process"));
            }
            let may_be_volume =
                report.path.contains("/pods/") || report.holders.iter().any(|h| h.serves.is_some());
            let kubelets = if may_be_volume { finder.look_once(&readers, KUBELETS).await } else { None };
            Ok(Scanned { report, view, kubelets })
        });
        scanned.map_err(Failure::Start)?
    }

    fn print<T: Serialize>(&self, found: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        let text = match self.json {
            true => format!("{}\n", to_json(found).map_err(Failure::Json)?),
            false => text(found),
        };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Write)
    }

    /// The exit code, with the reason if there is no answer, or not all of it.
    fn conclude(&self, held: &Held) -> u8 {
        if held.exists == Some(false) {
            remark(&format!("{} does not exist", name(&held.path)));
            return exit::QUERY;
        }
        if !held.holders_complete {
            if held.mount.is_none() {
                for missing in kevtmon_render::holders::missing(held) {
                    remark(&format!("{}: {missing}", name(&held.path)));
                }
            }
            if let Some(missing) = privilege::missing_to_see_holders(&Own::default()) {
                remark(&format!("missing capabilities: {missing}; run as root"));
            }
            return if held.is_explained() { exit::OK } else { exit::QUERY };
        }
        if held.is_held() { exit::OK } else { exit::FAILED }
    }
}

/// Has what lists who may hold a mount loaded, where that takes less time than it saves.
fn lister(config: &Config) -> Option<JoinHandle<Option<Iterators>>> {
    let config = BpfConfig { ring_bytes: RING, ..BpfConfig::from_values(config.values(), false) };
    let is_worth_it = || Proc::default().pids().is_ok_and(|pids| pids.len() >= MANY);
    (config.iterators && is_worth_it()).then(|| {
        thread::spawn(move || {
            let loaded = kevtmon_probe::load_iterators(&config);
            loaded.inspect_err(|reason| tracing::debug!(reason, "reads every process")).ok()
        })
    })
}

/// The names of users, by their ids, out of a list as passwd(5) describes it.
fn users(list: &Path) -> BTreeMap<u32, String> {
    let mut text = String::new();
    if let Ok(file) = regular_file::open(list) {
        // Without the list, or the end of it, users are numbers.
        let _ = file.take(USERS).read_to_string(&mut text);
    }
    let user = |line: &str| {
        let mut fields = line.split(':');
        let user = fields.next().filter(|user| !user.is_empty())?;
        Some((fields.nth(1)?.parse().ok()?, user.to_owned()))
    };
    // Of several names the first one counts.
    text.lines().rev().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn users_have_the_first_name_of_their_id() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("passwd");
        fs::write(&list, "root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\nbad\n:x:7:\neve:x:1000:1000::/:\n")
            .unwrap();
        let expected = [(0, "root".to_owned()), (1000, "eve".to_owned())];
        assert_eq!(users(&list).into_iter().collect::<Vec<_>>(), expected);
        assert!(users(&dir.path().join("none")).is_empty());
    }
}
