//! Who serves a FUSE file system: the processes that have its connection open. Where the kernel shows no connections, those of
//! root of the node whose arguments name the mount point; that is never certain.

use std::time::Duration;

use super::state::state;
use super::{Devices, devices, is_of, served};
use crate::holders::Deadline;
use crate::observation::FileServer;
use crate::sources::procfs::Proc;
use crate::sources::procfs::dir::{Buffer, is_gone};
use crate::sources::procfs::mountinfo::Mount;
use crate::sources::procfs::root::is_root_of_node;

/// Servers of one file system that are told.
const MOST: usize = 8;

/// Who serves a file system.
#[derive(Debug, Default)]
pub(in crate::holders) struct Serving {
    pub(in crate::holders) servers: Vec<FileServer>,
    /// Whether no process has its connection open: its server is gone, and every access to it fails (`ENOTCONN`). False where
    /// that is not known: who hangs his readers or may not be read may be it, and older kernels do not show whose a connection
    /// is. Only the first process keeps its files to itself on many nodes; it serves none.
    pub(in crate::holders) is_unserved: bool,
}

/// Looks for the servers of a file system among all processes, in an order of these, until the time is over.
pub(in crate::holders) fn serving(
    proc: &Proc,
    mount: &Mount,
    order: impl FnOnce(Vec<u32>) -> Vec<u32>,
    deadline: &Deadline,
) -> Serving {
    let Ok(tgids) = proc.pids().map(order) else { return Serving::default() };
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    // By their connections, and by their arguments.
    let (mut shown, mut told) = (Vec::new(), Vec::new());
    let (mut is_whole, mut is_hidden) = (true, false);
    for tgid in tgids {
        if deadline.is_over() {
            is_whole = false;
            break;
        }
        let process = proc.dir(tgid);
        let open = process.as_ref().map_err(is_gone).and_then(|process| {
            let open = devices(process, &mut links, usize::MAX, Some(deadline));
            open.map_err(|error| is_gone(&error))
        });
        let (process, Devices { open, is_whole: is_all }) = match (process, open) {
            (Ok(process), Ok(devices)) => (process, devices),
            (_, Err(is_gone)) => {
                is_whole &= is_gone && !proc.is_aside(tgid) || tgid == 1;
                continue;
            }
            (Err(_), Ok(_)) => continue,
        };
        is_whole &= is_all;
        if open.iter().flatten().any(|number| is_of(*number, mount)) {
            shown.push(tgid);
        } else if open.iter().any(Option::is_none) {
            is_hidden = true;
            // Others are not believed, and cost nothing.
            if told.len() < MOST
                && is_root_of_node(&process, &mut links, &mut text)
                && served(&process)
                    .is_some_and(|served| !served.is_certain && served.mountpoint == mount.mountpoint)
            {
                told.push(tgid);
            }
        }
    }
    let is_certain = is_whole && shown.len() == 1;
    let is_unserved = is_whole && !is_hidden && shown.is_empty();
    let found = if shown.is_empty() { told } else { shown };
    let describe = |tgid| describe(proc, tgid, is_certain);
    Serving { servers: found.into_iter().take(MOST).filter_map(describe).collect(), is_unserved }
}

/// The process that serves a file system. Of several the first one, which is only likely it.
pub(in crate::holders) fn server_of(proc: &Proc, mount: &Mount, budget: Duration) -> Option<FileServer> {
    serving(proc, mount, |tgids| tgids, &Deadline::after(budget)).servers.into_iter().next()
}

fn describe(proc: &Proc, tgid: u32, is_certain: bool) -> Option<FileServer> {
    let process = proc.dir(tgid).ok()?;
    let stat = proc.stat(tgid)?;
    let (state, waits_for) = state(&process, stat.state);
    let (uid, cgroup) = (proc.uid(tgid), proc.cgroup(tgid));
    // Much was read by its number.
    process.is_there(&mut Vec::new()).then_some(FileServer {
        tgid,
        comm: stat.comm,
        state,
        waits_for,
        is_certain,
        uid,
        cgroup,
    })
}
