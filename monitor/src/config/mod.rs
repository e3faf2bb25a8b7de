//! What the daemon is told to do: arguments over environment over file over defaults, merged once.
//!
//! The file is optional and every default works. Anything in it that is not understood is an error that
//! names the place and what would be valid.

use std::env;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::gethostname;
use serde::Serialize;
use thiserror::Error;

use crate::event::Severity;
use crate::names::names;
use crate::settings::{Cmdline, Settings, Thresholds};
use crate::sources::bpf::hooks::HookChoices;
use crate::store::Limits;

mod file;
mod manual;
mod runtime;

pub use file::{FileError, Place};
pub use runtime::{RuntimeSpec, RuntimeSpecError, Runtimes};

/// Read when no other file is named, if it is there.
pub const DEFAULT_FILE: &str = "/etc/kevtmon/kevtmon.toml";
/// Socket that queries are answered on, unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/kevtmon/kevtmon.sock";
/// Where state is kept, unless told otherwise.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/kevtmon";
/// Most bytes of a configuration file.
const MAX_BYTES: u64 = 1 << 20;
/// Environment variable that names the node.
pub const NODE_NAME_VARIABLE: &str = "KEVTMON_NODE_NAME";

names! {
    /// Form of the events on standard output.
    Format {
        /// For people.
        Pretty = "pretty",
        /// One JSON object a line.
        Json = "json",
        /// Nothing.
        None = "none",
    }
}

/// What the daemon is told to do. It holds no secrets: recordings and bundles show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Name of this node in events.
    pub node_name: String,
    /// Socket that queries are answered on.
    pub socket: PathBuf,
    /// Where state is kept.
    pub state_dir: PathBuf,
    /// Whose command lines are kept.
    pub cmdline: Cmdline,
    /// Whether to end when the kernel programs cannot run.
    pub require_ebpf: bool,
    /// Form of the events on standard output.
    pub format: Format,
    /// Least severity on standard output; `daemon.*` passes always.
    pub min_severity: Severity,
    /// Addresses of metrics and health; none when empty.
    pub listen: Vec<SocketAddr>,
    /// Container runtimes.
    pub runtimes: Runtimes,
    /// Which rungs of the kernel hooks are tried.
    pub hooks: HookChoices,
    /// Size of the ring buffer in bytes, a power of two.
    pub ring_bytes: u32,
    /// How much the event store keeps; `None` without one.
    pub store: Option<Limits>,
    /// The flight recorder.
    pub recorder: Recorder,
    /// When trouble is an incident.
    pub incidents: Thresholds,
}

/// What the flight recorder keeps in the state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Recorder {
    /// Whether it records.
    pub enabled: bool,
    /// How far back it reaches.
    pub minutes: u32,
    /// How much space it takes; windows of incidents have space of their own.
    pub max_mib: u32,
}

/// What the arguments say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// The file to read; it must exist.
    pub file: Option<PathBuf>,
    /// `--output`.
    pub output: Option<Format>,
    /// `--listen`.
    pub listen: Vec<SocketAddr>,
    /// `--socket`.
    pub socket: Option<PathBuf>,
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// `--node-name`.
    pub node_name: Option<String>,
    /// `--runtime`.
    pub runtimes: Vec<RuntimeSpec>,
}

/// Where the daemon finds itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Surroundings {
    /// From [`NODE_NAME_VARIABLE`], unless empty.
    node_name: Option<String>,
    host_name: Option<String>,
    stdout_is_terminal: bool,
}

/// Why there is no configuration. The daemon exits with code 64.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file says something that is not understood.
    #[error(transparent)]
    File(#[from] FileError),
    /// `--runtime` contradicts itself.
    #[error("--runtime: {0}")]
    Runtime(RuntimeSpecError),
    /// No name for this node can be found, or it is not usable.
    #[error("{given:?} is not a usable node name; set one with --node-name NAME")]
    NodeName {
        /// What was found.
        given: String,
    },
}

impl Config {
    /// Reads the file and the environment, and merges them with the arguments.
    ///
    /// # Errors
    /// When the file cannot be read or understood, or the arguments contradict each other.
    pub fn load(overrides: &Overrides) -> Result<Self, ConfigError> {
        let surroundings = Surroundings {
            node_name: env::var(NODE_NAME_VARIABLE).ok().filter(|name| !name.is_empty()),
            host_name: gethostname().ok().and_then(|name| name.into_string().ok()),
            stdout_is_terminal: io::stdout().is_terminal(),
        };
        let file = match &overrides.file {
            Some(path) => read(path)?,
            None => read_if_there(Path::new(DEFAULT_FILE))?,
        };
        merge(file, overrides, surroundings)
    }

    /// Puts what the operator decides in place of what the core was told before.
    pub fn govern(&self, settings: &mut Settings) {
        settings.cmdline = self.cmdline;
        settings.incidents = self.incidents.clone();
    }

