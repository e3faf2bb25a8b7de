//! Compares faults with the model: which are resolved, which suspected ones are confirmed, and faults without an event.

use std::collections::BTreeSet;

use kevtmon_event::{CloseReason, Confidence, Event, Neighbor, Severity, Shared, Target};
use kevtmon_observation::{BootNs, NeighborCause, NeighborKey, NsInum, Request};
use kevtmon_types::escape::name;

use super::fault::is_set_wrong;
use super::health::{self, Health, Outlier};
use super::persistence::Recheck;
use super::unseen::UNSEEN;
use super::{
    CHECK_ALL_DELAY, Fault, FaultPhase, FaultReason, GATEWAY_CONFIRM, GATEWAY_TEARDOWN, GATEWAY_YOUNG_POD,
    GatewayNeighborLost, GatewayOwner, LEARNED_GATEWAY_FAILED, NETWORK_SETUP, PENDING_EVENT, REREAD_INTERVAL,
    REREAD_RETRY, REREADS_PER_SECOND, SECOND, UNUSED_AFTER, key, may_be_harmless, seconds, subject,
};
use crate::diagnose::finding::{Count, Findings, IncidentObjects, Repeat};
use crate::diagnose::{CAPACITY, Context, STARTUP_GRACE};
use crate::node::gateways::Gateway;
use crate::node::view::NodeView;

/// A learned entry that works this long after the static one was deleted has replaced it.
pub(super) const REPLACED_AFTER: BootNs = 60 * SECOND;
/// The namespaces of users are read so seldom that many of them do not delay those of the node.
const FOREIGN_REREAD_INTERVAL: BootNs = 10 * SECOND;

/// Upper bound of the time to read a namespace: a snapshot that arrives later was read after the fault.
pub(super) const READ_DURATION: BootNs = SECOND;

impl GatewayNeighborLost {
    pub(super) fn netns_read(&mut self, context: &Context<'_>, netns: NsInum, findings: &mut Findings) {
        if netns != context.node.host_netns {
            self.close_gone_of(context, &self.keys(Some(netns)), findings);
            self.forget_left(context.node, netns);
            self.attribute(context, findings);
            self.recheck(context, netns, None, findings);
            self.detect(context, netns, findings);
            self.advise(context, netns, findings);
            let is_new = context.node.namespaces.get(netns).is_some_and(|known| known.since == context.now);
            if is_new && context.ready.is_some() {
                self.rereads.schedule(netns, context.now + NETWORK_SETUP);
            }
        }
        self.schedule_check_all(context.now);
    }

