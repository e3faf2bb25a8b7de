//! The init process of a container, and what confirms its pod, read by a [reader](crate::sources::procfs::readers): a
//! process may hang whoever reads it, and so may a disk.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pod_proof::Proofs;
use crate::observation::{BootNs, ContainerFacts, NsInum, PodProof};
use crate::sources::procfs::Proc;
use crate::sources::procfs::readers::{Answer, Job, Readers};

/// Longest wait for a reader. One that hangs is noticed after half a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// What /proc says of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sources) struct Identity {
    /// Its start, to 10 ms; none where there is no such process.
    pub(super) start_ns: Option<BootNs>,
    pub(super) netns: Option<NsInum>,
    pub(super) mntns: Option<NsInum>,
    /// Whether it could not be read, so that nothing is known.
    pub(super) unread: bool,
}

impl Identity {
    const UNREAD: Self = Self { start_ns: None, netns: None, mntns: None, unread: true };
}

/// Reads processes, and looks for what confirms the pods of containers.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::sources) struct Identify {
    processes: Vec<u32>,
    claimants: Vec<ContainerFacts>,
}

impl Job for Identify {
    const NAME: &'static str = "identify";
    type Reply = (Vec<Identity>, Vec<PodProof>);

    fn run(&self, proc: &Proc) -> Answer<Self::Reply> {
        let identity = |tgid: &u32| Identity {
            start_ns: proc.stat(*tgid).map(|stat| stat.start_ns),
            netns: proc.ns(*tgid, "net"),
            mntns: proc.ns(*tgid, "mnt"),
            unread: proc.is_aside(*tgid),
        };
        let identities = self.processes.iter().map(identity).collect();
        let proofs = Proofs::new(proc.clone());
        let claimants = self.claimants.iter();
        (identities, claimants.map(|facts| proofs.of(facts)).collect()).into()
    }
}

/// Reads these processes, in this order, and notes what confirms the pods of these containers. Where nobody can look now,
/// they stay claims until the next time.
pub(super) async fn identify(
    readers: &Readers,
    tgids: Vec<u32>,
    claimants: Vec<&mut ContainerFacts>,
) -> Vec<Identity> {
    let count = tgids.len();
    if count == 0 && claimants.is_empty() {
        return Vec::new();
    }
    let job =
        Identify { processes: tgids, claimants: claimants.iter().map(|facts| (**facts).clone()).collect() };
    match readers.ask(job, PATIENCE).await {
        Ok(Answer { reply: (identities, proofs), .. }) => {
            for (facts, proof) in claimants.into_iter().zip(proofs) {
                if let Some(pod) = &mut facts.pod {
                    pod.proof = proof;
                }
            }
            identities
        }
        Err(error) => {
            tracing::warn!(%error, "cannot read the processes of containers");
            vec![Identity::UNREAD; count]
        }
    }
}
