//! The containers as last reported, so that an event can be reported before its inspect is answered.
//!
//! In: lists, inspect answers, changes, and what /proc has of processes, which the runtime does not report (namespaces,
//! whether a process is still the same). Out: the facts that are new. Itself it reads nothing, and it sends the runtime no
//! request.

use std::collections::{BTreeMap, HashMap};

use kevtmon_observation::{BootNs, ContainerExit, ContainerFacts, ContainerState, PodIdentity, PodProof};

use super::change::Change;
use super::process::Identity;

#[derive(Debug)]
pub(super) struct Containers {
    known: BTreeMap<String, Known>,
    pub(super) source: String,
    pub(super) runtime: String,
}

#[derive(Debug)]
struct Known {
    facts: ContainerFacts,
    reported: bool,
    /// Start of the init process, to 10 ms: a pid alone may be another process by now.
    started: Option<BootNs>,
    /// Wall clock at the request of the inspect that these facts are from.
    inspected: i64,
    /// The state by an event, and its time, as long as no inspect confirms it.
    expected: Option<(ContainerState, BootNs)>,
    /// It ended by an event, and no inspect was answered since.
    died: bool,
    /// In this run the kernel killed a process of it for want of memory.
    oom: bool,
}

impl Known {
    fn new(facts: ContainerFacts) -> Self {
        Self {
            facts,
            reported: false,
            started: None,
            inspected: i64::MIN,
            expected: None,
            died: false,
            oom: false,
        }
    }

    /// Whether its process is still the same; one that can not be read counts as the same.
    fn still_runs(&self, processes: &HashMap<u32, Identity>) -> bool {
        let process = self.facts.tgid.and_then(|tgid| processes.get(&tgid));
        process.is_some_and(|process| process.unread || process.start_ns == self.started)
    }

    /// What confirmed before that it is of this pod. Labels never change, and what confirmed them goes with the process or
    /// the kubelet's files.
    fn proof_of(&self, pod: &PodIdentity) -> Option<PodProof> {
        let known = self.facts.pod.as_ref()?;
        (known.is_confirmed() && known.is_same_pod(pod)).then_some(known.proof)
    }

    fn take(&mut self, facts: ContainerFacts) -> Option<ContainerFacts> {
        if self.reported && self.facts == facts {
            return None;
        }
        self.reported = true;
        self.facts.clone_from(&facts);
        Some(facts)
    }
}

impl Containers {
    pub(super) fn new(source: String) -> Self {
        Self { known: BTreeMap::new(), source, runtime: String::new() }
    }

    /// Takes what the runtime keeps on disk, with their processes. `keep`: which others stay as they were.
    pub(super) fn read_from_disk(
        &mut self,
        written: impl Iterator<Item = ContainerFacts>,
        keep: impl Fn(&str) -> bool,
    ) {
        let mut before = std::mem::take(&mut self.known);
        for facts in written {
            let old = before.remove(&facts.id);
            let mut facts = self.own(old.as_ref(), facts);
            let inspected = old.as_ref().map_or(i64::MIN, |old| old.inspected);
            if let Some(Known { facts: old, .. }) = old {
                let is_same_run = facts.tgid.is_some() && facts.tgid == old.tgid;
                // Of a container that has ended, those of its last run.
                if is_same_run || facts.tgid.is_none() {
                    facts.netns = facts.netns.or(old.netns);
                    facts.mntns = facts.mntns.or(old.mntns);
                }
                if facts.addresses.is_empty() {
                    facts.addresses = old.addresses;
                }
            }
            let known = Known { started: facts.started_ns, inspected, ..Known::new(facts) };
            self.known.insert(known.facts.id.clone(), known);
        }
        self.known.extend(before.into_iter().filter(|(id, _)| keep(id)));
    }

    /// Completes the facts of a client; `known` is what was known of the container.
    fn own(&self, known: Option<&Known>, facts: ContainerFacts) -> ContainerFacts {
        let mut facts =
            ContainerFacts { runtime: self.runtime.clone(), source: self.source.clone(), ..facts };
        if let Some(mut pod) = facts.pod.take() {
            if let Some(proof) = known.and_then(|known| known.proof_of(&pod)) {
                pod.proof = proof;
            }
            facts.pod = Some(pod);
        }
        if let Some(known) = known {
            // Events and lists have less of it than an inspect.
            facts.incarnation = facts.incarnation.or(known.facts.incarnation.clone());
            facts.own_mounts = facts.own_mounts.or(known.facts.own_mounts.clone());
        }
        facts
    }

