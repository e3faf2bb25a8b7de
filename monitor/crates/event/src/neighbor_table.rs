//! The kernel's table of neighbor entries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object};

/// The table of neighbor entries of one family, which all network namespaces of the node share, for incidents of kind
/// `neighbor-table-full`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeighborTable {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Entries, permanent ones too, which do not count against the limit.
    pub entries: u64,
    /// `gc_thresh3`.
    pub limit: u64,
    /// Entries that the kernel has refused since the incident began.
    pub refused: u64,
    /// The namespaces with the most entries, permanent ones left out, the largest first.
    pub namespaces: Vec<NeighborCount>,
}

/// How many entries of a table a network namespace has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeighborCount {
    /// Network namespace, inode number.
    pub netns: u32,
    /// Whose it is, in words.
    pub owner: String,
    /// Entries at the last reading.
    pub entries: u64,
}

impl Object for NeighborTable {
    fn describe(&self, details: &mut dyn Details) {
        let Self { family, entries, limit, refused, namespaces } = self;
        details.line("table", &format!("{family} · {entries} entries, limit {limit} · {refused} refused"));
        for NeighborCount { owner, entries, .. } in namespaces {
            details.line("of them", &format!("{entries} of {owner}"));
        }
    }
}
