//! A mount of a container or of a pod's volume is left in the mount namespace of somebody else after the host has unmounted
//! it: the file system lives on, its server is not told to end, its device stays in use, and nothing says so.
//!
//! Found by state alone, see `holders/leaks/`. One incident for each holder: a container, a unit, a user, a process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use kevtmon_event::{Actor, CloseReason, Event, Kind, LEAKS_MAX, LeakedMount, Severity, Shared, Target};
use kevtmon_observation::cgroup;
use kevtmon_observation::{BootNs, KernelMounts, Request};
use kevtmon_types::settings::{Thresholds, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::finding::{Count, Findings, IncidentObjects, Report};
use super::{Context, Diagnosis, IncidentKind, ModelChange, SECOND, Watch, seconds};
use crate::node::charge;

mod steps;
mod wording;

/// As users filter and alert on it.
pub(super) const KIND: &str = "mount-leak";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "Mounts that the host has unmounted remain in another mount namespace",
    meaning: "The copies in another mount namespace keep file systems and devices in use: a device cannot be detached, a \
             FUSE server is not told to end.",
    remedy: "Restart the container or service that has them; mount host directories with the propagation HostToContainer \
             (rslave), and run services without a mount namespace of their own.",
    severities: &[Severity::Info, Severity::Warning],
    counted: "mounts",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: |thresholds| Box::new(MountLeak::new(thresholds)),
};

thresholds! {
    /// A mount that is left in another mount namespace is reported after this time: it may go at once, with what ends.
    AFTER = "mount_leak_seconds", default 10, Unit::Seconds;
}

/// So long a refusal counts for what is left at its path: the kubelet tries again every two minutes.
const REFUSAL_COUNTS: BootNs = 600 * SECOND;
/// Calls on mounts that are remembered.
const CALLS_MAX: usize = 256;
/// Incidents of holders in user namespaces: a user may have very many user ids there.
const USERS_MAX: usize = 16;
/// Mounts of one holder that are followed.
const MOUNTS_MAX: usize = 1024;

/// A mount that is left in the mount namespace of somebody else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Leak {
    /// A process in that namespace.
    pub holder: Shared<Actor>,
    /// The mount.
    pub mount: LeakedMount,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Leaks {
    /// Whether what an earlier run had found may be there though it is not among them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
    /// Of all holders.
    pub leaks: Vec<Leak>,
    /// What the kernel makes of them.
    pub kernel: KernelMounts,
}

/// What was said of an incident last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Said {
    summary: String,
    severity: Option<Severity>,
    count: usize,
    /// Those that it lists: what is caused by one of them looks there.
    mounts: Vec<String>,
    in_userns: bool,
    /// The container, if it is one.
    container: Option<String>,
}

/// A call on a mount of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Call {
    path: String,
    at: BootNs,
    seq: u64,
    refused: bool,
    /// What was mounted there by then: device and path within its file system.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    of: Option<(String, String)>,
}

impl Call {
    /// Whether it may have been about this mount: another one may have been mounted at its path since.
    fn is_about(&self, mount: &LeakedMount) -> bool {
        // The copy may be one of a part of it.
        let is_it = |(device, root): &(String, String)| {
            *device == mount.identity.device && Path::new(&mount.identity.root).starts_with(root)
        };
        mount.path.as_ref() == Some(&self.path) && self.of.as_ref().is_none_or(is_it)
    }
}

/// The diagnosis.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MountLeak {
    #[serde(skip)]
    thresholds: Thresholds,
    found: Leaks,
    /// Since when each of them is there, by namespace and mount.
    since: BTreeMap<String, BootNs>,
    open: BTreeMap<String, Said>,
    calls: VecDeque<Call>,
    next: Option<BootNs>,
}

impl MountLeak {
    pub(super) fn new(thresholds: &Thresholds) -> Self {
        Self {
            thresholds: thresholds.clone(),
            found: Leaks::default(),
            since: BTreeMap::new(),
            open: BTreeMap::new(),
            calls: VecDeque::new(),
            next: None,
        }
    }

    fn replace(&mut self, context: &Context<'_>, found: &Leaks, findings: &mut Findings) {
        let before = std::mem::take(&mut self.since);
        for leak in found.leaks.iter().take(MOUNTS_MAX) {
            let key = key(&leak.mount);
            let since = before.get(&key).copied().unwrap_or(context.now);
            self.since.insert(key, since);
        }
        self.found = Leaks {
            leaks: found.leaks.iter().take(MOUNTS_MAX).cloned().collect(),
            is_partial: found.is_partial,
            kernel: found.kernel.clone(),
        };
        // Before every source has reported, whose mounts they are may not be known yet.
        if context.ready.is_some() && !found.is_partial {
            self.close_gone(context, findings);
        }
        self.review(context, findings);
    }

