//! Routing rules.

use std::net::IpAddr;

use kevtmon_types::escape::name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor};

/// A routing rule (`ip rule`), for `rule.*`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rule {
    /// Rules with a lower priority come first.
    pub priority: u32,
    /// Prefix of the sources that it selects.
    pub from: Option<String>,
    /// Prefix of the destinations that it selects.
    pub to: Option<String>,
    /// Interface by which packets come.
    pub iif: Option<String>,
    /// Interface to which the sending socket is bound.
    pub oif: Option<String>,
    /// Whether it selects by something else, too, for example a mark or ports.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub more: bool,
    /// Whether it applies to the packets that the selectors do not match (`not`).
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub inverse: bool,
    /// `lookup`, `goto`, `nothing`, or `refuse` (`unreachable`, `blackhole`, `prohibit`).
    pub action: String,
    /// The routing table of `lookup`.
    pub table: Option<u32>,
    /// The priority of the next rule, for `goto`.
    pub goto: Option<u32>,
    /// Network namespace, inode number.
    pub netns: u32,
}

impl Rule {
    /// The address of a prefix with a single one.
    pub fn single_address(prefix: &str) -> Option<IpAddr> {
        let (address, bits) = prefix.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let all = if address.is_ipv4() { "32" } else { "128" };
        (bits == all).then_some(address)
    }

    /// The rule in the words of ip-rule(8).
    pub fn text(&self) -> String {
        let Self { priority, from, to, iif, oif, action, .. } = self;
        let selectors = [("from", from), ("to", to), ("iif", iif), ("oif", oif)].into_iter();
        let selectors =
            selectors.filter_map(|(word, value)| Some(format!("{word} {}", name(value.as_deref()?))));
        let not = self.inverse.then(|| "not".to_owned());
        let more = self.more.then(|| "and more".to_owned());
        let target = self.table.or(self.goto).map(|target| target.to_string());
        let words = not.into_iter().chain(selectors).chain(more).chain([action.clone()]).chain(target);
        format!("{} (priority {priority})", words.collect::<Vec<_>>().join(" "))
    }
}

impl Object for Rule {
    fn visit(&self, visitor: &mut dyn Visitor) {
        let prefixes = [&self.from, &self.to].into_iter().flatten();
        let addresses = prefixes.filter_map(|prefix| Self::single_address(prefix));
        addresses.for_each(|address| visitor.neighbor_address(Role::Object, address));
        let interfaces = [&self.iif, &self.oif].into_iter().flatten();
        interfaces.for_each(|ifname| visitor.interface_name(Role::Object, ifname));
    }

    fn describe(&self, details: &mut dyn Details) {
        details.line("rule", &format!("{} in netns {}", self.text(), self.netns));
    }
}
