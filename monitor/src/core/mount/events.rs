//! The events of unmounts.

use super::late::Earlier;
use super::{EBUSY, MS, QueuedUmount, Scan};
use crate::core::Core;
use crate::core::held::unreadable;
use crate::escape::name;
use crate::event::wording::{
    actor_phrase, copies_phrase, holders_phrase, mount_point_phrase, owner_phrase, users,
};
use crate::event::{Actor, Confidence, Event, Kind, Mount, MountHolder, Severity, Target, Volume};
use crate::node::mounts::BusyMount;
use crate::observation::{HolderReport, MountIdentity, MountSyscall, UmountAttempt, Verdict};

/// `MNT_*` and `UMOUNT_*` of include/linux/fs.h.
const UMOUNT_FLAGS: &[(u32, &str)] =
    &[(1, "MNT_FORCE"), (2, "MNT_DETACH"), (4, "MNT_EXPIRE"), (8, "UMOUNT_NOFOLLOW")];
/// Of unlinkat(2), include/uapi/linux/fcntl.h.
const UNLINK_FLAGS: &[(u32, &str)] = &[(0x200, "AT_REMOVEDIR")];
/// Of renameat2(2), include/uapi/linux/fs.h.
const RENAME_FLAGS: &[(u32, &str)] =
    &[(1, "RENAME_NOREPLACE"), (2, "RENAME_EXCHANGE"), (4, "RENAME_WHITEOUT")];
/// Of a refused removal.
const NO_MOUNT_POINT: &str = "nothing was mounted there when that was looked for, so the reason is not known";

/// What is known of the mount of an event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known<'a> {
    report: Option<&'a HolderReport>,
    identity: Option<&'a MountIdentity>,
    attempts: Option<u64>,
    /// Whether that is only likely the mount that was meant.
    is_likely: bool,
}

impl Core {
    /// A refused unmount, and the scan that tells its mount and holders; `earlier`: the event that it completes. Returns
    /// its number, if it has one.
    pub(super) fn emit_busy(
        &mut self,
        umount: &QueuedUmount,
        scan: Option<&Scan>,
        earlier: Option<Earlier>,
    ) -> Option<u64> {
        let QueuedUmount { at, attempt, .. } = umount;
        // What was found after it was looked for on its behalf.
        let age = scan.filter(|scan| scan.at < *at).map(|scan| (at - scan.at) / MS);
        let mut report = scan.map(|scan| scan.report.clone());
        let call = earlier.map_or(*at, |earlier| earlier.call);
        let is_umount = attempt.syscall.is_umount();
        // Who uses what is mounted there refuses no removal, whenever it was started.
        let is_gone = report.as_mut().is_some_and(|report| is_umount && report.put_younger_last(call));
        if let Some(report) = report.as_mut().filter(|_| !is_umount) {
            report.explain_removal();
        }
        let busy = self.busy_mounts.get(umount.mount);
        // What was found there earlier may not be what this path led to. Older recordings do not ask.
        let is_found = report.as_ref().is_some_and(|report| report.mount.is_some());
        let identity = busy.filter(|_| is_found || attempt.origin.is_none());
        let identity = identity.and_then(|busy| busy.identity.clone());
        let known = Known {
            report: report.as_ref(),
            identity: identity.as_ref(),
            attempts: Some(earlier.map_or_else(
                || self.busy_mounts.attempts_of(umount.mount, umount.caller),
                |earlier| earlier.attempts,
            )),
            is_likely: report.as_ref().is_some_and(|report| report.mount_is_likely),
        };
        let mount = self.mount_object(umount, known);
        let (complete, verdict) = match &report {
            // EBUSY shows that it was a mount: that none is found now explains nothing.
            Some(HolderReport { verdict: Verdict::NotAMount, .. }) => (false, Verdict::NotAMount),
            Some(report) => (report.complete, report.verdict),
            None => (false, Verdict::Skipped),
        };
        let unreadable = unreadable(report.as_ref(), complete, verdict);
        let holders = report.map(|report| report.holders).unwrap_or_default();
        let holders: Vec<MountHolder> =
            holders.into_iter().map(|holder| self.mount_holder(umount.at, holder)).collect();
        let actor = self.unmounting_actor(attempt);
        let target = self.mount_target(&mount, &actor);
        let mut subject = mount_phrase(&mount.path, mount.volume.as_ref(), target.as_ref());
        if actor.confidence != Confidence::Certain || mount.confidence.is_some() {
            subject = format!("what is likely {subject}");
        }
        let server = mount.server_phrase();
        let by = actor_phrase(&actor);
        // Set off by commas, if it has some itself.
        let comma = if by.contains(", ") { "," } else { "" };
        let is_by_now = is_gone || earlier.is_some_and(|earlier| earlier.by_now);
        let by_now = if is_by_now { "by now " } else { "" };
        let holders_phrase = match (is_umount, is_found) {
            (false, true) => mount_point_phrase(&mount, &holders),
            (false, false) if verdict == Verdict::NotAMount => NO_MOUNT_POINT.to_owned(),
            (false, false) => "whether something is mounted there was not found out".to_owned(),
            _ => holders_phrase(&holders, verdict),
        };
        let what = if is_umount { "umount" } else { attempt.syscall.name() };
        let later = if earlier.is_some() { " (found later)" } else { "" };
        let message =
            format!("{what} of {subject} by {by}{comma} refused: {by_now}{holders_phrase}{server}{later}");
        // Programs that replace a file which is mounted into their container are everyday life.
        let is_trouble = is_umount || is_found && umount.account.host;
        let severity = if is_trouble { Severity::Warning } else { Severity::Notice };
        let event = Event {
            actor: Some(Box::new(actor)),
            target: target.map(Box::new),
            mount: Some(Box::new(mount)),
            holders: Some(holders),
            holders_age_ms: age,
            holders_complete: Some(complete),
            holders_unreadable: unreadable,
            holders_verdict: Some(verdict),
            completes: earlier.map(|earlier| earlier.seq),
            ..self.event(*at, Kind::MountBusy, severity, message)
        };
        self.emit(event)
    }

