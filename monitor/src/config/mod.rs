//! The configuration: arguments over environment over file over defaults, merged once.
//!
//! Each setting is described beside the code that reads it; [`descriptions`] lists them all. The file is optional
//! and every default works. Anything invalid in it is an error that names the position and what would be
//! valid.

use std::env;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use kevtmon_core::diagnose;
use kevtmon_event::Severity;
use kevtmon_history::{recording, store};
use kevtmon_server::sinks::listen::{Addresses, LISTEN, WEB_CONFIG};
use kevtmon_server::sinks::stdout::{FORMAT, Format, MIN_SEVERITY};
use kevtmon_server::sinks::{api, journald, kubernetes, listen, otlp, stdout};
use kevtmon_sources::{beat, cni, ipam, kubelet, logs, rbd};
use kevtmon_types::regular_file;
use kevtmon_types::settings::{
    CMDLINE, Description, Policy, Setting, Stored, Thresholds, Valid, Values, settings,
};
use nix::unistd::gethostname;
use serde::de::DeserializeOwned;
use thiserror::Error;

mod file;
mod print;
pub mod runtime;

pub use file::FileError;
pub use print::{default_file, effective_file};
pub use runtime::{RuntimeSpecError, Runtimes, SOCKETS};

/// Read when no other file is named, if it exists.
pub const DEFAULT_FILE: &str = "/etc/kevtmon/kevtmon.toml";
/// Maximum size of a configuration file.
const MAX_MIB: u64 = 1;
/// Environment variable that names the node.
pub const NODE_NAME_VARIABLE: &str = "KEVTMON_NODE_NAME";

settings! { "":
    /// Name of this node in events. Default: KEVTMON_NODE_NAME from the environment, else the host name.
    NODE_NAME: String = "node_name", default String::new(),
        valid Valid::Text("a name without blanks", is_node_name);
    /// Directory of the event store and the flight recorder.
    STATE_DIR: PathBuf = "state_dir", default "/var/lib/kevtmon".into();
    /// Whether to exit if the kernel programs cannot run.
    REQUIRE_EBPF: bool = "require_ebpf", default false;
}

/// All settings, in the order of the file: the top level first, then table by table.
pub fn descriptions() -> Vec<&'static dyn Description> {
    let thresholds = diagnose::thresholds().map(|threshold| threshold as &dyn Description);
    [
        SETTINGS,
        api::SETTINGS,
        kevtmon_types::settings::SETTINGS,
        stdout::SETTINGS,
        journald::SETTINGS,
        kubernetes::SETTINGS,
        otlp::SETTINGS,
        listen::SETTINGS,
    ]
    .into_iter()
    .chain([
        runtime::SETTINGS,
        kubelet::SETTINGS,
        cni::SETTINGS,
        ipam::SETTINGS,
        rbd::SETTINGS,
        logs::SETTINGS,
        beat::SETTINGS,
    ])
    .flatten()
    .copied()
    .chain(kevtmon_probe::settings::descriptions())
    .chain(kevtmon_types::settings::event_rates::SETTINGS.iter().copied())
    .chain(thresholds)
    .chain([store::settings::SETTINGS, recording::settings::SETTINGS].into_iter().flatten().copied())
    .collect()
}

/// The value of every setting. None is a secret: recordings and bundles contain it.
#[derive(Debug, Clone)]
pub struct Config(Values);

/// Values of the command-line arguments.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct Overrides {
    /// Configuration file; it must exist [default: /etc/kevtmon/kevtmon.toml, if it exists]
    #[arg(long = "config", value_name = "FILE")]
    pub file: Option<PathBuf>,
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
    #[arg(long = "runtime", value_name = "RUNTIME", help = runtime::help())]
    pub runtimes: Vec<Runtimes>,
}

/// The environment that the daemon runs in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Environment {
    /// From [`NODE_NAME_VARIABLE`], unless empty.
    node_name: Option<String>,
    host_name: Option<String>,
    stdout_is_terminal: bool,
}

