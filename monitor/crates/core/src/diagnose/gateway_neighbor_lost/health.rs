//! Whether a gateway's neighbor entry is correct, judged by the model alone.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_event::Target;
use kevtmon_observation::{BootNs, ContainerState, NeighborKey, NsInum};
use kevtmon_types::settings::Thresholds;

use super::{GATEWAY_STATIC_PERCENT, GATEWAY_STATIC_PODS};
use crate::node::containers::is_live;
use crate::node::namespaces::Namespace;
use crate::node::view::NodeView;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// The model has no such namespace or gateway.
    Unknown,
    /// Static, with the address of the host end.
    Correct,
    /// Static; the expected address is not known.
    Static,
    /// With another address than that of the host end, which the kernel will not find out by itself.
    Wrong,
    /// Not static, with the address of the host end, or where that is not known, with that of the static entry before.
    Usable,
    /// Learned; nothing tells whether the address is correct.
    Learned,
    /// `NUD_INCOMPLETE` or `NUD_FAILED`.
    Unresolved,
    Absent,
}

pub(crate) fn health(node: &NodeView<'_>, key: NeighborKey) -> Health {
    let Some(gateway) = node.gateway(key) else { return Health::Unknown };
    let is_unconnected = node.unconnected_gateway(key).is_some();
    let expected = node.gateway_lladdr(key);
    let is_other = expected.zip(gateway.lladdr()).is_some_and(|(expected, lladdr)| expected != lladdr)
        && !is_of_own_port(node, key);
    let is_wrong = is_unconnected || is_other;
    if gateway.is_static() {
        return match expected {
            _ if is_wrong => Health::Wrong,
            Some(_) => Health::Correct,
            None => Health::Static,
        };
    }
    if gateway.is_learned() {
        match expected {
            _ if is_wrong && gateway.is_unchecked() => Health::Wrong,
            Some(_) if !is_wrong => Health::Usable,
            None if !is_wrong && gateway.is_as_before() => Health::Usable,
            _ => Health::Learned,
        }
    } else if gateway.is_unresolved() {
        Health::Unresolved
    } else {
        Health::Absent
    }
}

/// Whether an entry has the address of the host's end of the pair. A bridge takes what comes by the very port whose address it is
/// to, whatever its own address is (`eth_type_trans`, net/ethernet/eth.c).
pub(super) fn is_of_own_port(node: &NodeView<'_>, key: NeighborKey) -> bool {
    let lladdr = node.gateway(key).and_then(|gateway| gateway.lladdr());
    let end = node.host_end(key.netns, key.ifindex).and_then(|end| end.mac.as_ref());
    end.is_some_and(|end| Some(end) == lladdr)
}

/// Whether the entry is no longer needed: see [`Namespace::is_former_gateway`].
///
/// [`Namespace::is_former_gateway`]: crate::node::namespaces::Namespace::is_former_gateway
pub(super) fn is_former(node: &NodeView<'_>, key: NeighborKey) -> bool {
    node.namespaces
        .get(key.netns)
        .is_some_and(|namespace| namespace.is_former_gateway(key.ifindex, key.address))
}

/// Whether the next snapshot may show that an entry which seems to be needed no longer is missed.
pub(super) fn is_doubted(node: &NodeView<'_>, key: NeighborKey) -> bool {
    is_former(node, key) && node.namespaces.get(key.netns).is_some_and(Namespace::is_doubted)
}

/// Whether the entry is not needed until its interface is ready: what took it away is judged then.
pub(super) fn is_suspended(node: &NodeView<'_>, key: NeighborKey) -> bool {
    let namespace = node.namespaces.get(key.netns);
    is_former(node, key) && namespace.is_some_and(|known| known.is_dead_gateway(key.ifindex, key.address))
}

/// Whether packets take another route for certain: what changes of routes, unlike of entries, while they are read is told.
pub(super) fn is_left(node: &NodeView<'_>, key: NeighborKey) -> bool {
    let is_told = |namespace: &Namespace| !namespace.unheard && !namespace.is_doubted();
    is_former(node, key) && node.namespaces.get(key.netns).is_some_and(is_told)
}

/// Whether the entry is known by a change that a hook told after this time, not by a snapshot that may be older.
pub(super) fn was_told_since(node: &NodeView<'_>, key: NeighborKey, at: BootNs) -> bool {
    node.gateway(key).is_some_and(|gateway| gateway.changed_since(at.saturating_add(1)))
}

/// Whether a snapshot came then or later.
pub(super) fn was_read_since(node: &NodeView<'_>, netns: NsInum, at: BootNs) -> bool {
    node.namespaces.get(netns).is_some_and(|namespace| namespace.read >= at)
}

