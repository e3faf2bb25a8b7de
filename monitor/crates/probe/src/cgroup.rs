//! The root of the v2 hierarchy of control groups, which every task is below.

use std::fs::File;
use std::io;
use std::path::Path;

use kevtmon_sources::procfs::Proc;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

/// Where systemd mounts it: beside the hierarchies of v1, or alone.
const PLACES: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
/// A file that every control group has but the root (Documentation/admin-guide/cgroup-v2.rst).
const NOT_IN_ROOT: &str = "cgroup.type";

/// Opens it. Within a control group namespace, what is mounted may be another one.
pub(super) fn open_root(proc: &Proc) -> io::Result<File> {
    let mut found = Err(io::Error::new(io::ErrorKind::NotFound, "control groups v2 are not mounted"));
    for place in PLACES {
        let path = proc.on_host(Path::new(place));
        let Ok(directory) = File::open(&path) else { continue };
        if fstatfs(&directory)?.filesystem_type() != CGROUP2_SUPER_MAGIC {
            continue;
        }
        match path.join(NOT_IN_ROOT).try_exists()? {
            false => return Ok(directory),
            true => found = Err(io::Error::other("the root of control groups v2 is not visible")),
        }
    }
    found
}
