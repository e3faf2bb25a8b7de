//! CNI calls under way, folded from the plugins that they execute, and what such calls did to which sandbox.

use std::collections::{BTreeMap, VecDeque};

use kevtmon_event::{Actor, Cni, Shared};
use kevtmon_observation::{BootNs, CniCommand, CniExec, CniExit, CniNetns, CniPod, NsInum};
use kevtmon_types::clock::SECOND;
use serde::{Deserialize, Serialize};

mod sandboxes;

/// The next plugin of a chain begins within this time after the one before.
const CHAIN_NS: BootNs = SECOND / 2;
/// The loopback's plugin has ended, and another one has begun, after so long.
const LOOPBACK_NS: BootNs = SECOND;
/// A call whose end was not seen is forgotten after this time.
const FORGOTTEN_NS: BootNs = 3600 * SECOND;
/// Calls under way at most, and plugins of one of them.
pub const OPEN_MAX: usize = 256;
const PLUGINS_MAX: usize = 32;
/// Calls that have ended and whose namespace is still looked for at most.
const UNANSWERED_MAX: usize = 64;
/// Sandboxes at most; those that were heard of longest ago go first.
const SANDBOXES_MAX: usize = 2048;
/// Sandboxes are remembered this long.
const RETENTION_NS: BootNs = 24 * 3600 * SECOND;
/// Calls that are given up are told together, this long after the first of them.
const TELL_NS: BootNs = SECOND;

/// A process: ids are reused.
type Process = (u32, BootNs);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CniCalls {
    open: Vec<Call>,
    /// Calls that have ended before it was known where their `CNI_NETNS` leads to, the oldest first.
    unanswered: VecDeque<Call>,
    sandboxes: BTreeMap<String, Sandbox>,
    given_up: Option<GivenUp>,
    last_id: u64,
}

/// Calls for which there was no room: how they end is not told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    pub count: u64,
    /// When the first one of them was given up.
    pub from: BootNs,
    pub until: BootNs,
}

/// A call by a runtime or kubelet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Of the requests that it leads to.
    pub id: u64,
    /// What its first plugin was executed for.
    pub first: CniExec,
    /// The process of the plugin that [stands for the call](Call::has_better), or of the one that failed.
    pub actor: Shared<Actor>,
    /// The path of the former; of the first one, if there is none here.
    plugin: Option<String>,
    newest: Option<(Process, Shared<Actor>)>,
    /// Paths of its plugins.
    pub plugins: Vec<String>,
    pub started: BootNs,
    /// When the last plugin that has ended ended, and how.
    pub ended: Option<(BootNs, CniExit)>,
    /// The path of that plugin.
    pub ended_plugin: String,
    /// Where `CNI_NETNS` led to.
    pub netns: Option<NsInum>,
    pub events: Vec<u64>,
    pub is_told: bool,
    caller: Option<Process>,
    /// Plugins that the caller has executed and that run, with their paths; and the interface of each that it ever executed.
    running: Vec<(Process, String)>,
    seen: Vec<(String, Option<String>)>,
    /// Plugins that others of them execute.
    delegates: Vec<Process>,
    /// The first ones of all, those that have ended included.
    ran: Vec<Process>,
}

/// What calls did to a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    pub pod: Option<CniPod>,
    /// When the first `ADD` began.
    pub added: Option<BootNs>,
    /// Whether one has succeeded.
    pub is_added: bool,
    /// Path of the plugin that stands for the last one that has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// Its network namespace, as the last `ADD` named it.
    pub netns: Option<NsInum>,
    /// Calls of `DEL` that failed since one succeeded.
    pub failed: u64,
    /// The first and the last one of them.
    pub failed_from: Option<BootNs>,
    pub failed_until: Option<BootNs>,
    /// Calls of `DEL` while another sandbox of the pod was the current one.
    pub stale: u64,
    pub stale_at: Option<BootNs>,
    /// When the last `DEL` ended.
    pub deleted_at: Option<BootNs>,
    pub is_deleted: bool,
    seen: BootNs,
}

