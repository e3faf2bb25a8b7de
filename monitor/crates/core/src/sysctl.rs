//! Sysctls of the host's interfaces that decide whether pods reach anything, as changes of links.

use kevtmon_event::{Event, Kind, Link, Severity};
use kevtmon_observation::{BootNs, InterfaceSysctls, LinkFacts, RpFilter};

use super::Core;

/// The directory of what holds for all interfaces, below `/proc/sys/net/ipv4/conf`.
const ALL: &str = "all";

impl Core {
    /// Applies what is told of sysctls: all that were read, or one that has changed. Nobody knows who changed it.
    pub(super) fn sysctls(&mut self, at: BootNs, sysctls: Vec<InterfaceSysctls>, all: bool) {
        let changed = match all {
            true => self.host_sysctls.replace(sysctls),
            false => sysctls.iter().filter_map(|one| self.host_sysctls.put(one)).collect(),
        };
        for one in changed {
            self.emit_sysctls(at, &one);
        }
    }

    fn emit_sysctls(&mut self, at: BootNs, changed: &InterfaceSysctls) {
        let (proxy, rest) = changes(changed);
        for (kind, change) in [(Kind::LinkProxyArp, proxy), (Kind::LinkChanged, rest)] {
            if !change.is_empty() {
                self.emit_sysctls_of(at, changed, kind, &change);
            }
        }
    }

    fn emit_sysctls_of(&mut self, at: BootNs, changed: &InterfaceSysctls, kind: Kind, change: &[&str]) {
        let host = self.settings.host_netns;
        let Some(ifindex) = changed.ifindex else {
            let link = LinkFacts { netns: host, ifname: ALL.to_owned(), ..LinkFacts::default() };
            let event = self.link_event(at, kind, &link, change, "", None);
            let link = event.link.map(|link| Box::new(Link { up: None, ..*link }));
            let message = format!("the sysctls of all interfaces of the host changed: {}", change.join(", "));
            // It concerns every pod of the node.
            self.emit(Event { link, message, severity: Severity::Notice, ..event });
            return;
        };
        let link = self.namespaces.get(host).and_then(|host| host.links.get(&ifindex)).cloned();
        // Of a new one it is told before the link itself.
        if let Some(link) = link {
            let verb = format!("changed: {}", change.join(", "));
            self.emit_link(at, kind, &link, change, &verb, None);
        }
    }
}

/// What changed, by the names in the event schema: of answers for others, and else.
fn changes(changed: &InterfaceSysctls) -> (Vec<&'static str>, Vec<&'static str>) {
    let forwarding = changed.forwarding.map(|on| match (changed.ipv6, on) {
        (false, true) => "forwarding-on",
        (false, false) => "forwarding-off",
        (true, true) => "ipv6-forwarding-on",
        (true, false) => "ipv6-forwarding-off",
    });
    let proxy = changed.proxy.map(|on| match (changed.ipv6, on) {
        (false, true) => "proxy-arp-on",
        (false, false) => "proxy-arp-off",
        (true, true) => "proxy-ndp-on",
        (true, false) => "proxy-ndp-off",
    });
    let rp_filter = changed.rp_filter.map(|value| match value {
        RpFilter::Off => "rp-filter-off",
        RpFilter::Strict => "rp-filter-strict",
        RpFilter::Loose => "rp-filter-loose",
    });
    (proxy.into_iter().collect(), forwarding.into_iter().chain(rp_filter).collect())
}
