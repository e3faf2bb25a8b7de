//! Namespaces that users made: any user can make any number of them, so that the model has only some of each account.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Namespace, Namespaces};
use crate::node::cgroup;
use crate::observation::{BootNs, NetnsOwner, NetnsSnapshot, NsInum};

/// Namespaces of one account,
const ACCOUNT_MAX: usize = 32;
/// and of all users together.
const USERS_MAX: usize = 256;
/// One that was not read for this time makes room: it may have ended, of which no message tells.
const UNREAD_NS: BootNs = 60 * 1_000_000_000;
/// One for which there is no room is not read again for this time.
const REFUSED_NS: BootNs = 10 * 1_000_000_000;
/// Most of those; of more, the oldest are read again sooner.
const REFUSED_MAX: usize = 1024;

/// The namespaces for which there was no room, and since when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Crowd {
    refused: BTreeMap<NsInum, BootNs>,
}

impl Crowd {
    /// Whether there is room for a namespace in which no container is known. Of those that users made the longest unread of
    /// the same account makes room, if that was long ago.
    pub fn admits(&mut self, at: BootNs, namespaces: &mut Namespaces, snapshot: &NetnsSnapshot) -> bool {
        let netns = snapshot.netns;
        self.refused.remove(&netns);
        if !snapshot.foreign_userns || namespaces.known.contains_key(&netns) {
            return true;
        }
        let account = account(snapshot.owner.as_ref());
        let of_users = || namespaces.known.iter().filter(|(_, known)| known.foreign_userns);
        let is_his = |known: &Namespace| self::account(known.owner.as_ref()) == account;
        let (all, his) =
            of_users().fold((0, 0), |(all, his), (_, known)| (all + 1, his + usize::from(is_his(known))));
        if his < ACCOUNT_MAX && all < USERS_MAX {
            return true;
        }
        let may_go = |known: &Namespace| {
            known.read.saturating_add(UNREAD_NS) <= at && (his < ACCOUNT_MAX || is_his(known))
        };
        let oldest = of_users().filter(|(_, known)| may_go(known)).min_by_key(|(_, known)| known.read);
        if let Some(oldest) = oldest.map(|(netns, _)| *netns) {
            namespaces.known.remove(&oldest);
            return true;
        }
        let refused = &mut self.refused;
        if refused.len() >= REFUSED_MAX {
            refused.retain(|_, since| since.saturating_add(REFUSED_NS) > at);
        }
        if refused.len() < REFUSED_MAX {
            refused.insert(netns, at);
        }
        false
    }

    /// Whether a namespace was read of late and there was no room for it.
    #[must_use]
    pub fn is_refused(&self, at: BootNs, netns: NsInum) -> bool {
        self.refused.get(&netns).is_some_and(|since| since.saturating_add(REFUSED_NS) > at)
    }
}

/// Whose it is, as far as the oldest process in it shows.
fn account(owner: Option<&NetnsOwner>) -> &str {
    owner.and_then(|owner| owner.cgroup.as_deref()).and_then(cgroup::owner).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: BootNs = 1_000_000_000;

    fn of_user(netns: NsInum, user: u32) -> NetnsSnapshot {
        let cgroup = format!("/user.slice/user-{user}.slice/x{netns}.scope");
        let owner = NetnsOwner { tgid: netns, start_ns: 1, comm: "x".into(), cgroup: Some(cgroup) };
        NetnsSnapshot { foreign_userns: true, owner: Some(owner), ..NetnsSnapshot::empty(netns) }
    }

    #[derive(Default)]
    struct Model {
        namespaces: Namespaces,
        crowd: Crowd,
    }

    fn admitted(model: &mut Model, at: BootNs, snapshots: impl Iterator<Item = NetnsSnapshot>) -> usize {
        let Model { namespaces, crowd } = model;
        snapshots
            .filter(|snapshot| {
                let has_room = crowd.admits(at, namespaces, snapshot);
                if has_room {
                    namespaces.replace(at, snapshot.clone(), true);
                }
                has_room
            })
            .count()
    }

    #[test]
    fn a_user_has_some_namespaces_in_the_model_and_takes_none_of_others() {
        let mut model = Model::default();
        assert_eq!(admitted(&mut model, S, (1000..2000).map(|netns| of_user(netns, 1000))), 32);
        assert!(model.crowd.is_refused(S, 1999) && !model.crowd.is_refused(12 * S, 1999));
        assert_eq!(admitted(&mut model, S, (2000..2010).map(|netns| of_user(netns, 1001))), 10);
        let own = (3000..4000).map(NetnsSnapshot::empty);
        assert_eq!(admitted(&mut model, S, own), 1000, "those that root made have no limit");
        let others = (0..1000).map(|user| of_user(10_000 + user, 5000 + user));
        assert_eq!(admitted(&mut model, S, others), 256 - 42);
    }

    #[test]
    fn one_that_was_not_read_for_long_makes_room_for_another_of_the_same_user() {
        let mut model = Model::default();
        admitted(&mut model, S, (1000..1032).map(|netns| of_user(netns, 1000)));
        admitted(&mut model, S, (2000..2001).map(|netns| of_user(netns, 1001)));
        model.namespaces.replace(50 * S, of_user(1000, 1000), true);
        assert_eq!(admitted(&mut model, 62 * S, (3000..3010).map(|netns| of_user(netns, 1000))), 10);
        let namespaces = &model.namespaces;
        assert!(namespaces.get(1000).is_some() && namespaces.get(1001).is_none());
        assert!(namespaces.get(2000).is_some());
    }
}
