//! What this kernel and this node offer to a monitor: release, type information, tracefs, control groups, lockdown.
//!
//! In: a few files that hang nobody, below a root. Out: facts; what follows from them is the caller's.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, FsType, PROC_SUPER_MAGIC, TRACEFS_MAGIC, fstatfs, statfs};
use nix::sys::utsname::uname;

use super::procfs::Proc;

/// The first bytes of type information (`struct btf_header`, include/uapi/linux/btf.h), in the order of this machine.
const BTF_MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();
const TRACEFS: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
const LOCKDOWN: &str = "sys/kernel/security/lockdown";

/// The mode of lockdown in which the kernel lets no program read its memory.
pub const CONFIDENTIALITY: &str = "confidentiality";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFacts {
    pub release: String,
    pub machine: String,
    /// Bytes of type information (BTF), or why there is none.
    pub btf: Result<u64, String>,
    /// Where tracefs is mounted and shows its events, or why it does not.
    pub tracefs: Result<PathBuf, String>,
    pub cgroups: Cgroups,
    /// The mode of lockdown; `None` where the kernel has none, or does not tell.
    pub lockdown: Option<String>,
    /// Whether /proc is a proc file system that shows processes.
    pub proc: Result<(), String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// The unified hierarchy alone.
    V2,
    /// Hierarchies of controllers, with a unified one beside them.
    Hybrid,
    /// Hierarchies of controllers alone.
    V1,
    /// None at the usual place.
    None,
}

impl KernelFacts {
    /// Those of this node.
    pub fn read() -> Self {
        let cgroups = cgroups(&Proc::default().on_host(Path::new("/sys/fs/cgroup")));
        Self { cgroups, lockdown: lockdown(), ..Self::below(Path::new("/")) }
    }

    /// Those of a tree of files; the release is always that of this kernel.
    pub fn below(root: &Path) -> Self {
        let name = uname();
        let text = |field: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
            name.as_ref()
                .map_or_else(|_| "unknown".to_owned(), |name| field(name).to_string_lossy().into_owned())
        };
        Self {
            release: text(|name| name.release()),
            machine: text(|name| name.machine()),
            btf: btf(&root.join("sys/kernel/btf/vmlinux")).map_err(|error| reason(&error)),
            tracefs: tracefs(root),
            cgroups: cgroups(&root.join("sys/fs/cgroup")),
            lockdown: mode_in(&root.join(LOCKDOWN)),
            proc: proc(&root.join("proc")),
        }
    }
}

fn btf(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    file.read_exact(&mut magic)?;
    if magic != BTF_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not type information"));
    }
    Ok(file.metadata()?.len())
}

fn tracefs(root: &Path) -> Result<PathBuf, String> {
    let mut why = "not mounted".to_owned();
    for place in TRACEFS {
        let path = root.join(place);
        let is_tracefs = statfs(&path).is_ok_and(|found| found.filesystem_type() == TRACEFS_MAGIC);
        match fs::read_dir(path.join("events/syscalls")) {
            Ok(_) => return Ok(path),
            Err(error) if is_tracefs => {
                why = format!("mounted at {}, but: {}", path.display(), reason(&error))
            }
            Err(_) => {}
        }
    }
    Err(why)
}

fn cgroups(mounted: &Path) -> Cgroups {
    let is_v2 = |path: &Path| statfs(path).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC);
    let has_v1 =
        ["memory", "pids", "cpu", "freezer", "systemd"].iter().any(|name| mounted.join(name).is_dir());
    if is_v2(mounted) {
        return Cgroups::V2;
    }
    match (has_v1, is_v2(&mounted.join("unified"))) {
        (true, true) => Cgroups::Hybrid,
        (true, false) => Cgroups::V1,
        (false, _) => Cgroups::None,
    }
}

/// The mode of lockdown; `None` where the kernel has none, or does not tell. Few containers have the file, so it is the node's.
#[must_use]
pub fn lockdown() -> Option<String> {
    mode_in(&Proc::default().on_host(&Path::new("/").join(LOCKDOWN)))
}

fn mode_in(file: &Path) -> Option<String> {
    chosen(&fs::read_to_string(file).ok()?)
}

/// Of `none [integrity] confidentiality`, the one in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(mode, _)| mode.to_owned())
}

fn proc(path: &Path) -> Result<(), String> {
    let opened = File::open(path).map_err(|error| reason(&error))?;
    let kind: Option<FsType> = fstatfs(opened.as_fd()).ok().map(|found| found.filesystem_type());
    if kind != Some(PROC_SUPER_MAGIC) {
        return Err(format!("{} is no proc file system", path.display()));
    }
    // With `hidepid`, or without the capability, only own processes are shown.
    fs::read_link(path.join("self/ns/net")).map_err(|error| reason(&error))?;
    Ok(())
}

/// An error without the number that the standard library adds.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_lockdown_is_the_one_in_brackets() {
        assert_eq!(chosen("none [integrity] confidentiality\n").as_deref(), Some("integrity"));
        assert_eq!(chosen("[none] integrity confidentiality").as_deref(), Some("none"));
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn an_empty_tree_has_nothing_and_each_lack_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let facts = KernelFacts::below(dir.path());
        assert_eq!(facts.btf, Err("No such file or directory".to_owned()));
        assert_eq!(facts.tracefs, Err("not mounted".to_owned()));
        assert_eq!((facts.cgroups, facts.lockdown), (Cgroups::None, None));
        assert_eq!(facts.proc, Err("No such file or directory".to_owned()));
    }

    #[test]
    fn type_information_is_known_by_its_first_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let btf = dir.path().join("sys/kernel/btf");
        fs::create_dir_all(&btf).unwrap();
        fs::write(btf.join("vmlinux"), [&BTF_MAGIC[..], &[1; 30]].concat()).unwrap();
        assert_eq!(KernelFacts::below(dir.path()).btf, Ok(32));
        fs::write(btf.join("vmlinux"), "text").unwrap();
        assert_eq!(KernelFacts::below(dir.path()).btf, Err("it is not type information".to_owned()));
    }

    #[test]
    fn the_mode_of_lockdown_is_read_where_securityfs_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(LOCKDOWN);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "none [integrity] confidentiality\n").unwrap();
        assert_eq!(KernelFacts::below(dir.path()).lockdown.as_deref(), Some("integrity"));
    }

    #[test]
    fn a_directory_of_a_controller_is_a_v1_hierarchy() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys/fs/cgroup/memory")).unwrap();
        assert_eq!(KernelFacts::below(dir.path()).cgroups, Cgroups::V1);
    }

    #[test]
    fn this_node_has_a_release_and_processes() {
        let facts = KernelFacts::read();
        assert!(facts.release.contains('.'), "{facts:?}");
        assert_eq!(facts.proc, Ok(()));
    }
}
