//! The program: arguments, a command, its exit code.

use std::process::ExitCode;

use kevtmon::cli;

fn main() -> ExitCode {
    if let Some(code) = cli::reader::run_if_asked(std::env::args_os()) {
        return code.into();
    }
    cli::parse(std::env::args_os()).map_or_else(|code| code, |command| command.run()).into()
}
