//! How much of one namespace is kept.

use kevtmon_observation::{LinkFacts, NsInum};

use super::{Namespace, Namespaces};

/// Links, and addresses, of a namespace other than the host's: any user in one of their own, and any container that may change
/// its network, can make as many as they like there.
const BOUNDED_MAX: usize = 1024;

impl Namespaces {
    /// Whether a link is known, or one more of its namespace may be kept.
    pub fn has_room_for(&self, link: &LinkFacts) -> bool {
        self.known.get(&link.netns).is_none_or(|namespace| {
            namespace.has_room(namespace.links.len()) || namespace.links.contains_key(&link.ifindex)
        })
    }

    /// Default routes of all namespaces, and routes by tunnels of the host, that are not kept.
    pub fn routes_omitted(&self) -> u64 {
        let omitted = |namespace: &Namespace| namespace.routes_omitted + namespace.tunnels.omitted;
        self.known.values().map(|namespace| u64::try_from(omitted(namespace)).unwrap_or(0)).sum()
    }

    pub fn count_links(&self, netns: NsInum, kind: &str) -> i64 {
        self.known.get(&netns).map_or(0, |namespace| {
            namespace.links.values().map(|link| i64::from(link.kind.as_deref() == Some(kind))).sum()
        })
    }
}

impl Namespace {
    /// Links, addresses and default routes.
    pub(super) fn rows(&self) -> usize {
        self.links.len() + self.addresses.len() + self.routes.len()
    }

    /// Whether one more may be kept where there are so many.
    pub(super) fn has_room(&self, number: usize) -> bool {
        self.unbounded || number < BOUNDED_MAX
    }
}
