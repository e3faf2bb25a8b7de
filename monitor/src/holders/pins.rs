//! How one process pins the target: the links, descriptors and mappings of the process go in, its pins come
//! out.
//!
//! The kernel names files from the reader's root, or from the root of a foreign namespace, so names are
//! compared within the namespace of the process. A name only selects, and the id of the mount decides: a directory that
//! was entered before something was mounted on it has the same name as that. statx(2) tells it, unless asking could wait
//! for a network file system. Opens nothing that is named.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;

use super::Deadline;
use super::mntns_index::{namespace, task_dir, threads};
use super::resolve::is_local;
use crate::observation::{Access, NsInum};
use crate::sources::procfs::dir::{Buffer, Dir, NumberName, is_gone, mnt_id};
use crate::sources::procfs::mountinfo::{Mount, MountTable, is_below, is_fuse};

/// A mount whose use is looked for: the target, or a copy that would be unmounted along with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchedMount<'a> {
    pub(super) ns: NsInum,
    pub(super) mount: &'a Mount,
}

/// What is looked for.
#[derive(Debug)]
pub(super) struct ScanTargets<'a> {
    pub(super) mounts: Vec<SearchedMount<'a>>,
    /// Tables of the namespaces of the mounts.
    pub(super) tables: BTreeMap<NsInum, &'a MountTable>,
}

impl ScanTargets<'_> {
    /// Whether a file of this name, in this namespace, is on a searched mount.
    fn names(&self, ns: NsInum, path: &str) -> bool {
        self.mounts
            .iter()
            .filter(|searched| searched.ns == ns && is_below(path, &searched.mount.mountpoint))
            .any(|searched| {
                let covering = self.tables.get(&ns).and_then(|table| table.covering(path));
                covering.is_some_and(|covering| covering.id == searched.mount.id)
            })
    }

    /// The id of the mount that a link leads to, with this name; `None` where asking could wait for a server.
    fn mount_id(&self, ns: NsInum, process: &Dir, link: &CStr, path: &str) -> io::Result<Option<u64>> {
        // Whatever is covered is on one of the mounts above.
        let mut above = self.tables.get(&ns).into_iter().flat_map(|table| table.iter());
        match above.all(|mount| !is_below(path, &mount.mountpoint) || answers_at_once(&mount.fstype)) {
            true => process.mount_of(link),
            false => Ok(None),
        }
    }

    /// Whether a file of this name may be on a searched mount, whichever process has it open: a descriptor that came from
    /// another namespace is named from the root of that.
    fn selects(&self, path: &str) -> bool {
        self.mounts.iter().any(|searched| is_below(path, &searched.mount.mountpoint))
    }

    /// Whether a mount is a searched one: its id is unique over all namespaces.
    fn has(&self, id: u64) -> bool {
        self.mounts.iter().any(|searched| searched.mount.id == id)
    }

    /// Whether a mapping, by its name and the device in hexadecimal, may be of a file on a searched mount.
    fn maps(&self, ns: NsInum, path: &str, device: &str) -> bool {
        let own = self.names(ns, path);
        self.mounts.iter().filter(|searched| is_below(path, &searched.mount.mountpoint)).any(|searched| {
            if LAYERED.contains(&searched.mount.fstype.as_str()) {
                searched.ns == ns && own
            } else {
                (searched.ns != ns || own) && is_device(device, &searched.mount.device)
            }
        })
    }
}

/// File systems on which statx(2) for no attribute asks no server. NFS only looks at its cache (`nfs_weak_revalidate`).
pub(super) fn answers_at_once(fstype: &str) -> bool {
    is_local(fstype) || is_fuse(fstype) || matches!(fstype, "nfs" | "nfs4")
}

/// File systems whose files can show another device than their mount.
const LAYERED: [&str; 3] = ["overlay", "btrfs", "bcachefs"];

/// Compares a device of `/proc/PID/maps` with one of mountinfo.
pub(super) fn is_device(hexadecimal: &str, decimal: &str) -> bool {
    let parse = |text: &str, radix| {
        let (major, minor) = text.split_once(':')?;
        Some((u32::from_str_radix(major, radix).ok()?, u32::from_str_radix(minor, radix).ok()?))
    };
    parse(hexadecimal, 16).is_some_and(|device| parse(decimal, 10) == Some(device))
}

/// One way in which a process pins the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) access: Access,
    /// Name of the file; none if the kernel cannot show it.
    pub(super) path: Option<String>,
    pub(super) fd: Option<u32>,
}

