//! Who uses a block device, on demand or because a mount of it was refused: mounts of it in all mount namespaces, processes that have
//! its node open, and what the kernel uses it for. As the uses of RBD images are found, by the number of the device.
//!
//! The node is looked at only where no server has to answer, and is not opened.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use kevtmon_observation::{
    Access, BlockDevice, DeviceUser, Fact, Holder, HolderReport, MountFacts, RbdUses, Verdict,
};
use kevtmon_sources::Sender;
use kevtmon_sources::loop_device::{self, names, text};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::readers::{Job, Readers};
use kevtmon_types::error_chain::chain;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{SFlag, fstat};
use serde::{Deserialize, Serialize};

use super::locate::{locate, near_members};
use super::overlay;
use super::rbd::{Device, uses};
use super::resolve::is_local;
use super::{Deadline, MAX_LISTED, ScanRequest};

/// Partitions of a device, and devices that are made of it, that are told.
const NAMES_MAX: usize = 256;
/// Where the kernel's SCSI target (LIO) has a directory for each backstore, below /sys.
const TARGETS: &str = "kernel/config/target/core";
/// Where ZFS has a directory for each imported pool, below /proc.
const ZFS: &str = "spl/kstat/zfs";
const PATIENCE: Duration = Duration::from_secs(5);
const BUDGET: Duration = Duration::from_millis(500);

/// Adds to the report on a path who uses the block device that is there, if one is. `tgid`: a process that sees the path.
pub async fn add_uses(readers: &Readers, tgid: u32, report: &mut HolderReport, limit: Duration) {
    // A node may be mounted itself.
    let is_node = |mount: &MountFacts| mount.mountpoint != report.path || mount.fstype == "devtmpfs";
    if !report.mount.as_ref().is_some_and(is_node) {
        return;
    }
    let job = Look { path: report.path.clone(), tgid, budget: limit, is_claim: false };
    match readers.ask(job, limit).await {
        Ok(Some(found)) => found.add_to(report),
        Ok(None) => {}
        Err(error) => report.blind_spot(None, &chain(&error)),
    }
}

/// Looks for who uses the device that was to be mounted, and sends that. `fstype`: as what.
pub fn look_for_device_users_and_send(
    readers: &Readers,
    tx: &Sender,
    request: ScanRequest,
    fstype: Option<String>,
) {
    let skipped = HolderReport::skipped(request.id, request.path.clone());
    let job = (LookForMount { request, fstype }, PATIENCE, "cannot look for who uses a block device");
    readers.tell(tx, job, |found| Some(Fact::Holders(Box::new(found.unwrap_or(skipped)))));
}

/// The same of the path that a refused mount(2) was given.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LookForMount {
    request: ScanRequest,
    fstype: Option<String>,
}

