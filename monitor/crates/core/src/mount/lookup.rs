//! Whether busy mounts are still there: they may go by other ways than an unmount that is observed here, and while the
//! daemon does not run.

use kevtmon_event::{Event, Mount};
use kevtmon_observation::{BootNs, MountSyscall, Request};

use super::HolderScans;
use super::caller::share_of;
use crate::Core;
use crate::diagnose::ModelChange;
use crate::node::mounts::{Account, BusyId, BusyMount, MountKey, RefusedCalls};

/// Whether busy mounts are still there is looked up at this interval, for they may go by other ways than an unmount
/// that is observed here.
pub(super) const INTERVAL_NS: u64 = 60_000_000_000;
const AFTER_LOSS_NS: u64 = 1_000_000_000;
/// For this time after the last attempt.
const SPAN_NS: u64 = 30 * 60 * 1_000_000_000;
const LOOKUPS_MAX: usize = 64;
/// Holder scans requested at once, where a mount has no identity: as many as fit into the queue of the scanner.
const PATH_LOOKUPS_MAX: usize = 16;
/// At most one look in this time for one mount whose last name others have, too.
const SUSPICION_INTERVAL_NS: u64 = 250_000_000;

impl HolderScans {
    /// When a busy mount that may be gone is to be looked up again.
    pub(super) fn next_suspicion(&self) -> Option<BootNs> {
        let due = |(last, _): &(BootNs, bool)| last.saturating_add(SUSPICION_INTERVAL_NS);
        self.suspected.values().filter(|(_, again)| *again).map(due).min()
    }
}

impl Core {
    /// A busy mount is gone. Where an unmount of it waits, that one shows how.
    pub(super) fn vanished(&mut self, at: BootNs, mount: BusyId) {
        if self.holder_scans.queue.of(mount).any(|umount| !umount.is_refused()) {
            return;
        }
        if let Some(busy) = self.busy_mounts.remove(mount) {
            self.holder_scans.forget(mount);
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
    pub fn look_up_busy_mounts_soon(&mut self, at: BootNs) {
        let soon = at.saturating_add(AFTER_LOSS_NS);
        let next = &mut self.holder_scans.next_lookup;
        *next = next.map(|due| due.min(soon));
    }

    pub fn look_up_busy_mounts(&mut self, at: BootNs) {
        self.holder_scans.lookups.clear();
        let mut busy: Vec<(BusyId, BusyMount)> = self
            .busy_mounts
            .iter()
            .filter(|(_, busy)| at < busy.last.saturating_add(SPAN_NS))
            .map(|(id, busy)| (id, busy.clone()))
            .collect();
        self.holder_scans.next_lookup = (!busy.is_empty()).then(|| at.saturating_add(INTERVAL_NS));
        busy.sort_by_key(|(id, busy)| (!busy.account.host, *id));
        let mut paths = 0;
        for (mount, busy) in busy.into_iter().take(LOOKUPS_MAX) {
            if busy.identity.is_none() {
                paths += 1;
            }
            if busy.identity.is_some() || paths <= PATH_LOOKUPS_MAX {
                self.look_up(mount);
            }
        }
    }

    fn look_up(&mut self, mount: BusyId) {
        let Some(busy) = self.busy_mounts.get(mount) else { return };
        let (mntns, path, identity) = (busy.key.mntns, busy.key.path.clone(), busy.identity.clone());
        let share = share_of(&busy.account);
        let id = self.holder_scans.question_id();
        let request = match identity {
            Some(identity) => Request::MountPresence { id, mntns, tgid: 0, identity, share },
            None => {
                let (path, origin) = match &busy.given {
                    Some(given) => (given.path.clone(), Some(given.origin.clone())),
                    // A path that is not known from where.
                    None if !path.starts_with('/') => return,
                    None => (path, None),
                };
                // It led to a mount once, so a link at its end was followed.
                let (follow, mount_only) = (true, true);
                Request::Holders { id, mntns, tgid: 0, path, origin, follow, mount_only, share }
            }
        };
        self.holder_scans.lookups.insert(id, mount);
        self.request(request);
    }

    /// A path was unmounted that may be another one of a busy mount, through a link. One look answers for all of them
    /// that come meanwhile; nobody is credited for it.
    pub(super) fn suspect_gone(&mut self, at: BootNs, mount: BusyId) {
        if let Some((last, again)) = self.holder_scans.suspected.get_mut(&mount)
            && at < last.saturating_add(SUSPICION_INTERVAL_NS)
        {
            *again = true;
            return;
        }
        // Where one waits for the answer to this question already, another one follows only if that says it is there.
        let is_asked = self.holder_scans.queue.of(mount).any(|umount| !umount.is_refused());
        self.holder_scans.suspected.insert(mount, (at, is_asked));
        if !is_asked {
            self.look_up(mount);
        }
    }

    /// An unmount of a busy mount succeeded, and there is no room for it to wait. Whether the mount is still there is looked up
    /// without it; whoever is named for its end need not be the one who took it.
    pub(super) fn miss_end(&mut self, at: BootNs, mount: BusyId) {
        self.holder_scans.missed += 1;
        self.busy_mounts.note_missed(mount, true);
        self.suspect_gone(at, mount);
    }

    /// Unmounts of busy mounts that succeeded, of which nobody is told since too many waited.
    pub fn umounts_missed(&self) -> u64 {
        self.holder_scans.missed
    }

    pub(super) fn look_up_suspected(&mut self, now: BootNs) {
        let is_over = |last: BootNs| last.saturating_add(SUSPICION_INTERVAL_NS) <= now;
        let over = self.holder_scans.suspected.extract_if(.., |_, (last, _)| is_over(*last));
        let again: Vec<BusyId> = over.filter(|(_, (_, again))| *again).map(|(mount, _)| mount).collect();
        for mount in again {
            self.suspect_gone(now, mount);
        }
    }

    /// A busy mount of which an earlier run of the daemon has told.
    pub fn resume_busy_mounts(&mut self, events: &[Event]) {
        for event in events {
            let (Some(mount), Some(incident)) = (&event.mount, &event.incident) else { continue };
            // What was found by its state alone was not refused.
            let is_refused = !mount.syscall.is_empty();
            if !is_refused || event.boot_id != self.settings.boot_id || incident.closed.is_some() {
                continue;
            }
            let key = MountKey::new(mount.mntns, &mount.path);
            let last = self.clock().boot_ns(&incident.last_seen).unwrap_or(event.at);
            let account = Account { host: self.kubelets.mounts_in(mount.mntns), name: String::new() };
            let told = (told_calls(mount, incident.count), last);
            self.busy_mounts.resume(key.clone(), mount.identity.clone(), account, told);
            if let Some(id) = self.busy_mounts.at(&key) {
                self.busy_mounts.set_likely(id, mount.confidence.is_some());
            }
        }
    }
}

/// What was refused on a mount, as an incident of an earlier run has told: of what is not told apart there, all by the system call
/// of its event.
fn told_calls(mount: &Mount, attempts: u64) -> RefusedCalls {
    let mut calls = RefusedCalls::default();
    for told in &mount.refused {
        if let Ok(syscall) = told.syscall.parse() {
            calls.add(syscall, told.attempts);
        }
    }
    let rest = attempts.saturating_sub(calls.total());
    calls.add(mount.syscall.parse().unwrap_or(MountSyscall::Umount2), rest);
    calls
}
