//! Puts the pipeline together: sources to the core, the core to the sinks, its questions back to the sources.

mod programs;
mod signals;

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::allocator::{self, Weather};
use crate::clock::{boot_now, realtime_offset_ns};
use crate::config::{Config, NODE_NAME, Runtimes, SOCKETS, STATE_DIR};
use crate::core::{Core, Output, Resume};
use crate::event::{Event, Kind};
use crate::holders::worker::{Limits, Refused, Scanner};
use crate::holders::{self, ScanRequest};
use crate::metrics::{Metrics, MetricsError};
use crate::observation::{Fact, HolderReport, NsInum, Observation, ProcessState, Request, Source};
use crate::query::history::LiveHistory;
use crate::recording::format::Writer;
use crate::recording::recorder::{Record, RecordError, Recorder};
use crate::recording::settings::FlightLimits;
use crate::settings::Settings;
use crate::sinks::api::{self, ApiError, Identity, Memory, Question, SOCKET};
use crate::sinks::health::Health;
use crate::sinks::http::{HttpError, Server};
use crate::sinks::listen::LISTEN;
use crate::sinks::stdout::{self, FORMAT, Format, MIN_SEVERITY};
use crate::sinks::store::{self, Started, StoreConfig};
use crate::sinks::{Filter, Sinks};
use crate::sources::bpf::hooks::{HOOKS, Standing};
use crate::sources::bpf::{self, Hooks};
use crate::sources::netlink::{NetlinkConfig, NetlinkError, NetlinkSource};
use crate::sources::procfs::Proc;
use crate::sources::procfs::own::Own;
use crate::sources::runtime;
use crate::sources::{Sender, seen};
use crate::store::{Archive, Limits as StoreLimits};

use programs::Reading;
use signals::Signals;

/// Observations that wait for the core; beyond that the kernel buffers.
const QUEUE: usize = 4096;
/// Observations taken in one go.
const BATCH: usize = 256;
/// Namespaces that wait to be read.
const NETNS_QUEUE: usize = 1024;
/// Heartbeat of the core, for health and for what expires.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// What the kernel programs get to hand over what they have.
const READ_DRAIN: Duration = Duration::from_millis(500);
/// What the sinks get to write what they have.
const DRAIN: Duration = Duration::from_secs(3);
/// What recordings get for the same.
const RECORDER_DRAIN: Duration = Duration::from_secs(1);
/// The wall clock is slewed all the time; an event's time follows once it is off by this much.
const CLOCK_STEP_NS: u64 = 10_000;

/// Why the daemon could not start, or ended.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A required source cannot be had.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Kernel programs were required and cannot run.
    #[error("kernel programs are required and cannot run: {0}")]
    Ebpf(String),
    /// Metrics cannot be registered.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// What was to be recorded cannot be.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Queries cannot be answered.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A thread or signal handler cannot be had.
    #[error("cannot start {what}")]
    Start {
        /// What was to be started.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// A required source ended.
    #[error("the netlink source ended")]
    SourceEnded,
}

/// What the command line adds to the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Version and revision of the program.
    pub version: &'static str,
    /// Git revision.
    pub revision: &'static str,
    /// Whether kernel programs log.
    pub log_bpf: bool,
    /// Whether standard output is coloured.
    pub colour: bool,
    /// What is recorded besides the last minutes.
    pub record: Option<Record>,
}

