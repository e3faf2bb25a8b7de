//! The events of unmounts.

use kevtmon_event::wording::{
    actor_phrase, actor_subject, copies_phrase, holders_phrase, mount_point_phrase, owner_phrase, users,
};
use kevtmon_event::{
    Actor, Confidence, Event, Kind, Mount, MountHolder, RefusedCall, Severity, Shared, StagedVolume, Target,
    refused_phrase,
};
use kevtmon_observation::{
    HolderReport, MountIdentity, MountSyscall, PathUncertainty, UmountAttempt, Verdict,
};
use kevtmon_types::escape::name;

use super::late::Earlier;
use super::{EBUSY, MS, QueuedUmount, Scan};
use crate::Core;
use crate::held::unreadable;
use crate::node::mounts::{BusyMount, RefusedCalls};

/// `MNT_*` and `UMOUNT_*` of include/linux/fs.h.
const UMOUNT_FLAGS: &[(u32, &str)] =
    &[(1, "MNT_FORCE"), (2, "MNT_DETACH"), (4, "MNT_EXPIRE"), (8, "UMOUNT_NOFOLLOW")];
/// Of unlinkat(2), include/uapi/linux/fcntl.h.
const UNLINK_FLAGS: &[(u32, &str)] = &[(0x200, "AT_REMOVEDIR")];
/// Of renameat2(2), include/uapi/linux/fs.h.
const RENAME_FLAGS: &[(u32, &str)] =
    &[(1, "RENAME_NOREPLACE"), (2, "RENAME_EXCHANGE"), (4, "RENAME_WHITEOUT")];
/// Of mount(2) those that make another call of it, include/uapi/linux/mount.h.
const MOUNT_FLAGS: &[(u32, &str)] =
    &[(MS_RDONLY, "MS_RDONLY"), (MS_REMOUNT, "MS_REMOUNT"), (0x1000, "MS_BIND"), (0x2000, "MS_MOVE")];
