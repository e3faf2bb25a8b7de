//! What the kernel holds on a searched mount for no process: the backing files of loop devices, swap files, exports of
//! its NFS server, and programs and libraries in which tracefs has a probe.
//!
//! The kernel gives each by a name, as this process sees it, and a name is on no mount in particular: another mount
//! namespace has the same one, and so has what was covered when something was mounted there. Of a loop device it tells the
//! file system as well. That decides, where only searched mounts of that file system have the name. All else is possible only.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;

use kevtmon_observation::{Access, Holder, LoopDevice, MountedElsewhere, NsInum};
use kevtmon_sources::loop_device::{self, Loop};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::Buffer;
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, is_below, unescape};

use super::Deadline;
use super::mntns_index::{self, Member, MntnsIndex, namespace as mount_namespace};
use super::propagation::NamespaceMounts;
use super::resolve::is_local;
use super::searched::{ScanTargets, is_layered};

mod exports;

use exports::{Export, exports};

/// Places at which a loop device is mounted that are listed.
const PLACES_MAX: usize = 8;
/// Of all these together.
const HOLDERS_MAX: usize = 256;
/// Why exports may be missing.
pub(super) const UNREAD_EXPORTS: &str =
    "the exports of the kernel's NFS server could not be read in all network namespaces";
/// Where the kernel lists the probes that were defined in tracefs, below /sys.
const UPROBES: [&str; 2] = ["kernel/tracing/uprobe_events", "kernel/debug/tracing/uprobe_events"];

pub(super) struct Seen<'a> {
    pub(super) proc: &'a Proc,
    pub(super) targets: &'a ScanTargets<'a>,
    /// Of the namespaces with a copy of the mount.
    pub(super) views: &'a [NamespaceMounts],
    pub(super) index: &'a MntnsIndex,
    pub(super) deadline: &'a Deadline,
}

/// Whether a file of the kernel's is on a searched mount.
#[derive(Debug, PartialEq, Eq)]
enum On {
    Searched,
    Unknown,
    Other,
}

/// Finds all of them but the probes; returns whether the exports are all that there are.
pub(super) fn holders(seen: &Seen<'_>) -> (Vec<Holder>, bool) {
    let mut found = Vec::new();
    let sys = seen.proc.root().with_file_name("sys");
    for device in loop_device::bound(&sys, |file| seen.targets.selects(file)) {
        let on = seen.place(&device.file, Some(&|| device.file_system(&sys).ok()));
        if on == On::Other {
            continue;
        }
        let mounts = seen.mounted_at(&device);
        let used = LoopDevice {
            name: format!("/dev/{}", device.name),
            elsewhere: if mounts.is_empty() { seen.mounted_elsewhere(&device) } else { Vec::new() },
            mounts,
            devices: device.users(&sys),
        };
        found.push(Holder {
            possible: on == On::Unknown,
            loop_device: Some(used),
            ..Holder::of_kernel(Access::Loop, device.file)
        });
    }
    found.extend(named(seen, Access::Swap));
    let (exports, has_all) = exports(seen.proc, seen.deadline, |path| seen.may_be_searched(path));
    found.extend(exports.into_iter().map(Export::holder));
    found.truncate(HOLDERS_MAX);
    (found, has_all)
}

/// Finds the probes that were defined in tracefs, whether or not somebody uses them.
pub(super) fn probes(seen: &Seen<'_>) -> (Vec<Holder>, bool) {
    let mut found = named(seen, Access::Uprobe);
    found.truncate(HOLDERS_MAX);
    (found, true)
}

/// Those of a list that may be on a searched mount.
fn named(seen: &Seen<'_>, access: Access) -> Vec<Holder> {
    let Some((text, is_named)) = list(seen.proc, access) else { return Vec::new() };
    let names: BTreeSet<_> = text.lines().filter_map(is_named).map(unescape).collect();
    let names = names.into_iter().filter(|name| seen.may_be_searched(name));
    let possible =
        |name: Cow<'_, str>| Holder { possible: true, ..Holder::of_kernel(access, name.into_owned()) };
    names.map(possible).collect()
}

/// How a line of a list names a file.
type Named = fn(&str) -> Option<&str>;

fn list(proc: &Proc, access: Access) -> Option<(String, Named)> {
    let sys = proc.root().with_file_name("sys");
    let read = |file: PathBuf| Some(String::from_utf8_lossy(&std::fs::read(file).ok()?).into_owned());
    match access {
        Access::Swap => Some((read(proc.root().join("swaps"))?, swap)),
        Access::Uprobe => Some((UPROBES.iter().find_map(|file| read(sys.join(file)))?, uprobe)),
        _ => None,
    }
}

