//! Calls of umount2(2) that wait, whatever program makes them: a thread of a daemon, `fusermount`, a program of somebody's own.
//!
//! `/proc/PID/task/TID/syscall` shows the call of a thread that waits, and its arguments. How long it waits is not shown: as
//! long as the thread was not switched to, it is the same call.

use std::ffi::CStr;

use kevtmon_observation::{BootNs, UmountCall};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir};
use kevtmon_sources::procfs::readers::{WAITS, Waits};
use kevtmon_sources::procfs::root::is_root_of_node;
use serde::{Deserialize, Serialize};

use super::{MOST, Unmounter, server_of_mount};
use crate::mntns_index::{task_dir, threads};

const THREADS_MAX: usize = 512;
const PATH_MAX: usize = 4096;
/// Functions in which threads wait that have nothing to do, and none that unmounts.
const IDLE: [&str; 16] = [
    "0", "futex_", "do_futex", "ep_poll", "do_epoll", "poll_schedule", "do_poll", "do_sys_poll", "do_select",
    "hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "do_wait", "do_sigtimedwait", "anon_pipe_read",
    "pipe_read",
];

/// Calls, umount2(2) first, with the argument that is their path.
const CALLS: &[(libc::c_long, usize)] = &[
    (libc::SYS_umount2, 0),
    (libc::SYS_newfstatat, 1),
    (libc::SYS_openat, 1),
    (libc::SYS_readlinkat, 1),
    (libc::SYS_statx, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, 0),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, 0),
];

/// A thread that is in umount2(2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) tid: u32,
    /// How often it was switched from since it gave way.
    pub(super) switches: u64,
    /// With the time at which it was seen as `since`.
    pub(super) unmounter: Unmounter,
}

impl Call {
    /// Whether it is the same call, for which the thread still waits.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let thread = |call: &Self| (call.unmounter.key(), call.tid, call.switches);
        thread(self) == thread(other)
    }
}

/// The first such thread of each process of root of the node. `only`: where these are given, no others are looked at.
pub(super) fn look(proc: &Proc, now: BootNs, only: Option<&[(u32, u32)]>) -> Vec<Call> {
    let mut buffers = (Buffer::default(), Vec::new());
    let found = |tgid| of_process(proc, tgid, now, only, &mut buffers);
    match only {
        Some(only) => only.iter().map(|(tgid, _)| *tgid).filter_map(found).take(MOST).collect(),
        None => proc.pids().unwrap_or_default().into_iter().filter_map(found).take(MOST).collect(),
    }
}

fn of_process(
    proc: &Proc,
    tgid: u32,
    now: BootNs,
    only: Option<&[(u32, u32)]>,
    (links, text): &mut (Buffer, Vec<u8>),
) -> Option<Call> {
    let process = proc.dir(tgid).ok()?;
    // Kernel threads have none.
    let exe = process.link(c"exe", links).ok()?.into_owned();
    if !is_root_of_node(&process, links, text) {
        return None;
    }
    let tids: Vec<u32> = match only {
        Some(only) => only.iter().filter(|(of, _)| *of == tgid).map(|(_, tid)| *tid).collect(),
        None => threads(tgid, &process, links).into_iter().take(THREADS_MAX).collect(),
    };
    for tid in tids {
        let Some(thread) = task_dir(&process, tid) else { continue };
        let Some((waits, address)) = call_of(&thread, text) else { continue };
        let switches = switches(&thread, text)?;
        let path = path_at(&process, address);
        // It may have ended, and the path be another one's.
        call_of(&thread, text).filter(|(_, again)| *again == address)?;
        let stat = proc.stat(tgid)?;
        let mount = path.as_deref().and_then(|path| {
            let table = process.mount_table("/", |_| true).ok().filter(|table| !table.is_cut())?;
            table.at(path.trim_end_matches('/')).map(|mount| server_of_mount(proc, mount, waits))
        });
        let task = super::task(proc, tgid, exe, &stat)?;
        let call = Some(UmountCall { tid, path, since: now });
        let waits_for = waits.map(|kind| kind.name.to_owned());
        let unmounter = Unmounter { task, comm: stat.comm, waits_for, mount, call };
        return process.is_there(text).then_some(Call { tid, switches, unmounter });
    }
    None
}