    /// Closes resolved faults in a namespace, and opens incidents of suspected ones that are confirmed.
    pub(super) fn recheck(
        &mut self,
        context: &Context<'_>,
        netns: NsInum,
        evidence: Option<u64>,
        findings: &mut Findings,
    ) {
        for key in self.keys(Some(netns)) {
            let Some(fault) = self.faults.get_mut(&key).filter(|_| !health::is_doubted(context.node, key))
            else {
                continue;
            };
            let result = fault.recheck(context, key);
            fault.note_gone(context, key);
            let may_be_old = evidence.is_none()
                && !health::was_told_since(context.node, key, fault.last)
                && context.now < fault.last.saturating_add(READ_DURATION)
                && !health::is_left(context.node, key);
            match (fault.phase, result) {
                (FaultPhase::Open, Recheck::Resolved) if may_be_old => {}
                (FaultPhase::Suspected { .. }, Recheck::Resolved)
                    if health::is_suspended(context.node, key) => {}
                (_, Recheck::Resolved) => self.close(key, CloseReason::Resolved, evidence, findings),
                // Nothing is sent to it, or it would have been checked.
                (FaultPhase::Open, Recheck::Persists)
                    if fault.is_outdated() && fault.first.saturating_add(UNUSED_AFTER) <= context.now =>
                {
                    self.close(key, CloseReason::Expired, evidence, findings);
                }
                (FaultPhase::Open, Recheck::Persists) => {
                    fault.last = context.now;
                    let last = repeat_of(fault, key, None);
                    match fault.other_reason(context, key).filter(|_| !may_be_old) {
                        Some(other) => self.turn(context, key, other, findings),
                        None => {
                            findings.repeat(last);
                            if !may_be_old {
                                self.explain_again(context, key, findings);
                            }
                        }
                    }
                }
                (FaultPhase::Open, Recheck::Inconclusive) => {
                    let is_learned = health::health(context.node, key) == Health::Learned;
                    fault.recovered |= is_learned && !may_be_old;
                    let unused = (fault.reason == FaultReason::Failed || fault.is_outdated())
                        && fault.last.saturating_add(UNUSED_AFTER) <= context.now;
                    if unused {
                        self.close(key, CloseReason::Expired, evidence, findings);
                    }
                }
                (FaultPhase::Suspected { due }, result)
                    if context.now < due && !(fault.is_downgrade() && result == Recheck::Persists) => {}
                // Only a snapshot shows whether it was learned again.
                (FaultPhase::Suspected { due }, Recheck::Persists)
                    if fault.is_outdated() && !health::was_read_since(context.node, netns, due) => {}
                // Its event is still to come, perhaps.
                (FaultPhase::Suspected { .. }, Recheck::Persists)
                    if fault.awaited_until(context, PENDING_EVENT).is_some() =>
                {
                    self.rereads.schedule(netns, context.now + PENDING_EVENT);
                }
                (FaultPhase::Suspected { .. }, Recheck::Persists) => {
                    fault.last = context.now;
                    if let Some(mut fault) = self.faults.remove(&key) {
                        fault.learn_owner(context, netns);
                        // What was suspected may be over, and something else wrong by now.
                        if let Some((reason, what)) = fault.other_reason(context, key) {
                            let what = what.unwrap_or_else(|| self.unseen_removal(context, netns));
                            fault.turn(context, reason, entry(context.node, key, reason), what);
                            fault.first = context.now;
                        }
                        let by_nobody = fault.reason == FaultReason::Missing && fault.evidence.is_empty();
                        let loss = by_nobody.then(|| self.undecided_loss(context, key)).flatten();
                        if fault.what_happened == UNSEEN {
                            // Since then it may have been told that records were lost.
                            fault.what_happened = self.unseen_removal(context, netns);
                        }
                        let fault = loss.unwrap_or(fault);
                        self.open(context, key, fault, findings);
                    }
                }
                (FaultPhase::Suspected { .. }, Recheck::Inconclusive) => {
                    self.close(key, CloseReason::Resolved, None, findings);
                }
            }
        }
    }

