//! Unmounts that succeeded and had no room to wait until it is known which mount they took.

use super::{BusyId, BusyMounts};

impl BusyMounts {
    /// Keeps whether there was one of this mount, once there was.
    pub fn note_missed(&mut self, id: BusyId, missed: bool) {
        if let Some(busy) = self.mounts.get_mut(&id) {
            busy.missed |= missed;
        }
    }
}
