//! Arguments of `replay` and `bundle`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Recording of `run --record`, or bundle; - is standard input
    pub file: PathBuf,
    /// Configuration whose thresholds and policy hold instead of those that were recorded
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object a line, as `run --output json` did [default when standard output is no terminal]
    #[arg(long)]
    pub json: bool,
    /// Fail when a line is not understood
    #[arg(long)]
    pub strict: bool,
}

/// Arguments of `bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    /// Id of the incident, or the beginning of it
    pub incident: String,
    /// Where to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where the daemon keeps state [default: /var/lib/kevtmon]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration file of the daemon [default: /etc/kevtmon/kevtmon.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
