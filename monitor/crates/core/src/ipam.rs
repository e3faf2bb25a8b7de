//! Reservations of addresses: no events, but what an incident is found by.

use kevtmon_observation::{BootNs, IpamFiles};

use super::Core;
use crate::diagnose::ModelChange;

impl Core {
    pub(super) fn ipam_files(&mut self, at: BootNs, files: IpamFiles) {
        self.ipam.apply(at, files);
        self.diagnose(at, &ModelChange::Ipam);
    }
}
