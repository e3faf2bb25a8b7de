//! Whether the host forwards what comes by an interface, and answers there for the addresses of others.

use std::collections::BTreeMap;

use kevtmon_observation::{InterfaceSysctls, RpFilter};
use serde::{Deserialize, Serialize};

/// What the sysctls of the host's interfaces are; empty until they were read.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSysctls {
    /// By family (whether it is IPv6) and interface; `None` is `conf/all`.
    #[serde(with = "kevtmon_types::pairs", skip_serializing_if = "BTreeMap::is_empty")]
    known: BTreeMap<(bool, Option<u32>), InterfaceSysctls>,
    /// IPv4 forwarding as it was just set for all interfaces: the kernel then tells it of each, before anything else
    /// (`inet_forward_change`, net/ipv4/devinet.c).
    spreading: Option<bool>,
    #[serde(with = "kevtmon_types::pairs", skip_serializing_if = "BTreeMap::is_empty")]
    rp_filters_before: BTreeMap<Option<u32>, RpFilter>,
}

impl HostSysctls {
    /// Takes what was read of all interfaces; returns what differs from before.
    pub fn replace(&mut self, all: Vec<InterfaceSysctls>) -> Vec<InterfaceSysctls> {
        let old = std::mem::take(self);
        let mut changed = Vec::new();
        for new in all {
            let key = (new.ipv6, new.ifindex);
            if let Some(known) = old.known.get(&key) {
                let one = differing(known, &new);
                let earlier = || old.rp_filters_before.get(&new.ifindex).copied().filter(|_| !new.ipv6);
                let before = one.rp_filter.and(known.rp_filter).or_else(earlier);
                self.rp_filters_before.extend(before.map(|before| (new.ifindex, before)));
                changed.push(one);
            }
            self.known.insert(key, new);
        }
        changed.retain(|one| !is_empty(one));
        changed
    }

    /// Takes what a message tells; returns what is another value than before, of what was known. That forwarding was switched
    /// for all interfaces is one change.
    pub fn put(&mut self, new: &InterfaceSysctls) -> Option<InterfaceSysctls> {
        let follows = self.follows(new);
        let key = (new.ipv6, new.ifindex);
        // Of a new interface all is told.
        let is_new = new.forwarding.is_some() && new.proxy.is_some() && new.rp_filter.is_some();
        let Some(known) = self.known.get_mut(&key).filter(|_| !is_new) else {
            self.known.insert(key, new.clone());
            return None;
        };
        let changed = differing(known, new);
        let before = changed.rp_filter.and(known.rp_filter);
        self.rp_filters_before.extend(before.map(|before| (new.ifindex, before)));
        known.forwarding = new.forwarding.or(known.forwarding);
        known.proxy = new.proxy.or(known.proxy);
        known.rp_filter = new.rp_filter.or(known.rp_filter);
        (!follows && !is_empty(&changed)).then_some(changed)
    }

    /// Whether this only follows from what was set for all interfaces.
    fn follows(&mut self, new: &InterfaceSysctls) -> bool {
        let is_forwarding_alone = !new.ipv6 && new.proxy.is_none() && new.rp_filter.is_none();
        match (is_forwarding_alone, new.ifindex, new.forwarding) {
            (true, None, forwarding) => {
                self.spreading = forwarding;
                false
            }
            (true, Some(_), forwarding @ Some(_)) if self.spreading == forwarding => true,
            _ => {
                self.spreading = None;
                false
            }
        }
    }

    pub fn remove(&mut self, ifindex: u32) {
        for ipv6 in [false, true] {
            self.known.remove(&(ipv6, Some(ifindex)));
        }
        self.rp_filters_before.remove(&Some(ifindex));
    }

    /// Whether the host answers ARP requests on an interface for addresses that it reaches by others (`proxy_arp`).
    pub fn answers_arp_for_others(&self, ifindex: u32) -> Option<bool> {
        let own = self.of(false, Some(ifindex))?.proxy?;
        Some(own || self.of(false, None)?.proxy?)
    }

    /// Whether it forwards packets of IPv4 that come by an interface. It answers for nobody else where it does not
    /// (`arp_process`, net/ipv4/arp.c).
    pub fn forwards_ipv4(&self, ifindex: u32) -> Option<bool> {
        self.of(false, Some(ifindex))?.forwarding
    }

    /// Whether it forwards no packet of IPv4, by whichever interface it comes: `ip_forward`, which is `conf/all/forwarding`, is
    /// off, and on none of the interfaces was it switched on since.
    pub fn forwards_nothing(&self) -> bool {
        let mut of_ipv4 = self.known.iter().filter(|((ipv6, _), _)| !ipv6).map(|(_, sysctls)| sysctls);
        self.of(false, None).is_some() && of_ipv4.all(|sysctls| sysctls.forwarding == Some(false))
    }

    /// How it checks the sources of what comes by an interface: the higher one of its own value and that of all.
    pub fn rp_filter(&self, ifindex: u32) -> Option<RpFilter> {
        self.rp_filters(ifindex).map(|(own, of_all)| own.max(of_all))
    }

    /// Its own value and that of all.
    pub fn rp_filters(&self, ifindex: u32) -> Option<(RpFilter, RpFilter)> {
        Some((self.of(false, Some(ifindex))?.rp_filter?, self.of(false, None)?.rp_filter?))
    }

    /// What the value of an interface, or that of all, was before its last change.
    pub fn rp_filter_before(&self, ifindex: Option<u32>) -> Option<RpFilter> {
        self.rp_filters_before.get(&ifindex).copied()
    }