/// The result for one process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Visit {
    /// At most one for each way.
    pub(super) pins: Vec<Pin>,
    /// Namespace of the process.
    pub(super) ns: NsInum,
    /// Something of it may not be read.
    pub(super) refused: bool,
    /// Time ran out within it.
    pub(super) cut: bool,
    /// What has the name of something on a searched mount, and may be on another one of the same name.
    pub(super) doubts: Vec<Access>,
}

/// Whether what a link leads to is on a searched mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Searched,
    Other,
    /// It has a name there, but the mount cannot be told.
    Unknown,
}

/// Decides by the mount id, and where there is none by whether the name would fit.
fn on(id: io::Result<Option<u64>>, targets: &ScanTargets<'_>, fits: impl FnOnce() -> bool) -> On {
    match id {
        Ok(Some(id)) if targets.has(id) => On::Searched,
        Ok(Some(_)) => On::Other,
        Err(error) if is_gone(&error) => On::Other,
        Ok(None) | Err(_) => match fits() {
            true => On::Unknown,
            false => On::Other,
        },
    }
}

impl Visit {
    fn add(&mut self, access: Access, path: Option<String>, fd: Option<u32>) {
        if !self.pins.iter().any(|pin| pin.access == access) {
            self.pins.push(Pin { access, path, fd });
        }
    }

    /// Records a pin, or a doubt whether it is one.
    fn decide(&mut self, on: On, access: Access, path: &str) {
        match on {
            On::Searched => self.add(access, Some(path.to_owned()), None),
            On::Unknown if !self.doubts.contains(&access) => self.doubts.push(access),
            On::Unknown | On::Other => {}
        }
    }

    /// Records that something could not be read, unless it does not exist.
    fn read<T>(&mut self, result: io::Result<T>) -> Option<T> {
        self.refused |= result.as_ref().is_err_and(|error| !is_gone(error));
        result.ok()
    }
}

/// Descriptors between two looks at the clock.
const FDS_PER_LOOK: u32 = 256;

/// Numbers that may be unused among the lowest ones before the rest is listed.
const MAX_GAPS: u64 = 8;

/// The descriptors of a process.
struct Files<'a> {
    main: &'a Dir,
    list: Dir,
    targets: &'a ScanTargets<'a>,
    deadline: &'a Deadline,
}

/// Whether a descriptor is in use.
enum State {
    Closed,
    Open,
}

/// Reads processes, with buffers for all.
#[derive(Debug, Default)]
pub(super) struct Visitor {
    buffer: Buffer,
    text: Vec<u8>,
}

impl Visitor {
    /// Looks at one process in every way. `None` when it ended, and for a kernel thread.
    pub(super) fn visit(
        &mut self,
        tgid: u32,
        process: &Dir,
        targets: &ScanTargets<'_>,
        deadline: &Deadline,
    ) -> Option<Visit> {
        let tids = threads(tgid, process, &mut self.buffer);
        let mut exe = process.link(c"exe", &mut self.buffer).map(Cow::into_owned);
        // The leader may end before its other threads: then one of these has the descriptors and mappings.
        let mut thread = None;
        for tid in &tids {
            if !exe.as_ref().is_err_and(is_gone) {
                break;
            }
            thread = task_dir(process, *tid);
            let Some(thread) = &thread else { continue };
            exe = thread.link(c"exe", &mut self.buffer).map(Cow::into_owned);
        }
        if exe.as_ref().is_err_and(is_gone) {
            return None;
        }
        let main = thread.as_ref().unwrap_or(process);

        let mut visit = Visit::default();
        visit.ns = visit.read(namespace(main, &mut self.buffer)).flatten().unwrap_or_default();
        let exe = visit.read(exe);
        // Not again as a mapping.
        let mut executable = None;
        if let Some(exe) = exe.filter(|exe| targets.selects(exe)) {
            let on =
                on(targets.mount_id(visit.ns, main, c"exe", &exe), targets, || targets.names(visit.ns, &exe));
            visit.decide(on, Access::Exe, &exe);
            executable = Some(exe).filter(|_| on != On::Other);
        }
        self.directories(main, visit.ns, targets, &mut visit);
        for tid in tids.into_iter().filter(|tid| *tid != tgid) {
            let Some(task) = task_dir(process, tid) else { continue };
            if let Some(Some(ns)) = visit.read(namespace(&task, &mut self.buffer)) {
                self.directories(&task, ns, targets, &mut visit);
            }
        }
        self.descriptors(main, targets, deadline, &mut visit);
        self.mappings(main, executable.as_deref(), targets, &mut visit);
        Some(visit)
    }

