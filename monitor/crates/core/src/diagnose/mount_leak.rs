//! A mount of a container, of a pod's volume or of the host itself is left in the mount namespace of somebody else after the host has unmounted
//! it: the file system lives on, its server is not told to end, its device stays in use, and nothing says so.
//!
//! Found by state alone, see `holders/leaks/`. One incident for each holder: a container, a unit, a user, a process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use kevtmon_event::{Actor, CloseReason, Event, Kind, LEAKS_MAX, LeakedMount, Severity, Shared, Target};
use kevtmon_observation::cgroup;
use kevtmon_observation::{BootNs, KernelMounts, Request};
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Count, Findings, IncidentObjects, Report};
use super::{Alert, Context, IncidentKind, ModelChange, SECOND, Watch};
use crate::node::tenant;

mod steps;
mod wording;

pub(super) const KIND: &str = "mount-leak";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "Mounts that the host has unmounted remain in another mount namespace",
    symptom: "`Terminating` without end",
    names: "the mount that is left, and whose mount namespace it is in",
    opens: "A mount that the host has unmounted is still in another mount namespace after 10 s.",
    alert: Alert::ByHand,
    meaning: "The copies in another mount namespace keep file systems and devices in use: a device cannot be detached, \
             a FUSE server is not asked to end.",
    remedy: "Restart the container or service that has them; mount host directories with the propagation HostToContainer \
             (rslave), and run services without a mount namespace of their own.",
    severities: &[Severity::Info, Severity::Warning],
    counted: "mounts",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: false,
    start: start::<MountLeak>,
};

thresholds! {
    /// A mount that is left in another mount namespace is reported after this time: it may go at once, with what ends.
    AFTER = "mount_leak_seconds", default 10, Unit::Seconds;
}