impl CniCalls {
    /// A plugin was executed by a process with these ancestors, the nearest first; the call, if it is the first one of it.
    pub fn started(
        &mut self,
        at: BootNs,
        exec: CniExec,
        ancestors: &[Process],
        actor: impl FnOnce() -> Actor,
    ) -> Option<&Call> {
        let process: Process = (exec.actor.key.tgid, exec.actor.key.start_ns);
        let caller = ancestors.first().copied();
        if self.open.iter().any(|call| call.runs(process)) {
            return None;
        }
        if let Some(call) = self.open.iter_mut().find(|call| ancestors.iter().any(|above| call.runs(*above)))
        {
            if call.delegates.len() < PLUGINS_MAX {
                call.delegates.push(process);
                call.note_ran(process);
            }
            return None;
        }
        let plugin = (exec.plugin.clone(), exec.ifname.clone());
        let is_next = |call: &&mut Call| {
            caller.is_some()
                && call.caller == caller
                && call.first.command == exec.command
                && call.first.container_id == exec.container_id
                && !call.seen.contains(&plugin)
                && call.plugins.len() < PLUGINS_MAX
        };
        if let Some(call) = self.open.iter_mut().find(is_next) {
            let actor = Shared::new(actor());
            if call.has_better(&exec.plugin) {
                (call.plugin, call.actor) = (Some(exec.plugin.clone()), actor.clone());
            }
            call.newest = Some((process, actor));
            call.plugins.push(exec.plugin.clone());
            call.seen.push(plugin);
            call.running.push((process, exec.plugin));
            call.note_ran(process);
            call.ended = None;
            return None;
        }
        if self.open.len() >= OPEN_MAX {
            self.open.remove(0);
            let given_up = self.given_up.get_or_insert(GivenUp { count: 0, from: at, until: at });
            (given_up.count, given_up.until) = (given_up.count + 1, given_up.until.max(at));
        }
        self.last_id += 1;
        self.note_start(at, &exec);
        self.open.push(Call {
            id: self.last_id,
            actor: Shared::new(actor()),
            plugin: None,
            newest: None,
            plugins: vec![exec.plugin.clone()],
            started: at,
            ended: None,
            ended_plugin: String::new(),
            netns: None,
            events: Vec::new(),
            is_told: false,
            caller,
            running: vec![(process, exec.plugin.clone())],
            seen: vec![plugin],
            delegates: Vec::new(),
            ran: vec![process],
            first: exec,
        });
        self.open.last()
    }

    /// A call whose beginning is to be told now: who calls the loopback's plugin first calls that of the network next.
    pub fn take_begun(&mut self, now: BootNs) -> Option<Call> {
        let call = self.open.iter_mut().find(|call| call.begins().is_some_and(|due| due <= now))?;
        call.is_told = true;
        Some(call.clone())
    }

    /// A process ended; the call, if that was its end.
    pub fn exited(&mut self, at: BootNs, exit: CniExit) -> Option<Call> {
        let process = (exit.tgid, exit.start_ns);
        let index = self.open.iter().position(|call| call.runs(process))?;
        let call = &mut self.open[index];
        call.delegates.retain(|delegate| *delegate != process);
        let running = call.running.iter().position(|(running, _)| *running == process)?;
        let (_, plugin) = call.running.remove(running);
        (call.ended, call.ended_plugin) = (Some((at, exit)), plugin);
        if exit.status != 0
            && let Some((_, actor)) = call.newest.take_if(|(newest, _)| *newest == process)
        {
            call.actor = actor;
        }
        // The caller executes no further plugin.
        (exit.status != 0).then(|| self.open.remove(index))
    }

    /// Removes and returns a call whose last plugin ended so long ago that none follows.
    pub fn take_ended(&mut self, now: BootNs) -> Option<Call> {
        let index = self.open.iter().position(|call| call.due().is_some_and(|due| due <= now))?;
        Some(self.open.remove(index))
    }

    /// When the next one of them is due, or what was given up.
    pub fn deadline(&self) -> Option<BootNs> {
        let given_up = self.given_up.as_ref().map(GivenUp::due);
        // That of others is told at once.
        let waiting = self.open.iter().filter(|call| is_loopback(call.named_plugin()));
        let begins = waiting.filter_map(Call::begins);
        self.open.iter().filter_map(Call::due).chain(begins).chain(given_up).min()
    }

    /// Removes and returns what was given up, if that is due, or in any case with `all`.
    pub fn take_given_up(&mut self, now: BootNs, all: bool) -> Option<GivenUp> {
        self.given_up.take_if(|given_up| all || given_up.due() <= now)
    }

    pub fn note_event(&mut self, id: u64, seq: u64) {
        let call = self.open.iter_mut().chain(&mut self.unanswered).find(|call| call.id == id);
        call.into_iter().for_each(|call| call.events.push(seq));
    }

    /// Where `CNI_NETNS` of a call led to, if it was found, and when the process began whose directory it was; the call, if
    /// that was its namespace already when it began.
    pub fn answered(&mut self, found: &CniNetns) -> Option<Call> {
        let ended = self.unanswered.iter().position(|call| call.id == found.id);
        let mut ended = ended.and_then(|index| self.unanswered.remove(index));
        let call = ended.as_mut().or_else(|| self.open.iter_mut().find(|call| call.id == found.id))?;
        // Another process has the id by now.
        let is_later = found.started_ns.is_some_and(|started| started > call.started);
        call.netns = found.netns.filter(|_| !is_later);
        let call = call.clone();
        if let (CniCommand::Add, Some(id), Some(netns)) =
            (call.first.command, &call.first.container_id, call.netns)
        {
            self.sandbox(call.started, id).netns = Some(netns);
        }
        call.netns.is_some().then_some(call)
    }

