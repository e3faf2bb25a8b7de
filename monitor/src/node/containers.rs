//! Containers of all runtimes, by id and by network namespace. The dead are remembered for a while, since
//! what is theirs goes later than they do.
//!
//! One container may be reported by several sources: through a proxy, a link to the socket, or a runtime on top of
//! another. It is one container all the same. The first source describes it, and of what the sources say of its
//! state the newest holds, so that a source that lags behind changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize, Serializer};

use crate::observation::{BootNs, ContainerFacts, ContainerState, NsInum};

/// How long a removed container can still be named.
const REMEMBER_NS: u64 = 600 * 1_000_000_000;

/// How far one source may lag behind another that reported a removal. Only what is newer than that says that the
/// container is still there.
const LAG_NS: u64 = 10 * 1_000_000_000;

/// All containers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Vec<Known>")]
pub struct Containers {
    known: HashMap<String, Known>,
    /// Ids by the namespace they are in: the question that every neighbor event asks.
    by_netns: BTreeMap<NsInum, BTreeSet<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Known {
    facts: ContainerFacts,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    removed: Option<BootNs>,
    /// When it was seen to start; `None` if it ran before it was known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    started: Option<BootNs>,
    /// The sources that report it, the first one first.
    #[serde(default)]
    sources: Vec<String>,
    /// Which source the last change is from, and from when.
    #[serde(default)]
    changed: (String, BootNs),
}

impl Known {
    /// Whether another source knows better already.
    fn is_ahead_of(&self, source: &str, read: BootNs) -> bool {
        let (by, at) = &self.changed;
        let lag = if self.removed.is_some() { LAG_NS } else { 0 };
        by != source && read < at.saturating_add(lag)
    }

    /// What a source says of a container that another one describes.
    fn described(&self, said: ContainerFacts) -> ContainerFacts {
        let tgid = self.facts.tgid.filter(|_| is_live(said.state) && is_live(self.facts.state));
        let from_pod = said.pod.is_some() && self.facts.pod.is_none();
        let described = if from_pod { &said } else { &self.facts };
        ContainerFacts {
            name: self.facts.name.clone(),
            runtime: self.facts.runtime.clone(),
            source: self.facts.source.clone(),
            image: self.facts.image.clone(),
            sandbox: described.sandbox,
            joined_netns: described.joined_netns,
            pod: described.pod.clone(),
            tgid: said.tgid.or(tgid),
            ..said
        }
    }
}

impl Serialize for Containers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut known: Vec<&Known> = self.known.values().collect();
        known.sort_unstable_by_key(|known| &known.facts.id);
        to.collect_seq(known)
    }
}

impl From<Vec<Known>> for Containers {
    fn from(all: Vec<Known>) -> Self {
        let mut all = all;
        let mut by_netns = BTreeMap::<_, BTreeSet<_>>::new();
        for known in &mut all {
            let facts = &known.facts;
            if let Some(netns) = facts.netns {
                by_netns.entry(netns).or_default().insert(facts.id.clone());
            }
            // Written before a container could have several sources.
            if known.sources.is_empty() && known.removed.is_none() {
                known.sources.push(facts.source().to_owned());
                known.changed.0 = facts.source().to_owned();
            }
        }
        Self { known: all.into_iter().map(|known| (known.facts.id.clone(), known)).collect(), by_netns }
    }
}

/// A change of a container's lifecycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// Its id.
    pub id: String,
    /// State before; `None` if it was unknown.
    pub from: Option<ContainerState>,
    /// State after; `None` once it is removed.
    pub to: Option<ContainerState>,
}