/// Of fsconfig(2): read-only, and the command `FSCONFIG_CMD_CREATE_EXCL` of the same file.
const FSCONFIG_FLAGS: &[(u32, &str)] = &[(MS_RDONLY, "MS_RDONLY"), (8, "FSCONFIG_CMD_CREATE_EXCL")];
pub(super) const MS_RDONLY: u32 = 1;
pub(super) const MS_REMOUNT: u32 = 0x20;
/// Of a refused removal.
const NO_MOUNT_POINT: &str = "nothing was mounted there at the time of the scan; the reason is unknown";

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known<'a> {
    report: Option<&'a HolderReport>,
    identity: Option<&'a MountIdentity>,
    attempts: Option<u64>,
    calls: Option<&'a RefusedCalls>,
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
        // What was found there earlier may not be what this path led to. Recordings without where the path starts from do not ask.
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
            calls: busy.map(|busy| &busy.calls),
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
        let mut subject = mount_phrase(&mount, target.as_ref());
        if actor.confidence != Confidence::Certain || mount.confidence.is_some() {
            subject = format!("what is likely {subject}");
        }
        let server = mount.server_phrase();
        let by = actor_subject(&actor);
        let by_now = if is_gone || earlier.is_some_and(|one| one.by_now) { "by now " } else { "" };
        let holders_phrase = match (is_umount, is_found) {
            (false, true) => mount_point_phrase(&mount, &holders),
            (false, false) if verdict == Verdict::NotAMount => NO_MOUNT_POINT.to_owned(),
            (false, false) => "it is unknown whether something is mounted there".to_owned(),
            _ => holders_phrase(&holders, verdict),
        };
        let what = if is_umount { "umount" } else { attempt.syscall.name() };
        let later = if earlier.is_some() { " (found later)" } else { "" };
        let message = format!("{what} of {subject} by {by} refused: {by_now}{holders_phrase}{server}{later}");
        // Programs that replace a file which is mounted into their container are everyday life, and so is who removes the file
        // of a network namespace before he unmounts it, but not again and again.
        let is_name_of_namespace =
            mount.fstype.as_deref() == Some("nsfs") && mount.attempts.is_none_or(|attempts| attempts <= 1);
        let is_trouble = is_umount || is_found && umount.account.host && !is_name_of_namespace;
        let severity = if is_trouble { Severity::Warning } else { Severity::Notice };
        let event = Event {
            actor: Some(Shared::new(actor)),
            target: target.map(Shared::new),
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
        let attempts = busy.total;
        let known = Known {
            report: report.as_ref(),
            identity: busy.identity.as_ref(),
            attempts: (attempts > 0).then_some(attempts),
            calls: Some(&busy.calls),
            is_likely: busy.is_likely,
        };
        let mount = self.mount_object(umount, known);
        let mut actor = self.unmounting_actor(&umount.attempt);
        let target = self.mount_target(&mount, &actor);
        let subject = mount_phrase(&mount, target.as_ref());
        let mut by = format!("by {}", actor_phrase(&actor));
        if umount.is_one_of_several || busy.missed {
            actor.confidence = Confidence::Likely;
            let is_any = umount.unless_held.is_some() || busy.missed;
            let which = if is_any { "one" } else { "the last" };
            by = format!("likely {by}, {which} of several that unmounted something there");
        } else if actor.confidence != Confidence::Certain {
            by = format!("likely {by}");
        }
        // That it is gone is certain, but not that it was what had been busy.
        let likely = if busy.is_likely { "likely " } else { "" };
        let after = match attempts {
            0 => String::new(),
            // Not all of them were unmounts.
            _ if !mount.refused.is_empty() => format!(", {likely}after {}", refused_phrase(&mount.refused)),
            1 => format!(", {likely}after one refused attempt"),
            attempts => format!(", {likely}after {attempts} refused attempts"),
        };
        let (kind, severity, mut message) = match umount.is_lazy() {
            true => (Kind::MountDetached, Severity::Notice, format!("{subject} detached {by}{after}")),
            false => (Kind::MountReleased, Severity::Info, format!("{subject} unmounted {by}{after}")),
        };
        let mut event = Event {
            actor: Some(Shared::new(actor)),
            target: target.map(Shared::new),
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
                (None, None) => "; its users are unknown".to_owned(),
            });
            event.holders = Some(holders);
            event.holders_complete = Some(complete);
            event.holders_verdict = Some(verdict);
        } else if report.as_ref().is_some_and(HolderReport::has_found_nobody) {
            message.push_str("; no holder was found before: its holder had released it");
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
        let mount = self.mount_object(umount, Known::default());
        let subject = mount_phrase(&mount, Some(&target));
        let (kind, verb) = match umount.is_lazy() {
            true => (Kind::MountDetached, "detached"),
            false => (Kind::MountReleased, "unmounted"),
        };
        let likely = if actor.confidence == Confidence::Certain { "" } else { "likely " };
        let message =
            format!("{subject} {verb}, or what was mounted on it, {likely}by {}", actor_phrase(&actor));
        let event = Event {
            mount: Some(Box::new(mount)),
            actor: Some(Shared::new(actor)),
            target: Some(Shared::new(target)),
            ..self.event(umount.at, kind, Severity::Debug, message)
        };
        let seq = self.emit(event);
        self.look_for_users(umount, seq);
    }

    /// Who called, and how certain it is that the call was about the mount to which its path leads. The path is read from
    /// the caller's memory before and after the kernel reads it; who shares that memory can show the kernel another one in
    /// between. Root of the node is not suspected of that, but root of a container is where that takes no rights on mounts. Neither does
    /// fsconfig(2) if another thread has made its context fail meanwhile. Of a call that was not seen to begin, something else than
    /// the kernel may have given the answer.
    pub(super) fn unmounting_actor(&self, attempt: &UmountAttempt) -> Actor {
        let mut actor = self.actor(&attempt.actor, false);
        let is_unproven =
            attempt.origin.as_ref().is_some_and(|origin| origin.doubt == Some(PathUncertainty::StartUnseen));
        let takes_rights = matches!(attempt.syscall, MountSyscall::Umount2 | MountSyscall::Mount);
        let may_be_of_container = || !self.kubelets.mounts_in(attempt.mntns) && !self.is_runtime(attempt);
        let is_suspected = !takes_rights && may_be_of_container();
        if is_unproven || is_suspected || actor.userns.is_some() || actor.uid.is_some_and(|uid| uid != 0) {
            actor.confidence = Confidence::Likely;
        }
        actor
    }

    pub(super) fn mount_object(&self, umount: &QueuedUmount, known: Known<'_>) -> Mount {
        let QueuedUmount { key, attempt, .. } = umount;
        let Known { report, identity, attempts, calls, is_likely } = known;
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
            block_device: None,
            mntns: key.mntns,
            identity: identity.cloned(),
            confidence: is_likely.then_some(Confidence::Likely),
            attempts,
            refused: calls.map_or_else(Vec::new, |calls| refused_others(attempt.syscall, calls)),
            volume: self.kubelets.volume(umount.at, key.mntns, path),
            staged: self.staged(umount, path, report),
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

impl Core {
    /// The volume that is staged at a path, with what its kubelet has written of it.
    fn staged(
        &self,
        umount: &QueuedUmount,
        path: &str,
        report: Option<&HolderReport>,
    ) -> Option<StagedVolume> {
        let staged = self.kubelets.staged(umount.at, umount.key.mntns, path)?;
        let data = report.filter(|report| report.path == path);
        Some(staged.with(data.and_then(|report| report.volume_data.as_deref())))
    }
}

/// Whether the path of a report is the one that was meant, else it is the one that was given.
fn is_resolved(report: &HolderReport) -> bool {
    report.mount.is_some() || report.verdict == Verdict::NotAMount
}

/// How often each system call was refused, unless it was this one alone.
fn refused_others(own: MountSyscall, calls: &RefusedCalls) -> Vec<RefusedCall> {
    if calls.iter().all(|(syscall, _)| syscall == own) {
        return Vec::new();
    }
    let told =
        |(syscall, attempts): (MountSyscall, u64)| RefusedCall { syscall: syscall.name().into(), attempts };
    calls.iter().map(told).collect()
}

pub(super) fn flags(attempt: &UmountAttempt) -> Vec<String> {
    let flags = match attempt.syscall {
        MountSyscall::Umount2 => UMOUNT_FLAGS,
        MountSyscall::Unlinkat => UNLINK_FLAGS,
        MountSyscall::Mount => MOUNT_FLAGS,
        MountSyscall::Fsconfig => FSCONFIG_FLAGS,
        _ => RENAME_FLAGS,
    };
    let set = flags.iter().filter(|(bit, _)| attempt.flags & bit != 0);
    set.map(|(_, name)| (*name).to_owned()).collect()
}

/// A pod volume by its name, any other mount by its path.
pub(super) fn mount_phrase(mount: &Mount, target: Option<&Target>) -> String {
    let path = name(&mount.path);
    match (&mount.volume, target, &mount.staged) {
        (Some(volume), Some(target), _) => format!("volume {}{}", name(&volume.name), owner_phrase(target)),
        // In a namespace of somebody else, where any path may be made.
        (None, Some(target), _) => format!("{path}{}", owner_phrase(target)),
        (_, None, Some(staged)) => format!("{} at {path}", staged.phrase()),
        (_, None, None) => path.into_owned(),
    }
}
