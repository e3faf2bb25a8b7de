//! Addresses.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor};

/// An address of a network interface, for `address.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Address {
    /// The address.
    pub address: IpAddr,
    /// Length of its prefix in bits.
    pub prefix_len: u8,
    /// Interface index.
    pub ifindex: u32,
    /// Name of the interface.
    pub ifname: String,
    /// Network namespace, inode number.
    pub netns: u32,
}

impl Object for Address {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.neighbor_address(Role::Object, self.address);
        visitor.interface(Role::Object, self.netns, self.ifindex, Some(&self.ifname));
    }

    fn describe(&self, details: &mut dyn Details) {
        let Self { address, prefix_len, ifname, netns, .. } = self;
        details.line("address", &format!("{address}/{prefix_len} dev {ifname} in netns {netns}"));
    }
}
