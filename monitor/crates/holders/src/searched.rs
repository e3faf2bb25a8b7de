//! What a scan searches for: the target, and the copies that would be unmounted along with it.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;

use kevtmon_observation::{MeantMount, NsInum};
use kevtmon_sources::procfs::dir::Dir;
use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, device_numbers, is_below, is_fuse};
use kevtmon_sources::unix_sockets;

use super::resolve::is_local;

/// A mount whose use is looked for: the target, or a copy that would be unmounted along with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchedMount<'a> {
    pub(super) ns: NsInum,
    /// With another mount point than in the table where only what lies below that is searched for.
    pub(super) mount: &'a Mount,
}

#[derive(Debug)]
pub(super) struct ScanTargets<'a> {
    pub(super) mounts: Vec<SearchedMount<'a>>,
    pub(super) tables: BTreeMap<NsInum, &'a MountTable>,
}

impl ScanTargets<'_> {
    /// Whether a file of this name, in this namespace, is on a searched mount.
    pub(super) fn names(&self, ns: NsInum, path: &str) -> bool {
        self.mounts
            .iter()
            .filter(|searched| searched.ns == ns && is_below(path, &searched.mount.mountpoint))
            .any(|searched| {
                let covering = self.tables.get(&ns).and_then(|table| table.covering(path));
                covering.is_some_and(|covering| covering.id == searched.mount.id)
            })
    }

    /// The id of the mount that a link leads to, with this name; `None` where asking could wait for a server.
    pub(super) fn mount_id(
        &self,
        ns: NsInum,
        process: &Dir,
        link: &CStr,
        path: &str,
    ) -> io::Result<Option<u64>> {
        // Whatever is covered is on one of the mounts above.
        let mut above = self.tables.get(&ns).into_iter().flat_map(|table| table.iter());
        match above.all(|mount| !is_below(path, &mount.mountpoint) || answers_at_once(&mount.fstype)) {
            true => process.mount_of(link),
            false => Ok(None),
        }
    }

    /// Whether a file of this name may be on a searched mount, whichever process has it open: a descriptor that came from
    /// another namespace is named from the root of that.
    pub(super) fn selects(&self, path: &str) -> bool {
        self.mounts.iter().any(|searched| is_below(path, &searched.mount.mountpoint))
    }

    /// Whether a file of this name is searched for, on the mount with this id, which is unique over all namespaces. Where
    /// only a part of the mount is, one whose name cannot be shown is not.
    pub(super) fn has(&self, id: u64, path: Option<&str>) -> bool {
        self.mounts.iter().filter(|searched| searched.mount.id == id).any(|searched| {
            !self.is_part(searched) || path.is_some_and(|path| is_below(path, &searched.mount.mountpoint))
        })
    }

    /// The mount with this id, which a link leads to, with the id that is never reused. That of a socket or of a network file
    /// system that could have to ask is not known.
    pub(super) fn held(&self, id: u64, task: &Dir, link: &CStr) -> MeantMount {
        let with_id = || self.mounts.iter().map(|searched| searched.mount).filter(|mount| mount.id == id);
        let unique =
            with_id().any(|mount| answers_at_once(&mount.fstype)).then(|| task.unique_mount_of(link));
        let unique = unique.and_then(|unique| unique.ok().flatten());
        // The link may lead elsewhere by now.
        let is_it = |_: &u64| matches!(task.mount_of(link), Ok(Some(now)) if now == id);
        MeantMount { id, unique: unique.filter(is_it) }
    }

    /// Whether a part of the mount with this id is searched for.
    pub(super) fn has_part_of(&self, id: u64) -> bool {
        self.mounts.iter().any(|searched| searched.mount.id == id && self.is_part(searched))
    }

    fn is_part(&self, searched: &SearchedMount<'_>) -> bool {
        let whole = self.tables.get(&searched.ns).and_then(|table| table.by_id(searched.mount.id));
        whole.is_some_and(|whole| whole.mountpoint != searched.mount.mountpoint)
    }

    /// Whether a file system, by the kernel's number, is that of a searched mount.
    pub(super) fn is_of(&self, device: u32) -> bool {
        self.mounts.iter().any(|searched| unix_sockets::device(&searched.mount.device) == Some(device))
    }

    /// The numbers of the file systems of the searched mounts; `None` where mappings of their files show other ones.
    pub(super) fn file_systems(&self) -> Option<Vec<(u32, u32)>> {
        let number = |searched: &SearchedMount<'_>| {
            device_numbers(&searched.mount.device).filter(|_| !is_layered(&searched.mount.fstype))
        };
        self.mounts.iter().map(number).collect()
    }

    /// Whether a mapping, by its name and the device in hexadecimal, may be of a file on a searched mount.
    pub(super) fn maps(&self, ns: NsInum, path: &str, device: &str) -> bool {
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
    is_local(fstype) || is_fuse(fstype) || matches!(fstype, "nfs" | "nfs4" | "proc")
}

/// Whether files of this type can show another device than their mount.
pub(super) fn is_layered(fstype: &str) -> bool {
    LAYERED.contains(&fstype)
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(targets.file_systems(), Some(vec![(0, 9)]));
    }

    #[test]
    fn of_a_part_of_a_mount_the_name_decides_and_of_a_whole_one_the_id() {
        let table = mount("1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / /v rw - tmpfs t rw\n");
        let (whole, part) =
            (table.by_id(2).unwrap(), Mount { mountpoint: "/v/a".into(), ..whole_of(&table) });
        let has = |mount, path| {
            let mounts = vec![SearchedMount { ns: 7, mount }];
            let targets = ScanTargets { mounts, tables: BTreeMap::from([(7, &table)]) };
            (targets.has(2, path), targets.has_part_of(2))
        };
        assert_eq!(has(whole, Some("/elsewhere")), (true, false), "named from the root of another namespace");
        assert_eq!(has(whole, None), (true, false));
        assert_eq!(has(&part, Some("/v/a/b")), (true, true));
        assert_eq!(has(&part, Some("/v/ab")), (false, true));
        assert_eq!(has(&part, None), (false, true));
    }

    fn whole_of(table: &MountTable) -> Mount {
        table.by_id(2).unwrap().clone()
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
        assert_eq!(targets.file_systems(), None);
    }
}
