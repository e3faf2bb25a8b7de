//! A running container cannot reach its default gateway, because the gateway's neighbor entry is gone, wrong or
//! unresolved.
//!
//! What is seen to happen to a static entry opens the incident at once, with the name of who did it. What only
//! the tables show, and what may be a pod on its way in or out, is suspected first and looked at again. While
//! it is open the namespace is read again at growing intervals: the kernel's hooks do not tell of an entry
//! that comes back.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::finding::{About, Count, Findings, Repeat};
use super::timers::Timers;
use super::{CAPACITY, Change, Diagnosis, Seen};
use crate::event::{CloseReason, Confidence, EVIDENCE_MAX, Event, Kind, Neighbor, Severity};
use crate::node::containers::is_live;
use crate::node::view::NodeView;
use crate::observation::{BootNs, NeighborKey, NsInum};
use crate::settings::Thresholds;

mod judge;
mod rereads;
mod trouble;
mod watch;
mod words;

use judge::Health;
use rereads::Rereads;
use trouble::{Owner, Phase, Reason, Trouble, key, subject};

/// As users filter and alert on it.
pub(super) const KIND: &str = "gateway-neighbor-lost";

const SECOND: BootNs = 1_000_000_000;
/// From one look at an open incident to the next; then always the last.
const LOOKS: [BootNs; 5] = [SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND];
/// A look that was not answered is asked for again.
const UNANSWERED: BootNs = 30 * SECOND;
/// A pod's network is set up by then; only its table tells of the entry that was set.
const SET_UP: BootNs = 10 * SECOND;
/// Changes of the model come in bursts.
const SURVEY_DELAY: BootNs = SECOND;
/// An event of that age may still wait for what is missing to name it.
const HELD: BootNs = SECOND;
/// What was seen to happen this long ago can be put down to a container that turns up now.
const UNCLAIMED_NS: BootNs = 60 * SECOND;
const UNCLAIMED: usize = 64;
/// An unresolved entry that is no longer used is collected by the kernel: nobody wants the gateway any more.
const UNUSED: BootNs = 300 * SECOND;

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GatewayNeighborLost {
    #[serde(skip)]
    thresholds: Thresholds,
    #[serde(with = "crate::pairs")]
    troubles: BTreeMap<NeighborKey, Trouble>,
    /// When an open one becomes critical.
    alarms: Timers<NeighborKey>,
    rereads: Rereads,
    survey: Option<BootNs>,
    /// What happened in namespaces of which nobody knew yet whose they are.
    unclaimed: VecDeque<Unclaimed>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Unclaimed {
    /// Since when it is kept.
    since: BootNs,
    /// When it happened: the event as it is written has no boot time.
    at: BootNs,
    event: Event,
}

impl GatewayNeighborLost {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self {
            thresholds: thresholds.clone(),
            troubles: BTreeMap::new(),
            alarms: Timers::default(),
            rereads: Rereads::default(),
            survey: None,
            unclaimed: VecDeque::new(),
        }
    }

    /// Something was seen to happen to the entry of a gateway.
    fn neighbor(&mut self, seen: &Seen<'_>, event: &Event, neighbor: &Neighbor, findings: &mut Findings) {
        let key = key(neighbor);
        if neighbor.cause == "netns-exit" {
            return self.end(key, CloseReason::SubjectGone, Some(event.seq), findings);
        }
        let known = event.target.clone().map(|target| *target).filter(judge::is_live_container);
        let Some(target) = known.or_else(|| judge::live_target(seen.node, key.netns)) else {
            if matches!(event.kind, Kind::NeighborDeleted | Kind::NeighborChanged) {
                self.keep_unclaimed(seen, event, key.netns);
            }
            return;
        };
        let Some(owner) = Owner::of(&target) else {
            return;
        };
        if self.troubles.get(&key).is_some_and(|trouble| trouble.owner.id != owner.id) {
            // The number of a namespace that is gone was given to another.
            self.end(key, CloseReason::SubjectGone, None, findings);
        }
        match event.kind {
            Kind::NeighborAdded => self.settle(seen, key.netns, Some(event.seq), findings),
            Kind::NeighborFailed => self.failed(seen, key, owner, event, findings),
            Kind::NeighborChanged if judge::health(seen.node, key) == Health::Right => {
                self.settle(seen, key.netns, Some(event.seq), findings);
            }
            Kind::NeighborChanged | Kind::NeighborDeleted => {
                self.lost(seen, key, Trouble::lost(seen, owner, target, event), findings);
            }
            _ => {}
        }
    }

    /// A static entry was taken away or made another.
    fn lost(&mut self, seen: &Seen<'_>, key: NeighborKey, trouble: Trouble, findings: &mut Findings) {
        let is_open = self.troubles.get(&key).is_some_and(|known| known.phase == Phase::Open);
        let with_link = trouble.about.neighbor.as_ref().is_some_and(|entry| entry.cause == "link-deleted");
        if with_link && !is_open {
            // A network plugin deletes the interface before the runtime ends the container.
            let due = seen.now + seconds(self.thresholds.gateway_teardown_seconds);
            return self.suspect(key, Trouble { phase: Phase::Suspected { due }, ..trouble }, findings);
        }
        if !is_open {
            return self.open(seen, key, trouble, findings);
        }
        if let Some(known) = self.troubles.get_mut(&key) {
            let (first, looks, reason) = (known.first, known.looks, known.reason);
            *known = Trouble { first, looks, ..trouble };
            findings.report(known.report(seen, key, Severity::Warning, reason != known.reason));
        }
    }

    /// A learned entry could not be resolved.
    fn failed(
        &mut self,
        seen: &Seen<'_>,
        key: NeighborKey,
        owner: Owner,
        event: &Event,
        findings: &mut Findings,
    ) {
        if let Some(trouble) = self.troubles.get_mut(&key) {
            trouble.last = event.at;
            if trouble.phase == Phase::Open {
                findings.repeat(Repeat {
                    subject: subject(&trouble.owner, key),
                    last: event.at,
                    evidence: Some(event.seq),
                    count: Count::More(1),
                    severity: None,
                });
            } else if trouble.evidence.len() < EVIDENCE_MAX {
                trouble.evidence.push(event.seq);
            }
            return;
        }
        let due = self.failed_due(seen, key, &owner);
        let trouble = Trouble {
            owner,
            ifname: event.neighbor.as_ref().map(|entry| entry.ifname.clone()).unwrap_or_default(),
            reason: Reason::Failed,
            confidence: Confidence::Certain,
            deed: String::new(),
            phase: Phase::Suspected { due },
            first: event.at,
            last: event.at,
            evidence: vec![event.seq],
            about: About { actor: None, ..About::of(event) },
            looks: 0,
            found_at_start: false,
        };
        self.suspect(key, trouble, findings);
    }

    fn suspect(&mut self, key: NeighborKey, trouble: Trouble, findings: &mut Findings) {
        let Phase::Suspected { due } = trouble.phase else {
            return;
        };
        if !self.troubles.contains_key(&key) && self.troubles.len() >= CAPACITY {
            return findings.no_room();
        }
        self.troubles.insert(key, trouble);
        self.rereads.look(key.netns, due);
    }

    fn open(&mut self, seen: &Seen<'_>, key: NeighborKey, trouble: Trouble, findings: &mut Findings) {
        if !self.troubles.contains_key(&key) && self.troubles.len() >= CAPACITY {
            return findings.no_room();
        }
        let trouble = Trouble { phase: Phase::Open, looks: 0, ..trouble };
        findings.report(trouble.report(seen, key, Severity::Warning, true));
        self.alarms.set(&key, seen.now + seconds(self.thresholds.gateway_critical_seconds));
        self.rereads.look(key.netns, seen.now + LOOKS[0]);
        self.troubles.insert(key, trouble);
    }

    /// It is over, or was nothing.
    fn end(&mut self, key: NeighborKey, reason: CloseReason, evidence: Option<u64>, findings: &mut Findings) {
        self.alarms.cancel(&key);
        if self.keys(Some(key.netns)) == [key] {
            self.rereads.cancel(key.netns);
        }
        if let Some(trouble) = self.troubles.remove(&key)
            && trouble.phase == Phase::Open
        {
            findings.close(subject(&trouble.owner, key), reason, evidence);
        }
    }

    /// The keys of a namespace's troubles; of all namespaces without one.
    fn keys(&self, netns: Option<NsInum>) -> Vec<NeighborKey> {
        let least = |netns| NeighborKey { netns, ifindex: 0, address: IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        let from = least(netns.unwrap_or(0));
        let of_it = |key: &&NeighborKey| netns.is_none_or(|netns| key.netns == netns);
        self.troubles.range(from..).map(|(key, _)| key).take_while(of_it).copied().collect()
    }

    fn keep_unclaimed(&mut self, seen: &Seen<'_>, event: &Event, netns: NsInum) {
        if netns == seen.node.host_netns {
            return;
        }
        if self.unclaimed.len() >= UNCLAIMED {
            self.unclaimed.pop_front();
        }
        self.unclaimed.push_back(Unclaimed { since: seen.now, at: event.at, event: event.clone() });
    }

    /// Containers became known: what happened in their namespaces just before was done to them.
    fn claim(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let unclaimed = std::mem::take(&mut self.unclaimed);
        let young = |one: &Unclaimed| one.since.saturating_add(UNCLAIMED_NS) > seen.now;
        for one in unclaimed.into_iter().filter(young) {
            let Some(neighbor) = one.event.neighbor.clone() else { continue };
            match judge::live_target(seen.node, neighbor.netns) {
                Some(target) if !is_back(seen.node, key(&neighbor)) => {
                    let event = Event { target: Some(Box::new(target)), ..one.event };
                    self.neighbor(seen, &event, &neighbor, findings);
                }
                Some(_) => {}
                None => self.unclaimed.push_back(one),
            }
        }
    }
}

impl Diagnosis for GatewayNeighborLost {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, seen: &Seen<'_>, event: &Event, findings: &mut Findings) {
        match event.kind {
            Kind::NeighborDeleted | Kind::NeighborChanged | Kind::NeighborFailed | Kind::NeighborAdded => {
                if let Some(neighbor) = event.neighbor.as_ref().filter(|entry| entry.gateway == Some(true)) {
                    self.neighbor(seen, event, neighbor, findings);
                }
            }
            Kind::ContainerStarted => {
                let id = event.target.as_ref().and_then(|target| target.container.as_ref());
                let netns = id.and_then(|container| seen.node.containers.get(&container.id)?.netns);
                if let Some(netns) = netns.filter(|netns| *netns != seen.node.host_netns) {
                    self.rereads.look(netns, seen.now + SET_UP);
                }
            }
            // The host's end got another address: entries that point to the old one are wrong now.
            Kind::LinkChanged if relabels_host(seen, event) => self.plan_survey(seen.now),
            Kind::EventsLost if event.lost.as_ref().is_some_and(|lost| lost.source == "bpf") => {
                self.rereads.doubt_all(seen.now);
            }
            _ => {}
        }
    }

    fn change(&mut self, seen: &Seen<'_>, change: &Change<'_>, findings: &mut Findings) {
        match change {
            Change::Netns(netns) => self.was_read(seen, *netns, findings),
            Change::NetnsGone(netns) => {
                self.rereads.forget(*netns);
                for key in self.keys(Some(*netns)) {
                    self.end(key, CloseReason::SubjectGone, None, findings);
                }
            }
            Change::Container(id) => {
                let facts = seen.node.containers.get(id);
                if facts.is_none_or(|facts| !is_live(facts.state)) {
                    self.end_gone(seen, findings);
                } else if let Some(netns) = facts.and_then(|facts| facts.netns) {
                    self.claim(seen, findings);
                    self.detect(seen, netns, findings);
                }
            }
            Change::Runtime => {
                self.end_gone(seen, findings);
                self.claim(seen, findings);
                self.plan_survey(seen.now);
            }
            Change::Ready => self.reconcile(seen, findings),
            Change::Refused { .. } | Change::Holders(_) => {}
        }
    }

    fn tick(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        if self.survey.take_if(|due| *due <= seen.now).is_some() {
            self.survey(seen, findings);
        }
        self.look_again(seen, findings);
        while let Some(key) = self.alarms.take_due(seen.now) {
            self.alarm(seen, key, findings);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.survey.into_iter().chain(self.alarms.next()).chain(self.rereads.next()).min()
    }

    fn resume(&mut self, seen: &Seen<'_>, event: &Event) -> Option<String> {
        let (neighbor, incident) = (event.neighbor.as_ref()?, event.incident.as_ref()?);
        let owner = Owner::of(event.target.as_ref()?)?;
        let key = key(neighbor);
        if self.troubles.contains_key(&key) {
            return None;
        }
        let subject = subject(&owner, key);
        let opened = seen.clock.boot_ns(&incident.opened).unwrap_or(seen.now);
        if incident.severity < Severity::Critical {
            self.alarms.set(&key, opened.saturating_add(seconds(self.thresholds.gateway_critical_seconds)));
        }
        self.troubles.insert(key, Trouble::resumed(seen, owner, event, incident, neighbor));
        Some(subject)
    }

    fn save(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn restore(&mut self, saved: Value) -> Result<(), serde_json::Error> {
        let thresholds = self.thresholds.clone();
        *self = Self { thresholds, ..serde_json::from_value(saved)? };
        for one in &mut self.unclaimed {
            one.event.at = one.at;
        }
        Ok(())
    }
}

fn relabels_host(seen: &Seen<'_>, event: &Event) -> bool {
    event.link.as_ref().is_some_and(|link| {
        link.netns == seen.node.host_netns && link.change.iter().any(|change| change == "mac")
    })
}

/// Whether the entry is there again.
fn is_back(node: &NodeView<'_>, key: NeighborKey) -> bool {
    matches!(judge::health(node, key), Health::Right | Health::Static)
}

fn seconds(seconds: u32) -> BootNs {
    BootNs::from(seconds) * SECOND
}

#[cfg(test)]
mod tests;