    /// Whether a newer one differs in more than what takes effect in a running daemon: diagnoses keep the thresholds
    /// that they began with.
    #[must_use]
    pub fn needs_restart(&self, newer: &Self) -> bool {
        Self { cmdline: newer.cmdline, ..self.clone() } != *newer
    }
}

/// A configuration file with every setting, explained, at its default.
#[must_use]
pub fn default_file() -> String {
    // The defaults of a service on some node, wherever this is asked.
    let around = Surroundings { host_name: Some("node-1".to_owned()), ..Surroundings::default() };
    merge(file::File::default(), &Overrides::default(), around)
        .map_or_else(|_| String::new(), |defaults| manual::commented(&defaults))
}

/// A configuration file that says in full what a configuration is.
#[must_use]
pub fn effective(config: &Config) -> String {
    manual::effective(config)
}

fn read(path: &Path) -> Result<file::File, ConfigError> {
    let text = read_text(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    Ok(file::parse(path, &text)?)
}

/// A file of any size may be named by mistake, and one like `/dev/zero` never ends.
fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let size = File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(size).is_ok_and(|size| size <= MAX_BYTES) {
        return Ok(text);
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {} MiB", MAX_BYTES >> 20)))
}

fn read_if_there(path: &Path) -> Result<file::File, ConfigError> {
    match read(path) {
        Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(file::File::default())
        }
        result => result,
    }
}

fn merge(file: file::File, over: &Overrides, around: Surroundings) -> Result<Config, ConfigError> {
    let node_name = over
        .node_name
        .clone()
        .or(around.node_name)
        .or(file.node_name.map(|name| name.0))
        .or(around.host_name)
        .unwrap_or_default();
    if node_name.is_empty() || node_name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(ConfigError::NodeName { given: node_name });
    }

    let default_format = if around.stdout_is_terminal { Format::Pretty } else { Format::Json };
    // Whoever asks for JSON at the call wants a complete stream; a service's output ends in a journal.
    let min_severity = match (over.output, file.output.min_severity) {
        (Some(Format::Json), _) => Severity::Debug,
        (_, Some(chosen)) => chosen,
        (_, None) if around.stdout_is_terminal => Severity::Info,
        (_, None) => Severity::Notice,
    };

    let listen = if over.listen.is_empty() {
        file.metrics.listen.unwrap_or_else(|| vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 19809))])
    } else {
        over.listen.clone()
    };
    let runtimes = if over.runtimes.is_empty() {
        file.runtime.sockets.unwrap_or(Runtimes::Auto)
    } else {
        Runtimes::of(&over.runtimes).map_err(ConfigError::Runtime)?
    };

    Ok(Config {
        node_name,
        socket: over.socket.clone().or(file.socket).unwrap_or_else(|| DEFAULT_SOCKET.into()),
        state_dir: over.state_dir.clone().or(file.state_dir).unwrap_or_else(|| DEFAULT_STATE_DIR.into()),
        cmdline: file.cmdline.unwrap_or(Cmdline::Host),
        require_ebpf: file.require_ebpf.unwrap_or(false),
        format: over.output.or(file.output.format).unwrap_or(default_format),
        min_severity,
        listen,
        runtimes,
        hooks: file.hooks.choices,
        ring_bytes: file.hooks.ring_kib.unwrap_or(1024) * 1024,
        store: store(&file.store),
        recorder: Recorder {
            enabled: file.recorder.enabled.unwrap_or(true),
            minutes: file.recorder.minutes.unwrap_or(15),
            max_mib: file.recorder.max_mib.unwrap_or(16),
        },
        incidents: file.incidents,
    })
}

