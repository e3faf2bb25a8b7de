//! Namespace ids (nsid): small numbers that each namespace assigns to others, and reuses.
//!
//! Pure. The nsids of the host namespace come from discoveries and from the stream; those of other
//! namespaces come from their dumps.

use std::collections::{BTreeSet, HashMap, HashSet};

use kevtmon_observation::NsInum;

/// Discoveries that may fail to find the namespace of an nsid before it is ignored.
const TRIES: u32 = 5;

/// Namespaces that are given an nsid at a time, and how many of them may be in other user namespaces.
const ASSIGNED_MAX: usize = 1024;
const ASSIGNED_ELSEWHERE_MAX: usize = 64;
/// Nsids of other namespaces that are kept, and of those that users have made: any user can assign any number of them.
const OTHERS_MAX: usize = 16_384;
const USERS_MAX: usize = 2_048;
/// How many of these one namespace may have. One veth pair needs one.
const OTHERS_OF_ONE_MAX: usize = 1_024;
const USERS_OF_ONE_MAX: usize = 64;

/// Who owns a namespace that may be given an nsid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owned {
    /// The user namespace of the host's.
    Here,
    /// Another one, of this container.
    Elsewhere { container: String },
}

/// To which namespaces an nsid may be assigned.
///
/// What happens in a namespace with an nsid goes through the socket by which the host and all pods are listened to, and any
/// user can cause more messages in a namespace of his own than it has room for. So none but the namespace of a container is
/// given one, and one of each: whoever is in a container may be able to make others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Naming {
    here: bool,
    /// Containers that have one in another user namespace; `None` where no other may have.
    elsewhere: Option<BTreeSet<String>>,
}

