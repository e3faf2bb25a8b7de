//! The init process of a container, and what confirms its pod, read by [readers](crate::procfs::readers): a
//! process may hang whoever reads it, and so may a disk. What is on disk is a job of its own, so that processes are read
//! while a disk hangs.

use std::time::Duration;

use kevtmon_observation::cgroup;
use kevtmon_observation::{BootNs, ContainerFacts, NsInum, PodProof};
use serde::{Deserialize, Serialize};

use super::pod_proof::Proofs;
use crate::procfs::Proc;
use crate::procfs::readers::{Job, Readers};

/// Longest wait for a reader. One that hangs is noticed after half a second.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its start, to 10 ms; none where there is no such process.
    pub(super) start_ns: Option<BootNs>,
    pub(super) netns: Option<NsInum>,
    pub(super) mntns: Option<NsInum>,
    /// Whether it could not be read, so that nothing is known.
    pub(super) unread: bool,
    /// Of which container it is, by its control group.
    pub(super) group: Group,
}

impl Identity {
    const UNREAD: Self =
        Self { start_ns: None, netns: None, mntns: None, unread: true, group: Group::Unnamed };
}

/// What the control group of a process says of the container that is said to have it. Root made the group: a runtime that
/// says otherwise names ids of another process namespace, or lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Group {
    /// It names no container, or was not looked at.
    #[default]
    Unnamed,
    /// It names the container.
    Own,
    /// It names the sandbox of its pod: a virtual machine has all containers of it.
    OfSandbox,
    /// It names only others.
    Other,
}

/// The container that is said to have a process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Said {
    id: String,
    sandbox: Option<String>,
}

impl Said {
    /// By a runtime, of this container.
    pub(super) fn of(facts: &ContainerFacts) -> Self {
        let sandbox = facts.pod.as_ref().and_then(|pod| pod.sandbox_id.clone());
        Self { id: facts.id.clone(), sandbox }
    }

    fn group(&self, path: &str) -> Group {
        // A container may be inside of another one, whose id comes first.
        if cgroup::container_id(path).is_none() {
            Group::Unnamed
        } else if path.contains(&self.id) {
            Group::Own
        } else if self.sandbox.as_ref().is_some_and(|sandbox| path.contains(sandbox)) {
            Group::OfSandbox
        } else {
            Group::Other
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Identify {
    processes: Vec<u32>,
    said: Option<Said>,
}

impl Job for Identify {
    const NAME: &'static str = "identify";
    type Reply = Vec<Identity>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let identity = |tgid: &u32| Identity {
            start_ns: proc.stat(*tgid).map(|stat| stat.start_ns),
            netns: proc.ns(*tgid, "net"),
            mntns: proc.ns(*tgid, "mnt"),
            unread: proc.is_aside(*tgid),
            group: self
                .said
                .as_ref()
                .and_then(|said| Some(said.group(&proc.cgroup(*tgid)?)))
                .unwrap_or_default(),
        };
        self.processes.iter().map(identity).collect()
    }
}

/// Looks for what confirms the pods of containers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prove {
    claimants: Vec<ContainerFacts>,
}

impl Job for Prove {
    const NAME: &'static str = "prove";
    type Reply = Vec<PodProof>;
    const WAITS_FOR_DISK: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let proofs = Proofs::new(proc.clone());
        self.claimants.iter().map(|facts| proofs.of(facts)).collect()
    }
}

/// Reads these processes, in this order, and notes what confirms the pods of these containers. Where nobody can look now,
/// they stay claims until the next time. `said`: the container that is said to have them.
pub(super) async fn identify(
    readers: &Readers,
    tgids: Vec<u32>,
    said: Option<Said>,
    claimants: Vec<&mut ContainerFacts>,
) -> Vec<Identity> {
    prove(readers, claimants).await;
    let count = tgids.len();
    if count == 0 {
        return Vec::new();
    }
    match readers.ask(Identify { processes: tgids, said }, PATIENCE).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "cannot read the processes of containers");
            vec![Identity::UNREAD; count]
        }
    }
}

async fn prove(readers: &Readers, claimants: Vec<&mut ContainerFacts>) {
    if claimants.is_empty() {
        return;
    }
    let job = Prove { claimants: claimants.iter().map(|facts| (**facts).clone()).collect() };
    match readers.ask(job, PATIENCE).await {
        Ok(proofs) => {
            for (facts, proof) in claimants.into_iter().zip(proofs) {
                if let Some(pod) = &mut facts.pod {
                    pod.proof = proof;
                }
            }
        }
        Err(error) => tracing::warn!(%error, "cannot look for what confirms the pods of containers"),
    }
}
