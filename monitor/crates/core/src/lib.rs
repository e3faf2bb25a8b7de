//! Joins each observation with the model of the node and emits events.
//!
//! Synchronous and single-threaded; does no I/O and reads no clock, since each observation carries its time. So the
//! same observations always give the same events. What only I/O can find out is requested from the sources with a
//! [`Request`]; the event is held back until the answer arrives, or half a second at most.

#[cfg(test)]
extern crate self as kevtmon_core;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kevtmon_event::{Event, Kind, Severity, WallClock};
use kevtmon_observation::{
    BootNs, Fact, IpamFiles, KnownNetns, NsInum, Observation, Request, Source, SourceStatus,
};
use kevtmon_types::settings::Settings;

use crate::diagnose::{Engine, ModelChange};
use crate::node::cni::CniCalls;
use crate::node::components::Components;
use crate::node::containers::Containers;
use crate::node::fuse_mounts::FuseMounts;
pub use crate::node::gateways::KnownEntry;
use crate::node::host_sysctls::HostSysctls;
use crate::node::ipam::Ipam;
pub use crate::node::kept::Kept;
use crate::node::kubelet::Kubelets;
use crate::node::link_acts::LinkActs;
use crate::node::mounts::BusyMounts;
use crate::node::namespaces::{NamespaceQuota, Namespaces};
use crate::node::own_mounts::RuntimeDirectories;
use crate::node::pod_remains::PodsOnNode;
use crate::node::pods::PodNames;
use crate::node::quotes::Quotes;
pub use crate::node::rbd::LastUser;
use crate::node::rbd::MappedImages;
use crate::node::rbd_asked::AskedImages;
use crate::node::rbd_calls::MapCalls;
use crate::node::rbd_locks::LockCalls;
use crate::node::tasks::Tasks;
use crate::node::tenant::{Accounts, Budget, budget, tenant};

pub mod diagnose;
pub mod node;

mod bounded;
mod cni;
mod component;
mod container;
mod fold;
mod fuse_mounts;
pub mod held;
mod incident;
mod join;
mod kubelet;
pub mod leak;
mod link;
mod log;
mod mount;
mod neighbor;
mod pending;
mod pod_remains;
mod rbd;
mod recreation;
mod route;
mod rule;
mod saved;
pub mod state;
mod status;
mod sysctl;
mod tenants;
#[cfg(test)]
mod test_support;
mod throttled;
mod unmounter;
mod veth;

pub use mount::Benign;
use pending::Pending;
pub use saved::Saved;

const EXPIRY_INTERVAL_NS: u64 = 1_000_000_000;

/// State of the previous run of the daemon that the core resumes from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resume {
    /// Sequence number of the last event of this boot.
    pub last_seq: u64,
    /// The newest `incident.*` event of each open incident of this boot; the incident stays open under its id.
    pub incidents: Vec<Event>,
    /// The last episode of incidents that closed in this boot, the latest at the end.
    pub episodes: Vec<(String, u32)>,
    /// Names of pods that exist or were deleted less than a day ago.
    pub pods: PodNames,
    /// What the previous run of this boot kept.
    pub kept: Kept,
    /// The offset of its wall clock, which its incidents have their times of; 0 if that is unknown.
    pub realtime_offset_ns: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    Event(Box<Event>),
    Request(Request),
}