    /// Current and root directory, which each thread may have of its own.
    fn directories(&mut self, task: &Dir, ns: NsInum, targets: &ScanTargets<'_>, visit: &mut Visit) {
        for (name, access) in [(c"cwd", Access::Cwd), (c"root", Access::Root)] {
            if let Some(path) = visit.read(task.link(name, &mut self.buffer))
                && targets.selects(&path)
            {
                let on = on(targets.mount_id(ns, task, name, &path), targets, || targets.names(ns, &path));
                visit.decide(on, access, &path);
            }
        }
    }

    /// The first descriptor of the process that is open on a searched mount.
    ///
    /// Listing them would take an eighth of the whole scan. So where the kernel shows how many there are they
    /// are tried from zero, as long as nearly all numbers are in use.
    fn descriptors(&mut self, main: &Dir, targets: &ScanTargets<'_>, deadline: &Deadline, visit: &mut Visit) {
        let Some(list) = visit.read(main.at(c"fd")) else { return };
        let files = Files { main, list, targets, deadline };
        let count = files.list.size();
        let (mut next, mut open) = (0, 0);
        while open < count && u64::from(next) <= open + MAX_GAPS {
            match self.descriptor(&files, next, visit) {
                Some(State::Closed) => {}
                Some(State::Open) => open += 1,
                None => return,
            }
            next += 1;
        }
        if open < count || count == 0 {
            let mut fds = Vec::new();
            visit.read(files.list.numbers(&mut self.buffer, &mut fds));
            for fd in fds.into_iter().filter(|fd| *fd >= next) {
                if self.descriptor(&files, fd, visit).is_none() {
                    return;
                }
            }
        }
    }

    /// Looks at one descriptor. `None` when there is no need to look at another.
    fn descriptor(&mut self, files: &Files<'_>, fd: u32, visit: &mut Visit) -> Option<State> {
        if fd % FDS_PER_LOOK == FDS_PER_LOOK - 1 && files.deadline.is_over() {
            visit.cut = true;
            return None;
        }
        let name = NumberName::new(fd);
        let path = match files.list.link(name.as_c_str(), &mut self.buffer) {
            Ok(path) if files.targets.selects(&path) => Some(path.into_owned()),
            Ok(_) => return Some(State::Open),
            Err(error) if is_gone(&error) => return Some(State::Closed),
            // Where the kernel cannot show the name, the mount id alone decides.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => None,
            Err(_) => {
                visit.refused = true;
                return Some(State::Open);
            }
        };
        let info = visit.read(files.main.at(c"fdinfo"));
        let info = info.and_then(|info| visit.read(info.text(name.as_c_str(), &mut self.text)));
        let held = match (info.as_deref().map(mnt_id), &path) {
            (Some(Some(id)), _) => files.targets.has(id),
            (Some(None), Some(path)) => files.targets.names(visit.ns, path),
            _ => false,
        };
        if held {
            visit.add(Access::Fd, path, Some(fd));
            return None;
        }
        Some(State::Open)
    }

    /// The first mapping of a file on a searched mount, but for the executable itself.
    fn mappings(&mut self, main: &Dir, exe: Option<&str>, targets: &ScanTargets<'_>, visit: &mut Visit) {
        let Some(maps) = visit.read(main.text(c"maps", &mut self.text)) else { return };
        let mapped = maps.lines().filter_map(|line| Some((line, mapped_file(line)?)));
        for (line, (path, device)) in mapped.filter(|(_, (path, _))| targets.selects(path)) {
            if Some(path) == exe {
                continue;
            }
            let id = map_file(line);
            let id = id.map_or(Ok(None), |name| targets.mount_id(visit.ns, main, &name, path));
            let on = on(id, targets, || targets.maps(visit.ns, path, device));
            visit.decide(on, Access::Mmap, &path.replace("\\012", "\n"));
            if on == On::Searched {
                return;
            }
        }
    }
}

/// The link below a process' directory that leads to what a line of its `maps` maps.
fn map_file(line: &str) -> Option<CString> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
    CString::new(format!("map_files/{:x}-{:x}", start?, end?)).ok()
}

