//! How one process pins the target: the links, descriptors and mappings of the process go in, its pins come
//! out.
//!
//! The kernel names files from the reader's root, or from the root of a foreign namespace, so names are
//! compared within the namespace of the process. A name only selects, and the id of the mount decides: a directory that
//! was entered before something was mounted on it has the same name as that. statx(2) tells it, unless asking could wait
//! for a network file system. Opens nothing that is named.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use kevtmon_observation::{Access, MeantMount, NsInum};
use kevtmon_sources::procfs::dir::{Buffer, Dir, MAX_TEXT, is_gone};
use kevtmon_sources::procfs::procmap::maps_any;

use super::Deadline;
use super::mntns_index::{MAX_THREADS, namespace, task_dir, threads};
use super::orphans::Kept;
use super::searched::ScanTargets;

mod anonymous;
mod described;
mod descriptors;
mod hidden;
mod sockets;
mod unseen;

use anonymous::Anonymous;
pub(super) use described::{Described, describe, described};
pub(super) use descriptors::{Extent, Owner, Rest, Tables};
use descriptors::{FIRST_MAPPINGS, FIRST_MAPS};
use sockets::Sockets;
pub(super) use sockets::{bound_file, is_closed};
use unseen::Foreseen;

/// Of a line of `maps`: what is before the name, and as much of that as a link shows.
const MAPS_LINE: usize = 80 + 4096;

/// Why nothing is said of the rest of what a process has open.
const CUT: &str = "time ran out before all its open files and sockets were read";

/// One way in which a process pins the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) access: Access,
    /// Name of the file; none if the kernel cannot show it.
    pub(super) path: Option<String>,
    pub(super) fd: Option<u32>,
    /// The thread in whose table that is, where the directory of the process does not show it.
    pub(super) tid: Option<u32>,
    /// Whether it may as well pin another mount.
    pub(super) possible: bool,
    /// The searched mount that it is on, where its id told that.
    pub(super) mount: Option<MeantMount>,
}

impl Pin {
    pub(super) fn of(access: Access, path: impl Into<Option<String>>) -> Self {
        Self { access, path: path.into(), fd: None, tid: None, possible: false, mount: None }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Visit {
    /// At most one for each way.
    pub(super) pins: Vec<Pin>,
    pub(super) ns: NsInum,
    pub(super) refused: bool,
    /// What has the name of something on a searched mount, and may be on another one of the same name. All but sockets are
    /// possible pins too.
    pub(super) doubts: Vec<Access>,
    /// Why else it may hold more than was found.
    pub(super) unclear: Vec<String>,
    /// Mount namespaces without a process that it has open, with the descriptors.
    pub(super) kept: Vec<(NsInum, u32)>,
    /// Its program when the look began, as far as that was read.
    pub(super) exe: Option<String>,
}

/// Whether what a link leads to is on a searched mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum On {
    Other,
    /// On the one with this id.
    Searched(u64),
    /// It has a name there, but the mount cannot be told.
    Unknown,
}

/// Decides by the mount id, and where there is none by whether the name would fit.
fn on(id: io::Result<Option<u64>>, path: &str, targets: &ScanTargets<'_>, fits: impl FnOnce() -> bool) -> On {
    match id {
        Ok(Some(id)) if targets.has(id, Some(path)) => On::Searched(id),
        Ok(Some(_)) => On::Other,
        Err(error) if is_gone(&error) => On::Other,
        Ok(None) | Err(_) => match fits() {
            true => On::Unknown,
            false => On::Other,
        },
    }
}

impl Visit {
    /// Records a pin, unless one of its kind is known that is no less certain.
    fn add(&mut self, pin: Pin) {
        match self.pins.iter_mut().find(|known| known.access == pin.access) {
            Some(known) if known.possible && !pin.possible => *known = pin,
            Some(_) => {}
            None => self.pins.push(pin),
        }
    }

    fn may_have(&self, access: Access) -> bool {
        self.pins.iter().any(|pin| pin.access == access)
    }

    fn has(&self, access: Access) -> bool {
        self.pins.iter().any(|pin| pin.access == access && !pin.possible)
    }

    /// Records a pin, or a doubt whether it is one.
    fn decide(&mut self, on: On, access: Access, path: &str, held: impl FnOnce(u64) -> MeantMount) {
        match on {
            On::Searched(id) => self.add(Pin { mount: Some(held(id)), ..Pin::of(access, path.to_owned()) }),
            On::Unknown if !self.doubts.contains(&access) => {
                self.doubts.push(access);
                self.add(Pin { possible: true, ..Pin::of(access, path.to_owned()) });
            }
            On::Unknown | On::Other => {}
        }
    }

