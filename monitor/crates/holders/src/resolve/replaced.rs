//! Whether a path may have led elsewhere during a call than it leads now, because a directory or link in it was renamed,
//! removed or made since. No mount table tells that; but whoever does it changes the time of its status (ctime), and that of
//! the directory above.
//!
//! A name stands for what it stood for if the directory above it has an older time, or what it stands for has: that was not put
//! there since. What lies below a mount is not seen, nor is what is mounted opened, so there the directory above alone
//! tells. All of that is looked at from the end of the path to its beginning, when the path has been walked: what is in
//! place at its own look was so at all looks before, and what was opened by way of it was what the call saw.
//!
//! File systems take their times from a clock that ticks, so what was changed after the call may have a time before it.

use std::cmp::Reverse;
use std::os::fd::{AsFd, BorrowedFd};

use kevtmon_observation::CallStart;
use kevtmon_types::clock::{BootNs, realtime_offset_ns};
use nix::fcntl::{OFlag, ResolveFlag};

use super::{Resolved, Unresolved, View, cached_stat, is_local, mount_of, names, not_walked, open_cached};

const SECOND: i128 = 1_000_000_000;
/// How late the clock of file systems may be. Usually 10 ms at most, but it stands still while the processor that advances
/// it is not scheduled by a hypervisor.
pub const LATE_NS: BootNs = 1_000_000_000;

/// A clock that is kept right by its rate alone moves less while a call waits to be looked at.
const SET_NS: u64 = 100_000_000;

/// The beginning of a call, in the time of file systems.
#[derive(Debug, Clone, Copy)]
pub struct Beginning(i128);

impl Beginning {
    /// `None` if the clock was set since: what was changed before that seems older than it is, or younger.
    pub fn of(start: CallStart) -> Option<Self> {
        let CallStart { at, realtime_offset_ns: offset } = start;
        let is_set = realtime_offset_ns().abs_diff(offset) > SET_NS;
        (!is_set).then(|| Self(i128::from(at) - i128::from(LATE_NS) + i128::from(offset)))
    }

    /// Whether something was changed before the call for certain.
    fn is_after(self, (seconds, nanoseconds): (i64, u32)) -> bool {
        // Some file systems keep whole seconds.
        let latest = if nanoseconds == 0 { SECOND - 1 } else { i128::from(nanoseconds) };
        i128::from(seconds) * SECOND + latest < self.0
    }
}

impl View<'_> {
    /// Whether all that led to a mount is for certain what led there when the call began.
    pub fn is_in_place(&self, resolved: &Resolved, since: Beginning) -> Result<bool, Unresolved> {
        let walked = resolved.walked.iter().map(|path| names(path).collect::<Vec<_>>());
        let mut walked: Vec<_> = walked.filter(|names| names.len() > self.shown.len()).collect();
        walked.sort_by_key(|names| Reverse(names.len()));
        for names in walked {
            if !self.is_name_in_place(&names, since)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a name stands for what it stood for, if the directory above is what it was.
    fn is_name_in_place(&self, names: &[String], since: Beginning) -> Result<bool, Unresolved> {
        let Some((name, above)) = names.split_last() else { return Ok(true) };
        let directory = self.open_directory(above)?;
        let path = super::joined(above, name);
        let is_older = |file: BorrowedFd<'_>| {
            let time = cached_stat::ctime(file).map_err(|errno| not_walked(&path, errno))?;
            Ok(since.is_after(time))
        };
        // A server tells what it likes, and other clients of it may rename.
        if !is_local(&self.fstype(directory.as_fd())) {
            return Ok(false);
        }
        if is_older(directory.as_fd())? {
            return Ok(true);
        }
        if self.table.topmost(&path, mount_of(directory.as_fd())?).is_some() {
            return Ok(false);
        }
        // Where something is mounted there all the same, this fails.
        let found = open_cached(directory.as_fd(), name, OFlag::empty(), ResolveFlag::RESOLVE_NO_XDEV);
        is_older(found.map_err(|errno| not_walked(&path, errno))?.as_fd())
    }
}
