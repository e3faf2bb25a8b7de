//! The program: what it was built with, arguments, a command, its exit code.

use std::process::ExitCode;

use kevtmon::build_info::{self, Build};
use kevtmon::cli;

static BUILD: Build = Build {
    revision: env!("KEVTMON_GIT_REVISION"),
    programs: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/kevtmon-ebpf.o")),
};

fn main() -> ExitCode {
    build_info::set(&BUILD);
    if let Some(code) = cli::reader::run_if_asked(std::env::args_os()) {
        return code.into();
    }
    cli::parse(std::env::args_os()).map_or_else(|code| code, |command| command.run()).into()
}
