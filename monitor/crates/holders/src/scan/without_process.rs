//! What holds a mount beside processes: the kernel, and copies in other mount namespaces, some of which have no process.

use std::collections::BTreeMap;

use kevtmon_observation::{Access, Holder, NsInum};

use super::Scan;
use crate::kernel;
use crate::mntns_index::MntnsIndex;
use crate::pins::{Pin, describe};
use crate::propagation::{MountCopy, NamespaceMounts};
use crate::rbd::oldest;
use crate::searched::ScanTargets;

impl Scan<'_> {
    /// Adds what the kernel holds for no process.
    pub(super) fn look_at_kernel(
        &mut self,
        index: &MntnsIndex,
        views: &[NamespaceMounts],
        targets: &ScanTargets<'_>,
        find: fn(&kernel::Seen<'_>) -> (Vec<Holder>, bool),
    ) {
        let deadline = self.deadline;
        let seen = kernel::Seen { proc: self.proc, targets, views, index, deadline: &deadline };
        let (found, has_all) = find(&seen);
        if !has_all {
            self.report.blind_spot(None, kernel::UNREAD_EXPORTS);
        }
        for holder in found {
            if holder.possible {
                self.report.blind_spot(None, kernel::doubt(holder.access));
            }
            if self.report.holders.len() < self.most_listed {
                self.report.holders.push(holder);
            } else {
                self.report.holders_omitted += 1;
            }
        }
    }

    /// Each other namespace with a copy, by its oldest process, else by who keeps it. None of them refuses an unmount by itself:
    /// one that the unmount does not reach never does, and for one that it reaches the users were looked for.
    pub(super) fn namespaces<'c>(
        &self,
        own: NsInum,
        copies: impl Iterator<Item = &'c MountCopy<'c>>,
        index: &MntnsIndex,
    ) -> Vec<Holder> {
        let mut mountpoints: BTreeMap<NsInum, Vec<String>> = BTreeMap::new();
        for copy in copies.filter(|copy| copy.ns != own) {
            mountpoints.entry(copy.ns).or_default().push(copy.mount.mountpoint.clone());
        }
        let mut holders = Vec::new();
        for (ns, paths) in mountpoints {
            let Some((tgid, process)) = oldest(self.proc, index.members(ns), usize::MAX) else {
                if index.members(ns).is_empty() {
                    holders.extend(self.kept(ns, paths));
                }
                continue;
            };
            let pin = |path| Pin::of(Access::Mount, path);
            holders.extend(describe(self.proc, tgid, &process, ns, paths.into_iter().map(pin).collect()));
        }
        holders
    }

    /// The copies in a namespace without a process.
    fn kept(&self, ns: NsInum, paths: Vec<String>) -> Vec<Holder> {
        if let Some(keeper) = self.progress.keepers.get(&ns)
            && let Ok(process) = self.proc.dir(keeper.tgid)
        {
            let pin = |path: &String| Pin { fd: Some(keeper.fd), ..Pin::of(Access::Mount, path.clone()) };
            let pins = paths.iter().map(pin).collect();
            let holders = describe(self.proc, keeper.tgid, &process, ns, pins);
            if !holders.is_empty() {
                return holders;
            }
        }
        let alone = |path| Holder { mntns: Some(ns), ..Holder::of_kernel(Access::Mount, path) };
        paths.into_iter().map(alone).collect()
    }
}
