//! What there is of each pod on the node, by state alone: its directory below the root directory of a kubelet, what is
//! mounted there, and the processes in its control group.
//!
//! Nothing that may be mounted is touched: mounts are read as the text of the kernel's table, and only directories on the
//! kubelet's own file system are listed (`openat2` with `RESOLVE_NO_XDEV`).

use std::time::Duration;

use cgroups::PodCgroups;
use kevtmon_observation::{Fact, KubeletFacts, PodCgroup, PodRemains};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::kubelet::KubeletFinder;
use super::procfs::Proc;
use super::procfs::readers::{Job, Readers};
use super::{Sender, spawn_until_closed, tell};
use crate::beat::at_look;

mod cgroups;
mod directories;
mod logs;
mod processes;

const INTERVAL: Duration = Duration::from_secs(20);
/// How often while something remains of a pod.
const OFTEN: Duration = Duration::from_secs(5);
/// After so many looks the kubelets are looked for: one with another root directory may have started.
const KUBELETS_AFTER: u32 = 15;
/// The same where what is known of them may be old, since something could not be read.
const KUBELETS_AFTER_FAILURES: u32 = 3;
/// After so many in a row what was told last counts no more.
const FAILURES_MAX: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(60);
/// Pods that are told; a node has some hundred, and only root makes their directories.
const PODS_MAX: usize = 512;

/// What is to be listed of which pods.
#[derive(Debug)]
pub struct Wanted(watch::Sender<Lists>);

/// Uids of pods that have processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Lists {
    /// Their processes and mounts are listed.
    processes: Vec<String>,
    /// Their mounts are.
    mounts: Vec<String>,
}

impl Lists {
    fn has_mounts_of(&self, uid: &String) -> bool {
        self.mounts.contains(uid) || self.processes.contains(uid)
    }
}

/// Has the processes and mounts of these pods listed from now on, and of no others; they are looked at at once.
pub fn list_processes(wanted: Option<&Wanted>, pods: Vec<String>) {
    if let Some(Wanted(wanted)) = wanted {
        wanted.send_modify(|lists| lists.processes = pods);
    }
}

/// The same of mounts alone.
pub fn list_mounts(wanted: Option<&Wanted>, pods: Vec<String>) {
    if let Some(Wanted(wanted)) = wanted {
        wanted.send_modify(|lists| lists.mounts = pods);
    }
}

pub fn start(readers: Readers, kubelets: KubeletFinder, tx: Sender) -> Wanted {
    let (wanted, changes) = watch::channel(Lists::default());
    spawn_until_closed(tx.clone(), follow(readers, kubelets, changes, tx));
    Wanted(wanted)
}

async fn follow(readers: Readers, kubelets: KubeletFinder, mut wanted: watch::Receiver<Lists>, tx: Sender) {
    let mut told: Option<Vec<PodRemains>> = None;
    let (mut looks, mut failures) = (0, 0);
    loop {
        looks += 1;
        let look = Look {
            kubelets: kubelets.known(),
            daemon: std::process::id(),
            wanted: wanted.borrow_and_update().clone(),
        };
        let found = readers.reply(look, PATIENCE, "cannot look for what there is of pods").await.flatten();
        failures = if found.is_some() { 0 } else { failures + 1 };
        if failures >= FAILURES_MAX && told.take().is_some() {
            tell(&tx, Fact::PodRemainsUnread).await;
        }
        // What could not be read is no news.
        if looks >= if found.is_none() { KUBELETS_AFTER_FAILURES } else { KUBELETS_AFTER } {
            looks = 0;
            kubelets.look_and_send(&readers, &tx);
        }
        // Who asks gets an answer, whatever was told before.
        let is_asked = !wanted.borrow().mounts.is_empty();
        if let Some(pods) = found.filter(|pods| is_asked || told.as_ref() != Some(pods)) {
            told = Some(pods.clone());
            tell(&tx, Fact::PodRemains { pods }).await;
        }
        let is_hidden = |pod: &PodRemains| pod.covered.iter().any(|volume| volume.held);
        let is_often = |pod: &PodRemains| is_unfinished(pod) || !pod.stacked.is_empty() || is_hidden(pod);
        let is_often = is_asked || told.iter().flatten().any(is_often);
        tokio::select! {
            () = sleep_until(at_look(if is_often { OFTEN } else { INTERVAL })) => {}
            Ok(()) = wanted.changed() => {}
        }
    }
}

