//! Containers of all runtimes, by id and by network namespace. Removed ones are kept for a while, since their links and
//! mounts are removed later than they are.
//!
//! One container may be reported by several sources: through a proxy, a link to the socket, or a runtime on top of
//! another. The first source describes it, and the newest change by any source gives its state, so that a source that
//! lags behind changes nothing. One that repeats what another has contradicted since is overruled, as two that disagree
//! would else have the container start and exit with each of their lists; unless it shows that the process still runs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kevtmon_observation::{BootNs, ContainerExit, ContainerFacts, ContainerState, NsInum, PodIdentity};
use kevtmon_types::namespace::may_have_cookie;
use serde::{Deserialize, Serialize, Serializer};

const RETENTION_NS: u64 = 600 * 1_000_000_000;

/// Removed containers that are kept: more than a busy node removes in that time, and not for each that a loop makes.
const REMOVED_MAX: usize = 2048;

/// How far a source may lag behind another one that reported a removal. Only a newer report than that shows that the
/// container still exists.
const LAG_NS: u64 = 10 * 1_000_000_000;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Vec<KnownContainer>")]
pub struct Containers {
    /// Boxed, since some of the places of a map are empty.
    known: BTreeMap<String, Box<KnownContainer>>,
    /// Ids by network namespace, looked up for every neighbor event; one tree, since most namespaces have few.
    by_netns: BTreeSet<(NsInum, String)>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KnownContainer {
    facts: ContainerFacts,
    removed: Option<BootNs>,
    /// When its start was observed; `None` if it ran before.
    started: Option<BootNs>,
    /// The sources that report it, the first one first.
    sources: Vec<String>,
    /// Source and time of the last change.
    changed: (String, BootNs),
    /// The sources that another one has overruled, with what they reported last.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    overruled: Vec<Overruled>,
    /// The cookie of its network namespace, once that was read: the number is another one's as soon as that has ended.
    netns_cookie: Option<u64>,
    /// Its network namespace has ended, and no source has told yet that it has exited.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    outlives_netns: bool,
}

/// What a source reports of a container, to the contrary of what counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Overruled {
    source: String,
    state: ContainerState,
    tgid: Option<u32>,
}

impl Overruled {
    /// Whether it is only repeated by this report.
    fn is_repeated_by(&self, source: &str, facts: &ContainerFacts) -> bool {
        // A list tells no process of one that has ended.
        let is_same_run = facts.tgid.is_none() || facts.tgid == self.tgid;
        self.source == source && self.state == facts.state && is_same_run
    }
}

impl KnownContainer {
    /// Whether another source has reported something newer.
    fn is_ahead_of(&self, source: &str, read: BootNs) -> bool {
        let (by, at) = &self.changed;
        let lag = if self.removed.is_some() { LAG_NS } else { 0 };
        by != source && read < at.saturating_add(lag)
    }

    /// Whether a source only repeats what another one has contradicted, and does not show that the process runs that the
    /// other one believes to be over.
    fn is_overruled(&self, source: &str, facts: &ContainerFacts) -> bool {
        let shows_process = is_live(facts.state) && facts.tgid.is_some() && facts.started_ns.is_some();
        let is_disproof = shows_process && !is_live(self.facts.state);
        self.removed.is_none()
            && !is_disproof
            && self.overruled.iter().any(|known| known.is_repeated_by(source, facts))
    }

    /// Which sources are overruled once this one has reported another state.
    fn overruled_by(&mut self, source: &str, state: ContainerState) -> Vec<Overruled> {
        let mut overruled = std::mem::take(&mut self.overruled);
        if self.facts.state != state {
            let (state, tgid) = (self.facts.state, self.facts.tgid);
            for other in &self.sources {
                if !overruled.iter().any(|known| known.source == *other) {
                    overruled.push(Overruled { source: other.clone(), state, tgid });
                }
            }
        }
        overruled.retain(|known| known.source != source && known.state != state);
        overruled.shrink_to_fit();
        overruled
    }

    /// Merges a report of a source that is not the one that describes the container.
    fn merge(&self, reported: ContainerFacts) -> ContainerFacts {
        let tgid = self.facts.tgid.filter(|_| is_live(reported.state) && is_live(self.facts.state));
        let is_confirmed = |facts: &ContainerFacts| facts.pod.as_ref().map(PodIdentity::is_confirmed);
        // No pod, a claim, a confirmed one: in this order.
        let knows_more = is_confirmed(&reported) > is_confirmed(&self.facts);
        let described = if knows_more { &reported } else { &self.facts };
        ContainerFacts {
            name: self.facts.name.clone(),
            runtime: self.facts.runtime.clone(),
            source: self.facts.source.clone(),
            image: self.facts.image.clone(),
            sandbox: described.sandbox,
            joined_netns: described.joined_netns,
            pod: described.pod.clone(),
            started_ns: if reported.tgid.is_some() { reported.started_ns } else { self.facts.started_ns },
            tgid: reported.tgid.or(tgid),
            incarnation: self.facts.incarnation.clone().or(reported.incarnation),
            ..reported
        }
    }
}

