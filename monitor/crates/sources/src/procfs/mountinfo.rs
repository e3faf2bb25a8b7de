//! `/proc/PID/mountinfo`: the text of one mount namespace goes in, a table of its mounts comes out.
//!
//! Pure: reads no file. Optional fields that are not known are passed over, and so are lines that do not
//! parse (proc_pid_mountinfo(5); `show_mountinfo` in fs/proc_namespace.c).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kevtmon_observation::{MountFacts, NsInum};
use kevtmon_types::redact;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mount {
    /// Unique over all namespaces while the mount exists; reused after.
    pub id: u64,
    /// The mount that this one sits on.
    pub parent: u64,
    /// `major:minor` of the file system (`s_dev` of its super block).
    pub device: String,
    /// Path within the file system that is mounted.
    pub root: String,
    /// Where, in the view of the process whose file it was.
    pub mountpoint: String,
    /// Peer group that it shares mounts and unmounts with.
    pub shared: Option<u64>,
    /// Peer group that it receives them from.
    pub master: Option<u64>,
    pub fstype: String,
    pub source: String,
}

impl Mount {
    /// As it appears in an observation.
    pub fn facts(&self, mntns: NsInum, unique: Option<u64>) -> MountFacts {
        MountFacts {
            id: self.id,
            parent: Some(self.parent),
            unique,
            mountpoint: self.mountpoint.clone(),
            root: self.root.clone(),
            fstype: self.fstype.clone(),
            source: redact::mount_source(&self.source),
            device: self.device.clone(),
            mntns,
        }
    }

    /// Whether it shares or receives what is mounted on it.
    pub fn propagates(&self) -> bool {
        self.shared.is_some() || self.master.is_some()
    }

    /// Where in the file system of the mount below it sits.
    pub fn place_on(&self, parent: &Self) -> Option<String> {
        let below = self.mountpoint.strip_prefix(parent.mountpoint.trim_end_matches('/'))?;
        Some(format!("{}{below}", parent.root.trim_end_matches('/')))
    }

    /// Whether the other mounts the same directory of the same file system.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        self.device == other.device && self.root == other.root
    }
}

/// The mounts of a namespace, in the order of the kernel's list: a later one covers an earlier one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
    /// Bytes of their names.
    size: usize,
    is_cut: bool,
}

/// Mounts that a table has at most, and bytes of their names: a user can make very many, and the names as long as he likes.
const MOUNTS_MAX: usize = 1 << 16;
const NAMES_MAX: usize = 8 << 20;

impl MountTable {
    /// Parses the text. `root` is the root directory of the process whose file it was, as its link shows it
    /// (`/` but for a chroot): mount points are relative to it.
    pub fn parse(text: &str, root: &str) -> Self {
        let mut table = Self::default();
        text.lines().for_each(|line| table.add_line(line, false, root));
        table
    }

    /// Adds what a line shows, as [`Self::parse`] does. `is_cut`: there is more of the line, which does not matter where that
    /// is behind the names.
    pub fn add_line(&mut self, line: &str, is_cut: bool, root: &str) {
        let has_names = |line: &str| {
            line.split_once(" - ").is_some_and(|(_, file_system)| file_system.matches(' ').count() > 1)
        };
        if is_cut && !has_names(line) {
            self.is_cut = true;
            return;
        }
        let Some(mut mount) = parse_line(line) else { return };
        let root = root.trim_end_matches('/');
        if !root.is_empty() {
            let below = mount.mountpoint.trim_end_matches('/');
            mount.mountpoint = format!("{root}{below}");
        }
        let size = self.size + mount.root.len() + mount.mountpoint.len() + mount.source.len();
        if self.mounts.len() >= MOUNTS_MAX || size > NAMES_MAX {
            self.is_cut = true;
            return;
        }
        self.size = size;
        self.mounts.push(mount);
    }

