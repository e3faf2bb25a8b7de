//! Opens the listeners, then the sources.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kevtmon_core::Resume;
use kevtmon_history::query::history::LiveHistory;
use kevtmon_history::recording::format::Writer;
use kevtmon_history::recording::recorder::{Record, RecordError, Recorder};
use kevtmon_history::recording::settings::FlightLimits;
use kevtmon_history::store::{Archive, Limits, PreviousRun};
use kevtmon_holders::{rbd as rbd_uses, unmounters};
use kevtmon_metrics::Metrics;
use kevtmon_observation::{Fact, NsInum, SourceStatus};
use kevtmon_probe::LoadedHooks;
use kevtmon_probe::hooks::{HOOKS, HookStatus};
use kevtmon_probe::iterators;
use kevtmon_server::sinks::api::{self, Identity, Memory, Question, SOCKET};
use kevtmon_server::sinks::health::Health;
use kevtmon_server::sinks::listen::LISTEN;
use kevtmon_server::sinks::prometheus;
use kevtmon_sources::kubelet::{POD_LABELS, PODS_API};
use kevtmon_sources::logs::{self, Logs};
use kevtmon_sources::netlink::{NetlinkConfig, NetlinkSource, follow_host_neighbors, follow_host_sysctls};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::own::Own;
use kevtmon_sources::procfs::readers::Readers;
use kevtmon_sources::rbd::SYSFS;
use kevtmon_sources::runtime::{self, RuntimeSocket};
use kevtmon_sources::{
    Barrier, Sender, components, ipam, kubelet_pods, neighbor_tables, observed_now, pod_remains, rbd,
};
use kevtmon_types::build_info::{VERSION, revision};
use kevtmon_types::clock::boot_now;
use tokio::sync::{broadcast, mpsc};
use tokio::task::{JoinHandle, spawn_local};

use super::programs::{self, Reading};
use super::starts::Starts;
use super::{Daemon, DaemonError, Options};
use crate::config::{Config, NODE_NAME, Runtimes, SOCKETS, STATE_DIR};

/// Files that the daemon holds open by itself.
pub(super) fn own_files(config: &Config, options: &Options) -> Vec<PathBuf> {
    let record = options.record.as_ref().and_then(|record| std::path::absolute(&record.path).ok());
    [config.get(&STATE_DIR)].into_iter().chain(record).collect()
}

/// The listeners for metrics and queries, and what answers them.
pub(super) struct Servers {
    pub(super) health: Arc<Health>,
    pub(super) memory: Arc<Memory>,
    pub(super) boot_id: String,
    /// Requests for the state of the core.
    pub(super) questions: mpsc::Receiver<Question>,
    /// They listen until these are dropped.
    pub(super) _open: (Option<prometheus::Server>, api::Server),
}

impl Servers {
    pub(super) fn start(
        config: &Config,
        options: &Options,
        metrics: &Arc<Metrics>,
        own: Own,
    ) -> Result<Self, DaemonError> {
        let health = Arc::new(Health::default());
        let metrics_server = match &config.get(&LISTEN).0[..] {
            [] => None,
            listen => {
                let web = options.web.clone();
                Some(prometheus::Server::start(listen, Arc::clone(metrics), Arc::clone(&health), web)?)
            }
        };
        let boot_id = Proc::default().boot_id();
        let memory = Arc::new(Memory::new(&config.get(&NODE_NAME), &boot_id, Arc::clone(metrics)));
        let (asking, questions) = api::questions();
        let older = Limits::from_values(config.values())
            .map(|_| Arc::new(Archive::behind(config.get(&STATE_DIR))) as Arc<dyn LiveHistory>);
        let identity = Identity {
            node: config.get(&NODE_NAME),
            version: VERSION.to_owned(),
            revision: revision().to_owned(),
            state_dir: config.get(&STATE_DIR),
            capabilities_at_start: own.effective_capabilities(),
        };
        let path = config.get(&SOCKET);
        let server = api::Server::start(&path, identity, Arc::clone(&memory), older, asking, own)?;
        Ok(Self { health, memory, boot_id, questions, _open: (metrics_server, server) })
    }
}

/// The sources: opened, but not delivering yet.
pub(super) struct Sources {
    hooks: LoadedHooks,
    netlink: NetlinkSource,
    sockets: Vec<RuntimeSocket>,
    /// Sockets that may appear later.
    later: Vec<RuntimeSocket>,
    /// Whether a node without a runtime is normal.
    runtime_optional: bool,
    runtime_options: runtime::Options,
    logs: Option<Logs>,
}

impl Sources {
    pub(super) fn open(
        config: &Config,
        log_bpf: bool,
        starts: &Starts,
        readers: &Readers,
    ) -> Result<Self, DaemonError> {
        let hooks = programs::load_hooks(config, log_bpf, starts)?;
        let neighbors_live = hooks.statuses.iter().any(HookStatus::needs_neighbor_messages);
        let netlink_config = NetlinkConfig { neighbors_live, ..NetlinkConfig::default() };
        let netlink = NetlinkSource::open(netlink_config, readers.clone())?;
        let runtimes = config.get(&SOCKETS);
        let runtime_optional = runtimes == Runtimes::Auto;
        let (sockets, later) = match runtimes {
            Runtimes::Auto => runtime::default_sockets(),
            Runtimes::Sockets(sockets) => (sockets, Vec::new()),
        };
        let pod_labels = Arc::new(config.get(&POD_LABELS));
        let runtime_options =
            runtime::Options { is_guess: runtime_optional, pod_labels, ..runtime::Options::default() };
        let logs = Logs::open(config.values());
        Ok(Self { hooks, netlink, sockets, later, runtime_optional, runtime_options, logs })
    }

