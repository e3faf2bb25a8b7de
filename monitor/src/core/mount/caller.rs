//! Who tries to unmount, and who is charged for it.

use crate::core::Core;
use crate::event::culprit::is_umount_program;
use crate::node::cgroup;
use crate::node::mounts::{Account, Caller};
use crate::observation::UmountAttempt;

impl Core {
    /// The nearest process above the program that unmounts.
    pub(super) fn caller(&self, attempt: &UmountAttempt) -> Caller {
        let actor = &attempt.actor;
        let own = Caller { tgid: actor.key.tgid, start_ns: actor.key.start_ns };
        let facts = self.tasks.get(actor);
        if !is_umount_program(&actor.comm, facts.and_then(|facts| facts.exe.as_deref())) {
            return own;
        }
        let ancestors = facts.map_or(&[][..], |facts| &facts.ancestors);
        let above = ancestors.iter().find(|above| !is_umount_program(&above.comm, above.exe.as_deref()));
        above.or(ancestors.last()).map_or(own, |above| Caller { tgid: above.tgid, start_ns: above.start_ns })
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
}