    /// The unmount that ended a busy mount. `still_held`: who uses it on, where it was detached.
    pub(super) fn emit_ended(
        &mut self,
        umount: &QueuedUmount,
        busy: &BusyMount,
        report: Option<HolderReport>,
        still_held: Option<HolderReport>,
    ) {
        let attempts = busy.attempts();
        let known = Known {
            report: report.as_ref(),
            identity: busy.identity.as_ref(),
            attempts: (attempts > 0).then_some(attempts),
            is_likely: busy.is_likely,
        };
        let mount = self.mount_object(umount, known);
        let mut actor = self.unmounting_actor(&umount.attempt);
        let target = self.mount_target(&mount, &actor);
        let subject = mount_phrase(&mount.path, mount.volume.as_ref(), target.as_ref());
        let mut by = format!("by {}", actor_phrase(&actor));
        if umount.is_one_of_several {
            actor.confidence = Confidence::Likely;
            let which = if umount.unless_held.is_some() { "one" } else { "the last" };
            by = format!("likely {by}, {which} of several that unmounted something there");
        } else if actor.confidence != Confidence::Certain {
            by = format!("likely {by}");
        }
        // That it is gone is certain, but not that it was what had been busy.
        let likely = if busy.is_likely { "likely " } else { "" };
        let after = match attempts {
            0 => String::new(),
            1 => format!(", {likely}after one refused attempt"),
            attempts => format!(", {likely}after {attempts} refused attempts"),
        };
        let (kind, severity, mut message) = match umount.is_lazy() {
            true => (Kind::MountDetached, Severity::Notice, format!("{subject} detached {by}{after}")),
            false => (Kind::MountReleased, Severity::Info, format!("{subject} unmounted {by}{after}")),
        };
        let mut event = Event {
            actor: Some(Box::new(actor)),
            target: target.map(Box::new),
            mount: Some(Box::new(mount)),
            ..self.event(umount.at, kind, severity, String::new())
        };
        let has_copy = |report: &HolderReport| !report.holders.is_empty();
        if umount.is_lazy() || still_held.as_ref().is_some_and(has_copy) {
            let (complete, verdict) = match &still_held {
                Some(report) => (report.complete, report.verdict),
                None => (false, Verdict::Skipped),
            };
            event.holders_unreadable = unreadable(still_held.as_ref(), complete, verdict);
            let holders = still_held.map(|report| report.holders).unwrap_or_default();
            let holders: Vec<MountHolder> =
                holders.into_iter().map(|holder| self.mount_holder(umount.at, holder)).collect();
            message.push_str(&match (users(&holders).next(), copies_phrase(&holders)) {
                (Some(_), _) => format!(", and is still {}", holders_phrase(&holders, verdict)),
                (None, Some(copies)) => {
                    event.severity = Severity::Notice;
                    format!(", and its file system is still mounted in {copies}")
                }
                (None, None) => "; who uses it on is not known".to_owned(),
            });
            event.holders = Some(holders);
            event.holders_complete = Some(complete);
            event.holders_verdict = Some(verdict);
        } else if report.as_ref().is_some_and(HolderReport::has_found_nobody) {
            message.push_str("; nobody was found to hold it before, so whoever did had let go");
            event.holders = Some(Vec::new());
            event.holders_complete = Some(true);
            event.holders_verdict = Some(Verdict::Transient);
        }
        self.emit(Event { message, ..event });
    }