/// Why those that are only possible may be none.
pub(super) fn doubt(access: Access) -> &'static str {
    match access {
        Access::Loop => {
            "the path of a loop device's backing file is below the mount point; the file's mount is unknown"
        }
        Access::Uprobe => {
            "the path of a file with a uprobe is below the mount point; the file's mount is unknown"
        }
        Access::Swap => "the path of a swap file is below the mount point; the file's mount is unknown",
        _ => {
            "the kernel's NFS server has an export below the mount point (`exportfs -u` ends it); its mount is unknown"
        }
    }
}

/// The name in a line of /proc/swaps, if it is that of a file.
fn swap(line: &str) -> Option<&str> {
    let mut fields = line.split_ascii_whitespace();
    let name = fields.next()?;
    (fields.next() == Some("file")).then_some(name)
}

/// The name in a line of the list of probes, as whoever defined it gave it.
fn uprobe(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    words.next().filter(|kind| kind.starts_with(['p', 'r']))?;
    words.next()?.rsplit_once(':').map(|(name, _)| name).filter(|name| name.starts_with('/'))
}

impl Seen<'_> {
    /// Whether what has this name, and shows no mount, may be on a searched one.
    fn may_be_searched(&self, name: &str) -> bool {
        self.targets.selects(name) && self.place(name, None) == On::Unknown
    }

    /// Where a file of this name is. `file_system`: asks for its device, which asks the file itself.
    fn place(&self, name: &str, file_system: Option<&dyn Fn() -> Option<String>>) -> On {
        let all = self.views.iter().flat_map(|view| view.table.iter());
        let (searched, others): (Vec<&Mount>, Vec<&Mount>) = all
            .filter(|mount| is_below(name, &mount.mountpoint))
            .partition(|mount| self.targets.has(mount.id, Some(name)));
        if searched.is_empty() {
            return On::Other;
        }
        let Some(file_system) = file_system else { return On::Unknown };
        let Some(elsewhere) = self.elsewhere(name) else { return On::Unknown };
        let others: Vec<&Mount> = others.into_iter().chain(&elsewhere).collect();
        // A server of any of them may be the one that has to answer.
        if !searched.iter().chain(&others).all(|mount| is_local(&mount.fstype)) {
            return On::Unknown;
        }
        let Some(device) = file_system() else { return On::Unknown };
        let is_of = |mounts: &[&Mount]| mounts.iter().any(|mount| mount.device == device);
        match (is_of(&searched), is_of(&others)) {
            (true, false) => On::Searched,
            (true, true) => On::Unknown,
            (false, _) if searched.iter().any(|mount| is_layered(&mount.fstype)) => On::Unknown,
            (false, _) => On::Other,
        }
    }

    /// The tables of the namespaces that have no copy of the mount.
    fn other_tables(&self, wanted: impl Fn(&Mount) -> bool) -> impl Iterator<Item = MountTable> {
        let known: BTreeSet<NsInum> = self.views.iter().map(|view| view.ns).collect();
        let others = self.index.namespaces.iter().filter(move |(ns, _)| !known.contains(ns));
        others.map_while(|(_, members)| (!self.deadline.is_over()).then_some(members)).filter_map(
            move |members| Some(mntns_index::mounts(self.proc, members.iter().copied(), &wanted)?.table),
        )
    }

    /// The mounts in these that may have a file of this name; `None` if there is no time for all, or not all are read.
    fn elsewhere(&self, name: &str) -> Option<Vec<Mount>> {
        let has_it = |mount: &&Mount| is_below(name, &mount.mountpoint);
        let mut is_all = true;
        let of = |table: MountTable| {
            is_all &= !table.is_cut();
            table.iter().filter(has_it).cloned().collect::<Vec<_>>()
        };
        let found = self.other_tables(|_| true).flat_map(of).collect();
        (is_all && !self.deadline.is_over()).then_some(found)
    }

    /// Where a loop device is mounted in the namespace of the mount that is searched for.
    fn mounted_at(&self, device: &Loop) -> Vec<String> {
        let own = self.targets.mounts.first().map(|searched| searched.ns);
        let tables = self.views.iter().filter(|view| Some(view.ns) == own).map(|view| &view.table);
        let places = tables.flat_map(MountTable::iter).filter(|mount| device.numbers.contains(&mount.device));
        let mut places: Vec<String> = places.map(|mount| mount.mountpoint.clone()).collect();
        places.dedup();
        places.truncate(PLACES_MAX);
        places
    }

    /// The same in others, once in each: its path means something else here.
    fn mounted_elsewhere(&self, device: &Loop) -> Vec<MountedElsewhere> {
        let is_of = |mount: &Mount| device.numbers.contains(&mount.device);
        let own = self.targets.mounts.first().map(|searched| searched.ns);
        let namespaces = self.index.namespaces.iter().filter(|(ns, _)| Some(**ns) != own);
        let in_time = namespaces.take_while(|_| !self.deadline.is_over());
        let place = |(ns, members): (&NsInum, &Vec<Member>)| {
            let table = mntns_index::mounts(self.proc, members.iter().copied(), is_of)?.table;
            let path = table.iter().find(|mount| is_of(mount))?.mountpoint.clone();
            let (pid, comm) = self.who_is_in(*ns, members)?;
            Some(MountedElsewhere { path, mntns: *ns, pid, comm })
        };
        in_time.filter_map(place).take(PLACES_MAX).collect()
    }

    /// A process in this namespace, else a thread that has it alone: its process is in another one.
    fn who_is_in(&self, ns: NsInum, members: &[Member]) -> Option<(u32, String)> {
        let (processes, threads): (Vec<&Member>, Vec<&Member>) =
            members.iter().partition(|member| member.tid == member.tgid);
        let mut buffer = Buffer::default();
        processes.into_iter().chain(threads).find_map(|member| {
            let comm = self.proc.stat(member.tid)?.comm;
            let now = mount_namespace(&member.dir(self.proc)?, &mut buffer).ok().flatten();
            (now == Some(ns)).then_some((member.tid, comm))
        })
    }
}

