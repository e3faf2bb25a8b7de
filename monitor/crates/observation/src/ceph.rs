//! Servers of Ceph, as the client of the kernel knows them.

use serde::{Deserialize, Serialize};

/// A line of the kernel's log about a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CephServerLine {
    /// `osd3`, `mds0`, or `mon` for the monitors, any of which will do.
    pub server: String,
    /// Whether it responds again; else it does so no more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_back: bool,
}

/// Whether the kernel asks servers of Ceph for what is in a mount: a file system of theirs, or one on an image.
pub fn is_of_ceph(fstype: &str, source: &str) -> bool {
    fstype == "ceph" || source.starts_with("/dev/rbd")
}
