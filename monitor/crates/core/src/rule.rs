//! Events of routing rules that select by a pod.

use std::net::IpAddr;

use kevtmon_event::wording::owner_phrase;
use kevtmon_event::{Event, Kind, Rule, Severity, Shared, Target};
use kevtmon_observation::{BootNs, PolicyRule, RouteOp, RuleAction};

use super::Core;
use super::route::{by, is_owned};

impl Core {
    pub(super) fn rule(&mut self, at: BootNs, rule: &PolicyRule, is_there: bool) {
        let op = if is_there { RouteOp::RuleAdded(rule.clone()) } else { RouteOp::RuleDeleted(rule.clone()) };
        let actor = self.route_actor(at, rule.netns, &op);
        let Some(target) = self.selected_by(rule) else { return };
        let (kind, severity, verb) = match is_there {
            true => (Kind::RuleAdded, Severity::Debug, "added"),
            // When a pod is deleted, too.
            false => (Kind::RuleDeleted, Severity::Info, "deleted"),
        };
        let shown = shown(rule);
        let of_host = if rule.netns == self.settings.host_netns { " of the host" } else { "" };
        let (text, owner, by) = (shown.text(), owner_phrase(&target), by(actor.as_ref()));
        let message = format!("rule{of_host} {text}{owner} {verb}{by}");
        self.emit(Event {
            actor: actor.map(Shared::new),
            target: Some(Shared::new(target)),
            rule: Some(Box::new(shown)),
            ..self.event(at, kind, severity, message)
        });
    }

    /// The pod or container that a rule selects by: that of the namespace, or on the host the one that has the address or is behind
    /// the interface. An inverted rule of the host selects all others.
    fn selected_by(&self, rule: &PolicyRule) -> Option<Target> {
        if rule.netns != self.settings.host_netns {
            return Some(self.target(rule.netns, false)).filter(is_owned);
        }
        let host = self.namespaces.get(rule.netns).filter(|_| !rule.is_inverse)?;
        let is_single = |(address, prefix_len): &(IpAddr, u8)| *prefix_len == bits(*address);
        let mut addresses = [rule.from, rule.to].into_iter().flatten().filter(is_single);
        let of_link = |ifname: &str| {
            let link = host.links.values().find(|link| link.ifname == ifname)?;
            Some(self.link_target(link)).filter(is_owned)
        };
        let mut interfaces = [&rule.iif, &rule.oif].into_iter().flatten();
        let of_address = addresses.find_map(|(address, _)| self.target_at(address));
        of_address.or_else(|| interfaces.find_map(|ifname| of_link(ifname)))
    }
}

fn shown(rule: &PolicyRule) -> Rule {
    let prefix = |(address, prefix_len): (IpAddr, u8)| format!("{address}/{prefix_len}");
    let (action, table, goto) = match rule.action {
        RuleAction::Lookup => ("lookup", Some(rule.table), None),
        RuleAction::Goto(priority) => ("goto", None, Some(priority)),
        RuleAction::Refuse => ("refuse", None, None),
        RuleAction::Nothing => ("nothing", None, None),
    };
    Rule {
        priority: rule.priority,
        from: rule.from.map(prefix),
        to: rule.to.map(prefix),
        iif: rule.iif.clone(),
        oif: rule.oif.clone(),
        more: rule.has_more,
        inverse: rule.is_inverse,
        action: action.to_owned(),
        table,
        goto,
        netns: rule.netns,
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
