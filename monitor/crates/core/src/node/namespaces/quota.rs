//! Namespaces in which others than the node's root make links and addresses: any user any number of namespaces and of rows
//! in each, and any container that may change its network any number of rows in its own. The model has only some of each
//! account.

use std::collections::BTreeMap;

use kevtmon_observation::cgroup;
use kevtmon_observation::{BootNs, NetnsOwner, NetnsSnapshot, NsInum};
use serde::{Deserialize, Serialize};

use super::{Namespace, Namespaces, ROUTES_MAX};

/// Namespaces of one account,
const ACCOUNT_MAX: usize = 32;
/// and of all users together.
const USERS_MAX: usize = 256;
/// Links, addresses and default routes in the namespaces of one account,
const ACCOUNT_ROWS: usize = 2048;
/// and in those of all users together.
const USERS_ROWS: usize = 8192;
/// What each namespace of a container may have of them without being counted: more than those with one use have.
const CONTAINER_ROWS: usize = 256;
/// One that was not read for this time makes room: it may have ended, of which no message tells.
const UNREAD_NS: BootNs = 60 * 1_000_000_000;
/// One for which there is no room is not read again for this time.
const REFUSED_NS: BootNs = 10 * 1_000_000_000;
/// Most of those; of more, the oldest are read again sooner.
const REFUSED_MAX: usize = 1024;
/// How often it is reported at most that there was no room.
const AGAIN_NS: BootNs = 60 * 1_000_000_000;

/// The namespaces for which there was no room.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NamespaceQuota {
    /// Since when.
    refused: BTreeMap<NsInum, BootNs>,
    /// What users' make is told apart from what hides a container.
    users: Report,
    containers: Report,
    /// Readings for which there was no room, since the start.
    pub total: u64,
}

/// What is reported of some of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Report {
    unreported: Option<Refused>,
    reported: Option<BootNs>,
}

/// Readings of namespaces that were left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub count: u64,
    pub from: BootNs,
    pub until: BootNs,
    /// The namespace of the last one.
    pub netns: NsInum,
    /// Whether they are of containers, not of users.
    pub of_containers: bool,
}

impl NamespaceQuota {
    /// Whether there is room for a namespace other than the host's. Of those that users made the longest unread of the same
    /// account makes room, if that was long ago. One of a container has room unless there is too much in it; those with much
    /// in them share what all may have. What is known of one that is refused is not up to date any more.
    pub fn admits(
        &mut self,
        at: BootNs,
        namespaces: &mut Namespaces,
        snapshot: &NetnsSnapshot,
        is_containers: bool,
    ) -> bool {
        let netns = snapshot.netns;
        self.refused.remove(&netns);
        let is_too_large = snapshot.omitted > 0;
        let of_containers = is_containers || !snapshot.foreign_userns;
        let has_room = if !of_containers {
            !is_too_large && has_room(at, namespaces, snapshot, account(snapshot.owner.as_ref()))
        } else {
            !is_too_large && has_room_among_containers(namespaces, snapshot, is_containers)
        };
        if has_room {
            return true;
        }
        namespaces.set_stale(at, netns, false);
        let refused = &mut self.refused;
        if refused.len() >= REFUSED_MAX {
            refused.retain(|_, since| since.saturating_add(REFUSED_NS) > at);
        }
        if refused.len() < REFUSED_MAX {
            refused.insert(netns, at);
        }
        let told = if of_containers { &mut self.containers } else { &mut self.users };
        let none = Refused { count: 0, from: at, until: at, netns, of_containers };
        let more = told.unreported.get_or_insert(none);
        (more.count, more.until, more.netns) = (more.count + 1, at, netns);
        self.total += 1;
        false
    }

    /// What is to be reported of that now; with `all`, even if something was reported a moment ago.
    pub fn take_due(&mut self, now: BootNs, all: bool) -> impl Iterator<Item = Refused> + use<> {
        [&mut self.containers, &mut self.users].map(|told| told.take_due(now, all)).into_iter().flatten()
    }

    /// Whether a namespace was read of late and there was no room for it.
    pub fn is_refused(&self, at: BootNs, netns: NsInum) -> bool {
        self.refused.get(&netns).is_some_and(|since| since.saturating_add(REFUSED_NS) > at)
    }
}

impl Report {
    fn take_due(&mut self, now: BootNs, all: bool) -> Option<Refused> {
        if !all && self.reported.is_some_and(|at| now < at.saturating_add(AGAIN_NS)) {
            return None;
        }
        let due = self.unreported.take()?;
        self.reported = Some(now);
        Some(due)
    }
}