/// Whether something is there that should go: what is mounted for a pod that has had no container yet is for what is to come.
fn is_unfinished(pod: &PodRemains) -> bool {
    pod.started && !pod.mounts.is_empty() || !pod.processes.is_empty()
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    kubelets: KubeletFacts,
    daemon: u32,
    wanted: Lists,
}

impl Job for Look {
    const NAME: &'static str = "pod-remains";
    /// None where something could not be read, so that what is missing may be there.
    type Reply = Option<Vec<PodRemains>>;
    const WAITS_FOR_DISK: bool = true;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let mut pods: Vec<PodRemains> = Vec::new();
        let mut groups: Option<PodCgroups> = None;
        // A mount namespace of the daemon's own may have copies of what is gone elsewhere.
        let own = proc.ns(self.daemon, "mnt");
        let mut namespaces: Vec<_> = self.kubelets.namespaces.iter().collect();
        namespaces.sort_by_key(|namespace| (Some(namespace.mntns) == own, !namespace.of_kubelet));
        for namespace in namespaces {
            let Some(mut place) = directories::Place::of(proc, namespace, self.daemon) else {
                // A kubelet of which nothing is known any more may have been replaced by another one.
                if namespace.of_kubelet {
                    return None;
                }
                continue;
            };
            let mut stacked = directories::stacked(&place.table, namespace);
            let mut covered = directories::covered(&place.table, namespace);
            for (directory, uid) in place.pods()? {
                // Of two mount namespaces that show one directory, the kubelet's or the host's counts.
                if pods.len() >= PODS_MAX || pods.iter().any(|known| known.uid == uid) {
                    continue;
                }
                let groups = groups.get_or_insert_with(|| PodCgroups::find(proc));
                let found = groups.of(&uid);
                let is_wanted = self.wanted.processes.contains(&uid);
                let processes = processes::of(proc, &found.processes, is_wanted);
                let mut covered = covered.remove(&uid).unwrap_or_default();
                directories::look_inside(proc, &found.processes, &mut covered);
                let mut pod = PodRemains {
                    directory,
                    mntns: namespace.mntns,
                    cgroup: found.state,
                    containers: found.containers.into_iter().collect(),
                    processes,
                    stacked: stacked.remove(&uid).unwrap_or_default(),
                    covered,
                    uid,
                    ..PodRemains::default()
                };
                if pod.cgroup != PodCgroup::Populated || self.wanted.has_mounts_of(&pod.uid) {
                    pod.listed = true;
                    pod.started = place.has_started(&pod.uid);
                    (pod.mounts, pod.mounts_omitted) = place.mounts(proc, &pod.uid)?;
                }
                if pod.started && pod.mounts.is_empty() && pod.cgroup != PodCgroup::Populated {
                    pod.filled = place.filled(&pod.uid, &pod.directory);
                }
                pods.push(pod);
            }
            // Of one that runs, a runtime may not be there to tell it.
            let is_asked = |pod: &PodRemains| is_unfinished(pod) || pod.cgroup == PodCgroup::Populated;
            let is_unnamed = |pod: &PodRemains| pod.name.is_none() && is_asked(pod);
            if pods.iter().any(is_unnamed) {
                logs::name(&place.top, pods.iter_mut().filter(|pod| is_unnamed(pod)));
            }
        }
        pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        Some(pods)
    }
}

#[cfg(test)]
mod tests;
