//! The server of a FUSE file system has ended, and pods or containers still have it mounted: every access fails with `ENOTCONN`. The
//! same where the server lives, but its connection was aborted or closed.
//!
//! A server that is started again makes another file system. What a container has of the old one stays dead until it is
//! restarted, whatever the host has mounted by then.

use std::collections::BTreeSet;

use kevtmon_event::wording::{actor_subject, container_label, target_label};
use kevtmon_event::{
    Actor, Advice, Confidence, Event, Mount, MountHolder, MountServer, Pod, Severity, Shared, Target, Volume,
};
use kevtmon_observation::{NsInum, ServerState};
use kevtmon_types::escape::name;
use kevtmon_types::settings::{Threshold, Unit, thresholds};
use serde::{Deserialize, Serialize};

use super::advice::{advice, delete_pod, restart};
use super::conditions::{Condition, Conditions, Look, Seen, start};
use super::finding::{Findings, IncidentObjects, Report};
use super::pod_volume_lost::runs;
use super::{Alert, Context, IncidentKind, ModelChange, Watch};
use crate::node::fuse_mounts::ServerEnd;

#[cfg(test)]
mod tests;

pub const KIND: &str = "file-server-lost";

pub(super) const SPEC: IncidentKind = IncidentKind {
    name: KIND,
    title: "A FUSE volume lost its server while it was mounted",
    symptom: "`Transport endpoint is not connected`",
    names: "the process that killed the FUSE server, and who has the dead mount",
    opens: "The server of a FUSE file system ended, or lost the connection to it, and 10 s later pods or containers still have it \
            mounted.",
    alert: Alert::Open { severity: Severity::Critical, minutes: 0 },
    meaning: "No process serves the file system any more. Every access to it fails: \"Transport endpoint is not connected\". A server \
              that is started again does not help containers that run: they have the mount of the old one.",
    remedy: "Restart the pods and containers that have the mount. If the server runs in a container, let it end only after them, or \
             run it elsewhere.",
    severities: &[Severity::Critical],
    counted: "ends",
    thresholds: THRESHOLDS,
    watched_by: Watch::None,
    is_optional: true,
    start: start::<FileServerLost>,
};

thresholds! {
    /// A FUSE file system that nobody serves is reported after this time, if it is still mounted.
    AFTER = "file_server_lost_seconds", default 10, Unit::Seconds;
}

/// A FUSE file system that nobody serves any more, joined with who has it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnservedMount {
    /// `major:minor`.
    pub device: String,
    pub fstype: String,
    pub source: String,
    /// Where the host has it, or had it, and in which mount namespace.
    pub path: String,
    pub mntns: NsInum,
    /// Those of its mount points that are volumes of pods.
    pub volumes: Vec<(String, Volume)>,
    /// The processes that served it, as far as they were known.
    pub servers: Vec<MountServer>,
    /// How the last of them ended, if that was seen.
    pub end: Option<ServerEnd>,
    /// The connection was aborted or closed while they lived.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_off: bool,
    /// Who has it in other mount namespaces.
    pub holders: Vec<MountHolder>,
    /// The host has mounted another file system in its place.
    pub remounted: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FileServerLost {
    /// `None` until they were looked at.
    unserved: Option<Vec<UnservedMount>>,
    /// File systems of incidents that an earlier run opened: how their servers ended only that run has seen.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    resumed: BTreeSet<String>,
}

struct Users<'m> {
    /// Running pods, by uid.
    pods: BTreeSet<&'m str>,
    /// Containers of no pod, by id.
    containers: BTreeSet<&'m str>,
    volume: Option<&'m (String, Volume)>,
}