    /// Whether there are mounts that it does not have: too many, or with too long names.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Notes that there are more.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    pub fn retain(&mut self, is_kept: impl FnMut(&Mount) -> bool) {
        self.mounts.retain(is_kept);
        self.mounts.shrink_to_fit();
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        let of = |mount: &Mount| mount.root.len() + mount.mountpoint.len() + mount.source.len();
        self.mounts.iter().map(|mount| of(mount) + 2 * size_of::<Mount>()).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// Whether it has no mount: the process that it is from has a root directory that was detached, and sees none.
    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    pub fn by_id(&self, id: u64) -> Option<&Mount> {
        self.mounts.iter().find(|mount| mount.id == id)
    }

    /// What is mounted at exactly this path; the topmost where several are.
    pub fn at(&self, path: &str) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mountpoint == path)
    }

    /// The topmost mount at this path, of those that can be reached from a directory on the mount `parent`: others at the
    /// same path are hidden, because something is mounted above them.
    pub fn topmost(&self, path: &str, parent: u64) -> Option<&Mount> {
        let mut found: Option<&Mount> = None;
        for _ in 0..self.mounts.len() {
            let below = found.map_or(parent, |mount| mount.id);
            let is_next =
                |mount: &&Mount| mount.parent == below && mount.id != below && mount.mountpoint == path;
            let Some(next) = self.mounts.iter().find(is_next) else { break };
            found = Some(next);
        }
        found
    }

    /// The mount that a file of this name is on: the one with the longest mount point above it.
    pub fn covering(&self, path: &str) -> Option<&Mount> {
        // Of equally long ones the last is taken, which covers the others.
        self.mounts
            .iter()
            .filter(|mount| is_below(path, &mount.mountpoint))
            .max_by_key(|mount| mount.mountpoint.len())
    }

    /// To follow paths through it.
    pub fn paths(&self) -> Paths<'_> {
        let ids: BTreeSet<u64> = self.mounts.iter().map(|mount| mount.id).collect();
        let is_own = |mount: &Mount| mount.parent == mount.id || !ids.contains(&mount.parent);
        let root = self.mounts.iter().find(|mount| mount.mountpoint == "/" && is_own(mount));
        let mut on = BTreeMap::new();
        for mount in self.mounts.iter().filter(|mount| mount.parent != mount.id) {
            on.entry((mount.parent, mount.mountpoint.as_str())).or_insert(mount);
        }
        Paths { root, on }
    }

    pub fn children(&self, id: u64) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(move |mount| mount.parent == id && mount.id != id)
    }

    /// Where in the file system of its parent a mount sits: mounts and unmounts propagate to the same place
    /// of the parent's copies.
    pub fn attachment<'a>(&'a self, mount: &Mount) -> Option<Attachment<'a>> {
        let parent = self.by_id(mount.parent).filter(|parent| parent.id != mount.id)?;
        Some(Attachment { parent, path: mount.place_on(parent)? })
    }
}

impl FromIterator<Mount> for MountTable {
    fn from_iter<T: IntoIterator<Item = Mount>>(mounts: T) -> Self {
        Self { mounts: mounts.into_iter().collect(), ..Self::default() }
    }
}

/// The mounts of a table by the mount and the path that they are on.
#[derive(Debug)]
pub struct Paths<'t> {
    root: Option<&'t Mount>,
    on: BTreeMap<(u64, &'t str), &'t Mount>,
}

impl<'t> Paths<'t> {
    /// The mount that a path leads to from the root directory: each step goes to what is mounted there first. Others at the path,
    /// or above it, are hidden.
    pub fn reached(&self, path: &str) -> Option<&'t Mount> {
        let mut reached = self.root?;
        // A table that was read while it changed may lead round in a circle.
        let mut left = 0..self.on.len();
        let above = path.match_indices('/').filter_map(|(end, _)| path.get(..end.max(1)));
        for step in above.chain([path]) {
            let next = |reached: &Mount| self.on.get(&(reached.id, step)).copied();
            while let Some(mount) = next(reached).filter(|_| left.next().is_some()) {
                reached = mount;
            }
        }
        Some(reached)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment<'a> {
    pub parent: &'a Mount,
    /// Path within the parent's file system.
    pub path: String,
}