/// Runs until a signal ends it, within a local task set. `reload` reads the configuration again.
///
/// # Errors
/// When something required cannot be had, at start or later.
pub async fn run(
    config: Config,
    options: Options,
    reload: impl Fn() -> Option<Config>,
) -> Result<(), DaemonError> {
    let mut own_files = vec![config.get(&STATE_DIR)];
    own_files.extend(options.record.as_ref().and_then(|record| std::path::absolute(&record.path).ok()));
    let own = Own::default().with_directories(own_files);
    let metrics = Arc::new(Metrics::new(options.version, options.revision, own)?);
    let health = Arc::new(Health::default());
    // A port in use is found out before anything is touched in the kernel.
    let _server = match &config.get(&LISTEN).0[..] {
        [] => None,
        listen => Some(Server::start(listen, Arc::clone(&metrics), Arc::clone(&health))?),
    };
    let proc = Proc::default();
    let boot_id = proc.boot_id();
    let memory = Arc::new(Memory::new(&config.get(&NODE_NAME), &boot_id, Arc::clone(&metrics)));
    let (asking, questions) = api::questions();
    let store_limits = StoreLimits::from_values(config.values());
    let older =
        store_limits.map(|_| Arc::new(Archive::behind(config.get(&STATE_DIR))) as Arc<dyn LiveHistory>);
    let identity = Identity {
        node: config.get(&NODE_NAME),
        version: options.version.to_owned(),
        revision: options.revision.to_owned(),
    };
    let _api = api::Server::start(&config.get(&SOCKET), identity, Arc::clone(&memory), older, asking)?;
    let mut signals = Signals::new()?;
    let (tx, mut rx) = mpsc::channel(QUEUE);

    let hooks = programs::load_hooks(&config, options.log_bpf)?;
    let neighbors_live = hooks.standings.iter().any(Standing::needs_neighbor_messages);
    let netlink =
        NetlinkSource::open(NetlinkConfig { neighbors_live, ..NetlinkConfig::default() }, proc.clone())?;
    let host_netns = netlink.host();
    let runtimes = config.get(&SOCKETS);
    let sockets = match &runtimes {
        Runtimes::Auto => runtime::default_sockets(),
        Runtimes::Sockets(sockets) => sockets.clone(),
    };

    let mut sources = BTreeMap::from([("netlink".to_owned(), false)]);
    sources.extend(HOOKS.iter().map(|hook| (hook.source(), false)));
    for (socket, label) in sockets.iter().zip(runtime::metric_labels(&sockets)) {
        metrics.name_source(socket.source(), label);
        // Where nobody named a runtime, a node without one is an everyday case.
        sources.insert(socket.source(), runtimes == Runtimes::Auto);
    }
    if store_limits.is_some() {
        sources.insert(store::NAME.to_owned(), false);
    }
    let store = store_limits
        .map(|limits| StoreConfig { directory: config.get(&STATE_DIR), limits, boot_id: boot_id.clone() })
        .map(|config| store::start(config, Arc::clone(&metrics), tx.clone()))
        .transpose()
        .map_err(|source| DaemonError::Start { what: "the event store", source })?;
    let previous_run = store.as_ref().map(|started| started.previous_run.clone()).unwrap_or_default();
    let policy = config.policy();
    let settings = Settings {
        node: config.get(&NODE_NAME),
        boot_id,
        version: options.version.to_owned(),
        host_netns,
        cmdline: policy.cmdline,
        incidents: policy.incidents,
        sources,
    };
    let resumed = previous_run.incidents.clone();
    let resume = Resume {
        last_seq: previous_run.last_seq,
        incidents: previous_run.incidents,
        pods: previous_run.pods,
    };
    let recorder = start_recorder(&config, options.record.as_ref(), &metrics)?;
    let core = Core::new(settings, resume);
    let scanner = holders::worker::spawn(proc.clone(), tx.clone(), Limits::default())
        .map_err(|source| DaemonError::Start { what: "the holder scan", source })?;
    let (netns_tx, netns_rx) = mpsc::channel(NETNS_QUEUE);
    let (mut sinks, store) = match store {
        Some(Started { store, status, .. }) => (Sinks::behind(store), Some(status)),
        None => (Sinks::default(), None),
    };
    let filter = Filter { min_severity: config.get(&MIN_SEVERITY) };
    let colour = options.colour && config.get(&FORMAT) == Format::Pretty;
    if let Some(queue) = stdout::start(config.get(&FORMAT), filter, colour, Arc::clone(&metrics))
        .map_err(|source| DaemonError::Start { what: "standard output", source })?
    {
        sinks.add(queue);
    }
    sinks.add(
        api::sink(Arc::clone(&memory), Arc::clone(&metrics))
            .map_err(|source| DaemonError::Start { what: "the memory of events", source })?,
    );

    let mut daemon = Daemon {
        core,
        recorder,
        metrics,
        health,
        sinks,
        scanner,
        netns: netns_tx,
        proc: proc.clone(),
        replies: VecDeque::new(),
        config,
        offset_ns: realtime_offset_ns(),
        weather: Weather::default(),
    };
    daemon.observe(seen(Fact::Clock { realtime_offset_ns: daemon.offset_ns }));
    if let Some(last_alive) = previous_run.alive {
        daemon.observe(seen(Fact::Restarted { last_alive }));
    }
    if let Some(status) = store {
        daemon.observe(seen(Fact::Source(status)));
    }
    for (incident, objects) in daemon.core.incidents() {
        daemon.metrics.resumed_incident(&incident, objects);
        let of_it = |event: &&Event| event.incident.as_ref().is_some_and(|known| known.id == incident.id);
        resumed.iter().filter(of_it).for_each(|event| memory.resume(event));
    }
    let reading = daemon.start_hooks(hooks, host_netns, &tx);
    let mut netlink = tokio::spawn(netlink.run(netns_rx, tx.clone()));
    for socket in sockets {
        tokio::task::spawn_local(socket.watch(proc.clone(), tx.clone()));
    }
    drop(tx);
    let ended = daemon.work(&mut rx, questions, &mut signals, &mut netlink, reload).await;
    daemon.drain(rx, reading).await;
    daemon.stop();
    ended
}

