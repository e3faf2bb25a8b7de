//! `run`: the daemon in the foreground. Logging, configuration and privileges first, then the stages.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use kevtmon_history::recording;
use kevtmon_history::recording::recorder::{Record, RecordError};
use kevtmon_history::store;
use kevtmon_server::sinks::api::SOCKET;
use kevtmon_server::sinks::listen::WEB_CONFIG;
use kevtmon_server::sinks::stdout::Format;
use kevtmon_server::web_config::{WatchedConfig, WebConfigError};
use kevtmon_sources::procfs::own::Own;
use kevtmon_types::allocator;
use kevtmon_types::build_info;
use kevtmon_types::error_chain::chain;
use tokio::task::LocalSet;

use super::logging::{self, LogFormat};
use super::{exit, fail};
use crate::config::{Config, Overrides, RuntimeSpec, Runtimes, SOCKETS, STATE_DIR, runtime_choices};
use crate::daemon::{self, DaemonError, Options};
use crate::privilege::{self, StateDirectory, Writes};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file; it must exist [default: /etc/kevtmon/kevtmon.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Format of the events on standard output: pretty, json or none [default: pretty on a terminal, else json]
    #[arg(long, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Address to serve metrics and health on; may be repeated [default: 127.0.0.1:19809]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<SocketAddr>,
    /// TLS and basic authentication for them: a file in the format of Prometheus' exporter-toolkit
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Unix socket to answer queries on [default: /run/kevtmon/kevtmon.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// State directory: event store and recordings [default: /var/lib/kevtmon]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Name of this node in events [default: KEVTMON_NODE_NAME or the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Container runtime: auto, none or a socket; may be repeated
    #[arg(long, value_name = "RUNTIME", help = runtime_help())]
    pub runtime: Vec<RuntimeSpec>,
    /// Format of the logs on standard error
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Also log the messages of the eBPF programs
    #[arg(long)]
    pub log_bpf: bool,
    /// Record all observations for `replay`; a full file is renamed to FILE.1
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Size at which the recording is rotated
    #[arg(long, value_name = "MIB", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub record_max_mib: u64,
}

fn runtime_help() -> String {
    format!("Container runtime: {}; may be repeated [default: auto]", runtime_choices())
}

impl RunArgs {
    /// The recording, if one is wanted.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        let path = self.record.clone()?;
        Some(Record { path, max_bytes: self.record_max_mib << 20 })
    }

    /// The arguments that override the configuration.
    #[must_use]
    pub fn overrides(&self) -> Overrides {
        Overrides {
            file: self.config.clone(),
            output: self.output,
            listen: self.listen.clone(),
            web_config: self.web_config.clone(),
            socket: self.socket.clone(),
            state_dir: self.state_dir.clone(),
            node_name: self.node_name.clone(),
            runtimes: self.runtime.clone(),
        }
    }

    /// Keeps what a start with this configuration needs.
    fn give_up_capabilities(&self, config: &Config) {
        let (state, socket) = (config.get(&STATE_DIR), config.get(&SOCKET));
        let runtimes = match config.get(&SOCKETS) {
            Runtimes::Sockets(sockets) => sockets,
            Runtimes::Auto => Vec::new(),
        };
        let beside = |path: &Path| path.parent().map(Path::to_owned);
        let recorded = self.record.clone();
        let paths = [beside(&socket), recorded.as_deref().and_then(beside), recorded].into_iter().flatten();
        // Those at the usual places are root's.
        let sockets = runtimes.into_iter().filter(|runtime| !runtime.is_at_usual_place());
        privilege::keep_what_starting_needs(Writes {
            state: StateDirectory { path: state, is_own: is_of_daemon },
            paths: paths.collect(),
            sockets: sockets.map(|runtime| runtime.path).collect(),
        });
    }

    /// Runs the daemon until it is stopped; returns the exit code.
    #[must_use]
    pub fn run(&self) -> u8 {
        if let Err(error) = logging::init(self.log_format, self.log_bpf) {
            return fail(&error, exit::USAGE);
        }
        allocator::keep_little();
        let overrides = self.overrides();
        let config = match Config::load(&overrides) {
            Ok(config) => config,
            Err(error) => return fail(&error, exit::USAGE),
        };
        let web = match web_config(&config) {
            Ok(web) => web,
            Err(error) => return fail(&error, exit::USAGE),
        };
        let record = self.record();
        if let Some(Err(error)) = record.as_ref().map(Record::check) {
            return fail(&error, record_exit(&error));
        }
        if let Err(error) = privilege::check(&Own::default()) {
            return fail(&error, exit::PRIVILEGE);
        }
        self.give_up_capabilities(&config);
        let options = Options {
            version: build_info::VERSION,
            revision: build_info::revision(),
            log_bpf: self.log_bpf,
            record,
            web,
            colour: io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
        };
        let reload = move || Config::load(&overrides).map_err(|error| chain(&error));
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&error, exit::FAILED),
        };
        let ended = LocalSet::new().block_on(&runtime, daemon::run(config, options, reload));
        // A source may be in the middle of a read that never ends.
        runtime.shutdown_background();
        match ended {
            Ok(()) => exit::OK,
            Err(error @ DaemonError::Ebpf(_)) => fail(&error, exit::UNSUPPORTED),
            Err(DaemonError::Record(error)) => fail(&error, record_exit(&error)),
            Err(error) => fail(&error, exit::FAILED),
        }
    }
}

/// The web configuration of the metrics, if there is one.
fn web_config(config: &Config) -> Result<Option<Arc<WatchedConfig>>, WebConfigError> {
    let path = config.get(&WEB_CONFIG);
    let is_given = !path.as_os_str().is_empty();
    is_given.then(|| WatchedConfig::load(&path).map(Arc::new)).transpose()
}

/// Whether it is what the daemon makes in its state directory.
fn is_of_daemon(name: &Path) -> bool {
    store::is_own(name) || recording::is_own(name) || daemon::is_own(name)
}

/// What is at the path of a recording was chosen by the user.
fn record_exit(error: &RecordError) -> u8 {
    match error {
        RecordError::NotRegular { .. } => exit::USAGE,
        RecordError::File { .. } | RecordError::Thread(_) => exit::FAILED,
    }
}
