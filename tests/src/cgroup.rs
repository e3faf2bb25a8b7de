//! Control groups of a test, in the v2 hierarchy or in one of v1.

use std::path::{Path, PathBuf};

use crate::reaper::Cleanup;
use crate::unique;

const ROOT: &str = "/sys/fs/cgroup";

/// A hierarchy: where it is mounted, and what begins its line in `/proc/PID/cgroup` behind the number.
#[derive(Debug, Clone, Copy)]
pub enum Hierarchy {
    /// The unified one.
    V2,
    /// That of the controller `pids`, where there is one.
    V1,
}

impl Hierarchy {
    /// Those that this machine has; in the order in which the daemon trusts them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        [Self::V1, Self::V2].into_iter().filter(|hierarchy| hierarchy.root().is_some()).collect()
    }

    fn root(self) -> Option<PathBuf> {
        let candidates: &[&str] = match self {
            Self::V2 => &["unified", "."],
            Self::V1 => &["pids"],
        };
        let is_root = |path: &PathBuf| match self {
            Self::V2 => path.join("cgroup.controllers").exists(),
            Self::V1 => path.join("cgroup.procs").exists(),
        };
        candidates.iter().map(|name| Path::new(ROOT).join(name)).find(is_root)
    }

    /// The control group of a process.
    #[must_use]
    pub fn of_process(self, pid: u32) -> String {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("the process lives");
        let fits = |controllers: &str| match self {
            Self::V2 => controllers.is_empty(),
            Self::V1 => controllers.split(',').any(|controller| controller == "pids"),
        };
        let mut lines =
            text.lines().filter_map(|line| line.splitn(3, ':').collect::<Vec<_>>().try_into().ok());
        let found = lines.find(|[_, controllers, _]: &[&str; 3]| fits(controllers));
        found.map(|[_, _, path]| path.to_owned()).expect("it is in a control group")
    }
}

/// A control group that is removed once it is empty.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    name: String,
    _cleanup: Cleanup,
}

impl Cgroup {
    /// Makes one with a name of its own.
    #[must_use]
    pub fn new(hierarchy: Hierarchy) -> Self {
        Self::named(hierarchy, unique::name("kvc"))
    }

    /// Makes one with the name of a container.
    #[must_use]
    pub fn of_container(hierarchy: Hierarchy) -> Self {
        Self::named(hierarchy, unique::container_id())
    }

    /// Makes one as runc does for a container of a pod, if it gets the name of a slice and drives cgroupfs.
    #[must_use]
    pub fn of_slice(hierarchy: Hierarchy, pod_uid: &str, container: &str) -> Self {
        let slice = format!("kubepods-besteffort-pod{}.slice", pod_uid.replace('-', "_"));
        Self::named(hierarchy, format!("{slice}:cri-containerd:{container}"))
    }

    /// Makes one as systemd does for a service.
    #[must_use]
    pub fn of_service(hierarchy: Hierarchy) -> Self {
        Self::named(hierarchy, format!("{}.service", unique::name("kvc")))
    }

    fn named(hierarchy: Hierarchy, name: String) -> Self {
        let directory = hierarchy.root().expect("the hierarchy is there").join(&name);
        let cleanup = Cleanup::script(&format!("rmdir '{}' 2>/dev/null\n", directory.display()));
        std::fs::create_dir(&directory).expect("a control group can be made");
        Self { directory, name, _cleanup: cleanup }
    }

    /// Gives the group to a user, as systemd and LXC do, and makes what the user could make in it: one group within the
    /// other with these names.
    #[must_use]
    pub fn delegated(self, uid: u32, names: &[&str]) -> Self {
        let procs = self.directory.join("cgroup.procs");
        for path in [&self.directory, &procs] {
            std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("it can be given away");
        }
        let mut directory = self.directory.clone();
        for name in names {
            directory.push(name);
            std::fs::create_dir(&directory).expect("a control group can be made");
            std::os::unix::fs::chown(&directory, Some(uid), Some(uid)).expect("it can be given away");
        }
        let below = directory.strip_prefix(&self.directory).expect("it is below");
        let mut remove = String::new();
        for path in below.ancestors() {
            remove.push_str(&format!("rmdir '{}' 2>/dev/null\n", self.directory.join(path).display()));
        }
        let name = format!("{}/{}", self.name, below.display());
        Self { directory, name, _cleanup: Cleanup::script(&remove) }
    }

    /// Its path within the hierarchy.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// Its last name: the container's id.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where a process writes its id to enter it.
    #[must_use]
    pub fn procs(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Processor time of all that was ever in it, in seconds; only the v2 hierarchy counts it without a controller.
    #[must_use]
    pub fn processor_seconds(&self) -> f64 {
        let text = std::fs::read_to_string(self.directory.join("cpu.stat")).expect("the kernel counts it");
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse::<f64>().ok());
        micros.expect("a number of microseconds") / 1e6
    }

    /// Moves a process into it.
    pub fn take(&self, pid: u32) {
        std::fs::write(self.procs(), pid.to_string()).expect("it can be moved");
    }

    /// Where a process writes its id to enter the root of a hierarchy.
    #[must_use]
    pub fn root_procs(hierarchy: Hierarchy) -> PathBuf {
        hierarchy.root().expect("the hierarchy is there").join("cgroup.procs")
    }

    /// Moves a process to the root of a hierarchy.
    pub fn release(hierarchy: Hierarchy, pid: u32) {
        std::fs::write(Self::root_procs(hierarchy), pid.to_string()).expect("it can be moved");
    }
}
