//! Events of routing rules that select by a pod, and of the routes of tables that such rules select.

use std::net::IpAddr;

use kevtmon_event::wording::{owner_phrase, target_label};
use kevtmon_event::{Actor, Event, Kind, Route, Rule, Severity, Shared, Target};
use kevtmon_observation::{BootNs, PolicyRule, RouteFacts, RouteOp, RuleAction, TABLE_MAIN};

use super::Core;
use super::route::{by, is_owned};

/// Rules that are looked at to find the pods that use a table.
const RULES_OF_TABLE: usize = 256;

impl Core {
    pub(super) fn rule(&mut self, at: BootNs, rule: &PolicyRule, is_there: bool) {
        let op = match is_there {
            true => RouteOp::RuleAdded(rule.clone()),
            false => RouteOp::RuleDeleted(rule.clone()),
        };
        let actor = self.route_actor(at, rule.netns, &op);
        self.namespaces.set_policy_rule(rule, is_there);
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
    /// the interface.
    fn selected_by(&self, rule: &PolicyRule) -> Option<Target> {
        if rule.netns != self.settings.host_netns {
            return Some(self.target(rule.netns, false)).filter(is_owned);
        }
        let host = self.namespaces.get(rule.netns)?;
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

    /// A route of another table than the main one, if a rule of a pod selects that.
    pub(super) fn emit_policy_route(
        &mut self,
        at: BootNs,
        route: &RouteFacts,
        is_there: bool,
        actor: Option<Actor>,
    ) {
        if route.table == TABLE_MAIN {
            return;
        }
        let Some((user, is_only)) = self.user_of_table(route) else { return };
        let (kind, severity, verb) = match is_there {
            true => (Kind::RouteAdded, Severity::Debug, "added"),
            false => (Kind::RouteDeleted, Severity::Info, "deleted"),
        };
        let table = route.table;
        let destination = route
            .destination
            .map_or_else(|| "default".to_owned(), |(address, prefix_len)| format!("{address}/{prefix_len}"));
        let what = match route.destination {
            None => "default route".to_owned(),
            Some(_) => format!("route to {destination}"),
        };
        let via = route.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        let selected = match target_label(&user).filter(|_| is_only) {
            Some(label) => format!("selected by a rule of {label}"),
            None => "selected by rules of several pods".to_owned(),
        };
        let of_host = if route.netns == self.settings.host_netns { " of the host" } else { "" };
        let by = by(actor.as_ref());
        let message = format!("{what}{of_host}{via} in table {table} ({selected}) {verb}{by}");
        self.emit(Event {
            actor: actor.map(Shared::new),
            target: is_only.then(|| Shared::new(user)),
            route: Some(Box::new(Route {
                destination,
                gateway: route.gateway,
                ifindex: route.ifindex,
                table: Some(table),
                netns: route.netns,
            })),
            resync: self.is_resync,
            ..self.event(at, kind, severity, message)
        });
    }

    /// A pod or container that rules select the table of a route by, and whether it is the only one.
    fn user_of_table(&self, route: &RouteFacts) -> Option<(Target, bool)> {
        let ipv6 = route.destination.map_or(route.ipv6, |(address, _)| address.is_ipv6());
        let selects = |rule: &&PolicyRule| {
            (rule.ipv6, rule.table, rule.action) == (ipv6, route.table, RuleAction::Lookup)
                && !rule.is_inverse
        };
        let rules = self.namespaces.get(route.netns)?.policy_rules().iter().filter(selects);
        let mut users = rules.take(RULES_OF_TABLE).filter_map(|rule| self.selected_by(rule));
        let first = users.next()?;
        let is_only = users.all(|user| user == first);
        Some((first, is_only))
    }
}

/// As events show it.
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

/// The length of the prefix of a single address.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
