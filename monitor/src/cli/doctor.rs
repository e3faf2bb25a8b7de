//! `doctor`: what of kevtmon works on this node, on which attach mode, why not better, and how to get it.
//!
//! The running daemon tells it of itself; without one, everything is tried here as the daemon would.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use jiff::tz::TimeZone;
use kevtmon_history::query::doctor::{Condition, DoctorReport, Part};
use kevtmon_probe::cost;
use kevtmon_render::Pretty;
use kevtmon_server::client::{Remote, RemoteError};
use kevtmon_server::sinks::api::SOCKET;
use kevtmon_sources::kernel::KernelFacts;
use kevtmon_sources::procfs::own::Own;
use kevtmon_types::build_info;
use kevtmon_types::error_chain::chain;
use kevtmon_types::escape::to_json;

use super::{exit, fail, print, wants_colour};
use crate::config::{Config, Overrides, REQUIRE_EBPF};
use crate::privilege::Lacks;

mod judge;
mod self_test;
#[cfg(test)]
mod tests;
mod trial;

use judge::Node;

/// Name of the part that is the daemon itself.
const DAEMON: &str = "daemon";

/// Arguments of `doctor`.
#[derive(Debug, Default, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Delete a neighbor entry and provoke a refused unmount, in new namespaces, and check that the running daemon names
    /// the process
    #[arg(long)]
    pub self_test: bool,
    /// Socket of the daemon [default: as configured, else /run/kevtmon/kevtmon.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// State directory of the daemon, looked at when none runs [default: as configured, else /var/lib/kevtmon]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration file of the daemon [default: /etc/kevtmon/kevtmon.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl DoctorArgs {
    /// Prints the report; returns the exit code.
    pub fn run(&self) -> u8 {
        let overrides = Overrides {
            file: self.config.clone(),
            socket: self.socket.clone(),
            state_dir: self.state_dir.clone(),
            // The node may have no usable name, which is no matter here.
            node_name: Some("doctor".into()),
            ..Overrides::default()
        };
        let config = match Config::load(&overrides) {
            Ok(config) => config,
            Err(error) => return fail(&error, exit::USAGE),
        };
        let (report, code) = self.examine(&config);
        self.print(&report).map_or_else(|error| fail(&error, exit::FAILED), |()| code)
    }

    fn examine(&self, config: &Config) -> (DoctorReport, u8) {
        let kernel = KernelFacts::read();
        let path = config.get(&SOCKET);
        let (remote, daemon, part) = match Remote::connect(&path).and_then(|remote| {
            let report = remote.doctor();
            Ok((remote, report?))
        }) {
            Ok((remote, report)) => {
                let part = judge::daemon(&report);
                (Some(remote), Some(report), part)
            }
            Err(error) => (None, None, without_daemon(&error)),
        };
        let capabilities = match &daemon {
            Some(report) => judge::at_start(report),
            None => Own::default().effective_capabilities(),
        };
        let node = Node { kernel, capabilities };
        let mut parts = vec![part];
        let mut code = exit::OK;
        match &daemon {
            Some(report) => {
                parts.extend(judge::of_daemon(report, &node));
                let cost = remote.as_ref().and_then(|remote| cost::of_process(remote.pid()?));
                parts.extend(cost.as_ref().and_then(judge::programs));
            }
            None => {
                let tried = trial::trial(config, &node);
                if config.get(&REQUIRE_EBPF) && tried.lacks_programs {
                    code = exit::UNSUPPORTED;
                }
                parts.extend(tried.parts);
            }
        }
        parts.extend(judge::of_node(&node));
        // What kevtmon cannot do without comes first; else they stay as they are.
        parts.sort_by_key(|part| !part.required);
        let self_test = match self.self_test {
            true => self_test::run(remote.as_ref(), daemon.as_ref()),
            false => Vec::new(),
        };
        let works = judge::works(&parts, daemon.as_ref());
        if !works || self_test.iter().any(|step| !step.passed) {
            code = exit::FAILED;
        }
        let lacks = node.capabilities.map(Lacks::of).unwrap_or_default();
        if daemon.is_none() && !lacks.required.is_empty() {
            code = exit::PRIVILEGE;
        }
        let version = format!("{} ({})", build_info::VERSION, build_info::revision());
        (DoctorReport { works, version, daemon, parts, self_test }, code)
    }

    fn print(&self, report: &DoctorReport) -> io::Result<()> {
        let text = match self.json {
            true => format!("{}\n", to_json(report)?),
            false => {
                let colour = io::stdout().is_terminal() && wants_colour();
                kevtmon_render::doctor::text(report, &Pretty { colour, zone: TimeZone::system() })
            }
        };
        print(text.as_bytes())
    }
}

/// What it means that no daemon tells of itself. That none runs is not wrong by itself.
fn without_daemon(error: &RemoteError) -> Part {
    let reason = chain(error);
    match error {
        RemoteError::Dead { .. } => Part::new(DAEMON, Condition::Absent).because(
            reason,
            "nothing is watched; what follows was tried by this command",
            "systemctl start kevtmon, or kevtmon run",
        ),
        RemoteError::Denied { .. } => Part::new(DAEMON, Condition::Unknown).because(
            reason,
            "what follows was tried by this command, with its privileges",
            "run this as root",
        ),
        RemoteError::Older { .. } | RemoteError::Version { .. } => Part::new(DAEMON, Condition::Unknown)
            .because(reason, "what follows was tried by this command", "restart the daemon after an update"),
        _ => Part::new(DAEMON, Condition::Failed).required().because(
            reason,
            "events and queries may be delayed or missing",
            "read its log, then restart it",
        ),
    }
}
