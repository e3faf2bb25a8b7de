//! Assembles and runs the pipeline: observations from the sources to the core, events from the core to the sinks,
//! requests from the core to the sources.

mod heartbeat;
mod lanes;
mod leaks;
mod order;
mod programs;
mod reload;
mod requests;
mod service_manager;
mod signals;
mod starts;
mod startup;
mod surroundings;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kevtmon_core::diagnose::KINDS;
use kevtmon_core::{Core, Output};
use kevtmon_event::{Event, Kind, LastParties};
use kevtmon_history::recording::recorder::{Record, RecordError, Recorder};
use kevtmon_history::store::PreviousRun;
use kevtmon_holders::rbd as rbd_uses;
use kevtmon_holders::worker::{Limits, Scanner};
use kevtmon_metrics::{IncidentSeries, Metrics, MetricsError};
use kevtmon_observation::{Fact, NsInum, Observation, SourceStatus};
use kevtmon_server::sinks::api::{ApiError, Memory, Question};
use kevtmon_server::sinks::health::Health;
use kevtmon_server::sinks::prometheus::HttpError;
use kevtmon_server::sinks::{self, Context, Running, Sinks, StartError};
use kevtmon_server::web_config::WatchedConfig;
use kevtmon_sources::beat::{self, at_beat};
use kevtmon_sources::kubelet::{KubeletFinder, ROOTS};
use kevtmon_sources::netlink::NetlinkError;
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::own::Own;
use kevtmon_sources::procfs::readers::Readers;
use kevtmon_sources::{Barrier, Sender, observed_now, pod_remains};
use kevtmon_types::build_info::{VERSION, revision};
use kevtmon_types::clock::{boot_now, realtime_offset_ns};
use kevtmon_types::settings::{EventRate, Settings};
use lanes::Touched;
use programs::Reading;
use reload::Reload;
use service_manager::ServiceManager;
use signals::Signals;
use starts::Starts;
use startup::{Servers, Sources, own_files, resume, start_recorder};
use surroundings::{node_root, own_cgroups, own_mounts};
use thiserror::Error;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, interval, sleep, sleep_until};

use crate::config::{Config, NODE_NAME, STATE_DIR};
use crate::privilege;

/// Capacity of the core's queue of observations; beyond that the kernel buffers.
const QUEUE: usize = 4096;
/// Observations received at once.
const BATCH: usize = 256;
/// Capacity of the queue of namespaces to read.
const NETNS_QUEUE: usize = 1024;
/// Interval of the core's heartbeat, for health checks and expiry.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Between two ticks of the core: a deadline that a mistake leaves in the past costs no processor.
const TICK_PAUSE: Duration = Duration::from_millis(1);
/// How long the remaining records of the probes are read at shutdown.
const READ_DRAIN: Duration = Duration::from_millis(500);
/// How long sinks may write their queues at shutdown.
const DRAIN: Duration = Duration::from_secs(3);
/// How long the recorder may write its queue at shutdown.
const RECORDER_DRAIN: Duration = Duration::from_secs(1);
/// The core's wall clock is updated when it is off by more than this, since NTP slews the clock all the time.
const CLOCK_STEP_NS: u64 = 10_000;

/// Why the daemon could not start, or ended.
#[derive(Debug, Error)]
pub enum DaemonError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("kernel programs are required and cannot run: {0}")]
    Ebpf(String),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Sink(#[from] StartError),
    #[error("cannot start {what}")]
    Start { what: &'static str, source: std::io::Error },
    #[error("the netlink source ended")]
    SourceEnded,
}

/// Options of the command line that are not part of the configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether kernel programs log.
    pub log_bpf: bool,
    /// Whether standard output is coloured.
    pub colour: bool,
    /// Recording file, besides the flight recorder.
    pub record: Option<Record>,
    /// TLS and authentication of metrics.
    pub web: Option<Arc<WatchedConfig>>,
}