impl Serialize for Containers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.known.values())
    }
}

impl From<Vec<KnownContainer>> for Containers {
    fn from(all: Vec<KnownContainer>) -> Self {
        let mut by_netns = BTreeSet::new();
        for known in &all {
            let facts = &known.facts;
            if let Some(netns) = facts.netns {
                by_netns.insert((netns, facts.id.clone()));
            }
        }
        let known = all.into_iter().map(|known| (known.facts.id.clone(), Box::new(known)));
        Self { known: known.collect(), by_netns }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    pub id: String,
    /// State before; `None` if it was unknown.
    pub from: Option<ContainerState>,
    /// State after; `None` once it is removed.
    pub to: Option<ContainerState>,
}

impl Containers {
    /// A container by id, removed ones included.
    pub fn get(&self, id: &str) -> Option<&ContainerFacts> {
        self.known.get(id).map(|known| &known.facts)
    }

    /// Whether a container is there: a runtime reports it, in whatever state, and none that it was removed.
    pub fn is_present(&self, id: &str) -> bool {
        self.known.get(id).is_some_and(|known| known.removed.is_none())
    }

    /// The container that a network namespace belongs to. A running one takes precedence, then the pod's sandbox, then
    /// the one that created the namespace over those that joined it, then the one that
    /// started last, or of those that have exited the one that did last.
    pub fn in_netns(&self, netns: NsInum) -> Option<&ContainerFacts> {
        self.ids_in(netns)
            .filter_map(|id| self.known.get(id))
            .max_by_key(|known| {
                let facts = &known.facts;
                let is_running = known.removed.is_none() && is_live(facts.state);
                (
                    is_running,
                    facts.is_sandbox(),
                    !facts.joined_netns,
                    known.removed.is_none(),
                    if is_running { known.started } else { Some(known.changed.1) },
                    facts.id.as_str(),
                )
            })
            .map(|known| &known.facts)
    }

    pub fn living_in(&self, netns: NsInum) -> impl Iterator<Item = &ContainerFacts> {
        let known = self.ids_in(netns).filter_map(|id| self.known.get(id));
        known.filter(|known| known.removed.is_none() && is_live(known.facts.state)).map(|known| &known.facts)
    }

    /// Whether a network namespace has other running containers than this one.
    pub fn is_shared(&self, netns: NsInum, id: &str) -> bool {
        self.living_in(netns).any(|other| other.id != id)
    }

    /// Network namespaces of running containers, each with the container that it belongs to.
    pub fn live_netns(&self) -> impl Iterator<Item = (NsInum, &ContainerFacts)> {
        let mut before = None;
        let is_next = move |netns: &NsInum| before.replace(*netns) != Some(*netns);
        let all = self.by_netns.iter().map(|(netns, _)| *netns).filter(is_next);
        all.filter_map(|netns| Some((netns, self.in_netns(netns)?))).filter(|(_, facts)| is_live(facts.state))
    }

    /// A running container with a mount namespace.
    pub fn in_mntns(&self, mntns: NsInum) -> Option<&ContainerFacts> {
        self.known
            .values()
            .filter(|known| known.removed.is_none() && is_live(known.facts.state))
            .map(|known| &known.facts)
            .filter(|facts| facts.mntns == Some(mntns))
            .min_by_key(|facts| &facts.id)
    }

    /// When the start of a container was observed; `None` if it ran before.
    pub fn started(&self, id: &str) -> Option<BootNs> {
        self.known.get(id)?.started
    }

    /// The cookie of the network namespace that it runs in, once that was read.
    pub fn netns_cookie(&self, id: &str) -> Option<u64> {
        self.known.get(id)?.netns_cookie
    }

    /// A container of a pod, not one that claims to be; a running one takes precedence, then the sandbox.
    pub fn of_pod(&self, uid: &str) -> Option<&ContainerFacts> {
        self.known
            .values()
            .filter(|known| known.facts.pod.as_ref().is_some_and(|pod| pod.uid == uid && pod.is_confirmed()))
            .max_by_key(|known| {
                let facts = &known.facts;
                (is_live(facts.state), facts.sandbox, facts.id.as_str())
            })
            .map(|known| &known.facts)
    }

    /// Adds or changes a container; returns its transition when its state is another.
    pub fn put(&mut self, at: BootNs, facts: ContainerFacts) -> Option<Transition> {
        self.update(at, at, facts, true)
    }