/// Why there is no configuration. The daemon exits with code 64.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("--runtime: {0}")]
    Runtime(RuntimeSpecError),
    #[error("{given:?} is not a usable node name; set one with --node-name NAME")]
    NodeName { given: String },
}

impl Config {
    /// Reads the file and the environment, and merges them with the arguments.
    pub fn load(overrides: &Overrides) -> Result<Self, ConfigError> {
        let environment = Environment {
            node_name: env::var(NODE_NAME_VARIABLE).ok().filter(|name| !name.is_empty()),
            host_name: gethostname().ok().and_then(|name| name.into_string().ok()),
            stdout_is_terminal: io::stdout().is_terminal(),
        };
        let file = match &overrides.file {
            Some(path) => read(path)?,
            None => read_if_exists(Path::new(DEFAULT_FILE))?,
        };
        merge(file, overrides, environment)
    }

    /// The value of a setting.
    pub fn get<T: Stored + Clone + DeserializeOwned>(&self, setting: &Setting<T>) -> T {
        self.0.get(setting)
    }

    /// The values that are set, for modules that read several.
    pub fn values(&self) -> &Values {
        &self.0
    }

    /// What replaces the settings of a core.
    pub fn policy(&self) -> Policy {
        let mut incidents = Thresholds::default();
        for threshold in diagnose::thresholds() {
            incidents.set(threshold, self.0.find(threshold).unwrap_or(threshold.default));
        }
        Policy { cmdline: self.get(&CMDLINE), incidents }
    }

    /// Adopts what takes effect in a running daemon. Diagnoses keep the thresholds that they began with. Returns
    /// the names of what else differs, which takes a restart.
    pub fn adopt(&mut self, newer: &Self) -> Vec<String> {
        self.0.set(&CMDLINE, newer.get(&CMDLINE));
        let differs =
            |setting: &&dyn Description| !self.0.stored(*setting).equals(&*newer.0.stored(*setting));
        descriptions().into_iter().filter(differs).map(Description::name).collect()
    }
}

fn read(path: &Path) -> Result<Values, ConfigError> {
    let text = regular_file::read(path, MAX_MIB).and_then(|bytes| io::read_to_string(&bytes[..]));
    let text = text.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    Ok(file::parse(path, &text, &descriptions())?)
}

fn read_if_exists(path: &Path) -> Result<Values, ConfigError> {
    match read(path) {
        Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(Values::default())
        }
        result => result,
    }
}

fn merge(file: Values, over: &Overrides, environment: Environment) -> Result<Config, ConfigError> {
    let mut values = Values::default();
    if let Some(name) = environment.host_name {
        values.set(&NODE_NAME, name);
    }
    if environment.stdout_is_terminal {
        values.set(&FORMAT, Format::Pretty);
        values.set(&MIN_SEVERITY, Severity::Info);
    }
    values.extend(file);
    if let Some(name) = over.node_name.clone().or(environment.node_name) {
        values.set(&NODE_NAME, name);
    }
    if let Some(format) = over.output {
        values.set(&FORMAT, format);
        // JSON by argument is for programs, which get all events; the output of a service goes to a journal.
        if format == Format::Json {
            values.set(&MIN_SEVERITY, Severity::Debug);
        }
    }
    if !over.listen.is_empty() {
        values.set(&LISTEN, Addresses(over.listen.clone()));
    }
    for (setting, path) in
        [(&api::SOCKET, &over.socket), (&STATE_DIR, &over.state_dir), (&WEB_CONFIG, &over.web_config)]
    {
        path.iter().for_each(|path| values.set(setting, path.clone()));
    }
    if !over.runtimes.is_empty() {
        values.set(&SOCKETS, Runtimes::of(&over.runtimes).map_err(ConfigError::Runtime)?);
    }
    let name = values.get(&NODE_NAME);
    if is_node_name(&name) { Ok(Config(values)) } else { Err(ConfigError::NodeName { given: name }) }
}

/// Whether it can stand in events and logs.
fn is_node_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests;
