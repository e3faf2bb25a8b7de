//! Who uses the Ceph RBD images that are mapped, by the kernel or by `rbd-nbd`: mounts of the device or a partition of it in any mount namespace, the device
//! itself where it is bound somewhere or open, and what the kernel uses it for. By numbers of devices, which no mount namespace
//! and no name hides; a file system that has none shows its device by name.
//!
//! Looked at from time to time while any image is mapped, and at once when the images change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kevtmon_observation::{Access, Fact, Holder, NsInum, RbdImage, RbdNumber, RbdUse, RbdUses};
use kevtmon_sources::beat::at_look;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir};
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable};
use kevtmon_sources::procfs::readers::{Job, Readers};
use kevtmon_sources::procfs::root::is_initial_userns;
use kevtmon_sources::{Sender, pools, rbd, spawn_until_closed, tell};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::mntns_index::{Member, MntnsIndex, mounts};
use super::orphans;
use super::pins::{Pin, describe};
use super::{Deadline, own_directory, own_tgid};

mod descriptors;

use descriptors::{Descriptors, Mounts};

const INTERVAL: Duration = Duration::from_secs(30);
/// How often while one of them has no use in a pod's directory: it may get one, or lose what holds it.
const OFTEN: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(60);
const BUDGET: Duration = Duration::from_millis(500);
const HOLDERS_MAX: usize = 64;
/// Members of a namespace of which the oldest is looked for.
pub(super) const MEMBERS_LOOKED_AT: usize = 16;

/// Takes the images whose uses are looked for.
#[derive(Debug)]
pub struct Wanted(watch::Sender<Vec<RbdImage>>);

/// Has the uses of these images looked for from now on, and of no others.
pub fn follow(wanted: Option<&Wanted>, images: Vec<RbdImage>) {
    if let Some(Wanted(wanted)) = wanted {
        wanted.send_replace(images);
    }
}

/// Follows uses of images until the receiver of observations is gone. `sysfs`: where that is.
pub fn start(readers: Readers, sysfs: PathBuf, tx: Sender) -> Wanted {
    let (wanted, images) = watch::channel(Vec::new());
    spawn_until_closed(tx.clone(), look_again(readers, sysfs, images, tx));
    Wanted(wanted)
}

async fn look_again(
    readers: Readers,
    sysfs: PathBuf,
    mut images: watch::Receiver<Vec<RbdImage>>,
    tx: Sender,
) {
    let mut told: Option<RbdUses> = None;
    loop {
        let devices: Vec<Device> =
            images.borrow_and_update().iter().map(|image| Device::of(&sysfs, image)).collect();
        let (number, mut is_all_used) = (devices.len(), true);
        let look = Look { devices, budget: BUDGET, on_demand: false };
        if number > 0
            && let Some(found) = readers.reply(look, PATIENCE, "cannot look for uses of RBD images").await
        {
            let used = found.uses.iter().filter(|found| is_in_pod(&found.holders)).count();
            is_all_used = used == number;
            if told.as_ref() != Some(&found) {
                told = Some(found.clone());
                tell(&tx, Fact::RbdUses(found)).await;
            }
        }
        let pause = if is_all_used { INTERVAL } else { OFTEN };
        tokio::select! {
            () = sleep_until(at_look(pause)), if number > 0 => {}
            changed = images.changed() => {
                if changed.is_err() {
                    return;
                }
                // What was told is of other images.
                told = None;
            }
        }
    }
}

