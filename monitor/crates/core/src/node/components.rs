//! The kubelet and the runtimes of the node: those that run, and the last ones that have ended.

use std::collections::VecDeque;

use kevtmon_observation::{BootNs, ComponentExit, ComponentFacts};
use kevtmon_types::clock::NS_PER_TICK;
use serde::{Deserialize, Serialize};

const ENDED_MAX: usize = 64;
/// A start may be seen before the end before it.
const OVERLAP_NS: BootNs = 2_000_000_000;

/// Whether a process with this start is one of these.
pub fn is_one_of(components: &[ComponentFacts], tgid: u32, start_ns: BootNs) -> bool {
    let is_it = |known: &ComponentFacts| {
        known.tgid == tgid && known.started_ns / NS_PER_TICK == start_ns / NS_PER_TICK
    };
    components.iter().any(is_it)
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Components {
    /// Whether they were looked for.
    reported: bool,
    pub running: Vec<ComponentFacts>,
    /// The latest at the end.
    ended: VecDeque<Ended>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub facts: ComponentFacts,
    /// When that was seen.
    pub at: BootNs,
}

impl Components {
    /// Takes the list of those that run; returns what is new in it, by start, and whether it is the first list.
    pub fn replace(&mut self, list: Vec<ComponentFacts>) -> (Vec<ComponentFacts>, bool) {
        let is_known = |facts: &ComponentFacts| self.running.iter().any(|known| known.key() == facts.key());
        let mut new: Vec<ComponentFacts> = list.into_iter().filter(|facts| !is_known(facts)).collect();
        new.sort_unstable_by_key(|facts| (facts.started_ns, facts.tgid));
        self.running.extend(new.iter().cloned());
        (new, !std::mem::replace(&mut self.reported, true))
    }

    /// Notes the end of one; returns what it was.
    pub fn exited(&mut self, at: BootNs, exit: &ComponentExit) -> Option<ComponentFacts> {
        let key = (exit.tgid, exit.started_ns);
        let index = self.running.iter().position(|known| known.key() == key)?;
        let facts = self.running.remove(index);
        crate::bounded::push(&mut self.ended, ENDED_MAX, Ended { facts: facts.clone(), at });
        Some(facts)
    }

    /// Where those that run, and those that ran, look for CNI plugins: who is started again has made calls before it is found.
    pub fn cni_dirs(&self) -> impl Iterator<Item = &str> {
        let ended = self.ended.iter().rev().map(|ended| &ended.facts);
        self.running.iter().chain(ended).flat_map(|facts| &facts.cni_dirs).map(String::as_str)
    }

    /// All that are known of a name, ended ones too.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ComponentFacts> {
        let ended = self.ended.iter().map(|ended| &ended.facts);
        ended.chain(&self.running).filter(move |facts| facts.name == name)
    }

    /// The one of the same name that was started last before; none where one runs beside it: which it replaces is not
    /// known.
    pub fn before(&self, facts: &ComponentFacts) -> Option<&ComponentFacts> {
        let ended = self.ended.iter().map(|ended| (&ended.facts, ended.at));
        let all = ended.chain(self.running.iter().map(|facts| (facts, BootNs::MAX)));
        let earlier: Vec<(&ComponentFacts, BootNs)> = all
            .filter(|(known, _)| known.name == facts.name && known.started_ns < facts.started_ns)
            .collect();
        let until = facts.started_ns.saturating_add(OVERLAP_NS);
        if earlier.iter().any(|(_, at)| *at > until) {
            return None;
        }
        earlier.into_iter().map(|(known, _)| known).max_by_key(|known| known.started_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubelet(tgid: u32, started_ns: BootNs) -> ComponentFacts {
        ComponentFacts {
            name: "kubelet".into(),
            tgid,
            started_ns,
            exe: Some("/usr/bin/kubelet".into()),
            version: None,
            remote_runtime: None,
            cni_dirs: Default::default(),
        }
    }

    #[test]
    fn what_is_new_in_a_list_is_told_once_and_the_end_of_what_is_known() {
        let mut components = Components::default();
        assert_eq!(components.replace(vec![kubelet(7, 5)]), (vec![kubelet(7, 5)], true));
        assert_eq!(components.replace(vec![kubelet(7, 5), kubelet(8, 9)]), (vec![kubelet(8, 9)], false));
        let exit = |tgid, started_ns| ComponentExit { tgid, started_ns, code: None, signal: None };
        assert_eq!(components.exited(10, &exit(7, 6)), None, "another process that had the id");
        assert_eq!(components.exited(10, &exit(7, 5)), Some(kubelet(7, 5)));
        assert_eq!(components.exited(10, &exit(7, 5)), None);
        assert_eq!(components.running, [kubelet(8, 9)]);
        assert_eq!(components.before(&kubelet(8, 9)), Some(&kubelet(7, 5)));
        assert_eq!(components.before(&kubelet(7, 5)), None);
    }

    #[test]
    fn only_the_last_ended_ones_are_kept() {
        let mut components = Components::default();
        for start in 0..200 {
            components.replace(vec![kubelet(7, start)]);
            components.exited(start, &ComponentExit { tgid: 7, started_ns: start, code: None, signal: None });
        }
        assert_eq!(components.named("kubelet").count(), ENDED_MAX);
        assert_eq!(components.before(&kubelet(7, 900)), Some(&kubelet(7, 199)));
    }
}