impl Containers {
    /// What is known of a container, removed ones included.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&ContainerFacts> {
        self.known.get(id).map(|known| &known.facts)
    }

    /// The container that a network namespace belongs to: one that lives before one that does not, the
    /// pod's sandbox before the others, the one that made it before those that joined it.
    #[must_use]
    pub fn in_netns(&self, netns: NsInum) -> Option<&ContainerFacts> {
        self.by_netns
            .get(&netns)?
            .iter()
            .filter_map(|id| self.known.get(id))
            .max_by_key(|known| {
                let facts = &known.facts;
                (
                    known.removed.is_none() && is_live(facts.state),
                    facts.sandbox,
                    !facts.joined_netns,
                    facts.id.as_str(),
                )
            })
            .map(|known| &known.facts)
    }

    /// Every network namespace that a living container is in, with the container it belongs to.
    pub fn live_netns(&self) -> impl Iterator<Item = (NsInum, &ContainerFacts)> {
        self.by_netns
            .keys()
            .filter_map(|netns| Some((*netns, self.in_netns(*netns)?)))
            .filter(|(_, facts)| is_live(facts.state))
    }

    /// When a container was seen to start; `None` if it ran before it was known.
    #[must_use]
    pub fn started(&self, id: &str) -> Option<BootNs> {
        self.known.get(id)?.started
    }

    /// A container of a pod: its sandbox rather than another, a living one rather than a dead one.
    #[must_use]
    pub fn of_pod(&self, uid: &str) -> Option<&ContainerFacts> {
        self.known
            .values()
            .filter(|known| known.facts.pod.as_ref().is_some_and(|pod| pod.uid == uid))
            .max_by_key(|known| {
                let facts = &known.facts;
                (is_live(facts.state), facts.sandbox, facts.id.as_str())
            })
            .map(|known| &known.facts)
    }

    /// Adds or changes a container; returns its transition when its state is another.
    pub fn put(&mut self, at: BootNs, facts: ContainerFacts) -> Option<Transition> {
        self.keep(at, at, facts, true)
    }

    /// `read`: when the source looked. `live`: reported when it happened, so that one which was unknown has just
    /// begun.
    fn keep(
        &mut self,
        at: BootNs,
        read: BootNs,
        mut facts: ContainerFacts,
        live: bool,
    ) -> Option<Transition> {
        let source = facts.source().to_owned();
        let mut sources = Vec::new();
        let (mut from, mut started) = (None, None);
        if let Some(mut old) = self.known.remove(&facts.id) {
            if old.is_ahead_of(&source, read) {
                note(&mut old.sources, source);
                self.known.insert(facts.id, old);
                return None;
            }
            self.leave(old.facts.netns, &old.facts.id);
            started = old.started;
            if old.removed.is_none() {
                from = Some(old.facts.state);
                if old.sources.first().is_some_and(|first| *first != source) {
                    facts = old.described(facts);
                }
                sources = old.sources;
            }
            // A process that is gone no longer tells its namespaces; they were these.
            facts.netns = facts.netns.or(old.facts.netns);
            facts.mntns = facts.mntns.or(old.facts.mntns);
            if facts.addresses.is_empty() {
                facts.addresses = old.facts.addresses;
            }
        }
        note(&mut sources, source.clone());
        if is_live(facts.state) && !from.is_some_and(is_live) {
            started = (live || from.is_some()).then_some(at);
        }
        if let Some(netns) = facts.netns {
            self.by_netns.entry(netns).or_default().insert(facts.id.clone());
        }
        let transition = Transition { id: facts.id.clone(), from, to: Some(facts.state) };
        let known = Known { facts, removed: None, started, sources, changed: (source, read) };
        self.known.insert(transition.id.clone(), known);
        (transition.from != transition.to).then_some(transition)
    }

    /// Marks a container as removed. The word of one source is enough: an id is never used again, and a source that
    /// still lists the container lags behind.
    pub fn remove(&mut self, at: BootNs, id: &str, source: &str) -> Option<Transition> {
        let known = self.known.get_mut(id)?;
        known.sources.retain(|known| known != source);
        if known.removed.is_some() {
            return None;
        }
        known.removed = Some(at);
        known.changed = (source.to_owned(), at);
        let from = Some(std::mem::replace(&mut known.facts.state, ContainerState::Exited));
        known.facts.tgid = None;
        Some(Transition { id: id.to_owned(), from, to: None })
    }

    /// Takes the full list of a source that was asked for at `read`.
    pub fn replace(
        &mut self,
        at: BootNs,
        read: BootNs,
        source: &str,
        list: Vec<ContainerFacts>,
    ) -> Vec<Transition> {
        let listed: HashSet<&str> = list.iter().map(|facts| facts.id.as_str()).collect();
        let mut gone: Vec<String> = self
            .known
            .values()
            .filter(|known| known.sources.iter().any(|known| known == source))
            .filter(|known| !listed.contains(known.facts.id.as_str()))
            .map(|known| known.facts.id.clone())
            .collect();
        gone.sort_unstable();
        let mut transitions: Vec<Transition> =
            gone.iter().filter_map(|id| self.remove(at, id, source)).collect();
        transitions.extend(list.into_iter().filter_map(|facts| self.keep(at, read, facts, false)));
        transitions
    }

    /// Whether a source reports any container.
    #[must_use]
    pub fn any_of(&self, source: &str) -> bool {
        self.known
            .values()
            .any(|known| known.removed.is_none() && known.sources.iter().any(|known| known == source))
    }

    /// The sources that report a container, the one that describes it first.
    #[must_use]
    pub fn sources(&self, id: &str) -> &[String] {
        self.known.get(id).map_or(&[], |known| &known.sources)
    }

    /// Forgets what was removed long ago.
    pub fn expire(&mut self, now: BootNs) {
        let old =
            |known: &Known| known.removed.is_some_and(|removed| removed.saturating_add(REMEMBER_NS) <= now);
        let forgotten: Vec<String> =
            self.known.iter().filter(|(_, known)| old(known)).map(|(id, _)| id.clone()).collect();
        for id in forgotten {
            if let Some(known) = self.known.remove(&id) {
                self.leave(known.facts.netns, &id);
            }
        }
    }

    /// Dead containers no longer own a namespace whose inode is used again.
    pub fn forget_netns(&mut self, netns: NsInum) {
        let Some(mut ids) = self.by_netns.remove(&netns) else {
            return;
        };
        ids.retain(|id| match self.known.get_mut(id) {
            Some(known) if !is_live(known.facts.state) => {
                known.facts.netns = None;
                false
            }
            known => known.is_some(),
        });
        if !ids.is_empty() {
            self.by_netns.insert(netns, ids);
        }
    }

    fn leave(&mut self, netns: Option<NsInum>, id: &str) {
        let Some(netns) = netns else {
            return;
        };
        if let Some(ids) = self.by_netns.get_mut(&netns) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_netns.remove(&netns);
            }
        }
    }

    /// Those that are not removed.
    pub fn present(&self) -> impl Iterator<Item = &ContainerFacts> {
        self.known.values().filter(|known| known.removed.is_none()).map(|known| &known.facts)
    }

    /// How many there are, by runtime and state; removed ones do not count.
    #[must_use]
    pub fn counts(&self) -> HashMap<(String, ContainerState), i64> {
        let mut counts = HashMap::new();
        for known in self.known.values().filter(|known| known.removed.is_none()) {
            *counts.entry((known.facts.runtime.clone(), known.facts.state)).or_default() += 1;
        }
        counts
    }
}

