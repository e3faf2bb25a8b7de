//! Where the other ends of veth devices are, and whose the processes are that keep the namespaces there.

use kevtmon_observation::{BootNs, HolderReport, Verdict, VethPeer};

use super::Core;
use super::held::unreadable;
use crate::diagnose::{ModelChange, VethEnd};

impl Core {
    pub(super) fn veth_peers(&mut self, at: BootNs, found: Vec<VethPeer>) {
        let ends: Vec<VethEnd> = found.into_iter().map(|found| self.veth_end(at, found)).collect();
        self.diagnose(at, &ModelChange::VethPeers(&ends));
    }

    fn veth_end(&self, at: BootNs, found: VethPeer) -> VethEnd {
        let VethPeer { ifindex, present, netns, name, keepers, omitted, blind_spots } = found;
        let complete = blind_spots.is_empty() && omitted == 0;
        let report = HolderReport { blind_spots, ..HolderReport::skipped(0, String::new()) };
        VethEnd {
            ifindex,
            present,
            netns,
            name,
            keepers: keepers.into_iter().map(|keeper| self.mount_holder(at, keeper)).collect(),
            unreadable: unreadable(Some(&report), true, Verdict::Processes),
            complete,
        }
    }
}