    fn doubt(&mut self, why: &str) {
        if !self.unclear.iter().any(|known| known == why) {
            self.unclear.push(why.to_owned());
        }
    }

    /// Records that something could not be read, unless it does not exist.
    fn read<T>(&mut self, result: io::Result<T>) -> Option<T> {
        self.refused |= result.as_ref().is_err_and(|error| !is_gone(error));
        result.ok()
    }
}

#[derive(Debug, Default)]
pub(super) struct Visitor {
    buffer: Buffer,
    text: Vec<u8>,
    sockets: Sockets,
    foreseen: Foreseen,
    anonymous: Anonymous,
    /// Processes that are none of a user.
    kernel_threads: BTreeSet<u32>,
    /// The directory of this process in /proc, if that shows the ids of our own pid namespace.
    own: Option<PathBuf>,
    pub(super) namespaces: Kept,
}

/// The thread that has the files of a process: the first one may have ended.
struct Main {
    tid: u32,
    /// Its directory, if it is not the first one.
    dir: Option<Dir>,
    /// None of a process that ends.
    exe: io::Result<String>,
}

impl Visitor {
    /// `own`: the directory of this process in /proc, if that shows the ids of our own pid namespace.
    pub(super) fn new(own: Option<PathBuf>) -> Self {
        Self { own, ..Self::default() }
    }

    /// Looks at what is quick: executable, and the directories of the first threads. `None` when it has ended, and for
    /// a kernel thread.
    pub(super) fn links(&mut self, tgid: u32, process: &Dir, targets: &ScanTargets<'_>) -> Option<Visit> {
        let Main { dir, exe, .. } = self.main(tgid, process)?;
        let main = dir.as_ref().unwrap_or(process);
        let mut visit = Visit::default();
        visit.ns = visit.read(namespace(main, &mut self.buffer)).flatten().unwrap_or_default();
        if let Some(exe) = visit.read(exe) {
            if let Some(on) = on_mount(c"exe", &exe, main, visit.ns, targets) {
                visit.decide(on, Access::Exe, &exe, |id| targets.held(id, main, c"exe"));
            }
            visit.exe = Some(exe);
        }
        self.directories(main, visit.ns, targets, &mut visit);
        let tids = threads(tgid, process, &mut self.buffer);
        for tid in tids.into_iter().take(MAX_THREADS).filter(|tid| *tid != tgid) {
            self.thread(process, tid, targets, &mut visit);
        }
        Some(visit)
    }

    /// Looks at the directories of the threads that [`Self::links`] leaves out, after this one, and at the first descriptors of
    /// those that have some of their own. Returns at which it stopped, if it did, and adds what is left of the descriptors.
    pub(super) fn crowd(
        &mut self,
        (tgid, after): (u32, u32),
        process: &Dir,
        targets: &ScanTargets<'_>,
        (rest, deadline): (&mut Rest, &Deadline),
    ) -> (Visit, Option<u32>) {
        let mut visit = Visit::default();
        let main = self.main(tgid, process);
        let mut tables = self.tables(main.as_ref().map_or(tgid, |main| main.tid));
        visit.exe = main.as_ref().and_then(|main| main.exe.as_ref().ok().cloned());
        let main = main.as_ref().and_then(|main| main.dir.as_ref()).unwrap_or(process);
        visit.ns = visit.read(namespace(main, &mut self.buffer)).flatten().unwrap_or_default();
        let mut tids = threads(tgid, process, &mut self.buffer);
        let mut tids = tids.split_off(MAX_THREADS.min(tids.len()));
        tids.sort_unstable();
        for (count, tid) in tids.into_iter().filter(|tid| *tid > after).enumerate() {
            if count > MAX_THREADS && deadline.is_over() {
                return (visit, Some(tid - 1));
            }
            if count % MAX_THREADS == 0 {
                tables.begin();
            }
            self.thread(process, tid, targets, &mut visit);
            self.own_table(process, Owner { tgid, tid }, targets, (&mut tables, rest), &mut visit);
        }
        (visit, None)
    }

