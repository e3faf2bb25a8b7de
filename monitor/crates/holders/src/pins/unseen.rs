//! Who may hold a mount by what nothing in /proc names: a system call in progress has looked up a path, or opens a file that has
//! no descriptor yet; a process that ends gives back its files one after the other, and none of them is in its list any more
//! (`exit_files`, kernel/exit.c). For a file server that does not answer, both last for ever.
//!
//! What is found is possible only. It is looked for last, and only where nothing else explains a refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::park_timeout;
use std::time::Duration;

use kevtmon_observation::Access;
use kevtmon_sources::procfs::Stat;
use kevtmon_sources::procfs::dir::{Dir, NumberName, is_gone};
use kevtmon_sources::procfs::mountinfo::Mount;
use kevtmon_sources::procfs::readers::{WAITS, Waits, unanswered};
use kevtmon_sources::procfs::root::is_root_of_node;

use super::{Pin, Visit, Visitor};
use crate::Deadline;
use crate::mntns_index::{MAX_THREADS, namespace, task_dir, threads};
use crate::searched::ScanTargets;
use crate::unmounters::path_of_call;

/// What threads do is looked at again after this time: nearly every one has done it by then.
const AGAIN: Duration = Duration::from_millis(50);

/// Where a thread waits that opens a named pipe, until somebody opens the other end of it (fs/pipe.c).
const PARTNER: [&str; 2] = ["wait_for_partner", "fifo_open"];
/// The same before 5.5, and who reads one.
const PIPE: &str = "pipe_wait";
/// System calls that open a file by its path.
const OPENING: [libc::c_long; 2] = [libc::SYS_openat, libc::SYS_openat2];
/// System calls that use a file by its descriptor, their first argument, and can wait.
const USING: [libc::c_long; 18] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_getdents64,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_sendfile,
    libc::SYS_splice,
];

/// What a thread does that may use a mount.
#[derive(Debug, PartialEq, Eq)]
struct Doing {
    why: String,
    /// What stays the same as long as it waits in a call; none where it ends.
    call: Option<String>,
}

/// What the threads of the processes do that are looked at next.
#[derive(Debug, Default)]
pub(super) struct Foreseen {
    threads: BTreeMap<u32, Vec<(u32, Doing)>>,
    /// Processes with more threads than there was time to look at.
    cut: BTreeSet<u32>,
}

impl Visitor {
    /// Looks at what the threads of some processes do, to look at them again a little later, all at once.
    pub fn foresee(
        &mut self,
        processes: impl Iterator<Item = (u32, Dir)>,
        targets: &ScanTargets<'_>,
        deadline: &Deadline,
    ) {
        self.foreseen = Foreseen::default();
        for (tgid, process) in processes {
            let doing = if self.is_kernel_thread(tgid, &process) {
                Vec::new()
            } else {
                self.doing_of((tgid, &process), targets, deadline)
            };
            self.foreseen.threads.insert(tgid, doing);
        }
        if self.foreseen.threads.values().any(|doing| !doing.is_empty()) {
            park_timeout(AGAIN);
        }
    }

    fn doing_of(
        &mut self,
        (tgid, process): (u32, &Dir),
        targets: &ScanTargets<'_>,
        deadline: &Deadline,
    ) -> Vec<(u32, Doing)> {
        let mut all = Vec::new();
        for (count, tid) in (1..).zip(threads(tgid, process, &mut self.buffer)) {
            if let Some(doing) = self.doing_of_thread(tid, (tgid, process), targets) {
                all.push((tid, doing));
            }
            if count % MAX_THREADS == 0 && deadline.is_over() {
                self.foreseen.cut.insert(tgid);
                break;
            }
        }
        all
    }

