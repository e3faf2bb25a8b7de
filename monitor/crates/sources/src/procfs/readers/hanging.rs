//! What can be said of a process that hangs whoever reads it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;

use kevtmon_types::escape::name;
use kevtmon_types::redact;
use serde::{Deserialize, Serialize};

use super::Job;
use super::waits_in::{WAITS, Waits, unanswered};
use crate::procfs::Proc;
use crate::procfs::mountinfo::{Mount, MountTable, is_fuse};

const NAMED: usize = 3;
const THREADS: usize = 64;
const MOUNTS_TEXT: u64 = 4 << 20;

/// Finds out who hangs and where, from what the kernel shows without the lock that others wait for: on all kernels that
/// were tried, the command name, the mounts, and the function of the kernel in which each thread waits.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Describe {
    pub(super) tgid: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) comm: Option<String>,
    /// FUSE file systems that the process sees and whose servers have not answered every request: source and place.
    pub(super) unanswered: Vec<(String, String)>,
    /// Kinds of file systems in whose code threads of the process wait.
    pub(super) waiting: Vec<Waiting>,
}

/// A kind of file systems in whose code a thread waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) kind: String,
    /// Those of this kind that the process sees: source and place.
    pub(super) mounts: Vec<(String, String)>,
    /// How many there are besides.
    pub(super) others: usize,
}

impl Description {
    /// `mounts`: what is mounted where the process is. `functions`: in which its threads wait.
    fn of(
        comm: Option<String>,
        mounts: &str,
        functions: &BTreeSet<String>,
        is_unanswered: impl Fn(&str) -> bool,
    ) -> Self {
        let table = MountTable::parse(mounts, "/");
        let unanswered = table.iter().filter(|mount| is_fuse(&mount.fstype) && is_unanswered(&mount.device));
        let unanswered = unanswered.take(NAMED).map(named).collect::<Vec<_>>();
        let kinds = WAITS.iter().filter(|kind| functions.iter().any(|function| kind.is_in(function)));
        let waiting = kinds.filter(|kind| unanswered.is_empty() || kind.name != "FUSE");
        let waiting = waiting.map(|kind| Waiting::of(kind, &table)).collect();
        Self { comm, unanswered, waiting }
    }

    pub(super) fn phrase(&self, tgid: u32) -> String {
        let mut text = format!("process {tgid}");
        if let Some(comm) = &self.comm {
            text.push_str(&format!(" ({})", name(comm)));
        }
        for (index, (source, place)) in self.unanswered.iter().enumerate() {
            text.push_str(if index == 0 { ", which sees unanswered requests to " } else { " and " });
            text.push_str(&format!("FUSE file system {} at {}", name(source), name(place)));
        }
        for waiting in &self.waiting {
            text.push_str(&waiting.phrase());
        }
        if self.unanswered.is_empty() && self.waiting.is_empty() {
            // It need not be a file system: a page fault that a process answers hangs readers, too.
            text.push_str(", reason unknown");
        }
        text
    }
}

impl Waiting {
    fn of(kind: &Waits, table: &MountTable) -> Self {
        let mut devices = BTreeSet::new();
        let is_first = |mount: &&Mount| kind.is_of(&mount.fstype) && devices.insert(mount.device.clone());
        let all: Vec<&Mount> = table.iter().filter(is_first).collect();
        let mounts = all.iter().take(NAMED).map(|mount| named(mount)).collect();
        Self { kind: kind.name.to_owned(), mounts, others: all.len().saturating_sub(NAMED) }
    }

    /// Not that it waits for one of those that it sees: it can have opened files of others.
    fn phrase(&self) -> String {
        let mut text = format!(", with a thread that waits for {}", self.kind);
        for (index, (source, place)) in self.mounts.iter().enumerate() {
            text.push_str(if index == 0 { "; it sees " } else { ", " });
            text.push_str(&format!("{} at {}", name(source), name(place)));
        }
        if self.others > 0 {
            text.push_str(&format!(" and {} more", self.others));
        }
        text
    }
}

fn named(mount: &Mount) -> (String, String) {
    (redact::mount_source(&mount.source), mount.mountpoint.clone())
}

impl Job for Describe {
    const NAME: &'static str = "describe";
    type Reply = Description;
    const IN_BACKGROUND: bool = true;

    fn run(&self, proc: &Proc) -> Description {
        let read = |file: &str| fs::read_to_string(proc.path(self.tgid, file)).ok();
        let comm = read("comm").map(|comm| comm.trim_end().to_owned());
        let mut mounts = Vec::new();
        // What could be read counts.
        let _ = fs::File::open(proc.path(self.tgid, "mountinfo"))
            .and_then(|file| file.take(MOUNTS_TEXT).read_to_end(&mut mounts));
        let mounts = String::from_utf8_lossy(&mounts);
        let threads = fs::read_dir(proc.path(self.tgid, "task")).into_iter().flatten().flatten();
        let functions = threads.take(THREADS).filter_map(|thread| {
            // Neither this nor the list of threads takes a lock of the process.
            fs::read_to_string(thread.path().join("wchan")).ok()
        });
        let has_unanswered = |device: &str| unanswered(device).is_some_and(|count| count > 0);
        Description::of(comm, &mounts, &functions.collect(), has_unanswered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                          31 22 0:40 / /home rw - nfs4 filer:/home rw\n\
                          32 22 0:41 / /mnt/g rw - fuse.glusterfs vol rw\n";

    fn phrase(mounts: &str, functions: &[&str], unanswered: bool) -> String {
        let functions = functions.iter().map(|function| (*function).to_owned()).collect();
        let description = Description::of(Some("tail".to_owned()), mounts, &functions, |_| unanswered);
        description.phrase(7)
    }

    #[test]
    fn a_kind_of_file_systems_is_named_where_a_thread_waits_in_its_code() {
        let waits = ["0", "rpc_wait_bit_killable"];
        let told = "process 7 (tail), with a thread that waits for NFS; it sees filer:/home at /home";
        assert_eq!(phrase(MOUNTS, &waits, false), told);
        // One file system in two places is one.
        let again = format!("{MOUNTS}33 22 0:40 /b /b rw - nfs4 filer:/home rw\n");
        assert_eq!(phrase(&again, &waits, false), told);
        let mut more = MOUNTS.to_owned();
        for number in 1..5 {
            more.push_str(&format!("4{number} 22 0:5{number} / /{number} rw - nfs old:/{number} rw\n"));
        }
        assert_eq!(phrase(&more, &waits, false), format!("{told}, old:/1 at /1, old:/2 at /2 and 2 more"));
        let local = MOUNTS.lines().next().unwrap();
        assert_eq!(phrase(local, &waits, false), "process 7 (tail), with a thread that waits for NFS");
    }

    #[test]
    fn what_any_file_system_waits_in_names_none() {
        for waits in [
            "folio_wait_bit_common", "0", "rwsem_down_read_slowpath", "rpcauth", "do_exit",
            "fuse_dev_do_read",
        ] {
            assert_eq!(phrase(MOUNTS, &[waits], false), "process 7 (tail), reason unknown");
        }
    }

    #[test]
    fn a_server_that_has_not_answered_is_named_once() {
        let told = "process 7 (tail), which sees unanswered requests to FUSE file system vol at /mnt/g";
        assert_eq!(phrase(MOUNTS, &["request_wait_answer"], true), told);
        assert_eq!(
            phrase(MOUNTS, &["request_wait_answer"], false),
            "process 7 (tail), with a thread that waits for FUSE; it sees vol at /mnt/g"
        );
    }
}
