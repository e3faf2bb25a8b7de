//! What is wanted of a scan: which processes it looks at, and when it has found enough.

use std::collections::BTreeSet;

use kevtmon_observation::{HolderReport, NsInum};
use kevtmon_sources::procfs::readers;

use super::Scan;
use crate::ScanRequest;
use crate::mntns_index::MntnsIndex;
use crate::progress::Stage;

/// Why nobody else is listed where those sufficed who see the mount.
pub(super) const NEAR_ALONE: &str = "processes in mount namespaces without the mount, and files in sockets and \
                                     io_urings, were not scanned: there are holders that see it";

/// Whether all holders are looked for, rather than the reason why it is busy, by a scan that has come so far.
pub(super) fn wants_all(request: &ScanRequest, stage: Stage, found: &HolderReport) -> bool {
    let is_left_out = || found.blind_spots.iter().any(|spot| spot.reason == NEAR_ALONE);
    request.on_demand && (!request.near_suffices || stage > Stage::NearFiles && !is_left_out())
}

impl Scan<'_> {
    pub(super) fn processes_of(&self, index: &MntnsIndex, which: impl Fn(NsInum) -> bool) -> BTreeSet<u32> {
        let namespaces = index.namespaces.iter().filter(|(ns, _)| which(**ns));
        let tgids = namespaces.flat_map(|(_, members)| members).map(|member| member.tgid);
        tgids.filter(|tgid| Some(*tgid) != self.own).collect()
    }

    /// All that there were, whether or not their namespaces are known.
    pub(super) fn listed_processes(&self, index: &MntnsIndex) -> BTreeSet<u32> {
        let not_looked_at = [self.own, self.asker()];
        index.listed.iter().copied().filter(|tgid| !not_looked_at.contains(&Some(*tgid))).collect()
    }

    /// Who asks on demand, and uses it for that alone: a program that ends with the answer. The daemon can hold a mount as anybody.
    pub(super) fn asker(&self) -> Option<u32> {
        readers::asker().filter(|_| self.on_demand)
    }

    /// Whether it is known why the mount is busy: then those are not looked for who use it from elsewhere.
    pub(super) fn is_explained(&self) -> bool {
        !self.wants_all && self.report.is_explained()
    }
}