/// Runs the daemon in a local task set until SIGINT or SIGTERM. `reload` reads the configuration again.
pub async fn run(
    config: Config,
    options: Options,
    reload: impl Fn() -> reload::Outcome + Clone + Send + 'static,
) -> Result<(), DaemonError> {
    let own = Own::default().with_directories(own_files(&config, &options));
    let private_mntns = own.private_mntns();
    let metrics = Arc::new(metrics(own.clone())?);
    let (tx, mut rx) = mpsc::channel(QUEUE);
    // First, so that a port in use is reported before any program is loaded.
    let Servers { health, memory, boot_id, questions, _open } =
        Servers::start(&config, &options, &metrics, own)?;
    let mut signals = Signals::new()?;
    beat::limit(config.get(&beat::MAX_INTERVAL));
    let readers = Readers::reporting(Proc::default(), tx.clone(), Arc::clone(&metrics));
    let starts = Starts::count(&config);
    let sources = Sources::open(&config, options.log_bpf, &starts, &readers)?;
    // No reader was started yet: each has what this thread has.
    privilege::keep_what_running_needs(sinks::connects(config.values()));
    let Running { sinks, sources: sink_sources, statuses, previous_run } = sinks::start(&Context {
        settings: config.values(),
        state_dir: config.get(&STATE_DIR),
        boot_id: &boot_id,
        colour: options.colour,
        metrics: &metrics,
        core: &tx,
        memory: &memory,
    })?;
    let settings = Settings {
        node: config.get(&NODE_NAME),
        boot_id,
        version: VERSION.to_owned(),
        host_netns: sources.host_netns(),
        cmdline: config.policy().cmdline,
        incidents: config.policy().incidents,
        user_events: EventRate::of_users(config.values()),
        container_events: EventRate::of_containers(config.values()),
        sources: sources.names(&metrics, &sink_sources),
    };
    let (recorder, unrecorded) = start_recorder(&config, options.record.as_ref(), &metrics, &tx)?;
    let scanner = kevtmon_holders::worker::spawn(readers.clone(), tx.clone(), Limits::default())
        .map_err(|source| DaemonError::Start { what: "the holder scan", source })?;
    let (netns_tx, netns_rx) = mpsc::channel(NETNS_QUEUE);
    let (barriers, barriers_rx) = mpsc::channel(1);
    let kubelets = KubeletFinder::new(&config.get(&ROOTS));
    let mut daemon = Daemon {
        core: Core::new(settings, resume(&previous_run)),
        recorder,
        metrics,
        health,
        sinks,
        scanner,
        netns: netns_tx,
        barriers,
        acts: None,
        kubelets,
        observations: tx.clone(),
        readers,
        lanes: None,
        plugins: None,
        components: None,
        pods_wanted: None,
        wanted_containers: sources.wanted_containers(),
        leaks: None,
        rbd_uses: None,
        fuse_mounts: None,
        replies: VecDeque::new(),
        config,
        offset_ns: realtime_offset_ns(),
        gauges_changed: false,
        has_judged: false,
        leftovers: heartbeat::Leftovers::default(),
        last_parties: LastParties::default(),
        is_configured: true,
        starts,
        service_manager: ServiceManager::of_environment(),
    };
    let lacks = private_mntns.map(own_mounts).into_iter().chain(own_cgroups()).chain(node_root());
    let statuses = statuses.into_iter().chain(lacks).chain(unrecorded).collect();
    daemon.resume(&previous_run, statuses, &memory);
    let (reading, mut netlink) = sources.start(&mut daemon, netns_rx, barriers_rx, tx);
    let ended = daemon.work(&mut rx, questions, &mut signals, &mut netlink, reload).await;
    daemon.service_manager.stopping();
    daemon.drain(rx, reading).await;
    daemon.stop(ended)
}

