//! Unmounts: which mount each one meant, and in which order their events leave.
//!
//! A refused one (EBUSY) is emitted at attempts 1, 2, 4, 8 … of each caller, with the holders of the mount. One that
//! succeeds ends a busy mount only if that very mount is gone afterwards: what was unmounted may have been a cover that
//! was mounted on top of it. What waits for such an answer holds back the later events of its mount.
//!
//! A name that cannot be removed or renamed because something is mounted there is an attempt on that mount as well. A refused
//! mount(2) or fsconfig(2) is about a device instead (`refused_mount.rs`).
//!
//! Anybody who has mounts of his own can call any number of them by any number of names, from any number of processes.
//! What that costs is bounded per account: unmounts that wait, scans, and events of mounts that no scan has found.

use std::collections::BTreeMap;

use allowance::Allowances;
use kevtmon_observation::{BootNs, MountIdentity, Request, Source, TaskFacts, UmountAttempt, Verdict};
use kevtmon_types::clock::MS;
pub use names::Benign;
use queue::UmountQueue;
use repeat::{Repeat, Scan};
use serde::{Deserialize, Serialize};

use super::Core;
use crate::diagnose::ModelChange;
use crate::node::mounts::{Account, BusyId, Caller, MountKey};

mod allowance;
mod answers;
mod caller;
mod counted;
mod detached;
mod events;
mod expiry;
mod late;
mod lookup;
mod names;
mod outlived;
mod queue;
mod recheck;
mod refused_mount;
mod repeat;
mod whose;

const EBUSY: u16 = 16;
/// At most one scan of a mount in this time: a runtime retries 50 times in 5 s.
const SCAN_INTERVAL_NS: u64 = 10_000_000_000;
/// An event is held back this long for one answer; a scan has a shorter time budget of its own.
const ANSWER_TIMEOUT_NS: u64 = 5_000_000_000;
/// The same for whether an unmount has ended a busy mount, which nothing else would tell: on a machine that has much else
/// to do the answer comes late, but it comes.
const END_TIMEOUT_NS: u64 = 30_000_000_000;
/// How long it is waited for the records of other unmounts that may have taken the mount, once it is seen to be gone. They
/// wait in turn for what is read of the ancestors of their callers.
pub(super) const SETTLE_NS: u64 = 500_000_000;
/// A mount is gone from the table of mounts some milliseconds before the call that takes it returns.
const RETURN_NS: u64 = 100_000_000;
/// How long the holders found by a scan are kept, for when the mount is detached.
const SCAN_RETENTION_NS: u64 = 15 * 60 * 1_000_000_000;
/// Holders that are kept of a scan that is too old to be repeated.
const OLD_HOLDERS_MAX: usize = 8;
/// Scans under way for one account that is not the host's, so that it delays nobody's.
const SCANS_MAX: usize = 2;
const EXPIRY_INTERVAL_NS: u64 = 1_000_000_000;
/// Marks the ids of requests other than for holders.
const QUESTION: u64 = 1 << 48;
/// Marks the ids of requests whether a path leads to a mount.
const CHECK: u64 = 1 << 49;
/// Busy mounts that a path through a link may mean.
const SIMILAR_MAX: usize = 8;

