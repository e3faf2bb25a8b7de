//! Puts the pipeline together: sources to the core, the core to the sinks, its questions back to the sources.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::config::{Config, Format, NeighborHook, Runtimes, UmountHook};
use crate::core::{Core, Output, Resume, Settings};
use crate::event::{Event, Kind};
use crate::holders::worker::{Limits, Refused, Scanner};
use crate::holders::{self, ScanRequest};
use crate::metrics::{Metrics, MetricsError};
use crate::observation::{
    Fact, HolderReport, Loss, NsInum, Observation, ProcessState, Request, SourceStatus,
};
use crate::sinks::health::Health;
use crate::sinks::http::{HttpError, Server};
use crate::sinks::{Filter, Sinks, stdout};
use crate::sources::bpf::{self, BpfConfig, BpfError, BpfSource};
use crate::sources::netlink::{NetlinkConfig, NetlinkError, NetlinkSource};
use crate::sources::procfs::Proc;
use crate::sources::procfs::own::Own;
use crate::sources::runtime::docker::{self, DockerConfig};
use crate::sources::{Sender, boot_now, realtime_offset_ns, seen};

/// Observations that wait for the core; beyond that the kernel buffers.
const QUEUE: usize = 4096;
/// Observations taken in one go.
const BATCH: usize = 256;
/// Namespaces that wait to be read.
const NETNS_QUEUE: usize = 1024;
/// Heartbeat of the core, for health and for what expires.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// What the sinks get to write what they have.
const DRAIN: Duration = Duration::from_secs(3);
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
    let own = Own::default().with_directories(vec![config.state_dir.clone()]);
    let metrics = Arc::new(Metrics::new(options.version, options.revision, own)?);
    let health = Arc::new(Health::default());
    // A port in use is found out before anything is touched in the kernel.
    let _server = match &config.listen[..] {
        [] => None,
        listen => Some(Server::start(listen, Arc::clone(&metrics), Arc::clone(&health))?),
    };
    let mut signals = Signals::new()?;
    let (tx, rx) = mpsc::channel(QUEUE);
    let proc = Proc::default();

    let (programs, missing) = load_programs(&config, options.log_bpf)?;
    let by_netlink = config.neighbor_hook != NeighborHook::Off
        && !programs.as_ref().is_some_and(|programs| programs.is_up(bpf::NEIGHBOR));
    let netlink = NetlinkSource::open(
        NetlinkConfig { neighbors_live: by_netlink, ..NetlinkConfig::default() },
        proc.clone(),
    )?;
    let host_netns = netlink.host();
    let sockets = docker_sockets(&config.runtimes);

    let mut sources = BTreeMap::from([
        ("netlink".to_owned(), false),
        (bpf::NEIGHBOR.to_owned(), false),
        (bpf::UMOUNT.to_owned(), false),
    ]);
    if !sockets.is_empty() {
        // Where nobody named a runtime, a node without one is an everyday case.
        sources.insert("docker".to_owned(), config.runtimes == Runtimes::Auto);
    }
    let settings = Settings {
        node: config.node_name.clone(),
        boot_id: boot_id(),
        version: options.version.to_owned(),
        host_netns,
        cmdline: config.cmdline,
        sources,
    };
    let core = Core::new(settings, Resume::default());
    let scanner = holders::worker::spawn(proc.clone(), tx.clone(), Limits::default())
        .map_err(|source| DaemonError::Start { what: "the holder scan", source })?;
    let (netns_tx, netns_rx) = mpsc::channel(NETNS_QUEUE);
    let mut sinks = Sinks::default();
    let filter = Filter { min_severity: config.min_severity };
    let colour = options.colour && config.format == Format::Pretty;
    if let Some(queue) = stdout::start(config.format, filter, colour, Arc::clone(&metrics))
        .map_err(|source| DaemonError::Start { what: "standard output", source })?
    {
        sinks.add(queue);
    }

    let mut daemon = Daemon {
        core,
        metrics,
        health,
        sinks,
        scanner,
        netns: netns_tx,
        proc: proc.clone(),
        replies: VecDeque::new(),
        config,
        offset_ns: realtime_offset_ns(),
    };
    daemon.observe(seen(Fact::Clock { realtime_offset_ns: daemon.offset_ns }));
    daemon.start_programs(programs, missing, by_netlink, host_netns, &tx);
    let mut netlink = tokio::spawn(netlink.run(netns_rx, tx.clone()));
    for socket in sockets {
        let config = DockerConfig::new(socket);
        tokio::task::spawn_local(docker::run(config, proc.clone(), tx.clone()));
    }
    drop(tx);
    let ended = daemon.work(rx, &mut signals, &mut netlink, reload).await;
    daemon.stop();
    ended
}

struct Daemon {
    core: Core,
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
}

