//! /proc, read raw and leniently: a process that vanished or may not be read is `None`, never an error.
//!
//! The crate for /proc costs four times as much per process, which whole-/proc scans cannot afford.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kevtmon_observation::{BootNs, NsInum, TaskKey};
use kevtmon_types::clock::NS_PER_TICK;
use kevtmon_types::redact;
use serde::{Deserialize, Serialize};

pub mod cgroups;
pub mod dir;
pub mod host;
pub mod kcmp;
mod lines;
pub mod mountinfo;
pub mod own;
pub mod pidfd;
pub mod procmap;
pub mod readers;
pub mod root;
pub mod statmount;

/// A mounted proc file system; tests give a directory of literal files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Proc {
    root: PathBuf,
    /// Processes that are not read, because whoever reads them hangs; in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    aside: Vec<u32>,
    /// A process whose mounts are the node's, instead of those of its first processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stand_in: Option<u32>,
}

/// Identity of the directory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryId {
    device: u64,
    inode: u64,
}

/// The fields of `/proc/PID/stat` that the project needs (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    pub comm: String,
    /// `R`, `S`, `D`, `Z`, …
    pub state: char,
    pub ppid: u32,
    /// `PF_*` of include/linux/sched.h.
    flags: u32,
    /// Start on the boot clock, to 10 ms.
    pub start_ns: BootNs,
}

/// `PF_EXITING` of include/linux/sched.h.
const EXITING: u32 = 0x4;
/// `PF_FORKNOEXEC`, of the same file.
const FORKED: u32 = 0x40;
/// `PF_KTHREAD`, the same since 2.6.27.
const KERNEL_THREAD: u32 = 0x20_0000;

impl Stat {
    /// Parses the text of such a file, of a process or a thread.
    pub fn parse(text: &str) -> Option<Self> {
        // The name may hold blanks and parentheses: it ends at the last one.
        let (head, tail) = text.rsplit_once(')')?;
        let comm = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        let start: u64 = fields.get(19)?.parse().ok()?;
        Some(Self {
            comm,
            state: fields.first()?.chars().next()?,
            ppid: fields.get(1)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
            start_ns: start.saturating_mul(NS_PER_TICK),
        })
    }

    /// Whether the kernel has started it for itself.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// Whether it has executed nothing since it was forked: all that it shows of its program is its parent's.
    pub fn is_forked(&self) -> bool {
        self.flags & FORKED != 0
    }

    /// Whether it executes no program any more and still has things to give back. A zombie has none.
    pub fn is_ending(&self) -> bool {
        self.flags & EXITING != 0 && !matches!(self.state, 'Z' | 'X')
    }
}

impl Default for Proc {
    fn default() -> Self {
        Self { stand_in: host::stand_in(), ..Self::new("/proc") }
    }
}

