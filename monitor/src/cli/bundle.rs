//! `bundle`: writes the recording of an incident, with state and configuration, into one file.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use kevtmon_history::recording::bundle::{BundleError, bundle, is_recorded};
use kevtmon_history::recording::create_private;
use kevtmon_history::recording::format::Writer;
use kevtmon_server::client::Remote;

use super::{exit, fail, remark};
use crate::config::{Config, Overrides, STATE_DIR};

/// Time for a running daemon to write the window of an incident that has just opened.
const WINDOW_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const WINDOW_CHECK: Duration = Duration::from_millis(20);
/// Size of writes, in bytes.
const CHUNK: usize = 256 * 1024;

/// Arguments of `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// Id of the incident, or a unique prefix of it; ID-EPISODE for an earlier episode than the last
    pub incident: String,
    /// File to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Socket of the daemon, which names its state directory; not needed where that is given
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// State directory of the daemon [default: as the daemon at --socket names it, else as configured, else
    /// /var/lib/kevtmon]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration file of the daemon [default: /etc/kevtmon/kevtmon.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl BundleArgs {
    /// Writes the bundle; returns the exit code.
    pub fn run(&self) -> u8 {
        let state_dir = match self.find_state_dir() {
            Ok(state_dir) => state_dir,
            Err(code) => return code,
        };
        let writer = Writer::this_build(serde_json::Value::Null);
        let created = Timestamp::now().to_string();
        let deadline = Instant::now() + WINDOW_TIMEOUT;
        let pack = |out: &mut dyn Write| {
            loop {
                let out = BufWriter::with_capacity(CHUNK, &mut *out);
                match bundle(&state_dir, &self.incident, &writer, created.clone(), out) {
                    // Nothing was written yet.
                    Err(error)
                        if error.is_absence() && is_recorded(&state_dir) && Instant::now() < deadline =>
                    {
                        thread::park_timeout(WINDOW_CHECK);
                    }
                    packed => return packed,
                }
            }
        };
        let packed = match &self.output {
            None if io::stdout().is_terminal() => {
                remark(
                    "refusing to write a bundle to a terminal: redirect it, as in kevtmon bundle INCIDENT > FILE",
                );
                return exit::USAGE;
            }
            None => pack(&mut io::stdout().lock()),
            Some(path) => {
                create_private(path).map_err(BundleError::Write).and_then(|mut file| pack(&mut file))
            }
        };
        packed.map_or_else(|error| fail(&error, exit::FAILED), |()| exit::OK)
    }

    /// Where the recordings are, else the exit code.
    fn find_state_dir(&self) -> Result<PathBuf, u8> {
        if let (None, Some(socket)) = (&self.state_dir, &self.socket) {
            let answer = Remote::connect(socket).and_then(|remote| remote.version());
            return answer.map(|answer| answer.state_dir).map_err(|error| fail(&error, exit::FAILED));
        }
        let overrides = Overrides {
            file: self.config.clone(),
            state_dir: self.state_dir.clone(),
            node_name: Some("bundle".into()),
            ..Overrides::default()
        };
        let config = Config::load(&overrides).map_err(|error| fail(&error, exit::USAGE))?;
        Ok(config.get(&STATE_DIR))
    }
}