/// Name and device of a line of `/proc/PID/maps`, if a file is mapped there.
pub(super) fn mapped_file(line: &str) -> Option<(&str, &str)> {
    let (head, _) = line.split_at(line.find(" /")?);
    let mut fields = head.split_ascii_whitespace();
    let device = fields.nth(3)?;
    // A named anonymous mapping has no inode.
    fields.next().filter(|inode| *inode != "0")?;
    Some((&line[head.len() + 1..], device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_gives_name_and_device_of_a_mapped_file() {
        let line = "7f10-7f20 r-xp 00000000 fe:01 1234                     /srv/a b/lib.so (deleted)";
        assert_eq!(mapped_file(line), Some(("/srv/a b/lib.so (deleted)", "fe:01")));
        for line in [
            "7f10-7f20 rw-p 00000000 00:00 0 ",
            "7f10-7f20 rw-p 00000000 00:00 0          [heap]",
            "7f10-7f20 rw-p 00000000 00:00 0          [anon:x /srv/vol]",
            "7f10-7f20 rw-p",
            "",
        ] {
            assert_eq!(mapped_file(line), None, "{line}");
        }
    }

    #[test]
    fn the_link_to_a_mapped_file_has_no_leading_zeros() {
        let link = map_file("00400000-00401000 r-xp 00000000 fe:01 1234   /bin/x").unwrap();
        assert_eq!(link.to_str().unwrap(), "map_files/400000-401000");
        assert_eq!(map_file("garbage"), None);
    }

    #[test]
    fn the_mount_id_decides_and_without_one_a_name_is_a_doubt_only() {
        let table = mount("1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - tmpfs t rw\n");
        let mounts = vec![SearchedMount { ns: 7, mount: table.by_id(2).unwrap() }];
        let targets = ScanTargets { mounts, tables: BTreeMap::from([(7, &table)]) };
        let decided = |id, fits| on(id, &targets, || fits);
        assert_eq!(decided(Ok(Some(2)), false), On::Searched);
        assert_eq!(decided(Ok(Some(1)), true), On::Other, "below what is mounted at /v");
        assert_eq!(decided(Ok(None), true), On::Unknown);
        assert_eq!(decided(Ok(None), false), On::Other);
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        assert_eq!(decided(error(libc::EPERM), true), On::Unknown);
        assert_eq!(decided(error(libc::ENOENT), true), On::Other);
        let mut visit = Visit::default();
        visit.decide(On::Unknown, Access::Cwd, "/v");
        assert_eq!((&visit.pins[..], &visit.doubts[..]), (&[][..], &[Access::Cwd][..]));
    }

    #[test]
    fn devices_are_compared_by_number() {
        assert!(is_device("fe:01", "254:1"));
        assert!(is_device("00:2a", "0:42"));
        assert!(!is_device("00:42", "0:42"));
        assert!(!is_device("x", "x"));
    }

    fn mount(text: &str) -> MountTable {
        MountTable::parse(text, "/")
    }

    #[test]
    fn a_name_below_a_nested_mount_is_not_on_the_outer_one() {
        let table = mount(
            "1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - tmpfs t rw\n3 2 0:8 / /v/in rw - tmpfs t rw",
        );
        let target = table.by_id(2).unwrap();
        let targets = ScanTargets {
            mounts: vec![SearchedMount { ns: 7, mount: target }],
            tables: BTreeMap::from([(7, &table)]),
        };
        assert!(targets.names(7, "/v") && targets.names(7, "/v/x (deleted)"));
        assert!(!targets.names(7, "/v/in/x"));
        assert!(!targets.names(8, "/v/x"), "another namespace has a directory of the same name");
        assert!(targets.maps(7, "/v/x", "00:09"));
        assert!(targets.maps(8, "/v/x", "00:09"), "a mapping that came from the namespace of the mount");
        assert!(!targets.maps(7, "/v/x", "00:08") && !targets.maps(7, "/v/in/x", "00:09"));
    }

    #[test]
    fn a_layered_file_system_is_recognised_by_name_alone() {
        let table = mount("1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - overlay o rw\n");
        let target = table.by_id(2).unwrap();
        let targets = ScanTargets {
            mounts: vec![SearchedMount { ns: 7, mount: target }],
            tables: BTreeMap::from([(7, &table)]),
        };
        assert!(targets.maps(7, "/v/x", "08:01"));
        assert!(!targets.maps(8, "/v/x", "08:01"));
    }
}