/// Whether it looks like a pod's use; whether it is one, the core knows.
fn is_in_pod(holders: &[Holder]) -> bool {
    holders.iter().any(|holder| holder.path.as_deref().is_some_and(|path| path.contains("/pods/")))
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Device {
    /// Of an image.
    number: RbdNumber,
    name: String,
    /// `major:minor` of it and its partitions.
    devices: Vec<String>,
    /// Block devices that are made of it.
    users: Vec<String>,
    /// The names below /dev of all devices of the file systems without a device number that it, or a partition of it, is one of.
    pools: Vec<String>,
    /// Whether its partitions are looked for as devices of their own.
    is_alone: bool,
    /// Whether only what claims it is a use: a bound node is none.
    is_claim: bool,
}

/// Their super block has a number of no device (`get_anon_bdev`), and the kernel's own name of one of their devices as the source.
const POOLS: [&str; 2] = ["btrfs", "bcachefs"];

impl Device {
    /// One that is no image, without its partitions.
    pub(super) fn alone(name: String, number: String, is_claim: bool) -> Self {
        Self { name, devices: vec![number], is_alone: true, is_claim, ..Self::default() }
    }

    fn of(sysfs: &Path, image: &RbdImage) -> Self {
        let image = Self {
            number: image.number,
            name: image.number.to_string(),
            devices: rbd::devices(sysfs, image),
            users: rbd::users(sysfs, image),
            ..Self::default()
        };
        image.with_pools(sysfs)
    }

    /// With what sysfs shows of file systems that may be on more devices.
    pub(super) fn with_pools(self, sysfs: &Path) -> Self {
        let pools = pools::devices(sysfs, |name| self.is_node(name));
        Self { pools, ..self }
    }

    /// Whether a mount is of its file system, or has the node of the device bound.
    fn is_of(&self, mount: &Mount) -> bool {
        let is_node = || mount.root.strip_prefix('/').is_some_and(|root| self.is_node(root));
        self.devices.contains(&mount.device)
            || !self.is_claim && mount.fstype == "devtmpfs" && is_node()
            || self.is_pool_of(mount)
    }

    /// Whether a mount is of a file system without a device number that has it as a device. bcachefs shows all its devices, Btrfs any
    /// one of them.
    fn is_pool_of(&self, mount: &Mount) -> bool {
        let mut names = mount.source.split(':').filter_map(|name| name.strip_prefix("/dev/"));
        let is_its = |name: &str| self.is_node(name) || self.pools.iter().any(|device| device == name);
        POOLS.contains(&mount.fstype.as_str()) && names.any(is_its)
    }

    /// Whether this is the name of its node, or that of a partition.
    fn is_node(&self, name: &str) -> bool {
        let Some(rest) = name.strip_prefix(&self.name) else { return false };
        // The partitions of `sda` are `sda1`, …, those of `rbd0` are `rbd0p1`, ….
        let is_part = match self.name.ends_with(|last: char| last.is_ascii_digit()) {
            true => rest.starts_with('p'),
            false => rest.starts_with(|first: char| first.is_ascii_digit()),
        };
        rest.is_empty() || !self.is_alone && is_part
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    devices: Vec<Device>,
    budget: Duration,
    /// Whether all who have a device open are asked for, and not only those without whom nobody has it.
    on_demand: bool,
}

/// Who uses devices, for all that ask.
pub(super) fn uses(proc: &Proc, devices: Vec<Device>, budget: Duration) -> RbdUses {
    Look { devices, budget, on_demand: true }.run(proc)
}

impl Job for Look {
    const NAME: &'static str = "rbd-uses";
    type Reply = RbdUses;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let deadline = Deadline::after(self.budget);
        let swaps = std::fs::read_to_string(proc.root().join("swaps")).unwrap_or_default();
        let is_swap = |device: &Device| {
            let mut names =
                swaps.lines().filter_map(|line| line.split_whitespace().next()?.strip_prefix("/dev/"));
            names.any(|name| device.is_node(name))
        };
        let new = |device: &Device| RbdUse {
            number: device.number,
            devices: device.users.clone(),
            swap: is_swap(device),
            ..RbdUse::default()
        };
        let mut found = RbdUses { uses: self.devices.iter().map(new).collect(), ..RbdUses::default() };
        let Ok(index) = MntnsIndex::build(proc, &deadline) else { return found };
        found.complete = index.finished && index.unreadable.is_empty();
        let mut pools = vec![BTreeSet::new(); self.devices.len()];
        let mut mounts = Mounts::default();
        for (ns, members) in sorted(proc, &index) {
            if deadline.is_over() {
                found.complete = false;
                found.unread.insert(ns);
                continue;
            }
            let Some(table) = self.namespace(proc, (ns, members), &mut found, &mut pools) else { continue };
            mounts.add(&table);
        }
        self.orphans(proc, &index, &mut found, &pools);
        for ((device, used), pools) in self.devices.iter().zip(&mut found.uses).zip(&pools) {
            used.unlocated = !device.pools.is_empty() && pools.is_empty();
        }
        let host = host(proc);
        found.host = host.filter(|host| index.namespaces.contains_key(host) && !found.unread.contains(host));
        let wanted: Vec<usize> = (0..self.devices.len())
            .filter(|at| self.on_demand || !is_in_pod(&found.uses[*at].holders))
            .collect();
        Descriptors::of(&self.devices, mounts).look(proc, &index, (&wanted, &deadline), &mut found);
        found
    }
}

impl Look {
    /// The mounts of a namespace. `pools`: of each device the numbers of its file systems that have none of a device.
    fn namespace(
        &self,
        proc: &Proc,
        (ns, members): (NsInum, &[Member]),
        found: &mut RbdUses,
        pools: &mut [BTreeSet<String>],
    ) -> Option<MountTable> {
        let Some(shown) = mounts(proc, members.iter().copied(), |_| true) else {
            found.complete = false;
            found.unread.insert(ns);
            return None;
        };
        if shown.hidden_from.is_some() {
            found.complete = false;
        }
        for ((device, found), pools) in self.devices.iter().zip(&mut found.uses).zip(pools) {
            let of_pools = shown.table.iter().filter(|mount| device.is_pool_of(mount));
            pools.extend(of_pools.map(|mount| mount.device.clone()));
            let pins = pins(device, &shown.table);
            if !pins.is_empty() {
                let described = oldest(proc, members, MEMBERS_LOOKED_AT)
                    .map(|(tgid, dir)| describe(proc, tgid, &dir, ns, pins.clone()));
                // A mount stays one though nobody can be described who has it.
                let holders = described.filter(|holders| !holders.is_empty());
                add(found, holders.unwrap_or_else(|| pins.into_iter().map(|pin| alone(ns, pin)).collect()));
            }
        }
        Some(shown.table)
    }

    /// Namespaces without a process: what keeps them is not looked for.
    fn orphans(&self, proc: &Proc, index: &MntnsIndex, found: &mut RbdUses, pools: &[BTreeSet<String>]) {
        let Some(own) = own_directory(proc).and(own_tgid(proc)).and_then(|own| proc.dir(own).ok()) else {
            return;
        };
        for ((device, used), pools) in self.devices.iter().zip(&mut found.uses).zip(pools) {
            for number in device.devices.iter().chain(pools) {
                let is_of = |device: &str, _| device == number;
                let orphans = orphans::find(&own, index, is_of, |_| None);
                found.complete &= orphans.missing.is_none();
                for view in &orphans.views {
                    add(used, pins(device, &view.table).into_iter().map(|pin| alone(view.ns, pin)).collect());
                }
            }
        }
    }
}

fn pins(device: &Device, table: &MountTable) -> Vec<Pin> {
    let of_it = table.iter().filter(|mount| device.is_of(mount));
    of_it.map(|mount| Pin::of(Access::Mount, mount.mountpoint.clone())).collect()
}

/// A mount in a namespace of which no process is told.
pub(super) fn alone(ns: NsInum, pin: Pin) -> Holder {
    Holder { mntns: Some(ns), ..Holder::of_kernel(Access::Mount, pin.path.unwrap_or_default()) }
}

fn add(found: &mut RbdUse, holders: Vec<Holder>) {
    for holder in holders {
        if found.holders.len() < HOLDERS_MAX {
            found.holders.push(holder);
        } else {
            found.omitted = found.omitted.saturating_add(1);
        }
    }
}

pub(super) fn host(proc: &Proc) -> Option<NsInum> {
    let own = || own_tgid(proc).and_then(|own| proc.ns(own, "mnt"));
    proc.host_mntns().or_else(own)
}

/// All namespaces, the host's first, and those that users made last: they can make very many.
pub(super) fn sorted<'i>(proc: &Proc, index: &'i MntnsIndex) -> Vec<(NsInum, &'i [Member])> {
    let host = host(proc);
    let mut links = Buffer::default();
    let mut is_users = |members: &[Member]| {
        let dir = members.first().and_then(|member| member.dir(proc));
        !dir.is_some_and(|dir| is_initial_userns(&dir, &mut links))
    };
    let mut all: Vec<_> =
        index.namespaces.iter().map(|(ns, members)| (*ns, members.as_slice(), is_users(members))).collect();
    all.sort_by_key(|(ns, _, is_users)| (Some(*ns) != host, *is_users, *ns));
    all.into_iter().map(|(ns, members, _)| (ns, members)).collect()
}

/// Since the oldest of so many the namespace has most likely been there. Kernel threads, which have no executable, hold nothing.
pub(super) fn oldest(proc: &Proc, members: &[Member], most: usize) -> Option<(u32, Dir)> {
    let tgids: BTreeSet<u32> = members.iter().map(|member| member.tgid).collect();
    let programs = tgids.into_iter().filter(|tgid| proc.exe(*tgid).is_some()).take(most);
    let started = programs.filter_map(|tgid| Some((proc.stat(tgid)?.start_ns, tgid)));
    let (_, tgid) = started.min()?;
    Some((tgid, proc.dir(tgid).ok()?))
}

#[cfg(test)]
mod tests;