impl<'m> Users<'m> {
    fn of(context: &Context<'_>, mount: &'m UnservedMount) -> Self {
        let (mut pods, mut containers) = (BTreeSet::new(), BTreeSet::new());
        for holder in &mount.holders {
            match (Pod::confirmed(holder.pod.as_ref()), &holder.container) {
                (Some(pod), _) => drop(pods.insert(pod.uid.as_str())),
                (None, Some(container)) => drop(containers.insert(container.id.as_str())),
                (None, None) => {}
            }
        }
        // Of a container that is not found the volume tells, unless the host has another one there by now, which it may see.
        if pods.is_empty() && containers.is_empty() && !mount.remounted {
            let volumes = mount.volumes.iter().map(|(_, volume)| volume.pod_uid.as_str());
            pods.extend(volumes.filter(|uid| runs(context, uid)));
        }
        let volume = mount.volumes.iter().find(|(_, volume)| pods.contains(volume.pod_uid.as_str()));
        Self { pods, containers, volume }
    }

    fn is_any(&self) -> bool {
        !self.pods.is_empty() || !self.containers.is_empty()
    }

    /// What was served, with whose it is.
    fn phrase(&self, mount: &UnservedMount, target: &Target) -> String {
        let owner = target_label(target).unwrap_or_default();
        let others = (self.pods.len() + self.containers.len()).saturating_sub(1);
        let others = match others {
            0 => String::new(),
            1 => " and 1 more".to_owned(),
            more => format!(" and {more} more"),
        };
        match self.volume.filter(|_| others.is_empty()) {
            Some((_, volume)) => {
                format!("volume {} ({}) of {owner}", name(&volume.name), name(&volume.plugin))
            }
            None => format!("{} in {owner}{others}", name(&mount.path)),
        }
    }
}

impl UnservedMount {
    /// Whether the kernel has shown who served it, and how that ended. That a process exits because of a signal is a guess.
    fn is_certain(&self) -> bool {
        let is_shown = |server: &MountServer| server.confidence == Confidence::Certain;
        let is_seen = |end: &ServerEnd| end.by_signal || end.sender.is_none();
        self.end.as_ref().is_some_and(is_seen) && self.servers.len() == 1 && self.servers.iter().all(is_shown)
    }

    fn server(&self) -> Option<&MountServer> {
        let ended = self.end.as_ref().map(|end| end.tgid);
        self.servers.iter().find(|server| Some(server.pid) == ended).or(self.servers.first())
    }

    /// Who ended the server, or how it ended; then what it served follows.
    fn cause(&self) -> String {
        let Some(server) = self.server() else { return "no process serves".to_owned() };
        let (server_pid, has_ended) = (server.pid, server.state == ServerState::Ended);
        let likely = if server.confidence == Confidence::Certain { "" } else { "likely " };
        let (server, serving) = (server.label(), format!("which {likely}served"));
        if self.cut_off {
            let then = if has_ended { "before it ended" } else { "while it ran" };
            return format!("the connection of {server} was aborted or closed {then}, {serving}");
        }
        let Some(end) = &self.end else { return format!("{server} has ended, {serving}") };
        let signal = end.signal.map(signal_name).unwrap_or_default();
        match &end.sender {
            Some(actor) if actor.pid == server_pid => {
                let likely = if end.was_killed() { "" } else { "likely " };
                format!("{server} has {likely}ended itself ({signal}), {serving}")
            }
            Some(actor) if end.by_signal => {
                format!("{} has killed {server} ({signal}), {serving}", actor_subject(actor))
            }
            Some(actor) => {
                format!("{} has likely ended {server} ({signal}), {serving}", actor_subject(actor))
            }
            None if end.by_kernel && end.was_killed() => {
                format!("the kernel has killed {server} ({signal}), {serving}")
            }
            None if end.was_killed() => format!("{server} was killed by {signal}, {serving}"),
            None => format!("{server} exited with status {}, {serving}", end.status >> 8),
        }
    }