impl Daemon {
    async fn work(
        &mut self,
        mut rx: mpsc::Receiver<Observation>,
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
                    let counted = batch.iter().any(changes_census);
                    for observation in batch.drain(..) {
                        self.observe(observation);
                    }
                    if counted {
                        self.take_census();
                    }
                }
                () = async { match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                } } => self.observe(seen(Fact::Tick)),
                _ = heartbeat.tick() => self.beat(),
                _ = signals.terminate.recv() => return Ok(()),
                _ = signals.interrupt.recv() => return Ok(()),
                _ = signals.hangup.recv() => if let Some(config) = reload() { self.reconfigure(config) },
                _ = &mut *netlink => return Err(DaemonError::SourceEnded),
            }
        }
    }

    fn observe(&mut self, observation: Observation) {
        self.replies.push_back(observation);
        while let Some(observation) = self.replies.pop_front() {
            self.metrics.observation(&observation);
            self.core.observe(observation);
            for output in self.core.take_output().collect::<Vec<_>>() {
                match output {
                    Output::Event(event) => self.tell(*event),
                    Output::Request(request) => self.ask(request),
                }
            }
        }
    }

    fn tell(&self, event: Event) {
        self.metrics.event(&event);
        if matches!(event.kind.name().split('.').next(), Some("neighbor" | "mount")) {
            let late = boot_now().saturating_sub(event.at);
            self.metrics.latency("bpf", Duration::from_nanos(late).as_secs_f64());
        }
        if event.kind == Kind::DaemonReady {
            self.health.set_ready();
        }
        self.sinks.offer(&Arc::new(event));
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
            Request::Holders { id, mntns, tgid, path } => {
                let request = ScanRequest { id, mntns, tgid, path: path.clone() };
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
            self.observe(Observation { at: now, fact: Fact::Clock { realtime_offset_ns: offset_ns } });
        }
        self.observe(Observation { at: now, fact: Fact::Tick });
        self.health.tick(now);
    }

    fn take_census(&self) {
        let census = self.core.census();
        self.metrics.model(&census.containers, census.veths);
    }

    fn reconfigure(&mut self, config: Config) {
        self.core.set_cmdline(config.cmdline);
        if (Config { cmdline: config.cmdline, ..self.config.clone() }) == config {
            tracing::info!("configuration read again");
        } else {
            tracing::warn!("configuration read again; what changed besides `cmdline` needs a restart");
        }
        self.config.cmdline = config.cmdline;
    }

    /// Starts to read the programs' records; tells of the hooks that have none.
    fn start_programs(
        &mut self,
        programs: Option<BpfSource>,
        missing: Vec<SourceStatus>,
        by_netlink: bool,
        host_netns: NsInum,
        tx: &Sender,
    ) {
        let mut statuses = missing;
        if let Some(mut programs) = programs {
            statuses.append(&mut programs.statuses);
            let counters = programs.counters();
            self.metrics.set_kernel_counters(Box::new(move || counters()));
            let (proc, tx) = (self.proc.clone(), tx.clone());
            tokio::spawn(async move {
                if let Err(error) = programs.run(proc, host_netns, tx.clone()).await {
                    tracing::error!(error = bpf::chain(&error), "the kernel programs cannot be read");
                    let loss = Loss { source: "bpf".into(), reason: "unreadable".into(), count: None };
                    // The core ends together with its queue.
                    let _ = tx.send(seen(Fact::Lost(loss))).await;
                }
            });
        }
        for mut status in statuses {
            if status.source == bpf::NEIGHBOR && by_netlink {
                status.up = true;
                status.rung = Some("netlink".to_owned());
            }
            self.observe(seen(Fact::Source(status)));
        }
    }

    fn stop(mut self) {
        self.core.stop(boot_now());
        for output in self.core.take_output().collect::<Vec<_>>() {
            if let Output::Event(event) = output {
                self.tell(*event);
            }
        }
        self.sinks.finish(DRAIN);
    }
}

/// Whether an observation can change what is counted of the model.
fn changes_census(observation: &Observation) -> bool {
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

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self, DaemonError> {
        let new =
            |kind| signal(kind).map_err(|source| DaemonError::Start { what: "signal handling", source });
        Ok(Self {
            terminate: new(SignalKind::terminate())?,
            interrupt: new(SignalKind::interrupt())?,
            hangup: new(SignalKind::hangup())?,
        })
    }
}

/// Loads what the configuration wants; the second part tells of hooks that could not even be tried.
fn load_programs(config: &Config, log: bool) -> Result<(Option<BpfSource>, Vec<SourceStatus>), DaemonError> {
    let wanted = BpfConfig {
        ring_bytes: config.ring_bytes,
        neighbor: matches!(config.neighbor_hook, NeighborHook::Auto | NeighborHook::TpBtf),
        umount: config.umount_hook != UmountHook::Off,
        log,
    };
    let down = |reason: &str| {
        [bpf::NEIGHBOR, bpf::UMOUNT]
            .map(|hook| SourceStatus {
                source: hook.to_owned(),
                up: false,
                rung: None,
                reason: Some(reason.to_owned()),
            })
            .to_vec()
    };
    if !wanted.neighbor && !wanted.umount {
        return Ok((None, down(bpf::SWITCHED_OFF)));
    }
    let loaded = bpf::load(&wanted);
    if config.require_ebpf {
        check_required(&wanted, &loaded)?;
    }
    match loaded {
        Ok(programs) => Ok((Some(programs), Vec::new())),
        Err(error) => Ok((None, down(&bpf::chain(&error)))),
    }
}

fn check_required(wanted: &BpfConfig, loaded: &Result<BpfSource, BpfError>) -> Result<(), DaemonError> {
    let programs = loaded.as_ref().map_err(|error| DaemonError::Ebpf(bpf::chain(error)))?;
    let hooks = [(bpf::NEIGHBOR, wanted.neighbor), (bpf::UMOUNT, wanted.umount)];
    match hooks.into_iter().find(|(hook, wanted)| *wanted && !programs.is_up(hook)) {
        None => Ok(()),
        Some((hook, _)) => {
            let status = programs.statuses.iter().find(|status| status.source == hook);
            let reason = status.and_then(|status| status.reason.clone()).unwrap_or_default();
            Err(DaemonError::Ebpf(format!("{hook}: {reason}")))
        }
    }
}

fn docker_sockets(runtimes: &Runtimes) -> Vec<PathBuf> {
    match runtimes {
        Runtimes::Docker(sockets) => sockets.clone(),
        // Waited for where it is not there yet: dockerd may be installed or started later.
        Runtimes::Auto => vec![docker::default_socket().unwrap_or_else(|| "/run/docker.sock".into())],
    }
}

/// Identity of this boot; empty where /proc does not tell.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