    /// Takes containers that the runtimes are to be asked about.
    pub(super) fn wanted_containers(&self) -> broadcast::Sender<String> {
        self.runtime_options.wanted.clone()
    }

    pub(super) fn host_netns(&self) -> NsInum {
        self.netlink.host()
    }

    /// The sources that the daemon waits for before it is ready; true where one may be missing without being a
    /// degradation.
    pub(super) fn names(&self, metrics: &Metrics, sinks: &[&'static str]) -> BTreeMap<String, bool> {
        let mut names = BTreeMap::from([("netlink".to_owned(), false)]);
        names.extend(HOOKS.iter().map(|hook| (hook.source(), false)));
        // What it finds without the programs is the same.
        names.insert(iterators::SOURCE.to_owned(), true);
        names.extend(self.logs.is_some().then(|| (logs::NAME.to_owned(), false)));
        let all: Vec<RuntimeSocket> = self.sockets.iter().chain(&self.later).cloned().collect();
        for (index, (socket, label)) in all.iter().zip(runtime::metric_labels(&all)).enumerate() {
            if index < self.sockets.len() {
                metrics.name_source(socket.source(), label);
                names.insert(socket.source(), self.runtime_optional);
            } else {
                metrics.name_later_source(socket.source(), label);
            }
        }
        names.extend(sinks.iter().map(|name| ((*name).to_owned(), false)));
        names
    }

    pub(super) fn start(
        self,
        daemon: &mut Daemon,
        netns: mpsc::Receiver<NsInum>,
        barriers: mpsc::Receiver<Barrier>,
        tx: Sender,
    ) -> (Option<Reading>, JoinHandle<()>) {
        let host_netns = self.host_netns();
        let reading = daemon.start_hooks(self.hooks, host_netns, &tx);
        let netlink = tokio::spawn(self.netlink.run(netns, barriers, tx.clone()));
        follow_host_neighbors(tx.clone());
        follow_host_sysctls(tx.clone());
        neighbor_tables::follow(daemon.readers.proc(), tx.clone());
        if let Some(logs) = self.logs {
            logs.start(tx.clone());
        }
        for socket in self.sockets {
            spawn_local(socket.watch(self.runtime_options.clone(), daemon.readers.clone(), tx.clone()));
        }
        for socket in self.later {
            spawn_local(socket.watch_once_there(
                self.runtime_options.clone(),
                daemon.readers.clone(),
                tx.clone(),
            ));
        }
        (reading, netlink)
    }
}

/// The recorder, and what it cannot do.
pub(super) fn start_recorder(
    config: &Config,
    record: Option<&Record>,
    metrics: &Arc<Metrics>,
    core: &Sender,
) -> Result<(Recorder, Option<SourceStatus>), RecordError> {
    // A path that is not Unicode cannot be serialized; everything else works with it.
    let shown = serde_json::to_value(config).unwrap_or_default();
    let core = core.clone();
    let tell = move |status| {
        // The core ends together with its queue.
        let _ = core.blocking_send(observed_now(Fact::Source(status)));
    };
    let recorder = Recorder::new(Writer::this_build(shown), boot_now(), Arc::clone(metrics));
    let (mut recorder, mut failure) = (recorder.telling(tell), None);
    if let Some(record) = record {
        recorder.add_file(record)?;
    }
    if let Some(limits) = FlightLimits::from_values(config.values()) {
        failure = recorder.add_flight(&config.get(&STATE_DIR), &limits)?;
    }
    Ok((recorder, failure))
}

impl Daemon {
    /// Starts what looks at the state of the node from time to time.
    pub(super) fn follow_state(&mut self) {
        let (readers, observations) = (&self.readers, &self.observations);
        self.kubelets.look_and_send(readers, observations);
        self.components = Some(components::start(readers.clone(), observations.clone()));
        unmounters::start(readers.clone(), observations.clone());
        let sysfs = self.config.get(&SYSFS).0;
        self.rbd_uses = Some(rbd_uses::start(readers.clone(), sysfs.clone(), observations.clone()));
        rbd::start(readers.clone(), sysfs, observations.clone());
        ipam::start(self.config.get(&ipam::DIRECTORY).0, readers.clone(), observations.clone());
        kubelet_pods::start(&self.config.get(&PODS_API), readers.clone(), observations.clone());
        let kubelets = self.kubelets.clone();
        self.pods_wanted = Some(pod_remains::start(readers.clone(), kubelets, observations.clone()));
    }
}

/// What the core goes on from.
pub(super) fn resume(previous: &PreviousRun) -> Resume {
    Resume {
        last_seq: previous.last_seq,
        incidents: previous.incidents.clone(),
        episodes: previous.episodes.clone(),
        pods: previous.pods.clone(),
        kept: previous.kept.clone(),
        realtime_offset_ns: previous.realtime_offset_ns,
    }
}
