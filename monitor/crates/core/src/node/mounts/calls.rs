//! How often each system call was refused on a mount: an unmount, a removal and a rename are three things.

use kevtmon_observation::MountSyscall;
use serde::{Deserialize, Serialize};

/// Refused calls, by system call, in the order in which they were first seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RefusedCalls(Vec<(MountSyscall, u64)>);

impl RefusedCalls {
    pub fn of(syscall: MountSyscall, calls: u64) -> Self {
        let mut all = Self::default();
        all.add(syscall, calls);
        all
    }

    pub fn add(&mut self, syscall: MountSyscall, calls: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == syscall) {
            Some((_, count)) => *count = count.saturating_add(calls),
            None if calls > 0 => self.0.push((syscall, calls)),
            None => {}
        }
    }

    pub(super) fn take_one(&mut self, syscall: MountSyscall) {
        if let Some((_, count)) = self.0.iter_mut().find(|(known, _)| *known == syscall) {
            *count = count.saturating_sub(1);
        }
        self.0.retain(|(_, count)| *count > 0);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(syscall, calls)| self.add(syscall, calls));
    }

    /// Each system call and how often it was refused.
    pub fn iter(&self) -> impl Iterator<Item = (MountSyscall, u64)> {
        self.0.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn total(&self) -> u64 {
        self.iter().map(|(_, calls)| calls).sum()
    }

    /// The unmounts among them.
    pub fn unmounts(&self) -> u64 {
        self.iter().filter(|(syscall, _)| syscall.is_umount()).map(|(_, calls)| calls).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_system_call_counts_by_itself() {
        let mut calls = RefusedCalls::of(MountSyscall::Rmdir, 2);
        calls.add(MountSyscall::Umount2, 0);
        assert_eq!((calls.total(), calls.unmounts()), (2, 0));
        calls.merge(&RefusedCalls::of(MountSyscall::Umount2, 3));
        calls.add(MountSyscall::Rmdir, 1);
        let all = [(MountSyscall::Rmdir, 3), (MountSyscall::Umount2, 3)];
        assert_eq!(calls.iter().collect::<Vec<_>>(), all);
        assert_eq!((calls.total(), calls.unmounts()), (6, 3));
        (0..3).for_each(|_| calls.take_one(MountSyscall::Rmdir));
        calls.take_one(MountSyscall::Rename);
        assert_eq!(calls, RefusedCalls::of(MountSyscall::Umount2, 3));
    }
}
