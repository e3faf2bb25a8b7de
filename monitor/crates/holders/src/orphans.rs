//! Mount namespaces in which no process is seen: an open file or a mount of nsfs keeps them, and their copies of mounts
//! are as good as any.
//!
//! Since 6.12 the kernel lists all namespaces. Before, an open file that is one shows that it exists, and nothing shows what is
//! mounted there without entering it, which is not done.

use std::collections::BTreeSet;
use std::time::Duration;

use kevtmon_observation::NsInum;
use kevtmon_sources::procfs::dir::Dir;
use kevtmon_sources::procfs::parse_ns;
use kevtmon_sources::procfs::statmount::MountNamespace;
use serde::{Deserialize, Serialize};

use super::Deadline;
use super::mntns_index::MntnsIndex;
use super::propagation::NamespaceMounts;

/// The time for them in a part of a scan: users can have as many as they like, and those are not to delay what else is looked at.
const TIME: Duration = Duration::from_millis(100);
/// Mounts that one of them may have: users can have as many as the kernel lets them, and nobody needs to look through those.
const MOUNTS_MAX: usize = 8192;

const UNREAD: &str = "the mounts of a namespace without a process cannot be read";

/// A process that keeps a namespace by an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Keeper {
    pub(super) tgid: u32,
    pub(super) fd: u32,
}

#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub(super) views: Vec<NamespaceMounts>,
    pub(super) others: Vec<NsInum>,
    /// Whether the kernel lists them.
    is_listed: bool,
    pub(super) missing: Option<&'static str>,
}

/// Finds them. `own`: the directory in /proc of this process; `is_wanted`: whether one may matter that has a mount of this file
/// system, by whether that shares or receives what is mounted on it; `known`: whether one that was looked at before does.
pub(super) fn find(
    own: &Dir,
    index: &MntnsIndex,
    is_wanted: impl Fn(&str, bool) -> bool,
    known: impl Fn(NsInum) -> Option<bool>,
) -> Orphans {
    let mut found = Orphans::default();
    let deadline = Deadline::after(TIME);
    let listed = MountNamespace::for_each_other(own, |number, namespace| {
        if index.namespaces.contains_key(&number) || known(number) == Some(false) {
            return Ok(true);
        }
        if deadline.is_over() {
            found.missing = Some("there are more mount namespaces without a process than there was time for");
            return Ok(false);
        }
        match namespace.table_with(MOUNTS_MAX, &is_wanted) {
            Ok(Some(table)) => {
                if table.is_cut() {
                    found.missing = Some(UNREAD);
                }
                found.views.push(NamespaceMounts { ns: number, table });
            }
            Ok(None) => found.others.push(number),
            Err(_) => found.missing = Some(UNREAD),
        }
        Ok(true)
    });
    // Otherwise only open files show which there are.
    found.is_listed = listed.is_ok();
    found
}

/// Which namespaces an open file is looked at for that is one.
#[derive(Debug, Default)]
pub(super) enum Kept {
    #[default]
    None,
    /// Those without a process that have a copy.
    These(BTreeSet<NsInum>),
    /// All but these, which have processes: the kernel lists none.
    AllBut(BTreeSet<NsInum>),
}

impl Kept {
    pub(super) fn new(orphans: &Orphans, index: &MntnsIndex) -> Self {
        match orphans.is_listed {
            true => Self::These(orphans.views.iter().map(|view| view.ns).collect()),
            false => Self::AllBut(index.namespaces.keys().copied().collect()),
        }
    }

    /// What an open file with this link is, if it is such a namespace; `None` instead of its number where nothing else is known.
    pub(super) fn of(&self, link: &str) -> Option<Option<NsInum>> {
        let number = || parse_ns(link).filter(|_| link.starts_with("mnt:["));
        match self {
            Self::None => None,
            Self::These(wanted) => number().filter(|ns| wanted.contains(ns)).map(Some),
            Self::AllBut(others) => number().filter(|ns| !others.contains(ns)).map(|_| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_a_namespace_only_by_its_link() {
        let wanted = Kept::These(BTreeSet::from([7]));
        assert_eq!(wanted.of("mnt:[7]"), Some(Some(7)));
        assert_eq!((wanted.of("mnt:[8]"), wanted.of("net:[7]"), wanted.of("/v")), (None, None, None));
        let unlisted = Kept::AllBut(BTreeSet::from([7]));
        assert_eq!((unlisted.of("mnt:[7]"), unlisted.of("mnt:[8]")), (None, Some(None)));
        assert_eq!(Kept::None.of("mnt:[7]"), None);
    }
}
