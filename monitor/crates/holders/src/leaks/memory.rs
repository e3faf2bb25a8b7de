//! What the looks before have seen: where the host had the file systems mounted that only others have by now.
//!
//! A copy at `/mem` names nothing, and the number of a device is given to the next file system once this one is gone. But two
//! mounts with one device at one time are of one file system, and a mount keeps its file system as long as it is there. So a
//! copy that was there when the host had its device mounted is a copy of that, whatever the host does later.

use std::collections::{BTreeMap, BTreeSet};

use kevtmon_observation::{BootNs, MountCopies, MountCopy, NsInum, VolumeData};

use super::inventory::{Found, HostMount, is_in_pod, is_staged};
use super::mount_points::MountPoints;

/// File systems that the host no longer has and that are remembered.
const GONE_MAX: usize = 1024;
const TOLD_MAX: usize = 1024;

/// A file system that was left behind when an earlier run of the daemon ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub device: String,
    /// The directory of it that the copy is of.
    pub root: String,
    pub source: String,
    pub fstype: String,
    /// Where the host had it mounted.
    pub path: String,
    /// Container whose root directory it was.
    pub container: Option<String>,
    /// What its kubelet had written beside it.
    pub volume_data: Option<VolumeData>,
    /// The unique id of a copy of it, if it is certain that it is one.
    pub unique: Option<u64>,
    /// When it was told: whoever had it was there.
    pub told: BootNs,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    by_device: BTreeMap<String, Seen>,
    /// The copies that were told last, and since when each is there.
    told: Vec<(MountCopy, BootNs)>,
}

#[derive(Debug)]
struct Seen {
    places: MountPoints,
    fstype: String,
    at: BootNs,
    /// A time just before it was seen on the host last.
    before: BootNs,
    bound: Option<u64>,
}

impl Memory {
    pub(super) fn of(remembered: Vec<Remembered>) -> Self {
        let mut memory = Self::default();
        for one in remembered.into_iter().take(GONE_MAX) {
            let new = || Seen {
                places: MountPoints::default(),
                fstype: one.fstype.clone(),
                at: 0,
                before: 0,
                bound: None,
            };
            let known = memory.by_device.entry(one.device.clone()).or_insert_with(new);
            known.bound = known.bound.max(one.unique);
            known.before = known.before.max(one.told);
            let mount = HostMount {
                device: one.device,
                root: one.root,
                path: one.path,
                fstype: one.fstype,
                source: one.source,
                mntns: 0,
                root_of: one.container.map(|id| format!("/{id}")),
                volume_data: one.volume_data,
            };
            known.places.remember(mount, one.unique);
        }
        memory
    }

    /// Takes in what a look found; the copies to tell.
    pub(super) fn apply(&mut self, at: BootNs, mut found: Found) -> MountCopies {
        let Some(host) = found.host.take() else {
            // Nothing is known of what the host has.
            let copies = self.told.iter().map(|(copy, _)| copy.clone()).collect();
            return MountCopies { copies, ..MountCopies::default() };
        };
        let has_copy: BTreeSet<String> = found.copies.iter().map(|copy| copy.mount.device.clone()).collect();
        let missed: BTreeSet<&str> = self
            .told
            .iter()
            .filter(|(copy, _)| is_missed(copy, &found))
            .map(|(copy, _)| copy.mount.device.as_str())
            .collect();
        let is_complete = found.is_whole();
        let present: BTreeSet<&str> = host.iter().map(|mount| mount.device.as_str()).collect();
        self.by_device.retain(|device, seen| {
            // A look that missed some copies may have missed all of this one.
            let may_be_left = !is_complete && (seen.bound.is_some() || found.omitted > 0);
            let is_kept = has_copy.contains(device) || missed.contains(device.as_str());
            is_kept || may_be_left || present.contains(device.as_str())
        });
        let mut of_device: BTreeMap<String, Vec<HostMount>> = BTreeMap::new();
        for mount in host {
            of_device.entry(mount.device.clone()).or_default().push(mount);
        }
        for (device, mounts) in of_device {
            self.see(at, device, mounts, &found);
        }
        self.forget_oldest(at);
        let copies = self.identified(&found);
        self.keep(at, copies, &found);
        MountCopies {
            copies: self.told.iter().map(|(copy, _)| copy.clone()).collect(),
            omitted: found.omitted,
            ..MountCopies::default()
        }
    }