impl Proc {
    /// Reads below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), aside: Vec::new(), stand_in: None }
    }

    /// Identity of this boot (`sys/kernel/random/boot_id`); empty where it cannot be read.
    pub fn boot_id(&self) -> String {
        fs::read_to_string(self.root.join("sys/kernel/random/boot_id")).unwrap_or_default().trim().to_owned()
    }

    /// The same, with these processes left out.
    pub fn without(&self, mut aside: Vec<u32>) -> Self {
        aside.sort_unstable();
        Self { aside, ..self.clone() }
    }

    /// Whether the process is left out, because whoever reads it hangs.
    pub fn is_aside(&self, pid: u32) -> bool {
        self.aside.binary_search(&pid).is_ok()
    }

    /// A file of a process. Opening it can hang: for a process that is [aside](Self::is_aside) it must not be done.
    pub fn path(&self, pid: u32, file: &str) -> PathBuf {
        readers::reading(pid);
        self.root.join(pid.to_string()).join(file)
    }

    /// What tells the directory of a process from that of another one with the same id, as long as the kernel does not forget it.
    /// Never hangs, unlike what is in the directory: finding it and its owner takes no lock that a process can keep, but RCU and
    /// spinlocks only (`proc_pid_lookup`, `pid_revalidate` and `pid_getattr` in fs/proc/base.c).
    /// Errors: `ENOENT` when there is no such process.
    pub fn directory(&self, pid: u32) -> io::Result<DirectoryId> {
        let found = fs::metadata(self.root.join(pid.to_string()))?;
        Ok(DirectoryId { device: found.dev(), inode: found.ino() })
    }

    fn read(&self, pid: u32, file: &str) -> Option<Vec<u8>> {
        if self.is_aside(pid) { None } else { fs::read(self.path(pid, file)).ok() }
    }

    /// Every process id.
    pub fn pids(&self) -> io::Result<Vec<u32>> {
        let mut pids: Vec<u32> = fs::read_dir(&self.root)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        pids.sort_unstable();
        Ok(pids)
    }

    pub fn stat(&self, pid: u32) -> Option<Stat> {
        Stat::parse(&String::from_utf8_lossy(&self.read(pid, "stat")?))
    }

    /// Whether the process runs; a zombie does not. One that is left out is taken to run.
    pub fn is_alive(&self, pid: u32) -> bool {
        self.is_aside(pid) || self.stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
    }

    /// Whether the process with this id is still the one of the key, to a resolution of 10 ms.
    pub fn is_same(&self, key: &TaskKey) -> bool {
        self.stat(key.tgid).is_some_and(|stat| stat.start_ns / NS_PER_TICK == key.start_ns / NS_PER_TICK)
    }

    pub fn exe(&self, pid: u32) -> Option<String> {
        self.link(pid, "exe")
    }

    /// Target of a magic link; never follows it.
    pub fn link(&self, pid: u32, file: &str) -> Option<String> {
        if self.is_aside(pid) {
            return None;
        }
        let target = fs::read_link(self.path(pid, file)).ok()?;
        Some(String::from_utf8_lossy(target.as_os_str().as_bytes()).into_owned())
    }

    /// Masked command line; `None` for kernel threads too.
    pub fn cmdline(&self, pid: u32) -> Option<String> {
        redact::command_line(&self.read(pid, "cmdline")?)
    }

    /// The arguments as they are, for one that is looked for: they may have secrets in them, and are kept nowhere.
    pub fn arguments(&self, pid: u32) -> Option<Vec<String>> {
        let text = self.read(pid, "cmdline")?;
        let text = text.strip_suffix(b"\0").unwrap_or(&text);
        Some(text.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect())
    }

    /// Inode of a namespace (`net`, `mnt`, …), without opening it.
    pub fn ns(&self, pid: u32, kind: &str) -> Option<NsInum> {
        parse_ns(&self.link(pid, &format!("ns/{kind}"))?)
    }

    /// The real user id, in the user namespace of the reader.
    pub fn uid(&self, pid: u32) -> Option<u32> {
        let status = self.read(pid, "status")?;
        let status = String::from_utf8_lossy(&status);
        root::uids(&status)?.next()
    }

    /// Whether it is the first process of a pid namespace below that of the reader. One that is left out is taken for none.
    pub fn is_init(&self, pid: u32) -> bool {
        self.read(pid, "status").is_some_and(|status| root::is_init(&String::from_utf8_lossy(&status)))
    }

    /// The most specific control group path.
    pub fn cgroup(&self, pid: u32) -> Option<String> {
        cgroups::most_telling(&self.root, &String::from_utf8(self.read(pid, "cgroup")?).ok()?)
    }

    /// The most specific path among those of the control groups with these ids, of v1 and of v2; `None` where the process is
    /// in neither.
    pub fn cgroup_of(&self, pid: u32, ids: (u32, u32)) -> Option<String> {
        cgroups::most_telling_of(&self.root, &String::from_utf8(self.read(pid, "cgroup")?).ok()?, ids)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// Parses `net:[4026531840]`.
pub fn parse_ns(link: &str) -> Option<NsInum> {
    link.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat.comm, "a) b (c");
        assert_eq!((stat.state, stat.ppid, stat.start_ns), ('S', 7, 123_450_000_000));
    }

    #[test]
    fn the_flags_tell_who_ends_and_who_is_the_kernels_and_who_has_executed_nothing() {
        let stat = |state: char, flags: u32| {
            Stat::parse(&format!("42 (x) {state} 7 42 42 0 -1 {flags} 1 0 0 0 0 0 0 0 20 0 1 0 12345"))
                .unwrap()
        };
        // As the kernel shows a shell, one that it has killed and that waits for a file server, and `kthreadd`.
        let told = [('S', 4_194_560), ('S', 4_194_316), ('S', 2_129_984)].map(|(state, flags)| {
            let stat = stat(state, flags);
            (stat.is_ending(), stat.is_kernel_thread())
        });
        assert_eq!(told, [(false, false), (true, false), (false, true)]);
        assert!(!stat('Z', 4_194_316).is_ending(), "it has nothing left");
        // The shell, and what it has forked for a list of commands.
        assert_eq!([4_194_560, 4_194_624].map(|flags| stat('S', flags).is_forked()), [false, true]);
    }

    #[test]
    fn a_cut_stat_line_is_none() {
        assert_eq!(Stat::parse("42 (x) S 7"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_reads_itself() {
        let proc = Proc::default();
        let me = std::process::id();
        assert!(proc.is_alive(me));
        assert!(proc.pids().unwrap().contains(&me));
        assert!(proc.ns(me, "net").is_some());
        assert_eq!(proc.stat(u32::MAX), None);
    }
}