/// The parts of `major:minor`.
pub fn device_numbers(device: &str) -> Option<(u32, u32)> {
    let (major, minor) = device.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Whether a path, as the kernel names an open file, is the mount point or below it. A file that was
/// unlinked has ` (deleted)` after its name.
pub fn is_below(path: &str, mountpoint: &str) -> bool {
    match path.strip_prefix(mountpoint.trim_end_matches('/')) {
        Some("") => !path.is_empty(),
        Some(rest) => rest.starts_with('/') || rest == " (deleted)",
        None => false,
    }
}

pub fn is_fuse(fstype: &str) -> bool {
    matches!(fstype, "fuse" | "fuseblk") || fstype.starts_with("fuse.")
}

/// File systems that the kernel has of its own, or makes for each namespace: they keep nothing.
const OF_THE_KERNEL: [&str; 20] = [
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
    "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs",
    "sysfs", "tracefs",
];

/// Whether file systems of this type keep nothing that somebody may want to be rid of.
pub fn is_of_the_kernel(fstype: &str) -> bool {
    OF_THE_KERNEL.contains(&fstype)
}

fn parse_line(line: &str) -> Option<Mount> {
    // Blanks within fields are escaped, so the first separator is the one.
    let (place, file_system) = line.split_once(" - ")?;
    let mut fields = place.split(' ');
    let id = fields.next()?.parse().ok()?;
    let parent = fields.next()?.parse().ok()?;
    let device = fields.next()?.to_owned();
    let root = unescape(fields.next()?).into_owned();
    let mountpoint = unescape(fields.next()?).into_owned();
    let (mut shared, mut master) = (None, None);
    for option in fields.skip(1) {
        match option.split_once(':') {
            Some(("shared", group)) => shared = group.parse().ok(),
            Some(("master", group)) => master = group.parse().ok(),
            _ => {}
        }
    }
    let mut fields = file_system.split(' ');
    let fstype = fields.next()?.to_owned();
    let source = unescape(fields.next()?).into_owned();
    Some(Mount { id, parent, device, root, mountpoint, shared, master, fstype, source })
}

/// The id of a mount of NFS version 4 and the address of its client, by the line: as mount.nfs(8) found it, or as it was given
/// (`nfs_show_nfsv4_options`, fs/nfs/super.c).
pub fn nfs_client(line: &str) -> Option<(u64, IpAddr)> {
    let (place, file_system) = line.split_once(" - ")?;
    let mut fields = file_system.split(' ');
    fields.next().filter(|fstype| matches!(*fstype, "nfs" | "nfs4"))?;
    let address = fields.nth(1)?.split(',').find_map(|option| option.strip_prefix("clientaddr="))?;
    Some((place.split(' ').next()?.parse().ok()?, address.parse().ok()?))
}

/// The upper directory of an overlay by the line, as it was given (`ovl_show_options`, fs/overlayfs).
pub fn overlay_upper(line: &str) -> Option<Cow<'_, str>> {
    let (_, file_system) = line.split_once(" - ")?;
    let mut fields = file_system.split(' ');
    fields.next().filter(|fstype| *fstype == "overlay")?;
    fields.nth(1)?.split(',').find_map(|option| option.strip_prefix("upperdir=")).map(unescape)
}

