//! Sysctls of the network.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object};

/// A sysctl, for `sysctl.changed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sysctl {
    /// As sysctl(8) has it, for example `net.ipv4.ip_forward`. A dot in the name of an interface is a slash.
    pub name: String,
    /// The value before.
    pub old: String,
    /// The value that was written.
    pub new: String,
    /// Network namespace, inode number.
    pub netns: u32,
}

impl Object for Sysctl {
    fn describe(&self, details: &mut dyn Details) {
        let Self { name, old, new, netns } = self;
        details.line("sysctl", &format!("{name} = {new} (before: {old}) in netns {netns}"));
    }
}
