//! File systems that may be on several devices: their mounts show the number of none, and those of Btrfs the name of one alone. sysfs
//! shows which devices those have that are in use.

use std::fs;
use std::path::Path;

use crate::loop_device::{names, text};

/// The names below /dev of all devices of such file systems, as far as one of theirs has a name of which this holds. `sys`: where
/// sysfs is.
pub fn devices(sys: &Path, is_it: impl Fn(&str) -> bool) -> Vec<String> {
    let file_systems = |kind: &str| {
        let directory = sys.join("fs").join(kind);
        names(&directory).map(move |uuid| directory.join(uuid))
    };
    let of_btrfs = file_systems("btrfs").map(|it| names(&it.join("devices")).collect::<Vec<_>>());
    let of_bcachefs = file_systems("bcachefs").map(|it| {
        let device = |member: String| {
            let link = fs::read_link(it.join(member).join("block")).ok()?;
            Some(link.file_name()?.to_str()?.to_owned())
        };
        names(&it).filter_map(device).collect::<Vec<_>>()
    });
    let all = of_btrfs.chain(of_bcachefs);
    let wanted = all.filter(|devices| devices.iter().any(|device| is_it(device))).flatten();
    let with_mapping = |device: String| {
        let mapping = text(&sys.join("block").join(&device).join("dm/name"));
        [Some(device), mapping.map(|name| format!("mapper/{name}"))]
    };
    wanted.flat_map(with_mapping).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_system_of_several_devices_names_those_that_it_has() {
        let sys = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(sys.path().join(path)).unwrap();
        for path in [
            "fs/btrfs/features", "fs/btrfs/7b7a2f50/devices/sdb", "fs/btrfs/7b7a2f50/devices/dm-0",
            "fs/btrfs/0c1d2e3f/devices/sdc", "fs/bcachefs/1a2b3c4d/internal", "fs/bcachefs/1a2b3c4d/dev-0",
            "block/dm-0/dm",
        ] {
            make(path);
        }
        symlink("../../../../devices/rbd/1/block/rbd1", sys.path().join("fs/bcachefs/1a2b3c4d/dev-0/block"))
            .unwrap();
        fs::write(sys.path().join("block/dm-0/dm/name"), "vg-data\n").unwrap();
        let of = |name: &str| {
            let mut found = devices(sys.path(), |device| device == name);
            found.sort();
            found
        };
        assert_eq!(of("sdb"), ["dm-0", "mapper/vg-data", "sdb"]);
        assert_eq!(of("sdc"), ["sdc"]);
        assert_eq!(of("rbd1"), ["rbd1"]);
        assert_eq!(of("features"), [""; 0]);
    }
}