    /// Notes how a call ended; `stale`: whether [it is known to be](super::view::NodeView::is_stale).
    pub fn note_end(&mut self, at: BootNs, call: &Call, failed: bool, stale: bool) {
        if call.netns.is_none() && call.first.netns.is_some() {
            crate::bounded::push(&mut self.unanswered, UNANSWERED_MAX, call.clone());
        }
        let Some(id) = &call.first.container_id else { return };
        let sandbox = self.sandbox(at, id);
        match call.first.command {
            CniCommand::Add if !failed => {
                (sandbox.is_added, sandbox.plugin) = (true, Some(call.named_plugin().to_owned()));
            }
            CniCommand::Del => {
                (sandbox.deleted_at, sandbox.is_deleted) = (Some(at), !failed);
                if stale {
                    (sandbox.stale, sandbox.stale_at) = (sandbox.stale + 1, Some(at));
                }
                if failed {
                    sandbox.failed += 1;
                    sandbox.failed_from.get_or_insert(at);
                    sandbox.failed_until = Some(at);
                } else {
                    (sandbox.failed, sandbox.failed_from, sandbox.failed_until) = (0, None, None);
                }
            }
            CniCommand::Add | CniCommand::Check | CniCommand::Gc => {}
        }
    }

    pub fn get(&self, id: &str) -> Option<&Sandbox> {
        self.sandboxes.get(id)
    }

    /// Every sandbox that calls were made for, by id.
    pub fn sandboxes(&self) -> impl Iterator<Item = (&str, &Sandbox)> {
        self.sandboxes.iter().map(|(id, sandbox)| (id.as_str(), sandbox))
    }

    pub fn of_pod(&self, namespace: &str, name: &str) -> impl Iterator<Item = (&str, &Sandbox)> {
        self.sandboxes().filter(move |(_, sandbox)| sandbox.is_of(namespace, name))
    }

    /// Whether the `DEL` of a sandbox of a pod has failed, and none of that sandbox has succeeded since: the next sandbox of
    /// that name is its victim.
    pub fn has_failing_of(&self, namespace: &str, name: &str) -> bool {
        self.of_pod(namespace, name).any(|(_, sandbox)| sandbox.failed > 0)
    }

    /// Whether a sandbox is being deleted, or was less than `window` before a time.
    pub fn is_deleted_about(&self, id: &str, at: BootNs, window: BootNs) -> bool {
        let is_its = |call: &Call| {
            call.first.command == CniCommand::Del && call.first.container_id.as_deref() == Some(id)
        };
        let deleted_at = self.get(id).and_then(|known| known.deleted_at);
        self.open.iter().any(is_its) || deleted_at.is_some_and(|deleted| deleted.saturating_add(window) >= at)
    }

    pub fn is_being_added(&self, id: &str) -> bool {
        self.open.iter().any(|call| {
            call.first.command == CniCommand::Add && call.first.container_id.as_deref() == Some(id)
        })
    }

    /// The call in which a process, or one above it, was executed as a plugin.
    pub fn call_of(&self, actor: &Actor) -> Option<&Call> {
        let own = (actor.pid, Some(actor.start_time_ns.as_str()));
        let above = actor.ancestors.iter().map(|one| (one.pid, one.start_time_ns.as_deref()));
        let started = |(pid, start): (u32, Option<&str>)| Some((pid, start?.parse().ok()?));
        let processes: Vec<Process> = std::iter::once(own).chain(above).filter_map(started).collect();
        let mut calls = self.open.iter().chain(&self.unanswered);
        calls.find(|call| call.ran.iter().any(|ran| processes.contains(ran)))
    }

    /// The call under way for a network namespace, if it is the only one.
    pub fn only_call_in(&self, netns: NsInum) -> Option<&Call> {
        let mut calls = self.open.iter().filter(|call| call.netns == Some(netns));
        calls.next().filter(|_| calls.next().is_none())
    }

    pub fn is_other_being_deleted(&self, pod: &CniPod, id: &str) -> bool {
        self.open.iter().any(|call| {
            let of_it = call.first.pod.as_ref();
            call.first.command == CniCommand::Del
                && call.first.container_id.as_deref() != Some(id)
                && of_it.is_some_and(|of_it| of_it.namespace == pod.namespace && of_it.name == pod.name)
        })
    }

