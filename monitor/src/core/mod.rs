//! Joins each observation with the model of the node and says it as an event.
//!
//! Synchronous, single-threaded, no I/O, no clock: time comes with the observations. So the same
//! observations always give the same events. What only I/O can tell is asked for with a [`Request`]; the
//! event waits for the answer, but not for long.

use std::collections::{BTreeMap, VecDeque};

use crate::diagnose::{self, Change, Engine, SCAN_ID};
use crate::event::{Event, Kind, Severity, WallClock};
use crate::node::containers::Containers;
use crate::node::mounts::BusyMounts;
use crate::node::namespaces::Namespaces;
use crate::node::pods::PodNames;
use crate::node::tasks::Tasks;
use crate::observation::{BootNs, Fact, NsInum, Observation, Request, Source, SourceStatus, source_or};
use crate::settings::Settings;

mod container;
mod held;
mod incident;
mod join;
mod link;
mod mount;
mod neighbor;
mod saved;
pub mod state;
mod status;

use held::Held;
pub use saved::Saved;

/// What was remembered for long enough is looked for this often.
const SWEEP_NS: u64 = 1_000_000_000;

/// What an earlier run of the daemon left.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resume {
    /// Sequence number of the last event of this boot.
    pub last_seq: u64,
    /// The newest `incident.*` event of each incident of this boot that is open: it goes on under its id.
    pub incidents: Vec<Event>,
    /// Names of pods that were there, or went less than a day ago.
    pub pods: PodNames,
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
    pods: PodNames,
    held: Held<neighbor::Wait, neighbor::HeldChange>,
    busy_mounts: BusyMounts,
    holder_scans: mount::HolderScans,
    engine: Engine,
    /// Open incidents of an earlier run, until the clock is known.
    resumed: Vec<Event>,
    swept: BootNs,
    /// Of the observation that is being joined.
    source: Source,
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
        let engine = new_engine(&settings);
        Self::with(settings, engine, Saved::from(resume))
    }

    /// Takes one observation.
    pub fn observe(&mut self, Observation { at, source, fact }: Observation) {
        self.source = source;
        if !self.resumed.is_empty() && !matches!(fact, Fact::Clock { .. }) {
            self.resume_incidents();
        }
        match fact {
            Fact::Clock { realtime_offset_ns } => self.set_clock(realtime_offset_ns),
            Fact::Task(task) => self.tasks.insert(*task),
            Fact::Neighbor(change) => self.neighbor(at, *change),
            Fact::Umount(attempt) => self.umount(at, *attempt),
            Fact::Holders(report) if report.id & SCAN_ID != 0 => self.diagnose(at, &Change::Holders(&report)),
            Fact::Holders(report) => self.holders(*report),
            Fact::Netns(snapshot) => self.snapshot(at, *snapshot),
            Fact::NetnsGone { netns } => {
                self.answered(at, &neighbor::Wait::Netns(netns), false);
                self.namespaces.remove(netns);
                self.containers.forget_netns(netns);
                self.diagnose(at, &Change::NetnsGone(netns));
            }
            Fact::Link(link) => self.link(at, *link),
            Fact::LinkGone { netns, ifindex, moved_to } => self.link_gone(at, netns, ifindex, moved_to),
            Fact::Route(route) => self.route(at, route),
            Fact::RouteGone(route) => self.route_gone(at, &route),
            Fact::Address(address) => self.namespaces.put_address(address),
            Fact::AddressGone(address) => self.namespaces.remove_address(&address),
            Fact::Container(facts) => self.container(at, *facts),
            Fact::ContainerGone { id, source } => self.container_gone(at, &id, &source),
            Fact::RuntimeSnapshot { runtime, source, read, containers } => {
                let source = source_or(&source, &runtime);
                self.runtime_snapshot(at, read.unwrap_or(at), source, containers);
            }
            Fact::ProcessState(state) => {
                self.answered(at, &neighbor::Wait::Process(state.tgid), state.alive);
            }
            Fact::Source(status) => self.source(at, status),
            Fact::Lost(loss) => self.lost(at, &loss),
            Fact::Restarted { last_alive } => self.restarted(at, last_alive),
            Fact::Resync { .. } => {}
            Fact::Tick => self.tick(at),
            Fact::Settings(settings) => self.set(*settings),
            Fact::Stop => self.stop(at),
        }
    }

    /// What was said since the last call.
    pub fn take_output(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.out.drain(..)
    }

    /// When a [`Fact::Tick`] is due at the latest, if anything waits.
    #[must_use]
    pub fn deadline(&self) -> Option<BootNs> {
        let deadlines = [self.held.deadline(), self.holder_scans.deadline(), self.engine.deadline()];
        deadlines.into_iter().flatten().min()
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

    fn tick(&mut self, now: BootNs) {
        self.release_overdue(now);
        self.expire_mounts(now);
        if self.swept.saturating_add(SWEEP_NS) <= now {
            self.swept = now;
            self.containers.expire(now);
            self.pods.expire(now);
        }
        self.diagnose_tick(now);
    }

    /// An event without objects; the caller adds what it is about and hands it to [`Self::emit`].
    fn event(&self, at: BootNs, kind: Kind, severity: Severity, message: String) -> Event {
        Event {
            time: self.wall_time(at),
            at,
            source: self.source,
            boot_id: self.settings.boot_id.clone(),
            node: self.settings.node.clone(),
            ..Event::new(kind, severity, message)
        }
    }

    /// Says an event, and after it what the diagnoses make of it.
    fn emit(&mut self, mut event: Event) {
        self.seq += 1;
        event.seq = self.seq;
        self.diagnose_event(&event);
        self.out.push_back(Output::Event(Box::new(event)));
        self.tell_incidents();
    }

    /// Says an event that is itself a diagnosis.
    fn push(&mut self, mut event: Event) {
        self.seq += 1;
        event.seq = self.seq;
        self.out.push_back(Output::Event(Box::new(event)));
    }

    fn request(&mut self, request: Request) {
        self.out.push_back(Output::Request(request));
    }

    /// Thresholds are those that the diagnoses began with.
    fn set(&mut self, settings: Settings) {
        let incidents = std::mem::take(&mut self.settings.incidents);
        self.settings = Settings { incidents, ..settings };
    }

    fn clock(&self) -> WallClock {
        WallClock { offset_ns: self.realtime_offset_ns }
    }

    fn wall_time(&self, at: BootNs) -> String {
        self.clock().text(at)
    }
}

fn new_engine(settings: &Settings) -> Engine {
    Engine::new(diagnose::all(&settings.incidents), &settings.node, &settings.boot_id)
}

#[cfg(test)]
pub(crate) use tests::saved::assert_same;

#[cfg(test)]
mod tests;
