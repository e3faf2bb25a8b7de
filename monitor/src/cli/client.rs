//! Where queries are answered: by the running daemon over its socket, or, when none runs, from its files.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kevtmon_core::state::NodeState;
use kevtmon_history::query::filter::{EventFilter, IncidentFilter};
use kevtmon_history::query::history::{Extent, History, HistoryError, IncidentView, Page};
use kevtmon_history::query::stale;
use kevtmon_history::query::why::{self, Outcome};
use kevtmon_history::recording::offline_state::{OfflineStateError, offline_state};
use kevtmon_history::store::Archive;
use kevtmon_render::time::Clock;
use kevtmon_server::client::{Remote, RemoteError};
use kevtmon_server::sinks::api::SOCKET;
use kevtmon_types::error_chain::chain;

use crate::config::{Config, Overrides, STATE_DIR};

/// Where the daemon's socket and files are.
#[derive(Debug, Clone, Default, Args)]
pub struct ClientArgs {
    /// Socket of the daemon [default: as configured, else /run/kevtmon/kevtmon.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// State directory of the daemon, read when no daemon runs [default: as configured, else /var/lib/kevtmon]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// Neither the daemon nor its files can be read; the reason is printed already.
#[derive(Debug)]
pub(super) struct Unreachable;

pub(super) enum Source {
    Daemon(Remote),
    /// The files of a daemon that does not run.
    Files {
        /// Its events and incidents.
        history: Box<dyn History>,
        dir: PathBuf,
    },
    /// There is neither.
    Nowhere,
}

/// A history of nothing.
struct Nothing;

impl History for Nothing {
    fn events(&self, _: &EventFilter) -> Result<Page, HistoryError> {
        Ok(Page::default())
    }

    fn incidents(&self, _: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        Ok(Vec::new())
    }

    fn extent(&self) -> Result<Extent, HistoryError> {
        Ok(Extent::default())
    }
}

impl Source {
    pub(super) fn history(&self) -> &dyn History {
        match self {
            Self::Daemon(remote) => remote,
            Self::Files { history, .. } => history.as_ref(),
            Self::Nowhere => &Nothing,
        }
    }

    /// Incidents, each by its newest event; of those that nobody watches, with the reason.
    pub(super) fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<IncidentView>, HistoryError> {
        let mut views = self.history().incidents(filter)?;
        if let Self::Files { history, .. } = self {
            stale::without_daemon(&mut views, &history.extent()?);
        }
        Ok(views)
    }

    /// What happened to the subject: the same code answers in the daemon and on its files.
    pub(super) fn why(&self, subject: &str) -> Result<Outcome, HistoryError> {
        match self {
            Self::Daemon(remote) => Ok(remote.why(subject)?),
            Self::Files { .. } | Self::Nowhere => why::why(self.history(), subject),
        }
    }

    /// The model of the node: as it is, or as it was recorded last.
    pub(super) fn state(&self) -> Result<Option<NodeState>, StateError> {
        match (self.history().state()?, self) {
            (None, Self::Files { dir, .. }) => Ok(offline_state(dir)?),
            (state, _) => Ok(state),
        }
    }

    /// Where events were searched and how far back they reach, for when there are none.
    pub(super) fn searched(&self, extent: Option<Extent>, clock: &Clock) -> String {
        let place = match self {
            Self::Daemon(remote) => format!("queried the daemon at {}", remote.path().display()),
            Self::Files { dir, .. } => format!("searched the event store in {}", dir.display()),
            Self::Nowhere => return "there is neither a daemon nor its files".to_owned(),
        };
        match extent.and_then(|extent| extent.from?.parse().ok()) {
            Some(from) => format!("{place}, which reaches back to {}", clock.local_and_age(from)),
            None => format!("{place}, which has no events"),
        }
    }
}

/// Why the model of the node cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    Recording(#[from] OfflineStateError),
}

impl ClientArgs {
    /// Connects to the daemon, else opens its files; remarks go to `err`.
    pub(super) fn connect(&self, err: &mut dyn Write) -> Result<Source, Unreachable> {
        // There is nowhere left to report that standard error cannot be written.
        let mut remark = |what: &dyn Display| drop(writeln!(err, "kevtmon: {what}"));
        let (socket, state_dir) = self.paths(&mut remark);
        let dead = match Remote::connect(&socket) {
            Ok(remote) => return Ok(Source::Daemon(remote)),
            Err(error) if error.is_dead() => error,
            Err(error) => {
                remark(&chain(&error));
                return Err(Unreachable);
            }
        };
        match Archive::open(&state_dir) {
            Ok(history) => {
                let until = history.extent().ok().and_then(|extent| extent.to?.parse::<Timestamp>().ok());
                let until = until.map_or_else(String::new, |until| {
                    let clock = Clock { now: Timestamp::now(), zone: TimeZone::system() };
                    format!(", in which there is nothing after {}", clock.local_and_age(until))
                });
                remark(&format!("{}; reading its files in {}{until}", chain(&dead), state_dir.display()));
                Ok(Source::Files { history: Box::new(history), dir: state_dir })
            }
            Err(error) => {
                remark(&format!("{}, and {}", chain(&dead), chain(&error)));
                Err(Unreachable)
            }
        }
    }

    /// Connects to the daemon, for what its files cannot answer.
    pub(super) fn daemon(&self) -> Result<Remote, RemoteError> {
        let (socket, _) = self.paths(&mut |what: &dyn Display| super::remark(&what.to_string()));
        Remote::connect(&socket)
    }

    /// As the daemon of this node is configured, unless they are given.
    fn paths(&self, remark: &mut impl FnMut(&dyn Display)) -> (PathBuf, PathBuf) {
        let given = Overrides {
            socket: self.socket.clone(),
            state_dir: self.state_dir.clone(),
            ..Overrides::default()
        };
        match (&self.socket, &self.state_dir, Config::load(&given)) {
            (_, _, Ok(config)) => (config.get(&SOCKET), config.get(&STATE_DIR)),
            (Some(socket), Some(state_dir), Err(_)) => (socket.clone(), state_dir.clone()),
            (socket, state_dir, Err(error)) => {
                remark(&format!("{}; using the default paths", chain(&error)));
                let or =
                    |given: &Option<PathBuf>, default: fn() -> PathBuf| given.clone().unwrap_or_else(default);
                (or(socket, SOCKET.default), or(state_dir, STATE_DIR.default))
            }
        }
    }
}