/// Whether what is in a namespace of this account has room, with what others of it may go.
fn has_room(at: BootNs, namespaces: &mut Namespaces, snapshot: &NetnsSnapshot, account: &str) -> bool {
    let rows = rows(snapshot);
    loop {
        let others = namespaces.known.iter();
        let others = others.filter(|(netns, known)| known.foreign_userns && **netns != snapshot.netns);
        let others: Vec<_> = others
            .map(|(netns, known)| (netns, known, self::account(known.owner.as_ref()) == account))
            .collect();
        let used = |only_his: bool| {
            let counted = others.iter().filter(|(.., is_his)| *is_his || !only_his);
            counted.fold((1, rows), |(count, rows), (_, known, _)| (count + 1, rows + known.rows()))
        };
        let fits = |(count, rows), max, rows_max| count <= max && rows <= rows_max;
        let has_his = fits(used(true), ACCOUNT_MAX, ACCOUNT_ROWS);
        if has_his && fits(used(false), USERS_MAX, USERS_ROWS) {
            return true;
        }
        let may_go =
            |known: &Namespace, is_his| known.read.saturating_add(UNREAD_NS) <= at && (has_his || is_his);
        let old = others.iter().filter(|(_, known, is_his)| may_go(known, *is_his));
        let Some(oldest) = old.min_by_key(|(_, known, _)| known.read).map(|(netns, ..)| **netns) else {
            return false;
        };
        namespaces.known.remove(&oldest);
    }
}

/// Whether what is in a namespace of a container has room. Those that root made beside containers have no account: nobody
/// else can make or change them.
fn has_room_among_containers(namespaces: &Namespaces, snapshot: &NetnsSnapshot, is_containers: bool) -> bool {
    let own = container(snapshot.owner.as_ref());
    let rows = rows(snapshot);
    if !is_containers && own.is_none() || rows <= CONTAINER_ROWS {
        return true;
    }
    let (mut his, mut all) = (rows, rows);
    for (netns, known) in &namespaces.known {
        let of_container = container(known.owner.as_ref());
        if *netns == snapshot.netns || of_container.is_none() || known.rows() <= CONTAINER_ROWS {
            continue;
        }
        all += known.rows();
        if of_container == own {
            his += known.rows();
        }
    }
    his <= ACCOUNT_ROWS && all <= USERS_ROWS
}

fn rows(snapshot: &NetnsSnapshot) -> usize {
    let routes = snapshot.routes.iter().filter(|route| route.is_default()).count();
    snapshot.links.len() + snapshot.addresses.len() + routes.min(ROUTES_MAX)
}

fn container(owner: Option<&NetnsOwner>) -> Option<String> {
    cgroup::identify(owner?.cgroup.as_deref()?).container_id
}