    /// Detects faults in a namespace that no event reported.
    pub(super) fn detect(&mut self, context: &Context<'_>, netns: NsInum, findings: &mut Findings) {
        let Some(namespace) = context.node.namespaces.get(netns) else { return };
        for (ifindex, address, gateway) in namespace.gateways() {
            let key = NeighborKey { netns, ifindex, address };
            let is_known = self.faults.contains_key(&key) || self.left.contains(&key);
            if is_known || health::is_former(context.node, key) {
                continue;
            }
            match health::health(context.node, key) {
                Health::Wrong => {
                    let what = mismatch(context.node, key, gateway);
                    let found = DetectedFault::new(FaultReason::WrongLladdr, Confidence::Likely, what);
                    self.found(context, key, found, self.confirmed(context, netns, gateway), findings);
                }
                Health::Absent | Health::Unresolved if gateway.static_lladdr.is_some() => {
                    if gateway.changed_since(context.now.saturating_sub(PENDING_EVENT)) {
                        // Its event may be pending, and will name the actor.
                        self.schedule_check_all(context.now);
                        continue;
                    }
                    if let Some(loss) = self.undecided_loss(context, key) {
                        self.lost(context, key, loss, findings);
                        continue;
                    }
                    let what = match gateway.gone_before_start {
                        true => "was removed while nothing was watching".to_owned(),
                        false => self.unseen_removal(context, netns),
                    };
                    let found = DetectedFault {
                        was_fine: !gateway.gone_before_start,
                        ..DetectedFault::new(FaultReason::Missing, Confidence::Certain, what)
                    };
                    self.found(context, key, found, self.confirmed(context, netns, gateway), findings);
                }
                Health::Absent if gateway.went_with_link => {
                    let what = "is gone together with the interface or its address".to_owned();
                    let found = DetectedFault {
                        was_fine: !gateway.gone_before_start,
                        learned: gateway.static_lladdr.is_none(),
                        ..DetectedFault::new(FaultReason::Missing, Confidence::Certain, what)
                    };
                    self.found(context, key, found, self.confirmed(context, netns, gateway), findings);
                }
                Health::Unresolved => {
                    let Some((owner, _)) = live_owner(context.node, netns) else { return };
                    let due = self.failed_due(context, key, &owner);
                    let found = DetectedFault::new(FaultReason::Failed, Confidence::Certain, String::new());
                    self.found(context, key, found, due, findings);
                }
                Health::Learned => self.detect_outdated(context, key, gateway, findings),
                _ => {}
            }
        }
    }

    /// Detects a learned entry that has the former address of a bridge.
    fn detect_outdated(
        &mut self,
        context: &Context<'_>,
        key: NeighborKey,
        gateway: &Gateway,
        findings: &mut Findings,
    ) {
        let Some(since) = self.bridges.of_entry(context, key).map(|change| change.at) else { return };
        let what = mismatch(context.node, key, gateway);
        let found = DetectedFault {
            was_fine: true,
            learned: true,
            ..DetectedFault::new(FaultReason::WrongLladdr, Confidence::Likely, what)
        };
        let passed = context.now.saturating_sub(since);
        let due = self.confirmed(context, key.netns, gateway).saturating_sub(passed).max(context.now);
        self.found(context, key, found, due, findings);
    }

    /// When a fault of this gateway that is found now is confirmed if it persists.
    fn confirmed(&self, context: &Context<'_>, netns: NsInum, gateway: &Gateway) -> BootNs {
        let is_torn_down = || {
            let owner = live_owner(context.node, netns);
            owner.is_some_and(|(owner, _)| self.is_torn_down(context, &owner, context.now))
        };
        let is_teardown = gateway.went_with_link || is_torn_down();
        let confirm = if is_teardown { &GATEWAY_TEARDOWN } else { &GATEWAY_CONFIRM };
        context.now + seconds(self.thresholds.get(confirm))
    }

    /// An entry was set where there was no static one: to a wrong address, or to one that mends what was wrong.
    pub(super) fn set(
        &mut self,
        context: &Context<'_>,
        (owner, target): (GatewayOwner, Target),
        event: &Event,
        neighbor: &Neighbor,
        findings: &mut Findings,
    ) {
        let key = key(neighbor);
        if !is_set_wrong(context.node, neighbor) {
            return self.recheck(context, key.netns, Some(event.seq), findings);
        }
        let fault = Fault::lost(context, owner, target, event);
        if self.faults.get(&key).is_some_and(|known| known.phase == FaultPhase::Open) {
            return self.lost(context, key, fault, findings);
        }
        // A pod that is being set up may have it for a moment.
        let gateway = context.node.gateway(key);
        let due = gateway.map_or(context.now, |gateway| self.confirmed(context, key.netns, gateway));
        self.suspect(context, key, Fault { phase: FaultPhase::Suspected { due }, ..fault }, findings);
    }