    /// `read`: when the source read it. `live`: reported when it happened, so that an unknown container has just been
    /// created.
    fn update(
        &mut self,
        at: BootNs,
        read: BootNs,
        mut facts: ContainerFacts,
        live: bool,
    ) -> Option<Transition> {
        let source = facts.source.clone();
        let mut sources = Vec::new();
        let mut overruled = Vec::new();
        let (mut from, mut started) = (None, None);
        let (mut outlives_netns, mut netns_cookie) = (false, None);
        if let Some(mut old) = self.known.remove(&facts.id) {
            if old.is_ahead_of(&source, read) || old.is_overruled(&source, &facts) {
                note(&mut old.sources, source);
                self.known.insert(facts.id, old);
                return None;
            }
            self.unlink_netns(old.facts.netns, &old.facts.id);
            started = old.started;
            if old.removed.is_none() {
                from = Some(old.facts.state);
                if old.sources.first().is_some_and(|first| *first != source) {
                    facts = old.merge(facts);
                }
                overruled = old.overruled_by(&source, facts.state);
                sources = old.sources;
            }
            if let (Some(before), Some(pod)) = (&mut old.facts.pod, &mut facts.pod)
                && before.is_same_pod(pod)
            {
                // What confirmed the pod goes with the process, or with the kubelet's files.
                if before.is_confirmed() && !pod.is_confirmed() {
                    pod.proof = before.proof;
                }
                // Events do not tell them.
                pod.labels = pod.labels.take().or(before.labels.take());
            }
            if !is_live(facts.state) && from.is_some() {
                facts.exit = ContainerExit::or(facts.exit, old.facts.exit);
            }
            facts.incarnation = facts.incarnation.or(old.facts.incarnation);
            facts.own_mounts = facts.own_mounts.or(old.facts.own_mounts);
            // The namespaces of an exited process cannot be read any more; the container keeps those it had.
            outlives_netns = old.outlives_netns && facts.netns.is_none();
            facts.netns = facts.netns.or(old.facts.netns);
            // One that is started again is in another one, whatever its number.
            let is_started = is_live(facts.state) && !from.is_some_and(is_live);
            let is_other = facts.tgid.zip(old.facts.tgid).is_some_and(|(new, old)| new != old);
            let is_same = facts.netns == old.facts.netns && !is_started && !is_other;
            netns_cookie = old.netns_cookie.filter(|_| is_same);
            facts.mntns = facts.mntns.or(old.facts.mntns);
            if facts.addresses.is_empty() {
                facts.addresses = old.facts.addresses;
            }
        }
        note(&mut sources, source.clone());
        if is_live(facts.state) && !from.is_some_and(is_live) {
            started = (live || from.is_some()).then_some(at);
        }
        if outlives_netns && !is_live(facts.state) {
            (facts.netns, outlives_netns) = (None, false);
        }
        if let Some(netns) = facts.netns {
            if is_live(facts.state) && !from.is_some_and(is_live) && !facts.joined_netns {
                // It has made it: that of the others was another one with this number.
                self.forget_exited(netns);
            }
            self.by_netns.insert((netns, facts.id.clone()));
        }
        let transition = Transition { id: facts.id.clone(), from, to: Some(facts.state) };
        let changed = (source, read);
        let known = KnownContainer {
            facts,
            removed: None,
            started,
            sources,
            changed,
            overruled,
            netns_cookie,
            outlives_netns,
        };
        self.known.insert(transition.id.clone(), Box::new(known));
        (transition.from != transition.to).then_some(transition)
    }

    /// Marks a container as removed. The report of one source is sufficient: an id is never reused, and a source that
    /// still lists the container lags behind.
    pub fn remove(&mut self, at: BootNs, id: &str, source: &str) -> Option<Transition> {
        let known = self.known.get_mut(id)?;
        known.sources.retain(|known| known != source);
        if known.removed.is_some() {
            return None;
        }
        known.sources.shrink_to_fit();
        known.overruled = Vec::new();
        known.removed = Some(at);
        known.changed = (source.to_owned(), at);
        let from = Some(std::mem::replace(&mut known.facts.state, ContainerState::Exited));
        known.facts.tgid = None;
        if std::mem::take(&mut known.outlives_netns)
            && let Some(netns) = known.facts.netns.take()
        {
            self.by_netns.remove(&(netns, id.to_owned()));
        }
        Some(Transition { id: id.to_owned(), from, to: None })
    }

    /// Applies the complete list of a source, requested at `read`.
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
        transitions.extend(list.into_iter().filter_map(|facts| self.update(at, read, facts, false)));
        transitions
    }

    /// Whether a source reports any container.
    pub fn any_of(&self, source: &str) -> bool {
        self.known
            .values()
            .any(|known| known.removed.is_none() && known.sources.iter().any(|known| known == source))
    }