    fn report(&self, context: &Context<'_>, users: &Users<'_>) -> Report {
        let node = context.node;
        let target = match (users.pods.first(), users.containers.first()) {
            (Some(uid), _) => node.target_of_pod(uid),
            (None, Some(id)) => node
                .containers
                .get(id)
                .map_or_else(|| Target::unknown(kevtmon_event::Join::Missed), |facts| node.target_of(facts)),
            (None, None) => Target::unknown(kevtmon_event::Join::Host),
        };
        let what = users.phrase(self, &target);
        let again = if self.remounted { ", though the node has mounted it again" } else { "" };
        let summary = format!("{} {what}: every access fails (ENOTCONN){again}", self.cause());
        let confidence = if self.is_certain() { Confidence::Certain } else { Confidence::Likely };
        let (path, volume) = users.volume.map_or((&self.path, None), |(path, volume)| (path, Some(volume)));
        let mount = Mount {
            path: path.clone(),
            fstype: Some(self.fstype.clone()),
            source: Some(self.source.clone()),
            device: Some(self.device.clone()),
            mntns: self.mntns,
            volume: volume.cloned(),
            unserved: true,
            servers: self.servers.clone(),
            ..Mount::default()
        };
        let holders = self.holders.clone();
        Report {
            advice: Some(steps(context, &target)),
            objects: IncidentObjects {
                actor: self.actor(),
                target: Some(Shared::new(target)),
                mount: Some(Box::new(mount)),
                holders: (!holders.is_empty()).then_some(holders),
                ..IncidentObjects::default()
            },
            ..Report::new(self.device.clone(), Severity::Critical, confidence, summary, context.now)
        }
    }

    fn actor(&self) -> Option<Shared<Actor>> {
        let end = self.end.as_ref()?;
        let actor = end.sender.clone()?;
        Some(if self.is_certain() { actor } else { Actor::at_most_likely(actor) })
    }
}

fn signal_name(signal: u32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// Restarts who has the mount.
fn steps(context: &Context<'_>, target: &Target) -> Vec<Advice> {
    if let Some(pod) = target.confirmed_pod() {
        let text = "delete the pod; its controller makes a new one, with a mount that is served";
        return delete_pod(context, pod, text);
    }
    let Some(container) = &target.container else { return Vec::new() };
    let text =
        format!("once the file system is served again, restart container {}", container_label(container));
    let command = restart(context.node, container).filter(|(form, _)| form.kinds.contains(&KIND));
    command.map(|(form, words)| advice(form, &text, &words)).into_iter().collect()
}

impl Conditions for FileServerLost {
    const SPEC: &'static IncidentKind = &SPEC;
    const HOLD: &'static Threshold = &AFTER;
    type Memory = ();

    fn change(&mut self, _: &Seen<'_, ()>, change: &ModelChange<'_>, _: &mut Findings) -> Look {
        match change {
            ModelChange::FuseMounts(found) => {
                self.unserved = Some(found.to_vec());
                self.resumed.retain(|device| found.iter().any(|mount| mount.device == *device));
                Look::Now
            }
            ModelChange::Container(_)
            | ModelChange::Runtime
            | ModelChange::PodRemains
            | ModelChange::Ready => Look::soon_if(self.unserved.iter().flatten().next().is_some()),
            _ => Look::No,
        }
    }

    fn conditions(&mut self, seen: &Seen<'_, ()>, _: &mut Findings) -> Option<Vec<Condition<()>>> {
        let context = seen.context;
        context.ready?;
        let of = |mount: &UnservedMount| {
            let users = Users::of(context, mount);
            if !users.is_any() {
                return None;
            }
            if self.resumed.contains(&mount.device) {
                return Some(Condition::unknown(mount.device.clone()));
            }
            let since = mount.end.as_ref().map(|end| end.at);
            Some(Condition { since, ..Condition::new(mount.report(context, &users)) })
        };
        Some(self.unserved.as_ref()?.iter().filter_map(of).collect())
    }

    fn resume(&mut self, _: &Context<'_>, event: &Event) -> Option<(String, ())> {
        let device = event.mount.as_ref()?.device.clone()?;
        self.resumed.insert(device.clone());
        Some((device, ()))
    }
}
