//! In which order the observations of one moment are taken.

use crate::observation::{Fact, Observation, Source};

/// Whether it is a change of a neighbor entry that a program in the kernel has seen.
pub(super) fn is_of_neighbor(observation: &Observation) -> bool {
    matches!(observation.fact, Fact::Neighbor(_)) && observation.source != Source::Netlink
}

/// Takes changes of routes before those of neighbor entries, which come another way and bear the time at which they
/// happened. Routes overtake nothing else: whether a link went first is what tells a loss from a removal.
pub(super) fn take_routes_first(batch: &mut Vec<Observation>) {
    let mut neighbors = Vec::new();
    let mut ordered = Vec::with_capacity(batch.len());
    for observation in batch.drain(..) {
        match &observation.fact {
            Fact::Task(_) => neighbors.push(observation),
            _ if is_of_neighbor(&observation) => neighbors.push(observation),
            Fact::Route(_) | Fact::RouteGone(_) | Fact::NetnsStale { .. } => ordered.push(observation),
            _ => {
                ordered.append(&mut neighbors);
                ordered.push(observation);
            }
        }
    }
    ordered.append(&mut neighbors);
    *batch = ordered;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{NeighborCause, NeighborChange, NeighborKey, NeighborOp, NudState};

    fn observed(fact: Fact) -> Observation {
        Observation { at: 1, source: Source::Daemon, fact }
    }

    fn neighbor() -> Observation {
        let key = NeighborKey { netns: 7, ifindex: 2, address: "10.0.0.1".parse().unwrap() };
        observed(Fact::Neighbor(Box::new(NeighborChange {
            key,
            ifname: "eth0".into(),
            op: NeighborOp::Deleted,
            cause: NeighborCause::Admin,
            old_state: Some(NudState::PERMANENT),
            new_state: None,
            lladdr: None,
            new_lladdr: None,
            device_lladdr: None,
            actor: None,
            netlink_port: None,
            netns_of_user: false,
        })))
    }

    #[test]
    fn a_route_overtakes_neighbors_and_no_link() {
        let route = || observed(Fact::NetnsStale { netns: 7 });
        let link = || observed(Fact::LinkGone { netns: 7, ifindex: 2, moved_to: None });
        let mut batch = vec![neighbor(), route(), neighbor(), link(), neighbor(), route()];
        take_routes_first(&mut batch);
        assert_eq!(batch, [route(), neighbor(), neighbor(), link(), route(), neighbor()]);
    }
}