struct Daemon {
    core: Core,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    sinks: Sinks,
    scanner: Scanner,
    netns: mpsc::Sender<NsInum>,
    proc: Proc,
    /// Answers that are there at once.
    replies: VecDeque<Observation>,
    config: Config,
    offset_ns: i64,
    weather: Weather,
}

impl Daemon {
    async fn work(
        &mut self,
        rx: &mut mpsc::Receiver<Observation>,
        mut questions: mpsc::Receiver<Question>,
        signals: &mut Signals,
        netlink: &mut tokio::task::JoinHandle<()>,
        reload: impl Fn() -> Option<Config>,
    ) -> Result<(), DaemonError> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let deadline = self
                .core
                .deadline()
                .map(|at| Instant::now() + Duration::from_nanos(at.saturating_sub(boot_now())));
            tokio::select! {
                _ = rx.recv_many(&mut batch, BATCH) => {
                    let gauges_changed = batch.iter().any(changes_model_gauges);
                    for observation in batch.drain(..) {
                        self.observe(observation);
                    }
                    if gauges_changed {
                        self.update_model_gauges();
                    }
                }
                () = async { match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                } } => self.observe(seen(Fact::Tick)),
                _ = heartbeat.tick() => self.beat(),
                Some(question) = questions.recv() => {
                    // Whoever asked may have gone.
                    let _ = question.send(Box::new(self.core.state(boot_now())));
                }
                _ = signals.terminate.recv() => return Ok(()),
                _ = signals.interrupt.recv() => return Ok(()),
                _ = signals.hangup.recv() => if let Some(config) = reload() { self.reconfigure(&config) },
                _ = &mut *netlink => return Err(DaemonError::SourceEnded),
            }
        }
    }

    fn observe(&mut self, observation: Observation) {
        self.replies.push_back(observation);
        while let Some(observation) = self.replies.pop_front() {
            self.metrics.observation(&observation);
            self.recorder.record(&observation, &self.core);
            self.core.observe(observation);
            for output in self.core.take_output().collect::<Vec<_>>() {
                match output {
                    Output::Event(event) => self.tell(*event),
                    Output::Request(request) => self.ask(request),
                }
            }
        }
    }

    fn tell(&mut self, event: Event) {
        self.metrics.event(&event);
        self.recorder.event(&event);
        self.metrics.latency(&event, boot_now());
        if event.kind == Kind::DaemonReady {
            self.health.set_ready();
        }
        self.weather.event();
        self.sinks.offer(&Arc::new(event.into()));
    }

    fn ask(&mut self, request: Request) {
        match request {
            // A full queue costs a name: the event that waits is told without it.
            Request::Netns { netns } => {
                if self.netns.try_send(netns).is_err() {
                    tracing::warn!(netns, "too many namespaces wait to be read");
                }
            }
            Request::ProcessState { tgid } => {
                let alive = self.proc.is_alive(tgid);
                self.replies.push_back(seen(Fact::ProcessState(ProcessState { tgid, alive })));
            }
            Request::Holders { id, mntns, tgid, path, follow } => {
                let request = ScanRequest { id, mntns, tgid, path: path.clone(), follow };
                if let Err(refused) = self.scanner.request(request) {
                    self.metrics.holders_scan_skipped(match refused {
                        Refused::Full => "queue-full",
                        Refused::Ended => "ended",
                    });
                    self.replies.push_back(seen(Fact::Holders(Box::new(HolderReport::skipped(id, path)))));
                }
            }
        }
    }

    fn beat(&mut self) {
        let now = boot_now();
        let offset_ns = realtime_offset_ns();
        if offset_ns.abs_diff(self.offset_ns) > CLOCK_STEP_NS {
            self.offset_ns = offset_ns;
            self.observe(Observation {
                at: now,
                source: Source::Daemon,
                fact: Fact::Clock { realtime_offset_ns: offset_ns },
            });
        }
        self.observe(Observation { at: now, source: Source::Daemon, fact: Fact::Tick });
        self.metrics.incidents_discarded(self.core.incidents_discarded());
        self.health.tick(now);
        if self.weather.has_calmed() {
            allocator::give_back();
        }
    }

    fn update_model_gauges(&self) {
        let gauges = self.core.gauges();
        self.metrics.model(&gauges.containers, gauges.veths);
    }

    fn reconfigure(&mut self, config: &Config) {
        let mut settings = self.core.settings().clone();
        config.policy().apply_to(&mut settings);
        self.observe(seen(Fact::Settings(Box::new(settings))));
        if self.config.adopt(config) {
            tracing::warn!("configuration read again; what changed besides `cmdline` needs a restart");
        } else {
            tracing::info!("configuration read again");
        }
    }

    /// Starts to read the programs' records, and reports the rung of every hook.
    fn start_hooks(&mut self, hooks: Hooks, host_netns: NsInum, tx: &Sender) -> Option<Reading> {
        self.metrics.export_zero_losses(bpf::loss_reasons());
        let reading = hooks.programs.map(|programs| {
            let counts = programs.counts();
            self.metrics.set_kernel_counters(Box::new(move || counts()));
            Reading::start(programs, self.proc.clone(), host_netns, tx.clone())
        });
        for standing in &hooks.standings {
            self.observe(seen(Fact::Source(standing.status())));
        }
        reading
    }

    /// Takes what happened before the end, as far as it comes in time.
    async fn drain(&mut self, mut rx: mpsc::Receiver<Observation>, reading: Option<Reading>) {
        let mut read = pin!(async {
            if let Some(reading) = reading {
                reading.finish().await;
            }
        });
        let mut timeout = pin!(sleep(READ_DRAIN));
        loop {
            tokio::select! {
                Some(observation) = rx.recv() => self.observe(observation),
                () = &mut read => break,
                () = &mut timeout => break,
            }
        }
        // Others go on sending: what waits now is all that is taken.
        for _ in 0..rx.len() {
            let Ok(observation) = rx.try_recv() else { return };
            self.observe(observation);
        }
    }

    fn stop(mut self) {
        self.observe(seen(Fact::Stop));
        self.recorder.finish(&self.core, boot_now(), RECORDER_DRAIN);
        self.sinks.finish(DRAIN);
    }
}

/// Whether an observation can change the gauges of the model.
fn changes_model_gauges(observation: &Observation) -> bool {
    matches!(
        observation.fact,
        Fact::Container(_)
            | Fact::ContainerGone { .. }
            | Fact::RuntimeSnapshot { .. }
            | Fact::Link(_)
            | Fact::LinkGone { .. }
            | Fact::Netns(_)
    )
}

fn start_recorder(
    config: &Config,
    record: Option<&Record>,
    metrics: &Arc<Metrics>,
) -> Result<Recorder, RecordError> {
    // A path that is not Unicode cannot be shown; the rest of the pipeline does not mind it.
    let shown = serde_json::to_value(config).unwrap_or_default();
    let mut recorder = Recorder::new(Writer::this_build(shown), boot_now(), Arc::clone(metrics));
    if let Some(record) = record {
        recorder.add_file(record)?;
    }
    if let Some(limits) = FlightLimits::from_values(config.values()) {
        recorder.add_flight(&config.get(&STATE_DIR), &limits)?;
    }
    Ok(recorder)
}
