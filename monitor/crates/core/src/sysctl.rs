//! Sysctls of the host's interfaces that decide whether pods reach anything, as changes of links.

use kevtmon_event::wording::place_phrase;
use kevtmon_event::{Actor, Confidence, Event, Kind, Link, Severity, Shared, Sysctl};
use kevtmon_observation::{BootNs, InterfaceSysctls, LinkFacts, RpFilter, SysctlWrite};
use kevtmon_types::escape::name as shown;

use super::Core;
use super::route::by;

/// The directory of what holds for all interfaces, below `/proc/sys/net/ipv4/conf`.
const ALL: &str = "all";
/// Sysctls that decide whether a pod reaches anything, by the end of their names.
const REPORTED: [&str; 14] = [
    "ip_forward", "forwarding", "proxy_arp", "proxy_ndp", "rp_filter", "arp_ignore", "arp_announce",
    "disable_ipv6", "accept_ra", "gc_thresh1", "gc_thresh2", "gc_thresh3", "base_reachable_time",
    "base_reachable_time_ms",
];

impl Core {
    /// Reports a write of another value, and keeps it until a message tells that the kernel took it.
    pub(super) fn sysctl_write(&mut self, at: BootNs, write: SysctlWrite) {
        let last = write.name.rsplit('/').next().unwrap_or_default();
        let is_reported = REPORTED.contains(&last) || last.starts_with("fib_multipath_");
        if write.old == write.new || !is_reported {
            return;
        }
        // Of others no message tells that they changed.
        let is_told = ["ip_forward", "forwarding", "proxy_arp", "proxy_ndp", "rp_filter"].contains(&last)
            && !write.name.contains("/conf/default/");
        self.emit_sysctl(at, &write);
        if is_told && write.netns == self.settings.host_netns {
            self.link_acts.sysctls.put(at, write);
        }
    }

    fn emit_sysctl(&mut self, at: BootNs, write: &SysctlWrite) {
        let SysctlWrite { netns, old, new, .. } = write;
        let (netns, name) = (*netns, dotted(&write.name));
        let target = self.target(netns, false);
        // The file may have been opened in another namespace, and the kernel may refuse the value.
        let actor = Actor { confidence: Confidence::Likely, ..self.actor(&write.actor, false) };
        let is_hosts = netns == self.settings.host_netns;
        let place = if is_hosts { " of the host".to_owned() } else { place_phrase(&target, netns) };
        let severity = if is_hosts || target.container.is_some() { Severity::Info } else { Severity::Debug };
        let by = by(Some(&actor));
        let message =
            format!("sysctl {}{place}: {} written (before: {}){by}", shown(&name), shown(new), shown(old));
        self.emit(Event {
            actor: Some(Shared::new(actor)),
            target: Some(Shared::new(target)),
            sysctl: Some(Box::new(Sysctl { name, old: old.clone(), new: new.clone(), netns })),
            ..self.event(at, Kind::SysctlChanged, severity, message)
        });
    }

    /// Applies what is told of sysctls: all that were read, or one that has changed. Who changed it is known where the write was
    /// seen.
    pub(super) fn sysctls(&mut self, at: BootNs, sysctls: Vec<InterfaceSysctls>, all: bool) {
        let changed = match all {
            true => self.host_sysctls.replace(sysctls),
            false => sysctls.iter().filter_map(|one| self.host_sysctls.put(one)).collect(),
        };
        self.link_acts.sysctls.set_told(at);
        for one in changed {
            let actor = self.sysctl_actor(at, &one).filter(|_| !all);
            self.emit_sysctls(at, &one, actor.as_ref());
        }
        if all {
            // Their messages were lost.
            self.link_acts.sysctls.forget(self.settings.host_netns);
        }
    }

    fn sysctl_actor(&mut self, at: BootNs, changed: &InterfaceSysctls) -> Option<Actor> {
        let host = self.settings.host_netns;
        let links = self.namespaces.get(host).map(|host| &host.links);
        let ifname = match changed.ifindex {
            None => ALL,
            Some(ifindex) => &links?.get(&ifindex)?.ifname,
        };
        let cookie = self.namespaces.cookie(host);
        let is_it = |write: &SysctlWrite| is_of(write, changed, ifname);
        let (task, _) = self.link_acts.sysctls.take(at, cookie, is_it)?;
        // Its file may have been opened in another namespace, while one that nobody saw changed this.
        Some(Actor { confidence: Confidence::Likely, ..self.actor(&task, false) })
    }

    fn emit_sysctls(&mut self, at: BootNs, changed: &InterfaceSysctls, actor: Option<&Actor>) {
        let (proxy, rest) = changes(changed);
        for (kind, change) in [(Kind::LinkProxyArp, proxy), (Kind::LinkChanged, rest)] {
            if !change.is_empty() {
                self.emit_sysctls_of(at, changed, kind, &change, actor.cloned());
            }
        }
    }

    fn emit_sysctls_of(
        &mut self,
        at: BootNs,
        changed: &InterfaceSysctls,
        kind: Kind,
        change: &[&str],
        actor: Option<Actor>,
    ) {
        let host = self.settings.host_netns;
        let Some(ifindex) = changed.ifindex else {
            let link = LinkFacts { netns: host, ifname: ALL.to_owned(), ..LinkFacts::default() };
            let by = by(actor.as_ref());
            let event = self.link_event(at, kind, &link, change, "", actor);
            let link = event.link.map(|link| Box::new(Link { up: None, ..*link }));
            let message =
                format!("the sysctls of all interfaces of the host changed: {}{by}", change.join(", "));
            // It concerns every pod of the node.
            self.emit(Event { link, message, severity: Severity::Notice, ..event });
            return;
        };
        let link = self.namespaces.get(host).and_then(|host| host.links.get(&ifindex)).cloned();
        // Of a new one it is told before the link itself.
        if let Some(link) = link {
            let verb = format!("changed: {}", change.join(", "));
            self.emit_link(at, kind, &link, change, &verb, actor);
        }
    }
}

/// As sysctl(8) has the name: dots for slashes, and slashes for the dots of interfaces.
fn dotted(path: &str) -> String {
    let swapped = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    path.chars().map(swapped).collect()
}

/// Whether such a write has this as its result, on the interface of that name.
fn is_of(write: &SysctlWrite, changed: &InterfaceSysctls, ifname: &str) -> bool {
    let family = if changed.ipv6 { "net/ipv6/" } else { "net/ipv4/" };
    let Some(rest) = write.name.strip_prefix(family) else { return false };
    let (directory, name) = match rest {
        "ip_forward" => (ALL, "forwarding"),
        _ => match rest.strip_prefix("conf/").and_then(|rest| rest.rsplit_once('/')) {
            Some(parts) => parts,
            None => return false,
        },
    };
    let Ok(value) = write.new.trim().parse::<i32>() else { return false };
    directory == ifname
        && match name {
            "forwarding" => changed.forwarding == Some(value != 0),
            "proxy_arp" | "proxy_ndp" => changed.proxy == Some(value != 0),
            "rp_filter" => changed.rp_filter == Some(RpFilter::of(value)),
            _ => false,
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
