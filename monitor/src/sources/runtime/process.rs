//! The init process of a container, read by a [reader](crate::sources::procfs::readers): it may hang whoever reads it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::observation::{BootNs, NsInum};
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

/// Reads processes.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::sources) struct Identify(Vec<u32>);

impl Job for Identify {
    const NAME: &'static str = "identify";
    type Reply = Vec<Identity>;

    fn run(&self, proc: &Proc) -> Answer<Vec<Identity>> {
        let identity = |tgid: &u32| Identity {
            start_ns: proc.stat(*tgid).map(|stat| stat.start_ns),
            netns: proc.ns(*tgid, "net"),
            mntns: proc.ns(*tgid, "mnt"),
            unread: proc.is_aside(*tgid),
        };
        self.0.iter().map(identity).collect::<Vec<_>>().into()
    }
}

/// Reads these processes, in this order.
pub(super) async fn identify(readers: &Readers, tgids: Vec<u32>) -> Vec<Identity> {
    let count = tgids.len();
    if count == 0 {
        return Vec::new();
    }
    match readers.ask(Identify(tgids), PATIENCE).await {
        Ok(Answer { reply, .. }) => reply,
        Err(error) => {
            tracing::warn!(%error, "cannot read the processes of containers");
            vec![Identity::UNREAD; count]
        }
    }
}
