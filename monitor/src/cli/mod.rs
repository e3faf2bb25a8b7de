//! The command line: arguments enter, a typed command leaves. One file per command.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write as _};
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use kevtmon_types::build_info::{VERSION, revision};
use kevtmon_types::error_chain::chain;

pub mod bundle;
pub mod client;
pub mod doctor;
pub mod exit;
pub mod holders;
pub mod logging;
pub mod query;
pub mod reader;
pub mod reference;
pub mod replay;
pub mod run;
pub mod top;
pub mod ui;

pub use bundle::BundleArgs;
pub use doctor::DoctorArgs;
pub use holders::HoldersArgs;
pub use replay::ReplayArgs;
pub use run::RunArgs;
pub use top::TopArgs;
pub use ui::UiArgs;

static VERSION_LINE: LazyLock<String> = LazyLock::new(|| format!("{VERSION} ({})", revision()));

/// Names the process that deleted a neighbor entry, changed a link or holds a mount, the moment it happens.
#[derive(Debug, Parser)]
#[command(name = "kevtmon", version = VERSION_LINE.as_str(), max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the monitor of this node in the foreground
    Run(RunArgs),
    /// Replay a recording or bundle and print its events, on any machine
    Replay(ReplayArgs),
    /// Write the recording of an incident, with state and configuration, into one file
    Bundle(BundleArgs),
    /// List the processes that hold a mount, or use what lies below a path: as `fuser -vm`, but it never hangs
    ///
    /// One line a process: user, pid, how it holds it (fd, cwd, root, exe, mmap, socket; with `?` it only may), command, container or systemd unit, and pod.
    /// Processes in other mount namespaces are found, too. A copy of the mount in another mount namespace keeps the file
    /// system in use, but refuses no unmount. Of a path that is no mount point, the users of what lies below it are listed.
    ///
    /// Loop devices, swap files and NFS exports have a line of their own. With --leaks: mounts that others still have after the
    /// host has unmounted them.
    ///
    /// Works without a daemon. With one, containers and pods have names. Nothing at PATH is opened.
    ///
    /// Exit code: 0 something was found, 1 nothing, 2 the answer is incomplete, or the path does not exist.
    Holders(HoldersArgs),
    /// Show what works on this node, in which attach mode, why not better, and the remedy
    ///
    /// The running daemon answers for itself. Without one, the command tries everything as a daemon would, and releases it.
    ///
    /// Exit code: 0 all that is required works, 1 something does not, or the self-test failed, 69 `require_ebpf` is set and the
    /// hooks do not work, 77 a capability is missing that the daemon cannot do without.
    Doctor(DoctorArgs),
    /// Show this node live: open incidents, events of the last minute, sources
    ///
    /// Arrows, j and k select an incident, Enter shows its story, Esc leaves it, q quits. Needs a running daemon.
    ///
    /// Exit code: 0 it was shown, 2 no daemon answers, or there is no terminal.
    Top(TopArgs),
    /// Show this node in a browser: open incidents, their course, the network of the pods
    ///
    /// Serves a page on 127.0.0.1 and prints its address, until Ctrl-C. Who has the address can read what the daemon knows.
    /// Needs a running daemon. From another machine: `ssh -L 8080:127.0.0.1:PORT NODE`.
    ///
    /// Exit code: 0 stopped by a signal, 1 it cannot listen, 2 no daemon answers.
    Ui(UiArgs),
    #[command(flatten)]
    Query(query::Query),
    #[command(flatten)]
    Reference(reference::Reference),
}