#[derive(Debug)]
pub struct Core {
    settings: Settings,
    realtime_offset_ns: i64,
    seq: u64,
    tasks: Tasks,
    namespaces: Namespaces,
    fuse_mounts: FuseMounts,
    host_sysctls: HostSysctls,
    quota: NamespaceQuota,
    containers: Containers,
    runtime_directories: RuntimeDirectories,
    components: Components,
    statuses: BTreeMap<String, SourceStatus>,
    /// Sources whose degradation was emitted, and whose recovery was not.
    degraded: BTreeSet<String>,
    ready: bool,
    pods: PodNames,
    kubelets: Kubelets,
    pods_on_node: PodsOnNode,
    ipam: Ipam,
    rbd: MappedImages,
    rbd_locks: LockCalls,
    rbd_asked: AskedImages,
    rbd_calls: MapCalls,
    quotes: Quotes,
    cni: CniCalls,
    kubelet_lookup: kubelet::KubeletLookup,
    pending_neighbors: Pending<neighbor::Awaited, neighbor::PendingChange>,
    busy_mounts: BusyMounts,
    holder_scans: mount::HolderScans,
    engine: Engine,
    folding: fold::Folding,
    /// Events of the observation that is being processed that were only counted.
    folded: Vec<Event>,
    accounts: Accounts,
    /// Open incidents of the previous run, until the clock is known.
    to_resume: Vec<Event>,
    /// Gateways that the previous run knew, of namespaces that are not read yet.
    previous_entries: Vec<KnownEntry>,
    last_expiry: BootNs,
    /// Until when times of before the wall clock was set are told to be off.
    clock_set_until: Option<BootNs>,
    ended_netns: VecDeque<(BootNs, NsInum)>,
    link_acts: LinkActs,
    /// When the previous run of this boot was last alive.
    previously_alive: Option<BootNs>,
    /// Source of the observation that is being processed.
    source: Source,
    /// Whether it is a namespace that was read again, and what differs is told.
    is_resync: bool,
    output: VecDeque<Output>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelGauges {
    /// Containers by runtime and state.
    pub containers: std::collections::HashMap<(String, kevtmon_observation::ContainerState), i64>,
    /// veth devices of the host.
    pub veths: i64,
    /// Readings of users' namespaces for which there was no room, since the start.
    pub refused_namespaces: u64,
    /// Default routes that are not kept.
    pub routes_omitted: u64,
}

impl Core {
    /// A core with an empty model that continues the previous run of this boot.
    pub fn new(settings: Settings, resume: Resume) -> Self {
        let engine = new_engine(&settings);
        Self::with_state(settings, engine, Saved::from(resume))
    }

    pub fn observe(&mut self, Observation { at, source, fact }: Observation) {
        self.source = source;
        self.folded.clear();
        if !self.to_resume.is_empty() && !matches!(fact, Fact::Clock { .. }) {
            self.resume_incidents();
        }
        match fact {
            Fact::Clock { realtime_offset_ns } => self.set_clock(at, realtime_offset_ns),
            Fact::Task(task) => self.tasks.insert(*task),
            Fact::Neighbor(change) => self.neighbor(at, *change),
            Fact::Umount(attempt) => self.umount_below_known_root(at, *attempt),
            Fact::CniExec(exec) => self.cni_exec(at, *exec),
            Fact::CniExit(exit) => self.exec_ended(at, exit),
            Fact::SignalSent(sent) => self.signal_sent(at, &sent),
            Fact::FuseMounts(found) => self.fuse_mounts(at, found),
            Fact::CniNetns(found) => self.cni_netns(at, found),
            Fact::Kubelet(facts) => self.kubelet(at, facts),
            Fact::SandboxCheckpoints(found) => self.diagnose(at, &ModelChange::SandboxCheckpoints(&found)),
            Fact::NfsMounts(found) => self.diagnose(at, &ModelChange::NfsMounts(&found)),
            Fact::Obstacle(found) => self.diagnose(at, &ModelChange::Obstacle(&found)),
            Fact::VethPeers(found) => self.veth_peers(at, found),
            Fact::HostNeighbors(entries) => self.diagnose(at, &ModelChange::HostNeighbors(&entries)),
            Fact::NeighborTables(tables) => self.diagnose(at, &ModelChange::NeighborTables(&tables)),
            Fact::NeighborCreator(creator) => self.neighbor_creator(at, &creator),
            Fact::HostSysctls { sysctls, all } => self.sysctls(at, sysctls, all),
            Fact::PodRoutes { id, elsewhere } => self.pod_routes(at, id, &elsewhere),
            Fact::Holders(report) => self.holders(at, *report),
            Fact::MountPresence(presence) => self.mount_presence(at, &presence),
            Fact::DetachedUsers { id, reports } => self.detached_users(at, id, reports),
            Fact::Netns(snapshot) => self.snapshot(at, *snapshot),
            Fact::NetnsGone { netns } => self.netns_gone(at, netns),
            Fact::Link(link) => self.link(at, *link),
            Fact::LinkAct(act) => self.link_acts.links.put(at, *act),
            Fact::RouteAct(act) => self.route_act(at, *act),
            Fact::SysctlWrite(write) => self.sysctl_write(at, *write),
            Fact::LladdrAct(act) => self.link_acts.put_lladdr(at, *act),
            Fact::LinkGone { netns, ifindex, moved_to } => self.link_gone(at, netns, ifindex, moved_to),
            Fact::RouteAsked { route, replaces } => self.namespaces.ask(&route, replaces),
            Fact::Route(route) => self.route(at, route),
            Fact::RouteGone(route) => self.route_gone(at, &route),
            Fact::Rule(rule) => self.rule_told(at, &rule, true),
            Fact::RuleGone(rule) => self.rule_told(at, &rule, false),
            Fact::NetnsHeard { netns, until } => self.namespaces.set_heard(netns, until),
            Fact::NetnsMissed { since } => self.namespaces.set_all_stale(at, since),
            Fact::NetnsStale { netns, told } => self.namespaces.set_stale(at, netns, told),
            Fact::Address(address) => self.address(at, address),
            Fact::AddressGone(address) => self.address_gone(at, &address),
            Fact::Container(facts) => self.container(at, *facts),
            Fact::ContainerGone { id, source } => self.container_gone(at, &id, &source),
            Fact::RuntimeSnapshot { source, read, containers, .. } => {
                self.runtime_snapshot(at, read.unwrap_or(at), &source, containers);
            }
            Fact::RuntimeDirectories { source, directories } => {
                self.runtime_directories.put(source, directories);
            }
            Fact::ProcessState(it) => self.answered(at, &neighbor::Awaited::Process(it.tgid), it.alive),
            Fact::Components { components } => self.components(at, components),
            Fact::Unmounters { unmounters } => self.unmounters(at, unmounters),
            Fact::PodRemains { pods } => self.pod_remains(at, pods),
            Fact::PodRemainsUnread => self.pods_on_node.is_read = false,
            Fact::KubeletPods { pods, all } => self.kubelet_pods(at, pods, all),
            Fact::Ipam(files) => self.ipam_files(at, files),
            Fact::IpamUnread => self.ipam.is_complete = false,
            Fact::RbdImages(found) => self.rbd_images(at, found),
            Fact::RbdUses(found) => self.rbd_uses(at, &found),
            Fact::RbdExec(exec) => self.rbd_exec(at, *exec),
            Fact::ContainerStart(start) => self.container_start(at, &start),
            Fact::Log(line) => self.log_line(at, *line),
            Fact::MountCopies(found) => self.mount_copies(at, *found),
            Fact::ComponentExecuted { tgid } => self.request(Request::Component { tgid }),
            Fact::ComponentExited(exit) => self.component_exited(at, &exit),
            Fact::Source(status) => self.source(at, status),
            Fact::Lost(loss) => self.lost(at, &loss),
            Fact::Throttled(throttled) => self.throttled(at, &throttled),
            Fact::Restarted { last_alive } => self.restarted(at, last_alive),
            Fact::Resync { .. } | Fact::Malformed { .. } | Fact::Unrecorded { .. } => {}
            Fact::Tick => self.tick(at),
            Fact::Settings(settings) => self.update_settings(*settings),
            Fact::Stop => self.stop(at),
        }
    }