    fn doing_of_thread(
        &mut self,
        tid: u32,
        (tgid, process): (u32, &Dir),
        targets: &ScanTargets<'_>,
    ) -> Option<Doing> {
        let thread = if tid == tgid { None } else { Some(task_dir(process, tid)?) };
        let task = thread.as_ref().unwrap_or(process);
        // Whoever ends has nothing open but what it gives back.
        if stat(task, &mut self.text)?.is_ending() {
            let why = "a thread is exiting; its open files are not visible".to_owned();
            return Some(Doing { why, call: None });
        }
        let (why, call) = self.waiting(process, task, targets)?;
        Some(Doing { why, call: Some(call) })
    }

    /// Looks at what each thread of a process does, rather than at what it has.
    pub fn unseen(
        &mut self,
        (tgid, process): (u32, &Dir),
        targets: &ScanTargets<'_>,
        deadline: &Deadline,
    ) -> Option<Visit> {
        if self.is_kernel_thread(tgid, process) {
            return None;
        }
        let mut visit = Visit::default();
        for (tid, before) in self.foreseen.threads.remove(&tgid).unwrap_or_default() {
            if self.doing_of_thread(tid, (tgid, process), targets).as_ref() != Some(&before) {
                continue;
            }
            visit.doubt(&before.why);
            if before.call.is_some() {
                visit.add(Pin { tid: Some(tid), possible: true, ..Pin::of(Access::Call, None::<String>) });
            }
        }
        if self.foreseen.cut.remove(&tgid) {
            visit.doubt("time ran out before all its threads were read");
        }
        // One that ends has neither.
        let _ = self.anonymous((tgid, process), deadline, &mut visit);
        if !visit.pins.is_empty() {
            visit.ns = visit.read(namespace(process, &mut self.buffer)).flatten().unwrap_or_default();
        }
        Some(visit)
    }

    /// What a thread awaits that may use something of a searched mount until then, and what stays the same as long as it does.
    fn waiting(&mut self, process: &Dir, task: &Dir, targets: &ScanTargets<'_>) -> Option<(String, String)> {
        let function = task.text(c"wchan", &mut self.text).ok()?.trim_end().to_owned();
        if let Some(kind) = WAITS.iter().find(|kind| kind.is_in(&function)) {
            let may_be = |mount: &Mount| may_await(kind, &mount.fstype, || unanswered(&mount.device));
            let is_it = targets.mounts.iter().any(|searched| may_be(searched.mount));
            let what = format!("a thread waits for {} in a system call", kind.name);
            let why = format!("{what}; the files of that call are not visible");
            return if is_it { Some((why, switches(task, &mut self.text)?)) } else { None };
        }
        let call = task.text(c"syscall", &mut self.text).ok()?.into_owned();
        let opens = PARTNER.iter().any(|name| function.starts_with(name))
            || function.starts_with(PIPE) && is_opening(&call);
        let why = if opens {
            if self.opens_known(process, task) {
                return None;
            }
            "a thread waits in open(2) of a named pipe; the mount of the pipe is unknown"
        } else {
            let name = NumberName::new(used(&call)?);
            let link = task.at(c"fd").ok()?.link(name.as_c_str(), &mut self.buffer).map(|_| ());
            link.err().filter(is_gone)?;
            "a thread waits in a system call for a file whose descriptor is closed; the file is unknown"
        };
        Some((why.to_owned(), call))
    }

    /// Whether a thread opens what its process has open anyway, of which the mount is known then: as containerd's library for
    /// pipes does. Who is not root of the node shows what he likes.
    fn opens_known(&mut self, process: &Dir, task: &Dir) -> bool {
        let path = path_of_call(task, &mut self.text);
        let fd = path.as_deref().and_then(|path| path.strip_prefix("/proc/self/fd/")?.parse::<u32>().ok());
        let Some(fd) = fd else { return false };
        let is_open = |fds: Dir| fds.link(NumberName::new(fd).as_c_str(), &mut self.buffer).is_ok();
        process.at(c"fd").is_ok_and(is_open) && is_root_of_node(process, &mut self.buffer, &mut self.text)
    }

