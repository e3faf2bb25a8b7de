//! What the tables show: which trouble is over, which suspicion holds, and what nobody was seen to do.

use std::collections::BTreeSet;

use super::judge::{self, Health};
use super::{
    GatewayNeighborLost, HELD, LOOKS, Owner, Phase, Reason, SECOND, SURVEY_DELAY, Trouble, UNANSWERED,
    UNUSED, seconds, subject,
};
use crate::diagnose::finding::{About, Count, Findings, Repeat};
use crate::diagnose::{CAPACITY, STARTING, Seen};
use crate::event::{CloseReason, Confidence, Neighbor, Severity};
use crate::node::containers::is_live;
use crate::node::gateways::Gateway;
use crate::node::view::{NodeView, RuntimeAvailability};
use crate::observation::{BootNs, NeighborKey, NsInum, Request};

/// A learned entry that works this long after the static one went has taken its place.
const SETTLED: BootNs = 60 * SECOND;

/// Reading a namespace takes less than that, so what is read later was read after what happened.
const READING: BootNs = SECOND;

/// What the model says of a trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Over,
    Bad,
    Unclear,
}

impl GatewayNeighborLost {
    /// A namespace was read.
    pub(super) fn was_read(&mut self, seen: &Seen<'_>, netns: NsInum, findings: &mut Findings) {
        if netns != seen.node.host_netns {
            self.claim(seen, findings);
            self.settle(seen, netns, None, findings);
            self.detect(seen, netns, findings);
        }
        self.plan_survey(seen.now);
    }

    /// Ends what is over in a namespace, and opens what was suspected and holds.
    pub(super) fn settle(
        &mut self,
        seen: &Seen<'_>,
        netns: NsInum,
        evidence: Option<u64>,
        findings: &mut Findings,
    ) {
        for key in self.keys(Some(netns)) {
            let Some(trouble) = self.troubles.get_mut(&key) else { continue };
            let verdict = trouble.verdict(seen, key);
            let may_be_old = evidence.is_none() && seen.now < trouble.last.saturating_add(READING);
            match (trouble.phase, verdict) {
                (Phase::Open, Verdict::Over) if may_be_old => {}
                (_, Verdict::Over) => self.end(key, CloseReason::Resolved, evidence, findings),
                (Phase::Open, Verdict::Bad) => {
                    trouble.last = seen.now;
                    findings.repeat(still(trouble, key, None));
                }
                (Phase::Open, Verdict::Unclear) => {
                    let unused =
                        trouble.reason == Reason::Failed && trouble.last.saturating_add(UNUSED) <= seen.now;
                    if unused {
                        self.end(key, CloseReason::Expired, evidence, findings);
                    }
                }
                (Phase::Suspected { due }, _) if seen.now < due => {}
                (Phase::Suspected { .. }, Verdict::Bad) => {
                    trouble.last = seen.now;
                    if let Some(trouble) = self.troubles.remove(&key) {
                        self.open(seen, key, trouble, findings);
                    }
                }
                (Phase::Suspected { .. }, Verdict::Unclear) => {
                    self.end(key, CloseReason::Resolved, None, findings);
                }
            }
        }
    }

    /// Looks for trouble that nobody was seen to make in one namespace.
    pub(super) fn detect(&mut self, seen: &Seen<'_>, netns: NsInum, findings: &mut Findings) {
        let Some(namespace) = seen.node.namespaces.get(netns) else {
            return;
        };
        for (ifindex, address, gateway) in namespace.gateways() {
            let key = NeighborKey { netns, ifindex, address };
            if self.troubles.contains_key(&key) {
                continue;
            }
            let confirmed = seen.now + seconds(self.thresholds.gateway_confirm_seconds);
            match judge::health(seen.node, key) {
                Health::Wrong => {
                    let deed = points_elsewhere(seen.node, key, gateway);
                    let found = Found {
                        reason: Reason::WrongLladdr,
                        confidence: Confidence::Likely,
                        deed,
                        was_fine: false,
                    };
                    self.found(seen, key, found, confirmed, findings);
                }
                Health::Absent | Health::Unresolved if gateway.static_lladdr.is_some() => {
                    if gateway.changed_since(seen.now.saturating_sub(HELD)) {
                        // Its event may be on the way, and knows who did it.
                        self.plan_survey(seen.now);
                        continue;
                    }
                    let deed = "is gone, and nobody was seen removing it".to_owned();
                    let found = Found {
                        reason: Reason::Missing,
                        confidence: Confidence::Certain,
                        deed,
                        was_fine: true,
                    };
                    self.found(seen, key, found, confirmed, findings);
                }
                Health::Unresolved => {
                    let Some(owner) =
                        judge::live_target(seen.node, netns).and_then(|target| Owner::of(&target))
                    else {
                        return;
                    };
                    let due = self.failed_due(seen, key, &owner);
                    let deed = String::new();
                    let found = Found {
                        reason: Reason::Failed,
                        confidence: Confidence::Certain,
                        deed,
                        was_fine: false,
                    };
                    self.found(seen, key, found, due, findings);
                }
                _ => {}
            }
        }
    }

