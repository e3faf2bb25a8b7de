//! The daemon and its commands: configuration, start-up, privileges, and the command line.
//!
//! ```text
//! sources ─► Observation ─► core + node model ─► Event ─► sinks
//!    ▲                          │
//!    └──────── Request ◄────────┘
//! ```
//!
//! Each stage is a crate in `monitor/crates`; `ARCHITECTURE.md` has the map and the invariants.

use std::process::ExitCode;

use kevtmon_types::build_info::{self, Build};

#[cfg(test)]
#[path = "../crates/server/src/api_rig.rs"]
mod api_rig;
mod cli;
mod config;
mod daemon;
mod privilege;
mod self_test;
#[cfg(test)]
#[path = "../crates/history/src/test_support/mod.rs"]
mod test_support;
#[cfg(test)]
mod tests;

static BUILD: Build = Build {
    revision: env!("KEVTMON_GIT_REVISION"),
    programs: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/kevtmon-ebpf.o")),
};

fn main() -> ExitCode {
    build_info::set(&BUILD);
    if let Some(code) = cli::reader::run_if_asked(std::env::args_os().collect::<Vec<_>>().into_iter()) {
        return code.into();
    }
    cli::parse(std::env::args_os()).map_or_else(|code| code, |command| command.run()).into()
}
