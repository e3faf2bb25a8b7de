//! Whether packets may get out by something else than a gateway that is lost.

use kevtmon_observation::{NeighborKey, RouteFacts};

use crate::node::view::NodeView;

/// Whether another default route can take the place of one that goes with its interface: there is one by another interface,
/// or whoever removed that interface may set one, as runtimes do.
pub(super) fn is_replaceable(node: &NodeView<'_>, key: NeighborKey) -> bool {
    let has_other = || {
        let namespace = node.namespaces.get(key.netns);
        namespace.is_some_and(|namespace| namespace.has_other_interface(key.ifindex, key.address))
    };
    has_other_route(node, key) || has_other()
}

fn has_other_route(node: &NodeView<'_>, key: NeighborKey) -> bool {
    let is_other = |route: &RouteFacts| {
        route.ifindex != Some(key.ifindex)
            && route.gateway.is_some_and(|gateway| gateway.is_ipv4() == key.address.is_ipv4())
    };
    node.namespaces.get(key.netns).is_some_and(|namespace| namespace.routes.iter().any(is_other))
}

/// Whether packets may find another way as long as a gateway is lost, or none is to go there any more.
pub(super) fn may_be_harmless(node: &NodeView<'_>, key: NeighborKey) -> bool {
    node.namespaces.get(key.netns).is_some_and(|namespace| {
        namespace.shared.contains_key(&(key.ifindex, key.address))
            || namespace.may_have_been_deleted(key.ifindex, key.address)
    })
}
