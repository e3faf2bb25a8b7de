//! Kubelets of the node. An unmount that looks like one of a pod volume, below a root directory that no known kubelet
//! has, is held back until the kubelets that run now are looked up: one of them may just have started.

use std::collections::VecDeque;

use kevtmon_event::volume;
use kevtmon_observation::{BootNs, KubeletFacts, NsInum, Request, Source, TaskFacts, UmountAttempt};
use serde::{Deserialize, Serialize};

use super::Core;
use super::pending::Pending;
use crate::diagnose::ModelChange;
use crate::node::mounts::MountKey;

/// At most one lookup in this time for one root directory: it lists all processes.
const LOOKUP_INTERVAL_NS: BootNs = 10_000_000_000;
/// An unmount is held back this long at most, as for the holders of its mount.
const LOOKUP_TIMEOUT_NS: BootNs = 5_000_000_000;
/// Root directories that are looked up in that time; volumes below more are reported with what is known.
const ROOTS_MAX: usize = 32;
/// Unmounts that are held back at once; more are reported with what is known.
const HELD_MAX: usize = 256;
/// Only root runs kubelets.
const ROOT: u32 = 0;

/// The lookup of kubelets, and the unmounts that await it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KubeletLookup {
    /// What was looked up in the last interval, and when, the oldest first.
    requested: VecDeque<(BootNs, NsInum, String)>,
    held: Pending<(), HeldUmount>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct HeldUmount {
    at: BootNs,
    source: Source,
    attempt: UmountAttempt,
    task: Option<Box<TaskFacts>>,
}

impl KubeletLookup {
    pub(super) fn deadline(&self) -> Option<BootNs> {
        self.held.deadline()
    }

    /// Whether to look up now whether a kubelet has this root directory.
    fn is_due(&mut self, at: BootNs, mntns: NsInum, root: &str) -> bool {
        let is_recent = |(requested, ..): &(BootNs, _, _)| at < requested.saturating_add(LOOKUP_INTERVAL_NS);
        self.requested.retain(is_recent);
        if self.requested.len() >= ROOTS_MAX
            || self.requested.iter().any(|(_, known, below)| *known == mntns && below == root)
        {
            return false;
        }
        self.requested.push_back((at, mntns, root.to_owned()));
        true
    }
}

impl Core {
    /// Processes an unmount once it is known whether it is of a pod volume.
    pub(super) fn umount_below_known_root(&mut self, at: BootNs, attempt: UmountAttempt) {
        if self.kubelet_lookup.held.len() < HELD_MAX && self.awaits_lookup(at, &attempt) {
            let task = self.tasks.copy(&attempt.actor);
            let held = HeldUmount { at, source: self.source, attempt, task };
            let deadline = at.saturating_add(LOOKUP_TIMEOUT_NS);
            return self.kubelet_lookup.held.push(deadline, (), held);
        }
        self.umount(at, attempt);
    }

    /// Whether a lookup is under way that the unmount depends on; requests it where it is due.
    fn awaits_lookup(&mut self, at: BootNs, attempt: &UmountAttempt) -> bool {
        let key = |attempt: &UmountAttempt| MountKey::new(attempt.mntns, &attempt.place());
        let wanted = key(attempt);
        // Those of one mount are processed in their order.
        if self.kubelet_lookup.held.has(|held| key(&held.attempt) == wanted) {
            return true;
        }
        let context = self.context(&attempt.actor);
        let by_root = context.is_some_and(|context| context.uid == ROOT && !context.is_in_other_userns());
        let Some(root) = volume::root_of(&wanted.path).filter(|_| by_root) else { return false };
        if self.kubelets.volume(at, attempt.mntns, &wanted.path).is_some() {
            return false;
        }
        if self.kubelet_lookup.is_due(at, attempt.mntns, root) {
            self.request(Request::Kubelet);
            return true;
        }
        self.kubelet_lookup.held.len() > 0
    }

    pub(super) fn kubelet(&mut self, at: BootNs, facts: KubeletFacts) {
        let is_other = self.kubelets.replace(at, facts);
        let held = self.kubelet_lookup.held.take_answered(&());
        self.process_held(held);
        if is_other {
            self.diagnose(at, &ModelChange::Kubelets);
        }
    }

    pub(super) fn process_overdue_umounts(&mut self, now: BootNs) {
        let held = self.kubelet_lookup.held.take_overdue(now);
        self.process_held(held);
    }

    fn process_held(&mut self, held: Vec<HeldUmount>) {
        for HeldUmount { at, source, attempt, task } in held {
            self.take_up(source, task.as_deref());
            self.umount(at, attempt);
        }
    }
}
