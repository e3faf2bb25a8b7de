//! Copies of the node's mounts in a mount namespace of the daemon's own.
//!
//! A container has a root, file systems of the kernel, and directories of the node that it was given. One that was given with
//! other mounts below it, or that is a mount itself, has copies of these, and the node cannot be rid of their file systems
//! while the container runs. A single directory of a file system keeps that as well: whoever gives it knows.

use std::path::{Path, PathBuf};

use crate::procfs::mountinfo::{Mount, MountTable, is_below, is_of_the_kernel};

/// Below these, a tmpfs of a container is its own, or that of its pod.
const OWN_PLACES: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Whether a mount of this table is a copy of one of the node's. Directories of the daemon's own may be mounts.
pub(super) fn are_in(table: &MountTable, own: &[PathBuf]) -> bool {
    // Without a root nothing is known of it.
    let Some(root) = table.at("/") else { return true };
    let is_copy = |mount: &Mount| {
        let parent = table.by_id(mount.parent).filter(|parent| parent.id != root.id);
        // A volume in memory that is a mount itself is one of its own pod, as a kubelet makes them for secrets.
        let is_whole = mount.root == "/" && mount.fstype != "tmpfs";
        parent.is_some_and(|parent| !is_made_for_it(parent)) || is_whole
    };
    let is_of_its_own = |mount: &Mount| own.iter().any(|directory| Path::new(&mount.mountpoint) == directory);
    table
        .iter()
        .any(|mount| mount.id != root.id && !is_made_for_it(mount) && !is_of_its_own(mount) && is_copy(mount))
}

fn is_made_for_it(mount: &Mount) -> bool {
    let is_in_own_place = || OWN_PLACES.iter().any(|place| is_below(&mount.mountpoint, place));
    is_of_the_kernel(&mount.fstype) || mount.fstype == "tmpfs" && is_in_own_place()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a kubelet and Docker make a container with the process and network namespace of the host.
    const CONTAINER: &str = "\
500 400 0:60 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l
501 500 0:70 / /proc rw - proc proc rw
502 501 0:71 / /proc/acpi ro - tmpfs tmpfs ro
503 500 0:72 / /dev rw - tmpfs tmpfs rw
504 503 0:73 / /dev/pts rw - devpts devpts rw
505 503 0:74 / /dev/shm rw - tmpfs shm rw
506 503 8:1 /var/lib/kubelet/pods/1/containers/kevtmon/2 /dev/termination-log rw - ext4 /dev/sda1 rw
507 500 0:75 / /sys ro - sysfs sysfs ro
508 507 0:76 / /sys/fs/cgroup ro - tmpfs tmpfs rw
509 508 0:30 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
510 507 0:12 / /sys/kernel/tracing rw - tracefs tracefs rw
511 500 8:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw
512 500 8:1 /var/lib/kevtmon /var/lib/kevtmon rw - ext4 /dev/sda1 rw
513 500 0:25 /kevtmon /run/kevtmon rw - tmpfs tmpfs rw
514 500 0:90 / /var/run/secrets/kubernetes.io/serviceaccount ro - tmpfs tmpfs rw
";

    fn copies(more: &str) -> bool {
        are_in(&MountTable::parse(&format!("{CONTAINER}{more}"), ""), &["/var/lib/kevtmon".into()])
    }

    #[test]
    fn a_container_with_directories_of_its_own_has_no_copies() {
        assert!(!copies(""));
        assert!(
            !copies("520 500 8:5 / /var/lib/kevtmon rw - ext4 /dev/sdb1 rw\n"),
            "its state on a disk of its own"
        );
    }

    #[test]
    fn what_is_mounted_below_a_directory_that_it_was_given_is_a_copy() {
        let kubelet = "520 500 8:1 /var/lib/kubelet /var/lib/kubelet rw - ext4 /dev/sda1 rw\n";
        assert!(!copies(kubelet), "the directory alone");
        for volume in ["tmpfs tmpfs", "fuse.glusterfs h:/v", "ext4 /dev/rbd0"] {
            let below = format!("521 520 0:99 / /var/lib/kubelet/pods/3/volumes/x/y rw - {volume} rw\n");
            assert!(copies(&format!("{kubelet}{below}")), "{volume}");
        }
        let root = "520 500 8:1 / /host rw - ext4 /dev/sda1 rw\n";
        assert!(copies(root), "the whole root");
    }

    #[test]
    fn a_volume_that_it_was_given_is_a_copy_itself() {
        assert!(copies("520 500 0:99 / /data rw - fuse.glusterfs h:/v rw\n"));
        assert!(are_in(&MountTable::default(), &[]), "nothing is known");
    }
}
