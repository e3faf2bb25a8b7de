//! `bundle`: writes the recording of an incident, with state and configuration, into one file.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use super::{exit, fail, remark};
use crate::config::{Config, Overrides, STATE_DIR};
use crate::recording::bundle::{BundleError, bundle};
use crate::recording::create_private;
use crate::recording::format::Writer;

/// Size of writes, in bytes.
const CHUNK: usize = 256 * 1024;

/// Arguments of `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// Id of the incident, or a unique prefix of it
    pub incident: String,
    /// File to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// State directory of the daemon [default: /var/lib/kevtmon]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration file of the daemon [default: /etc/kevtmon/kevtmon.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl BundleArgs {
    /// Writes the bundle; returns the exit code.
    #[must_use]
    pub fn run(&self) -> u8 {
        let overrides = Overrides {
            file: self.config.clone(),
            state_dir: self.state_dir.clone(),
            node_name: Some("bundle".into()),
            ..Overrides::default()
        };
        let config = match Config::load(&overrides) {
            Ok(config) => config,
            Err(error) => return fail(&error, exit::USAGE),
        };
        let writer = Writer::this_build(serde_json::Value::Null);
        let created = Timestamp::now().to_string();
        let pack = |out: &mut dyn Write| {
            let out = BufWriter::with_capacity(CHUNK, out);
            bundle(&config.get(&STATE_DIR), &self.incident, &writer, created, out)
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
}
