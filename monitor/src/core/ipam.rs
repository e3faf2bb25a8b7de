//! Reservations of addresses: no events, but what an incident is found by.

use super::Core;
use crate::diagnose::ModelChange;
use crate::observation::{BootNs, IpamFiles};

impl Core {
    pub(super) fn ipam_files(&mut self, at: BootNs, files: IpamFiles) {
        self.ipam.apply(at, files);
        self.diagnose(at, &ModelChange::Ipam);
    }
}