    /// Looks at what there may be very much of: descriptors and mappings. `None` when it ended. Otherwise also what is
    /// left.
    pub(super) fn files(
        &mut self,
        tgid: u32,
        process: &Dir,
        targets: &ScanTargets<'_>,
        (rest, extent): (Rest, Extent<'_>),
    ) -> Option<(Visit, Option<Rest>)> {
        let Main { tid, dir, exe } = self.main(tgid, process)?;
        let main = dir.as_ref().unwrap_or(process);
        let mut visit = Visit::default();
        visit.ns = visit.read(namespace(main, &mut self.buffer)).flatten().unwrap_or_default();
        let mut left = rest.clone();
        visit.exe = exe.as_ref().ok().cloned();
        let owner = Owner { tgid, tid };
        if !self.all_descriptors(owner, (process, main), targets, (&mut left, extent), &mut visit) {
            return Some((visit, Some(left)));
        }
        if rest.maps {
            // Not again as a mapping.
            let exe = exe.ok().filter(|exe| on_mount(c"exe", exe, main, visit.ns, targets) > Some(On::Other));
            let most = if matches!(extent, Extent::First) { FIRST_MAPS } else { u64::MAX };
            left.maps = !self.mappings(main, (exe.as_deref(), most), targets, &mut visit);
        }
        Some((visit, Some(left).filter(Rest::is_any)))
    }

    fn main(&mut self, tgid: u32, process: &Dir) -> Option<Main> {
        let exe = process.link(c"exe", &mut self.buffer).map(Cow::into_owned);
        if !exe.as_ref().is_err_and(is_gone) {
            return Some(Main { tid: tgid, dir: None, exe });
        }
        if self.is_kernel_thread(tgid, process) {
            return None;
        }
        let mut ending = self.has_root(process).then_some((tgid, None));
        let others = threads(tgid, process, &mut self.buffer).into_iter().filter(|tid| *tid != tgid);
        for tid in others.take(MAX_THREADS) {
            let Some(thread) = task_dir(process, tid) else { continue };
            let exe = thread.link(c"exe", &mut self.buffer).map(Cow::into_owned);
            if !exe.as_ref().is_err_and(is_gone) {
                return Some(Main { tid, dir: Some(thread), exe });
            }
            if ending.is_none() && self.has_root(&thread) {
                ending = Some((tid, Some(thread)));
            }
        }
        // Who ends has no program any more, and its files and directories until they are given back, in this order.
        let (tid, dir) = ending?;
        Some(Main { tid, dir, exe })
    }

    fn has_root(&mut self, task: &Dir) -> bool {
        !task.link(c"root", &mut self.buffer).is_err_and(|error| is_gone(&error))
    }

    fn thread(&mut self, process: &Dir, tid: u32, targets: &ScanTargets<'_>, visit: &mut Visit) {
        let Some(task) = task_dir(process, tid) else { return };
        if let Some(Some(ns)) = visit.read(namespace(&task, &mut self.buffer)) {
            self.directories(&task, ns, targets, visit);
        }
    }

    /// Current and root directory, which each thread may have of its own.
    fn directories(&mut self, task: &Dir, ns: NsInum, targets: &ScanTargets<'_>, visit: &mut Visit) {
        for (name, access) in [(c"cwd", Access::Cwd), (c"root", Access::Root)] {
            if let Some(path) = visit.read(task.link(name, &mut self.buffer))
                && let Some(on) = on_mount(name, &path, task, ns, targets)
            {
                visit.decide(on, access, &path, |id| targets.held(id, task, name));
            }
        }
    }

    /// The first mapping of a file on a searched mount, but for the executable itself, within so many bytes. False if there
    /// are more.
    fn mappings(
        &mut self,
        main: &Dir,
        (exe, most): (Option<&str>, u64),
        targets: &ScanTargets<'_>,
        visit: &mut Visit,
    ) -> bool {
        // Nearly no process maps any, and the text takes the kernel several times as long.
        if let Some(file_systems) = targets.file_systems()
            && let Ok(Some(false)) = maps_any(main, &file_systems, FIRST_MAPPINGS)
        {
            return true;
        }
        let ns = visit.ns;
        let is_all = main.lines(c"maps", (most, MAPS_LINE), |line, _| {
            let Some((shown, device)) = mapped_file(line) else { return ControlFlow::Continue(()) };
            let names = [Cow::Borrowed(shown), Cow::Owned(file_name(shown))];
            let Some(path) = names.iter().find(|path| targets.selects(path)).map(|path| &**path) else {
                return ControlFlow::Continue(());
            };
            if Some(path) == exe {
                return ControlFlow::Continue(());
            }
            let id = map_file(line);
            let id = id.map_or(Ok(None), |name| targets.mount_id(ns, main, &name, path));
            let on = on(id, path, targets, || targets.maps(ns, path, device));
            let is_searched = matches!(on, On::Searched(_));
            visit.decide(on, Access::Mmap, path, |id| MeantMount { id, unique: None });
            if is_searched { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        visit.read(is_all).unwrap_or(true)
    }
}

/// The name of a mapped file as the links of a process show it: in the text its line breaks are escaped, and nothing else is.
pub(super) fn file_name(mapped: &str) -> String {
    mapped.replace("\\012", "\n")
}

/// Whether a process maps a file of this name, of a file system that fits; `None` where it has more mappings than are read, or
/// maps files of other names there, of which it may have been one.
pub(super) fn maps_file(process: &Dir, name: &str, fits: impl Fn(&str) -> bool) -> io::Result<Option<bool>> {
    let (mut is_found, mut is_other) = (false, false);
    let is_all = process.lines(c"maps", (MAX_TEXT, MAPS_LINE), |line, is_cut| {
        if let Some((path, _)) = mapped_file(line).filter(|(_, device)| fits(device)) {
            let path = file_name(path);
            is_found = path == name || is_cut && path.starts_with(name);
            is_other = true;
        }
        if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok((is_found || is_all && !is_other).then_some(is_found))
}

/// Whether a link of a task leads to a searched mount; `None` where its name alone says that it does not.
fn on_mount(link: &CStr, path: &str, task: &Dir, ns: NsInum, targets: &ScanTargets<'_>) -> Option<On> {
    targets
        .selects(path)
        .then(|| on(targets.mount_id(ns, task, link, path), path, targets, || targets.names(ns, path)))
}

/// The link below a process' directory that leads to what a line of its `maps` maps.
pub(super) fn map_file(line: &str) -> Option<CString> {
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
    use std::collections::BTreeMap;

    use kevtmon_sources::procfs::Proc;
    use kevtmon_sources::procfs::mountinfo::MountTable;

    use super::*;
    use crate::searched::SearchedMount;

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
    fn a_mapped_file_with_a_line_break_in_its_name_is_found_again_and_so_is_one_with_a_long_name() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("7")).unwrap();
        let process = Proc::new(root.path()).dir(7).unwrap();
        let maps = |name: &str, wanted: &str| {
            let head = "7f10-7f20 r-xp 00000000 00:09 1234                     ";
            std::fs::write(root.path().join("7/maps"), format!("7f00-7f10 rw-p 0 00:00 0 \n{head}{name}\n"))
                .unwrap();
            maps_file(&process, wanted, |device| device == "00:09").unwrap()
        };
        assert_eq!(maps("/v/a\\012b", "/v/a\nb"), Some(true));
        assert_eq!(maps("/v/a (deleted)", "/v/a"), None, "it has another name now");
        assert_eq!(maps("/v/a\n7f20-7f30 r-xp 0 00:0a 7 /v/b", "/v/a"), Some(true));
        assert_eq!(maps_file(&process, "/v/a", |_| false).unwrap(), Some(false));
        let long = format!("/{}", "x".repeat(10_000));
        assert_eq!(maps(&long, &long[..4000]), Some(true));
        assert_eq!(maps(&format!("{long}\n").repeat(7000), "/v/b"), None, "not all of it is read");
    }

    #[test]
    fn the_link_to_a_mapped_file_has_no_leading_zeros() {
        let link = map_file("00400000-00401000 r-xp 00000000 fe:01 1234   /bin/x").unwrap();
        assert_eq!(link.to_str().unwrap(), "map_files/400000-401000");
        assert_eq!(map_file("garbage"), None);
    }

    #[test]
    fn the_mount_id_decides_and_without_one_a_name_is_a_doubt_only() {
        let table = MountTable::parse("1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - tmpfs t rw\n", "/");
        let mounts = vec![SearchedMount { ns: 7, mount: table.by_id(2).unwrap() }];
        let targets = ScanTargets { mounts, tables: BTreeMap::from([(7, &table)]) };
        let decided = |id, fits| on(id, "/v", &targets, || fits);
        assert_eq!(decided(Ok(Some(2)), false), On::Searched(2));
        assert_eq!(decided(Ok(Some(1)), true), On::Other, "below what is mounted at /v");
        assert_eq!(decided(Ok(None), true), On::Unknown);
        assert_eq!(decided(Ok(None), false), On::Other);
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        assert_eq!(decided(error(libc::EPERM), true), On::Unknown);
        assert_eq!(decided(error(libc::ENOENT), true), On::Other);
        let mut visit = Visit::default();
        visit.decide(On::Unknown, Access::Cwd, "/v", |id| MeantMount { id, unique: None });
        let possible = Pin { possible: true, ..Pin::of(Access::Cwd, "/v".to_owned()) };
        assert_eq!((&visit.pins[..], &visit.doubts[..]), (&[possible][..], &[Access::Cwd][..]));
        visit.decide(On::Searched(2), Access::Cwd, "/v", |id| MeantMount { id, unique: None });
        visit.decide(On::Unknown, Access::Cwd, "/v", |id| MeantMount { id, unique: None });
        assert_eq!(visit.pins.iter().map(|pin| pin.possible).collect::<Vec<_>>(), [false]);
    }
}