    /// Whether anything of a container is left.
    fn has_of(&self, id: &str) -> bool {
        let mut left = self.found.leaks.iter().filter_map(|leak| leak.mount.container.as_ref());
        left.any(|container| container.id == id)
    }

    fn close_gone(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let accounts: Vec<String> = self.found.leaks.iter().map(|leak| account(&leak.holder)).collect();
        let gone = self.open.iter().filter(|(account, _)| !accounts.contains(account));
        for (account, said) in gone.map(|(account, said)| (account.clone(), said.clone())).collect::<Vec<_>>()
        {
            self.open.remove(&account);
            let is_gone = said.container.is_some_and(|id| {
                context.node.containers.get(&id).is_some() && !context.node.containers.is_present(&id)
            });
            let reason = if is_gone { CloseReason::SubjectGone } else { CloseReason::Resolved };
            findings.close(account, reason, None);
        }
    }

    fn review(&mut self, context: &Context<'_>, findings: &mut Findings) {
        let after = seconds(self.thresholds.get(&AFTER));
        self.calls.retain(|call| call.at.saturating_add(REFUSAL_COUNTS) > context.now);
        let mut by_account: BTreeMap<String, Vec<&Leak>> = BTreeMap::new();
        let mut next: Option<BootNs> = None;
        for leak in &self.found.leaks {
            let due =
                self.since.get(&key(&leak.mount)).map_or(context.now, |since| since.saturating_add(after));
            if due > context.now {
                next = Some(next.map_or(due, |next| next.min(due)));
            } else {
                by_account.entry(account(&leak.holder)).or_default().push(leak);
            }
        }
        let mut reports = Vec::new();
        let mut users = self.open.values().filter(|said| said.in_userns).count();
        for (account, mut leaks) in by_account {
            // Of those that are as sure the one that does most harm comes first, as it is told most of.
            leaks.sort_by_key(|leak| {
                let mount = &leak.mount;
                let is_harmless = (self.refused(context, mount).is_none(), !mount.is_of_block_device());
                (Reverse(mount.confidence), is_harmless, mount.volume.is_none())
            });
            let Some(first) = leaks.first() else { continue };
            let in_userns = first.holder.userns.is_some() && first.holder.container.is_none();
            if in_userns && !self.open.contains_key(&account) {
                if users >= USERS_MAX {
                    findings.discard();
                    continue;
                }
                users += 1;
            }
            let report = self.report(context, &account, &leaks, in_userns);
            let said = Said {
                summary: report.summary.clone(),
                severity: Some(report.severity),
                count: leaks.len(),
                mounts: leaks.iter().take(LEAKS_MAX).map(|leak| key(&leak.mount)).collect(),
                in_userns,
                container: first.holder.container.as_ref().map(|container| container.id.clone()),
            };
            reports.push((account, said, report));
        }
        self.next = next;
        for (account, said, report) in reports {
            if self.open.get(&account) != Some(&said) {
                self.open.insert(account, said);
                findings.report(report);
            }
        }
    }

    fn refused(&self, context: &Context<'_>, mount: &LeakedMount) -> Option<Refused> {
        let is_of_it = |call: &Call| call.refused && call.is_about(mount);
        let by_runtime = || is_told(context, mount).then_some(Refused::ByRuntime);
        self.calls.iter().any(is_of_it).then_some(Refused::Seen).or_else(by_runtime)
    }

    fn report(&self, context: &Context<'_>, account: &str, leaks: &[&Leak], in_userns: bool) -> Report {
        let first = leaks[0];
        let is_about_any = |call: &&Call| leaks.iter().any(|leak| call.is_about(&leak.mount));
        let calls: Vec<&Call> = self.calls.iter().filter(is_about_any).collect();
        let is_harm =
            |leak: &&Leak| self.refused(context, &leak.mount).is_some() || leak.mount.is_of_block_device();
        let severity = if leaks.iter().any(is_harm) { Severity::Warning } else { Severity::Info };
        let since = leaks.iter().filter_map(|leak| self.since.get(&key(&leak.mount))).min().copied();
        let owner = Target {
            container: first.mount.container.clone(),
            pod: first.mount.pod.clone(),
            ..Target::unknown(kevtmon_event::Join::Ok)
        };
        // What a user does in a namespace of his own is not charged to a pod.
        let has_owner = !in_userns && (owner.container.is_some() || owner.pod.is_some());
        let listed = leaks.iter().take(LEAKS_MAX).map(|leak| leak.mount.clone()).collect();
        Report {
            subject: account.to_owned(),
            severity,
            confidence: first.mount.confidence,
            summary: wording::summary(leaks, &self.found.kernel, self.refused(context, &first.mount)),
            ruled_out: Some(wording::ruled_out(&self.found.kernel)),
            advice: Some(steps::steps(context, first)),
            objects: IncidentObjects {
                actor: Some(first.holder.clone()),
                target: has_owner.then(|| Shared::new(owner)),
                leaks: Some(listed),
                ..IncidentObjects::default()
            },
            first: since.unwrap_or(context.now),
            last: context.now,
            evidence: calls.iter().map(|call| call.seq).collect(),
            count: Count::Total(leaks.len().try_into().unwrap_or(u64::MAX)),
            found_at_start: context.ready.is_none(),
            caused_by: Vec::new(),
        }
    }
}

