//! What keeps the network namespaces of the other ends of veth devices, with the sockets that only the kernel's own list shows.

use std::io;
use std::time::Duration;

use kevtmon_observation::{Fact, NsInum, VethLink, VethPeer};
use kevtmon_probe::iterators::IteratorHandle;
use kevtmon_sources::Sender;
use kevtmon_sources::netlink::{SocketElsewhere, find_veth_peers};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::readers::{Job, Readers};
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FindPeers {
    pub(super) links: Vec<VethLink>,
    /// What lists open sockets, where the kernel does.
    pub(super) iterators: Option<IteratorHandle>,
}

impl Job for FindPeers {
    const NAME: &'static str = "veth-peers";
    type Reply = Vec<VethPeer>;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        find_veth_peers(proc, &self.links, |host| self.sockets_elsewhere(host))
    }
}

impl FindPeers {
    /// None where the kernel does not list them.
    fn sockets_elsewhere(&self, host: NsInum) -> io::Result<Vec<SocketElsewhere>> {
        let Some(iterators) = self.iterators else { return Ok(Vec::new()) };
        let listed = iterators.open()?.sockets_elsewhere(host)?.into_iter();
        let sockets = listed.map(|socket| SocketElsewhere {
            tgid: socket.tgid,
            tid: socket.tid,
            fd: socket.fd,
            netns: socket.netns,
        });
        Ok(sockets.collect())
    }
}

/// Looks, and sends what is found; nothing where nobody can look now: the core asks again.
pub(super) fn find_and_send(readers: &Readers, tx: &Sender, job: FindPeers) {
    let job = (job, PATIENCE, "cannot look for the other ends of veth devices");
    readers.tell(tx, job, |peers| peers.map(Fact::VethPeers));
}
