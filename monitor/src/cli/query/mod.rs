//! The commands that read: from the running daemon, or from what it left on disk once it is dead.
//!
//! Arguments enter, text or JSON leaves by standard output, remarks by standard error. What to ask and what it
//! means is [`crate::query`]'s business.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::exit;
use crate::config::{Config, Overrides};
use crate::error_chain::chain;
use crate::query::history::{History, HistoryError};
use crate::query::moment::Clock;
use crate::query::offline::offline;
use crate::query::remote::Remote;
use crate::recording::remains::RemainsError;
use crate::sinks::pretty::Pretty;

mod events;
mod incidents;
mod state;
#[cfg(test)]
mod tests;
mod why;

pub use events::EventsArgs;
pub use incidents::IncidentsArgs;
pub use state::StateArgs;
pub use why::WhyArgs;

/// Written at once, in bytes: what a pipe holds.
const OUTPUT: usize = 64 * 1024;

/// The commands that read.
#[derive(Debug, Subcommand)]
pub enum Query {
    /// Show what happened
    Events(EventsArgs),
    /// Show what is wrong
    Incidents(IncidentsArgs),
    /// Tell the story of one thing: what happened to it, and why
    Why(WhyArgs),
    /// Show what the daemon knows of this node
    State(StateArgs),
}

/// Where to ask.
#[derive(Debug, Clone, Default, Args)]
pub struct Place {
    /// Socket of the daemon [default: as configured, else /run/kevtmon/kevtmon.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What a dead daemon left is read from here [default: as configured, else /var/lib/kevtmon]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl Query {
    /// Answers; returns the exit code.
    #[must_use]
    pub fn run(&self) -> u8 {
        let colour =
            io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let clock = Clock { now: Timestamp::now(), zone: TimeZone::system() };
        let out = io::stdout().lock();
        let (mut out, mut err) = (io::BufWriter::with_capacity(OUTPUT, out), io::stderr().lock());
        let source = match self.place().reach(&mut err) {
            Ok(source) => source,
            Err(Unreachable) => return exit::QUERY,
        };
        let pretty = Pretty { colour, zone: clock.zone.clone() };
        let mut desk = Desk { source: &source, clock, pretty, out: &mut out, err: &mut err };
        let answered =
            self.answer(&mut desk).and_then(|code| desk.out.flush().map_err(Failure::from).map(|()| code));
        match answered {
            Ok(code) => code,
            // Whoever read has read enough.
            Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => exit::OK,
            Err(error) => {
                desk.say(&error);
                exit::QUERY
            }
        }
    }

    fn place(&self) -> &Place {
        match self {
            Self::Events(args) => &args.place,
            Self::Incidents(args) => &args.place,
            Self::Why(args) => &args.place,
            Self::State(args) => &args.place,
        }
    }

    fn answer(&self, desk: &mut Desk<'_>) -> Result<u8, Failure> {
        match self {
            Self::Events(args) => args.answer(desk),
            Self::Incidents(args) => args.answer(desk),
            Self::Why(args) => args.answer(desk),
            Self::State(args) => args.answer(desk),
        }
    }
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The history could not be read.
    #[error("{}", chain(.0))]
    History(#[from] HistoryError),
    /// The question is wrong.
    #[error("{0}")]
    Question(String),
    /// What a dead daemon recorded could not be read.
    #[error("{}", chain(.0))]
    Remains(#[from] RemainsError),
    /// The answer could not be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
    /// The answer is no JSON.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Neither a daemon nor a store; it was said already.
struct Unreachable;

/// Who answers.
enum Source {
    Daemon(Remote),
    Store { history: Box<dyn History>, dir: PathBuf },
}

impl Source {
    fn history(&self) -> &dyn History {
        match self {
            Self::Daemon(remote) => remote,
            Self::Store { history, .. } => history.as_ref(),
        }
    }

    /// Where it was looked, for when nothing was found.
    fn looked(&self, clock: &Clock) -> String {
        let place = match self {
            Self::Daemon(remote) => format!("asked the daemon at {}", remote.path().display()),
            Self::Store { dir, .. } => format!("looked in the store in {}", dir.display()),
        };
        match self.history().extent().ok().and_then(|extent| extent.from?.parse().ok()) {
            Some(from) => format!("{place}, which reaches back to {}", clock.local_and_age(from)),
            None => format!("{place}, which has no events"),
        }
    }
}

impl Place {
    fn reach(&self, err: &mut dyn Write) -> Result<Source, Unreachable> {
        // Nobody is left to tell when even this cannot be printed.
        let mut say = |what: &dyn Display| drop(writeln!(err, "kevtmon: {what}"));
        let (socket, state_dir) = self.paths(&mut say);
        let dead = match Remote::connect(&socket) {
            Ok(remote) => return Ok(Source::Daemon(remote)),
            Err(error) if error.is_dead() => error,
            Err(error) => {
                say(&chain(&error));
                return Err(Unreachable);
            }
        };
        match offline(&state_dir) {
            Ok(history) => {
                say(&format!("{}; reading what it left in {}", chain(&dead), state_dir.display()));
                Ok(Source::Store { history, dir: state_dir })
            }
            Err(error) => {
                say(&format!("{}, and {}", chain(&dead), chain(&error)));
                Err(Unreachable)
            }
        }
    }

    /// As the daemon of this node has them, unless they were given.
    fn paths(&self, say: &mut impl FnMut(&dyn Display)) -> (PathBuf, PathBuf) {
        let given = Overrides {
            socket: self.socket.clone(),
            state_dir: self.state_dir.clone(),
            ..Overrides::default()
        };
        match (&self.socket, &self.state_dir, Config::load(&given)) {
            (_, _, Ok(config)) => (config.socket, config.state_dir),
            (Some(socket), Some(state_dir), Err(_)) => (socket.clone(), state_dir.clone()),
            (socket, state_dir, Err(error)) => {
                say(&format!("{}; using the default places", chain(&error)));
                let or =
                    |given: &Option<PathBuf>, default: &str| given.clone().unwrap_or_else(|| default.into());
                (or(socket, crate::config::DEFAULT_SOCKET), or(state_dir, crate::config::DEFAULT_STATE_DIR))
            }
        }
    }
}

/// Where one question is answered.
struct Desk<'a> {
    source: &'a Source,
    clock: Clock,
    pretty: Pretty,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl Desk<'_> {
    /// A remark.
    fn say(&mut self, what: &dyn Display) {
        // Nobody is left to tell when even this cannot be printed.
        let _ = writeln!(self.err, "kevtmon: {what}");
    }

    /// Says where nothing was found.
    fn nothing(&mut self, what: &str) -> u8 {
        let looked = self.source.looked(&self.clock);
        self.say(&format!("{what}: {looked}"));
        exit::FAILED
    }

    fn json(&mut self, value: &impl serde::Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.out, value)?;
        Ok(writeln!(self.out)?)
    }
}