    pub fn take_output(&mut self) -> impl Iterator<Item = Output> + '_ {
        self.output.drain(..)
    }

    /// Events of the last observation that were over the budget of an unprivileged account or of a container: they have no
    /// number, and are only counted.
    pub fn folded(&self) -> &[Event] {
        &self.folded
    }

    /// When the next [`Fact::Tick`] is due at the latest, if anything is pending.
    pub fn deadline(&self) -> Option<BootNs> {
        let deadlines = [
            self.pending_neighbors.deadline(),
            self.kubelet_lookup.deadline(),
            self.cni.deadline(),
            self.holder_scans.deadline(),
            self.engine.deadline(),
            self.folding.due,
        ];
        deadlines.into_iter().flatten().min()
    }

    pub fn kept(&self) -> Kept {
        Kept { gateways: self.known_gateways(), rbd_users: self.rbd.last_users() }
    }

    /// The gateways, for the next run to compare; before the node is read also those that this run was to compare.
    pub fn known_gateways(&self) -> Vec<KnownEntry> {
        let mut known = self.namespaces.known_gateways();
        for (key, fault) in self.engine.kept() {
            let is_it = |entry: &&mut KnownEntry| {
                (entry.netns, entry.ifindex, entry.address) == (key.netns, key.ifindex, key.address)
            };
            if let Some(entry) = known.iter_mut().find(is_it) {
                entry.suspected = Some(fault);
            }
        }
        if !self.ready {
            known.extend_from_slice(&self.previous_entries);
        }
        known
    }