    /// Looks at all namespaces of containers.
    pub(super) fn survey(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        for (netns, _) in seen.node.containers.live_netns() {
            if netns != seen.node.host_netns {
                self.detect(seen, netns, findings);
            }
        }
        for odd in judge::odd_ones(seen.node, &self.thresholds) {
            if self.troubles.contains_key(&odd.key) {
                continue;
            }
            let (with, all) = odd.others;
            let prefix = odd.prefix;
            let deed = format!("is missing, though {with} of {all} pods with a {prefix} interface have one");
            let young = self.grown_up(seen.node, odd.key.netns);
            let due = young.max(seen.now + seconds(self.thresholds.gateway_confirm_seconds));
            let found =
                Found { reason: Reason::Missing, confidence: Confidence::Likely, deed, was_fine: false };
            self.found(seen, odd.key, found, due, findings);
        }
    }

    /// The model changed: everything is looked at soon.
    pub(super) fn plan_survey(&mut self, now: BootNs) {
        self.survey.get_or_insert(now.saturating_add(SURVEY_DELAY));
    }

    /// Asks for the namespaces whose time has come.
    pub(super) fn look_again(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let containers = seen.node.containers;
        let all = || -> BTreeSet<NsInum> {
            let others = |netns: &NsInum| *netns != seen.node.host_netns;
            containers.live_netns().map(|(netns, _)| netns).filter(others).collect()
        };
        for netns in self.rereads.take_due(seen.now, all) {
            findings.ask(Request::Netns { netns });
            for key in self.keys(Some(netns)) {
                let Some(trouble) = self.troubles.get_mut(&key) else { continue };
                let next = match trouble.phase {
                    Phase::Suspected { due } if seen.now < due => due,
                    Phase::Suspected { .. } => seen.now + UNANSWERED,
                    Phase::Open => {
                        trouble.looks = (trouble.looks + 1).min(LOOKS.len() - 1);
                        seen.now + LOOKS[trouble.looks]
                    }
                };
                self.rereads.look(netns, next);
            }
        }
    }

    /// Trouble lasts: it gets worse, unless packets flow by an entry that was learned meanwhile.
    pub(super) fn alarm(&mut self, seen: &Seen<'_>, key: NeighborKey, findings: &mut Findings) {
        let Some(trouble) = self.troubles.get(&key).filter(|trouble| trouble.phase == Phase::Open) else {
            return;
        };
        if seen.ready.is_none() {
            // It is from an earlier run, and nothing was read yet.
            return self.alarms.set(&key, seen.now + STARTING);
        }
        match trouble.verdict(seen, key) {
            Verdict::Bad => findings.repeat(still(trouble, key, Some(Severity::Critical))),
            Verdict::Over | Verdict::Unclear => self.alarms.set(&key, seen.now + UNANSWERED),
        }
    }

    /// Every source has delivered: what an earlier run left open is compared with what is there.
    pub(super) fn reconcile(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        self.end_gone(seen, findings);
        for key in self.keys(None) {
            self.rereads.look(key.netns, seen.now);
        }
        self.plan_survey(seen.now);
    }

    /// Ends the troubles of containers that ended.
    pub(super) fn end_gone(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        for key in self.keys(None) {
            let gone =
                self.troubles.get(&key).is_some_and(|trouble| trouble.owner.is_gone(seen.node, key.netns));
            if gone {
                self.end(key, CloseReason::SubjectGone, None, findings);
            }
        }
    }

    /// When an unresolved gateway counts: a new pod whose gateway never worked may still be set up.
    pub(super) fn failed_due(&self, seen: &Seen<'_>, key: NeighborKey, owner: &Owner) -> BootNs {
        let due = seen.now + seconds(self.thresholds.learned_gateway_failed_seconds);
        let namespace = seen.node.namespaces.get(key.netns);
        let worked = namespace
            .and_then(|namespace| namespace.gateway(key.ifindex, key.address))
            .is_some_and(|gateway| gateway.worked);
        let started = seen.node.containers.started(&owner.id);
        match started.filter(|_| !worked) {
            Some(started) => due.max(started + seconds(self.thresholds.gateway_young_pod_seconds)),
            None => due,
        }
    }

    fn grown_up(&self, node: &NodeView<'_>, netns: NsInum) -> BootNs {
        let owner = judge::live_target(node, netns).and_then(|target| Owner::of(&target));
        let started = owner.and_then(|owner| node.containers.started(&owner.id));
        started.map_or(0, |started| started + seconds(self.thresholds.gateway_young_pod_seconds))
    }