/// Whose it is, as far as the oldest process in it shows.
fn account(owner: Option<&NetnsOwner>) -> &str {
    owner.and_then(|owner| owner.cgroup.as_deref()).and_then(cgroup::owner).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kevtmon_observation::LinkFacts;
    use kevtmon_types::clock::SECOND as S;

    use super::*;

    fn of_user(netns: NsInum, user: u32) -> NetnsSnapshot {
        let cgroup = format!("/user.slice/user-{user}.slice/x{netns}.scope");
        let owner = NetnsOwner { tgid: netns, start_ns: 1, comm: "x".into(), cgroup: Some(cgroup) };
        NetnsSnapshot { foreign_userns: true, owner: Some(owner), ..NetnsSnapshot::empty(netns) }
    }

    fn link(netns: NsInum, ifindex: u32) -> LinkFacts {
        LinkFacts { netns, ifindex, ifname: format!("d{ifindex}"), ..LinkFacts::default() }
    }

    #[derive(Default)]
    struct Model {
        namespaces: Namespaces,
        quota: NamespaceQuota,
    }

    fn admitted(model: &mut Model, at: BootNs, snapshots: impl Iterator<Item = NetnsSnapshot>) -> usize {
        let Model { namespaces, quota } = model;
        snapshots
            .filter(|snapshot| {
                let has_room = quota.admits(at, namespaces, snapshot, false);
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
        assert!(model.quota.is_refused(S, 1999) && !model.quota.is_refused(12 * S, 1999));
        assert_eq!(admitted(&mut model, S, (2000..2010).map(|netns| of_user(netns, 1001))), 10);
        let own = (3000..4000).map(NetnsSnapshot::empty);
        assert_eq!(admitted(&mut model, S, own), 1000, "those that root made have no limit");
        let others = (0..1000).map(|user| of_user(10_000 + user, 5000 + user));
        assert_eq!(admitted(&mut model, S, others), 256 - 42);
    }

    #[test]
    fn a_user_with_many_links_and_addresses_has_room_for_some_and_takes_none_of_others() {
        let with_links = |netns, user, number| {
            let links = (0..number).map(|ifindex| link(netns, ifindex));
            NetnsSnapshot { links: links.collect(), ..of_user(netns, user) }
        };
        let mut model = Model::default();
        assert_eq!(admitted(&mut model, S, (1000..1010).map(|netns| with_links(netns, 1000, 1000))), 2);
        assert_eq!(model.quota.total, 8);
        let more = with_links(1000, 1000, 1020);
        assert_eq!(admitted(&mut model, 2 * S, [more].into_iter()), 1, "its own rows count once");
        assert_eq!(admitted(&mut model, S, (2000..2001).map(|netns| with_links(netns, 1001, 1000))), 1);
        let own =
            (3000..3100).map(|netns| NetnsSnapshot { foreign_userns: false, ..with_links(netns, 0, 1000) });
        assert_eq!(admitted(&mut model, S, own), 100);
        let others = (0..20).map(|user| with_links(10_000 + user, 5000 + user, 1000));
        assert_eq!(admitted(&mut model, S, others), 5, "three of eight thousand are taken");
    }

    #[test]
    fn a_namespace_that_is_too_large_is_left_out_even_if_it_is_a_containers_and_that_is_reported_once_a_minute()
     {
        let mut model = Model::default();
        let large = |netns| NetnsSnapshot { omitted: 1, ..of_user(netns, 1000) };
        let mut refuse = |at, netns| model.quota.admits(at, &mut model.namespaces, &large(netns), true);
        assert!(!refuse(S, 7) && !refuse(2 * S, 8) && !refuse(3 * S, 9));
        let refused =
            |count, from, until, netns| Some(Refused { count, from, until, netns, of_containers: true });
        assert_eq!(model.quota.take_due(3 * S, false).next(), refused(3, S, 3 * S, 9));
        assert!(!model.quota.admits(4 * S, &mut model.namespaces, &large(7), true));
        assert_eq!(model.quota.take_due(5 * S, false).next(), None);
        assert_eq!(model.quota.take_due(63 * S, false).next(), refused(1, 4 * S, 4 * S, 7));
        assert_eq!(model.quota.take_due(200 * S, true).next(), None);
        assert!(!model.quota.admits(201 * S, &mut model.namespaces, &large(7), true));
        assert!(!model.quota.admits(201 * S, &mut model.namespaces, &large(8), false));
        let due: Vec<_> =
            model.quota.take_due(202 * S, true).map(|one| (one.netns, one.of_containers)).collect();
        assert_eq!(due, [(7, true), (8, false)], "what hides a container is not lost among what users make");
    }

    #[test]
    fn containers_with_much_in_their_networks_share_what_all_may_have_and_take_nothing_of_others() {
        let of_container = |netns: NsInum, rows: u32| {
            let cgroup = Some(format!("/kubepods/pod1/{netns:064x}"));
            let owner = NetnsOwner { tgid: netns, start_ns: 1, comm: "x".into(), cgroup };
            let links = (0..rows).map(|ifindex| link(netns, ifindex)).collect();
            NetnsSnapshot { links, owner: Some(owner), ..NetnsSnapshot::empty(netns) }
        };
        let mut model = Model::default();
        assert_eq!(admitted(&mut model, S, (1000..1020).map(|netns| of_container(netns, 1000))), 8);
        assert_eq!(model.quota.total, 12);
        assert!(model.namespaces.get(1008).is_none());
        assert_eq!(admitted(&mut model, 2 * S, (1007..1008).map(|netns| of_container(netns, 1000))), 1);
        let usual = (2000..2500).map(|netns| of_container(netns, 20));
        assert_eq!(admitted(&mut model, 2 * S, usual), 500);
        assert_eq!(admitted(&mut model, 2 * S, (3000..3020).map(|netns| of_user(netns, 1000))), 20);
        let roots = |netns| NetnsSnapshot { owner: None, ..of_container(netns, 1000) };
        assert_eq!(admitted(&mut model, 2 * S, (4000..4020).map(roots)), 20);
    }

    #[test]
    fn what_is_known_of_one_that_has_too_much_in_it_by_now_is_not_believed_any_more() {
        let mut model = Model::default();
        let mut own = NetnsSnapshot::empty(7);
        assert_eq!(admitted(&mut model, S, [own.clone()].into_iter()), 1);
        assert!(!model.namespaces.get(7).unwrap().is_stale());
        own.omitted = 1;
        assert_eq!(admitted(&mut model, 2 * S, [own].into_iter()), 0);
        assert!(model.namespaces.get(7).unwrap().is_stale());
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
