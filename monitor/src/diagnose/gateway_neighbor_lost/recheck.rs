//! What the tables show: which trouble is over, which suspicion holds, and what nobody was seen to do.

use std::collections::BTreeSet;

use super::judge::{self, Health};
use super::{
    CHECK_ALL_DELAY, Fault, FaultPhase, FaultReason, GATEWAY_CONFIRM, GATEWAY_YOUNG_POD, GatewayNeighborLost,
    GatewayOwner, LEARNED_GATEWAY_FAILED, PENDING_EVENT, REREAD_INTERVALS, REREAD_RETRY, SECOND,
    UNUSED_AFTER, seconds, subject,
};
use crate::diagnose::finding::{Count, Findings, IncidentObjects, Repeat};
use crate::diagnose::{CAPACITY, Context, STARTUP_GRACE};
use crate::event::{CloseReason, Confidence, Neighbor, Severity};
use crate::node::containers::is_live;
use crate::node::gateways::Gateway;
use crate::node::view::{NodeView, RuntimeAvailability};
use crate::observation::{BootNs, NeighborKey, NsInum, Request};

/// A learned entry that works this long after the static one went has taken its place.
const REPLACED_AFTER: BootNs = 60 * SECOND;

/// Reading a namespace takes less than that, so what is read later was read after what happened.
const READ_DURATION: BootNs = SECOND;

/// What the model says of a trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recheck {
    Resolved,
    Persists,
    Inconclusive,
}

impl GatewayNeighborLost {
    /// A namespace was read.
    pub(super) fn netns_read(&mut self, context: &Context<'_>, netns: NsInum, findings: &mut Findings) {
        if netns != context.node.host_netns {
            self.attribute(context, findings);
            self.recheck(context, netns, None, findings);
            self.detect(context, netns, findings);
        }
        self.schedule_check_all(context.now);
    }

    /// Ends what is over in a namespace, and opens what was suspected and holds.
    pub(super) fn recheck(
        &mut self,
        context: &Context<'_>,
        netns: NsInum,
        evidence: Option<u64>,
        findings: &mut Findings,
    ) {
        for key in self.keys(Some(netns)) {
            let Some(fault) = self.faults.get_mut(&key) else { continue };
            let result = fault.result(context, key);
            let may_be_old = evidence.is_none() && context.now < fault.last.saturating_add(READ_DURATION);
            match (fault.phase, result) {
                (FaultPhase::Open, Recheck::Resolved) if may_be_old => {}
                (_, Recheck::Resolved) => self.close(key, CloseReason::Resolved, evidence, findings),
                (FaultPhase::Open, Recheck::Persists) => {
                    fault.last = context.now;
                    findings.repeat(repeat_of(fault, key, None));
                }
                (FaultPhase::Open, Recheck::Inconclusive) => {
                    let unused = fault.reason == FaultReason::Failed
                        && fault.last.saturating_add(UNUSED_AFTER) <= context.now;
                    if unused {
                        self.close(key, CloseReason::Expired, evidence, findings);
                    }
                }
                (FaultPhase::Suspected { due }, _) if context.now < due => {}
                (FaultPhase::Suspected { .. }, Recheck::Persists) => {
                    fault.last = context.now;
                    if let Some(fault) = self.faults.remove(&key) {
                        self.open(context, key, fault, findings);
                    }
                }
                (FaultPhase::Suspected { .. }, Recheck::Inconclusive) => {
                    self.close(key, CloseReason::Resolved, None, findings);
                }
            }
        }
    }

    /// Looks for trouble that nobody was seen to make in one namespace.
    pub(super) fn detect(&mut self, context: &Context<'_>, netns: NsInum, findings: &mut Findings) {
        let Some(namespace) = context.node.namespaces.get(netns) else {
            return;
        };
        for (ifindex, address, gateway) in namespace.gateways() {
            let key = NeighborKey { netns, ifindex, address };
            if self.faults.contains_key(&key) {
                continue;
            }
            let confirmed = context.now + seconds(self.thresholds.get(&GATEWAY_CONFIRM));
            match judge::health(context.node, key) {
                Health::Wrong => {
                    let what_happened = mismatch(context.node, key, gateway);
                    let found = Finding {
                        reason: FaultReason::WrongLladdr,
                        confidence: Confidence::Likely,
                        what_happened,
                        was_fine: false,
                    };
                    self.found(context, key, found, confirmed, findings);
                }
                Health::Absent | Health::Unresolved if gateway.static_lladdr.is_some() => {
                    if gateway.changed_since(context.now.saturating_sub(PENDING_EVENT)) {
                        // Its event may be on the way, and knows who did it.
                        self.schedule_check_all(context.now);
                        continue;
                    }
                    let what_happened = "is gone, and nobody was seen removing it".to_owned();
                    let found = Finding {
                        reason: FaultReason::Missing,
                        confidence: Confidence::Certain,
                        what_happened,
                        was_fine: true,
                    };
                    self.found(context, key, found, confirmed, findings);
                }
                Health::Unresolved => {
                    let Some(owner) =
                        judge::live_target(context.node, netns).and_then(|target| GatewayOwner::of(&target))
                    else {
                        return;
                    };
                    let due = self.failed_due(context, key, &owner);
                    let what_happened = String::new();
                    let found = Finding {
                        reason: FaultReason::Failed,
                        confidence: Confidence::Certain,
                        what_happened,
                        was_fine: false,
                    };
                    self.found(context, key, found, due, findings);
                }
                _ => {}
            }
        }
    }