/// Undoes the octal escapes of blanks, tabs, line ends, backslashes and number signs.
pub fn unescape(field: &str) -> Cow<'_, str> {
    if !field.contains('\\') {
        return Cow::Borrowed(field);
    }
    let mut rest = field.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        match octal(rest) {
            Some(value) => {
                bytes.push(value);
                rest = &rest[4..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn octal(escape: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(escape.strip_prefix(b"\\")?.get(..3)?).ok()?;
    if digits.starts_with('+') { None } else { u8::from_str_radix(digits, 8).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:50 / /srv/a\\040b\\134c rw shared:7 - tmpfs none rw
41 40 0:51 /sub /srv/a\\040b\\134c/in rw,noatime shared:8 master:2 propagate_from:3 new:1 - fuse.x h:/v rw
42 27 0:52 / /srv/x rw unbindable - tmpfs lower rw
43 42 0:53 / /srv/x rw - tmpfs upper rw
44 27 0:4 net:[4026532253] /run/netns/a rw - nsfs nsfs rw
";

    #[test]
    fn escapes_and_optional_fields_are_read_and_unknown_ones_passed_over() {
        let table = MountTable::parse(HOST, "/");
        let inner = table.by_id(41).unwrap();
        assert_eq!(inner.mountpoint, "/srv/a b\\c/in");
        assert_eq!((inner.shared, inner.master), (Some(8), Some(2)));
        assert_eq!((inner.fstype.as_str(), inner.source.as_str()), ("fuse.x", "h:/v"));
        assert_eq!((inner.device.as_str(), inner.root.as_str()), ("0:51", "/sub"));
        assert_eq!(table.by_id(42).unwrap().shared, None);
        assert_eq!(table.at("/run/netns/a").unwrap().root, "net:[4026532253]");
        assert_eq!(table.iter().count(), 6);
    }

    #[test]
    fn lines_that_do_not_parse_are_passed_over() {
        let text =
            format!("\nx\n27 1 254:0 / / rw - ext4\n27 1 254:0 / / rw\na b c d e f - g h i\n{HOST}27 1");
        assert_eq!(MountTable::parse(&text, "/"), MountTable::parse(HOST, "/"));
    }

    #[test]
    fn a_mount_of_nfs_shows_the_address_of_its_client_since_version_4() {
        let of = |file_system: &str| nfs_client(&format!("31 22 0:40 / /a rw shared:7 - {file_system}"));
        let client = |address: &str| Some((31, address.parse().unwrap()));
        let options =
            "rw,vers=4.2,proto=tcp,sec=sys,clientaddr=10.244.0.6,local_lock=none,addr=20.150.29.168";
        assert_eq!(of(&format!("nfs4 files:/a\\040b {options}")), client("10.244.0.6"));
        assert_eq!(of("nfs4 [fd00::1]:/a rw,vers=4.1,clientaddr=fd00::7,addr=fd00::1"), client("fd00::7"));
        let version_3 =
            "rw,vers=3,sec=sys,mountaddr=192.26.114.44,mountvers=3,local_lock=none,addr=192.26.114.44";
        for other in [
            &format!("nfs files:/a {version_3}"),
            "nfs4 files:/a rw,clientaddr=fe80::1%eth0",
            "nfs4 files:/a",
            "fuse.x clientaddr=10.0.0.1 rw,clientaddr=10.0.0.1",
            "overlay clientaddr=10.0.0.1 rw",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn an_overlay_shows_the_name_of_its_upper_directory() {
        let of = |file_system: &str| {
            let line = format!("31 22 0:40 / /a rw shared:7 - {file_system}");
            overlay_upper(&line).map(Cow::into_owned)
        };
        let options = "rw,lowerdir=/l:/m,upperdir=/v/a\\054\\040b,workdir=/w,index=on";
        assert_eq!(of(&format!("overlay none {options}")).as_deref(), Some("/v/a, b"));
        assert_eq!(of("overlay upperdir=/v ro,lowerdir=/l:/m"), None);
        assert_eq!(of("fuse.x none rw,upperdir=/v"), None);
    }

    #[test]
    fn a_backslash_that_is_no_escape_stays() {
        assert_eq!(unescape("a\\040b"), "a b");
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(unescape("a\\999\\"), "a\\999\\");
        assert_eq!(unescape("\\777\\+12é\\011"), "\\777\\+12é\t");
    }

    #[test]
    fn of_two_mounts_at_one_path_the_last_is_the_topmost() {
        let table = MountTable::parse(HOST, "/");
        assert_eq!(table.at("/srv/x").unwrap().id, 43);
        assert_eq!(table.covering("/srv/x/file").unwrap().id, 43);
        assert_eq!(table.at("/srv"), None);
    }

    #[test]
    fn of_the_mounts_at_one_path_those_below_a_cover_are_hidden() {
        let table = MountTable::parse(HOST, "/");
        assert_eq!(table.topmost("/srv/x", 27).unwrap().id, 43);
        assert_eq!(table.topmost("/srv/x", 40), None);
        assert_eq!(table.topmost("/srv/a b\\c/in", 40).unwrap().id, 41);
    }

    #[test]
    fn a_path_leads_to_what_is_mounted_first_on_its_way() {
        let table = MountTable::parse(HOST, "/");
        let reached = |table: &MountTable, path: &str| table.paths().reached(path).map(|mount| mount.id);
        assert_eq!(reached(&table, "/srv/x/file"), Some(43));
        assert_eq!(reached(&table, "/srv/a b\\c/in"), Some(41));
        assert_eq!(reached(&table, "/etc"), Some(27));
        let over = format!("{HOST}51 41 0:61 / /srv/a\\040b\\134c/in rw - tmpfs u rw\n");
        assert_eq!(reached(&MountTable::parse(&over, "/"), "/srv/a b\\c/in"), Some(51));
        let above = format!("{over}50 27 0:60 / /srv rw - tmpfs t rw\n");
        assert_eq!(reached(&MountTable::parse(&above, "/"), "/srv/a b\\c/in"), Some(50));
        assert_eq!(reached(&MountTable::default(), "/srv"), None);
    }

    #[test]
    fn a_file_is_on_the_mount_with_the_longest_mount_point_above_it() {
        let table = MountTable::parse(HOST, "/");
        assert_eq!(table.covering("/srv/a b\\c/in/f (deleted)").unwrap().id, 41);
        assert_eq!(table.covering("/srv/a b\\c/inside").unwrap().id, 40);
        assert_eq!(table.covering("/srv/a b\\cd").unwrap().id, 27);
        assert_eq!(table.covering("pipe:[3]"), None);
    }

    #[test]
    fn a_path_is_below_a_mount_point_only_at_a_name_boundary() {
        assert!(is_below("/a/b", "/a/b"));
        assert!(is_below("/a/b/c", "/a/b"));
        assert!(is_below("/a/b (deleted)", "/a/b"));
        assert!(is_below("/a", "/"));
        assert!(is_below("/", "/"));
        assert!(!is_below("/a/bc", "/a/b"));
        assert!(!is_below("socket:[1]", "/"));
    }

    #[test]
    fn mount_points_seen_from_a_chroot_get_its_root_in_front() {
        let table =
            MountTable::parse("50 40 0:50 / / rw - tmpfs t rw\n51 50 0:51 / /in rw - tmpfs t rw\n", "/jail");
        assert_eq!(table.at("/jail").unwrap().id, 50);
        assert_eq!(table.at("/jail/in").unwrap().id, 51);
    }

    #[test]
    fn the_attachment_of_a_mount_is_given_in_its_parents_file_system() {
        let table = MountTable::parse(HOST, "/");
        let attachment = table.attachment(table.by_id(41).unwrap()).unwrap();
        assert_eq!((attachment.parent.id, attachment.path.as_str()), (40, "/in"));
        let attachment = table.attachment(table.by_id(43).unwrap()).unwrap();
        assert_eq!((attachment.parent.id, attachment.path.as_str()), (42, ""));
        assert_eq!(table.attachment(table.by_id(27).unwrap()), None);
        let bound = "60 27 0:51 /sub /b rw - fuse.x h:/v rw\n61 60 0:9 / /b/c rw - tmpfs t rw\n";
        let table = MountTable::parse(bound, "/");
        assert_eq!(table.attachment(table.by_id(61).unwrap()).unwrap().path, "/sub/c");
    }
}
