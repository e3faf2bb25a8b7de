//! The node itself: what the daemon sees of it from within a container that has the node's processes in view.

use std::fs;
use std::path::{Path, PathBuf};

use kevtmon_observation::{NsInum, SourceKind, SourceStatus};

use super::Proc;
use super::dir::Dir;
use super::readers::reading_none;

/// The files of the node among the sources, where they are out of reach.
pub const NODE_ROOT: &str = "node-root";

/// Process id of kthreadd (kernel/kthread.c).
const KTHREADD: u32 = 2;

/// The environment variable with the id of a process whose mounts are the node's, instead of those of pid 1 and the kernel
/// threads: so each test can have a node with mounts of its own.
const STAND_IN: &str = "KEVTMON_HOST_PID";

pub(super) fn stand_in() -> Option<u32> {
    std::env::var(STAND_IN).ok()?.parse().ok()
}

impl Proc {
    /// The node's root directory; the daemon's own where no other can be reached.
    pub fn host_root(&self) -> PathBuf {
        self.roots().find(|root| root.join("proc").exists()).unwrap_or_else(|| "/".into())
    }

    /// A path of the node; the daemon's own where no other can be reached, or that one does not exist.
    pub fn on_host(&self, path: &Path) -> PathBuf {
        let Ok(below) = path.strip_prefix("/") else { return path.to_owned() };
        self.roots()
            .map(|root| root.join(below))
            // What lies below is no file of that process.
            .inspect(|_| reading_none())
            .find(|path| path.exists())
            .unwrap_or_else(|| path.to_owned())
    }

    /// That files of the node are out of reach, and why, where its first processes show no root and `own` is in another mount
    /// namespace, or may be.
    #[must_use]
    pub fn without_node_root(&self, own: u32) -> Option<SourceStatus> {
        let is_reached = self.roots().any(|root| root.join("proc").exists());
        let is_own = || self.host_mntns().is_some_and(|host| self.ns(own, "mnt") == Some(host));
        if is_reached || is_own() {
            return None;
        }
        let root = self.init_root();
        let error = fs::metadata(&root).err()?;
        let reason = format!("{}: {error}, so that files of the node are out of reach", root.display());
        Some(SourceStatus { reason: Some(reason), ..SourceStatus::up(SourceKind::Processes, NODE_ROOT) })
    }

    /// The root of pid 1, which may be out of reach even for root, since a security module or a user namespace may refuse
    /// it; and of the first kernel thread, which has the root that the kernel was given, executes nothing and so hangs nobody
    /// who reads it.
    fn roots(&self) -> impl Iterator<Item = PathBuf> {
        let first = || self.is_kthreadd().then(|| self.first_root());
        std::iter::once_with(|| self.init_root()).chain(std::iter::once_with(first).flatten())
    }

    /// The mount namespace of pid 1; `None` where it may not be read.
    pub fn init_mntns(&self) -> Option<NsInum> {
        self.ns(self.stand_in.unwrap_or(1), "mnt")
    }

    /// With the mounts of this process as those of the node.
    pub fn with_host(self, pid: u32) -> Self {
        Self { stand_in: Some(pid), ..self }
    }

    /// A process that shows the mounts of the node, and its namespace: pid 1, or the first kernel thread where a security module
    /// refuses what pid 1 has.
    pub fn host_dir(&self) -> Option<(NsInum, Dir)> {
        let of = |pid: u32| Some((self.ns(pid, "mnt")?, self.dir(pid).ok()?));
        of(self.stand_in.unwrap_or(1)).or_else(|| of(self.first()?))
    }

    /// The root of that mount namespace.
    pub fn init_root(&self) -> PathBuf {
        self.path(self.stand_in.unwrap_or(1), "root")
    }

    /// The mount namespace that the kernel started with. `None` where /proc does not show it, as within a process
    /// namespace.
    pub fn first_mntns(&self) -> Option<NsInum> {
        self.ns(self.first()?, "mnt")
    }

    pub fn first_root(&self) -> PathBuf {
        self.path(self.stand_in.unwrap_or(KTHREADD), "root")
    }