    /// Looks at all namespaces of containers.
    pub(super) fn check_all(&mut self, context: &Context<'_>, findings: &mut Findings) {
        for (netns, _) in context.node.containers.live_netns() {
            if netns != context.node.host_netns {
                self.detect(context, netns, findings);
            }
        }
        for outlier in judge::outliers(context.node, &self.thresholds) {
            if self.faults.contains_key(&outlier.key) {
                continue;
            }
            let (with, all) = outlier.others;
            let prefix = outlier.prefix;
            let what_happened =
                format!("is missing, though {with} of {all} pods with a {prefix} interface have one");
            let young = self.grace_period_end(context.node, outlier.key.netns);
            let due = young.max(context.now + seconds(self.thresholds.get(&GATEWAY_CONFIRM)));
            let found = Finding {
                reason: FaultReason::Missing,
                confidence: Confidence::Likely,
                what_happened,
                was_fine: false,
            };
            self.found(context, outlier.key, found, due, findings);
        }
    }

    /// The model changed: everything is looked at soon.
    pub(super) fn schedule_check_all(&mut self, now: BootNs) {
        self.check_all_at.get_or_insert(now.saturating_add(CHECK_ALL_DELAY));
    }

    /// Asks for the namespaces whose time has come.
    pub(super) fn request_rereads(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let containers = context.node.containers;
        let all = || -> BTreeSet<NsInum> {
            let others = |netns: &NsInum| *netns != context.node.host_netns;
            containers.live_netns().map(|(netns, _)| netns).filter(others).collect()
        };
        for netns in self.rereads.take_due(context.now, all) {
            findings.request(Request::Netns { netns });
            for key in self.keys(Some(netns)) {
                let Some(fault) = self.faults.get_mut(&key) else { continue };
                let next = match fault.phase {
                    FaultPhase::Suspected { due } if context.now < due => due,
                    FaultPhase::Suspected { .. } => context.now + REREAD_RETRY,
                    FaultPhase::Open => {
                        fault.interval_index = (fault.interval_index + 1).min(REREAD_INTERVALS.len() - 1);
                        context.now + REREAD_INTERVALS[fault.interval_index]
                    }
                };
                self.rereads.schedule(netns, next);
            }
        }
    }

    /// Trouble lasts: it gets worse, unless packets flow by an entry that was learned meanwhile.
    pub(super) fn escalate(&mut self, context: &Context<'_>, key: NeighborKey, findings: &mut Findings) {
        let Some(fault) = self.faults.get(&key).filter(|fault| fault.phase == FaultPhase::Open) else {
            return;
        };
        if context.ready.is_none() {
            // It is from an earlier run, and nothing was read yet.
            return self.escalations.set(&key, context.now + STARTUP_GRACE);
        }
        match fault.result(context, key) {
            Recheck::Persists => findings.repeat(repeat_of(fault, key, Some(Severity::Critical))),
            Recheck::Resolved | Recheck::Inconclusive => {
                self.escalations.set(&key, context.now + REREAD_RETRY)
            }
        }
    }

    /// Every source has delivered: what an earlier run left open is compared with what is there.
    pub(super) fn reconcile(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.close_gone(context, findings);
        for key in self.keys(None) {
            self.rereads.schedule(key.netns, context.now);
        }
        self.schedule_check_all(context.now);
    }

    /// Ends the troubles of containers that ended.
    pub(super) fn close_gone(&mut self, context: &Context<'_>, findings: &mut Findings) {
        for key in self.keys(None) {
            let gone =
                self.faults.get(&key).is_some_and(|fault| fault.owner.is_gone(context.node, key.netns));
            if gone {
                self.close(key, CloseReason::SubjectGone, None, findings);
            }
        }
    }

