//! Network interfaces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor};

/// A network interface, for `link.*` and for incidents of kinds `orphan-veth` and `netns-never-ends`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// Index.
    pub ifindex: u32,
    /// Name.
    pub ifname: String,
    /// `veth`, `bridge`, …
    pub kind: Option<String>,
    /// Network namespace, inode number.
    pub netns: u32,
    /// The other end.
    pub peer: Option<LinkPeer>,
    /// Index of the bridge it belongs to.
    pub master: Option<u32>,
    /// Hardware address.
    pub mac: Option<String>,
    /// The one before, where it has changed.
    pub old_mac: Option<String>,
    /// Whether it is administratively up; absent where unknown.
    pub up: Option<bool>,
    /// What changed: `up`, `down`, `carrier-up`, `carrier-down`, `mac`, `name`, `master`, `peer`, `netns`; of the host's
    /// interfaces, and of all of them (`all`), also what sysctls say: `forwarding-on`, `forwarding-off`, `rp-filter-off`,
    /// `rp-filter-strict`, `rp-filter-loose`, `ipv6-forwarding-on`, `ipv6-forwarding-off`, and, of `link.proxy_arp`, `proxy-arp-on`,
    /// `proxy-arp-off`, `proxy-ndp-on`, `proxy-ndp-off`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub change: Vec<String>,
    /// Its new namespace, for `link.moved`.
    pub moved_to: Option<LinkPeer>,
}

/// An interface in another place: the other end of a pair, or where a link was moved to.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LinkPeer {
    /// Index in its namespace.
    pub ifindex: u32,
    /// Its namespace, inode number.
    pub netns: Option<u32>,
    /// Its name.
    pub ifname: Option<String>,
}

impl Object for Link {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.interface(Role::Object, self.netns, self.ifindex, Some(&self.ifname));
        match &self.peer {
            Some(LinkPeer { ifindex, netns: Some(netns), ifname }) => {
                visitor.interface(Role::Peer, *netns, *ifindex, ifname.as_deref());
            }
            Some(LinkPeer { ifname: Some(ifname), .. }) => visitor.interface_name(Role::Peer, ifname),
            _ => {}
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let mut words = vec![format!("{} ({}) in netns {}", self.ifname, self.ifindex, self.netns)];
        words.extend(self.kind.clone());
        words.extend(self.peer.as_ref().map(|peer| {
            let name = peer.ifname.as_ref().map_or_else(String::new, |name| format!("{name} "));
            let netns = peer.netns.map_or_else(String::new, |netns| format!(" in netns {netns}"));
            format!("peer {name}({}){netns}", peer.ifindex)
        }));
        words.extend(match (&self.old_mac, &self.mac) {
            (Some(old), Some(mac)) => Some(format!("{old} → {mac}")),
            (_, mac) => mac.clone(),
        });
        words.extend(self.up.map(|up| if up { "up" } else { "down" }.to_owned()));
        details.line("link", &words.join(" · "));
    }
}