/// Holder scans of busy mounts: their results, and the unmounts whose events await an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HolderScans {
    /// The newest scan of each mount that found something, else the newest.
    newest: BTreeMap<BusyId, Scan>,
    /// Scans after that which found nothing: what was known before stays.
    failed: BTreeMap<BusyId, Scan>,
    /// Scans that are not done, by the id of their request.
    unfinished: BTreeMap<u64, late::Unfinished>,
    queue: UmountQueue,
    /// Mounts that are looked at again, since nobody was found.
    rechecks: recheck::Rechecks,
    /// Mounts that were detached, and were not busy before.
    detached: detached::Detached,
    /// Time of the newest observation of unmounts; an unmount may wait long for its turn.
    now: BootNs,
    last_scan: u64,
    last_question: u64,
    last_check: u64,
    /// Looks on behalf of refused attempts that are only counted.
    counted: counted::Looks,
    refused_mounts: refused_mount::RefusedMounts,
    /// Busy mounts of which it is looked up whether they are still there, by the id of the request.
    lookups: BTreeMap<u64, BusyId>,
    /// When that is due again.
    next_lookup: Option<BootNs>,
    /// Busy mounts that may have gone with a path that may be theirs: when that was looked up last, and whether it is to
    /// be looked up again.
    suspected: BTreeMap<BusyId, (BootNs, bool)>,
    allowances: Allowances,
    next_expiry: BootNs,
    /// Refused attempts that had no event of their own.
    ignored: u64,
    /// Unmounts of busy mounts that succeeded and had no room to wait.
    missed: u64,
    /// Refused attempts on names, where no mount is the reason.
    benign: Benign,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct QueuedUmount {
    at: BootNs,
    #[serde(default, skip_serializing_if = "Source::is_daemon")]
    source: Source,
    /// The busy mount that it means, as far as is known.
    mount: BusyId,
    key: MountKey,
    caller: Caller,
    account: Account,
    attempt: UmountAttempt,
    task: Option<Box<TaskFacts>>,
    /// It is one of several that succeeded before the mount was looked up, any of which may have taken it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_one_of_several: bool,
    /// The last of them, where this one detaches and that one does not: who still uses the mount was not there for that one
    /// to take.
    unless_held: Option<Box<QueuedUmount>>,
    /// When the first unmount of its path after it succeeded. What the path leads to from then on may be another mount.
    outlived: Option<BootNs>,
    /// Why it is only likely the mount that it meant.
    doubt: Option<String>,
    /// Those who had been found to hold the mount have let go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    let_go: bool,
    awaits: Option<Awaited>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Awaited {
    id: u64,
    deadline: BootNs,
    answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Holders,
    Presence,
    /// Which other unmounts have succeeded by the time at which the mount was seen to be gone.
    Others,
    /// What is mounted at the path, since the mount itself is not known.
    Path,
    StillHeld,
    /// Whether the path leads to the mount whose holders were found before.
    SameMount,
    /// Which of those holders still are.
    SameHolders,
}

impl QueuedUmount {
    fn is_refused(&self) -> bool {
        self.attempt.errno.is_some()
    }

    fn is_lazy(&self) -> bool {
        self.attempt.is_lazy()
    }

    fn text_bytes(&self) -> usize {
        let task = self.task.as_ref().map_or(0, |task| task.text_bytes());
        let other = self.unless_held.as_ref().map_or(0, |other| other.text_bytes());
        self.attempt.text_bytes() + self.key.path.capacity() + task + other
    }

    /// Whether the kernel says that it meant another mount than this one, such as a cover.
    fn took_another(&self, identity: &MountIdentity) -> bool {
        let meant = self.attempt.origin.as_ref().and_then(|origin| origin.target?.unique);
        meant.zip(identity.unique).is_some_and(|(meant, unique)| meant != unique)
    }
}

impl HolderScans {
    pub(super) fn deadline(&self) -> Option<BootNs> {
        let others = self.next_lookup.into_iter().chain(self.next_suspicion()).chain(self.rechecks.due());
        self.queue
            .deadline()
            .into_iter()
            .chain(others)
            .chain(self.detached.due())
            .chain(self.counted.due())
            .chain(self.refused_mounts.due())
            .min()
    }

    fn last(&self, mount: BusyId) -> Option<&Scan> {
        self.failed.get(&mount).or_else(|| self.newest.get(&mount))
    }

    fn last_mut(&mut self, mount: BusyId) -> Option<&mut Scan> {
        self.failed.get_mut(&mount).or_else(|| self.newest.get_mut(&mount))
    }

    /// Keeps what a scan found, unless it found nothing and an earlier one did.
    fn remember(&mut self, mount: BusyId, scan: Scan) {
        let knows = |known: &Scan| !known.report.holders.is_empty();
        if scan.report.holders.iter().all(|holder| holder.possible)
            && matches!(scan.report.verdict, Verdict::Skipped | Verdict::Incomplete | Verdict::NotAMount)
            && self.newest.get(&mount).is_some_and(knows)
        {
            self.failed.insert(mount, scan);
        } else {
            self.failed.remove(&mount);
            self.newest.insert(mount, scan);
        }
    }

    fn forget(&mut self, mount: BusyId) -> Option<Scan> {
        self.failed.remove(&mount);
        self.rechecks.forget(mount);
        self.ignored += u64::from(self.counted.forget(mount));
        self.newest.remove(&mount)
    }

    fn pass(&mut self, now: BootNs) {
        self.now = self.now.max(now);
    }

    fn question_id(&mut self) -> u64 {
        self.last_question += 1;
        QUESTION | self.last_question
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }
}

impl Core {
    /// Refused unmounts that had no event of their own, because the ones before and after say it all.
    pub fn umounts_ignored(&self) -> u64 {
        self.holder_scans.ignored
    }

    pub(super) fn umount(&mut self, at: BootNs, attempt: UmountAttempt) {
        if !matches!(attempt.errno, None | Some(EBUSY)) {
            return;
        }
        self.holder_scans.pass(at);
        if attempt.syscall.is_mount() {
            return self.mount_refused(at, attempt);
        }
        if attempt.is_nameless() {
            self.holder_scans.benign.nameless += 1;
            return;
        }
        let key = MountKey::new(attempt.mntns, &attempt.place());
        let (caller, account) = (self.caller(&attempt), self.account(&attempt));
        let (source, task) = (self.source, self.tasks.copy(&attempt.actor));
        let (is_one_of_several, unless_held, let_go) = (false, None, false);
        let (outlived, doubt, awaits) = (None, None, None);
        self.submit(QueuedUmount {
            at,
            source,
            mount: 0,
            key,
            caller,
            account,
            attempt,
            task,
            is_one_of_several,
            unless_held,
            outlived,
            doubt,
            let_go,
            awaits,
        });
    }

    /// Goes on with a call or change that has waited: who told of it, and the details of who made it.
    pub(super) fn take_up(&mut self, source: Source, task: Option<&TaskFacts>) {
        self.source = source;
        if let Some(task) = task {
            self.tasks.restore(task);
        }
    }

    /// Finds the busy mount that an unmount means, and processes it after those before it.
    fn submit(&mut self, umount: QueuedUmount) {
        if umount.is_refused() {
            let mount = self.busy_mounts.entry(&umount.key, umount.account.clone());
            self.busy_mounts.keep_given(mount, &umount.attempt);
            return self.process_in_turn(QueuedUmount { mount, ..umount });
        }
        if let Some(mount) = self.busy_mounts.at(&umount.key) {
            self.holder_scans.note_end(umount.at, mount);
            return self.process_in_turn(QueuedUmount { mount, ..umount });
        }
        // The path may be another one of a busy mount, through a link.
        let similar: Vec<BusyId> = self.busy_mounts.similar(&umount.key).take(SIMILAR_MAX).collect();
        if similar.is_empty() {
            return self.emit_never_refused(&umount);
        }
        for mount in similar {
            self.suspect_gone(umount.at, mount);
        }
    }

    fn process_in_turn(&mut self, umount: QueuedUmount) {
        if !self.holder_scans.queue.has(umount.mount) {
            if let Some(waiting) = self.process(umount) {
                self.holder_scans.queue.push(waiting);
            }
        } else if self.holder_scans.queue.has_room(&umount) {
            self.holder_scans.queue.push(umount);
        } else if umount.is_refused() {
            self.busy_mounts.refused(umount.at, umount.mount, umount.caller);
            self.holder_scans.ignored += 1;
        } else {
            self.miss_end(umount.at, umount.mount);
        }
    }

    /// Processes an unmount whose turn it is; returns it if it awaits an answer.
    fn process(&mut self, mut umount: QueuedUmount) -> Option<QueuedUmount> {
        self.take_up(umount.source, umount.task.as_deref());
        if !umount.is_refused() {
            return self.succeeded(umount);
        }
        if self.busy_mounts.get(umount.mount).is_none() {
            umount.mount = self.busy_mounts.entry(&umount.key, umount.account.clone());
        }
        self.refused(umount)
    }

    fn refused(&mut self, umount: QueuedUmount) -> Option<QueuedUmount> {
        let QueuedUmount { at, mount, caller, .. } = umount;
        let attempts = self.busy_mounts.refused(at, mount, caller);
        let next = &mut self.holder_scans.next_lookup;
        *next = next.or(Some(at.saturating_add(lookup::INTERVAL_NS)));
        if !attempts.is_power_of_two() {
            self.diagnose_refused(at, mount);
            self.check_counted(umount);
            return None;
        }
        let scan = self.holder_scans.last(mount).cloned();
        let goes_on = self.holder_scans.is_going_on(mount);
        match scan.as_ref().map_or(Repeat::No, |scan| scan.repeat(&umount, goes_on)) {
            Repeat::Yes => {
                self.emit_busy(&umount, scan.as_ref(), None);
                None
            }
            _ if !self.may_scan(&umount) => {
                self.refused_unscanned(&umount);
                None
            }
            Repeat::IfHeld => self.look_again(umount),
            Repeat::IfStill(identity) => Some(self.check(umount, identity)),
            Repeat::No => Some(self.scan(umount)),
        }
    }

    /// An attempt that has no event of its own.
    fn count_only(&mut self, at: BootNs, mount: BusyId) {
        self.holder_scans.ignored += 1;
        self.diagnose_refused(at, mount);
    }

    fn diagnose_refused(&mut self, at: BootNs, mount: BusyId) {
        if let Some(busy) = self.busy_mounts.get(mount).cloned() {
            self.diagnose(at, &ModelChange::Refused(&busy));
        }
    }

    /// Where no scan tells the mount, all attempts of an account count together: there is no end to names.
    fn refused_unscanned(&mut self, umount: &QueuedUmount) {
        let is_known = self.busy_mounts.get(umount.mount).is_some_and(|busy| busy.identity.is_some());
        let unscanned = self.holder_scans.allowances.unscanned(umount.at, &umount.account);
        if umount.account.host || is_known || unscanned.is_power_of_two() {
            self.emit_busy(umount, None, None);
        } else {
            self.count_only(umount.at, umount.mount);
        }
    }

    fn scan(&mut self, umount: QueuedUmount) -> QueuedUmount {
        let awaits = self.awaited(umount.at, Answer::Holders);
        self.request_scan(awaits.id, &umount, false);
        QueuedUmount { awaits: Some(awaits), ..umount }
    }

    fn succeeded(&mut self, umount: QueuedUmount) -> Option<QueuedUmount> {
        let Some(busy) = self.busy_mounts.get(umount.mount) else {
            self.emit_never_refused(&umount);
            return None;
        };
        let (mntns, identity) = (busy.key.mntns, busy.identity.clone());
        if identity.as_ref().is_some_and(|identity| umount.took_another(identity)) {
            return None;
        }
        // Only where a recording does not tell which mount it is.
        let scan = self.holder_scans.newest.get(&umount.mount);
        if identity.is_none() && scan.is_some_and(|scan| scan.report.mount.is_some()) {
            self.end(&umount, None);
            return None;
        }
        let answer = if identity.is_some() { Answer::Presence } else { Answer::Path };
        let awaits = self.awaited(umount.at, answer);
        match identity {
            Some(identity) => {
                let tgid = umount.attempt.actor.key.tgid;
                let share = self.share(&umount);
                self.request(Request::MountPresence { id: awaits.id, mntns, tgid, identity, share });
            }
            None => self.request_scan(awaits.id, &umount, true),
        }
        Some(QueuedUmount { awaits: Some(awaits), ..umount })
    }

    fn awaited(&mut self, at: BootNs, answer: Answer) -> Awaited {
        let id = match answer {
            Answer::Holders => {
                self.holder_scans.last_scan += 1;
                self.holder_scans.last_scan
            }
            Answer::SameMount => {
                self.holder_scans.last_check += 1;
                CHECK | self.holder_scans.last_check
            }
            _ => self.holder_scans.question_id(),
        };
        let timeout = match answer {
            Answer::Presence | Answer::Path => END_TIMEOUT_NS,
            Answer::Others => SETTLE_NS,
            Answer::Holders | Answer::StillHeld | Answer::SameMount | Answer::SameHolders => {
                ANSWER_TIMEOUT_NS
            }
        };
        let deadline = at.max(self.holder_scans.now).saturating_add(timeout);
        Awaited { id, deadline, answer }
    }

    fn request_scan(&mut self, id: u64, umount: &QueuedUmount, mount_only: bool) {
        let attempt = &umount.attempt;
        let share = self.share(umount);
        self.request(Request::Holders {
            id,
            mntns: attempt.mntns,
            tgid: attempt.actor.key.tgid,
            path: attempt.path.clone(),
            origin: attempt.origin.clone(),
            follow: attempt.follows(),
            mount_only,
            share,
        });
    }

    fn may_scan(&mut self, umount: &QueuedUmount) -> bool {
        let HolderScans { queue, allowances, .. } = &mut self.holder_scans;
        let QueuedUmount { at, account, .. } = umount;
        account.host || queue.awaited_by(account) < SCANS_MAX && allowances.take_scan(*at, account)
    }

    /// Processes what waited for the first unmount of a mount.
    fn advance(&mut self, mount: BusyId) {
        while let Some(umount) = self.holder_scans.queue.pop_ready(mount) {
            if let Some(waiting) = self.process(umount) {
                let is_forgotten = waiting.mount != mount;
                self.holder_scans.queue.push_first(waiting);
                if is_forgotten {
                    self.submit_all_of(mount);
                }
                return;
            }
        }
    }

    /// Submits what waits for a mount that is gone: which one it means now is to be found again.
    fn submit_all_of(&mut self, mount: BusyId) {
        for umount in self.holder_scans.queue.take_all(mount) {
            self.submit(QueuedUmount { awaits: None, ..umount });
        }
    }
}