    /// When an unresolved gateway counts: a new pod whose gateway never worked may still be set up.
    pub(super) fn failed_due(&self, context: &Context<'_>, key: NeighborKey, owner: &GatewayOwner) -> BootNs {
        let due = context.now + seconds(self.thresholds.get(&LEARNED_GATEWAY_FAILED));
        let namespace = context.node.namespaces.get(key.netns);
        let worked = namespace
            .and_then(|namespace| namespace.gateway(key.ifindex, key.address))
            .is_some_and(|gateway| gateway.worked);
        let started = context.node.containers.started(&owner.id);
        match started.filter(|_| !worked) {
            Some(started) => due.max(started + seconds(self.thresholds.get(&GATEWAY_YOUNG_POD))),
            None => due,
        }
    }

    fn grace_period_end(&self, node: &NodeView<'_>, netns: NsInum) -> BootNs {
        let owner = judge::live_target(node, netns).and_then(|target| GatewayOwner::of(&target));
        let started = owner.and_then(|owner| node.containers.started(&owner.id));
        started.map_or(0, |started| started + seconds(self.thresholds.get(&GATEWAY_YOUNG_POD)))
    }

    fn found(
        &mut self,
        context: &Context<'_>,
        key: NeighborKey,
        found: Finding,
        due: BootNs,
        findings: &mut Findings,
    ) {
        let Some(target) = judge::live_target(context.node, key.netns) else {
            return;
        };
        let Some(owner) = GatewayOwner::of(&target) else {
            return;
        };
        if self.faults.len() >= CAPACITY {
            return findings.discard();
        }
        let objects = IncidentObjects {
            target: Some(Box::new(target)),
            neighbor: Some(Box::new(entry(context.node, key, found.reason))),
            ..IncidentObjects::default()
        };
        let ifname = objects.neighbor.as_ref().map(|entry| entry.ifname.clone()).unwrap_or_default();
        let fault = Fault {
            owner,
            ifname,
            reason: found.reason,
            confidence: found.confidence,
            what_happened: found.what_happened,
            phase: FaultPhase::Suspected { due },
            first: context.now,
            last: context.now,
            evidence: Vec::new(),
            objects,
            interval_index: 0,
            // Looking at everything for the first time takes a moment.
            found_at_start: !found.was_fine
                && context.ready.is_none_or(|ready| context.now <= ready + 2 * SECOND),
        };
        self.suspect(key, fault, findings);
    }
}

/// What the tables show.
struct Finding {
    reason: FaultReason,
    confidence: Confidence,
    what_happened: String,
    /// The tables showed it in order before.
    was_fine: bool,
}

impl Fault {
    fn result(&self, context: &Context<'_>, key: NeighborKey) -> Recheck {
        let gateway = context
            .node
            .namespaces
            .get(key.netns)
            .and_then(|namespace| namespace.gateway(key.ifindex, key.address));
        if judge::is_replaced(context.node, key) {
            return Recheck::Resolved;
        }
        match (judge::health(context.node, key), self.reason) {
            (Health::Correct, _) | (Health::Learned, FaultReason::Failed) => Recheck::Resolved,
            (Health::Static, FaultReason::WrongLladdr) => {
                let wrong = self.objects.neighbor.as_ref().and_then(|entry| entry.new_lladdr.as_deref());
                let is_wrong = gateway
                    .and_then(Gateway::lladdr)
                    .is_some_and(|lladdr| wrong.is_none_or(|wrong| lladdr.to_string() == wrong));
                if is_wrong { Recheck::Persists } else { Recheck::Resolved }
            }
            (Health::Static, _) => Recheck::Resolved,
            (Health::Learned, _) => {
                let settled = self.first.saturating_add(REPLACED_AFTER) <= context.now;
                let missed = gateway.is_some_and(|gateway| gateway.static_lladdr.is_some());
                if settled && !missed { Recheck::Resolved } else { Recheck::Inconclusive }
            }
            (Health::Wrong | Health::Unresolved, _) => Recheck::Persists,
            (Health::Absent | Health::Unknown, FaultReason::Failed) => Recheck::Inconclusive,
            (Health::Absent | Health::Unknown, _) => Recheck::Persists,
        }
    }
}

impl GatewayOwner {
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

fn repeat_of(fault: &Fault, key: NeighborKey, severity: Option<Severity>) -> Repeat {
    Repeat {
        subject: subject(&fault.owner, key),
        last: fault.last,
        evidence: None,
        count: Count::More(0),
        severity,
    }
}

/// The entry as the tables show it.
fn entry(node: &NodeView<'_>, key: NeighborKey, reason: FaultReason) -> Neighbor {
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

fn mismatch(node: &NodeView<'_>, key: NeighborKey, gateway: &Gateway) -> String {
    let lladdr = gateway.lladdr().map_or_else(String::new, ToString::to_string);
    let expected = node.gateway_lladdr(key).map_or_else(String::new, ToString::to_string);
    let end = node.host_end(key.netns, key.ifindex).map_or("the host", |end| end.ifname.as_str());
    format!("points to {lladdr}, but {end} is reached by {expected}")
}
