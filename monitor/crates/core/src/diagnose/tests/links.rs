//! What a simulated node answers about its links and routes.

use kevtmon_observation::{PodAddress, PodRoute, VethPeer};

use super::harness::*;

impl TestNode {
    pub(super) fn veth_peer(&self, ifindex: u32) -> VethPeer {
        let mut links = self.tables[&HOST].links.iter();
        let link = links.find(|link| link.ifindex == ifindex);
        let shown = VethPeer {
            ifindex,
            present: link.is_some(),
            netns: link.and_then(|link| link.peer.as_ref()?.netns),
            ..VethPeer::default()
        };
        self.peers.get(&ifindex).cloned().unwrap_or(shown)
    }

    /// Those of the addresses that the tables of a test send elsewhere.
    pub(super) fn pod_routes(&self, addresses: &[PodAddress]) -> Vec<PodRoute> {
        let found = |asked: &PodAddress| {
            let found = *self.elsewhere.get(&asked.address)?;
            Some(PodRoute { address: asked.address, found })
        };
        addresses.iter().filter_map(found).collect()
    }
}
