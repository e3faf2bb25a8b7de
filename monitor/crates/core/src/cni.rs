//! CNI calls: the plugins that one call executes are one event, joined with the sandbox and its pod.

use kevtmon_event::wording::{actor_phrase, owner_phrase, short_id};
use kevtmon_event::{Actor, Cni, Container, Event, Join, Kind, Lost, Pod, Severity, Shared, Target};
use kevtmon_observation::{BootNs, CniCommand, CniExec, CniExit, CniNetns, CniPod, Request};
use kevtmon_types::escape::name;

use super::Core;
use crate::diagnose::ModelChange;
use crate::node::cni::{Call, GivenUp, OPEN_MAX};

impl Core {
    /// The end of a call of a plugin or of `rbd`, or of a FUSE server.
    pub(super) fn exec_ended(&mut self, at: BootNs, exit: CniExit) {
        if self.fuse_mounts.ended(at, &exit) {
            self.request(Request::FuseMounts);
        }
        if let Some(call) = self.cni.exited(at, exit) {
            self.finished(call);
        }
        self.rbd_exit(at, exit);
    }

    pub(super) fn cni_exec(&mut self, at: BootNs, exec: CniExec) {
        if let Some(CniPod { namespace, name, uid: Some(uid) }) = &exec.pod {
            // Who made the call is root of the node.
            self.pods.insert(uid.clone(), namespace.clone(), name.clone(), at);
        }
        let mntns = exec.actor.context.as_ref().map(|context| context.place.mntns);
        let facts = self.tasks.get(&exec.actor);
        let ancestors: Vec<_> = facts
            .iter()
            .flat_map(|facts| &facts.ancestors)
            .map(|above| (above.tgid, above.start_ns))
            .collect();
        let actor = self.actor(&exec.actor, false);
        let call = self.cni.started(at, exec, &ancestors, || actor).cloned();
        if let Some(call) = call
            && let Some(path) = call.first.netns
        {
            let mntns = mntns.filter(|mntns| !self.kubelets.is_host(*mntns));
            let within = mntns.map(|mntns| (mntns, ancestors.iter().map(|(tgid, _)| *tgid).collect()));
            self.request(Request::CniNetns { id: call.id, path, within });
        }
        self.tell_begun(at);
    }

    fn tell_begun(&mut self, now: BootNs) {
        while let Some(call) = self.cni.take_begun(now) {
            if let Some(seq) = self.emit_cni(call.started, &call, None) {
                self.cni.note_event(call.id, seq);
            }
        }
    }

    /// What is due of calls: that they have begun, and that they have ended.
    pub(super) fn go_on_with_calls(&mut self, now: BootNs) {
        self.tell_begun(now);
        while let Some(call) = self.cni.take_ended(now) {
            self.finished(call);
        }
    }

    pub(super) fn cni_netns(&mut self, at: BootNs, found: CniNetns) {
        if let Some(call) = self.cni.answered(&found) {
            self.diagnose(at, &ModelChange::CniNetns(&call));
        }
    }

    fn finished(&mut self, mut call: Call) {
        let Some((at, exit)) = call.ended else { return };
        if !call.is_told {
            let mut begun = call.clone();
            begun.ended = None;
            call.events.extend(self.emit_cni(call.started, &begun, None));
        }
        let call = &call;
        let pod = call.first.pod.as_ref();
        let is_del = call.first.command == CniCommand::Del;
        let stale = pod.zip(call.first.container_id.as_deref()).filter(|_| is_del);
        let stale = stale.and_then(|(pod, id)| self.node().is_stale(id, pod));
        let failed = exit.status != 0;
        self.cni.note_end(at, call, failed, stale == Some(true));
        let Some(seq) = self.emit_cni(at, call, Some((exit, stale))) else { return };
        self.cni.note_event(call.id, seq);
        self.diagnose(at, &ModelChange::CniFinished(call, seq));
    }