/// For which kind of file systems a thread waits in umount2(2), and where its path is in memory; `None` where it does something
/// else.
fn call_of(thread: &Dir, text: &mut Vec<u8>) -> Option<(Option<&'static Waits>, u64)> {
    let function = thread.text(c"wchan", text).ok()?.into_owned();
    if is_idle(&function) {
        return None;
    }
    let address = path_of(&thread.text(c"syscall", text).ok()?, &CALLS[..1])?;
    Some((WAITS.iter().find(|kind| kind.is_in(&function)), address))
}

fn is_idle(function: &str) -> bool {
    let function = function.trim_end();
    function.is_empty()
        || IDLE.iter().any(|idle| function == *idle || *idle != "0" && function.starts_with(idle))
}

/// The absolute path that the first thread of a process has given to the call in which it waits: to unmount it, or to look at it
/// before.
pub fn path(process: &Dir, text: &mut Vec<u8>) -> Option<String> {
    let address = path_of(&process.text(c"syscall", text).ok()?, CALLS)?;
    let path = path_at(process, address);
    // It may have gone on, and the path be another one's.
    path_of(&process.text(c"syscall", text).ok()?, CALLS).filter(|again| *again == address)?;
    path
}

/// Where the path of one of these calls is, by the number of a system call and its arguments.
fn path_of(call: &str, calls: &[(libc::c_long, usize)]) -> Option<u64> {
    let mut words = call.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let (_, argument) = calls.iter().find(|(of, _)| *of == number)?;
    u64::from_str_radix(words.nth(*argument)?.strip_prefix("0x")?, 16).ok()
}

fn switches(thread: &Dir, text: &mut Vec<u8>) -> Option<u64> {
    let status = thread.text(c"status", text).ok()?;
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

fn path_at(process: &Dir, address: u64) -> Option<String> {
    let bytes = process.memory(address, PATH_MAX).ok()?;
    let path = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    path.starts_with('/').then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_in_umount2_is_one() {
        let call = format!("{} 0x7ffc10 0x8 0x0 0x0 0x0 0x0 0x7ffc00 0x7f00\n", libc::SYS_umount2);
        assert_eq!(path_of(&call, &CALLS[..1]), Some(0x007f_fc10));
        for other in ["running\n", "-1 0x7ffc00 0x7f00\n", "0 0x3 0x7ffc10 0x1\n", ""] {
            assert_eq!(path_of(other, CALLS), None, "{other}");
        }
        // What looks at the path before.
        let call =
            format!("{} 0xffffff9c 0x7ffc10 0x7ffc20 0x0 0x0 0x0 0x7ffc00 0x7f00\n", libc::SYS_newfstatat);
        assert_eq!((path_of(&call, &CALLS[..1]), path_of(&call, CALLS)), (None, Some(0x007f_fc10)));
    }

    #[test]
    fn who_waits_for_work_is_not_looked_at_further() {
        for (function, expected) in [
            ("0", true),
            ("", true),
            ("futex_wait_queue", true),
            ("ep_poll", true),
            ("request_wait_answer", false),
            ("rpc_wait_bit_killable", false),
            ("wb_wait_for_completion", false),
        ] {
            assert_eq!(is_idle(function), expected, "{function}");
        }
    }

    #[test]
    fn a_path_is_read_from_the_memory_of_its_process() {
        let path = c"/v/a";
        let own = Proc::default().dir(std::process::id()).unwrap();
        let at = u64::try_from(path.as_ptr().addr()).unwrap();
        assert_eq!(path_at(&own, at).as_deref(), Some("/v/a"));
        let relative = c"v";
        assert_eq!(path_at(&own, u64::try_from(relative.as_ptr().addr()).unwrap()), None);
        assert_eq!(path_at(&own, 1), None);
    }

    #[test]
    fn a_call_is_another_one_once_its_thread_has_run() {
        let found = look(&Proc::default(), 7, Some(&[(std::process::id(), std::process::id())]));
        assert!(found.is_empty(), "this one unmounts nothing: {found:?}");
    }
}
