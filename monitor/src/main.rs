//! The program: arguments, a command, its exit code.

use std::process::ExitCode;

use kevtmon::cli;

fn main() -> ExitCode {
    cli::parse(std::env::args_os()).map_or_else(|code| code, |command| command.run()).into()
}