    /// What the kernel programs are to know of a namespace: it is in the model, and the host's or a container's.
    pub fn known_netns(&self, netns: NsInum) -> Option<KnownNetns> {
        let namespace = self.namespaces.get(netns)?;
        if namespace.foreign_userns && self.containers.in_netns(netns).is_none() {
            return None;
        }
        let in_use = &namespace.in_use;
        let others = namespace.gateways().map(|(ifindex, address, _)| (ifindex, address));
        let others = others.filter(|gateway| !in_use.contains(gateway));
        Some(KnownNetns {
            foreign_userns: namespace.foreign_userns,
            gateways: in_use.iter().copied().chain(others).collect(),
            tunnels: namespace.tunnels.hops().collect(),
        })
    }

    pub fn host_mount_namespaces(&self) -> impl Iterator<Item = NsInum> {
        self.kubelets.host_namespaces()
    }

    /// Where the kubelets and runtimes look for CNI plugins.
    pub fn cni_dirs(&self) -> impl Iterator<Item = &str> {
        self.components.cni_dirs()
    }

    /// The kubelets and runtimes that run, by process and its start.
    pub fn components_running(&self) -> impl Iterator<Item = (u32, BootNs)> {
        self.components.running.iter().map(|facts| facts.key())
    }

    /// The namespaces of all containers that live.
    pub fn container_namespaces(&self) -> impl Iterator<Item = NsInum> {
        self.containers.live_netns().map(|(netns, _)| netns)
    }

    /// Whether every source has reported its status.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    pub fn gauges(&self) -> ModelGauges {
        ModelGauges {
            containers: self.containers.counts(),
            veths: self.namespaces.count_links(self.settings.host_netns, "veth"),
            refused_namespaces: self.quota.total,
            routes_omitted: self.namespaces.routes_omitted(),
        }
    }

    fn tick(&mut self, now: BootNs) {
        self.emit_overdue(now);
        self.process_overdue_umounts(now);
        self.go_on_with_calls(now);
        self.expire_mounts(now);
        if self.last_expiry.saturating_add(EXPIRY_INTERVAL_NS) <= now {
            self.last_expiry = now;
            self.containers.expire(now);
            self.pods.expire(now);
            self.cni.expire(now);
            self.rbd_locks.expire(now);
            self.rbd_asked.expire(now);
            self.tell_refusals_left_out(now);
            self.rbd_calls.expire(now);
            self.quotes.expire(now);
        }
        self.tell_clock(now);
        self.diagnose_tick(now);
        self.tell_folded(now, false);
        self.tell_refused(now, false);
        self.tell_given_up_calls(now, false);
    }

    /// An event without objects; the caller adds them and passes it to [`Self::emit`].
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

    /// Emits an event and the incident events that result from it; returns its number, unless it is over the budget of
    /// its account.
    fn emit(&mut self, mut event: Event) -> Option<u64> {
        if event.target.as_ref().is_some_and(|target| target.is_claimed()) {
            event.severity = event.severity.min(Severity::CLAIMED_MAX);
        }
        let tenant = tenant(&event, &mut self.accounts);
        if let Some(budget) = budget(&event, &tenant, self.settings.host_netns) {
            let rate = match budget {
                Budget::User => self.settings.user_events,
                Budget::Container => self.settings.container_events,
            };
            if !self.folding.admits(rate, budget, &tenant.name, &event) {
                if budget == Budget::Container {
                    // Without a number it is no evidence, but what it does to the container is seen.
                    self.diagnose_event(&event);
                    self.emit_incidents();
                }
                self.folded.push(event);
                return None;
            }
        }
        self.seq += 1;
        let seq = self.seq;
        event.seq = seq;
        self.diagnose_event(&event);
        event.tenant = tenant;
        self.output.push_back(Output::Event(Box::new(event)));
        self.emit_incidents();
        Some(seq)
    }

    /// Emits an incident event, which the diagnoses do not get.
    fn emit_incident(&mut self, mut event: Event) {
        self.seq += 1;
        event.seq = self.seq;
        event.tenant = tenant(&event, &mut self.accounts);
        self.output.push_back(Output::Event(Box::new(event)));
    }

    fn request(&mut self, request: Request) {
        self.output.push_back(Output::Request(request));
    }

    /// Reservations of addresses: no events, but what an incident is found by.
    fn ipam_files(&mut self, at: BootNs, files: IpamFiles) {
        self.ipam.apply(at, files);
        self.diagnose(at, &ModelChange::Ipam);
    }

    /// Thresholds keep their values: the diagnoses read them only when they are created.
    fn update_settings(&mut self, settings: Settings) {
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
mod tests;
