//! The kernel's tables of neighbor entries: one for IPv4 and one for IPv6, which all network namespaces share.

use serde::{Deserialize, Serialize};

use crate::{NsInum, TaskRef};

/// One of the tables, as `/proc/net/stat` and `net.FAMILY.neigh.default` show it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighborTable {
    pub ipv6: bool,
    /// Entries, permanent ones too, which do not count against the limits.
    pub entries: u64,
    /// From here on the kernel removes unused entries to make room (`gc_thresh2`).
    pub gc_thresh2: u64,
    /// No more than these are made (`gc_thresh3`).
    pub gc_thresh3: u64,
    /// Entries that were refused since the last look (`table_fulls`).
    pub refused: u64,
}

/// A process has made so many entries within a minute while their table was nearly full.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighborCreator {
    /// The process's network namespace, in which the entries are.
    pub netns: NsInum,
    /// As in `NeighborChange`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub netns_of_user: bool,
    pub ipv6: bool,
    /// Entries, those that were refused too.
    pub entries: u32,
    pub actor: TaskRef,
}
