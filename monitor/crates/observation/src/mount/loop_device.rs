//! Loop devices whose backing file is on a mount.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::NsInum;

/// A loop device, and what uses it in turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoopDevice {
    /// `/dev/loop3`.
    pub name: String,
    /// Where it is mounted in the mount namespace of the mount that it holds, as far as that was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<String>,
    /// Where it is mounted in other mount namespaces; looked for where it is not mounted in that one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<MountedElsewhere>,
    /// Block devices that are made of it: `dm-0`, `md1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

/// A mount in a mount namespace that a process is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MountedElsewhere {
    /// Its mount point, in that mount namespace.
    pub path: String,
    /// Inode number of the mount namespace.
    pub mntns: NsInum,
    /// A process that is in it, or a thread that is without its process.
    pub pid: u32,
    /// Its command name.
    pub comm: String,
}