    pub(super) fn check_all(&mut self, context: &Context<'_>, findings: &mut Findings) {
        for netns in health::live_netns(context.node) {
            self.detect(context, netns, findings);
        }
        for Outlier { key, with_static, total, prefix } in health::outliers(context.node, &self.thresholds) {
            if self.faults.contains_key(&key) {
                continue;
            }
            let what = format!(
                "is missing, though {with_static} of {total} pods with a {prefix} interface have one"
            );
            let grace_period_end = self.grace_period_end(context.node, key.netns);
            let due = grace_period_end.max(context.now + seconds(self.thresholds.get(&GATEWAY_CONFIRM)));
            let found = DetectedFault::new(FaultReason::Missing, Confidence::Likely, what);
            self.found(context, key, found, due, findings);
        }
    }

    pub(super) fn schedule_check_all(&mut self, now: BootNs) {
        self.check_all_at.get_or_insert(now.saturating_add(CHECK_ALL_DELAY));
    }

    pub(super) fn request_rereads(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let all = || -> BTreeSet<NsInum> { health::live_netns(context.node).collect() };
        let due = self.rereads.take_due(context.now, all);
        if due.is_empty() {
            return;
        }
        let of_node = self.faults.iter().filter(|(_, fault)| !fault.owner.is_foreign);
        let of_node: BTreeSet<NsInum> = of_node.map(|(key, _)| key.netns).collect();
        let many = BootNs::try_from(of_node.len()).unwrap_or(0) * SECOND / REREADS_PER_SECOND;
        for netns in due {
            findings.request(Request::Netns { netns });
            for key in self.keys(Some(netns)) {
                let Some(fault) = self.faults.get(&key) else { continue };
                let next = match fault.phase {
                    FaultPhase::Suspected { due } if context.now < due => due,
                    FaultPhase::Suspected { .. } => context.now + REREAD_RETRY,
                    FaultPhase::Open if fault.owner.is_foreign => context.now + FOREIGN_REREAD_INTERVAL,
                    FaultPhase::Open => context.now + REREAD_INTERVAL.max(many),
                };
                self.rereads.schedule(netns, next);
            }
        }
    }

    /// Raises the severity of a fault that persists, unless a learned entry works meanwhile or will soon, or packets may find another
    /// way.
    pub(super) fn escalate(&mut self, context: &Context<'_>, key: NeighborKey, findings: &mut Findings) {
        let Some(fault) = self.faults.get(&key).filter(|fault| fault.phase == FaultPhase::Open) else {
            return;
        };
        if context.ready.is_none() {
            // It was resumed from the previous run, and the model is not complete yet.
            return self.escalations.set(&key, context.now + STARTUP_GRACE);
        }
        match fault.recheck(context, key) {
            Recheck::Persists if !may_be_harmless(context.node, key) && !fault.is_outdated() => {
                let severity = fault.owner.severity(Severity::Critical);
                findings.repeat(repeat_of(fault, key, Some(severity)));
            }
            Recheck::Persists | Recheck::Resolved | Recheck::Inconclusive => {
                self.escalations.set(&key, context.now + REREAD_RETRY)
            }
        }
    }

    /// Compares the incidents of the previous run with the model, once every source has reported.
    pub(super) fn reconcile(&mut self, context: &Context<'_>, findings: &mut Findings) {
        self.close_gone(context, findings);
        for key in self.keys(None) {
            self.rereads.schedule(key.netns, context.now);
        }
        self.schedule_check_all(context.now);
    }

    /// When an unresolved gateway becomes an incident: later for a new pod whose gateway never worked, which may still be
    /// in setup.
    pub(super) fn failed_due(&self, context: &Context<'_>, key: NeighborKey, owner: &GatewayOwner) -> BootNs {
        let due = context.now + seconds(self.thresholds.get(&LEARNED_GATEWAY_FAILED));
        let worked = context.node.gateway(key).is_some_and(|gateway| gateway.worked);
        let started = context.node.containers.started(&owner.id);
        match started.filter(|_| !worked) {
            Some(started) => due.max(started + seconds(self.thresholds.get(&GATEWAY_YOUNG_POD))),
            None => due,
        }
    }

