//! What the programs know of namespaces: the gateways that have a lane of their own, and which namespaces of other user
//! namespaces are a container's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aya::maps::{HashMap, MapData, MapError};
use kevtmon_ebpf::lanes::{GATEWAYS_OF_NAMESPACE_MAX, GatewayKey, TUNNEL_HOPS_MAX, gateway};
use kevtmon_observation::KnownNetns;
use kevtmon_types::namespace::NsInum;
use zerocopy::IntoBytes as _;

/// A key in the form that maps take.
type GatewayBytes = [u8; size_of::<GatewayKey>()];
/// When each lane of a gateway is empty again.
type GatewayLanes = [u64; gateway::LANES];

/// The maps, kept by the daemon as its model of the namespaces changes.
pub struct Lanes {
    gateways: HashMap<MapData, GatewayBytes, GatewayLanes>,
    containers: HashMap<MapData, u32, u32>,
    known: BTreeMap<NsInum, Known>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    foreign_userns: bool,
    gateways: BTreeSet<GatewayBytes>,
}

impl Lanes {
    pub(super) fn new(
        gateways: HashMap<MapData, GatewayBytes, GatewayLanes>,
        containers: HashMap<MapData, u32, u32>,
    ) -> Self {
        Self { gateways, containers, known: BTreeMap::new() }
    }

    /// Every namespace that is known.
    pub fn namespaces(&self) -> impl Iterator<Item = NsInum> {
        self.known.keys().copied()
    }

    /// Replaces what is known of a namespace; `None` if nothing is, any more. What there is no room for is paid from the
    /// budget of its source.
    pub fn set(&mut self, netns: NsInum, known: Option<&KnownNetns>) {
        let new = known.map(|known| Known {
            foreign_userns: known.foreign_userns,
            gateways: keys(netns, known).map(|key| bytes(&key)).collect(),
        });
        let old = self.known.get(&netns);
        if old == new.as_ref() {
            return;
        }
        let none = BTreeSet::new();
        let before = old.map_or(&none, |old| &old.gateways);
        let after = new.as_ref().map_or(&none, |new| &new.gateways);
        let removed = before.difference(after).map(|key| self.gateways.remove(key));
        let results: Vec<Result<(), MapError>> = removed.collect();
        // One that stays keeps what it has left.
        let added: Vec<_> = after
            .difference(before)
            .map(|key| self.gateways.insert(key, GatewayLanes::default(), 0))
            .collect();
        let was = old.is_some_and(|old| old.foreign_userns);
        let is = new.as_ref().is_some_and(|new| new.foreign_userns);
        let container = match (was, is) {
            (false, true) => self.containers.insert(netns, 0, 0),
            (true, false) => self.containers.remove(&netns),
            _ => Ok(()),
        };
        for error in results.into_iter().chain(added).chain([container]).filter_map(Result::err) {
            tracing::debug!(netns, %error, "a lane of the kernel programs is not as it should be");
        }
        match new {
            Some(new) => drop(self.known.insert(netns, new)),
            None => drop(self.known.remove(&netns)),
        }
    }
}

fn keys(netns: NsInum, known: &KnownNetns) -> impl Iterator<Item = GatewayKey> {
    let gateways = known.gateways.iter().take(GATEWAYS_OF_NAMESPACE_MAX);
    let tunnels = known.tunnels.iter().take(TUNNEL_HOPS_MAX);
    gateways.chain(tunnels).map(move |(ifindex, address)| GatewayKey {
        netns,
        ifindex: *ifindex,
        address: octets(*address),
    })
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn bytes(key: &GatewayKey) -> GatewayBytes {
    let mut bytes = [0; size_of::<GatewayKey>()];
    bytes.copy_from_slice(key.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_a_bounded_number_of_lanes_and_those_in_use_come_first() {
        let gateways: Vec<(u32, IpAddr)> = (0..40).map(|last| (2, IpAddr::from([10, 0, 0, last]))).collect();
        let tunnels = (0..2000_u32).map(|last| (3, IpAddr::from(last.to_be_bytes()))).collect();
        let known = KnownNetns { foreign_userns: false, gateways, tunnels };
        let keys: Vec<GatewayKey> = keys(7, &known).collect();
        assert_eq!(keys.len(), GATEWAYS_OF_NAMESPACE_MAX + TUNNEL_HOPS_MAX);
        assert_eq!((keys[0].netns, keys[0].ifindex, &keys[0].address[..5]), (7, 2, &[10, 0, 0, 0, 0][..]));
    }
}
