//! rtnetlink: links, addresses, routes and neighbors of the host and of every namespace that has an nsid
//! here. One that has a network and no nsid is given one when it is read, as else its messages do not arrive.
//!
//! In: the kernel's netlink messages, dumps made inside each namespace, the core's requests. Out:
//! snapshots first, then every change, each with the inode of its namespace. It does not join
//! containers, and it names no actor: a netlink message does not carry its cause.
//!
//! The socket listens before the first dump is made. While a namespace is being dumped, changes in it
//! wait for the snapshot and follow it; the snapshot may contain them already, and as all of them follow
//! in order, the last message about each object is the newest. What arrived before a dump began is older
//! than the dump.

mod changes;
mod discover;
mod dump;
mod host_neighbors;
mod host_sysctls;
mod job;
mod message;
mod neighbor;
mod nsid;
mod pod_routes;
mod requested;
mod route;
mod schedule;
mod snapshots;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod veth_peers;

use std::io;
use std::path::PathBuf;

pub(super) use discover::{Discover, Open};
pub use host_neighbors::follow_host_neighbors;
pub use host_sysctls::follow_host_sysctls;
use kevtmon_observation::NsInum;
use kevtmon_types::error_chain::chain;
pub use pod_routes::look_up_and_send as look_up_pod_routes_and_send;
pub use requested::{Malformed, ops};
use tokio::sync::mpsc;
pub use veth_peers::{SocketElsewhere, find as find_veth_peers};

pub(super) use self::socket::attach_filter;
use self::socket::{SetupError, Subscription};
use self::stream::Stream;
use super::Sender;
use super::procfs::readers::Readers;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetlinkConfig {
    /// Report changes of neighbor entries. Only where no probe does: listening to neighbors slows down
    /// the processes that change them.
    pub neighbors_live: bool,
    /// Receive buffer in bytes; what does not fit is lost, and followed by a resync.
    pub receive_buffer: usize,
    /// Directories where namespaces are bound to files; names are taken from the first.
    pub bind_directories: Vec<PathBuf>,
}

impl Default for NetlinkConfig {
    fn default() -> Self {
        Self {
            neighbors_live: false,
            receive_buffer: 4 << 20,
            bind_directories: vec!["/run/netns".into(), "/run/docker/netns".into()],
        }
    }
}

/// Answered once every message that the kernel had sent by then was delivered: messages and records of the kernel programs
/// come by different ways.
pub use super::Barrier;

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("netlink: {0}")]
    Socket(#[from] SetupError),
    /// The own network namespace is unknown, so no fact could be assigned to a namespace.
    #[error("netlink: cannot read the namespace of this process")]
    Namespace(#[source] io::Error),
}

#[derive(Debug)]
pub struct NetlinkSource {
    config: NetlinkConfig,
    readers: Readers,
    host: NsInum,
    subscription: Subscription,
}

impl NetlinkSource {
    /// Starts to listen. The namespace of this process is taken for the host's.
    /// Errors: when the socket cannot be opened or a group cannot be joined. Receiving from no other namespace is not an
    /// error: the status that [`Self::run`] sends reports it.
    pub fn open(config: NetlinkConfig, readers: Readers) -> Result<Self, NetlinkError> {
        let mut groups = vec![
            libc::RTNLGRP_LINK,
            libc::RTNLGRP_IPV4_IFADDR,
            libc::RTNLGRP_IPV6_IFADDR,
            libc::RTNLGRP_IPV4_ROUTE,
            libc::RTNLGRP_IPV6_ROUTE,
            libc::RTNLGRP_IPV4_RULE,
            libc::RTNLGRP_IPV6_RULE,
        ];
        if config.neighbors_live {
            groups.push(libc::RTNLGRP_NEIGH);
        }
        let host = discover::own_namespace(readers.proc()).map_err(NetlinkError::Namespace)?;
        let subscription = Subscription::open(config.receive_buffer, &groups)?;
        Ok(Self { config, readers, host, subscription })
    }

    pub fn host(&self) -> NsInum {
        self.host
    }

    /// Why changes in other namespaces cannot be received, if so.
    pub fn host_only(&self) -> Option<String> {
        self.subscription.host_only.as_ref().map(ToString::to_string)
    }

    /// Delivers snapshots and changes until the receiver is gone. Each namespace that comes by `requests`
    /// is answered with its snapshot, or with its absence; each of `barriers` once all messages that the kernel sent before
    /// were delivered.
    pub async fn run(self, requests: mpsc::Receiver<NsInum>, barriers: mpsc::Receiver<Barrier>, tx: Sender) {
        match self.subscription.watch() {
            Ok(socket) => {
                Stream::new(self.config, self.readers, self.host, socket, tx).run(requests, barriers).await;
            }
            Err(error) => tracing::error!("{}", chain(&error)),
        }
    }
}