    fn grace_period_end(&self, node: &NodeView<'_>, netns: NsInum) -> BootNs {
        let started = live_owner(node, netns).and_then(|(owner, _)| node.containers.started(&owner.id));
        started.map_or(0, |started| started + seconds(self.thresholds.get(&GATEWAY_YOUNG_POD)))
    }

    fn found(
        &mut self,
        context: &Context<'_>,
        key: NeighborKey,
        found: DetectedFault,
        due: BootNs,
        findings: &mut Findings,
    ) {
        let Some((owner, target)) = live_owner(context.node, key.netns) else { return };
        if self.faults.len() >= CAPACITY {
            return findings.discard();
        }
        let objects = IncidentObjects {
            target: Some(Shared::new(target)),
            neighbor: Some(Box::new(entry(context.node, key, found.reason))),
            ..IncidentObjects::default()
        };
        let fault = Fault {
            confidence: match may_be_harmless(context.node, key) {
                true => found.confidence.min(Confidence::Likely),
                false => found.confidence,
            },
            what_happened: found.what_happened,
            phase: FaultPhase::Suspected { due },
            // The first check of all namespaces takes a moment.
            found_at_start: !found.was_fine
                && context.ready.is_none_or(|ready| context.now <= ready + 2 * SECOND),
            learned: found.learned,
            ..Fault::new(owner, found.reason, objects, context.now)
        };
        self.suspect(context, key, fault, findings);
    }
}

struct DetectedFault {
    reason: FaultReason,
    confidence: Confidence,
    what_happened: String,
    /// Whether the model showed a correct entry before.
    was_fine: bool,
    /// Whether the entry was not static.
    learned: bool,
}

impl DetectedFault {
    fn new(reason: FaultReason, confidence: Confidence, what_happened: String) -> Self {
        Self { reason, confidence, what_happened, was_fine: false, learned: false }
    }
}

pub(super) fn live_owner(node: &NodeView<'_>, netns: NsInum) -> Option<(GatewayOwner, Target)> {
    let target = health::live_target(node, netns)?;
    Some((GatewayOwner::of(&target, netns, node.namespaces.get(netns))?, target))
}

fn repeat_of(fault: &Fault, key: NeighborKey, severity: Option<Severity>) -> Repeat {
    Repeat { severity, ..Repeat::new(subject(&fault.owner, key), fault.last, Count::More(0)) }
}

pub(super) fn entry(node: &NodeView<'_>, key: NeighborKey, reason: FaultReason) -> Neighbor {
    let gateway = node.gateway(key);
    let lladdr = gateway.and_then(|gateway| gateway.lladdr().or(gateway.static_lladdr.as_ref()));
    let state = gateway.and_then(|gateway| gateway.entry.as_ref());
    let ifname = node.link_at(key.netns, key.ifindex).map(|link| &link.ifname);
    let ifname = ifname.or_else(|| gateway.map(|gateway| &gateway.ifname)).cloned().unwrap_or_default();
    Neighbor {
        lladdr: lladdr.map(ToString::to_string),
        state: state.map(|(state, _)| state.name().to_owned()),
        gateway: Some(true),
        reason: Some(reason.name().to_owned()),
        ..crate::neighbor::entry(key, ifname, NeighborCause::Unknown)
    }
}

pub(super) fn mismatch(node: &NodeView<'_>, key: NeighborKey, gateway: &Gateway) -> String {
    let lladdr = gateway.lladdr().map_or_else(String::new, ToString::to_string);
    let expected = node.gateway_lladdr(key).map_or_else(String::new, ToString::to_string);
    let end = node.host_end(key.netns, key.ifindex).map_or("the host".into(), |end| name(&end.ifname));
    if let Some(bridge) = node.unconnected_gateway(key) {
        let bridge = name(&bridge.ifname);
        return format!(
            "points to {lladdr}, but {end} is no port of {bridge}, which has the gateway's address"
        );
    }
    format!("points to {lladdr}, but {end} is reached by {expected}")
}