impl Naming {
    /// Whether to one that is owned so.
    pub(super) fn allows(&self, owned: &Owned) -> bool {
        match owned {
            Owned::Here => self.here,
            Owned::Elsewhere { container } => {
                self.elsewhere.as_ref().is_some_and(|named| !named.contains(container))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerLookup {
    Known(NsInum),
    /// The kernel was queried and has none.
    Unknowable,
    Unknown,
}

/// Nsids that namespaces have given to others, none of which fills the place of another one.
#[derive(Debug)]
struct Names {
    of: HashMap<NsInum, HashMap<i32, Option<NsInum>>>,
    len: usize,
    max: usize,
    max_of_one: usize,
}

impl Names {
    fn bounded(max: usize, max_of_one: usize) -> Self {
        Self { of: HashMap::new(), len: 0, max, max_of_one }
    }

    fn get(&self, namer: NsInum, nsid: i32) -> Option<Option<NsInum>> {
        self.of.get(&namer)?.get(&nsid).copied()
    }

    fn insert(&mut self, namer: NsInum, nsid: i32, named: Option<NsInum>) {
        let has_room = self.len < self.max;
        let known = self.of.get(&namer);
        let is_known = known.is_some_and(|known| known.contains_key(&nsid));
        if is_known || has_room && known.is_none_or(|known| known.len() < self.max_of_one) {
            self.of.entry(namer).or_default().insert(nsid, named);
            self.len += usize::from(!is_known);
        }
    }

    fn remove(&mut self, namer: NsInum, nsid: i32) {
        let Some(known) = self.of.get_mut(&namer) else { return };
        self.len -= usize::from(known.remove(&nsid).is_some());
        if known.is_empty() {
            self.of.remove(&namer);
        }
    }

    fn forget(&mut self, netns: NsInum) {
        self.of.remove(&netns);
        for known in self.of.values_mut() {
            known.retain(|_, named| *named != Some(netns));
        }
        self.of.retain(|_, known| !known.is_empty());
        self.len = self.of.values().map(HashMap::len).sum();
    }
}

/// The nsids of the host namespace and of the others.
#[derive(Debug)]
pub(super) struct NsidTable {
    host: HashMap<i32, NsInum>,
    others: Names,
    /// Of the namespaces of users.
    users: Names,
    /// Removed since the running discovery began, whose result may be older.
    touched: HashSet<i32>,
    /// In messages, and not found by this many discoveries.
    unknown: HashMap<i32, u32>,
    assigned: HashMap<i32, Owned>,
}

impl Default for NsidTable {
    fn default() -> Self {
        Self {
            host: HashMap::new(),
            others: Names::bounded(OTHERS_MAX, OTHERS_OF_ONE_MAX),
            users: Names::bounded(USERS_MAX, USERS_OF_ONE_MAX),
            touched: HashSet::new(),
            unknown: HashMap::new(),
            assigned: HashMap::new(),
        }
    }
}

impl NsidTable {
    /// The namespace with this nsid in the host namespace.
    pub(super) fn get(&self, nsid: i32) -> Option<NsInum> {
        self.host.get(&nsid).copied()
    }

    /// The namespace with this nsid in `netns`.
    pub(super) fn peer(&self, host: NsInum, netns: NsInum, nsid: i32) -> PeerLookup {
        if netns == host {
            return self.get(nsid).map_or(PeerLookup::Unknown, PeerLookup::Known);
        }
        match self.others.get(netns, nsid).or_else(|| self.users.get(netns, nsid)) {
            Some(Some(peer)) => PeerLookup::Known(peer),
            Some(None) => PeerLookup::Unknowable,
            None => PeerLookup::Unknown,
        }
    }

    /// Records an nsid of `netns`, if there is room. `of_user`: of a namespace in another user namespace.
    pub(super) fn learn(&mut self, netns: NsInum, nsid: i32, peer: Option<NsInum>, of_user: bool) {
        let names = if of_user { &mut self.users } else { &mut self.others };
        names.insert(netns, nsid, peer);
    }

    /// `netns` reassigned or removed the nsid.
    pub(super) fn unlearn(&mut self, netns: NsInum, nsid: i32) {
        self.others.remove(netns, nsid);
        self.users.remove(netns, nsid);
    }

    /// The host namespace removed the nsid; returns its namespace.
    pub(super) fn release(&mut self, nsid: i32) -> Option<NsInum> {
        self.touched.insert(nsid);
        self.unknown.remove(&nsid);
        self.assigned.remove(&nsid);
        self.host.remove(&nsid)
    }

    /// The namespace was found to have this nsid in the host namespace: its messages arrive from now on. `assigned`: by
    /// this process.
    pub(super) fn name(&mut self, nsid: i32, netns: NsInum, assigned: Option<Owned>) {
        self.host.insert(nsid, netns);
        self.unknown.remove(&nsid);
        self.assigned.extend(assigned.map(|owned| (nsid, owned)));
    }

    pub(super) fn naming(&self) -> Naming {
        let has_room = self.assigned.len() < ASSIGNED_MAX;
        let elsewhere = self.assigned.values().filter_map(|owned| match owned {
            Owned::Here => None,
            Owned::Elsewhere { container } => Some(container.clone()),
        });
        let elsewhere: BTreeSet<String> = elsewhere.collect();
        let may_elsewhere = has_room && elsewhere.len() < ASSIGNED_ELSEWHERE_MAX;
        Naming { here: has_room, elsewhere: may_elsewhere.then_some(elsewhere) }
    }

    /// A message carried an unknown nsid. Returns how many discoveries missed it, unless it is ignored.
    pub(super) fn unknown(&mut self, nsid: i32) -> Option<u32> {
        let tries = *self.unknown.entry(nsid).or_insert(0);
        (tries < TRIES).then_some(tries)
    }

    pub(super) fn begin_discovery(&mut self) {
        self.touched.clear();
    }

    /// A discovery ended. `afresh`: what is not in it is removed, because the stream had a gap.
    /// Returns the namespaces whose messages arrive from now on, and did not before.
    pub(super) fn discovered(
        &mut self,
        found: impl Iterator<Item = (i32, NsInum)>,
        afresh: bool,
    ) -> HashSet<NsInum> {
        let found: HashMap<i32, NsInum> = found.filter(|(nsid, _)| !self.touched.contains(nsid)).collect();
        let before = std::mem::take(&mut self.host);
        let gained =
            found.iter().filter(|(nsid, netns)| before.get(nsid) != Some(netns)).map(|(_, n)| *n).collect();
        if !afresh {
            // Messages of a namespace without a handle still arrive; of one with another nsid by now
            // none arrive under the old one.
            let renamed: HashSet<NsInum> = found.values().copied().collect();
            self.host.extend(before.into_iter().filter(|(_, netns)| !renamed.contains(netns)));
        }
        self.host.extend(found);
        self.unknown.retain(|nsid, _| !self.host.contains_key(nsid));
        for tries in self.unknown.values_mut() {
            *tries += 1;
        }
        gained
    }

    /// The fewest discoveries that missed an nsid which is not ignored.
    pub(super) fn tries(&self) -> Option<u32> {
        self.unknown.values().copied().filter(|tries| *tries < TRIES).min()
    }

    /// Whether messages of the namespace arrive.
    pub(super) fn has_nsid(&self, netns: NsInum) -> bool {
        self.host.values().any(|known| *known == netns)
    }

    /// The namespace is gone or cannot be entered. Its nsid in the host namespace stays until it is removed:
    /// messages with it are ignored.
    pub(super) fn forget(&mut self, netns: NsInum) {
        self.others.forget(netns);
        self.users.forget(netns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_changed_hands_during_a_survey_is_not_believed() {
        let mut table = NsidTable::default();
        assert_eq!(table.discovered([(1, 100)].into_iter(), false), HashSet::from([100]));
        table.begin_discovery();
        assert_eq!(table.release(1), Some(100));
        assert!(table.discovered([(1, 100), (2, 200)].into_iter(), false).contains(&200));
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(2), Some(200));
    }

    #[test]
    fn a_namespace_without_a_handle_still_sends_messages_unless_the_stream_had_a_gap() {
        let mut table = NsidTable::default();
        table.discovered([(1, 100), (2, 200)].into_iter(), false);
        table.discovered([(2, 200)].into_iter(), false);
        assert_eq!(table.get(1), Some(100));
        table.discovered([(2, 200)].into_iter(), true);
        assert_eq!(table.get(1), None);
    }

    #[test]
    fn a_number_that_no_survey_explains_is_left_alone_until_it_changes_hands() {
        let mut table = NsidTable::default();
        for _ in 0..TRIES {
            assert!(table.unknown(5).is_some());
            assert!(table.tries().is_some());
            table.discovered([].into_iter(), false);
        }
        assert_eq!(table.unknown(5), None);
        assert_eq!(table.tries(), None);
        table.release(5);
        assert_eq!(table.unknown(5), Some(0));
    }

    #[test]
    fn containers_in_other_user_namespaces_have_one_each_and_do_not_use_up_what_may_be_assigned() {
        let mut table = NsidTable::default();
        let of = |id: usize| Owned::Elsewhere { container: format!("c{id}") };
        for id in 0..ASSIGNED_ELSEWHERE_MAX {
            assert!(table.naming().allows(&of(id)));
            table.name(i32::try_from(id).unwrap(), 100 + u32::try_from(id).unwrap(), Some(of(id)));
            assert!(!table.naming().allows(&of(id)), "it has one");
        }
        let next = of(ASSIGNED_ELSEWHERE_MAX);
        assert!(!table.naming().allows(&next) && table.naming().allows(&Owned::Here));
        assert_eq!(table.release(3), Some(103));
        assert!(table.naming().allows(&next) && table.naming().allows(&of(3)));
    }

    #[test]
    fn nsids_without_end_of_some_leave_room_for_those_of_others() {
        let mut table = NsidTable::default();
        for netns in 1_000..2_000 {
            (0..100).for_each(|nsid| table.learn(netns, nsid, Some(1), true));
        }
        assert_eq!((table.users.len, table.users.of.len()), (USERS_MAX, USERS_MAX / USERS_OF_ONE_MAX));
        (0..20_000).for_each(|nsid| table.learn(100, nsid, None, false));
        table.learn(101, 5, Some(1), false);
        assert_eq!(table.peer(1, 101, 5), PeerLookup::Known(1));
        table.learn(100, 3, Some(1), false);
        assert_eq!(table.peer(1, 100, 3), PeerLookup::Known(1), "a known one changes");
        for netns in [100, 101, 1_000] {
            table.forget(netns);
        }
        table.unlearn(1_001, 3);
        assert_eq!((table.others.len, table.users.len), (0, USERS_MAX - USERS_OF_ONE_MAX - 1));
    }

    #[test]
    fn the_same_number_means_another_namespace_elsewhere() {
        let mut table = NsidTable::default();
        table.discovered([(0, 100)].into_iter(), false);
        table.learn(100, 0, Some(1), false);
        table.learn(100, 7, None, false);
        assert_eq!(table.peer(1, 1, 0), PeerLookup::Known(100));
        assert_eq!(table.peer(1, 100, 0), PeerLookup::Known(1));
        assert_eq!(table.peer(1, 100, 7), PeerLookup::Unknowable);
        assert_eq!(table.peer(1, 100, 8), PeerLookup::Unknown);
        table.forget(100);
        assert_eq!(table.peer(1, 100, 0), PeerLookup::Unknown);
        assert_eq!(table.get(0), Some(100));
    }
}