    /// Whether the kernel has started this process for itself: it executes no program, and holds no mount.
    pub(super) fn is_kernel_thread(&mut self, tgid: u32, process: &Dir) -> bool {
        if self.kernel_threads.contains(&tgid) {
            return true;
        }
        let is_one = stat(process, &mut self.text).is_some_and(|stat| stat.is_kernel_thread());
        if is_one {
            self.kernel_threads.insert(tgid);
        }
        is_one
    }
}

/// Whether a thread is in such a call, by the text of its number and arguments.
fn is_opening(call: &str) -> bool {
    let number: Option<libc::c_long> =
        call.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    #[cfg(target_arch = "x86_64")]
    if number == Some(libc::SYS_open) {
        return true;
    }
    number.is_some_and(|number| OPENING.contains(&number))
}

fn stat(task: &Dir, text: &mut Vec<u8>) -> Option<Stat> {
    Stat::parse(&task.text(c"stat", text).ok()?)
}

/// How often a thread has left the processor, of itself or not: as long as it waits, that is the same.
fn switches(task: &Dir, text: &mut Vec<u8>) -> Option<String> {
    let status = task.text(c"status", text).ok()?;
    Some(status.lines().filter(|line| line.contains("ctxt_switches")).collect())
}

/// The descriptor of the file that a call uses, by the text of its number and arguments.
fn used(call: &str) -> Option<u32> {
    let mut words = call.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let descriptor = words.next()?.strip_prefix("0x")?;
    USING.contains(&number).then(|| u32::from_str_radix(descriptor, 16).ok())?
}

/// Whether who waits for a server of this kind may use a mount of this type. `unanswered`: how many requests the server of
/// that mount has not answered, where the kernel tells it, as it does of FUSE.
fn may_await(kind: &Waits, fstype: &str, unanswered: impl FnOnce() -> Option<u64>) -> bool {
    match fstype {
        // Its layers can be of any kind.
        "overlay" => true,
        _ => kind.is_of(fstype) && (kind.name != "FUSE" || unanswered() != Some(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_another_kind_of_servers_or_for_one_that_has_answered_uses_no_such_mount() {
        let kind = |function: &str| WAITS.iter().find(|kind| kind.is_in(function)).unwrap();
        let (fuse, nfs) = (kind("request_wait_answer"), kind("rpc_wait_bit_killable"));
        assert!(may_await(fuse, "fuse.glusterfs", || Some(1)));
        assert!(may_await(fuse, "fuse.glusterfs", || None), "the kernel does not tell");
        assert!(!may_await(fuse, "fuse.glusterfs", || Some(0)));
        assert!(!may_await(fuse, "nfs4", || None) && !may_await(fuse, "tmpfs", || None));
        assert!(may_await(nfs, "nfs4", || Some(0)) && may_await(nfs, "overlay", || None));
    }

    #[test]
    fn who_reads_a_pipe_does_not_open_it() {
        let call =
            |number: libc::c_long| format!("{number} 0xffffff9c 0x7ffc10 0x0 0x0 0x0 0x0 0x7ffc00 0x7f00\n");
        assert!(is_opening(&call(libc::SYS_openat)));
        for other in [&call(libc::SYS_read), "running\n", "-1 0x7ffc00 0x7f00\n", ""] {
            assert!(!is_opening(other), "{other}");
        }
    }

    #[test]
    fn a_call_names_the_descriptor_that_it_uses() {
        let call = |number: libc::c_long| format!("{number} 0x1f 0x7ffc10 0x1 0x0 0x0 0x0 0x7ffc00 0x7f00\n");
        assert_eq!(used(&call(libc::SYS_read)), Some(0x1f));
        for other in [&call(libc::SYS_openat), "running\n", "-1 0x7ffc00 0x7f00\n", ""] {
            assert_eq!(used(other), None, "{other}");
        }
    }
}
