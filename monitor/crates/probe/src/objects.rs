//! The eBPF objects that are built into the daemon. Each is loaded by itself, so that a map or program that one
//! kernel refuses takes no other object down with it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::PathBuf;

#[cfg(not(test))]
use kevtmon_types::build_info::programs;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// An eBPF object, as `cargo xtask ebpf` built it.
#[derive(Debug)]
pub struct Object {
    pub name: &'static str,
    /// The ELF file; empty in a daemon that was built without it.
    pub bytes: fn() -> &'static [u8],
}

/// Programs on tracepoints and BTF-typed tracepoints.
pub static CORE: Object = Object { name: "core", bytes: programs };

/// Those that `cargo xtask ebpf` has built; empty before it has.
#[cfg(test)]
pub(super) fn programs() -> &'static [u8] {
    static BUILT: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/bpf/kevtmon-ebpf.o"))
            .unwrap_or_default()
    });
    &BUILT
}

/// Maps that all objects share: one ring, its flag, the counters, which tasks were sent, and who may send how much.
pub(super) const SHARED_MAPS: [&str; 10] = [
    "EVENTS",
    "ARMED",
    "COUNTS",
    "TASKS_SENT",
    "GATEWAYS",
    "CONTAINERS",
    "SOURCES",
    "GROUPS",
    "USERS",
    "SHARED_BUDGETS",
];

/// A BPF file system through which an object opens the maps that another created. It is mounted nowhere, and gone
/// with its descriptor; the maps stay with the objects.
#[derive(Debug)]
pub(super) struct SharedMaps(OwnedFd);

impl SharedMaps {
    /// Makes an empty one. Since Linux 5.2.
    pub(super) fn new() -> io::Result<Self> {
        let context = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        Ok(Self(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?))
    }

    /// Where a map is created by the first object and opened by the others.
    pub(super) fn path(&self, map: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{map}", self.0.as_raw_fd()))
    }
}
