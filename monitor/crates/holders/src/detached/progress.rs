//! How far a look for users of detached mounts came, and what it found until then: it goes on from there when its time ran out,
//! or when it met a process that hangs whoever reads it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kevtmon_observation::HolderReport;
use serde::{Deserialize, Serialize};

use crate::pins::Rest;

/// What is looked at of each process, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Part {
    Links,
    FirstFiles,
    Mappings,
}

impl Part {
    pub(super) fn next(self) -> Option<Self> {
        match self {
            Self::Links => Some(Self::FirstFiles),
            Self::FirstFiles => Some(Self::Mappings),
            Self::Mappings => None,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What was found of each mount; none before it begins.
    pub(super) found: Vec<HolderReport>,
    /// Processes that have their turn, or had it.
    pub(super) listed: BTreeSet<u32>,
    /// Those of the last list, in the order in which they have it.
    pub(super) order: Vec<u32>,
    /// What is looked at of them; then only what is left of descriptors.
    pub(super) part: Option<Part>,
    /// Whose turn it is in that order.
    pub(super) next: usize,
    /// What is left of the descriptors: of a process, for one of the mounts or for all.
    pub(super) left: VecDeque<(u32, Option<usize>, Rest)>,
    /// Who may not be read and was counted.
    pub(super) unread: BTreeSet<u32>,
    /// Programs that are on one of the mounts, by process and place of that.
    pub(super) programs: BTreeMap<u32, BTreeMap<usize, String>>,
}