    /// A network namespace has ended: its number is another one's.
    pub fn forget_netns(&mut self, netns: NsInum) {
        let of_it = self.sandboxes.values_mut().filter(|sandbox| sandbox.netns == Some(netns));
        of_it.for_each(|sandbox| sandbox.netns = None);
    }

    pub fn expire(&mut self, now: BootNs) {
        self.open.retain(|call| call.started.saturating_add(FORGOTTEN_NS) > now);
        self.unanswered.retain(|call| call.started.saturating_add(FORGOTTEN_NS) > now);
        self.sandboxes.retain(|_, sandbox| sandbox.seen.saturating_add(RETENTION_NS) > now);
    }

    fn note_start(&mut self, at: BootNs, exec: &CniExec) {
        let Some(id) = &exec.container_id else { return };
        let sandbox = self.sandbox(at, id);
        if exec.pod.is_some() {
            sandbox.pod.clone_from(&exec.pod);
        }
        if exec.command == CniCommand::Add {
            sandbox.added.get_or_insert(at);
            sandbox.is_deleted = false;
        }
    }

    fn sandbox(&mut self, at: BootNs, id: &str) -> &mut Sandbox {
        if self.sandboxes.len() >= SANDBOXES_MAX && !self.sandboxes.contains_key(id) {
            let oldest = self.sandboxes.iter().min_by_key(|(_, sandbox)| sandbox.seen);
            if let Some(id) = oldest.map(|(id, _)| id.clone()) {
                self.sandboxes.remove(&id);
            }
        }
        let sandbox = self.sandboxes.entry(id.to_owned()).or_default();
        sandbox.seen = at;
        sandbox
    }
}

impl GivenUp {
    fn due(&self) -> BootNs {
        self.from.saturating_add(TELL_NS)
    }
}

impl Sandbox {
    /// Whether it is of the pod of this name, or of an earlier one.
    pub fn is_of(&self, namespace: &str, name: &str) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.namespace == namespace && pod.name == name)
    }
}

impl Call {
    /// Whether the next plugin stands for the call rather than those before it: the one that makes the interface, which is
    /// the first of a chain, and the last where it is taken down. The loopback's comes before them all, and makes none.
    fn has_better(&self, next: &str) -> bool {
        !is_loopback(next) && (self.first.command == CniCommand::Del || is_loopback(self.named_plugin()))
    }

    fn named_plugin(&self) -> &str {
        self.plugin.as_ref().unwrap_or(&self.first.plugin)
    }

    fn note_ran(&mut self, process: Process) {
        if self.ran.len() < 2 * PLUGINS_MAX {
            self.ran.push(process);
        }
    }

    fn runs(&self, process: Process) -> bool {
        self.running.iter().any(|(running, _)| *running == process) || self.delegates.contains(&process)
    }

    /// As in an event.
    pub fn cni(&self) -> Cni {
        let CniExec { command, container_id, netns, ifname, pod, truncated, .. } = &self.first;
        let ended = self.ended.filter(|(_, exit)| self.running.is_empty() || exit.status != 0);
        let exit = ended.map(|(_, exit)| exit);
        let has_failed = exit.is_some_and(|exit| exit.status != 0);
        Cni {
            command: command.name().to_owned(),
            container_id: container_id.clone(),
            netns: netns.clone(),
            netns_inode: self.netns,
            ifname: ifname.clone(),
            namespace: pod.as_ref().map(|pod| pod.namespace.clone()),
            pod: pod.as_ref().map(|pod| pod.name.clone()),
            plugin: if has_failed { self.ended_plugin.clone() } else { self.named_plugin().to_owned() },
            plugins: if self.plugins.len() > 1 { self.plugins.clone() } else { Vec::new() },
            exit_code: exit.and_then(|exit| exit.code()),
            signal: exit.and_then(|exit| exit.signal()),
            duration_ms: ended.map(|(at, _)| at.saturating_sub(self.started) / 1_000_000),
            stale: None,
            truncated: *truncated,
        }
    }

    fn begins(&self) -> Option<BootNs> {
        let waits = if is_loopback(self.named_plugin()) { LOOPBACK_NS } else { 0 };
        (!self.is_told && self.ended.is_none()).then(|| self.started.saturating_add(waits))
    }

    fn due(&self) -> Option<BootNs> {
        let (at, _) = self.ended.filter(|_| self.running.is_empty())?;
        Some(at.saturating_add(CHAIN_NS))
    }
}

fn is_loopback(plugin: &str) -> bool {
    plugin.rsplit('/').next() == Some("loopback")
}

#[cfg(test)]
mod tests;
