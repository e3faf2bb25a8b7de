//! What a message means for the model: from a decoded change to facts.
//!
//! IPv4 routes that vanish with a link, an address or by replacement have no message of their own, nor have next hops
//! that a link set up or down makes usable or not, nor tables that a VRF selects while it is up, and the order of routes
//! with the same metric is in no message, so after such changes the namespace is read again.

use std::time::Instant;

use kevtmon_observation::{BootNs, Fact, NsInum, Observation, PeerLink, PolicyRule, RouteFacts, Source};

use super::message::{self, Change, LinkChange};
use super::nsid::PeerLookup;
use super::route;
use super::stream::{Stream, changes_routes};

impl Stream {
    /// Handles messages, from the namespace with this nsid in the host namespace, or from the host itself.
    pub(super) async fn changed(&mut self, nsid: Option<i32>, datagram: &[u8], at: BootNs) {
        let Some(netns) = nsid.map_or(Some(self.host), |nsid| self.names.get(nsid)) else {
            // The snapshot that follows the discovery will include this change.
            nsid.into_iter().for_each(|nsid| self.unknown_nsid(nsid));
            return;
        };
        for message in message::messages(datagram) {
            let decoded = message.and_then(|message| {
                Ok((message::decode(netns, &message)?, route::policy_rule(netns, &message)))
            });
            match decoded {
                Ok((change, rule)) => self.apply(netns, change, rule, at).await,
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        netns,
                        "cannot decode a message"
                    );
                    self.undecoded().await;
                }
            }
        }
    }

    async fn apply(&mut self, netns: NsInum, change: Change, rule: Option<(PolicyRule, bool)>, at: BootNs) {
        match change {
            Change::NsidAssigned(nsid) if netns == self.host => {
                // The discovery may have been quicker than this message.
                if self.names.get(nsid).is_none() {
                    self.unknown_nsid(nsid);
                }
                return;
            }
            // The kernel takes the number of a dying namespace back before anything else.
            Change::NsidFreed(nsid) if netns == self.host => {
                if let Some(netns) = self.names.release(nsid) {
                    self.gone(netns).await;
                }
                return;
            }
            Change::NsidAssigned(nsid) | Change::NsidFreed(nsid) => {
                self.names.unlearn(netns, nsid);
                return;
            }
            _ => {}
        }
        // Older than the snapshot to come.
        if !self.known.contains(&netns) && !self.is_reading(netns) {
            return;
        }
        let told = matches!(change, Change::RouteGone { .. });
        let stale = Self::is_doubted(&change).then_some(Fact::NetnsStale { netns, told });
        let rule = rule.map(|(rule, is_there)| match is_there {
            true => Fact::Rule(Box::new(rule)),
            false => Fact::RuleGone(Box::new(rule)),
        });
        let facts: Vec<Fact> = self.facts(netns, change).into_iter().chain(rule).chain(stale).collect();
        let heard = Fact::NetnsHeard { netns, until: self.heard };
        let heard = facts.iter().any(changes_routes).then_some(heard);
        for fact in heard.into_iter().chain(facts) {
            self.deliver(netns, Observation { at, source: Source::Netlink, fact }).await;
        }
    }

    /// Whether it may have changed routes that no message describes.
    fn is_doubted(change: &Change) -> bool {
        match change {
            Change::Link(link) => link.toggled || link.vrf_table.is_some(),
            Change::LinkGone { was_vrf, .. } => *was_vrf,
            Change::AddressGone(address) => address.address.is_ipv4(),
            Change::Route { routes, alone, .. } => !*alone && routes.iter().any(RouteFacts::is_default),
            // Whether its interface and address went with it is seen once all is done.
            Change::RouteGone { routes, .. } => routes.iter().any(RouteFacts::is_default),
            // Rare, and what they lead to is not in the message: the namespace is read again.
            Change::RouteByObject { .. } | Change::Nexthop(_) | Change::Rule(_) | Change::RoutingGone => true,
            _ => false,
        }
    }

    fn facts(&mut self, netns: NsInum, change: Change) -> Vec<Fact> {
        if Self::is_doubted(&change) {
            self.schedule.mark_stale(netns, Instant::now());
        }
        let memory = self.memory.as_mut();
        match change {
            Change::Link(link) => {
                memory.into_iter().for_each(|memory| memory.link(&link.facts));
                vec![self.link(link)]
            }
            Change::LinkGone { ifindex, moved_to, .. } => {
                memory.into_iter().for_each(|memory| memory.link_gone(netns, ifindex));
                self.unresolved.remove(&(netns, ifindex));
                let moved_to = moved_to.map(|(nsid, ifindex)| PeerLink {
                    ifindex,
                    netns: match self.names.peer(self.host, netns, nsid) {
                        PeerLookup::Known(netns) => Some(netns),
                        PeerLookup::Unknown | PeerLookup::Unknowable => None,
                    },
                });
                vec![Fact::LinkGone { netns, ifindex, moved_to }]
            }
            Change::Address(address) => vec![Fact::Address(address)],
            Change::AddressGone(address) => {
                memory.into_iter().for_each(|memory| memory.address_gone(netns, address.ifindex));
                vec![Fact::AddressGone(address)]
            }
            Change::Route { routes, replaces, .. } => {
                asked(&routes, replaces, true).chain(routes.iter().cloned().map(Fact::Route)).collect()
            }
            Change::RouteGone { routes, asked: is_asked } => {
                asked(&routes, is_asked, false).chain(routes.iter().cloned().map(Fact::RouteGone)).collect()
            }
            Change::Neighbor { entry, port } => {
                let change = memory.and_then(|memory| memory.set(netns, &entry, port));
                change.into_iter().map(|change| Fact::Neighbor(Box::new(change))).collect()
            }
            Change::NeighborGone(entry) => {
                let change = memory.and_then(|memory| memory.gone(netns, &entry));
                change.into_iter().map(|change| Fact::Neighbor(Box::new(change))).collect()
            }
            Change::RouteByObject { .. }
            | Change::Nexthop(_)
            | Change::Rule(_)
            | Change::RoutingGone
            | Change::NsidAssigned(_)
            | Change::NsidFreed(_)
            | Change::Other => Vec::new(),
        }
    }

    /// A link with the namespace of its peer, as far as that is known by now; else it is sent again later.
    fn link(&mut self, link: LinkChange) -> Fact {
        let LinkChange { mut facts, other_nsid, .. } = link;
        let key = (facts.netns, facts.ifindex);
        self.unresolved.remove(&key);
        if let Some(nsid) = other_nsid {
            match self.names.peer(self.host, facts.netns, nsid) {
                PeerLookup::Known(peer) => {
                    if let Some(end) = facts.other_mut() {
                        end.netns = Some(peer);
                    }
                }
                PeerLookup::Unknowable => {}
                PeerLookup::Unknown => {
                    self.unresolved.insert(key, (facts.clone(), nsid));
                    if facts.netns == self.host {
                        self.unknown_nsid(nsid);
                    } else {
                        self.schedule.mark_stale(facts.netns, Instant::now());
                    }
                }
            }
        }
        Fact::Link(Box::new(facts))
    }
}

fn asked(routes: &[RouteFacts], is_asked: bool, replaces: bool) -> impl Iterator<Item = Fact> {
    let defaults = routes.iter().filter(move |route| is_asked && route.is_default()).cloned();
    defaults.map(move |route| Fact::RouteAsked { route, replaces })
}
