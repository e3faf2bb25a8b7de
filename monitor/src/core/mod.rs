//! Joins each observation with the model of the node and says it as an event.
//!
//! Synchronous, single-threaded, no I/O, no clock: time comes with the observations. So the same
//! observations always give the same events. What only I/O can tell is asked for with a [`Request`]; the
//! event waits for the answer, but not for long.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::config::Cmdline;
use crate::event::{Event, Kind, Severity};
use crate::node::containers::Containers;
use crate::node::namespaces::Namespaces;
use crate::node::tasks::Tasks;
use crate::observation::{BootNs, Fact, NsInum, Observation, Request, SourceStatus};

mod container;
mod join;
mod link;
mod mount;
mod neighbor;
mod status;

/// What does not change while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Node name.
    pub node: String,
    /// Identity of this boot.
    pub boot_id: String,
    /// Version of the program.
    pub version: String,
    /// The host's network namespace.
    pub host_netns: NsInum,
    /// Whose command lines are shown.
    pub cmdline: Cmdline,
    /// Sources that must have reported before the daemon is ready; `true` where absence is an everyday
    /// case and no degradation.
    pub sources: BTreeMap<String, bool>,
}

/// What an earlier run of the daemon left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Sequence number of the last event of this boot.
    pub last_seq: u64,
}

/// What the core says.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// An event for the sinks.
    Event(Box<Event>),
    /// A question for the sources.
    Request(Request),
}

/// The joining stage.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    realtime_offset_ns: i64,
    seq: u64,
    tasks: Tasks,
    namespaces: Namespaces,
    containers: Containers,
    statuses: BTreeMap<String, SourceStatus>,
    ready: bool,
    held: VecDeque<neighbor::Held>,
    mounts: mount::BusyMounts,
    out: VecDeque<Output>,
}

/// Numbers of the model that metrics show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// Containers by runtime and state.
    pub containers: std::collections::HashMap<(String, crate::observation::ContainerState), i64>,
    /// veth devices of the host.
    pub veths: i64,
}

impl Core {
    /// An empty model that goes on where an earlier run of this boot ended.
    #[must_use]
    pub fn new(settings: Settings, resume: Resume) -> Self {
        Self {
            settings,
            realtime_offset_ns: 0,
            seq: resume.last_seq,
            tasks: Tasks::default(),
            namespaces: Namespaces::default(),
            containers: Containers::default(),
            statuses: BTreeMap::new(),
            ready: false,
            held: VecDeque::new(),
            mounts: mount::BusyMounts::default(),
            out: VecDeque::new(),
        }
    }

    /// Takes one observation.
    pub fn observe(&mut self, Observation { at, fact }: Observation) {
        match fact {
            Fact::Clock { realtime_offset_ns } => self.realtime_offset_ns = realtime_offset_ns,
            Fact::Task(task) => self.tasks.insert(*task),
            Fact::Neighbor(change) => self.neighbor(at, *change),
            Fact::Umount(attempt) => self.umount(at, *attempt),
            Fact::Holders(report) => self.holders(*report),
            Fact::Netns(snapshot) => self.snapshot(at, *snapshot),
            Fact::NetnsGone { netns } => {
                self.answered(at, &neighbor::Wait::Netns(netns), false);
                self.namespaces.remove(netns);
                self.containers.forget_netns(netns);
            }
            Fact::Link(link) => self.link(at, *link),
            Fact::LinkGone { netns, ifindex, moved_to } => self.link_gone(at, netns, ifindex, moved_to),
            Fact::Route(route) => self.route(at, route),
            Fact::RouteGone(route) => self.route_gone(at, &route),
            Fact::Address(address) => self.namespaces.put_address(address),
            Fact::AddressGone(address) => self.namespaces.remove_address(&address),
            Fact::Container(facts) => self.container(at, *facts),
            Fact::ContainerGone { id } => self.container_gone(at, &id),
            Fact::RuntimeSnapshot { runtime, containers } => self.runtime_snapshot(at, &runtime, containers),
            Fact::ProcessState(state) => {
                self.answered(at, &neighbor::Wait::Process(state.tgid), state.alive);
            }
            Fact::Source(status) => self.source(at, status),
            Fact::Lost(loss) => self.lost(at, &loss),
            Fact::Resync { .. } => {}
            Fact::Tick => self.tick(at),
        }
    }

    /// What was said since the last call.
    pub fn take_output(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.out.drain(..)
    }

    /// When a [`Fact::Tick`] is due at the latest, if anything waits.
    #[must_use]
    pub fn deadline(&self) -> Option<BootNs> {
        self.held.iter().map(|held| held.deadline).chain(self.mounts.deadline()).min()
    }

    /// Whether the sources have all reported.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Numbers for metrics.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            containers: self.containers.counts(),
            veths: self.namespaces.count_links(self.settings.host_netns, "veth"),
        }
    }

    /// Whose command lines are shown from now on.
    pub fn set_cmdline(&mut self, cmdline: Cmdline) {
        self.settings.cmdline = cmdline;
    }

    fn tick(&mut self, now: BootNs) {
        self.release_overdue(now);
        self.expire_mounts(now);
        self.containers.expire(now);
    }

    /// An event without objects; the caller adds what it is about and hands it to [`Self::emit`].
    fn event(&self, at: BootNs, kind: Kind, severity: Severity, message: String) -> Event {
        Event {
            time: self.wall_time(at),
            at,
            boot_id: self.settings.boot_id.clone(),
            node: self.settings.node.clone(),
            ..Event::new(kind, severity, message)
        }
    }

    fn emit(&mut self, mut event: Event) {
        self.seq += 1;
        event.seq = self.seq;
        self.out.push_back(Output::Event(Box::new(event)));
    }

    fn request(&mut self, request: Request) {
        self.out.push_back(Output::Request(request));
    }

    /// RFC 3339, UTC, nanoseconds. A time outside the calendar is a broken clock: it shows as the epoch.
    fn wall_time(&self, at: BootNs) -> String {
        let since_epoch = i128::from(at) + i128::from(self.realtime_offset_ns);
        let time = jiff::Timestamp::from_nanosecond(since_epoch).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        format!("{time:.9}")
    }
}

#[cfg(test)]
mod tests;
