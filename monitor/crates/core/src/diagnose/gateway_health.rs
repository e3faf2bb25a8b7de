//! What is told of the neighbor entry of a gateway that no incident is about.

use kevtmon_observation::NeighborKey;

use super::gateway_neighbor_lost::health::{Health, health};
use crate::node::view::NodeView;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayHealth {
    /// It has the address by which the host is reached.
    Right,
    /// Nothing tells whether its address is right.
    Unchecked,
    /// It has another one.
    Wrong,
    /// `NUD_INCOMPLETE` or `NUD_FAILED`.
    Unanswered,
    /// A static one is gone.
    Lost,
    /// There is none, and no static one was seen.
    NotUsed,
    Unknown,
}

/// The state of a gateway's entry, by the model alone.
pub fn gateway_health(node: &NodeView<'_>, key: NeighborKey) -> GatewayHealth {
    match health(node, key) {
        Health::Correct => GatewayHealth::Right,
        Health::Usable if node.gateway_lladdr(key).is_some() => GatewayHealth::Right,
        Health::Static | Health::Usable | Health::Learned => GatewayHealth::Unchecked,
        Health::Wrong => GatewayHealth::Wrong,
        Health::Unresolved => GatewayHealth::Unanswered,
        Health::Unknown => GatewayHealth::Unknown,
        Health::Absent => match node.gateway(key).and_then(|gateway| gateway.static_lladdr.as_ref()) {
            Some(_) => GatewayHealth::Lost,
            None => GatewayHealth::NotUsed,
        },
    }
}
