//! Mounts that were refused (EBUSY): something else has claimed the device, or uses it so that it cannot be mounted in this way.
//!
//! With fsconfig(2) the mount point is decided later: such an attempt has none.
//!
//! Attempts to mount the same at one mount point count together, and are reported as those of a busy mount are. What uses the device is
//! looked for where root of the node tried and what was to be mounted is a path: in a namespace of his own a user has any source
//! refused that he likes. Root of a container that is in the host's mount namespace has fewer looks.

use std::collections::VecDeque;

use kevtmon_event::wording::{actor_subject, copies_phrase};
use kevtmon_event::{Actor, Confidence, Event, Kind, Mount, MountHolder, Severity, Shared, Target};
use kevtmon_observation::{
    Access, BlockDevice, BootNs, DeviceUser, HolderReport, Request, SecondPath, Source, TaskFacts,
    UmountAttempt, Verdict, cgroup,
};
use kevtmon_types::escape::name;
use serde::{Deserialize, Serialize};

use super::events::{MS_RDONLY, MS_REMOUNT, flags, mount_phrase};
use super::{ANSWER_TIMEOUT_NS, HolderScans, SCAN_RETENTION_NS, SCANS_MAX};
use crate::Core;
use crate::held::unreadable;
use crate::node::mounts::MountKey;
use crate::pending::Pending;

