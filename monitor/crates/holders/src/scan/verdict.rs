//! What a scan concludes from what it has found.

use kevtmon_observation::{MountPresence, Verdict};

use super::Scan;
use crate::{PresenceRequest, presence};

impl Scan<'_> {
    pub fn verdict(&mut self, is_done: bool, tgid: u32) -> Verdict {
        let mut certain = self.report.holders.iter().filter(|holder| holder.explains()).peekable();
        let is_held = certain.peek().is_some();
        if certain.any(|holder| !holder.access.is_kernel()) {
            return Verdict::Processes;
        }
        if !self.report.child_mounts.is_empty() {
            return Verdict::ChildMount;
        }
        if is_held {
            return Verdict::Kernel;
        }
        if !is_done {
            return Verdict::Incomplete;
        }
        let still = self.report.mount.as_ref().and_then(|mount| {
            let (id, mntns, identity) = (self.report.id, mount.mntns, mount.identity()?);
            let request = PresenceRequest { id, mntns, tgid, identity, at: None };
            Some(presence::presence(self.proc, &request, self.deadline))
        });
        match still {
            Some(MountPresence { present: Some(true), .. }) if self.report.complete => match self.on_demand {
                true => Verdict::None,
                false => Verdict::Kernel,
            },
            Some(MountPresence { present: Some(false), .. }) => Verdict::Transient,
            Some(MountPresence { reason: Some(reason), .. }) => {
                self.report.blind_spot(None, &reason);
                Verdict::Incomplete
            }
            _ => Verdict::Incomplete,
        }
    }
}