    /// The sources that report a container, the one that describes it first.
    pub fn sources(&self, id: &str) -> &[String] {
        self.known.get(id).map_or(&[], |known| &known.sources)
    }

    /// Drops containers that were removed long ago, and of too many those that were removed first.
    pub fn expire(&mut self, now: BootNs) {
        let removed = self.known.iter().filter_map(|(id, known)| Some((known.removed?, id)));
        let mut removed: Vec<(BootNs, &String)> = removed.collect();
        removed.sort_unstable();
        let surplus = removed.len().saturating_sub(REMOVED_MAX);
        let is_old = |at: BootNs| at.saturating_add(RETENTION_NS) <= now;
        let old = removed.iter().take_while(|(at, _)| is_old(*at)).count();
        let forgotten: Vec<String> =
            removed.into_iter().take(old.max(surplus)).map(|(_, id)| id.clone()).collect();
        for id in forgotten {
            if let Some(known) = self.known.remove(&id) {
                self.unlink_netns(known.facts.netns, &id);
            }
        }
        for known in self.known.values_mut().filter(|known| known.removed.is_some()) {
            // What it was of use for was told when it came.
            known.facts.incarnation.error = None;
        }
    }

    /// Detaches containers from a namespace that was destroyed, since its inode number can be reused: one that runs as far as its
    /// source has told yet, once it is told that it does not.
    pub fn forget_netns(&mut self, netns: NsInum) {
        self.forget_exited(netns);
        let running: Vec<String> = self.ids_in(netns).cloned().collect();
        for id in running {
            if let Some(known) = self.known.get_mut(&id) {
                known.outlives_netns = true;
            }
        }
    }

    /// A network namespace was read, which has this cookie; `is_known`: as the one before with its number. Whoever was in another
    /// one of that number is in none that is known; those of them are returned that run, as far as is known.
    pub fn netns_read(&mut self, netns: NsInum, cookie: u64, is_known: bool) -> Vec<String> {
        let ids: Vec<String> = self.ids_in(netns).cloned().collect();
        let mut apart = Vec::new();
        for id in ids {
            let Some(known) = self.known.get_mut(&id) else { continue };
            let is_running = known.removed.is_none() && is_live(known.facts.state);
            // Of who is tied to none it is known only whether that of before, if it has ended, was its own.
            let may_be = !known.outlives_netns && (is_running || is_known);
            if known.netns_cookie.map_or(may_be, |known| known == cookie) {
                if is_running {
                    known.netns_cookie = Some(cookie);
                }
                continue;
            }
            (known.facts.netns, known.netns_cookie) = (None, None);
            self.by_netns.remove(&(netns, id.clone()));
            apart.extend(is_running.then_some(id));
        }
        apart
    }

    /// Whether those who are known to be in a network namespace of this number are in another one than that with this lower half
    /// of a cookie.
    pub fn are_elsewhere(&self, netns: NsInum, half: u32) -> bool {
        let is_other = |cookie: u64| !may_have_cookie(Some(half), Some(cookie));
        let mut all = self.ids_in(netns).filter_map(|id| self.known.get(id)).peekable();
        all.peek().is_some() && all.all(|known| known.netns_cookie.is_some_and(is_other))
    }

    /// As [`Self::forget_netns`], of those alone that have exited.
    pub fn forget_exited(&mut self, netns: NsInum) {
        let ids: Vec<String> = self.ids_in(netns).cloned().collect();
        for id in ids {
            let known = self
                .known
                .get_mut(&id)
                .filter(|known| known.removed.is_some() || !is_live(known.facts.state));
            if let Some(known) = known {
                known.facts.netns = None;
                self.by_netns.remove(&(netns, id));
            }
        }
    }

    fn ids_in(&self, netns: NsInum) -> impl Iterator<Item = &String> {
        let from = self.by_netns.range((netns, String::new())..);
        from.take_while(move |(of, _)| *of == netns).map(|(_, id)| id)
    }

    fn unlink_netns(&mut self, netns: Option<NsInum>, id: &str) {
        if let Some(netns) = netns {
            self.by_netns.remove(&(netns, id.to_owned()));
        }
    }

    /// All containers, removed ones included as long as they are kept.
    pub fn all(&self) -> impl Iterator<Item = &ContainerFacts> {
        self.known.values().map(|known| &known.facts)
    }

    /// Containers that are not removed.
    pub fn present(&self) -> impl Iterator<Item = &ContainerFacts> {
        self.known.values().filter(|known| known.removed.is_none()).map(|known| &known.facts)
    }

    /// Number of containers by runtime and state, without removed ones.
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
pub fn is_live(state: ContainerState) -> bool {
    matches!(state, ContainerState::Running | ContainerState::Paused)
}

#[cfg(test)]
mod tests;
