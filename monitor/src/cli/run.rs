//! `run`: the daemon in the foreground. Logging, configuration and privileges first, then the stages.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use kevtmon_history::recording::recorder::{Record, RecordError};
use kevtmon_server::sinks::api::SOCKET;
use kevtmon_server::sinks::listen::WEB_CONFIG;
use kevtmon_server::web_config::{WatchedConfig, WebConfigError};
use kevtmon_sources::procfs::own::Own;
use kevtmon_types::allocator;
use kevtmon_types::error_chain::chain;
use tokio::task::LocalSet;

use super::logging::{self, LogFormat};
use super::{exit, fail, wants_colour};
use crate::config::{Config, Overrides, Runtimes, SOCKETS, STATE_DIR};
use crate::daemon::{self, DaemonError, Options};
use crate::privilege::{self, Writes};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub overrides: Overrides,
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

impl RunArgs {
    /// The recording, if one is wanted.
    pub fn record(&self) -> Option<Record> {
        let path = self.record.clone()?;
        Some(Record { path, max_bytes: self.record_max_mib << 20 })
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
            state,
            paths: paths.collect(),
            sockets: sockets.map(|runtime| runtime.path).collect(),
        });
    }

    /// Runs the daemon until it is stopped; returns the exit code.
    pub fn run(&self) -> u8 {
        self.run_daemon().err().unwrap_or(exit::OK)
    }

    fn run_daemon(&self) -> Result<(), u8> {
        logging::init(self.log_format, self.log_bpf).map_err(|error| fail(&error, exit::USAGE))?;
        allocator::keep_little();
        let config = Config::load(&self.overrides).map_err(|error| fail(&error, exit::USAGE))?;
        let web = web_config(&config).map_err(|error| fail(&error, exit::USAGE))?;
        let record = self.record();
        if let Some(record) = &record {
            record.check().map_err(|error| fail(&error, record_exit(&error)))?;
        }
        privilege::check(&Own::default()).map_err(|error| fail(&error, exit::PRIVILEGE))?;
        self.give_up_capabilities(&config);
        let colour = io::stdout().is_terminal() && wants_colour();
        let options = Options { log_bpf: self.log_bpf, record, web, colour };
        let overrides = self.overrides.clone();
        let reload = move || Config::load(&overrides).map_err(|error| chain(&error));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| fail(&error, exit::FAILED))?;
        let ended = LocalSet::new().block_on(&runtime, daemon::run(config, options, reload));
        // A source may be in the middle of a read that never ends.
        runtime.shutdown_background();
        ended.map_err(|error| match &error {
            DaemonError::Ebpf(_) => fail(&error, exit::UNSUPPORTED),
            DaemonError::Record(cause) => fail(&error, record_exit(cause)),
            _ => fail(&error, exit::FAILED),
        })
    }
}

/// The web configuration of the metrics, if there is one.
fn web_config(config: &Config) -> Result<Option<Arc<WatchedConfig>>, WebConfigError> {
    let path = config.get(&WEB_CONFIG);
    let is_given = !path.as_os_str().is_empty();
    is_given.then(|| WatchedConfig::load(&path).map(Arc::new)).transpose()
}

/// What is at the path of a recording was chosen by the user.
fn record_exit(error: &RecordError) -> u8 {
    match error {
        RecordError::NotRegular { .. } => exit::USAGE,
        RecordError::File { .. } | RecordError::Thread(_) => exit::FAILED,
    }
}