    /// An unmount of a pod volume's path that was not refused before. Which mount it took is not known: perhaps one that
    /// covered the volume.
    pub(super) fn emit_never_refused(&mut self, umount: &QueuedUmount) {
        let key = &umount.key;
        let Some(volume) = self.kubelets.volume(umount.at, key.mntns, &key.path) else {
            // What runtimes unmount for each container that ends is no news, unless somebody uses it on.
            if umount.is_lazy() && self.container_at(&umount.attempt, [key.path.as_str()]).is_some() {
                self.look_for_users(umount, None);
            }
            return;
        };
        let actor = self.unmounting_actor(&umount.attempt);
        let target = self.node().target_of_pod(&volume.pod_uid);
        let subject = mount_phrase(&umount.key.path, Some(&volume), Some(&target));
        let (kind, verb) = match umount.is_lazy() {
            true => (Kind::MountDetached, "detached"),
            false => (Kind::MountReleased, "unmounted"),
        };
        let likely = if actor.confidence == Confidence::Certain { "" } else { "likely " };
        let message =
            format!("{subject} {verb}, or what was mounted on it, {likely}by {}", actor_phrase(&actor));
        let event = Event {
            mount: Some(Box::new(self.mount_object(umount, Known::default()))),
            actor: Some(Box::new(actor)),
            target: Some(Box::new(target)),
            ..self.event(umount.at, kind, Severity::Debug, message)
        };
        let seq = self.emit(event);
        self.look_for_users(umount, seq);
    }

    /// Who called, and how certain it is that the call was about the mount to which its path leads. The path is read from
    /// the caller's memory before and after the kernel reads it; who shares that memory can show the kernel another one in
    /// between. Root of the node is not suspected of that.
    pub(super) fn unmounting_actor(&self, attempt: &UmountAttempt) -> Actor {
        let mut actor = self.actor(&attempt.actor, false);
        if actor.userns.is_some() || actor.uid.is_some_and(|uid| uid != 0) {
            actor.confidence = Confidence::Likely;
        }
        actor
    }

    pub(super) fn mount_object(&self, umount: &QueuedUmount, known: Known<'_>) -> Mount {
        let QueuedUmount { key, attempt, .. } = umount;
        let Known { report, identity, attempts, is_likely } = known;
        let facts = report.and_then(|report| report.mount.as_ref());
        let path = match (identity, report) {
            // What is on the name may be mounted at another path to the same directory.
            (_, Some(report)) if !attempt.syscall.is_umount() && is_resolved(report) => &report.path,
            (Some(identity), _) => &identity.mount_point,
            (None, Some(report)) if is_resolved(report) || attempt.origin.is_none() => &report.path,
            // As it was given, below the caller's root directory.
            _ => &key.path,
        };
        Mount {
            syscall: attempt.syscall.name().into(),
            path: path.clone(),
            errno: (attempt.errno == Some(EBUSY)).then(|| "EBUSY".to_owned()),
            flags: flags(attempt),
            fstype: facts.map(|facts| facts.fstype.clone()),
            source: facts.map(|facts| facts.source.clone()),
            device: facts.map(|facts| facts.device.clone()),
            mntns: key.mntns,
            identity: identity.cloned(),
            confidence: is_likely.then_some(Confidence::Likely),
            attempts,
            volume: self.kubelets.volume(umount.at, key.mntns, path),
            container_id: self.container_at(attempt, [path.as_str(), &key.path]),
            // What is unmounted has none any more.
            child_mounts: match attempt.errno.is_some() || umount.is_lazy() {
                true => report.map_or_else(Vec::new, |report| report.child_mounts.clone()),
                false => Vec::new(),
            },
            unserved: report.is_some_and(|report| report.unserved) && attempt.errno.is_some(),
            servers: match attempt.errno {
                Some(_) => self.mount_servers(report.map_or(&[][..], |report| &report.servers)),
                None => Vec::new(),
            },
        }
    }
}

/// Whether the path of a report is the one that was meant, else it is the one that was given.
fn is_resolved(report: &HolderReport) -> bool {
    report.mount.is_some() || report.verdict == Verdict::NotAMount
}

fn flags(attempt: &UmountAttempt) -> Vec<String> {
    let flags = match attempt.syscall {
        MountSyscall::Umount2 => UMOUNT_FLAGS,
        MountSyscall::Unlinkat => UNLINK_FLAGS,
        _ => RENAME_FLAGS,
    };
    let set = flags.iter().filter(|(bit, _)| attempt.flags & bit != 0);
    set.map(|(_, name)| (*name).to_owned()).collect()
}

/// A pod volume by its name, any other mount by its path.
pub(super) fn mount_phrase(path: &str, volume: Option<&Volume>, target: Option<&Target>) -> String {
    match (volume, target) {
        (Some(volume), Some(target)) => format!("volume {}{}", name(&volume.name), owner_phrase(target)),
        // In a namespace of somebody else, where any path may be made.
        (None, Some(target)) => format!("{}{}", name(path), owner_phrase(target)),
        (_, None) => name(path).into_owned(),
    }
}