struct Daemon {
    core: Core,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    sinks: Sinks,
    scanner: Scanner,
    netns: mpsc::Sender<NsInum>,
    barriers: mpsc::Sender<Barrier>,
    /// The same of the records of acts on links; `None` where there are none.
    acts: Option<mpsc::Sender<Barrier>>,
    kubelets: KubeletFinder,
    observations: Sender,
    readers: Readers,
    /// What the kernel programs know of the model; `None` without programs.
    lanes: Option<kevtmon_probe::Lanes>,
    plugins: Option<kevtmon_probe::Plugins>,
    /// Takes processes that may be kubelets or runtimes; the next, containers that their runtimes are asked about.
    components: Option<mpsc::Sender<u32>>,
    /// Takes pods whose processes are to be listed.
    pods_wanted: Option<pod_remains::Wanted>,
    wanted_containers: broadcast::Sender<String>,
    /// Takes requests to look for mounts that are left.
    leaks: Option<mpsc::Sender<()>>,
    /// Takes the images whose uses are looked for.
    rbd_uses: Option<rbd_uses::Wanted>,
    /// Takes requests to look at FUSE file systems.
    fuse_mounts: Option<mpsc::Sender<()>>,
    /// Answers that need no waiting, and the observation that is processed.
    replies: VecDeque<Observation>,
    config: Config,
    offset_ns: i64,
    /// Whether the gauges of the model may be old.
    gauges_changed: bool,
    /// Whether a suspicion may have been judged that the store still has as one.
    has_judged: bool,
    leftovers: heartbeat::Leftovers,
    last_parties: LastParties,
    /// Whether the configuration could be used when it was read last.
    is_configured: bool,
    starts: Starts,
    service_manager: ServiceManager,
}

impl Daemon {
    /// Observes the clock, what the previous run left, and the status of the sinks.
    fn resume(&mut self, previous: &PreviousRun, statuses: Vec<SourceStatus>, memory: &Memory) {
        self.observe(observed_now(Fact::Clock { realtime_offset_ns: self.offset_ns }));
        // Before any source: without it every path is believed.
        self.observe(observed_now(Fact::Kubelet(self.kubelets.configured())));
        self.follow_state();
        self.follow_leaks(&previous.incidents);
        self.follow_fuse_mounts(&previous.incidents);
        if let Some(last_alive) = previous.alive {
            self.observe(observed_now(Fact::Restarted { last_alive }));
        }
        for status in statuses {
            self.observe(observed_now(Fact::Source(status)));
        }
        for (incident, objects) in self.core.incidents() {
            self.metrics.resumed_incident(&incident, objects);
            let of_it = |event: &&Event| event.incident.as_ref().is_some_and(|known| known.id == incident.id);
            previous.incidents.iter().filter(of_it).for_each(|event| memory.resume(event));
        }
    }

