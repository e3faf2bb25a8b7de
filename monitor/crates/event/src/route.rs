//! Routes.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor};

/// A route, for `route.*`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// `default`, or a prefix.
    pub destination: String,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface.
    pub ifindex: Option<u32>,
    /// Network namespace, inode number.
    pub netns: u32,
}

impl Object for Route {
    fn visit(&self, visitor: &mut dyn Visitor) {
        if let Some(gateway) = self.gateway {
            visitor.neighbor_address(Role::Object, gateway);
        }
        if let Some(ifindex) = self.ifindex {
            visitor.interface(Role::Object, self.netns, ifindex, None);
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let via = self.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        let dev = self.ifindex.map_or_else(String::new, |ifindex| format!(" dev {ifindex}"));
        details.line("route", &format!("{}{via}{dev} in netns {}", self.destination, self.netns));
    }
}