fn store(file: &file::Store) -> Option<Limits> {
    let default = Limits::default();
    file.enabled.unwrap_or(true).then(|| Limits {
        max_age: file.max_age_days.map_or(default.max_age, |days| Duration::from_secs(days * 86_400)),
        max_bytes: file.max_mib.map_or(default.max_bytes, |mib| mib << 20),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn around() -> Surroundings {
        Surroundings { host_name: Some("host".into()), ..Surroundings::default() }
    }

    fn merged(text: &str, over: &Overrides, around: Surroundings) -> Config {
        merge(file::parse(Path::new("/k.toml"), text).unwrap(), over, around).unwrap()
    }

    #[test]
    fn only_the_policy_for_command_lines_takes_effect_without_a_restart() {
        let merged = |text| merged(text, &Overrides::default(), around());
        let old = merged("");
        assert!(!old.needs_restart(&merged("cmdline = 'off'")));
        assert!(old.needs_restart(&merged("[incidents]\ngateway_critical_seconds = 5")));
        assert!(old.needs_restart(&merged("socket = '/k.sock'")));
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /dev/zero");
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(why, "it is larger than 1 MiB");
    }

    #[test]
    fn every_default_works() {
        let config = merged("", &Overrides::default(), around());
        assert_eq!(
            config,
            Config {
                node_name: "host".into(),
                socket: "/run/kevtmon/kevtmon.sock".into(),
                state_dir: "/var/lib/kevtmon".into(),
                cmdline: Cmdline::Host,
                require_ebpf: false,
                format: Format::Json,
                min_severity: Severity::Notice,
                listen: vec!["127.0.0.1:19809".parse().unwrap()],
                runtimes: Runtimes::Auto,
                hooks: HookChoices::default(),
                ring_bytes: 1 << 20,
                store: Some(Limits { max_age: Duration::from_secs(7 * 86_400), max_bytes: 64 << 20 }),
                recorder: Recorder { enabled: true, minutes: 15, max_mib: 16 },
                incidents: Thresholds {
                    learned_gateway_failed_seconds: 10,
                    gateway_critical_seconds: 60,
                    gateway_confirm_seconds: 5,
                    gateway_young_pod_seconds: 60,
                    gateway_teardown_seconds: 60,
                    gateway_static_pods: 3,
                    gateway_static_percent: 80,
                    volume_busy_warning_attempts: 3,
                    volume_busy_warning_seconds: 30,
                    volume_busy_critical_seconds: 900,
                    volume_busy_expire_seconds: 1800,
                },
            }
        );
    }

    #[test]
    fn the_store_keeps_as_much_as_the_file_says_or_is_not_there() {
        let store = |text| merged(text, &Overrides::default(), around()).store;
        let limits = store("[store]\nmax_age_days = 2\nmax_mib = 8").unwrap();
        assert_eq!(limits, Limits { max_age: Duration::from_secs(172_800), max_bytes: 8 << 20 });
        assert_eq!(store("[store]\nenabled = false"), None);
    }

    #[test]
    fn the_node_is_named_by_argument_then_environment_then_file_then_host() {
        let file = "node_name = \"file\"";
        let flag = Overrides { node_name: Some("flag".into()), ..Overrides::default() };
        let env = Surroundings { node_name: Some("env".into()), ..around() };
        assert_eq!(merged(file, &flag, env.clone()).node_name, "flag");
        assert_eq!(merged(file, &Overrides::default(), env).node_name, "env");
        assert_eq!(merged(file, &Overrides::default(), around()).node_name, "file");
        assert_eq!(merged("", &Overrides::default(), around()).node_name, "host");
    }

    #[test]
    fn a_node_without_a_usable_name_is_refused() {
        let error = merge(file::File::default(), &Overrides::default(), Surroundings::default()).unwrap_err();
        assert!(error.to_string().contains("--node-name"), "{error}");
    }

    #[test]
    fn arguments_win_over_the_file() {
        let over = Overrides {
            output: Some(Format::None),
            listen: vec!["127.0.0.1:1".parse().unwrap()],
            socket: Some("/flag.sock".into()),
            runtimes: vec![RuntimeSpec::None],
            ..Overrides::default()
        };
        let config = merged(
            "socket = \"/file.sock\"\nstate_dir = \"/file\"\n[output]\nformat = \"json\"\n[metrics]\nlisten = []\n\
             [runtime]\nsockets = [\"docker=/a\"]",
            &over,
            around(),
        );
        assert_eq!(config.format, Format::None);
        assert_eq!(config.listen, over.listen);
        assert_eq!(config.socket, Path::new("/flag.sock"));
        assert_eq!(config.state_dir, Path::new("/file"));
        assert_eq!(config.runtimes, Runtimes::Sockets(vec![]));
    }

    #[test]
    fn only_json_asked_for_at_the_call_carries_everything_by_default() {
        let severity = |text: &str, output, terminal| {
            let over = Overrides { output, ..Overrides::default() };
            merged(text, &over, Surroundings { stdout_is_terminal: terminal, ..around() }).min_severity
        };
        let warning = "[output]\nmin_severity = \"warning\"";
        assert_eq!(severity("", Some(Format::Json), true), Severity::Debug);
        assert_eq!(severity(warning, Some(Format::Json), false), Severity::Debug);
        assert_eq!(severity("", None, true), Severity::Info);
        assert_eq!(severity("", None, false), Severity::Notice);
        assert_eq!(severity("", Some(Format::Pretty), false), Severity::Notice);
        assert_eq!(severity(warning, None, true), Severity::Warning);
    }

    #[test]
    fn contradicting_runtimes_are_refused() {
        let over = Overrides { runtimes: vec![RuntimeSpec::Auto, RuntimeSpec::None], ..Overrides::default() };
        let error = merge(file::File::default(), &over, around()).unwrap_err();
        assert!(error.to_string().starts_with("--runtime: "), "{error}");
    }

    #[test]
    fn a_file_that_was_asked_for_must_be_there_and_readable() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing.toml");
        let knot = dir.path().join("knot.toml");
        symlink(&knot, &knot).unwrap();
        let binary = dir.path().join("binary.toml");
        fs::write(&binary, [0xff, 0xfe]).unwrap();

        for path in [missing.as_path(), dir.path(), &knot, &binary] {
            let error =
                Config::load(&Overrides { file: Some(path.to_owned()), ..Overrides::default() }).unwrap_err();
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
        assert_eq!(read_if_there(&missing).unwrap(), file::File::default());
        assert!(read_if_there(&knot).is_err(), "only absence is fine");
    }
}