    fn found(
        &mut self,
        seen: &Seen<'_>,
        key: NeighborKey,
        found: Found,
        due: BootNs,
        findings: &mut Findings,
    ) {
        let Some(target) = judge::live_target(seen.node, key.netns) else {
            return;
        };
        let Some(owner) = Owner::of(&target) else {
            return;
        };
        if self.troubles.len() >= CAPACITY {
            return findings.no_room();
        }
        let about = About {
            target: Some(Box::new(target)),
            neighbor: Some(Box::new(entry(seen.node, key, found.reason))),
            ..About::default()
        };
        let ifname = about.neighbor.as_ref().map(|entry| entry.ifname.clone()).unwrap_or_default();
        let trouble = Trouble {
            owner,
            ifname,
            reason: found.reason,
            confidence: found.confidence,
            deed: found.deed,
            phase: Phase::Suspected { due },
            first: seen.now,
            last: seen.now,
            evidence: Vec::new(),
            about,
            looks: 0,
            // Looking at everything for the first time takes a moment.
            found_at_start: !found.was_fine && seen.ready.is_none_or(|ready| seen.now <= ready + 2 * SECOND),
        };
        self.suspect(key, trouble, findings);
    }
}

/// What the tables show.
struct Found {
    reason: Reason,
    confidence: Confidence,
    deed: String,
    /// The tables showed it in order before.
    was_fine: bool,
}

impl Trouble {
    fn verdict(&self, seen: &Seen<'_>, key: NeighborKey) -> Verdict {
        let gateway = seen
            .node
            .namespaces
            .get(key.netns)
            .and_then(|namespace| namespace.gateway(key.ifindex, key.address));
        if judge::is_replaced(seen.node, key) {
            return Verdict::Over;
        }
        match (judge::health(seen.node, key), self.reason) {
            (Health::Right, _) | (Health::Learned, Reason::Failed) => Verdict::Over,
            (Health::Static, Reason::WrongLladdr) => {
                let wrong = self.about.neighbor.as_ref().and_then(|entry| entry.new_lladdr.as_deref());
                let is_wrong = gateway
                    .and_then(Gateway::lladdr)
                    .is_some_and(|lladdr| wrong.is_none_or(|wrong| lladdr.to_string() == wrong));
                if is_wrong { Verdict::Bad } else { Verdict::Over }
            }
            (Health::Static, _) => Verdict::Over,
            (Health::Learned, _) => {
                let settled = self.first.saturating_add(SETTLED) <= seen.now;
                let missed = gateway.is_some_and(|gateway| gateway.static_lladdr.is_some());
                if settled && !missed { Verdict::Over } else { Verdict::Unclear }
            }
            (Health::Wrong | Health::Unresolved, _) => Verdict::Bad,
            (Health::Absent | Health::Unknown, Reason::Failed) => Verdict::Unclear,
            (Health::Absent | Health::Unknown, _) => Verdict::Bad,
        }
    }
}

impl Owner {
    /// Whether its runtime says so. Without a runtime only the namespace tells.
    fn is_gone(&self, node: &NodeView<'_>, netns: NsInum) -> bool {
        if !self.by_runtime {
            return false;
        }
        let known = node.containers.get(&self.container);
        if known.is_some_and(|facts| is_live(facts.state) && facts.netns == Some(netns)) {
            return false;
        }
        let heir = judge::live_target(node, netns).and_then(|target| Self::of(&target));
        heir.is_none_or(|heir| heir.id != self.id)
            && (known.is_some() || node.runtimes == RuntimeAvailability::All)
    }
}

fn still(trouble: &Trouble, key: NeighborKey, severity: Option<Severity>) -> Repeat {
    Repeat {
        subject: subject(&trouble.owner, key),
        last: trouble.last,
        evidence: None,
        count: Count::More(0),
        severity,
    }
}

/// The entry as the tables show it.
fn entry(node: &NodeView<'_>, key: NeighborKey, reason: Reason) -> Neighbor {
    let namespace = node.namespaces.get(key.netns);
    let gateway = namespace.and_then(|namespace| namespace.gateway(key.ifindex, key.address));
    let link = namespace.and_then(|namespace| namespace.links.get(&key.ifindex));
    let lladdr = gateway.and_then(|gateway| gateway.lladdr().or(gateway.static_lladdr.as_ref()));
    let state = gateway.and_then(|gateway| gateway.entry.as_ref());
    Neighbor {
        address: key.address,
        lladdr: lladdr.map(ToString::to_string),
        new_lladdr: None,
        ifindex: key.ifindex,
        ifname: link.map(|link| link.ifname.clone()).unwrap_or_default(),
        netns: key.netns,
        state: state.map(|(state, _)| state.name().to_owned()),
        new_state: None,
        cause: "unknown".to_owned(),
        gateway: Some(true),
        reason: Some(reason.name().to_owned()),
    }
}

fn points_elsewhere(node: &NodeView<'_>, key: NeighborKey, gateway: &Gateway) -> String {
    let lladdr = gateway.lladdr().map_or_else(String::new, ToString::to_string);
    let expected = node.gateway_lladdr(key).map_or_else(String::new, ToString::to_string);
    let end = node.host_end(key.netns, key.ifindex).map_or("the host", |end| end.ifname.as_str());
    format!("points to {lladdr}, but {end} is reached by {expected}")
}
