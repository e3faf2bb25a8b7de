//! What is mounted on a directory by another path: the kernel refuses to remove or rename a directory on which anything is
//! mounted in the mount namespace of the caller, whatever path leads to it (`is_local_mountpoint` in fs/namespace.c).
//!
//! Where a file system is mounted twice, as by a bind mount of a directory above, both paths are compared as they are within
//! that file system.

use kevtmon_sources::procfs::mountinfo::{Mount, MountTable, is_below};

/// A mount on the directory at this path, which lies on the mount `lies_on` and has nothing mounted on it there.
pub(super) fn mount_on<'t>(table: &'t MountTable, path: &str, lies_on: u64) -> Option<&'t Mount> {
    let on = table.by_id(lies_on)?;
    let directory = within(on, path)?;
    let is_on_it = |mount: &&Mount| {
        let below =
            table.by_id(mount.parent).filter(|below| below.id != mount.id && below.device == on.device);
        below.and_then(|below| within(below, &mount.mountpoint)).is_some_and(|point| point == directory)
    };
    table.iter().filter(is_on_it).last()
}

/// The path within the file system of this mount to what is at a path below it.
fn within(mount: &Mount, path: &str) -> Option<String> {
    let below = path.strip_prefix(&*mount.mountpoint).filter(|_| is_below(path, &mount.mountpoint))?;
    let root = mount.root.trim_end_matches('/');
    let path = format!("{root}/{}", below.trim_start_matches('/'));
    Some(path.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
1 0 254:0 / / rw - ext4 /dev/vda rw
2 1 254:0 /data /data rw shared:1 - ext4 /dev/vda rw
3 1 254:0 / /alias rw - ext4 /dev/vda rw
4 3 0:40 / /alias/data/containers/a/shm rw - tmpfs x rw
5 1 8:1 /data/containers /other rw - ext4 /dev/sda rw
6 5 0:41 / /other/a/logs rw - tmpfs x rw
7 2 254:0 /data/containers /srv rw - ext4 /dev/vda rw
8 7 0:42 / /srv/a/mounts rw - tmpfs x rw
";

    fn found(path: &str, lies_on: u64) -> Option<String> {
        let table = MountTable::parse(TABLE, "/");
        mount_on(&table, path, lies_on).map(|mount| mount.mountpoint.clone())
    }

    #[test]
    fn a_mount_by_another_path_to_the_same_directory_is_found() {
        assert_eq!(found("/data/containers/a/shm", 2).as_deref(), Some("/alias/data/containers/a/shm"));
        assert_eq!(found("/data/containers/a/mounts", 2).as_deref(), Some("/srv/a/mounts"));
    }

    #[test]
    fn a_like_path_on_another_file_system_is_another_directory() {
        assert_eq!(found("/data/containers/a/logs", 2), None);
        assert_eq!(found("/data/containers/a", 2), None);
        assert_eq!(found("/data/containers/a/shm", 9), None);
        assert_eq!(found("/elsewhere/a/shm", 2), None);
    }
}