    pub(super) fn tell_given_up_calls(&mut self, now: BootNs, all: bool) {
        let Some(GivenUp { count, from, until }) = self.cni.take_given_up(now, all) else { return };
        let plural = if count == 1 { "" } else { "s" };
        let message = format!(
            "{count} CNI call{plural} no longer followed, without a reported end: more than {OPEN_MAX} ran at once"
        );
        let lost = Lost {
            source: Lost::CNI.to_owned(),
            reason: "too-many-calls".to_owned(),
            count: count.to_string(),
            from: Some(self.wall_time(from)),
            to: Some(self.wall_time(until)),
        };
        let event =
            Event { lost: Some(lost), ..self.event(now, Kind::EventsLost, Severity::Warning, message) };
        self.emit(event);
    }

    /// `end`: how it ended, and whether it was of another sandbox than the current one. Returns the number of the event.
    fn emit_cni(&mut self, at: BootNs, call: &Call, end: Option<(CniExit, Option<bool>)>) -> Option<u64> {
        let exit = end.map(|(exit, _)| exit);
        let has_failed = exit.is_some_and(|exit| exit.status != 0);
        let cni = Cni { stale: end.and_then(|(_, stale)| stale), ..call.cni() };
        let CniExec { command, container_id, pod, .. } = &call.first;
        let (kind, severity) = match (exit, has_failed) {
            (None, _) => (Kind::CniStarted, Severity::Debug),
            (Some(_), true) => (Kind::CniFinished, Severity::Notice),
            (Some(_), false) if *command == CniCommand::Check => (Kind::CniFinished, Severity::Debug),
            (Some(_), false) => (Kind::CniFinished, Severity::Info),
        };
        let target = container_id.as_deref().map(|id| self.cni_target(id, pod.as_ref()));
        let message = message(&cni, target.as_ref(), &call.actor);
        let event = Event {
            actor: Some(call.actor.clone()),
            target: target.map(Shared::new),
            cni: Some(Box::new(cni)),
            ..self.event(at, kind, severity, message)
        };
        self.emit(event)
    }

    /// The container that a call is about. Who made the call is root of the node, and tells the pod.
    fn cni_target(&self, id: &str, named: Option<&CniPod>) -> Target {
        if let Some(facts) = self.containers.get(id) {
            let mut target = self.target_of(facts);
            let is_named = |pod: &Pod| named.is_some_and(|named| is_same(pod, named));
            if let Some(pod) = target.pod.as_mut().filter(|pod| pod.claimed && is_named(pod)) {
                pod.claimed = false;
            }
            return target;
        }
        let container = Container::of_id(id.to_owned());
        let pod = named.and_then(|named| {
            Some(Pod {
                namespace: Some(named.namespace.clone()),
                name: Some(named.name.clone()),
                uid: named.uid.clone()?,
                sandbox_id: Some(id.to_owned()),
                ..Pod::default()
            })
        });
        let join = if self.runtimes().is_any() { Join::Missed } else { Join::Ok };
        Target { container: Some(container), pod, ..Target::unknown(join) }
    }
}

/// Only the uid tells one pod from the next one of its name.
fn is_same(pod: &Pod, named: &CniPod) -> bool {
    pod.namespace.as_ref() == Some(&named.namespace)
        && pod.name.as_ref() == Some(&named.name)
        && named.uid.as_ref() == Some(&pod.uid)
}

fn message(cni: &Cni, target: Option<&Target>, actor: &Actor) -> String {
    let of = match (cni.pod_name(), &cni.container_id, target) {
        (Some(pod), Some(id), _) => format!(" of sandbox {} of pod {}", short_id(id), name(&pod)),
        (Some(pod), None, _) => format!(" of pod {}", name(&pod)),
        (None, _, Some(target)) => owner_phrase(target),
        (None, _, None) => String::new(),
    };
    let plugin = name(cni.plugin.rsplit('/').next().unwrap_or(&cni.plugin));
    let by = actor_phrase(actor);
    let end = match (cni.signal, cni.exit_code) {
        (Some(signal), _) => format!("failed, signal {signal} ended plugin {plugin}"),
        (None, Some(0)) => "succeeded".to_owned(),
        (None, Some(code)) => format!("failed, plugin {plugin} exited with code {code}"),
        (None, None) => "began".to_owned(),
    };
    let stale = match cni.stale {
        Some(true) => ", which is not its current sandbox,",
        _ => "",
    };
    format!("CNI {}{of}{stale} {end}: {by}", cni.command)
}