/// Marks the ids of these requests.
pub(super) const REFUSED_MOUNT: u64 = 1 << 54;
/// Looks that are waited for at once.
const LOOKS_MAX: usize = 8;
/// Places of which attempts are counted.
const PLACES_MAX: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RefusedMounts {
    /// The latest attempt at the end.
    places: VecDeque<Place>,
    waiting: Pending<u64, RefusedMount>,
    last: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Place {
    key: MountKey,
    /// What was to be mounted there.
    source: String,
    is_remount: bool,
    /// Whether root of the node tried it, outside of containers: what others try is not to use up the attempts that have an event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_host: bool,
    attempts: u64,
    last: BootNs,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RefusedMount {
    at: BootNs,
    source: Source,
    key: MountKey,
    /// Whether root of the node tried it in the host's mount namespace.
    by_host: bool,
    attempts: u64,
    attempt: UmountAttempt,
    task: Option<Box<TaskFacts>>,
}

impl RefusedMounts {
    pub(super) fn due(&self) -> Option<BootNs> {
        self.waiting.deadline()
    }

    fn count(&mut self, at: BootNs, key: &MountKey, attempt: &UmountAttempt, by_host: bool) -> u64 {
        let source = attempt.second.as_ref().map(|second| second.path.clone()).unwrap_or_default();
        let is_remount = attempt.flags & MS_REMOUNT != 0;
        let is_it = |place: &Place| {
            (&place.key, &place.source) == (key, &source)
                && (place.is_remount, place.by_host) == (is_remount, by_host)
        };
        let known = self.places.iter().position(is_it);
        let known = known.and_then(|index| self.places.remove(index));
        let recent = known.filter(|place| at < place.last.saturating_add(SCAN_RETENTION_NS));
        let attempts = recent.map_or(1, |place| place.attempts + 1);
        let place = Place { key: key.clone(), source, is_remount, by_host, attempts, last: at };
        crate::bounded::push(&mut self.places, PLACES_MAX, place);
        attempts
    }
}

impl RefusedMount {
    fn is_remount(&self) -> bool {
        self.attempt.flags & MS_REMOUNT != 0
    }

    /// What was to be mounted, where that may be a block device, or is the upper directory of an overlay, and its users are looked for.
    fn device(&self) -> Option<&SecondPath> {
        let second = self.attempt.second.as_deref().filter(|_| self.by_host && !self.is_remount());
        second.filter(|second| second.path.starts_with('/'))
    }

    /// The end of the sentence where no use is known. `found`: the device, of a look, and whether that was complete.
    fn unknown_phrase(
        &self,
        found: Option<(Option<&BlockDevice>, bool)>,
        holders: &[MountHolder],
    ) -> &'static str {
        let is_open = |device: &BlockDevice| {
            let is_it = |holder: &&MountHolder| holder.source.as_deref() == Some(device.name.as_str());
            holders.iter().filter(is_it).any(|holder| holder.access == Access::Fd)
        };
        match found {
            _ if self.is_remount() && self.attempt.flags & MS_RDONLY != 0 => {
                ": files there are likely open for writing"
            }
            _ if self.is_remount() => ": the kernel does not say why",
            _ if !self.by_host => " (EBUSY)",
            _ if self.device().is_none() => ": the kernel does not say why",
            None => ": kevtmon did not look what uses it",
            Some((_, false)) => ": not everything could be read",
            Some((None, true)) => ": the kernel does not say why",
            Some((Some(device), true)) if is_open(device) => {
                ": the kernel does not say what uses it; processes have it open, see holders"
            }
            Some((Some(_), true)) => ": the kernel does not say what uses it",
        }
    }
}

impl Core {
    pub(super) fn mount_refused(&mut self, at: BootNs, attempt: UmountAttempt) {
        let key = MountKey::new(attempt.mntns, &attempt.place());
        let mut account = self.account(&attempt);
        let is_foreign = self.context(&attempt.actor).is_some_and(|context| context.is_in_other_userns());
        let by_host = account.host && !is_foreign;
        let group = self.tasks.get(&attempt.actor).and_then(|task| task.cgroup.as_deref());
        // Root of a container may be in the host's mount namespace.
        account.host = by_host && group.and_then(cgroup::container_id).is_none();
        let attempts = self.holder_scans.refused_mounts.count(at, &key, &attempt, account.host);
        if !attempts.is_power_of_two() {
            self.holder_scans.ignored += 1;
            return;
        }
        let (source, task) = (self.source, self.tasks.copy(&attempt.actor));
        let refused = RefusedMount { at, source, key, by_host, attempts, attempt, task };
        let HolderScans { allowances, refused_mounts, .. } = &mut self.holder_scans;
        // Containers leave room for the host.
        let room = if account.host { LOOKS_MAX } else { SCANS_MAX };
        let has_room = refused_mounts.waiting.len() < room;
        let device = refused.device().cloned();
        match device.filter(|_| has_room && allowances.take_scan(at, &account)) {
            Some(SecondPath { path, origin, fstype }) => {
                refused_mounts.last += 1;
                let id = REFUSED_MOUNT | refused_mounts.last;
                let (mntns, tgid) = (refused.attempt.mntns, refused.attempt.actor.key.tgid);
                refused_mounts.waiting.push(at.saturating_add(ANSWER_TIMEOUT_NS), id, refused);
                let origin = Box::new(origin);
                self.request(Request::DeviceUsers { id, mntns, tgid, path, origin, fstype });
            }
            // There is no end to mount points.
            None if !account.host && !allowances.unscanned(at, &account).is_power_of_two() => {
                self.holder_scans.ignored += 1;
            }
            None => self.tell_refused_mount(&refused, None),
        }
    }

    pub(super) fn refused_mount_looked(&mut self, report: HolderReport) {
        if let Some(refused) = self.holder_scans.refused_mounts.waiting.take_answered(&report.id).pop() {
            self.tell_refused_mount(&refused, Some(report));
        }
    }

    pub(super) fn tell_overdue_refused_mounts(&mut self, now: BootNs) {
        for refused in self.holder_scans.refused_mounts.waiting.take_overdue(now) {
            self.tell_refused_mount(&refused, None);
        }
    }

    fn tell_refused_mount(&mut self, refused: &RefusedMount, report: Option<HolderReport>) {
        self.take_up(refused.source, refused.task.as_deref());
        let RefusedMount { at, attempt, .. } = refused;
        let (complete, verdict) =
            report.as_ref().map_or((false, Verdict::Skipped), |report| (report.complete, report.verdict));
        let is_looked = report.is_some();
        let unread = unreadable(report.as_ref(), complete, verdict);
        let (holders, device) = report.map(|report| (report.holders, report.device)).unwrap_or_default();
        let holders: Vec<MountHolder> =
            holders.into_iter().map(|holder| self.mount_holder(*at, holder)).collect();
        let used_by = match device.as_deref() {
            Some(device) => use_phrase(device, &holders, &refused.key),
            None => overlay_phrase(&holders),
        };
        let found = is_looked.then_some((device.as_deref(), complete));
        let reason = match &used_by {
            Some(reason) => format!(": {reason}"),
            None => refused.unknown_phrase(found, &holders).to_owned(),
        };
        let mount = self.refused_mount_object(refused, device);
        let actor = self.unmounting_actor(attempt);
        let target = self.mount_target(&mount, &actor);
        let what = what_phrase(refused.is_remount(), &mount, target.as_ref(), &actor);
        let severity = if used_by.is_some() { Severity::Warning } else { Severity::Notice };
        let message = format!("{what} by {} refused{reason}", actor_subject(&actor));
        let event = Event {
            actor: Some(Shared::new(actor)),
            target: target.map(Shared::new),
            mount: Some(Box::new(mount)),
            ..self.event(*at, Kind::MountRefused, severity, message)
        };
        self.emit(match refused.device() {
            Some(_) => Event {
                holders: Some(holders),
                holders_complete: Some(complete),
                holders_unreadable: unread,
                holders_verdict: Some(verdict),
                ..event
            },
            None => event,
        });
    }

    fn refused_mount_object(&self, refused: &RefusedMount, device: Option<Box<BlockDevice>>) -> Mount {
        let RefusedMount { at, key, attempt, attempts, .. } = refused;
        let path = Some(key.path.as_str()).filter(|path| !path.is_empty());
        let second = attempt.second.as_deref();
        Mount {
            syscall: attempt.syscall.name().into(),
            path: key.path.clone(),
            errno: Some("EBUSY".to_owned()),
            flags: flags(attempt),
            fstype: second.and_then(|second| second.fstype.clone()),
            source: second.map(|second| second.path.clone()).filter(|source| !source.is_empty()),
            device: device.as_ref().map(|device| device.number.clone()),
            block_device: device,
            mntns: key.mntns,
            attempts: Some(*attempts),
            volume: self.kubelets.volume(*at, key.mntns, &key.path),
            staged: self.kubelets.staged(*at, key.mntns, &key.path),
            container_id: self.container_at(attempt, path),
            ..Mount::default()
        }
    }
}

/// What was refused.
fn what_phrase(is_remount: bool, mount: &Mount, target: Option<&Target>, actor: &Actor) -> String {
    let likely = if actor.confidence == Confidence::Certain { "" } else { "what is likely " };
    let source = mount.source.as_deref().map(name);
    if mount.path.is_empty() {
        return format!("mount of {likely}{}", source.as_deref().unwrap_or("a file system"));
    }
    let subject = mount_phrase(mount, target);
    match (is_remount, source) {
        (true, _) => format!("remount of {likely}{subject}"),
        (false, Some(source)) => format!("mount of {source} at {likely}{subject}"),
        (false, None) => format!("mount at {likely}{subject}"),
    }
}

/// What uses a device so that it cannot be mounted. A process that has it open need not have claimed it, which the kernel does not
/// show. `key`: where it was to be mounted.
fn use_phrase(device: &BlockDevice, holders: &[MountHolder], key: &MountKey) -> Option<String> {
    let label = name(&device.name);
    // A loop device opens the file that it is made of as any process does.
    if let Some(user) = device.devices.iter().find(|user| !user.name.starts_with("loop")) {
        return Some(format!("{label} is used by {}", user_label(user)));
    }
    if device.swap {
        return Some(format!("the kernel swaps to {}", of_it(device, device.swap_device.as_deref())));
    }
    if let Some(target) = device.targets.first() {
        let target = name(target);
        return Some(format!(
            "{label}, a partition of it or its disk is used by the kernel's SCSI target, as {target}"
        ));
    }
    // Which of both refuses a mount depends on the kernel.
    let suspended = device.suspended.then(|| format!("{label} is suspended by device-mapper now"));
    let facts: Vec<_> = suspended.into_iter().chain(mounted_phrase(device, holders, key)).collect();
    (!facts.is_empty()).then(|| facts.join(", and "))
}

fn mounted_phrase(device: &BlockDevice, holders: &[MountHolder], key: &MountKey) -> Option<String> {
    let mounts = || holders.iter().filter(|holder| holder.access == Access::Mount);
    let is_there = |holder: &MountHolder| {
        let place = (holder.mntns, holder.path.as_deref());
        place == (Some(key.mntns), Some(key.path.as_str()))
            && holder.source.as_deref() == Some(device.name.as_str())
    };
    if mounts().any(is_there) {
        return Some(format!("{} is already mounted there", name(&device.name)));
    }
    let Some(first) = mounts().next() else {
        let phrase = "is a device of a file system in use, of which no mount was found";
        return device.unlocated.then(|| format!("{} {phrase}", name(&device.name)));
    };
    let same: Vec<_> = mounts().filter(|holder| holder.source == first.source).cloned().collect();
    let (what, path) =
        (of_it(device, first.source.as_deref()), name(first.path.as_deref().unwrap_or_default()));
    Some(format!("{what} is mounted at {path} in {}", copies_phrase(&same)?))
}

/// The overlay with an upper directory of the same name, of what is no device.
fn overlay_phrase(holders: &[MountHolder]) -> Option<String> {
    let first = holders.iter().find(|holder| holder.access == Access::Mount)?;
    let path = name(first.path.as_deref().unwrap_or_default());
    let overlay = format!("the overlay at {path} in {}", copies_phrase(holders)?);
    Some(format!("its upper directory is likely that of {overlay}"))
}

/// The device itself, a partition of it or its disk.
fn of_it(device: &BlockDevice, other: Option<&str>) -> String {
    match other.filter(|other| *other != device.name) {
        None => name(&device.name).into_owned(),
        Some(other) => {
            let label = name(other.trim_start_matches("/dev/"));
            match other.starts_with(&device.name) {
                true => format!("partition {label} of it"),
                false => format!("its disk {label}"),
            }
        }
    }
}

fn user_label(user: &DeviceUser) -> String {
    let facts: Vec<_> = [&user.mapping, &user.kind].into_iter().flatten().map(|fact| name(fact)).collect();
    match facts.is_empty() {
        true => name(&user.name).into_owned(),
        false => format!("{} ({})", name(&user.name), facts.join(", ")),
    }
}