/// The owner of a namespace other than the host's in which a process lives.
pub(in crate::diagnose) fn live_target(node: &NodeView<'_>, netns: NsInum) -> Option<Target> {
    is_alive(node, netns).then(|| node.target(netns)).filter(is_live_target)
}

/// Whether a process lives in a namespace other than the host's, according to the runtime or else the last look.
pub(super) fn is_alive(node: &NodeView<'_>, netns: NsInum) -> bool {
    if netns == node.host_netns {
        return false;
    }
    match node.containers.in_netns(netns) {
        Some(facts) => is_live(facts.state),
        None => node.namespaces.get(netns).is_some_and(|namespace| namespace.owner.is_some()),
    }
}

/// Whether a target is a running container, or a process. A container without a state was found by the cgroup of a
/// process, so it runs.
pub(super) fn is_live_target(target: &Target) -> bool {
    let live = [ContainerState::Running.name(), ContainerState::Paused.name()];
    match &target.container {
        Some(container) => container.state.as_deref().is_none_or(|state| live.contains(&state)),
        None => target.process.is_some(),
    }
}

pub(super) fn live_netns(node: &NodeView<'_>) -> impl Iterator<Item = NsInum> {
    node.namespaces.all().map(|(netns, _)| netns).filter(|netns| is_alive(node, *netns))
}

/// A gateway of a pod without the static entry that its peers have: pods with the same CNI plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outlier {
    pub(super) key: NeighborKey,
    /// Number of its peers, itself included, that have a static entry.
    pub(super) with_static: usize,
    /// Number of its peers, itself included.
    pub(super) total: usize,
    /// What its peers have in common: the prefix of the host interface's name.
    pub(super) prefix: String,
}

/// Gateways without an entry, where nearly all pods of the same CNI plugin have a static one. A pod may have several.
pub(super) fn outliers(node: &NodeView<'_>, thresholds: &Thresholds) -> Vec<Outlier> {
    #[derive(Default)]
    struct Group {
        pods: BTreeSet<NsInum>,
        with_static: BTreeSet<NsInum>,
        without: Vec<NeighborKey>,
    }
    let mut groups: BTreeMap<(&str, bool), Group> = BTreeMap::new();
    for (netns, namespace) in node.namespaces.all().filter(|(netns, _)| is_alive(node, *netns)) {
        if namespace.gateways().next().is_none() || !is_of_container(node, netns) {
            continue;
        }
        for (ifindex, address, gateway) in namespace.gateways() {
            let in_use = namespace.in_use.contains(&(ifindex, address));
            let Some(end) = node.host_end(netns, ifindex).filter(|_| in_use) else { continue };
            let group = groups.entry((prefix(&end.ifname), address.is_ipv4())).or_default();
            group.pods.insert(netns);
            if gateway.is_static() {
                group.with_static.insert(netns);
            } else if !gateway.is_learned() {
                group.without.push(NeighborKey { netns, ifindex, address });
            }
        }
    }
    let is_majority = |group: &Group| {
        let (with_static, total) = (group.with_static.len(), group.pods.len());
        with_static >= thresholds.get(&GATEWAY_STATIC_PODS) as usize
            && with_static * 100 >= total * thresholds.get(&GATEWAY_STATIC_PERCENT) as usize
    };
    groups
        .into_iter()
        .filter(|(_, group)| is_majority(group))
        .flat_map(|((prefix, _), group)| {
            let Group { pods, with_static, without } = group;
            let of_pod = |key| Outlier {
                key,
                with_static: with_static.len(),
                total: pods.len(),
                prefix: prefix.to_owned(),
            };
            let without = without.into_iter().filter(|key| !with_static.contains(&key.netns));
            without.map(of_pod).collect::<Vec<_>>()
        })
        .collect()
}

/// Whether it is a container's: any other process may do without what all pods have.
fn is_of_container(node: &NodeView<'_>, netns: NsInum) -> bool {
    let target = node.target(netns);
    target.container.is_some() && !target.is_foreign()
}

/// The prefix that a CNI plugin puts before the hash or number of an interface name: `cali` of `cali9118ebbb10b`.
/// Hex digits at its end count as part of the hash, for all interfaces of the plugin alike.
pub(super) fn prefix(ifname: &str) -> &str {
    ifname.trim_end_matches(|c: char| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_hash_begins() {
        for (ifname, expected) in [
            ("cali9118ebbb10b", "cali"),
            ("eni0a1b2c", "eni"),
            ("veth1a2b3c4", "veth"),
            ("web-tap", "web-tap"),
        ] {
            assert_eq!(prefix(ifname), expected);
        }
    }
}