    /// Takes in where the host has a file system.
    fn see(&mut self, at: BootNs, device: String, mut mounts: Vec<HostMount>, found: &Found) {
        let Some(fstype) = mounts.first().map(|mount| mount.fstype.clone()) else { return };
        let known = self.by_device.remove(&device).filter(|known| known.fstype == fstype);
        let mut places = known.map(|known| known.places).unwrap_or_default();
        for mount in &mut mounts {
            mount.root_of = mount.root_of.take().or_else(|| places.root_of(&mount.path));
        }
        places.update(mounts, at, found.bound, found.crowded.contains(&device));
        self.by_device.insert(device, Seen { places, fstype, at, before: found.before, bound: found.bound });
    }

    pub(super) fn has_any(&self) -> bool {
        !self.told.is_empty()
    }

    /// The mounts that were told last, by namespace and unique id.
    pub(super) fn wanted(&self) -> Vec<(NsInum, u64)> {
        self.told.iter().filter_map(|(copy, _)| Some((copy.mount.mntns, copy.mount.unique?))).collect()
    }

    fn identified(&mut self, found: &Found) -> Vec<MountCopy> {
        let mut certain: BTreeSet<&str> = BTreeSet::new();
        let mut replaced: BTreeSet<&str> = BTreeSet::new();
        for copy in &found.copies {
            let device = copy.mount.device.as_str();
            let Some(seen) = self.by_device.get(device) else { continue };
            if seen.fstype != copy.mount.fstype {
                replaced.insert(device);
            } else if copy.mount.unique.zip(seen.bound).is_some_and(|(unique, bound)| unique <= bound) {
                certain.insert(device);
            }
        }
        let oldest = |device: &str| {
            let copies = found.copies.iter().filter(|copy| copy.mount.device == device);
            copies.filter_map(|copy| copy.mount.unique).min()
        };
        // Where mounts have numbers for good, one that was made since may be of the next file system with this device.
        let may_be_of = |copy: &&MountCopy| {
            let seen = self.by_device.get(&copy.mount.device);
            let has_no_number = |seen: &&Seen| copy.mount.unique.is_none() || seen.bound.is_none();
            seen.filter(has_no_number).is_some_and(|seen| self.may_be_of(copy, seen))
        };
        // One copy that is known tells that the others are of its file system.
        let by_time = found.copies.iter().filter(may_be_of).map(|copy| copy.mount.device.as_str());
        let of_host: BTreeMap<&str, Option<u64>> = by_time
            .chain(certain.iter().copied())
            .filter(|device| !replaced.contains(device))
            .map(|device| (device, oldest(device)))
            .collect();
        let original = |copy: &MountCopy| {
            let oldest = *of_host.get(copy.mount.device.as_str())?;
            self.by_device.get(&copy.mount.device)?.places.original(copy, oldest, found.mntns)
        };
        let with_original = |copy: &MountCopy| MountCopy { original: original(copy), ..copy.clone() };
        let mut copies: Vec<MountCopy> = found.copies.iter().map(with_original).collect();
        let is_complete = found.is_whole();
        let gone: Vec<String> = self
            .by_device
            .iter()
            .filter(|(device, seen)| {
                let is_of_host = seen.at != 0 && is_complete && !certain.contains(device.as_str());
                let has_number = seen.bound.is_some() && found.bound.is_some();
                is_of_host && has_number && copies.iter().any(|copy| copy.mount.device == **device)
            })
            .map(|(device, _)| device.clone())
            .collect();
        // The file system that the host had is gone, and its number another one's.
        gone.iter().for_each(|device| drop(self.by_device.remove(device)));
        let known: BTreeSet<String> = copies
            .iter()
            .filter(|copy| copy.original.is_some() || copy.bind.is_some() || is_at_place_of_kubelet(copy))
            .map(|copy| copy.mount.device.clone())
            .collect();
        copies.retain(|copy| known.contains(&copy.mount.device));
        copies
    }

