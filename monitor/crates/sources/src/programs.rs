//! Programs of the node's own system, by what the kernel says. A command name and arguments are anybody's to choose, so
//! they are read only of processes that are root of the node and run a program which only root can have put there.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

use kevtmon_observation::NsInum;

use super::procfs::Proc;
use super::procfs::dir::{Buffer, Dir};
use super::procfs::root::is_root_of_node;

/// Inode number of the initial process namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
pub(super) const INITIAL_PIDNS: NsInum = 0xEFFF_FFFC;
/// Set-id bits, and write permission for others than root.
const UNTRUSTED_MODE: u32 = 0o6022;

/// A process that runs such a program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Its path, as its own mount namespace shows it; ` (deleted)` behind it where the file is no longer there.
    pub(super) exe: String,
    pub(super) file: Metadata,
    pub(super) mntns: NsInum,
    pub(super) arguments: Vec<String>,
    /// What is read by its number later is of the same process only if that is still there then.
    pub(super) dir: Dir,
}

/// Where links and texts are read to; one for a whole scan.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    links: Buffer,
    text: Vec<u8>,
}

impl Program {
    /// The process, if it is root of the node in its initial namespaces and runs a program of one of these names.
    pub(super) fn of(
        proc: &Proc,
        tgid: u32,
        names: &[&'static str],
        Buffers { links, text }: &mut Buffers,
    ) -> Option<Self> {
        let dir = proc.dir(tgid).ok()?;
        let exe = dir.link(c"exe", links).ok()?;
        let name = named(&exe, names)?;
        let exe = exe.into_owned();
        if !is_root_of_node(&dir, links, text) {
            return None;
        }
        let mut ns = |name| super::procfs::parse_ns(&dir.link(name, links).ok()?);
        if ns(c"ns/pid") != Some(INITIAL_PIDNS) {
            return None;
        }
        let mntns = ns(c"ns/mnt")?;
        let file = fs::metadata(proc.path(tgid, "exe")).ok()?;
        if !file.is_file() || file.uid() != 0 || file.mode() & UNTRUSTED_MODE != 0 {
            return None;
        }
        let arguments = dir.text(c"cmdline", text).ok()?.split('\0').map(str::to_owned).collect();
        Some(Self { name, exe, file, mntns, arguments, dir })
    }
}

/// The value of a flag that has one of these names, as programs written in Go take them: the last one counts.
pub(super) fn flag<'a>(arguments: &[&'a str], names: &[&str]) -> Option<&'a str> {
    arguments.iter().enumerate().rev().find_map(|(index, argument)| {
        let rest = names.iter().find_map(|name| argument.strip_prefix(name))?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value),
            None if rest.is_empty() => arguments.get(index + 1).copied(),
            None => None,
        }
    })
}

pub fn named(exe: &str, names: &[&'static str]) -> Option<&'static str> {
    let path = exe.strip_suffix(" (deleted)").unwrap_or(exe);
    let name = path.rsplit('/').next()?;
    names.iter().copied().find(|known| *known == name)
}

/// Programs that mount for containers, or watch them: what is mounted in their namespaces is in use as what the host has is.
const OF_RUNTIMES: [&str; 13] = [
    "kubelet", "hyperkube", "dockerd", "containerd", "docker-containerd", "k3s", "crio", "containerd-shim",
    "containerd-shim-runc-v1", "containerd-shim-runc-v2", "docker-containerd-shim", "conmon", "podman",
];
const WATCHERS: [&str; 5] = [
    "containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2", "docker-containerd-shim",
    "conmon",
];

/// Whether a process is a kubelet or runtime of the node, or one of its watchers.
pub fn is_of_runtime(dir: &Dir, links: &mut Buffer, text: &mut Vec<u8>) -> bool {
    let is_named = dir.link(c"exe", links).is_ok_and(|exe| named(&exe, &OF_RUNTIMES).is_some());
    is_named
        && is_root_of_node(dir, links, text)
        && dir.link(c"ns/pid", links).is_ok_and(|link| super::procfs::parse_ns(&link) == Some(INITIAL_PIDNS))
}

pub fn starts_containers(exe: &str) -> bool {
    named(exe, &WATCHERS).is_some()
}