/// Whether one that was found still is there; `None` where that cannot be told.
pub(super) fn is_still(proc: &Proc, holder: &Holder, deadline: &Deadline) -> Option<bool> {
    let path = holder.path.as_deref()?;
    let sys = proc.root().with_file_name("sys");
    let has = || {
        let (text, is_named) = list(proc, holder.access)?;
        Some(text.lines().filter_map(is_named).any(|name| unescape(name) == path))
    };
    match holder.access {
        Access::Loop => {
            let name = holder.loop_device.as_ref()?.name.strip_prefix("/dev/")?;
            Some(loop_device::bound(&sys, |file| file == path).iter().any(|device| device.name == name))
        }
        Access::Swap => has(),
        Access::Export => {
            let (exports, has_all) = exports(proc, deadline, |exported| exported == path);
            let is_there = exports.iter().any(|export| export.is_of(holder));
            (is_there || has_all).then_some(is_there)
        }
        Access::Uprobe => has().or(Some(false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::searched::SearchedMount;

    const TABLE: &str = "1 0 8:1 / / rw - ext4 d rw\n2 1 8:9 / /v rw - ext4 e rw\n";

    /// Where a file is that is called `/v/x`, if its file system has this device; mount 2 of the first table is searched for.
    fn place(views: &[&str], device: Option<&str>) -> On {
        let views: Vec<NamespaceMounts> = (1..)
            .zip(views)
            .map(|(ns, text)| NamespaceMounts { ns, table: MountTable::parse(text, "/") })
            .collect();
        let mounts = vec![SearchedMount { ns: 1, mount: views[0].table.by_id(2).unwrap() }];
        let targets = ScanTargets { mounts, tables: BTreeMap::from([(1, &views[0].table)]) };
        let deadline = Deadline::at(std::time::Instant::now() + std::time::Duration::from_secs(600));
        let (proc, index) = (Proc::new("/nonexistent"), MntnsIndex::default());
        let seen = Seen { proc: &proc, targets: &targets, views: &views, index: &index, deadline: &deadline };
        seen.place("/v/x", Some(&|| device.map(str::to_owned)))
    }

    #[test]
    fn the_file_system_decides_where_only_the_searched_mount_has_such_a_name() {
        assert_eq!(place(&[TABLE], Some("8:9")), On::Searched);
        assert_eq!(place(&[TABLE], Some("8:1")), On::Other, "covered by the mount");
        assert_eq!(place(&[TABLE], Some("8:7")), On::Other, "of another namespace");
        assert_eq!(place(&[TABLE], None), On::Unknown);
        let private = "10 0 8:1 / / rw - ext4 d rw\n11 10 8:9 / /v rw - ext4 e rw\n";
        assert_eq!(place(&[TABLE, private], Some("8:9")), On::Unknown, "a copy at the same place");
        let elsewhere = "10 0 8:1 / / rw - ext4 d rw\n11 10 8:9 / /w rw - ext4 e rw\n";
        assert_eq!(place(&[TABLE, elsewhere], Some("8:9")), On::Searched);
        let bound = "1 0 8:9 / / rw - ext4 d rw\n2 1 8:9 /s /v rw - ext4 d rw\n";
        assert_eq!(place(&[bound], Some("8:9")), On::Unknown, "a part of what it covers");
    }

    #[test]
    fn where_a_server_could_have_to_answer_or_files_show_another_device_it_stays_unknown() {
        let served = TABLE.replace("/v rw - ext4 e", "/v rw - fuse.x e");
        assert_eq!(place(&[&served], Some("8:9")), On::Unknown);
        let layered = TABLE.replace("/v rw - ext4 e", "/v rw - btrfs e");
        assert_eq!(place(&[&layered], Some("0:44")), On::Unknown);
    }

    #[test]
    fn only_swap_files_have_names() {
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/v/a\\040b   file\t\t8180\t0\t-2\n/dev/sda2 partition\t1\t0\t-3\n";
        let names: Vec<_> = swaps.lines().filter_map(swap).map(unescape).collect();
        assert_eq!(names, ["/v/a b"]);
    }

    #[test]
    fn a_probe_names_its_file_before_the_place_in_it() {
        let list = "p:uprobes/a /v/lib.so:0x0000000000001000 arg1=%di\nr:b/c /v/x:y:0x10\np:k/f do_exit\n\n";
        let names: Vec<_> = list.lines().filter_map(uprobe).collect();
        assert_eq!(names, ["/v/lib.so", "/v/x:y"]);
    }

    #[test]
    fn swap_files_exports_and_probes_of_such_a_name_are_possible_holders() {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("proc");
        for directory in ["fs/nfs", "7/ns", "7/net/rpc/nfsd.export", "7/net/rpc/nfsd.fh"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::os::unix::fs::symlink("net:[1]", root.join("7/ns/net")).unwrap();
        std::fs::write(root.join("swaps"), "Filename Type\n/v/swap file 1 0 -2\n/w/swap file 1 0 -2\n")
            .unwrap();
        let tracefs = top.path().join("sys/kernel/tracing");
        std::fs::create_dir_all(&tracefs).unwrap();
        std::fs::write(tracefs.join("uprobe_events"), "p:u/a /v/lib:0x10\np:u/b /w/lib:0x10\n").unwrap();
        std::fs::write(root.join("fs/nfs/exports"), "").unwrap();
        let entries = root.join("7/net/rpc/nfsd.export/content");
        std::fs::write(&entries, "/v\t*(ro)\n/v\t10.0.0.1(ro)\n/vv\t*(ro)\n").unwrap();
        std::fs::write(root.join("7/net/rpc/nfsd.fh/content"), "").unwrap();
        let views = [NamespaceMounts { ns: 1, table: MountTable::parse(TABLE, "/") }];
        let mounts = vec![SearchedMount { ns: 1, mount: views[0].table.by_id(2).unwrap() }];
        let targets = ScanTargets { mounts, tables: BTreeMap::from([(1, &views[0].table)]) };
        let deadline = Deadline::at(std::time::Instant::now() + std::time::Duration::from_secs(600));
        let (proc, index) = (Proc::new(&root), MntnsIndex::default());
        let seen = Seen { proc: &proc, targets: &targets, views: &views, index: &index, deadline: &deadline };
        let (mut found, has_all) = holders(&seen);
        assert!(has_all);
        found.extend(probes(&seen).0);
        let told: Vec<_> =
            found.iter().map(|held| (held.access, held.path.as_deref().unwrap(), held.possible)).collect();
        let uprobe = (Access::Uprobe, "/v/lib", true);
        assert_eq!(told, [(Access::Swap, "/v/swap", true), (Access::Export, "/v", true), uprobe]);
        let is_still = |held: &Holder| is_still(&proc, held, &deadline);
        assert!(found.iter().all(|held| is_still(held) == Some(true)));
        std::fs::write(root.join("swaps"), "").unwrap();
        std::fs::write(entries, "/v/a\t*(ro)\n").unwrap();
        assert_eq!([&found[0], &found[1]].map(is_still), [Some(false); 2]);
    }
}