/// Who tells that an unmount or removal of a mount was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// The call was seen.
    Seen,
    /// The runtime that could not remove the container.
    ByRuntime,
}

/// Whether the runtime says of a container that is dead that this mount could not be removed.
fn is_told(context: &Context<'_>, mount: &LeakedMount) -> bool {
    let Some((id, path)) = mount.container.as_ref().map(|container| &container.id).zip(mount.path.as_ref())
    else {
        return false;
    };
    let containers = &context.node.containers;
    let facts = containers.get(id).filter(|_| containers.is_present(id));
    let words = format!(" {path}: device or resource busy");
    facts.and_then(|facts| facts.removal_error.as_deref()).is_some_and(|error| error.contains(&words))
}

/// Whose incident it is: a container, a unit, a user with all that is his; of root a process by itself.
fn account(holder: &Actor) -> String {
    let group = holder.cgroup.as_deref();
    if let Some(owner) = group.and_then(cgroup::owner) {
        return owner.to_owned();
    }
    match holder.uid {
        Some(uid) if uid != 0 => format!("uid {uid}"),
        _ if holder.userns.is_some() => charge::of_process(group, holder.uid, true).into_owned(),
        _ => format!("{}@{}", holder.pid, holder.start_time_ns),
    }
}

/// Which mount it is.
fn key(mount: &LeakedMount) -> String {
    let identity = &mount.identity;
    match identity.unique {
        Some(unique) => format!("{unique}"),
        None => format!("{} {} {}", mount.mntns, identity.mount_id, identity.mount_point),
    }
}

impl Diagnosis for MountLeak {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn event(&mut self, context: &Context<'_>, event: &Event, findings: &mut Findings) {
        if matches!(event.kind, Kind::ContainerExited | Kind::ContainerRemoved) {
            findings.request(Request::MountCopies);
        }
        let Some(mount) = event.mount.as_deref().filter(|_| event.incident.is_none()) else { return };
        // The text of a path tells neither: anybody has mounts at such a one.
        let is_of_somebody = mount.volume.is_some() || mount.staged.is_some() || mount.container_id.is_some();
        if !is_of_somebody || !context.node.kubelets.mounts_in(mount.mntns) {
            return;
        }
        if self.calls.len() >= CALLS_MAX {
            self.calls.pop_front();
        }
        let refused = event.kind == Kind::MountBusy;
        let of = mount.identity.as_ref().map(|identity| (identity.device.clone(), identity.root.clone()));
        let (path, at, seq) = (mount.path.clone(), context.now, event.seq);
        self.calls.push_back(Call { path, at, seq, refused, of });
        findings.request(Request::MountCopies);
    }

    fn change(&mut self, context: &Context<'_>, change: &ModelChange<'_>, findings: &mut Findings) {
        match change {
            ModelChange::MountCopies(found) => self.replace(context, found, findings),
            ModelChange::Container(id) if self.has_of(id) => self.review(context, findings),
            // Of what the previous run has told, it is known only now whether it is gone.
            ModelChange::Ready if !self.open.is_empty() => findings.request(Request::MountCopies),
            _ => {}
        }
    }

    fn tick(&mut self, context: &Context<'_>, findings: &mut Findings) {
        if self.next.is_some_and(|next| next <= context.now) {
            self.review(context, findings);
        }
    }

    fn deadline(&self) -> Option<BootNs> {
        self.next
    }

    fn resume(&mut self, _context: &Context<'_>, event: &Event) -> Option<String> {
        let subject = account(event.actor.as_deref()?);
        self.open.insert(subject.clone(), Said::default());
        Some(subject)
    }

    saved_without_thresholds!();
}

#[cfg(test)]
mod tests;
