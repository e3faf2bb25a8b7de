//! Whether busy mounts are still there: they may go by other ways than an unmount that is observed here, and while the
//! daemon does not run.

use crate::core::Core;
use crate::diagnose::ModelChange;
use crate::event::Event;
use crate::node::mounts::{Account, BusyId, BusyMount, MountKey};
use crate::observation::{BootNs, Request};

/// Whether busy mounts are still there is looked up at this interval, for they may go by other ways than an unmount
/// that is observed here.
pub(super) const INTERVAL_NS: u64 = 60_000_000_000;
const AFTER_LOSS_NS: u64 = 1_000_000_000;
/// For this time after the last attempt.
const SPAN_NS: u64 = 30 * 60 * 1_000_000_000;
/// At once.
const LOOKUPS_MAX: usize = 64;
/// Holder scans requested at once, where a mount has no identity: as many as fit into the queue of the scanner.
const PATH_LOOKUPS_MAX: usize = 16;

impl Core {
    /// A busy mount is gone. Where an unmount of it waits, that one shows how.
    pub(super) fn vanished(&mut self, at: BootNs, mount: BusyId) {
        if self.holder_scans.queue.iter().any(|umount| umount.mount == mount && !umount.is_refused()) {
            return;
        }
        if let Some(busy) = self.busy_mounts.remove(mount) {
            self.holder_scans.newest.remove(&mount);
            self.diagnose(at, &ModelChange::MountGone(&busy));
        }
        self.stop_lookups_of_none();
        self.advance(mount);
    }

    pub(super) fn stop_lookups_of_none(&mut self) {
        if self.busy_mounts.is_empty() {
            self.holder_scans.next_lookup = None;
        }
    }

    /// Records were lost, perhaps of an unmount.
    pub(in crate::core) fn look_up_busy_mounts_soon(&mut self, at: BootNs) {
        let soon = at.saturating_add(AFTER_LOSS_NS);
        let next = &mut self.holder_scans.next_lookup;
        *next = next.map(|due| due.min(soon));
    }

    /// Looks up which busy mounts are still there.
    pub(in crate::core) fn look_up_busy_mounts(&mut self, at: BootNs) {
        self.holder_scans.lookups.clear();
        let mut busy: Vec<(BusyId, BusyMount)> = self
            .busy_mounts
            .iter()
            .filter(|(_, busy)| at < busy.last().saturating_add(SPAN_NS))
            .map(|(id, busy)| (id, busy.clone()))
            .collect();
        self.holder_scans.next_lookup = (!busy.is_empty()).then(|| at.saturating_add(INTERVAL_NS));
        busy.sort_by_key(|(id, busy)| (!busy.account.host, *id));
        let mut paths = 0;
        for (mount, busy) in busy.into_iter().take(LOOKUPS_MAX) {
            let (id, mntns) = (self.holder_scans.question_id(), busy.key.mntns);
            let request = match busy.identity {
                Some(identity) => Request::MountPresence { id, mntns, tgid: 0, identity },
                // A path that is not known from where.
                None if paths >= PATH_LOOKUPS_MAX || !busy.key.path.starts_with('/') => continue,
                None => {
                    paths += 1;
                    // It led to a mount once, so a link at its end was followed.
                    Request::Holders { id, mntns, tgid: 0, path: busy.key.path, origin: None, follow: true }
                }
            };
            self.holder_scans.lookups.insert(id, mount);
            self.request(request);
        }
    }

    /// A busy mount of which an earlier run of the daemon has told.
    pub(in crate::core) fn resume_busy_mounts(&mut self, events: &[Event]) {
        for event in events {
            let (Some(mount), Some(incident)) = (&event.mount, &event.incident) else { continue };
            if event.boot_id != self.settings.boot_id || incident.closed.is_some() {
                continue;
            }
            let key = MountKey::new(mount.mntns, &mount.path);
            let last = self.clock().boot_ns(&incident.last_seen).unwrap_or(event.at);
            let account = Account { host: self.kubelets.mounts_in(mount.mntns), name: String::new() };
            let told = (incident.count, last);
            self.busy_mounts.resume(key, mount.identity.clone(), account, told);
        }
    }
}
