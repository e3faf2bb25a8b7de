//! The mount tables of all namespaces that matter for a scan: those that show the file system of the target, or in which something
//! is mounted where an unmount of it could propagate to.

use std::collections::BTreeMap;

use kevtmon_sources::procfs::mountinfo::{Mount, MountTable};

use super::Scan;
use super::table_memory::TableMemory;
use crate::mntns_index::{self, MntnsIndex};
use crate::orphans::{self, Kept};
use crate::own_directory;
use crate::propagation::NamespaceMounts;
use crate::scope::Scope;

impl Scan<'_> {
    /// The target's namespace, and all others that matter; whether there was time for all.
    pub(super) fn views(
        &mut self,
        own: NamespaceMounts,
        index: &MntnsIndex,
        scope: &Scope<'_>,
    ) -> (Vec<NamespaceMounts>, bool) {
        let mut memory = TableMemory::new(&own, scope);
        self.note_groups(&own.table, scope);
        let (mut views, mut is_whole, mut looked) = (vec![own], true, false);
        for (ns, members) in &index.namespaces {
            let known = self.progress.namespaces.get(ns).copied();
            if *ns == views[0].ns || known == Some(false) {
                continue;
            }
            // What is needed again is read however long it takes, and one that is new: else a scan would not get on.
            if known.is_none() && std::mem::replace(&mut looked, true) && self.deadline.is_over() {
                is_whole = false;
                continue;
            }
            let is_wanted = |mount: &Mount| scope.may_be_near_of(&mount.device, mount.propagates());
            let shown = mntns_index::mounts(self.proc, members.iter().copied(), is_wanted);
            let Some(shown) = shown else {
                // Where the kernel lists the processes of a namespace, it is not known yet that they may not be read.
                if known.is_none() {
                    self.count_unread(members.iter().map(|member| member.tgid), scope);
                    self.progress.namespaces.insert(*ns, false);
                }
                continue;
            };
            if known.is_none() {
                self.doubt_what_is_hidden(&shown, scope);
            }
            let mut table = shown.table;
            self.note_groups(&table, scope);
            let mut matters = scope.matters(&table);
            if matters && !memory.take(&mut table, scope) {
                matters = false;
                self.report.blind_spot(None, "more mounts show its file system than a scan reads");
            }
            self.progress.namespaces.insert(*ns, matters);
            if matters {
                views.push(NamespaceMounts { ns: *ns, table });
            }
            self.note_in_time();
        }
        views.extend(self.orphans(index, scope));
        (views, is_whole)
    }

    /// The mount namespaces without a process that matter. Nothing is known of them where /proc is not that of this process.
    fn orphans(&mut self, index: &MntnsIndex, scope: &Scope<'_>) -> Vec<NamespaceMounts> {
        let own = own_directory(self.proc).and(self.own).and_then(|own| self.proc.dir(own).ok());
        let Some(own) = own else { return Vec::new() };
        let known = |ns| self.progress.namespaces.get(&ns).copied();
        let is_wanted = |device: &str, propagates| scope.may_be_near_of(device, propagates);
        let mut found = orphans::find(&own, index, is_wanted, known);
        if let Some(reason) = found.missing {
            self.report.blind_spot(None, reason);
        }
        let mut matter = BTreeMap::new();
        for view in &found.views {
            self.note_groups(&view.table, scope);
            matter.insert(view.ns, scope.matters(&view.table));
        }
        self.progress.namespaces.extend(matter.iter().map(|(ns, matters)| (*ns, *matters)));
        self.progress.namespaces.extend(found.others.iter().map(|ns| (*ns, false)));
        found.views.retain(|view| matter.get(&view.ns) == Some(&true));
        self.visitor.namespaces = Kept::new(&found, index);
        found.views
    }

    /// Notes which peer groups of the file system below the target there are.
    fn note_groups(&mut self, table: &MountTable, scope: &Scope<'_>) {
        if let Some(at) = &scope.at
            && !self.progress.groups.add(at, table)
        {
            self.report.blind_spot(None, "there are more peer groups of mounts than a scan reads");
        }
    }
}
