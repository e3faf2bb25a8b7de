//! Containers of all runtimes, by id and by network namespace. The dead are remembered for a while, since
//! what is theirs goes later than they do.

use std::collections::HashMap;

use crate::observation::{BootNs, ContainerFacts, ContainerState, NsInum};

/// How long a removed container can still be named.
const REMEMBER_NS: u64 = 600 * 1_000_000_000;

/// All containers.
#[derive(Debug, Default)]
pub struct Containers {
    known: HashMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    facts: ContainerFacts,
    removed: Option<BootNs>,
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
        self.known
            .values()
            .filter(|known| known.facts.netns == Some(netns))
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

    /// Adds or changes a container; tells when its state is another.
    pub fn put(&mut self, mut facts: ContainerFacts) -> Option<Transition> {
        let old = self.known.remove(&facts.id);
        let from = old.as_ref().filter(|old| old.removed.is_none()).map(|old| old.facts.state);
        if let Some(old) = old {
            // A process that is gone no longer tells its namespaces; they were these.
            facts.netns = facts.netns.or(old.facts.netns);
            facts.mntns = facts.mntns.or(old.facts.mntns);
            if facts.addresses.is_empty() {
                facts.addresses = old.facts.addresses;
            }
        }
        let transition = Transition { id: facts.id.clone(), from, to: Some(facts.state) };
        self.known.insert(facts.id.clone(), Known { facts, removed: None });
        (transition.from != transition.to).then_some(transition)
    }

    /// Marks a container as removed.
    pub fn remove(&mut self, at: BootNs, id: &str) -> Option<Transition> {
        let known = self.known.get_mut(id).filter(|known| known.removed.is_none())?;
        known.removed = Some(at);
        let from = Some(std::mem::replace(&mut known.facts.state, ContainerState::Exited));
        known.facts.tgid = None;
        Some(Transition { id: id.to_owned(), from, to: None })
    }

    /// Takes the full list of a runtime.
    pub fn replace(&mut self, at: BootNs, runtime: &str, list: Vec<ContainerFacts>) -> Vec<Transition> {
        let mut gone: Vec<String> = self
            .known
            .values()
            .filter(|known| known.removed.is_none() && known.facts.runtime == runtime)
            .map(|known| known.facts.id.clone())
            .filter(|id| !list.iter().any(|facts| facts.id == *id))
            .collect();
        gone.sort_unstable();
        let mut transitions: Vec<Transition> = gone.iter().filter_map(|id| self.remove(at, id)).collect();
        transitions.extend(list.into_iter().filter_map(|facts| self.put(facts)));
        transitions
    }

    /// Forgets what was removed long ago.
    pub fn expire(&mut self, now: BootNs) {
        self.known
            .retain(|_, known| known.removed.is_none_or(|removed| removed.saturating_add(REMEMBER_NS) > now));
    }

    /// Dead containers no longer own a namespace whose inode is used again.
    pub fn forget_netns(&mut self, netns: NsInum) {
        for known in self.known.values_mut() {
            if known.facts.netns == Some(netns) && !is_live(known.facts.state) {
                known.facts.netns = None;
            }
        }
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
        containers.put(container("app", ContainerState::Running, Some(7), false));
        containers.put(container("pause", ContainerState::Running, Some(7), true));
        containers.put(container("dead", ContainerState::Exited, Some(7), true));
        assert_eq!(containers.in_netns(7).unwrap().id, "pause");
    }

    #[test]
    fn a_namespace_belongs_to_the_container_that_made_it_not_to_one_that_joined() {
        let mut containers = Containers::default();
        let owner = container("a", ContainerState::Running, Some(7), false);
        let guest = ContainerFacts { id: "z".into(), joined_netns: true, ..owner.clone() };
        containers.put(owner);
        containers.put(guest);
        assert_eq!(containers.in_netns(7).unwrap().id, "a");
    }

    #[test]
    fn an_exited_container_keeps_its_namespace_until_that_is_gone() {
        let mut containers = Containers::default();
        containers.put(container("a", ContainerState::Running, Some(7), false));
        containers.put(container("a", ContainerState::Exited, None, false));
        assert_eq!(containers.in_netns(7).unwrap().id, "a");
        containers.forget_netns(7);
        assert!(containers.in_netns(7).is_none());
    }

    #[test]
    fn a_container_that_a_list_no_longer_has_is_removed_and_remembered_for_ten_minutes() {
        let mut containers = Containers::default();
        containers.put(container("a", ContainerState::Running, None, false));
        let transitions = containers.replace(1, "docker", Vec::new());
        assert_eq!(transitions[0].to, None);
        containers.expire(2);
        assert!(containers.get("a").is_some());
        containers.expire(REMEMBER_NS + 2);
        assert!(containers.get("a").is_none());
    }

    #[test]
    fn the_same_state_twice_is_no_transition() {
        let mut containers = Containers::default();
        assert!(containers.put(container("a", ContainerState::Running, None, false)).is_some());
        assert!(containers.put(container("a", ContainerState::Running, None, false)).is_none());
    }
}
