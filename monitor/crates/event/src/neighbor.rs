//! Neighbor entries.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor};

/// A neighbor entry, for `neighbor.*`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Neighbor {
    /// Protocol address.
    pub address: IpAddr,
    /// Link-layer address, before the change.
    pub lladdr: Option<String>,
    /// Link-layer address after the change, when another took its place.
    pub new_lladdr: Option<String>,
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub ifname: String,
    /// Network namespace, inode number.
    pub netns: u32,
    /// State before the change: `permanent`, …
    pub state: Option<String>,
    /// State after the change, when the entry still exists.
    pub new_state: Option<String>,
    /// Why it changed: `admin`, `replaced`, `link-down`, `link-deleted`, `lladdr-changed`, `noarp`, `last-address-removed`,
    /// `gc`, `netns-exit`, `unknown`.
    pub cause: String,
    /// Whether it is the default gateway of its namespace, or a next hop by a tunnel of the host; absent where unknown.
    pub gateway: Option<bool>,
    /// What is wrong with a gateway: `missing`, `failed`, `wrong-lladdr`.
    pub reason: Option<String>,
    /// Network namespace whose end took the link along, inode number: that of the link's peer or lower device.
    pub ended_netns: Option<u32>,
    /// Whether it is that of the lower device.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ended_lower: bool,
    /// Whether the link that was set down was moved to another namespace then.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub link_moved: bool,
    /// Whether its container had exited before: part of the cleanup, and no fault.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub after_exit: bool,
    /// Whether it happened in another namespace than the one that is known by this number: one that has ended, or was not read
    /// yet. Nothing is known of it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub other_netns: bool,
}

impl Object for Neighbor {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.neighbor_address(Role::Object, self.address);
        visitor.interface(Role::Object, self.netns, self.ifindex, Some(&self.ifname));
    }

    fn describe(&self, details: &mut dyn Details) {
        let mut words =
            vec![format!("{} {}", self.address, arrow(self.lladdr.as_deref(), self.new_lladdr.as_deref()))];
        words.push(arrow(self.state.as_deref(), self.new_state.as_deref()));
        words.push(format!("cause {}", self.cause));
        words.extend(self.reason.as_ref().map(|reason| format!("gateway {reason}")));
        words.extend(self.ended_netns.map(|netns| format!("gone with netns {netns}")));
        words.extend(self.link_moved.then(|| "link moved to another netns".to_owned()));
        words.extend(self.after_exit.then(|| "after the container's exit".to_owned()));
        let netns = if self.other_netns { "another netns of number" } else { "netns" };
        words.push(format!("{} ({}) in {netns} {}", self.ifname, self.ifindex, self.netns));
        words.retain(|words| !words.is_empty());
        details.line("entry", &words.join(" · "));
    }
}

fn arrow(old: Option<&str>, new: Option<&str>) -> String {
    match (old, new) {
        (Some(old), Some(new)) => format!("{old} → {new}"),
        (Some(old), None) => old.to_owned(),
        (None, Some(new)) => format!("→ {new}"),
        (None, None) => String::new(),
    }
}