impl Cli {
    /// Runs the command; returns the exit code.
    pub fn run(&self) -> u8 {
        match &self.command {
            Command::Run(args) => args.run(),
            Command::Replay(args) => args.run(),
            Command::Bundle(args) => args.run(),
            Command::Holders(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Ui(args) => args.run(),
            Command::Query(query) => query.run(),
            Command::Reference(reference) => reference.run(),
        }
    }
}

/// Parses the arguments, the program's name first.
/// Errors: the exit code, once help, version or the error is printed: 0 or [`exit::USAGE`].
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, u8> {
    Cli::try_parse_from(args).map_err(|error| {
        // There is nowhere left to report that standard error cannot be written.
        let _ = error.print();
        exit_code(&error)
    })
}

/// clap exits with 2 on a usage error, which has another meaning here.
fn exit_code(error: &clap::Error) -> u8 {
    if error.use_stderr() { exit::USAGE } else { exit::OK }
}

/// Prints an error with its causes to standard error; returns the exit code.
fn fail(error: &dyn Error, code: u8) -> u8 {
    remark(&chain(error));
    code
}

/// Prints a line to standard error.
fn remark(text: &str) {
    // There is nowhere left to report that standard error cannot be written.
    let _ = writeln!(io::stderr(), "kevtmon: {text}");
}

/// Prints to standard output. A reader that has closed the pipe, as head does, is no error.
fn print(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Does what takes a runtime. A reader of /proc that hangs is not waited for.
fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(done)
}

/// Whether what is printed to a terminal may have colours.
fn wants_colour() -> bool {
    env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use kevtmon_history::recording::recorder::Record;
    use kevtmon_server::sinks::api::SOCKET;
    use kevtmon_server::sinks::listen::LISTEN;
    use kevtmon_server::sinks::stdout::Format;

    use super::*;
    use crate::config::{DEFAULT_FILE, STATE_DIR};

    fn run(args: &[&str]) -> Result<RunArgs, (u8, String)> {
        let line = ["kevtmon", "run"].iter().chain(args).copied();
        match Cli::try_parse_from(line) {
            Ok(Cli { command: Command::Run(args) }) => Ok(args),
            Ok(other) => panic!("another command: {other:?}"),
            Err(error) => Err((exit_code(&error), error.to_string())),
        }
    }

    #[test]
    fn the_declaration_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_run_is_understood() {
        let args = run(&[
            "--config=/c.toml", "--output", "json", "--listen", "127.0.0.1:1", "--listen", "[::1]:2",
            "--socket", "/s", "--state-dir", "/d", "--node-name", "n", "--runtime", "docker=/a", "--runtime",
            "docker=/b", "--log-format", "json", "--log-bpf", "--record=/r", "--record-max-mib=1",
        ])
        .unwrap();
        assert_eq!(args.record(), Some(Record { path: "/r".into(), max_bytes: 1 << 20 }));
        assert!(args.log_bpf);
        assert_eq!(args.log_format, logging::LogFormat::Json);
        let overrides = args.overrides;
        assert_eq!(overrides.output, Some(Format::Json));
        assert_eq!(overrides.listen.len(), 2);
        assert_eq!(overrides.runtimes.len(), 2);
        assert_eq!(overrides.node_name.as_deref(), Some("n"));
    }

    #[test]
    fn a_wrong_value_is_a_usage_error_that_names_the_valid_ones() {
        let (code, text) = run(&["--output", "xml"]).unwrap_err();
        assert_eq!(code, exit::USAGE);
        assert!(text.contains("pretty, json, none"), "{text}");
        for wrong in [
            &["--listen", "19809"][..],
            &["--nonsense"],
            &["--runtime", "podman"],
            &["--runtime", "rkt=/run/rkt.sock"],
            &["stray"],
        ] {
            assert_eq!(run(wrong).unwrap_err().0, exit::USAGE, "{wrong:?}");
        }
    }

    #[test]
    fn the_help_shows_the_defaults_of_the_settings() {
        let shown: String = Cli::command().find_subcommand_mut("run").unwrap().render_long_help().to_string();
        let help = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        let listen = (LISTEN.default)().0[0].to_string();
        let paths = [(SOCKET.default)(), (STATE_DIR.default)()].map(|path| path.display().to_string());
        for default in paths.iter().chain([&listen, &DEFAULT_FILE.to_owned()]) {
            assert!(help.contains(&format!("[default: {default}")), "{default} in {help}");
        }
    }

    #[test]
    fn help_and_version_succeed_and_no_command_does_not() {
        let code = |args: &[&str]| exit_code(&Cli::try_parse_from(args).unwrap_err());
        assert_eq!(code(&["kevtmon", "--help"]), exit::OK);
        assert_eq!(code(&["kevtmon", "run", "--help"]), exit::OK);
        assert_eq!(code(&["kevtmon", "--version"]), exit::OK);
        assert_eq!(code(&["kevtmon"]), exit::USAGE);
        let version = Cli::try_parse_from(["kevtmon", "--version"]).unwrap_err().to_string();
        assert_eq!(version.trim(), format!("kevtmon {VERSION} ({})", revision()));
    }
}