    async fn work(
        &mut self,
        rx: &mut mpsc::Receiver<Observation>,
        mut questions: mpsc::Receiver<Question>,
        signals: &mut Signals,
        netlink: &mut tokio::task::JoinHandle<()>,
        reload: impl Fn() -> reload::Outcome + Clone + Send + 'static,
    ) -> Result<(), DaemonError> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut reload = Reload::new(reload);
        let mut heartbeat = Instant::now();
        let mut watchdog = self.service_manager.watchdog_interval().map(interval);
        let mut earliest = Instant::now();
        loop {
            let in_time = |at: u64| Instant::now() + Duration::from_nanos(at.saturating_sub(boot_now()));
            let deadline = self.core.deadline().map(|at| in_time(at).max(earliest));
            tokio::select! {
                () = async { if batch.is_empty() { rx.recv_many(&mut batch, BATCH).await; } } => {
                    let mut later = Vec::new();
                    if batch.iter().any(order::is_of_neighbor) {
                        later = self.take_messages(&mut batch, rx).await;
                    } else if batch.iter().any(order::is_of_acts) {
                        later = self.take_acts(&mut batch, rx).await;
                    }
                    for observation in batch.drain(..) {
                        self.observe(observation);
                    }
                    batch = later;
                    if std::mem::take(&mut self.gauges_changed) {
                        self.update_model_gauges();
                    }
                }
                () = sleep_until(deadline.unwrap_or(earliest)), if deadline.is_some() => {
                    self.observe(observed_now(Fact::Tick));
                    earliest = Instant::now() + TICK_PAUSE;
                }
                () = sleep_until(heartbeat) => {
                    self.heartbeat();
                    heartbeat = at_beat(HEARTBEAT);
                }
                // By the core itself: one that does not come back to here is ended, and started again.
                Some(_) = async { Some(watchdog.as_mut()?.tick().await) } => self.service_manager.feed_watchdog(),
                Some(question) = questions.recv() => {
                    // The client may have disconnected.
                    let _ = question.send(Box::new(self.core.state(boot_now())));
                }
                _ = signals.terminate.recv() => return Ok(()),
                _ = signals.interrupt.recv() => return Ok(()),
                _ = signals.hangup.recv() => {
                    self.service_manager.reloading();
                    reload.begin();
                }
                config = reload.next() => {
                    self.reload(config);
                    self.service_manager.ready();
                }
                _ = &mut *netlink => return Err(DaemonError::SourceEnded),
            }
            if std::mem::take(&mut self.has_judged) {
                self.keep_state();
            }
        }
    }

    fn observe(&mut self, observation: Observation) {
        self.replies.push_back(observation);
        while let Some(observation) = self.replies.pop_front() {
            self.metrics.observation(&observation);
            if self.recorder.is_recording() {
                let tenant = self.core.tenant_of(&observation);
                self.recorder.record(&observation, &tenant, &self.core);
            }
            let touched = Touched::by(&observation.fact);
            let is_of_callers = matches!(
                observation.fact,
                Fact::Kubelet(_) | Fact::Components { .. } | Fact::ComponentExited(_) | Fact::FuseMounts(_)
            );
            self.gauges_changed |= changes_model_gauges(&observation);
            self.core.observe(observation);
            self.core.folded().iter().for_each(|event| self.metrics.folded(event));
            self.update_lanes(touched);
            if is_of_callers {
                self.update_plugins();
            }
            for output in self.core.take_output().collect::<Vec<_>>() {
                match output {
                    Output::Event(event) => self.emit(*event),
                    Output::Request(request) => self.handle_request(request),
                }
            }
        }
    }

    fn emit(&mut self, mut event: Event) {
        self.last_parties.share(&mut event);
        self.metrics.event(&event);
        self.recorder.event(&event);
        self.metrics.latency(&event, boot_now());
        if event.kind == Kind::DaemonReady {
            self.health.set_ready();
        }
        self.service_manager.event(&event);
        self.leftovers.storm_detector.event();
        self.has_judged |= event.incident.is_some() && event.neighbor.is_some();
        self.sinks.offer(&Arc::new(event.into()));
    }

    /// Hands the store what the next run is to know.
    fn keep_state(&self) {
        self.sinks.keep(self.core.kept());
    }

    fn update_model_gauges(&self) {
        let gauges = self.core.gauges();
        self.metrics
            .model(&gauges.containers, gauges.veths, gauges.refused_namespaces, gauges.routes_omitted);
    }

    /// Processes the observations made before shutdown, as far as they arrive in time.
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
        // Other sources are still sending: only what is queued now is processed.
        for _ in 0..rx.len() {
            let Ok(observation) = rx.try_recv() else { return };
            self.observe(observation);
        }
    }

    /// Gives back how it ended.
    fn stop(mut self, ended: Result<(), DaemonError>) -> Result<(), DaemonError> {
        if ended.is_ok() {
            self.starts.forget();
        }
        self.observe(observed_now(Fact::Stop));
        self.keep_state();
        self.recorder.finish(&self.core, boot_now(), RECORDER_DRAIN);
        self.sinks.finish(DRAIN);
        ended
    }
}

/// The metrics, with the series that are there before the first incident: not those of kinds that take a source that is off.
fn metrics(own: Own) -> Result<Metrics, MetricsError> {
    let metrics = Metrics::new(VERSION, revision(), own)?;
    let always = KINDS.into_iter().filter(|kind| !kind.is_optional);
    let series = always.map(|kind| IncidentSeries { kind: kind.name, severities: kind.severities });
    metrics.export_zero_incidents(series);
    Ok(metrics)
}

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