    /// Those of which nothing has confirmed yet that they are of the pod that they claim.
    pub(super) fn claimants<'f>(
        &self,
        facts: impl IntoIterator<Item = &'f mut ContainerFacts>,
    ) -> Vec<&'f mut ContainerFacts> {
        let is_claim = |facts: &&mut ContainerFacts| {
            let known = self.known.get(&facts.id);
            let is_proven = |pod| known.and_then(|known| known.proof_of(pod)).is_some();
            facts.pod.as_ref().is_some_and(|pod| !pod.is_confirmed() && !is_proven(pod))
        };
        facts.into_iter().filter(is_claim).collect()
    }

    /// The processes by which [`Self::replace`] recognises containers.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.known.values().filter_map(|known| known.facts.tgid).collect()
    }

    /// Takes a whole list, which replaces all but what `keep` names. `processes`: what those are now. Returns which containers need an
    /// inspect: those that have a process which is not known, or no longer there, and those that a list lacks which could not be
    /// read as a whole.
    pub(super) fn replace(
        &mut self,
        listed: Vec<ContainerFacts>,
        is_whole: bool,
        processes: &HashMap<u32, Identity>,
        keep: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut before = std::mem::take(&mut self.known);
        self.known = before.extract_if(.., |id, _| keep(id)).collect();
        let mut unclear = Vec::new();
        for mut facts in listed {
            if keep(&facts.id) {
                continue;
            }
            facts = self.own(before.get(&facts.id), facts);
            let mut known = before.remove(&facts.id).unwrap_or_else(|| Known::new(facts.clone()));
            if known.died && is_live(facts.state) {
                // Older daemons list it as running until its mounts are gone (daemon/monitor.go in moby).
                facts.state = ContainerState::Exited;
                unclear.push(facts.id.clone());
            }
            if matches!(facts.state, ContainerState::Removing | ContainerState::Dead) {
                if known.facts.state == ContainerState::Dead {
                    // Docker goes on listing it as being removed once its removal has failed (`ContainersSnapshot` in moby).
                    facts.state = ContainerState::Dead;
                    facts.removal_error.clone_from(&known.facts.removal_error);
                    facts.refused_removal.clone_from(&known.facts.refused_removal);
                }
                // No event tells that its removal has failed, and no list why.
                unclear.push(facts.id.clone());
            }
            let same_run = is_live(facts.state) && known.still_runs(processes);
            if same_run {
                facts.tgid = known.facts.tgid;
                facts.started_ns = known.started;
            } else {
                known.started = None;
            }
            if is_live(facts.state) && known.started.is_none() {
                unclear.push(facts.id.clone());
            }
            if same_run || !is_live(facts.state) {
                facts.netns = known.facts.netns;
                facts.mntns = known.facts.mntns;
            }
            if !is_live(facts.state) {
                facts.exit = known.facts.exit;
            }
            if known.inspected != i64::MIN {
                // The list has the image's id once its name has moved on.
                facts.image.clone_from(&known.facts.image);
            }
            known.facts = facts;
            self.known.insert(known.facts.id.clone(), known);
        }
        if !is_whole {
            unclear.extend(before.keys().cloned());
            self.known.extend(before);
        }
        unclear
    }

    pub(super) fn take_all(&mut self) -> Vec<ContainerFacts> {
        let mut all: Vec<ContainerFacts> = self
            .known
            .values_mut()
            .map(|known| {
                known.reported = true;
                known.facts.clone()
            })
            .collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Takes an inspect answer that was requested at `requested` (wall clock), and what its process is.
    pub(super) fn inspected(
        &mut self,
        facts: ContainerFacts,
        process: Identity,
        requested: i64,
    ) -> Option<ContainerFacts> {
        let mut facts = self.own(self.known.get(&facts.id), facts);
        let known = self.known.entry(facts.id.clone()).or_insert_with(|| Known::new(facts.clone()));
        known.inspected = requested;
        known.expected = None;
        known.died = false;
        if !is_live(facts.state) {
            facts.exit = ContainerExit::or(facts.exit, known.facts.exit);
        }
        match facts.tgid {
            // It hangs whoever reads it; what was read of the same process before remains true.
            Some(_) if process.unread && facts.tgid == known.facts.tgid => {
                facts.netns = known.facts.netns;
                facts.mntns = known.facts.mntns;
            }
            Some(_) => {
                known.started = process.start_ns;
                facts.netns = process.netns;
                facts.mntns = process.mntns;
            }
            None => {
                known.started = None;
                facts.netns = known.facts.netns;
                facts.mntns = known.facts.mntns;
            }
        }
        facts.started_ns = known.started;
        known.take(facts)
    }

    /// A state by an event that no inspect has confirmed, and its time.
    pub(super) fn unconfirmed(&mut self, id: &str) -> Option<(BootNs, ContainerFacts)> {
        let known = self.known.get_mut(id)?;
        let (state, at) = known.expected.take()?;
        let facts = ContainerFacts { state, exit: None, ..known.facts.clone() };
        Some((at, known.take(facts)?))
    }

    /// A container appeared; the event has all that is known of it before it starts.
    pub(super) fn created(&mut self, change: Change) -> Option<ContainerFacts> {
        let known = self.entry(change, ContainerState::Created)?;
        known.take(known.facts.clone())
    }

    /// By an event the container has this state now; an inspect has to confirm it.
    pub(super) fn await_state(&mut self, change: Change, state: ContainerState, at: BootNs) {
        let wall = change.wall;
        if let Some(known) = self.entry(change, state).filter(|known| wall > known.inspected) {
            known.expected = Some((state, at));
            known.died = false;
            known.oom &= state != ContainerState::Running;
        }
    }

    /// The container ended. Reported at once, because an inspect may have to wait until its mounts are gone. `None`
    /// if an inspect after the event has reported more already.
    pub(super) fn died(&mut self, change: Change) -> Option<ContainerFacts> {
        let (wall, code) = (change.wall, change.exit_code);
        let known = self.entry(change, ContainerState::Exited)?;
        if wall <= known.inspected {
            return None;
        }
        known.started = None;
        known.expected = None;
        known.died = true;
        let exit = Some(ContainerExit { code, oom_killed: known.oom.then_some(true) });
        let exit = exit.filter(|exit| exit.code.is_some() || exit.oom_killed.is_some());
        let facts = ContainerFacts { state: ContainerState::Exited, tgid: None, exit, ..known.facts.clone() };
        known.take(facts)
    }

    /// The kernel killed a process of it, which often ends it.
    pub(super) fn out_of_memory(&mut self, id: &str) {
        if let Some(known) = self.known.get_mut(id) {
            known.oom = true;
        }
    }

    /// The container was removed; whether that is news.
    pub(super) fn removed(&mut self, id: &str) -> bool {
        self.known.remove(id).is_some_and(|known| known.reported)
    }

    pub(super) fn knows(&self, id: &str) -> bool {
        self.known.contains_key(id)
    }

    /// Some of those that no inspect has told anything about yet.
    pub(super) fn never_inspected(&self, most: usize) -> Vec<String> {
        let never = self.known.iter().filter(|(_, known)| known.inspected == i64::MIN);
        never.take(most).map(|(id, _)| id.clone()).collect()
    }

    /// Whether it has a process, as far as is known.
    pub(super) fn runs(&self, id: &str) -> bool {
        self.known.get(id).is_some_and(|known| is_live(known.facts.state))
    }

    /// Whether it was made and never started, as far as is known.
    pub(super) fn is_created(&self, id: &str) -> bool {
        self.known.get(id).is_some_and(|known| known.facts.state == ContainerState::Created)
    }

    fn entry(&mut self, change: Change, state: ContainerState) -> Option<&mut Known> {
        if !self.known.contains_key(&change.id) {
            let facts = ContainerFacts { state, ..self.own(None, change.facts?) };
            self.known.insert(change.id.clone(), Known::new(facts));
        }
        self.known.get_mut(&change.id)
    }
}

/// Whether the container has a process; an unknown state counts as one that has.
pub(super) fn is_live(state: ContainerState) -> bool {
    matches!(state, ContainerState::Running | ContainerState::Paused | ContainerState::Unknown)
}
