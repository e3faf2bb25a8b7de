//! Who tries to unmount, and who is the tenant of it.

use kevtmon_event::culprit::{is_remove_program, is_umount_program};
use kevtmon_observation::cgroup;
use kevtmon_observation::{Rank, Share, UmountAttempt};

use super::QueuedUmount;
use crate::Core;
use crate::node::mounts::{Account, Caller};

impl Core {
    /// The nearest process above the program that unmounts or removes.
    pub(super) fn caller(&self, attempt: &UmountAttempt) -> Caller {
        let (actor, syscall) = (&attempt.actor, attempt.syscall);
        let is_tool = if syscall.is_umount() { is_umount_program } else { is_remove_program };
        let of = |tgid, start_ns| Caller { tgid, start_ns, syscall };
        let own = of(actor.key.tgid, actor.key.start_ns);
        let facts = self.tasks.get(actor);
        if !is_tool(&actor.comm, facts.and_then(|facts| facts.exe.as_deref())) {
            return own;
        }
        let ancestors = facts.map_or(&[][..], |facts| &facts.ancestors);
        let above = ancestors.iter().find(|above| !is_tool(&above.comm, above.exe.as_deref()));
        above.or(ancestors.last()).map_or(own, |above| of(above.tgid, above.start_ns))
    }

    pub(super) fn account(&self, attempt: &UmountAttempt) -> Account {
        let path = self.tasks.get(&attempt.actor).and_then(|facts| facts.cgroup.as_deref());
        // Users unmount in the host's namespace by a program that root lent its rights, such as fusermount.
        let by_root = self.context(&attempt.actor).is_none_or(|context| context.uid == 0);
        Account {
            host: by_root && self.kubelets.mounts_in(attempt.mntns),
            name: path.map(cgroup::account).unwrap_or_default().to_owned(),
        }
    }

    /// On whose behalf something is looked up for an unmount.
    pub(super) fn share(&self, umount: &QueuedUmount) -> Share {
        let QueuedUmount { at, attempt, account, .. } = umount;
        let context = self.context(&attempt.actor);
        let is_foreign = context.is_some_and(|context| context.is_in_other_userns());
        let is_volume = || self.kubelets.volume(*at, attempt.mntns, &attempt.place()).is_some();
        let rank = match account.host && !is_foreign {
            false => Rank::Other,
            true if is_volume() => Rank::Volume,
            true => Rank::Host,
        };
        Share { rank, ..share_of(account) }
    }
}

/// On whose behalf something is looked up for a busy mount.
pub(super) fn share_of(account: &Account) -> Share {
    let rank = if account.host { Rank::Host } else { Rank::Other };
    Share { rank, account: account.name.clone() }
}
