//! What a runtime has told before: what its statuses lack (the pod), and what its events announced before its CRI knows it.
//!
//! containerd sends an event when a process starts or ends; its CRI follows some milliseconds later. A container of the
//! CRI runs once, so what has ended stays so.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kevtmon_observation::{ContainerFacts, ContainerState};

/// How long what was announced may be missing from lists.
const SETTLES: Duration = Duration::from_secs(10);

/// What events say of the process of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// There is a container, or will be.
    Announced,
    /// It has this process; 0 if the event did not tell which.
    Started(u32),
    /// It has none any more.
    Ended,
}

/// All that a runtime has told on one connection.
#[derive(Debug, Default)]
pub(super) struct Known {
    listed: HashMap<String, ContainerFacts>,
    runs: HashMap<String, (Run, Instant)>,
}

impl Known {
    pub(super) fn announce(&mut self, id: &str, run: Run) {
        let now = Instant::now();
        self.runs.retain(|id, (_, at)| self.listed.contains_key(id) || now.duration_since(*at) < SETTLES);
        let before = self.runs.get(id).map(|(run, _)| *run);
        // Only what starts or ends says more than before.
        if before.is_none() || run != Run::Announced {
            self.runs.insert(id.to_owned(), (run, now));
        }
    }

    /// The container was removed.
    pub(super) fn forget(&mut self, id: &str) {
        self.runs.remove(id);
        self.listed.remove(id);
    }

    /// Whether events say that it exists, or will in a moment.
    pub(super) fn is_announced(&self, id: &str) -> bool {
        self.runs.contains_key(id)
    }

    /// It as it was listed last.
    pub(super) fn get(&self, id: &str) -> Option<ContainerFacts> {
        self.listed.get(id).cloned()
    }

    /// Takes a whole list.
    pub(super) fn list(&mut self, all: Vec<ContainerFacts>) -> Vec<ContainerFacts> {
        let mut before = std::mem::take(&mut self.listed);
        let all = all.into_iter().map(|mut facts| {
            // Lists have no addresses.
            if let Some(before) = before.remove(&facts.id) {
                facts.addresses = before.addresses;
            }
            self.put(facts)
        });
        all.collect()
    }

    /// Takes one container, and returns it as events say that it is.
    pub(super) fn put(&mut self, mut facts: ContainerFacts) -> ContainerFacts {
        let is_live = matches!(facts.state, ContainerState::Created | ContainerState::Running);
        match self.runs.get(&facts.id) {
            Some((Run::Started(pid), _)) if is_live => {
                facts.state = ContainerState::Running;
                facts.tgid = facts.tgid.or(Some(*pid).filter(|pid| *pid > 0));
            }
            Some((Run::Ended, _)) if is_live => {
                facts.state = ContainerState::Exited;
                facts.tgid = None;
            }
            _ => {}
        }
        let listed = ContainerFacts { tgid: None, ..facts.clone() };
        self.listed.insert(facts.id.clone(), listed);
        facts
    }
}
