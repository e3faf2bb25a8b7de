//! Who tasks are: as many as are remembered in the kernel, and more, so that a reference always resolves.

use std::cell::Cell;
use std::collections::HashMap;

use crate::observation::{BootNs, Fact, Observation, TaskFacts, TaskKey};

/// Twice what the kernel remembers having told.
const CAPACITY: usize = 2048;

/// Tasks by identity; the least recently used are forgotten.
#[derive(Debug, Default)]
pub struct Tasks {
    known: HashMap<TaskKey, Known>,
    uses: Cell<u64>,
}

#[derive(Debug)]
struct Known {
    facts: TaskFacts,
    used: Cell<u64>,
}

impl Tasks {
    /// Remembers a task.
    pub fn insert(&mut self, facts: TaskFacts) {
        if self.known.len() >= CAPACITY {
            self.forget_older_half();
        }
        let used = Cell::new(self.next_use());
        self.known.insert(facts.key, Known { facts, used });
    }

    /// What is known of a task.
    #[must_use]
    pub fn get(&self, key: &TaskKey) -> Option<&TaskFacts> {
        let known = self.known.get(key)?;
        known.used.set(self.next_use());
        Some(&known.facts)
    }

    /// The most recently used, at most this many, as observations in the order of their use.
    pub fn observations(&self, now: BootNs, most: usize) -> impl Iterator<Item = Observation> {
        let mut known: Vec<&Known> = self.known.values().collect();
        known.sort_unstable_by_key(|known| known.used.get());
        let first = known.len().saturating_sub(most);
        known.into_iter().skip(first).map(move |Known { facts, .. }| Observation {
            at: now,
            fact: Fact::Task(Box::new(facts.clone())),
        })
    }

    fn next_use(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }

    fn forget_older_half(&mut self) {
        let mut uses: Vec<u64> = self.known.values().map(|known| known.used.get()).collect();
        uses.sort_unstable();
        let median = uses[uses.len() / 2];
        self.known.retain(|_, known| known.used.get() >= median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tgid: u32) -> TaskFacts {
        TaskFacts {
            key: TaskKey { tgid, start_ns: 1, exec_id: 1 },
            uid: 0,
            exe: None,
            cmdline: None,
            netns: 1,
            mntns: 1,
            cgroup: None,
            ancestors: Vec::new(),
        }
    }

    #[test]
    fn a_task_that_is_used_outlives_a_flood_of_others() {
        let mut tasks = Tasks::default();
        tasks.insert(task(1));
        for tgid in 2..10_000 {
            tasks.insert(task(tgid));
            assert!(tasks.get(&task(1).key).is_some());
        }
        assert!(tasks.known.len() <= CAPACITY);
        assert!(tasks.get(&task(2).key).is_none());
    }
}
