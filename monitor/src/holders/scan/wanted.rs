//! What is wanted of a scan: which processes it looks at, and when it has found enough.

use std::collections::BTreeSet;

use super::Scan;
use crate::holders::ScanRequest;
use crate::holders::halves::Half;
use crate::holders::mntns_index::MntnsIndex;
use crate::holders::progress::Stage;
use crate::observation::{HolderReport, NsInum};

/// Why nobody else is listed where those sufficed who see the mount.
pub(super) const NEAR_ALONE: &str = "processes in mount namespaces that do not see it, and files that sockets and rings \
                                     keep, were not looked at, since there are holders that see it";

/// Whether all holders are looked for, rather than the reason why it is busy, by a scan that has come so far.
pub(super) fn wants_all(request: &ScanRequest, stage: Stage, found: &HolderReport) -> bool {
    let is_left_out = || found.blind_spots.iter().any(|spot| spot.reason == NEAR_ALONE);
    request.on_demand && (!request.near_suffices || stage > Stage::NearFiles && !is_left_out())
}

impl Scan<'_> {
    pub(super) fn processes_of(&self, index: &MntnsIndex, which: impl Fn(NsInum) -> bool) -> BTreeSet<u32> {
        let namespaces = index.namespaces.iter().filter(|(ns, _)| which(**ns));
        let tgids = namespaces.flat_map(|(_, members)| members).map(|member| member.tgid);
        tgids.filter(|tgid| Some(*tgid) != self.own && self.progress.is_about(*tgid)).collect()
    }

    /// Whether this scan tells what is found once, whichever processes it looks at.
    pub(super) fn tells_common(&self) -> bool {
        self.progress.half.is_none_or(Half::is_first)
    }

    /// Whether it is known why the mount is busy: then those are not looked for who use it from elsewhere.
    pub(super) fn is_explained(&self) -> bool {
        !self.wants_all && self.report.is_explained()
    }
}