    /// The node's mount namespace, as far as it may be read: of pid 1, else of the kernel threads.
    pub fn host_mntns(&self) -> Option<NsInum> {
        self.init_mntns().or_else(|| self.first_mntns())
    }

    fn first(&self) -> Option<u32> {
        self.stand_in.or_else(|| self.is_kthreadd().then_some(KTHREADD))
    }

    /// Whether pid 2 is what it should be: within a process namespace it is anybody.
    fn is_kthreadd(&self) -> bool {
        self.stat(KTHREADD).is_some_and(|stat| stat.comm == "kthreadd" && stat.ppid == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write_stat(node: &Path, comm: &str, parent: u32) {
        let fields = "0 ".repeat(17);
        let text = format!("2 ({comm}) S {parent} {fields}7 0\n");
        fs::write(node.join("2/stat"), text).unwrap();
    }

    /// Shows the mount namespace of a process.
    fn show(node: &Path, pid: u32, mntns: u32) {
        let directory = node.join(format!("{pid}/ns"));
        fs::create_dir_all(&directory).unwrap();
        symlink(format!("mnt:[{mntns}]"), directory.join("mnt")).unwrap();
    }

    #[test]
    fn where_pid_1_is_out_of_reach_the_root_is_that_of_the_first_kernel_thread() {
        let node = tempfile::tempdir().unwrap();
        let proc = Proc::new(node.path());
        let found = || proc.on_host(Path::new("/etc/hosts"));
        assert_eq!(found(), Path::new("/etc/hosts"));
        fs::create_dir_all(node.path().join("2/root/etc")).unwrap();
        fs::write(node.path().join("2/root/etc/hosts"), "").unwrap();
        let stat = |comm: &str, parent: u32| write_stat(node.path(), comm, parent);
        stat("kthreadd", 1);
        assert_eq!(found(), Path::new("/etc/hosts"), "anybody can have that name");
        stat("kthreadd", 0);
        assert_eq!(found(), node.path().join("2/root/etc/hosts"));
        assert_eq!(proc.on_host(Path::new("/etc/nothing")), Path::new("/etc/nothing"));
        fs::create_dir_all(node.path().join("1/root/etc")).unwrap();
        fs::write(node.path().join("1/root/etc/hosts"), "").unwrap();
        assert_eq!(found(), node.path().join("1/root/etc/hosts"));
    }

    #[test]
    fn where_pid_1_is_out_of_reach_the_mounts_are_those_of_the_first_kernel_thread() {
        let node = tempfile::tempdir().unwrap();
        let proc = Proc::new(node.path());
        let shown = || proc.host_dir().map(|(mntns, _)| mntns);
        fs::create_dir(node.path().join("1")).unwrap();
        assert_eq!(shown(), None);
        show(node.path(), 2, 5);
        write_stat(node.path(), "sh", 0);
        assert_eq!(shown(), None, "anybody can be pid 2 of a namespace");
        write_stat(node.path(), "kthreadd", 0);
        assert_eq!(shown(), Some(5));
        show(node.path(), 1, 4);
        assert_eq!(shown(), Some(4));
    }

    #[test]
    fn files_of_the_node_are_out_of_reach_where_neither_shows_a_root_and_this_process_has_another() {
        const OWN: u32 = 7;
        let node = tempfile::tempdir().unwrap();
        let proc = Proc::new(node.path());
        let reason = || proc.without_node_root(OWN).map(|status| status.reason.unwrap());
        show(node.path(), OWN, 6);
        let told = reason().unwrap();
        assert!(told.contains("/1/root: No such file or directory"), "{told}");
        show(node.path(), 2, 5);
        write_stat(node.path(), "kthreadd", 0);
        assert!(reason().is_some(), "a namespace of its own");
        fs::remove_file(node.path().join("2/ns/mnt")).unwrap();
        show(node.path(), 2, 6);
        assert_eq!(reason(), None);
        show(node.path(), 1, 5);
        assert!(reason().is_some());
        fs::create_dir_all(node.path().join("2/root/proc")).unwrap();
        assert_eq!(reason(), None);
    }
}