impl Job for LookForMount {
    const NAME: &'static str = "refused-mount";
    type Reply = HolderReport;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let (request, began, deadline) = (&self.request, Instant::now(), Deadline::after(BUDGET));
        let skipped = HolderReport::skipped(request.id, request.path.clone());
        let mut report = HolderReport { complete: true, verdict: Verdict::None, ..skipped };
        match self.fstype.as_deref() {
            Some("overlay") => {
                overlay::add(proc, &request.path, &deadline, &mut report);
                return report;
            }
            // Any source may be given to it.
            Some(fstype) if is_nodev(proc, fstype) => return report,
            _ => {}
        }
        let members = near_members(proc, request, &deadline);
        if let Some(located) = locate(proc, request, &members, deadline, &mut report) {
            let (path, tgid) = (report.path.clone(), located.seen.tgid);
            let look = Look { path, tgid, budget: BUDGET, is_claim: true };
            if let Some(found) = look.run(proc) {
                found.add_to(&mut report);
            }
        }
        let device = report.device.as_deref();
        let (is_used, is_suspended) =
            (device.is_some_and(BlockDevice::is_used), device.is_some_and(|device| device.suspended));
        report.verdict = match report.verdict {
            // Who only has it open need not have claimed it.
            _ if is_used => Verdict::Kernel,
            Verdict::None | Verdict::Incomplete if is_suspended => Verdict::Kernel,
            Verdict::None if !report.complete => Verdict::Incomplete,
            verdict => verdict,
        };
        report.elapsed_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        report
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Look {
    path: String,
    tgid: u32,
    budget: Duration,
    /// Whether only what may have claimed it is wanted: then its disk counts too, and a bound node does not.
    is_claim: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Found {
    device: BlockDevice,
    uses: RbdUses,
    /// Whether a pool of ZFS is imported.
    has_zfs: bool,
}

impl Job for Look {
    const NAME: &'static str = "block-device";
    type Reply = Option<Found>;

    fn run(&self, proc: &Proc) -> Self::Reply {
        let number = number(proc, self.tgid, &self.path)?;
        let sys = proc.root().with_file_name("sys");
        let (mut device, wanted) = described(&sys, number, self.is_claim)?;
        let alone = |(name, number): &(String, String)| {
            Device::alone(name.clone(), number.clone(), self.is_claim).with_pools(&sys)
        };
        let mut uses = uses(proc, wanted.iter().map(alone).collect(), self.budget);
        for ((name, _), used) in wanted.iter().zip(&mut uses.uses) {
            device.unlocated |= used.unlocated;
            let name = format!("/dev/{name}");
            for holder in &mut used.holders {
                holder.source = Some(name.clone());
            }
            if used.swap && !device.swap {
                device.swap = true;
                device.swap_device = Some(name).filter(|name| *name != device.name);
            }
        }
        let zfs = proc.root().join(ZFS);
        let has_zfs = names(&zfs).any(|name| zfs.join(name).is_dir());
        Some(Found { device, uses, has_zfs })
    }
}

impl Found {
    fn add_to(self, report: &mut HolderReport) {
        let RbdUses { uses, complete, .. } = self.uses;
        let mut room = MAX_LISTED;
        for used in uses {
            for holder in used.holders {
                let is_it = |known: &Holder| known.is_same_hold(&holder) && known.mntns == holder.mntns;
                if report.holders.iter().any(is_it) {
                    continue;
                }
                if room > 0 {
                    room -= 1;
                    report.holders.push(holder);
                } else {
                    report.holders_omitted = report.holders_omitted.saturating_add(1);
                }
            }
            report.holders_omitted = report.holders_omitted.saturating_add(used.omitted);
        }
        if !complete {
            report.blind_spot(None, "not all mounts and open files of all processes could be read");
        }
        if self.has_zfs && report.holders.is_empty() && !self.device.is_used() {
            report.blind_spot(None, "a ZFS pool is imported, whose devices only `zpool status` shows");
        }
        let has = |access| report.holders.iter().any(|holder| holder.access == access && !holder.possible);
        report.verdict = match report.verdict {
            Verdict::Processes => Verdict::Processes,
            _ if has(Access::Fd) => Verdict::Processes,
            _ if has(Access::Mount) => Verdict::ChildMount,
            _ if self.device.is_used() => Verdict::Kernel,
            verdict => verdict,
        };
        report.device = Some(Box::new(self.device));
    }
}

/// Whether a file system of this type is on no block device. What follows a dot the kernel leaves to the file system (`get_fs_type`).
fn is_nodev(proc: &Proc, fstype: &str) -> bool {
    let fstype = fstype.split('.').next().unwrap_or_default();
    let known = fs::read_to_string(proc.root().join("filesystems")).unwrap_or_default();
    known.lines().any(|line| line.split_once('\t') == Some(("nodev", fstype)))
}

/// `major:minor` of the block device whose node is at a path, from the root directory of a process.
fn number(proc: &Proc, tgid: u32, path: &str) -> Option<String> {
    let process = proc.dir(tgid).ok()?;
    let table = process.mount_table("/", |_| true).ok()?;
    if !is_local(&table.covering(path)?.fstype) {
        return None;
    }
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(resolve);
    let node = openat2(&process.root().ok()?, Path::new(path).strip_prefix("/").ok()?, how).ok()?;
    let stat = fstat(&node).ok()?;
    let is_block = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFBLK;
    is_block.then(|| format!("{}:{}", libc::major(stat.st_rdev), libc::minor(stat.st_rdev)))
}

/// The device with this number, as sysfs shows it, and the names and numbers of it and its partitions, and of the disk if that is
/// wanted.
fn described(sys: &Path, number: String, with_disk: bool) -> Option<(BlockDevice, Vec<(String, String)>)> {
    let link = fs::read_link(sys.join("dev/block").join(&number)).ok()?;
    let name = link.file_name()?.to_str()?.to_owned();
    let directory = sys.join("dev/block").join(link);
    let is_part = |part: &String| directory.join(part).join("partition").exists();
    let parts: Vec<String> = names(&directory).filter(is_part).take(NAMES_MAX).collect();
    let numbered = |part: &String| Some((part.clone(), text(&directory.join(part).join("dev"))?));
    let mut wanted = vec![(name.clone(), number.clone())];
    wanted.extend(parts.iter().filter_map(numbered));
    let mut users: BTreeSet<String> = names(&directory.join("holders")).collect();
    users.extend(parts.iter().flat_map(|part| names(&directory.join(part).join("holders"))));
    // Who has claimed a disk has claimed its partitions (`bd_may_claim` in block/bdev.c).
    if let Some(disk) = directory.parent().filter(|_| directory.join("partition").exists()) {
        users.extend(names(&disk.join("holders")));
        let disk_name = disk.file_name().and_then(|name| name.to_str()).filter(|_| with_disk);
        wanted.extend(disk_name.map(str::to_owned).zip(text(&disk.join("dev"))));
    }
    let is_on_it = |file: &str| {
        let node = file.strip_prefix("/dev/");
        node.is_some_and(|node| node == name || parts.iter().any(|part| part == node))
    };
    users.extend(loop_device::bound(sys, is_on_it).into_iter().map(|device| device.name));
    let user = |name: String| {
        let mapper = sys.join("block").join(&name).join("dm");
        let kind = text(&mapper.join("uuid")).and_then(|uuid| kind(&uuid));
        DeviceUser { mapping: text(&mapper.join("name")), kind, name }
    };
    let device = BlockDevice {
        name: format!("/dev/{name}"),
        number,
        targets: targets(sys, &wanted),
        backing_file: text(&directory.join("loop/backing_file")),
        devices: users.into_iter().take(NAMES_MAX).map(user).collect(),
        suspended: text(&directory.join("dm/suspended")).is_some_and(|state| state == "1"),
        ..BlockDevice::default()
    };
    Some((device, wanted))
}

/// The backstores that have claimed one of these devices.
fn targets(sys: &Path, wanted: &[(String, String)]) -> Vec<String> {
    let core = sys.join(TARGETS);
    let backstores = names(&core).flat_map(|adapter| {
        let stores = names(&core.join(&adapter));
        stores.map(move |name| format!("{adapter}/{name}"))
    });
    let is_on_it = |backstore: &String| {
        let info = text(&core.join(backstore).join("info"));
        let number = info.as_deref().and_then(claimed);
        number.is_some_and(|number| wanted.iter().any(|(_, known)| *known == number))
    };
    backstores.filter(is_on_it).take(NAMES_MAX).collect()
}

/// `major:minor` of the device in the last line of a backstore's `info`: `Major: 8 Minor: 16  CLAIMED: IBLOCK`.
fn claimed(info: &str) -> Option<String> {
    let (_, numbers) = info.rsplit_once("Major: ")?;
    let (major, numbers) = numbers.split_once(" Minor: ")?;
    let (minor, state) = numbers.split_once(' ')?;
    state.trim_start().starts_with("CLAIMED").then(|| format!("{major}:{minor}"))
}

/// What a device is for device mapper: by convention its UUID begins with that.
fn kind(uuid: &str) -> Option<String> {
    let (kind, _) = uuid.split_once('-')?;
    Some(if kind == "mpath" { "multipath" } else { kind }.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use kevtmon_observation::RbdUse;

    use super::*;

    #[test]
    fn a_device_is_told_with_what_is_made_of_it_and_of_its_partitions() {
        let sys = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let disk = "devices/virtual/block/loop1";
        write(&format!("{disk}/dev"), "7:1\n");
        write(&format!("{disk}/loop/backing_file"), "/v/a b\n");
        write(&format!("{disk}/loop1p1/dev"), "259:3\n");
        write(&format!("{disk}/loop1p1/partition"), "1\n");
        write(&format!("{disk}/loop1p1/holders/dm-0"), "");
        write(&format!("{disk}/queue/dev"), "9:9\n");
        write("block/dm-0/dm/name", "vg-data\n");
        write("block/dm-0/dm/uuid", "LVM-x1-y2\n");
        write(&format!("{disk}/holders/dm-1"), "");
        write("block/dm-1/dm/name", "mpatha\n");
        write("block/dm-1/dm/uuid", "mpath-3600\n");
        write("devices/virtual/block/dm-1/dm/suspended", "1\n");
        write("devices/virtual/block/dm-1/slaves/loop1", "");
        let info = |minor: u32| {
            // As Linux 6.1 writes it.
            format!(
                "Status: DEACTIVATED  Max Queue Depth: 0  SectorSize: 512  HwMaxSectors: 248\n        \
                 iBlock device: loop1  UDEV PATH: /dev/loop1  readonly: 0\n        Major: 7 Minor: {minor}  CLAIMED: IBLOCK\n"
            )
        };
        write("kernel/config/target/core/iblock_0/disk/info", &info(1));
        write("kernel/config/target/core/iblock_0/other/info", &info(11));
        write("kernel/config/target/core/iblock_1/unset/info", "readonly: 0\n        Major: 7 Minor: 1\n");
        write("kernel/config/target/core/alua/lu_gps/default_lu_gp/members", "");
        write("block/loop2/loop/backing_file", "/dev/loop1p1\n");
        write("block/loop3/loop/backing_file", "/dev/loop11\n");
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        symlink(format!("../../{disk}"), sys.path().join("dev/block/7:1")).unwrap();
        let (device, wanted) = described(sys.path(), "7:1".into(), true).unwrap();
        symlink(format!("../../{disk}/loop1p1"), sys.path().join("dev/block/259:3")).unwrap();
        let user = |name: &str, mapper: Option<(&str, &str)>| DeviceUser {
            name: name.into(),
            mapping: mapper.map(|(name, _)| name.to_owned()),
            kind: mapper.map(|(_, kind)| kind.to_owned()),
        };
        let lvm = user("dm-0", Some(("vg-data", "LVM")));
        let multipath = user("dm-1", Some(("mpatha", "multipath")));
        let expected = BlockDevice {
            name: "/dev/loop1".into(),
            number: "7:1".into(),
            backing_file: Some("/v/a b".into()),
            devices: vec![lvm.clone(), multipath.clone(), user("loop2", None)],
            targets: vec!["iblock_0/disk".into()],
            ..BlockDevice::default()
        };
        assert_eq!(device, expected);
        let (part, of_part) = described(sys.path(), "259:3".into(), true).unwrap();
        assert_eq!(part.devices, [lvm, multipath, user("loop2", None)], "what claims the disk, too");
        assert_eq!(part.targets, ["iblock_0/disk"]);
        let pair = |name: &str, number: &str| (name.to_owned(), number.to_owned());
        let (disk_pair, part_pair) = (pair("loop1", "7:1"), pair("loop1p1", "259:3"));
        assert_eq!(wanted, [disk_pair.clone(), part_pair.clone()]);
        assert_eq!(of_part, [part_pair.clone(), disk_pair], "a claim of the disk refuses it, too");
        assert_eq!(described(sys.path(), "259:3".into(), false).unwrap().1, [part_pair]);
        assert_eq!(described(sys.path(), "7:9".into(), true), None);
        symlink("../../devices/virtual/block/dm-1", sys.path().join("dev/block/253:1")).unwrap();
        let (mapped, of_mapped) = described(sys.path(), "253:1".into(), true).unwrap();
        assert_eq!((mapped.name.as_str(), mapped.devices, mapped.suspended), ("/dev/dm-1", Vec::new(), true));
        assert_eq!(of_mapped, [pair("dm-1", "253:1")], "and not what it is made of");
    }

    #[test]
    fn the_source_of_a_file_system_that_needs_no_device_is_not_looked_at() {
        let root = tempfile::tempdir().unwrap();
        let known = "nodev\tproc\nnodev\tfuse\n\text4\n\tfuseblk\n";
        fs::write(root.path().join("filesystems"), known).unwrap();
        let proc = Proc::new(root.path());
        let types = ["proc", "fuse.sshfs", "fuseblk.ntfs", "ext4", "pro", ""];
        assert_eq!(types.map(|fstype| is_nodev(&proc, fstype)), [true, true, false, false, false, false]);
        let request = ScanRequest { path: "/dev/sdb".into(), ..ScanRequest::default() };
        let report = LookForMount { request, fstype: Some("proc".into()) }.run(&proc);
        assert_eq!((report.verdict, report.complete, report.device), (Verdict::None, true, None));
    }

    #[test]
    fn what_is_no_block_device_is_none() {
        let own = std::process::id();
        assert_eq!(number(&Proc::default(), own, "/dev/null"), None);
        assert_eq!(number(&Proc::default(), own, "/dev"), None);
    }

    /// The report on a device for which nothing else was found.
    fn added(holders: Vec<Holder>, device: BlockDevice, has_zfs: bool) -> HolderReport {
        let uses = vec![RbdUse { holders, ..RbdUse::default() }];
        let uses = RbdUses { uses, complete: true, ..RbdUses::default() };
        let mut report = HolderReport { complete: true, ..HolderReport::skipped(0, "/dev/loop1") };
        report.verdict = Verdict::None;
        Found { device, uses, has_zfs }.add_to(&mut report);
        report
    }

    #[test]
    fn where_zfs_may_use_it_and_nothing_else_is_known_to_the_answer_is_not_complete() {
        let swap = || BlockDevice { swap: true, ..BlockDevice::default() };
        let is_complete = |device, has_zfs| added(Vec::new(), device, has_zfs).complete;
        assert!(is_complete(BlockDevice::default(), false));
        assert!(!is_complete(BlockDevice::default(), true));
        assert!(is_complete(swap(), true));
    }

    #[test]
    fn a_mount_or_what_the_kernel_does_with_it_is_why_it_is_in_use() {
        let verdict = |holders: Vec<Holder>, device: BlockDevice| {
            let report = added(holders, device, false);
            (report.verdict, report.holders.len())
        };
        let mounted = |ns| Holder { mntns: Some(ns), ..Holder::of_kernel(Access::Mount, "/v".into()) };
        let swap = BlockDevice { swap: true, ..BlockDevice::default() };
        assert_eq!(verdict(Vec::new(), BlockDevice::default()), (Verdict::None, 0));
        assert_eq!(verdict(Vec::new(), swap), (Verdict::Kernel, 0));
        let both = vec![mounted(7), mounted(8), mounted(8)];
        assert_eq!(verdict(both, BlockDevice::default()), (Verdict::ChildMount, 2));
        let open = vec![mounted(7), Holder::of_kernel(Access::Fd, "/dev/loop1".into())];
        assert_eq!(verdict(open, BlockDevice::default()), (Verdict::Processes, 2));
    }
}