fn note(sources: &mut Vec<String>, source: String) {
    if !sources.contains(&source) {
        sources.push(source);
    }
}

/// Whether its processes exist.
#[must_use]
pub fn is_live(state: ContainerState) -> bool {
    matches!(state, ContainerState::Running | ContainerState::Paused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, state: ContainerState, netns: Option<NsInum>, sandbox: bool) -> ContainerFacts {
        ContainerFacts {
            id: id.into(),
            name: id.into(),
            runtime: "docker".into(),
            source: String::new(),
            image: "busybox".into(),
            state,
            tgid: None,
            netns,
            mntns: None,
            addresses: Vec::new(),
            pod: None,
            sandbox,
            joined_netns: false,
        }
    }

    #[test]
    fn a_namespace_belongs_to_the_sandbox_and_to_the_living() {
        let mut containers = Containers::default();
        containers.put(0, container("app", ContainerState::Running, Some(7), false));
        containers.put(0, container("pause", ContainerState::Running, Some(7), true));
        containers.put(0, container("dead", ContainerState::Exited, Some(7), true));
        assert_eq!(containers.in_netns(7).unwrap().id, "pause");
    }

    #[test]
    fn a_namespace_belongs_to_the_container_that_made_it_not_to_one_that_joined() {
        let mut containers = Containers::default();
        let owner = container("a", ContainerState::Running, Some(7), false);
        let guest = ContainerFacts { id: "z".into(), joined_netns: true, ..owner.clone() };
        containers.put(1, owner);
        containers.put(1, guest);
        assert_eq!(containers.in_netns(7).unwrap().id, "a");
    }

    #[test]
    fn an_exited_container_keeps_its_namespace_until_that_is_gone() {
        let mut containers = Containers::default();
        containers.put(0, container("a", ContainerState::Running, Some(7), false));
        containers.put(0, container("a", ContainerState::Exited, None, false));
        assert_eq!(containers.in_netns(7).unwrap().id, "a");
        containers.forget_netns(7);
        assert!(containers.in_netns(7).is_none());
    }

    #[test]
    fn a_container_that_a_list_no_longer_has_is_removed_and_remembered_for_ten_minutes() {
        let mut containers = Containers::default();
        containers.put(0, container("a", ContainerState::Running, None, false));
        let transitions = containers.replace(1, 1, "docker", Vec::new());
        assert_eq!(transitions[0].to, None);
        containers.expire(2);
        assert!(containers.get("a").is_some());
        containers.expire(REMEMBER_NS + 2);
        assert!(containers.get("a").is_none());
    }

    #[test]
    fn a_container_that_moves_to_another_namespace_leaves_the_old_one() {
        let mut containers = Containers::default();
        containers.put(0, container("a", ContainerState::Running, Some(7), false));
        containers.put(0, container("a", ContainerState::Exited, None, false));
        containers.put(0, container("a", ContainerState::Running, Some(8), false));
        assert!(containers.in_netns(7).is_none());
        assert_eq!(containers.live_netns().map(|(netns, _)| netns).collect::<Vec<_>>(), [8]);
        containers.remove(0, "a", "docker");
        containers.expire(REMEMBER_NS);
        assert!(containers.by_netns.is_empty());
    }

    #[test]
    fn a_start_is_known_only_where_it_was_seen() {
        let mut containers = Containers::default();
        let running = |id| container(id, ContainerState::Running, None, false);
        containers.replace(5, 5, "docker", vec![running("old")]);
        containers.put(6, running("new"));
        containers.put(7, running("old"));
        assert_eq!((containers.started("old"), containers.started("new")), (None, Some(6)));
    }

    #[test]
    fn the_same_state_twice_is_no_transition() {
        let mut containers = Containers::default();
        assert!(containers.put(0, container("a", ContainerState::Running, None, false)).is_some());
        assert!(containers.put(0, container("a", ContainerState::Running, None, false)).is_none());
    }
}