    /// Whether a copy without a number for good may be of what the host had. Device numbers are given again, and who started
    /// since then has rather what came after.
    fn may_be_of(&self, copy: &MountCopy, seen: &Seen) -> bool {
        copy.holder.start_ns <= seen.before
            || self.told.iter().any(|(told, _)| told.original.is_some() && is_same(told, copy))
    }

    /// Those that were found, and of those before the ones that this look may have missed.
    fn keep(&mut self, at: BootNs, copies: Vec<MountCopy>, found: &Found) {
        let before = std::mem::take(&mut self.told);
        let since = |copy: &MountCopy| {
            before.iter().find(|(known, _)| is_same(known, copy)).map_or(at, |(_, since)| *since)
        };
        let mut told: Vec<_> = copies.into_iter().map(|copy| (since(&copy), copy)).collect();
        for (copy, since) in &before {
            if is_missed(copy, found) && !told.iter().any(|(_, known)| is_same(known, copy)) {
                let without_process = is_kept(copy, found);
                told.push((*since, MountCopy { without_process, ..copy.clone() }));
            }
        }
        // What was there before does not make room for what users make.
        told.sort_by_key(|(since, copy)| (copy.holder.in_userns, *since));
        told.truncate(TOLD_MAX);
        self.told = told.into_iter().map(|(since, copy)| (copy, since)).collect();
    }

    fn forget_oldest(&mut self, at: BootNs) {
        let gone = self.by_device.values().filter(|seen| seen.at != at);
        let mut times: Vec<BootNs> = gone.map(|seen| seen.at).collect();
        if times.len() > GONE_MAX {
            times.sort_unstable();
            let oldest = times[times.len() - GONE_MAX];
            self.by_device.retain(|_, seen| seen.at >= oldest);
        }
    }
}

/// Whether a process apart has it where a kubelet would have mounted it, so that it looks like a copy of that.
fn is_at_place_of_kubelet(copy: &MountCopy) -> bool {
    let path = &copy.mount.mountpoint;
    copy.is_where_the_host_had_it() && (is_in_pod(path) || is_staged(path))
}

/// Whether a copy is there in a namespace that no process is in.
fn is_kept(copy: &MountCopy, found: &Found) -> bool {
    copy.mount.unique.is_some_and(|unique| found.kept.contains(&unique))
}

/// Whether a look that did not find a copy may have missed it. A namespace that no process is in is gone with its mounts, unless
/// the kernel shows them.
fn is_missed(copy: &MountCopy, found: &Found) -> bool {
    if is_kept(copy, found) {
        return true;
    }
    let namespace = &copy.mount.mntns;
    let may_be_there = match &found.indexed {
        Some(indexed) => !found.finished && indexed.contains(namespace),
        None => true,
    };
    let is_unread = found.missed.contains(namespace) || found.unread.contains(&copy.holder.tgid);
    !found.read.contains(namespace) && (may_be_there || is_unread)
}

fn is_same(one: &MountCopy, other: &MountCopy) -> bool {
    if let (Some(one), Some(other)) = (one.mount.unique, other.mount.unique) {
        return one == other;
    }
    one.mount.mntns == other.mount.mntns
        && one.mount.identity().zip(other.mount.identity()).is_some_and(|(one, other)| one.is_same(&other))
}

#[cfg(test)]
pub(super) mod tests;
