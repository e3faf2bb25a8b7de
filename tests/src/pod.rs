//! The network of a pod: `eth0` with a /32 address and a static neighbor entry for the gateway 169.254.1.1.

use std::net::{IpAddr, Ipv4Addr};

use crate::netns::{Netns, NetnsPath};
use crate::network::{NeighbourState, lladdr, on_host};
use crate::process::Finished;
use crate::reaper::Cleanup;
use crate::unique;

/// The gateway that every pod of this shape shares.
pub const GATEWAY: &str = "169.254.1.1";
/// The link-layer address of the gateway.
pub const GATEWAY_LLADDR: &str = "ee:ee:ee:ee:ee:ee";

/// A veth pair: one end on the host, `eth0` in a namespace, set up as a pod's network.
#[derive(Debug)]
pub struct Pod {
    netns: NetnsPath,
    host_end: String,
    address: String,
    _cleanup: Cleanup,
    /// Dropped last: the pair goes before its namespace.
    own_netns: Option<Netns>,
}

impl Pod {
    /// A pod network in a namespace of its own.
    #[must_use]
    pub fn new() -> Self {
        let netns = Netns::new();
        let mut pod = Self::at(netns.path().clone());
        pod.own_netns = Some(netns);
        pod
    }

    /// A pod network in a namespace that the caller keeps.
    #[must_use]
    pub fn at(netns: NetnsPath) -> Self {
        let host_end = unique::name("kvh");
        let address = unique::address(60);
        let cleanup = Cleanup::link(&host_end);
        on_host(|network| {
            network.add_veth(&host_end, lladdr(GATEWAY_LLADDR), "eth0", netns.path())?;
            network.set_up(&host_end, true)
        });
        let (own, gateway) = (ipv4(&address), ipv4(GATEWAY));
        netns.network(|network| {
            network.add_address("eth0", own, 32)?;
            network.set_up("eth0", true)?;
            network.add_gateway("eth0", gateway)
        });
        let pod = Self { netns, host_end, address, _cleanup: cleanup, own_netns: None };
        pod.set_gateway();
        pod
    }

    /// Makes the gateway's entry permanent, again if need be.
    pub fn set_gateway(&self) {
        self.set_neighbor(GATEWAY, GATEWAY_LLADDR, NeighbourState::Permanent);
    }

    /// Whether the gateway's entry is there and permanent.
    #[must_use]
    pub fn has_gateway(&self) -> bool {
        let gateway: IpAddr = ipv4(GATEWAY).into();
        let entries = self.netns.network(|network| network.neighbors("eth0"));
        entries.iter().any(|entry| entry.address == gateway && entry.permanent)
    }

    /// Sets its interface up or down.
    pub fn set_up(&self, up: bool) {
        self.netns.network(|network| network.set_up("eth0", up));
    }

    /// Adds a neighbor entry, or replaces the one of this address.
    pub fn set_neighbor(&self, address: &str, lladdr: &str, state: NeighbourState) {
        self.netns.set_neighbor("eth0", address, lladdr, state);
    }

    /// Deletes the gateway's entry, by a process that ends at once.
    pub fn delete_gateway(&self) -> Finished {
        self.ip(&format!("neigh del {GATEWAY} dev eth0"))
    }

    /// Runs `ip` in the namespace: the culprit that the daemon is to name.
    pub fn ip(&self, arguments: &str) -> Finished {
        self.netns.run(&format!("ip {arguments}"))
    }

    /// Its network namespace.
    #[must_use]
    pub fn netns(&self) -> &NetnsPath {
        &self.netns
    }

    /// Inode number of its namespace.
    #[must_use]
    pub fn inum(&self) -> u64 {
        self.netns.inum()
    }

    /// Name of the host's end.
    #[must_use]
    pub fn host_end(&self) -> &str {
        &self.host_end
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Name of its namespace, when it has one of its own.
    #[must_use]
    pub fn netns_name(&self) -> &str {
        self.own_netns.as_ref().map_or("", Netns::name)
    }

    /// Deletes the namespace first, the way a runtime does; the kernel takes the pair with it.
    pub fn delete_netns(&mut self) {
        self.own_netns.take().expect("a namespace of its own").delete();
    }
}

impl Default for Pod {
    fn default() -> Self {
        Self::new()
    }
}

fn ipv4(text: &str) -> Ipv4Addr {
    text.parse().expect("an IPv4 address")
}
