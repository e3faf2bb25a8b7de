//! `holders --leaks`: mounts of containers, volumes and the host that others still have. Looks itself; of a daemon that runs come names, and
//! what it has seen before.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use kevtmon_core::held::Known;
use kevtmon_core::leak::{LeftMounts, left_mounts};
use kevtmon_core::state::NodeState;
use kevtmon_event::{LeakedMount, Unreadable};
use kevtmon_history::query::filter::IncidentFilter;
use kevtmon_holders::leaks::{OnDemand, UnreadProcess, look_once};
use kevtmon_sources::kubelet::{KubeletFinder, ROOTS};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::own::Own;
use kevtmon_sources::procfs::readers::Readers;

use super::{Failure, HoldersArgs, KUBELETS, SCAN};
use crate::cli::{block_on, exit, remark};
use crate::privilege;

/// Longest wait for a daemon, after the look.
const DAEMON: Duration = Duration::from_secs(2);
/// Processes that could not be read, of which each is named.
const UNREADABLE_MAX: usize = 16;

/// What a daemon knows.
#[derive(Default)]
struct KnownThere {
    node: Option<NodeState>,
    leaks: Vec<LeakedMount>,
}

impl HoldersArgs {
    pub(super) fn answer_leaks(&self) -> Result<u8, Failure> {
        let told = self.told();
        let finder =
            KubeletFinder::new(&self.load_config().map_or_else(ROOTS.default, |config| config.get(&ROOTS)));
        let readers = Readers::from(Proc::default());
        let looked = block_on(async {
            let found = look_once(&readers, SCAN).await;
            (found, finder.look_once(&readers, KUBELETS).await)
        });
        let (found, kubelets) = looked.map_err(Failure::Start)?;
        let found = found.map_err(Failure::Look)?;
        let told = told.recv_timeout(DAEMON).unwrap_or_default();
        let known = Known { node: told.node.as_ref(), kubelets: kubelets.as_ref() };
        let unread = unreadable(&found);
        let left = LeftMounts {
            leaks: left_mounts(found.copies, known, &told.leaks),
            complete: unread.is_empty(),
            unreadable: unread,
        };
        self.print(&left, kevtmon_render::leaks::text)?;
        if !left.complete {
            if let Some(missing) = privilege::missing_to_see_holders(&Own::default()) {
                remark(&format!("missing capabilities: {missing}; run as root"));
            }
            return Ok(exit::QUERY);
        }
        if left.leaks.is_empty() {
            remark("no leaked mounts found");
            return Ok(exit::FAILED);
        }
        Ok(exit::OK)
    }

    /// Asks a daemon that runs, by a thread: it is not waited for.
    fn told(&self) -> Receiver<KnownThere> {
        let (send, receive) = sync_channel(1);
        let client = self.client.clone();
        thread::spawn(move || {
            let Ok(source) = client.connect(&mut Vec::new()) else { return };
            let filter = IncidentFilter { kinds: vec!["mount-leak".to_owned()], ..IncidentFilter::default() };
            let node = source.state().ok().flatten();
            let incidents = source.incidents(&filter).unwrap_or_default();
            let leaks = incidents.into_iter().filter_map(|view| view.leaks).flatten().collect();
            // The receiver may wait no longer.
            let _ = send.send(KnownThere { node, leaks });
        });
        receive
    }
}

/// What is missing. A process that could not be read is not read here either, since that may not end.
fn unreadable(found: &OnDemand) -> Vec<Unreadable> {
    let of_process = |process: &UnreadProcess| Unreadable {
        pid: Some(process.pid),
        comm: process.comm.clone(),
        reason: "its mount namespace could not be read".to_owned(),
    };
    let mut unread: Vec<Unreadable> = found.unread.iter().take(UNREADABLE_MAX).map(of_process).collect();
    if !found.is_complete {
        let reason = "not all mounts of all namespaces could be read".to_owned();
        unread.push(Unreadable { pid: None, comm: None, reason });
    }
    unread
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::MountCopies;

    use super::*;

    #[test]
    fn a_process_that_could_not_be_read_is_not_read_for_its_name() {
        let named = UnreadProcess { pid: 7, comm: Some("etcd".into()) };
        let hangs = UnreadProcess { pid: std::process::id(), comm: None };
        let found =
            OnDemand { copies: MountCopies::default(), is_complete: true, unread: vec![named, hangs] };
        let names: Vec<Option<String>> = unreadable(&found).into_iter().map(|it| it.comm).collect();
        assert_eq!(names, [Some("etcd".to_owned()), None]);
    }
}