    fn of(&self, ipv6: bool, ifindex: Option<u32>) -> Option<&InterfaceSysctls> {
        self.known.get(&(ipv6, ifindex))
    }
}

/// What is another value in the newer one.
fn differing(old: &InterfaceSysctls, new: &InterfaceSysctls) -> InterfaceSysctls {
    InterfaceSysctls {
        ifindex: new.ifindex,
        ipv6: new.ipv6,
        forwarding: new.forwarding.filter(|value| old.forwarding.is_some_and(|old| old != *value)),
        proxy: new.proxy.filter(|value| old.proxy.is_some_and(|old| old != *value)),
        rp_filter: new.rp_filter.filter(|value| old.rp_filter.is_some_and(|old| old != *value)),
    }
}

fn is_empty(sysctls: &InterfaceSysctls) -> bool {
    sysctls.forwarding.is_none() && sysctls.proxy.is_none() && sysctls.rp_filter.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ifindex: Option<u32>) -> InterfaceSysctls {
        InterfaceSysctls {
            ifindex,
            ipv6: false,
            forwarding: Some(true),
            proxy: Some(false),
            rp_filter: Some(RpFilter::Off),
        }
    }

    fn forwarding(ifindex: Option<u32>, value: bool) -> InterfaceSysctls {
        InterfaceSysctls { ifindex, forwarding: Some(value), ..InterfaceSysctls::default() }
    }

    fn proxy(ifindex: Option<u32>, value: bool) -> InterfaceSysctls {
        InterfaceSysctls { ifindex, proxy: Some(value), ..InterfaceSysctls::default() }
    }

    fn known() -> HostSysctls {
        let mut sysctls = HostSysctls::default();
        assert!(sysctls.replace(vec![all(None), all(Some(7)), all(Some(8))]).is_empty());
        sysctls
    }

    #[test]
    fn what_holds_for_all_interfaces_holds_for_each() {
        let mut sysctls = known();
        assert_eq!(sysctls.answers_arp_for_others(7), Some(false));
        sysctls.put(&proxy(Some(7), true));
        assert_eq!([7, 8].map(|index| sysctls.answers_arp_for_others(index)), [Some(true), Some(false)]);
        sysctls.put(&proxy(None, true));
        sysctls.put(&proxy(Some(7), false));
        assert_eq!([7, 8].map(|index| sysctls.answers_arp_for_others(index)), [Some(true); 2]);
        let strict = InterfaceSysctls { rp_filter: Some(RpFilter::Strict), ..InterfaceSysctls::default() };
        sysctls.put(&strict);
        assert_eq!(sysctls.rp_filter(7), Some(RpFilter::Strict));
        assert_eq!([None, Some(7)].map(|of| sysctls.rp_filter_before(of)), [Some(RpFilter::Off), None]);
        assert_eq!(sysctls.answers_arp_for_others(9), None, "it is not known");
        sysctls.remove(7);
        assert_eq!(sysctls.forwards_ipv4(7), None);
    }

    #[test]
    fn only_what_was_known_and_is_another_value_is_a_change() {
        let mut sysctls = known();
        assert_eq!(sysctls.put(&proxy(Some(7), true)), Some(proxy(Some(7), true)));
        assert_eq!(sysctls.put(&proxy(Some(7), true)), None);
        assert_eq!(sysctls.put(&all(Some(9))), None, "a new interface");
        assert_eq!(
            sysctls.put(&InterfaceSysctls { ipv6: true, ..all(Some(7)) }),
            None,
            "of the other family"
        );
        let mut read = all(Some(7));
        read.forwarding = Some(false);
        let changed = sysctls.replace(vec![all(None), read]);
        let expected = InterfaceSysctls { proxy: Some(false), ..forwarding(Some(7), false) };
        assert_eq!(changed, [expected], "while messages were lost");
        assert_eq!(sysctls.forwards_ipv4(8), None, "it is gone");
    }

    #[test]
    fn it_forwards_nothing_where_forwarding_is_off_for_all_interfaces_and_on_each() {
        let off = |ifindex| InterfaceSysctls { forwarding: Some(false), ..all(ifindex) };
        let of = |all: Vec<InterfaceSysctls>| {
            let mut sysctls = HostSysctls::default();
            sysctls.replace(all);
            sysctls.forwards_nothing()
        };
        let ipv6 = InterfaceSysctls { ipv6: true, ..all(Some(7)) };
        assert!(of(vec![off(None), off(Some(7)), ipv6]));
        assert!(!of(vec![off(None), off(Some(7)), all(Some(8))]), "on one of them");
        assert!(!of(vec![all(None), off(Some(7))]), "new interfaces forward");
        assert!(!of(vec![off(Some(7))]) && !of(Vec::new()), "it is not known");
    }

    #[test]
    fn forwarding_that_is_switched_for_all_interfaces_is_one_change() {
        let mut sysctls = known();
        assert_eq!(sysctls.put(&forwarding(None, false)), Some(forwarding(None, false)));
        assert_eq!(sysctls.put(&forwarding(Some(7), false)), None);
        assert_eq!(sysctls.put(&forwarding(Some(8), false)), None);
        assert_eq!(sysctls.forwards_ipv4(8), Some(false));
        // Now somebody switches it for one of them, and back.
        assert_eq!(sysctls.put(&forwarding(Some(8), true)), Some(forwarding(Some(8), true)));
        assert_eq!(sysctls.put(&forwarding(Some(8), false)), Some(forwarding(Some(8), false)));
    }
}
