//! The program: arguments, logging, configuration, run, exit code.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use kevtmon::build_info;
use kevtmon::cli::{self, Cli, Command, RunArgs, exit, logging};
use kevtmon::config::Config;
use kevtmon::daemon::{self, DaemonError, Options};
use kevtmon::error_chain::chain;
use kevtmon::privilege;
use kevtmon::sources::procfs::own::Own;
use tokio::task::LocalSet;

fn main() -> ExitCode {
    let code = match cli::parse(std::env::args_os()) {
        Ok(Cli { command: Command::Run(args) }) => run(&args),
        Ok(Cli { command: Command::Replay(args) }) => args.run(),
        Ok(Cli { command: Command::Bundle(args) }) => args.run(),
        Ok(Cli { command: Command::Query(query) }) => query.run(),
        Ok(Cli { command: Command::Reference(reference) }) => reference.run(),
        Err(code) => code,
    };
    code.into()
}

fn run(args: &RunArgs) -> u8 {
    if let Err(error) = logging::init(args.log_format, args.log_bpf) {
        return fail(&error, exit::USAGE);
    }
    let overrides = args.overrides();
    let config = match Config::load(&overrides) {
        Ok(config) => config,
        Err(error) => return fail(&error, exit::USAGE),
    };
    if let Err(error) = privilege::check(&Own::default()) {
        return fail(&error, exit::PRIVILEGE);
    }
    let options = Options {
        version: build_info::VERSION,
        revision: build_info::REVISION,
        log_bpf: args.log_bpf,
        record: args.record(),
        colour: std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
    };
    let reload = || {
        Config::load(&overrides)
            .inspect_err(|error| tracing::error!("{}; the old configuration stays", chain(error)))
            .ok()
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, exit::FAILED),
    };
    let ended = LocalSet::new().block_on(&runtime, daemon::run(config, options, reload));
    // A source may be in the middle of a read that never ends.
    runtime.shutdown_background();
    match ended {
        Ok(()) => exit::OK,
        Err(error @ DaemonError::Ebpf(_)) => fail(&error, exit::UNSUPPORTED),
        Err(error) => fail(&error, exit::FAILED),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the last word, which must come even where logging could not be set up"
)]
fn fail(error: &dyn std::error::Error, code: u8) -> u8 {
    eprintln!("kevtmon: {}", chain(error));
    code
}