/// So long a refusal counts for what is left at its path: the kubelet tries again every two minutes.
const REFUSAL_COUNTS: BootNs = 600 * SECOND;
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
    pub mount: LeakedMount,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Leaks {
    /// Whether what an earlier run had found may be there though it is not among them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
    pub leaks: Vec<Leak>,
    /// What the kernel makes of them.
    pub kernel: KernelMounts,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Holder {
    count: usize,
    /// Those that the incident lists: what is caused by one of them looks there.
    mounts: Vec<String>,
    in_userns: bool,
    container: Option<String>,
}

impl Holder {
    fn of(leaks: &[&Leak]) -> Self {
        let holder = &leaks[0].holder;
        Self {
            count: leaks.len(),
            mounts: leaks.iter().take(LEAKS_MAX).map(|leak| key(&leak.mount)).collect(),
            in_userns: holder.userns.is_some() && holder.container.is_none(),
            container: holder.container.as_ref().map(|container| container.id.clone()),
        }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Call {
    path: String,
    at: BootNs,
    seq: u64,
    refused: bool,
    /// What was mounted there by then: device and path within its file system.
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

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct MountLeak {
    found: Leaks,
    /// Since when each of them is there, by namespace and mount.
    since: BTreeMap<String, BootNs>,
    calls: VecDeque<Call>,
}

impl MountLeak {
    fn replace(&mut self, context: &Context<'_>, found: &Leaks) {
        let before = std::mem::take(&mut self.since);
        for leak in found.leaks.iter().take(MOUNTS_MAX) {
            let key = key(&leak.mount);
            let since = before.get(&key).copied().unwrap_or(context.now);
            self.since.insert(key, since);
        }
        self.found = Leaks {
            leaks: found.leaks.iter().take(MOUNTS_MAX).cloned().collect(),
            // Before every source has reported, whose mounts they are may not be known yet.
            is_partial: found.is_partial || context.ready.is_none(),
            kernel: found.kernel.clone(),
        };
    }

    fn due(&self, seen: &Seen<'_, Holder>, leak: &Leak) -> BootNs {
        let since = self.since.get(&key(&leak.mount));
        since.map_or(seen.context.now, |since| since.saturating_add(seen.hold))
    }

    fn has_of(&self, id: &str) -> bool {
        let mut left = self.found.leaks.iter().filter_map(|leak| leak.mount.container.as_ref());
        left.any(|container| container.id == id)
    }

    fn refused(&self, context: &Context<'_>, mount: &LeakedMount) -> Option<Refused> {
        let is_of_it = |call: &Call| call.refused && call.is_about(mount);
        let by_runtime = || is_told(context, mount).then_some(Refused::ByRuntime);
        self.calls.iter().any(is_of_it).then_some(Refused::Seen).or_else(by_runtime)
    }

    fn condition(
        &self,
        context: &Context<'_>,
        account: String,
        leaks: &[&Leak],
        holder: Holder,
    ) -> Condition<Holder> {
        let first = leaks[0];
        let is_about_any = |call: &&Call| leaks.iter().any(|leak| call.is_about(&leak.mount));
        let calls = self.calls.iter().filter(is_about_any);
        let is_harm =
            |leak: &&Leak| self.refused(context, &leak.mount).is_some() || leak.mount.is_of_block_device();
        let severity = if leaks.iter().any(is_harm) { Severity::Warning } else { Severity::Info };
        let owner = Target {
            container: first.mount.container.clone(),
            pod: first.mount.pod.clone(),
            ..Target::unknown(kevtmon_event::Join::Ok)
        };
        // What a user does in a namespace of his own does not count for a pod.
        let has_owner = !holder.in_userns && (owner.container.is_some() || owner.pod.is_some());
        let listed = leaks.iter().take(LEAKS_MAX).map(|leak| leak.mount.clone()).collect();
        let summary = wording::summary(leaks, &self.found.kernel, self.refused(context, &first.mount));
        let report = Report {
            ruled_out: Some(wording::ruled_out(&self.found.kernel)),
            advice: Some(steps::steps(context, first)),
            objects: IncidentObjects {
                actor: Some(first.holder.clone()),
                target: has_owner.then(|| Shared::new(owner)),
                leaks: Some(listed),
                ..IncidentObjects::default()
            },
            evidence: calls.map(|call| call.seq).collect(),
            count: Count::Total(leaks.len().try_into().unwrap_or(u64::MAX)),
            found_at_start: context.ready.is_none(),
            ..Report::new(account, severity, first.mount.confidence, summary, context.now)
        };
        let since = leaks.iter().filter_map(|leak| self.since.get(&key(&leak.mount))).min().copied();
        Condition { since, memory: holder, ..Condition::new(report) }
    }
}

/// Who tells that an unmount or removal of a mount was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
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
        _ if holder.userns.is_some() => tenant::of_process(group, holder.uid, true).into_owned(),
        _ => format!("{}@{}", holder.pid, holder.start_time_ns),
    }
}

fn key(mount: &LeakedMount) -> String {
    let identity = &mount.identity;
    match identity.unique {
        Some(unique) => format!("{unique}"),
        None => format!("{} {} {}", mount.mntns, identity.mount_id, identity.mount_point),
    }
}

impl Conditions for MountLeak {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    const BEFORE_READY: bool = true;
    type Memory = Holder;

    fn event(&mut self, seen: &Seen<'_, Holder>, event: &Event, findings: &mut Findings) -> Look {
        let context = seen.context;
        if matches!(event.kind, Kind::ContainerExited | Kind::ContainerRemoved) {
            findings.request(Request::MountCopies);
        }
        let Some(mount) = event.mount.as_deref().filter(|_| event.incident.is_none()) else {
            return Look::No;
        };
        // The text of a path tells neither: anybody has mounts at such a one.
        let is_of_somebody = mount.volume.is_some() || mount.staged.is_some() || mount.container_id.is_some();
        if !is_of_somebody || !context.node.kubelets.mounts_in(mount.mntns) {
            return Look::No;
        }
        let refused = event.kind == Kind::MountBusy;
        let of = mount.identity.as_ref().map(|identity| (identity.device.clone(), identity.root.clone()));
        let (path, at, seq) = (mount.path.clone(), context.now, event.seq);
        crate::bounded::push(&mut self.calls, CALLS_MAX, Call { path, at, seq, refused, of });
        findings.request(Request::MountCopies);
        Look::No
    }

    fn change(&mut self, seen: &Seen<'_, Holder>, change: &ModelChange<'_>, findings: &mut Findings) -> Look {
        match change {
            ModelChange::MountCopies(found) => self.replace(seen.context, found),
            ModelChange::Container(id) if self.has_of(id) => {}
            // Of what the previous run has told, it is known only now whether it is gone.
            ModelChange::Ready if seen.open().next().is_some() => {
                findings.request(Request::MountCopies);
                return Look::No;
            }
            _ => return Look::No,
        }
        Look::Now
    }

    fn conditions(
        &mut self,
        seen: &Seen<'_, Holder>,
        findings: &mut Findings,
    ) -> Option<Vec<Condition<Holder>>> {
        let context = seen.context;
        self.calls.retain(|call| call.at.saturating_add(REFUSAL_COUNTS) > context.now);
        let mut by_account: BTreeMap<String, Vec<&Leak>> = BTreeMap::new();
        for leak in &self.found.leaks {
            let leaks = by_account.entry(account(&leak.holder)).or_default();
            leaks.extend((self.due(seen, leak) <= context.now).then_some(leak));
        }
        let mut conditions = Vec::new();
        let mut users = seen.memories().filter(|holder| holder.in_userns).count();
        for (account, mut leaks) in by_account {
            if leaks.is_empty() {
                conditions.push(Condition::unknown(account));
                continue;
            }
            // Of those that are as sure the one that does most harm comes first, as it is told most of.
            leaks.sort_by_key(|leak| {
                let mount = &leak.mount;
                let is_harmless = (self.refused(context, mount).is_none(), !mount.is_of_block_device());
                (Reverse(mount.confidence), is_harmless, mount.volume.is_none(), mount.staged.is_none())
            });
            let holder = Holder::of(&leaks);
            if holder.in_userns && !seen.is_open(&account) {
                if users >= USERS_MAX {
                    findings.discard();
                    continue;
                }
                users += 1;
            }
            conditions.push(self.condition(context, account, &leaks, holder));
        }
        Some(conditions)
    }

    fn settle(&self, seen: &Seen<'_, Holder>, _: &mut Findings) -> Option<BootNs> {
        let dues = self.found.leaks.iter().map(|leak| self.due(seen, leak));
        dues.filter(|due| *due > seen.context.now).min()
    }

    fn ended(&self, context: &Context<'_>, _: &str, holder: &Holder) -> Option<CloseReason> {
        let containers = context.node.containers;
        let is_gone = |id: &String| containers.get(id).is_some() && !containers.is_present(id);
        let reason = match &holder.container {
            Some(id) if is_gone(id) => CloseReason::SubjectGone,
            _ => CloseReason::Resolved,
        };
        Some(reason).filter(|_| !self.found.is_partial && context.ready.is_some())
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, Holder)> {
        // What an earlier run has told is closed once it is known to be gone.
        self.found.is_partial = true;
        Some((account(event.actor.as_deref()?), Holder::default()))
    }
}

#[cfg(test)]
mod tests;
