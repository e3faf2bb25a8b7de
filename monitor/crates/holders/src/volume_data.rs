//! What a kubelet has written beside the mount of a volume that it has staged for a CSI driver: by what the driver knows it, where
//! the path has only a hash of that.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use kevtmon_observation::{HolderReport, VolumeData};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::Dir;
use kevtmon_sources::procfs::mountinfo::MountTable;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::resolve::is_local;
use super::{ScanRequest, own_tgid};

/// Bytes of the file, and of each text in it, that are read.
const FILE_MAX: u64 = 4096;
const TEXT_MAX: usize = 512;

/// Reads it of the mount of a report. The mount itself is not touched, and no file system that could have to ask a server.
pub(super) fn beside(proc: &Proc, request: &ScanRequest, report: &HolderReport) -> Option<VolumeData> {
    let mount = report.mount.as_ref()?;
    directory(&mount.mountpoint)?;
    let is_there = |pid: &u32| {
        proc.ns(*pid, "mnt") == Some(mount.mntns) && proc.link(*pid, "root").is_some_and(|root| root == "/")
    };
    // The caller has often ended, and process 1 may be out of reach.
    let known = [Some(1), Some(request.tgid), own_tgid(proc)];
    let process = proc.dir(known.into_iter().flatten().find(is_there)?).ok()?;
    let table = process.mount_table("/", |_| true).ok()?;
    of_mount(&process, &table, &mount.mountpoint)
}

/// The directory of a volume that would be staged for a CSI driver at this path.
fn directory(mountpoint: &str) -> Option<&str> {
    let directory = mountpoint.strip_suffix("/globalmount")?;
    directory.contains("/plugins/kubernetes.io/csi/").then_some(directory)
}

/// The same of a mount in the table of a process whose root directory is that of its namespace.
pub(super) fn of_mount(process: &Dir, table: &MountTable, mountpoint: &str) -> Option<VolumeData> {
    let path = format!("{}/vol_data.json", directory(mountpoint)?);
    if !is_local(&table.covering(&path)?.fstype) {
        return None;
    }
    read(&process.root().ok()?, Path::new(&path))
}

/// `path`: from the root directory.
fn read(root: &impl std::os::fd::AsFd, path: &Path) -> Option<VolumeData> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(resolve);
    let file = File::from(openat2(root, path.strip_prefix("/").ok()?, how).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut text).ok()?;
    let data: VolumeData = serde_json::from_slice(&text).ok()?;
    (data.driver.len() <= TEXT_MAX && data.handle.len() <= TEXT_MAX).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_and_its_name_for_the_volume_are_read_and_nothing_by_a_link() {
        let root = tempfile::tempdir().unwrap();
        let text = r#"{"driverName":"rbd.csi.ceph.com","volumeHandle":"0001-0009-rook","specVolID":"pvc-1"}"#;
        std::fs::write(root.path().join("vol_data.json"), text).unwrap();
        std::os::unix::fs::symlink("vol_data.json", root.path().join("link")).unwrap();
        std::fs::write(root.path().join("other"), "{}").unwrap();
        let directory = File::open(root.path()).unwrap();
        let told = |name: &str| read(&directory, Path::new(name));
        let expected = VolumeData { driver: "rbd.csi.ceph.com".into(), handle: "0001-0009-rook".into() };
        assert_eq!(told("/vol_data.json"), Some(expected));
        assert_eq!((told("/link"), told("/other"), told("/none")), (None, None, None));
    }
}
